//! Interrupts for the peer: its event descriptor is raised without ever waiting.
//!
//! Read first: `eventfd(2)`, `io_submit(2)`; decision 0031 for what else was tried.
//!
//! Both sides share one open file description. The peer can clear `O_NONBLOCK` at any time and fill
//! the counter, so that a write(2) blocks until the counter is read. The kernel itself never
//! blocks: when an asynchronous operation completes, it adds one to the event descriptor named with
//! it, or nothing if the counter is full. So each interrupt is an operation that completes before
//! its call returns: a poll of our own, always readable descriptor.
//!
//! Invariant: whatever the peer does to what it shares with us, [`Interrupts::raise`] makes three
//! system calls at most, none of which waits.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A look whether a descriptor is readable or writable (`IOCB_CMD_POLL`).
const POLL: u16 = 5;
/// The operation's completion is signalled through `event_fd` (`IOCB_FLAG_RESFD`).
const TELLS_EVENT_FD: u32 = 1;
/// Ends of operations that are thrown away at once.
const ENDS: usize = 64;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct IoControlBlock {
    cookie: u64,
    /// Two fields of 32 bits, whose order is the machine's; the kernel writes into one of them.
    key_and_flags: u64,
    code: u16,
    priority: i16,
    fd: u32,
    /// Of [`POLL`]: for what.
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

const _: () = assert!(size_of::<IoControlBlock>() == 64 && align_of::<IoControlBlock>() == 8);

/// `struct io_event` of the same header.
type End = [u64; 4];

/// What raises interrupts.
#[derive(Debug)]
pub(super) struct Interrupts {
    /// The kernel's name of our context (`aio_context_t`).
    context: libc::c_ulong,
    /// Always readable.
    ready: OwnedFd,
}

impl Interrupts {
    /// # Errors
    /// The kernel has no asynchronous operations, gives us none, or no descriptor.
    pub(super) fn new() -> io::Result<Self> {
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the second argument is a pointer to a zeroed word that outlives the call.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 1_u32, &raw mut context) };
        if made != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { context, ready })
    }

    /// Adds one to the peer's event descriptor; one that is full wakes the peer all the same. How
    /// many system calls that took.
    pub(super) fn raise(&mut self, peer: BorrowedFd<'_>) -> u64 {
        if self.submit(peer) {
            return 1;
        }
        // The ends of earlier operations have all the room there is.
        self.forget_ends();
        // After a fork the context is the parent's, and nothing is raised here.
        self.submit(peer);
        3
    }

    fn submit(&mut self, peer: BorrowedFd<'_>) -> bool {
        let mut operation = IoControlBlock {
            code: POLL,
            fd: self.ready.as_raw_fd().cast_unsigned(),
            buffer: libc::POLLIN as u64,
            flags: TELLS_EVENT_FD,
            event_fd: peer.as_raw_fd().cast_unsigned(),
            ..IoControlBlock::default()
        };
        let mut operations = [&raw mut operation];
        let (one, all): (libc::c_long, _) = (1, operations.as_mut_ptr());
        // SAFETY: one pointer to one operation, which the kernel reads, and writes one field of,
        // during the call alone; a look takes no memory of ours.
        let count = unsafe { libc::syscall(libc::SYS_io_submit, self.context, one, all) };
        count == 1
    }

    /// Discards the results of the operations.
    #[cold]
    fn forget_ends(&mut self) {
        let mut ends: [End; ENDS] = [[0; 4]; ENDS];
        let (at_least, at_most): (libc::c_long, _) = (0, ENDS as libc::c_long);
        let at_once = [0_u64; 2];
        // SAFETY: the kernel writes at most so many ends into the array, and reads a time of zero,
        // whichever way it counts; both outlive the call.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                at_least,
                at_most,
                ends.as_mut_ptr(),
                at_once.as_ptr(),
            )
        };
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // SAFETY: `self` owns the context exclusively, and no operation outlives its call.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn count(of: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(of, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    fn interrupts() -> (Interrupts, OwnedFd) {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        (
            Interrupts::new().expect("asynchronous operations"),
            eventfd(0, flags).expect("an eventfd"),
        )
    }

    #[test]
    fn each_adds_one_before_it_returns() {
        let (mut interrupts, peer) = interrupts();
        // Many more than there is room for ends.
        for _ in 0..5_000 {
            assert!((1..=3).contains(&interrupts.raise(peer.as_fd())));
            assert_eq!(count(&peer), 1);
        }
    }

    #[test]
    fn full_eventfd_counter_does_not_block_interrupt() {
        let (mut interrupts, peer) = interrupts();
        fcntl_setfl(&peer, OFlags::empty()).expect("clears the shared flag");
        rustix::io::write(&peer, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        for _ in 0..5_000 {
            interrupts.raise(peer.as_fd());
        }
        assert_eq!(count(&peer), u64::MAX, "and no further");
        interrupts.raise(peer.as_fd());
        assert_eq!(count(&peer), 1);
    }

    #[test]
    fn other_descriptors_are_not_rung() {
        let (mut interrupts, peer) = interrupts();
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        interrupts.raise(writer.as_fd());
        drop(writer);
        assert_eq!(rustix::io::read(&reader, &mut [0_u8; 8]), Ok(0), "nothing was written");
        interrupts.raise(peer.as_fd());
        assert_eq!(count(&peer), 1);
    }
}
