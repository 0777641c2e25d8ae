//! Deadlines of a channel, ordered.
//!
//! Pure: `now` is an argument. A channel has few timers (connect time-outs, the program's own), so
//! an ordered map is right: O(log n) to set and to cancel, and a cancelled one leaves nothing
//! behind.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

/// What a deadline is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// The program's own timer.
    Timer,
    /// A connection attempt has taken too long.
    Connect,
    /// Try again to accept after descriptors ran out.
    AcceptAgain,
    /// A listener has drained long enough after it left its group.
    LeaveGrace,
}

/// Names a deadline, for cancelling it.
pub(crate) type TimerKey = (Instant, u32);

/// The deadlines that are set.
#[derive(Default)]
pub(crate) struct Timers {
    deadlines: BTreeMap<TimerKey, (u32, Due)>,
    sequence: u32,
}

impl Timers {
    /// Sets a deadline for a slot.
    pub(crate) fn set(&mut self, at: Instant, slot: u32, due: Due) -> TimerKey {
        loop {
            // The sequence keeps equal instants apart, in the order in which they were set.
            self.sequence = self.sequence.wrapping_add(1);
            let key = (at, self.sequence);
            if let Entry::Vacant(vacant) = self.deadlines.entry(key) {
                vacant.insert((slot, due));
                return key;
            }
        }
    }

    /// Forgets a deadline; nothing happens if it has passed already.
    pub(crate) fn cancel(&mut self, key: TimerKey) {
        self.deadlines.remove(&key);
    }

    /// The next deadline that has passed.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<(u32, Due)> {
        let entry = self.deadlines.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// How long until the next deadline; zero if it has passed, `None` if there is none.
    pub(crate) fn until_next(&self, now: Instant) -> Option<Duration> {
        let ((at, _), _) = self.deadlines.first_key_value()?;
        Some(at.saturating_duration_since(now))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_expire_in_order_and_cancelled_ones_never() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::default();
        timers.set(at(20), 2, Due::Timer);
        timers.set(at(10), 1, Due::Connect);
        let gone = timers.set(at(15), 9, Due::Timer);
        timers.set(at(20), 3, Due::Timer);
        timers.cancel(gone);
        assert_eq!(timers.until_next(start), Some(Duration::from_millis(10)));
        assert_eq!(timers.expire(at(9)), None);
        assert_eq!(timers.expire(at(20)), Some((1, Due::Connect)));
        assert_eq!(timers.expire(at(20)), Some((2, Due::Timer)));
        assert_eq!(timers.expire(at(20)), Some((3, Due::Timer)));
        assert_eq!(timers.expire(at(99)), None);
        assert!(timers.is_empty() && timers.until_next(start).is_none());
    }
}
