//! Adaptive spinning: whether a server without work polls its link again or sleeps.
//!
//! A spin finds new work within one poll, but occupies a core. A sleep frees the core, but costs a
//! system call and a wake-up. The paper's server did not sleep, and lost at low load [ETA 7.2].
//! Two decisions, each in a module of its own:
//!
//! - `comparison`: whether spins pay at all, on this link and under this load. It measures.
//! - `spin_length`: if so, how long the next one is, from what the last ones found.
//!
//! Pure: whether a poll had work, the time and the CPU time are inputs; what to do next is the
//! output.

mod comparison;
mod spin_length;
#[cfg(test)]
mod tests;

use std::time::Duration;

use megapipe_stack::Instant;

use crate::config::Waits;
use comparison::Comparison;
pub use comparison::Usage;
use spin_length::SpinLength;

/// What to do after a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another poll at once.
    Poll,
    /// Arm the link and sleep until a frame, a timer or the caller.
    Sleep,
}

/// The policy of one server, or of one application that waits for its server.
#[derive(Debug, Clone, Copy)]
pub struct AdaptiveSpin {
    spin: Duration,
    never_sleeps: bool,
    length: SpinLength,
    comparison: Comparison,
}

impl AdaptiveSpin {
    /// Spins for at most `spin` after the last work; zero: sleeps as soon as there is none.
    #[must_use]
    pub const fn new(spin: Duration) -> Self {
        let (length, comparison) = (SpinLength::new(spin), Comparison::new());
        Self { spin, never_sleeps: false, length, comparison }
    }

    /// The policy of a server with these settings.
    pub(crate) const fn of(waits: &Waits) -> Self {
        Self { never_sleeps: waits.never_sleeps, ..Self::new(waits.spin) }
    }

    /// What to do after a poll that began at `now` and had work or not. To be called after every
    /// poll, above all after the first one that follows a sleep.
    ///
    /// `usage` is called some ten times a second under load, and never without. Where it returns
    /// `None`, spins are taken to pay.
    #[inline]
    pub fn after_poll(
        &mut self,
        worked: bool,
        now: Instant,
        usage: impl FnOnce() -> Option<Usage>,
    ) -> Next {
        if self.never_sleeps {
            return Next::Poll;
        }
        if worked && self.comparison.is_due(now) && !self.spin.is_zero() {
            self.compare(now, usage());
        }
        if self.comparison.spins() {
            return self.length.after_poll(worked, now);
        }
        if worked { Next::Poll } else { Next::Sleep }
    }

    /// The server sleeps, as [`AdaptiveSpin::after_poll`] returned.
    pub fn slept(&mut self) {
        if self.comparison.spins() {
            self.length.slept();
        }
    }

    fn compare(&mut self, now: Instant, usage: Option<Usage>) {
        let was_spinning = self.comparison.spins();
        self.comparison.advance(now, usage);
        if self.comparison.spins() && !was_spinning {
            // What it had learnt is of another time.
            self.length = SpinLength::new(self.spin);
        }
    }
}
