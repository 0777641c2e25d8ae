//! The Internet checksum (RFC 1071): one's complement arithmetic on 16 bits.
//!
//! A "sum" is the folded sum of big-endian pairs, not complemented; a "checksum" is what stands
//! in a header, which is the sum's complement. An odd last byte counts as the high half of a
//! pair. Data with its right checksum in place sums to `0xffff`.
//!
//! The one implementation for everything above links: stacks, channels and their memory, which copy
//! and sum in one pass ([`copy`]).
//!
//! Invariant: sums of parts combine to the sum of the whole, in any order ([`combine`]); a part
//! that begins at an odd offset has its halves swapped ([`append`]).

use core::net::IpAddr;

/// Below this, setting up the lanes of [`Wide`] costs more than they gain.
const WIDE_BYTES_MIN: usize = 192;

/// Bytes that are added at once where there are fewer.
const LINE_BYTES: usize = 32;

/// Returns the sum of `bytes`.
#[must_use]
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    if bytes.len() >= WIDE_BYTES_MIN {
        return sum_wide(bytes);
    }
    // The order of the bytes in a pair does not matter for one's complement addition, but for
    // the order of the bytes of the result (RFC 1071 §2 (B)): so we add native words, and swap
    // once. A carry out of 64 bits is worth one, as it is out of 16.
    let (lines, rest) = bytes.as_chunks::<LINE_BYTES>();
    let mut total = lines.iter().fold(0, add_line);
    let (words, tail) = rest.as_chunks::<8>();
    total = words.iter().fold(total, |total, word| add(total, *word));
    if !tail.is_empty() {
        total = add(total, padded(tail));
    }
    u16::from_be(fold(total))
}

/// Copies `from` to `to`, as far as both go, and returns the sum of what was copied, in one pass.
#[inline]
pub fn copy(from: &[u8], to: &mut [u8]) -> u16 {
    let len = from.len().min(to.len());
    let (from, to) = (&from[..len], &mut to[..len]);
    if len >= WIDE_BYTES_MIN { copy_wide(from, to) } else { copy_words(from, to) }
}

/// [`copy`] of few bytes.
#[inline]
fn copy_words(from: &[u8], to: &mut [u8]) -> u16 {
    let (words, tail) = from.as_chunks::<8>();
    let (places, tail_place) = to.as_chunks_mut::<8>();
    let mut total = 0;
    for (word, place) in words.iter().zip(places) {
        *place = *word;
        total = add(total, *word);
    }
    if !tail.is_empty() {
        tail_place.copy_from_slice(tail);
        total = add(total, padded(tail));
    }
    u16::from_be(fold(total))
}

#[inline(never)]
fn sum_wide(bytes: &[u8]) -> u16 {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut wide = Wide::default();
    for block in blocks {
        wide.add(block);
    }
    combine(wide.sum(), sum(rest))
}

#[inline(never)]
fn copy_wide(from: &[u8], to: &mut [u8]) -> u16 {
    let (blocks, rest) = from.as_chunks::<64>();
    let (places, rest_place) = to.as_chunks_mut::<64>();
    let mut wide = Wide::default();
    for (block, place) in blocks.iter().zip(places) {
        // Read once: the compiler cannot know that the store leaves `from` alone.
        let block = *block;
        *place = block;
        wide.add(&block);
    }
    combine(wide.sum(), copy_words(rest, rest_place))
}

/// Sums of native words of 64 bits in lanes that fit vector registers of 128 bits, which every
/// `x86_64` and `aarch64` has. The shape matters to the compiler: four lanes apart, two words each.
#[derive(Default)]
struct Wide {
    lanes: [Lane; 4],
}

/// Of two series of words, both modulo 2^64: the words' sum, and that of their upper halves. The
/// latter never overflows, and together they give the sum of the lower halves, too: three
/// instructions for each register, where separate halves take four.
#[derive(Default, Clone, Copy)]
struct Lane {
    words: [u64; 2],
    upper: [u64; 2],
}

impl Wide {
    #[inline(always)]
    fn add(&mut self, block: &[u8; 64]) {
        let (pairs, _) = block.as_chunks::<16>();
        let [a, b, c, d] = self.lanes;
        self.lanes = [a.add(&pairs[0]), b.add(&pairs[1]), c.add(&pairs[2]), d.add(&pairs[3])];
    }

    #[inline(always)]
    fn sum(self) -> u16 {
        let [a, b, c, d] = self.lanes;
        let Lane { words, upper } = a.join(b).join(c.join(d));
        let upper = upper[0].wrapping_add(upper[1]);
        let lower = words[0].wrapping_add(words[1]).wrapping_sub(upper << 32);
        // Each is below 2^32 for each word that was added, so that this overflows for none.
        u16::from_be(fold(lower.wrapping_add(upper)))
    }
}

impl Lane {
    #[inline(always)]
    fn add(self, pair: &[u8; 16]) -> Self {
        let (words, _) = pair.as_chunks::<8>();
        let words = [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])];
        self.join(Self { words, upper: words.map(|word| word >> 32) })
    }

    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let add = |a: [u64; 2], b: [u64; 2]| [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])];
        Self { words: add(self.words, other.words), upper: add(self.upper, other.upper) }
    }
}

/// One's complement addition of a line: each carry goes into the next addition, and the last one is
/// brought around. (After a carry the sum is at most 2^64 - 2, so that it has room for one more.)
#[inline]
fn add_line(total: u64, line: &[u8; LINE_BYTES]) -> u64 {
    let (words, _) = line.as_chunks::<8>();
    let add = |(total, carry): (u64, bool), word: &[u8; 8]| {
        total.carrying_add(u64::from_ne_bytes(*word), carry)
    };
    let (total, carry) = words.iter().fold((total, false), add);
    total + u64::from(carry)
}

/// One's complement addition of eight bytes.
#[inline]
const fn add(total: u64, word: [u8; 8]) -> u64 {
    let (total, carry) = total.overflowing_add(u64::from_ne_bytes(word));
    total + carry as u64
}

/// At most seven bytes, and zeroes after them.
#[inline]
fn padded(tail: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    let (fours, rest) = tail.as_chunks::<4>();
    let mut at = 0;
    if let [four] = fours {
        word[..4].copy_from_slice(four);
        at = 4;
    }
    for byte in rest {
        word[at] = *byte;
        at += 1;
    }
    word
}

/// The sum of two parts, the second of which begins at an even offset.
#[must_use]
#[inline]
pub const fn combine(a: u16, b: u16) -> u16 {
    let (total, carry) = a.overflowing_add(b);
    total + carry as u16
}

/// The sum of two parts: `b` follows `a`, which is `a_bytes` long.
#[must_use]
#[inline]
pub const fn append(a: u16, a_bytes: usize, b: u16) -> u16 {
    combine(a, if a_bytes.is_multiple_of(2) { b } else { b.swap_bytes() })
}

/// The sum of the pseudo header of TCP, UDP and ICMPv6 (RFC 9293 §3.1, RFC 8200 §8.1). Addresses
/// of two families have none; the sum is then of no use, and fits no segment but by chance.
#[must_use]
#[inline]
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u16 {
    fold(words_of(src) + words_of(dst) + len as u64 + u64::from(protocol))
}

/// What stands in a header if everything else sums to `sum`.
#[must_use]
#[inline]
pub const fn finish(sum: u16) -> u16 {
    !sum
}

/// 64 bits of carries and all, as 16.
#[inline]
pub(super) const fn fold(total: u64) -> u16 {
    // The upper half of a number plus itself, halves swapped, is the sum of both halves, with the
    // carry out of the lower one.
    let total = (total.wrapping_add(total.rotate_left(32)) >> 32) as u32;
    (total.wrapping_add(total.rotate_left(16)) >> 16) as u16
}

/// An address as words of 32 bits, added.
#[inline]
fn words_of(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [bits >> 96, bits >> 64, bits >> 32, bits].iter().map(|word| *word as u32 as u64).sum()
        }
    }
}
