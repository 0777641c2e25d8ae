//! The lanes of a channel: a session on each shard of its server, behind one set of names.
//!
//! ```text
//!   application        lane 0: RemoteClient <== rings, buffers ==> shard 0
//!   LaneSet  ------->  lane 1: RemoteClient <== rings, buffers ==> shard 1
//!                      ...
//!                      one bell wakes the application for all of them
//! ```
//!
//! A connection belongs to the shard that its flow hash selects, and so to a lane. A name of a
//! connection or of an endpoint has the number of its lane in its lowest bits. A listener is one on
//! every lane (`lanes/listeners.rs`).
//!
//! Read first: `client.rs`; the decision on lanes in `docs/decisions`.
//!
//! Invariants
//! - With one lane every name is the lane's own, and no table is looked at.
//! - The end of one lane is the end of all ([`LaneSet::check`]).
//! - The lanes share one bell and the state whether it is armed, so a call on one of them may wait
//!   while the application has armed it.

mod calls;
mod listeners;
mod moves;
mod reservations;
mod share;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use megapipe_link::{Caps, LinkError};
use megapipe_stack::{
    Arrival, Chunk, CloseReason, ConnId, DatagramId, Event, Instant, ListenerId, Notice,
};

use super::client::{RemoteClient, RemoteCounters, RemoteEvent};
use crate::descriptors::SessionControl;
use crate::limits::LANE_EVENTS_PER_TURN;
use crate::sharing::ListenerOptions;
use listeners::LaneListeners;

/// What became of a connection that a channel adopts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptedConn {
    /// It is established.
    Established(ConnId),
    /// It is being opened: [`Event::Connected`] or [`Event::Closed`] follows.
    Connecting(ConnId),
    /// The attempt to open it has failed. Nothing is adopted.
    Failed(CloseReason),
}

/// An endpoint that was adopted, its address and its peer.
pub type AdoptedEndpoint = (DatagramId, SocketAddr, Option<SocketAddr>);

/// A listener that was adopted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedListener {
    /// Its name.
    pub listener: ListenerId,
    /// Where it listens, and how.
    pub options: ListenerOptions,
    /// The channel was an owner already.
    pub is_known: bool,
}

/// The application's end of all its sessions. For one thread.
pub struct LaneSet {
    first: RemoteClient,
    /// The lanes from 1 on.
    others: Box<[RemoteClient]>,
    /// Bits of a name's index that have the number of the lane.
    lane_bits: u32,
    /// The lane of the last event.
    last: usize,
    /// Events that it has returned since the one before.
    taken: u32,
    listeners: LaneListeners,
    /// The lane that opens the next connection.
    next: usize,
    /// The lane of endpoints whose port does not choose one.
    home: usize,
    /// The control socket, of a daemon that takes descriptors.
    control: Option<SessionControl>,
}

impl LaneSet {
    /// One lane: a server that has one shard.
    pub(super) fn single(client: RemoteClient) -> Self {
        Self::of(client, Vec::new(), 0)
    }

    /// Lanes in the order of their shards. `home` chooses the one that is used first.
    pub(super) fn of(first: RemoteClient, others: Vec<RemoteClient>, home: usize) -> Self {
        let lanes = others.len() + 1;
        Self {
            first,
            others: others.into(),
            lane_bits: lanes.next_power_of_two().trailing_zeros(),
            last: 0,
            taken: 0,
            listeners: LaneListeners::new(lanes),
            next: home % lanes,
            home: home % lanes,
            control: None,
        }
    }

    /// Descriptors can be passed over this socket.
    pub(super) fn with_control(mut self, control: SessionControl) -> Self {
        self.control = Some(control);
        self
    }

    /// How many lanes there are.
    #[must_use]
    pub const fn lanes(&self) -> usize {
        self.others.len() + 1
    }

    fn all(&self) -> impl Iterator<Item = &RemoteClient> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut RemoteClient> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// A lane; the first one, if there is no such lane.
    #[inline]
    fn lane(&mut self, lane: usize) -> &mut RemoteClient {
        match lane.checked_sub(1).and_then(|other| self.others.get_mut(other)) {
            Some(other) => other,
            None => &mut self.first,
        }
    }

    /// The lane of a name's index.
    #[inline]
    const fn lane_of(&self, index: u32) -> usize {
        (index & ((1 << self.lane_bits) - 1)) as usize
    }

    /// The lane of a connection, and its name there.
    #[inline]
    fn of_conn(&mut self, conn: ConnId) -> (&mut RemoteClient, ConnId) {
        let (lane, index) = (self.lane_of(conn.index), conn.index >> self.lane_bits);
        (self.lane(lane), ConnId { index, ..conn })
    }

    /// The same of an endpoint.
    pub(super) fn of_endpoint(&mut self, endpoint: DatagramId) -> (&mut RemoteClient, DatagramId) {
        let (lane, index) = (self.lane_of(endpoint.index), endpoint.index >> self.lane_bits);
        (self.lane(lane), DatagramId { index, ..endpoint })
    }

    /// The channel's name of a lane's connection.
    #[inline]
    const fn name_of(&self, lane: usize, conn: ConnId) -> ConnId {
        let index = conn.index << self.lane_bits | lane as u32;
        ConnId { index, generation: conn.generation }
    }

    const fn name_of_endpoint(&self, lane: usize, endpoint: DatagramId) -> DatagramId {
        let index = endpoint.index << self.lane_bits | lane as u32;
        DatagramId { index, generation: endpoint.generation }
    }
}

/// What all lanes have in common.
impl LaneSet {
    /// What the link can do; without how its device spreads frames.
    #[must_use]
    pub const fn caps(&self) -> &Caps {
        self.first.caps()
    }

    /// The shard, and of how many, where it is one of several. `None`: there is a lane to each.
    #[must_use]
    pub const fn shard(&self) -> Option<(u16, u16)> {
        if self.others.is_empty() { self.first.shard() } else { None }
    }

    /// The server's addresses on its link.
    #[must_use]
    pub fn addresses_of_stack(&self) -> &[IpAddr] {
        self.first.addresses_of_stack()
    }

    /// As [`RemoteClient::look_for_server`]: all lanes are in one process.
    pub fn look_for_server(&mut self) {
        self.first.look_for_server();
    }

    /// What was counted, of all lanes.
    #[must_use]
    pub fn counters(&self) -> RemoteCounters {
        self.all().map(RemoteClient::counters).fold(RemoteCounters::default(), |sum, lane| {
            RemoteCounters {
                events: sum.events + lane.events,
                wakeups: sum.wakeups + lane.wakeups,
                ops_full: sum.ops_full + lane.ops_full,
                datagrams_failed: sum.datagrams_failed + lane.datagrams_failed,
            }
        })
    }

    /// Submits the ops, and wakes the shards that sleep.
    #[inline]
    pub fn flush(&mut self) {
        self.first.flush();
        self.others.iter_mut().for_each(RemoteClient::flush);
    }

    /// Wakes the shards that sleep, as [`RemoteClient::wake_server`].
    #[inline]
    pub fn wake_servers(&mut self) {
        self.all_mut().for_each(RemoteClient::wake_server);
    }

    /// The program dispatches: as [`RemoteClient::note_dispatch`].
    #[inline]
    pub fn note_dispatch(&mut self, now: Instant) {
        self.all_mut().for_each(|lane| lane.note_dispatch(now));
    }

    /// The servers of all lanes still run.
    ///
    /// # Errors
    /// Why one does not.
    #[inline]
    pub fn check(&mut self) -> Result<(), LinkError> {
        self.first.check()?;
        self.others.iter_mut().try_for_each(RemoteClient::check)
    }

    /// Whether the server of a lane runs on this core ([`RemoteClient::is_server_on_this_core`]).
    #[must_use]
    pub fn shares_its_core(&self) -> bool {
        self.all().any(RemoteClient::is_server_on_this_core)
    }

    /// Prepares for sleep on [`LaneSet::wait_fd`]. `false`: there is something already.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        for lane in &mut self.others {
            lane.flush();
            lane.wake_server();
        }
        // It arms the bell of all lanes; what they have published before is seen afterwards.
        if !self.first.arm() {
            return false;
        }
        if self.others.iter_mut().any(|it| it.has_event() || it.has_ended()) {
            self.first.wake_up();
            return false;
        }
        true
    }

    /// Whether [`LaneSet::event`] may have an event to return.
    #[must_use]
    #[inline]
    pub fn has_event(&mut self) -> bool {
        self.first.has_event() || self.others.iter_mut().any(RemoteClient::has_event)
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.first.wait_fd()
    }

    /// Marks this end awake: no ring is needed.
    #[inline]
    pub fn wake_up(&mut self) {
        self.first.wake_up();
    }

    /// This is the child of a fork: as [`RemoteClient::abandon`].
    pub fn abandon(&mut self) {
        self.all_mut().for_each(RemoteClient::abandon);
    }
}

/// Events.
impl LaneSet {
    /// The next event, of each lane in turn.
    #[inline]
    pub fn event(&mut self) -> Option<RemoteEvent> {
        if self.others.is_empty() {
            return self.first.event();
        }
        self.next_of_lanes()
    }

    /// As [`RemoteClient::next_bytes`], where there is one lane. `None` if there are several.
    #[inline]
    pub fn next_bytes(&mut self) -> Option<(ConnId, Chunk)> {
        if self.others.is_empty() { self.first.next_bytes() } else { None }
    }

    fn next_of_lanes(&mut self) -> Option<RemoteEvent> {
        let lanes = self.lanes();
        if self.taken >= LANE_EVENTS_PER_TURN {
            self.turn();
        }
        for _ in 0..lanes {
            let lane = self.last;
            if let Some(event) = self.lane(lane).event() {
                self.taken += 1;
                return Some(self.named(lane, event));
            }
            self.turn();
        }
        None
    }

    /// Another lane's events come next.
    const fn turn(&mut self) {
        self.last = if self.last + 1 < self.lanes() { self.last + 1 } else { 0 };
        self.taken = 0;
    }

    /// A lane's event, under the channel's names.
    fn named(&mut self, lane: usize, event: RemoteEvent) -> RemoteEvent {
        let (event, offer) = match event {
            RemoteEvent::NotBegun(conn, why) => {
                return RemoteEvent::NotBegun(self.name_of(lane, conn), why);
            }
            RemoteEvent::DatagramWaits(endpoint, len) => {
                return RemoteEvent::DatagramWaits(self.name_of_endpoint(lane, endpoint), len);
            }
            RemoteEvent::Event(event, offer) => (event, offer),
        };
        let conn = |conn| self.name_of(lane, conn);
        let endpoint = |endpoint| self.name_of_endpoint(lane, endpoint);
        let event = match event {
            Event::Received { conn: it, chunk } => Event::Received { conn: conn(it), chunk },
            Event::Acked { conn: it, chunks, queued_bytes } => {
                Event::Acked { conn: conn(it), chunks, queued_bytes }
            }
            Event::Connected { conn: it } => Event::Connected { conn: conn(it) },
            Event::Urgent { conn: it, bytes } => Event::Urgent { conn: conn(it), bytes },
            Event::UnsentBelow { conn: it } => Event::UnsentBelow { conn: conn(it) },
            Event::PeerClosed { conn: it } => Event::PeerClosed { conn: conn(it) },
            Event::Broken { conn: it, reason, is_whole } => {
                Event::Broken { conn: conn(it), reason, is_whole }
            }
            Event::Closed { conn: it, reason } => Event::Closed { conn: conn(it), reason },
            Event::Datagram { endpoint: it, from, chunk } => {
                Event::Datagram { endpoint: endpoint(it), from, chunk }
            }
            Event::DatagramRefused { endpoint: it, to, why } => {
                Event::DatagramRefused { endpoint: endpoint(it), to, why }
            }
            Event::Incoming { listener, conn: it, remote, waiting } => {
                let conn = conn(it);
                let listener = self.on_incoming(lane, listener, offer);
                Event::Incoming { listener, conn, remote, waiting }
            }
        };
        RemoteEvent::Event(event, offer)
    }

    /// As [`RemoteClient::last_arrival`].
    pub fn last_arrival(&mut self) -> Option<Arrival> {
        let last = self.last;
        self.lane(last).last_arrival()
    }

    /// As [`RemoteClient::take_notice`].
    pub fn take_notice(&mut self) -> Option<Notice> {
        let last = self.last;
        self.lane(last).take_notice()
    }

    /// As [`RemoteClient::take_bytes`], of a chunk in the event or the notice that was returned
    /// last.
    #[inline]
    pub fn take_bytes(&mut self, chunk: Chunk, to: &mut [u8]) {
        let last = self.last;
        self.lane(last).take_bytes(chunk, to);
    }
}

impl LaneSet {
    /// As [`RemoteClient::give_back`], of a chunk as [`LaneSet::take_bytes`] has it.
    pub fn give_back(&mut self, chunk: Chunk) {
        let last = self.last;
        self.lane(last).give_back(chunk);
    }
}

/// All ops are submitted before any lane ends: the first end is that of the application.
impl Drop for LaneSet {
    fn drop(&mut self) {
        for lane in &mut self.others {
            lane.submit_last();
        }
    }
}

#[cfg(test)]
mod tests;
