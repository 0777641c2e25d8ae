//! When a full batch goes to the kernel, and when it is let grow.
//!
//! Read first: docs/decisions/0012-growing-batches.md; [MP 3.4.3].
//!
//! Invariants
//! - A batch of one (batching switched off) goes at once.
//! - A batch grows past the threshold only while completions of the same fetch are still to be
//!   handed out, and are: when the last one is, the next wait takes it along. The operations of a
//!   program that does not dispatch go when the batch is full.
//! - It grows only as long as the program is quick: the threshold's number of operations in
//!   [`GROWTH_TIME`]. The first answer of a fetch is so kept back for as long at most as the
//!   operations of one submission queue take at that pace.

use std::time::Instant;

use crate::limits::GROWTH_TIME;

/// The batch that is being gathered. Pure: the time comes in.
#[derive(Debug)]
pub(super) struct Batch {
    /// The configured threshold, at least 1.
    threshold: u32,
    /// The number of queued operations at which [`Batch::is_due`] has to be asked.
    pub(super) full_at: u32,
    /// When the batch reached its last multiple of the threshold, or the one before it left.
    paced_at: Option<Instant>,
    /// How many completions the program had taken then, since the channel was made.
    taken: u64,
}

/// How far the program is with what was fetched.
#[derive(Debug, Clone, Copy)]
pub(super) struct InHand {
    /// Completions that were handed out since the channel was made. (Not since the fetch: where
    /// each brings as much, the program is at the same place of it whenever a batch is full.)
    pub(super) taken: u64,
    /// Whether there are more of the fetch.
    pub(super) more: bool,
}

impl Batch {
    pub(super) const fn new(threshold: u32) -> Self {
        Self { threshold, full_at: threshold, paced_at: None, taken: 0 }
    }

    /// Whether a batch that has reached `full_at` goes now.
    pub(super) fn is_due(&mut self, in_hand: InHand, now: impl FnOnce() -> Instant) -> bool {
        if self.threshold == 1 {
            return true;
        }
        let InHand { taken, more } = in_hand;
        let dispatches = taken.saturating_sub(self.taken) >= u64::from(self.threshold / 2);
        self.taken = taken;
        if !more || !dispatches {
            return true;
        }
        let now = now();
        let elapsed = |since| now.saturating_duration_since(since);
        let quick = self.paced_at.is_none_or(|since| elapsed(since) <= GROWTH_TIME);
        self.paced_at = Some(now);
        if quick {
            self.full_at += self.threshold;
        }
        !quick
    }

    /// The queue went to the kernel with the program's wait, or because the batch was due.
    /// `taken` is as in [`InHand`].
    pub(super) const fn left(&mut self, why: Left, taken: u64) {
        self.full_at = self.threshold;
        self.taken = taken;
        if matches!(why, Left::WithWait) {
            // The time of the wait is not the program's.
            self.paced_at = None;
        }
    }
}

/// What made a batch leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// It was full, or the program asked for it.
    Full,
    /// The program waits.
    WithWait,
}

#[cfg(test)]
mod tests {
    use super::{Batch, GROWTH_TIME, InHand, Left};
    use std::time::{Duration, Instant};

    fn no_clock() -> Instant {
        unreachable!("the program's speed is not measured here")
    }

    fn handed_out(taken: u64) -> InHand {
        InHand { taken, more: true }
    }

    #[test]
    fn a_batch_of_one_always_goes() {
        let mut batch = Batch::new(1);
        assert!(batch.is_due(handed_out(1), no_clock));
        assert!(batch.is_due(InHand { taken: 1, more: false }, no_clock));
    }

    #[test]
    fn a_full_batch_goes_when_nothing_is_in_hand() {
        let mut batch = Batch::new(32);
        assert!(batch.is_due(InHand { taken: 32, more: false }, no_clock));
        assert_eq!(batch.full_at, 32);
    }

    #[test]
    fn a_full_batch_goes_when_the_program_does_not_dispatch() {
        let mut batch = Batch::new(32);
        assert!(!batch.is_due(handed_out(40), Instant::now));
        assert!(batch.is_due(handed_out(55), no_clock), "32 more operations, 15 completions");
        batch.left(Left::Full, 55);
        batch.left(Left::WithWait, 1_000);
        assert!(batch.is_due(handed_out(1_015), no_clock), "those before the wait do not count");
    }

    #[test]
    fn a_quick_program_gathers_all_that_was_fetched() {
        let start = Instant::now();
        let mut batch = Batch::new(32);
        for turn in 1..=20 {
            assert_eq!(batch.full_at, 32 * turn);
            assert!(!batch.is_due(handed_out(32 * u64::from(turn)), || start + GROWTH_TIME * turn));
        }
    }

    #[test]
    fn a_slow_program_hands_over_each_full_batch_but_its_first() {
        let slow = GROWTH_TIME + Duration::from_nanos(1);
        let start = Instant::now();
        let mut batch = Batch::new(32);
        assert!(!batch.is_due(handed_out(32), || start), "its pace is not known yet");
        assert_eq!(batch.full_at, 64);
        for turn in 1..=5 {
            assert!(batch.is_due(handed_out(32 + 32 * u64::from(turn)), || start + slow * turn));
            batch.left(Left::Full, 32 + 32 * u64::from(turn));
            assert_eq!(batch.full_at, 32);
        }
    }

    #[test]
    fn the_time_of_a_wait_is_not_the_programs() {
        let start = Instant::now();
        let mut batch = Batch::new(32);
        assert!(!batch.is_due(handed_out(32), || start));
        batch.left(Left::WithWait, 32);
        assert_eq!(batch.full_at, 32);
        assert!(!batch.is_due(handed_out(52), || start + GROWTH_TIME * 100), "a new fetch");
    }

    #[test]
    fn fetches_that_bring_as_much_each_time_are_not_cut() {
        let start = Instant::now();
        let mut batch = Batch::new(32);
        for fetch in 0..10 {
            // Forty answers, each answered: full after 32 of them, and eight more to come.
            assert!(!batch.is_due(handed_out(40 * fetch + 32), || start), "fetch {fetch}");
            batch.left(Left::WithWait, 40 * fetch + 40);
        }
    }
}
