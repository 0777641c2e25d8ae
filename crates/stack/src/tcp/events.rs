//! What the application is told, and when.
//!
//! Invariants
//! - Bytes are handed over against credit, one buffer for each; connections against a listener's.
//! - `Closed` is the last event of a connection, and frees its place. If both sides finished it
//!   waits until every byte was taken; otherwise nothing that came before matters any more.

use core::net::SocketAddr;

use super::connection::Connection;
use super::facts::Facts;
use super::settle::touch;
use super::state::State;
use super::window;
use super::{Shard, Tcp};
use crate::chunk::Chunk;
use crate::error::{CloseReason, OperationError};
use crate::event::Event;
use crate::id::{ConnId, ListenerId};
use crate::time::Instant;

/// The reason, if it is over and all that may be read was.
fn closed(conn: &Connection) -> Option<CloseReason> {
    let State::Closed(closed) = conn.state else { return None };
    let drained = conn.receive.ready_bytes() == 0;
    (drained || closed.reason != CloseReason::Finished).then_some(closed.reason)
}

fn may_report_end(conn: &Connection) -> bool {
    if conn.receive.ready_bytes() > 0 || conn.facts.has(Facts::END_REPORTED) {
        return false;
    }
    match closed(conn) {
        Some(reason) => reason == CloseReason::Finished,
        None => conn.state.peer_has_closed() && conn.facts.has(Facts::CREDIT),
    }
}

/// There is something to report.
pub(super) fn has_news(conn: &Connection) -> bool {
    let facts = conn.facts;
    if facts.any(Facts::ORPHAN.or(Facts::WAITS_FOR_ACCEPT)) {
        return false;
    }
    facts.any(Facts::CONNECTED.or(Facts::URGENT))
        || (facts.has(Facts::CREDIT) && conn.receive.ready_bytes() > 0)
        || (facts.has(Facts::AWAIT_ACKS) && conn.cold.acked_chunks > 0)
        || may_report_end(conn)
        || closed(conn).is_some()
}

/// The same of an established connection that has an application: acknowledgments or bytes came.
pub(super) const fn has_news_of_text(conn: &Connection) -> bool {
    (conn.facts.has(Facts::CREDIT) && conn.receive.ready_bytes() > 0)
        || (conn.facts.has(Facts::AWAIT_ACKS) && conn.cold.acked_chunks > 0)
        || conn.facts.any(Facts::CONNECTED.or(Facts::URGENT))
}

/// Something happened to a connection that was touched before in this turn: if it was asked what it
/// has to report since then, or may have been, it has its turn again.
pub(super) fn announce_again(conn: &Connection, shard: &mut Shard, index: u32) {
    if shard.touched.told() > 0 && has_news(conn) {
        shard.events.put(index);
    }
}

/// Nothing but bytes can be reported, and nothing follows from that.
#[inline(always)]
fn has_bytes_alone(conn: &Connection) -> bool {
    let other = Facts::CONNECTED
        .or(Facts::URGENT)
        .or(Facts::AWAIT_ACKS)
        .or(Facts::ORPHAN)
        .or(Facts::WAITS_FOR_ACCEPT)
        .or(Facts::RCV_URGENT);
    matches!(conn.state, State::Established(_))
        && conn.facts.has(Facts::CREDIT)
        && !conn.facts.any(other)
        && window::is_wide(conn, conn.receive.ready_bytes())
}

/// The next bytes, against credit.
fn take_bytes(conn: &mut Connection, shard: &mut Shard) -> Option<Chunk> {
    let chunk = conn.receive.pop(&mut shard.nodes)?;
    conn.facts.clear(Facts::CREDIT);
    conn.pass_urgent(&shard.rares);
    window::on_taken(conn, shard.now, chunk.len, shard.receive_buffer_max);
    Some(chunk)
}

/// The next event of a connection.
#[inline(always)]
fn next(conn: &mut Connection, id: ConnId, shard: &mut Shard) -> Option<Event> {
    let conn_id = id;
    let over = closed(conn).filter(|reason| *reason != CloseReason::Finished);
    if over.is_none() {
        if conn.facts.take(Facts::CONNECTED) {
            return Some(Event::Connected { conn: conn_id });
        }
        if conn.facts.take(Facts::URGENT) {
            let end = shard.rares.get(conn).map(|rare| rare.rcv_up);
            let bytes = end.map_or(0, |end| end.since(conn.unread_seq()));
            return Some(Event::Urgent { conn: conn_id, bytes });
        }
        if conn.facts.has(Facts::CREDIT)
            && let Some(chunk) = take_bytes(conn, shard)
        {
            return Some(Event::Received { conn: conn_id, chunk });
        }
        if conn.facts.has(Facts::AWAIT_ACKS) && conn.cold.acked_chunks > 0 {
            conn.facts.clear(Facts::AWAIT_ACKS);
            let chunks = core::mem::take(&mut conn.cold.acked_chunks);
            let queued_bytes = conn.send.bytes();
            return Some(Event::Acked { conn: conn_id, chunks, queued_bytes });
        }
        if may_report_end(conn) {
            conn.facts.set(Facts::END_REPORTED);
            conn.facts.clear(Facts::CREDIT);
            return Some(Event::PeerClosed { conn: conn_id });
        }
    }
    closed(conn).map(|reason| Event::Closed { conn: conn_id, reason })
}

impl Tcp {
    /// The next event if it is the most usual one: bytes, in one buffer, came for a connection that
    /// was touched in this turn, and nobody has waited longer. `None` says nothing:
    /// [`Tcp::poll_event`] does.
    #[inline(always)]
    pub(crate) fn poll_bytes(&mut self) -> Option<Event> {
        let Self { connections, shard, places, .. } = self;
        if !shard.events.is_empty() {
            return None;
        }
        let index = shard.touched.untold()?;
        let conn = connections.get_mut(index as usize)?;
        if !has_bytes_alone(conn) {
            return None;
        }
        let chunk = conn.receive.pop_only()?;
        shard.touched.pass();
        conn.facts.clear(Facts::CREDIT);
        conn.cold.taken_bytes += chunk.len;
        let conn = ConnId { index, generation: places.generation(index) };
        Some(Event::Received { conn, chunk })
    }

    /// The next event, of whichever connection or listener has waited longest.
    pub(crate) fn poll_event(&mut self, now: Instant) -> Option<Event> {
        self.shard.now = now;
        while let Some(entry) = self.next_to_ask() {
            let event = match entry.checked_sub(self.embryos_from) {
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
        while let Some(index) = shard.touched.untold() {
            let conn = &connections[index as usize];
            if !conn.facts.has(Facts::RELEASED) && has_news(conn) {
                return true;
            }
            shard.touched.pass();
        }
        false
    }

    /// Whose turn it is: first who was announced, then who was touched in this turn.
    fn next_to_ask(&mut self) -> Option<u32> {
        let Self { connections, shard, .. } = self;
        if let Some(entry) = shard.events.pop() {
            return Some(entry);
        }
        while let Some(index) = shard.touched.untold() {
            shard.touched.pass();
            // Those that are over were announced.
            if !connections[index as usize].facts.has(Facts::RELEASED) {
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
        let chunk = conn.receive.pop(&mut self.shard.nodes)?;
        conn.facts.clear(Facts::CREDIT);
        conn.cold.taken_bytes += chunk.len;
        if conn.facts.has(Facts::ACK_NOW) {
            touch(conn, &mut self.shard, index);
        }
        Some(Event::Received { conn: self.id(index), chunk })
    }

    #[inline(always)]
    fn next_of_connection(&mut self, index: u32) -> Option<Event> {
        let id = self.id(index);
        let conn = &mut self.connections[index as usize];
        if conn.facts.any(Facts::ORPHAN.or(Facts::WAITS_FOR_ACCEPT)) {
            return None;
        }
        let event = next(conn, id, &mut self.shard)?;
        match event {
            Event::Closed { .. } => {
                self.free(index);
                return Some(event);
            }
            // The window may have opened.
            Event::Received { .. } if conn.facts.has(Facts::ACK_NOW) => {
                touch(conn, &mut self.shard, index);
            }
            _ => {}
        }
        if has_news(conn) {
            self.shard.events.put(index);
        }
        Some(event)
    }

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
            self.shard.events.put(self.embryos_from + index);
        }
        let record = &mut self.connections[conn as usize];
        record.facts.clear(Facts::WAITS_FOR_ACCEPT);
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

    /// A listener may have something to report.
    pub(super) fn announce_incoming(&mut self, index: u32) {
        let ready = |listener: &super::listeners::Listener| {
            listener.credit > 0 && !listener.waiting.is_empty()
        };
        if self.listeners.get(index).is_some_and(ready) {
            self.shard.events.put(self.embryos_from + index);
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
            .filter(|conn| !conn.facts.has(Facts::ORPHAN))
            .ok_or(OperationError::Unknown)?;
        conn.facts.set(Facts::CREDIT);
        self.announce(id.index);
        Ok(())
    }

    /// Asks for one `Acked`.
    ///
    /// # Errors
    /// The id is stale, or the connection is over.
    pub(crate) fn await_acks(&mut self, id: ConnId) -> Result<(), OperationError> {
        self.open(id)?.facts.set(Facts::AWAIT_ACKS);
        self.announce(id.index);
        Ok(())
    }
}
