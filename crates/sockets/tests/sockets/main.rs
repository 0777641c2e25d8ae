//! The same programs on Linux's sockets and on ours: what each call answers, to the error number
//! and the event bits, has to be the same.
//!
//! Read first: `host.rs` (what a program can call), `world.rs` (where it runs).

mod beside;
mod connecting;
mod control;
mod crowd;
mod daemon;
mod data;
mod datagrams;
mod ending;
mod errors;
mod families;
mod fast_open;
mod holding;
mod host;
mod linux;
mod liveness;
mod mixed;
mod namespace;
mod notsent;
mod options;
mod ours;
mod own_address;
mod plain;
mod programs;
mod random;
mod random_live;
mod random_mixed;
mod random_sending;
mod segments;
mod sets;
mod settled;
mod sharing;
mod sharing_datagrams;
mod signals;
mod threads;
mod turns;
mod urgent;
mod waiting;
mod waking;
mod world;
