//! How do frames enter and leave?
//!
//! A [`Link`] is one queue of frames to and from the outside: a TAP device, an AF_PACKET or AF_XDP
//! socket, a memif ring, or the in-memory [`pair()`]. Frames go in bursts. Whoever drives the link
//! (`service`'s link server) lends it closures; the link lends frames to them. A wrapper is a link
//! around a link.
//!
//! Read first: `Link` below, then the driver that you care about.
//!
//! Invariants
//! - A link never allocates after it was opened, never blocks but in `wait`, and never panics on
//!   what the outside sends: a frame that it cannot lend is a counted drop.
//! - A lent slice is valid for the length of the closure's call, and nobody else writes it
//!   meanwhile: drivers over memory that another process can write copy the frame first.
//! - What is counted under `tx_frames` was handed to the outside or to the kernel.

pub mod capture;
mod checksum;
pub mod conformance;
mod ethtool;
pub mod fault;
mod holdings;
mod interface;
pub mod limits;
mod link;
pub mod memif;
pub mod netlink;
mod open;
mod ownership;
pub mod pace;
pub mod packet;
mod pair;
pub mod repair;
mod reservation;
pub mod rss;
mod sleep;
mod socket_option;
pub mod spec;
pub mod tap;
mod unix_path;
mod virtio;
mod watch;
pub mod xdp;

pub use capture::{Capture, Pcap};
pub use ethtool::set_transmit_checksums;
pub use fault::Fault;
pub use link::{
    Caps, Checksums, Counters, Link, LinkError, MacAddress, Medium, Received, Transmit,
};
pub use open::open;
pub use ownership::{Flow, Owner, Ownership, OwnershipError, PortRanges, Transport};
pub use pace::Pace;
pub use pair::{Pair, PairConfig, pair};
pub use reservation::{Reservation, ReservationError, deafen_on, undeafen};
pub use rss::Rss;
pub use spec::{LinkSpec, SpecError};
pub use unix_path::BoundPath;
