//! The other connection managers of a listener: their acceptors, and their offers.
//!
//! Pure: messages in, candidates out.
//!
//! Invariants
//! - Membership does not expire; an offer does.
//! - An offer counts only while its acceptor is a member.
//! - Credit that was lent is in one offer until it is used or returned.

use std::time::Duration;

use megapipe_stack::Instant;

use super::ServiceOffer;
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::limits::ACCEPTORS_MAX;

/// An offer, and when it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ReceivedOffer {
    offer: ServiceOffer,
    at: Instant,
    /// Whether it passed the filter and has not fallen below the low water mark since.
    is_admitted: bool,
}

/// Credit of an acceptor of another manager, which that gets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LentCredit {
    /// The acceptor.
    pub acceptor: AcceptorName,
    /// How much.
    pub credits: u32,
}

impl ServiceOffer {
    /// Credit that has to be returned.
    fn lent(&self) -> Option<LentCredit> {
        let is_lent = self.credits > 0 && self.credits < u32::MAX;
        is_lent.then_some(LentCredit { acceptor: self.acceptor, credits: self.credits })
    }
}

/// What is known of one other manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct PeerManager {
    manager: ManagerId,
    /// Ascending.
    acceptors: Vec<AcceptorName>,
    offer: Option<ReceivedOffer>,
    /// Credit was requested of it, and has not come since.
    has_request: bool,
}

/// The credit that a connection of another manager's acceptor takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsedCredit {
    /// There is none.
    Nothing,
    /// One that the acceptor's manager has lent.
    Lent,
    /// The acceptor has so much that none is counted.
    Uncounted,
}

/// The other managers that have acceptors, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct PeerManagers {
    peers: Vec<PeerManager>,
    /// Acceptors of all of them.
    acceptors: usize,
}

impl PeerManagers {
    fn place(&self, manager: ManagerId) -> Result<usize, usize> {
        self.peers.binary_search_by_key(&manager, |peer| peer.manager)
    }

    /// Adds an acceptor. Returns `false` if it is known, or its manager has the most there may be.
    pub(super) fn join(&mut self, name: AcceptorName) -> bool {
        let place = match self.place(name.manager) {
            Ok(place) => place,
            Err(place) => {
                self.peers
                    .insert(place, PeerManager { manager: name.manager, ..PeerManager::default() });
                place
            }
        };
        let acceptors = &mut self.peers[place].acceptors;
        match acceptors.binary_search(&name) {
            Err(at) if acceptors.len() < ACCEPTORS_MAX => {
                acceptors.insert(at, name);
                self.acceptors += 1;
                true
            }
            _ => false,
        }
    }

    /// Removes an acceptor, and the offer that names it. Returns the credit of that offer.
    pub(super) fn leave(&mut self, name: AcceptorName) -> Option<LentCredit> {
        let place = self.place(name.manager).ok()?;
        let peer = &mut self.peers[place];
        let at = peer.acceptors.binary_search(&name).ok()?;
        peer.acceptors.remove(at);
        self.acceptors -= 1;
        let removed = peer.offer.take_if(|received| received.offer.acceptor == name);
        if peer.acceptors.is_empty() {
            self.peers.remove(place);
        }
        removed?.offer.lent()
    }

    /// Replaces a manager's offer, and keeps the credit of an earlier one of the same acceptor.
    /// Returns credit that is not kept: that of another acceptor, or all, if the acceptor is no
    /// member.
    pub(super) fn receive(&mut self, now: Instant, mut offer: ServiceOffer) -> Option<LentCredit> {
        let place = self.place(offer.acceptor.manager);
        let mut peer = place.ok().map(|place| &mut self.peers[place]);
        // Also if the acceptor has left since: another request is needed then.
        peer.iter_mut().for_each(|peer| peer.has_request &= offer.credits == 0);
        let is_member =
            |peer: &&mut PeerManager| peer.acceptors.binary_search(&offer.acceptor).is_ok();
        let Some(peer) = peer.filter(is_member) else { return offer.lent() };
        let is_admitted = peer.offer.is_some_and(|received| received.is_admitted);
        let before = peer.offer.take().map(|received| received.offer);
        let returned = match before {
            Some(before) if before.acceptor == offer.acceptor && offer.credits < u32::MAX => {
                offer.credits += before.lent().map_or(0, |lent| lent.credits);
                None
            }
            before => before.and_then(|before| before.lent()),
        };
        peer.offer = Some(ReceivedOffer { offer, at: now, is_admitted });
        returned
    }

    /// Takes the credit of an acceptor's offer, which stays.
    pub(super) fn take_credit(&mut self, name: AcceptorName) -> Option<LentCredit> {
        let place = self.place(name.manager).ok()?;
        let offer = self.peers[place].offer.as_mut().map(|received| &mut received.offer);
        let offer = offer.filter(|offer| offer.acceptor == name)?;
        let lent = offer.lent()?;
        offer.credits = 0;
        Some(lent)
    }

    /// Discards an offer older than `expiry` that has credit, and returns that.
    pub(super) fn expire(&mut self, now: Instant, expiry: Duration) -> Option<LentCredit> {
        let is_over = |received: &mut ReceivedOffer| {
            now.since(received.at) >= expiry && received.offer.lent().is_some()
        };
        let expired = self.peers.iter_mut().find_map(|peer| peer.offer.take_if(is_over));
        expired?.offer.lent()
    }

    /// When the oldest offer with credit came.
    pub(super) fn oldest_lent(&self) -> Option<Instant> {
        let received = self.peers.iter().filter_map(|peer| peer.offer);
        received.filter(|it| it.offer.lent().is_some()).map(|it| it.at).min()
    }

    /// Credit of an acceptor that an offer has.
    pub(super) fn lent_of(&self, id: AcceptorId, manager: ManagerId) -> u32 {
        let offer = self.offer_of(manager).map(|(offer, _)| offer);
        let lent = offer.and_then(|offer| offer.lent()).filter(|lent| lent.acceptor.id == id);
        lent.map_or(0, |lent| lent.credits)
    }

    /// Uses credit of an acceptor, if there is some.
    pub(super) fn use_credit(&mut self, name: AcceptorName) -> UsedCredit {
        let Ok(place) = self.place(name.manager) else { return UsedCredit::Nothing };
        let offer = self.peers[place].offer.as_mut().map(|received| &mut received.offer);
        match offer.filter(|offer| offer.acceptor == name) {
            None | Some(ServiceOffer { credits: 0, .. }) => UsedCredit::Nothing,
            Some(ServiceOffer { credits: u32::MAX, .. }) => UsedCredit::Uncounted,
            Some(offer) => {
                offer.credits -= 1;
                UsedCredit::Lent
            }
        }
    }

    /// A manager that credit was not requested of since it lent some; it was now.
    pub(super) fn request(&mut self) -> Option<ManagerId> {
        let peer = self.peers.iter_mut().find(|peer| !peer.has_request)?;
        peer.has_request = true;
        Some(peer.manager)
    }

    /// A manager's last offer, and when it came.
    pub(super) fn offer_of(&self, manager: ManagerId) -> Option<(ServiceOffer, Instant)> {
        let received = self.peers[self.place(manager).ok()?].offer?;
        Some((received.offer, received.at))
    }

    /// Number of acceptors of all managers.
    pub(super) const fn len(&self) -> usize {
        self.acceptors
    }

    /// Number of managers that have acceptors.
    pub(super) const fn managers(&self) -> usize {
        self.peers.len()
    }

    /// The acceptors, in the order of their managers and names.
    pub(super) fn acceptors(&self) -> impl Iterator<Item = AcceptorName> + Clone {
        self.peers.iter().flat_map(|peer| peer.acceptors.iter().copied())
    }

    /// Acceptors of the manager at `index` of [`PeerManagers::managers`].
    pub(super) fn acceptors_of(&self, index: usize) -> &[AcceptorName] {
        self.peers.get(index).map_or(&[], |peer| &peer.acceptors)
    }

    /// Discards offers older than `expiry`, then updates which of them pass the filter.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        expiry: Duration,
        passes: impl Fn(&ServiceOffer, bool) -> bool,
    ) {
        for peer in &mut self.peers {
            peer.offer = peer.offer.filter(|received| now.since(received.at) < expiry);
            if let Some(received) = &mut peer.offer {
                received.is_admitted = passes(&received.offer, received.is_admitted);
            }
        }
    }

    /// The offers that count, with their service times.
    pub(super) fn offers(&self) -> impl Iterator<Item = ServiceOffer> + Clone {
        let all = self.peers.iter().filter_map(|peer| peer.offer).map(|it| it.offer);
        all.filter(|offer| offer.service_time > 0)
    }

    /// Acceptors of which credit is there, and no service time.
    pub(super) fn new_members(&self) -> impl Iterator<Item = AcceptorName> + Clone {
        let all = self.peers.iter().filter_map(|peer| peer.offer).map(|it| it.offer);
        let is_new = |offer: &ServiceOffer| offer.service_time == 0 && offer.credits > 0;
        all.filter(is_new).map(|offer| offer.acceptor)
    }

    /// Those with credit; with `admitted`, only those that pass the filter.
    pub(super) fn lent_offers(&self, admitted: bool) -> impl Iterator<Item = ServiceOffer> + Clone {
        let received = self.peers.iter().filter_map(|peer| peer.offer);
        let counts = move |it: &ReceivedOffer| {
            let ServiceOffer { credits, service_time, .. } = it.offer;
            credits > 0 && service_time > 0 && (it.is_admitted || !admitted)
        };
        received.filter(counts).map(|it| it.offer)
    }
}
