//! Faults by a seed, on a clock that the test turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Pair, PairConfig, pair};

/// A clock in milliseconds.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let hand = self.clone();
        Box::new(move || Duration::from_millis(hand.0.load(Ordering::Relaxed)))
    }
}

fn faulty(seed: u64, inward: Faults, outward: Faults) -> (Fault<Pair>, Pair, Hand) {
    let (here, there) = pair(&PairConfig { frames: 64, ..PairConfig::default() }).expect("memory");
    let hand = Hand::default();
    (Fault::new(here, seed, inward, outward, hand.clock()), there, hand)
}

fn send(link: &mut dyn Link, number: u8) {
    let sent = link.tx_burst(1, &mut |room| {
        room[..60].fill(number);
        Some(TxMetadata { len: 60, ..TxMetadata::default() })
    });
    assert_eq!(sent.expect("sent"), 1);
}

fn receive(link: &mut dyn Link) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    link.rx_burst(64, &mut |frame, _| got.push(frame.to_vec())).expect("received");
    got
}

/// Sends frames one by one, and tells what comes of them.
fn fates(seed: u64, faults: Faults) -> (Vec<Vec<u8>>, FaultCounters) {
    let (mut link, mut there, _) = faulty(seed, faults, Faults::default());
    let mut got = Vec::new();
    for number in 0..200 {
        send(&mut there, number);
        got.extend(receive(&mut link));
    }
    (got, link.fault_counters().0)
}

#[test]
fn a_seed_decides() {
    let faults = Faults {
        loss_ppm: 100_000,
        duplication_ppm: 100_000,
        corruption_ppm: 100_000,
        ..Faults::default()
    };
    let (got, counters) = fates(5, faults);
    assert_eq!(fates(5, faults), (got.clone(), counters));
    assert_ne!(fates(6, faults).0, got);
    let FaultCounters { frames, lost, duplicated, corrupted, reordered, overflowed } = counters;
    assert_eq!((frames, reordered, overflowed), (200, 0, 0));
    assert!([lost, duplicated, corrupted].iter().all(|count| (5..40).contains(count)));
    assert_eq!(got.len() as u64, 200 - lost + duplicated);
}

#[test]
fn corruption_flips_one_bit_and_clears_verification() {
    let faults = Faults { corruption_ppm: 1_000_000, ..Faults::default() };
    let (got, counters) = fates(1, faults);
    assert_eq!((counters.corrupted, got.len()), (200, 200));
    for (number, frame) in (0..).zip(&got) {
        let bits: u32 = frame.iter().map(|byte| (byte ^ number as u8).count_ones()).sum();
        assert_eq!(bits, 1);
    }
    let verified = RxMetadata { checksums: RxChecksum::Verified, segment_bytes: 0 };
    assert_eq!(verified.distrusted(), RxMetadata::default());
}

#[test]
fn a_frame_is_delayed_and_order_kept_in_both_directions() {
    let slow = Faults { delay: Duration::from_millis(20), ..Faults::default() };
    let (mut link, mut there, hand) = faulty(1, slow, slow);
    for number in 0..3 {
        send(&mut there, number);
        send(&mut link, number);
    }
    assert_eq!((receive(&mut link).len(), receive(&mut there).len()), (0, 0));
    assert_eq!(link.next_due(), Some(Duration::from_millis(20)));
    hand.set(19);
    assert_eq!(receive(&mut link).len(), 0);
    hand.set(20);
    assert!(!link.arm().expect("armed"), "there is work");
    let first: Vec<u8> = receive(&mut link).iter().map(|frame| frame[0]).collect();
    let other: Vec<u8> = receive(&mut there).iter().map(|frame| frame[0]).collect();
    assert_eq!((first, other), (vec![0, 1, 2], vec![0, 1, 2]));
    assert_eq!(link.next_due(), None);
}

#[test]
fn a_frame_that_is_held_back_is_overtaken() {
    let faults = Faults {
        reordering_ppm: 300_000,
        reordering_delay: Duration::from_millis(5),
        ..Faults::default()
    };
    let (mut link, mut there, hand) = faulty(3, faults, Faults::default());
    let mut got = Vec::new();
    for number in 0..100 {
        hand.set(number);
        send(&mut there, u8::try_from(number).expect("small"));
        got.extend(receive(&mut link).iter().map(|frame| frame[0]));
    }
    hand.set(1_000);
    got.extend(receive(&mut link).iter().map(|frame| frame[0]));
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>(), "all come");
    assert_ne!(got, sorted, "some late");
    let late = got.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(late as u64 <= link.fault_counters().0.reordered);
}

#[test]
fn a_sleeper_wakes_for_a_delayed_frame() {
    let slow = Faults { delay: Duration::from_millis(30), ..Faults::default() };
    let (here, mut there) = pair(&PairConfig::default()).expect("memory");
    let start = Instant::now();
    let mut link = Fault::new(here, 1, slow, Faults::default(), Box::new(move || start.elapsed()));
    send(&mut there, 9);
    assert_eq!(receive(&mut link).len(), 0);
    while receive(&mut link).is_empty() {
        link.wait(None).expect("woken");
    }
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_descriptor_wakes_for_a_delayed_frame() {
    let slow = Faults { delay: Duration::from_millis(30), ..Faults::default() };
    let (here, mut there) = pair(&PairConfig::default()).expect("memory");
    let start = Instant::now();
    let mut link = Fault::in_real_time(here, 1, slow, slow).expect("descriptors");
    for (way, number) in [("in", 7), ("out", 8)] {
        let (from, to): (&mut dyn Link, _) =
            if way == "in" { (&mut there, None) } else { (&mut link, Some(number)) };
        send(from, number);
        let mut got = Vec::new();
        while got.is_empty() {
            got = if to.is_none() { receive(&mut link) } else { receive(&mut there) };
            if got.is_empty() && link.arm().expect("armed") {
                let limit = Some(Duration::from_secs(9));
                let fd = link.wait_fd();
                assert!(crate::sleep::until_readable(fd, limit).expect("poll"), "{way}: asleep");
                // What is due goes when the link is called.
                link.rx_burst(0, &mut |_, _| ()).expect("open");
            }
        }
        assert_eq!(got[0][0], number);
    }
    assert!(start.elapsed() >= Duration::from_millis(60));
    assert!(link.arm().expect("armed"), "nothing is held any more");
    let fd = link.wait_fd();
    assert!(!crate::sleep::until_readable(fd, Some(Duration::from_millis(50))).expect("poll"));
}

#[test]
fn frame_without_slot_waits_or_is_refused() {
    let slow = Faults { delay: Duration::from_secs(9), ..Faults::default() };
    let (here, mut there) =
        pair(&PairConfig { frames: 4_096, ..PairConfig::default() }).expect("memory");
    let hand = Hand::default();
    let mut link = Fault::new(here, 1, slow, slow, hand.clock());
    for _ in 0..FAULT_DELAYED_FRAMES + 9 {
        send(&mut there, 1);
    }
    assert_eq!(receive(&mut link).len(), 0);
    let plain = TxMetadata { len: 60, ..TxMetadata::default() };
    let filled = link.tx_burst(9_999, &mut |_| Some(plain)).expect("sent");
    assert_eq!(filled, FAULT_DELAYED_FRAMES - 1, "a frame may be doubled");
    let (inward, outward) = link.fault_counters();
    assert_eq!((inward.overflowed, outward.overflowed), (0, 0));
    hand.set(9_000);
    let mut got = 0;
    while got < FAULT_DELAYED_FRAMES - 1 {
        got += receive(&mut link).len();
    }
    assert_eq!(link.fault_counters().0.overflowed, 0);
}
