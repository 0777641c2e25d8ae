//! The combined server: link, transport and connection manager of one core, in one loop.
//!
//! ```text
//!            poll(now):   transmit  ->  receive  ->  timers
//!                            |             |            |
//!   commands (calls) --> [ transport server: the stack ] --> event()
//!                            |             ^
//!                          [ link server: one queue ]
//! ```
//!
//! Before these, a poll looks whether the host's interface changed; between transmit and receive it
//! takes connections that other servers hand over, since the frames may be theirs.
//!
//! What the events of one poll make the application send leaves at the start of the next: an
//! acknowledgment rides on the answer, and frames leave in bursts.
//!
//! The same loop runs in `dispatch`, on a second thread (`shared_thread.rs`) or on a core of its
//! own (`remote.rs`).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

use megapipe_link::{Caps, LinkError, Transport};
use megapipe_stack::{
    BindError, Chunk, ConnId, ConnectError, DatagramId, DatagramSharing, Departure, Event,
    Handover, Instant, ListenError, ListenerId, LocalPeer, Memory, OperationError, PoolId,
    Received, Stack,
};

use crate::adaptive_spin::{AdaptiveSpin, Next, Usage};
use crate::client_ports::client_ports;
use crate::clock::Clock;
use crate::config::ServerConfig;
use crate::connection_manager::{AcceptorId, ConnectionManager, Offer};
use crate::error::{PortError, ServerError};
use crate::host::Host;
use crate::limits::{SHUTDOWN_POLLS_MAX, SHUTDOWN_ROOM_WAIT, UNIT_WORK};
use crate::link_server::{Frames, LinkServer};
use crate::rx_mux::{Attachment, FrameSink};
use crate::sharing::{ShardBindings, Sharing};
use crate::steering::SteeringKey;
use crate::transport_server::TransportServer;

/// What a poll did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PollCounts {
    /// Frames taken from the link.
    pub frames_in: usize,
    /// Frames handed to it.
    pub frames_out: usize,
    /// Connections that other shards handed over.
    pub handovers: usize,
    /// A timer was due.
    pub timers: bool,
}

impl PollCounts {
    /// It did anything at all.
    #[must_use]
    pub const fn worked(&self) -> bool {
        self.frames_in > 0 || self.frames_out > 0 || self.handovers > 0 || self.timers
    }
}

/// One core's servers, composed.
pub struct Server<M> {
    pub(crate) link: LinkServer,
    pub(crate) transport: TransportServer<M>,
    manager: ConnectionManager,
    adaptive_spin: AdaptiveSpin,
    clock: Clock,
    /// Where the link shares the host's address.
    pub(crate) host: Option<Host>,
    /// What it has bound, where other shards have the same addresses.
    shared: Option<ShardBindings>,
    /// A connection that was taken out, on its way to another listener.
    taken_out: Option<(ConnId, Handover)>,
    /// Pool of the received bytes of what is opened next.
    pool: PoolId,
}

/// A poll's frames on their way into the stack.
struct Arriving<'a, M> {
    now: Instant,
    transport: &'a mut TransportServer<M>,
    /// Connections that were handed over, and that the stack has no listener or room for.
    left: Vec<Handover>,
}

impl<M: Memory> FrameSink for Arriving<'_, M> {
    fn knows(&self, ends: &SteeringKey) -> bool {
        self.transport.stack().knows(ends.dst, ends.src)
    }

    #[inline]
    fn on_frame(&mut self, frame: &[u8], received: Received) {
        let (stack, memory) = self.transport.parts();
        stack.on_frame(self.now, frame, received, memory);
    }

    fn on_stray(&mut self, frame: &[u8], received: Received) {
        let (stack, memory) = self.transport.parts();
        stack.on_stray_frame(self.now, frame, received, memory);
    }

    fn refuse(&mut self, frame: &[u8], received: Received) {
        let (stack, memory) = self.transport.parts();
        stack.refuse_frame(self.now, frame, received, memory);
    }

    fn on_handover(&mut self, handover: Handover) {
        let (stack, memory) = self.transport.parts();
        self.left.extend(stack.take_over(self.now, handover, memory).err());
    }
}

impl<M: Memory> Server<M> {
    /// A server on one queue of a link, or on its share of all, with payload in `memory`.
    ///
    /// # Errors
    /// [`ServerError`]: a setting that does not fit the link, or no randomness.
    pub fn new(
        frames: Frames,
        config: &ServerConfig,
        memory: M,
        now: Instant,
    ) -> Result<Self, ServerError> {
        let mut config = config.clone();
        let link = LinkServer::new(frames);
        let host = match &config.interface {
            Some(interface) if link.caps().shares_host_address => {
                let mut host = Host::open(interface)?;
                if config.addresses.is_empty() {
                    config.addresses = host.addresses().to_vec();
                }
                host.share(&config.addresses)?;
                Some(host)
            }
            _ => None,
        };
        let secret = config.secret.map_or_else(secret, Ok)?;
        let stack = config.stack(link.caps(), secret)?;
        let mut server = Self {
            shared: link.attachment().map(ShardBindings::new),
            link,
            transport: TransportServer::new(stack, memory, now)?,
            manager: ConnectionManager::new(),
            adaptive_spin: AdaptiveSpin::of(&config.waits),
            clock: config.clock,
            host,
            taken_out: None,
            pool: PoolId::default(),
        };
        server.reach_own_ports_only();
        server.look_at_host(now, true)?;
        Ok(server)
    }

    /// Where the host's address is shared, other ports of it are the kernel's, which has no way to
    /// the stack.
    fn reach_own_ports_only(&mut self) {
        let Some(host) = &self.host else { return };
        let (own_ports, attachment) = (host.own_ports(), self.link.attachment());
        let filter = move |peer| {
            let (transport, at) = match peer {
                LocalPeer::Stream(at) => (Transport::Tcp, at),
                LocalPeer::Datagram(at) => (Transport::Udp, at),
            };
            let of_shards = || attachment.as_ref().is_some_and(|it| it.owns(transport, at.port()));
            own_ports.contain(transport, at.port()) || of_shards()
        };
        let (stack, _) = self.transport.parts();
        stack.set_local_peer_filter(Box::new(filter));
    }

    #[inline]
    fn look_at_host(&mut self, now: Instant, at_once: bool) -> Result<bool, LinkError> {
        let Some(host) = &mut self.host else { return Ok(false) };
        host.look_after_moved(now, &mut self.link, self.transport.stack());
        host.look_after_reserved(now, &mut self.link, self.transport.stack());
        host.look(now, &mut self.transport, at_once)
    }

    /// One poll: hands over what is to be sent, takes what has come, runs what is due.
    ///
    /// # Errors
    /// What the link says; the connections stay as they are.
    pub fn poll(&mut self, now: Instant) -> Result<PollCounts, LinkError> {
        self.look_at_host(now, false)?;
        let frames_out = self.transmit(now)?;
        // Before the frames, which may be theirs.
        let handovers = self.take_handovers(now);
        let frames_in = self.receive(now)?;
        let timers = self.transport.on_time(now);
        Ok(PollCounts { frames_in, frames_out, handovers, timers })
    }

    /// Takes what has come, a poll's share of it. How many frames.
    ///
    /// # Errors
    /// What the link says.
    #[inline]
    pub fn receive(&mut self, now: Instant) -> Result<usize, LinkError> {
        let Self { link, transport, .. } = self;
        let mut arriving = Arriving { now, transport, left: Vec::new() };
        let received = link.receive(&mut arriving);
        for handover in arriving.left {
            self.hand_over(now, handover);
        }
        received
    }

    /// Takes what came back without the link. How many frames.
    #[cold]
    fn receive_looped(&mut self, now: Instant) -> usize {
        let Self { link, transport, .. } = self;
        let mut arriving = Arriving { now, transport, left: Vec::new() };
        let count = link.receive_looped(&mut arriving);
        for handover in arriving.left {
            self.hand_over(now, handover);
        }
        count
    }

    /// Hands over what is to be sent, a poll's share of it. How many frames. Those for the stack's
    /// own addresses arrive at once, here or at another shard.
    ///
    /// # Errors
    /// What the link says.
    pub fn transmit(&mut self, now: Instant) -> Result<usize, LinkError> {
        let Self { link, transport, .. } = self;
        let (stack, memory) = transport.parts();
        let has_local_peers = stack.has_local_peers();
        let sent =
            link.transmit((now, has_local_peers), |room| stack.poll_transmit(now, room, memory))?;
        if has_local_peers && self.link.has_looped() {
            self.receive_looped(now);
        }
        Ok(sent)
    }

    /// The next event. A new connection comes with the acceptor that it is offered to.
    #[inline]
    pub fn event(&mut self) -> Option<(Event, Option<Offer>)> {
        let (event, offer) = self.offered_event()?;
        Some((event, offer.map(|(_, offer)| offer)))
    }

    /// As [`Stack::poll_bytes`].
    #[inline]
    pub(crate) fn next_bytes(&mut self) -> Option<(ConnId, Chunk)> {
        self.transport.parts().0.poll_bytes()
    }

    /// As [`Server::event`], with the session of that acceptor.
    #[inline]
    pub(crate) fn offered_event(&mut self) -> Option<(Event, Option<(PoolId, Offer)>)> {
        let event = self.transport.parts().0.poll_event()?;
        let offer = match event {
            Event::Incoming { listener, .. } => self.manager.on_incoming(listener),
            _ => None,
        };
        Some((event, offer))
    }

    /// Whether to poll again at once or to sleep, after a poll that worked or not. To be
    /// called on the polling thread: its CPU time decides whether spins pay.
    pub fn after_poll(&mut self, worked: bool, now: Instant) -> Next {
        let Self { adaptive_spin, transport, clock, .. } = self;
        adaptive_spin.after_poll(worked, now, || {
            Some(Usage { busy: clock.thread_busy()?, work: work_done(transport.stack()) })
        })
    }

    /// The clock of its settings.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How long it may sleep at `now` for its own timers' sake.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        let own = self.transport.stack().poll_timeout();
        let moved = self.host.as_ref().and_then(|host| host.next_look_after_moved());
        let reserved = self.host.as_ref().and_then(|host| host.next_look_after_reserved());
        let looped = self.link.passes_full_link_at(now);
        own.into_iter().chain(moved).chain(reserved).chain(looped).min().map(|at| at.since(now))
    }

    /// Prepares for sleep on [`Server::wait_fd`]. `false`: there is work already.
    ///
    /// # Errors
    /// What the link says.
    pub fn arm(&mut self, now: Instant) -> Result<bool, LinkError> {
        self.adaptive_spin.slept();
        if self.look_at_host(now, true)? {
            return Ok(false);
        }
        self.link.arm()
    }

    /// Polls for the last time: sends what connections have queued, their FINs and RSTs. Nothing
    /// retransmits them, as after the death of a process. Polls [`SHUTDOWN_POLLS_MAX`] times at
    /// most.
    ///
    /// # Errors
    /// What the link says.
    pub fn shut_down(&mut self, clock: &Clock) -> Result<(), LinkError> {
        for _ in 0..SHUTDOWN_POLLS_MAX {
            let worked = self.poll(clock.now())?.worked();
            if !worked && !self.link.wait_for_room(SHUTDOWN_ROOM_WAIT)? {
                break;
            }
        }
        Ok(())
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.link.wait_fd()
    }

    /// Where the host's address is shared: what to poll for reading as well while asleep.
    #[must_use]
    pub fn host_fd(&self) -> Option<BorrowedFd<'_>> {
        self.host.as_ref().map(Host::wait_fd)
    }

    /// Listens, without acceptors yet. A port of a host's address that is shared stays ours as long
    /// as the server. Where shards share the address, `sharing` says which connections are this
    /// one's.
    ///
    /// # Errors
    /// [`PortError`] names the argument, or what the host says, or that another shard has the
    /// address.
    pub fn listen(
        &mut self,
        now: Instant,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        if !self.manager.reserve_listener() {
            return Err(PortError::Stack(ListenError::NoMemory));
        }
        let (stack, _) = self.transport.parts();
        let listener = stack.listen(local, backlog, self.pool).map_err(PortError::Stack)?;
        // It is there: it was made just now.
        let _ = stack.set_listener_reuse(listener, sharing.reuse);
        let _ = stack.set_listener_fast_open(listener, sharing.fast_open);
        if let Err(error) = self.claim_listener(listener, local, sharing) {
            let (stack, memory) = self.transport.parts();
            // It is there: it was made just now.
            let _ = stack.unlisten(now, listener, memory);
            return Err(error);
        }
        self.manager.add_listener(listener);
        Ok(listener)
    }

    /// Some shard listens at an address.
    #[must_use]
    pub fn is_listening(&self, local: SocketAddr) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_listening(local))
    }

    fn claim_listener(
        &mut self,
        listener: ListenerId,
        local: SocketAddr,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        if let Some(shared) = &mut self.shared {
            shared.listen(listener, local, sharing)?;
        }
        if let Err(error) = self.claim_port(Transport::Tcp, Some(local)) {
            if let Some(shared) = &mut self.shared {
                shared.unlisten(listener);
            }
            return Err(PortError::Host(error));
        }
        Ok(())
    }

    /// Changes which connections are a listener's, where shards share its address.
    ///
    /// # Errors
    /// [`PortError::Shared`].
    pub fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        match &mut self.shared {
            Some(shared) => shared.share(listener, sharing),
            None => Ok(()),
        }
    }

    /// Received bytes of what is opened from now on go to this pool.
    pub(crate) const fn set_pool(&mut self, pool: PoolId) {
        self.pool = pool;
    }

    /// An acceptor is ready for `count` more connections of a listener.
    ///
    /// # Errors
    /// [`OperationError::Unknown`] for a stale listener, [`OperationError::QueueFull`] for one
    /// acceptor too many.
    pub fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: AcceptorId,
        count: u32,
    ) -> Result<(), OperationError> {
        self.accept_for(listener, (PoolId::default(), acceptor), count)
    }

    /// As [`Server::accept`], of an acceptor of a session.
    ///
    /// # Errors
    /// As [`Server::accept`].
    pub(crate) fn accept_for(
        &mut self,
        listener: ListenerId,
        acceptor: (PoolId, AcceptorId),
        count: u32,
    ) -> Result<(), OperationError> {
        if !self.manager.accept(listener, acceptor, count) {
            return Err(OperationError::QueueFull);
        }
        let (stack, _) = self.transport.parts();
        stack.accept(listener, count)
    }

    /// The credit that the acceptors of a session have at a listener.
    pub(crate) fn credit_of(&self, listener: ListenerId, session: PoolId) -> u32 {
        self.manager.credit_of(listener, session)
    }

    /// The acceptors of a session take no more connections of a listener. Returns the credit that
    /// they had left.
    pub(crate) fn withdraw(&mut self, listener: ListenerId, session: PoolId) -> u32 {
        let credit = self.manager.withdraw_session(listener, session);
        let (stack, _) = self.transport.parts();
        // A listener that is gone has no credit.
        let _ = stack.withdraw_credit(listener, credit);
        credit
    }

    /// Removes the acceptors of a listener, whose connections another part of the shard assigns
    /// from now on. Returns them with their credit, which the stack still has.
    pub(crate) fn take_acceptors(
        &mut self,
        listener: ListenerId,
    ) -> Vec<((PoolId, AcceptorId), u32)> {
        self.manager.take_acceptors(listener)
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// [`PortError`] names the argument, or what the host says.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<ConnId, PortError<ConnectError>> {
        self.claim_port(Transport::Tcp, local).map_err(PortError::Host)?;
        loop {
            let Self { link, transport, host, pool, .. } = self;
            let (stack, memory) = transport.parts();
            let is_owned = |local: SocketAddr| match &*host {
                Some(host) if !local.ip().is_loopback() => host.owns(Transport::Tcp, local.port()),
                _ => true,
            };
            let fits = |local| is_owned(local) && link.arrives_here(local, remote);
            let memory = (*pool, memory);
            match stack.connect_where(now, remote, local, memory, &fits) {
                Err(ConnectError::NoPort) if self.claim_more_ports(Transport::Tcp)? => {}
                done => return done.map_err(PortError::Stack),
            }
        }
    }

    /// Binds an endpoint for datagrams; port 0 takes any. Other shards may have the same address
    /// if what comes is spread.
    ///
    /// # Errors
    /// [`PortError`] names the argument, or what the host says.
    pub fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        self.claim_port(Transport::Udp, Some(local)).map_err(PortError::Host)?;
        loop {
            match self.bind_at(local, sharing) {
                Err(PortError::Stack(BindError::NoPort))
                    if self.claim_more_ports(Transport::Udp)? => {}
                done => return done,
            }
        }
    }

    /// Binds at a port that is ours, or at a free one of those that are.
    fn bind_at(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        let Self { transport, host, shared, pool, .. } = self;
        let (stack, _) = transport.parts();
        let is_owned = |port| host.as_ref().is_none_or(|host| host.owns(Transport::Udp, port));
        let mut bind = |local| stack.bind_datagram_where(local, sharing, *pool, &is_owned);
        match shared {
            Some(shared) => {
                let (first, last) = client_ports(host.is_some());
                let ports = (first..=last).filter(|port| is_owned(*port));
                shared.bind((local, sharing), ports, bind)
            }
            None => bind(local).map_err(PortError::Stack),
        }
    }

    /// Makes room for so many more datagrams of an endpoint: where there is less, those that wait
    /// go out now.
    pub fn make_datagram_room(&mut self, now: Instant, endpoint: DatagramId, count: usize) {
        // More than once if there are many for our own addresses, of which each time takes a share.
        let mut sent = 1;
        while sent > 0 && self.stack().datagram_room(endpoint).is_ok_and(|room| room < count) {
            // A link that is gone is reported by the next poll.
            sent = self.transmit(now).unwrap_or(0);
        }
    }

    /// Sends each chunk as a datagram, none longer than the first: all of them, or none.
    ///
    /// # Errors
    /// As [`Stack::send_datagram`]; the chunks are the caller's again.
    pub fn send_datagrams(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        chunks: &[Chunk],
    ) -> Result<(), OperationError> {
        if self.stack().datagram_room(endpoint)? < chunks.len() {
            return Err(OperationError::QueueFull);
        }
        let (stack, memory) = self.transport.parts();
        for (index, chunk) in chunks.iter().enumerate() {
            match stack.send_datagram_as(now, endpoint, (to, *chunk, departure), memory) {
                Err(error) if index == 0 => return Err(error),
                // What the first was not refused for, and there is room.
                Err(_) => memory.free(chunk.buf),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Closes an endpoint for datagrams.
    pub fn close_datagram(&mut self, endpoint: DatagramId) {
        if let Some(shared) = &mut self.shared {
            shared.close(endpoint);
        }
        let (stack, memory) = self.transport.parts();
        // An endpoint that is gone already needs no more.
        let _ = stack.close_datagram(endpoint, memory);
    }

    /// The port that was asked for becomes ours. At a loopback address it is no port of the host.
    fn claim_port(
        &mut self,
        transport: Transport,
        local: Option<SocketAddr>,
    ) -> Result<(), LinkError> {
        let Some(host) = &mut self.host else { return Ok(()) };
        let local = local.filter(|local| !local.ip().is_loopback());
        match local.map_or(0, |local| local.port()) {
            0 => Ok(()),
            port => host.claim(&mut self.link, transport, port),
        }
    }

    /// Reserves more of the ports that the stack chooses from. Returns `false` if none is left.
    fn claim_more_ports<E>(&mut self, transport: Transport) -> Result<bool, PortError<E>> {
        let Some(host) = &mut self.host else { return Ok(false) };
        host.claim_client_ports(&mut self.link, transport).map_err(PortError::Host)
    }

    /// Stops listening. Handshakes under way and connections that were not offered go to the shards
    /// that go on listening at the address; where none does, they are reset.
    pub fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        self.manager.remove_listener(listener);
        let has_siblings = self.shared.as_mut().is_some_and(|shared| shared.unlisten(listener));
        let (stack, memory) = self.transport.parts();
        let next = || if has_siblings { stack.hand_over_next(now, listener, memory) } else { None };
        let left: Vec<Handover> = std::iter::from_fn(next).collect();
        // A listener that is gone already needs no more.
        let _ = stack.unlisten(now, listener, memory);
        for handover in left {
            self.hand_over(now, handover);
        }
        if has_siblings {
            self.link.steer_again();
            // What was handed over to this shard until now goes on to others.
            self.take_handovers(now);
        }
    }

    /// Hands a connection over to whatever listens at its address: another shard, or this one.
    /// Where none does, or there is no room, it is reset.
    pub(crate) fn hand_over(&mut self, now: Instant, handover: Handover) {
        let handed = match &self.shared {
            Some(shared) => shared.hand_over(handover),
            None => Err(handover),
        };
        let Err(handover) = handed else { return };
        let (stack, memory) = self.transport.parts();
        if let Err(handover) = stack.take_over(now, handover, memory) {
            stack.refuse_handover(now, &handover, memory);
        }
    }

    /// Takes over what other shards handed over. How many.
    fn take_handovers(&mut self, now: Instant) -> usize {
        let handovers = self.link.take_handovers();
        let count = handovers.len();
        for handover in handovers {
            let (stack, memory) = self.transport.parts();
            if let Err(handover) = stack.take_over(now, handover, memory) {
                self.hand_over(now, handover);
            }
        }
        count
    }

    /// Hands over a connection that was offered to a listener which has left since. It is reset if
    /// it cannot go on anywhere.
    pub fn hand_over_offered(&mut self, now: Instant, conn: ConnId) {
        let (stack, memory) = self.transport.parts();
        match stack.hand_over_reported(now, conn, memory) {
            Some(handover) => self.hand_over(now, handover),
            None => self.refuse(now, conn),
        }
    }

    /// Takes out a connection that was offered, and that no program has seen, for
    /// [`Server::hand_over_taken`]. Returns `false` if it is over. One connection is out at a time:
    /// another one that still is goes on first.
    pub fn take_out(&mut self, now: Instant, conn: ConnId) -> bool {
        if let Some((other, _)) = self.taken_out {
            self.hand_over_taken(now, other);
        }
        self.taken_out = self.take_out_of_stack(now, conn).map(|handover| (conn, handover));
        self.taken_out.is_some()
    }

    /// As [`Server::take_out`], for a caller that keeps the connection itself until
    /// [`Server::hand_over`]. `None`: it is over.
    pub(crate) fn take_out_of_stack(&mut self, now: Instant, conn: ConnId) -> Option<Handover> {
        let (stack, memory) = self.transport.parts();
        stack.hand_over_reported(now, conn, memory)
    }

    /// Puts bytes that the application had received already before the unread ones of the
    /// connection that was taken out.
    pub fn prepend_unread(&mut self, conn: ConnId, bytes: &[u8]) {
        if let Some((taken, handover)) = &mut self.taken_out
            && *taken == conn
        {
            handover.prepend(bytes);
        }
    }

    /// Hands the connection that was taken out over to whatever listens at its address.
    pub fn hand_over_taken(&mut self, now: Instant, conn: ConnId) {
        if let Some((_, handover)) = self.taken_out.take_if(|(taken, _)| *taken == conn) {
            self.hand_over(now, handover);
        }
    }

    /// Resets a connection. Bytes that its application has written leave before, as far as the
    /// windows let them: in Linux they left with the write.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        let queued_bytes = self.stack().info(conn).map_or(0, |info| info.queued_bytes);
        if queued_bytes > 0 {
            // A link that is gone is reported by the next poll.
            let _ = self.transmit(now);
        }
        self.refuse(now, conn);
    }

    /// Resets a connection that was offered to an acceptor which is gone.
    pub fn refuse(&mut self, now: Instant, conn: ConnId) {
        let (stack, memory) = self.transport.parts();
        // A connection that is gone already needs no reset.
        let _ = stack.abort(now, conn, memory);
    }

    /// The stack and its memory, for commands on connections.
    #[inline]
    pub const fn parts(&mut self) -> (&mut Stack, &mut M) {
        self.transport.parts()
    }

    /// The stack, to look at.
    #[must_use]
    pub const fn stack(&self) -> &Stack {
        self.transport.stack()
    }

    /// What the link can do.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        self.link.caps()
    }

    /// The shard's place among others, where it has some.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        self.link.attachment()
    }

    /// The link's server, to look at.
    #[must_use]
    pub const fn link(&self) -> &LinkServer {
        &self.link
    }
}

/// What a stack has done so far, in bytes of payload. Frames and acknowledgments do not count: how
/// many there are depends on how the server waits.
fn work_done(stack: &Stack) -> u64 {
    let totals = &stack.counters().totals;
    let units = totals.connects + totals.accepts + totals.datagrams_in + totals.datagrams_out;
    totals.bytes_in + totals.bytes_out + units * UNIT_WORK
}

/// Returns the secret of all servers of this process. Cookies that one shard gave out, of Fast Open
/// or for a SYN, are valid at all: a peer's next segment may come to another.
fn secret() -> Result<[u8; 32], ServerError> {
    static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
    let secret = random_bytes()?;
    Ok(*SECRET.get_or_init(|| secret))
}

/// A number that no peer can predict.
pub(crate) fn random_seed() -> Result<u64, ServerError> {
    Ok(random_bytes()?.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
}

fn random_bytes() -> Result<[u8; 32], ServerError> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|errno| ServerError::NoRandomness(errno.into()))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_one_for_all_servers_of_a_process() {
        let one = secret().expect("random bytes");
        assert_eq!(secret().expect("random bytes"), one);
        assert_ne!(one, [0; 32]);
    }
}
