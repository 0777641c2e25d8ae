//! Invariants between two calls, as executable checks for tests, simulations and fuzzing.

use alloc::collections::BTreeMap;

use super::connection::Connection;
use super::connection::Role;
use super::flags::ConnFlags;
use super::state::State;
use super::{Shard, Tcp, timers};
#[cfg(test)]
use crate::id::ConnId;
use crate::id::ListenerGroupId;

impl Tcp {
    /// Chunks queued and transmissions recorded, of all connections.
    pub(crate) const fn held(&self) -> (u32, u32) {
        (self.shard.nodes.len(), self.shard.records.held())
    }

    /// All that is remembered of a connection, to compare. Nothing is of one that is over: its
    /// place is free, and the next one begins as a blank one.
    #[cfg(test)]
    pub(crate) fn record(&self, conn: ConnId) -> String {
        if !self.places.holds(conn.index, conn.generation) {
            return String::new();
        }
        // Of two connections whose timers run out in one tick, either may come first and take the
        // next spare record: which one it has is left out.
        let record = format!("{:?}", self.connection(conn.index));
        let mut parts = record.split("Spare(Some(");
        let mut text = String::from(parts.next().unwrap_or_default());
        for part in parts {
            text.push_str("Spare(Some(_");
            text.push_str(part.trim_start_matches(|digit: char| digit.is_ascii_digit()));
        }
        text
    }

    /// `rcv.nxt`, and what is in flight.
    #[cfg(test)]
    pub(crate) fn numbers(&self, conn: ConnId) -> (crate::SeqNum, crate::SeqRange) {
        let conn = self.connection(conn.index);
        (conn.receive.nxt, crate::SeqRange { start: conn.send.una, end: conn.send.nxt })
    }

    /// Checks every connection, and that the tables agree about who exists.
    ///
    /// # Panics
    /// If something is wrong with this stack.
    pub(crate) fn check_invariants(&self) {
        let mut found = 0;
        for index in self.places.iter() {
            let conn = &self.connections[index as usize];
            if conn.flags.has(ConnFlags::RELEASED) {
                continue;
            }
            found += 1;
            check(conn, &self.shard);
            self.check_timer(index);
        }
        let ports =
            self.places.iter().map(|index| self.connections[index as usize].ends.local_port());
        let mut held = BTreeMap::new();
        for port in ports.chain(self.time_waits.iter().map(|(record, _)| record.flow.local_port)) {
            *held.entry(port).or_insert(0) += 1;
        }
        for (port, count) in held {
            assert_eq!(self.shard.locals.held(port), count, "each is counted at its port");
        }
        let roles = self.places.iter().filter_map(|at| {
            let conn = &self.connections[at as usize];
            self.shard.rares.get(conn).map(|rare| rare.fast_open)
        });
        self.shard.fast_open.check(roles);
        self.shard.locals.check(self.places.iter().map(|at| self.connections[at as usize].ends));
        self.check_listener_groups();
        let flows = found + self.half_open.len() + self.time_waits.len();
        assert_eq!(self.shard.flows.len(), flows, "the flow table knows who exists");
    }

    /// What groups of listeners count is there.
    fn check_listener_groups(&self) {
        for group in self.listeners.groups.numbers() {
            let its = || {
                let listeners = self.listeners.iter().map(|(_, listener)| listener);
                listeners.filter(|listener| listener.group() == group)
            };
            let reported = self.places.iter().filter(|index| {
                let conn = &self.connections[*index as usize];
                let waits = conn.flags.has(ConnFlags::WAITS_FOR_ACCEPT);
                !waits && conn.cold.listener_or_group == group
            });
            let waiting = its().map(|listener| listener.waiting.len() as u32).sum::<u32>();
            let half_open = its().map(|listener| listener.half_open).sum::<u32>();
            let usage = self.listeners.groups.usage(ListenerGroupId(group));
            assert_eq!((usage.waiting, usage.half_open), (waiting, half_open), "{group}");
            assert_eq!(usage.connections, waiting + reported.count() as u32, "{group}");
        }
    }

    /// A connection that is neither dirty nor has a frame to send has an armed timer if it needs
    /// one.
    fn check_timer(&self, index: u32) {
        let (conn, shard) = (&self.connections[index as usize], &self.shard);
        let is_settled = !conn.flags.has(ConnFlags::DIRTY) && shard.transmit.on(index).is_none();
        if let Some(at) = timers::earliest(conn, shard)
            && is_settled
        {
            assert!(shard.wheel.is_armed_by(index, at), "no timer at {at:?}: {conn:?}");
        }
    }
}

fn check(conn: &Connection, shard: &Shard) {
    let queued = conn.send.queue.bytes();
    let syn = u32::from(!conn.state.is_synchronized());
    let fin = u32::from(conn.flags.has(ConnFlags::FIN_SENT));
    assert!(conn.send.una.at_or_before(conn.send.nxt), "snd.una <= snd.nxt: {conn:?}");
    assert!(
        conn.send.flight() <= queued + syn + fin,
        "nothing in flight but what is queued: {conn:?}"
    );
    assert!(conn.receive.nxt.at_or_before(conn.receive.adv), "rcv.nxt <= rcv.adv: {conn:?}");
    assert!(
        conn.receive.last_ack_sent.at_or_before(conn.receive.nxt),
        "no ACK of what never came: {conn:?}"
    );
    if let State::FinWait2(_) = conn.state {
        assert_eq!((queued, conn.send.flight()), (0, 0), "FIN-WAIT-2 owes nothing: {conn:?}");
    }
    let role = shard.rares.get(conn).map(|rare| rare.fast_open);
    let is_pending = matches!(role, Some(Role::Server(_)));
    assert_eq!(conn.state.is_fast_open(), is_pending, "pending until our SYN is acknowledged");
    let out_of_order = conn.receive.queue.out_of_order_bytes(&shard.nodes);
    assert_eq!(
        conn.receive.queue.has_gap(),
        out_of_order > 0,
        "bytes out of order lie behind a gap: {conn:?}"
    );
}
