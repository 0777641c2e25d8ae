//! mTCP's own API in C, over the library's sockets: `mtcp_api.h` and `mtcp_epoll.h`.
//!
//! In: the calls of a program written for mTCP, with its configuration file. Out: mTCP's results,
//! -1 and errno. Read first: [MT 3.3] and `man/mtcp.7`.
//!
//! - `conf.rs`: the configuration file, pure; `tables.rs`: its route and ARP files, pure.
//! - `setup.rs`: from a configuration to a network, and the calls about it.
//! - `context.rs`: `mctx_t`, and the guard of every call; `signals.rs`: how a signal ends a wait.
//! - `calls.rs`, `options.rs`, `epoll.rs`: one function for each call; `ports.rs`: listeners of
//!   several contexts at one port.
//!
//! Invariants
//! - A context belongs to one thread. A null, foreign or stale `mctx_t` sets errno and changes
//!   nothing: contexts lie in a static table, so any pointer can be checked without being followed.
//! - No panic unwinds into C; a context in which one happened fails all calls from then on.
//! - errno is changed only by a call that fails.
//!
//! \[MT\]: Jeong, Woo, Jamshed, Jeong, Ihm, Han, Park, "mTCP: a Highly Scalable User-level TCP
//! Stack for Multicore Systems".

pub mod calls;
mod claims;
mod conf;
pub mod context;
pub mod epoll;
pub mod options;
mod ports;
pub mod setup;
pub mod signals;
mod tables;
