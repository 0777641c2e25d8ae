//! The four rings of an AF_XDP socket, each with one producer and one consumer: the kernel at one
//! end, we at the other.
//!
//! | ring | entries | producer | consumer |
//! |---|---|---|---|
//! | fill | addresses of empty frames | we | kernel |
//! | receive | descriptors of filled frames | kernel | we |
//! | transmit | descriptors of filled frames | we | kernel |
//! | completion | addresses of sent frames | kernel | we |
//!
//! Read first: the kernel's `Documentation/networking/af_xdp.rst`, `net/xdp/xsk_queue.h`.
//!
//! Invariants
//! - Indices run freely through 32 bits; the entry is their remainder by the size, a power of two,
//!   so no index leads outside.
//! - An entry is ours between the acquire load that saw it and the release store that gives it on.
//! - The kernel writes only its own index and, where it produces, entries that are not ours.

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::RingMapping;

/// What the kernel says about a ring's layout (`struct xdp_ring_offset`).
pub(super) type Layout = libc::xdp_ring_offset;

/// A ring of `T`.
#[derive(Debug)]
struct XdpRing<T> {
    _mapping: RingMapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    _entries: PhantomData<T>,
}

// SAFETY: the pointers lead into the mapping that the ring holds; indices are atomics, and entries
// are touched only by the end that owns them, which is one thread at a time (`&mut`).
unsafe impl<T: Send> Send for XdpRing<T> {}

impl<T: Copy> XdpRing<T> {
    /// The ring of `size` entries in a mapping that the kernel laid out.
    fn new(mapping: RingMapping, layout: &Layout, size: u32) -> io::Result<Self> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let index = |offset: u64| -> io::Result<NonNull<AtomicU32>> {
            let offset = usize::try_from(offset).map_err(|_| bad())?;
            let at: NonNull<AtomicU32> = mapping.locate(offset, 4).ok_or_else(bad)?.cast();
            if at.is_aligned() { Ok(at) } else { Err(bad()) }
        };
        let (producer, consumer) = (index(layout.producer)?, index(layout.consumer)?);
        let flags = index(layout.flags)?;
        let first = usize::try_from(layout.desc).map_err(|_| bad())?;
        let entries: NonNull<T> =
            mapping.locate(first, size as usize * size_of::<T>()).ok_or_else(bad)?.cast();
        if !size.is_power_of_two() || !entries.is_aligned() {
            return Err(bad());
        }
        let mask = size - 1;
        let _entries = PhantomData;
        Ok(Self { _mapping: mapping, producer, consumer, flags, entries, mask, _entries })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `new` found the word inside the mapping, which `self` holds, and aligned; both
        // sides touch it by atomics only.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for the producer.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as for the producer.
        unsafe { self.flags.as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the size, and `new` found that many entries inside the
        // mapping.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }
}

/// Our end of a ring that the kernel fills.
#[derive(Debug)]
pub(super) struct XdpConsumer<T> {
    ring: XdpRing<T>,
    /// The oldest entry not yet taken.
    next: u32,
    /// One past the newest entry that was seen.
    seen: u32,
}

impl<T: Copy> XdpConsumer<T> {
    /// A ring that nothing went through yet.
    pub(super) fn new(mapping: RingMapping, layout: &Layout, size: u32) -> io::Result<Self> {
        Ok(Self { ring: XdpRing::new(mapping, layout, size)?, next: 0, seen: 0 })
    }

    /// How many entries wait.
    pub(super) fn waiting(&mut self) -> u32 {
        if self.seen == self.next {
            // Acquire: pairs with the kernel's release of its producer index, so that the entries
            // and what they point at are seen.
            self.seen = self.ring.producer().load(Ordering::Acquire);
        }
        // The kernel never runs past the size; should it, entries are read twice and not outside.
        self.seen.wrapping_sub(self.next).min(self.ring.mask + 1)
    }

    /// Takes the oldest entry, if one waits.
    pub(super) fn take(&mut self) -> Option<T> {
        if self.waiting() == 0 {
            return None;
        }
        // SAFETY: the entry was produced before the index that was acquired, and the kernel does
        // not touch it again before `give_back`; `entry` is inside the mapping and aligned.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the entries taken back to the kernel.
    pub(super) fn give_back(&self) {
        // Release: pairs with the kernel's acquire of our index; our reads of the entries are over.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

/// Our end of a ring that the kernel empties.
#[derive(Debug)]
pub(super) struct XdpProducer<T> {
    ring: XdpRing<T>,
    /// The entry to be filled next.
    next: u32,
    /// One past the last entry that may be filled, as far as was seen.
    limit: u32,
}

impl<T: Copy> XdpProducer<T> {
    /// A ring that nothing went through yet.
    pub(super) fn new(mapping: RingMapping, layout: &Layout, size: u32) -> io::Result<Self> {
        Ok(Self { ring: XdpRing::new(mapping, layout, size)?, next: 0, limit: size })
    }

    /// How many entries may be filled; asks the kernel only if fewer than `wanted` are known of.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.limit.wrapping_sub(self.next) < wanted {
            // Acquire: pairs with the kernel's release of its consumer index; it has read what it
            // gives back.
            let taken = self.ring.consumer().load(Ordering::Acquire);
            self.limit = taken.wrapping_add(self.ring.mask + 1);
        }
        self.limit.wrapping_sub(self.next).min(self.ring.mask + 1)
    }

    /// Fills the next entry; `false`: there is no room. The kernel sees it after `publish`.
    #[must_use]
    pub(super) fn put(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the kernel has consumed what was here, by the index that `room` acquired, and
        // reads it again only after `publish`; `entry` is inside the mapping and aligned.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the entries filled to the kernel.
    pub(super) fn publish(&self) {
        // Release: pairs with the kernel's acquire of our index; it sees the entries, and the
        // frames that they point at.
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Entries that were published are still to be taken by the kernel. Relaxed: only a hint about
    /// whether to ask it again.
    pub(super) fn is_pending(&self) -> bool {
        self.ring.consumer().load(Ordering::Relaxed) != self.next
    }

    /// Whether the kernel asks for a system call before it goes on (`XDP_RING_NEED_WAKEUP`).
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed, as the kernel's documentation has it: the kernel sets the flag before it looks
        // at the ring for the last time.
        self.ring.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

#[cfg(test)]
mod tests;
