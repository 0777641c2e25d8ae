//! A shard's memory: one ring of bytes in which records lie one behind the other.
//!
//! ```text
//!      tail (oldest)                         head (next record goes here)
//!        v                                     v
//! |free| record | dead | record | ... | record |        free          |
//! ```
//!
//! A record never wraps: where the next one does not fit before the end of the ring, a filler takes
//! the rest. Memory is freed at the tail only; a record that is deleted or replaced stays, dead,
//! until the tail reaches it. So allocation is one addition, there is no fragmentation, and an
//! item's key and value lie in one piece.
//!
//! A record: header (below), key, value, padding to [`UNIT_BYTES`].
//!
//! Invariants
//! - `used` is the sum of the capacities of all records and fillers between tail and head, and
//!   never exceeds the ring.
//! - Every record's capacity is a multiple of [`UNIT_BYTES`], so a filler always has room for its
//!   own header, which is one unit.

use std::collections::TryReserveError;

use crate::kv::limits::UNIT_BYTES;
use crate::memory::zeroed;

/// Bytes of a record before its key.
pub(super) const RECORD_HEADER_BYTES: usize = 40;

/// Where a record begins, in units from the ring's start, plus one; 0 is nowhere.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LogPosition(pub(super) u32);

impl LogPosition {
    pub(super) const NOWHERE: Self = Self(0);

    const fn at(offset: usize) -> Self {
        Self((offset / UNIT_BYTES) as u32 + 1)
    }

    const fn offset(self) -> usize {
        (self.0 as usize - 1) * UNIT_BYTES
    }

    pub(super) const fn is_nowhere(self) -> bool {
        self.0 == 0
    }
}

/// What a record is; bits of [`LogRecord::attributes`].
pub(super) mod attribute {
    /// In the hash table.
    pub(in super::super) const LIVE: u8 = 1;
    /// A value in arrival: not in the hash table, and not to be evicted.
    pub(in super::super) const RESERVED: u8 = 1 << 1;
    /// Used since the tail last passed it.
    pub(in super::super) const REFERENCED: u8 = 1 << 2;
    /// Fetched since it was stored.
    pub(in super::super) const FETCHED: u8 = 1 << 3;
    /// Marked as stale by `md` or `ms`.
    pub(in super::super) const STALE: u8 = 1 << 4;
    /// A client received the win token to refresh it.
    pub(in super::super) const WON: u8 = 1 << 5;
    /// Being read by the operation that holds the lock: not to be evicted.
    pub(in super::super) const PINNED: u8 = 1 << 6;
}

/// A record's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRecord {
    /// Bytes from this record to the next.
    pub(super) capacity: u32,
    /// Bits of [`attribute`]; none of LIVE and RESERVED: dead.
    pub(super) attributes: u8,
    pub(super) key_len: u8,
    /// Next in the hash chain; for a reserved record the index of its reservation.
    pub(super) next: u32,
    pub(super) hash: u32,
    pub(super) cas: u64,
    pub(super) value_len: u32,
    pub(super) flags: u32,
    /// Unix seconds; 0 is never.
    pub(super) expires: u32,
    /// Unix seconds of the last use.
    pub(super) accessed: u32,
}

impl LogRecord {
    pub(super) const fn has(&self, attribute: u8) -> bool {
        self.attributes & attribute != 0
    }

    /// Neither in the hash table nor about to be.
    pub(super) const fn is_dead(&self) -> bool {
        !self.has(attribute::LIVE | attribute::RESERVED)
    }

    /// Bytes that a record with this key and value takes.
    pub(super) const fn bytes_for(key_len: usize, value_len: usize) -> usize {
        (RECORD_HEADER_BYTES + key_len + value_len).next_multiple_of(UNIT_BYTES)
    }

    fn from_bytes(bytes: &[u8; RECORD_HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            capacity: word(0),
            attributes: bytes[4],
            key_len: bytes[5],
            next: word(8),
            hash: word(12),
            cas: u64::from(word(16)) | u64::from(word(20)) << 32,
            value_len: word(24),
            flags: word(28),
            expires: word(32),
            accessed: word(36),
        }
    }

    fn to_bytes(self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[4] = self.attributes;
        bytes[5] = self.key_len;
        bytes[8..12].copy_from_slice(&self.next.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.hash.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.cas.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.value_len.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.flags.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.expires.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.accessed.to_le_bytes());
        bytes
    }
}

/// What lies at the tail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Oldest {
    /// Nothing: the log is empty.
    Empty,
    /// Rest of the ring before its end.
    Filler,
    /// A record, dead or not.
    Record(LogPosition, LogRecord),
}

/// The ring.
pub(super) struct Log {
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
    used: usize,
    dead: usize,
}

/// Stands in a filler's attributes; no record has all bits.
const FILLER: u8 = u8::MAX;

impl Log {
    /// A log in `capacity` bytes of memory, which the kernel lends page by page as it is written.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(super) fn new(capacity: usize) -> Result<Self, TryReserveError> {
        let capacity = capacity - capacity % UNIT_BYTES;
        Ok(Self { bytes: zeroed(capacity)?, head: 0, tail: 0, used: 0, dead: 0 })
    }

    pub(super) const fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes between tail and head.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Bytes of `used` that belong to no live or reserved record.
    pub(super) const fn dead(&self) -> usize {
        self.dead
    }

    /// Writes a new record at the head if there is room before the tail. Its capacity is the
    /// smallest that holds `key` and `record.value_len` bytes.
    pub(super) fn append(&mut self, record: &LogRecord, key: &[u8]) -> Option<LogPosition> {
        let len = LogRecord::bytes_for(key.len(), record.value_len as usize);
        let offset = self.room(len)?;
        self.head = offset + len;
        self.used += len;
        let place = LogPosition::at(offset);
        let key_len = key.len() as u8;
        self.set_record(place, LogRecord { capacity: len as u32, key_len, ..*record });
        let start = offset + RECORD_HEADER_BYTES;
        self.bytes[start..start + key.len()].copy_from_slice(key);
        Some(place)
    }

    pub(super) fn oldest(&self) -> Oldest {
        if self.used == 0 {
            return Oldest::Empty;
        }
        if self.bytes[self.tail + 4] == FILLER {
            return Oldest::Filler;
        }
        let place = LogPosition::at(self.tail);
        Oldest::Record(place, self.record(place))
    }

    /// Frees what lies at the tail; a record must be dead.
    pub(super) fn release_oldest(&mut self) {
        let capacity = self.capacity_at(self.tail);
        self.used -= capacity;
        self.dead -= capacity;
        self.tail = self.wrapped(self.tail + capacity);
    }

    /// Carries the record at the tail to the head. Only directly after [`Log::append`] found no
    /// room: then head and tail are such that the record fits.
    pub(super) fn carry_oldest(&mut self) -> LogPosition {
        let capacity = self.capacity_at(self.tail);
        let (from, to) = (self.tail, self.head);
        debug_assert!(to <= from, "append without room leaves the head at or before the tail");
        if from != to {
            self.bytes.copy_within(from..from + capacity, to);
        }
        self.head = to + capacity;
        self.tail = self.wrapped(from + capacity);
        LogPosition::at(to)
    }

    /// Counts a record's bytes as dead. The caller has cleared LIVE and RESERVED.
    pub(super) fn add_dead(&mut self, capacity: u32) {
        self.dead += capacity as usize;
    }

    pub(super) fn record(&self, place: LogPosition) -> LogRecord {
        let offset = place.offset();
        let bytes = self.bytes[offset..].first_chunk().expect("a place has a header behind it");
        LogRecord::from_bytes(bytes)
    }

    pub(super) fn set_record(&mut self, place: LogPosition, record: LogRecord) {
        let offset = place.offset();
        self.bytes[offset..offset + RECORD_HEADER_BYTES].copy_from_slice(&record.to_bytes());
    }

    pub(super) fn key(&self, place: LogPosition, record: &LogRecord) -> &[u8] {
        let start = place.offset() + RECORD_HEADER_BYTES;
        &self.bytes[start..start + usize::from(record.key_len)]
    }

    pub(super) fn value(&self, place: LogPosition, record: &LogRecord) -> &[u8] {
        let start = place.offset() + RECORD_HEADER_BYTES + usize::from(record.key_len);
        &self.bytes[start..start + record.value_len as usize]
    }

    pub(super) fn value_mut(&mut self, place: LogPosition, record: &LogRecord) -> &mut [u8] {
        let start = place.offset() + RECORD_HEADER_BYTES + usize::from(record.key_len);
        &mut self.bytes[start..start + record.value_len as usize]
    }

    /// Copies the whole value of `from` to byte `at` of the value of `to`.
    pub(super) fn copy_value(
        &mut self,
        from: (LogPosition, &LogRecord),
        to: (LogPosition, &LogRecord),
        at: usize,
    ) {
        let (place, record) = from;
        let start = place.offset() + RECORD_HEADER_BYTES + usize::from(record.key_len);
        let end = start + record.value_len as usize;
        let (place, record) = to;
        let target = place.offset() + RECORD_HEADER_BYTES + usize::from(record.key_len) + at;
        self.bytes.copy_within(start..end, target);
    }

    /// The places and headers of all records, oldest first.
    #[cfg(test)]
    pub(super) fn records(&self) -> impl Iterator<Item = (LogPosition, LogRecord)> {
        let mut offset = self.tail;
        let mut left = self.used;
        std::iter::from_fn(move || {
            while left > 0 {
                let here = offset;
                let capacity = self.capacity_at(here);
                left -= capacity;
                offset = self.wrapped(here + capacity);
                if self.bytes[here + 4] != FILLER {
                    let place = LogPosition::at(here);
                    return Some((place, self.record(place)));
                }
            }
            None
        })
    }

    /// Where `len` contiguous bytes are free at the head, if they are. Otherwise the head stands at
    /// or before the tail, so that what is freed next adds to the same gap.
    fn room(&mut self, len: usize) -> Option<usize> {
        if self.used == 0 {
            self.head = 0;
            self.tail = 0;
        }
        let full = self.used > 0 && self.head == self.tail;
        if self.head >= self.tail && !full {
            let rest = self.bytes.len() - self.head;
            if len <= rest {
                return Some(self.head);
            }
            self.fill_rest(rest);
        }
        let gap = self.tail - self.head;
        (self.used < self.bytes.len() && len <= gap).then_some(self.head)
    }

    /// Makes the `rest` bytes before the ring's end a filler and puts the head to the start.
    fn fill_rest(&mut self, rest: usize) {
        if rest > 0 {
            self.bytes[self.head..self.head + 4].copy_from_slice(&(rest as u32).to_le_bytes());
            self.bytes[self.head + 4] = FILLER;
            self.used += rest;
            self.dead += rest;
        }
        self.head = 0;
    }

    fn capacity_at(&self, offset: usize) -> usize {
        let word = self.bytes[offset..].first_chunk().expect("offsets are multiples of a unit");
        u32::from_le_bytes(*word) as usize
    }

    const fn wrapped(&self, offset: usize) -> usize {
        if offset == self.bytes.len() { 0 } else { offset }
    }
}
