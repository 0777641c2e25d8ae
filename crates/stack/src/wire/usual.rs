//! The headers of a segment in the layout that nearly all have, read at once.
//!
//! Read first: RFC 9293 §3.1, RFC 791 §3.1, RFC 8200 §3; RFC 7323 appendix A for the timestamps'
//! place.
//!
//! ```text
//!  IPv4 without options, no fragment   TCP with ACK, perhaps with PSH and FIN
//!  IPv6 without extensions             no options, or NOP NOP timestamps
//! ```
//!
//! Everything else is `None`, broken or not: whoever asks has another way to find out, with the
//! views of each format.
//!
//! Invariants
//! - What is answered means what the views and `Segment` would make of the same bytes.
//! - A packet that the network marked (RFC 3168, congestion experienced) is not answered: a mark
//!   has consequences.
//! - IPv4's header has its right checksum. TCP's is the caller's to check, who may be about to read
//!   the payload anyway: it is right if [`Usual::sum`], and the payload's, say so.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::field::{u8_at, u16_at, u32_at};
use super::tcp::{Flags, Timestamps};
use super::{Ecn, Protocol, ipv4, ipv6, tcp};
use crate::seq::SeqNum;

/// NOP, NOP, timestamps, ten bytes.
const TIMESTAMPS: u32 = 0x0101_080a;
const TIMESTAMPS_BYTES: usize = 12;
const WITH_TIMESTAMPS: usize = tcp::HEADER_BYTES + TIMESTAMPS_BYTES;

/// A segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usual<'a> {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    /// Not scaled.
    pub(crate) window: u16,
    pub(crate) times: Option<Timestamps>,
    pub(crate) payload: &'a [u8],
    /// Of pseudo header and header.
    pub(crate) sum: Sum,
}

/// Words of a packet as they lie in memory, added with the carry brought around (RFC 1071 §2): what
/// one's complement addition of 16 bits makes of them is known by the remainder of 65,535 alone, in
/// either order of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    #[inline(always)]
    fn of<const N: usize>(bytes: &[u8; N]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let last = rest.first_chunk().map_or(0, |word| u64::from(u32::from_ne_bytes(*word)));
        debug_assert!(rest.len().is_multiple_of(4), "headers are made of words");
        words.iter().fold(Self(last), |sum, word| sum.and(Self(u64::from_ne_bytes(*word))))
    }

    /// A number of 16 bits, in host order.
    #[inline(always)]
    const fn of_number(number: u16) -> Self {
        Self(number.to_be() as u64)
    }

    #[inline(always)]
    const fn and(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Self(sum + carry as u64)
    }

    /// The data is what its sender summed: everything adds up to 0xffff. That is the remainder
    /// zero, since no packet is all zeroes.
    #[inline(always)]
    const fn is_whole(self) -> bool {
        self.0.is_multiple_of(0xffff)
    }

    /// The checksum is right if the payload has the sum `payload`, as [`crate::Memory`] and
    /// [`super::checksum::sum`] answer it.
    #[inline(always)]
    pub(crate) const fn is_right_with(self, payload: u16) -> bool {
        self.and(Self::of_number(payload)).is_whole()
    }
}

impl<'a> Usual<'a> {
    /// Reads a packet of IPv4.
    #[inline(always)]
    pub(crate) fn in_ipv4(packet: &'a [u8]) -> Option<Self> {
        let head: &[u8; ipv4::HEADER_BYTES] = packet.first_chunk()?;
        let total_bytes = usize::from(u16_at(head, 2));
        let is_usual = u8_at(head, 0) == 0x45
            && u8_at(head, 9) == Protocol::Tcp.number()
            && u16_at(head, 6) & 0x3fff == 0
            && u8_at(head, 1) & Ecn::Ce as u8 != Ecn::Ce as u8;
        if !is_usual || !Sum::of(head).is_whole() {
            return None;
        }
        let segment = packet.get(ipv4::HEADER_BYTES..total_bytes)?;
        let (src, dst) = (u32_at(head, 12), u32_at(head, 16));
        let hosts = Sum(u64::from(src.to_be()) + u64::from(dst.to_be()));
        let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
        Self::between(IpAddr::V4(src), IpAddr::V4(dst), hosts, segment)
    }

    /// Reads a packet of IPv6.
    #[inline(always)]
    pub(crate) fn in_ipv6(packet: &'a [u8]) -> Option<Self> {
        let head: &[u8; ipv6::HEADER_BYTES] = packet.first_chunk()?;
        let payload_bytes = usize::from(u16_at(head, 4));
        let class = u16_at(head, 0);
        let is_usual = class >> 12 == 6
            && u8_at(head, 6) == Protocol::Tcp.number()
            && class >> 4 & Ecn::Ce as u16 != Ecn::Ce as u16;
        if !is_usual {
            return None;
        }
        let rest = packet.get(ipv6::HEADER_BYTES..)?;
        let addresses: &[u8; 32] = head.last_chunk()?;
        let (src, dst): (&[u8; 16], &[u8; 16]) =
            (addresses.first_chunk()?, addresses.last_chunk()?);
        let (src, dst) = (Ipv6Addr::from_octets(*src), Ipv6Addr::from_octets(*dst));
        let hosts = Sum::of(addresses);
        Self::between(IpAddr::V6(src), IpAddr::V6(dst), hosts, rest.get(..payload_bytes)?)
    }

    /// Reads a segment from `src` to `dst`, whose addresses sum to `hosts`.
    #[inline(always)]
    fn between(src: IpAddr, dst: IpAddr, hosts: Sum, segment: &'a [u8]) -> Option<Self> {
        let head: &[u8; tcp::HEADER_BYTES] = segment.first_chunk()?;
        let flags = Flags(u8_at(head, 13));
        let may_have = Flags::PSH | Flags::FIN;
        if flags | may_have != Flags::ACK | may_have {
            return None;
        }
        let (times, sum, payload) = match usize::from(u8_at(head, 12) >> 4) * 4 {
            tcp::HEADER_BYTES => (None, Sum::of(head), segment.get(tcp::HEADER_BYTES..)?),
            WITH_TIMESTAMPS => {
                let whole: &[u8; WITH_TIMESTAMPS] = segment.first_chunk()?;
                if u32_at(whole, tcp::HEADER_BYTES) != TIMESTAMPS {
                    return None;
                }
                let times = Timestamps { value: u32_at(whole, 24), echo: u32_at(whole, 28) };
                (Some(times), Sum::of(whole), segment.get(WITH_TIMESTAMPS..)?)
            }
            _ => return None,
        };
        let pseudo = hosts
            .and(Sum::of_number(Protocol::Tcp.number().into()))
            .and(Sum::of_number(segment.len() as u16));
        Some(Self {
            src,
            dst,
            src_port: u16_at(head, 0),
            dst_port: u16_at(head, 2),
            seq: SeqNum(u32_at(head, 4)),
            ack: SeqNum(u32_at(head, 8)),
            flags,
            window: u16_at(head, 14),
            times,
            payload,
            sum: pseudo.and(sum),
        })
    }
}
