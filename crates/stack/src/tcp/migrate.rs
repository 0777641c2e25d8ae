//! Migration of an established connection to another stack, or to the kernel and back.
//!
//! Read first: tcp(7) on TCP_REPAIR. What moves is what RFC 9293 §3.3.1 calls the connection's
//! variables, what both SYNs agreed on, and the bytes that are queued on both sides.
//!
//! Invariants
//! - An exported connection ends without a segment. The caller keeps its later segments away from
//!   this stack; those in flight are dropped without an answer for [`DEPARTED_LASTS`].
//! - Buffers move with the snapshot: its holder frees each chunk, unless an import succeeds, which
//!   gives them back to the stack.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::Tcp;
use super::connection::{Begin, Connection};
use super::deadline::CoarseStamp;
use super::flags::ConnFlags;
use super::flow_key::FlowKey;
use super::handshake::{Offer, mss_of};
use super::isn::timestamp;
use super::recovery::Sent;
use super::segment_arrives::TS_RECENT_AGE_MAX;
use super::send_hold::Reuse;
use super::state::{Established, State};
use crate::chunk::Chunk;
use crate::context::Context;
use crate::error::{ConnectError, OperationError};
use crate::flow_table::Flow;
use crate::id::{ConnId, PoolId};
use crate::limits::{DEPARTED_LASTS, DEPARTED_MAX};
use crate::memory::Memory;
use crate::seq::{SeqNum, SeqRange};
use crate::time::Instant;

/// The clocks of timestamps (RFC 7323 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// What we would send now, in milliseconds.
    pub value: u32,
    /// Last timestamp of the peer; `None`: unknown until its next segment.
    pub recent: Option<u32>,
}

/// An established connection, on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// SND.UNA: the number of the first byte of `unacked`.
    pub snd_una: SeqNum,
    /// SND.NXT: from here on, the bytes of `unacked` were never sent.
    pub snd_nxt: SeqNum,
    /// SND.WND in bytes.
    pub snd_wnd: u32,
    /// SND.WL1.
    pub snd_wl1: SeqNum,
    /// The largest window that the peer ever announced, in bytes.
    pub snd_wnd_max: u32,
    /// RCV.NXT: the number after the last byte of `unread`.
    pub rcv_nxt: SeqNum,
    /// Bytes from RCV.NXT on that the peer may send.
    pub rcv_wnd: u32,
    /// The MSS of the peer's SYN, in bytes.
    pub peer_mss: u16,
    /// The peer's window shift and ours; `None`: windows are not scaled.
    pub window_scale: Option<(u8, u8)>,
    /// `None`: timestamps are not in use.
    pub clocks: Option<Clocks>,
    /// SACK is in use.
    pub sack: bool,
    /// ECN is in use.
    pub ecn: bool,
    /// Small segments are not held back.
    pub no_delay: bool,
    /// Smoothed round-trip time; `None`: no sample yet.
    pub srtt: Option<Duration>,
    /// Bytes that the peer has not acknowledged, sent or not.
    pub unacked: Vec<Chunk>,
    /// Bytes that the application has not taken.
    pub unread: Vec<Chunk>,
}

/// Flows of connections that have left: segments that were on their way to them are dropped, as the
/// peer of a connection that lives elsewhere must not get a RST from here.
#[derive(Debug, Default)]
pub(super) struct Departed {
    /// With the time until which it counts, the oldest first. At most [`DEPARTED_MAX`].
    flows: VecDeque<(Flow, Instant)>,
}

impl Departed {
    pub(super) fn add(&mut self, flow: Flow, now: Instant) {
        while self.flows.front().is_some_and(|(_, until)| *until <= now)
            || self.flows.len() >= DEPARTED_MAX
        {
            self.flows.pop_front();
        }
        self.flows.push_back((flow, now + DEPARTED_LASTS));
    }

    pub(super) fn remove(&mut self, flow: &Flow) {
        self.flows.retain(|(other, _)| other != flow);
    }

    /// The flow's connection left a moment ago.
    pub(super) fn holds(&self, flow: &Flow, now: Instant) -> bool {
        self.flows.iter().any(|(other, until)| other == flow && now < *until)
    }
}

impl Tcp {
    /// There is a connection of this flow, be it in TIME-WAIT.
    pub(crate) fn knows(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let flow = flow_of(local, remote);
        self.find(self.shard.flows.hash(&flow), &flow).is_some()
    }

    /// The connections at a local port, with both ends; those in TIME-WAIT left out. Looks at every
    /// connection.
    pub(crate) fn connections_at(&self, port: u16) -> Vec<(ConnId, SocketAddr, SocketAddr)> {
        let ids = (0..self.connections.len() as u32).map(|index| self.id(index));
        let live = ids.filter_map(|id| Some((id, self.addresses(id).ok()?)));
        let here = live.filter(|(id, (local, _))| {
            local.port() == port && !self.connection(id.index).state.is_closed()
        });
        here.map(|(id, (local, remote))| (id, local, remote)).collect()
    }

    /// Takes a connection out. Bytes that came out of order stay behind: they were never
    /// acknowledged, and the peer sends them again (RFC 2018 §8).
    ///
    /// # Errors
    /// [`OperationError::NotConnected`] or [`OperationError::Closing`] in any state but
    /// ESTABLISHED; [`OperationError::BadAddress`] if the peer is one of our addresses.
    pub(crate) fn export<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
    ) -> Result<Snapshot, OperationError> {
        let conn = self.open(id)?;
        match conn.state {
            State::Established(_) => {}
            State::SynSent(_) | State::SynReceived(_) => return Err(OperationError::NotConnected),
            _ => return Err(OperationError::Closing),
        }
        // The kernel's end would look for ours in the kernel, and ours for the kernel's here.
        if context.base.ip.stays_here(conn.ends.remote()) {
            return Err(OperationError::BadAddress);
        }
        let snapshot = self.snapshot(context, id.index);
        self.shard.departed.add(flow_of(snapshot.local, snapshot.remote), context.now);
        self.vanish(id.index);
        Ok(snapshot)
    }

    /// All of a connection that is about to leave. Its queues are empty then.
    pub(super) fn snapshot<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
    ) -> Snapshot {
        let (conn, shard) = (&mut self.connections[index as usize], &mut self.shard);
        let has = |flags| conn.flags.has(flags);
        let flow = shard.locals.flow(&conn.ends);
        let snapshot = Snapshot {
            local: SocketAddr::new(flow.local.ip(), flow.local_port),
            remote: SocketAddr::new(flow.remote.ip(), flow.remote_port),
            snd_una: conn.send.una,
            snd_nxt: conn.send.nxt,
            snd_wnd: conn.send.wnd,
            snd_wl1: conn.send.wl1,
            snd_wnd_max: conn.cold.snd_wnd_max,
            rcv_nxt: conn.receive.nxt,
            rcv_wnd: conn.receive.wnd(),
            peer_mss: conn.cold.peer_mss,
            window_scale: has(ConnFlags::WINDOW_SCALE).then_some((conn.snd_scale, conn.rcv_scale)),
            clocks: has(ConnFlags::TIMESTAMPS).then(|| Clocks {
                value: timestamp(context.now, conn.cold.ts_offset),
                recent: Some(conn.receive.ts_recent),
            }),
            sack: has(ConnFlags::SACK),
            ecn: has(ConnFlags::ECN),
            no_delay: has(ConnFlags::NO_DELAY),
            srtt: conn.cold.recovery.srtt(),
            unacked: conn.send.queue.release(&mut shard.nodes),
            unread: core::iter::from_fn(|| conn.receive.queue.pop(&mut shard.nodes)).collect(),
        };
        conn.cold.recovery.clear(&mut shard.records);
        conn.receive.queue.clear(&mut shard.nodes, context.memory);
        snapshot
    }

    /// Takes a connection in. Its chunks are the stack's from now on, if that succeeds.
    ///
    /// # Errors
    /// [`ConnectError::InUse`], [`ConnectError::BadLocalAddress`],
    /// [`ConnectError::BadRemoteAddress`], [`ConnectError::NoRoute`],
    /// [`ConnectError::TooManyConnections`]; nothing was taken.
    pub(crate) fn import<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        snapshot: &Snapshot,
        pool: PoolId,
    ) -> Result<ConnId, ConnectError> {
        let (local, remote) = (snapshot.local, snapshot.remote);
        let flow = flow_of(local, remote);
        if local.is_ipv4() != remote.is_ipv4() || !context.base.ip.is_ours(local.ip()) {
            return Err(ConnectError::BadLocalAddress);
        }
        let hash = self.shard.flows.hash(&flow);
        if self.find(hash, &flow).is_some() {
            return Err(ConnectError::InUse);
        }
        // Such a connection has both its ends in one place.
        if context.base.ip.stays_here(remote.ip()) {
            return Err(ConnectError::BadRemoteAddress);
        }
        if context.base.ip.via(remote.ip()).is_none() {
            return Err(ConnectError::NoRoute);
        }
        let (index, ends) =
            self.take_room(&flow, Reuse::default()).ok_or(ConnectError::TooManyConnections)?;
        let mut conn = self.rebuilt(context, snapshot, (ends, hash), pool);
        if !self.refill(context, &mut conn, snapshot) {
            self.give_room_back((index, ends));
            return Err(ConnectError::TooManyConnections);
        }
        self.place(context.now, index, conn);
        self.shard.departed.remove(&flow);
        self.schedule(context, index);
        Ok(self.id(index))
    }

    pub(super) fn rebuilt<M: Memory>(
        &self,
        context: &Context<'_, M>,
        snapshot: &Snapshot,
        (ends, hash): (FlowKey, u32),
        pool: PoolId,
    ) -> Connection {
        let config = &context.base.config.tcp;
        let now_ms = context.now.as_millis() as u32;
        let ts_offset = snapshot.clocks.map_or(0, |clocks| clocks.value.wrapping_sub(now_ms));
        let state = State::Established(Established);
        let begin = Begin { ends, hash, state, iss: snapshot.snd_una, ts_offset, pool };
        let mut conn = Connection::new(&self.shard.blank, &begin, context.now);
        let offer = Offer {
            mss: snapshot.peer_mss,
            window_scale: snapshot.window_scale.map(|(theirs, _)| theirs),
            timestamps: snapshot.clocks.is_some(),
            sack: snapshot.sack,
            ecn: snapshot.ecn,
        };
        conn.agree(
            config,
            &offer,
            mss_of(context.base.ip.payload_bytes_max(ends.remote_address())),
        );
        if let Some((_, ours)) = snapshot.window_scale {
            conn.rcv_scale = ours.min(crate::limits::WINDOW_SCALE_MAX);
        }
        let rtt_us = snapshot.srtt.map(|srtt| u32::try_from(srtt.as_micros()).unwrap_or(u32::MAX));
        conn.begin_recovery(&self.shard.records, context.now, rtt_us);
        conn.flags.put(ConnFlags::NO_DELAY, snapshot.no_delay);
        conn.send.una = snapshot.snd_una;
        conn.send.nxt = snapshot.snd_una;
        conn.send.wnd = snapshot.snd_wnd;
        conn.send.wl1 = snapshot.snd_wl1;
        conn.cold.snd_wnd_max = snapshot.snd_wnd_max.max(snapshot.snd_wnd);
        conn.cold.small_end = snapshot.snd_una;
        conn.receive.nxt = snapshot.rcv_nxt;
        conn.receive.adv = snapshot.rcv_nxt + snapshot.rcv_wnd.min(crate::limits::BUFFER_BYTES_MAX);
        conn.receive.last_ack_sent = snapshot.rcv_nxt;
        let recent = snapshot.clocks.and_then(|clocks| clocks.recent);
        conn.receive.ts_recent = recent.unwrap_or(0);
        // An unknown timestamp counts as too old to compare (RFC 7323 §5.5).
        conn.cold.ts_recent_at = match recent {
            Some(_) => CoarseStamp::of(context.now),
            None => CoarseStamp::more_than(TS_RECENT_AGE_MAX, context.now),
        };
        // The peer hears where its bytes go now. What it said meanwhile may be lost: a probe makes
        // it say again what it has and what it takes.
        conn.flags.set(ConnFlags::ACK_NOW.or(ConnFlags::PROBE_DUE));
        conn
    }

    /// Fills both queues again. `false`: there is no room, and nothing was taken.
    fn refill<M: Memory>(
        &mut self,
        context: &Context<'_, M>,
        conn: &mut Connection,
        snapshot: &Snapshot,
    ) -> bool {
        let Self { shard, .. } = self;
        let unread = |chunk: &Chunk| conn.receive.queue.adopt(&mut shard.nodes, *chunk);
        let mut whole = snapshot.unread.iter().all(unread);
        let unacked = |chunk: &Chunk| conn.send.queue.push(&mut shard.nodes, *chunk).is_ok();
        whole = whole && snapshot.unacked.iter().all(unacked);
        let sent = snapshot.snd_nxt.since(snapshot.snd_una).min(conn.send.queue.bytes());
        if whole && sent > 0 {
            let range = SeqRange::new(snapshot.snd_una, sent);
            let kept =
                conn.cold.recovery.on_sent(&mut shard.records, context.now, range, Sent::New);
            whole = kept.is_ok();
            conn.send.nxt = range.end;
        }
        if !whole {
            conn.send.queue.release(&mut shard.nodes);
            while conn.receive.queue.pop(&mut shard.nodes).is_some() {}
            conn.cold.recovery.clear(&mut shard.records);
        }
        whole
    }

    /// The connection goes without a word to anybody.
    pub(super) fn vanish(&mut self, index: u32) {
        self.release(index);
        self.free(index);
    }
}

pub(super) fn flow_of(local: SocketAddr, remote: SocketAddr) -> Flow {
    Flow {
        local: local.ip().into(),
        remote: remote.ip().into(),
        local_port: local.port(),
        remote_port: remote.port(),
    }
}
