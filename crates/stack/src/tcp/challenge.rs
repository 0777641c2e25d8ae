//! Rate limit of challenge ACKs per shard (RFC 5961 §7).
//!
//! Read first: RFC 5961 §7. A limit that is the same at all times tells an attacker who counts
//! (CVE-2016-5696), so each second has its own, between half and one and a half of what was
//! configured.

use super::isn::{Secret, Use};
use crate::flow_table::Flow;
use crate::time::Instant;

/// The limit.
#[derive(Debug)]
pub(crate) struct Challenges {
    per_s: u32,
    second: u64,
    left: u32,
}

impl Challenges {
    pub(crate) const fn new(per_s: u32) -> Self {
        Self { per_s, second: u64::MAX, left: 0 }
    }

    /// One may be sent, and counts.
    pub(crate) fn may_send(&mut self, now: Instant, secret: &Secret, flow: &Flow) -> bool {
        let second = now.as_millis() / 1000;
        if second != self.second {
            self.second = second;
            let spread = u64::from(self.per_s.max(1));
            let more = secret.hash(Use::Challenge, flow, second) % spread;
            self.left = self.per_s / 2 + more as u32;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn each_second_has_its_own_limit() {
        let secret = Secret::new(&[3; 16]);
        let ip = Ipv4Addr::LOCALHOST.into();
        let flow = Flow { local: ip, remote: ip, local_port: 1, remote_port: 2 };
        let mut challenges = Challenges::new(100);
        let mut sent = |second: u64| {
            let now = Instant::from_millis(second * 1000);
            (0..1000).filter(|_| challenges.may_send(now, &secret, &flow)).count()
        };
        let counts = [sent(0), sent(1), sent(2), sent(3)];
        assert!(counts.iter().all(|count| (50..150).contains(count)), "{counts:?}");
        assert!(counts.iter().any(|count| *count != counts[0]), "{counts:?}");
    }
}
