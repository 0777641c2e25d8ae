//! BSD sockets and epoll in C, by `megapipe_sockets.h`: calls of section 2 with the prefix `mps_`.
//!
//! In: the arguments of a call of the C library. Out: the result of that call, -1 and errno. A
//! descriptor of the process, which is a number below the library's, is passed to the C library
//! unchanged. Read first: decision 0030 and `man/megapipe_sockets.7`.
//!
//! - `context.rs`: which context a call uses, and the guard of every call.
//! - `setup.rs`: from a configuration to a context, and its end.
//! - `calls.rs`, `transfer.rs`, `options.rs`, `sets.rs`: one function for each call.
//!
//! Invariants
//! - A call on a descriptor of the process touches no state of the library: it is async-signal-safe
//!   wherever the C library's call is.
//! - No panic unwinds into C; a thread in whose call one happened gets errors from then on.
//! - errno is changed only by a call that fails.

pub mod calls;
mod context;
pub mod options;
mod outcome;
pub mod sets;
pub mod setup;
mod thread;
pub mod transfer;
