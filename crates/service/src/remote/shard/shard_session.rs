//! A session at its shard: its ends of the rings, and what waits for it.
//!
//! Read first: `shard.rs`.
//!
//! Invariants
//! - Half of the ring of events is kept for answers: an event is put only while `room` is left.
//! - While events are parked or stranded, no event is put ahead of them. While events are parked,
//!   no operation is taken.
//! - `stranded` has the events of connections whose received bytes wait for a buffer of the
//!   session. An event of such a connection follows them there.
//! - What is parked or stranded is within the quota of waiting events, or within
//!   [`WAITING_ALWAYS`].

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use megapipe_shm::record::{Completion, Event as Says, Record, SessionCall};
use megapipe_shm::{BufferArea, Consumer, Producer};
use megapipe_stack::{ConnId, DatagramId, Event, Handover, Instant, ListenerId, PoolId};

use super::deferred::Deferred;
use super::moving_conn::{MovingConn, TakenUnread};
use super::quota_grant::QuotaGrant;
use super::session_limits::{SessionCounters, SessionFault, SessionLimits};
use super::stranded_events::StrandedEvents;
use crate::connection_manager::AcceptorId;
use crate::descriptors::KeptPort;
use crate::limits::{DATAGRAMS_PARKED_MAX, PARKED_MAX, WAITING_ALWAYS, WAITING_KEPT};
use crate::policy::WAITING_EVENTS;

/// A shard's ends of what it shares with a session.
pub(in crate::remote) struct ShardEnds {
    pub(in crate::remote) ops: Consumer<Record>,
    pub(in crate::remote) events: Producer<Record>,
    /// The call buffer.
    pub(in crate::remote) calls: BufferArea,
}

/// Credit of an acceptor that a limit withholds.
#[derive(Debug, Clone, Copy)]
pub(super) struct WithheldCredit {
    pub(super) listener: ListenerId,
    pub(super) acceptor: AcceptorId,
    pub(super) count: u32,
}

/// What a reserved port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReservingObject {
    Listener(ListenerId),
    Endpoint(DatagramId),
}

/// Whether a session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    Running,
    /// It has ended. Its connections send what was handed over, until then.
    Draining {
        until: Instant,
    },
}

/// A session.
pub(super) struct ShardSession {
    pub(super) ends: ShardEnds,
    pub(super) state: SessionState,
    /// Events that can be put.
    room: u32,
    /// Records that the application was not woken for yet.
    unsignalled: u32,
    /// Sends that the stack had no room for.
    pub(super) deferred: Deferred,
    /// Events that there was no room for.
    parked: VecDeque<Record>,
    parked_datagrams: usize,
    /// Events that wait for a receive buffer.
    pub(super) stranded: StrandedEvents,
    /// Events that may wait by the quotas.
    waiting: QuotaGrant,
    /// A call that is answered when no event is parked.
    pub(super) postponed: Option<(u64, SessionCall)>,
    /// A connection that was taken out, on its way to another listener.
    pub(super) taken_out: Option<(ConnId, Handover)>,
    /// A connection that has left the stack, on its way to the kernel.
    pub(super) moving: Option<MovingConn>,
    /// What the application has not taken of a connection that came from the kernel.
    pub(super) taken_unread: Option<TakenUnread>,
    /// The last cookie that a descriptor was given with.
    pub(super) last_given: u64,
    /// Bytes that the application has put before those of such a connection.
    pub(super) prepended_bytes: usize,
    pub(super) limits: SessionLimits,
    /// Connections that go on with other owners, and that it may have bytes in.
    pub(super) left_conns: HashSet<ConnId>,
    /// Private buffers with bytes that it has given back count for this account.
    pub(super) given_account: Option<PoolId>,
    /// Connections that its acceptors take in advance.
    pub(super) credit: u32,
    pub(super) withheld: VecDeque<WithheldCredit>,
    /// It ends when the operations that it has submitted are done.
    pub(super) is_leaving: bool,
    /// A hand-over is to learn of the first bytes on one of its connections.
    pub(super) awaits_answer: bool,
    /// Sockets that reserve the ports of its listeners and endpoints at the host.
    pub(super) reservations: Vec<(ReservingObject, Arc<KeptPort>)>,
    pub(super) listeners: u32,
    pub(super) endpoints: u32,
    /// Datagrams that it was given and has not given back.
    pub(super) datagrams_given: u64,
    pub(super) counters: SessionCounters,
    /// It is among the active ones.
    pub(super) is_active: bool,
    /// Operations that it had submitted when that was asked last.
    ops_then: u64,
    /// Operations and events for which CPU time was charged.
    charged: u64,
}

impl ShardSession {
    pub(super) fn new(ends: ShardEnds, limits: SessionLimits) -> Self {
        Self {
            ends,
            state: SessionState::Running,
            room: 0,
            unsignalled: 0,
            deferred: Deferred::new(limits.rights.clone()),
            parked: VecDeque::new(),
            parked_datagrams: 0,
            stranded: StrandedEvents::default(),
            waiting: QuotaGrant::new(WAITING_EVENTS, limits.rights.clone()),
            postponed: None,
            taken_out: None,
            moving: None,
            taken_unread: None,
            last_given: 0,
            prepended_bytes: 0,
            limits,
            left_conns: HashSet::new(),
            given_account: None,
            credit: 0,
            withheld: VecDeque::new(),
            is_leaving: false,
            awaits_answer: false,
            reservations: Vec::new(),
            listeners: 0,
            endpoints: 0,
            datagrams_given: 0,
            counters: SessionCounters::default(),
            is_active: true,
            ops_then: 0,
            charged: 0,
        }
    }

    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.state == SessionState::Running
    }

    /// Whether it has submitted nothing since the last call.
    pub(super) const fn is_quiet(&mut self) -> bool {
        let before = std::mem::replace(&mut self.ops_then, self.counters.ops);
        before == self.counters.ops
    }

    /// Operations and events since the last call.
    pub(super) const fn take_uncharged(&mut self) -> u64 {
        let all = self.counters.ops + self.counters.events;
        all - std::mem::replace(&mut self.charged, all)
    }

    /// Whether events are parked.
    #[inline]
    pub(super) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Whether its events have no room, so that no operation is taken. A broken ring has room: its
    /// next poll ends the session.
    pub(super) fn is_blocked(&mut self) -> bool {
        self.has_parked() || self.ends.events.reserve(1) == Ok(0)
    }

    /// Puts an event into the ring if there is room for events.
    #[inline]
    pub(super) fn put_event(&mut self, record: &Record) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.put(record);
        }
        has_room
    }

    /// Whether there is room for an event.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        self.room > 0 || self.find_room()
    }

    #[cold]
    fn find_room(&mut self) -> bool {
        let half = self.ends.events.capacity() / 2;
        // A ring that the application has broken takes nothing: the next poll ends the session.
        let free = self.ends.events.reserve(half + 1).unwrap_or(0);
        let is_waiting = self.has_parked() || !self.stranded.is_empty();
        self.room = if is_waiting { 0 } else { free.saturating_sub(half) };
        self.room > 0
    }

    /// Puts a record for which there is room: seen by `put_event`, or before its operation was
    /// taken.
    #[inline]
    pub(super) fn put(&mut self, record: &Record) {
        let is_put = self.ends.events.put(record).is_ok();
        self.unsignalled += u32::from(is_put);
        self.room = self.room.saturating_sub(1);
    }

    /// Puts one completion, as `put`.
    pub(super) fn put_completion(&mut self, cookie: u64, event: Says) {
        self.put(&Completion { cookie, event }.record());
    }

    /// Keeps an event until there is room.
    ///
    /// # Errors
    /// [`SessionFault::Unread`]: so many cannot wait at a correct application.
    #[cold]
    pub(super) fn park(&mut self, record: Record) -> Result<(), SessionFault> {
        self.room = 0;
        self.reserve_waiting()?;
        self.parked.push_back(record);
        self.note_waiting();
        Ok(())
    }

    /// Keeps an event until the session has a receive buffer for its connection's bytes.
    ///
    /// # Errors
    /// As [`ShardSession::park`].
    #[cold]
    pub(super) fn strand(&mut self, event: Event) -> Result<(), SessionFault> {
        self.room = 0;
        if self.stranded.drops(event) {
            return Ok(());
        }
        self.reserve_waiting()?;
        self.stranded.push(event);
        self.note_waiting();
        Ok(())
    }

    /// How many events are parked or stranded.
    pub(super) fn waiting_len(&self) -> usize {
        self.parked.len() + self.stranded.len()
    }

    /// Draws one more waiting event from the quotas.
    fn reserve_waiting(&mut self) -> Result<(), SessionFault> {
        let waiting = self.waiting_len();
        let beyond = u32::try_from((waiting + 1).saturating_sub(WAITING_ALWAYS));
        let may_wait =
            waiting < PARKED_MAX && beyond.is_ok_and(|beyond| self.waiting.has_room(beyond));
        if may_wait { Ok(()) } else { Err(SessionFault::Unread) }
    }

    fn note_waiting(&mut self) {
        let waiting = u32::try_from(self.waiting_len()).unwrap_or(u32::MAX);
        self.counters.parked_max = self.counters.parked_max.max(waiting);
    }

    /// Gives back to the quotas what they counted of events that wait no more.
    pub(super) fn return_waiting(&mut self) {
        let beyond = self.waiting_len().saturating_sub(WAITING_ALWAYS);
        let beyond = u32::try_from(beyond).unwrap_or(u32::MAX);
        match beyond {
            0 => self.waiting.return_all_unused(0),
            _ => self.waiting.return_unused(beyond),
        }
    }

    /// As `park`, of an event that nothing but the network bounds. Returns `false` if it was
    /// dropped.
    #[cold]
    pub(super) fn park_datagram(&mut self, record: Record) -> bool {
        let is_full = self.parked_datagrams >= DATAGRAMS_PARKED_MAX;
        if is_full || self.park(record).is_err() {
            self.counters.datagrams_dropped += 1;
            return false;
        }
        self.parked_datagrams += 1;
        true
    }

    /// Forgets parked events: the session has ended, and nothing reads them.
    pub(super) fn forget_parked(&mut self) {
        self.parked = VecDeque::new();
        self.return_waiting();
    }

    /// Puts parked events into the ring as far as there is room now. Returns how many.
    ///
    /// # Errors
    /// [`SessionFault::Ring`].
    #[cold]
    pub(super) fn unpark(&mut self) -> Result<u32, SessionFault> {
        let capacity = self.ends.events.capacity();
        let half = capacity / 2;
        let free = self.ends.events.reserve(capacity).map_err(|_| SessionFault::Ring)?;
        let mut count = 0;
        while count < free.saturating_sub(half)
            && let Some(record) = self.parked.pop_front()
        {
            self.put(&record);
            count += 1;
        }
        if self.parked.is_empty() {
            self.parked_datagrams = 0;
            if self.parked.capacity() > WAITING_KEPT {
                self.parked = VecDeque::new();
            }
        }
        Ok(count)
    }

    /// Calls `each` with the records that the application has not read.
    pub(super) fn each_unread(&mut self, mut each: impl FnMut(&Record)) {
        // A ring that the application has broken says nothing.
        let _ = self.ends.events.each_unreleased(&mut each);
        self.parked.iter().for_each(each);
    }

    /// Publishes what was put. Returns whether the application is to be woken.
    #[inline]
    pub(super) fn commit(&mut self) -> bool {
        self.counters.events += u64::from(self.unsignalled);
        self.ends.events.commit();
        std::mem::take(&mut self.unsignalled) > 0
    }

    /// Whether something was put that was not committed.
    #[inline]
    pub(super) const fn is_unsignalled(&self) -> bool {
        self.unsignalled > 0
    }
}
