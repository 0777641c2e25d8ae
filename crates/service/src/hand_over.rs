//! Hand-over of new connections to acceptors: the speculative three-way handshake of PIKA.
//!
//! Read first: [PIKA 3.2]. A connection that was established is *offered* to an acceptor, which
//! *claims* it; what is not claimed in time is taken back and offered to another.
//!
//! ```text
//!  transport server (OfferTable)      connection manager (AcceptQueue)      acceptor
//!          | established ------------------> |                                 |
//!          | <--------------- assignment --- | pick (balancer)                 |
//!          | CONNECTION-AVAILABLE -----------------------------------------> |
//!          | <------------------------------------------- CLAIM-CONNECTION --- |
//!          | confirmed ----------------------------------------------------> |
//!          | closed, with service time ----> |
//! ```
//!
//! Two machines for each listener: the [`OfferTable`] of a transport server has the state of its
//! connections, the [`AcceptQueue`] of a connection manager has the acceptors and the connections
//! that wait for one. In a combined server their calls follow each other; in a split layout the
//! same values travel as messages. `hand_over/model.rs` runs both in every order.
//!
//! Pure: input, time and random numbers in, decisions out.
//!
//! Invariants
//! - A connection is in exactly one state: waiting (in one manager's queue), offered to one
//!   acceptor, claimed by one acceptor, or finished. The offer table alone decides it.
//! - Bytes of a connection go to an acceptor only once it is claimed.
//! - The only acceptor of a listener gets connections without a claim.

mod accept_queue;
mod acceptor_homes;
mod claim_times;
mod connection_map;
mod growing_claim_time;
mod mail;
mod offer_table;

use std::fmt;
use std::time::Duration;

use crate::acceptor::{AcceptorName, ManagerId};
use crate::balancer::{
    BalancerConfig, BalancerError, LentCredit, PickReason, ServiceOffer, check_duration,
};
use crate::limits;
pub use accept_queue::{AcceptQueue, EnlistError, QueueCounters};
pub(crate) use acceptor_homes::{AcceptorOfSession, ListenerManager};
pub(crate) use claim_times::ClaimTimes;
pub(crate) use mail::{ManagerInput, decode_assignment, encode_assignment};
pub use offer_table::{Availability, ClaimOutcome, OfferCounters, OfferTable, ResetOutcome};

/// Identifies an established connection among those of all transport servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionName {
    /// The transport server: the shard that the flow's hash selects, for the connection's life.
    pub transport: u16,
    /// The connection there; not used again for another one while messages about it travel.
    pub id: u64,
    /// Hash of the flow, for the scheme `hash`.
    pub flow_hash: u32,
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.transport, self.id)
    }
}

/// Settings of a listener's hand-over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HandOverConfig {
    /// Time in which an offered connection is claimed, within [`limits::CLAIM_TIMES`].
    pub claim_time: Duration,
    /// New connections that may wait at one manager: 1 to [`limits::WAITING_MAX`]. Those that were
    /// taken back always have room: the stack's table bounds them.
    pub waiting: usize,
}

impl Default for HandOverConfig {
    fn default() -> Self {
        Self { claim_time: limits::CLAIM_TIME_DEFAULT, waiting: limits::WAITING_DEFAULT }
    }
}

/// A setting of a hand-over that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// The claim time, or a setting of the balancer.
    #[error(transparent)]
    Setting(#[from] BalancerError),
    /// The number of connections that may wait.
    #[error("{value} waiting connections are not in 1 to {max}", max = limits::WAITING_MAX)]
    Waiting {
        /// The value.
        value: usize,
    },
}

impl HandOverConfig {
    /// Checks each setting.
    ///
    /// # Errors
    /// [`HandOverError`] names the setting, its value and the allowed values.
    pub fn check(&self) -> Result<(), HandOverError> {
        check_duration("claim time", self.claim_time, limits::CLAIM_TIMES)?;
        if (1..=limits::WAITING_MAX).contains(&self.waiting) {
            return Ok(());
        }
        Err(HandOverError::Waiting { value: self.waiting })
    }
}

/// Settings of a listener that several sessions share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ListenerSettings {
    /// Of the hand-over.
    pub hand_over: HandOverConfig,
    /// Of the balancer.
    pub balancer: BalancerConfig,
}

/// Settings of all listeners of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HandOverSettings {
    /// Of listeners that have none of their own.
    pub usual: ListenerSettings,
    /// Of the listeners at a port.
    pub of_ports: Vec<(u16, ListenerSettings)>,
}

impl HandOverSettings {
    /// Checks each setting.
    ///
    /// # Errors
    /// [`HandOverError`] names the setting, its value and the allowed values.
    pub fn check(&self) -> Result<(), HandOverError> {
        let of_ports = self.of_ports.iter().map(|(_, settings)| settings);
        for settings in of_ports.chain([&self.usual]) {
            settings.hand_over.check()?;
            settings.balancer.check()?;
        }
        Ok(())
    }

    /// Returns the settings of the listeners at a port.
    #[must_use]
    pub fn of_port(&self, port: u16) -> &ListenerSettings {
        let own = self.of_ports.iter().find(|(other, _)| *other == port);
        own.map_or(&self.usual, |(_, settings)| settings)
    }
}

/// A connection manager's decision, for the transport server of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The connection.
    pub conn: ConnectionName,
    /// The acceptor that it is to be offered to.
    pub acceptor: AcceptorName,
    /// Whether the offer needs no claim: there is no other acceptor.
    pub is_final: bool,
    /// What decided.
    pub reason: PickReason,
}

/// A report of a transport server, for its connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportReport {
    /// A connection needs an acceptor: it was established, or its acceptor is gone.
    Unassigned(ConnectionName),
    /// An acceptor did not claim a connection in time; it needs another one.
    TakenBack {
        /// The connection.
        conn: ConnectionName,
        /// The acceptor.
        acceptor: AcceptorName,
    },
    /// The peer reset a connection that waits.
    Reset(ConnectionName),
}

/// A report of a transport server, for the connection manager of the acceptor that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AcceptorReport {
    /// An offer was withdrawn: the peer reset its connection before the claim.
    Withdrawn(AcceptorName),
    /// The acceptor sent the first byte on a connection.
    Answered {
        /// The acceptor.
        acceptor: AcceptorName,
        /// Time since the connection was offered.
        service_time: Duration,
    },
    /// A connection of the acceptor's is finished.
    Closed {
        /// The acceptor.
        acceptor: AcceptorName,
        /// Time since the connection was offered.
        service_time: Duration,
    },
}

impl AcceptorReport {
    /// Returns the acceptor that the report is about.
    #[must_use]
    pub const fn acceptor(&self) -> AcceptorName {
        match *self {
            Self::Withdrawn(acceptor)
            | Self::Answered { acceptor, .. }
            | Self::Closed { acceptor, .. } => acceptor,
        }
    }
}

/// A message from one connection manager to another. Messages of one manager arrive in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagerMessage {
    /// An acceptor of the sender's enlisted.
    Joined(AcceptorName),
    /// An acceptor of the sender's is none any more.
    Left(AcceptorName),
    /// The sender's fastest acceptor.
    Offer(ServiceOffer),
    /// A connection of the sender's waits for credit of its acceptor that the receiver may have.
    Recall(AcceptorName),
    /// The sender assigned a connection to an acceptor of the receiver's.
    Assigned {
        /// The acceptor.
        acceptor: AcceptorName,
        /// The sender, if it had credit for it that the receiver had lent.
        borrower: Option<ManagerId>,
    },
    /// The sender returns credit of an acceptor of the receiver's.
    Returned {
        /// How much.
        lent: LentCredit,
        /// The sender.
        borrower: ManagerId,
    },
    /// An acceptor of the receiver's did not claim a connection of the sender's in time.
    TimedOut(AcceptorName),
    /// A connection of the sender's waits for credit, of which it has borrowed none.
    Request {
        /// The receiver.
        lender: ManagerId,
        /// The sender.
        borrower: ManagerId,
    },
}

#[cfg(test)]
impl ManagerMessage {
    /// Credit of an acceptor that the message carries to a borrower, or back.
    pub(crate) fn lent_credits(&self, id: crate::AcceptorId) -> u32 {
        match *self {
            Self::Offer(offer) if offer.acceptor.id == id => offer.credits,
            Self::Assigned { acceptor, borrower: Some(_) } if acceptor.id == id => 1,
            Self::Returned { lent, .. } if lent.acceptor.id == id => lent.credits,
            _ => 0,
        }
    }
}

/// What a connection manager sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagerOutput {
    /// To the transport server of the connection.
    Assign(Assignment),
    /// To the transport server of a connection for which there is no room in the queue: reset it.
    Refuse(ConnectionName),
    /// To the manager of the acceptor that the message names.
    Send(ManagerMessage),
    /// To all other managers.
    Publish(ManagerMessage),
    /// The offer to one other manager, with credit for it.
    Lend(ManagerId, ServiceOffer),
    /// The same to one that waits for credit. It wakes the receiver.
    Grant(ManagerId, ServiceOffer),
}

#[cfg(test)]
mod model;
