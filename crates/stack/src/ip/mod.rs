//! IP layer: local addresses, routes, neighbours, fragments, ICMP.
//!
//! Read first: RFC 1122 §3, RFC 8200, RFC 8504. `address.rs` has the local addresses, `route.rs`
//! the next hop, `neighbour.rs` its link address, `path_mtu.rs` the packet size, `reassembly.rs`
//! fragments, `icmp.rs` ICMP.
//!
//! Invariants
//! - We are a host: nothing is forwarded, and redirects and router advertisements are ignored.
//!   Routes come from the configuration or from the caller of [`crate::Stack::set_routes`].
//! - Every table has a ceiling in `limits.rs`; what is over it is dropped and counted.
//! - What we send to an address of our own has a hop of its own: its frames stay here, and are
//!   received only as [`Checksums::Looped`]. From the link a source of ours is dropped.
//! - A [`Hop`] may be kept, and is worth nothing after the routes or its neighbour changed:
//!   [`Ip::hop_is_fresh`] says so.

pub(crate) mod address;
mod fragment;
pub(crate) mod icmp;
pub(crate) mod inbound;
pub(crate) mod input;
mod link;
pub(crate) mod local_peers;
mod membership;
pub(crate) mod neighbour;
pub(crate) mod outbox;
pub(crate) mod path_mtu;
pub(crate) mod reassembly;
pub(crate) mod route;

use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use crate::config::{Config, Route};
use crate::counters::{Counters, Drop};
use crate::error::ConfigError;
use crate::event::Arrival;
use crate::frame::{Checksums, Medium, Transmit};
use crate::host_address::HostAddress;
use crate::limits::{ANSWERS_MAX, HOP_LIMIT, ICMP_ERRORS_BURST, ICMP_ERRORS_PER_S, MTU_MIN_V6};
use crate::rate::TokenBucket;
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::{Ecn, Protocol, ethernet, ipv4, ipv6};
use address::Addresses;
use fragment::Identifications;
use link::Answer;
use local_peers::{LocalPeer, LocalPeerFilter, LocalPeers};
use membership::Membership;
use neighbour::{NeighbourPlace, Neighbours};
use outbox::Outbox;
use path_mtu::PathMtus;
use route::Routes;

/// A neighbour that was confirmed is not confirmed again for so long: that it is there holds for
/// much longer.
const CONFIRM_APART: Duration = Duration::from_millis(100);

/// A packet for a transport: whole, for one of our addresses, from a source that may be one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived<'a> {
    /// Who sent it.
    pub src: IpAddr,
    /// Which of our addresses it was sent to.
    pub dst: IpAddr,
    /// Congestion marks.
    pub ecn: Ecn,
    /// The whole traffic class, marks and all.
    pub traffic_class: u8,
    /// Hops that were left to it.
    pub hop_limit: u8,
    /// From the transport header on.
    pub payload: &'a [u8],
    /// What is known about the transport checksum.
    pub checksums: Checksums,
    /// Payload bytes of each segment that the link merged; 0: not merged.
    pub segment_bytes: u16,
}

/// What an application may ask of the network (RFC 9293 §3.9.2: MUST-48, MUST-49).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service {
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Hops that it may go.
    pub hop_limit: u8,
}

impl Default for Service {
    fn default() -> Self {
        Self { dscp: 0, hop_limit: HOP_LIMIT }
    }
}

/// A packet on its way out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Departing {
    /// One of our addresses.
    pub src: IpAddr,
    /// Of the same family.
    pub dst: IpAddr,
    /// What the payload is.
    pub protocol: Protocol,
    /// How it is to be treated on its way.
    pub service: Service,
    /// Congestion marks.
    pub ecn: Ecn,
    /// Transport header and payload, in bytes.
    pub payload_bytes: usize,
    /// IPv4: routers may not cut it.
    pub dont_fragment: bool,
}

/// An ICMP error that quotes a packet of ours. It may be forged: the transport accepts it only if
/// the quoted sequence numbers match (RFC 5927 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Our address and port: the quoted packet's source.
    pub local: SocketAddr,
    /// The peer's: its destination.
    pub remote: SocketAddr,
    /// TCP: the quoted sequence number. UDP: without meaning.
    pub seq: SeqNum,
    /// What went wrong.
    pub kind: IcmpErrorKind,
}

/// An ICMP error as it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IcmpReport<'a> {
    /// Who says so.
    pub by: IpAddr,
    /// The message's type and code.
    pub kind: u8,
    pub code: u8,
    /// The MTU or the place of which it speaks, else 0.
    pub info: u32,
    /// How the message arrived.
    pub arrival: Arrival,
    /// What it quotes of the packet, from the transport header on; of that 8 bytes at least.
    pub quoted: &'a [u8],
}

/// What went wrong with a packet, whichever version of ICMP says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IcmpErrorKind {
    /// It did not get there.
    Unreachable(Unreachable),
    /// It was larger than the next link takes, `mtu` bytes; never below the smallest MTU that
    /// the version of IP allows, and never above our own link's.
    FragmentationNeeded {
        /// The largest packet in bytes.
        mtu: u16,
    },
    /// It ran out of hops, or its fragments did not all arrive.
    TimeExceeded,
    /// The header was invalid for the receiver.
    ParameterProblem,
}

/// Why a packet did not get there (RFC 792, RFC 1122 §3.2.2.1; RFC 4443 §3.1). Of these
/// `Protocol` and `Port` are hard errors, the others soft (RFC 1122 §4.2.3.9, RFC 5461).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// No route to the network.
    Network,
    /// The host does not answer on its link.
    Host,
    /// The host does not speak the transport.
    Protocol,
    /// Port unreachable.
    Port,
    /// An administrator forbids it.
    Prohibited,
}

/// Destination and source of a frame; `None`: the medium has no addresses.
pub(crate) type LinkEnds = Option<ethernet::AddressWords>;

/// The way to a neighbour. Four bytes, for a connection to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Which neighbour.
    place: NeighbourPlace,
}

const _: () = assert!(size_of::<Option<Hop>>() == 4);

impl Hop {
    /// It leads to an address of ours: frames stay here.
    #[inline]
    pub(crate) const fn is_local(self) -> bool {
        self.place.is_local()
    }
}

/// What is known about the way to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// Packets may go.
    Ready(Hop),
    /// The neighbour has been asked; the stack tells the transports when that is decided.
    Waiting,
    /// No route leads there, or it is no address to send to.
    NoRoute,
}

/// Addresses of two versions, which no packet has.
const NO_PAIR: (HostAddress, HostAddress) =
    (HostAddress::of_ipv4(Ipv4Addr::UNSPECIFIED), HostAddress::UNSPECIFIED);

/// A way that was found. It is worth something as long as `hop` is: a host to which there is a way
/// is one host, and not we.
#[derive(Debug, Clone, Copy)]
struct CachedRoute {
    dst: HostAddress,
    /// The address of ours that packets there are best sent from.
    source: Option<HostAddress>,
    hop: Hop,
}

/// The state of this layer.
#[derive(Debug)]
pub(crate) struct Ip {
    medium: Medium,
    mtu: u16,
    vlan: Option<u16>,
    external_neighbours: bool,
    /// [`Config::loopback`].
    loopback: bool,
    addresses: Addresses,
    /// [`input::fast_link_of`] medium and VLAN.
    fast_link: u64,
    routes: Routes,
    neighbours: Neighbours,
    path_mtus: PathMtus,
    /// Answers to questions of the link.
    answers: VecDeque<Answer>,
    membership: Membership,
    local_peers: LocalPeers,
    outbox: Outbox,
    identifications: Identifications,
    icmp_errors: TokenBucket,
    /// Grows whenever `addresses` or `routes` change.
    epoch: u32,
    /// The way that was found last.
    last_way: Option<CachedRoute>,
    /// Source and destination of the segment that [`Ip::lets_in`] let in last.
    last_let_in: (HostAddress, HostAddress),
    /// The neighbour that was confirmed last, and until when it need not be again.
    confirmed: Option<(Instant, Hop)>,
    /// Identification of the next packet that may be cut.
    identification: u16,
}

impl Ip {
    /// Makes the layer as `config` says.
    ///
    /// # Errors
    ///
    /// Which of the settings of this layer is wrong, and why.
    pub(crate) fn new(config: &Config, now: Instant) -> Result<Self, ConfigError> {
        let addresses = Addresses::new(&config.addresses, config.medium, config.mtu)?;
        let mut ip = Self {
            medium: config.medium,
            mtu: config.mtu,
            vlan: config.vlan,
            fast_link: input::fast_link_of(config.medium, config.vlan),
            external_neighbours: config.external_neighbours,
            loopback: config.loopback,
            routes: Routes::new(&config.routes)?,
            addresses,
            neighbours: Neighbours::new(now, config.medium.link_address()),
            path_mtus: PathMtus::new(),
            answers: VecDeque::with_capacity(ANSWERS_MAX),
            membership: Membership::new(seed_of(&config.secret)),
            local_peers: LocalPeers::default(),
            outbox: Outbox::new(),
            identifications: Identifications::new(&config.secret),
            icmp_errors: TokenBucket::new(ICMP_ERRORS_PER_S, ICMP_ERRORS_BURST, now),
            epoch: 0,
            last_way: None,
            last_let_in: NO_PAIR,
            confirmed: None,
            identification: 0,
        };
        ip.announce(now);
        Ok(ip)
    }

    /// Replaces our addresses; connections of those that are gone find no way out any more.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them; the old ones stay.
    pub(crate) fn set_addresses(
        &mut self,
        now: Instant,
        addresses: &[(IpAddr, u8)],
    ) -> Result<(), ConfigError> {
        self.addresses = Addresses::new(addresses, self.medium, self.mtu)?;
        self.outdate();
        self.announce(now);
        Ok(())
    }

    /// Replaces the routes.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them; the old ones stay.
    pub(crate) fn set_routes(&mut self, routes: &[Route]) -> Result<(), ConfigError> {
        self.routes = Routes::new(routes)?;
        self.outdate();
        Ok(())
    }

    /// Ways that were found before may lead elsewhere now.
    fn outdate(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.last_way = None;
        self.last_let_in = NO_PAIR;
        self.neighbours.outdate();
    }

    /// The caller knows where the neighbour `ip` is. False: there is no room for it.
    pub(crate) fn set_neighbour(&mut self, now: Instant, ip: IpAddr, mac: [u8; 6]) -> bool {
        self.neighbours.set(now, ip, mac)
    }

    /// The caller does not know any more.
    pub(crate) fn remove_neighbour(&mut self, ip: IpAddr) {
        self.neighbours.remove(ip);
    }

    /// `ip` is an address of ours on the link.
    #[inline]
    pub(crate) fn is_ours(&self, ip: IpAddr) -> bool {
        self.addresses.contains(ip)
    }

    /// `ip` is a loopback address, and those are ours ([`Config::loopback`]).
    pub(crate) fn is_our_loopback(&self, ip: IpAddr) -> bool {
        self.loopback && address::is_loopback(ip) && (ip.is_ipv4() || self.mtu >= MTU_MIN_V6)
    }

    /// `ip` is an address of ours, on the link or of loopback: packets for it stay here.
    pub(crate) fn stays_here(&self, ip: IpAddr) -> bool {
        self.is_ours(ip) || self.is_our_loopback(ip)
    }

    /// Packets from `src`, an address of ours, may go to `dst`: one of loopback never leaves the
    /// host (RFC 1122 §3.2.1.3 (g), RFC 4291 §2.5.3).
    pub(crate) fn may_send(&self, src: IpAddr, dst: IpAddr) -> bool {
        !address::is_loopback(src) || self.stays_here(dst)
    }

    /// The address that packets to `dst` are best sent from: `dst` itself, if that is ours, or of
    /// loopback the first one, as on Linux. `None`: there is no route, or no address of that
    /// family.
    #[inline]
    pub(crate) fn source_for(&self, dst: HostAddress) -> Option<HostAddress> {
        match self.last_way_to(dst) {
            Some(way) => way.source,
            None => self.find_source(dst.ip()).map(HostAddress::from),
        }
    }

    #[inline(never)]
    fn find_source(&self, dst: IpAddr) -> Option<IpAddr> {
        let via = self.via(dst)?;
        match dst {
            _ if self.is_ours(dst) => Some(dst),
            _ if !self.is_our_loopback(dst) => self.addresses.source_for(dst, via),
            IpAddr::V4(_) => Some(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(_) => Some(dst),
        }
    }

    /// The neighbour that packets to `dst` go to: `dst` itself, which may be an address of ours, or
    /// a router. `None`: no route.
    pub(crate) fn via(&self, dst: IpAddr) -> Option<IpAddr> {
        if self.stays_here(dst) {
            self.local_peers.note_use();
            return Some(dst);
        }
        if !address::is_unicast(dst) || self.addresses.is_broadcast(dst) {
            return None;
        }
        self.routes.via(dst, &self.addresses)
    }

    /// Only peers at our own addresses that pass `filter` can be reached from now on.
    pub(crate) fn set_local_peer_filter(&mut self, filter: LocalPeerFilter) {
        self.local_peers.set_filter(filter);
    }

    /// A peer at an address of ours can be reached. No port of loopback is the kernel's.
    pub(crate) fn can_reach(&self, peer: LocalPeer) -> bool {
        self.is_our_loopback(peer.address().ip()) || self.local_peers.can_reach(peer)
    }

    /// A way to an address of ours was looked up at some time.
    pub(crate) const fn has_local_peers(&self) -> bool {
        self.local_peers.were_used()
    }

    /// Changes whenever addresses or routes do.
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The way to `dst`. Asks the link for the neighbour where that is not known.
    #[inline(always)]
    pub(crate) fn next_hop(&mut self, now: Instant, dst: HostAddress) -> NextHop {
        if let Some(way) = self.last_way
            && way.dst == dst
            && self.hop_is_fresh(now, way.hop)
        {
            return NextHop::Ready(way.hop);
        }
        self.find_way(now, dst.ip())
    }

    #[inline(never)]
    fn find_way(&mut self, now: Instant, dst: IpAddr) -> NextHop {
        if self.stays_here(dst) {
            return NextHop::Ready(Hop { place: self.neighbours.local() });
        }
        let Some(via) = self.via(dst) else { return NextHop::NoRoute };
        let place = match self.medium {
            Medium::Ip => Some(self.neighbours.without_address()),
            Medium::Ethernet(_) => self.neighbours.find(now, via, true),
        };
        let Some(place) = place else { return NextHop::Waiting };
        let (hop, source) = (Hop { place }, self.addresses.source_for(dst, via));
        let source = source.map(HostAddress::from);
        self.last_way = Some(CachedRoute { dst: dst.into(), source, hop });
        NextHop::Ready(hop)
    }

    /// The way to `dst`, if it was found last and still leads there.
    #[inline]
    fn last_way_to(&self, dst: HostAddress) -> Option<&CachedRoute> {
        self.last_way.as_ref().filter(|way| way.dst == dst && self.is_current(way.hop))
    }

    /// `hop` may still be used, and is about to be.
    #[inline]
    pub(crate) fn hop_is_fresh(&mut self, now: Instant, hop: Hop) -> bool {
        self.neighbours.is_fresh(now, hop.place)
    }

    /// `hop` leads somewhere under the addresses and routes of now.
    #[inline]
    fn is_current(&self, hop: Hop) -> bool {
        self.neighbours.is_current(hop.place)
    }

    /// The link has addresses.
    #[inline(always)]
    pub(crate) const fn has_neighbours(&self) -> bool {
        matches!(self.medium, Medium::Ethernet(_))
    }

    /// The peer behind `hop` made progress, so the neighbour is there (RFC 4861 §7.3.1).
    #[inline(always)]
    pub(crate) fn confirm(&mut self, now: Instant, hop: Option<Hop>) {
        if self.has_neighbours()
            && let Some(hop) = hop
            && !self.confirmed.is_some_and(|(until, last)| last == hop && now < until)
        {
            core::hint::cold_path();
            self.confirm_neighbour(now, hop);
        }
    }

    #[inline(never)]
    fn confirm_neighbour(&mut self, now: Instant, hop: Hop) {
        self.confirmed = Some((now + CONFIRM_APART, hop));
        self.neighbours.confirm(now, hop.place);
    }

    /// Bytes of the headers before a transport header, on the way to `dst`.
    #[inline]
    pub(crate) fn header_bytes(&self, dst: &IpAddr) -> usize {
        self.link_header_bytes() + ip_header_bytes(dst)
    }

    /// Bytes of the link's header.
    #[inline]
    fn link_header_bytes(&self) -> usize {
        match (self.medium, self.vlan) {
            (Medium::Ip, _) => 0,
            (Medium::Ethernet(_), None) => ethernet::HEADER_BYTES,
            (Medium::Ethernet(_), Some(_)) => ethernet::HEADER_BYTES + ethernet::TAG_BYTES,
        }
    }

    /// Destination and source of a frame that goes by `hop`, if the medium has addresses. `None`:
    /// there is more to its header than these, or it stays here.
    #[inline(always)]
    pub(crate) fn fast_link(&self, hop: Hop) -> Option<LinkEnds> {
        match (self.medium, self.vlan) {
            (Medium::Ip, _) => (!hop.is_local()).then_some(None),
            (Medium::Ethernet(_), None) => self.neighbours.link(hop.place).map(Some),
            (Medium::Ethernet(_), Some(_)) => None,
        }
    }

    /// The link address that frames by `hop` go to: our own, where they stay here.
    fn link_address(&self, hop: Hop) -> [u8; 6] {
        let link = self.neighbours.link(hop.place);
        link.map_or_else(|| self.medium.link_address(), ethernet::AddressWords::dst)
    }

    /// Writes the headers of link and IP to the start of `frame`: [`Ip::header_bytes`] of them.
    /// `hop` was ready, or fresh, in this turn.
    #[inline]
    pub(crate) fn write_headers(&mut self, frame: &mut [u8], hop: Hop, departing: &Departing) {
        let ethertype = if departing.dst.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        let at = self.write_link_header(frame, self.link_address(hop), ethertype);
        self.write_ip_header(&mut frame[at..], departing);
    }

    fn write_ip_header(&mut self, packet: &mut [u8], departing: &Departing) {
        match (departing.src, departing.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let repr = ipv4::Repr {
                    src,
                    dst,
                    protocol: departing.protocol.number(),
                    ttl: departing.service.hop_limit,
                    dscp: departing.service.dscp,
                    ecn: departing.ecn,
                    identification: self.identification_for(departing.dont_fragment),
                    dont_fragment: departing.dont_fragment,
                    more_fragments: false,
                    fragment_offset: 0,
                    payload_bytes: departing.payload_bytes,
                };
                repr.emit(packet);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let repr = ipv6::Repr {
                    src,
                    dst,
                    next_header: departing.protocol.number(),
                    hop_limit: departing.service.hop_limit,
                    dscp: departing.service.dscp,
                    ecn: departing.ecn,
                    payload_bytes: departing.payload_bytes,
                };
                repr.emit(packet);
            }
            _ => debug_assert!(false, "addresses of two families in one packet"),
        }
    }

    /// A packet that must not be fragmented needs no unique identification (RFC 6864 §4.1).
    fn identification_for(&mut self, dont_fragment: bool) -> u16 {
        if dont_fragment {
            return 0;
        }
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }

    /// The largest packet in bytes that reaches `dst`, as far as we know.
    #[inline]
    pub(crate) fn path_mtu(&self, dst: HostAddress) -> u16 {
        self.path_mtus.get(dst).unwrap_or(self.mtu)
    }

    /// The largest payload in bytes of a packet to `dst`.
    #[inline]
    pub(crate) fn payload_bytes_max(&self, dst: HostAddress) -> u16 {
        let header_bytes = if dst.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        self.path_mtu(dst).saturating_sub(header_bytes as u16)
    }

    /// A transport recognised the packet that [`IcmpErrorKind::FragmentationNeeded`] quotes as one
    /// that it sent: packets to `dst` may have `mtu` bytes.
    pub(crate) fn learn_path_mtu(&mut self, now: Instant, dst: IpAddr, mtu: u16) {
        if mtu < self.path_mtu(dst.into()) {
            self.path_mtus.learn(now, dst, mtu);
        }
    }

    /// Writes the next frame of ARP, neighbour discovery or ICMP.
    #[inline(always)]
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        counters: &mut Counters,
    ) -> Option<Transmit> {
        if self.is_silent(now) { None } else { self.next_message(now, frame, counters) }
    }

    fn next_message(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        counters: &mut Counters,
    ) -> Option<Transmit> {
        if let Some(len) = self.poll_link(now, frame) {
            return Some(Transmit::new(len));
        }
        while let Some(next) = self.outbox.next() {
            let message = next.message;
            let NextHop::Ready(hop) = self.next_hop(now, message.dst.into()) else {
                self.outbox.park();
                if self.via(message.dst).is_none() {
                    let dropped = self.outbox.on_neighbour(false, |dst| dst == message.dst);
                    (0..dropped).for_each(|_| counters.drop(Drop::NextHopUnresolved));
                }
                continue;
            };
            if self.is_cut(&next) {
                let len = self.write_part(frame, hop, &next);
                counters.totals.icmp_out += u64::from(next.taken == 0);
                return Some(Transmit::new(len).staying(hop.is_local()));
            }
            let departing = Departing {
                src: message.src,
                dst: message.dst,
                protocol: message.protocol,
                service: Service::default(),
                ecn: Ecn::NotEct,
                payload_bytes: message.len,
                dont_fragment: false,
            };
            let at = self.header_bytes(&message.dst);
            self.write_headers(frame, hop, &departing);
            self.outbox.take(&mut frame[at..at + message.len]);
            counters.totals.icmp_out += 1;
            let len = at + message.len;
            return Some(Transmit::new(len).staying(hop.is_local()));
        }
        // Asking for the next hop of a message may have made a question.
        let len = self.poll_link(now, frame)?;
        Some(Transmit::new(len))
    }

    /// There is nothing to send, and nothing to ask: asked for every frame of a transport.
    #[inline(always)]
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.outbox.is_silent() && (matches!(self.medium, Medium::Ip) || self.has_silent_link(now))
    }

    #[inline(always)]
    fn has_silent_link(&self, now: Instant) -> bool {
        if let Some(at) = self.membership.poll_timeout() {
            // Reports are due for some seconds after a start, and when a router asks.
            core::hint::cold_path();
            if at <= now {
                return false;
            }
        }
        self.answers.is_empty() && self.neighbours.has_no_request()
    }

    /// Looks after what waits for time to pass.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.neighbours.on_timeout(now);
        self.path_mtus.on_timeout(now);
    }

    /// When [`Ip::on_timeout`] has something to do, at the earliest.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [
            self.neighbours.poll_timeout(),
            self.path_mtus.poll_timeout(),
            self.membership.poll_timeout(),
        ];
        timers.into_iter().flatten().min()
    }

    /// [`Ip::poll_timeout`] is not after `now`.
    #[inline(always)]
    pub(crate) fn has_timer_due(&self, now: Instant) -> bool {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        is_due(self.neighbours.poll_timeout())
            || is_due(self.path_mtus.poll_timeout())
            || is_due(self.membership.poll_timeout())
    }

    /// [`Ip::poll_neighbour`] has an answer.
    #[inline(always)]
    pub(crate) fn has_decided_neighbour(&self) -> bool {
        self.neighbours.has_decided()
    }

    /// The next neighbour that was found, or given up: who, and which of both.
    #[inline(always)]
    pub(crate) fn poll_neighbour(&mut self, counters: &mut Counters) -> Option<(IpAddr, bool)> {
        let (neighbour, resolved) = self.neighbours.poll_decided()?;
        self.on_decided(neighbour, resolved, counters);
        Some((neighbour, resolved))
    }

    /// What waits for `neighbour` leaves, or is given up.
    #[inline(never)]
    fn on_decided(&mut self, neighbour: IpAddr, resolved: bool, counters: &mut Counters) {
        let Self { outbox, routes, addresses, .. } = self;
        let concerns = |dst| routes.via(dst, addresses) == Some(neighbour);
        let dropped = outbox.on_neighbour(resolved, concerns);
        (0..dropped).for_each(|_| counters.drop(Drop::NextHopUnresolved));
    }

    /// With `external_neighbours`: returns the next unresolved neighbour, which the caller passes
    /// to [`Ip::set_neighbour`].
    pub(crate) fn poll_wanted(&mut self, now: Instant) -> Option<IpAddr> {
        if !self.external_neighbours {
            return None;
        }
        self.neighbours.poll_question(now).map(|question| question.ip)
    }
}

/// Bytes of the IP header of a packet to `dst`.
#[inline]
pub(crate) const fn ip_header_bytes(dst: &IpAddr) -> usize {
    match dst {
        IpAddr::V4(_) => ipv4::HEADER_BYTES,
        IpAddr::V6(_) => ipv6::HEADER_BYTES,
    }
}

/// Eight bytes of a stack's secret, as a number.
fn seed_of(secret: &[u8; 32]) -> u64 {
    secret.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
