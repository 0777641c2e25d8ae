//! Service time estimator: moving median or mean over a window of samples [PIKA 5.3].
//!
//! Pure: service times with their times in, an estimate out.
//!
//! One sample is taken each period: the mean of the service times that ended in it, or else the
//! previous sample again. So the window is a span of time (64 ms by default) at any rate of
//! connections: an acceptor that became slow shows it although it finishes few of them, and one
//! that recovered shows it after one fast connection.

use std::collections::VecDeque;
use std::time::Duration;

use megapipe_stack::Instant;

use super::config::{BalancerConfig, Statistic};

/// The recent service times of one acceptor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Estimator {
    statistic: Statistic,
    window: usize,
    period: Duration,
    /// Samples in nanoseconds, the oldest first.
    samples: VecDeque<u64>,
    /// The same, ascending; empty for the mean.
    sorted: Vec<u64>,
    /// Sum of the samples.
    sum: u128,
    /// Start and end of the current period, and the sum and number of its service times.
    started: Instant,
    period_end: Instant,
    pending_sum: u128,
    pending_count: u32,
}

impl Estimator {
    /// Creates an estimator without samples.
    #[must_use]
    pub fn new(config: &BalancerConfig) -> Self {
        Self {
            statistic: config.statistic,
            window: usize::from(config.window.max(1)),
            period: config.period,
            samples: VecDeque::new(),
            sorted: Vec::new(),
            sum: 0,
            started: Instant::from_nanos(0),
            period_end: Instant::from_nanos(0),
            pending_sum: 0,
            pending_count: 0,
        }
    }

    /// Adds a service time that ended at `now`. The first one is a sample at once. Returns whether
    /// the estimate may have changed.
    pub fn add(&mut self, now: Instant, service_time: Duration) -> bool {
        let nanos = u64::try_from(service_time.as_nanos()).unwrap_or(u64::MAX);
        if self.period.is_zero() {
            self.push(nanos);
        } else if self.samples.is_empty() {
            self.begin_period(now);
            self.push(nanos);
        } else {
            let has_advanced = self.advance(now);
            self.pending_sum += u128::from(nanos);
            self.pending_count = self.pending_count.saturating_add(1);
            return has_advanced;
        }
        true
    }

    /// Takes the samples of the periods that have ended by `now`, at most as many as the window
    /// has. Returns whether the estimate may have changed.
    #[inline]
    pub fn advance(&mut self, now: Instant) -> bool {
        let has_ended = now >= self.period_end && !self.period.is_zero();
        if has_ended {
            self.end_periods(now);
        }
        has_ended
    }

    /// When [`Estimator::advance`] is due. `None`: not before the next service time.
    #[must_use]
    pub fn next_sample_at(&self) -> Option<Instant> {
        (!self.period.is_zero() && !self.samples.is_empty()).then_some(self.period_end)
    }

    /// As `advance`, where at least one has ended.
    fn end_periods(&mut self, now: Instant) {
        let Some(&last) = self.samples.back() else { return };
        let elapsed = now.since(self.started);
        let ended = elapsed.as_nanos() / self.period.as_nanos();
        let rest = Duration::from_nanos((elapsed.as_nanos() % self.period.as_nanos()) as u64);
        self.begin_period(now - rest);
        let mean = self.pending_sum.checked_div(u128::from(self.pending_count));
        // A mean of `u64`s is one.
        let sample = mean.map_or(last, |mean| u64::try_from(mean).unwrap_or(u64::MAX));
        (self.pending_sum, self.pending_count) = (0, 0);
        for _ in 0..ended.min(self.window as u128) {
            self.push(sample);
        }
    }

    fn begin_period(&mut self, start: Instant) {
        (self.started, self.period_end) = (start, start + self.period);
    }

    fn push(&mut self, sample: u64) {
        if self.samples.len() == self.window
            && let Some(oldest) = self.samples.pop_front()
        {
            self.sum -= u128::from(oldest);
            if let Ok(place) = self.sorted.binary_search(&oldest) {
                self.sorted.remove(place);
            }
        }
        self.samples.push_back(sample);
        self.sum += u128::from(sample);
        if self.statistic == Statistic::Median {
            let place = self.sorted.partition_point(|&other| other < sample);
            self.sorted.insert(place, sample);
        }
    }

    /// Returns the estimate in nanoseconds, or `None` before the first service time.
    #[must_use]
    #[inline]
    pub fn estimate(&self) -> Option<u64> {
        let count = self.samples.len();
        match self.statistic {
            Statistic::Median => self.sorted.get(count.saturating_sub(1) / 2).copied(),
            Statistic::Mean => {
                let mean = self.sum.checked_div(count as u128)?;
                u64::try_from(mean).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn estimator(statistic: Statistic, window: u16, period_us: u64) -> Estimator {
        let period = Duration::from_micros(period_us);
        Estimator::new(&BalancerConfig { statistic, window, period, ..BalancerConfig::default() })
    }

    fn at(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn median_ignores_single_outliers_and_mean_does_not() {
        let (mut median, mut mean) =
            (estimator(Statistic::Median, 5, 0), estimator(Statistic::Mean, 5, 0));
        assert_eq!(median.estimate(), None);
        assert_eq!(mean.estimate(), None);
        for (index, time) in [10, 10, 1_000, 10, 10].into_iter().enumerate() {
            median.add(at(index as u64), us(time));
            mean.add(at(index as u64), us(time));
        }
        assert_eq!(median.estimate(), Some(10_000));
        assert_eq!(mean.estimate(), Some(208_000));
    }

    #[test]
    fn estimate_follows_after_half_a_window() {
        let mut estimator = estimator(Statistic::Median, 8, 500);
        for period in 0..8 {
            estimator.add(at(period * 500), us(100));
        }
        // The sample of a period is taken at its end.
        for period in 8..13 {
            estimator.add(at(period * 500), us(300));
            assert_eq!(estimator.estimate(), Some(100_000), "period {period}");
        }
        estimator.add(at(13 * 500), us(300));
        assert_eq!(estimator.estimate(), Some(300_000));
    }

    #[test]
    fn service_times_of_one_period_are_one_sample() {
        let mut estimator = estimator(Statistic::Mean, 2, 500);
        estimator.add(at(0), us(10));
        for step in 1..500 {
            estimator.add(at(step), us(30));
        }
        assert_eq!(estimator.estimate(), Some(10_000), "the period has not ended");
        estimator.advance(at(500));
        assert_eq!(estimator.estimate(), Some(20_000), "two samples: 10 and 30");
    }

    #[test]
    fn one_fast_connection_ends_a_slow_phase_after_half_a_window() {
        let mut estimator = estimator(Statistic::Median, 8, 500);
        for period in 0..20 {
            estimator.add(at(period * 500), us(9_000));
        }
        estimator.add(at(20 * 500), us(100));
        estimator.advance(at(23 * 500));
        assert_eq!(estimator.estimate(), Some(9_000_000));
        estimator.advance(at(24 * 500));
        assert_eq!(estimator.estimate(), Some(100_000), "the sample is repeated each period");
        estimator.advance(at(u64::MAX / 1_000));
        assert_eq!(estimator.estimate(), Some(100_000));
    }

    proptest! {
        #[test]
        fn estimate_equals_that_of_the_last_samples(
            times in prop::collection::vec(0_u64..1 << 40, 1..200),
            window in 1_u16..64,
        ) {
            let (mut median, mut mean) =
                (estimator(Statistic::Median, window, 0), estimator(Statistic::Mean, window, 0));
            for (index, &time) in times.iter().enumerate() {
                median.add(at(index as u64), Duration::from_nanos(time));
                mean.add(at(index as u64), Duration::from_nanos(time));
            }
            let mut last: Vec<u64> =
                times[times.len().saturating_sub(usize::from(window))..].to_vec();
            let expected = last.iter().sum::<u64>() / last.len() as u64;
            prop_assert_eq!(mean.estimate(), Some(expected));
            last.sort_unstable();
            prop_assert_eq!(median.estimate(), Some(last[(last.len() - 1) / 2]));
        }
    }
}
