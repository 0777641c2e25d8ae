//! Plug-in for packetdrill: a shared object with the sockets and wire of a simulated host, which
//! exports `packetdrill_interface_init`.
//!
//! In: socket calls and IP packets from packetdrill, with flags that set options of the stack. Out:
//! the sockets' results, the packets that the stack sends, and the time, which is virtual and
//! passes while packetdrill sleeps. Read first: `docs/SCRIPTS.md`, "With packetdrill itself"; then
//! `megapipe_scripts::world`: sockets, wire and clock, which the project's own interpreter of
//! scripts uses, too.
//!
//! - `interface.rs`: packetdrill's record, and the functions that fill it.
//! - `flags.rs`: the text of `--so_flags`, pure.
//! - `calls.rs`: one function for each entry of the record.
//!
//! Invariants
//! - Time passes only in `usleep`, `gettimeofday` and `netdev_receive`; timers that expire
//!   meanwhile run at their own time, not at the end of the step.
//! - A call that blocks waits only on a futex: packetdrill reads the state of the thread to detect
//!   that it is blocked.
//! - No panic unwinds into C: the call fails with EIO.

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

pub use flags::{FlagError, PacketdrillFlags};
pub use interface::{PacketdrillInterface, packetdrill_interface_init};
