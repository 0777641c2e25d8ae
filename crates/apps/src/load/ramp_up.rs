//! Ramp-up of connections: limits concurrent handshakes, and delays retries exponentially.
//!
//! Pure: slots are numbers, times are nanoseconds, both passed in.
//!
//! Invariants
//! - At most `in_flight_max` handshakes are under way.
//! - A slot is waiting at most once. After a failure it waits twice as long as the time before,
//!   from [`BACKOFF_NS_MIN`] to [`BACKOFF_NS_MAX`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How long the first failure keeps a connection from being tried again.
pub(crate) const BACKOFF_NS_MIN: u64 = 1_000_000;
/// The longest wait between two tries.
pub(crate) const BACKOFF_NS_MAX: u64 = 1_000_000_000;

/// The connections that are wanted but not open.
#[derive(Debug)]
pub(crate) struct RampUp {
    in_flight: u32,
    in_flight_max: u32,
    now: VecDeque<u32>,
    later: BinaryHeap<Reverse<(u64, u32)>>,
    /// Failures in a row of each slot.
    failures: Vec<u8>,
    /// Slots whose first attempt has not ended.
    untried: u32,
}

impl RampUp {
    /// `slots` connections, all wanted now.
    pub(crate) fn new(slots: u32, in_flight_max: u32) -> Self {
        Self {
            in_flight: 0,
            in_flight_max,
            now: (0..slots).collect(),
            later: BinaryHeap::new(),
            failures: vec![0; slots as usize],
            untried: slots,
        }
    }

    /// The next slot to open, if one may be opened now. The caller reports how it went.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<u32> {
        while let Some(&Reverse((due_ns, slot))) = self.later.peek()
            && due_ns <= now_ns
        {
            self.later.pop();
            self.now.push_back(slot);
        }
        if self.in_flight >= self.in_flight_max {
            return None;
        }
        let slot = self.now.pop_front()?;
        self.in_flight += 1;
        Some(slot)
    }

    /// The attempt succeeded.
    pub(crate) fn opened(&mut self, slot: u32, first: bool) {
        self.ended(first);
        if let Some(failures) = self.failures.get_mut(slot as usize) {
            *failures = 0;
        }
    }

    /// The attempt failed; the slot is wanted again after a while.
    pub(crate) fn failed(&mut self, slot: u32, first: bool, now_ns: u64) {
        self.ended(first);
        self.back_off(slot, now_ns);
    }

    /// An open connection broke; its slot is wanted again after a while.
    pub(crate) fn broke(&mut self, slot: u32, now_ns: u64) {
        self.back_off(slot, now_ns);
    }

    /// A connection was closed as planned; its slot is wanted again.
    pub(crate) fn again(&mut self, slot: u32) {
        self.now.push_back(slot);
    }

    /// Whether every slot was tried at least once.
    pub(crate) const fn all_tried(&self) -> bool {
        self.untried == 0
    }

    fn ended(&mut self, first: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.untried = self.untried.saturating_sub(u32::from(first));
    }

    fn back_off(&mut self, slot: u32, now_ns: u64) {
        let Some(failures) = self.failures.get_mut(slot as usize) else { return };
        let wait_ns = (BACKOFF_NS_MIN << (*failures).min(20)).min(BACKOFF_NS_MAX);
        *failures = failures.saturating_add(1);
        self.later.push(Reverse((now_ns.saturating_add(wait_ns), slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_handshakes_are_under_way() {
        let mut ramp_up = RampUp::new(5, 2);
        assert_eq!((ramp_up.next(0), ramp_up.next(0), ramp_up.next(0)), (Some(0), Some(1), None));
        ramp_up.opened(0, true);
        assert_eq!((ramp_up.next(0), ramp_up.next(0)), (Some(2), None));
    }

    #[test]
    fn failures_are_tried_again_more_and_more_slowly() {
        let mut ramp_up = RampUp::new(1, 1);
        let (mut now_ns, mut waits) = (0, Vec::new());
        for attempt in 0..14 {
            assert_eq!(ramp_up.next(now_ns), Some(0));
            ramp_up.failed(0, attempt == 0, now_ns);
            let failed_at_ns = now_ns;
            while ramp_up.next(now_ns).is_none() {
                now_ns += BACKOFF_NS_MIN;
            }
            ramp_up.ended(false);
            ramp_up.again(0);
            waits.push((now_ns - failed_at_ns) / BACKOFF_NS_MIN);
        }
        assert_eq!(waits[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(waits[10..], [1_000; 4]);
    }

    #[test]
    fn success_forgets_earlier_failures() {
        let mut ramp_up = RampUp::new(1, 1);
        ramp_up.next(0);
        ramp_up.failed(0, true, 0);
        assert_eq!(ramp_up.next(BACKOFF_NS_MIN), Some(0));
        ramp_up.opened(0, false);
        ramp_up.broke(0, 0);
        assert_eq!(ramp_up.next(BACKOFF_NS_MIN), Some(0));
    }

    #[test]
    fn the_first_round_ends_when_every_slot_was_tried() {
        let mut ramp_up = RampUp::new(2, 2);
        ramp_up.next(0);
        ramp_up.next(0);
        ramp_up.failed(0, true, 0);
        assert!(!ramp_up.all_tried());
        ramp_up.opened(1, true);
        assert!(ramp_up.all_tried());
    }
}
