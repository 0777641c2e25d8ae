//! Multicast listener reports: schedule for the solicited-node groups of our addresses.
//!
//! Read first: RFC 3810 §6 (a listener's behaviour), RFC 4861 §7.2.1 (which groups).
//!
//! Invariants
//! - At most one report waits, and it names all groups: a query about one is answered about all,
//!   which is allowed and says nothing new.
//! - A report of our own accord is sent twice (§9.1), one for a query once, at a time that differs
//!   from host to host.
//! - Reports are no more than one in [`APART`], however many queries come.

use core::time::Duration;

use crate::time::Instant;
use crate::wire::mld::Reason;

/// Time between the reports of our own accord (§9.11), and the least between any two.
const APART: Duration = Duration::from_secs(1);
/// Reports of our own accord: the robustness variable (§9.1).
const REPEATED: u8 = 2;
/// The longest that an answer waits, whatever a query says.
const WITHIN_MAX: Duration = Duration::from_secs(30);

/// What is to be reported, and when.
#[derive(Debug)]
pub(super) struct Membership {
    /// Reports of our own accord that are still to come.
    joined: u8,
    /// When the next report is due.
    at: Option<Instant>,
    /// When the last one was sent.
    last: Option<Instant>,
    /// Differs from host to host, and from answer to answer.
    spread: u64,
}

impl Membership {
    /// Nothing to report. `seed` is the host's own.
    pub(super) const fn new(seed: u64) -> Self {
        Self { joined: 0, at: None, last: None, spread: seed }
    }

    /// Our groups are new.
    pub(super) fn on_join(&mut self, now: Instant) {
        self.joined = REPEATED;
        self.at = Some(now);
    }

    /// Schedules a report in answer to a query, within the given time.
    pub(super) fn on_query(&mut self, now: Instant, within: Duration) {
        // SplitMix64's step and the upper half of a multiplication: even, and cheap.
        self.spread = self.spread.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let part = (self.spread ^ (self.spread >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 48;
        let nanos = within.min(WITHIN_MAX).as_nanos() as u64;
        let mut at = now + Duration::from_nanos((nanos >> 16) * part);
        if let Some(last) = self.last {
            at = at.max(last + APART);
        }
        self.at = Some(self.at.map_or(at, |other| other.min(at)));
    }

    /// The report that is due: why it is sent.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Reason> {
        if self.at.is_none_or(|at| now < at) {
            return None;
        }
        self.last = Some(now);
        let reason = if self.joined > 0 { Reason::Joined } else { Reason::Asked };
        self.joined = self.joined.saturating_sub(1);
        self.at = (self.joined > 0).then(|| now + APART);
        Some(reason)
    }

    /// When a report is due.
    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn joining_is_said_twice() {
        let mut membership = Membership::new(1);
        assert_eq!(membership.poll(ms(5)), None);
        membership.on_join(ms(5));
        assert_eq!(membership.poll(ms(5)), Some(Reason::Joined));
        assert_eq!(membership.poll(ms(1004)), None);
        assert_eq!(membership.poll_timeout(), Some(ms(1005)));
        assert_eq!(membership.poll(ms(1005)), Some(Reason::Joined));
        assert_eq!(membership.poll_timeout(), None);
    }

    #[test]
    fn a_query_is_answered_in_time_and_a_flood_of_them_once_a_second() {
        let mut membership = Membership::new(7);
        membership.on_query(ms(0), Duration::from_secs(10));
        let due = membership.poll_timeout().unwrap();
        assert!(due <= ms(10_000));
        assert_eq!(membership.poll(due), Some(Reason::Asked));
        let mut reports = 0;
        for millis in 0..5000 {
            let now = due + Duration::from_millis(millis);
            membership.on_query(now, Duration::ZERO);
            reports += usize::from(membership.poll(now).is_some());
        }
        assert_eq!(reports, 4);
    }

    #[test]
    fn hosts_answer_at_different_times() {
        let due = |seed| {
            let mut membership = Membership::new(seed);
            membership.on_query(ms(0), Duration::from_secs(10));
            membership.poll_timeout()
        };
        assert_ne!(due(1), due(2));
    }
}
