//! Handles of a channel: allocation, lookup and the generation of each number.
//!
//! A number names one thing at a time: an lwsocket's number its slot, a descriptor's number the
//! slot that [`Descriptors`] has for it. Each number counts its own uses, and the count is the
//! generation of its handles.
//!
//! Invariants
//! - The generation of a number is incremented once for each handle that had the number, when that
//!   handle ends. A handle is therefore repeated after 2^21 uses of its number and not earlier.
//! - While a slot has a registered descriptor, the generation of its lwsocket number is kept in
//!   [`Descriptor::displaced`] and is not incremented.
//! - A slot whose handle has ended holds [`Handle::free`] with the generation of its lwsocket
//!   number.

use std::os::fd::RawFd;

use super::{NO_SLOT, State};
use crate::error::{Limit, Misuse};
use crate::handle::{FIRST_LWSOCKET, Handle};
use crate::limits;
use crate::slot::{Kind, Slot, SlotPhase};

#[cfg(test)]
mod tests;

/// What is known of one descriptor's number.
#[derive(Clone, Copy)]
struct Descriptor {
    /// Slot of the descriptor that is registered under this number, or [`NO_SLOT`].
    slot: u32,
    /// Generation of the handle that has the number, or of the next one.
    generation: u32,
    /// Generation of the slot's lwsocket number, which is unused meanwhile.
    displaced: u32,
}

/// Registered descriptors by their numbers. An entry is never removed: it holds the generation.
#[derive(Default)]
pub(super) struct Descriptors(Vec<Descriptor>);

impl Descriptors {
    #[inline]
    fn slot(&self, number: u32) -> u32 {
        self.0.get(number as usize).map_or(NO_SLOT, |entry| entry.slot)
    }

    /// Makes room for the entry of a number; `false` if there is no memory.
    fn reserve(&mut self, number: u32) -> bool {
        let missing = (number as usize + 1).saturating_sub(self.0.len());
        self.0.try_reserve(missing).is_ok()
    }

    fn entry(&mut self, number: u32) -> &mut Descriptor {
        const UNUSED: Descriptor = Descriptor { slot: NO_SLOT, generation: 0, displaced: 0 };
        let index = number as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, UNUSED);
        }
        &mut self.0[index]
    }

    /// Ends the handle of a descriptor. Returns the generation of its slot's lwsocket number.
    fn remove(&mut self, handle: Handle) -> u32 {
        let entry = self.entry(handle.number());
        entry.slot = NO_SLOT;
        entry.generation = handle.next_generation().generation();
        entry.displaced
    }
}

impl State {
    /// The slot that a caller's handle names.
    #[inline(always)]
    pub(crate) fn find(&self, handle: Handle) -> Result<u32, Misuse> {
        let number = handle.number();
        let index = if handle.is_lwsocket() {
            number - FIRST_LWSOCKET
        } else {
            self.descriptors.slot(number)
        };
        match self.slots.get(index as usize) {
            Some(slot) if slot.handle == handle && slot.is_live() => Ok(index),
            _ => Err(self.why_unknown(handle)),
        }
    }

    #[cold]
    fn why_unknown(&self, handle: Handle) -> Misuse {
        match handle {
            Handle::NONE => Misuse::StaleHandle,
            _ if handle.channel_tag() != self.tag.value() => Misuse::ForeignHandle,
            _ => Misuse::StaleHandle,
        }
    }

    /// The live lwsocket with a number, whatever its generation.
    pub(crate) fn lwsocket(&self, number: u32) -> Option<Handle> {
        let index = number.checked_sub(FIRST_LWSOCKET)?;
        let slot = self.slots.get(index as usize)?;
        (slot.is_live() && slot.flags.lwsocket).then(|| self.handle(index))
    }

    #[inline]
    pub(crate) fn handle(&self, index: u32) -> Handle {
        self.slots[index as usize].handle
    }

    /// Memory for the number of a descriptor, so that [`State::number_by_fd`] cannot fail.
    pub(crate) fn reserve_number(&mut self, fd: RawFd) -> Result<(), Limit> {
        if self.descriptors.reserve(fd as u32) { Ok(()) } else { Err(Limit::Memory) }
    }

    /// Gives the table of slots its room at once, for so many connections and what there is beside
    /// them. Without memory for that it grows by and by.
    #[cfg(feature = "local")]
    pub(crate) fn reserve_slots(&mut self, connections: usize) {
        let count = (connections + limits::FIRST_SLOTS).min(limits::HANDLES_MAX as usize);
        let _ = self.slots.try_reserve_exact(count);
    }

    /// A slot for something new, open and without a descriptor.
    pub(crate) fn allocate(&mut self, kind: Kind, cookie: u64) -> Result<u32, Limit> {
        let index = match self.first_free {
            NO_SLOT if self.slots.len() >= limits::HANDLES_MAX as usize => {
                return Err(Limit::Handles);
            }
            NO_SLOT => {
                let is_first = self.slots.capacity() == 0;
                let more = if is_first { limits::FIRST_SLOTS } else { 1 };
                self.slots.try_reserve(more).map_err(|_| Limit::Memory)?;
                self.slots.push(Slot::free(0, NO_SLOT));
                (self.slots.len() - 1) as u32
            }
            index => {
                self.first_free = self.slots[index as usize].next_free();
                index
            }
        };
        let tag = self.tag;
        let slot = self.slot(index);
        slot.kind = kind;
        slot.cookie = cookie;
        slot.phase = SlotPhase::Open;
        slot.flags.lwsocket = true;
        slot.handle = Handle::new(FIRST_LWSOCKET + index, slot.handle.generation(), tag);
        Ok(index)
    }

    /// Gives a slot that was just allocated the number of its descriptor.
    pub(crate) fn number_by_fd(&mut self, index: u32, fd: RawFd) {
        let Self { slots, descriptors, tag, .. } = self;
        let slot = &mut slots[index as usize];
        let entry = descriptors.entry(fd as u32);
        debug_assert_eq!(entry.slot, NO_SLOT, "the caller asked `is_fd_registered`");
        entry.slot = index;
        entry.displaced = slot.handle.generation();
        slot.handle = Handle::new(fd as u32, entry.generation, *tag);
        slot.flags.lwsocket = false;
    }

    pub(crate) fn is_fd_registered(&self, fd: RawFd) -> bool {
        self.descriptors.slot(fd as u32) != NO_SLOT
    }

    /// Makes the slot's handle stale, and its number free for another handle.
    #[inline(always)]
    fn end_handle(&mut self, index: u32) {
        let Self { slots, descriptors, .. } = self;
        let slot = &mut slots[index as usize];
        let generation = match slot.flags.lwsocket {
            true => slot.handle.next_generation().generation(),
            false => descriptors.remove(slot.handle),
        };
        slot.handle = Handle::free(generation);
    }

    /// Takes the handle away from the program: operations vanish, the handle ends.
    /// The slot itself is freed by `release` when the kernel has let go of it.
    pub(crate) fn retire(&mut self, index: u32) {
        self.cancel_deadline(index);
        self.end_handle(index);
        let Self { slots, reads, first_reads, .. } = self;
        let slot = &mut slots[index as usize];
        slot.phase = SlotPhase::Closing;
        self.silence_awaited |= slot.silent_bytes > 0;
        *first_reads -= usize::from(slot.first_read.take().is_some());
        reads.drain(&mut slot.more_reads, drop);
    }

    /// Frees a slot. The kernel must have no request left that names it.
    pub(crate) fn release(&mut self, index: u32) {
        self.cancel_deadline(index);
        if self.peek(index).is_live() {
            // `retire` was not called: a connection that moved to a descriptor, a failed start.
            self.end_handle(index);
        }
        let Self { slots, reads, first_reads, unread, writes, .. } = self;
        let slot = &mut slots[index as usize];
        debug_assert_eq!(slot.kernel_requests, 0);
        debug_assert_ne!(slot.phase, SlotPhase::Free);
        *first_reads -= usize::from(slot.first_read.take().is_some());
        reads.drain(&mut slot.more_reads, drop);
        unread.drain(&mut slot.unread, drop);
        writes.drain(&mut slot.writes, drop);
        let in_unread_list = slot.flags.in_unread_list;
        *slot = Slot::free(slot.handle.generation(), self.first_free);
        slot.flags.in_unread_list = in_unread_list;
        self.first_free = index;
    }
}
