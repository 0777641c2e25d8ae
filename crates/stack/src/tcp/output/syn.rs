//! SYNs and SYN-ACKs of connections, with the data of Fast Open.
//!
//! Read first: RFC 9293 §3.7.1; RFC 7413 §4.1.3 (what a client sends) and §4.2.2 (what a server
//! does). SYN-ACKs of handshakes that are no connections yet are in `listen.rs`.

use super::*;
use crate::tcp::fast_open;

/// Our SYN, or in SYN-RECEIVED our SYN-ACK.
pub(super) fn send<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    (hop, frame): (Hop, &mut [u8]),
) -> Transmit {
    let config = &context.base.config.tcp;
    let segment_bytes = context.base.ip.payload_bytes_max(conn.ends.remote_address());
    let mss = handshake::announced_mss(config, segment_bytes);
    let value = timestamp(context.now, conn.cold.ts_offset);
    let answers = matches!(conn.state, State::SynReceived(_) | State::FastOpen(_));
    let (mut flags, ack, (offers, times)) = if answers {
        let offer = handshake::Offer {
            mss,
            window_scale: conn.flags.has(ConnFlags::WINDOW_SCALE).then_some(conn.snd_scale),
            timestamps: conn.flags.has(ConnFlags::TIMESTAMPS),
            sack: conn.flags.has(ConnFlags::SACK),
            ecn: conn.flags.has(ConnFlags::ECN),
        };
        let times = Timestamps { value, echo: conn.receive.ts_recent };
        let options = handshake::syn_ack_options(config, &offer, mss, times);
        (Flags::SYN | Flags::ACK, conn.receive.nxt, options)
    } else {
        (Flags::SYN, SeqNum(0), handshake::syn_options(config, mss, value))
    };
    if answers && conn.flags.has(ConnFlags::ECN) {
        flags = flags | Flags::ECE;
    } else if !answers && config.ecn && conn.attempts == 0 {
        // RFC 3168 §6.1.1.1: a SYN sent again asks for nothing that may be in the way.
        flags = flags | Flags::ECE | Flags::CWR;
    }
    conn.flags.clear(ConnFlags::SYN_DUE.or(ConnFlags::ACK_NOW).or(ConnFlags::PURE_ACK));
    if conn.cold.rtt_or_syn_at_us == 0 {
        conn.cold.rtt_or_syn_at_us = microseconds(context.now);
    }
    let mut control = Control {
        seq: conn.send.una,
        ack,
        flags,
        window: window::first(conn.cold.receive_buffer) as u16,
        times,
        offers: Some(offers),
    };
    if conn.state.is_fast_open() {
        // The data of the SYN takes its part of the window.
        control.seq = conn.send.una - 1;
        control.window = conn.receive.wnd().min(u32::from(u16::MAX)) as u16;
        conn.receive.last_ack_sent = conn.receive.nxt;
    }
    if !answers && let Some((cookie, len)) = early_data(conn, shard, context) {
        return send_early(conn, shard, context, (hop, &control), (cookie, len), frame);
    }
    let config = &context.base.config.tcp;
    if config.path_mtu_discovery {
        let flow = shard.locals.flow(&conn.ends);
        return write_control(context, (&flow, conn.cold.service), control, hop, frame);
    }
    let head = control.repr(conn.ends.local_port(), conn.ends.remote_port());
    write_empty(context, &draft(conn, shard, context, (&head, false)), hop, frame)
}

/// What our first SYN says of Fast Open, and how many bytes of the queue it may carry. `None`:
/// nothing. The SYN that follows it carries neither (RFC 7413 §4.1.3).
fn early_data<M>(
    conn: &Connection,
    shard: &Shard,
    context: &Context<'_, M>,
) -> Option<(Cookie, u32)> {
    let rare = shard.rares.get(conn)?;
    if conn.attempts > 0 || !matches!(rare.fast_open, Role::Client { .. }) {
        return None;
    }
    let (cookie, mss) = shard.peers.cookie(conn.ends.remote(), context.now)?;
    if cookie.is_request() {
        return Some((cookie, 0));
    }
    let segment_bytes = context.base.ip.payload_bytes_max(conn.ends.remote_address());
    let room = fast_open::syn_room(mss, segment_bytes);
    Some((cookie, conn.send.queue.bytes().min(room.into())))
}

/// A SYN with a Fast Open option, and with data if there is a cookie.
fn send_early<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    (hop, control): (Hop, &Control),
    (cookie, len): (Cookie, u32),
    frame: &mut [u8],
) -> Transmit {
    let mut head = control.repr(conn.ends.local_port(), conn.ends.remote_port());
    head.options.fast_open = Some(cookie);
    let draft = draft(conn, shard, context, (&head, false));
    let text_at = context.base.ip.header_bytes(&draft.flow.remote.ip()) + draft.head.header_bytes();
    let len = (len as usize).min(frame.len().saturating_sub(text_at));
    let mut sum = 0;
    if len > 0 {
        let text = &mut frame[text_at..text_at + len];
        sum = conn.send.queue.copy_out(&shard.nodes, context.memory, 0, text);
        conn.cold.accounting.count_bytes_out(len as u32);
        context.base.counters.totals.bytes_out += len as u64;
    }
    shard.rares.of(conn, context.now).fast_open = Role::Client { sent: len as u16 };
    write(context, &draft, hop, (len, sum), frame)
}
