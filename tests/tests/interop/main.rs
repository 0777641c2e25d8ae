//! Our stack against Linux's programs, over a TAP device in a network namespace: both directions,
//! IPv4 and IPv6, without and with loss. tshark judges every capture.
//!
//! ```text
//!  Linux: 10.77.0.1, fd77::1                ours: 10.77.0.2, fd77::2 (src/bin/interop.rs)
//!  ping, curl, wrk, ab, nginx, tap0         stack, capture, then faults
//!  libmemcached, sockets   ------------->
//! ```
//!
//! Read first: `host.rs` (the namespace and our programs in it), `judge.rs` (what is held against a
//! capture).
//!
//! Loss is of frames, in both directions, on our side of the device: under a namespace of its own
//! this kernel has no netem. With loss the offloads are off, so that a frame is a segment.
//!
//! Needs root; otherwise each test says that it was skipped. iperf3 is not used: both its ends
//! speak a protocol of its own, so one of them cannot be ours. Nor is redis-cli: `serve kv` speaks
//! memcached's protocols only.

mod breakage;
mod bulk;
mod host;
mod http;
mod judge;
mod kv;
mod load;
mod ping;
mod transfers;
