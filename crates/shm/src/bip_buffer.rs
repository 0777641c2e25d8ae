//! Strings of bytes from one thread to another, each in one piece, and read where it lies: a bip
//! buffer.
//!
//! ```text
//!   sender                                            receiver
//!   bytes behind one another in an area  ----------->  lent where they lie
//!   a record for each in a ring: where, how long  -->  taken in the same order
//! ```
//!
//! Read first: Cooke, "The Bip Buffer: The Circular Buffer with a Twist", 2003; `ring.rs`, whose
//! indices say whose which bytes are: the area has no index of its own, what is taken of it begins
//! where the oldest record says that the receiver has not released.
//!
//! Invariants
//! - The memory is private to the two ends, which are made together: nothing else can write it, so
//!   bytes may be lent as a slice.
//! - What begins at a record's line is the receiver's from the commit of the record to its release,
//!   and the sender's before and after.
//! - A string lies in one piece, at a cache line's start.
//! - Nothing allocates after the ends were made.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::bytes;
use crate::cursor::RingFault;
use crate::limits::{
    BIP_AREA_BYTES_MAX, BIP_STRING_BYTES_MAX, BIP_TAG_BITS, COPY_IN_LINES_MAX, LINE_BYTES,
};
use crate::region::{OutOfRegion, Part, Region, RegionError};
use crate::ring::{Consumer, Producer, RingError, ring, ring_bytes};

/// Records that are taken before the first of their strings is lent.
const TAKEN_AT_ONCE: usize = 64;
/// How many strings ahead of the one in hand bytes are asked for: small ones have two lines each,
/// and a core waits for about sixteen at a time.
const LOOK_AHEAD: usize = 8;
/// Lines that are asked for at a look, before the next string: those of so many small ones.
const FIRST_LINES: usize = 2 * LOOK_AHEAD;
/// Records of a line.
const LINE_RECORDS: u32 = (LINE_BYTES / size_of::<u64>()) as u32;
/// Lines of records that are asked for at a look, at most.
const FIRST_RECORD_LINES: u32 = 8;

const LEN_BITS: u32 = 17;
const LINE_BITS: u32 = 24;

const _: () = assert!(BIP_STRING_BYTES_MAX < 1 << LEN_BITS);
const _: () = assert!(BIP_AREA_BYTES_MAX / LINE_BYTES <= 1 << LINE_BITS);
const _: () = assert!(LEN_BITS + LINE_BITS + BIP_TAG_BITS == u64::BITS);

/// Why there is no bip buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BipError {
    /// The caller asked for an area that a record cannot point into.
    #[error("an area has 64 to {BIP_AREA_BYTES_MAX} bytes in whole lines, not {bytes}")]
    Area {
        /// What was asked for.
        bytes: usize,
    },
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The number of records.
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl From<OutOfRegion> for BipError {
    fn from(out: OutOfRegion) -> Self {
        Self::Ring(RingError::Region(out))
    }
}

/// A string's place and tag in 64 bits: its length, the line that it begins at, and what the sender
/// says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StringPlace {
    line: usize,
    len: usize,
    tag: u32,
}

impl StringPlace {
    #[inline]
    const fn pack(self) -> u64 {
        self.len as u64
            | (self.line as u64) << LEN_BITS
            | (self.tag as u64) << (LEN_BITS + LINE_BITS)
    }

    #[inline]
    const fn unpack(word: u64) -> Self {
        Self {
            len: (word & ((1 << LEN_BITS) - 1)) as usize,
            line: (word >> LEN_BITS & ((1 << LINE_BITS) - 1)) as usize,
            tag: (word >> (LEN_BITS + LINE_BITS)) as u32,
        }
    }
}

/// Where the strings lie.
#[derive(Debug)]
struct Area {
    /// Keeps the memory mapped.
    _part: Arc<Part>,
    start: NonNull<u8>,
}

// SAFETY: the pointer is into the part, which is `Send + Sync` and kept by the value.
unsafe impl Send for Area {}

impl Area {
    /// The address of a line, in the area or not.
    #[inline]
    const fn line(&self, line: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(line * LINE_BYTES)
    }

    /// Asks for the first lines of a string of `len` bytes that begins at a line. Most have two;
    /// the second of one that has not is, as a rule, the next one's first.
    #[inline(always)]
    fn expect(&self, line: usize, len: usize, expect: impl Fn(*const u8)) {
        expect(self.line(line));
        expect(self.line(line + 1));
        if len > 2 * LINE_BYTES {
            expect(self.line(line + 2));
            expect(self.line(line + 3));
        }
    }
}

/// Which lines of the area are taken: those from the oldest string to where the next one begins,
/// around the area's end.
#[derive(Debug)]
struct Space {
    lines: usize,
    /// Where the next string begins, if it fits before the end.
    next: usize,
    /// So many lines from there on are free, as is known without a look; and there is a record for
    /// each string that will be put there.
    clear: usize,
}

impl Space {
    const fn new(bytes: usize) -> Self {
        Self { lines: bytes / LINE_BYTES, next: 0, clear: 0 }
    }

    /// Takes some of the clear lines for the next string. Where they begin.
    #[inline]
    const fn take(&mut self, lines: usize) -> usize {
        let start = self.next;
        self.next += lines;
        self.clear -= lines;
        start
    }

    /// Clears what it can for a string of `lines` lines, where the oldest string that is kept
    /// begins at a line (`None`: no string is), and there are so many records.
    fn clear(&mut self, oldest: Option<usize>, lines: usize, records: u32) {
        let clear = match oldest {
            None => {
                // What the receiver has read last is in both caches.
                self.next = 0;
                self.lines
            }
            // All are taken, as no string has no lines.
            Some(oldest) if oldest == self.next => 0,
            Some(oldest) if oldest > self.next => oldest - self.next,
            Some(oldest) if self.lines - self.next < lines && lines <= oldest => {
                self.next = 0;
                oldest
            }
            Some(_) => self.lines - self.next,
        };
        let records = records as usize;
        // For the string, if it fits, a record is enough; for others there is one for each line.
        let most = if records > 0 && lines <= clear { lines.max(records) } else { records };
        self.clear = clear.min(most);
    }
}

/// The end that strings are put in at. For one thread at a time.
#[derive(Debug)]
pub struct BipProducer {
    records: Producer<u64>,
    area: Area,
    space: Space,
    entries: u32,
    string_bytes: usize,
}

/// The end where they come out. For one thread at a time.
#[derive(Debug)]
pub struct BipConsumer {
    records: Consumer<u64>,
    area: Area,
}

/// Both ends of a bip buffer in memory of its own: `entries` records, a power of two, over an area
/// of `area_bytes`, a multiple of 64, for strings of at most `string_bytes`.
///
/// # Errors
/// [`BipError`].
pub fn bip_buffer(
    entries: u32,
    area_bytes: usize,
    string_bytes: usize,
) -> Result<(BipProducer, BipConsumer), BipError> {
    let range = LINE_BYTES..=BIP_AREA_BYTES_MAX;
    if !range.contains(&area_bytes) || !area_bytes.is_multiple_of(LINE_BYTES) {
        return Err(BipError::Area { bytes: area_bytes });
    }
    let mut parts = Region::heap(ring_bytes::<u64>(entries) + area_bytes)?.into_parts();
    let (producer, consumer) = ring::<u64>(&mut parts, entries)?;
    let part = Arc::new(parts.take(area_bytes)?);
    let area = || Area { start: part.start(), _part: Arc::clone(&part) };
    let sender = BipProducer {
        records: producer,
        area: area(),
        space: Space::new(area_bytes),
        entries,
        string_bytes: string_bytes.min(BIP_STRING_BYTES_MAX),
    };
    Ok((sender, BipConsumer { records: consumer, area: area() }))
}

impl BipProducer {
    /// Puts a string in, with a tag of 23 bits; the receiver sees both after
    /// [`BipProducer::commit`]. `false`: there is no room, the string is empty or too long, and was
    /// not taken.
    ///
    /// # Errors
    /// [`RingFault`]: the receiver's end is broken.
    #[inline(always)]
    pub fn put(&mut self, string: &[u8], tag: u32) -> Result<bool, RingFault> {
        debug_assert!(tag >> BIP_TAG_BITS == 0, "a tag has 23 bits");
        if string.is_empty() || string.len() > self.string_bytes {
            return Ok(false);
        }
        let lines = string.len().div_ceil(LINE_BYTES);
        if lines > self.space.clear && !self.look(lines)? {
            return Ok(false);
        }
        let line = self.space.take(lines);
        // Where a string after the next may lie, if they are like this one: the receiver's core has
        // those lines.
        self.area.expect(line + LOOK_AHEAD * lines, string.len(), bytes::expect_line_to_write);
        // SAFETY: the lines that the string takes were clear: in the area, and the sender's (the
        // module's invariant), which is this; nothing refers to them.
        unsafe { copy_in(string, self.area.line(line)) };
        let put = self.records.put(&StringPlace { line, len: string.len(), tag }.pack());
        debug_assert!(put.is_ok(), "`clear` says that there is one");
        Ok(true)
    }

    /// Sees what the receiver has released. Whether there is room for a string of `lines` lines.
    #[cold]
    fn look(&mut self, lines: usize) -> Result<bool, RingFault> {
        // Should the ring be broken, nothing fits any more.
        self.space.clear = 0;
        let room = self.records.reserve(self.entries)?;
        let oldest = self.records.oldest().map(|word| StringPlace::unpack(word).line);
        self.space.clear(oldest, lines, room);
        if lines > self.space.clear {
            return Ok(false);
        }
        for ahead in 0..FIRST_RECORD_LINES.min(room.div_ceil(LINE_RECORDS)) {
            self.records.expect_room(ahead * LINE_RECORDS);
        }
        for ahead in 0..self.space.clear.min(FIRST_LINES) {
            bytes::expect_line_to_write(self.area.line(self.space.next + ahead));
        }
        Ok(true)
    }

    /// Shows the receiver what was put in. Whether there was anything.
    #[inline]
    pub fn commit(&mut self) -> bool {
        // How far has the receiver come? The next burst begins with a look: what was taken is
        // filled again before the rest of the area, and so while it is in a cache.
        self.space.clear = 0;
        self.records.commit() > 0
    }
}

impl BipConsumer {
    /// Lends at most `max` strings to `each`, the oldest first, with the tag of each. How many.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    #[inline]
    pub fn receive(
        &mut self,
        max: usize,
        mut each: impl FnMut(&[u8], u32),
    ) -> Result<usize, RingFault> {
        let most = u32::try_from(max).unwrap_or(u32::MAX);
        let count = self.records.peek(most)?.min(most) as usize;
        let mut places = [0; TAKEN_AT_ONCE];
        let mut left = count;
        while left > 0 {
            let places = &mut places[..left.min(TAKEN_AT_ONCE)];
            self.records.take_all(places);
            left -= places.len();
            places.iter().take(LOOK_AHEAD).for_each(|place| self.expect(*place));
            for (index, place) in places.iter().enumerate() {
                if let Some(next) = places.get(index + LOOK_AHEAD) {
                    self.expect(*next);
                }
                let StringPlace { line, len, tag } = StringPlace::unpack(*place);
                // SAFETY: the sender wrote the record, and nothing else can (the module's first
                // invariant): it names bytes of the area that it has filled. They were committed,
                // and are released below, after the slice's last use, because `each` cannot keep
                // it: until then the sender writes none of them.
                let string = unsafe { slice::from_raw_parts(self.area.line(line), len) };
                each(string, tag);
            }
        }
        self.records.release();
        Ok(count)
    }

    /// How many strings wait.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    pub fn waiting(&mut self) -> Result<usize, RingFault> {
        Ok(self.records.peek(u32::MAX)? as usize)
    }

    /// Strings wait.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    #[inline]
    pub fn has_strings(&mut self) -> Result<bool, RingFault> {
        Ok(self.records.peek(1)? > 0)
    }

    /// They lie in the other core's cache, and come while the strings before are read.
    #[inline]
    fn expect(&self, place: u64) {
        let StringPlace { line, len, .. } = StringPlace::unpack(place);
        self.area.expect(line, len, bytes::expect_line);
    }
}

/// Copies a string. What is usual moves in whole lines, in line: the last one ends where the string
/// does, and overlaps the one before.
///
/// # Safety
/// `to` may be written for `from.len()` bytes, and nothing refers to them.
#[inline]
unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let len = from.len();
    if !(LINE_BYTES..=COPY_IN_LINES_MAX).contains(&len) {
        // SAFETY: both for `len` bytes, by the slice and the caller's promise; the slice is no
        // reference to bytes at `to`, of which there are none, so they do not overlap.
        return unsafe { from.as_ptr().copy_to_nonoverlapping(to, len) };
    }
    let last = len - LINE_BYTES;
    // Four lines at most, and so no loop, of which the compiler would make a call.
    for at in [0, LINE_BYTES, 2 * LINE_BYTES] {
        if at < last {
            // SAFETY: `at + LINE_BYTES` is less than `len`; the rest is as above.
            unsafe { copy_line(from.as_ptr(), to, at) };
        }
    }
    // SAFETY: `last + LINE_BYTES` is `len`; the rest is as above.
    unsafe { copy_line(from.as_ptr(), to, last) };
}

/// Copies 64 bytes, from and to `at`.
///
/// # Safety
/// `from` may be read and `to` written for 64 bytes from `at` on, and they lie apart.
#[inline(always)]
unsafe fn copy_line(from: *const u8, to: *mut u8, at: usize) {
    // SAFETY: in what `from` may be read for.
    let from = unsafe { from.add(at) }.cast::<[u8; LINE_BYTES]>();
    // SAFETY: in what `to` may be written for.
    let to = unsafe { to.add(at) }.cast::<[u8; LINE_BYTES]>();
    // SAFETY: the caller's promise; an array of bytes has no alignment.
    unsafe { from.copy_to_nonoverlapping(to, 1) };
}

#[cfg(test)]
mod tests;
