//! Every bound of this crate, in one place, related by assertions.

use std::time::Duration;

/// Descriptors of one context unless asked otherwise.
pub const DESCRIPTORS_DEFAULT: u32 = 1 << 16;
/// Descriptors of one context at most: object indices are cookies' lower halves.
pub const DESCRIPTORS_MAX: u32 = 1 << 20;
/// The highest number that a context's first descriptor may have.
pub const FIRST_DESCRIPTOR_MAX: i32 = i32::MAX - DESCRIPTORS_MAX as i32;

/// Bytes that one read asks the channel for; a completion carries at most one buffer.
pub(crate) const READ_BYTES: usize = 1 << 20;
/// Bytes that a connection takes from the channel ahead of the program's reads. What is beyond
/// waits in the stack, and closes the peer's window.
pub(crate) const INBOX_BYTES_MAX: usize = 64 << 10;
/// Buffers of the channel that a connection holds ahead of the program's reads: small segments must
/// not eat the pool that others live on.
pub(crate) const INBOX_BUFFERS_MAX: usize = 8;

/// Bytes that one write to the channel carries; longer ones go in pieces.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Bytes that the kernel has not taken yet and a connection may have before it is full.
pub(crate) const OUTBOX_BYTES_MAX: usize = 128 << 10;

/// Bytes of the longest datagram (IPv4's total length less its headers).
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Bytes of datagrams that wait for the program before no more are asked for (`net.core.rmem_max`).
pub(crate) const DATAGRAM_INBOX_BYTES_MAX: usize = 208 << 10;
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
/// once in so long, or in so many turns.
pub(crate) const LOOKOUT_PERIOD: Duration = Duration::from_micros(50);
pub(crate) const LOOKOUT_TURNS: u32 = 16;
/// Events that one call of `epoll_wait` gives at most (`EP_MAX_EVENTS`).
pub(crate) const EVENTS_MAX: usize = i32::MAX as usize / 12;

const _: () = assert!(DESCRIPTORS_DEFAULT <= DESCRIPTORS_MAX);
const _: () = assert!(PIPE_ATOMIC_BYTES <= PIPE_BYTES);
const _: () = assert!(PIECE_BYTES <= OUTBOX_BYTES_MAX);
const _: () = assert!(ACCEPT_AHEAD <= BACKLOG_MAX);
