//! What the stack tells an application.

use core::net::SocketAddr;

use crate::chunk::Chunk;
use crate::error::CloseReason;
use crate::id::{ConnId, DatagramId, ListenerId};

/// Something that happened. Events of one connection come in this order: `Incoming` or
/// `Connected`, then `Received`, `Acked` and `Urgent` as they happen, `PeerClosed` after the last
/// byte, and `Closed` as the very last.
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
    /// So many chunks, from the oldest on, are wholly acknowledged, and their buffers were freed.
    /// Comes only while somebody waits for it ([`crate::Stack::await_acks`]).
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
    },
    /// The peer sends no more: end of file.
    PeerClosed {
        /// Which connection.
        conn: ConnId,
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
    /// An ICMP error about a datagram that was sent.
    DatagramRefused {
        /// From where it was sent.
        endpoint: DatagramId,
        /// To whom.
        to: SocketAddr,
    },
}
