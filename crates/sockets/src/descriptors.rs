//! Descriptors: small numbers of one context, and what they stand for.
//!
//! A new one is the lowest that is free, as POSIX has it. (mTCP takes any that is free [MT 3.3];
//! the lowest is one of them, and costs two looks at a bitmap.) Where the program asks for it, a
//! number that was closed rests first: what is left of a batch of events, or a call that another
//! thread is about to make, is then about no socket, and not about a new socket with an old one's
//! number.
//!
//! Invariants
//! - A bit of `free_words` is set exactly where the entry is empty and does not rest; a bit of
//!   `summary` exactly where the word has a bit.
//! - What rests is in `resting`, once or more; there are at most as many entries as numbers, for
//!   which there is room.
//! - The tables only grow, up to `max`.

use std::collections::{TryReserveError, VecDeque};

use crate::error::Error;

/// A descriptor of a context, as C has it: not negative, and a number of this context alone.
pub type Fd = i32;

const NOTHING: u32 = u32::MAX;
const WORD_BITS: usize = u64::BITS as usize;

pub(crate) struct DescriptorTable {
    /// The object behind each descriptor, from `first` on.
    entries: Vec<u32>,
    free_words: Vec<u64>,
    summary: Vec<u64>,
    /// Close-on-exec, which is reported as it was set.
    close_on_exec: Vec<u64>,
    /// Places that were closed and that `reuse` keeps, oldest first.
    resting: VecDeque<u32>,
    reuse: NumberReuse,
    first: Fd,
    max: usize,
    /// How many descriptors have been opened, and its value at each open.
    opens: OpenCount,
    opened: Vec<OpenCount>,
    /// What an attempt does not see.
    hidden: Option<HiddenFds>,
}

/// When a number that was closed is used again. Where no other is free, at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberReuse {
    /// Numbers below rest until the next [`DescriptorTable::wake_resting`], and as long as others
    /// below are free.
    RestsBelow(Fd),
    /// When so many others have been closed.
    After(u32),
}

/// A count of opened descriptors.
pub(crate) type OpenCount = u64;

/// Descriptors that were opened after a call had begun, and before it is tried again: their numbers
/// stood for something else when the call was given them.
#[derive(Debug, Clone, Copy)]
struct HiddenFds {
    began: OpenCount,
    resumed: OpenCount,
}

impl HiddenFds {
    const fn contains(self, opened: OpenCount) -> bool {
        opened > self.began && opened <= self.resumed
    }
}

impl DescriptorTable {
    /// No descriptor yet; the first one will be `first`, and there are `max` at most.
    pub(crate) const fn new(first: Fd, max: usize, reuse: NumberReuse) -> Self {
        Self {
            entries: Vec::new(),
            free_words: Vec::new(),
            summary: Vec::new(),
            close_on_exec: Vec::new(),
            resting: VecDeque::new(),
            reuse,
            first,
            max,
            opens: 0,
            opened: Vec::new(),
            hidden: None,
        }
    }

    /// The object behind a descriptor.
    #[inline]
    pub(crate) fn object(&self, fd: Fd) -> Result<u32, Error> {
        let place = fd.wrapping_sub(self.first) as usize;
        match self.entries.get(place) {
            Some(object) if *object != NOTHING && !self.is_hidden(place) => Ok(*object),
            _ => Err(Error::BadDescriptor),
        }
    }

    #[inline]
    fn is_hidden(&self, place: usize) -> bool {
        self.hidden.is_some_and(|hidden| hidden.contains(self.opened[place]))
    }

    /// For [`Self::resume`]: a call begins.
    pub(crate) const fn opens(&self) -> OpenCount {
        self.opens
    }

    /// A call that began at that count is tried again, until [`Self::end_resumed`]. Another thread
    /// may have closed its descriptor, whose number is another one's by now.
    pub(crate) const fn resume(&mut self, began: OpenCount) {
        self.hidden = Some(HiddenFds { began, resumed: self.opens });
    }

    /// The call has been tried.
    pub(crate) const fn end_resumed(&mut self) {
        self.hidden = None;
    }

    /// The lowest descriptor that is free, at least `least`; there is room for it.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`], [`Error::NoMemory`].
    pub(crate) fn lowest_free(&mut self, least: Fd) -> Result<Fd, Error> {
        let least = least.saturating_sub(self.first).max(0) as usize;
        let mut found = self.find_or_grow(least);
        let is_good = |fd: Fd| match self.reuse {
            NumberReuse::RestsBelow(below) => fd < below,
            NumberReuse::After(_) => true,
        };
        if !self.resting.is_empty() && !found.is_ok_and(is_good) {
            self.free_resting(0);
            found = self.find_or_grow(least);
        }
        found
    }

    fn find_or_grow(&mut self, least: usize) -> Result<Fd, Error> {
        let mut place = self.find_free(least);
        if place.is_none() {
            self.grow(least)?;
            place = self.find_free(least);
        }
        place.map(|place| self.first + place as Fd).ok_or(Error::NoDescriptors)
    }

    /// The program is done with the events that it was given: numbers that rest for them are free.
    #[inline]
    pub(crate) fn wake_resting(&mut self) {
        if matches!(self.reuse, NumberReuse::RestsBelow(_)) {
            self.free_resting(0);
        }
    }

    /// Frees the oldest of the resting numbers, until `rest` are left.
    #[inline]
    fn free_resting(&mut self, rest: usize) {
        while self.resting.len() > rest
            && let Some(place) = self.resting.pop_front()
        {
            // One that was taken by its number (dup2) is not free.
            if self.entries[place as usize] == NOTHING {
                self.mark(place as usize, true);
            }
        }
    }

    fn find_free(&self, least: usize) -> Option<usize> {
        let word = least / WORD_BITS;
        let from = self.free_words.get(word)? & (u64::MAX << (least % WORD_BITS));
        if from != 0 {
            return Some(word * WORD_BITS + from.trailing_zeros() as usize);
        }
        let after = word + 1;
        let mut mask = u64::MAX << (after % WORD_BITS);
        for (index, summary) in self.summary.iter().enumerate().skip(after / WORD_BITS) {
            let found = summary & mask;
            mask = u64::MAX;
            if found != 0 {
                let word = index * WORD_BITS + found.trailing_zeros() as usize;
                let bit = self.free_words[word].trailing_zeros() as usize;
                return Some(word * WORD_BITS + bit);
            }
        }
        None
    }

    /// Makes place for at least one more, at `least` or beyond.
    fn grow(&mut self, least: usize) -> Result<(), Error> {
        let old = self.entries.len();
        let new = (old * 2).max(WORD_BITS).max(least + 1).min(self.max);
        if new <= old || least >= new {
            return Err(Error::NoDescriptors);
        }
        let words = new.div_ceil(WORD_BITS);
        self.reserve(new, words).map_err(|_| Error::NoMemory)?;
        self.entries.resize(new, NOTHING);
        self.free_words.resize(words, 0);
        self.close_on_exec.resize(words, 0);
        self.opened.resize(new, 0);
        self.summary.resize(words.div_ceil(WORD_BITS), 0);
        for place in old..new {
            self.mark(place, true);
        }
        Ok(())
    }

    fn reserve(&mut self, places: usize, words: usize) -> Result<(), TryReserveError> {
        self.entries.try_reserve_exact(places - self.entries.len())?;
        self.free_words.try_reserve(words - self.free_words.len())?;
        self.close_on_exec.try_reserve(words - self.close_on_exec.len())?;
        self.opened.try_reserve_exact(places - self.opened.len())?;
        self.summary.try_reserve(words.div_ceil(WORD_BITS) - self.summary.len())?;
        let most = match self.reuse {
            NumberReuse::RestsBelow(below) if self.first >= below => 0,
            NumberReuse::RestsBelow(_) => places,
            NumberReuse::After(count) => places.min(count as usize + 1),
        };
        self.resting.try_reserve(most.saturating_sub(self.resting.len()))?;
        Ok(())
    }

    fn mark(&mut self, place: usize, is_free: bool) {
        let (word, bit) = (place / WORD_BITS, 1 << (place % WORD_BITS));
        if is_free {
            self.free_words[word] |= bit;
        } else {
            self.free_words[word] &= !bit;
        }
        let (group, bit) = (word / WORD_BITS, 1 << (word % WORD_BITS));
        if self.free_words[word] == 0 {
            self.summary[group] &= !bit;
        } else {
            self.summary[group] |= bit;
        }
    }

    /// Lets a descriptor stand for an object. What it stood for before is answered.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] beyond the last; [`Error::NoMemory`] for a number that
    /// [`Self::lowest_free`] has not found.
    pub(crate) fn set(
        &mut self,
        fd: Fd,
        object: u32,
        close_on_exec: bool,
    ) -> Result<Option<u32>, Error> {
        let place = usize::try_from(fd.wrapping_sub(self.first)).unwrap_or(usize::MAX);
        if place >= self.max {
            return Err(Error::BadDescriptor);
        }
        if place >= self.entries.len() {
            self.grow(place)?;
        }
        let before = std::mem::replace(&mut self.entries[place], object);
        self.mark(place, false);
        self.opens += 1;
        self.opened[place] = self.opens;
        self.set_close_on_exec(fd, close_on_exec);
        Ok((before != NOTHING).then_some(before))
    }

    /// Takes a descriptor out; what it stood for.
    pub(crate) fn remove(&mut self, fd: Fd) -> Result<u32, Error> {
        let object = self.object(fd)?;
        let place = (fd - self.first) as usize;
        self.entries[place] = NOTHING;
        let rest = match self.reuse {
            NumberReuse::RestsBelow(below) if fd >= below => 0,
            NumberReuse::RestsBelow(_) => self.entries.len(),
            NumberReuse::After(count) => self.entries.len().min(count as usize),
        };
        if rest == 0 {
            self.mark(place, true);
            return Ok(object);
        }
        self.free_resting(rest - 1);
        self.resting.push_back(place as u32);
        Ok(object)
    }

    pub(crate) fn closes_on_exec(&self, fd: Fd) -> bool {
        let place = fd.wrapping_sub(self.first) as usize;
        self.close_on_exec
            .get(place / WORD_BITS)
            .is_some_and(|word| word & (1 << (place % WORD_BITS)) != 0)
    }

    /// The first descriptor from `from` on that is open.
    pub(crate) fn next_open(&self, from: Fd) -> Option<Fd> {
        let from = from.saturating_sub(self.first).max(0) as usize;
        let places = self.entries.get(from..)?;
        let next = places.iter().position(|object| *object != NOTHING)?;
        Some(self.first + (from + next) as Fd)
    }

    /// No descriptor of the context has so low a number.
    pub(crate) const fn is_below(&self, fd: Fd) -> bool {
        fd >= 0 && fd < self.first
    }

    /// A descriptor may have this number.
    pub(crate) const fn can_be(&self, fd: Fd) -> bool {
        fd >= 0 && fd < self.first.saturating_add(self.max as Fd)
    }

    pub(crate) fn set_close_on_exec(&mut self, fd: Fd, on: bool) {
        let place = fd.wrapping_sub(self.first) as usize;
        let bit = 1 << (place % WORD_BITS);
        if let Some(word) = self.close_on_exec.get_mut(place / WORD_BITS) {
            *word = if on { *word | bit } else { *word & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn open(table: &mut DescriptorTable, object: u32) -> Result<Fd, Error> {
        let fd = table.lowest_free(0)?;
        table.set(fd, object, false)?;
        Ok(fd)
    }

    #[test]
    fn the_lowest_free_number_is_taken_and_there_is_a_last_one() {
        let mut table = DescriptorTable::new(3, 70, NumberReuse::After(0));
        for expected in 3..73 {
            assert_eq!(open(&mut table, 7), Ok(expected));
        }
        assert_eq!(open(&mut table, 7), Err(Error::NoDescriptors));
        assert_eq!(table.remove(5), Ok(7));
        assert_eq!(table.remove(5), Err(Error::BadDescriptor));
        assert_eq!(open(&mut table, 8), Ok(5));
        assert_eq!((table.object(5), table.object(2)), (Ok(8), Err(Error::BadDescriptor)));
        assert_eq!(table.object(-1), Err(Error::BadDescriptor));
        assert_eq!(table.set(73, 1, false), Err(Error::BadDescriptor));
    }

    #[test]
    fn call_that_is_tried_again_does_not_see_what_was_opened_since() {
        let mut table = DescriptorTable::new(3, 70, NumberReuse::After(0));
        let (old, closed) = (open(&mut table, 7).unwrap(), open(&mut table, 8).unwrap());
        let began = table.opens();
        assert_eq!(table.remove(closed), Ok(8));
        assert_eq!((open(&mut table, 9), open(&mut table, 9)), (Ok(closed), Ok(closed + 1)));
        table.resume(began);
        assert_eq!(table.object(old), Ok(7));
        assert_eq!(table.object(closed), Err(Error::BadDescriptor));
        assert_eq!(open(&mut table, 10), Ok(closed + 2));
        assert_eq!(table.object(closed + 2), Ok(10), "the attempt itself has opened it");
        table.end_resumed();
        assert_eq!(table.object(closed), Ok(9));
    }

    #[test]
    fn closed_number_is_reused_last() {
        let mut table = DescriptorTable::new(1, 8, NumberReuse::RestsBelow(5));
        let opened: Vec<Fd> = (0..3).map(|_| open(&mut table, 7).unwrap()).collect();
        assert_eq!(opened, [1, 2, 3]);
        assert_eq!(table.remove(2), Ok(7));
        assert_eq!(table.object(2), Err(Error::BadDescriptor));
        assert_eq!(open(&mut table, 7), Ok(4), "2 rests");
        assert_eq!(table.remove(3), Ok(7));
        // Nothing below 5 is free that does not rest.
        assert_eq!((open(&mut table, 7), open(&mut table, 7)), (Ok(2), Ok(3)));
        // Numbers from 5 on do not rest.
        assert_eq!((open(&mut table, 7), table.remove(5)), (Ok(5), Ok(7)));
        assert_eq!(open(&mut table, 7), Ok(5));
        assert_eq!(table.remove(1), Ok(7));
        // Taken by its number while it rests: it is not free when it is woken.
        assert_eq!(table.set(1, 9, false), Ok(None));
        table.wake_resting();
        assert_eq!((open(&mut table, 7), table.object(1)), (Ok(6), Ok(9)));
        // Opening and closing without end: resting numbers stay bounded.
        for _ in 0..100 {
            assert_eq!(table.remove(1), Ok(9));
            assert_eq!(table.set(1, 9, false), Ok(None));
            assert!(table.resting.len() <= 8);
        }
        assert_eq!((open(&mut table, 7), open(&mut table, 7)), (Ok(7), Ok(8)));
        assert_eq!(open(&mut table, 7), Err(Error::NoDescriptors));
    }

    #[test]
    fn closed_number_is_reused_after_others_were_closed() {
        let mut table = DescriptorTable::new(3, 70, NumberReuse::After(2));
        let mut fd = open(&mut table, 7).unwrap();
        for expected in [4, 5, 3, 4] {
            assert_eq!(table.remove(fd), Ok(7));
            fd = open(&mut table, 7).unwrap();
            assert_eq!(fd, expected);
        }
        // Where no other is free, at once.
        let mut table = DescriptorTable::new(3, 2, NumberReuse::After(2));
        assert_eq!((open(&mut table, 7), open(&mut table, 7)), (Ok(3), Ok(4)));
        assert_eq!((table.remove(3), open(&mut table, 7)), (Ok(7), Ok(3)));
        for _ in 0..100 {
            assert_eq!((table.remove(4), table.set(4, 9, false)), (Ok(7), Ok(None)));
            assert_eq!((table.remove(4), table.set(4, 7, false)), (Ok(9), Ok(None)));
            assert!(table.resting.len() <= 2);
        }
    }

    #[test]
    fn numbers_may_be_the_highest_there_are() {
        let first = crate::limits::FIRST_DESCRIPTOR_MAX;
        let max = crate::limits::DESCRIPTORS_MAX as usize;
        let mut table = DescriptorTable::new(first, max, NumberReuse::After(0));
        assert_eq!((open(&mut table, 7), open(&mut table, 8)), (Ok(first), Ok(first + 1)));
        assert_eq!(table.set(Fd::MAX - 1, 9, false), Ok(None));
        assert_eq!(table.next_open(0), Some(first));
        assert_eq!(table.next_open(first + 1), Some(first + 1));
        assert_eq!(table.next_open(first + 2), Some(Fd::MAX - 1));
        assert_eq!(table.next_open(Fd::MAX), None);
        assert_eq!((table.can_be(Fd::MAX - 1), table.can_be(Fd::MAX)), (true, false));
        assert_eq!(table.set(Fd::MAX, 9, false), Err(Error::BadDescriptor));
        assert_eq!(table.lowest_free(Fd::MAX - 2), Ok(Fd::MAX - 2));
        for unused in [0, first - 1, -1, Fd::MIN] {
            assert_eq!(table.object(unused), Err(Error::BadDescriptor));
        }
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_map_searched_from_below(
            steps in prop::collection::vec((0u8..4, 0i32..300, any::<bool>()), 0..400),
        ) {
            let mut table = DescriptorTable::new(0, 256, NumberReuse::After(0));
            let mut oracle = BTreeMap::<Fd, (u32, bool)>::new();
            for (object, (what, number, flag)) in (0u32..).zip(steps) {
                let free = |least: Fd, oracle: &BTreeMap<Fd, _>| {
                    (least..256).find(|fd| !oracle.contains_key(fd))
                };
                match what {
                    0 | 1 => {
                        let least = if what == 0 { 0 } else { number };
                        let expected = free(least, &oracle);
                        prop_assert_eq!(table.lowest_free(least).ok(), expected);
                        if let Some(fd) = expected {
                            prop_assert_eq!(table.set(fd, object, flag), Ok(None));
                            oracle.insert(fd, (object, flag));
                        }
                    }
                    2 => {
                        let before = (number < 256)
                            .then(|| oracle.insert(number, (object, flag)).map(|it| it.0));
                        prop_assert_eq!(table.set(number, object, flag).ok(), before);
                    }
                    _ => {
                        let expected = oracle.remove(&number).map(|it| it.0);
                        prop_assert_eq!(table.remove(number).ok(), expected);
                    }
                }
                for fd in 0..300 {
                    let entry = oracle.get(&fd);
                    prop_assert_eq!(table.object(fd).ok(), entry.map(|it| it.0));
                    if let Some((_, flag)) = entry {
                        prop_assert_eq!(table.closes_on_exec(fd), *flag);
                    }
                }
            }
        }
    }
}
