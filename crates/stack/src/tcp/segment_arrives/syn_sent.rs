//! SYN-SENT: answers to our SYN (RFC 9293 §3.10.7.3).

use super::*;
use crate::Instant;
use crate::ip::Hop;
use crate::tcp::deadline::CoarseStamp;
use crate::tcp::handshake::{Offer, is_ecn_setup_syn, is_ecn_setup_syn_ack, mss_of};

/// From an ACK of anything but our SYN to the next SYN.
const SYN_AFTER_BAD_ACK: Duration = Duration::from_millis(8);

pub(super) fn on_segment<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    let has_ack = segment.has(Flags::ACK);
    // First: an ACK of anything but our SYN.
    if has_ack && !acknowledges_syn(conn, shard, segment) {
        context.base.counters.drop(Drop::BadAck);
        if let Some(reply) = Reply::reset(segment) {
            queue_reset(shard, context, reply);
            send_syn_soon(conn, context.now);
        }
        return;
    }
    // Second: a RST counts only with an acceptable ACK.
    if segment.has(Flags::RST) {
        if !has_ack {
            return context.base.counters.drop(Drop::UnexactReset);
        }
        context.base.counters.totals.resets_in += 1;
        return close::apply(conn, shard, context, Input::Reset);
    }
    // Fourth.
    if !segment.has(Flags::SYN) {
        return context.base.counters.drop(Drop::UnexpectedSegment);
    }
    take_syn(conn, context, segment);
    if has_ack {
        on_syn_ack(conn, shard, context, segment);
    } else {
        on_syn(conn, context, segment);
    }
}

/// The peer still had an older connection of these ports, for example in TIME-WAIT, and our reset
/// ends it: the SYN is sent again without the wait for its time-out. Once for each connection, as
/// on Linux, because anything can send such an ACK.
fn send_syn_soon(conn: &mut Connection, now: Instant) {
    if conn.attempts == 0 {
        conn.cold.timers.attend_earlier(now, SYN_AFTER_BAD_ACK);
    }
}

/// It acknowledges our SYN, and with it at most the data that it carried (RFC 7413 §4.2.1).
fn acknowledges_syn(conn: &Connection, shard: &Shard, segment: &Segment<'_>) -> bool {
    segment.ack == conn.send.nxt
        || segment.ack.within(conn.send.nxt, fast_open::sent_with_syn(conn, shard) + 1)
}

/// What the peer's SYN says about itself.
fn take_syn<M>(conn: &mut Connection, context: &mut Context<'_, M>, segment: &Segment<'_>) {
    let config = &context.base.config.tcp;
    let remote = conn.ends.remote_address();
    let mut offer = Offer::of(config, &segment.options, remote);
    offer.ecn = if segment.has(Flags::ACK) {
        config.ecn && is_ecn_setup_syn_ack(segment.flags)
    } else {
        is_ecn_setup_syn(segment.flags)
    };
    let room = mss_of(context.base.ip.payload_bytes_max(remote));
    let max = conn.cold.snd_wnd_max;
    conn.agree(config, &offer, room);
    conn.cold.snd_wnd_max = max.max(u32::from(segment.window));
    conn.receive.nxt = segment.seq + 1;
    conn.receive.adv = conn.receive.nxt + window::first(conn.cold.receive_buffer);
    conn.receive.last_ack_sent = conn.receive.nxt;
    // The window in a SYN is never scaled (RFC 7323 §2.2).
    conn.send.wnd = u32::from(segment.window);
    conn.send.wl1 = segment.seq;
    conn.cold.timers.hear(context.now);
    if let Some(times) = segment.options.timestamps {
        conn.receive.ts_recent = times.value;
        conn.cold.ts_recent_at = CoarseStamp::of(context.now);
    }
}

/// The handshake is complete. Text and FIN in a SYN-ACK are dealt with like in any segment.
fn on_syn_ack<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    if let Some(hop) = conn.cold.hop {
        confirm(context, hop);
    }
    let data_bytes = segment.ack.since(conn.send.nxt);
    if conn.cold.rare.is_some() {
        let offered = (segment.options.fast_open, conn.cold.peer_mss);
        fast_open::on_syn_ack(conn, shard, context.now, offered, data_bytes);
    }
    ack::on_established(conn, shard, context, segment);
    if data_bytes > 0 {
        ack::on_data_of_syn(conn, shard, context, data_bytes);
    }
    close::establish(conn, Input::SynAck);
    conn.flags.set(ConnFlags::ACK_NOW.or(ConnFlags::CONNECTED));
    if segment.payload.is_empty() && !segment.has(Flags::FIN) {
        return;
    }
    text::on_text(conn, shard, context, segment);
    if !conn.state.is_closed() {
        text::on_fin(conn, shard, context, segment);
    }
}

fn confirm<M>(context: &mut Context<'_, M>, hop: Hop) {
    context.base.ip.confirm(context.now, Some(hop));
}

/// Simultaneous open (§3.5, MUST-10): answer with a SYN-ACK. Text waits until the peer sends it
/// again.
fn on_syn<M>(conn: &mut Connection, context: &mut Context<'_, M>, _segment: &Segment<'_>) {
    if let Some((state, _)) = transition(conn.state, Input::Syn) {
        conn.state = state;
    }
    // How often our SYN was sent stays known: what acknowledges it is no sample then (RFC 6298 §3).
    conn.cold.timers.attend_after(context.now, context.base.config.tcp.rto_initial);
    conn.flags.set(ConnFlags::SYN_DUE);
}
