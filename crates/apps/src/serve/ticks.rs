//! Coarse time for servers: read a few times a second, passed to all users of `now`.
//!
//! A server asks what time it is for idle timeouts, expiry and dates; a tenth of a second is
//! plenty there, and a clock read per message would be paid by every message. So the loop of a
//! channel reads the clock when its periodic timer fires and passes the value on.
//!
//! Invariants
//! - Never goes backwards (CLOCK_MONOTONIC_COARSE).
//! - At most [`TICK`](crate::limits::TICK) and one poll of the loop behind the clock, whenever
//!   something happens.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds on a monotonic clock with an arbitrary zero.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(u64);

impl Ticks {
    /// Reads the coarse clock. Only the loop calls this; everything else is given the result.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let milliseconds = u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
        Self(seconds * 1_000 + milliseconds)
    }

    /// A point in time for tests and for arithmetic, in milliseconds from the clock's zero.
    #[must_use]
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds)
    }

    /// Milliseconds from the clock's zero.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time that has passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The point in time that lies `span` later, with milliseconds' precision.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let early = Ticks::from_millis(5);
        let late = early.after(Duration::from_millis(7));
        assert_eq!(late.as_millis(), 12);
        assert_eq!(late.since(early), Duration::from_millis(7));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.after(Duration::MAX).as_millis(), u64::MAX);
    }

    #[test]
    fn the_clock_does_not_go_backwards() {
        let first = Ticks::now();
        assert!(Ticks::now() >= first);
        assert!(first.as_millis() > 0);
    }
}
