//! Offers to the other connection managers of a listener, and the credit that goes with them.
//!
//! Pure, as the balancer is.
//!
//! Invariants
//! - Lent credit is with one manager, or in one message.
//! - Credit that is lent without a request is at most half of what an acceptor has.
//! - Managers that request credit get it in the order of their requests.

use megapipe_stack::Instant;

use super::selection::select;
use super::{
    Balancer, Candidate, LentCredit, LocalAcceptor, OfferRule, Scheme, SentOffer, ServiceOffer,
};
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::limits::{LOAN_MAX, UNCOUNTED_CREDIT};

impl Balancer {
    /// Credit that was lent to another manager is not there any more.
    pub fn on_returned(&mut self, name: AcceptorName, borrower: ManagerId, credits: u32) {
        let known = self.known_mut(name);
        if let Some(lent) = known.and_then(|it| it.lent.get_mut(usize::from(borrower.0))) {
            *lent = lent.saturating_sub(credits);
        }
    }

    /// Takes another manager's offer. Returns credit that is not needed: all of it, if its acceptor
    /// is not known, which is no error: the message that it left may have come before.
    pub fn on_offer(&mut self, now: Instant, offer: ServiceOffer) -> Option<LentCredit> {
        self.peers.receive(now, offer)
    }

    /// An acceptor of this manager's of which other managers have credit that is needed here. Each
    /// once, until more is lent.
    pub fn recall(&mut self) -> Option<AcceptorName> {
        let mut local = self.local.iter_mut();
        let known = local.find(|it| it.may_recall && it.lent.iter().any(|lent| *lent > 0))?;
        known.may_recall = false;
        Some(known.name)
    }

    /// Another manager needs credit of its acceptor's back: what this one has of it.
    pub fn on_recall(&mut self, name: AcceptorName) -> Option<LentCredit> {
        self.peers.take_credit(name)
    }

    /// Discards an offer that is too old. Returns the credit that was lent with it. `None`: there
    /// is none with credit.
    pub fn expire_offer(&mut self, now: Instant) -> Option<LentCredit> {
        self.peers.expire(now, self.config.expiry)
    }

    /// When an offer with credit expires next.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.peers.oldest_lent().map(|at| at + self.config.expiry)
    }

    /// Credit of an acceptor of this manager's that another manager has, or that is on its way
    /// there or back. `None`: there is no such acceptor.
    #[must_use]
    pub fn lent_to(&self, id: AcceptorId, borrower: ManagerId) -> Option<u32> {
        let mut known = self.local.iter().chain(&self.dropped);
        let known = known.find(|known| known.name.id == id)?;
        Some(known.lent.get(usize::from(borrower.0)).copied().unwrap_or(0))
    }

    /// Credit of another manager's acceptor that this one has.
    #[must_use]
    pub fn borrowed(&self, manager: ManagerId, id: AcceptorId) -> u32 {
        self.peers.lent_of(id, manager)
    }

    /// Returns the last offer of another manager, and when it came.
    #[must_use]
    pub fn offer_of(&self, manager: ManagerId) -> Option<(ServiceOffer, Instant)> {
        self.peers.offer_of(manager)
    }

    /// Returns the offer for the other ones of so many managers, if one is due, without credit
    /// unless that has no limit: see [`Balancer::lend`]. To be called while the manager is awake
    /// anyway; an offer never wakes it.
    pub fn offer(&mut self, now: Instant, managers: u16) -> Option<ServiceOffer> {
        let is_early = |sent: &SentOffer| now.since(sent.at) < self.config.offer_interval;
        if self.sent.as_ref().is_some_and(is_early) {
            return None;
        }
        self.advance_estimates(now);
        let ready = self.local.iter().filter(|known| known.credit > 0);
        let measured = ready.filter_map(|known| Some((self.measured(known)?, known.name)));
        let (service_time, acceptor) = measured.min()?;
        let loan = self.loan(acceptor, managers);
        let credits = if loan == u32::MAX { loan } else { 0 };
        let offer = ServiceOffer { acceptor, service_time, credits };
        let is_due = match (self.sent, self.config.offer_rule) {
            (None, _) | (_, OfferRule::Always) => true,
            (Some(sent), OfferRule::Changed { percent, refresh }) => {
                let change = sent.offer.service_time.abs_diff(service_time);
                let limit = u128::from(sent.offer.service_time) * u128::from(percent);
                now.since(sent.at) >= refresh
                    || self.has_half_used(acceptor, loan, managers)
                    || u128::from(change) * 100 >= limit.max(1)
                    || !self.can_serve(sent.offer.acceptor)
            }
        };
        is_due.then(|| {
            self.sent = Some(SentOffer { offer, at: now });
            offer
        })
    }

    /// Credit of a local acceptor that each of the other managers may have: together at most half.
    /// [`u32::MAX`]: it has so much that none needs to be counted.
    fn loan(&self, name: AcceptorName, managers: u16) -> u32 {
        let known = self.local.iter().find(|known| known.name == name);
        let Some(LocalAcceptor { credit, lent, .. }) = known else { return 0 };
        if *credit >= UNCOUNTED_CREDIT {
            return u32::MAX;
        }
        let all = lent.iter().fold(*credit, |sum, lent| sum.saturating_add(*lent));
        let each = (all / 2).checked_div(u32::from(managers).saturating_sub(1));
        each.unwrap_or(0).min(LOAN_MAX)
    }

    /// Whether one of the other managers has at most half of the credit that it may have.
    fn has_half_used(&self, name: AcceptorName, loan: u32, managers: u16) -> bool {
        let is_limited = 0 < loan && loan < u32::MAX;
        let lent = |borrower| self.lent_to(name.id, borrower).unwrap_or(0);
        let mut others = (0..managers).map(ManagerId).filter(|other| *other != self.manager);
        is_limited && others.any(|other| lent(other) <= loan / 2)
    }

    /// Lends credit of a local acceptor to another one of so many managers. Returns how much goes
    /// with the offer to it.
    pub fn lend(&mut self, name: AcceptorName, borrower: ManagerId, managers: u16) -> u32 {
        let loan = self.loan(name, managers);
        let place = self.local.iter().position(|known| known.name == name);
        let Some(place) = place.filter(|_| loan < u32::MAX) else { return loan };
        let known = &self.local[place];
        let has = known.lent.get(usize::from(borrower.0)).copied().unwrap_or(0);
        let credits = loan.saturating_sub(has).min(known.credit);
        self.take_loan(place, borrower, credits);
        credits
    }

    /// A manager that credit is to be requested of for a connection that has none: each that has
    /// acceptors, once until it lends some.
    pub fn request(&mut self) -> Option<ManagerId> {
        let takes_others = match self.config.scheme {
            Scheme::Hash => false,
            Scheme::Naive => self.local.is_empty(),
            _ => true,
        };
        if takes_others { self.peers.request() } else { None }
    }

    /// Whether another manager waits for credit.
    #[inline]
    #[must_use]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Another manager lacks credit for a connection.
    pub fn on_request(&mut self, borrower: ManagerId) {
        if !self.requests.contains(&borrower) {
            self.requests.push_back(borrower);
        }
    }

    /// Lends credit to the manager that has waited longest for it. Returns it, and the offer with
    /// the credit: one if connections wait here too (`is_needed`), else up to half of what the
    /// acceptor has. `None`: no manager waits, or no acceptor may get a connection.
    pub fn grant(
        &mut self,
        now: Instant,
        random: u64,
        is_needed: bool,
    ) -> Option<(ManagerId, ServiceOffer)> {
        let borrower = *self.requests.front()?;
        self.advance_estimates(now);
        let place = self.draw_shared(random)?;
        self.requests.pop_front();
        let credit = self.local[place].credit;
        let acceptor = self.local[place].name;
        let service_time = self.measured(&self.local[place]).unwrap_or(0);
        let credits = match (credit, is_needed) {
            (UNCOUNTED_CREDIT.., _) => u32::MAX,
            (_, true) => 1,
            (_, false) => (credit / 2).clamp(1, LOAN_MAX),
        };
        if credits < u32::MAX {
            self.take_loan(place, borrower, credits);
        }
        Some((borrower, ServiceOffer { acceptor, service_time, credits }))
    }

    /// Draws an acceptor that may get a connection of another manager, by inverse service time.
    /// Returns its place.
    fn draw_shared(&self, random: u64) -> Option<usize> {
        let is_shared = |it: &Candidate| !self.private.contains(&self.local[it.index].name.id);
        let mut candidates = self.candidates().filter(is_shared);
        let index = select(candidates.clone().map(|it| it.weight), random)?;
        Some(candidates.nth(index)?.index)
    }

    /// Credit of an acceptor is with another manager from now on.
    fn take_loan(&mut self, place: usize, borrower: ManagerId, credits: u32) {
        let known = &mut self.local[place];
        let borrower = usize::from(borrower.0);
        if known.lent.len() <= borrower {
            known.lent.resize(borrower + 1, 0);
        }
        known.credit -= credits;
        known.lent[borrower] += credits;
        known.may_recall |= credits > 0;
        self.candidates.is_valid &= known.credit > 0;
    }

    /// No other manager can assign connections to an acceptor of this manager's.
    pub(crate) fn keep_private(&mut self, id: AcceptorId) {
        if !self.private.contains(&id) {
            self.private.push(id);
        }
    }
}
