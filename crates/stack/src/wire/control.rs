//! Builder of control segments (SYN, SYN-ACK, ACK, RST): all headers at fixed offsets.
//!
//! Read first: `headers.rs`, which writes any segment with the usual headers; RFC 9293 §3.1, RFC
//! 791 §3.1, RFC 7323 appendix A.
//!
//! ```text
//!  Ethernet, 14   IPv4, 20   TCP, 20   nothing, or NOP NOP timestamps (12),
//!                                      or MSS, SACK permitted, timestamps, NOP, window scale (20)
//! ```
//!
//! Those that come and go with short connections have one of three lengths, and nothing in them is
//! anywhere else than in the one before: each word has its place, known to the compiler.
//!
//! Invariant: the bytes are those that `Headers` would write.

use core::net::Ipv4Addr;

use super::checksum::{finish, fold};
use super::headers::{
    MSS, Offers, SACK_PERMITTED_TIMESTAMPS, TIMESTAMPS, TIMESTAMPS_BYTES, WINDOW_SCALE,
};
use super::tcp::{Flags, Timestamps};
use super::{Protocol, ethernet, ipv4, tcp};
use crate::seq::SeqNum;

const IP_AT: usize = ethernet::HEADER_BYTES;
const TCP_AT: usize = IP_AT + ipv4::HEADER_BYTES;
const OPTIONS_AT: usize = TCP_AT + tcp::HEADER_BYTES;
const WITH_TIMESTAMPS: usize = OPTIONS_AT + TIMESTAMPS_BYTES;
const WITH_SYN_OPTIONS: usize = WITH_TIMESTAMPS + 8;

/// Where a control segment goes: over Ethernet and IPv4.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// Ethernet's destination and source.
    pub(crate) link: ethernet::AddressWords,
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) dscp: u8,
    pub(crate) hop_limit: u8,
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    /// Not scaled.
    pub(crate) window: u16,
    pub(crate) times: Option<Timestamps>,
    /// `None`: it is no SYN.
    pub(crate) offers: Option<Offers>,
}

impl Control {
    /// Writes a whole frame to the start of `frame`; its bytes. `None`: it is none of the three,
    /// or does not fit; nothing was written.
    #[inline(always)]
    pub(crate) fn emit(&self, way: &Way, frame: &mut [u8]) -> Option<usize> {
        match (self.offers, self.times) {
            (None, None) => self.emit_with::<0, OPTIONS_AT>(way, [], frame),
            (None, Some(times)) => {
                let words = [TIMESTAMPS, times.value, times.echo];
                self.emit_with::<3, WITH_TIMESTAMPS>(way, words, frame)
            }
            (Some(offers), Some(times)) => {
                let Offers { mss: Some(mss), window_scale: Some(shift), sack_permitted } = offers
                else {
                    return None;
                };
                let before = if sack_permitted { SACK_PERMITTED_TIMESTAMPS } else { TIMESTAMPS };
                let (mss, scale) = (MSS | u32::from(mss), WINDOW_SCALE | u32::from(shift));
                let words = [mss, before, times.value, times.echo, scale];
                self.emit_with::<5, WITH_SYN_OPTIONS>(way, words, frame)
            }
            (Some(_), None) => None,
        }
    }

    /// The same as any segment's header.
    pub(crate) fn repr(&self, src_port: u16, dst_port: u16) -> tcp::Repr {
        let Self { seq, ack, flags, window, times, offers } = *self;
        let options = offers.unwrap_or(Offers::NONE).and(times);
        tcp::Repr { src_port, dst_port, seq, ack, flags, window, urgent: 0, options }
    }

    #[inline(always)]
    fn emit_with<const WORDS: usize, const BYTES: usize>(
        &self,
        way: &Way,
        options: [u32; WORDS],
        frame: &mut [u8],
    ) -> Option<usize> {
        const { assert!(BYTES == OPTIONS_AT + 4 * WORDS) };
        let frame: &mut [u8; BYTES] = frame.first_chunk_mut()?;
        way.link.emit(ethernet::IPV4, frame.first_chunk_mut()?);
        let (src, dst) = (way.src.to_bits(), way.dst.to_bits());
        let addresses = u64::from(src) + u64::from(dst);
        let first = 0x4500_0000 | u32::from(way.dscp) << 18 | (BYTES - IP_AT) as u32;
        // It may not be cut, and needs no number of its own (RFC 6864 §4.1).
        let second = 0x4000;
        let third = u32::from(way.hop_limit) << 24 | u32::from(Protocol::Tcp.number()) << 16;
        let sum = addresses + u64::from(first) + second + u64::from(third);
        put(frame, IP_AT, first);
        put(frame, IP_AT + 4, second as u32);
        put(frame, IP_AT + 8, third | u32::from(finish(fold(sum))));
        put(frame, IP_AT + 12, src);
        put(frame, IP_AT + 16, dst);
        let ports = u32::from(way.src_port) << 16 | u32::from(way.dst_port);
        let words = (tcp::HEADER_BYTES / 4 + WORDS) as u32;
        let middle = words << 28 | u32::from(self.flags.0) << 16 | u32::from(self.window);
        let pseudo = u64::from(Protocol::Tcp.number()) + (BYTES - TCP_AT) as u64;
        let numbers = u64::from(self.seq.0) + u64::from(self.ack.0);
        let head = addresses + pseudo + u64::from(ports) + u64::from(middle) + numbers;
        let sum = options.iter().fold(head, |sum, word| sum + u64::from(*word));
        put(frame, TCP_AT, ports);
        put(frame, TCP_AT + 4, self.seq.0);
        put(frame, TCP_AT + 8, self.ack.0);
        put(frame, TCP_AT + 12, middle);
        // And no urgent pointer.
        put(frame, TCP_AT + 16, u32::from(finish(fold(sum))) << 16);
        for (at, word) in options.into_iter().enumerate() {
            put(frame, OPTIONS_AT + 4 * at, word);
        }
        Some(BYTES)
    }
}

#[inline(always)]
fn put<const N: usize>(frame: &mut [u8; N], at: usize, word: u32) {
    frame[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::Ecn;
    use crate::wire::headers::{Headers, Text};

    /// Any number, and those that carries are made of.
    fn number() -> impl Strategy<Value = u32> {
        prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(0xffff), Just(0xffff_0000)]
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_any_segment_with_such_headers(
            (link_dst, link_src) in any::<([u8; 6], [u8; 6])>(),
            (src, dst) in (number(), number()),
            (dscp, hop_limit) in (0_u8..64, any::<u8>()),
            (src_port, dst_port, window, flags) in any::<(u16, u16, u16, u8)>(),
            (seq, ack) in (number(), number()),
            times in prop::option::of((number(), number())),
            offers in any::<Option<(Option<u16>, bool, Option<u8>)>>(),
            room in 0_usize..100,
        ) {
            let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
            let control = Control {
                seq: SeqNum(seq),
                ack: SeqNum(ack),
                flags: Flags(flags & !0x20),
                window,
                times: times.map(|(value, echo)| Timestamps { value, echo }),
                offers: offers.map(|(mss, sack_permitted, window_scale)| {
                    Offers { mss, sack_permitted, window_scale }
                }),
            };
            let link = ethernet::AddressWords::new(link_dst, link_src);
            let headers = Headers {
                link: Some(link),
                src: IpAddr::V4(src),
                dst: IpAddr::V4(dst),
                dscp,
                ecn: Ecn::NotEct,
                hop_limit,
                src_port,
                dst_port,
                seq: control.seq,
                ack: control.ack,
                flags: control.flags,
                window,
                times: control.times,
                offers: control.offers,
            };
            let (mut quick, mut any) = ([0xaa; 100], [0xaa; 100]);
            let way = Way { link, src, dst, src_port, dst_port, dscp, hop_limit };
            let written = control.emit(&way, &mut quick[..room]);
            let is_one_of_three = match control.offers {
                None => true,
                Some(Offers { mss, window_scale, .. }) => {
                    mss.is_some() && window_scale.is_some() && control.times.is_some()
                }
            };
            let bytes = headers.header_bytes();
            prop_assert_eq!(written, (is_one_of_three && bytes <= room).then_some(bytes));
            if written.is_some() {
                prop_assert_eq!(headers.emit(&mut any, 0, Text::Summed(0)), Some(()));
            }
            prop_assert_eq!(&quick[..], &any[..]);
        }
    }
}
