//! Metadata of received and sent frames.

/// What a frame starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet header, without frame check sequence; this is our address on it.
    Ethernet([u8; 6]),
    /// An IPv4 or IPv6 header.
    Ip,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transmit {
    /// Length of the frame in bytes.
    pub len: usize,
    /// Offset of the transport header, if the link fills in the transport checksum (the field
    /// holds the pseudo header's part); 0: the frame is complete.
    pub checksum_start: u16,
    /// Offset of the checksum field from `checksum_start`.
    pub checksum_field: u8,
    /// Payload bytes of each segment that the link cuts this frame into; 0: send as it is.
    pub segment_bytes: u16,
    /// Bytes of headers, link to transport, that each of those segments starts with.
    pub header_bytes: u16,
    /// The frame is for an address of ours: it does not go to the link, but comes back as a
    /// received frame, [`Checksums::Looped`].
    pub stays_here: bool,
}

const _: () = assert!(size_of::<Transmit>() <= 16, "it is copied for every frame");
