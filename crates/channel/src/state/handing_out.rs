//! Handing out completions: the next one for the program, and what a batch of them may hold.
//!
//! Invariants
//! - A completion of a handle that left is never handed out.
//! - `begun_in_batch` is empty between batches.

use super::State;
use crate::buffer::ReadBuf;
use crate::completion::{Accepted, Completion, Connection, Event};
use crate::completion_queue::{Common, Whose};
use crate::handle::Handle;
#[cfg(feature = "local")]
use crate::kernel::pool::HeldBuffer;

/// A set of slots, which costs what is in it to clear.
#[derive(Default)]
pub(super) struct SlotSet {
    slots: Vec<u32>,
    /// By slot.
    has: Vec<bool>,
}

impl SlotSet {
    fn insert(&mut self, slot: u32) {
        if self.has.len() <= slot as usize {
            self.has.resize(slot as usize + 1, false);
        }
        self.has[slot as usize] = true;
        self.slots.push(slot);
    }

    fn contains(&self, slot: u32) -> bool {
        self.has.get(slot as usize).is_some_and(|has| *has)
    }

    const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn clear(&mut self) {
        for slot in self.slots.drain(..) {
            self.has[slot as usize] = false;
        }
    }
}

impl State {
    /// The next completion, if it is of a common kind and its handle is still there: in parts, and
    /// with the handle's cookie. The caller puts them together where they are wanted, because
    /// moving a whole completion costs more than making it.
    #[inline(always)]
    pub(crate) fn take_common(&mut self) -> Option<(Common, u64)> {
        let common = self.ready.common()?;
        let slot = self.slots.get(common.slot as usize)?;
        if slot.handle != common.handle || !slot.is_live() {
            return None;
        }
        self.ready.advance();
        self.counters.completions += 1;
        Some((common, slot.cookie))
    }

    /// The bytes of a common completion that is a read, once.
    #[inline(always)]
    pub(crate) fn take_read(&mut self, number: u16, len: u32) -> Option<ReadBuf> {
        let held = self.ready.take_held(number)?;
        Some(ReadBuf::new(self.receive_pool.adopt(held, len)?))
    }

    /// The first bytes of a held buffer.
    #[cfg(feature = "local")]
    #[inline(always)]
    pub(crate) fn adopt(&self, buffer: HeldBuffer, len: u32) -> Option<ReadBuf> {
        Some(ReadBuf::new(self.receive_pool.adopt(buffer, len)?))
    }

    /// The next completion for the program. Those of handles that left are skipped; what they
    /// carry and must not simply vanish goes to `orphans`.
    pub(crate) fn pop_ready(&mut self, orphans: &mut Vec<Handle>) -> Option<Completion> {
        while let Some(Whose { handle, slot: index }) = self.next_live(orphans) {
            // A wake-up is no handle's.
            let cookie = self.slots.get(index as usize).map_or(0, |slot| slot.cookie);
            let Some(event) = self.ready.pop(&self.receive_pool) else { continue };
            if matches!(event, Event::Drained) && !self.confirm_drained(index) {
                continue;
            }
            if matches!(event, Event::ToFd(Ok(_))) {
                self.release(index);
            }
            self.counters.completions += 1;
            return Some(Completion { handle, cookie, event });
        }
        None
    }

    /// Whose the next completion for the program is. Those of handles that left are dropped.
    fn next_live(&mut self, orphans: &mut Vec<Handle>) -> Option<Whose> {
        while let Some(Whose { handle, slot: index }) = self.ready.next() {
            match self.slots.get(index as usize) {
                Some(slot) if slot.handle == handle && slot.is_live() => {}
                None if handle == Handle::NONE => {}
                _ => {
                    let event = self.ready.pop(&self.receive_pool);
                    Self::abandon(event, orphans);
                    continue;
                }
            }
            return Some(Whose { handle, slot: index });
        }
        None
    }

    /// A completion enters a batch of `dispatch_many`: notes the connection that begins with it.
    #[inline]
    pub(crate) fn enter_batch(&mut self, done: &Completion) {
        let handle = match &done.event {
            Event::Accept(Ok(Accepted { connection: Connection::Lwsocket(handle), .. })) => *handle,
            Event::Connect(Ok(())) => done.handle,
            _ => return,
        };
        if let Ok(index) = self.find(handle) {
            self.begun_in_batch.insert(index);
        }
    }

    /// A connection began in the batch.
    #[inline]
    pub(crate) const fn has_begun_in_batch(&self) -> bool {
        !self.begun_in_batch.is_empty()
    }

    /// The next completion is of a connection that began in the batch.
    pub(crate) fn is_next_of_batch(&mut self, orphans: &mut Vec<Handle>) -> bool {
        let next = self.next_live(orphans);
        next.is_some_and(|next| self.begun_in_batch.contains(next.slot))
    }

    /// The batch goes to the program.
    #[inline]
    pub(crate) fn end_batch(&mut self) {
        self.begun_in_batch.clear();
    }

    #[cold]
    fn abandon(event: Option<Event>, orphans: &mut Vec<Handle>) {
        if let Some(Event::Accept(Ok(Accepted {
            connection: Connection::Lwsocket(handle), ..
        }))) = event
        {
            orphans.push(handle);
        }
    }
}
