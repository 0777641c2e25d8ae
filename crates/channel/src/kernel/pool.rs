//! Buffers in one mapping: what the kernel receives into, and what small writes are built in.
//!
//! Read first: `buffer.rs` for what users see of these buffers.
//!
//! Invariants
//! - A buffer is free (its index on the free list), lent to the kernel (taken by `lend_free`), held
//!   by one [`HeldBuffer`] token, or owned by one or more [`PoolBuf`]s and [`Span`]s; never two of
//!   these at once.
//! - A buffer that more than one of them owns is only read. Only a `PoolBuf` that is the only owner
//!   hands out mutable bytes.
//! - An owner may be a mere number ([`Span::surrender`]): a [`SurrenderedTable`] counts such owners
//!   of each buffer, and only the table that has counted one reads, ends or reclaims it.
//! - A [`Span`] is an owner too, of a part of a buffer, or of a part of heap memory that stands in
//!   for one where no buffer was to be had or is large enough.
//! - The mapping lives as long as the channel or any owner.
//! - Owners are counted, and buffers taken, by the thread that is bound ([`ThreadBinding`]) and by
//!   no other, without locked instructions. What other threads drop, the bound one releases later
//!   (`returns.rs`).

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use megapipe_shm::ThreadBinding;

#[cfg(feature = "local")]
use buffers::SURRENDERED;
use buffers::{HELD, LENT};

use returns::Returns;

mod buffers;
mod held;
mod returns;
mod span;
#[cfg(feature = "local")]
mod surrendered;
#[cfg(test)]
mod tests;

pub(crate) use buffers::BufferMemory;
pub(crate) use held::{HeldBuffer, HeldTable};
pub(crate) use span::{PoolBuf, Span, UnsharedBytes};
#[cfg(feature = "local")]
pub(crate) use surrendered::SurrenderedTable;

/// A fixed number of buffers of one size.
pub(crate) struct Pool {
    buffers: BufferMemory,
    free: FreeList,
    binding: ThreadBinding,
    returns: Returns,
}

impl Pool {
    /// The memory, for a stack on a thread beside.
    #[cfg(feature = "local")]
    pub(crate) const fn buffers(&self) -> &BufferMemory {
        &self.buffers
    }

    pub(crate) fn buffer_len(&self) -> usize {
        self.buffers.buffer_len()
    }

    pub(crate) fn buffer_count(&self) -> u16 {
        self.buffers.count()
    }

    /// Buffers without an owner.
    pub(crate) fn free_count(&self) -> usize {
        self.release_returned();
        self.free.count()
    }

    /// Whether the calling thread may take a buffer now.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        self.binding.is_bound() && (self.free.count() > 0 || self.free_count() > 0)
    }

    /// Takes a free buffer. `None`: all are in use, or another thread is bound.
    #[inline(always)]
    fn pop(&self) -> Option<u16> {
        if !self.binding.is_bound() {
            return None;
        }
        self.free.pop().or_else(|| self.pop_returned())
    }

    /// As `pop`, where no buffer is free except those that other threads have dropped.
    #[cold]
    fn pop_returned(&self) -> Option<u16> {
        self.release_returned();
        self.free.pop()
    }

    /// A buffer for a writer, or `None` when all are in use.
    #[inline]
    pub(crate) fn take(self: &Arc<Self>) -> Option<PoolBuf> {
        let index = self.pop()?;
        self.buffers.owners(index).set(1);
        Some(PoolBuf::new(self, index))
    }

    /// Takes a buffer for the stack to fill, and puts its token into `table`, which is one of this
    /// pool's; the number that it has there.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn take_held(&self, table: &mut HeldTable) -> Option<u16> {
        if !table.is_of(self.buffers.id()) {
            return None;
        }
        let index = self.pop()?;
        self.buffers.owners(index).set(HELD);
        table.put(self.buffers.token(index))
    }

    /// A table for tokens of this pool's buffers.
    pub(crate) fn held_table(&self) -> HeldTable {
        HeldTable::new(self.buffers.id(), self.buffer_count())
    }

    /// Lends all free buffers to the kernel, each by its index and address.
    pub(crate) fn lend_free(&self, mut each: impl FnMut(u16, NonNull<u8>)) {
        if !self.binding.is_bound() {
            return;
        }
        self.release_returned();
        for index in self.free.take_all() {
            self.buffers.owners(index).set(LENT);
            each(index, self.buffers.address(index));
        }
    }

    /// Takes a buffer back from the kernel, which has filled it.
    ///
    /// `None` if the kernel does not have the buffer of this index: the caller counts that. `None`
    /// also on a thread that is not bound.
    #[inline]
    pub(crate) fn hold(&self, index: u16) -> Option<HeldBuffer> {
        self.take_lent(index, HELD)?;
        Some(self.buffers.token(index))
    }

    /// [`Pool::hold`] and [`Pool::adopt`] in one: an owner of the first `len` bytes of a buffer
    /// that the kernel has filled.
    #[inline(always)]
    pub(crate) fn receive(self: &Arc<Self>, index: u16, len: u32) -> Option<Span> {
        self.take_lent(index, 1)?;
        let len = len.min(self.buffer_len() as u32);
        Some(Span::in_pool(self, index, (0, len)))
    }

    /// The only place where an index that the kernel names becomes a buffer: it must be lent, and
    /// is `owners` afterwards.
    #[inline(always)]
    fn take_lent(&self, index: u16, owners: u64) -> Option<()> {
        let cell = self.buffers.owners_of(index)?;
        if cell.get() != LENT || !self.binding.is_bound() {
            return None;
        }
        cell.set(owners);
        Some(())
    }

    /// Makes an owner of the first `len` bytes of a held buffer. `None` if the token is of another
    /// pool or another thread is bound: the buffer stays taken.
    #[inline]
    pub(crate) fn adopt(self: &Arc<Self>, held: HeldBuffer, len: u32) -> Option<Span> {
        let index = self.buffers.index_of(&held)?;
        if !self.binding.is_bound() {
            return None;
        }
        self.buffers.owners(index).set(1);
        let len = len.min(self.buffer_len() as u32);
        Some(Span::in_pool(self, index, (0, len)))
    }

    /// A table for surrendered owners of this pool's buffers.
    #[cfg(feature = "local")]
    pub(crate) fn surrendered_table(&self) -> SurrenderedTable {
        SurrenderedTable::new(self.buffers.id(), self.buffer_count())
    }

    /// A copy of `bytes` in a buffer, with one surrendered owner, which `table` counts; `None`: no
    /// buffer is free, none is long enough, or the table is of another pool.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn surrender_copy(&self, table: &mut SurrenderedTable, bytes: &[u8]) -> Option<u16> {
        if bytes.len() > self.buffer_len() || !table.is_of(self.buffers.id()) {
            return None;
        }
        let index = self.pop()?;
        self.buffers.owners(index).set(SURRENDERED);
        let to = self.buffers.address(index);
        // SAFETY: `to` is valid for `buffer_len` bytes, of which `bytes` has no more, as checked
        // above, which the kernel zeroed at first touch; the buffer was free, so no other owner has
        // a reference into it, and this one ends here.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), bytes.len()) };
        to.copy_from_slice(bytes);
        table.add(index);
        Some(index)
    }

    /// Ends a surrendered owner that `table` has counted; nothing if it has none. Where another
    /// thread is bound, the buffer stays taken.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn give_up(&self, table: &mut SurrenderedTable, index: u16) {
        if !self.binding.is_bound() || !table.take(self.buffers.id(), index) {
            return;
        }
        let cell = self.buffers.owners(index);
        let owners = cell.get() - SURRENDERED;
        cell.set(owners);
        if owners == 0 {
            self.free.push(index);
        }
    }

    /// A surrendered owner that `table` has counted is a span again, of `len` bytes from `start`
    /// on. `None`: there is no such owner or no such range, or another thread is bound.
    #[cfg(feature = "local")]
    pub(crate) fn reclaim(
        self: &Arc<Self>,
        table: &mut SurrenderedTable,
        (index, start, len): (u16, u32, u32),
    ) -> Option<Span> {
        let end = start.checked_add(len)? as usize;
        let is_range = end <= self.buffer_len() && self.binding.is_bound();
        if !is_range || !table.take(self.buffers.id(), index) {
            return None;
        }
        let cell = self.buffers.owners(index);
        cell.set(cell.get() - SURRENDERED + 1);
        Some(Span::in_pool(self, index, (start, len)))
    }

    /// Frees a held buffer. Where the token is of another pool, or another thread is bound, the
    /// buffer stays taken.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn put_back(&self, held: HeldBuffer) {
        let Some(index) = self.buffers.index_of(&held) else { return };
        if !self.binding.is_bound() {
            return;
        }
        self.buffers.owners(index).set(0);
        self.free.push(index);
    }

    /// One of a buffer's owners is a surrendered one from now on. On the bound thread.
    #[cfg(feature = "local")]
    #[inline(always)]
    fn surrender_owner(&self, index: u16) {
        let owners = self.buffers.owners(index);
        owners.set(owners.get() - 1 + SURRENDERED);
    }

    /// One owner more. `false`: another thread is bound, and nothing was counted.
    #[inline]
    fn share(&self, index: u16) -> bool {
        let is_bound = self.binding.is_bound();
        if is_bound {
            let owners = self.buffers.owners(index);
            owners.set(owners.get() + 1);
        }
        is_bound
    }

    /// One owner less; the last one frees the buffer. On the bound thread.
    #[inline(always)]
    fn release(&self, index: u16) {
        let cell = self.buffers.owners(index);
        let owners = cell.get() - 1;
        cell.set(owners);
        if owners == 0 {
            self.free.push(index);
        }
    }
}

/// An owner is dropped on a thread that is not bound; the pool may end with it.
#[cold]
fn release_unbound(pool: span::PoolRef, index: u16) {
    returns::release_elsewhere(pool, index);
}

/// A channel's handle to a pool. Without it no buffer is taken any more; owners keep the memory.
pub(crate) struct PoolOwner {
    pool: Arc<Pool>,
}

impl PoolOwner {
    /// Maps the memory; the kernel gives it zeroed and only when it is touched. The calling thread
    /// is bound.
    pub(crate) fn new(buffer_len: usize, buffer_count: u16) -> io::Result<Self> {
        let buffers = BufferMemory::map(buffer_len, buffer_count)?;
        // Popped from the end: the lowest index first.
        let free = FreeList::of((0..buffer_count).rev());
        let binding = ThreadBinding::to_caller();
        let returns = Returns::default();
        Ok(Self { pool: Arc::new(Pool { buffers, free, binding, returns }) })
    }

    /// Binds the calling thread. `false`: another thread is bound.
    pub(crate) fn bind_thread(&self) -> bool {
        self.pool.binding.bind()
    }

    /// Ends the binding of the calling thread, if it is bound, so that another one can be.
    pub(crate) fn unbind_thread(&self) {
        self.pool.binding.unbind();
    }
}

impl Deref for PoolOwner {
    type Target = Arc<Pool>;

    #[inline(always)]
    fn deref(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        self.pool.orphan();
    }
}

/// The buffers without an owner: a stack, so that the one freed last is used next. As long as the
/// pool has buffers; each of them is in it once at most.
///
/// Atomics, so that the pool can be shared by threads; but one thread at a time writes, the bound
/// one or, once there is no [`PoolOwner`], none.
struct FreeList {
    places: Box<[AtomicU16]>,
    count: AtomicUsize,
}

// Relaxed, all: the binding orders one thread's accesses before the next one's.
impl FreeList {
    /// Of all of the pool's buffers, the last one to be taken first.
    fn of(buffers: impl Iterator<Item = u16>) -> Self {
        let places: Box<[AtomicU16]> = buffers.map(AtomicU16::new).collect();
        let count = AtomicUsize::new(places.len());
        Self { places, count }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    #[inline]
    fn pop(&self) -> Option<u16> {
        let count = self.count().checked_sub(1)?;
        self.count.store(count, Ordering::Relaxed);
        self.places.get(count).map(|place| place.load(Ordering::Relaxed))
    }

    /// Takes all, the first one freed first.
    fn take_all(&self) -> impl Iterator<Item = u16> {
        let count = self.count();
        self.count.store(0, Ordering::Relaxed);
        self.places.iter().take(count).map(|place| place.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn push(&self, index: u16) {
        let count = self.count();
        debug_assert!(count < self.places.len(), "freed twice");
        if let Some(place) = self.places.get(count) {
            place.store(index, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Relaxed);
        }
    }
}
