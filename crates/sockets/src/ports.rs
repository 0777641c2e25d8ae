//! Local ports and addresses on our own stack: which of them a socket may bind.
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

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use megapipe::{Holder, Reuse};

use crate::dual_stack;
use crate::error::Error;

/// Ports that are chosen from when none is asked for (RFC 6335 §6; Linux's are wider).
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// Which protocol's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PortSpace {
    Tcp,
    Udp,
}

/// How a socket shares its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AddressSharing {
    /// SO_REUSEADDR.
    pub(crate) address: bool,
    /// SO_REUSEPORT.
    pub(crate) port: bool,
    /// IPV6_V6ONLY: the same address of IPv4 is others'.
    pub(crate) v6_only: bool,
}

impl AddressSharing {
    /// The same, as connections carry it.
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

/// Datagrams have no connections; others are not to be asked for.
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
struct PortEntry {
    key: u32,
    ip: IpAddr,
    sharing: AddressSharing,
    listens: bool,
}

/// The local addresses that sockets of one context have.
#[derive(Debug, Default)]
pub(crate) struct LocalPorts {
    /// This host's addresses on our own stack; none: the kernel's, or not known here.
    addresses: Vec<IpAddr>,
    taken: HashMap<(PortSpace, u16), Vec<PortEntry>>,
    next_key: u32,
    /// Where the search for a free port goes on.
    next_port: u16,
}

/// A place in [`LocalPorts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoundPort {
    pub(crate) address: SocketAddr,
    pub(crate) hold: PortHold,
    transport: PortSpace,
    key: u32,
}

/// Why a socket has its port (`inet_bind`: SOCK_BINDPORT_LOCK).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortHold {
    /// The program asked for it: the socket keeps it.
    Asked,
    /// It was chosen for the socket.
    Chosen,
    /// It was chosen, and the connection that had it is over (`inet_put_port`): the socket may
    /// bind again, and gets another port when it needs one. getsockname(2) still reports it.
    GivenUp,
}

impl BoundPort {
    /// The connection that had the port is over.
    pub(crate) fn give_up_if_chosen(&mut self) {
        if self.hold == PortHold::Chosen {
            self.hold = PortHold::GivenUp;
        }
    }
}

impl LocalPorts {
    /// Of a host with these addresses; none: they are the kernel's, or not known here.
    pub(crate) fn of(addresses: Vec<IpAddr>) -> Self {
        Self { addresses, ..Self::default() }
    }

    /// Where the search for a free port begins: other programs of the host search, too.
    pub(crate) fn searching_from(self, next_port: u16) -> Self {
        Self { next_port: next_port % EPHEMERAL.len() as u16, ..self }
    }

    /// Checks that an address is one of this host's, or unspecified.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`].
    pub(crate) fn check_local(&self, ip: IpAddr) -> Result<(), Error> {
        // 127.0.0.1 stands for its network.
        let known = match ip {
            IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            ip => ip,
        };
        if ip.is_unspecified() || self.addresses.is_empty() || self.addresses.contains(&known) {
            return Ok(());
        }
        Err(Error::AddressNotAvailable)
    }

    /// Takes an address; port 0: a free port.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::NoMemory`].
    pub(crate) fn bind(
        &mut self,
        transport: PortSpace,
        mut address: SocketAddr,
        mut sharing: AddressSharing,
        beneath: &mut impl Beneath,
    ) -> Result<BoundPort, Error> {
        sharing.v6_only |= dual_stack::is_one_of_v6(address);
        let mut holders = BTreeSet::new();
        let hold = if address.port() == 0 { PortHold::Chosen } else { PortHold::Asked };
        match address.port() {
            0 => {
                let scope = AddressScope { ip: address.ip(), v6_only: sharing.v6_only };
                address.set_port(self.free_port(transport, scope, beneath)?);
            }
            port => holders = beneath.holders(port..=port),
        }
        let place = (transport, address.port());
        let new = PortEntry { key: self.next_key, ip: address.ip(), sharing, listens: false };
        let others = self.taken.get(&place).map_or(&[][..], Vec::as_slice);
        let is_refused = match transport {
            PortSpace::Tcp => others.iter().any(|other| conflict(&new, other)),
            PortSpace::Udp => others.iter().rev().find_map(|it| verdict(&new, it)).unwrap_or(false),
        };
        if is_refused || holders.iter().any(|holder| conflict(&new, &PortEntry::by(holder))) {
            return Err(Error::AddressInUse);
        }
        self.taken.try_reserve(1).map_err(|_| Error::NoMemory)?;
        let mut added = Vec::new();
        let others = self.taken.get_mut(&place);
        others.unwrap_or(&mut added).try_reserve(1).map_err(|_| Error::NoMemory)?;
        self.taken.entry(place).or_insert(added).push(new);
        self.next_key = self.next_key.wrapping_add(1);
        Ok(BoundPort { address, hold, transport, key: new.key })
    }

    /// A port that is free at that place, whatever its holders share.
    fn free_port(
        &mut self,
        transport: PortSpace,
        scope: AddressScope,
        beneath: &mut impl Beneath,
    ) -> Result<u16, Error> {
        let (first, last) = (*EPHEMERAL.start(), *EPHEMERAL.end());
        let count = last - first + 1;
        for _ in 0..count {
            let from = first + self.next_port % count;
            let Some(port) = beneath.port_without_connections(EPHEMERAL, from) else {
                return self.free_port_among_connections(transport, scope, beneath);
            };
            self.next_port = (port - first + 1) % count;
            if !self.is_taken(transport, port, scope) {
                return Ok(port);
            }
        }
        Err(Error::AddressInUse)
    }

    /// The same where every port has connections: of some the addresses may be others.
    #[cold]
    fn free_port_among_connections(
        &mut self,
        transport: PortSpace,
        scope: AddressScope,
        beneath: &mut impl Beneath,
    ) -> Result<u16, Error> {
        let holders = beneath.holders(EPHEMERAL);
        let is_in_the_way = |holder: &&Holder| same_address(scope, PortEntry::by(holder).scope());
        let held: BTreeSet<u16> = holders.iter().filter(is_in_the_way).map(|it| it.port).collect();
        let is_free = |port: &u16| !held.contains(port) && !self.is_taken(transport, *port, scope);
        EPHEMERAL.into_iter().find(is_free).ok_or(Error::AddressInUse)
    }

    fn is_taken(&self, transport: PortSpace, port: u16, scope: AddressScope) -> bool {
        let is_there = |other: &PortEntry| same_address(scope, other.scope());
        self.taken.get(&(transport, port)).is_some_and(|others| others.iter().any(is_there))
    }

    /// The socket is about to listen: no other may on the same address, except by SO_REUSEPORT.
    ///
    /// # Errors
    /// [`Error::AddressInUse`].
    pub(crate) fn listen(&mut self, bound: BoundPort) -> Result<(), Error> {
        let Some(all) = self.taken.get_mut(&(bound.transport, bound.address.port())) else {
            return Ok(());
        };
        let Some(own) = all.iter().position(|taken| taken.key == bound.key) else { return Ok(()) };
        let new = PortEntry { listens: true, ..all[own] };
        let others = all.iter().filter(|taken| taken.key != bound.key);
        if others.into_iter().any(|other| conflict(&new, other)) {
            return Err(Error::AddressInUse);
        }
        all[own] = new;
        Ok(())
    }

    /// The socket does not listen any more, and stays bound.
    pub(crate) fn stop_listening(&mut self, bound: BoundPort) {
        if let Some(taken) = self.taken_mut(bound) {
            taken.listens = false;
        }
    }

    /// Changes how a bound socket shares its address. As in Linux, the current value counts each
    /// time that another datagram socket binds; a stream keeps what it was set to once.
    pub(crate) fn share(&mut self, bound: BoundPort, sharing: AddressSharing) {
        let Some(taken) = self.taken_mut(bound) else { return };
        let is_kept = bound.transport == PortSpace::Tcp;
        taken.sharing.address = sharing.address || (is_kept && taken.sharing.address);
        taken.sharing.port = sharing.port || (is_kept && taken.sharing.port);
    }

    /// A socket at all addresses is at one of them, or at all again.
    pub(crate) fn move_to(&mut self, bound: BoundPort, ip: IpAddr) {
        if let Some(taken) = self.taken_mut(bound) {
            taken.ip = ip;
        }
    }

    fn taken_mut(&mut self, bound: BoundPort) -> Option<&mut PortEntry> {
        let all = self.taken.get_mut(&(bound.transport, bound.address.port()))?;
        all.iter_mut().find(|taken| taken.key == bound.key)
    }

    /// The socket is gone.
    pub(crate) fn release(&mut self, bound: BoundPort) {
        let place = (bound.transport, bound.address.port());
        if let Some(all) = self.taken.get_mut(&place) {
            all.retain(|taken| taken.key != bound.key);
            if all.is_empty() {
                self.taken.remove(&place);
            }
        }
    }
}

/// The packets that an address stands for.
#[derive(Debug, Clone, Copy)]
struct AddressScope {
    ip: IpAddr,
    /// Of IPv6, without IPv4.
    v6_only: bool,
}

impl PortEntry {
    const fn scope(&self) -> AddressScope {
        AddressScope { ip: self.ip, v6_only: self.sharing.v6_only }
    }

    /// As a connection does it.
    const fn by(holder: &Holder) -> Self {
        let Reuse { address, port, v6_only } = holder.reuse;
        let sharing = AddressSharing { address, port, v6_only };
        Self { key: u32::MAX, ip: holder.ip, sharing, listens: false }
    }
}

fn conflict(new: &PortEntry, other: &PortEntry) -> bool {
    if !same_address(new.scope(), other.scope()) {
        return false;
    }
    let both = new.sharing.address && other.sharing.address;
    let by_address = both && !other.listens;
    let by_port = new.sharing.port && other.sharing.port;
    !(by_address || by_port)
}

/// Whether a socket for datagrams may not bind because of another; `None`: others decide.
fn verdict(new: &PortEntry, other: &PortEntry) -> Option<bool> {
    let both_by_address = new.sharing.address && other.sharing.address;
    if both_by_address || !same_address(new.scope(), other.scope()) {
        return None;
    }
    Some(!(new.sharing.port && other.sharing.port))
}

/// Whether a packet could be for both of two addresses, the first of which is being bound.
fn same_address(new: AddressScope, other: AddressScope) -> bool {
    match (new.ip, other.ip) {
        (IpAddr::V6(ip), IpAddr::V4(_)) => ip.is_unspecified() && !new.v6_only,
        (IpAddr::V4(new_ip), IpAddr::V6(ip)) => {
            (ip.is_unspecified() || new_ip.is_unspecified()) && !other.v6_only
        }
        (new_ip, ip) => new_ip == ip || new_ip.is_unspecified() || ip.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const NONE: AddressSharing = AddressSharing { address: false, port: false, v6_only: false };
    const ADDRESS: AddressSharing = AddressSharing { address: true, ..NONE };
    const PORT: AddressSharing = AddressSharing { port: true, ..NONE };
    const ALONE: AddressSharing = AddressSharing { v6_only: true, ..NONE };

    #[test]
    fn address_sharing_matrix_matches_linux() {
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
            let mut ports = LocalPorts::default();
            ports.bind(PortSpace::Tcp, at(one), sharing_one, &mut NoConnections).unwrap();
            let second = ports.bind(PortSpace::Tcp, at(other), sharing_other, &mut NoConnections);
            assert_eq!(second.is_ok(), allowed, "{one} {sharing_one:?}, {other} {sharing_other:?}");
            ports
                .bind(PortSpace::Udp, at(one), NONE, &mut NoConnections)
                .expect("the other protocol's ports");
        }
    }

    #[test]
    fn only_local_addresses_can_be_bound_where_they_are_known() {
        let ours = IpAddr::from([10, 0, 0, 1]);
        let ports = LocalPorts::of(vec![ours]);
        assert_eq!(ports.check_local(ours), Ok(()));
        assert_eq!(ports.check_local(IpAddr::from([0, 0, 0, 0])), Ok(()));
        let other = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(ports.check_local(other), Err(Error::AddressNotAvailable));
        assert_eq!(LocalPorts::default().check_local(other), Ok(()));
    }

    #[test]
    fn chosen_port_of_both_families_is_free_in_both() {
        let mut ports = LocalPorts::default();
        let four = ports
            .bind(PortSpace::Udp, at("10.0.0.1:0"), NONE, &mut NoConnections)
            .unwrap()
            .address
            .port();
        ports.next_port = 0;
        let both = ports
            .bind(PortSpace::Udp, at("[::]:0"), NONE, &mut NoConnections)
            .unwrap()
            .address
            .port();
        assert_ne!(four, both);
        ports.next_port = 0;
        let six = ports
            .bind(PortSpace::Udp, at("[::]:0"), ALONE, &mut NoConnections)
            .unwrap()
            .address
            .port();
        assert_eq!(four, six, "only IPv4 has it");
    }

    #[test]
    fn one_socket_of_a_reuseaddr_pair_may_listen() {
        let mut ports = LocalPorts::default();
        let one =
            ports.bind(PortSpace::Tcp, at("10.0.0.1:80"), ADDRESS, &mut NoConnections).unwrap();
        let two =
            ports.bind(PortSpace::Tcp, at("10.0.0.1:80"), ADDRESS, &mut NoConnections).unwrap();
        ports.listen(one).unwrap();
        assert_eq!(ports.listen(two), Err(Error::AddressInUse));
        let three = ports.bind(PortSpace::Tcp, at("10.0.0.1:80"), ADDRESS, &mut NoConnections);
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
    fn connections_block_addresses_as_sockets_do() {
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
            let mut ports = LocalPorts::default();
            let bound = ports.bind(PortSpace::Tcp, at(address), sharing, &mut beneath);
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
        let mut ports = LocalPorts::default();
        let mut choose = |ports: &mut LocalPorts, address: &str| {
            let bound = ports.bind(PortSpace::Tcp, at(address), ADDRESS, &mut beneath);
            bound.map(|bound| bound.address.port())
        };
        assert_eq!(choose(&mut ports, "10.0.0.1:0"), Ok(first + 1));
        assert_eq!(choose(&mut ports, "10.0.0.2:0"), Ok(first + 3));
        beneath.0 = (first..=last).map(|port| holder(&format!("10.0.0.1:{port}"), no)).collect();
        let mut choose = |ports: &mut LocalPorts, address: &str| {
            let bound = ports.bind(PortSpace::Tcp, at(address), ADDRESS, &mut beneath);
            bound.map(|bound| bound.address.port())
        };
        assert_eq!(choose(&mut ports, "10.0.0.1:0"), Err(Error::AddressInUse));
        assert_eq!(choose(&mut ports, "0.0.0.0:0"), Err(Error::AddressInUse));
        assert_eq!(choose(&mut ports, "10.0.0.2:0"), Ok(first));
        assert_eq!(choose(&mut ports, "10.0.0.2:0"), Ok(first + 1));
        assert_eq!(choose(&mut ports, "[fd00::1]:0"), Ok(first));
    }

    #[test]
    fn a_chosen_port_is_free_until_none_is_left() {
        let mut ports = LocalPorts::default();
        let count = EPHEMERAL.count();
        let mut seen = BTreeSet::new();
        for _ in 0..count {
            let bound =
                ports.bind(PortSpace::Tcp, at("10.0.0.1:0"), ADDRESS, &mut NoConnections).unwrap();
            assert!(seen.insert(bound.address.port()));
        }
        let full = ports.bind(PortSpace::Tcp, at("10.0.0.1:0"), ADDRESS, &mut NoConnections);
        assert_eq!(full, Err(Error::AddressInUse));
    }
}
