//! URG, the text and FIN (RFC 9293 §3.10.7.4 sixth to eighth).

use super::*;
use crate::tcp::receive_queue::{ReceiveQueue, Store};

/// §3.10.7.4 sixth. The pointer names the byte after the urgent ones (MUST-62).
pub(super) fn on_urgent<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &Context<'_, M>,
    segment: &Segment<'_>,
) {
    if !segment.has(Flags::URG) || !conn.state.may_receive() {
        return;
    }
    let up = segment.seq + u32::from(segment.urgent);
    let is_news = if conn.flags.has(ConnFlags::RCV_URGENT) {
        shard.rares.get(conn).is_none_or(|rare| up.after(rare.rcv_up))
    } else {
        up.after(conn.receive.nxt)
    };
    if is_news {
        let rare = shard.rares.of(conn, context.now);
        (rare.rcv_up, rare.urgent_moved) = (up, true);
        conn.flags.set(ConnFlags::RCV_URGENT.or(ConnFlags::RARE_NEWS));
    }
}

/// §3.10.7.4 seventh: keeps what is new and fits into the window.
pub(in crate::tcp) fn on_text<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    if segment.payload.is_empty() {
        return;
    }
    if !conn.state.may_receive() {
        // The peer's FIN came before: its text ends there.
        return context.base.counters.drop(Drop::UnexpectedSegment);
    }
    if conn.flags.has(ConnFlags::ORPHAN) {
        return on_text_without_reader(conn, shard, context, segment);
    }
    let seq = segment.payload_seq();
    let Some(payload) = within_window(conn, seq, segment.payload) else {
        context.base.counters.drop(Drop::OutsideWindow);
        return conn.flags.set(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
    };
    let mut store = Store { nodes: &mut shard.nodes, memory: context.memory, pool: conn.cold.pool };
    if conn.receive.queue.is_empty()
        && seq == conn.receive.nxt
        && let Some((chunk, _)) = ReceiveQueue::stage_in_new_buffer(&mut store, payload)
    {
        conn.receive.queue.adopt_first(chunk);
        return fast_path::take_text(conn, context, chunk.len, &window::Text::of(segment));
    }
    let had_gap = conn.receive.queue.has_gap();
    let mut inserted = conn.receive.queue.insert(&mut store, conn.receive.nxt, seq, payload);
    if inserted.no_room && seq.at_or_before(conn.receive.nxt) && conn.receive.queue.has_gap() {
        // What lies behind gaps was never acknowledged, and makes room for what closes the first
        // (RFC 2018 §8). Otherwise connections with gaps could hold all buffers from one another.
        conn.receive.queue.drop_out_of_order(store.nodes, store.memory);
        let rcv_nxt = conn.receive.nxt + inserted.advanced;
        let more = conn.receive.queue.insert(&mut store, rcv_nxt, seq, payload);
        inserted.advanced += more.advanced;
        inserted.no_room = more.no_room;
    }
    conn.receive.nxt += inserted.advanced;
    conn.cold.accounting.count_bytes_in(inserted.advanced);
    context.base.counters.totals.bytes_in += u64::from(inserted.advanced);
    if inserted.no_room {
        context.base.counters.drop(Drop::NoBuffer);
    }
    if let Some(duplicate) = inserted.duplicate {
        context.base.counters.totals.segments_duplicate += 1;
        if conn.flags.has(ConnFlags::SACK) {
            shard.rares.of(conn, context.now).duplicate = duplicate;
        }
    }
    if inserted.out_of_order {
        context.base.counters.totals.segments_out_of_order += 1;
    }
    // RFC 5681 §4.2: at once for what is out of order, and for what fills a gap.
    let is_partial = had_gap && conn.receive.queue.has_gap();
    if inserted.advanced == 0 || inserted.duplicate.is_some() || inserted.no_room || is_partial {
        conn.flags.set(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
    } else if had_gap {
        conn.flags.set(ConnFlags::ACK_NOW);
    }
    window::on_received(conn, context, &window::Text::of(segment), inserted.advanced);
}

/// Resets a connection that receives text after the application has closed it (§3.6.1, SHLD-3).
fn on_text_without_reader<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    segment: &Segment<'_>,
) {
    let end = segment.payload_seq() + segment.payload.len() as u32;
    if end.at_or_before(conn.receive.nxt) {
        return conn.flags.set(ConnFlags::ACK_NOW);
    }
    // The RST has to be where the peer's ACK is, or it is not believed: it may not have our FIN, or
    // our last bytes (RFC 5961 §3.2).
    if let Some(reply) = Reply::reset(segment) {
        queue_reset(shard, context, reply);
    }
    close::apply(conn, shard, context, Input::GiveUp(CloseReason::Aborted));
}

/// What of a payload lies in the window; `None`: nothing. What was received before stays: the
/// queue says which part that is.
fn within_window<'a>(conn: &Connection, seq: SeqNum, payload: &'a [u8]) -> Option<&'a [u8]> {
    let room = conn.receive.adv.since(seq);
    let len = if conn.receive.adv.at_or_before(seq) { 0 } else { payload.len().min(room as usize) };
    let end = seq + len as u32;
    (end.after(conn.receive.nxt)).then(|| &payload[..len])
}

/// §3.10.7.4 eighth. A FIN counts when everything before it is here; one that came early is
/// remembered.
pub(super) fn on_fin<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &Context<'_, M>,
    segment: &Segment<'_>,
) {
    if segment.has(Flags::FIN) && conn.state.peer_has_closed() {
        // It was sent again: our ACK was lost.
        return conn.flags.set(ConnFlags::ACK_NOW);
    }
    let here = segment.end() - 1;
    let is_in_window = here.at_or_after(conn.receive.nxt) && here.at_or_before(conn.receive.adv);
    let fin = if segment.has(Flags::FIN) && is_in_window {
        here
    } else if conn.flags.has(ConnFlags::RCV_FIN)
        && let Some(rare) = shard.rares.get(conn)
    {
        rare.rcv_fin
    } else {
        return;
    };
    if fin != conn.receive.nxt {
        if segment.has(Flags::FIN) {
            // RFC 5681 §4.2: it is out of order, with text or without.
            conn.flags.set(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
        }
        conn.flags.set(ConnFlags::RCV_FIN);
        shard.rares.of(conn, context.now).rcv_fin = fin;
        return;
    }
    take_fin(conn, shard, context);
}

/// The peer's FIN is at `rcv.nxt`.
pub(super) fn take_fin<M>(conn: &mut Connection, shard: &mut Shard, context: &Context<'_, M>) {
    let fin = conn.receive.nxt;
    let Some((state, _)) = transition(conn.state, Input::Fin) else { return };
    conn.state = state;
    conn.receive.nxt += 1;
    conn.receive.adv = conn.receive.adv.later(conn.receive.nxt);
    conn.flags.clear(ConnFlags::RCV_FIN);
    // Where nothing came before, there is nothing to answer either.
    let is_answered =
        conn.cold.accounting.has_received_bytes() && matches!(conn.state, State::CloseWait(_));
    if context.base.config.tcp.delay_fin_ack && is_answered {
        window::acknowledge_late(conn);
    } else {
        conn.flags.set(ConnFlags::ACK_NOW);
    }
    // Nothing beyond a FIN is urgent, whatever the pointer says.
    if let Some(rare) = shard.rares.get_mut(conn) {
        rare.rcv_up = rare.rcv_up.earlier(fin);
    }
    conn.pass_urgent(&shard.rares);
}
