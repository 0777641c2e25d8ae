//! Two senders to which the same happens, of which only one has the short ways: the one for a burst
//! that nothing else is out with, and the one for its acknowledgment. Whatever can be asked of them
//! is answered alike after every step.

use proptest::prelude::*;

use super::hostile::{Step, apply, step};
use super::path::{MSS, Sender};
use crate::config::{Congestion, TcpConfig};

/// What a server's life is made of: bursts, and their acknowledgment; now and then something else.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let all = Step::Ack { part: 1000, blocks: Vec::new(), echo_us: Some(700), ece: false };
    let usual = prop_oneof![
        6 => prop_oneof![4 => 1..MSS, 1 => 1..12 * MSS].prop_map(|bytes| Step::Send { bytes }),
        6 => Just(all),
        4 => prop_oneof![0..2_000_u64, 0..90_000_u64].prop_map(|us| Step::Wait { us }),
        1 => Just(Step::Idle),
        2 => step(),
    ];
    prop::collection::vec(usual, 1..200)
}

/// All that is decided and known, in words.
fn answers(sender: &Sender) -> String {
    let Sender { recovery, records, .. } = sender;
    let sent = (recovery.outstanding(records), recovery.in_flight(records));
    let marked = (recovery.lost_bytes(records), recovery.sacked_bytes(records));
    let next = (recovery.next_retransmission(records), recovery.probe(records));
    let window = (recovery.cwnd(), recovery.ssthresh(), recovery.allowance(records));
    let rtt = (recovery.srtt(), recovery.rttvar(), recovery.min_rtt(), recovery.rto(records));
    let timer = (recovery.deadline(), recovery.at, recovery.timer, recovery.retransmissions());
    let rest = (recovery.phase, recovery.rack_rtt_us, records.held());
    format!("{sent:?} {marked:?} {next:?} {window:?} {rtt:?} {timer:?} {rest:?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_short_ways_decide_what_the_full_ones_would(
        (sack, rack, cubic, probes) in any::<(bool, bool, bool, bool)>(),
        capacity in prop_oneof![1..20_u32, Just(1000)],
        steps in steps(),
    ) {
        let congestion = if cubic { Congestion::Cubic } else { Congestion::NewReno };
        let config =
            TcpConfig { sack, rack, congestion, tail_loss_probes: probes, ..TcpConfig::default() };
        let mut senders = [false, true].map(|full_way| {
            let mut sender = Sender::with_capacity(&config, capacity);
            sender.full_way = full_way;
            sender
        });
        for step in steps {
            senders.iter_mut().for_each(|sender| apply(sender, step.clone()));
            let [short, full] = &senders;
            prop_assert_eq!(answers(short), answers(full), "after {:?}", step);
        }
    }
}
