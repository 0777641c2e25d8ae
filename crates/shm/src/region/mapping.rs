//! The mappings themselves.
//!
//! Invariants
//! - A mapping is readable and writable throughout, and stays where it is until it is dropped.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::{Pid, getpid};

use super::RegionError;
use crate::limits::PAGE_BYTES;

/// Mapped memory, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// The process that has the mapping, where children of a fork do not inherit it.
    owner: Option<Pid>,
}

// SAFETY: a mapping belongs to the process and not to a thread; what is done through its address is
// argued where it is done.
unsafe impl Send for Mapping {}
// SAFETY: as above. By shared reference only the address and the size can be read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed pages. `bytes` is a multiple of the page.
    #[cfg(not(miri))]
    pub(super) fn anonymous(bytes: usize) -> Result<Self, RegionError> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
        base.and_then(|base| Self::at(base, bytes))
            .map_err(|errno| RegionError::System { call: "mmap", errno })
    }

    /// Miri knows no mapping that is not the allocator's.
    #[cfg(miri)]
    pub(super) fn anonymous(bytes: usize) -> Result<Self, RegionError> {
        // SAFETY: `bytes` is not 0, as every caller has checked.
        let base = unsafe { std::alloc::alloc_zeroed(layout(bytes)) };
        let base = NonNull::new(base).expect("an interpreter has memory");
        Ok(Self { base, bytes, owner: None })
    }

    /// The pages of a descriptor, whose size the caller has checked and sealed.
    pub(super) fn shared(fd: &OwnedFd, bytes: usize) -> Result<Self, RegionError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; others who map the same pages
        // are allowed for by every access (`bytes.rs`).
        let base = unsafe { mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) };
        base.and_then(|base| Self::at(base, bytes))
            .map_err(|errno| RegionError::System { call: "mmap", errno })
    }

    fn at(base: *mut libc::c_void, bytes: usize) -> rustix::io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, bytes, owner: None })
    }

    #[inline]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Touches `bytes` from the page of `offset` on, as far as the mapping goes, so that no access
    /// faults later.
    pub(super) fn populate(&self, offset: usize, bytes: usize) {
        let advice = mm::Advice::LinuxPopulateWrite;
        let start = offset.min(self.bytes) / PAGE_BYTES * PAGE_BYTES;
        let bytes = bytes.saturating_add(offset - start).min(self.bytes - start);
        // SAFETY: `start` is at most the mapping's size, so this stays in it or one past its end.
        let first = unsafe { self.base.add(start) };
        // SAFETY: the advice covers a range of this mapping and changes no content.
        let populated = unsafe { mm::madvise(first.as_ptr().cast(), bytes, advice) };
        // Before Linux 5.14 there is no such advice: then the first accesses fault.
        let _ = populated;
    }

    /// Children of a fork do not inherit the mapping.
    pub(super) fn keep_from_children(&mut self) -> rustix::io::Result<()> {
        let advice = mm::Advice::LinuxDontFork;
        // SAFETY: the advice covers exactly this mapping and changes no content.
        unsafe { mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) }?;
        self.owner = Some(getpid());
        Ok(())
    }
}

impl Drop for Mapping {
    #[cfg(not(miri))]
    fn drop(&mut self) {
        // A child has no mapping there, or one of its own.
        if self.owner.is_some_and(|owner| owner != getpid()) {
            return;
        }
        // SAFETY: the mapping is ours alone, and every use of its address borrowed or owned this
        // value. The kernel refuses only what is no mapping, which this is.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }

    #[cfg(miri)]
    fn drop(&mut self) {
        // SAFETY: allocated in `anonymous` with this layout; nothing else makes a mapping there.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), layout(self.bytes)) };
    }
}

#[cfg(miri)]
fn layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, PAGE_BYTES).expect("sizes are checked")
}
