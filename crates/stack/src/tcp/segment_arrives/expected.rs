//! The way of the segment that everybody expects: the next bytes of an established connection, an
//! acknowledgment, or both.
//!
//! Read first: RFC 9293 §3.10.7.4; Jacobson, "4BSD Header Prediction", 1990. `mod.rs` beside this
//! is the full way. What is said there about a segment is said here about the only kind that comes
//! in: each check below either passes, or sends the segment the full way with nothing changed.
//!
//! ```text
//!   frame ─> usual headers? ─> for us? ─> whose flow? ─> expected? ─> copy and sum ─> take
//!              │ no              │ no        │ no           │ no          │ no room     │
//!              └─────────────────┴───────────┴──────────────┴─────────────┴──> full way │
//!                                                          wrong checksum: dropped <────┘
//! ```
//!
//! Invariants
//! - Both ways leave the same state, the same counters and the same answers: a test runs every kind
//!   of segment through a stack that has this way and through one that has not.
//! - Nothing is changed before the checksum is known to be right, but for the bytes behind those
//!   that wait in a buffer of ours, which nobody reads.

use super::*;
use crate::flow_table::Flow;
use crate::frame::{Checksums, Received};
use crate::tcp::receive_queue::{Staged, Store};
use crate::tcp::segment_arrives::ack::Said;
use crate::tcp::settle::touch;
use crate::tcp::{Tcp, events};
use crate::wire::usual::Usual;

/// Facts that have more to say about a segment than is said here.
const UNUSUAL: Facts = Facts::ORPHAN
    .or(Facts::WAITS_FOR_ACCEPT)
    .or(Facts::PERSIST)
    .or(Facts::PURE_ACK)
    .or(Facts::RCV_FIN)
    .or(Facts::RELEASED);

impl Tcp {
    /// Takes `segment`, if it is expected.
    ///
    /// # Errors
    /// It goes the full way, nothing happened. The hash of its flow, if that was needed.
    #[inline(always)]
    pub(crate) fn on_expected<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        segment: &Usual<'_>,
        received: Received,
    ) -> Result<(), Option<u32>> {
        if segment.flags.contains(Flags::FIN) {
            return Err(None);
        }
        let (index, hash) = self.find_expected(segment)?;
        let Self { connections, shard, .. } = self;
        let Some(conn) = connections.get_mut(index as usize) else { return Err(hash) };
        if !is_expected(conn, segment) || !cx.ip.may_come_from(segment.src, conn.cold.hop) {
            return Err(hash);
        }
        let mut store = Store { nodes: &mut shard.nodes, memory: cx.memory, pool: conn.cold.pool };
        let staged = match segment.payload {
            [] => None,
            bytes => match conn.receive.stage(&mut store, bytes) {
                Some(staged) => Some(staged),
                None => return Err(hash),
            },
        };
        cx.counters.totals.segments_in += 1;
        let sum = staged.as_ref().map_or(0, |(_, sum)| *sum);
        if received.checksums == Checksums::Unverified && !segment.sum.is_right_with(sum) {
            // MUST-3.
            cx.counters.drop(Drop::BadTransportChecksum);
            if let Some((staged, _)) = staged {
                staged.discard(cx.memory);
            }
            return Ok(());
        }
        take_head(conn, shard, cx, segment);
        if let Some((staged, _)) = staged {
            take_text(conn, shard, cx, &staged, &text_of(segment, received));
        }
        shard.now = cx.now;
        touch(conn, shard, index);
        if events::has_news_of_text(conn) {
            shard.events.put(index);
        }
        Ok(())
    }

    /// The connection that `segment` is of, and the hash of its flow if that was needed.
    #[inline(always)]
    fn find_expected(&mut self, segment: &Usual<'_>) -> Result<(u32, Option<u32>), Option<u32>> {
        let flow = Flow {
            local: segment.dst,
            remote: segment.src,
            local_port: segment.dst_port,
            remote_port: segment.src_port,
        };
        // Segments come in trains (Jain and Routhier, 1986): the next is often of the same flow.
        let Some(last) = self.connections.get(self.last as usize) else { return Err(None) };
        if self.shard.locals.is(&last.ends, &flow) && !last.facts.has(Facts::RELEASED) {
            return Ok((self.last, None));
        }
        self.look_up_expected(flow)
    }

    #[inline(never)]
    fn look_up_expected(&mut self, flow: Flow) -> Result<(u32, Option<u32>), Option<u32>> {
        let Self { connections, shard, last, .. } = self;
        // Entries beyond the connections are of embryonic ones and of those in TIME-WAIT.
        let locals = &shard.locals;
        let is_it = |entry: u32| {
            connections.get(entry as usize).is_some_and(|conn| locals.is(&conn.ends, &flow))
        };
        let hash = shard.flows.hash(&flow);
        *last = shard.flows.find(hash, is_it).ok_or(Some(hash))?;
        Ok((*last, Some(hash)))
    }
}

/// The connection expects exactly this segment, and nothing else is going on.
#[inline(always)]
fn is_expected(conn: &Connection, segment: &Usual<'_>) -> bool {
    let room = conn.rcv_wnd() as usize;
    let (una, nxt) = (conn.snd_una, conn.snd_nxt);
    let has_times = segment.times.is_some();
    matches!(conn.state, State::Established(_))
        && !conn.facts.any(UNUSUAL)
        && !conn.receive.has_gap()
        // §3.10.7.4 first: the next number, and all of it within the window.
        && segment.seq == conn.rcv_nxt
        && segment.payload.len() <= room
        // Fifth: something in flight, or again what was acknowledged last; and no older window.
        && segment.ack.since(una) <= nxt.since(una)
        && !segment.seq.before(conn.snd_wl1)
        // RFC 7323 §3.2 and §5.3: on every segment or on none, and none from the past.
        && has_times == conn.facts.has(Facts::TIMESTAMPS)
        && segment.times.is_none_or(|times| times.value.wrapping_sub(conn.ts_recent) as i32 >= 0)
}

/// What `heard` and `ack::on_ack` do about it.
#[inline(always)]
fn take_head<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    segment: &Usual<'_>,
) {
    conn.cold.tally.segments_in = conn.cold.tally.segments_in.wrapping_add(1);
    conn.cold.heard_at = Stamp::of(cx.now);
    if conn.flight() == 0 {
        conn.attempts = 0;
    }
    if let Some(times) = segment.times
        && segment.seq.at_or_before(conn.last_ack_sent)
    {
        conn.ts_recent = times.value;
        conn.cold.ts_recent_at = CoarseStamp::of(cx.now);
    }
    let window_changed = ack::update_window(conn, segment.seq, segment.ack, segment.window);
    if !ack::acknowledge_plainly(conn, shard, cx, segment.ack, window_changed) {
        let said = Said {
            ack: segment.ack,
            times: segment.times,
            sack: &[],
            ece: false,
            has_payload: !segment.payload.is_empty(),
        };
        ack::acknowledge_any(conn, shard, cx, &said, window_changed);
    }
}

#[inline(always)]
fn text_of(segment: &Usual<'_>, received: Received) -> window::Text {
    window::Text {
        bytes: segment.payload.len() as u16,
        segment_bytes: received.segment_bytes,
        times: segment.times,
    }
}

/// What `text::on_text` does about it.
#[inline(always)]
fn take_text<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    staged: &Staged,
    text: &window::Text,
) {
    let taken = conn.receive.take_staged(&mut shard.nodes, staged);
    conn.rcv_nxt += taken;
    conn.cold.tally.bytes_in.add(taken);
    cx.counters.totals.bytes_in += u64::from(taken);
    window::on_received(conn, shard, cx, text, taken);
}
