//! IP packets as bytes: what the interpreter sends and what it reads back.
//!
//! Written apart from the stack's own `wire`, so that neither can hide the other's mistake.
//! Read first: RFC 791 section 3.1, RFC 8200 section 3, RFC 9293 section 3.1, RFC 768, RFC 792.
//!
//! Invariants: `parse` is total; `emit` fills in every length and checksum, and `parse` of what it
//! made gives the same packet back.

pub(crate) mod tcp;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use megapipe_link::checksum::{fold, sum};

use crate::wire::tcp::TcpHeader;

/// ICMP's protocol number.
pub(crate) const PROTOCOL_ICMP: u8 = 1;
/// TCP's protocol number.
pub(crate) const PROTOCOL_TCP: u8 = 6;
/// UDP's protocol number.
pub(crate) const PROTOCOL_UDP: u8 = 17;
/// ICMPv6's protocol number.
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;

const IPV4_HEADER_BYTES: usize = 20;
const IPV6_HEADER_BYTES: usize = 40;
const UDP_HEADER_BYTES: usize = 8;
/// More fragments, or an offset.
const FRAGMENT_BITS: u16 = 0x3fff;
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// An IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IpPacket {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) tos: u8,
    pub(crate) flow_label: u32,
    pub(crate) ttl: u8,
    pub(crate) payload: PacketTransport,
}

/// What an IP packet carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PacketTransport {
    Tcp(TcpHeader),
    Udp {
        source_port: u16,
        destination_port: u16,
        payload: Vec<u8>,
    },
    /// ICMP or ICMPv6, by the version of the packet. `rest` is the second word of the header.
    Icmp {
        kind: u8,
        code: u8,
        rest: u32,
        payload: Vec<u8>,
    },
    /// Anything else, fragments too.
    Other {
        protocol: u8,
        payload: Vec<u8>,
    },
}

/// Why bytes are no packet that could be expected of a system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("shorter than the length in its headers")]
    Truncated,
    #[error("an IP version other than 4 and 6")]
    BadVersion,
    #[error("a wrong checksum in the IPv4 header")]
    BadIpChecksum,
    #[error("a wrong {0} checksum")]
    BadChecksum(&'static str),
    #[error("a malformed TCP option")]
    BadOption,
}

/// How far checksums of the transport can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumTrust {
    /// They are complete, and a wrong one is an error.
    Verified,
    /// The kernel leaves them to a device that is not there.
    Offloaded,
}

/// Reads a packet. Bytes after its end by its own length are left out.
pub(crate) fn parse(bytes: &[u8], checksums: ChecksumTrust) -> Result<IpPacket, WireError> {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => parse_ipv4(bytes, checksums),
        Some(6) => parse_ipv6(bytes, checksums),
        Some(_) => Err(WireError::BadVersion),
        None => Err(WireError::Truncated),
    }
}

fn parse_ipv4(bytes: &[u8], checksums: ChecksumTrust) -> Result<IpPacket, WireError> {
    let header_bytes = usize::from(*bytes.first().ok_or(WireError::Truncated)? & 0xf) * 4;
    let header = bytes.get(..header_bytes.max(IPV4_HEADER_BYTES)).ok_or(WireError::Truncated)?;
    if checksum(header, 0) != 0 {
        return Err(WireError::BadIpChecksum);
    }
    // A segment that the kernel left to a device to cut may be too large for its length field.
    let total = match usize::from(be16(header, 2)) {
        0 => bytes.len(),
        total => total,
    };
    let payload = bytes.get(header.len()..total).ok_or(WireError::Truncated)?;
    let source = Ipv4Addr::from(be32(header, 12));
    let destination = Ipv4Addr::from(be32(header, 16));
    let (source, destination) = (IpAddr::V4(source), IpAddr::V4(destination));
    let protocol = header[9];
    let payload = if be16(header, 6) & FRAGMENT_BITS == 0 {
        let pseudo = pseudo_header(source, destination, protocol, payload.len());
        parse_transport(protocol, payload, pseudo, checksums)?
    } else {
        PacketTransport::Other { protocol, payload: payload.to_vec() }
    };
    let (tos, ttl) = (header[1], header[8]);
    Ok(IpPacket { source, destination, tos, flow_label: 0, ttl, payload })
}

fn parse_ipv6(bytes: &[u8], checksums: ChecksumTrust) -> Result<IpPacket, WireError> {
    let header = bytes.get(..IPV6_HEADER_BYTES).ok_or(WireError::Truncated)?;
    let first = be32(header, 0);
    let end = match usize::from(be16(header, 4)) {
        0 => bytes.len(),
        payload => IPV6_HEADER_BYTES + payload,
    };
    let payload = bytes.get(IPV6_HEADER_BYTES..end).ok_or(WireError::Truncated)?;
    let address = |at: usize| {
        let octets: Option<[u8; 16]> = header.get(at..at + 16).and_then(|x| x.try_into().ok());
        IpAddr::V6(Ipv6Addr::from(octets.unwrap_or_default()))
    };
    let (source, destination) = (address(8), address(24));
    let protocol = header[6];
    let pseudo = pseudo_header(source, destination, protocol, payload.len());
    let payload = parse_transport(protocol, payload, pseudo, checksums)?;
    let tos = u8::try_from((first >> 20) & 0xff).unwrap_or(0);
    Ok(IpPacket { source, destination, tos, flow_label: first & 0xf_ffff, ttl: header[7], payload })
}

fn parse_transport(
    protocol: u8,
    bytes: &[u8],
    pseudo: u32,
    checksums: ChecksumTrust,
) -> Result<PacketTransport, WireError> {
    let is_wrong =
        |pseudo: u32| checksums == ChecksumTrust::Verified && checksum(bytes, pseudo) != 0;
    match protocol {
        PROTOCOL_TCP if is_wrong(pseudo) => Err(WireError::BadChecksum("TCP")),
        PROTOCOL_TCP => TcpHeader::parse(bytes).map(PacketTransport::Tcp),
        PROTOCOL_UDP => {
            let header = bytes.get(..UDP_HEADER_BYTES).ok_or(WireError::Truncated)?;
            if be16(header, 6) != 0 && is_wrong(pseudo) {
                return Err(WireError::BadChecksum("UDP"));
            }
            Ok(PacketTransport::Udp {
                source_port: be16(header, 0),
                destination_port: be16(header, 2),
                payload: bytes[UDP_HEADER_BYTES..].to_vec(),
            })
        }
        PROTOCOL_ICMP if is_wrong(0) => Err(WireError::BadChecksum("ICMP")),
        PROTOCOL_ICMPV6 if is_wrong(pseudo) => Err(WireError::BadChecksum("ICMPv6")),
        PROTOCOL_ICMP | PROTOCOL_ICMPV6 => {
            let header = bytes.get(..8).ok_or(WireError::Truncated)?;
            let (kind, code, rest) = (header[0], header[1], be32(header, 4));
            Ok(PacketTransport::Icmp { kind, code, rest, payload: bytes[8..].to_vec() })
        }
        _ => Ok(PacketTransport::Other { protocol, payload: bytes.to_vec() }),
    }
}

/// Writes a packet, with its lengths and checksums.
pub(crate) fn emit(packet: &IpPacket) -> Vec<u8> {
    let is_ipv6 = packet.source.is_ipv6();
    let (protocol, mut body) = emit_transport(&packet.payload, is_ipv6);
    let sum_at = match protocol {
        PROTOCOL_TCP => Some(16),
        PROTOCOL_UDP => Some(6),
        PROTOCOL_ICMP | PROTOCOL_ICMPV6 => Some(2),
        _ => None,
    };
    if let Some(at) = sum_at {
        let pseudo = if protocol == PROTOCOL_ICMP {
            0
        } else {
            pseudo_header(packet.source, packet.destination, protocol, body.len())
        };
        let sum = match checksum(&body, pseudo) {
            0 if protocol == PROTOCOL_UDP => 0xffff,
            sum => sum,
        };
        body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let mut bytes = emit_header(packet, protocol, body.len());
    bytes.extend_from_slice(&body);
    bytes
}

/// The bytes that an ICMP error quotes of a packet: its IP header and the beginning of the rest
/// (RFC 792, RFC 4443 section 2.4). `total_bytes` is what the quoted header says of its length.
pub(crate) fn emit_quoted(packet: &IpPacket, transport: &[u8], total_bytes: usize) -> Vec<u8> {
    let protocol = protocol_of(&packet.payload, packet.source.is_ipv6());
    let mut bytes = emit_header(packet, protocol, total_bytes);
    bytes.extend_from_slice(transport);
    bytes
}

fn protocol_of(payload: &PacketTransport, is_ipv6: bool) -> u8 {
    match payload {
        PacketTransport::Tcp(_) => PROTOCOL_TCP,
        PacketTransport::Udp { .. } => PROTOCOL_UDP,
        PacketTransport::Icmp { .. } if is_ipv6 => PROTOCOL_ICMPV6,
        PacketTransport::Icmp { .. } => PROTOCOL_ICMP,
        PacketTransport::Other { protocol, .. } => *protocol,
    }
}

fn emit_transport(payload: &PacketTransport, is_ipv6: bool) -> (u8, Vec<u8>) {
    let bytes = match payload {
        PacketTransport::Tcp(header) => header.emit(),
        PacketTransport::Udp { source_port, destination_port, payload } => {
            let len = UDP_HEADER_BYTES + payload.len();
            let words = [*source_port, *destination_port, low16(len), 0];
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            bytes.extend_from_slice(payload);
            bytes
        }
        PacketTransport::Icmp { kind, code, rest, payload } => {
            let mut bytes = vec![*kind, *code, 0, 0];
            bytes.extend_from_slice(&rest.to_be_bytes());
            bytes.extend_from_slice(payload);
            bytes
        }
        PacketTransport::Other { payload, .. } => payload.clone(),
    };
    (protocol_of(payload, is_ipv6), bytes)
}

fn emit_header(packet: &IpPacket, protocol: u8, body_bytes: usize) -> Vec<u8> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, packet.tos];
            header.extend_from_slice(&low16(IPV4_HEADER_BYTES + body_bytes).to_be_bytes());
            header.extend_from_slice(&[0, 0]);
            header.extend_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
            header.extend_from_slice(&[packet.ttl, protocol, 0, 0]);
            header.extend_from_slice(&source.octets());
            header.extend_from_slice(&destination.octets());
            let sum = checksum(&header, 0);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (source, destination) => {
            let first = (6 << 28) | (u32::from(packet.tos) << 20) | packet.flow_label;
            let mut header = first.to_be_bytes().to_vec();
            header.extend_from_slice(&low16(body_bytes).to_be_bytes());
            header.extend_from_slice(&[protocol, packet.ttl]);
            header.extend_from_slice(&octets16(source));
            header.extend_from_slice(&octets16(destination));
            header
        }
    }
}

fn octets16(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A length as in a header. Packets are bounded, so it fits; a length that a script falsifies is
/// truncated.
fn low16(len: usize) -> u16 {
    u16::try_from(len & 0xffff).unwrap_or(0)
}

/// The sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u32 {
    let start = u32::from(protocol) + u32::from(low16(len)) + u32::from(low16(len >> 16));
    [source, destination].into_iter().fold(start, |start, address| match address {
        IpAddr::V4(address) => sum(start, &address.octets()),
        IpAddr::V6(address) => sum(start, &address.octets()),
    })
}

/// The Internet checksum of bytes, with a sum to begin with. Zero over what contains it.
fn checksum(bytes: &[u8], start: u32) -> u16 {
    !fold(sum(start, bytes))
}

/// Two bytes at a place that the caller has checked; 0 beyond the end.
fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]))
}

/// Four bytes at a place that the caller has checked; 0 beyond the end.
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}
