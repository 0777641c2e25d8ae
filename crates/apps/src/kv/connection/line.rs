//! A response line under construction, on the stack: the response goes to the output in one piece.

use crate::kv::limits::{KEY_BYTES_MAX, OPAQUE_BYTES_MAX};
use crate::kv::store::Digits;

/// Room for the longest line: a meta response with every flag there is.
const LINE_BYTES: usize = 512;
/// What such a line has besides key and opaque: code, length and at most 16 flags with numbers.
const NUMBERS_BYTES: usize = 16 + 8 * 22 + 16;
const _: () = assert!(LINE_BYTES >= KEY_BYTES_MAX + OPAQUE_BYTES_MAX + NUMBERS_BYTES);

pub(super) struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; LINE_BYTES], len: 0 }
    }

    /// Appends; what has no room is left out, which the assertion above rules out.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    pub(super) fn push_number(&mut self, number: u64) {
        self.push(&Digits::new(number));
    }

    /// Seconds until `expires`, -1 if there is no end.
    pub(super) fn push_time_left(&mut self, expires: u32, now: u32) {
        if expires == 0 {
            self.push(b"-1");
        } else {
            self.push_number(u64::from(expires.saturating_sub(now)));
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
