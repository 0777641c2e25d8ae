//! Attaching to a daemon: how a process gets a session there, with a lane on each shard.
//!
//! ```text
//!  client                                     daemon
//!  connect(SOCK_SEQPACKET) ------------------> accept: user and pidfd of the process
//!  HELLO: versions, sizes, name -------------> refuses, or creates region and bells
//!         <----- WELCOME: sizes, limits, description; region, bells by SCM_RIGHTS
//!  maps the region
//!  READY ------------------------------------> seals the region; the session begins
//! ```
//!
//! The control socket stays open during the session: closing it ends the session. After READY it
//! carries descriptors and tokens (`descriptors.rs`), and no data of connections.
//!
//! Read first: `message.rs`; `remote/session_region.rs`; decision 0042.
//!
//! Invariants
//! - Each side checks every byte of the other one.
//! - A handshake takes at most a second, and the daemon has a bounded number of them.

mod client;
mod control_server;
mod handshakes;
mod message;
mod query_client;
mod query_pace;
#[cfg(test)]
mod tests;

pub use client::{AttachError, attach, attach_by_token};
pub use control_server::{ClientIdentity, ControlServer, OpenedSession, SessionHost};
pub use message::{
    AgreedLimits, AttachHello, ClientFeatures, HelloAnswer, MessageFault, RECORD_BYTES,
    RefusalCode, Refused, VERSIONS, Welcome, decode_ready, encode_ready,
};

pub use query_client::{ServiceObserver, ServiceQueryError};

/// Where a daemon listens unless configured otherwise.
pub const SERVICE_PATH: &str = "/run/megapipe/megapiped.sock";
