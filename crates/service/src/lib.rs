//! The servers of a stack: one core's loop over link, stack and listeners, and who runs it where.
//!
//! Three servers [PIKA 3.1]: the [`LinkServer`] owns a link queue and moves frames, the
//! [`TransportServer`] owns flows, the [`ConnectionManager`] owns listeners and says which
//! acceptor gets a new connection. A [`Server`] is the three of them composed for one core, in one
//! loop: `poll(now)`. That loop runs inside an application's `dispatch` (placement `inline`), in
//! turn there and on a second thread (`thread`, `shared_thread.rs`), or behind rings of records on
//! a core of its own (`core`, `remote.rs`). Shards that share a link have an `rx_mux.rs` between.
//!
//! Commands go in as calls, frames come and go over the link, and [`megapipe_stack::Event`]s come
//! out. The memory that payload lies in is the application's, behind
//! [`megapipe_stack::Memory`].
//!
//! Where to start reading: `server.rs` for a poll and its order, then `adaptive_spin.rs` for when
//! it spins and when it sleeps.
//!
//! Invariants
//! - A poll never blocks, and does a bounded amount of work [ETA 4.2].
//! - Frames that a poll's events give rise to leave at the next one's start, or when asked:
//!   nothing acts in direct reaction to one frame [mTCP 3.2.2].
//! - An idle server sleeps on its link.
#![forbid(unsafe_code)]

mod acceptor;
mod adaptive_spin;
pub mod attach;
pub mod balancer;
mod begin;
mod client_ports;
mod clock;
mod config;
mod connection_manager;
mod descriptors;
mod error;
mod frame_ring;
pub mod hand_over;
mod host;
pub mod layout;
pub mod limits;
mod link_server;
mod link_thread;
mod loopback;
mod message_socket;
mod migration;
pub mod observe;
pub mod policy;
mod remote;
mod rx_mux;
mod server;
mod server_mail;
mod server_thread;
mod server_wiring;
mod session_sizes;
mod shard_host;
mod shared_thread;
mod sharing;
mod sleep;
pub mod steering;
mod transport_server;

pub use acceptor::{AcceptorName, ManagerId};
pub use adaptive_spin::{AdaptiveSpin, Next, Usage};
pub use begin::ConnectStart;
pub use clock::{Asleep, Clock};
pub use config::{LoopbackOwner, ServerConfig, UnknownLoopbackOwner, Waits};
pub use connection_manager::{AcceptorId, ConnectionManager, Offer};
pub use descriptors::{
    PassPurpose, PassRefusal, PassedDescriptors, ShareToken, SharedConn, SharedEndpoint,
    TokenRequest, copy_token, is_token, release_shared, release_shared_endpoints,
};
pub use error::{MoveRefusal, PortError, RemoteError, ServerError, ShardAttachError};
pub use link_server::{Frames, LinkCounters, LinkServer};
pub use migration::{NotShared, check_established, checkpoint_of, covered, snapshot_of, tcp_flow};
pub use remote::{
    AdoptedConn, AdoptedEndpoint, AdoptedListener, HandOverCounters, LaneSet, NotBegun,
    OnSessionEnd, RemoteClient, RemoteConfig, RemoteCounters, RemoteEvent, ServerHalf,
    SessionCounters, SessionEnd, SessionFault, SessionFds, SessionId, SessionLimits, ShardConfig,
    ShardHandle, ShardReport, SharedDatagram, SharedMemory, start as start_remote, start_shard,
};
pub use rx_mux::{
    Attachment, FrameSink, RxMuxError, ServedLink, ShardLink, SplitLinkServer, SteeringCounters,
    split_switch, switch,
};
pub use server::{PollCounts, Server};
pub use server_mail::MailCounters;
pub use session_sizes::{SessionSizes, SizeOutOfRange};
pub use shard_host::{ServiceLinks, ShardHost};
pub use shared_thread::{
    Shared as SharedServer, SharedThread, Slept, start as start_shared_thread,
};
pub use sharing::{ListenerOptions, Sharing};
pub use sleep::wait_readable;
pub use transport_server::TransportServer;
