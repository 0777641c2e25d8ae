//! Fast path for the first burst after idle: one transmission without a record.
//!
//! Read first: RFC 6298 §5.1, RFC 8985 §7.2. [`Recovery::on_sent`] is the slow path, and this the
//! part of it that is left where nothing is outstanding and nothing was lost.
//!
//! Nearly always that burst is one segment, and acknowledged before more is sent. What a record
//! would say of it, [`Recovery`] says anyway: where it ends is where the round does, and when it
//! left is what RACK begins with. So it has none, only the right to one: [`Recovery::write_down`]
//! makes use of that before anything happens but its acknowledgment.
//!
//! Invariants
//! - It leaves what the slow path would, once it is written down; a test sends by both.
//! - While a burst is not written down, nothing else is outstanding, the phase is `Open`, and there
//!   is no [`super::Stress`].

use super::policy::Policy;
use super::records::{ALONE, NIL, Records, Ring};
use super::rtt::stamp;
use super::{Full, Phase, Recovery, Timer, flag, initial_window};
use crate::seq::{SeqNum, SeqRange};
use crate::time::Instant;

impl Recovery {
    /// Nothing is outstanding, and nothing but that is the matter.
    #[inline(always)]
    pub(super) const fn is_at_rest(&self) -> bool {
        self.head == NIL && !self.stress.is_some() && matches!(self.phase, Phase::Open)
    }

    /// As [`Recovery::on_sent`] for new data, [`Recovery::is_at_rest`].
    #[inline(always)]
    pub(super) fn send_first(
        &mut self,
        records: &mut Records,
        now: Instant,
        range: SeqRange,
    ) -> Result<(), Full> {
        let now_us = stamp(now);
        records.reserve().ok_or(Full)?;
        self.head = ALONE;
        self.oldest = range.start.0;
        self.rack_sent_us = now_us;
        self.round_end = range.end;
        if self.mark != range.start {
            self.mark = range.start - 1;
        }
        self.note_flight(range.len());
        let wait_us = self.arm_first(&records.policy, range.len());
        self.at = now.micros_on(wait_us);
        Ok(())
    }

    /// Gives the burst that has none its record.
    #[inline]
    pub(super) fn write_down(&mut self, records: &mut Records) {
        if self.head == ALONE {
            let range = self.unwritten();
            self.head = records.write_reserved(range, self.rack_sent_us);
            self.oldest = self.head;
        }
    }

    /// With an acknowledgment of `ack` nothing is outstanding, and nothing else ends by it: one
    /// burst is out that ends there, or none.
    #[inline]
    pub(crate) fn ends_plainly(&self, ack: SeqNum) -> bool {
        match self.head {
            NIL => self.is_at_rest(),
            ALONE => self.unwritten().end == ack,
            _ => false,
        }
    }

    /// The burst that has no record.
    pub(super) const fn unwritten(&self) -> SeqRange {
        SeqRange { start: SeqNum(self.oldest), end: self.round_end }
    }

    /// Which timer starts with `outstanding` bytes, and how long it waits.
    #[inline(always)]
    fn arm_first(&mut self, policy: &Policy, outstanding: u32) -> u32 {
        let rto_us = self.rto_us(policy);
        if !self.has(flag::RACK) || !policy.tail_loss_probes {
            self.timer = Timer::Retransmit;
            return rto_us;
        }
        // RFC 8985 §7.2: no later than the RTO would have been.
        self.timer = Timer::Probe;
        rto_us.min(self.pto_us(policy, outstanding))
    }

    /// To be called before a burst: a window that was not used for an RTO says nothing about the
    /// path any more (RFC 5681 §4.1).
    #[inline(always)]
    pub(crate) fn restart_after_idle(&mut self, records: &mut Records, now: Instant) {
        let is_wanted = records.policy.slow_start_after_idle;
        if is_wanted && self.timer == Timer::Idle && !self.rested_briefly(&records.policy, now) {
            self.restart(records, now);
        }
    }

    #[inline(never)]
    fn restart(&mut self, records: &mut Records, now: Instant) {
        if now.since(self.at) <= self.rto(records) {
            return;
        }
        let restart = initial_window(&records.policy, self.mss());
        if self.window.cwnd > restart {
            // As in RFC 2861 §3: what was reached once may be probed for quickly.
            self.window.ssthresh = self.window.ssthresh.max(self.window.cwnd / 4 * 3);
            self.window.cwnd = restart;
        }
        self.pause(records);
    }

    /// Gives all records back. The connection sends nothing any more.
    #[inline(always)]
    pub(crate) fn clear(&mut self, records: &mut Records) {
        if self.head == ALONE {
            records.give_reserved();
            self.head = NIL;
        }
        if self.head != NIL || self.stress.is_some() {
            self.clear_written(records);
        }
        self.oldest = NIL;
        self.phase = Phase::Open;
        self.timer = Timer::Idle;
    }

    #[inline(never)]
    fn clear_written(&mut self, records: &mut Records) {
        while self.head != NIL {
            let index = self.head;
            records.unlink(Ring::Sequence, &mut self.head, index);
            records.give(index);
        }
        records.stresses.give_back(&mut self.stress);
    }

    /// The window was not used for so short a time that it stands, whatever the RTO is.
    #[inline(always)]
    pub(super) const fn rested_briefly(&self, policy: &Policy, now: Instant) -> bool {
        let rested_us = now.as_nanos().saturating_sub(self.at.as_nanos()) / 1024;
        rested_us < policy.rto_least_us as u64 / 2
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::super::{Opening, Sent};
    use super::*;
    use crate::config::TcpConfig;

    proptest! {
        #[test]
        fn it_leaves_what_the_full_way_would(
            (sack, rack, probes) in any::<(bool, bool, bool)>(),
            rtt_us in prop::option::of(1..3_000_000_u32),
            (resent, len, mss) in (0..3_u8, 1..60_000_u32, 88..9000_u32),
            (start, rests_us) in (any::<u32>(), 1..10_000_000_u64),
        ) {
            let config =
                TcpConfig { sack, rack, tail_loss_probes: probes, ..TcpConfig::default() };
            let opening = Opening { mss, sack, syn_retransmissions: resent, rtt_us };
            let begun = Instant::from_millis(7_000_000);
            let now = begun + Duration::from_micros(rests_us);
            let range = SeqRange::new(SeqNum(start), len);
            let [first, full] = [true, false].map(|first| {
                let mut records = Records::new(4, 1, &config);
                let mut recovery = Recovery::new(&records, begun, &opening);
                let briefly = recovery.rested_briefly(&records.policy, now);
                assert!(!briefly || now.since(begun) <= recovery.rto(&records));
                if first {
                    recovery.send_first(&mut records, now, range).unwrap();
                } else {
                    recovery.send_any(&mut records, now, range, Sent::New).unwrap();
                }
                assert_eq!((recovery.outstanding(&records), records.held()), (len, 1));
                recovery.write_down(&mut records);
                assert_eq!((recovery.outstanding(&records), records.held()), (len, 1));
                format!("{recovery:?} {:?}", records.get(recovery.head))
            });
            prop_assert_eq!(first, full);
        }
    }
}
