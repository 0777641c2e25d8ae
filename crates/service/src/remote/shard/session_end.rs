//! The end of a session: its connections end as Linux ends those of a dead process.
//!
//! Read first: the decision on many sessions of a shard in `docs/decisions`.
//!
//! Bytes that the application has handed over are sent, then FIN; a connection with received bytes
//! that the application has not read is reset, and one for which it has set SO_LINGER with time 0.
//! The session's memory stays until the last of these bytes is acknowledged, at most for
//! [`SessionLimits::drain_time`], and counts for its user until then. A user has a quota of
//! sessions that have ended and still send; beyond it they are reset.
//!
//! Invariant: when a session's number is free, no buffer, connection, listener or endpoint of it is
//! left.
//!
//! [`SessionLimits::drain_time`]: super::SessionLimits::drain_time

use megapipe_shm::record::{Completion, Event as Says};
use megapipe_stack::{Chunk, ConnId, Event, Instant, Memory, PoolId};

use super::deferred::End;
use super::ops::SessionWork;
use super::shard_session::SessionState;
use super::{SessionEnd, SessionFault, SessionId, SessionShard};
use crate::limits::OPS_PER_POLL;
use crate::remote::buffer_names::session_of;
use crate::remote::encoding::conn_id;

impl SessionShard {
    /// Ends a session that its holder has told to end, or whose application is gone: does the
    /// operations that were submitted, then ends its connections.
    pub(in crate::remote) fn detach(&mut self, now: Instant, id: SessionId) {
        let Some(number) = self.sessions.number(id) else { return };
        if self.sessions.running(number).is_none() {
            return;
        }
        let mut left = self.work(now, number, |work| {
            work.session.is_leaving = true;
            work.session.ends.ops.capacity()
        });
        // An application that goes on submitting is not waited for.
        while let Some(share @ 1..) = left {
            let taken = self.work(now, number, |work| work.take_ops(share.min(OPS_PER_POLL)));
            let Some(Ok(done @ 1..)) = taken else { break };
            let answered = self.work(now, number, |work| match work.session.postponed.take() {
                Some(call) => work.answer_call(call),
                None => Ok(()),
            });
            if answered != Some(Ok(())) {
                break;
            }
            left = Some(share - done.min(share));
        }
        self.end(now, number, None);
        self.forget_inactive();
    }

    /// As [`SessionShard::detach`], by the session's number.
    pub(in crate::remote) fn detach_number(&mut self, now: Instant, number: PoolId) {
        if self.sessions.running(number).is_some() {
            self.detach(now, self.sessions.id(number));
        }
    }

    /// Ends all sessions.
    pub(in crate::remote) fn detach_all(&mut self, now: Instant) {
        let all: Vec<_> = self.sessions.counters().map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.detach(now, id));
    }

    /// Ends a session: nothing of its rings is used any more.
    pub(super) fn end(&mut self, now: Instant, id: PoolId, fault: Option<SessionFault>) {
        if self.sessions.running(id).is_none() {
            return;
        }
        self.ends.push_back(SessionEnd { session: self.sessions.id(id), fault });
        if self.work(now, id, |work| work.session.endpoints > 0) == Some(true) {
            // Datagrams that wait go out. A link that is gone is reported by the next poll.
            let _ = self.server.transmit(now);
        }
        self.work(now, id, |work| {
            work.end_all();
            if !work.may_drain() {
                work.abort_all();
            }
            let until = now + work.session.limits.drain_time;
            work.session.state = SessionState::Draining { until };
        });
        self.sessions.draining.push(id);
    }

    /// Forgets sessions that have ended.
    pub(super) fn forget_inactive(&mut self) {
        let mut active = std::mem::take(&mut self.sessions.active);
        active.retain(|id| self.sessions.running(*id).is_some());
        self.sessions.active = active;
    }

    /// When the first session that has ended is cut off.
    pub(super) fn drained_at(&self) -> Option<Instant> {
        let draining = self.sessions.draining.iter();
        let ends = draining.filter_map(|id| match self.sessions.get(*id)?.state {
            SessionState::Draining { until } => Some(until),
            SessionState::Running => None,
        });
        ends.min()
    }

    /// Frees sessions of which nothing is left, and cuts off those whose time is over.
    pub(super) fn finish_draining(&mut self, now: Instant) {
        // They may have bytes in the memory of one of these sessions.
        self.reset_failed(now);
        for place in (0..self.sessions.draining.len()).rev() {
            let id = self.sessions.draining[place];
            let is_due = self.sessions.get(id).is_none_or(
                |session| !matches!(session.state, SessionState::Draining { until } if now < until),
            );
            let is_drained = |shard: &mut Self| {
                let (_, memory) = shard.server.parts();
                memory.of(id).is_none_or(|memory| memory.in_stack() == 0)
            };
            if is_due && !is_drained(self) {
                self.work(now, id, |work| work.abort_all());
                let left = self.work(now, id, |work| std::mem::take(&mut work.session.left_conns));
                for conn in left.into_iter().flatten() {
                    let is_its = |chunk: Chunk| session_of(chunk.buf) == id;
                    if self.server.stack().has_queued(conn, is_its) {
                        self.reset_shared(now, conn);
                    }
                }
            }
            if is_due || is_drained(self) {
                debug_assert!(is_drained(self), "an aborted connection has no chunk");
                self.work(now, id, |work| work.forget_conns());
                debug_assert!(!self.has_unread_in(id), "they were moved");
                self.server.parts().1.remove(id);
                self.sessions.remove(id);
                self.owners.remove_session(id);
                self.sessions.draining.swap_remove(place);
            }
        }
    }
}

/// Adds to a list as long as there is memory for it.
fn note(unread: &mut Vec<ConnId>, conn: ConnId) {
    if unread.try_reserve(1).is_ok() {
        unread.push(conn);
    }
}

impl SessionWork<'_> {
    /// Ends everything of the session.
    fn end_all(&mut self) {
        self.hand_over_taken();
        self.end_move();
        let endpoints: Vec<_> = self.owners.endpoints(self.id).collect();
        endpoints.into_iter().for_each(|endpoint| self.close_endpoint(endpoint));
        self.leave_all_endpoints();
        while let Some(listener) = self.owners.first_listener(self.id) {
            self.unlisten(listener);
        }
        self.session.withheld.clear();
        let unread = self.unread_in_ring();
        self.leave_all_shared(&unread);
        self.reset_unread(unread);
        while let Some(event) = self.session.stranded.pop() {
            if let Event::Received { chunk, .. } = event {
                self.server.parts().1.free(chunk.buf);
            }
        }
        self.session.forget_parked();
        let mut bytes_left = self.session.limits.drain_bytes;
        while let Some(conn) = self.owners.first_conn(self.id, false) {
            let (stack, _) = self.server.parts();
            let queued = stack.info(conn).map_or(0, |info| u64::from(info.queued_bytes));
            // What still arrives is refused, and goes to no memory of the session.
            let _ = stack.set_pool(conn, PoolId(0));
            let (has_unread, (stack, memory)) = (self.shared.has_unread(conn), self.server.parts());
            if queued > bytes_left || self.owners.resets_on_close(conn) || has_unread {
                self.session.deferred.drop_of(conn, memory);
                let _ = stack.abort(self.now, conn, memory);
            } else {
                bytes_left -= queued;
                // One that is over needs no end.
                let (now, parts) = (self.now, (stack, memory));
                let _ = self.session.deferred.end(now, conn, End::Close, parts);
            }
            let hand_over = self.owners.close_conn(conn);
            self.finish_handed(conn, hand_over);
            self.drop_shared(conn);
        }
    }

    /// Whether the bytes of the session that are under way may be sent after its end: its user may
    /// have some such sessions, whose memory stays meanwhile.
    fn may_drain(&mut self) -> bool {
        let has_bytes = self.server.parts().1.of(self.id).is_some_and(|its| its.in_stack() > 0);
        let rights = self.session.limits.rights.as_ref();
        !has_bytes || rights.is_none_or(|rights| rights.begin_draining())
    }

    /// Connections with received bytes that the application has not taken out of its ring. It can
    /// write there, so what it has not is none of these. Connections for whose list there is no
    /// memory are closed as others are.
    fn unread_in_ring(&mut self) -> Vec<ConnId> {
        let mut unread = Vec::new();
        self.session.each_unread(|record| {
            if let Ok(Completion { event: Says::Received { conn, .. }, .. }) =
                Completion::parse(record)
            {
                note(&mut unread, conn_id(conn));
            }
        });
        unread
    }

    /// Resets its connections of this list, and those with received bytes that wait for a buffer.
    fn reset_unread(&mut self, mut unread: Vec<ConnId>) {
        for event in self.session.stranded.iter() {
            if let Event::Received { conn, .. } = event {
                note(&mut unread, *conn);
            }
        }
        if let Some(taken) = self.session.taken_unread.take() {
            note(&mut unread, taken.conn);
        }
        for conn in unread {
            if self.owners.has_open_conn(self.id, conn) {
                self.abort(conn);
            }
        }
    }

    /// Resets all connections that still have something to send.
    fn abort_all(&mut self) {
        let (stack, memory) = self.server.parts();
        let Self { owners, session, id, .. } = self;
        stack.drop_datagrams(|chunk| session_of(chunk.buf) == *id, memory);
        owners.each_closed(*id, |conn| {
            session.deferred.drop_of(conn, memory);
            // One that is over needs no reset.
            let _ = stack.abort(self.now, conn, memory);
        });
    }

    /// The table forgets the session's connections.
    fn forget_conns(&mut self) {
        while let Some(conn) = self.owners.first_conn(self.id, true) {
            // No hand-over counts what the session has closed.
            let _ = self.owners.remove_conn(conn);
        }
    }
}
