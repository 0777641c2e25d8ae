//! Buffers of one size in a region, and who may do what to each of them.
//!
//! Read first: `region.rs`; ARCHITECTURE.md, "Memory".
//!
//! ```text
//!  region  | ... | buf 0 | gap | buf 1 | gap | ... | buf n-1 | ... |
//!                 <- stride ->
//!  owner's private memory: free list (last in, first out), which buffers are in use
//! ```
//!
//! Invariants
//! - What says which buffers are free lies outside the region: only the owner can change it.
//! - A buffer is on the free list exactly when it is not in use.
//! - There are no references to a buffer's bytes: they are copied in and out.
//! - Nothing allocates after [`Pool::new`].

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use crate::area::{BufferArea, PoolError, PoolLayout};
use crate::region::Region;
use crate::{bytes, limits};

const INDEX_BITS: u32 = limits::POOL_BUFS_MAX.trailing_zeros();
const INDEX_MASK: u32 = limits::POOL_BUFS_MAX - 1;

/// The name of a buffer: the tag of its pool and its index there.
///
/// Made from any 32 bits, as it may come from another process; the pool checks it at each use.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufId(u32);

impl BufId {
    /// The name with these bits.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Which pool it names a buffer of: what [`PoolLayout::tag`] was there.
    #[inline]
    #[must_use]
    pub const fn tag(self) -> u16 {
        (self.0 >> INDEX_BITS) as u16
    }

    /// Its place in that pool.
    #[inline]
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 & INDEX_MASK
    }

    const fn new(tag: u16, index: u32) -> Self {
        Self((tag as u32) << INDEX_BITS | index)
    }
}

impl fmt::Debug for BufId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufId({}:{})", self.tag(), self.index())
    }
}

/// Why something was not done to a buffer: the caller's fault, or that of the process which sent
/// the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BufError {
    /// The id is of another pool, or its index is beyond the last buffer.
    #[error("{0:?} is no buffer of this pool")]
    Foreign(BufId),
    /// The buffer was never given out, or given back already.
    #[error("{0:?} is not in use")]
    NotInUse(BufId),
    /// The range does not lie in the buffer.
    #[error("{len} bytes at {offset} are not within a buffer")]
    OutOfBuf {
        /// Where the range begins in the buffer.
        offset: u32,
        /// How long it is.
        len: usize,
    },
}

/// A fixed number of buffers of one size. For one thread at a time; its buffers' bytes may be seen
/// by any process that maps the region.
#[derive(Debug)]
pub struct Pool {
    area: BufferArea,
    layout: PoolLayout,
    in_use: Box<[Cell<bool>]>,
    /// The first `free_count` are free; the last of them goes first.
    free: Box<[Cell<u32>]>,
    free_count: Cell<u32>,
}

impl Pool {
    /// A pool of buffers that others see too.
    #[must_use]
    pub fn new(area: BufferArea) -> Self {
        let layout = area.layout();
        Self {
            in_use: vec![Cell::new(false); layout.count as usize].into(),
            // The last is given out first: the lowest index.
            free: (0..layout.count).rev().map(Cell::new).collect(),
            free_count: Cell::new(layout.count),
            area,
            layout,
        }
    }

    /// A pool that owns its region.
    ///
    /// # Errors
    /// [`PoolError`]: the caller's settings.
    pub fn owning(region: Region, layout: PoolLayout) -> Result<Self, PoolError> {
        Ok(Self::new(BufferArea::new(&mut region.into_parts(), layout)?))
    }

    /// A buffer; its bytes are what they were. `None`: all are in use.
    #[inline]
    #[must_use]
    pub fn alloc(&self) -> Option<BufId> {
        let left = self.free_count.get().checked_sub(1)?;
        self.free_count.set(left);
        let index = self.free[left as usize].get();
        self.in_use[index as usize].set(true);
        Some(BufId::new(self.layout.tag, index))
    }

    /// Gives a buffer back.
    ///
    /// # Errors
    /// [`BufError::Foreign`], [`BufError::NotInUse`] (freed twice).
    #[inline]
    pub fn free(&self, buf: BufId) -> Result<(), BufError> {
        self.in_use(buf)?.set(false);
        let free_count = self.free_count.get();
        // As many places as buffers, and this one was on none of them.
        self.free[free_count as usize].set(buf.index());
        self.free_count.set(free_count + 1);
        Ok(())
    }

    /// Copies `from` into a buffer.
    ///
    /// # Errors
    /// [`BufError`]; nothing was copied.
    #[inline]
    pub fn copy_in(&self, buf: BufId, offset: u32, from: &[u8]) -> Result<(), BufError> {
        let to = self.range(buf, offset, from.len())?;
        // SAFETY: `range` has checked that these bytes lie in the buffer. No reference to them
        // exists, so `from` is elsewhere.
        unsafe { bytes::copy_in(from, to.as_ptr()) };
        Ok(())
    }

    /// Copies bytes of a buffer to `to`. Who sums or reads them does so of the copy, whatever
    /// happens to the buffer meanwhile.
    ///
    /// # Errors
    /// [`BufError`]; nothing was copied.
    #[inline]
    pub fn copy_out(&self, buf: BufId, offset: u32, to: &mut [u8]) -> Result<(), BufError> {
        let from = self.range(buf, offset, to.len())?;
        // SAFETY: `range` has checked that these bytes lie in the buffer. No reference to them
        // exists, so `to` is elsewhere.
        unsafe { bytes::copy_out(from.as_ptr(), to) };
        Ok(())
    }

    /// Size of a buffer.
    #[inline]
    #[must_use]
    pub fn buf_bytes(&self) -> usize {
        self.layout.buf_bytes
    }

    /// How many buffers there are, and of which size.
    #[must_use]
    pub fn layout(&self) -> PoolLayout {
        self.layout
    }

    /// Buffers that are free now.
    #[inline]
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.free_count.get()
    }

    /// The flag of a buffer that is in use.
    #[inline]
    fn in_use(&self, buf: BufId) -> Result<&Cell<bool>, BufError> {
        let in_use = self.in_use.get(buf.index() as usize);
        let in_use = in_use.filter(|_| buf.tag() == self.layout.tag);
        let in_use = in_use.ok_or(BufError::Foreign(buf))?;
        if in_use.get() { Ok(in_use) } else { Err(BufError::NotInUse(buf)) }
    }

    /// The address of a range of a buffer in use.
    #[inline]
    fn range(&self, buf: BufId, offset: u32, len: usize) -> Result<NonNull<u8>, BufError> {
        self.in_use(buf)?;
        let start = offset as usize;
        let buf_bytes = self.layout.buf_bytes;
        if start > buf_bytes || len > buf_bytes - start {
            return Err(BufError::OutOfBuf { offset, len });
        }
        // SAFETY: `in_use` has found the index among as many flags as there are buffers, and the
        // range lies in its buffer.
        Ok(unsafe { self.area.address(buf.index(), start) })
    }
}

#[cfg(test)]
mod tests;
