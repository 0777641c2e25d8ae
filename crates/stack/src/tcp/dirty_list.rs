//! Lists of connections without duplicates: [`DirtyConnections`], to be processed in this poll, and
//! [`EntryQueue`], a FIFO that the shard uses for connections and listeners with events to take.
//!
//! Invariants of the queue
//! - An entry is in the queue once at most: `state` says so, and the queue never grows.
//! - An entry that no longer waits is skipped, or waits again at its old position.

use alloc::vec::Vec;

use super::Shard;
use super::connection::Connection;
use super::flags::ConnFlags;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Out,
    Waits,
    /// In the queue, and to be skipped.
    Gone,
}

/// FIFO of entries, each once.
#[derive(Debug)]
pub(crate) struct EntryQueue {
    /// A ring with room for one more than there may be: those from `first` on, before `end`.
    queue: Vec<u32>,
    first: usize,
    end: usize,
    state: Vec<State>,
}

impl EntryQueue {
    /// An empty queue for entries below `entries`.
    pub(crate) fn new(entries: u32) -> Self {
        let entries = entries as usize;
        let (queue, state) = (alloc::vec![0; entries + 1], alloc::vec![State::Out; entries]);
        Self { queue, first: 0, end: 0, state }
    }

    /// Bytes of each entry.
    pub(crate) const ENTRY_BYTES: usize = size_of::<u32>() + size_of::<State>();

    /// Puts `entry` at the end, unless it has its turn already.
    #[inline(always)]
    pub(crate) fn put(&mut self, entry: u32) {
        let state = &mut self.state[entry as usize];
        if *state == State::Out {
            self.queue[self.end] = entry;
            self.end = after(self.end, &self.queue);
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

    /// Whether the queue is empty.
    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Takes the first that waits.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        match self.pop_any()? {
            (entry, State::Waits) => Some(entry),
            _ => self.pop_waiting(),
        }
    }

    /// The same behind some that do not wait any more.
    #[inline(never)]
    fn pop_waiting(&mut self) -> Option<u32> {
        loop {
            if let (entry, State::Waits) = self.pop_any()? {
                return Some(entry);
            }
        }
    }

    /// Takes the first entry; what it was.
    #[inline(always)]
    fn pop_any(&mut self) -> Option<(u32, State)> {
        if self.is_empty() {
            return None;
        }
        let entry = self.queue[self.first];
        self.first = after(self.first, &self.queue);
        Some((entry, core::mem::replace(&mut self.state[entry as usize], State::Out)))
    }
}

/// The place after `at` in a ring.
#[inline(always)]
const fn after(at: usize, ring: &[u32]) -> usize {
    if at + 1 < ring.len() { at + 1 } else { 0 }
}

/// Entries that something happened to, each once as its own record says, in the order of happening.
/// Those before `asked` were asked what they have to report, or have nothing.
#[derive(Debug)]
pub(crate) struct DirtyConnections {
    /// With room for all there may be.
    entries: Vec<u32>,
    asked: usize,
}

impl DirtyConnections {
    /// None of the entries below `entries`.
    pub(crate) fn new(entries: u32) -> Self {
        Self { entries: Vec::with_capacity(entries as usize), asked: 0 }
    }

    /// One more, which is not among them, and has nothing to report.
    #[inline(always)]
    pub(crate) fn push_without_news(&mut self, entry: u32) {
        if self.asked == self.entries.len() {
            self.asked += 1;
        }
        self.push(entry);
    }

    /// One more, which is not among them.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: u32) {
        // Without this the compiler keeps a way to grow, and registers for it.
        assert!(self.entries.len() < self.entries.capacity(), "each is among them once");
        self.entries.push(entry);
    }

    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The only one, if it was asked.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<u32> {
        match self.entries[..] {
            [only] if self.asked == 1 => Some(only),
            _ => None,
        }
    }

    /// How many there are.
    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// The one that came after `at` others.
    #[inline]
    pub(crate) fn at(&self, at: usize) -> u32 {
        self.entries[at]
    }

    /// The first that was not asked yet.
    #[inline(always)]
    pub(crate) fn next_unasked(&self) -> Option<u32> {
        self.entries.get(self.asked).copied()
    }

    /// That one is asked now.
    #[inline(always)]
    pub(crate) const fn pass(&mut self) {
        self.asked += 1;
    }

    /// How many were asked, or not worth it.
    #[inline(always)]
    pub(crate) const fn asked(&self) -> usize {
        self.asked
    }

    /// All were looked at.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.asked = 0;
    }
}

/// Something happened to a connection that is not over, and there is nothing to report.
#[inline]
pub(super) fn mark_dirty(conn: &mut Connection, shard: &mut Shard, index: u32) {
    if !conn.flags.has(ConnFlags::DIRTY) {
        conn.flags.set(ConnFlags::DIRTY);
        shard.dirty.push_without_news(index);
    }
}

/// The same of one that was not dirty before in this poll, and that has something to report.
#[inline(always)]
pub(super) fn mark_dirty_with_news(conn: &mut Connection, shard: &mut Shard, index: u32) {
    conn.flags.set(ConnFlags::DIRTY);
    shard.dirty.push(index);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_in_order_and_once() {
        let mut queue = EntryQueue::new(4);
        for _ in 0..100 {
            for entry in [2, 0, 2, 3, 1, 3] {
                queue.put(entry);
            }
            queue.take_off(0);
            queue.take_off(3);
            queue.take_off(3);
            queue.put(3);
            assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(2), Some(3), Some(1)]);
            assert_eq!(queue.pop(), None);
            queue.take_off(1);
            queue.put(1);
            assert_eq!([queue.pop(), queue.pop()], [Some(1), None]);
        }
    }
}
