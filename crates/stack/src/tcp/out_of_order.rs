//! List of the chunks that a connection received out of order (see `receive_queue/ranges.rs`).
//!
//! ```text
//!   head                                   tail_range
//!    v                                      v
//!   [ chunk ][ chunk ][ chunk ] . . . . . [ chunk ][ chunk ]
//!    of_list ------------^                  of_list --^
//! ```
//!
//! Invariants
//! - Chunks are sorted. Those between two gaps are a range; its first node names its last, so that
//!   no step goes over the chunks of a range.
//! - At most `OUT_OF_ORDER_RANGES_MAX` ranges: more steps than that are never made for a segment.
//! - `recent` holds ranges as they are now, each once.

use crate::seq::SeqRange;

/// How many ranges are remembered as the most recent ones: as many SACK blocks as fit beside no
/// other option (RFC 2018 §3).
pub(super) const RECENT: usize = 4;

/// Chunks of one connection behind gaps, sorted by sequence number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OutOfOrderList {
    /// The first node of the first range; 0: there is none.
    pub(super) head: u32,
    /// The first node of the last range.
    pub(super) tail_range: u32,
    pub(super) ranges: u32,
    pub(super) chunks: u32,
    pub(super) bytes: u32,
    /// The ranges that grew last, the latest first.
    pub(super) recent: [SeqRange; RECENT],
    pub(super) recent_count: u8,
}
