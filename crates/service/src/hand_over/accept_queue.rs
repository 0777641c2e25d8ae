//! The connection manager's half of a hand-over: acceptors, and connections that wait for one.
//!
//! Read first: `hand_over.rs`; `balancer.rs` on which acceptor is picked.
//!
//! Pure: reports, messages, time and random numbers in, assignments and messages out.
//!
//! Invariants
//! - Waiting connections are assigned in the order in which they came; one that was taken back is
//!   assigned before them.
//! - No connection waits while an acceptor of this manager's has credit, unless the scheme `hash`
//!   or the balancer's limit for new acceptors prevents it.
//! - Credit that was lent is recalled when a connection waits for it.
//! - A connection gets an acceptor of another manager's only with credit that is lent or not
//!   counted. Without it, it is requested of the others, and the connection waits. Where several
//!   managers wait for the credit of one, it goes to each in turn.
//! - An acceptor that did not claim in time is dropped once, by its own manager.

use std::collections::VecDeque;

use megapipe_stack::Instant;

use super::{
    AcceptorReport, Assignment, ConnectionName, HandOverConfig, HandOverError, ManagerMessage,
    ManagerOutput, TransportReport,
};
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::balancer::{
    Balancer, BalancerConfig, LentCredit, LoadMeasure, Pick, RandomSequence, Scheme, ServiceOffer,
};
use crate::limits::ACCEPTORS_MAX;

/// Why an acceptor could not enlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnlistError {
    /// The listener has the most acceptors there may be.
    #[error("the listener has {ACCEPTORS_MAX} acceptors already")]
    Full,
}

/// Counters of an accept queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueueCounters {
    /// Assignments to local acceptors.
    pub local: u64,
    /// Assignments to acceptors of other managers.
    pub remote: u64,
    /// Connections that had to wait for an acceptor.
    pub waits: u64,
    /// Connections for which the queue had no room.
    pub refused: u64,
    /// Acceptors that were dropped because they did not claim in time.
    pub dropped: u64,
    /// Offers that were sent to the other managers.
    pub offers_sent: u64,
    /// Offers that other managers sent.
    pub offers_received: u64,
}

impl std::ops::AddAssign for QueueCounters {
    fn add_assign(&mut self, other: Self) {
        self.local += other.local;
        self.remote += other.remote;
        self.waits += other.waits;
        self.refused += other.refused;
        self.dropped += other.dropped;
        self.offers_sent += other.offers_sent;
        self.offers_received += other.offers_received;
    }
}

/// One connection manager's accept queue of one listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AcceptQueue {
    balancer: Balancer,
    waiting: VecDeque<ConnectionName>,
    waiting_max: usize,
    counters: QueueCounters,
}

impl AcceptQueue {
    /// Creates a queue without acceptors.
    ///
    /// # Errors
    /// [`HandOverError`]: a setting out of range.
    pub fn new(
        manager: ManagerId,
        config: &HandOverConfig,
        balancer: BalancerConfig,
    ) -> Result<Self, HandOverError> {
        config.check()?;
        let balancer = Balancer::new(manager, balancer)?;
        Ok(Self {
            balancer,
            waiting: VecDeque::new(),
            waiting_max: config.waiting,
            counters: QueueCounters::default(),
        })
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Returns the balancer, for inspection.
    #[must_use]
    pub const fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    /// Returns the connections that wait, the next one first.
    pub fn waiting(&self) -> impl Iterator<Item = ConnectionName> {
        self.waiting.iter().copied()
    }

    /// Returns how many more connections this manager's acceptors would take, beyond those that
    /// wait, and there is room for.
    #[must_use]
    pub fn free_credit(&self) -> u32 {
        let room = u32::try_from(self.waiting_max).unwrap_or(u32::MAX);
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        self.balancer.credit().min(room).saturating_sub(waiting)
    }

    /// Whether the first byte on each connection is to be reported.
    #[must_use]
    pub fn measures_answers(&self) -> bool {
        self.balancer.config().measure == LoadMeasure::FirstAnswer
    }

    /// Whether the first byte on a connection of this acceptor's is to be reported.
    #[must_use]
    pub fn awaits_answer(&self, name: AcceptorName) -> bool {
        self.measures_answers() || !self.balancer.has_answered(name)
    }

    /// Whether acceptors are selected by the flow's hash.
    #[must_use]
    pub fn selects_by_hash(&self) -> bool {
        self.balancer.config().scheme == Scheme::Hash
    }

    /// ACCEPT-CONNECTION: adds credit to an acceptor of this manager's, which becomes one if it was
    /// none. Returns the name of its enlistment.
    ///
    /// # Errors
    /// [`EnlistError::Full`].
    pub fn enlist(
        &mut self,
        now: Instant,
        id: AcceptorId,
        credit: u32,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) -> Result<AcceptorName, EnlistError> {
        let (name, is_new) = self.balancer.enlist(id, credit).ok_or(EnlistError::Full)?;
        if is_new {
            out.push(ManagerOutput::Publish(ManagerMessage::Joined(name)));
        }
        self.assign_waiting(now, random, out);
        Ok(name)
    }

    /// ACCEPT-CONNECTION after a late claim: ends the enlistment that the claim names, if it lasts,
    /// and begins another one. The time-out of that claim may still be on its way from
    /// another manager, and must not end the new enlistment.
    ///
    /// # Errors
    /// [`EnlistError::Full`].
    pub fn enlist_again(
        &mut self,
        now: Instant,
        lost: AcceptorName,
        credit: u32,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) -> Result<AcceptorName, EnlistError> {
        let has_ended = self.balancer.end_enlistment(lost);
        self.publish_dropped(lost, has_ended, out);
        self.enlist(now, lost.id, credit, random, out)
    }

    /// Removes an acceptor that accepts no more, or died. Returns the credit that it had left.
    /// Offers that are out to it end at the transport servers.
    pub fn remove(&mut self, id: AcceptorId, out: &mut Vec<ManagerOutput>) -> u32 {
        let Some((name, credit)) = self.balancer.remove(id) else { return 0 };
        out.push(ManagerOutput::Publish(ManagerMessage::Left(name)));
        credit
    }

    /// Takes a report of a transport server about one of its connections.
    pub fn on_transport(
        &mut self,
        now: Instant,
        report: TransportReport,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        let (conn, is_taken_back) = match report {
            TransportReport::Unassigned(conn) => (conn, false),
            TransportReport::TakenBack { conn, acceptor } => {
                if acceptor.manager == self.manager() {
                    self.on_time_out(acceptor, out);
                } else {
                    let lent = self.balancer.on_left(acceptor);
                    self.return_lent(lent, out);
                    // Of each connection: its manager counts them.
                    let message = ManagerMessage::TimedOut(acceptor);
                    out.push(ManagerOutput::Send(message));
                }
                (conn, true)
            }
            TransportReport::Reset(conn) => {
                self.waiting.retain(|&other| other != conn);
                return;
            }
        };
        if is_taken_back {
            self.waiting.push_front(conn);
        } else if !self.enqueue(conn, out) {
            return;
        }
        self.assign_waiting(now, random, out);
        let end = if is_taken_back { self.waiting.front() } else { self.waiting.back() };
        self.counters.waits += u64::from(end == Some(&conn));
    }

    fn manager(&self) -> ManagerId {
        self.balancer.manager()
    }

    fn on_time_out(&mut self, acceptor: AcceptorName, out: &mut Vec<ManagerOutput>) {
        let has_ended = self.balancer.on_time_out(acceptor);
        self.publish_dropped(acceptor, has_ended, out);
    }

    fn publish_dropped(
        &mut self,
        acceptor: AcceptorName,
        has_ended: bool,
        out: &mut Vec<ManagerOutput>,
    ) {
        if has_ended {
            self.counters.dropped += 1;
            out.push(ManagerOutput::Publish(ManagerMessage::Left(acceptor)));
        }
    }

    /// Adds a new connection to the queue. Returns whether there was room.
    fn enqueue(&mut self, conn: ConnectionName, out: &mut Vec<ManagerOutput>) -> bool {
        let has_room = self.waiting.len() < self.waiting_max;
        if has_room {
            self.waiting.push_back(conn);
        } else {
            self.counters.refused += 1;
            out.push(ManagerOutput::Refuse(conn));
        }
        has_room
    }

    /// Takes a report about an acceptor of this manager's.
    pub fn on_acceptor(
        &mut self,
        now: Instant,
        report: AcceptorReport,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        let measure = self.balancer.config().measure;
        match report {
            AcceptorReport::Withdrawn(name) => self.balancer.on_withdrawn(name),
            AcceptorReport::Answered { acceptor, service_time } => {
                self.balancer.on_answered(acceptor);
                if measure == LoadMeasure::FirstAnswer {
                    self.balancer.on_service_time(now, acceptor, service_time);
                }
            }
            AcceptorReport::Closed { acceptor, service_time } => match measure {
                LoadMeasure::Closed => self.balancer.on_closed(now, acceptor, service_time),
                _ => self.balancer.on_finished(acceptor),
            },
        }
        self.assign_waiting(now, random, out);
    }

    /// Takes a message of another manager.
    pub fn on_message(
        &mut self,
        now: Instant,
        message: ManagerMessage,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        match message {
            ManagerMessage::Joined(name) => {
                self.balancer.on_joined(name);
            }
            ManagerMessage::Left(name) => {
                let lent = self.balancer.on_left(name);
                self.return_lent(lent, out);
            }
            ManagerMessage::Offer(offer) => {
                self.counters.offers_received += 1;
                let lent = self.balancer.on_offer(now, offer);
                self.return_lent(lent, out);
            }
            ManagerMessage::Recall(acceptor) => {
                let lent = self.balancer.on_recall(acceptor);
                self.return_lent(lent, out);
            }
            ManagerMessage::Assigned { acceptor, borrower } => {
                self.balancer.on_assigned(acceptor, borrower);
            }
            ManagerMessage::Returned { lent, borrower } => {
                self.on_returned(lent, borrower);
                let LentCredit { acceptor, credits } = lent;
                if self.balancer.name_of(acceptor.id).is_some() {
                    self.balancer.enlist(acceptor.id, credits);
                }
            }
            ManagerMessage::TimedOut(name) => self.on_time_out(name, out),
            ManagerMessage::Request { borrower, .. } => self.balancer.on_request(borrower),
        }
        self.assign_waiting(now, random, out);
    }

    /// Publishes the offer if one is due, to the other ones of so many managers, and returns credit
    /// of theirs that has expired. To be called in each poll of a manager that is awake.
    pub fn publish_offer(&mut self, now: Instant, managers: u16, out: &mut Vec<ManagerOutput>) {
        self.return_expired(now, out);
        let Some(offer) = self.balancer.offer(now, managers) else { return };
        self.counters.offers_sent += 1;
        if managers < 2 || offer.credits > 0 {
            return out.push(ManagerOutput::Publish(ManagerMessage::Offer(offer)));
        }
        let own = self.manager();
        for peer in (0..managers).map(ManagerId).filter(|peer| *peer != own) {
            // What is needed here is not lent.
            let credits = match self.waiting.is_empty() {
                true => self.balancer.lend(offer.acceptor, peer, managers),
                false => 0,
            };
            out.push(ManagerOutput::Lend(peer, ServiceOffer { credits, ..offer }));
        }
    }

    /// Another manager has not any more what was lent to it.
    pub fn on_returned(&mut self, lent: LentCredit, borrower: ManagerId) {
        self.balancer.on_returned(lent.acceptor, borrower, lent.credits);
    }

    /// When credit that other managers have lent expires next.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.balancer.next_expiry()
    }

    fn return_expired(&mut self, now: Instant, out: &mut Vec<ManagerOutput>) {
        while let Some(lent) = self.balancer.expire_offer(now) {
            self.return_lent(Some(lent), out);
        }
    }

    /// Sends credit back to the manager that has lent it.
    fn return_lent(&self, lent: Option<LentCredit>, out: &mut Vec<ManagerOutput>) {
        let borrower = self.manager();
        let message = |lent| ManagerMessage::Returned { lent, borrower };
        out.extend(lent.map(|lent| ManagerOutput::Send(message(lent))));
    }

    fn assign_waiting(&mut self, now: Instant, random: u64, out: &mut Vec<ManagerOutput>) {
        let mut random = RandomSequence::new(random);
        if !self.waiting.is_empty() {
            self.return_expired(now, out);
        }
        // Other managers that wait get the next credit after each connection here.
        while self.grant_one(now, &mut random, out) | self.assign_one(now, &mut random, out) {}
        if self.waiting.is_empty() {
            return;
        }
        while let Some(acceptor) = self.balancer.recall() {
            out.push(ManagerOutput::Publish(ManagerMessage::Recall(acceptor)));
        }
        let borrower = self.manager();
        while let Some(lender) = self.balancer.request() {
            out.push(ManagerOutput::Send(ManagerMessage::Request { lender, borrower }));
        }
    }

    /// Assigns the connection that waits longest. Returns `false` if there is none, or no acceptor
    /// with credit for it.
    fn assign_one(
        &mut self,
        now: Instant,
        random: &mut RandomSequence,
        out: &mut Vec<ManagerOutput>,
    ) -> bool {
        let Some(&conn) = self.waiting.front() else { return false };
        let pick = self.balancer.pick(now, conn.flow_hash, random.next());
        let Some(pick) = pick.filter(|pick| pick.has_credit) else { return false };
        self.waiting.pop_front();
        let acceptor = pick.acceptor;
        if acceptor.manager == self.manager() {
            self.counters.local += 1;
        } else {
            self.counters.remote += 1;
            let borrower = pick.is_lent.then_some(self.manager());
            out.push(ManagerOutput::Send(ManagerMessage::Assigned { acceptor, borrower }));
        }
        let Pick { is_final, reason, .. } = pick;
        out.push(ManagerOutput::Assign(Assignment { conn, acceptor, is_final, reason }));
        true
    }

    /// Lends credit to another manager that requested some. Returns whether it did.
    fn grant_one(
        &mut self,
        now: Instant,
        random: &mut RandomSequence,
        out: &mut Vec<ManagerOutput>,
    ) -> bool {
        if !self.balancer.has_requests() {
            return false;
        }
        let is_needed = !self.waiting.is_empty();
        let granted = self.balancer.grant(now, random.next(), is_needed);
        out.extend(granted.map(|(borrower, offer)| ManagerOutput::Grant(borrower, offer)));
        granted.is_some()
    }

    /// No other manager can assign connections to an acceptor of this manager's, which enlists
    /// next.
    pub(crate) fn keep_private(&mut self, id: AcceptorId) {
        self.balancer.keep_private(id);
    }

    /// Ends the listener. The connections that wait end at their transport servers.
    pub fn close_listener(&mut self, out: &mut Vec<ManagerOutput>) {
        self.waiting.clear();
        for name in self.balancer.remove_all() {
            out.push(ManagerOutput::Publish(ManagerMessage::Left(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::PickReason;
    use std::time::Duration;

    fn queue(waiting: usize) -> AcceptQueue {
        let config = HandOverConfig { waiting, ..HandOverConfig::default() };
        AcceptQueue::new(ManagerId(0), &config, BalancerConfig::default()).unwrap()
    }

    const fn conn(id: u64) -> ConnectionName {
        ConnectionName { transport: 0, id, flow_hash: 0 }
    }

    const fn remote(id: u64) -> AcceptorName {
        AcceptorName { manager: ManagerId(1), id: AcceptorId(id), enlistment: 0 }
    }

    fn at(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    /// What a call sends.
    fn sent(call: impl FnOnce(&mut Vec<ManagerOutput>)) -> Vec<ManagerOutput> {
        let mut out = Vec::new();
        call(&mut out);
        out
    }

    fn assigned(conn: ConnectionName, acceptor: AcceptorName, is_final: bool) -> ManagerOutput {
        // One of another manager wins by its offer.
        let is_own = acceptor.manager == ManagerId(0);
        let reason = if is_own { PickReason::Local } else { PickReason::Offer };
        ManagerOutput::Assign(Assignment { conn, acceptor, is_final, reason })
    }

    #[test]
    fn waiting_connections_are_assigned_in_order_up_to_the_credit() {
        let mut queue = queue(10);
        for id in 1..=3 {
            let report = TransportReport::Unassigned(conn(id));
            assert_eq!(sent(|out| queue.on_transport(at(0), report, 0, out)), []);
        }
        assert_eq!(queue.counters().waits, 3);
        let mut out = Vec::new();
        let name = queue.enlist(at(0), AcceptorId(9), 2, 0, &mut out).unwrap();
        let joined = ManagerOutput::Publish(ManagerMessage::Joined(name));
        assert_eq!(out, [joined, assigned(conn(1), name, true), assigned(conn(2), name, true)]);
        assert_eq!(queue.waiting().collect::<Vec<_>>(), [conn(3)]);
        let report = AcceptorReport::Withdrawn(name);
        let out = sent(|out| queue.on_acceptor(at(0), report, 0, out));
        assert_eq!(out, [assigned(conn(3), name, true)], "the credit came back");
    }

    #[test]
    fn full_queue_refuses_new_connections_and_keeps_taken_back_ones() {
        let mut queue = queue(1);
        let mut out = Vec::new();
        let name = queue.enlist(at(0), AcceptorId(9), 1, 0, &mut out).unwrap();
        queue.on_message(at(0), ManagerMessage::Joined(remote(1)), 0, &mut out);
        queue.on_message(at(0), ManagerMessage::Left(remote(1)), 0, &mut out);
        queue.on_transport(at(0), TransportReport::Unassigned(conn(1)), 0, &mut out);
        queue.on_transport(at(0), TransportReport::Unassigned(conn(2)), 0, &mut out);
        let report = TransportReport::Unassigned(conn(3));
        let out = sent(|out| queue.on_transport(at(0), report, 0, out));
        assert_eq!(out, [ManagerOutput::Refuse(conn(3))]);
        let report = TransportReport::TakenBack { conn: conn(1), acceptor: name };
        let out = sent(|out| queue.on_transport(at(0), report, 0, out));
        assert_eq!(out, [ManagerOutput::Publish(ManagerMessage::Left(name))]);
        assert_eq!(queue.waiting().collect::<Vec<_>>(), [conn(1), conn(2)]);
        let QueueCounters { waits, refused, dropped, .. } = queue.counters();
        assert_eq!((waits, refused, dropped), (2, 1, 1));
        let report = TransportReport::Reset(conn(2));
        assert_eq!(sent(|out| queue.on_transport(at(0), report, 0, out)), []);
        assert_eq!(queue.waiting().collect::<Vec<_>>(), [conn(1)]);
    }

    #[test]
    fn taken_back_connection_goes_to_another_acceptor() {
        let mut queue = queue(10);
        let mut out = Vec::new();
        let names = [1, 2].map(|id| queue.enlist(at(0), AcceptorId(id), 9, 0, &mut out).unwrap());
        let report = TransportReport::TakenBack { conn: conn(1), acceptor: names[0] };
        let out = sent(|out| queue.on_transport(at(0), report, 0, out));
        let left = ManagerOutput::Publish(ManagerMessage::Left(names[0]));
        // Not finally: the first may enlist again.
        assert_eq!(out, [left, assigned(conn(1), names[1], false)]);
        // A second time-out of the same enlistment drops nothing, nor does one of a later one.
        let mut out = Vec::new();
        let again = queue.enlist(at(0), AcceptorId(1), 9, 0, &mut out).unwrap();
        assert_ne!(again, names[0]);
        let report = TransportReport::TakenBack { conn: conn(2), acceptor: names[0] };
        queue.on_transport(at(0), report, 0, &mut out);
        assert_eq!((queue.counters().dropped, queue.balancer().acceptors()), (1, 2));
    }

    #[test]
    fn assignment_to_remote_acceptor_reaches_its_manager() {
        let mut queue = queue(10);
        let mut out = Vec::new();
        queue.on_message(at(0), ManagerMessage::Joined(remote(1)), 0, &mut out);
        let offer = ServiceOffer { acceptor: remote(1), service_time: 1_000, credits: 1 };
        queue.on_message(at(0), ManagerMessage::Offer(offer), 0, &mut out);
        let report = TransportReport::Unassigned(conn(1));
        let out = sent(|out| queue.on_transport(at(0), report, 0, out));
        let assigned_there =
            ManagerMessage::Assigned { acceptor: remote(1), borrower: Some(ManagerId(0)) };
        let notice = ManagerOutput::Send(assigned_there);
        assert_eq!(out, [notice, assigned(conn(1), remote(1), true)]);
        let report = TransportReport::TakenBack { conn: conn(1), acceptor: remote(1) };
        let out = sent(|out| queue.on_transport(at(0), report, 0, out));
        assert_eq!(out, [ManagerOutput::Send(ManagerMessage::TimedOut(remote(1)))]);
        let report = TransportReport::TakenBack { conn: conn(2), acceptor: remote(1) };
        let out = sent(|out| queue.on_transport(at(0), report, 0, out));
        assert_eq!(out, [ManagerOutput::Send(ManagerMessage::TimedOut(remote(1)))]);
        let QueueCounters { remote: to_others, local, offers_received, .. } = queue.counters();
        assert_eq!((to_others, local, offers_received), (1, 0, 1));
    }

    #[test]
    fn waiting_connection_recalls_what_was_lent() {
        let balancer =
            BalancerConfig { measure: LoadMeasure::Connections, ..BalancerConfig::default() };
        let config = HandOverConfig::default();
        let mut queue = AcceptQueue::new(ManagerId(0), &config, balancer).unwrap();
        let mut out = Vec::new();
        let name = queue.enlist(at(0), AcceptorId(1), 4, 0, &mut out).unwrap();
        let out = sent(|out| queue.publish_offer(at(0), 2, out));
        let [ManagerOutput::Lend(ManagerId(1), ServiceOffer { credits: 2, .. })] = out[..] else {
            panic!("{out:?}")
        };
        let mut arrives = |id| {
            let report = TransportReport::Unassigned(conn(id));
            sent(|out| queue.on_transport(at(0), report, 0, out))
        };
        assert_eq!([1, 2].map(&mut arrives), [1, 2].map(|id| [assigned(conn(id), name, true)]));
        let recall = ManagerOutput::Publish(ManagerMessage::Recall(name));
        assert_eq!((arrives(3), arrives(4)), (vec![recall], vec![]), "once");
        let lent = LentCredit { acceptor: name, credits: 2 };
        let returned = ManagerMessage::Returned { lent, borrower: ManagerId(1) };
        let out = sent(|out| queue.on_message(at(0), returned, 0, out));
        assert_eq!(out, [3, 4].map(|id| assigned(conn(id), name, true)));
    }

    #[test]
    fn connection_without_credit_requests_it_and_waits() {
        let mut queue = queue(10);
        let joined = ManagerMessage::Joined(remote(1));
        assert_eq!(sent(|out| queue.on_message(at(0), joined, 0, out)), []);
        let lender = ManagerId(1);
        let request = ManagerMessage::Request { lender, borrower: ManagerId(0) };
        let mut arrives = |id| {
            let report = TransportReport::Unassigned(conn(id));
            sent(|out| queue.on_transport(at(0), report, 0, out))
        };
        assert_eq!([1, 2].map(&mut arrives), [vec![ManagerOutput::Send(request)], vec![]]);
        let offer = ServiceOffer { acceptor: remote(1), service_time: 0, credits: 1 };
        let out = sent(|out| queue.on_message(at(0), ManagerMessage::Offer(offer), 0, out));
        let borrower = Some(ManagerId(0));
        let [
            ManagerOutput::Send(ManagerMessage::Assigned { borrower: from, .. }),
            ManagerOutput::Assign(Assignment { reason: PickReason::Member, .. }),
            ManagerOutput::Send(again),
        ] = out[..]
        else {
            panic!("{out:?}")
        };
        assert_eq!((from, again), (borrower, request), "the second one still waits");
        assert_eq!(queue.waiting().collect::<Vec<_>>(), [conn(2)]);
    }

    #[test]
    fn managers_that_wait_get_credit_in_turn() {
        let mut queue = queue(10);
        let report = |id| TransportReport::Unassigned(conn(id));
        let lender = ManagerId(0);
        let request = |borrower| ManagerMessage::Request { lender, borrower };
        let mut out = Vec::new();
        (1..=3).for_each(|id| queue.on_transport(at(0), report(id), 0, &mut out));
        queue.on_message(at(0), request(ManagerId(1)), 0, &mut out);
        assert_eq!(out, []);
        let mut out = Vec::new();
        let name = queue.enlist(at(0), AcceptorId(9), 1, 0, &mut out).unwrap();
        let [_, ManagerOutput::Grant(ManagerId(1), ServiceOffer { credits: 1, .. }), recall] =
            out[..]
        else {
            panic!("{out:?}")
        };
        assert_eq!(recall, ManagerOutput::Publish(ManagerMessage::Recall(name)));
        // The other one waits again, behind one connection here.
        queue.on_message(at(0), request(ManagerId(1)), 0, &mut Vec::new());
        queue.on_message(at(0), request(ManagerId(2)), 0, &mut Vec::new());
        let mut out = Vec::new();
        queue.enlist(at(0), AcceptorId(9), 3, 0, &mut out).unwrap();
        let to = |output: &ManagerOutput| match output {
            ManagerOutput::Grant(to, _) => Some(to.0),
            ManagerOutput::Assign(_) => Some(0),
            _ => None,
        };
        assert_eq!(out.iter().filter_map(to).collect::<Vec<_>>(), [1, 0, 2]);
    }

    #[test]
    fn first_answers_count_only_where_they_are_the_measure() {
        for (measure, expected) in
            [(LoadMeasure::FirstAnswer, Some(1_000)), (LoadMeasure::Closed, Some(9_000))]
        {
            let balancer = BalancerConfig { measure, ..BalancerConfig::default() };
            let config = HandOverConfig::default();
            let mut queue = AcceptQueue::new(ManagerId(0), &config, balancer).unwrap();
            let mut out = Vec::new();
            let acceptor = queue.enlist(at(0), AcceptorId(1), 9, 0, &mut out).unwrap();
            let service_time = Duration::from_micros(1);
            let answered = AcceptorReport::Answered { acceptor, service_time };
            queue.on_acceptor(at(0), answered, 0, &mut out);
            let service_time = Duration::from_micros(9);
            let closed = AcceptorReport::Closed { acceptor, service_time };
            queue.on_acceptor(at(0), closed, 0, &mut out);
            assert_eq!(queue.balancer().service_time(AcceptorId(1)), expected);
            let out = sent(|out| queue.publish_offer(at(0), 1, out));
            assert_eq!((out.len(), queue.counters().offers_sent), (1, 1));
        }
    }

    #[test]
    fn closed_listener_publishes_that_its_acceptors_left() {
        let mut queue = queue(10);
        let mut out = Vec::new();
        let name = queue.enlist(at(0), AcceptorId(1), 0, 0, &mut out).unwrap();
        queue.on_transport(at(0), TransportReport::Unassigned(conn(1)), 0, &mut out);
        let out = sent(|out| queue.close_listener(out));
        assert_eq!(out, [ManagerOutput::Publish(ManagerMessage::Left(name))]);
        assert_eq!((queue.waiting().count(), queue.balancer().acceptors()), (0, 0));
        assert_eq!(queue.remove(AcceptorId(1), &mut Vec::new()), 0);
    }
}
