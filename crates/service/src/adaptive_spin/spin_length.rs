//! The length of a spin, which adapts.
//!
//! The server spins while there is work and for a while after it. Each spin that finds nothing
//! halves the next one, down to a sixteenth; work that arrives during a spin restores the full
//! length. So a server with rare work sleeps nearly at once, and one with frequent work does not
//! sleep.
//!
//! A sleep can also be short: two ends that wake each other in turn would sleep for ever, because
//! each shortest spin ends before the other end has woken up. Work that arrives within a time
//! that a full spin might have covered is therefore a reason to try one. That time counts from
//! the last work and includes the wake-ups of both ends, which spinning would have avoided; hence
//! twice the spin. A try that finds nothing doubles the number of short sleeps before the next
//! try, one that finds something halves it: work that always arrives a little too late costs a
//! try now and then.

use std::time::Duration;

use megapipe_stack::Instant;

use super::Next;

/// The shortest spin, as a part of the longest.
const SHORTEST: u32 = 16;
/// Short sleeps in a row that a whole spin is tried after, at most.
const SHORT_SLEEPS_MAX: u8 = 64;

/// The length of the next spin, and since when there has been no work.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpinLength {
    /// The longest spin.
    spin: Duration,
    /// The next one.
    patience: Duration,
    idle_since: Option<Instant>,
    /// It has slept since, and no poll has been told of.
    asleep: bool,
    /// Short sleeps since the last try or long sleep.
    short_sleeps: u8,
    /// So many of them make another try.
    wanted: u8,
}

impl SpinLength {
    /// Spins for at most `spin` after the last work; zero: sleeps as soon as there is none.
    pub(super) const fn new(spin: Duration) -> Self {
        Self { spin, patience: spin, idle_since: None, asleep: false, short_sleeps: 0, wanted: 1 }
    }

    /// What to do after a poll that began at `now` and had work or not. To be called after every
    /// poll, above all after the first one that follows a sleep.
    #[inline]
    pub(super) fn after_poll(&mut self, worked: bool, now: Instant) -> Next {
        if self.asleep {
            self.woke(worked, now);
        }
        if worked {
            if self.idle_since.take().is_some() {
                self.patience = self.spin;
                self.wanted = (self.wanted / 2).max(1);
            }
            return Next::Poll;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < self.patience { Next::Poll } else { Next::Sleep }
    }

    /// It sleeps: the spin was in vain, and the next poll without work begins another.
    pub(super) fn slept(&mut self) {
        if self.patience == self.spin {
            self.wanted = self.wanted.saturating_mul(2).min(SHORT_SLEEPS_MAX);
        }
        self.patience = (self.patience / 2).max(self.spin / SHORTEST);
        self.asleep = true;
    }

    /// The first poll after a sleep.
    fn woke(&mut self, worked: bool, now: Instant) {
        self.asleep = false;
        let idle = self.idle_since.take().map(|since| now.since(since));
        let is_short = worked && idle.is_some_and(|idle| idle <= self.spin * 2);
        self.short_sleeps = if is_short { self.short_sleeps + 1 } else { 0 };
        if self.short_sleeps >= self.wanted {
            self.short_sleeps = 0;
            self.patience = self.spin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_length_counts_from_the_last_work() {
        let at = Instant::from_micros;
        let mut policy = SpinLength::new(Duration::from_micros(50));
        assert_eq!(policy.after_poll(false, at(100)), Next::Poll);
        assert_eq!(policy.after_poll(true, at(140)), Next::Poll);
        assert_eq!(policy.after_poll(false, at(150)), Next::Poll);
        assert_eq!(policy.after_poll(false, at(199)), Next::Poll);
        assert_eq!(policy.after_poll(false, at(200)), Next::Sleep);
        policy.slept();
        assert_eq!(policy.after_poll(false, at(900)), Next::Poll);
        assert_eq!(policy.after_poll(false, at(924)), Next::Poll);
        assert_eq!(policy.after_poll(false, at(925)), Next::Sleep, "half as long as before");
        let mut never = SpinLength::new(Duration::ZERO);
        assert_eq!(never.after_poll(false, at(1)), Next::Sleep);
    }

    #[test]
    fn spin_length_halves_in_vain_and_returns_with_work() {
        let mut policy = SpinLength::new(Duration::from_micros(160));
        let spin_us = |start: u64, policy: &mut SpinLength| {
            let end = (start..)
                .find(|now| policy.after_poll(false, Instant::from_micros(*now)) == Next::Sleep);
            end.unwrap_or_default() - start
        };
        let mut spins = Vec::new();
        for round in 1..=6 {
            // Asked every millisecond, while asleep.
            policy.after_poll(true, Instant::from_micros(round * 1_000));
            spins.push(spin_us(round * 1_000 + 1, &mut policy));
            policy.slept();
        }
        assert_eq!(spins, [160, 80, 40, 20, 10, 10]);
        policy.after_poll(false, Instant::from_micros(9_000));
        policy.after_poll(true, Instant::from_micros(9_005));
        assert_eq!(spin_us(9_006, &mut policy), 160);
    }

    /// What an end did from its last work until the next.
    struct Idle {
        spun_us: u64,
        slept: bool,
        /// When it saw the work.
        end_us: u64,
    }

    /// Waits from `start_us` for work that comes `gap_us` later, or sees it `wake_us` after that if
    /// it sleeps by then.
    fn idle(policy: &mut SpinLength, start_us: u64, gap_us: u64, wake_us: u64) -> Idle {
        let at = Instant::from_micros;
        for spun_us in 0..gap_us {
            if policy.after_poll(false, at(start_us + spun_us)) == Next::Sleep {
                policy.slept();
                let end_us = start_us + gap_us + wake_us;
                policy.after_poll(true, at(end_us));
                return Idle { spun_us, slept: true, end_us };
            }
        }
        policy.after_poll(true, at(start_us + gap_us));
        Idle { spun_us: gap_us, slept: false, end_us: start_us + gap_us }
    }

    /// Of a second in which work comes so long after the last was done: the part that it spins.
    fn spun_per_mille(policy: &mut SpinLength, gaps_us: &[u64]) -> u64 {
        let (mut now, mut spun) = (0, 0);
        for gap_us in gaps_us.iter().cycle() {
            let idle = idle(policy, now, *gap_us, 10);
            now = idle.end_us + 1;
            spun += idle.spun_us;
            if now > 1_000_000 {
                break;
            }
        }
        spun * 1_000 / now
    }

    #[test]
    fn spin_length_lets_two_ends_spin_for_each_other() {
        // Each works on what the other has sent, and both see the end of a sleep late.
        const WORK_US: u64 = 30;
        const WAKE_US: u64 = 12;
        let mut ends = [SpinLength::new(Duration::from_micros(50)); 2];
        let mut now = 0;
        for end in &mut ends {
            assert!((0..8).all(|_| {
                let idle = idle(end, now, 1_000, WAKE_US);
                now = idle.end_us + 1;
                idle.slept
            }));
        }
        let (mut sleeps, mut other_sleeps) = (0, true);
        for round in 0..1_000 {
            let gap_us = WORK_US + if other_sleeps { WAKE_US } else { 0 };
            let idle = idle(&mut ends[round % 2], now, gap_us, WAKE_US);
            now = idle.end_us + 1;
            other_sleeps = idle.slept;
            sleeps += u32::from(idle.slept);
        }
        assert!(!other_sleeps && sleeps < 20, "{sleeps} sleeps");
    }

    #[test]
    fn spin_length_is_short_for_rare_work() {
        let mut policy = SpinLength::new(Duration::from_micros(50));
        assert!(spun_per_mille(&mut policy, &[1_000]) <= 5);
        assert!(spun_per_mille(&mut policy, &[10_000]) <= 1);
        // Now and then something comes soon after; that is no reason to spin after each.
        assert!(spun_per_mille(&mut policy, &[1_000, 20, 1_000]) <= 10);
    }

    #[test]
    fn spin_length_is_short_for_work_that_comes_too_late() {
        // So soon that a whole spin seems worth a try, and so late that no try finds it.
        for gap_us in [51, 60, 75, 89, 95, 120] {
            let mut policy = SpinLength::new(Duration::from_micros(50));
            // The tries until it has learnt that are over.
            spun_per_mille(&mut policy, &[gap_us]);
            let spun = spun_per_mille(&mut policy, &[gap_us]);
            let shortest = (50 / u64::from(SHORTEST) + 1) * 1_000 / gap_us;
            assert!(spun <= shortest + 25, "{gap_us} us: {spun} per mille");
        }
    }

    #[test]
    fn spin_length_is_short_for_empty_wakeups() {
        let mut policy = SpinLength::new(Duration::from_micros(50));
        let mut spun = 0;
        for now in 0..100_000 {
            // A sleep lasts twenty microseconds, and brings nothing.
            match policy.after_poll(false, Instant::from_micros(now)) {
                Next::Poll => spun += 1,
                Next::Sleep if now % 20 == 0 => policy.slept(),
                Next::Sleep => {}
            }
        }
        assert!(spun <= 100_000 / 4, "{spun} of 100,000 us");
    }
}
