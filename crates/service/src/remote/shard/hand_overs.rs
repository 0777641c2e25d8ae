//! Hand-over of new connections among the sessions that listen at one address: the part of a shard.
//!
//! Read first: `hand_over.rs` of this crate for the machines of a listener; `shared_listener.rs`
//! for how their decisions are carried out; `deliveries.rs` for what follows at sessions.
//!
//! A listener of one session needs none of this: its connections go to that session at once
//! (`events.rs`). The hand-over begins when a second session listens at the address, or another
//! server sends a message about it, and lasts until the last session has left. A shard is a
//! transport server, and a connection manager too unless the layout has fewer of them. Both
//! machines of a listener are then inlined here, so messages between them are calls. Messages to
//! other servers wait in `mail` until the thread of the shard sends them.
//!
//! Invariants
//! - What an acceptor's lane wants (`wanted`), less the offers that are out over it (`offered`), is
//!   credit that the acceptor's home has.
//! - The stack reports no more connections of a listener than its acceptors have credit for: others
//!   stay in the stack's backlog. Only connections that were taken back, and those for which no
//!   acceptor with credit may be picked, wait for a connection manager.
//! - Nothing here names a session's connection before its claim: bytes lie in pool 0 until then.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use megapipe_shm::record::{Id, Message, MessageSubject};
use megapipe_stack::{ConnId, Instant, ListenerId, OperationError, PoolId, Stack};

use super::handed_conn::{ACCEPTOR_BITS, ClaimAnswer, Delivery, packed, unpacked};
use super::owners::HandOverNumber;
use super::session_limits::SessionLimits;
use super::shared_listener::{ListenerMember, Machines, SharedListener};
use crate::acceptor::{AcceptorId, ManagerId};
use crate::balancer::RandomSequence;
use crate::hand_over::{
    ConnectionName, HandOverSettings, ManagerOutput, OfferCounters, QueueCounters, ResetOutcome,
    TransportReport,
};
use crate::limits::{MANAGED_LISTENERS_PER_PAGE, OFFER_INTERVAL_DEFAULT, WAITING_LOOK_PERIOD};
use crate::observe::{AnswerBody, AnswerPage, ServiceAcceptor, ServiceHandOver, ServiceManager};
use crate::server_wiring::ServerWiring;

/// Most shared listeners of a shard: a connection's owner names its hand-over by one byte.
const HAND_OVERS_MAX: usize = u8::MAX as usize;
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

/// The hand-overs of a shard.
#[derive(Debug)]
pub(super) struct HandOvers {
    settings: HandOverSettings,
    wiring: ServerWiring,
    random: RandomSequence,
    /// By their number: sessions that may listen.
    sessions: Vec<Option<ListenerMember>>,
    /// By their number, less one.
    listeners: Vec<Option<Box<SharedListener>>>,
    /// The number of a listener's hand-over, by the listener's index.
    numbers: Vec<Option<HandOverNumber>>,
    deliveries: VecDeque<Delivery>,
    /// Hand-overs whose credit at the stack may have changed.
    dirty: Vec<HandOverNumber>,
    outputs: Vec<ManagerOutput>,
    /// Messages to other servers.
    mail: VecDeque<(u16, Message)>,
    /// Hand-overs that have begun: numbers of acceptors are not used again.
    begun: u64,
    /// When offers to other managers are looked at next.
    offers_at: Instant,
    /// Of listeners that are gone, and what belongs to none.
    counters: HandOverCounters,
}

impl HandOvers {
    pub(super) fn new(settings: HandOverSettings, wiring: ServerWiring, seed: u64) -> Self {
        Self {
            settings,
            wiring,
            random: RandomSequence::new(seed),
            sessions: Vec::new(),
            listeners: Vec::new(),
            numbers: Vec::new(),
            deliveries: VecDeque::new(),
            dirty: Vec::new(),
            outputs: Vec::new(),
            mail: VecDeque::new(),
            begun: 0,
            offers_at: Instant::from_nanos(0),
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
        (listener, address): (ListenerId, SocketAddr),
        sessions: &[PoolId],
        acceptors: Vec<((PoolId, AcceptorId), u32)>,
    ) {
        let free = self.listeners.iter().position(Option::is_none).unwrap_or(self.listeners.len());
        let number = u8::try_from(free + 1).ok().and_then(HandOverNumber::new);
        let settings = self.settings.of_port(address.port());
        self.begun += 1;
        let first_id = self.begun << 32;
        let own = self.wiring.manager();
        let shared = SharedListener::new((listener, address), settings, own, first_id);
        // The settings were checked when the server began.
        let (Some(number), Ok(mut shared)) = (number, shared) else { return };
        shared.members = sessions.iter().filter_map(|id| self.member(*id)).collect();
        shared.granted =
            acceptors.iter().fold(0_u32, |sum, (_, credit)| sum.saturating_add(*credit));
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

    /// One more session listens.
    pub(super) fn join(&mut self, hand_over: HandOverNumber, session: PoolId) {
        let member = self.member(session);
        if let Some(shared) = self.of_mut(hand_over) {
            shared.members.extend(member);
        }
    }

    /// A session begins, which may listen. One with a lane to this shard alone is at home here.
    pub(super) fn add_session(&mut self, session: PoolId, limits: &SessionLimits) {
        let index = usize::from(session.0);
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, None);
        }
        let SessionLimits { key, home, is_on_all_shards, .. } = *limits;
        let own = self.wiring.manager().filter(|_| !is_on_all_shards);
        let (home, is_private) = (own.unwrap_or(home), !is_on_all_shards);
        // No other server names it, so any name will do that no daemon gives.
        let key = if is_private { u64::MAX - u64::from(session.0) } else { key };
        self.sessions[index] = Some(ListenerMember { session, key, home, is_private });
    }

    fn member(&self, session: PoolId) -> Option<ListenerMember> {
        self.sessions.get(usize::from(session.0)).copied().flatten()
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
            machines.accept(now, shared, index, credit).inspect_err(|_| {
                shared.acceptors[index].take_if(|known| known.wanted == 0);
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
            shared.waiting += 1;
            let transport = machines.wiring.transport().unwrap_or_default();
            let name = ConnectionName { transport, id: packed(conn), flow_hash };
            let report = shared.table.on_established(name);
            machines.report_transport(now, shared, report);
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
                Some(ResetOutcome::Waiting(report)) => {
                    shared.waiting = shared.waiting.saturating_sub(1);
                    machines.report_transport(now, shared, report);
                }
                Some(ResetOutcome::Withdrawn(report)) => {
                    if let Some(known) = shared.offer_is_over(report.acceptor()) {
                        let session = known.session;
                        machines.deliveries.push_back(Delivery::Withdraw { session, conn });
                    }
                    machines.report_acceptor(now, shared, report);
                }
                Some(ResetOutcome::Claimed(report)) => {
                    machines.report_acceptor(now, shared, report);
                }
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
                machines.report_acceptor(now, shared, report);
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
                shared.note_answered(report.acceptor());
                machines.report_acceptor(now, shared, report);
            }
            shared.measures_answers
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
        let left = self.with(hand_over, |shared, machines| machines.leave(now, shared, session));
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
        if shared.manager.is_none() {
            // Those that wait do so at a manager apart, which would keep the listener for them.
            let transport = self.wiring.transport().unwrap_or_default();
            let to = self.wiring.manager_server_of(transport);
            let report = |conn: &ConnectionName| TransportReport::Reset(*conn).into();
            let message = |subject| Message { listener: shared.address(), subject };
            self.mail.extend(unclaimed.iter().map(|conn| (to, message(report(conn)))));
        }
        self.counters.add(&shared);
        self.dirty.retain(|other| *other != number);
        unclaimed.into_iter().map(|name| unpacked(name.id)).collect()
    }

    /// Whether this server, which has a connection manager alone, need not know of a listener.
    pub(super) fn is_unused(&self, hand_over: HandOverNumber) -> bool {
        self.of(hand_over).is_some_and(SharedListener::is_unused)
    }

    /// Takes a message of another server about a listener.
    pub(super) fn on_message(
        &mut self,
        now: Instant,
        hand_over: HandOverNumber,
        (from, subject): (u16, MessageSubject),
    ) {
        self.with(hand_over, |shared, machines| machines.on_message(now, shared, (from, subject)));
    }

    /// A message of another server about a listener that this one does not have: what it lends goes
    /// back.
    pub(super) fn refuse_message(&mut self, message: &Message) {
        let (MessageSubject::Offer { acceptor, credits, .. }
        | MessageSubject::Granted { acceptor, credits, .. }) = message.subject
        else {
            return;
        };
        if let Some(ManagerId(borrower)) =
            self.wiring.manager().filter(|_| (1..u32::MAX).contains(&credits))
        {
            let to = self.wiring.server_of_manager(ManagerId(acceptor.manager));
            let subject = MessageSubject::Returned { acceptor, credits, borrower };
            self.mail.push_back((to, Message { listener: message.listener, subject }));
        }
    }

    /// The next message to another server, and which one.
    pub(super) fn next_mail(&mut self) -> Option<(u16, Message)> {
        self.mail.pop_front()
    }

    /// Publishes offers to the other managers, where they are due. To be called in polls of a shard
    /// that is awake.
    pub(super) fn publish_offers(&mut self, now: Instant) {
        if self.wiring.manager().is_none()
            || self.wiring.manager_count() < 2
            || now < self.offers_at
        {
            return;
        }
        self.offers_at = now + OFFER_INTERVAL_DEFAULT;
        for place in 0..self.listeners.len() {
            if let Some(number) = self.number_at(place) {
                // Credit does not change: the hand-over is not marked.
                let is_marked = self.dirty.contains(&number);
                self.with(number, |shared, machines| machines.publish_offer(now, shared));
                self.dirty.retain(|other| is_marked || *other != number);
            }
        }
    }

    fn number_at(&self, place: usize) -> Option<HandOverNumber> {
        self.listeners.get(place)?.as_ref()?;
        u8::try_from(place + 1).ok().and_then(HandOverNumber::new)
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
            has_worked = true;
            self.number_at(place).and_then(|number| {
                self.with(number, |shared, machines| {
                    while let Some(report) = shared.table.on_time(now) {
                        if let TransportReport::TakenBack { acceptor, .. } = report {
                            shared.offer_is_over(acceptor);
                        }
                        shared.waiting += 1;
                        machines.report_transport(now, shared, report);
                    }
                })
            });
        }
        has_worked
    }

    /// How long the shard may sleep at `now`: until [`HandOvers::on_time`] is due or credit of
    /// other managers expires, and not long while connections wait that other servers' messages may
    /// help.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        let deadlines = self.listeners.iter().flatten().filter_map(|it| it.table.next_deadline());
        let claim = deadlines.min().map(|at| at.since(now));
        let has_others = self.wiring.manager_count() > 1;
        let waits = |shared: &SharedListener| shared.waiting > 0;
        let waits = has_others && self.listeners.iter().flatten().any(|it| waits(it));
        let managers = self.listeners.iter().flatten().filter_map(|it| it.manager.as_ref());
        let expiry = managers.filter_map(|manager| manager.next_expiry()).min();
        let expiry = expiry.map(|at| at.since(now));
        claim.into_iter().chain(waits.then_some(WAITING_LOOK_PERIOD)).chain(expiry).min()
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
            let credit = shared.free_credit();
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
        let settings = self.settings.of_port(port);
        Some((shared.shown(now, settings, key), shared.shown_acceptors(now, key)))
    }

    /// Listeners as this server's connection manager sees them, from a place on, as many as a page
    /// has, and the place of the next. `None`: the server has no manager.
    pub(super) fn manager_page(&self, now: Instant, from: u64) -> Option<AnswerPage> {
        let number = self.wiring.manager()?.0;
        let managers = u16::try_from(self.wiring.manager_count()).unwrap_or(u16::MAX);
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let places = self.listeners.iter().enumerate().skip(from);
        let mut known = places.filter_map(|(place, it)| Some((place, it.as_deref()?)));
        let page = known.by_ref().take(MANAGED_LISTENERS_PER_PAGE).filter_map(|(_, shared)| {
            let settings = self.settings.of_port(shared.address().port());
            let scheme = &settings.balancer.scheme;
            let manager = shared.manager.as_ref()?;
            Some(manager.shown(now, (shared.address(), scheme), managers))
        });
        let listeners = page.collect();
        let next = known.next().map(|(place, _)| place as u64);
        let shard = self.wiring.transport();
        let manager = ServiceManager { number, shard, listeners };
        Some(AnswerPage { next, body: AnswerBody::Manager(Some(Box::new(manager))) })
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
        self.of(hand_over).is_some_and(|shared| shared.selects_by_hash)
    }

    /// Does something with a listener and the machines around it; `None`: there is no such one.
    fn with<T>(
        &mut self,
        number: HandOverNumber,
        what: impl FnOnce(&mut SharedListener, &mut Machines<'_>) -> T,
    ) -> Option<T> {
        let Self { listeners, wiring, random, deliveries, outputs, mail, dirty, .. } = self;
        let shared = listeners.get_mut(usize::from(number.get()) - 1)?.as_deref_mut()?;
        let mut machines = Machines { number, wiring, random, deliveries, outputs, mail };
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
        if let Some(manager) = &shared.manager {
            self.queue += manager.queue().counters();
        }
    }
}

#[cfg(test)]
mod world;
