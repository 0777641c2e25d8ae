//! LISTEN and SYN-RECEIVED: from a SYN to a connection.
//!
//! Read first: RFC 9293 §3.10.7.2, §3.10.7.4; RFC 4987 (SYN floods), `embryo.rs`, `cookie.rs`.
//!
//! A SYN costs one small record; the connection is made when the peer has answered our SYN-ACK, and
//! so has shown that it is where it says. If there is no record left, a cookie in the sequence
//! number costs nothing. A SYN for a listener with a full backlog is dropped, as in Linux, also
//! where it would get a cookie: it would be answered in vain.

use super::connection::Begin;
use super::cookie::{self, Cookie};
use super::deadline::Deadline;
use super::embryo::Embryo;
use super::ends::Ends;
use super::facts::Facts;
use super::fast_open::{Baker, Role};
use super::handshake::{self, Offer, announced_scale};
use super::holding::Reuse;
use super::isn::{microseconds, timestamp};
use super::listeners::Listener;
use super::replies::Reply;
use super::segment::Segment;
use super::segment_arrives::{self, queue_reset, reset_sender};
use super::state::{Closed, Input, Listen, State, SynReceived, transition};
use super::time_wait::Verdict;
use super::{CONTROL, PARKED, Tcp, output, timers, window};
use crate::config::SynCookies;
use crate::counters::Drop;
use crate::cx::Cx;
use crate::error::{CloseReason, ListenError, OperationError};
use crate::flow_table::Flow;
use crate::frame::Transmit;
use crate::id::{ListenerId, PoolId};
use crate::ip::{Ip, NextHop, Service};
use crate::memory::Memory;
use crate::seq::SeqNum;
use crate::wire::control::Control;
use crate::wire::tcp::{Flags, Options, Timestamps};
use core::net::SocketAddr;

/// Where a listener comes from.
const CLOSED: State = State::Closed(Closed { reason: CloseReason::Finished });

impl Tcp {
    /// Takes connections to `local` from now on.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub(crate) fn listen(
        &mut self,
        ip: &Ip,
        local: SocketAddr,
        backlog: u32,
        pool: PoolId,
    ) -> Result<ListenerId, ListenError> {
        if !local.ip().is_unspecified() && !ip.is_ours(local.ip()) {
            return Err(ListenError::BadLocalAddress);
        }
        debug_assert!(transition(CLOSED, Input::OpenPassive).is_some());
        self.listeners.insert(local, backlog, pool)
    }

    /// What the sockets of a listener's connections say of others at their local address.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn set_listener_reuse(
        &mut self,
        id: ListenerId,
        reuse: Reuse,
    ) -> Result<(), OperationError> {
        self.listeners.by_id(id).ok_or(OperationError::Unknown)?.reuse = reuse;
        Ok(())
    }

    /// How many connections of a listener may begin with a SYN's data and not be established yet;
    /// 0: none, no Fast Open.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn set_listener_fast_open(
        &mut self,
        id: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        self.listeners.by_id(id).ok_or(OperationError::Unknown)?;
        let pending_max = pending_max.min(crate::limits::FAST_OPEN_PENDING_MAX);
        self.shard.fast_open.allow(id, pending_max);
        Ok(())
    }

    /// Whether segments are answered as if nobody listened.
    pub(crate) const fn set_refusing(&mut self, is_refusing: bool) {
        self.is_refusing = is_refusing;
    }

    /// Takes no more; connections that nobody accepted are reset.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn unlisten<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        id: ListenerId,
    ) -> Result<(), OperationError> {
        self.listeners.by_id(id).ok_or(OperationError::Unknown)?;
        while let Some(conn) =
            self.listeners.get_mut(id.index).and_then(|listener| listener.waiting.pop_front())
        {
            self.connections[conn as usize].facts.clear(Facts::WAITS_FOR_ACCEPT);
            self.connections[conn as usize].facts.set(Facts::ORPHAN);
            self.end(cx, conn, Input::Abort);
        }
        while let Some(embryo) = self.embryos.of(id.index) {
            self.forget_embryo(embryo);
        }
        self.shard.events.take_off(self.embryos_from + id.index);
        self.listeners.remove(id.index);
        Ok(())
    }

    /// RFC 9293 §3.10.7.1 and §3.10.7.2: no connection has this flow.
    pub(super) fn on_segment_without_connection<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        hash: u32,
        segment: &Segment<'_>,
    ) {
        if self.shard.departed.holds(&segment.flow, cx.now) {
            return cx.counters.drop(Drop::DepartedConnection);
        }
        let listener = self.listeners.find(segment.flow.local, segment.flow.local_port);
        let Some(listener) = listener.filter(|_| !self.is_refusing) else {
            let begins = segment.has(Flags::SYN) && !segment.has(Flags::ACK) && !self.is_refusing;
            if begins && self.shard.departed.holds_address(&segment.flow, cx.now) {
                return cx.counters.drop(Drop::DepartedConnection);
            }
            return reset_sender(&mut self.shard, cx, segment);
        };
        // First: a RST is of no use here.
        if segment.has(Flags::RST) {
            return cx.counters.drop(Drop::NoConnection);
        }
        // Second: an ACK, unless it brings back a cookie.
        if segment.has(Flags::ACK) {
            return self.on_cookie(cx, (hash, listener), segment);
        }
        // Third.
        if let Err(reason) = self.may_begin(listener, segment) {
            return cx.counters.drop(reason);
        }
        self.on_syn(cx, (hash, listener), segment, None);
    }

    /// Checks that `segment`, which is no RST and no ACK, begins a connection of `listener`.
    fn may_begin(&self, listener: u32, segment: &Segment<'_>) -> Result<(), Drop> {
        // A SYN with FIN is no peer's. Linux drops it, so scanners learn nothing.
        if !segment.has(Flags::SYN) || segment.has(Flags::FIN) {
            return Err(Drop::UnexpectedSegment);
        }
        // A peer without an answer is not connected, and tries again.
        let is_full = self.listeners.get(listener).is_some_and(Listener::is_full);
        if is_full { Err(Drop::BacklogFull) } else { Ok(()) }
    }

    /// A SYN for a listener whose backlog is not full. `after`: our numbers of an older connection
    /// end there.
    fn on_syn<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        (hash, listener): (u32, u32),
        segment: &Segment<'_>,
        after: Option<SeqNum>,
    ) {
        debug_assert!(transition(State::Listen(Listen), Input::Syn).is_some());
        let config = &cx.config.tcp;
        let flow = segment.flow;
        let mut offer = Offer::of(config, &segment.options, flow.remote);
        // A peer that asks for ECN gets it, whatever we ask for ourselves.
        offer.ecn = handshake::is_ecn_setup_syn(segment.flags);
        let waiting = self.listeners.get(listener).map_or(0, |listener| listener.embryos);
        let full = waiting >= config.syn_backlog;
        if config.syn_cookies == SynCookies::Always
            || (full && config.syn_cookies == SynCookies::WhenFull)
        {
            return self.send_cookie(cx, segment, &offer);
        }
        let mut iss = self.shard.secret.isn(&flow, cx.now);
        if let Some(after) = after
            && iss.at_or_before(after)
        {
            // RFC 9293 §3.6.1 (MAY-2): beyond what the old connection used.
            iss = after + 1;
        }
        let mut embryo = Embryo {
            flow,
            hash,
            listener,
            iss,
            irs: segment.seq,
            ts_recent: segment.options.timestamps.map_or(0, |times| times.value),
            ts_offset: self.shard.secret.timestamp_offset(&flow),
            offer,
            sent_at_us: 0,
            sent: 0,
            wants_cookie: false,
            again_at: Deadline::after_ms(cx.now, self.shard.syn_wait_ms),
        };
        if let Some(cookie) = segment.options.fast_open
            && !full
            && self.shard.fast_open.is_on(self.listeners.id(listener))
        {
            let key = cx.config.tcp.fast_open_key.as_ref();
            let baker = Baker { secret: &self.shard.secret, key, now: cx.now };
            embryo.wants_cookie = !baker.is_valid(&flow, &cookie);
            if !embryo.wants_cookie && self.open_fast(cx, &embryo, segment) {
                return;
            }
        }
        let place = if full { None } else { self.embryos.insert(embryo) };
        let Some(index) = place else {
            if config.syn_cookies == SynCookies::WhenFull {
                return self.send_cookie(cx, segment, &offer);
            }
            return cx.counters.drop(Drop::QueueFull);
        };
        let entry = self.embryos_from + index;
        let inserted = self.shard.flows.insert(hash, entry);
        debug_assert!(inserted.is_ok(), "the flow table has room for every embryo");
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.embryos += 1;
        }
        self.shard.transmit.put(CONTROL, entry);
        self.arm_embryo(index);
    }

    /// RFC 7413 §4.2.2: a SYN with a valid cookie makes a connection, which takes its data at once.
    /// `false`: there is no room for that, and the handshake goes on as any other.
    fn open_fast<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        embryo: &Embryo,
        segment: &Segment<'_>,
    ) -> bool {
        let id = self.listeners.id(embryo.listener);
        let Some(listener) = self.listeners.get(embryo.listener) else { return false };
        let (pool, reuse) = (listener.pool, listener.reuse);
        if !self.shard.fast_open.begin(id, cx.now) {
            return false;
        }
        let Some((place, ends)) = self.take_room(&embryo.flow, reuse) else {
            self.shard.fast_open.give_back(id);
            return false;
        };
        self.grow_up(cx, (None, embryo), (place, ends, pool));
        let (conn, shard) = (&mut self.connections[place as usize], &mut self.shard);
        segment_arrives::on_syn_with_cookie(conn, shard, cx, segment);
        shard.rares.of(conn, cx.now).fast_open = Role::Server(id);
        conn.cold.attend_at = Deadline::after_ms(cx.now, shard.syn_wait_ms);
        cx.counters.totals.fast_opens += 1;
        self.hand_over(cx, place, embryo.listener);
        true
    }

    /// A new connection waits to be accepted.
    fn hand_over<M: Memory>(&mut self, cx: &mut Cx<'_, M>, place: u32, listener: u32) {
        cx.counters.totals.accepts += 1;
        self.connections[place as usize].facts.set(Facts::WAITS_FOR_ACCEPT);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.waiting.push_back(place);
        }
        self.announce_incoming(listener);
        self.settle_new(cx, place);
    }

    fn arm_embryo(&mut self, index: u32) {
        if let Some(at) = self.embryos.get(index).again_at.get(self.shard.now) {
            self.shard.wheel.arm(self.embryos_from + index, at);
        }
    }

    /// The SYN-ACK is sent again, or nobody waits any more (RFC 4987 §3.3).
    pub(super) fn on_embryo_timeout<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        let config = &cx.config.tcp;
        let embryo = self.embryos.get_mut(index);
        if !embryo.again_at.has_come(cx.now) {
            return self.arm_embryo(index);
        }
        if embryo.sent > config.synack_retries {
            self.forget_embryo(index);
            return;
        }
        let wait = timers::back_off(config.rto_initial, embryo.sent, config.rto_max);
        embryo.again_at = Deadline::after(cx.now, wait);
        self.shard.transmit.put(CONTROL, self.embryos_from + index);
        self.arm_embryo(index);
        cx.counters.totals.segments_retransmitted += 1;
    }

    /// Writes the SYN-ACK of an embryonic connection.
    pub(super) fn send_syn_ack<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        index: u32,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let embryo = self.embryos.get_mut(index);
        let NextHop::Ready(hop) = cx.ip.next_hop(cx.now, embryo.flow.remote) else {
            self.shard.transmit.put(PARKED, self.embryos_from + index);
            return None;
        };
        embryo.sent = embryo.sent.saturating_add(1);
        if embryo.sent == 1 {
            embryo.sent_at_us = microseconds(cx.now);
        }
        let control = syn_ack(cx, embryo);
        if embryo.wants_cookie {
            let mut head = control.repr();
            let key = cx.config.tcp.fast_open_key.as_ref();
            let baker = Baker { secret: &self.shard.secret, key, now: cx.now };
            head.options.fast_open = Some(baker.make(&embryo.flow));
            let what = (&embryo.flow, &head, Service::default());
            return Some(output::write_reply(cx, what, hop, frame));
        }
        let hosts = (embryo.flow.local, embryo.flow.remote);
        Some(output::write_control(cx, (hosts, Service::default()), control, hop, frame))
    }

    pub(super) fn forget_embryo(&mut self, index: u32) {
        let hash = self.embryos.get(index).hash;
        self.shard.flows.remove(hash, self.embryos_from + index);
        self.remove_embryo(index);
    }

    /// It is not in the flow table any more, and goes.
    fn remove_embryo(&mut self, index: u32) {
        let listener = self.embryos.get(index).listener;
        self.embryos.remove(index);
        let entry = self.embryos_from + index;
        self.shard.wheel.cancel(entry);
        self.shard.transmit.take_off(entry);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.embryos = listener.embryos.saturating_sub(1);
        }
    }

    /// §3.10.7.4 for SYN-RECEIVED from LISTEN.
    pub(super) fn on_segment_for_embryo<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        index: u32,
        segment: &Segment<'_>,
    ) {
        let embryo = *self.embryos.get(index);
        let rcv_nxt = embryo.irs + 1;
        let wnd = window::first(cx.config.tcp.receive_buffer);
        if segment.has(Flags::SYN) && !segment.has(Flags::ACK) && segment.seq == embryo.irs {
            // The peer did not see our SYN-ACK.
            return self.shard.transmit.put(CONTROL, self.embryos_from + index);
        }
        let acceptable = segment.seq.within(rcv_nxt, wnd.max(1));
        if segment.has(Flags::RST) {
            return self.on_reset_for_embryo(cx, index, segment);
        }
        let is_old = embryo.offer.timestamps
            && cx.config.tcp.paws
            && segment
                .options
                .timestamps
                .is_some_and(|times| (times.value.wrapping_sub(embryo.ts_recent) as i32) < 0);
        if is_old {
            // RFC 7323 §5.3.
            cx.counters.drop(Drop::OldTimestamp);
            return self.challenge_embryo(cx, &embryo);
        }
        if !acceptable || segment.has(Flags::SYN) {
            let reason = if acceptable { Drop::SynInConnection } else { Drop::OutsideWindow };
            cx.counters.drop(reason);
            return self.challenge_embryo(cx, &embryo);
        }
        if !segment.has(Flags::ACK) {
            return cx.counters.drop(Drop::UnexpectedSegment);
        }
        if segment.ack != embryo.iss + 1 {
            cx.counters.drop(Drop::BadAck);
            if let Some(reply) = Reply::reset(segment) {
                queue_reset(&mut self.shard, cx, reply);
            }
            return;
        }
        let is_bare = segment.payload.is_empty() && !segment.has(Flags::FIN);
        if is_bare && segment.seq != rcv_nxt {
            // Somebody who has sent more than a SYN sends it again, since we have acknowledged none
            // of it; the handshake is complete then. Who only ever says this is at the end of an
            // older connection, in TIME-WAIT: a late copy of its SYN brought us here, and by chance
            // our old numbers ended where the new ones begin.
            return cx.counters.drop(Drop::UnexpectedSegment);
        }
        self.promote(cx, Some(index), &embryo, segment);
    }

    fn on_reset_for_embryo<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        index: u32,
        segment: &Segment<'_>,
    ) {
        let embryo = *self.embryos.get(index);
        let rcv_nxt = embryo.irs + 1;
        let wnd = window::first(cx.config.tcp.receive_buffer);
        if segment.seq == rcv_nxt {
            cx.counters.totals.resets_in += 1;
            self.forget_embryo(index);
        } else if segment.seq.within(rcv_nxt, wnd) {
            cx.counters.drop(Drop::UnexactReset);
            self.challenge_embryo(cx, &embryo);
        } else {
            cx.counters.drop(Drop::OutsideWindow);
        }
    }

    /// An ACK that says what we expect.
    fn challenge_embryo<M>(&mut self, cx: &mut Cx<'_, M>, embryo: &Embryo) {
        if !self.shard.challenges.may_send(cx.now, &self.shard.secret, &embryo.flow) {
            return;
        }
        cx.counters.totals.challenge_acks += 1;
        let value = timestamp(cx.now, embryo.ts_offset);
        let times = Timestamps { value, echo: embryo.ts_recent };
        let timestamps = embryo.offer.timestamps.then_some(times);
        let options = Options { timestamps, ..Options::default() };
        let scale = embryo.offer.window_scale.map_or(0, |_| announced_scale(&cx.config.tcp));
        let window = (window::first(cx.config.tcp.receive_buffer) >> scale) as u16;
        let numbers = (embryo.iss + 1, embryo.irs + 1);
        let reply = Reply::ack(embryo.flow, numbers, window, options);
        if !self.shard.replies.push(reply) {
            cx.counters.drop(Drop::RateLimited);
        }
    }

    /// The handshake is complete: the record becomes a connection, which sees `segment`.
    fn promote<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        index: Option<u32>,
        embryo: &Embryo,
        segment: &Segment<'_>,
    ) {
        let Some(listener) = self.listeners.get(embryo.listener) else {
            return cx.counters.drop(Drop::NoConnection);
        };
        if listener.is_full() {
            // The SYN came while there was room. The SYN-ACK is sent again, and the peer answers
            // again.
            return cx.counters.drop(Drop::BacklogFull);
        }
        let (pool, reuse) = (listener.pool, listener.reuse);
        let Some((place, ends)) = self.take_room(&embryo.flow, reuse) else {
            return cx.counters.drop(Drop::NoConnectionRoom);
        };
        self.grow_up(cx, (index, embryo), (place, ends, pool));
        let conn = &mut self.connections[place as usize];
        segment_arrives::on_last_of_handshake(conn, &mut self.shard, cx, segment);
        debug_assert!(conn.state.is_synchronized(), "what it was made of was checked");
        self.hand_over(cx, place, embryo.listener);
    }

    /// Makes a connection of an embryonic one, which is gone then if it was kept.
    fn grow_up<M>(
        &mut self,
        cx: &Cx<'_, M>,
        (index, embryo): (Option<u32>, &Embryo),
        (place, ends, pool): (u32, Ends, PoolId),
    ) {
        let config = &cx.config.tcp;
        let begin = Begin {
            ends,
            hash: embryo.hash,
            state: State::SynReceived(SynReceived { passive: true }),
            iss: embryo.iss,
            ts_offset: embryo.ts_offset,
            pool,
        };
        self.make(cx.now, place, &begin, index.map(|index| self.embryos_from + index));
        if let Some(index) = index {
            self.remove_embryo(index);
        }
        let conn = &mut self.connections[place as usize];
        let mtu = cx.ip.path_mtu(&embryo.flow.remote);
        conn.agree(config, &embryo.offer, handshake::mss_of_mtu(mtu, embryo.flow.remote));
        conn.rcv_nxt = embryo.irs + 1;
        conn.rcv_adv = conn.rcv_nxt + window::first(conn.cold.receive_buffer);
        conn.last_ack_sent = conn.rcv_nxt;
        conn.ts_recent = embryo.ts_recent;
        conn.attempts = embryo.sent.saturating_sub(1);
        conn.cold.rtt_or_syn_at_us = embryo.sent_at_us;
        conn.cold.listener = embryo.listener as u16;
    }

    fn send_cookie<M>(&mut self, cx: &mut Cx<'_, M>, segment: &Segment<'_>, offer: &Offer) {
        let config = &cx.config.tcp;
        let flow = segment.flow;
        let iss = cookie::make(&self.shard.secret, &flow, segment.seq, cx.now, offer.mss);
        let clock = timestamp(cx.now, self.shard.secret.timestamp_offset(&flow));
        let value = cookie::stamp(clock, offer);
        let echo = segment.options.timestamps.map_or(0, |times| times.value);
        let offer = cookie::kept(offer);
        let mss = handshake::announced_mss(config, cx.ip.path_mtu(&flow.remote), flow.remote);
        let times = Timestamps { value, echo };
        let mut flags = Flags::SYN | Flags::ACK;
        if offer.ecn {
            flags = flags | Flags::ECE;
        }
        let (offers, times) = handshake::syn_ack_options(config, &offer, mss, times);
        let reply = Reply {
            flow,
            seq: iss,
            ack: segment.seq + 1,
            flags,
            window: window::first(config.receive_buffer) as u16,
            options: offers.and(times),
            service: Service::default(),
        };
        if self.shard.replies.push(reply) {
            cx.counters.totals.cookies_sent += 1;
        } else {
            cx.counters.drop(Drop::RateLimited);
        }
    }

    /// An ACK for a listener: the last one of a handshake that we kept nothing of, or nonsense.
    fn on_cookie<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        (hash, listener): (u32, u32),
        segment: &Segment<'_>,
    ) {
        let flow = segment.flow;
        let irs = segment.seq - 1;
        let iss = segment.ack - 1;
        let allowed = cx.config.tcp.syn_cookies != SynCookies::Never && !segment.has(Flags::SYN);
        let mss = match cookie::check(&self.shard.secret, &flow, irs, cx.now, iss) {
            Some(Cookie { mss }) if allowed => mss,
            _ => {
                cx.counters.drop(Drop::BadCookie);
                if let Some(reply) = Reply::reset(segment) {
                    queue_reset(&mut self.shard, cx, reply);
                }
                return;
            }
        };
        let ts_offset = self.shard.secret.timestamp_offset(&flow);
        let embryo = Embryo {
            flow,
            hash,
            listener,
            iss,
            irs,
            ts_recent: segment.options.timestamps.map_or(0, |times| times.value),
            ts_offset,
            offer: cookie::read_stamp(segment.options.timestamps, mss),
            sent_at_us: 0,
            sent: 1,
            wants_cookie: false,
            again_at: Deadline::NEVER,
        };
        cx.counters.totals.cookies_accepted += 1;
        self.promote(cx, None, &embryo, segment);
    }

    /// §3.10.7.4 for TIME-WAIT.
    pub(super) fn on_segment_in_time_wait<M: Memory>(
        &mut self,
        cx: &mut Cx<'_, M>,
        (hash, index): (u32, u32),
        segment: &Segment<'_>,
    ) {
        let (record, timestamps) = self.time_waits.get(index);
        let record = *record;
        match record.judge(segment, timestamps) {
            Verdict::Drop => cx.counters.drop(Drop::UnexpectedSegment),
            Verdict::Acknowledge => {
                cx.counters.drop(Drop::UnexpectedSegment);
                self.acknowledge_in_time_wait(cx, &record, timestamps);
            }
            Verdict::Restart => {
                self.time_waits.restart(cx.now, index);
                self.acknowledge_in_time_wait(cx, &record, timestamps);
            }
            Verdict::Reopen { after } => {
                let flow = segment.flow;
                let Some(listener) = self.listeners.find(flow.local, flow.local_port) else {
                    cx.counters.drop(Drop::UnexpectedSegment);
                    return self.acknowledge_in_time_wait(cx, &record, timestamps);
                };
                if let Err(reason) = self.may_begin(listener, segment) {
                    // What is dropped ends nothing.
                    return cx.counters.drop(reason);
                }
                self.end_time_wait(index);
                self.on_syn(cx, (hash, listener), segment, Some(after));
            }
        }
    }
}

/// The SYN-ACK that answers a SYN.
#[inline]
fn syn_ack<M>(cx: &Cx<'_, M>, embryo: &Embryo) -> Control {
    let config = &cx.config.tcp;
    let Flow { remote, local_port: src_port, remote_port: dst_port, .. } = embryo.flow;
    let mss = handshake::announced_mss(config, cx.ip.path_mtu(&remote), remote);
    let value = timestamp(cx.now, embryo.ts_offset);
    let times = Timestamps { value, echo: embryo.ts_recent };
    let (offers, times) = handshake::syn_ack_options(config, &embryo.offer, mss, times);
    let mut flags = Flags::SYN | Flags::ACK;
    // RFC 3168 §6.1.1; the packet itself carries no mark that a router could drop it for.
    if embryo.offer.ecn {
        flags = flags | Flags::ECE;
    }
    Control {
        src_port,
        dst_port,
        seq: embryo.iss,
        ack: embryo.irs + 1,
        flags,
        window: window::first(config.receive_buffer) as u16,
        times,
        offers: Some(offers),
    }
}
