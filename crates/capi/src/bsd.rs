//! BSD sockets and epoll in C, by `megapipe_sockets.h`: calls of section 2 with the prefix `mps_`.
//!
//! In: what a program hands to its C library. Out: what that would answer, -1 and errno. A
//! descriptor of the process, which is a number below ours, goes to the C library as it is. Read
//! first: decision 0030 and `man/megapipe_sockets.7`.
//!
//! - `context.rs`: whose sockets a call is about, and the guard that every call passes.
//! - `setup.rs`: from a configuration to a context, and its end.
//! - `calls.rs`, `transfer.rs`, `options.rs`, `sets.rs`: one function for each call.
//!
//! Invariants
//! - A call on a descriptor of the process touches nothing of ours: it may be made in a signal
//!   handler wherever the C library's may.
//! - No panic crosses the border; a thread in whose call one happened gets an error from then on.
//! - errno is changed only by a call that fails.

pub mod calls;
mod context;
pub mod options;
pub mod sets;
pub mod setup;
pub mod transfer;
