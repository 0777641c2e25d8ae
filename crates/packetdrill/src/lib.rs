//! How does packetdrill itself drive our sockets and our wire? By a shared object that exports
//! `packetdrill_interface_init`.
//!
//! In: socket calls and IP packets, from packetdrill, with flags that turn the stack's knobs. Out:
//! what the sockets answer, the packets that the stack sends, and the time, which is virtual:
//! packetdrill's sleeping is what lets it pass. Read first: `docs/SCRIPTS.md`, "With packetdrill
//! itself"; then `megapipe_scripts::world`: sockets, wire and clock, which our own runner of
//! scripts drives, too.
//!
//! - `interface.rs`: the record that packetdrill hands us, and what is put into it.
//! - `flags.rs`: the text of `--so_flags`, pure.
//! - `calls.rs`: one function for each entry of the record.
//!
//! Invariants
//! - Time passes only in `usleep`, `gettimeofday` and `netdev_receive`; whatever is due on the way
//!   happens at its own time, not at the end of the step.
//! - A call that waits sleeps on a futex and nowhere else: packetdrill looks at the state of the
//!   thread to know that it is blocked.
//! - No panic crosses the border: the call fails with EIO.

#![allow(
    clippy::missing_safety_doc,
    reason = "what packetdrill promises about pointers is what each call's namesake asks for"
)]

mod calls;
mod flags;
mod interface;
mod limits;
#[cfg(test)]
mod tests;

pub use flags::{FlagError, Flags};
pub use interface::{Interface, packetdrill_interface_init};
