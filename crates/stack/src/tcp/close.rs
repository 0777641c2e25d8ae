//! Changes of state, and what ends a connection.
//!
//! Read first: RFC 9293 §3.6, §3.10.4 (CLOSE), §3.10.5 (ABORT).

use super::connection::Connection;
use super::deadline::{Deadline, Stamp};
use super::facts::Facts;
use super::replies::Reset;
use super::state::{Action, Closed, Established, Input, State, transition};
use super::{Shard, Tcp, fast_open, output};
use crate::counters::Drop;
use crate::cx::Cx;
use crate::error::{CloseReason, OperationError};
use crate::id::ConnId;
use crate::memory::Memory;

/// Changes the state as `input` says, with all that follows.
pub(super) fn apply<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    input: Input,
) {
    let Some((state, action)) = transition(conn.state, input) else { return };
    if conn.state.is_fast_open() && !state.is_fast_open() {
        fast_open::leave(conn, shard, cx.now, input == Input::Reset);
    }
    conn.state = state;
    match action {
        Action::SendAck => conn.facts.set(Facts::ACK_NOW),
        Action::SendSyn | Action::SendSynAck => conn.facts.set(Facts::SYN_DUE),
        Action::CloseLater => conn.facts.set(Facts::CLOSE_LATER),
        Action::SendReset => send_reset(conn, shard, cx),
        // A FIN is sent because the state owes one; `settle` starts the wait.
        Action::Nothing | Action::SendFin | Action::Forget | Action::StartTimeWait => {}
    }
    match conn.state {
        State::FinWait2(_) => limit_orphan(conn, cx),
        State::Established(_) if conn.facts.take(Facts::CLOSE_LATER) => {
            apply_close(conn);
        }
        State::Listen(_) => conn.state = State::Closed(Closed { reason: CloseReason::ResetByPeer }),
        _ => {}
    }
    if conn.state.is_closed() {
        release_queues(conn, shard, cx);
    }
}

/// The handshake is complete; `input` is what completed it. What may follow is a close that was
/// asked for before.
#[inline]
pub(super) fn establish(conn: &mut Connection, input: Input) {
    let established = State::Established(Established);
    debug_assert!(transition(conn.state, input).is_some_and(|(to, _)| to == established));
    conn.state = established;
    if conn.facts.take(Facts::CLOSE_LATER) {
        apply_close(conn);
    }
}

/// The RST of an abort or of giving up, which leaves with the next frames: at `snd.nxt`, so that
/// the peer believes it (RFC 5961 §3.2), and with a timestamp where the others have one (RFC 7323
/// §3.2).
#[inline]
pub(super) fn send_reset<M>(conn: &Connection, shard: &mut Shard, cx: &mut Cx<'_, M>) {
    let reset = Reset {
        flow: shard.locals.flow(&conn.ends),
        seq: conn.snd_nxt,
        ack: conn.rcv_nxt,
        times: output::times(conn, cx.now),
        service: conn.cold.service,
    };
    if shard.replies.push_reset(reset) {
        cx.counters.totals.resets_out += 1;
    } else {
        cx.counters.drop(Drop::RateLimited);
    }
}

fn apply_close(conn: &mut Connection) {
    if let Some((state, action)) = transition(conn.state, Input::Close) {
        conn.state = state;
        conn.facts.put(Facts::CLOSE_LATER, action == Action::CloseLater);
    }
}

/// What was to be sent is lost. What was received is still good if both sides finished.
fn release_queues<M: Memory>(conn: &mut Connection, shard: &mut Shard, cx: &mut Cx<'_, M>) {
    conn.send.clear(&mut shard.nodes, cx.memory);
    conn.cold.recovery.clear(&mut shard.records);
    let finished = conn.state == State::Closed(Closed { reason: CloseReason::Finished });
    if !finished || conn.facts.has(Facts::ORPHAN) {
        conn.receive.clear(&mut shard.nodes, cx.memory);
    } else {
        conn.receive.forget_apart(&mut shard.nodes, cx.memory);
    }
}

/// FIN-WAIT-2 has no end of its own; without an application it gets one.
fn limit_orphan<M>(conn: &mut Connection, cx: &Cx<'_, M>) {
    if conn.facts.has(Facts::ORPHAN) && matches!(conn.state, State::FinWait2(_)) {
        conn.cold.attend_at = Deadline::after(cx.now, cx.config.tcp.fin_timeout);
    }
}

impl Tcp {
    /// No more bytes from us: FIN after what is queued.
    ///
    /// # Errors
    /// The id is stale, the handshake is not complete, or that was said before.
    pub(crate) fn shutdown<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let conn = self.open(id)?;
        if !conn.state.is_synchronized() {
            return Err(OperationError::NotConnected);
        }
        if !conn.state.may_send() || conn.facts.has(Facts::CLOSE_LATER) {
            return Err(OperationError::Closing);
        }
        apply_close(conn);
        if let Some(rare) = self.shard.rares.get_mut(&self.connections[id.index as usize]) {
            rare.progress_at = Stamp::of(cx.now);
        }
        self.settle(cx, id.index);
        Ok(())
    }

    /// The application is gone. What is queued is sent, then FIN; what it has not read, or what
    /// still comes, it will never see, and the peer learns that by a RST (§3.6.1, SHLD-3).
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn close<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let conn = self.by_id(id).ok_or(OperationError::Unknown)?;
        let unread = conn.receive.ready_bytes() > 0;
        conn.facts.set(Facts::ORPHAN);
        conn.facts.clear(Facts::CREDIT.or(Facts::AWAIT_ACKS));
        let input = if unread && !conn.state.is_closed() { Input::Abort } else { Input::Close };
        let (conn, shard) = (&mut self.connections[id.index as usize], &mut self.shard);
        conn.receive.clear(&mut shard.nodes, cx.memory);
        apply(conn, shard, cx, input);
        limit_orphan(conn, cx);
        self.settle(cx, id.index);
        Ok(())
    }

    /// RST, and nothing more is heard of it.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn abort<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        id: ConnId,
    ) -> Result<(), OperationError> {
        let conn = self.by_id(id).ok_or(OperationError::Unknown)?;
        conn.facts.set(Facts::ORPHAN);
        if matches!(conn.state, State::Established(_)) {
            self.abort_established(cx, id.index);
        } else {
            self.end(cx, id.index, Input::Abort);
        }
        Ok(())
    }

    /// The same as [`Tcp::end`] for what is aborted most: nobody is there to hear of its end, so it
    /// is gone at once.
    fn abort_established<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        let (conn, shard) = (&mut self.connections[index as usize], &mut self.shard);
        shard.now = cx.now;
        let closed = State::Closed(Closed { reason: CloseReason::Aborted });
        debug_assert!(transition(conn.state, Input::Abort) == Some((closed, Action::SendReset)));
        conn.state = closed;
        send_reset(conn, shard, cx);
        release_queues(conn, shard, cx);
        self.release(index);
        self.free(index);
    }

    /// Ends a connection, whatever its state.
    pub(super) fn end<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32, input: Input) {
        apply(&mut self.connections[index as usize], &mut self.shard, cx, input);
        self.settle(cx, index);
    }

    /// The connection that `id` names, if it is not over.
    pub(super) fn open(&mut self, id: ConnId) -> Result<&mut Connection, OperationError> {
        self.by_id(id)
            .filter(|conn| !conn.state.is_closed() && !conn.facts.has(Facts::ORPHAN))
            .ok_or(OperationError::Unknown)
    }
}
