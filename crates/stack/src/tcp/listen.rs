//! LISTEN and SYN-RECEIVED: from a SYN to a connection.
//!
//! Read first: RFC 9293 §3.10.7.2, §3.10.7.4; RFC 4987 (SYN floods), `syn_queue.rs`, `cookie.rs`.
//!
//! A SYN costs one small record; the connection is made when the peer has answered our SYN-ACK, and
//! so has shown that it is where it says. If there is no record left, a cookie in the sequence
//! number costs nothing. A SYN for a listener with a full backlog is dropped, as in Linux, also
//! where it would get a cookie: it would be answered in vain.

use super::connection::{Begin, Role};
use super::control_queue::Reply;
use super::cookie::{self, Cookie};
use super::deadline::Deadline;
use super::fast_open::Baker;
use super::flags::AppAttachment;
use super::flow_key::FlowKey;
use super::handshake::{self, Offer, announced_scale};
use super::isn::{microseconds, timestamp};
use super::listener_groups::ListenerGroups;
use super::segment::Segment;
use super::segment_arrives::{self, queue_reset, reset_sender};
use super::send_hold::Reuse;
use super::state::{Closed, Input, Listen, State, SynReceived, transition};
use super::syn_queue::HalfOpen;
use super::time_wait::Verdict;
use super::{CONTROL, PARKED, Tcp, Unknown, output, timers, window};
use crate::config::SynCookies;
use crate::context::Context;
use crate::counters::Drop;
use crate::error::{CloseReason, ListenError, OperationError};
use crate::frame::Transmit;
use crate::id::{ListenerGroupId, ListenerId, PoolId};
use crate::ip::{Ip, NextHop, Service};
use crate::memory::Memory;
use crate::seq::SeqNum;
use crate::time::Instant;
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
        if !local.ip().is_unspecified() && !ip.stays_here(local.ip()) {
            return Err(ListenError::BadLocalAddress);
        }
        debug_assert!(transition(CLOSED, Input::OpenPassive).is_some());
        let id = self.listeners.insert(local, backlog, pool)?;
        self.awaited.on_begin(local);
        Ok(id)
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

    /// A listener is of a group from now on.
    ///
    /// # Errors
    /// An id is stale.
    pub(crate) fn set_listener_group(
        &mut self,
        id: ListenerId,
        group: ListenerGroupId,
    ) -> Result<(), OperationError> {
        self.listeners.set_group(id, group)
    }

    /// The groups of its listeners.
    pub(crate) const fn listener_groups(&mut self) -> &mut ListenerGroups {
        &mut self.listeners.groups
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

    /// How segments are answered from now on that no connection has.
    pub(crate) const fn set_unknown(&mut self, unknown: Unknown) {
        self.unknown = unknown;
    }

    /// Takes no more; connections that were not accepted are reset.
    ///
    /// # Errors
    /// The id is stale.
    pub(crate) fn unlisten<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ListenerId,
    ) -> Result<(), OperationError> {
        self.listeners.by_id(id).ok_or(OperationError::Unknown)?;
        while let Some(conn) =
            self.listeners.get_mut(id.index).and_then(|listener| listener.waiting.pop_front())
        {
            self.leave_backlog(conn, AppAttachment::Detached);
            self.end(context, conn, Input::Abort);
        }
        while let Some(half_open) = self.half_open.of(id.index) {
            self.forget_half_open(half_open);
        }
        self.shard.events.take_off(self.half_open_from + id.index);
        if let Some(listener) = self.listeners.remove(id.index) {
            self.awaited.on_end(context.now, listener.local);
        }
        Ok(())
    }

    /// RFC 9293 §3.10.7.1 and §3.10.7.2: no connection has this flow.
    pub(super) fn on_segment_without_connection<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        hash: u32,
        segment: &Segment<'_>,
    ) {
        if self.shard.departed.holds(&segment.flow, context.now) {
            return context.base.counters.drop(Drop::DepartedConnection);
        }
        let listener = self.listeners.find(segment.flow.local, segment.flow.local_port);
        let is_awaited = listener.is_none() && self.is_awaited(context.now, segment);
        let Some(listener) = listener.filter(|_| self.unknown != Unknown::Refused) else {
            if self.unknown == Unknown::Stray {
                return context.base.counters.drop(Drop::DepartedConnection);
            }
            if is_awaited {
                return context.base.counters.drop(Drop::AwaitedListener);
            }
            return reset_sender(&mut self.shard, context, segment);
        };
        // First: a RST is of no use here.
        if segment.has(Flags::RST) {
            return context.base.counters.drop(Drop::NoConnection);
        }
        // Second: an ACK, unless it brings back a cookie.
        if segment.has(Flags::ACK) {
            return self.on_cookie(context, (hash, listener), segment);
        }
        // Third.
        if let Err(reason) = self.may_begin(listener, segment) {
            return context.base.counters.drop(reason);
        }
        self.on_syn(context, (hash, listener), segment, None);
    }

    /// Whether `segment` is a SYN for a listener that is expected.
    fn is_awaited(&mut self, now: Instant, segment: &Segment<'_>) -> bool {
        let is_syn = segment.has(Flags::SYN) && !segment.flags.intersects(Flags::ACK | Flags::RST);
        is_syn && self.awaited.expects(now, segment.flow.local.ip(), segment.flow.local_port)
    }

    /// Checks that `segment`, which is no RST and no ACK, begins a connection of `listener`.
    #[inline]
    fn may_begin(&mut self, listener: u32, segment: &Segment<'_>) -> Result<(), Drop> {
        // A SYN with FIN is no peer's. Linux drops it, so scanners learn nothing.
        if !segment.has(Flags::SYN) || segment.has(Flags::FIN) {
            return Err(Drop::UnexpectedSegment);
        }
        // A peer without an answer is not connected, and tries again.
        self.listeners.may_begin(listener)
    }

    /// A SYN for a listener whose backlog is not full. `after`: our numbers of an older connection
    /// end there.
    fn on_syn<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        (hash, listener): (u32, u32),
        segment: &Segment<'_>,
        after: Option<SeqNum>,
    ) {
        debug_assert!(transition(State::Listen(Listen), Input::Syn).is_some());
        let config = &context.base.config.tcp;
        let flow = segment.flow;
        let mut offer = Offer::of(config, &segment.options, flow.remote);
        // A peer that asks for ECN gets it, whatever we ask for ourselves.
        offer.ecn = handshake::is_ecn_setup_syn(segment.flags);
        let waiting = self.listeners.get(listener).map_or(0, |listener| listener.half_open);
        let full = waiting >= config.syn_backlog;
        if config.syn_cookies == SynCookies::Always
            || (full && config.syn_cookies == SynCookies::WhenFull)
        {
            return self.send_cookie(context, segment, &offer);
        }
        let (mut iss, ts_offset) = self.shard.secret.isn_and_timestamp_offset(&flow, context.now);
        if let Some(after) = after
            && iss.at_or_before(after)
        {
            // RFC 9293 §3.6.1 (MAY-2): beyond what the old connection used.
            iss = after + 1;
        }
        let mut half_open = HalfOpen {
            flow,
            hash,
            listener: listener as u16,
            iss,
            irs: segment.seq,
            ts_recent: segment.options.timestamps.map_or(0, |times| times.value),
            ts_offset,
            offer,
            sent_at_us: 0,
            sent: 0,
            wants_cookie: false,
            again_at: Deadline::after_ms(context.now, self.shard.syn_wait_ms),
            hop: None,
        };
        if let Some(cookie) = segment.options.fast_open
            && !full
            && self.shard.fast_open.is_on(self.listeners.id(listener))
        {
            let key = context.base.config.tcp.fast_open_key.as_ref();
            let baker = Baker { secret: &self.shard.secret, key, now: context.now };
            half_open.wants_cookie = !baker.is_valid(&flow, &cookie);
            if !half_open.wants_cookie && self.open_fast(context, &half_open, segment) {
                return;
            }
        }
        let wake_at = context.now.millis_on(self.shard.syn_wait_ms);
        let place = if full { None } else { self.keep_half_open(half_open, wake_at) };
        let Some(index) = place else {
            if context.base.config.tcp.syn_cookies == SynCookies::WhenFull {
                return self.send_cookie(context, segment, &offer);
            }
            return context.base.counters.drop(Drop::QueueFull);
        };
        self.shard.transmit.put(CONTROL, self.half_open_from + index);
    }

    /// Keeps an embryonic connection of a listener, and wakes it at `wake_at`, shortly before its
    /// SYN-ACK is to be sent again. `None`: there is no room, or the listener's group has its part.
    pub(super) fn keep_half_open(&mut self, half_open: HalfOpen, wake_at: Instant) -> Option<u32> {
        let group = self.listeners.group_of(half_open.listener.into());
        if !self.listeners.groups.may_begin_handshake(group) {
            return None;
        }
        let index = self.half_open.insert(half_open)?;
        let inserted = self.shard.flows.insert(half_open.hash, self.half_open_from + index);
        debug_assert!(inserted.is_ok(), "the flow table has room for every half-open connection");
        self.listeners.change_half_open(half_open.listener.into(), true);
        self.shard.wheel.arm(self.half_open_from + index, wake_at);
        Some(index)
    }

    /// RFC 7413 §4.2.2: a SYN with a valid cookie makes a connection, which takes its data at once.
    /// `false`: there is no room for that, and the handshake goes on as any other.
    fn open_fast<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        half_open: &HalfOpen,
        segment: &Segment<'_>,
    ) -> bool {
        let id = self.listeners.id(half_open.listener.into());
        let Some(listener) = self.listeners.get(half_open.listener.into()) else { return false };
        let (pool, reuse) = (listener.pool, listener.reuse);
        if !self.shard.fast_open.begin(id, context.now) {
            return false;
        }
        let Some((place, ends)) = self.take_room(&half_open.flow, reuse) else {
            self.shard.fast_open.give_back(id);
            return false;
        };
        self.grow_up(context, (None, half_open), (place, ends, pool));
        let (conn, shard) = (&mut self.connections[place as usize], &mut self.shard);
        segment_arrives::on_syn_with_cookie(conn, shard, context, segment);
        shard.rares.of(conn, context.now).fast_open = Role::Server(id);
        conn.cold.timers.attend_after_ms(context.now, shard.syn_wait_ms);
        context.base.counters.totals.fast_opens += 1;
        self.hand_over(context, place, half_open.listener.into());
        true
    }

    /// A new connection waits to be accepted.
    #[inline(always)]
    pub(super) fn hand_over<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        place: u32,
        listener: u32,
    ) {
        context.base.counters.totals.accepts += 1;
        self.connections[place as usize].flags.set_attachment(AppAttachment::InBacklog);
        self.listeners.push_waiting(listener, place);
        self.announce_incoming(listener);
        self.schedule_new(context, place);
    }

    /// A connection waits no longer to be accepted, and is not in its listener's queue any more.
    #[inline]
    pub(super) fn leave_backlog(&mut self, conn: u32, attachment: AppAttachment) {
        let conn = &mut self.connections[conn as usize];
        conn.flags.set_attachment(attachment);
        let group = self.listeners.group_of(conn.cold.listener_or_group.into());
        conn.cold.listener_or_group = group;
        self.listeners.groups.on_left_backlog(group);
    }

    fn arm_half_open(&mut self, index: u32) {
        if let Some(at) = self.half_open.get(index).again_at.get(self.shard.now) {
            self.shard.wheel.arm(self.half_open_from + index, at);
        }
    }

    /// The SYN-ACK is sent again, or given up (RFC 4987 §3.3).
    pub(super) fn on_half_open_timeout<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
    ) {
        let config = &context.base.config.tcp;
        let half_open = self.half_open.get_mut(index);
        if !half_open.again_at.has_come(context.now) {
            return self.arm_half_open(index);
        }
        if half_open.sent > config.synack_retries {
            self.forget_half_open(index);
            return;
        }
        let wait = timers::back_off(config.rto_initial, half_open.sent, config.rto_max);
        half_open.again_at = Deadline::after(context.now, wait);
        self.shard.transmit.put(CONTROL, self.half_open_from + index);
        self.arm_half_open(index);
        context.base.counters.totals.segments_retransmitted += 1;
    }

    /// Writes the SYN-ACK of an embryonic connection.
    #[inline(never)]
    pub(super) fn send_syn_ack<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let half_open = self.half_open.get_mut(index);
        let NextHop::Ready(hop) = context.base.ip.next_hop(context.now, half_open.flow.remote)
        else {
            self.shard.transmit.put(PARKED, self.half_open_from + index);
            return None;
        };
        half_open.hop = Some(hop);
        half_open.sent = half_open.sent.saturating_add(1);
        if half_open.sent == 1 {
            half_open.sent_at_us = microseconds(context.now);
        }
        let control = syn_ack(context, half_open);
        if half_open.wants_cookie {
            let flow = &half_open.flow;
            let mut head = control.repr(flow.local_port, flow.remote_port);
            let key = context.base.config.tcp.fast_open_key.as_ref();
            let baker = Baker { secret: &self.shard.secret, key, now: context.now };
            head.options.fast_open = Some(baker.make(flow));
            let what = (flow, &head, Service::default());
            return Some(output::write_reply(context, what, hop, frame));
        }
        let what = (&half_open.flow, Service::default());
        Some(output::write_control(context, what, control, hop, frame))
    }

    pub(super) fn forget_half_open(&mut self, index: u32) {
        let hash = self.half_open.get(index).hash;
        self.shard.flows.remove(hash, self.half_open_from + index);
        self.remove_half_open(index);
    }

    /// It is not in the flow table any more, and goes.
    #[inline(always)]
    fn remove_half_open(&mut self, index: u32) {
        let listener = u32::from(self.half_open.get(index).listener);
        self.half_open.remove(index);
        let entry = self.half_open_from + index;
        self.shard.wheel.cancel(entry);
        self.shard.transmit.take_off(entry);
        self.listeners.change_half_open(listener, false);
    }

    /// §3.10.7.4 for SYN-RECEIVED from LISTEN.
    pub(super) fn on_segment_for_half_open<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        segment: &Segment<'_>,
    ) {
        let half_open = *self.half_open.get(index);
        let rcv_nxt = half_open.irs + 1;
        let wnd = window::first(context.base.config.tcp.accepted_receive_buffer());
        if segment.has(Flags::SYN) && !segment.has(Flags::ACK) && segment.seq == half_open.irs {
            // The peer did not see our SYN-ACK.
            return self.shard.transmit.put(CONTROL, self.half_open_from + index);
        }
        let acceptable = segment.seq.within(rcv_nxt, wnd.max(1));
        if segment.has(Flags::RST) {
            return self.on_reset_for_half_open(context, index, segment);
        }
        let is_old = half_open.offer.timestamps
            && context.base.config.tcp.paws
            && segment
                .options
                .timestamps
                .is_some_and(|times| (times.value.wrapping_sub(half_open.ts_recent) as i32) < 0);
        if is_old {
            // RFC 7323 §5.3.
            context.base.counters.drop(Drop::OldTimestamp);
            return self.challenge_half_open(context, &half_open);
        }
        if !acceptable || segment.has(Flags::SYN) {
            let reason = if acceptable { Drop::SynInConnection } else { Drop::OutsideWindow };
            context.base.counters.drop(reason);
            return self.challenge_half_open(context, &half_open);
        }
        if !segment.has(Flags::ACK) {
            return context.base.counters.drop(Drop::UnexpectedSegment);
        }
        if segment.ack != half_open.iss + 1 {
            context.base.counters.drop(Drop::BadAck);
            if let Some(reply) = Reply::reset(segment) {
                queue_reset(&mut self.shard, context, reply);
            }
            return;
        }
        let is_bare = segment.payload.is_empty() && !segment.has(Flags::FIN);
        if is_bare && segment.seq != rcv_nxt {
            // A peer that has sent more than a SYN sends it again, since we have acknowledged none
            // of it; the handshake is complete then. Who only ever says this is at the end of an
            // older connection, in TIME-WAIT: a late copy of its SYN brought us here, and by chance
            // our old numbers ended where the new ones begin.
            return context.base.counters.drop(Drop::UnexpectedSegment);
        }
        self.promote(context, Some(index), &half_open, segment);
    }

    fn on_reset_for_half_open<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        segment: &Segment<'_>,
    ) {
        let half_open = *self.half_open.get(index);
        let rcv_nxt = half_open.irs + 1;
        let wnd = window::first(context.base.config.tcp.accepted_receive_buffer());
        if segment.seq == rcv_nxt {
            context.base.counters.totals.resets_in += 1;
            self.forget_half_open(index);
        } else if segment.seq.within(rcv_nxt, wnd) {
            context.base.counters.drop(Drop::UnexactReset);
            self.challenge_half_open(context, &half_open);
        } else {
            context.base.counters.drop(Drop::OutsideWindow);
        }
    }

    /// An ACK that says what we expect.
    fn challenge_half_open<M>(&mut self, context: &mut Context<'_, M>, half_open: &HalfOpen) {
        if !self.shard.challenges.may_send(context.now, &self.shard.secret, &half_open.flow) {
            return;
        }
        context.base.counters.totals.challenge_acks += 1;
        let value = timestamp(context.now, half_open.ts_offset);
        let times = Timestamps { value, echo: half_open.ts_recent };
        let timestamps = half_open.offer.timestamps.then_some(times);
        let options = Options { timestamps, ..Options::default() };
        let scale =
            half_open.offer.window_scale.map_or(0, |_| announced_scale(&context.base.config.tcp));
        let window =
            (window::first(context.base.config.tcp.accepted_receive_buffer()) >> scale) as u16;
        let numbers = (half_open.iss + 1, half_open.irs + 1);
        let reply = Reply::ack(half_open.flow, numbers, window, options);
        if !self.shard.control_queue.push(reply) {
            context.base.counters.drop(Drop::RateLimited);
        }
    }

    /// The handshake is complete: the record becomes a connection, which sees `segment`.
    fn promote<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: Option<u32>,
        half_open: &HalfOpen,
        segment: &Segment<'_>,
    ) {
        let place = u32::from(half_open.listener);
        let Some((pool, reuse)) = self.listeners.get(place).map(|it| (it.pool, it.reuse)) else {
            return context.base.counters.drop(Drop::NoConnection);
        };
        if let Err(reason) = self.listeners.may_begin(place) {
            // The SYN came while there was room. The SYN-ACK is sent again, and the peer answers
            // again.
            return context.base.counters.drop(reason);
        }
        let Some((place, ends)) = self.take_room(&half_open.flow, reuse) else {
            return context.base.counters.drop(Drop::NoConnectionRoom);
        };
        self.grow_up(context, (index, half_open), (place, ends, pool));
        let conn = &mut self.connections[place as usize];
        segment_arrives::on_last_of_handshake(conn, &mut self.shard, context, segment);
        debug_assert!(conn.state.is_synchronized(), "what it was made of was checked");
        self.hand_over(context, place, half_open.listener.into());
    }

    /// Makes a connection of an embryonic one, which is gone then if it was kept.
    #[inline(always)]
    fn grow_up<M>(
        &mut self,
        context: &Context<'_, M>,
        (index, half_open): (Option<u32>, &HalfOpen),
        (place, ends, pool): (u32, FlowKey, PoolId),
    ) {
        let config = &context.base.config.tcp;
        let begin = Begin {
            ends,
            hash: half_open.hash,
            state: State::SynReceived(SynReceived { passive: true }),
            iss: half_open.iss,
            ts_offset: half_open.ts_offset,
            pool,
        };
        self.make(context.now, place, &begin, index.map(|index| self.half_open_from + index));
        if let Some(index) = index {
            self.remove_half_open(index);
        }
        let conn = &mut self.connections[place as usize];
        let segment_bytes = context.base.ip.payload_bytes_max(half_open.flow.remote);
        conn.agree(config, &half_open.offer, handshake::mss_of(segment_bytes));
        conn.receive.nxt = half_open.irs + 1;
        conn.cold.receive_buffer = config.accepted_receive_buffer();
        conn.receive.adv = conn.receive.nxt + window::first(conn.cold.receive_buffer);
        conn.receive.last_ack_sent = conn.receive.nxt;
        conn.receive.ts_recent = half_open.ts_recent;
        conn.attempts = half_open.sent.saturating_sub(1);
        conn.cold.rtt_or_syn_at_us = half_open.sent_at_us;
        conn.cold.hop = half_open.hop;
        conn.cold.listener_or_group = half_open.listener;
    }

    fn send_cookie<M>(
        &mut self,
        context: &mut Context<'_, M>,
        segment: &Segment<'_>,
        offer: &Offer,
    ) {
        let config = &context.base.config.tcp;
        let flow = segment.flow;
        let iss = cookie::make(&self.shard.secret, &flow, segment.seq, context.now, offer.mss);
        let clock = timestamp(context.now, self.shard.secret.timestamp_offset(&flow));
        let value = cookie::stamp(clock, offer);
        let echo = segment.options.timestamps.map_or(0, |times| times.value);
        let offer = cookie::kept(offer);
        let mss = handshake::announced_mss(config, context.base.ip.payload_bytes_max(flow.remote));
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
            window: window::first(config.accepted_receive_buffer()) as u16,
            options: offers.and(times),
            service: Service::default(),
        };
        if self.shard.control_queue.push(reply) {
            context.base.counters.totals.cookies_sent += 1;
        } else {
            context.base.counters.drop(Drop::RateLimited);
        }
    }

    /// An ACK for a listener: the last one of a handshake that we kept nothing of, or nonsense.
    fn on_cookie<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        (hash, listener): (u32, u32),
        segment: &Segment<'_>,
    ) {
        let flow = segment.flow;
        let irs = segment.seq - 1;
        let iss = segment.ack - 1;
        let allowed =
            context.base.config.tcp.syn_cookies != SynCookies::Never && !segment.has(Flags::SYN);
        let mss = match cookie::check(&self.shard.secret, &flow, irs, context.now, iss) {
            Some(Cookie { mss }) if allowed => mss,
            _ => {
                context.base.counters.drop(Drop::BadCookie);
                if let Some(reply) = Reply::reset(segment)
                    && self.unknown != Unknown::Stray
                {
                    queue_reset(&mut self.shard, context, reply);
                }
                return;
            }
        };
        let ts_offset = self.shard.secret.timestamp_offset(&flow);
        let half_open = HalfOpen {
            flow,
            hash,
            listener: listener as u16,
            iss,
            irs,
            ts_recent: segment.options.timestamps.map_or(0, |times| times.value),
            ts_offset,
            offer: cookie::read_stamp(segment.options.timestamps, mss),
            sent_at_us: 0,
            sent: 1,
            wants_cookie: false,
            again_at: Deadline::NEVER,
            hop: None,
        };
        context.base.counters.totals.cookies_accepted += 1;
        self.promote(context, None, &half_open, segment);
    }

    /// §3.10.7.4 for TIME-WAIT.
    pub(super) fn on_segment_in_time_wait<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        (hash, index): (u32, u32),
        segment: &Segment<'_>,
    ) {
        let (record, timestamps) = self.time_waits.get(index);
        let record = *record;
        match record.judge(segment, timestamps) {
            Verdict::Drop => context.base.counters.drop(Drop::UnexpectedSegment),
            Verdict::Acknowledge => {
                context.base.counters.drop(Drop::UnexpectedSegment);
                self.acknowledge_in_time_wait(context, &record, timestamps);
            }
            Verdict::Restart => {
                self.time_waits.restart(context.now, index);
                self.acknowledge_in_time_wait(context, &record, timestamps);
            }
            Verdict::Reopen { after } => {
                let flow = segment.flow;
                let Some(listener) = self.listeners.find(flow.local, flow.local_port) else {
                    context.base.counters.drop(Drop::UnexpectedSegment);
                    return self.acknowledge_in_time_wait(context, &record, timestamps);
                };
                if let Err(reason) = self.may_begin(listener, segment) {
                    // What is dropped ends nothing.
                    return context.base.counters.drop(reason);
                }
                self.end_time_wait(index);
                self.on_syn(context, (hash, listener), segment, Some(after));
            }
        }
    }
}

/// The SYN-ACK that answers a SYN.
#[inline]
fn syn_ack<M>(context: &Context<'_, M>, half_open: &HalfOpen) -> Control {
    let config = &context.base.config.tcp;
    let segment_bytes = context.base.ip.payload_bytes_max(half_open.flow.remote);
    let mss = handshake::announced_mss(config, segment_bytes);
    let value = timestamp(context.now, half_open.ts_offset);
    let times = Timestamps { value, echo: half_open.ts_recent };
    let (offers, times) = handshake::syn_ack_options(config, &half_open.offer, mss, times);
    let mut flags = Flags::SYN | Flags::ACK;
    // RFC 3168 §6.1.1; the packet itself carries no mark that a router could drop it for.
    if half_open.offer.ecn {
        flags = flags | Flags::ECE;
    }
    Control {
        seq: half_open.iss,
        ack: half_open.irs + 1,
        flags,
        window: window::first(config.accepted_receive_buffer()) as u16,
        times,
        offers: Some(offers),
    }
}
