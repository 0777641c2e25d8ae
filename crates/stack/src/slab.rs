//! Places of fixed tables: which are free, and how often each was used; and records that few of a
//! table's things have at a time.
//!
//! A table that is split in several arrays (the hot and the cold part of connections) has one
//! `Places` for all of them.
//!
//! Invariants
//! - Places are given out lowest first, then last freed first: memory that was never needed is
//!   never touched, and what was used last is used next, while it is in cache.
//! - A place's generation changes when it is freed.
//! - A [`Spares`] has one record for each thing that may want one, so it never runs out; memory is
//!   touched when so many are wanted at once for the first time.

use alloc::vec::Vec;
use core::num::NonZeroU32;

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
    /// Bytes of each place.
    pub(crate) const ENTRY_BYTES: usize = size_of::<Place>();

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

    /// Whether a place is in use.
    pub(crate) fn is_in_use(&self, index: u32) -> bool {
        self.places.get(index as usize).is_some_and(|place| place.next == IN_USE)
    }

    /// The generation of a place.
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.places[index as usize].generation
    }

    /// How many are in use.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Memory set aside, and the part of it that was touched, in bytes.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        let bytes = |places| places * size_of::<Place>();
        (bytes(self.places.len()), bytes(self.fresh as usize))
    }

    /// The places in use, in ascending order. Walks all that ever were.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.fresh).filter(|index| self.places[*index as usize].next == IN_USE)
    }
}

/// Records that a thing takes when it needs one, and gives back when that says nothing any more.
#[derive(Debug)]
pub(crate) struct Spares<T> {
    records: Vec<T>,
    /// Unused records.
    free: Vec<u32>,
    capacity: u32,
}

/// Which record a thing has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Spare(Option<NonZeroU32>);

const _: () = assert!(size_of::<Spare>() == 4);

impl Spare {
    /// It has none.
    pub(crate) const NONE: Self = Self(None);

    /// It has one.
    pub(crate) const fn is_some(self) -> bool {
        self.0.is_some()
    }

    fn index(self) -> Option<usize> {
        self.0.map(|number| number.get() as usize - 1)
    }
}

impl<T> Spares<T> {
    /// Records for `capacity` things, one each.
    pub(crate) fn new(capacity: u32) -> Self {
        let room = capacity as usize;
        Self { records: Vec::with_capacity(room), free: Vec::with_capacity(room), capacity }
    }

    /// What a thing has; `None`: nothing.
    #[inline]
    pub(crate) fn get(&self, spare: Spare) -> Option<&T> {
        self.records.get(spare.index()?)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, spare: Spare) -> Option<&mut T> {
        self.records.get_mut(spare.index()?)
    }

    /// What a thing has from now on: its record, or a new one that says what `new` does.
    pub(crate) fn get_or_take(&mut self, spare: &mut Spare, new: impl FnOnce() -> T) -> &mut T {
        let index = match spare.index() {
            Some(index) => index,
            None => self.take(new()),
        };
        *spare = Spare(NonZeroU32::new(index as u32 + 1));
        &mut self.records[index]
    }

    fn take(&mut self, record: T) -> usize {
        if let Some(index) = self.free.pop() {
            self.records[index as usize] = record;
            return index as usize;
        }
        debug_assert!(self.records.len() < self.capacity as usize, "there is one for each thing");
        self.records.push(record);
        self.records.len() - 1
    }

    /// The thing has nothing more to say.
    pub(crate) fn give_back(&mut self, spare: &mut Spare) {
        if let Some(index) = core::mem::take(spare).index() {
            self.free.push(index as u32);
        }
    }

    /// How many things have one.
    pub(crate) const fn len(&self) -> u32 {
        (self.records.len() - self.free.len()) as u32
    }

    /// Memory set aside, and the part of it that was touched, in bytes.
    pub(crate) const fn memory_bytes(&self) -> (usize, usize) {
        let each = size_of::<T>() + size_of::<u32>();
        (self.capacity as usize * each, self.records.len() * each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_spare_for_every_thing_and_none_for_those_that_need_none() {
        let mut spares = Spares::<u32>::new(2);
        let mut things = [Spare::NONE; 2];
        assert_eq!(spares.get(things[0]), None);
        *spares.get_or_take(&mut things[0], || 7) += 1;
        *spares.get_or_take(&mut things[1], || 9) += 1;
        assert_eq!((spares.get(things[0]), spares.get(things[1])), (Some(&8), Some(&10)));
        assert_eq!(*spares.get_or_take(&mut things[0], || 0), 8, "it has one already");
        spares.give_back(&mut things[0]);
        spares.give_back(&mut things[0]);
        assert_eq!((things[0], spares.len()), (Spare::NONE, 1));
        assert_eq!(*spares.get_or_take(&mut things[0], || 5), 5, "what was there before is gone");
        assert_eq!(spares.len(), 2);
        let each = 2 * size_of::<u32>();
        assert_eq!(spares.memory_bytes(), (2 * each, 2 * each));
    }

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
