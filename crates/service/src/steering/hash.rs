//! The shard of a flow: a hash of its two ends under a secret key.
//!
//! SipHash-1-3, as the stack's flow table has it: a peer that does not know the key can neither
//! choose a shard nor find out which one it got. The two ends are put in order first, so that both
//! directions hash alike.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use megapipe_stack::siphash::Sip;

/// The two ends of a flow, as a received packet names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SteeringKey {
    /// The sender: of what is received, the peer.
    pub src: SocketAddr,
    /// The receiver: of what is received, we.
    pub dst: SocketAddr,
}

impl SteeringKey {
    /// What the peer sends to us.
    #[must_use]
    pub const fn from_peer(remote: SocketAddr, local: SocketAddr) -> Self {
        Self { src: remote, dst: local }
    }

    /// Those of a packet of IPv4.
    #[inline]
    pub(super) fn of_v4(src: End4, dst: End4) -> Self {
        Self { src: src.into(), dst: dst.into() }
    }
}

/// The hash, with its key.
#[derive(Debug, Clone, Copy)]
pub struct FlowHash(Sip<1, 3>);

impl FlowHash {
    /// The hash under a key. Two hosts with the same key and the same number of shards agree on
    /// the shard of every flow between them.
    #[must_use]
    pub const fn new(key: &[u8; 16]) -> Self {
        Self(Sip::new(key))
    }

    /// The hash of a flow, the same for both directions.
    #[must_use]
    #[inline]
    pub fn of(&self, ends: &SteeringKey) -> u32 {
        let SteeringKey { src, dst } = ends;
        match (src.ip(), dst.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                self.of_v4(End4::new(a, src.port()), End4::new(b, dst.port()))
            }
            (a, b) => {
                let one = (bits(a), src.port());
                let other = (bits(b), dst.port());
                let (low, high) = if one <= other { (one, other) } else { (other, one) };
                let halves = |ip: u128| [ip as u64, (ip >> 64) as u64];
                let words = [halves(low.0), halves(high.0)];
                let sip = words.as_flattened().iter().fold(self.0, |sip, word| sip.and(*word));
                sip.finish_with(u64::from(low.1) << 16 | u64::from(high.1), 4) as u32
            }
        }
    }

    /// The hash of a flow of IPv4: twelve bytes, in two words of which the second holds the length.
    #[must_use]
    #[inline]
    pub(super) fn of_v4(&self, src: End4, dst: End4) -> u32 {
        let (low, high) = (src.0.min(dst.0), src.0.max(dst.0));
        self.0.and(low | high << 48).finish_with(high >> 16, 4) as u32
    }

    /// The flow's shard, of `shards`.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, ends: &SteeringKey, shards: u16) -> u16 {
        share_of(self.of(ends), shards)
    }
}

/// The high half of the product: every shard gets the same share of the hashes, to one.
#[inline]
pub(super) fn share_of(hash: u32, shards: u16) -> u16 {
    ((u64::from(hash) * u64::from(shards)) >> 32) as u16
}

/// One end of a flow of IPv4: the address above the port, in 48 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End4(u64);

impl End4 {
    #[inline]
    pub(super) fn new(ip: Ipv4Addr, port: u16) -> Self {
        Self(u64::from(ip.to_bits()) << 16 | u64::from(port))
    }

    #[inline]
    pub(super) const fn port(self) -> u16 {
        self.0 as u16
    }
}

impl From<End4> for SocketAddr {
    #[inline]
    fn from(end: End4) -> Self {
        Self::new(IpAddr::V4(Ipv4Addr::from_bits((end.0 >> 16) as u32)), end.port())
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}
