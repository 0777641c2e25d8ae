//! Holders of local ports, for bind(2): connections, also without a listener or an application, and
//! those in TIME-WAIT.
//!
//! Read first: socket(7) on SO_REUSEADDR and SO_REUSEPORT; `flow_key.rs`, where it is kept.
//!
//! How many hold a port is counted, so that most questions are answered at once. Who they are is
//! looked up in all connections: for commands, and not for the way of a frame.

use alloc::collections::BTreeSet;
use core::net::IpAddr;
use core::ops::RangeInclusive;

use super::Tcp;
use super::flags::ConnFlags;

/// What a socket says of others at its local address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Reuse {
    /// SO_REUSEADDR.
    pub address: bool,
    /// SO_REUSEPORT.
    pub port: bool,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
}

impl Reuse {
    pub(crate) const fn to_bits(self) -> u8 {
        self.address as u8 | (self.port as u8) << 1 | (self.v6_only as u8) << 2
    }

    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self { address: bits & 1 != 0, port: bits & 2 != 0, v6_only: bits & 4 != 0 }
    }
}

/// A connection, or several that are alike, at a local port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its local port.
    pub port: u16,
    /// Its local address.
    pub ip: IpAddr,
    /// What its socket says of others there.
    pub reuse: Reuse,
}

impl Tcp {
    /// Returns the connections at some local ports, including orphans and those in TIME-WAIT,
    /// without duplicates.
    pub(crate) fn holders(&self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        let mut holders = BTreeSet::new();
        if !self.shard.locals.are_held(ports.clone()) {
            return holders;
        }
        let mut last = None;
        let mut add = |holder: Holder| {
            // Most are like the one before.
            if ports.contains(&holder.port) && last.replace(holder) != Some(holder) {
                holders.insert(holder);
            }
        };
        for index in self.places.iter() {
            let conn = &self.connections[index as usize];
            if !conn.flags.has(ConnFlags::RELEASED) {
                let (ip, reuse) = self.shard.locals.local_and_reuse(&conn.ends);
                add(Holder { port: conn.ends.local_port(), ip, reuse });
            }
        }
        for (record, reuse) in self.time_waits.iter() {
            add(Holder { port: record.flow.local_port, ip: record.flow.local.ip(), reuse });
        }
        holders
    }

    /// The first port at which there is no connection, from `from` on and then from the range's
    /// beginning.
    pub(crate) fn port_without_connections(
        &self,
        ports: RangeInclusive<u16>,
        from: u16,
    ) -> Option<u16> {
        let mut ports = (from.max(*ports.start())..=*ports.end()).chain(ports);
        ports.find(|port| !self.shard.locals.are_held(*port..=*port))
    }
}
