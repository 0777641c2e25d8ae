//! What must hold in every world.
//!
//! - `segments.rs`: every segment on the wire keeps within the peer's window, acknowledges only
//!   what was sent, and has its checksums right.
//! - `datagrams.rs`: every datagram that arrives was sent, whole, and no more often than it may be.
//! - `streams.rs`: every byte arrives once and in order, and how a connection may end.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use megapipe_stack::{CloseReason, SeqNum};

pub(crate) mod datagrams;
pub(crate) mod segments;
pub(crate) mod streams;

/// What did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A host sent a packet that cannot be read, or whose checksum is wrong.
    Malformed {
        /// Which host.
        host: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A segment reaches past the window that its sender was ever told.
    OutsideWindow {
        /// Which host.
        host: usize,
        /// The sender's end.
        from: SocketAddr,
        /// The segment's last sequence number and one.
        end: SeqNum,
        /// The right edge.
        edge: SeqNum,
    },
    /// A segment acknowledges what was never sent.
    AckOfNothing {
        /// Which host.
        host: usize,
        /// The sender's end.
        from: SocketAddr,
        /// What it acknowledges.
        ack: SeqNum,
    },
    /// A byte is not the one that was sent.
    WrongByte {
        /// The connection's number.
        stream: u64,
        /// Where in the stream.
        offset: u64,
    },
    /// More bytes arrived than were sent.
    TooMuch {
        /// The connection's number.
        stream: u64,
    },
    /// The end of the stream came before its last byte.
    EndedEarly {
        /// The connection's number.
        stream: u64,
        /// Bytes that arrived.
        received: u64,
        /// Bytes that were sent.
        expected: u64,
    },
    /// A connection ended for a reason that the scenario does not explain.
    ClosedBecause {
        /// The connection's number.
        stream: u64,
        /// Why it says that it ended.
        reason: CloseReason,
    },
    /// A connection was not begun.
    NotBegun {
        /// Which host.
        host: usize,
        /// What the stack said.
        why: String,
    },
    /// Connections are still there although everything should be over.
    Stuck {
        /// Which host.
        host: usize,
        /// How many.
        connections: usize,
    },
    /// Buffers, nodes or records were not given back.
    Leaked {
        /// Which host.
        host: usize,
        /// What, and how many.
        what: String,
    },
    /// A link-layer address was not found although the network carried questions and answers.
    Unresolved {
        /// Which host.
        host: usize,
        /// Whose address.
        peer: IpAddr,
        /// Questions and answers that the network lost or delayed.
        harmed: usize,
    },
    /// A call of a program did what it should not do.
    Call {
        /// Which host.
        host: usize,
        /// The call.
        call: &'static str,
        /// What it did.
        what: String,
    },
    /// A datagram arrived that should not have.
    WrongDatagram {
        /// Where it arrived.
        at: SocketAddr,
        /// Where it came from.
        from: SocketAddr,
        /// Its length.
        bytes: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A forged packet had another effect than it should have.
    Forged {
        /// Which host it went to.
        host: usize,
        /// What was forged.
        forgery: &'static str,
        /// What it did.
        effect: String,
    },
    /// More connections broke than the attacker's resets explain.
    Broken {
        /// How many.
        connections: u64,
        /// Resets that hit.
        hits: u64,
    },
    /// A host goes on sending although everything is over.
    NotQuiet {
        /// Which host.
        host: usize,
    },
    /// Streams over one bottleneck did not get about the same.
    Unfair {
        /// Jain's index in thousandths [mTCP 5.2].
        index_thousandths: u32,
    },
    /// The world went through more events than any sane run has: a host sends without end.
    Endless {
        /// How many.
        events: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
