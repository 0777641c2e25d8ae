//! The stack's number for memory of a channel's: what it counts, and which one.
//!
//! Read first: `memory.rs`, for what lies behind the numbers.

use megapipe_stack::BufId;

/// What a number counts, in its highest bits: receive buffers with received bytes that are held
/// until they are read, ...
pub(super) const KIND: u32 = 7 << 29;
pub(super) const HELD_RECEIVE: u32 = 0;
/// ... overflow buffers that stand in for such, ...
pub(super) const SPARE_RECEIVE: u32 = 1 << 29;
/// ... sent payloads in the table, ...
pub(super) const SENT_PAYLOAD: u32 = 2 << 29;
/// ... receive buffers whose bytes are sent, ...
pub(super) const SENT_RECEIVE: u32 = 3 << 29;
/// ... and write buffers that are sent.
pub(super) const SENT_WRITE: u32 = 4 << 29;

/// What is counted, without what counts it.
pub(super) const fn within(buf: BufId) -> usize {
    (buf.0 & !KIND) as usize
}

/// The number of the held receive buffer that this is, for its token's table; `None`: it is
/// something else.
#[inline]
pub(super) const fn held(buf: BufId) -> Option<u16> {
    if buf.0 & KIND == HELD_RECEIVE { Some(buf.0 as u16) } else { None }
}
