//! What follows from a connection's record: lists, wheel, events, the end.
//!
//! In two steps. What an application may ask for next follows at once: an event, the end, the place
//! that is free again. What can wait until frames leave waits until then: which list a connection
//! is on, and when its timer runs. It is *touched* meanwhile, and however many segments and
//! commands touch it in a turn, that is decided once.
//!
//! Invariants
//! - This is the only place that puts a connection on a list or arms its timer, and the only one
//!   that frees its place.
//! - A connection is in `touched` once, exactly if it has [`Facts::TOUCHED`]; so has what takes its
//!   place.

use super::connection::Connection;
use super::deadline::Deadline;
use super::facts::Facts;
use super::holding::Reuse;
use super::isn::timestamp;
use super::replies::Reply;
use super::state::{Closed, State};
use super::time_wait::Record;
use super::{Shard, Tcp, Train, events, output, timers, window};
use crate::cx::Cx;
use crate::error::CloseReason;
use crate::memory::Memory;
use crate::wire::tcp::{Options, Timestamps};

impl Tcp {
    /// Looks at a connection after a segment of it has left.
    pub(super) fn settle_sent<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        let conn = &self.connections[index as usize];
        let waits = matches!(conn.state, State::SynSent(_)) || is_silent(conn);
        if waits && !conn.facts.any(DUE) {
            // Its timer runs since it was put on the list that it was sent from.
            self.shard.now = cx.now;
        } else {
            self.settle(cx, index);
        }
    }

    /// Looks at a connection after something happened to it.
    pub(super) fn settle<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        self.shard.now = cx.now;
        let conn = &mut self.connections[index as usize];
        if let State::TimeWait(_) = conn.state {
            self.leave_for_time_wait(cx, index);
        } else if conn.state.is_closed() {
            self.release(index);
        } else {
            if conn.facts.has(Facts::TOUCHED) {
                events::announce_again(conn, &mut self.shard, index);
            } else if events::has_news(conn) {
                touch_and_tell(conn, &mut self.shard, index);
            } else {
                touch(conn, &mut self.shard, index);
            }
            return;
        }
        if !self.connections[index as usize].facts.has(Facts::ORPHAN) {
            self.announce(index);
            return;
        }
        let shard = &mut self.shard;
        self.connections[index as usize].receive.clear(&mut shard.nodes, cx.memory);
        self.free(index);
    }

    /// The same of a connection that nobody has heard of yet, and that was made in this call.
    pub(super) fn settle_new<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        let conn = &self.connections[index as usize];
        let is_calm = matches!(conn.state, State::Established(_))
            && !conn.facts.any(Facts::ACK_NOW.or(Facts::PURE_ACK))
            && !conn.cold.ack_at.is_set()
            && !conn.cold.rare.is_some();
        if is_calm {
            // It has nothing to send or to wait for: lists and wheel do not know it yet.
            self.shard.now = cx.now;
        } else {
            self.settle(cx, index);
        }
    }

    /// The same of a connection that begins with our SYN.
    pub(super) fn settle_begun<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        let (conn, shard) = (&self.connections[index as usize], &mut self.shard);
        shard.now = cx.now;
        match conn.cold.attend_at.get(cx.now) {
            Some(at) if !conn.cold.rare.is_some() => {
                shard.transmit.put(super::CONTROL, index);
                shard.wheel.arm(index, at);
            }
            _ => self.settle(cx, index),
        }
    }

    /// Tells, in its turn, what there is to tell of a connection.
    pub(super) fn announce(&mut self, index: u32) {
        let conn = &self.connections[index as usize];
        // Whoever waits for nothing hears of nothing but the end.
        if conn.facts.any(AWAITED) || conn.state.is_closed() {
            self.announce_any(index);
        }
    }

    fn announce_any(&mut self, index: u32) {
        if events::has_news(&self.connections[index as usize]) {
            self.shard.events.put(index);
        }
    }

    /// Decides for all that were touched what they want to send, and when to look at them again.
    #[inline]
    pub(super) fn settle_touched(&mut self) {
        if !self.shard.touched.is_empty() {
            self.relist_touched();
        }
    }

    fn relist_touched(&mut self) {
        for at in 0..self.shard.touched.len() {
            let index = self.shard.touched.at(at);
            let facts = &mut self.connections[index as usize].facts;
            facts.clear(Facts::TOUCHED);
            if !facts.has(Facts::RELEASED) {
                self.relist(index);
                if at >= self.shard.touched.told() {
                    self.announce(index);
                }
            }
        }
        self.shard.touched.clear();
    }

    /// Puts a connection on the list that it belongs on now, and arms its timer.
    fn relist(&mut self, index: u32) {
        let conn = &mut self.connections[index as usize];
        let shard = &mut self.shard;
        if output::has_usual(conn, shard) {
            // What it waits for is known when that has left.
            return shard.transmit.put(super::DATA, index);
        }
        let has_data = if is_silent(conn) {
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
            Some(super::DATA) if !conn.facts.has(Facts::PARKED) => {
                return shard.transmit.put(super::DATA, index);
            }
            Some(list) if !conn.facts.has(Facts::PARKED) => shard.transmit.put(list, index),
            Some(_) => shard.transmit.put(super::PARKED, index),
            None => shard.transmit.take_off(index),
        }
        wake_in_time(conn, shard, index);
    }

    /// It is over: nothing is sent, and nothing is found any more.
    pub(super) fn release(&mut self, index: u32) {
        let conn = &mut self.connections[index as usize];
        if conn.facts.has(Facts::RELEASED) {
            return;
        }
        conn.facts.set(Facts::RELEASED);
        if self.train.index == index {
            self.train = Train::NONE;
        }
        conn.facts.clear(Facts::ACK_NOW.or(Facts::SYN_DUE));
        conn.cold.ack_at = Deadline::NEVER;
        conn.cold.attend_at = Deadline::NEVER;
        self.shard.flows.remove(conn.hash, index);
        self.shard.wheel.cancel(index);
        self.shard.transmit.take_off(index);
        if conn.facts.take(Facts::WAITS_FOR_ACCEPT) {
            conn.facts.set(Facts::ORPHAN);
            let listener = u32::from(conn.cold.listener);
            if let Some(listener) = self.listeners.get_mut(listener) {
                listener.waiting.retain(|other| *other != index);
            }
        }
    }

    /// Gives the place back: its id is stale from now on.
    pub(super) fn free(&mut self, index: u32) {
        let conn = &mut self.connections[index as usize];
        self.shard.rares.give_back(conn);
        self.shard.locals.give_back(&conn.ends);
        self.shard.events.take_off(index);
        self.places.give_back(index);
    }

    /// The wait for old segments needs no connection, but its numbers.
    fn leave_for_time_wait<M: Memory>(&mut self, cx: &mut Cx<'_, M>, index: u32) {
        let conn = &mut self.connections[index as usize];
        let window = window::announce(conn);
        let record = Record {
            window,
            ts_recent: conn.ts_recent,
            ts_offset: conn.cold.ts_offset,
            hash: conn.hash,
            ..Record::new(self.shard.locals.flow(&conn.ends), conn.snd_nxt, conn.rcv_nxt)
        };
        let timestamps = conn.facts.has(Facts::TIMESTAMPS);
        let (_, reuse) = self.shard.locals.local_and_reuse(&conn.ends);
        let owes_ack = conn.facts.has(Facts::ACK_NOW);
        conn.state = State::Closed(Closed { reason: CloseReason::Finished });
        conn.send.clear(&mut self.shard.nodes, cx.memory);
        conn.cold.recovery.clear(&mut self.shard.records);
        conn.receive.forget_apart(&mut self.shard.nodes, cx.memory);
        self.release(index);
        self.start_time_wait(cx, record, (timestamps, reuse));
        if owes_ack {
            self.acknowledge_in_time_wait(cx, &record, timestamps);
        }
    }

    fn start_time_wait<M>(
        &mut self,
        cx: &Cx<'_, M>,
        record: Record,
        (timestamps, reuse): (bool, Reuse),
    ) {
        if self.time_waits.is_full()
            && let Some(oldest) = self.time_waits.oldest()
        {
            self.end_time_wait(oldest);
        }
        let inserted = self.time_waits.insert(cx.now, record, (timestamps, reuse));
        let Some(place) = inserted else { return };
        self.shard.locals.hold(record.flow.local_port);
        let inserted = self.shard.flows.insert(record.hash, self.time_waits_from + place);
        debug_assert!(inserted.is_ok(), "the flow table has room for every record");
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

/// What is told, and what asks for it.
const AWAITED: Facts = Facts::CREDIT.or(Facts::AWAIT_ACKS).or(Facts::CONNECTED).or(Facts::URGENT);

/// What makes a connection send without bytes in its queue.
const DUE: Facts = Facts::SYN_DUE.or(Facts::PROBE_DUE).or(Facts::ACK_NOW).or(Facts::PURE_ACK);

/// There is nothing in flight and nothing to send, as long as neither the peer nor the application
/// says something; and no timer runs that would have to be stopped for that.
#[inline]
pub(super) fn is_silent(conn: &Connection) -> bool {
    conn.send.bytes() == 0
        && conn.flight() == 0
        && conn.state.may_send()
        && !conn.facts.any(Facts::PERSIST.or(Facts::TAIL_PROBE_DUE))
}

/// Arms the timer of a connection.
#[inline(always)]
fn wake_in_time(conn: &Connection, shard: &mut Shard, index: u32) {
    if let Some(at) = timers::earliest(conn, shard) {
        shard.wheel.arm(index, at);
    }
}

/// Something happened to a connection that is not over, and there is nothing to tell of that.
#[inline]
pub(super) fn touch(conn: &mut Connection, shard: &mut Shard, index: u32) {
    if !conn.facts.has(Facts::TOUCHED) {
        conn.facts.set(Facts::TOUCHED);
        shard.touched.push_silent(index);
    }
}

/// The same of one that was not touched before in this turn, and that has something to tell.
#[inline(always)]
pub(super) fn touch_and_tell(conn: &mut Connection, shard: &mut Shard, index: u32) {
    conn.facts.set(Facts::TOUCHED);
    shard.touched.push(index);
}
