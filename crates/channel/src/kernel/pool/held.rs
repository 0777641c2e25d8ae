//! Tokens of held buffers, and tables that exchange them for numbers.
//!
//! Read first: `pool.rs`. A held buffer is filled, or about to be, and has no owner yet. What can
//! carry only numbers (the stack's buffer ids, the queue of completions) leaves the token in a
//! [`HeldTable`] and gets it back for the buffer's index.
//!
//! Invariants
//! - A held buffer has exactly one [`HeldBuffer`]. The pool alone makes one, for a buffer that was
//!   free or that the kernel gave back; a table makes one for an index exactly if it took one in
//!   for it.
//! - A token is valid in the pool that made it and in no other: each checks.

use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a pool; no two pools of a process have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BufferPoolId(NonZeroU32);

impl BufferPoolId {
    /// One that no pool has.
    ///
    /// # Errors
    /// Four billion pools were made.
    pub(super) fn next() -> io::Result<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        // Relaxed: nothing is ordered by it.
        let next = |last: u32| last.checked_add(1);
        let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let id = last.ok().and_then(|last| NonZeroU32::new(last + 1));
        id.map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// The right to a held buffer: to fill it (from a [`HeldTable`]), to make an owner of it, or to
/// free it. Neither copied nor cloned; dropped, the buffer stays taken as long as the pool lives.
#[derive(Debug)]
#[must_use = "the buffer stays taken otherwise"]
pub(crate) struct HeldBuffer {
    pool: BufferPoolId,
    index: u16,
}

impl HeldBuffer {
    /// Makes a token. Only [`super::BufferMemory::token`] and [`HeldTable::take`] call it, and
    /// ensure that it is the only one of its buffer.
    #[inline(always)]
    pub(super) const fn new(pool: BufferPoolId, index: u16) -> Self {
        Self { pool, index }
    }

    /// The buffer's index, if the token is of this pool.
    #[inline(always)]
    pub(super) fn index_in(&self, pool: BufferPoolId) -> Option<u16> {
        (self.pool == pool).then_some(self.index)
    }
}

/// Tokens of one pool's buffers, by index.
#[derive(Debug)]
pub(crate) struct HeldTable {
    pool: BufferPoolId,
    /// By index: the token is here.
    is_here: Box<[bool]>,
}

impl HeldTable {
    pub(super) fn new(pool: BufferPoolId, buffer_count: u16) -> Self {
        Self { pool, is_here: vec![false; usize::from(buffer_count)].into() }
    }

    /// Takes a token in; the number that it is given out for. `None`: it is of another pool.
    #[inline(always)]
    pub(crate) fn put(&mut self, held: HeldBuffer) -> Option<u16> {
        let index = held.index_in(self.pool)?;
        *self.is_here.get_mut(usize::from(index))? = true;
        Some(index)
    }

    /// Gives a token out. `None`: it is not here, or not any more.
    #[inline(always)]
    pub(crate) fn take(&mut self, index: u16) -> Option<HeldBuffer> {
        let is_here = self.is_here.get_mut(usize::from(index)).filter(|is_here| **is_here)?;
        *is_here = false;
        Some(HeldBuffer::new(self.pool, index))
    }

    /// It is for tokens of this pool.
    #[cfg(feature = "local")]
    #[inline(always)]
    pub(super) fn is_of(&self, pool: BufferPoolId) -> bool {
        self.pool == pool
    }

    /// The token for `index` is here, and of a buffer of `pool`.
    #[cfg(feature = "local")]
    #[inline(always)]
    pub(super) fn has(&self, pool: BufferPoolId, index: u16) -> bool {
        self.is_of(pool) && self.is_here.get(usize::from(index)).is_some_and(|is_here| *is_here)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PoolOwner;
    use super::HeldBuffer;

    /// Has one implementation for every type, and another one for what can be cloned.
    trait IsAmbiguousForClones<A> {
        fn is_named() {}
    }
    impl<T> IsAmbiguousForClones<()> for T {}
    impl<T: Clone> IsAmbiguousForClones<u8> for T {}
    /// Does not compile if a token can be cloned: it is not known then which one is meant.
    const _: fn() = <HeldBuffer as IsAmbiguousForClones<_>>::is_named;

    #[test]
    fn number_is_exchanged_for_its_token_once() {
        let (pool, other) = (PoolOwner::new(64, 4).unwrap(), PoolOwner::new(64, 4).unwrap());
        for pool in [&pool, &other] {
            pool.lend_free(|_, _| {});
        }
        let mut table = pool.held_table();
        assert!(table.take(2).is_none(), "it was never put in");
        assert_eq!(table.put(pool.hold(2).unwrap()), Some(2));
        assert_eq!(table.put(other.hold(1).unwrap()), None, "it is of another pool");
        assert!(table.take(1).is_none() && table.take(4).is_none());
        let held = table.take(2).expect("it is here");
        assert!(table.take(2).is_none(), "it is given out once");
        assert_eq!(pool.adopt(held, 5).expect("it is held").len(), 5);
    }
}
