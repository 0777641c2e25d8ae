//! What only the kernel can say: socket options of its sockets, as the caller gave them, how the
//! process takes its signals, and what happens to the process's descriptors, by their numbers.
//!
//! Read first: setsockopt(2), getsockopt(2), sigaction(2), epoll_ctl(2), poll(2).
#![expect(unsafe_code, reason = "see docs/UNSAFE.md")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::event::epoll::{self, CreateFlags};

use crate::epoll::{EpollEvent, EpollOp};
use crate::error::Error;
use crate::flags::Events;

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
    // holds pointers of its own are refused before (`options::holds_pointers`), so the kernel reads
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

/// Signals of a process's own faults: their handlers, which runtimes install, interrupt no call.
const FAULTS: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
/// The last signal there is (`_NSIG` in the kernel).
const SIGNAL_MAX: libc::c_int = 64;

/// Every handler that the process has was installed with SA_RESTART. Which of them has run cannot
/// be asked: where they differ, a call is not restarted, because whoever has a handler without
/// SA_RESTART waits for the EINTR.
pub(crate) fn handlers_restart() -> bool {
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
            // A signal: whoever waits looks for it; this does not wait.
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
