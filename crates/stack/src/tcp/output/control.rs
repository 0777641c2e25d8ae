//! Output of control segments without text: SYN, SYN-ACK, ACK and RST.
//!
//! Read first: `output.rs`; `wire/control.rs` for how they are written.
//!
//! What is not for Ethernet and IPv4, or has to be finished by the link, goes the way of any other
//! frame, which writes the same bytes.

use super::*;
use crate::wire::control::Way;

/// Writes a control segment from the first of two hosts to the second.
#[inline(always)]
pub(in crate::tcp) fn write<M>(
    context: &mut Context<'_, M>,
    (hosts, service): ((IpAddr, IpAddr), Service),
    control: Control,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    if let (IpAddr::V4(src), IpAddr::V4(dst)) = hosts
        && !context.config.tx_checksum
        && let Some(Some(link)) = context.ip.usual_link(hop)
    {
        let Service { dscp, hop_limit } = service;
        if let Some(len) = control.emit(&Way { link, src, dst, dscp, hop_limit }, frame) {
            context.counters.totals.segments_out += 1;
            return Transmit { len, ..Transmit::default() };
        }
    }
    write_any(context, (hosts, service), control, hop, frame)
}

#[inline(never)]
fn write_any<M>(
    context: &mut Context<'_, M>,
    ((local, remote), service): ((IpAddr, IpAddr), Service),
    control: Control,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    let head = control.repr();
    let (local_port, remote_port) = (head.src_port, head.dst_port);
    let flow = Flow { local, remote, local_port, remote_port };
    write_reply(context, (&flow, &head, service), hop, frame)
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
    let is_plain = context.config.tcp.path_mtu_discovery
        && !conn.flags.has(ConnFlags::ECE_DUE)
        && !conn.receive.queue.has_gap()
        && shard.rares.get(conn).is_none();
    if !is_plain {
        return None;
    }
    let control = Control {
        src_port: conn.ends.local_port(),
        dst_port: conn.ends.remote_port(),
        seq,
        ack: conn.receive.nxt,
        flags: Flags::ACK,
        window: window::announce(conn),
        times: times(conn, context.now),
        offers: None,
    };
    let hosts = (shard.locals.local(&conn.ends), conn.ends.remote());
    let transmit = write(context, (hosts, conn.cold.service), control, hop, frame);
    conn.receive.last_ack_sent = conn.receive.nxt;
    conn.cold.ack_at = Deadline::NEVER;
    conn.flags.clear(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
    Some(transmit)
}

/// The timestamps of what leaves now, if the connection uses them.
#[inline(always)]
pub(in crate::tcp) fn times(conn: &Connection, now: Instant) -> Option<Timestamps> {
    let value = timestamp(now, conn.cold.ts_offset);
    let times = Timestamps { value, echo: conn.receive.ts_recent };
    conn.flags.has(ConnFlags::TIMESTAMPS).then_some(times)
}

/// Writes the RST of a connection that we ended. `None`: it waits for its next hop, or has none.
#[inline(never)]
fn send_reset<M>(
    control_queue: &mut ControlQueue,
    context: &mut Context<'_, M>,
    reset: &Reset,
    frame: &mut [u8],
) -> Option<Transmit> {
    let Reset { flow, seq, ack, times, service } = *reset;
    let NextHop::Ready(hop) = context.ip.next_hop(context.now, flow.remote) else {
        // It waits like any other, or is lost like any other.
        return send_reply(control_queue, context, &reset.reply(), frame);
    };
    let control = Control {
        src_port: flow.local_port,
        dst_port: flow.remote_port,
        seq,
        ack,
        flags: Flags::RST | Flags::ACK,
        window: 0,
        times,
        offers: None,
    };
    Some(write(context, ((flow.local, flow.remote), service), control, hop, frame))
}

/// Sends the next of the queued segments.
#[inline(never)]
pub(super) fn send_queued<M>(
    control_queue: &mut ControlQueue,
    context: &mut Context<'_, M>,
    frame: &mut [u8],
) -> Option<Transmit> {
    while let Some(reply) = control_queue.pop() {
        if let Some(transmit) = send_reply(control_queue, context, &reply, frame) {
            return Some(transmit);
        }
    }
    while let Some(reset) = control_queue.pop_reset() {
        if let Some(transmit) = send_reset(control_queue, context, &reset, frame) {
            return Some(transmit);
        }
    }
    None
}

fn send_reply<M>(
    control_queue: &mut ControlQueue,
    context: &mut Context<'_, M>,
    reply: &Reply,
    frame: &mut [u8],
) -> Option<Transmit> {
    let hop = match context.ip.next_hop(context.now, reply.flow.remote) {
        NextHop::Ready(hop) => hop,
        // RFC 1122 §2.3.2.2: saved, rather than discarded.
        NextHop::Waiting => {
            if control_queue.park(*reply) {
                context.counters.drop(Drop::NextHopUnresolved);
            }
            return None;
        }
        NextHop::NoRoute => {
            context.counters.drop(Drop::NextHopUnresolved);
            return None;
        }
    };
    let head = Repr {
        src_port: reply.flow.local_port,
        dst_port: reply.flow.remote_port,
        seq: reply.seq,
        ack: reply.ack,
        flags: reply.flags,
        window: reply.window,
        urgent: 0,
        options: reply.options,
    };
    Some(write_reply(context, (&reply.flow, &head, reply.service), hop, frame))
}
