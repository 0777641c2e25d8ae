//! Whose a flow is: a hash of its two ends under a secret key.
//!
//! SipHash-1-3, as the stack's flow table has it: a peer that does not know the key can neither
//! choose a shard nor find out which one it got. The two ends are put in order first, so that both
//! directions hash alike.

use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

/// The two ends of a flow, as a received packet names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The sender: of what is received, the peer.
    pub src: SocketAddr,
    /// The receiver: of what is received, we.
    pub dst: SocketAddr,
}

impl Ends {
    /// What the peer sends to us.
    #[must_use]
    pub const fn from_peer(remote: SocketAddr, local: SocketAddr) -> Self {
        Self { src: remote, dst: local }
    }
}

/// The hash, with its key.
#[derive(Debug, Clone, Copy)]
pub struct FlowHash(SipHasher13);

impl FlowHash {
    /// The hash under a key. Two hosts with the same key and the same number of shards agree on
    /// the shard of every flow between them.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(key))
    }

    /// The hash of a flow, the same for both directions.
    #[must_use]
    #[inline]
    pub fn of(&self, ends: &Ends) -> u32 {
        let Ends { src, dst } = ends;
        match (src.ip(), dst.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let one = u64::from(a.to_bits()) << 16 | u64::from(src.port());
                let other = u64::from(b.to_bits()) << 16 | u64::from(dst.port());
                let words = [one.min(other), one.max(other)];
                self.0.hash(words.map(u64::to_le_bytes).as_flattened()) as u32
            }
            (a, b) => {
                let one = (bits(a), src.port());
                let other = (bits(b), dst.port());
                let (low, high) = if one <= other { (one, other) } else { (other, one) };
                let ports = u128::from(low.1) << 16 | u128::from(high.1);
                let words = [low.0, high.0, ports];
                self.0.hash(words.map(u128::to_le_bytes).as_flattened()) as u32
            }
        }
    }

    /// The flow's shard, of `shards`.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, ends: &Ends, shards: u16) -> u16 {
        // The high half of the product: every shard gets the same share of the hashes, to one.
        ((u64::from(self.of(ends)) * u64::from(shards)) >> 32) as u16
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}
