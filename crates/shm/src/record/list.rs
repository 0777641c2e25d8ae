//! Several short things in one record: what is said often is said of many at once.
//!
//! A list is the record's body and its count, and is read from there: two buffers to a word, or one
//! connection.
//!
//! Invariant: a list in a record is never empty, and the places behind the last one are zero.

use super::{Body, Id, Record, RecordFault};
use crate::limits::{BUFS_PER_RECORD, IDS_PER_RECORD};
use crate::pool::BufId;

/// Buffers that go over together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bufs {
    count: u32,
    body: Body,
}

/// Connections of which the same is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ids {
    count: u32,
    body: Body,
}

/// The count of a list in a record that says nothing else.
#[inline]
fn count_of(record: &Record, max: usize) -> Result<u32, RecordFault> {
    let count = record.count;
    if count == 0 || count as usize > max {
        return Err(RecordFault::Count { count });
    }
    if record.flags != 0 || record.id != Id::default() {
        return Err(RecordFault::Bits { kind: record.kind });
    }
    Ok(count)
}

impl Bufs {
    /// A list of one.
    #[must_use]
    pub fn of(buf: BufId) -> Self {
        let mut bufs = Self::default();
        bufs.push(buf);
        bufs
    }

    /// One more, if there is room for it.
    #[inline]
    pub fn push(&mut self, buf: BufId) {
        if let Some(word) = self.body.get_mut(self.count as usize / 2) {
            *word |= u64::from(buf.bits()) << (self.count % 2 * 32);
            self.count += 1;
        }
    }

    /// There is no room for another.
    #[must_use]
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.count as usize == BUFS_PER_RECORD
    }

    /// There is none.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them, in their order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = BufId> + use<> {
        let Self { count, body } = *self;
        let halves = body.into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]);
        halves.take(count as usize).map(BufId::from_bits)
    }

    #[inline]
    pub(super) fn put(&self, record: Record) -> Record {
        Record { count: self.count, body: self.body, ..record }
    }

    #[inline]
    pub(super) fn get(record: &Record) -> Result<Self, RecordFault> {
        let count = count_of(record, BUFS_PER_RECORD)?;
        let whole = count as usize / 2;
        let behind = match count % 2 {
            0 => record.body[whole..].iter().fold(0, |all, word| all | word),
            _ => record.body[whole + 1..]
                .iter()
                .fold(record.body[whole] >> 32, |all, word| all | word),
        };
        if behind != 0 {
            return Err(RecordFault::Bits { kind: record.kind });
        }
        Ok(Self { count, body: record.body })
    }
}

impl Ids {
    /// A list of one.
    #[must_use]
    pub fn of(id: Id) -> Self {
        let mut ids = Self::default();
        ids.push(id);
        ids
    }

    /// One more, if there is room for it.
    #[inline]
    pub fn push(&mut self, id: Id) {
        if let Some(word) = self.body.get_mut(self.count as usize) {
            *word = u64::from(id.index) | u64::from(id.generation) << 32;
            self.count += 1;
        }
    }

    /// There is no room for another.
    #[must_use]
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.count as usize == IDS_PER_RECORD
    }

    /// There is none.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them, in their order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Id> + use<> {
        let Self { count, body } = *self;
        let ids = body.into_iter().take(count as usize);
        ids.map(|word| Id { index: word as u32, generation: (word >> 32) as u32 })
    }

    #[inline]
    pub(super) fn put(&self, record: Record) -> Record {
        Record { count: self.count, body: self.body, ..record }
    }

    #[inline]
    pub(super) fn get(record: &Record) -> Result<Self, RecordFault> {
        let count = count_of(record, IDS_PER_RECORD)?;
        if record.body[count as usize..].iter().any(|word| *word != 0) {
            return Err(RecordFault::Bits { kind: record.kind });
        }
        Ok(Self { count, body: record.body })
    }
}

const _: () = assert!(BUFS_PER_RECORD == 2 * size_of::<Body>() / 8, "two to a word");
const _: () = assert!(IDS_PER_RECORD == size_of::<Body>() / 8, "one to a word");
