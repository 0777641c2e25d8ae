//! URG, the text and FIN (RFC 9293 §3.10.7.4 sixth to eighth).

use super::*;
use crate::tcp::receive_queue::Store;

/// §3.10.7.4 sixth. The pointer names the byte after the urgent ones (MUST-62).
pub(super) fn on_urgent<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &Cx<'_, M>,
    segment: &Segment<'_>,
) {
    if !segment.has(Flags::URG) || !conn.state.may_receive() {
        return;
    }
    let up = segment.seq + u32::from(segment.urgent);
    let is_news = if conn.facts.has(Facts::RCV_URGENT) {
        shard.rares.get(conn).is_none_or(|rare| up.after(rare.rcv_up))
    } else {
        up.after(conn.rcv_nxt)
    };
    if is_news {
        shard.rares.of(conn, cx.now).rcv_up = up;
        conn.facts.set(Facts::RCV_URGENT.or(Facts::URGENT));
    }
}

/// §3.10.7.4 seventh: keeps what is new and fits into the window.
pub(in crate::tcp) fn on_text<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    segment: &Segment<'_>,
) {
    if segment.payload.is_empty() {
        return;
    }
    if !conn.state.may_receive() {
        // The peer's FIN came before: its text ends there.
        return cx.counters.drop(Drop::UnexpectedSegment);
    }
    if conn.facts.has(Facts::ORPHAN) {
        return on_text_for_nobody(conn, shard, cx, segment);
    }
    let seq = segment.payload_seq();
    let Some(payload) = within_window(conn, seq, segment.payload) else {
        cx.counters.drop(Drop::OutsideWindow);
        return conn.facts.set(Facts::ACK_NOW.or(Facts::PURE_ACK));
    };
    let mut store = Store { nodes: &mut shard.nodes, memory: cx.memory, pool: conn.cold.pool };
    let had_gap = conn.receive.has_gap();
    let mut inserted = conn.receive.insert(&mut store, conn.rcv_nxt, seq, payload);
    if inserted.no_room && seq.at_or_before(conn.rcv_nxt) && conn.receive.has_gap() {
        // What lies behind gaps was never acknowledged, and makes room for what closes the first
        // (RFC 2018 §8). Otherwise connections with gaps could hold all buffers from one another.
        conn.receive.forget_apart(store.nodes, store.memory);
        let rcv_nxt = conn.rcv_nxt + inserted.advanced;
        let more = conn.receive.insert(&mut store, rcv_nxt, seq, payload);
        inserted.advanced += more.advanced;
        inserted.no_room = more.no_room;
    }
    conn.rcv_nxt += inserted.advanced;
    conn.cold.tally.bytes_in.add(inserted.advanced);
    cx.counters.totals.bytes_in += u64::from(inserted.advanced);
    if inserted.no_room {
        cx.counters.drop(Drop::NoBuffer);
    }
    if let Some(duplicate) = inserted.duplicate {
        cx.counters.totals.segments_duplicate += 1;
        if conn.facts.has(Facts::SACK) {
            shard.rares.of(conn, cx.now).duplicate = duplicate;
        }
    }
    if inserted.out_of_order {
        cx.counters.totals.segments_out_of_order += 1;
    }
    // RFC 5681 §4.2: at once for what is out of order, and for what fills a gap.
    let is_partial = had_gap && conn.receive.has_gap();
    if inserted.advanced == 0 || inserted.duplicate.is_some() || inserted.no_room || is_partial {
        conn.facts.set(Facts::ACK_NOW.or(Facts::PURE_ACK));
    } else if had_gap {
        conn.facts.set(Facts::ACK_NOW);
    }
    window::on_received(conn, cx, &window::Text::of(segment), inserted.advanced);
}

/// The application has closed: nobody will read this, and the peer must know (§3.6.1, SHLD-3).
fn on_text_for_nobody<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    segment: &Segment<'_>,
) {
    let end = segment.payload_seq() + segment.payload.len() as u32;
    if end.at_or_before(conn.rcv_nxt) {
        return conn.facts.set(Facts::ACK_NOW);
    }
    // The RST has to be where the peer's ACK is, or it is not believed: it may not have our FIN, or
    // our last bytes (RFC 5961 §3.2).
    if let Some(reply) = Reply::reset(segment) {
        queue_reset(shard, cx, reply);
    }
    close::apply(conn, shard, cx, Input::GiveUp(CloseReason::Aborted));
}

/// What of a payload lies in the window; `None`: nothing. What was received before stays: the
/// queue says which part that is.
fn within_window<'a>(conn: &Connection, seq: SeqNum, payload: &'a [u8]) -> Option<&'a [u8]> {
    let room = conn.rcv_adv.since(seq);
    let len = if conn.rcv_adv.at_or_before(seq) { 0 } else { payload.len().min(room as usize) };
    let end = seq + len as u32;
    (end.after(conn.rcv_nxt)).then(|| &payload[..len])
}

/// §3.10.7.4 eighth. A FIN counts when everything before it is here; one that came early is
/// remembered.
pub(super) fn on_fin<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &Cx<'_, M>,
    segment: &Segment<'_>,
) {
    if segment.has(Flags::FIN) && conn.state.peer_has_closed() {
        // It was sent again: our ACK was lost.
        return conn.facts.set(Facts::ACK_NOW);
    }
    let here = segment.end() - 1;
    let is_in_window = here.at_or_after(conn.rcv_nxt) && here.at_or_before(conn.rcv_adv);
    let fin = if segment.has(Flags::FIN) && is_in_window {
        here
    } else if conn.facts.has(Facts::RCV_FIN)
        && let Some(rare) = shard.rares.get(conn)
    {
        rare.rcv_fin
    } else {
        return;
    };
    if fin != conn.rcv_nxt {
        if segment.has(Flags::FIN) {
            // RFC 5681 §4.2: it is out of order, with text or without.
            conn.facts.set(Facts::ACK_NOW.or(Facts::PURE_ACK));
        }
        conn.facts.set(Facts::RCV_FIN);
        shard.rares.of(conn, cx.now).rcv_fin = fin;
        return;
    }
    let Some((state, _)) = transition(conn.state, Input::Fin) else { return };
    conn.state = state;
    conn.rcv_nxt += 1;
    conn.rcv_adv = conn.rcv_adv.later(conn.rcv_nxt);
    conn.facts.clear(Facts::RCV_FIN);
    // Where nothing came before, there is nothing to answer either.
    let is_answered =
        conn.cold.tally.bytes_in.get() > 0 && matches!(conn.state, State::CloseWait(_));
    if cx.config.tcp.delay_fin_ack && is_answered {
        window::acknowledge_late(conn);
    } else {
        conn.facts.set(Facts::ACK_NOW);
    }
    // Nothing beyond a FIN is urgent, whatever the pointer says.
    if let Some(rare) = shard.rares.get_mut(conn) {
        rare.rcv_up = rare.rcv_up.earlier(fin);
    }
    conn.pass_urgent(&shard.rares);
}
