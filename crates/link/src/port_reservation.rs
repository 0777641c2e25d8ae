//! Ports that another process reserves for us: its kernel sockets, bound with its rights.
//!
//! Read first: `port_guard.rs`; decision 0047. A process without privileges cannot attach the
//! filter that a [`PortGuard`](crate::PortGuard) has. So it binds a socket ([`bind_port`]) and
//! passes it to the process that has the stack, which silences it ([`PortReservation::new`]). The
//! kernel's rules for the binding process thus decide about ports.
//!
//! Invariants
//! - A socket is silent before it can be reached: the filter is attached before it listens.
//! - Nothing of a passed socket is believed that the kernel does not say: its protocol, address,
//!   namespace and state.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getpeername, getsockname, listen, socket_with,
};

use crate::port_guard::{deafen_on, undeafen};
use crate::socket_option::{attach_filter, bound_interface, option};
use crate::{PortGuardError, Transport};

/// Missing in the libc crate: `SO_NETNS_COOKIE` (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Connections that a silent socket can have waiting. It never has one.
const BACKLOG: i32 = 1;

/// A network namespace, by the number that the kernel never gives to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkNamespace(u64);

impl NetworkNamespace {
    /// The calling thread's.
    ///
    /// # Errors
    /// `ENOPROTOOPT` before Linux 5.14; what the kernel says.
    pub fn current() -> io::Result<Self> {
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Self::of(socket.as_fd())
    }

    fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        option::<u64>(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).map(Self)
    }

    /// Checks that a socket is in the namespace.
    ///
    /// # Errors
    /// [`ReservationError::Namespace`], [`ReservationError::Io`].
    pub fn check(self, socket: BorrowedFd<'_>) -> Result<(), ReservationError> {
        let its = Self::of(socket)
            .map_err(|source| ReservationError::Io { what: "ask for SO_NETNS_COOKIE", source })?;
        if its == self { Ok(()) } else { Err(ReservationError::Namespace) }
    }
}

/// Why a passed socket does not reserve a port.
#[derive(Debug, thiserror::Error)]
pub enum ReservationError {
    /// A message without a socket.
    #[error("no socket was passed")]
    None,
    /// Another kind of descriptor.
    #[error("a passed descriptor is no {0:?} socket")]
    NotSocket(Transport),
    /// It is in another network namespace.
    #[error("the program is in another network namespace than the link")]
    Namespace,
    /// It is not in the state that `bind` leaves it in.
    #[error("a passed socket {0}")]
    State(&'static str),
    /// Another socket listens at the port.
    #[error("TCP {0} is in use by another program")]
    InUse(SocketAddr),
    /// A filter cannot be attached.
    #[error(
        "a passed socket cannot be silenced: {0} (the daemon needs CAP_NET_ADMIN; the socket must \
         not have SO_LOCK_FILTER)"
    )]
    Filter(io::Error),
    /// Anything else.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ReservationError {
    /// The kernel's number for what is wrong.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::None | Self::State(_) => libc::EINVAL,
            Self::NotSocket(_) => libc::ENOTSOCK,
            Self::Namespace => libc::EACCES,
            Self::InUse(_) => libc::EADDRINUSE,
            Self::Filter(source) | Self::Io { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> ReservationError {
    move |errno| ReservationError::Io { what, source: errno.into() }
}

/// Binds a socket that another process may take as the reservation of a port. `is_shared`: sockets
/// of the same user may have the port as well (SO_REUSEPORT). IPv6 sockets take IPv6 only. Blocks
/// for some system calls.
///
/// # Errors
/// See [`PortGuardError`]: the kernel refuses the port to this process.
pub fn bind_port(
    transport: Transport,
    address: SocketAddr,
    is_shared: bool,
) -> Result<OwnedFd, PortGuardError> {
    let failed = |what| move |errno: Errno| PortGuardError::Io { what, source: errno.into() };
    let (family, kind) = match (address, transport) {
        (SocketAddr::V4(_), Transport::Tcp) => (AddressFamily::INET, SocketType::STREAM),
        (SocketAddr::V6(_), Transport::Tcp) => (AddressFamily::INET6, SocketType::STREAM),
        (SocketAddr::V4(_), Transport::Udp) => (AddressFamily::INET, SocketType::DGRAM),
        (SocketAddr::V6(_), Transport::Udp) => (AddressFamily::INET6, SocketType::DGRAM),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None)
        .map_err(failed("open the socket that reserves a port in the kernel"))?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true).map_err(failed("set IPV6_V6ONLY"))?;
    }
    if transport == Transport::Tcp {
        // A connection of the kernel's in TIME-WAIT does not keep us from the port.
        set_socket_reuseaddr(&socket, true).map_err(failed("set SO_REUSEADDR"))?;
    }
    set_socket_reuseport(&socket, is_shared).map_err(failed("set SO_REUSEPORT"))?;
    bind(&socket, &address).map_err(|errno| match errno {
        Errno::ADDRINUSE => PortGuardError::InUse { transport, address },
        Errno::ADDRNOTAVAIL => PortGuardError::NotLocal { address },
        Errno::ACCESS | Errno::PERM => {
            let capability = "CAP_NET_BIND_SERVICE";
            PortGuardError::NotAllowed { transport, address, capability }
        }
        other => failed("bind")(other),
    })?;
    Ok(socket)
}

/// A socket that another process has bound.
struct ReservingSocket {
    address: SocketAddr,
    /// An IPv6 socket that stands for IPv4 as well.
    is_dual: bool,
    fd: OwnedFd,
}

impl ReservingSocket {
    /// Whether connections to an address reach it.
    fn covers(&self, address: SocketAddr) -> bool {
        let is_same = match self.address.ip() {
            ip if !ip.is_unspecified() => ip == address.ip(),
            ip => ip.is_ipv4() == address.is_ipv4() || self.is_dual,
        };
        is_same && self.address.port() == address.port()
    }
}

/// Kernel sockets that another process has bound to one port.
///
/// They are silent, or they are listening sockets of the other process, which become deaf to one
/// interface ([`PortReservation::deafen_on`]) until this is dropped.
pub struct PortReservation {
    transport: Transport,
    sockets: Vec<ReservingSocket>,
    /// They listen for the other process.
    are_listening: bool,
    /// They were made deaf to an interface.
    are_deaf: Mutex<bool>,
}

impl fmt::Debug for PortReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.sockets.iter().map(|socket| socket.address);
        f.debug_list().entries(addresses).finish()
    }
}

impl PortReservation {
    /// Checks sockets that were passed, silences them, and listens on those of TCP: from now on the
    /// kernel answers nothing at their port. All must be bound to one port of the namespace. Blocks
    /// for some system calls for each.
    ///
    /// # Errors
    /// [`ReservationError`]; all sockets are closed then.
    pub fn new(
        transport: Transport,
        sockets: Vec<OwnedFd>,
        namespace: NetworkNamespace,
    ) -> Result<Self, ReservationError> {
        let reservation = Self::checked((transport, false), sockets, namespace)?;
        for socket in &reservation.sockets {
            silence(transport, socket.address, socket.fd.as_fd())?;
        }
        Ok(reservation)
    }

    /// Checks listening sockets of TCP that were passed. Nothing of them changes. Blocks for some
    /// system calls for each.
    ///
    /// # Errors
    /// [`ReservationError`]; our descriptors are closed then.
    pub fn of_listening(
        sockets: Vec<OwnedFd>,
        namespace: NetworkNamespace,
    ) -> Result<Self, ReservationError> {
        Self::checked((Transport::Tcp, true), sockets, namespace)
    }

    fn checked(
        (transport, are_listening): (Transport, bool),
        sockets: Vec<OwnedFd>,
        namespace: NetworkNamespace,
    ) -> Result<Self, ReservationError> {
        let checked =
            sockets.into_iter().map(|socket| check((transport, are_listening), socket, namespace));
        let sockets: Vec<_> = checked.collect::<Result<_, ReservationError>>()?;
        let Some((first, others)) = sockets.split_first() else {
            return Err(ReservationError::None);
        };
        if others.iter().any(|other| other.address.port() != first.address.port()) {
            return Err(ReservationError::State("has another port than the first"));
        }
        Ok(Self { transport, sockets, are_listening, are_deaf: Mutex::new(false) })
    }

    /// Makes listening sockets deaf to an interface, once. `is_shared`: another reservation may
    /// have made the same sockets deaf. Silent ones need nothing.
    ///
    /// # Errors
    /// As [`deafen_on`].
    pub fn deafen_on(&self, interface: u32, is_shared: bool) -> io::Result<()> {
        let mut are_deaf = self.are_deaf.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.are_listening || *are_deaf {
            return Ok(());
        }
        for (done, socket) in self.sockets.iter().enumerate() {
            match deafen_on(socket.fd.as_fd(), interface) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_shared => {}
                Err(error) => {
                    for before in self.sockets[..done].iter().filter(|_| !is_shared) {
                        let _ = undeafen(before.fd.as_fd());
                    }
                    return Err(error);
                }
            }
        }
        *are_deaf = true;
        Ok(())
    }

    /// Whether the sockets listen for the other process.
    #[must_use]
    pub const fn are_listening(&self) -> bool {
        self.are_listening
    }

    /// Whether a listener at an address, perhaps all of a family, is at the sockets' port and
    /// addresses.
    #[must_use]
    pub fn stands_for(&self, address: SocketAddr) -> bool {
        match self.are_listening {
            true => self.covers(address),
            false => self.address() == address,
        }
    }

    /// The protocol.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// The address of the first socket, which the reservation is for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.sockets[0].address
    }

    /// Whether one of the sockets keeps the kernel silent at an address.
    #[must_use]
    pub fn covers(&self, address: SocketAddr) -> bool {
        self.sockets.iter().any(|socket| socket.covers(address))
    }
}

/// Listening sockets hear all interfaces again.
impl Drop for PortReservation {
    fn drop(&mut self) {
        if *self.are_deaf.get_mut().unwrap_or_else(PoisonError::into_inner) {
            for socket in &self.sockets {
                // A program that has detached the filter itself needs nothing.
                let _ = undeafen(socket.fd.as_fd());
            }
        }
    }
}

/// Attaches a filter that drops everything. A socket of TCP listens then.
fn silence(
    transport: Transport,
    address: SocketAddr,
    socket: BorrowedFd<'_>,
) -> Result<(), ReservationError> {
    let mut drop_all =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    attach_filter(socket, &mut drop_all).map_err(ReservationError::Filter)?;
    if transport == Transport::Tcp {
        // The kernel looks once more whether the port is another user's.
        listen(socket, BACKLOG).map_err(|errno| match errno {
            Errno::ADDRINUSE => ReservationError::InUse(address),
            other => failed("listen")(other),
        })?;
    }
    Ok(())
}

/// Checks one socket, which listens or is only bound.
fn check(
    (transport, is_listening): (Transport, bool),
    fd: OwnedFd,
    namespace: NetworkNamespace,
) -> Result<ReservingSocket, ReservationError> {
    let socket = fd.as_fd();
    let (kind, protocol) = match transport {
        Transport::Tcp => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
        Transport::Udp => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
    };
    let is = |name, values: &[libc::c_int]| {
        option::<libc::c_int>(socket, libc::SOL_SOCKET, name).is_ok_and(|it| values.contains(&it))
    };
    let is_socket = is(libc::SO_DOMAIN, &[libc::AF_INET, libc::AF_INET6])
        && is(libc::SO_TYPE, &[kind])
        && is(libc::SO_PROTOCOL, &[protocol]);
    if !is_socket {
        return Err(ReservationError::NotSocket(transport));
    }
    namespace.check(socket)?;
    let state = |is_so, what| if is_so { Err(ReservationError::State(what)) } else { Ok(()) };
    let listens = is(libc::SO_ACCEPTCONN, &[1]);
    state(listens && !is_listening, "listens already")?;
    state(!listens && is_listening, "does not listen")?;
    state(getpeername(socket).is_ok_and(|peer| peer.is_some()), "is connected")?;
    let interface = bound_interface(socket)
        .map_err(|source| ReservationError::Io { what: "ask for the interface", source })?;
    state(interface != 0, "is bound to an interface")?;
    let address = getsockname(socket).map_err(failed("ask for a socket's address"))?;
    let address = SocketAddr::try_from(address).map_err(failed("ask for a socket's address"))?;
    state(address.port() == 0, "is bound to no port")?;
    let is_dual = address.is_ipv6()
        && option::<libc::c_int>(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).ok() != Some(1);
    state(is_dual && !is_listening, "has both families (IPV6_V6ONLY is off)")?;
    let address = SocketAddr::new(address.ip(), address.port());
    Ok(ReservingSocket { address, is_dual, fd })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn here() -> NetworkNamespace {
        NetworkNamespace::current().expect("Linux 5.14")
    }

    fn bound() -> OwnedFd {
        bind_port(Transport::Tcp, ([127, 0, 0, 1], 0).into(), true).expect("a free port")
    }

    /// Why sockets are refused, in words.
    fn refusal(sockets: Vec<OwnedFd>, namespace: NetworkNamespace) -> String {
        match PortReservation::new(Transport::Tcp, sockets, namespace) {
            Ok(reservation) => panic!("{reservation:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn other_descriptors_are_refused_and_closed() {
        let listening: OwnedFd = TcpListener::bind("127.0.0.1:0").expect("a port").into();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connected = TcpStream::connect(listener.local_addr().expect("bound"));
        let connected: OwnedFd = connected.expect("it listens").into();
        let datagrams: OwnedFd = UdpSocket::bind("127.0.0.1:0").expect("a port").into();
        let file: OwnedFd = std::fs::File::open("/dev/null").expect("it is there").into();
        let unbound =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let dual = TcpListener::bind("[::]:0").map(OwnedFd::from);
        for (socket, what) in [
            (listening, "listens already"),
            (connected, "is connected"),
            (datagrams, "is no Tcp socket"),
            (file, "is no Tcp socket"),
            (unbound.expect("a socket"), "bound to no port"),
        ] {
            assert!(refusal(vec![socket], here()).contains(what), "{what}");
        }
        drop(dual);
        assert!(refusal(Vec::new(), here()).contains("no socket"));
        assert!(refusal(vec![bound(), bound()], here()).contains("another port"));
        let elsewhere = NetworkNamespace(here().0.wrapping_add(1));
        assert!(refusal(vec![bound()], elsewhere).contains("namespace"));
    }

    #[test]
    fn listening_sockets_are_deaf_to_an_interface_until_dropped() {
        let refused = PortReservation::of_listening(vec![bound()], here());
        assert!(refused.expect_err("only bound").to_string().contains("does not listen"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let passed = || vec![listener.try_clone().expect("a descriptor").into()];
        let of_listening = || PortReservation::of_listening(passed(), here()).expect("it listens");
        let (reservation, second) = (of_listening(), of_listening());
        assert!(reservation.are_listening() && reservation.stands_for(address));
        // The index of the loopback interface.
        if let Err(error) = reservation.deafen_on(1, false) {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            return println!("skipped: needs CAP_NET_ADMIN");
        }
        reservation.deafen_on(1, false).expect("once is enough");
        let foreign = second.deafen_on(1, false).expect_err("it has a filter");
        assert_eq!(foreign.kind(), io::ErrorKind::AlreadyExists);
        second.deafen_on(1, true).expect("of another reservation");
        let short = std::time::Duration::from_millis(50);
        let silent = TcpStream::connect_timeout(&address, short).expect_err("nothing answers");
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        drop((reservation, second));
        TcpStream::connect(address).expect("it listens");
    }

    #[test]
    fn reserved_port_is_silent_and_free_afterwards() {
        let reserved = PortReservation::new(Transport::Tcp, vec![bound()], here());
        let reservation = match reserved {
            Ok(reservation) => reservation,
            Err(ReservationError::Filter(error)) => {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
                return println!("skipped: needs CAP_NET_ADMIN");
            }
            Err(other) => panic!("{other}"),
        };
        let address = reservation.address();
        assert!(reservation.covers(address) && address.port() != 0);
        assert!(!reservation.covers(SocketAddr::new([127, 0, 0, 2].into(), address.port())));
        let short = std::time::Duration::from_millis(50);
        let silent = TcpStream::connect_timeout(&address, short).expect_err("nothing answers");
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        bind_port(Transport::Tcp, address, false).expect_err("it is reserved");
        bind_port(Transport::Tcp, address, true).expect("the same user shares it");
        drop(reservation);
        bind_port(Transport::Tcp, address, false).expect("it is free");
    }
}
