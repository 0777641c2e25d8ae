//! Whole small files in memory, ready to send.
//!
//! One per channel: channels share nothing, so no request takes a lock. The price is that each
//! channel reads and holds a file on its own; the limits are per channel.
//!
//! Files are found by their normalised path (see `path.rs`, which also says which paths must not be
//! here). What goes when room is needed is chosen by the clock algorithm: each hit marks its entry,
//! the hand clears marks and takes the first unmarked entry, so that a hit writes one byte and no
//! list is kept.
//!
//! Pure: paths, entries and `now` in, entries out.
//!
//! Invariants
//! - `entries <= entries_max` and `bytes <= bytes_max` after every call.
//! - An entry is not handed out in a later second than it was last checked in.

use std::collections::HashMap;
use std::rc::Rc;

use super::representation::{FileStamp, Representation};
use super::response::PreparedFile;

/// Memory of an entry in addition to its bytes and its path.
const ENTRY_OVERHEAD_BYTES: usize = 512;

/// A file in memory.
#[derive(Debug)]
pub(crate) struct CachedFile {
    pub(crate) representation: Representation,
    pub(crate) prepared: PreparedFile,
}

/// What the cache knows of a path.
#[derive(Debug)]
pub(crate) enum CachedPath {
    /// Checked in this second.
    Fresh(Rc<CachedFile>),
    /// To be checked against the file: see [`Cache::confirm`].
    Stale(FileStamp),
    Absent,
}

/// The files of one channel.
#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: usize,
    entries_max: usize,
    bytes: usize,
    by_path: HashMap<Box<[u8]>, usize>,
    slots: Vec<Option<CacheSlot>>,
    vacant: Vec<usize>,
    hand: usize,
}

#[derive(Debug)]
struct CacheSlot {
    path: Box<[u8]>,
    entry: Rc<CachedFile>,
    checked_s: i64,
    marked: bool,
}

impl CacheSlot {
    fn bytes(&self) -> usize {
        self.entry.prepared.memory.len() + 2 * self.path.len() + ENTRY_OVERHEAD_BYTES
    }
}

impl Cache {
    pub(crate) fn new(bytes_max: usize, entries_max: usize) -> Self {
        Self {
            bytes_max,
            entries_max,
            bytes: 0,
            by_path: HashMap::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            hand: 0,
        }
    }

    /// The file at `path`, if it is here.
    pub(crate) fn get(&mut self, path: &[u8], now_s: i64) -> CachedPath {
        let Some(slot) = self.by_path.get(path).and_then(|&index| self.slots[index].as_mut())
        else {
            return CachedPath::Absent;
        };
        if slot.checked_s != now_s {
            return CachedPath::Stale(slot.entry.representation.stamp);
        }
        slot.marked = true;
        CachedPath::Fresh(slot.entry.clone())
    }

    /// The file at `path` is the same as when it was read. `None` if its bytes cannot be trusted
    /// all the same, because they were read too soon after a change.
    pub(crate) fn confirm(&mut self, path: &[u8], now_s: i64) -> Option<Rc<CachedFile>> {
        let slot = self.by_path.get(path).and_then(|&index| self.slots[index].as_mut())?;
        if slot.entry.representation.racy {
            return None;
        }
        slot.checked_s = now_s;
        slot.marked = true;
        Some(slot.entry.clone())
    }

    /// Takes the file at `path` in, in place of an older version, as checked at `now_s`. Does
    /// nothing if it can never fit.
    pub(crate) fn insert(&mut self, path: &[u8], entry: &Rc<CachedFile>, now_s: i64) {
        self.remove(path);
        let slot =
            CacheSlot { path: path.into(), entry: entry.clone(), checked_s: now_s, marked: false };
        let needed = slot.bytes();
        if needed > self.bytes_max || self.entries_max == 0 {
            return;
        }
        while self.bytes + needed > self.bytes_max || self.by_path.len() >= self.entries_max {
            self.evict_one();
        }
        self.bytes += needed;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.by_path.insert(slot.path.clone(), index);
        self.slots[index] = Some(slot);
    }

    /// Forgets `path`.
    pub(crate) fn remove(&mut self, path: &[u8]) {
        if let Some(index) = self.by_path.remove(path)
            && let Some(slot) = self.slots[index].take()
        {
            self.bytes -= slot.bytes();
            self.vacant.push(index);
        }
    }

    /// One round of the hand, or two at most: the first clears every mark it passes. Only called
    /// while there is an entry.
    fn evict_one(&mut self) {
        for _ in 0..2 * self.slots.len() {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[index] {
                Some(slot) if slot.marked => slot.marked = false,
                Some(slot) => {
                    let path = slot.path.clone();
                    self.remove(&path);
                    return;
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::representation::tests::representation;
    use super::*;
    use proptest::prelude::*;

    fn entry(len: usize) -> Rc<CachedFile> {
        let representation = representation(len as u64, 1_000_000);
        let prepared = PreparedFile::new(&representation, &vec![b'x'; len]);
        Rc::new(CachedFile { representation, prepared })
    }

    fn holds(cache: &mut Cache, path: &str, now_s: i64) -> bool {
        matches!(cache.get(path.as_bytes(), now_s), CachedPath::Fresh(_))
    }

    #[test]
    fn an_entry_is_fresh_for_the_second_it_was_checked_in() {
        let mut cache = Cache::new(1 << 20, 8);
        cache.insert(b"/a", &entry(10), 50);
        assert!(holds(&mut cache, "/a", 50));
        assert!(matches!(cache.get(b"/a", 51), CachedPath::Stale(stamp) if stamp.len == 10));
        assert!(cache.confirm(b"/a", 51).is_some());
        assert!(holds(&mut cache, "/a", 51));
        assert!(matches!(cache.get(b"/a", 50), CachedPath::Stale(_)), "a clock may go back");
        assert!(cache.confirm(b"/b", 51).is_none());
    }

    #[test]
    fn bytes_read_too_soon_after_a_change_are_not_confirmed() {
        let mut cache = Cache::new(1 << 20, 8);
        let stamp = entry(1).representation.stamp;
        let young = Representation::new(stamp, "image/png", stamp.modified_s);
        let prepared = PreparedFile::new(&young, b"x");
        cache.insert(b"/a", &Rc::new(CachedFile { representation: young, prepared }), 1);
        assert!(holds(&mut cache, "/a", 1));
        assert!(cache.confirm(b"/a", 2).is_none());
    }

    #[test]
    fn used_entry_survives_eviction() {
        let mut cache = Cache::new(1 << 20, 3);
        for path in [b"/a", b"/b", b"/c"] {
            cache.insert(path, &entry(1), 1);
        }
        assert!(holds(&mut cache, "/a", 1) && holds(&mut cache, "/c", 1));
        cache.insert(b"/d", &entry(1), 1);
        assert!(!holds(&mut cache, "/b", 1), "the only one that was not requested");
        assert!(holds(&mut cache, "/a", 1) && holds(&mut cache, "/c", 1));
        assert!(holds(&mut cache, "/d", 1));
    }

    #[test]
    fn oversized_file_is_not_cached() {
        let mut cache = Cache::new(2000, 8);
        cache.insert(b"/small", &entry(10), 1);
        cache.insert(b"/large", &entry(3000), 1);
        assert!(holds(&mut cache, "/small", 1) && !holds(&mut cache, "/large", 1));
        let mut none = Cache::new(2000, 0);
        none.insert(b"/small", &entry(10), 1);
        assert!(!holds(&mut none, "/small", 1));
    }

    proptest! {
        /// The limits hold, the sum is right, and what is handed out is what was put in.
        #[test]
        fn the_cache_agrees_with_a_map(
            steps in proptest::collection::vec((0_u8..4, 0_u8..12, 1_usize..600), 1..200),
        ) {
            let mut cache = Cache::new(6000, 6);
            let mut model: HashMap<Vec<u8>, usize> = HashMap::new();
            for (kind, name, len) in steps {
                let path = format!("/{name}").into_bytes();
                match kind {
                    0 => cache.remove(&path),
                    1 | 2 => cache.insert(&path, &entry(len), 1),
                    _ => {}
                }
                match kind {
                    0 => { model.remove(&path); }
                    1 | 2 => { model.insert(path.clone(), len); }
                    _ => {}
                }
                if let CachedPath::Fresh(found) = cache.get(&path, 1) {
                    prop_assert_eq!(Some(&found.prepared.body_len()), model.get(&path));
                }
                let sum: usize = cache.slots.iter().flatten().map(CacheSlot::bytes).sum();
                prop_assert_eq!(sum, cache.bytes);
                prop_assert!(cache.bytes <= 6000 && cache.by_path.len() <= 6);
                prop_assert_eq!(cache.slots.len(), cache.by_path.len() + cache.vacant.len());
            }
        }
    }
}
