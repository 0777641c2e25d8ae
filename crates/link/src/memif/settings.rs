//! How a memif is to be, and what of it the peer has to agree with.

use std::path::PathBuf;

use super::control::{FixedText, SECRET_BYTES};
use super::handshake::Terms;
use super::session::WantedMemory;
use crate::limits::{
    ETHERNET_HEADER_BYTES, MEMIF_BUFFER_BYTES_MAX, MEMIF_BUFFER_BYTES_MIN, MEMIF_FRAME_BYTES_MAX,
    MEMIF_QUEUE_COUNT_MAX, MEMIF_RING_SIZE_LOG2_MAX, MEMIF_RING_SIZE_LOG2_MIN,
};
use crate::{LinkError, LinkMedium, MacAddress};

/// What a peer calls itself that is this driver.
pub(super) const OWN_NAME: &str = "megapipe";

/// Which end of the cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemifRole {
    /// Listens; the *master* of older documents.
    Server,
    /// Connects and owns the memory; the *slave* of older documents.
    Client,
}

/// How a memif is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemifSettings {
    /// Where the server listens: a path, or `@name` for a name without a file.
    pub socket: PathBuf,
    /// Which interface on that socket. Both ends say the same.
    pub id: u32,
    /// At most 24 bytes that a client has to know; empty: none. Both ends say the same.
    pub secret: String,
    /// What a frame starts with. Both ends say the same.
    pub medium: LinkMedium,
    /// Our address, for [`LinkMedium::Ethernet`].
    pub mac: MacAddress,
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// Queues, each a link: wanted by a client, at most taken by a server. 1 to 64.
    pub queue_count: u16,
    /// Slots of a ring, as a power of two: wanted by a client, at most taken by a server. 1 to 14.
    pub ring_size_log2: u8,
    /// Bytes of one buffer, 64 to 65,536; longer frames are chained. The client's word counts.
    pub buffer_bytes: u32,
    /// What the peer shows as our name, at most 31 bytes.
    pub name: String,
}

impl MemifSettings {
    /// DPDK's defaults for everything but `socket` and `mac`: 1 queue, 1024 slots of 2048 bytes,
    /// an MTU of 1500.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, mac: MacAddress) -> Self {
        Self {
            socket: socket.into(),
            id: 0,
            secret: String::new(),
            medium: LinkMedium::Ethernet,
            mac,
            mtu: 1500,
            queue_count: 1,
            ring_size_log2: 10,
            buffer_bytes: 2048,
            name: OWN_NAME.to_owned(),
        }
    }

    pub(super) fn check(&self) -> Result<(), LinkError> {
        let wrong = |setting, why: String| Err(LinkError::Setting { setting, why });
        if !(1..=MEMIF_QUEUE_COUNT_MAX).contains(&self.queue_count) {
            return wrong("queue_count", format!("1 to {MEMIF_QUEUE_COUNT_MAX} are possible"));
        }
        if !(MEMIF_RING_SIZE_LOG2_MIN..=MEMIF_RING_SIZE_LOG2_MAX).contains(&self.ring_size_log2) {
            let why =
                format!("{MEMIF_RING_SIZE_LOG2_MIN} to {MEMIF_RING_SIZE_LOG2_MAX} are possible");
            return wrong("ring_size_log2", why);
        }
        if !(MEMIF_BUFFER_BYTES_MIN..=MEMIF_BUFFER_BYTES_MAX).contains(&self.buffer_bytes) {
            let why = format!("{MEMIF_BUFFER_BYTES_MIN} to {MEMIF_BUFFER_BYTES_MAX} are possible");
            return wrong("buffer_bytes", why);
        }
        // IPv6 asks for 1280 (RFC 8200 section 5), IPv4 for 68 (RFC 791).
        if !(68..=MEMIF_FRAME_BYTES_MAX - ETHERNET_HEADER_BYTES).contains(&self.mtu) {
            let most = MEMIF_FRAME_BYTES_MAX - ETHERNET_HEADER_BYTES;
            return wrong("mtu", format!("68 to {most} are possible"));
        }
        if self.frame_bytes() > (self.buffer_bytes as usize) << self.ring_size_log2 {
            return wrong("mtu", "a frame does not fit into the whole ring".to_owned());
        }
        if self.secret.len() > SECRET_BYTES {
            return wrong("secret", format!("at most {SECRET_BYTES} bytes are possible"));
        }
        Ok(())
    }

    /// The largest frame in bytes.
    pub(super) fn frame_bytes(&self) -> usize {
        match self.medium {
            LinkMedium::Ethernet => self.mtu + ETHERNET_HEADER_BYTES,
            LinkMedium::Ip => self.mtu,
        }
    }

    pub(super) fn terms(&self) -> Terms {
        let mut secret = [0; SECRET_BYTES];
        // `check` saw that it fits.
        let len = self.secret.len().min(SECRET_BYTES);
        secret[..len].copy_from_slice(&self.secret.as_bytes()[..len]);
        Terms {
            id: self.id,
            mode: match self.medium {
                LinkMedium::Ethernet => 0,
                LinkMedium::Ip => 1,
            },
            secret,
            name: FixedText::new(&self.name),
            queue_count: self.queue_count,
            all_queues: false,
            ring_size_log2: self.ring_size_log2,
        }
    }

    /// What a client offers.
    pub(super) fn wanted(&self) -> WantedMemory {
        WantedMemory { terms: self.terms(), buffer_bytes: self.buffer_bytes }
    }
}
