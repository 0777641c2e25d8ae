//! Servers and load generators on channels: `rpc`, `http`, `kv`.
//!
//! In: command-line arguments ([`clap`] structs, one per program). Out: servers that answer on
//! their addresses until a signal comes, and load runs that end in a table and in JSON.
//!
//! Read first: [`serve`], the frame that every server shares (threads, pinning, listeners,
//! graceful stop, live counters), then [`rpc`], the smallest server that is built on it.
//!
//! Invariants
//! - Every program works on every driver of the channel; none looks at which one it has.
//! - Protocol and policy are pure: functions of (input, now) without I/O or clocks. The files
//!   named after the program itself (`rpc.rs`, `load.rs`, …) hold the thin shell around them.
//! - What a peer sends is never an error and never a panic: it is answered, counted, or the
//!   connection ends.
#![forbid(unsafe_code)]
// The process belongs to the program.
#![deny(clippy::exit)]

pub mod backend;
pub mod http;
pub mod kv;
pub mod limits;
pub mod load;
mod memory;
pub mod number;
pub mod reason;
pub mod result_file;
pub mod rpc;
pub mod serve;
pub mod terminal;
pub mod threads;
