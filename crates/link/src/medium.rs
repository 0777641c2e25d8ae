//! Medium of a link: Ethernet or IP.

/// What a frame starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkMedium {
    /// An Ethernet header, VLAN tags included, no frame check sequence.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
}
