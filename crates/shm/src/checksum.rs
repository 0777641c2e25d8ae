//! The Internet checksum's sum (RFC 1071).
//!
//! Pure: bytes in, a 16-bit sum out.
//!
//! Invariants
//! - The sum is that of 16-bit words in network order, the first byte being the high half of a
//!   word; a last odd byte counts as if a zero followed.
//! - It is folded to 16 bits and not complemented: sums of parts can be added.

/// The folded ones'-complement sum of `bytes`, not complemented.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    fold(add(bytes))
}

/// Copies `from` to `to`, as far as both go, and sums what was copied: [`sum`] in the same pass
/// where there is little to copy.
#[inline]
pub fn copy(from: &[u8], to: &mut [u8]) -> u16 {
    let len = from.len().min(to.len());
    let (from, to) = (&from[..len], &mut to[..len]);
    if len >= TWO_PASSES_BYTES_MIN {
        to.copy_from_slice(from);
        return sum(from);
    }
    let (mut total, mut carry) = (0, 0);
    let (words, rest) = from.as_chunks::<8>();
    let (places, rest_place) = to.as_chunks_mut::<8>();
    for (word, place) in words.iter().zip(places) {
        *place = *word;
        let (next, over) = u64::overflowing_add(total, u64::from_ne_bytes(*word));
        total = next;
        carry += u64::from(over);
    }
    for (byte, place) in rest.iter().zip(rest_place) {
        *place = *byte;
    }
    fold(end_around(end_around(total, carry), tail(rest)))
}

/// From here on a copy and a sum, each as wide as can be, cost less than both at once.
const TWO_PASSES_BYTES_MIN: usize = 192;

/// Adds two folded sums; the second one's bytes follow the first one's, which are `odd` in number
/// or not. After an odd number of bytes, high and low halves change places (RFC 1071 §2(B)).
#[inline]
#[must_use]
pub fn join(first: u16, second: u16, odd: bool) -> u16 {
    let second = if odd { second.swap_bytes() } else { second };
    let (sum, carry) = first.overflowing_add(second);
    sum + u16::from(carry)
}

/// A sum in the machine's byte order, with the carries folded into 16 bits, in network order.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    // At most 16 bits are left: twice 0xffff folds to 0xffff.
    u16::from_be(sum as u16)
}

/// Below this a call costs more than wide registers gain.
#[cfg(target_arch = "x86_64")]
const WIDE_BYTES_MIN: usize = 192;

/// The sum in the machine's byte order (RFC 1071 §2(B) lets it be taken in any), with the carries
/// out of 64 bits added back in.
#[inline]
fn add(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDE_BYTES_MIN && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked.
        return unsafe { add_avx2(bytes) };
    }
    add_words(bytes)
}

/// Carries ride along: words are added into 64 bits, and what overflows is added back in.
#[inline]
fn add_words(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    let mut carry = 0;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
        let (next, over) = u64::overflowing_add(sum, word);
        sum = next;
        carry += u64::from(over);
    }
    end_around(end_around(sum, carry), tail(words.remainder()))
}

/// The two halves of each word go into 64-bit lanes of their own, where nothing overflows: a lane
/// holds less than 2^32 for each block.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::{
        _mm256_add_epi64, _mm256_and_si256, _mm256_extract_epi64, _mm256_loadu_si256,
        _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_srli_epi64,
    };
    let low_halves = _mm256_set1_epi64x(0xffff_ffff);
    let (mut low, mut high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        // SAFETY: a block has 32 bytes, and this load needs no alignment.
        let words = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        low = _mm256_add_epi64(low, _mm256_and_si256(words, low_halves));
        high = _mm256_add_epi64(high, _mm256_srli_epi64::<32>(words));
    }
    // 2^32 is 1 in ones'-complement arithmetic of 32 bits, so the halves weigh the same.
    let lanes = _mm256_add_epi64(low, high);
    let sum = [
        _mm256_extract_epi64::<0>(lanes).cast_unsigned(),
        _mm256_extract_epi64::<1>(lanes).cast_unsigned(),
        _mm256_extract_epi64::<2>(lanes).cast_unsigned(),
        _mm256_extract_epi64::<3>(lanes).cast_unsigned(),
    ];
    sum.into_iter().fold(add_words(blocks.remainder()), end_around)
}

/// The last bytes, fewer than a word, with zeros behind them.
#[inline]
fn tail(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

#[inline]
fn end_around(a: u64, b: u64) -> u64 {
    let (sum, over) = a.overflowing_add(b);
    sum + u64::from(over)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 §1, step by step.
    fn oracle(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn some_bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..if cfg!(miri) { max / 10 } else { max })
    }

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn all_ones_and_nothing() {
        assert_eq!(sum(&[]), 0);
        for len in [2, 8, 64, 256, 1460, if cfg!(miri) { 4096 } else { 65536 }] {
            assert_eq!(sum(&vec![0xff; len]), 0xffff, "{len}");
        }
        assert_eq!(sum(&[0xff]), 0xff00);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 2 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn the_sum_is_that_of_the_definition(bytes in some_bytes(3000)) {
            prop_assert_eq!(sum(&bytes), oracle(&bytes));
            prop_assert_eq!(fold(add_words(&bytes)), oracle(&bytes));
        }

        #[test]
        fn a_copy_is_whole_and_summed(bytes in some_bytes(600), room in 0usize..600) {
            let mut copied = vec![0xee; room];
            let len = bytes.len().min(room);
            prop_assert_eq!(copy(&bytes, &mut copied), oracle(&bytes[..len]));
            prop_assert_eq!(&copied[..len], &bytes[..len]);
            prop_assert!(copied[len..].iter().all(|byte| *byte == 0xee));
        }

        #[test]
        fn sums_of_parts_join(bytes in some_bytes(600), cut in 0usize..600) {
            let cut = cut.min(bytes.len());
            let (first, second) = bytes.split_at(cut);
            prop_assert_eq!(join(sum(first), sum(second), cut % 2 == 1), oracle(&bytes));
        }
    }
}
