//! A peer, a clock and a caller that do anything that the types allow: no panic, every invariant
//! holds after every step, and no record leaks.

use core::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::path::{MSS, Sender};
use crate::config::{Congestion, TcpConfig};

#[derive(Debug, Clone)]
pub(super) enum Step {
    Wait {
        us: u64,
    },
    Send {
        bytes: u32,
    },
    Resend,
    Probe,
    /// In thousandths of what is outstanding; blocks relative to SND.UNA.
    Ack {
        part: u32,
        blocks: Vec<(u32, u32)>,
        echo_us: Option<u64>,
        ece: bool,
    },
    TimeOut,
    Mss {
        mss: u32,
    },
    TooBig {
        mss: u32,
    },
    Idle,
}

fn blocks() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let whole = (0..40_u32, 1..10_u32).prop_map(|(at, len)| (at * MSS, len * MSS));
    let any_bytes = (0..40_000_u32, 0..20_000_u32);
    let wild = (any::<u32>(), any::<u32>());
    prop::collection::vec(prop_oneof![6 => whole, 2 => any_bytes, 1 => wild], 0..5)
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let ack = (
        prop_oneof![3 => Just(0), 3 => 0..=1000_u32, 1 => Just(1000)],
        blocks(),
        prop::option::of(prop_oneof![0..500_000_u64, any::<u64>()]),
        prop::bool::weighted(0.1),
    );
    prop_oneof![
        4 => prop_oneof![0..2_000_u64, 0..400_000_u64, Just(u64::MAX)]
            .prop_map(|us| Step::Wait { us }),
        6 => prop_oneof![Just(MSS), 1..3 * MSS].prop_map(|bytes| Step::Send { bytes }),
        5 => Just(Step::Resend),
        1 => Just(Step::Probe),
        9 => ack.prop_map(|(part, blocks, echo_us, ece)| Step::Ack { part, blocks, echo_us, ece }),
        3 => Just(Step::TimeOut),
        1 => (88..2 * MSS).prop_map(|mss| Step::Mss { mss }),
        1 => (88..2 * MSS).prop_map(|mss| Step::TooBig { mss }),
        1 => Just(Step::Idle),
    ]
}

pub(super) fn apply(sender: &mut Sender, step: Step) {
    match step {
        Step::Wait { us: u64::MAX } if sender.short_waits => sender.wait_us(2_000_000),
        // Half of what 32 bits of microseconds hold.
        Step::Wait { us: u64::MAX } => sender.wait_us(1 << 31),
        Step::Wait { us } => sender.wait_us(us),
        Step::Send { bytes } => {
            let range = SeqRange::new(sender.nxt, bytes);
            let sent = sender.on_sent(range, Sent::New);
            if sent.is_ok() {
                sender.nxt = range.end;
            } else {
                assert_eq!(sender.records.available(), 0);
            }
        }
        Step::Resend => {
            sender.resend();
        }
        Step::Probe => {
            if let Some(range) = sender.recovery.probe(&sender.records) {
                assert_eq!(sender.on_sent(range, Sent::Probe), Ok(()));
            }
        }
        Step::Ack { part, blocks, echo_us, ece } => {
            let outstanding = u64::from(sender.nxt.since(sender.una));
            let ack = sender.una + (outstanding * u64::from(part) / 1000) as u32;
            let blocks: Vec<SeqRange> =
                blocks.iter().map(|(at, len)| SeqRange::new(sender.una + *at, *len)).collect();
            sender.ack_raw(ack, &blocks, echo_us.map(Duration::from_micros), ece);
        }
        Step::TimeOut => {
            if sender.recovery.deadline().is_some() {
                sender.time_out();
            }
        }
        Step::Mss { mss } => sender.recovery.set_mss(mss),
        Step::TooBig { mss } => {
            sender.recovery.on_packet_too_big(&mut sender.records, sender.now, mss);
        }
        Step::Idle => sender.recovery.restart_after_idle(&mut sender.records, sender.now),
    }
    sender.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_a_peer_says_breaks_the_scoreboard(
        sack in any::<bool>(),
        rack in any::<bool>(),
        cubic in any::<bool>(),
        short_waits in prop::bool::weighted(0.8),
        capacity in prop_oneof![1..20_u32, Just(1000)],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let congestion = if cubic { Congestion::Cubic } else { Congestion::NewReno };
        let rto_max = Duration::from_secs(8);
        let config = TcpConfig { sack, rack, congestion, rto_max, ..TcpConfig::default() };
        let mut sender = Sender::with_capacity(&config, capacity);
        sender.short_waits = short_waits;
        for step in steps {
            apply(&mut sender, step);
        }
        sender.ack_raw(sender.nxt, &[], None, false);
        prop_assert_eq!(sender.records.available(), capacity);
        prop_assert_eq!(sender.recovery.in_flight(&sender.records), 0);
    }
}
