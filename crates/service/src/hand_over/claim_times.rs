//! Histogram of claim times: from the offer of a connection to its confirmed claim.
//!
//! Both stamps are the time of the poll that handles the record, so a claim time is exact to the
//! length of a poll.
//!
//! Pure: durations in, quantiles out. Recording a time increments one counter.
//!
//! Invariant: a bucket is at most an eighth of its times wide, and never narrower than
//! [`UNIT_BITS`] allow.

use std::time::Duration;

/// Times are counted in units of so many bits of nanoseconds: 64 ns.
const UNIT_BITS: u32 = 6;
/// A power of two of times has so many bits of buckets: 8.
const STEP_BITS: u32 = 3;
/// Up to 2 s, which no claim time reaches. Longer times are in the last bucket.
const BUCKETS: usize = 184;

/// Claim times of one listener at one transport server.
#[derive(Debug)]
pub(crate) struct ClaimTimes {
    counts: Box<[u64; BUCKETS]>,
}

/// The bucket of so many units.
fn bucket_of(units: u64) -> usize {
    let bits = u64::BITS - units.leading_zeros();
    let shift = bits.saturating_sub(STEP_BITS + 1);
    let bucket = (u64::from(shift) << STEP_BITS) + (units >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// First unit of a bucket, and its number of units.
const fn units_of(bucket: usize) -> (u64, u64) {
    let steps = 1 << STEP_BITS;
    if bucket < 2 * steps {
        return (bucket as u64, 1);
    }
    let shift = bucket / steps - 1;
    (((bucket % steps + steps) as u64) << shift, 1 << shift)
}

impl ClaimTimes {
    /// No times yet.
    pub(crate) fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]) }
    }

    /// Records the time of a confirmed claim.
    #[inline]
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(nanos >> UNIT_BITS)] += 1;
    }

    /// Returns the time that a share `quantile` of the claims did not exceed, interpolated within
    /// its bucket. `None`: no claim was confirmed yet.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<Duration> {
        let all: u64 = self.counts.iter().sum();
        let mut wanted = quantile.clamp(0.0, 1.0) * all as f64;
        for (bucket, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if wanted <= count as f64 {
                let (first, width) = units_of(bucket);
                let units = first as f64 + width as f64 * wanted / count as f64;
                return Some(Duration::from_nanos((units * f64::from(1 << UNIT_BITS)) as u64));
            }
            wanted -= count as f64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another_without_gaps() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (first, width) = units_of(bucket);
            assert_eq!(first, next, "bucket {bucket}");
            assert_eq!((bucket_of(first), bucket_of(first + width - 1)), (bucket, bucket));
            assert!(width == 1 || width * 8 <= first, "bucket {bucket}");
            next = first + width;
        }
        assert!(next << UNIT_BITS > Duration::from_secs(1).as_nanos() as u64);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_recorded_times() {
        let mut times = ClaimTimes::new();
        assert_eq!(times.quantile(0.5), None);
        for us in 1..=1_000 {
            times.record(Duration::from_micros(us));
        }
        for (quantile, us) in [(0.01, 10.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = times.quantile(quantile).unwrap().as_secs_f64() * 1e6;
            assert!((found / us - 1.0).abs() < 0.13, "{quantile}: {found}");
        }
        times.record(Duration::from_secs(3_600));
        assert!(times.quantile(1.0).unwrap() > Duration::from_secs(1));
    }
}
