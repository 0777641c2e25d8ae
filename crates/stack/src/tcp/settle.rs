//! What follows from a connection's record: lists, wheel, events, the end.
//!
//! Invariant: this is the only place that puts a connection on a list or arms its timer, and the
//! only one that frees its place.

use super::connection::Connection;
use super::deadline::Deadline;
use super::facts::Facts;
use super::isn::timestamp;
use super::replies::Reply;
use super::state::{Closed, State};
use super::time_wait::Record;
use super::{Tcp, events, output, timers};
use crate::cx::Cx;
use crate::error::CloseReason;
use crate::memory::Memory;
use crate::wire::tcp::{Options, Timestamps};

impl Tcp {
    /// Looks at a connection after something happened to it.
    pub(super) fn settle<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        self.shard.now = cx.now;
        let conn = &mut self.connections[index as usize];
        if let State::TimeWait(_) = conn.state {
            self.leave_for_time_wait(cx, index);
        } else if conn.state.is_closed() {
            self.release(index);
        } else {
            self.relist(index);
            return;
        }
        if !self.connections[index as usize].facts.has(Facts::ORPHAN) {
            self.relist(index);
            return;
        }
        let shard = &mut self.shard;
        self.connections[index as usize].receive.clear(&mut shard.nodes, cx.memory);
        self.free(index);
    }

    /// Puts a connection on the lists that it belongs on now.
    pub(super) fn relist(&mut self, index: u32) {
        let conn = &mut self.connections[index as usize];
        let shard = &mut self.shard;
        let has_data = conn.state.is_synchronized() && output::next_data(conn, shard).is_some();
        timers::attend(conn, shard, has_data);
        match output::wants(conn, has_data) {
            Some(list) if !conn.facts.has(Facts::PARKED) => shard.transmit.put(list, index),
            Some(_) => shard.transmit.put(super::PARKED, index),
            None => shard.transmit.take_off(index),
        }
        if events::has_news(conn) {
            shard.events.put(0, index);
        }
        if let Some(at) = timers::earliest(conn, shard.now) {
            shard.wheel.arm(index, at);
        }
    }

    /// It is over: nothing is sent, and nothing is found any more.
    pub(super) fn release(&mut self, index: u32) {
        let conn = &mut self.connections[index as usize];
        if conn.facts.has(Facts::RELEASED) {
            return;
        }
        conn.facts.set(Facts::RELEASED);
        conn.facts.clear(Facts::ACK_NOW.or(Facts::SYN_DUE));
        conn.cold.ack_at = Deadline::NEVER;
        conn.cold.attend_at = Deadline::NEVER;
        self.shard.flows.remove(conn.hash, index);
        self.shard.wheel.cancel(index);
        self.shard.transmit.take_off(index);
        if conn.facts.take(Facts::WAITS_FOR_ACCEPT) {
            conn.facts.set(Facts::ORPHAN);
            let listener = conn.cold.listener;
            if let Some(listener) = self.listeners.get_mut(listener) {
                listener.waiting.retain(|other| *other != index);
            }
        }
    }

    /// Gives the place back: its id is stale from now on.
    pub(super) fn free(&mut self, index: u32) {
        self.shard.events.take_off(index);
        self.places.give_back(index);
    }

    /// The wait for old segments needs no connection, but its numbers.
    fn leave_for_time_wait<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        let conn = &mut self.connections[index as usize];
        let window = (conn.rcv_wnd() >> conn.rcv_scale).min(u32::from(u16::MAX)) as u16;
        let record = Record {
            window,
            ts_recent: conn.ts_recent,
            ts_offset: conn.cold.ts_offset,
            hash: conn.hash,
            ..Record::new(conn.flow, conn.snd_nxt, conn.rcv_nxt)
        };
        let timestamps = conn.facts.has(Facts::TIMESTAMPS);
        let owes_ack = conn.facts.has(Facts::ACK_NOW);
        conn.state = State::Closed(Closed { reason: CloseReason::Finished });
        conn.send.clear(&mut self.shard.nodes, cx.memory);
        conn.cold.recovery.clear(&mut self.shard.records);
        conn.receive.forget_apart(&mut self.shard.nodes, cx.memory);
        self.release(index);
        self.start_time_wait(cx, record, timestamps);
        if owes_ack {
            self.acknowledge_in_time_wait(cx, &record, timestamps);
        }
    }

    fn start_time_wait<M>(&mut self, cx: &Cx<'_, M>, record: Record, timestamps: bool) {
        if self.time_waits.is_full()
            && let Some(oldest) = self.time_waits.oldest()
        {
            self.end_time_wait(oldest);
        }
        let Some(place) = self.time_waits.insert(cx.now, record, timestamps) else { return };
        let inserted = self.shard.flows.insert(record.hash, self.time_waits_from + place);
        debug_assert!(inserted.is_ok(), "the flow table has room for every record");
    }

    /// The wait is over, or a new connection takes its place.
    pub(super) fn end_time_wait(&mut self, place: u32) {
        let record = self.time_waits.remove(place);
        self.shard.flows.remove(record.hash, self.time_waits_from + place);
    }

    /// §3.10.7.4: in TIME-WAIT nothing is sent but ACKs.
    pub(super) fn acknowledge_in_time_wait<M>(
        &mut self,
        cx: &mut Cx<'_, M>,
        record: &Record,
        timestamps: bool,
    ) {
        let times =
            Timestamps { value: timestamp(cx.now, record.ts_offset), echo: record.ts_recent };
        let options = Options { timestamps: timestamps.then_some(times), ..Options::default() };
        let reply =
            Reply::ack(record.flow, (record.snd_nxt, record.rcv_nxt), record.window, options);
        if !self.shard.replies.push(reply) {
            cx.counters.drop(crate::counters::Drop::RateLimited);
        }
    }

    pub(super) fn connection(&self, index: u32) -> &Connection {
        &self.connections[index as usize]
    }
}
