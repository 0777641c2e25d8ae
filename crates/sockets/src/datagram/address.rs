//! Addresses of a datagram socket: bind(2) and connect(2).
//!
//! Read first: ip(7), ipv6(7); `ports.rs`, `dual_stack.rs`.

use std::net::SocketAddr;

use megapipe::{DatagramSharing, Handle};

use super::DatagramSocket;
use crate::dual_stack;
use crate::error::Error;
use crate::ports::{BoundPort, LocalPorts, NoConnections, PortSpace};
use crate::transport::DatagramTransport;

/// Ports that are tried where other programs have those that were chosen.
const CHOSEN_PORTS_MAX: usize = 256;

impl DatagramSocket {
    /// Where it is bound, as far as that decides whom it reaches.
    pub(super) fn place(&self) -> Option<SocketAddr> {
        let peer = self.peer.map(dual_stack::plain_address).filter(SocketAddr::is_ipv4);
        peer.or(self.asked)
    }

    /// It may be connected to that peer.
    fn check_peer(&self, peer: SocketAddr) -> Result<(), Error> {
        let v6_only = self.options.sharing.v6_only;
        if self.is_v6 && v6_only && peer.is_ipv4() {
            return Err(Error::FamilyNotSupported);
        }
        dual_stack::to_send(self.is_v6, v6_only, self.place(), peer).map(drop)
    }

    /// bind(2).
    ///
    /// # Errors
    /// As bind(2).
    pub(crate) fn bind<T: DatagramTransport>(
        &mut self,
        address: SocketAddr,
        ports: &mut LocalPorts,
        cookie: u64,
        transport: &mut T,
    ) -> Result<(), Error> {
        let plain = dual_stack::to_bind(self.is_v6, self.options.sharing.v6_only, address)?;
        if !transport.is_local() {
            let socket = transport.kernel_socket(self.handle()).ok_or(Error::InvalidArgument)?;
            rustix::net::bind(socket, &address)?;
        } else if self.handle() != Handle::NONE {
            return Err(Error::InvalidArgument);
        } else {
            ports.check_local(plain.ip())?;
            self.bind_to_stack(plain, ports, cookie, transport)?;
        }
        self.asked = Some(plain);
        self.options.sharing.v6_only |= dual_stack::is_one_of_v6(plain);
        Ok(())
    }

    /// An address on our own stack; port 0 and an unspecified address are chosen.
    fn bind_to_stack<T: DatagramTransport>(
        &mut self,
        address: SocketAddr,
        ports: &mut LocalPorts,
        cookie: u64,
        transport: &mut T,
    ) -> Result<(), Error> {
        let mut left = if address.port() == 0 { CHOSEN_PORTS_MAX } else { 1 };
        self.bound = loop {
            let sharing = self.options.sharing;
            let bound = ports.bind(PortSpace::Udp, address, sharing, &mut NoConnections)?;
            left -= 1;
            match self.bind_sides(bound, cookie, transport) {
                Ok(()) => break Some(bound),
                Err(error) => {
                    self.leave(transport);
                    ports.release(bound);
                    // Another program has the port that was chosen.
                    if error != Error::AddressInUse || left == 0 {
                        return Err(error);
                    }
                }
            }
        };
        if self.wants_quotes() {
            for handle in self.handles() {
                transport.quote_errors(handle, true);
            }
        }
        self.post_receives(transport);
        Ok(())
    }

    /// The endpoints of an address that the program's other sockets leave to this one.
    fn bind_sides<T: DatagramTransport>(
        &mut self,
        bound: BoundPort,
        cookie: u64,
        transport: &mut T,
    ) -> Result<(), Error> {
        let sharing = self.options.sharing;
        let places = [Some(bound.address), dual_stack::beside(sharing.v6_only, bound.address)];
        for (side, place) in places.into_iter().enumerate() {
            let Some(place) = place else { continue };
            // `ports` has decided which sockets of this program may share the address.
            let sharing = DatagramSharing {
                is_shared: true,
                spreads: sharing.port,
                is_mapped: self.is_v6 && place.is_ipv4(),
                excludes_others: !sharing.address,
                ..DatagramSharing::default()
            };
            self.sides[side].handle = transport.bind_datagram(place, sharing, cookie)?;
        }
        Ok(())
    }

    /// Takes an address, if the socket has none.
    pub(super) fn bind_if_unbound<T: DatagramTransport>(
        &mut self,
        ports: &mut LocalPorts,
        cookie: u64,
        transport: &mut T,
    ) -> Result<(), Error> {
        if self.handle() != Handle::NONE {
            return Ok(());
        }
        let any = dual_stack::unbound(self.is_v6);
        self.bind_to_stack(self.asked.unwrap_or(any), ports, cookie, transport)
    }

    /// Frees a port that was chosen for a peer together with the peer, as Linux does.
    fn unbind_if_chosen<T: DatagramTransport>(
        &mut self,
        ports: &mut LocalPorts,
        transport: &mut T,
    ) {
        if self.asked.is_some_and(|asked| asked.port() != 0) {
            return;
        }
        if let Some(bound) = self.bound.take() {
            ports.release(bound);
            // Its datagrams go with it.
            self.leave(transport);
        }
    }

    /// connect(2): the one peer from now on; `None`: any again.
    ///
    /// # Errors
    /// As connect(2).
    pub(crate) fn connect<T: DatagramTransport>(
        &mut self,
        peer: Option<SocketAddr>,
        ports: &mut LocalPorts,
        cookie: u64,
        transport: &mut T,
    ) -> Result<(), Error> {
        if let Some(peer) = peer {
            self.check_peer(peer)?;
        }
        if transport.is_local() {
            match peer {
                Some(_) => self.bind_if_unbound(ports, cookie, transport)?,
                None => self.unbind_if_chosen(ports, transport),
            }
            self.connect_on_stack(peer.map(dual_stack::plain_address), ports, transport)?;
        } else {
            let socket = transport.kernel_socket(self.handle()).ok_or(Error::InvalidArgument)?;
            match peer {
                Some(peer) => rustix::net::connect(socket, &peer)?,
                None => rustix::net::connect_unspec(socket)?,
            }
        }
        self.peer = peer.map(|peer| dual_stack::program_address(self.is_v6, peer));
        Ok(())
    }

    /// Our own stack brings what that peer sends, before it goes to others at the address.
    fn connect_on_stack<T: DatagramTransport>(
        &mut self,
        peer: Option<SocketAddr>,
        ports: &mut LocalPorts,
        transport: &mut T,
    ) -> Result<(), Error> {
        let towards = peer.map_or_else(|| self.handle(), |peer| self.towards(peer));
        for handle in self.handles() {
            let local = transport.connect_datagram(handle, peer)?;
            if let Some(bound) = self.bound.filter(|_| handle == towards) {
                ports.move_to(bound, local.ip());
            }
        }
        Ok(())
    }

    /// getsockname(2).
    pub(crate) fn local_name<T: DatagramTransport>(&self, transport: &mut T) -> SocketAddr {
        let known = match self.handle_towards_peer() {
            Handle::NONE => None,
            handle => transport.local_address(handle),
        };
        let name = known.or_else(|| self.bound.map(|bound| bound.address));
        dual_stack::program_address(
            self.is_v6,
            name.unwrap_or_else(|| dual_stack::unbound(self.is_v6)),
        )
    }
}
