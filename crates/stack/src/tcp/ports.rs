//! Ephemeral port selection (RFC 6056).
//!
//! Read first: RFC 6056 §3.3.4 (algorithm 4, double hash-based): ports to one peer follow one
//! another from a secret place, and what one peer sees says little about another's.

use core::ops::RangeInclusive;

use super::isn::{Secret, Use};
use crate::flow_table::Flow;
use crate::limits::PORT_COUNTERS;

/// How often each group of peers was called.
#[derive(Debug)]
pub(crate) struct PortCounters {
    counters: [u32; PORT_COUNTERS],
    /// Whom a port was wanted for last, and what its hashes said.
    last: Option<(Flow, Hashes)>,
}

/// What depends on whom a port is wanted for.
#[derive(Debug, Clone, Copy)]
struct Hashes {
    group: usize,
    offset: u32,
}

/// Ports to try, in order.
#[derive(Debug, Clone)]
pub(crate) struct Candidates {
    group: usize,
    range: RangeInclusive<u16>,
    /// The next port to try.
    port: u16,
    /// How many ports of the range are not tried yet, and how many are.
    left: u32,
    tried: u32,
}

impl PortCounters {
    pub(crate) const fn new() -> Self {
        Self { counters: [0; PORT_COUNTERS], last: None }
    }

    /// The ports from `range`'s first to its last, each once, for `flow`, whose local port is 0.
    pub(crate) fn candidates(
        &mut self,
        secret: &Secret,
        flow: &Flow,
        range: (u16, u16),
    ) -> Candidates {
        debug_assert_eq!(flow.local_port, 0);
        let Hashes { group, offset } = self.hashes(secret, flow);
        let counter = self.counters[group];
        self.counters[group] = counter.wrapping_add(1);
        let first = range.0.min(range.1);
        let last = range.0.max(range.1);
        let count = u32::from(last - first) + 1;
        let port = first + (offset.wrapping_add(counter) % count) as u16;
        Candidates { group, range: first..=last, port, left: count, tried: 0 }
    }

    /// Returns the hashes for a flow, cached for repeated connections to one peer.
    fn hashes(&mut self, secret: &Secret, flow: &Flow) -> Hashes {
        match self.last {
            Some((last, hashes)) if last == *flow => hashes,
            _ => {
                let group = secret.hash(Use::PortCounter, flow, 0) as usize % PORT_COUNTERS;
                let hashes = Hashes { group, offset: secret.hash(Use::PortOffset, flow, 0) as u32 };
                self.last = Some((*flow, hashes));
                hashes
            }
        }
    }

    /// The search among these is over: the next one of the group begins behind what was tried, as
    /// RFC 6056 has it. Else each call would walk again through whatever is in use there.
    pub(crate) fn passed(&mut self, candidates: &Candidates) {
        let beyond_first = candidates.tried.saturating_sub(1);
        let counter = &mut self.counters[candidates.group];
        *counter = counter.wrapping_add(beyond_first);
    }
}

impl Iterator for Candidates {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        self.left = self.left.checked_sub(1)?;
        self.tried += 1;
        let port = self.port;
        // Around the end the range begins again.
        self.port = if port == *self.range.end() { *self.range.start() } else { port + 1 };
        Some(port)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn each_port_comes_once_and_calls_follow_one_another() {
        let secret = Secret::new(&[4; 16]);
        let ip = Ipv4Addr::LOCALHOST.into();
        let flow = Flow { local: ip, remote: ip, local_port: 0, remote_port: 80 };
        let mut counters = PortCounters::new();
        let mut ports: Vec<u16> = counters.candidates(&secret, &flow, (10, 19)).collect();
        let second = counters.candidates(&secret, &flow, (10, 19)).next().unwrap();
        assert_eq!(second, ports[1]);
        let mut third = counters.candidates(&secret, &flow, (10, 19));
        let tried: [u16; 3] = core::array::from_fn(|_| third.next().unwrap());
        assert_eq!(tried, [ports[2], ports[3], ports[4]]);
        counters.passed(&third);
        let fourth = counters.candidates(&secret, &flow, (10, 19)).next().unwrap();
        assert_eq!(fourth, ports[5], "what was passed over is not tried again");
        ports.sort_unstable();
        assert_eq!(ports, (10..20).collect::<Vec<_>>());
        let all = counters.candidates(&secret, &flow, (0, u16::MAX)).count();
        assert_eq!(all, 65_536);
    }
}
