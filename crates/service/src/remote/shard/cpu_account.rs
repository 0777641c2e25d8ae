//! CPU time of a shard, charged to its sessions.
//!
//! The thread's CPU time is sampled at most once in [`CPU_SAMPLE_PERIOD`]. What was used since the
//! last sample is divided by the operations and events of each session in that time. Polls without
//! any count one each for the shard's own account, which also has what is divided by nothing.
//!
//! [`CPU_SAMPLE_PERIOD`]: crate::limits::CPU_SAMPLE_PERIOD

use std::time::Duration;

use megapipe_stack::Instant;

use crate::limits::CPU_SAMPLE_PERIOD;

/// When a sample is due, and what belongs to no session.
#[derive(Debug, Default)]
pub(super) struct CpuAccount {
    /// CPU time at the last sample.
    sampled: Duration,
    next_at: Instant,
    /// Polls without operations and events since then.
    pub(super) idle_polls: u64,
    pub(super) own_ns: u64,
    /// What was charged to sessions, those that are gone included.
    charged_ns: u64,
}

impl CpuAccount {
    /// What was charged to sessions, and to none.
    pub(super) const fn totals(&self) -> (u64, u64) {
        (self.charged_ns, self.own_ns)
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next_at
    }

    /// Charges what was used since the last sample: `busy` is the thread's CPU time so far. The
    /// sessions' units are what each has done since; `charge` gets its place and nanoseconds.
    pub(super) fn charge(
        &mut self,
        now: Instant,
        busy: Duration,
        units: impl Iterator<Item = u64> + Clone,
        mut charge: impl FnMut(usize, u64),
    ) {
        self.next_at = now + CPU_SAMPLE_PERIOD;
        let used = busy.saturating_sub(self.sampled).as_nanos();
        self.sampled = busy;
        let all: u64 = units.clone().sum::<u64>() + std::mem::take(&mut self.idle_polls);
        let mut left = used;
        for (place, units) in units.enumerate() {
            if units > 0 {
                // `all` is at least `units`.
                let share = used * u128::from(units) / u128::from(all);
                left -= share;
                charge(place, u64::try_from(share).unwrap_or(u64::MAX));
            }
        }
        self.charged_ns += u64::try_from(used - left).unwrap_or(u64::MAX);
        self.own_ns += u64::try_from(left).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_charged_by_work_and_none_is_lost() {
        let mut account = CpuAccount::default();
        let now = Instant::from_nanos(5);
        assert!(account.is_due(now));
        let mut charged = [0; 3];
        account.idle_polls = 2;
        account.charge(now, Duration::from_nanos(1_001), [3, 0, 5].into_iter(), |place, ns| {
            charged[place] += ns;
        });
        assert_eq!((charged, account.totals()), ([300, 0, 500], (800, 201)));
        assert!(!account.is_due(now) && account.is_due(now + CPU_SAMPLE_PERIOD));
        // Nothing was done: what was used is the shard's own.
        account.charge(now, Duration::from_nanos(1_101), [0; 3].into_iter(), |_, _| panic!());
        assert_eq!(account.own_ns, 301);
        // A thread's CPU time does not run backwards; nothing is charged if it seems to.
        account.charge(now, Duration::ZERO, [1].into_iter(), |_, ns| assert_eq!(ns, 0));
    }
}
