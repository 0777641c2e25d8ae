//! How long transactions took: from when they were meant to start, and from when they did.
//!
//! With a fixed rate the first is what a user of the service would have seen; the second leaves
//! out what the load itself waited for ("coordinated omission"), and is kept for comparison. In a
//! closed loop the two are the same, because there is no plan to be late against.
//!
//! Pure: times are nanoseconds and passed in.
//!
//! Invariants
//! - What is recorded is within [`LATENCY_NS_MAX`]; longer counts as that long.
//! - Values are kept to three significant digits.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Largest recorded latency: one hour.
pub const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Significant decimal digits of a recorded value.
const DIGITS: u8 = 3;

/// Latencies of one kind.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        // The bounds are constants that the histogram allows; the fall-back grows by itself.
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Self(histogram.unwrap_or_else(|_| auto_sized()))
    }
}

fn auto_sized() -> Histogram<u64> {
    let mut histogram =
        Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("three digits are within 0..=5"));
    histogram.auto(true);
    histogram
}

impl Latencies {
    /// Records one latency in nanoseconds.
    pub fn record(&mut self, latency_ns: u64) {
        self.0.saturating_record(latency_ns.clamp(1, LATENCY_NS_MAX));
    }

    /// Adds what another thread recorded.
    pub fn add(&mut self, other: &Self) {
        // Fails only for values beyond the bounds, which both have in common.
        let _ = self.0.add(&other.0);
    }

    /// How many latencies were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The numbers that are reported, in microseconds.
    #[must_use]
    pub fn quantiles(&self) -> Quantiles {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        if self.0.is_empty() {
            return Quantiles::default();
        }
        Quantiles {
            count: self.0.len(),
            mean: self.0.mean() / 1e3,
            sd: self.0.stdev() / 1e3,
            min: micros(self.0.min()),
            p50: micros(self.0.value_at_quantile(0.5)),
            p90: micros(self.0.value_at_quantile(0.9)),
            p99: micros(self.0.value_at_quantile(0.99)),
            p999: micros(self.0.value_at_quantile(0.999)),
            p9999: micros(self.0.value_at_quantile(0.9999)),
            max: micros(self.0.max()),
        }
    }
}

/// What a distribution of latencies is summed up as, in microseconds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many values there are; everything else is zero if this is.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub sd: f64,
    /// The smallest.
    pub min: f64,
    /// Half are at most this long.
    pub p50: f64,
    /// Nine in ten are at most this long.
    pub p90: f64,
    /// 99 in 100 are at most this long.
    pub p99: f64,
    /// 999 in 1,000 are at most this long.
    pub p999: f64,
    /// 9,999 in 10,000 are at most this long.
    pub p9999: f64,
    /// The longest.
    pub max: f64,
}

/// When one transaction was meant to start, when it did and when it ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// The intended start: by the schedule with a fixed rate, else the start itself.
    pub intended_ns: u64,
    /// The request was submitted to the channel.
    pub sent_ns: u64,
    /// The last byte of the response was seen.
    pub done_ns: u64,
}

/// Both ways to look at transactions.
#[derive(Clone, Debug, Default)]
pub struct TransactionLatencies {
    /// From the intended start.
    pub corrected: Latencies,
    /// From the actual start.
    pub uncorrected: Latencies,
}

impl TransactionLatencies {
    /// Records a transaction that ended.
    pub fn record(&mut self, times: Times) {
        self.corrected.record(times.done_ns.saturating_sub(times.intended_ns));
        self.uncorrected.record(times.done_ns.saturating_sub(times.sent_ns));
    }

    /// Records a transaction that had not ended when the run did. It took at least until now;
    /// leaving it out would hide exactly the worst ones.
    pub fn record_unfinished(&mut self, intended_ns: u64, now_ns: u64) {
        self.corrected.record(now_ns.saturating_sub(intended_ns));
    }

    /// Adds what another thread recorded.
    pub fn add(&mut self, other: &Self) {
        self.corrected.add(&other.corrected);
        self.uncorrected.add(&other.uncorrected);
    }
}

#[cfg(test)]
mod tests {
    use super::super::pacing::Pacer;
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn values_keep_three_digits_and_are_never_lost() {
        let mut latencies = Latencies::default();
        for value in [0, 1, 12_345, u64::MAX] {
            latencies.record(value);
        }
        let quantiles = latencies.quantiles();
        assert_eq!(quantiles.count, 4);
        assert_eq!(quantiles.min, 0.001);
        assert!((quantiles.max / (LATENCY_NS_MAX as f64 / 1e3) - 1.0).abs() < 1e-3);
        assert!((quantiles.p50 - 0.001).abs() < 1e-9);
        assert_eq!(Latencies::default().quantiles(), Quantiles::default());
    }

    #[test]
    fn histograms_of_threads_add_up() {
        let (mut one, mut two) = (Latencies::default(), Latencies::default());
        (1..=100).for_each(|value| one.record(value * 1_000));
        (101..=200).for_each(|value| two.record(value * 1_000));
        one.add(&two);
        let quantiles = one.quantiles();
        assert_eq!(quantiles.count, 200);
        assert!((quantiles.p50 - 100.0).abs() < 0.2, "{quantiles:?}");
        assert!((quantiles.mean - 100.5).abs() < 0.2, "{quantiles:?}");
    }

    /// A server that answers each request within 10 µs, one at a time, but for one second in ten
    /// does nothing at all. One connection, 1,000 transactions a second.
    #[test]
    fn a_stall_shows_in_full_only_when_measured_from_the_intended_start() {
        let stall = 4_500 * MILLISECOND..5_500 * MILLISECOND;
        let answer = |now: u64| match stall.contains(&now) {
            true => stall.end + 10_000,
            false => now + 10_000,
        };
        let mut pacer = Pacer::new(0, 1_000_000);
        let mut latencies = TransactionLatencies::default();
        let mut now = 0;
        while pacer.next_ns() < 10_000 * MILLISECOND {
            now = now.max(pacer.next_ns());
            let Some(intended_ns) = pacer.take(now) else { continue };
            let done_ns = answer(now);
            latencies.record(Times { intended_ns, sent_ns: now, done_ns });
            now = done_ns;
        }
        let (corrected, uncorrected) =
            (latencies.corrected.quantiles(), latencies.uncorrected.quantiles());
        assert_eq!(corrected.count, 10_000);
        assert!(uncorrected.p999 < 11.0, "one slow transaction hides: {uncorrected:?}");
        assert!(corrected.p99 > 880_000.0, "about a tenth waited: {corrected:?}");
        assert!(corrected.p50 < 11.0, "half were not concerned: {corrected:?}");
        assert!((corrected.max - uncorrected.max).abs() < 2_000.0);
    }
}
