//! The transport server's half of a hand-over: the state of each connection of a listener.
//!
//! Read first: `hand_over.rs`.
//!
//! Pure: assignments, claims, resets and time in, messages and reports out.
//!
//! Invariants
//! - Only this table changes a connection's state, so a claim, a time-out and a reset that cross
//!   are put in an order here.
//! - Deadlines are in the order of the offers: an offer is due no earlier than the one before it,
//!   also when the claim time has fallen since.

use std::collections::VecDeque;
use std::time::Duration;

use megapipe_stack::Instant;

use super::connection_map::ConnectionMap;
use super::growing_claim_time::{GrowingClaimTime, TakeBacks};
use super::{
    AcceptorReport, Assignment, ConnectionName, HandOverConfig, HandOverError, TransportReport,
};
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};

/// The state of a connection that is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HandOverState {
    /// In the queue of the connection manager.
    Waiting,
    /// Offered; a claim is due.
    Offered { acceptor: AcceptorName, since: Instant },
    /// Owned by an acceptor.
    Claimed { acceptor: AcceptorName, since: Instant, has_answered: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct HandOverEntry {
    name: ConnectionName,
    state: HandOverState,
    take_backs: TakeBacks,
}

/// When the claim of an offer is due. Those of ended offers are recognized by `since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ClaimDeadline {
    until: Instant,
    /// The offer's time.
    since: Instant,
    id: u64,
}

/// CONNECTION-AVAILABLE: a message for the acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Availability {
    /// The connection.
    pub conn: ConnectionName,
    /// The acceptor.
    pub acceptor: AcceptorName,
    /// Whether the connection is the acceptor's already, and needs no claim.
    pub is_final: bool,
}

/// The answer to CLAIM-CONNECTION.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClaimOutcome {
    /// The connection is the acceptor's. Its bytes are copied over now.
    Confirmed,
    /// The connection was taken back, is finished, or was never offered to this acceptor. Unless
    /// the offer was withdrawn, the acceptor enlists again, once for each enlistment
    /// ([`AcceptQueue::enlist_again`](super::AcceptQueue::enlist_again)).
    Late,
    /// The acceptor has the connection already.
    Repeated,
}

/// What the reset of a connection by its peer leads to. The connection is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResetOutcome {
    /// It waited: the report is for this transport server's manager.
    Waiting(TransportReport),
    /// It was offered: the acceptor is sent a message that the offer is withdrawn, and its manager
    /// the report.
    Withdrawn(AcceptorReport),
    /// It was claimed: the acceptor gets the event as for any connection, its manager the report.
    Claimed(AcceptorReport),
}

/// Counters of an offer table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OfferCounters {
    /// Offers that were sent, final ones included.
    pub offers: u64,
    /// Offers without a claim, to a listener's only acceptor.
    pub final_offers: u64,
    /// Claims in time.
    pub claims: u64,
    /// Claims after the time, or of what was never offered to the acceptor.
    pub late_claims: u64,
    /// Claims of what the acceptor has already.
    pub repeated_claims: u64,
    /// Offers that were taken back because no claim came in time.
    pub take_backs: u64,
    /// Offers that were taken back because the acceptor died.
    pub orphans: u64,
    /// Offers that were withdrawn because the peer reset the connection.
    pub withdrawals: u64,
}

impl std::ops::AddAssign for OfferCounters {
    fn add_assign(&mut self, other: Self) {
        self.offers += other.offers;
        self.final_offers += other.final_offers;
        self.claims += other.claims;
        self.late_claims += other.late_claims;
        self.repeated_claims += other.repeated_claims;
        self.take_backs += other.take_backs;
        self.orphans += other.orphans;
        self.withdrawals += other.withdrawals;
    }
}

/// The connections of one listener at one transport server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OfferTable {
    claim_time: GrowingClaimTime,
    connections: ConnectionMap<HandOverEntry>,
    /// Offers in their order, with those that have ended meanwhile.
    deadlines: VecDeque<ClaimDeadline>,
    /// Connections in the offered state.
    offered: usize,
    counters: OfferCounters,
}

impl OfferTable {
    /// Creates a table without connections.
    ///
    /// # Errors
    /// [`HandOverError`]: a setting out of range.
    pub fn new(config: &HandOverConfig) -> Result<Self, HandOverError> {
        config.check()?;
        Ok(Self {
            claim_time: GrowingClaimTime::new(config.claim_time),
            connections: ConnectionMap::default(),
            deadlines: VecDeque::new(),
            offered: 0,
            counters: OfferCounters::default(),
        })
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> OfferCounters {
        self.counters
    }

    /// Returns the time in which an offer that is made now is to be claimed: the configured one,
    /// and more for a while after connections were taken back repeatedly.
    #[must_use]
    pub fn claim_time(&self, now: Instant) -> Duration {
        self.claim_time.at(now)
    }

    /// Adds an established connection. The report is for this transport server's manager.
    pub fn on_established(&mut self, conn: ConnectionName) -> TransportReport {
        let (state, take_backs) = (HandOverState::Waiting, TakeBacks::default());
        self.connections.insert(conn.id, HandOverEntry { name: conn, state, take_backs });
        TransportReport::Unassigned(conn)
    }

    /// Offers a connection. The acceptor is sent the message that is returned.
    ///
    /// # Errors
    /// A report for the acceptor's manager: the connection does not wait any more. Its peer reset
    /// it while the assignment was on its way.
    pub fn assign(
        &mut self,
        now: Instant,
        assignment: Assignment,
    ) -> Result<Availability, AcceptorReport> {
        let Assignment { conn, acceptor, is_final, .. } = assignment;
        let waiting = |entry: &&mut HandOverEntry| {
            entry.name == conn && entry.state == HandOverState::Waiting
        };
        let Some(entry) = self.connections.get_mut(conn.id).filter(waiting) else {
            return Err(AcceptorReport::Withdrawn(acceptor));
        };
        self.counters.offers += 1;
        if is_final {
            self.counters.final_offers += 1;
            entry.state = HandOverState::Claimed { acceptor, since: now, has_answered: false };
        } else {
            let due = now + self.claim_time.at(now);
            let until = self.deadlines.back().map_or(due, |last| due.max(last.until));
            entry.state = HandOverState::Offered { acceptor, since: now };
            self.offered += 1;
            self.deadlines.push_back(ClaimDeadline { until, since: now, id: conn.id });
            self.drop_ended_deadlines();
        }
        Ok(Availability { conn, acceptor, is_final })
    }

    /// Keeps the deadlines of ended offers from piling up within a long claim time.
    fn drop_ended_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.offered + 64 {
            let connections = &self.connections;
            self.deadlines.retain(|deadline| deadline.is_current(connections));
        }
    }

    /// Decides a claim.
    pub fn claim(&mut self, conn: ConnectionName, claimant: AcceptorName) -> ClaimOutcome {
        let is_known = self.connections.get(conn.id).is_some_and(|entry| entry.name == conn);
        self.decide(is_known.then_some(conn.id), claimant).0
    }

    /// As [`OfferTable::claim`], of a connection of this transport server by its number alone.
    /// Returns also when the connection was offered, of a confirmed claim.
    pub fn claim_by_id(
        &mut self,
        id: u64,
        claimant: AcceptorName,
    ) -> (ClaimOutcome, Option<Instant>) {
        self.decide(Some(id), claimant)
    }

    fn decide(
        &mut self,
        id: Option<u64>,
        claimant: AcceptorName,
    ) -> (ClaimOutcome, Option<Instant>) {
        let entry = id.and_then(|id| self.connections.get_mut(id));
        match entry.map(|entry| &mut entry.state) {
            Some(state @ HandOverState::Offered { .. }) if state.acceptor() == Some(claimant) => {
                let mut offered = None;
                if let HandOverState::Offered { acceptor, since } = *state {
                    *state = HandOverState::Claimed { acceptor, since, has_answered: false };
                    offered = Some(since);
                }
                self.offered -= 1;
                self.counters.claims += 1;
                (ClaimOutcome::Confirmed, offered)
            }
            Some(HandOverState::Claimed { acceptor, .. }) if *acceptor == claimant => {
                self.counters.repeated_claims += 1;
                (ClaimOutcome::Repeated, None)
            }
            _ => {
                self.counters.late_claims += 1;
                (ClaimOutcome::Late, None)
            }
        }
    }

    /// Returns when [`OfferTable::on_time`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|deadline| deadline.until)
    }

    /// Takes back one offer whose claim is overdue. To be called until it returns `None`; the
    /// report is for this transport server's manager.
    pub fn on_time(&mut self, now: Instant) -> Option<TransportReport> {
        while let Some(deadline) = self.deadlines.pop_front_if(|it| it.until <= now) {
            if deadline.is_current(&self.connections) {
                self.note_overdue(now, deadline.id);
                return self.take_back(deadline.id);
            }
        }
        None
    }

    /// The claim of a connection is overdue. If it was so before, no acceptor claims in time.
    fn note_overdue(&mut self, now: Instant, id: u64) {
        if let Some(entry) = self.connections.get_mut(id)
            && let HandOverState::Offered { since, .. } = entry.state
            && entry.take_backs.add()
        {
            self.claim_time.on_repeated(now, since);
        }
    }

    /// Takes back an offer that cannot be delivered, as if its time were over: the acceptor's
    /// session is at its limit, or has ended unnoticed.
    pub fn take_back(&mut self, id: u64) -> Option<TransportReport> {
        let entry = self.connections.get_mut(id)?;
        let HandOverState::Offered { acceptor, .. } = entry.state else { return None };
        entry.state = HandOverState::Waiting;
        self.offered -= 1;
        self.counters.take_backs += 1;
        Some(TransportReport::TakenBack { conn: entry.name, acceptor })
    }

    /// Ends the offers to an acceptor that died. Their connections need another one; the reports
    /// are for this transport server's manager. Connections that it had claimed stay: their end is
    /// that of a dead process's connections.
    pub fn on_acceptor_gone(&mut self, gone: AcceptorName) -> Vec<TransportReport> {
        self.end_offers(|acceptor| acceptor == gone)
    }

    /// As [`OfferTable::on_acceptor_gone`], of all enlistments of an acceptor.
    pub fn on_acceptor_id_gone(
        &mut self,
        manager: ManagerId,
        id: AcceptorId,
    ) -> Vec<TransportReport> {
        self.end_offers(|acceptor| acceptor.manager == manager && acceptor.id == id)
    }

    fn end_offers(&mut self, is_gone: impl Fn(AcceptorName) -> bool) -> Vec<TransportReport> {
        let mut reports = Vec::new();
        for entry in self.connections.values_mut() {
            let is_offered = matches!(entry.state, HandOverState::Offered { .. });
            if is_offered && entry.state.acceptor().is_some_and(&is_gone) {
                entry.state = HandOverState::Waiting;
                reports.push(TransportReport::Unassigned(entry.name));
            }
        }
        // They are assigned again in this order, which one seed repeats.
        reports.sort_unstable_by_key(|report| match report {
            TransportReport::Unassigned(conn) => conn.id,
            _ => u64::MAX,
        });
        self.offered -= reports.len();
        self.counters.orphans += reports.len() as u64;
        reports
    }

    /// Finishes a connection that its peer reset. `None`: there is no such connection.
    ///
    /// A connection that the peer closes in order is not finished: it stays in its state, and is
    /// handed over with its bytes.
    pub fn on_reset(&mut self, now: Instant, id: u64) -> Option<ResetOutcome> {
        let entry = self.connections.remove(id)?;
        Some(match entry.state {
            HandOverState::Waiting => ResetOutcome::Waiting(TransportReport::Reset(entry.name)),
            HandOverState::Offered { acceptor, .. } => {
                self.offered -= 1;
                self.counters.withdrawals += 1;
                ResetOutcome::Withdrawn(AcceptorReport::Withdrawn(acceptor))
            }
            HandOverState::Claimed { acceptor, since, .. } => {
                let service_time = now.since(since);
                ResetOutcome::Claimed(AcceptorReport::Closed { acceptor, service_time })
            }
        })
    }

    /// Records the first byte that an acceptor sends on a connection.
    pub fn on_answer(&mut self, now: Instant, id: u64) -> Option<AcceptorReport> {
        match &mut self.connections.get_mut(id)?.state {
            HandOverState::Claimed { acceptor, since, has_answered } if !*has_answered => {
                *has_answered = true;
                let service_time = now.since(*since);
                Some(AcceptorReport::Answered { acceptor: *acceptor, service_time })
            }
            _ => None,
        }
    }

    /// Finishes a connection that its acceptor closed, or that ended by itself.
    pub fn on_closed(&mut self, now: Instant, id: u64) -> Option<AcceptorReport> {
        let is_claimed =
            |entry: &HandOverEntry| matches!(entry.state, HandOverState::Claimed { .. });
        let entry = self.connections.remove_if(id, is_claimed)?;
        let HandOverState::Claimed { acceptor, since, .. } = entry.state else { return None };
        Some(AcceptorReport::Closed { acceptor, service_time: now.since(since) })
    }

    /// Finishes a connection for which the manager's queue has no room. Returns whether it waited.
    pub fn on_refused(&mut self, conn: ConnectionName) -> bool {
        let waiting =
            |entry: &HandOverEntry| entry.name == conn && entry.state == HandOverState::Waiting;
        let is_waiting = self.connections.get(conn.id).is_some_and(waiting);
        if is_waiting {
            self.connections.remove(conn.id);
        }
        is_waiting
    }

    /// Ends the listener. Returns the connections that no acceptor has claimed, which end with it;
    /// claimed ones stay until they are closed.
    pub fn close_listener(&mut self) -> Vec<ConnectionName> {
        let is_claimed =
            |entry: &HandOverEntry| matches!(entry.state, HandOverState::Claimed { .. });
        let unclaimed = self.connections.values().filter(|entry| !is_claimed(entry));
        let mut unclaimed: Vec<_> = unclaimed.map(|entry| entry.name).collect();
        unclaimed.sort_unstable_by_key(|conn| conn.id);
        self.connections.retain(is_claimed);
        self.deadlines.clear();
        self.offered = 0;
        unclaimed
    }

    /// Returns the acceptor that has claimed a connection.
    #[must_use]
    pub fn owner(&self, id: u64) -> Option<AcceptorName> {
        match self.connections.get(id)?.state {
            HandOverState::Claimed { acceptor, .. } => Some(acceptor),
            HandOverState::Waiting | HandOverState::Offered { .. } => None,
        }
    }

    /// Returns the acceptor that a connection is offered to.
    #[must_use]
    pub fn offered_to(&self, id: u64) -> Option<AcceptorName> {
        match self.connections.get(id)?.state {
            HandOverState::Offered { acceptor, .. } => Some(acceptor),
            HandOverState::Waiting | HandOverState::Claimed { .. } => None,
        }
    }

    /// Whether a connection waits for an acceptor.
    #[must_use]
    pub fn is_waiting(&self, id: u64) -> bool {
        self.connections.get(id).is_some_and(|entry| entry.state == HandOverState::Waiting)
    }

    /// Returns the number of connections that are not finished.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether all connections are finished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }
}

impl HandOverState {
    const fn acceptor(&self) -> Option<AcceptorName> {
        match *self {
            Self::Waiting => None,
            Self::Offered { acceptor, .. } | Self::Claimed { acceptor, .. } => Some(acceptor),
        }
    }
}

impl ClaimDeadline {
    /// Whether it is that of the connection's current offer.
    fn is_current(&self, connections: &ConnectionMap<HandOverEntry>) -> bool {
        let state = connections.get(self.id).map(|entry| entry.state);
        matches!(state, Some(HandOverState::Offered { since, .. }) if since == self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::PickReason;
    use crate::limits;

    const fn acceptor(id: u64) -> AcceptorName {
        AcceptorName { manager: ManagerId(0), id: AcceptorId(id), enlistment: 0 }
    }

    const fn conn(id: u64) -> ConnectionName {
        ConnectionName { transport: 0, id, flow_hash: 0 }
    }

    const fn assignment(
        conn: ConnectionName,
        acceptor: AcceptorName,
        is_final: bool,
    ) -> Assignment {
        Assignment { conn, acceptor, is_final, reason: PickReason::Local }
    }

    fn at(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    fn table() -> OfferTable {
        OfferTable::new(&HandOverConfig::default()).unwrap()
    }

    fn offer(table: &mut OfferTable, now: Instant, id: u64, to: u64) -> Availability {
        if !table.is_waiting(id) {
            table.on_established(conn(id));
        }
        table.assign(now, assignment(conn(id), acceptor(to), false)).unwrap()
    }

    #[test]
    fn claimed_connection_reports_its_service_time_once() {
        let mut table = table();
        offer(&mut table, at(100), 1, 7);
        assert_eq!(table.claim(conn(1), acceptor(7)), ClaimOutcome::Confirmed);
        assert_eq!(table.owner(1), Some(acceptor(7)));
        assert_eq!(table.claim(conn(1), acceptor(7)), ClaimOutcome::Repeated);
        assert_eq!(table.claim(conn(1), acceptor(8)), ClaimOutcome::Late);
        let service_time = Duration::from_micros(150);
        let answered = AcceptorReport::Answered { acceptor: acceptor(7), service_time };
        assert_eq!(table.on_answer(at(250), 1), Some(answered));
        assert_eq!(table.on_answer(at(260), 1), None);
        let service_time = Duration::from_micros(200);
        let closed = AcceptorReport::Closed { acceptor: acceptor(7), service_time };
        assert_eq!(table.on_closed(at(300), 1), Some(closed));
        assert_eq!(table.on_closed(at(300), 1), None);
        assert_eq!(table.claim(conn(1), acceptor(7)), ClaimOutcome::Late);
        assert!(table.is_empty());
    }

    #[test]
    fn unclaimed_offer_is_taken_back_after_the_claim_time() {
        let mut table = table();
        offer(&mut table, at(0), 1, 7);
        offer(&mut table, at(10), 2, 7);
        assert_eq!(table.next_deadline(), Some(at(5_000)));
        assert_eq!(table.on_time(at(4_999)), None);
        let taken = TransportReport::TakenBack { conn: conn(1), acceptor: acceptor(7) };
        assert_eq!(table.on_time(at(5_000)), Some(taken));
        assert_eq!(table.on_time(at(5_000)), None);
        assert_eq!(table.claim(conn(1), acceptor(7)), ClaimOutcome::Late);
        assert_eq!(table.claim(conn(2), acceptor(7)), ClaimOutcome::Confirmed);
        assert_eq!(table.on_time(at(10_000)), None, "claimed in time");
        let counters = table.counters();
        assert_eq!((counters.take_backs, counters.late_claims, counters.claims), (1, 1, 1));
    }

    /// A core with too many programs: each connection is taken back every time.
    #[test]
    fn storm_of_take_backs_lets_the_claim_time_grow_for_a_while() {
        let mut table = table();
        let mut now = 0;
        for _ in 0..6 {
            for id in 1..=20 {
                offer(&mut table, at(now + id), id, id % 3);
            }
            now += table.claim_time(at(now)).as_micros() as u64 + 100;
            while table.on_time(at(now)).is_some() {}
        }
        let grown = table.claim_time(at(now));
        assert_eq!(grown, limits::CLAIM_TIME_DEFAULT * 16);
        // A claim that comes after 60 ms is in time now.
        offer(&mut table, at(now), 1, 7);
        assert_eq!(table.on_time(at(now + 60_000)), None);
        assert_eq!(table.claim(conn(1), acceptor(7)), ClaimOutcome::Confirmed);
        // One connection that waits for one stopped program is no storm.
        let calm = now + 60_000_000;
        assert_eq!(table.claim_time(at(calm)), limits::CLAIM_TIME_DEFAULT);
        offer(&mut table, at(calm), 100, 7);
        assert!(table.on_time(at(calm + 5_000)).is_some());
        assert_eq!(table.claim_time(at(calm + 5_000)), limits::CLAIM_TIME_DEFAULT);
    }

    #[test]
    fn deadlines_keep_the_order_of_offers_when_the_claim_time_falls() {
        let mut table = table();
        for round in 0..3 {
            offer(&mut table, at(round * 20_000), 1, 7);
            assert!(table.on_time(at(round * 20_000 + 19_000)).is_some());
        }
        // Twice as long twice, and the first doubling ends between two offers.
        let last = 59_000 + 1_000_000;
        offer(&mut table, at(last - 1), 2, 7);
        offer(&mut table, at(last), 3, 7);
        let due = last - 1 + 20_000;
        assert_eq!(table.on_time(at(due - 1)), None);
        let taken = [table.on_time(at(due)), table.on_time(at(due))].map(|report| match report {
            Some(TransportReport::TakenBack { conn, .. }) => conn.id,
            other => panic!("{other:?}"),
        });
        assert_eq!(taken, [2, 3]);
    }

    #[test]
    fn deadline_of_an_earlier_offer_does_not_end_a_later_one() {
        let mut table = table();
        offer(&mut table, at(0), 1, 7);
        assert_eq!(table.on_acceptor_gone(acceptor(7)).len(), 1);
        offer(&mut table, at(4_000), 1, 8);
        assert_eq!(table.on_time(at(5_000)), None);
        assert!(table.on_time(at(9_000)).is_some());
    }

    #[test]
    fn final_offer_needs_no_claim_and_has_no_deadline() {
        let mut table = table();
        table.on_established(conn(1));
        let assignment = assignment(conn(1), acceptor(7), true);
        assert!(table.assign(at(0), assignment).unwrap().is_final);
        assert_eq!(table.owner(1), Some(acceptor(7)));
        assert_eq!((table.next_deadline(), table.counters().final_offers), (None, 1));
        assert!(table.on_acceptor_gone(acceptor(7)).is_empty(), "it is the dead acceptor's");
    }

    #[test]
    fn reset_before_the_claim_withdraws_the_offer() {
        let mut table = table();
        offer(&mut table, at(0), 1, 7);
        let withdrawn = ResetOutcome::Withdrawn(AcceptorReport::Withdrawn(acceptor(7)));
        assert_eq!(table.on_reset(at(1), 1), Some(withdrawn));
        assert_eq!(table.claim(conn(1), acceptor(7)), ClaimOutcome::Late);
        assert_eq!(table.on_time(at(9_000)), None);
        table.on_established(conn(2));
        let reset = ResetOutcome::Waiting(TransportReport::Reset(conn(2)));
        assert_eq!(table.on_reset(at(1), 2), Some(reset));
        let crossed = assignment(conn(2), acceptor(7), false);
        let report = Err(AcceptorReport::Withdrawn(acceptor(7)));
        assert_eq!(table.assign(at(1), crossed), report);
        assert_eq!(table.on_reset(at(1), 2), None);
    }

    #[test]
    fn id_in_use_again_is_another_connection() {
        let mut table = table();
        offer(&mut table, at(0), 1, 7);
        let stale = ConnectionName { flow_hash: 9, ..conn(1) };
        assert_eq!(table.claim(stale, acceptor(7)), ClaimOutcome::Late);
        assert!(!table.on_refused(stale) && table.offered_to(1) == Some(acceptor(7)));
    }

    #[test]
    fn closed_listener_ends_unclaimed_connections_only() {
        let mut table = table();
        for id in 1..=3 {
            offer(&mut table, at(0), id, 7);
        }
        table.claim(conn(2), acceptor(7));
        table.on_established(conn(4));
        assert_eq!(table.close_listener(), [conn(1), conn(3), conn(4)]);
        assert_eq!(table.claim(conn(1), acceptor(7)), ClaimOutcome::Late);
        assert_eq!((table.len(), table.next_deadline()), (1, None));
        assert!(table.on_closed(at(1), 2).is_some());
    }

    #[test]
    fn deadlines_of_claimed_offers_do_not_pile_up() {
        let claim_time = limits::CLAIM_TIMES.1;
        let config = HandOverConfig { claim_time, ..HandOverConfig::default() };
        let mut table = OfferTable::new(&config).unwrap();
        for id in 0..10_000 {
            offer(&mut table, at(id), id, 7);
            table.claim(conn(id), acceptor(7));
            table.on_closed(at(id), id);
        }
        assert!(table.deadlines.len() < 100, "{}", table.deadlines.len());
    }

    #[test]
    fn invalid_setting_error_names_value_and_range() {
        let error = |config: HandOverConfig| OfferTable::new(&config).unwrap_err().to_string();
        let config = HandOverConfig::default();
        let claim_time = Duration::from_micros(99);
        let short = HandOverConfig { claim_time, ..config.clone() };
        assert_eq!(error(short), "claim time 99µs is not in 100µs to 1s");
        let none = HandOverConfig { waiting: 0, ..config };
        assert_eq!(error(none), "0 waiting connections are not in 1 to 65536");
    }
}
