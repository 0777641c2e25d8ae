//! Limits of this crate, and the relations between them.

use core::time::Duration;

/// Most connections of one shard.
pub const CONNECTIONS_MAX: u32 = 1 << 22;
/// Most listeners of one shard.
pub const LISTENERS_MAX: u32 = 1 << 12;
/// Longest time that SYNs wait for a listener that is expected.
pub const LISTENER_WAIT_MAX: Duration = Duration::from_secs(30);
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
pub const ADDRESSES_MAX: usize = 48;
/// Most addresses of ours that connections have, those included that the host has no more.
pub const LOCALS_MAX: usize = 1 << 8;
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
/// Most packets that are put together from fragments at once; 64 KiB are set aside for each.
pub const REASSEMBLIES_MAX: usize = 32;
/// Most fragments of one packet: 64 KiB in packets of 1280 bytes, and some.
pub const FRAGMENTS_MAX: usize = 64;
/// Most destinations whose path MTU is remembered.
pub const PATH_MTUS_MAX: usize = 1024;
/// Most ICMP messages that wait to be sent.
pub const OUTBOX_MESSAGES: usize = 32;
/// Longest ICMP message that we send; what does not fit a packet goes in several.
pub const OUTBOX_MESSAGE_BYTES: usize = 9_216;
/// Most answers to ARP and neighbour discovery that wait to be sent.
pub const ANSWERS_MAX: usize = 128;
/// Most ICMP errors that we send per second (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
pub const ICMP_ERRORS_PER_S: u32 = 1000;
/// As many of them at once.
pub const ICMP_ERRORS_BURST: u32 = 50;
/// Most events of UDP, and most datagrams to send, that wait in a shard.
pub const DATAGRAMS_WAITING_MAX: usize = 2048;
/// Most of either that wait at one endpoint.
pub const DATAGRAMS_PER_ENDPOINT_MAX: u32 = 256;
/// Most notices that a datagram did not get there that wait in a shard.
pub const NOTICES_WAITING_MAX: usize = 256;
/// Bytes that a notice quotes of a datagram at most: what fits the largest ICMP error, of IPv6.
pub const QUOTE_BYTES_MAX: usize = MTU_MIN_V6 as usize - 40 - 8 - 40 - 8;
/// Peers that an endpoint remembers having sent to, to tell a genuine ICMP error by.
pub const DATAGRAM_PEERS: usize = 8;

const _: () = assert!(DATAGRAMS_PER_ENDPOINT_MAX as usize <= DATAGRAMS_WAITING_MAX);
const _: () = assert!(FRAGMENTS_MAX * 1232 > 65_535);
// One report of group membership names all our groups, and fits the smallest MTU.
const _: () = assert!(40 + 8 + 8 + (ADDRESSES_MAX + 1) * 20 <= MTU_MIN_V6 as usize);
const _: () = assert!(ADDRESSES_MAX < LOCALS_MAX && LISTENERS_MAX <= 1 << u16::BITS);
const _: () = assert!(ADDRESSES_MAX < ANSWERS_MAX && OUTBOX_MESSAGES <= u8::MAX as usize);
const _: () = assert!(UNANSWERED_MAX * 2 <= NEIGHBOURS_MAX && NEIGHBOURS_MAX < u16::MAX as usize);
const _: () = assert!(MSS_MIN < MSS_DEFAULT && MSS_DEFAULT < MSS_DEFAULT_V6);
const _: () = assert!(BUFFER_BYTES_MAX as u64 == (1 << (16 + WINDOW_SCALE_MAX)));
/// Most chunks that a connection keeps behind gaps.
pub const OUT_OF_ORDER_CHUNKS_MAX: u32 = 8192;
/// Most ranges that a connection keeps behind gaps. Each segment out of order may have to look at
/// all of them.
pub const OUT_OF_ORDER_RANGES_MAX: u32 = 256;
/// Beyond so many chunks behind gaps they must hold [`SPARSE_CHUNK_BYTES_MIN`] each on average.
pub const SPARSE_CHUNKS_MAX: u32 = 64;
/// See [`SPARSE_CHUNKS_MAX`].
pub const SPARSE_CHUNK_BYTES_MIN: u32 = 256;

const _: () = assert!(SPARSE_CHUNKS_MAX < OUT_OF_ORDER_CHUNKS_MAX);
/// Answers that wait to be sent and belong to no connection: SYN cookies for a crowd that comes
/// while the link takes nothing.
pub const REPLIES_MAX: usize = 4096;
/// ACKs of connections among them, each for a segment out of order. Beyond so many answers one ACK
/// does for several.
pub const ACKS_AHEAD_MAX: usize = 256;
/// Those of them that wait until the next hop has said where it is.
pub const REPLIES_PARKED_MAX: usize = 64;
/// Recently exported connections that are remembered, so that their late segments are not answered
/// by a RST.
pub const DEPARTED_MAX: usize = 256;
/// How long they are remembered: what was queued before a link stopped taking their segments has
/// been handed over by then, and a new connection of the same flow may come.
pub const DEPARTED_LASTS: Duration = Duration::from_secs(1);
/// Most connections between SYN and its last ACK, of all listeners of a shard.
pub const EMBRYOS_MAX: u32 = 1 << 16;
/// So many there may be in a shard of few connections, if its listeners allow it. Beyond there are
/// as many as connections.
pub const EMBRYOS_MIN: u32 = 1 << 10;
/// Most connections that wait to be accepted by one listener, or to be reported.
pub const BACKLOG_MAX: u32 = 1 << 16;
/// Chunks in the queues of a shard, for each connection that there may be. Most have none, and one
/// that has many takes the others' share.
pub const NODES_PER_CONNECTION: u32 = 8;
/// Records of what was sent, for each connection that there may be.
pub const RECORDS_PER_CONNECTION: u32 = 4;
/// Chunks and records of a shard at least: a few connections may need many. What is not used
/// costs addresses and no memory.
pub const NODES_MIN: u32 = 1 << 16;
/// Servers whose Fast Open cookie a client remembers.
pub const FAST_OPEN_PEERS_MAX: usize = 256;
/// A server's Fast Open cookie is valid in the period in which it was made, and in the next.
pub const FAST_OPEN_COOKIE_PERIOD: Duration = Duration::from_secs(12 * 3600);
/// A Fast Open connection that a RST ended counts as pending for so long (RFC 7413 §5.1).
pub const FAST_OPEN_RESET_PENDING: Duration = Duration::from_secs(60);
/// How long a client sends no data in SYNs to a server that did not get them (RFC 7413 §4.1.3.1).
pub const FAST_OPEN_BLOCKED: Duration = Duration::from_secs(3600);
/// Most pending Fast Open connections that a listener may ask for.
pub const FAST_OPEN_PENDING_MAX: u32 = BACKLOG_MAX;
/// Counters of ports (RFC 6056 §3.3.4).
pub const PORT_COUNTERS: usize = 256;
/// What full segments shrink to first where they vanish without a word (RFC 4821 §7.2).
pub const BLACK_HOLE_MSS: u16 = 1024;
/// A segment that would be less than so much larger is not worth a probe.
pub const PATH_PROBE_GAIN_BYTES: u16 = 32;

const _: () = assert!(ACKS_AHEAD_MAX < REPLIES_MAX && REPLIES_PARKED_MAX <= REPLIES_MAX);
const _: () = assert!(MSS_DEFAULT < BLACK_HOLE_MSS);
