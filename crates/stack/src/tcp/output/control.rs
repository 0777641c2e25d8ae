//! The way out of control segments, which have no text: SYN, SYN-ACK, ACK and RST.
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
    cx: &mut Cx<'_, M>,
    (hosts, service): ((IpAddr, IpAddr), Service),
    control: Control,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    if let (IpAddr::V4(src), IpAddr::V4(dst)) = hosts
        && !cx.config.tx_checksum
        && let Some(Some(link)) = cx.ip.usual_link(hop)
    {
        let Service { dscp, hop_limit } = service;
        if let Some(len) = control.emit(&Way { link, src, dst, dscp, hop_limit }, frame) {
            cx.counters.totals.segments_out += 1;
            return Transmit { len, ..Transmit::default() };
        }
    }
    write_any(cx, (hosts, service), control, hop, frame)
}

#[inline(never)]
fn write_any<M>(
    cx: &mut Cx<'_, M>,
    ((local, remote), service): ((IpAddr, IpAddr), Service),
    control: Control,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    let head = control.repr();
    let (local_port, remote_port) = (head.src_port, head.dst_port);
    let flow = Flow { local, remote, local_port, remote_port };
    write_reply(cx, (&flow, &head, service), hop, frame)
}

/// Writes an acknowledgment at `seq` with nothing else in it. `None`: there may be more to say, and
/// it has to go the full way; nothing happened.
#[inline(always)]
pub(super) fn send_ack<M>(
    conn: &mut Connection,
    shard: &Shard,
    cx: &mut Cx<'_, M>,
    (hop, seq): (Hop, SeqNum),
    frame: &mut [u8],
) -> Option<Transmit> {
    #[cfg(test)]
    if shard.sends_full_way {
        return None;
    }
    let is_plain = cx.config.tcp.path_mtu_discovery
        && !conn.facts.has(Facts::ECE_DUE)
        && !conn.receive.has_gap()
        && shard.rares.get(conn).is_none();
    if !is_plain {
        return None;
    }
    let control = Control {
        src_port: conn.ends.local_port(),
        dst_port: conn.ends.remote_port(),
        seq,
        ack: conn.rcv_nxt,
        flags: Flags::ACK,
        window: window::announce(conn),
        times: times(conn, cx.now),
        offers: None,
    };
    let hosts = (shard.locals.local(&conn.ends), conn.ends.remote());
    let transmit = write(cx, (hosts, conn.cold.service), control, hop, frame);
    conn.last_ack_sent = conn.rcv_nxt;
    conn.cold.ack_at = Deadline::NEVER;
    conn.facts.clear(Facts::ACK_NOW.or(Facts::PURE_ACK));
    Some(transmit)
}

/// The timestamps of what leaves now, if the connection uses them.
#[inline(always)]
pub(in crate::tcp) fn times(conn: &Connection, now: Instant) -> Option<Timestamps> {
    let value = timestamp(now, conn.cold.ts_offset);
    let times = Timestamps { value, echo: conn.ts_recent };
    conn.facts.has(Facts::TIMESTAMPS).then_some(times)
}

/// Writes the RST of a connection that we ended. `None`: it waits for its next hop, or has none.
#[inline(never)]
pub(super) fn send_reset<M>(
    replies: &mut Replies,
    cx: &mut Cx<'_, M>,
    reset: &Reset,
    frame: &mut [u8],
) -> Option<Transmit> {
    let Reset { flow, seq, ack, times, service } = *reset;
    let NextHop::Ready(hop) = cx.ip.next_hop(cx.now, flow.remote) else {
        // It waits like any other, or is lost like any other.
        return send_reply(replies, cx, &reset.reply(), frame);
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
    Some(write(cx, ((flow.local, flow.remote), service), control, hop, frame))
}
