//! What leaves, when, and how it looks.
//!
//! Read first: RFC 9293 §3.7.4 (Nagle), §3.8.6.2.1 (silly windows, the sender's side), §3.8.6.1
//! (zero windows); [mTCP 3.2.3] for the order of the lists.
//!
//! One call writes one frame. Answers that no connection stands behind go first, then the lists of
//! control, ACKs and data; a connection that has more to send goes to the end of its list.
//!
//! Invariants
//! - What may be sent is decided by [`next_data`] alone, for the lists and for the frame.
//! - No data leaves that lies beyond the peer's window, but for retransmissions (MAY-7).
//! - Every segment of a synchronized connection has ACK set and acknowledges `rcv_nxt`.

use core::net::IpAddr;
use core::time::Duration;

use super::connection::Connection;
use super::deadline::{Deadline, Stamp};
use super::facts::Facts;
use super::fast_open::Role;
use super::isn::{microseconds, timestamp};
use super::recovery::Sent;
use super::replies::{Parked, Replies, Reply, Reset};
use super::settle::{is_silent, touch};
use super::state::{Input, State};
use super::{ACK, CONTROL, DATA, PARKED, Shard, Tcp, handshake, path_search, window};
use crate::counters::Drop;
use crate::cx::Cx;
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

pub(super) use control::{times, write as write_control};
pub(super) use usual::has_usual;

mod control;
mod syn;
mod usual;

/// Largest payload of one frame where the link cuts it: what an IP packet holds.
const TSO_BYTES_MAX: u32 = 65_535 - 60 - 60;

/// R2 of data at least (SHLD-11).
const R2_MIN: Duration = Duration::from_secs(100);

/// Data to be sent in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Data {
    /// Its sequence numbers, a FIN's included.
    pub(super) range: SeqRange,
    pub(super) kind: Sent,
    /// The last of `range` is our FIN.
    pub(super) fin: bool,
}

impl Data {
    pub(super) fn is_new(&self) -> bool {
        self.kind == Sent::New
    }
}

/// The list that a connection belongs on.
pub(super) fn wants(conn: &Connection, has_data: bool) -> Option<usize> {
    if conn.state.is_closed() {
        return None;
    }
    if conn.facts.any(Facts::SYN_DUE.or(Facts::PROBE_DUE)) {
        return Some(CONTROL);
    }
    let has_ack = conn.state.is_synchronized() || matches!(conn.state, State::SynReceived(_));
    if has_ack && conn.facts.has(Facts::PURE_ACK) {
        return Some(ACK);
    }
    if !conn.state.is_synchronized() {
        return None;
    }
    if has_data {
        return Some(DATA);
    }
    conn.facts.has(Facts::ACK_NOW).then_some(ACK)
}

/// What data may be sent now. Retransmissions first, then a tail loss probe, then new data.
pub(super) fn next_data(conn: &Connection, shard: &Shard) -> Option<Data> {
    let recovery = &conn.cold.recovery;
    if let Some(range) = recovery.next_retransmission(&shard.records) {
        let len = within_record(conn, shard, range).unwrap_or(range.len());
        return Some(data(conn, SeqRange::new(range.start, len), Sent::Retransmission));
    }
    if conn.facts.has(Facts::TAIL_PROBE_DUE) {
        return tail_probe(conn, shard);
    }
    let idle = conn.unsent() == 0 && !conn.fin_waits();
    if idle || conn.facts.has(Facts::STARVED) {
        return None;
    }
    let allowance = recovery.allowance(&shard.records);
    let len = new_len(conn, shard, allowance)?;
    Some(data(conn, SeqRange::new(conn.snd_nxt, len), Sent::New))
}

/// How much of `range` belongs to the record that it begins in; `None`: all of it does, and the
/// record does not end before the queue does.
fn within_record(conn: &Connection, shard: &Shard, range: SeqRange) -> Option<u32> {
    if !shard.rares.options(conn).has_records {
        return None;
    }
    let bytes = conn.send.record_bytes(&shard.nodes, range.start.since(conn.snd_una))?;
    (conn.fin_seq().after(range.start + bytes)).then(|| bytes.min(range.len()))
}

fn data(conn: &Connection, range: SeqRange, kind: Sent) -> Data {
    let fin = conn.state.owes_fin() && range.end == conn.fin_seq() + 1;
    Data { range, kind, fin }
}

/// RFC 8985 §7.3: new data if there is some, else the last segment again.
fn tail_probe(conn: &Connection, shard: &Shard) -> Option<Data> {
    let waiting = conn.unsent() + u32::from(conn.fin_waits());
    let len = waiting.min(u32::from(conn.mss)).min(conn.window_room());
    let new = SeqRange::new(conn.snd_nxt, len);
    let len = within_record(conn, shard, new).unwrap_or(len);
    if len > 0 {
        return Some(data(conn, SeqRange::new(conn.snd_nxt, len), Sent::New));
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
    let record = within_record(conn, shard, SeqRange::new(conn.snd_nxt, waiting));
    if record.is_none() {
        match path_search::next(conn, shard, allowance) {
            path_search::Next::AsAlways => {}
            path_search::Next::Probe(len) => return Some(len),
            path_search::Next::Wait => return None,
        }
    }
    let waiting = record.unwrap_or(waiting);
    // A FIN alone is no data: RFC 5681 §2 limits by cwnd how much data is in flight.
    let allowance = if conn.unsent() == 0 { allowance.max(1) } else { allowance };
    let usable = waiting.min(conn.window_room()).min(allowance);
    let mss = u32::from(conn.mss);
    let small_in_flight = conn.cold.small_end.after(conn.snd_una);
    let options = shard.rares.options(conn);
    let nagle =
        (small_in_flight && !conn.facts.has(Facts::NO_DELAY)) | options.corked | options.held;
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
    let overdue = conn.facts.has(Facts::OVERRIDE);
    ((part && !nagle) || overdue).then_some(usable)
}

/// The peer's window keeps us from sending, and nothing in flight will bring an ACK: only a timer
/// can go on (MUST-36, and the override timeout of §3.8.6.2.1).
pub(super) fn is_stuck(conn: &Connection, has_data: bool) -> bool {
    !has_data
        && conn.flight() == 0
        && conn.state.is_synchronized()
        // The SYN-ACK's timer goes on.
        && !conn.state.is_fast_open()
        && (conn.unsent() > 0 || conn.fin_waits())
}

/// A frame on its way out.
struct Draft {
    flow: Flow,
    head: Repr,
    service: Service,
    ecn: Ecn,
    dont_fragment: bool,
}

impl Draft {
    /// A segment that no connection stands behind.
    fn of_nobody(flow: Flow, head: Repr) -> Self {
        Self { flow, head, service: Service::default(), ecn: Ecn::NotEct, dont_fragment: true }
    }
}

impl Tcp {
    /// Writes the next frame into `frame`.
    pub(crate) fn poll_transmit<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        self.shard.now = cx.now;
        if self.shard.epoch != cx.ip.epoch() {
            self.shard.epoch = cx.ip.epoch();
            self.unpark(cx);
        }
        self.settle_touched();
        while let Some(reply) = self.shard.replies.pop() {
            if let Some(transmit) = send_reply(&mut self.shard.replies, cx, &reply, frame) {
                return Some(transmit);
            }
        }
        while let Some(reset) = self.shard.replies.pop_reset() {
            let sent = control::send_reset(&mut self.shard.replies, cx, &reset, frame);
            if sent.is_some() {
                return sent;
            }
        }
        while let Some(entry) = self.next_sender() {
            let sent = match entry.checked_sub(self.embryos_from) {
                Some(embryo) => self.send_syn_ack(cx, embryo, frame),
                None => self.send_segment(cx, entry, frame),
            };
            if sent.is_some() {
                return sent;
            }
            self.settle_touched();
        }
        None
    }

    /// Who sends next: control segments before ACKs before data [mTCP 3.2.3].
    fn next_sender(&mut self) -> Option<u32> {
        [CONTROL, ACK, DATA].into_iter().find_map(|list| self.shard.transmit.pop(list))
    }

    fn send_segment<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        index: u32,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let conn = &mut self.connections[index as usize];
        let shard = &mut self.shard;
        let Some(hop) = hop(cx, conn) else {
            self.park(cx, index);
            return None;
        };
        if conn.send.bytes() > 0
            && let Some(usual) = usual::send(conn, shard, cx, (hop, index), frame)
        {
            return Some(usual);
        }
        let transmit = if conn.facts.has(Facts::SYN_DUE) {
            Some(syn::send(conn, shard, cx, (hop, frame)))
        } else if conn.facts.has(Facts::PROBE_DUE) {
            conn.facts.clear(Facts::PROBE_DUE);
            Some(send_ack(conn, shard, cx, (hop, conn.snd_una - 1), frame))
        } else if conn.facts.has(Facts::PURE_ACK) {
            Some(send_ack(conn, shard, cx, (hop, conn.snd_nxt), frame))
        } else if !is_silent(conn)
            && let Some(data) = next_data(conn, shard)
        {
            send_data(conn, shard, cx, (hop, data), frame)
        } else if conn.facts.has(Facts::ACK_NOW) {
            Some(send_ack(conn, shard, cx, (hop, conn.snd_nxt), frame))
        } else {
            None
        };
        if transmit.is_some() {
            conn.cold.tally.segments_out = conn.cold.tally.segments_out.wrapping_add(1);
        }
        self.settle_sent(cx, index);
        transmit
    }

    /// Nobody knows the next hop's address yet, or there is no way at all.
    fn park<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        self.connections[index as usize].facts.set(Facts::PARKED);
        self.settle(cx, index);
    }

    /// Routes changed: all that wait for a next hop try again.
    fn unpark<M>(&mut self, cx: &mut Cx<'_, M>) {
        self.unpark_replies(cx, |_| Parked::Goes);
        while let Some(entry) = self.shard.transmit.pop(PARKED) {
            if entry < self.embryos_from {
                let conn = &mut self.connections[entry as usize];
                conn.facts.clear(Facts::PARKED);
                touch(conn, &mut self.shard, entry);
            } else {
                self.shard.transmit.put(CONTROL, entry);
            }
        }
    }

    fn unpark_replies<M>(&mut self, cx: &mut Cx<'_, M>, becomes: impl FnMut(&Reply) -> Parked) {
        let lost = self.shard.replies.unpark(becomes);
        (0..lost).for_each(|_| cx.counters.drop(Drop::NextHopUnresolved));
    }

    /// A next hop was found, or nobody is there: all that wait try again, and those that wait for
    /// another one wait again.
    pub(crate) fn on_neighbour<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        neighbour: IpAddr,
        resolved: bool,
    ) {
        let ip = &*cx.ip;
        let lost = self.shard.replies.unpark(|reply| {
            match (ip.via(reply.flow.remote) == Some(neighbour), resolved) {
                (true, true) => Parked::Goes,
                (true, false) => Parked::Lost,
                (false, _) => Parked::Waits,
            }
        });
        (0..lost).for_each(|_| cx.counters.drop(Drop::NextHopUnresolved));
        while let Some(entry) = self.shard.transmit.pop(PARKED) {
            let lost = |dst| !resolved && cx.ip.via(dst) == Some(neighbour);
            if let Some(embryo) = entry.checked_sub(self.embryos_from) {
                if lost(self.embryos.get(embryo).flow.remote) {
                    self.forget_embryo(embryo);
                } else {
                    self.shard.transmit.put(CONTROL, entry);
                }
                continue;
            }
            let conn = &mut self.connections[entry as usize];
            conn.facts.clear(Facts::PARKED);
            // Who spoke to us a while ago may come back (SHLD-11); who never did is not there.
            let silent = conn.cold.heard_at.age(cx.now) > R2_MIN;
            if lost(conn.ends.remote()) && (silent || !conn.state.is_synchronized()) {
                self.end(cx, entry, Input::GiveUp(CloseReason::HostUnreachable));
            } else {
                self.settle(cx, entry);
            }
        }
    }
}

/// The way to the peer: the one used last, or a new one.
fn hop<M>(cx: &mut Cx<'_, M>, conn: &mut Connection) -> Option<Hop> {
    if let Some(hop) = conn.cold.hop
        && cx.ip.hop_is_fresh(cx.now, hop)
    {
        return Some(hop);
    }
    conn.cold.hop = match cx.ip.next_hop(cx.now, conn.ends.remote()) {
        NextHop::Ready(hop) => Some(hop),
        NextHop::Waiting | NextHop::NoRoute => None,
    };
    conn.cold.hop
}

fn send_reply<M>(
    replies: &mut Replies,
    cx: &mut Cx<'_, M>,
    reply: &Reply,
    frame: &mut [u8],
) -> Option<Transmit> {
    let hop = match cx.ip.next_hop(cx.now, reply.flow.remote) {
        NextHop::Ready(hop) => hop,
        // RFC 1122 §2.3.2.2: saved, rather than discarded.
        NextHop::Waiting => {
            if replies.park(*reply) {
                cx.counters.drop(Drop::NextHopUnresolved);
            }
            return None;
        }
        NextHop::NoRoute => {
            cx.counters.drop(Drop::NextHopUnresolved);
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
    Some(write_reply(cx, (&reply.flow, &head, reply.service), hop, frame))
}

/// The ACK that is due now, with everything as it is before the next segment changes it.
pub(super) fn ack_as_it_is<M>(conn: &mut Connection, shard: &mut Shard, cx: &Cx<'_, M>) -> Reply {
    let seq = conn.snd_nxt;
    let Repr { seq, ack, flags, window, options, .. } = head(conn, shard, cx, seq, Flags::ACK);
    let (flow, service) = (shard.locals.flow(&conn.ends), conn.cold.service);
    Reply { flow, seq, ack, flags, window, options, service }
}

/// A segment without payload at `at.1`.
fn send_ack<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    at: (Hop, SeqNum),
    frame: &mut [u8],
) -> Transmit {
    if let Some(transmit) = control::send_ack(conn, shard, cx, at, frame) {
        return transmit;
    }
    let head = head(conn, shard, cx, at.1, Flags::ACK);
    write_empty(cx, &draft(conn, shard, cx, (head, false)), at.0, frame)
}

fn draft<M>(
    conn: &Connection,
    shard: &Shard,
    cx: &Cx<'_, M>,
    (head, is_new_data): (Repr, bool),
) -> Draft {
    // RFC 3168 §6.1.4 and §6.1.5: neither pure ACKs nor retransmissions.
    let ecn = if is_new_data && conn.facts.has(Facts::ECN) { Ecn::Ect0 } else { Ecn::NotEct };
    let dont_fragment = cx.config.tcp.path_mtu_discovery;
    let flow = shard.locals.flow(&conn.ends);
    Draft { flow, head, service: conn.cold.service, ecn, dont_fragment }
}

/// The header of a segment of a synchronized connection. Whatever it is, it acknowledges.
fn head<M>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &Cx<'_, M>,
    seq: SeqNum,
    flags: Flags,
) -> Repr {
    let mut options = Options::default();
    if conn.facts.has(Facts::TIMESTAMPS) {
        let value = timestamp(cx.now, conn.cold.ts_offset);
        options.timestamps = Some(Timestamps { value, echo: conn.ts_recent });
    }
    put_sack(conn, shard, &mut options);
    let window = window::announce(conn);
    conn.last_ack_sent = conn.rcv_nxt;
    conn.cold.ack_at = Deadline::NEVER;
    conn.facts.clear(Facts::ACK_NOW.or(Facts::PURE_ACK));
    let echo = if conn.facts.has(Facts::ECE_DUE) { Flags::ECE } else { Flags::NONE };
    Repr {
        src_port: conn.ends.local_port(),
        dst_port: conn.ends.remote_port(),
        seq,
        ack: conn.rcv_nxt,
        flags: flags | echo,
        window,
        urgent: 0,
        options,
    }
}

/// SACK blocks, a duplicate first (RFC 2018 §4, RFC 2883 §4).
fn put_sack(conn: &Connection, shard: &mut Shard, options: &mut Options) {
    let rare = shard.rares.get_mut(conn);
    let has_fin = conn.facts.has(Facts::RCV_FIN);
    let fin = rare.as_ref().filter(|_| has_fin).map(|rare| rare.rcv_fin);
    let duplicate =
        rare.map_or_else(SeqRange::default, |rare| core::mem::take(&mut rare.duplicate));
    if !conn.facts.has(Facts::SACK) || (duplicate.is_empty() && !conn.receive.has_gap()) {
        return;
    }
    let mut blocks = [SackBlock::default(); SACK_BLOCKS_MAX];
    let mut count = 0;
    let (ranges, len) = conn.receive.sack_blocks(&shard.nodes);
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
fn fit<M>(conn: &Connection, cx: &Cx<'_, M>, data: Data, options: &Options, frame: usize) -> Data {
    let usual = if conn.facts.has(Facts::TIMESTAMPS) { handshake::TIMESTAMPS_BYTES } else { 0 };
    let room = u32::from(conn.mss) + u32::from(usual);
    let one = room.saturating_sub(options.bytes() as u32).max(1);
    let headers = cx.ip.header_bytes(&conn.ends.remote()) + wire::HEADER_BYTES + options.bytes();
    let frame = (frame.saturating_sub(headers) as u32).min(TSO_BYTES_MAX);
    let most = if cx.config.tso && data.kind == Sent::New {
        (frame - frame % one).max(one.min(frame))
    } else {
        one.min(frame)
    };
    let payload = data.range.len() - u32::from(data.fin);
    if payload <= most {
        return data;
    }
    if data.kind == Sent::Probe {
        // It is the end that nobody has acknowledged which matters.
        let start = data.range.end - most - u32::from(data.fin);
        return Data { range: SeqRange { start, ..data.range }, ..data };
    }
    Data { range: SeqRange::new(data.range.start, most), fin: false, ..data }
}

/// A segment that is larger than others: the frame holds it, and no option takes room from it.
fn fits_whole<M>(
    conn: &Connection,
    cx: &Cx<'_, M>,
    data: Data,
    options: &Options,
    frame: usize,
) -> bool {
    let headers = cx.ip.header_bytes(&conn.ends.remote()) + wire::HEADER_BYTES + options.bytes();
    options.bytes() as u32 == usual_bytes(conn) && headers + data.range.len() as usize <= frame
}

fn send_data<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    cx: &mut Cx<'_, M>,
    what: (Hop, Data),
    frame: &mut [u8],
) -> Option<Transmit> {
    let (hop, data) = what;
    let was_idle = conn.flight() == 0;
    if was_idle {
        conn.cold.recovery.restart_after_idle(&mut shard.records, cx.now);
    }
    let mut head = head(conn, shard, cx, data.range.start, Flags::ACK);
    let is_probe = path_search::is_probe(conn, shard, &data)
        && fits_whole(conn, cx, data, &head.options, frame.len());
    let data = if is_probe { data } else { fit(conn, cx, data, &head.options, frame.len()) };
    head.seq = data.range.start;
    let sent = conn.cold.recovery.on_sent(&mut shard.records, cx.now, data.range, data.kind);
    if sent.is_err() {
        // No record is free. The ACK goes anyway; a timer tries again.
        conn.facts.set(Facts::STARVED);
        let draft = draft(conn, shard, cx, (head, false));
        return Some(write_empty(cx, &draft, hop, frame));
    }
    let payload = data.range.len() - u32::from(data.fin);
    let offset = data.range.start.since(conn.snd_una);
    head.flags = head.flags | data_flags(conn, shard, &data);
    point_at_urgent(conn, shard, &mut head);
    note_sent(conn, shard, cx, (&data, was_idle));
    let draft = draft(conn, shard, cx, (head, data.kind == Sent::New));
    let text_at = cx.ip.header_bytes(&draft.flow.remote) + draft.head.header_bytes();
    let text = &mut frame[text_at..text_at + payload as usize];
    let sum = conn.send.copy_out(&shard.nodes, cx.memory, offset, text);
    let mut transmit = write(cx, &draft, hop, (payload as usize, sum), frame);
    let one = u32::from(conn.mss) + usual_bytes(conn) - draft.head.options.bytes() as u32;
    if payload > one && !is_probe {
        transmit.segment_bytes = one as u16;
        transmit.header_bytes = text_at as u16;
    }
    if is_probe {
        path_search::note_probe(conn, shard, data.range);
    } else if data.is_new() {
        path_search::look(conn, shard, cx);
    }
    Some(transmit)
}

fn usual_bytes(conn: &Connection) -> u32 {
    if conn.facts.has(Facts::TIMESTAMPS) { u32::from(handshake::TIMESTAMPS_BYTES) } else { 0 }
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
    if data.kind == Sent::New && conn.facts.take(Facts::CWR_DUE) {
        flags = flags | Flags::CWR;
    }
    flags
}

/// The last byte of `data` is the last of a record.
fn ends_record(conn: &Connection, shard: &Shard, data: &Data) -> bool {
    let last = data.range.end - u32::from(data.fin) - 1;
    let offset = last.since(conn.snd_una);
    offset < conn.send.bytes() && conn.send.record_bytes(&shard.nodes, offset) == Some(1)
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
    cx: &mut Cx<'_, M>,
    (data, was_idle): (&Data, bool),
) {
    let payload = data.range.len() - u32::from(data.fin);
    conn.cold.tally.bytes_out.add(payload);
    cx.counters.totals.bytes_out += u64::from(payload);
    conn.facts.clear(Facts::TAIL_PROBE_DUE.or(Facts::OVERRIDE).or(Facts::STARVED));
    if data.fin {
        conn.facts.set(Facts::FIN_SENT);
    }
    if data.kind != Sent::New {
        cx.counters.totals.segments_retransmitted += 1;
        let rare = shard.rares.of(conn, cx.now);
        rare.segments_retransmitted = rare.segments_retransmitted.wrapping_add(1);
        rare.search.note_sent_again(data.range);
        return;
    }
    if was_idle && let Some(rare) = shard.rares.get_mut(conn) {
        rare.progress_at = Stamp::of(cx.now);
    }
    conn.snd_nxt = data.range.end;
    if payload > 0 && conn.cold.tally.bytes_in.get() > 0 {
        conn.facts.set(Facts::INTERACTIVE);
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
}

/// A whole frame without payload that does not change a connection.
pub(super) fn write_reply<M>(
    cx: &mut Cx<'_, M>,
    (flow, head, service): (&Flow, &Repr, Service),
    hop: Hop,
    frame: &mut [u8],
) -> Transmit {
    if let Some(transmit) = usual::write_reply(cx, (flow, head, service), hop, frame) {
        return transmit;
    }
    let draft = Draft { service, ..Draft::of_nobody(*flow, *head) };
    write_empty(cx, &draft, hop, frame)
}

/// A whole frame without payload.
fn write_empty<M>(cx: &mut Cx<'_, M>, draft: &Draft, hop: Hop, frame: &mut [u8]) -> Transmit {
    write(cx, draft, hop, (0, 0), frame)
}

/// Writes the headers before a text of so many bytes, which is there and sums to so much.
fn write<M>(
    cx: &mut Cx<'_, M>,
    draft: &Draft,
    hop: Hop,
    text: (usize, u16),
    frame: &mut [u8],
) -> Transmit {
    if let Some(transmit) = usual::write(cx, draft, hop, text, frame) {
        return transmit;
    }
    let parts = start_frame(cx, draft, hop, text.0, frame);
    finish_frame(cx, draft, &parts, text.1, frame)
}

/// Writes the headers.
fn start_frame<M>(
    cx: &mut Cx<'_, M>,
    draft: &Draft,
    hop: Hop,
    payload: usize,
    frame: &mut [u8],
) -> Parts {
    let transport = cx.ip.header_bytes(&draft.flow.remote);
    let header_bytes = draft.head.header_bytes();
    let departing = Departing {
        src: draft.flow.local,
        dst: draft.flow.remote,
        protocol: Protocol::Tcp,
        service: draft.service,
        ecn: draft.ecn,
        payload_bytes: header_bytes + payload,
        dont_fragment: draft.dont_fragment,
    };
    cx.ip.write_headers(frame, hop, &departing);
    let header_sum = draft.head.emit(&mut frame[transport..]);
    Parts { transport, text: transport + header_bytes, header_sum, payload }
}

/// Writes the checksum (MUST-2), or leaves it to the link.
fn finish_frame<M>(
    cx: &mut Cx<'_, M>,
    draft: &Draft,
    parts: &Parts,
    text_sum: u16,
    frame: &mut [u8],
) -> Transmit {
    let len = parts.text + parts.payload;
    let segment = &mut frame[parts.transport..len];
    let Flow { local, remote, .. } = draft.flow;
    let pseudo = checksum::pseudo_header(local, remote, Protocol::Tcp.number(), segment.len());
    cx.counters.totals.segments_out += 1;
    if cx.config.tx_checksum {
        wire::write_partial_checksum(segment, pseudo);
        return Transmit {
            len,
            checksum_start: parts.transport as u16,
            checksum_field: wire::CHECKSUM_OFFSET as u16,
            ..Transmit::default()
        };
    }
    let sum = checksum::combine(checksum::combine(pseudo, parts.header_sum), text_sum);
    wire::write_checksum(segment, sum);
    Transmit { len, ..Transmit::default() }
}
