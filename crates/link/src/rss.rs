//! Receive side scaling (RSS): the receive queue of a packet, for devices that report how they
//! chooses.
//!
//! Read first: Microsoft, "RSS hashing types" and "Verifying the RSS hash calculation", where the
//! function and its test vectors come from; `toeplitz.rs`; the kernel's
//! `Documentation/networking/scaling.rst`. `ethtool.rs` beside the crate's root asks a device.
//!
//! ```text
//!   addresses, and ports where they count --Toeplitz, under the device's key--> 32 bits
//!   the low bits --indirection table--> a queue
//! ```
//!
//! Pure. A wrong answer here costs a hand-over between cores and never a flow: what a device puts
//! elsewhere than it said is steered like any other frame (`megapipe_service`'s switch).
//!
//! Invariants
//! - The table's length is a power of two, so that a hash's low bits are an index into it.
//! - A queue is the number of a link among those opened together, or unowned.

use std::net::{IpAddr, SocketAddr};

use crate::Transport;
use crate::limits::{RSS_KEY_BYTES_MAX, RSS_TABLE_ENTRIES_MAX};

mod toeplitz;

pub use toeplitz::Toeplitz;

/// The shortest key: as long as the longest input, an IPv6 packet's addresses and ports, and one
/// window of 32 bits.
pub const KEY_BYTES_MIN: usize = toeplitz::INPUT_BYTES_MAX + 4;

const _: () = assert!(KEY_BYTES_MIN <= RSS_KEY_BYTES_MAX);

/// Which fields of a packet count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fields {
    /// The addresses of both hosts.
    Hosts,
    /// These, and both ports.
    HostsAndPorts,
}

/// Which fields count, by what a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldsByKind {
    /// TCP over IPv4.
    pub tcp4: Fields,
    /// TCP over IPv6.
    pub tcp6: Fields,
    /// UDP over IPv4.
    pub udp4: Fields,
    /// UDP over IPv6.
    pub udp6: Fields,
}

impl FieldsByKind {
    /// Addresses and ports of everything that has some.
    pub const ALL: Self = {
        let all = Fields::HostsAndPorts;
        Self { tcp4: all, tcp6: all, udp4: all, udp6: all }
    };

    const fn of(&self, transport: Transport, is_ipv4: bool) -> Fields {
        match (transport, is_ipv4) {
            (Transport::Tcp, true) => self.tcp4,
            (Transport::Tcp, false) => self.tcp6,
            (Transport::Udp, true) => self.udp4,
            (Transport::Udp, false) => self.udp6,
        }
    }
}

/// Why a device's words about its queues are of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RssError {
    /// The key is too short for IPv6 with ports, or longer than any device's.
    #[error("a key has {KEY_BYTES_MIN} to {RSS_KEY_BYTES_MAX} bytes, not {bytes}")]
    Key {
        /// How long it is.
        bytes: usize,
    },
    /// The low bits of a hash are no index into such a table.
    #[error("a table has a power of two of entries up to {RSS_TABLE_ENTRIES_MAX}, not {entries}")]
    Table {
        /// How many it has.
        entries: usize,
    },
}

/// How a device spreads what it receives over its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rss {
    toeplitz: Toeplitz,
    /// By the low bits of a hash: the link; `None`: a queue that is not open.
    table: Box<[Option<u16>]>,
    fields: FieldsByKind,
}

impl Rss {
    /// The device's key, its indirection table by the numbers of our links, and what it looks at.
    ///
    /// # Errors
    /// [`RssError`].
    pub fn new(
        key: &[u8],
        table: Box<[Option<u16>]>,
        fields: FieldsByKind,
    ) -> Result<Self, RssError> {
        if !(KEY_BYTES_MIN..=RSS_KEY_BYTES_MAX).contains(&key.len()) {
            return Err(RssError::Key { bytes: key.len() });
        }
        if !table.len().is_power_of_two() || table.len() > RSS_TABLE_ENTRIES_MAX {
            return Err(RssError::Table { entries: table.len() });
        }
        Ok(Self { toeplitz: Toeplitz::new(key), table, fields })
    }

    /// The hash of a packet that the device receives. `src` and `dst` are of one family: else 0.
    #[must_use]
    #[inline]
    pub fn hash(&self, transport: Transport, src: SocketAddr, dst: SocketAddr) -> u32 {
        let fields = self.fields.of(transport, src.is_ipv4());
        let ports = match fields {
            Fields::Hosts => None,
            Fields::HostsAndPorts => Some((src.port(), dst.port())),
        };
        match (src.ip(), dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.toeplitz.of_v4(src, dst, ports),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.toeplitz.of_v6(src, dst, ports),
            _ => 0,
        }
    }

    /// The link that packets with this hash arrive at; `None`: at a queue that is not open.
    #[must_use]
    #[inline]
    pub fn queue(&self, hash: u32) -> Option<u16> {
        self.table[hash as usize & (self.table.len() - 1)]
    }
}

#[cfg(test)]
mod tests;
