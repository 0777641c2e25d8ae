//! Buffers that events lend to the program until it calls `mp_release()`.
//!
//! An event carries an index and a generation, so that releasing twice is an error and never
//! somebody else's buffer.
//!
//! Invariants
//! - An entry's bytes do not move or change while it is lent: [`ReadBuf`] and `Box` keep theirs
//!   at one address wherever they themselves lie.
//! - A generation is never 0, so an event of zeros lends nothing.

use channel::ReadBuf;

/// What is lent.
#[derive(Debug)]
pub(crate) enum Lent {
    /// A buffer of the channel, or a part of one.
    Buffer(ReadBuf),
    /// Several of them, copied together.
    Joined(Box<[u8]>),
}

impl Lent {
    /// All the bytes of `buffers` in one piece; copied only where there are several pieces.
    pub(crate) fn join(mut buffers: Vec<ReadBuf>) -> Option<Self> {
        if buffers.len() <= 1 {
            return buffers.pop().map(Self::Buffer);
        }
        let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        Some(Self::Joined(bytes.into()))
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Joined(bytes) => bytes,
        }
    }
}

/// Names one lending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LentKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// All that one channel has lent.
#[derive(Debug, Default)]
pub(crate) struct LentTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    lent: Option<Lent>,
}

impl LentTable {
    /// Keeps what is lent until [`Self::give_back`].
    pub(crate) fn lend(&mut self, lent: Lent) -> (LentKey, &[u8]) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 1, lent: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        let key = LentKey { index, generation: entry.generation };
        (key, entry.lent.insert(lent).bytes())
    }

    /// Takes it back: `None` if this lending has ended before or never was.
    pub(crate) fn give_back(&mut self, key: LentKey) -> Option<Lent> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let lent = entry.lent.take()?;
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        self.free.push(key.index);
        Some(lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(bytes: &[u8]) -> Lent {
        Lent::Joined(bytes.into())
    }

    #[test]
    fn each_lending_ends_once() {
        let mut table = LentTable::default();
        let (first, bytes) = table.lend(joined(b"one"));
        assert_eq!(bytes, b"one");
        let (second, _) = table.lend(joined(b"two"));
        assert_eq!(table.give_back(first).unwrap().bytes(), b"one");
        assert!(table.give_back(first).is_none());
        let (third, _) = table.lend(joined(b"three"));
        assert_eq!(third.index, first.index);
        assert!(table.give_back(first).is_none(), "an old key does not end a new lending");
        assert_eq!(table.give_back(second).unwrap().bytes(), b"two");
        assert_eq!(table.give_back(third).unwrap().bytes(), b"three");
    }

    #[test]
    fn an_event_of_zeros_lends_nothing() {
        let mut table = LentTable::default();
        let zeros = LentKey { index: 0, generation: 0 };
        assert!(table.give_back(zeros).is_none());
        table.lend(joined(b"x"));
        assert!(table.give_back(zeros).is_none());
    }

    #[test]
    fn nothing_unread_lends_nothing() {
        assert!(Lent::join(Vec::new()).is_none());
    }
}
