//! State that the threads of a load share with the coordinator.
//!
//! The coordinator decides when the load begins and which window counts; the threads say whether
//! they are ready and what they have counted so far. Everything is a number of its own, read on
//! ticks.
//!
//! Invariants
//! - The beginning of the load and of the window are set once; the window's end may come closer.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use super::window::Count;

/// A time that has not been set.
const UNSET: u64 = u64::MAX;

/// Shared by the threads of one load.
#[derive(Debug)]
pub(crate) struct LoadControl {
    go_ns: AtomicU64,
    from_ns: AtomicU64,
    until_ns: AtomicU64,
    /// Whether all threads have been started.
    all_started: Mutex<bool>,
    started: Condvar,
    threads: Vec<ThreadProgress>,
}

/// What one thread shows while it runs.
#[derive(Debug)]
struct ThreadProgress {
    ready: AtomicBool,
    answered: AtomicU64,
    connected: AtomicU64,
    faults: AtomicU64,
    spent_ns: AtomicU64,
    succeeded: AtomicBool,
    rejected: AtomicBool,
}

/// Results of a thread's transactions so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadOutcome {
    /// One was answered as it had to be, also before the window.
    pub(crate) succeeded: bool,
    /// The server has answered, and not as it had to; or it refuses every connection.
    pub(crate) rejected: bool,
}

/// What all threads together have counted so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadProgress {
    pub(crate) answered: u64,
    pub(crate) connected: u64,
    pub(crate) faults: u64,
}

// Relaxed, with one exception: each value stands for itself, and readers look again at their next
// tick.
impl LoadControl {
    pub(crate) fn new(threads: usize) -> Self {
        let thread = |_| ThreadProgress {
            ready: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            connected: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            spent_ns: AtomicU64::new(UNSET),
            succeeded: AtomicBool::new(false),
            rejected: AtomicBool::new(false),
        };
        Self {
            go_ns: AtomicU64::new(UNSET),
            from_ns: AtomicU64::new(UNSET),
            until_ns: AtomicU64::new(UNSET),
            all_started: Mutex::new(false),
            started: Condvar::new(),
            threads: (0..threads).map(thread).collect(),
        }
    }

    /// Releases the threads that [`LoadControl::wait_for_others`] blocks.
    pub(crate) fn set_all_started(&self) {
        *self.all_started.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.started.notify_all();
    }

    /// Blocks until all threads have been started. A thread that is being started takes large
    /// pieces of memory and returns an error where there are none; the others allocate nothing
    /// meanwhile, because a small allocation that fails ends the process.
    pub(crate) fn wait_for_others(&self) {
        let all_started = self.all_started.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.started.wait_while(all_started, |all_started| !*all_started);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The load begins at `go_ns`, and what counts at `from_ns`.
    pub(crate) fn begin(&self, go_ns: u64, window: Range<u64>) {
        self.until_ns.store(window.end, Ordering::Relaxed);
        self.from_ns.store(window.start, Ordering::Relaxed);
        // Release: a thread that sees the start (`go_ns`) also sees its window.
        self.go_ns.store(go_ns, Ordering::Release);
    }

    /// The window ends at `until_ns`, if it does not end earlier.
    pub(crate) fn end(&self, until_ns: u64) {
        self.until_ns.fetch_min(until_ns, Ordering::Relaxed);
    }

    /// The load ended before it began: a thread could not be started.
    pub(crate) fn is_given_up(&self) -> bool {
        self.go_ns().is_some() && self.window().end == 0
    }

    /// When the load begins, once that is known.
    pub(crate) fn go_ns(&self) -> Option<u64> {
        // Acquire: pairs with the release in `begin`.
        Some(self.go_ns.load(Ordering::Acquire)).filter(|&go_ns| go_ns != UNSET)
    }

    /// The window, as far as it is known.
    pub(crate) fn window(&self) -> Range<u64> {
        self.from_ns.load(Ordering::Relaxed)..self.until_ns.load(Ordering::Relaxed)
    }

    /// Shows what the thread with this index has counted.
    pub(crate) fn publish(&self, index: usize, count: &Count, ready: bool, outcome: ThreadOutcome) {
        let Some(thread) = self.threads.get(index) else { return };
        thread.answered.store(count.answered, Ordering::Relaxed);
        thread.connected.store(count.connected, Ordering::Relaxed);
        let faults = count.faults.total() + count.faults_before.total();
        thread.faults.store(faults, Ordering::Relaxed);
        thread.ready.store(ready, Ordering::Relaxed);
        thread.succeeded.store(outcome.succeeded, Ordering::Relaxed);
        thread.rejected.store(outcome.rejected, Ordering::Relaxed);
    }

    /// Whether the server has rejected some thread's connections, and accepted none.
    pub(crate) fn is_only_rejected(&self) -> bool {
        let any = |flag: fn(&ThreadProgress) -> &AtomicBool| {
            self.threads.iter().any(|thread| flag(thread).load(Ordering::Relaxed))
        };
        any(|thread| &thread.rejected) && !any(|thread| &thread.succeeded)
    }

    /// The thread with this index has finished all its transactions; the last of them at `done_ns`.
    pub(crate) fn spent(&self, index: usize, done_ns: u64) {
        if let Some(thread) = self.threads.get(index) {
            thread.spent_ns.store(done_ns, Ordering::Relaxed);
        }
    }

    /// Whether every thread has its connections and whatever else it needs.
    pub(crate) fn all_ready(&self) -> bool {
        self.threads.iter().all(|thread| thread.ready.load(Ordering::Relaxed))
    }

    /// When the last thread finished all its transactions, once all have.
    pub(crate) fn all_spent_ns(&self) -> Option<u64> {
        let times = self.threads.iter().map(|thread| thread.spent_ns.load(Ordering::Relaxed));
        times.max().filter(|&last| last != UNSET)
    }

    /// What all threads have counted so far.
    pub(crate) fn progress(&self) -> LoadProgress {
        self.threads.iter().fold(LoadProgress::default(), |sum, thread| LoadProgress {
            answered: sum.answered + thread.answered.load(Ordering::Relaxed),
            connected: sum.connected + thread.connected.load(Ordering::Relaxed),
            faults: sum.faults + thread.faults.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_is_empty_before_first_report() {
        let control = LoadControl::new(2);
        assert_eq!(
            (control.go_ns(), control.all_ready(), control.all_spent_ns()),
            (None, false, None)
        );
        assert!(control.window().is_empty());
        assert!(!control.is_given_up());
        control.begin(5, 10..20);
        assert!(!control.is_given_up());
        assert_eq!((control.go_ns(), control.window()), (Some(5), 10..20));
        control.end(30);
        assert_eq!(control.window(), 10..20);
        control.end(15);
        assert_eq!(control.window(), 10..15);
        control.end(0);
        assert!(control.is_given_up());
    }

    #[test]
    fn all_means_every_thread() {
        let control = LoadControl::new(2);
        let count = Count { answered: 3, ..Count::default() };
        control.publish(0, &count, true, ThreadOutcome::default());
        control.spent(0, 7);
        assert!(!control.all_ready());
        assert_eq!(control.all_spent_ns(), None);
        control.publish(1, &count, true, ThreadOutcome::default());
        control.spent(1, 9);
        assert!(control.all_ready());
        assert_eq!(control.all_spent_ns(), Some(9));
        assert_eq!(control.progress().answered, 6);
    }

    #[test]
    fn one_success_of_any_thread_is_enough_to_go_on() {
        let control = LoadControl::new(2);
        let count = Count::default();
        assert!(!control.is_only_rejected());
        control.publish(0, &count, true, ThreadOutcome { rejected: true, succeeded: false });
        assert!(control.is_only_rejected());
        control.publish(1, &count, true, ThreadOutcome { rejected: false, succeeded: true });
        assert!(!control.is_only_rejected());
    }
}
