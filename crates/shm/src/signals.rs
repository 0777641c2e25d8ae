//! Threads that take no signals.
//!
//! Read first: `signal(7)`, `pthread_sigmask(3)`.
//!
//! A signal for a process goes to any of its threads that does not block it. A thread that a
//! library starts must not be it: the program's handler would run where the program does not know
//! of, and the call of its own that the signal is to interrupt would go on.
//!
//! Invariant: what a fault of the thread's own raises is not blocked. The kernel would end the
//! process without asking its handler, such as the one by which Rust tells of a stack overflow.

use std::ptr;

/// Raised by what a thread does itself.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Runs `start` with all signals blocked but those of faults: a thread that it starts inherits
/// that, so that no signal of the process is delivered to it. The caller's own are as before
/// afterwards, and what came meanwhile is delivered then. Two system calls; does not block.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let _restored = Restored(block());
    start()
}

/// Puts a mask back on drop, also after a panic.
struct Restored(libc::sigset_t);

impl Drop for Restored {
    fn drop(&mut self) {
        set(&self.0);
    }
}

/// Blocks what can be blocked, and gives the mask of before.
fn block() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; all zeros is the empty set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes the set that `all` is.
    unsafe { libc::sigfillset(&raw mut all) };
    for fault in FAULTS {
        // SAFETY: takes a signal that exists out of the set that `all` is.
        unsafe { libc::sigdelset(&raw mut all, fault) };
    }
    set(&all)
}

/// Sets the calling thread's mask, and gives the one of before.
fn set(mask: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; all zeros is the empty set.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `mask` is read and `before` written during the call; both outlive it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::from_ref(mask), &raw mut before) };
    before
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// The signals that the calling thread blocks, as bits from that of signal 1 on.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
        u64::from_str_radix(mask.expect("a mask"), 16).expect("a number")
    }

    const fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn a_thread_takes_no_signals_but_those_of_its_own_faults() {
        let before = blocked();
        let thread = without_signals(|| std::thread::spawn(blocked));
        assert_eq!(blocked(), before, "the caller takes what it took");
        let mask = thread.join().expect("it only looks");
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD] {
            assert_ne!(mask & bit(signal), 0, "{signal}");
        }
        for signal in FAULTS {
            assert_eq!(mask & bit(signal), 0, "{signal}");
        }
    }

    #[test]
    fn the_callers_mask_is_restored_after_a_panic() {
        let before = blocked();
        let panicked = std::panic::catch_unwind(|| without_signals(|| panic!("part of a test")));
        assert!(panicked.is_err());
        assert_eq!(blocked(), before);
    }
}
