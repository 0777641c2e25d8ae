//! Local ports of outgoing connections and datagram sockets that ask for none: which are reserved,
//! and in which order they are tried.
//!
//! Where the host's address is shared, each port is reserved by a kernel socket, so ports are
//! reserved in blocks as they are needed (`host.rs`).
//!
//! Read first: RFC 6056 on how ports are chosen.

use crate::limits::{CLIENT_PORTS_PER_BLOCK, EPHEMERAL_PORTS, SHARED_CLIENT_PORTS};

/// The ports that are chosen from where none is asked for, first and last.
pub(crate) const fn client_ports(shares_host_address: bool) -> (u16, u16) {
    if shares_host_address { SHARED_CLIENT_PORTS } else { EPHEMERAL_PORTS }
}

/// Whether the stack chooses a port where the host's address is shared: it is 0, or one that the
/// stack may have chosen before.
pub(crate) const fn is_client_port(port: u16) -> bool {
    port == 0 || (port >= SHARED_CLIENT_PORTS.0 && port <= SHARED_CLIENT_PORTS.1)
}

/// The blocks of [`SHARED_CLIENT_PORTS`], first and last port of each, each once, from a block on.
pub(crate) fn blocks(first_block: usize) -> impl Iterator<Item = (u16, u16)> {
    let (first, last) = SHARED_CLIENT_PORTS;
    let starts: Vec<u16> = (first..=last).step_by(CLIENT_PORTS_PER_BLOCK.into()).collect();
    let count = starts.len();
    let at = move |step: usize| starts[first_block.wrapping_add(step) % count];
    (0..count).map(at).map(|start| (start, start + (CLIENT_PORTS_PER_BLOCK - 1)))
}

/// An unpredictable number to begin a search at.
pub(crate) fn random_start() -> usize {
    let mut random = [0; 4];
    let flags = rustix::rand::GetRandomFlags::empty();
    // Without random bytes the search begins at the first: no less free, only easier to guess.
    let _ = rustix::rand::getrandom(&mut random, flags);
    u32::from_ne_bytes(random) as usize
}

/// The shard's share of some ports, each once, from an unpredictable one on (RFC 6056 §3.3.1):
/// those whose remainder is its number.
pub(crate) fn candidates(
    ports: impl IntoIterator<Item = u16>,
    shard: u16,
    shards: u16,
) -> impl Iterator<Item = u16> {
    let mine: Vec<u16> = ports.into_iter().filter(|port| port % shards == shard).collect();
    let (count, start) = (mine.len(), random_start());
    (0..count).map(move |step| mine[start.wrapping_add(step) % count])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn client_port_candidates_of_shards_are_disjoint() {
        let mut seen = HashSet::new();
        for shard in 0..3 {
            assert!(candidates(40_000..=40_099, shard, 3).all(|port| seen.insert(port)));
        }
        assert_eq!(seen.len(), 100);
        assert_eq!(candidates(7..=7, 0, 2).count(), 0);
    }

    #[test]
    fn client_port_blocks_cover_the_range_once() {
        for first in [0, 5, usize::MAX] {
            let ports = blocks(first).flat_map(|(first, last)| first..=last);
            let ports: Vec<u16> = ports.collect();
            let distinct: HashSet<_> = ports.iter().copied().collect();
            let (first, last) = SHARED_CLIENT_PORTS;
            assert_eq!(ports.len(), distinct.len());
            assert_eq!(distinct, (first..=last).collect());
        }
    }
}
