//! Ownership of frames on an address shared with the kernel: ours, the kernel's, or both.
//!
//! Pure: a frame in, its owner out. [`Ownership::owner_of`] is the reference that the filters in
//! the kernel (classic BPF for `packet`, XDP for `xdp`) are tested against, frame by frame.
//!
//! Read first: [`Ownership`], then [`Owner`].
//!
//! Invariants
//! - What no rule takes is the kernel's: SSH, DNS and everything else on the box go on.
//! - A released flow is the kernel's, whatever port it uses.
//! - Frames with a VLAN tag are the kernel's: the tag names another network than ours.
//! - IPv6 extension headers are not walked, but for a fragment header that comes first. A packet
//!   with others is the kernel's, unless the whole address is ours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use crate::LinkMedium;
use crate::limits::{
    OWNED_ADDRESSES_MAX, OWNED_FLOWS_MAX, OWNED_PORT_RANGES_MAX, RESERVATIONS_MAX,
};

/// A transport protocol that has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP, protocol 6.
    Tcp,
    /// UDP, protocol 17.
    Udp,
}

impl Transport {
    /// Its number in IP headers.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }
}

/// One flow, seen from this host. Both addresses are of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowTuple {
    /// TCP or UDP.
    pub transport: Transport,
    /// This host's address.
    pub local: IpAddr,
    /// This host's port.
    pub local_port: u16,
    /// The peer's address.
    pub remote: IpAddr,
    /// The peer's port.
    pub remote_port: u16,
}

/// Why an [`Ownership`] was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OwnershipError {
    /// A table of it is full; the number is its bound.
    #[error("at most {0} {1}")]
    Full(usize, &'static str),
    /// A range of ports that holds none, or port 0.
    #[error("ports {0}-{1} are not a range within 1-65535")]
    PortRange(u16, u16),
    /// A flow with an IPv4 and an IPv6 address.
    #[error("a flow needs two addresses of one family")]
    MixedFamilies,
}

/// A set of ports: sorted, disjoint ranges that do not touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortRanges(Vec<(u16, u16)>);

impl PortRanges {
    /// No port.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds the ports of `range`, merging with what is there.
    ///
    /// # Errors
    /// [`OwnershipError::PortRange`] for an empty range or port 0, [`OwnershipError::Full`] when
    /// the set would need too many ranges; the set is then as it was.
    pub fn insert(&mut self, range: RangeInclusive<u16>) -> Result<(), OwnershipError> {
        let (mut first, mut last) = checked(&range)?;
        let touches = |&(a, b): &(u16, u16)| {
            u32::from(a) <= u32::from(last) + 1 && u32::from(first) <= u32::from(b) + 1
        };
        let (touching, mut kept): (Vec<_>, Vec<_>) = self.0.iter().copied().partition(touches);
        for (a, b) in touching {
            first = first.min(a);
            last = last.max(b);
        }
        kept.push((first, last));
        self.replace(kept)
    }

    /// Removes the ports of `range`.
    ///
    /// # Errors
    /// As [`PortRanges::insert`]: a hole splits a range.
    pub fn remove(&mut self, range: RangeInclusive<u16>) -> Result<(), OwnershipError> {
        let (first, last) = checked(&range)?;
        let mut kept = Vec::with_capacity(self.0.len() + 1);
        for &(a, b) in &self.0 {
            if a < first {
                kept.push((a, b.min(first - 1)));
            }
            if b > last {
                kept.push((a.max(last + 1), b));
            }
        }
        self.replace(kept)
    }

    /// Is `port` among them?
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        let after = self.0.partition_point(|&(first, _)| first <= port);
        after > 0 && port <= self.0[after - 1].1
    }

    /// The ranges, first and last port of each, in order.
    #[must_use]
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// How many ports.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(|&(first, last)| usize::from(last - first) + 1).sum()
    }

    fn replace(&mut self, mut ranges: Vec<(u16, u16)>) -> Result<(), OwnershipError> {
        if ranges.len() > OWNED_PORT_RANGES_MAX {
            return Err(OwnershipError::Full(OWNED_PORT_RANGES_MAX, "ranges of ports"));
        }
        ranges.sort_unstable();
        self.0 = ranges;
        Ok(())
    }
}

fn checked(range: &RangeInclusive<u16>) -> Result<(u16, u16), OwnershipError> {
    let (first, last) = (*range.start(), *range.end());
    if first == 0 || range.is_empty() {
        return Err(OwnershipError::PortRange(first, last));
    }
    Ok((first, last))
}

/// Owner of a received frame.
///
/// A driver that copies (`packet`) takes all but [`Owner::Kernel`]; the kernel sees every frame
/// and is kept from answering by other means. A driver that can hand a frame to one side only
/// (`xdp`) takes [`Owner::Ours`] and [`Owner::IcmpError`] and leaves the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Not ours.
    Kernel,
    /// Ours alone.
    Ours,
    /// ARP or neighbour discovery: both sides want it.
    Neighbour,
    /// An ICMP error about a packet that we sent.
    IcmpError,
    /// A fragment without ports, to an address that we share: only reassembly can tell.
    Fragment,
}

/// Which addresses, ports and flows are ours. May be changed while a link is open: see
/// `set_ownership` of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ownership {
    addresses: Vec<IpAddr>,
    taken: Vec<FlowTuple>,
    released: Vec<FlowTuple>,
    /// Ports that a socket of a program keeps the kernel silent on.
    held_elsewhere: Vec<(Transport, SocketAddr)>,
    /// TCP ports at each of the addresses that are ours.
    pub tcp_ports: PortRanges,
    /// UDP ports at each of the addresses that are ours.
    pub udp_ports: PortRanges,
    /// Ports, of both protocols, that connections leave from: no program of the host serves there,
    /// so one socket of the kernel's may hold each at all addresses of the interface.
    pub client_ports: PortRanges,
    /// All IP packets to the addresses are ours: the kernel does not have these addresses.
    pub whole_address: bool,
    /// ARP and neighbour discovery are wanted ([`Owner::Neighbour`]); without it they are the
    /// kernel's, and neighbours come from netlink.
    pub neighbours: bool,
}

impl Ownership {
    /// Nothing is ours.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a local address that the ports hold for.
    ///
    /// # Errors
    /// [`OwnershipError::Full`].
    pub fn add_address(&mut self, address: IpAddr) -> Result<(), OwnershipError> {
        add(&mut self.addresses, address, OWNED_ADDRESSES_MAX, "addresses")
    }

    /// Takes one flow although its port is not ours, or takes back one that was released.
    ///
    /// # Errors
    /// [`OwnershipError::Full`], [`OwnershipError::MixedFamilies`].
    pub fn take(&mut self, flow: FlowTuple) -> Result<(), OwnershipError> {
        if flow.local.is_ipv4() != flow.remote.is_ipv4() {
            return Err(OwnershipError::MixedFamilies);
        }
        self.released.retain(|other| *other != flow);
        if self.port_is_ours(flow.transport, flow.local, flow.local_port) {
            return Ok(());
        }
        add(&mut self.taken, flow, OWNED_FLOWS_MAX, "taken flows")
    }

    /// Gives one flow to the kernel although its port is ours, or gives back one that was taken.
    ///
    /// # Errors
    /// [`OwnershipError::Full`], [`OwnershipError::MixedFamilies`].
    pub fn release(&mut self, flow: FlowTuple) -> Result<(), OwnershipError> {
        if flow.local.is_ipv4() != flow.remote.is_ipv4() {
            return Err(OwnershipError::MixedFamilies);
        }
        self.taken.retain(|other| *other != flow);
        if !self.port_is_ours(flow.transport, flow.local, flow.local_port) {
            return Ok(());
        }
        add(&mut self.released, flow, OWNED_FLOWS_MAX, "released flows")
    }

    /// Forgets a flow: it ended, and its port decides again.
    pub fn forget(&mut self, flow: &FlowTuple) {
        self.taken.retain(|other| other != flow);
        self.released.retain(|other| other != flow);
    }

    /// A port at one address is held by a socket of a program, a deaf one: the link does not have
    /// to.
    ///
    /// # Errors
    /// [`OwnershipError::Full`].
    pub fn hold_elsewhere(
        &mut self,
        transport: Transport,
        port: SocketAddr,
    ) -> Result<(), OwnershipError> {
        add(&mut self.held_elsewhere, (transport, port), RESERVATIONS_MAX, "ports held elsewhere")
    }

    /// That socket is going: the link holds the port again, if it is still ours.
    pub fn hold_again(&mut self, transport: Transport, port: SocketAddr) {
        self.held_elsewhere.retain(|other| *other != (transport, port));
    }

    /// Ports that a socket of a program holds.
    #[must_use]
    pub fn held_elsewhere(&self) -> &[(Transport, SocketAddr)] {
        &self.held_elsewhere
    }

    /// The ports of one protocol, to be changed.
    pub const fn ports_mut(&mut self, transport: Transport) -> &mut PortRanges {
        match transport {
            Transport::Tcp => &mut self.tcp_ports,
            Transport::Udp => &mut self.udp_ports,
        }
    }

    pub(crate) fn is_held_elsewhere(
        &self,
        transport: Transport,
        address: IpAddr,
        port: u16,
    ) -> bool {
        self.held_elsewhere.contains(&(transport, SocketAddr::new(address, port)))
    }

    /// The local addresses, in order.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Flows that are ours although their ports are not, in order.
    #[must_use]
    pub fn taken(&self) -> &[FlowTuple] {
        &self.taken
    }

    /// Flows that are the kernel's although their ports are ours, in order.
    #[must_use]
    pub fn released(&self) -> &[FlowTuple] {
        &self.released
    }

    /// The ports of one protocol.
    #[must_use]
    pub fn ports(&self, transport: Transport) -> &PortRanges {
        match transport {
            Transport::Tcp => &self.tcp_ports,
            Transport::Udp => &self.udp_ports,
        }
    }

    /// Whose is this received frame? Any bytes are allowed; what cannot be read is the kernel's.
    #[must_use]
    pub fn owner_of(&self, medium: LinkMedium, frame: &[u8]) -> Owner {
        self.find_owner(medium, frame).unwrap_or(Owner::Kernel)
    }

    fn port_is_ours(&self, transport: Transport, local: IpAddr, port: u16) -> bool {
        self.addresses.contains(&local)
            && (self.whole_address || self.ports(transport).contains(port))
    }

    fn flow_is_ours(&self, flow: &FlowTuple) -> bool {
        if self.released.contains(flow) {
            return false;
        }
        self.port_is_ours(flow.transport, flow.local, flow.local_port) || self.taken.contains(flow)
    }

    /// `None`: too short for what it says it is.
    fn find_owner(&self, medium: LinkMedium, frame: &[u8]) -> Option<Owner> {
        let (kind, packet) = match medium {
            LinkMedium::Ethernet => (half(frame, 12)?, frame.get(14..)?),
            LinkMedium::Ip if frame.first()? >> 4 == 4 => (IPV4, frame),
            LinkMedium::Ip => (IPV6, frame),
        };
        match kind {
            ARP if self.neighbours => Some(Owner::Neighbour),
            IPV4 => self.owner_of_ipv4(packet),
            IPV6 => self.owner_of_ipv6(packet),
            _ => None,
        }
    }

    fn owner_of_ipv4(&self, packet: &[u8]) -> Option<Owner> {
        let header_bytes = usize::from(packet.first()? & 15) * 4;
        let source = IpAddr::V4(ipv4(packet, 12)?);
        let destination = IpAddr::V4(ipv4(packet, 16)?);
        if !self.addresses.contains(&destination) {
            // A taken flow names its own local address.
            return self.owner_of_taken(packet, header_bytes, source, destination);
        }
        if half(packet, 6)? & FRAGMENT_OFFSET != 0 {
            return Some(if self.whole_address { Owner::Ours } else { Owner::Fragment });
        }
        let protocol = packet[9];
        let payload = packet.get(header_bytes..).unwrap_or_default();
        if protocol == ICMP && matches!(payload.first()?, 3 | 11 | 12) {
            return self.owner_of_error(4, payload.get(8..)?);
        }
        self.owner_of_transport(protocol, payload, source, destination)
    }

    fn owner_of_ipv6(&self, packet: &[u8]) -> Option<Owner> {
        let source = IpAddr::V6(ipv6(packet, 8)?);
        let destination = IpAddr::V6(ipv6(packet, 24)?);
        let next = packet[6];
        let payload = packet.get(40..)?;
        if next == ICMPV6 && matches!(payload.first()?, 133..=137) {
            return self.neighbours.then_some(Owner::Neighbour);
        }
        if !self.addresses.contains(&destination) {
            return self.owner_of_taken(packet, 40, source, destination);
        }
        if next == FRAGMENT_HEADER {
            return Some(if self.whole_address { Owner::Ours } else { Owner::Fragment });
        }
        if next == ICMPV6 && matches!(payload.first()?, 1..=4) {
            return self.owner_of_error(6, payload.get(8..)?);
        }
        self.owner_of_transport(next, payload, source, destination)
    }

    fn owner_of_taken(
        &self,
        packet: &[u8],
        header_bytes: usize,
        remote: IpAddr,
        local: IpAddr,
    ) -> Option<Owner> {
        let is_ipv4 = local.is_ipv4();
        if is_ipv4 && half(packet, 6)? & FRAGMENT_OFFSET != 0 {
            return None;
        }
        let protocol = if is_ipv4 { packet[9] } else { packet[6] };
        let payload = packet.get(header_bytes..)?;
        let transport = Transport::from_number(protocol)?;
        let (remote_port, local_port) = (half(payload, 0)?, half(payload, 2)?);
        let flow = FlowTuple { transport, local, local_port, remote, remote_port };
        self.taken.contains(&flow).then_some(Owner::Ours)
    }

    fn owner_of_transport(
        &self,
        protocol: u8,
        payload: &[u8],
        remote: IpAddr,
        local: IpAddr,
    ) -> Option<Owner> {
        let Some(transport) = Transport::from_number(protocol) else {
            return self.whole_address.then_some(Owner::Ours);
        };
        let (remote_port, local_port) = (half(payload, 0)?, half(payload, 2)?);
        let flow = FlowTuple { transport, local, local_port, remote, remote_port };
        self.flow_is_ours(&flow).then_some(Owner::Ours)
    }

    /// Returns the owner of an ICMP error. `quoted` is the packet that the error is about, sent
    /// from this host, with the error's own IP version.
    fn owner_of_error(&self, version: u8, quoted: &[u8]) -> Option<Owner> {
        let quoted_version = quoted.first()? >> 4;
        if self.whole_address {
            return Some(Owner::Ours);
        }
        let (protocol, local, remote, ports) = match quoted_version {
            other if other != version => return None,
            4 => {
                let header_bytes = usize::from(quoted[0] & 15) * 4;
                let (local, remote) = (ipv4(quoted, 12)?, ipv4(quoted, 16)?);
                (quoted[9], IpAddr::V4(local), IpAddr::V4(remote), quoted.get(header_bytes..)?)
            }
            _ => {
                let (local, remote) = (ipv6(quoted, 8)?, ipv6(quoted, 24)?);
                (quoted[6], IpAddr::V6(local), IpAddr::V6(remote), quoted.get(40..)?)
            }
        };
        let transport = Transport::from_number(protocol)?;
        let (local_port, remote_port) = (half(ports, 0)?, half(ports, 2)?);
        let flow = FlowTuple { transport, local, local_port, remote, remote_port };
        self.flow_is_ours(&flow).then_some(Owner::IcmpError)
    }
}

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FRAGMENT_HEADER: u8 = 44;
const FRAGMENT_OFFSET: u16 = 0x1fff;

fn add<T: Ord>(
    list: &mut Vec<T>,
    item: T,
    max: usize,
    what: &'static str,
) -> Result<(), OwnershipError> {
    let Err(place) = list.binary_search(&item) else {
        return Ok(());
    };
    if list.len() == max {
        return Err(OwnershipError::Full(max, what));
    }
    list.insert(place, item);
    Ok(())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_be_bytes(bytes))
}

fn ipv4(packet: &[u8], at: usize) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(bytes))
}

fn ipv6(packet: &[u8], at: usize) -> Option<Ipv6Addr> {
    let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(bytes))
}

#[cfg(test)]
mod tests;
