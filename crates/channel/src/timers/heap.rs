//! Deadlines in a binary heap, removable by key, in memory that is reserved beforehand.
//!
//! Invariants
//! - An entry is due no later than its children at `2i + 1` and `2i + 2`; of those due at the same
//!   moment the one set first counts as earlier.
//! - `places[entry.number]` is the entry's place; the numbers without an entry are chained.

use std::time::Instant;

use super::Due;

/// The end of the chain of free numbers.
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct DeadlineEntry {
    at: Instant,
    order: u64,
    number: u32,
    slot: u32,
    due: Due,
}

impl DeadlineEntry {
    fn is_before(&self, other: &Self) -> bool {
        (self.at, self.order) < (other.at, other.order)
    }
}

/// Deadlines in order of time.
pub(super) struct DeadlineHeap {
    entries: Vec<DeadlineEntry>,
    /// By number: the place of its entry, or the next free number.
    places: Vec<u32>,
    first_free: u32,
    order: u64,
}

impl Default for DeadlineHeap {
    fn default() -> Self {
        Self { entries: Vec::new(), places: Vec::new(), first_free: NIL, order: 0 }
    }
}

impl DeadlineHeap {
    /// Makes room for one more. `false`: there is no memory for it.
    pub(super) fn reserve_one(&mut self) -> bool {
        self.entries.try_reserve(1).is_ok()
            && (self.first_free != NIL || self.places.try_reserve(1).is_ok())
    }

    /// Adds a deadline; its number until it is removed.
    pub(super) fn insert(&mut self, at: Instant, slot: u32, due: Due) -> u32 {
        let place = self.entries.len();
        let number = match self.first_free {
            NIL => {
                self.places.push(place as u32);
                self.places.len() as u32 - 1
            }
            number => {
                self.first_free = self.places[number as usize];
                number
            }
        };
        self.order += 1;
        self.entries.push(DeadlineEntry { at, order: self.order, number, slot, due });
        self.rise(place);
        number
    }

    /// Removes the deadline of this number, if it is the one at that time.
    pub(super) fn remove(&mut self, at: Instant, number: u32) {
        let Some(&place) = self.places.get(number as usize) else { return };
        let is_it = |entry: &DeadlineEntry| entry.number == number && entry.at == at;
        if self.entries.get(place as usize).is_some_and(is_it) {
            self.take_out(place as usize);
        }
    }

    /// The earliest deadline: when, and for what.
    pub(super) fn first(&self) -> Option<(Instant, u32, Due)> {
        self.entries.first().map(|entry| (entry.at, entry.slot, entry.due))
    }

    /// Removes the earliest deadline.
    pub(super) fn remove_first(&mut self) {
        if !self.entries.is_empty() {
            self.take_out(0);
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    fn take_out(&mut self, place: usize) {
        let gone = self.entries.swap_remove(place);
        self.places[gone.number as usize] = self.first_free;
        self.first_free = gone.number;
        if place < self.entries.len() {
            // The one that came here from the end belongs above or below.
            self.rise(place);
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.entries[place].is_before(&self.entries[parent]) {
                break;
            }
            self.swap(place, parent);
            place = parent;
        }
        self.note(place);
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.entries.len());
            let first = children.reduce(|one, other| {
                if self.entries[other].is_before(&self.entries[one]) { other } else { one }
            });
            match first {
                Some(child) if self.entries[child].is_before(&self.entries[place]) => {
                    self.swap(place, child);
                    place = child;
                }
                _ => break,
            }
        }
        self.note(place);
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.entries.swap(one, other);
        self.note(one);
        self.note(other);
    }

    fn note(&mut self, place: usize) {
        self.places[self.entries[place].number as usize] = place as u32;
    }
}
