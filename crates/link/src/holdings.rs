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
use crate::reservation::{Reservation, ReservationError, scoped};
use crate::{Flow, LinkError, Ownership, Transport};

/// What one deaf socket holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Port(Transport, IpAddr, u16),
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
#[derive(Debug)]
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
    pub(crate) fn prepare(&self, ownership: &Ownership) -> Result<Change, LinkError> {
        let mut wanted = to_hold(ownership)?;
        let new = wanted.iter().filter(|held| !self.held.contains_key(held));
        let new: Result<Vec<_>, LinkError> =
            new.map(|held| Ok((*held, self.hold(held)?))).collect();
        let new = new?;
        wanted.sort_unstable();
        Ok(Change { wanted, new })
    }

    fn hold(&self, what: &Held) -> Result<Reservation, LinkError> {
        let done = match what {
            Held::Port(transport, address, port) => {
                let address = SocketAddr::new(*address, *port);
                Reservation::port(*transport, scoped(address, self.interface))
            }
            // The connection may become the kernel's one day, and then finds its place free.
            Held::Flow(flow) => Reservation::flow(flow, self.interface).and_then(|reservation| {
                reservation.stand_aside(self.interface)?;
                Ok(reservation)
            }),
        };
        done.map_err(|error| match error {
            ReservationError::Io { what, source } => LinkError::Io { what, source },
            other => LinkError::Setting { setting: "ownership", why: other.to_string() },
        })
    }

    /// Keeps what the change has taken, and lets go of what it does not want.
    pub(crate) fn commit(&mut self, change: Change) {
        self.held.extend(change.new);
        self.held.retain(|held, _| change.wanted.binary_search(held).is_ok());
    }
}

/// The ports and flows that the kernel has to leave alone.
fn to_hold(ownership: &Ownership) -> Result<Vec<Held>, LinkError> {
    let mut wanted: Vec<_> = ownership.taken().iter().copied().map(Held::Flow).collect();
    // A whole address is not the kernel's: it has nothing to answer from there.
    if !ownership.whole_address {
        for transport in [Transport::Tcp, Transport::Udp] {
            let ports = ownership.ports(transport);
            let count = wanted.len() + ports.count() * ownership.addresses().len();
            if count > RESERVATIONS_MAX {
                let why = format!("{count} ports to hold; {RESERVATIONS_MAX} can be held");
                return Err(LinkError::Setting { setting: "ownership", why });
            }
            for address in ownership.addresses() {
                let ports = ports.ranges().iter().flat_map(|&(first, last)| first..=last);
                let is_ours_to_hold =
                    |port: &u16| !ownership.is_held_elsewhere(transport, *address, *port);
                let ports = ports.filter(is_ours_to_hold);
                wanted.extend(ports.map(|port| Held::Port(transport, *address, port)));
            }
        }
    }
    Ok(wanted)
}
