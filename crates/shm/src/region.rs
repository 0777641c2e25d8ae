//! Memory that can be shared: on the heap, in huge pages, or in a sealed memfd.
//!
//! Read first: `memfd_create(2)` and "File sealing" in `fcntl(2)`; `docs/UNSAFE.md`, "Memory that
//! somebody else writes"; `bytes.rs`.
//!
//! ```text
//!  creator                                   the other process
//!  Region::memfd(name, bytes)                Region::from_fd(fd, bytes)
//!    memfd_create, ftruncate, seal, mmap       seals? size? file system? then mmap
//!    fd() ---------- SCM_RIGHTS ------------>
//! ```
//!
//! Invariants
//! - A region's address and size never change, and it is unmapped when its last owner goes.
//! - The file behind a mapping can be neither shortened nor lengthened by anybody, so no access
//!   within bounds ever raises SIGBUS.
//! - Every access is bounds-checked, and tolerates that the memory changes at any moment. There is
//!   no safe way to a `&[u8]` into a region that others may write.
//! - Fresh memory is zero.

mod backing;
mod mapping;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::bytes::{self, Plain};
use crate::limits;

pub use backing::{Backing, TransparentRefusal};
use mapping::Mapping;

/// A range of memory that other threads, and with a descriptor other processes, may see and write.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    backing: Backing,
    fd: Option<OwnedFd>,
}

/// Why there is no region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The caller asked for no bytes or for too many.
    #[error("a region has 1 to {} bytes, not {bytes}", limits::REGION_BYTES_MAX)]
    Size {
        /// What was asked for.
        bytes: usize,
    },
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
    /// The other side's descriptor is no memfd that can be sealed.
    #[error("the descriptor received is no memfd in small pages")]
    NotMemfd,
    /// The other side's memfd could change its size under us.
    #[error("the memfd received lacks seals: it has {found:#x} and needs {needed:#x}")]
    NotSealed {
        /// The seals that it has (`F_SEAL_…`).
        found: u32,
        /// The seals that it must have.
        needed: u32,
    },
    /// The other side's memfd has another size than was agreed on.
    #[error("the memfd received has {found} bytes instead of {agreed}")]
    OtherSize {
        /// Its size in bytes.
        found: u64,
        /// The size agreed on.
        agreed: usize,
    },
}

/// An access that does not lie in its region, or not on its alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} do not lie in a region of {bytes}, or not aligned")]
pub struct OutOfRegion {
    /// Where the access starts.
    pub offset: usize,
    /// How long it is.
    pub len: usize,
    /// The region's size.
    pub bytes: usize,
}

impl Region {
    /// Anonymous memory in pages of the usual size. Other processes cannot see it.
    ///
    /// `bytes` is rounded up to whole pages. The pages are taken from the system when they are
    /// first touched. Does not block.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::System`].
    pub fn heap(bytes: usize) -> Result<Self, RegionError> {
        let bytes = rounded(bytes, limits::PAGE_BYTES)?;
        Ok(Self { mapping: Mapping::anonymous(bytes)?, backing: Backing::Heap, fd: None })
    }

    /// Anonymous memory in huge pages if there are any, else with transparent huge pages, else in
    /// usual ones: [`Region::backing`] says which, and why not better.
    ///
    /// `bytes` is rounded up to whole huge pages.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::System`] when there is no memory at all.
    pub fn huge(bytes: usize) -> Result<Self, RegionError> {
        let bytes = rounded(bytes, limits::HUGE_PAGE_BYTES)?;
        let (mapping, backing) = backing::hugest(bytes)?;
        Ok(Self { mapping, backing, fd: None })
    }

    /// Memory in a memfd, sealed against any change of size, for another process to map.
    ///
    /// `name` shows up in `/proc/PID/maps`. `bytes` is rounded up to whole pages.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::System`].
    pub fn memfd(name: &str, bytes: usize) -> Result<Self, RegionError> {
        let bytes = rounded(bytes, limits::PAGE_BYTES)?;
        let fd = backing::sealed_memfd(name, bytes)?;
        let mapping = Mapping::shared(&fd, bytes)?;
        Ok(Self { mapping, backing: Backing::Memfd, fd: Some(fd) })
    }

    /// Maps what another process created, if it is what was agreed on: a memfd of exactly `bytes`
    /// (rounded up to whole pages) whose size nobody can change any more.
    ///
    /// # Errors
    /// [`RegionError::NotMemfd`], [`RegionError::NotSealed`] and [`RegionError::OtherSize`] are the
    /// other side's fault; [`RegionError::System`] and [`RegionError::Size`] ours.
    pub fn from_fd(fd: OwnedFd, bytes: usize) -> Result<Self, RegionError> {
        let bytes = rounded(bytes, limits::PAGE_BYTES)?;
        backing::check_received(&fd, bytes)?;
        let mapping = Mapping::shared(&fd, bytes)?;
        Ok(Self { mapping, backing: Backing::Memfd, fd: Some(fd) })
    }

    /// Its size in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// What the memory is made of, and what was not to be had.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The descriptor to hand to another process; `None` if the memory cannot be shared with one.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing was written.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        let to = self.place(offset, from.len(), 1)?;
        // SAFETY: `place` has checked the range; `from` lies elsewhere, because the only references
        // into a region (`pool/lent.rs`) are into one that its pool has to itself.
        unsafe { bytes::copy_in(from, to.as_ptr()) };
        Ok(())
    }

    /// Copies what is at `offset` to `to`. Bytes that somebody writes meanwhile are each the old or
    /// the new one.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing was read.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfRegion> {
        let from = self.place(offset, to.len(), 1)?;
        // SAFETY: as in `write`.
        unsafe { bytes::copy_out(from.as_ptr(), to) };
        Ok(())
    }

    /// Says that `len` bytes at `offset` will be read soon: where another core wrote them, they
    /// come while something else is done. A hint: out of bounds nothing happens.
    #[inline]
    pub fn expect(&self, offset: usize, len: usize) {
        let Ok(first) = self.place(offset, len, 1) else { return };
        for line in (0..len).step_by(limits::LINE_BYTES) {
            bytes::expect_line(first.as_ptr().wrapping_add(line));
        }
    }

    /// The same for bytes that will be written.
    #[inline]
    pub fn expect_to_write(&self, offset: usize, len: usize) {
        let Ok(first) = self.place(offset, len, 1) else { return };
        for line in (0..len).step_by(limits::LINE_BYTES) {
            bytes::expect_line_to_write(first.as_ptr().wrapping_add(line));
        }
    }

    /// Puts a value at `offset`, a multiple of 8.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing was written.
    #[inline]
    pub fn store<T: Plain>(&self, offset: usize, value: &T) -> Result<(), OutOfRegion> {
        let words = self.place(offset, size_of::<T>(), align_of::<u64>())?;
        // SAFETY: `place` has checked range and alignment, and the mapping lives as long as `self`.
        unsafe { bytes::store(words.as_ptr().cast::<AtomicU64>(), value) };
        Ok(())
    }

    /// Takes a value out from `offset`, a multiple of 8.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing was read.
    #[inline]
    pub fn load<T: Plain>(&self, offset: usize) -> Result<T, OutOfRegion> {
        let words = self.place(offset, size_of::<T>(), align_of::<u64>())?;
        // SAFETY: as in `store`.
        Ok(unsafe { bytes::load(words.as_ptr().cast::<AtomicU64>()) })
    }

    /// The atomic at `offset`, a multiple of 4.
    ///
    /// # Errors
    /// [`OutOfRegion`].
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, OutOfRegion> {
        let place = self.place(offset, 4, 4)?;
        // SAFETY: mapped for as long as `self` lives, which the reference does not outlive, aligned
        // and within bounds; and whoever writes it, the program's own accesses here are atomic or
        // made by code that the compiler does not see.
        Ok(unsafe { AtomicU32::from_ptr(place.as_ptr().cast()) })
    }

    /// The atomic at `offset`, a multiple of 8.
    ///
    /// # Errors
    /// [`OutOfRegion`].
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OutOfRegion> {
        let place = self.place(offset, 8, 8)?;
        // SAFETY: as in `atomic_u32`.
        Ok(unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) })
    }

    /// The address of a range, if it lies in the region and on its alignment.
    #[inline]
    pub(crate) fn place(
        &self,
        offset: usize,
        len: usize,
        align: usize,
    ) -> Result<NonNull<u8>, OutOfRegion> {
        let bytes = self.bytes();
        let fits = offset <= bytes && len <= bytes - offset && offset.is_multiple_of(align);
        if !fits {
            return Err(OutOfRegion { offset, len, bytes });
        }
        // SAFETY: `offset` is at most the mapping's size, so this stays in it or one past its end.
        Ok(unsafe { self.mapping.base().add(offset) })
    }

    /// Nobody but the owner of this value can reach the memory: no descriptor of it exists.
    pub(crate) fn is_private(&self) -> bool {
        self.fd.is_none()
    }
}

/// A size that can be mapped.
fn rounded(bytes: usize, page_bytes: usize) -> Result<usize, RegionError> {
    if bytes == 0 || bytes > limits::REGION_BYTES_MAX {
        return Err(RegionError::Size { bytes });
    }
    Ok(bytes.next_multiple_of(page_bytes))
}

#[cfg(test)]
mod tests;
