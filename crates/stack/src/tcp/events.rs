//! Events for the application, and their order.
//!
//! Invariants
//! - Bytes are handed over against credit, one buffer for each; connections against a listener's.
//! - `Closed` is the last event of a connection, and frees its place. It follows the last byte; if
//!   the peer's whole stream arrived, `PeerClosed` too.
//! - A connection that a RST or an error ends is `Broken` as soon as bytes are left that nothing
//!   has asked for: its application learns of the end without reading them. What it has let go of,
//!   or has aborted, has no bytes left.

use core::net::SocketAddr;

use super::connection::Connection;
use super::dirty_list::mark_dirty;
use super::flags::{AppAttachment, ConnFlags};
use super::state::{Closed, State};
use super::window;
use super::{Shard, Tcp};
use crate::chunk::Chunk;
use crate::error::{CloseReason, OperationError};
use crate::event::Event;
use crate::id::{ConnId, ListenerId};
use crate::memory::Memory;
use crate::time::Instant;

/// Flags of awaited events.
const AWAITED: ConnFlags =
    ConnFlags::CREDIT.or(ConnFlags::AWAIT_ACKS).or(ConnFlags::CONNECTED).or(ConnFlags::RARE_NEWS);

/// The reason, if it is over and all that may be read was.
fn closed(conn: &Connection) -> Option<CloseReason> {
    let State::Closed(closed) = conn.state else { return None };
    let drained = conn.receive.queue.ready_bytes() == 0;
    (drained || !conn.is_closed_readable()).then_some(closed.reason)
}

/// Why it is over, if that is to be reported before its last bytes: nothing has asked for these.
fn broken(conn: &Connection) -> Option<CloseReason> {
    let State::Closed(closed) = conn.state else { return None };
    let is_asked_or_reported = conn.flags.any(ConnFlags::CREDIT.or(ConnFlags::END_REPORTED));
    let has_rest = conn.receive.queue.ready_bytes() > 0 && conn.is_closed_readable();
    (has_rest && !is_asked_or_reported && closed.reason.leaves_bytes()).then_some(closed.reason)
}

fn may_report_end(conn: &Connection) -> bool {
    if conn.receive.queue.ready_bytes() > 0 || conn.flags.has(ConnFlags::END_REPORTED) {
        return false;
    }
    match closed(conn) {
        Some(_) => conn.is_closed_whole(),
        None => conn.state.peer_has_closed() && conn.flags.has(ConnFlags::CREDIT),
    }
}

/// There is something to report.
pub(super) fn has_news(conn: &Connection) -> bool {
    let flags = conn.flags;
    if !flags.is_attached() {
        return false;
    }
    flags.any(ConnFlags::CONNECTED.or(ConnFlags::RARE_NEWS))
        || (flags.has(ConnFlags::CREDIT) && conn.receive.queue.ready_bytes() > 0)
        || (flags.has(ConnFlags::AWAIT_ACKS) && conn.cold.accounting.has_acked())
        || may_report_end(conn)
        || (conn.state.is_closed() && (broken(conn).is_some() || closed(conn).is_some()))
}

/// The same of an established connection that has an application: acknowledgments or bytes came.
pub(super) const fn has_news_of_text(conn: &Connection) -> bool {
    (conn.flags.has(ConnFlags::CREDIT) && conn.receive.queue.ready_bytes() > 0)
        || (conn.flags.has(ConnFlags::AWAIT_ACKS) && conn.cold.accounting.has_acked())
        || conn.flags.any(ConnFlags::CONNECTED.or(ConnFlags::RARE_NEWS))
}

/// Something happened to a connection that was touched before in this turn: if it was asked what it
/// has to report since then, or may have been, it has its turn again.
pub(super) fn announce_again(conn: &Connection, shard: &mut Shard, index: u32) {
    if shard.dirty.asked() > 0 && has_news(conn) {
        shard.events.put(index);
    }
}

/// Nothing but bytes can be reported, and nothing follows from that.
#[inline(always)]
fn has_bytes_alone(conn: &Connection) -> bool {
    let other = ConnFlags::CONNECTED
        .or(ConnFlags::RARE_NEWS)
        .or(ConnFlags::AWAIT_ACKS)
        .or(ConnFlags::ORPHAN)
        .or(ConnFlags::WAITS_FOR_ACCEPT)
        .or(ConnFlags::RCV_URGENT);
    matches!(conn.state, State::Established(_))
        && conn.flags.has(ConnFlags::CREDIT)
        && !conn.flags.any(other)
        && window::is_wide(conn, bytes_taken_then(conn))
}

/// Bytes that the application has taken since `tune_at`, with those that wait: both are at most a
/// receive buffer, far from 32 bits.
#[inline(always)]
const fn bytes_taken_then(conn: &Connection) -> u32 {
    conn.cold.taken_bytes.wrapping_add(conn.receive.queue.ready_bytes())
}

/// The next bytes, against credit.
fn take_bytes(conn: &mut Connection, shard: &mut Shard) -> Option<Chunk> {
    let chunk = conn.receive.queue.pop(&mut shard.nodes)?;
    conn.flags.clear(ConnFlags::CREDIT);
    conn.pass_urgent(&shard.rares);
    window::on_taken(conn, shard.now, chunk.len, shard.receive_buffer_max);
    Some(chunk)
}

/// The next event of those that few connections have.
#[cold]
fn next_rare(conn: &mut Connection, id: ConnId, shard: &mut Shard) -> Option<Event> {
    let rare = shard.rares.get_mut(conn)?;
    if core::mem::take(&mut rare.urgent_moved) {
        let bytes = rare.rcv_up.since(conn.unread_seq());
        conn.flags.put(ConnFlags::RARE_NEWS, rare.is_unsent_low);
        return Some(Event::Urgent { conn: id, bytes });
    }
    conn.flags.clear(ConnFlags::RARE_NEWS);
    core::mem::take(&mut rare.is_unsent_low).then_some(Event::UnsentBelow { conn: id })
}

/// Unsent bytes became fewer: reports it if the application waits for it.
#[cold]
pub(super) fn note_unsent(conn: &mut Connection, shard: &mut Shard) {
    let unsent = conn.unsent();
    if let Some(rare) = shard.rares.get_mut(conn)
        && unsent < rare.report_unsent_below
    {
        (rare.report_unsent_below, rare.is_unsent_low) = (0, true);
        conn.flags.set(ConnFlags::RARE_NEWS);
    }
}

/// The next event of a connection that has an application, but for `Closed`. Looks whether another
/// follows, before the event is made: it is written where it is returned then.
#[inline(always)]
fn next(conn: &mut Connection, (id, index): (ConnId, u32), shard: &mut Shard) -> Option<Event> {
    let conn_id = id;
    if conn.flags.take(ConnFlags::CONNECTED) {
        announce(conn, shard, index);
        return Some(Event::Connected { conn: conn_id });
    }
    if conn.flags.has(ConnFlags::RARE_NEWS)
        && let Some(event) = next_rare(conn, conn_id, shard)
    {
        announce(conn, shard, index);
        return Some(event);
    }
    if conn.flags.has(ConnFlags::CREDIT)
        && let Some(chunk) = take_bytes(conn, shard)
    {
        // The window may have opened.
        if conn.flags.has(ConnFlags::ACK_NOW) {
            mark_dirty(conn, shard, index);
        }
        announce(conn, shard, index);
        return Some(Event::Received { conn: conn_id, chunk });
    }
    if conn.flags.has(ConnFlags::AWAIT_ACKS) && conn.cold.accounting.has_acked() {
        conn.flags.clear(ConnFlags::AWAIT_ACKS);
        let chunks = conn.cold.accounting.take_acked();
        announce(conn, shard, index);
        return Some(Event::Acked { conn: conn_id, chunks, queued_bytes: conn.send.queue.bytes() });
    }
    if may_report_end(conn) {
        conn.flags.set(ConnFlags::END_REPORTED);
        conn.flags.clear(ConnFlags::CREDIT);
        announce(conn, shard, index);
        return Some(Event::PeerClosed { conn: conn_id });
    }
    let reason = broken(conn)?;
    let is_whole = conn.is_closed_whole();
    if is_whole {
        // The reason is known now: what is left ends as the peer has ended it.
        conn.state = State::Closed(Closed { reason: CloseReason::Finished });
    } else {
        conn.flags.set(ConnFlags::END_REPORTED);
    }
    Some(Event::Broken { conn: conn_id, reason, is_whole })
}

/// Tells, in its turn, what there is to tell of a connection.
#[inline(always)]
pub(super) fn announce(conn: &Connection, shard: &mut Shard, index: u32) {
    // A connection without awaited events reports only its end.
    if conn.flags.any(AWAITED) || conn.state.is_closed() {
        announce_any(conn, shard, index);
    }
}

#[inline(never)]
fn announce_any(conn: &Connection, shard: &mut Shard, index: u32) {
    if has_news(conn) {
        shard.events.put(index);
    }
}

impl Tcp {
    /// Fast path for the most frequent event: bytes in one buffer for a connection that became
    /// dirty in this poll, with no older event pending. `None` means that [`Tcp::poll_event`] must
    /// decide.
    #[inline(always)]
    pub(crate) fn poll_bytes(&mut self) -> Option<(ConnId, Chunk)> {
        let Self { connections, shard, places, .. } = self;
        if !shard.events.is_empty() {
            return None;
        }
        let index = shard.dirty.next_unasked()?;
        let conn = connections.get_mut(index as usize)?;
        if !has_bytes_alone(conn) {
            return None;
        }
        let taken_bytes = bytes_taken_then(conn);
        let chunk = conn.receive.queue.pop_only()?;
        shard.dirty.pass();
        conn.flags.clear(ConnFlags::CREDIT);
        conn.cold.taken_bytes = taken_bytes;
        Some((ConnId { index, generation: places.generation(index) }, chunk))
    }

    /// There is no event. `false` says nothing.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.shard.events.is_empty() && self.shard.dirty.next_unasked().is_none()
    }

    /// The next event, of whichever connection or listener has waited longest.
    pub(crate) fn poll_event(&mut self, now: Instant) -> Option<Event> {
        self.shard.now = now;
        while let Some(entry) = self.next_reporter() {
            let event = match entry.checked_sub(self.half_open_from) {
                Some(listener) => self.next_incoming(listener),
                None => match self.next_bytes(entry) {
                    None => self.next_of_connection(entry),
                    event => event,
                },
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// There may be an event. A connection that has waited longest and has none is passed over, as
    /// [`Tcp::poll_event`] would.
    pub(crate) fn has_event(&mut self) -> bool {
        let Self { connections, shard, .. } = self;
        if !shard.events.is_empty() {
            return true;
        }
        while let Some(index) = shard.dirty.next_unasked() {
            let conn = &connections[index as usize];
            if !conn.flags.has(ConnFlags::RELEASED) && has_news(conn) {
                return true;
            }
            shard.dirty.pass();
        }
        false
    }

    /// Whose turn it is: first who was announced, then who was touched in this turn.
    fn next_reporter(&mut self) -> Option<u32> {
        let Self { connections, shard, .. } = self;
        if let Some(entry) = shard.events.pop() {
            return Some(entry);
        }
        while let Some(index) = shard.dirty.next_unasked() {
            shard.dirty.pass();
            // Those that are over were announced.
            if !connections[index as usize].flags.has(ConnFlags::RELEASED) {
                return Some(index);
            }
        }
        None
    }

    /// The event of a connection that has nothing to tell but that bytes came, as most have.
    fn next_bytes(&mut self, index: u32) -> Option<Event> {
        let conn = &mut self.connections[index as usize];
        if !has_bytes_alone(conn) {
            return None;
        }
        let chunk = conn.receive.queue.pop(&mut self.shard.nodes)?;
        conn.flags.clear(ConnFlags::CREDIT);
        conn.cold.taken_bytes += chunk.len;
        if conn.flags.has(ConnFlags::ACK_NOW) {
            mark_dirty(conn, &mut self.shard, index);
        }
        Some(Event::Received { conn: self.id(index), chunk })
    }

    #[inline(always)]
    fn next_of_connection(&mut self, index: u32) -> Option<Event> {
        let id = self.id(index);
        let conn = &mut self.connections[index as usize];
        if !conn.flags.is_attached() {
            return None;
        }
        let end = closed(conn);
        if (end.is_none() || conn.is_closed_readable())
            && let Some(event) = next(conn, (id, index), &mut self.shard)
        {
            return Some(event);
        }
        let reason = end?;
        self.free(index);
        Some(Event::Closed { conn: id, reason })
    }

    #[inline(never)]
    fn next_incoming(&mut self, index: u32) -> Option<Event> {
        let id = self.listeners.id(index);
        let listener = self.listeners.get_mut(index)?;
        if listener.credit == 0 {
            return None;
        }
        let conn = listener.waiting.pop_front()?;
        listener.credit -= 1;
        let waiting = listener.waiting.len() as u32;
        if listener.credit > 0 && waiting > 0 {
            self.shard.events.put(self.half_open_from + index);
        }
        self.leave_backlog(conn, AppAttachment::Attached);
        let record = &self.connections[conn as usize];
        let remote = SocketAddr::new(record.ends.remote(), record.ends.remote_port());
        self.announce(conn);
        Some(Event::Incoming { listener: id, conn: self.id(conn), remote, waiting })
    }

    /// Lets `credit` more `Incoming` come.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn accept(&mut self, id: ListenerId, credit: u32) -> Result<(), OperationError> {
        let listener = self.listeners.by_id(id).ok_or(OperationError::Unknown)?;
        listener.add_credit(credit);
        self.announce_incoming(id.index);
        Ok(())
    }

    /// # Errors
    /// The id is stale.
    pub(crate) fn withdraw_credit(
        &mut self,
        id: ListenerId,
        credit: u32,
    ) -> Result<(), OperationError> {
        let listener = self.listeners.by_id(id).ok_or(OperationError::Unknown)?;
        listener.credit = listener.credit.saturating_sub(credit);
        Ok(())
    }

    /// A listener may have something to report.
    pub(super) fn announce_incoming(&mut self, index: u32) {
        let ready = |listener: &super::listeners::Listener| {
            listener.credit > 0 && !listener.waiting.is_empty()
        };
        if self.listeners.get(index).is_some_and(ready) {
            self.shard.events.put(self.half_open_from + index);
        }
    }

    /// Lets the next bytes come.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn receive(&mut self, id: ConnId) -> Result<(), OperationError> {
        // A connection that is over may still have bytes to read.
        let conn = self
            .by_id(id)
            .filter(|conn| !conn.flags.has(ConnFlags::ORPHAN))
            .ok_or(OperationError::Unknown)?;
        conn.flags.set(ConnFlags::CREDIT);
        if conn.receive.queue.ready_bytes() > 0 || !matches!(conn.state, State::Established(_)) {
            self.announce(id.index);
        }
        Ok(())
    }

    /// Takes back a `receive` that nothing has come of. Returns whether there was one. The end of
    /// the peer's stream is reported to the next one, also if it was before.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn withhold(&mut self, id: ConnId) -> Result<bool, OperationError> {
        let conn = self.by_id(id).ok_or(OperationError::Unknown)?;
        // `Broken` is reported once, to one reader of the bytes that are left.
        if !conn.state.is_closed() {
            conn.flags.clear(ConnFlags::END_REPORTED);
        }
        Ok(conn.flags.take(ConnFlags::CREDIT))
    }

    /// Whether the next bytes were asked for and have not come.
    pub(crate) fn is_receiving(&self, id: ConnId) -> bool {
        self.places.holds(id.index, id.generation)
            && self.connection(id.index).flags.has(ConnFlags::CREDIT)
    }

    /// Whether such a chunk waits to be sent or acknowledged.
    pub(crate) fn has_queued(&self, id: ConnId, is_such: impl Fn(Chunk) -> bool) -> bool {
        self.places.holds(id.index, id.generation)
            && self.connection(id.index).send.queue.has_chunk(&self.shard.nodes, is_such)
    }

    /// Takes the bytes that wait to be read, in order. Bytes behind a gap are given up: the peer
    /// sends them again. The end of the peer's stream will be reported to the next `receive`, also
    /// if it was before.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn take_unread<M: Memory>(
        &mut self,
        id: ConnId,
        memory: &mut M,
        mut each: impl FnMut(&mut M, Chunk),
    ) -> Result<(), OperationError> {
        if !self.places.holds(id.index, id.generation) {
            return Err(OperationError::Unknown);
        }
        let (conn, shard) = (&mut self.connections[id.index as usize], &mut self.shard);
        conn.receive.queue.drop_out_of_order(&mut shard.nodes, memory);
        while let Some(chunk) = take_bytes(conn, shard) {
            each(memory, chunk);
        }
        conn.flags.clear(ConnFlags::CREDIT);
        conn.flags.clear(ConnFlags::END_REPORTED);
        if conn.state.is_closed() {
            // Nothing is left to be read before its end.
            announce(conn, shard, id.index);
        } else if conn.flags.has(ConnFlags::ACK_NOW) {
            mark_dirty(conn, shard, id.index);
        }
        Ok(())
    }

    /// Asks for one `Acked`.
    ///
    /// # Errors
    /// The id is stale, or the connection is over.
    pub(crate) fn await_acks(&mut self, id: ConnId) -> Result<(), OperationError> {
        self.open(id)?.flags.set(ConnFlags::AWAIT_ACKS);
        self.announce(id.index);
        Ok(())
    }
}
