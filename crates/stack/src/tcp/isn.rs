//! Unpredictable numbers: initial sequence numbers, timestamp offsets, cookie keys.
//!
//! Read first: RFC 6528 §3 (ISN = M + F(flow, secret)), RFC 7323 §5.4 (timestamps start
//! anywhere), RFC 6056 §3.3.4.

use core::net::Ipv4Addr;

use crate::flow_table::Flow;
use crate::host_address::HostAddress;
use crate::seq::SeqNum;
use crate::siphash::Sip;
use crate::time::Instant;

/// What a hash is for: no two uses share values.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Use {
    Isn = 1,
    Timestamp,
    PortOffset,
    PortCounter,
    Cookie,
    CookieCount,
    Challenge,
    FastOpen,
}

/// A keyed hash of flows.
#[derive(Debug)]
pub(crate) struct Secret {
    hasher: Sip<2, 4>,
    /// At first of no flow: of addresses of two families.
    last: Hosts,
}

/// Both addresses of a flow and the values derived from them, cached for repeated use with one
/// peer.
#[derive(Debug, Clone, Copy)]
struct Hosts {
    addresses: (HostAddress, HostAddress),
    /// The hash's state after them.
    hasher: Sip<2, 4>,
    ts_offset: u32,
}

impl Secret {
    pub(crate) fn new(key: &[u8; 16]) -> Self {
        let hasher = Sip::new(key);
        let addresses = (HostAddress::of_ipv4(Ipv4Addr::UNSPECIFIED), HostAddress::UNSPECIFIED);
        Self { hasher, last: Hosts { addresses, hasher, ts_offset: 0 } }
    }

    /// The hash of `flow` and `extra` for `purpose`.
    pub(crate) fn hash(&self, purpose: Use, flow: &Flow, extra: u64) -> u64 {
        self.hosts(flow).and(ports_and(purpose, flow)).and(extra).finish()
    }

    /// The hash of the addresses of `flow`, whatever its ports, for `purpose`.
    fn hash_of_hosts(&self, purpose: Use, flow: &Flow) -> u64 {
        self.hosts(flow).finish_with(purpose as u64, 1)
    }

    /// After the addresses of `flow`: one word, or four for IPv6, so that neither stands for the
    /// other.
    #[inline]
    fn hosts(&self, flow: &Flow) -> Sip<2, 4> {
        let mut hasher = self.hasher;
        if let (Some(local), Some(remote)) = (flow.local.ipv4(), flow.remote.ipv4()) {
            return hasher.and(u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()));
        }
        for address in [flow.local, flow.remote] {
            let bits = address.ipv6().to_bits();
            hasher = hasher.and((bits >> 64) as u64).and(bits as u64);
        }
        hasher
    }

    /// The first sequence number of `flow` (RFC 6528 §3): one more every 4 µs (MUST-8), from a
    /// place that depends on the flow (SHLD-1) and on the secret (MUST-9). The message that is
    /// hashed is shorter than those with something extra, so that none stands for another.
    ///
    /// With it comes what is added to the millisecond clock for our timestamps to this peer. It
    /// hangs on the addresses alone, so that the timestamps of one pair of ports used again go on
    /// (RFC 6191).
    #[inline(always)]
    pub(crate) fn isn_and_timestamp_offset(&mut self, flow: &Flow, now: Instant) -> (SeqNum, u32) {
        let &Hosts { ref hasher, ts_offset, .. } = self.last_hosts(flow);
        let place = hasher.finish_with(ports_and(Use::Isn, flow), 5) as u32;
        (SeqNum(place.wrapping_add((now.as_nanos() / 4_000) as u32)), ts_offset)
    }

    /// The second of both alone.
    pub(crate) fn timestamp_offset(&mut self, flow: &Flow) -> u32 {
        self.last_hosts(flow).ts_offset
    }

    #[inline(always)]
    fn last_hosts(&mut self, flow: &Flow) -> &Hosts {
        if self.last.addresses != (flow.local, flow.remote) {
            self.last = self.other_hosts(flow);
        }
        &self.last
    }

    #[inline(never)]
    fn other_hosts(&self, flow: &Flow) -> Hosts {
        let addresses = (flow.local, flow.remote);
        let ts_offset = self.hash_of_hosts(Use::Timestamp, flow) as u32;
        Hosts { addresses, hasher: self.hosts(flow), ts_offset }
    }
}

/// Both ports and the purpose: five bytes.
#[inline]
const fn ports_and(purpose: Use, flow: &Flow) -> u64 {
    (purpose as u64) << 32 | (flow.local_port as u64) << 16 | flow.remote_port as u64
}

/// The time in microseconds, wrapped; never 0.
pub(crate) fn microseconds(now: Instant) -> u32 {
    (now.as_micros() as u32).max(1)
}

/// Our timestamp clock: milliseconds (RFC 7323 §5.4), from `offset`.
pub(crate) fn timestamp(now: Instant, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    fn flow(remote_port: u16) -> Flow {
        Flow {
            local: Ipv4Addr::new(10, 0, 0, 1).into(),
            remote: Ipv4Addr::new(10, 0, 0, 2).into(),
            local_port: 80,
            remote_port,
        }
    }

    #[test]
    fn the_isn_ticks_every_four_microseconds_and_hangs_on_flow_and_secret() {
        let mut secret = Secret::new(&[1; 16]);
        let mut at =
            |us, port| secret.isn_and_timestamp_offset(&flow(port), Instant::from_micros(us)).0;
        let first = at(0, 1);
        assert_eq!(at(4, 1).since(first), 1);
        assert_eq!(at(4_000_000, 1).since(first), 1_000_000);
        assert_ne!(first, at(0, 2));
        assert_ne!(
            first,
            Secret::new(&[2; 16]).isn_and_timestamp_offset(&flow(1), Instant::ZERO).0
        );
        let other = Flow { remote: Ipv4Addr::new(10, 0, 0, 3).into(), ..flow(1) };
        assert_ne!(first, secret.isn_and_timestamp_offset(&other, Instant::ZERO).0);
        assert_eq!(
            first,
            secret.isn_and_timestamp_offset(&flow(1), Instant::ZERO).0,
            "independent of other flows"
        );
    }

    #[test]
    fn timestamps_go_on_across_ports_and_the_uses_differ() {
        let mut secret = Secret::new(&[1; 16]);
        let offset = secret.timestamp_offset(&flow(1));
        assert_eq!(offset, secret.timestamp_offset(&flow(2)));
        let other = Flow { remote: Ipv4Addr::new(10, 0, 0, 3).into(), ..flow(1) };
        assert_ne!(offset, secret.timestamp_offset(&other));
        assert_eq!(offset, secret.timestamp_offset(&flow(1)));
        let isn = secret.isn_and_timestamp_offset(&flow(1), Instant::ZERO).0.0;
        assert_ne!(isn, secret.hash(Use::Isn, &flow(1), 0) as u32);
        assert_ne!(secret.hash(Use::Isn, &flow(1), 0), secret.hash(Use::Cookie, &flow(1), 0));
        assert_ne!(secret.hash(Use::Cookie, &flow(1), 0), secret.hash(Use::Cookie, &flow(1), 1));
    }
}
