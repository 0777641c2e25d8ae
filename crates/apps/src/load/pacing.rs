//! When a transaction is due: a fixed rate without drift.
//!
//! An open loop starts transactions at times that were set beforehand, whatever the server does;
//! a load that waits for the server measures how long the server wants it to wait ("coordinated
//! omission"). The n-th time is computed from n, never from the time before it, so that rounding
//! does not add up and a late one delays no other.
//!
//! Pure: times are nanoseconds on any clock and passed in.

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The schedule of one thread's transactions.
#[derive(Clone, Debug)]
pub struct Pacer {
    start_ns: u64,
    /// Transactions per 1,000 seconds, so that fractions of a rate can be shared by threads.
    rate_milli: u64,
    issued: u64,
}

impl Pacer {
    /// `rate_milli` transactions in 1,000 seconds from `start_ns` on. A rate of 0 is never due.
    #[must_use]
    pub const fn new(start_ns: u64, rate_milli: u64) -> Self {
        Self { start_ns, rate_milli, issued: 0 }
    }

    /// The time at which the next transaction is due.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        if self.rate_milli == 0 {
            return u64::MAX;
        }
        let after =
            u128::from(self.issued) * NANOS_PER_SECOND * 1_000 / u128::from(self.rate_milli);
        u64::try_from(after).unwrap_or(u64::MAX).saturating_add(self.start_ns)
    }

    /// Takes the next transaction if it is due; its intended start.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = self.next_ns();
        (due_ns <= now_ns).then(|| {
            self.issued += 1;
            due_ns
        })
    }

    /// Transactions that are due and not taken.
    #[must_use]
    pub fn backlog(&self, now_ns: u64) -> u64 {
        if self.next_ns() > now_ns {
            return 0;
        }
        let passed = u128::from(now_ns - self.start_ns);
        let due = passed * u128::from(self.rate_milli) / (NANOS_PER_SECOND * 1_000) + 1;
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.issued)
    }
}

/// The share of `rate_milli` that thread `index` of `count` takes; the shares add up to it.
#[must_use]
pub const fn share(rate_milli: u64, index: u64, count: u64) -> u64 {
    rate_milli / count + if index < rate_milli % count { 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_does_not_drift() {
        for rate_milli in [1, 333, 1_000, 3_000_000, 999_999_937, 7_000_000_000] {
            let mut pacer = Pacer::new(1_000, rate_milli);
            pacer.issued = rate_milli;
            assert_eq!(pacer.next_ns(), 1_000 + 1_000 * 1_000_000_000, "rate {rate_milli}");
        }
    }

    #[test]
    fn gaps_differ_by_at_most_a_nanosecond() {
        let mut pacer = Pacer::new(0, 3_000_000);
        let times: Vec<u64> = (0..10_000).filter_map(|_| pacer.take(u64::MAX)).collect();
        let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (333_333..=333_334).contains(gap)));
    }

    #[test]
    fn missed_transaction_keeps_its_due_time() {
        let mut pacer = Pacer::new(0, 1_000_000);
        assert_eq!(pacer.take(0), Some(0));
        assert_eq!(pacer.take(999_999), None);
        assert_eq!(pacer.backlog(999_999), 0);
        assert_eq!(pacer.backlog(5_000_000), 5);
        let late: Vec<_> = std::iter::from_fn(|| pacer.take(5_000_000)).collect();
        assert_eq!(late, [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]);
        assert_eq!(pacer.backlog(5_000_000), 0);
    }

    #[test]
    fn a_rate_of_zero_is_never_due() {
        let mut pacer = Pacer::new(0, 0);
        assert_eq!((pacer.take(u64::MAX - 1), pacer.backlog(u64::MAX - 1)), (None, 0));
    }

    #[test]
    fn shares_add_up() {
        for (rate, count) in [(1, 3), (10, 3), (1_000_000, 7), (0, 2)] {
            assert_eq!((0..count).map(|index| share(rate, index, count)).sum::<u64>(), rate);
        }
    }
}
