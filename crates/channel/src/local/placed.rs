//! The server of a channel, wherever it runs: inside `dispatch`, or on a thread of its own.
//!
//! Read first: `megapipe_service::Server` for what each call means; `megapipe_service`'s `apart.rs`
//! for how the calls go to another thread.
//!
//! Invariants
//! - What the rest of `local/` sees does not depend on the placement: names of connections, chunks
//!   in the channel's own memory, the same errors at the same calls.
//! - Inside `dispatch` nothing is in between: a call is the server's.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_service::{
    AcceptorId, Attachment, Clock, Next, NotShared, PortError, Server, Session, SessionCounters,
    Sharing, Told, Turn, Waiting,
};
use megapipe_stack::{
    BindError, Chunk, ConnId, ConnInfo, ConnOption, ConnectError, DatagramId, Departure, Event,
    Instant, ListenError, ListenerId, Memory, OperationError,
};

use super::memory::ChannelMemory;
use crate::buffer::Payload;
use crate::completion::Arrival;

/// A channel's server.
#[expect(clippy::large_enum_variant, reason = "there is one, and its calls are on the hot path")]
pub(super) enum Placed {
    /// Turned inside `dispatch`.
    Inline(Server<ChannelMemory>),
    /// On a thread of its own.
    Apart(Box<Apart>),
}

/// The application's end of a server on a thread of its own.
pub(super) struct Apart {
    session: Session,
    memory: ChannelMemory,
    waiting: Waiting,
}

impl Apart {
    /// The server's receive buffers are as long as the channel's. `spin`: how long to wait awake
    /// for events.
    pub(super) fn new(session: Session, memory: ChannelMemory, spin: Duration) -> Self {
        Self { session, memory, waiting: Waiting::new(spin) }
    }

    /// Moves a received chunk into the channel's memory.
    #[inline]
    fn take_in(&mut self, chunk: Chunk) -> Chunk {
        let Self { session, memory, .. } = self;
        memory.take_in(chunk.len, |to| session.take_bytes(chunk, to))
    }

    /// Hands a short message over; `false`: nothing was sent.
    #[inline]
    pub(super) fn send_short(&mut self, conn: ConnId, bytes: &[u8]) -> bool {
        self.session.send_short(conn, bytes)
    }

    /// Copies what there is room for, and cuts it off the payload. How many bytes.
    pub(super) fn send_front(
        &mut self,
        conn: ConnId,
        part: &mut Payload,
    ) -> Result<usize, OperationError> {
        let sent = self.session.send(conn, part.as_slice())?;
        if sent == part.len() {
            *part = Payload::Static(&[]);
        } else {
            drop(part.split_to(sent));
        }
        Ok(sent)
    }

    /// Copies what there is room for; what is left of `bytes`, after an error all.
    pub(super) fn send_copy<'bytes>(&mut self, conn: ConnId, bytes: &'bytes [u8]) -> &'bytes [u8] {
        let sent = self.session.send(conn, bytes).unwrap_or(0);
        bytes.get(sent..).unwrap_or_default()
    }

    #[inline]
    fn event(&mut self) -> Option<Told> {
        let told = self.session.event()?;
        Some(match told {
            Told::Event(Event::Received { conn, chunk }, offer) => {
                Told::Event(Event::Received { conn, chunk: self.take_in(chunk) }, offer)
            }
            Told::Event(Event::Datagram { endpoint, from, chunk }, offer) => {
                let chunk = self.take_in(chunk);
                Told::Event(Event::Datagram { endpoint, from, chunk }, offer)
            }
            told => told,
        })
    }
}

/// What a server that is gone answers.
const fn gone() -> LinkError {
    LinkError::Gone { driver: "the server" }
}

/// Turns and waiting.
impl Placed {
    pub(super) fn turn(&mut self, now: Instant) -> Result<Turn, LinkError> {
        match self {
            Self::Inline(server) => server.turn(now),
            Self::Apart(apart) => {
                apart.session.wake_up();
                apart.session.flush();
                apart.session.check()?;
                Ok(Turn::default())
            }
        }
    }

    pub(super) fn transmit(&mut self, now: Instant) -> Result<usize, LinkError> {
        match self {
            Self::Inline(server) => server.transmit(now),
            Self::Apart(apart) => {
                apart.session.flush();
                Ok(0)
            }
        }
    }

    #[inline]
    pub(super) fn event(&mut self) -> Option<Told> {
        match self {
            Self::Inline(server) => server.event().map(|(event, offer)| Told::Event(event, offer)),
            Self::Apart(apart) => apart.event(),
        }
    }

    pub(super) fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        match self {
            Self::Inline(server) => server.after_turn(worked, now),
            Self::Apart(apart) => apart.waiting.after_turn(worked, now),
        }
    }

    pub(super) fn arm(&mut self, now: Instant) -> Result<bool, LinkError> {
        match self {
            Self::Inline(server) => server.arm(now),
            Self::Apart(apart) => {
                apart.waiting.slept();
                Ok(apart.session.arm())
            }
        }
    }

    /// How long it may sleep for the stack's timers' sake.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Inline(server) => server.patience(now),
            Self::Apart(_) => None,
        }
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Inline(server) => server.wait_fd(),
            Self::Apart(apart) => apart.session.wait_fd(),
        }
    }

    pub(super) fn host_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Inline(server) => server.host_fd(),
            Self::Apart(_) => None,
        }
    }
}

/// Moves to the kernel and back.
impl Placed {
    /// The server, if it is turned by this thread.
    pub(super) fn inline(&mut self) -> Result<&mut Server<ChannelMemory>, NotShared> {
        match self {
            Self::Inline(server) => Ok(server),
            Self::Apart(_) => Err(NotShared::Apart),
        }
    }

    /// The index of the interface whose address the link shares with the kernel.
    ///
    /// # Errors
    /// No connection can move.
    pub(super) fn shared_interface(&self) -> Result<u32, NotShared> {
        match self {
            Self::Inline(server) => server.shared_interface(),
            Self::Apart(_) if self.caps().shares_host_address => Err(NotShared::Apart),
            Self::Apart(_) => Err(NotShared::OwnAddress),
        }
    }
}

/// After a fork.
impl Placed {
    /// This is the child: the parent's thread and rings are not touched.
    pub(super) fn abandon(&mut self) {
        if let Self::Apart(apart) = self {
            apart.session.abandon();
        }
    }
}

/// Questions.
impl Placed {
    pub(super) fn caps(&self) -> &Caps {
        match self {
            Self::Inline(server) => server.caps(),
            Self::Apart(apart) => apart.session.caps(),
        }
    }

    pub(super) fn attachment(&self) -> Option<Attachment> {
        match self {
            Self::Inline(server) => server.attachment(),
            Self::Apart(apart) => apart.session.attachment(),
        }
    }

    /// What went between the threads, where there are two.
    pub(super) fn counters(&self) -> SessionCounters {
        match self {
            Self::Inline(_) => SessionCounters::default(),
            Self::Apart(apart) => apart.session.counters(),
        }
    }

    pub(super) fn memory(&mut self) -> &mut ChannelMemory {
        match self {
            Self::Inline(server) => server.parts().1,
            Self::Apart(apart) => &mut apart.memory,
        }
    }

    pub(super) fn info(&mut self, conn: ConnId) -> Option<ConnInfo> {
        match self {
            Self::Inline(server) => server.stack().info(conn).ok(),
            Self::Apart(apart) => {
                let conn = apart.session.named(conn)?;
                apart.session.call(move |server| server.stack().info(conn).ok())?
            }
        }
    }

    pub(super) fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Inline(server) => server.stack().addresses(conn).ok(),
            Self::Apart(apart) => {
                // One that is being opened is named as soon as the server has seen the op.
                let conn = apart.session.named_soon(conn)?;
                apart.session.call(move |server| server.stack().addresses(conn).ok())?
            }
        }
    }

    /// How the datagram arrived that was told of last; a server on a thread of its own does not
    /// say.
    pub(super) fn last_arrival(&self) -> Option<Arrival> {
        let Self::Inline(server) = self else { return None };
        let megapipe_stack::Arrival { to, hop_limit, traffic_class } =
            server.stack().last_arrival();
        Some(Arrival { to, hop_limit, traffic_class })
    }

    pub(super) fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr> {
        match self {
            Self::Inline(server) => server.stack().datagram_address(endpoint).ok(),
            Self::Apart(apart) => {
                apart.session.call(move |server| server.stack().datagram_address(endpoint).ok())?
            }
        }
    }
}

/// Listeners and endpoints.
impl Placed {
    pub(super) fn listen(
        &mut self,
        now: Instant,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        match self {
            Self::Inline(server) => server.listen(now, local, backlog, sharing),
            Self::Apart(apart) => apart
                .session
                .call(move |server| server.listen(Clock::new().now(), local, backlog, sharing))
                .unwrap_or_else(|| Err(PortError::Host(gone()))),
        }
    }

    pub(super) fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        match self {
            Self::Inline(server) => server.share(listener, sharing),
            Self::Apart(apart) => apart
                .session
                .call(move |server| server.share(listener, sharing))
                .unwrap_or_else(|| Err(PortError::Host(gone()))),
        }
    }

    pub(super) fn is_listening(&mut self, local: SocketAddr) -> bool {
        match self {
            Self::Inline(server) => server.is_listening(local),
            Self::Apart(apart) => {
                apart.session.call(move |server| server.is_listening(local)).unwrap_or(false)
            }
        }
    }

    pub(super) fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: AcceptorId,
        count: u32,
    ) -> Result<(), OperationError> {
        match self {
            Self::Inline(server) => server.accept(listener, acceptor, count),
            Self::Apart(apart) => {
                apart.session.accept(listener, acceptor, count);
                Ok(())
            }
        }
    }

    pub(super) fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        match self {
            Self::Inline(server) => server.unlisten(now, listener),
            Self::Apart(apart) => {
                // When this returns, the address is free.
                apart.session.call(move |server| server.unlisten(Clock::new().now(), listener));
            }
        }
    }

    pub(super) fn bind(&mut self, local: SocketAddr) -> Result<DatagramId, PortError<BindError>> {
        match self {
            Self::Inline(server) => server.bind(local),
            Self::Apart(apart) => apart
                .session
                .call(move |server| server.bind(local))
                .unwrap_or_else(|| Err(PortError::Host(gone()))),
        }
    }

    pub(super) fn close_datagram(&mut self, endpoint: DatagramId) {
        match self {
            Self::Inline(server) => server.close_datagram(endpoint),
            Self::Apart(apart) => {
                apart.session.call(move |server| server.close_datagram(endpoint));
            }
        }
    }

    pub(super) fn send_datagram(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        payload: Payload,
    ) -> Result<(), OperationError> {
        match self {
            Self::Inline(server) => {
                let (stack, memory) = server.parts();
                let chunk = memory.keep(payload);
                stack
                    .send_datagram_as(now, endpoint, (to, chunk, departure), memory)
                    .inspect_err(|_| drop(memory.give_back(chunk)))
            }
            Self::Apart(apart) => {
                if payload.len() > usize::from(u16::MAX) {
                    return Err(OperationError::TooLong);
                }
                let chunk = apart.session.keep(payload.as_slice());
                let chunk = chunk.ok_or(OperationError::QueueFull)?;
                let departure = *departure;
                let sent = apart.session.call(move |server| {
                    let (stack, memory) = server.parts();
                    let what = (to, chunk, &departure);
                    stack.send_datagram_as(Clock::new().now(), endpoint, what, memory)
                });
                let sent = sent.unwrap_or(Err(OperationError::Unknown));
                sent.inspect_err(|_| apart.session.discard(chunk))
            }
        }
    }
}

/// Connections.
impl Placed {
    /// Begins to connect. `nodelay`: whether small segments go at once, if not as the configuration
    /// has it.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        nodelay: Option<bool>,
    ) -> Result<ConnId, PortError<ConnectError>> {
        match self {
            Self::Inline(server) => connect(server, now, (remote, local), nodelay),
            Self::Apart(apart) if local.is_none() && nodelay.is_none() => {
                Ok(apart.session.connect(remote))
            }
            Self::Apart(apart) => {
                let ends = (remote, local);
                let begun = apart
                    .session
                    .call(move |server| connect(server, Clock::new().now(), ends, nodelay))
                    .unwrap_or_else(|| Err(PortError::Host(gone())));
                begun.map(|conn| apart.session.adopt(conn))
            }
        }
    }

    #[inline]
    pub(super) fn receive(&mut self, now: Instant, conn: ConnId) -> Result<(), OperationError> {
        match self {
            Self::Inline(server) => server.parts().0.receive(now, conn),
            Self::Apart(apart) => apart.session.receive(conn),
        }
    }

    pub(super) fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        match self {
            Self::Inline(server) => server.parts().0.await_acks(conn),
            Self::Apart(apart) => apart.session.await_acks(conn),
        }
    }

    /// As `await_acks`, for who waits for acknowledgments and not for room.
    pub(super) fn await_delivery(&mut self, conn: ConnId) -> Result<(), OperationError> {
        match self {
            Self::Inline(server) => server.parts().0.await_acks(conn),
            Self::Apart(apart) => apart.session.await_delivery(conn),
        }
    }

    /// Sets an option, after what was asked for before.
    pub(super) fn set_option(
        &mut self,
        now: Instant,
        conn: ConnId,
        option: ConnOption,
    ) -> Result<(), OperationError> {
        match self {
            Self::Inline(server) => set_option(server, now, conn, option),
            Self::Apart(apart) => {
                let conn = apart.session.named_soon(conn).ok_or(OperationError::Unknown)?;
                apart
                    .session
                    .call(move |server| set_option(server, Clock::new().now(), conn, option))
                    .unwrap_or(Err(OperationError::Unknown))
            }
        }
    }

    /// Closed by us before, or by the peer meanwhile: what was asked for is so.
    pub(super) fn shutdown(&mut self, now: Instant, conn: ConnId) {
        match self {
            Self::Inline(server) => {
                let (stack, memory) = server.parts();
                let _ = stack.shutdown(now, conn, memory);
            }
            Self::Apart(apart) => apart.session.shutdown(conn),
        }
    }

    pub(super) fn close(&mut self, now: Instant, conn: ConnId) {
        match self {
            Self::Inline(server) => {
                let (stack, memory) = server.parts();
                // One that is over already needs no end.
                let _ = stack.close(now, conn, memory);
            }
            Self::Apart(apart) => apart.session.close(conn),
        }
    }

    pub(super) fn abort(&mut self, now: Instant, conn: ConnId) {
        match self {
            Self::Inline(server) => server.refuse(now, conn),
            Self::Apart(apart) => apart.session.abort(conn),
        }
    }
}

fn set_option<M: Memory>(
    server: &mut Server<M>,
    now: Instant,
    conn: ConnId,
    option: ConnOption,
) -> Result<(), OperationError> {
    let (stack, memory) = server.parts();
    stack.set_option(now, conn, option, memory)
}

/// Begins to connect, with the options that hold from the first segment on.
fn connect<M: Memory>(
    server: &mut Server<M>,
    now: Instant,
    (remote, local): (SocketAddr, Option<SocketAddr>),
    nodelay: Option<bool>,
) -> Result<ConnId, PortError<ConnectError>> {
    let conn = server.connect(now, remote, local)?;
    if let Some(nodelay) = nodelay {
        let set = set_option(server, now, conn, ConnOption::NoDelay(nodelay));
        debug_assert!(set.is_ok(), "the connection was made just now");
    }
    Ok(conn)
}

/// Ports of the host's that listening sockets of the program stand for.
impl Placed {
    /// As [`Server::covered`]; a server on a thread of its own takes none over.
    pub(super) fn covered(&self, bound: SocketAddr, is_dual: bool) -> Vec<SocketAddr> {
        match self {
            Self::Inline(server) => server.covered(bound, is_dual),
            Self::Apart(_) => Vec::new(),
        }
    }

    pub(super) fn hold_elsewhere(&mut self, ports: &[SocketAddr]) -> Result<(), LinkError> {
        match self {
            Self::Inline(server) => server.hold_elsewhere(ports),
            // It covers none.
            Self::Apart(_) => Ok(()),
        }
    }

    pub(super) fn give_back(
        &mut self,
        now: Instant,
        ports: &[SocketAddr],
    ) -> Result<usize, LinkError> {
        match self {
            Self::Inline(server) => server.give_back(now, ports),
            Self::Apart(_) => Ok(0),
        }
    }
}
