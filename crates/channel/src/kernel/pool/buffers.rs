//! The memory of a pool's buffers, and how many owners each has.
//!
//! Read first: `pool.rs` for what an owner is.
//!
//! A pool hands out buffers on one thread. Where a stack on a second thread fills them and sends
//! from them, it has the same memory by a clone of [`BufferMemory`], tokens ([`HeldBuffer`]) of
//! those that it may fill, and a table of the surrendered owners of those that it may read.
//!
//! Invariants
//! - A buffer that is held ([`HELD`]) has one token. It is written only while a [`HeldTable`] that
//!   has the token is borrowed mutably, and no reference into it exists otherwise.
//! - A buffer with owners is only read, except by its only owner.
//! - Owners are counted by the thread that the pool is bound to. Others look, at buffers whose
//!   count can only change in ways that they do not look at.
//! - The mapping lives as long as any clone.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::HeldBuffer;
use super::held::BufferPoolId;
#[cfg(feature = "local")]
use super::{HeldTable, SurrenderedTable};
use crate::kernel::sys::require_small_allocations;

const CACHE_LINE_BYTES: usize = 64;

/// In place of the number of owners: a [`HeldBuffer`] names it.
pub(super) const HELD: u64 = u64::MAX;

/// In place of the number of owners: the kernel may write it.
pub(super) const LENT: u64 = u64::MAX - 1;

/// A surrendered owner counts as so many, in the high half: apart from the other owners.
#[cfg(feature = "local")]
pub(super) const SURRENDERED: u64 = 1 << 32;

/// There is an owner that is not surrendered.
const fn is_owned(owners: u64) -> bool {
    owners != HELD && owners != LENT && owners as u32 > 0
}

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
struct BufferMapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is an address and a length, which mean the same on every thread.
unsafe impl Send for BufferMapping {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for BufferMapping {}

impl Drop for BufferMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `BufferMemory::map` with this length; no buffer is in
        // use, because each user has a clone of the `BufferMemory` that keep this, and the driver
        // has taken the kernel's hands off it before it let go of its own.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The memory of a pool.
#[derive(Clone)]
pub(crate) struct BufferMemory {
    base: NonNull<u8>,
    buffer_len: usize,
    /// From one buffer's start to the next one's.
    stride_bytes: usize,
    owners: Arc<[Owners]>,
    id: BufferPoolId,
    /// Keeps the memory mapped.
    _mapping: Arc<BufferMapping>,
}

// SAFETY: `base` points into the mapping, which is kept; another thread writes only buffers whose
// token it has, and reads only those of which it has a table with a surrendered owner, which no
// thread writes (see the invariants); the counts are atomic.
unsafe impl Send for BufferMemory {}
// SAFETY: as above. Methods that write take a `HeldTable` with the buffer's token mutably, and the
// pool's counts and tokens are changed by one thread at a time (`ThreadBinding`).
unsafe impl Sync for BufferMemory {}

impl BufferMemory {
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
        let mapping = BufferMapping { base, bytes };
        require_small_allocations()?;
        Ok(Self {
            base,
            buffer_len,
            stride_bytes,
            owners: (0..count).map(|_| Owners(AtomicU64::new(0))).collect(),
            id: BufferPoolId::next()?,
            _mapping: Arc::new(mapping),
        })
    }

    #[inline]
    pub(crate) fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    pub(super) fn count(&self) -> u16 {
        // There are no more than `BUFFER_COUNT_MAX`.
        self.owners.len() as u16
    }

    pub(super) const fn id(&self) -> BufferPoolId {
        self.id
    }

    /// The token of a buffer whose state the caller, which is the pool, has just set to [`HELD`].
    #[inline(always)]
    pub(super) fn token(&self, index: u16) -> HeldBuffer {
        debug_assert_eq!(self.owners(index).get(), HELD, "one token");
        HeldBuffer::new(self.id, index)
    }

    /// Which buffer a token is of; `None`: one of another pool.
    #[inline(always)]
    pub(super) fn index_of(&self, held: &HeldBuffer) -> Option<u16> {
        held.index_in(self.id)
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

    /// Buffers that have owners, apart from surrendered ones.
    pub(super) fn owned_count(&self) -> usize {
        self.owners.iter().filter(|owners| is_owned(owners.get())).count()
    }

    /// One owner less; whether it was the last one, apart from surrendered ones.
    pub(super) fn release(&self, index: u16) -> bool {
        let cell = self.owners(index);
        cell.set(cell.get() - 1);
        !is_owned(cell.get())
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
        // first touch, so it is initialised; no thread writes while the buffer has an owner, except
        // through `bytes_mut`, which borrows the only owner mutably.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), self.buffer_len) }
    }

    /// Copies into a held buffer whose token is in `table`, and sums what was copied; what lies
    /// past its end is left out. Without a token of this pool nothing is copied.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn fill_held(
        &self,
        (table, index): (&mut HeldTable, u16),
        offset: usize,
        from: &[u8],
    ) -> u16 {
        if !table.has(self.id, index) {
            return 0;
        }
        let len = from.len().min(self.buffer_len.saturating_sub(offset));
        // SAFETY: `len` is 0, or `offset + len` is at most `buffer_len`, so the place lies inside
        // the buffer, which exists because there is a token of it.
        let to = unsafe { self.address(index).add(offset.min(self.buffer_len)) };
        // SAFETY: `to` is valid for `len` bytes as shown above, which the kernel zeroed at first
        // touch. No other owner has a reference into a held buffer, and the table that has its only
        // token is borrowed mutably until this reference ends, which is in this function.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len) };
        megapipe_stack::wire::checksum::copy(from, to)
    }

    /// Lets `fill` write the first `len` bytes, at most all, of a held buffer whose token is in
    /// `table`. Without a token of this pool nothing is written.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn fill_held_by(
        &self,
        (table, index): (&mut HeldTable, u16),
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        if !table.has(self.id, index) {
            return;
        }
        let to = self.address(index);
        // SAFETY: at most `buffer_len` bytes from the start of a buffer that exists, because there
        // is a token of it, which the kernel zeroed at first touch. No other owner has a reference
        // into a held buffer, and the table that has its only token is borrowed mutably for the
        // call, with which this reference ends.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len.min(self.buffer_len)) };
        fill(to);
    }

    /// Copies bytes of a held buffer whose token is in `table`, from `offset` on, and sums what was
    /// copied. What lies past its end is zeros, and so is everything without a token of this pool.
    #[cfg(feature = "local")]
    pub(crate) fn copy_held(
        &self,
        (table, index): (&HeldTable, u16),
        offset: usize,
        to: &mut [u8],
    ) -> u16 {
        // The buffer is written only while the table is borrowed mutably.
        let from = if table.has(self.id, index) { self.buffer(index) } else { &[] };
        let from = from.get(offset..).unwrap_or_default();
        let len = from.len().min(to.len());
        to[len..].fill(0);
        megapipe_stack::wire::checksum::copy(from, to)
    }

    /// Bytes of a buffer of which `table` has a surrendered owner; of any other none.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn surrendered<'a>(&'a self, table: &'a SurrenderedTable, index: u16) -> &'a [u8] {
        // The owner stays while the table is borrowed, so no `PoolBuf` of the buffer can exist.
        if table.has(self.id, index) { self.buffer(index) } else { &[] }
    }
}
