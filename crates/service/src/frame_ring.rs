//! Frames on their way from one core to another.
//!
//! ```text
//!   sender                                            receiver
//!   bytes behind one another in an area  ----------->  copied out, lent
//!   a record for each in a ring: where, how long  -->  taken in the same order
//! ```
//!
//! Read first: `megapipe_shm`'s `ring.rs`, whose indices say whose which bytes are: an area has no
//! index of its own, the sender frees the bytes of each record that the receiver has released.
//!
//! Invariants
//! - A frame lies in one piece, at a cache line's start.
//! - Nothing allocates after the ring was made.

use std::collections::VecDeque;
use std::sync::Arc;

use megapipe_shm::{
    Consumer, Producer, Region, RegionError, RingError, RingFault, RingLayout, ring,
};
use megapipe_stack::{Checksums, Received};

/// What a frame's place is rounded up to.
const LINE_BYTES: usize = 64;
/// Records that are taken before the first of their frames is read.
const TAKEN_AT_ONCE: usize = 64;
/// How many frames ahead of the one in hand bytes are asked for.
const LOOK_AHEAD: usize = 3;
/// Bytes of a frame that are asked for; those of a longer one the processor finds itself.
const LOOK_AHEAD_BYTES: usize = 256;
/// The longest frame that a record can name.
pub(crate) const FRAME_BYTES_MAX: usize = (1 << 17) - 1;

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum FrameRingError {
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The number of records.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// A frame's place and what came with it, in 64 bits: its length in 17, the line that it begins at
/// in 24, the payload of each merged segment in 16, a note in 4, and whether its checksum is
/// vouched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    line: u32,
    len: usize,
    received: Received,
    note: u8,
}

impl Place {
    const fn pack(self) -> u64 {
        let verified = matches!(self.received.checksums, Checksums::Verified) as u64;
        self.len as u64
            | (self.line as u64) << 17
            | (self.received.segment_bytes as u64) << 41
            | (self.note as u64 & 15) << 57
            | verified << 61
    }

    const fn unpack(word: u64) -> Self {
        let checksums =
            if word >> 61 & 1 == 1 { Checksums::Verified } else { Checksums::Unverified };
        Self {
            line: (word >> 17 & 0xff_ffff) as u32,
            len: (word & 0x1_ffff) as usize,
            received: Received { checksums, segment_bytes: (word >> 41 & 0xffff) as u16 },
            note: (word >> 57 & 15) as u8,
        }
    }
}

/// Which bytes of the area are taken, in the order in which they come free.
#[derive(Debug)]
struct Area {
    bytes: usize,
    /// Where the next frame begins, if it fits before the end.
    next: usize,
    used: usize,
    /// What each frame takes, with what was left at the area's end before it.
    taken: VecDeque<usize>,
}

impl Area {
    fn new(bytes: usize, frames: usize) -> Self {
        Self { bytes, next: 0, used: 0, taken: VecDeque::with_capacity(frames) }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        let len = len.next_multiple_of(LINE_BYTES);
        if self.used == 0 {
            self.next = 0;
        }
        let to_end = self.bytes - self.next;
        let (start, skipped) = if len > to_end { (0, to_end) } else { (self.next, 0) };
        if self.used + skipped + len > self.bytes {
            return None;
        }
        // No remainders: a division takes longer than everything else here.
        self.next = if start + len == self.bytes { 0 } else { start + len };
        self.used += skipped + len;
        self.taken.push_back(skipped + len);
        Some(start)
    }

    /// All but the last `frames` are free again.
    fn keep(&mut self, frames: usize) {
        while self.taken.len() > frames {
            self.used -= self.taken.pop_front().unwrap_or_default();
        }
    }
}

/// The end that frames are put in at. For one thread at a time.
#[derive(Debug)]
pub(crate) struct FrameSender {
    records: Producer<u64>,
    region: Arc<Region>,
    area_at: usize,
    area: Area,
    entries: u32,
    frame_bytes: usize,
    staged: u32,
}

/// The end where they come out.
#[derive(Debug)]
pub(crate) struct FrameReceiver {
    records: Consumer<u64>,
    region: Arc<Region>,
    area_at: usize,
    frame: Box<[u8]>,
}

/// A ring of `entries` records, a power of two, over an area of `area_bytes`, for frames of at most
/// `frame_bytes`.
///
/// # Errors
/// [`FrameRingError`].
pub(crate) fn frame_ring(
    entries: u32,
    area_bytes: usize,
    frame_bytes: usize,
) -> Result<(FrameSender, FrameReceiver), FrameRingError> {
    let frame_bytes = frame_bytes.min(FRAME_BYTES_MAX);
    let area_at = RingLayout::bytes::<u64>(entries);
    let region = Arc::new(Region::heap(area_at + area_bytes)?);
    let (producer, consumer) = ring::<u64>(&region, RingLayout { offset: 0, entries })?;
    let sender = FrameSender {
        records: producer,
        region: Arc::clone(&region),
        area_at,
        area: Area::new(area_bytes, entries as usize),
        entries,
        frame_bytes,
        staged: 0,
    };
    let frame = vec![0; frame_bytes].into();
    Ok((sender, FrameReceiver { records: consumer, region, area_at, frame }))
}

impl FrameSender {
    /// Puts a frame in, with a note of 4 bits; the receiver sees it after [`FrameSender::commit`].
    /// `false`: the ring is full, and the frame was not taken.
    ///
    /// # Errors
    /// [`RingFault`]: the receiver's end is broken.
    pub(crate) fn push(
        &mut self,
        frame: &[u8],
        received: Received,
        note: u8,
    ) -> Result<bool, RingFault> {
        if frame.is_empty() || frame.len() > self.frame_bytes {
            return Ok(false);
        }
        if self.staged == 0 {
            // How far has the receiver come? Once in a burst: what it has taken is filled again
            // before the rest of the area, and so while it is in a cache.
            self.free_taken()?;
        }
        if self.records.reserve(1)? == 0 {
            return Ok(false);
        }
        let start = match self.area.take(frame.len()) {
            Some(start) => start,
            None => {
                self.free_taken()?;
                match self.area.take(frame.len()) {
                    Some(start) => start,
                    None => return Ok(false),
                }
            }
        };
        // Where the frames after the next may lie, if they are like this one: the receiver's core
        // has those lines.
        let len = frame.len().next_multiple_of(LINE_BYTES);
        let ahead = self.area_at + start + LOOK_AHEAD * len;
        self.region.expect_to_write(ahead, len.min(LOOK_AHEAD_BYTES));
        let place = Place { line: (start / LINE_BYTES) as u32, len: frame.len(), received, note };
        let written = self.region.write(self.area_at + start, frame);
        let put = self.records.put(&place.pack());
        debug_assert!(written.is_ok() && put.is_ok(), "there was room for both");
        self.staged += 1;
        Ok(true)
    }

    /// Frees the bytes of all records that the receiver has released.
    fn free_taken(&mut self) -> Result<(), RingFault> {
        self.records.reserve(self.entries)?;
        self.area.keep((self.records.outstanding() + self.staged) as usize);
        Ok(())
    }

    /// Shows the receiver what was put in. Whether there was anything.
    pub(crate) fn commit(&mut self) -> bool {
        if self.staged == 0 {
            return false;
        }
        self.staged = 0;
        self.records.commit() > 0
    }
}

impl FrameReceiver {
    /// Lends at most `max` frames to `each`, the oldest first, with the note of each.
    /// How many.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    pub(crate) fn receive(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], Received, u8),
    ) -> Result<usize, RingFault> {
        let count = self.records.peek(max as u32)?.min(max as u32) as usize;
        let mut places = [0; TAKEN_AT_ONCE];
        let mut left = count;
        while left > 0 {
            let places = &mut places[..left.min(TAKEN_AT_ONCE)];
            left -= places.len();
            places.iter_mut().for_each(|place| *place = self.records.take().unwrap_or_default());
            for (index, place) in places.iter().enumerate() {
                // They lie in the other core's cache, and come while the frames before are read.
                if let Some(next) = places.get(index + LOOK_AHEAD) {
                    let next = Place::unpack(*next);
                    let len = next.len.min(LOOK_AHEAD_BYTES);
                    self.region.expect(self.area_at + next.line as usize * LINE_BYTES, len);
                }
                let place = Place::unpack(*place);
                let at = self.area_at + place.line as usize * LINE_BYTES;
                let frame = &mut self.frame[..place.len];
                let read = self.region.read(at, frame);
                debug_assert!(read.is_ok(), "the sender's place lies in the area");
                each(frame, place.received, place.note);
            }
        }
        self.records.release();
        Ok(count)
    }

    /// Frames wait.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    pub(crate) fn has_frames(&mut self) -> Result<bool, RingFault> {
        Ok(self.records.peek(1)? > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64, len: usize) -> Vec<u8> {
        (0..len).map(|place| (number as usize * 31 + place) as u8).collect()
    }

    #[test]
    fn what_came_with_a_frame_goes_with_it() {
        for (segment_bytes, checksums, note) in
            [(0, Checksums::Unverified, 0), (u16::MAX, Checksums::Verified, 15)]
        {
            let received = Received { checksums, segment_bytes };
            let place = Place { line: 0xff_ffff, len: FRAME_BYTES_MAX, received, note };
            assert_eq!(Place::unpack(place.pack()), place);
        }
    }

    #[test]
    fn frames_of_all_lengths_come_out_as_they_went_in() {
        let (mut sender, mut receiver) = frame_ring(64, 8 << 10, 4096).unwrap();
        let (mut sent, mut taken, mut refused) = (0_u64, 0_u64, 0);
        let len = |number: u64| 1 + (number * 7919 % 3000) as usize;
        for round in 0..5_000 {
            for _ in 0..round % 7 {
                if sender.push(&numbered(sent, len(sent)), Received::default(), 3).unwrap() {
                    sent += 1;
                } else {
                    refused += 1;
                }
            }
            sender.commit();
            let took = receiver.receive(round % 5, &mut |frame, _, note| {
                assert_eq!((frame, note), (&numbered(taken, len(taken))[..], 3));
                taken += 1;
            });
            assert!(took.unwrap() <= round % 5);
        }
        while receiver.has_frames().unwrap() {
            receiver.receive(9, &mut |_, _, _| taken += 1).unwrap();
        }
        assert_eq!(sent, taken);
        assert!(sent > 5_000 && refused > 100, "{sent} sent, {refused} refused");
    }

    #[test]
    fn what_is_not_committed_is_not_seen_and_too_long_is_not_taken() {
        let (mut sender, mut receiver) = frame_ring(2, 1 << 20, FRAME_BYTES_MAX).unwrap();
        assert!(!sender.commit());
        assert!(sender.push(&[1; 60], Received::default(), 0).unwrap());
        assert!(!receiver.has_frames().unwrap());
        assert!(sender.commit() && receiver.has_frames().unwrap());
        assert!(!sender.push(&[0; FRAME_BYTES_MAX + 1], Received::default(), 0).unwrap());
        assert!(!sender.push(&[], Received::default(), 0).unwrap());
        assert!(sender.push(&[2; 60], Received::default(), 0).unwrap());
        assert!(!sender.push(&[3; 60], Received::default(), 0).unwrap(), "two are the most");
    }
}
