//! Every bound of this crate, in one place, related by assertions.

use std::time::Duration;

/// Descriptors of one context unless asked otherwise.
pub const DESCRIPTORS_DEFAULT: u32 = 1 << 16;
/// Descriptors of one context at most: object indices are cookies' lower halves.
pub const DESCRIPTORS_MAX: u32 = 1 << 20;
/// The highest number that a context's first descriptor may have.
pub const FIRST_DESCRIPTOR_MAX: i32 = i32::MAX - DESCRIPTORS_MAX as i32;

/// The index of no object and no item: the end of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// Bytes that one read asks the channel for; a completion carries at most one buffer.
pub(crate) const READ_BYTES: usize = 1 << 20;
/// Bytes that a connection takes from the channel ahead of the program's reads. What is beyond
/// waits in the stack, and closes the peer's window.
pub(crate) const INBOX_BYTES_MAX: usize = 64 << 10;
/// Buffers of the channel that a connection holds ahead of the program's reads: small segments must
/// not eat the pool that others live on.
pub(crate) const INBOX_BUFFERS_MAX: usize = 8;
/// SO_RCVLOWAT at most (half of Linux's largest receive buffer): a connection takes as many bytes
/// ahead of the program's reads as its low-water mark asks for.
pub(crate) const LOW_WATER_MAX: u32 = 3 << 20;
/// Turns in a row that bring nothing, after which a call stops fetching bytes that are known to
/// wait: a stack on another thread may need a few to hand them over.
pub(crate) const FETCH_ROUNDS: u32 = 32;

/// Bytes that one write to the channel carries; longer ones go in pieces.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// The shortest piece, where SO_SNDBUF is small: a write that finds the send buffer full leaves one
/// piece with the channel, which tells when there is room.
pub(crate) const PIECE_BYTES_MIN: usize = 1 << 10;
/// Pieces of a send buffer that SO_SNDBUF has set.
pub(crate) const PIECES_PER_SEND_BUFFER: usize = 4;
/// Pieces that the kernel has not taken yet and a connection may have before it is full.
pub(crate) const PIECES_UNSENT_MAX: usize = 2;

/// How often the end of a process looks whether its peers have everything: at first, and after many
/// times.
pub(crate) const UNDELIVERED_PAUSE_MIN: Duration = Duration::from_micros(50);
pub(crate) const UNDELIVERED_PAUSE_MAX: Duration = Duration::from_millis(5);

/// Bytes of the longest datagram (IPv4's total length less its headers).
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Bytes of datagrams that wait for the program before no more are asked for (`net.core.rmem_max`).
pub(crate) const DATAGRAM_INBOX_BYTES_MAX: usize = 208 << 10;
/// Datagrams that wait for the program before no more are asked for, however short they are.
pub(crate) const DATAGRAM_INBOX_MAX: usize = 4096;
/// Bytes of datagrams that the channel has and has not answered.
pub(crate) const DATAGRAM_OUTBOX_BYTES_MAX: usize = 208 << 10;

/// Datagrams that one call sends or receives at most (`UDP_MAX_SEGMENTS` in the kernel).
pub(crate) const SEGMENTS_MAX: usize = 128;
/// Errors of a datagram socket that wait for the program; more are lost.
pub(crate) const ERRORS_MAX: usize = 64;

/// Bytes of a pipe (Linux's default).
pub(crate) const PIPE_BYTES: usize = 64 << 10;
/// Bytes that a write to a pipe never tears (PIPE_BUF).
pub(crate) const PIPE_ATOMIC_BYTES: usize = 4096;

/// Connections that are taken from the channel ahead of the program's accepts, at most; fewer where
/// the backlog is small.
pub(crate) const ACCEPT_AHEAD: usize = 64;
/// The longest backlog (`net.core.somaxconn` as Linux has had it since 5.4).
pub(crate) const BACKLOG_MAX: usize = 4096;

/// Sets within sets (`EP_MAX_NESTS` in the kernel).
pub(crate) const SET_DEPTH_MAX: usize = 4;
/// Events of the kernel's that one call of `epoll_wait` takes at most.
pub(crate) const KERNEL_EVENTS_MAX: usize = 256;
/// Events that are taken from a context's lookout at once.
pub(crate) const LOOKOUT_EVENTS: usize = 32;
/// However busy its own sockets are, a context asks after the kernel's descriptors that it watches
/// once in so long, or in so many polls.
pub(crate) const LOOKOUT_PERIOD: Duration = Duration::from_micros(200);
pub(crate) const LOOKOUT_POLLS: u32 = 16;
/// Events that one call of `epoll_wait` gives at most (`EP_MAX_EVENTS`).
pub(crate) const EVENTS_MAX: usize = i32::MAX as usize / 12;

/// Calls that return without waiting: one in so many checks how old the last poll of the channel
/// is. Reading the clock for each message would cost more than the check is worth.
pub(crate) const CALLS_PER_CHECK: u32 = 16;
/// The first check comes after so many calls: a program that makes few calls at long intervals is
/// served by one of its next calls.
pub(crate) const CALLS_TO_FIRST_CHECK: u32 = 4;
/// Checks after which the channel is polled in any case: more calls than most programs make for
/// one batch of events.
pub(crate) const CHECKS_PER_POLL: u32 = 64;
/// A check that finds the last poll older than this polls the channel.
pub(crate) const POLL_AGE_MAX: Duration = Duration::from_millis(1);

/// Polls of a call that takes in all that has arrived. What arrives in one poll may make the
/// channel ask for more, such as what is behind the end of a stream.
pub(crate) const TAKE_IN_POLLS_MAX: u32 = 4;

/// While no thread of a shared context sleeps in the kernel but some wait, the channel is polled at
/// least so often: by calls, or by the deputy.
pub(crate) const VACANCY_MAX: Duration = POLL_AGE_MAX;
/// A thread that works no longer than this between two waits keeps the lead.
pub(crate) const SHORT_WORK_MAX: Duration = Duration::from_micros(500);
/// Calls beside a leader after which a thread that waits asks for the lead.
pub(crate) const CALLS_PER_MOVE: u32 = 16;

const _: () = assert!(CALLS_TO_FIRST_CHECK <= CALLS_PER_CHECK);
const _: () = assert!(CALLS_PER_CHECK.is_power_of_two());
const _: () = assert!(DESCRIPTORS_DEFAULT <= DESCRIPTORS_MAX);
const _: () = assert!(PIPE_ATOMIC_BYTES <= PIPE_BYTES);
const _: () = assert!(PIECE_BYTES_MIN <= PIECE_BYTES);
const _: () = assert!(ACCEPT_AHEAD <= BACKLOG_MAX);
