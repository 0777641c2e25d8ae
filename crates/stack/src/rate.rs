//! Rate limiter: a token bucket.
//!
//! Invariant: over any time `t`, at most `burst + per_s * t` tokens are taken.

use crate::time::Instant;

/// Nanoseconds in a second, and so how much of a token a nanosecond is worth at one per second.
const TOKEN: u64 = 1_000_000_000;

/// Tokens that come at a steady rate, up to a ceiling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenBucket {
    per_s: u32,
    burst: u32,
    /// In billionths of a token.
    level: u64,
    filled_at: Instant,
}

impl TokenBucket {
    /// A full bucket for `burst` tokens, which fills at `per_s` tokens per second.
    pub(crate) const fn new(per_s: u32, burst: u32, now: Instant) -> Self {
        Self { per_s, burst, level: burst as u64 * TOKEN, filled_at: now }
    }

    /// Takes a token; false: there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let ceiling = u64::from(self.burst) * TOKEN;
        let nanos = now.as_nanos().saturating_sub(self.filled_at.as_nanos());
        let gained = nanos.saturating_mul(u64::from(self.per_s));
        self.level = self.level.saturating_add(gained).min(ceiling);
        self.filled_at = now;
        if self.level < TOKEN {
            return false;
        }
        self.level -= TOKEN;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_burst_and_then_the_rate() {
        let mut bucket = TokenBucket::new(10, 3, Instant::ZERO);
        let mut taken = |millis| bucket.take(Instant::from_millis(millis));
        assert!(taken(0) && taken(0) && taken(0));
        assert!(!taken(0));
        assert!(!taken(99));
        assert!(taken(100));
        assert!(!taken(150));
        assert!(taken(10_000) && taken(10_000) && taken(10_000));
        assert!(!taken(10_000));
    }

    #[test]
    fn does_not_overflow_at_the_end_of_time() {
        let mut bucket = TokenBucket::new(u32::MAX, 1, Instant::ZERO);
        assert!(bucket.take(Instant::from_nanos(u64::MAX)));
        assert!(!bucket.take(Instant::from_nanos(u64::MAX)));
    }
}
