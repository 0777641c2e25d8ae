//! Every ceiling of this crate, by name, and how they hang together.

use std::time::Duration;

/// Most frames that a turn takes from the link: its share, so that applications get theirs
/// [ETA 4.2].
pub const RX_FRAMES_PER_TURN: usize = 64;
/// Most frames that a turn hands to the link.
pub const TX_FRAMES_PER_TURN: usize = 256;
/// How long a server spins after the last work before it sleeps, unless told otherwise.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Longest time to spin that may be asked for.
pub const SPIN_MAX: Duration = Duration::from_secs(1);
/// Shares of [`RX_FRAMES_PER_TURN`] that are taken before a connection moves: a window of 4 MiB in
/// frames of 1,500 bytes.
pub const DRAIN_SHARES_MAX: usize = 45;
/// The ports that connections and listeners get when they ask for none, first and last: Linux's.
pub const EPHEMERAL_PORTS: (u16, u16) = (32_768, 60_999);
/// The ports that connections leave from where the host's address is shared, first and last: above
/// those that Linux picks from. Each that is used is reserved by a socket of the kernel's.
pub const SHARED_CLIENT_PORTS: (u16, u16) = (61_000, 61_511);
/// Ports of that range that are reserved at a time, so that a few connections cost few descriptors.
pub const CLIENT_PORTS_PER_BLOCK: u16 = 32;
/// How often a busy server asks what has changed in a host's network.
pub const HOST_LOOK_PERIOD: Duration = Duration::from_millis(1);
/// How often it is asked whether the connections that moved are still there.
pub const MOVED_LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Most of them that are asked for at once.
pub const MOVED_LOOKS: usize = 64;
/// Most routes that are kept of a host's interface.
pub const HOST_ROUTES_MAX: usize = 64;
/// Most acceptors of one listener.
pub const ACCEPTORS_MAX: usize = 1 << 10;

const _: () = assert!(RX_FRAMES_PER_TURN <= TX_FRAMES_PER_TURN, "each frame may ask for one");
const _: () = assert!(
    (SHARED_CLIENT_PORTS.1 - SHARED_CLIENT_PORTS.0 + 1).is_multiple_of(CLIENT_PORTS_PER_BLOCK)
);
const _: () = assert!(SHARED_CLIENT_PORTS.0 > EPHEMERAL_PORTS.1, "the kernel picks none of them");
/// Most shards of one network.
pub const SHARDS_MAX: u16 = 256;
/// Most addresses, port and all, that shards listen at.
pub const BOUND_ADDRESSES_MAX: usize = 1 << 12;
/// So many former partitions of a listener are remembered, for the connections that they made.
pub const FORMER_ROWS_MAX: usize = 8;
/// Most datagrams whose fragments are followed to one shard.
pub const FRAGMENTED_MAX: usize = 1 << 10;
/// Most fragments that wait for the first of their datagram.
pub const FRAGMENTS_HELD_MAX: usize = 64;
/// Records of a ring of frames from a queue to a shard.
pub const STEERED_FRAMES_MAX: u32 = 1 << 10;
/// Bytes of frames that wait in such a ring, where frames are of the usual size.
pub const STEERED_BYTES: usize = 512 << 10;
/// The same where the link merges frames.
pub const STEERED_MERGED_BYTES: usize = 4 << 20;
/// How long a shard sleeps at most while another one is awake and looks after the link: that one's
/// application may be busy.
pub const WATCH_PERIOD: Duration = Duration::from_micros(500);
/// So often a shard that has nothing to do looks at another's queue, and finds that nobody comes to
/// it, before it reads it: some microseconds. A shard that has slept does not look again.
pub const LOOKS_BEFORE_READING: u32 = 16;
/// How often a queue that another shard has is tried before its frames wait for the next turn.
pub const LOCK_TRIES: u32 = 256;

/// The same after a while in which nothing came.
pub const WATCH_PERIOD_MAX: Duration = Duration::from_millis(4);

const _: () = assert!(WATCH_PERIOD_MAX.as_secs() == 0, "a timer's nanoseconds alone");
/// Records of the ring of ops from an application to a server apart.
pub const OPS_MAX: u32 = 1 << 12;
/// Records of the ring of events back. Half of it is kept for answers.
pub const COMPLETIONS_MAX: u32 = 1 << 14;
/// Most ops that a server apart takes in a turn.
pub const OPS_PER_TURN: u32 = 1 << 12;
/// So many frames wake an application that shares the server's core, even if more come.
pub const FRAMES_PER_WAKE: usize = 4_096;
/// How often a busy server beside looks at the descriptor of an application that sleeps.
pub const WATCHED_PERIOD: Duration = Duration::from_micros(100);
/// Bursts of frames that a server beside takes before it sends again.
pub const BURSTS_PER_TURN: usize = 4;
/// Turns that a server spends on its last frames, at most.
pub const GOODBYE_TURNS: usize = 16;
/// Buffers that small messages are copied into on their way to a server apart.
pub const SMALL_SENDS: u32 = 1 << 13;
/// Their size in bytes.
pub const SMALL_SEND_BYTES: usize = 256;
/// Buffers that longer ones are copied into.
pub const LARGE_SENDS: u32 = 1 << 9;
/// Their size in bytes: the longest datagram fits.
pub const LARGE_SEND_BYTES: usize = 64 << 10;
/// Most receive buffers of one session.
pub const RECEIVE_BUFFERS_MAX: u32 = 1 << 20;

const _: () = assert!(OPS_PER_TURN <= COMPLETIONS_MAX / 2, "each op may have an answer");
const _: () = assert!(SMALL_SEND_BYTES < LARGE_SEND_BYTES && LARGE_SEND_BYTES > u16::MAX as usize);
