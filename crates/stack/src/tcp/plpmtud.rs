//! Path MTU probing: enlarges segments again after a reduction (similar to RFC 4821).
//!
//! Read first: RFC 4821 §7 (probing with the stream's own bytes); `timers.rs`, which makes segments
//! smaller where they vanish; `icmp.rs`, which does so where a router asks for it.
//!
//! Segments shrink because of an outage as well, or because of a way that is no longer taken. So
//! now and then one leaves that is larger than the others, the probe, with more behind it, so that
//! its loss shows soon. If all of it is acknowledged and nothing of it was sent again, its size is
//! what segments have from then on. If it is all that had to be sent again, so large a segment does
//! not get through, and the next probe is halfway between. If other segments were lost too, it
//! shows nothing, and is tried again. A probe that is lost counts as a loss, as any other segment.
//!
//! Invariants
//! - A connection has one probe on its way at most, and none while anything is missing.
//! - Only a connection that has a [`Rare`](super::connection::Rare) searches: nothing here runs on
//!   the fast path.

use super::Shard;
use super::connection::Connection;
use super::handshake::mss_of;
use super::send_queue::Data;
use crate::context::Context;
use crate::seq::SeqRange;

/// What a probe that is wanted says about the next new bytes.
pub(super) enum Next {
    /// They leave as always.
    AsAlways,
    /// They are the probe: so many bytes.
    Probe(u32),
    /// They wait until there is room for the probe.
    Wait,
}

/// Whether the next new bytes are a probe. `allowance`: what congestion allows.
pub(super) fn next(conn: &Connection, shard: &Shard, allowance: u32) -> Next {
    let wanted = shard.rares.get(conn).map_or(0, |rare| u32::from(rare.search.wanted));
    if wanted == 0 || !conn.cold.recovery.is_calm(&shard.records) {
        return Next::AsAlways;
    }
    // What follows the probe brings the ACKs that show whether it is missing.
    let all = wanted + u32::from(conn.mss);
    if conn.unsent() < all || conn.send.window_room() < all {
        return Next::AsAlways;
    }
    match allowance >= wanted {
        true => Next::Probe(wanted),
        false if conn.send.flight() > 0 => Next::Wait,
        false => Next::AsAlways,
    }
}

/// Looks after the search before new bytes leave: a probe that got through is believed, and one
/// that is due is planned.
pub(super) fn look<M>(conn: &mut Connection, shard: &mut Shard, context: &Context<'_, M>) {
    let Some(rare) = shard.rares.get_mut(conn) else { return };
    if !rare.search.at.is_set() {
        return;
    }
    let larger = rare.search.outcome(conn.send.una, context.now);
    let room = mss_of(context.base.ip.payload_bytes_max(conn.ends.remote_address()));
    let most = conn.mss_within(room);
    let mss = larger.map_or(conn.mss, |larger| larger.min(most));
    rare.search.plan((mss, most), context.now);
    if mss > conn.mss {
        conn.mss = mss;
        conn.cold.recovery.set_mss(u32::from(mss));
    }
}

/// `data` leaves in one segment that is larger than others.
pub(super) fn is_probe(conn: &Connection, shard: &Shard, data: &Data) -> bool {
    let wanted = shard.rares.get(conn).map_or(0, |rare| u32::from(rare.search.wanted));
    wanted > 0 && data.is_new() && !data.fin && data.range.len() == wanted
}

/// The probe has left.
pub(super) fn note_probe(conn: &Connection, shard: &mut Shard, range: SeqRange) {
    if let Some(rare) = shard.rares.get_mut(conn) {
        rare.search.note_probe(range.end);
    }
}
