//! The keyed hash of a flow: SipHash-1-3 of its addresses and ports.
//!
//! Read first: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, §2.
//!
//! A general hasher keeps account of half-filled words and of what is yet to come. A flow is a
//! message of known length: twelve bytes for IPv4, which are two words with the length byte that
//! the paper ends a message by, or thirty-six for IPv6, which are five. So each round stands where
//! it is needed, and nothing is buffered.
//!
//! Invariants
//! - It is SipHash-1-3 of the bytes local address, remote address, ports, as little-endian numbers:
//!   a test compares.
//! - Flows of the two versions of IP differ in the length byte, so none of one stands for another.

use core::net::{IpAddr, Ipv6Addr};

use super::Flow;

/// The hash under one key.
#[derive(Debug)]
pub(super) struct FlowHash {
    keyed: State,
}

#[derive(Debug, Clone, Copy)]
struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl FlowHash {
    pub(super) const fn new(key: &[u8; 16]) -> Self {
        let whole = u128::from_le_bytes(*key);
        let (k0, k1) = (whole as u64, (whole >> 64) as u64);
        // The constants spell "somepseudorandomlygeneratedbytes".
        let keyed = State {
            v0: k0 ^ 0x736f_6d65_7073_6575,
            v1: k1 ^ 0x646f_7261_6e64_6f6d,
            v2: k0 ^ 0x6c79_6765_6e65_7261,
            v3: k1 ^ 0x7465_6462_7974_6573,
        };
        Self { keyed }
    }

    /// The low half of the hash of `flow`.
    #[inline(always)]
    pub(super) fn of(&self, flow: &Flow) -> u32 {
        let ports = u64::from(flow.local_port) << 16 | u64::from(flow.remote_port);
        let mut state = self.keyed;
        match (flow.local, flow.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                state.take(u64::from(remote.to_bits()) << 32 | u64::from(local.to_bits()));
                state.take(12 << 56 | ports);
            }
            (local, remote) => {
                for address in [mapped(local), mapped(remote)] {
                    let bits = address.to_bits();
                    state.take(bits as u64);
                    state.take((bits >> 64) as u64);
                }
                state.take(36 << 56 | ports);
            }
        }
        state.finish() as u32
    }
}

#[inline(always)]
const fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl State {
    /// One word of the message, with one round (§2.2).
    #[inline(always)]
    const fn take(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    /// Three rounds (§2.3).
    #[inline(always)]
    const fn finish(mut self) -> u64 {
        self.v2 ^= 0xff;
        self.round();
        self.round();
        self.round();
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    /// §2.4, figure 2.1.
    #[inline(always)]
    const fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }
}
