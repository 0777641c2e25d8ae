//! Every bound of this crate, in one place, related by assertions.
//!
//! What a configuration may choose lies between the `MIN` and `MAX` here; what it may not choose
//! is a constant here. Sizes are bytes, the rest are counts.

use std::time::Duration;

/// Operations gathered before they are handed to the kernel [MP 3.4.3].
pub const BATCH_DEFAULT: u32 = 32;
/// The largest batch. Equal to the largest submission queue: a batch must fit into it.
pub const BATCH_MAX: u32 = 4096;
/// A batch is let grow past the threshold while the program makes a threshold's number of
/// operations in this time: about 3 µs for each of 32, ten times what a small answer takes.
pub const GROWTH_TIME: Duration = Duration::from_micros(100);

/// Dispatches that find a completion ready before one polls the driver all the same: operations
/// that complete when they are submitted must not keep the others, and timers, from completing.
pub(crate) const DISPATCHES_PER_POLL: u32 = 4096;

/// Slots of the submission queue.
pub const SUBMISSION_ENTRIES_DEFAULT: u32 = 1024;
/// The smallest submission queue.
pub const SUBMISSION_ENTRIES_MIN: u32 = 8;
/// The largest submission queue.
pub const SUBMISSION_ENTRIES_MAX: u32 = 4096;

/// Slots of the completion queue.
pub const COMPLETION_ENTRIES_DEFAULT: u32 = 8192;
/// The largest completion queue.
pub const COMPLETION_ENTRIES_MAX: u32 = 1 << 16;

/// Handles of all kinds in one channel.
pub const HANDLES_MAX: u32 = 1 << 20;
/// lwsockets of one channel.
pub const LWSOCKETS_DEFAULT: u32 = 1 << 16;

/// One pool buffer: what one receive completion can carry at most.
pub const BUFFER_LEN_DEFAULT: usize = 4096;
/// The smallest pool buffer.
pub const BUFFER_LEN_MIN: usize = 64;
/// The largest pool buffer.
pub const BUFFER_LEN_MAX: usize = 1 << 20;
/// Receive buffers of one channel. The kernel's buffer rings need a power of two.
pub const BUFFER_COUNT_DEFAULT: u16 = 1024;
/// The smallest receive pool.
pub const BUFFER_COUNT_MIN: u16 = 4;
/// The largest receive pool: a kernel limit on buffer rings (2^15 entries).
pub const BUFFER_COUNT_MAX: u16 = 1 << 15;

/// Handles that the first one makes room for: 128 KiB, which malloc(3) maps apart and so gives back
/// whole when the room grows.
pub(crate) const FIRST_SLOTS: usize = 1 << 10;

/// Memory that must be left when the large pieces of a channel have been mapped: the small ones
/// that follow end the process where there is none. malloc(3) takes 1 MiB at a time at most.
pub(crate) const SMALL_ALLOCATIONS_BYTES: usize = 3 << 19;

/// The longest single read.
pub const READ_LEN_MAX: usize = 1 << 28;
/// The longest single write, all its parts together.
pub const WRITE_LEN_MAX: usize = 1 << 30;
/// Unsent bytes of one handle beyond which a write is refused, unless asked otherwise: what a peer
/// that does not read can hold of a server's memory.
pub const UNSENT_BYTES_MAX_DEFAULT: usize = 1 << 20;
/// The parts of one vectored write (the kernel's UIO_MAXIOV).
pub const WRITE_PARTS_MAX: usize = 1024;
/// Parts of queued writes that one send gathers.
pub const GATHER_PARTS_MAX: usize = 64;

/// Moments for which a ring is asked to tell at once, each earlier than the one before; beyond
/// them each wait is given its time.
pub(crate) const ALARMS_MAX: usize = 16;

/// Words of control data that one datagram may bring (cmsg(3)): more than all options of UDP
/// sockets together ask for.
pub(crate) const CONTROL_WORDS: usize = 32;

/// Operations outstanding on one channel, all handles together.
pub const OPERATIONS_MAX: usize = 1 << 22;
/// Connect time-outs that wait in a queue at most; older ones go to an ordered map.
pub const CONNECT_DEADLINES_MAX: usize = 1 << 12;

/// Answers of the kernel that one fetch may bring beside those to operations, for which memory is
/// reserved beforehand.
pub const ANSWERS_PER_FETCH: usize = 1 << 10;
/// Bytes received ahead of the reads of one handle before receiving pauses.
pub const READ_AHEAD_BYTES_MAX: usize = 64 << 10;
/// Connections accepted ahead of the `accept` credit of one listener before accepting pauses.
pub const ACCEPT_AHEAD_MAX: usize = 64;
/// Requests for one connection each that a listener has with the kernel at a time.
pub(crate) const ACCEPTS_AT_ONCE: u32 = 32;

/// The backlog of a listening socket unless asked otherwise; the kernel caps it at `somaxconn`.
pub const BACKLOG_DEFAULT: u32 = 4096;

/// How long a listener that leaves its group goes on draining, in milliseconds: the time in which
/// a handshake that began before the leave can still complete (one SYN-ACK retransmission).
pub const LEAVE_GRACE_MS: u64 = 1500;

/// CPUs that a mask can name.
pub const CPUS_MAX: usize = 1024;

/// Helper threads of the epoll driver for disk files.
pub const FILE_THREADS_MAX: usize = 4;
/// Work on disk files that waits for or is with those threads.
pub const FILE_JOBS_MAX: usize = 1 << 16;
/// The longest read of a disk file that the epoll driver tries from the page cache at once.
pub const CACHED_READ_BYTES_MAX: usize = 256 << 10;
/// The longest read of a pipe or device that the epoll driver makes in one call.
pub const PLAIN_READ_BYTES_MAX: usize = 1 << 20;

/// Events that the epoll driver fetches with one call.
pub const EVENTS_MAX: usize = 512;
/// Bytes that the epoll driver moves for one handle and direction in one poll.
pub const POLL_BYTES_MAX: usize = 256 << 10;
/// Connections that the epoll driver accepts from one listener in one poll.
pub const POLL_ACCEPTS_MAX: usize = 64;
/// Polls of the epoll driver with completions before it fetches events in any case.
pub const POLLS_PER_FETCH: u32 = 8;
/// How long the epoll driver waits before it tries again what the kernel gives no event for, in
/// milliseconds: a UNIX socket whose peer's queue is full.
pub const RETRY_PAUSE_MS: u64 = 2;

/// Datagrams that one call sends at most (`UDP_MAX_SEGMENTS` in the kernel); an endpoint of the
/// stack takes twice as many.
#[cfg(feature = "local")]
pub(crate) const DATAGRAM_SEGMENTS_MAX: usize = 128;

const _: () = assert!(BATCH_DEFAULT <= BATCH_MAX && BATCH_MAX <= SUBMISSION_ENTRIES_MAX);
const _: () = assert!(SUBMISSION_ENTRIES_MAX <= COMPLETION_ENTRIES_MAX);
const _: () =
    assert!(LWSOCKETS_DEFAULT <= HANDLES_MAX && HANDLES_MAX < crate::handle::FIRST_LWSOCKET);
const _: () = assert!(BUFFER_COUNT_DEFAULT.is_power_of_two() && BUFFER_COUNT_MAX.is_power_of_two());
const _: () = assert!(READ_AHEAD_BYTES_MAX >= BUFFER_LEN_DEFAULT);

/// Bytes of received payload beyond the receive buffers that a channel's own stack keeps at most.
#[cfg(feature = "local")]
pub(crate) const RESERVE_BYTES_MAX: usize = 64 << 20;

/// Receive buffers of a session of a daemon, in bytes beyond those of the channel.
#[cfg(feature = "local")]
pub(crate) const SERVICE_RESERVE_BYTES: usize = 16 << 20;
/// Time between two looks of an awake channel whether the daemon's process is there.
#[cfg(feature = "local")]
pub(crate) const DAEMON_LOOK_PERIOD: Duration = Duration::from_millis(10);
/// Time between two attempts to attach to a daemon that is gone.
#[cfg(feature = "local")]
pub(crate) const REATTACH_PERIOD: Duration = Duration::from_millis(50);
