//! Metadata of received and sent frames.

use core::fmt;
use core::num::NonZeroU64;

/// What a frame starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet header, without frame check sequence; this is our address on it.
    Ethernet([u8; 6]),
    /// An IPv4 or IPv6 header.
    Ip,
}

impl Medium {
    /// Our address on the link; zeros where that has none.
    pub(crate) const fn link_address(self) -> [u8; 6] {
        match self {
            Self::Ethernet(own) => own,
            Self::Ip => [0; 6],
        }
    }
}

/// What is known about the transport checksum of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksums {
    /// Nothing: the stack verifies it.
    #[default]
    Unverified,
    /// The link vouches for it; the field may hold only the pseudo header's part.
    Verified,
    /// The frame is one that a stack with our addresses marked [`Transmit::stays_here`]: as
    /// `Verified`, and its source may be an address of ours.
    Looped,
}

/// What came with a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// The state of the transport checksum.
    pub checksums: Checksums,
    /// Payload bytes of each segment that the link merged into this frame; 0: not merged.
    pub segment_bytes: u16,
}

/// What is to be done to a frame on its way out.
///
/// Two words, of which `None` needs none: calls return them in registers. Fields of their own would
/// be written apart and read as words, which a processor does not hand on, for every frame.
///
/// # Examples
/// ```
/// use megapipe_stack::Transmit;
///
/// let transmit = Transmit::new(54).checksummed_by_link(34, 16);
/// assert_eq!((transmit.frame_bytes(), transmit.checksum_start()), (54, 34));
/// assert!(!transmit.stays_here() && transmit.segment_bytes() == 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    frame_bytes: usize,
    /// From the lowest bit: always set, `stays_here`, then from bit 8 on `checksum_field`,
    /// `checksum_start`, `segment_bytes`, `header_bytes`.
    rest: NonZeroU64,
}

const STAYS_HERE: u64 = 1 << 1;
const CHECKSUM_FIELD_SHIFT: u32 = 8;
const CHECKSUM_START_SHIFT: u32 = 16;
const SEGMENT_BYTES_SHIFT: u32 = 32;
const HEADER_BYTES_SHIFT: u32 = 48;

const _: () = assert!(size_of::<Option<Transmit>>() == 2 * size_of::<u64>());

impl Transmit {
    /// A complete frame of so many bytes.
    #[must_use]
    #[inline(always)]
    pub const fn new(frame_bytes: usize) -> Self {
        Self { frame_bytes, rest: NonZeroU64::MIN }
    }

    /// The link fills in the transport checksum: the offset of the transport header, and that of
    /// the field from there. The field holds the pseudo header's part.
    #[must_use]
    #[inline(always)]
    pub fn checksummed_by_link(self, start: u16, field: u8) -> Self {
        let field = u64::from(field) << CHECKSUM_FIELD_SHIFT;
        self.with(u64::from(start) << CHECKSUM_START_SHIFT | field)
    }

    /// The link cuts the frame into segments with so many bytes of payload each, behind so many
    /// bytes of headers, link to transport.
    #[must_use]
    #[inline(always)]
    pub fn cut_by_link(self, segment_bytes: u16, header_bytes: u16) -> Self {
        let headers = u64::from(header_bytes) << HEADER_BYTES_SHIFT;
        self.with(u64::from(segment_bytes) << SEGMENT_BYTES_SHIFT | headers)
    }

    /// If `stays_here`, the frame is for an address of ours: it does not go to the link, but comes
    /// back as a received frame, [`Checksums::Looped`].
    #[must_use]
    #[inline(always)]
    pub fn staying(self, stays_here: bool) -> Self {
        self.with(if stays_here { STAYS_HERE } else { 0 })
    }

    #[inline(always)]
    fn with(self, bits: u64) -> Self {
        Self { rest: self.rest | bits, ..self }
    }

    /// Length of the frame in bytes.
    #[must_use]
    #[inline(always)]
    pub const fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Offset of the transport header, if the link fills in the transport checksum; 0: the frame
    /// is complete.
    #[must_use]
    #[inline(always)]
    pub const fn checksum_start(&self) -> u16 {
        (self.rest.get() >> CHECKSUM_START_SHIFT) as u16
    }

    /// Offset of the checksum field from [`Transmit::checksum_start`].
    #[must_use]
    #[inline(always)]
    pub const fn checksum_field(&self) -> u8 {
        (self.rest.get() >> CHECKSUM_FIELD_SHIFT) as u8
    }

    /// Payload bytes of each segment that the link cuts this frame into; 0: send as it is.
    #[must_use]
    #[inline(always)]
    pub const fn segment_bytes(&self) -> u16 {
        (self.rest.get() >> SEGMENT_BYTES_SHIFT) as u16
    }

    /// Bytes of headers, link to transport, that each of those segments starts with.
    #[must_use]
    #[inline(always)]
    pub const fn header_bytes(&self) -> u16 {
        (self.rest.get() >> HEADER_BYTES_SHIFT) as u16
    }

    /// The frame is for an address of ours ([`Transmit::staying`]).
    #[must_use]
    #[inline(always)]
    pub const fn stays_here(&self) -> bool {
        self.rest.get() & STAYS_HERE != 0
    }
}

impl fmt::Debug for Transmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transmit")
            .field("frame_bytes", &self.frame_bytes())
            .field("checksum_start", &self.checksum_start())
            .field("checksum_field", &self.checksum_field())
            .field("segment_bytes", &self.segment_bytes())
            .field("header_bytes", &self.header_bytes())
            .field("stays_here", &self.stays_here())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fields_are_kept_apart(
            (frame_bytes, start, field) in any::<(usize, u16, u8)>(),
            (segment_bytes, header_bytes, stays_here) in any::<(u16, u16, bool)>(),
        ) {
            let transmit = Transmit::new(frame_bytes)
                .checksummed_by_link(start, field)
                .cut_by_link(segment_bytes, header_bytes)
                .staying(stays_here);
            prop_assert_eq!(transmit.frame_bytes(), frame_bytes);
            prop_assert_eq!((transmit.checksum_start(), transmit.checksum_field()), (start, field));
            let cut = (transmit.segment_bytes(), transmit.header_bytes());
            prop_assert_eq!(cut, (segment_bytes, header_bytes));
            prop_assert_eq!(transmit.stays_here(), stays_here);
        }
    }
}
