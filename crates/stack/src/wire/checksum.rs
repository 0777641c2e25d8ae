//! The Internet checksum (RFC 1071): one's complement arithmetic on 16 bits.
//!
//! A "sum" is the folded sum of big-endian pairs, not complemented; a "checksum" is what stands
//! in a header, which is the sum's complement. An odd last byte counts as the high half of a
//! pair. Data with its right checksum in place sums to `0xffff`.
//!
//! Invariant: sums of parts combine to the sum of the whole, in any order ([`combine`]); a part
//! that begins at an odd offset has its halves swapped ([`append`]).

use core::net::IpAddr;

/// The sum of `bytes`.
#[must_use]
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    // The order of the bytes in a pair does not matter for one's complement addition, but for
    // the order of the bytes of the result (RFC 1071 §2 (B)): so we add native words, and swap
    // once. A carry out of 64 bits is worth one, as it is out of 16.
    let (lines, rest) = bytes.as_chunks::<32>();
    let mut total = 0;
    for line in lines {
        let (words, _) = line.as_chunks::<8>();
        total = words.iter().fold(total, |total, word| add(total, *word));
    }
    let (words, tail) = rest.as_chunks::<8>();
    total = words.iter().fold(total, |total, word| add(total, *word));
    if !tail.is_empty() {
        total = add(total, padded(tail));
    }
    u16::from_be(fold(total))
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

/// `checksum` after a 16-bit field that it covers changed from `old` to `new` (RFC 1624 §3).
#[must_use]
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !combine(combine(!checksum, !old), new)
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
