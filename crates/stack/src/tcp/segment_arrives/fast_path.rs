//! Fast path for in-order segments (header prediction): the next bytes of an established
//! connection, an acknowledgment, or both.
//!
//! Read first: RFC 9293 §3.10.7.4; Jacobson, "4BSD Header Prediction", 1990. `mod.rs` in this
//! folder is the slow path. Each check below either passes, or sends the segment to the slow path
//! with nothing changed.
//!
//! Gain (`examples/segment_cost.rs`, instructions from the frame to the event): 64 bytes take 295
//! instead of 2,015 over IPv4 with timestamps, 309 without them, 293 and 304 over IPv6.
//!
//! ```text
//!   frame ─> usual headers? ─> for us? ─> whose flow? ─> expected? ─> copy and sum ─> take
//!              │ no              │ no        │ no           │ no          │ no room     │
//!              └─────────────────┴───────────┴──────────────┴─────────────┴─> slow path │
//!                                                          wrong checksum: dropped <────┘
//! ```
//!
//! Invariants
//! - Fast and slow path lead to the same state, counters and answers: a test runs every kind of
//!   segment through a stack with the fast path and one without.
//! - Nothing changes before the checksum has been verified, except unused bytes behind the queued
//!   ones in a receive buffer.

use super::*;
use crate::flow_table::Flow;
use crate::frame::{Checksums, Received};
use crate::tcp::dirty_list::{mark_dirty, mark_dirty_with_news};
use crate::tcp::receive_queue::{ReceiveQueue, Store};
use crate::tcp::segment_arrives::ack::Said;
use crate::tcp::{Found, Lookup, Tcp, events};
use crate::time::Instant;
use crate::wire::fast_path::template::Template;
use crate::wire::fast_path::{Content, FastSegment};

/// Flags of a connection whose segments need the slow path.
const UNUSUAL: ConnFlags = ConnFlags::ORPHAN
    .or(ConnFlags::WAITS_FOR_ACCEPT)
    .or(ConnFlags::PERSIST)
    .or(ConnFlags::TAIL_PROBE_DUE)
    .or(ConnFlags::PURE_ACK)
    .or(ConnFlags::RCV_FIN)
    .or(ConnFlags::RELEASED);

impl Tcp {
    /// The headers of the next segment of the train that is passing.
    #[inline(always)]
    pub(crate) const fn next_template(&self) -> &Template {
        &self.train.template
    }

    /// Takes `segment`, which [`Template::segment_in`] has found, if TCP's header has so many bytes
    /// and it is expected. `false`: it goes another way, nothing happened.
    #[inline(always)]
    pub(crate) fn on_next<const HEADER_BYTES: usize>(
        &mut self,
        context: &mut Context<'_, impl Memory>,
        segment: &[u8],
        received: Received,
    ) -> bool {
        let Self { connections, shard, train, .. } = self;
        let Some(content) = train.template.read::<HEADER_BYTES>(segment) else { return false };
        let Some(conn) = connections.get_mut(train.index as usize) else { return false };
        take(conn, (shard, train.index), context, (&content, false), received).is_some()
    }

    /// Takes `segment`, which [`crate::ip::Ip::lets_in`] lets in, if it is expected.
    ///
    /// # Errors
    /// It goes the slow path, nothing happened; what was found of its flow.
    #[inline(always)]
    pub(crate) fn on_fast_segment<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        segment: &FastSegment<'_>,
        received: Received,
    ) -> Result<(), Lookup> {
        let flow = Flow {
            local: segment.dst,
            remote: segment.src,
            local_port: segment.dst_port,
            remote_port: segment.src_port,
        };
        // The next is often of the same flow.
        if !self.is_of_last(&flow) {
            // Or the end of the handshake that began last.
            if let Some(index) = self.half_open.newest_of(&flow) {
                let hash = self.half_open.get(index).hash;
                return Err(Lookup { hash, found: Some(Found::HalfOpen(index)) });
            }
            let lookup = self.look_up(&flow);
            let Some(Found::Connection(index)) = lookup.found else { return Err(lookup) };
            self.last = index;
        }
        let index = self.last;
        let Self { connections, shard, train, .. } = self;
        let conn = &mut connections[index as usize];
        let found = Some(Found::Connection(index));
        let has_fin = segment.flags.contains(Flags::FIN);
        let content = &segment.content;
        if take(conn, (shard, index), context, (content, has_fin), received).is_none() {
            return Err(Lookup { hash: conn.hash, found });
        }
        train.note(segment, index);
        Ok(())
    }
}

/// Takes a segment of `conn`, which has `index`, if it is expected. `None`: it is not, or there is
/// no room for it; nothing happened.
#[inline(always)]
fn take<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    context: &mut Context<'_, M>,
    (content, has_fin): (&Content<'_>, bool),
    received: Received,
) -> Option<()> {
    if !is_next_in_order(conn, content) {
        return None;
    }
    if conn.receive.queue.ready_bytes() != 0 {
        core::hint::cold_path();
        if has_fin {
            return None;
        }
        return take_behind(conn, (shard, index), &mut context.again(), (*content, received));
    }
    // With instructions of its own: together, both kinds would be asked four times which they are.
    if content.payload.is_empty() {
        core::hint::cold_path();
        if is_right(context, content, received, 0) {
            let window_changed = take_head(conn, context, content);
            finish_any(conn, (shard, index), context, (content, has_fin), window_changed);
        }
        return Some(());
    }
    let mut store = Store { nodes: &mut shard.nodes, memory: context.memory, pool: conn.cold.pool };
    let (chunk, sum) = ReceiveQueue::stage_in_new_buffer(&mut store, content.payload)?;
    if !is_right(context, content, received, sum) {
        context.memory.free(chunk.buf);
        return Some(());
    }
    let window_changed = take_head(conn, context, content);
    conn.receive.queue.adopt_first(chunk);
    take_text(conn, context, chunk.len, &text_of(content, received));
    finish_any(conn, (shard, index), context, (content, has_fin), window_changed);
    Some(())
}

/// The rest of both kinds.
#[inline(always)]
fn finish_any<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    context: &mut Context<'_, M>,
    (content, has_fin): (&Content<'_>, bool),
    window_changed: bool,
) {
    if has_fin {
        finish_with_fin(conn, (shard, index), context, content, window_changed);
    } else {
        finish(conn, (shard, index), context, content, window_changed);
    }
}

/// The same of a segment where some text waits already. (It gets a copy of the content, which
/// otherwise would have to be in memory for all segments, before it is known that one is this.)
#[inline(never)]
fn take_behind<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    context: &mut Context<'_, M>,
    (content, received): (Content<'_>, Received),
) -> Option<()> {
    let content = &content;
    let mut store = Store { nodes: &mut shard.nodes, memory: context.memory, pool: conn.cold.pool };
    let (staged, sum) = conn.receive.queue.stage(&mut store, content.payload)?;
    if !is_right(context, content, received, sum) {
        staged.discard(context.memory);
        return Some(());
    }
    let window_changed = take_head(conn, context, content);
    // As on the slow path, since both are about the shard's nodes.
    if ack::is_of_answer(conn, content.ack()) {
        ack::count_chunk(conn);
        take_answered(conn, shard, context, content.ack());
    } else {
        take_ack(conn, shard, context, content, window_changed);
    }
    let has_text = !content.payload.is_empty();
    if has_text {
        let taken = conn.receive.queue.take_staged(&mut shard.nodes, &staged);
        take_text(conn, context, taken, &text_of(content, received));
    }
    look_after(conn, shard, (context.now, index), has_text);
    Some(())
}

/// Counts a segment, and whether it has its right checksum (MUST-3); `sum`: of its payload.
#[inline(always)]
fn is_right<M>(
    context: &mut Context<'_, M>,
    content: &Content<'_>,
    received: Received,
    sum: u16,
) -> bool {
    context.base.counters.totals.segments_in += 1;
    let is_right = received.checksums != Checksums::Unverified || content.sum.is_right_with(sum);
    if !is_right {
        context.base.counters.drop(Drop::BadTransportChecksum);
    }
    is_right
}

/// What `schedule` does.
#[inline(always)]
fn look_after(
    conn: &mut Connection,
    shard: &mut Shard,
    (now, index): (Instant, u32),
    has_text: bool,
) {
    shard.now = now;
    if conn.flags.has(ConnFlags::DIRTY) {
        core::hint::cold_path();
        events::announce_again(conn, shard, index);
    } else if (has_text && conn.flags.has(ConnFlags::CREDIT)) || events::has_news_of_text(conn) {
        mark_dirty_with_news(conn, shard, index);
    } else {
        mark_dirty(conn, shard, index);
    }
}

/// The connection expects exactly this segment, and nothing else is going on.
#[inline(always)]
fn is_next_in_order(conn: &Connection, content: &Content<'_>) -> bool {
    let (una, nxt) = (conn.send.una, conn.send.nxt);
    // RFC 7323 §3.2: on every segment or on none.
    let wanted = if content.has_times() { ConnFlags::TIMESTAMPS } else { ConnFlags::default() };
    matches!(conn.state, State::Established(_))
        && conn.flags.of(UNUSUAL.or(ConnFlags::TIMESTAMPS)) == wanted
        && !conn.receive.queue.has_gap()
        // §3.10.7.4 first: the next number, and all of it within the window.
        && content.seq() == conn.receive.nxt
        && content.payload.len() <= conn.receive.wnd() as usize
        // Fifth: something in flight, or again what was acknowledged last; and no older window.
        && content.ack().since(una) <= nxt.since(una)
        && !content.seq().before(conn.send.wl1)
        // RFC 7323 §5.3: none from the past.
        && content.times().is_none_or(|times| {
            times.value.wrapping_sub(conn.receive.ts_recent) as i32 >= 0
        })
}

/// What `heard` does about it, and `ack::on_ack` about its window: whether that changed.
#[inline(always)]
fn take_head<M>(conn: &mut Connection, context: &Context<'_, M>, content: &Content<'_>) -> bool {
    conn.cold.accounting.count_segment_in();
    conn.cold.timers.hear(context.now);
    if let Some(times) = content.times()
        && !conn.receive.last_ack_sent.before(conn.receive.nxt)
    {
        conn.receive.ts_recent = times.value;
        conn.cold.ts_recent_at = CoarseStamp::of(context.now);
    }
    // Whatever it says, it answers our probes (MUST-37).
    conn.attempts = 0;
    // It begins at rcv.nxt.
    ack::set_window(conn, conn.receive.nxt, content.window())
}

/// What `ack::on_ack` does about its acknowledgment, and `schedule` about all of it. Where no text
/// waits, text and acknowledgment have nothing to do with each other: the latter comes last, since
/// nothing else of the segment is needed then, and it has all registers.
#[inline(always)]
fn finish<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    context: &mut Context<'_, M>,
    content: &Content<'_>,
    window_changed: bool,
) {
    let has_text = !content.payload.is_empty();
    if !ack::is_of_answer(conn, content.ack()) {
        take_ack(conn, shard, context, content, window_changed);
        return look_after(conn, shard, (context.now, index), has_text);
    }
    // Of all that the acknowledgment does, this alone may be news.
    ack::count_chunk(conn);
    look_after(conn, shard, (context.now, index), has_text);
    take_answered(conn, shard, context, content.ack());
}

/// The same of a segment with a FIN.
#[inline(never)]
fn finish_with_fin<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    context: &mut Context<'_, M>,
    content: &Content<'_>,
    window_changed: bool,
) {
    if ack::is_of_answer(conn, content.ack()) {
        ack::count_chunk(conn);
        take_answered(conn, shard, context, content.ack());
    } else if conn.send.flight() > 0 {
        let (ack, times) = (content.ack(), content.times());
        let said = Said { ack, times, sack: &[], ece: false, has_payload: true };
        ack::acknowledge_more(conn, shard, context, &said, window_changed);
    }
    text::take_fin(conn, shard, context);
    shard.now = context.now;
    if conn.flags.has(ConnFlags::DIRTY) {
        events::announce_again(conn, shard, index);
    } else if events::has_news(conn) {
        mark_dirty_with_news(conn, shard, index);
    } else {
        mark_dirty(conn, shard, index);
    }
}

/// All that is in flight is acknowledged, one answer: what that does, but that it is counted.
#[inline(always)]
fn take_answered<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    ack: SeqNum,
) {
    if context.base.ip.has_neighbours() {
        context.base.ip.confirm(context.now, conn.cold.hop);
    }
    ack::acknowledge_answer(conn, shard, context.memory, context.now, ack);
}

/// What any other acknowledgment does.
#[inline(always)]
fn take_ack<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    content: &Content<'_>,
    window_changed: bool,
) {
    let has_payload = !content.payload.is_empty();
    // With nothing in flight, only a duplicate that a tail loss probe brought is news.
    if conn.send.flight() == 0 && (has_payload || !conn.cold.recovery.is_probing()) {
        return;
    }
    core::hint::cold_path();
    let (ack, times) = (content.ack(), content.times());
    let said = Said { ack, times, sack: &[], ece: false, has_payload };
    ack::acknowledge_more(conn, shard, &mut context.again(), &said, window_changed);
}

#[inline(always)]
fn text_of(content: &Content<'_>, received: Received) -> window::Text {
    window::Text {
        bytes: content.payload.len() as u32,
        segment_bytes: received.segment_bytes,
        times: content.times(),
    }
}

/// What `text::on_text` does about `taken` bytes of it.
#[inline(always)]
pub(super) fn take_text<M: Memory>(
    conn: &mut Connection,
    context: &mut Context<'_, M>,
    taken: u32,
    text: &window::Text,
) {
    conn.receive.nxt += taken;
    conn.cold.accounting.count_bytes_in(taken);
    context.base.counters.totals.bytes_in += u64::from(taken);
    window::on_received(conn, context, text, taken);
}
