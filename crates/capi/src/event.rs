//! From a completion of the channel to the event of a C program.
//!
//! Bytes that were read go where the read said (`pending.rs`): into the program's memory, or they
//! stay in the channel's buffer, which is lent (`lent.rs`). Nothing here allocates, except where
//! the unread bytes of a handle that leaves lie in several buffers.
//!
//! Invariants
//! - Each completion of a read or an accept takes exactly one entry of its handle's queue; a read
//!   that waited behind it is asked for at once.
//! - A descriptor in an event is the program's from then on.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{IntoRawFd, OwnedFd};

use channel::{
    Accepted, Channel, Completion, Connection, Datagram, Event, Handle, OpError, ReadBuf, ToFd,
};
use libc::iovec;

use crate::abi::{MP_LENT, MP_TRUNCATED, mp_cmd, mp_event};
use crate::address;
use crate::error::CallError;
use crate::lent::{Lent, LentKey, LentTable};
use crate::pending::{Answer, Pending, PendingTable, Place, Request, Sender};

/// What the border keeps for the events of one channel.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) pending: PendingTable,
    pub(crate) lent: LentTable,
    /// Answers to reads that waited and that the channel then refused. They come first.
    pub(crate) refused: VecDeque<mp_event>,
}

impl Events {
    /// The event that tells a completion. Copies what was read to where the read wanted it.
    ///
    /// # Safety
    /// The places of the reads that are under way are still valid: `mp_read()` and its siblings
    /// demand that of the program until the completion was dispatched.
    #[inline]
    pub(crate) unsafe fn convert(
        &mut self,
        channel: &mut Channel,
        completion: Completion,
    ) -> mp_event {
        let Completion { handle, cookie, event } = completion;
        let new = |cmd| mp_event::new(cmd, handle.to_bits(), cookie);
        match event {
            Event::Read(result) => {
                let mut event = new(mp_cmd::MP_READ);
                // SAFETY: the caller keeps the contract.
                unsafe { self.received(channel, &mut event, result) };
                event
            }
            Event::Write(result) => finished(new(mp_cmd::MP_WRITE), result),
            Event::Accept(result) => self.accepted(new(mp_cmd::MP_ACCEPT), handle, result),
            Event::RecvFrom(result) => {
                let mut event = new(mp_cmd::MP_RECVFROM);
                // SAFETY: the caller keeps the contract.
                unsafe { self.message(channel, &mut event, result.map(|datagram| *datagram)) };
                event
            }
            Event::SendTo(result) => finished(new(mp_cmd::MP_SENDTO), result),
            Event::Connect(result) => finished(new(mp_cmd::MP_CONNECT), result.map(|()| 0)),
            Event::Open(result) => finished(new(mp_cmd::MP_OPEN), result.map(|()| 0)),
            Event::Fsync(result) => finished(new(mp_cmd::MP_FSYNC), result.map(|()| 0)),
            Event::Disconnect(result) => finished(new(mp_cmd::MP_DISCONNECT), result.map(|()| 0)),
            Event::Timer { expirations } => mp_event { expirations, ..new(mp_cmd::MP_TIMER) },
            Event::ToFd(result) => self.moved(new(mp_cmd::MP_TO_FD), handle, result),
            Event::Wake => new(mp_cmd::MP_WAKE),
            // A kind of completion that this border does not know cannot have been asked for.
            _ => finished(new(mp_cmd::MP_WAKE), Err(OpError::NotSupported)),
        }
    }

    /// The event that `mp_unregister()` fills: what the channel had received and nobody had read.
    pub(crate) fn left(&mut self, handle: Handle, unread: Vec<ReadBuf>) -> mp_event {
        let mut event = mp_event::new(mp_cmd::MP_UNREGISTER, handle.to_bits(), 0);
        self.lend_joined(&mut event, unread);
        event
    }

    fn accepted(
        &mut self,
        event: mp_event,
        listener: Handle,
        result: Result<Accepted, OpError>,
    ) -> mp_event {
        let first_read = self.pending.spend_accept(listener);
        let accepted = match result {
            Ok(accepted) => accepted,
            Err(error) => return finished(event, Err(error)),
        };
        let event = mp_event { pending: accepted.pending, ..event };
        match accepted.connection {
            Connection::Fd(fd) => mp_event { fd: fd.into_raw_fd(), ..event },
            Connection::Lwsocket(connection) => {
                if first_read {
                    self.pending.push(connection, Pending::Read(Place::Lend));
                }
                let fd = connection.number() as i32;
                mp_event { fd, connection: connection.to_bits(), ..event }
            }
        }
    }

    fn moved(
        &mut self,
        event: mp_event,
        handle: Handle,
        result: Result<ToFd, OpError>,
    ) -> mp_event {
        match result {
            Ok(ToFd { fd, unread }) => {
                self.pending.leave(handle);
                let mut event = mp_event { fd: OwnedFd::into_raw_fd(fd), ..event };
                self.lend_joined(&mut event, unread);
                event
            }
            Err(error) => finished(event, Err(error)),
        }
    }

    /// # Safety
    /// As [`Self::convert`].
    unsafe fn received(
        &mut self,
        channel: &mut Channel,
        event: &mut mp_event,
        result: Result<ReadBuf, OpError>,
    ) {
        let Answer { place, .. } = self.answer_of(channel, event);
        match result {
            // SAFETY: the caller keeps the contract.
            Ok(data) => unsafe { self.deliver(event, place, data) },
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
        let Answer { place, sender, .. } = self.answer_of(channel, event);
        match result {
            Ok(Datagram { data, from, truncated }) => {
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

    /// Where the oldest read of the event's handle goes; the one behind it may start now. A read
    /// that the program did not ask for by itself (the first of an accepted connection) is lent.
    #[inline]
    fn answer_of(&mut self, channel: &mut Channel, event: &mp_event) -> Answer {
        let handle = Handle::from_bits(event.handle);
        match self.pending.pop_read(handle) {
            Some(answer) => {
                if answer.more {
                    self.start_waiting(channel, event);
                }
                answer
            }
            None => Answer { place: Place::Lend, sender: Sender::NOWHERE, more: false },
        }
    }

    /// Asks the channel for the read that waited for the event's. If the channel refuses it, the
    /// refusal is its event, and the one behind it has its turn.
    #[cold]
    fn start_waiting(&mut self, channel: &mut Channel, event: &mp_event) {
        let handle = Handle::from_bits(event.handle);
        while let Some(Request { len, offset }) = self.pending.start_waiting(handle) {
            let started = match offset {
                Some(offset) => channel.read_at(handle, offset, len),
                None => channel.read(handle, len),
            };
            let Err(misuse) = started else { return };
            self.pending.pop_read(handle);
            let mut refused = mp_event::new(mp_cmd::MP_READ, event.handle, event.cookie as u64);
            refused.error = CallError::from(misuse).errno();
            self.refused.push_back(refused);
        }
    }

    /// Brings bytes to their place.
    ///
    /// # Safety
    /// As [`Self::convert`].
    unsafe fn deliver(&mut self, event: &mut mp_event, place: Place, data: ReadBuf) {
        match place {
            Place::Copy(buf, size) => {
                event.buf = buf;
                event.size = data.len().min(size);
                // SAFETY: `mp_read()` demands `size` writable bytes at `buf` until now.
                unsafe { copy_out(&data[..event.size], buf) };
            }
            // SAFETY: `mp_readv()` demands that its array and parts are valid until now.
            Place::Scatter(parts, count) => unsafe {
                event.size = scatter(&data, parts, count);
            },
            Place::Lend => self.lend(event, Lent::Buffer(data)),
        }
    }

    /// Lends several buffers as one; nothing if they hold no bytes.
    fn lend_joined(&mut self, event: &mut mp_event, buffers: Vec<ReadBuf>) {
        if let Some(lent) = Lent::join(buffers) {
            self.lend(event, lent);
        }
    }

    fn lend(&mut self, event: &mut mp_event, lent: Lent) {
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

/// An event that carries a number of bytes, or an error.
fn finished(event: mp_event, result: Result<usize, OpError>) -> mp_event {
    match result {
        Ok(size) => mp_event { size, ..event },
        Err(error) => mp_event { error: error.raw_os_error(), ..event },
    }
}

/// # Safety
/// `target` points to as many writable bytes as `bytes` has.
unsafe fn copy_out(bytes: &[u8], target: *mut c_void) {
    if !bytes.is_empty() {
        // SAFETY: the caller promises the room; `bytes` lies in memory of the channel.
        unsafe { target.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Spreads bytes over the parts of a vectored read, in order; how many found room.
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
        let event = mp_event::new(mp_cmd::MP_WRITE, 7, 9);
        let failed = finished(event, Err(OpError::BrokenPipe));
        assert_eq!((failed.error, failed.size, failed.fd), (libc::EPIPE, 0, -1));
        assert_eq!(failed.cookie as usize, 9);
        assert_eq!(finished(event, Ok(12)).size, 12);
    }
}
