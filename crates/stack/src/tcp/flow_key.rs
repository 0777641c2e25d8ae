//! Compact 4-tuple of a connection: the peer's address, and an index of the local address.
//!
//! A stack has few addresses and many connections, so a connection holds an index into a table of
//! addresses instead of one. An address stays in the table as long as a connection has it, also
//! when [`crate::Stack::set_addresses`] takes it from the host.
//!
//! Invariants
//! - There are [`LOCALS_MAX`] addresses at most, each as often as sockets say different things of
//!   others there. Without room for one more of those, a connection says what another one does;
//!   without room for its address it is not made.
//! - Each connection is counted at its local port until its place is free, and so is each that
//!   waits for old segments.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;

use super::send_hold::Reuse;
use crate::flow_table::Flow;
use crate::host_address::HostAddress;
use crate::limits::LOCALS_MAX;

/// Both ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowKey {
    remote: HostAddress,
    /// Ours and the peer's, as they stand in a header that we send.
    ports: [u8; 4],
    local: u8,
}

const _: () = assert!(size_of::<FlowKey>() == 21 && align_of::<FlowKey>() == 1);

impl FlowKey {
    /// Of no connection.
    pub(crate) const NONE: Self =
        Self { remote: HostAddress::UNSPECIFIED, ports: [0; 4], local: 0 };

    /// The peer's address.
    #[inline]
    pub(crate) const fn remote(&self) -> IpAddr {
        self.remote.ip()
    }

    /// The same, as words.
    #[inline]
    pub(crate) const fn remote_address(&self) -> HostAddress {
        self.remote
    }

    /// Our port.
    #[inline]
    pub(crate) const fn local_port(&self) -> u16 {
        let [high, low, ..] = self.ports;
        u16::from_be_bytes([high, low])
    }

    /// The peer's port.
    #[inline]
    pub(crate) const fn remote_port(&self) -> u16 {
        let [.., high, low] = self.ports;
        u16::from_be_bytes([high, low])
    }
}

/// The addresses of ours that connections have.
#[derive(Debug)]
pub(crate) struct Locals {
    addresses: Vec<Local>,
    /// By port: how many connections have it. Zeros until then, which take no memory.
    holders: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Local {
    ip: HostAddress,
    reuse: Reuse,
    /// Connections that have it.
    connections: u32,
}

impl Locals {
    pub(crate) fn new() -> Self {
        Self {
            addresses: Vec::with_capacity(LOCALS_MAX),
            holders: alloc::vec![0; usize::from(u16::MAX) + 1],
        }
    }

    /// The ends of a new connection; `None`: there is no room for its address.
    #[inline(always)]
    pub(crate) fn take(&mut self, flow: &Flow, reuse: Reuse) -> Option<FlowKey> {
        let local = self.index(flow.local, reuse)?;
        self.addresses[local].connections += 1;
        self.hold(flow.local_port);
        Some(FlowKey { remote: flow.remote, ports: ports(flow), local: local as u8 })
    }

    /// The connection is over.
    pub(crate) fn give_back(&mut self, ends: &FlowKey) {
        let local = &mut self.addresses[usize::from(ends.local)];
        debug_assert!(local.connections > 0, "given back twice");
        local.connections -= 1;
        self.let_go(ends.local_port());
    }

    /// A connection's socket says something else of others at its address from now on. What it has
    /// said of SO_REUSEPORT stays said, as in Linux, where it is the port that remembers.
    pub(crate) fn set_reuse(&mut self, ends: &mut FlowKey, reuse: Reuse) {
        let Local { ip, reuse: before, .. } = self.addresses[usize::from(ends.local)];
        let reuse = Reuse { port: reuse.port || before.port, ..reuse };
        let Some(new) = self.index(ip, reuse) else { return };
        self.addresses[usize::from(ends.local)].connections -= 1;
        self.addresses[new].connections += 1;
        ends.local = new as u8;
    }

    /// Counts one more user of a local port.
    #[inline]
    pub(crate) fn hold(&mut self, port: u16) {
        self.holders[usize::from(port)] += 1;
    }

    /// And is not any more.
    #[inline]
    pub(crate) fn let_go(&mut self, port: u16) {
        self.holders[usize::from(port)] -= 1;
    }

    /// How many are at a local port.
    #[cfg(any(test, feature = "invariants"))]
    pub(crate) fn held(&self, port: u16) -> u32 {
        self.holders[usize::from(port)]
    }

    /// These are the connections that have addresses here, and no others.
    ///
    /// # Panics
    /// If that is not so.
    #[cfg(any(test, feature = "invariants"))]
    pub(crate) fn check(&self, connections: impl Iterator<Item = FlowKey>) {
        let mut counts = alloc::vec![0; self.addresses.len()];
        for ends in connections {
            counts[usize::from(ends.local)] += 1;
        }
        for (local, count) in self.addresses.iter().zip(counts) {
            assert_eq!(local.connections, count, "an address is as busy as it is had: {local:?}");
        }
    }

    /// Whether any of these ports is in use.
    pub(crate) fn are_held(&self, ports: RangeInclusive<u16>) -> bool {
        let (first, last) = (usize::from(*ports.start()), usize::from(*ports.end()));
        self.holders.get(first..=last).unwrap_or_default().iter().any(|count| *count > 0)
    }

    /// Our address, and what is said of others there.
    pub(crate) fn local_and_reuse(&self, ends: &FlowKey) -> (IpAddr, Reuse) {
        let local = &self.addresses[usize::from(ends.local)];
        (local.ip.ip(), local.reuse)
    }

    /// Our address.
    #[inline]
    pub(crate) fn local(&self, ends: &FlowKey) -> IpAddr {
        self.address(ends).ip()
    }

    /// The same, as words.
    #[inline]
    pub(crate) fn address(&self, ends: &FlowKey) -> HostAddress {
        self.addresses[usize::from(ends.local)].ip
    }

    /// These are the ends of `flow`.
    #[inline(always)]
    pub(crate) fn is(&self, ends: &FlowKey, flow: &Flow) -> bool {
        ends.ports == ports(flow) && ends.remote == flow.remote && self.address(ends) == flow.local
    }

    /// Both ends as the flow table knows them.
    #[inline]
    pub(crate) fn flow(&self, ends: &FlowKey) -> Flow {
        Flow {
            local: self.address(ends),
            remote: ends.remote,
            local_port: ends.local_port(),
            remote_port: ends.remote_port(),
        }
    }

    #[inline(always)]
    fn index(&mut self, ip: HostAddress, reuse: Reuse) -> Option<usize> {
        let is_it = |local: &Local| local.ip == ip && local.reuse == reuse;
        if let Some(at) = self.addresses.iter().position(is_it) {
            return Some(at);
        }
        self.new_index(ip, reuse)
    }

    #[inline(never)]
    fn new_index(&mut self, ip: HostAddress, reuse: Reuse) -> Option<usize> {
        let new = Local { ip, reuse, connections: 0 };
        if self.addresses.len() < LOCALS_MAX {
            self.addresses.push(new);
            return Some(self.addresses.len() - 1);
        }
        let Some(at) = self.addresses.iter().position(|local| local.connections == 0) else {
            return self.addresses.iter().position(|local| local.ip == ip);
        };
        self.addresses[at] = new;
        Some(at)
    }
}

/// Both ports of a flow, ours first.
#[inline(always)]
const fn ports(flow: &Flow) -> [u8; 4] {
    ((flow.local_port as u32) << 16 | flow.remote_port as u32).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn flow(local: u32) -> Flow {
        Flow {
            local: Ipv4Addr::from_bits(local).into(),
            remote: Ipv4Addr::new(192, 0, 2, 1).into(),
            local_port: 80,
            remote_port: 1000,
        }
    }

    #[test]
    fn a_flow_comes_out_as_it_went_in() {
        let mut locals = Locals::new();
        let v6 = |n: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n).into();
        let six = Flow { local: v6(1), remote: v6(2), ..flow(0) };
        for flow in [flow(1), six, flow(2)] {
            let ends = locals.take(&flow, Reuse::default()).unwrap();
            assert_eq!((locals.flow(&ends), ends.remote()), (flow, flow.remote.ip()));
            assert!(locals.is(&ends, &flow));
            for other in [
                Flow { local_port: 81, ..flow },
                Flow { remote_port: 81, ..flow },
                Flow { local: v6(9), ..flow },
                Flow { remote: v6(9), ..flow },
            ] {
                assert!(!locals.is(&ends, &other));
            }
        }
    }

    #[test]
    fn what_is_said_of_others_is_each_connections_own() {
        let mut locals = Locals::new();
        let shared = Reuse { address: true, ..Reuse::default() };
        let spread = Reuse { port: true, ..Reuse::default() };
        let one = locals.take(&flow(1), Reuse::default()).unwrap();
        let mut other = locals.take(&flow(1), shared).unwrap();
        let ip = flow(1).local.ip();
        assert_eq!(locals.local_and_reuse(&one), (ip, Reuse::default()));
        assert_eq!(locals.local_and_reuse(&other), (ip, shared));
        locals.set_reuse(&mut other, spread);
        assert_eq!(locals.local_and_reuse(&other), (ip, spread));
        locals.set_reuse(&mut other, shared);
        let both = Reuse { address: true, port: true, v6_only: false };
        assert_eq!(locals.local_and_reuse(&other), (ip, both), "SO_REUSEPORT stays said");
        assert_eq!((locals.local_and_reuse(&one).1, locals.held(80)), (Reuse::default(), 2));
        assert!(locals.are_held(80..=80) && !locals.are_held(81..=u16::MAX));
        locals.give_back(&one);
        locals.give_back(&other);
        assert!(!locals.are_held(0..=u16::MAX));
        for bits in 0..8 {
            assert_eq!(Reuse::from_bits(bits).to_bits(), bits);
        }
    }

    #[test]
    fn a_full_table_takes_what_is_said_for_what_another_says() {
        let mut locals = Locals::new();
        let all: Vec<FlowKey> = (0..LOCALS_MAX as u32)
            .map(|n| locals.take(&flow(n), Reuse::default()).unwrap())
            .collect();
        let shared = Reuse { address: true, ..Reuse::default() };
        let ends = locals.take(&flow(7), shared).unwrap();
        assert_eq!(locals.local_and_reuse(&ends), (flow(7).local.ip(), Reuse::default()));
        locals.give_back(&all[9]);
        let ends = locals.take(&flow(7), shared).unwrap();
        assert_eq!(locals.local_and_reuse(&ends), (flow(7).local.ip(), shared));
    }

    #[test]
    fn an_address_stays_as_long_as_a_connection_has_it_and_then_makes_room() {
        let mut locals = Locals::new();
        let all: Vec<FlowKey> = (0..LOCALS_MAX as u32)
            .map(|n| locals.take(&flow(n), Reuse::default()).unwrap())
            .collect();
        assert!(
            locals.take(&flow(9999), Reuse::default()).is_none(),
            "every address has a connection"
        );
        assert!(
            locals.take(&flow(7), Reuse::default()).is_some(),
            "but one that is there may have more"
        );
        locals.give_back(&all[7]);
        assert!(
            locals.take(&flow(9999), Reuse::default()).is_none(),
            "the second one has it still"
        );
        locals.give_back(&all[9]);
        let ends = locals.take(&flow(9999), Reuse::default()).unwrap();
        assert_eq!(locals.flow(&ends), flow(9999));
        assert_eq!(locals.flow(&all[8]), flow(8));
    }
}
