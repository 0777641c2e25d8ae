//! SACK scoreboard: data above SND.UNA that the peer has, and loss detection without RACK.
//!
//! Read first: RFC 2018 §4–§5 and §8, RFC 2883 §4 (D-SACK), RFC 6675 §4 (`IsLost`).
//!
//! A peer can send any block it likes. Blocks only ever mark records that exist, whole segments
//! at a time, so there are never more records than segments were sent; neighbours that are both
//! marked become one record, so marking frees records in the end.

use super::acknowledge::Progress;
use super::records::{NIL, Records, Ring, State};
use super::{Ack, DUP_THRESH, Whole};
use crate::seq::SeqRange;

/// Most blocks that fit into a segment's options.
const BLOCKS_MAX: usize = 4;

impl Whole<'_> {
    /// Takes in the SACK blocks of a segment.
    pub(super) fn read_sack(
        &mut self,
        records: &mut Records,
        ack: &Ack<'_>,
        progress: &mut Progress,
    ) {
        let floor = ack.ack.later(ack.una);
        for (place, block) in ack.sack.iter().take(BLOCKS_MAX).enumerate() {
            if block.is_empty() || block.end.after(ack.nxt) {
                continue;
            }
            if place == 0 && is_dsack(ack, *block) {
                progress.dsack_bytes = Some(block.len());
                progress.dsack_of_probe = block.end == self.rest.mark;
                self.widen();
            } else if block.start.at_or_after(floor) {
                self.mark_block(records, *block, progress);
            }
        }
    }

    fn mark_block(&mut self, records: &mut Records, block: SeqRange, progress: &mut Progress) {
        if self.rest.head == NIL {
            return;
        }
        let mut index = self.rest.head;
        while records.get(index).range.end.at_or_before(block.start) {
            index = records.next(Ring::Sequence, index);
            if index == self.rest.head {
                return;
            }
        }
        loop {
            if !records.get(index).range.start.before(block.end) {
                return;
            }
            if records.get(index).state != State::Sacked
                && let Some(inside) = self.cut_free(records, index, block)
            {
                index = self.mark_sacked(records, inside, progress);
            }
            index = records.next(Ring::Sequence, index);
            if index == self.rest.head {
                return;
            }
        }
    }

    /// Cuts the whole segments inside `block` out of a record. `None`: there are none, or records
    /// are too few to note it; a later block, or the acknowledgment, will say it again.
    fn cut_free(&self, records: &mut Records, index: u32, block: SeqRange) -> Option<u32> {
        let range = records.get(index).range;
        let mss = self.rest.mss();
        let mut from = range.start;
        if block.start.after(from) {
            from += block.start.since(from).div_ceil(mss) * mss;
        }
        let mut to = range.end;
        if block.end.before(to) {
            let bytes = block.end.since(range.start);
            to = range.start + (bytes - bytes % mss);
        }
        if !from.before(to) {
            return None;
        }
        let cuts = from != range.start || to != range.end;
        if cuts && !records.may_split() {
            return None;
        }
        if to.before(range.end) {
            records.split(index, to)?;
        }
        if from.after(range.start) { records.split(index, from) } else { Some(index) }
    }

    /// Marks a record, and makes it one with its neighbours. Returns where it went.
    fn mark_sacked(&mut self, records: &mut Records, index: u32, progress: &mut Progress) -> u32 {
        let record = *records.get(index);
        let bytes = record.len();
        if record.state == State::Lost {
            self.stress.lost -= bytes;
        }
        self.unlink_from_state_ring(records, index);
        records.get_mut(index).state = State::Sacked;
        self.stress.sacked += bytes;
        progress.sacked += bytes;
        self.deliver(&record, record.range.end, bytes, progress);

        let mut kept = index;
        let prev = records.prev(Ring::Sequence, index);
        if index != self.rest.head && records.get(prev).state == State::Sacked {
            self.swallow(records, prev, index);
            kept = prev;
        }
        let next = records.next(Ring::Sequence, kept);
        if next != self.rest.head && records.get(next).state == State::Sacked {
            self.swallow(records, kept, next);
        }
        kept
    }

    /// Lets `index` cover `next`, which lies behind it, too.
    fn swallow(&mut self, records: &mut Records, index: u32, next: u32) {
        records.get_mut(index).range.end = records.get(next).range.end;
        records.unlink(Ring::Sequence, &mut self.rest.head, next);
        records.give(next);
    }

    /// Takes a record out of the ring of its state.
    pub(super) fn unlink_from_state_ring(&mut self, records: &mut Records, index: u32) {
        match records.get(index).state {
            State::InFlight => records.unlink(Ring::State, &mut self.rest.oldest, index),
            State::Lost => records.unlink(Ring::State, &mut self.stress.lost_head, index),
            State::Sacked => {}
        }
    }

    /// Marks a record in flight lost.
    pub(super) fn mark_lost(&mut self, records: &mut Records, index: u32) {
        records.unlink(Ring::State, &mut self.rest.oldest, index);
        let record = records.get_mut(index);
        record.state = State::Lost;
        record.partial = false;
        self.stress.lost += record.len();
        let start = record.range.start;
        records.insert_sorted(Ring::State, &mut self.stress.lost_head, index, |other| {
            other.range.start.before(start)
        });
    }

    /// Marks the first segment outstanding lost.
    pub(super) fn mark_first_lost(&mut self, records: &mut Records) {
        let index = self.rest.head;
        let record = *records.get(index);
        if record.state != State::InFlight {
            return;
        }
        if record.len() > self.rest.mss() {
            // Without a record to cut it free all of it goes again: needless, not wrong.
            let _ = records.split(index, record.range.start + self.rest.mss());
        }
        self.mark_lost(records, index);
        self.limit_counted(records);
    }

    /// Bytes that were only counted as arrived (without SACK) cannot be among the lost.
    pub(super) fn limit_counted(&mut self, records: &Records) {
        self.stress.sacked =
            self.stress.sacked.min(self.rest.outstanding(records) - self.stress.lost);
    }

    /// All that is marked lost is in flight again, as it was: it is late, not lost.
    pub(super) fn recall_lost(&mut self, records: &mut Records) {
        while self.stress.lost_head != NIL {
            let index = self.stress.lost_head;
            records.unlink(Ring::State, &mut self.stress.lost_head, index);
            let record = records.get_mut(index);
            record.state = State::InFlight;
            self.stress.lost -= record.len();
            let sent_us = record.sent_us;
            records.insert_sorted(Ring::State, &mut self.rest.oldest, index, |other| {
                !super::rtt::is_later(other.sent_us, sent_us)
            });
        }
    }

    /// The peer has dropped what it had SACKed (RFC 2018 §8): that is lost like the rest.
    pub(super) fn forget_sacks(&mut self, records: &mut Records) {
        let mut index = self.rest.head;
        loop {
            let record = records.get_mut(index);
            if record.state == State::Sacked {
                record.state = State::InFlight;
                // It covers what was sent at several times, perhaps more than once.
                record.resent = true;
                let sent_us = record.sent_us;
                records.insert_sorted(Ring::State, &mut self.rest.oldest, index, |other| {
                    !super::rtt::is_later(other.sent_us, sent_us)
                });
            }
            index = records.next(Ring::Sequence, index);
            if index == self.rest.head {
                break;
            }
        }
        self.stress.sacked = 0;
    }

    /// `IsLost` of RFC 6675 §4 for everything at once: three separate blocks above, or more than
    /// two segments' worth of bytes.
    pub(super) fn mark_by_count(&mut self, records: &mut Records) {
        let (mut blocks, mut bytes) = (0, 0);
        let mut index = records.last(Ring::Sequence, self.rest.head);
        loop {
            let record = records.get(index);
            let prev = records.prev(Ring::Sequence, index);
            if record.state == State::Sacked {
                blocks += 1;
                bytes += record.len();
            } else if record.state == State::InFlight
                && !record.resent
                && (blocks >= DUP_THRESH || bytes > u32::from(DUP_THRESH - 1) * self.rest.mss())
            {
                self.mark_lost(records, index);
            }
            if index == self.rest.head {
                break;
            }
            index = prev;
        }
        // RFC 6675 §5, step 1: so many ACKs with news mean the first is lost, small as they are.
        if self.stress.dupacks == DUP_THRESH && !records.get(self.rest.head).resent {
            self.mark_first_lost(records);
        }
    }
}

/// The first block tells of a duplicate (RFC 2883 §4): it is acknowledged already, or inside the
/// second block.
fn is_dsack(ack: &Ack<'_>, block: SeqRange) -> bool {
    block.end.at_or_before(ack.ack) || ack.sack.get(1).is_some_and(|second| second.covers(block))
}
