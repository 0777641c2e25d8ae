//! What carries segments and datagrams: our addresses, where packets go next, who is there.
//!
//! Read first: RFC 1122 §3, RFC 8200, RFC 8504. `address.rs` says who we are, `route.rs` where a
//! packet goes next, `neighbour.rs` which link address that is, `path_mtu.rs` how large it may
//! be. Fragments are put together in `reassembly.rs`, ICMP is in `icmp.rs`.
//!
//! Invariants
//! - We are a host: nothing is forwarded, and redirects and router advertisements are ignored.
//!   Routes come from the configuration or from whoever calls [`crate::Stack::set_routes`].
//! - Every table has a ceiling in `limits.rs`; what is over it is dropped and counted.
//! - A [`Hop`] may be kept, and is worth nothing after the routes or its neighbour changed:
//!   [`Ip::hop_is_fresh`] says so.

pub(crate) mod address;
pub(crate) mod neighbour;
pub(crate) mod route;

use core::net::{IpAddr, SocketAddr};

use crate::config::Config;
use crate::error::ConfigError;
use crate::frame::{Checksums, Medium};
use crate::limits::HOP_LIMIT;
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::{Ecn, Protocol, ethernet, ipv4, ipv6};
use address::Addresses;
use route::Routes;

/// A packet for a transport: whole, for one of our addresses, from a source that may be one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived<'a> {
    /// Who sent it.
    pub src: IpAddr,
    /// Which of our addresses it was sent to.
    pub dst: IpAddr,
    /// Congestion marks.
    pub ecn: Ecn,
    /// Hops that it could still have gone.
    pub hop_limit: u8,
    /// From the transport header on.
    pub payload: &'a [u8],
    /// What is known about the transport checksum.
    pub checksums: Checksums,
    /// Payload bytes of each segment that the link merged; 0: not merged.
    pub segment_bytes: u16,
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
    /// Congestion marks.
    pub ecn: Ecn,
    /// Transport header and payload, in bytes.
    pub payload_bytes: usize,
    /// IPv4: routers may not cut it.
    pub dont_fragment: bool,
}

/// An ICMP error about a packet that says it is ours. Whoever sent it has seen the packet, or
/// guessed: the transport believes it only as far as the quoted numbers fit (RFC 5927 §4).
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
    /// Somebody did not understand its header.
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
    /// Nobody listens.
    Port,
    /// An administrator forbids it.
    Prohibited,
}

/// The way to a neighbour. Eight bytes, for a connection to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Place in the neighbour table; [`Hop::NO_NEIGHBOUR`] where the medium has no addresses.
    slot: u16,
    /// Which of the neighbours that ever were in that place.
    generation: u16,
    /// Which of the sets of routes and addresses that ever were.
    epoch: u32,
}

impl Hop {
    const NO_NEIGHBOUR: u16 = u16::MAX;
}

const _: () = assert!(size_of::<Hop>() == 8);

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

/// The state of this layer.
pub(crate) struct Ip {
    medium: Medium,
    mtu: u16,
    vlan: Option<u16>,
    addresses: Addresses,
    routes: Routes,
    /// Grows whenever `addresses` or `routes` change.
    epoch: u32,
    /// Identification of the next packet that may be cut.
    identification: u16,
}

impl Ip {
    /// Makes the layer as `config` says.
    ///
    /// # Errors
    ///
    /// Which of the settings of this layer is wrong, and why.
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let addresses = Addresses::new(&config.addresses, config.medium, config.mtu)?;
        Ok(Self {
            medium: config.medium,
            mtu: config.mtu,
            vlan: config.vlan,
            routes: Routes::new(&config.routes)?,
            addresses,
            epoch: 0,
            identification: 0,
        })
    }

    /// `ip` is an address of ours.
    #[inline]
    pub(crate) fn is_ours(&self, ip: IpAddr) -> bool {
        self.addresses.contains(ip)
    }

    /// The address that packets to `dst` are best sent from. `None`: there is no route, or no
    /// address of that family.
    pub(crate) fn source_for(&self, dst: IpAddr) -> Option<IpAddr> {
        let via = self.via(dst)?;
        self.addresses.source_for(dst, via)
    }

    /// The neighbour that packets to `dst` go to: `dst` itself, or a router. `None`: no route.
    pub(crate) fn via(&self, dst: IpAddr) -> Option<IpAddr> {
        if !address::is_unicast(dst) || self.is_ours(dst) || self.addresses.is_broadcast(dst) {
            return None;
        }
        self.routes.via(dst, &self.addresses)
    }

    /// The way to `dst`. Asks the link for the neighbour where that is not known.
    pub(crate) fn next_hop(&mut self, _now: Instant, dst: IpAddr) -> NextHop {
        let Some(_via) = self.via(dst) else { return NextHop::NoRoute };
        match self.medium {
            Medium::Ip => {
                NextHop::Ready(Hop { slot: Hop::NO_NEIGHBOUR, generation: 0, epoch: self.epoch })
            }
            Medium::Ethernet(_) => NextHop::NoRoute,
        }
    }

    /// `hop` may still be used, and is about to be.
    #[inline]
    pub(crate) fn hop_is_fresh(&mut self, _now: Instant, hop: Hop) -> bool {
        hop.epoch == self.epoch && hop.slot == Hop::NO_NEIGHBOUR
    }

    /// The peer behind `hop` made progress, so the neighbour is there (RFC 4861 §7.3.1).
    #[inline]
    pub(crate) fn confirm(&mut self, _now: Instant, _hop: Hop) {}

    /// Bytes of the headers before a transport header, on the way to `dst`.
    #[inline]
    pub(crate) fn header_bytes(&self, dst: &IpAddr) -> usize {
        self.link_header_bytes()
            + match dst {
                IpAddr::V4(_) => ipv4::HEADER_BYTES,
                IpAddr::V6(_) => ipv6::HEADER_BYTES,
            }
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

    /// Writes the headers of link and IP to the start of `frame`: [`Ip::header_bytes`] of them.
    #[inline]
    pub(crate) fn write_headers(&mut self, frame: &mut [u8], _hop: Hop, departing: &Departing) {
        let at = self.link_header_bytes();
        self.write_ip_header(&mut frame[at..], departing);
    }

    fn write_ip_header(&mut self, packet: &mut [u8], departing: &Departing) {
        match (departing.src, departing.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let repr = ipv4::Repr {
                    src,
                    dst,
                    protocol: departing.protocol.number(),
                    ttl: HOP_LIMIT,
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
                    hop_limit: HOP_LIMIT,
                    ecn: departing.ecn,
                    payload_bytes: departing.payload_bytes,
                };
                repr.emit(packet);
            }
            _ => debug_assert!(false, "addresses of two families in one packet"),
        }
    }

    /// A packet that nobody may cut needs no number of its own (RFC 6864 §4.1).
    fn identification_for(&mut self, dont_fragment: bool) -> u16 {
        if dont_fragment {
            return 0;
        }
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }

    /// The largest packet in bytes that reaches `dst`, as far as we know.
    #[inline]
    pub(crate) fn path_mtu(&self, _dst: &IpAddr) -> u16 {
        self.mtu
    }
}
