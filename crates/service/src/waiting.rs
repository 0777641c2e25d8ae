//! When a server spins and when it sleeps.
//!
//! Spinning answers within a turn but costs a core; sleeping costs a system call and a wake-up.
//! So: spin while there is work and for a while after, then arm the link and sleep. The paper's
//! server did not sleep, and lost at low load [ETA 7.2].
//!
//! How long a while adapts. Each spin that found nothing halves the next, down to a sixteenth; work
//! that comes while spinning brings the whole back. So a server that is asked now and then sleeps
//! nearly at once, and one that is asked often does not sleep.
//!
//! A sleep may be short, too: two ends that wake each other in turn would sleep for ever, since
//! each shortest spin ends before the other has come up. What comes after a time that a whole spin
//! might have bridged is reason to try one. The time is seen from the last work and with the
//! wake-ups of both ends in it, which spinning would have spared; hence twice the spin. A try that
//! finds nothing doubles how many short sleeps in a row the next one takes, one that finds
//! something halves it: work that comes a little too late for a spin costs a try now and then.
//!
//! Pure: whether a turn had work goes in, what to do next comes out.

use std::time::Duration;

use megapipe_stack::Instant;

/// What to do after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another turn at once.
    Turn,
    /// Arm the link and sleep until a frame, a timer or the caller.
    Sleep,
}

/// The shortest spin, as a part of the longest.
const SHORTEST: u32 = 16;
/// Short sleeps in a row that a whole spin is tried after, at most.
const SHORT_SLEEPS_MAX: u8 = 64;

/// The policy, and since when there has been no work.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The longest spin.
    spin: Duration,
    /// The next one.
    patience: Duration,
    idle_since: Option<Instant>,
    /// It has slept since, and no turn has been told of.
    asleep: bool,
    /// Short sleeps since the last try or long sleep.
    short_sleeps: u8,
    /// So many of them make another try.
    wanted: u8,
}

impl Waiting {
    /// Spins for at most `spin` after the last work; zero: sleeps as soon as there is none.
    #[must_use]
    pub const fn new(spin: Duration) -> Self {
        Self { spin, patience: spin, idle_since: None, asleep: false, short_sleeps: 0, wanted: 1 }
    }

    /// A turn began at `now`, and had work or not. Every turn is told of, above all the first one
    /// after a sleep.
    #[inline]
    pub fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        if self.asleep {
            self.woke(worked, now);
        }
        if worked {
            if self.idle_since.take().is_some() {
                self.patience = self.spin;
                self.wanted = (self.wanted / 2).max(1);
            }
            return Next::Turn;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < self.patience { Next::Turn } else { Next::Sleep }
    }

    /// It sleeps: the spin was in vain, and the next turn without work begins another.
    pub fn slept(&mut self) {
        if self.patience == self.spin {
            self.wanted = self.wanted.saturating_mul(2).min(SHORT_SLEEPS_MAX);
        }
        self.patience = (self.patience / 2).max(self.spin / SHORTEST);
        self.asleep = true;
    }

    /// The first turn after a sleep.
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
    fn it_spins_for_a_while_after_the_last_work() {
        let at = Instant::from_micros;
        let mut waiting = Waiting::new(Duration::from_micros(50));
        assert_eq!(waiting.after_turn(false, at(100)), Next::Turn);
        assert_eq!(waiting.after_turn(true, at(140)), Next::Turn);
        assert_eq!(waiting.after_turn(false, at(150)), Next::Turn);
        assert_eq!(waiting.after_turn(false, at(199)), Next::Turn);
        assert_eq!(waiting.after_turn(false, at(200)), Next::Sleep);
        waiting.slept();
        assert_eq!(waiting.after_turn(false, at(900)), Next::Turn);
        assert_eq!(waiting.after_turn(false, at(924)), Next::Turn);
        assert_eq!(waiting.after_turn(false, at(925)), Next::Sleep, "half as long as before");
        let mut never = Waiting::new(Duration::ZERO);
        assert_eq!(never.after_turn(false, at(1)), Next::Sleep);
    }

    #[test]
    fn spins_in_vain_get_shorter_and_work_found_brings_them_back() {
        let mut waiting = Waiting::new(Duration::from_micros(160));
        let spin_us = |start: u64, waiting: &mut Waiting| {
            let end = (start..)
                .find(|now| waiting.after_turn(false, Instant::from_micros(*now)) == Next::Sleep);
            end.unwrap_or_default() - start
        };
        let mut spins = Vec::new();
        for round in 1..=6 {
            // Asked every millisecond, while asleep.
            waiting.after_turn(true, Instant::from_micros(round * 1_000));
            spins.push(spin_us(round * 1_000 + 1, &mut waiting));
            waiting.slept();
        }
        assert_eq!(spins, [160, 80, 40, 20, 10, 10]);
        waiting.after_turn(false, Instant::from_micros(9_000));
        waiting.after_turn(true, Instant::from_micros(9_005));
        assert_eq!(spin_us(9_006, &mut waiting), 160);
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
    fn idle(waiting: &mut Waiting, start_us: u64, gap_us: u64, wake_us: u64) -> Idle {
        let at = Instant::from_micros;
        for spun_us in 0..gap_us {
            if waiting.after_turn(false, at(start_us + spun_us)) == Next::Sleep {
                waiting.slept();
                let end_us = start_us + gap_us + wake_us;
                waiting.after_turn(true, at(end_us));
                return Idle { spun_us, slept: true, end_us };
            }
        }
        waiting.after_turn(true, at(start_us + gap_us));
        Idle { spun_us: gap_us, slept: false, end_us: start_us + gap_us }
    }

    /// Of a second in which work comes so long after the last was done: the part that it spins.
    fn spun_per_mille(waiting: &mut Waiting, gaps_us: &[u64]) -> u64 {
        let (mut now, mut spun) = (0, 0);
        for gap_us in gaps_us.iter().cycle() {
            let idle = idle(waiting, now, *gap_us, 10);
            now = idle.end_us + 1;
            spun += idle.spun_us;
            if now > 1_000_000 {
                break;
            }
        }
        spun * 1_000 / now
    }

    #[test]
    fn two_ends_that_wake_each_other_in_turn_come_to_spin() {
        // Each works on what the other has sent, and both see the end of a sleep late.
        const WORK_US: u64 = 30;
        const WAKE_US: u64 = 12;
        let mut ends = [Waiting::new(Duration::from_micros(50)); 2];
        let mut now = 0;
        for end in &mut ends {
            assert!((0..8).all(|_| {
                let idle = idle(end, now, 1_000, WAKE_US);
                now = idle.end_us + 1;
                idle.slept
            }));
        }
        let (mut sleeps, mut other_sleeps) = (0, true);
        for turn in 0..1_000 {
            let gap_us = WORK_US + if other_sleeps { WAKE_US } else { 0 };
            let idle = idle(&mut ends[turn % 2], now, gap_us, WAKE_US);
            now = idle.end_us + 1;
            other_sleeps = idle.slept;
            sleeps += u32::from(idle.slept);
        }
        assert!(!other_sleeps && sleeps < 20, "{sleeps} sleeps");
    }

    #[test]
    fn who_is_asked_once_in_a_millisecond_sleeps_nearly_at_once() {
        let mut waiting = Waiting::new(Duration::from_micros(50));
        assert!(spun_per_mille(&mut waiting, &[1_000]) <= 5);
        assert!(spun_per_mille(&mut waiting, &[10_000]) <= 1);
        // Now and then something comes soon after; that is no reason to spin after each.
        assert!(spun_per_mille(&mut waiting, &[1_000, 20, 1_000]) <= 10);
    }

    #[test]
    fn work_that_comes_too_late_for_a_spin_is_not_waited_for_awake() {
        // So soon that a whole spin seems worth a try, and so late that no try finds it.
        for gap_us in [51, 60, 75, 89, 95, 120] {
            let mut waiting = Waiting::new(Duration::from_micros(50));
            // The tries until it has learnt that are over.
            spun_per_mille(&mut waiting, &[gap_us]);
            let spun = spun_per_mille(&mut waiting, &[gap_us]);
            let shortest = (50 / u64::from(SHORTEST) + 1) * 1_000 / gap_us;
            assert!(spun <= shortest + 25, "{gap_us} us: {spun} per mille");
        }
    }

    #[test]
    fn who_is_woken_for_nothing_does_not_spin_for_it() {
        let mut waiting = Waiting::new(Duration::from_micros(50));
        let mut spun = 0;
        for now in 0..100_000 {
            // A sleep lasts twenty microseconds, and brings nothing.
            match waiting.after_turn(false, Instant::from_micros(now)) {
                Next::Turn => spun += 1,
                Next::Sleep if now % 20 == 0 => waiting.slept(),
                Next::Sleep => {}
            }
        }
        assert!(spun <= 100_000 / 4, "{spun} of 100,000 us");
    }
}
