//! Offers of new connections: which the application claims, and when.
//!
//! Read first: `hand_over.rs` of this crate.
//!
//! A listener that several sessions share offers its connections. An offer is claimed when the
//! application submits its next operations, in one batch with them: it then dispatches, and an
//! accept is pending, since the server offers against credit alone. A claim may ask for the
//! connection's first bytes, which saves the round trip of a first read.
//!
//! Invariants
//! - Few connections are claimed that the program has not taken (`ClaimPace`): a program that is
//!   slow with each leaves the others to be taken back. A fast one claims more at once, since each
//!   claim takes a round trip to the server.
//! - A withdrawn offer is not claimed, unless its claim is on its way.

use std::collections::VecDeque;

use megapipe_shm::record::{Command, Id};
use megapipe_stack::{Instant, ListenerId};

use super::{ProtocolFault, RemoteClient};
use crate::acceptor::AcceptorId;
use crate::limits::{CLAIM_PACE, CLAIMS_MAX, CLAIMS_SLOW_MAX, EVENTS_ASIDE_MAX};

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

/// How many connections are claimed at once, by how long the last ones took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClaimPace {
    most: usize,
    /// Claims since the program had none left.
    claimed: usize,
    since: Instant,
}

impl Default for ClaimPace {
    fn default() -> Self {
        Self { most: CLAIMS_SLOW_MAX, claimed: 0, since: Instant::from_nanos(0) }
    }
}

impl ClaimPace {
    /// The program has taken all that was claimed, and dispatches again.
    fn all_taken(&mut self, now: Instant) {
        // Where fewer were offered than may be claimed, the limit was no limit.
        if self.claimed >= self.most {
            let is_fast = now.since(self.since) <= CLAIM_PACE;
            self.most = if is_fast { self.most * 2 } else { self.most / 2 };
            self.most = self.most.clamp(CLAIMS_SLOW_MAX, CLAIMS_MAX);
        }
        (self.claimed, self.since) = (0, now);
    }
}

/// Offers that were not claimed, and claims that were not answered.
#[derive(Debug, Default)]
pub(super) struct SessionOffers {
    acceptors: Vec<OwnAcceptor>,
    /// Calls of listen so far, less the listeners that were left: there is room for an acceptor
    /// of each.
    listeners: usize,
    offers: VecDeque<ConnectionOffer>,
    /// Connections, and whether their first bytes were asked for.
    claims: Vec<(Id, bool)>,
    pace: ClaimPace,
}

impl SessionOffers {
    /// Makes room for the acceptor of one more listener. Returns whether there is memory for it.
    pub(super) fn reserve_acceptor(&mut self) -> bool {
        let missing = (self.listeners + 1).saturating_sub(self.acceptors.len());
        let is_reserved = self.acceptors.try_reserve(missing).is_ok();
        self.listeners += usize::from(is_reserved);
        is_reserved
    }

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
        self.listeners = self.listeners.saturating_sub(1);
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
        !self.offers.is_empty() && self.claims.len() < self.pace.most
    }

    /// The program dispatches, at `now`.
    #[inline]
    fn on_dispatch(&mut self, now: Instant) {
        if !self.offers.is_empty() && self.claims.is_empty() {
            self.pace.all_taken(now);
        }
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
            self.pace.claimed += 1;
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

    /// The program dispatches: the next flush claims as many connections as it is fast.
    #[inline]
    pub fn note_dispatch(&mut self, now: Instant) {
        self.offers.on_dispatch(now);
    }

    /// Submits claims.
    #[cold]
    pub(super) fn put_claims(&mut self) {
        while let Some((number, command)) = self.offers.next_claim() {
            self.ask(number.0, command);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Offers without end, to a program that needs so long for each connection. Returns how many
    /// are claimed at once in the end.
    fn claimed_at_once(pace: &mut ClaimPace, us_per_connection: u64) -> usize {
        let mut now = pace.since + Duration::from_secs(1);
        for _ in 0..20 {
            pace.all_taken(now);
            pace.claimed = pace.most;
            now += Duration::from_micros(us_per_connection) * pace.most as u32;
        }
        pace.most
    }

    #[test]
    fn claims_at_once_follow_the_pace_of_the_program() {
        let mut pace = ClaimPace::default();
        assert_eq!(claimed_at_once(&mut pace, 20_000), CLAIMS_SLOW_MAX);
        assert_eq!(claimed_at_once(&mut pace, 2), CLAIMS_MAX);
        assert_eq!(claimed_at_once(&mut pace, 200), CLAIMS_SLOW_MAX);
        assert!((32..=64).contains(&claimed_at_once(&mut pace, 40)));
    }

    #[test]
    fn few_offers_say_nothing_of_the_pace() {
        let mut pace = ClaimPace::default();
        claimed_at_once(&mut pace, 2);
        for second in 1..10 {
            pace.all_taken(Instant::from_micros(second * 1_000_000));
            pace.claimed = 1;
        }
        // The first of them came after a long pause, which was one of the network.
        assert!(pace.most >= CLAIMS_MAX / 2);
    }
}
