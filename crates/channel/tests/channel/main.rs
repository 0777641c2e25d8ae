//! What a channel promises, checked on each driver.
//!
//! Read first: `scene.rs` (a channel with its peers, and how a driver that is missing is
//! skipped). Then any module: its name says what it is about, a test's name states one fact.
//!
//! Invariants
//! - Every fact is checked on every driver (`on_each_driver!`); a difference is a failure.
//! - Nothing waits for a time where it can wait for an event, and nothing waits without an end.

mod agreement;
mod connections;
mod crowd;
#[cfg(feature = "local")]
mod daemon;
mod datagrams;
mod dispatching;
mod endings;
mod exhaustion;
mod files;
mod listeners;
#[cfg(feature = "local")]
mod local;
#[cfg(feature = "local")]
mod loopback;
mod misuse;
mod park;
mod place;
mod plain;
mod processes;
mod quiet;
mod scene;
#[cfg(feature = "local")]
mod shards;
#[cfg(feature = "local")]
mod shared;
#[cfg(feature = "local")]
mod shared_listeners;
#[cfg(feature = "local")]
mod sharing;
mod streams;
mod timers;
mod unsent;
