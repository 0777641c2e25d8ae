//! An address of either version of IP as two words, which are compared and copied as such.
//!
//! Read first: RFC 4291 §2.5.5.2 (the mapped form of IPv4 addresses).
//!
//! Invariant: an IPv4 address has its mapped form, which never appears on a wire (RFC 4942 §2.2),
//! so that no other address is the same.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What is before an IPv4 address in the second word of its mapped form.
const MAPPED: u64 = u64::from_ne_bytes([0, 0, 0xff, 0xff, 0, 0, 0, 0]);
/// The bits of `MAPPED`.
const MAPPED_MASK: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);

/// An address, in the order of a header, wherever it lies.
#[derive(Clone, Copy)]
pub(crate) struct HostAddress([[u8; 8]; 2]);

const _: () = assert!(size_of::<HostAddress>() == 16 && align_of::<HostAddress>() == 1);

impl HostAddress {
    /// The unspecified address of IPv6.
    pub(crate) const UNSPECIFIED: Self = Self([[0; 8]; 2]);

    /// The words of the address, as they lie in memory.
    #[inline(always)]
    const fn words(self) -> [u64; 2] {
        let Self([first, second]) = self;
        [u64::from_ne_bytes(first), u64::from_ne_bytes(second)]
    }

    #[inline(always)]
    pub(crate) const fn of_ipv4(ip: Ipv4Addr) -> Self {
        let [a, b, c, d] = ip.octets();
        Self([[0; 8], (MAPPED | u64::from_ne_bytes([0, 0, 0, 0, a, b, c, d])).to_ne_bytes()])
    }

    #[inline(always)]
    pub(crate) const fn of_ipv6(ip: Ipv6Addr) -> Self {
        let bits = ip.to_bits();
        Self([((bits >> 64) as u64).to_be_bytes(), (bits as u64).to_be_bytes()])
    }

    /// The address of IPv4; `None`: it is one of IPv6.
    #[inline(always)]
    pub(crate) const fn ipv4(self) -> Option<Ipv4Addr> {
        let [first, second] = self.words();
        let Self([_, [.., a, b, c, d]]) = self;
        if first == 0 && second & MAPPED_MASK == MAPPED {
            Some(Ipv4Addr::new(a, b, c, d))
        } else {
            None
        }
    }

    /// It is an address of IPv4.
    #[inline(always)]
    pub(crate) const fn is_ipv4(self) -> bool {
        self.ipv4().is_some()
    }

    /// The address as one of its version.
    #[inline]
    pub(crate) const fn ip(self) -> IpAddr {
        match self.ipv4() {
            Some(ip) => IpAddr::V4(ip),
            None => IpAddr::V6(self.ipv6()),
        }
    }

    /// The address as one of IPv6, that of IPv4 in its mapped form.
    #[inline(always)]
    pub(crate) const fn ipv6(self) -> Ipv6Addr {
        let Self([first, second]) = self;
        let [first, second] = [u64::from_be_bytes(first), u64::from_be_bytes(second)];
        Ipv6Addr::from_bits((first as u128) << 64 | second as u128)
    }
}

impl PartialEq for HostAddress {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b], [other_a, other_b]) = (self.words(), other.words());
        (a ^ other_a) | (b ^ other_b) == 0
    }
}

impl Eq for HostAddress {}

impl From<IpAddr> for HostAddress {
    #[inline(always)]
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::of_ipv4(ip),
            IpAddr::V6(ip) => Self::of_ipv6(ip),
        }
    }
}

impl From<Ipv4Addr> for HostAddress {
    #[inline(always)]
    fn from(ip: Ipv4Addr) -> Self {
        Self::of_ipv4(ip)
    }
}

impl From<Ipv6Addr> for HostAddress {
    #[inline(always)]
    fn from(ip: Ipv6Addr) -> Self {
        Self::of_ipv6(ip)
    }
}

impl fmt::Debug for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_comes_back_and_equals_itself_alone(
            ip in prop_oneof![
                any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
                any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
                (0_u128..1 << 34).prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
            ],
            bit in 0_u32..128,
        ) {
            let address = HostAddress::from(ip);
            prop_assert_eq!(address.ip(), ip);
            prop_assert_eq!(address.ipv4().is_some(), ip.is_ipv4());
            let other: HostAddress = match ip {
                IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() ^ 1 << (bit % 32)).into(),
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() ^ 1 << bit).into(),
            };
            prop_assert!(address == HostAddress::from(ip) && address != other);
        }
    }
}
