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
use crate::slot::{
    Awaited, Body, Kind, ReadOp, Receiver, Receiving, SlotPhase, StreamEnd, WriteOp,
};

/// What a file is before `Event::Open`, and after one that failed.
pub(crate) const UNOPENED: &str = "file that is not open";

/// Operations. Each is queued, goes to the kernel in a batch, and gives one completion.
impl<T> Channel<T> {
    /// Accepts `count` connections: one [`Event::Accept`] each. Does not block.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no listener, a count of 0, a first read of 0 or too many bytes;
    /// [`Misuse::CannotMove`] if descriptors are requested of connections that our own stack cannot
    /// move to the kernel ([`Channel::to_fd`]). [`Limit`]: too many accepts are queued.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Accept, Channel, Config, Connection, Event, ListenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let listener = channel.listen(&"127.0.0.1:0".parse()?, &ListenOptions::default(), 0)?;
    /// // As file descriptors, for a thread that does not use this channel.
    /// channel.accept(listener, Accept::fd(1))?;
    /// let address = channel.local_address(listener)?.as_inet().expect("a TCP address");
    /// let _client = std::net::TcpStream::connect(address)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// let Event::Accept(accepted) = done.event else { panic!("unexpected: {done:?}") };
    /// assert!(matches!(accepted?.connection, Connection::Fd(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Reads up to `len` bytes: [`Event::Read`] with at least one byte, or with none at the end of
    /// the stream or file. On message sockets it reads one message and cuts it at `len`. Does not
    /// block.
    ///
    /// # Errors
    /// [`Misuse`]: a listener or timer, a length of 0 or too many bytes. [`Limit`]: too many
    /// operations are queued.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::{io::Write, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// peer.write_all(b"hello")?;
    /// drop(peer);
    /// let mut received = Vec::new();
    /// loop {
    ///     channel.read(handle, 4096)?;
    ///     let done = channel.dispatch(None)?.expect("there is no time-out");
    ///     let Event::Read(data) = done.event else { panic!("unexpected: {done:?}") };
    ///     match data? {
    ///         end if end.is_empty() => break,
    ///         data => received.extend_from_slice(&data),
    ///     }
    /// }
    /// assert_eq!(received, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Receives one message of up to `len` bytes with its sender: [`Event::RecvFrom`]. Does not
    /// block.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no message socket, a length of 0 or too many bytes. [`Limit`]:
    /// too many operations are queued.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event, SocketKind};
    /// use std::net::UdpSocket;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let socket = channel.socket(SocketKind::Udp4, Some(&"127.0.0.1:0".parse()?), 0)?;
    /// channel.recvfrom(socket, 1500)?;
    /// let peer = UdpSocket::bind("127.0.0.1:0")?;
    /// let address = channel.local_address(socket)?.as_inet().expect("a UDP address");
    /// peer.send_to(b"hello", address)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// let Event::RecvFrom(datagram) = done.event else { panic!("unexpected: {done:?}") };
    /// let datagram = datagram?;
    /// assert_eq!(*datagram.data, *b"hello");
    /// assert_eq!(datagram.from, Some(peer.local_addr()?.into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        if slot.phase == SlotPhase::Moving {
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
            if !slot.unread.is_empty() || slot.end != StreamEnd::Not {
                state.counters.reads_at_once += 1;
                state.answer_reads(index);
            } else if slot.receiving == Receiving::No && slot.phase == SlotPhase::Open {
                self.driver.start_receive(state, index);
            }
        } else if !slot.flags.reading && slot.phase == SlotPhase::Open {
            self.driver.start_read(state, index);
        }
        Ok(())
    }

    /// Sends bytes: [`Event::Write`] when the kernel or our own stack has taken all of them, or
    /// with an error; never for a part. Writes of one handle are sent in order. Does not block.
    ///
    /// # Errors
    /// [`Misuse`]: a listener or timer, 0 or too many bytes. [`Limit::UnsentBytes`]: with these
    /// bytes the handle would have more than [`crate::Config::unsent_bytes_max`] unsent;
    /// [`Event::Drained`] follows when there is room. The same holds for all calls that write,
    /// except at offsets of disk files.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::{io::Read, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// channel.write(handle, "hello, ")?;
    /// channel.write(handle, vec![b'y', b'o', b'u'])?;
    /// for bytes in [7, 3] {
    ///     let done = channel.dispatch(None)?.expect("there is no time-out");
    ///     assert!(matches!(done.event, Event::Write(Ok(written)) if written == bytes));
    /// }
    /// let mut received = [0; 10];
    /// peer.read_exact(&mut received)?;
    /// assert_eq!(&received, b"hello, you");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn write(&mut self, handle: Handle, data: impl Into<Payload>) -> Result<(), SubmitError> {
        let data = data.into();
        let len = data.len();
        self.queue_data(handle, WriteOp::new(Body::One(data), len), "write")
    }

    /// Sends bytes as [`Channel::write`] does, but completes only if it fails. For programs that do
    /// nothing when a write is done. Operations queued behind it complete after it.
    ///
    /// Returns the unsent bytes of earlier writes of the handle ([`Channel::unsent_bytes`]), which
    /// show whether the peer falls behind. [`Channel::report_last_write`] then requests a
    /// completion after all.
    ///
    /// # Errors
    /// [`Misuse`] and [`Limit`] as for [`Channel::write`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::{io::Read, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// let bytes_before = channel.write_quiet(handle, "hello")?;
    /// assert_eq!(bytes_before, 0);
    /// channel.flush()?;
    /// let mut received = [0; 5];
    /// peer.read_exact(&mut received)?;
    /// assert_eq!(&received, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Sends a copy of bytes as [`Channel::write_quiet`] does. Returns the handle's unsent bytes,
    /// these included. For programs that keep their bytes outside the channel's memory.
    ///
    /// # Errors
    /// [`Misuse`] and [`Limit`] as for [`Channel::write`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::{io::Read, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// let text = String::from("hello");
    /// assert!(channel.write_copied(handle, text.as_bytes())? <= text.len());
    /// channel.flush()?;
    /// let mut received = [0; 5];
    /// peer.read_exact(&mut received)?;
    /// assert_eq!(&received, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn write_copied(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        if self.state.slot(index).can_send_at_once() && !bytes.is_empty() {
            self.state.admit()?;
            // What the stack does not take now is queued.
            if !self.state.writes.reserve_one() {
                return Err(Limit::Memory.into());
            }
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
            // As in `write_copied`.
            if !self.state.writes.reserve_one() {
                return Err(Limit::Memory.into());
            }
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

    /// Returns the bytes of a handle's writes that the kernel, or our own stack, has not taken yet.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, _peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// channel.write(handle, "hello")?;
    /// channel.dispatch(None)?;
    /// assert_eq!(channel.unsent_bytes(handle)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn unsent_bytes(&self, handle: Handle) -> Result<usize, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        Ok(self.state.unsent_bytes(index))
    }

    /// Returns the bytes that the channel has received on a stream and that no read has taken yet.
    /// Bytes that lie in the kernel, or in our own stack, are not counted.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::{io::Write, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// peer.write_all(b"hello")?;
    /// channel.read(handle, 1)?;
    /// channel.dispatch(None)?;
    /// // The driver decides how far ahead it receives.
    /// assert!(channel.unread_bytes(handle)? <= 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unread_bytes(&self, handle: Handle) -> Result<usize, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        Ok(self.state.peek(index).unread_bytes as usize)
    }

    /// Returns the number of connections that the accepts of a listener still ask for; 0 for other
    /// handles.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Accept, Channel, Config, ListenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let address = "127.0.0.1:0".parse()?;
    /// let listener = channel.listen(&address, &ListenOptions::default(), 0)?;
    /// channel.accept(listener, Accept::lwsocket(3))?;
    /// assert_eq!(channel.accepts_left(listener)?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accepts_left(&mut self, listener: Handle) -> Result<u32, Misuse> {
        self.check_fork()?;
        let index = self.state.find(listener)?;
        Ok(self.state.accept_credit(index))
    }

    /// Requests a completion of the handle's last queued write, if that is a quiet one: a program
    /// that finds too many bytes unsent learns when there is room. Returns `false` if no write is
    /// queued.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, _peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// channel.write_quiet(handle, "hello")?;
    /// if channel.report_last_write(handle)? {
    ///     let done = channel.dispatch(None)?.expect("there is no time-out");
    ///     assert!(matches!(done.event, Event::Write(Ok(5))));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn report_last_write(&mut self, handle: Handle) -> Result<bool, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        let queue = self.state.peek(index).writes;
        let Some(last) = self.state.writes.back_mut(queue) else { return Ok(false) };
        last.quiet = false;
        Ok(last.is_data())
    }

    /// Sends several pieces of memory as one write, without joining them. (Only a message of more
    /// than 64 pieces is joined, because it has to be sent in one call.)
    ///
    /// # Errors
    /// [`Misuse`] and [`Limit`] as for [`Channel::write`]; also more than 1,024 pieces.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, _peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// channel.writev(handle, ["HTTP/1.1 200 OK\r\n\r\n".into(), vec![b'x'; 100].into()])?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Write(Ok(119))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Sends one message to an address: [`Event::SendTo`]. Completes with [`OpError::NoMemory`] if
    /// there is no memory to keep the address. Does not block.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no message socket, too many bytes. [`Limit`] as for
    /// [`Channel::write`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event, SocketKind};
    /// use std::net::UdpSocket;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let peer = UdpSocket::bind("127.0.0.1:0")?;
    /// let socket = channel.socket(SocketKind::Udp4, None, 0)?;
    /// channel.sendto(socket, "hello", &peer.local_addr()?.into())?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::SendTo(Ok(5))));
    /// let mut received = [0; 16];
    /// assert_eq!(peer.recv(&mut received)?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        if slot.phase == SlotPhase::Moving {
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

    /// Closes one or both directions of a connection, or resets it: [`Event::Disconnect`]. The
    /// handle stays registered until `unregister`. Does not block.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no connection.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Disconnect, Event};
    /// use std::{io::Read, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// channel.write_quiet(handle, "goodbye")?;
    /// // After what was written; reading goes on.
    /// channel.disconnect(handle, Disconnect::Write)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Disconnect(Ok(()))));
    /// let mut received = String::new();
    /// peer.read_to_string(&mut received)?;
    /// assert_eq!(received, "goodbye");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disconnect(&mut self, handle: Handle, how: Disconnect) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, "disconnect", Kind::is_socket)?;
        if self.state.slot(index).phase == SlotPhase::Moving {
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

    /// Completes when a connection is over in both directions: [`Event::End`]. For programs that
    /// have read to the end and write or wait on, but must notice a reset. Does not block.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no connection. [`Limit::Operations`]: its end is awaited
    /// already.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// channel.await_end(handle)?;
    /// drop(peer);
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::End(Ok(()))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn await_end(&mut self, handle: Handle) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, "await_end", Kind::is_stream)?;
        if self.state.slot(index).phase == SlotPhase::Moving {
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

    /// Converts a handle into a descriptor of the process, after the writes that are queued:
    /// [`Event::ToFd`] with the descriptor and the bytes received ahead. The handle is gone then.
    /// Queued reads complete as cancelled. Does not block.
    ///
    /// A connection of our own stack moves into a socket of the kernel, with its unread and unsent
    /// bytes, and the peer does not notice; [`Channel::take_over`] is the other direction. It has
    /// to be established, with neither side closed ([`OpError::NotConnected`] otherwise), and the
    /// process needs CAP_NET_ADMIN ([`OpError::PermissionDenied`]). If it does not move, it
    /// continues on the stack, and [`Channel::explain`] gives the reason.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no connection; [`Misuse::CannotMove`] for connections of our
    /// own stack on a link with an address of its own, and for its datagram sockets.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Accept, Channel, Config, Connection, Event, ListenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let listener = channel.listen(&"127.0.0.1:0".parse()?, &ListenOptions::default(), 0)?;
    /// channel.accept(listener, Accept::lwsocket(1))?;
    /// let address = channel.local_address(listener)?.as_inet().expect("a TCP address");
    /// let client = std::net::TcpStream::connect(address)?;
    /// let accepted = channel.dispatch(None)?.expect("there is no time-out");
    /// let Event::Accept(accepted) = accepted.event else { panic!("unexpected: {accepted:?}") };
    /// let Connection::Lwsocket(handle) = accepted?.connection else { panic!("no handle") };
    /// channel.to_fd(handle)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// let Event::ToFd(moved) = done.event else { panic!("unexpected: {done:?}") };
    /// let stream = std::net::TcpStream::from(moved?.fd);
    /// assert_eq!(stream.peer_addr()?, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_fd(&mut self, handle: Handle) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, "to_fd", Kind::is_socket)?;
        if self.state.slot(index).phase != SlotPhase::Open {
            return Err(Misuse::Closing.into());
        }
        self.check_movable(index)?;
        self.state.slot(index).phase = SlotPhase::Moving;
        let queued = self.queue_write(index, WriteOp::new(Body::ToFd, 0));
        if queued.is_err() {
            self.state.slot(index).phase = SlotPhase::Open;
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

    pub(crate) fn require(
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
pub(crate) fn joined(parts: &[Payload], len: usize) -> Result<Vec<u8>, Limit> {
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

pub(crate) fn check_len(len: usize, max: usize) -> Result<(), Misuse> {
    if (1..=max).contains(&len) { Ok(()) } else { Err(Misuse::InvalidLength { len, max }) }
}
