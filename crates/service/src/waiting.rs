//! When a server spins and when it sleeps.
//!
//! Spinning answers within a turn but costs a core; sleeping costs a system call and a wake-up.
//! So: spin while there is work and for a while after, then arm the link and sleep. The paper's
//! server did not sleep, and lost at low load [ETA 7.2].
//!
//! How long a while adapts: each spin that found nothing halves the next, down to a sixteenth; work
//! that comes while spinning brings the whole back. So a server that is asked now and then sleeps
//! nearly at once, and one that is asked often does not sleep.
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

/// The policy, and since when there has been no work.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The longest spin.
    spin: Duration,
    /// The next one.
    patience: Duration,
    idle_since: Option<Instant>,
}

impl Waiting {
    /// Spins for at most `spin` after the last work; zero: sleeps as soon as there is none.
    #[must_use]
    pub const fn new(spin: Duration) -> Self {
        Self { spin, patience: spin, idle_since: None }
    }

    /// A turn ended at `now`, and had work or not.
    pub fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        if worked {
            if self.idle_since.take().is_some() {
                self.patience = self.spin;
            }
            return Next::Turn;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < self.patience { Next::Turn } else { Next::Sleep }
    }

    /// It sleeps: the spin was in vain, and the next turn without work begins another.
    pub fn slept(&mut self) {
        self.idle_since = None;
        self.patience = (self.patience / 2).max(self.spin / SHORTEST);
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
}
