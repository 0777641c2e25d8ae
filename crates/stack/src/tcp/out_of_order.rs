//! List of the chunks that a connection received out of order; `receive_queue.rs` works on it.

use crate::seq::SeqNum;

/// How many ranges are remembered as the most recent ones: as many SACK blocks as fit beside no
/// other option (RFC 2018 §3).
pub(super) const RECENT: usize = 4;

/// Chunks of one connection behind gaps, sorted by sequence number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OutOfOrderList {
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) chunks: u32,
    pub(super) bytes: u32,
    /// A number inside each of the ranges that grew last, the latest first.
    pub(super) recent: [SeqNum; RECENT],
    pub(super) recent_count: u8,
}
