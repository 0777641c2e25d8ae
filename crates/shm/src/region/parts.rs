//! The parts of a region: handed out once each, in order, so that they cannot overlap.
//!
//! ```text
//!  region   | ring of ops | ring of events | bell | bell | buffers ... | (left) |
//!                                                         ^ the next part begins here
//! ```
//!
//! Both ends of a shared region hand out the same parts in the same order, of the sizes that they
//! agreed on. So both know where each part lies, and neither reads that from the region.
//!
//! Invariants
//! - No two parts of one [`RegionParts`] overlap, and a region has one [`RegionParts`].
//! - A part begins at a multiple of 128 bytes, and takes a multiple of that: no two parts share a
//!   pair of cache lines.
//! - One user has a [`Part`], and accesses it in one way: by atomics of the same size at the same
//!   places, or by the byte (`bytes.rs`). Both ends of a ring or a doorbell are one user.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{OutOfRegion, Region};
use crate::limits::LINE_PAIR_BYTES;

/// Hands out the parts of a region, from its start on. What it gives keeps the region mapped.
///
/// Each part can be had once: no ring overlaps another, and no bytes overlap an atomic.
///
/// ```
/// use megapipe_shm::{Region, RegionParts, doorbell, ring};
///
/// let mut parts: RegionParts = Region::heap(4096)?.into_parts();
/// let (mut producer, mut consumer) = ring::<u64>(&mut parts, 16)?;
/// let (sleeper, ringer) = doorbell(&mut parts)?;
/// producer.send(&[7])?;
/// assert!(!ringer.ring()?);
/// let mut records = [0];
/// assert_eq!((consumer.receive(&mut records)?, records), (1, [7]));
/// # drop(sleeper);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A region that was taken apart cannot be taken apart again:
///
/// ```compile_fail,E0382
/// let region = megapipe_shm::Region::heap(4096).unwrap();
/// let mut parts = region.into_parts();
/// let mut again = region.into_parts();
/// ```
///
/// and neither can what hands out the parts be copied:
///
/// ```compile_fail,E0599
/// let parts = megapipe_shm::Region::heap(4096).unwrap().into_parts();
/// let again = parts.clone();
/// ```
///
/// There is no other way to the memory: no atomic of one size can be had where another one, or a
/// record, lies.
///
/// ```compile_fail,E0599
/// let region = megapipe_shm::Region::heap(4096).unwrap();
/// let half = region.atomic_u32(4);
/// ```
///
/// ```compile_fail,E0599
/// let region = megapipe_shm::Region::heap(4096).unwrap();
/// region.write(0, &[1]);
/// ```
#[derive(Debug)]
pub struct RegionParts {
    region: Arc<Region>,
    next: usize,
}

/// A part: the memory from `start` on for `bytes`, which no other part overlaps.
#[derive(Debug)]
pub(crate) struct Part {
    /// Keeps the memory mapped.
    _region: Arc<Region>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: `start` points into the region, which is `Send + Sync` and kept by the value; how two
// threads may access the memory is argued where it is accessed.
unsafe impl Send for Part {}
// SAFETY: as above. By shared reference only the address and the size can be read.
unsafe impl Sync for Part {}

impl RegionParts {
    pub(super) fn new(region: Region) -> Self {
        Self { region: Arc::new(region), next: 0 }
    }

    /// The next `bytes`, rounded up to a pair of cache lines.
    ///
    /// # Errors
    /// [`OutOfRegion`]: less is left; nothing was taken.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<Part, OutOfRegion> {
        let (offset, all) = (self.next, self.region.bytes());
        let rounded = bytes.checked_next_multiple_of(LINE_PAIR_BYTES);
        let Some(end) = rounded.and_then(|len| offset.checked_add(len)).filter(|end| *end <= all)
        else {
            return Err(OutOfRegion { offset, len: bytes, bytes: all });
        };
        self.next = end;
        // SAFETY: `offset` is at most the mapping's size, so this stays in it or one past its end.
        let start = unsafe { self.region.mapping.base().add(offset) };
        Ok(Part { _region: Arc::clone(&self.region), start, bytes: end - offset })
    }

    /// Bytes that are left, in whole pairs of cache lines.
    #[must_use]
    pub fn bytes_left(&self) -> usize {
        (self.region.bytes() - self.next) / LINE_PAIR_BYTES * LINE_PAIR_BYTES
    }

    /// The memory as it is, for tests that play a dishonest other end.
    #[cfg(test)]
    pub(crate) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }
}

impl Part {
    /// Where it begins: a multiple of 128 in its region, whose start is that of a page.
    #[inline]
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How long it is.
    #[inline]
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}
