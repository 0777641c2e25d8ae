//! A key-value server that speaks memcached 1.6's text, meta and binary protocols.
//!
//! Read first: this page, then [`connection`], then [`store`].
//!
//! ```text
//!   channel (one per core)          channel
//!     | bytes      ^ responses        |      ^
//!     v            |                  v      |
//!   Connection: protocol::{text, meta, binary}      pure, one per client
//!     |            ^                  |      ^
//!     v            | value            v      |
//!   Store: shard | shard | shard | ...              shared by all channels, a lock per shard
//! ```
//!
//! Invariants
//! - Only [`server`] does I/O and reads clocks; all else is a function of bytes, `now` and store.
//! - Everything that a client can make grow has a bound in [`limits`].

pub mod connection;
pub mod limits;
pub mod protocol;
pub mod store;

/// What `version` answers: the version of memcached whose protocols these are, and who speaks them.
pub const VERSION: &str = concat!("1.6.18-megapipe-", env!("CARGO_PKG_VERSION"));
