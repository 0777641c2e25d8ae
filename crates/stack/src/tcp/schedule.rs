//! Scheduling after a change of a connection: lists, timer wheel, events, the end.
//!
//! In two steps. What an application may ask for next follows at once: an event, the end, the place
//! that is free again. What can wait until frames leave waits until then: which list a connection
//! is on, and when its timer runs. It is *dirty* meanwhile: however many segments and commands
//! change it in a poll, that is decided once.
//!
//! Invariants
//! - Only this file and `output/`, where it sends at once, put a connection on a list or arm its
//!   timer; the latter leave what `relist` would.
//! - A connection is in `dirty` once, exactly if it has [`ConnFlags::DIRTY`]; so has what takes
//!   its place.

use super::connection::Connection;
use super::control_queue::Reply;
use super::dirty_list::{mark_dirty, mark_dirty_with_news};
use super::flags::{AppAttachment, ConnFlags};
use super::isn::timestamp;
use super::send_hold::Reuse;
use super::state::{Closed, State};
use super::time_wait::Record;
use super::{Shard, Tcp, events, output, timers, window};
use crate::context::Context;
use crate::error::CloseReason;
use crate::memory::Memory;
use crate::wire::tcp::{Options, Timestamps};

impl Tcp {
    /// Looks at a connection after a segment of it has left.
    pub(super) fn schedule_sent<M: Memory>(&mut self, context: &mut Context<'_, M>, index: u32) {
        let conn = &self.connections[index as usize];
        let waits = matches!(conn.state, State::SynSent(_)) || conn.is_silent();
        if waits && !conn.flags.any(DUE) {
            // Its timer runs since it was put on the list that it was sent from.
            self.shard.now = context.now;
        } else {
            self.schedule(context, index);
        }
    }

    /// Looks at a connection after something happened to it.
    pub(super) fn schedule<M: Memory>(&mut self, context: &mut Context<'_, M>, index: u32) {
        self.shard.now = context.now;
        let conn = &mut self.connections[index as usize];
        if let State::TimeWait(_) = conn.state {
            self.leave_for_time_wait(context, index);
        } else if conn.state.is_closed() {
            self.release(index);
        } else {
            if conn.flags.has(ConnFlags::DIRTY) {
                events::announce_again(conn, &mut self.shard, index);
            } else if events::has_news(conn) {
                mark_dirty_with_news(conn, &mut self.shard, index);
            } else {
                mark_dirty(conn, &mut self.shard, index);
            }
            return;
        }
        if !self.connections[index as usize].flags.has(ConnFlags::ORPHAN) {
            self.announce(index);
            return;
        }
        let shard = &mut self.shard;
        self.connections[index as usize].receive.queue.clear(&mut shard.nodes, context.memory);
        self.free(index);
    }

    /// The same for a connection that was created in this call and is not yet reported.
    pub(super) fn schedule_new<M: Memory>(&mut self, context: &mut Context<'_, M>, index: u32) {
        let conn = &self.connections[index as usize];
        let is_calm = matches!(conn.state, State::Established(_))
            && !conn.flags.any(ConnFlags::ACK_NOW.or(ConnFlags::PURE_ACK))
            && !conn.cold.timers.has_delayed_ack()
            && !conn.cold.rare.is_some();
        if is_calm {
            // It has nothing to send or to wait for: lists and wheel do not know it yet.
            self.shard.now = context.now;
        } else {
            self.schedule(context, index);
        }
    }

    /// The same of a connection that begins with our SYN.
    pub(super) fn schedule_begun<M: Memory>(&mut self, context: &mut Context<'_, M>, index: u32) {
        let (conn, shard) = (&self.connections[index as usize], &mut self.shard);
        shard.now = context.now;
        if conn.cold.rare.is_some() {
            return self.schedule(context, index);
        }
        shard.transmit.put(super::CONTROL, index);
        // When it is attended to, or less than a millisecond before it.
        shard.wheel.arm(index, context.now.millis_on(shard.syn_wait_ms));
    }

    /// Tells, in its turn, what there is to tell of a connection.
    #[inline(always)]
    pub(super) fn announce(&mut self, index: u32) {
        events::announce(&self.connections[index as usize], &mut self.shard, index);
    }

    /// Decides for all that were touched what they want to send, and when to look at them again.
    #[inline]
    pub(super) fn schedule_dirty(&mut self) {
        if !self.shard.dirty.is_empty() {
            self.relist_dirty();
        }
    }

    fn relist_dirty(&mut self) {
        for at in 0..self.shard.dirty.len() {
            let index = self.shard.dirty.at(at);
            let flags = &mut self.connections[index as usize].flags;
            flags.clear(ConnFlags::DIRTY);
            if !flags.has(ConnFlags::RELEASED) {
                self.relist(index);
                if at >= self.shard.dirty.asked() {
                    self.announce(index);
                }
            }
        }
        self.shard.dirty.clear();
    }

    /// Puts a connection on the list that it belongs on now, and arms its timer.
    fn relist(&mut self, index: u32) {
        let conn = &mut self.connections[index as usize];
        let shard = &mut self.shard;
        if output::has_fast_segment(conn, shard) || output::has_fin(conn, shard) {
            // What it waits for is known when that has left.
            return shard.transmit.put(super::DATA, index);
        }
        let has_data = if conn.is_silent() {
            false
        } else {
            let has_data = conn.state.is_synchronized() && output::next_data(conn, shard).is_some();
            timers::attend(conn, shard, has_data);
            has_data
        };
        if !has_data {
            window::date_ack(conn, shard);
        }
        match output::wants(conn, has_data) {
            Some(super::DATA) if !conn.flags.has(ConnFlags::PARKED) => {
                return shard.transmit.put(super::DATA, index);
            }
            Some(list) if !conn.flags.has(ConnFlags::PARKED) => shard.transmit.put(list, index),
            Some(_) => shard.transmit.put(super::PARKED, index),
            None => shard.transmit.take_off(index),
        }
        wake_in_time(conn, shard, index);
    }

    /// It is over: nothing is sent, and nothing is found any more.
    #[inline(always)]
    pub(super) fn release(&mut self, index: u32) {
        self.release_to(index, None);
    }

    /// The same; the flow table's entry is that of `successor` from now on, if there is one.
    #[inline(always)]
    fn release_to(&mut self, index: u32, successor: Option<u32>) {
        let Self { connections, shard, train, listeners, .. } = self;
        let conn = &mut connections[index as usize];
        if conn.flags.has(ConnFlags::RELEASED) {
            return;
        }
        conn.flags.set(ConnFlags::RELEASED);
        train.forget(index);
        conn.flags.clear(ConnFlags::ACK_NOW.or(ConnFlags::SYN_DUE));
        conn.cold.timers.stop();
        match successor {
            Some(successor) => shard.flows.replace(conn.hash, index, successor),
            None => shard.flows.remove(conn.hash, index),
        }
        shard.wheel.cancel(index);
        shard.transmit.take_off(index);
        if conn.flags.has(ConnFlags::WAITS_FOR_ACCEPT) {
            let listener = u32::from(conn.cold.listener_or_group);
            if let Some(listener) = listeners.get_mut(listener) {
                listener.waiting.retain(|other| *other != index);
            }
            self.leave_backlog(index, AppAttachment::Detached);
        }
    }

    /// Gives the place back: its id is stale from now on.
    #[inline(always)]
    pub(super) fn free(&mut self, index: u32) {
        let Self { connections, shard, places, listeners, .. } = self;
        let conn = &mut connections[index as usize];
        debug_assert!(!conn.flags.has(ConnFlags::WAITS_FOR_ACCEPT), "it is released");
        listeners.groups.on_end(conn.cold.listener_or_group);
        shard.rares.give_back(conn);
        shard.locals.give_back(&conn.ends);
        shard.events.take_off(index);
        places.give_back(index);
    }

    /// The wait for old segments needs no connection, but its numbers.
    pub(super) fn leave_for_time_wait<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
    ) {
        let conn = &mut self.connections[index as usize];
        let window = window::announce(conn);
        let record = Record {
            window,
            ts_recent: conn.receive.ts_recent,
            ts_offset: conn.cold.ts_offset,
            hash: conn.hash,
            ..Record::new(self.shard.locals.flow(&conn.ends), conn.send.nxt, conn.receive.nxt)
        };
        let timestamps = conn.flags.has(ConnFlags::TIMESTAMPS);
        let (_, reuse) = self.shard.locals.local_and_reuse(&conn.ends);
        let owes_ack = conn.flags.has(ConnFlags::ACK_NOW);
        conn.state = State::Closed(Closed { reason: CloseReason::Finished });
        conn.send.queue.clear(&mut self.shard.nodes, context.memory);
        conn.cold.recovery.clear(&mut self.shard.records);
        conn.receive.queue.drop_out_of_order(&mut self.shard.nodes, context.memory);
        let place = self.start_time_wait(context, record, (timestamps, reuse));
        self.release_to(index, place.map(|place| self.time_waits_from + place));
        if owes_ack {
            self.acknowledge_in_time_wait(context, &record, timestamps);
        }
    }

    /// Keeps a record, which has no entry in the flow table yet; its place.
    fn start_time_wait<M>(
        &mut self,
        context: &Context<'_, M>,
        record: Record,
        (timestamps, reuse): (bool, Reuse),
    ) -> Option<u32> {
        if self.time_waits.is_full()
            && let Some(oldest) = self.time_waits.oldest()
        {
            self.end_time_wait(oldest);
        }
        let place = self.time_waits.insert(context.now, record, (timestamps, reuse))?;
        self.shard.locals.hold(record.flow.local_port);
        Some(place)
    }

    /// The wait is over, or a new connection takes its place.
    pub(super) fn end_time_wait(&mut self, place: u32) {
        let record = self.time_waits.remove(place);
        self.shard.locals.let_go(record.flow.local_port);
        self.shard.flows.remove(record.hash, self.time_waits_from + place);
    }

    /// §3.10.7.4: in TIME-WAIT nothing is sent but ACKs.
    pub(super) fn acknowledge_in_time_wait<M>(
        &mut self,
        context: &mut Context<'_, M>,
        record: &Record,
        timestamps: bool,
    ) {
        let times =
            Timestamps { value: timestamp(context.now, record.ts_offset), echo: record.ts_recent };
        let options = Options { timestamps: timestamps.then_some(times), ..Options::default() };
        let reply =
            Reply::ack(record.flow, (record.snd_nxt, record.rcv_nxt), record.window, options);
        if !self.shard.control_queue.push(reply) {
            context.base.counters.drop(crate::counters::Drop::RateLimited);
        }
    }

    pub(super) fn connection(&self, index: u32) -> &Connection {
        &self.connections[index as usize]
    }
}

/// What makes a connection send without bytes in its queue.
const DUE: ConnFlags =
    ConnFlags::SYN_DUE.or(ConnFlags::PROBE_DUE).or(ConnFlags::ACK_NOW).or(ConnFlags::PURE_ACK);

/// Arms the timer of a connection.
#[inline(always)]
fn wake_in_time(conn: &Connection, shard: &mut Shard, index: u32) {
    if let Some(at) = timers::earliest(conn, shard) {
        shard.wheel.arm(index, at);
    }
}
