//! Buffers in one mapping: what the kernel receives into, and what small writes are built in.
//!
//! Read first: `buffer.rs` for what users see of these buffers.
//!
//! Invariants
//! - A buffer is free (its index on the free list), in the kernel's hands (taken by `lend_free`),
//!   or owned by one or more [`PoolBuf`]s; never two of these at once.
//! - A buffer that more than one `PoolBuf` owns is only read. Only a `PoolBuf` that was taken by
//!   `take` and never cloned hands out mutable bytes.
//! - The mapping lives as long as the channel or any `PoolBuf`.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const CACHE_LINE_BYTES: usize = 64;

/// A fixed number of buffers of one size.
pub(crate) struct Pool {
    base: NonNull<u8>,
    mapping_bytes: usize,
    buffer_len: usize,
    /// From one buffer's start to the next one's.
    stride_bytes: usize,
    buffer_count: u16,
    free: RefCell<Vec<u16>>,
    owners: Box<[Cell<u32>]>,
}

impl Pool {
    /// Maps the memory; the kernel gives it zeroed and only when it is touched.
    pub(crate) fn new(buffer_len: usize, buffer_count: u16) -> io::Result<Rc<Self>> {
        // Buffers whose starts are a power of two apart fall into the same few sets of the cache,
        // and small messages only ever use the start: an odd number of lines keeps them apart.
        let lines = buffer_len.div_ceil(CACHE_LINE_BYTES);
        let stride_bytes = (lines | 1) * CACHE_LINE_BYTES;
        let mapping_bytes = stride_bytes * usize::from(buffer_count);
        // SAFETY: a fresh anonymous private mapping at an address of the kernel's choice aliases
        // nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // SAFETY: the advice covers exactly the mapping above and changes no content. A kernel
        // without transparent huge pages refuses it, and small pages do as well.
        let _ = unsafe { madvise(base, mapping_bytes, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Rc::new(Self {
            base,
            mapping_bytes,
            buffer_len,
            stride_bytes,
            buffer_count,
            // Popped from the end: the lowest index first.
            free: RefCell::new((0..buffer_count).rev().collect()),
            owners: vec![Cell::new(0); usize::from(buffer_count)].into(),
        }))
    }

    pub(crate) fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    pub(crate) fn buffer_count(&self) -> u16 {
        self.buffer_count
    }

    /// Buffers that nobody owns.
    pub(crate) fn free_count(&self) -> usize {
        self.free.borrow().len()
    }

    /// A buffer for a writer, or `None` when all are in use.
    #[inline]
    pub(crate) fn take(self: &Rc<Self>) -> Option<PoolBuf> {
        let index = self.free.borrow_mut().pop()?;
        self.owners[usize::from(index)].set(1);
        Some(PoolBuf { pool: Rc::clone(self), index })
    }

    /// Moves free buffers into the kernel's hands, each by its index and address, until `each`
    /// has seen all of them.
    pub(crate) fn lend_free(&self, mut each: impl FnMut(u16, NonNull<u8>)) {
        for index in self.free.borrow_mut().drain(..) {
            each(index, self.address(index));
        }
    }

    /// Takes a buffer back from the kernel, which has filled it.
    ///
    /// `None` if the index is not one that the kernel could hold: the caller counts that.
    #[inline]
    pub(crate) fn hold(&self, index: u16) -> Option<Held> {
        let owners = self.owners.get(usize::from(index))?;
        if owners.get() != 0 {
            return None;
        }
        owners.set(HELD);
        Some(Held(index))
    }

    /// Makes an owner of what was held; `None` if it is not, or not any more.
    #[inline]
    pub(crate) fn adopt(self: &Rc<Self>, held: Held) -> Option<PoolBuf> {
        let owners = self.owners.get(usize::from(held.0))?;
        if owners.get() != HELD {
            return None;
        }
        owners.set(1);
        Some(PoolBuf { pool: Rc::clone(self), index: held.0 })
    }

    #[inline]
    fn address(&self, index: u16) -> NonNull<u8> {
        debug_assert!(index < self.buffer_count);
        // SAFETY: index < buffer_count (indices come from the free list or were checked against
        // `owners`, which has that length), so the offset stays inside the mapping.
        unsafe { self.base.add(usize::from(index) * self.stride_bytes) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length; no PoolBuf is left, because
        // each holds an Rc of this pool, and the driver has taken the kernel's hands off it
        // before it let go of its own Rc.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// In place of the number of owners: filled, and not adopted yet.
const HELD: u32 = u32::MAX;

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
        let address = self.pool.address(self.index);
        // SAFETY: the range lies inside the mapping; the memory was zeroed by the kernel at
        // first touch, so it is initialised; nobody writes while a PoolBuf exists, except
        // through `bytes_mut`, which borrows the only owner mutably.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), self.pool.buffer_len) }
    }

    /// All bytes, for writing; `None` if the buffer has other owners.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.owners().get() != 1 {
            return None;
        }
        let address = self.pool.address(self.index);
        // SAFETY: as in `bytes`, and this is the only owner, borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), self.pool.buffer_len) })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.pool.buffer_len
    }

    #[inline]
    fn owners(&self) -> &Cell<u32> {
        &self.pool.owners[usize::from(self.index)]
    }
}

impl Clone for PoolBuf {
    fn clone(&self) -> Self {
        self.owners().set(self.owners().get() + 1);
        Self { pool: Rc::clone(&self.pool), index: self.index }
    }
}

impl Drop for PoolBuf {
    #[inline]
    fn drop(&mut self) {
        let owners = self.owners().get() - 1;
        self.owners().set(owners);
        if owners == 0 {
            self.pool.free.borrow_mut().push(self.index);
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
        first.bytes_mut().unwrap()[..3].copy_from_slice(b"abc");
        let second = first.clone();
        assert!(first.bytes_mut().is_none(), "shared buffers are read-only");
        assert_eq!(pool.free_count(), 3);
        drop(first);
        assert_eq!(&second.bytes()[..3], b"abc");
        drop(second);
        assert_eq!(pool.free_count(), 4);
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
        let filled = pool.adopt(pool.hold(2).unwrap()).unwrap();
        assert!(pool.adopt(Held::at(2)).is_none(), "it is adopted once");
        assert!(pool.hold(2).is_none(), "it is owned already");
        assert!(pool.hold(4).is_none(), "there is no such buffer");
        drop(filled);
        assert_eq!(pool.free_count(), 1);
    }

    #[test]
    fn a_buffer_outlives_the_handle_to_its_pool() {
        let pool = Pool::new(64, 4).unwrap();
        let buffer = pool.take().unwrap();
        drop(pool);
        assert_eq!(buffer.bytes().len(), 64);
    }
}
