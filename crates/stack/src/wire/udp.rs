//! The UDP header (RFC 768).
//!
//! ```text
//!  |          source port          |       destination port        |
//!  |            length             |           checksum            |
//! ```
//!
//! Invariant: bytes after the length are not part of a view. A length of zero (a jumbogram's,
//! RFC 2675) is refused.

use super::checksum;
use super::field::{put_u16, rest, u16_at};
use crate::counters::Drop;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// Where the checksum lies, from the header's start.
pub const CHECKSUM_OFFSET: usize = 6;

/// A datagram whose lengths were checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length, and cuts off what is not part of the datagram.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`], or [`Drop::BadHeader`] for a length shorter than the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        if bytes.len() < HEADER_BYTES {
            return Err(Drop::Truncated);
        }
        let len = usize::from(u16_at(bytes, 4));
        if len < HEADER_BYTES {
            return Err(Drop::BadHeader);
        }
        Ok(Self { bytes: bytes.get(..len).ok_or(Drop::Truncated)? })
    }

    /// Source port; zero: no answer is wanted.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        u16_at(self.bytes, 0)
    }

    /// Destination port.
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        u16_at(self.bytes, 2)
    }

    /// The checksum; zero: the sender made none.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes, CHECKSUM_OFFSET)
    }

    /// Header and payload.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What follows the header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        rest(self.bytes, HEADER_BYTES)
    }

    /// The checksum is there and right; `pseudo_header` is the sum of the pseudo header.
    #[must_use]
    pub fn checksum_is_right(&self, pseudo_header: u16) -> bool {
        self.checksum() != 0
            && checksum::combine(pseudo_header, checksum::sum(self.bytes)) == 0xffff
    }
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of the payload: at most 65,527 bytes.
    pub payload_bytes: usize,
}

impl Repr {
    /// What `view` says. The checksum is not looked at.
    #[must_use]
    pub fn parse(view: &View<'_>) -> Self {
        Self {
            src_port: view.src_port(),
            dst_port: view.dst_port(),
            payload_bytes: view.payload().len(),
        }
    }

    /// Length of the header in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        HEADER_BYTES
    }

    /// Writes the header to the start of `bytes`, with a checksum of zero, and answers its sum:
    /// combine that with the sums of pseudo header and payload, and give it to
    /// [`write_checksum`].
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Repr::header_bytes`].
    pub fn emit(&self, bytes: &mut [u8]) -> u16 {
        let header = &mut bytes[..HEADER_BYTES];
        put_u16(header, 0, self.src_port);
        put_u16(header, 2, self.dst_port);
        put_u16(header, 4, (HEADER_BYTES + self.payload_bytes) as u16);
        put_u16(header, CHECKSUM_OFFSET, 0);
        checksum::sum(header)
    }
}

/// Writes the checksum of a datagram that, with its pseudo header and a checksum of zero, sums to
/// `sum`. A checksum that comes out as zero is written as its other form, since zero would say
/// that there is none.
///
/// # Panics
///
/// If `datagram` is shorter than [`HEADER_BYTES`].
pub fn write_checksum(datagram: &mut [u8], sum: u16) {
    let checksum = checksum::finish(sum);
    put_u16(datagram, CHECKSUM_OFFSET, if checksum == 0 { 0xffff } else { checksum });
}

/// Leaves the checksum to the link: writes the sum of the pseudo header, not complemented, which
/// the link adds the rest to.
///
/// # Panics
///
/// If `datagram` is shorter than [`HEADER_BYTES`].
pub fn write_partial_checksum(datagram: &mut [u8], pseudo_header: u16) {
    put_u16(datagram, CHECKSUM_OFFSET, pseudo_header);
}
