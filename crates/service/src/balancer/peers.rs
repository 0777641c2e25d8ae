//! The other connection managers of a listener: their acceptors, and their offers.
//!
//! Pure: messages in, candidates out.
//!
//! Invariants
//! - Membership does not expire; an offer does.
//! - An offer counts only while its acceptor is a member.

use std::time::Duration;

use megapipe_stack::Instant;

use super::ServiceOffer;
use crate::acceptor::{AcceptorName, ManagerId};
use crate::limits::ACCEPTORS_MAX;

/// An offer, and when it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ReceivedOffer {
    offer: ServiceOffer,
    at: Instant,
    /// Whether it passed the filter and has not fallen below the low water mark since.
    is_admitted: bool,
}

/// What is known of one other manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct PeerManager {
    manager: ManagerId,
    /// Ascending.
    acceptors: Vec<AcceptorName>,
    offer: Option<ReceivedOffer>,
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

    /// Removes an acceptor, and the offer that names it. Returns whether it was known.
    pub(super) fn leave(&mut self, name: AcceptorName) -> bool {
        let Ok(place) = self.place(name.manager) else { return false };
        let peer = &mut self.peers[place];
        let Ok(at) = peer.acceptors.binary_search(&name) else { return false };
        peer.acceptors.remove(at);
        self.acceptors -= 1;
        peer.offer = peer.offer.filter(|received| received.offer.acceptor != name);
        if peer.acceptors.is_empty() {
            self.peers.remove(place);
        }
        true
    }

    /// Replaces a manager's offer. Returns `false` if its acceptor is no member.
    pub(super) fn receive(&mut self, now: Instant, offer: ServiceOffer) -> bool {
        let Ok(place) = self.place(offer.acceptor.manager) else { return false };
        let peer = &mut self.peers[place];
        if peer.acceptors.binary_search(&offer.acceptor).is_err() {
            return false;
        }
        let is_admitted = peer.offer.is_some_and(|received| received.is_admitted);
        peer.offer = Some(ReceivedOffer { offer, at: now, is_admitted });
        true
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

    /// The offers that count; with `admitted`, only those that pass the filter.
    pub(super) fn offers(&self, admitted: bool) -> impl Iterator<Item = ServiceOffer> + Clone {
        let received = self.peers.iter().filter_map(|peer| peer.offer);
        received.filter(move |it| it.is_admitted || !admitted).map(|it| it.offer)
    }
}
