//! The host whose address a link shares: what its kernel knows of the network, and which ports are
//! ours.
//!
//! Read first: `megapipe_link::netlink`, `megapipe_link::Ownership`; `Caps::shares_host_address`.
//!
//! On such a link the stack sends as the kernel would. Addresses, routes and neighbours are the
//! kernel's, and come by netlink; where a neighbour is not known, the kernel is made to look for
//! it. Frames reach us only for ports that we own.
//!
//! Invariants
//! - Nothing of the kernel's network is changed.
//! - A port that was ours once stays ours as long as the server: connections of a listener outlive
//!   it, and the kernel would reset them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use megapipe_link::netlink::{Change, Fact, KernelRoute, Neighbour, Netlink, RouteKind};
use megapipe_link::{LinkError, MacAddress, Ownership, OwnershipError, Transport};
use megapipe_stack as stack;
use stack::{Instant, Memory};

use crate::client_ports::{blocks, random_start};
use crate::limits::{HOST_LOOK_PERIOD, HOST_ROUTES_MAX, SHARED_CLIENT_PORTS};
use crate::link_server::LinkServer;
use crate::transport_server::TransportServer;

mod migrated;
mod reserved;

use migrated::Moved;
use reserved::HostReservations;

/// The main routing table.
const MAIN_TABLE: u32 = 254;
/// The port of the discard protocol (RFC 863).
const DISCARD: u16 = 9;

/// What the kernel has told of one interface.
#[derive(Debug, Default)]
struct Picture {
    name: String,
    index: Option<u32>,
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<KernelRoute>,
    /// Neighbours that changed, and where they are now.
    moved: VecDeque<(IpAddr, Option<MacAddress>)>,
    routes_changed: bool,
    /// Changes were lost: all has to be told anew.
    is_stale: bool,
}

impl Picture {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Lost => self.is_stale = true,
            Change::Is(Fact::Interface(interface)) if interface.name == self.name => {
                self.index = Some(interface.index);
            }
            Change::Is(Fact::Address(it)) if self.is_mine(Some(it.interface)) => {
                let known = self.addresses.iter().any(|(address, _)| *address == it.address);
                if !known && !it.is_tentative {
                    self.addresses.push((it.address, it.prefix_len));
                }
            }
            Change::Is(Fact::Route(route)) if self.is_way(&route) => {
                self.forget_route(&route);
                if self.routes.len() < HOST_ROUTES_MAX {
                    self.routes.push(route);
                    self.routes_changed = true;
                }
            }
            Change::Gone(Fact::Route(route)) if self.is_way(&route) => self.forget_route(&route),
            Change::Is(Fact::Neighbour(it)) if self.is_mine(Some(it.interface)) => {
                let Neighbour { address, mac, is_usable, .. } = it;
                self.moved.push_back((address, mac.filter(|_| is_usable)));
            }
            Change::Gone(Fact::Neighbour(it)) if self.is_mine(Some(it.interface)) => {
                self.moved.push_back((it.address, None));
            }
            Change::Is(_) | Change::Gone(_) => {}
        }
    }

    fn is_mine(&self, interface: Option<u32>) -> bool {
        interface.is_some() && interface == self.index
    }

    fn is_way(&self, route: &KernelRoute) -> bool {
        let main = route.table == MAIN_TABLE && route.kind == RouteKind::Unicast;
        main && self.is_mine(route.interface) && !route.destination.is_multicast()
    }

    fn forget_route(&mut self, gone: &KernelRoute) {
        let before = self.routes.len();
        self.routes.retain(|route| {
            (route.destination, route.prefix_len, route.gateway, route.metric)
                != (gone.destination, gone.prefix_len, gone.gateway, gone.metric)
        });
        self.routes_changed |= self.routes.len() != before;
    }

    /// The best route to each destination, for the stack.
    fn stack_routes(&self) -> Vec<stack::Route> {
        let mut best: Vec<&KernelRoute> = Vec::new();
        for route in &self.routes {
            let same = |it: &&KernelRoute| {
                (it.destination, it.prefix_len) == (route.destination, route.prefix_len)
            };
            match best.iter().position(same) {
                Some(place) if best[place].metric <= route.metric => {}
                Some(place) => best[place] = route,
                None => best.push(route),
            }
        }
        let way = |route: &&KernelRoute| stack::Route {
            prefix: route.destination,
            prefix_bits: route.prefix_len,
            via: route.gateway,
        };
        best.iter().map(way).collect()
    }
}

/// The ports that are ours, for the stack to look at: which peers at our own addresses are not the
/// kernel's.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnPorts(Arc<Mutex<Ownership>>);

impl OwnPorts {
    fn set(&self, ownership: &Ownership) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(ownership);
    }

    /// A port is ours.
    pub(crate) fn contain(&self, transport: Transport, port: u16) -> bool {
        let ownership = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ownership.ports(transport).contains(port)
    }
}

/// The host that a link shares its address with.
pub(crate) struct Host {
    netlink: Netlink,
    picture: Picture,
    ownership: Ownership,
    /// The same, as the stack sees it.
    own_ports: OwnPorts,
    /// Number of the block of client ports that is reserved first: unpredictable.
    first_block: usize,
    looked_at: Option<Instant>,
    moved: Moved,
    reserved: HostReservations,
}

impl Host {
    /// Listens to what the kernel says of `interface`. Blocks for its answer, some microseconds.
    ///
    /// # Errors
    /// What netlink says; [`LinkError::Setting`] if there is no such interface.
    pub(crate) fn open(interface: &str) -> Result<Self, LinkError> {
        let mut netlink = Netlink::open()?;
        let mut picture = Picture { name: interface.to_owned(), ..Picture::default() };
        netlink.list(&mut |change| picture.apply(change))?;
        if picture.index.is_none() {
            let why = format!("{interface:?} does not exist");
            return Err(LinkError::Setting { setting: "interface", why });
        }
        picture.routes_changed = true;
        Ok(Self {
            netlink,
            picture,
            ownership: Ownership::new(),
            own_ports: OwnPorts::default(),
            first_block: random_start(),
            looked_at: None,
            moved: Moved::default(),
            reserved: HostReservations::default(),
        })
    }

    /// The interface's addresses, with their prefixes.
    pub(crate) fn addresses(&self) -> &[(IpAddr, u8)] {
        &self.picture.addresses
    }

    /// The interface's index.
    pub(crate) const fn interface(&self) -> Option<u32> {
        self.picture.index
    }

    /// The addresses whose ports may be ours.
    pub(crate) fn shared_addresses(&self) -> &[IpAddr] {
        self.ownership.addresses()
    }

    /// From now on these are the addresses whose ports may be ours.
    ///
    /// # Errors
    /// More addresses than a link can tell apart.
    pub(crate) fn share(&mut self, addresses: &[(IpAddr, u8)]) -> Result<(), LinkError> {
        for (address, _) in addresses {
            self.ownership.add_address(*address).map_err(|error| LinkError::Setting {
                setting: "address",
                why: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Readable when the kernel has something to tell.
    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }

    /// Tells the stack what has changed, and the kernel which neighbours are wanted; from time to
    /// time, or `at_once`. Whether the stack's state changed.
    ///
    /// # Errors
    /// What netlink says.
    pub(crate) fn look<M: Memory>(
        &mut self,
        now: Instant,
        transport: &mut TransportServer<M>,
        at_once: bool,
    ) -> Result<bool, LinkError> {
        let due = self.looked_at.is_none_or(|at| now.since(at) >= HOST_LOOK_PERIOD);
        if !due && !at_once {
            return Ok(false);
        }
        self.looked_at = Some(now);
        let Self { netlink, picture, .. } = self;
        netlink.changes(&mut |change| picture.apply(change))?;
        if std::mem::take(&mut picture.is_stale) {
            picture.routes.clear();
            netlink.list(&mut |change| picture.apply(change))?;
        }
        let (stack, memory) = transport.parts();
        let told = picture.routes_changed || !picture.moved.is_empty();
        if std::mem::take(&mut picture.routes_changed) {
            // More routes than the stack takes: the old ones stay.
            let _ = stack.set_routes(&picture.stack_routes());
        }
        for (address, mac) in picture.moved.drain(..) {
            let Some(mac) = mac else {
                stack.remove_neighbour(address);
                continue;
            };
            // A full table: the neighbour is asked for again when it is needed.
            let _ = stack.set_neighbour(now, address, mac, memory);
        }
        while let Some(wanted) = stack.poll_wanted(now) {
            make_kernel_look_for(wanted, picture.index.unwrap_or_default());
        }
        Ok(told)
    }

    /// Makes a port ours.
    ///
    /// # Errors
    /// What the link says: another program's port, no capability, too many ports.
    pub(crate) fn claim(
        &mut self,
        link: &mut LinkServer,
        transport: Transport,
        port: u16,
    ) -> Result<(), LinkError> {
        if self.owns(transport, port) {
            return Ok(());
        }
        self.own(link, transport, (port, port))
    }

    /// Reserves one more block of the ports that connections and endpoints without a port of their
    /// own leave from. Returns `false` if all of them are ours. A block with a port of another
    /// program's is passed over while there are others.
    ///
    /// # Errors
    /// As [`Host::claim`].
    pub(crate) fn claim_client_ports(
        &mut self,
        link: &mut LinkServer,
        transport: Transport,
    ) -> Result<bool, LinkError> {
        let mut refusal = None;
        for (first, last) in blocks(self.first_block) {
            if (first..=last).all(|port| self.owns(transport, port)) {
                continue;
            }
            match self.own(link, transport, (first, last)) {
                Ok(()) => return Ok(true),
                Err(error @ LinkError::Setting { .. }) => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        refusal.map_or(Ok(false), Err)
    }

    /// The ports that are ours, now and later.
    pub(crate) fn own_ports(&self) -> OwnPorts {
        self.own_ports.clone()
    }

    /// A port is ours.
    pub(crate) fn owns(&self, transport: Transport, port: u16) -> bool {
        self.ownership.ports(transport).contains(port)
    }

    fn own(
        &mut self,
        link: &mut LinkServer,
        transport: Transport,
        (first, last): (u16, u16),
    ) -> Result<(), LinkError> {
        self.change(link, |ownership| {
            ownership.ports_mut(transport).insert(first..=last)?;
            ownership.client_ports.insert(SHARED_CLIENT_PORTS.0..=SHARED_CLIENT_PORTS.1)
        })
    }

    /// Changes what is ours, if the link can do it.
    ///
    /// # Errors
    /// What the link says, or that there is no room; nothing has changed then.
    pub(crate) fn change(
        &mut self,
        link: &mut LinkServer,
        change: impl FnOnce(&mut Ownership) -> Result<(), OwnershipError>,
    ) -> Result<(), LinkError> {
        let wanted = self.changed(change)?;
        link.set_ownership(&wanted)?;
        self.own_ports.set(&wanted);
        self.ownership = wanted;
        Ok(())
    }

    /// Whether there is room for a change of what is ours.
    ///
    /// # Errors
    /// What the link says, or that there is no room.
    pub(crate) fn check(
        &self,
        link: &LinkServer,
        change: impl FnOnce(&mut Ownership) -> Result<(), OwnershipError>,
    ) -> Result<(), LinkError> {
        link.check_ownership(&self.changed(change)?)
    }

    fn changed(
        &self,
        change: impl FnOnce(&mut Ownership) -> Result<(), OwnershipError>,
    ) -> Result<Ownership, LinkError> {
        let mut wanted = self.ownership.clone();
        change(&mut wanted)
            .map_err(|error| LinkError::Setting { setting: "ownership", why: error.to_string() })?;
        Ok(wanted)
    }
}

/// An empty datagram that the kernel wants to send makes it look for the neighbour; it goes to a
/// port where everything is discarded. If it does not go, the stack asks again.
fn make_kernel_look_for(neighbour: IpAddr, interface: u32) {
    let (any, to): (IpAddr, SocketAddr) = match neighbour {
        IpAddr::V4(ip) => (Ipv4Addr::UNSPECIFIED.into(), (ip, DISCARD).into()),
        IpAddr::V6(ip) => {
            (Ipv6Addr::UNSPECIFIED.into(), SocketAddrV6::new(ip, DISCARD, 0, interface).into())
        }
    };
    let sent = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(&[], to)
    });
    drop(sent);
}

#[cfg(test)]
mod tests;
