//! Events: what the server publishes, checked and under the session's names.
//!
//! Invariants
//! - Nothing that the server writes is trusted: an index, a range or an answer that no correct
//!   server writes ends the session.
//! - Records are copied out of the ring before they are checked.

use std::net::SocketAddr;

use megapipe_shm::BufId;
use megapipe_shm::record::{
    self, CloseCode, Command, Completion, Event as Says, Id, NO_ANSWER, Record, Refusal,
    ServerAnswer,
};
use megapipe_stack::{Arrival, Chunk, CloseReason, ConnId, ConnectError, Event, Notice};

use super::{NotBegun, ProtocolFault, RemoteClient, RemoteEvent};
use crate::connection_manager::{AcceptorId, Offer};
use crate::limits::{COMPLETIONS_MAX, EVENTS_ASIDE_MAX, OPS_MAX, SKIPPED_RECORDS_MAX};
use crate::policy::QuotaReached;
use crate::remote::encoding::{
    Coded, chunk_of, conn_id, endpoint_id, id_of, listener_id, reason_of, undelivered,
};

impl RemoteClient {
    /// How the datagram arrived that [`RemoteClient::event`] returned last.
    #[must_use]
    pub const fn last_arrival(&self) -> Option<Arrival> {
        self.details.arrival
    }

    /// The notice of an undelivered datagram, if [`RemoteClient::event`] returned one last; once. A
    /// quote in it lies in a received buffer ([`RemoteClient::take_bytes`]).
    pub const fn take_notice(&mut self) -> Option<Notice> {
        self.details.notice.take()
    }

    /// The next event.
    #[inline]
    pub fn event(&mut self) -> Option<RemoteEvent> {
        if self.backlog.is_empty() {
            return self.next_event();
        }
        let (event, details) = self.backlog.pop_front()?;
        self.details = details;
        Some(event)
    }

    /// The connection and the bytes of the next event, if it is received bytes and no other event
    /// waits before it: nearly all are. `None`: [`RemoteClient::event`] returns the next one, if
    /// there is any.
    #[inline]
    pub fn next_bytes(&mut self) -> Option<(ConnId, Chunk)> {
        if !self.backlog.is_empty() || !self.unblocked.is_empty() || !self.taken.is_empty() {
            return None;
        }
        let record = self.ends.events.take()?;
        if let Some((conn, chunk)) = Completion::parse_bytes(&record)
            && let Some(conn) = self.ours(conn)
            && let chunk = chunk_of(chunk)
            && self.is_received(chunk)
        {
            self.counters.events += 1;
            return Some((conn, chunk));
        }
        self.taken.push_back(record);
        None
    }

    /// Takes the events of the ring out of it, for [`RemoteClient::event`] to return later.
    pub(super) fn collect_events(&mut self) {
        while let Some(event) = self.next_event() {
            self.backlog.push_back((event, std::mem::take(&mut self.details)));
            if self.backlog.len() > EVENTS_ASIDE_MAX {
                return self.end_session(ProtocolFault);
            }
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<RemoteEvent> {
        // A server that publishes nothing but events of connections that are over, without end,
        // must not keep the caller.
        for _ in 0..SKIPPED_RECORDS_MAX {
            if let Some(conn) = self.unblocked.pop_front() {
                match self.acked(conn) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            // Taken one by one, given back when there are no more: a batch costs one store.
            let Some(record) = self.next_record() else {
                self.ends.events.release();
                return None;
            };
            self.counters.events += 1;
            let completion = match Completion::parse(&record) {
                Ok(completion) => completion,
                Err(fault) => {
                    self.end_session(fault.into());
                    return None;
                }
            };
            let Completion { cookie, event } = completion;
            if let Says::Received { conn, chunk } = event {
                // Nearly all of them.
                let chunk = chunk_of(chunk);
                if !self.is_received(chunk) {
                    self.end_session(ProtocolFault);
                    return None;
                }
                match self.ours(conn) {
                    Some(conn) => {
                        return Some(RemoteEvent::Event(Event::Received { conn, chunk }, None));
                    }
                    None => self.give_back(chunk),
                }
                continue;
            }
            match self.decode(cookie, event) {
                Ok(Some(event)) => return Some(event),
                Ok(None) => {}
                Err(fault) => {
                    self.end_session(fault);
                    return None;
                }
            }
        }
        self.ends.events.release();
        None
    }

    /// A connection whose sends may go on.
    fn acked(&mut self, conn: ConnId) -> Option<RemoteEvent> {
        if !self.is_known(conn) {
            return None;
        }
        let state = &mut self.conns[conn.index as usize];
        let queued_bytes = state.queued_bytes;
        let event = Event::Acked { conn, chunks: 0, queued_bytes };
        std::mem::take(&mut state.awaits).then_some(RemoteEvent::Event(event, None))
    }

    /// A chunk lies in a receive buffer.
    #[inline]
    fn is_received(&self, chunk: Chunk) -> bool {
        let layout = self.receives.layout();
        let end = u64::from(chunk.offset) + u64::from(chunk.len);
        // Their tag is 0.
        chunk.buf.0 < layout.count && end <= layout.buf_bytes as u64
    }

    /// The bytes of a receive buffer from its start.
    fn received(&self, buf: BufId, len: u16) -> Result<Chunk, ProtocolFault> {
        let chunk = Chunk { buf: megapipe_stack::BufId(buf.bits()), offset: 0, len: len.into() };
        if self.is_received(chunk) { Ok(chunk) } else { Err(ProtocolFault) }
    }

    #[inline]
    fn next_record(&mut self) -> Option<Record> {
        if !self.taken.is_empty() {
            return self.taken.pop_front();
        }
        match self.ends.events.take() {
            Some(record) => Some(record),
            None => {
                self.ends.events.release();
                if self.waiting_events(OPS_MAX) == 0 {
                    return None;
                }
                self.ends.events.take()
            }
        }
    }

    /// How many events wait in the ring; none, if the server has broken it.
    pub(super) fn waiting_events(&mut self, want: u32) -> u32 {
        match self.ends.events.peek(want) {
            Ok(count) => count,
            Err(_) => {
                self.end_session(ProtocolFault);
                0
            }
        }
    }

    /// Takes the server's events out of their ring, to be looked at later: it takes no op whose
    /// answer has no room there. Returns the answer with `cookie`, if it is among them.
    #[cold]
    pub(super) fn set_aside(&mut self, cookie: Option<u64>) -> Option<ServerAnswer> {
        let mut found = None;
        while found.is_none() && self.waiting_events(COMPLETIONS_MAX) > 0 {
            while let Some(record) = self.ends.events.take() {
                match Completion::parse(&record) {
                    Ok(Completion { cookie: of, event: Says::Answer(answer) })
                        if Some(of) == cookie =>
                    {
                        found = Some(answer);
                        break;
                    }
                    _ => self.taken.push_back(record),
                }
            }
            self.ends.events.release();
            if self.taken.len() > EVENTS_ASIDE_MAX {
                self.end_session(ProtocolFault);
                break;
            }
        }
        found
    }

    /// Returns the bytes of a connection that the server has published and that
    /// [`RemoteClient::event`] has not returned yet. The stack no longer counts them as unread.
    pub fn published_bytes(&mut self, conn: ConnId) -> u32 {
        self.set_aside(None);
        self.set_aside_bytes(conn)
    }

    /// Returns the received bytes of a connection in the records that were taken out of the ring to
    /// make room or to be counted.
    pub(super) fn set_aside_bytes(&self, conn: ConnId) -> u32 {
        let received = |record: &Record| match Completion::parse(record).ok()?.event {
            Says::Received { conn, chunk } => Some((conn, chunk.len)),
            _ => None,
        };
        let in_ring = self.taken.iter().filter_map(received);
        let in_ring = in_ring.filter(|(id, _)| self.ours(*id) == Some(conn)).map(|(_, len)| len);
        let in_backlog = self.backlog.iter().filter_map(|(event, _)| match event {
            RemoteEvent::Event(Event::Received { conn: id, chunk }, _) if *id == conn => {
                Some(chunk.len)
            }
            _ => None,
        });
        in_ring.chain(in_backlog).fold(0, u32::saturating_add)
    }

    /// The event of a record, if it is one for the application.
    fn decode(&mut self, cookie: u64, event: Says) -> Result<Option<RemoteEvent>, ProtocolFault> {
        // Events of connections that the application has let go of are dropped.
        let of = |conn: Option<ConnId>, event: fn(ConnId) -> Event| {
            Ok(conn.map(|conn| RemoteEvent::Event(event(conn), None)))
        };
        match event {
            Says::Returned { bufs } => bufs.iter().for_each(|buf| self.on_returned(buf)),
            Says::Incoming { listener, conn, remote, waiting } => {
                let has_asked = self.offers.on_incoming(conn);
                let conn = self.adopt(conn_id(conn))?;
                let listener = listener_id(listener);
                let local = self.listeners.of_incoming(listener, remote, &self.description);
                let state = &mut self.conns[conn.index as usize];
                state.has_asked = has_asked;
                (state.local, state.remote) = (local, Some(remote));
                let acceptor = AcceptorId(cookie);
                let offer = (cookie != u64::MAX).then_some(Offer { acceptor, credit_left: 0 });
                let event = Event::Incoming { listener, conn, remote, waiting };
                return Ok(Some(RemoteEvent::Event(event, offer)));
            }
            Says::Available { conn, acceptor } => {
                self.offers.on_available(AcceptorId(cookie), conn, acceptor)?;
            }
            Says::Withdrawn { conn } => self.offers.on_withdrawn(conn),
            Says::ClaimRefused { conn, .. } => self.offers.on_refused(conn),
            Says::Answer(ServerAnswer::Connecting { conn }) => {
                self.on_connecting(cookie, conn_id(conn))?
            }
            Says::Answer(ServerAnswer::Refused { refusal, detail, .. }) => {
                return Ok(self.on_refused(cookie, (refusal, detail)));
            }
            // An older server answers this too.
            Says::Answer(ServerAnswer::Value { .. })
                if cookie == NO_ANSWER && self.unanswered > 0 =>
            {
                self.unanswered -= 1;
            }
            // No call waits for it: the server answers what it was not asked.
            Says::Answer(_) => return Err(ProtocolFault),
            Says::Connected { conn, local } => return self.on_connected(conn, local),
            Says::Broken { conn, reason, is_whole } => {
                return self.on_broken(conn, reason_of(reason), is_whole);
            }
            Says::PeerClosed { conn } => {
                return of(self.ours(conn), |conn| Event::PeerClosed { conn });
            }
            Says::UnsentBelow { conn } => {
                return of(self.ours(conn), |conn| Event::UnsentBelow { conn });
            }
            Says::Closed { conn, reason } => return Ok(self.on_closed(conn, reason)),
            // Room is known by the buffers that come back: asked for by `await_delivery`, and for
            // bytes that lie in no buffer.
            Says::Acked { conn, chunks, queued_bytes } => {
                let Some(conn) = self.ours(conn) else { return Ok(None) };
                self.on_acked(conn, queued_bytes);
                return Ok(Some(RemoteEvent::Event(
                    Event::Acked { conn, chunks, queued_bytes },
                    None,
                )));
            }
            Says::Urgent { conn, bytes } => {
                let event = self.ours(conn).map(|conn| Event::Urgent { conn, bytes });
                return Ok(event.map(|event| RemoteEvent::Event(event, None)));
            }
            // Handled before.
            Says::Received { .. } => {}
            _ => return self.decode_datagram(event),
        }
        Ok(None)
    }

    /// As `decode`, of events of endpoints for datagrams.
    fn decode_datagram(&mut self, event: Says) -> Result<Option<RemoteEvent>, ProtocolFault> {
        let arrival = |record::Arrival { to, hop_limit, traffic_class }| Arrival {
            to,
            hop_limit,
            traffic_class,
        };
        match event {
            Says::Datagram { endpoint, from, port, arrival: came, buf, len } => {
                let chunk = self.received(buf, len)?;
                self.details.arrival = Some(arrival(came));
                let (endpoint, from) = (endpoint_id(endpoint), SocketAddr::new(from, port));
                let event = Event::Datagram { endpoint, from, chunk };
                Ok(Some(RemoteEvent::Event(event, None)))
            }
            Says::Notice { by, kind_and_code: (kind, code), info, arrival: came, quote } => {
                let quote = quote.map(|(buf, len)| self.received(buf, len)).transpose()?;
                let arrival = arrival(came);
                self.details.notice = Some(Notice { by, kind, code, info, arrival, quote });
                Ok(None)
            }
            Says::DatagramRefused { endpoint, to, why } => {
                let endpoint = endpoint_id(endpoint);
                // What the path takes may have changed.
                self.datagrams.forget(endpoint);
                let event = Event::DatagramRefused { endpoint, to, why: undelivered(why) };
                Ok(Some(RemoteEvent::Event(event, None)))
            }
            Says::DatagramWaits { endpoint, len } => {
                Ok(Some(RemoteEvent::DatagramWaits(endpoint_id(endpoint), len)))
            }
            Says::DatagramFailed { endpoint, .. } => {
                self.counters.datagrams_failed += 1;
                self.datagrams.forget(endpoint_id(endpoint));
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn on_connected(
        &mut self,
        conn: Id,
        local: Option<SocketAddr>,
    ) -> Result<Option<RemoteEvent>, ProtocolFault> {
        let Some(conn) = self.ours(conn) else { return Ok(None) };
        let state = &mut self.conns[conn.index as usize];
        let is_of_family = |local: SocketAddr| {
            local.port() != 0
                && state.remote.is_none_or(|remote| remote.is_ipv4() == local.is_ipv4())
        };
        if !local.is_none_or(is_of_family) {
            return Err(ProtocolFault);
        }
        // Without it, from an older server, a call asks for it.
        state.local = local;
        Ok(Some(RemoteEvent::Event(Event::Connected { conn }, None)))
    }

    /// Nothing more is sent on a connection; what is left of it may be asked for.
    fn on_broken(
        &mut self,
        conn: Id,
        reason: CloseReason,
        is_whole: bool,
    ) -> Result<Option<RemoteEvent>, ProtocolFault> {
        if !reason.leaves_bytes() {
            return Err(ProtocolFault);
        }
        let Some(conn) = self.ours(conn) else { return Ok(None) };
        self.conns[conn.index as usize].is_shut = true;
        let event = Event::Broken { conn, reason, is_whole };
        Ok(Some(RemoteEvent::Event(event, None)))
    }

    fn on_closed(&mut self, conn: Id, reason: CloseCode) -> Option<RemoteEvent> {
        let conn = self.ours(conn)?;
        self.forget(conn);
        Some(RemoteEvent::Event(Event::Closed { conn, reason: reason_of(reason) }, None))
    }

    fn on_connecting(&mut self, cookie: u64, server: ConnId) -> Result<(), ProtocolFault> {
        let Some(conn) = connect_name(cookie) else { return Err(ProtocolFault) };
        if !self.is_known(conn) {
            self.ask(0, Command::Abort { conn: id_of(server) });
            return Ok(());
        }
        if self.conns[conn.index as usize].server.is_some() {
            return Err(ProtocolFault);
        }
        self.map(server, conn)?;
        self.put_early_options(conn, server);
        Ok(())
    }

    fn on_refused(&mut self, cookie: u64, why: (Refusal, u32)) -> Option<RemoteEvent> {
        let conn = connect_name(cookie).filter(|conn| self.is_known(*conn))?;
        self.forget(conn);
        Some(RemoteEvent::NotBegun(conn, not_begun(why)))
    }
}

/// The cookie of an op that opens a connection. 0 names none.
pub(super) const fn connect_cookie(conn: ConnId) -> u64 {
    (((conn.generation as u64) << 32) | conn.index as u64).wrapping_add(1)
}

/// The connection of that cookie.
const fn connect_name(cookie: u64) -> Option<ConnId> {
    match cookie.checked_sub(1) {
        Some(cookie) => Some(ConnId { index: cookie as u32, generation: (cookie >> 32) as u32 }),
        None => None,
    }
}

/// Why a connection was not begun.
fn not_begun((refusal, detail): (Refusal, u32)) -> NotBegun {
    let reached = QuotaReached::from_code(detail).filter(|_| refusal == Refusal::QuotaReached);
    if let Some(reached) = reached {
        return NotBegun::Quota(reached);
    }
    NotBegun::Stack(match refusal {
        Refusal::AddressTaken | Refusal::CoreTaken => ConnectError::InUse,
        refusal => ConnectError::from_refusal(refusal).unwrap_or(ConnectError::NoPort),
    })
}
