//! Limit of the bytes that a handle has unsent: writes that are refused, and `Event::Drained`.
//!
//! Invariants
//! - A write is refused only where something is unsent, so something comes that lessens it.
//! - `Drained` is handed out once for the refusals before it, and never once the sending direction
//!   is over: at that moment it is looked at again.

use super::State;
use crate::completion::Event;
use crate::error::Limit;
use crate::slot::{Awaited, Slot};

impl State {
    /// Bytes of the queued writes that are not known to have gone out.
    #[inline]
    pub(crate) fn unsent_bytes(&self, index: u32) -> usize {
        let slot = self.peek(index);
        let silent = slot.silent_bytes as usize;
        if slot.writes.is_empty() { silent } else { silent + self.queued_bytes(slot) }
    }

    #[inline(never)]
    fn queued_bytes(&self, slot: &Slot) -> usize {
        let ends = (self.writes.front(slot.writes), self.writes.back(slot.writes));
        let (Some(first), Some(last)) = ends else { return 0 };
        last.end().wrapping_sub(first.start).wrapping_sub(first.done)
    }

    /// Checks that a handle may have `len` more unsent bytes. If not, a write is refused, and
    /// `Event::Drained` follows.
    #[inline]
    pub(crate) fn check_unsent(&mut self, index: u32, len: usize) -> Result<(), Limit> {
        let unsent = self.unsent_bytes(index);
        if unsent == 0 || unsent.saturating_add(len) <= self.config.unsent_bytes_max {
            return Ok(());
        }
        Err(self.refuse_write(index))
    }

    #[cold]
    fn refuse_write(&mut self, index: u32) -> Limit {
        let slot = &mut self.slots[index as usize];
        slot.flags.awaited.add(Awaited::DRAINED);
        self.silence_awaited |= slot.silent_bytes > 0;
        self.counters.writes_refused += 1;
        Limit::UnsentBytes { max: self.config.unsent_bytes_max }
    }

    /// As `on_sent`, for a driver whose sends end in the middle of a write only when the connection
    /// does: then `Event::Drained` waits for what the next send brings.
    #[inline(always)]
    pub(crate) fn on_sent_waiting(&mut self, index: u32, sent: usize) {
        self.take_sent(index, sent);
        let first = self.writes.front(self.peek(index).writes);
        if first.is_none_or(|write| write.done == 0) {
            self.tell_drained(index);
        }
    }

    /// Bytes of a handle may have gone out. If a write was refused, and enough have, the program is
    /// told.
    #[inline(always)]
    pub(crate) fn tell_drained(&mut self, index: u32) {
        if self.peek(index).flags.awaited.has(Awaited::DRAINED) {
            self.tell_if_drained(index);
        }
    }

    #[cold]
    fn tell_if_drained(&mut self, index: u32) {
        let awaited = self.peek(index).flags.awaited;
        if awaited.has(Awaited::DRAINED_IS_READY) || !self.is_drained(index) {
            return;
        }
        let awaited = &mut self.slot(index).flags.awaited;
        awaited.take(Awaited::DRAINED);
        awaited.add(Awaited::DRAINED_IS_READY);
        self.complete(index, Event::Drained);
    }

    fn is_drained(&self, index: u32) -> bool {
        let half = self.config.unsent_bytes_max / 2;
        self.peek(index).is_live() && self.unsent_bytes(index) <= half
    }

    /// `Event::Drained` is about to be handed out. Returns whether it still holds: not if the
    /// sending direction has ended since, nor if writes were refused since and it fills up again.
    pub(super) fn confirm_drained(&mut self, index: u32) -> bool {
        let awaited = &mut self.slot(index).flags.awaited;
        if !awaited.take(Awaited::DRAINED_IS_READY) {
            return false;
        }
        if !awaited.has(Awaited::DRAINED) {
            return true;
        }
        let is_drained = self.is_drained(index);
        if is_drained {
            self.slot(index).flags.awaited.take(Awaited::DRAINED);
        }
        is_drained
    }
}
