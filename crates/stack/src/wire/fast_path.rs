//! Parser of the common header layout of a segment, all headers at once.
//!
//! Read first: RFC 9293 §3.1, RFC 791 §3.1, RFC 8200 §3; RFC 7323 appendix A for the timestamps'
//! place.
//!
//! ```text
//!  IPv4 without options, no fragment   TCP with ACK, perhaps with PSH and FIN
//!  IPv6 without extensions             no options, or NOP NOP timestamps
//!                                      others: of any flags but URG, such as SYN and RST,
//!                                      also with the options that Linux and we put into a SYN
//! ```
//!
//! Everything else is `None`, valid or not: the caller then uses the general parsers.
//!
//! Invariants
//! - What is answered means what the views and `Segment` would make of the same bytes.
//! - A packet that the network marked (RFC 3168, congestion experienced) is not answered: a mark
//!   has consequences.
//! - IPv4's header has its right checksum. TCP's is the caller's to check, who may be about to read
//!   the payload anyway: it is right if [`Content::sum`], and the payload's, say so.

pub(crate) mod template;

use core::net::{Ipv4Addr, Ipv6Addr};

use super::field::{array_at, u8_at, u16_at, u32_at};
use super::tcp::{Flags, Options, Timestamps};
use super::{Ecn, Protocol, ipv4, ipv6, tcp};
use crate::host_address::HostAddress;
use crate::seq::SeqNum;

/// NOP, NOP, timestamps, ten bytes.
const TIMESTAMPS: u32 = 0x0101_080a;
const TIMESTAMPS_BYTES: usize = 12;
const WITH_TIMESTAMPS: usize = tcp::HEADER_BYTES + TIMESTAMPS_BYTES;
/// SACK permitted, timestamps, ten bytes.
const SACK_PERMITTED_TIMESTAMPS: u32 = 0x0402_080a;
/// MSS, four bytes; the MSS.
const MSS: u32 = 0x0204_0000;
/// NOP, window scale, three bytes; the shift.
const WINDOW_SCALE: u32 = 0x0103_0300;
/// MSS, the timestamps with what is before them, window scale.
const WITH_SYN_OPTIONS: usize = WITH_TIMESTAMPS + 8;

/// A segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FastSegment<'a> {
    pub(crate) src: HostAddress,
    pub(crate) dst: HostAddress,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) flags: Flags,
    pub(crate) content: Content<'a>,
}

/// What a segment says that is different from one of its flow to the next. Fields of the header are
/// read where they are needed: values that are kept take registers, or have to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content<'a> {
    /// TCP's header, without options.
    head: &'a [u8; tcp::HEADER_BYTES],
    /// Value and echo of the timestamps.
    times: Option<&'a [u8; 8]>,
    pub(crate) payload: &'a [u8],
    /// Of pseudo header and header.
    pub(crate) sum: Sum,
}

impl Content<'_> {
    #[inline(always)]
    pub(crate) fn seq(&self) -> SeqNum {
        SeqNum(u32_at(self.head, 4))
    }

    #[inline(always)]
    pub(crate) fn ack(&self) -> SeqNum {
        SeqNum(u32_at(self.head, 8))
    }

    /// Not scaled.
    #[inline(always)]
    pub(crate) fn window(&self) -> u16 {
        u16_at(self.head, 14)
    }

    #[inline(always)]
    pub(crate) fn times(&self) -> Option<Timestamps> {
        self.times.map(|bytes| times_at(bytes, 0))
    }

    #[inline(always)]
    pub(crate) const fn has_times(&self) -> bool {
        self.times.is_some()
    }
}

/// How a segment is read, by the length of its header and its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentLayout {
    /// By [`FastSegment::of`].
    Fast,
    /// By [`Other::of`] with [`BARE_HEADER`].
    Bare,
    /// By the same with [`HEADER_WITH_TIMES`].
    WithTimes,
    /// By the same with [`HEADER_OF_SYN`].
    Syn,
    /// By the slow path.
    Unknown,
}

impl SegmentLayout {
    /// Of the segment in `packet`, if that has the usual header of IP of `VERSION`, which the named
    /// functions check.
    #[inline(always)]
    pub(crate) fn of<const VERSION: u8>(packet: &[u8]) -> Self {
        let ip_bytes = if VERSION == 4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        let offset_and_flags = u16_at(packet, ip_bytes + 12);
        let header_bytes = usize::from(offset_and_flags >> 12) * 4;
        match (header_bytes, Flags(offset_and_flags as u8).is_fast()) {
            (BARE_HEADER | HEADER_WITH_TIMES, true) => Self::Fast,
            (BARE_HEADER, false) => Self::Bare,
            (HEADER_WITH_TIMES, false) => Self::WithTimes,
            (HEADER_OF_SYN, _) => Self::Syn,
            _ => Self::Unknown,
        }
    }
}

/// A segment of any flags but URG: a SYN, a RST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Other<'a> {
    pub(crate) src: HostAddress,
    pub(crate) dst: HostAddress,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: SeqNum,
    /// Means something with ACK only.
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    /// Not scaled.
    pub(crate) window: u16,
    pub(crate) options: Options,
    pub(crate) payload: &'a [u8],
    /// Of pseudo header and header.
    pub(crate) sum: Sum,
}

/// A packet with a segment in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) src: HostAddress,
    pub(crate) dst: HostAddress,
    /// Of both addresses.
    hosts: Sum,
    segment: &'a [u8],
}

/// Words of a packet as they lie in memory, added with the carry brought around (RFC 1071 §2): what
/// one's complement addition of 16 bits makes of them is known by the remainder of 65,535 alone, in
/// either order of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sum(u64);

/// A sum whose last carry goes into the next addition.
struct CarriedSum(u64, bool);

impl CarriedSum {
    #[inline(always)]
    fn add(self, word: u64) -> Self {
        let (sum, carry) = self.0.carrying_add(word, self.1);
        Self(sum, carry)
    }

    /// Only a sum of all ones could overflow; one with a carry is less.
    #[inline(always)]
    fn sum(self) -> Sum {
        Sum(self.0 + u64::from(self.1))
    }
}

impl Sum {
    #[inline(always)]
    fn of<const N: usize>(bytes: &[u8; N]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let last = rest.first_chunk().map_or(0, |word| u64::from(u32::from_ne_bytes(*word)));
        debug_assert!(rest.len().is_multiple_of(4), "headers are made of words");
        let add = |sum: CarriedSum, word: &[u8; 8]| sum.add(u64::from_ne_bytes(*word));
        words.iter().fold(CarriedSum(last, false), add).sum()
    }

    /// Of words that were read already: each carry goes into the next addition.
    #[inline(always)]
    fn of_words<const N: usize>(words: [u64; N]) -> Self {
        words.into_iter().fold(CarriedSum(0, false), CarriedSum::add).sum()
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

impl<'a> Packet<'a> {
    /// Reads the header of IP of `VERSION`, 4 or 6.
    #[inline(always)]
    pub(crate) fn of<const VERSION: u8>(packet: &'a [u8]) -> Option<Self> {
        if VERSION == 4 { Self::of_ipv4(packet) } else { Self::of_ipv6(packet) }
    }

    /// Reads the header of IPv4.
    #[inline(always)]
    pub(crate) fn of_ipv4(packet: &'a [u8]) -> Option<Self> {
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
        let [src, dst] = [12, 16].map(|at| array_at(head, at).unwrap_or_default());
        let number = |ip| u64::from(u32::from_ne_bytes(ip));
        let hosts = Sum(number(src) + number(dst));
        let [src, dst] = [src, dst].map(|ip| HostAddress::of_ipv4(Ipv4Addr::from_octets(ip)));
        Some(Self { src, dst, hosts, segment })
    }

    /// Reads the header of IPv6.
    #[inline(always)]
    pub(crate) fn of_ipv6(packet: &'a [u8]) -> Option<Self> {
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
        let [src, dst] = [src, dst].map(|ip| HostAddress::of_ipv6(Ipv6Addr::from_octets(*ip)));
        let (hosts, segment) = (Sum::of(addresses), rest.get(..payload_bytes)?);
        Some(Self { src, dst, hosts, segment })
    }

    /// Bytes of TCP's header, as it says; 0: there is none.
    #[inline(always)]
    fn header_bytes(&self) -> usize {
        self.segment.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4)
    }

    /// The sum of the pseudo header and of what of the segment sums to `header`.
    #[inline(always)]
    const fn sum(&self, header: Sum) -> Sum {
        self.hosts
            .and(Sum::of_number(Protocol::Tcp as u16))
            .and(Sum::of_number(self.segment.len() as u16))
            .and(header)
    }
}

impl Flags {
    /// ACK, perhaps with PSH and FIN.
    #[inline(always)]
    fn is_fast(self) -> bool {
        let may_have = Self::PSH | Self::FIN;
        self | may_have == Self::ACK | may_have
    }
}

impl<'a> FastSegment<'a> {
    /// Reads the header of the segment in `packet`.
    #[inline(always)]
    pub(crate) fn of(packet: &Packet<'a>) -> Option<Self> {
        let segment = packet.segment;
        let head: &[u8; tcp::HEADER_BYTES] = segment.first_chunk()?;
        let flags = Flags(u8_at(head, 13));
        if !flags.is_fast() {
            return None;
        }
        let (times, sum, payload) = match usize::from(u8_at(head, 12) >> 4) * 4 {
            tcp::HEADER_BYTES => (None, Sum::of(head), segment.get(tcp::HEADER_BYTES..)?),
            WITH_TIMESTAMPS => {
                let whole: &[u8; WITH_TIMESTAMPS] = segment.first_chunk()?;
                if u32_at(whole, tcp::HEADER_BYTES) != TIMESTAMPS {
                    return None;
                }
                (whole.last_chunk(), Sum::of(whole), segment.get(WITH_TIMESTAMPS..)?)
            }
            _ => return None,
        };
        Some(Self {
            src: packet.src,
            dst: packet.dst,
            src_port: u16_at(head, 0),
            dst_port: u16_at(head, 2),
            flags,
            content: Content { head, times, payload, sum: packet.sum(sum) },
        })
    }
}

/// Bytes of TCP's header, for each of the layouts that [`Other::of`] knows: no options, timestamps,
/// and the options of a SYN.
pub(crate) const BARE_HEADER: usize = tcp::HEADER_BYTES;
pub(crate) const HEADER_WITH_TIMES: usize = WITH_TIMESTAMPS;
pub(crate) const HEADER_OF_SYN: usize = WITH_SYN_OPTIONS;

impl<'a> Other<'a> {
    /// Reads the header of the segment in `packet`, if it has `HEADER_BYTES`, which is one of the
    /// three constants above. (Each has its own instructions: what it does not say is known then.)
    #[inline(always)]
    pub(crate) fn of<const HEADER_BYTES: usize>(packet: &Packet<'a>) -> Option<Self> {
        let (head, payload) = packet.segment.split_first_chunk::<HEADER_BYTES>()?;
        let flags = Flags(u8_at(head, 13));
        if flags.contains(Flags::URG) || packet.header_bytes() != HEADER_BYTES {
            return None;
        }
        let options = match HEADER_BYTES {
            BARE_HEADER => Options::default(),
            HEADER_WITH_TIMES => times_options(head)?,
            _ => syn_options(head)?,
        };
        Some(Self {
            src: packet.src,
            dst: packet.dst,
            src_port: u16_at(head, 0),
            dst_port: u16_at(head, 2),
            seq: SeqNum(u32_at(head, 4)),
            ack: SeqNum(u32_at(head, 8)),
            flags,
            window: u16_at(head, 14),
            options,
            payload,
            sum: packet.sum(Sum::of(head)),
        })
    }
}

#[inline(always)]
fn times_at(head: &[u8], at: usize) -> Timestamps {
    Timestamps { value: u32_at(head, at), echo: u32_at(head, at + 4) }
}

/// Timestamps alone.
#[inline(always)]
fn times_options(head: &[u8]) -> Option<Options> {
    let timestamps = Some(times_at(head, 24));
    (u32_at(head, 20) == TIMESTAMPS).then(|| Options { timestamps, ..Options::default() })
}

/// The options of a SYN, in Linux's order and ours.
#[inline(always)]
fn syn_options(head: &[u8]) -> Option<Options> {
    let [mss, before_times, scale] = [20, 24, 36].map(|at| u32_at(head, at));
    let sack_permitted = before_times == SACK_PERMITTED_TIMESTAMPS;
    let is_usual = mss & 0xffff_0000 == MSS
        && (sack_permitted || before_times == TIMESTAMPS)
        && scale & 0xffff_ff00 == WINDOW_SCALE;
    is_usual.then(|| Options {
        mss: Some(mss as u16),
        window_scale: Some(scale as u8),
        sack_permitted,
        timestamps: Some(times_at(head, 28)),
        ..Options::default()
    })
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::checksum;

    /// What is answered about a packet, and what the views of each format make of it.
    fn both(packet: &[u8]) -> Option<(Other<'_>, tcp::Repr, bool)> {
        let read = Packet::of_ipv4(packet).or_else(|| Packet::of_ipv6(packet))?;
        let other = match read.header_bytes() {
            BARE_HEADER => Other::of::<BARE_HEADER>(&read),
            HEADER_WITH_TIMES => Other::of::<HEADER_WITH_TIMES>(&read),
            _ => Other::of::<HEADER_OF_SYN>(&read),
        }?;
        let view = tcp::View::new(read.segment).expect("a whole header");
        let number = Protocol::Tcp.number();
        let pseudo =
            checksum::pseudo_header(read.src.ip(), read.dst.ip(), number, read.segment.len());
        Some((other, tcp::Repr::parse(&view), view.checksum_is_right(pseudo)))
    }

    fn packet(src: IpAddr, dst: IpAddr, segment: &[u8]) -> Vec<u8> {
        let payload_bytes = segment.len();
        let mut packet = vec![0; 40];
        let at = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4::Repr {
                    src,
                    dst,
                    protocol: 6,
                    ttl: 64,
                    dscp: 0,
                    ecn: Ecn::NotEct,
                    identification: 0,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    payload_bytes,
                };
                header.emit(&mut packet);
                ipv4::HEADER_BYTES
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = ipv6::Repr {
                    src,
                    dst,
                    next_header: 6,
                    hop_limit: 64,
                    dscp: 0,
                    ecn: Ecn::NotEct,
                    payload_bytes,
                };
                header.emit(&mut packet);
                ipv6::HEADER_BYTES
            }
            _ => unreachable!("one family"),
        };
        packet.truncate(at);
        packet.extend(segment);
        packet
    }

    fn hosts() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        let four = any::<(u32, u32)>()
            .prop_map(|(a, b)| (Ipv4Addr::from_bits(a).into(), Ipv4Addr::from_bits(b).into()));
        let six = any::<(u128, u128)>()
            .prop_map(|(a, b)| (Ipv6Addr::from_bits(a).into(), Ipv6Addr::from_bits(b).into()));
        prop_oneof![four, six]
    }

    proptest! {
        #[test]
        fn a_syn_or_reset_means_what_the_views_make_of_it(
            (src, dst) in hosts(),
            (src_port, dst_port, window, flags) in any::<(u16, u16, u16, u8)>(),
            (seq, ack) in any::<(u32, u32)>(),
            (mss, window_scale, sack_permitted) in any::<(Option<u16>, Option<u8>, bool)>(),
            times in any::<Option<(u32, u32)>>(),
            text in prop::collection::vec(any::<u8>(), 0..20),
            (harmed, harm) in prop_oneof![5 => Just((0, 0)), 2 => any::<(usize, u8)>()],
        ) {
            let head = tcp::Repr {
                src_port,
                dst_port,
                seq: SeqNum(seq),
                ack: SeqNum(ack),
                flags: Flags(flags),
                window,
                urgent: 0,
                options: Options {
                    mss,
                    window_scale,
                    sack_permitted,
                    timestamps: times.map(|(value, echo)| Timestamps { value, echo }),
                    ..Options::default()
                },
            };
            let mut segment = vec![0; head.header_bytes()];
            let sum = head.emit(&mut segment);
            segment.extend(&text);
            let pseudo = checksum::pseudo_header(src, dst, 6, segment.len());
            let sum = checksum::combine(checksum::combine(pseudo, sum), checksum::sum(&text));
            tcp::write_checksum(&mut segment, sum);
            let harmed = harmed % segment.len();
            segment[harmed] ^= harm;
            let packet = packet(src, dst, &segment);
            let read = both(&packet);
            if harm == 0 {
                let options = &head.options;
                let has_all = options.mss.is_some() && options.window_scale.is_some();
                let is_plain = !has_all && !sack_permitted && options.mss.is_none()
                    && options.window_scale.is_none();
                let is_usual = (has_all && times.is_some()) || is_plain;
                prop_assert_eq!(read.is_some(), is_usual && !head.flags.contains(Flags::URG));
            }
            let Some((other, repr, is_right)) = read else { return Ok(()) };
            let ack = if other.flags.contains(Flags::ACK) { other.ack } else { SeqNum(0) };
            prop_assert_eq!((other.src.ip(), other.dst.ip()), (src, dst));
            prop_assert_eq!((other.src_port, other.dst_port), (repr.src_port, repr.dst_port));
            prop_assert_eq!((other.seq, ack, other.flags), (repr.seq, repr.ack, repr.flags));
            prop_assert_eq!((other.window, other.options), (repr.window, repr.options));
            let at = segment.len() - other.payload.len();
            prop_assert_eq!(other.payload, &segment[at..]);
            prop_assert_eq!(other.sum.is_right_with(checksum::sum(other.payload)), is_right);
        }
    }
}
