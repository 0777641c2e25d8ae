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
    // once. No carry is lost: it would take 2^32 words of 32 bits to fill 64.
    let (words, tail) = bytes.as_chunks::<4>();
    let mut total = 0_u64;
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    total += u64::from(u32::from_ne_bytes(last));
    u16::from_be(fold(total))
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
    let addresses = combine(sum_address(src), sum_address(dst));
    combine(combine(addresses, fold(len as u64)), u16::from(protocol))
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
const fn fold(total: u64) -> u16 {
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    ((total >> 16) + (total & 0xffff)) as u16
}

#[inline]
fn sum_address(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    }
}
