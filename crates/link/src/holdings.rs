//! The ports and flows that a link holds by kernel sockets, as its ownership changes.
//!
//! Read first: `reservation.rs`; `docs/decisions` on silent ports.
//!
//! Invariants
//! - A change is all or nothing: what was taken for one that fails goes again.
//! - What stays is not let go of in between.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::limits::RESERVATIONS_MAX;
use crate::reservation::{Families, Reservation, ReservationError, scoped};
use crate::{Flow, LinkError, Ownership, Transport};

/// What one deaf socket holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    /// A port at one address.
    Port(Transport, IpAddr, u16),
    /// A port at all addresses of the link's interface.
    InterfacePort(Transport, Families, u16),
    Flow(Flow),
}

/// What is held.
#[derive(Debug)]
pub(crate) struct Holdings {
    held: BTreeMap<Held, Reservation>,
    /// The link's interface.
    interface: u32,
}

/// What is to be held from now on, with the sockets for what is new.
#[derive(Debug, Default)]
pub(crate) struct Change {
    wanted: Vec<Held>,
    new: Vec<(Held, Reservation)>,
}

impl Holdings {
    /// Nothing is held, for a link on this interface.
    pub(crate) const fn new(interface: u32) -> Self {
        Self { held: BTreeMap::new(), interface }
    }

    /// Takes what `ownership` needs and is not held yet.
    ///
    /// # Errors
    /// [`LinkError::Setting`] when a port is another program's or there are too many.
    /// [`LinkError::Io`] when the process has too few descriptors.
    pub(crate) fn prepare(&self, ownership: &Ownership) -> Result<Change, LinkError> {
        let mut change = Change::default();
        for flow in ownership.taken() {
            self.want(&mut change, Held::Flow(*flow))?;
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
        change: &mut Change,
        ownership: &Ownership,
        (transport, port): (Transport, u16),
    ) -> Result<(), LinkError> {
        let addresses = ownership.addresses();
        let is_split = || {
            let at = |address: &IpAddr| Held::Port(transport, *address, port);
            addresses.iter().any(|address| self.held.contains_key(&at(address)))
        };
        if ownership.client_ports.contains(port)
            && let Some(families) = Families::of(addresses)
            && addresses.len() > 1
            && !is_split()
        {
            let all = Held::InterfacePort(transport, families, port);
            match self.try_want(change, all)? {
                Ok(()) => return Ok(()),
                Err(ReservationError::InUse { .. }) => {}
                Err(other) => return Err(not_held(other)),
            }
        }
        let elsewhere = |address| ownership.is_held_elsewhere(transport, address, port);
        for address in addresses.iter().filter(|address| !elsewhere(**address)) {
            self.want(change, Held::Port(transport, *address, port))?;
        }
        Ok(())
    }

    fn want(&self, change: &mut Change, what: Held) -> Result<(), LinkError> {
        self.try_want(change, what)?.map_err(not_held)
    }

    /// Holds one thing, if it is not held yet. The inner error is the kernel's refusal.
    fn try_want(
        &self,
        change: &mut Change,
        what: Held,
    ) -> Result<Result<(), ReservationError>, LinkError> {
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

    fn hold(&self, what: &Held) -> Result<Reservation, ReservationError> {
        match what {
            Held::Port(transport, address, port) => {
                let address = SocketAddr::new(*address, *port);
                Reservation::port(*transport, scoped(address, self.interface))
            }
            Held::InterfacePort(transport, families, port) => {
                Reservation::port_of_interface(*transport, *families, *port, self.interface)
            }
            // The connection may become the kernel's one day, and then finds its place free.
            Held::Flow(flow) => Reservation::flow(flow, self.interface).and_then(|reservation| {
                reservation.stand_aside(self.interface)?;
                Ok(reservation)
            }),
        }
    }

    /// Keeps what the change has taken, and lets go of what it does not want.
    pub(crate) fn commit(&mut self, change: Change) {
        self.held.extend(change.new);
        self.held.retain(|held, _| change.wanted.binary_search(held).is_ok());
    }
}

fn not_held(error: ReservationError) -> LinkError {
    match error {
        ReservationError::Io { what, source } => LinkError::Io { what, source },
        other => LinkError::Setting { setting: "ownership", why: other.to_string() },
    }
}

#[cfg(test)]
mod tests;
