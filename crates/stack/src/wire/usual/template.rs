//! The headers that the next segment of a flow will have, in its packet's own layout: whether it
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
//! Invariants
//! - What [`Template::read`] answers is what [`Usual::of`] would, of the flow that the template
//!   is of, without FIN. `None` says nothing about a packet.
//! - It is of IPv4 alone, since the addresses of IPv6 are too long for this to be worth it, and of
//!   segments with timestamps, as nearly all peers send them.

use super::super::field::array_at;
use super::*;

/// First eight bytes: version and length of the header, no fragment, and no mark of congestion; the
/// other mark that takes the same bit (RFC 3168 §5: nobody has to use it) goes another way too.
const FIRST_MASK: u64 = u64::from_ne_bytes([0xff, 0x01, 0, 0, 0, 0, 0x3f, 0xff]);
const FIRST: u64 = u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]);
/// Second eight: protocol and source.
const SECOND_MASK: u64 = u64::from_ne_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]);
/// Length of TCP's header and its flags, whether there is PSH or not.
const HEAD_MASK: u64 = u32::from_ne_bytes([0xff, !Flags::PSH.0, 0, 0]) as u64;
const HEAD: u64 = u32::from_ne_bytes([(WITH_TIMESTAMPS as u8 / 4) << 4, Flags::ACK.0, 0, 0]) as u64;
/// Both headers.
const HEADERS_BYTES: usize = ipv4::HEADER_BYTES + WITH_TIMESTAMPS;

/// What the next segment of a flow begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template {
    second: u64,
    third: u64,
    /// Of addresses and protocol.
    hosts: u64,
}

impl Template {
    /// Of no flow: no packet of TCP is between these addresses.
    pub(crate) const NONE: Self = Self { second: 0, third: 0, hosts: 0 };

    /// Of the flow of `segment`; `None`: that is not over IPv4, or has no timestamps.
    #[inline]
    pub(crate) fn of(segment: &Usual<'_>) -> Option<Self> {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (segment.src, segment.dst) else { return None };
        segment.content.times?;
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (src.octets(), dst.octets());
        let ([p0, p1], [p2, p3]) = (segment.src_port.to_be_bytes(), segment.dst_port.to_be_bytes());
        let protocol = Protocol::Tcp.number();
        let half = |octets| u64::from(u32::from_ne_bytes(octets));
        Some(Self {
            second: u64::from_ne_bytes([0, protocol, 0, 0, s0, s1, s2, s3]),
            third: u64::from_ne_bytes([d0, d1, d2, d3, p0, p1, p2, p3]),
            hosts: half(src.octets()) + half(dst.octets()) + u64::from(u16::from(protocol).to_be()),
        })
    }

    /// The content of `packet`, if it has these headers; its checksum of IP is right then.
    #[inline(always)]
    pub(crate) fn read<'a>(&self, packet: &'a [u8]) -> Option<Content<'a>> {
        let head: &[u8; HEADERS_BYTES] = packet.first_chunk()?;
        let (first, second, third) = (word(head, 0), word(head, 8), word(head, 16));
        // One question, whether any bit is another.
        let other = (third ^ self.third)
            | (second & SECOND_MASK ^ self.second)
            | (first & FIRST_MASK ^ FIRST)
            | (half(head, 32) & HEAD_MASK ^ HEAD);
        if other != 0 {
            return None;
        }
        // The third word begins with the last of IP's.
        let ip = Sum(first).and(Sum(second)).and(Sum(half(head, 16)));
        if half(head, 40) != u64::from(TIMESTAMPS.to_be()) || !ip.is_whole() {
            return None;
        }
        let total_bytes = u16_at(head, 2);
        let text_bytes = usize::from(total_bytes).checked_sub(HEADERS_BYTES)?;
        let payload = packet[HEADERS_BYTES..].get(..text_bytes)?;
        let tcp_bytes = total_bytes.wrapping_sub(ipv4::HEADER_BYTES as u16);
        // Addresses, protocol and length are far from 64 bits together.
        let pseudo = self.hosts + u64::from(tcp_bytes.to_be());
        let tcp = [pseudo, word(head, 20), word(head, 28), word(head, 36), word(head, 44)];
        Some(Content {
            seq: SeqNum(u32_at(head, 24)),
            ack: SeqNum(u32_at(head, 28)),
            window: u16_at(head, 34),
            times: Some(Timestamps { value: u32_at(head, 44), echo: u32_at(head, 48) }),
            payload,
            sum: Sum::of_words(tcp),
        })
    }
}

/// Eight bytes as they lie in memory.
#[inline(always)]
fn word(head: &[u8; HEADERS_BYTES], at: usize) -> u64 {
    array_at(head, at).map_or(0, u64::from_ne_bytes)
}

/// Four of them.
#[inline(always)]
fn half(head: &[u8; HEADERS_BYTES], at: usize) -> u64 {
    array_at(head, at).map_or(0, |bytes| u64::from(u32::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A segment of 64 bytes with timestamps, both checksums right or not.
    fn packet(payload: &[u8]) -> Vec<u8> {
        let total = (HEADERS_BYTES + payload.len()) as u16;
        let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet.extend([0x30, 0x39, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x10, 9, 9, 0, 0, 0, 0]);
        packet.extend([1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4]);
        packet.extend(payload);
        packet
    }

    /// Sets the checksum of IP right.
    fn seal(packet: &mut [u8]) {
        packet[10..12].fill(0);
        let sum = crate::wire::checksum::sum(&packet[..ipv4::HEADER_BYTES]);
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    }

    fn usual(packet: &[u8]) -> Option<Usual<'_>> {
        Usual::of(&Packet::of_ipv4(packet)?)
    }

    fn template() -> Template {
        let mut packet = packet(&[7; 64]);
        seal(&mut packet);
        Template::of(&usual(&packet).unwrap()).unwrap()
    }

    /// Both readings of a packet of that flow; sums are the same where their remainders are.
    fn agree(packet: &[u8]) -> bool {
        let Some(read) = template().read(packet) else { return false };
        let usual = usual(packet).unwrap();
        assert_eq!((usual.src_port, usual.dst_port), (12_345, 80));
        assert!(!usual.flags.contains(Flags::FIN));
        assert_eq!(read.sum.0 % 0xffff, usual.content.sum.0 % 0xffff);
        assert_eq!(Content { sum: usual.content.sum, ..read }, usual.content);
        true
    }

    #[test]
    fn the_next_of_a_flow_is_read_and_others_are_not() {
        let mut next = packet(&[1, 2, 3]);
        seal(&mut next);
        assert!(agree(&next));
        assert!(Template::NONE.read(&next).is_none());
        // PSH says nothing; a byte of each thing that is looked at does.
        next[33] |= Flags::PSH.0;
        assert!(agree(&next));
        for at in [0, 1, 2, 6, 7, 9, 12, 16, 20, 22, 32, 33, 40, 43] {
            let mut other = next.clone();
            other[at] ^= 0x01;
            seal(&mut other);
            assert!(!agree(&other), "byte {at}");
        }
        next[10] ^= 1;
        assert!(!agree(&next), "the checksum of IP");
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_the_fields_say(
            payload in prop::collection::vec(any::<u8>(), 0..100),
            changes in prop::collection::vec((0..HEADERS_BYTES, any::<u8>()), 0..3),
            cut in prop_oneof![9 => Just(0_usize), 1 => 0..60_usize],
        ) {
            let mut packet = packet(&payload);
            for (at, byte) in changes {
                packet[at] = byte;
            }
            seal(&mut packet);
            packet.truncate(packet.len() - cut.min(packet.len()));
            agree(&packet);
        }
    }
}
