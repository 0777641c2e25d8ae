//! Lists of entries that wait for something, each entry on one of them at most.
//!
//! mTCP keeps what a connection wants to send in three lists: control, ACK and data [mTCP 3.2.3].
//! An entry moves between them in constant time, and each list is a queue: who sent goes to its
//! end.
//!
//! Invariants
//! - `on` says which list an entry is on; a list holds exactly the entries that say so.
//! - Links are stored plus one, so that zeroed memory is a set of empty lists.

use alloc::vec::Vec;

#[derive(Debug, Clone, Copy, Default)]
struct Link {
    next: u32,
    previous: u32,
}

/// `N` lists over one space of entries.
#[derive(Debug)]
pub(crate) struct Lists<const N: usize> {
    links: Vec<Link>,
    /// The list an entry is on, plus one; 0: none.
    on: Vec<u8>,
    first: [u32; N],
    last: [u32; N],
}

impl<const N: usize> Lists<N> {
    /// Empty lists for entries below `entries`.
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            links: alloc::vec![Link::default(); entries as usize],
            on: alloc::vec![0; entries as usize],
            first: [0; N],
            last: [0; N],
        }
    }

    /// Bytes of each entry.
    pub(crate) const ENTRY_BYTES: usize = size_of::<Link>() + 1;

    /// Which list `entry` is on.
    #[inline]
    pub(crate) fn on(&self, entry: u32) -> Option<usize> {
        match self.on[entry as usize] {
            0 => None,
            list => Some(usize::from(list) - 1),
        }
    }

    /// Puts `entry` at the end of `list`, unless it is on it; takes it off another.
    #[inline(always)]
    pub(crate) fn put(&mut self, list: usize, entry: u32) {
        match self.on(entry) {
            Some(on) if on == list => return,
            Some(_) => self.take_off(entry),
            None => {}
        }
        self.on[entry as usize] = list as u8 + 1;
        let previous = self.last[list];
        self.links[entry as usize] = Link { next: 0, previous };
        if previous == 0 {
            self.first[list] = entry + 1;
        } else {
            self.links[previous as usize - 1].next = entry + 1;
        }
        self.last[list] = entry + 1;
    }

    /// Takes `entry` off whatever list it is on.
    #[inline(always)]
    pub(crate) fn take_off(&mut self, entry: u32) {
        if let Some(list) = self.on(entry) {
            self.unlink(list, entry);
        }
    }

    #[inline(never)]
    fn unlink(&mut self, list: usize, entry: u32) {
        self.on[entry as usize] = 0;
        let Link { next, previous } = core::mem::take(&mut self.links[entry as usize]);
        match next {
            0 => self.last[list] = previous,
            next => self.links[next as usize - 1].previous = previous,
        }
        match previous {
            0 => self.first[list] = next,
            previous => self.links[previous as usize - 1].next = next,
        }
    }

    /// The first entry of `list`.
    #[inline]
    pub(crate) fn first(&self, list: usize) -> Option<u32> {
        self.first[list].checked_sub(1)
    }

    /// Whether no entry is on any of `lists`.
    #[inline(always)]
    pub(crate) fn are_empty<const M: usize>(&self, lists: [usize; M]) -> bool {
        lists.into_iter().fold(0, |any, list| any | self.first[list]) == 0
    }

    /// Takes the first entry of `list` off it.
    #[inline]
    pub(crate) fn pop(&mut self, list: usize) -> Option<u32> {
        let entry = self.first(list)?;
        self.on[entry as usize] = 0;
        let Link { next, .. } = core::mem::take(&mut self.links[entry as usize]);
        self.first[list] = next;
        match next {
            0 => self.last[list] = 0,
            next => self.links[next as usize - 1].previous = 0,
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_queues_and_an_entry_is_on_one_of_them() {
        let mut lists = Lists::<2>::new(4);
        for entry in 0..4 {
            lists.put(0, entry);
        }
        lists.put(0, 1);
        lists.put(1, 2);
        lists.take_off(0);
        lists.take_off(0);
        assert_eq!(lists.on(2), Some(1));
        assert_eq!([lists.pop(0), lists.pop(0), lists.pop(0)], [Some(1), Some(3), None]);
        assert_eq!([lists.pop(1), lists.pop(1)], [Some(2), None]);
        lists.put(0, 2);
        lists.put(0, 0);
        assert_eq!([lists.pop(0), lists.first(0)], [Some(2), Some(0)]);
    }
}
