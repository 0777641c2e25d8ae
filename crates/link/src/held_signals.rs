//! Signals that end a process, held until something is removed that would outlive it.
//!
//! Read first: signalfd(2), pthread_sigmask(3).

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// SIGHUP, SIGINT and SIGTERM, kept from this thread until this is dropped.
///
/// A signal that comes meanwhile makes the descriptor readable and stays pending: it takes its
/// effect, a handler or the end of the process, after the drop. Signals that are ignored, or that
/// the thread blocks already, are left alone.
///
/// Linux delivers a process's signal to any thread that does not block it. So the hold is complete
/// in a process of one thread, and for threads that this one starts meanwhile; otherwise what was
/// to be removed may be left.
#[derive(Debug)]
pub(crate) struct HeldSignals {
    before: libc::sigset_t,
    readable: OwnedFd,
    /// A mask is a thread's.
    of_thread: PhantomData<*const ()>,
}

impl HeldSignals {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn hold() -> io::Result<Self> {
        let before = mask();
        let held = set_of(|signal| !contains(&before, signal) && !is_ignored(signal));
        // SAFETY: the set is initialised, and -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const held, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nothing else owns it.
        let readable = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the set is initialised; no old mask is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, ptr::null_mut()) };
        Ok(Self { before, readable, of_thread: PhantomData })
    }
}

impl AsFd for HeldSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the mask is one that this thread had; no old mask is asked for.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}

fn set_of(is_member: impl Fn(libc::c_int) -> bool) -> libc::sigset_t {
    let mut set = empty_set();
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        if is_member(signal) {
            // SAFETY: the set is initialised and the signal exists.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
    }
    set
}

const fn empty_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; all zeros is the empty set.
    unsafe { std::mem::zeroed() }
}

/// The signals that this thread blocks.
fn mask() -> libc::sigset_t {
    let mut before = empty_set();
    // SAFETY: without a new mask the call only fills the old one.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut before) };
    before
}

fn contains(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: the set is initialised and the signal exists.
    unsafe { libc::sigismember(ptr::from_ref(set), signal) == 1 }
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: plain data and an optional function; all zeros is the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action the call only fills the old one.
    unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    action.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_signals_are_blocked_until_the_drop() {
        let before = mask();
        let held = HeldSignals::hold().expect("a descriptor");
        let blocked = mask();
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            assert_eq!(
                contains(&blocked, signal),
                contains(&before, signal) || !is_ignored(signal)
            );
        }
        assert!(!contains(&blocked, libc::SIGUSR1));
        // What the thread blocks already is not held twice.
        let again = HeldSignals::hold().expect("a descriptor");
        drop(again);
        assert!(contains(&mask(), libc::SIGTERM));
        drop(held);
        assert_eq!(contains(&mask(), libc::SIGTERM), contains(&before, libc::SIGTERM));
    }
}
