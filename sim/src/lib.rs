//! Many hosts with the real stack, on one virtual clock, from one seed.
//!
//! A seed decides everything: how many hosts there are, what their links lose, repeat, reorder,
//! corrupt and delay, when they are cut, how large a packet the way between them takes, how wrong
//! their clocks run, what their applications do and when they die, and what an attacker forges.
//! Nothing else does: a seed that fails once fails again, at the same event.
//!
//! Where to start reading: `scenario.rs` for what a seed decides, `world.rs` for the loop,
//! `node.rs`, `host.rs`, `program.rs`, `sockets.rs` and `foreign.rs` for what runs in it, `check/`
//! for what must hold.
//!
//! Invariants
//! - No clock, no hash with a random key, and no thread but the programs on sockets, of which one
//!   runs at a time (`sockets/pace.rs`): two runs of a seed are the same.
//! - What is checked is checked on every frame and every byte, not at the end alone.
#![forbid(unsafe_code)]

mod attacker;
mod check;
mod foreign;
mod fragments;
mod hands;
mod host;
mod network;
mod node;
mod packets;
mod pattern;
mod ports;
mod program;
mod router;
mod scenario;
mod sockets;
mod world;

pub use check::Violation;
pub use scenario::{Attack, HostPrograms, LinkFaults, Scenario, ScenarioKind};
pub use world::{RunOutcome, SimWorld};
