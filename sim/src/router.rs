//! The router on the way between two hosts, for what is too large for its next link.
//!
//! Read first: RFC 792, "Destination Unreachable"; RFC 1191 §4; RFC 4443 §3.2.
//!
//! Pure: a frame that does not fit goes in, the message to its sender comes out.

use std::net::IpAddr;

use megapipe_stack::wire::{Protocol, checksum, icmp4, icmp6};

use crate::host::address;
use crate::packets::{self, ROUTER, ethernet_bytes};
use crate::scenario::Scenario;

/// Bytes of what did not fit that the message quotes: headers and the beginning of the rest.
const QUOTED_BYTES: usize = 64;

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
    let bytes = &frame[ethernet_bytes(scenario)..];
    error(scenario, to, &bytes[..bytes.len().min(QUOTED_BYTES)], RouterProblem::TooLarge { mtu })
}

/// What a router reports about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterProblem {
    /// The next link takes no more than `mtu` bytes.
    TooLarge { mtu: u16 },
    /// The destination has no such port.
    NoPort,
    /// No way leads to the destination.
    NoHost,
}

/// The ICMP error to host `to` about a packet of its own, of which `quoted` is the beginning.
pub(crate) fn error(
    scenario: &Scenario,
    to: usize,
    quoted: &[u8],
    problem: RouterProblem,
) -> Vec<u8> {
    let mut message = vec![0; 8];
    message.extend(quoted);
    let dst = address(scenario, to);
    let (src, protocol) = match dst {
        IpAddr::V4(_) => {
            message_v4(problem).emit(&mut message);
            (IpAddr::from([10, 0, 0, ROUTER]), Protocol::Icmp)
        }
        IpAddr::V6(_) => {
            let src = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(ROUTER)]);
            let number = Protocol::Icmp6.number();
            let pseudo_header = checksum::pseudo_header(src, dst, number, message.len());
            message_v6(problem).emit(&mut message, pseudo_header);
            (src, Protocol::Icmp6)
        }
    };
    packets::frame(scenario, to, (src, dst), protocol, &message)
}

const fn message_v4(problem: RouterProblem) -> icmp4::Repr {
    match problem {
        RouterProblem::TooLarge { mtu } => {
            icmp4::Repr::Unreachable { code: icmp4::CODE_FRAGMENTATION_NEEDED, mtu }
        }
        RouterProblem::NoPort => icmp4::Repr::Unreachable { code: 3, mtu: 0 },
        RouterProblem::NoHost => icmp4::Repr::Unreachable { code: 1, mtu: 0 },
    }
}

fn message_v6(problem: RouterProblem) -> icmp6::Repr {
    match problem {
        RouterProblem::TooLarge { mtu } => icmp6::Repr::PacketTooBig { mtu: mtu.into() },
        RouterProblem::NoPort => icmp6::Repr::Unreachable { code: 4 },
        RouterProblem::NoHost => icmp6::Repr::Unreachable { code: 3 },
    }
}
