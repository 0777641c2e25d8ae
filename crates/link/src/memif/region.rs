//! A region: memory that the peer maps too, and may write at any moment.
//!
//! Read first: [`megapipe_shm::copy_in`] for why bytes are copied the way they are.
//!
//! Invariants
//! - A region is mapped whole from when it was made until it is dropped, and its file can not
//!   become shorter meanwhile (`F_SEAL_SHRINK`): no access inside it can fault.
//! - No reference to its bytes is ever made, but to atomics (`ring.rs`); everything else goes
//!   through range-checked copies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use megapipe_shm::{copy_in, copy_out, expect_line, expect_line_to_write};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::refusal::MemifRefusal;

/// `f_type` of hugetlbfs (`linux/magic.h`): a page of it that was punched out faults when the pool
/// is empty, so a client's huge pages can not be trusted to stay.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// How much of memory moves between two cores at a time.
const CACHE_LINE_BYTES: usize = 64;

/// One mapping.
#[derive(Debug)]
pub(super) struct MemifRegion {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is an address and a length. The mapping belongs to the process and not to a
// thread, and every access to it is an atomic or an opaque copy, whichever thread makes it.
unsafe impl Send for MemifRegion {}
// SAFETY: as above: through a shared reference only atomics and opaque copies are reached.
unsafe impl Sync for MemifRegion {}

impl MemifRegion {
    /// Makes memory of our own, to be offered to a server; zeros.
    pub(super) fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("megapipe-memif", flags)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&fd, bytes)?, fd))
    }

    /// Maps memory that a client offers, if it can not take it away again.
    pub(super) fn adopt(fd: &OwnedFd, bytes: u64) -> Result<Self, MemifRefusal> {
        let seals = rustix::fs::fcntl_get_seals(fd);
        let seals = seals.map_err(|_| MemifRefusal("a region must be a memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MemifRefusal("a region must be sealed against shrinking"));
        }
        let stat = rustix::fs::fstat(fd).map_err(|_| MemifRefusal("a region without a size"))?;
        if u64::try_from(stat.st_size).is_ok_and(|size| size < bytes) {
            return Err(MemifRefusal("a region is shorter than announced"));
        }
        let system =
            rustix::fs::fstatfs(fd).map_err(|_| MemifRefusal("a region must be a memfd"))?;
        if system.f_type as u64 == HUGETLBFS_MAGIC {
            return Err(MemifRefusal("a region must not be of huge pages"));
        }
        let bytes = usize::try_from(bytes).map_err(|_| MemifRefusal("invalid region size"))?;
        Self::map(fd, bytes).map_err(|_| MemifRefusal("a region can not be mapped"))
    }

    fn map(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours; it
        // is unmapped only by `drop`.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// Copies `private.len()` bytes from `offset`; `false`: they are not all inside the region.
    #[must_use]
    #[inline]
    pub(super) fn read(&self, offset: usize, private: &mut [u8]) -> bool {
        let Some(from) = self.locate(offset, private.len()) else { return false };
        // SAFETY: `locate` found the range inside the mapping, which lives as long as `self`;
        // `private` does not overlap it: a slice never points into a region.
        unsafe { copy_out(from.as_ptr(), private) };
        true
    }

    /// Copies `private` to `offset`; `false`: it does not all fit inside the region.
    #[must_use]
    #[inline]
    pub(super) fn write(&self, offset: usize, private: &[u8]) -> bool {
        let Some(to) = self.locate(offset, private.len()) else { return false };
        // SAFETY: `locate` found the range inside the mapping, which lives as long as `self` and is
        // writable; `private` does not overlap it: a slice never points into a region.
        unsafe { copy_in(private, to.as_ptr()) };
        true
    }

    /// Says that `len` bytes from `offset` on will be read soon: a hint, without any effect but on
    /// the cache. A range outside the region is passed over.
    #[inline(always)]
    pub(super) fn expect(&self, offset: usize, len: usize) {
        let Some(first) = self.locate(offset, len) else { return };
        let mut ahead = 0;
        while ahead < len {
            expect_line(first.as_ptr().wrapping_add(ahead));
            ahead += CACHE_LINE_BYTES;
        }
    }

    /// The same for the cache lines that the next `LINES` begin in, which will be written.
    #[inline(always)]
    pub(super) fn expect_to_write<const LINES: usize>(&self, offset: usize) {
        let Some(first) = self.locate(offset, LINES * CACHE_LINE_BYTES) else { return };
        for line in 0..LINES {
            expect_line_to_write(first.as_ptr().wrapping_add(line * CACHE_LINE_BYTES));
        }
    }

    /// The address of `len` bytes from `offset` on, if all of them are inside.
    #[inline(always)]
    pub(super) fn locate(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.bytes {
            return None;
        }
        // SAFETY: `offset` is at most `bytes`, so the address is inside the mapping or one past it.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for MemifRegion {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are those of `map`, still mapped: only `drop` unmaps them.
        // Holders of an address into the region also hold the region (`MemifRing`).
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests;
