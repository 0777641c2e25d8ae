//! SYN-SENT: what answers our SYN (RFC 9293 §3.10.7.3).

use super::*;
use crate::ip::Hop;
use crate::tcp::deadline::{CoarseStamp, Deadline};
use crate::tcp::handshake::{Offer, is_ecn_setup_syn, is_ecn_setup_syn_ack, mss_of_mtu};

pub(super) fn on_segment<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    segment: &Segment<'_>,
) {
    let has_ack = segment.has(Flags::ACK);
    // First: an ACK of anything but our SYN.
    if has_ack && !acknowledges_syn(conn, shard, segment) {
        cx.counters.drop(Drop::BadAck);
        if let Some(reply) = Reply::reset(segment) {
            queue_reset(shard, cx, reply);
        }
        return;
    }
    // Second: a RST counts only with an acceptable ACK.
    if segment.has(Flags::RST) {
        if !has_ack {
            return cx.counters.drop(Drop::UnexactReset);
        }
        cx.counters.totals.resets_in += 1;
        return close::apply(conn, shard, cx, Input::Reset);
    }
    // Fourth.
    if !segment.has(Flags::SYN) {
        return cx.counters.drop(Drop::UnexpectedSegment);
    }
    take_syn(conn, cx, segment);
    if has_ack {
        on_syn_ack(conn, shard, cx, segment);
    } else {
        on_syn(conn, cx, segment);
    }
}

/// It acknowledges our SYN, and with it at most the data that it carried (RFC 7413 §4.2.1).
fn acknowledges_syn(conn: &Connection, shard: &Shard, segment: &Segment<'_>) -> bool {
    segment.ack == conn.snd_nxt
        || segment.ack.within(conn.snd_nxt, fast_open::sent_with_syn(conn, shard) + 1)
}

/// What the peer's SYN says about itself.
fn take_syn<M>(conn: &mut Connection, cx: &mut Cx<'_, M>, segment: &Segment<'_>) {
    let config = &cx.config.tcp;
    let mut offer = Offer::of(config, &segment.options, conn.ends.remote());
    offer.ecn = if segment.has(Flags::ACK) {
        config.ecn && is_ecn_setup_syn_ack(segment.flags)
    } else {
        is_ecn_setup_syn(segment.flags)
    };
    let room = mss_of_mtu(cx.ip.path_mtu(&conn.ends.remote()), conn.ends.remote());
    let max = conn.cold.snd_wnd_max;
    conn.agree(config, &offer, room);
    conn.cold.snd_wnd_max = max.max(u32::from(segment.window));
    conn.rcv_nxt = segment.seq + 1;
    conn.rcv_adv = conn.rcv_nxt + window::first(conn.cold.receive_buffer);
    conn.last_ack_sent = conn.rcv_nxt;
    // The window in a SYN is never scaled (RFC 7323 §2.2).
    conn.snd_wnd = u32::from(segment.window);
    conn.snd_wl1 = segment.seq;
    conn.cold.heard_at = Stamp::of(cx.now);
    if let Some(times) = segment.options.timestamps {
        conn.ts_recent = times.value;
        conn.cold.ts_recent_at = CoarseStamp::of(cx.now);
    }
}

/// The handshake is complete. Text and FIN in a SYN-ACK are dealt with like in any segment.
fn on_syn_ack<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    segment: &Segment<'_>,
) {
    if let Some(hop) = conn.cold.hop {
        confirm(cx, hop);
    }
    let data_bytes = segment.ack.since(conn.snd_nxt);
    if conn.cold.rare.is_some() {
        let offered = (segment.options.fast_open, conn.cold.peer_mss);
        fast_open::on_syn_ack(conn, shard, cx.now, offered, data_bytes);
    }
    ack::on_established(conn, shard, cx, segment);
    if data_bytes > 0 {
        ack::on_data_of_syn(conn, shard, cx, data_bytes);
    }
    close::establish(conn, Input::SynAck);
    conn.facts.set(Facts::ACK_NOW.or(Facts::CONNECTED));
    if segment.payload.is_empty() && !segment.has(Flags::FIN) {
        return;
    }
    text::on_text(conn, shard, cx, segment);
    if !conn.state.is_closed() {
        text::on_fin(conn, shard, cx, segment);
    }
}

fn confirm<M>(cx: &mut Cx<'_, M>, hop: Hop) {
    cx.ip.confirm(cx.now, Some(hop));
}

/// Simultaneous open (§3.5, MUST-10): answer with a SYN-ACK. Text waits until the peer sends it
/// again.
fn on_syn<M>(conn: &mut Connection, cx: &mut Cx<'_, M>, _segment: &Segment<'_>) {
    if let Some((state, _)) = transition(conn.state, Input::Syn) {
        conn.state = state;
    }
    conn.attempts = 0;
    conn.cold.attend_at = Deadline::after(cx.now, cx.config.tcp.rto_initial);
    conn.facts.set(Facts::SYN_DUE);
}
