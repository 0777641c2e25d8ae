//! The connection manager of a shard: hand-over of new connections among the sessions that listen
//! at one address.
//!
//! Read first: `hand_over.rs` of this crate for the two machines of a listener; `balancer.rs`;
//! `deliveries.rs` for what happens to their outputs.
//!
//! A listener of one session needs none of this: its connections go to that session at once
//! (`events.rs`). The hand-over begins when a second session listens at the address, and lasts
//! until the last one has left. Both machines of a listener are inlined here, so messages between
//! them are calls. A shard has one such manager, so that several can exchange offers.
//!
//! Invariants
//! - An acceptor's credit in the balancer is what its session wants (`wanted`), less the offers
//!   that are out (`offered`), while it is enlisted.
//! - The stack reports no more connections of a listener than its acceptors have credit for: others
//!   stay in the stack's backlog. Only connections that were taken back, and those for which no
//!   acceptor with credit may be picked, wait here.
//! - Nothing here names a session's connection before its claim: bytes lie in pool 0 until then.

use std::collections::VecDeque;
use std::time::Duration;

use megapipe_stack::{ConnId, Instant, ListenerId, OperationError, PoolId, Stack};

use super::owners::HandOverNumber;
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::balancer::{PickReason, RandomSequence};
use crate::hand_over::{
    AcceptQueue, AcceptorReport, Assignment, ClaimOutcome, ConnectionName, HandOverSettings,
    ListenerSettings, ManagerOutput, OfferCounters, OfferTable, QueueCounters, ResetOutcome,
    TransportReport,
};
use crate::limits::{ACCEPTORS_OF_SESSION_MAX, PICKS_REMEMBERED};
use crate::observe::{ServiceAcceptor, ServiceHandOver, ServicePick};
use megapipe_shm::record::Id;

/// The manager of this shard among those of the layout.
const OWN: ManagerId = ManagerId(0);
/// Most shared listeners of a shard: a connection's owner names its hand-over by one byte.
const HAND_OVERS_MAX: usize = u8::MAX as usize;
/// Bits of an acceptor's name in a record that select it among those of its listener.
const ACCEPTOR_BITS: u32 = 16;

/// What is to be done at a session, or with a connection, as the machines decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Offer a connection to an acceptor of a session.
    Offer { session: PoolId, number: AcceptorId, conn: ConnId, acceptor: Id },
    /// Give a connection to the only acceptor.
    Assign { session: PoolId, to: HandedConn },
    /// An offer is over: the peer has reset the connection.
    Withdraw { session: PoolId, conn: ConnId },
    /// The peer's urgent pointer moved before the claim.
    Urgent { session: PoolId, conn: ConnId, bytes: u32 },
    /// There is no room for a connection that waits: it is reset.
    Reset { conn: ConnId },
}

/// A connection that goes to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HandedConn {
    pub(super) hand_over: HandOverNumber,
    pub(super) listener: ListenerId,
    pub(super) conn: ConnId,
    /// The acceptor's number in the session.
    pub(super) number: AcceptorId,
    /// Whether the first byte that is sent on it is to be reported.
    pub(super) awaits_answer: bool,
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimAnswer {
    /// The connection is the session's.
    Confirmed(HandedConn),
    /// It is not.
    Refused,
    /// It was before.
    Repeated,
}

/// What the hand-overs of a shard count, of all listeners together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandOverCounters {
    /// Offers, claims and take-backs.
    pub offers: OfferCounters,
    /// Assignments, and connections that waited.
    pub queue: QueueCounters,
    /// Claims in the name of another session's acceptor, or of none.
    pub foreign_claims: u64,
    /// Connections that went to the only session of a listener, without an offer.
    pub direct: u64,
}

/// An acceptor of a session.
#[derive(Debug, Clone, Copy)]
struct SessionAcceptor {
    session: PoolId,
    /// Its number in the session.
    number: AcceptorId,
    /// Connections that it would take, those that were offered included.
    wanted: u32,
    /// Offers that are out.
    offered: u32,
}

/// A listener of several sessions.
#[derive(Debug)]
struct SharedListener {
    listener: ListenerId,
    table: OfferTable,
    queue: AcceptQueue,
    /// By the machines' number.
    acceptors: Vec<Option<SessionAcceptor>>,
    /// Credit that the stack has.
    granted: u32,
    /// Urgent pointers of unclaimed connections.
    urgent: Vec<(ConnId, u32)>,
    /// The last picks, oldest first.
    picks: VecDeque<RememberedPick>,
}

/// A decision of the balancer.
#[derive(Debug, Clone, Copy)]
struct RememberedPick {
    session: PoolId,
    at: Instant,
    reason: PickReason,
    service_time_ns: Option<u64>,
    is_final: bool,
}

/// The hand-overs of a shard.
#[derive(Debug)]
pub(super) struct HandOvers {
    settings: HandOverSettings,
    random: RandomSequence,
    /// By their number, less one.
    listeners: Vec<Option<Box<SharedListener>>>,
    /// The number of a listener's hand-over, by the listener's index.
    numbers: Vec<Option<HandOverNumber>>,
    deliveries: VecDeque<Delivery>,
    /// Hand-overs whose credit at the stack may have changed.
    dirty: Vec<HandOverNumber>,
    outputs: Vec<ManagerOutput>,
    /// Of listeners that are gone, and what belongs to none.
    counters: HandOverCounters,
}

/// The machines' name of a connection.
const fn packed(conn: ConnId) -> u64 {
    ((conn.generation as u64) << 32) | conn.index as u64
}

/// The connection of that name.
const fn unpacked(id: u64) -> ConnId {
    ConnId { index: id as u32, generation: (id >> 32) as u32 }
}

impl HandOvers {
    pub(super) fn new(settings: HandOverSettings, seed: u64) -> Self {
        Self {
            settings,
            random: RandomSequence::new(seed),
            listeners: Vec::new(),
            numbers: Vec::new(),
            deliveries: VecDeque::new(),
            dirty: Vec::new(),
            outputs: Vec::new(),
            counters: HandOverCounters::default(),
        }
    }

    /// The hand-over of a listener that several sessions share.
    pub(super) fn number_of(&self, listener: ListenerId) -> Option<HandOverNumber> {
        let number = self.numbers.get(listener.index as usize).copied().flatten()?;
        (self.of(number)?.listener == listener).then_some(number)
    }

    fn of(&self, number: HandOverNumber) -> Option<&SharedListener> {
        self.listeners.get(usize::from(number.get()) - 1)?.as_deref()
    }

    fn of_mut(&mut self, number: HandOverNumber) -> Option<&mut SharedListener> {
        self.listeners.get_mut(usize::from(number.get()) - 1)?.as_deref_mut()
    }

    /// Whether one more listener can be shared by a hand-over.
    pub(super) fn has_room(&self) -> bool {
        self.listeners.len() < HAND_OVERS_MAX || self.listeners.iter().any(Option::is_none)
    }

    /// Begins the hand-over of a listener, whose acceptors until now are `acceptors`, with their
    /// credit at the stack. There is room.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        (listener, port): (ListenerId, u16),
        acceptors: Vec<((PoolId, AcceptorId), u32)>,
    ) {
        let free = self.listeners.iter().position(Option::is_none).unwrap_or(self.listeners.len());
        let ListenerSettings { hand_over, balancer } = self.settings.of_port(port);
        let number = u8::try_from(free + 1).ok().and_then(HandOverNumber::new);
        let table = OfferTable::new(hand_over);
        let queue = AcceptQueue::new(OWN, hand_over, balancer.clone());
        // The settings were checked when the server began.
        let (Some(number), Ok(table), Ok(queue)) = (number, table, queue) else { return };
        let granted = acceptors.iter().fold(0_u32, |sum, (_, credit)| sum.saturating_add(*credit));
        let (urgent, picks) = (Vec::new(), VecDeque::with_capacity(PICKS_REMEMBERED));
        let no_acceptors = Vec::new();
        let shared = SharedListener {
            listener,
            table,
            queue,
            acceptors: no_acceptors,
            granted,
            urgent,
            picks,
        };
        if free == self.listeners.len() {
            self.listeners.push(None);
        }
        self.listeners[free] = Some(Box::new(shared));
        let index = listener.index as usize;
        if self.numbers.len() <= index {
            self.numbers.resize(index + 1, None);
        }
        self.numbers[index] = Some(number);
        for (acceptor, credit) in acceptors {
            // There is a place for each: a listener's acceptors had one before.
            let _ = self.accept(now, number, acceptor, credit);
        }
    }

    /// ACCEPT-CONNECTION: an acceptor of a session takes `credit` more connections.
    ///
    /// # Errors
    /// [`OperationError::QueueFull`]: the session or the listener has as many acceptors as it may.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        hand_over: HandOverNumber,
        acceptor: (PoolId, AcceptorId),
        credit: u32,
    ) -> Result<(), OperationError> {
        self.with(hand_over, |shared, machines| {
            let index = shared.acceptor_of(acceptor).ok_or(OperationError::QueueFull)?;
            shared.add_wanted(index, credit);
            machines.enlist(now, shared, index, credit).inspect_err(|_| {
                shared.acceptors[index] = None;
            })
        })
        .unwrap_or(Err(OperationError::Unknown))
    }

    /// A connection was established. The stack has used up one credit for it.
    pub(super) fn on_established(
        &mut self,
        now: Instant,
        hand_over: HandOverNumber,
        conn: ConnId,
        flow_hash: u32,
    ) {
        self.with(hand_over, |shared, machines| {
            shared.granted = shared.granted.saturating_sub(1);
            let name = ConnectionName { transport: OWN.0, id: packed(conn), flow_hash };
            let report = shared.table.on_established(name);
            machines.on_transport(now, shared, report);
        });
    }

    /// CLAIM-CONNECTION, by a session.
    pub(super) fn claim(
        &mut self,
        now: Instant,
        session: PoolId,
        conn: ConnId,
        acceptor: Id,
    ) -> ClaimAnswer {
        let number = u8::try_from(acceptor.index >> ACCEPTOR_BITS).ok();
        let number = number.and_then(HandOverNumber::new);
        let index = (acceptor.index & ((1 << ACCEPTOR_BITS) - 1)) as usize;
        let claimed = number.and_then(|hand_over| {
            self.with(hand_over, |shared, machines| {
                let known = shared.acceptors.get(index).copied().flatten();
                known.filter(|known| known.session == session)?;
                Some(machines.claim(now, shared, conn, (index, acceptor.generation)))
            })
        });
        claimed.flatten().unwrap_or_else(|| {
            self.counters.foreign_claims += 1;
            ClaimAnswer::Refused
        })
    }

    /// The peer has reset a connection that no session has.
    pub(super) fn on_reset(&mut self, now: Instant, hand_over: HandOverNumber, conn: ConnId) {
        self.with(hand_over, |shared, machines| {
            shared.urgent.retain(|(urgent, _)| *urgent != conn);
            match shared.table.on_reset(now, packed(conn)) {
                Some(ResetOutcome::Waiting(report)) => machines.on_transport(now, shared, report),
                Some(ResetOutcome::Withdrawn(report)) => {
                    if let Some(known) = shared.offer_is_over(report.acceptor()) {
                        let session = known.session;
                        machines.deliveries.push_back(Delivery::Withdraw { session, conn });
                    }
                    machines.on_acceptor(now, shared, report);
                }
                Some(ResetOutcome::Claimed(report)) => machines.on_acceptor(now, shared, report),
                None => {}
            }
        });
    }

    /// The urgent pointer of a connection that no session has moved.
    pub(super) fn on_urgent(&mut self, hand_over: HandOverNumber, conn: ConnId, bytes: u32) {
        if let Some(shared) = self.of_mut(hand_over) {
            // Each unclaimed connection once: no more than there are connections.
            shared.urgent.retain(|(other, _)| *other != conn);
            shared.urgent.push((conn, bytes));
        }
    }

    /// The application has let go of a connection that it had claimed, or its end was reported.
    pub(super) fn on_closed(&mut self, now: Instant, hand_over: HandOverNumber, conn: ConnId) {
        self.with(hand_over, |shared, machines| {
            if let Some(report) = shared.table.on_closed(now, packed(conn)) {
                machines.on_acceptor(now, shared, report);
            }
        });
    }

    /// The application has sent the first bytes on a connection. Returns whether the next
    /// connection's are to be reported as well.
    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        hand_over: HandOverNumber,
        conn: ConnId,
    ) -> bool {
        let awaits_more = self.with(hand_over, |shared, machines| {
            if let Some(report) = shared.table.on_answer(now, packed(conn)) {
                machines.on_acceptor(now, shared, report);
            }
            shared.queue.measures_answers()
        });
        awaits_more.unwrap_or(false)
    }

    /// A session leaves a listener, or ends. Its unclaimed connections are offered to others.
    /// Returns the credit that its acceptors had left.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        hand_over: HandOverNumber,
        session: PoolId,
    ) -> u32 {
        let left = self.with(hand_over, |shared, machines| {
            let mut left = 0_u32;
            for index in 0..shared.acceptors.len() {
                let its = shared.acceptors[index].take_if(|known| known.session == session);
                if let Some(known) = its {
                    left = left.saturating_add(known.wanted);
                    machines.remove(now, shared, index);
                }
            }
            left
        });
        left.unwrap_or(0)
    }

    /// The last session has left a listener. Returns the connections that none has claimed.
    pub(super) fn end(&mut self, listener: ListenerId) -> Vec<ConnId> {
        let Some(number) = self.number_of(listener) else { return Vec::new() };
        self.numbers[listener.index as usize] = None;
        let Some(shared) = self.listeners[usize::from(number.get()) - 1].take() else {
            return Vec::new();
        };
        let mut shared = *shared;
        let unclaimed = shared.table.close_listener();
        self.counters.add(&shared);
        self.dirty.retain(|other| *other != number);
        unclaimed.into_iter().map(|name| unpacked(name.id)).collect()
    }

    /// Takes back offers that were not claimed in time. Returns whether there were any.
    pub(super) fn on_time(&mut self, now: Instant) -> bool {
        let mut has_worked = false;
        for place in 0..self.listeners.len() {
            let is_due = |shared: &SharedListener| {
                shared.table.next_deadline().is_some_and(|deadline| deadline <= now)
            };
            if !self.listeners[place].as_deref().is_some_and(is_due) {
                continue;
            }
            let number = u8::try_from(place + 1).ok().and_then(HandOverNumber::new);
            has_worked = true;
            number.and_then(|number| {
                self.with(number, |shared, machines| {
                    while let Some(report) = shared.table.on_time(now) {
                        if let TransportReport::TakenBack { acceptor, .. } = report {
                            shared.offer_is_over(acceptor);
                        }
                        machines.on_transport(now, shared, report);
                    }
                })
            });
        }
        has_worked
    }

    /// When [`HandOvers::on_time`] is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.listeners.iter().flatten().filter_map(|shared| shared.table.next_deadline()).min()
    }

    /// The next thing to do.
    pub(super) fn next_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// Gives the stack the credit that acceptors have. Returns whether some got more.
    pub(super) fn update_credit(&mut self, stack: &mut Stack) -> bool {
        let mut has_more = false;
        while let Some(number) = self.dirty.pop() {
            let Some(shared) = self.of_mut(number) else { continue };
            let credit = shared.queue.free_credit();
            // A listener that is gone needs no credit.
            let _ = match credit.checked_sub(shared.granted) {
                Some(0) => Ok(()),
                Some(more) => {
                    has_more = true;
                    stack.accept(shared.listener, more)
                }
                None => stack.withdraw_credit(shared.listener, shared.granted - credit),
            };
            shared.granted = credit;
        }
        has_more
    }

    /// Counts a connection that went to its listener's only session.
    pub(super) const fn count_direct(&mut self) {
        self.counters.direct += 1;
    }

    /// The hand-over of a listener and its acceptors, as they are shown to processes that ask;
    /// `key` names a session. `None`: the listener has none.
    pub(super) fn shown(
        &self,
        now: Instant,
        (listener, port): (ListenerId, u16),
        key: &dyn Fn(PoolId) -> u64,
    ) -> Option<(ServiceHandOver, Vec<ServiceAcceptor>)> {
        let shared = self.of(self.number_of(listener)?)?;
        let claim_time = self.settings.of_port(port).hand_over.claim_time;
        Some((shared.shown(now, claim_time, key), shared.shown_acceptors(key)))
    }

    /// Connections of all listeners that are not finished.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.listeners.iter().flatten().map(|shared| shared.table.len()).sum()
    }

    /// What was counted, of all listeners together.
    pub(super) fn counters(&self) -> HandOverCounters {
        let mut sum = self.counters;
        self.listeners.iter().flatten().for_each(|shared| sum.add(shared));
        sum
    }

    /// Whether the connections of a listener are selected by the hash of their flow.
    pub(super) fn needs_hash(&self, hand_over: HandOverNumber) -> bool {
        self.of(hand_over).is_some_and(|shared| shared.queue.selects_by_hash())
    }

    /// Does something with a listener and the machines around it; `None`: there is no such one.
    fn with<T>(
        &mut self,
        number: HandOverNumber,
        what: impl FnOnce(&mut SharedListener, &mut Machines<'_>) -> T,
    ) -> Option<T> {
        let Self { listeners, random, deliveries, outputs, dirty, .. } = self;
        let shared = listeners.get_mut(usize::from(number.get()) - 1)?.as_deref_mut()?;
        let mut machines = Machines { number, random, deliveries, outputs };
        let done = what(shared, &mut machines);
        if !dirty.contains(&number) {
            dirty.push(number);
        }
        Some(done)
    }
}

impl HandOverCounters {
    fn add(&mut self, shared: &SharedListener) {
        self.offers += shared.table.counters();
        self.queue += shared.queue.counters();
    }
}

impl SharedListener {
    fn shown(
        &self,
        now: Instant,
        claim_time: Duration,
        key: &dyn Fn(PoolId) -> u64,
    ) -> ServiceHandOver {
        let (queue, table) = (self.queue.counters(), self.table.counters());
        let picks = self.picks.iter().rev().map(|pick| ServicePick {
            session: key(pick.session),
            ago: now.since(pick.at),
            reason: pick.reason.into(),
            service_time: pick.service_time_ns.map(Duration::from_nanos),
            is_final: pick.is_final,
        });
        ServiceHandOver {
            scheme: self.queue.balancer().config().scheme.to_string(),
            claim_time,
            waiting: u32::try_from(self.queue.waiting().count()).unwrap_or(u32::MAX),
            assigned: queue.local,
            waits: queue.waits,
            refused: queue.refused,
            dropped: queue.dropped,
            offers: table.offers,
            final_offers: table.final_offers,
            claims: table.claims,
            late_claims: table.late_claims,
            take_backs: table.take_backs,
            orphans: table.orphans,
            withdrawals: table.withdrawals,
            picks: picks.collect(),
        }
    }

    fn shown_acceptors(&self, key: &dyn Fn(PoolId) -> u64) -> Vec<ServiceAcceptor> {
        let mut enlisted = vec![None; self.acceptors.len()];
        for (name, service_time, open) in self.queue.balancer().local_acceptors() {
            if let Some(place) = enlisted.get_mut(name.id.0 as usize) {
                *place = Some((service_time, open));
            }
        }
        let with_state = self.acceptors.iter().zip(enlisted);
        let shown = with_state.filter_map(|(known, state)| {
            let known = (*known)?;
            Some(ServiceAcceptor {
                session: key(known.session),
                credit: known.wanted.saturating_sub(known.offered),
                offered: known.offered,
                open: state.map(|(_, open)| open),
                service_time: state.and_then(|(time, _)| time).map(Duration::from_nanos),
                is_dropped: state.is_none(),
            })
        });
        shown.collect()
    }

    /// The machines' number of an acceptor, which may be new. `None`: there is no place for it.
    fn acceptor_of(&mut self, (session, number): (PoolId, AcceptorId)) -> Option<usize> {
        let is_it = |known: &SessionAcceptor| known.session == session && known.number == number;
        let place = self.acceptors.iter().position(|known| known.as_ref().is_some_and(is_it));
        if place.is_some() {
            return place;
        }
        let its = self.acceptors.iter().flatten().filter(|known| known.session == session);
        if its.count() >= ACCEPTORS_OF_SESSION_MAX {
            return None;
        }
        let free = self.acceptors.iter().position(Option::is_none);
        let index = free.unwrap_or(self.acceptors.len());
        if index >> ACCEPTOR_BITS != 0 {
            return None;
        }
        if free.is_none() {
            self.acceptors.push(None);
        }
        let (wanted, offered) = (0, 0);
        self.acceptors[index] = Some(SessionAcceptor { session, number, wanted, offered });
        Some(index)
    }

    fn add_wanted(&mut self, index: usize, credit: u32) {
        if let Some(known) = &mut self.acceptors[index] {
            known.wanted = known.wanted.saturating_add(credit);
        }
    }

    /// The urgent pointer of a connection that is claimed now, if it has moved.
    fn take_urgent(&mut self, conn: ConnId, session: PoolId) -> Option<Delivery> {
        let place = self.urgent.iter().position(|(urgent, _)| *urgent == conn)?;
        let (_, bytes) = self.urgent.swap_remove(place);
        Some(Delivery::Urgent { session, conn, bytes })
    }

    /// An offer has ended without a claim. Returns its acceptor, if that is still there.
    fn offer_is_over(&mut self, name: AcceptorName) -> Option<SessionAcceptor> {
        let known = self.acceptors.get_mut(name.id.0 as usize)?.as_mut()?;
        known.offered = known.offered.saturating_sub(1);
        Some(*known)
    }
}

/// What the machines of a listener decide with, and where their decisions go.
struct Machines<'shard> {
    number: HandOverNumber,
    random: &'shard mut RandomSequence,
    deliveries: &'shard mut VecDeque<Delivery>,
    outputs: &'shard mut Vec<ManagerOutput>,
}

impl Machines<'_> {
    fn enlist(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        index: usize,
        credit: u32,
    ) -> Result<(), OperationError> {
        let id = AcceptorId(index as u64);
        let is_enlisted = shared.queue.balancer().name_of(id).is_some();
        let credit = match shared.acceptors[index] {
            // What it had when it was dropped counts again.
            Some(known) if !is_enlisted => known.wanted.saturating_sub(known.offered),
            _ => credit,
        };
        let enlisted = shared.queue.enlist(now, id, credit, self.random.next(), self.outputs);
        self.settle(now, shared);
        enlisted.map(|_| ()).map_err(|_| OperationError::QueueFull)
    }

    fn claim(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        conn: ConnId,
        (index, enlistment): (usize, u32),
    ) -> ClaimAnswer {
        let claimant = AcceptorName { manager: OWN, id: AcceptorId(index as u64), enlistment };
        match shared.table.claim_by_id(packed(conn), claimant) {
            ClaimOutcome::Confirmed => {
                let Some(known) = &mut shared.acceptors[index] else { return ClaimAnswer::Refused };
                known.wanted = known.wanted.saturating_sub(1);
                known.offered = known.offered.saturating_sub(1);
                let (number, session) = (known.number, known.session);
                self.deliveries.extend(shared.take_urgent(conn, session));
                let (hand_over, listener) = (self.number, shared.listener);
                let awaits_answer = shared.queue.awaits_answer(claimant);
                let handed = HandedConn { hand_over, listener, conn, number, awaits_answer };
                ClaimAnswer::Confirmed(handed)
            }
            ClaimOutcome::Late => {
                // The acceptor dispatches again: it enlists again unless it still is.
                if shared.queue.balancer().name_of(claimant.id).is_none() {
                    // There was a place for it before.
                    let _ = self.enlist(now, shared, index, 0);
                }
                ClaimAnswer::Refused
            }
            ClaimOutcome::Repeated => ClaimAnswer::Repeated,
        }
    }

    /// An acceptor is gone; `acceptors` has it no more.
    fn remove(&mut self, now: Instant, shared: &mut SharedListener, index: usize) {
        let id = AcceptorId(index as u64);
        shared.queue.remove(id, self.outputs);
        for report in shared.table.on_acceptor_id_gone(OWN, id) {
            self.on_transport(now, shared, report);
        }
        self.settle(now, shared);
    }

    fn on_transport(&mut self, now: Instant, shared: &mut SharedListener, report: TransportReport) {
        shared.queue.on_transport(now, report, self.random.next(), self.outputs);
        self.settle(now, shared);
    }

    fn on_acceptor(&mut self, now: Instant, shared: &mut SharedListener, report: AcceptorReport) {
        shared.queue.on_acceptor(now, report, self.random.next(), self.outputs);
        self.settle(now, shared);
    }

    /// Carries out what the queue has decided. Messages to other managers have no receiver: this
    /// shard's is the only one.
    fn settle(&mut self, now: Instant, shared: &mut SharedListener) {
        let mut outputs = std::mem::take(self.outputs);
        for output in outputs.drain(..) {
            match output {
                ManagerOutput::Assign(assignment) => self.assign(now, shared, assignment),
                ManagerOutput::Refuse(name) => {
                    if shared.table.on_refused(name) {
                        self.deliveries.push_back(Delivery::Reset { conn: unpacked(name.id) });
                    }
                }
                ManagerOutput::Send(_) | ManagerOutput::Publish(_) => {}
            }
        }
        *self.outputs = outputs;
    }

    fn assign(&mut self, now: Instant, shared: &mut SharedListener, assignment: Assignment) {
        let Assignment { conn, acceptor, is_final, reason } = assignment;
        // A connection of the queue waits in the table: both change together here.
        if shared.table.assign(now, assignment).is_err() {
            return;
        }
        let index = acceptor.id.0 as usize;
        let Some(known) = shared.acceptors.get_mut(index).and_then(Option::as_mut) else { return };
        let SessionAcceptor { session, number, .. } = *known;
        let service_time_ns = shared.queue.balancer().measured_of(acceptor.id);
        if shared.picks.len() >= PICKS_REMEMBERED {
            shared.picks.pop_front();
        }
        shared.picks.push_back(RememberedPick {
            session,
            at: now,
            reason,
            service_time_ns,
            is_final,
        });
        let conn = unpacked(conn.id);
        if is_final {
            known.wanted = known.wanted.saturating_sub(1);
            let (hand_over, listener) = (self.number, shared.listener);
            let awaits_answer = shared.queue.awaits_answer(acceptor);
            let to = HandedConn { hand_over, listener, conn, number, awaits_answer };
            self.deliveries.push_back(Delivery::Assign { session, to });
            self.deliveries.extend(shared.take_urgent(conn, session));
        } else {
            known.offered += 1;
            let index = u32::from(self.number.get()) << ACCEPTOR_BITS | index as u32;
            let acceptor = Id { index, generation: acceptor.enlistment };
            self.deliveries.push_back(Delivery::Offer { session, number, conn, acceptor });
        }
    }
}
