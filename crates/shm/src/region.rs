//! Memory that can be shared: on the heap, or in a sealed memfd.
//!
//! Read first: `memfd_create(2)` and "File sealing" in `fcntl(2)`; `docs/UNSAFE.md`, "Memory that
//! another process writes"; `bytes.rs`.
//!
//! ```text
//!  creator                                   the other process
//!  Region::memfd(name, bytes)                Region::from_fd(fd, bytes)
//!    memfd_create, ftruncate, seal, mmap       seals? size? file system? then mmap
//!    fd() ---------- SCM_RIGHTS ------------>
//!    seal_region(fd) <-------------------------  mapped
//! ```
//!
//! Invariants
//! - A region's address and size never change, and it is unmapped when its last owner goes.
//! - The file behind a mapping can be neither shortened nor lengthened by anybody, so no access
//!   within bounds ever raises SIGBUS.
//! - The memory is reached only through its parts ([`RegionParts`]), which do not overlap and are
//!   of one kind each: atomics of one size, or bytes. So no two accesses of different sizes meet.
//! - Every access is bounds-checked, and tolerates that the memory changes at any moment. There is
//!   no safe way to a `&[u8]` into a region that others may write.
//! - Fresh memory is zero.

mod mapping;
mod memfd;
mod parts;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::limits;

use mapping::Mapping;
pub(crate) use parts::Part;
pub use parts::RegionParts;

/// A range of memory that other threads, and with a descriptor other processes, may see and write.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
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

/// A part that does not fit into what is left of its region, or an access that does not lie in its
/// part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} do not lie in {bytes}")]
pub struct OutOfRegion {
    /// Where it starts.
    pub offset: usize,
    /// How long it is.
    pub len: usize,
    /// The size of the region, or of the part.
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
        let bytes = rounded(bytes)?;
        Ok(Self { mapping: Mapping::anonymous(bytes)?, fd: None })
    }

    /// Memory in a memfd, sealed against any change of size, for another process to map.
    ///
    /// `name` shows up in `/proc/PID/maps`. `bytes` is rounded up to whole pages.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::System`].
    pub fn memfd(name: &str, bytes: usize) -> Result<Self, RegionError> {
        let bytes = rounded(bytes)?;
        let fd = memfd::sealed_memfd(name, bytes)?;
        let mapping = Mapping::shared(&fd, bytes)?;
        Ok(Self { mapping, fd: Some(fd) })
    }

    /// Maps what another process created, if it is what was agreed on: a memfd of exactly `bytes`
    /// (rounded up to whole pages) whose size is sealed.
    ///
    /// # Errors
    /// [`RegionError::NotMemfd`], [`RegionError::NotSealed`] and [`RegionError::OtherSize`] are the
    /// other side's fault; [`RegionError::System`] and [`RegionError::Size`] ours.
    pub fn from_fd(fd: OwnedFd, bytes: usize) -> Result<Self, RegionError> {
        let bytes = rounded(bytes)?;
        memfd::check_received(&fd, bytes)?;
        let mapping = Mapping::shared(&fd, bytes)?;
        Ok(Self { mapping, fd: Some(fd) })
    }

    /// Its size in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// The descriptor to hand to another process; `None` if the memory cannot be shared with one.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Takes the pages of `bytes` at `offset` from the system now, as far as the region goes, so
    /// that later accesses do not fault. Does nothing before Linux 5.14.
    pub fn populate(&self, offset: usize, bytes: usize) {
        self.mapping.populate(offset.min(self.bytes()), bytes);
    }

    /// Keeps the memory from children of a fork: in a child its addresses are not mapped, and an
    /// access ends the child with SIGSEGV. The other mappings of the same memory are not changed.
    ///
    /// # Errors
    /// [`RegionError::System`].
    pub fn keep_from_children(&mut self) -> Result<(), RegionError> {
        let kept = self.mapping.keep_from_children();
        kept.map_err(|errno| RegionError::System { call: "madvise(MADV_DONTFORK)", errno })
    }

    /// Begins to hand out its parts, each of which goes to one user. The parts keep it mapped.
    #[must_use]
    pub fn into_parts(self) -> RegionParts {
        RegionParts::new(self)
    }

    /// The atomic at `offset`, for tests that play a dishonest other end.
    #[cfg(test)]
    pub(crate) fn raw<A>(&self, offset: usize) -> &A {
        let end = offset + size_of::<A>();
        assert!(end <= self.bytes() && offset.is_multiple_of(align_of::<A>()));
        // SAFETY: within bounds, as asserted.
        let place = unsafe { self.mapping.base().add(offset) };
        // SAFETY: mapped for as long as `self` lives, aligned and within bounds. The tests name
        // atomics of the size that the part has there.
        unsafe { place.cast::<A>().as_ref() }
    }
}

/// Seals the memfd of a region that all ends have mapped: it cannot be mapped for writing again,
/// and holes can no longer be punched into it. The mappings that exist stay writable.
///
/// # Errors
/// [`RegionError::System`].
pub fn seal_region(fd: BorrowedFd<'_>) -> Result<(), RegionError> {
    memfd::seal_last(fd)
}

/// A size that can be mapped.
fn rounded(bytes: usize) -> Result<usize, RegionError> {
    if bytes == 0 || bytes > limits::REGION_BYTES_MAX {
        return Err(RegionError::Size { bytes });
    }
    Ok(bytes.next_multiple_of(limits::PAGE_BYTES))
}

#[cfg(test)]
mod tests;
