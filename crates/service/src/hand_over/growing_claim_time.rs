//! GrowingClaimTime: the time in which an offered connection is claimed, which grows for a while
//! when the same connections are taken back again and again.
//!
//! Read first: the decisions on the claim time in `docs/decisions`.
//!
//! One connection that is taken back twice had two acceptors that did not claim it: not one of them
//! is in trouble, but all wait for a core. Each take-back then costs messages and makes them later
//! still. A longer claim time gives them the time to claim.
//!
//! Pure: take-backs and time in, a duration out.
//!
//! Invariant: the time is the configured one if no connection is taken back twice within
//! [`CLAIM_TIME_CALM`] for each doubling, and never above the largest of [`CLAIM_TIMES`].

use std::hash::{Hash, Hasher};
use std::time::Duration;

use megapipe_stack::Instant;

use crate::limits::{CLAIM_TIME_CALM, CLAIM_TIME_DOUBLINGS_MAX, CLAIM_TIMES};

/// A claim time, and how often it is doubled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GrowingClaimTime {
    configured: Duration,
    /// Doublings at `grown_at`. One is lost for each [`CLAIM_TIME_CALM`] since.
    doublings: u32,
    /// Time of the last repeated take-back.
    grown_at: Instant,
}

/// The model of the hand-over has no time: the claim time changes nothing in it.
impl Hash for GrowingClaimTime {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// How often one connection was taken back because no claim came in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TakeBacks(u8);

/// As above.
impl Hash for TakeBacks {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl TakeBacks {
    /// Counts one more. Returns whether it is a repeated one.
    pub(super) const fn add(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 > 1
    }
}

impl GrowingClaimTime {
    pub(super) const fn new(configured: Duration) -> Self {
        Self { configured, doublings: 0, grown_at: Instant::from_nanos(0) }
    }

    fn doublings(&self, now: Instant) -> u32 {
        let periods = now.since(self.grown_at).as_nanos() / CLAIM_TIME_CALM.as_nanos();
        self.doublings.saturating_sub(u32::try_from(periods).unwrap_or(u32::MAX))
    }

    /// Returns the claim time of an offer that is made now.
    pub(super) fn at(&self, now: Instant) -> Duration {
        let grown = self.configured.saturating_mul(1 << self.doublings(now));
        grown.min(CLAIM_TIMES.1).max(self.configured)
    }

    /// A connection was taken back that had been taken back before. `offered_at` is the time of the
    /// offer: take-backs of offers that are older than the last growth are a part of its reason.
    pub(super) fn on_repeated(&mut self, now: Instant, offered_at: Instant) {
        let doublings = self.doublings(now);
        let is_new = self.doublings == 0 || offered_at >= self.grown_at;
        if is_new {
            self.doublings = (doublings + 1).min(CLAIM_TIME_DOUBLINGS_MAX);
            self.grown_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CLAIM_TIME_DEFAULT;

    const BASE: Duration = CLAIM_TIME_DEFAULT;

    const fn ms(ms: u64) -> Instant {
        Instant::from_micros(ms * 1_000)
    }

    #[test]
    fn second_take_back_of_a_connection_is_a_repeated_one() {
        let mut counts = [TakeBacks::default(); 2];
        assert!(!counts[0].add() && !counts[1].add());
        assert!(counts[0].add() && counts[1].add());
        assert!((0..300).all(|_| counts[0].add()), "the count does not wrap");
    }

    #[test]
    fn claim_time_doubles_with_each_round_up_to_a_limit() {
        let mut time = GrowingClaimTime::new(BASE);
        assert_eq!(time.at(ms(100)), BASE);
        for round in 1..10_u32 {
            let offered_at = ms(100 + u64::from(round) * 50);
            let taken_back_at = ms(120 + u64::from(round) * 50);
            // Many of one round count once.
            (0..100).for_each(|_| time.on_repeated(taken_back_at, offered_at));
            let grown = BASE * (1 << round.min(CLAIM_TIME_DOUBLINGS_MAX));
            assert_eq!(time.at(taken_back_at), grown, "round {round}");
        }
    }

    #[test]
    fn claim_time_falls_back_after_a_calm_time() {
        let mut time = GrowingClaimTime::new(BASE);
        for round in [100, 200, 300] {
            time.on_repeated(ms(round), ms(round - 10));
        }
        let calm = CLAIM_TIME_CALM.as_millis() as u64;
        let times =
            [0, calm - 1, calm, 2 * calm, 3 * calm, 9 * calm].map(|more| time.at(ms(300 + more)));
        assert_eq!(times, [BASE * 8, BASE * 8, BASE * 4, BASE * 2, BASE, BASE]);
        // The next one begins from what is left.
        time.on_repeated(ms(300 + 2 * calm), ms(300 + 2 * calm - 10));
        assert_eq!(time.at(ms(300 + 2 * calm)), BASE * 4);
    }

    #[test]
    fn longest_claim_time_does_not_grow() {
        let longest = CLAIM_TIMES.1;
        for configured in [longest, longest / 3] {
            let mut time = GrowingClaimTime::new(configured);
            (1..9).for_each(|second| time.on_repeated(ms(second * 100), ms(second * 100)));
            assert_eq!(time.at(ms(800)), longest);
        }
    }
}
