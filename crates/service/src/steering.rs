//! Which shard a frame is for, where the link does not know: our own keyed hash of its flow.
//!
//! ```text
//!   frame -> Classified -> Steering -> Destination
//!            (sort)     (hash,       one shard, the reader, or all
//!                       bindings,
//!                       fragments)
//! ```
//!
//! Read first: mTCP §3.2.1 (flows stay on a core); then `classify.rs` (what a frame is about),
//! `hash.rs` (a flow's shard), `bindings.rs` (ports that not all shards listen on),
//! `fragments.rs`.
//!
//! Pure: frames, bindings and time go in, destinations come out.
//!
//! Invariants
//! - Both directions of a flow hash alike, and ICMP errors as the flow that they quote: all of a
//!   flow reaches one shard, and a client that picks a port can compute which.
//! - No peer can choose the shard of its flows without knowing the key. Where a device's hash is
//!   known it is followed, and Toeplitz promises less: but there the device has spread them.
//! - What no shard in particular is to have is had by one that is awake, or by all.

mod bindings;
mod classify;
mod default_shard;
mod fast_parse;
mod fragments;
mod hash;

pub use bindings::{BindingError, BindingTable, Bindings, Served, Takes, Transport};
pub use classify::{Classified, FragmentedDatagram, classify};
pub use fast_parse::{FastParsed, fast_parse};
pub use fragments::{Fragments, Later};
pub use hash::{FlowHash, SteeringKey};

use std::sync::Arc;

use megapipe_link::Rss;

use crate::limits::FORMER_SHARDS_MAX;
use default_shard::DefaultShards;

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To this shard.
    Shard(u16),
    /// To the shard that read it: a request that each shard can answer, or nothing of ours.
    Anyone,
    /// To every shard: each may wait for it.
    Everyone,
}

/// What goes with a frame from its reader to its shard: that it is to be refused
/// ([`REFUSED`]), that its flow may be where it was before ([`PAST`] and above: how many former
/// shards are not to be asked again) and is not ([`RETURNED`]), or [`NOTHING`].
pub type Note = u8;

/// The shard takes the frame.
pub const NOTHING: Note = 0;
/// The shard takes the frame if it knows its flow, and else passes it on to [`Steering::former`];
/// the last of those returns it to the flow's shard of now.
pub const PAST: Note = 1;
/// No former shard knows the frame's flow. The shard takes the frame, after what others have handed
/// over to it.
pub const RETURNED: Note = 14;
/// The frame begins a connection that no shard may accept.
pub const REFUSED: Note = 15;

const _: () = assert!(PAST as usize + FORMER_SHARDS_MAX < RETURNED as usize, "a note has 4 bits");

/// Says whose frames are.
#[derive(Debug, Clone)]
pub struct Steering {
    default_shards: DefaultShards,
    shards: u16,
}

impl Steering {
    /// Steers to `shards` shards, by a hash under `key`.
    #[must_use]
    pub fn new(key: &[u8; 16], shards: u16) -> Self {
        Self { default_shards: DefaultShards::Ours(FlowHash::new(key)), shards }
    }

    /// Steers to `shards` shards, as a device spreads flows over `queues` queues: each shard is at
    /// home where it reads.
    #[must_use]
    pub const fn by_device(rss: Arc<Rss>, queues: u16, shards: u16) -> Self {
        Self { default_shards: DefaultShards::Device(rss, queues), shards }
    }

    /// Packets of a flow arrive at a queue that is open, as far as it is known where they arrive.
    #[must_use]
    pub fn arrives(&self, transport: Transport, ends: &SteeringKey) -> bool {
        self.default_shards.arrives(transport, ends)
    }

    /// The shard of a flow's hash.
    #[inline]
    pub(crate) fn default_shard(&self, transport: Transport, ends: &SteeringKey) -> u16 {
        self.default_shards.of(transport, ends, self.shards)
    }

    /// How many shards there are.
    #[must_use]
    pub const fn shards(&self) -> u16 {
        self.shards
    }

    /// The shard of a flow: that of its hash, unless its local port is bound elsewhere.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, table: &BindingTable, transport: Transport, ends: &SteeringKey) -> u16 {
        table.shard_of(transport, ends, self.default_shard(transport, ends))
    }

    /// The shard of a fast-parsed frame, if its local port has no rows: then it is the default
    /// shard.
    #[must_use]
    #[inline]
    pub fn default_shard_of(&self, table: &BindingTable, parsed: FastParsed) -> Option<u16> {
        let has_rows = table.has_rows(parsed.transport, parsed.dst.port());
        (!has_rows).then(|| self.default_shards.of_fast_parsed(parsed, self.shards))
    }

    /// The shard of a frame, as far as its headers decide; fragments with a first are
    /// [`Fragments`]' matter. Marks in `used`, by the table's rows, by which connections begin.
    #[must_use]
    #[inline]
    pub fn destination(
        &self,
        table: &BindingTable,
        used: &mut [bool],
        reading: &Classified,
    ) -> (Destination, Note) {
        match reading {
            Classified::Flow { transport, ends, begins } => {
                let home = self.default_shard(*transport, ends);
                match table.row_of(*transport, ends) {
                    None => (Destination::Shard(home), NOTHING),
                    Some(row) => by_row(table, used, (row, home, *begins)),
                }
            }
            Classified::Hosts(ends) => {
                (Destination::Shard(self.default_shard(Transport::Tcp, ends)), NOTHING)
            }
            Classified::Everyone => (Destination::Everyone, NOTHING),
            Classified::Anyone | Classified::First(..) | Classified::Later(_) => {
                (Destination::Anyone, NOTHING)
            }
        }
    }

    /// Another shard than `shard` that had the home of a flow before, from number `back` of those
    /// on, and the note for it: it goes on looking from there.
    #[must_use]
    pub fn former(
        &self,
        table: &BindingTable,
        (transport, ends): (Transport, &SteeringKey),
        shard: u16,
        back: usize,
    ) -> Option<(u16, Note)> {
        let home = self.default_shard(transport, ends);
        let rows =
            (back..).map_while(|back| Some((table.before(transport, ends, home, back)?, back)));
        let mut others = rows.filter(|(former, _)| *former != shard);
        others.next().map(|(former, back)| (former, PAST + back as Note + 1))
    }
}

/// Where a row puts a packet of a home.
fn by_row(
    table: &BindingTable,
    used: &mut [bool],
    (row, home, begins): (usize, u16, bool),
) -> (Destination, Note) {
    let served = table.taker(row, home);
    if begins && let Some(used) = used.get_mut(row) {
        *used = true;
    }
    let note = match (begins, served.refuses) {
        (true, true) => REFUSED,
        (false, _) if table.has_past(row, home) => PAST,
        _ => NOTHING,
    };
    (Destination::Shard(served.shard), note)
}

#[cfg(test)]
mod tests;
