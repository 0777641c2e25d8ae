//! Search for larger segments after they were made smaller: sizes tried, and when to try the next.
//!
//! Read first: RFC 4821 §7; `plpmtud.rs`, which sends the probes.

use core::time::Duration;

use super::deadline::Deadline;
use crate::limits::PATH_PROBE_GAIN_BYTES;
use crate::seq::{SeqNum, SeqRange};
use crate::time::Instant;

/// The first probe after segments vanished: an outage may be over.
const FIRST_AFTER: Duration = Duration::from_secs(5);
/// From one answer to the next probe.
const NEXT_AFTER: Duration = Duration::from_secs(1);
/// When all is known, and after what a router said (RFC 1191 §6.3).
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// So many probes of a size that show nothing show that it is too large.
const TRIES_MAX: u8 = 3;

/// What a connection knows of sizes that it does not use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    /// No probe before. Never: segments are as large as they were agreed to be.
    pub(super) at: Deadline,
    /// The smallest size that did not get through.
    pub(super) too_large: u16,
    /// Payload of the probe that leaves when there is enough to send; 0: none does.
    pub(super) wanted: u16,
    /// Payload of the probe that is on its way; 0: none is.
    pub(super) size: u16,
    /// One past its last byte.
    pub(super) end: SeqNum,
    /// What was sent again since it left: something of it, and something else.
    pub(super) sent_again: [bool; 2],
    /// Probes of one size that showed nothing.
    pub(super) tries: u8,
}

impl Search {
    /// Nothing to be searched for.
    pub(crate) const NONE: Self = Self {
        at: Deadline::NEVER,
        too_large: u16::MAX,
        wanted: 0,
        size: 0,
        end: SeqNum(0),
        sent_again: [false; 2],
        tries: 0,
    };

    /// Segments were made smaller, and may grow again after so long.
    pub(super) fn begin(&mut self, now: Instant, after: Duration) {
        *self = Self { at: Deadline::after(now, after), ..Self::NONE };
    }

    /// They vanished.
    pub(super) fn begin_after_silence(&mut self, now: Instant) {
        self.begin(now, FIRST_AFTER);
    }

    /// These bytes are sent again.
    pub(super) fn note_sent_again(&mut self, range: SeqRange) {
        let start = self.end - u32::from(self.size);
        let is_its = self.end.after(range.start) && range.end.after(start);
        self.sent_again[usize::from(!is_its)] = true;
    }

    /// The probe has left.
    pub(super) fn note_probe(&mut self, end: SeqNum) {
        self.size = core::mem::take(&mut self.wanted);
        self.end = end;
        self.sent_again = [false; 2];
    }

    /// What the probe has shown, if `snd_una` acknowledges all of it: the new size.
    pub(super) fn outcome(&mut self, snd_una: SeqNum, now: Instant) -> Option<u16> {
        if self.size == 0 || self.end.after(snd_una) {
            return None;
        }
        self.at = Deadline::after(now, NEXT_AFTER);
        let size = core::mem::take(&mut self.size);
        match self.sent_again {
            [true, true] if self.tries + 1 < TRIES_MAX => {
                self.tries += 1;
                return None;
            }
            [true, _] => self.too_large = size,
            [false, _] => {}
        }
        self.tries = 0;
        (!self.sent_again[0]).then_some(size)
    }

    /// Decides on the next probe, where segments of `mss` bytes leave and `most` may be possible.
    pub(super) fn plan(&mut self, (mss, most): (u16, u16), now: Instant) {
        if self.size > 0 || self.wanted > 0 || !self.at.has_come(now) {
            return;
        }
        let untried = most.min(self.too_large.saturating_sub(1));
        if untried < mss.saturating_add(PATH_PROBE_GAIN_BYTES) {
            return self.begin(now, AGAIN_AFTER);
        }
        // All of it first: an outage says nothing of sizes.
        let is_first = self.too_large == u16::MAX;
        self.wanted = if is_first { untried } else { mss + (untried - mss).div_ceil(2) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    /// Searches on a path that takes segments up to `path` bytes; the sizes that were tried, and
    /// the size in the end.
    fn search(mut mss: u16, path: u16, most: u16) -> (Vec<u16>, u16) {
        let mut search = Search::NONE;
        search.begin_after_silence(at(1));
        let (mut tried, mut seq) = (Vec::new(), SeqNum(7));
        for second in 2..500 {
            search.plan((mss, most), at(second));
            if search.wanted == 0 {
                continue;
            }
            tried.push(search.wanted);
            let range = SeqRange::new(seq, search.wanted.into());
            search.note_probe(range.end);
            seq = range.end;
            assert_eq!(search.outcome(range.end - 1, at(second)), None);
            if search.size > path {
                search.note_sent_again(SeqRange::new(range.start, mss.into()));
            }
            mss = search.outcome(range.end, at(second)).unwrap_or(mss);
        }
        (tried, mss)
    }

    #[test]
    fn after_an_outage_the_first_probe_is_the_last() {
        assert_eq!(search(536, 1460, 1460), (vec![1460], 1460));
    }

    #[test]
    fn a_search_ends_close_to_what_the_path_takes_and_above_it_never() {
        for path in 536..=1460 {
            let (tried, mss) = search(536, path, 1460);
            assert!(mss <= path && path - mss < PATH_PROBE_GAIN_BYTES, "{path}: {tried:?}");
            assert!(tried.len() <= 8, "{path}: {tried:?}");
        }
        assert_eq!(search(1024, 1024, 1024 + PATH_PROBE_GAIN_BYTES - 1), (vec![], 1024));
    }

    #[test]
    fn a_search_that_is_over_begins_again_after_ten_minutes() {
        let mut search = Search::NONE;
        search.begin_after_silence(at(1));
        search.too_large = 1030;
        search.plan((1024, 1460), at(10));
        assert_eq!(search.wanted, 0);
        search.plan((1024, 1460), at(609));
        assert_eq!(search.wanted, 0);
        search.plan((1024, 1460), at(610));
        assert_eq!(search.wanted, 1460);
    }

    #[test]
    fn bytes_of_the_probe_that_are_sent_again_are_known_from_others() {
        for (start, len, is_its) in
            [(0, 1000, false), (0, 1001, true), (2459, 1, true), (2460, 9, false)]
        {
            let mut search = Search { wanted: 1460, ..Search::NONE };
            search.note_probe(SeqNum(2460));
            search.note_sent_again(SeqRange::new(SeqNum(start), len));
            let larger = search.outcome(SeqNum(2460), at(1));
            assert_eq!(larger, (!is_its).then_some(1460), "{start}");
            assert_eq!(search.too_large, if is_its { 1460 } else { u16::MAX }, "{start}");
        }
    }

    #[test]
    fn a_probe_that_is_lost_with_others_is_tried_again_some_times() {
        let mut search = Search::NONE;
        search.begin_after_silence(at(1));
        for second in [10, 12, 14] {
            search.plan((1012, 1448), at(second));
            assert_eq!(search.wanted, 1448);
            search.note_probe(SeqNum(5000));
            search.note_sent_again(SeqRange::new(SeqNum(2000), 1012));
            search.note_sent_again(SeqRange::new(SeqNum(4000), 1000));
            assert_eq!(search.outcome(SeqNum(5000), at(second)), None);
        }
        search.plan((1012, 1448), at(16));
        assert_eq!(search.wanted, 1230);
    }
}
