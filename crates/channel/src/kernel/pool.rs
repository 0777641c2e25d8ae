//! Buffers in one mapping: what the kernel receives into, and what small writes are built in.
//!
//! Read first: `buffer.rs` for what users see of these buffers.
//!
//! Invariants
//! - A buffer is free (its index on the free list), in the kernel's hands (taken by `lend_free`),
//!   or owned by one or more [`PoolBuf`]s and [`Span`]s; never two of these at once.
//! - A buffer that more than one of them owns is only read. Only a `PoolBuf` that is the only owner
//!   hands out mutable bytes.
//! - An owner may be a mere number ([`Span::surrender`]): whoever has the number owns the buffer.
//! - A [`Span`] is an owner too, of a part of a buffer, or of a part of heap memory that stands in
//!   for one where no buffer was to be had or is large enough.
//! - The mapping lives as long as the channel or any owner.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

#[cfg(feature = "local")]
use buffers::SURRENDERED;
use buffers::{HELD, Owners};

use crate::limits::{BUFFER_COUNT_MAX, BUFFER_LEN_MAX};

mod buffers;

pub(crate) use buffers::Buffers;

/// A fixed number of buffers of one size.
pub(crate) struct Pool {
    buffers: Buffers,
    free: FreeList,
    /// Instead of a mapping: all bytes of a pool that was made of them.
    heap: Vec<u8>,
}

impl Pool {
    /// Maps the memory; the kernel gives it zeroed and only when it is touched.
    pub(crate) fn new(buffer_len: usize, buffer_count: u16) -> io::Result<Rc<Self>> {
        let buffers = Buffers::map(buffer_len, buffer_count)?;
        // Popped from the end: the lowest index first.
        let free = FreeList::of((0..buffer_count).rev());
        Ok(Rc::new(Self { buffers, free, heap: Vec::new() }))
    }

    /// A pool without buffers, for spans of `heap`.
    fn of_bytes(heap: Vec<u8>) -> Rc<Self> {
        let free = FreeList::of(std::iter::empty());
        Rc::new(Self { buffers: Buffers::none(), free, heap })
    }

    /// The memory, for a stack on a thread beside.
    #[cfg(feature = "local")]
    pub(crate) const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub(crate) fn buffer_len(&self) -> usize {
        self.buffers.buffer_len()
    }

    pub(crate) fn buffer_count(&self) -> u16 {
        self.buffers.count()
    }

    /// Buffers that nobody owns.
    pub(crate) fn free_count(&self) -> usize {
        self.free.count.get()
    }

    /// A buffer for a writer, or `None` when all are in use.
    #[inline]
    pub(crate) fn take(self: &Rc<Self>) -> Option<PoolBuf> {
        let index = self.free.pop()?;
        self.buffers.owners(index).set(1);
        Some(PoolBuf { pool: Rc::clone(self), index })
    }

    /// A buffer for the stack to fill; adopting it makes an owner.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn take_held(&self) -> Option<Held> {
        let index = self.free.pop()?;
        self.buffers.owners(index).set(HELD);
        Some(Held(index))
    }

    /// Moves free buffers into the kernel's hands, each by its index and address, until `each`
    /// has seen all of them.
    pub(crate) fn lend_free(&self, mut each: impl FnMut(u16, NonNull<u8>)) {
        for place in &self.free.places[..self.free.count.replace(0)] {
            let index = place.get();
            each(index, self.buffers.address(index));
        }
    }

    /// Takes a buffer back from the kernel, which has filled it.
    ///
    /// `None` if the index is not one that the kernel could hold: the caller counts that.
    #[inline]
    pub(crate) fn hold(&self, index: u16) -> Option<Held> {
        let owners = self.buffers.owners_of(index)?;
        if owners.get() != 0 {
            return None;
        }
        owners.set(HELD);
        Some(Held(index))
    }

    /// [`Pool::hold`] and [`Pool::adopt`] in one: an owner of the first `len` bytes of a buffer
    /// that the kernel has filled.
    #[inline(always)]
    pub(crate) fn receive(self: &Rc<Self>, index: u16, len: u32) -> Option<Span> {
        let owners = self.buffers.owners_of(index)?;
        if owners.get() != 0 {
            return None;
        }
        owners.set(1);
        let len = len.min(self.buffer_len() as u32);
        Some(Span { pool: Some(Rc::clone(self)), place: Place::in_pool(index, 0, len) })
    }

    /// Makes an owner of the first `len` bytes of what was held; `None` if it is not, or not any
    /// more.
    #[inline]
    pub(crate) fn adopt(self: &Rc<Self>, held: Held, len: u32) -> Option<Span> {
        let owners = self.buffers.owners_of(held.0)?;
        if owners.get() != HELD {
            return None;
        }
        owners.set(1);
        let len = len.min(self.buffer_len() as u32);
        Some(Span { pool: Some(Rc::clone(self)), place: Place::in_pool(held.0, 0, len) })
    }

    /// A copy of `bytes` in a buffer, with one surrendered owner; `None`: no buffer is free, or
    /// none is long enough.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn surrender_copy(&self, bytes: &[u8]) -> Option<u16> {
        if bytes.len() > self.buffer_len() {
            return None;
        }
        let index = self.free.pop()?;
        self.buffers.owners(index).set(SURRENDERED);
        let to = self.buffers.address(index);
        // SAFETY: `to` is valid for `buffer_len` bytes, of which `bytes` has no more, as checked
        // above, which the kernel zeroed at first touch; the buffer was free, so nobody else has a
        // reference into it, and this one ends here.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), bytes.len()) };
        to.copy_from_slice(bytes);
        Some(index)
    }

    /// A surrendered owner less.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn give_up(&self, index: u16) {
        let Some(cell) = self.buffers.owners_of(index) else { return };
        let owners = cell.get();
        debug_assert!(owners >= SURRENDERED && owners != HELD, "given up twice");
        if owners < SURRENDERED || owners == HELD {
            return;
        }
        cell.set(owners - SURRENDERED);
        if owners == SURRENDERED {
            self.free.push(index);
        }
    }

    /// A surrendered owner is a span again, of `len` bytes from `start` on.
    #[cfg(feature = "local")]
    pub(crate) fn reclaim(self: &Rc<Self>, index: u16, start: u32, len: u32) -> Option<Span> {
        let cell = self.buffers.owners_of(index)?;
        let end = start.checked_add(len)? as usize;
        if cell.get() < SURRENDERED || cell.get() == HELD || end > self.buffer_len() {
            return None;
        }
        cell.set(cell.get() - SURRENDERED + 1);
        Some(Span { pool: Some(Rc::clone(self)), place: Place::in_pool(index, start, len) })
    }

    /// A held buffer that nobody will adopt is free again.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn put_back(&self, held: Held) {
        let Some(owners) = self.buffers.owners_of(held.0) else { return };
        if owners.get() == HELD {
            owners.set(0);
            self.free.push(held.0);
        }
    }

    /// One owner more.
    #[inline]
    fn share(&self, index: u16) {
        let owners = self.buffers.owners(index);
        owners.set(owners.get() + 1);
    }

    /// One owner less; the last one frees the buffer.
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

/// The buffers that nobody owns: a stack, so that the one freed last is used next. As long as the
/// pool has buffers; each of them is in it once at most.
struct FreeList {
    places: Box<[Cell<u16>]>,
    count: Cell<usize>,
}

impl FreeList {
    /// Of all of the pool's buffers, the last one to be taken first.
    fn of(buffers: impl Iterator<Item = u16>) -> Self {
        let places: Box<[Cell<u16>]> = buffers.map(Cell::new).collect();
        let count = Cell::new(places.len());
        Self { places, count }
    }

    #[inline]
    fn pop(&self) -> Option<u16> {
        let count = self.count.get().checked_sub(1)?;
        self.count.set(count);
        self.places.get(count).map(Cell::get)
    }

    #[inline(always)]
    fn push(&self, index: u16) {
        let count = self.count.get();
        debug_assert!(count < self.places.len(), "freed twice");
        if let Some(place) = self.places.get(count) {
            place.set(index);
            self.count.set(count + 1);
        }
    }
}

/// Names a filled buffer that has no owner yet; never adopted, it stays taken for ever.
#[derive(Clone, Copy)]
pub(crate) struct Held(u16);

impl Held {
    #[inline]
    pub(crate) const fn index(self) -> u16 {
        self.0
    }

    /// Any index may be named; whether it is held is seen when it is adopted.
    #[inline]
    pub(crate) const fn at(index: u16) -> Self {
        Self(index)
    }
}

/// One owner of a buffer. Cloning adds an owner; the last one to drop frees the buffer.
pub(crate) struct PoolBuf {
    pool: Rc<Pool>,
    index: u16,
}

impl PoolBuf {
    /// All bytes of the buffer, whether meaningful or not.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.pool.buffers.buffer(self.index)
    }

    /// The first `len` bytes, which may have several owners from now on.
    pub(crate) fn into_span(self, len: u32) -> Span {
        let len = len.min(self.pool.buffer_len() as u32);
        // One owner more, for the span, before `self` is dropped and there is one less.
        self.pool.share(self.index);
        Span { pool: Some(Rc::clone(&self.pool)), place: Place::in_pool(self.index, 0, len) }
    }

    /// All bytes, for writing; `None` if the buffer has other owners.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.owners().get() != 1 {
            return None;
        }
        let address = self.pool.buffers.address(self.index);
        // SAFETY: as in `Pool::buffer`, and this is the only owner, borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), self.pool.buffer_len()) })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.pool.buffer_len()
    }

    #[inline]
    fn owners(&self) -> &Owners {
        self.pool.buffers.owners(self.index)
    }
}

impl Drop for PoolBuf {
    #[inline]
    fn drop(&mut self) {
        self.pool.release(self.index);
    }
}

/// Some bytes that were received, to be read only: one owner of a buffer, or of heap memory.
///
/// Two words, so that it is handed from call to call in registers: what is copied about in memory
/// in larger pieces than it was written in makes the processor wait.
pub(crate) struct Span {
    pool: Option<Rc<Pool>>,
    place: Place,
}

const _: () = assert!(size_of::<Span>() == 16);

/// Where the bytes of a span lie, in one word. In heap memory (bit 63 set): start (31 bits) and
/// length (32). In a buffer: index (15), start (24) and length (24).
#[derive(Clone, Copy)]
struct Place(u64);

const IN_HEAP: u64 = 1 << 63;
const POOL_BITS: u32 = 24;
const POOL_MASK: u64 = (1 << POOL_BITS) - 1;

const _: () = assert!((BUFFER_LEN_MAX as u64) <= POOL_MASK && BUFFER_COUNT_MAX <= 1 << 15);

impl Place {
    #[inline]
    const fn in_pool(index: u16, start: u32, len: u32) -> Self {
        Self((index as u64) << (2 * POOL_BITS) | (start as u64) << POOL_BITS | len as u64)
    }

    const fn in_heap(start: u32, len: u32) -> Self {
        Self(IN_HEAP | (start as u64) << 32 | len as u64)
    }

    #[inline]
    const fn is_in_heap(self) -> bool {
        self.0 & IN_HEAP != 0
    }

    #[inline]
    const fn index(self) -> u16 {
        (self.0 >> (2 * POOL_BITS)) as u16
    }

    #[inline]
    const fn range(self) -> (usize, usize) {
        let (start, len) = if self.is_in_heap() {
            ((self.0 & !IN_HEAP) >> 32, self.0 & u32::MAX as u64)
        } else {
            (self.0 >> POOL_BITS & POOL_MASK, self.0 & POOL_MASK)
        };
        (start as usize, len as usize)
    }

    /// `len` bytes from `skip` on.
    const fn part(self, skip: usize, len: usize) -> Self {
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
    pub(crate) const EMPTY: Self = Self { pool: None, place: Place::in_heap(0, 0) };

    /// All of `bytes`, which are at most 4 GiB.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> Self {
        let place = Place::in_heap(0, bytes.len() as u32);
        Self { pool: Some(Pool::of_bytes(bytes)), place }
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
            &pool.heap
        } else {
            pool.buffers.buffer(self.place.index())
        };
        &all[start..start + len]
    }

    /// Becomes an owner without a name: the buffer's index in `pool`, where the bytes start and how
    /// many there are. For whoever has room for numbers only; [`Pool::give_up`] ends it. A span of
    /// other memory stays what it is.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn surrender(mut self, pool: &Rc<Pool>) -> Result<(u16, u32, u32), Self> {
        let is_there = self.pool.as_ref().is_some_and(|mine| Rc::ptr_eq(mine, pool));
        if !is_there || self.place.is_in_heap() {
            return Err(self);
        }
        // Without its pool it drops nothing: it is one owner still, of the other kind.
        self.pool = None;
        let index = self.place.index();
        let (start, len) = self.place.range();
        let owners = pool.buffers.owners(index);
        owners.set(owners.get() - 1 + SURRENDERED);
        Ok((index, start as u32, len as u32))
    }

    /// The first `len` bytes, at most all; `self` keeps the rest. Both own the memory.
    pub(crate) fn split_to(&mut self, len: usize) -> Self {
        let all = self.len();
        let len = len.min(all);
        if let Some(pool) = &self.pool
            && !self.place.is_in_heap()
        {
            pool.share(self.place.index());
        }
        let front = Self { pool: self.pool.clone(), place: self.place.part(0, len) };
        self.place = self.place.part(len, all - len);
        front
    }

    /// Whether a buffer of a pool is held.
    pub(crate) fn holds_pool_buffer(&self) -> bool {
        self.pool.is_some() && !self.place.is_in_heap()
    }
}

impl Drop for Span {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(pool) = &self.pool
            && !self.place.is_in_heap()
        {
            pool.release(self.place.index());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_owner_frees_the_buffer() {
        let pool = Pool::new(128, 4).unwrap();
        let mut first = pool.take().unwrap();
        first.bytes_mut().unwrap()[..5].copy_from_slice(b"abcde");
        let mut all = first.into_span(5);
        let front = all.split_to(3);
        assert_eq!(pool.free_count(), 3);
        assert_eq!((front.bytes(), all.bytes()), (&b"abc"[..], &b"de"[..]));
        drop(all);
        assert_eq!((front.bytes(), pool.free_count()), (&b"abc"[..], 3));
        drop(front);
        assert_eq!(pool.free_count(), 4);
    }

    #[test]
    fn spans_say_where_their_bytes_are() {
        for (index, start, len) in [(0, 0, 0), (BUFFER_COUNT_MAX - 1, 1 << 20, 1 << 20)] {
            let place = Place::in_pool(index, start, len);
            assert_eq!((place.index(), place.is_in_heap()), (index, false));
            assert_eq!(place.range(), (start as usize, len as usize));
        }
        let place = Place::in_heap(i32::MAX as u32, u32::MAX).part(0, 7);
        assert!(place.is_in_heap() && place.range() == (i32::MAX as usize, 7));
        let mut heap = Span::from_vec(b"0123456789".to_vec());
        let front = heap.split_to(4);
        drop(heap.split_to(2));
        assert_eq!((front.bytes(), heap.bytes()), (&b"0123"[..], &b"6789"[..]));
        assert!(heap.split_to(100).len() == 4 && heap.len() == 0);
        assert!(Span::EMPTY.bytes().is_empty() && !Span::EMPTY.holds_pool_buffer());
    }

    #[test]
    fn an_empty_pool_says_so() {
        let pool = Pool::new(64, 4).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.len(), 4);
        assert!(pool.take().is_none());
    }

    #[test]
    fn the_kernel_cannot_give_back_what_it_does_not_hold() {
        let pool = Pool::new(64, 4).unwrap();
        let mut lent = Vec::new();
        pool.lend_free(|index, _| lent.push(index));
        assert_eq!(lent.len(), 4);
        let filled = pool.adopt(pool.hold(2).unwrap(), 1000).unwrap();
        assert_eq!(filled.len(), 64, "no more than there is");
        assert!(pool.adopt(Held::at(2), 1).is_none(), "it is adopted once");
        assert!(pool.hold(2).is_none(), "it is owned already");
        assert!(pool.hold(4).is_none(), "there is no such buffer");
        drop(filled);
        assert_eq!(pool.free_count(), 1);
    }

    #[cfg(feature = "local")]
    #[test]
    fn a_surrendered_owner_is_an_owner() {
        let (pool, other) = (Pool::new(64, 4).unwrap(), Pool::new(64, 4).unwrap());
        let mut first = pool.take().unwrap();
        first.bytes_mut().unwrap()[..5].copy_from_slice(b"abcde");
        let mut all = first.into_span(5);
        let front = all.split_to(2);
        let Err(all) = all.surrender(&other) else { panic!("it is of another pool") };
        let Ok((index, 2, 3)) = all.surrender(&pool) else { panic!("it is of this one") };
        assert_eq!(&pool.buffers.surrendered(index)[2..5], b"cde");
        drop(front);
        assert_eq!(pool.free_count(), 3, "one owner is left");
        let again = pool.reclaim(index, 2, 3).unwrap();
        assert_eq!((again.bytes(), pool.buffers.surrendered(index)), (&b"cde"[..], &[][..]));
        assert!(pool.reclaim(index, 2, 3).is_none(), "it is a span already");
        let Ok((index, ..)) = again.surrender(&pool) else { panic!("it is of this one") };
        pool.give_up(index);
        assert_eq!(pool.free_count(), 4);
        assert!(Span::from_vec(vec![1]).surrender(&pool).is_err());
    }

    #[cfg(feature = "local")]
    #[test]
    fn a_copy_is_owned_without_a_name_from_the_start() {
        let pool = Pool::new(64, 2).unwrap();
        assert_eq!(pool.surrender_copy(&[7; 65]), None, "no buffer is so long");
        let copies = [&b"abc"[..], &[9; 64]].map(|bytes| pool.surrender_copy(bytes).unwrap());
        assert_eq!(pool.surrender_copy(b"d"), None, "none is free");
        assert_eq!(&pool.buffers.surrendered(copies[0])[..3], b"abc");
        assert_eq!(pool.buffers.surrendered(copies[1]), &[9; 64]);
        pool.give_up(copies[0]);
        let span = pool.reclaim(copies[1], 0, 64).unwrap();
        assert_eq!((pool.free_count(), span.bytes()), (1, &[9; 64][..]));
        drop(span);
        assert_eq!(pool.free_count(), 2);
    }

    #[test]
    fn a_buffer_outlives_the_handle_to_its_pool() {
        let pool = Pool::new(64, 4).unwrap();
        let buffer = pool.take().unwrap();
        drop(pool);
        assert_eq!(buffer.bytes().len(), 64);
    }
}
