//! How do many cores and processes share one network?
//!
//! Three servers [PIKA 3.1]: the [`LinkServer`] owns a link queue and moves frames, the
//! [`TransportServer`] owns flows, the [`ConnectionManager`] owns listeners and says which
//! acceptor gets a new connection. A [`Server`] is the three of them composed for one core, in one
//! loop: `turn(now)`. Whoever has a core to spend runs that loop: here, inside an application's
//! `dispatch` (placement `inline`).
//!
//! Commands go in as calls, frames come and go over the link, and [`megapipe_stack::Event`]s come
//! out. The memory that payload lies in is the application's, behind
//! [`megapipe_stack::Memory`].
//!
//! Where to start reading: `server.rs` for a turn and its order, then `waiting.rs` for when it
//! spins and when it sleeps.
//!
//! Invariants
//! - A turn never blocks, and does a bounded amount of work [ETA 4.2].
//! - Frames that a turn's events give rise to leave at the next one's start, or when asked:
//!   nothing acts in direct reaction to one frame [mTCP 3.2.2].
//! - An idle server sleeps on its link.
#![forbid(unsafe_code)]

mod apart;
mod beside;
mod client_ports;
mod clock;
mod config;
mod connection_manager;
mod error;
mod frame_ring;
mod host;
pub mod limits;
mod link_server;
mod moving;
mod server;
mod server_thread;
mod sharing;
pub mod steering;
mod switch;
mod transport_server;
mod waiting;

pub use apart::{
    ApartConfig, ApartError, Session, SessionCounters, SharedMemory, Told, start as start_apart,
};
pub use beside::{Beside, Shared as BesideShared, Slept, start as start_beside};
pub use clock::Clock;
pub use config::{ServerConfig, Waits};
pub use connection_manager::{AcceptorId, ConnectionManager, Offer};
pub use error::{PortError, ServerError};
pub use link_server::{Frames, LinkCounters, LinkServer};
pub use moving::{NotShared, tcp_flow};
pub use server::{Server, Turn};
pub use sharing::Sharing;
pub use switch::{Attachment, ShardLink, SteeringCounters, SwitchError, Taker, switch};
pub use transport_server::TransportServer;
pub use waiting::{Next, Waiting};
