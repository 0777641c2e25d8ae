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
use crate::tcp::receive_queue::{ReceiveQueue, Store};
use crate::tcp::segment_arrives::ack::Said;
use crate::tcp::settle::{touch, touch_and_tell};
use crate::tcp::{Tcp, Train, events};
use crate::time::Instant;
use crate::wire::usual::template::Template;
use crate::wire::usual::{Content, Sum, Usual};

/// Facts that have more to say about a segment than is said here.
const UNUSUAL: Facts = Facts::ORPHAN
    .or(Facts::WAITS_FOR_ACCEPT)
    .or(Facts::PERSIST)
    .or(Facts::TAIL_PROBE_DUE)
    .or(Facts::PURE_ACK)
    .or(Facts::RCV_FIN)
    .or(Facts::RELEASED);

impl Tcp {
    /// Takes `packet`, if it is of the train that is passing, and expected. `false`: it goes
    /// another way, nothing happened.
    #[inline(always)]
    pub(crate) fn on_next<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        packet: &[u8],
        received: Received,
    ) -> bool {
        let Self { connections, shard, train, .. } = self;
        let Some(content) = train.template.read(packet) else { return false };
        let Some(conn) = connections.get_mut(train.index as usize) else { return false };
        take(conn, (shard, train.index), cx, &content, received).is_some()
    }

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
        let Self { connections, shard, train, .. } = self;
        let Some(conn) = connections.get_mut(index as usize) else { return Err(hash) };
        if !cx.ip.may_come_from(segment.src, conn.cold.hop) {
            return Err(hash);
        }
        take(conn, (shard, index), cx, &segment.content, received).ok_or(hash)?;
        if let Some(template) = Template::of(segment) {
            *train = Train { template, index };
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
        // The next is often of the same flow.
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

/// Takes a segment of `conn`, which has `index`, if it is expected. `None`: it is not, or there is
/// no room for it; nothing happened.
#[inline(always)]
fn take<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    cx: &mut Cx<'_, M>,
    content: &Content<'_>,
    received: Received,
) -> Option<()> {
    if !is_expected(conn, content) {
        return None;
    }
    let bytes = content.payload;
    if conn.receive.ready_bytes() != 0 {
        core::hint::cold_path();
        let Content { ack, window, times, sum, .. } = *content;
        let behind = Behind { text: (bytes, sum), head: (ack, window), times, received };
        return take_behind(conn, (shard, index), &mut cx.again(), behind);
    }
    let mut staged = None;
    if !bytes.is_empty() {
        let mut store = Store { nodes: &mut shard.nodes, memory: cx.memory, pool: conn.cold.pool };
        staged = Some(ReceiveQueue::stage_alone(&mut store, bytes)?);
    }
    let sum = staged.map_or(0, |(_, sum)| sum);
    if !is_right(cx, content, received, sum) {
        if let Some((chunk, _)) = staged {
            cx.memory.free(chunk.buf);
        }
        return Some(());
    }
    let window_changed = take_head(conn, cx, content);
    if let Some((chunk, _)) = staged {
        conn.receive.adopt_first(chunk);
        take_text(conn, cx, chunk.len, &text_of(content, received));
    }
    finish(conn, (shard, index), cx, content, window_changed);
    Some(())
}

/// The content of a segment where some text waits already. (Not a [`Content`], which
/// would have to be in memory for all that are taken before it is known that one is this.)
struct Behind<'a> {
    text: (&'a [u8], Sum),
    /// Acknowledgment and window.
    head: (SeqNum, u16),
    times: Option<Timestamps>,
    received: Received,
}

/// The same of such a segment.
#[inline(never)]
fn take_behind<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    cx: &mut Cx<'_, M>,
    behind: Behind<'_>,
) -> Option<()> {
    let Behind { text: (payload, sum), head: (ack, window), times, received } = behind;
    let content = &Content { seq: conn.rcv_nxt, ack, window, times, payload, sum };
    let mut store = Store { nodes: &mut shard.nodes, memory: cx.memory, pool: conn.cold.pool };
    let (staged, sum) = conn.receive.stage(&mut store, content.payload)?;
    if !is_right(cx, content, received, sum) {
        staged.discard(cx.memory);
        return Some(());
    }
    let window_changed = take_head(conn, cx, content);
    // As on the full way, since both are about the shard's nodes.
    if ack::is_of_answer(conn, content.ack) {
        ack::count_chunk(conn);
        take_answered(conn, shard, cx, content.ack);
    } else {
        take_ack(conn, shard, cx, content, window_changed);
    }
    if !payload.is_empty() {
        let taken = conn.receive.take_staged(&mut shard.nodes, &staged);
        take_text(conn, cx, taken, &text_of(content, received));
    }
    look_after(conn, shard, (cx.now, index), !payload.is_empty());
    Some(())
}

/// Counts a segment, and whether it has its right checksum (MUST-3); `sum`: of its payload.
#[inline(always)]
fn is_right<M>(cx: &mut Cx<'_, M>, content: &Content<'_>, received: Received, sum: u16) -> bool {
    cx.counters.totals.segments_in += 1;
    let is_right = received.checksums == Checksums::Verified || content.sum.is_right_with(sum);
    if !is_right {
        cx.counters.drop(Drop::BadTransportChecksum);
    }
    is_right
}

/// What `settle` does.
#[inline(always)]
fn look_after(
    conn: &mut Connection,
    shard: &mut Shard,
    (now, index): (Instant, u32),
    has_text: bool,
) {
    shard.now = now;
    if conn.facts.has(Facts::TOUCHED) {
        events::announce_again(conn, shard, index);
    } else if (has_text && conn.facts.has(Facts::CREDIT)) || events::has_news_of_text(conn) {
        touch_and_tell(conn, shard, index);
    } else {
        touch(conn, shard, index);
    }
}

/// The connection expects exactly this segment, and nothing else is going on.
#[inline(always)]
fn is_expected(conn: &Connection, content: &Content<'_>) -> bool {
    let (una, nxt) = (conn.snd_una, conn.snd_nxt);
    // RFC 7323 §3.2: on every segment or on none.
    let wanted = if content.times.is_some() { Facts::TIMESTAMPS } else { Facts::default() };
    matches!(conn.state, State::Established(_))
        && conn.facts.of(UNUSUAL.or(Facts::TIMESTAMPS)) == wanted
        && !conn.receive.has_gap()
        // §3.10.7.4 first: the next number, and all of it within the window.
        && content.seq == conn.rcv_nxt
        && content.payload.len() <= conn.rcv_wnd() as usize
        // Fifth: something in flight, or again what was acknowledged last; and no older window.
        && content.ack.since(una) <= nxt.since(una)
        && !content.seq.before(conn.snd_wl1)
        // RFC 7323 §5.3: none from the past.
        && content.times.is_none_or(|times| times.value.wrapping_sub(conn.ts_recent) as i32 >= 0)
}

/// What `heard` does about it, and `ack::on_ack` about its window: whether that changed.
#[inline(always)]
fn take_head<M>(conn: &mut Connection, cx: &Cx<'_, M>, content: &Content<'_>) -> bool {
    conn.cold.tally.segments_in = conn.cold.tally.segments_in.wrapping_add(1);
    conn.cold.heard_at = Stamp::of(cx.now);
    if let Some(times) = content.times
        && conn.rcv_nxt.at_or_before(conn.last_ack_sent)
    {
        conn.ts_recent = times.value;
        conn.cold.ts_recent_at = CoarseStamp::of(cx.now);
    }
    // Whatever it says, it answers our probes (MUST-37).
    conn.attempts = 0;
    // It begins at rcv.nxt.
    ack::set_window(conn, conn.rcv_nxt, content.window)
}

/// What `ack::on_ack` does about its acknowledgment, and `settle` about all of it. Where no text
/// waits, text and acknowledgment have nothing to do with each other: the latter comes last, since
/// nothing else of the segment is needed then, and it has all registers.
#[inline(always)]
fn finish<M: Memory>(
    conn: &mut Connection,
    (shard, index): (&mut Shard, u32),
    cx: &mut Cx<'_, M>,
    content: &Content<'_>,
    window_changed: bool,
) {
    let has_text = !content.payload.is_empty();
    if !ack::is_of_answer(conn, content.ack) {
        take_ack(conn, shard, cx, content, window_changed);
        return look_after(conn, shard, (cx.now, index), has_text);
    }
    // Of all that the acknowledgment does, this alone may be news.
    ack::count_chunk(conn);
    look_after(conn, shard, (cx.now, index), has_text);
    take_answered(conn, shard, cx, content.ack);
}

/// All that is in flight is acknowledged, one answer: what that does, but that it is counted.
#[inline(always)]
fn take_answered<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    ack: SeqNum,
) {
    if cx.ip.has_neighbours() {
        cx.ip.confirm(cx.now, conn.cold.hop);
    }
    ack::acknowledge_answer(conn, shard, cx.memory, cx.now, ack);
}

/// What any other acknowledgment does.
#[inline(always)]
fn take_ack<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    content: &Content<'_>,
    window_changed: bool,
) {
    if conn.flight() == 0 {
        return;
    }
    let Content { ack, times, payload, .. } = *content;
    let has_payload = !payload.is_empty();
    let said = Said { ack, times, sack: &[], ece: false, has_payload };
    ack::acknowledge_more(conn, shard, &mut cx.again(), &said, window_changed);
}

#[inline(always)]
const fn text_of(content: &Content<'_>, received: Received) -> window::Text {
    window::Text {
        bytes: content.payload.len() as u32,
        segment_bytes: received.segment_bytes,
        times: content.times,
    }
}

/// What `text::on_text` does about `taken` bytes of it.
#[inline(always)]
fn take_text<M: Memory>(
    conn: &mut Connection,
    cx: &mut Cx<'_, M>,
    taken: u32,
    text: &window::Text,
) {
    conn.rcv_nxt += taken;
    conn.cold.tally.bytes_in.add(taken);
    cx.counters.totals.bytes_in += u64::from(taken);
    window::on_received(conn, cx, text, taken);
}
