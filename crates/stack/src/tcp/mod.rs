//! TCP (RFC 9293): the connections of one shard.
//!
//! Read first: RFC 9293 §3; then `state.rs` (what can happen), `connection.rs` (what is
//! remembered), `segment_arrives/mod.rs` (what a segment does), `output.rs` (what leaves).
//!
//! ```text
//!   on_segment ──> flow table ──> connection ──> segment_arrives ──┐
//!   on_icmp_error ───────────────────┤                             ├──> settle ──> lists, wheel,
//!   on_timeout ──> wheel ────────────┤                             │               events
//!   commands ────────────────────────┴─────────────────────────────┘
//!   poll_transmit <── control, ACK and data lists [mTCP 3.2.3]     poll_event <── event list
//! ```
//!
//! Everything that happens to a connection changes its record, then [`Tcp::settle`] looks at the
//! record: has it something to report, is it over; and, once in a turn, before frames leave: what
//! does it want to send, when does it want to be woken. No other place decides that.
//!
//! An *entry* is a number for what can wait in lists and in the wheel: connections first, embryonic
//! connections after them. The flow table knows a third kind after these, TIME-WAIT records.
//!
//! Invariants
//! - After every call each connection is settled, or among those that `Shard::touched` names.
//! - A connection is in the flow table until it is over; TIME-WAIT records take its place there.
//! - A place of a connection that is over is free as soon as its end was reported, or at once if
//!   nobody is there to hear of it.

mod challenge;
mod chunks;
mod close;
mod congestion;
mod connection;
mod cookie;
mod deadline;
mod embryo;
mod ends;
mod events;
mod facts;
mod fast_open;
mod handshake;
mod holding;
mod icmp;
mod info;
#[cfg(any(test, feature = "invariants"))]
mod invariants;
mod isn;
mod listen;
mod listeners;
mod lists;
mod migrate;
mod open;
mod output;
mod path_search;
mod ports;
mod receive_queue;
mod recovery;
mod replies;
mod segment;
mod segment_arrives;
mod send_queue;
mod settle;
mod state;
mod time_wait;
mod timers;
mod turns;
mod window;

use alloc::vec::Vec;

use challenge::Challenges;
use chunks::ChunkNodes;
use connection::{Begin, Connection, Rares};
use embryo::Embryos;
use ends::{Ends, Locals};
use facts::Facts;
use fast_open::{Peers, Pending};
pub use holding::{Holder, Reuse};
pub use info::{ConnInfo, ConnOption, TcpState, TcpUsage};
use isn::Secret;
use listeners::Listeners;
use lists::Lists;
use migrate::Departed;
pub use migrate::{Clocks, Snapshot};
use ports::PortCounters;
use recovery::Records;
use replies::Replies;
use time_wait::TimeWaits;
use turns::{Touched, Turns};

use crate::config::Config;
use crate::cx::Cx;
use crate::flow_table::{Flow, FlowTable};
use crate::id::ConnId;
use crate::ip::Arrived;
use crate::limits::{
    EMBRYOS_MAX, EMBRYOS_MIN, NODES_MIN, NODES_PER_CONNECTION, RECORDS_PER_CONNECTION,
};
use crate::memory::Memory;
use crate::slab::Places;
use crate::time::Instant;
use crate::wheel::Wheel;
use crate::wire::usual::template::Template;
pub(crate) use segment::Segment;

/// SYN, RST, probes.
const CONTROL: usize = 0;
/// Segments without payload.
const ACK: usize = 1;
/// Segments with payload, and FINs.
const DATA: usize = 2;
/// Something to send, and nobody knows the next hop's address yet.
const PARKED: usize = 3;
const LISTS: usize = 4;

/// What each connection has in the tables.
pub(crate) const IDLE_CONNECTION_BYTES: usize = size_of::<Connection>()
    + Places::ENTRY_BYTES
    + Lists::<LISTS>::ENTRY_BYTES
    + Turns::ENTRY_BYTES
    + Wheel::ENTRY_BYTES
    + FlowTable::FLOW_BYTES_MAX;

const _: () = assert!(IDLE_CONNECTION_BYTES <= 320);

/// What the connections of a shard share.
pub(crate) struct Shard {
    pub(crate) nodes: ChunkNodes,
    pub(crate) records: Records,
    pub(crate) rares: Rares,
    pub(crate) locals: Locals,
    wheel: Wheel,
    transmit: Lists<LISTS>,
    /// Connections that something happened to since frames left last.
    touched: Touched,
    /// Connections, then listeners, with something to report.
    events: Turns,
    flows: FlowTable,
    secret: Secret,
    replies: Replies,
    challenges: Challenges,
    /// Connections that began with a SYN's data.
    fast_open: Pending,
    /// Servers to which we may begin so.
    peers: Peers,
    ports: PortCounters,
    departed: Departed,
    /// What new connections begin as.
    blank: Connection,
    /// What buffers may grow to by themselves.
    receive_buffer_max: u32,
    send_buffer_max: u32,
    /// How long an ACK may be held back; 0: not at all.
    delayed_ack_ms: u32,
    /// How long the answer to our first SYN or SYN-ACK is waited for.
    syn_wait_ms: u32,
    /// The addresses and routes that those without a next hop were parked under.
    epoch: u32,
    /// The time of the last call.
    now: Instant,
    /// Nothing leaves by the way of usual segments.
    #[cfg(test)]
    sends_full_way: bool,
}

/// All connections of a shard.
pub(crate) struct Tcp {
    connections: Vec<Connection>,
    places: Places,
    embryos: Embryos,
    time_waits: TimeWaits,
    listeners: Listeners,
    shard: Shard,
    /// The connection that the last expected segment was of: its flow is looked at first.
    last: u32,
    train: Train,
    /// First entry of embryonic connections: how many connections there may be.
    embryos_from: u32,
    /// First number of TIME-WAIT records in the flow table.
    time_waits_from: u32,
    /// Segments are answered as if nobody listened.
    is_refusing: bool,
}

/// Segments come in trains (Jain and Routhier, 1986): the connection that the last expected segment
/// over IPv4 was of, and what the next will begin with.
#[derive(Debug)]
struct Train {
    template: Template,
    /// Not released; nobody's, if there is no such connection. Both addresses are good under the
    /// addresses and routes of now.
    index: u32,
}

impl Train {
    const NONE: Self = Self { template: Template::NONE, index: u32::MAX };
}

/// What an entry of the flow table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Connection(u32),
    Embryo(u32),
    TimeWait(u32),
}

impl Tcp {
    /// Everything that is ever needed is allocated here.
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        let [hash_key, secret_key] = split(&config.secret);
        let connections = config.connections;
        // Not many more than can become connections: each makes the flow table larger, and slower.
        let embryos_max = connections.clamp(EMBRYOS_MIN, EMBRYOS_MAX);
        let embryos = config.tcp.syn_backlog.saturating_mul(config.listeners).clamp(1, embryos_max);
        let time_waits = config.time_waits.max(1);
        let entries = connections + embryos;
        let records = Records::new(
            connections.saturating_mul(RECORDS_PER_CONNECTION).max(NODES_MIN),
            connections,
            &config.tcp,
        );
        Self {
            connections: Vec::with_capacity(connections as usize),
            places: Places::new(connections),
            embryos: Embryos::new(embryos),
            time_waits: TimeWaits::new(time_waits, config.tcp.msl.saturating_mul(2)),
            is_refusing: false,
            listeners: Listeners::new(config.listeners),
            shard: Shard {
                nodes: ChunkNodes::new(
                    connections.saturating_mul(NODES_PER_CONNECTION).max(NODES_MIN),
                    connections,
                ),
                blank: Connection::blank(&config.tcp, &records, now),
                records,
                rares: Rares::new(connections, &config.tcp),
                locals: Locals::new(),
                wheel: Wheel::new(entries, now),
                transmit: Lists::new(entries),
                touched: Touched::new(connections),
                events: Turns::new(connections + config.listeners),
                flows: FlowTable::new(entries + time_waits, &hash_key),
                secret: Secret::new(&secret_key),
                replies: Replies::new(connections),
                challenges: Challenges::new(config.tcp.challenge_acks_per_s),
                fast_open: Pending::new(config.listeners),
                peers: Peers::default(),
                ports: PortCounters::new(),
                departed: Departed::default(),
                receive_buffer_max: config.tcp.receive_buffer_max,
                send_buffer_max: config.tcp.send_buffer_max,
                delayed_ack_ms: window::delayed_ack_ms(&config.tcp),
                syn_wait_ms: timers::whole_ms(config.tcp.rto_initial),
                epoch: 0,
                now,
                #[cfg(test)]
                sends_full_way: false,
            },
            last: 0,
            train: Train::NONE,
            embryos_from: connections,
            time_waits_from: entries,
        }
    }

    /// Lets nothing leave by the way of usual segments, or what it can.
    #[cfg(test)]
    pub(crate) const fn send_full_way(&mut self, on: bool) {
        self.shard.sends_full_way = on;
    }

    /// Addresses or routes are about to change: what is known under those of now is forgotten.
    pub(crate) const fn forget_ways(&mut self) {
        self.train = Train::NONE;
    }

    /// A segment for one of our addresses.
    pub(crate) fn on_segment<M: Memory>(&mut self, cx: &mut Cx<'_, M>, arrived: &Arrived<'_>) {
        cx.counters.totals.segments_in += 1;
        let segment = match Segment::parse(arrived) {
            Ok(segment) => segment,
            Err(reason) => return cx.counters.drop(reason),
        };
        self.on_parsed(cx, &segment, None);
    }

    /// The same of a segment that was read already, and whose checksum is right. `hash`: of its
    /// flow, if that is known.
    #[inline]
    pub(crate) fn on_read<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        segment: &Segment<'_>,
        hash: Option<u32>,
    ) {
        cx.counters.totals.segments_in += 1;
        self.on_parsed(cx, segment, hash);
    }

    fn on_parsed<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        segment: &Segment<'_>,
        hash: Option<u32>,
    ) {
        let hash = hash.unwrap_or_else(|| self.shard.flows.hash(&segment.flow));
        match self.find(hash, &segment.flow) {
            Some(Found::Connection(index)) => {
                let conn = &mut self.connections[index as usize];
                segment_arrives::on_segment(conn, &mut self.shard, cx, segment);
                self.settle(cx, index);
            }
            Some(Found::Embryo(index)) => self.on_segment_for_embryo(cx, index, segment),
            Some(Found::TimeWait(index)) => {
                self.on_segment_in_time_wait(cx, (hash, index), segment)
            }
            None => self.on_segment_without_connection(cx, hash, segment),
        }
    }

    /// A connection or a listener of ours is who this segment is for.
    pub(crate) fn is_asked_for(&self, arrived: &Arrived<'_>) -> bool {
        Segment::parse(arrived).is_ok_and(|segment| {
            let flow = &segment.flow;
            self.find(self.shard.flows.hash(flow), flow).is_some()
                || self.listeners.find(flow.local, flow.local_port).is_some()
        })
    }

    fn find(&self, hash: u32, flow: &Flow) -> Option<Found> {
        let entry = self.shard.flows.find(hash, |entry| self.is_of(entry, flow))?;
        Some(self.found(entry))
    }

    /// The flow of `entry` is `flow`. Apart: most searches end before they come to that, and should
    /// not get ready for it.
    #[inline(never)]
    fn is_of(&self, entry: u32, flow: &Flow) -> bool {
        match self.found(entry) {
            Found::Connection(index) => {
                self.shard.locals.is(&self.connections[index as usize].ends, flow)
            }
            Found::Embryo(index) => self.embryos.get(index).flow == *flow,
            Found::TimeWait(index) => self.time_waits.get(index).0.flow == *flow,
        }
    }

    const fn found(&self, entry: u32) -> Found {
        if entry < self.embryos_from {
            Found::Connection(entry)
        } else if entry < self.time_waits_from {
            Found::Embryo(entry - self.embryos_from)
        } else {
            Found::TimeWait(entry - self.time_waits_from)
        }
    }

    /// The connection that `id` names and its index, unless it is stale or over.
    fn by_id(&mut self, id: ConnId) -> Option<&mut Connection> {
        if !self.places.holds(id.index, id.generation) {
            return None;
        }
        self.connections.get_mut(id.index as usize)
    }

    fn id(&self, index: u32) -> ConnId {
        ConnId { index, generation: self.places.generation(index) }
    }

    /// A place for a connection, and its ends. `None`: there is no room for one of the two, and
    /// neither is taken.
    fn take_room(&mut self, flow: &Flow, reuse: Reuse) -> Option<(u32, Ends)> {
        let (index, _) = self.places.take()?;
        let ends = self.shard.locals.take(flow, reuse);
        if ends.is_none() {
            self.places.give_back(index);
        }
        Some((index, ends?))
    }

    /// What `take_room` gave is not needed after all.
    fn give_room_back(&mut self, (index, ends): (u32, Ends)) {
        self.shard.locals.give_back(&ends);
        self.places.give_back(index);
    }

    /// Puts a new connection into its place, and the flow table gets an entry.
    fn place(&mut self, now: Instant, index: u32, mut connection: Connection) {
        self.enter(connection.hash, index);
        match self.connections.get_mut(index as usize) {
            Some(place) => {
                connection.facts.put(Facts::TOUCHED, place.facts.has(Facts::TOUCHED));
                *place = connection;
            }
            None => self.connections.push(connection),
        }
        self.prepare(now, index);
    }

    /// Makes a new connection in its place; the flow table gets an entry, or that of the embryonic
    /// connection which it was.
    fn make(&mut self, now: Instant, index: u32, begin: &Begin, embryo: Option<u32>) {
        match embryo {
            Some(embryo) => self.shard.flows.replace(begin.hash, embryo, index),
            None => self.enter(begin.hash, index),
        }
        let blank = &self.shard.blank;
        match self.connections.get_mut(index as usize) {
            Some(place) => place.renew(blank, begin, now),
            None => self.connections.push(Connection::new(blank, begin, now)),
        }
        self.prepare(now, index);
    }

    /// Enters a connection into the flow table.
    fn enter(&mut self, hash: u32, index: u32) {
        // The table has room for every entry that there can be.
        let inserted = self.shard.flows.insert(hash, index);
        debug_assert!(inserted.is_ok(), "the flow table is smaller than the tables that use it");
    }

    /// A new connection may have timers from the beginning.
    fn prepare(&mut self, now: Instant, index: u32) {
        if self.shard.rares.wanted_at_once() {
            self.shard.rares.of(&mut self.connections[index as usize], now);
        }
    }
}

/// Two keys out of one secret.
fn split(secret: &[u8; 32]) -> [[u8; 16]; 2] {
    let mut keys = [[0; 16]; 2];
    keys[0].copy_from_slice(&secret[..16]);
    keys[1].copy_from_slice(&secret[16..]);
    keys
}

#[cfg(test)]
mod tests;
