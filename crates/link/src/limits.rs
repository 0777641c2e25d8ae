//! Every bound of this crate.

/// Local addresses that an [`Ownership`](crate::Ownership) may name.
pub const OWNED_ADDRESSES_MAX: usize = 16;
/// Disjoint ranges of ports for each protocol.
pub const OWNED_PORT_RANGES_MAX: usize = 64;
/// Single flows, taken and released ones counted separately.
pub const OWNED_FLOWS_MAX: usize = 256;
