//! mTCP's own API in C, over our sockets: `mtcp_api.h` and `mtcp_epoll.h`.
//!
//! In: the calls that a program written for mTCP makes, with its configuration file. Out: what
//! mTCP's would answer, -1 and errno. Read first: [MT 3.3] and `man/mtcp.7`.
//!
//! - `conf.rs`: the configuration file, pure; `tables.rs`: its route and ARP files, pure.
//! - `setup.rs`: from a configuration to a network, and the calls about it.
//! - `context.rs`: `mctx_t`, and the guard that every call passes; `signals.rs`: how a signal ends
//!   a wait.
//! - `calls.rs`, `options.rs`, `epoll.rs`: one function for each call; `ports.rs`: who listens
//!   where another context does.
//!
//! Invariants
//! - A context is one thread's. A null, foreign or stale `mctx_t` gives errno and touches nothing:
//!   contexts lie in a static table, so that any pointer can be checked without being followed.
//! - No panic crosses the border; a context in which one happened refuses all calls from then on.
//! - errno is changed only by a call that fails.
//!
//! \[MT\]: Jeong, Woo, Jamshed, Jeong, Ihm, Han, Park, "mTCP: a Highly Scalable User-level TCP
//! Stack for Multicore Systems".

pub mod calls;
mod conf;
pub mod context;
pub mod epoll;
pub mod options;
mod ports;
pub mod setup;
pub mod signals;
mod tables;
