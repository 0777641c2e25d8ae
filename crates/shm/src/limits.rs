//! Every bound of this crate, related by assertions.
//!
//! Sizes are bytes, the rest are counts.

/// What false sharing is kept apart by: processors fetch 64-byte lines in pairs, so two words that
/// different cores write stand 128 bytes apart.
pub const LINE_PAIR_BYTES: usize = 128;
/// One cache line.
pub const LINE_BYTES: usize = 64;

/// What a doorbell takes of a region.
pub const BELL_BYTES: usize = LINE_PAIR_BYTES;

/// The granularity of mappings. Larger pages are a multiple of it.
pub const PAGE_BYTES: usize = 4096;
/// The largest region. A received descriptor that is larger is refused before it is mapped.
pub const REGION_BYTES_MAX: usize = 1 << 36;

/// The smallest buffer of a pool.
pub const BUF_BYTES_MIN: usize = 64;
/// The largest buffer of a pool: an offset or a length in it fits a record's 32 bits with room.
pub const BUF_BYTES_MAX: usize = 1 << 24;
/// The most buffers of one pool: the low bits of a [`BufId`](crate::BufId) hold their index.
pub const POOL_BUFS_MAX: u32 = 1 << 22;
/// The most pools of one owner: the other bits hold the pool's tag.
pub const POOL_TAGS_MAX: u16 = 1 << 10;

/// The smallest ring.
pub const RING_ENTRIES_MIN: u32 = 2;
/// The largest ring. Far below 2^31, so that the distance of two free-running indices is never
/// ambiguous.
pub const RING_ENTRIES_MAX: u32 = 1 << 20;
/// The largest record of a ring.
pub const RECORD_BYTES_MAX: usize = 256;

/// The longest string of a bip buffer.
pub const BIP_STRING_BYTES_MAX: usize = (1 << 17) - 1;
/// The largest area of one.
pub const BIP_AREA_BYTES_MAX: usize = 1 << 30;
/// Bits of what goes with a string.
pub const BIP_TAG_BITS: u32 = 23;
/// The longest string that is copied line by line: the C library's copy moves more at a time.
pub const COPY_IN_LINES_MAX: usize = 256;

/// Buffers that one record names at most: as many as its body has room for.
pub const BUFS_PER_RECORD: usize = 10;
/// Connections that one record names at most.
pub const IDS_PER_RECORD: usize = 5;

/// How much a copy moves before it sums it: what was just moved is still in the first-level cache.
pub const COPY_CHUNK_BYTES: usize = 4096;

const _: () = assert!(LINE_PAIR_BYTES.is_multiple_of(LINE_BYTES));
const _: () = assert!(REGION_BYTES_MAX.is_multiple_of(PAGE_BYTES));
const _: () = assert!(BUF_BYTES_MIN >= LINE_BYTES && BUF_BYTES_MIN <= BUF_BYTES_MAX);
const _: () = assert!(BUF_BYTES_MAX <= REGION_BYTES_MAX && BUF_BYTES_MAX < u32::MAX as usize);
const _: () = assert!(POOL_BUFS_MAX.is_power_of_two() && POOL_TAGS_MAX.is_power_of_two());
const _: () = assert!(POOL_BUFS_MAX.trailing_zeros() + POOL_TAGS_MAX.trailing_zeros() == 32);
const _: () = assert!(RING_ENTRIES_MIN.is_power_of_two() && RING_ENTRIES_MAX.is_power_of_two());
const _: () = assert!(RING_ENTRIES_MAX < 1 << 31);
const _: () = assert!(BIP_STRING_BYTES_MAX <= BIP_AREA_BYTES_MAX);
const _: () = assert!(BIP_AREA_BYTES_MAX.is_multiple_of(LINE_BYTES));
const _: () = assert!(COPY_IN_LINES_MAX >= LINE_BYTES && COPY_IN_LINES_MAX <= 4 * LINE_BYTES);
const _: () = assert!(RING_ENTRIES_MAX as usize * RECORD_BYTES_MAX <= REGION_BYTES_MAX);
// Chunks but the last are even, so that their sums add up without a turn of bytes.
const _: () = assert!(COPY_CHUNK_BYTES.is_multiple_of(8));
