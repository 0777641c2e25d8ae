//! The records and constants that a C program sees. `megapipe.h` is generated from here.
//!
//! Read first: `megapipe(7)` in `man/`.
//!
//! Invariants
//! - Every record is `repr(C)`, and its size and offsets are asserted below; the C tests assert
//!   the same numbers. A change of one is a change of the ABI.
//! - Records that a program fills begin with their size, so that a later version can append
//!   fields. Records that the library fills hold reserved space, always zero.
//! - No Rust enum is ever read from C memory: input is an integer that is checked.

#![allow(non_camel_case_types, reason = "these are the names that C programs write")]

use std::ffi::{c_char, c_void};

use channel::CpuMask;
use channel::limits;
use libc::{sockaddr, socklen_t};

/// Names one socket, file, pipe or timer in its channel. 0 is never a valid handle.
pub type mp_handle_t = u64;

/// The value that is never a valid handle: what a failed call returns.
pub const MP_NO_HANDLE: mp_handle_t = 0;

/// The version of this header.
pub const MP_VERSION_MAJOR: u32 = 0;
/// The version of this header.
pub const MP_VERSION_MINOR: u32 = 1;
/// The version of this header.
pub const MP_VERSION_PATCH: u32 = 0;

/// As `timeout_ns`: wait until there is a completion.
pub const MP_FOREVER: i64 = -1;

/// As `count` of mp_accept(): keep accepting until the handle is unregistered.
pub const MP_ALWAYS: u32 = u32::MAX;

/// The number of the first lwsocket: smaller numbers are file descriptors.
pub const MP_FIRST_LWSOCKET: i32 = 1 << 30;

/// The CPUs that a mask may name.
pub const MP_CPUS_MAX: u32 = 1024;

/// The operation that a completion reports.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum mp_cmd {
    /// mp_accept(): a connection arrived.
    MP_ACCEPT = 1,
    /// mp_connect(): the connection is established or has failed.
    MP_CONNECT = 2,
    /// mp_open(): the file is open.
    MP_OPEN = 3,
    /// mp_read(), mp_readv(), mp_read_at(): bytes arrived; none means end of file.
    MP_READ = 4,
    /// mp_write(), mp_writev(), mp_write_at(): all bytes were written. mp_write_quiet(): reported
    /// only if the write failed.
    MP_WRITE = 5,
    /// mp_recvfrom(): a message arrived.
    MP_RECVFROM = 6,
    /// mp_sendto(): the message was sent.
    MP_SENDTO = 7,
    /// mp_fsync(): the file's data is on the device.
    MP_FSYNC = 8,
    /// mp_disconnect(): done.
    MP_DISCONNECT = 9,
    /// mp_timer(): the timer expired.
    MP_TIMER = 10,
    /// mp_to_fd(): the handle became a file descriptor.
    MP_TO_FD = 11,
    /// mp_wake() was called.
    MP_WAKE = 12,
    /// The event that mp_unregister() fills; never dispatched.
    MP_UNREGISTER = 13,
    /// mp_await_end(): the connection has ended in both directions; `error` is the cause, 0 after
    /// an orderly close.
    MP_AWAIT_END = 14,
    /// mp_await_delivery(): the peer has acknowledged all bytes that were written.
    MP_AWAIT_DELIVERY = 15,
    /// A write failed with ENOBUFS before, and the handle accepts writes again: its unsent bytes
    /// have fallen to half of `mp_config.unsent_bytes_max`.
    MP_DRAINED = 16,
}

/// The TCP and UDP implementation of a channel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum mp_backend {
    /// The value of MEGAPIPE_BACKEND in the environment, `kernel`, `local` or `service`; the kernel
    /// if it is unset.
    MP_BACKEND_DEFAULT = 0,
    /// The kernel.
    MP_BACKEND_KERNEL = 1,
    /// The library's own TCP/IP stack, on a link.
    MP_BACKEND_LOCAL = 2,
    /// The library's own TCP/IP stack in the daemon megapiped.
    MP_BACKEND_SERVICE = 3,
}

/// Where the library's own TCP/IP stack runs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum mp_placement {
    /// With MP_BACKEND_DEFAULT the value of MEGAPIPE_PLACEMENT in the environment, `inline`,
    /// `thread` or `core`; otherwise inline.
    MP_PLACEMENT_DEFAULT = 0,
    /// Inside the channel's calls, on the channel's thread.
    MP_PLACEMENT_INLINE = 1,
    /// On a thread of the library, on the same core as the channel's thread.
    MP_PLACEMENT_THREAD = 2,
    /// On a thread of the library, on a core of its own.
    MP_PLACEMENT_CORE = 3,
}

/// The kernel interface of a channel: for everything with the kernel back end, for everything
/// except TCP and UDP with the library's own stack.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum mp_driver {
    /// io_uring if a trial of it works, else epoll. mp_report() names the driver and the reason.
    MP_DRIVER_AUTO = 0,
    /// io_uring, or mp_create() fails.
    MP_DRIVER_URING = 1,
    /// epoll.
    MP_DRIVER_EPOLL = 2,
}

/// What an accepted connection becomes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum mp_as {
    /// A file descriptor of the process.
    MP_AS_FD = 0,
    /// An lwsocket of the channel.
    MP_AS_LWSOCKET = 1,
}

/// What mp_disconnect() closes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum mp_how {
    /// Both directions, after the writes that are queued.
    MP_BOTH = 0,
    /// The sending direction, after the writes that are queued.
    MP_WRITING = 1,
    /// The whole connection, immediately, with a reset.
    MP_RESET = 2,
}

/// Bit of `mp_event.flags`: the message was longer than the buffer; the excess is discarded.
pub const MP_TRUNCATED: u32 = 1;
/// Bit of `mp_event.flags`: `buf` is lent and must be returned with mp_release().
pub const MP_LENT: u32 = 2;

/// Bit of `mp_config.flags`: accepted lwsockets are backed by ordinary descriptors.
pub const MP_NO_LWSOCKETS: u32 = 1;
/// Bit of `mp_config.flags`: listeners share one accept queue instead of one per channel.
pub const MP_NO_PARTITION: u32 = 2;
/// Bit of `mp_config.flags`: the kernel serves if the daemon of the service back end gives no
/// session.
pub const MP_FALL_BACK: u32 = 4;
/// Bit of `mp_config.flags`: with the local back end 127.0.0.0/8 and ::1 are the stack's.
pub const MP_LOOPBACK_STACK: u32 = 8;

/// Bit of `mp_listen_options.flags`: no other socket may listen on the address.
pub const MP_EXCLUSIVE: u32 = 1;
/// Bit of `mp_listen_options.flags`: an IPv6 socket accepts IPv6 only.
pub const MP_ONLY_V6: u32 = 2;

/// Bit of `mp_connect_options.flags`: the kernel may coalesce small segments (no TCP_NODELAY).
pub const MP_GATHER: u32 = 1;
/// Bit of `mp_connect_options.flags`: mp_unregister() resets the connection.
pub const MP_RESET_ON_CLOSE: u32 = 2;
/// Bit of `mp_connect_options.flags`: the SYN may carry the first bytes written (TCP Fast Open).
pub const MP_FAST_OPEN: u32 = 4;

/// Options of a channel. Let mp_config_init() fill it, then change fields.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mp_config {
    /// sizeof(struct mp_config), set by mp_config_init().
    pub size: usize,
    /// An enum mp_driver.
    pub driver: u32,
    /// Operations collected before they are submitted to the kernel; 1 turns batching off.
    pub batch: u32,
    /// Entries of the submission queue.
    pub submission_entries: u32,
    /// Entries of the completion queue.
    pub completion_entries: u32,
    /// lwsockets that may be open at once.
    pub max_lwsockets: u32,
    /// Bytes of one receive buffer, and so the most bytes of one lent read.
    pub buffer_len: u32,
    /// Receive buffers of the channel.
    pub buffer_count: u32,
    /// Core that the calling thread is pinned to; -1 does not pin it.
    pub core: i32,
    /// MP_NO_LWSOCKETS, MP_NO_PARTITION, MP_FALL_BACK, MP_LOOPBACK_STACK.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// An enum mp_backend.
    pub backend: u32,
    /// Local: the largest IP packet in bytes; 0 for that of the link.
    pub mtu: u32,
    /// Local: the link, such as "tap:tap0" or "xdp:eth0". Null for the link that the environment
    /// names. Service: the path of the daemon's socket. Null for MEGAPIPE_SERVICE of the
    /// environment, else "/run/megapipe/megapiped.sock".
    pub link: *const c_char,
    /// Local: the stack's addresses, "10.0.0.2/24,fd00::2/64"; null or empty for those of the
    /// interface, where the link shares them.
    pub addresses: *const c_char,
    /// Local: next hops for destinations that are not on the link, at most one of each family,
    /// separated by a comma. May be null.
    pub gateways: *const c_char,
    /// Local: microseconds that the stack polls its link after the last frame before it sleeps, at
    /// most; 0 for 50.
    pub spin_us: u32,
    /// Local: channels of the process that will share the link; 0 for one on each of its queues.
    pub channels: u32,
    /// Local: an enum mp_placement.
    pub placement: u32,
    /// MP_PLACEMENT_CORE: the core that the stack runs on; -1 for the next one that the process may
    /// use. Otherwise -1 or 0.
    pub server_core: i32,
    /// Unsent bytes that one handle may have; a write that would exceed them fails with ENOBUFS. 0
    /// for 1 MiB, UINT64_MAX for no limit.
    pub unsent_bytes_max: u64,
}

/// Options of an accept beyond those of mp_accept(). Zero what is not needed, and set `size`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mp_accept_options {
    /// sizeof(struct mp_accept_options).
    pub size: usize,
    /// Number of connections; MP_ALWAYS for no limit.
    pub count: u32,
    /// An enum mp_as.
    pub kind: u32,
    /// The connections' cookie (lwsockets only); null otherwise.
    pub cookie: *mut c_void,
    /// If not 0, a lent read of up to this many bytes is started on each lwsocket when it is
    /// accepted.
    pub first_read: usize,
}

/// Options of a listening socket. Zero what is not needed, and set `size`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mp_listen_options {
    /// sizeof(struct mp_listen_options).
    pub size: usize,
    /// Length of the accept queue (one more connection fits); 0 for 4096.
    pub backlog: u32,
    /// MP_EXCLUSIVE, MP_ONLY_V6.
    pub flags: u32,
    /// The cores whose connections this channel accepts, 64 in each word, or null.
    pub cpu_mask: *const u64,
    /// Words in `cpu_mask`, at most 16.
    pub cpu_mask_words: usize,
    /// Connections that may begin with the data of a SYN and not be established yet (TCP Fast
    /// Open); 0 for none.
    pub fast_open: u32,
    /// Unsent bytes of a connection from which on writes wait (TCP_NOTSENT_LOWAT); 0 for no limit.
    pub notsent_lowat: u32,
}

/// Options of a connection. Zero what is not needed, and set `size`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mp_connect_options {
    /// sizeof(struct mp_connect_options).
    pub size: usize,
    /// Nanoseconds after which connecting fails; 0 for the kernel's limit.
    pub timeout_ns: u64,
    /// The local address, or null.
    pub bind: *const sockaddr,
    /// The size of the local address.
    pub bind_size: socklen_t,
    /// MP_GATHER, MP_RESET_ON_CLOSE, MP_FAST_OPEN.
    pub flags: u32,
    /// Unsent bytes from which on writes wait (TCP_NOTSENT_LOWAT); 0 for no limit.
    pub notsent_lowat: u32,
    /// Zero.
    pub reserved: u32,
}

/// Counters of a channel since it was created.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct mp_counters {
    /// Operations submitted by the program.
    pub operations: u64,
    /// Completions returned to the program.
    pub completions: u64,
    /// System calls that submitted, waited or polled.
    pub system_calls: u64,
    /// Requests submitted to the kernel.
    pub kernel_requests: u64,
    /// Completions received from the kernel.
    pub kernel_answers: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Reads completed with bytes that had arrived before the read.
    pub reads_at_once: u64,
    /// Receives that found no free buffer.
    pub buffers_exhausted: u64,
    /// Unread bytes copied out of receive buffers to free them.
    pub spilled_bytes: u64,
    /// Times that receiving paused because a handle had too many unread bytes.
    pub receive_paused: u64,
    /// Times that the completion queue overflowed into the kernel's list.
    pub completion_overflows: u64,
    /// Times that accepting stopped for lack of descriptors.
    pub accept_exhausted: u64,
    /// Connections moved to or from another channel of the same listener.
    pub connections_passed: u64,
    /// Connections closed because no channel could accept them.
    pub connections_dropped: u64,
    /// Datagrams of the library's own stack that were dropped because the receive queue was full.
    /// Stays 0 with the kernel back end.
    pub datagrams_dropped: u64,
    /// Completions of the kernel that named no live request (stays 0).
    pub stray_answers: u64,
    /// Events sent by a stack that runs on a thread of its own.
    pub server_events: u64,
    /// Times that such events woke the channel.
    pub server_wakeups: u64,
    /// Writes rejected because their handle had too many unsent bytes.
    pub writes_refused: u64,
}

/// Bit of `mp_conn_info.flags`: TCP timestamps are in use.
pub const MP_CONN_TIMESTAMPS: u32 = 1;
/// Bit of `mp_conn_info.flags`: selective acknowledgments are in use.
pub const MP_CONN_SACK: u32 = 2;
/// Bit of `mp_conn_info.flags`: windows are scaled.
pub const MP_CONN_WINDOW_SCALE: u32 = 4;
/// Bit of `mp_conn_info.flags`: explicit congestion notification is in use.
pub const MP_CONN_ECN: u32 = 8;
/// Bit of `mp_conn_info.flags`: ICMP has reported an error that need not last.
pub const MP_CONN_SOFT_ERROR: u32 = 16;

/// The state of one TCP connection of the library's own stack.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct mp_conn_info {
    /// Smoothed round-trip time in nanoseconds; 0: no sample yet.
    pub srtt_ns: u64,
    /// Variation of the round-trip time in nanoseconds.
    pub rttvar_ns: u64,
    /// Smallest recent round-trip time in nanoseconds; 0: no sample yet.
    pub min_rtt_ns: u64,
    /// Retransmission timeout in nanoseconds.
    pub rto_ns: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// State of the connection, with the numbers of <netinet/tcp.h>: TCP_ESTABLISHED is 1.
    pub state: u32,
    /// MP_CONN_TIMESTAMPS, MP_CONN_SACK, MP_CONN_WINDOW_SCALE, MP_CONN_ECN, MP_CONN_SOFT_ERROR.
    pub flags: u32,
    /// Largest payload of a sent segment, in bytes.
    pub mss: u32,
    /// Congestion window in bytes.
    pub congestion_window: u32,
    /// Slow start threshold in bytes; UINT32_MAX: none yet.
    pub slow_start_threshold: u32,
    /// Send window in bytes, as offered by the peer.
    pub send_window: u32,
    /// Receive window in bytes, as offered to the peer.
    pub receive_window: u32,
    /// Window scale of the peer.
    pub send_window_shift: u32,
    /// Window scale of this end.
    pub receive_window_shift: u32,
    /// Size of the send buffer in bytes.
    pub send_buffer_bytes: u32,
    /// Size of the receive buffer in bytes.
    pub receive_buffer_bytes: u32,
    /// Bytes in the send queue, sent or not, that the peer has not acknowledged.
    pub queued_bytes: u32,
    /// Bytes sent and not acknowledged.
    pub flight_bytes: u32,
    /// Bytes sent that the peer has received out of order.
    pub sacked_bytes: u32,
    /// Bytes sent that are considered lost and were not retransmitted yet.
    pub lost_bytes: u32,
    /// Bytes received in order and not yet read from the stack.
    pub unread_bytes: u32,
    /// Bytes received out of order.
    pub out_of_order_bytes: u32,
    /// Urgent bytes not yet read.
    pub urgent_bytes: u32,
    /// Segments received.
    pub segments_received: u32,
    /// Segments sent.
    pub segments_sent: u32,
    /// Segments retransmitted.
    pub segments_retransmitted: u32,
    /// Timeouts in a row without progress.
    pub timeouts: u32,
}

/// One completion.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mp_event {
    /// The operation that completed: an enum mp_cmd.
    pub cmd: u32,
    /// 0, or the errno value of the cause.
    pub error: i32,
    /// The handle of the operation. MP_NO_HANDLE for MP_WAKE.
    pub handle: mp_handle_t,
    /// The handle's cookie.
    pub cookie: *mut c_void,
    /// Bytes read or written.
    pub size: usize,
    /// The bytes: in lent memory (MP_LENT), else in the program's own buffer.
    pub buf: *const c_void,
    /// MP_ACCEPT: the new connection, a file descriptor or the number of an lwsocket.
    /// MP_TO_FD: the file descriptor. Else -1.
    pub fd: i32,
    /// MP_ACCEPT: connections known to be in the accept queue behind this one.
    pub pending: u32,
    /// MP_ACCEPT of an lwsocket: its handle, usable immediately.
    pub connection: mp_handle_t,
    /// MP_TIMER: number of expirations since the last completion of the timer.
    pub expirations: u64,
    /// MP_TRUNCATED, MP_LENT.
    pub flags: u32,
    /// Internal: the index of the lent buffer.
    pub lent_index: u32,
    /// Internal: the generation of that buffer.
    pub lent_generation: u32,
    /// Zero.
    pub reserved: [u32; 5],
}

impl mp_event {
    /// An event with its command, handle and cookie; all other fields are zero.
    pub(crate) const fn new(cmd: mp_cmd, handle: mp_handle_t, cookie: u64) -> Self {
        Self {
            cmd: cmd as u32,
            error: 0,
            handle,
            cookie: cookie as usize as *mut c_void,
            size: 0,
            buf: std::ptr::null(),
            fd: -1,
            pending: 0,
            connection: MP_NO_HANDLE,
            expirations: 0,
            flags: 0,
            lent_index: 0,
            lent_generation: 0,
            reserved: [0; 5],
        }
    }
}

const _: () = assert!(usize::BITS == 64, "cookies, sizes and pointers are 64 bits wide");
const _: () = assert!(MP_CPUS_MAX as usize == limits::CPUS_MAX);
const _: () = assert!(size_of::<CpuMask>() == limits::CPUS_MAX / 8);

macro_rules! layout {
    ($record:ident is $size:literal: $($field:ident at $offset:literal),* $(,)?) => {
        const _: () = assert!(size_of::<$record>() == $size && align_of::<$record>() == 8);
        $(const _: () = assert!(std::mem::offset_of!($record, $field) == $offset);)*
    };
}

layout!(mp_config is 104: size at 0, driver at 8, batch at 12, submission_entries at 16,
    completion_entries at 20, max_lwsockets at 24, buffer_len at 28, buffer_count at 32,
    core at 36, flags at 40, reserved at 44, backend at 48, mtu at 52, link at 56,
    addresses at 64, gateways at 72, spin_us at 80, channels at 84, placement at 88,
    server_core at 92, unsent_bytes_max at 96);
layout!(mp_accept_options is 32: size at 0, count at 8, kind at 12, cookie at 16, first_read at 24);
layout!(mp_listen_options is 40: size at 0, backlog at 8, flags at 12, cpu_mask at 16,
    cpu_mask_words at 24, fast_open at 32, notsent_lowat at 36);
layout!(mp_connect_options is 40: size at 0, timeout_ns at 8, bind at 16, bind_size at 24,
    flags at 28, notsent_lowat at 32, reserved at 36);
layout!(mp_counters is 152: operations at 0, stray_answers at 120, server_wakeups at 136,
    writes_refused at 144);
layout!(mp_conn_info is 136: srtt_ns at 0, bytes_sent at 40, state at 48, timeouts at 132);
layout!(mp_event is 96: cmd at 0, error at 4, handle at 8, cookie at 16, size at 24, buf at 32,
    fd at 40, pending at 44, connection at 48, expirations at 56, flags at 64, lent_index at 68,
    lent_generation at 72, reserved at 76);
