//! Buffers of one size in a region, and who may do what to each of them.
//!
//! Read first: `region.rs`; ARCHITECTURE.md, "Memory".
//!
//! ```text
//!  region  | ... | buf 0 | gap | buf 1 | gap | ... | buf n-1 | ... |
//!                 <- stride ->
//!  owner's private memory: free list (last in, first out), one state per buffer
//! ```
//!
//! A buffer is allocated with one use. Each `share` adds one and each `free` takes one away; the
//! last gives the buffer back. So two ranges of one buffer can travel separately.
//!
//! Invariants
//! - What says which buffers are free lies outside the region: only the owner can change it.
//! - A buffer is on the free list exactly when it has no use, neither by its id nor lent.
//! - Bytes below a buffer's `lent_bytes` have been lent by [`Pool::lend`] and do not change before
//!   the buffer's last use ends. While a [`Writer`] has a buffer, no other use reads or writes it.
//! - Nothing allocates after [`Pool::new`].

mod lent;

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use crate::area::{BufferArea, PoolError, PoolLayout};
use crate::region::{Backing, Region};
use crate::{bytes, limits};

pub use lent::{Lent, Writer};

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
    /// No use of the buffer goes by its id: it was never given out, or given back already.
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
    /// The bytes are lent, or the buffer is with a [`Writer`].
    #[error("{0:?} is lent")]
    Lent(BufId),
    /// More uses of one buffer than can be counted.
    #[error("{0:?} has too many uses")]
    TooManyUses(BufId),
    /// Other processes can write the region, so that no reference to its bytes may exist.
    #[error("the pool's region is shared with other processes")]
    SharedRegion,
}

/// What a pool counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounters {
    /// Buffers given out.
    pub allocated: u64,
    /// Buffers that came back.
    pub freed: u64,
    /// Requests that found the pool empty.
    pub exhausted: u64,
    /// Uses of ids that were foreign or free, and ranges outside a buffer.
    pub refused: u64,
}

/// One buffer, in the owner's private memory.
#[derive(Debug, Clone, Default)]
struct BufState {
    /// Uses that go by the id.
    uses: Cell<u16>,
    /// Uses that are a [`Lent`].
    lends: Cell<u16>,
    /// Bytes from the start that have been lent and must not change, or [`WITH_WRITER`].
    lent_bytes: Cell<u32>,
}

/// A [`Writer`] has the buffer.
const WITH_WRITER: u32 = u32::MAX;

/// A fixed number of buffers of one size. For one thread at a time; its buffers' bytes may be seen
/// by any process that maps the region.
#[derive(Debug)]
pub struct Pool {
    area: BufferArea,
    layout: PoolLayout,
    /// The pool is the region's only user, and no other process can be one.
    is_alone: bool,
    states: Box<[BufState]>,
    /// The first `free_count` are free; the last of them goes first.
    free: Box<[Cell<u32>]>,
    free_count: Cell<u32>,
    low_water: Cell<u32>,
    counters: Cell<PoolCounters>,
}

impl Pool {
    /// A pool of buffers that others see too.
    #[must_use]
    pub fn new(area: BufferArea) -> Self {
        Self::with(area, false)
    }

    /// A pool that owns its region: if no other process can map it, the bytes can be lent.
    ///
    /// # Errors
    /// [`PoolError`]: the caller's settings.
    pub fn owning(region: Region, layout: PoolLayout) -> Result<Self, PoolError> {
        let area = BufferArea::new(&mut region.into_parts(), layout)?;
        let is_alone = area.is_private();
        Ok(Self::with(area, is_alone))
    }

    fn with(area: BufferArea, is_alone: bool) -> Self {
        let layout = area.layout();
        Self {
            is_alone,
            states: vec![BufState::default(); layout.count as usize].into(),
            // The last is given out first: the lowest index.
            free: (0..layout.count).rev().map(Cell::new).collect(),
            free_count: Cell::new(layout.count),
            low_water: Cell::new(layout.count),
            counters: Cell::default(),
            area,
            layout,
        }
    }

    /// A buffer with one use; its bytes are what they were. `None`: all are in use.
    #[inline]
    #[must_use]
    pub fn alloc(&self) -> Option<BufId> {
        let Some(left) = self.free_count.get().checked_sub(1) else {
            self.count(|counters| counters.exhausted += 1);
            return None;
        };
        self.free_count.set(left);
        self.low_water.set(self.low_water.get().min(left));
        let index = self.free[left as usize].get();
        self.states[index as usize].uses.set(1);
        self.count(|counters| counters.allocated += 1);
        Some(BufId::new(self.layout.tag, index))
    }

    /// Adds a use.
    ///
    /// # Errors
    /// [`BufError::Foreign`], [`BufError::NotInUse`], [`BufError::TooManyUses`],
    /// [`BufError::Lent`] (a [`Writer`] has it).
    #[inline]
    pub fn share(&self, buf: BufId) -> Result<(), BufError> {
        let state = self.state(buf)?;
        if state.lent_bytes.get() == WITH_WRITER {
            return Err(self.refused(BufError::Lent(buf)));
        }
        let uses = state.uses.get().checked_add(1).ok_or(BufError::TooManyUses(buf))?;
        state.uses.set(uses);
        Ok(())
    }

    /// Takes a use away; the last one gives the buffer back.
    ///
    /// # Errors
    /// [`BufError::Foreign`], [`BufError::NotInUse`] (freed twice), [`BufError::Lent`] (a
    /// [`Writer`] has it).
    #[inline]
    pub fn free(&self, buf: BufId) -> Result<(), BufError> {
        let state = self.state(buf)?;
        if state.lent_bytes.get() == WITH_WRITER {
            return Err(self.refused(BufError::Lent(buf)));
        }
        state.uses.set(state.uses.get() - 1);
        self.free_if_unused(buf.index(), state);
        Ok(())
    }

    /// Copies `from` into a buffer.
    ///
    /// # Errors
    /// [`BufError`]; nothing was copied.
    #[inline]
    pub fn copy_in(&self, buf: BufId, offset: u32, from: &[u8]) -> Result<(), BufError> {
        let to = self.range(buf, offset, from.len())?;
        let lent_bytes = self.states[buf.index() as usize].lent_bytes.get();
        if lent_bytes > offset {
            return Err(self.refused(BufError::Lent(buf)));
        }
        // SAFETY: `range` has checked that these bytes lie in the buffer. No reference to them
        // exists: those of `lend` lie below `lent_bytes`, a writer's buffer has been refused above,
        // so `from` is elsewhere too.
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
        if self.states[buf.index() as usize].lent_bytes.get() == WITH_WRITER {
            return Err(self.refused(BufError::Lent(buf)));
        }
        // SAFETY: `range` has checked that these bytes lie in the buffer; no exclusive reference to
        // them exists, because a writer's buffer has been refused, so `to` is elsewhere.
        unsafe { bytes::copy_out(from.as_ptr(), to) };
        Ok(())
    }

    /// Whether `len` bytes at `offset` lie in `buf` and the buffer is in use: what a record from
    /// the other end is checked against.
    ///
    /// # Errors
    /// [`BufError::Foreign`], [`BufError::NotInUse`], [`BufError::OutOfBuf`].
    #[inline]
    pub fn check(&self, buf: BufId, offset: u32, len: u32) -> Result<(), BufError> {
        self.range(buf, offset, len as usize).map(|_| ())
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

    /// What the region's memory is made of.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.area.backing()
    }

    /// Buffers that are free now.
    #[inline]
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.free_count.get()
    }

    /// The fewest that ever were.
    #[must_use]
    pub fn low_water_count(&self) -> u32 {
        self.low_water.get()
    }

    /// What was counted since the pool was made.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        self.counters.get()
    }

    /// The state of a buffer that has a use by its id.
    #[inline]
    fn state(&self, buf: BufId) -> Result<&BufState, BufError> {
        let state = self.states.get(buf.index() as usize);
        let Some(state) = state.filter(|_| buf.tag() == self.layout.tag) else {
            return Err(self.refused(BufError::Foreign(buf)));
        };
        if state.uses.get() == 0 {
            return Err(self.refused(BufError::NotInUse(buf)));
        }
        Ok(state)
    }

    /// The address of a range of a buffer in use.
    #[inline]
    fn range(&self, buf: BufId, offset: u32, len: usize) -> Result<NonNull<u8>, BufError> {
        self.state(buf)?;
        let start = offset as usize;
        let buf_bytes = self.layout.buf_bytes;
        if start > buf_bytes || len > buf_bytes - start {
            return Err(self.refused(BufError::OutOfBuf { offset, len }));
        }
        // SAFETY: `state` has found the index among as many states as there are buffers, and the
        // range lies in its buffer.
        Ok(unsafe { self.area.address(buf.index(), start) })
    }

    /// Gives a buffer back whose last use has just ended.
    #[inline]
    fn free_if_unused(&self, index: u32, state: &BufState) {
        if state.uses.get() > 0 || state.lends.get() > 0 {
            return;
        }
        state.lent_bytes.set(0);
        let free_count = self.free_count.get();
        // As many places as buffers, and this one was on none of them.
        self.free[free_count as usize].set(index);
        self.free_count.set(free_count + 1);
        self.count(|counters| counters.freed += 1);
    }

    #[cold]
    fn refused(&self, error: BufError) -> BufError {
        self.count(|counters| counters.refused += 1);
        error
    }

    #[inline]
    fn count(&self, change: impl FnOnce(&mut PoolCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }
}

#[cfg(test)]
mod tests;
