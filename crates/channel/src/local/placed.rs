//! The server of a channel, wherever it runs: inside `dispatch`, or on a thread of its own.
//!
//! Read first: `megapipe_service::Server` for what each call means; `megapipe_service`'s `apart.rs`
//! for how the calls go to another thread.
//!
//! Invariants
//! - What the rest of `local/` sees does not depend on the placement: names of connections, chunks
//!   in the channel's own memory, the same errors at the same calls.
//! - Inside `dispatch` nothing is in between: a call is the server's.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_service::{
    AcceptorId, Attachment, Clock, Next, NotShared, PortError, Server, Session, SessionCounters,
    Sharing, Slept, Told, Turn, Waiting,
};
use megapipe_stack::{
    BindError, Chunk, ConnId, ConnInfo, ConnOption, ConnectError, DatagramId, DatagramSharing,
    Departure, Event, Holder, Instant, ListenError, ListenerId, Memory, Notice, OperationError,
};

use super::beside::Beside;
use super::memory::{ChannelMemory, Received};
use crate::buffer::Payload;
use crate::completion::Arrival;

/// A channel's server.
#[expect(clippy::large_enum_variant, reason = "there is one, and its calls are on the hot path")]
pub(super) enum Placed {
    /// Turned inside `dispatch`.
    Inline(Server<ChannelMemory>),
    /// Turned on a thread beside, and used in place.
    Beside(Box<Beside>),
    /// On a thread of its own.
    Apart(Box<Apart>),
}

/// Says the same to a server in either of the places where this thread can use it; with the time of
/// the call, which is not before the server's own.
macro_rules! at_server {
    ($placed:expr, $server:ident => $here:expr, $apart:ident => $there:expr) => {
        match $placed {
            Self::Inline($server) => $here,
            Self::Beside(beside) => {
                let mut shared = beside.enter();
                let $server = &mut shared.server;
                $here
            }
            Self::Apart($apart) => $there,
        }
    };
    ($placed:expr, ($server:ident, $now:ident) => $here:expr, $apart:ident => $there:expr) => {
        match $placed {
            Self::Inline($server) => $here,
            Self::Beside(beside) => {
                let mut shared = beside.enter();
                let $now = shared.not_before($now);
                let $server = &mut shared.server;
                $here
            }
            Self::Apart($apart) => $there,
        }
    };
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
            Self::Beside(beside) => beside.turn(now),
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
            Self::Beside(beside) => {
                beside.end.flush();
                Ok(0)
            }
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
            Self::Beside(beside) => beside.event(),
            Self::Apart(apart) => apart.event(),
        }
    }

    pub(super) fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        match self {
            Self::Inline(server) => server.after_turn(worked, now),
            Self::Beside(beside) => beside.after_turn(worked, now),
            Self::Apart(apart) => apart.waiting.after_turn(worked, now),
        }
    }

    pub(super) fn arm(&mut self, now: Instant) -> Result<bool, LinkError> {
        match self {
            Self::Inline(server) => server.arm(now),
            Self::Beside(beside) => Ok(beside.arm()),
            Self::Apart(apart) => {
                apart.waiting.slept();
                Ok(apart.session.arm())
            }
        }
    }

    /// Sleeps where that needs no descriptors. `None`: it does.
    pub(super) fn sleep(&mut self, timeout: Option<Duration>) -> Option<Slept> {
        let Self::Beside(beside) = self else { return None };
        Some(beside.sleep(timeout)).filter(|slept| *slept != Slept::Polls)
    }

    /// How long it may sleep for the stack's timers' sake.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Inline(server) => server.patience(now),
            Self::Beside(_) | Self::Apart(_) => None,
        }
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Inline(server) => server.wait_fd(),
            Self::Beside(beside) => beside.end.wait_fd(),
            Self::Apart(apart) => apart.session.wait_fd(),
        }
    }

    pub(super) fn host_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Inline(server) => server.host_fd(),
            Self::Beside(_) | Self::Apart(_) => None,
        }
    }
}

/// Moves to the kernel and back.
impl Placed {
    /// The server, if it is turned by this thread.
    pub(super) fn inline(&mut self) -> Result<&mut Server<ChannelMemory>, NotShared> {
        match self {
            Self::Inline(server) => Ok(server),
            Self::Beside(_) | Self::Apart(_) => Err(NotShared::Apart),
        }
    }

    /// The index of the interface whose address the link shares with the kernel.
    ///
    /// # Errors
    /// No connection can move.
    pub(super) fn shared_interface(&self) -> Result<u32, NotShared> {
        match self {
            Self::Inline(server) => server.shared_interface(),
            _ if self.caps().shares_host_address => Err(NotShared::Apart),
            _ => Err(NotShared::OwnAddress),
        }
    }
}

/// After a fork.
impl Placed {
    /// This is the child: the parent's thread and rings are not touched.
    pub(super) fn abandon(&mut self) {
        match self {
            Self::Inline(_) => {}
            Self::Beside(beside) => beside.end.abandon(),
            Self::Apart(apart) => apart.session.abandon(),
        }
    }
}

/// Questions.
impl Placed {
    pub(super) fn caps(&self) -> &Caps {
        match self {
            Self::Inline(server) => server.caps(),
            Self::Beside(beside) => beside.end.caps(),
            Self::Apart(apart) => apart.session.caps(),
        }
    }

    pub(super) fn attachment(&self) -> Option<Attachment> {
        match self {
            Self::Inline(server) => server.attachment(),
            Self::Beside(beside) => beside.end.attachment(),
            Self::Apart(apart) => apart.session.attachment(),
        }
    }

    /// What went between the threads, where there are two.
    pub(super) fn counters(&self) -> SessionCounters {
        match self {
            Self::Inline(_) => SessionCounters::default(),
            Self::Beside(beside) => beside.end.counters(),
            Self::Apart(apart) => apart.session.counters(),
        }
    }

    /// A received chunk, as what a completion carries.
    #[inline]
    pub(super) fn received(&mut self, chunk: Chunk) -> Received {
        match self {
            Self::Inline(server) => server.parts().1.received(chunk),
            Self::Beside(beside) => beside.received(chunk),
            Self::Apart(apart) => apart.memory.received(chunk),
        }
    }

    /// A received chunk that nobody wants.
    pub(super) fn free_received(&mut self, chunk: Chunk) {
        at_server!(
            self,
            server => server.parts().1.free(chunk.buf),
            apart => apart.memory.free(chunk.buf)
        );
    }

    pub(super) fn info(&mut self, conn: ConnId) -> Option<ConnInfo> {
        at_server!(
            self,
            server => server.stack().info(conn).ok(),
            apart => {
                let conn = apart.session.named(conn)?;
                apart.session.call(move |server| server.stack().info(conn).ok())?
            }
        )
    }

    pub(super) fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        at_server!(
            self,
            server => server.stack().addresses(conn).ok(),
            apart => {
                // One that is being opened is named as soon as the server has seen the op.
                let conn = apart.session.named_soon(conn)?;
                apart.session.call(move |server| server.stack().addresses(conn).ok())?
            }
        )
    }

    /// How the datagram arrived that was told of last.
    pub(super) fn last_arrival(&mut self) -> Option<Arrival> {
        let megapipe_stack::Arrival { to, hop_limit, traffic_class } = at_server!(
            self,
            server => server.stack().last_arrival(),
            apart => apart.session.last_arrival()?
        );
        Some(Arrival { to, hop_limit, traffic_class })
    }

    /// What said so, if a datagram that did not get there was told of last, once.
    pub(super) fn take_notice(&mut self) -> Option<Notice> {
        at_server!(
            self,
            server => server.parts().0.take_notice(),
            apart => {
                let notice = apart.session.take_notice()?;
                Some(Notice { quote: notice.quote.map(|chunk| apart.take_in(chunk)), ..notice })
            }
        )
    }

    /// Notices of an endpoint come with what they quote, or without.
    pub(super) fn quote_errors(
        &mut self,
        endpoint: DatagramId,
        on: bool,
    ) -> Result<(), OperationError> {
        at_server!(
            self,
            server => server.parts().0.quote_errors(endpoint, on),
            apart => {
                apart
                    .session
                    .call(move |server| server.parts().0.quote_errors(endpoint, on))
                    .unwrap_or(Err(OperationError::Unknown))
            }
        )
    }

    /// Bytes of the longest packet of a datagram to `to`.
    pub(super) fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        at_server!(
            self,
            server => Some(server.stack().packet_bytes_max(to)),
            apart => { apart.session.call(move |server| server.stack().packet_bytes_max(to)) }
        )
    }

    pub(super) fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr> {
        at_server!(
            self,
            server => server.stack().datagram_address(endpoint).ok(),
            apart => {
                apart.session.call(move |server| server.stack().datagram_address(endpoint).ok())?
            }
        )
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
        at_server!(
            self,
            (server, now) => server.listen(now, local, backlog, sharing),
            apart => apart
                .session
                .call(move |server| server.listen(Clock::new().now(), local, backlog, sharing))
                .unwrap_or_else(|| Err(PortError::Host(gone())))
        )
    }

    pub(super) fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        at_server!(
            self,
            server => server.share(listener, sharing),
            apart => apart
                .session
                .call(move |server| server.share(listener, sharing))
                .unwrap_or_else(|| Err(PortError::Host(gone())))
        )
    }

    pub(super) fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        at_server!(
            self,
            server => server.parts().0.set_listener_fast_open(listener, pending_max),
            apart => apart
                .session
                .call(move |server| server.parts().0.set_listener_fast_open(listener, pending_max))
                .unwrap_or(Err(OperationError::Unknown))
        )
    }

    pub(super) fn is_listening(&mut self, local: SocketAddr) -> bool {
        at_server!(
            self,
            server => server.is_listening(local),
            apart => {
                apart.session.call(move |server| server.is_listening(local)).unwrap_or(false)
            }
        )
    }

    pub(super) fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: AcceptorId,
        count: u32,
    ) -> Result<(), OperationError> {
        at_server!(
            self,
            server => server.accept(listener, acceptor, count),
            apart => {
                apart.session.accept(listener, acceptor, count);
                Ok(())
            }
        )
    }

    pub(super) fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        at_server!(
            self,
            (server, now) => server.unlisten(now, listener),
            apart => {
                // When this returns, the address is free.
                apart.session.call(move |server| server.unlisten(Clock::new().now(), listener));
            }
        )
    }

    pub(super) fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        at_server!(
            self,
            server => server.bind(local, sharing),
            apart => apart
                .session
                .call(move |server| server.bind(local, sharing))
                .unwrap_or_else(|| Err(PortError::Host(gone())))
        )
    }

    /// As [`megapipe_stack::Stack::holders`].
    pub(super) fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        at_server!(
            self,
            server => server.stack().holders(ports),
            apart => {
                apart.session.call(move |server| server.stack().holders(ports)).unwrap_or_default()
            }
        )
    }

    /// As [`megapipe_stack::Stack::port_without_connections`].
    pub(super) fn port_without_connections(
        &mut self,
        ports: RangeInclusive<u16>,
        from: u16,
    ) -> Option<u16> {
        at_server!(
            self,
            server => server.stack().port_without_connections(ports, from),
            apart => {
                let ask = move |server: &mut Server<_>| {
                    server.stack().port_without_connections(ports, from)
                };
                apart.session.call(ask)?
            }
        )
    }

    pub(super) fn connect_datagram(
        &mut self,
        endpoint: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        at_server!(
            self,
            server => server.parts().0.connect_datagram(endpoint, peer),
            apart => apart
                .session
                .call(move |server| server.parts().0.connect_datagram(endpoint, peer))
                .unwrap_or(Err(OperationError::Unknown))
        )
    }

    pub(super) fn close_datagram(&mut self, endpoint: DatagramId) {
        at_server!(
            self,
            server => server.close_datagram(endpoint),
            apart => {
                apart.session.call(move |server| server.close_datagram(endpoint));
            }
        )
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
            Self::Beside(beside) => {
                let chunk = beside.keep(payload);
                let sent = {
                    let mut shared = beside.enter();
                    let now = shared.not_before(now);
                    let (stack, memory) = shared.server.parts();
                    stack.send_datagram_as(now, endpoint, (to, chunk, departure), memory)
                };
                sent.inspect_err(|_| beside.discard(chunk))
            }
            Self::Apart(apart) => {
                if payload.len() > usize::from(u16::MAX) {
                    return Err(OperationError::TooLong);
                }
                let (bytes, departure) = (Box::<[u8]>::from(payload.as_slice()), *departure);
                let sent = apart.session.call(move |server| {
                    let (stack, memory) = server.parts();
                    let chunk = memory.keep(bytes);
                    let what = (to, chunk, &departure);
                    stack
                        .send_datagram_as(Clock::new().now(), endpoint, what, memory)
                        .inspect_err(|_| memory.free(chunk.buf))
                });
                sent.unwrap_or(Err(OperationError::Unknown))
            }
        }
    }

    /// Sends pieces of the payload of `segment_len` bytes, the last one perhaps shorter, as a
    /// datagram each: all or none.
    pub(super) fn send_datagrams(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        (mut payload, segment_len): (Payload, usize),
    ) -> Result<(), OperationError> {
        let mut chunks = Vec::with_capacity(payload.len().div_ceil(segment_len.max(1)));
        match self {
            Self::Inline(server) => {
                while !payload.is_empty() {
                    chunks.push(server.parts().1.keep(payload.split_to(segment_len)));
                }
                server.make_datagram_room(now, endpoint, chunks.len());
                let sent = server.send_datagrams(now, endpoint, (to, departure), &chunks);
                sent.inspect_err(|_| {
                    for chunk in chunks {
                        drop(server.parts().1.give_back(chunk));
                    }
                })
            }
            Self::Beside(beside) => {
                while !payload.is_empty() {
                    chunks.push(beside.keep(payload.split_to(segment_len)));
                }
                let sent = beside.send_datagrams(now, endpoint, (to, departure), &chunks);
                sent.inspect_err(|_| chunks.into_iter().for_each(|it| beside.discard(it)))
            }
            Self::Apart(apart) => {
                let pieces: Vec<Box<[u8]>> =
                    payload.as_slice().chunks(segment_len).map(Box::from).collect();
                let departure = *departure;
                let sent = apart.session.call(move |server| {
                    let now = Clock::new().now();
                    let memory = server.parts().1;
                    chunks.extend(pieces.into_iter().map(|piece| memory.keep(piece)));
                    server.make_datagram_room(now, endpoint, chunks.len());
                    let sent = server.send_datagrams(now, endpoint, (to, &departure), &chunks);
                    sent.inspect_err(|_| {
                        chunks.iter().for_each(|chunk| server.parts().1.free(chunk.buf));
                    })
                });
                sent.unwrap_or(Err(OperationError::Unknown))
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
            Self::Beside(beside) => {
                let mut shared = beside.enter();
                let now = shared.not_before(now);
                connect(&mut shared.server, now, (remote, local), nodelay)
            }
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
        at_server!(
            self,
            (server, now) => server.parts().0.receive(now, conn),
            apart => apart.session.receive(conn)
        )
    }

    pub(super) fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        at_server!(
            self,
            server => server.parts().0.await_acks(conn),
            apart => apart.session.await_acks(conn)
        )
    }

    /// As `await_acks`, for who waits for acknowledgments and not for room.
    pub(super) fn await_delivery(&mut self, conn: ConnId) -> Result<(), OperationError> {
        at_server!(
            self,
            server => server.parts().0.await_acks(conn),
            apart => apart.session.await_delivery(conn)
        )
    }

    /// Sets an option, after what was asked for before.
    pub(super) fn set_option(
        &mut self,
        now: Instant,
        conn: ConnId,
        option: ConnOption,
    ) -> Result<(), OperationError> {
        at_server!(
            self,
            (server, now) => set_option(server, now, conn, option),
            apart => apart.session.set_option(conn, option)
        )
    }

    /// Closed by us before, or by the peer meanwhile: what was asked for is so.
    pub(super) fn shutdown(&mut self, now: Instant, conn: ConnId) {
        at_server!(
            self,
            (server, now) => {
                let (stack, memory) = server.parts();
                let _ = stack.shutdown(now, conn, memory);
            },
            apart => apart.session.shutdown(conn)
        )
    }

    pub(super) fn close(&mut self, now: Instant, conn: ConnId) {
        at_server!(
            self,
            (server, now) => {
                let (stack, memory) = server.parts();
                // One that is over already needs no end.
                let _ = stack.close(now, conn, memory);
            },
            apart => apart.session.close(conn)
        )
    }

    pub(super) fn abort(&mut self, now: Instant, conn: ConnId) {
        at_server!(
            self,
            (server, now) => server.refuse(now, conn),
            apart => apart.session.abort(conn)
        )
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
            Self::Beside(_) | Self::Apart(_) => Vec::new(),
        }
    }

    pub(super) fn hold_elsewhere(&mut self, ports: &[SocketAddr]) -> Result<(), LinkError> {
        match self {
            Self::Inline(server) => server.hold_elsewhere(ports),
            // It covers none.
            Self::Beside(_) | Self::Apart(_) => Ok(()),
        }
    }

    pub(super) fn give_back(
        &mut self,
        now: Instant,
        ports: &[SocketAddr],
    ) -> Result<usize, LinkError> {
        match self {
            Self::Inline(server) => server.give_back(now, ports),
            Self::Beside(_) | Self::Apart(_) => Ok(0),
        }
    }
}
