//! The memory of a pool's buffers, and how many owners each has.
//!
//! Read first: `pool.rs` for what an owner is.
//!
//! A pool hands out buffers on one thread. Where a stack on a thread beside fills them and sends
//! from them, it has the same memory by a clone of [`Buffers`], and knows by number which it may
//! touch.
//!
//! Invariants
//! - A buffer that is held ([`HELD`]) is written by whoever holds its number, and read by nobody.
//! - A buffer with owners is only read, except by its only owner.
//! - Owners are counted on the pool's thread. Others look, at buffers whose count can only change
//!   in ways that they do not look at.
//! - The mapping lives as long as any clone.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

#[cfg(feature = "local")]
use super::Held;

const CACHE_LINE_BYTES: usize = 64;

/// In place of the number of owners: filled, and not adopted yet.
pub(super) const HELD: u64 = u64::MAX;

/// A surrendered owner counts as so many: whether there is one is seen in the high half.
#[cfg(feature = "local")]
pub(super) const SURRENDERED: u64 = 1 << 32;

/// How many owners a buffer has.
pub(super) struct Owners(AtomicU64);

impl Owners {
    // Relaxed, both: one thread writes, and what another one may conclude from what it sees is
    // ordered by how it came by the buffer's number.
    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn set(&self, owners: u64) {
        self.0.store(owners, Ordering::Relaxed);
    }
}

/// One mapping.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is an address and a length, which mean the same on every thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `Buffers::map` with this length; no buffer is in use,
        // because whoever uses one has a clone of the `Buffers` that keep this, and the driver has
        // taken the kernel's hands off it before it let go of its own.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The memory of a pool.
#[derive(Clone)]
pub(crate) struct Buffers {
    base: NonNull<u8>,
    buffer_len: usize,
    /// From one buffer's start to the next one's.
    stride_bytes: usize,
    owners: Arc<[Owners]>,
    /// Keeps the memory mapped; nobody's where there are no buffers.
    _mapping: Option<Arc<Mapping>>,
}

// SAFETY: `base` points into the mapping, which is kept; which thread may touch which buffer is
// told by numbers (see the invariants), and their counts are atomic.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Maps the memory; the kernel gives it zeroed and only when it is touched.
    pub(super) fn map(buffer_len: usize, count: u16) -> io::Result<Self> {
        // Buffers whose starts are a power of two apart fall into the same few sets of the cache,
        // and small messages only ever use the start: an odd number of lines keeps them apart.
        let lines = buffer_len.div_ceil(CACHE_LINE_BYTES);
        let stride_bytes = (lines | 1) * CACHE_LINE_BYTES;
        let bytes = stride_bytes * usize::from(count);
        // SAFETY: a fresh anonymous private mapping at an address of the kernel's choice aliases
        // nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // SAFETY: the advice covers exactly the mapping above and changes no content. A kernel
        // without transparent huge pages refuses it, and small pages do as well.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            buffer_len,
            stride_bytes,
            owners: (0..count).map(|_| Owners(AtomicU64::new(0))).collect(),
            _mapping: Some(Arc::new(Mapping { base, bytes })),
        })
    }

    /// None.
    pub(super) fn none() -> Self {
        let owners = Arc::new([]);
        let base = NonNull::dangling();
        Self { base, buffer_len: 0, stride_bytes: 0, owners, _mapping: None }
    }

    #[inline]
    pub(crate) fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    pub(super) fn count(&self) -> u16 {
        // There are no more than `BUFFER_COUNT_MAX`.
        self.owners.len() as u16
    }

    /// The owners of a buffer that there is.
    #[inline(always)]
    pub(super) fn owners(&self, index: u16) -> &Owners {
        &self.owners[usize::from(index)]
    }

    /// The owners of a buffer, if there is such a one.
    #[inline(always)]
    pub(super) fn owners_of(&self, index: u16) -> Option<&Owners> {
        self.owners.get(usize::from(index))
    }

    #[inline(always)]
    pub(super) fn address(&self, index: u16) -> NonNull<u8> {
        debug_assert!(index < self.count());
        // SAFETY: index < count (indices come from the free list or were checked against `owners`,
        // which has that length), so the offset stays inside the mapping.
        unsafe { self.base.add(usize::from(index) * self.stride_bytes) }
    }

    /// All bytes of a buffer that the caller owns.
    #[inline(always)]
    pub(super) fn buffer(&self, index: u16) -> &[u8] {
        let address = self.address(index);
        // SAFETY: the range lies inside the mapping; the memory was zeroed by the kernel at
        // first touch, so it is initialised; nobody writes while the buffer has an owner, except
        // through `bytes_mut`, which borrows the only owner mutably.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), self.buffer_len) }
    }

    /// Copies into a buffer that is held and has no owner yet, and sums what was copied; what lies
    /// past its end is left out.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn fill_held(&self, held: Held, offset: usize, from: &[u8]) -> u16 {
        if self.owners_of(held.index()).is_none_or(|owners| owners.get() != HELD) {
            return 0;
        }
        let len = from.len().min(self.buffer_len.saturating_sub(offset));
        // SAFETY: `len` is 0, or `offset + len` is at most `buffer_len`, so the place lies inside
        // the buffer, whose index was checked above.
        let to = unsafe { self.address(held.index()).add(offset.min(self.buffer_len)) };
        // SAFETY: `to` is valid for `len` bytes as shown above, which the kernel zeroed at first
        // touch; nobody else has a reference into a buffer that is held, and this one ends here.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len) };
        megapipe_stack::wire::checksum::copy(from, to)
    }

    /// Lets `fill` write the first `len` bytes of a buffer that is held and has no owner yet. Of
    /// one that is not, and past its end, nothing is written.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn fill_held_by(&self, held: Held, len: usize, fill: impl FnOnce(&mut [u8])) {
        if self.owners_of(held.index()).is_none_or(|owners| owners.get() != HELD) {
            return;
        }
        let to = self.address(held.index());
        // SAFETY: at most `buffer_len` bytes from the start of the buffer, whose index was checked
        // above, which the kernel zeroed at first touch; nobody else has a reference into a buffer
        // that is held, and this one ends with the call.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len.min(self.buffer_len)) };
        fill(to);
    }

    /// Bytes of a buffer of which there is a surrendered owner; of any other none.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn surrendered(&self, index: u16) -> &[u8] {
        match self.owners_of(index).map(Owners::get) {
            Some(HELD) | None => &[],
            Some(owners) if owners < SURRENDERED => &[],
            Some(_) => self.buffer(index),
        }
    }
}
