//! When a server spins and when it sleeps.
//!
//! Spinning answers within a turn but costs a core; sleeping costs a system call and a wake-up.
//! So: spin while there is work and for a while after, then arm the link and sleep. The paper's
//! server did not sleep, and lost at low load [ETA 7.2].
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

/// The policy, and since when there has been no work.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    spin: Duration,
    idle_since: Option<Instant>,
}

impl Waiting {
    /// Spins for `spin` after the last work; zero: sleeps as soon as there is none.
    #[must_use]
    pub const fn new(spin: Duration) -> Self {
        Self { spin, idle_since: None }
    }

    /// A turn ended at `now`, and had work or not.
    pub fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        if worked {
            self.idle_since = None;
            return Next::Turn;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < self.spin { Next::Turn } else { Next::Sleep }
    }

    /// It slept: the next turn without work begins a new spin.
    pub const fn slept(&mut self) {
        self.idle_since = None;
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
        let mut never = Waiting::new(Duration::ZERO);
        assert_eq!(never.after_turn(false, at(1)), Next::Sleep);
    }
}
