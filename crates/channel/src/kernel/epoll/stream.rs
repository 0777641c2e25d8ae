//! Byte streams: connecting, receiving when a read waits, sending what is queued, disconnecting.
//!
//! Read first: tcp(7), send(2), recv(2), connect(2) for EINPROGRESS.
//!
//! Invariants
//! - Bytes are received only when a read waits, and never more than it asked for: nothing is
//!   unread when a handle leaves.
//! - A TCP socket that gave less than asked for is empty, unless its end, an error or urgent data
//!   was announced (`flags.draining`): that saves the call that would only say "not now".

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg, shutdown, sockopt,
};

use super::Epoll;
use crate::address::sockaddr::RawAddress;
use crate::buffer::ReadBuf;
use crate::completion::Event;
use crate::error::OpError;
use crate::kernel::pool::UnsharedBytes;
use crate::kernel::sys;
use crate::limits::{GATHER_PARTS_MAX, POLL_BYTES_MAX};
use crate::options::Disconnect;
use crate::slot::{
    Body, Extra, Kind, Receiving, Slot, SlotPhase, StreamEnd, WatchedEvents, WriteOp,
};
use crate::state::State;

pub(super) const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// How a send went.
pub(super) enum SendOutcome {
    /// So many bytes went out, or the write failed and was completed.
    Bytes(usize),
    /// No room; an event will tell when there is.
    NoRoom,
    /// No room, and no event will tell.
    Later,
}

/// Puts what is unsent of `writes` into `parts`, as far as there is room. Returns how many parts
/// and bytes.
pub(super) fn gather<'a>(
    writes: impl Iterator<Item = &'a WriteOp>,
    parts: &mut [IoSlice<'a>; GATHER_PARTS_MAX],
) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for rest in writes.take_while(|write| write.is_data()).flat_map(WriteOp::unsent) {
        if count == GATHER_PARTS_MAX {
            break;
        }
        parts[count] = IoSlice::new(rest);
        count += 1;
        bytes += rest.len();
    }
    (count, bytes)
}

pub(super) fn no_parts<'a>() -> [IoSlice<'a>; GATHER_PARTS_MAX] {
    [IoSlice::new(&[]); GATHER_PARTS_MAX]
}

/// Memory for up to `want` bytes, filled by `fill`. From the pool, or, when the pool is empty or
/// its buffers are too small, from the heap: a read never waits for memory.
pub(super) fn fill(
    state: &mut State,
    want: usize,
    fill: impl FnOnce(&State, &mut [u8]) -> Result<usize, Errno>,
) -> Result<ReadBuf, Errno> {
    if want <= state.config.buffer_len {
        if let Some(mut buffer) = state.receive_pool.take() {
            let room = buffer.bytes_mut().get_mut(..want);
            let count = fill(state, room.unwrap_or_default())?;
            return Ok(ReadBuf::from_pool(buffer, count));
        }
        state.counters.buffers_exhausted += 1;
    }
    let mut memory = UnsharedBytes::zeroed(want).ok_or(Errno::NOMEM)?;
    let count = fill(state, memory.bytes_mut())?;
    Ok(ReadBuf::from_heap(memory, count))
}

impl Epoll {
    /// A socket that the channel has just got: it may be tried at once.
    pub(super) fn attach_socket(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        entry.flags.readable = true;
        entry.flags.writable = true;
        if entry.flags.lwsocket && entry.kind.is_stream() {
            self.lwsockets_open += 1;
        }
    }

    /// An lwsocket's descriptor leaves its slot.
    pub(super) fn count_out(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        if entry.flags.lwsocket && entry.kind.is_stream() && entry.fd.is_some() {
            self.lwsockets_open = self.lwsockets_open.saturating_sub(1);
        }
    }

    /// Receives for the reads that wait.
    pub(super) fn receive(&mut self, state: &mut State, slot: u32) {
        let mut budget = POLL_BYTES_MAX;
        while state.wants_data(slot) {
            if budget == 0 {
                return self.enqueue(state, slot);
            }
            if !state.peek(slot).flags.readable {
                match self.watch(state, slot, false) {
                    Ok(()) => return,
                    Err(error) => state.on_receive_end(slot, StreamEnd::Failed(error)),
                }
                continue;
            }
            budget = budget.saturating_sub(receive_once(state, slot));
        }
        state.slot(slot).receiving = Receiving::No;
    }

    /// Does what is at the head of the slot's writes, and what follows, as far as it goes.
    pub(super) fn next_write(&mut self, state: &mut State, slot: u32) {
        let mut budget = POLL_BYTES_MAX;
        loop {
            let entry = state.peek(slot);
            let Some(head) = state.writes.front(entry.writes) else { break };
            match &head.body {
                Body::Disconnect(how) => {
                    let how = *how;
                    self.disconnect(state, slot, how);
                    continue;
                }
                Body::ToFd => return self.move_out(state, slot),
                Body::One(_) | Body::Many(_) => {}
            }
            if budget == 0 {
                return self.enqueue(state, slot);
            }
            if !entry.flags.writable {
                return self.await_room(state, slot);
            }
            let sent = match entry.kind {
                kind if kind.is_stream() => self.send_bytes(state, slot),
                kind if kind.is_message() => self.send_message(state, slot),
                _ => self.write_plain(state, slot),
            };
            match sent {
                SendOutcome::Bytes(count) => budget = budget.saturating_sub(count.max(1)),
                SendOutcome::NoRoom => {}
                SendOutcome::Later => return self.retry_later(slot),
            }
        }
        state.slot(slot).flags.writing = false;
    }

    /// Nothing can be sent now: the set shall tell when.
    fn await_room(&mut self, state: &mut State, slot: u32) {
        if state.peek(slot).kind.is_plain() {
            // Asked for at the end of the poll (`arm`), or the answer of a helper thread comes.
            return;
        }
        if let Err(error) = self.watch(state, slot, true) {
            while state.writes.front(state.peek(slot).writes).is_some_and(WriteOp::is_data) {
                state.on_send_failed(slot, error);
            }
            self.enqueue(state, slot);
        }
    }

    /// Sends queued writes of a stream, many with one call.
    pub(super) fn send_bytes(&mut self, state: &mut State, slot: u32) -> SendOutcome {
        state.counters.system_calls += 1;
        state.counters.kernel_requests += 1;
        match send_once(state, state.peek(slot)) {
            Ok((count, is_all)) => {
                if !is_all {
                    state.slot(slot).flags.writable = false;
                }
                state.on_sent(slot, count);
                SendOutcome::Bytes(count)
            }
            // EINPROGRESS: Fast Open has no cookie any more, and the bytes wait for the handshake.
            Err(Errno::AGAIN | Errno::INPROGRESS) => {
                state.slot(slot).flags.writable = false;
                SendOutcome::NoRoom
            }
            Err(Errno::INTR) => SendOutcome::Bytes(0),
            Err(errno) => {
                state.slot(slot).flags.reset |= errno == Errno::CONNRESET;
                state.on_send_failed(slot, errno.into());
                SendOutcome::Bytes(0)
            }
        }
    }

    fn disconnect(&mut self, state: &mut State, slot: u32, how: Disconnect) {
        let what = if how == Disconnect::Write { Shutdown::Write } else { Shutdown::Both };
        state.counters.system_calls += 1;
        let result = match state.peek(slot).fd.as_ref().map(|fd| shutdown(fd, what)) {
            // Already closed by the peer: what was asked for is so.
            Some(Ok(()) | Err(Errno::NOTCONN)) => Ok(()),
            Some(Err(errno)) => Err(errno.into()),
            None => Err(OpError::BadDescriptor),
        };
        state.pop_control(slot);
        state.complete(slot, Event::Disconnect(result));
        if what == Shutdown::Both {
            self.expect_end(state, slot);
        }
    }

    /// The receiving direction has ended from this side: reads that wait shall see it.
    fn expect_end(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        entry.flags.readable = true;
        entry.flags.draining = true;
        if entry.receiving == Receiving::Yes || entry.flags.reading {
            self.enqueue(state, slot);
        }
    }

    /// Resets the connection: connecting to no address dissolves it with an RST.
    pub(super) fn reset(&mut self, state: &mut State, slot: u32) {
        state.counters.system_calls += 1;
        let fd = state.peek(slot).fd.as_ref();
        let result = match fd.map(|fd| sys::connect(fd.as_fd(), &RawAddress::UNSPECIFIED)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(OpError::from_io(&error)),
            None => Err(OpError::BadDescriptor),
        };
        // What was queued will never go out.
        state.on_send_failed(slot, OpError::Cancelled);
        state.complete(slot, Event::Disconnect(result));
        if state.peek(slot).phase == SlotPhase::Starting {
            // The attempt to connect ends with it; its own event says so.
            return;
        }
        self.expect_end(state, slot);
        if !state.peek(slot).writes.is_empty() {
            self.enqueue(state, slot);
        }
    }

    /// `to_fd`: the descriptor leaves, as blocking as a new one is.
    fn move_out(&mut self, state: &mut State, slot: u32) {
        self.unwatch(state, slot);
        self.count_out(state, slot);
        self.retries.remove(&slot);
        let entry = state.slot(slot);
        entry.flags.reading = false;
        entry.flags.writing = false;
        entry.receiving = Receiving::No;
        let fd = entry.fd.take().ok_or(OpError::BadDescriptor);
        if let (true, Ok(fd)) = (entry.flags.lwsocket, &fd) {
            // Only sockets that the channel made are non-blocking by its doing.
            let cleared = fcntl_getfl(fd).map(|flags| flags.difference(OFlags::NONBLOCK));
            let _ = cleared.and_then(|flags| fcntl_setfl(fd, flags));
        }
        state.pop_control(slot);
        state.on_moved(slot, fd);
        self.accept_again(state);
    }

    /// Begins to connect, or sees how the attempt went.
    pub(super) fn try_connect(&mut self, state: &mut State, slot: u32) {
        let entry = state.peek(slot);
        let (Some(Extra::Connecting { raw, .. }), Some(fd)) = (entry.extra.as_deref(), &entry.fd)
        else {
            return;
        };
        if entry.flags.watch == WatchedEvents::Both {
            let error = sockopt::socket_error(fd);
            match error.unwrap_or_else(Err) {
                Ok(()) if !state.peek(slot).flags.writable => {}
                Ok(()) => self.connected(state, slot, Ok(())),
                Err(errno) => self.connected(state, slot, Err(errno.into())),
            }
            return;
        }
        let asked = sys::connect(fd.as_fd(), raw).map_err(|error| error.raw_os_error());
        state.counters.system_calls += 1;
        state.counters.kernel_requests += 1;
        match asked {
            Ok(()) => self.connected(state, slot, Ok(())),
            Err(Some(libc::EINPROGRESS | libc::EINTR)) => {
                let flags = &mut state.slot(slot).flags;
                (flags.readable, flags.writable) = (false, false);
                if let Err(error) = self.watch(state, slot, true) {
                    self.connected(state, slot, Err(error));
                }
            }
            // The listener's queue is full, and no event tells when it is not.
            Err(Some(libc::EAGAIN)) if state.peek(slot).kind == Kind::UnixStream => {
                self.retry_later(slot);
            }
            Err(errno) => {
                let error = OpError::from_raw_os_error(errno.unwrap_or(libc::EIO));
                self.connected(state, slot, Err(error));
            }
        }
    }

    fn connected(&mut self, state: &mut State, slot: u32, result: Result<(), OpError>) {
        state.on_connected(slot, result);
        if state.wants_data(slot) {
            state.slot(slot).receiving = Receiving::Yes;
            self.enqueue(state, slot);
        }
        // After a failure, too: a disconnect may wait behind the writes that failed.
        if !state.peek(slot).writes.is_empty() {
            state.slot(slot).flags.writing = true;
            state.slot(slot).flags.writable = true;
            self.enqueue(state, slot);
        }
    }

    pub(super) fn give_up_connect(&mut self, state: &mut State, slot: u32) {
        let entry = state.peek(slot);
        if entry.phase != SlotPhase::Starting {
            return;
        }
        if let Some(fd) = &entry.fd {
            // Otherwise it might still be established, unknown to the program.
            let _ = sys::connect(fd.as_fd(), &RawAddress::UNSPECIFIED);
        }
        self.connected(state, slot, Err(OpError::TimedOut));
    }
}

/// One receive for the oldest read of a stream. Returns the bytes.
fn receive_once(state: &mut State, slot: u32) -> usize {
    let Some(read) = state.peek(slot).first_read else { return 0 };
    let want = (read.len as usize).min(state.config.buffer_len);
    state.counters.system_calls += 1;
    state.counters.kernel_requests += 1;
    let received = fill(state, want, |state, room| {
        let fd = state.peek(slot).fd.as_ref().ok_or(Errno::BADF)?;
        loop {
            match recv(fd, &mut *room, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => return other.map(|(_, count)| count),
            }
        }
    });
    let entry = state.slot(slot);
    match received {
        Ok(bytes) if bytes.is_empty() => {
            // A reset ends both directions, but the kernel tells only the first that asks.
            let failed = StreamEnd::Failed(OpError::Reset);
            let end = if entry.flags.reset { failed } else { StreamEnd::Eof };
            state.on_receive_end(slot, end);
            0
        }
        Ok(bytes) => {
            let count = bytes.len();
            if count < want && entry.kind == Kind::Tcp && !entry.flags.draining {
                entry.flags.readable = false;
            }
            let crowded = state.on_received(slot, bytes);
            debug_assert!(!crowded, "a read took all of it");
            count
        }
        Err(Errno::AGAIN) => {
            entry.flags.readable = false;
            entry.flags.draining = false;
            0
        }
        Err(errno) => {
            state.on_receive_end(slot, StreamEnd::Failed(errno.into()));
            0
        }
    }
}

/// One send of what a stream has queued. Returns the bytes, and whether they are all of it that
/// was offered.
fn send_once(state: &State, slot: &Slot) -> Result<(usize, bool), Errno> {
    let fd = slot.fd.as_ref().ok_or(Errno::BADF)?;
    let mut waiting = state.writes.iter(slot.writes);
    if let (Some(WriteOp { body: Body::One(payload), done, .. }), None) =
        (waiting.next(), waiting.next())
    {
        // One write of one part: no vector.
        let rest = &payload.as_slice()[*done..];
        let count = send(fd, rest, SEND_FLAGS)?;
        return Ok((count, count == rest.len()));
    }
    let mut parts = no_parts();
    let (part_count, bytes) = gather(state.writes.iter(slot.writes), &mut parts);
    let mut nothing = SendAncillaryBuffer::default();
    let count = sendmsg(fd, &parts[..part_count], &mut nothing, SEND_FLAGS)?;
    Ok((count, count == bytes))
}
