//! The TCP header (RFC 9293 §3.1) without its options, which are in `tcp/options.rs`.
//!
//! ```text
//!  |          source port          |       destination port        |
//!  |                        sequence number                        |
//!  |                     acknowledgment number                     |
//!  | offset|  0  |A|C|E|U|A|P|R|S|F|            window             |
//!  |           checksum            |        urgent pointer         |
//!  |                    options, padded to 32 bits                 |
//! ```
//!
//! Invariants
//! - The window is the 16 bits of the header: scaling is the connection's matter.
//! - Reserved bits are ignored on the way in and zero on the way out (§3.1).

mod options;

pub use options::{Cookie, OPTIONS_BYTES_MAX, Options, SACK_BLOCKS_MAX, SackBlock, Timestamps};

use core::ops::BitOr;

use super::checksum;
use super::field::{put_u16, put_u32, rest, u8_at, u16_at, u32_at};
use crate::counters::Drop;
use crate::seq::SeqNum;

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of the longest header.
pub const HEADER_BYTES_MAX: usize = HEADER_BYTES + OPTIONS_BYTES_MAX;
/// Where the checksum lies, from the header's start.
pub const CHECKSUM_OFFSET: usize = 16;

/// The control bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No bit.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// Congestion experienced, echoed (RFC 3168 §6.1).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168 §6.1).
    pub const CWR: Self = Self(0x80);

    /// All bits of `bits` are set.
    #[must_use]
    #[inline]
    pub const fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// One of the bits of `bits` is set.
    #[must_use]
    #[inline]
    pub const fn intersects(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }

    /// Those of its bits that are in `bits` too.
    #[must_use]
    #[inline]
    pub const fn only(self, bits: Self) -> Self {
        Self(self.0 & bits.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A segment whose lengths were checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks that the header, with its options, is there.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`], or [`Drop::BadHeader`] for an impossible data offset.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        if bytes.len() < HEADER_BYTES {
            return Err(Drop::Truncated);
        }
        let view = Self { bytes };
        if view.header_bytes() < HEADER_BYTES {
            return Err(Drop::BadHeader);
        }
        if view.header_bytes() > bytes.len() {
            return Err(Drop::Truncated);
        }
        Ok(view)
    }

    /// Source port.
    #[must_use]
    #[inline]
    pub fn src_port(&self) -> u16 {
        u16_at(self.bytes, 0)
    }

    /// Destination port.
    #[must_use]
    #[inline]
    pub fn dst_port(&self) -> u16 {
        u16_at(self.bytes, 2)
    }

    /// Sequence number of the first byte, or of the SYN.
    #[must_use]
    #[inline]
    pub fn seq(&self) -> SeqNum {
        SeqNum(u32_at(self.bytes, 4))
    }

    /// The acknowledgment number; means something with [`Flags::ACK`] only.
    #[must_use]
    #[inline]
    pub fn ack(&self) -> SeqNum {
        SeqNum(u32_at(self.bytes, 8))
    }

    /// Length of the header with its options, in bytes.
    #[must_use]
    #[inline]
    pub fn header_bytes(&self) -> usize {
        usize::from(u8_at(self.bytes, 12) >> 4) * 4
    }

    /// The control bits.
    #[must_use]
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags(u8_at(self.bytes, 13))
    }

    /// The bit beside CWR, which accurate ECN claims (RFC 9768 §3.1.1).
    #[must_use]
    pub fn accurate_ecn(&self) -> bool {
        u8_at(self.bytes, 12) & 1 != 0
    }

    /// The window, not scaled.
    #[must_use]
    #[inline]
    pub fn window(&self) -> u16 {
        u16_at(self.bytes, 14)
    }

    /// The checksum.
    #[must_use]
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes, CHECKSUM_OFFSET)
    }

    /// The urgent pointer; means something with [`Flags::URG`] only.
    #[must_use]
    #[inline]
    pub fn urgent(&self) -> u16 {
        u16_at(self.bytes, 18)
    }

    /// The options' bytes, padding included.
    #[must_use]
    #[inline]
    pub fn option_bytes(&self) -> &'a [u8] {
        self.bytes.get(HEADER_BYTES..self.header_bytes()).unwrap_or_default()
    }

    /// The options.
    #[must_use]
    #[inline]
    pub fn options(&self) -> Options {
        Options::parse(self.option_bytes())
    }

    /// The header's bytes, options included.
    #[must_use]
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        self.bytes.get(..self.header_bytes()).unwrap_or_default()
    }

    /// What follows the header.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        rest(self.bytes, self.header_bytes())
    }

    /// Header and payload.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many sequence numbers it takes: SEG.LEN (§3.3.1).
    #[must_use]
    #[inline]
    pub fn sequence_len(&self) -> u32 {
        let flags = self.flags();
        self.payload().len() as u32
            + u32::from(flags.contains(Flags::SYN))
            + u32::from(flags.contains(Flags::FIN))
    }

    /// The checksum is right; `pseudo_header` is the sum of the pseudo header. A reader that has
    /// the payload's sum already combines it with that of [`View::header`] instead.
    #[must_use]
    #[inline]
    pub fn checksum_is_right(&self, pseudo_header: u16) -> bool {
        checksum::combine(pseudo_header, checksum::sum(self.bytes)) == 0xffff
    }
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgment number; zero without [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// Window, not scaled.
    pub window: u16,
    /// Urgent pointer; zero without [`Flags::URG`].
    pub urgent: u16,
    /// Options; together at most [`OPTIONS_BYTES_MAX`].
    pub options: Options,
}

impl Repr {
    /// What `view` says. The checksum is not looked at.
    #[must_use]
    #[inline]
    pub fn parse(view: &View<'_>) -> Self {
        let flags = view.flags();
        Self {
            src_port: view.src_port(),
            dst_port: view.dst_port(),
            seq: view.seq(),
            ack: if flags.contains(Flags::ACK) { view.ack() } else { SeqNum(0) },
            flags,
            window: view.window(),
            urgent: if flags.contains(Flags::URG) { view.urgent() } else { 0 },
            options: view.options(),
        }
    }

    /// Length of the header with its options, in bytes.
    #[must_use]
    #[inline]
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.options.bytes()
    }

    /// Writes the header to the start of `bytes`, with a checksum of zero, and answers its sum:
    /// combine that with the sums of pseudo header and payload, and give it to
    /// [`write_checksum`].
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Repr::header_bytes`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) -> u16 {
        let header = &mut bytes[..self.header_bytes()];
        put_u16(header, 0, self.src_port);
        put_u16(header, 2, self.dst_port);
        put_u32(header, 4, self.seq.0);
        put_u32(header, 8, self.ack.0);
        header[12] = ((header.len() / 4) << 4) as u8;
        header[13] = self.flags.0;
        put_u16(header, 14, self.window);
        put_u16(header, CHECKSUM_OFFSET, 0);
        put_u16(header, 18, self.urgent);
        self.options.emit(&mut header[HEADER_BYTES..]);
        checksum::sum(header)
    }
}

/// Writes the checksum of a segment that, with its pseudo header and a checksum of zero, sums to
/// `sum`.
///
/// # Panics
///
/// If `segment` is shorter than [`HEADER_BYTES`].
#[inline]
pub fn write_checksum(segment: &mut [u8], sum: u16) {
    put_u16(segment, CHECKSUM_OFFSET, checksum::finish(sum));
}

/// Leaves the checksum to the link: writes the sum of the pseudo header, not complemented, which
/// the link adds the rest to.
///
/// # Panics
///
/// If `segment` is shorter than [`HEADER_BYTES`].
#[inline]
pub fn write_partial_checksum(segment: &mut [u8], pseudo_header: u16) {
    put_u16(segment, CHECKSUM_OFFSET, pseudo_header);
}
