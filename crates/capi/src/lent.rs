//! Buffers that events lend to the program until it calls `mp_release()`.
//!
//! An event carries an index and a generation, so that a second release is an error and never
//! releases another event's buffer.
//!
//! Invariants
//! - An entry's bytes do not move or change while it is lent: [`ReadBuf`] and `Box` keep theirs at
//!   one address when they are moved.
//! - A generation is never 0, so an event of zeros lends nothing.

use channel::ReadBuf;

/// A lent buffer.
#[derive(Debug)]
pub(crate) enum LentBuffer {
    /// A buffer of the channel, or a part of one.
    Buffer(ReadBuf),
    /// Several buffers, copied together.
    Joined(Box<[u8]>),
}

impl LentBuffer {
    /// Joins all bytes of `buffers`; copies only if there are several buffers.
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

/// Identifies one loan of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LentKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The lent buffers of one channel.
#[derive(Debug, Default)]
pub(crate) struct LentTable {
    entries: Vec<LentEntry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct LentEntry {
    generation: u32,
    lent: Option<LentBuffer>,
}

impl LentTable {
    /// Keeps a buffer until [`Self::give_back`].
    pub(crate) fn lend(&mut self, lent: LentBuffer) -> (LentKey, &[u8]) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(LentEntry { generation: 1, lent: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        let key = LentKey { index, generation: entry.generation };
        (key, entry.lent.insert(lent).bytes())
    }

    /// Ends a loan: `None` if it has ended before or never existed.
    pub(crate) fn give_back(&mut self, key: LentKey) -> Option<LentBuffer> {
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

    fn joined(bytes: &[u8]) -> LentBuffer {
        LentBuffer::Joined(bytes.into())
    }

    #[test]
    fn lent_buffer_is_released_once() {
        let mut table = LentTable::default();
        let (first, bytes) = table.lend(joined(b"one"));
        assert_eq!(bytes, b"one");
        let (second, _) = table.lend(joined(b"two"));
        assert_eq!(table.give_back(first).unwrap().bytes(), b"one");
        assert!(table.give_back(first).is_none());
        let (third, _) = table.lend(joined(b"three"));
        assert_eq!(third.index, first.index);
        assert!(table.give_back(first).is_none(), "an old key does not release a new loan");
        assert_eq!(table.give_back(second).unwrap().bytes(), b"two");
        assert_eq!(table.give_back(third).unwrap().bytes(), b"three");
    }

    #[test]
    fn zeroed_event_holds_no_buffer() {
        let mut table = LentTable::default();
        let zeros = LentKey { index: 0, generation: 0 };
        assert!(table.give_back(zeros).is_none());
        table.lend(joined(b"x"));
        assert!(table.give_back(zeros).is_none());
    }

    #[test]
    fn no_unread_bytes_lend_nothing() {
        assert!(LentBuffer::join(Vec::new()).is_none());
    }
}
