//! `libmegapipe`: the C interface of channels.
//!
//! In: calls with C arguments, on the thread that owns the channel. Out: `struct mp_event`s, errno
//! values, and error texts. Read first: `man/megapipe.7`, then `object.rs`.
//!
//! - `abi.rs`: the records and constants; `megapipe.h` is generated from it and from `calls/`.
//! - `calls/`: one function for each call.
//! - `object.rs`: the object behind `mp_channel_t *`, and the guard of every call.
//! - `network.rs`: the links of channels on the library's own stack.
//! - `registry.rs`: finds the channel of a handle. `fork.rs`: detects a fork.
//! - `pending.rs`, `lent.rs`, `event.rs`: destinations of reads, and conversion to events.
//! - `error.rs`, `border.rs`: errno and return values.
//! - `bsd/`: BSD sockets and epoll, by `megapipe_sockets.h`; `mtcp/`: mTCP's own API, by its own
//!   headers. buffers, addresses and messages of both are converted by `megapipe-marshal`.
//!
//! Invariants
//! - No panic unwinds into C, and no call works on a channel of another thread.
//! - A read or a small write allocates nothing once the tables have grown.
//! - Pointers of the program are dereferenced only while the man page says that they are valid.

// The process and its terminal belong to the program.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![allow(
    clippy::missing_safety_doc,
    reason = "what a C caller must promise about pointers is in the text and the man page of each \
              call; a Rust program uses the Rust crate"
)]

pub mod abi;
mod address;
mod border;
/// cbindgen:ignore
pub mod bsd;
pub mod calls;
mod error;
mod event;
mod fork;
mod guarded;
mod lent;
mod limits;
/// cbindgen:ignore
pub mod mtcp;
mod network;
mod object;
mod pending;
mod registry;
mod text;

pub use object::{mp_channel, mp_channel_t};
