//! The stack's number for memory of a channel's: what it counts, and which one.
//!
//! Read first: `memory.rs`, for what lies behind the numbers.

use megapipe_stack::BufId;

/// What a number counts, in its highest bits: the indices of receive buffers that are held, of ...
pub(super) const KIND: u32 = 7 << 29;
pub(super) const HELD: u32 = 0;
/// ... heap memory that stands in for such, ...
pub(super) const RESERVE: u32 = 1 << 29;
/// ... payloads in the table, ...
pub(super) const PAYLOAD: u32 = 2 << 29;
/// ... receive buffers that are sent, ...
pub(super) const RECEIVED: u32 = 3 << 29;
/// ... and buffers that the program has filled.
pub(super) const FILLED: u32 = 4 << 29;

/// What is counted, without what counts it.
pub(super) const fn within(buf: BufId) -> usize {
    (buf.0 & !KIND) as usize
}

/// The number of the held receive buffer that this is, for its token's table; `None`: it is
/// something else.
#[inline]
pub(super) const fn held(buf: BufId) -> Option<u16> {
    if buf.0 & KIND == HELD { Some(buf.0 as u16) } else { None }
}
