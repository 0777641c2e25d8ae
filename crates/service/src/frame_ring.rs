//! Frames on their way from one core to another, each with what its link and the shard that read it
//! know about it.
//!
//! Read first: `megapipe_shm`'s `bip_buffer.rs`: a frame is one of its strings, and all else is its
//! tag.

use megapipe_shm::{BipConsumer, BipError, BipProducer, RingFault, bip};
use megapipe_stack::{Checksums, Received};

/// The payload of each merged segment in 16 bits, a note in 4, and what is known of the checksum in
/// 2.
#[inline]
const fn tag_of(received: Received, note: u8) -> u32 {
    let checksums = match received.checksums {
        Checksums::Unverified => 0_u32,
        Checksums::Verified => 1,
        Checksums::Looped => 2,
    };
    received.segment_bytes as u32 | (note as u32 & 15) << 16 | checksums << 20
}

#[inline]
const fn of_tag(tag: u32) -> (Received, u8) {
    let checksums = match tag >> 20 & 3 {
        0 => Checksums::Unverified,
        1 => Checksums::Verified,
        _ => Checksums::Looped,
    };
    (Received { checksums, segment_bytes: tag as u16 }, (tag >> 16 & 15) as u8)
}

/// The end that frames are put in at. For one thread at a time.
#[derive(Debug)]
pub(crate) struct FrameSender(BipProducer);

/// The end where they come out.
#[derive(Debug)]
pub(crate) struct FrameReceiver(BipConsumer);

/// A ring of `entries` frames, a power of two, over an area of `area_bytes`, for frames of at most
/// `frame_bytes`.
///
/// # Errors
/// [`BipError`].
pub(crate) fn frame_ring(
    entries: u32,
    area_bytes: usize,
    frame_bytes: usize,
) -> Result<(FrameSender, FrameReceiver), BipError> {
    let (producer, consumer) = bip(entries, area_bytes, frame_bytes)?;
    Ok((FrameSender(producer), FrameReceiver(consumer)))
}

impl FrameSender {
    /// Puts a frame in, with a note of 4 bits; the receiver sees it after [`FrameSender::commit`].
    /// `false`: the ring is full, and the frame was not taken.
    ///
    /// # Errors
    /// [`RingFault`]: the receiver's end is broken.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        frame: &[u8],
        received: Received,
        note: u8,
    ) -> Result<bool, RingFault> {
        self.0.put(frame, tag_of(received, note))
    }

    /// Shows the receiver what was put in. Whether there was anything.
    #[inline]
    pub(crate) fn commit(&mut self) -> bool {
        self.0.commit()
    }
}

impl FrameReceiver {
    /// Lends at most `max` frames to `each`, the oldest first, with the note of each. How many.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        max: usize,
        mut each: impl FnMut(&[u8], Received, u8),
    ) -> Result<usize, RingFault> {
        self.0.receive(max, |frame, tag| {
            let (received, note) = of_tag(tag);
            each(frame, received, note);
        })
    }

    /// Frames wait.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    pub(crate) fn has_frames(&mut self) -> Result<bool, RingFault> {
        self.0.has_strings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_with_a_frame_goes_with_it() {
        let (mut sender, mut receiver) = frame_ring(64, 8 << 10, 4096).unwrap();
        for (segment_bytes, checksums, note) in [
            (0, Checksums::Unverified, 0),
            (1448, Checksums::Unverified, 9),
            (u16::MAX, Checksums::Verified, 15),
            (1448, Checksums::Looped, 1),
        ] {
            let with = Received { checksums, segment_bytes };
            assert!(sender.push(&[note; 70], with, note).unwrap());
            assert!(sender.commit() && receiver.has_frames().unwrap());
            let taken = receiver.receive(9, |frame, received, its| {
                assert_eq!((frame, received, its), (&[note; 70][..], with, note));
            });
            assert_eq!(taken, Ok(1));
        }
    }
}
