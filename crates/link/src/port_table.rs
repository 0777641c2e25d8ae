//! Port table of a link: the kernel sockets that hold its ports and flows as its ownership changes.
//!
//! Read first: `port_guard.rs`; `docs/decisions` on silent ports.
//!
//! Invariants
//! - A change is all or nothing: what was taken for one that fails goes again.
//! - What stays is not let go of in between.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::limits::RESERVATIONS_MAX;
use crate::port_guard::{Families, PortGuard, PortGuardError, scoped};
use crate::{FlowTuple, LinkError, Ownership, Transport};

/// What one deaf socket holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HeldPorts {
    /// A port at one address.
    Port(Transport, IpAddr, u16),
    /// A port at all addresses of the link's interface.
    InterfacePort(Transport, Families, u16),
    Flow(FlowTuple),
}

/// What is held.
#[derive(Debug)]
pub(crate) struct PortTable {
    held: BTreeMap<HeldPorts, PortGuard>,
    /// The link's interface.
    interface: u32,
}

/// What is to be held from now on, with the sockets for what is new.
#[derive(Debug, Default)]
pub(crate) struct PortChange {
    wanted: Vec<HeldPorts>,
    new: Vec<(HeldPorts, PortGuard)>,
}

impl PortTable {
    /// Nothing is held, for a link on this interface.
    pub(crate) const fn new(interface: u32) -> Self {
        Self { held: BTreeMap::new(), interface }
    }

    /// Takes what `ownership` needs and is not held yet.
    ///
    /// # Errors
    /// [`LinkError::Setting`] when a port is another program's or there are too many.
    /// [`LinkError::Io`] when the process has too few descriptors.
    pub(crate) fn prepare(&self, ownership: &Ownership) -> Result<PortChange, LinkError> {
        let mut change = PortChange::default();
        for flow in ownership.taken() {
            self.want(&mut change, HeldPorts::Flow(*flow))?;
        }
        // A whole address is not the kernel's: it has nothing to answer from there.
        if !ownership.whole_address {
            for transport in [Transport::Tcp, Transport::Udp] {
                let ranges = ownership.ports(transport).ranges().iter();
                for port in ranges.flat_map(|&(first, last)| first..=last) {
                    self.want_port(&mut change, ownership, (transport, port))?;
                }
            }
        }
        change.wanted.sort_unstable();
        Ok(change)
    }

    /// Holds a port at the addresses of the link. A client port is held by one socket, if no
    /// other program has it at any address of the host.
    fn want_port(
        &self,
        change: &mut PortChange,
        ownership: &Ownership,
        (transport, port): (Transport, u16),
    ) -> Result<(), LinkError> {
        let addresses = ownership.addresses();
        let is_split = || {
            let at = |address: &IpAddr| HeldPorts::Port(transport, *address, port);
            addresses.iter().any(|address| self.held.contains_key(&at(address)))
        };
        if ownership.client_ports.contains(port)
            && let Some(families) = Families::of(addresses)
            && addresses.len() > 1
            && !is_split()
        {
            let all = HeldPorts::InterfacePort(transport, families, port);
            match self.try_want(change, all)? {
                Ok(()) => return Ok(()),
                Err(PortGuardError::InUse { .. }) => {}
                Err(other) => return Err(not_held(other)),
            }
        }
        let elsewhere = |address| ownership.is_held_elsewhere(transport, address, port);
        for address in addresses.iter().filter(|address| !elsewhere(**address)) {
            self.want(change, HeldPorts::Port(transport, *address, port))?;
        }
        Ok(())
    }

    fn want(&self, change: &mut PortChange, what: HeldPorts) -> Result<(), LinkError> {
        self.try_want(change, what)?.map_err(not_held)
    }

    /// Holds one thing, if it is not held yet. The inner error is the kernel's refusal.
    fn try_want(
        &self,
        change: &mut PortChange,
        what: HeldPorts,
    ) -> Result<Result<(), PortGuardError>, LinkError> {
        if change.wanted.len() == RESERVATIONS_MAX {
            let why = format!("more than {RESERVATIONS_MAX} ports and flows to hold");
            return Err(LinkError::Setting { setting: "ownership", why });
        }
        if !self.held.contains_key(&what) {
            match self.hold(&what) {
                Ok(reservation) => change.new.push((what, reservation)),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        change.wanted.push(what);
        Ok(Ok(()))
    }

    fn hold(&self, what: &HeldPorts) -> Result<PortGuard, PortGuardError> {
        match what {
            HeldPorts::Port(transport, address, port) => {
                let address = SocketAddr::new(*address, *port);
                PortGuard::port(*transport, scoped(address, self.interface))
            }
            HeldPorts::InterfacePort(transport, families, port) => {
                PortGuard::port_of_interface(*transport, *families, *port, self.interface)
            }
            // The connection may become the kernel's one day, and then finds its place free.
            HeldPorts::Flow(flow) => {
                PortGuard::flow(flow, self.interface).and_then(|reservation| {
                    reservation.stand_aside(self.interface)?;
                    Ok(reservation)
                })
            }
        }
    }

    /// Keeps what the change has taken, and lets go of what it does not want.
    pub(crate) fn commit(&mut self, change: PortChange) {
        self.held.extend(change.new);
        self.held.retain(|held, _| change.wanted.binary_search(held).is_ok());
    }
}

fn not_held(error: PortGuardError) -> LinkError {
    match error {
        PortGuardError::Io { what, source } => LinkError::Io { what, source },
        other => LinkError::Setting { setting: "ownership", why: other.to_string() },
    }
}

#[cfg(test)]
mod tests;
