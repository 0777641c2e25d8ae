//! Connections of a listener by their id: a hash map with a cheap hash.
//!
//! Ids are given by the stack, one after another: no peer chooses them, so a multiplication spreads
//! them well enough. Nothing allocates or moves while their number stays the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The golden ratio of 64 bits, as in Fibonacci hashing.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hash of an id.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(FACTOR);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // A product is mixed best in its upper half, and the map looks at both ends.
        self.0 ^ (self.0 >> 32)
    }
}

/// Entries by connection id, in no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectionMap<T> {
    entries: HashMap<u64, T, BuildHasherDefault<IdHasher>>,
}

impl<T> Default for ConnectionMap<T> {
    fn default() -> Self {
        Self { entries: HashMap::default() }
    }
}

/// Equal maps have equal hashes, whatever the order of their entries.
impl<T: Hash> Hash for ConnectionMap<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(id, _)| **id);
        entries.hash(state);
    }
}

impl<T> ConnectionMap<T> {
    #[inline]
    pub(super) fn get(&self, id: u64) -> Option<&T> {
        self.entries.get(&id)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.entries.get_mut(&id)
    }

    /// Adds or replaces an entry.
    #[inline]
    pub(super) fn insert(&mut self, id: u64, entry: T) {
        self.entries.insert(id, entry);
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        self.entries.remove(&id)
    }

    /// Removes an entry if `is_to_go` returns `true` for it.
    #[inline]
    pub(super) fn remove_if(&mut self, id: u64, is_to_go: impl FnOnce(&T) -> bool) -> Option<T> {
        match self.entries.entry(id) {
            Entry::Occupied(entry) if is_to_go(entry.get()) => Some(entry.remove()),
            _ => None,
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut()
    }

    /// Keeps only the entries for which `keeps` returns `true`.
    pub(super) fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        self.entries.retain(|_, entry| keeps(entry));
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::DefaultHasher;

    use super::*;

    fn hash_of(value: &impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn map_hash_does_not_depend_on_the_order_of_entries() {
        let (mut one, mut other) = (ConnectionMap::default(), ConnectionMap::default());
        for id in 0..100_u64 {
            one.insert(id, id);
            other.insert(99 - id, 99 - id);
        }
        assert_eq!((hash_of(&one), &one), (hash_of(&other), &other));
        one.remove(5);
        assert_ne!(hash_of(&one), hash_of(&other));
    }

    /// As the stack names them: an index, and above it a generation.
    #[test]
    fn hash_spreads_indexes_and_generations() {
        let hash = |id: u64| {
            let mut hasher = IdHasher::default();
            hasher.write_u64(id);
            hasher.finish()
        };
        for shift in [0, 16, 32] {
            let ids = (0..1_024_u64).map(|id| id << shift);
            let low: BTreeSet<u64> = ids.clone().map(|id| hash(id) % 1_024).collect();
            let high: BTreeSet<u64> = ids.map(|id| hash(id) >> 57).collect();
            assert!(low.len() > 500 && high.len() > 100, "{shift}: {} {}", low.len(), high.len());
        }
    }
}
