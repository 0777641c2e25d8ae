//! The socket options of repair mode, each a function.
//!
//! Read first: `include/uapi/linux/tcp.h`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::interface;
use crate::limits::{REPAIR_CHUNK_BYTES_MAX, REPAIR_CHUNK_BYTES_MIN};
pub(super) use crate::port_guard::undeafen;
use crate::socket_option::{SocketOptionValue, attach_filter, option_bytes, set_option};
pub(super) use crate::socket_option::{bind_to_interface, bound_interface, has_filter};

// What the libc crate lacks.
const TCP_REPAIR_WINDOW: libc::c_int = 29;
const TCP_ULP: libc::c_int = 31;
const SO_BUF_LOCK: libc::c_int = 72;
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// Words of `struct tcp_info` that are looked at: up to `tcpi_rtt`.
const INFO_WORDS: usize = 18;

/// How to leave repair mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Off {
    /// With a window probe, which the peer answers.
    Probe,
    /// Without a segment (Linux 4.19).
    Silent,
}

/// One of the two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketQueue {
    Receive = 1,
    Send = 2,
}

/// `struct tcp_repair_window`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawWindows {
    pub(super) snd_wl1: u32,
    pub(super) snd_wnd: u32,
    pub(super) max_window: u32,
    pub(super) rcv_wnd: u32,
    pub(super) rcv_wup: u32,
}

/// `struct tcp_repair_opt`: a number of the options in a SYN, and what it said.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RawOption {
    pub(super) code: u32,
    pub(super) value: u32,
}

// SAFETY: 32-bit integers.
unsafe impl SocketOptionValue for RawWindows {}
// SAFETY: two 32-bit integers for each option.
unsafe impl<const COUNT: usize> SocketOptionValue for [RawOption; COUNT] {}

/// What of `struct tcp_info` matters here.
#[derive(Debug, Clone, Copy)]
pub(super) struct TcpInfo {
    pub(super) state: u8,
    /// `TCPI_OPT_*`.
    pub(super) options: u8,
    pub(super) snd_scale: u8,
    pub(super) rcv_scale: u8,
    pub(super) srtt_us: u32,
}

/// The value of an option, in words. What the kernel does not tell is zero.
fn get_words<const COUNT: usize>(
    socket: BorrowedFd<'_>,
    name: (libc::c_int, libc::c_int),
) -> io::Result<[u32; COUNT]> {
    let mut bytes = [[0; size_of::<u32>()]; COUNT];
    option_bytes(socket, name, bytes.as_flattened_mut())?;
    Ok(bytes.map(u32::from_ne_bytes))
}

fn get_word(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<u32> {
    get_words(socket, (level, option)).map(|[word]| word)
}

fn set_number(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, option, &value)
}

/// Enters repair mode.
pub(super) fn begin_repair(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_number(socket, libc::TCP_REPAIR, 1)
}

/// Leaves repair mode. Repair mode overwrites SO_REUSEADDR, and leaving it clears the option, so it
/// is set to `reuse_address` afterwards.
pub(super) fn end_repair(socket: BorrowedFd<'_>, how: Off, reuse_address: bool) -> io::Result<()> {
    let value = match how {
        Off::Probe => 0,
        Off::Silent => -1,
    };
    set_number(socket, libc::TCP_REPAIR, value)?;
    let reuse = libc::c_int::from(reuse_address);
    set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &reuse)
}

/// Whether SO_REUSEADDR is set. Only outside repair mode.
pub(super) fn reuses_address(socket: BorrowedFd<'_>) -> io::Result<bool> {
    get_word(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR).map(|value| value != 0)
}

/// Which queue the next calls are about.
pub(super) fn choose_queue(socket: BorrowedFd<'_>, queue: SocketQueue) -> io::Result<()> {
    set_number(socket, libc::TCP_REPAIR_QUEUE, queue as libc::c_int)
}

/// The number after the chosen queue's last byte.
pub(super) fn queue_seq(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get_word(socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)
}

/// Where the chosen queue begins. Only before the socket is connected.
pub(super) fn set_queue_seq(socket: BorrowedFd<'_>, seq: u32) -> io::Result<()> {
    set_number(socket, libc::TCP_QUEUE_SEQ, seq.cast_signed())
}

/// The windows.
pub(super) fn windows(socket: BorrowedFd<'_>) -> io::Result<RawWindows> {
    let words = get_words(socket, (libc::IPPROTO_TCP, TCP_REPAIR_WINDOW))?;
    let [snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup] = words;
    Ok(RawWindows { snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup })
}

/// Sets the windows (Linux 4.8).
pub(super) fn set_windows(socket: BorrowedFd<'_>, windows: &RawWindows) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR_WINDOW, windows)
}

/// Sets what a SYN would have said.
pub(super) fn set_options<const COUNT: usize>(
    socket: BorrowedFd<'_>,
    options: &[RawOption; COUNT],
) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, options)
}

/// The clock of timestamps.
pub(super) fn timestamp(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get_word(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP)
}

/// Sets the clock of timestamps.
pub(super) fn set_timestamp(socket: BorrowedFd<'_>, value: u32) -> io::Result<()> {
    set_number(socket, libc::TCP_TIMESTAMP, value.cast_signed())
}

/// In repair mode: the MSS of the peer's SYN.
pub(super) fn mss(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get_word(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG)
}

/// `IPPROTO_TCP`, `IPPROTO_MPTCP` or another.
pub(super) fn protocol(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get_word(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL)
}

/// What the kernel knows of the connection.
pub(super) fn info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let words: [u32; INFO_WORDS] = get_words(socket, (libc::IPPROTO_TCP, libc::TCP_INFO))?;
    let [state, ..] = words[0].to_ne_bytes();
    let [_, options, scales, _] = words[1].to_ne_bytes();
    // Two bit fields of C: the first is the low half where the lowest byte comes first.
    let (low, high) = (scales & 15, scales >> 4);
    let (snd_scale, rcv_scale) =
        if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
    Ok(TcpInfo { state, options, snd_scale, rcv_scale, srtt_us: words[INFO_WORDS - 1] })
}

/// Another protocol sits on top (kTLS for one).
pub(super) fn has_upper_protocol(socket: BorrowedFd<'_>) -> bool {
    let mut name = [0; 16];
    option_bytes(socket, (libc::IPPROTO_TCP, TCP_ULP), &mut name).is_ok_and(|len| len > 0)
}

/// From now on nothing reaches the socket.
pub(super) fn deafen(socket: BorrowedFd<'_>) -> io::Result<()> {
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    attach_filter(socket, &mut [libc::sock_filter { code, jt: 0, jf: 0, k: 0 }])
}

/// Makes room in the queues, beyond the system's bounds, and lets the kernel tune them later.
pub(super) fn make_room(
    socket: BorrowedFd<'_>,
    receive_bytes: usize,
    send_bytes: usize,
) -> io::Result<()> {
    let sizes = [(libc::SO_RCVBUFFORCE, receive_bytes), (libc::SO_SNDBUFFORCE, send_bytes)];
    for (option, bytes) in sizes {
        if bytes > 0 {
            let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
            set_option(socket, libc::SOL_SOCKET, option, &bytes)?;
        }
    }
    Ok(())
}

/// The sizes of the queues are the kernel's to tune again (Linux 5.14; before, they stay).
pub(super) fn unlock_sizes(socket: BorrowedFd<'_>) {
    let _ = set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, &0_i32);
}

fn count(socket: BorrowedFd<'_>, code: libc::Ioctl) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the codes given below take a pointer to an `int` and keep it not.
    unsafe { interface::ioctl(socket, code, &mut bytes) }?;
    usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Bytes that wait to be read.
pub(super) fn unread_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    count(socket, libc::FIONREAD)
}

/// Bytes that are not acknowledged, sent or not.
pub(super) fn unacked_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    count(socket, libc::TIOCOUTQ)
}

/// Bytes that were never sent.
pub(super) fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    count(socket, SIOCOUTQNSD)
}

/// Copies the chosen queue, which holds `len` bytes.
pub(super) fn peek(socket: BorrowedFd<'_>, len: usize) -> io::Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    // The kernel wants room for all of the send queue at once; a byte more shows whether it grew.
    let mut bytes = vec![0; len + 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let (_, got) = recv(socket, &mut bytes[..], flags)?;
    if got != len {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a queue changed while it was read",
        ));
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Appends to the chosen queue in repair mode, or sends.
pub(super) fn fill(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    let mut chunk = REPAIR_CHUNK_BYTES_MAX;
    while !bytes.is_empty() {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(socket.as_fd(), &bytes[..bytes.len().min(chunk)], flags) {
            Ok(taken) => bytes = &bytes[taken..],
            Err(rustix::io::Errno::INTR) => {}
            // Memory in one piece may be short where smaller pieces are to be had.
            Err(rustix::io::Errno::NOMEM | rustix::io::Errno::NOBUFS)
                if chunk > REPAIR_CHUNK_BYTES_MIN =>
            {
                chunk /= 2;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
