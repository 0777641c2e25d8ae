//! A server behind rings of records: it runs on a thread of its own.
//!
//! ```text
//!   application's thread                          server's thread
//!   RemoteClient                                  RemoteServer: polls a Server
//!     ops         --- ring of records --->          commands, and calls that have an answer
//!     events      <-- ring of records ----          what the stack reports, and answers
//!     bytes       <-- receive buffers ----          copied in from frames
//!     bytes       --- send buffers   ---->          read from until acknowledged
//!     text, lists <-- call buffer ------->          lent to the server from a call to its answer
//!                 bells both ways
//! ```
//!
//! Read first: mTCP §3.2 (job and event queues, one wake-up for a batch), ETA §4.2;
//! `megapipe_shm`'s `record.rs` for the records; the decision on the records of a session in
//! `docs/decisions`; `client.rs` and `server.rs` for the two ends.
//!
//! The two ends share a sealed memfd, which each maps by itself, and a pair of sockets that carries
//! the bells (`session_region.rs`). Nothing else is common to them. In the placement `core` they
//! are two threads of a process, in the back end `service` two processes.
//!
//! Invariants
//! - Neither end trusts what the other one writes. A record that no correct other end writes ends
//!   the session: with an error, without a panic, and without harm to other sessions.
//! - Both ends compute where everything lies from the sizes that were agreed on
//!   ([`SessionSizes`]); none is read from the region.
//! - Neither end waits for the other on the way of a message: a full ring of ops makes the
//!   application yield until the server, which never waits, has taken some; a full ring of events
//!   leaves events in the stack. A thread that yields or waits for an answer makes room in the
//!   other ring meanwhile, since each op may have an answer.
//! - A call is answered after the ops that were submitted before it, and after their answers.
//! - A buffer belongs to one end at a time, and goes over with the record that names it.
//! - A connection that stalls delays no other: no connection has more send buffers than it leaves,
//!   one without any sends all the same, and sends that wait wait by connection.
//! - Events of a poll are published together, and wake the application at most once.
//! - However the server's thread ends, it wakes the application, which then sees that it has ended.

mod buffer_names;
mod client;
mod encoding;
mod lanes;
mod memory;
mod private_buffers;
mod send_buffers;
mod server;
mod session_memory;
mod session_region;
mod shard;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use megapipe_shm::BufId;
use megapipe_shm::limits::POOL_BUFS_MAX;
use megapipe_stack::Memory;

use crate::config::ServerConfig;
use crate::descriptors::{DescriptorPassing, SessionControl};
use crate::error::{RemoteError, ServerError};
use crate::limits::{CONNECTIONS_OF_SESSION_MAX, UNOWNED_RECEIVE_BYTES};
use crate::link_server::Frames;
use crate::observe::ServiceShard;
use crate::server::Server;
use crate::server_thread;
use crate::session_sizes::{CALLS, LARGE, RECEIVES, SMALL, SessionSizes};
use crate::sleep::ServerLocation;

use encoding::Description;

pub(crate) use encoding::{ValueReader, ValueWriter, decode_info, encode_info};

pub use client::{NotBegun, RemoteClient, RemoteCounters, RemoteEvent};
pub use encoding::SharedDatagram;
pub use lanes::{AdoptedConn, AdoptedEndpoint, AdoptedListener, LaneSet};
pub use memory::SharedMemory;
pub(crate) use server::TokenChange;
pub(crate) use server::start_manager;
pub use server::{OnSessionEnd, ShardHandle};
pub use session_region::{ServerHalf, SessionFds};
pub(crate) use shard::ShardPeers;
pub use shard::{
    HandOverCounters, SessionCounters, SessionEnd, SessionFault, SessionId, SessionLimits,
    ShardReport,
};

/// Tag of what lies in the server's own memory.
const COPIES: u16 = 4;
/// The error number of a connection that cannot come to a shard because its segments arrive at
/// another one.
const OTHER_SHARD: i32 = rustix::io::Errno::XDEV.raw_os_error();
/// The call buffer.
const CALL_BUFFER: BufId = BufId::from_bits(CALLS as u32 * POOL_BUFS_MAX);

/// How a remote server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Pin its thread to this core; `None`: wherever the kernel likes.
    pub core: Option<usize>,
    /// Bytes of a receive buffer.
    pub receive_bytes: usize,
    /// How many of them.
    pub receive_buffers: u32,
}

/// Starts a server on a thread of its own, and returns its application's end, which has one lane.
///
/// # Errors
/// [`RemoteError`]; nothing is left running.
pub fn start(
    frames: Frames,
    config: &ServerConfig,
    remote: &RemoteConfig,
) -> Result<LaneSet, RemoteError> {
    start_client(frames, config, remote).map(LaneSet::single)
}

fn start_client(
    frames: Frames,
    config: &ServerConfig,
    remote: &RemoteConfig,
) -> Result<RemoteClient, RemoteError> {
    if config.clock.is_by_hand() {
        let why = "a server on a thread of its own has the machine's".to_owned();
        return Err(ServerError::Setting { setting: "clock", why }.into());
    }
    let sizes = SessionSizes::of(remote.receive_bytes, remote.receive_buffers);
    let (half, fds) = sizes.create()?;
    let client = sizes.client(fds)?;
    half.seal()?;
    let ServerHalf { ends, memory, seal: _ } = half;
    let shared = SharedMemory::new(remote.receive_bytes, 0)?;
    let server = Server::new(frames, config, shared, config.clock.now())?;
    let description = Description::decode(&describe_server(&server, config));
    let description = description.ok_or(RemoteError::Description)?;
    let worker =
        server::RemoteServer::for_session(server, ends, memory).map_err(ServerError::Link)?;
    let thread = server_thread::spawn(move || worker.run(), remote.core)?;
    Ok(RemoteClient::new(client, description, ServerLocation::Thread(thread)))
}

/// Creates the region and the bells of a session of so many lanes.
///
/// # Errors
/// [`RemoteError`]: a size is out of range, or there is no memory or descriptor.
pub(crate) fn create_session(
    sizes: &SessionSizes,
    lanes: u16,
) -> Result<(Vec<ServerHalf>, SessionFds), RemoteError> {
    sizes.create_lanes(lanes)
}

/// The description of a server, in bytes, as another process gets it.
pub(crate) fn describe_server<M: Memory>(server: &Server<M>, config: &ServerConfig) -> Vec<u8> {
    Description::new(server, config).encode()
}

/// What a session of a version of the protocol can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionFeatures {
    /// Which descriptors it passes.
    pub(crate) passing: DescriptorPassing,
    /// The server can reset connections at the session's end.
    pub(crate) resets: bool,
    /// Its record that begins to connect has flags.
    pub(crate) connect_flags: bool,
    /// Its endpoints may exclude those of other programs.
    pub(crate) exclusive_endpoints: bool,
}

/// The application's end of a session with a server in another process: of as many lanes as there
/// are bells, which are its shards from 0 on if they are several. Closing the control socket ends
/// the session; descriptors are passed over it if the daemon takes any.
///
/// # Errors
/// [`RemoteError`]: the region is not what was agreed on, or the description is invalid.
pub(crate) fn attach_client(
    sizes: &SessionSizes,
    fds: SessionFds,
    description: &[u8],
    (control, features): (OwnedFd, SessionFeatures),
) -> Result<LaneSet, RemoteError> {
    let description = Description::decode(description).ok_or(RemoteError::Description)?;
    if description.connections > CONNECTIONS_OF_SESSION_MAX {
        return Err(RemoteError::Description);
    }
    let mut halves = sizes.client_lanes(fds)?.into_iter();
    let first = halves.next().ok_or(RemoteError::Description)?;
    let lanes = halves.len() as u16 + 1;
    let of_lane = |lane| match lanes {
        1 => description.clone(),
        _ => Description { shard: Some((lane, lanes)), ..description.clone() },
    };
    let control = Arc::new(control);
    let location = ServerLocation::Process(Arc::clone(&control));
    let mut first = RemoteClient::new(first, of_lane(0), location);
    first.knows_resets = features.resets;
    first.knows_connect_flags = features.connect_flags;
    first.knows_exclusive_endpoints = features.exclusive_endpoints;
    let control = SessionControl::new(control, features.passing);
    let others = (1..).zip(halves).map(|(lane, half)| first.for_lane(half, of_lane(lane)));
    let others = others.collect();
    let lanes = LaneSet::of(first, others, next_home());
    Ok(match control {
        Some(control) => lanes.with_control(control),
        None => lanes,
    })
}

/// A number that differs between the channels of a process, and between processes.
fn next_home() -> usize {
    static CHANNELS: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: it orders nothing.
    let channels = CHANNELS.fetch_add(1, Ordering::Relaxed);
    (std::process::id() as usize).wrapping_add(channels)
}

/// What a description says of a shard and its link.
pub(crate) fn show_description(description: &[u8]) -> Option<ServiceShard> {
    Description::decode(description).map(|description| description.show())
}

/// How a shard that many sessions share runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardConfig {
    /// Pin its thread to this core; `None`: wherever the kernel likes.
    pub core: Option<usize>,
    /// Bytes of a buffer of the shard's own.
    pub private_bytes: usize,
    /// How many of them, at least 1: for bytes of connections that no session owns yet.
    pub private_buffers: u32,
}

/// Starts a shard for many sessions on a thread of its own. Returns its handle, and what a session
/// learns of it. `on_end` hears of each session that has ended, on that thread.
///
/// # Errors
/// [`RemoteError`]; nothing is left running.
pub fn start_shard(
    frames: Frames,
    config: &ServerConfig,
    shard: &ShardConfig,
    on_end: OnSessionEnd,
) -> Result<(ShardHandle, Vec<u8>), RemoteError> {
    start_shard_with(frames, config, (shard, ShardPeers::default()), on_end)
}

/// As [`start_shard`], with other servers.
pub(crate) fn start_shard_with(
    frames: Frames,
    config: &ServerConfig,
    (shard, peers): (&ShardConfig, ShardPeers),
    on_end: OnSessionEnd,
) -> Result<(ShardHandle, Vec<u8>), RemoteError> {
    if config.clock.is_by_hand() && peers.mail.is_some() {
        let why = "several servers have the machine's".to_owned();
        return Err(ServerError::Setting { setting: "clock", why }.into());
    }
    let mut config = config.clone();
    let unowned = &mut config.tcp.unowned_receive_buffer;
    *unowned = UNOWNED_RECEIVE_BYTES.min(*unowned);
    let shared = SharedMemory::new(shard.private_bytes, shard.private_buffers.max(1))?;
    let server = Server::new(frames, &config, shared, config.clock.now())?;
    let description = describe_server(&server, &config);
    let settings = config.hand_over.clone();
    let handle = server::RemoteServer::spawn((server, settings), peers, shard.core, on_end)?;
    Ok((handle, description))
}

#[cfg(test)]
mod tests;
