//! Pacing: a link wrapper that limits the transmit rate by a token bucket.
//!
//! Read first: RFC 2697 §3 for buckets in general. Tokens are bytes; the bucket fills with time and
//! holds a burst at most. A frame may go while the bucket is not in debt, and takes its bytes, so
//! the long-run rate is exact whatever the frames' sizes.
//!
//! Invariants
//! - What was sent since any moment is at most rate × time + burst + one frame.
//! - Receiving is not touched.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::fault::Clock;
use crate::{Caps, FrameCounters, Link, LinkError, Ownership, RxMetadata, TxMetadata};

/// How fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Frame bytes in a second; at least 1.
    pub bytes_per_second: u64,
    /// Bytes that may go at once after a pause.
    pub burst_bytes: u64,
}

/// A link that sends at most at a [`Rate`].
///
/// [`Link::wait`] wakes when there are tokens again, if the last burst ran out of them. Callers
/// that sleep on [`Link::wait_fd`] must also wake at [`Pace::next_room`].
pub struct Pace<L> {
    link: L,
    clock: Clock,
    bucket: Bucket,
    /// The last burst ended for want of tokens.
    is_held: bool,
    held_count: u64,
}

impl<L: Link> Pace<L> {
    /// Paces what `link` sends. The bucket starts full.
    ///
    /// # Errors
    /// [`LinkError::Setting`] for a rate of nothing.
    pub fn new(link: L, rate: Rate, mut clock: Clock) -> Result<Self, LinkError> {
        if rate.bytes_per_second == 0 {
            let why = "a link that never sends".to_owned();
            return Err(LinkError::Setting { setting: "bytes_per_second", why });
        }
        let bucket = Bucket::new(rate, clock());
        Ok(Self { link, clock, bucket, is_held: false, held_count: 0 })
    }

    /// When the next frame may go, by the clock; `None`: now.
    pub fn next_room(&self) -> Option<Duration> {
        self.bucket.next_room()
    }
}

/// The tokens. Debt is counted in nanoseconds of filling, so that nothing is rounded away.
#[derive(Debug, Clone)]
struct Bucket {
    rate: Rate,
    /// Below this moment the bucket is in debt; it is full where this lies a burst in the past.
    even_at: Duration,
    now: Duration,
}

impl Bucket {
    fn new(rate: Rate, now: Duration) -> Self {
        let mut bucket = Self { rate, even_at: Duration::ZERO, now };
        bucket.even_at = now.saturating_sub(bucket.time_of(rate.burst_bytes));
        bucket
    }

    /// How long the bucket takes to gather `bytes`, rounded up.
    fn time_of(&self, bytes: u64) -> Duration {
        let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(self.rate.bytes_per_second.into());
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    fn fill(&mut self, now: Duration) {
        self.now = now;
        let full = now.saturating_sub(self.time_of(self.rate.burst_bytes));
        self.even_at = self.even_at.max(full);
    }

    fn may_send(&self) -> bool {
        self.even_at <= self.now
    }

    fn take(&mut self, bytes: u64) {
        self.even_at = self.even_at.saturating_add(self.time_of(bytes));
    }

    fn next_room(&self) -> Option<Duration> {
        (!self.may_send()).then_some(self.even_at)
    }
}

impl<L: Link> Link for Pace<L> {
    fn caps(&self) -> &Caps {
        self.link.caps()
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        self.link.rx_burst(max, each)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let Self { link, clock, bucket, is_held, held_count } = self;
        bucket.fill(clock());
        *is_held = max > 0 && !bucket.may_send();
        if *is_held {
            *held_count += 1;
            // Checks whether the peer is connected, and sends nothing.
            return link.tx_burst(0, &mut |_| None);
        }
        let bytes_max = link.caps().tx_frame_bytes;
        link.tx_burst(max, &mut |room| {
            if !bucket.may_send() {
                if !*is_held {
                    *held_count += 1;
                }
                *is_held = true;
                return None;
            }
            let transmit = fill(room)?;
            if transmit.len <= bytes_max {
                bucket.take(transmit.len as u64);
            }
            Some(transmit)
        })
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.bucket.fill((self.clock)());
        if self.is_held && self.bucket.may_send() {
            return Ok(false);
        }
        self.link.arm()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.link.wait_fd()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, LinkError> {
        if !self.arm()? {
            return Ok(true);
        }
        let room = self.is_held.then(|| self.bucket.next_room()).flatten();
        let until = room.map(|at| at.saturating_sub(self.bucket.now));
        let is_room_first = until.is_some_and(|until| timeout.is_none_or(|limit| until <= limit));
        let timeout = if is_room_first { until } else { timeout };
        Ok(self.link.wait(timeout)? || is_room_first)
    }

    fn counters(&self) -> FrameCounters {
        let below = self.link.counters();
        FrameCounters { tx_full: below.tx_full + self.held_count, ..below }
    }

    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.set_ownership(ownership)
    }

    fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.check_ownership(ownership)
    }
}

impl<L: fmt::Debug> fmt::Debug for Pace<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Pace");
        debug.field("link", &self.link).field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{PairConfig, pair};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_rate_of_nothing_is_refused() {
        let (here, _there) = pair(&PairConfig::default()).expect("memory");
        let rate = Rate { bytes_per_second: 0, burst_bytes: 9 };
        let refused = Pace::new(here, rate, Box::new(|| Duration::ZERO));
        assert!(matches!(refused, Err(LinkError::Setting { setting: "bytes_per_second", .. })));
    }

    #[test]
    fn a_sleeper_wakes_when_there_are_tokens() {
        let (here, mut there) = pair(&PairConfig::default()).expect("memory");
        let start = std::time::Instant::now();
        let rate = Rate { bytes_per_second: 100_000, burst_bytes: 1_000 };
        let mut link = Pace::new(here, rate, Box::new(move || start.elapsed())).expect("a rate");
        let plain = TxMetadata { len: 1_000, ..TxMetadata::default() };
        let mut sent = 0;
        while sent < 5 {
            sent += link.tx_burst(9, &mut |_| Some(plain)).expect("sent");
            if sent < 5 {
                assert!(link.wait(None).expect("woken"));
            }
        }
        // Two go at once (a full bucket, and one on credit), the others 10 ms each.
        assert!(start.elapsed() >= 30 * MS, "{:?}", start.elapsed());
        assert_eq!(there.rx_burst(99, &mut |_, _| ()).expect("received"), sent);
        assert!(link.counters().tx_full >= 3);
    }

    proptest! {
        #[test]
        fn no_more_goes_than_the_rate_allows_and_no_less(
            rate in 1_000..10_000_000_u64,
            burst_bytes in 0..10_000_u64,
            steps in proptest::collection::vec((0..5_000_u64, 1..2_000_u64), 1..200),
        ) {
            let mut bucket = Bucket::new(Rate { bytes_per_second: rate, burst_bytes }, MS);
            let (mut now, mut sent, mut last) = (MS, 0, 0);
            for (pause_us, frame_bytes) in steps {
                now += Duration::from_micros(pause_us);
                bucket.fill(now);
                while bucket.may_send() {
                    bucket.take(frame_bytes);
                    sent += frame_bytes;
                    last = frame_bytes;
                }
                let seconds = (now - MS).as_secs_f64();
                let most = rate as f64 * seconds + (burst_bytes + last) as f64 + 1.0;
                prop_assert!(sent as f64 <= most, "{sent} in {seconds} s");
                // All that was allowed is used, so after each step nothing is left over.
                prop_assert!(bucket.next_room().is_some());
            }
        }
    }
}
