//! SEGMENT ARRIVES: processing of a received segment (RFC 9293 §3.10.7).
//!
//! Read first: RFC 9293 §3.10.7.3 and §3.10.7.4, whose order of checks this follows; RFC 5961 for
//! what blind attackers may not do; RFC 7323 §5.3 for PAWS. SYN-SENT is in `syn_sent.rs`, the
//! ACK's side in `ack.rs`, the text's and the FIN's in `text.rs`. Most segments of a connection go
//! by `fast_path.rs`, which says the same in fewer words.
//!
//! Nothing here sends: it changes the record, and says by `ConnFlags::ACK_NOW` that an ACK is
//! wanted. So all segments of a burst are seen before one ACK answers them (MUST-58, MUST-59), as
//! long as they come in order. Where they do not, each has its own ACK (RFC 5681 §4.2), which says
//! how things were when it came: [`answer_earlier`].

pub(super) mod ack;
mod end;
mod fast_path;
mod syn_sent;
pub(super) mod text;

use core::time::Duration;

use super::connection::Connection;
use super::control_queue::Reply;
use super::deadline::CoarseStamp;
use super::flags::ConnFlags;
use super::isn::timestamp;
use super::segment::Segment;
use super::state::{FastOpen, Input, Listen, State, SynReceived, transition};
use super::{Shard, close, fast_open, output, window};
use crate::context::Context;
use crate::counters::Drop;
use crate::error::CloseReason;
use crate::memory::Memory;
use crate::seq::{SeqNum, SeqRange};
use crate::wire::Ecn;
use crate::wire::tcp::{Flags, Timestamps};

/// A timestamp older than this says nothing (RFC 7323 §5.5): 24 days.
pub(super) const TS_RECENT_AGE_MAX: Duration = Duration::from_secs(24 * 24 * 3600);

/// Least time between answers to segments without text that lie outside the window.
const REFUSALS_APART_MS: u32 = 100;

/// A segment of the connection's flow.
pub(crate) fn on_segment<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    conn.cold.accounting.count_segment_in();
    match conn.state {
        State::SynSent(_) => syn_sent::on_segment(conn, shard, context, segment),
        // It is over, and the application has not been told yet. §3.10.7.1.
        State::Closed(_) => reset_sender(shard, context, segment),
        _ => synchronized(conn, shard, context, segment),
    }
}

/// §3.10.7.4: SYN-RECEIVED and all later states.
fn synchronized<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    if let Err(reason) = passes_paws(conn, context, segment) {
        return refuse(conn, shard, context, (segment, reason));
    }
    if crosses(conn, segment) {
        return on_crossing(conn, shard, context, segment);
    }
    if segment.has(Flags::SYN)
        && !segment.flags.intersects(Flags::ACK | Flags::RST)
        && fast_open::repeats_syn(conn, segment.seq)
    {
        return conn.flags.set(ConnFlags::SYN_DUE);
    }
    if !is_acceptable(conn, segment) {
        return refuse(conn, shard, context, (segment, Drop::OutsideWindow));
    }
    if segment.has(Flags::RST) {
        return on_reset(conn, shard, context, segment);
    }
    if segment.has(Flags::SYN) {
        // RFC 5961 §4.2: whatever its number. A peer that restarted answers the challenge with a
        // RST that fits.
        context.base.counters.drop(Drop::SynInConnection);
        return challenge(conn, shard, context);
    }
    if !segment.has(Flags::ACK) {
        return context.base.counters.drop(Drop::UnexpectedSegment);
    }
    if !ack::is_believable(conn, shard, context, segment) {
        return;
    }
    if segment.len() > 0 {
        answer_earlier(conn, shard, context);
    }
    take(conn, shard, context, segment);
}

/// A SYN with a valid Fast Open cookie, for a connection that was made of it (RFC 7413 §4.2.2): its
/// data is taken, and ours may leave, as if our SYN were acknowledged. It is not, and its timer
/// runs.
pub(super) fn on_syn_with_cookie<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    let state = State::FastOpen(FastOpen);
    debug_assert!(
        transition(State::Listen(Listen), Input::SynWithCookie).is_some_and(|(to, _)| to == state)
    );
    conn.state = state;
    conn.cold.accounting.begin_with_segment();
    conn.send.una = conn.send.nxt;
    conn.cold.small_end = conn.send.una;
    conn.begin_recovery(&shard.records, context.now, None);
    // The window in a SYN is never scaled (RFC 7323 §2.2).
    conn.send.wnd = u32::from(segment.window);
    conn.send.wl1 = segment.seq;
    conn.cold.snd_wnd_max = conn.send.wnd;
    text::on_text(conn, shard, context, segment);
    // The SYN-ACK acknowledges it.
    conn.cold.timers.clear_ack();
    conn.flags.clear(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
    conn.flags.set(ConnFlags::SYN_DUE);
}

/// The ACK of our SYN-ACK, with what came with it. Its numbers were checked against what was kept
/// of the SYN: they are those that a connection in SYN-RECEIVED would let pass.
pub(super) fn on_last_of_handshake<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    conn.cold.accounting.begin_with_segment();
    debug_assert!(passes_paws(conn, context, segment).is_ok() && is_acceptable(conn, segment));
    debug_assert!(!segment.flags.intersects(Flags::SYN | Flags::RST));
    debug_assert!(segment.has(Flags::ACK) && segment.ack == conn.send.nxt);
    let says_more =
        segment.flags.intersects(Flags::FIN | Flags::URG) || !segment.options.sack().is_empty();
    if says_more {
        return take(conn, shard, context, segment);
    }
    // What `take` does with it: nothing is in flight, and its window is the first.
    heard(conn, context, segment);
    ack::on_established(conn, shard, context, segment);
    close::establish(conn, Input::AckOfSyn);
    text::on_text(conn, shard, context, segment);
}

/// §3.10.7.4 fifth to eighth, of a segment that passed what comes before.
fn take<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    heard(conn, context, segment);
    if !ack::on_ack(conn, shard, context, segment) {
        return;
    }
    text::on_urgent(conn, shard, context, segment);
    text::on_text(conn, shard, context, segment);
    if conn.state.is_closed() {
        return;
    }
    text::on_fin(conn, shard, context, segment);
}

/// The SYN-ACK of a peer that opened at the same time (§3.5, figure 8): its SYN is known, and its
/// ACK is what we wait for.
fn crosses(conn: &Connection, segment: &Segment<'_>) -> bool {
    matches!(conn.state, State::SynReceived(SynReceived { passive: false }))
        && segment.has(Flags::SYN)
        && segment.has(Flags::ACK)
        && !segment.has(Flags::RST)
        && segment.seq + 1 == conn.receive.nxt
        && segment.ack == conn.send.nxt
}

/// It establishes the connection; our ACK says so, in case that our SYN-ACK is lost. There is
/// nothing else to it: it acknowledges our SYN, and its window is a SYN's, which is never scaled
/// (RFC 7323 §2.2).
fn on_crossing<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    heard(conn, context, segment);
    ack::on_established(conn, shard, context, segment);
    close::apply(conn, shard, context, Input::AckOfSyn);
    if !conn.state.is_closed() {
        conn.flags.set(ConnFlags::CONNECTED);
        conn.flags.set(ConnFlags::ACK_NOW);
    }
}

/// RFC 7323 §5.3 R1: timestamps from the past are of old segments. Segments without any, where
/// every one should have them, pass: §3.2 would drop them, but Linux accepts them, and there are
/// middleboxes that remove the option.
fn passes_paws<M>(
    conn: &Connection,
    context: &Context<'_, M>,
    segment: &Segment<'_>,
) -> Result<(), Drop> {
    if !conn.flags.has(ConnFlags::TIMESTAMPS)
        || segment.has(Flags::RST)
        || !context.base.config.tcp.paws
    {
        return Ok(());
    }
    let Some(times) = segment.options.timestamps else { return Ok(()) };
    if (times.value.wrapping_sub(conn.receive.ts_recent) as i32) >= 0 {
        return Ok(());
    }
    let age = conn.cold.ts_recent_at.age(context.now);
    if age > TS_RECENT_AGE_MAX { Ok(()) } else { Err(Drop::OldTimestamp) }
}

/// §3.4 and §3.10.7.4 first: part of the segment lies in the window. A closed window still takes
/// what is at `rcv.nxt`: its ACK, URG and RST count (MUST-66), its text does not.
///
/// An ACK without text may stand at the window's right edge, which the letter of §3.4 leaves out:
/// there it stands when the peer has filled the window and what filled it was lost. Two ends to
/// which that happens at once would not hear one another any more.
fn is_acceptable(conn: &Connection, segment: &Segment<'_>) -> bool {
    let (seq, len, wnd) = (segment.seq, segment.len(), conn.receive.wnd());
    if seq == conn.receive.nxt {
        return true;
    }
    if len == 0 {
        let edge = u32::from(!segment.has(Flags::RST));
        return seq.within(conn.receive.nxt, wnd + edge);
    }
    let last = segment.end() - 1;
    seq.within(conn.receive.nxt, wnd)
        || last.within(conn.receive.nxt, wnd)
        || (seq.before(conn.receive.nxt) && last.at_or_after(conn.receive.nxt))
}

/// §3.10.7.4 first: what is not acceptable is answered by an ACK, unless it is a RST.
fn refuse<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    (segment, reason): (&Segment<'_>, Drop),
) {
    context.base.counters.drop(reason);
    if segment.has(Flags::RST) {
        return;
    }
    if let State::SynReceived(_) = conn.state
        && segment.has(Flags::SYN)
        && segment.seq + 1 == conn.receive.nxt
    {
        // The peer did not see our SYN-ACK.
        conn.flags.set(ConnFlags::SYN_DUE);
        return;
    }
    if segment.len() > 0 {
        answer_earlier(conn, shard, context);
    } else {
        // Two that disagree about their windows must not answer one another for ever.
        let now_ms = context.now.as_millis() as u32;
        let rare = shard.rares.of(conn, context.now);
        if now_ms.wrapping_sub(rare.refused_at_ms) < REFUSALS_APART_MS {
            return;
        }
        rare.refused_at_ms = now_ms;
    }
    let text = SeqRange::new(segment.payload_seq(), segment.payload.len() as u32);
    if !segment.payload.is_empty() && text.end.at_or_before(conn.receive.nxt) {
        context.base.counters.totals.segments_duplicate += 1;
        if conn.flags.has(ConnFlags::SACK) {
            shard.rares.of(conn, context.now).duplicate = text;
        }
    }
    conn.flags.set(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
}

/// A segment out of order, or one that is a duplicate, has an ACK of its own: if one is due that
/// has not left when the next segment comes, it is queued as it is. Where the queue is full, one
/// ACK answers both.
fn answer_earlier<M>(conn: &mut Connection, shard: &mut Shard, context: &mut Context<'_, M>) {
    if !conn.flags.has(ConnFlags::PURE_ACK) || !shard.control_queue.takes_acks() {
        return;
    }
    let reply = output::ack_as_it_is(conn, shard, context);
    conn.cold.accounting.count_segment_out();
    let queued = shard.control_queue.push(reply);
    debug_assert!(queued, "there was room");
}

/// §3.10.7.4 second, with RFC 5961 §3.2: only a RST that hits `rcv.nxt` counts. It may carry text
/// (SHLD-2), which is ignored.
fn on_reset<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    if segment.seq != conn.receive.nxt {
        context.base.counters.drop(Drop::UnexactReset);
        return challenge(conn, shard, context);
    }
    context.base.counters.totals.resets_in += 1;
    close::apply(conn, shard, context, Input::Reset);
}

/// RFC 5961 §7: an ACK, of which there are only so many.
pub(super) fn challenge<M>(conn: &mut Connection, shard: &mut Shard, context: &mut Context<'_, M>) {
    let Shard { challenges, secret, locals, .. } = shard;
    if challenges.may_send(context.now, secret, &locals.flow(&conn.ends)) {
        context.base.counters.totals.challenge_acks += 1;
        conn.flags.set(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
    }
}

/// A segment that stands in the window, and is no attack that we can see: the peer lives, its
/// timestamp is the next to echo (RFC 7323 §4.3), and so are its marks (RFC 3168 §6.1.3).
fn heard<M>(conn: &mut Connection, context: &mut Context<'_, M>, segment: &Segment<'_>) {
    conn.cold.timers.hear(context.now);
    if conn.send.flight() == 0 {
        // It answers our probes, if there were any.
        conn.attempts = 0;
    }
    if let Some(times) = segment.options.timestamps
        && conn.flags.has(ConnFlags::TIMESTAMPS)
        && segment.seq.at_or_before(conn.receive.last_ack_sent)
        && (times.value.wrapping_sub(conn.receive.ts_recent) as i32 >= 0
            || conn.cold.ts_recent_at.age(context.now) > TS_RECENT_AGE_MAX)
    {
        conn.receive.ts_recent = times.value;
        conn.cold.ts_recent_at = CoarseStamp::of(context.now);
    }
    if segment.ecn == Ecn::Ce {
        context.base.counters.totals.congestion_marks_in += 1;
    }
    if conn.flags.has(ConnFlags::ECN) && !segment.payload.is_empty() {
        if segment.has(Flags::CWR) {
            conn.flags.clear(ConnFlags::ECE_DUE);
        }
        if segment.ecn == Ecn::Ce && !conn.flags.has(ConnFlags::ECE_DUE) {
            conn.flags.set(ConnFlags::ECE_DUE.or(ConnFlags::ACK_NOW));
        }
    }
}

/// §3.10.7.1: there is no connection (any more).
pub(super) fn reset_sender<M>(
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    context.base.counters.drop(Drop::NoConnection);
    if let Some(reply) = Reply::reset(segment) {
        queue_reset(shard, context, reply);
    }
}

/// Queues a RST, and counts it.
pub(super) fn queue_reset<M>(shard: &mut Shard, context: &mut Context<'_, M>, reply: Reply) {
    if shard.control_queue.push(reply) {
        context.base.counters.totals.resets_out += 1;
    } else {
        context.base.counters.drop(Drop::RateLimited);
    }
}

/// The milliseconds since our timestamp was sent that a segment with `times` echoes.
#[inline]
fn echo_age<M>(
    conn: &Connection,
    context: &Context<'_, M>,
    times: Option<Timestamps>,
) -> Option<Duration> {
    if !conn.flags.has(ConnFlags::TIMESTAMPS) {
        return None;
    }
    let echo = times?.echo;
    let age = timestamp(context.now, conn.cold.ts_offset).wrapping_sub(echo);
    (echo != 0 && age < 1 << 30).then(|| Duration::from_millis(u64::from(age)))
}
