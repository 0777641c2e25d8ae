//! Output of control segments without text: SYN, SYN-ACK, ACK, FIN and RST.
//!
//! Read first: `output.rs`; `wire/control.rs` for how they are written.
//!
//! What is not for Ethernet and IPv4, or has to be finished by the link, goes the way of any other
//! frame, which writes the same bytes.

use super::*;
use crate::wire::control::Way;

/// Writes a control segment of `flow`.
#[inline(always)]
pub(in crate::tcp) fn write<M>(
    context: &mut Context<'_, M>,
    (flow, service): (&Flow, Service),
    control: Control,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    let Flow { local, remote, local_port: src_port, remote_port: dst_port } = *flow;
    if let (Some(src), Some(dst)) = (local.ipv4(), remote.ipv4())
        && !context.base.config.tx_checksum
        && let Some(Some(link)) = context.base.ip.fast_link(hop)
    {
        let Service { dscp, hop_limit } = service;
        let way = Way { link, src, dst, src_port, dst_port, dscp, hop_limit };
        if let Some(len) = control.emit(&way, frame) {
            context.base.counters.totals.segments_out += 1;
            return Transmit::new(len);
        }
    }
    write_any(context, (flow, service), control, hop, frame)
}

#[inline(never)]
fn write_any<M>(
    context: &mut Context<'_, M>,
    (flow, service): (&Flow, Service),
    control: Control,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    let head = control.repr(flow.local_port, flow.remote_port);
    write_reply(context, (flow, &head, service), hop, frame)
}

/// Writes an acknowledgment at `seq` with nothing else in it. `None`: there may be more to say, and
/// it has to go the slow path; nothing happened.
#[inline(always)]
pub(super) fn send_ack<M>(
    conn: &mut Connection,
    shard: &Shard,
    context: &mut Context<'_, M>,
    (hop, seq): (Hop, SeqNum),
    frame: &mut [u8],
) -> Option<Transmit> {
    #[cfg(test)]
    if shard.sends_by_slow_path {
        return None;
    }
    let is_plain = context.base.config.tcp.path_mtu_discovery
        && !conn.flags.has(ConnFlags::ECE_DUE)
        && !conn.receive.queue.has_gap()
        && !conn.cold.rare.is_some();
    is_plain.then(|| write_plain(conn, shard, context, (hop, seq, Flags::ACK), frame))
}

/// Flags of a connection whose FIN needs the slow path.
const UNUSUAL_WITH_FIN: ConnFlags = ConnFlags::SYN_DUE
    .or(ConnFlags::PROBE_DUE)
    .or(ConnFlags::TAIL_PROBE_DUE)
    .or(ConnFlags::PURE_ACK)
    .or(ConnFlags::PERSIST)
    .or(ConnFlags::STARVED)
    .or(ConnFlags::OVERRIDE)
    .or(ConnFlags::PARKED)
    .or(ConnFlags::ECN)
    .or(ConnFlags::CLOSE_LATER)
    .or(ConnFlags::RELEASED);

/// A FIN alone can leave: all before it was sent, and nothing else is due.
#[inline]
pub(in crate::tcp) fn has_fin(conn: &Connection, shard: &Shard) -> bool {
    #[cfg(test)]
    if shard.sends_by_slow_path {
        return false;
    }
    conn.fin_waits()
        && conn.send.flight() == conn.send.queue.bytes()
        && conn.send.window_room() > 0
        && !conn.flags.any(UNUSUAL_WITH_FIN)
        && !conn.cold.rare.is_some()
        && !conn.receive.queue.has_gap()
        && !conn.cold.recovery.has_lost(&shard.records)
}

/// Sends the FIN of connection `index` without text. `None`: it takes the slow path, nothing
/// happened.
#[inline(never)]
pub(super) fn send_fin<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    (hop, index): (Hop, u32),
    frame: &mut [u8],
) -> Option<Transmit> {
    if !has_fin(conn, shard) || !context.base.config.tcp.path_mtu_discovery {
        return None;
    }
    if conn.send.flight() == 0 {
        conn.cold.recovery.restart_after_idle(&mut shard.records, context.now);
    }
    let seq = conn.send.nxt;
    let range = SeqRange::new(seq, 1);
    conn.cold.recovery.on_sent(&mut shard.records, context.now, range, Sent::New).ok()?;
    conn.send.nxt = range.end;
    conn.flags.set(ConnFlags::FIN_SENT);
    conn.cold.accounting.count_segment_out();
    if let Some(at) = conn.cold.recovery.deadline() {
        shard.wheel.arm(index, at);
    }
    Some(write_plain(conn, shard, context, (hop, seq, Flags::ACK | Flags::FIN), frame))
}

/// Writes a segment that has nothing but an acknowledgment and `flags`.
#[inline(always)]
fn write_plain<M>(
    conn: &mut Connection,
    shard: &Shard,
    context: &mut Context<'_, M>,
    (hop, seq, flags): (Hop, SeqNum, Flags),
    frame: &mut [u8],
) -> Transmit {
    let control = Control {
        seq,
        ack: conn.receive.nxt,
        flags,
        window: window::announce(conn),
        times: times(conn, context.now),
        offers: None,
    };
    let flow = shard.locals.flow(&conn.ends);
    let transmit = write(context, (&flow, conn.cold.service), control, hop, frame);
    conn.receive.last_ack_sent = conn.receive.nxt;
    conn.cold.timers.clear_ack();
    conn.flags.clear(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
    transmit
}

/// The timestamps of what leaves now, if the connection uses them.
#[inline(always)]
pub(in crate::tcp) fn times(conn: &Connection, now: Instant) -> Option<Timestamps> {
    let value = timestamp(now, conn.cold.ts_offset);
    let times = Timestamps { value, echo: conn.receive.ts_recent };
    conn.flags.has(ConnFlags::TIMESTAMPS).then_some(times)
}

/// Writes the RST of a connection that we ended. `None`: it waits for its next hop, or has none.
#[inline(always)]
fn send_reset<M>(
    control_queue: &mut ControlQueue,
    context: &mut Context<'_, M>,
    reset: &Reset,
    frame: &mut [u8],
) -> Option<Transmit> {
    let Reset { ref flow, seq, ack, times, service } = *reset;
    let NextHop::Ready(hop) = context.base.ip.next_hop(context.now, flow.remote) else {
        // It waits like any other, or is lost like any other.
        return send_reply(control_queue, context, &reset.reply(), frame);
    };
    let flags = Flags::RST | Flags::ACK;
    let control = Control { seq, ack, flags, window: 0, times, offers: None };
    Some(write(context, (flow, service), control, hop, frame))
}

/// Sends the next of the queued segments. `None`: it waits for its next hop, or has none.
#[inline(never)]
pub(super) fn send_next_queued<M>(
    control_queue: &mut ControlQueue,
    context: &mut Context<'_, M>,
    frame: &mut [u8],
) -> Option<Transmit> {
    if let Some(reply) = control_queue.pop() {
        return send_reply(control_queue, context, &reply, frame);
    }
    let reset = control_queue.pop_reset()?;
    send_reset(control_queue, context, &reset, frame)
}

fn send_reply<M>(
    control_queue: &mut ControlQueue,
    context: &mut Context<'_, M>,
    reply: &Reply,
    frame: &mut [u8],
) -> Option<Transmit> {
    let hop = match context.base.ip.next_hop(context.now, reply.flow.remote) {
        NextHop::Ready(hop) => hop,
        // RFC 1122 §2.3.2.2: saved, rather than discarded.
        NextHop::Waiting => {
            if control_queue.park(*reply) {
                context.base.counters.drop(Drop::NextHopUnresolved);
            }
            return None;
        }
        NextHop::NoRoute => {
            context.base.counters.drop(Drop::NextHopUnresolved);
            return None;
        }
    };
    Some(write_answer(context, reply, hop, frame))
}

/// Writes an answer, by the way of control segments if it has no other options than they.
fn write_answer<M>(
    context: &mut Context<'_, M>,
    reply: &Reply,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    let Reply { ref flow, seq, ack, flags, window, ref options, service } = *reply;
    if options.are_timestamps_alone() {
        let control = Control { seq, ack, flags, window, times: options.timestamps, offers: None };
        return write(context, (flow, service), control, hop, frame);
    }
    let (src_port, dst_port, options) = (flow.local_port, flow.remote_port, *options);
    let head = Repr { src_port, dst_port, seq, ack, flags, window, urgent: 0, options };
    write_reply(context, (flow, &head, service), hop, frame)
}
