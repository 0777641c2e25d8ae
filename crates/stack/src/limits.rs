//! Every ceiling of this crate, by name, and how they hang together.

/// Most connections of one shard.
pub const CONNECTIONS_MAX: u32 = 1 << 22;
/// Most listeners of one shard.
pub const LISTENERS_MAX: u32 = 1 << 12;
/// Most UDP endpoints of one shard.
pub const DATAGRAM_ENDPOINTS_MAX: u32 = 1 << 12;
/// Largest receive or send buffer of a connection in bytes: what a window of 30 bits can say.
pub const BUFFER_BYTES_MAX: u32 = 1 << 30;
/// Smallest MTU for IPv4 that we work with (RFC 791: every host takes 576).
pub const MTU_MIN: u16 = 576;
/// Smallest MTU that IPv6 allows (RFC 8200 §5).
pub const MTU_MIN_V6: u16 = 1280;
/// Largest window shift (RFC 7323 §2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;
/// Smallest MSS that a peer can make us use: smaller ones would make us send mostly headers.
pub const MSS_MIN: u16 = 88;
/// MSS of a peer that sends no such option, IPv4 (RFC 9293 §3.7.1).
pub const MSS_DEFAULT: u16 = 536;
/// The same, IPv6.
pub const MSS_DEFAULT_V6: u16 = 1220;
/// Longest delay of an ACK in milliseconds (RFC 9293 §3.8.6.3).
pub const DELAYED_ACK_MS_MAX: u64 = 500;
/// Most addresses of a host, its link-local one not counted.
pub const ADDRESSES_MAX: usize = 64;
/// Most routes beyond the prefixes of our own addresses.
pub const ROUTES_MAX: usize = 256;
/// Hops that what we send may go (RFC 1122 §3.2.1.7; the number is IANA's default).
pub const HOP_LIMIT: u8 = 64;
/// Most neighbours on the link that are remembered.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Most of them that have been asked for and did not answer yet.
pub const UNANSWERED_MAX: usize = 128;
/// Most decisions about neighbours between two calls of the stack: more than those that were
/// asked for, and the one that the call itself settles, cannot come.
pub const DECISIONS_MAX: usize = 2 * UNANSWERED_MAX;
/// Most questions for neighbours per second, to the whole link (RFC 6583 §7.1).
pub const SOLICITATIONS_PER_S: u32 = 256;

const _: () = assert!(UNANSWERED_MAX * 2 <= NEIGHBOURS_MAX && NEIGHBOURS_MAX < u16::MAX as usize);
const _: () = assert!(MSS_MIN < MSS_DEFAULT && MSS_DEFAULT < MSS_DEFAULT_V6);
const _: () = assert!(BUFFER_BYTES_MAX as u64 == (1 << (16 + WINDOW_SCALE_MAX)));
/// Most chunks that a connection keeps behind gaps.
pub const OUT_OF_ORDER_CHUNKS_MAX: u32 = 8192;
/// Beyond so many chunks behind gaps they must hold [`SPARSE_CHUNK_BYTES_MIN`] each on average.
pub const SPARSE_CHUNKS_MAX: u32 = 64;
/// See [`SPARSE_CHUNKS_MAX`].
pub const SPARSE_CHUNK_BYTES_MIN: u32 = 256;

const _: () = assert!(SPARSE_CHUNKS_MAX < OUT_OF_ORDER_CHUNKS_MAX);
