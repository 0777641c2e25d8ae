//! Processing of the ACK field (RFC 9293 §3.10.7.4 fifth): acknowledged data and send window.
//!
//! Read first: RFC 5961 §5 for which ACKs are believed, RFC 5681 and 6675 through `recovery`.

use super::*;
use crate::tcp::deadline::Stamp;
use crate::tcp::isn::microseconds;
use crate::tcp::recovery::{Ack, Acked, Cover};
use crate::time::Instant;
use crate::wire::tcp::{SACK_BLOCKS_MAX, SackBlock, Timestamps};

/// Whether the ACK may be of this connection; one that cannot be is answered, and its segment says
/// nothing else either.
pub(super) fn is_believable<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) -> bool {
    if let State::SynReceived(_) = conn.state {
        // A segment that acknowledges anything else is of another connection.
        if segment.ack == conn.send.nxt {
            return true;
        }
        context.base.counters.drop(Drop::BadAck);
        if let Some(reply) = Reply::reset(segment) {
            queue_reset(shard, context, reply);
        }
        return false;
    }
    if conn.state.is_fast_open() {
        // RFC 7413 §4.2.2: our SYN at least, and nothing that was never sent.
        if segment.ack.at_or_after(conn.send.una) && segment.ack.at_or_before(conn.send.nxt) {
            return true;
        }
        context.base.counters.drop(Drop::BadAck);
        if let Some(reply) = Reply::reset(segment) {
            queue_reset(shard, context, reply);
        }
        return false;
    }
    // RFC 5961 §5.2: not of what was never sent, and not older than any window.
    let oldest = conn.send.una - conn.cold.snd_wnd_max;
    if segment.ack.after(conn.send.nxt) || segment.ack.before(oldest) {
        context.base.counters.drop(Drop::BadAck);
        challenge(conn, shard, context);
        return false;
    }
    true
}

/// Takes in acknowledgment and window. `false`: the segment is done with.
pub(super) fn on_ack<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) -> bool {
    if let State::SynReceived(SynReceived { passive }) = conn.state {
        on_established(conn, shard, context, segment);
        close::establish(conn, Input::AckOfSyn);
        if !passive {
            conn.flags.set(ConnFlags::CONNECTED);
        }
    }
    if conn.state.is_fast_open() {
        on_fast_open_established(conn, shard, context, segment);
    }
    if segment.ack.before(conn.send.una) {
        // Old, but of this connection: its text counts.
        return true;
    }
    let window_changed = update_window(conn, segment.seq, segment.ack, segment.window);
    let said = Said {
        ack: segment.ack,
        times: segment.options.timestamps,
        sack: segment.options.sack(),
        // With nothing in flight there is nothing to slow down for.
        ece: segment.has(Flags::ECE) && conn.send.flight() > 0,
        has_payload: segment.len() > 0,
    };
    let is_silent = said.sack.is_empty() && !said.ece;
    if !is_silent || !acknowledge_plainly(conn, shard, context, said.ack) {
        acknowledge_any(conn, shard, context, &said, window_changed);
    }
    !conn.state.is_closed()
}

/// What of a segment an acknowledgment is made of.
pub(in crate::tcp) struct Said<'a> {
    pub(in crate::tcp) ack: SeqNum,
    pub(in crate::tcp) times: Option<Timestamps>,
    pub(in crate::tcp) sack: &'a [SackBlock],
    pub(in crate::tcp) ece: bool,
    /// The segment takes sequence numbers: it is no duplicate ACK.
    pub(in crate::tcp) has_payload: bool,
}

/// The peer acknowledged our SYN.
#[inline(always)]
pub(super) fn on_established<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    conn.send.una = conn.send.nxt;
    conn.flags.clear(ConnFlags::SYN_DUE);
    conn.cold.small_end = conn.send.una;
    let sample = handshake_sample(conn, context, segment);
    conn.begin_recovery(&shard.records, context.now, sample);
    conn.attempts = 0;
    conn.cold.rtt_or_syn_at_us = 0;
    conn.cold.timers.stop_attending();
    if let Some(rare) = shard.rares.get_mut(conn) {
        rare.progress_at = Stamp::of(context.now);
        rare.snd_up = conn.send.una;
    }
    // §3.10.7.4: SND.WND, SND.WL1. A SYN-ACK's window is not scaled.
    let shift = if segment.has(Flags::SYN) { 0 } else { conn.snd_scale };
    conn.send.wnd = u32::from(segment.window) << shift;
    conn.send.wl1 = segment.seq;
    conn.cold.snd_wnd_max = conn.cold.snd_wnd_max.max(conn.send.wnd);
}

/// The SYN-ACK acknowledged `bytes` of data that our SYN carried; the rest of it was not sent.
#[inline(never)]
pub(super) fn on_data_of_syn<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    bytes: u32,
) {
    let to = conn.send.una + bytes;
    conn.send.nxt = to;
    advance_by(conn, shard, context, to, bytes);
}

/// The peer acknowledged the SYN of a connection that takes and sends data since the peer's SYN.
#[inline(never)]
fn on_fast_open_established<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    fast_open::leave(conn, shard, context.now, false);
    conn.flags.clear(ConnFlags::SYN_DUE);
    if conn.send.flight() == 0 {
        // Nothing was sent: the handshake is the first sample, as without Fast Open.
        let sample = handshake_sample(conn, context, segment);
        conn.begin_recovery(&shard.records, context.now, sample);
    }
    conn.attempts = 0;
    conn.cold.rtt_or_syn_at_us = 0;
    conn.cold.timers.stop_attending();
    close::establish(conn, Input::AckOfSyn);
}

/// Returns the round-trip time that the handshake shows, in microseconds.
///
/// RFC 6298 §2.2, with Karn's rule (§3): only a SYN sent once is a sample, unless its timestamp
/// says which one was answered. The first of the two is exact, an echo is good to a millisecond.
#[inline]
fn handshake_sample<M>(
    conn: &Connection,
    context: &Context<'_, M>,
    segment: &Segment<'_>,
) -> Option<u32> {
    let syn_at_us = conn.cold.rtt_or_syn_at_us;
    if syn_at_us == 0 {
        // Only a cookie keeps no time. The timestamp beside it holds options in its low bits.
        return None;
    }
    if conn.attempts == 0 {
        return Some(microseconds(context.now).wrapping_sub(syn_at_us));
    }
    let age = echo_age(conn, context, segment.options.timestamps)?;
    Some(u32::try_from(age.as_micros()).unwrap_or(u32::MAX))
}

/// §3.10.7.4: a window counts if it is not older than the last that did.
#[inline(always)]
pub(in crate::tcp) fn update_window(
    conn: &mut Connection,
    seq: SeqNum,
    ack: SeqNum,
    window: u16,
) -> bool {
    // An ACK that advances brings a window of its own even on an old segment, a retransmission: the
    // window that we know is counted from where the old ACK was.
    if seq.before(conn.send.wl1) && ack.at_or_before(conn.send.una) {
        return false;
    }
    let seq = conn.send.wl1.later(seq);
    set_window(conn, seq, window)
}

/// The same of a segment that is not older than the last that did.
#[inline(always)]
pub(in crate::tcp) fn set_window(conn: &mut Connection, seq: SeqNum, window: u16) -> bool {
    conn.send.wl1 = seq;
    let wnd = u32::from(window) << conn.snd_scale;
    let changed = wnd != conn.send.wnd;
    if changed {
        conn.send.wnd = wnd;
        // What did not change is not over the largest.
        conn.cold.snd_wnd_max = conn.cold.snd_wnd_max.max(wnd);
        if conn.send.flight() == 0 {
            core::hint::cold_path();
            answer_probe(conn);
        }
    }
    changed
}

/// Nothing is in flight, and the window changed: if it is open, nothing has to be probed for.
#[inline(never)]
const fn answer_probe(conn: &mut Connection) {
    if conn.send.wnd > 0 {
        conn.flags.clear(ConnFlags::PERSIST);
        conn.cold.timers.stop_attending();
    }
}

/// Takes in an acknowledgment without SACK, where nothing is in flight, or all of it is
/// acknowledged and there is no ECE; the window is known. `false`: it is not that, and nothing
/// happened.
#[inline(always)]
pub(in crate::tcp) fn acknowledge_plainly<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    ack: SeqNum,
) -> bool {
    // Whatever it says, it answers our probes (MUST-37).
    conn.attempts = 0;
    if conn.send.flight() == 0 {
        // The duplicate that a tail loss probe brought may come now (RFC 8985 §7.4.2).
        return !conn.cold.recovery.is_probing();
    }
    let cover = Cover { now: context.now, ack, nxt: conn.send.nxt };
    if conn.cold.recovery.on_plain_ack(&mut shard.records, cover).is_none() {
        return false;
    }
    advance(conn, shard, context, ack);
    true
}

/// The same of an acknowledgment of all that is in flight: one answer, in one small segment. It is
/// asked apart whether it is that, so that nothing that could follow has to be thought of here.
#[inline(always)]
pub(super) fn is_of_answer(conn: &Connection, ack: SeqNum) -> bool {
    let bytes = ack.since(conn.send.una);
    conn.cold.recovery.is_ended_by(ack, bytes)
        && !conn.cold.rare.is_some()
        && conn.send.queue.is_only(bytes)
}

/// One more chunk is acknowledged, whole.
#[inline(always)]
pub(super) const fn count_chunk(conn: &mut Connection) {
    conn.cold.accounting.count_acked_one();
}

/// Takes in what [`is_of_answer`] said is such a one; its chunk was counted.
#[inline(always)]
pub(super) fn acknowledge_answer<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    memory: &mut M,
    now: Instant,
    ack: SeqNum,
) {
    debug_assert!(
        !conn.flags.any(ConnFlags::FIN_SENT.or(ConnFlags::PERSIST).or(ConnFlags::TAIL_PROBE_DUE))
    );
    debug_assert!(ack == conn.send.nxt && conn.cold.small_end.at_or_before(ack), "all in flight");
    conn.send.una = ack;
    conn.cold.small_end = ack;
    window::grow_send_buffer(conn, shard.send_buffer_max);
    conn.cold.recovery.on_ended(&mut shard.records, now);
    memory.free(conn.send.queue.take_only());
}

/// Takes in an acknowledgment without SACK or ECE, where something is in flight.
#[inline(never)]
pub(super) fn acknowledge_more<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    said: &Said<'_>,
    window_changed: bool,
) {
    if !acknowledge_plainly(conn, shard, context, said.ack) {
        acknowledge_any(conn, shard, context, said, window_changed);
    }
}

/// The same where more is in flight, or more is said.
#[inline(never)]
pub(in crate::tcp) fn acknowledge_any<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    said: &Said<'_>,
    window_changed: bool,
) {
    let una = conn.send.una;
    let advanced = said.ack.since(una);
    let (blocks, count) = sack_ranges(conn, said.sack);
    let acked = conn.cold.recovery.on_ack(
        &mut shard.records,
        &Ack {
            now: context.now,
            ack: said.ack,
            una,
            nxt: conn.send.nxt,
            sack: &blocks[..count],
            echo_rtt: if advanced > 0 { echo_age(conn, context, said.times) } else { None },
            ece: said.ece && conn.flags.has(ConnFlags::ECN),
            window_changed,
            has_payload: said.has_payload,
            unsent: conn.unsent() > 0 && conn.send.window_room() > 0,
        },
    );
    note(conn, context, &acked);
    conn.attempts = 0;
    if advanced > 0 {
        advance(conn, shard, context, said.ack);
    }
}

/// The SACK blocks, if SACK was agreed on.
#[inline]
fn sack_ranges(conn: &Connection, blocks: &[SackBlock]) -> ([SeqRange; SACK_BLOCKS_MAX], usize) {
    let mut ranges = [SeqRange::default(); SACK_BLOCKS_MAX];
    if !conn.flags.has(ConnFlags::SACK) {
        return (ranges, 0);
    }
    for (range, block) in ranges.iter_mut().zip(blocks) {
        *range = SeqRange { start: block.start, end: block.end };
    }
    (ranges, blocks.len())
}

/// Counts what an acknowledgment did, and remembers to tell the peer of a smaller window.
fn note<M>(conn: &mut Connection, context: &mut Context<'_, M>, acked: &Acked) {
    context.base.counters.totals.recoveries += u64::from(acked.entered);
    context.base.counters.totals.spurious_retransmissions += u64::from(acked.dsack || acked.undone);
    if acked.cwr && conn.flags.has(ConnFlags::ECN) {
        conn.flags.set(ConnFlags::CWR_DUE);
    }
}

/// `snd.una` moves to `to`.
#[inline(always)]
fn advance<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    to: SeqNum,
) {
    if conn.flags.any(ConnFlags::FIN_SENT.or(ConnFlags::PERSIST).or(ConnFlags::TAIL_PROBE_DUE)) {
        return advance_from_trouble(conn, shard, &mut context.again(), to);
    }
    let bytes = to.since(conn.send.una);
    advance_by(conn, shard, context, to, bytes);
}

/// The same where our FIN may be among what is acknowledged, or a timer waited for it.
#[inline(never)]
fn advance_from_trouble<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    to: SeqNum,
) {
    // An ACK calls a tail loss probe off (RFC 8985 §7.2).
    conn.flags.clear(ConnFlags::PERSIST.or(ConnFlags::TAIL_PROBE_DUE));
    let fin_acked =
        conn.flags.has(ConnFlags::FIN_SENT) && conn.state.owes_fin() && to.after(conn.fin_seq());
    let bytes = to.since(conn.send.una) - u32::from(fin_acked);
    advance_by(conn, shard, context, to, bytes);
    if fin_acked {
        // For `await_acks` the FIN counts as one more chunk.
        conn.cold.accounting.count_acked_one();
        close::apply(conn, shard, context, Input::AckOfFin);
    }
}

/// `bytes` of the queue are acknowledged.
#[inline(always)]
fn advance_by<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    to: SeqNum,
    bytes: u32,
) {
    conn.send.una = to;
    if conn.cold.small_end.before(to) {
        conn.cold.small_end = to;
    }
    if conn.cold.rare.is_some() {
        note_progress(conn, shard, context.now);
    }
    context.base.ip.confirm(context.now, conn.cold.hop);
    window::grow_send_buffer(conn, shard.send_buffer_max);
    let chunks = conn.send.queue.acknowledge(&mut shard.nodes, context.memory, bytes);
    conn.cold.accounting.count_acked(chunks);
}

/// What few connections remember of `snd.una`.
#[inline(never)]
fn note_progress(conn: &Connection, shard: &mut Shard, now: Instant) {
    if let Some(rare) = shard.rares.get_mut(conn) {
        rare.progress_at = Stamp::of(now);
        rare.full_timeouts = 0;
        rare.snd_up = rare.snd_up.later(conn.send.una);
        rare.options.held = false;
    }
}
