//! The router on the way between two hosts, for what is too large for its next link.
//!
//! Read first: RFC 792, "Destination Unreachable"; RFC 1191 §4; RFC 4443 §3.2.
//!
//! Pure: a frame that does not fit goes in, the message to its sender comes out.

use std::net::IpAddr;

use megapipe_stack::wire::{Ecn, Protocol, checksum, ethernet, icmp4, icmp6, ipv4, ipv6};

use crate::host::{address, mac};
use crate::scenario::Scenario;

/// The router's last byte, in its address and its hardware address: no host's.
const ROUTER: u8 = 254;
/// Bytes of what did not fit that the message quotes: headers and the beginning of the rest.
const QUOTED_BYTES: usize = 64;

fn ethernet_bytes(scenario: &Scenario) -> usize {
    if scenario.ethernet { 14 } else { 0 }
}

/// Whether a link of `mtu` bytes does not take the packet. One of IPv4 that may be cut is taken:
/// that its pieces arrive is none of TCP's business.
pub(crate) fn is_too_large(scenario: &Scenario, frame: &[u8], mtu: u16) -> bool {
    let packet = &frame[ethernet_bytes(scenario)..];
    let may_be_cut = || !scenario.v6 && packet[6] & 0x40 == 0;
    let is_ip = packet.first().is_some_and(|first| matches!(first >> 4, 4 | 6));
    is_ip && packet.len() > usize::from(mtu) && !may_be_cut()
}

/// What the router tells host `to`, which sent the frame.
pub(crate) fn too_large(scenario: &Scenario, to: usize, frame: &[u8], mtu: u16) -> Vec<u8> {
    let quoted = &frame[ethernet_bytes(scenario)..][..QUOTED_BYTES];
    let mut message = vec![0; 8];
    message.extend(quoted);
    let packet = match address(scenario, to) {
        IpAddr::V4(dst) => {
            let code = icmp4::CODE_FRAGMENTATION_NEEDED;
            icmp4::Repr::Unreachable { code, mtu }.emit(&mut message);
            let header = ipv4::Repr {
                src: [10, 0, 0, ROUTER].into(),
                dst,
                protocol: Protocol::Icmp.number(),
                ttl: 64,
                dscp: 0,
                ecn: Ecn::NotEct,
                identification: 0,
                dont_fragment: false,
                more_fragments: false,
                fragment_offset: 0,
                payload_bytes: message.len(),
            };
            let mut packet = vec![0; 20];
            header.emit(&mut packet);
            [packet, message].concat()
        }
        IpAddr::V6(dst) => {
            let src = [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(ROUTER)].into();
            let next_header = Protocol::Icmp6.number();
            let pseudo_header =
                checksum::pseudo_header(IpAddr::V6(src), dst.into(), next_header, message.len());
            icmp6::Repr::PacketTooBig { mtu: mtu.into() }.emit(&mut message, pseudo_header);
            let header = ipv6::Repr {
                src,
                dst,
                next_header,
                hop_limit: 64,
                dscp: 0,
                ecn: Ecn::NotEct,
                payload_bytes: message.len(),
            };
            let mut packet = vec![0; 40];
            header.emit(&mut packet);
            [packet, message].concat()
        }
    };
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
