//! Connections, half-open connections and TIME-WAIT records by their place in their tables.

use core::net::SocketAddr;

use super::conn_timers::ConnTimer;
use super::listeners::Listener;
use super::state::State;
use super::{Tcp, timers};
use crate::flow_table::Flow;
use crate::id::{ConnId, ListenerId};
use crate::time::Instant;

const fn ends_of(flow: &Flow) -> (SocketAddr, SocketAddr) {
    let local = SocketAddr::new(flow.local.ip(), flow.local_port);
    (local, SocketAddr::new(flow.remote.ip(), flow.remote_port))
}

impl Tcp {
    /// Places of connections that were ever in use.
    pub(crate) const fn conn_slots(&self) -> u32 {
        self.connections.len() as u32
    }

    /// The connection in a place; `None`: it is free.
    pub(crate) fn conn_at(&self, index: u32) -> Option<(ConnId, SocketAddr, SocketAddr)> {
        let id = ConnId { index, generation: self.places.generation(index) };
        let (local, remote) = self.addresses(id).ok()?;
        Some((id, local, remote))
    }

    /// Whether the peer of some connection has not acknowledged all bytes, or the FIN, that were
    /// queued for it. A connection that is being opened does not count. Searches all connections.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.places.iter().any(|index| {
            let conn = self.connection(index);
            match conn.state {
                State::FinWait1(_) | State::Closing(_) | State::LastAck(_) => true,
                State::Established(_) | State::CloseWait(_) | State::FastOpen(_) => {
                    conn.send.queue.bytes() > 0
                }
                _ => false,
            }
        })
    }

    /// The timer of a connection; `None`: none runs, or there is no such connection.
    pub(crate) fn timer(&self, id: ConnId, now: Instant) -> Option<ConnTimer> {
        if !self.places.holds(id.index, id.generation) {
            return None;
        }
        timers::shown(self.connection(id.index), &self.shard, now)
    }

    /// Places of handshakes of which only the SYN has come.
    pub(crate) fn half_open_slots(&self) -> u32 {
        self.half_open.slots()
    }

    /// The ends of one.
    pub(crate) fn half_open_at(&self, index: u32) -> Option<(SocketAddr, SocketAddr)> {
        self.half_open.at(index).map(|half_open| ends_of(&half_open.flow))
    }

    /// Places of connections in TIME-WAIT.
    pub(crate) fn time_wait_slots(&self) -> u32 {
        self.time_waits.slots()
    }

    /// The ends of one, and when the wait is over.
    pub(crate) fn time_wait_at(
        &self,
        index: u32,
        now: Instant,
    ) -> Option<((SocketAddr, SocketAddr), Instant)> {
        let record = self.time_waits.at(index)?;
        Some((ends_of(&record.flow), self.time_waits.end_of(record, now)))
    }

    /// Places of listeners.
    pub(crate) fn listener_slots(&self) -> u32 {
        self.listeners.slots()
    }

    /// The listener in a place.
    pub(crate) fn listener_at(&self, index: u32) -> Option<(ListenerId, &Listener)> {
        Some((self.listeners.id(index), self.listeners.get(index)?))
    }
}
