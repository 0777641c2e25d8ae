//! Port reservation: kernel sockets that hold our ports on an address shared with the kernel.
//!
//! Read first: ip(7), tcp(7), and decision 0008. A [`PortGuard`] is a kernel socket bound to the
//! port, so that no other program can bind it and the kernel does not choose it as an ephemeral
//! port. The socket is *deaf*: a socket filter drops everything. So the kernel answers a TCP
//! segment or a datagram for the port neither with a reset nor with an ICMP error.
//!
//! Invariants
//! - The filter is attached before the socket can be reached.
//! - Nothing is left behind: the reservation is the descriptor, and goes with the process, however
//!   that ends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::socket_option::{attach_filter, bind_to_interface, has_filter, set_option};
use crate::{FlowTuple, Transport};

/// A port, or a flow, that the kernel leaves to us.
#[derive(Debug)]
pub struct PortGuard {
    socket: OwnedFd,
}

/// Families of addresses at which a port is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Families {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Both, by one socket.
    Both,
}

impl Families {
    /// The families of a list of addresses; `None` if it is empty.
    pub(crate) fn of(addresses: &[IpAddr]) -> Option<Self> {
        let has_v4 = addresses.iter().any(IpAddr::is_ipv4);
        match (has_v4, addresses.iter().any(IpAddr::is_ipv6)) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::V4),
            (false, true) => Some(Self::V6),
            (false, false) => None,
        }
    }

    const fn any(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 | Self::Both => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// Why a port was not to be had.
#[derive(Debug, thiserror::Error)]
pub enum PortGuardError {
    /// Another socket has it.
    #[error("{transport:?} {address} is in use by another program")]
    InUse {
        /// TCP or UDP.
        transport: Transport,
        /// Address and port.
        address: SocketAddr,
    },
    /// The address is not one of this host's.
    #[error("{address} is not an address of this host")]
    NotLocal {
        /// Address and port.
        address: SocketAddr,
    },
    /// The port is below `net.ipv4.ip_unprivileged_port_start`; or it is one of TCP, and the kernel
    /// (seen with Linux 6.18) keeps socket filters on TCP from us; or a single flow is asked for.
    #[error("{transport:?} {address} needs {capability}")]
    NotAllowed {
        /// TCP or UDP.
        transport: Transport,
        /// Address and port.
        address: SocketAddr,
        /// What is missing.
        capability: &'static str,
    },
    /// Anything else.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Connections that a deaf socket can have waiting. It never has one.
const BACKLOG: i32 = 1;

impl PortGuard {
    /// Takes a port at one address (or at all of them, if it is unspecified). IPv6 sockets take
    /// IPv6 only; a link-local address comes with its interface. For TCP, newer kernels want
    /// CAP_NET_ADMIN.
    ///
    /// # Errors
    /// See [`PortGuardError`].
    pub fn port(transport: Transport, address: SocketAddr) -> Result<Self, PortGuardError> {
        let socket = deaf_socket(transport, address, false)?;
        Self::hold(socket, transport, address)
    }

    /// Takes a port at all addresses, by one socket, for what arrives over one interface. Other
    /// programs cannot bind the port at any address meanwhile, unless their socket is bound to
    /// another interface.
    ///
    /// # Errors
    /// See [`PortGuardError`].
    pub(crate) fn port_of_interface(
        transport: Transport,
        families: Families,
        port: u16,
        interface: u32,
    ) -> Result<Self, PortGuardError> {
        let address = SocketAddr::new(families.any(), port);
        let socket = deaf_socket(transport, address, families == Families::Both)?;
        bind_to_interface(socket.as_fd(), interface).map_err(|source| PortGuardError::Io {
            what: "bind a socket to the interface",
            source,
        })?;
        Self::hold(socket, transport, address)
    }

    /// Binds a deaf socket. One of TCP listens then.
    fn hold(
        socket: OwnedFd,
        transport: Transport,
        address: SocketAddr,
    ) -> Result<Self, PortGuardError> {
        if transport == Transport::Tcp {
            // A connection of the kernel's in TIME-WAIT does not keep us from the port. Exclusive
            // all the same: two sockets that listen cannot share it.
            set_socket_reuseaddr(&socket, true).map_err(|error| failed("reuse a port", error))?;
        }
        let refused = |error| refusal(transport, address, "CAP_NET_BIND_SERVICE", error);
        bind(&socket, &address).map_err(refused)?;
        if transport == Transport::Tcp {
            // Listening makes it the socket of every segment to the port that has no other.
            listen(&socket, BACKLOG).map_err(refused)?;
        }
        Ok(Self { socket })
    }

    /// Takes one flow, though its port may be the kernel's. TCP only; needs CAP_NET_ADMIN, as
    /// moving a connection does (`TCP_REPAIR`). The kernel sends nothing, neither now nor when the
    /// reservation ends. Link-local addresses of IPv6 are those of `interface`.
    ///
    /// # Errors
    /// See [`PortGuardError`].
    pub fn flow(flow: &FlowTuple, interface: u32) -> Result<Self, PortGuardError> {
        let local = scoped(SocketAddr::new(flow.local, flow.local_port), interface);
        let remote = scoped(SocketAddr::new(flow.remote, flow.remote_port), interface);
        let socket = deaf_socket(flow.transport, local, false)?;
        let refused = |error| refusal(flow.transport, local, "CAP_NET_ADMIN", error);
        if flow.transport == Transport::Tcp {
            set_repair(&socket).map_err(refused)?;
        } else {
            set_socket_reuseaddr(&socket, true).map_err(|error| failed("reuse a port", error))?;
        }
        bind(&socket, &local).map_err(refused)?;
        // In repair mode this sends nothing: the socket is established at once.
        connect(&socket, &remote).map_err(refused)?;
        Ok(Self { socket })
    }

    /// Makes room beside a flow's reservation: another socket may have the same addresses and
    /// ports, if it is bound to no interface, which is what a connection that moves needs
    /// ([`Successor`](crate::migration::Successor)). The frames of this interface are held still.
    ///
    /// # Errors
    /// [`PortGuardError::Io`].
    pub fn stand_aside(&self, interface: u32) -> Result<(), PortGuardError> {
        bind_to_interface(self.socket.as_fd(), interface)
            .map_err(|source| PortGuardError::Io { what: "stand aside", source })
    }

    /// What is reserved: the port that the kernel chose, if 0 was asked for.
    ///
    /// # Errors
    /// [`PortGuardError::Io`].
    pub fn local_address(&self) -> Result<SocketAddr, PortGuardError> {
        let what = "ask for a socket's address";
        let address =
            rustix::net::getsockname(&self.socket).map_err(|error| failed(what, error))?;
        SocketAddr::try_from(address).map_err(|error| failed(what, error))
    }
}

/// Makes a listening socket deaf to what comes over one interface: the kernel answers no handshake
/// from there, and no segment without a connection. What comes over others it serves as before. The
/// socket is a [`PortGuard`] for that interface then, and the program's own for the rest.
///
/// Needs CAP_NET_ADMIN on newer kernels. A filter that the socket has already is not replaced.
///
/// # Errors
/// `AlreadyExists` for a socket with a filter; what the kernel says.
pub fn deafen_on(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    if has_filter(socket) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the socket has a filter"));
    }
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let if_equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let end = (libc::BPF_RET | libc::BPF_K) as u16;
    let of_interface = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned();
    let instruction = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut program = [
        instruction(load, 0, of_interface),
        instruction(if_equal, 1, interface),
        instruction(end, 0, 0),
        instruction(end, 0, u32::MAX),
    ];
    attach_filter(socket, &mut program)
}

/// Ends that deafness.
///
/// # Errors
/// What the kernel says; `NotFound` if there was none.
pub fn undeafen(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)
}

/// A link-local address of IPv6 with its interface, without which the kernel binds to none.
pub(crate) fn scoped(address: SocketAddr, interface: u32) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, address.port(), 0, interface).into()
        }
        _ => address,
    }
}

/// What fails where the process has no descriptor left.
const OPEN_A_SOCKET: &str = "open the socket that holds a port of the stack in the kernel (each \
                             port takes a descriptor: see `ulimit -n`)";

/// An unbound socket with a filter that drops everything.
fn deaf_socket(
    transport: Transport,
    address: SocketAddr,
    is_dual: bool,
) -> Result<OwnedFd, PortGuardError> {
    let is_ipv6 = address.is_ipv6();
    let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let kind = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(family, kind, flags, None).map_err(|error| failed(OPEN_A_SOCKET, error))?;
    if is_ipv6 {
        set_ipv6_v6only(&socket, !is_dual).map_err(|error| failed("set IPV6_V6ONLY", error))?;
    }
    let mut drop_all =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    attach_filter(&socket, &mut drop_all).map_err(|source| match source.kind() {
        // Newer kernels require CAP_NET_ADMIN to filter a TCP socket.
        io::ErrorKind::PermissionDenied => {
            let capability = "CAP_NET_ADMIN";
            PortGuardError::NotAllowed { transport, address, capability }
        }
        _ => PortGuardError::Io { what: "attach a socket filter", source },
    })?;
    Ok(socket)
}

fn set_repair(socket: &OwnedFd) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, &on)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

fn failed(what: &'static str, error: Errno) -> PortGuardError {
    PortGuardError::Io { what, source: error.into() }
}

fn refusal(
    transport: Transport,
    address: SocketAddr,
    capability: &'static str,
    error: Errno,
) -> PortGuardError {
    match error {
        Errno::ADDRINUSE => PortGuardError::InUse { transport, address },
        Errno::ADDRNOTAVAIL => PortGuardError::NotLocal { address },
        Errno::ACCESS | Errno::PERM => {
            PortGuardError::NotAllowed { transport, address, capability }
        }
        other => failed("reserve a port", other),
    }
}

#[cfg(test)]
mod tests;
