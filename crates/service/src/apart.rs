//! A server that runs apart from its application, on a thread of its own.
//!
//! ```text
//!   application's thread                          server's thread
//!   Session                                       Worker: a Server's turns
//!     ops         --- ring of records --->          commands
//!     events      <-- ring of records ----          what the stack says
//!     bytes       <-- receive buffers ----          copied in from frames
//!     bytes       --- send buffers   ---->          read from until acknowledged
//!     calls       --- questions, rare --->          answered one by one
//!                 bells both ways
//! ```
//!
//! Read first: mTCP §3.2 (job and event queues, one wake-up for a batch), ETA §4.2;
//! `megapipe_shm`'s `record.rs` for what the records say; `session.rs` and `worker.rs` for the two
//! ends.
//!
//! The placement `core` is this.
//!
//! Invariants
//! - Neither end waits for the other on the way of a message: a full ring of ops makes the
//!   application yield until the server, which never waits, has taken some; a full ring of events
//!   leaves events in the stack. Who yields or waits for an answer makes room in the other ring
//!   meanwhile, since each op may have an answer.
//! - A call is answered after the ops that were handed over before it, and after their answers.
//! - A buffer belongs to one end at a time, and goes over with the record that names it.
//! - A connection that stalls delays no other: no connection has more send buffers than it leaves,
//!   one without any sends all the same, and sends that wait wait by connection.
//! - Events of a turn go over together, and wake the application at most once.
//! - However the server's thread ends, it wakes the application, which then sees that it has ended.

mod codes;
mod deferred;
mod memory;
mod sends;
mod session;
mod worker;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};

use megapipe_shm::record::Record;
use megapipe_shm::{
    DoorbellError, Pool, PoolError, PoolLayout, Region, RegionError, RingError, RingLayout,
    doorbell, ring,
};

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::limits::{
    COMPLETIONS_MAX, LARGE_SEND_BYTES, LARGE_SENDS, OPS_MAX, RECEIVE_BUFFERS_MAX, SMALL_SEND_BYTES,
    SMALL_SENDS,
};
use crate::link_server::Frames;
use crate::server::Server;
use crate::server_thread;

pub use memory::SharedMemory;
pub use session::{Session, SessionCounters, Told};

/// Tags of the three pools in a session's region.
const RECEIVES: u16 = 0;
const SMALL: u16 = 1;
const LARGE: u16 = 2;
/// Tag of what lies in the server's own memory.
const COPIES: u16 = 3;

/// How a server apart runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApartConfig {
    /// Pin its thread to this core; `None`: wherever the kernel likes.
    pub core: Option<usize>,
    /// Bytes of a receive buffer.
    pub receive_bytes: usize,
    /// How many of them.
    pub receive_buffers: u32,
}

/// Why there is no server apart.
#[derive(Debug, thiserror::Error)]
pub enum ApartError {
    /// The server itself.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// No pool of buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No doorbell.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
    /// No thread.
    #[error("no thread for a server: {0}")]
    Thread(std::io::Error),
    /// It cannot run where it is to.
    #[error("cannot pin the server's thread to core {core}: {source}")]
    Pin {
        /// The core.
        core: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// A question for the server's own thread, which answers by itself.
type Call = Box<dyn FnOnce(&mut Server<SharedMemory>) + Send>;

/// Where everything lies in a session's region.
#[derive(Debug, Clone, Copy)]
struct Layout {
    ops: RingLayout,
    events: RingLayout,
    server_bell: usize,
    application_bell: usize,
    receives: PoolLayout,
    small: PoolLayout,
    large: PoolLayout,
    bytes: usize,
}

impl Layout {
    fn of(config: &ApartConfig) -> Self {
        let ops = RingLayout { offset: 0, entries: OPS_MAX };
        let after_ops = RingLayout::bytes::<Record>(OPS_MAX);
        let events = RingLayout { offset: after_ops, entries: COMPLETIONS_MAX };
        let server_bell = after_ops + RingLayout::bytes::<Record>(COMPLETIONS_MAX);
        let application_bell = server_bell + 128;
        let count = config.receive_buffers.min(RECEIVE_BUFFERS_MAX);
        let (offset, buf_bytes) = (application_bell + 128, config.receive_bytes);
        let receives = PoolLayout { offset, buf_bytes, count, tag: RECEIVES };
        let offset = offset + receives.bytes();
        let small =
            PoolLayout { offset, buf_bytes: SMALL_SEND_BYTES, count: SMALL_SENDS, tag: SMALL };
        let offset = offset + small.bytes();
        let large =
            PoolLayout { offset, buf_bytes: LARGE_SEND_BYTES, count: LARGE_SENDS, tag: LARGE };
        let bytes = offset + large.bytes();
        Self { ops, events, server_bell, application_bell, receives, small, large, bytes }
    }
}

/// Starts a server on a thread of its own, and gives its application's end.
///
/// # Errors
/// [`ApartError`]; nothing is left running.
pub fn start(
    frames: Frames,
    config: &ServerConfig,
    apart: &ApartConfig,
) -> Result<Session, ApartError> {
    if config.clock.is_by_hand() {
        let why = "a server on a thread of its own has the machine's".to_owned();
        return Err(ServerError::Setting { setting: "clock", why }.into());
    }
    let layout = Layout::of(apart);
    let region = Arc::new(Region::heap(layout.bytes)?);
    let (op_producer, op_consumer) = ring::<Record>(&region, layout.ops)?;
    let (event_producer, event_consumer) = ring::<Record>(&region, layout.events)?;
    let (server_sleeper, server_ringer) = doorbell(&region, layout.server_bell)?;
    let (application_sleeper, application_ringer) = doorbell(&region, layout.application_bell)?;
    let receives = Pool::new(Arc::clone(&region), layout.receives)?;
    let memory = SharedMemory::new(Arc::clone(&region), receives, layout.small, layout.large);
    let now = config.clock.now();
    let server = Server::new(frames, config, memory, now)?;
    let sends = sends::Sends::new(&layout, config.tcp.send_buffer);
    let (calls, questions) = mpsc::channel();
    let has_ended = Arc::new(AtomicBool::new(false));
    let description = session::Description::of(&server);
    let worker = worker::Worker::new(
        server,
        worker::Ends {
            ops: op_consumer,
            events: event_producer,
            sleeper: server_sleeper,
            ringer: application_ringer,
            questions,
            has_ended: Arc::clone(&has_ended),
        },
    );
    let thread = server_thread::spawn(move || worker.run(), apart.core)?;
    Ok(Session::new(
        session::Ends {
            region,
            ops: op_producer,
            events: event_consumer,
            sleeper: application_sleeper,
            ringer: server_ringer,
            calls,
            has_ended,
        },
        sends,
        layout.receives,
        description,
        thread,
    ))
}

#[cfg(test)]
mod tests;
