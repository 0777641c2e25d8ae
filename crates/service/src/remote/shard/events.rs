//! Events: what the stack reports, enqueued for the session that it concerns.
//!
//! The stack has one stream of events. An event for whose session there is no room waits with that
//! session ([`ShardSession::park`]); the stream goes on for the others.

use megapipe_shm::record::{Completion, Event as Says, Record};
use megapipe_stack::{Chunk, ConnId, Event, Instant, Memory, PoolId};

use super::SessionShard;
use super::ops::SessionWork;
use super::session_limits::SessionFault;
use super::shard_session::ShardSession;
use super::stranded_events::conn_of;
use crate::connection_manager::Offer;
use crate::remote::buffer_names::session_of;
use crate::remote::encoding::{encode_event, encode_notice, id_of, id_of_listener, record_chunk};

/// An event, and the acceptor of a new connection with its session.
type OfferedEvent = (Event, Option<(PoolId, Offer)>);

impl SessionShard {
    /// Enqueues events, and send buffers that go back. Returns how many records.
    pub(super) fn enqueue_events(&mut self, now: Instant) -> u32 {
        let mut count = self.enqueue_parked(now);
        if self.shared.is_active() {
            count += self.enqueue_shared(now);
        }
        let mut last = PoolId(0);
        loop {
            let Some((event, offer)) = self.enqueue_bytes(last, &mut count) else {
                // A credit that came back may let the stack report more.
                if self.deliver(now) {
                    continue;
                }
                break;
            };
            count += 1;
            last = match event {
                Event::Received { conn, .. } => self.owners.of_conn(conn).unwrap_or(last),
                _ => last,
            };
            // The first bytes of another session are its owner's too, and go by the short way.
            if !self.enqueue_first(last, event) {
                self.enqueue_other(now, event, offer);
            }
        }
        count += self.inform_of_datagrams(now);
        // After the events: buffers that an end has freed are no sign of room.
        count + self.enqueue_returned()
    }

    /// Enqueues bytes of one session, as long as nothing else comes: nearly all events. Returns
    /// the next that is something else.
    #[inline]
    fn enqueue_bytes(&mut self, id: PoolId, count: &mut u32) -> Option<OfferedEvent> {
        let Self { server, sessions, owners, signals, .. } = self;
        let running = sessions.running(id).filter(|_| !self.shared.has_waits());
        let Some(session) = running else { return server.offered_event() };
        let is_first = !session.is_unsignalled();
        let other = loop {
            let Some((conn, chunk)) = server.next_bytes() else { break server.offered_event() };
            let is_its = owners.has_conn(id, conn) && session_of(chunk.buf) == id;
            if !is_its || !session.has_room() {
                break Some((Event::Received { conn, chunk }, None));
            }
            session.put(&Completion::received(id_of(conn), record_chunk(chunk)));
            *count += 1;
        };
        if is_first && session.is_unsignalled() {
            signals.push(id);
        }
        other
    }

    /// Enqueues bytes that lie in a session's own memory, if there is room. Returns `false` if the
    /// event is something else.
    fn enqueue_first(&mut self, id: PoolId, event: Event) -> bool {
        let Self { sessions, signals, owners, .. } = self;
        let Event::Received { conn, chunk } = event else { return false };
        if self.shared.has_waits() {
            // Another session may have its turn then.
            return false;
        }
        let Some(session) = sessions.running(id) else { return false };
        if !owners.has_conn(id, conn) || session_of(chunk.buf) != id || !session.has_room() {
            return false;
        }
        if !session.is_unsignalled() {
            signals.push(id);
        }
        session.put(&Completion::received(id_of(conn), record_chunk(chunk)));
        true
    }

    /// Enqueues what there was no room for, as far as there is now.
    fn enqueue_parked(&mut self, now: Instant) -> u32 {
        let mut count = 0;
        for place in (0..self.parked.len()).rev() {
            let id = self.parked[place];
            let Some(session) = self.sessions.running(id) else {
                self.parked.swap_remove(place);
                continue;
            };
            let is_first = !session.is_unsignalled();
            match session.unpark() {
                Ok(put) => {
                    count += put;
                    self.vain_sleeps = if put > 0 { 0 } else { self.vain_sleeps };
                    if is_first && put > 0 {
                        self.signals.push(id);
                    }
                }
                Err(fault) => self.end(now, id, Some(fault)),
            }
            count += self.enqueue_stranded(now, id);
            self.sessions.running(id).into_iter().for_each(ShardSession::return_waiting);
            let is_done =
                |session: &mut ShardSession| !session.has_parked() && session.stranded.is_empty();
            if self.sessions.running(id).is_none_or(is_done) {
                self.parked.swap_remove(place);
            }
        }
        count
    }

    /// Enqueues events that waited for a receive buffer.
    fn enqueue_stranded(&mut self, now: Instant, id: PoolId) -> u32 {
        let mut stranded = match self.sessions.running(id) {
            Some(session) => std::mem::take(&mut session.stranded),
            None => return 0,
        };
        let before = stranded.len();
        while let Some(event) = stranded.pop() {
            if let Some(event) = self.enqueue_own(now, id, event) {
                stranded.put_back(event);
                break;
            }
        }
        let count = before - stranded.len();
        match self.sessions.running(id) {
            // Nothing was stranded meanwhile: each event was one of these.
            Some(session) => session.stranded = stranded,
            // It has ended, since no more of its events may wait.
            None => {
                while let Some(event) = stranded.pop() {
                    self.drop_event(event);
                }
            }
        }
        count as u32
    }

    fn enqueue_returned(&mut self) -> u32 {
        let mut count = 0;
        let Self { server, sessions, signals, .. } = self;
        let (_, memory) = server.parts();
        for place in (0..memory.returning().len()).rev() {
            let id = memory.returning()[place];
            let Some(session) = sessions.running(id) else {
                memory.end_returning(place);
                continue;
            };
            let is_first = !session.is_unsignalled();
            let mut put = 0;
            while session.has_room()
                && let Some(bufs) = memory.of_mut(id).and_then(|memory| memory.take_returned())
            {
                session.put_completion(0, Says::Returned { bufs });
                put += 1;
            }
            if is_first && put > 0 {
                signals.push(id);
            }
            count += put;
            if let Some(memory) = memory.of(id) {
                session.deferred.return_unused(memory.in_stack());
            }
            if memory.of(id).is_none_or(|memory| !memory.has_returned()) {
                memory.end_returning(place);
            }
        }
        count
    }

    /// Enqueues an event that is not just bytes in a buffer of its session.
    #[inline(never)]
    pub(super) fn enqueue_other(
        &mut self,
        now: Instant,
        event: Event,
        offer: Option<(PoolId, Offer)>,
    ) {
        if let Event::Incoming { .. } = event {
            return self.enqueue_incoming(now, event, offer);
        }
        if self.shared.is_active() {
            self.enqueue_shared_event(now, event);
        }
        if let Event::Datagram { endpoint, from, chunk } = event
            && self.shared.endpoints.has(endpoint)
        {
            return self.keep_shared_datagram(now, (endpoint, from), chunk);
        }
        let owner = match event {
            Event::Datagram { endpoint, .. } | Event::DatagramRefused { endpoint, .. } => {
                self.owners.of_endpoint(endpoint)
            }
            _ => conn_of(event).and_then(|conn| self.owners.of_conn(conn)),
        };
        let Some((id, session)) =
            owner.and_then(|id| self.sessions.get_mut(id).map(|session| (id, session)))
        else {
            return self.on_unowned(now, event);
        };
        let (stack, memory) = self.server.parts();
        match event {
            Event::Connected { conn } => self.owners.on_connected(conn),
            Event::Acked { conn, .. } => session.deferred.retry(now, conn, (stack, memory)),
            Event::Broken { conn, reason, .. } if !session.limits.knows_event_details => {
                // Its end comes at once, without them. After an abort the stack says nothing more.
                let _ = stack.abort(now, conn, memory);
                return self.enqueue_other(now, Event::Closed { conn, reason }, None);
            }
            Event::Broken { conn, .. } => session.deferred.drop_of(conn, memory),
            // The end of a stream of which bytes wait for another reader: they go with `Closed`.
            Event::PeerClosed { conn } if self.shared.has_unread(conn) => return,
            Event::Closed { conn, .. } => {
                session.deferred.drop_of(conn, memory);
                let hand_over = self.owners.remove_conn(conn);
                self.work(now, id, |work| {
                    work.finish_handed(conn, hand_over);
                    work.grant_withheld();
                });
            }
            _ => {}
        }
        if self.sessions.running(id).is_none() {
            return self.drop_event(event);
        }
        self.enqueue_or_strand(now, id, event);
    }

    /// Enqueues an event of a session, or keeps it until the session has a buffer for its bytes.
    pub(super) fn enqueue_or_strand(&mut self, now: Instant, id: PoolId, event: Event) {
        if let Some(event) = self.enqueue_own(now, id, event)
            && let Some(session) = self.sessions.running(id)
        {
            let stranded = session.strand(event);
            if stranded.is_err() {
                self.drop_event(event);
            }
            self.after_park(now, id, stranded);
        }
    }

    /// Enqueues or parks an event of a session. Returns it if it has to wait for a buffer.
    fn enqueue_own(&mut self, now: Instant, id: PoolId, event: Event) -> Option<Event> {
        if self.is_stranded(id, event) {
            return Some(event);
        }
        let event = match event {
            Event::Received { conn, chunk } if session_of(chunk.buf) != id => {
                // It came when no session owned the connection.
                match self.server.parts().1.move_to(id, chunk) {
                    Some(chunk) => Event::Received { conn, chunk },
                    None => return Some(event),
                }
            }
            event => event,
        };
        if let Event::DatagramRefused { .. } = event
            && let Some(notice) = self.server.parts().0.take_notice()
        {
            let record = Completion { cookie: 0, event: encode_notice(&notice) }.record();
            if !self.put(now, id, record, true) {
                let quote = notice.quote;
                quote.iter().for_each(|chunk| self.free(*chunk));
                return None;
            }
        }
        let is_whole = self.knows_event_details(id);
        if let Some(says) = encode_event(event, self.server.stack(), is_whole) {
            let record = Completion { cookie: u64::MAX, event: says }.record();
            let is_datagram = matches!(event, Event::Datagram { .. } | Event::Urgent { .. });
            let is_put = self.put(now, id, record, is_datagram);
            if let Event::Datagram { chunk, .. } = event {
                match self.sessions.running(id) {
                    Some(session) if is_put => session.datagrams_given += 1,
                    _ => self.free(chunk),
                }
            }
        }
        None
    }

    /// As the limits of a session have it ([`SessionLimits::knows_event_details`]).
    ///
    /// [`SessionLimits::knows_event_details`]: crate::SessionLimits::knows_event_details
    pub(super) fn knows_event_details(&mut self, id: PoolId) -> bool {
        self.sessions.running(id).is_some_and(|session| session.limits.knows_event_details)
    }

    /// Whether an event follows one of its connection that waits for a buffer.
    fn is_stranded(&mut self, id: PoolId, event: Event) -> bool {
        let Some(conn) = conn_of(event) else { return false };
        self.sessions.running(id).is_some_and(|session| session.stranded.has(conn))
    }

    /// Puts a record, or parks it. Returns `false` if it was dropped.
    pub(super) fn put(&mut self, now: Instant, id: PoolId, record: Record, may_drop: bool) -> bool {
        let Some(session) = self.sessions.running(id) else { return false };
        let is_first = !session.is_unsignalled();
        if session.put_event(&record) {
            if is_first {
                self.signals.push(id);
            }
            return true;
        }
        if may_drop && !session.park_datagram(record) {
            return false;
        }
        let parked = if may_drop { Ok(()) } else { session.park(record) };
        self.after_park(now, id, parked);
        true
    }

    #[cold]
    fn after_park(&mut self, now: Instant, id: PoolId, parked: Result<(), SessionFault>) {
        match parked {
            Ok(()) => self.note_parked(id),
            Err(fault) => self.end(now, id, Some(fault)),
        }
    }

    /// A session has events that wait.
    fn note_parked(&mut self, id: PoolId) {
        if !self.parked.contains(&id) {
            self.parked.push(id);
        }
    }

    /// A new connection goes to the session whose acceptor it is offered to.
    fn enqueue_incoming(&mut self, now: Instant, event: Event, offer: Option<(PoolId, Offer)>) {
        let Event::Incoming { listener, conn, remote, waiting } = event else { return };
        if offer.is_none()
            && let Some(hand_over) = self.hand_overs.number_of(listener)
        {
            return self.hand_over_established(now, hand_over, conn);
        }
        self.hand_overs.count_direct();
        let (owner, acceptor) = match offer {
            Some((id, offer)) => (Some(id), offer.acceptor.0),
            None => (self.owners.only_of_listener(listener), u64::MAX),
        };
        let Some((id, session)) =
            owner.and_then(|id| self.sessions.running(id).map(|session| (id, session)))
        else {
            return self.server.hand_over_offered(now, conn);
        };
        session.credit = session.credit.saturating_sub(1);
        self.owners.add_conn(id, conn, false);
        let (stack, _) = self.server.parts();
        // It may be over, as its next event says.
        let _ = stack.set_pool(conn, id);
        let ids = (id_of_listener(listener), id_of(conn));
        self.put(now, id, Completion::incoming(acceptor, ids, remote, waiting), false);
    }

    /// An event of what no session has: a connection that is being offered, or one that is over.
    fn on_unowned(&mut self, now: Instant, event: Event) {
        match event {
            Event::Closed { conn, .. } => self.on_offered_over(now, conn),
            // A process that adopts it reads what is left.
            Event::Broken { conn, .. } if self.shared.owners.is_shared(conn) => {}
            Event::Broken { conn, .. } => {
                // Nothing will read what is left, and nothing follows.
                let (stack, memory) = self.server.parts();
                let _ = stack.abort(now, conn, memory);
                self.on_offered_over(now, conn);
            }
            Event::Urgent { conn, bytes } => {
                if let Some(hand_over) = self.owners.hand_over_of(conn) {
                    self.hand_overs.on_urgent(hand_over, conn, bytes);
                }
            }
            _ => self.drop_event(event),
        }
    }

    /// A connection is over that may have been offered.
    fn on_offered_over(&mut self, now: Instant, conn: ConnId) {
        if let Some(hand_over) = self.owners.take_offered(conn) {
            self.hand_overs.on_reset(now, hand_over, conn);
        }
    }

    /// Frees what belongs to an event that has no session any more.
    fn drop_event(&mut self, event: Event) {
        match event {
            Event::Received { chunk, .. } | Event::Datagram { chunk, .. } => self.free(chunk),
            Event::DatagramRefused { .. } => {
                let notice = self.server.parts().0.take_notice();
                notice.and_then(|notice| notice.quote).iter().for_each(|chunk| self.free(*chunk));
            }
            _ => {}
        }
    }

    fn free(&mut self, chunk: Chunk) {
        self.server.parts().1.free(chunk.buf);
    }

    /// Does something with one session. Nothing if there is no such session.
    pub(super) fn work<T>(
        &mut self,
        now: Instant,
        id: PoolId,
        what: impl FnOnce(&mut SessionWork<'_>) -> T,
    ) -> Option<T> {
        let Self { server, sessions, owners, hand_overs, groups, shared, signals, .. } = self;
        let session = sessions.get_mut(id)?;
        server.set_pool(id);
        let is_first = !session.is_unsignalled();
        let mut work = SessionWork { now, id, session, server, owners, hand_overs, groups, shared };
        let done = what(&mut work);
        if is_first && work.session.is_unsignalled() {
            signals.push(id);
        }
        Some(done)
    }
}
