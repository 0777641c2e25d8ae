//! Names of a shard's buffers: session, area and index in the 32 bits of the stack's `BufId`.
//!
//! ```text
//!   31          21  20   19      17 16              0
//!  | session     | 0 | index of a receive buffer     |
//!  | session     | 1 | area    | index of the buffer |
//! ```
//!
//! A record names area and index alone (`megapipe_shm::BufId`: tag and index), since a session has
//! no other session's buffers. The server adds the session when it reads a record and drops it when
//! it writes one, so no session can name a buffer of another one.
//!
//! Read first: the decision on many sessions of a shard in `docs/decisions`.
//!
//! Invariants
//! - Session 0 is the shard itself: its private memory.
//! - The area of a send buffer is the tag of its pool in the region, less one.

use megapipe_shm::limits::POOL_BUFS_MAX;
use megapipe_stack::{BufId, PoolId};

use super::{COPIES, LARGE, RECEIVES, SMALL};
use crate::limits::{COPIES_MAX, LARGE_SENDS, RECEIVE_BUFFERS_MAX, SESSIONS_MAX, SMALL_SENDS};

/// Bits of a session's buffers, below those of the session.
const NUMBER_BITS: u32 = 21;
/// Set in the name of a buffer that is no receive buffer.
const OTHER: u32 = 1 << (NUMBER_BITS - 1);
/// Bits of an index in one of the other areas.
const INDEX_BITS: u32 = 17;
/// Bits that say which of the other areas.
const AREA_BITS: u32 = NUMBER_BITS - 1 - INDEX_BITS;

const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const AREA_MASK: u32 = (1 << AREA_BITS) - 1;

const _: () = assert!(SESSIONS_MAX > 1_000, "the bar of the issue on the back end `service`");
const _: () = assert!(SESSIONS_MAX == 1 << (32 - NUMBER_BITS) && SESSIONS_MAX <= 1 << 16);
const _: () = assert!(RECEIVE_BUFFERS_MAX <= OTHER && RECEIVES == 0);
const _: () = assert!(SMALL_SENDS <= INDEX_MASK + 1 && LARGE_SENDS <= INDEX_MASK + 1);
const _: () = assert!(COPIES_MAX <= INDEX_MASK + 1);
// Five areas are free, for memory that a session registers.
const _: () = assert!(SMALL == 1 && LARGE == 2 && (COPIES as u32) <= AREA_MASK + 1);
// A name without its session is that of a receive buffer in a record.
const _: () = assert!(OTHER <= POOL_BUFS_MAX);

/// What a name names within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedBuffer {
    /// A receive buffer.
    Receive(u32),
    /// A buffer of another area: the tag of that area's pool, and the index.
    Other(u16, u32),
}

/// The session whose buffer it is.
#[inline]
pub(super) const fn session_of(buf: BufId) -> PoolId {
    PoolId((buf.0 >> NUMBER_BITS) as u16)
}

/// What it names there.
#[inline]
pub(super) const fn place_of(buf: BufId) -> NamedBuffer {
    if buf.0 & OTHER == 0 {
        return NamedBuffer::Receive(buf.0 & (OTHER - 1));
    }
    let area = (buf.0 >> INDEX_BITS) & AREA_MASK;
    NamedBuffer::Other(area as u16 + 1, buf.0 & INDEX_MASK)
}

/// The name of a receive buffer.
#[inline]
pub(super) const fn receive_buffer(session: PoolId, index: u32) -> BufId {
    BufId((session.0 as u32) << NUMBER_BITS | (index & (OTHER - 1)))
}

/// The name of a buffer of another area, whose pool has this tag: not 0, and within the area bits.
#[inline]
pub(super) const fn other_buffer(session: PoolId, tag: u16, index: u32) -> BufId {
    let area = (tag as u32).wrapping_sub(1) & AREA_MASK;
    BufId((session.0 as u32) << NUMBER_BITS | OTHER | area << INDEX_BITS | (index & INDEX_MASK))
}

/// The name in a record to the buffer's session, of a receive buffer.
#[inline]
pub(super) const fn in_record(buf: BufId) -> megapipe_shm::BufId {
    megapipe_shm::BufId::from_bits(buf.0 & NUMBER_MASK)
}

/// The same of a buffer of another area.
#[inline]
pub(super) const fn other_in_record(tag: u16, index: u32) -> megapipe_shm::BufId {
    megapipe_shm::BufId::from_bits(tag as u32 * POOL_BUFS_MAX + index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_session_area_and_index() {
        for session in [0, 1, 1_000, SESSIONS_MAX as u16 - 1].map(PoolId) {
            for index in [0, 1, RECEIVE_BUFFERS_MAX - 1] {
                let name = receive_buffer(session, index);
                assert_eq!(
                    (session_of(name), place_of(name)),
                    (session, NamedBuffer::Receive(index))
                );
                let in_record = in_record(name);
                assert_eq!((in_record.tag(), in_record.index()), (RECEIVES, index));
            }
            for tag in [SMALL, LARGE, COPIES] {
                for index in [0, SMALL_SENDS - 1, COPIES_MAX - 1] {
                    let name = other_buffer(session, tag, index);
                    let place = NamedBuffer::Other(tag, index);
                    assert_eq!((session_of(name), place_of(name)), (session, place));
                    let in_record = other_in_record(tag, index);
                    assert_eq!((in_record.tag(), in_record.index()), (tag, index));
                }
            }
        }
    }
}
