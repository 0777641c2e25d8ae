//! The packet that an ICMP error quotes: its beginning, as much as the sender of the error kept.
//!
//! Invariant: a quote has at least the addresses, and the first 8 bytes of what follows them
//! (RFC 792); those hold the ports, and TCP's sequence number.

use core::net::IpAddr;

use super::field::{rest, u8_at, u16_at, u32_at};
use super::{extension, ipv4, ipv6};
use crate::counters::Drop;
use crate::seq::SeqNum;

/// Bytes of a transport header that a quote has at least.
pub const TRANSPORT_BYTES: usize = 8;

/// The beginning of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote<'a> {
    /// Who sent it.
    pub src: IpAddr,
    /// Who was to get it.
    pub dst: IpAddr,
    /// What it carries.
    pub protocol: u8,
    /// The beginning of that: [`TRANSPORT_BYTES`] at least.
    pub transport: &'a [u8],
}

impl<'a> Quote<'a> {
    /// An IPv4 packet's beginning. The fragment that is quoted is the first one.
    ///
    /// # Errors
    ///
    /// [`Drop::BadIcmpError`]: too short, or not the beginning of a packet.
    pub fn v4(bytes: &'a [u8]) -> Result<Self, Drop> {
        let header_bytes = usize::from(u8_at(bytes, 0) & 0x0f) * 4;
        let transport = rest(bytes, header_bytes);
        let is_first = u16_at(bytes, 6) & 0x1fff == 0;
        if u8_at(bytes, 0) >> 4 != 4
            || header_bytes < ipv4::HEADER_BYTES
            || transport.len() < TRANSPORT_BYTES
            || !is_first
        {
            return Err(Drop::BadIcmpError);
        }
        let address = |at| IpAddr::V4(u32_at(bytes, at).into());
        Ok(Self { src: address(12), dst: address(16), protocol: u8_at(bytes, 9), transport })
    }

    /// An IPv6 packet's beginning. Extension headers are passed over.
    ///
    /// # Errors
    ///
    /// [`Drop::BadIcmpError`]: too short, or not the beginning of a packet.
    pub fn v6(bytes: &'a [u8]) -> Result<Self, Drop> {
        let headers = bytes.get(ipv6::HEADER_BYTES..).ok_or(Drop::BadIcmpError)?;
        if u8_at(bytes, 0) >> 4 != 6 {
            return Err(Drop::BadIcmpError);
        }
        let refuse = |_| Drop::BadIcmpError;
        let chain = extension::walk(u8_at(bytes, 6), headers, true).map_err(refuse)?;
        let (mut protocol, mut transport) = (chain.protocol, rest(headers, chain.offset));
        if protocol == extension::FRAGMENT {
            let fragment = extension::Fragment::parse(transport).ok_or(Drop::BadIcmpError)?;
            if fragment.offset != 0 {
                return Err(Drop::BadIcmpError);
            }
            protocol = fragment.next_header;
            transport = rest(transport, extension::FRAGMENT_BYTES);
        }
        if transport.len() < TRANSPORT_BYTES {
            return Err(Drop::BadIcmpError);
        }
        let address = |at: usize| {
            let bits = (0..4).fold(0, |bits, i| bits << 32 | u128::from(u32_at(bytes, at + i * 4)));
            IpAddr::V6(bits.into())
        };
        Ok(Self { src: address(8), dst: address(24), protocol, transport })
    }

    /// Source port of TCP or UDP.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        u16_at(self.transport, 0)
    }

    /// Destination port of TCP or UDP.
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        u16_at(self.transport, 2)
    }

    /// Sequence number of TCP.
    #[must_use]
    pub fn seq(&self) -> SeqNum {
        SeqNum(u32_at(self.transport, 4))
    }
}
