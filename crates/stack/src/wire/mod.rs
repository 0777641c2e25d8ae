//! Wire formats: parsers and builders of headers.
//!
//! Each format has two types. A `View` is a slice whose lengths were checked once; a `Repr` is
//! the parsed form, in host order, with what the stack has no use for left out.
//!
//! The panic contract
//! - `View::new` never panics. It refuses what is shorter than its own length fields say.
//! - Every accessor of a `View` that `new` made is total: it never panics, whatever the bytes.
//! - `Repr::parse` never panics. It refuses what no correct sender sends.
//! - `Repr::emit` panics if, and only if, the slice is shorter than `Repr::header_bytes` says.
//! - `parse` after `emit` gives the same `Repr`, for each `Repr` that keeps the ranges its fields
//!   are documented with.
//!
//! Nothing here allocates, and nothing here decides: whether a packet is wanted is a question for
//! `ip`, `udp` and `tcp`.

pub mod arp;
pub mod checksum;
pub(crate) mod control;
pub mod ethernet;
pub mod extension;
pub(crate) mod fast_path;
mod field;
pub(crate) mod headers;
pub mod icmp4;
pub mod icmp6;
pub mod ipv4;
pub mod ipv6;
pub mod mld;
pub mod ndp;
pub mod quote;
pub mod tcp;
pub mod udp;

/// What follows an IP header, by its number in the IANA registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// ICMP for IPv4.
    Icmp = 1,
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// ICMP for IPv6.
    Icmp6 = 58,
}

impl Protocol {
    /// The protocol with this number, if we speak it.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Icmp),
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            58 => Some(Self::Icmp6),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The two bits of an IP header that speak of congestion (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not understand marks.
    #[default]
    NotEct = 0,
    /// It does: ECT(1).
    Ect1 = 1,
    /// It does: ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// From the low two bits of a traffic class.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

#[cfg(test)]
mod tests;
