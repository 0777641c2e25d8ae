//! `connect` and `send`.
//!
//! Read first: RFC 9293 §3.10.1 (OPEN), §3.10.2 (SEND); RFC 6056 for ports.

use core::net::{IpAddr, SocketAddr};

use super::connection::{Begin, Connection, Role};
use super::dirty_list::mark_dirty;
use super::fast_open;
use super::flags::ConnFlags;
use super::send_hold::Reuse;
use super::state::{Closed, Input, State, SynSent, transition};
use super::window;
use super::{Found, Lookup, Tcp};
use crate::chunk::Chunk;
use crate::context::Context;
use crate::error::{CloseReason, ConnectError, OperationError};
use crate::flow_table::Flow;
use crate::host_address::HostAddress;
use crate::id::{ConnId, PoolId};
use crate::ip::local_peers::LocalPeer;
use crate::memory::Memory;
use crate::seq::SeqNum;
use crate::time::Instant;

/// Where a connection begins.
const CLOSED: State = State::Closed(Closed { reason: CloseReason::Aborted });

/// What was found of the flow of a connection to be.
struct FreeFlow {
    /// In the flow table.
    hash: u32,
    /// What waits there for old segments.
    time_wait: Option<u32>,
}

impl Tcp {
    /// Begins a connection: the SYN leaves with the next `poll_transmit`. `fits`: whether answers
    /// to this address and port of ours come here.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) fn connect<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        pool: PoolId,
        fits: &dyn Fn(SocketAddr) -> bool,
    ) -> Result<ConnId, ConnectError> {
        let mut flow = source_flow(context, remote, local)?;
        let FreeFlow { hash, time_wait } = self.choose_port(context, &mut flow, fits)?;
        let (mut iss, ts_offset) = self.shard.secret.isn_and_timestamp_offset(&flow, context.now);
        // Before the older connection's wait is over: without room it goes on.
        let (index, ends) =
            self.take_room(&flow, Reuse::default()).ok_or(ConnectError::TooManyConnections)?;
        if let Some(after) = time_wait.map(|index| self.take_over_time_wait(index))
            && iss.at_or_before(after)
        {
            iss = after + 1;
        }
        let state = State::SynSent(SynSent);
        debug_assert!(transition(CLOSED, Input::OpenActive).is_some_and(|(to, _)| to == state));
        let begin = Begin { ends, hash, state, iss, ts_offset, pool };
        self.make(context.now, index, &begin, None);
        let conn = &mut self.connections[index as usize];
        conn.flags.set(ConnFlags::SYN_DUE);
        conn.cold.timers.attend_after_ms(context.now, self.shard.syn_wait_ms);
        context.base.counters.totals.connects += 1;
        self.schedule_begun(context, index);
        Ok(self.id(index))
    }

    /// Gives `flow` a local port, unless it has one, so that it is free.
    #[inline(always)]
    fn choose_port<M>(
        &mut self,
        context: &Context<'_, M>,
        flow: &mut Flow,
        fits: &dyn Fn(SocketAddr) -> bool,
    ) -> Result<FreeFlow, ConnectError> {
        let ip = flow.local.ip();
        if flow.local_port != 0 {
            let is_ours = fits(SocketAddr::new(ip, flow.local_port));
            let free = if is_ours { self.look_up_free(flow, context.now) } else { None };
            return free.ok_or(ConnectError::InUse);
        }
        let range = context.base.config.ephemeral_ports;
        let mut candidates = self.shard.ports.candidates(&self.shard.secret, flow, range);
        let mut found = None;
        // A connection with itself is one that the caller asked for.
        let excluded = if flow.local == flow.remote { flow.remote_port } else { 0 };
        for local_port in candidates.by_ref() {
            flow.local_port = local_port;
            if local_port != excluded && fits(SocketAddr::new(ip, local_port)) {
                found = self.look_up_free(flow, context.now);
            }
            if found.is_some() {
                break;
            }
        }
        self.shard.ports.passed(&candidates);
        found.ok_or(ConnectError::NoPort)
    }

    /// Looks `flow` up. Returns `None` if it is in use, except by a TIME-WAIT record that
    /// timestamps allow to reuse.
    #[inline]
    fn look_up_free(&self, flow: &Flow, now: Instant) -> Option<FreeFlow> {
        let Lookup { hash, found } = self.look_up(flow);
        let time_wait = match found {
            None => None,
            Some(Found::TimeWait(index)) => {
                let (record, timestamps) = self.time_waits.get(index);
                if !timestamps || !record.is_older_than(now) {
                    return None;
                }
                Some(index)
            }
            Some(_) => return None,
        };
        Some(FreeFlow { hash, time_wait })
    }

    /// Ends the wait of an older connection; returns the last sequence number that it used.
    fn take_over_time_wait(&mut self, index: u32) -> SeqNum {
        let after = self.time_waits.get(index).0.snd_nxt;
        self.end_time_wait(index);
        after
    }

    /// Queues a chunk. Its buffer is the stack's until it is acknowledged.
    ///
    /// # Errors
    /// Nothing was taken, and why.
    pub(crate) fn send<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
        chunk: Chunk,
    ) -> Result<(), OperationError> {
        let (conn, shard) = self.sender(id, true)?;
        if chunk.len == 0 {
            return Err(OperationError::BadChunk);
        }
        let queued = conn.send.queue.bytes();
        let fits = queued.checked_add(chunk.len).is_some_and(|all| all <= conn.cold.send_buffer);
        // No connection may hold more chunks than are left for the others.
        let greedy = conn.send.queue.chunks() > shard.nodes.free();
        if queued > 0 && (!fits || greedy) {
            return Err(OperationError::QueueFull);
        }
        if chunk.len > crate::limits::BUFFER_BYTES_MAX {
            return Err(OperationError::BadChunk);
        }
        conn.send.queue.push(&mut shard.nodes, chunk).map_err(|_| OperationError::QueueFull)?;
        if matches!(conn.state, State::SynSent(_)) {
            fast_open::release_syn(conn, shard, context.now);
        }
        // Nothing to tell comes of it.
        shard.now = context.now;
        mark_dirty(conn, shard, id.index);
        Ok(())
    }

    /// Everything queued so far is urgent (RFC 9293 §3.8.5).
    ///
    /// # Errors
    /// The id is stale, or nothing can be sent.
    pub(crate) fn mark_urgent<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let (conn, shard) = self.sender(id, false)?;
        // MUST-62: the byte after the last urgent one.
        let end = conn.fin_seq();
        shard.rares.of(conn, context.now).snd_up = end;
        self.schedule(context, id.index);
        Ok(())
    }

    /// What was queued so far ends a record.
    ///
    /// # Errors
    /// The id is stale, or nothing can be sent; [`OperationError::QueueFull`].
    pub(crate) fn end_record<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let (conn, shard) = self.sender(id, false)?;
        conn.send.queue.end_record(&mut shard.nodes).map_err(|_| OperationError::QueueFull)?;
        shard.rares.of(conn, context.now).options.has_records = true;
        self.schedule(context, id.index);
        Ok(())
    }

    /// The connection, if it may send. `early`: also one whose handshake is not complete, if Fast
    /// Open lets it.
    #[inline]
    fn sender(
        &mut self,
        id: ConnId,
        early: bool,
    ) -> Result<(&mut Connection, &mut super::Shard), OperationError> {
        let state = self.open(id)?.state;
        if !matches!(state, State::Established(_) | State::CloseWait(_)) {
            self.may_send_in_other_state(id, early)?;
        }
        Ok((&mut self.connections[id.index as usize], &mut self.shard))
    }

    /// Who may send before a handshake is complete: a server that took data with a SYN, until it
    /// closes, and a client of Fast Open ([`crate::ConnOption::FastOpen`]).
    #[cold]
    fn may_send_in_other_state(&self, id: ConnId, early: bool) -> Result<(), OperationError> {
        let conn = self.connection(id.index);
        let role = self.shard.rares.get(conn).map(|rare| rare.fast_open);
        match conn.state {
            State::FastOpen(_) if !conn.flags.has(ConnFlags::CLOSE_LATER) => Ok(()),
            State::SynSent(_)
                if early && matches!(role, Some(Role::Client { .. } | Role::Held { .. })) =>
            {
                Ok(())
            }
            state if state.is_synchronized() => Err(OperationError::Closing),
            _ => Err(OperationError::NotConnected),
        }
    }

    /// Where the bytes of a connection go from now on.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn set_pool(&mut self, id: ConnId, pool: PoolId) -> Result<(), OperationError> {
        let receive_buffer = self.shard.receive_buffer;
        let conn = self.open(id)?;
        conn.cold.pool = pool;
        if !conn.flags.has(ConnFlags::FIXED_RECEIVE_BUFFER) {
            // A peer that has room for its next segments learns of more by their ACKs. Others get
            // an update when the application takes bytes.
            let has_room = conn.receive.wnd() > conn.cold.receive_buffer / 2;
            conn.cold.receive_buffer = conn.cold.receive_buffer.max(receive_buffer);
            if has_room {
                window::widen(conn);
            }
        }
        Ok(())
    }

    /// Both ends of a connection: ours, and the peer's.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn addresses(&self, id: ConnId) -> Result<(SocketAddr, SocketAddr), OperationError> {
        if !self.places.holds(id.index, id.generation) {
            return Err(OperationError::Unknown);
        }
        let flow = self.shard.locals.flow(&self.connection(id.index).ends);
        let local = SocketAddr::new(flow.local.ip(), flow.local_port);
        Ok((local, SocketAddr::new(flow.remote.ip(), flow.remote_port)))
    }
}

/// The flow of a connection to `remote` from `local`, or from an address that is chosen; with port
/// 0, if that is to be chosen.
#[inline(always)]
fn source_flow<M>(
    context: &Context<'_, M>,
    remote: SocketAddr,
    local: Option<SocketAddr>,
) -> Result<Flow, ConnectError> {
    // MUST-46.
    if remote.port() == 0 || !may_call(remote.ip()) {
        return Err(ConnectError::BadRemoteAddress);
    }
    let to = HostAddress::from(remote.ip());
    let wanted = local.filter(|local| !local.ip().is_unspecified());
    let from = match wanted {
        // MUST-43.
        Some(local)
            if local.is_ipv4() != remote.is_ipv4() || !context.base.ip.stays_here(local.ip()) =>
        {
            return Err(ConnectError::BadLocalAddress);
        }
        // MUST-46: nor one host of many, nor where no route leads.
        Some(_) if context.base.ip.via(remote.ip()).is_none() => return Err(ConnectError::NoRoute),
        Some(local) if !context.base.ip.may_send(local.ip(), remote.ip()) => {
            return Err(ConnectError::NoRoute);
        }
        Some(local) => local.ip().into(),
        // MUST-44.
        None => context.base.ip.source_for(to).ok_or(ConnectError::NoRoute)?,
    };
    let is_local = match wanted {
        Some(_) => context.base.ip.stays_here(remote.ip()),
        // The source for an address of ours on the link is that address.
        None => from == to,
    };
    if is_local && !context.base.ip.can_reach(LocalPeer::Stream(remote)) {
        return Err(ConnectError::NoRoute);
    }
    let local_port = local.map_or(0, |local| local.port());
    Ok(Flow { local: from, remote: to, local_port, remote_port: remote.port() })
}

fn may_call(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}
