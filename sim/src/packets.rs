//! Packets that no host of ours makes: a router's, an attacker's.
//!
//! Pure: addresses and a payload go in, a frame for one host comes out.

use std::net::{IpAddr, SocketAddr};

use megapipe_stack::wire::{Ecn, Protocol, checksum, ethernet, ipv4, ipv6, tcp};

use crate::host::mac;
use crate::scenario::Scenario;

/// The router's last byte, in its address and its hardware address: no host's.
pub(crate) const ROUTER: u8 = 254;

/// Bytes of a frame before its packet.
pub(crate) fn ethernet_bytes(scenario: &Scenario) -> usize {
    if scenario.ethernet { 14 } else { 0 }
}

/// The frame that carries a packet to host `to`, from the router or from what claims to be it.
pub(crate) fn frame(
    scenario: &Scenario,
    to: usize,
    ends: (IpAddr, IpAddr),
    protocol: Protocol,
    payload: &[u8],
) -> Vec<u8> {
    let packet = packet(ends, protocol, payload);
    if !scenario.ethernet {
        return packet;
    }
    let ethertype = if scenario.v6 { ethernet::IPV6 } else { ethernet::IPV4 };
    let src = [2, 0, 0, 0, 0, ROUTER];
    let header = ethernet::Repr { dst: mac(to), src, vlan: None, ethertype };
    let mut whole = vec![0; 14];
    header.emit(&mut whole);
    [whole, packet].concat()
}

/// An IP packet from one address to another.
pub(crate) fn packet((src, dst): (IpAddr, IpAddr), protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    [header(src, dst, protocol, payload.len()), payload.to_vec()].concat()
}

fn header(src: IpAddr, dst: IpAddr, protocol: Protocol, payload_bytes: usize) -> Vec<u8> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = ipv4::Repr {
                src,
                dst,
                protocol: protocol.number(),
                ttl: 64,
                dscp: 0,
                ecn: Ecn::NotEct,
                identification: 0,
                dont_fragment: false,
                more_fragments: false,
                fragment_offset: 0,
                payload_bytes,
            };
            let mut bytes = vec![0; 20];
            header.emit(&mut bytes);
            bytes
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let next_header = protocol.number();
            let (hop_limit, dscp, ecn) = (64, 0, Ecn::NotEct);
            let header = ipv6::Repr { src, dst, next_header, hop_limit, dscp, ecn, payload_bytes };
            let mut bytes = vec![0; 40];
            header.emit(&mut bytes);
            bytes
        }
        _ => unreachable!("a world has one family"),
    }
}

/// A TCP segment with its checksum, from one end to another. The header's ports are set here.
pub(crate) fn segment(
    (from, to): (SocketAddr, SocketAddr),
    header: tcp::Repr,
    payload: &[u8],
) -> Vec<u8> {
    let header = tcp::Repr { src_port: from.port(), dst_port: to.port(), ..header };
    let mut bytes = vec![0; header.header_bytes()];
    let sum = header.emit(&mut bytes);
    bytes.extend(payload);
    let protocol = Protocol::Tcp.number();
    let pseudo_header = checksum::pseudo_header(from.ip(), to.ip(), protocol, bytes.len());
    let sum = checksum::combine(sum, checksum::combine(pseudo_header, checksum::sum(payload)));
    tcp::write_checksum(&mut bytes, sum);
    bytes
}
