//! Loopback: frames of a stack for its own addresses, on their way back without the link.
//!
//! Read first: `docs/decisions/0045-loopback-in-the-stack.md`; `stays_here` of the stack's
//! `Transmit`.
//!
//! Invariant: bounded. While the queue is full the stack is not asked for more frames, so that none
//! is lost here, except without memory for it.

use megapipe_link::TxMetadata;
use megapipe_stack::{Checksums, Received};

use crate::limits::LOOPED_FRAMES_MAX;

/// Frames that wait to be received. Their memory is kept for the next ones.
#[derive(Debug, Default)]
pub(crate) struct LoopbackQueue {
    /// The frames, one behind the other.
    bytes: Vec<u8>,
    /// What the stack wants to be done to each.
    frames: Vec<TxMetadata>,
}

impl LoopbackQueue {
    pub(crate) const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.frames.len() >= LOOPED_FRAMES_MAX
    }

    /// Puts the frame at the start of `room` in. Returns whether there was memory for it; without,
    /// it is lost as a frame on a link is.
    #[cold]
    pub(crate) fn push(&mut self, room: &[u8], transmit: TxMetadata) -> bool {
        debug_assert!(!self.is_full(), "the stack was asked for a frame without room for it");
        let Some(frame) = room.get(..transmit.len) else { return false };
        let reserved = self.bytes.try_reserve(frame.len());
        if reserved.and_then(|()| self.frames.try_reserve(1)).is_err() {
            return false;
        }
        self.bytes.extend_from_slice(frame);
        self.frames.push(transmit);
        true
    }

    /// Lends all frames to `each`, the oldest first, and removes them. How many.
    pub(crate) fn take(&mut self, mut each: impl FnMut(&[u8], TxMetadata)) -> usize {
        self.offer(|frame, transmit| {
            each(frame, transmit);
            true
        })
    }

    /// Lends frames to `takes`, the oldest first, until it refuses one, and removes those that it
    /// has taken. How many.
    pub(crate) fn offer(&mut self, mut takes: impl FnMut(&[u8], TxMetadata) -> bool) -> usize {
        let (mut left, mut count) = (self.bytes.as_slice(), 0);
        for transmit in &self.frames {
            let Some((frame, next)) = left.split_at_checked(transmit.len) else { break };
            if !takes(frame, *transmit) {
                break;
            }
            (left, count) = (next, count + 1);
        }
        let taken_bytes = self.bytes.len() - left.len();
        self.bytes.drain(..taken_bytes);
        self.frames.drain(..count);
        count
    }
}

/// Metadata of a looped frame for the stack. Its checksum may be left to a link, and what a link
/// would have cut is received as one that a link has merged.
pub(crate) const fn received(transmit: TxMetadata) -> Received {
    Received { checksums: Checksums::Looped, segment_bytes: transmit.segment_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_in_order_and_whole() {
        let mut queue = LoopbackQueue::default();
        for round in 0..3 {
            for len in 1..=LOOPED_FRAMES_MAX {
                assert!(!queue.is_full());
                let frame = vec![len as u8 + round; len + 7];
                let metadata = TxMetadata { len, segment_bytes: 9, ..TxMetadata::default() };
                assert!(queue.push(&frame, metadata));
            }
            assert!(queue.is_full());
            let mut lens = 1..;
            let count = queue.take(|frame, transmit| {
                let len = lens.next().unwrap();
                assert_eq!(frame, vec![len as u8 + round; len]);
                let with = Received { checksums: Checksums::Looped, segment_bytes: 9 };
                assert_eq!(received(transmit), with);
            });
            assert_eq!(count, LOOPED_FRAMES_MAX);
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn refused_frames_stay_in_order() {
        let mut queue = LoopbackQueue::default();
        for len in 1..=5 {
            let metadata = TxMetadata { len, ..TxMetadata::default() };
            assert!(queue.push(&[len as u8; 9], metadata));
        }
        assert_eq!(queue.offer(|_, transmit| transmit.len < 3), 2);
        assert_eq!(queue.len(), 3);
        let mut lens = 3..;
        let count = queue.take(|frame, _| {
            let len = lens.next().unwrap();
            assert_eq!(frame, vec![len as u8; len]);
        });
        assert_eq!((count, queue.is_empty()), (3, true));
    }

    #[test]
    fn frame_longer_than_its_room_is_dropped() {
        let mut queue = LoopbackQueue::default();
        assert!(!queue.push(&[0; 10], TxMetadata { len: 11, ..TxMetadata::default() }));
        assert!(queue.is_empty());
    }
}
