//! Link drivers: queues of Ethernet or IP frames behind one trait.
//!
//! A [`Link`] is one queue of frames in both directions: a TAP device, an AF_PACKET or AF_XDP
//! socket, a memif ring, or the in-memory [`pair()`]. Frames move in bursts. The caller
//! (`service`'s link server) passes closures; the link lends frames to them. A wrapper is a link
//! around a link.
//!
//! Read first: `Link` below, then the driver that you care about.
//!
//! Invariants
//! - After opening, a link does not allocate. It blocks only in `wait` and never panics on received
//!   data: a frame that it cannot lend is a counted drop.
//! - A lent slice is valid during the closure's call, and its bytes do not change meanwhile:
//!   drivers over memory that another process can write copy the frame first.
//! - Frames counted in `tx_frames` were passed to the peer or to the kernel.

pub mod capture;
pub mod checksum;
pub mod conformance;
mod error;
mod ethtool;
pub mod fault;
mod held_signals;
mod interface;
pub mod limits;
mod link;
mod medium;
pub mod memif;
pub mod migration;
pub mod netlink;
mod open;
mod ownership;
pub mod pace;
pub mod packet;
mod pair;
mod peer_process;
mod port_guard;
mod port_reservation;
mod port_table;
pub mod rss;
mod sleep;
mod socket_option;
pub mod spec;
pub mod tap;
#[cfg(test)]
mod test_namespace;
mod unix_path;
mod virtio;
mod watch;
pub mod xdp;

pub use capture::{Capture, CaptureCounts, Pcap};
pub use error::LinkError;
pub use ethtool::set_transmit_checksums;
pub use fault::Fault;
pub use link::{Caps, FrameCounters, Link, MacAddress, RxChecksum, RxMetadata, TxMetadata};
pub use medium::LinkMedium;
pub use open::open;
pub use ownership::{FlowTuple, Owner, Ownership, OwnershipError, PortRanges, Transport};
pub use pace::Pace;
pub use pair::{Pair, PairConfig, pair};
pub use peer_process::PeerProcess;
pub use port_guard::{PortGuard, PortGuardError, deafen_on, undeafen};
pub use port_reservation::{NetworkNamespace, PortReservation, ReservationError, bind_port};
pub use rss::Rss;
pub use spec::{LinkSpec, SpecError};
pub use unix_path::{BoundPath, wait_for_binding};
