//! What only a pair does. The rest is in the conformance suite.

use super::*;

fn send(link: &mut Pair, transmit: TxMetadata) -> Result<usize, LinkError> {
    link.tx_burst(1, &mut |room| {
        room[..60].fill(7);
        Some(transmit)
    })
}

#[test]
fn settings_out_of_range_are_named() {
    for (config, name) in [
        (PairConfig { frames: 3, ..PairConfig::default() }, "frames"),
        (PairConfig { frames: 0, ..PairConfig::default() }, "frames"),
        (PairConfig { frames: PAIR_FRAMES_MAX * 2, ..PairConfig::default() }, "frames"),
        (PairConfig { mtu: 67, ..PairConfig::default() }, "mtu"),
    ] {
        let Err(LinkError::Setting { setting, .. }) = pair(&config) else {
            panic!("{config:?} was taken");
        };
        assert_eq!(setting, name);
    }
}

#[test]
fn offloaded_checksum_is_verified() {
    let config = PairConfig { offloads: true, frames: 4, ..PairConfig::default() };
    let (mut here, mut there) = pair(&config).expect("a pair");
    assert!(here.caps().tso && here.caps().tx_frame_bytes >= 65_535);
    send(&mut here, TxMetadata { len: 60, ..TxMetadata::default() }).expect("sent");
    let cut = TxMetadata { len: 60, checksum_start: 34, segment_bytes: 3, ..TxMetadata::default() };
    send(&mut here, cut).expect("sent");
    let mut got = Vec::new();
    there.rx_burst(9, &mut |_, received| got.push(received)).expect("received");
    let whole = RxMetadata { checksums: RxChecksum::Verified, segment_bytes: 3 };
    assert_eq!(got, [RxMetadata::default(), whole]);
}

#[test]
fn frames_of_an_end_that_left_are_still_received() {
    let (mut here, mut there) = pair(&PairConfig::default()).expect("a pair");
    send(&mut here, TxMetadata { len: 60, ..TxMetadata::default() }).expect("sent");
    drop(here);
    assert!(!there.arm().expect("armed"));
    assert_eq!(there.rx_burst(9, &mut |_, _| ()).expect("the last frame"), 1);
    assert!(matches!(there.rx_burst(9, &mut |_, _| ()), Err(LinkError::Gone { driver: "pair" })));
}

#[test]
fn a_turn_without_sleep_makes_no_system_call() {
    let (mut here, mut there) = pair(&PairConfig::default()).expect("a pair");
    for _ in 0..1_000 {
        send(&mut here, TxMetadata { len: 60, ..TxMetadata::default() }).expect("sent");
        assert_eq!(there.rx_burst(9, &mut |_, _| ()).expect("received"), 1);
    }
    assert_eq!((here.counters().system_calls, there.counters().system_calls), (0, 0));
}

#[test]
fn numbers_run_over() {
    let (mut producer, mut consumer) = ring::ring(4, 60);
    for round in 0..20_u8 {
        for number in 0..4 {
            producer.room().expect("room")[0] = round ^ number;
            producer.put(TxMetadata { len: 1, ..TxMetadata::default() });
        }
        assert!(producer.room().is_none());
        assert!(!consumer.has_frame(), "nothing was published");
        producer.publish();
        let mut got = Vec::new();
        assert_eq!(consumer.take(9, &mut |bytes, _| got.push(bytes[0])), 4);
        assert_eq!(got, [round, round ^ 1, round ^ 2, round ^ 3]);
    }
}
