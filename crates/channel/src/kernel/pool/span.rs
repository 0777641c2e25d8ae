//! Owners of a pool's buffers: [`PoolBuf`], which may write one, and [`Span`], which reads a part
//! of one or of heap memory.
//!
//! Read first: `pool.rs` for how owners are counted.
//!
//! Invariants
//! - A `PoolBuf` is the only owner of its buffer, until it becomes a span.
//! - An owner in a pool has no share of the pool's [`Arc`]: a pool is kept while a buffer has
//!   owners (`returns.rs`).
//! - The reference of a span whose place is in heap memory ([`SpanPlace::is_in_heap`]) is to a
//!   [`HeapBytes`] that counts the span, of every other span to a [`Pool`].

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use super::Pool;
#[cfg(feature = "local")]
use super::SurrenderedTable;
use crate::kernel::sys;
use crate::limits::{BUFFER_COUNT_MAX, BUFFER_LEN_MAX};

/// The pool of an owner, valid as long as the owner. Of a span in heap memory: its [`HeapBytes`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolRef(NonNull<Pool>);

// SAFETY: it is used as a `&Pool`, as a `&HeapBytes`, and to drop the latter. All may be sent and
// shared because both types are `Send` and `Sync`, which the compiler derives from their fields
// (see `POOL_MAY_BE_SHARED`).
unsafe impl Send for PoolRef {}
// SAFETY: as above.
unsafe impl Sync for PoolRef {}

const POOL_MAY_BE_SHARED: fn() = || {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Pool>();
    is_shared::<HeapBytes>();
};
const _: fn() = POOL_MAY_BE_SHARED;

impl PoolRef {
    #[inline(always)]
    fn of(pool: &Arc<Pool>) -> Self {
        // SAFETY: an `Arc` points to its value, which is nowhere at address 0.
        Self(unsafe { NonNull::new_unchecked(Arc::as_ptr(pool).cast_mut()) })
    }

    /// The pool, for a caller that owns a buffer of it meanwhile.
    #[inline(always)]
    pub(super) fn get(&self) -> &Pool {
        // SAFETY: the owner that this lies in keeps the pool (see the invariants), and `self` is
        // borrowed from it. Only `&Pool` are made of it.
        unsafe { self.0.as_ref() }
    }

    /// The heap memory of a span.
    ///
    /// # Safety
    /// It is the reference of a span that exists meanwhile, and whose place is in heap memory.
    unsafe fn heap(&self) -> &HeapBytes {
        // SAFETY: the caller keeps the contract, and the invariant says what such a reference is.
        unsafe { self.0.cast::<HeapBytes>().as_ref() }
    }

    /// An owner in this pool is dropped.
    #[inline(always)]
    fn release(self, index: u16) {
        let pool = self.get();
        if pool.binding.is_bound() {
            pool.release(index);
        } else {
            // Not a method of the pool's: the pool may end in it.
            super::release_unbound(self, index);
        }
    }
}

/// The only owner of a buffer, which it may write.
pub(crate) struct PoolBuf {
    pool: PoolRef,
    index: u16,
}

impl PoolBuf {
    /// For [`Pool::take`], which has just made `index` a buffer with one owner.
    #[inline(always)]
    pub(super) fn new(pool: &Arc<Pool>, index: u16) -> Self {
        Self { pool: PoolRef::of(pool), index }
    }

    /// All bytes of the buffer, whether meaningful or not.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.pool.get().buffers.buffer(self.index)
    }

    /// The first `len` bytes, which may have several owners from now on.
    pub(crate) fn into_span(self, len: u32) -> Span {
        let len = len.min(self.len() as u32);
        // The span is the owner now.
        let buffer = ManuallyDrop::new(self);
        Span { pool: Some(buffer.pool), place: SpanPlace::in_pool(buffer.index, 0, len) }
    }

    /// All bytes, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let pool = self.pool.get();
        let address = pool.buffers.address(self.index);
        // SAFETY: as in `BufferMemory::buffer`, and this is the only owner, borrowed mutably: it
        // has no `Clone`, and only `Pool::take` makes one, of a buffer that was free.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), pool.buffer_len()) }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.pool.get().buffer_len()
    }

    #[cfg(test)]
    pub(super) fn index(&self) -> u16 {
        self.index
    }
}

impl Drop for PoolBuf {
    #[inline]
    fn drop(&mut self) {
        self.pool.release(self.index);
    }
}

/// Bytes on the heap that spans share, and how many do.
struct HeapBytes {
    owners: AtomicUsize,
    bytes: Vec<u8>,
}

/// Memory on the heap that becomes a span without more memory.
pub(crate) struct UnsharedBytes(Box<HeapBytes>);

impl UnsharedBytes {
    /// `len` zeros. `None`: there is no memory.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        Self::of(sys::zeroed(len).ok()?).ok()
    }

    /// All of `bytes`, which are at most 4 GiB.
    ///
    /// # Errors
    /// There is no memory for the count of owners; returns `bytes`.
    pub(crate) fn of(bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        match sys::try_box(HeapBytes { owners: AtomicUsize::new(1), bytes: Vec::new() }) {
            Ok(mut memory) => {
                memory.bytes = bytes;
                Ok(Self(memory))
            }
            Err(_) => Err(bytes),
        }
    }

    #[cfg(feature = "local")]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0.bytes
    }

    /// The first `len` bytes, or all.
    pub(crate) fn into_span(self, len: usize) -> Span {
        let place = SpanPlace::in_heap(0, len.min(self.0.bytes.len()) as u32);
        let memory = NonNull::from(Box::leak(self.0));
        Span { pool: Some(PoolRef(memory.cast())), place }
    }
}

/// Some bytes that were received, to be read only: one owner of a buffer, or of heap memory.
///
/// Two words, so that it is handed from call to call in registers: what is copied about in memory
/// in larger pieces than it was written in makes the processor wait.
pub(crate) struct Span {
    pool: Option<PoolRef>,
    place: SpanPlace,
}

const _: () = assert!(size_of::<Span>() == 16);

/// Where the bytes of a span lie, in one word. In heap memory (bit 63 set): start (31 bits) and
/// length (32). In a buffer: index (15), start (24) and length (24).
#[derive(Clone, Copy)]
pub(super) struct SpanPlace(u64);

const IN_HEAP: u64 = 1 << 63;
const POOL_BITS: u32 = 24;
const POOL_MASK: u64 = (1 << POOL_BITS) - 1;

const _: () = assert!((BUFFER_LEN_MAX as u64) <= POOL_MASK && BUFFER_COUNT_MAX <= 1 << 15);

impl SpanPlace {
    #[inline]
    pub(super) const fn in_pool(index: u16, start: u32, len: u32) -> Self {
        Self((index as u64) << (2 * POOL_BITS) | (start as u64) << POOL_BITS | len as u64)
    }

    pub(super) const fn in_heap(start: u32, len: u32) -> Self {
        Self(IN_HEAP | (start as u64) << 32 | len as u64)
    }

    #[inline]
    pub(super) const fn is_in_heap(self) -> bool {
        self.0 & IN_HEAP != 0
    }

    #[inline]
    pub(super) const fn index(self) -> u16 {
        (self.0 >> (2 * POOL_BITS)) as u16
    }

    #[inline]
    pub(super) const fn range(self) -> (usize, usize) {
        let (start, len) = if self.is_in_heap() {
            ((self.0 & !IN_HEAP) >> 32, self.0 & u32::MAX as u64)
        } else {
            (self.0 >> POOL_BITS & POOL_MASK, self.0 & POOL_MASK)
        };
        (start as usize, len as usize)
    }

    /// `len` bytes from `skip` on.
    pub(super) const fn part(self, skip: usize, len: usize) -> Self {
        let (start, _) = self.range();
        let (start, len) = ((start + skip) as u32, len as u32);
        if self.is_in_heap() {
            Self::in_heap(start, len)
        } else {
            Self::in_pool(self.index(), start, len)
        }
    }
}

impl Span {
    /// No bytes.
    pub(crate) const EMPTY: Self = Self { pool: None, place: SpanPlace::in_heap(0, 0) };

    /// For the pool, which has just counted one more owner of the buffer.
    #[inline(always)]
    pub(super) fn in_pool(pool: &Arc<Pool>, index: u16, (start, len): (u32, u32)) -> Self {
        Self { pool: Some(PoolRef::of(pool)), place: SpanPlace::in_pool(index, start, len) }
    }

    /// All of `bytes`, which are at most 4 GiB. Without memory for the count of their owners the
    /// process ends, as it does for an [`Arc`].
    pub(crate) fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        match UnsharedBytes::of(bytes) {
            Ok(memory) => memory.into_span(len),
            Err(_) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<HeapBytes>()),
        }
    }

    /// How many bytes there are; no look at the memory.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.place.range().1
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(pool) = &self.pool else { return &[] };
        let (start, len) = self.place.range();
        let all = if self.place.is_in_heap() {
            // SAFETY: this span's place is in heap memory.
            unsafe { &pool.heap().bytes }
        } else {
            pool.get().buffers.buffer(self.place.index())
        };
        &all[start..start + len]
    }

    /// Becomes an owner without a name, which `table` counts: the buffer's index in `pool`, where
    /// the bytes start and how many there are. For records that hold numbers only;
    /// [`Pool::give_up`] ends it. A span of other memory stays what it is, and so does any on a
    /// thread that is not bound, or where the table is of another pool.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn surrender(
        mut self,
        pool: &Arc<Pool>,
        table: &mut SurrenderedTable,
    ) -> Result<(u16, u32, u32), Self> {
        let is_there = self.pool == Some(PoolRef::of(pool)) && !self.place.is_in_heap();
        if !is_there || !pool.binding.is_bound() || !table.is_of(pool.buffers.id()) {
            return Err(self);
        }
        // Without its pool it drops nothing: it is one owner still, of the other kind.
        self.pool = None;
        let index = self.place.index();
        let (start, len) = self.place.range();
        pool.surrender_owner(index);
        table.add(index);
        Ok((index, start as u32, len as u32))
    }

    /// The first `len` bytes, at most all; `self` keeps the rest. Both own the memory, except on a
    /// thread that is not bound, where the first part of a buffer becomes a copy.
    pub(crate) fn split_to(&mut self, len: usize) -> Self {
        let front = self.front(len);
        self.skip(len);
        front
    }

    /// As `split_to`, but `self` keeps all.
    pub(crate) fn front(&self, len: usize) -> Self {
        let len = len.min(self.len());
        let is_shared = match &self.pool {
            None => true,
            Some(pool) if self.place.is_in_heap() => {
                // SAFETY: this span's place is in heap memory.
                let heap = unsafe { pool.heap() };
                // Relaxed: this owner exists, so the memory does.
                heap.owners.fetch_add(1, Ordering::Relaxed);
                true
            }
            Some(pool) => pool.get().share(self.place.index()),
        };
        match is_shared {
            true => Self { pool: self.pool, place: self.place.part(0, len) },
            false => Self::from_vec(self.bytes()[..len].to_vec()),
        }
    }

    /// Leaves the first `len` bytes out, at most all.
    pub(crate) fn skip(&mut self, len: usize) {
        let all = self.len();
        let len = len.min(all);
        self.place = self.place.part(len, all - len);
    }

    /// Whether a buffer of a pool is held.
    pub(crate) fn holds_pool_buffer(&self) -> bool {
        self.pool.is_some() && !self.place.is_in_heap()
    }
}

/// A span of heap memory is dropped.
///
/// # Safety
/// `pool` is the reference of that span, which is not used again.
#[cold]
unsafe fn release_heap(pool: PoolRef) {
    // SAFETY: the span counts as an owner until the next line.
    let heap = unsafe { pool.heap() };
    // Release: what this owner read, it read before the memory is freed. Acquire: as below.
    if heap.owners.fetch_sub(1, Ordering::Release) == 1 {
        // With the releases of all other owners.
        fence(Ordering::Acquire);
        // SAFETY: the pointer is that of the box in `UnsharedBytes::into_span`, and this was the
        // memory's last owner.
        drop(unsafe { Box::from_raw(pool.0.cast::<HeapBytes>().as_ptr()) });
    }
}

impl Drop for Span {
    #[inline(always)]
    fn drop(&mut self) {
        match self.pool {
            None => {}
            // SAFETY: it is this span's, which ends here.
            Some(pool) if self.place.is_in_heap() => unsafe { release_heap(pool) },
            Some(pool) => pool.release(self.place.index()),
        }
    }
}
