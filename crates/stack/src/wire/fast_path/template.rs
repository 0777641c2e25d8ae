//! Template of the next segment's headers, in its packet's own layout: whether it
//! has them is a question of a few words, and not of each field.
//!
//! Read first: Jacobson, "4BSD Header Prediction", 1990; RFC 791 §3.1, RFC 9293 §3.1.
//!
//! ```text
//!  offset  0               8               16              24       32       40
//!          ver TOS len id  TTL proto sum   dst      ports  seq ack  off flags   NOP NOP TS ...
//!          frag            src                                      window
//!          `- first -----' `- second ----' `- third -----'          `- head
//! ```
//!
//! IPv6 has its addresses in four words instead of two halves, and no checksum.
//!
//! [`Template::segment_in`] compares the header of IP and the ports; [`Template::read`] the rest,
//! which is the same for both versions of IP.
//!
//! Invariant: what both return together is what [`FastSegment::of`] would, of the flow of the
//! template, without FIN. `None` says nothing about a packet.

use super::super::field::array_at;
use super::*;

/// The layout of a template of no flow.
pub(crate) const NO_LAYOUT: usize = 0;
/// Bytes of all headers, for each of the layouts that [`Template::segment_in`] and
/// [`Template::read`] know.
pub(crate) const IPV4: usize = ipv4::HEADER_BYTES + tcp::HEADER_BYTES;
/// The same with timestamps.
pub(crate) const IPV4_WITH_TIMES: usize = ipv4::HEADER_BYTES + WITH_TIMESTAMPS;
/// The same over IPv6, without timestamps.
pub(crate) const IPV6: usize = ipv6::HEADER_BYTES + tcp::HEADER_BYTES;
/// The same with timestamps.
pub(crate) const IPV6_WITH_TIMES: usize = ipv6::HEADER_BYTES + WITH_TIMESTAMPS;

/// First eight bytes: version and length of the header, no fragment, and no mark of congestion; the
/// other mark that takes the same bit (RFC 3168 §5, optional) takes the general parser.
const FIRST_MASK: u64 = u64::from_ne_bytes([0xff, 0x01, 0, 0, 0, 0, 0x3f, 0xff]);
const FIRST: u64 = u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]);
/// Second eight: protocol and source.
const SECOND_MASK: u64 = u64::from_ne_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]);
/// First eight bytes of IPv6: version, the same mark, protocol.
const FIRST_V6_MASK: u64 = u64::from_ne_bytes([0xf0, 0x10, 0, 0, 0, 0, 0xff, 0]);
const FIRST_V6: u64 = u64::from_ne_bytes([0x60, 0, 0, 0, 0, 0, Protocol::Tcp as u8, 0]);
/// Length of TCP's header and its flags, whether there is PSH or not.
const HEAD_MASK: u64 = u32::from_ne_bytes([0xff, !Flags::PSH.0, 0, 0]) as u64;

/// What the next segment of a flow begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template {
    /// Bytes of all headers, or [`NO_LAYOUT`].
    layout: u8,
    /// IPv4: protocol and source, then destination and ports; zeros are no packet of TCP.
    second: u64,
    third: u64,
    /// Of addresses and protocol, far from 64 bits.
    hosts: u64,
    /// IPv6: source and destination, then ports.
    addresses: [u64; 4],
    ports: u64,
}

/// No ports: they have four bytes.
const NO_PORTS: u64 = u64::MAX;

impl Template {
    /// Of no flow.
    pub(crate) const NONE: Self = Self {
        layout: NO_LAYOUT as u8,
        second: 0,
        third: 0,
        hosts: 0,
        addresses: [0; 4],
        ports: NO_PORTS,
    };

    /// The layout of the next segment.
    #[inline(always)]
    pub(crate) const fn layout(&self) -> usize {
        self.layout as usize
    }

    /// Of the flow of `segment`.
    #[inline]
    pub(crate) fn of(segment: &FastSegment<'_>) -> Self {
        let ([p0, p1], [p2, p3]) = (segment.src_port.to_be_bytes(), segment.dst_port.to_be_bytes());
        let protocol = Protocol::Tcp.number();
        let number = u64::from(u16::from(protocol).to_be());
        let has_times = segment.content.times.is_some();
        match (segment.src.ipv4(), segment.dst.ipv4()) {
            (Some(src), Some(dst)) => {
                let layout = if has_times { IPV4_WITH_TIMES } else { IPV4 } as u8;
                let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (src.octets(), dst.octets());
                let half = |octets| u64::from(u32::from_ne_bytes(octets));
                Self {
                    layout,
                    second: u64::from_ne_bytes([0, protocol, 0, 0, s0, s1, s2, s3]),
                    third: u64::from_ne_bytes([d0, d1, d2, d3, p0, p1, p2, p3]),
                    hosts: half(src.octets()) + half(dst.octets()) + number,
                    ..Self::NONE
                }
            }
            (None, None) => {
                let (src, dst) = (segment.src.ipv6(), segment.dst.ipv6());
                let layout = if has_times { IPV6_WITH_TIMES } else { IPV6 } as u8;
                let ports = u64::from(u32::from_ne_bytes([p0, p1, p2, p3]));
                Self { layout, ports, ..Self::between_ipv6((src, dst), number) }
            }
            _ => Self::NONE,
        }
    }

    #[inline(never)]
    fn between_ipv6((src, dst): (Ipv6Addr, Ipv6Addr), number: u64) -> Self {
        let (src, dst) = (src.octets(), dst.octets());
        let addresses = [word(&src, 0), word(&src, 8), word(&dst, 0), word(&dst, 8)];
        let sum = Sum::of_words(addresses).0;
        let hosts = (sum >> 32) + (sum & 0xffff_ffff) + number;
        Self { hosts, addresses, ..Self::NONE }
    }

    /// Returns the segment in `packet`, if that has the header of IP and the ports of this flow,
    /// and IP's checksum is right. `VERSION`: 4 or 6.
    #[inline(always)]
    pub(crate) fn segment_in<'a, const VERSION: u8>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        if VERSION == 4 { self.segment_in_ipv4(packet) } else { self.segment_in_ipv6(packet) }
    }

    #[inline(always)]
    fn segment_in_ipv4<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let head: &[u8; IPV4] = packet.first_chunk()?;
        if self.other_ipv4(head) != 0 {
            return None;
        }
        // The third word begins with the last of IP's.
        let ip = Sum(word(head, 0)).and(Sum(word(head, 8))).and(Sum(half(head, 16)));
        if !ip.is_whole() {
            return None;
        }
        let bytes = u16_at(head, 2).wrapping_sub(ipv4::HEADER_BYTES as u16);
        packet[ipv4::HEADER_BYTES..].get(..bytes.into())
    }

    #[inline(always)]
    fn segment_in_ipv6<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let head: &[u8; IPV6] = packet.first_chunk()?;
        if self.other_ipv6(head) != 0 {
            return None;
        }
        packet[ipv6::HEADER_BYTES..].get(..u16_at(head, 4).into())
    }

    /// Returns the content of a segment of this flow, if TCP's header is [`BARE_HEADER`] or
    /// [`HEADER_WITH_TIMES`] long, as `HEADER_BYTES` says, and has the usual flags without FIN.
    #[inline(always)]
    pub(crate) fn read<'a, const HEADER_BYTES: usize>(
        &self,
        segment: &'a [u8],
    ) -> Option<Content<'a>> {
        let has_times = const { HEADER_BYTES == WITH_TIMESTAMPS };
        let (head, payload) = segment.split_first_chunk::<HEADER_BYTES>()?;
        let kind = [(HEADER_BYTES as u8 / 4) << 4, Flags::ACK.0, 0, 0];
        if half(head, 12) & HEAD_MASK != u64::from(u32::from_ne_bytes(kind)) {
            return None;
        }
        if has_times && half(head, 20) != u64::from(TIMESTAMPS.to_be()) {
            return None;
        }
        let pseudo = self.hosts + u64::from((segment.len() as u16).to_be());
        let (first, second) = (word(head, 0), word(head, 8));
        let (sum, times) = if has_times {
            let words = [pseudo, first, second, word(head, 16), word(head, 24)];
            (Sum::of_words(words), head.last_chunk())
        } else {
            (Sum::of_words([pseudo, first, second, half(head, 16)]), None)
        };
        Some(Content { head: head.first_chunk()?, times, payload, sum })
    }

    /// Bits of an IPv4 header and of the ports that are others; 0: none.
    #[inline(always)]
    fn other_ipv4(&self, head: &[u8]) -> u64 {
        (word(head, 16) ^ self.third)
            | (word(head, 8) & SECOND_MASK ^ self.second)
            | (word(head, 0) & FIRST_MASK ^ FIRST)
    }

    /// The same of IPv6.
    #[inline(always)]
    fn other_ipv6(&self, head: &[u8]) -> u64 {
        let [a, b, c, d] = self.addresses;
        (half(head, 40) ^ self.ports)
            | (word(head, 8) ^ a)
            | (word(head, 16) ^ b)
            | (word(head, 24) ^ c)
            | (word(head, 32) ^ d)
            | (word(head, 0) & FIRST_V6_MASK ^ FIRST_V6)
    }
}

/// Eight bytes as they lie in memory.
#[inline(always)]
fn word(head: &[u8], at: usize) -> u64 {
    array_at(head, at).map_or(0, u64::from_ne_bytes)
}

/// Four of them.
#[inline(always)]
fn half(head: &[u8], at: usize) -> u64 {
    array_at(head, at).map_or(0, |bytes| u64::from(u32::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A segment whose headers have so many bytes, TCP's checksum right or not.
    fn packet(headers_bytes: usize, payload: &[u8]) -> Vec<u8> {
        let (is_v6, has_times) = match headers_bytes {
            IPV4 => (false, false),
            IPV4_WITH_TIMES => (false, true),
            IPV6 => (true, false),
            _ => (true, true),
        };
        let mut packet = if is_v6 {
            let bytes = (headers_bytes - ipv6::HEADER_BYTES + payload.len()) as u16;
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
            packet[4..6].copy_from_slice(&bytes.to_be_bytes());
            packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            packet
        } else {
            let total = (headers_bytes + payload.len()) as u16;
            let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0];
            packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            packet
        };
        let offset = if has_times { 0x80 } else { 0x50 };
        packet.extend([0x30, 0x39, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, offset, 0x10, 9, 9, 0, 0, 0, 0]);
        if has_times {
            packet.extend([1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4]);
        }
        packet.extend(payload);
        seal(&mut packet);
        packet
    }

    /// Sets the checksum of IPv4 right.
    fn seal(packet: &mut [u8]) {
        if packet[0] >> 4 == 4 {
            packet[10..12].fill(0);
            let sum = crate::wire::checksum::sum(&packet[..ipv4::HEADER_BYTES]);
            packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
        }
    }

    fn usual(packet: &[u8]) -> Option<FastSegment<'_>> {
        FastSegment::of(&Packet::of_ipv4(packet).or_else(|| Packet::of_ipv6(packet))?)
    }

    fn read<'a>(template: &Template, layout: usize, packet: &'a [u8]) -> Option<Content<'a>> {
        match layout {
            IPV4 => template.read::<BARE_HEADER>(template.segment_in::<4>(packet)?),
            IPV4_WITH_TIMES => {
                template.read::<HEADER_WITH_TIMES>(template.segment_in::<4>(packet)?)
            }
            IPV6 => template.read::<BARE_HEADER>(template.segment_in::<6>(packet)?),
            _ => template.read::<HEADER_WITH_TIMES>(template.segment_in::<6>(packet)?),
        }
    }

    const LAYOUTS: [usize; 4] = [IPV4, IPV4_WITH_TIMES, IPV6, IPV6_WITH_TIMES];

    /// Both readings of a packet, after one of the same flow; sums are the same where their
    /// remainders are. Only the reading of its own layout has an answer.
    fn agree(of: usize, packet_now: &[u8]) -> bool {
        let first = packet(of, &[7; 64]);
        let template = Template::of(&usual(&first).unwrap());
        let read = LAYOUTS.map(|layout| read(&template, layout, packet_now));
        let Some(layout) = read.iter().position(Option::is_some) else { return false };
        assert_eq!(read.iter().flatten().count(), 1);
        let (read, usual) = (read[layout].unwrap(), usual(packet_now).unwrap());
        assert_eq!((usual.src_port, usual.dst_port), (12_345, 80));
        assert!(!usual.flags.contains(Flags::FIN));
        assert_eq!(read.sum.0 % 0xffff, usual.content.sum.0 % 0xffff);
        assert_eq!(Content { sum: usual.content.sum, ..read }, usual.content);
        true
    }

    #[test]
    fn template_reads_the_next_segment_and_no_other() {
        for layout in LAYOUTS {
            let mut next = packet(layout, &[1, 2, 3]);
            assert!(agree(layout, &next), "{layout}");
            assert!(LAYOUTS.iter().all(|of| read(&Template::NONE, *of, &next).is_none()));
            let is_v6 = layout >= IPV6;
            let tcp = if is_v6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
            // PSH says nothing; a byte of each thing that is looked at does.
            next[tcp + 13] |= Flags::PSH.0;
            assert!(agree(layout, &next), "{layout}");
            let ip: &[usize] =
                if is_v6 { &[6, 8, 16, 23, 24, 32, 39] } else { &[0, 1, 2, 6, 7, 9, 12, 16] };
            let options = if layout == IPV4_WITH_TIMES || layout == IPV6_WITH_TIMES {
                &[20, 23][..]
            } else {
                &[]
            };
            let of_tcp = [0, 2, 12, 13].iter().chain(options).map(|at| tcp + at);
            for at in ip.iter().copied().chain(of_tcp) {
                let mut other = next.clone();
                other[at] ^= 0x01;
                seal(&mut other);
                assert!(!agree(layout, &other), "{layout}: byte {at}");
            }
            let mut marked = next.clone();
            marked[1] ^= if is_v6 { 0x30 } else { 0x03 };
            seal(&mut marked);
            assert!(!agree(layout, &marked), "a mark of congestion");
            if !is_v6 {
                next[10] ^= 1;
                assert!(!agree(layout, &next), "the checksum of IP");
            }
        }
    }

    #[test]
    fn template_of_one_version_reads_nothing_of_the_other() {
        for (of, layout) in [(IPV4, IPV6), (IPV6, IPV4), (IPV4_WITH_TIMES, IPV6_WITH_TIMES)] {
            let mut other = packet(layout, &[1]);
            assert!(!agree(of, &other));
            // Nor where all that a template of the other version lacks is zero.
            let addresses =
                if layout == IPV6 || layout == IPV6_WITH_TIMES { 8..44 } else { 12..24 };
            other[addresses].fill(0);
            seal(&mut other);
            assert!(!agree(of, &other));
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_the_fields_say(
            layout in prop::sample::select(&LAYOUTS[..]),
            payload in prop::collection::vec(any::<u8>(), 0..100),
            changes in prop::collection::vec((0..IPV6_WITH_TIMES, any::<u8>()), 0..3),
            cut in prop_oneof![9 => Just(0_usize), 1 => 0..60_usize],
        ) {
            let mut packet = packet(layout, &payload);
            for (at, byte) in changes {
                if let Some(place) = packet.get_mut(at) {
                    *place = byte;
                }
            }
            seal(&mut packet);
            packet.truncate(packet.len() - cut.min(packet.len()));
            agree(layout, &packet);
        }
    }
}
