//! Events of the stack for the application.

use core::net::{IpAddr, SocketAddr};

use crate::chunk::Chunk;
use crate::error::CloseReason;
use crate::id::{ConnId, DatagramId, ListenerId};

/// Something that happened. Events of one connection come in this order: `Incoming` or
/// `Connected`, then `Received`, `Acked` and `Urgent` as they happen, `PeerClosed` after the last
/// byte, and `Closed` as the very last. `Broken` comes once, between bytes; only `Received`,
/// `PeerClosed` and `Closed` follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A connection was established and uses up one credit of [`crate::Stack::accept`].
    Incoming {
        /// Where it arrived.
        listener: ListenerId,
        /// The new connection.
        conn: ConnId,
        /// The peer.
        remote: SocketAddr,
        /// How many more wait.
        waiting: u32,
    },
    /// A connection that [`crate::Stack::connect`] began is established.
    Connected {
        /// Which.
        conn: ConnId,
    },
    /// The next bytes, in order. Uses up the credit of [`crate::Stack::receive`]. The buffer is
    /// the application's from now on: it gives it back to its own memory.
    Received {
        /// On which connection.
        conn: ConnId,
        /// Which bytes.
        chunk: Chunk,
    },
    /// Number of chunks, oldest first, that are completely acknowledged and freed; our FIN counts
    /// as one more. Sent only after [`crate::Stack::await_acks`].
    Acked {
        /// On which connection.
        conn: ConnId,
        /// How many chunks since the last such event.
        chunks: u32,
        /// Bytes that wait in the send queue now, sent or not.
        queued_bytes: u32,
    },
    /// The urgent pointer moved ahead (RFC 9293 §3.8.5).
    Urgent {
        /// On which connection.
        conn: ConnId,
        /// Bytes from the next one to be received to the end of the urgent ones, whether they have
        /// come or not.
        bytes: u32,
    },
    /// Fewer bytes are unsent than [`crate::ConnOption::ReportUnsentBelow`] named.
    UnsentBelow {
        /// On which connection.
        conn: ConnId,
    },
    /// The peer sends no more: end of file.
    PeerClosed {
        /// Which connection.
        conn: ConnId,
    },
    /// The connection is over by a RST or an error, and bytes wait that came before and that
    /// nothing has asked for. [`crate::Stack::receive`] still gets them. `Closed` follows the last
    /// one, with this reason; after `PeerClosed` and with [`CloseReason::Finished`], if the stream
    /// is whole.
    Broken {
        /// Which connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
        /// The peer had closed before: none of its bytes are missing.
        is_whole: bool,
    },
    /// The connection is over, and its id stale from now on.
    Closed {
        /// Which connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
    /// A datagram. The buffer is the application's from now on.
    Datagram {
        /// Where it arrived.
        endpoint: DatagramId,
        /// From whom.
        from: SocketAddr,
        /// Which bytes.
        chunk: Chunk,
    },
    /// A datagram that was sent did not get there, as ICMP or the way to the next hop says.
    DatagramRefused {
        /// From where it was sent.
        endpoint: DatagramId,
        /// To whom.
        to: SocketAddr,
        /// Why not.
        why: Undelivered,
    },
}

/// How a datagram arrived ([`crate::Stack::last_arrival`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Which of our addresses it was sent to.
    pub to: IpAddr,
    /// Hops that were left to it.
    pub hop_limit: u8,
    /// Its traffic class (RFC 2474, RFC 3168).
    pub traffic_class: u8,
}

impl Arrival {
    pub(crate) const NONE: Self =
        Self { to: IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED), hop_limit: 0, traffic_class: 0 };
}

/// What says that a datagram did not get there ([`crate::Stack::take_notice`]): an ICMP message, or
/// what a router of ours would have sent, where the way to the next hop is the trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Who says so. The type and the code are those of ICMP for its version of IP.
    pub by: IpAddr,
    /// The message's type.
    pub kind: u8,
    /// The message's code.
    pub code: u8,
    /// The MTU or the place of which it speaks, else 0.
    pub info: u32,
    /// How the message arrived.
    pub arrival: Arrival,
    /// The beginning of the datagram's bytes, as much as the message quotes, if that is asked for
    /// ([`crate::Stack::quote_errors`]). The buffer is the application's from now on.
    pub quote: Option<Chunk>,
}

/// How a datagram is to leave ([`crate::Stack::send_datagram_as`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Departure {
    /// From which of our addresses; `None`: the endpoint's, or the one that suits the way.
    pub from: Option<IpAddr>,
    /// Hops that it may go, at least 1; `None`: 64.
    pub hop_limit: Option<u8>,
    /// Its traffic class (RFC 2474, RFC 3168).
    pub traffic_class: u8,
}

/// Why a datagram did not get there (RFC 1122 §3.2.2, RFC 4443 §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undelivered {
    /// There is no route to its network.
    NetworkUnreachable,
    /// Its host does not answer on its link.
    HostUnreachable,
    /// Its host does not speak UDP.
    ProtocolUnreachable,
    /// Port unreachable.
    PortUnreachable,
    /// An administrator forbids it.
    Prohibited,
    /// It was larger than the path takes; the next ones may be smaller.
    TooLong,
    /// It ran out of hops, or its fragments did not all arrive.
    TimeExceeded,
    /// The header was invalid for the receiver.
    ParameterProblem,
}
