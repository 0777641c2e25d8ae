//! The IPv4 header (RFC 791 §3.1).
//!
//! ```text
//!  0                   1                   2                   3
//!  |version|  IHL  | DSCP      |ECN|          total length         |
//!  |         identification        |0|D|M|      fragment offset    |
//!  |  time to live |    protocol   |        header checksum        |
//!  |                         source address                        |
//!  |                      destination address                      |
//!  |                    options, padded to 32 bits                 |
//! ```
//!
//! Invariants
//! - Bytes after the total length (an Ethernet frame's padding) are not part of a view.
//! - We send no options. Those that arrive are skipped, but for source routes, which are refused
//!   (RFC 7126 §4.3, §4.4).

use core::net::Ipv4Addr;

use super::field::{array_at, put_u16, rest, u8_at, u16_at};
use super::{Ecn, checksum};
use crate::counters::Drop;

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes that a fragment's offset counts in.
pub const FRAGMENT_UNIT: usize = 8;

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_LOOSE_SOURCE_ROUTE: u8 = 131;
const OPTION_STRICT_SOURCE_ROUTE: u8 = 137;

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
    /// [`Drop::Truncated`], or [`Drop::BadHeader`] for another version or an impossible length.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        if bytes.len() < HEADER_BYTES {
            return Err(Drop::Truncated);
        }
        let header_bytes = usize::from(bytes[0] & 0x0f) * 4;
        let total_bytes = usize::from(u16_at(bytes, 2));
        if bytes[0] >> 4 != 4 || header_bytes < HEADER_BYTES || total_bytes < header_bytes {
            return Err(Drop::BadHeader);
        }
        Ok(Self { bytes: bytes.get(..total_bytes).ok_or(Drop::Truncated)? })
    }

    /// Header and payload.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Length of the header with its options, in bytes.
    #[must_use]
    #[inline]
    pub fn header_bytes(&self) -> usize {
        usize::from(u8_at(self.bytes, 0) & 0x0f) * 4
    }

    /// The header's checksum is right.
    #[must_use]
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        self.bytes.get(..self.header_bytes()).is_some_and(|header| checksum::sum(header) == 0xffff)
    }

    /// Differentiated services code point, 0 to 63 (RFC 2474 §3).
    #[must_use]
    pub fn dscp(&self) -> u8 {
        u8_at(self.bytes, 1) >> 2
    }

    /// Congestion marks.
    #[must_use]
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(u8_at(self.bytes, 1))
    }

    /// Which datagram a fragment belongs to.
    #[must_use]
    pub fn identification(&self) -> u16 {
        u16_at(self.bytes, 4)
    }

    /// Routers may not cut it.
    #[must_use]
    pub fn dont_fragment(&self) -> bool {
        u16_at(self.bytes, 6) & 0x4000 != 0
    }

    /// This is not the last fragment.
    #[must_use]
    pub fn more_fragments(&self) -> bool {
        u16_at(self.bytes, 6) & 0x2000 != 0
    }

    /// Where the payload belongs in the whole, in bytes.
    #[must_use]
    pub fn fragment_offset(&self) -> usize {
        usize::from(u16_at(self.bytes, 6) & 0x1fff) * FRAGMENT_UNIT
    }

    /// It is a part of a datagram.
    #[must_use]
    #[inline]
    pub fn is_fragment(&self) -> bool {
        u16_at(self.bytes, 6) & 0x3fff != 0
    }

    /// Hops that it may still go.
    #[must_use]
    #[inline]
    pub fn ttl(&self) -> u8 {
        u8_at(self.bytes, 8)
    }

    /// What the payload is.
    #[must_use]
    #[inline]
    pub fn protocol(&self) -> u8 {
        u8_at(self.bytes, 9)
    }

    /// Who sent it.
    #[must_use]
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(array_at(self.bytes, 12).unwrap_or_default())
    }

    /// Destination address.
    #[must_use]
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(array_at(self.bytes, 16).unwrap_or_default())
    }

    /// What follows the header.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        rest(self.bytes, self.header_bytes())
    }

    /// Looks through the options.
    ///
    /// # Errors
    ///
    /// [`Drop::ForbiddenOption`] for a source route, [`Drop::BadHeader`] for a broken list.
    #[inline]
    pub fn check_options(&self) -> Result<(), Drop> {
        match self.bytes.get(HEADER_BYTES..self.header_bytes()) {
            None | Some([]) => Ok(()),
            Some(options) => check_options(options),
        }
    }
}

fn check_options(mut options: &[u8]) -> Result<(), Drop> {
    while let [kind, tail @ ..] = options {
        options = match *kind {
            OPTION_END => return Ok(()),
            OPTION_NOP => tail,
            OPTION_LOOSE_SOURCE_ROUTE | OPTION_STRICT_SOURCE_ROUTE => {
                return Err(Drop::ForbiddenOption);
            }
            _ => {
                let len = tail.first().map_or(0, |len| usize::from(*len));
                if len < 2 {
                    return Err(Drop::BadHeader);
                }
                options.get(len..).ok_or(Drop::BadHeader)?
            }
        };
    }
    Ok(())
}

/// A header without options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Who sends it.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// What the payload is.
    pub protocol: u8,
    /// Hops that it may go.
    pub ttl: u8,
    /// Differentiated services code point (RFC 2474 §3), 6 bits.
    pub dscp: u8,
    /// Congestion marks.
    pub ecn: Ecn,
    /// Identification; zero is allowed with DF (RFC 6864 §4.1).
    pub identification: u16,
    /// Routers may not cut it.
    pub dont_fragment: bool,
    /// This is not the last fragment.
    pub more_fragments: bool,
    /// Where the payload belongs in the whole, in bytes: a multiple of 8.
    pub fragment_offset: usize,
    /// Length of the payload: at most 65,515 bytes.
    pub payload_bytes: usize,
}

impl Repr {
    /// What `view` says. Options are left out.
    ///
    /// # Errors
    ///
    /// [`Drop::BadIpChecksum`], and those of [`View::check_options`].
    pub fn parse(view: &View<'_>) -> Result<Self, Drop> {
        if !view.checksum_is_right() {
            return Err(Drop::BadIpChecksum);
        }
        view.check_options()?;
        Ok(Self {
            src: view.src(),
            dst: view.dst(),
            protocol: view.protocol(),
            ttl: view.ttl(),
            dscp: view.dscp(),
            ecn: view.ecn(),
            identification: view.identification(),
            dont_fragment: view.dont_fragment(),
            more_fragments: view.more_fragments(),
            fragment_offset: view.fragment_offset(),
            payload_bytes: view.payload().len(),
        })
    }

    /// Length of the header in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        HEADER_BYTES
    }

    /// Writes the header, with its checksum, to the start of `bytes`.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Repr::header_bytes`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        let header = &mut bytes[..HEADER_BYTES];
        header[0] = 0x45;
        header[1] = self.dscp << 2 | self.ecn as u8;
        put_u16(header, 2, (HEADER_BYTES + self.payload_bytes) as u16);
        put_u16(header, 4, self.identification);
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
        put_u16(header, 6, flags | (self.fragment_offset / FRAGMENT_UNIT) as u16);
        header[8] = self.ttl;
        header[9] = self.protocol;
        put_u16(header, 10, 0);
        header[12..16].copy_from_slice(&self.src.octets());
        header[16..20].copy_from_slice(&self.dst.octets());
        let checksum = checksum::finish(checksum::sum(header));
        put_u16(header, 10, checksum);
    }
}

/// Makes a first fragment's header, and all of the fragmented part behind it, one packet of
/// `total_bytes` bytes.
///
/// # Panics
///
/// If `packet` is shorter than its header.
pub fn set_whole(packet: &mut [u8], total_bytes: u16) -> &[u8] {
    let header_bytes = usize::from(packet[0] & 0x0f) * 4;
    put_u16(packet, 2, total_bytes);
    put_u16(packet, 6, 0);
    put_u16(packet, 10, 0);
    let checksum = checksum::finish(checksum::sum(&packet[..header_bytes]));
    put_u16(packet, 10, checksum);
    packet
}

/// Makes a packet a part of a longer one.
///
/// # Panics
///
/// If `packet` is shorter than its header.
pub fn set_part(packet: &mut [u8], identification: u16, offset: usize, more: bool) {
    let header = &mut packet[..HEADER_BYTES];
    put_u16(header, 4, identification);
    put_u16(header, 6, u16::from(more) << 13 | (offset / FRAGMENT_UNIT) as u16);
    put_u16(header, 10, 0);
    let checksum = checksum::finish(checksum::sum(header));
    put_u16(header, 10, checksum);
}
