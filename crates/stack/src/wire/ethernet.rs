//! Ethernet II frames, with at most one VLAN tag (IEEE 802.3 §3.2.6, IEEE 802.1Q §9.3).
//!
//! ```text
//! destination (6) | source (6) | [0x8100 | priority, VLAN (2)] | EtherType (2) | payload
//! ```
//!
//! Invariants
//! - A frame check sequence is not part of what we see.
//! - VLAN 0 says nothing but a priority: such a frame counts as untagged.
//! - A length in place of an EtherType (802.3 with LLC) is an unknown EtherType.

use super::field::{array_at, put_u16, rest, u16_at};
use crate::counters::Drop;

/// Bytes of a header without a tag.
pub const HEADER_BYTES: usize = 14;
/// Bytes of a VLAN tag.
pub const TAG_BYTES: usize = 4;
/// The broadcast address.
pub const BROADCAST: [u8; 6] = [0xff; 6];
/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of a VLAN tag.
pub const VLAN: u16 = 0x8100;

/// Destination and source of a frame, as two words of its header: a processor does not hand narrow
/// stores on to a wide load that follows closely, so they stay in registers until they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressWords {
    first: u64,
    rest: u32,
}

impl AddressWords {
    #[inline(always)]
    pub(crate) const fn new(dst: [u8; 6], src: [u8; 6]) -> Self {
        let ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]) = (dst, src);
        Self {
            first: u64::from_ne_bytes([d0, d1, d2, d3, d4, d5, s0, s1]),
            rest: u32::from_ne_bytes([s2, s3, s4, s5]),
        }
    }

    /// The destination.
    pub(crate) const fn dst(self) -> [u8; 6] {
        let [d0, d1, d2, d3, d4, d5, ..] = self.first.to_ne_bytes();
        [d0, d1, d2, d3, d4, d5]
    }

    /// Writes them, and what the payload is.
    #[inline(always)]
    pub(crate) fn emit(self, ethertype: u16, header: &mut [u8; HEADER_BYTES]) {
        header[..8].copy_from_slice(&self.first.to_ne_bytes());
        header[8..12].copy_from_slice(&self.rest.to_ne_bytes());
        header[12..].copy_from_slice(&ethertype.to_be_bytes());
    }
}

/// A frame whose lengths were checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
    tagged: bool,
}

impl<'a> View<'a> {
    /// Checks that the header, with its tag, is there.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`].
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        if bytes.len() < HEADER_BYTES {
            return Err(Drop::Truncated);
        }
        let tagged = u16_at(bytes, 12) == VLAN;
        if tagged && bytes.len() < HEADER_BYTES + TAG_BYTES {
            return Err(Drop::Truncated);
        }
        Ok(Self { bytes, tagged })
    }

    /// Destination address.
    #[must_use]
    #[inline]
    pub fn dst(&self) -> [u8; 6] {
        array_at(self.bytes, 0).unwrap_or_default()
    }

    /// Who sent it.
    #[must_use]
    #[inline]
    pub fn src(&self) -> [u8; 6] {
        array_at(self.bytes, 6).unwrap_or_default()
    }

    /// The VLAN of the tag, 1 to 4095; `None`: no tag, or one of VLAN 0.
    #[must_use]
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        let vlan = if self.tagged { u16_at(self.bytes, 14) & 0x0fff } else { 0 };
        (vlan != 0).then_some(vlan)
    }

    /// What the payload is.
    #[must_use]
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16_at(self.bytes, if self.tagged { 16 } else { 12 })
    }

    /// What follows the header, padding included.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        rest(self.bytes, if self.tagged { HEADER_BYTES + TAG_BYTES } else { HEADER_BYTES })
    }
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Destination address.
    pub dst: [u8; 6],
    /// Who sends it.
    pub src: [u8; 6],
    /// 1 to 4094; `None`: no tag.
    pub vlan: Option<u16>,
    /// What the payload is; not [`VLAN`].
    pub ethertype: u16,
}

impl Repr {
    /// What `view` says.
    #[must_use]
    pub fn parse(view: &View<'_>) -> Self {
        Self { dst: view.dst(), src: view.src(), vlan: view.vlan(), ethertype: view.ethertype() }
    }

    /// Length of the header in bytes.
    #[must_use]
    #[inline]
    pub const fn header_bytes(&self) -> usize {
        if self.vlan.is_some() { HEADER_BYTES + TAG_BYTES } else { HEADER_BYTES }
    }

    /// Writes the header to the start of `bytes`.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Repr::header_bytes`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[0..6].copy_from_slice(&self.dst);
        bytes[6..12].copy_from_slice(&self.src);
        let mut at = 12;
        if let Some(vlan) = self.vlan {
            put_u16(bytes, at, VLAN);
            put_u16(bytes, at + 2, vlan);
            at += TAG_BYTES;
        }
        put_u16(bytes, at, self.ethertype);
    }
}

/// Whether `mac` is a group address (IEEE 802 §8.2.2). The broadcast address is one.
#[must_use]
#[inline]
pub const fn is_group(address: [u8; 6]) -> bool {
    address[0] & 1 != 0
}
