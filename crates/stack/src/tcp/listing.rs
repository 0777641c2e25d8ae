//! Connections, half-open connections and TIME-WAIT records by their place in their tables.

use core::net::SocketAddr;

use super::Tcp;
use super::listeners::Listener;
use crate::flow_table::Flow;
use crate::id::{ConnId, ListenerId};

const fn ends_of(flow: &Flow) -> (SocketAddr, SocketAddr) {
    let local = SocketAddr::new(flow.local, flow.local_port);
    (local, SocketAddr::new(flow.remote, flow.remote_port))
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

    /// The ends of one.
    pub(crate) fn time_wait_at(&self, index: u32) -> Option<(SocketAddr, SocketAddr)> {
        self.time_waits.at(index).map(|record| ends_of(&record.flow))
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
