//! What hand-overs decide about connections: values for the sessions of a shard.
//!
//! Read first: `hand_over.rs` of this crate.

use megapipe_shm::record::Id;
use megapipe_stack::{ConnId, ListenerId, PoolId};

use super::owners::HandOverNumber;
use crate::acceptor::AcceptorId;

/// Bits of an acceptor's name in a record that select it among those of its listener.
pub(super) const ACCEPTOR_BITS: u32 = 16;

/// What is to be done at a session, or with a connection, as the machines decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Offer a connection to an acceptor of a session.
    Offer { session: PoolId, number: AcceptorId, conn: ConnId, acceptor: Id },
    /// Give a connection to the only acceptor.
    Assign { session: PoolId, to: HandedConn },
    /// An offer is over: the peer has reset the connection.
    Withdraw { session: PoolId, conn: ConnId },
    /// The peer's urgent pointer moved before the claim.
    Urgent { session: PoolId, conn: ConnId, bytes: u32 },
    /// There is no room for a connection that waits: it is reset.
    Reset { conn: ConnId },
}

/// A connection that goes to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HandedConn {
    pub(super) hand_over: HandOverNumber,
    pub(super) listener: ListenerId,
    pub(super) conn: ConnId,
    /// The acceptor's number in the session.
    pub(super) number: AcceptorId,
    /// Whether the first byte that is sent on it is to be reported.
    pub(super) awaits_answer: bool,
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimAnswer {
    /// The connection is the session's.
    Confirmed(HandedConn),
    /// It is not.
    Refused,
    /// It was before.
    Repeated,
}

/// The machines' name of a connection.
pub(super) const fn packed(conn: ConnId) -> u64 {
    ((conn.generation as u64) << 32) | conn.index as u64
}

/// The connection of that name.
pub(super) const fn unpacked(id: u64) -> ConnId {
    ConnId { index: id as u32, generation: (id >> 32) as u32 }
}
