//! Reassembly of frames in several buffers (multi-buffer, `XDP_PKT_CONTD`).
//!
//! Pure: pieces in, a frame out.
//!
//! Invariant: nothing grows; a frame that is too long or has an invalid piece is dropped.

/// A frame on its way to being whole.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Box<[u8]>,
    len: usize,
    is_open: bool,
    is_spoilt: bool,
}

impl Pieces {
    /// For frames of up to `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: vec![0; bytes_max].into(), len: 0, is_open: false, is_spoilt: false }
    }

    /// A frame has begun and not ended.
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// The next piece; `None`: one that could not be read.
    pub(super) fn add(&mut self, piece: Option<&[u8]>) {
        self.is_open = true;
        let room = piece.and_then(|piece| self.bytes.get_mut(self.len..self.len + piece.len()));
        match (room, piece) {
            (Some(room), Some(piece)) => {
                room.copy_from_slice(piece);
                self.len += piece.len();
            }
            _ => self.is_spoilt = true,
        }
    }

    /// The last piece was added: the frame, unless it was too long or a piece of it bad.
    pub(super) fn end(&mut self) -> Option<&[u8]> {
        let (len, is_spoilt) = (self.len, self.is_spoilt);
        (self.len, self.is_open, self.is_spoilt) = (0, false, false);
        if is_spoilt { None } else { Some(&self.bytes[..len]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_its_pieces_in_order() {
        let mut pieces = Pieces::new(6);
        assert!(!pieces.is_open());
        pieces.add(Some(&[1, 2]));
        assert!(pieces.is_open());
        pieces.add(Some(&[3, 4, 5, 6]));
        assert_eq!(pieces.end(), Some(&[1, 2, 3, 4, 5, 6][..]));
        assert!(!pieces.is_open());
    }

    #[test]
    fn bad_frame_is_dropped_and_the_next_received() {
        let mut pieces = Pieces::new(4);
        for spoils in [&[Some(&[1, 2, 3][..]), Some(&[4, 5])], &[None, Some(&[1][..])]] {
            spoils.iter().for_each(|piece| pieces.add(*piece));
            assert_eq!(pieces.end(), None);
            pieces.add(Some(&[7]));
            assert_eq!(pieces.end(), Some(&[7][..]));
        }
    }
}
