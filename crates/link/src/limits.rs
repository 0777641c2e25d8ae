//! Every bound of this crate.

/// Local addresses that an [`Ownership`](crate::Ownership) may name.
pub const OWNED_ADDRESSES_MAX: usize = 16;
/// Disjoint ranges of ports for each protocol.
pub const OWNED_PORT_RANGES_MAX: usize = 64;
/// Single flows, taken and released ones counted separately.
pub const OWNED_FLOWS_MAX: usize = 256;

/// An Ethernet header with one VLAN tag.
pub const ETHERNET_HEADER_BYTES: usize = 18;
/// The largest frame of a link that segments: an IP packet of the greatest length, rounded up to
/// whole cache lines with its Ethernet header.
pub const OFFLOAD_FRAME_BYTES: usize = 65_535_usize.next_multiple_of(128) + 64;
/// Frames that wait in one direction of a pair.
pub const PAIR_FRAMES_MAX: usize = 1 << 16;

const _: () = assert!(OFFLOAD_FRAME_BYTES >= 65_535 + ETHERNET_HEADER_BYTES);
const _: () = assert!(PAIR_FRAMES_MAX.is_power_of_two());
/// Queues of one TAP device (the kernel's own bound is 256).
pub const TAP_QUEUES_MAX: usize = 64;
/// What a capture gathers before it is written to its file.
pub const CAPTURE_BUFFER_BYTES: usize = 256 * 1024;
/// Interfaces of one section of a capture that is read.
pub const CAPTURE_INTERFACES_MAX: usize = 1_024;
