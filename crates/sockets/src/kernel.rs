//! What only the kernel can say: socket options of its sockets, as the caller gave them, how the
//! process takes its signals, and what happens to the process's descriptors, by their numbers.
//!
//! Read first: setsockopt(2), getsockopt(2), sigaction(2), epoll_ctl(2), poll(2).
#![expect(unsafe_code, reason = "see docs/UNSAFE.md")]

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags};

use crate::error::Error;
use crate::flags::{EpollEvent, EpollOp, Events, MsgFlags};
use crate::gather::{ReceivePieces, ReceivedMessage};
use crate::signal::SignalMask;

fn check(result: libc::c_int) -> Result<(), Error> {
    if result < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
}

/// setsockopt(2).
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[u8],
) -> Result<(), Error> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which outlives the call. Options whose value
    // holds pointers of its own are refused before (`refused::holds_pointers`), so the kernel reads
    // nothing else.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) })
}

/// getsockopt(2): how many bytes of `value` were filled.
pub(crate) fn option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> Result<usize, Error> {
    let mut len = value.len() as libc::socklen_t;
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: pointer and length describe `value`, which outlives the call, and bytes of any value
    // are valid there. Options whose value holds pointers of its own are refused before.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, &raw mut len) })?;
    Ok(len as usize)
}

/// ioctl(2)'s request behind sockatmark(3), which libc does not name.
pub const SIOCATMARK: u64 = 0x8905;
/// ioctl(2)'s request for the bytes that a TCP socket has not sent (tcp(7)).
pub const SIOCOUTQNSD: u64 = 0x894b;

/// Bytes that wait to be read at a socket (FIONREAD).
pub(crate) fn unread_bytes(fd: BorrowedFd<'_>) -> usize {
    rustix::io::ioctl_fionread(fd).map_or(0, |count| count as usize)
}

/// Bytes of a TCP socket that the peer has not acknowledged (SIOCOUTQ).
pub(crate) fn queued_bytes(fd: BorrowedFd<'_>) -> usize {
    count_of(fd, libc::TIOCOUTQ)
}

/// Bytes of a TCP socket that it has not sent (SIOCOUTQNSD).
pub(crate) fn unsent_bytes(fd: BorrowedFd<'_>) -> usize {
    count_of(fd, SIOCOUTQNSD)
}

fn count_of(fd: BorrowedFd<'_>, request: libc::c_ulong) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: the requests write one `int` to the pointer, which is `count`'s.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut count) };
    check(asked).map_or(0, |()| usize::try_from(count).unwrap_or_default())
}

/// A `sockaddr`, as long as the longest of the internet's.
pub(crate) const SOCKADDR_BYTES: usize = 28;

pub(crate) fn raw_address(address: SocketAddr) -> ([u8; SOCKADDR_BYTES], usize) {
    let mut raw = [0; SOCKADDR_BYTES];
    raw[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, len) = match address {
        SocketAddr::V4(it) => {
            raw[4..8].copy_from_slice(&it.ip().octets());
            (libc::AF_INET, 16)
        }
        SocketAddr::V6(it) => {
            raw[4..8].copy_from_slice(&it.flowinfo().to_be_bytes());
            raw[8..24].copy_from_slice(&it.ip().octets());
            raw[24..28].copy_from_slice(&it.scope_id().to_ne_bytes());
            (libc::AF_INET6, SOCKADDR_BYTES)
        }
    };
    raw[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    (raw, len)
}

fn address_of(raw: &[u8; SOCKADDR_BYTES], len: usize) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes([raw[0], raw[1]]));
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    let ip: IpAddr = match (family, len) {
        (libc::AF_INET, 16..) => IpAddr::from([raw[4], raw[5], raw[6], raw[7]]),
        (libc::AF_INET6, SOCKADDR_BYTES..) => {
            let octets: [u8; 16] = raw[8..24].try_into().ok()?;
            octets.into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// sendmsg(2) with control data. Does not wait.
pub(crate) fn send_with_control(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    to: SocketAddr,
    control: &[u8],
) -> Result<usize, Error> {
    let (mut to, to_len) = raw_address(to);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data for which all zeros (null pointers, length 0) are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = to.as_mut_ptr().cast();
    header.msg_namelen = to_len as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_ptr().cast_mut().cast();
    header.msg_controllen = control.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header points to `to`, `bytes` and `control`, with their lengths; the kernel only
    // reads them, and they outlive the call. Control data of internet sockets holds no pointers.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error().into())
}

/// Longer than what the queue of errors keeps of a message.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// recvmsg(2) from the queue of errors. Does not wait.
pub(crate) fn receive_error(
    fd: BorrowedFd<'_>,
    to: &mut ReceivePieces<'_, '_>,
    control: &mut [u8],
    flags: MsgFlags,
) -> Result<ReceivedMessage, Error> {
    let mut bytes = Vec::new();
    let len = to.left().min(ERROR_BYTES_MAX);
    bytes.try_reserve_exact(len).map_err(|_| Error::NoMemory)?;
    bytes.resize(len, 0_u8);
    let mut from = [0; SOCKADDR_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data for which all zeros (null pointers, length 0) are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = from.as_mut_ptr().cast();
    header.msg_namelen = SOCKADDR_BYTES as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len();
    let asked = flags.bits() & (libc::MSG_ERRQUEUE | libc::MSG_PEEK | libc::MSG_TRUNC);
    // SAFETY: the header points to `from`, `bytes` and `control`, with their lengths, and all of
    // them outlive the call.
    let received =
        unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, asked | libc::MSG_DONTWAIT) };
    let len = usize::try_from(received).map_err(|_| Error::from(io::Error::last_os_error()))?;
    to.put(&bytes[..len.min(bytes.len())], false);
    Ok(ReceivedMessage {
        len,
        from: address_of(&from, header.msg_namelen as usize),
        flags: MsgFlags::from_bits_retain(header.msg_flags),
        control_len: header.msg_controllen,
    })
}

/// Signals of a process's own faults: their handlers, which runtimes install, interrupt no call.
const FAULTS: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
/// The last signal there is (`_NSIG` in the kernel).
const SIGNAL_MAX: libc::c_int = 64;

/// Functions of a library that replaces sigaction(2), and runs handlers where they may make calls.
#[derive(Debug, Clone, Copy)]
pub struct SignalHooks {
    /// Whether the handlers that interrupted a call of this thread allow it to go on: all were
    /// installed with SA_RESTART. `None`: it does not know.
    pub restart: fn() -> Option<bool>,
    /// A call of this thread sleeps from now on, without any lock: handlers may make calls. Returns
    /// whether handlers have run since the call began: it does not sleep then.
    pub fall_asleep: fn() -> bool,
    /// The call goes on: handlers have to wait.
    pub wake_up: fn(),
}

static SIGNAL_HOOKS: OnceLock<SignalHooks> = OnceLock::new();

/// Sets the functions by which [`crate::SharedContext`] treats signals; the first call decides.
pub fn set_signal_hooks(hooks: SignalHooks) {
    // Later ones are ignored, as is documented.
    let _ = SIGNAL_HOOKS.set(hooks);
}

/// Sleeps by `sleep`, which returns whether a signal ended it, without any lock. Returns whether
/// handlers have run.
pub(crate) fn asleep(sleep: impl FnOnce() -> bool) -> bool {
    let Some(hooks) = SIGNAL_HOOKS.get() else { return sleep() };
    let has_run = (hooks.fall_asleep)() || sleep();
    (hooks.wake_up)();
    has_run
}

/// The handlers that have run were installed with SA_RESTART. Where no rule knows which have run,
/// all that the process has: where they differ, a call is not restarted, because a program that has
/// a handler without SA_RESTART waits for the EINTR.
pub(crate) fn handlers_restart() -> bool {
    if let Some(restart) = SIGNAL_HOOKS.get().and_then(|hooks| (hooks.restart)()) {
        return restart;
    }
    (1..=SIGNAL_MAX).filter(|signal| !FAULTS.contains(signal)).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: with a null action nothing is changed, and the old one is written to `action`,
        // which has room for it.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
        if asked != 0 {
            // One of the C library's own, which are restarted.
            return true;
        }
        // SAFETY: the call has filled it.
        let action = unsafe { action.assume_init() };
        let is_handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        !is_handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// ppoll(2) on `fds` with a mask as the kernel has it.
fn poll_with_mask(
    fds: &mut [libc::pollfd],
    patience: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<(), Error> {
    let mut time = patience.map(timespec);
    let time = time.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let bits = mask.map(SignalMask::bits);
    let mask = bits.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let (pointer, count) = (fds.as_mut_ptr(), fds.len());
    // SAFETY: pointer and count describe `fds`, the mask is null or as long as is said, and the
    // time is null or a `timespec`; all of them outlive the call. What handlers run is the
    // program's.
    let polled =
        unsafe { libc::syscall(libc::SYS_ppoll, pointer, count, time, mask, size_of::<u64>()) };
    check(if polled < 0 { -1 } else { 0 })
}

/// Sleeps until there is something to read at one of `fds`, at most `patience`, with the signals of
/// `mask` blocked, if there is one, instead of the thread's. Whether a signal's handler ended it.
pub(crate) fn sleep<const COUNT: usize>(
    fds: [BorrowedFd<'_>; COUNT],
    patience: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<bool, Error> {
    let events = Events::IN.bits() as i16;
    let mut asked = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 });
    match poll_with_mask(&mut asked, patience, mask) {
        Err(Error::Interrupted) => Ok(true),
        done => done.map(|()| false),
    }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// A signal waits that the mask does not block; its handler has run now.
pub(crate) fn has_signal_for(mask: SignalMask) -> bool {
    asleep(|| poll_with_mask(&mut [], Some(Duration::ZERO), Some(mask)) == Err(Error::Interrupted))
}

/// epoll_ctl(2) on a set of the kernel's and a number of the process, which need not stand for
/// anything.
pub(crate) fn control(set: BorrowedFd<'_>, op: EpollOp, fd: RawFd) -> Result<(), Error> {
    let (op, EpollEvent { events, data }) = match op {
        EpollOp::Add(event) => (libc::EPOLL_CTL_ADD, event),
        EpollOp::Modify(event) => (libc::EPOLL_CTL_MOD, event),
        EpollOp::Delete => (libc::EPOLL_CTL_DEL, EpollEvent::default()),
    };
    let mut event = libc::epoll_event { events: events.bits(), u64: data };
    // SAFETY: `event` outlives the call, which only reads it. The number is looked up by the
    // kernel: one that stands for nothing is refused (EBADF), and through one that stands for
    // something nothing is read, written or closed.
    check(unsafe { libc::epoll_ctl(set.as_raw_fd(), op, fd, &raw mut event) })
}

/// Whether a number of the process stands for something that epoll(7) watches.
///
/// # Errors
/// EBADF, EPERM: it does not.
pub(crate) fn check_pollable(fd: RawFd) -> Result<(), Error> {
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    control(set.as_fd(), EpollOp::Add(EpollEvent::default()), fd)
}

/// poll(2) without waiting: how many of `fds` have something to tell.
pub(crate) fn poll_now(fds: &mut [libc::pollfd]) -> Result<usize, Error> {
    loop {
        let len = fds.len() as libc::nfds_t;
        // SAFETY: pointer and length describe `fds`, which outlives the call. Its numbers are
        // looked up by the kernel, as in `control`.
        let count = unsafe { libc::poll(fds.as_mut_ptr(), len, 0) };
        match check(count) {
            Ok(()) => return Ok(count as usize),
            // A signal: calls that wait check for it; this does not wait.
            Err(Error::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// There is something to read.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let events = Events::IN.bits() as i16;
    let mut asked = [libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }];
    poll_now(&mut asked) == Ok(1)
}
