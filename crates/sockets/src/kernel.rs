//! What only the kernel can say: socket options of its sockets, as the caller gave them, and how
//! the process takes its signals.
//!
//! Read first: setsockopt(2), getsockopt(2), sigaction(2).
#![expect(unsafe_code, reason = "see docs/UNSAFE.md")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Error;

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
