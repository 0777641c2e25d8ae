//! A moment that may never come, in eight bytes.

use core::time::Duration;

use crate::time::Instant;

/// A deadline, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(u64);

impl Deadline {
    /// None.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) fn at(at: Instant) -> Self {
        Self(at.as_nanos())
    }

    pub(crate) fn after(now: Instant, wait: Duration) -> Self {
        Self::at(now + wait)
    }

    pub(crate) fn is_set(self) -> bool {
        self != Self::NEVER
    }

    /// It is set, and `now` is at or past it.
    pub(crate) fn has_come(self, now: Instant) -> bool {
        self.is_set() && self.0 <= now.as_nanos()
    }

    pub(crate) fn get(self) -> Option<Instant> {
        self.is_set().then(|| Instant::from_nanos(self.0))
    }
}

impl Default for Deadline {
    fn default() -> Self {
        Self::NEVER
    }
}

impl From<Option<Instant>> for Deadline {
    fn from(at: Option<Instant>) -> Self {
        at.map_or(Self::NEVER, Self::at)
    }
}
