//! Handing what a listener holds to another stack that listens at the same address.
//!
//! Read first: `migrate.rs`, whose snapshot an established connection moves by; `syn_queue.rs`.
//!
//! A listener that leaves while siblings stay loses nothing: handshakes that were answered here,
//! and connections that no application has accepted, go on in the stack that the peers' next
//! segments reach. Bytes that wait to be read move as bytes, because each stack has buffers of its
//! own.
//!
//! Invariants
//! - What was handed over is gone here without a segment, and its buffers are free.
//! - Bytes that were acknowledged move; bytes that came out of order were not, and the peer sends
//!   them again (RFC 2018 §8).
//! - Nothing that an application has written moves: an application can write after it has accepted.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::connection::{Connection, Role};
use super::control_queue::Reset;
use super::deadline::Deadline;
use super::fast_open;
use super::flags::ConnFlags;
use super::isn::{microseconds, timestamp};
use super::migrate::{Snapshot, flow_of};
use super::state::State;
use super::syn_queue::HalfOpen;
use super::{CONTROL, Found, Tcp, timers};
use crate::chunk::Chunk;
use crate::context::Context;
use crate::flow_table::Flow;
use crate::id::{ConnId, ListenerId, PoolId};
use crate::ip::Service;
use crate::memory::Memory;
use crate::time::Instant;
use crate::wire::tcp::Timestamps;

/// A handshake under way, or a connection that no application has accepted, on its way from one
/// stack to another that listens at the same address. Belongs to no stack's memory.
#[derive(Debug)]
pub struct Handover(Content);

#[derive(Debug)]
enum Content {
    Handshake(Handshake),
    Connection(Box<Waiting>),
}

/// A handshake that waits for its last ACK.
#[derive(Debug)]
struct Handshake {
    half_open: HalfOpen,
    /// Our timestamp clock at the moment.
    clock: u32,
    /// Microseconds since the first SYN-ACK; `None`: unknown.
    age_us: Option<u32>,
    /// The SYN-ACK has to be sent.
    owes_syn_ack: bool,
}

/// A connection that waits to be accepted.
#[derive(Debug)]
struct Waiting {
    /// Without chunks.
    snapshot: Snapshot,
    state: State,
    unread: Vec<u8>,
}

impl Handover {
    /// Our end.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        match &self.0 {
            Content::Handshake(it) => {
                SocketAddr::new(it.half_open.flow.local.ip(), it.half_open.flow.local_port)
            }
            Content::Connection(it) => it.snapshot.local,
        }
    }

    /// The peer's end.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        match &self.0 {
            Content::Handshake(it) => {
                SocketAddr::new(it.half_open.flow.remote.ip(), it.half_open.flow.remote_port)
            }
            Content::Connection(it) => it.snapshot.remote,
        }
    }

    /// Puts bytes that were taken from the connection, and that no application has seen, in front
    /// of those that wait to be read.
    pub fn prepend(&mut self, bytes: &[u8]) {
        if let Content::Connection(waiting) = &mut self.0 {
            waiting.unread.splice(..0, bytes.iter().copied());
        }
    }
}

/// The connection can be handed over: its peer may send, and nothing of ours is on its way.
fn may_move(conn: &Connection) -> bool {
    let has_state =
        matches!(conn.state, State::FastOpen(_) | State::Established(_) | State::CloseWait(_));
    has_state && conn.send.queue.bytes() == 0 && conn.send.flight() == 0
}

/// From a stack.
impl Tcp {
    /// Takes the next handshake or waiting connection out of a listener. `None`: it has none that
    /// could be handed over, or the id is stale.
    pub(crate) fn hand_over_next<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ListenerId,
    ) -> Option<Handover> {
        self.listeners.by_id(id)?;
        if let Some(half_open) = self.half_open.of(id.index) {
            return Some(self.hand_over_handshake(context.now, half_open));
        }
        let waiting = &self.listeners.get(id.index)?.waiting;
        let index = *waiting.front()?;
        self.hand_over_at(context, index)
    }

    /// Takes a connection out that was reported, and that no application has heard of. `None`: it
    /// is over, or the application has begun to use it.
    pub(crate) fn hand_over_reported<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
    ) -> Option<Handover> {
        self.open(id).ok()?;
        self.hand_over_at(context, id.index)
    }

    fn hand_over_handshake(&mut self, now: Instant, index: u32) -> Handover {
        let half_open = *self.half_open.get(index);
        let known = Some(half_open.sent_at_us).filter(|at| *at != 0);
        let handshake = Handshake {
            half_open,
            clock: timestamp(now, half_open.ts_offset),
            age_us: known.map(|at| microseconds(now).wrapping_sub(at)),
            owes_syn_ack: self.shard.transmit.on(self.half_open_from + index).is_some(),
        };
        self.forget_half_open(index);
        Handover(Content::Handshake(handshake))
    }

    fn hand_over_at<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
    ) -> Option<Handover> {
        let conn = &self.connections[index as usize];
        if !may_move(conn) {
            return None;
        }
        let state = conn.state;
        fast_open::leave(conn, &mut self.shard, context.now, false);
        let mut snapshot = self.snapshot(context, index);
        let mut unread = Vec::new();
        for chunk in core::mem::take(&mut snapshot.unread) {
            let from = unread.len();
            unread.resize(from + chunk.len as usize, 0);
            context.memory.copy_out(chunk, &mut unread[from..]);
            context.memory.free(chunk.buf);
        }
        // A connection that waits leaves its listener's queue with its place.
        self.vanish(index);
        Some(Handover(Content::Connection(Box::new(Waiting { snapshot, state, unread }))))
    }
}

/// To a stack.
impl Tcp {
    /// Takes over what another stack's listener held: a handshake goes on, and a connection waits
    /// to be accepted, also beyond the backlog, but not beyond what the listener's group may have.
    ///
    /// # Errors
    /// The handover, if no listener has its address here or a table is full.
    pub(crate) fn take_over<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        handover: Handover,
    ) -> Result<(), Handover> {
        let flow = flow_of(handover.local(), handover.remote());
        let listener = self.listeners.find(flow.local, flow.local_port);
        let Some(listener) = listener else { return Err(handover) };
        let hash = self.shard.flows.hash(&flow);
        match self.find(hash, &flow) {
            // The peer's connection is here already.
            Some(Found::Connection(_)) => return Ok(()),
            // The peer has repeated its SYN meanwhile. It goes by the answer that came first.
            Some(Found::HalfOpen(index)) => self.forget_half_open(index),
            Some(Found::TimeWait(index)) => self.end_time_wait(index),
            None => {}
        }
        let taken = match &handover.0 {
            Content::Handshake(handshake) => {
                self.take_over_handshake(context, handshake, (hash, listener))
            }
            Content::Connection(waiting) => {
                self.take_over_connection(context, waiting, (hash, listener, &flow))
            }
        };
        taken.ok_or(handover)
    }

    /// Answers the peer of a connection that no stack takes over with a RST. A handshake is
    /// forgotten: the peer's next segment gets its RST.
    pub(crate) fn refuse_handover<M>(&mut self, context: &mut Context<'_, M>, handover: &Handover) {
        let Content::Connection(waiting) = &handover.0 else { return };
        let snapshot = &waiting.snapshot;
        let reset = Reset {
            flow: flow_of(snapshot.local, snapshot.remote),
            seq: snapshot.snd_nxt,
            ack: snapshot.rcv_nxt,
            times: snapshot
                .clocks
                .map(|clocks| Timestamps { value: clocks.value, echo: clocks.recent.unwrap_or(0) }),
            service: Service::default(),
        };
        if self.shard.control_queue.push_reset(reset) {
            context.base.counters.totals.resets_out += 1;
        }
    }

    /// `None`: there is no room.
    fn take_over_handshake<M>(
        &mut self,
        context: &Context<'_, M>,
        handshake: &Handshake,
        (hash, listener): (u32, u32),
    ) -> Option<()> {
        let Handshake { half_open, clock, age_us, owes_syn_ack } = handshake;
        let config = &context.base.config.tcp;
        let sent_at_us = age_us.map_or(0, |age| microseconds(context.now).wrapping_sub(age).max(1));
        let wait =
            timers::back_off(config.rto_initial, half_open.sent.saturating_sub(1), config.rto_max);
        let half_open = HalfOpen {
            hash,
            listener: listener as u16,
            ts_offset: clock.wrapping_sub(timestamp(context.now, 0)),
            sent_at_us,
            again_at: Deadline::after(context.now, wait),
            // Of the other stack.
            hop: None,
            ..*half_open
        };
        let index = self.keep_half_open(half_open, context.now + wait)?;
        if *owes_syn_ack {
            self.shard.transmit.put(CONTROL, self.half_open_from + index);
        }
        Some(())
    }

    /// `None`: there is no room.
    fn take_over_connection<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        waiting: &Waiting,
        (hash, listener, flow): (u32, u32, &Flow),
    ) -> Option<()> {
        let Waiting { snapshot, state, unread } = waiting;
        let (pool, reuse) = self.listeners.get(listener).map(|it| (it.pool, it.reuse))?;
        if !self.listeners.groups.may_hold(self.listeners.group_of(listener)) {
            return None;
        }
        let (index, ends) = self.take_room(flow, reuse)?;
        let mut conn = self.rebuilt(context, snapshot, (ends, hash), pool);
        if !self.put_unread(context, &mut conn, unread, pool) {
            self.give_room_back((index, ends));
            return None;
        }
        conn.state = *state;
        // Nothing of ours is on its way: the peer need not say again what it has.
        conn.flags.clear(ConnFlags::PROBE_DUE);
        conn.flags.put(ConnFlags::ACK_NOW, !unread.is_empty() || state.peer_has_closed());
        conn.cold.accounting.count_bytes_in(unread.len() as u32);
        conn.cold.listener_or_group = listener as u16;
        self.place(context.now, index, conn);
        if state.is_fast_open() {
            self.go_on_with_fast_open(context.now, (index, listener));
        }
        self.hand_over(context, index, listener);
        Some(())
    }

    /// The connection began with a SYN's data, and its SYN-ACK is sent again.
    fn go_on_with_fast_open(&mut self, now: Instant, (index, listener): (u32, u32)) {
        let id = self.listeners.id(listener);
        let (conn, shard) = (&mut self.connections[index as usize], &mut self.shard);
        shard.fast_open.begin_beyond(id);
        shard.rares.of(conn, now).fast_open = Role::Server(id);
        conn.flags.clear(ConnFlags::ACK_NOW);
        conn.flags.set(ConnFlags::SYN_DUE);
        conn.cold.timers.attend_after_ms(now, shard.syn_wait_ms);
    }

    /// Puts bytes that were received elsewhere into buffers of this stack's memory. `false`: there
    /// is no room, and nothing was put.
    fn put_unread<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        conn: &mut Connection,
        mut unread: &[u8],
        pool: PoolId,
    ) -> bool {
        let nodes = &mut self.shard.nodes;
        while !unread.is_empty() {
            let Some(buf) = context.memory.alloc(pool) else { break };
            let len = unread.len().min(context.memory.buf_bytes(buf) as usize);
            context.memory.copy_in(buf, 0, &unread[..len]);
            if !conn.receive.queue.adopt(nodes, Chunk { buf, offset: 0, len: len as u32 }) {
                context.memory.free(buf);
                break;
            }
            unread = &unread[len..];
        }
        if !unread.is_empty() {
            conn.receive.queue.clear(nodes, context.memory);
        }
        unread.is_empty()
    }
}
