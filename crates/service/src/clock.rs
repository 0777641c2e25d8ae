//! The one place where this crate asks what time it is.
//!
//! Invariant: a clock never runs backwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use megapipe_stack::Instant;
use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock, from a moment of its own: the machine's, or one that is set by hand.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// What time it is said to be, in nanoseconds; `None`: it is the machine's.
    by_hand: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub const fn new() -> Self {
        Self { by_hand: None }
    }

    /// A clock that stands still but for [`Clock::advance`], for virtual time; its clones show the
    /// same time. It begins at one second, so that nothing is before the beginning.
    #[must_use]
    pub fn by_hand() -> Self {
        Self { by_hand: Some(Arc::new(AtomicU64::new(1_000_000_000))) }
    }

    /// Whether it is set by hand.
    #[must_use]
    pub const fn is_by_hand(&self) -> bool {
        self.by_hand.is_some()
    }

    /// Lets time pass on a clock that is set by hand, and does nothing to the machine's.
    pub fn advance(&self, by: Duration) {
        if let Some(time) = &self.by_hand {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            // Relaxed: the time alone is published. A thread that must see what happened before it
            // is synchronised by what wakes it.
            time.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Now. About 20 ns, without a system call where the kernel has a vDSO.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos())
    }

    /// Now, as the time since the clock's own beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    /// The CPU time that the calling thread has used, in the program and in the kernel; `None` on
    /// a clock that is set by hand, where nothing takes time. A system call.
    #[must_use]
    pub fn thread_busy(&self) -> Option<Duration> {
        if self.is_by_hand() {
            return None;
        }
        let busy = clock_gettime(ClockId::ThreadCPUTime);
        Some(Duration::new(busy.tv_sec.unsigned_abs(), u32::try_from(busy.tv_nsec).ok()?))
    }

    #[inline]
    fn nanos(&self) -> u64 {
        // Relaxed: as in `advance`.
        if let Some(time) = &self.by_hand {
            return time.load(Ordering::Relaxed);
        }
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
    }
}

impl PartialEq for Clock {
    /// The same clock, not one that shows the same time.
    fn eq(&self, other: &Self) -> bool {
        match (&self.by_hand, &other.by_hand) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for Clock {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let clock = Clock::new();
        let before = clock.now();
        while clock.now() == before {}
        assert!(clock.now() > before);
        clock.advance(Duration::from_secs(1000));
        assert!(clock.now().since(before) < Duration::from_secs(100));
    }

    #[test]
    fn thread_busy_counts_computing_and_not_sleeping() {
        let clock = Clock::new();
        let (start, busy) = (clock.now(), clock.thread_busy().unwrap());
        std::thread::sleep(Duration::from_millis(30));
        let slept = clock.thread_busy().unwrap() - busy;
        assert!(slept < Duration::from_millis(15), "{slept:?}");
        while clock.thread_busy().unwrap() - busy < Duration::from_millis(5) {}
        assert!(clock.now().since(start) >= Duration::from_millis(35));
        assert_eq!(Clock::by_hand().thread_busy(), None);
    }

    #[test]
    fn one_that_is_set_by_hand_goes_on_when_told_for_all_who_have_it() {
        let clock = Clock::by_hand();
        let other = clock.clone();
        let before = clock.now();
        assert_eq!(other.now(), before);
        other.advance(Duration::from_micros(5));
        assert_eq!(clock.now().since(before), Duration::from_micros(5));
        assert!(clock == other && clock != Clock::by_hand() && clock != Clock::new());
    }
}
