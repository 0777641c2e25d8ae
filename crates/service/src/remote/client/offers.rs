//! SessionOffers of new connections: which the application claims, and when.
//!
//! Read first: `hand_over.rs` of this crate.
//!
//! A listener that several sessions share offers its connections. An offer is claimed when the
//! application submits its next operations, in one batch with them: it then dispatches, and an
//! accept is pending, since the server offers against credit alone. A claim may ask for the
//! connection's first bytes, which saves the round trip of a first read.
//!
//! Invariants
//! - At most [`CLAIMS_MAX`] connections are claimed that the program has not taken: a program that
//!   is slow with each leaves the others to be taken back.
//! - A withdrawn offer is not claimed, unless its claim is on its way.

use std::collections::VecDeque;

use megapipe_shm::record::{Command, Id};
use megapipe_stack::ListenerId;

use super::{ProtocolFault, RemoteClient};
use crate::acceptor::AcceptorId;
use crate::limits::{CLAIMS_MAX, EVENTS_ASIDE_MAX};

/// An acceptor of the application.
#[derive(Debug, Clone, Copy)]
struct OwnAcceptor {
    listener: ListenerId,
    number: AcceptorId,
    /// Its connections are to be read at once.
    receives: bool,
}

#[derive(Debug, Clone, Copy)]
struct ConnectionOffer {
    conn: Id,
    /// As the server names the acceptor.
    acceptor: Id,
    number: AcceptorId,
}

/// SessionOffers that were not claimed, and claims that were not answered.
#[derive(Debug, Default)]
pub(super) struct SessionOffers {
    acceptors: Vec<OwnAcceptor>,
    offers: VecDeque<ConnectionOffer>,
    /// Connections, and whether their first bytes were asked for.
    claims: Vec<(Id, bool)>,
}

impl SessionOffers {
    /// An acceptor takes connections of a listener.
    pub(super) fn enlist(&mut self, listener: ListenerId, number: AcceptorId) {
        match self.acceptors.iter_mut().find(|known| known.number == number) {
            Some(known) => known.listener = listener,
            None => self.acceptors.push(OwnAcceptor { listener, number, receives: false }),
        }
    }

    /// The application leaves a listener.
    pub(super) fn leave(&mut self, listener: ListenerId) {
        self.acceptors.retain(|known| known.listener != listener);
    }

    fn acceptor(&mut self, number: AcceptorId) -> Option<&mut OwnAcceptor> {
        self.acceptors.iter_mut().find(|known| known.number == number)
    }

    /// CONNECTION-AVAILABLE.
    ///
    /// # Errors
    /// More offers than a correct server makes.
    pub(super) fn on_available(
        &mut self,
        number: AcceptorId,
        conn: Id,
        acceptor: Id,
    ) -> Result<(), ProtocolFault> {
        if self.offers.len() >= EVENTS_ASIDE_MAX {
            return Err(ProtocolFault);
        }
        self.offers.push_back(ConnectionOffer { conn, acceptor, number });
        Ok(())
    }

    /// The peer has reset a connection that was offered.
    pub(super) fn on_withdrawn(&mut self, conn: Id) {
        self.offers.retain(|offer| offer.conn != conn);
    }

    /// A claim was refused. The server has enlisted the acceptor again. There may be no such claim:
    /// the connection became the application's without one while it was on its way.
    pub(super) fn on_refused(&mut self, conn: Id) {
        self.take_claim(conn);
    }

    /// A connection is the application's. Returns whether its claim has asked for its first bytes.
    #[inline]
    pub(super) fn on_incoming(&mut self, conn: Id) -> bool {
        // The only acceptor of a listener claims nothing.
        let claims_none = self.claims.is_empty() && self.offers.is_empty();
        !claims_none && self.end_offer(conn)
    }

    /// Ends the offer of a connection that the application has now. It may be an old one: the
    /// connection was taken back, and is given to the only acceptor that is left.
    fn end_offer(&mut self, conn: Id) -> bool {
        let receives = self.take_claim(conn);
        if receives.is_none() {
            self.on_withdrawn(conn);
        }
        receives.unwrap_or(false)
    }

    fn take_claim(&mut self, conn: Id) -> Option<bool> {
        let place = self.claims.iter().position(|(claimed, _)| *claimed == conn)?;
        Some(self.claims.swap_remove(place).1)
    }

    /// Whether there are offers to claim.
    #[inline]
    pub(super) fn has_claims(&self) -> bool {
        !self.offers.is_empty() && self.claims.len() < CLAIMS_MAX
    }

    /// The next claim.
    fn next_claim(&mut self) -> Option<(AcceptorId, Command)> {
        while self.has_claims() {
            let ConnectionOffer { conn, acceptor, number } = self.offers.pop_front()?;
            // An offer of a listener that was left has gone to another.
            let Some(OwnAcceptor { receives, .. }) = self.acceptor(number).copied() else {
                continue;
            };
            self.claims.push((conn, receives));
            return Some((number, Command::Claim { conn, acceptor, receives }));
        }
        None
    }
}

impl RemoteClient {
    /// Whether the connections that an acceptor takes are to be read at once.
    pub fn set_first_read(&mut self, acceptor: AcceptorId, receives: bool) {
        if let Some(known) = self.offers.acceptor(acceptor) {
            known.receives = receives;
        }
    }

    /// Submits claims.
    #[cold]
    pub(super) fn put_claims(&mut self) {
        while let Some((number, command)) = self.offers.next_claim() {
            self.ask(number.0, command);
        }
    }
}
