//! What a frame is about, as far as steering needs to know.
//!
//! Read first: `megapipe_stack::wire` for the formats.
//!
//! Nothing is verified here: the shard that gets the frame verifies all of it. A frame that cannot
//! be read is anyone's, who drops and counts it.

use std::net::{IpAddr, SocketAddr};

use megapipe_stack::Medium;
use megapipe_stack::wire::tcp::Flags;
use megapipe_stack::wire::{
    Protocol, arp, ethernet, extension, icmp4, icmp6, ipv4, ipv6, ndp, quote,
};

use super::bindings::Transport;
use super::hash::SteeringKey;

/// What a frame is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Classified {
    /// A whole packet of a flow, or an ICMP error about one.
    Flow {
        /// Whose ports they are.
        transport: Transport,
        /// As a packet from the peer names them.
        ends: SteeringKey,
        /// A SYN without ACK: it begins a connection.
        begins: bool,
    },
    /// A fragment with the ports in it.
    First(FragmentedDatagram, Transport, SteeringKey),
    /// A fragment without ports, of a datagram that may have some.
    Later(FragmentedDatagram),
    /// A packet without ports, between these hosts (the ports are 0).
    Hosts(SteeringKey),
    /// Every shard can answer it, or none wants it.
    Anyone,
    /// Every shard may wait for it.
    Everyone,
}

/// Names a datagram that comes in fragments (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentedDatagram {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    identification: u32,
}

/// Reads a received frame.
#[must_use]
#[inline]
pub fn classify(medium: Medium, frame: &[u8]) -> Classified {
    let (ethertype, packet) = match medium {
        Medium::Ip => match frame.first().map(|byte| byte >> 4) {
            Some(4) => (ethernet::IPV4, frame),
            Some(6) => (ethernet::IPV6, frame),
            _ => return Classified::Anyone,
        },
        Medium::Ethernet(_) => match ethernet::View::new(frame) {
            Ok(view) => (view.ethertype(), view.payload()),
            Err(_) => return Classified::Anyone,
        },
    };
    let read = match ethertype {
        ethernet::IPV4 => read_v4(packet),
        ethernet::IPV6 => read_v6(packet),
        ethernet::ARP => read_arp(packet),
        _ => None,
    };
    read.unwrap_or(Classified::Anyone)
}

/// A question is answered by one; an answer is for all, because each shard asks for itself.
fn read_arp(packet: &[u8]) -> Option<Classified> {
    let view = arp::View::new(packet).ok()?;
    let is_question = arp::Repr::parse(&view).ok()?.operation == arp::Operation::Request;
    // An announcement (RFC 5227 §3) has the form of a question, and is for all that know the host.
    let is_announcement = view.sender_ip() == view.target_ip();
    let is_for_one = is_question && !is_announcement;
    Some(if is_for_one { Classified::Anyone } else { Classified::Everyone })
}

#[inline]
fn read_v4(packet: &[u8]) -> Option<Classified> {
    let view = ipv4::View::new(packet).ok()?;
    let (src, dst) = (IpAddr::V4(view.src()), IpAddr::V4(view.dst()));
    let protocol = view.protocol();
    if view.is_fragment() {
        let identification = view.identification().into();
        let datagram = FragmentedDatagram { src, dst, protocol, identification };
        let is_first = view.fragment_offset() == 0;
        return Some(read_fragment(datagram, protocol, is_first, view.payload()));
    }
    match Protocol::from_number(protocol)? {
        Protocol::Icmp => {
            let message = icmp4::View::new(view.payload()).ok()?;
            // Errors: RFC 792's unreachable, time exceeded and parameter problem.
            if !matches!(message.kind(), 3 | 11 | 12) {
                return Some(Classified::Anyone);
            }
            quote::Quote::v4(message.payload()).ok().map(|quoted| of_quote(&quoted))
        }
        protocol => read_ports(protocol, (src, dst), view.payload()),
    }
}

fn read_v6(packet: &[u8]) -> Option<Classified> {
    let view = ipv6::View::new(packet).ok()?;
    let (src, dst) = (IpAddr::V6(view.src()), IpAddr::V6(view.dst()));
    let chain = extension::walk(view.next_header(), view.payload(), true).ok()?;
    let rest = view.payload().get(chain.offset..)?;
    if chain.protocol == extension::FRAGMENT {
        let fragment = extension::Fragment::parse(rest)?;
        let payload = &rest[extension::FRAGMENT_BYTES..];
        let identification = fragment.identification;
        let datagram = FragmentedDatagram { src, dst, protocol: 0, identification };
        let (is_first, protocol) = (fragment.offset == 0, fragment.next_header);
        return Some(read_fragment(datagram, protocol, is_first, payload));
    }
    match Protocol::from_number(chain.protocol)? {
        Protocol::Icmp6 => {
            let message = icmp6::View::new(rest).ok()?;
            match message.kind() {
                // Errors (RFC 4443 §2.1).
                0..=127 => quote::Quote::v6(message.payload()).ok().map(|quoted| of_quote(&quoted)),
                ndp::ADVERTISEMENT => Some(Classified::Everyone),
                _ => Some(Classified::Anyone),
            }
        }
        protocol => read_ports(protocol, (src, dst), rest),
    }
}

/// A segment's or datagram's flow.
#[inline]
fn read_ports(protocol: Protocol, hosts: (IpAddr, IpAddr), payload: &[u8]) -> Option<Classified> {
    let transport = Transport::of(protocol)?;
    let ends = ends_of(hosts, payload)?;
    let begins =
        transport == Transport::Tcp && payload.get(13).is_some_and(|it| begins(Flags(*it)));
    Some(Classified::Flow { transport, ends, begins })
}

/// A segment with these flags begins a connection: a SYN without ACK.
#[inline]
pub(super) fn begins(flags: Flags) -> bool {
    flags.contains(Flags::SYN) && !flags.contains(Flags::ACK)
}

fn read_fragment(
    datagram: FragmentedDatagram,
    protocol: u8,
    is_first: bool,
    payload: &[u8],
) -> Classified {
    let hosts = (datagram.src, datagram.dst);
    let Some(transport) = Protocol::from_number(protocol).and_then(Transport::of) else {
        // Its fragments meet again at one shard all the same. In IPv6 only the first says what
        // the datagram is, and all of them may come here by their number.
        let ends =
            SteeringKey { src: SocketAddr::new(hosts.0, 0), dst: SocketAddr::new(hosts.1, 0) };
        return Classified::Hosts(ends);
    };
    match ends_of(hosts, payload) {
        Some(ends) if is_first => Classified::First(datagram, transport, ends),
        _ => Classified::Later(datagram),
    }
}

/// The flow that an error is about; we sent what it quotes.
fn of_quote(quoted: &quote::Quote<'_>) -> Classified {
    let Some(transport) = Protocol::from_number(quoted.protocol).and_then(Transport::of) else {
        return Classified::Anyone;
    };
    let local = SocketAddr::new(quoted.src, quoted.src_port());
    let remote = SocketAddr::new(quoted.dst, quoted.dst_port());
    Classified::Flow { transport, ends: SteeringKey::from_peer(remote, local), begins: false }
}

#[inline]
fn ends_of((src, dst): (IpAddr, IpAddr), payload: &[u8]) -> Option<SteeringKey> {
    let &[a, b, c, d] = payload.first_chunk()?;
    let port = |high, low| u16::from_be_bytes([high, low]);
    let (src, dst) = (SocketAddr::new(src, port(a, b)), SocketAddr::new(dst, port(c, d)));
    Some(SteeringKey { src, dst })
}
