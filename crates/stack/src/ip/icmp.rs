//! ICMP of both versions: echoes are answered, errors are handed to whom they concern, and what
//! we cannot deliver is reported.
//!
//! Read first: RFC 1122 §3.2.2, RFC 4443 §2.4, RFC 5927 (what a forged error can do).
//!
//! Invariants
//! - No error is sent about an error, a group's packet, a fragment but the first, or a source that
//!   is not one host (RFC 1122 §3.2.2, RFC 4443 §2.4 (e)); and not more than
//!   [`crate::limits::ICMP_ERRORS_PER_S`] of them.
//! - An error that arrives is only read: the transport that it concerns decides whether it is
//!   genuine. Redirects and source quenches change nothing.

use core::net::{IpAddr, SocketAddr};

use super::inbound::{Inbound, Original};
use super::link::Discovery;
use super::outbox::Message;
use super::{IcmpError, IcmpErrorKind, IcmpReport, Ip, Unreachable, address, path_mtu};
use crate::counters::{Counters, Drop};
use crate::event::Arrival;
use crate::limits::{MTU_MIN, MTU_MIN_V6, OUTBOX_MESSAGE_BYTES};
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::quote::Quote;
use crate::wire::{Protocol, checksum, extension, icmp4, icmp6, ipv4, ipv6, mld, ndp};

/// What is wrong with a packet that cannot be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// Port unreachable.
    Port,
    /// We do not speak that transport; for IPv6 the byte of the packet that names it.
    Transport {
        /// Counted from the IPv6 header.
        pointer: usize,
    },
    /// Its fragments did not all arrive.
    Reassembly,
    /// A header of IPv6 that we cannot follow (RFC 4443 §3.4).
    Header {
        /// Which kind of problem.
        code: u8,
        /// The byte, counted from the IPv6 header.
        pointer: usize,
    },
}

/// An ICMP message, and what came with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming<'a> {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub src_mac: [u8; 6],
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub to_group: bool,
    /// It was put together from fragments.
    pub reassembled: bool,
    pub message: &'a [u8],
}

impl<'a> Incoming<'a> {
    /// The error that it is, about a packet of whose transport `quoted` is the beginning.
    fn said(&self, quoted: &'a [u8]) -> IcmpReport<'a> {
        let Self { src, dst, hop_limit, traffic_class, message, .. } = *self;
        // It was parsed, and is as long.
        let [kind, code, _, _, a, b, c, d] = message.first_chunk().copied().unwrap_or_default();
        let info = match (kind, code) {
            _ if src.is_ipv6() => u32::from_be_bytes([a, b, c, d]),
            (icmp4::UNREACHABLE, icmp4::CODE_FRAGMENTATION_NEEDED) => {
                u16::from_be_bytes([c, d]).into()
            }
            (icmp4::PARAMETER_PROBLEM, _) => a.into(),
            _ => 0,
        };
        let arrival = Arrival { to: dst, hop_limit, traffic_class };
        IcmpReport { by: src, kind, code, info, arrival, quoted }
    }
}

impl Ip {
    /// A message of ICMP for IPv4.
    pub(super) fn on_icmp4<'a>(&mut self, incoming: &Incoming<'a>) -> Result<Inbound<'a>, Drop> {
        let view = icmp4::View::new(incoming.message)?;
        let message = icmp4::Repr::parse(&view)?;
        if let icmp4::Repr::Echo { code, identifier, sequence } = message {
            let reply = icmp4::Repr::EchoReply { code, identifier, sequence };
            self.echo(incoming, Protocol::Icmp, |bytes, _| reply.emit(bytes))?;
            return Ok(Inbound::Handled);
        }
        if !message.is_error() {
            // Echo replies (we send no requests) and redirects.
            return Err(Drop::IgnoredMessage);
        }
        let quote = Quote::v4(view.payload())?;
        let sent_bytes = u16::from_be_bytes([view.payload()[2], view.payload()[3]]);
        let kind = match message {
            icmp4::Repr::Unreachable { code: icmp4::CODE_FRAGMENTATION_NEEDED, mtu } => {
                let told = u32::from(mtu);
                self.too_big(quote.dst, told, sent_bytes)?
            }
            icmp4::Repr::Unreachable { code, .. } => {
                IcmpErrorKind::Unreachable(unreachable_v4(code))
            }
            icmp4::Repr::TimeExceeded { .. } => IcmpErrorKind::TimeExceeded,
            _ => IcmpErrorKind::ParameterProblem,
        };
        self.error_about(incoming, &quote, kind)
    }

    /// A message of ICMP for IPv6.
    pub(super) fn on_icmp6<'a>(
        &mut self,
        now: Instant,
        incoming: &Incoming<'a>,
    ) -> Result<Inbound<'a>, Drop> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (incoming.src, incoming.dst) else {
            return Err(Drop::BadHeader);
        };
        let view = icmp6::View::new(incoming.message)?;
        let number = Protocol::Icmp6.number();
        let len = incoming.message.len();
        let pseudo_header = checksum::pseudo_header(incoming.src, incoming.dst, number, len);
        let message = icmp6::Repr::parse(&view, pseudo_header)?;
        if let ndp::SOLICITATION | ndp::ADVERTISEMENT = view.kind() {
            if incoming.reassembled {
                // RFC 6980 §5.
                return Err(Drop::BadNeighbourMessage);
            }
            let Incoming { src_mac, hop_limit, message, .. } = *incoming;
            self.on_discovery(now, &Discovery { src, dst, src_mac, hop_limit, message })?;
            return Ok(Inbound::Handled);
        }
        if view.kind() == mld::QUERY {
            let Incoming { src_mac, hop_limit, message, .. } = *incoming;
            self.on_query(now, &Discovery { src, dst, src_mac, hop_limit, message })?;
            return Ok(Inbound::Handled);
        }
        if src.is_unspecified() {
            return Err(Drop::BadSource);
        }
        if let icmp6::Repr::Echo { code, identifier, sequence } = message {
            let reply = icmp6::Repr::EchoReply { code, identifier, sequence };
            self.echo(incoming, Protocol::Icmp6, |bytes, pseudo| reply.emit(bytes, pseudo))?;
            return Ok(Inbound::Handled);
        }
        let kind = match message {
            icmp6::Repr::Unreachable { code } => IcmpErrorKind::Unreachable(unreachable_v6(code)),
            icmp6::Repr::PacketTooBig { mtu } => {
                let quote = Quote::v6(view.payload())?;
                self.too_big(quote.dst, mtu, 0)?
            }
            icmp6::Repr::TimeExceeded { .. } => IcmpErrorKind::TimeExceeded,
            icmp6::Repr::ParameterProblem { .. } => IcmpErrorKind::ParameterProblem,
            // Router messages, redirects, reports, and undefined types.
            _ => return Err(Drop::IgnoredMessage),
        };
        self.error_about(incoming, &Quote::v6(view.payload())?, kind)
    }

    /// What a "too big" says, if it can be true.
    fn too_big(&self, dst: IpAddr, told: u32, sent_bytes: u16) -> Result<IcmpErrorKind, Drop> {
        let mtu = path_mtu::plausible(dst, told, sent_bytes, self.mtu).ok_or(Drop::BadIcmpError)?;
        Ok(IcmpErrorKind::FragmentationNeeded { mtu })
    }

    /// The error for the transport that sent what `quote` quotes.
    fn error_about<'a>(
        &self,
        incoming: &Incoming<'a>,
        quote: &Quote<'a>,
        kind: IcmpErrorKind,
    ) -> Result<Inbound<'a>, Drop> {
        let Some(protocol @ (Protocol::Tcp | Protocol::Udp)) =
            Protocol::from_number(quote.protocol)
        else {
            return Err(Drop::BadIcmpError);
        };
        // About loopback a message comes over loopback only.
        let is_loopback = quote.src == incoming.dst && self.is_our_loopback(quote.src);
        if !is_loopback && !self.is_ours(quote.src) {
            return Err(Drop::BadIcmpError);
        }
        let seq = if protocol == Protocol::Tcp { quote.seq() } else { SeqNum(0) };
        let error = IcmpError {
            protocol,
            local: SocketAddr::new(quote.src, quote.src_port()),
            remote: SocketAddr::new(quote.dst, quote.dst_port()),
            seq,
            kind,
        };
        Ok(Inbound::Icmp(error, incoming.said(quote.transport)))
    }

    /// Sends back what came; `emit` writes the header, and gets the sum of the pseudo header.
    fn echo(
        &mut self,
        incoming: &Incoming<'_>,
        protocol: Protocol,
        emit: impl FnOnce(&mut [u8], u16),
    ) -> Result<(), Drop> {
        if incoming.to_group {
            // RFC 1122 §3.2.2.6 allows that; else anybody could make all of a link answer.
            return Err(Drop::IgnoredMessage);
        }
        let (src, dst) = (incoming.dst, incoming.src);
        // What does not fit a packet goes in several. Beyond what is kept here IPv4 lets us shorten
        // it (RFC 1122 §3.2.2.6), IPv6 does not (RFC 4443 §4.2).
        let message = match incoming.message.get(..OUTBOX_MESSAGE_BYTES) {
            None => incoming.message,
            Some(shortened) if dst.is_ipv4() => shortened,
            Some(whole) if whole.len() == incoming.message.len() => whole,
            Some(_) => return Err(Drop::IgnoredMessage),
        };
        let (number, len) = (protocol.number(), message.len());
        self.outbox.push(Message { src, dst, protocol, len }, |bytes| {
            bytes.copy_from_slice(message);
            emit(bytes, checksum::pseudo_header(src, dst, number, len));
        })
    }

    /// Tells the sender of a packet that it could not be delivered, if it may be told.
    pub(crate) fn complain(
        &mut self,
        now: Instant,
        original: &Original<'_>,
        complaint: Complaint,
        counters: &mut Counters,
    ) {
        let told = match original.packet.first().map(|byte| byte >> 4) {
            Some(4) => self.complain4(now, original, complaint),
            Some(6) => self.complain6(now, original, complaint),
            _ => Ok(()),
        };
        if let Err(reason) = told {
            counters.drop(reason);
        }
    }

    /// Tells the sender of a packet, of which `first` is the first fragment, that the others did
    /// not arrive in time.
    pub(crate) fn complain_of_reassembly(
        &mut self,
        now: Instant,
        first: &[u8],
        counters: &mut Counters,
    ) {
        if self.external_neighbours {
            // The kernel has seen the same fragments.
            return;
        }
        let original = Original { packet: first, to_group: false };
        self.complain(now, &original, Complaint::Reassembly, counters);
    }

    /// "`Ok`" also where the sender must not be told.
    fn complain4(
        &mut self,
        now: Instant,
        original: &Original<'_>,
        complaint: Complaint,
    ) -> Result<(), Drop> {
        let Ok(view) = ipv4::View::new(original.packet) else { return Ok(()) };
        let to = IpAddr::V4(view.src());
        let from = IpAddr::V4(view.dst());
        let is_error = view.protocol() == Protocol::Icmp.number()
            && !matches!(view.payload().first(), Some(0 | 8));
        if original.to_group || is_error || view.fragment_offset() != 0 || !self.may_tell(to, from)
        {
            return Ok(());
        }
        let message = match complaint {
            Complaint::Port => icmp4::Repr::Unreachable { code: icmp4::CODE_PORT, mtu: 0 },
            Complaint::Transport { .. } => {
                icmp4::Repr::Unreachable { code: icmp4::CODE_PROTOCOL, mtu: 0 }
            }
            Complaint::Reassembly => icmp4::Repr::TimeExceeded { code: icmp4::CODE_REASSEMBLY },
            Complaint::Header { .. } => return Ok(()),
        };
        if !self.icmp_errors.take(now) {
            return Err(Drop::RateLimited);
        }
        // As much as fits the packet that every host takes (RFC 1812 §4.3.2.3).
        let room = usize::from(MTU_MIN) - ipv4::HEADER_BYTES - icmp4::HEADER_BYTES;
        let quoted = &view.bytes()[..view.bytes().len().min(room)];
        let len = icmp4::HEADER_BYTES + quoted.len();
        let to = Message { src: from, dst: to, protocol: Protocol::Icmp, len };
        self.outbox.push(to, |bytes| {
            bytes[icmp4::HEADER_BYTES..].copy_from_slice(quoted);
            message.emit(bytes);
        })
    }

    fn complain6(
        &mut self,
        now: Instant,
        original: &Original<'_>,
        complaint: Complaint,
    ) -> Result<(), Drop> {
        let packet = original.packet;
        let Ok(view) = ipv6::View::new(packet) else { return Ok(()) };
        let to = IpAddr::V6(view.src());
        // If the headers cannot be parsed, the packet's kind is unknown.
        let is_error =
            extension::walk(view.next_header(), view.payload(), true).is_ok_and(|chain| {
                let kind = view.payload().get(chain.offset);
                chain.protocol == Protocol::Icmp6.number() && kind.is_some_and(|kind| *kind < 128)
            });
        // An option may ask for a report even though it went to a group; then from ours.
        let from = match original.to_group {
            false => IpAddr::V6(view.dst()),
            true => match self.find_source(to) {
                Some(from) => from,
                None => return Ok(()),
            },
        };
        let may_be_to_group =
            matches!(complaint, Complaint::Header { code, .. } if code == extension::CODE_OPTION);
        if is_error || (original.to_group && !may_be_to_group) || !self.may_tell(to, from) {
            return Ok(());
        }
        let message = match complaint {
            Complaint::Port => icmp6::Repr::Unreachable { code: icmp6::CODE_PORT },
            Complaint::Transport { pointer } => icmp6::Repr::ParameterProblem {
                code: extension::CODE_NEXT_HEADER,
                pointer: pointer as u32,
            },
            Complaint::Reassembly => icmp6::Repr::TimeExceeded { code: icmp6::CODE_REASSEMBLY },
            Complaint::Header { code, pointer } => {
                icmp6::Repr::ParameterProblem { code, pointer: pointer as u32 }
            }
        };
        if !self.icmp_errors.take(now) {
            return Err(Drop::RateLimited);
        }
        // As much as fits the smallest MTU (RFC 4443 §2.4 (c)).
        let room = usize::from(MTU_MIN_V6) - ipv6::HEADER_BYTES - icmp6::HEADER_BYTES;
        let quoted = &packet[..packet.len().min(room)];
        let len = icmp6::HEADER_BYTES + quoted.len();
        let pseudo_header = checksum::pseudo_header(from, to, Protocol::Icmp6.number(), len);
        let to = Message { src: from, dst: to, protocol: Protocol::Icmp6, len };
        self.outbox.push(to, |bytes| {
            bytes[icmp6::HEADER_BYTES..].copy_from_slice(quoted);
            message.emit(bytes, pseudo_header);
        })
    }

    /// `to` is one host, and the packet was for `from`, which is ours.
    fn may_tell(&self, to: IpAddr, from: IpAddr) -> bool {
        let is_host = address::is_unicast(to) && !self.addresses.is_broadcast(to);
        (is_host || self.is_our_loopback(to)) && self.stays_here(from)
    }
}

/// RFC 1122 §3.2.2.1.
const fn unreachable_v4(code: u8) -> Unreachable {
    match code {
        icmp4::CODE_NETWORK | 6 | 11 => Unreachable::Network,
        icmp4::CODE_PROTOCOL => Unreachable::Protocol,
        icmp4::CODE_PORT => Unreachable::Port,
        9 | 10 | 13 => Unreachable::Prohibited,
        _ => Unreachable::Host,
    }
}

/// RFC 4443 §3.1.
const fn unreachable_v6(code: u8) -> Unreachable {
    match code {
        icmp6::CODE_NO_ROUTE => Unreachable::Network,
        icmp6::CODE_PORT => Unreachable::Port,
        // Codes 5 to 7 are policies and rejected routes.
        icmp6::CODE_PROHIBITED | 5..=7 => Unreachable::Prohibited,
        _ => Unreachable::Host,
    }
}
