//! Path MTU cache (RFC 1191, RFC 8201).
//!
//! Invariants
//! - Only what is smaller than our own link's MTU is remembered, and never what is below the
//!   smallest MTU of the version of IP: such a message is a mistake or an attack (RFC 8201 §4).
//! - Nothing is learnt from an ICMP message alone: a transport that recognises the quoted packet
//!   as its own says so first (RFC 5927 §7.2).
//! - What was learnt is forgotten after ten minutes (RFC 1191 §6.3), so that a path that grew is
//!   used again. At most [`PATH_MTUS_MAX`] are remembered; the oldest makes room.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use crate::host_address::HostAddress;
use crate::limits::{MTU_MIN, MTU_MIN_V6, PATH_MTUS_MAX};
use crate::time::Instant;

/// How long something learnt is believed.
const KEPT: Duration = Duration::from_secs(600);

/// MTUs that links are likely to have (RFC 1191 §7), for routers that do not say theirs.
const PLATEAUS: [u16; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, MTU_MIN];

#[derive(Debug, Clone, Copy)]
struct Learnt {
    dst: IpAddr,
    mtu: u16,
    until: Instant,
}

/// What was learnt, by destination.
#[derive(Debug)]
pub(crate) struct PathMtus {
    /// By destination.
    learnt: Vec<Learnt>,
    /// Nothing is too old before this.
    next: Option<Instant>,
}

impl PathMtus {
    pub(crate) fn new() -> Self {
        Self { learnt: Vec::with_capacity(PATH_MTUS_MAX), next: None }
    }

    /// What was learnt about the way to `dst`, in bytes.
    #[inline]
    pub(crate) fn get(&self, dst: HostAddress) -> Option<u16> {
        // Most hosts never learn anything.
        if self.learnt.is_empty() {
            return None;
        }
        self.find(&dst.ip()).ok().map(|at| self.learnt[at].mtu)
    }

    /// Packets to `dst` may have `mtu` bytes, which [`plausible`] has checked.
    pub(crate) fn learn(&mut self, now: Instant, dst: IpAddr, mtu: u16) {
        let learnt = Learnt { dst, mtu, until: now + KEPT };
        // Time does not run backwards, so that the first is the first to be too old.
        self.next.get_or_insert(learnt.until);
        match self.find(&dst) {
            Ok(at) => self.learnt[at] = learnt,
            Err(_) => {
                if self.learnt.len() == PATH_MTUS_MAX {
                    self.forget_oldest();
                }
                let at = self.learnt.partition_point(|other| other.dst < dst);
                self.learnt.insert(at, learnt);
            }
        }
    }

    /// Forgets what is too old.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.learnt.retain(|learnt| now < learnt.until);
        self.next = self.learnt.iter().map(|learnt| learnt.until).min();
    }

    /// When [`PathMtus::on_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    fn find(&self, dst: &IpAddr) -> Result<usize, usize> {
        self.learnt.binary_search_by_key(dst, |learnt| learnt.dst)
    }

    fn forget_oldest(&mut self) {
        let oldest = (0..self.learnt.len()).min_by_key(|at| self.learnt[*at].until);
        if let Some(at) = oldest {
            self.learnt.remove(at);
        }
    }
}

/// The MTU that a message about a packet to `dst` speaks of, if it can be true: `told` is what the
/// router says, or zero; `sent` is the length of the quoted packet; both in bytes.
pub(crate) fn plausible(dst: IpAddr, told: u32, sent: u16, link_mtu: u16) -> Option<u16> {
    let least = if dst.is_ipv4() { MTU_MIN } else { MTU_MIN_V6 };
    let told = match told {
        // An old router, of IPv4, does not say: the next smaller usual size (RFC 1191 §5).
        0 if dst.is_ipv4() => *PLATEAUS.iter().find(|mtu| **mtu < sent)?,
        told => u16::try_from(told).ok()?,
    };
    (least..link_mtu).contains(&told).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n).into())
    }

    #[test]
    fn learns_and_forgets() {
        let mut mtus = PathMtus::new();
        assert_eq!(mtus.get(ip(1).into()), None);
        mtus.learn(Instant::ZERO, ip(1), 1400);
        mtus.learn(Instant::ZERO + KEPT / 2, ip(2), 1300);
        assert_eq!((mtus.get(ip(1).into()), mtus.get(ip(2).into())), (Some(1400), Some(1300)));
        assert_eq!(mtus.poll_timeout(), Some(Instant::ZERO + KEPT));
        mtus.on_timeout(Instant::ZERO + KEPT);
        assert_eq!((mtus.get(ip(1).into()), mtus.get(ip(2).into())), (None, Some(1300)));
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut mtus = PathMtus::new();
        for n in 0..=PATH_MTUS_MAX as u32 {
            mtus.learn(Instant::from_millis(u64::from(n)), ip(n), 1000);
        }
        assert_eq!(mtus.learnt.len(), PATH_MTUS_MAX);
        assert_eq!((mtus.get(ip(0).into()), mtus.get(ip(1).into())), (None, Some(1000)));
    }

    #[test]
    fn only_what_can_be_true_is_believed() {
        let v6 = "2001:db8::1".parse().unwrap();
        assert_eq!(plausible(ip(1), 1400, 1500, 1500), Some(1400));
        assert_eq!(plausible(ip(1), 575, 1500, 1500), None);
        assert_eq!(plausible(ip(1), 1500, 1500, 1500), None);
        assert_eq!(plausible(ip(1), 1_000_000, 1500, 1500), None);
        assert_eq!(plausible(ip(1), 0, 1500, 1500), Some(1492));
        assert_eq!(plausible(ip(1), 0, 1492, 1500), Some(1006));
        assert_eq!(plausible(ip(1), 0, 576, 1500), None);
        assert_eq!(plausible(v6, 1280, 1500, 1500), Some(1280));
        assert_eq!(plausible(v6, 1279, 1500, 1500), None);
        assert_eq!(plausible(v6, 0, 1500, 1500), None);
    }
}
