//! UDP endpoints that share a port: permission, and selection of the receiver.
//!
//! Read first: socket(7) on SO_REUSEADDR and SO_REUSEPORT. RFC 768 and RFC 1122 know one endpoint
//! at an address; what follows is what Linux does (`udp4_lib_lookup`), decision 0029.
//!
//! A datagram goes to the best matching endpoint: one with this peer before one without a peer,
//! one at this address before one at all addresses, one of its own family of
//! sockets before an IPv6 socket with IPv4 in it, and then the newest at the address. If that one
//! spreads what comes, a hash of both ends chooses among those of its address that do. (Linux also
//! looks at the CPU that a socket which has, or had, a peer got its last datagram on.)
//!
//! Invariant: an endpoint with a peer receives from that peer only. A wildcard endpoint then has
//! one local address, or receives nothing if the peer is of the other family. It leaves its
//! SO_REUSEPORT group for good, also after the peer is removed, as in Linux.

use core::net::{IpAddr, SocketAddr};

use super::{Endpoint, Udp};
use crate::config::Config;
use crate::error::OperationError;
use crate::id::DatagramId;
use crate::ip::Ip;
use crate::siphash::Sip;

/// Begins the words that the choice hangs on, so that it says nothing of other hashes.
const DOMAIN: u64 = u64::from_le_bytes(*b"datagram");

/// How an endpoint for datagrams goes with others at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramSharing {
    /// Others may have the same address, if they say so, too.
    pub is_shared: bool,
    /// What comes is spread over those of its address that say this, each peer at one of them;
    /// else the newest gets it.
    pub spreads: bool,
    /// It is at an address of IPv4, and of an IPv6 socket: those of IPv4's sockets go before it.
    pub is_mapped: bool,
    /// Those of other programs are refused where addresses overlap, unless both spread for one user
    /// (Linux: without SO_REUSEADDR).
    pub excludes_others: bool,
    /// The program that opens it, where several share the stack. Their server sets it.
    pub owner: DatagramOwner,
}

/// The program that opens an endpoint. It decides itself which of its own may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramOwner {
    /// The program, by a number that the server chooses.
    pub program: u64,
    /// Its user.
    pub user: u32,
}

impl DatagramSharing {
    /// Two endpoints of different programs may overlap (`udp_lib_lport_inuse`).
    fn goes_with(self, other: Self) -> bool {
        let spread = self.spreads && other.spreads && self.owner.user == other.owner.user;
        spread || !(self.excludes_others || other.excludes_others)
    }
}

/// A datagram could be for both of two addresses of one port.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = |it: SocketAddr| it.ip().is_unspecified();
    one.is_ipv4() == other.is_ipv4() && (one.ip() == other.ip() || is_any(one) || is_any(other))
}

/// How well an endpoint fits a datagram, the more the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    has_peer: bool,
    is_specific: bool,
    is_native: bool,
    /// Linux puts IPv6 sockets that spread at the end of its list, and all others at its front.
    is_in_front: bool,
    since: u64,
}

impl Endpoint {
    /// `None`: the datagram is not for it.
    #[inline]
    fn fit(&self, from: SocketAddr, to: SocketAddr) -> Option<Fit> {
        let is_specific = self.local.ip() == to.ip();
        let is_all = self.local.ip().is_unspecified() && self.local.is_ipv4() == to.is_ipv4();
        if !(is_specific || is_all) || self.peer.is_some_and(|peer| peer != from) {
            return None;
        }
        let DatagramSharing { spreads, is_mapped, .. } = self.sharing;
        let is_v6 = is_mapped || self.local.is_ipv6();
        Some(Fit {
            has_peer: self.peer.is_some(),
            is_specific,
            is_native: !is_mapped,
            is_in_front: !(is_v6 && spreads),
            since: self.since,
        })
    }

    /// One of those over which what comes to `other` is spread.
    fn spreads_with(&self, other: &Self) -> bool {
        self.sharing.spreads
            && self.peer.is_none()
            && self.local == other.local
            && self.sharing.is_mapped == other.sharing.is_mapped
    }
}

/// Selects among endpoints by a keyed hash, so that senders cannot predict the choice.
#[derive(Debug)]
pub(super) struct Spread {
    hasher: Sip<1, 3>,
}

impl Spread {
    pub(super) fn new(config: &Config) -> Self {
        let key = config.secret.first_chunk().copied().unwrap_or_default();
        Self { hasher: Sip::new(&key).and(DOMAIN) }
    }

    /// The number of one of `count`, the same for the same ends.
    fn choose(&self, from: SocketAddr, to: SocketAddr, count: usize) -> usize {
        let mut hasher = self.hasher;
        for ip in [from.ip(), to.ip()] {
            let bits = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                IpAddr::V6(ip) => ip.to_bits(),
            };
            hasher = hasher.and(bits as u64).and((bits >> 64) as u64);
        }
        let ports = u64::from(from.port()) << 16 | u64::from(to.port());
        let hash = hasher.finish_with(ports, 4) as u32;
        ((u64::from(hash) * count as u64) >> 32) as usize
    }
}

impl Udp {
    /// Sets the peer of an endpoint and its local address; `None` removes the peer. Returns the
    /// endpoint's local address.
    pub(crate) fn connect(
        &mut self,
        ip: &Ip,
        id: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        let before = *self.endpoint(id)?;
        let Endpoint { bound, local, .. } = before;
        let local = match peer {
            None => bound,
            Some(peer) if peer.is_ipv4() == local.is_ipv4() && local.ip().is_unspecified() => {
                let source =
                    ip.source_for(peer.ip().into()).ok_or(OperationError::BadAddress)?.ip();
                SocketAddr::new(source, local.port())
            }
            Some(_) => local,
        };
        let mut after = Endpoint { local, peer, ..before };
        if local != before.local {
            self.changes += 1;
            after.since = self.changes;
        }
        if bound.ip().is_unspecified() {
            after.sharing.spreads = false;
        }
        self.endpoints[id.index as usize] = Some(after);
        Ok(local)
    }

    /// The endpoint that gets what comes from `from` to `to`.
    pub(super) fn find(&self, from: SocketAddr, to: SocketAddr) -> Option<u32> {
        let mut best: Option<(Fit, u32)> = None;
        for index in self.ports.at(to.port()) {
            let fit = self.at(index).and_then(|endpoint| endpoint.fit(from, to));
            if let Some(fit) = fit
                && best.is_none_or(|(other, _)| fit > other)
            {
                best = Some((fit, index));
            }
        }
        let (fit, index) = best?;
        let best = self.at(index)?;
        if fit.has_peer || !best.sharing.spreads {
            return Some(index);
        }
        let is_member = |index: &u32| self.at(*index).is_some_and(|it| it.spreads_with(best));
        let count = self.ports.at(to.port()).filter(is_member).count();
        let place = self.spread.choose(from, to, count);
        self.ports.at(to.port()).filter(is_member).nth(place)
    }

    /// An endpoint of the port sent there lately.
    pub(super) fn has_sent(&self, port: u16, to: SocketAddr) -> bool {
        let has = |index| self.at(index).is_some_and(|it| it.peers.contains(&Some(to)));
        self.ports.at(port).any(has)
    }

    /// An endpoint has exactly that address, and one of the two does not share it; or it overlaps
    /// with that of another program.
    pub(super) fn is_refused(&self, local: SocketAddr, sharing: DatagramSharing) -> bool {
        let refuses = |other: &Endpoint| {
            let both_share = sharing.is_shared && other.sharing.is_shared;
            let is_same = other.bound == local && !both_share;
            let is_others = other.sharing.owner.program != sharing.owner.program;
            let meets = is_others && overlaps(other.local, local);
            is_same || (meets && !sharing.goes_with(other.sharing))
        };
        self.ports.at(local.port()).any(|index| self.at(index).is_some_and(refuses))
    }

    /// An endpoint of that port receives at the address.
    pub(super) fn is_taken(&self, local: SocketAddr) -> bool {
        let has = |index| self.at(index).is_some_and(|other| overlaps(other.local, local));
        self.ports.at(local.port()).any(has)
    }

    fn at(&self, index: u32) -> Option<&Endpoint> {
        self.endpoints.get(index as usize)?.as_ref()
    }
}
