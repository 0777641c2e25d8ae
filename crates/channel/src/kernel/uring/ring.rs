//! The ring itself: submission and completion queue, the table of direct descriptors, and the
//! ring of receive buffers that the kernel takes from when bytes arrive.
//!
//! Read first: io_uring_setup(2), io_uring_register_buf_ring(3).
//!
//! Invariants
//! - Only the thread that made the ring enters it (SINGLE_ISSUER).
//! - Entries `tail..` of the buffer ring are ours to write; the kernel reads those before `tail`.
//!   `tail` is published once per batch, with Release.

use std::cell::OnceCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{BufRingEntry, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::capabilities::{Capabilities, TaskWork};
use crate::config::Config;
use crate::kernel::pool::Pool;

/// The one group of provided buffers.
pub(super) const BUFFER_GROUP: u16 = 0;

pub(super) struct KernelRing {
    // The three parts borrow `*owner`, which outlives them: see `drop`.
    submitter: ManuallyDrop<Submitter<'static>>,
    submissions: ManuallyDrop<SubmissionQueue<'static>>,
    completions: ManuallyDrop<CompletionQueue<'static>>,
    owner: NonNull<IoUring>,
    descriptor: RawFd,
    buffers: BufferRing,
    /// Rings when there is something to do, once a thread is to sleep on it.
    bell: OnceCell<OwnedFd>,
}

// SAFETY: what is not `Send` are pointers into the ring's mappings and to `*owner`. Both belong to
// this value, which is not cloned, and are used through `&mut self`, or through `&self` for system
// calls (the type is not `Sync`), so one thread at a time uses them; memory mapped by a process is
// the same on all of its threads. Of a thread that did not make the ring the kernel takes no entry
// (SINGLE_ISSUER, EEXIST), or takes it as any other where that flag is not set. The number of a
// registered ring means nothing or another ring on another thread: the kernel then takes entries
// that were published to that one, whose memory is kept from that moment on (see `push`).
unsafe impl Send for KernelRing {}

/// A ring with as many of the flags as `task_work` says.
pub(super) fn set_up(
    submission_entries: u32,
    completion_entries: u32,
    task_work: TaskWork,
) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(completion_entries).dontfork();
    match task_work {
        // Without TASKRUN_FLAG the crate's submit would never ask for deferred work to be run.
        TaskWork::DeferredDirect => {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            builder.setup_no_sqarray();
        }
        TaskWork::Deferred => {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        }
        TaskWork::Cooperative => {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        TaskWork::Interrupting => {}
    }
    if task_work != TaskWork::Interrupting {
        builder.setup_submit_all();
    }
    builder.build(submission_entries)
}

impl KernelRing {
    pub(super) fn new(config: &Config, capabilities: &Capabilities) -> io::Result<Self> {
        let ring =
            set_up(config.submission_entries, config.completion_entries, capabilities.task_work)?;
        if capabilities.direct_accept {
            ring.submitter().register_files_sparse(config.max_lwsockets)?;
        }
        let buffers = BufferRing::new(config.buffer_count, config.buffer_len)?;
        buffers.register(&ring)?;
        let descriptor = ring.as_raw_fd();
        let owner = NonNull::from(Box::leak(Box::new(ring)));
        // SAFETY: the box was just leaked, so it lives until `drop` takes it back, and nothing but
        // the three parts made here refers to it.
        let ring: &'static mut IoUring = unsafe { &mut *owner.as_ptr() };
        let (mut submitter, submissions, completions) = ring.split();
        // Saves looking the descriptor up in each system call; an old kernel goes without.
        let _ = submitter.register_ring_fd();
        Ok(Self {
            submitter: ManuallyDrop::new(submitter),
            submissions: ManuallyDrop::new(submissions),
            completions: ManuallyDrop::new(completions),
            owner,
            descriptor,
            buffers,
            bell: OnceCell::new(),
        })
    }

    /// Readable when there are answers, or work that makes some, since [`KernelRing::hush`].
    ///
    /// Not the ring itself: who polls a ring with deferred work is not woken by the work, only by
    /// the answers that come of it, which are made when the ring is entered.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match self.bell() {
            Ok(bell) => bell.as_fd(),
            // SAFETY: the descriptor is open as long as the ring, which only `drop` closes.
            Err(_) => unsafe { BorrowedFd::borrow_raw(self.descriptor) },
        }
    }

    fn bell(&self) -> io::Result<&OwnedFd> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell);
        }
        // It begins readable: what is there already rang no bell.
        let bell = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.submitter.register_eventfd(bell.as_raw_fd())?;
        Ok(self.bell.get_or_init(|| bell))
    }

    /// What rang the bell was looked at. Whether nothing came since answers were last fetched.
    pub(super) fn hush(&mut self) -> bool {
        let Some(bell) = self.bell.get() else { return true };
        // EAGAIN: it has not rung.
        let _ = rustix::io::read(bell, &mut [0; 8]);
        // What comes from here on rings again.
        self.completions.sync();
        self.completions.is_empty() && !self.submissions.taskrun()
    }

    /// Whether there are requests that the kernel has not been given.
    pub(super) fn has_unsubmitted(&mut self) -> bool {
        self.submissions.sync();
        !self.submissions.is_empty()
    }

    /// Whether the queue has room for a request.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        !self.submissions.is_full()
    }

    /// Puts a request into the queue; `false` if there is no room.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: &Entry) -> bool {
        // SAFETY: memory that the entry names stays where it is until its last answer: payloads
        // in the slot's write queue, vectors in `used_gathers`, the rest in `requests` (see the
        // places that build entries).
        unsafe { self.submissions.push(entry) }.is_ok()
    }

    /// Requests in the queue that the kernel has not taken.
    pub(super) fn queued(&mut self) -> usize {
        self.submissions.sync();
        self.submissions.len()
    }

    /// Hands over what is queued, and nothing else: answers are not made now (no GETEVENTS), so
    /// that the program's batch is not cut by the work that they are.
    pub(super) fn submit(&mut self) -> io::Result<usize> {
        self.submissions.sync();
        if self.submissions.cq_overflow() {
            // Answers that found no room are only brought in by a call that asks for them.
            return self.submitter.submit();
        }
        let count = self.submissions.len() as u32;
        // SAFETY: no flags and no argument: the call takes the queue's entries, whose memory is
        // kept as `push` says, and touches nothing else.
        unsafe { self.submitter.enter::<libc::sigset_t>(count, 0, 0, None) }
    }

    /// Submits, and waits for `want` answers, at most `timeout`.
    pub(super) fn submit_and_wait(
        &mut self,
        want: usize,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        self.submissions.sync();
        match timeout {
            Some(timeout) if want > 0 => {
                let timespec = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&timespec);
                self.submitter.submit_with_args(want, &args)
            }
            _ => self.submitter.submit_and_wait(want),
        }
    }

    /// Appends the answers that are there. Says whether the kernel had to keep some back.
    pub(super) fn fetch(&mut self, answers: &mut Vec<cqueue::Entry>) -> bool {
        self.completions.sync();
        answers.reserve(self.completions.len());
        let count = self.completions.fill(answers.spare_capacity_mut()).len();
        // SAFETY: `count` entries after the last one were written just now, inside the capacity.
        unsafe { answers.set_len(answers.len() + count) };
        // Makes the room that was read known to the kernel.
        self.completions.sync();
        self.submissions.cq_overflow()
    }

    /// Gives the kernel the receive buffers that are free.
    pub(super) fn lend_buffers(&mut self, pool: &Pool) {
        if pool.free_count() > 0 {
            self.buffers.lend(pool);
        }
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        // The registration would keep the ring open until the thread ends.
        let _ = self.submitter.unregister_ring_fd();
        // SAFETY: dropped once, here; the field is not used again.
        unsafe { ManuallyDrop::drop(&mut self.completions) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.submissions) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.submitter) };
        // SAFETY: the pointer came from `Box::leak` in `new`, and the parts that borrowed from it
        // are gone. The ring closes here, before `buffers` unmaps what it was registered with.
        drop(unsafe { Box::from_raw(self.owner.as_ptr()) });
    }
}

/// Receive buffers on a ring of the probe's.
pub(super) fn trial_buffers(ring: &IoUring, config: &Config) -> io::Result<BufferRing> {
    let buffers = BufferRing::new(config.buffer_count, config.buffer_len)?;
    buffers.register(ring)?;
    Ok(buffers)
}

/// Memory shared with the kernel: an array of buffer descriptors and, in the first one's unused
/// last field, the tail.
pub(super) struct BufferRing {
    entries: NonNull<BufRingEntry>,
    mapping_bytes: usize,
    mask: u16,
    tail: u16,
    buffer_len: u32,
}

// SAFETY: `entries` points to a mapping that belongs to this value, which is not cloned and writes
// it through `&mut self`; it means the same on every thread.
unsafe impl Send for BufferRing {}

/// Where the tail lies in the first entry: after address (8), length (4) and id (2).
const TAIL_OFFSET_BYTES: usize = 14;

impl BufferRing {
    fn new(entry_count: u16, buffer_len: usize) -> io::Result<Self> {
        assert!(entry_count.is_power_of_two());
        let mapping_bytes = usize::from(entry_count) * size_of::<BufRingEntry>();
        // SAFETY: a fresh anonymous private mapping at an address of the kernel's choice aliases
        // nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        let entries = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (mask, buffer_len) = (entry_count - 1, buffer_len as u32);
        Ok(Self { entries, mapping_bytes, mask, tail: 0, buffer_len })
    }

    fn register(&self, ring: &IoUring) -> io::Result<()> {
        let address = self.entries.as_ptr() as u64;
        let count = self.mask + 1;
        // SAFETY: the memory holds `count` zeroed entries, is page-aligned, and is unmapped only
        // when the ring that uses it is gone (`KernelRing` drops `ring` first).
        unsafe { ring.submitter().register_buf_ring_with_flags(address, count, BUFFER_GROUP, 0) }
    }

    pub(super) fn lend(&mut self, pool: &Pool) {
        let mut tail = self.tail;
        pool.lend_free(|index, address| {
            // SAFETY: the masked position is inside the mapping.
            let entry = unsafe { self.entries.add(usize::from(tail & self.mask)) }.as_ptr();
            // SAFETY: positions from the published tail on are not read by the kernel, and there
            // are never more buffers in the ring than entries, because each buffer is there
            // once. No other reference to the entry exists.
            let entry = unsafe { &mut *entry };
            entry.set_addr(address.as_ptr() as u64);
            entry.set_len(self.buffer_len);
            entry.set_bid(index);
            tail = tail.wrapping_add(1);
        });
        self.tail = tail;
        // SAFETY: the offset lies inside the first entry, in its unused last field.
        let tail_address = unsafe { self.entries.as_ptr().byte_add(TAIL_OFFSET_BYTES) };
        // SAFETY: the field is two bytes, aligned to two, and after registration is accessed only
        // as this atomic, here and by the kernel; `set_addr`, `set_len` and `set_bid` leave it
        // alone.
        let shared = unsafe { AtomicU16::from_ptr(tail_address.cast()) };
        // Release: the kernel's acquire load of the tail (io_ring_buffer_select) then sees the
        // entries written above.
        shared.store(tail, Ordering::Release);
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the ring that the kernel used it for is
        // closed already.
        let unmapped = unsafe { munmap(self.entries.as_ptr().cast(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
