//! Which local addresses are taken, where the stack is our own: the part of bind(2) that happens
//! before anybody listens or connects.
//!
//! Pure: addresses and options go in, a verdict comes out.
//!
//! Read first: socket(7) on SO_REUSEADDR and SO_REUSEPORT, ip(7) on port ranges, ipv6(7) on
//! IPV6_V6ONLY.
//!
//! Invariant: two entries on one port conflict unless no packet could be for both, or both may
//! share: by SO_REUSEADDR while the other does not listen, or by SO_REUSEPORT. A packet could be
//! for both if their addresses are the same or one is unspecified; all of IPv6 is all of IPv4 as
//! well, except for a socket that says IPV6_V6ONLY.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::error::Error;

/// Ports that are chosen from when none is asked for (RFC 6335 §6; Linux's are wider).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Which protocol's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// How a socket shares its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sharing {
    /// SO_REUSEADDR.
    pub(crate) address: bool,
    /// SO_REUSEPORT.
    pub(crate) port: bool,
    /// IPV6_V6ONLY: the same address of IPv4 is others'.
    pub(crate) v6_only: bool,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    key: u32,
    ip: IpAddr,
    sharing: Sharing,
    listens: bool,
}

/// The local addresses that sockets of one context have.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    taken: BTreeMap<(Transport, u16), Vec<Taken>>,
    next_key: u32,
    /// Where the search for a free port goes on.
    next_port: u16,
}

/// A place in [`Ports`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) address: SocketAddr,
    transport: Transport,
    key: u32,
}

impl Ports {
    /// Takes an address; port 0: a port that nobody has.
    ///
    /// # Errors
    /// [`Error::AddressInUse`].
    pub(crate) fn bind(
        &mut self,
        transport: Transport,
        mut address: SocketAddr,
        sharing: Sharing,
    ) -> Result<Bound, Error> {
        if address.port() == 0 {
            address.set_port(self.free_port(transport, (address.ip(), sharing.v6_only))?);
        }
        let place = (transport, address.port());
        let new = Taken { key: self.next_key, ip: address.ip(), sharing, listens: false };
        let others = self.taken.entry(place).or_default();
        if others.iter().any(|other| conflict(&new, other)) {
            return Err(Error::AddressInUse);
        }
        others.push(new);
        self.next_key = self.next_key.wrapping_add(1);
        Ok(Bound { address, transport, key: new.key })
    }

    fn free_port(&mut self, transport: Transport, place: (IpAddr, bool)) -> Result<u16, Error> {
        let (first, last) = (*EPHEMERAL.start(), *EPHEMERAL.end());
        let count = u32::from(last - first) + 1;
        for _ in 0..count {
            let port = first + self.next_port % (count as u16);
            self.next_port = (self.next_port + 1) % (count as u16);
            let others = self.taken.get(&(transport, port));
            let is_free = others.is_none_or(|others| {
                others.iter().all(|other| !same_address(place, (other.ip, other.sharing.v6_only)))
            });
            if is_free {
                return Ok(port);
            }
        }
        Err(Error::AddressInUse)
    }

    /// The socket is about to listen: nobody else may on the same address, except by SO_REUSEPORT.
    ///
    /// # Errors
    /// [`Error::AddressInUse`].
    pub(crate) fn listen(&mut self, bound: Bound) -> Result<(), Error> {
        let Some(all) = self.taken.get_mut(&(bound.transport, bound.address.port())) else {
            return Ok(());
        };
        let Some(own) = all.iter().position(|taken| taken.key == bound.key) else { return Ok(()) };
        let new = Taken { listens: true, ..all[own] };
        let others = all.iter().filter(|taken| taken.key != bound.key);
        if others.into_iter().any(|other| conflict(&new, other)) {
            return Err(Error::AddressInUse);
        }
        all[own] = new;
        Ok(())
    }

    /// The socket is gone.
    pub(crate) fn release(&mut self, bound: Bound) {
        let place = (bound.transport, bound.address.port());
        if let Some(all) = self.taken.get_mut(&place) {
            all.retain(|taken| taken.key != bound.key);
            if all.is_empty() {
                self.taken.remove(&place);
            }
        }
    }
}

fn conflict(new: &Taken, other: &Taken) -> bool {
    if !same_address((new.ip, new.sharing.v6_only), (other.ip, other.sharing.v6_only)) {
        return false;
    }
    let both = new.sharing.address && other.sharing.address;
    let by_address = both && !other.listens;
    let by_port = new.sharing.port && other.sharing.port;
    !(by_address || by_port)
}

/// A packet could be for both of two addresses; with each, whether it is IPv6 alone.
fn same_address((one, one_alone): (IpAddr, bool), (other, other_alone): (IpAddr, bool)) -> bool {
    match (one, other) {
        (IpAddr::V6(one), IpAddr::V4(_)) => one.is_unspecified() && !one_alone,
        (IpAddr::V4(_), IpAddr::V6(other)) => other.is_unspecified() && !other_alone,
        _ => one == other || one.is_unspecified() || other.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const NONE: Sharing = Sharing { address: false, port: false, v6_only: false };
    const ADDRESS: Sharing = Sharing { address: true, ..NONE };
    const PORT: Sharing = Sharing { port: true, ..NONE };
    const ALONE: Sharing = Sharing { v6_only: true, ..NONE };

    #[test]
    fn who_may_have_an_address_beside_whom() {
        let table = [
            ("10.0.0.1:80", NONE, "10.0.0.1:80", NONE, false),
            ("10.0.0.1:80", NONE, "10.0.0.1:81", NONE, true),
            ("10.0.0.1:80", NONE, "10.0.0.2:80", NONE, true),
            ("0.0.0.0:80", NONE, "10.0.0.2:80", NONE, false),
            ("10.0.0.1:80", ADDRESS, "0.0.0.0:80", ADDRESS, true),
            ("10.0.0.1:80", ADDRESS, "10.0.0.1:80", NONE, false),
            ("10.0.0.1:80", PORT, "10.0.0.1:80", PORT, true),
            ("10.0.0.1:80", PORT, "10.0.0.1:80", ADDRESS, false),
            ("0.0.0.0:80", NONE, "[::]:80", NONE, false),
            ("0.0.0.0:80", NONE, "[::]:80", ALONE, true),
            ("[::]:80", ALONE, "0.0.0.0:80", NONE, true),
            ("[::]:80", NONE, "10.0.0.1:80", NONE, false),
            ("[::]:80", PORT, "10.0.0.1:80", PORT, true),
            ("[::]:80", ALONE, "[::]:80", NONE, false),
            ("[fd00::1]:80", NONE, "0.0.0.0:80", NONE, true),
        ];
        for (one, sharing_one, other, sharing_other, allowed) in table {
            let mut ports = Ports::default();
            ports.bind(Transport::Tcp, at(one), sharing_one).unwrap();
            let second = ports.bind(Transport::Tcp, at(other), sharing_other);
            assert_eq!(second.is_ok(), allowed, "{one} {sharing_one:?}, {other} {sharing_other:?}");
            ports.bind(Transport::Udp, at(one), NONE).expect("the other protocol's ports");
        }
    }

    #[test]
    fn a_port_that_is_chosen_for_both_families_is_free_in_both() {
        let mut ports = Ports::default();
        let four = ports.bind(Transport::Udp, at("10.0.0.1:0"), NONE).unwrap().address.port();
        ports.next_port = 0;
        let both = ports.bind(Transport::Udp, at("[::]:0"), NONE).unwrap().address.port();
        assert_ne!(four, both);
        ports.next_port = 0;
        let six = ports.bind(Transport::Udp, at("[::]:0"), ALONE).unwrap().address.port();
        assert_eq!(four, six, "IPv4 has it, and nobody else");
    }

    #[test]
    fn of_those_that_share_by_reuseaddr_one_may_listen() {
        let mut ports = Ports::default();
        let one = ports.bind(Transport::Tcp, at("10.0.0.1:80"), ADDRESS).unwrap();
        let two = ports.bind(Transport::Tcp, at("10.0.0.1:80"), ADDRESS).unwrap();
        ports.listen(one).unwrap();
        assert_eq!(ports.listen(two), Err(Error::AddressInUse));
        let three = ports.bind(Transport::Tcp, at("10.0.0.1:80"), ADDRESS);
        assert_eq!(three, Err(Error::AddressInUse));
        ports.release(one);
        ports.listen(two).unwrap();
    }

    #[test]
    fn a_port_that_is_chosen_is_nobody_elses_until_none_is_left() {
        let mut ports = Ports::default();
        let count = EPHEMERAL.count();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..count {
            let bound = ports.bind(Transport::Tcp, at("10.0.0.1:0"), ADDRESS).unwrap();
            assert!(seen.insert(bound.address.port()));
        }
        let full = ports.bind(Transport::Tcp, at("10.0.0.1:0"), ADDRESS);
        assert_eq!(full, Err(Error::AddressInUse));
    }
}
