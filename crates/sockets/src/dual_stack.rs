//! Dual-stack sockets: IPv4 in IPv6 sockets, by IPv4-mapped addresses.
//!
//! Read first: ipv6(7) on IPV6_V6ONLY, RFC 3493 §3.7 and §5.3, RFC 4291 §2.5.5.2.
//!
//! Pure. The stack has two families and nothing in between. A program with an IPv6 socket names
//! IPv4 by `::ffff:10.0.0.1`; the stack has the plain address. On the kernel all of this is the
//! kernel's.
//!
//! Invariant: `program_address` undoes `plain_address` for an IPv6 socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::Error;

/// The address as a program sees it: of an IPv6 socket, IPv4 as an IPv4-mapped address.
pub(crate) const fn program_address(is_v6: bool, address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(inner) if is_v6 => {
            SocketAddr::new(IpAddr::V6(inner.ip().to_ipv6_mapped()), inner.port())
        }
        other => other,
    }
}

/// The address as our own stack has it: an IPv4-mapped one is IPv4.
pub(crate) const fn plain_address(address: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(inner) = address
        && let Some(mapped) = inner.ip().to_ipv4_mapped()
    {
        return SocketAddr::new(IpAddr::V4(mapped), inner.port());
    }
    address
}

/// All addresses of a socket's family; of an IPv6 socket they may be IPv4's, too.
pub(crate) const fn any(is_v6: bool) -> IpAddr {
    if is_v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) }
}

/// The address of a socket that is not bound, as getsockname(2) returns it.
pub(crate) const fn unbound(is_v6: bool) -> SocketAddr {
    SocketAddr::new(any(is_v6), 0)
}

/// An address of the other family, as Linux answers it.
pub(crate) const fn check(is_v6: bool, address: SocketAddr) -> Result<(), Error> {
    match (is_v6, address) {
        (false, SocketAddr::V4(_)) | (true, SocketAddr::V6(_)) => Ok(()),
        (false, SocketAddr::V6(_)) => Err(Error::FamilyNotSupported),
        // An IPv4 address is too short for an IPv6 socket.
        (true, SocketAddr::V4(_)) => Err(Error::InvalidArgument),
    }
}

/// Where bind(2) is to bind.
pub(crate) fn to_bind(
    is_v6: bool,
    v6_only: bool,
    address: SocketAddr,
) -> Result<SocketAddr, Error> {
    check(is_v6, address)?;
    let plain = plain_address(address);
    if is_v6 && v6_only && plain.is_ipv4() {
        return Err(Error::InvalidArgument);
    }
    Ok(plain)
}

/// Where a stream socket that is bound to `bound` is to connect to.
pub(crate) fn to_connect(
    is_v6: bool,
    v6_only: bool,
    bound: Option<SocketAddr>,
    to: SocketAddr,
) -> Result<SocketAddr, Error> {
    check(is_v6, to)?;
    reaches(is_v6, v6_only, bound, plain_address(to))
}

/// Where a datagram socket that is bound to `bound` is to send to. Unlike the others it takes an
/// IPv4 address as it is, also if it is an IPv6 socket.
pub(crate) fn to_send(
    is_v6: bool,
    v6_only: bool,
    bound: Option<SocketAddr>,
    to: SocketAddr,
) -> Result<SocketAddr, Error> {
    if !is_v6 {
        check(is_v6, to)?;
    }
    reaches(is_v6, v6_only, bound, plain_address(to))
}

fn reaches(
    is_v6: bool,
    v6_only: bool,
    bound: Option<SocketAddr>,
    to: SocketAddr,
) -> Result<SocketAddr, Error> {
    match to {
        SocketAddr::V4(_) if is_v6 && v6_only => Err(Error::NetworkUnreachable),
        // It has an IPv4 address, and so no way to IPv6.
        SocketAddr::V6(_) if is_v6 && bound.is_some_and(|bound| bound.is_ipv4()) => {
            Err(Error::FamilyNotSupported)
        }
        to => Ok(to),
    }
}

/// Where a socket that is bound to `bound` is bound in the family of `to`.
pub(crate) const fn bound_towards(bound: SocketAddr, to: SocketAddr) -> SocketAddr {
    match (bound, to) {
        (SocketAddr::V6(bound), SocketAddr::V4(_)) => {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), bound.port())
        }
        (bound, _) => bound,
    }
}

/// A socket at one address of IPv6 has no IPv4 in it, and says IPV6_V6ONLY from then on.
pub(crate) fn is_one_of_v6(bound: SocketAddr) -> bool {
    bound.is_ipv6() && !bound.ip().is_unspecified()
}

/// Whether a socket bound there hears IPv4 beside IPv6; then where.
pub(crate) fn beside(v6_only: bool, bound: SocketAddr) -> Option<SocketAddr> {
    let is_dual = bound.is_ipv6() && bound.ip().is_unspecified() && !v6_only;
    is_dual.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), bound.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ipv6_socket_sees_ipv4_as_mapped_address() {
        for (plain, mapped) in [
            ("10.0.0.1:80", "[::ffff:10.0.0.1]:80"),
            ("0.0.0.0:80", "[::ffff:0.0.0.0]:80"),
            ("[fd00::1]:80", "[fd00::1]:80"),
        ] {
            assert_eq!(program_address(true, at(plain)), at(mapped));
            assert_eq!(plain_address(at(mapped)), at(plain));
            assert_eq!(program_address(false, at(plain)), at(plain));
        }
        // IPv4-compatible addresses are history (RFC 4291 §2.5.5.1), and not IPv4.
        assert_eq!(plain_address(at("[::10.0.0.1]:80")), at("[::10.0.0.1]:80"));
    }

    #[test]
    fn addresses_to_bind_and_reach_match_linux() {
        let (four, mapped, six) =
            (at("10.0.0.1:80"), at("[::ffff:10.0.0.1]:80"), at("[fd00::1]:80"));
        assert_eq!(to_bind(false, false, four), Ok(four));
        assert_eq!(to_bind(false, false, six), Err(Error::FamilyNotSupported));
        assert_eq!(to_bind(true, false, four), Err(Error::InvalidArgument));
        assert_eq!(to_bind(true, false, mapped), Ok(four));
        assert_eq!(to_bind(true, true, mapped), Err(Error::InvalidArgument));
        assert_eq!(to_connect(true, false, None, mapped), Ok(four));
        assert_eq!(to_connect(true, true, None, mapped), Err(Error::NetworkUnreachable));
        assert_eq!(to_connect(true, false, Some(four), six), Err(Error::FamilyNotSupported));
        assert_eq!(to_connect(true, false, None, four), Err(Error::InvalidArgument));
        assert_eq!(to_send(true, false, None, four), Ok(four));
        assert_eq!(to_send(true, true, None, four), Err(Error::NetworkUnreachable));
        assert_eq!(to_send(false, false, None, six), Err(Error::FamilyNotSupported));
    }

    #[test]
    fn unspecified_ipv6_covers_unspecified_ipv4() {
        let (any, four, six) = (at("[::]:7"), at("10.0.0.1:80"), at("[fd00::1]:80"));
        assert_eq!(beside(false, any), Some(at("0.0.0.0:7")));
        assert_eq!(beside(true, any), None);
        assert_eq!(beside(false, six), None);
        assert_eq!(bound_towards(any, four), at("0.0.0.0:7"));
        assert_eq!(bound_towards(any, six), any);
    }
}
