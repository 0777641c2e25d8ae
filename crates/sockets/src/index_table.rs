//! A table of values by index, with room that is reserved before it is used.
//!
//! Like a slab: an index that is free again is the next one taken, so that the table stays as large
//! as the most values that it ever held.
//!
//! Invariants
//! - An index below the table's end is occupied, or on the list of free ones.
//! - [`IndexTable::insert`] allocates only where the caller has not reserved.

use std::ops::{Index, IndexMut};

use crate::error::Error;
use crate::limits::NIL;

pub(crate) struct IndexTable<T> {
    entries: Vec<TableEntry<T>>,
    /// The index that was freed last; `NIL`: none is free.
    free: u32,
    len: usize,
}

/// A place in a table; one that is free costs no room beside the value's.
pub(crate) enum TableEntry<T> {
    Occupied(T),
    Free { next: u32 },
}

impl<T> Default for IndexTable<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: NIL, len: 0 }
    }
}

impl<T> IndexTable<T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// All indices are below this one.
    pub(crate) const fn end(&self) -> usize {
        self.entries.len()
    }

    /// Makes room for `count` more values.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn reserve(&mut self, count: usize) -> Result<(), Error> {
        let free = self.entries.len() - self.len;
        let missing = count.saturating_sub(free);
        self.entries.try_reserve(missing).map_err(|_| Error::NoMemory)
    }

    /// The index of the next value.
    pub(crate) const fn next(&self) -> u32 {
        if self.free == NIL { self.entries.len() as u32 } else { self.free }
    }

    /// Adds a value, for which there is room. Returns its index.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let index = self.next();
        self.len += 1;
        match self.entries.get_mut(index as usize) {
            Some(entry) => {
                if let TableEntry::Free { next } = *entry {
                    self.free = next;
                }
                *entry = TableEntry::Occupied(value);
            }
            None => {
                debug_assert!(self.entries.len() < self.entries.capacity(), "room is reserved");
                self.entries.push(TableEntry::Occupied(value));
            }
        }
        index
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        match self.entries.get(index as usize) {
            Some(TableEntry::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.entries.get_mut(index as usize) {
            Some(TableEntry::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    /// Takes a value out, if there is one at the index.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        if matches!(entry, TableEntry::Free { .. }) {
            return None;
        }
        let free = TableEntry::Free { next: self.free };
        let TableEntry::Occupied(value) = std::mem::replace(entry, free) else { return None };
        self.free = index;
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let entries = (0_u32..).zip(&self.entries);
        entries.filter_map(|(index, entry)| match entry {
            TableEntry::Occupied(value) => Some((index, value)),
            TableEntry::Free { .. } => None,
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let entries = (0_u32..).zip(&mut self.entries);
        entries.filter_map(|(index, entry)| match entry {
            TableEntry::Occupied(value) => Some((index, value)),
            TableEntry::Free { .. } => None,
        })
    }
}

impl<T> Index<u32> for IndexTable<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        match &self.entries[index as usize] {
            TableEntry::Occupied(value) => value,
            TableEntry::Free { .. } => panic!("no value at index {index}"),
        }
    }
}

impl<T> IndexMut<u32> for IndexTable<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        match &mut self.entries[index as usize] {
            TableEntry::Occupied(value) => value,
            TableEntry::Free { .. } => panic!("no value at index {index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_index_is_reused_without_growth() {
        let mut table = IndexTable::default();
        table.reserve(3).unwrap();
        assert_eq!([7, 8, 9].map(|value| table.insert(value)), [0, 1, 2]);
        assert_eq!((table.remove(1), table.remove(1), table.remove(9)), (Some(8), None, None));
        assert_eq!((table.get(1), table.len(), table.end(), table.next()), (None, 2, 3, 1));
        table.reserve(1).unwrap();
        assert_eq!((table.insert(5), table[1], table.len()), (1, 5, 3));
        assert!(table.iter().eq([(0, &7), (1, &5), (2, &9)]));
    }

    #[test]
    fn reservation_beyond_memory_is_refused() {
        let mut table = IndexTable::<[u64; 8]>::default();
        assert_eq!(table.reserve(usize::MAX / 64), Err(Error::NoMemory));
        assert_eq!(table.len(), 0);
    }
}
