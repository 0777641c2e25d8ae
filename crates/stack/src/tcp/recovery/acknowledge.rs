//! Processing of acknowledgments, from the cheapest case to full recovery.
//!
//! Read first: RFC 5681 §2 (what a duplicate ACK is), RFC 8985 §6.2 (the steps on an ACK), RFC
//! 9937 §6 (how much may leave in recovery).
//!
//! Most ACKs in a server's life cover the one burst that is outstanding: [`Recovery::on_ack`]
//! tries that first and touches one record.

use core::time::Duration;

use super::records::{ALONE, NIL, Record, Records, Ring, State};
use super::rtt::{is_later, micros, stamp};
use super::{Ack, Acked, DUP_THRESH, Phase, Recovery, Timer, Whole, flag};
use crate::seq::SeqNum;
use crate::tcp::congestion::Growth;
use crate::time::Instant;

/// Coarsest tick of the timestamps that we send (RFC 7323 §5.4). An echo that is older than a
/// transmission by less says nothing.
const TICK_US: u32 = 1_000;
/// Older echoes are not believed: 32 bits of microseconds could not tell them from young ones.
const ECHO_US_MAX: u32 = 1 << 30;

/// What ends with a round, and is not of all connections.
const OF_ROUND: u8 = flag::FILLED | flag::FILLED_BEFORE | flag::WIDENED;

/// An acknowledgment that says how far, and no more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cover {
    pub(crate) now: Instant,
    /// SEG.ACK.
    pub(crate) ack: SeqNum,
    pub(crate) nxt: SeqNum,
}

/// What a plain acknowledgment did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain {
    /// Sequence numbers newly acknowledged: all there were.
    bytes: u32,
    /// The round trip measured.
    rtt_us: u32,
}

/// What one acknowledgment brought, as it is worked out.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) now: Instant,
    pub(super) now_us: u32,
    /// When the echoed timestamp was made, in wrapping microseconds.
    pub(super) echo_us: Option<u32>,
    /// Sequence numbers newly acknowledged.
    pub(super) acked: u32,
    /// Bytes newly acknowledged or SACKed.
    pub(super) delivered: u32,
    /// Bytes newly SACKed.
    pub(super) sacked: u32,
    /// Bytes newly marked lost.
    pub(super) lost: u32,
    /// It counts as a duplicate ACK.
    pub(super) duplicate: bool,
    /// The duplicate reported, if any, in bytes.
    pub(super) dsack_bytes: Option<u32>,
    /// The report is about the last segment of a probe.
    pub(super) dsack_of_probe: bool,
    /// Something up to `mark` arrived that was sent only once.
    original: bool,
    /// Something was acknowledged that was sent more than once.
    ambiguous: bool,
    rtt_us: Option<u32>,
}

impl Progress {
    fn new(ack: &Ack<'_>) -> Self {
        let now_us = stamp(ack.now);
        Self {
            now: ack.now,
            now_us,
            echo_us: ack
                .echo_rtt
                .map(micros)
                .filter(|ago| *ago < ECHO_US_MAX)
                .map(|ago| now_us.wrapping_sub(ago)),
            acked: 0,
            delivered: 0,
            sacked: 0,
            lost: 0,
            duplicate: false,
            dsack_bytes: None,
            dsack_of_probe: false,
            original: false,
            ambiguous: false,
            rtt_us: None,
        }
    }

    pub(super) const fn original(&self) -> bool {
        self.original
    }

    /// The echo says that what arrived left before `sent_us`.
    pub(super) fn is_older_than(&self, sent_us: u32) -> bool {
        self.echo_us.is_some_and(|echo| !is_later(echo.wrapping_add(TICK_US), sent_us))
    }
}

impl Recovery {
    /// An acknowledgment arrived.
    pub(crate) fn on_ack(&mut self, records: &mut Records, ack: &Ack<'_>) -> Acked {
        let is_silent = !ack.ece && ack.sack.is_empty();
        let cover = Cover { now: ack.now, ack: ack.ack, nxt: ack.nxt };
        if is_silent && let Some(Plain { bytes, rtt_us }) = self.on_plain_ack(records, cover) {
            let rtt = Some(Duration::from_micros(u64::from(rtt_us)));
            return Acked { bytes, delivered: bytes, rtt, ..Acked::default() };
        }
        self.whole(records, |whole, records| whole.on_any_ack(records, ack))
    }

    /// The same, where all that is outstanding is one burst, sent once, which is acknowledged whole
    /// by a segment that has neither SACK nor ECE. `None`: it is not as plain as that, and nothing
    /// happened.
    #[inline(always)]
    pub(crate) fn on_plain_ack(&mut self, records: &mut Records, cover: Cover) -> Option<Plain> {
        if self.head != ALONE {
            return self.on_plain_ack_of_record(records, cover);
        }
        let range = self.unwritten();
        if range.end != cover.ack {
            return None;
        }
        records.give_reserved();
        let left = (range.len(), self.rack_sent_us);
        Some(self.finish_plain_ack(records, cover, left))
    }

    /// The same of a burst that has a record.
    #[inline(never)]
    fn on_plain_ack_of_record(&mut self, records: &mut Records, cover: Cover) -> Option<Plain> {
        if self.phase != Phase::Open {
            return None;
        }
        let left = records.give_plain(self.head, cover.ack)?;
        Some(self.finish_plain_ack(records, cover, left))
    }

    /// All is acknowledged: so many bytes, which left then.
    #[inline(always)]
    fn finish_plain_ack(
        &mut self,
        records: &mut Records,
        cover: Cover,
        (bytes, sent_us): (u32, u32),
    ) -> Plain {
        let Cover { now, ack, nxt } = cover;
        let rtt_us = self.end_burst(now, sent_us);
        self.rtt.sample(now, rtt_us, samples_in(bytes));
        let plain = Plain { bytes, rtt_us };
        // Nothing is outstanding: the end of the round, and `mark`, are set when something is. But
        // what else was of the round ends with it.
        if self.stress.is_some() || self.flags & OF_ROUND != 0 {
            self.on_plain_ack_under_stress(records, (now, ack, nxt), plain);
        }
        plain
    }

    /// All that was outstanding, and left at `sent_us`, is acknowledged: its round trip, which is a
    /// sample.
    #[inline(always)]
    fn end_burst(&mut self, now: Instant, sent_us: u32) -> u32 {
        self.head = NIL;
        self.oldest = NIL;
        let rtt_us = stamp(now).wrapping_sub(sent_us);
        self.backoff = 0;
        self.retries = 0;
        self.rack_sent_us = sent_us;
        self.rack_rtt_us = rtt_us;
        // RFC 6298 §5.2. What was sent last was delivered last.
        self.timer = Timer::Idle;
        self.at = now.micros_ago(rtt_us);
        rtt_us
    }

    /// All that is outstanding is a small burst of `bytes` bytes which has no record; it is
    /// acknowledged, and nothing else ends with it.
    #[inline(always)]
    pub(crate) const fn is_ended_by(&self, ack: SeqNum, bytes: u32) -> bool {
        self.head == ALONE
            && ack.0 == self.unwritten().end.0
            && samples_in(bytes) == 1
            && self.rtt.is_known()
            && self.flags & OF_ROUND == 0
    }

    /// As [`Recovery::on_plain_ack`], where [`Recovery::is_ended_by`] said that it is no more.
    #[inline(always)]
    pub(crate) fn on_ended(&mut self, records: &mut Records, now: Instant) {
        debug_assert!(self.head == ALONE && !self.stress.is_some(), "a burst without a record");
        records.give_reserved();
        let rtt_us = self.end_burst(now, self.rack_sent_us);
        self.rtt.sample_once(now, rtt_us);
    }

    #[inline(never)]
    fn on_plain_ack_under_stress(
        &mut self,
        records: &mut Records,
        (now, ack, nxt): (Instant, SeqNum, SeqNum),
        plain: Plain,
    ) {
        let cover = Cover { now, ack, nxt };
        self.whole(records, |whole, records| whole.on_plain_ack(records, cover, plain));
        self.keep_mark_near(ack);
    }

    /// Between episodes `mark` stays one behind what is acknowledged, so that a comparison with
    /// it never wraps; duplicates of an ACK at `mark` itself begin nothing (RFC 6582 §3.2).
    #[inline]
    fn keep_mark_near(&mut self, ack: SeqNum) {
        if self.phase == Phase::Open && ack.after(self.mark) {
            self.mark = ack - 1;
        }
    }
}

impl Whole<'_> {
    /// The one burst that was outstanding is acknowledged.
    fn on_plain_ack(&mut self, records: &Records, cover: Cover, plain: Plain) {
        let Cover { now, ack, nxt } = cover;
        self.stress.algorithm.on_rtt(plain.rtt_us);
        // Without SACK: what duplicates counted left the network then, and was replaced at once.
        let counted = self.stress.sacked.min(plain.bytes.saturating_sub(self.mss()));
        self.stress.dupacks = 0;
        self.stress.sacked = 0;
        self.stress.rack_end = ack;
        self.stress.fack = ack;
        self.grow(records, millis(now), plain.bytes - counted);
        self.end_round(records, ack, nxt);
    }

    pub(super) fn on_any_ack(&mut self, records: &mut Records, ack: &Ack<'_>) -> Acked {
        let mut progress = Progress::new(ack);
        let flight = self.rest.outstanding(records);
        self.advance(records, ack.ack, &mut progress);
        if self.rest.has(flag::SACK) {
            self.read_sack(records, ack, &mut progress);
        } else {
            self.count_duplicates(records, ack, &mut progress);
        }
        self.note_highest(records, ack, &progress);
        let rtt = self.measure(&progress, flight);
        let reorder = self.find_lost(records, &mut progress);
        let mut acked = Acked {
            bytes: progress.acked,
            delivered: progress.delivered,
            rtt,
            dsack: progress.dsack_bytes.is_some(),
            ..Acked::default()
        };
        let was_paced = self.rest.phase == Phase::Recovery || self.is_reduced();
        self.next_phase(records, ack, &mut progress, flight, &mut acked);
        acked.lost = progress.lost;
        match self.rest.phase {
            Phase::Recovery => self.pace(records, &progress),
            // Where a probe's verdict waits, all that was reduced for may be acknowledged.
            _ if self.is_reduced() && ack.ack.before(self.rest.mark) => {
                self.pace(records, &progress);
            }
            Phase::FirstAck | Phase::NewData => {}
            // What ends a recovery was sent by its rules, not by the window that grows now.
            _ if was_paced || self.is_reduced() => {}
            _ if progress.acked > 0 => {
                // What was SACKed before left the network then, and was replaced at once.
                let news = progress.acked.min(progress.delivered);
                self.grow(records, millis(ack.now), news);
            }
            _ => {}
        }
        if progress.acked > 0 && !acked.left {
            self.end_round(records, ack.ack, ack.nxt);
        }
        self.rest.keep_mark_near(ack.ack);
        let reorder = if self.rest.oldest == NIL { None } else { reorder };
        self.arm(records, ack.now, reorder, progress.acked > 0);
        acked
    }

    /// Takes what `ack` covers off the scoreboard.
    fn advance(&mut self, records: &mut Records, ack: SeqNum, progress: &mut Progress) {
        while self.rest.head != NIL {
            let index = self.rest.head;
            let record = *records.get(index);
            if !record.range.start.before(ack) {
                break;
            }
            let end = record.range.end.earlier(ack);
            let bytes = end.since(record.range.start);
            progress.acked += bytes;
            progress.ambiguous |= record.resent && record.state != State::Sacked;
            match record.state {
                State::Sacked => self.stress.sacked -= bytes,
                State::InFlight => self.deliver(&record, end, bytes, progress),
                State::Lost => {
                    self.stress.lost -= bytes;
                    self.deliver(&record, end, bytes, progress);
                }
            }
            if end == record.range.end {
                self.unlink_from_state_ring(records, index);
                records.unlink(Ring::Sequence, &mut self.rest.head, index);
                records.give(index);
            } else {
                records.get_mut(index).range.start = end;
                if record.partial && record.state == State::InFlight {
                    // Only its first segment was resent.
                    self.mark_lost(records, index);
                }
            }
        }
    }

    /// `bytes` of `record`, the last of them before `end`, have arrived, and that is news.
    pub(super) fn deliver(
        &mut self,
        record: &Record,
        end: SeqNum,
        bytes: u32,
        progress: &mut Progress,
    ) {
        progress.delivered += bytes;
        let rtt_us = progress.now_us.wrapping_sub(record.sent_us);
        if record.resent {
            // RFC 8985 §6.2, step 2: it may be the first transmission that arrived.
            if progress.is_older_than(record.sent_us) || rtt_us < self.rest.rtt.min_us() {
                return;
            }
        } else {
            progress.original |= end.at_or_before(self.rest.mark);
            if !record.blurred {
                progress.rtt_us = Some(progress.rtt_us.map_or(rtt_us, |least| least.min(rtt_us)));
            }
            if end.before(self.stress.fack) {
                // RFC 8985 §6.2, step 3: what was sent later was delivered earlier.
                self.rest.flags |= flag::REORDERS;
            }
        }
        if is_later(record.sent_us, self.rest.rack_sent_us)
            || (record.sent_us == self.rest.rack_sent_us && end.after(self.stress.rack_end))
        {
            self.rest.rack_sent_us = record.sent_us;
            self.stress.rack_end = end;
            self.rest.rack_rtt_us = rtt_us;
        }
    }

    /// Without SACK: a duplicate ACK says that one more segment left the network.
    fn count_duplicates(&mut self, records: &mut Records, ack: &Ack<'_>, progress: &mut Progress) {
        if progress.acked > 0 {
            // Those that were counted are now acknowledged, but for the one that was missing.
            let counted = self.stress.sacked.min(progress.acked.saturating_sub(self.rest.mss()));
            progress.delivered -= counted;
            self.stress.sacked =
                if self.rest.phase == Phase::Recovery { self.stress.sacked - counted } else { 0 };
            self.limit_counted(records);
            self.stress.dupacks = 0;
            return;
        }
        // RFC 5681 §2.
        let outstanding = self.rest.outstanding(records);
        let duplicate = ack.ack == ack.una && outstanding > 0;
        if !duplicate || ack.has_payload || ack.window_changed {
            return;
        }
        progress.duplicate = true;
        self.stress.dupacks = self.stress.dupacks.saturating_add(1);
        // The missing segment itself is never among those that left.
        let most = (outstanding - self.stress.lost).saturating_sub(self.rest.mss());
        let sacked = (self.stress.sacked + self.rest.mss()).min(most).max(self.stress.sacked);
        progress.delivered += sacked - self.stress.sacked;
        self.stress.sacked = sacked;
    }

    /// Takes an RTT sample, if this acknowledgment has one.
    fn measure(&mut self, progress: &Progress, flight: u32) -> Option<Duration> {
        // RFC 6298 §3 (Karn): with a retransmission among them, only an echo can tell.
        let exact = progress.rtt_us.filter(|_| !progress.ambiguous);
        let echoed = progress.echo_us.filter(|_| progress.acked > 0);
        // An echo is good to a tick: taken as less, it would pass for the smallest RTT.
        let rtt_us =
            exact.or_else(|| echoed.map(|echo| progress.now_us.wrapping_sub(echo).max(TICK_US)));
        if progress.acked > 0 {
            self.rest.retries = 0;
        }
        let rtt_us = rtt_us?;
        self.rest.rtt.sample(progress.now, rtt_us, samples_in(flight));
        self.rest.backoff = 0;
        if exact.is_some() {
            self.stress.algorithm.on_rtt(rtt_us);
        }
        Some(Duration::from_micros(u64::from(rtt_us)))
    }

    /// RACK.fack, and the count of ACKs that brought news out of order.
    fn note_highest(&mut self, records: &Records, ack: &Ack<'_>, progress: &Progress) {
        self.stress.fack = self.stress.fack.later(ack.ack);
        if !self.rest.has(flag::SACK) {
            return;
        }
        if progress.sacked > 0 {
            for block in ack.sack {
                let known = self.rest.head != NIL && block.end.at_or_before(ack.nxt);
                if known && block.end.after(records.get(self.rest.head).range.start) {
                    self.stress.fack = self.stress.fack.later(block.end);
                }
            }
        }
        if progress.acked > 0 && self.rest.phase == Phase::Open {
            self.stress.dupacks = 0;
        } else if progress.sacked > 0 {
            self.stress.dupacks = self.stress.dupacks.saturating_add(1);
        }
    }

    /// Marks what is lost. Returns how long until more will be, in microseconds.
    fn find_lost(&mut self, records: &mut Records, progress: &mut Progress) -> Option<u32> {
        let before = self.stress.lost;
        let mut reorder = None;
        if self.rest.has(flag::RACK) {
            reorder = self.detect(records, progress.now_us);
        } else if self.rest.has(flag::SACK) {
            if self.stress.sacked > 0 {
                self.mark_by_count(records);
            }
        } else {
            self.mark_by_duplicates(records, progress);
        }
        progress.lost += self.stress.lost - before;
        reorder
    }

    /// Without SACK: the third duplicate, and each partial acknowledgment (RFC 6582 §3.2).
    fn mark_by_duplicates(&mut self, records: &mut Records, progress: &Progress) {
        if self.rest.head == NIL {
            return;
        }
        let start = records.get(self.rest.head).range.start;
        let third = self.stress.dupacks == DUP_THRESH
            && progress.duplicate
            && start.after(self.rest.mark)
            && matches!(self.rest.phase, Phase::Open | Phase::Reduced);
        let partial = self.rest.phase == Phase::Recovery
            && progress.acked > 0
            && start.before(self.rest.mark);
        if third || partial {
            self.mark_first_lost(records);
        }
    }

    /// Lets the window grow by what was acknowledged, if it was full.
    fn grow(&mut self, records: &Records, now_ms: u32, acked: u32) {
        let after_timeout = self.rest.phase == Phase::Loss;
        if self.rest.flags & (flag::FILLED | flag::FILLED_BEFORE) == 0 && !after_timeout {
            self.stress.algorithm.pause();
            return;
        }
        let mss = self.rest.mss();
        let srtt_us = self.rest.rtt.srtt_us();
        let limited = records.policy.slow_start_limits;
        let growth = Growth { acked, mss, now_ms, srtt_us, after_timeout, limited };
        self.stress.algorithm.grow(records.policy.congestion, &mut self.rest.window, &growth);
    }

    /// A round trip is over when what was SND.NXT at its beginning is acknowledged.
    fn end_round(&mut self, records: &Records, ack: SeqNum, nxt: SeqNum) {
        if ack.before(self.rest.round_end) {
            return;
        }
        self.rest.round_end = nxt;
        if self.rest.phase == Phase::Open {
            // What D-SACKs had to say about the last episode, they have said.
            self.stress.prior.cwnd = 0;
        }
        let filled = self.rest.has(flag::FILLED);
        self.rest.flags &= !(flag::FILLED | flag::FILLED_BEFORE | flag::WIDENED);
        if filled {
            self.rest.flags |= flag::FILLED_BEFORE;
        }
        self.stress.algorithm.on_round(records.policy.congestion, &mut self.rest.window);
    }

    /// Proportional rate reduction (RFC 9937 §6).
    pub(super) fn pace(&mut self, records: &Records, progress: &Progress) {
        let first = self.rest.phase == Phase::Recovery && self.stress.prr_out == 0;
        if progress.delivered == 0 && !first {
            return;
        }
        self.stress.prr_delivered = self.stress.prr_delivered.saturating_add(progress.delivered);
        let pipe = self.in_flight(records);
        let ssthresh = self.rest.window.ssthresh;
        let room = if pipe > ssthresh {
            let earned = u64::from(self.stress.prr_delivered) * u64::from(ssthresh);
            let earned = earned.div_ceil(u64::from(self.stress.prr_flight));
            u32::try_from(earned).unwrap_or(u32::MAX).saturating_sub(self.stress.prr_out)
        } else {
            // What was delivered is replaced; an ACK that advances and shows no further loss
            // earns one segment more.
            let behind = self.stress.prr_delivered.saturating_sub(self.stress.prr_out);
            let is_safe = progress.acked > 0 && progress.lost == 0;
            let more = if is_safe { self.rest.mss() } else { 0 };
            behind.max(progress.delivered).saturating_add(more).min(ssthresh - pipe)
        };
        // The fast retransmission itself leaves in any case, and without SACK the next hole that a
        // partial acknowledgment shows (RFC 6582 §3.2, step 3).
        let hole = progress.lost > 0 && !self.rest.has(flag::SACK);
        let room = if first || hole { room.max(self.rest.mss()) } else { room };
        self.rest.window.cwnd = pipe.saturating_add(room).max(self.rest.mss());
    }
}

/// About how many RTT samples a flight of `bytes` brings, one for two full segments.
const fn samples_in(bytes: u32) -> u32 {
    1 + (bytes >> 12)
}

/// `now` in wrapping milliseconds.
pub(super) const fn millis(now: Instant) -> u32 {
    now.as_millis() as u32
}
