//! Closing: state changes, shutdown, abort and the end of a connection.
//!
//! Read first: RFC 9293 §3.6, §3.10.4 (CLOSE), §3.10.5 (ABORT).

use super::connection::Connection;
use super::control_queue::Reset;
use super::deadline::Stamp;
use super::dirty_list::mark_dirty;
use super::flags::{AppAttachment, ConnFlags};
use super::state::{Action, Closed, Established, Input, State, transition};
use super::{Shard, Tcp, fast_open, output};
use crate::context::Context;
use crate::counters::Drop;
use crate::error::{CloseReason, OperationError};
use crate::id::ConnId;
use crate::memory::Memory;

/// Changes the state as `input` says, with all that follows.
pub(super) fn apply<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    input: Input,
) {
    let Some((state, action)) = transition(conn.state, input) else { return };
    if conn.state.is_fast_open() && !state.is_fast_open() {
        fast_open::leave(conn, shard, context.now, input == Input::Reset);
    }
    // The peer has closed: a reset, or silence, costs the acknowledgment of our last bytes, but
    // none of the peer's.
    let is_whole =
        matches!(conn.state, State::CloseWait(_) | State::Closing(_) | State::LastAck(_));
    conn.state = state;
    match action {
        Action::SendAck => conn.flags.set(ConnFlags::ACK_NOW),
        Action::SendSyn | Action::SendSynAck => conn.flags.set(ConnFlags::SYN_DUE),
        Action::CloseLater => conn.flags.set(ConnFlags::CLOSE_LATER),
        Action::SendReset => send_reset(conn, shard, context),
        // A FIN is sent because the state owes one; `schedule` starts the wait.
        Action::Nothing | Action::SendFin | Action::Forget | Action::StartTimeWait => {}
    }
    match conn.state {
        State::FinWait2(_) => limit_orphan(conn, context),
        State::Established(_) if conn.flags.take(ConnFlags::CLOSE_LATER) => {
            apply_close(conn);
        }
        State::Listen(_) => conn.state = State::Closed(Closed { reason: CloseReason::ResetByPeer }),
        _ => {}
    }
    if conn.state.is_closed() {
        conn.flags.put(ConnFlags::RCV_FIN, is_whole && input != Input::Abort);
        release_queues(conn, shard, context);
    }
}

/// The handshake is complete; `input` is what completed it. What may follow is a close that was
/// asked for before.
#[inline]
pub(super) fn establish(conn: &mut Connection, input: Input) {
    let established = State::Established(Established);
    debug_assert!(transition(conn.state, input).is_some_and(|(to, _)| to == established));
    conn.state = established;
    if conn.flags.take(ConnFlags::CLOSE_LATER) {
        apply_close(conn);
    }
}

/// The RST of an abort or of giving up, which leaves with the next frames: at `snd.nxt`, so that
/// the peer believes it (RFC 5961 §3.2), and with a timestamp where the others have one (RFC 7323
/// §3.2).
#[inline]
pub(super) fn send_reset<M>(conn: &Connection, shard: &mut Shard, context: &mut Context<'_, M>) {
    let reset = Reset {
        flow: shard.locals.flow(&conn.ends),
        seq: conn.send.nxt,
        ack: conn.receive.nxt,
        times: output::times(conn, context.now),
        service: conn.cold.service,
    };
    if shard.control_queue.push_reset(reset) {
        context.base.counters.totals.resets_out += 1;
    } else {
        context.base.counters.drop(Drop::RateLimited);
    }
}

#[inline]
fn apply_close(conn: &mut Connection) {
    if let Some((state, action)) = transition(conn.state, Input::Close) {
        conn.state = state;
        conn.flags.put(ConnFlags::CLOSE_LATER, action == Action::CloseLater);
    }
}

/// Drops unsent bytes, and unread bytes unless the application may still read them.
#[inline(always)]
pub(super) fn release_queues<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
) {
    conn.send.queue.clear(&mut shard.nodes, context.memory);
    conn.cold.recovery.clear(&mut shard.records);
    if !conn.receive.queue.is_empty() {
        release_unread(conn, shard, context);
    }
}

#[inline(never)]
fn release_unread<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
) {
    if !conn.is_closed_readable() || conn.flags.has(ConnFlags::ORPHAN) {
        conn.receive.queue.clear(&mut shard.nodes, context.memory);
    } else {
        conn.receive.queue.drop_out_of_order(&mut shard.nodes, context.memory);
    }
}

/// FIN-WAIT-2 has no end of its own; without an application it gets one.
fn limit_orphan<M>(conn: &mut Connection, context: &Context<'_, M>) {
    if conn.flags.has(ConnFlags::ORPHAN) && matches!(conn.state, State::FinWait2(_)) {
        conn.cold.timers.attend_after(context.now, context.base.config.tcp.fin_timeout);
    }
}

impl Tcp {
    /// No more bytes from us: FIN after what is queued.
    ///
    /// # Errors
    /// The id is stale, the handshake is not complete, or that was said before.
    pub(crate) fn shutdown<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let conn = self.open(id)?;
        if !conn.state.is_synchronized() {
            return Err(OperationError::NotConnected);
        }
        if !conn.state.may_send() || conn.flags.has(ConnFlags::CLOSE_LATER) {
            return Err(OperationError::Closing);
        }
        apply_close(conn);
        if let Some(rare) = self.shard.rares.get_mut(&self.connections[id.index as usize]) {
            rare.progress_at = Stamp::of(context.now);
        }
        self.schedule(context, id.index);
        Ok(())
    }

    /// The application is gone. What is queued is sent, then FIN; what it has not read, or what
    /// still comes, it will never see, and the peer learns that by a RST (§3.6.1, SHLD-3).
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn close<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let conn = self.by_id(id).ok_or(OperationError::Unknown)?;
        let unread = conn.receive.queue.ready_bytes() > 0;
        conn.flags.set_attachment(AppAttachment::Detached);
        conn.flags.clear(ConnFlags::CREDIT.or(ConnFlags::AWAIT_ACKS));
        let input = if unread && !conn.state.is_closed() { Input::Abort } else { Input::Close };
        let (conn, shard) = (&mut self.connections[id.index as usize], &mut self.shard);
        if !conn.receive.queue.is_empty() {
            conn.receive.queue.clear(&mut shard.nodes, context.memory);
        } else if matches!(conn.state, State::Established(_) | State::CloseWait(_)) {
            // A FIN follows what is queued, and nothing is reported any more.
            apply_close(conn);
            shard.now = context.now;
            mark_dirty(conn, shard, id.index);
            return Ok(());
        }
        apply(conn, shard, context, input);
        limit_orphan(conn, context);
        self.schedule(context, id.index);
        Ok(())
    }

    /// RST, and nothing more is heard of it.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn abort<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let conn = self.by_id(id).ok_or(OperationError::Unknown)?;
        conn.flags.set_attachment(AppAttachment::Detached);
        if matches!(conn.state, State::Established(_)) {
            self.abort_established(context, id.index);
        } else {
            let conn = &mut self.connections[id.index as usize];
            // One that is over may have bytes that nothing reads now.
            conn.receive.queue.clear(&mut self.shard.nodes, context.memory);
            self.end(context, id.index, Input::Abort);
        }
        Ok(())
    }

    /// Fast path of [`Tcp::end`] for aborted connections: no event follows, so the slot is freed at
    /// once.
    fn abort_established<M: Memory>(&mut self, context: &mut Context<'_, M>, index: u32) {
        let (conn, shard) = (&mut self.connections[index as usize], &mut self.shard);
        shard.now = context.now;
        let closed = State::Closed(Closed { reason: CloseReason::Aborted });
        debug_assert!(transition(conn.state, Input::Abort) == Some((closed, Action::SendReset)));
        conn.state = closed;
        send_reset(conn, shard, context);
        release_queues(conn, shard, context);
        self.release(index);
        self.free(index);
    }

    /// Ends a connection, whatever its state.
    pub(super) fn end<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        input: Input,
    ) {
        apply(&mut self.connections[index as usize], &mut self.shard, context, input);
        self.schedule(context, index);
    }

    /// The connection that `id` names, if it is not over.
    pub(super) fn open(&mut self, id: ConnId) -> Result<&mut Connection, OperationError> {
        self.by_id(id)
            .filter(|conn| !conn.state.is_closed() && !conn.flags.has(ConnFlags::ORPHAN))
            .ok_or(OperationError::Unknown)
    }
}
