//! The one place where this crate asks what time it is.
//!
//! A clock that is set by hand also joins the two threads of a virtual world: the one that sets it
//! asks for a poll ([`Clock::ask_poll`]), and learns when a shard's thread has made it and sleeps
//! again, and until when ([`Clock::asleep`]).
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
    /// `None`: it is the machine's.
    by_hand: Option<Arc<HandClock>>,
}

/// Virtual time, and the sleep of the thread that lives in it.
#[derive(Debug, Default)]
struct HandClock {
    /// The time, in nanoseconds.
    nanos: AtomicU64,
    /// Number of the last poll that was asked for.
    asked: AtomicU64,
    /// Number of the last one after which the thread went to sleep.
    made: AtomicU64,
    /// Time of its next timer, in nanoseconds; [`NEVER`]: it has none.
    due: AtomicU64,
    /// Number of its polls in which there was work.
    worked: AtomicU64,
}

/// A thread that lives in virtual time sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asleep {
    /// Time until its next timer is due, if it has one.
    pub due: Option<Duration>,
    /// Number of its polls in which there was work.
    pub worked: u64,
}

/// No time.
const NEVER: u64 = u64::MAX;

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
        let nanos = AtomicU64::new(1_000_000_000);
        Self { by_hand: Some(Arc::new(HandClock { nanos, ..HandClock::default() })) }
    }

    /// Whether it is set by hand.
    #[must_use]
    pub const fn is_by_hand(&self) -> bool {
        self.by_hand.is_some()
    }

    /// Lets time pass on a clock that is set by hand, and does nothing to the machine's.
    pub fn advance(&self, by: Duration) {
        if let Some(clock) = &self.by_hand {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            // Relaxed: the time alone is published. A thread that must see what happened before it
            // is synchronised by what wakes it.
            clock.nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Asks the thread of the shard that has this clock for a poll after all that the caller has
    /// done before. Wake the thread afterwards: it sleeps on its link. Does nothing to the
    /// machine's clock.
    pub fn ask_poll(&self) {
        if let Some(clock) = &self.by_hand {
            // Release pairs with the Acquire in `asked_poll`.
            clock.asked.fetch_add(1, Ordering::Release);
        }
    }

    /// The sleep of that thread after the last poll that was asked for. `None`: it has not made it,
    /// or is not asleep yet.
    #[must_use]
    pub fn asleep(&self) -> Option<Asleep> {
        let clock = self.by_hand.as_ref()?;
        // Acquire pairs with the Release in `note_sleep`: what the thread did is visible.
        let made = clock.made.load(Ordering::Acquire);
        if made != clock.asked.load(Ordering::Relaxed) {
            return None;
        }
        let due = clock.due.load(Ordering::Relaxed);
        let due = (due != NEVER).then(|| Duration::from_nanos(due.saturating_sub(self.nanos())));
        Some(Asleep { due, worked: clock.worked.load(Ordering::Relaxed) })
    }

    /// The poll that is asked for. Call it before the poll.
    #[inline]
    pub(crate) fn asked_poll(&self) -> u64 {
        // Acquire pairs with the Release in `ask_poll`.
        self.by_hand.as_ref().map_or(0, |clock| clock.asked.load(Ordering::Acquire))
    }

    /// The calling thread had work in a poll.
    #[inline]
    pub(crate) fn note_work(&self) {
        if let Some(clock) = &self.by_hand {
            // Relaxed: `note_sleep` publishes it.
            clock.worked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The calling thread has made this poll and goes to sleep, for as long as `patience`.
    #[inline]
    pub(crate) fn note_sleep(&self, asked: u64, patience: Option<Duration>) {
        let Some(clock) = &self.by_hand else { return };
        let nanos = |it: Duration| u64::try_from(it.as_nanos()).unwrap_or(NEVER);
        let due = patience.map_or(NEVER, |it| self.nanos().saturating_add(nanos(it)));
        clock.due.store(due, Ordering::Relaxed);
        // Release pairs with the Acquire in `asleep`.
        clock.made.store(asked, Ordering::Release);
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
        if let Some(clock) = &self.by_hand {
            return clock.nanos.load(Ordering::Relaxed);
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

    #[test]
    fn sleeper_by_hand_is_asleep_after_the_poll_that_was_asked_for() {
        let clock = Clock::by_hand();
        let sleep = |due_ms: Option<u64>, worked| {
            Some(Asleep { due: due_ms.map(Duration::from_millis), worked })
        };
        clock.ask_poll();
        assert_eq!(clock.asleep(), None);
        let asked = clock.asked_poll();
        clock.ask_poll();
        clock.note_sleep(asked, None);
        assert_eq!(clock.asleep(), None, "it was asked again meanwhile");
        clock.note_work();
        clock.note_sleep(clock.asked_poll(), None);
        assert_eq!(clock.asleep(), sleep(None, 1));
        clock.note_sleep(clock.asked_poll(), Some(Duration::from_millis(3)));
        clock.advance(Duration::from_millis(1));
        assert_eq!(clock.asleep(), sleep(Some(2), 1));
        clock.advance(Duration::from_millis(5));
        assert_eq!(clock.asleep(), sleep(Some(0), 1));
        assert_eq!(Clock::new().asleep(), None);
    }
}
