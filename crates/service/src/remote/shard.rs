//! A shard: one server that many sessions share.
//!
//! ```text
//!   poll(now):  operations of the active sessions, a share of each
//!               -> frames and timers (`Server::poll`)
//!               -> events, each to the session that owns its connection
//!   after it:   next_signal(): sessions whose applications are to be woken
//!               next_end(): sessions that are over
//! ```
//!
//! What a shard does is a function of the records in its rings, the frames of its link, and `now`:
//! it makes no system call of its own. Threads, doorbells and sockets are around it (`server.rs`).
//! The placement `core` is a shard of one session.
//!
//! Read first: `shard_session.rs`, `owners.rs`; the decision on many sessions of a shard in
//! `docs/decisions`.
//!
//! Invariants
//! - A poll takes at most [`OPS_PER_POLL`] operations of all sessions together, or
//!   [`OPS_SHARE_MIN`] of each; and it answers one call of each.
//! - No session's ring is read unless the session is active ([`SessionShard::activate`]).
//! - What one session writes ends at worst that session ([`SessionFault`]).

mod calls;
mod cm_server;
mod cpu_account;
mod deferred;
mod delivered_bytes;
mod deliveries;
mod destination_ports;
mod events;
mod hand_overs;
mod handed_conn;
mod held_listeners;
mod moves;
mod moving_conn;
mod observe;
mod ops;
mod owners;
mod ownership;
mod quota_grant;
mod session_end;
mod session_limits;
mod sessions;
mod shard_session;
mod share;
mod share_endpoints;
mod share_listeners;
mod shared_conns;
mod shared_endpoints;
mod shared_handshakes;
mod shared_listener;
mod stranded_events;
mod take_over;
mod token_changes;
mod user_groups;

use std::collections::VecDeque;
use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_stack::{Instant, PoolId};

use super::SharedMemory;
use super::session_memory::SessionMemory;
use crate::hand_over::HandOverSettings;
use crate::limits::{OPS_PER_POLL, OPS_SHARE_MIN, RECOUNT_MAX, ROOM_DOUBLINGS_MAX, ROOM_WAIT};
use crate::server::Server;
use crate::server_mail::{MailCounters, ServerMail};
use crate::server_wiring::ServerWiring;
use cpu_account::CpuAccount;
use hand_overs::HandOvers;
use owners::ObjectOwners;
use sessions::Sessions;
use shard_session::ShardSession;
use shared_conns::SharedConns;
use user_groups::UserGroups;

pub(super) use cm_server::ManagerServer;
pub use hand_overs::HandOverCounters;
pub use session_limits::{SessionCounters, SessionFault, SessionLimits};
pub use sessions::SessionId;
pub(super) use shard_session::ShardEnds;

/// Makes the seed of a shard's picks from its secret.
const PICK_SEED: u64 = 0x5069_6b61_3230_3132;

/// A session is over: its rings are not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionEnd {
    /// Which.
    pub session: SessionId,
    /// What no correct application does; `None`: its holder ended it.
    pub fault: Option<SessionFault>,
}

/// The other servers of a daemon, and the way to them.
pub(crate) struct ShardPeers {
    pub(crate) wiring: ServerWiring,
    pub(crate) mail: Option<ServerMail>,
}

impl Default for ShardPeers {
    fn default() -> Self {
        Self { wiring: ServerWiring::single(), mail: None }
    }
}

/// A server and its sessions.
pub(super) struct SessionShard {
    pub(super) server: Server<SharedMemory>,
    sessions: Sessions,
    owners: ObjectOwners,
    hand_overs: HandOvers,
    groups: UserGroups,
    shared: SharedConns,
    /// To the other servers, where there are some.
    mail: Option<ServerMail>,
    /// Sessions whose events wait for room, each once.
    parked: Vec<PoolId>,
    /// Sessions whose applications are to be woken.
    signals: Vec<PoolId>,
    ends: VecDeque<SessionEnd>,
    account: CpuAccount,
    /// Sleeps in which no parked event could be put.
    vain_sleeps: u32,
    /// Operations wait because the events of their session have no room.
    has_blocked_ops: bool,
    /// The place of the active session that comes first at the next poll.
    first: usize,
    /// A session has another weight than the usual one.
    has_weights: bool,
}

impl SessionShard {
    /// A shard without sessions.
    pub(super) fn with_peers(
        server: Server<SharedMemory>,
        settings: HandOverSettings,
        peers: ShardPeers,
    ) -> Self {
        let ShardPeers { wiring, mail } = peers;
        let config = server.stack().config();
        let owners = ObjectOwners::new(config.connections);
        let seed = config.secret.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        // Picks must not be known from other values that follow from the secret.
        let hand_overs = HandOvers::new(settings, wiring, seed ^ PICK_SEED);
        Self {
            server,
            sessions: Sessions::new(),
            owners,
            hand_overs,
            groups: UserGroups::default(),
            shared: SharedConns::default(),
            mail,
            parked: Vec::new(),
            signals: Vec::new(),
            ends: VecDeque::new(),
            account: CpuAccount::default(),
            vain_sleeps: 0,
            has_blocked_ops: false,
            first: 0,
            has_weights: false,
        }
    }

    /// Adds a session, which is active. `None`: the shard has as many as it can.
    pub(super) fn attach(
        &mut self,
        ends: ShardEnds,
        memory: SessionMemory,
        limits: SessionLimits,
    ) -> Option<SessionId> {
        let rights = (limits.rights.clone(), limits.shard);
        let weight = limits.weight;
        let member = limits.clone();
        if !self.reserve_session() {
            return None;
        }
        let id = self.sessions.insert(ShardSession::new(ends, limits))?;
        self.has_weights |= weight != 1;
        self.owners.add_session(PoolId(id.number), rights);
        self.hand_overs.add_session(PoolId(id.number), &member);
        let (_, memories) = self.server.parts();
        memories.insert(PoolId(id.number), memory);
        Some(id)
    }

    /// Makes room for one more session in all lists that have an entry for each: while sessions
    /// run, these need no memory. Returns whether there is memory for it.
    fn reserve_session(&mut self) -> bool {
        let Self { server, sessions, owners, parked, signals, ends, .. } = self;
        let most = sessions.slot_count() + 1;
        let (_, memories) = server.parts();
        let has_room =
            |list: &mut Vec<PoolId>| list.try_reserve(most - list.len().min(most)).is_ok();
        [parked, signals].into_iter().all(has_room)
            && ends.try_reserve(most - ends.len().min(most)).is_ok()
            && sessions.reserve_one()
            && owners.reserve_sessions(most)
            && memories.reserve_sessions(most)
    }

    /// One poll. Returns whether there was work.
    ///
    /// # Errors
    /// What the link says; the sessions stay as they are.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant) -> Result<bool, LinkError> {
        let has_mail = self.mail.is_some() && self.take_mail(now) > 0;
        let ops = self.take_ops(now);
        let poll = self.server.poll(now)?;
        let has_taken_back = self.hand_overs.on_time(now);
        let published = self.enqueue_events(now);
        if !self.sessions.draining.is_empty() {
            self.finish_draining(now);
        }
        if self.mail.is_some() {
            self.send_mail(now);
        }
        let has_records = ops > 0 || published > 0;
        self.account.idle_polls += u64::from(!has_records);
        Ok(has_records || poll.worked() || has_taken_back || has_mail)
    }

    /// Charges the thread's CPU time to the sessions, if the last time is long ago, and shows users
    /// what their listeners have.
    pub(super) fn charge_if_due(&mut self, now: Instant, busy: impl FnOnce() -> Option<Duration>) {
        if self.account.is_due(now)
            && let Some(busy) = busy()
        {
            let units: Vec<u64> = self.sessions.all_mut().map(|it| it.take_uncharged()).collect();
            let mut sessions = self.sessions.all_mut();
            let mut next = 0;
            self.account.charge(now, busy, units.iter().copied(), |place, nanos| {
                if let Some(session) = sessions.nth(place - next) {
                    session.counters.cpu_ns += nanos;
                }
                next = place + 1;
            });
            self.groups.publish(self.server.parts().0);
        }
    }

    /// Does operations of all active sessions, a share of each. Returns how many.
    fn take_ops(&mut self, now: Instant) -> u32 {
        let count = self.sessions.active.len();
        if count == 0 {
            return 0;
        }
        let weights = if self.has_weights { self.active_weight() } else { count as u32 };
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        let (mut done, mut has_ended) = (0, false);
        for step in 0..count {
            let place = self.first + step;
            let place = if place < count { place } else { place - count };
            let id = self.sessions.active[place];
            let weight = if self.has_weights { self.weight_of(id) } else { 1 };
            let share = share_of_poll(weight, weights);
            match self.take_ops_of(now, id, share) {
                Ok(taken) => done += taken,
                Err(fault) => {
                    has_ended = true;
                    self.end(now, id, Some(fault));
                }
            }
        }
        if has_ended {
            self.forget_inactive();
        }
        done
    }

    fn weight_of(&self, id: PoolId) -> u32 {
        self.sessions.get(id).map_or(1, |session| session.limits.weight.max(1).into())
    }

    /// The sum of the weights of all active sessions.
    fn active_weight(&self) -> u32 {
        self.sessions.active.iter().map(|id| self.weight_of(*id)).sum()
    }

    fn take_ops_of(&mut self, now: Instant, id: PoolId, share: u32) -> Result<u32, SessionFault> {
        let Some(session) = self.sessions.running(id) else { return Ok(0) };
        if session.has_parked() {
            return Ok(0);
        }
        let mut done = 0;
        if session.postponed.is_none() {
            // Each may have an answer, for which there has to be room.
            let share = share.min(session.ends.events.capacity() / 2);
            let room = session.ends.events.reserve(share).map_err(|_| SessionFault::Ring)?;
            done = self.work(now, id, |work| work.take_ops(share.min(room))).unwrap_or(Ok(0))?;
        }
        let call = self.sessions.running(id).and_then(|session| session.postponed.take());
        if let Some(call) = call {
            self.enqueue_events(now);
            self.answer(now, id, call)?;
            done += 1;
        }
        Ok(done)
    }

    /// Answers a call; later, if events before the answer wait for room.
    fn answer(
        &mut self,
        now: Instant,
        id: PoolId,
        call: ops::AskedCall,
    ) -> Result<(), SessionFault> {
        match self.sessions.running(id) {
            Some(session) if session.has_parked() => {
                session.postponed = Some(call);
                Ok(())
            }
            _ => self.work(now, id, |work| work.answer_call(call)).unwrap_or(Ok(())),
        }
    }

    /// A session whose application is to be woken, after its records were made visible.
    #[inline]
    pub(super) fn next_signal(&mut self) -> Option<PoolId> {
        while let Some(id) = self.signals.pop() {
            if self.sessions.running(id).is_some_and(ShardSession::commit) {
                return Some(id);
            }
        }
        None
    }

    /// A session that is over.
    pub(super) fn next_end(&mut self) -> Option<SessionEnd> {
        self.ends.pop_front()
    }

    /// Forgets connections that are over, of all sessions, grants credit that was withheld, and
    /// gives back what is drawn from quotas and not in use: the sessions' users may have room again
    /// by what sessions of other shards have ended.
    pub(super) fn recount(&mut self, now: Instant) {
        let all: Vec<_> = self.sessions.counters().map(|(id, _)| PoolId(id.number)).collect();
        let share = RECOUNT_MAX / all.len().max(1);
        for id in all {
            self.work(now, id, |work| work.recount(share));
        }
        self.groups.publish(self.server.parts().0);
    }

    /// The sessions whose rings are read at each poll.
    pub(super) fn active(&self) -> &[PoolId] {
        &self.sessions.active
    }

    /// Reads a session's ring at each poll from now on.
    pub(super) fn activate(&mut self, id: PoolId) {
        if let Some(session) = self.sessions.running(id)
            && !std::mem::replace(&mut session.is_active, true)
        {
            self.sessions.active.push(id);
        }
    }

    /// Reads a session's ring no more, until it is activated. Its doorbell is armed.
    pub(super) fn rest(&mut self, id: PoolId) {
        if let Some(session) = self.sessions.running(id) {
            session.is_active = false;
            if let Some(memory) = self.server.parts().1.of(id) {
                session.deferred.return_all_unused(memory.in_stack());
            }
        }
        self.sessions.active.retain(|other| *other != id);
    }

    /// Whether a session has submitted nothing since it was asked last.
    pub(super) fn is_quiet(&mut self, id: PoolId) -> bool {
        self.sessions.running(id).is_some_and(ShardSession::is_quiet)
    }

    /// Whether a session has operations that can be taken. A broken ring counts: its next poll ends
    /// the session.
    pub(super) fn has_ops(&mut self, id: PoolId) -> bool {
        let Some(session) = self.sessions.running(id) else { return false };
        session.postponed.is_some() || session.ends.ops.peek(1) != Ok(0)
    }

    /// Whether the next poll takes operations of an active session. Those of a session whose events
    /// have no room are not taken: the shard may sleep meanwhile, for a short time
    /// ([`SessionShard::patience`]).
    pub(super) fn has_ops_to_take(&mut self) -> bool {
        self.has_blocked_ops = false;
        (0..self.sessions.active.len()).any(|place| {
            let id = self.sessions.active[place];
            let is_blocked = self.sessions.running(id).is_some_and(ShardSession::is_blocked);
            let has_ops = self.has_ops(id);
            self.has_blocked_ops |= is_blocked && has_ops;
            has_ops && !is_blocked
        })
    }

    /// How long the shard may sleep at `now`: for its timers' sake, and because no application
    /// rings when it has read events, so that there is room for those that wait.
    pub(super) fn patience(&mut self, now: Instant) -> Option<Duration> {
        let drained = self.drained_at().map(|at| at.since(now));
        let is_waiting = self.has_waiting();
        let doubled = self.vain_sleeps.min(ROOM_DOUBLINGS_MAX);
        self.vain_sleeps = if is_waiting { doubled + 1 } else { 0 };
        let room = is_waiting.then(|| ROOM_WAIT * (1 << doubled));
        let claim = self.hand_overs.patience(now);
        self.server.patience(now).into_iter().chain(drained).chain(room).chain(claim).min()
    }

    /// Whether records wait for room in a ring.
    fn has_waiting(&mut self) -> bool {
        self.has_blocked_ops
            || !self.parked.is_empty()
            || !self.shared.asked.is_empty()
            || self.shared.has_turns()
            || !self.server.parts().1.returning().is_empty()
    }

    /// What is to be told of the shard.
    pub(super) fn report(&mut self) -> ShardReport {
        ShardReport {
            sessions: self.sessions.counters().collect(),
            draining: self.sessions.draining.len(),
            active: self.sessions.active.len(),
            connections: self.owners.conn_count(),
            private_used: self.server.parts().1.private_used(),
            own_cpu_ns: self.account.own_ns,
            hand_over: self.hand_overs.counters(),
            mail: self.mail.as_ref().map(ServerMail::counters).unwrap_or_default(),
        }
    }
}

/// Operations of a poll for a session, where those of all active sessions have a weight together.
const fn share_of_poll(weight: u32, weights: u32) -> u32 {
    let weights = if weights > 0 { weights } else { 1 };
    let share = (OPS_PER_POLL as u64 * weight as u64 / weights as u64) as u32;
    if share > OPS_SHARE_MIN { share } else { OPS_SHARE_MIN }
}

/// What a shard tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardReport {
    /// Its sessions, and what was counted of each; also those that have ended and still have
    /// bytes to send.
    pub sessions: Vec<(SessionId, SessionCounters)>,
    /// How many of them have ended.
    pub draining: usize,
    /// How many have their rings read at each poll.
    pub active: usize,
    /// Connections of all sessions, those included that applications have closed and that were not
    /// seen to be over.
    pub connections: u32,
    /// Buffers of the shard's own that are in use.
    pub private_used: u32,
    /// CPU time of the shard that is charged to no session, in nanoseconds.
    pub own_cpu_ns: u64,
    /// Hand-over of new connections.
    pub hand_over: HandOverCounters,
    /// Counters of messages between servers.
    pub mail: MailCounters,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_is_divided_by_weight_and_bounded() {
        assert_eq!(share_of_poll(1, 1), OPS_PER_POLL);
        assert_eq!(share_of_poll(1, 4), OPS_PER_POLL / 4);
        assert_eq!(share_of_poll(3, 4), OPS_PER_POLL / 4 * 3);
        assert_eq!(share_of_poll(1, 100_000), OPS_SHARE_MIN);
        let most = u32::from(u16::MAX);
        assert_eq!(share_of_poll(most, most), OPS_PER_POLL);
        assert_eq!(share_of_poll(most, 2_000 * most), OPS_SHARE_MIN);
        assert_eq!(share_of_poll(1, 0), OPS_PER_POLL);
    }
}
