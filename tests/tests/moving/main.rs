//! Established connections that move between our stack and the kernel, in the middle of what they
//! do.
//!
//! ```text
//!  near: 10.79.0.1, fd79::1                       far: 10.79.0.2, fd79::2
//!  the channel's thread           mp-near ------- mp-far    a plain kernel program
//!  our stack on packet or xdp;
//!  the kernel, with the same addresses
//! ```
//!
//! Both hosts are network namespaces of this process, one thread in each. tcpdump captures the
//! traffic between them, and tshark checks that there is no reset.
//!
//! Read first: `hosts.rs`; then `mover.rs`, the program that moves its connection.
//!
//! Needs root; otherwise each test says that it was skipped.

mod full_table;
mod hosts;
mod mover;
mod outgoing;
mod ports;
mod refusals;
mod service;
mod transfers;
