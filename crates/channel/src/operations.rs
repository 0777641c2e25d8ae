//! The operations of a channel: checked, queued, handed to the driver.
//!
//! Read first: `channel.rs`.
//!
//! Invariants
//! - A call that returns an error has changed nothing, except that `Event::Drained` is owed after
//!   a write that was refused because too much is unsent.
//! - A call never waits; what it asks for goes to the kernel with its batch.

use crate::address::Address;
use crate::buffer::{Payload, ReadBuf};
use crate::channel::Channel;
use crate::completion::Event;
use crate::driver::Driver;
use crate::error::{Limit, Misuse, OpError, SubmitError};
use crate::handle::Handle;
use crate::limits;
use crate::options::{Accept, AcceptAs, Disconnect};
use crate::slot::{Awaited, Body, End, FileJob, Kind, Phase, ReadOp, Receiver, Receiving, WriteOp};

/// What a file is before `Event::Open`, and after one that failed.
const UNOPENED: &str = "file that is not open";

/// Operations. Each is queued, goes to the kernel in a batch, and gives one completion.
impl Channel {
    /// Asks for `count` connections: one `Event::Accept` each.
    ///
    /// # Errors
    /// [`Misuse`]: a wrong handle, a count of 0, a first read of no or too many bytes;
    /// [`Misuse::CannotMove`] for descriptors of our own stack's connections where those cannot be
    /// had ([`Channel::to_fd`]).
    pub fn accept(&mut self, listener: Handle, accept: Accept) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(listener)?;
        if accept.count == 0 {
            return Err(Misuse::InvalidCount.into());
        }
        if let Some(len) = accept.first_read {
            check_len(len, limits::READ_LEN_MAX)?;
        }
        self.require(index, "accept", |kind| kind == Kind::Listener)?;
        if accept.kind == AcceptAs::Fd {
            self.check_movable(index)?;
        }
        self.state.admit()?;
        let Some(queues) = self.state.slot(index).listener() else { return Ok(()) };
        if queues.credits.len() >= limits::ACCEPT_AHEAD_MAX {
            return Err(Limit::Operations.into());
        }
        queues.credits.try_reserve(1).map_err(|_| Limit::Memory)?;
        queues.credits.push_back(accept);
        self.driver.start_accept(&mut self.state, index);
        Ok(())
    }

    /// Asks for up to `len` bytes: `Event::Read` with at least one, or none at the end. On
    /// message sockets: one message, cut at `len`.
    ///
    /// # Errors
    /// [`Misuse`]: a wrong handle, a listener or timer, a length of no or too many bytes.
    #[inline]
    pub fn read(&mut self, handle: Handle, len: usize) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        check_len(len, limits::READ_LEN_MAX)?;
        let read = ReadOp { len: len as u32, with_sender: false };
        if self.state.slot(index).only_needs_a_read() {
            self.state.admit()?;
            self.state.put_first_read(index, read);
            return Ok(());
        }
        self.queue_read(index, read, "read")
    }

    /// Asks for one message and its sender: `Event::RecvFrom`.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no message socket, a length of no or too many bytes.
    pub fn recvfrom(&mut self, handle: Handle, len: usize) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        check_len(len, limits::READ_LEN_MAX)?;
        self.require(index, "recvfrom", Kind::is_message)?;
        self.queue_read(index, ReadOp { len: len as u32, with_sender: true }, "recvfrom")
    }

    #[inline(never)]
    fn queue_read(
        &mut self,
        index: u32,
        read: ReadOp,
        call: &'static str,
    ) -> Result<(), SubmitError> {
        let state = &mut self.state;
        let slot = state.slot(index);
        if slot.phase == Phase::Moving {
            return Err(Misuse::Closing.into());
        }
        if slot.is_unopened_file() {
            return Err(Misuse::WrongKind { call, kind: UNOPENED }.into());
        }
        let kind = slot.kind;
        if !(kind.is_socket() || kind.is_plain()) {
            return Err(Misuse::WrongKind { call, kind: kind.name() }.into());
        }
        state.admit()?;
        if !state.queue_read(index, read) {
            return Err(Limit::Memory.into());
        }
        let slot = state.slot(index);
        if kind.is_stream() {
            if !slot.unread.is_empty() || slot.end != End::Not {
                state.counters.reads_at_once += 1;
                state.answer_reads(index);
            } else if slot.receiving == Receiving::No && slot.phase == Phase::Open {
                self.driver.start_receive(state, index);
            }
        } else if !slot.flags.reading && slot.phase == Phase::Open {
            self.driver.start_read(state, index);
        }
        Ok(())
    }

    /// Asks for up to `len` bytes at an offset of a disk file: `Event::Read`.
    ///
    /// Work at offsets may complete in any order, and a completion does not name its offset: ask
    /// for one at a time where that matters, or open the file more than once.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no open file, a length of no or too many bytes.
    pub fn read_at(&mut self, handle: Handle, offset: u64, len: usize) -> Result<(), SubmitError> {
        check_len(len, limits::READ_LEN_MAX)?;
        self.file_job(handle, "read_at", FileJob::ReadAt { offset, len })
    }

    /// Writes at an offset of a disk file: `Event::Write`.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no open file, no or too many bytes.
    pub fn write_at(
        &mut self,
        handle: Handle,
        offset: u64,
        data: impl Into<Payload>,
    ) -> Result<(), SubmitError> {
        let data = data.into();
        check_len(data.len(), limits::WRITE_LEN_MAX)?;
        self.file_job(handle, "write_at", FileJob::WriteAt { offset, data })
    }

    /// Asks for a file's data to be on the device: `Event::Fsync`. Covers writes that have
    /// completed, not those that are under way.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no open file.
    pub fn fsync(&mut self, handle: Handle) -> Result<(), SubmitError> {
        self.file_job(handle, "fsync", FileJob::Fsync)
    }

    fn file_job(
        &mut self,
        handle: Handle,
        call: &'static str,
        job: FileJob,
    ) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, call, |kind| kind == Kind::File)?;
        if self.state.slot(index).is_unopened_file() {
            return Err(Misuse::WrongKind { call, kind: UNOPENED }.into());
        }
        self.state.admit()?;
        self.driver.start_job(&mut self.state, index, job);
        Ok(())
    }

    /// Sends bytes: `Event::Write` when the kernel has all of them, or an error; never a part.
    /// Writes of one handle go out in order.
    ///
    /// # Errors
    /// [`Misuse`]: a wrong handle, a listener or timer, no or too many bytes.
    /// [`Limit::UnsentBytes`]: earlier bytes of the handle are unsent, and together with these they
    /// would be more than [`crate::Config::unsent_bytes_max`]. `Event::Drained` tells when there is
    /// room. The same holds for all calls that write, except at offsets of disk files.
    #[inline]
    pub fn write(&mut self, handle: Handle, data: impl Into<Payload>) -> Result<(), SubmitError> {
        let data = data.into();
        let len = data.len();
        self.queue_data(handle, WriteOp::new(Body::One(data), len), "write")
    }

    /// Sends bytes as `write` does, but gives no completion when all of them went out: only
    /// `Event::Write` with an error. For a program that has nothing to do when a write is done;
    /// whatever is queued behind the write (a `write`, a `disconnect`) completes after it.
    ///
    /// Returns how many bytes of earlier writes it waits behind ([`Channel::unsent_bytes`]), which
    /// tells whether the peer falls behind: then [`Channel::report_last_write`] asks for a
    /// completion after all.
    ///
    /// # Errors
    /// [`Misuse`] and [`Limit`] as for `write`.
    #[inline(always)]
    pub fn write_quiet(
        &mut self,
        handle: Handle,
        data: impl Into<Payload>,
    ) -> Result<usize, SubmitError> {
        match data.into().into_read() {
            Ok(bytes) => self.write_quiet_bytes(handle, bytes),
            Err(data) => self.queue_quiet(handle, data),
        }
    }

    /// Sends a copy of bytes as `write_quiet` does. Answers what [`Channel::unsent_bytes`] would
    /// afterwards: for a program that does not keep its bytes in the channel's memory, and looks
    /// after each write whether its peer falls behind.
    ///
    /// # Errors
    /// [`Misuse`] and [`Limit`] as for `write`.
    #[inline]
    pub fn write_copied(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        if self.state.slot(index).can_send_at_once() && !bytes.is_empty() {
            self.state.admit()?;
            if self.driver.send_copied(&mut self.state, index, bytes) {
                return Ok(self.state.unsent_bytes(index));
            }
            // It is admitted where it is queued.
            self.state.counters.operations -= 1;
        }
        self.queue_copy((handle, index), bytes)
    }

    #[inline(never)]
    fn queue_copy(
        &mut self,
        (handle, index): (Handle, u32),
        bytes: &[u8],
    ) -> Result<usize, SubmitError> {
        let mut copy = self.try_alloc(bytes.len()).map_err(|_| Limit::Memory)?;
        copy.extend_from_slice(bytes);
        self.queue_quiet(handle, copy.into())?;
        Ok(self.state.unsent_bytes(index))
    }

    #[inline(always)]
    fn write_quiet_bytes(&mut self, handle: Handle, bytes: ReadBuf) -> Result<usize, SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        if self.state.slot(index).can_send_at_once()
            && !bytes.is_empty()
            && self.driver.sends_silently()
        {
            self.state.admit()?;
            self.driver.send_silently(&mut self.state, index, bytes);
            return Ok(0);
        }
        self.queue_quiet(handle, bytes.into())
    }

    #[inline(never)]
    fn queue_quiet(&mut self, handle: Handle, data: Payload) -> Result<usize, SubmitError> {
        let unsent_bytes = self.unsent_bytes(handle)?;
        let len = data.len();
        let write = WriteOp { quiet: true, ..WriteOp::new(Body::One(data), len) };
        self.queue_data(handle, write, "write_quiet")?;
        Ok(unsent_bytes)
    }

    /// Bytes of a handle's writes that the kernel is not known to have taken.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    #[inline]
    pub fn unsent_bytes(&self, handle: Handle) -> Result<usize, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        Ok(self.state.unsent_bytes(index))
    }

    /// Bytes that have arrived on a stream and that no read has taken yet. What still lies in the
    /// kernel, or in our own stack, is not counted.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    pub fn unread_bytes(&self, handle: Handle) -> Result<usize, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        Ok(self.state.peek(index).unread_bytes as usize)
    }

    /// Asks for a completion of the last write that waits, if it is a quiet one: for a program that
    /// finds too much unsent and wants to hear when there is room. `false`: no write waits.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    pub fn report_last_write(&mut self, handle: Handle) -> Result<bool, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        let queue = self.state.peek(index).writes;
        let Some(last) = self.state.writes.back_mut(queue) else { return Ok(false) };
        last.quiet = false;
        Ok(last.is_data())
    }

    /// Sends several pieces of memory as one write, without joining them. (Only a message of more
    /// than 64 pieces is joined, because it has to go out in one go.)
    ///
    /// # Errors
    /// [`Misuse`] and [`Limit`] as for `write`; also more than 1,024 pieces.
    pub fn writev(
        &mut self,
        handle: Handle,
        data: impl IntoIterator<Item = Payload>,
    ) -> Result<(), SubmitError> {
        let parts = collected(data)?;
        if parts.len() > limits::WRITE_PARTS_MAX {
            let (len, max) = (parts.len(), limits::WRITE_PARTS_MAX);
            return Err(Misuse::InvalidLength { len, max }.into());
        }
        let len = parts.iter().map(Payload::len).sum();
        self.check_fork()?;
        let index = self.state.find(handle)?;
        let one_go = self.state.slot(index).kind.is_message() && len <= limits::WRITE_LEN_MAX;
        let body = if one_go && parts.len() > limits::GATHER_PARTS_MAX {
            Body::One(joined(&parts, len)?.into())
        } else {
            Body::Many(parts)
        };
        self.queue_data(handle, WriteOp::new(body, len), "writev")
    }

    /// Sends one message to an address: `Event::SendTo`, with [`OpError::NoMemory`] if the address
    /// cannot be kept for want of memory.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no message socket, too many bytes. [`Limit`] as for `write`.
    pub fn sendto(
        &mut self,
        handle: Handle,
        data: impl Into<Payload>,
        to: &Address,
    ) -> Result<(), SubmitError> {
        let data = data.into();
        let len = data.len();
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, "sendto", Kind::is_message)?;
        let Some(to) = receiver(to) else {
            self.state.admit()?;
            self.state.complete(index, Event::SendTo(Err(OpError::NoMemory)));
            return Ok(());
        };
        let write = WriteOp { to: Some(to), ..WriteOp::new(Body::One(data), len) };
        self.queue_data(handle, write, "sendto")
    }

    #[inline(always)]
    fn queue_data(
        &mut self,
        handle: Handle,
        write: WriteOp,
        call: &'static str,
    ) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        let slot = self.state.slot(index);
        let (kind, len) = (slot.kind, write.len);
        if !(kind.is_socket() || kind.is_plain()) {
            return Err(Misuse::WrongKind { call, kind: kind.name() }.into());
        }
        if slot.phase == Phase::Moving {
            return Err(Misuse::Closing.into());
        }
        if slot.is_unopened_file() {
            return Err(Misuse::WrongKind { call, kind: UNOPENED }.into());
        }
        // An empty message is a message; an empty write to a stream would never complete.
        if len > limits::WRITE_LEN_MAX || (len == 0 && !kind.is_message()) {
            return Err(Misuse::InvalidLength { len, max: limits::WRITE_LEN_MAX }.into());
        }
        self.state.check_unsent(index, len)?;
        self.queue_write(index, write)
    }

    #[inline(always)]
    fn queue_write(&mut self, index: u32, write: WriteOp) -> Result<(), SubmitError> {
        self.state.admit()?;
        self.queue_admitted(index, write)
    }

    #[inline(always)]
    fn queue_admitted(&mut self, index: u32, write: WriteOp) -> Result<(), SubmitError> {
        if !self.state.writes.reserve_one() {
            return Err(Limit::Memory.into());
        }
        self.state.queue_write(index, write);
        let slot = self.state.slot(index);
        if !slot.flags.writing && slot.may_write() {
            self.driver.start_write(&mut self.state, index);
        }
        Ok(())
    }

    /// Ends a connection: `Event::Disconnect`. The handle stays registered until `unregister`.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no connection.
    pub fn disconnect(&mut self, handle: Handle, how: Disconnect) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, "disconnect", Kind::is_socket)?;
        if self.state.slot(index).phase == Phase::Moving {
            return Err(Misuse::Closing.into());
        }
        self.state.admit()?;
        if !self.state.writes.reserve_one() {
            return Err(Limit::Memory.into());
        }
        // Nothing is to be written after it.
        self.state.slot(index).flags.awaited.take(Awaited::DRAINED | Awaited::DRAINED_IS_READY);
        if how == Disconnect::Reset && self.state.slot(index).kind == Kind::Tcp {
            self.driver.start_reset(&mut self.state, index);
            return Ok(());
        }
        self.queue_admitted(index, WriteOp::new(Body::Disconnect(how), 0))
    }

    /// Asks to be told when a connection is over in both directions: `Event::End`. For a program
    /// that has read to the end, goes on writing or waiting, and wants to hear of a reset all the
    /// same.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no connection, or one whose end is awaited already.
    pub fn await_end(&mut self, handle: Handle) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, "await_end", Kind::is_stream)?;
        if self.state.slot(index).phase == Phase::Moving {
            return Err(Misuse::Closing.into());
        }
        if self.state.slot(index).flags.awaited.has(Awaited::END) {
            return Err(Limit::Operations.into());
        }
        self.state.admit()?;
        self.state.slot(index).flags.awaited.add(Awaited::END);
        self.driver.watch_end(&mut self.state, index);
        Ok(())
    }

    /// Turns a handle into a descriptor of the process, after the writes that are queued:
    /// `Event::ToFd` with the descriptor and what was received ahead; the handle is gone then.
    /// Reads that wait complete as cancelled.
    ///
    /// A connection of our own stack moves into a socket of the kernel's, unread and unsent bytes
    /// and all, without its peer's notice; [`Channel::take_over`] goes the other way. It has to be
    /// established, with neither side closed ([`OpError::NotConnected`] otherwise), and the process
    /// needs CAP_NET_ADMIN ([`OpError::PermissionDenied`]). If it does not move it goes on where it
    /// is, and [`Channel::explain`] says why.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no connection; [`Misuse::CannotMove`] for what is our own
    /// stack's on a link with an address of its own, and for its datagrams.
    pub fn to_fd(&mut self, handle: Handle) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, "to_fd", Kind::is_socket)?;
        if self.state.slot(index).phase != Phase::Open {
            return Err(Misuse::Closing.into());
        }
        self.check_movable(index)?;
        self.state.slot(index).phase = Phase::Moving;
        let queued = self.queue_write(index, WriteOp::new(Body::ToFd, 0));
        if queued.is_err() {
            self.state.slot(index).phase = Phase::Open;
        }
        queued
    }

    /// What is our own stack's may have no way to the kernel.
    fn check_movable(&mut self, index: u32) -> Result<(), Misuse> {
        #[cfg(feature = "local")]
        return self.check_way_to_kernel(index);
        #[cfg(not(feature = "local"))]
        {
            let _ = index;
            Ok(())
        }
    }

    fn require(
        &mut self,
        index: u32,
        call: &'static str,
        suits: impl Fn(Kind) -> bool,
    ) -> Result<(), Misuse> {
        let kind = self.state.slot(index).kind;
        if suits(kind) { Ok(()) } else { Err(Misuse::WrongKind { call, kind: kind.name() }) }
    }
}

/// The pieces of a write in memory of their own.
fn collected(data: impl IntoIterator<Item = Payload>) -> Result<Box<[Payload]>, Limit> {
    let data = data.into_iter();
    let mut parts = Vec::new();
    parts.try_reserve_exact(data.size_hint().0).map_err(|_| Limit::Memory)?;
    for part in data {
        parts.try_reserve(1).map_err(|_| Limit::Memory)?;
        parts.push(part);
    }
    Ok(parts.into())
}

/// The bytes of all pieces, which are `len`.
fn joined(parts: &[Payload], len: usize) -> Result<Vec<u8>, Limit> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Limit::Memory)?;
    parts.iter().for_each(|part| bytes.extend_from_slice(part.as_slice()));
    Ok(bytes)
}

/// Memory of a queued message for the address it goes to; `None` if there is none.
fn receiver(to: &Address) -> Option<Receiver> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(1).ok()?;
    memory.push(to.clone());
    memory.into_boxed_slice().try_into().ok()
}

fn check_len(len: usize, max: usize) -> Result<(), Misuse> {
    if (1..=max).contains(&len) { Ok(()) } else { Err(Misuse::InvalidLength { len, max }) }
}
