//! Port table of UDP endpoints, and ephemeral ports.
//!
//! Invariant: ports that we choose begin at an unpredictable one (RFC 6056 §3.3.1), so that a
//! blind forger has to guess.

use alloc::vec::Vec;

use crate::config::Config;

/// The ports in use.
#[derive(Debug)]
pub(super) struct Ports {
    /// Port and endpoint, by port.
    taken: Vec<(u16, u32)>,
    ephemeral: (u16, u16),
    state: u64,
}

impl Ports {
    pub(super) fn new(config: &Config) -> Self {
        let secret = config.secret.first_chunk().copied().unwrap_or_default();
        Self {
            taken: Vec::with_capacity(config.datagram_endpoints as usize),
            ephemeral: config.ephemeral_ports,
            state: u64::from_le_bytes(secret),
        }
    }

    /// The endpoints at `port`.
    pub(super) fn at(&self, port: u16) -> impl Iterator<Item = u32> + '_ {
        let start = self.taken.partition_point(|(taken, _)| *taken < port);
        let at_port = move |(taken, _): &&(u16, u32)| *taken == port;
        self.taken[start..].iter().take_while(at_port).map(|(_, index)| *index)
    }

    pub(super) fn insert(&mut self, port: u16, index: u32) {
        let at = self.taken.partition_point(|entry| *entry < (port, index));
        self.taken.insert(at, (port, index));
    }

    pub(super) fn remove(&mut self, port: u16, index: u32) {
        if let Ok(at) = self.taken.binary_search(&(port, index)) {
            self.taken.remove(at);
        }
    }

    /// Every ephemeral port once, from an unpredictable one on.
    pub(super) fn candidates(&mut self) -> impl Iterator<Item = u16> + use<> {
        // SplitMix64: a step of a counter, and a mix of it.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let (first, last) = self.ephemeral;
        let count = u64::from(last - first) + 1;
        let start = (mixed >> 32) % count;
        (0..count).map(move |step| first + ((start + step) % count) as u16)
    }
}
