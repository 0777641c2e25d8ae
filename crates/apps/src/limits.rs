//! Limits of all programs in this crate.
//!
//! A limit is what keeps a peer, a typing error or a long run from taking more than was meant.
//! Those that a user may want to move are defaults of options and say so.

use std::time::Duration;

/// Channels (and so threads) of one server.
pub const CHANNELS_MAX: usize = 256;
/// Listening addresses of one server.
pub const LISTENERS_MAX: usize = 16;
/// Connections that one server holds at once; the default of `--max-connections`.
pub const CONNECTIONS_DEFAULT: u32 = 65_536;
/// The most that `--max-connections` accepts: one slot each in the channels' descriptor tables.
pub const CONNECTIONS_MAX: u32 = 1 << 20;
/// Connections that the kernel completes while a server is busy; the default of `--backlog`.
pub const BACKLOG_DEFAULT: u32 = 4_096;
/// How stale a server's notion of time may be: see [`crate::serve::Ticks`].
pub const TICK: Duration = Duration::from_millis(100);
/// Ticks without an event after which a server's channel rests.
pub const QUIET_TICKS: u32 = 10;
/// How often a channel that rests looks at its timeouts.
pub const REST_TICK: Duration = Duration::from_secs(1);
/// Time that a stopping server waits for its peers; the default of `--drain`.
pub const DRAIN_SECONDS_DEFAULT: u32 = 5;
/// The most that `--drain` accepts: a day.
pub const DRAIN_SECONDS_MAX: u32 = 86_400;
/// How long a server's channels may take to come up, each.
pub const START_DEADLINE: Duration = Duration::from_secs(30);
/// Microseconds that the local back end polls its link after the last frame.
pub const SPIN_US_DEFAULT: u32 = 50;
/// The most that may be asked for.
pub(crate) const SPIN_US_MAX: u32 = 1_000_000;
/// Memory that must be free for each channel in addition to large allocations.
pub(crate) const SPARE_BYTES: usize = 8 << 20;
/// Room for connections that a server's table has at most from the start; beyond it grows.
pub(crate) const PEER_TABLE_BYTES_MAX: usize = 64 << 20;
/// Connections at rest that a server ends at once when it drains.
pub(crate) const DRAINED_AT_ONCE: usize = 1024;
/// Slots of a channel's descriptor table beyond its share of `--max-connections`: connections
/// that were accepted ahead of their credit.
pub const SLOTS_BESIDE_CONNECTIONS: u32 = 64;

/// Limits of the rpc server.
pub mod rpc {
    /// Bytes of responses that one peer may leave unsent before it is not read from any more.
    pub const UNSENT_BYTES_MAX: usize = 1 << 20;
    /// The longest response that is copied together with others instead of being sent from where
    /// its pieces lie, in bytes.
    pub const COPY_LEN_MAX: usize = 1_024;
    /// Bytes of short responses that go into one write.
    pub const GATHER_LEN: usize = 4_096;

    /// Events that a server on sockets takes with one `epoll_wait`.
    pub const EVENTS: usize = 256;
    /// Pieces of responses that a server on sockets sends with one `writev`.
    pub const PIECES: usize = 64;

    /// Default of `--stall-timeout`, in seconds.
    pub const STALL_TIMEOUT_S_DEFAULT: u32 = 15;
    /// The most that `--stall-timeout` accepts: a day.
    pub const STALL_TIMEOUT_S_MAX: u32 = 86_400;
    /// With all connections taken, one that has been idle for so many milliseconds gives way to one
    /// that waits, also if it never sent a byte.
    pub const CROWDED_IDLE_MS: u32 = 1_000;
    /// Time that a peer has to end its side after ours, in milliseconds; `--stall-timeout` if that
    /// is shorter.
    pub const LINGER_MS: u32 = 5_000;
    /// How often waits are compared with their limits, in milliseconds.
    pub const SWEEP_MS: u64 = 500;

    const _: () = assert!(COPY_LEN_MAX < GATHER_LEN && GATHER_LEN < UNSENT_BYTES_MAX);
}

/// Limits of the load generator.
pub mod load {
    use std::time::Duration;

    /// Threads of one load.
    pub const THREADS_MAX: u32 = 256;
    /// Connections of one load.
    pub const CONNECTIONS_MAX: u32 = 1 << 20;
    /// How often a thread looks at what is not a completion.
    pub const TICK: Duration = Duration::from_millis(10);
    /// How long the connections may take to open before the load begins without the rest.
    pub const READY_DEADLINE: Duration = Duration::from_secs(60);
    /// The longest wait after the window for what was under way in it.
    pub const DRAIN_NS_MAX: u64 = 2_000_000_000;
    /// How long a load goes on while the server refuses it and not one transaction has succeeded.
    pub const REJECTED_NS_MAX: u64 = 1_000_000_000;
    /// A thread that is on a processor for more than this share of the window is a bottleneck.
    pub const BUSY_SHARE_MAX: f64 = 0.95;
    /// Starting later than this although a connection was free, at the 99th percentile, means
    /// that the load could not keep its rate.
    pub const LATENESS_US_MAX: f64 = 1_000.0;
    /// What a connection costs at most before it is open.
    pub(crate) const BYTES_PER_CONNECTION: usize = 512;
    /// What a thread allocates in small pieces while it runs, beyond its connections.
    pub(crate) const SPARE_BYTES_PER_THREAD: usize = 1 << 20;
    /// Paths in a list of URLs, files in a file set.
    pub const PATHS_MAX: usize = 1 << 16;
    /// Keys of a key-value load.
    pub const KEYS_MAX: u64 = 1 << 30;
    /// The longest header of a response, in bytes.
    pub const HEADER_LEN_MAX: usize = 16 << 10;
    /// Memory that one request of a set of files takes besides the host's name, with what the
    /// allocator adds, in bytes.
    pub const REQUEST_BYTES_RESERVED: usize = 256;
}
