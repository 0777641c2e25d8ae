//! TCP connections on the stack: connecting, reading, writing, ending, and what the stack says of
//! them.
//!
//! Read first: `state.rs` for what an operation means.
//!
//! A write is complete when the stack has taken it, as with the kernel ("queued"): the payload is
//! the stack's until it is acknowledged. When the send queue is full, writes wait here in order.
//!
//! Invariant: `flags.writing` is set while the head of the writes waits for room in the stack.

use std::net::SocketAddr;

use megapipe_service::{ConnectStart, NotBegun, PortError};
use megapipe_stack::{
    Chunk, CloseReason, ConnId, ConnOption, ConnectError, OperationError, TcpState,
};

use super::buffer_ids;
use super::memory::ReceivedMemory;
use super::migration::HAS_MOVED;
use super::pieces::PIECES_FROM;
use super::stack_handle::NoBuffer;
use super::{Broken, Local, StackHandle, set_receiving};
use crate::address::Address;
use crate::buffer::{Payload, ReadBuf};
use crate::completion::Event;
use crate::completion_queue::Whose;
use crate::driver::Driver;
use crate::error::OpError;
use crate::kernel::sys;
use crate::options::{ConnectOptions, Disconnect};
use crate::slot::{
    Awaited, Body, Extra, RareStreamState, Receiving, SlotPhase, StreamEnd, Target, WriteOp,
};
use crate::state::State;
use crate::timers::Due;

/// How far the head of the writes got, and how many bytes were handed over just now.
enum StreamProgress {
    /// All of it is the stack's.
    Whole(usize),
    /// The send queue is full.
    NoRoom(usize),
    /// The stack will take no more on this connection.
    Refused(OpError),
}

impl<H: StackHandle + ?Sized> Local<H> {
    /// Begins to connect, and lets the SYN go with the batch.
    ///
    /// # Errors
    /// As `connect`.
    pub(super) fn begin(
        &mut self,
        state: &mut State,
        slot: u32,
        (remote, options): (SocketAddr, &ConnectOptions),
    ) -> Result<(), PortError<ConnectError>> {
        if self.gathered == 0 {
            // Nothing was asked for since the last poll, which may be long ago.
            self.now = self.clock.now();
        }
        let begun = self.connect(state, slot, (remote, options));
        if let Some(timeout) = options.timeout
            && state.peek(slot).phase == SlotPhase::Starting
        {
            state.set_deadline(slot, self.instant().checked_add(timeout), Due::Connect);
        }
        self.lwsockets_open += u32::from(begun.is_ok());
        self.ask(state);
        begun
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// The local address that was asked for cannot be had. Other errors are in the
    /// completion.
    pub(super) fn connect(
        &mut self,
        state: &mut State,
        slot: u32,
        (remote, options): (SocketAddr, &ConnectOptions),
    ) -> Result<(), PortError<ConnectError>> {
        let local = options.bind.as_ref().and_then(Address::as_inet);
        let now = self.now;
        // Only what is not as it is for all is set.
        let is_other = options.nodelay == state.config.nagle;
        let begin = ConnectStart {
            nodelay: is_other.then_some(options.nodelay),
            fast_open: options.fast_open,
            resets_on_close: options.reset_on_close,
        };
        // Before a SYN leaves: a call that answers that there is no memory has done nothing.
        let rare = RareStreamState {
            sends_early: options.fast_open,
            notsent_lowat: options.notsent_lowat,
            ..RareStreamState::default()
        };
        let is_rare = rare.sends_early || rare.notsent_lowat > 0;
        let extra = is_rare.then(|| sys::try_box(Extra::Stream(rare))).transpose();
        let (Ok(extra), Ok(())) = (extra, self.conns.try_reserve(1)) else {
            self.connected(state, slot, Err(OpError::NoMemory));
            return Ok(());
        };
        match self.server.connect(now, remote, local, begin) {
            Ok(conn) if !self.reserve_owner(conn) => {
                self.server.abort(now, conn);
                self.connected(state, slot, Err(OpError::NoMemory));
            }
            Ok(conn) => {
                if extra.is_some() {
                    state.slot(slot).extra = extra;
                }
                self.own(conn, slot);
                self.heed_mark(state, conn);
                self.conns[conn.index as usize].resets_on_close = options.reset_on_close;
                state.slot(slot).target = Target::Stack(conn.index);
            }
            Err(PortError::Stack(error)) if !is_about_local(error, local.is_some()) => {
                self.connected(state, slot, Err(connect_failed(error)));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn resets_on_close(&self, conn: ConnId) -> bool {
        self.conns.get(conn.index as usize).is_some_and(|owner| owner.resets_on_close)
    }

    /// The attempt to connect ended, well or not.
    pub(super) fn connected(&mut self, state: &mut State, slot: u32, result: Result<(), OpError>) {
        state.on_connected(slot, result);
        if state.wants_data(slot) {
            self.receive(state, slot);
        }
        // After a failure, too: a disconnect may wait behind the writes that failed.
        if !state.peek(slot).writes.is_empty() {
            self.write(state, slot);
        }
    }

    /// The next bytes are wanted.
    pub(super) fn receive(&mut self, state: &mut State, slot: u32) {
        let Some(conn) = self.conn(state, slot) else {
            // It is over; what there was to tell is in `end`.
            return state.answer_reads(slot);
        };
        if self.withholds {
            state.slot(slot).receiving = Receiving::Withheld;
            return;
        }
        let now = self.now;
        let asked = self.server.receive(now, conn).is_ok();
        set_receiving(state, slot, asked);
    }

    /// Does what is at the head of the slot's writes, and what follows, as far as it goes.
    pub(super) fn write(&mut self, state: &mut State, slot: u32) {
        loop {
            let entry = state.peek(slot);
            let Some(head) = state.writes.front(entry.writes) else { break };
            match &head.body {
                // Behind data that our SYN may carry: when the handshake is complete.
                Body::Disconnect(_) | Body::ToFd if entry.phase == SlotPhase::Starting => break,
                Body::Disconnect(how) => {
                    let how = *how;
                    self.disconnect(state, slot, how);
                }
                Body::ToFd => self.move_to_kernel(state, slot),
                Body::One(_) | Body::Many(_) => match self.send(state, slot) {
                    StreamProgress::Whole(bytes) => state.on_sent(slot, bytes),
                    StreamProgress::NoRoom(bytes) => {
                        if bytes > 0 {
                            state.on_sent(slot, bytes);
                        }
                        state.slot(slot).flags.writing = true;
                        return;
                    }
                    StreamProgress::Refused(error) => state.on_send_failed(slot, error),
                },
            }
        }
        state.slot(slot).flags.writing = false;
    }

    /// A quiet write to a stream on which nothing waits to be sent: straight to the stack. What
    /// that does not take now becomes a write like others.
    #[inline]
    pub(super) fn send_at_once(&mut self, state: &mut State, slot: u32, bytes: ReadBuf) {
        if bytes.len() > PIECES_FROM {
            return self.write_quietly(state, slot, bytes.into());
        }
        let Some(conn) = self.conn(state, slot) else {
            return self.write_quietly(state, slot, bytes.into());
        };
        let now = self.now;
        let refused = self.server.send_read(now, conn, bytes);
        match refused {
            None => self.ask(state),
            Some(refused) => self.write_quietly(state, slot, refused),
        }
    }

    /// As `send_at_once`, of a copy of `bytes`. `false`: there is no memory for it now, and nothing
    /// was done.
    #[inline]
    pub(super) fn send_copy_at_once(&mut self, state: &mut State, slot: u32, bytes: &[u8]) -> bool {
        if bytes.len() > PIECES_FROM {
            return false;
        }
        let Some(conn) = self.conn(state, slot) else { return false };
        let now = self.now;
        let refused = match self.server.send_copy(now, conn, bytes) {
            Ok(refused) => refused,
            Err(NoBuffer) => return false,
        };
        match refused {
            None => self.ask(state),
            Some(refused) => self.write_quietly(state, slot, refused),
        }
        true
    }

    #[inline(never)]
    fn write_quietly(&mut self, state: &mut State, slot: u32, payload: Payload) {
        let len = payload.len();
        let write = WriteOp { quiet: true, ..WriteOp::new(Body::One(payload), len) };
        state.queue_write(slot, write);
        self.start_write(state, slot);
    }

    /// Hands the parts of the head of the writes to the stack, as far as it takes them.
    fn send(&mut self, state: &mut State, slot: u32) -> StreamProgress {
        let Some(conn) = self.conn(state, slot) else {
            let failed = match state.peek(slot).end {
                StreamEnd::Failed(error) => error,
                StreamEnd::Not | StreamEnd::Eof => OpError::BrokenPipe,
            };
            return StreamProgress::Refused(failed);
        };
        if let Some(error) = self.broken(conn) {
            return StreamProgress::Refused(error);
        }
        let mark = self.mark(state, slot, conn);
        let queue = state.peek(slot).writes;
        let Some(head) = state.writes.front_mut(queue) else { return StreamProgress::Whole(0) };
        let parts = match &mut head.body {
            Body::One(payload) => std::slice::from_mut(payload),
            Body::Many(payloads) => &mut payloads[..],
            Body::Disconnect(_) | Body::ToFd => return StreamProgress::Whole(0),
        };
        let mut bytes = 0;
        // A part that was handed over leaves nothing behind; it is skipped when the rest follows.
        for part in parts {
            while !part.is_empty() {
                let room_bytes = self.room_below_mark(mark, conn);
                if room_bytes == 0 {
                    return self.await_mark(mark, conn, bytes);
                }
                match self.send_at_most(conn, part, room_bytes) {
                    Ok(sent) => bytes += sent,
                    Err(OperationError::QueueFull) => return self.await_room(conn, bytes),
                    Err(OperationError::NoMemory) => return self.await_memory(conn, bytes),
                    // Both ends connect at once: when the handshake is complete.
                    Err(OperationError::NotConnected) => return StreamProgress::NoRoom(bytes),
                    Err(_) => return StreamProgress::Refused(OpError::BrokenPipe),
                }
            }
        }
        StreamProgress::Whole(bytes)
    }

    /// Writes of a connection wait from now on while as many bytes are unsent as its slot says, if
    /// it says so.
    pub(super) fn heed_mark(&mut self, state: &mut State, conn: ConnId) {
        let Some(slot) = self.slot_of(conn) else { return };
        let entry = state.slot(slot);
        if entry.rare().is_some_and(|rare| rare.notsent_lowat > 0) {
            entry.flags.congested = true;
            self.conns[conn.index as usize].has_mark = true;
        }
    }

    /// Unsent bytes from which on a connection's writes wait; 0: they do not.
    #[inline]
    fn mark(&self, state: &State, slot: u32, conn: ConnId) -> u32 {
        if !self.conns[conn.index as usize].has_mark {
            return 0;
        }
        state.peek(slot).rare().map_or(0, |rare| rare.notsent_lowat)
    }

    /// Bytes that a connection may take by its mark.
    #[inline]
    fn room_below_mark(&mut self, mark: u32, conn: ConnId) -> usize {
        match mark {
            0 => usize::MAX,
            // A connection that is over is found out by sending.
            mark => self.server.info(conn).map_or(1, |info| info.room_below(mark) as usize),
        }
    }

    fn await_mark(&mut self, mark: u32, conn: ConnId, sent_bytes: usize) -> StreamProgress {
        let below = mark.div_ceil(2);
        match self.server.set_option(self.now, conn, ConnOption::ReportUnsentBelow(below)) {
            Ok(()) => StreamProgress::NoRoom(sent_bytes),
            Err(_) => StreamProgress::Refused(OpError::BrokenPipe),
        }
    }

    /// As `send_front`, of at most `max` bytes.
    fn send_at_most(
        &mut self,
        conn: ConnId,
        part: &mut Payload,
        max: usize,
    ) -> Result<usize, OperationError> {
        if part.len() <= max {
            return self.server.send_front(self.now, conn, part);
        }
        let mut front = part.front(max).ok_or(OperationError::NoMemory)?;
        let sent = self.server.send_front(self.now, conn, &mut front)?;
        part.skip(sent);
        Ok(sent)
    }

    /// Few enough bytes are unsent for what waits for that.
    pub(super) fn on_unsent_below(&mut self, state: &mut State, conn: ConnId) {
        if let Some(slot) = self.slot_of(conn)
            && state.peek(slot).flags.writing
        {
            self.write(state, slot);
        }
        self.watch_unsent(state, conn);
    }

    fn await_room(&mut self, conn: ConnId, sent_bytes: usize) -> StreamProgress {
        match self.server.await_acks(conn) {
            Ok(()) => StreamProgress::NoRoom(sent_bytes),
            Err(_) => StreamProgress::Refused(OpError::BrokenPipe),
        }
    }

    /// There is no memory to keep what is to be sent. While the connection has bytes with the
    /// stack, their acknowledgment is a moment to try again; else the next poll is.
    #[cold]
    fn await_memory(&mut self, conn: ConnId, sent_bytes: usize) -> StreamProgress {
        match self.server.info(conn) {
            Some(info) if info.queued_bytes > 0 => self.await_room(conn, sent_bytes),
            _ => match self.server.set_option(self.now, conn, ConnOption::ReportUnsentBelow(1)) {
                Ok(()) => StreamProgress::NoRoom(sent_bytes),
                Err(_) => StreamProgress::Refused(OpError::NoMemory),
            },
        }
    }

    fn disconnect(&mut self, state: &mut State, slot: u32, how: Disconnect) {
        if let Some(conn) = self.conn(state, slot) {
            self.server.shutdown(self.now, conn);
        }
        state.pop_control(slot);
        state.complete_disconnect(slot);
        if how != Disconnect::Write {
            // Reads that wait, and later ones, see the end; what arrives from now on is dropped.
            state.on_receive_end(slot, StreamEnd::Eof);
        }
    }

    /// Resets the connection at once.
    pub(super) fn reset(&mut self, state: &mut State, slot: u32) {
        self.abort(state, slot);
        if !state.peek(slot).writes.is_empty() {
            state.on_send_failed(slot, OpError::Cancelled);
        }
        state.complete_disconnect(slot);
        if state.peek(slot).phase == SlotPhase::Starting {
            return self.connected(state, slot, Err(OpError::Aborted));
        }
        state.on_receive_end(slot, StreamEnd::Eof);
        if !state.peek(slot).writes.is_empty() {
            self.write(state, slot);
        }
    }

    /// The stack forgets the connection, with a RST.
    pub(super) fn abort(&mut self, state: &mut State, slot: u32) {
        let Some(conn) = self.conn(state, slot) else { return };
        self.server.abort(self.now, conn);
        self.disown(conn);
        state.slot(slot).target = Target::None;
    }

    /// The slot leaves. Bytes that the program never took mean a RST, as with close(2) (RFC 2525
    /// §2.17); otherwise what was written still goes out, then the FIN.
    pub(super) fn leave_stream(&mut self, state: &mut State, slot: u32) {
        if state.peek(slot).end == HAS_MOVED {
            return;
        }
        self.lwsockets_open = self.lwsockets_open.saturating_sub(1);
        let entry = state.peek(slot);
        let resets = self.conn(state, slot).is_some_and(|conn| self.resets_on_close(conn));
        if entry.phase == SlotPhase::Starting || entry.unread_bytes > 0 || resets {
            return self.abort(state, slot);
        }
        if !state.peek(slot).writes.is_empty() {
            self.write(state, slot);
        }
        let Some(conn) = self.conn(state, slot) else { return };
        self.server.close(self.now, conn);
        self.disown(conn);
        state.slot(slot).target = Target::None;
    }

    /// Bytes arrived. If exactly one read waits for them, they are its answer, past the queue of
    /// completions; else nothing has changed.
    #[inline]
    pub(super) fn on_received_for_one(
        &mut self,
        state: &mut State,
        conn: ConnId,
        chunk: Chunk,
    ) -> Option<(Whose, ReadBuf)> {
        let slot = self.slot_of(conn)?;
        let number = buffer_ids::held(chunk.buf)?;
        let take = || self.server.take_held(number);
        let answered = state.on_held_for_one(slot, take, chunk.len)?;
        state.slot(slot).receiving = Receiving::No;
        Some(answered)
    }

    /// The peer sends no more. If exactly one read waits, that is its answer, past the queue of
    /// completions; else nothing has changed.
    pub(super) fn on_end_for_one(
        &mut self,
        state: &mut State,
        conn: ConnId,
    ) -> Option<(Whose, ReadBuf)> {
        let slot = self.slot_of(conn)?;
        let answered = state.on_end_for_one(slot)?;
        state.slot(slot).receiving = Receiving::No;
        Some(answered)
    }

    /// Bytes arrived.
    pub(super) fn on_received(&mut self, state: &mut State, conn: ConnId, chunk: Chunk) {
        let Some(slot) = self.slot_of(conn) else {
            return self.server.free_received(chunk);
        };
        match self.server.received(chunk) {
            Some(ReceivedMemory::Pool(held)) => state.on_received_held(slot, held, chunk.len),
            Some(ReceivedMemory::Heap(bytes)) => {
                state.counters.spilled_bytes += u64::from(chunk.len);
                state.on_received(slot, bytes)
            }
            None => false,
        };
        if state.wants_data(slot) {
            self.receive(state, slot);
        } else {
            set_receiving(state, slot, false);
        }
    }

    /// The peer sends no more.
    pub(super) fn on_peer_closed(&mut self, state: &mut State, conn: ConnId) {
        if let Some(slot) = self.slot_of(conn) {
            set_receiving(state, slot, false);
            state.on_receive_end(slot, StreamEnd::Eof);
        }
    }

    /// The peer has marked bytes as urgent, so many from the next one of the stack's on.
    pub(super) fn on_urgent(&mut self, state: &mut State, conn: ConnId, bytes: u32) {
        let Some(slot) = self.slot_of(conn).filter(|_| state.config.unsolicited_events) else {
            return;
        };
        let bytes = state.peek(slot).unread_bytes + bytes;
        state.complete(slot, Event::Urgent { bytes });
    }

    /// There is room in the send queue.
    pub(super) fn on_acked(&mut self, state: &mut State, conn: ConnId) {
        let Some(slot) = self.slot_of(conn) else { return };
        if state.peek(slot).flags.writing {
            self.write(state, slot);
        }
        let awaited = state.peek(slot).flags.awaited;
        if awaited.has(Awaited::DELIVERED) {
            self.watch_delivery(state, conn);
        }
        if awaited.has(Awaited::UNSENT_BELOW) {
            self.watch_unsent(state, conn);
        }
    }

    /// Says when the peer has everything, the FIN if there is one too: now, or with a later
    /// acknowledgment.
    pub(super) fn watch_delivery(&mut self, state: &mut State, conn: ConnId) {
        let Some(slot) = self.slot_of(conn) else { return };
        state.slot(slot).flags.awaited.add(Awaited::DELIVERED);
        if let Some(error) = self.broken(conn) {
            return on_delivered(state, slot, Err(error));
        }
        // Requested before it is looked at: what comes in between is reported, too.
        let _ = self.server.await_delivery(conn);
        // The event of a connection that is over is on its way, and has the reason.
        let owes = self.server.info(conn).is_none_or(|info| {
            let owes_fin =
                matches!(info.state, TcpState::FinWait1 | TcpState::Closing | TcpState::LastAck);
            info.queued_bytes > 0 || owes_fin || info.state == TcpState::Closed
        });
        if !(owes || state.peek(slot).flags.writing) {
            on_delivered(state, slot, Ok(()));
        }
    }

    /// The program asks for `Event::UnsentBelow`.
    ///
    /// # Errors
    /// [`OpError::NoMemory`].
    pub(super) fn await_unsent(
        &mut self,
        state: &mut State,
        conn: ConnId,
        below: u32,
    ) -> Result<(), OpError> {
        let Some(slot) = self.slot_of(conn) else { return Ok(()) };
        let entry = state.slot(slot);
        match entry.rare_mut() {
            Some(rare) => rare.awaits_unsent_below = below,
            None => {
                let rare =
                    RareStreamState { awaits_unsent_below: below, ..RareStreamState::default() };
                let extra = sys::try_box(Extra::Stream(rare)).map_err(|_| OpError::NoMemory)?;
                entry.extra = Some(extra);
            }
        }
        entry.flags.awaited.add(Awaited::UNSENT_BELOW);
        self.watch_unsent(state, conn);
        Ok(())
    }

    /// Says when few enough bytes are unsent: now, or when the stack reports it.
    pub(super) fn watch_unsent(&mut self, state: &mut State, conn: ConnId) {
        let Some(slot) = self.slot_of(conn) else { return };
        if !state.peek(slot).flags.awaited.has(Awaited::UNSENT_BELOW) {
            return;
        }
        let below = state.peek(slot).rare().map_or(0, |rare| rare.awaits_unsent_below);
        let Some(info) = self.server.info(conn) else { return };
        let waiting = state.unsent_bytes(slot);
        if info.unsent_bytes >= below {
            // A connection that is over tells so itself.
            let _ = self.server.set_option(self.now, conn, ConnOption::ReportUnsentBelow(below));
        } else if waiting == 0 || info.unsent_bytes as usize + waiting < below as usize {
            state.slot(slot).flags.awaited.take(Awaited::UNSENT_BELOW);
            state.complete(slot, Event::UnsentBelow);
        }
        // Else bytes wait here for acknowledgments, after which this looks again.
    }

    /// The connection was not even begun.
    pub(super) fn on_not_begun(&mut self, state: &mut State, conn: ConnId, why: NotBegun) {
        let Some(slot) = self.slot_of(conn) else { return };
        self.disown(conn);
        state.slot(slot).target = Target::None;
        let error = match why {
            NotBegun::Stack(error) => connect_failed(error),
            NotBegun::Quota(reached) => OpError::QuotaReached(reached.kind.into()),
        };
        self.connected(state, slot, Err(error));
    }

    /// Why a connection is over, of which bytes are left to be read.
    pub(super) fn broken(&self, conn: ConnId) -> Option<OpError> {
        let Broken { reason, is_whole } = self.conns.get(conn.index as usize)?.broken?;
        closed_because(reason).map(|error| error_behind(is_whole, error))
    }

    /// The connection is over, and bytes are left: writes fail from now on; reads get these bytes,
    /// and then the error.
    pub(super) fn on_broken(&mut self, state: &mut State, conn: ConnId, broken: Broken) {
        let Some(slot) = self.slot_of(conn) else { return };
        self.conns[conn.index as usize].broken = Some(broken);
        let failed = self.broken(conn).map_or(Ok(()), Err);
        on_delivered(state, slot, failed);
        state.on_end(slot, failed);
        if !state.peek(slot).writes.is_empty() {
            self.write(state, slot);
        }
    }

    /// The connection is over.
    pub(super) fn on_closed(&mut self, state: &mut State, conn: ConnId, reason: CloseReason) {
        let Some(slot) = self.slot_of(conn) else { return };
        self.disown(conn);
        self.end_stream(state, slot, closed_because(reason));
    }

    /// The stack does not know a connection any more: in order, or because of an error.
    pub(super) fn end_stream(&mut self, state: &mut State, slot: u32, failed: Option<OpError>) {
        state.slot(slot).target = Target::None;
        on_delivered(state, slot, failed.map_or(Ok(()), Err));
        set_receiving(state, slot, false);
        if state.peek(slot).phase == SlotPhase::Starting {
            return self.connected(state, slot, Err(failed.unwrap_or(OpError::Aborted)));
        }
        let has_peer_closed = state.peek(slot).end == StreamEnd::Eof;
        let ended = failed.map(|error| error_behind(has_peer_closed, error));
        state.on_receive_end(slot, failed.map_or(StreamEnd::Eof, StreamEnd::Failed));
        state.on_end(slot, ended.map_or(Ok(()), Err));
        if !state.peek(slot).writes.is_empty() {
            self.write(state, slot);
        }
    }
}

/// The error of a connection's end for all but its readers. A reset behind the peer's FIN is EPIPE,
/// as in Linux (`tcp_reset`).
fn error_behind(has_peer_closed: bool, error: OpError) -> OpError {
    if has_peer_closed && error == OpError::Reset { OpError::BrokenPipe } else { error }
}

/// The peer has everything, or never will.
fn on_delivered(state: &mut State, slot: u32, result: Result<(), OpError>) {
    if state.slot(slot).flags.awaited.take(Awaited::DELIVERED) {
        state.complete(slot, Event::Delivered(result));
    }
}

/// The error of an attempt to connect.
pub(super) const fn not_connected_because(reason: CloseReason) -> OpError {
    match closed_because(reason) {
        Some(error) => error,
        None => OpError::Aborted,
    }
}

/// The error of a connection's end; `None`: in order.
const fn closed_because(reason: CloseReason) -> Option<OpError> {
    match reason {
        CloseReason::Finished => None,
        CloseReason::ResetByPeer => Some(OpError::Reset),
        CloseReason::Refused => Some(OpError::Refused),
        CloseReason::Aborted => Some(OpError::Aborted),
        CloseReason::TimedOut | CloseReason::KeepaliveTimedOut => Some(OpError::TimedOut),
        CloseReason::Unreachable => Some(OpError::NetworkUnreachable),
        CloseReason::HostUnreachable => Some(OpError::HostUnreachable),
    }
}

/// The local address that was asked for is what is wrong.
const fn is_about_local(error: ConnectError, is_asked_for: bool) -> bool {
    is_asked_for && matches!(error, ConnectError::BadLocalAddress | ConnectError::InUse)
}

pub(super) const fn connect_failed(error: ConnectError) -> OpError {
    match error {
        ConnectError::NoRoute => OpError::NetworkUnreachable,
        ConnectError::BadRemoteAddress => OpError::InvalidInput,
        ConnectError::InUse => OpError::AddressInUse,
        ConnectError::TooManyConnections => OpError::TableFull,
        _ => OpError::AddressNotAvailable,
    }
}
