//! Recovery episodes: window reduction, its end, and its undo.
//!
//! Read first: RFC 6675 §5 and RFC 6582 §3.2 (fast recovery), RFC 3168 §6.1.2 (marks), RFC 5682
//! §2.1 and §3.1 (F-RTO), RFC 3522 §3 and RFC 4015 §3.2 (Eifel: timestamps), RFC 3708 §3
//! (D-SACK).
//!
//! The window is reduced once for each window of data, whatever tells of congestion.

use super::acknowledge::Progress;
use super::records::{NIL, Records};
use super::{Ack, Acked, Phase, Whole, flag};
use crate::seq::SeqNum;

impl Whole<'_> {
    /// Moves on to the phase that this acknowledgment brings.
    pub(super) fn next_phase(
        &mut self,
        records: &mut Records,
        ack: &Ack<'_>,
        progress: &mut Progress,
        flight: u32,
        acked: &mut Acked,
    ) {
        acked.undone = self.undo_if_needless(records, progress);
        let covered = ack.ack.at_or_after(self.rest.mark);
        // At the mark itself the peer has not seen our CWR yet (RFC 3168 §6.1.2).
        // While a probe is out, `mark` is where that ends.
        let first = self.rest.phase == Phase::Probing && !self.is_reduced() && progress.acked > 0;
        let mut congested = ack.ece && (first || ack.ack.after(self.rest.mark));
        match self.rest.phase {
            Phase::Open => {}
            Phase::ProbeDue if !self.is_reduced() => {
                if progress.acked > 0 {
                    self.rest.phase = Phase::Open;
                }
            }
            Phase::Probing => congested |= self.on_ack_of_probe(ack, progress, covered),
            Phase::ProbeDue | Phase::Reduced | Phase::Recovery if covered => {
                acked.left = self.rest.phase == Phase::Recovery;
                self.rest.window.cwnd = self.rest.window.ssthresh.max(self.rest.mss());
                self.leave(ack);
            }
            Phase::ProbeDue if progress.acked > 0 => self.rest.phase = Phase::Reduced,
            Phase::ProbeDue | Phase::Reduced | Phase::Recovery => {}
            Phase::FirstAck | Phase::NewData | Phase::Loss if covered => {
                acked.left = true;
                self.leave(ack);
            }
            Phase::FirstAck => self.on_first_ack(records, ack, progress),
            Phase::NewData => acked.undone |= self.on_second_ack(records, progress),
            Phase::Loss => {}
        }
        let was_reduced = self.is_reduced();
        acked.entered = self.recover_if_lost(records, flight, ack.nxt);
        acked.cwr = acked.entered && !was_reduced;
        if congested && matches!(self.rest.phase, Phase::Open | Phase::ProbeDue | Phase::Probing) {
            self.enter(records, Phase::Reduced, flight, ack.nxt);
            self.stress.prior.cwnd = 0;
            acked.cwr = true;
        }
    }

    /// The window was reduced for this window of data without a loss, whether or not a probe is
    /// due or out since.
    pub(super) fn is_reduced(&self) -> bool {
        match self.rest.phase {
            Phase::Reduced => true,
            Phase::ProbeDue | Phase::Probing => self.stress.probe_of_reduced,
            _ => false,
        }
    }

    /// An acknowledgment came while a probe is out; `covered`: of all up to its end. True: it
    /// shows congestion that the window was not reduced for.
    fn on_ack_of_probe(&mut self, ack: &Ack<'_>, progress: &Progress, covered: bool) -> bool {
        let was_reduced = self.is_reduced();
        let repaired = self.judge_probe(ack, progress);
        if was_reduced && covered {
            self.rest.window.cwnd = self.rest.window.ssthresh.max(self.rest.mss());
        }
        if self.rest.phase == Phase::Open {
            self.stress.probe_of_reduced = false;
        }
        repaired && !was_reduced
    }

    /// Begins fast recovery if something is lost and nothing of the kind goes on. `flight` is
    /// what was outstanding.
    pub(super) fn recover_if_lost(&mut self, records: &Records, flight: u32, nxt: SeqNum) -> bool {
        match self.rest.phase {
            _ if self.stress.lost == 0 => false,
            Phase::Open | Phase::ProbeDue | Phase::Probing if !self.is_reduced() => {
                self.enter(records, Phase::Recovery, flight, nxt);
                true
            }
            Phase::Reduced | Phase::ProbeDue | Phase::Probing => {
                // The same window of data: no second reduction, and no way back.
                self.stress.probe_of_reduced = false;
                self.rest.phase = Phase::Recovery;
                self.rest.mark = nxt;
                self.stress.prior.cwnd = 0;
                self.stress.prr_delivered = 0;
                self.stress.prr_out = 0;
                self.stress.prr_flight = flight.max(self.rest.mss());
                true
            }
            _ => false,
        }
    }

    /// Reduces the window, unless it was for this window of data; to be paced until `nxt` is
    /// acknowledged. `flight` is what was outstanding.
    pub(super) fn enter(&mut self, records: &Records, phase: Phase, flight: u32, nxt: SeqNum) {
        // A probe that was sent again is one more of which a D-SACK may tell.
        let probed = self.rest.phase == Phase::Probing && self.rest.has(flag::PROBE_RESENT);
        self.stress.resent = u16::from(probed);
        self.stress.resent_at_us = self.rest.rack_sent_us;
        self.stress.prior = self.rest.window;
        let kind = records.policy.congestion;
        let mss = self.rest.mss();
        if !self.is_reduced() {
            self.rest.window.ssthresh =
                self.stress.algorithm.reduce(kind, &self.rest.window, flight, mss);
        }
        self.stress.probe_of_reduced = false;
        self.stress.prr_delivered = 0;
        self.stress.prr_out = 0;
        self.stress.prr_flight = flight.max(mss);
        self.rest.mark = nxt;
        self.rest.phase = phase;
    }

    /// What was going on is over.
    fn leave(&mut self, ack: &Ack<'_>) {
        if !self.is_reduced() {
            self.settle_reordering();
        }
        self.rest.phase = Phase::Open;
        self.stress.probe_of_reduced = false;
        self.stress.dupacks = 0;
        // For one more round D-SACKs may tell that it was needless.
        self.rest.round_end = ack.nxt;
        if !self.rest.has(flag::SACK) {
            self.stress.sacked = 0;
        }
    }

    /// F-RTO, step 2 (RFC 5682 §2.1): is there new data to ask with?
    fn on_first_ack(&mut self, records: &Records, ack: &Ack<'_>, progress: &Progress) {
        if progress.acked > 0 && ack.unsent {
            self.rest.phase = Phase::NewData;
            self.rest.window.cwnd = self.in_flight(records) + 2 * self.rest.mss();
        } else if progress.acked > 0 || progress.sacked > 0 || progress.duplicate {
            self.rest.phase = Phase::Loss;
        }
    }

    /// F-RTO, step 3 (RFC 5682 §2.1 and §3.1): did something arrive that was not resent?
    fn on_second_ack(&mut self, records: &mut Records, progress: &Progress) -> bool {
        if progress.original() {
            self.undo(records);
            return true;
        }
        if progress.acked > 0 || progress.sacked > 0 || progress.duplicate {
            self.rest.phase = Phase::Loss;
            self.rest.window.cwnd = 3 * self.rest.mss();
        }
        false
    }

    /// Takes the last reduction back if all that it resent had arrived already.
    fn undo_if_needless(&mut self, records: &mut Records, progress: &Progress) -> bool {
        if self.stress.prior.cwnd == 0 || self.stress.resent == 0 {
            return false;
        }
        if let Some(bytes) = progress.dsack_bytes {
            // RFC 3708 §3: every retransmission was reported as a duplicate.
            let segments = bytes.div_ceil(self.rest.mss()).min(u32::from(u16::MAX)) as u16;
            self.stress.resent = self.stress.resent.saturating_sub(segments);
            if self.stress.resent == 0 {
                self.undo(records);
                return true;
            }
        }
        // RFC 3522 §3.2: the ACK is for what left before the first retransmission.
        let recovering = matches!(
            self.rest.phase,
            Phase::Recovery | Phase::FirstAck | Phase::NewData | Phase::Loss
        );
        if recovering && progress.acked > 0 && progress.is_older_than(self.stress.resent_at_us) {
            self.undo(records);
            return true;
        }
        false
    }

    /// The window of before is back (RFC 4015 §3.2), and what was called lost is late.
    fn undo(&mut self, records: &mut Records) {
        self.rest.window.cwnd = self.rest.window.cwnd.max(self.stress.prior.cwnd);
        self.rest.window.ssthresh = self.rest.window.ssthresh.max(self.stress.prior.ssthresh);
        self.stress.algorithm.undo(records.policy.congestion, self.rest.window.cwnd);
        self.stress.prior.cwnd = 0;
        self.stress.resent = 0;
        self.rest.backoff = 0;
        if matches!(
            self.rest.phase,
            Phase::Recovery | Phase::FirstAck | Phase::NewData | Phase::Loss
        ) {
            if self.stress.lost_head != NIL {
                self.recall_lost(records);
            }
            if !self.rest.has(flag::SACK) {
                self.stress.sacked = 0;
            }
            self.stress.dupacks = 0;
            self.rest.phase = Phase::Open;
        }
    }
}
