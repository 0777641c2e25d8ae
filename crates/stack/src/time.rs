//! Time as passed in by the caller.
//!
//! Invariant: an `Instant` is only compared with others of the same caller; the stack never asks
//! for one. It may stand still between two calls, and never runs backwards (an earlier `now` than
//! the last is taken as the last).

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// Nanoseconds since a moment that the caller chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The caller's first moment.
    pub const ZERO: Self = Self(0);

    /// `nanos` nanoseconds after the first moment.
    #[must_use]
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds after the first moment.
    #[must_use]
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `millis` milliseconds after the first moment.
    #[must_use]
    #[inline]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the first moment.
    #[must_use]
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the first moment.
    #[must_use]
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds since the first moment.
    #[must_use]
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// `micros` microseconds before: less than all that passed since the first moment.
    #[inline(always)]
    pub(crate) const fn micros_ago(self, micros: u32) -> Self {
        Self(self.0.wrapping_sub(micros as u64 * 1_000))
    }

    /// `micros` microseconds on.
    #[inline]
    pub(crate) const fn micros_on(self, micros: u32) -> Self {
        Self(self.0.saturating_add(micros as u64 * 1_000))
    }

    /// `millis` milliseconds on.
    #[inline]
    pub(crate) const fn millis_on(self, millis: u32) -> Self {
        Self(self.0.saturating_add(millis as u64 * 1_000_000))
    }

    /// How long ago `earlier` was; zero if it is later than `self`.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at the end of time, 584 years on.
    #[inline]
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at the first moment.
    #[inline]
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }
}

/// As many nanoseconds as fit: a [`Duration`] may be longer than time. In 64 bits, since every
/// deadline of every segment is made here.
#[inline]
const fn nanos(duration: Duration) -> u64 {
    let whole = duration.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(duration.subsec_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_neither_wraps_nor_runs_before_its_beginning() {
        let now = Instant::from_nanos(1_500_000_007);
        assert_eq!(now + Duration::new(3, 9), Instant::from_nanos(4_500_000_016));
        assert_eq!(now - Duration::from_nanos(7), Instant::from_millis(1500));
        assert_eq!(now + Duration::MAX, Instant::from_nanos(u64::MAX));
        assert_eq!(now - Duration::MAX, Instant::ZERO);
        assert_eq!(Instant::ZERO.since(now), Duration::ZERO);
        assert_eq!(now.since(Instant::from_micros(7)), Duration::from_nanos(1_499_993_007));
    }
}
