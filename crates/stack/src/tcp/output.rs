//! Output: selects, builds and sends segments.
//!
//! Read first: RFC 9293 §3.7.4 (Nagle), §3.8.6.2.1 (silly windows, the sender's side), §3.8.6.1
//! (zero windows); [mTCP 3.2.3] for the order of the lists.
//!
//! One call writes one frame. Answers that no connection stands behind go first, then the lists of
//! control, ACKs and data; a connection that has more to send goes to the end of its list.
//!
//! Invariants
//! - What may be sent is decided by [`next_data`], for the lists and for the frame. The fast paths
//!   (`output/fast_path.rs`, `output/control.rs`) decide a part of it alike.
//! - No data leaves that lies beyond the peer's window, but for retransmissions (MAY-7).
//! - Every segment of a synchronized connection has ACK set and acknowledges `rcv_nxt`.

use core::net::IpAddr;
use core::time::Duration;

use super::connection::{Connection, Role};
use super::control_queue::{ControlQueue, Reply, Reset};
use super::deadline::Stamp;
use super::flags::ConnFlags;
use super::isn::{microseconds, timestamp};
use super::recovery::Sent;
use super::send_queue::Data;
use super::state::{Input, State};
use super::{ACK, CONTROL, DATA, Shard, Tcp, events, handshake, plpmtud, window};
use crate::context::Context;
use crate::counters::Drop;
use crate::error::CloseReason;
use crate::flow_table::Flow;
use crate::frame::Transmit;
use crate::ip::{Departing, Hop, NextHop, Service};
use crate::memory::Memory;
use crate::seq::{SeqNum, SeqRange};
use crate::time::Instant;
use crate::wire::control::Control;
use crate::wire::tcp::{
    self as wire, Cookie, Flags, Options, Repr, SACK_BLOCKS_MAX, SackBlock, Timestamps,
};
use crate::wire::{Ecn, Protocol, checksum};

pub(super) use control::{has_fin, times, write as write_control};
pub(super) use fast_path::has_fast_segment;

mod control;
mod fast_path;
mod parking;
mod syn;

/// Largest payload of one frame where the link cuts it: what an IP packet holds.
const TSO_BYTES_MAX: u32 = 65_535 - 60 - 60;

/// The list that a connection belongs on.
pub(super) fn wants(conn: &Connection, has_data: bool) -> Option<usize> {
    if conn.state.is_closed() {
        return None;
    }
    if conn.flags.any(ConnFlags::SYN_DUE.or(ConnFlags::PROBE_DUE)) {
        return Some(CONTROL);
    }
    let has_ack = conn.state.is_synchronized() || matches!(conn.state, State::SynReceived(_));
    if has_ack && conn.flags.has(ConnFlags::PURE_ACK) {
        return Some(ACK);
    }
    if !conn.state.is_synchronized() {
        return None;
    }
    if has_data {
        return Some(DATA);
    }
    conn.flags.has(ConnFlags::ACK_NOW).then_some(ACK)
}

/// What data may be sent now. Retransmissions first, then a tail loss probe, then new data.
pub(super) fn next_data(conn: &Connection, shard: &Shard) -> Option<Data> {
    let recovery = &conn.cold.recovery;
    if let Some(range) = recovery.next_retransmission(&shard.records) {
        let len = within_record(conn, shard, range).unwrap_or(range.len());
        return Some(data(conn, SeqRange::new(range.start, len), Sent::Retransmission));
    }
    if conn.flags.has(ConnFlags::TAIL_PROBE_DUE) {
        return tail_probe(conn, shard);
    }
    let idle = conn.unsent() == 0 && !conn.fin_waits();
    if idle || conn.flags.has(ConnFlags::STARVED) {
        return None;
    }
    let allowance = recovery.allowance(&shard.records);
    let len = new_len(conn, shard, allowance)?;
    Some(data(conn, SeqRange::new(conn.send.nxt, len), Sent::New))
}

/// How much of `range` belongs to the record that it begins in; `None`: all of it does, and the
/// record does not end before the queue does.
fn within_record(conn: &Connection, shard: &Shard, range: SeqRange) -> Option<u32> {
    if !shard.rares.options(conn).has_records {
        return None;
    }
    let bytes = conn.send.queue.record_bytes(&shard.nodes, range.start.since(conn.send.una))?;
    (conn.fin_seq().after(range.start + bytes)).then(|| bytes.min(range.len()))
}

fn data(conn: &Connection, range: SeqRange, kind: Sent) -> Data {
    let fin = conn.state.owes_fin() && range.end == conn.fin_seq() + 1;
    Data { range, kind, fin }
}

/// RFC 8985 §7.3: new data if there is some, else the last segment again.
fn tail_probe(conn: &Connection, shard: &Shard) -> Option<Data> {
    let waiting = conn.unsent() + u32::from(conn.fin_waits());
    let len = waiting.min(u32::from(conn.mss)).min(conn.send.window_room());
    let new = SeqRange::new(conn.send.nxt, len);
    let len = within_record(conn, shard, new).unwrap_or(len);
    if len > 0 {
        return Some(data(conn, SeqRange::new(conn.send.nxt, len), Sent::New));
    }
    let range = conn.cold.recovery.probe(&shard.records)?;
    Some(data(conn, range, Sent::Probe))
}

/// How much new data may be sent, a FIN included: RFC 9293 §3.8.6.2.1, with Nagle's algorithm in
/// Minshall's form: it holds a small segment back only while another small one is in flight.
fn new_len(conn: &Connection, shard: &Shard, allowance: u32) -> Option<u32> {
    let waiting = conn.unsent() + u32::from(conn.fin_waits());
    if waiting == 0 {
        return None;
    }
    let record = within_record(conn, shard, SeqRange::new(conn.send.nxt, waiting));
    if record.is_none() {
        match plpmtud::next(conn, shard, allowance) {
            plpmtud::Next::AsAlways => {}
            plpmtud::Next::Probe(len) => return Some(len),
            plpmtud::Next::Wait => return None,
        }
    }
    let waiting = record.unwrap_or(waiting);
    // A FIN alone is no data: RFC 5681 §2 limits by cwnd how much data is in flight.
    let allowance = if conn.unsent() == 0 { allowance.max(1) } else { allowance };
    let usable = waiting.min(conn.send.window_room()).min(allowance);
    let mss = u32::from(conn.mss);
    let small_in_flight = conn.cold.small_end.after(conn.send.una);
    let options = shard.rares.options(conn);
    let nagle =
        (small_in_flight && !conn.flags.has(ConnFlags::NO_DELAY)) | options.corked | options.held;
    // More follows what ends a record: nothing is gained by waiting.
    let nagle = nagle && !conn.fin_waits() && record.is_none();
    if usable >= mss {
        // (1) Full segments. What is left over goes with them, or has to wait.
        let all = usable == waiting && !nagle;
        return Some(if all { usable } else { usable - usable % mss });
    }
    if usable == 0 {
        return None;
    }
    // (2) All there is, and Nagle's algorithm allows it.
    if usable == waiting && !nagle {
        return Some(usable);
    }
    // (3) A good part of the largest window that the peer ever had.
    let part = usable >= conn.cold.snd_wnd_max / 2 && usable < allowance;
    // (4) The override timeout, and no sooner: `timers.rs` sets the fact.
    let overdue = conn.flags.has(ConnFlags::OVERRIDE);
    ((part && !nagle) || overdue).then_some(usable)
}

/// The peer's window keeps us from sending, and nothing in flight will bring an ACK: only a timer
/// can go on (MUST-36, and the override timeout of §3.8.6.2.1).
pub(super) fn is_stuck(conn: &Connection, has_data: bool) -> bool {
    !has_data
        && conn.send.flight() == 0
        && conn.state.is_synchronized()
        // The SYN-ACK's timer goes on.
        && !conn.state.is_fast_open()
        && (conn.unsent() > 0 || conn.fin_waits())
}

/// A frame on its way out. (Its header stays where it was made: a copy of what was just written in
/// smaller parts would wait for them.)
struct Draft<'a> {
    flow: Flow,
    head: &'a Repr,
    service: Service,
    ecn: Ecn,
    dont_fragment: bool,
}

impl Tcp {
    /// Writes the next frame into `frame`.
    #[inline(always)]
    pub(crate) fn poll_transmit<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        self.shard.now = context.now;
        if self.shard.epoch != context.base.ip.epoch() {
            self.shard.epoch = context.base.ip.epoch();
            self.unpark(context);
        }
        if let Some(index) = self.direct_sender()
            && let Some(sent) = self.send_direct(context, index, frame)
        {
            return Some(sent);
        }
        self.send_listed(context, frame)
    }

    /// Sends for whatever waits longest on the most urgent list.
    #[inline(never)]
    fn send_listed<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        self.schedule_dirty();
        while !self.shard.control_queue.is_empty() {
            let queue = &mut self.shard.control_queue;
            let sent = control::send_next_queued(queue, context, frame);
            if sent.is_some() {
                return sent;
            }
        }
        while let Some(entry) = self.next_sender() {
            let sent = match entry.checked_sub(self.half_open_from) {
                Some(half_open) => self.send_syn_ack(context, half_open, frame),
                None => self.send_segment(context, entry, frame),
            };
            if sent.is_some() {
                return sent;
            }
            self.schedule_dirty();
        }
        None
    }

    /// Nothing can leave under the addresses and routes of `epoch`, and nothing is to be decided.
    #[inline(always)]
    pub(crate) fn is_silent(&self, epoch: u32) -> bool {
        let shard = &self.shard;
        shard.dirty.is_empty()
            && shard.transmit.are_empty([CONTROL, ACK, DATA])
            && shard.control_queue.is_empty()
            && shard.epoch == epoch
    }

    /// The only dirty connection, if nothing else waits to leave: it would be put on the data list
    /// and taken off again.
    #[inline(always)]
    fn direct_sender(&self) -> Option<u32> {
        let shard = &self.shard;
        let index = shard.dirty.only()?;
        let is_alone =
            shard.control_queue.is_empty() && shard.transmit.are_empty([CONTROL, ACK, DATA]);
        is_alone.then_some(index)
    }

    /// Sends for the connection that [`Tcp::direct_sender`] answered. `None`: nothing happened.
    #[inline(never)]
    fn send_direct<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let Self { connections, shard, .. } = self;
        let conn = connections.get_mut(index as usize)?;
        if conn.send.queue.bytes() == 0 || conn.flags.has(ConnFlags::PARKED) {
            return self.send_fin_direct(context, index, frame);
        }
        let hop = hop(context, conn)?;
        let sent = fast_path::send(conn, shard, context, (hop, index), frame)?;
        conn.flags.clear(ConnFlags::DIRTY);
        shard.dirty.clear();
        Some(sent)
    }

    /// The same of a connection that has no text in its queue.
    #[inline(never)]
    fn send_fin_direct<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let Self { connections, shard, .. } = self;
        let conn = &mut connections[index as usize];
        if !conn.fin_waits() || conn.flags.has(ConnFlags::PARKED) {
            return None;
        }
        let hop = hop(context, conn)?;
        let sent = control::send_fin(conn, shard, context, (hop, index), frame)?;
        conn.flags.clear(ConnFlags::DIRTY);
        shard.dirty.clear();
        Some(sent)
    }

    /// Who sends next: control segments before ACKs before data [mTCP 3.2.3].
    fn next_sender(&mut self) -> Option<u32> {
        [CONTROL, ACK, DATA].into_iter().find_map(|list| self.shard.transmit.pop(list))
    }

    #[inline(never)]
    fn send_segment<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let conn = &mut self.connections[index as usize];
        let shard = &mut self.shard;
        let Some(hop) = hop(context, conn) else {
            self.park(context, index);
            return None;
        };
        if conn.send.queue.bytes() > 0
            && let Some(usual) = fast_path::send(conn, shard, context, (hop, index), frame)
        {
            return Some(usual);
        }
        if conn.fin_waits()
            && let Some(fin) = control::send_fin(conn, shard, context, (hop, index), frame)
        {
            return Some(fin);
        }
        let transmit = if conn.flags.has(ConnFlags::SYN_DUE) {
            Some(syn::send(conn, shard, context, (hop, frame)))
        } else if conn.flags.has(ConnFlags::PROBE_DUE) {
            conn.flags.clear(ConnFlags::PROBE_DUE);
            Some(send_ack(conn, shard, context, (hop, conn.send.una - 1), frame))
        } else if conn.flags.has(ConnFlags::PURE_ACK) {
            Some(send_ack(conn, shard, context, (hop, conn.send.nxt), frame))
        } else if !conn.is_silent()
            && let Some(data) = next_data(conn, shard)
        {
            send_data(conn, shard, context, (hop, data), frame)
        } else if conn.flags.has(ConnFlags::ACK_NOW) {
            Some(send_ack(conn, shard, context, (hop, conn.send.nxt), frame))
        } else {
            None
        };
        if transmit.is_some() {
            conn.cold.accounting.count_segment_out();
        }
        self.schedule_sent(context, index);
        transmit
    }
}

/// The way to the peer: the one used last, or a new one.
#[inline(always)]
fn hop<M>(context: &mut Context<'_, M>, conn: &mut Connection) -> Option<Hop> {
    if let Some(hop) = conn.cold.hop
        && context.base.ip.hop_is_fresh(context.now, hop)
    {
        return Some(hop);
    }
    new_hop(context, conn)
}

#[inline(never)]
fn new_hop<M>(context: &mut Context<'_, M>, conn: &mut Connection) -> Option<Hop> {
    conn.cold.hop = match context.base.ip.next_hop(context.now, conn.ends.remote_address()) {
        NextHop::Ready(hop) => Some(hop),
        NextHop::Waiting | NextHop::NoRoute => None,
    };
    conn.cold.hop
}

/// The ACK that is due now, with everything as it is before the next segment changes it.
pub(super) fn ack_as_it_is<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &Context<'_, M>,
) -> Reply {
    let seq = conn.send.nxt;
    let Repr { seq, ack, flags, window, options, .. } = head(conn, shard, context, seq, Flags::ACK);
    let (flow, service) = (shard.locals.flow(&conn.ends), conn.cold.service);
    Reply { flow, seq, ack, flags, window, options, service }
}

/// A segment without payload at `at.1`.
fn send_ack<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    at: (Hop, SeqNum),
    frame: &mut [u8],
) -> Transmit {
    if let Some(transmit) = control::send_ack(conn, shard, context, at, frame) {
        return transmit;
    }
    let head = head(conn, shard, context, at.1, Flags::ACK);
    write_empty(context, &draft(conn, shard, context, (&head, false)), at.0, frame)
}

fn draft<'a, M>(
    conn: &Connection,
    shard: &Shard,
    context: &Context<'_, M>,
    (head, is_new_data): (&'a Repr, bool),
) -> Draft<'a> {
    // RFC 3168 §6.1.4 and §6.1.5: neither pure ACKs nor retransmissions.
    let ecn = if is_new_data && conn.flags.has(ConnFlags::ECN) { Ecn::Ect0 } else { Ecn::NotEct };
    let dont_fragment = context.base.config.tcp.path_mtu_discovery;
    let flow = shard.locals.flow(&conn.ends);
    Draft { flow, head, service: conn.cold.service, ecn, dont_fragment }
}

/// The header of a segment of a synchronized connection. Whatever it is, it acknowledges.
fn head<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &Context<'_, M>,
    seq: SeqNum,
    flags: Flags,
) -> Repr {
    let echo = if conn.flags.has(ConnFlags::ECE_DUE) { Flags::ECE } else { Flags::NONE };
    let mut head = Repr {
        src_port: conn.ends.local_port(),
        dst_port: conn.ends.remote_port(),
        seq,
        ack: conn.receive.nxt,
        flags: flags | echo,
        window: window::announce(conn),
        urgent: 0,
        options: Options { timestamps: times(conn, context.now), ..Options::default() },
    };
    put_sack(conn, shard, &mut head.options);
    conn.receive.last_ack_sent = conn.receive.nxt;
    conn.cold.timers.clear_ack();
    conn.flags.clear(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK));
    head
}

/// SACK blocks, a duplicate first (RFC 2018 §4, RFC 2883 §4).
fn put_sack(conn: &Connection, shard: &mut Shard, options: &mut Options) {
    let rare = shard.rares.get_mut(conn);
    let has_fin = conn.flags.has(ConnFlags::RCV_FIN);
    let fin = rare.as_ref().filter(|_| has_fin).map(|rare| rare.rcv_fin);
    let duplicate =
        rare.map_or_else(SeqRange::default, |rare| core::mem::take(&mut rare.duplicate));
    if !conn.flags.has(ConnFlags::SACK) || (duplicate.is_empty() && !conn.receive.queue.has_gap()) {
        return;
    }
    let mut blocks = [SackBlock::default(); SACK_BLOCKS_MAX];
    let mut count = 0;
    let (ranges, len) = conn.receive.queue.sack_blocks(&shard.nodes);
    let duplicate = Some(duplicate).filter(|range| !range.is_empty());
    for range in duplicate.iter().chain(&ranges[..len]) {
        if count < blocks.len() {
            // A FIN takes a number of its own, behind the text that it came with.
            let end = range.end + u32::from(fin == Some(range.end));
            blocks[count] = SackBlock { start: range.start, end };
            count += 1;
        }
    }
    options.set_sack(&blocks[..count]);
}

/// Cuts `data` to what fits beside the options, and into the frame.
fn fit<M>(
    conn: &Connection,
    context: &Context<'_, M>,
    data: Data,
    options: &Options,
    frame: usize,
) -> Data {
    let usual = fast_option_bytes(conn);
    let room = u32::from(conn.mss) + usual;
    let one = room.saturating_sub(options.bytes() as u32).max(1);
    let headers =
        context.base.ip.header_bytes(&conn.ends.remote()) + wire::HEADER_BYTES + options.bytes();
    let frame = (frame.saturating_sub(headers) as u32).min(TSO_BYTES_MAX);
    // With a SACK option its segments would be shorter than those that recovery counts on.
    let may_be_cut = context.base.config.tso && options.bytes() as u32 == usual;
    let most = if may_be_cut && data.kind == Sent::New {
        (frame - frame % one).max(one.min(frame))
    } else {
        one.min(frame)
    };
    let payload = data.range.len() - u32::from(data.fin);
    if payload <= most {
        return data;
    }
    if data.kind == Sent::Probe {
        // The unacknowledged end of the data matters.
        let start = data.range.end - most - u32::from(data.fin);
        return Data { range: SeqRange { start, ..data.range }, ..data };
    }
    Data { range: SeqRange::new(data.range.start, most), fin: false, ..data }
}

/// A segment that is larger than others: the frame holds it, and no option takes room from it.
fn fits_whole<M>(
    conn: &Connection,
    context: &Context<'_, M>,
    data: Data,
    options: &Options,
    frame: usize,
) -> bool {
    let headers =
        context.base.ip.header_bytes(&conn.ends.remote()) + wire::HEADER_BYTES + options.bytes();
    options.bytes() as u32 == fast_option_bytes(conn)
        && headers + data.range.len() as usize <= frame
}

fn send_data<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    what: (Hop, Data),
    frame: &mut [u8],
) -> Option<Transmit> {
    let (hop, data) = what;
    let was_idle = conn.send.flight() == 0;
    if was_idle {
        conn.cold.recovery.restart_after_idle(&mut shard.records, context.now);
    }
    let mut head = head(conn, shard, context, data.range.start, Flags::ACK);
    let is_probe = plpmtud::is_probe(conn, shard, &data)
        && fits_whole(conn, context, data, &head.options, frame.len());
    let data = if is_probe { data } else { fit(conn, context, data, &head.options, frame.len()) };
    head.seq = data.range.start;
    let sent = conn.cold.recovery.on_sent(&mut shard.records, context.now, data.range, data.kind);
    if sent.is_err() {
        // No record is free. The ACK goes anyway; a timer tries again.
        conn.flags.set(ConnFlags::STARVED);
        let draft = draft(conn, shard, context, (&head, false));
        return Some(write_empty(context, &draft, hop, frame));
    }
    let payload = data.range.len() - u32::from(data.fin);
    let offset = data.range.start.since(conn.send.una);
    head.flags = head.flags | data_flags(conn, shard, &data);
    point_at_urgent(conn, shard, &mut head);
    note_sent(conn, shard, context, (&data, was_idle));
    let draft = draft(conn, shard, context, (&head, data.kind == Sent::New));
    let text_at = context.base.ip.header_bytes(&draft.flow.remote.ip()) + draft.head.header_bytes();
    let text = &mut frame[text_at..text_at + payload as usize];
    let sum = conn.send.queue.copy_out(&shard.nodes, context.memory, offset, text);
    let mut transmit = write(context, &draft, hop, (payload as usize, sum), frame);
    let one = u32::from(conn.mss) + fast_option_bytes(conn) - draft.head.options.bytes() as u32;
    if payload > one && !is_probe {
        transmit = transmit.cut_by_link(one as u16, text_at as u16);
    }
    if is_probe {
        plpmtud::note_probe(conn, shard, data.range);
    } else if data.is_new() {
        plpmtud::look(conn, shard, context);
    }
    Some(transmit)
}

fn fast_option_bytes(conn: &Connection) -> u32 {
    if conn.flags.has(ConnFlags::TIMESTAMPS) { u32::from(handshake::TIMESTAMPS_BYTES) } else { 0 }
}

/// FIN, PSH with the last byte of the queue (MUST-61), CWR with new data (RFC 3168 §6.1.2).
fn data_flags(conn: &mut Connection, shard: &Shard, data: &Data) -> Flags {
    let mut flags = Flags::NONE;
    if data.fin {
        flags = flags | Flags::FIN;
    }
    let has_text = data.range.len() > u32::from(data.fin);
    let is_end = data.range.end.at_or_after(conn.fin_seq());
    let options = shard.rares.options(conn);
    let ends_record = options.has_records && ends_record(conn, shard, data);
    if has_text && (is_end && !options.unpushed || ends_record) {
        flags = flags | Flags::PSH;
    }
    if data.kind == Sent::New && conn.flags.take(ConnFlags::CWR_DUE) {
        flags = flags | Flags::CWR;
    }
    flags
}

/// The last byte of `data` is the last of a record.
fn ends_record(conn: &Connection, shard: &Shard, data: &Data) -> bool {
    let last = data.range.end - u32::from(data.fin) - 1;
    let offset = last.since(conn.send.una);
    offset < conn.send.queue.bytes()
        && conn.send.queue.record_bytes(&shard.nodes, offset) == Some(1)
}

/// §3.8.5: every segment before the urgent pointer carries it.
fn point_at_urgent(conn: &Connection, shard: &Shard, head: &mut Repr) {
    let Some(rare) = shard.rares.get(conn) else { return };
    let ahead = rare.snd_up.since(head.seq);
    if rare.snd_up.after(head.seq) {
        head.flags = head.flags | Flags::URG;
        head.urgent = ahead.min(u32::from(u16::MAX)) as u16;
    }
}

/// Moves `snd.nxt`, and counts.
fn note_sent<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    (data, was_idle): (&Data, bool),
) {
    let payload = data.range.len() - u32::from(data.fin);
    conn.cold.accounting.count_bytes_out(payload);
    context.base.counters.totals.bytes_out += u64::from(payload);
    conn.flags.clear(ConnFlags::TAIL_PROBE_DUE.or(ConnFlags::OVERRIDE).or(ConnFlags::STARVED));
    if data.fin {
        conn.flags.set(ConnFlags::FIN_SENT);
    }
    if data.kind != Sent::New {
        context.base.counters.totals.segments_retransmitted += 1;
        let rare = shard.rares.of(conn, context.now);
        rare.segments_retransmitted = rare.segments_retransmitted.wrapping_add(1);
        rare.search.note_sent_again(data.range);
        return;
    }
    if was_idle && let Some(rare) = shard.rares.get_mut(conn) {
        rare.progress_at = Stamp::of(context.now);
    }
    conn.send.nxt = data.range.end;
    if conn.cold.rare.is_some() {
        events::note_unsent(conn, shard);
    }
    if payload > 0 && conn.cold.accounting.has_received_bytes() {
        conn.flags.set(ConnFlags::INTERACTIVE);
    }
    if payload > 0 && !payload.is_multiple_of(u32::from(conn.mss)) {
        conn.cold.small_end = data.range.end;
    }
}

/// Where the parts of a frame begin.
struct Parts {
    transport: usize,
    text: usize,
    header_sum: u16,
    payload: usize,
    stays_here: bool,
}

/// A whole frame without payload that does not change a connection.
pub(super) fn write_reply<M>(
    context: &mut Context<'_, M>,
    (flow, head, service): (&Flow, &Repr, Service),
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    if let Some(transmit) = fast_path::write_reply(context, (flow, head, service), hop, frame) {
        return transmit;
    }
    let draft = Draft { flow: *flow, head, service, ecn: Ecn::NotEct, dont_fragment: true };
    write_empty(context, &draft, hop, frame)
}

/// A whole frame without payload.
fn write_empty<M>(
    context: &mut Context<'_, M>,
    draft: &Draft<'_>,
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    write(context, draft, hop, (0, 0), frame)
}

/// Writes the headers before a text of so many bytes, which is there and sums to so much.
fn write<M>(
    context: &mut Context<'_, M>,
    draft: &Draft<'_>,
    hop: Hop,
    text: (usize, u16),
    frame: &mut [u8],
) -> Transmit {
    if let Some(transmit) = fast_path::write(context, draft, hop, text, frame) {
        return transmit;
    }
    let parts = start_frame(context, draft, hop, text.0, frame);
    finish_frame(context, draft, &parts, text.1, frame)
}

/// Writes the headers.
fn start_frame<M>(
    context: &mut Context<'_, M>,
    draft: &Draft<'_>,
    hop: Hop,
    payload: usize,
    frame: &mut [u8],
) -> Parts {
    let transport = context.base.ip.header_bytes(&draft.flow.remote.ip());
    let header_bytes = draft.head.header_bytes();
    let departing = Departing {
        src: draft.flow.local.ip(),
        dst: draft.flow.remote.ip(),
        protocol: Protocol::Tcp,
        service: draft.service,
        ecn: draft.ecn,
        payload_bytes: header_bytes + payload,
        dont_fragment: draft.dont_fragment,
    };
    context.base.ip.write_headers(frame, hop, &departing);
    let header_sum = draft.head.emit(&mut frame[transport..]);
    Parts {
        transport,
        text: transport + header_bytes,
        header_sum,
        payload,
        stays_here: hop.is_local(),
    }
}

/// Writes the checksum (MUST-2), or leaves it to the link.
fn finish_frame<M>(
    context: &mut Context<'_, M>,
    draft: &Draft<'_>,
    parts: &Parts,
    text_sum: u16,
    frame: &mut [u8],
) -> Transmit {
    let len = parts.text + parts.payload;
    let segment = &mut frame[parts.transport..len];
    let Flow { local, remote, .. } = draft.flow;
    let pseudo =
        checksum::pseudo_header(local.ip(), remote.ip(), Protocol::Tcp.number(), segment.len());
    context.base.counters.totals.segments_out += 1;
    let transmit = Transmit::new(len).staying(parts.stays_here);
    if context.base.config.tx_checksum {
        wire::write_partial_checksum(segment, pseudo);
        let (start, field) = (parts.transport as u16, wire::CHECKSUM_OFFSET as u8);
        return transmit.checksummed_by_link(start, field);
    }
    let sum = checksum::combine(checksum::combine(pseudo, parts.header_sum), text_sum);
    wire::write_checksum(segment, sum);
    transmit
}
