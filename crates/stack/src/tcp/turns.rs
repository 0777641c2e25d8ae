//! Who waits to be looked at, in the order of asking, each once.
//!
//! Invariants
//! - An entry is in the queue once at most: `state` says so, and the queue never grows.
//! - Who no longer waits is skipped when its turn comes, or waits again in its old turn.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Out,
    Waits,
    /// In the queue, and to be skipped.
    Gone,
}

/// A queue of entries.
#[derive(Debug)]
pub(crate) struct Turns {
    queue: VecDeque<u32>,
    state: Vec<State>,
}

impl Turns {
    /// An empty queue for entries below `entries`.
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            queue: VecDeque::with_capacity(entries as usize),
            state: alloc::vec![State::Out; entries as usize],
        }
    }

    /// Bytes of each entry.
    pub(crate) const ENTRY_BYTES: usize = size_of::<u32>() + size_of::<State>();

    /// Puts `entry` at the end, unless it has its turn already.
    #[inline(always)]
    pub(crate) fn put(&mut self, entry: u32) {
        let state = &mut self.state[entry as usize];
        if *state == State::Out {
            self.queue.push_back(entry);
        }
        *state = State::Waits;
    }

    /// Takes `entry` out, if it waits.
    #[inline(always)]
    pub(crate) fn take_off(&mut self, entry: u32) {
        let state = &mut self.state[entry as usize];
        if *state == State::Waits {
            *state = State::Gone;
        }
    }

    /// Takes the first that waits.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let entry = self.queue.pop_front()?;
        let state = core::mem::replace(&mut self.state[entry as usize], State::Out);
        if state == State::Waits { Some(entry) } else { self.pop_after_gone() }
    }

    #[inline(never)]
    fn pop_after_gone(&mut self) -> Option<u32> {
        loop {
            let entry = self.queue.pop_front()?;
            let state = core::mem::replace(&mut self.state[entry as usize], State::Out);
            if state == State::Waits {
                return Some(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_in_order_and_once() {
        let mut turns = Turns::new(4);
        let room = turns.queue.capacity();
        for _ in 0..100 {
            for entry in [2, 0, 2, 3, 1, 3] {
                turns.put(entry);
            }
            turns.take_off(0);
            turns.take_off(3);
            turns.take_off(3);
            turns.put(3);
            assert_eq!([turns.pop(), turns.pop(), turns.pop()], [Some(2), Some(3), Some(1)]);
            assert_eq!(turns.pop(), None);
            turns.take_off(1);
            turns.put(1);
            assert_eq!([turns.pop(), turns.pop()], [Some(1), None]);
        }
        assert_eq!(turns.queue.capacity(), room);
    }
}
