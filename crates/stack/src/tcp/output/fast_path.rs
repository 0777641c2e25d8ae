//! Fast path for output: the next bytes of an established connection, with the acknowledgment of
//! what it received.
//!
//! Read first: `output.rs`, which is the slow path; `segment_arrives/fast_path.rs` for input.
//! A segment that does not qualify takes the slow path, with nothing changed.
//!
//! Gain: see decision 0018 (an answer, from the command to its frame).
//!
//! Invariants
//! - Both paths write the same bytes and leave the same state: a test sends the same through a
//!   stack with the fast path and through one without.
//! - After a segment left, the connection is at the end of its list if more waits, and on none if
//!   not; its timer is armed. It need not be scheduled again.

use super::*;
use crate::ip::LinkEnds;
use crate::wire::headers::{Headers, Offers, Text};

/// Flags of a connection whose output needs the slow path.
const UNUSUAL: ConnFlags = ConnFlags::SYN_DUE
    .or(ConnFlags::PROBE_DUE)
    .or(ConnFlags::TAIL_PROBE_DUE)
    .or(ConnFlags::PURE_ACK)
    .or(ConnFlags::PERSIST)
    .or(ConnFlags::STARVED)
    .or(ConnFlags::OVERRIDE)
    .or(ConnFlags::PARKED)
    .or(ConnFlags::ECN)
    .or(ConnFlags::ORPHAN)
    .or(ConnFlags::CLOSE_LATER)
    .or(ConnFlags::RELEASED);

/// Nothing but bytes and acknowledgments can leave now.
#[inline(always)]
fn allows_fast_segments(conn: &Connection, shard: &Shard) -> bool {
    #[cfg(test)]
    if shard.sends_by_slow_path {
        return false;
    }
    matches!(conn.state, State::Established(_) | State::CloseWait(_))
        && !conn.flags.any(UNUSUAL)
        && !conn.cold.rare.is_some()
        && !conn.receive.queue.has_gap()
        && !conn.cold.recovery.has_lost(&shard.records)
}

/// How much of what waits goes with the next segment, as [`new_len`] and [`fit`] have it: a full
/// segment, or all there is. `None`: nothing, or it is not so simple.
#[inline(always)]
fn fast_segment_len(conn: &Connection, shard: &Shard, waiting: u32) -> Option<u32> {
    let mss = u32::from(conn.mss);
    let allowance = conn.cold.recovery.allowance(&shard.records);
    let usable = waiting.min(conn.send.window_room()).min(allowance);
    if usable >= mss {
        return Some(mss);
    }
    let nagle = conn.cold.small_end.after(conn.send.una) && !conn.flags.has(ConnFlags::NO_DELAY);
    (usable == waiting && usable > 0 && !nagle).then_some(usable)
}

/// A usual segment can leave.
#[inline(always)]
pub(in crate::tcp) fn has_fast_segment(conn: &Connection, shard: &Shard) -> bool {
    let waiting = conn.unsent();
    waiting > 0
        && allows_fast_segments(conn, shard)
        && fast_segment_len(conn, shard, waiting).is_some()
}

/// Sends the next bytes of connection `index`. `None`: it takes the slow path, nothing happened.
#[inline(always)]
pub(super) fn send<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    (hop, index): (Hop, u32),
    frame: &mut [u8],
) -> Option<Transmit> {
    if !allows_fast_segments(conn, shard) || !context.base.config.tcp.path_mtu_discovery {
        return None;
    }
    let waiting = conn.unsent();
    let len = fast_segment_len(conn, shard, waiting)?;
    // Where the link cuts, a frame holds more than a segment.
    if context.base.config.tso && len < waiting {
        return None;
    }
    let link = context.base.ip.fast_link(hop)?;
    let mut headers = headers_of(conn, shard, context.now, link);
    let text_at = headers.header_bytes();
    if frame.len() < text_at + len as usize {
        return None;
    }
    let was_idle = conn.send.flight() == 0;
    if was_idle {
        conn.cold.recovery.restart_after_idle(&mut shard.records, context.now);
    }
    let range = SeqRange::new(conn.send.nxt, len);
    conn.cold.recovery.on_sent(&mut shard.records, context.now, range, Sent::New).ok()?;
    headers.window = window::announce(conn);
    if len == waiting {
        headers.flags = Flags::ACK | Flags::PSH;
    }
    let offset = range.start.since(conn.send.una);
    let text = &mut frame[text_at..text_at + len as usize];
    let sum = conn.send.queue.copy_out(&shard.nodes, context.memory, offset, text);
    let transmit = finish(context, &headers, (len as usize, sum), frame)?;
    note(conn, context, range);
    if len < waiting {
        shard.transmit.put(DATA, index);
    }
    if let Some(at) = conn.cold.recovery.deadline() {
        shard.wheel.arm(index, at);
    }
    Some(transmit)
}

/// The headers of the next segment, but for its window.
#[inline(always)]
fn headers_of(conn: &Connection, shard: &Shard, now: Instant, link: LinkEnds) -> Headers {
    Headers {
        link,
        src: shard.locals.local(&conn.ends),
        dst: conn.ends.remote(),
        dscp: conn.cold.service.dscp,
        ecn: Ecn::NotEct,
        hop_limit: conn.cold.service.hop_limit,
        src_port: conn.ends.local_port(),
        dst_port: conn.ends.remote_port(),
        seq: conn.send.nxt,
        ack: conn.receive.nxt,
        flags: Flags::ACK,
        window: 0,
        times: times(conn, now),
        offers: None,
    }
}

/// Writes the headers before a text of so many bytes, which is there and sums to so much.
#[inline(always)]
fn finish<M>(
    context: &mut Context<'_, M>,
    headers: &Headers,
    (text_bytes, sum): (usize, u16),
    frame: &mut [u8],
) -> Option<Transmit> {
    let len = headers.header_bytes() + text_bytes;
    if !context.base.config.tx_checksum {
        headers.emit(frame, text_bytes, Text::Summed(sum))?;
        context.base.counters.totals.segments_out += 1;
        return Some(Transmit::new(len));
    }
    headers.emit(frame, text_bytes, Text::LeftToLink)?;
    context.base.counters.totals.segments_out += 1;
    let start = headers.transport_offset() as u16;
    Some(Transmit::new(len).checksummed_by_link(start, wire::CHECKSUM_OFFSET as u8))
}

/// What `head` and `note_sent` keep of it.
#[inline(always)]
fn note<M>(conn: &mut Connection, context: &mut Context<'_, M>, range: SeqRange) {
    let len = range.len();
    conn.send.nxt = range.end;
    conn.receive.last_ack_sent = conn.receive.nxt;
    conn.cold.timers.clear_ack();
    conn.flags.clear(ConnFlags::ACK_NOW);
    let accounting = &mut conn.cold.accounting;
    accounting.count_segment_out();
    accounting.count_bytes_out(len);
    context.base.counters.totals.bytes_out += u64::from(len);
    if accounting.has_received_bytes() {
        conn.flags.set(ConnFlags::INTERACTIVE);
    }
    if len != u32::from(conn.mss) {
        conn.cold.small_end = range.end;
    }
}

/// Writes a frame whose text is in place by the way of the usual headers, if it has such.
#[inline]
pub(super) fn write<M>(
    context: &mut Context<'_, M>,
    draft: &Draft<'_>,
    hop: Hop,
    text: (usize, u16),
    frame: &mut [u8],
) -> Option<Transmit> {
    let Draft { flow, head, service, ecn, dont_fragment } = draft;
    if !dont_fragment {
        return None;
    }
    let link = context.base.ip.fast_link(hop)?;
    let headers = headers_before(head, (flow, link), (*service, *ecn))?;
    finish(context, &headers, text, frame)
}

/// The same without text, of a segment that does not change a connection.
#[inline(always)]
pub(super) fn write_reply<M>(
    context: &mut Context<'_, M>,
    (flow, head, service): (&Flow, &Repr, Service),
    hop: Hop,
    frame: &mut [u8],
) -> Option<Transmit> {
    let link = context.base.ip.fast_link(hop)?;
    let headers = headers_before(head, (flow, link), (service, Ecn::NotEct))?;
    finish(context, &headers, (0, 0), frame)
}

/// `head` with all headers before it. `None`: they are not the usual ones.
#[inline(always)]
fn headers_before(
    head: &Repr,
    (flow, link): (&Flow, LinkEnds),
    (service, ecn): (Service, Ecn),
) -> Option<Headers> {
    let options = &head.options;
    if head.urgent != 0 || options.sack_count > 0 || options.fast_open.is_some() {
        return None;
    }
    let offers = Offers {
        mss: options.mss,
        sack_permitted: options.sack_permitted,
        window_scale: options.window_scale,
    };
    Some(Headers {
        link,
        src: flow.local.ip(),
        dst: flow.remote.ip(),
        dscp: service.dscp,
        ecn,
        hop_limit: service.hop_limit,
        src_port: head.src_port,
        dst_port: head.dst_port,
        seq: head.seq,
        ack: head.ack,
        flags: head.flags,
        window: head.window,
        times: options.timestamps,
        offers: options.are_of_syn().then_some(offers),
    })
}
