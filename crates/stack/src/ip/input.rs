//! Input path of a frame: from the link header to the transport.
//!
//! Read first: RFC 1122 §3.2.1 (what a host checks), RFC 8200 §4 (the order of headers).
//!
//! Invariants
//! - What reaches a transport was sent by one host to one address of ours, on the link too; it is
//!   whole, and so are its headers. That host is we only if the frame was looped, and only then is
//!   the address one of loopback.
//! - Datagrams to IPv4 groups and broadcast addresses are refused: nothing here asks for them.
//!   Groups of IPv6 are heard for neighbour discovery and options that want a report.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::icmp::{Complaint, Incoming};
use super::inbound::{Inbound, Original};
use super::reassembly::{FragmentOutcome, Key, Piece, ReassembledPacket, Reassembly};
use super::{Arrived, Ip, address};
use crate::counters::{Counters, Drop};
use crate::frame::{Checksums, Medium, Received};
use crate::host_address::HostAddress;
use crate::time::Instant;
use crate::wire::{Ecn, Protocol, ethernet, extension, ipv4, ipv6};

/// Of the first eight bytes of a frame, the first in the lowest bits: its destination, and the bit
/// of its source that says whether that is a group.
const FAST_LINK_MASK: u64 = 0x0001_ffff_ffff_ffff;

/// What [`FAST_LINK_MASK`] leaves of a frame with the usual header of a link: to us, from one
/// host. With a VLAN no header is usual.
pub(super) fn fast_link_of(medium: Medium, vlan: Option<u16>) -> u64 {
    match (medium, vlan) {
        (Medium::Ethernet([a, b, c, d, e, f]), None) => {
            u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
        }
        _ => u64::MAX,
    }
}

/// What the link says about a packet.
#[derive(Clone, Copy)]
struct Envelope {
    src_mac: [u8; 6],
    /// Sent to a multicast or broadcast link address.
    to_group: bool,
    received: Received,
}

impl Envelope {
    /// The frame stayed here.
    #[inline]
    fn is_looped(&self) -> bool {
        self.received.checksums == Checksums::Looped
    }
}

/// A whole packet whose headers were followed.
struct Packet<'a> {
    src: IpAddr,
    dst: IpAddr,
    ecn: Ecn,
    dscp: u8,
    hop_limit: u8,
    protocol: u8,
    /// Where `protocol` stands, counted from the IP header.
    named_at: usize,
    payload: &'a [u8],
    original: Original<'a>,
    /// It came in fragments, of which one may be the whole.
    reassembled: bool,
}

impl Ip {
    /// Follows a frame's headers, and handles it if it is for this layer.
    ///
    /// # Errors
    ///
    /// Why it is dropped.
    pub(crate) fn on_frame<'a>(
        &mut self,
        now: Instant,
        (frame, received): (&'a [u8], Received),
        reassembly: &'a mut Reassembly,
        counters: &mut Counters,
    ) -> Result<Inbound<'a>, Drop> {
        let (ethertype, envelope, bytes) = match self.medium {
            Medium::Ip => {
                let ethertype = match frame.first().map(|byte| byte >> 4) {
                    Some(4) => ethernet::IPV4,
                    Some(6) => ethernet::IPV6,
                    Some(_) => return Err(Drop::UnknownNetworkProtocol),
                    None => return Err(Drop::Truncated),
                };
                (ethertype, Envelope { src_mac: [0; 6], to_group: false, received }, frame)
            }
            Medium::Ethernet(_) => self.open(frame, received)?,
        };
        match ethertype {
            ethernet::IPV4 => self.on_ipv4(now, envelope, (bytes, reassembly), counters),
            ethernet::IPV6 => self.on_ipv6(now, envelope, (bytes, reassembly), counters),
            ethernet::ARP => self.on_arp(now, bytes).map(|()| Inbound::Handled),
            _ => Err(Drop::UnknownNetworkProtocol),
        }
    }

    /// The link's header is the usual one: ours to read, from one host, without a VLAN. Who sent it
    /// is not asked here, but of [`Ip::lets_in`]. `false` says nothing about the frame:
    /// [`Ip::on_frame`] does.
    #[inline(always)]
    pub(crate) fn has_fast_link(&self, frame: &[u8]) -> bool {
        let Medium::Ethernet(_) = self.medium else { return true };
        let Some(head) = frame.first_chunk::<{ ethernet::HEADER_BYTES }>() else { return false };
        let Some(word) = head.first_chunk() else { return false };
        u64::from_le_bytes(*word) & FAST_LINK_MASK == self.fast_link
    }

    /// What is a packet of `ethertype`, or none, in a frame with the usual header of the link.
    #[inline(always)]
    pub(crate) fn fast_packet<'a>(&self, frame: &'a [u8], ethertype: u16) -> Option<&'a [u8]> {
        let Medium::Ethernet(_) = self.medium else { return Some(frame) };
        let (head, packet) = frame.split_first_chunk::<{ ethernet::HEADER_BYTES }>()?;
        let is_usual = u64::from_le_bytes(*head.first_chunk()?) & FAST_LINK_MASK == self.fast_link;
        (is_usual && u16::from_be_bytes([head[12], head[13]]) == ethertype).then_some(packet)
    }

    /// What may be a packet in a frame with such a header, and its EtherType: IPv4 or IPv6. A
    /// packet of another version than the link says is for the slow path to drop.
    #[inline(always)]
    pub(crate) fn packet_in<'a>(&self, frame: &'a [u8]) -> Option<(u16, &'a [u8])> {
        let (ethertype, packet) = match self.medium {
            Medium::Ip if frame.first()? >> 4 == 4 => (ethernet::IPV4, frame),
            Medium::Ip => (ethernet::IPV6, frame),
            Medium::Ethernet(_) => {
                let (head, packet) = frame.split_first_chunk::<{ ethernet::HEADER_BYTES }>()?;
                (u16::from_be_bytes([head[12], head[13]]), packet)
            }
        };
        matches!(ethertype, ethernet::IPV4 | ethernet::IPV6).then_some((ethertype, packet))
    }

    /// A packet from `src` to `dst` is for us, and may come from there: from one host, and not from
    /// us (which [`Ip::on_frame`] decides of frames that were looped).
    #[inline(always)]
    pub(crate) fn lets_in(&mut self, src: HostAddress, dst: HostAddress) -> bool {
        self.last_let_in == (src, dst) || self.lets_other_in(src, dst)
    }

    /// The same of other addresses than those of the packet before.
    #[inline(never)]
    fn lets_other_in(&mut self, src: HostAddress, dst: HostAddress) -> bool {
        let lets_in = self.is_ours(dst.ip()) && self.is_peer(src.ip());
        if lets_in {
            self.last_let_in = (src, dst);
        }
        lets_in
    }

    /// `ip` is an address that a packet to one of us may come from.
    #[inline]
    fn is_peer(&self, ip: IpAddr) -> bool {
        address::is_unicast(ip) && !self.is_ours(ip) && !self.addresses.is_broadcast(ip)
    }

    /// As [`Ip::is_peer`], or we, where the frame stayed here.
    #[inline]
    fn is_sender(&self, src: IpAddr, envelope: Envelope) -> bool {
        self.is_peer(src) || (envelope.is_looped() && self.stays_here(src))
    }

    /// A packet for `dst` is for us: also one for loopback, where the frame stayed here.
    #[inline]
    fn is_destination(&self, dst: IpAddr, envelope: Envelope) -> bool {
        self.is_ours(dst) || (envelope.is_looped() && self.is_our_loopback(dst))
    }

    /// Takes off the Ethernet header: EtherType, what the link says, payload.
    #[inline]
    fn open<'a>(
        &self,
        frame: &'a [u8],
        received: Received,
    ) -> Result<(u16, Envelope, &'a [u8]), Drop> {
        let view = ethernet::View::new(frame)?;
        if !self.takes_link_address(view.dst()) || view.vlan() != self.vlan {
            return Err(Drop::OtherLinkAddress);
        }
        if ethernet::is_group(view.src()) {
            return Err(Drop::BadSource);
        }
        let to_group = ethernet::is_group(view.dst());
        Ok((view.ethertype(), Envelope { src_mac: view.src(), to_group, received }, view.payload()))
    }

    fn on_ipv4<'a>(
        &mut self,
        now: Instant,
        envelope: Envelope,
        (bytes, reassembly): (&'a [u8], &'a mut Reassembly),
        counters: &mut Counters,
    ) -> Result<Inbound<'a>, Drop> {
        let view = ipv4::View::new(bytes)?;
        if !view.checksum_is_right() {
            return Err(Drop::BadIpChecksum);
        }
        view.check_options()?;
        self.check_ipv4_addresses(view.src(), view.dst(), envelope)?;
        if !view.is_fragment() {
            return self.deliver(now, envelope, packet_of_v4(&view, view.ecn()), counters);
        }
        let key = Key {
            src: view.src().into(),
            dst: view.dst().into(),
            protocol: view.protocol(),
            identification: view.identification().into(),
        };
        let piece = Piece {
            key,
            header: &bytes[..view.header_bytes()],
            offset: view.fragment_offset(),
            more: view.more_fragments(),
            ecn: view.ecn(),
            payload: view.payload(),
        };
        let Some(whole) = reassemble(now, reassembly, &piece, counters)? else {
            return Ok(Inbound::Handled);
        };
        let total = u16::try_from(whole.packet.len()).map_err(|_| Drop::BadFragment)?;
        let packet = ipv4::set_whole(whole.packet, total);
        let view = ipv4::View::new(packet)?;
        let mut packet = packet_of_v4(&view, whole.ecn);
        packet.reassembled = true;
        self.deliver(now, envelope, packet, counters)
    }

    #[inline]
    fn check_ipv4_addresses(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        envelope: Envelope,
    ) -> Result<(), Drop> {
        if !self.is_destination(dst.into(), envelope) {
            return Err(Drop::OtherAddress);
        }
        // One of our addresses in a broadcast frame (RFC 1122 §3.3.6).
        if envelope.to_group {
            return Err(Drop::OtherLinkAddress);
        }
        if !self.is_sender(src.into(), envelope) {
            return Err(Drop::BadSource);
        }
        Ok(())
    }

    fn on_ipv6<'a>(
        &mut self,
        now: Instant,
        envelope: Envelope,
        (bytes, reassembly): (&'a [u8], &'a mut Reassembly),
        counters: &mut Counters,
    ) -> Result<Inbound<'a>, Drop> {
        let view = ipv6::View::new(bytes)?;
        let to_group = self.check_ipv6_addresses(&view, envelope)?;
        let original = Original { packet: view.bytes(), to_group };
        let chain = match extension::walk(view.next_header(), view.payload(), true) {
            Ok(chain) => chain,
            Err(problem) => return Err(self.report(now, original, problem, counters)),
        };
        if chain.protocol != extension::FRAGMENT {
            let packet = packet_of_v6(&view, chain, original, view.ecn());
            return self.deliver(now, envelope, packet, counters);
        }
        if to_group {
            return Err(Drop::BadFragment);
        }
        let rest = view.payload().get(chain.offset..).ok_or(Drop::Truncated)?;
        let fragment = extension::Fragment::parse(rest).ok_or(Drop::Truncated)?;
        if fragment.offset == 0 && !fragment.more {
            return self.on_atomic_fragment(now, envelope, (&view, chain), counters);
        }
        let piece = self.piece_of_v6(now, &view, (chain, fragment), counters)?;
        let Some(whole) = reassemble(now, reassembly, &piece, counters)? else {
            return Ok(Inbound::Handled);
        };
        let ecn = whole.ecn;
        let (packet, has_headers_before) =
            extension::remove_fragment_header(whole.packet, whole.header_bytes)
                .ok_or(Drop::BadFragment)?;
        let view = ipv6::View::new(packet)?;
        let original = Original { packet, to_group };
        // Options for every hop belong to what every hop sees, which is before the fragment header.
        let chain = match extension::walk(view.next_header(), view.payload(), has_headers_before) {
            Ok(chain) => chain,
            Err(problem) => return Err(self.report_behind(now, original, problem, counters)),
        };
        if chain.protocol == extension::FRAGMENT {
            return Err(Drop::BadFragment);
        }
        let mut packet = packet_of_v6(&view, chain, original, ecn);
        packet.reassembled = true;
        self.deliver(now, envelope, packet, counters)
    }

    /// A fragment that is its whole packet: read in place, independently of what is being
    /// reassembled (RFC 6946 §4). `chain` leads to its fragment header.
    fn on_atomic_fragment<'a>(
        &mut self,
        now: Instant,
        envelope: Envelope,
        (view, chain): (&ipv6::View<'a>, extension::Chain),
        counters: &mut Counters,
    ) -> Result<Inbound<'a>, Drop> {
        let original = Original { packet: view.bytes(), to_group: false };
        let chain = match extension::walk_behind_fragment_header(chain, view.payload()) {
            Ok(chain) => chain,
            Err(problem) => return Err(self.report_behind(now, original, problem, counters)),
        };
        if chain.protocol == extension::FRAGMENT {
            return Err(Drop::BadFragment);
        }
        counters.totals.packets_reassembled += 1;
        let mut packet = packet_of_v6(view, chain, original, view.ecn());
        packet.reassembled = true;
        self.deliver(now, envelope, packet, counters)
    }

    /// Whether the packet goes to a group of ours.
    #[inline]
    fn check_ipv6_addresses(
        &self,
        view: &ipv6::View<'_>,
        envelope: Envelope,
    ) -> Result<bool, Drop> {
        let (src, dst): (Ipv6Addr, Ipv6Addr) = (view.src(), view.dst());
        let to_group = dst.is_multicast();
        let is_for_us = match to_group {
            true => self.is_group_of_ours(dst),
            false => self.is_destination(dst.into(), envelope),
        };
        if !is_for_us {
            return Err(Drop::OtherAddress);
        }
        if envelope.to_group && !to_group {
            return Err(Drop::OtherLinkAddress);
        }
        // The unspecified source is for duplicate address detection (RFC 4861 §4.3), to a group.
        let is_unspecified = src.is_unspecified() && to_group;
        if !is_unspecified && !self.is_sender(src.into(), envelope) {
            return Err(Drop::BadSource);
        }
        Ok(to_group)
    }

    /// Reports extension headers that cannot be followed. Returns why the packet is dropped.
    fn report(
        &mut self,
        now: Instant,
        original: Original<'_>,
        problem: extension::Problem,
        counters: &mut Counters,
    ) -> Drop {
        let report = problem.report.filter(|it| it.even_to_group || !original.to_group);
        if let Some(report) = report {
            let pointer = report.pointer.map_or(NEXT_HEADER_AT, |at| at + ipv6::HEADER_BYTES);
            let complaint = Complaint::Header { code: report.code, pointer };
            self.complain(now, &original, complaint, counters);
        }
        problem.drop
    }

    /// Reports headers behind a fragment header that cannot be followed, except where the kernel
    /// reassembles the same packet and reports. Returns why the packet is dropped.
    fn report_behind(
        &mut self,
        now: Instant,
        original: Original<'_>,
        problem: extension::Problem,
        counters: &mut Counters,
    ) -> Drop {
        if self.external_neighbours {
            return problem.drop;
        }
        self.report(now, original, problem, counters)
    }

    /// The piece of a packet that `fragment`, to which `chain` leads, brings.
    fn piece_of_v6<'a>(
        &mut self,
        now: Instant,
        view: &ipv6::View<'a>,
        (chain, fragment): (extension::Chain, extension::Fragment),
        counters: &mut Counters,
    ) -> Result<Piece<'a>, Drop> {
        let payload = view.payload().get(chain.offset + extension::FRAGMENT_BYTES..);
        let payload = payload.ok_or(Drop::Truncated)?;
        let header_bytes = ipv6::HEADER_BYTES + chain.offset + extension::FRAGMENT_BYTES;
        let field_at = if fragment.more && !payload.len().is_multiple_of(8) {
            Some(PAYLOAD_LENGTH_AT)
        } else if fragment.offset + payload.len() > usize::from(u16::MAX) {
            Some(ipv6::HEADER_BYTES + chain.offset + 2)
        } else {
            None
        };
        if let Some(pointer) = field_at {
            // RFC 8200 §4.5: both are reported to the sender.
            let original = Original { packet: view.bytes(), to_group: false };
            let complaint = Complaint::Header { code: extension::CODE_FIELD, pointer };
            self.complain(now, &original, complaint, counters);
            return Err(Drop::BadFragment);
        }
        // All headers are in the first fragment (RFC 7112 §5). What is reported is reported of the
        // whole packet.
        if fragment.offset == 0
            && extension::walk(fragment.next_header, payload, false)
                .is_err_and(|problem| problem.report.is_none())
        {
            return Err(Drop::BadFragment);
        }
        let key = Key {
            src: view.src().into(),
            dst: view.dst().into(),
            protocol: 0,
            identification: fragment.identification,
        };
        Ok(Piece {
            key,
            header: &view.bytes()[..header_bytes],
            offset: fragment.offset,
            more: fragment.more,
            ecn: view.ecn(),
            payload,
        })
    }

    /// Hands a packet to the transport that it is for.
    #[inline]
    fn deliver<'a>(
        &mut self,
        now: Instant,
        envelope: Envelope,
        packet: Packet<'a>,
        counters: &mut Counters,
    ) -> Result<Inbound<'a>, Drop> {
        let Packet { src, dst, ecn, dscp, hop_limit, .. } = packet;
        let Packet { payload, original, reassembled, .. } = packet;
        let to_group = original.to_group;
        let arrived = Arrived {
            src,
            dst,
            ecn,
            traffic_class: dscp << 2 | ecn as u8,
            hop_limit,
            payload,
            // The link saw fragments, and cannot vouch for the whole.
            checksums: if reassembled {
                Checksums::Unverified
            } else {
                envelope.received.checksums
            },
            segment_bytes: envelope.received.segment_bytes,
        };
        if reassembled && self.external_neighbours {
            return match Protocol::from_number(packet.protocol) {
                Some(protocol @ (Protocol::Tcp | Protocol::Udp)) if !to_group => {
                    Ok(Inbound::Shared(protocol, arrived))
                }
                // The kernel answers echoes, and reports what it cannot deliver.
                _ => Err(Drop::NoEndpoint),
            };
        }
        match (Protocol::from_number(packet.protocol), src) {
            (Some(Protocol::Tcp), _) if !to_group => Ok(Inbound::Tcp(arrived)),
            (Some(Protocol::Udp), _) if !to_group => Ok(Inbound::Udp(arrived, original)),
            // No group that we are in has members of TCP or UDP.
            (Some(Protocol::Tcp | Protocol::Udp), _) => Err(Drop::OtherAddress),
            (Some(Protocol::Icmp), IpAddr::V4(_)) | (Some(Protocol::Icmp6), IpAddr::V6(_)) => {
                counters.totals.icmp_in += 1;
                let src_mac = envelope.src_mac;
                let (message, traffic_class) = (payload, arrived.traffic_class);
                let incoming = Incoming {
                    src,
                    dst,
                    src_mac,
                    hop_limit,
                    traffic_class,
                    to_group,
                    reassembled,
                    message,
                };
                if src.is_ipv4() { self.on_icmp4(&incoming) } else { self.on_icmp6(now, &incoming) }
            }
            _ => {
                if packet.protocol != extension::NO_NEXT || src.is_ipv4() {
                    let complaint = Complaint::Transport { pointer: packet.named_at };
                    self.complain(now, &original, complaint, counters);
                }
                Err(Drop::UnknownTransport)
            }
        }
    }
}

/// Adds a fragment; the packet, if that is whole now.
///
/// # Errors
///
/// Why the fragment is dropped, or that it took the place of another packet.
fn reassemble<'a>(
    now: Instant,
    reassembly: &'a mut Reassembly,
    piece: &Piece<'_>,
    counters: &mut Counters,
) -> Result<Option<ReassembledPacket<'a>>, Drop> {
    match reassembly.add(now, piece)? {
        FragmentOutcome::Waits => Ok(None),
        FragmentOutcome::WaitsInPlaceOfAnother => Err(Drop::ReassemblyFull),
        FragmentOutcome::Whole(whole) => {
            counters.totals.packets_reassembled += 1;
            Ok(Some(whole))
        }
    }
}

/// Where the IPv6 header's own next header field is.
const NEXT_HEADER_AT: usize = 6;
/// Where the IPv6 header's payload length is.
const PAYLOAD_LENGTH_AT: usize = 4;

#[inline]
fn packet_of_v4<'a>(view: &ipv4::View<'a>, ecn: Ecn) -> Packet<'a> {
    Packet {
        src: view.src().into(),
        dst: view.dst().into(),
        ecn,
        dscp: view.dscp(),
        hop_limit: view.ttl(),
        protocol: view.protocol(),
        named_at: 9,
        payload: view.payload(),
        original: Original { packet: view.bytes(), to_group: false },
        reassembled: false,
    }
}

#[inline]
fn packet_of_v6<'a>(
    view: &ipv6::View<'a>,
    chain: extension::Chain,
    original: Original<'a>,
    ecn: Ecn,
) -> Packet<'a> {
    Packet {
        src: view.src().into(),
        dst: view.dst().into(),
        ecn,
        dscp: view.dscp(),
        hop_limit: view.hop_limit(),
        protocol: chain.protocol,
        named_at: chain.named_at.map_or(NEXT_HEADER_AT, |at| at + ipv6::HEADER_BYTES),
        payload: view.payload().get(chain.offset..).unwrap_or_default(),
        original,
        reassembled: false,
    }
}
