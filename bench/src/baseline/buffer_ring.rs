//! A provided-buffer ring: receive buffers that the kernel takes in order and we give back.
//!
//! Layout (io_uring_register(2), `IORING_REGISTER_PBUF_RING`): a page-aligned array of 16-byte
//! entries, whose first entry's last two bytes double as the tail. We write entries at the tail
//! and publish them by storing the new tail with release ordering; the kernel reads it with
//! acquire.
//!
//! Invariant: a buffer belongs to the kernel from `give_back` + `publish` until a completion names
//! its index, and to us from then until the next `give_back` of it.

use io_uring::{Submitter, types::BufRingEntry};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::{
    ffi::c_void,
    io,
    ptr::{self, NonNull},
    slice,
    sync::atomic::{AtomicU16, Ordering},
};

/// Anonymous memory that is unmapped on drop.
struct AnonymousMapping {
    start: NonNull<c_void>,
    bytes: usize,
}

impl AnonymousMapping {
    fn new(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, unmapped once, and nothing borrows it:
        // it is reached only through the `BaselineBufferRing` that owns this value.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "an own mapping unmaps");
    }
}

/// The ring and its buffers.
pub(super) struct BaselineBufferRing {
    entries: AnonymousMapping,
    buffers: AnonymousMapping,
    buffer_bytes: usize,
    count: u16,
    /// Where the next buffer goes; ahead of the published tail until `publish`.
    tail: u16,
}

impl BaselineBufferRing {
    /// `count` buffers of `buffer_bytes` each, all given to the kernel under `group`.
    ///
    /// The caller must call [`unregister`](Self::unregister) before dropping it.
    pub(super) fn register(
        submitter: &Submitter<'_>,
        group: u16,
        count: u16,
        buffer_bytes: usize,
    ) -> io::Result<Self> {
        assert!(count.is_power_of_two(), "the kernel masks with count - 1");
        let entries = AnonymousMapping::new(usize::from(count) * size_of::<BufRingEntry>())?;
        let buffers = AnonymousMapping::new(usize::from(count) * buffer_bytes)?;
        let address = entries.start.as_ptr() as u64;
        // SAFETY: the memory holds `count` entries, is page-aligned, and lives until after
        // `unregister`, which the caller promises to call first.
        unsafe { submitter.register_buf_ring_with_flags(address, count, group, 0) }?;
        let mut ring = Self { entries, buffers, buffer_bytes, count, tail: 0 };
        for index in 0..count {
            ring.give_back(index);
        }
        ring.publish();
        Ok(ring)
    }

    /// Takes the ring from the kernel: from then on it writes to no buffer of it.
    pub(super) fn unregister(&self, submitter: &Submitter<'_>, group: u16) -> io::Result<()> {
        submitter.unregister_buf_ring(group)
    }

    /// The first `len` bytes of buffer `index`, which a completion has named.
    pub(super) fn received(&self, index: u16, len: usize) -> &[u8] {
        assert!(index < self.count, "the kernel names buffers that it was given");
        assert!(len <= self.buffer_bytes, "the kernel fills at most the buffer");
        let first = self.buffers.start.cast::<u8>().as_ptr();
        // SAFETY: index < count, so the buffer lies inside the mapping.
        let start = unsafe { first.add(usize::from(index) * self.buffer_bytes) };
        // SAFETY: in bounds by the assertions, initialised (zero pages or the kernel's bytes), and
        // not written while borrowed: the buffer is ours until `give_back`, which needs `&mut`.
        unsafe { slice::from_raw_parts(start, len) }
    }

    /// Puts buffer `index` at the tail, not yet visible to the kernel.
    pub(super) fn give_back(&mut self, index: u16) {
        assert!(index < self.count, "the kernel names buffers that it was given");
        let slot = usize::from(self.tail & (self.count - 1));
        let first = self.entries.start.cast::<BufRingEntry>().as_ptr();
        // SAFETY: slot < count, so the entry lies inside the mapping.
        let entry = unsafe { first.add(slot) };
        // SAFETY: in bounds, aligned (16 divides the page), initialised (zero pages), and ours:
        // the kernel reads only entries before the published tail. The tail field, which shares
        // the first entry's last two bytes, is not touched by the setters below.
        let entry = unsafe { &mut *entry };
        let offset_bytes = usize::from(index) * self.buffer_bytes;
        entry.set_addr(self.buffers.start.as_ptr() as u64 + offset_bytes as u64);
        entry.set_len(u32::try_from(self.buffer_bytes).unwrap_or(u32::MAX));
        entry.set_bid(index);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Lets the kernel see every buffer given back so far.
    pub(super) fn publish(&mut self) {
        let first = self.entries.start.cast::<BufRingEntry>().as_ptr();
        // SAFETY: the mapping starts with an entry, whose tail field this computes.
        let tail = unsafe { BufRingEntry::tail(first) };
        // SAFETY: the tail is two aligned bytes of the mapping, shared with the kernel, which
        // only reads them; every access of ours to these bytes is this atomic one.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // Release: pairs with the kernel's acquire load of the tail, so that it sees the entries
        // written above before it sees that they are there.
        tail.store(self.tail, Ordering::Release);
    }
}
