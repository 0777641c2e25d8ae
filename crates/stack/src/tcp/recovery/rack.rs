//! RACK: what left before something that arrived, and long enough before, is lost. And the tail
//! loss probe's verdict.
//!
//! Read first: RFC 8985 §3 (why), §6.2 (RACK's steps), §7.4 (what a probe's ACK says).

use super::acknowledge::Progress;
use super::records::{NIL, Records};
use super::rtt::is_later;
use super::{Ack, DUP_THRESH, Phase, Recovery, Whole, flag};

/// Recoveries after which a widened reordering window is narrow again (RFC 8985 §6.2, step 4).
const PERSIST: u8 = 16;

impl Recovery {
    /// A tail loss probe is out.
    #[inline(always)]
    pub(crate) const fn is_probing(&self) -> bool {
        matches!(self.phase, Phase::Probing)
    }
}

impl Whole<'_> {
    /// How much later than its successors a segment may arrive, in microseconds (RFC 8985 §6.2,
    /// step 4).
    fn reordering_window_us(&self) -> u32 {
        if !self.rest.has(flag::REORDERS) {
            let recovering = matches!(
                self.rest.phase,
                Phase::Recovery | Phase::FirstAck | Phase::NewData | Phase::Loss
            );
            let enough = self.stress.dupacks >= DUP_THRESH
                || self.stress.sacked >= u32::from(DUP_THRESH) * self.rest.mss();
            if recovering || enough {
                return 0;
            }
        }
        let quarter = u64::from(self.rest.rtt.min_us()) * u64::from(self.stress.reo_mult) / 4;
        quarter.min(u64::from(self.rest.rtt.srtt_us())) as u32
    }

    /// A duplicate arrived: give reordering more time, once a round (RFC 8985 §6.2, step 4).
    pub(super) fn widen(&mut self) {
        if !self.rest.has(flag::WIDENED) {
            self.rest.flags |= flag::WIDENED;
            self.stress.reo_mult = self.stress.reo_mult.saturating_add(1);
            self.stress.reo_persist = PERSIST;
        }
    }

    /// A recovery is over.
    pub(super) fn settle_reordering(&mut self) {
        self.stress.reo_persist = self.stress.reo_persist.saturating_sub(1);
        if self.stress.reo_persist == 0 {
            self.stress.reo_mult = 1;
        }
    }

    /// RFC 8985 §6.2, step 5: marks what is lost. Returns how long until the next that is sent
    /// before RACK.segment will be, in microseconds.
    pub(super) fn detect(&mut self, records: &mut Records, now_us: u32) -> Option<u32> {
        if self.rest.oldest == NIL {
            return None;
        }
        let patience = self.rest.rack_rtt_us.saturating_add(self.reordering_window_us());
        let mut wait = None;
        while self.rest.oldest != NIL {
            let record = records.get(self.rest.oldest);
            let later = is_later(self.rest.rack_sent_us, record.sent_us)
                || (self.rest.rack_sent_us == record.sent_us
                    && self.stress.rack_end.after(record.range.end));
            if !later {
                break;
            }
            let waited = now_us.wrapping_sub(record.sent_us);
            if waited < patience {
                // The ring is in sent order: all others have waited less.
                wait = Some(patience - waited);
                break;
            }
            let index = self.rest.oldest;
            self.mark_lost(records, index);
        }
        wait
    }

    /// RFC 8985 §6.3: at a timeout the first segment is lost, and of the others what RACK would
    /// call lost if something sent now had arrived.
    pub(super) fn mark_on_timeout(&mut self, records: &mut Records, now_us: u32) {
        let patience = self.rest.rack_rtt_us.saturating_add(self.reordering_window_us());
        let all = !self.rest.has(flag::RACK) || self.rest.rtt.srtt_us() == 0;
        while self.rest.oldest != NIL {
            let index = self.rest.oldest;
            if !all && now_us.wrapping_sub(records.get(index).sent_us) < patience {
                break;
            }
            self.mark_lost(records, index);
        }
        if self.stress.lost_head != self.rest.head || self.rest.head == NIL {
            self.mark_first_lost(records);
        }
    }

    /// What an ACK says about the probe that is out (RFC 8985 §7.4.2). True: the probe repaired a
    /// loss that nothing else showed.
    pub(super) fn judge_probe(&mut self, ack: &Ack<'_>, progress: &Progress) -> bool {
        if ack.ack.before(self.rest.mark) {
            return false;
        }
        if !self.rest.has(flag::PROBE_RESENT) || progress.dsack_of_probe {
            // New data, or both arrived.
            self.rest.phase = Phase::Open;
            return false;
        }
        if ack.ack.after(self.rest.mark) {
            self.rest.phase = Phase::Open;
            return true;
        }
        let duplicate = ack.ack == ack.una && !ack.has_payload && !ack.window_changed;
        if progress.acked == 0 && duplicate && ack.sack.is_empty() {
            self.rest.phase = Phase::Open;
        }
        false
    }
}
