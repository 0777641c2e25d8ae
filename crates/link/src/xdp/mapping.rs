//! Mapped memory that is unmapped when it is dropped: the UMEM and the rings.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

/// One mapping, readable and writable.
#[derive(Debug)]
pub(super) struct RingMapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address and a length; it belongs to the process and not to a thread.
// What may be done with the memory is the holder's to say.
unsafe impl Send for RingMapping {}

// SAFETY: a shared reference gives only address and length; each access through the address has its
// own argument why no other thread accesses the same bytes.
unsafe impl Sync for RingMapping {}

impl RingMapping {
    /// Memory of this process alone, zeros.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours; it
        // is unmapped only by `drop`.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        Self::from_base(base, bytes)
    }

    /// A part of `fd` that is shared with the kernel.
    pub(super) fn shared(fd: impl AsFd, offset: u64, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, flags, fd, offset) }?;
        Self::from_base(base, bytes)
    }

    fn from_base(base: *mut core::ffi::c_void, bytes: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// How many bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `len` bytes from `offset` on, if all of them are inside.
    pub(super) fn locate(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.bytes {
            return None;
        }
        // SAFETY: `offset` is at most `bytes`: inside the mapping or one past it.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are those of the call that mapped it; only `drop` unmaps.
        // Holders of an address into the mapping also hold the mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}
