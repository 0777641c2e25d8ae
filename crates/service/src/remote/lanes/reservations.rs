//! Ports of a link that shares the host's address: the application reserves them in the kernel.
//!
//! Read first: `descriptors.rs`; decision 0047.
//!
//! The kernel thus applies its rules to this process. The daemon owns a port at all of its
//! addresses, so other sockets cover the addresses that the first one does not; where the kernel
//! refuses one of these, the daemon tries to reserve the port there itself.
//!
//! Invariant: this end keeps no copy of a socket that was passed. While no daemon runs, the kernel
//! answers at the port with a reset, as after the end of a program that listened there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use megapipe_link::{LinkError, PortGuardError, Transport, bind_port};
use megapipe_stack::{BindError, ConnectError, ListenError};

use super::LaneSet;
use crate::client_ports::is_client_port;
use crate::descriptors::PassPurpose;
use crate::error::{MoveRefusal, PortError};
use crate::limits::PASSED_SOCKETS_MAX;

impl LaneSet {
    /// Reserves a port, where the kernel decides about ports. Returns the cookie for calls,
    /// until [`LaneSet::forget_port`]; 0: no reservation is needed.
    ///
    /// # Errors
    /// The kernel's refusal, or the daemon's.
    pub(super) fn reserve_port<E: NotOfThisHost>(
        &mut self,
        transport: Transport,
        local: SocketAddr,
    ) -> Result<u64, PortError<E>> {
        let is_loopback = local.ip().is_loopback();
        if !self.caps().shares_host_address || is_loopback || is_client_port(local.port()) {
            return Ok(0);
        }
        let others = others_than(local, self.addresses_of_stack());
        let Some(control) = &mut self.control else { return Ok(0) };
        let purpose = match transport {
            Transport::Tcp => PassPurpose::TcpPort,
            Transport::Udp if control.passes_sockets() => PassPurpose::UdpPort,
            // An older daemon applies its policy.
            Transport::Udp => return Ok(0),
        };
        let mut sockets = vec![bind_port(transport, local, true).map_err(refused)?];
        let bind = |address| bind_port(transport, address, true).ok();
        sockets.extend(others.filter_map(bind).take(PASSED_SOCKETS_MAX - 1));
        let fds: Vec<_> = sockets.iter().map(OwnedFd::as_fd).collect();
        let what = "reserve a port";
        control
            .pass(purpose, &fds)
            .map_err(|source| PortError::Host(LinkError::Io { what, source }))
    }

    /// Passes sockets of the program that listen at one port. Returns the cookie for
    /// [`LaneSet::listen_passed`], until [`LaneSet::forget_port`].
    ///
    /// # Errors
    /// The daemon's refusal; the kernel goes on with the port.
    pub fn pass_listener(&mut self, sockets: &[BorrowedFd<'_>]) -> Result<u64, MoveRefusal> {
        let control = self.control.as_mut().filter(|control| control.passes_sockets());
        let control = control.ok_or_else(MoveRefusal::old_service)?;
        let passed = control.pass(PassPurpose::Listener, sockets);
        passed.map_err(|error| MoveRefusal::of_passed(&error))
    }

    /// No call needs a reservation any more.
    pub fn forget_port(&mut self, cookie: u64) {
        if cookie != 0
            && let Some(control) = &self.control
        {
            control.forget(cookie);
        }
    }
}

/// The addresses that a socket at `local` does not cover, of a stack with these addresses.
/// Link-local ones of IPv6 need an interface, which is the daemon's to know. At loopback addresses
/// the stack's ports and the kernel's are independent.
fn others_than(local: SocketAddr, all: &[IpAddr]) -> impl Iterator<Item = SocketAddr> + use<> {
    let other_any: IpAddr = match local.ip() {
        IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED.into(),
    };
    let is_any = local.ip().is_unspecified();
    let mut others: Vec<IpAddr> = match is_any {
        true if all.iter().any(|ip| ip.is_ipv4() == other_any.is_ipv4()) => vec![other_any],
        true => Vec::new(),
        false => all.iter().copied().filter(|ip| *ip != local.ip()).collect(),
    };
    others.retain(|ip| match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => false,
        ip => !ip.is_loopback(),
    });
    others.into_iter().map(move |ip| SocketAddr::new(ip, local.port()))
}

/// Errors of the stack that name an address which is not the host's.
pub(super) trait NotOfThisHost {
    /// That one.
    const NOT_LOCAL: Self;
}

impl NotOfThisHost for ListenError {
    const NOT_LOCAL: Self = Self::BadLocalAddress;
}

impl NotOfThisHost for ConnectError {
    const NOT_LOCAL: Self = Self::BadLocalAddress;
}

impl NotOfThisHost for BindError {
    const NOT_LOCAL: Self = Self::BadLocalAddress;
}

/// The kernel's refusal, which names the rule.
fn refused<E: NotOfThisHost>(error: PortGuardError) -> PortError<E> {
    let text = error.to_string();
    let (kind, text) = match error {
        PortGuardError::NotLocal { .. } => return PortError::Stack(E::NOT_LOCAL),
        PortGuardError::InUse { .. } => (io::ErrorKind::AddrInUse, text),
        PortGuardError::NotAllowed { .. } => {
            let rule = "for ports below net.ipv4.ip_unprivileged_port_start";
            (io::ErrorKind::PermissionDenied, format!("{text} {rule}"))
        }
        PortGuardError::Io { what, source } => {
            return PortError::Host(LinkError::Io { what, source });
        }
    };
    PortError::Host(LinkError::Io { what: "bind", source: io::Error::new(kind, text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(local: &str, all: &[&str]) -> Vec<String> {
        let all: Vec<IpAddr> = all.iter().map(|ip| ip.parse().expect("an address")).collect();
        let others = others_than(local.parse().expect("an address"), &all);
        others.map(|it| it.to_string()).collect()
    }

    #[test]
    fn all_addresses_of_the_stack_are_covered() {
        let all = ["10.0.0.1", "10.0.0.2", "fd00::1", "fe80::1", "127.0.0.1", "::1"];
        assert_eq!(others("0.0.0.0:80", &all), ["[::]:80"]);
        assert_eq!(others("[::]:80", &all), ["0.0.0.0:80"]);
        assert_eq!(others("10.0.0.2:80", &all), ["10.0.0.1:80", "[fd00::1]:80"]);
        assert_eq!(others("0.0.0.0:80", &["10.0.0.1"]), [""; 0]);
        assert_eq!(others("10.0.0.1:80", &["10.0.0.1"]), [""; 0]);
    }

    #[test]
    fn refusal_names_the_rule() {
        let refusal = PortGuardError::NotAllowed {
            transport: Transport::Tcp,
            address: ([10, 0, 0, 1], 80).into(),
            capability: "CAP_NET_BIND_SERVICE",
        };
        let error = refused::<ListenError>(refusal);
        let text = error.to_string();
        for part in ["10.0.0.1:80", "CAP_NET_BIND_SERVICE", "ip_unprivileged_port_start"] {
            assert!(text.contains(part), "{text}");
        }
        let PortError::Host(LinkError::Io { source, .. }) = error else { panic!("{text}") };
        assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
    }
}
