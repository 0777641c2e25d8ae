//! A key-value server that speaks memcached 1.6's text, meta and binary protocols, and RESP2.
//!
//! Read first: this page, then [`connection`], then [`store`].
//!
//! ```text
//!   channel (one per core)          channel
//!     | bytes      ^ responses        |      ^
//!     v            |                  v      |
//!   Connection: protocol::{text, meta, binary, resp}   pure, one per client
//!     |            ^                  |      ^
//!     v            | value            v      |
//!   Store: shard | shard | shard | ...              shared by all channels, a lock per shard
//! ```
//!
//! Invariants
//! - Only `server` does I/O and reads clocks; all else is a function of bytes, `now` and store.
//! - Everything that a client can make grow has a bound in [`limits`].

mod args;
pub mod connection;
pub mod limits;
mod numbers;
pub mod protocol;
mod server;
pub mod store;
mod timeouts;

use std::sync::Arc;

pub use args::{KvArgs, MemoryError, MemorySize};

use crate::serve::{Running, ServeArgs, ServeError, ServerProperties, ShardSetup};
use numbers::{Constants, ServerNumbers};
use server::{KvShard, KvShared};
use store::{KvStore, StoreError};
use timeouts::Timeouts;

/// What the frame has to know about this server.
pub const SERVER: ServerProperties = ServerProperties {
    name: "kv",
    listen_default: "127.0.0.1:11211",
    files_per_connection: 0,
    has_statuses: false,
};

/// What `version` answers: the version of memcached whose protocols these are, and this server's
/// name.
pub const VERSION: &str = concat!("1.6.18-megapipe-", env!("CARGO_PKG_VERSION"));

/// Why the server did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The memory limit is out of range.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The frame's errors.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl KvError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Store(error) => !matches!(error, StoreError::NoMemory(_)),
            Self::Serve(error) => error.is_usage(),
        }
    }
}

/// Runs the server until a signal ends it. Blocks.
///
/// # Errors
/// A memory limit out of range, and whatever [`crate::serve::serve`] returns.
pub fn serve(args: &KvArgs) -> Result<(), KvError> {
    Ok(crate::serve::serve(&args.serve, SERVER, factory(args)?)?)
}

/// Starts the server inside this process and returns when it listens.
///
/// # Errors
/// As [`serve`].
pub fn start(args: &KvArgs) -> Result<Running, KvError> {
    Ok(crate::serve::start(&args.serve, SERVER, factory(args)?)?)
}

fn factory(
    args: &KvArgs,
) -> Result<impl Fn(ShardSetup<'_>) -> Result<KvShard, ServeError> + Send + Sync + 'static, KvError>
{
    let constants = constants(&args.serve, args.idle_timeout)?;
    let shared = KvShared {
        store: Arc::new(KvStore::new(args.memory.0)?),
        numbers: Arc::new(ServerNumbers::new(constants)),
        timeouts: Timeouts {
            idle_ms: u64::from(args.idle_timeout) * 1_000,
            stall_ms: u64::from(args.stall_timeout) * 1_000,
        },
    };
    Ok(move |setup: ShardSetup<'_>| KvShard::new(setup, shared.clone()))
}

fn constants(serve: &ServeArgs, idle_timeout_s: u32) -> Result<Constants, ServeError> {
    let address = serve.addresses(SERVER).first().map(ToString::to_string);
    Ok(Constants {
        address: address.unwrap_or_default(),
        connections_max: u64::from(serve.max_connections),
        idle_timeout_s: u64::from(idle_timeout_s),
        channels: serve.channel_count()? as u64,
    })
}
