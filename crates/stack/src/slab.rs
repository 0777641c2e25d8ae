//! Places of fixed tables: which are free, and how often each was used.
//!
//! A table that is split in several arrays (the hot and the cold part of connections) has one
//! `Places` for all of them.
//!
//! Invariants
//! - Places are given out lowest first, then last freed first: memory that was never needed is
//!   never touched, and what was used last is used next, while it is in cache.
//! - A place's generation changes when it is freed.

use alloc::vec::Vec;

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    generation: u32,
    /// In use: `IN_USE`. Free: the next free place plus one; 0: the last.
    next: u32,
}

const IN_USE: u32 = u32::MAX;

/// The places of a table.
#[derive(Debug)]
pub(crate) struct Places {
    places: Vec<Place>,
    /// First place of the free list, plus one.
    free: u32,
    /// Places from here on were never used.
    fresh: u32,
    len: u32,
}

impl Places {
    /// Free places `0..capacity`.
    pub(crate) fn new(capacity: u32) -> Self {
        Self { places: alloc::vec![Place::default(); capacity as usize], free: 0, fresh: 0, len: 0 }
    }

    /// A free place and its generation.
    pub(crate) fn take(&mut self) -> Option<(u32, u32)> {
        let index = if self.free != 0 {
            let index = self.free - 1;
            self.free = self.places[index as usize].next;
            index
        } else if (self.fresh as usize) < self.places.len() {
            self.fresh += 1;
            self.fresh - 1
        } else {
            return None;
        };
        self.len += 1;
        let place = &mut self.places[index as usize];
        place.next = IN_USE;
        Some((index, place.generation))
    }

    /// Frees a place that is in use.
    pub(crate) fn give_back(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        debug_assert_eq!(place.next, IN_USE, "freed twice");
        place.generation = place.generation.wrapping_add(1);
        place.next = self.free;
        self.free = index + 1;
        self.len -= 1;
    }

    /// The place is in use, in that generation.
    pub(crate) fn holds(&self, index: u32, generation: u32) -> bool {
        self.places
            .get(index as usize)
            .is_some_and(|place| place.next == IN_USE && place.generation == generation)
    }

    /// The generation of a place.
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.places[index as usize].generation
    }

    /// How many are in use.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// The places in use, in ascending order. Walks all that ever were.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.fresh).filter(|index| self.places[*index as usize].next == IN_USE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_freed_is_stale_and_comes_back_first() {
        let mut places = Places::new(2);
        let first = places.take().unwrap();
        let second = places.take().unwrap();
        assert_eq!(places.take(), None);
        places.give_back(first.0);
        assert!(!places.holds(first.0, first.1));
        assert!(places.holds(second.0, second.1));
        assert!(!places.holds(9, 0));
        let again = places.take().unwrap();
        assert_eq!(again.0, first.0);
        assert_ne!(again.1, first.1);
        assert_eq!(places.generation(again.0), again.1);
        assert_eq!(places.iter().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(places.len(), 2);
    }
}
