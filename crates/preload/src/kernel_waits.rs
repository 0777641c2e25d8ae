//! Threads that wait in the kernel for a set, which another thread gives a socket of the stack.
//!
//! Read first: `calls/sets.rs`; decision 0067.
//!
//! A set without sockets of the stack is waited for in the kernel, where nothing tells its waiters
//! that the set has got one since. Each wait is counted; a change of what a set's number stands for
//! ends the waits that were begun before ([`end`]), by a member of the set that is always ready.
//! The waiters then wait as for any set of the stack.
//!
//! Invariant: a wait is counted before the number is looked at, and a number is changed before the
//! waits are counted. So a wait either sees the change or is ended.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::numbers::{self, NUMBERS_MAX};
use crate::raw::epoll_control;

/// Waits in the kernel, by set. The memory is not resident until it is used.
static WAITS: [AtomicU32; NUMBERS_MAX] = [const { AtomicU32::new(0) }; NUMBERS_MAX];

/// The highest number that was ever waited for.
static LAST: AtomicI32 = AtomicI32::new(-1);

/// How long a change waits for the waiters to leave. One that a handler keeps from it returns with
/// EINTR.
const PATIENCE: Duration = Duration::from_secs(1);

/// Data by which a set of the stack names the kernel's part of it: no program has this address.
static MARK: u8 = 0;

/// Returns the data that stands for the kernel's part of a set.
pub(crate) fn kernel_part() -> u64 {
    (&raw const MARK) as u64
}

/// A wait in the kernel, until this is dropped.
pub(crate) struct KernelWait(c_int);

impl KernelWait {
    /// `None`: the set has sockets of the stack.
    #[inline]
    pub(crate) fn begin(set: c_int) -> Option<Self> {
        if let Some(waits) = WAITS.get(set as usize) {
            // SeqCst, here and in `end`: the invariant.
            waits.fetch_add(1, Ordering::SeqCst);
            if LAST.load(Ordering::Relaxed) < set {
                LAST.fetch_max(set, Ordering::Relaxed);
            }
        }
        let wait = Self(set);
        numbers::is_kernel(set).then_some(wait)
    }
}

impl Drop for KernelWait {
    #[inline]
    fn drop(&mut self) {
        if let Some(waits) = WAITS.get(self.0 as usize) {
            waits.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Ends the waits for a set that is no longer the kernel's alone, and returns when their threads
/// have left. `ready` is a descriptor that hangs up for ever, which a set reports unasked. One
/// thread at a time may do that.
pub(crate) fn end(set: c_int, ready: c_int) {
    let Some(waits) = WAITS.get(set as usize) else { return };
    if waits.load(Ordering::SeqCst) == 0 {
        return;
    }
    let change = |operation: c_int| {
        let event = libc::epoll_event { events: 0, u64: kernel_part() };
        epoll_control(set, operation, ready, event)
    };
    if change(libc::EPOLL_CTL_ADD) != 0 {
        return;
    }
    let began = Instant::now();
    while waits.load(Ordering::SeqCst) > 0 && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
    change(libc::EPOLL_CTL_DEL);
}

/// In the child of a fork, where one thread exists: it waits for nothing.
pub(crate) fn forget() {
    for waits in WAITS.iter().take((LAST.load(Ordering::Relaxed) + 1) as usize) {
        waits.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_of_a_fork_has_no_waits() {
        let set = NUMBERS_MAX as c_int - 1;
        let wait = KernelWait::begin(set);
        assert!(wait.is_some() && WAITS[set as usize].load(Ordering::Relaxed) == 1);
        std::mem::forget(wait);
        forget();
        assert_eq!(WAITS[set as usize].load(Ordering::Relaxed), 0);
        assert!(KernelWait::begin(-1).is_some() && KernelWait::begin(c_int::MAX).is_some());
    }
}
