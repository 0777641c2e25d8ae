//! Builder of the common header layout of a segment, all headers at once.
//!
//! Read first: RFC 9293 §3.1, RFC 791 §3.1, RFC 8200 §3; RFC 7323 appendix A for the timestamps'
//! place; RFC 1071 §2 for sums. `fast_path.rs` reads the same layout.
//!
//! ```text
//!  [Ethernet]   IPv4, may not be cut, or IPv6   TCP without options, or NOP NOP timestamps;
//!                                               in a SYN, what it offers
//! ```
//!
//! Numbers are put together in words and written as such, and their sum is taken before they are:
//! nothing that was written is read again.
//!
//! Invariant: the bytes are those that the `Repr` of each format would write.

use core::net::IpAddr;

use super::checksum::{finish, fold};
use super::tcp::{CHECKSUM_OFFSET, Flags, HEADER_BYTES, Options, Timestamps};
use super::{Ecn, Protocol, ethernet, ipv4, ipv6};
use crate::seq::SeqNum;

/// NOP, NOP, timestamps, ten bytes.
pub(super) const TIMESTAMPS: u32 = 0x0101_080a;
pub(super) const TIMESTAMPS_BYTES: usize = 12;
/// MSS, four bytes; the MSS.
pub(super) const MSS: u32 = 0x0204_0000;
/// NOP, NOP, SACK permitted, two bytes.
const SACK_PERMITTED: u32 = 0x0101_0402;
/// The same before timestamps, instead of the NOPs there.
pub(super) const SACK_PERMITTED_TIMESTAMPS: u32 = 0x0402_080a;
/// NOP, window scale, three bytes; the shift.
pub(super) const WINDOW_SCALE: u32 = 0x0103_0300;
/// Words of all options that a SYN may have.
const SYN_WORDS_MAX: usize = 5;
const TCP: u32 = Protocol::Tcp as u32;

/// A segment's headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headers {
    /// Ethernet's destination and source; `None`: the medium has no addresses.
    pub(crate) link: Option<ethernet::AddressWords>,
    pub(crate) src: IpAddr,
    /// Of the same family.
    pub(crate) dst: IpAddr,
    pub(crate) dscp: u8,
    pub(crate) ecn: Ecn,
    pub(crate) hop_limit: u8,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    /// Not scaled.
    pub(crate) window: u16,
    pub(crate) times: Option<Timestamps>,
    /// `None`: it is no SYN, or one that offers nothing but timestamps.
    pub(crate) offers: Option<Offers>,
}

/// The options of a SYN, beside timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offers {
    pub(crate) mss: Option<u16>,
    pub(crate) sack_permitted: bool,
    pub(crate) window_scale: Option<u8>,
}

impl Offers {
    /// None of them.
    pub(crate) const NONE: Self = Self { mss: None, sack_permitted: false, window_scale: None };

    /// With timestamps, the options of a SYN.
    pub(crate) fn and(self, timestamps: Option<Timestamps>) -> Options {
        let Self { mss, sack_permitted, window_scale } = self;
        Options { mss, sack_permitted, window_scale, timestamps, ..Options::default() }
    }

    /// The words of all options of a SYN, and how many.
    fn words(self, times: Option<Timestamps>) -> ([u32; SYN_WORDS_MAX], usize) {
        let mut words = [0; SYN_WORDS_MAX];
        let mut count = 0;
        let mut put = |word| {
            words[count] = word;
            count += 1;
        };
        if let Some(mss) = self.mss {
            put(MSS | u32::from(mss));
        }
        if let Some(times) = times {
            put(if self.sack_permitted { SACK_PERMITTED_TIMESTAMPS } else { TIMESTAMPS });
            put(times.value);
            put(times.echo);
        } else if self.sack_permitted {
            put(SACK_PERMITTED);
        }
        if let Some(shift) = self.window_scale {
            put(WINDOW_SCALE | u32::from(shift));
        }
        (words, count)
    }

    /// Bytes of all options of a SYN.
    const fn bytes(self, with_times: bool) -> usize {
        let times = if with_times {
            TIMESTAMPS_BYTES
        } else if self.sack_permitted {
            4
        } else {
            0
        };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        let mss = if self.mss.is_some() { 4 } else { 0 };
        mss + times + scale
    }
}

/// What a checksum field is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    /// The checksum of a segment whose payload sums to this.
    Summed(u16),
    /// The pseudo header's part: the link adds the rest.
    LeftToLink,
}

impl Headers {
    /// Where the TCP header begins.
    #[inline(always)]
    pub(crate) const fn transport_offset(&self) -> usize {
        let link = if self.link.is_some() { ethernet::HEADER_BYTES } else { 0 };
        match self.dst {
            IpAddr::V4(_) => link + ipv4::HEADER_BYTES,
            IpAddr::V6(_) => link + ipv6::HEADER_BYTES,
        }
    }

    /// Bytes of the TCP header.
    #[inline(always)]
    const fn segment_header_bytes(&self) -> usize {
        match self.offers {
            Some(offers) => HEADER_BYTES + offers.bytes(self.times.is_some()),
            None if self.times.is_some() => HEADER_BYTES + TIMESTAMPS_BYTES,
            None => HEADER_BYTES,
        }
    }

    /// Bytes of all headers.
    #[inline(always)]
    pub(crate) const fn header_bytes(&self) -> usize {
        self.transport_offset() + self.segment_header_bytes()
    }

    /// Writes the headers of a segment with `text_bytes` bytes of payload to the start of `frame`.
    /// `None`: it is shorter than [`Headers::header_bytes`], or the addresses are of two families;
    /// what was written is of no use.
    #[inline(always)]
    pub(crate) fn emit(&self, frame: &mut [u8], text_bytes: usize, text: Text) -> Option<()> {
        let segment_bytes = (self.segment_header_bytes() + text_bytes) as u32;
        let packet = self.emit_link(frame)?;
        let (segment, addresses) = self.emit_ip(packet, segment_bytes)?;
        let pseudo = addresses + u64::from(TCP) + u64::from(segment_bytes);
        self.emit_tcp(segment, pseudo, text)
    }

    #[inline(always)]
    fn emit_link<'a>(&self, frame: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let Some(addresses) = self.link else { return Some(frame) };
        let (header, packet) = frame.split_first_chunk_mut::<{ ethernet::HEADER_BYTES }>()?;
        let kind = if self.dst.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        addresses.emit(kind, header);
        Some(packet)
    }

    /// What follows, and the sum of both addresses.
    #[inline(always)]
    fn emit_ip<'a>(&self, packet: &'a mut [u8], segment_bytes: u32) -> Option<(&'a mut [u8], u64)> {
        let class = u32::from(self.dscp) << 2 | self.ecn as u32;
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (header, segment) = packet.split_first_chunk_mut::<{ ipv4::HEADER_BYTES }>()?;
                let (src, dst) = (src.to_bits(), dst.to_bits());
                let first = 0x4500_0000 | class << 16 | (20 + segment_bytes) & 0xffff;
                // RFC 6864 §4.1: a packet with DF needs no unique identification.
                let second = 0x4000;
                let third = u32::from(self.hop_limit) << 24 | TCP << 16;
                let addresses = u64::from(src) + u64::from(dst);
                let rest = u64::from(first) + second + u64::from(third);
                let third = third | u32::from(finish(fold(addresses + rest)));
                put(header, 0, first);
                put(header, 4, second as u32);
                put(header, 8, third);
                put(header, 12, src);
                put(header, 16, dst);
                Some((segment, addresses))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (header, segment) = packet.split_first_chunk_mut::<{ ipv6::HEADER_BYTES }>()?;
                put(header, 0, 0x6000_0000 | class << 20);
                put(header, 4, segment_bytes << 16 | TCP << 8 | u32::from(self.hop_limit));
                header[8..24].copy_from_slice(&src.octets());
                header[24..40].copy_from_slice(&dst.octets());
                Some((segment, words(src.to_bits()) + words(dst.to_bits())))
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn emit_tcp(&self, segment: &mut [u8], pseudo: u64, text: Text) -> Option<()> {
        let (header, options) = segment.split_first_chunk_mut::<HEADER_BYTES>()?;
        let ports = u32::from(self.src_port) << 16 | u32::from(self.dst_port);
        let words = (self.segment_header_bytes() / 4) as u32;
        let middle = words << 28 | u32::from(self.flags.0) << 16 | u32::from(self.window);
        let mut sum = pseudo + u64::from(ports) + u64::from(middle);
        sum += u64::from(self.seq.0) + u64::from(self.ack.0);
        put(header, 0, ports);
        put(header, 4, self.seq.0);
        put(header, 8, self.ack.0);
        put(header, 12, middle);
        if let Some(offers) = self.offers {
            let (words, count) = offers.words(self.times);
            let options = options.get_mut(..4 * count)?;
            for (word, place) in words.iter().zip(options.as_chunks_mut().0) {
                sum += u64::from(*word);
                put::<4>(place, 0, *word);
            }
        } else if let Some(times) = self.times {
            let options = options.first_chunk_mut::<TIMESTAMPS_BYTES>()?;
            sum += u64::from(TIMESTAMPS) + u64::from(times.value) + u64::from(times.echo);
            put(options, 0, TIMESTAMPS);
            put(options, 4, times.value);
            put(options, 8, times.echo);
        }
        let checksum = match text {
            Text::Summed(text) => finish(fold(sum + u64::from(text))),
            Text::LeftToLink => fold(pseudo),
        };
        // And no urgent pointer.
        put(header, CHECKSUM_OFFSET, u32::from(checksum) << 16);
        Some(())
    }
}

#[inline(always)]
fn put<const N: usize>(header: &mut [u8; N], at: usize, word: u32) {
    header[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

/// The words of 32 bits of an address, added.
#[inline(always)]
const fn words(bits: u128) -> u64 {
    let (high, low) = ((bits >> 64) as u64, bits as u64);
    (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::wire::{checksum, tcp};

    fn options_of(headers: &Headers) -> Options {
        let offers = headers.offers;
        Options {
            mss: offers.and_then(|offers| offers.mss),
            window_scale: offers.and_then(|offers| offers.window_scale),
            sack_permitted: offers.is_some_and(|offers| offers.sack_permitted),
            timestamps: headers.times,
            ..Options::default()
        }
    }

    fn general_link(headers: &Headers, (dst, src): ([u8; 6], [u8; 6]), frame: &mut [u8]) -> usize {
        let ethertype = if headers.dst.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        let header = ethernet::Repr { dst, src, vlan: None, ethertype };
        header.emit(frame);
        header.header_bytes()
    }

    /// The same by the `Repr` of each format.
    fn general(
        headers: &Headers,
        link: Option<([u8; 6], [u8; 6])>,
        (frame, text): (&mut [u8], &[u8]),
        left_to_link: bool,
    ) -> usize {
        let mut at = link.map_or(0, |ends| general_link(headers, ends, frame));
        let options = options_of(headers);
        let head = tcp::Repr {
            src_port: headers.src_port,
            dst_port: headers.dst_port,
            seq: headers.seq,
            ack: headers.ack,
            flags: headers.flags,
            window: headers.window,
            urgent: 0,
            options,
        };
        let payload_bytes = head.header_bytes() + text.len();
        at += match (headers.src, headers.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4::Repr {
                    src,
                    dst,
                    protocol: 6,
                    ttl: headers.hop_limit,
                    dscp: headers.dscp,
                    ecn: headers.ecn,
                    identification: 0,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    payload_bytes,
                };
                header.emit(&mut frame[at..]);
                header.header_bytes()
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = ipv6::Repr {
                    src,
                    dst,
                    next_header: 6,
                    hop_limit: headers.hop_limit,
                    dscp: headers.dscp,
                    ecn: headers.ecn,
                    payload_bytes,
                };
                header.emit(&mut frame[at..]);
                header.header_bytes()
            }
            _ => unreachable!("one family"),
        };
        let end = at + payload_bytes;
        let segment = &mut frame[at..end];
        segment[head.header_bytes()..].copy_from_slice(text);
        let sum = head.emit(segment);
        let pseudo = checksum::pseudo_header(headers.src, headers.dst, 6, payload_bytes);
        if left_to_link {
            tcp::write_partial_checksum(segment, pseudo);
        } else {
            let sum = checksum::combine(checksum::combine(pseudo, sum), checksum::sum(text));
            tcp::write_checksum(segment, sum);
        }
        end
    }

    fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        let four = any::<(u32, u32)>()
            .prop_map(|(a, b)| (Ipv4Addr::from_bits(a).into(), Ipv4Addr::from_bits(b).into()));
        let six = any::<(u128, u128)>()
            .prop_map(|(a, b)| (Ipv6Addr::from_bits(a).into(), Ipv6Addr::from_bits(b).into()));
        prop_oneof![four, six]
    }

    /// Any number, and those that carries are made of.
    fn number() -> impl Strategy<Value = u32> {
        prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(0xffff), Just(0xffff_0000)]
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_the_formats(
            link in any::<Option<([u8; 6], [u8; 6])>>(),
            (src, dst) in addresses(),
            (class, hop_limit) in any::<(u8, u8)>(),
            (src_port, dst_port, window, flags) in any::<(u16, u16, u16, u8)>(),
            (seq, ack) in (number(), number()),
            times in prop::option::of((number(), number())),
            offers in any::<Option<(Option<u16>, bool, Option<u8>)>>(),
            text in prop::collection::vec(any::<u8>(), 0..200),
            left_to_link in any::<bool>(),
        ) {
            let ecn = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][usize::from(class & 3)];
            let headers = Headers {
                link: link.map(|(dst, src)| ethernet::AddressWords::new(dst, src)),
                src,
                dst,
                dscp: class >> 2,
                ecn,
                hop_limit,
                src_port,
                dst_port,
                seq: SeqNum(seq),
                ack: SeqNum(ack),
                flags: Flags(flags & !0x20),
                window,
                times: times.map(|(value, echo)| Timestamps { value, echo }),
                offers: offers.map(|(mss, sack_permitted, window_scale)| {
                    Offers { mss, sack_permitted, window_scale }
                }),
            };
            let (mut quick, mut slow) = ([0xaa; 400], [0xaa; 400]);
            let end = general(&headers, link, (&mut slow, &text), left_to_link);
            let at = headers.header_bytes();
            prop_assert_eq!(at + text.len(), end);
            quick[at..end].copy_from_slice(&text);
            let kind =
                if left_to_link { Text::LeftToLink } else { Text::Summed(checksum::sum(&text)) };
            prop_assert_eq!(headers.emit(&mut quick, text.len(), kind), Some(()));
            prop_assert_eq!(&quick[..], &slow[..]);
            prop_assert_eq!(headers.emit(&mut quick[..at - 1], text.len(), kind), None);
        }
    }
}
