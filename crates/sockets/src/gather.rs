//! The caller's memory on both ways, in one piece or several (readv(2), writev(2)), and what a
//! receive call returns beside it.
//!
//! Invariants
//! - `filled + left` (`taken + left`) is the length of all pieces together.
//! - `at` names the piece that `filled` (`taken`) is in, and `offset` the place in it.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use crate::flags::MsgFlags;

/// Memory to be filled, from the front.
pub(crate) struct ReceivePieces<'pieces, 'bytes> {
    pieces: &'pieces mut [IoSliceMut<'bytes>],
    at: usize,
    offset: usize,
    filled: usize,
    left: usize,
}

impl<'pieces, 'bytes> ReceivePieces<'pieces, 'bytes> {
    pub(crate) fn new(pieces: &'pieces mut [IoSliceMut<'bytes>]) -> Self {
        let left = pieces.iter().map(|piece| piece.len()).sum();
        Self { pieces, at: 0, offset: 0, filled: 0, left }
    }

    pub(crate) const fn filled(&self) -> usize {
        self.filled
    }

    pub(crate) const fn left(&self) -> usize {
        self.left
    }

    /// All of it, if it is one piece and nothing was filled yet. What is put there is not counted.
    #[inline]
    pub(crate) fn only_piece(&mut self) -> Option<&mut [u8]> {
        match self.pieces {
            [piece] if self.filled == 0 => Some(piece),
            _ => None,
        }
    }

    /// From the front again.
    pub(crate) const fn rewind(&mut self) {
        self.left += self.filled;
        (self.at, self.offset, self.filled) = (0, 0, 0);
    }

    /// Copies `bytes` to where it is, or only counts them. No more than `left`.
    pub(crate) fn put(&mut self, mut bytes: &[u8], discards: bool) {
        let len = bytes.len().min(self.left);
        self.filled += len;
        self.left -= len;
        if discards {
            return;
        }
        bytes = &bytes[..len];
        while !bytes.is_empty() {
            let Some(piece) = self.pieces.get_mut(self.at) else { return };
            let room = &mut piece[self.offset..];
            if room.is_empty() {
                (self.at, self.offset) = (self.at + 1, 0);
                continue;
            }
            let step = room.len().min(bytes.len());
            room[..step].copy_from_slice(&bytes[..step]);
            self.offset += step;
            bytes = &bytes[step..];
        }
    }
}

/// What `recvmsg` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedMessage {
    /// Bytes that were copied; with MSG_TRUNC asked for, the datagram's whole length.
    pub len: usize,
    /// The sender; `None` for a connection.
    pub from: Option<SocketAddr>,
    /// [`MsgFlags::TRUNC`]: the datagram was longer than there was room for.
    /// [`MsgFlags::CTRUNC`]: there was more control data than room for it.
    pub flags: MsgFlags,
    /// Bytes of control data.
    pub control_len: usize,
}

impl ReceivedMessage {
    pub(crate) const NOTHING: Self =
        Self { len: 0, from: None, flags: MsgFlags::empty(), control_len: 0 };
}

/// Where a message goes, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageTarget<'a> {
    /// The address that the call names.
    pub(crate) to: Option<SocketAddr>,
    /// Its control data, as in cmsg(3).
    pub(crate) control: &'a [u8],
    pub(crate) flags: MsgFlags,
}

impl MessageTarget<'_> {
    /// That of write(2).
    pub(crate) const NONE: Self = Self { to: None, control: &[], flags: MsgFlags::empty() };
}

/// Bytes to be sent, from the front.
pub(crate) struct SendPieces<'bytes> {
    pieces: &'bytes [IoSlice<'bytes>],
    at: usize,
    offset: usize,
    taken: usize,
    left: usize,
}

/// A place in bytes to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendPosition {
    at: usize,
    offset: usize,
    taken: usize,
    left: usize,
}

impl<'bytes> SendPieces<'bytes> {
    pub(crate) fn new(pieces: &'bytes [IoSlice<'bytes>]) -> Self {
        let left = pieces.iter().map(|piece| piece.len()).sum();
        Self { pieces, at: 0, offset: 0, taken: 0, left }
    }

    pub(crate) const fn taken(&self) -> usize {
        self.taken
    }

    pub(crate) const fn left(&self) -> usize {
        self.left
    }

    /// All of it, if it is one piece and nothing was taken yet.
    #[inline]
    pub(crate) fn only_piece(&self) -> Option<&'bytes [u8]> {
        match self.pieces {
            [piece] if self.taken == 0 => Some(piece),
            _ => None,
        }
    }

    /// From the front again.
    pub(crate) const fn rewind(&mut self) {
        self.left += self.taken;
        (self.at, self.offset, self.taken) = (0, 0, 0);
    }

    /// Where it is, for [`SendPieces::return_to`].
    pub(crate) const fn position(&self) -> SendPosition {
        SendPosition { at: self.at, offset: self.offset, taken: self.taken, left: self.left }
    }

    /// What was taken since `position` was not used, and is taken again.
    pub(crate) const fn return_to(&mut self, position: SendPosition) {
        let SendPosition { at, offset, taken, left } = position;
        (self.at, self.offset, self.taken, self.left) = (at, offset, taken, left);
    }

    /// Gives the next `len` bytes, no more than `left`, in as many parts as they lie in.
    pub(crate) fn take(&mut self, len: usize, mut each: impl FnMut(&[u8])) {
        let mut len = len.min(self.left);
        self.taken += len;
        self.left -= len;
        while len > 0 {
            let Some(piece) = self.pieces.get(self.at) else { return };
            let rest = &piece[self.offset..];
            if rest.is_empty() {
                (self.at, self.offset) = (self.at + 1, 0);
                continue;
            }
            let step = rest.len().min(len);
            each(&rest[..step]);
            self.offset += step;
            len -= step;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_on_both_ways_are_one_string_of_bytes(
            from in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..6),
            to in prop::collection::vec(0usize..9, 0..6),
            steps in prop::collection::vec(0usize..12, 0..12),
        ) {
            let all: Vec<u8> = from.concat();
            let slices: Vec<IoSlice<'_>> = from.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut room: Vec<Vec<u8>> = to.iter().map(|len| vec![0; *len]).collect();
            let capacity: usize = to.iter().sum();
            let mut room: Vec<IoSliceMut<'_>> =
                room.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            let mut gather = SendPieces::new(&slices);
            let mut scatter = ReceivePieces::new(&mut room);
            for step in steps {
                gather.take(step, |part| scatter.put(part, false));
                prop_assert_eq!(gather.taken() + gather.left(), all.len());
                prop_assert_eq!(scatter.filled() + scatter.left(), capacity);
            }
            let (taken, filled) = (gather.taken(), scatter.filled());
            prop_assert_eq!(filled, taken.min(capacity));
            let got: Vec<u8> = room.iter().flat_map(|piece| piece.to_vec()).collect();
            prop_assert_eq!(&got[..filled], &all[..filled]);
        }
    }
}
