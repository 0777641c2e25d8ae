//! The messages of rtnetlink that we read.
//!
//! Read first: netlink(7) on headers and alignment, rtnetlink(7) on what each message carries.
//! All numbers are in the machine's byte order; addresses in the network's.
//!
//! Pure: bytes in, facts out. Any bytes are allowed: what cannot be read is passed over.
//!
//! Invariants
//! - Nothing is read beyond a message, nor beyond an attribute.
//! - A route with several next hops is several routes, as many as the message holds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::MacAddress;

/// What we subscribe to: links, IPv4 and IPv6 addresses and routes, neighbours.
pub(super) const GROUPS: u32 = 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DEL_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DEL_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const DEL_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;

/// Requests whose answer is a list.
pub(super) const LISTS: [u16; 4] = [GET_LINK, GET_ADDRESS, GET_ROUTE, GET_NEIGHBOUR];

const REQUEST_AND_DUMP: u16 = 0x001 | 0x100 | 0x200;
const DUMP_INTERRUPTED: u16 = 0x10;
const HEADER_BYTES: usize = 16;
/// The longest fixed part of a list request (`ifinfomsg`); the others are shorter.
const FIXED_BYTES: usize = 16;

/// One thing that the kernel knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// A network interface.
    Interface(Interface),
    /// An address of this host.
    Address(LinkAddress),
    /// A way to somewhere.
    Route(KernelRoute),
    /// A neighbour on an interface and its link-layer address.
    Neighbour(Neighbour),
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its Ethernet address, if it has one.
    pub mac: Option<MacAddress>,
    /// The largest IP packet in bytes.
    pub mtu: u32,
    /// Switched on.
    pub is_up: bool,
    /// Whether the interface has a carrier.
    pub has_carrier: bool,
    /// The host talking to itself.
    pub is_loopback: bool,
}

/// An address of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkAddress {
    /// The interface's number.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// How much of it names the network.
    pub prefix_len: u8,
    /// It may not be used yet, or never: duplicate address detection goes on or has failed.
    pub is_tentative: bool,
}

/// What happens with packets for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// They are sent on.
    Unicast,
    /// They are for this host.
    Local,
    /// Broadcast packets of the network.
    Broadcast,
    /// They are for a group.
    Multicast,
    /// They are dropped, with or without a word.
    Unreachable,
    /// Something else.
    Other(u8),
}

/// A way to somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRoute {
    /// Where to, with `prefix_len`.
    pub destination: IpAddr,
    /// Bits of `destination` that have to be the same.
    pub prefix_len: u8,
    /// Next hop; `None` if the destination is on the network.
    pub gateway: Option<IpAddr>,
    /// The interface's number.
    pub interface: Option<u32>,
    /// The address to send from.
    pub source: Option<IpAddr>,
    /// The lower the better.
    pub metric: u32,
    /// The routing table; 254 is the main one, 255 the local one.
    pub table: u32,
    /// What happens.
    pub kind: RouteKind,
}

/// A neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface's number.
    pub interface: u32,
    /// Its IP address.
    pub address: IpAddr,
    /// Its Ethernet address, once known.
    pub mac: Option<MacAddress>,
    /// The kernel would send to it now.
    pub is_usable: bool,
}

/// What a message says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageBody {
    Is(Fact),
    Gone(Fact),
    /// The end of a list.
    Done,
    /// A request failed, with this number; 0: it did not.
    Error(i32),
    /// Something that we do not read.
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct NetlinkMessage {
    /// Which request it answers; 0: none.
    pub(super) sequence: u32,
    /// The list changed while it was written.
    pub(super) is_interrupted: bool,
    pub(super) body: MessageBody,
}

/// A request for a list of all families.
pub(super) fn list_request(kind: u16, sequence: u32) -> [u8; HEADER_BYTES + FIXED_BYTES] {
    let mut request = [0; HEADER_BYTES + FIXED_BYTES];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_AND_DUMP.to_ne_bytes());
    request[8..12].copy_from_slice(&sequence.to_ne_bytes());
    request
}

/// The messages of one datagram.
pub(super) struct NetlinkMessages<'a> {
    rest: &'a [u8],
    /// Next hops of a route that were not told yet.
    hops: Option<Hops<'a>>,
}

/// A route of which only the next hop differs.
struct Hops<'a> {
    sequence: u32,
    is_interrupted: bool,
    is_gone: bool,
    route: KernelRoute,
    rest: &'a [u8],
}

impl<'a> NetlinkMessages<'a> {
    pub(super) fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram, hops: None }
    }

    fn next_hop(&mut self) -> Option<NetlinkMessage> {
        let hops = self.hops.as_mut()?;
        let Some((hop, attributes)) = split_hop(&mut hops.rest) else {
            self.hops = None;
            return None;
        };
        let interface = Some(hop).filter(|index| *index != 0);
        let is_ipv4 = hops.route.destination.is_ipv4();
        let gateway = gateway(is_ipv4, &Attributes(attributes));
        let route = KernelRoute { interface, gateway, ..hops.route.clone() };
        let (sequence, is_interrupted) = (hops.sequence, hops.is_interrupted);
        let fact = Fact::Route(route);
        let body = if hops.is_gone { MessageBody::Gone(fact) } else { MessageBody::Is(fact) };
        Some(NetlinkMessage { sequence, is_interrupted, body })
    }
}

impl Iterator for NetlinkMessages<'_> {
    type Item = NetlinkMessage;

    fn next(&mut self) -> Option<NetlinkMessage> {
        loop {
            if let Some(message) = self.next_hop() {
                return Some(message);
            }
            let len = word(self.rest, 0)? as usize;
            if len < HEADER_BYTES {
                return None;
            }
            let message = self.rest.get(..len)?;
            self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            let (kind, flags) = (half(message, 4)?, half(message, 6)?);
            let (sequence, is_interrupted) = (word(message, 8)?, flags & DUMP_INTERRUPTED != 0);
            let payload = &message[HEADER_BYTES..];
            if matches!(kind, NEW_ROUTE | DEL_ROUTE)
                && let Some((route, hops)) = route(payload)
                && let Some(rest) = hops
            {
                let is_gone = kind == DEL_ROUTE;
                self.hops = Some(Hops { sequence, is_interrupted, is_gone, route, rest });
                continue;
            }
            let body = body(kind, payload).unwrap_or(MessageBody::Other);
            return Some(NetlinkMessage { sequence, is_interrupted, body });
        }
    }
}

/// `None`: it cannot be read, or is of no kind that we read.
fn body(kind: u16, payload: &[u8]) -> Option<MessageBody> {
    Some(match kind {
        ERROR => MessageBody::Error((word(payload, 0)? as i32).checked_neg()?),
        DONE => MessageBody::Done,
        NEW_LINK => MessageBody::Is(Fact::Interface(interface(payload)?)),
        DEL_LINK => MessageBody::Gone(Fact::Interface(interface(payload)?)),
        NEW_ADDRESS => MessageBody::Is(Fact::Address(address(payload)?)),
        DEL_ADDRESS => MessageBody::Gone(Fact::Address(address(payload)?)),
        NEW_ROUTE => MessageBody::Is(Fact::Route(route(payload)?.0)),
        DEL_ROUTE => MessageBody::Gone(Fact::Route(route(payload)?.0)),
        NEW_NEIGHBOUR => MessageBody::Is(Fact::Neighbour(neighbour(payload)?)),
        DEL_NEIGHBOUR => MessageBody::Gone(Fact::Neighbour(neighbour(payload)?)),
        _ => return None,
    })
}

/// `ifinfomsg`: family, type (2 at 2), index (4), flags (8), change (12).
fn interface(payload: &[u8]) -> Option<Interface> {
    const NAME: u16 = 3;
    const MTU: u16 = 4;
    const ADDRESS: u16 = 1;
    const UP: u32 = 1;
    const LOOPBACK: u32 = 8;
    const LOWER_UP: u32 = 1 << 16;
    const ETHERNET: u16 = 1;

    // Messages of a bridge about its ports look alike, and are not about interfaces.
    if *payload.first()? != 0 {
        return None;
    }
    let (hardware, index, flags) = (half(payload, 2)?, word(payload, 4)?, word(payload, 8)?);
    let attributes = Attributes(payload.get(16..)?);
    let name = attributes.find(NAME)?.split(|byte| *byte == 0).next()?;
    let mac = attributes.find(ADDRESS).and_then(|bytes| bytes.try_into().ok());
    Some(Interface {
        index,
        name: String::from_utf8_lossy(name).into_owned(),
        mac: mac.filter(|_| hardware == ETHERNET),
        mtu: attributes.find(MTU).and_then(|bytes| word(bytes, 0)).unwrap_or(0),
        is_up: flags & UP != 0,
        has_carrier: flags & LOWER_UP != 0,
        is_loopback: flags & LOOPBACK != 0,
    })
}

/// `ifaddrmsg`: family, prefix length (1), flags (2), scope (3), index (4).
fn address(payload: &[u8]) -> Option<LinkAddress> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const FLAGS: u16 = 8;
    const TENTATIVE_OR_FAILED: u32 = 0x40 | 0x08;

    let is_ipv4 = is_ipv4(*payload.first()?)?;
    let attributes = Attributes(payload.get(8..)?);
    // On a point-to-point interface the plain address is the peer's.
    let bytes = attributes.find(LOCAL).or_else(|| attributes.find(ADDRESS))?;
    let short = u32::from(payload[2]);
    let flags = attributes.find(FLAGS).and_then(|bytes| word(bytes, 0)).unwrap_or(short);
    Some(LinkAddress {
        interface: word(payload, 4)?,
        address: ip(is_ipv4, bytes)?,
        prefix_len: payload[1],
        is_tentative: flags & TENTATIVE_OR_FAILED != 0,
    })
}

/// `rtmsg`: family, destination length (1), source length (2), service (3), table (4), protocol
/// (5), scope (6), type (7), flags (8). With the next hops, if they are in a list.
fn route(payload: &[u8]) -> Option<(KernelRoute, Option<&[u8]>)> {
    const DESTINATION: u16 = 1;
    const INTERFACE: u16 = 4;
    const METRIC: u16 = 6;
    const SOURCE: u16 = 7;
    const HOPS: u16 = 9;
    const TABLE: u16 = 15;

    let is_ipv4 = is_ipv4(*payload.first()?)?;
    let attributes = Attributes(payload.get(12..)?);
    let number = |kind| attributes.find(kind).and_then(|bytes| word(bytes, 0));
    let destination = match attributes.find(DESTINATION) {
        Some(bytes) => ip(is_ipv4, bytes)?,
        None if is_ipv4 => Ipv4Addr::UNSPECIFIED.into(),
        None => Ipv6Addr::UNSPECIFIED.into(),
    };
    let kind = match payload[7] {
        1 => RouteKind::Unicast,
        2 => RouteKind::Local,
        3 => RouteKind::Broadcast,
        5 => RouteKind::Multicast,
        6..=8 => RouteKind::Unreachable,
        other => RouteKind::Other(other),
    };
    let route = KernelRoute {
        destination,
        prefix_len: payload[1],
        gateway: gateway(is_ipv4, &attributes),
        interface: number(INTERFACE),
        source: attributes.find(SOURCE).and_then(|bytes| ip(is_ipv4, bytes)),
        metric: number(METRIC).unwrap_or(0),
        table: number(TABLE).unwrap_or_else(|| payload[4].into()),
        kind,
    };
    Some((route, attributes.find(HOPS)))
}

/// The gateway may be of another family than the destination (`RTA_VIA`).
fn gateway(is_ipv4: bool, attributes: &Attributes<'_>) -> Option<IpAddr> {
    const GATEWAY: u16 = 5;
    const VIA: u16 = 18;
    if let Some(bytes) = attributes.find(GATEWAY) {
        return ip(is_ipv4, bytes);
    }
    let via = attributes.find(VIA)?;
    let family = u8::try_from(half(via, 0)?).ok()?;
    ip(self::is_ipv4(family)?, via.get(2..)?)
}

/// `ndmsg`: family, index (4), state (8), flags (10), type (11).
fn neighbour(payload: &[u8]) -> Option<Neighbour> {
    const ADDRESS: u16 = 1;
    const LINK_ADDRESS: u16 = 2;
    /// Reachable, stale, delay, probe, no ARP, permanent.
    const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

    let is_ipv4 = is_ipv4(*payload.first()?)?;
    let attributes = Attributes(payload.get(12..)?);
    let mac = attributes.find(LINK_ADDRESS).and_then(|bytes| bytes.try_into().ok());
    Some(Neighbour {
        interface: word(payload, 4)?,
        address: ip(is_ipv4, attributes.find(ADDRESS)?)?,
        mac,
        is_usable: half(payload, 8)? & USABLE != 0,
    })
}

/// `rtnexthop`: length (2), flags, hops, index (4), attributes.
fn split_hop<'a>(rest: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    const HOP_BYTES: usize = 8;
    let len = usize::from(half(rest, 0)?);
    if len < HOP_BYTES {
        return None;
    }
    let hop = rest.get(..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((word(hop, 4)?, &hop[HOP_BYTES..]))
}

/// Attributes, one behind another: length (2), kind (2), value, padded to four bytes.
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The value of the first one of this kind.
    fn find(&self, wanted: u16) -> Option<&'a [u8]> {
        const HEADER_BYTES: usize = 4;
        /// The two highest bits are flags.
        const KIND: u16 = 0x3fff;
        let mut rest = self.0;
        loop {
            let (len, kind) = (usize::from(half(rest, 0)?), half(rest, 2)? & KIND);
            if len < HEADER_BYTES {
                return None;
            }
            let attribute = rest.get(..len)?;
            if kind == wanted {
                return Some(&attribute[HEADER_BYTES..]);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }
}

fn is_ipv4(family: u8) -> Option<bool> {
    match i32::from(family) {
        libc::AF_INET => Some(true),
        libc::AF_INET6 => Some(false),
        _ => None,
    }
}

fn ip(is_ipv4: bool, bytes: &[u8]) -> Option<IpAddr> {
    if is_ipv4 {
        let bytes: [u8; 4] = bytes.try_into().ok()?;
        return Some(Ipv4Addr::from(bytes).into());
    }
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some(Ipv6Addr::from(bytes).into())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
