//! The bytes that a connection carries: each is known from its place.

/// Bytes from one that may be urgent to the next.
pub(crate) const URGENT_EVERY: u64 = 777;

/// A stream of bytes that a number decides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pattern(u64);

impl Pattern {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The byte at `offset`.
    const fn at(self, offset: u64) -> u8 {
        // The finaliser of SplitMix64: one word for every eight bytes.
        let mut word = self.0 ^ (offset / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)).to_le_bytes()[(offset % 8) as usize]
    }

    /// The `len` bytes from `offset` on.
    pub(crate) fn bytes(self, offset: u64, len: usize) -> Vec<u8> {
        (offset..offset + len as u64).map(|at| self.at(at)).collect()
    }

    /// Whether the byte at `offset` of `len` is one of those that may be sent as urgent. The next
    /// one is another, so that it can be seen whether this one is missing.
    pub(crate) const fn is_urgent(self, offset: u64, len: u64) -> bool {
        let is_marked = offset % URGENT_EVERY == URGENT_EVERY - 1;
        is_marked && offset + 1 < len && self.at(offset) != self.at(offset + 1)
    }

    /// The first place where `bytes`, which begin at `offset`, are not what they should be.
    pub(crate) fn mismatch(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        (offset..).zip(bytes).find(|(at, byte)| self.at(*at) != **byte).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_out_of_place_is_seen() {
        let pattern = Pattern::new(7);
        let mut bytes = pattern.bytes(100, 64);
        assert_eq!(pattern.mismatch(100, &bytes), None);
        assert!(pattern.mismatch(101, &bytes).is_some());
        bytes[5] ^= 1;
        assert_eq!(pattern.mismatch(100, &bytes), Some(105));
        assert!(Pattern::new(8).mismatch(100, &bytes).is_some());
    }
}
