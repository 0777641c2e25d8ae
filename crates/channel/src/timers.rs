//! Deadlines of a channel, ordered.
//!
//! Pure: `now` is an argument. Timers of the program's own lie in a heap: O(log n) to set and to
//! cancel, and a cancelled one leaves nothing behind.
//!
//! Connect time-outs are as many as connections, nearly all of them cancelled, and set in the order
//! in which they are due as long as the program uses one time-out. They wait in a queue: a place at
//! its end to set one, and an empty place to cancel it.
//!
//! Invariants
//! - The queue is in order of time, and its front is not empty.
//! - At most [`limits::CONNECT_DEADLINES_MAX`] places are queued; where there are as many, the next
//!   deadline goes to the heap.
//! - A deadline needs no memory after [`Timers::reserve_one`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::limits;

mod heap;

use heap::DeadlineHeap;

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
    deadlines: DeadlineHeap,
    /// Connect time-outs, oldest first; those that were cancelled have no slot.
    connects: VecDeque<(Instant, Option<u32>)>,
    /// The number of the oldest.
    first_connect: u32,
}

/// Set in the second half of a key whose deadline was queued; the rest of it is its number.
const QUEUED: u32 = 1 << 31;

impl Timers {
    /// Makes room for one deadline more. `false`: there is no memory for it.
    #[inline]
    pub(crate) fn reserve_one(&mut self) -> bool {
        self.connects.try_reserve(1).is_ok() && self.deadlines.reserve_one()
    }

    /// Sets a deadline for a slot.
    #[inline]
    pub(crate) fn set(&mut self, at: Instant, slot: u32, due: Due) -> TimerKey {
        let is_queued = due == Due::Connect
            && self.connects.len() < limits::CONNECT_DEADLINES_MAX
            && self.connects.back().is_none_or(|(last, _)| *last <= at);
        if !is_queued {
            return (at, self.deadlines.insert(at, slot, due));
        }
        let number = self.first_connect.wrapping_add(self.connects.len() as u32);
        self.connects.push_back((at, Some(slot)));
        (at, number | QUEUED)
    }

    /// Takes cancelled deadlines off the front.
    #[inline]
    fn trim(&mut self) {
        while let Some((_, None)) = self.connects.front() {
            self.remove_front();
        }
    }

    fn remove_front(&mut self) {
        self.connects.pop_front();
        self.first_connect = self.first_connect.wrapping_add(1) & !QUEUED;
    }

    /// Forgets a deadline that has not passed.
    #[inline]
    pub(crate) fn cancel(&mut self, key: TimerKey) {
        if key.1 & QUEUED == 0 {
            return self.deadlines.remove(key.0, key.1);
        }
        let index = key.1.wrapping_sub(self.first_connect) & !QUEUED;
        if let Some((at, slot)) = self.connects.get_mut(index as usize)
            && *at == key.0
        {
            *slot = None;
            self.trim();
        }
    }

    /// The next deadline that has passed.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<(u32, Due)> {
        let queued = self.connects.front().copied();
        let other = self.deadlines.first();
        if let Some((at, Some(slot))) = queued
            && other.is_none_or(|(other, ..)| at < other)
        {
            if at > now {
                return None;
            }
            self.remove_front();
            self.trim();
            return Some((slot, Due::Connect));
        }
        let (_, slot, due) = other.filter(|(at, ..)| *at <= now)?;
        self.deadlines.remove_first();
        Some((slot, due))
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        let queued = self.connects.front().map(|(at, _)| *at);
        let other = self.deadlines.first().map(|(at, ..)| at);
        [queued, other].into_iter().flatten().min()
    }

    /// How long until the next deadline; zero if it has passed, `None` if there is none.
    pub(crate) fn until_next(&self, now: Instant) -> Option<Duration> {
        Some(self.next()?.saturating_duration_since(now))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Deadlines that are set, and cancelled ones that wait in the queue.
    pub(crate) fn len(&self) -> usize {
        self.deadlines.len() + self.connects.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    /// What the queue and the heap do together is what an ordered map would do alone.
    #[test]
    fn queued_deadlines_are_as_good_as_ordered_ones() {
        let start = Instant::now();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let (mut timers, mut oracle) = (Timers::default(), BTreeMap::new());
        let mut keys = Vec::new();
        for turn in 0..60_000_u32 {
            let now = start + Duration::from_micros(u64::from(turn));
            match below(8) {
                0 if !keys.is_empty() => {
                    let place = below(keys.len() as u64) as usize;
                    let (key, order) = keys.swap_remove(place);
                    timers.cancel(key);
                    oracle.remove(&order);
                }
                1 => {
                    let due = timers.expire(now).map(|(slot, _)| slot);
                    let expected =
                        oracle.first_key_value().filter(|((at, _), _)| *at <= now).map(|(_, &s)| s);
                    // Of two that are due at the same moment either may come first.
                    assert_eq!(due.is_some(), expected.is_some());
                    if let Some(due) = due {
                        oracle.retain(|_, slot| *slot != due);
                    }
                }
                2..5 => {
                    let (after, kind) = match below(10) {
                        0 => (below(500_000), Due::Timer),
                        1 => (below(500_000), Due::Connect),
                        _ => (300_000, Due::Connect),
                    };
                    let at = now + Duration::from_micros(after);
                    keys.push((timers.set(at, turn, kind), (at, turn)));
                    oracle.insert((at, turn), turn);
                }
                _ => {}
            }
            let next = oracle.first_key_value().map(|((at, _), _)| at.duration_since(start));
            let until = timers.until_next(start);
            assert_eq!((until, timers.is_empty()), (next, oracle.is_empty()));
            assert!(timers.connects.len() <= limits::CONNECT_DEADLINES_MAX);
        }
        assert!(oracle.len() > limits::CONNECT_DEADLINES_MAX, "some had to go to the heap");
    }
}
