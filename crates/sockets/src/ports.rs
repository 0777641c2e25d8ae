//! Which local addresses are taken, where the stack is our own: the part of bind(2) that happens
//! before anybody listens or connects.
//!
//! Addresses and options go in, a verdict comes out. Connections of TCP have their local addresses
//! also when no socket stands for them any more, and in TIME-WAIT: the stack is asked for them
//! ([`Beneath`]).
//!
//! Read first: socket(7) on SO_REUSEADDR and SO_REUSEPORT, ip(7) on port ranges, ipv6(7) on
//! IPV6_V6ONLY.
//!
//! Invariant: two entries on one port conflict unless no packet could be for both, or both may
//! share: by SO_REUSEADDR while the other does not listen, or by SO_REUSEPORT. A packet could be
//! for both if their addresses are the same or one is unspecified; all of IPv6 is all of IPv4 as
//! well, except for a socket that says IPV6_V6ONLY. And as in Linux, a connection over IPv6 whose
//! socket does not say that is in the way of who binds to all of IPv4, and of all that are in the
//! way of a socket for datagrams the newest decides (`udp_lib_lport_inuse`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use megapipe::{Channel, Holder, Reuse};

use crate::error::Error;
use crate::family;

/// Ports that are chosen from when none is asked for (RFC 6335 §6; Linux's are wider).
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

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

impl Sharing {
    /// What connections say of it.
    pub(crate) const fn reuse(self) -> Reuse {
        Reuse { address: self.address, port: self.port, v6_only: self.v6_only }
    }
}

/// What the stack has at local ports.
pub(crate) trait Beneath {
    /// The connections there; of several that are alike, one.
    fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder>;
    /// The first port without one, from `from` on and then from the beginning.
    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16>;
}

impl Beneath for Channel {
    fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        Self::holders(self, ports)
    }

    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        Self::port_without_connections(self, ports, from)
    }
}

/// Datagrams have no connections.
pub(crate) struct NoConnections;

impl Beneath for NoConnections {
    fn holders(&mut self, _: RangeInclusive<u16>) -> BTreeSet<Holder> {
        BTreeSet::new()
    }

    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        Some(from.clamp(*ports.start(), *ports.end()))
    }
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
        mut sharing: Sharing,
        beneath: &mut impl Beneath,
    ) -> Result<Bound, Error> {
        sharing.v6_only |= family::is_one_of_v6(address);
        let mut holders = BTreeSet::new();
        match address.port() {
            0 => {
                let place = (address.ip(), sharing.v6_only);
                address.set_port(self.free_port(transport, place, beneath)?);
            }
            port => holders = beneath.holders(port..=port),
        }
        let place = (transport, address.port());
        let new = Taken { key: self.next_key, ip: address.ip(), sharing, listens: false };
        let others = self.taken.entry(place).or_default();
        let is_refused = match transport {
            Transport::Tcp => others.iter().any(|other| conflict(&new, other)),
            Transport::Udp => others.iter().rev().find_map(|it| verdict(&new, it)).unwrap_or(false),
        };
        if is_refused || holders.iter().any(|holder| conflict(&new, &Taken::by(holder))) {
            return Err(Error::AddressInUse);
        }
        others.push(new);
        self.next_key = self.next_key.wrapping_add(1);
        Ok(Bound { address, transport, key: new.key })
    }

    /// A port that nobody has at that place, whatever they share.
    fn free_port(
        &mut self,
        transport: Transport,
        place: (IpAddr, bool),
        beneath: &mut impl Beneath,
    ) -> Result<u16, Error> {
        let (first, last) = (*EPHEMERAL.start(), *EPHEMERAL.end());
        let count = last - first + 1;
        for _ in 0..count {
            let from = first + self.next_port % count;
            let Some(port) = beneath.port_without_connections(EPHEMERAL, from) else {
                return self.free_port_among_connections(transport, place, beneath);
            };
            self.next_port = (port - first + 1) % count;
            if !self.is_taken(transport, port, place) {
                return Ok(port);
            }
        }
        Err(Error::AddressInUse)
    }

    /// The same where every port has connections: of some the addresses may be others.
    #[cold]
    fn free_port_among_connections(
        &mut self,
        transport: Transport,
        place: (IpAddr, bool),
        beneath: &mut impl Beneath,
    ) -> Result<u16, Error> {
        let holders = beneath.holders(EPHEMERAL);
        let is_in_the_way =
            |holder: &&Holder| same_address(place, (holder.ip, holder.reuse.v6_only));
        let held: BTreeSet<u16> = holders.iter().filter(is_in_the_way).map(|it| it.port).collect();
        let is_free = |port: &u16| !held.contains(port) && !self.is_taken(transport, *port, place);
        EPHEMERAL.into_iter().find(is_free).ok_or(Error::AddressInUse)
    }

    fn is_taken(&self, transport: Transport, port: u16, place: (IpAddr, bool)) -> bool {
        let is_there = |other: &Taken| same_address(place, (other.ip, other.sharing.v6_only));
        self.taken.get(&(transport, port)).is_some_and(|others| others.iter().any(is_there))
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

    /// A socket that is bound says something else of sharing. As in Linux it is asked again each
    /// time that another socket for datagrams binds; of a stream what it has said once counts.
    pub(crate) fn share(&mut self, bound: Bound, sharing: Sharing) {
        let Some(taken) = self.taken_mut(bound) else { return };
        let is_kept = bound.transport == Transport::Tcp;
        taken.sharing.address = sharing.address || (is_kept && taken.sharing.address);
        taken.sharing.port = sharing.port || (is_kept && taken.sharing.port);
    }

    /// A socket at all addresses is at one of them, or at all again.
    pub(crate) fn move_to(&mut self, bound: Bound, ip: IpAddr) {
        if let Some(taken) = self.taken_mut(bound) {
            taken.ip = ip;
        }
    }

    fn taken_mut(&mut self, bound: Bound) -> Option<&mut Taken> {
        let all = self.taken.get_mut(&(bound.transport, bound.address.port()))?;
        all.iter_mut().find(|taken| taken.key == bound.key)
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

impl Taken {
    /// As a connection does it.
    const fn by(holder: &Holder) -> Self {
        let Reuse { address, port, v6_only } = holder.reuse;
        let sharing = Sharing { address, port, v6_only };
        Self { key: u32::MAX, ip: holder.ip, sharing, listens: false }
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

/// Whether a socket for datagrams may not bind because of another; `None`: others decide.
fn verdict(new: &Taken, other: &Taken) -> Option<bool> {
    let both_by_address = new.sharing.address && other.sharing.address;
    let places = ((new.ip, new.sharing.v6_only), (other.ip, other.sharing.v6_only));
    if both_by_address || !same_address(places.0, places.1) {
        return None;
    }
    Some(!(new.sharing.port && other.sharing.port))
}

/// A packet could be for both of two addresses, the first of whom binds; with each, whether it is
/// IPv6 alone.
fn same_address((one, one_alone): (IpAddr, bool), (other, other_alone): (IpAddr, bool)) -> bool {
    match (one, other) {
        (IpAddr::V6(one), IpAddr::V4(_)) => one.is_unspecified() && !one_alone,
        (IpAddr::V4(one), IpAddr::V6(other)) => {
            (other.is_unspecified() || one.is_unspecified()) && !other_alone
        }
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
            ports.bind(Transport::Tcp, at(one), sharing_one, &mut NoConnections).unwrap();
            let second = ports.bind(Transport::Tcp, at(other), sharing_other, &mut NoConnections);
            assert_eq!(second.is_ok(), allowed, "{one} {sharing_one:?}, {other} {sharing_other:?}");
            ports
                .bind(Transport::Udp, at(one), NONE, &mut NoConnections)
                .expect("the other protocol's ports");
        }
    }

    #[test]
    fn a_port_that_is_chosen_for_both_families_is_free_in_both() {
        let mut ports = Ports::default();
        let four = ports
            .bind(Transport::Udp, at("10.0.0.1:0"), NONE, &mut NoConnections)
            .unwrap()
            .address
            .port();
        ports.next_port = 0;
        let both = ports
            .bind(Transport::Udp, at("[::]:0"), NONE, &mut NoConnections)
            .unwrap()
            .address
            .port();
        assert_ne!(four, both);
        ports.next_port = 0;
        let six = ports
            .bind(Transport::Udp, at("[::]:0"), ALONE, &mut NoConnections)
            .unwrap()
            .address
            .port();
        assert_eq!(four, six, "IPv4 has it, and nobody else");
    }

    #[test]
    fn of_those_that_share_by_reuseaddr_one_may_listen() {
        let mut ports = Ports::default();
        let one =
            ports.bind(Transport::Tcp, at("10.0.0.1:80"), ADDRESS, &mut NoConnections).unwrap();
        let two =
            ports.bind(Transport::Tcp, at("10.0.0.1:80"), ADDRESS, &mut NoConnections).unwrap();
        ports.listen(one).unwrap();
        assert_eq!(ports.listen(two), Err(Error::AddressInUse));
        let three = ports.bind(Transport::Tcp, at("10.0.0.1:80"), ADDRESS, &mut NoConnections);
        assert_eq!(three, Err(Error::AddressInUse));
        ports.release(one);
        ports.listen(two).unwrap();
    }

    /// A stack with these connections.
    struct Connections(Vec<Holder>);

    impl Beneath for Connections {
        fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
            self.0.iter().filter(|holder| ports.contains(&holder.port)).copied().collect()
        }

        fn port_without_connections(
            &mut self,
            ports: RangeInclusive<u16>,
            from: u16,
        ) -> Option<u16> {
            let held: BTreeSet<u16> = self.0.iter().map(|holder| holder.port).collect();
            (from..=*ports.end()).chain(ports).find(|port| !held.contains(port))
        }
    }

    fn holder(at: &str, reuse: Reuse) -> Holder {
        let at: SocketAddr = at.parse().unwrap();
        Holder { port: at.port(), ip: at.ip(), reuse }
    }

    #[test]
    fn connections_are_in_the_way_as_sockets_are() {
        let no = Reuse::default();
        for (connection, says, address, sharing, allowed) in [
            ("10.0.0.1:80", no, "10.0.0.1:80", ADDRESS, false),
            ("10.0.0.1:80", ADDRESS.reuse(), "10.0.0.1:80", ADDRESS, true),
            ("10.0.0.1:80", ADDRESS.reuse(), "10.0.0.1:80", PORT, false),
            ("10.0.0.1:80", PORT.reuse(), "0.0.0.0:80", PORT, true),
            ("10.0.0.1:80", no, "10.0.0.2:80", NONE, true),
            ("10.0.0.1:80", no, "10.0.0.1:81", NONE, true),
            ("[fd00::1]:80", no, "0.0.0.0:80", NONE, false),
            ("[fd00::1]:80", ALONE.reuse(), "0.0.0.0:80", NONE, true),
            ("[fd00::1]:80", no, "10.0.0.1:80", NONE, true),
        ] {
            let mut beneath = Connections(vec![holder(connection, says)]);
            let mut ports = Ports::default();
            let bound = ports.bind(Transport::Tcp, at(address), sharing, &mut beneath);
            assert_eq!(bound.is_ok(), allowed, "{connection} {says:?}, {address} {sharing:?}");
        }
    }

    #[test]
    fn a_port_is_chosen_that_no_connection_has_or_else_only_at_other_addresses() {
        let (first, last) = (*EPHEMERAL.start(), *EPHEMERAL.end());
        let no = Reuse::default();
        let mut beneath = Connections(vec![
            holder(&format!("10.0.0.1:{first}"), no),
            holder(&format!("10.0.0.1:{}", first + 2), no),
        ]);
        let mut ports = Ports::default();
        let mut choose = |ports: &mut Ports, address: &str| {
            let bound = ports.bind(Transport::Tcp, at(address), ADDRESS, &mut beneath);
            bound.map(|bound| bound.address.port())
        };
        assert_eq!(choose(&mut ports, "10.0.0.1:0"), Ok(first + 1));
        assert_eq!(choose(&mut ports, "10.0.0.2:0"), Ok(first + 3));
        beneath.0 = (first..=last).map(|port| holder(&format!("10.0.0.1:{port}"), no)).collect();
        let mut choose = |ports: &mut Ports, address: &str| {
            let bound = ports.bind(Transport::Tcp, at(address), ADDRESS, &mut beneath);
            bound.map(|bound| bound.address.port())
        };
        assert_eq!(choose(&mut ports, "10.0.0.1:0"), Err(Error::AddressInUse));
        assert_eq!(choose(&mut ports, "0.0.0.0:0"), Err(Error::AddressInUse));
        assert_eq!(choose(&mut ports, "10.0.0.2:0"), Ok(first));
        assert_eq!(choose(&mut ports, "10.0.0.2:0"), Ok(first + 1));
        assert_eq!(choose(&mut ports, "[fd00::1]:0"), Ok(first));
    }

    #[test]
    fn a_port_that_is_chosen_is_nobody_elses_until_none_is_left() {
        let mut ports = Ports::default();
        let count = EPHEMERAL.count();
        let mut seen = BTreeSet::new();
        for _ in 0..count {
            let bound =
                ports.bind(Transport::Tcp, at("10.0.0.1:0"), ADDRESS, &mut NoConnections).unwrap();
            assert!(seen.insert(bound.address.port()));
        }
        let full = ports.bind(Transport::Tcp, at("10.0.0.1:0"), ADDRESS, &mut NoConnections);
        assert_eq!(full, Err(Error::AddressInUse));
    }
}
