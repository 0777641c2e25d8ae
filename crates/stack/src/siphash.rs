//! SipHash for messages of known length: the keyed hash of flows, ports and cookies.
//!
//! Read first: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, §2.
//!
//! A general hasher keeps account of half-filled words and of what is yet to come. Here a message
//! is whole words, or ends in the part of a word that fits beside its length; so each round stands
//! where it is needed, and nothing is buffered.

/// The state after some words, with `C` rounds for each and `D` at the end: SipHash-`C`-`D`.
#[derive(Debug, Clone, Copy)]
pub struct Sip<const C: usize, const D: usize> {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
    words: u64,
}

impl<const C: usize, const D: usize> Sip<C, D> {
    /// Before the first word.
    #[must_use]
    pub const fn new(key: &[u8; 16]) -> Self {
        let whole = u128::from_le_bytes(*key);
        let (k0, k1) = (whole as u64, (whole >> 64) as u64);
        // §2.1: "somepseudorandomlygeneratedbytes".
        Self {
            v0: k0 ^ 0x736f_6d65_7073_6575,
            v1: k1 ^ 0x646f_7261_6e64_6f6d,
            v2: k0 ^ 0x6c79_6765_6e65_7261,
            v3: k1 ^ 0x7465_6462_7974_6573,
            words: 0,
        }
    }

    /// After eight bytes more, `word` in little-endian order (§2.2).
    #[must_use]
    #[inline(always)]
    pub fn and(mut self, word: u64) -> Self {
        self.words += 1;
        self.take(word);
        self
    }

    /// The hash of all words and of `rest`, the last `bytes` bytes in little-endian order: seven at
    /// most (§2.2 and §2.3).
    #[must_use]
    #[inline(always)]
    pub fn finish_with(mut self, rest: u64, bytes: u64) -> u64 {
        debug_assert!(bytes < 8 && rest >> (8 * bytes) == 0, "the length byte has its place");
        self.take((self.words * 8 + bytes) << 56 | rest);
        self.v2 ^= 0xff;
        (0..D).for_each(|_| self.round());
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    /// The hash of all words.
    #[must_use]
    #[inline(always)]
    pub fn finish(self) -> u64 {
        self.finish_with(0, 0)
    }

    #[inline(always)]
    fn take(&mut self, word: u64) {
        self.v3 ^= word;
        (0..C).for_each(|_| self.round());
        self.v0 ^= word;
    }

    /// §2.4, figure 2.1.
    #[inline(always)]
    const fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use siphasher::sip::{SipHasher13, SipHasher24};

    use super::*;

    #[test]
    fn it_is_siphash_at_every_length() {
        let key = core::array::from_fn(|at| at as u8);
        let bytes: [u8; 64] = core::array::from_fn(|at| (at * 7) as u8);
        for len in 0..bytes.len() {
            let (words, rest) = bytes[..len].as_chunks::<8>();
            let rest_bytes = rest.len() as u64;
            let rest = rest.iter().rev().fold(0, |rest, byte| rest << 8 | u64::from(*byte));
            let (mut short, mut long) = (Sip::<1, 3>::new(&key), Sip::<2, 4>::new(&key));
            for word in words {
                short = short.and(u64::from_le_bytes(*word));
                long = long.and(u64::from_le_bytes(*word));
            }
            let expected = SipHasher13::new_with_key(&key).hash(&bytes[..len]);
            assert_eq!(short.finish_with(rest, rest_bytes), expected);
            let expected = SipHasher24::new_with_key(&key).hash(&bytes[..len]);
            assert_eq!(long.finish_with(rest, rest_bytes), expected);
        }
    }

    #[test]
    fn the_paper_s_vector() {
        // Appendix A: bytes 0 to 14 under the key 0 to 15.
        let key = core::array::from_fn(|at| at as u8);
        let sip = Sip::<2, 4>::new(&key).and(0x0706_0504_0302_0100);
        assert_eq!(sip.finish_with(0x000e_0d0c_0b0a_0908, 7), 0xa129_ca61_49be_45e5);
    }
}
