//! The IPv6 header (RFC 8200 §3).
//!
//! ```text
//!  |version| traffic class |              flow label               |
//!  |         payload length        |  next header  |   hop limit   |
//!  |                    source address (16 bytes)                  |
//!  |                 destination address (16 bytes)                |
//! ```
//!
//! Invariants
//! - Bytes after the payload length are not part of a view. There are no jumbograms (RFC 2675).
//! - We send a flow label of zero (RFC 6437 §3 allows that).

use core::net::Ipv6Addr;

use super::Ecn;
use super::field::{array_at, put_u16, rest, u8_at, u16_at, u32_at};
use crate::counters::Drop;

/// Bytes of a header without extension headers.
pub const HEADER_BYTES: usize = 40;

/// A packet whose lengths were checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks version and lengths, and cuts off what is not part of the packet.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`], or [`Drop::BadHeader`] for another version.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        if bytes.len() < HEADER_BYTES {
            return Err(Drop::Truncated);
        }
        if bytes[0] >> 4 != 6 {
            return Err(Drop::BadHeader);
        }
        let total_bytes = HEADER_BYTES + usize::from(u16_at(bytes, 4));
        Ok(Self { bytes: bytes.get(..total_bytes).ok_or(Drop::Truncated)? })
    }

    /// Header and payload.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Differentiated services code point.
    #[must_use]
    pub fn dscp(&self) -> u8 {
        (u8_at(self.bytes, 0) << 2 | u8_at(self.bytes, 1) >> 6) & 0x3f
    }

    /// Congestion marks.
    #[must_use]
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(u8_at(self.bytes, 1) >> 4)
    }

    /// Flow label, 20 bits.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        u32_at(self.bytes, 0) & 0x000f_ffff
    }

    /// What the payload begins with.
    #[must_use]
    #[inline]
    pub fn next_header(&self) -> u8 {
        u8_at(self.bytes, 6)
    }

    /// Hops that it may still go.
    #[must_use]
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        u8_at(self.bytes, 7)
    }

    /// Who sent it.
    #[must_use]
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(array_at(self.bytes, 8).unwrap_or_default())
    }

    /// Destination address.
    #[must_use]
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(array_at(self.bytes, 24).unwrap_or_default())
    }

    /// What follows the header, extension headers included.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        rest(self.bytes, HEADER_BYTES)
    }
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Who sends it.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// What the payload begins with.
    pub next_header: u8,
    /// Hops that it may go.
    pub hop_limit: u8,
    /// Differentiated services code point (RFC 2474 §3), 6 bits.
    pub dscp: u8,
    /// Congestion marks.
    pub ecn: Ecn,
    /// Length of the payload, extension headers included: at most 65,535 bytes.
    pub payload_bytes: usize,
}

impl Repr {
    /// What `view` says. The flow label is left out.
    #[must_use]
    pub fn parse(view: &View<'_>) -> Self {
        Self {
            src: view.src(),
            dst: view.dst(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            dscp: view.dscp(),
            ecn: view.ecn(),
            payload_bytes: view.payload().len(),
        }
    }

    /// Length of the header in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        HEADER_BYTES
    }

    /// Writes the header to the start of `bytes`.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Repr::header_bytes`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        let header = &mut bytes[..HEADER_BYTES];
        let class = self.dscp << 2 | self.ecn as u8;
        header[0..4].copy_from_slice(&[0x60 | class >> 4, class << 4, 0, 0]);
        put_u16(header, 4, self.payload_bytes as u16);
        header[6] = self.next_header;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.src.octets());
        header[24..40].copy_from_slice(&self.dst.octets());
    }
}

/// Says what follows the header.
///
/// # Panics
///
/// If `packet` is shorter than that field's place.
pub fn set_next_header(packet: &mut [u8], next_header: u8) {
    packet[6] = next_header;
}
