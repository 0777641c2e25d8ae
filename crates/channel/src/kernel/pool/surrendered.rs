//! Surrendered owners: owners of buffers that are carried as numbers, counted in a table.
//!
//! Read first: `pool.rs`. The stack's chunks name the buffers that it sends from by number. The
//! table is the right to use such a number: without the table that counted the owner, a number
//! reads, frees and reclaims nothing.
//!
//! Invariant: a table never counts more owners of a buffer than are surrendered. The pool alone
//! changes its counts, and in step with the buffer's owners.

use super::held::BufferPoolId;

/// How many owners of each of a pool's buffers are surrendered, by index. Not cloned.
#[derive(Debug)]
pub(crate) struct SurrenderedTable {
    pool: BufferPoolId,
    counts: Box<[u32]>,
}

impl SurrenderedTable {
    pub(super) fn new(pool: BufferPoolId, buffer_count: u16) -> Self {
        Self { pool, counts: vec![0; usize::from(buffer_count)].into() }
    }

    /// It is for owners in this pool.
    #[inline(always)]
    pub(super) fn is_of(&self, pool: BufferPoolId) -> bool {
        self.pool == pool
    }

    /// Counts an owner that the pool has just surrendered. One that cannot be counted keeps its
    /// buffer taken.
    #[inline(always)]
    pub(super) fn add(&mut self, index: u16) {
        if let Some(count) = self.counts.get_mut(usize::from(index)) {
            *count = count.saturating_add(1);
        }
    }

    /// Takes an owner out. `false`: there is none for this number, or none of this pool.
    #[inline(always)]
    pub(super) fn take(&mut self, pool: BufferPoolId, index: u16) -> bool {
        let is_of = self.is_of(pool);
        match self.counts.get_mut(usize::from(index)) {
            Some(count) if is_of && *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    /// An owner of this buffer of `pool` is here.
    #[inline(always)]
    pub(super) fn has(&self, pool: BufferPoolId, index: u16) -> bool {
        self.is_of(pool) && self.counts.get(usize::from(index)).is_some_and(|count| *count > 0)
    }
}
