//! Many hosts with the real stack, on one virtual clock, from one seed.
//!
//! A seed decides everything: how many hosts there are, what their links lose, repeat, reorder,
//! corrupt and delay, when they are cut, how large a packet the way between them takes, how wrong
//! their clocks run, what their applications do and when they die.
//! Nothing else does: a seed that fails once fails again, at the same event.
//!
//! Where to start reading: `scenario.rs` for what a seed decides, `world.rs` for the loop,
//! `host.rs` and `program.rs` for what runs in it, `check/` for what must hold.
//!
//! Invariants
//! - No clock, no thread, no hash with a random key: two runs of a seed are the same.
//! - What is checked is checked on every frame and every byte, not at the end alone.
#![forbid(unsafe_code)]

mod check;
mod host;
mod network;
mod pattern;
mod program;
mod router;
mod scenario;
mod world;

pub use check::Violation;
pub use scenario::{Faults, Kind, Scenario};
pub use world::{Outcome, World};
