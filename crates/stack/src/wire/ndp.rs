//! Neighbour discovery (RFC 4861 §4.3, §4.4): solicitations and advertisements of neighbours.
//!
//! ```text
//! type (1) | 0 (1) | checksum (2) | R S O, reserved (4) | target (16) | options
//! ```
//!
//! Invariants
//! - What a receiver must check (§7.1.1, §7.1.2) is checked here, but for the hop limit of 255 and
//!   the addresses of the IP header.
//! - Routers' messages and redirects are not read: a host gets its routes from its configuration.

use core::net::Ipv6Addr;

use super::field::{array_at, put_u32, rest, u8_at, u32_at};
use super::{ethernet, icmp6};
use crate::counters::Drop;

/// The hop limit of every message of neighbour discovery: it came from the link itself (§3.1).
pub const HOP_LIMIT: u8 = 255;
/// Type of a router solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// Type of a router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Type of a neighbour solicitation.
pub const SOLICITATION: u8 = 135;
/// Type of a neighbour advertisement.
pub const ADVERTISEMENT: u8 = 136;
/// Type of a redirect.
pub const REDIRECT: u8 = 137;

const FIXED_BYTES: usize = 24;
const OPTION_BYTES: usize = 8;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

/// A solicitation or an advertisement whose lengths were checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length, and that the options' lengths lead to the end.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`], or [`Drop::BadNeighbourMessage`] for an option without length.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        if bytes.len() < FIXED_BYTES {
            return Err(Drop::Truncated);
        }
        let mut options = rest(bytes, FIXED_BYTES);
        while !options.is_empty() {
            let len = usize::from(u8_at(options, 1)) * 8;
            if len == 0 {
                return Err(Drop::BadNeighbourMessage);
            }
            options = options.get(len..).ok_or(Drop::Truncated)?;
        }
        Ok(Self { bytes })
    }

    /// Type.
    #[must_use]
    pub fn kind(&self) -> u8 {
        u8_at(self.bytes, 0)
    }

    /// Code.
    #[must_use]
    pub fn code(&self) -> u8 {
        u8_at(self.bytes, 1)
    }

    /// Whose address it is about.
    #[must_use]
    pub fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(array_at(self.bytes, 8).unwrap_or_default())
    }

    fn flags(&self) -> u32 {
        u32_at(self.bytes, 4)
    }

    /// The address of the first option of that kind.
    fn mac(&self, option_kind: u8) -> Option<[u8; 6]> {
        let mut options = rest(self.bytes, FIXED_BYTES);
        while let [kind, len, ..] = options {
            if (*kind, *len) == (option_kind, 1) {
                return array_at(options, 2);
            }
            options = rest(options, usize::from(*len).max(1) * 8);
        }
        None
    }
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr {
    /// Request for the link address of `target`.
    Solicitation {
        /// Whose address is asked for.
        target: Ipv6Addr,
        /// The asker's address on the link.
        source_mac: Option<[u8; 6]>,
    },
    /// The sender has `target`.
    Advertisement {
        /// Whose address it is.
        target: Ipv6Addr,
        /// Its address on the link.
        target_mac: Option<[u8; 6]>,
        /// The sender is a router.
        router: bool,
        /// Sent in answer to a solicitation.
        solicited: bool,
        /// It replaces what is known.
        replaces: bool,
    },
}

impl Repr {
    /// What `view` says. The checksum is not looked at: `icmp6` did that.
    ///
    /// # Errors
    ///
    /// [`Drop::BadNeighbourMessage`]: another type or code, a target that is a group, or a group's
    /// address on the link.
    pub fn parse(view: &View<'_>) -> Result<Self, Drop> {
        let target = view.target();
        let wanted = if view.kind() == SOLICITATION { OPTION_SOURCE } else { OPTION_TARGET };
        let mac = view.mac(wanted);
        if view.code() != 0 || target.is_multicast() || mac.is_some_and(ethernet::is_group) {
            return Err(Drop::BadNeighbourMessage);
        }
        let flags = view.flags();
        match view.kind() {
            SOLICITATION => Ok(Self::Solicitation { target, source_mac: mac }),
            ADVERTISEMENT => Ok(Self::Advertisement {
                target,
                target_mac: mac,
                router: flags & ROUTER != 0,
                solicited: flags & SOLICITED != 0,
                replaces: flags & OVERRIDE != 0,
            }),
            _ => Err(Drop::BadNeighbourMessage),
        }
    }

    /// Length of the message in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        match self {
            Self::Solicitation { source_mac: None, .. }
            | Self::Advertisement { target_mac: None, .. } => FIXED_BYTES,
            _ => FIXED_BYTES + OPTION_BYTES,
        }
    }

    /// Writes the message to the start of `bytes`, with a checksum that covers a pseudo header
    /// that sums to `pseudo_header`.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Repr::header_bytes`].
    pub fn emit(&self, bytes: &mut [u8], pseudo_header: u16) {
        let message = &mut bytes[..self.header_bytes()];
        let (kind, target, option_kind, mac, flags) = match *self {
            Self::Solicitation { target, source_mac } => {
                (SOLICITATION, target, OPTION_SOURCE, source_mac, 0)
            }
            Self::Advertisement { target, target_mac, router, solicited, replaces } => {
                let flag = |is: bool, bit| if is { bit } else { 0 };
                let flags =
                    flag(router, ROUTER) | flag(solicited, SOLICITED) | flag(replaces, OVERRIDE);
                (ADVERTISEMENT, target, OPTION_TARGET, target_mac, flags)
            }
        };
        message[0..2].copy_from_slice(&[kind, 0]);
        put_u32(message, 4, flags);
        message[8..24].copy_from_slice(&target.octets());
        if let Some(mac) = mac {
            message[24..26].copy_from_slice(&[option_kind, 1]);
            message[26..32].copy_from_slice(&mac);
        }
        icmp6::write_checksum(message, pseudo_header);
    }
}
