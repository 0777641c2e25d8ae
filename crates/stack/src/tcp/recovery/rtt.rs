//! Round-trip times and the retransmission timeout.
//!
//! Read first: RFC 6298 §2–§3, RFC 7323 §4.2 and appendix G (many samples in one round trip).
//!
//! Invariants
//! - Times are wrapping microseconds in 32 bits (71 minutes): they are only compared with times of
//!   bytes still outstanding.
//! - A sample of bytes that left twice never gets here (Karn; RFC 6298 §3), unless a timestamp
//!   says which time it belongs to.

use core::time::Duration;

use super::policy::Policy;
use crate::time::Instant;

/// After so many units of 2^26 µs (five and a half minutes) the smallest RTT is looked for anew
/// (RFC 8985 §6.2, step 1: a path may have become longer).
const MIN_AGE: u8 = 5;
const MIN_US_MAX: u32 = (1 << 24) - 1;
/// 268 s, over any RTO that is configured.
const RTT_US_MAX: u32 = 1 << 28;

/// `duration` in microseconds, at most 2^31 of them.
pub(super) fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX).min(1 << 31)
}

/// `now` in wrapping microseconds.
#[inline]
pub(super) const fn stamp(now: Instant) -> u32 {
    now.as_micros() as u32
}

/// `a` is later than `b`, both wrapping microseconds.
pub(super) const fn is_later(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) < 0
}

/// `now` in the wrapping units that the smallest RTT grows old in.
#[inline(always)]
const fn age_mark(now: Instant) -> u8 {
    (now.as_micros() >> 26) as u8
}

/// SRTT, RTTVAR and the smallest RTT.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rtt {
    /// SRTT in eighths of a microsecond; zero: no sample yet.
    srtt_8: u32,
    /// RTTVAR in quarters of a microsecond.
    rttvar_4: u32,
    /// The smallest RTT in microseconds (24 bits), and when it was seen (8 bits below).
    min: u32,
}

impl Rtt {
    /// Takes a sample. `expected` is how many come in one round trip.
    #[inline]
    pub(super) fn sample(&mut self, now: Instant, rtt_us: u32, expected: u32) {
        if self.is_known() && expected == 1 {
            return self.sample_once(now, rtt_us);
        }
        if !self.is_known() {
            return self.sample_first(now, rtt_us);
        }
        let rtt = rtt_us.clamp(1, RTT_US_MAX);
        self.take_one_of(rtt, expected);
        self.note_min(now, rtt);
    }

    /// Takes the first (RFC 6298 §2.2).
    #[inline(always)]
    pub(super) fn sample_first(&mut self, now: Instant, rtt_us: u32) {
        let rtt = rtt_us.clamp(1, RTT_US_MAX);
        self.srtt_8 = rtt << 3;
        self.rttvar_4 = rtt << 1;
        self.set_min(rtt, age_mark(now));
    }

    /// There was a sample.
    #[inline(always)]
    pub(super) const fn is_known(&self) -> bool {
        self.srtt_8 != 0
    }

    /// Takes one that is not the first, and of which there is one in each round trip.
    #[inline(always)]
    pub(super) fn sample_once(&mut self, now: Instant, rtt_us: u32) {
        let rtt = if rtt_us.wrapping_sub(1) < RTT_US_MAX {
            rtt_us
        } else {
            core::hint::cold_path();
            rtt_us.clamp(1, RTT_US_MAX)
        };
        // What `take_one_of` does; a scaled value is never less than the plain one, and what is
        // added to it not zero.
        let (var, srtt) = (self.rttvar_4 >> 2, self.srtt_8 >> 3);
        self.rttvar_4 = self.rttvar_4 - var + srtt.abs_diff(rtt);
        self.srtt_8 = self.srtt_8 - srtt + rtt;
        self.note_min(now, rtt);
    }

    /// RFC 6298 §2.3, with the gains of RFC 7323 appendix G.
    fn take_one_of(&mut self, rtt: u32, expected: u32) {
        let expected = expected.clamp(1, 64);
        let error = (self.srtt_8 >> 3).abs_diff(rtt);
        let (var, srtt) = (self.rttvar_4 >> 2, self.srtt_8 >> 3);
        self.rttvar_4 = toward(self.rttvar_4, var, error, expected);
        self.srtt_8 = toward(self.srtt_8, srtt, rtt, expected).max(1);
    }

    /// The same of the smallest, where there is one.
    #[inline(always)]
    fn note_min(&mut self, now: Instant, rtt: u32) {
        let at = age_mark(now);
        let age = at.wrapping_sub(self.min as u8);
        // Two questions: as one they cost more than both.
        if age >= MIN_AGE {
            core::hint::cold_path();
            self.set_min(rtt, at);
        } else if rtt <= self.min_us() {
            self.set_min(rtt, at);
        }
    }

    #[inline(always)]
    fn set_min(&mut self, rtt: u32, at: u8) {
        self.min = rtt.min(MIN_US_MAX) << 8 | u32::from(at);
    }

    /// SRTT in microseconds; zero: unknown.
    pub(super) const fn srtt_us(&self) -> u32 {
        self.srtt_8 >> 3
    }

    /// RTTVAR in microseconds.
    pub(super) const fn rttvar_us(&self) -> u32 {
        self.rttvar_4 >> 2
    }

    /// The smallest RTT in microseconds; zero: unknown.
    pub(super) const fn min_us(&self) -> u32 {
        self.min >> 8
    }

    /// RTO in microseconds, backed off `backoff` times; `None`: no sample yet.
    ///
    /// The lower bound stands in for the clock granularity G of RFC 6298 §2.3, under the variance
    /// alone: a peer that holds an ACK back on a path without jitter must not look like a loss.
    pub(super) fn rto_us(&self, policy: &Policy, backoff: u8) -> Option<u32> {
        if self.srtt_8 == 0 {
            return None;
        }
        let rto = self.srtt_us().saturating_add(self.rttvar_4.max(policy.rto_min_us));
        Some(back_off(rto, policy, backoff))
    }
}

/// `rto_us` doubled `times` times (RFC 6298 §5.5), within the upper bound (§2.5).
pub(super) fn back_off(rto_us: u32, policy: &Policy, times: u8) -> u32 {
    let rto = u64::from(rto_us) << times.min(31);
    rto.min(u64::from(policy.rto_max_us)) as u32
}

/// `scaled`, whose plain value is `value`, moved one gain toward `sample`.
fn toward(scaled: u32, value: u32, sample: u32, expected: u32) -> u32 {
    if sample >= value {
        scaled + (sample - value) / expected
    } else {
        scaled - ((value - sample) / expected).min(scaled)
    }
}
