//! Which shard a frame is for, where the link does not know: our own keyed hash of its flow.
//!
//! ```text
//!   frame -> Reading -> Steering -> Destination
//!            (sort)     (hash,       one shard, whoever reads it, or all
//!                       bindings,
//!                       fragments)
//! ```
//!
//! Read first: mTCP §3.2.1 (flows stay on a core); then `reading.rs` (what a frame is about),
//! `hash.rs` (whose a flow is), `bindings.rs` (ports that not all shards listen on),
//! `fragments.rs`.
//!
//! Pure: frames, bindings and time go in, destinations come out.
//!
//! Invariants
//! - Both directions of a flow hash alike, and ICMP errors as the flow that they quote: all of a
//!   flow reaches one shard, and whoever picks a port can tell which.
//! - No peer can choose the shard of its flows without knowing the key.
//! - What no shard in particular is to have is had by one that is awake, or by all.

mod bindings;
mod fragments;
mod hash;
mod reading;

pub use bindings::{BindingError, Bindings, Served, Table, Takes, Transport};
pub use fragments::{Fragments, Later};
pub use hash::{Ends, FlowHash};
pub use reading::{Datagram, Reading, read};

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To this shard.
    Shard(u16),
    /// To whoever has it in its hands: a question that each shard can answer, or nothing of ours.
    Anyone,
    /// To every shard: each may wait for it.
    Everyone,
}

/// The shard of a flow: that of its hash, unless its local port is bound elsewhere.
#[must_use]
#[inline]
pub fn shard_of(hash: &FlowHash, table: &Table, transport: Transport, ends: &Ends) -> u16 {
    let home = hash.shard_of(ends, table.shards());
    table.shard_of(transport, ends, home)
}

#[cfg(test)]
mod tests;
