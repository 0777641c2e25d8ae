//! Converts a completion of the channel to an `mp_event`.
//!
//! Bytes that were read are delivered as the read requested (`pending.rs`): copied into the
//! program's memory, or left in the channel's buffer, which is lent (`lent.rs`). Nothing here
//! allocates, except where the unread bytes of an unregistered handle lie in several buffers.
//!
//! Invariants
//! - Each completion of a read or an accept takes exactly one entry of its handle's queue; a read
//!   queued behind it is submitted immediately.
//! - The program owns a descriptor in an event.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::IntoRawFd;

use channel::{
    Accepted, Channel, Completion, Connection, Datagram, Event, Handle, OpError, ReadBuf, ToFd,
};
use libc::iovec;

use crate::abi::{MP_LENT, MP_TRUNCATED, mp_cmd, mp_event};
use crate::address;
use crate::error::CallError;
use crate::lent::{LentBuffer, LentKey, LentTable};
use crate::pending::{PendingTable, QueueIndex, QueuedRead, ReadAnswer, ReadDestination, Sender};

/// State of the C interface for the events of one channel.
#[derive(Debug, Default)]
pub(crate) struct EventConverter {
    pub(crate) pending: PendingTable,
    pub(crate) lent: LentTable,
    /// Results of queued reads that the channel rejected. They are returned first.
    pub(crate) refused: VecDeque<mp_event>,
}

impl EventConverter {
    /// Fills in the event for a completion. Copies received bytes to their destination.
    ///
    /// Inlined, with reads and writes converted here: moving a whole completion costs more than
    /// converting it, so only the few words that they carry are moved.
    ///
    /// # Safety
    /// The destinations of the reads in progress are still valid: `mp_read()` and the other read
    /// calls require it until the completion is dispatched.
    #[inline(always)]
    pub(crate) unsafe fn convert(
        &mut self,
        channel: &mut Channel,
        completion: Completion,
        event: &mut MaybeUninit<mp_event>,
    ) {
        let Completion { handle, cookie, event: finished } = completion;
        let new = |cmd| mp_event::new(cmd, handle.to_bits(), cookie);
        match finished {
            Event::Read(Ok(data)) => {
                let event = event.write(new(mp_cmd::MP_READ));
                let place = self.place_of(channel, event);
                // SAFETY: the caller keeps the contract.
                unsafe { self.deliver(event, place, data) };
            }
            Event::Write(result) => finish(event.write(new(mp_cmd::MP_WRITE)), result),
            finished => {
                let event = event.write(new(cmd_of(&finished)));
                // SAFETY: the caller keeps the contract.
                unsafe { self.convert_rest(channel, finished, event) };
            }
        }
    }

    /// # Safety
    /// As [`Self::convert`].
    #[inline(never)]
    unsafe fn convert_rest(
        &mut self,
        channel: &mut Channel,
        finished: Event,
        event: &mut mp_event,
    ) {
        match finished {
            Event::Read(Err(error)) => {
                self.answer_of(channel, event);
                event.error = error.raw_os_error();
            }
            Event::Accept(result) => self.accepted(event, result),
            // SAFETY: the caller keeps the contract.
            Event::RecvFrom(result) => unsafe {
                self.message(channel, event, result.map(|datagram| *datagram));
            },
            Event::SendTo(result) => finish(event, result),
            Event::Connect(result)
            | Event::Open(result)
            | Event::Fsync(result)
            | Event::Disconnect(result)
            | Event::End(result)
            | Event::Delivered(result) => finish(event, result.map(|()| 0)),
            Event::Timer { expirations } => event.expirations = expirations,
            Event::ToFd(result) => self.moved(event, result),
            Event::Wake | Event::Drained => {}
            // `convert` handles reads and writes; the C interface submits no operation that it does
            // not know.
            _ => event.error = libc::EOPNOTSUPP,
        }
    }

    /// Forgets a handle that was unregistered; no further event names it.
    pub(crate) fn leave(&mut self, handle: Handle) {
        self.pending.leave(handle);
        self.refused.retain(|refused| refused.handle != handle.to_bits());
    }

    /// The event that `mp_unregister()` fills: the bytes that the channel had received and the
    /// program had not read.
    pub(crate) fn left(&mut self, handle: Handle, unread: Vec<ReadBuf>) -> mp_event {
        let mut event = mp_event::new(mp_cmd::MP_UNREGISTER, handle.to_bits(), 0);
        self.lend_joined(&mut event, unread);
        event
    }

    fn accepted(&mut self, event: &mut mp_event, result: Result<Accepted, OpError>) {
        let listener = self.pending.find(Handle::from_bits(event.handle));
        let first_read = listener.is_some_and(|queue| self.pending.spend_accept(queue));
        let accepted = match result {
            Ok(accepted) => accepted,
            Err(error) => return event.error = error.raw_os_error(),
        };
        event.pending = accepted.pending;
        match accepted.connection {
            Connection::Fd(fd) => event.fd = fd.into_raw_fd(),
            Connection::Lwsocket(connection) => {
                if first_read {
                    let queue = self.pending.enter(connection);
                    self.pending.push_read(queue, ReadDestination::Lend);
                }
                event.fd = connection.number() as i32;
                event.connection = connection.to_bits();
            }
        }
    }

    fn moved(&mut self, event: &mut mp_event, result: Result<ToFd, OpError>) {
        match result {
            Ok(ToFd { fd, unread }) => {
                self.leave(Handle::from_bits(event.handle));
                event.fd = fd.into_raw_fd();
                self.lend_joined(event, unread);
            }
            Err(error) => event.error = error.raw_os_error(),
        }
    }

    /// # Safety
    /// As [`Self::convert`].
    unsafe fn message(
        &mut self,
        channel: &mut Channel,
        event: &mut mp_event,
        result: Result<Datagram, OpError>,
    ) {
        let ReadAnswer { place, sender, .. } = self.answer_of(channel, event);
        match result {
            Ok(Datagram { data, from, truncated, .. }) => {
                if truncated {
                    event.flags |= MP_TRUNCATED;
                }
                // SAFETY: the caller keeps the contract.
                unsafe { address::write(sender, from.as_ref()) };
                // SAFETY: the caller keeps the contract.
                unsafe { self.deliver(event, place, data) };
            }
            Err(error) => event.error = error.raw_os_error(),
        }
    }

    /// Destination of the oldest read of the event's handle. The usual case first: it is the only
    /// one.
    #[inline]
    fn place_of(&mut self, channel: &mut Channel, event: &mp_event) -> ReadDestination {
        let queue = self.pending.find(Handle::from_bits(event.handle));
        match queue.and_then(|queue| self.pending.pop_single(queue)) {
            Some(place) => place,
            None => self.answer_of(channel, event).place,
        }
    }

    /// Destination of the oldest read of the event's handle; the next one may start now. A read
    /// that the channel started (the first of an accepted connection) is lent.
    #[inline(never)]
    fn answer_of(&mut self, channel: &mut Channel, event: &mp_event) -> ReadAnswer {
        let queue = self.pending.find(Handle::from_bits(event.handle));
        let answer = queue.and_then(|queue| Some((queue, self.pending.pop_read(queue)?)));
        let Some((queue, answer)) = answer else {
            return ReadAnswer {
                place: ReadDestination::Lend,
                sender: Sender::NOWHERE,
                more: false,
            };
        };
        if answer.more {
            self.start_waiting(channel, queue, event);
        }
        answer
    }

    /// Submits the next queued read to the channel. If the channel rejects it, the rejection is its
    /// event, and the read behind it is next.
    #[cold]
    fn start_waiting(&mut self, channel: &mut Channel, queue: QueueIndex, event: &mp_event) {
        let handle = Handle::from_bits(event.handle);
        while let Some(QueuedRead { len, offset }) = self.pending.start_waiting(queue) {
            let started = match offset {
                Some(offset) => channel.read_at(handle, offset, len),
                None => channel.read(handle, len),
            };
            let Err(misuse) = started else { return };
            self.pending.pop_read(queue);
            let mut refused = mp_event::new(mp_cmd::MP_READ, event.handle, event.cookie as u64);
            refused.error = CallError::from(misuse).errno();
            self.refused.push_back(refused);
        }
    }

    /// Copies or lends bytes to their destination.
    ///
    /// # Safety
    /// As [`Self::convert`].
    #[inline]
    unsafe fn deliver(&mut self, event: &mut mp_event, place: ReadDestination, data: ReadBuf) {
        match place {
            ReadDestination::Copy(buf, size) => {
                event.buf = buf;
                event.size = data.len().min(size);
                // SAFETY: `mp_read()` requires `size` writable bytes at `buf` until now.
                unsafe { copy_out(&data[..event.size], buf) };
            }
            // SAFETY: `mp_readv()` requires that its array and parts are valid until now.
            ReadDestination::Scatter(parts, count) => unsafe {
                event.size = scatter(&data, parts, count);
            },
            ReadDestination::Lend => self.lend(event, LentBuffer::Buffer(data)),
        }
    }

    /// Lends several buffers as one; nothing if they hold no bytes.
    fn lend_joined(&mut self, event: &mut mp_event, buffers: Vec<ReadBuf>) {
        if let Some(lent) = LentBuffer::join(buffers) {
            self.lend(event, lent);
        }
    }

    fn lend(&mut self, event: &mut mp_event, lent: LentBuffer) {
        event.size = lent.bytes().len();
        if event.size == 0 {
            return;
        }
        let (LentKey { index, generation }, bytes) = self.lent.lend(lent);
        event.buf = bytes.as_ptr().cast::<c_void>();
        event.flags |= MP_LENT;
        event.lent_index = index;
        event.lent_generation = generation;
    }
}

/// The command of a completion. The C interface submits no operation that it does not know.
#[inline]
const fn cmd_of(event: &Event) -> mp_cmd {
    match event {
        Event::Read(_) => mp_cmd::MP_READ,
        Event::Write(_) => mp_cmd::MP_WRITE,
        Event::Accept(_) => mp_cmd::MP_ACCEPT,
        Event::RecvFrom(_) => mp_cmd::MP_RECVFROM,
        Event::SendTo(_) => mp_cmd::MP_SENDTO,
        Event::Connect(_) => mp_cmd::MP_CONNECT,
        Event::Open(_) => mp_cmd::MP_OPEN,
        Event::Fsync(_) => mp_cmd::MP_FSYNC,
        Event::Disconnect(_) => mp_cmd::MP_DISCONNECT,
        Event::Timer { .. } => mp_cmd::MP_TIMER,
        Event::ToFd(_) => mp_cmd::MP_TO_FD,
        Event::End(_) => mp_cmd::MP_AWAIT_END,
        Event::Delivered(_) => mp_cmd::MP_AWAIT_DELIVERY,
        Event::Drained => mp_cmd::MP_DRAINED,
        _ => mp_cmd::MP_WAKE,
    }
}

/// Fills in a number of bytes, or an error.
fn finish(event: &mut mp_event, result: Result<usize, OpError>) {
    match result {
        Ok(size) => event.size = size,
        Err(error) => event.error = error.raw_os_error(),
    }
}

/// # Safety
/// `target` points to `bytes.len()` writable bytes.
unsafe fn copy_out(bytes: &[u8], target: *mut c_void) {
    if !bytes.is_empty() {
        // SAFETY: the caller promises the memory; `bytes` lies in memory of the channel.
        unsafe { target.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Scatters bytes over the parts of a vectored read, in order, and returns the number copied.
///
/// # Safety
/// `parts` points to `count` parts, each of which names writable memory.
unsafe fn scatter(bytes: &[u8], parts: *const iovec, count: usize) -> usize {
    let mut done = 0;
    for index in 0..count {
        // SAFETY: the index is below the count that the caller promises.
        let part = unsafe { parts.add(index) };
        // SAFETY: the same; the array is the program's and no longer written to.
        let part = unsafe { part.read() };
        let len = part.iov_len.min(bytes.len() - done);
        // SAFETY: the caller promises `iov_len` bytes, and `len` is not above that.
        unsafe { copy_out(&bytes[done..done + len], part.iov_base) };
        done += len;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattering_fills_part_after_part() {
        let (mut first, mut second) = ([0_u8; 3], [0_u8; 4]);
        let parts = [
            iovec { iov_base: first.as_mut_ptr().cast(), iov_len: 3 },
            iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
            iovec { iov_base: second.as_mut_ptr().cast(), iov_len: 4 },
        ];
        // SAFETY: the parts name the two arrays and an empty part.
        let scattered = |bytes: &[u8]| unsafe { scatter(bytes, parts.as_ptr(), parts.len()) };
        assert_eq!(scattered(b"hello"), 5);
        assert_eq!((&first, &second), (b"hel", b"lo\0\0"));
        assert_eq!(scattered(b"longer than all"), 7);
        assert_eq!((&first, &second), (b"lon", b"ger "));
        assert_eq!(scattered(b""), 0);
    }

    #[test]
    fn an_error_is_an_errno_value_and_no_size() {
        let mut event = mp_event::new(mp_cmd::MP_WRITE, 7, 9);
        finish(&mut event, Err(OpError::BrokenPipe));
        assert_eq!((event.error, event.size, event.fd), (libc::EPIPE, 0, -1));
        assert_eq!((event.handle, event.cookie as usize), (7, 9));
        let mut event = mp_event::new(mp_cmd::MP_WRITE, 7, 9);
        finish(&mut event, Ok(12));
        assert_eq!((event.error, event.size), (0, 12));
    }
}
