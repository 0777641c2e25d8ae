//! Deadlines in four bytes: milliseconds that wrap after 49 days.
//!
//! Invariant: what is compared lies less than [`WAIT_MAX`] apart. An older moment may count
//! as later; callers that compare such (a timestamp's age, a peer's silence) are wrong once in 49
//! days, and document why that is harmless.

use core::time::Duration;

use crate::time::Instant;

/// Longest wait that a deadline can name: 24 days.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// A moment in the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub(crate) const fn of(now: Instant) -> Self {
        Self(now.as_millis() as u32)
    }

    /// How many milliseconds ago that was.
    #[inline]
    pub(crate) const fn age_ms(self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_sub(self.0)
    }

    /// How long ago that was.
    pub(crate) const fn age(self, now: Instant) -> Duration {
        Duration::from_millis(self.age_ms(now) as u64)
    }

    /// `wait` after that moment.
    pub(crate) fn plus(self, wait: Duration) -> Deadline {
        self.plus_ms(wait.min(WAIT_MAX).as_millis() as u32)
    }

    /// The same for a wait of `wait_ms` milliseconds, at most [`WAIT_MAX`].
    #[inline]
    pub(crate) const fn plus_ms(self, wait_ms: u32) -> Deadline {
        Deadline::of(self.0.wrapping_add(wait_ms))
    }
}

/// A moment in the past in two bytes: in units of 65.5 seconds, which wrap after 49 days too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoarseStamp(u16);

impl CoarseStamp {
    pub(crate) const fn of(now: Instant) -> Self {
        Self((now.as_millis() >> 16) as u16)
    }

    /// A moment more than `age` before `now`.
    pub(crate) const fn more_than(age: Duration, now: Instant) -> Self {
        Self(Self::of(now).0.wrapping_sub((age.as_millis() >> 16) as u16 + 1))
    }

    /// How long ago that was, to a unit.
    pub(crate) const fn age(self, now: Instant) -> Duration {
        let units = Self::of(now).0.wrapping_sub(self.0);
        Duration::from_millis((units as u64) << 16)
    }
}

/// A deadline, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Deadline(u32);

impl Deadline {
    /// None.
    pub(crate) const NEVER: Self = Self(0);
    /// There is one, and before anybody waits for it, it is decided when.
    pub(crate) const UNDATED: Self = Self(u32::MAX);

    /// The numbers that mean something else are a millisecond or two late.
    const fn of(ms: u32) -> Self {
        Self(if ms.wrapping_add(1) <= 1 { 1 } else { ms })
    }

    /// `wait` from now, in whole milliseconds, not earlier.
    pub(crate) fn after(now: Instant, wait: Duration) -> Self {
        let at = now + wait.min(WAIT_MAX);
        Self::of(at.as_nanos().div_ceil(1_000_000) as u32)
    }

    /// The same for a wait of `wait_ms` milliseconds, shorter than [`WAIT_MAX`].
    #[inline]
    pub(crate) const fn after_ms(now: Instant, wait_ms: u32) -> Self {
        // Rounded up, without a second division for the remainder.
        let now_ms = now.as_nanos().saturating_add(999_999) / 1_000_000;
        Self::of((now_ms as u32).wrapping_add(wait_ms))
    }

    pub(crate) fn is_set(self) -> bool {
        self != Self::NEVER
    }

    /// It is set, and it is known to when.
    pub(crate) fn is_dated(self) -> bool {
        self.is_set() && self != Self::UNDATED
    }

    /// It is set, and `now` is at or past it.
    pub(crate) fn has_come(self, now: Instant) -> bool {
        self.is_dated() && (now.as_millis() as u32).wrapping_sub(self.0) as i32 >= 0
    }

    /// The moment, as seen from `now`.
    pub(crate) fn get(self, now: Instant) -> Option<Instant> {
        let now_ms = now.as_millis();
        let ahead = self.0.wrapping_sub(now_ms as u32) as i32;
        self.is_dated()
            .then(|| Instant::from_millis(now_ms.saturating_add_signed(i64::from(ahead))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_survive_the_wrap() {
        let now = Instant::from_millis(u64::from(u32::MAX) - 5);
        for wait_ms in [1, 5, 6, 7, 1000] {
            let wait = Duration::from_millis(wait_ms);
            let deadline = Deadline::after(now, wait);
            assert!(!deadline.has_come(now));
            assert!(deadline.has_come(now + wait + Duration::from_millis(2)));
            let at = deadline.get(now).unwrap();
            assert!(at.since(now) >= wait && at.since(now).as_millis() as u64 <= wait_ms + 2);
            assert_eq!(deadline.get(now + wait), Some(at));
        }
        assert_eq!(Deadline::NEVER.get(now), None);
        assert!(!Deadline::NEVER.has_come(now));
        assert!(Deadline::UNDATED.is_set() && !Deadline::UNDATED.is_dated());
        assert_eq!(Deadline::UNDATED.get(now), None);
        assert!(!Deadline::UNDATED.has_come(now));
        for ms in [0, u32::MAX] {
            assert!(Deadline::of(ms).is_dated());
        }
    }

    #[test]
    fn a_deadline_is_never_early() {
        let now = Instant::from_nanos(1_500_001);
        assert_eq!(Deadline::after_ms(now, 3).get(now), Some(Instant::from_millis(5)));
        let at = Deadline::after(now, Duration::from_micros(1)).get(now).unwrap();
        assert_eq!(at, Instant::from_millis(2));
    }

    #[test]
    fn a_coarse_stamp_knows_its_age_to_a_minute() {
        let at = Instant::from_millis(u64::from(u32::MAX) - 1000);
        let stamp = CoarseStamp::of(at);
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        for wait in [Duration::ZERO, days(1), days(24), days(49)] {
            let error = stamp.age(at + wait).abs_diff(wait);
            assert!(error <= Duration::from_millis(1 << 16), "{wait:?} is {error:?} off");
        }
    }

    #[test]
    fn a_stamp_knows_its_age() {
        let stamp = Stamp::of(Instant::from_millis(u64::from(u32::MAX)));
        let later = Instant::from_millis(u64::from(u32::MAX) + 10);
        assert_eq!(stamp.age(later), Duration::from_millis(10));
        assert!(stamp.plus(Duration::from_millis(10)).has_come(later));
    }
}
