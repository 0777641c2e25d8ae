//! Load balancer of a listener: selects the acceptor of each new connection by measured service
//! times.
//!
//! Read first: [PIKA 3.3]. Each connection manager has one balancer for each listener. It knows its
//! own acceptors with their service times, and of the other managers' acceptors the names
//! (membership) and the fastest one (the manager's offer). `balancer/config.rs` has the settings,
//! `estimator.rs` the service times, `selection.rs` the draw, `peers.rs` what other managers sent,
//! `lending.rs` what this one sends them.
//!
//! A pick has three rounds with the default scheme: the offers that beat the local acceptors by the
//! tariff; the local acceptors; the two winners. Every round is a random draw, weighted by inverse
//! service time, so that equal acceptors get equal shares and slow ones are sampled.
//!
//! Pure: input, time and a random number in, decisions out. It knows no clock and no thread.
//!
//! Invariants
//! - An acceptor that was dropped because it did not claim in time keeps its service times: if it
//!   enlists again it is no new one.
//! - An acceptor without credit is not picked by its own manager.
//! - Except with the scheme `naive`, a connection gets an acceptor if another manager has any.
//! - Offers leave at most once an interval; membership changes leave at once.
//! - An offer wins a round only with credit that its manager has lent. Lent credit is with one
//!   manager, or in one message.
//! - A manager that has borrowed nothing requests credit, of each other manager once until that
//!   lends some. Managers that lack credit for a connection get it in the order of their requests.
//! - What changes who may get a connection, or a service time, makes the cache of candidates
//!   invalid: a pick among many acceptors costs little more than one among two.

mod config;
mod estimator;
mod lending;
mod peers;
mod selection;

use megapipe_stack::Instant;

use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::limits::{ACCEPTORS_MAX, PROBE_CONNECTIONS_MAX};
pub(crate) use config::check_duration;
pub use config::{
    BalancerConfig, BalancerError, LoadMeasure, OfferRule, Scheme, Statistic, Tariff,
};
pub use estimator::Estimator;
pub use peers::LentCredit;
use peers::{PeerManagers, UsedCredit};
pub(crate) use selection::RandomSequence;
use selection::{beats, below, select, taxed_weight, weight};

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// A manager's fastest acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServiceOffer {
    /// The acceptor, which other managers assign connections to directly.
    pub acceptor: AcceptorName,
    /// Its service time in nanoseconds; 0: none was measured yet.
    pub service_time: u64,
    /// Credit that the offer lends to each receiver; [`u32::MAX`]: without limit.
    pub credits: u32,
}

/// The acceptor of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The acceptor.
    pub acceptor: AcceptorName,
    /// Whether it is the only one of all managers, so that it needs no claim.
    pub is_final: bool,
    /// Why it was picked.
    pub reason: PickReason,
    /// It takes the connection on credit that its manager has lent.
    pub is_lent: bool,
    /// There is credit for the connection: of this manager's acceptor, lent, or not counted.
    pub has_credit: bool,
}

/// What decided a pick. The order is that of messages between managers and of `observe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PickReason {
    /// A local acceptor won, by service times.
    #[default]
    Local,
    /// An offer won.
    Offer,
    /// No local acceptor had credit, and no offer with a service time counted: any member.
    Member,
    /// The flow's hash.
    Hash,
}

impl PickReason {
    /// All reasons, in their order.
    pub(crate) const ALL: [Self; 4] = [Self::Local, Self::Offer, Self::Member, Self::Hash];
}

/// An acceptor of this manager.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LocalAcceptor {
    name: AcceptorName,
    credit: u32,
    /// By manager: credit that it has, or that is on its way there or back.
    lent: Vec<u32>,
    /// Some was lent since it was recalled.
    may_recall: bool,
    /// Connections that were assigned to it and are not finished.
    open: u32,
    /// Whether it has sent a byte on one of its connections.
    has_answered: bool,
    estimator: Estimator,
}

impl LocalAcceptor {
    /// Whether its weight depends on its own service times alone, which `is_timed` states of all.
    fn is_measured(&self, is_timed: bool) -> bool {
        is_timed && self.estimator.estimate().is_some()
    }
}

/// A local acceptor that may get a connection, with its service time in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Candidate {
    index: usize,
    service_time: u64,
    weight: u64,
}

/// The candidates of the last pick, which are those of the next one unless something has changed.
/// A cache is no part of the balancer's state: all are equal.
#[derive(Debug, Clone, Default)]
struct CandidateCache {
    all: Vec<Candidate>,
    is_valid: bool,
    /// When an estimate changes by itself.
    until: Option<Instant>,
}

impl PartialEq for CandidateCache {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CandidateCache {}

impl Hash for CandidateCache {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The last offer that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SentOffer {
    offer: ServiceOffer,
    at: Instant,
}

/// One manager's balancer for one listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Balancer {
    config: BalancerConfig,
    manager: ManagerId,
    /// In the order of their names, by which the hash selects.
    local: Vec<LocalAcceptor>,
    /// Those that did not claim in time, and have not enlisted again.
    dropped: Vec<LocalAcceptor>,
    enlistments: u32,
    candidates: CandidateCache,
    peers: PeerManagers,
    sent: Option<SentOffer>,
    /// Managers that requested credit, the first one next.
    requests: VecDeque<ManagerId>,
    /// Acceptors that no other manager can assign connections to.
    private: Vec<AcceptorId>,
}

impl Balancer {
    /// Creates a balancer without acceptors.
    ///
    /// # Errors
    /// [`BalancerError`]: a setting out of range.
    pub fn new(manager: ManagerId, config: BalancerConfig) -> Result<Self, BalancerError> {
        config.check()?;
        Ok(Self {
            config,
            manager,
            local: Vec::new(),
            dropped: Vec::new(),
            enlistments: 0,
            candidates: CandidateCache::default(),
            peers: PeerManagers::default(),
            sent: None,
            requests: VecDeque::new(),
            private: Vec::new(),
        })
    }

    /// Returns the settings.
    #[must_use]
    pub const fn config(&self) -> &BalancerConfig {
        &self.config
    }

    /// Returns the manager whose balancer this is.
    #[must_use]
    pub const fn manager(&self) -> ManagerId {
        self.manager
    }

    /// Adds credit to an acceptor. An unknown one becomes an acceptor, without service times.
    /// Returns its name and whether it is new; `None` if the listener has the most there may be.
    pub fn enlist(&mut self, id: AcceptorId, credit: u32) -> Option<(AcceptorName, bool)> {
        if let Some(known) = self.local.iter_mut().find(|known| known.name.id == id) {
            self.candidates.is_valid &= known.credit > 0;
            known.credit = known.credit.saturating_add(credit);
            return Some((known.name, false));
        }
        if self.local.len() >= ACCEPTORS_MAX {
            return None;
        }
        self.candidates.is_valid = false;
        let name = AcceptorName { manager: self.manager, id, enlistment: self.enlistments };
        self.enlistments = self.enlistments.wrapping_add(1);
        let again = self.dropped.iter().position(|known| known.name.id == id);
        let acceptor = match again.map(|place| self.dropped.remove(place)) {
            Some(dropped) => LocalAcceptor { name, credit, ..dropped },
            None => {
                let estimator = Estimator::new(&self.config);
                LocalAcceptor {
                    name,
                    credit,
                    lent: Vec::new(),
                    may_recall: false,
                    open: 0,
                    has_answered: false,
                    estimator,
                }
            }
        };
        let place = self.local.partition_point(|known| known.name < name);
        self.local.insert(place, acceptor);
        Some((name, true))
    }

    /// Removes an acceptor of this manager's that accepts no more, or died. Returns its credit and
    /// the name of its enlistment, if it had one.
    pub fn remove(&mut self, id: AcceptorId) -> Option<(AcceptorName, u32)> {
        self.dropped.retain(|known| known.name.id != id);
        self.private.retain(|known| *known != id);
        let place = self.local.iter().position(|known| known.name.id == id)?;
        self.candidates.is_valid = false;
        let removed = self.local.remove(place);
        Some((removed.name, removed.credit))
    }

    /// Takes back a connection that an acceptor of this manager's did not claim in time. The
    /// acceptor is dropped; returns whether this enlistment was not over before.
    pub fn on_time_out(&mut self, name: AcceptorName) -> bool {
        self.on_finished(name);
        self.end_enlistment(name)
    }

    /// Drops an acceptor of this manager's whose claim came too late. Returns whether this
    /// enlistment was not over before.
    pub fn end_enlistment(&mut self, name: AcceptorName) -> bool {
        let Some(place) = self.local.iter().position(|known| known.name == name) else {
            return false;
        };
        self.candidates.is_valid = false;
        let dropped = self.local.remove(place);
        if self.dropped.len() >= ACCEPTORS_MAX {
            self.dropped.remove(0);
        }
        self.dropped.push(dropped);
        true
    }

    /// Removes all acceptors of this manager's. Returns their names.
    pub fn remove_all(&mut self) -> Vec<AcceptorName> {
        self.dropped.clear();
        self.private.clear();
        self.candidates.is_valid = false;
        self.local.drain(..).map(|known| known.name).collect()
    }

    /// Returns the name of a local acceptor's current enlistment.
    #[must_use]
    pub fn name_of(&self, id: AcceptorId) -> Option<AcceptorName> {
        self.local.iter().find(|known| known.name.id == id).map(|known| known.name)
    }

    /// Counts a connection that was assigned to an acceptor of this manager's, maybe by another
    /// one: `borrower`, if it had the credit for it.
    pub fn on_assigned(&mut self, name: AcceptorName, borrower: Option<ManagerId>) {
        let is_timed = self.is_timed();
        borrower.into_iter().for_each(|borrower| self.on_returned(name, borrower, 1));
        if let Some(known) = self.local.iter_mut().find(|known| known.name == name) {
            known.credit = known.credit.saturating_sub(u32::from(borrower.is_none()));
            known.open = known.open.saturating_add(1);
            self.candidates.is_valid &= known.credit > 0 && known.is_measured(is_timed);
        }
    }

    /// Returns the credit of an offer that was withdrawn: its connection was reset.
    pub fn on_withdrawn(&mut self, name: AcceptorName) {
        self.on_finished(name);
        if let Some(known) = self.local.iter_mut().find(|known| known.name == name) {
            self.candidates.is_valid &= known.credit > 0;
            known.credit = known.credit.saturating_add(1);
        }
    }

    /// Counts a connection of an acceptor as finished, whichever enlistment it was assigned to.
    pub fn on_finished(&mut self, name: AcceptorName) {
        let is_timed = self.is_timed();
        if let Some(known) = self.known_mut(name) {
            known.open = known.open.saturating_sub(1);
            let is_measured = known.is_measured(is_timed);
            self.candidates.is_valid &= is_measured;
        }
    }

    /// Adds a service time of one of this manager's acceptors, of whichever enlistment.
    pub fn on_service_time(&mut self, now: Instant, name: AcceptorName, service_time: Duration) {
        if let Some(known) = self.known_mut(name) {
            let has_changed = known.estimator.add(now, service_time);
            self.candidates.is_valid &= !has_changed;
        }
    }

    /// As [`Balancer::on_finished`] and [`Balancer::on_service_time`], of one connection.
    pub fn on_closed(&mut self, now: Instant, name: AcceptorName, service_time: Duration) {
        let is_timed = self.is_timed();
        if let Some(known) = self.known_mut(name) {
            known.open = known.open.saturating_sub(1);
            let has_changed = known.estimator.add(now, service_time);
            let is_measured = known.is_measured(is_timed);
            self.candidates.is_valid &= is_measured && !has_changed;
        }
    }

    /// An acceptor of this manager's has sent the first byte on a connection: it is no new one.
    pub fn on_answered(&mut self, name: AcceptorName) {
        if let Some(known) = self.known_mut(name) {
            let had_answered = std::mem::replace(&mut known.has_answered, true);
            self.candidates.is_valid &= had_answered;
        }
    }

    /// Whether an acceptor of this manager's has sent a byte on a connection.
    #[must_use]
    pub fn has_answered(&self, name: AcceptorName) -> bool {
        let mut known = self.local.iter().chain(&self.dropped);
        known.any(|known| known.name.id == name.id && known.has_answered)
    }

    /// Connections that this manager's acceptors would take.
    #[must_use]
    pub fn credit(&self) -> u32 {
        self.local.iter().fold(0, |sum, known| sum.saturating_add(known.credit))
    }

    /// The acceptors of this manager, with their service times in nanoseconds, if they have any,
    /// and their open connections.
    pub fn local_acceptors(&self) -> impl Iterator<Item = (AcceptorName, Option<u64>, u32)> {
        self.local.iter().map(|known| (known.name, self.measured(known), known.open))
    }

    /// Adds an acceptor of another manager. Returns whether it is new.
    pub fn on_joined(&mut self, name: AcceptorName) -> bool {
        name.manager != self.manager && self.peers.join(name)
    }

    /// Removes an acceptor of another manager, with the offer that names it. Returns the credit
    /// that was lent with it.
    pub fn on_left(&mut self, name: AcceptorName) -> Option<LentCredit> {
        self.peers.leave(name)
    }

    /// Returns the number of acceptors of all managers.
    #[must_use]
    pub const fn acceptors(&self) -> usize {
        self.local.len() + self.peers.len()
    }

    /// Returns the service time of a local acceptor, in nanoseconds: measured, or, before its first
    /// answer, that of the best local one.
    #[must_use]
    pub fn service_time(&self, id: AcceptorId) -> Option<u64> {
        let known = self.local.iter().find(|known| known.name.id == id)?;
        self.measured(known).or_else(|| self.best_measured())
    }

    /// Returns the measured service time of an acceptor, also of one that was dropped, in
    /// nanoseconds.
    #[must_use]
    pub fn measured_of(&self, id: AcceptorId) -> Option<u64> {
        let mut known = self.local.iter().chain(&self.dropped);
        self.measured(known.find(|known| known.name.id == id)?)
    }

    /// Whether service times count, and not connections.
    fn is_timed(&self) -> bool {
        self.config.measure != LoadMeasure::Connections
    }

    /// An acceptor of this manager's, also one that was dropped, whatever its enlistment.
    fn known_mut(&mut self, name: AcceptorName) -> Option<&mut LocalAcceptor> {
        if name.manager != self.manager {
            return None;
        }
        let mut known = self.local.iter_mut().chain(&mut self.dropped);
        known.find(|known| known.name.id == name.id)
    }

    /// Takes the samples of all local acceptors that are due.
    fn advance_estimates(&mut self, now: Instant) {
        for known in &mut self.local {
            let has_changed = known.estimator.advance(now);
            self.candidates.is_valid &= !has_changed;
        }
    }

    fn measured(&self, known: &LocalAcceptor) -> Option<u64> {
        match self.config.measure {
            // A scale of its own: a microsecond for each connection, the next one included.
            LoadMeasure::Connections => Some((u64::from(known.open) + 1) * 1_000),
            LoadMeasure::Closed | LoadMeasure::FirstAnswer => known.estimator.estimate(),
        }
    }

    fn best_measured(&self) -> Option<u64> {
        self.local.iter().filter_map(|known| self.measured(known)).min()
    }

    /// The local acceptors that may get a connection. New ones count as the best that has answered,
    /// and hold few connections until they have answered too.
    fn candidates(&self) -> impl Iterator<Item = Candidate> + Clone {
        let best = self.best_measured();
        let fallback = best.or_else(|| self.peers.offers().map(|it| it.service_time).min());
        let has_answers = fallback.is_some();
        let candidate = move |(index, known): (usize, &LocalAcceptor)| {
            let measured = self.measured(known);
            let may_probe =
                !has_answers || known.has_answered || known.open < PROBE_CONNECTIONS_MAX;
            let is_ready = known.credit > 0 && (measured.is_some() || may_probe);
            let service_time = measured.or(fallback).unwrap_or(1_000);
            is_ready.then(|| Candidate { index, service_time, weight: weight(service_time) })
        };
        self.local.iter().enumerate().filter_map(candidate)
    }

    /// Selects the acceptor of a new connection, and uses one of its credit. `None`: the connection
    /// waits until an acceptor enlists, or an offer arrives.
    pub fn pick(&mut self, now: Instant, flow_hash: u32, random: u64) -> Option<Pick> {
        // One that was dropped may enlist again: what this one does not claim can then go to it.
        let is_final = self.acceptors() == 1 && self.dropped.is_empty();
        let (acceptor, reason) = match self.config.scheme {
            Scheme::Hash => (self.pick_by_hash(flow_hash)?, PickReason::Hash),
            scheme => self.pick_by_time(now, scheme, &mut RandomSequence::new(random))?,
        };
        let credit = match acceptor.manager == self.manager {
            true => {
                self.on_assigned(acceptor, None);
                UsedCredit::Uncounted
            }
            false => self.peers.use_credit(acceptor),
        };
        let is_lent = credit == UsedCredit::Lent;
        let has_credit = credit != UsedCredit::Nothing || self.config.scheme == Scheme::Hash;
        Some(Pick { acceptor, is_final, reason, is_lent, has_credit })
    }

    /// As Linux: the hash scaled to the number of sockets. The order is the same at each manager.
    /// If the acceptor is local and has no credit, the next local one gets the connection, or else
    /// the hash selects among the others'.
    fn pick_by_hash(&self, flow_hash: u32) -> Option<AcceptorName> {
        let scaled = |count: usize| ((u64::from(flow_hash) * count as u64) >> 32) as usize;
        let local = self.local.iter().map(|known| known.name);
        let before = self.peers.acceptors().take_while(|it| it.manager < self.manager);
        let after = self.peers.acceptors().skip_while(|it| it.manager < self.manager);
        let hashed = before.chain(local.clone()).chain(after).nth(scaled(self.acceptors()))?;
        if hashed.manager != self.manager || self.can_serve(hashed) {
            return Some(hashed);
        }
        let mut later = local.clone().filter(|&it| it > hashed).chain(local);
        let next = later.find(|&it| self.can_serve(it));
        next.or_else(|| self.peers.acceptors().nth(scaled(self.peers.len())))
    }

    fn pick_by_time(
        &mut self,
        now: Instant,
        scheme: Scheme,
        random: &mut RandomSequence,
    ) -> Option<(AcceptorName, PickReason)> {
        let mut cache = std::mem::take(&mut self.candidates);
        if !cache.is_valid || cache.until.is_some_and(|until| until <= now) {
            self.advance_estimates(now);
            cache.all.clear();
            cache.all.extend(self.candidates());
            cache.until = self.local.iter().filter_map(|it| it.estimator.next_sample_at()).min();
            // Without a service time of its own an acceptor is one by what others have.
            cache.is_valid = self.local.iter().all(|it| it.is_measured(self.is_timed()));
        }
        let pick = self.pick_among(now, scheme, &cache.all, random);
        self.candidates = cache;
        pick
    }

    fn pick_among(
        &mut self,
        now: Instant,
        scheme: Scheme,
        local: &[Candidate],
        random: &mut RandomSequence,
    ) -> Option<(AcceptorName, PickReason)> {
        let best = local.iter().map(|it| it.service_time).min();
        self.admit(now, scheme, best);
        if scheme == Scheme::Naive && !self.local.is_empty() {
            return self.pick_local(local, random.next());
        }
        let Some(tariff) = scheme.tariff().filter(|_| best.is_some()) else {
            // Nothing local competes: the offers with credit, then others, then any member.
            let number = random.next();
            let lent = Self::pick_offer(self.peers.lent_offers(false), number);
            let new = || Self::pick_new(self.peers.new_members(), number);
            let any = || Self::pick_offer(self.peers.offers(), number);
            return lent.or_else(new).or_else(any).or_else(|| self.pick_member(random));
        };
        match scheme {
            Scheme::Tournament(_) => self.pick_by_tournament(local, tariff, random),
            _ => {
                let offers = self.peers.lent_offers(matches!(scheme, Scheme::Filtered(_)));
                self.pick_in_one_round(local, offers, tariff, random.next())
            }
        }
    }

    /// Updates which offers pass the filter. Water marks belong to the tournament.
    fn admit(&mut self, now: Instant, scheme: Scheme, best_local: Option<u64>) {
        let low = self.config.low_water_percent;
        self.peers.admit(now, self.config.expiry, |offer, was_admitted| {
            match (scheme, best_local) {
                (Scheme::Filtered(tariff), Some(local)) => {
                    beats(offer.service_time, local, tariff, 100)
                }
                (Scheme::Tournament(tariff), Some(local)) => {
                    let mark = if was_admitted { low } else { 100 };
                    beats(offer.service_time, local, tariff, mark)
                }
                _ => was_admitted,
            }
        });
    }

    fn pick_local(&self, local: &[Candidate], random: u64) -> Option<(AcceptorName, PickReason)> {
        let index = select(local.iter().map(|it| it.weight), random)?;
        Some((self.local[local[index].index].name, PickReason::Local))
    }

    fn pick_offer(
        mut offers: impl Iterator<Item = ServiceOffer> + Clone,
        random: u64,
    ) -> Option<(AcceptorName, PickReason)> {
        let index = select(offers.clone().map(|it| weight(it.service_time)), random)?;
        Some((offers.nth(index)?.acceptor, PickReason::Offer))
    }

    /// Any acceptor of which another manager has lent credit without a service time.
    fn pick_new(
        mut members: impl Iterator<Item = AcceptorName> + Clone,
        random: u64,
    ) -> Option<(AcceptorName, PickReason)> {
        let index = below(random, members.clone().count());
        Some((members.nth(index)?, PickReason::Member))
    }

    /// Any manager with acceptors, with equal weight, and any of its acceptors.
    fn pick_member(&self, random: &mut RandomSequence) -> Option<(AcceptorName, PickReason)> {
        let manager = below(random.next(), self.peers.managers());
        let acceptors = self.peers.acceptors_of(manager);
        let acceptor = acceptors.get(below(random.next(), acceptors.len()))?;
        Some((*acceptor, PickReason::Member))
    }

    fn pick_in_one_round(
        &self,
        local: &[Candidate],
        mut offers: impl Iterator<Item = ServiceOffer> + Clone,
        tariff: Tariff,
        random: u64,
    ) -> Option<(AcceptorName, PickReason)> {
        let taxed = offers.clone().map(|it| taxed_weight(it.service_time, tariff));
        let own = local.iter().map(|it| it.weight);
        let index = select(own.chain(taxed), random)?;
        match local.get(index) {
            Some(candidate) => Some((self.local[candidate.index].name, PickReason::Local)),
            None => Some((offers.nth(index - local.len())?.acceptor, PickReason::Offer)),
        }
    }

    fn pick_by_tournament(
        &self,
        local: &[Candidate],
        tariff: Tariff,
        random: &mut RandomSequence,
    ) -> Option<(AcceptorName, PickReason)> {
        let mut offers = self.peers.lent_offers(true);
        let first = select(offers.clone().map(|it| weight(it.service_time)), random.next());
        let offer = first.and_then(|index| offers.nth(index));
        let second = select(local.iter().map(|it| it.weight), random.next())?;
        let own = local[second];
        let winner = (self.local[own.index].name, PickReason::Local);
        let Some(offer) = offer else { return Some(winner) };
        let weights = [own.weight, taxed_weight(offer.service_time, tariff)];
        match select(weights.into_iter(), random.next())? {
            0 => Some(winner),
            _ => Some((offer.acceptor, PickReason::Offer)),
        }
    }

    /// Whether a local acceptor is there with credit.
    fn can_serve(&self, name: AcceptorName) -> bool {
        self.local.iter().any(|known| known.name == name && known.credit > 0)
    }
}

#[cfg(test)]
mod tests;
