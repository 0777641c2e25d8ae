//! How does a C program get in? By `libmegapipe`: the channel behind a C ABI.
//!
//! In: calls with C arguments, on the thread that owns the channel. Out: `struct mp_event`s,
//! errno values, and texts that say why. Read first: `man/megapipe.7`, then `object.rs`.
//!
//! - `abi.rs`: the records and constants; `megapipe.h` is generated from it and from `calls/`.
//! - `calls/`: one function for each call.
//! - `object.rs`: the channel as an object of C, and the guard that every call passes.
//! - `network.rs`: the links of channels on our own stack.
//! - `registry.rs`: from a handle to its channel. `fork.rs`: whether this is still the process.
//! - `pending.rs`, `lent.rs`, `event.rs`: where read bytes go, and the way back out.
//! - `error.rs`, `border.rs`: errno and return values.
//! - `bsd/`: BSD sockets and epoll, by `megapipe_sockets.h`; `mtcp/`: mTCP's own API, by its own
//!   headers. `memory.rs`: memory and pieces of it that both are handed.
//!
//! Invariants
//! - No panic crosses the border, and no call works on a channel of another thread.
//! - Nothing allocates on the way of a read or a small write once the tables have grown.
//! - Pointers of the program are dereferenced only while the man page says that they are valid.

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
mod memory;
/// cbindgen:ignore
pub mod mtcp;
mod network;
mod object;
mod pending;
mod registry;
mod text;
