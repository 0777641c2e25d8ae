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
//! The placement `core` is this. The two ends share a sealed memfd, which each maps by itself, and
//! a pair of sockets that carries the bells. Nothing else is common to them, so a border between
//! processes can lie there. Here they are two threads.
//!
//! Invariants
//! - Neither end trusts what the other one writes. A record that no correct other end writes ends
//!   the session: with an error, without a panic, and without harm to other sessions.
//! - Both ends compute where everything lies from the sizes that were agreed on ([`Layout`]); none
//!   is read from the region.
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

mod client;
mod deferred;
mod encoding;
mod memory;
mod send_buffers;
mod server;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use megapipe_shm::limits::{BELL_BYTES, POOL_BUFS_MAX};
use megapipe_shm::record::Record;
use megapipe_shm::{
    BufId, BufferArea, Consumer, Pool, PoolLayout, Producer, Region, RegionError, RegionParts,
    Ringer, Sleeper, bell_sockets, ring_bytes,
};

use crate::config::ServerConfig;
use crate::error::{RemoteError, ServerError};
use crate::limits::{
    CALL_BYTES, COMPLETIONS_MAX, LARGE_SEND_BYTES, LARGE_SENDS, OPS_MAX, RECEIVE_BUFFERS_MAX,
    SMALL_SEND_BYTES, SMALL_SENDS,
};
use crate::link_server::Frames;
use crate::server::Server;
use crate::server_thread;
use crate::sleep::{ServerThread, SleepingEnd};

use encoding::Description;

pub use client::{RemoteClient, RemoteCounters, RemoteEvent};
pub use memory::SharedMemory;

/// Tags of the pools in a session's region.
const RECEIVES: u16 = 0;
const SMALL: u16 = 1;
const LARGE: u16 = 2;
const CALLS: u16 = 3;
/// Tag of what lies in the server's own memory.
const COPIES: u16 = 4;
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

/// What a session's region holds, in this order: the ring of ops, that of events, the server's bell
/// and the application's, receive buffers, small send buffers, large ones, the call buffer.
#[derive(Debug, Clone, Copy)]
struct Layout {
    receives: PoolLayout,
    small: PoolLayout,
    large: PoolLayout,
    calls: PoolLayout,
}

/// The buffers of a session, as one end has them mapped.
struct SessionBuffers {
    receives: BufferArea,
    small: BufferArea,
    large: BufferArea,
    calls: BufferArea,
}

impl Layout {
    const fn of(config: &RemoteConfig) -> Self {
        let count = if config.receive_buffers < RECEIVE_BUFFERS_MAX {
            config.receive_buffers
        } else {
            RECEIVE_BUFFERS_MAX
        };
        Self {
            receives: PoolLayout { buf_bytes: config.receive_bytes, count, tag: RECEIVES },
            small: PoolLayout { buf_bytes: SMALL_SEND_BYTES, count: SMALL_SENDS, tag: SMALL },
            large: PoolLayout { buf_bytes: LARGE_SEND_BYTES, count: LARGE_SENDS, tag: LARGE },
            calls: PoolLayout { buf_bytes: CALL_BYTES, count: 1, tag: CALLS },
        }
    }

    /// What the region needs.
    const fn bytes(&self) -> usize {
        let rings = ring_bytes::<Record>(OPS_MAX) + ring_bytes::<Record>(COMPLETIONS_MAX);
        let sends = self.small.bytes() + self.large.bytes();
        rings + 2 * BELL_BYTES + self.receives.bytes() + sends + self.calls.bytes()
    }

    fn buffers(&self, parts: &mut RegionParts) -> Result<SessionBuffers, RemoteError> {
        Ok(SessionBuffers {
            receives: BufferArea::new(parts, self.receives)?,
            small: BufferArea::new(parts, self.small)?,
            large: BufferArea::new(parts, self.large)?,
            calls: BufferArea::new(parts, self.calls)?,
        })
    }

    /// The server's ends in its mapping of the region.
    fn server(
        &self,
        region: Region,
        bell: OwnedFd,
    ) -> Result<(server::RingEnds, SharedMemory), RemoteError> {
        let (mut parts, bell) = (region.into_parts(), Arc::new(bell));
        let ops = Consumer::new(&mut parts, OPS_MAX)?;
        let events = Producer::new(&mut parts, COMPLETIONS_MAX)?;
        let sleeper = Sleeper::over_socket(&mut parts, Arc::clone(&bell))?;
        let sleep = SleepingEnd::new(sleeper, Ringer::over_socket(&mut parts, bell)?);
        let SessionBuffers { receives, small, large, calls } = self.buffers(&mut parts)?;
        let memory = SharedMemory::new(Pool::new(receives), small, large);
        Ok((server::RingEnds { ops, events, sleep, calls }, memory))
    }

    /// The application's ends in its mapping.
    fn client(
        &self,
        region: Region,
        bell: OwnedFd,
    ) -> Result<(client::RingEnds, SleepingEnd, SessionBuffers), RemoteError> {
        let (mut parts, bell) = (region.into_parts(), Arc::new(bell));
        let ops = Producer::new(&mut parts, OPS_MAX)?;
        let events = Consumer::new(&mut parts, COMPLETIONS_MAX)?;
        let ringer = Ringer::over_socket(&mut parts, Arc::clone(&bell))?;
        let sleep = SleepingEnd::new(Sleeper::over_socket(&mut parts, bell)?, ringer);
        Ok((client::RingEnds { ops, events }, sleep, self.buffers(&mut parts)?))
    }
}

/// The region of a session, mapped twice: by the server, which makes it, and by the application.
/// Children of a fork inherit neither mapping.
fn regions(bytes: usize) -> Result<(Region, Region), RegionError> {
    let mut servers = Region::memfd("megapipe-session", bytes)?;
    servers.keep_from_children()?;
    let fd = servers.fd().map(|fd| fd.try_clone_to_owned()).transpose();
    let failed = |error: std::io::Error| RegionError::System {
        call: "fcntl(F_DUPFD_CLOEXEC)",
        errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::MFILE),
    };
    let fd = fd.map_err(failed)?.ok_or(RegionError::NotMemfd)?;
    let mut applications = Region::from_fd(fd, bytes)?;
    applications.keep_from_children()?;
    Ok((servers, applications))
}

/// Starts a server on a thread of its own, and returns its application's end.
///
/// # Errors
/// [`RemoteError`]; nothing is left running.
pub fn start(
    frames: Frames,
    config: &ServerConfig,
    remote: &RemoteConfig,
) -> Result<RemoteClient, RemoteError> {
    if config.clock.is_by_hand() {
        let why = "a server on a thread of its own has the machine's".to_owned();
        return Err(ServerError::Setting { setting: "clock", why }.into());
    }
    let layout = Layout::of(remote);
    let (servers, applications) = regions(layout.bytes())?;
    let (servers_bell, applications_bell) = bell_sockets()?;
    let (ends, memory) = layout.server(servers, servers_bell)?;
    let (client_ends, sleep, buffers) = layout.client(applications, applications_bell)?;
    let server = Server::new(frames, config, memory, config.clock.now())?;
    let description = Description::new(&server, config);
    let mut worker = server::RemoteServer::new(server, ends);
    worker.describe(&description)?;
    let thread = server_thread::spawn(move || worker.run(), remote.core)?;
    RemoteClient::new(client_ends, buffers, ServerThread::new(sleep, thread))
}

#[cfg(test)]
mod tests;
