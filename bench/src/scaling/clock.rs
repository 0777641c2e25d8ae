//! Virtual clock of the simulations: events in the order of their times.
//!
//! Pure: events in, events out.
//!
//! Invariant: events of one time come out in the order in which they were scheduled, so that a
//! simulation has one outcome.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// Picoseconds, so that sums are exact.
pub(crate) type Time = u64;

pub(crate) const PS_PER_NS: f64 = 1e3;
pub(crate) const PS_PER_SECOND: f64 = 1e12;

/// Converts nanoseconds; negative ones are 0.
pub(crate) fn picoseconds(ns: f64) -> Time {
    (ns.max(0.0) * PS_PER_NS).round() as Time
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The time, and what happens later.
#[derive(Debug)]
pub(crate) struct VirtualClock<E> {
    now: Time,
    scheduled: u64,
    events: BinaryHeap<Reverse<Scheduled<E>>>,
}

impl<E> VirtualClock<E> {
    pub(crate) const fn new() -> Self {
        Self { now: 0, scheduled: 0, events: BinaryHeap::new() }
    }

    pub(crate) const fn now(&self) -> Time {
        self.now
    }

    /// How many events were scheduled.
    pub(crate) const fn scheduled(&self) -> u64 {
        self.scheduled
    }

    pub(crate) fn schedule(&mut self, at: Time, event: E) {
        self.scheduled += 1;
        self.events.push(Reverse(Scheduled { at, order: self.scheduled, event }));
    }

    /// Advances to the next event and takes it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let Reverse(next) = self.events.pop()?;
        self.now = next.at;
        Some(next.event)
    }
}

#[cfg(test)]
mod tests {
    use super::VirtualClock;

    #[test]
    fn events_come_by_time_then_in_order() {
        let mut clock = VirtualClock::new();
        for (at, event) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd')] {
            clock.schedule(at, event);
        }
        let mut order = Vec::new();
        while let Some(event) = clock.next() {
            order.push((clock.now(), event));
        }
        assert_eq!(order, [(3, 'b'), (3, 'd'), (5, 'a'), (5, 'c')]);
    }
}
