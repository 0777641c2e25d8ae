//! SYNs and SYN-ACKs of connections, with the data of Fast Open.
//!
//! Read first: RFC 9293 §3.7.1; RFC 7413 §4.1.3 (what a client sends) and §4.2.2 (what a server
//! does). SYN-ACKs of handshakes that are no connections yet are in `listen.rs`.

use super::*;

/// Our SYN, or in SYN-RECEIVED our SYN-ACK.
pub(super) fn send<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    (hop, frame): (Hop, &mut [u8]),
) -> Transmit {
    let config = &cx.config.tcp;
    let mss =
        handshake::announced_mss(config, cx.ip.path_mtu(&conn.ends.remote()), conn.ends.remote());
    let value = timestamp(cx.now, conn.cold.ts_offset);
    let answers = matches!(conn.state, State::SynReceived(_) | State::FastOpen(_));
    let (mut flags, ack, (offers, times)) = if answers {
        let offer = handshake::Offer {
            mss,
            window_scale: conn.facts.has(Facts::WINDOW_SCALE).then_some(conn.snd_scale),
            timestamps: conn.facts.has(Facts::TIMESTAMPS),
            sack: conn.facts.has(Facts::SACK),
            ecn: conn.facts.has(Facts::ECN),
        };
        let times = Timestamps { value, echo: conn.ts_recent };
        let options = handshake::syn_ack_options(config, &offer, mss, times);
        (Flags::SYN | Flags::ACK, conn.rcv_nxt, options)
    } else {
        (Flags::SYN, SeqNum(0), handshake::syn_options(config, mss, value))
    };
    if answers && conn.facts.has(Facts::ECN) {
        flags = flags | Flags::ECE;
    } else if !answers && config.ecn && conn.attempts == 0 {
        // RFC 3168 §6.1.1.1: a SYN sent again asks for nothing that may be in the way.
        flags = flags | Flags::ECE | Flags::CWR;
    }
    conn.facts.clear(Facts::SYN_DUE.or(Facts::ACK_NOW).or(Facts::PURE_ACK));
    if conn.cold.rtt_or_syn_at_us == 0 {
        conn.cold.rtt_or_syn_at_us = microseconds(cx.now);
    }
    let mut control = Control {
        src_port: conn.ends.local_port(),
        dst_port: conn.ends.remote_port(),
        seq: conn.snd_una,
        ack,
        flags,
        window: window::first(conn.cold.receive_buffer) as u16,
        times,
        offers: Some(offers),
    };
    if conn.state.is_fast_open() {
        // The data of the SYN takes its part of the window.
        control.seq = conn.snd_una - 1;
        control.window = conn.rcv_wnd().min(u32::from(u16::MAX)) as u16;
        conn.last_ack_sent = conn.rcv_nxt;
    }
    if !answers && let Some((cookie, len)) = early_data(conn, shard, cx) {
        return send_early(conn, shard, cx, (hop, &control), (cookie, len), frame);
    }
    let config = &cx.config.tcp;
    if config.path_mtu_discovery {
        let hosts = (shard.locals.local(&conn.ends), conn.ends.remote());
        return write_control(cx, (hosts, conn.cold.service), control, hop, frame);
    }
    write_empty(cx, &draft(conn, shard, cx, (control.repr(), false)), hop, frame)
}

/// What our first SYN says of Fast Open, and how many bytes of the queue it may carry. `None`:
/// nothing. The SYN that follows it carries neither (RFC 7413 §4.1.3).
fn early_data<M>(conn: &Connection, shard: &Shard, cx: &Cx<'_, M>) -> Option<(Cookie, u32)> {
    let rare = shard.rares.get(conn)?;
    if conn.attempts > 0 || !matches!(rare.fast_open, Role::Client { .. }) {
        return None;
    }
    let remote = conn.ends.remote();
    let (cookie, mss) = shard.peers.cookie(remote, cx.now)?;
    if cookie.is_request() {
        return Some((cookie, 0));
    }
    let mss = mss.min(handshake::mss_of_mtu(cx.ip.path_mtu(&remote), remote));
    let room = u32::from(mss).saturating_sub(wire::OPTIONS_BYTES_MAX as u32);
    Some((cookie, conn.send.bytes().min(room)))
}

/// A SYN with a Fast Open option, and with data if there is a cookie.
fn send_early<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    (hop, control): (Hop, &Control),
    (cookie, len): (Cookie, u32),
    frame: &mut [u8],
) -> Transmit {
    let mut head = control.repr();
    head.options.fast_open = Some(cookie);
    let draft = draft(conn, shard, cx, (head, false));
    let text_at = cx.ip.header_bytes(&draft.flow.remote) + draft.head.header_bytes();
    let len = (len as usize).min(frame.len().saturating_sub(text_at));
    let mut sum = 0;
    if len > 0 {
        let text = &mut frame[text_at..text_at + len];
        sum = conn.send.copy_out(&shard.nodes, cx.memory, 0, text);
        conn.cold.tally.bytes_out.add(len as u32);
        cx.counters.totals.bytes_out += len as u64;
    }
    shard.rares.of(conn, cx.now).fast_open = Role::Client { sent: len as u16 };
    write(cx, &draft, hop, (len, sum), frame)
}
