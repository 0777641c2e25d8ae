//! Local addresses: prefixes, broadcast, and source address selection.
//!
//! Read first: RFC 1122 §3.2.1.3 (IPv4 addresses), RFC 4291 §2 (IPv6 addresses), RFC 6724 §5
//! (which source address).
//!
//! Invariants
//! - At most [`ADDRESSES_MAX`] of them; the list is short, and is walked.
//! - On Ethernet a host that speaks IPv6 has a link-local address (RFC 4291 §2.8): where none is
//!   given, it is made of the link's (RFC 2464 §5).
//! - Addresses are configured. There is no duplicate address detection (RFC 4862 §5.4), but
//!   conflicting claims are counted.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use crate::error::ConfigError;
use crate::frame::Medium;
use crate::limits::{ADDRESSES_MAX, MTU_MIN_V6};

/// One of our addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Own {
    ip: IpAddr,
    prefix_bits: u8,
}

/// Our addresses.
#[derive(Debug)]
pub(crate) struct Addresses {
    own: Vec<Own>,
}

impl Addresses {
    /// Those of `given`, each with the length of its prefix, and the link-local one.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them.
    pub(crate) fn new(
        given: &[(IpAddr, u8)],
        medium: Medium,
        mtu: u16,
    ) -> Result<Self, ConfigError> {
        let refuse = |why| Err(ConfigError { setting: "addresses", why });
        if given.len() > ADDRESSES_MAX {
            return refuse("too many");
        }
        let mut own: Vec<Own> = Vec::with_capacity(ADDRESSES_MAX + 1);
        for (ip, prefix_bits) in given {
            if *prefix_bits > bits(*ip) {
                return refuse("a prefix longer than its address");
            }
            if !is_unicast(*ip) {
                return refuse("not an address that a host can have");
            }
            if ip.is_ipv6() && mtu < MTU_MIN_V6 {
                return refuse("IPv6 needs an mtu of 1280");
            }
            if own.iter().any(|other| other.ip == *ip) {
                return refuse("the same address twice");
            }
            own.push(Own { ip: *ip, prefix_bits: *prefix_bits });
        }
        let speaks_v6 = own.iter().any(|own| own.ip.is_ipv6());
        let has_link_local = own.iter().any(|own| is_link_local(own.ip));
        if let (Medium::Ethernet(mac), true, false) = (medium, speaks_v6, has_link_local) {
            own.push(Own { ip: IpAddr::V6(link_local_of(mac)), prefix_bits: 64 });
        }
        Ok(Self { own })
    }

    /// `ip` is one of ours.
    #[inline]
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.ip == ip)
    }

    /// Our addresses, the link-local one included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = IpAddr> + Clone + '_ {
        self.own.iter().map(|own| own.ip)
    }

    /// Whether `ip` is a broadcast address of the link or of one of our prefixes (RFC 1122
    /// §3.2.1.3; also in the old form with zeroes).
    pub(crate) fn is_broadcast(&self, ip: IpAddr) -> bool {
        let IpAddr::V4(ip) = ip else { return false };
        if ip.is_broadcast() {
            return true;
        }
        self.own.iter().any(|own| match own.ip {
            // A prefix of 31 bits has no broadcast address (RFC 3021), one of 32 no others.
            IpAddr::V4(ours) if own.prefix_bits < 31 => {
                let host = u32::MAX >> own.prefix_bits;
                let (ip, ours) = (ip.to_bits(), ours.to_bits());
                ip & !host == ours & !host && (ip & host == host || ip & host == 0)
            }
            _ => false,
        })
    }

    /// The longest of our prefixes that `ip` lies in, in bits.
    pub(crate) fn on_link_bits(&self, ip: IpAddr) -> Option<u8> {
        self.own
            .iter()
            .filter(|own| shared_bits(own.ip, ip).is_some_and(|shared| shared >= own.prefix_bits))
            .map(|own| own.prefix_bits)
            .max()
    }

    /// The address to send from to `dst`, by way of the neighbour `via`.
    ///
    /// IPv4: one in the neighbour's prefix, or else the first (RFC 1122 §3.3.4.3). IPv6: one of
    /// the same scope first, then the longest common prefix (RFC 6724 §5, rules 2 and 8).
    pub(crate) fn source_for(&self, dst: IpAddr, via: IpAddr) -> Option<IpAddr> {
        let mut best: Option<(bool, u8, IpAddr)> = None;
        for own in &self.own {
            let shares = if dst.is_ipv4() { via } else { dst };
            let Some(shared) = shared_bits(own.ip, shares) else { continue };
            let near = match dst {
                IpAddr::V4(_) => shared >= own.prefix_bits,
                IpAddr::V6(_) => is_link_local(own.ip) == is_link_local(dst),
            };
            // Bits beyond the prefix say nothing about how near two hosts are.
            let shared = shared.min(own.prefix_bits);
            if best.is_none_or(|(was_near, was, _)| (near, shared) > (was_near, was)) {
                best = Some((near, shared, own.ip));
            }
        }
        best.map(|(_, _, ip)| ip)
    }
}

/// Length of an address of `ip`'s family in bits.
pub(crate) const fn bits(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// How many leading bits `a` and `b` share; `None`: they are of two families.
pub(crate) const fn shared_bits(a: IpAddr, b: IpAddr) -> Option<u8> {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros() as u8),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros() as u8),
        _ => None,
    }
}

/// Whether `ip` is a unicast address: not multicast, broadcast, unspecified or loopback. A source
/// must be one (RFC 1122 §3.2.1.3, RFC 4291 §2.5, §2.7).
pub(crate) const fn is_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let first = ip.octets()[0];
            // 0/8 is "this network", 127/8 never leaves a host, 224/3 are groups and the rest
            // that was never given out.
            first != 0 && first != 127 && first < 224
        }
        IpAddr::V6(ip) => {
            // The mapped form never appears on a wire (RFC 4942 §2.2).
            !ip.is_multicast()
                && !ip.is_unspecified()
                && !ip.is_loopback()
                && ip.to_ipv4_mapped().is_none()
        }
    }
}

/// `ip` is a loopback address that a host can have; 127.255.255.255 is a broadcast address.
pub(crate) const fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() && ip.to_bits() != 0x7fff_ffff,
        IpAddr::V6(ip) => ip.is_loopback(),
    }
}

/// `ip` means something on one link only (RFC 4291 §2.5.6).
pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The group that a neighbour solicitation for `ip` goes to (RFC 4291 §2.7.1).
pub(crate) const fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let low = ip.to_bits() & 0x00ff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

/// The Ethernet address of an IPv6 group (RFC 2464 §7).
pub(crate) const fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

/// fe80::/64 with the modified EUI-64 of `mac` (RFC 2464 §4, §5).
const fn link_local_of(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits((0xfe80_u128 << 112) | id as u128)
}

#[cfg(test)]
mod tests;
