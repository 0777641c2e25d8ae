//! The connection manager of one listener, with the acceptors that are at home there.
//!
//! Read first: `accept_queue.rs`; the decision on acceptors with a home in `docs/decisions`.
//!
//! A channel has a lane to each transport server, and an acceptor enlists with one manager: its
//! home. Credit that its lanes get at other servers is forwarded to the home, and any transport
//! server may have a connection for it. So the home pools the credit of all lanes.
//!
//! Pure: messages, time and random numbers in, outputs out.
//!
//! Invariants
//! - While an acceptor is enlisted, its credit in the balancer is what is pooled.
//! - What is pooled is the sum of what the acceptor wants at all transport servers, less what is
//!   offered there and what is lent to other managers: each assignment takes one, from what is
//!   pooled or lent, and each offer that ends without a claim returns it.
//! - An acceptor whose session has left one server is none any more. Credit that the others sent
//!   before counts for nothing.

use std::net::SocketAddr;
use std::time::Duration;

use megapipe_stack::Instant;

use super::{
    AcceptQueue, AcceptorReport, EnlistError, HandOverError, ListenerSettings, ManagerMessage,
    ManagerOutput, TransportReport,
};
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::balancer::{LentCredit, Scheme, ServiceOffer};
use crate::limits::ACCEPTORS_LISTED_MAX;
use crate::observe::{ManagedAcceptor, ManagedListener, ManagerOffer};

/// An acceptor of a session, for the messages of its lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptorOfSession {
    /// The session's name at all servers.
    pub(crate) session: u64,
    /// The acceptor's number in it.
    pub(crate) number: u64,
    /// It has a lane to this server only.
    pub(crate) is_private: bool,
}

/// Transport servers, a bit each.
type ServerSet = u128;

const fn bit(server: u16) -> ServerSet {
    1 << (server as u32 % ServerSet::BITS)
}

/// An acceptor whose home this is.
#[derive(Debug)]
struct HomeAcceptor {
    id: AcceptorId,
    who: AcceptorOfSession,
    /// Connections that it would take, over all its lanes. Below zero while an assignment of
    /// another manager has overtaken the credit for it.
    pooled: i64,
    /// The transport servers that have sent credit.
    servers: ServerSet,
    /// Its session has left the listener at one of them.
    is_gone: bool,
    /// Connections that were assigned to it, by any manager.
    assigned: u64,
    /// Offers to it that were taken back because no claim came in time.
    take_backs: u64,
    /// Credit of servers that have none of this listener's any more: of the session's next listener
    /// at the address, unless they leave again.
    later: Vec<(u16, u32)>,
}

impl HomeAcceptor {
    fn credit(&self) -> u32 {
        u32::try_from(self.pooled.max(0)).unwrap_or(u32::MAX)
    }
}

/// The connection manager of one listener.
#[derive(Debug)]
pub(crate) struct ListenerManager {
    queue: AcceptQueue,
    homes: Vec<HomeAcceptor>,
    next_id: u64,
}

impl ListenerManager {
    /// Creates a manager without acceptors. `first_id` is above all numbers of acceptors that were
    /// at home at an earlier listener of the same address.
    ///
    /// # Errors
    /// [`HandOverError`]: a setting out of range.
    pub(crate) fn new(
        manager: ManagerId,
        settings: &ListenerSettings,
        first_id: u64,
    ) -> Result<Self, HandOverError> {
        let queue = AcceptQueue::new(manager, &settings.hand_over, settings.balancer.clone())?;
        Ok(Self { queue, homes: Vec::new(), next_id: first_id })
    }

    /// Returns the queue, for inspection.
    pub(crate) const fn queue(&self) -> &AcceptQueue {
        &self.queue
    }

    /// Returns an acceptor whose home this is.
    pub(crate) fn acceptor(&self, id: AcceptorId) -> Option<AcceptorOfSession> {
        self.homes.iter().find(|home| home.id == id).map(|home| home.who)
    }

    /// Whether nothing is left that the manager has to know.
    pub(crate) fn is_unused(&self) -> bool {
        let has_peers = self.queue.balancer().acceptors() > 0;
        self.homes.is_empty() && !has_peers && self.queue.waiting().next().is_none()
    }

    /// By session: what is pooled, and what so many managers have of it.
    #[cfg(test)]
    pub(crate) fn pooled(&self, managers: u16) -> Vec<(u64, u32)> {
        let balancer = self.queue.balancer();
        let lent = |id| (0..managers).filter_map(move |it| balancer.lent_to(id, ManagerId(it)));
        let all =
            |home: &HomeAcceptor| lent(home.id).fold(home.pooled, |sum, it| sum + i64::from(it));
        let all = |home| u32::try_from(all(home)).expect("no debt");
        self.homes.iter().map(|home| (home.who.session, all(home))).collect()
    }

    /// Whether an acceptor has got connections that it had no credit for.
    #[cfg(test)]
    pub(crate) fn has_debt(&self) -> bool {
        self.homes.iter().any(|home| home.pooled < 0)
    }

    /// The acceptors whose home this is.
    #[cfg(test)]
    pub(crate) fn home_ids(&self) -> impl Iterator<Item = AcceptorId> {
        self.homes.iter().map(|home| home.id)
    }

    /// ACCEPT-CONNECTION, over the lane to a transport server.
    ///
    /// # Errors
    /// [`EnlistError`]: the listener has the most acceptors there may be.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        (from, who): (u16, AcceptorOfSession),
        credit: u32,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) -> Result<(), EnlistError> {
        let known = self.homes.iter_mut().find(|home| home.who == who);
        let (home, is_new) = match known {
            Some(home) if home.is_gone => {
                if home.servers & bit(from) == 0 {
                    home.later.push((from, credit));
                }
                return Ok(());
            }
            Some(home) => (home, false),
            None => {
                let id = AcceptorId(self.next_id);
                self.next_id += 1;
                self.homes.push(HomeAcceptor {
                    id,
                    who,
                    pooled: 0,
                    servers: 0,
                    is_gone: false,
                    assigned: 0,
                    take_backs: 0,
                    later: Vec::new(),
                });
                if who.is_private {
                    self.queue.keep_private(id);
                }
                let Some(home) = self.homes.last_mut() else { return Ok(()) };
                (home, true)
            }
        };
        let before = home.credit();
        home.pooled += i64::from(credit);
        home.servers |= bit(from);
        let (id, pooled) = (home.id, home.credit());
        let is_enlisted = self.queue.balancer().name_of(id).is_some();
        // What it had when it was dropped counts again.
        let credit = if is_enlisted { pooled - before } else { pooled };
        let enlisted = self.decide(out, |queue, out| queue.enlist(now, id, credit, random, out));
        if enlisted.is_err() && is_new {
            self.homes.retain(|home| home.id != id);
        }
        enlisted.map(|_| ())
    }

    /// ACCEPT-CONNECTION after a late claim: the acceptor dispatches again. Once for each
    /// enlistment, however many claims of it are late.
    pub(crate) fn accept_again(
        &mut self,
        now: Instant,
        lost: AcceptorName,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        let Some(home) = self.homes.iter().find(|home| home.id == lost.id && !home.is_gone) else {
            return;
        };
        let pooled = home.credit();
        if self.queue.balancer().name_of(lost.id).is_some_and(|current| current != lost) {
            return;
        }
        // There was a place for it before.
        let _ = self.decide(out, |queue, out| queue.enlist_again(now, lost, pooled, random, out));
    }

    /// A session takes no more connections over a transport server: it has left the listener, or
    /// has ended. It leaves the others too.
    pub(crate) fn on_gone(
        &mut self,
        now: Instant,
        (from, session): (u16, u64),
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        let mut again = Vec::new();
        let queue = &mut self.queue;
        self.homes.retain_mut(|home| {
            if home.who.session != session {
                return true;
            }
            if !home.is_gone {
                home.is_gone = true;
                queue.remove(home.id, out);
            }
            home.servers &= !bit(from);
            home.later.retain(|(server, _)| *server != from);
            let is_over = home.servers == 0;
            if is_over {
                again.extend(home.later.drain(..).map(|later| (home.who, later)));
            }
            !is_over
        });
        for (who, (server, credit)) in again {
            // There was a place for it before.
            let _ = self.accept(now, (server, who), credit, random, out);
        }
    }

    /// Takes a report of a transport server about one of its connections.
    pub(crate) fn on_transport(
        &mut self,
        now: Instant,
        report: TransportReport,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        if let TransportReport::TakenBack { acceptor, .. } = report {
            self.note_taken_back(acceptor);
            self.return_credit(now, acceptor, random, out);
        }
        self.decide(out, |queue, out| queue.on_transport(now, report, random, out));
    }

    /// Takes a report about an acceptor whose home this is.
    pub(crate) fn on_acceptor(
        &mut self,
        now: Instant,
        report: AcceptorReport,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        if let AcceptorReport::Withdrawn(acceptor) = report {
            let current = self.queue.balancer().name_of(acceptor.id);
            if current == Some(acceptor) {
                // The queue returns the credit.
                self.return_pooled(acceptor.id, 1);
            } else {
                self.return_credit(now, acceptor, random, out);
            }
        }
        self.decide(out, |queue, out| queue.on_acceptor(now, report, random, out));
    }

    /// Takes a message of another manager.
    pub(crate) fn on_message(
        &mut self,
        now: Instant,
        message: ManagerMessage,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        match message {
            ManagerMessage::Assigned { acceptor, borrower } => {
                self.note_assigned(acceptor.id, borrower.is_some());
            }
            ManagerMessage::TimedOut(name) => {
                self.note_taken_back(name);
                self.return_credit(now, name, random, out);
            }
            ManagerMessage::Returned { lent, borrower } => {
                return self.on_returned(now, (lent, borrower), random, out);
            }
            ManagerMessage::Joined(_)
            | ManagerMessage::Left(_)
            | ManagerMessage::Recall(_)
            | ManagerMessage::Request { .. }
            | ManagerMessage::Offer(_) => {}
        }
        self.decide(out, |queue, out| queue.on_message(now, message, random, out));
    }

    /// Credit that was lent is pooled again.
    fn on_returned(
        &mut self,
        now: Instant,
        (lent, borrower): (LentCredit, ManagerId),
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        self.queue.on_returned(lent, borrower);
        let id = lent.acceptor.id;
        let returned = self.return_pooled(id, lent.credits);
        let is_enlisted = self.queue.balancer().name_of(id).is_some();
        if let Some(credit) = returned.filter(|_| is_enlisted) {
            // It needs no place.
            let _ = self.decide(out, |queue, out| queue.enlist(now, id, credit, random, out));
        }
    }

    /// Publishes the offer if one is due, to the other ones of so many managers.
    pub(crate) fn publish_offer(
        &mut self,
        now: Instant,
        managers: u16,
        out: &mut Vec<ManagerOutput>,
    ) {
        // One with a lane to this server only can have no connection of others.
        let is_shared = self.homes.iter().all(|home| !home.who.is_private);
        let start = out.len();
        self.queue.publish_offer(now, if is_shared { managers } else { 1 }, out);
        for output in &out[start..] {
            if let ManagerOutput::Lend(_, offer) = output {
                self.note_lent(offer);
            }
        }
    }

    /// What an offer lends is pooled no more.
    fn note_lent(&mut self, offer: &ServiceOffer) {
        let home = self.homes.iter_mut().find(|it| it.id == offer.acceptor.id);
        if let Some(home) = home.filter(|_| offer.credits < u32::MAX) {
            home.pooled -= i64::from(offer.credits);
        }
    }

    /// When credit that other managers have lent expires next.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.queue.next_expiry()
    }

    /// An offer has ended without a claim. If the acceptor has enlisted again since, it has one
    /// more credit; if it is dropped, it gets it when it enlists.
    fn return_credit(
        &mut self,
        now: Instant,
        name: AcceptorName,
        random: u64,
        out: &mut Vec<ManagerOutput>,
    ) {
        let is_own = name.manager == self.queue.balancer().manager();
        let returned = if is_own { self.return_pooled(name.id, 1) } else { None };
        let Some(credit) = returned else { return };
        let current = self.queue.balancer().name_of(name.id);
        if current.is_some_and(|current| current != name) {
            // It is enlisted: it needs no place.
            let _ = self.decide(out, |queue, out| queue.enlist(now, name.id, credit, random, out));
        }
    }

    /// Adds to what is pooled of an acceptor whose session has not left. Returns by how much its
    /// credit grows. `None`: there is no such acceptor.
    fn return_pooled(&mut self, id: AcceptorId, credits: u32) -> Option<u32> {
        let home = self.homes.iter_mut().find(|home| home.id == id && !home.is_gone)?;
        let before = home.credit();
        home.pooled += i64::from(credits);
        Some(home.credit() - before)
    }

    /// A connection was assigned to an acceptor. It takes one of what is pooled, or was lent.
    fn note_assigned(&mut self, id: AcceptorId, is_lent: bool) {
        if let Some(home) = self.homes.iter_mut().find(|home| home.id == id) {
            home.pooled -= i64::from(!is_lent);
            home.assigned += 1;
        }
    }

    fn note_taken_back(&mut self, name: AcceptorName) {
        let is_own = name.manager == self.queue.balancer().manager();
        let home = self.homes.iter_mut().find(|home| is_own && home.id == name.id);
        home.into_iter().for_each(|home| home.take_backs += 1);
    }

    /// The listener at `address` as the manager sees it. Offers of the managers below `managers`.
    pub(crate) fn shown(
        &self,
        now: Instant,
        (address, scheme): (SocketAddr, &Scheme),
        managers: u16,
    ) -> ManagedListener {
        let (counters, balancer) = (self.queue.counters(), self.queue.balancer());
        let acceptor = |home: &HomeAcceptor| {
            let mut local = balancer.local_acceptors();
            let known = local.find(|(name, ..)| name.id == home.id);
            let (service_time, open) = known.map_or((None, 0), |(_, time, open)| (time, open));
            ManagedAcceptor {
                // The name of a session of one lane is one of its shard alone.
                session: if home.who.is_private { 0 } else { home.who.session },
                is_enlisted: known.is_some(),
                credit: home.credit(),
                open,
                service_time: service_time.map(Duration::from_nanos),
                assigned: home.assigned,
                take_backs: home.take_backs,
            }
        };
        let offer = |manager: u16| {
            let (offer, at) = balancer.offer_of(ManagerId(manager))?;
            let service_time = Duration::from_nanos(offer.service_time);
            Some(ManagerOffer { manager, service_time, age: now.since(at) })
        };
        ManagedListener {
            local: Some(address),
            scheme: scheme.to_string(),
            waiting: u32::try_from(self.queue.waiting().count()).unwrap_or(u32::MAX),
            assigned: counters.local,
            assigned_elsewhere: counters.remote,
            offers_sent: counters.offers_sent,
            offers_received: counters.offers_received,
            waits: counters.waits,
            refused: counters.refused,
            dropped: counters.dropped,
            acceptor_count: u32::try_from(balancer.acceptors()).unwrap_or(u32::MAX),
            acceptors: self.homes.iter().take(ACCEPTORS_LISTED_MAX).map(acceptor).collect(),
            offers: (0..managers).filter_map(offer).collect(),
        }
    }

    /// Lets the queue decide, and takes what it assigns to this manager's acceptors from what is
    /// pooled of them.
    fn decide<T>(
        &mut self,
        out: &mut Vec<ManagerOutput>,
        what: impl FnOnce(&mut AcceptQueue, &mut Vec<ManagerOutput>) -> T,
    ) -> T {
        let start = out.len();
        let done = what(&mut self.queue, out);
        let own = self.queue.balancer().manager();
        for output in &out[start..] {
            match output {
                ManagerOutput::Assign(assignment) if assignment.acceptor.manager == own => {
                    self.note_assigned(assignment.acceptor.id, false);
                }
                ManagerOutput::Grant(_, offer) => self.note_lent(offer),
                _ => {}
            }
        }
        done
    }
}
