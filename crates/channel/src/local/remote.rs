//! Placement `core`: the server runs on a core of its own, behind rings of records.
//!
//! Read first: `megapipe_service`'s `remote.rs`, for the records.
//!
//! Invariant: received payload is copied once, out of the server's receive buffers into the
//! channel's, when its event is returned; sent payload is copied into the server's send buffers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_service::limits::SPIN_DEFAULT;
use megapipe_service::{
    AcceptorId, AdaptiveSpin, ConnectStart, LaneSet, MoveRefusal, Next, NotShared, PortError,
    RemoteConfig, RemoteCounters, RemoteEvent, Sharing, start_remote,
};
use megapipe_stack::{
    Arrival, BindError, Chunk, ConnId, ConnInfo, ConnOption, ConnectError, DatagramId,
    DatagramSharing, Departure, Event, Holder, Instant, ListenError, ListenerId, Memory, Notice,
    OperationError,
};

use super::cores::{on_core, other_core, own_shard_core};
use super::daemon_session::DaemonSession;
use super::memory::{ChannelMemory, ReceivedMemory};
use super::server_calls::ServerCalls;
use super::stack_handle::{NoBuffer, Polled, ServerParts, StackHandle, not_started};
use crate::buffer::{Payload, ReadBuf};
use crate::config::Config;
use crate::error::CreateError;
use crate::kernel::pool::HeldBuffer;
use crate::limits::RESERVE_BYTES_MAX;
use crate::state::State;

/// The application's end of a server on another core, and the channel's buffers.
pub(crate) struct Remote {
    client: LaneSet,
    memory: ChannelMemory,
    adaptive_spin: AdaptiveSpin,
    /// What a session of a daemon has besides. `None`: the server is a thread of this process.
    session: Option<DaemonSession>,
    /// An event waits for memory that its bytes can be copied to.
    lacks_memory: bool,
}

impl Remote {
    /// The handle of a session of a daemon.
    pub(super) fn attached(client: LaneSet, session: DaemonSession, state: &State) -> Self {
        let adaptive_spin = AdaptiveSpin::new(SPIN_DEFAULT);
        let memory = ChannelMemory::of(state);
        Self { client, memory, adaptive_spin, session: Some(session), lacks_memory: false }
    }

    /// Whether the stack was a daemon's that is gone.
    fn is_gone(&self) -> bool {
        self.session.as_ref().is_some_and(DaemonSession::is_gone)
    }

    /// Looks at times whether the daemon's process is there; if not, the client's next check fails.
    #[cold]
    fn look_for_daemon(&mut self, now: Instant) {
        if self.session.as_mut().is_some_and(|session| session.is_look_due(now)) {
            self.client.look_for_server();
        }
    }

    /// Copies a received chunk into the channel's memory, which has room for it
    /// ([`ChannelMemory::has_room`]).
    #[inline]
    fn take_in(&mut self, chunk: Chunk) -> Chunk {
        let Self { client, memory, .. } = self;
        memory.take_in(chunk.len, |to| client.take_bytes(chunk, to))
    }
}

/// As many receive buffers as the channel has, and as many as it would keep unread bytes in.
fn configuration(config: &Config, core: Option<usize>) -> RemoteConfig {
    let reserve = (RESERVE_BYTES_MAX / config.buffer_len) as u32;
    RemoteConfig {
        core,
        receive_bytes: config.buffer_len,
        receive_buffers: u32::from(config.buffer_count) + reserve,
    }
}

impl StackHandle for Remote {
    fn start(parts: ServerParts<'_>) -> Result<(Self, String), CreateError> {
        let ServerParts { frames, settings, config, state, own_core, server_core, .. } = parts;
        let core = server_core.or_else(|| other_core(own_core));
        let client = start_remote(frames, settings, &configuration(config, core))
            .map_err(|source| not_started(config, source))?;
        // On one and the same core, polling would keep the server from running.
        let is_other = core.is_some() && core != own_core;
        let spin = if is_other { settings.waits.spin } else { Duration::ZERO };
        let (memory, adaptive_spin) = (ChannelMemory::of(state), AdaptiveSpin::new(spin));
        let place = format!("on a core of its own, {}", on_core(core));
        Ok((Self { client, memory, adaptive_spin, session: None, lacks_memory: false }, place))
    }

    fn poll(&mut self, now: Instant) -> Result<Polled, LinkError> {
        if self.is_gone() {
            return Ok(Polled { has_worked: false, has_event: false });
        }
        self.client.wake_up();
        self.client.note_dispatch(now);
        self.client.flush();
        if self.session.is_some() {
            self.look_for_daemon(now);
        }
        if let Err(error) = self.client.check() {
            // What it published before its end comes first.
            if self.session.is_some() && self.client.has_event() {
                return Ok(Polled { has_worked: false, has_event: true });
            }
            if let Some(session) = &mut self.session {
                session.end(now, &self.client);
            }
            return Err(error);
        }
        let has_event = self.client.has_event();
        if !has_event {
            self.client.wake_servers();
        }
        Ok(Polled { has_worked: false, has_event })
    }

    fn transmit(&mut self, _now: Instant) -> Result<usize, LinkError> {
        self.client.flush();
        Ok(0)
    }

    #[inline]
    fn next_bytes(&mut self) -> Option<(ConnId, Chunk)> {
        if !self.memory.has_room() {
            return None;
        }
        let (conn, chunk) = self.client.next_bytes()?;
        Some((conn, self.take_in(chunk)))
    }

    fn next_event(&mut self) -> Option<RemoteEvent> {
        if !self.memory.has_room() {
            self.lacks_memory = self.client.has_event();
            return None;
        }
        let event = self.client.event()?;
        Some(match event {
            RemoteEvent::Event(Event::Received { conn, chunk }, offer) => {
                RemoteEvent::Event(Event::Received { conn, chunk: self.take_in(chunk) }, offer)
            }
            RemoteEvent::Event(Event::Datagram { endpoint, from, chunk }, offer) => {
                let chunk = self.take_in(chunk);
                RemoteEvent::Event(Event::Datagram { endpoint, from, chunk }, offer)
            }
            RemoteEvent::Event(Event::Incoming { conn, .. }, _)
                if self.session.as_ref().is_some_and(|session| session.nagle) =>
            {
                // One that has ended meanwhile has no options.
                let _ = self.client.set_option(conn, ConnOption::NoDelay(false));
                event
            }
            event => event,
        })
    }

    fn take_lack_of_memory(&mut self) -> bool {
        std::mem::take(&mut self.lacks_memory) && !self.memory.has_room()
    }

    fn after_poll(&mut self, has_worked: bool, now: Instant) -> Next {
        // On one core, polling would only keep the server from running.
        if !has_worked && self.client.shares_its_core() {
            return Next::Sleep;
        }
        self.adaptive_spin.after_poll(has_worked, now, || None)
    }

    fn arm(&mut self, _now: Instant) -> Result<bool, LinkError> {
        self.adaptive_spin.slept();
        Ok(self.is_gone() || self.client.arm())
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        match &self.session {
            Some(session) => session.wait_fd(),
            None => self.client.wait_fd(),
        }
    }

    fn addresses_of_stack(&self) -> &[IpAddr] {
        if self.session.is_some() { self.client.addresses_of_stack() } else { &[] }
    }

    fn is_session(&self) -> bool {
        self.session.is_some()
    }

    #[inline]
    fn attach_again(&mut self, now: Instant, config: &Config) -> bool {
        let gone = self.session.as_mut().filter(|session| session.is_gone());
        let client = gone.and_then(|session| session.attach_again(now, config));
        let Some(mut client) = client else { return false };
        client.set_core(own_shard_core());
        self.client = client;
        true
    }

    fn patience(&self, now: Instant) -> Option<Duration> {
        self.session.as_ref().and_then(|session| session.patience(now))
    }

    fn abandon(&mut self) {
        self.client.abandon();
    }

    fn caps(&self) -> &Caps {
        self.client.caps()
    }

    fn shard(&self) -> Option<(u16, u16)> {
        self.client.shard()
    }

    fn set_core(&mut self, core: Option<u32>) {
        self.client.set_core(core);
    }

    fn counters(&self) -> RemoteCounters {
        self.client.counters()
    }

    #[inline]
    fn received(&mut self, chunk: Chunk) -> Option<ReceivedMemory> {
        self.memory.received(chunk)
    }

    #[inline]
    fn take_held(&mut self, number: u16) -> Option<HeldBuffer> {
        self.memory.take_held(number)
    }

    fn free_received(&mut self, chunk: Chunk) {
        self.memory.free(chunk.buf);
    }

    #[inline]
    fn send_read(&mut self, now: Instant, conn: ConnId, bytes: ReadBuf) -> Option<Payload> {
        if self.client.send_short(conn, &bytes) {
            return None;
        }
        let mut payload = Payload::Read(bytes);
        // What is left of it, after an error all, waits in the queue of writes.
        let _ = self.send_front(now, conn, &mut payload);
        (!payload.is_empty()).then_some(payload)
    }

    /// The client's copy is the only one.
    #[inline]
    fn send_copy(
        &mut self,
        _now: Instant,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<Option<Payload>, NoBuffer> {
        if self.client.send_short(conn, bytes) {
            return Ok(None);
        }
        // Before some of it is sent: the rest has to be kept.
        let mut rest = Vec::new();
        rest.try_reserve_exact(bytes.len()).map_err(|_| NoBuffer)?;
        let sent = self.client.send(conn, bytes).unwrap_or(0);
        rest.extend_from_slice(&bytes[sent..]);
        Ok((!rest.is_empty()).then_some(Payload::Vec(rest)))
    }

    fn send_front(
        &mut self,
        _now: Instant,
        conn: ConnId,
        payload: &mut Payload,
    ) -> Result<usize, OperationError> {
        let sent = self.client.send(conn, payload.as_slice())?;
        if sent == payload.len() {
            *payload = Payload::Static(&[]);
        } else {
            payload.skip(sent);
        }
        Ok(sent)
    }

    fn await_delivery(&mut self, conn: ConnId) -> Result<(), OperationError> {
        self.client.await_delivery(conn)
    }

    fn set_reset_on_close(&mut self, conn: ConnId, on: bool) {
        // One that is over needs none.
        let _ = self.client.set_reset_on_close(conn, on);
    }

    fn set_first_read(&mut self, acceptor: AcceptorId, reads: bool) {
        self.client.set_first_read(acceptor, reads);
    }

    fn forget_moved(&mut self, conn: ConnId) {
        self.client.forget_moved(conn);
    }

    fn has_events_in_transit(&self) -> bool {
        true
    }

    fn send_datagram(
        &mut self,
        _now: Instant,
        endpoint: DatagramId,
        destination: (SocketAddr, &Departure),
        payload: Payload,
    ) -> Result<(), OperationError> {
        self.client.send_datagram(endpoint, destination, payload.as_slice())
    }

    fn send_datagrams(
        &mut self,
        _now: Instant,
        endpoint: DatagramId,
        destination: (SocketAddr, &Departure),
        (payload, segment_len): (Payload, usize),
    ) -> Result<(), OperationError> {
        self.client.send_datagrams(endpoint, destination, (payload.as_slice(), segment_len))
    }

    fn lanes(&mut self) -> Result<&mut LaneSet, MoveRefusal> {
        Ok(&mut self.client)
    }

    fn listen_passed(
        &mut self,
        _now: Instant,
        at: (SocketAddr, u64),
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        self.client.listen_passed(at, backlog, sharing)
    }

    fn shared_interface(&self) -> Result<u32, NotShared> {
        match self.caps().shares_host_address {
            true if self.is_session() && self.client.takes_descriptors() => Ok(0),
            true => Err(NotShared::OtherThread),
            false => Err(NotShared::OwnAddress),
        }
    }
}

impl ServerCalls for Remote {
    fn connect(
        &mut self,
        _now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        mut begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        if let Some(session) = &self.session {
            // An operation that no daemon takes would have no end.
            self.client.check().map_err(PortError::Host)?;
            if session.nagle && begin.nodelay.is_none() {
                begin.nodelay = Some(false);
            }
        }
        self.client.connect_as(remote, local, begin)
    }

    #[inline]
    fn receive(&mut self, _now: Instant, conn: ConnId) -> Result<(), OperationError> {
        self.client.receive(conn)
    }

    fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        self.client.await_acks(conn)
    }

    fn set_option(
        &mut self,
        _now: Instant,
        conn: ConnId,
        option: ConnOption,
    ) -> Result<(), OperationError> {
        self.client.set_option(conn, option)
    }

    fn shutdown(&mut self, _now: Instant, conn: ConnId) {
        self.client.shutdown(conn);
    }

    fn close(&mut self, _now: Instant, conn: ConnId) {
        self.client.close(conn);
    }

    fn abort(&mut self, _now: Instant, conn: ConnId) {
        self.client.abort(conn);
    }

    fn info(&mut self, conn: ConnId) -> Option<ConnInfo> {
        self.client.info(conn)
    }

    fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        self.client.addresses(conn)
    }

    fn listen(
        &mut self,
        _now: Instant,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        self.client.listen(local, backlog, sharing)
    }

    fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        self.client.share(listener, sharing)
    }

    fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        self.client.set_fast_open(listener, pending_max)
    }

    fn is_listening(&mut self, local: SocketAddr) -> bool {
        self.client.is_listening(local)
    }

    fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: AcceptorId,
        count: u32,
    ) -> Result<(), OperationError> {
        self.client.accept(listener, acceptor, count);
        Ok(())
    }

    fn unlisten(&mut self, _now: Instant, listener: ListenerId) {
        self.client.unlisten(listener);
    }

    fn take_out(&mut self, _now: Instant, conn: ConnId) -> bool {
        self.client.take_out(conn)
    }

    fn hand_over_taken(&mut self, _now: Instant, conn: ConnId, bytes: &[u8]) {
        self.client.hand_over_taken(conn, bytes);
    }

    fn hand_over_offered(&mut self, _now: Instant, conn: ConnId) {
        self.client.hand_over_offered(conn);
    }

    fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        self.client.bind(local, sharing)
    }

    fn connect_datagram(
        &mut self,
        endpoint: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        self.client.connect_datagram(endpoint, peer)
    }

    fn close_datagram(&mut self, endpoint: DatagramId) {
        self.client.close_datagram(endpoint);
    }

    fn last_arrival(&mut self) -> Option<Arrival> {
        self.client.last_arrival()
    }

    fn take_notice(&mut self) -> Option<Notice> {
        let notice = self.client.take_notice()?;
        // Where there is no memory, the notice comes without it.
        let has_room = notice.quote.is_none() || self.memory.has_room();
        let quote = match notice.quote {
            Some(chunk) if has_room => Some(self.take_in(chunk)),
            Some(chunk) => {
                self.client.give_back(chunk);
                None
            }
            None => None,
        };
        Some(Notice { quote, ..notice })
    }

    fn quote_errors(&mut self, endpoint: DatagramId, on: bool) -> Result<(), OperationError> {
        self.client.quote_errors(endpoint, on)
    }

    fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        self.client.packet_bytes_max(to)
    }

    fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr> {
        self.client.datagram_address(endpoint)
    }

    fn has_undelivered(&mut self) -> bool {
        !self.is_session() && self.client.has_undelivered()
    }

    fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        self.client.holders(ports)
    }

    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        self.client.port_without_connections(ports, from)
    }
}
