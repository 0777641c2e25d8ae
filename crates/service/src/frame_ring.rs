//! Frames on their way from one core to another, each with what its link and the shard that read it
//! know about it.
//!
//! Read first: `megapipe_shm`'s `bip_buffer.rs`: a frame is one of its strings, and all else is its
//! tag.

use megapipe_link::TxMetadata;
use megapipe_shm::{BipConsumer, BipError, BipProducer, RingFault, bip_buffer};
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
    let (producer, consumer) = bip_buffer(entries, area_bytes, frame_bytes)?;
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
    /// How many frames wait.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    pub(crate) fn waiting(&mut self) -> Result<usize, RingFault> {
        self.0.waiting()
    }

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

/// Bytes in front of a frame on its way out: what the link is to do to it.
const OUT_HEADER_BYTES: usize = 12;

/// What a link is to do to a frame, as bytes.
fn header_of(metadata: &TxMetadata) -> [u8; OUT_HEADER_BYTES] {
    let mut bytes = [0; OUT_HEADER_BYTES];
    // A string is shorter than 2^32 bytes.
    bytes[..4].copy_from_slice(&(metadata.len as u32).to_le_bytes());
    let fields = [
        metadata.checksum_start,
        metadata.checksum_field,
        metadata.segment_bytes,
        metadata.header_bytes,
    ];
    for (to, field) in bytes[4..].chunks_exact_mut(2).zip(fields) {
        to.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

/// The frame of a string, and what the link is to do to it. `None`: it is none of
/// [`OutSender`]'s.
fn out_frame(string: &[u8]) -> Option<(&[u8], TxMetadata)> {
    let (header, frame) = string.split_first_chunk::<OUT_HEADER_BYTES>()?;
    let [a, b, c, d, fields @ ..] = *header;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    let field = |at: usize| u16::from_le_bytes([fields[at], fields[at + 1]]);
    let [checksum_start, checksum_field, segment_bytes, header_bytes] =
        [field(0), field(2), field(4), field(6)];
    let metadata = TxMetadata { len, checksum_start, checksum_field, segment_bytes, header_bytes };
    (len == frame.len()).then_some((frame, metadata))
}

/// The end that a shard puts frames in at that a link server is to send, or to steer. For one
/// thread at a time.
#[derive(Debug)]
pub(crate) struct OutSender {
    strings: BipProducer,
    /// Room for one string: frames are filled where their header fits in front.
    scratch: Box<[u8]>,
    /// Bytes of a string in the scratch for which the ring had no room.
    waiting: Option<usize>,
}

/// The end where they come out.
#[derive(Debug)]
pub(crate) struct OutReceiver(BipConsumer);

/// A ring of `entries` frames of at most `frame_bytes` on their way out, over an area of
/// `area_bytes`.
///
/// # Errors
/// [`BipError`].
pub(crate) fn out_ring(
    entries: u32,
    area_bytes: usize,
    frame_bytes: usize,
) -> Result<(OutSender, OutReceiver), BipError> {
    let string_bytes = OUT_HEADER_BYTES + frame_bytes;
    let (strings, consumer) = bip_buffer(entries, area_bytes, string_bytes)?;
    let scratch = vec![0; string_bytes].into();
    Ok((OutSender { strings, scratch, waiting: None }, OutReceiver(consumer)))
}

impl OutSender {
    /// Lets `fill` fill frames until it has none left, `max` are filled or the ring is full. How
    /// many. A frame that was filled and for which there was no room is kept, and goes first next
    /// time.
    ///
    /// # Errors
    /// [`RingFault`]: the receiver's end is broken.
    pub(crate) fn fill(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, RingFault> {
        let mut count = 0;
        while self.put_waiting()? && count < max {
            let (header, room) = self.scratch.split_at_mut(OUT_HEADER_BYTES);
            let Some(metadata) = fill(room) else { break };
            header.copy_from_slice(&header_of(&metadata));
            self.waiting = Some(OUT_HEADER_BYTES + metadata.len);
            count += 1;
        }
        Ok(count)
    }

    /// Puts the frame in that waits for room. Whether none waits any more.
    ///
    /// # Errors
    /// As [`OutSender::fill`].
    pub(crate) fn put_waiting(&mut self) -> Result<bool, RingFault> {
        let Some(string) = self.waiting.and_then(|bytes| self.scratch.get(..bytes)) else {
            self.waiting = None;
            return Ok(true);
        };
        let is_put = self.strings.put(string, 0)?;
        if is_put {
            self.waiting = None;
        }
        Ok(is_put)
    }

    /// Puts a frame in that is to be steered. `note` of 4 bits and `received` go with it. `false`:
    /// there is no room, or the frame is too long.
    ///
    /// # Errors
    /// As [`OutSender::fill`].
    pub(crate) fn put(
        &mut self,
        frame: &[u8],
        metadata: &TxMetadata,
        (received, note): (Received, u8),
    ) -> Result<bool, RingFault> {
        if self.waiting.is_some() {
            return Ok(false);
        }
        let string_bytes = OUT_HEADER_BYTES + frame.len();
        let Some(string) = self.scratch.get_mut(..string_bytes) else { return Ok(false) };
        string[..OUT_HEADER_BYTES].copy_from_slice(&header_of(metadata));
        string[OUT_HEADER_BYTES..].copy_from_slice(frame);
        self.strings.put(string, tag_of(received, note))
    }

    /// Shows the receiver what was put in. Whether there was anything.
    pub(crate) fn commit(&mut self) -> bool {
        self.strings.commit()
    }
}

impl OutReceiver {
    /// Lends at most `max` frames to `each`, the oldest first. How many.
    ///
    /// # Errors
    /// [`RingFault`]: the sender's end is broken.
    pub(crate) fn receive(
        &mut self,
        max: usize,
        mut each: impl FnMut(&[u8], TxMetadata, (Received, u8)),
    ) -> Result<usize, RingFault> {
        self.0.receive(max, |string, tag| {
            if let Some((frame, metadata)) = out_frame(string) {
                each(frame, metadata, of_tag(tag));
            }
        })
    }

    /// Moves the oldest frame to the start of `room`, which every frame that was lent room for
    /// sending fits. `None`: there is none.
    ///
    /// # Errors
    /// As [`OutReceiver::receive`].
    pub(crate) fn next_into(&mut self, room: &mut [u8]) -> Result<Option<TxMetadata>, RingFault> {
        let mut moved = None;
        self.receive(1, |frame, metadata, _| {
            if let Some(to) = room.get_mut(..frame.len()) {
                to.copy_from_slice(frame);
                moved = Some(metadata);
            }
        })?;
        Ok(moved)
    }

    /// Frames wait.
    ///
    /// # Errors
    /// As [`OutReceiver::receive`].
    pub(crate) fn has_frames(&mut self) -> Result<bool, RingFault> {
        self.0.has_strings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_on_their_way_out_keep_their_order_and_wait_for_room() {
        let (mut sender, mut receiver) = out_ring(4, 4 << 10, 1500).unwrap();
        let metadata = |len| TxMetadata {
            len,
            checksum_start: 34,
            checksum_field: 16,
            segment_bytes: len as u16,
            header_bytes: 66,
        };
        let mut lens = 1000..;
        let mut fill = |room: &mut [u8]| {
            let len = lens.next()?;
            room[..len].fill(len as u8);
            Some(metadata(len))
        };
        let filled = sender.fill(100, &mut fill).unwrap();
        assert!((3..=5).contains(&filled), "the ring holds 2 to 4, and one waits: {filled}");
        assert!(!sender.put_waiting().unwrap() && sender.commit());
        let mut room = [0; 1600];
        for len in 1000..2000 {
            let got = loop {
                match receiver.next_into(&mut room).unwrap() {
                    Some(got) => break got,
                    None => assert!(sender.fill(100, &mut fill).is_ok() && sender.commit()),
                }
            };
            assert_eq!(got, metadata(len));
            assert!(room[..len].iter().all(|byte| *byte == len as u8));
            if len == 1400 {
                break;
            }
        }
    }

    #[test]
    fn frames_to_be_steered_keep_their_note() {
        let (mut sender, mut receiver) = out_ring(4, 4 << 10, 1500).unwrap();
        let with = Received { checksums: Checksums::Looped, segment_bytes: 1448 };
        let metadata = TxMetadata { len: 70, ..TxMetadata::default() };
        assert!(sender.put(&[7; 70], &metadata, (with, 9)).unwrap());
        assert!(!receiver.has_frames().unwrap() && sender.commit());
        assert!(receiver.has_frames().unwrap());
        let taken = receiver.receive(9, |frame, its, tagged| {
            assert_eq!((frame, its, tagged), (&[7; 70][..], metadata, (with, 9)));
        });
        assert_eq!(taken, Ok(1));
        assert!(!sender.put(&[7; 1501], &metadata, (with, 0)).unwrap(), "too long");
    }

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
