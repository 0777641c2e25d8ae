//! TCP (RFC 9293): the connections of one shard.
//!
//! Read first: RFC 9293 §3; then `state.rs` (what can happen), `connection.rs` (what is
//! remembered), `segment_arrives/mod.rs` (what a segment does), `output.rs` (what leaves).
//!
//! ```text
//!   on_segment ──> flow table ──> connection ──> segment_arrives ──┐
//!   on_icmp_error ───────────────────┤                             ├──> schedule ──> lists, wheel,
//!   on_timeout ──> wheel ────────────┤                             │               events
//!   commands ────────────────────────┴─────────────────────────────┘
//!   poll_transmit <── control, ACK and data lists [mTCP 3.2.3]     poll_event <── event list
//! ```
//!
//! Everything that happens to a connection changes its record, then [`Tcp::schedule`] looks at the
//! record: has it something to report, is it over; and, once in a poll, before frames leave: what
//! does it want to send, when does it want to be woken. Only the fast paths decide a part of that
//! themselves, for expected segments (`segment_arrives/fast_path.rs`, `Tcp::send_direct`).
//!
//! An *entry* is a number for what can wait in lists and in the wheel: connections first, embryonic
//! connections after them. The flow table knows a third kind after these, TIME-WAIT records.
//!
//! Invariants
//! - After every call each connection is scheduled, or among those that `Shard::dirty` names.
//! - A connection is in the flow table until it is over; TIME-WAIT records take its place there.
//! - The slot of an ended connection is freed when its end was reported, or at once if there is no
//!   application.

mod accounting;
mod awaited;
mod challenge;
mod chunks;
mod close;
mod congestion;
mod conn_timers;
mod connection;
mod control_queue;
mod cookie;
mod deadline;
mod dirty_list;
mod events;
mod fast_open;
mod flags;
mod flow_key;
mod handover;
mod handshake;
mod icmp;
mod info;
#[cfg(any(test, feature = "invariants"))]
mod invariants;
mod isn;
mod listen;
mod listener_groups;
mod listeners;
mod listing;
mod lists;
mod migrate;
mod mss_search;
mod open;
mod out_of_order;
mod output;
mod plpmtud;
mod ports;
mod receive_queue;
mod recovery;
mod schedule;
mod segment;
mod segment_arrives;
mod send_hold;
mod send_queue;
mod state;
mod syn_queue;
mod time_wait;
mod timers;
mod window;

use alloc::vec::Vec;

use awaited::AwaitedListeners;
use challenge::Challenges;
use chunks::ChunkNodes;
pub use conn_timers::{ConnTimer, ConnTimerKind};
use connection::{Begin, Connection, Rares};
use control_queue::ControlQueue;
use dirty_list::{DirtyConnections, EntryQueue};
use fast_open::{Peers, Pending};
use flags::ConnFlags;
use flow_key::{FlowKey, Locals};
pub use handover::Handover;
pub(crate) use handshake::announced_scale;
pub use info::{ConnInfo, ConnOption, TcpState, TcpUsage};
use isn::Secret;
pub use listener_groups::{ListenerGroupLimits, ListenerGroupUse};
use listeners::Listeners;
use lists::Lists;
use migrate::Departed;
pub use migrate::{Clocks, Snapshot};
use ports::PortCounters;
use recovery::Records;
pub use send_hold::{Holder, Reuse};
use syn_queue::SynQueue;
use time_wait::TimeWaits;

use crate::config::Config;
use crate::context::Context;
use crate::flow_table::{Flow, FlowTable};
use crate::id::ConnId;
use crate::ip::Arrived;
use crate::limits::{NODES_MIN, NODES_PER_CONNECTION, RECORDS_PER_CONNECTION};
use crate::memory::Memory;
use crate::slab::Places;
use crate::time::Instant;
use crate::wheel::Wheel;
use crate::wire::fast_path::FastSegment;
use crate::wire::fast_path::template::Template;
pub(crate) use segment::Segment;

/// SYN, RST, probes.
const CONTROL: usize = 0;
/// Segments without payload.
const ACK: usize = 1;
/// Segments with payload, and FINs.
const DATA: usize = 2;
/// Data to send, with an unresolved next hop.
const PARKED: usize = 3;
const LISTS: usize = 4;

/// What each connection has in the tables.
pub(crate) const IDLE_CONNECTION_BYTES: usize = size_of::<Connection>()
    + Places::ENTRY_BYTES
    + Lists::<LISTS>::ENTRY_BYTES
    + EntryQueue::ENTRY_BYTES
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
    dirty: DirtyConnections,
    /// Connections, then listeners, with something to report.
    events: EntryQueue,
    flows: FlowTable,
    secret: Secret,
    control_queue: ControlQueue,
    challenges: Challenges,
    /// Connections that began with a SYN's data.
    fast_open: Pending,
    /// Servers to which we may begin so.
    peers: Peers,
    ports: PortCounters,
    departed: Departed,
    /// What new connections begin as.
    blank: Connection,
    /// Receive buffer of a connection with an owner.
    receive_buffer: u32,
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
    sends_by_slow_path: bool,
}

/// All connections of a shard.
pub(crate) struct Tcp {
    connections: Vec<Connection>,
    places: Places,
    half_open: SynQueue,
    time_waits: TimeWaits,
    listeners: Listeners,
    shard: Shard,
    /// The connection that began last, or that the last expected segment was of: its flow is
    /// compared first.
    last: u32,
    train: Train,
    /// First entry of embryonic connections: how many connections there may be.
    half_open_from: u32,
    /// First number of TIME-WAIT records in the flow table.
    time_waits_from: u32,
    unknown: Unknown,
    awaited: AwaitedListeners,
}

/// How a segment is answered that no connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// By the listener at its address, or with a RST.
    Answered,
    /// With a RST, as if there were no listener.
    Refused,
    /// By a listener, if it begins a connection or ends a handshake, and not with a RST.
    Stray,
}

/// Segments come in trains (Jain and Routhier, 1986). A template is made of the second segment of a
/// train: where each segment is of another connection, none would be read by it.
#[derive(Debug)]
struct Train {
    template: Template,
    /// Whose template it is: index of a connection that is not released, or an unused index. Both
    /// addresses are valid under the current addresses and routes.
    index: u32,
    /// The connection of the last segment of the fast path without a template, or an unused index.
    last: u32,
}

impl Train {
    const NONE: Self = Self { template: Template::NONE, index: u32::MAX, last: u32::MAX };

    /// `segment`, of the connection with `index`, took the fast path, but no template read it.
    #[inline(always)]
    fn note(&mut self, segment: &FastSegment<'_>, index: u32) {
        if self.last == index {
            *self = Self { template: Template::of(segment), index, last: index };
        } else {
            self.last = index;
        }
    }

    /// The connection with `index` is over.
    #[inline]
    fn forget(&mut self, index: u32) {
        if self.index == index || self.last == index {
            *self = Self::NONE;
        }
    }
}

/// What was found of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookup {
    /// Of the flow, in the flow table.
    hash: u32,
    found: Option<Found>,
}

/// What an entry of the flow table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Connection(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

impl Tcp {
    /// Everything that is ever needed is allocated here, at most [`Config::memory_bytes`].
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        let [hash_key, secret_key] = split(&config.secret);
        let connections = config.connections;
        let half_open = config.half_open_max();
        let time_waits = config.time_waits.max(1);
        let entries = connections + half_open;
        let records = Records::new(
            connections.saturating_mul(RECORDS_PER_CONNECTION).max(NODES_MIN),
            connections,
            &config.tcp,
        );
        Self {
            connections: Vec::with_capacity(connections as usize),
            places: Places::new(connections),
            half_open: SynQueue::new(half_open),
            time_waits: TimeWaits::new(time_waits, config.tcp.msl.saturating_mul(2)),
            unknown: Unknown::Answered,
            awaited: AwaitedListeners::new(&config.tcp.awaited_listeners),
            listeners: Listeners::new(config.listeners, half_open),
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
                dirty: DirtyConnections::new(connections),
                events: EntryQueue::new(connections + config.listeners),
                flows: FlowTable::new(entries + time_waits, &hash_key),
                secret: Secret::new(&secret_key),
                control_queue: ControlQueue::new(connections),
                challenges: Challenges::new(config.tcp.challenge_acks_per_s),
                fast_open: Pending::new(config.listeners),
                peers: Peers::default(),
                ports: PortCounters::new(),
                departed: Departed::default(),
                receive_buffer: config.tcp.receive_buffer,
                receive_buffer_max: config.tcp.receive_buffer_max,
                send_buffer_max: config.tcp.send_buffer_max,
                delayed_ack_ms: window::delayed_ack_ms(&config.tcp),
                syn_wait_ms: timers::whole_ms(config.tcp.rto_initial),
                epoch: 0,
                now,
                #[cfg(test)]
                sends_by_slow_path: false,
            },
            last: 0,
            train: Train::NONE,
            half_open_from: connections,
            time_waits_from: entries,
        }
    }

    /// Lets nothing leave by the way of usual segments, or what it can.
    #[cfg(test)]
    pub(crate) const fn send_by_slow_path(&mut self, on: bool) {
        self.shard.sends_by_slow_path = on;
    }

    /// Addresses or routes are about to change: what is known under those of now is forgotten.
    pub(crate) const fn forget_ways(&mut self) {
        self.train = Train::NONE;
    }

    /// A segment for one of our addresses.
    pub(crate) fn on_segment<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        arrived: &Arrived<'_>,
    ) {
        context.base.counters.totals.segments_in += 1;
        let segment = match Segment::parse(arrived) {
            Ok(segment) => segment,
            Err(reason) => return context.base.counters.drop(reason),
        };
        self.on_parsed(context, &segment, None);
    }

    /// The same of a segment that was read already, and whose checksum is right. `lookup`: of its
    /// flow, if that was looked up.
    #[inline]
    pub(crate) fn on_read<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        segment: &Segment<'_>,
        lookup: Option<Lookup>,
    ) {
        context.base.counters.totals.segments_in += 1;
        self.on_parsed(context, segment, lookup);
    }

    fn on_parsed<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        segment: &Segment<'_>,
        lookup: Option<Lookup>,
    ) {
        let Lookup { hash, found } = match lookup {
            Some(lookup) => lookup,
            // The next is often of the same flow.
            None if self.is_of_last(&segment.flow) => {
                Lookup { hash: 0, found: Some(Found::Connection(self.last)) }
            }
            None => self.look_up(&segment.flow),
        };
        match found {
            Some(Found::Connection(index)) => {
                self.on_segment_of_connection(context, index, segment);
            }
            Some(Found::HalfOpen(index)) => self.on_segment_for_half_open(context, index, segment),
            Some(Found::TimeWait(index)) => {
                self.on_segment_in_time_wait(context, (hash, index), segment)
            }
            None => self.on_segment_without_connection(context, hash, segment),
        }
    }

    #[inline(always)]
    fn on_segment_of_connection<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        segment: &Segment<'_>,
    ) {
        if self.on_last_segment(context, index, segment) {
            return;
        }
        let conn = &mut self.connections[index as usize];
        segment_arrives::on_segment(conn, &mut self.shard, context, segment);
        self.schedule(context, index);
    }

    /// `flow` is that of the connection that is looked at first.
    #[inline(always)]
    fn is_of_last(&self, flow: &Flow) -> bool {
        self.connections.get(self.last as usize).is_some_and(|last| {
            self.shard.locals.is(&last.ends, flow) && !last.flags.has(ConnFlags::RELEASED)
        })
    }

    /// The segment is for a connection or a listener of ours.
    pub(crate) fn is_asked_for(&self, arrived: &Arrived<'_>) -> bool {
        Segment::parse(arrived).is_ok_and(|segment| {
            let flow = &segment.flow;
            self.look_up(flow).found.is_some()
                || self.listeners.find(flow.local, flow.local_port).is_some()
        })
    }

    #[inline(always)]
    fn find(&self, hash: u32, flow: &Flow) -> Option<Found> {
        let entry = self.shard.flows.find(hash, |entry| self.is_of(entry, flow))?;
        Some(self.found(entry))
    }

    /// Looks `flow` up.
    #[inline]
    fn look_up(&self, flow: &Flow) -> Lookup {
        let hash = self.shard.flows.hash(flow);
        Lookup { hash, found: self.find(hash, flow) }
    }

    /// The flow of `entry` is `flow`.
    #[inline]
    fn is_of(&self, entry: u32, flow: &Flow) -> bool {
        match self.connections.get(entry as usize) {
            Some(conn) => self.shard.locals.is(&conn.ends, flow),
            None => self.is_of_other(entry, flow),
        }
    }

    /// The same of one that is no connection. Apart: most searches end before they come to that,
    /// and should not get ready for it.
    #[inline(never)]
    fn is_of_other(&self, entry: u32, flow: &Flow) -> bool {
        match self.found(entry) {
            Found::Connection(_) => false,
            Found::HalfOpen(index) => self.half_open.get(index).flow == *flow,
            Found::TimeWait(index) => self.time_waits.get(index).0.flow == *flow,
        }
    }

    const fn found(&self, entry: u32) -> Found {
        if entry < self.half_open_from {
            Found::Connection(entry)
        } else if entry < self.time_waits_from {
            Found::HalfOpen(entry - self.half_open_from)
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
    #[inline(always)]
    fn take_room(&mut self, flow: &Flow, reuse: Reuse) -> Option<(u32, FlowKey)> {
        let (index, _) = self.places.take()?;
        let ends = self.shard.locals.take(flow, reuse);
        if ends.is_none() {
            self.places.give_back(index);
        }
        Some((index, ends?))
    }

    /// What `take_room` gave is not needed after all.
    fn give_room_back(&mut self, (index, ends): (u32, FlowKey)) {
        self.shard.locals.give_back(&ends);
        self.places.give_back(index);
    }

    /// Puts a new connection into its place, and the flow table gets an entry.
    fn place(&mut self, now: Instant, index: u32, mut connection: Connection) {
        self.enter(connection.hash, index);
        match self.connections.get_mut(index as usize) {
            Some(place) => {
                connection.flags.put(ConnFlags::DIRTY, place.flags.has(ConnFlags::DIRTY));
                *place = connection;
            }
            None => self.connections.push(connection),
        }
        self.prepare(now, index);
    }

    /// Makes a new connection in its place; the flow table gets an entry, or that of the embryonic
    /// connection which it was.
    #[inline(always)]
    fn make(&mut self, now: Instant, index: u32, begin: &Begin, half_open: Option<u32>) {
        match half_open {
            Some(half_open) => self.shard.flows.replace(begin.hash, half_open, index),
            None => self.enter(begin.hash, index),
        }
        let blank = &self.shard.blank;
        match self.connections.get_mut(index as usize) {
            Some(place) => place.renew(blank, begin, now),
            None => self.connections.push(Connection::new(blank, begin, now)),
        }
        self.last = index;
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
