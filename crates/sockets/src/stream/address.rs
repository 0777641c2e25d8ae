//! Addresses of a stream: bind(2), getsockname(2), getpeername(2), and what listen(2) takes over.
//!
//! Read first: ip(7), ipv6(7); `ports.rs`, `dual_stack.rs`.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use megapipe::Handle;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{Blank, Connecting, StreamSocket};
use crate::dual_stack;
use crate::error::Error;
use crate::ports::{Beneath, BoundPort, LocalPorts, NoConnections, PortHold, PortSpace};
use crate::readiness::ConnectProgress;
use crate::transport::StreamTransport;

impl StreamSocket {
    /// A fresh socket in the kernel, or one that our own stack knows nothing of yet.
    ///
    /// # Errors
    /// As socket(2).
    pub(crate) fn open(is_v6: bool, is_local: bool) -> Result<Self, Error> {
        if is_local {
            return Ok(Self::new(Blank::Local, is_v6));
        }
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        Ok(Self::new(Blank::Kernel(fd), is_v6))
    }

    /// bind(2).
    ///
    /// # Errors
    /// As bind(2).
    pub(crate) fn bind<T: StreamTransport>(
        &mut self,
        address: SocketAddr,
        ports: &mut LocalPorts,
        transport: &mut T,
    ) -> Result<(), Error> {
        let plain = dual_stack::to_bind(self.is_v6, self.options.sharing.v6_only, address)?;
        match &self.blank {
            Blank::Kernel(fd) => {
                rustix::net::bind(fd, &address)?;
                self.asked = Some(plain);
            }
            Blank::Local | Blank::Used => self.bind_on_stack(plain, ports, transport)?,
        }
        self.options.sharing.v6_only |= dual_stack::is_one_of_v6(plain);
        Ok(())
    }

    /// Takes an address of our own stack, where what `beneath` has may be in the way.
    fn bind_on_stack(
        &mut self,
        plain: SocketAddr,
        ports: &mut LocalPorts,
        beneath: &mut impl Beneath,
    ) -> Result<(), Error> {
        let is_bound = self.bound.is_some_and(|bound| bound.hold != PortHold::GivenUp);
        if !matches!(self.blank, Blank::Local) || is_bound {
            return Err(Error::InvalidArgument);
        }
        ports.check_local(plain.ip())?;
        if let Some(given_up) = self.bound.take() {
            ports.release(given_up);
        }
        self.bound = Some(ports.bind(PortSpace::Tcp, plain, self.options.sharing, beneath)?);
        Ok(())
    }

    /// bind(2) on our own stack, of a port that the kernel has selected: connections there are not
    /// in its way.
    ///
    /// # Errors
    /// As bind(2).
    pub(crate) fn bind_beside_connections(
        &mut self,
        address: SocketAddr,
        ports: &mut LocalPorts,
    ) -> Result<(), Error> {
        let plain = dual_stack::to_bind(self.is_v6, self.options.sharing.v6_only, address)?;
        self.bind_on_stack(plain, ports, &mut NoConnections)?;
        if let Some(bound) = &mut self.bound {
            bound.hold = PortHold::Chosen;
        }
        self.options.sharing.v6_only |= dual_stack::is_one_of_v6(plain);
        Ok(())
    }

    /// The local address on our own stack; a free port of all addresses, if there was none.
    ///
    /// # Errors
    /// [`Error::AddressInUse`].
    pub(crate) fn bind_if_unbound<T: StreamTransport>(
        &mut self,
        ports: &mut LocalPorts,
        transport: &mut T,
    ) -> Result<BoundPort, Error> {
        self.replace_port_given_up(ports, transport)?;
        if let Some(bound) = self.bound {
            return Ok(bound);
        }
        let any = dual_stack::unbound(self.is_v6);
        let bound = ports.bind(PortSpace::Tcp, any, self.options.sharing, transport)?;
        Ok(*self.bound.insert(bound))
    }

    /// A socket that was connected before gets another port at the address that it is bound to.
    ///
    /// # Errors
    /// [`Error::AddressInUse`].
    pub(crate) fn replace_port_given_up(
        &mut self,
        ports: &mut LocalPorts,
        beneath: &mut impl Beneath,
    ) -> Result<(), Error> {
        let Some(before) = self.bound.filter(|bound| bound.hold == PortHold::GivenUp) else {
            return Ok(());
        };
        let mut any_port = before.address;
        any_port.set_port(0);
        let new = ports.bind(PortSpace::Tcp, any_port, self.options.sharing, beneath)?;
        ports.release(before);
        self.bound = Some(new);
        Ok(())
    }

    /// Whether the socket has not been connected, so that it may listen.
    pub(crate) const fn may_listen(&self) -> bool {
        matches!(self.progress, ConnectProgress::Closed)
            && matches!(self.connecting, Connecting::Not)
    }

    /// listen(2) on the kernel's socket, which leaves the stream.
    ///
    /// # Errors
    /// As listen(2).
    pub(crate) fn listen_in_kernel(&mut self, backlog: i32) -> Result<OwnedFd, Error> {
        let Blank::Kernel(fd) = &self.blank else { return Err(Error::InvalidArgument) };
        rustix::net::listen(fd, backlog)?;
        match std::mem::replace(&mut self.blank, Blank::Used) {
            Blank::Kernel(fd) => Ok(fd),
            Blank::Local | Blank::Used => Err(Error::InvalidArgument),
        }
    }

    /// getsockname(2).
    ///
    /// # Errors
    /// As getsockname(2).
    pub(crate) fn local_name<T: StreamTransport>(
        &self,
        transport: &mut T,
    ) -> Result<SocketAddr, Error> {
        if let Blank::Kernel(fd) = &self.blank {
            let name = rustix::net::getsockname(fd)?;
            return SocketAddr::try_from(name).map_err(|_| Error::InvalidArgument);
        }
        let known = self.name.or_else(|| match self.handle {
            Handle::NONE => None,
            handle => transport.local_address(handle),
        });
        let name = known.or_else(|| self.bound.map(|bound| bound.address));
        Ok(dual_stack::program_address(
            self.is_v6,
            name.unwrap_or_else(|| dual_stack::unbound(self.is_v6)),
        ))
    }

    /// getpeername(2).
    ///
    /// # Errors
    /// As getpeername(2).
    pub(crate) fn peer_name<T: StreamTransport>(
        &self,
        transport: &mut T,
    ) -> Result<SocketAddr, Error> {
        if !matches!(self.progress, ConnectProgress::Connected) {
            return Err(Error::NotConnected);
        }
        let peer = transport.peer_address(self.handle)?.ok_or(Error::NotConnected)?;
        Ok(dual_stack::program_address(self.is_v6, peer))
    }
}
