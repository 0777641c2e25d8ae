//! Pipes, FIFOs, terminals, devices, event descriptors: `read` and `write` without a socket's
//! MSG_DONTWAIT.
//!
//! Read first: pipe(7) for PIPE_BUF, readv(2) for RWF_NOWAIT, tty(4).
//!
//! These descriptors may be blocking and shared with other processes (a terminal with the shell),
//! so their flags are never changed. RWF_NOWAIT does what O_NONBLOCK would, for one call; pipes,
//! eventfds, timerfds and signalfds know it, on recent kernels. The rest is polled right before
//! each call, and written in pieces for which a poll's yes is enough. What remains is a reader in
//! another process that takes the input between our poll and our read.
//!
//! Invariant: `flags.readable` (`writable`) is false only while the set is armed for input
//! (output), or while a helper thread reads (writes).

use std::io;
use std::io::IoSliceMut;
use std::os::fd::AsFd;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, read, write};

use super::Epoll;
use super::stream::{SendOutcome, fill, gather, no_parts};
use crate::error::OpError;
use crate::limits::{PLAIN_READ_BYTES_MAX, POLL_BYTES_MAX};
use crate::slot::{Kind, Slot, SlotPhase, WatchedEvents, WriteOp};
use crate::state::State;

/// The descriptor's own position, or none at all.
pub(super) const CURRENT_POSITION: u64 = u64::MAX;

/// What a pipe that polls as writable takes without blocking (POSIX's PIPE_BUF on Linux).
const PIPE_PIECE_BYTES: usize = libc::PIPE_BUF;
/// The same for terminals, which buffer 256 bytes at least, with each newline becoming two.
const DEVICE_PIECE_BYTES: usize = 128;

impl Epoll {
    /// Finds out whether the set takes the descriptor; disk files and some devices it refuses.
    pub(super) fn attach_plain(&mut self, state: &mut State, slot: u32) -> io::Result<()> {
        let entry = state.slot(slot);
        entry.flags.readable = true;
        entry.flags.writable = true;
        let Some(fd) = entry.fd.as_ref() else { return Ok(()) };
        let data = entry.handle.in_channel();
        entry.flags.watch = match self.set.add(fd.as_fd(), data, EventFlags::ONESHOT) {
            Ok(()) => WatchedEvents::OneShot,
            Err(Errno::PERM) => WatchedEvents::Refused,
            Err(errno) => return Err(errno.into()),
        };
        // Of the kinds without a type in their mode (eventfd, timerfd, epoll and so on), a signalfd
        // is one, and a set may have one in it.
        let mode = fstat(fd)?.st_mode;
        self.shows_by_thread |= FileType::from_raw_mode(mode) == FileType::Unknown;
        Ok(())
    }

    /// Reads for the reads that wait.
    pub(super) fn read_plain(&mut self, state: &mut State, slot: u32) {
        let mut budget = POLL_BYTES_MAX;
        loop {
            let entry = state.peek(slot);
            let Some(waiting) = entry.first_read else { break };
            let want = waiting.len as usize;
            if !entry.flags.readable {
                return;
            }
            if budget == 0 {
                return self.enqueue(state, slot);
            }
            if entry.flags.watch == WatchedEvents::Refused {
                budget = budget.saturating_sub(self.read_file(state, slot, want));
                continue;
            }
            state.counters.system_calls += 1;
            state.counters.kernel_requests += 1;
            let got = fill(state, want.min(PLAIN_READ_BYTES_MAX), |state, room| {
                read_now(state.peek(slot), room)
            });
            match got {
                Ok(bytes) => {
                    budget = budget.saturating_sub(bytes.len().max(1));
                    state.answer_one(slot, Ok(bytes));
                }
                Err(Errno::AGAIN) => state.slot(slot).flags.readable = false,
                Err(Errno::INTR) => {}
                Err(errno) => state.answer_one(slot, Err(errno.into())),
            }
        }
        state.slot(slot).flags.reading = false;
    }

    /// Writes from the head of the slot's writes.
    pub(super) fn write_plain(&mut self, state: &mut State, slot: u32) -> SendOutcome {
        let entry = state.peek(slot);
        if entry.flags.watch == WatchedEvents::Refused {
            return self.write_file(state, slot);
        }
        let Some(head) = state.writes.front(entry.writes) else { return SendOutcome::Bytes(0) };
        let written = write_now(entry, head);
        state.counters.system_calls += 1;
        state.counters.kernel_requests += 1;
        match written {
            Ok(count @ 1..) => {
                state.on_sent(slot, count);
                return SendOutcome::Bytes(count);
            }
            Ok(_) => state.on_send_failed(slot, OpError::NoSpace),
            Err(Errno::AGAIN) => {
                state.slot(slot).flags.writable = false;
                return SendOutcome::NoRoom;
            }
            Err(Errno::INTR) => {}
            Err(errno) => state.on_send_failed(slot, errno.into()),
        }
        SendOutcome::Bytes(0)
    }

    /// Asks for one event, for what was tried in vain.
    pub(super) fn arm(&mut self, state: &mut State, slot: u32) {
        let entry = state.peek(slot);
        let flags = entry.flags;
        if flags.watch != WatchedEvents::OneShot || entry.phase != SlotPhase::Open {
            return;
        }
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, flags.reading && !flags.readable);
        events.set(EventFlags::OUT, flags.writing && !flags.writable);
        let Some(fd) = entry.fd.as_ref().filter(|_| !events.is_empty()) else { return };
        let data = entry.handle.in_channel();
        let armed = self.set.modify(fd.as_fd(), data, events | EventFlags::ONESHOT);
        state.counters.system_calls += 1;
        if let Err(errno) = armed {
            // Out of kernel memory: better an error than a wait without end.
            self.fail_plain(state, slot, errno.into());
        }
    }

    fn fail_plain(&mut self, state: &mut State, slot: u32, error: OpError) {
        let flags = &mut state.slot(slot).flags;
        if !flags.readable {
            flags.readable = true;
            state.answer_one(slot, Err(error));
        }
        let flags = &mut state.slot(slot).flags;
        if !flags.writable {
            flags.writable = true;
            state.on_send_failed(slot, error);
        }
        self.enqueue(state, slot);
    }
}

const fn is_unknown(errno: Errno) -> bool {
    matches!(errno.raw_os_error(), libc::EOPNOTSUPP | libc::ENOSYS)
}

fn read_now(slot: &Slot, room: &mut [u8]) -> Result<usize, Errno> {
    let fd = slot.fd.as_ref().ok_or(Errno::BADF)?;
    let mut parts = [IoSliceMut::new(room)];
    match preadv2(fd, &mut parts, CURRENT_POSITION, ReadWriteFlags::NOWAIT) {
        Err(errno) if is_unknown(errno) => {}
        other => return other,
    }
    ask_first(slot, PollFlags::IN)?;
    read(fd, room)
}

fn write_now(slot: &Slot, head: &WriteOp) -> Result<usize, Errno> {
    let fd = slot.fd.as_ref().ok_or(Errno::BADF)?;
    let mut parts = no_parts();
    let (part_count, _) = gather(std::iter::once(head), &mut parts);
    match pwritev2(fd, &parts[..part_count], CURRENT_POSITION, ReadWriteFlags::NOWAIT) {
        Err(errno) if is_unknown(errno) => {}
        other => return other,
    }
    ask_first(slot, PollFlags::OUT)?;
    let piece_bytes = match slot.kind {
        Kind::Pipe => PIPE_PIECE_BYTES,
        Kind::CharDevice => DEVICE_PIECE_BYTES,
        _ => usize::MAX,
    };
    write(fd, &parts[0][..parts[0].len().min(piece_bytes)])
}

/// "Not now" unless a poll says that the call will not block.
fn ask_first(slot: &Slot, events: PollFlags) -> Result<(), Errno> {
    let fd = slot.fd.as_ref().ok_or(Errno::BADF)?;
    let mut asked = [PollFd::new(fd, events)];
    match poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
        0 => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}
