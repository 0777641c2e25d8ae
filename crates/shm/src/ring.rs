//! A ring of records from one producer to one consumer, in memory that both can write.
//!
//! Read first: `cursor.rs` for the indices; `bytes.rs` for how records get in and out;
//! `doorbell.rs` for how a consumer sleeps.
//!
//! ```text
//!  offset 0        head        written by the consumer: records released
//!  offset 128      tail        written by the producer: records published
//!  offset 256      records     entries x record size, the n-th in slot n mod entries
//!
//!  producer   reserve -> put put put -> commit          one store of `tail` for a batch
//!  consumer   peek    -> take take   -> release         one store of `head` for a batch
//! ```
//!
//! Invariants
//! - Each end looks at the other's index only when what it knows is not enough, and each index has
//!   a pair of cache lines to itself: a batch costs each side about one transfer of a line for an
//!   index, and those of the records.
//! - A record is copied out before anybody looks at it, and the consumer never reads it twice.
//! - The other end can write anything anywhere in the ring, at any time. It can make records
//!   nonsense, which the parser of the records finds, and indices nonsense, which is a
//!   [`RingFault`]; nothing else.
//! - Nothing allocates, blocks or makes a system call.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::bytes::{self, Plain};
use crate::cursor::{ConsumerCursor, ProducerCursor, RingFault};
use crate::limits;
use crate::region::{OutOfRegion, Part, RegionParts};

const HEAD_OFFSET: usize = 0;
const TAIL_OFFSET: usize = HEAD_OFFSET + limits::LINE_PAIR_BYTES;
const RECORDS_OFFSET: usize = TAIL_OFFSET + limits::LINE_PAIR_BYTES;

/// Bytes that a ring of `entries` records `T` takes of its region.
#[must_use]
pub const fn ring_bytes<T: Plain>(entries: u32) -> usize {
    let bytes = RECORDS_OFFSET + entries as usize * size_of::<T>();
    bytes.next_multiple_of(limits::LINE_PAIR_BYTES)
}

/// Why there is no ring: the caller's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Not a power of two, or out of range.
    #[error("a ring cannot have {entries} entries")]
    Entries {
        /// What was asked for.
        entries: u32,
    },
    /// The ring does not fit into what is left of the region.
    #[error(transparent)]
    Region(#[from] OutOfRegion),
}

/// The ring is full, as far as is known: [`Producer::reserve`] says whether it still is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ring is full")]
pub struct RingFull;

/// The memory of a ring: a part of a region that holds it.
#[derive(Debug)]
struct RingPlace<T> {
    /// Keeps the memory mapped.
    part: Arc<Part>,
    head: NonNull<AtomicU32>,
    tail: NonNull<AtomicU32>,
    /// `entries` records of `words_of::<T>()` words.
    records: NonNull<AtomicU64>,
    record: PhantomData<fn() -> T>,
}

// SAFETY: the pointers are into the part, which is `Send + Sync` and kept by the value; records
// are `Send` (`Plain`), and are moved as words.
unsafe impl<T> Send for RingPlace<T> {}

impl<T: Plain> RingPlace<T> {
    const FITS: () = assert!(size_of::<T>() <= limits::RECORD_BYTES_MAX, "a record is too large");

    fn new(parts: &mut RegionParts, entries: u32) -> Result<Self, RingError> {
        const { Self::FITS };
        let range = limits::RING_ENTRIES_MIN..=limits::RING_ENTRIES_MAX;
        if !entries.is_power_of_two() || !range.contains(&entries) {
            return Err(RingError::Entries { entries });
        }
        let part = parts.take(ring_bytes::<T>(entries))?;
        debug_assert_eq!(part.bytes(), ring_bytes::<T>(entries));
        Ok(Self::at(Arc::new(part)))
    }

    /// The ring in a part that was taken for it.
    fn at(part: Arc<Part>) -> Self {
        let start = part.start();
        // SAFETY: within the bytes of the part, which is as long as the ring (`new`), as are the
        // two below.
        let head = unsafe { start.add(HEAD_OFFSET) };
        // SAFETY: as above.
        let tail = unsafe { start.add(TAIL_OFFSET) };
        // SAFETY: as above.
        let records = unsafe { start.add(RECORDS_OFFSET) };
        let (head, tail, records) = (head.cast(), tail.cast(), records.cast());
        Self { part, head, tail, records, record: PhantomData }
    }

    /// The same ring, for its other end.
    fn other(&self) -> Self {
        Self::at(Arc::clone(&self.part))
    }

    #[inline]
    fn head(&self) -> &AtomicU32 {
        // SAFETY: in the region, which is mapped while `self` lives; aligned, as the ring's start
        // is; whichever process writes it, this program's accesses are atomic.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn tail(&self) -> &AtomicU32 {
        // SAFETY: as in `head`.
        unsafe { self.tail.as_ref() }
    }

    /// The words of a slot; `slot` is below `entries`, as cursors mask it.
    #[inline]
    fn words(&self, slot: u32) -> *const AtomicU64 {
        let index = slot as usize * bytes::words_of::<T>();
        // SAFETY: the records of all slots below `entries` lie in the region (`new`).
        unsafe { self.records.add(index) }.as_ptr()
    }

    #[inline]
    fn store(&self, slot: u32, record: &T) {
        // SAFETY: the slot's words are mapped and aligned, as in `words`.
        unsafe { bytes::store(self.words(slot), record) };
    }

    #[inline]
    fn load(&self, slot: u32) -> T {
        // SAFETY: as in `store`.
        unsafe { bytes::load(self.words(slot)) }
    }
}

/// The end that puts records in, one of a ring. For one thread at a time.
#[derive(Debug)]
pub struct Producer<T: Plain> {
    place: RingPlace<T>,
    cursor: ProducerCursor,
}

/// The end that takes records out, one of a ring. For one thread at a time.
#[derive(Debug)]
pub struct Consumer<T: Plain> {
    place: RingPlace<T>,
    cursor: ConsumerCursor,
}

/// Both ends of a ring in the next part of a region in fresh memory, for two threads of one
/// process.
///
/// # Errors
/// [`RingError`]; nothing was taken of the region.
pub fn ring<T: Plain>(
    parts: &mut RegionParts,
    entries: u32,
) -> Result<(Producer<T>, Consumer<T>), RingError> {
    let place = RingPlace::new(parts, entries)?;
    let consumer = Consumer::at(place.other(), entries);
    Ok((Producer::at(place, entries), consumer))
}

impl<T: Plain> Producer<T> {
    /// The producer's end of a ring in the next part of a region in fresh memory; the other end is
    /// in another process.
    ///
    /// # Errors
    /// [`RingError`]; nothing was taken of the region.
    pub fn new(parts: &mut RegionParts, entries: u32) -> Result<Self, RingError> {
        Ok(Self::at(RingPlace::new(parts, entries)?, entries))
    }

    const fn at(place: RingPlace<T>, entries: u32) -> Self {
        Self { place, cursor: ProducerCursor::new(entries) }
    }

    /// How many records can be put now. Looks at the consumer's index only if fewer than `want` are
    /// known to fit; ask for what you have.
    ///
    /// # Errors
    /// [`RingFault`]: the consumer's fault, and the end of this ring.
    #[inline]
    pub fn reserve(&mut self, want: u32) -> Result<u32, RingFault> {
        self.cursor.room(want, self.place.head())
    }

    /// Records that the ring has room for.
    #[inline]
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.cursor.entries()
    }

    /// Puts a record into the next slot. The consumer sees it after [`Producer::commit`].
    ///
    /// # Errors
    /// [`RingFull`]: nothing was put.
    #[inline]
    pub fn put(&mut self, record: &T) -> Result<(), RingFull> {
        let slot = self.cursor.stage().ok_or(RingFull)?;
        self.place.store(slot, record);
        Ok(())
    }

    /// Says that the slot `ahead` records after the next will be written soon: the consumer's core
    /// has its line. A hint.
    #[inline]
    pub fn expect_room(&self, ahead: u32) {
        bytes::expect_line_to_write(self.place.words(self.cursor.slot_after(ahead)).cast());
    }

    /// Publishes all records put since the last commit, and says how many.
    #[inline]
    pub fn commit(&mut self) -> u32 {
        self.cursor.commit(self.place.tail())
    }

    /// Puts and publishes as many of `records` as fit, from the first on, and says how many.
    ///
    /// # Errors
    /// [`RingFault`]; nothing was put.
    #[inline]
    pub fn send(&mut self, records: &[T]) -> Result<usize, RingFault> {
        let want = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let count = self.reserve(want)?.min(want) as usize;
        for record in &records[..count] {
            // There is room for `count`.
            let _ = self.put(record);
        }
        self.commit();
        Ok(count)
    }

    /// Calls `each` with the records that were put and not released, oldest first. They are read
    /// back from the ring's memory, as in [`Producer::oldest`].
    ///
    /// # Errors
    /// [`RingFault`]: the consumer's fault.
    pub fn each_unreleased(&mut self, mut each: impl FnMut(&T)) -> Result<(), RingFault> {
        for slot in self.cursor.unreleased(self.place.head())? {
            each(&self.place.load(slot));
        }
        Ok(())
    }

    /// The oldest record that was put and, as far as is known, not released; `None`: all were. It
    /// is read back from the ring's memory, so it is what was put only where no other process
    /// writes that.
    #[must_use]
    pub fn oldest(&self) -> Option<T> {
        let slot = self.cursor.oldest()?;
        Some(self.place.load(slot))
    }
}

impl<T: Plain> Consumer<T> {
    /// The consumer's end of a ring in the next part of a region in fresh memory; the other end is
    /// in another process.
    ///
    /// # Errors
    /// [`RingError`]; nothing was taken of the region.
    pub fn new(parts: &mut RegionParts, entries: u32) -> Result<Self, RingError> {
        Ok(Self::at(RingPlace::new(parts, entries)?, entries))
    }

    const fn at(place: RingPlace<T>, entries: u32) -> Self {
        Self { place, cursor: ConsumerCursor::new(entries) }
    }

    /// Records that the ring has room for.
    #[inline]
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.cursor.entries()
    }

    /// How many records wait. Looks at the producer's index only if fewer than `want` are known;
    /// ask for what you can use.
    ///
    /// # Errors
    /// [`RingFault`]: the producer's fault, and the end of this ring.
    #[inline]
    pub fn peek(&mut self, want: u32) -> Result<u32, RingFault> {
        self.cursor.waiting(want, self.place.tail())
    }

    /// Copies the next record out. `None`: none is known; [`Consumer::peek`] looks for more. Its
    /// slot is the producer's again after [`Consumer::release`].
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        let slot = self.cursor.take()?;
        Some(self.place.load(slot))
    }

    /// Copies the next records out, as many as `to` has places and are known. How many; their slots
    /// are the producer's again after [`Consumer::release`].
    #[inline]
    pub fn take_all(&mut self, to: &mut [T]) -> usize {
        let slots = self.cursor.take_most(to.len());
        let count = slots.len();
        for (place, slot) in to.iter_mut().zip(slots) {
            *place = self.place.load(slot);
        }
        count
    }

    /// Gives the slots of all records taken back to the producer, and says how many.
    #[inline]
    pub fn release(&mut self) -> u32 {
        self.cursor.release(self.place.head())
    }

    /// Copies as many records as there are and fit to `to`, releases them, and says how many.
    ///
    /// # Errors
    /// [`RingFault`]; nothing was taken.
    #[inline]
    pub fn receive(&mut self, to: &mut [T]) -> Result<usize, RingFault> {
        let want = u32::try_from(to.len()).unwrap_or(u32::MAX);
        self.peek(want)?;
        let count = self.take_all(to);
        self.release();
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
