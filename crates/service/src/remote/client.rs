//! The application's end: ops go into one ring, events come out of another.
//!
//! Connections have names of the session's own, given at once, while the server's names come with
//! its answers. So an application need not wait for the answer to `connect`, and an event of a
//! connection that it has released meanwhile is dropped.
//!
//! Invariants
//! - What the server writes is checked before it is used (`client/events.rs`, `client/calls.rs`).
//! - A send buffer is in the server's hands from the op until `Returned` gives it back; until then
//!   its bytes count against its connection (`client/sending.rs`).

mod calls;
mod datagrams;
mod events;
mod listener_addresses;
mod names;
mod offers;
mod options;
mod sending;
mod shared_endpoints;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use megapipe_link::{Caps, LinkError};
use megapipe_shm::record::{Bufs, Command, Id, Ids, Op, Record, RecordFault};
use megapipe_shm::{BufId, BufferArea, Consumer, Producer, RingFault};
use megapipe_stack::{
    Arrival, Chunk, ConnId, ConnectError, DatagramId, Event, ListenerId, Notice, OperationError,
};

use super::encoding::{Description, encode_begin, id_of, id_of_listener};
use super::send_buffers::{Held, Sends};
use super::session_region::{ClientHalf, SessionBuffers};
use crate::begin::ConnectStart;
use crate::connection_manager::{AcceptorId, Offer};
use crate::limits::COMPLETIONS_MAX;
use crate::policy::QuotaReached;
use crate::sleep::{ServerLocation, ServerPeer, SleepingEnd};
use datagrams::Datagrams;
use listener_addresses::ListenerAddresses;
use offers::SessionOffers;
use options::EarlyOption;

/// The application's ends of what it shares with its server.
pub(super) struct RingEnds {
    pub(super) ops: Producer<Record>,
    pub(super) events: Consumer<Record>,
}

/// The server wrote what no correct server writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProtocolFault;

impl From<RecordFault> for ProtocolFault {
    fn from(_: RecordFault) -> Self {
        Self
    }
}

impl From<RingFault> for ProtocolFault {
    fn from(_: RingFault) -> Self {
        Self
    }
}

/// Tries to find room between two looks whether the server's process is there.
const TRIES_PER_LOOK: u32 = 64;

/// A connection, under the session's name.
#[derive(Debug, Default)]
struct Conn {
    generation: u32,
    is_used: bool,
    /// The server's name, once it has said it.
    server: Option<ConnId>,
    /// Bytes with the server.
    queued_bytes: u32,
    /// Size of its send buffer: the most bytes with the server at once, but for a first chunk.
    send_buffer_bytes: u32,
    /// Send buffers with the server.
    held: Held,
    /// `Acked` is due when there is room again.
    awaits: bool,
    /// Its bytes lie in memory of the server's own: until they are acknowledged none follow.
    has_copy: bool,
    /// Nothing more is to be sent.
    is_shut: bool,
    /// Its claim asked for its first bytes.
    has_asked: bool,
    /// Our address, if it is known, and the peer's. They do not change.
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    /// What was set before the server named it.
    early: Vec<EarlyOption>,
}

/// What a session counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteCounters {
    /// Events taken from the server.
    pub events: u64,
    /// Times that the application slept and was woken by events.
    pub wakeups: u64,
    /// Times that the ring of ops was full.
    pub ops_full: u64,
    /// Datagrams that the server's stack did not take after all.
    pub datagrams_failed: u64,
}

/// Details of an event that its record has no field for.
#[derive(Debug, Clone, Copy, Default)]
struct EventDetails {
    /// How the datagram arrived.
    arrival: Option<Arrival>,
    /// The notice of an undelivered datagram.
    notice: Option<Notice>,
}

/// What the server reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteEvent {
    /// An event of the stack.
    Event(Event, Option<Offer>),
    /// A connection was not begun.
    NotBegun(ConnId, NotBegun),
    /// A datagram of so many bytes waits for the owners of an endpoint.
    DatagramWaits(DatagramId, u32),
}

/// Why a connection was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotBegun {
    /// The stack's reason.
    Stack(ConnectError),
    /// A quota of the session or its user.
    Quota(QuotaReached),
}

/// An application's end of a remote server. For one thread.
pub struct RemoteClient {
    pub(super) ends: RingEnds,
    sends: Sends,
    receives: BufferArea,
    /// The call buffer.
    calls: BufferArea,
    description: Description,
    conns: Vec<Conn>,
    free: Vec<u32>,
    by_server: Vec<Option<ConnId>>,
    /// Connections whose index the server may have given to others, until they are forgotten.
    superseded: Vec<ConnId>,
    datagrams: Datagrams,
    offers: SessionOffers,
    listeners: ListenerAddresses,
    /// Connections whose sends may go on.
    unblocked: VecDeque<ConnId>,
    /// Events that came while an answer was waited for.
    backlog: VecDeque<(RemoteEvent, EventDetails)>,
    /// Records that were taken out of the ring only to make room in it.
    taken: VecDeque<Record>,
    /// Details of the last event.
    details: EventDetails,
    /// Connections whose next bytes are wanted, and received buffers that go back: one record has
    /// many of either, and is submitted with the next other op at the latest.
    pub(super) wanted: Ids,
    pub(super) back: Bufs,
    /// Cookie of the last call.
    pub(super) last_call: u64,
    /// Options that were set without waiting.
    unanswered: u64,
    /// The connection that was taken out: its name here, and the server's.
    taken_out: Option<(ConnId, ConnId)>,
    /// The server can reset connections at the session's end. One of an older
    /// version of the protocol would end the session for such a record.
    pub(super) knows_resets: bool,
    /// Its record that begins to connect has flags: what holds from the first segment on.
    pub(super) knows_connect_flags: bool,
    /// Its record that binds an endpoint may say that others are excluded.
    pub(super) knows_exclusive_endpoints: bool,
    server: ServerPeer,
    counters: RemoteCounters,
}

/// An empty table with memory for `count` entries, if there is so much.
fn reserved<T>(count: usize) -> Vec<T> {
    let mut table = Vec::new();
    // Without it, the table grows entry by entry.
    let _ = table.try_reserve_exact(count);
    table
}

impl RemoteClient {
    /// The application's end of a server that has described itself.
    pub(super) fn new(
        half: ClientHalf,
        description: Description,
        location: ServerLocation,
    ) -> Self {
        Self::with_peer(half, description, |end| ServerPeer::new(end, location))
    }

    /// The end of another lane of the same application: `half` has the same bell.
    pub(super) fn for_lane(&self, half: ClientHalf, description: Description) -> Self {
        let mut lane = Self::with_peer(half, description, |end| self.server.for_lane(end));
        lane.knows_resets = self.knows_resets;
        lane.knows_connect_flags = self.knows_connect_flags;
        lane.knows_exclusive_endpoints = self.knows_exclusive_endpoints;
        lane
    }

    fn with_peer(
        half: ClientHalf,
        description: Description,
        peer: impl FnOnce(SleepingEnd) -> ServerPeer,
    ) -> Self {
        let ClientHalf { ops, events, sleep, buffers } = half;
        let SessionBuffers { receives, small, large, calls } = buffers;
        // All tables at the start: what the server publishes must have room. Memory that is not
        // touched costs nothing; where it is not to be had, they grow as they are needed.
        let connections = description.connections as usize + COMPLETIONS_MAX as usize;
        Self {
            ends: RingEnds { ops, events },
            sends: Sends::new(small, large, description.send_buffer_bytes),
            receives,
            calls,
            description,
            conns: reserved(connections),
            free: reserved(connections),
            by_server: reserved(connections),
            superseded: reserved(COMPLETIONS_MAX as usize),
            datagrams: Datagrams::default(),
            offers: SessionOffers::default(),
            listeners: ListenerAddresses::default(),
            unblocked: reserved(connections).into(),
            backlog: reserved(COMPLETIONS_MAX as usize).into(),
            taken: reserved(COMPLETIONS_MAX as usize).into(),
            details: EventDetails::default(),
            wanted: Ids::default(),
            back: Bufs::default(),
            last_call: calls::FIRST_COOKIE,
            unanswered: 0,
            taken_out: None,
            knows_resets: true,
            knows_connect_flags: true,
            knows_exclusive_endpoints: true,
            server: peer(sleep),
            counters: RemoteCounters::default(),
        }
    }

    /// What the link can do; without how its device spreads frames.
    #[must_use]
    pub const fn caps(&self) -> &Caps {
        &self.description.caps
    }

    /// The shard, and of how many, where there are others.
    #[must_use]
    pub const fn shard(&self) -> Option<(u16, u16)> {
        self.description.shard
    }

    /// The server's addresses: on its link, and 127.0.0.1 and ::1 where it has loopback.
    #[must_use]
    pub fn addresses_of_stack(&self) -> &[IpAddr] {
        &self.description.addresses
    }

    /// Looks whether the process of the server is there, without a record or a ring of its own: a
    /// process that was killed leaves no mark in the region.
    pub fn look_for_server(&mut self) {
        self.server.look_for_process();
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> RemoteCounters {
        self.counters
    }

    /// The server wrote what no correct server writes: nothing more is exchanged with it.
    #[cold]
    fn end_session(&mut self, _: ProtocolFault) {
        self.server.fail();
    }

    /// Submits the ops, and wakes the server if it sleeps. A server that sleeps on this core waits
    /// until [`RemoteClient::wake_server`], or a moment.
    pub fn flush(&mut self) {
        if self.offers.has_claims() {
            self.put_claims();
        }
        self.put_wanted();
        self.put_back();
        self.commit();
    }

    fn commit(&mut self) {
        if self.ends.ops.commit() > 0 {
            self.server.wake_if_needed();
        }
    }

    /// Wakes the server if it sleeps: this thread has nothing more to do until its next event.
    #[inline]
    pub fn wake_server(&mut self) {
        self.server.wake();
    }

    fn put_wanted(&mut self) {
        if !self.wanted.is_empty() {
            let conns = std::mem::take(&mut self.wanted);
            self.ask(0, Command::Receive { conns });
        }
    }

    fn put_back(&mut self) {
        if !self.back.is_empty() {
            let bufs = std::mem::take(&mut self.back);
            self.ask(0, Command::Return { bufs });
        }
    }

    fn ask(&mut self, cookie: u64, command: Command) {
        self.put(&Op { cookie, command }.record());
    }

    #[inline]
    pub(super) fn put(&mut self, record: &Record) {
        if self.ends.ops.put(record).is_err() {
            self.put_when_there_is_room(record);
        }
    }

    #[cold]
    fn put_when_there_is_room(&mut self, record: &Record) {
        let mut tries = 0_u32;
        while self.ends.ops.reserve(1).is_ok_and(|room| room == 0) {
            // The server takes ops whatever else it does; it may need this core for it.
            self.counters.ops_full += 1;
            self.commit();
            self.server.wake();
            tries += 1;
            if tries.is_multiple_of(TRIES_PER_LOOK) {
                self.server.look_for_process();
            }
            if !self.server.is_running() {
                return;
            }
            self.set_aside(None);
            std::thread::yield_now();
        }
        // There is room, or the ring is broken, as the next event tells.
        let _ = self.ends.ops.put(record);
    }

    /// The server still runs.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub fn check(&mut self) -> Result<(), LinkError> {
        self.server.check()
    }

    /// Whether the server runs on this core, as far as is known: then polling for its events only
    /// keeps it from publishing them.
    #[must_use]
    pub fn is_server_on_this_core(&self) -> bool {
        self.server.is_on_this_core()
    }

    /// Prepares for sleep on [`RemoteClient::wait_fd`]. `false`: there is something already.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.flush();
        self.server.wake();
        self.server.arm();
        if self.has_event() || !self.server.is_running() {
            self.wake_up();
            return false;
        }
        true
    }

    /// Whether [`RemoteClient::event`] may have an event to return.
    #[must_use]
    pub fn has_event(&mut self) -> bool {
        self.waiting_events(1) > 0
            || !self.taken.is_empty()
            || !self.backlog.is_empty()
            || !self.unblocked.is_empty()
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.server.wait_fd()
    }

    /// Marks this end awake: no ring is needed.
    pub fn wake_up(&mut self) {
        if self.server.disarm() {
            let came = self.waiting_events(1) > 0;
            self.counters.wakeups += u64::from(came);
        }
    }
}

/// Commands.
impl RemoteClient {
    /// An acceptor takes so many more connections of a listener.
    pub fn accept(&mut self, listener: ListenerId, acceptor: AcceptorId, credit: u32) {
        self.offers.enlist(listener, acceptor);
        self.ask(acceptor.0, Command::Accept { listener: id_of_listener(listener), credit });
    }

    /// Begins to connect from where the stack likes. What is wrong with it comes as
    /// [`RemoteEvent::NotBegun`].
    pub fn connect(&mut self, remote: SocketAddr) -> ConnId {
        self.connect_simply(remote, ConnectStart::default())
    }

    /// As [`RemoteClient::connect`], with what holds from the first segment on, which the server
    /// has to know (`knows_resets`, `knows_connect_flags`).
    pub(super) fn connect_simply(&mut self, remote: SocketAddr, begin: ConnectStart) -> ConnId {
        let conn = self.name();
        // As a stack has it, without flow label and scope.
        self.conns[conn.index as usize].remote = Some(SocketAddr::new(remote.ip(), remote.port()));
        let command = Command::Connect { remote, local: None, flags: encode_begin(begin) };
        self.ask(events::connect_cookie(conn), command);
        conn
    }

    /// The next bytes are wanted.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: the connection is over.
    #[inline]
    pub fn receive(&mut self, conn: ConnId) -> Result<(), OperationError> {
        let server = self.server_of(conn)?;
        if std::mem::take(&mut self.conns[conn.index as usize].has_asked) {
            return Ok(());
        }
        self.wanted.push(id_of(server));
        if self.wanted.is_full() {
            self.put_wanted();
        }
        Ok(())
    }

    /// Nothing more will be sent.
    pub fn shutdown(&mut self, conn: ConnId) {
        if let Ok(server) = self.server_of(conn) {
            self.conns[conn.index as usize].is_shut = true;
            self.ask(0, Command::Shutdown { conn: id_of(server) });
        }
    }

    /// The application is done with a connection.
    pub fn close(&mut self, conn: ConnId) {
        // Bytes that a call has counted and that are given up mean a RST (RFC 2525 §2.17).
        if self.set_aside_bytes(conn) > 0 {
            return self.abort(conn);
        }
        self.let_go(conn, |conn| Command::Close { conn });
    }

    /// Resets a connection.
    pub fn abort(&mut self, conn: ConnId) {
        self.let_go(conn, |conn| Command::Abort { conn });
    }

    fn let_go(&mut self, conn: ConnId, command: impl FnOnce(Id) -> Command) {
        if !self.is_known(conn) {
            return;
        }
        // One that the server has not named yet is aborted when it does (`on_connecting`).
        if let Some(server) = self.conns[conn.index as usize].server {
            self.ask(0, command(id_of(server)));
        }
        self.forget(conn);
    }

    /// Nothing more is heard of a connection that was taken out.
    pub fn forget_moved(&mut self, conn: ConnId) {
        if self.is_known(conn) {
            self.forget(conn);
        }
    }

    /// Copies a received chunk to `to`, as far as that reaches, and gives the buffer back.
    #[inline]
    pub fn take_bytes(&mut self, chunk: Chunk, to: &mut [u8]) {
        let buf = BufId::from_bits(chunk.buf.0);
        let len = to.len().min(chunk.len as usize);
        let read = self.receives.read(buf.index(), chunk.offset as usize, &mut to[..len]);
        debug_assert!(read.is_ok(), "events are checked when they arrive");
        self.give_back(chunk);
    }

    /// Gives a received buffer back.
    #[inline]
    pub fn give_back(&mut self, chunk: Chunk) {
        self.back.push(BufId::from_bits(chunk.buf.0));
        if self.back.is_full() {
            self.put_back();
        }
    }
}

/// After a fork.
impl RemoteClient {
    /// This is the child of a fork: the session is the parent's, and nothing is asked for or waited
    /// for any more.
    pub fn abandon(&mut self) {
        self.server.abandon();
    }
}

impl RemoteClient {
    /// Submits the last ops. The server does them before it ends.
    pub(super) fn submit_last(&mut self) {
        if !self.server.is_abandoned() {
            self.flush();
        }
    }

    /// Whether the server has ended.
    pub(super) fn has_ended(&self) -> bool {
        !self.server.is_running()
    }
}

impl Drop for RemoteClient {
    fn drop(&mut self) {
        self.submit_last();
    }
}
