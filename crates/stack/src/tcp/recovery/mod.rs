//! Loss recovery: sent ranges, loss detection, retransmission, data in flight.
//!
//! Read first: RFC 6298 (the timer), RFC 5681 §3 (congestion control), RFC 8985 (RACK-TLP), RFC
//! 9937 (how recovery is paced), then RFC 6582 (recovery without SACK) and RFC 3522 / RFC 5682
//! (recovery that was needless).
//!
//! ```text
//!  SND.UNA                    the scoreboard                              SND.NXT
//!    |                                                                       |
//!    v                                                                       v
//!    +--------+---------------+------+--------+-----------------+------------+
//!    | Lost   | Sacked        |InFl. | Sacked | Lost            | InFlight   |   records
//!    +--------+---------------+------+--------+-----------------+------------+
//!      resend   the peer has    may    ^                          sent last
//!      next     it              be     `- RACK: what left before the latest of these, and
//!                               late      more than a reordering window ago, is lost
//!
//!  in flight = outstanding - sacked - lost;  allowance = cwnd - in flight
//! ```
//!
//! ```text
//!            lost > 0                          ack >= mark
//!   Open ---------------> Recovery ------------------------> Open      halved once, paced by PRR
//!   Open -- ECE --------> Reduced  -- ack >= mark ---------> Open      the same without a loss
//!   Open -- PTO --------> ProbeDue -- sent --> Probing ----> Open      tail loss probe
//!   any  -- RTO --------> FirstAck -> NewData -> Loss -----> Open      F-RTO, then slow start
//!   Recovery, Loss, ... -- it was needless ----------------> Open      undo
//! ```
//!
//! Everything is a function of (input, now). The caller's turn:
//!
//! 1. [`Recovery::on_ack`] for each segment that carries an ACK; [`Recovery::on_timeout`] when
//!    [`Recovery::deadline`] has passed.
//! 2. [`Recovery::restart_after_idle`] before a burst; then, while something may leave: first
//!    [`Recovery::next_retransmission`], then new data up to [`Recovery::allowance`] bytes (and
//!    the peer's window, which is not known here), each followed by [`Recovery::on_sent`].
//!
//! Invariants
//! - Lost and sacked bytes are never more than outstanding bytes.
//! - The peer's SACK blocks mark what was sent and nothing else; they cost records only where a
//!   border of segments has to be cut free, and never the last ones of the pool.
//! - Without SACK, each duplicate ACK counts as one MSS that left the network (`sacked`): RFC
//!   5681's inflated window, said the other way round. Limited transmit (RFC 3042) follows.

mod acknowledge;
mod episode;
mod fast_path;
mod policy;
mod rack;
mod records;
mod rtt;
mod scoreboard;
#[cfg(test)]
mod tests;
mod timer;

use core::time::Duration;

pub(crate) use acknowledge::Cover;
use policy::Policy;
pub(crate) use records::Records;
use records::{ALONE, NIL, Ring, State};
use rtt::{Rtt, stamp};

use super::congestion::{Algorithm, Window};
use crate::seq::{SeqNum, SeqRange};
use crate::slab::Spare;
use crate::time::Instant;

/// RFC 6928 §2: the bytes of an initial window where segments are small.
const INITIAL_SEGMENT_BYTES: u32 = 1460;
/// RFC 5681 §3.2: so many duplicate ACKs mean loss.
const DUP_THRESH: u8 = 3;
/// RTO of data after the SYN's timer went off, without a sample (RFC 6298 §5.7).
const RTO_AFTER_SYN_US: u32 = 3_000_000;

/// A connection's flags.
mod flag {
    /// SACK is agreed.
    pub(super) const SACK: u8 = 1 << 0;
    /// RACK-TLP decides what is lost, and not counts of duplicates.
    pub(super) const RACK: u8 = 1 << 1;
    /// The network was seen to reorder (RFC 8985 §6.2, step 3).
    pub(super) const REORDERS: u8 = 1 << 2;
    /// The reordering window grew in this round (RFC 8985 §6.2, step 4).
    pub(super) const WIDENED: u8 = 1 << 3;
    /// The tail loss probe was old data (RFC 8985 §7.3).
    pub(super) const PROBE_RESENT: u8 = 1 << 4;
    /// The window was filled in this round.
    pub(super) const FILLED: u8 = 1 << 5;
    /// It was in the last one.
    pub(super) const FILLED_BEFORE: u8 = 1 << 6;
    /// The SYN was resent (RFC 6298 §5.7).
    pub(super) const SYN_RESENT: u8 = 1 << 7;
}

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// Nothing: the window grows.
    Open,
    /// The probe timer went off; the next segment sent is the probe.
    ProbeDue,
    /// A tail loss probe is out, up to `mark` (RFC 8985 §7.3).
    Probing,
    /// The window was reduced without a loss; until `mark` not again (RFC 3168 §6.1.2).
    Reduced,
    /// Fast recovery until `mark` is acknowledged (RFC 6675 §5, RFC 6582 §3.2).
    Recovery,
    /// After a timeout, before the first ACK (RFC 5682 §2.1 and §3.1, step 1).
    FirstAck,
    /// New data is out to see whether the timeout was needless (step 2).
    NewData,
    /// After a timeout: everything up to `mark` is sent again as needed (RFC 5681 §3.1).
    Loss,
}

/// What [`Recovery::deadline`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Timer {
    /// Nothing is outstanding. `at` is when something was sent last.
    Idle,
    /// Retransmission (RFC 6298).
    Retransmit,
    /// Tail loss probe (RFC 8985 §7.2).
    Probe,
    /// A segment becomes lost unless it is acknowledged before (RFC 8985 §6.2, step 5).
    Reorder,
}

/// Loss recovery and congestion control of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovery {
    /// When `timer` goes off.
    at: Instant,
    /// The oldest record by sequence number; [`ALONE`]: one burst is out, which has none.
    head: u32,
    /// The record in flight that was sent longest ago; where that burst begins.
    oldest: u32,
    rtt: Rtt,
    window: Window,
    /// RACK.segment: of what was delivered, what was sent last, when.
    rack_sent_us: u32,
    rack_rtt_us: u32,
    /// When this is acknowledged, a round trip is over.
    round_end: SeqNum,
    /// What `phase` says.
    mark: SeqNum,
    stress: Spare,
    mss: u16,
    /// Timeouts since the last RTT sample (RFC 6298 §5.5).
    backoff: u8,
    /// Timeouts since the last progress.
    retries: u8,
    phase: Phase,
    timer: Timer,
    flags: u8,
}

const _: () = assert!(size_of::<Recovery>() <= 64);

/// What only a connection has that fills its window or that segments of got lost.
///
/// One that has none says the same as one with [`Stress::none`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Stress {
    algorithm: Algorithm,
    /// The lost record with the lowest sequence number.
    lost_head: u32,
    /// Bytes that the peer has beyond SND.UNA.
    sacked: u32,
    /// Bytes marked lost and not resent.
    lost: u32,
    /// The end of RACK.segment.
    rack_end: SeqNum,
    /// RACK.fack: the highest end delivered.
    fack: SeqNum,
    /// PRR (RFC 9937 §6): delivered and sent since recovery began, and outstanding then.
    prr_delivered: u32,
    prr_out: u32,
    prr_flight: u32,
    /// The window before the last reduction that may be undone; `cwnd` zero: none.
    prior: Window,
    /// When the first retransmission since then left.
    resent_at_us: u32,
    /// Retransmissions since then that no D-SACK has called needless.
    resent: u16,
    dupacks: u8,
    /// RACK.reo_wnd_mult and RACK.reo_wnd_persist.
    reo_mult: u8,
    reo_persist: u8,
    /// The probe that is due or out began in [`Phase::Reduced`].
    probe_of_reduced: bool,
}

const _: () = assert!(size_of::<Stress>() <= 80);

impl Stress {
    /// Nothing was learnt of the path, and everything up to `una` was delivered in order.
    fn none(una: SeqNum) -> Self {
        Self {
            algorithm: Algorithm::new(),
            lost_head: NIL,
            sacked: 0,
            lost: 0,
            rack_end: una,
            fack: una,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 0,
            prior: Window { cwnd: 0, ssthresh: 0 },
            resent_at_us: 0,
            resent: 0,
            dupacks: 0,
            reo_mult: 1,
            reo_persist: 0,
            probe_of_reduced: false,
        }
    }

    /// It need not be kept between `phase` and the next event: with nothing SACKed `fack` and
    /// `rack_end` are not beyond SND.UNA, and the rest is of episodes.
    fn says_nothing(&self, phase: Phase) -> bool {
        matches!(phase, Phase::Open | Phase::ProbeDue | Phase::Probing)
            && self.sacked | self.lost | self.prior.cwnd == 0
            && self.lost_head == NIL
            && self.dupacks == 0
            && !self.probe_of_reduced
            && (self.reo_mult, self.reo_persist) == (1, 0)
            && self.algorithm.is_fresh()
    }
}

/// A connection's recovery with all that belongs to it, for one call.
struct Whole<'a> {
    rest: &'a mut Recovery,
    stress: Stress,
}

/// What a connection begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// Largest payload of a segment to this peer in bytes, options taken off.
    pub(crate) mss: u32,
    /// SACK is agreed.
    pub(crate) sack: bool,
    /// How often our SYN or SYN-ACK was sent again.
    pub(crate) syn_retransmissions: u8,
    /// The handshake's round trip in microseconds, where it is known for sure.
    pub(crate) rtt_us: Option<u32>,
}

/// Why bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// For the first time.
    New,
    /// As [`Recovery::next_retransmission`] asked.
    Retransmission,
    /// As [`Timeout::Probe`] asked, old data. (New data as a probe is `New`.)
    Probe,
}

/// No record is free: send nothing now, and try again when an ACK has freed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// A segment with an acknowledgment that is acceptable: `ack` is not after SND.NXT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack<'a> {
    pub(crate) now: Instant,
    /// SEG.ACK.
    pub(crate) ack: SeqNum,
    /// SND.UNA before this segment.
    pub(crate) una: SeqNum,
    pub(crate) nxt: SeqNum,
    /// The SACK blocks as the segment has them; what is not ours to believe is ignored.
    pub(crate) sack: &'a [SeqRange],
    /// How long ago the echoed timestamp was made, by a clock of ticks of at most 1 ms; `None` too
    /// where nothing new is acknowledged.
    pub(crate) echo_rtt: Option<Duration>,
    /// ECE is set, and ECN is in use.
    pub(crate) ece: bool,
    /// SND.WND changes.
    pub(crate) window_changed: bool,
    /// The segment carries data, SYN or FIN.
    pub(crate) has_payload: bool,
    /// Unsent bytes wait, and the peer's window lets them go.
    pub(crate) unsent: bool,
}

/// What an acknowledgment did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Acked {
    /// Sequence numbers newly acknowledged.
    pub(crate) bytes: u32,
    /// Bytes that are now known to have arrived: acknowledged or SACKed for the first time.
    pub(crate) delivered: u32,
    /// Bytes newly marked lost.
    pub(crate) lost: u32,
    /// The round trip measured.
    pub(crate) rtt: Option<Duration>,
    /// Fast recovery began.
    pub(crate) entered: bool,
    /// Fast recovery, or what followed a timeout, is over.
    pub(crate) left: bool,
    /// The last reduction was needless and is undone.
    pub(crate) undone: bool,
    /// The peer reported a duplicate (RFC 2883).
    pub(crate) dsack: bool,
    /// The window was reduced: set CWR on the next new data (RFC 3168 §6.1.2).
    pub(crate) cwr: bool,
}

/// What to do because time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// Nothing, or more of what is being done: look at `next_retransmission`.
    Nothing,
    /// Send one segment whatever the congestion window says: new data if there is some that the
    /// peer's window takes, else [`Recovery::probe`] as `Sent::Probe`.
    Probe,
    /// The retransmission timer went off for the `count`th time without progress. The window is
    /// one MSS; set CWR on the next new data.
    Retransmit { count: u8 },
}

impl Recovery {
    /// That of a connection to be, where `opening` is assumed.
    pub(crate) fn new(records: &Records, now: Instant, opening: &Opening) -> Self {
        let mut recovery = Self {
            at: now,
            head: NIL,
            oldest: NIL,
            rtt: Rtt::default(),
            window: Window { cwnd: 0, ssthresh: u32::MAX },
            rack_sent_us: 0,
            rack_rtt_us: 0,
            round_end: SeqNum(0),
            mark: SeqNum(0),
            stress: Spare::NONE,
            mss: 0,
            backoff: 0,
            retries: 0,
            phase: Phase::Open,
            timer: Timer::Idle,
            flags: 0,
        };
        recovery.begin(records, now, opening);
        recovery
    }

    /// The connection is now established. Nothing was outstanding so far: neither SYN nor its ACK
    /// is this module's matter.
    #[inline]
    pub(crate) fn begin(&mut self, records: &Records, now: Instant, opening: &Opening) {
        debug_assert!(self.head == NIL && !self.rtt.is_known() && !self.stress.is_some());
        let mss = opening.mss.clamp(1, u32::from(u16::MAX));
        let mut flags = 0;
        if opening.sack {
            flags |= flag::SACK;
        }
        if opening.sack && records.policy.rack {
            flags |= flag::RACK;
        }
        if opening.syn_retransmissions > 0 {
            flags |= flag::SYN_RESENT;
        }
        if let Some(sample_us) = opening.rtt_us {
            self.rtt.sample_first(now, sample_us);
        }
        // RFC 6928 §2: one lost SYN is no reason to start small, two are.
        self.window.cwnd = match opening.syn_retransmissions {
            0 | 1 => initial_window(&records.policy, mss),
            _ => mss,
        };
        self.at = now;
        self.mss = mss as u16;
        self.flags = flags;
    }

    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    const fn mss(&self) -> u32 {
        self.mss as u32
    }

    /// Sequence numbers sent and not cumulatively acknowledged.
    pub(crate) fn outstanding(&self, records: &Records) -> u32 {
        match self.head {
            NIL => return 0,
            ALONE => return self.unwritten().len(),
            _ => {}
        }
        let last = records.last(Ring::Sequence, self.head);
        records.get(last).range.end.since(records.get(self.head).range.start)
    }

    /// Bytes believed to be in the network: `pipe` of RFC 6675.
    pub(crate) fn in_flight(&self, records: &Records) -> u32 {
        let outstanding = self.outstanding(records);
        match records.stresses.get(self.stress) {
            Some(stress) => outstanding.saturating_sub(stress.sacked + stress.lost),
            None => outstanding,
        }
    }

    /// Does something that may concern what only some connections have.
    fn whole<R>(
        &mut self,
        records: &mut Records,
        work: impl FnOnce(&mut Whole<'_>, &mut Records) -> R,
    ) -> R {
        self.write_down(records);
        let kept = records.stresses.get(self.stress).copied();
        let stress = kept.unwrap_or_else(|| Stress::none(self.una(records)));
        let mut whole = Whole { rest: self, stress };
        let done = work(&mut whole, records);
        let Whole { stress, .. } = whole;
        if stress.says_nothing(self.phase) {
            records.stresses.give_back(&mut self.stress);
        } else {
            *records.stresses.get_or_take(&mut self.stress, || stress) = stress;
        }
        done
    }

    /// SND.UNA, or about where it is while nothing is outstanding.
    fn una(&self, records: &Records) -> SeqNum {
        if self.head == NIL { self.mark + 1 } else { records.get(self.head).range.start }
    }

    /// Bytes that may leave now, as far as congestion goes. The peer's window and the sender's
    /// silly window syndrome are the caller's matter.
    #[inline(always)]
    pub(crate) fn allowance(&self, records: &Records) -> u32 {
        if self.head == NIL {
            return self.window.cwnd;
        }
        self.window.cwnd.saturating_sub(self.in_flight(records))
    }

    /// What is to be sent again next, at most one MSS of it; `None`: nothing, or not now.
    pub(crate) fn next_retransmission(&self, records: &Records) -> Option<SeqRange> {
        let lost_head = records.stresses.get(self.stress)?.lost_head;
        // F-RTO asks with new data first (RFC 5682 §2.1, step 2b).
        if lost_head == NIL || self.phase == Phase::NewData {
            return None;
        }
        let range = self.first_segment(records.get(lost_head).range);
        (self.allowance(records) >= range.len().min(self.mss())).then_some(range)
    }

    /// The last segment in flight, after [`Timeout::Probe`]; `None`: an ACK came meanwhile, and a
    /// probe is not due any more.
    pub(crate) fn probe(&self, records: &Records) -> Option<SeqRange> {
        if self.head == NIL || self.phase != Phase::ProbeDue {
            return None;
        }
        debug_assert!(self.head != ALONE, "it was written down when its timer went off");
        let last = records.get(records.last(Ring::Sequence, self.head));
        if last.state != State::InFlight {
            return None;
        }
        // The border of the last segment: the record's segments are full but for the last.
        let over = (last.len() - 1) % self.mss() + 1;
        Some(SeqRange { start: last.range.end - over, end: last.range.end })
    }

    /// The range's first MSS.
    fn first_segment(&self, range: SeqRange) -> SeqRange {
        SeqRange::new(range.start, range.len().min(self.mss()))
    }

    /// Something was lost, and not sent again yet.
    #[inline]
    pub(crate) fn has_lost(&self, records: &Records) -> bool {
        records.stresses.get(self.stress).is_some_and(|stress| stress.lost_head != NIL)
    }

    /// Nothing is missing, as far as anybody knows.
    pub(crate) fn is_calm(&self, records: &Records) -> bool {
        let stress = records.stresses.get(self.stress);
        self.phase == Phase::Open && stress.is_none_or(|stress| stress.sacked | stress.lost == 0)
    }

    /// When [`Recovery::on_timeout`] is to be called.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match self.timer {
            Timer::Idle => None,
            _ => Some(self.at),
        }
    }

    /// `range` leaves now. New data begins where the last ended; a retransmission is what
    /// [`Recovery::next_retransmission`] said, or its beginning. FIN counts, SYN does not.
    ///
    /// # Errors
    /// [`Full`]: there is no record for new data; nothing changed. Never for anything else.
    #[inline(always)]
    pub(crate) fn on_sent(
        &mut self,
        records: &mut Records,
        now: Instant,
        range: SeqRange,
        kind: Sent,
    ) -> Result<(), Full> {
        if kind == Sent::New && self.is_at_rest() {
            return self.send_first(records, now, range);
        }
        self.send_any(records, now, range, kind)
    }

    #[inline(never)]
    fn send_any(
        &mut self,
        records: &mut Records,
        now: Instant,
        range: SeqRange,
        kind: Sent,
    ) -> Result<(), Full> {
        self.write_down(records);
        match kind {
            Sent::New => self.send_new(records, now, range)?,
            Sent::Retransmission => {
                self.whole(records, |whole, records| whole.send_lost(records, now, range));
            }
            Sent::Probe => self.send_probe(records, now, range),
        }
        if let Some(stress) = records.stresses.get_mut(self.stress) {
            stress.prr_out = stress.prr_out.saturating_add(range.len());
        }
        self.note_filled(records);
        if self.phase == Phase::ProbeDue {
            // RFC 8985 §7.3: TLP.end_seq is SND.NXT after the probe.
            let last = records.last(Ring::Sequence, self.head);
            self.mark = records.get(last).range.end;
            self.phase = Phase::Probing;
        }
        let head_again =
            kind == Sent::Retransmission && range.start == records.get(self.head).range.start;
        self.arm_on_sent(records, now, head_again);
        Ok(())
    }

    fn send_new(
        &mut self,
        records: &mut Records,
        now: Instant,
        range: SeqRange,
    ) -> Result<(), Full> {
        let now_us = stamp(now);
        if self.head == NIL {
            let index = records.take(range, now_us).ok_or(Full)?;
            // Nothing older is outstanding: all of RACK's history is of no more use.
            self.rack_sent_us = now_us;
            if let Some(stress) = records.stresses.get_mut(self.stress) {
                stress.rack_end = range.start;
                stress.fack = range.start;
            }
            self.round_end = range.end;
            if self.phase == Phase::Open && self.mark != range.start {
                self.mark = range.start - 1;
            }
            records.push(Ring::Sequence, &mut self.head, index);
            records.push(Ring::State, &mut self.oldest, index);
            return Ok(());
        }
        let last = records.last(Ring::Sequence, self.head);
        if self.join(records, last, range, now_us) {
            return Ok(());
        }
        let index = records.take(range, now_us).ok_or(Full)?;
        records.push(Ring::Sequence, &mut self.head, index);
        records.push(Ring::State, &mut self.oldest, index);
        Ok(())
    }

    /// Lets the newest record cover `range` too, if it left with it or if records are short.
    fn join(&mut self, records: &mut Records, last: u32, range: SeqRange, now_us: u32) -> bool {
        let record = records.get(last);
        let fits = record.state == State::InFlight && !record.resent && !record.partial;
        let burst = record.sent_us == now_us && record.len().is_multiple_of(self.mss());
        if !fits || !(burst || records.is_short()) {
            return false;
        }
        debug_assert_eq!(record.range.end, range.start, "new data follows what was sent");
        if !burst && record.sent_us != now_us {
            records.unlink(Ring::State, &mut self.oldest, last);
            records.push(Ring::State, &mut self.oldest, last);
            let record = records.get_mut(last);
            record.sent_us = now_us;
            record.blurred = true;
        }
        records.get_mut(last).range.end = range.end;
        true
    }

    fn send_probe(&mut self, records: &mut Records, now: Instant, range: SeqRange) {
        if self.head == NIL {
            return;
        }
        let mut index = records.last(Ring::Sequence, self.head);
        let record = records.get(index);
        if record.state != State::InFlight || record.range.end != range.end {
            debug_assert!(false, "only what probe said is sent as a probe");
            return;
        }
        if range.start.after(record.range.start)
            && let Some(right) = records.split(index, range.start)
        {
            index = right;
        }
        records.unlink(Ring::State, &mut self.oldest, index);
        self.resend(records, stamp(now), index, false);
        self.flags |= flag::PROBE_RESENT;
    }

    /// A record in no ring of a state is in flight again.
    fn resend(&mut self, records: &mut Records, now_us: u32, index: u32, partial: bool) {
        records.push(Ring::State, &mut self.oldest, index);
        let record = records.get_mut(index);
        record.sent_us = now_us;
        record.state = State::InFlight;
        record.resent = true;
        record.blurred = false;
        record.partial = partial;
    }

    /// Only a window that was filled may grow (RFC 7661 §4, RFC 9438 §5.8).
    fn note_filled(&mut self, records: &Records) {
        self.note_flight(self.in_flight(records));
    }

    fn note_flight(&mut self, flight: u32) {
        let Window { cwnd, ssthresh } = self.window;
        // In slow start half of it is enough: the other half may already be on its way.
        let filled = if cwnd < ssthresh { flight >= cwnd / 2 } else { flight + self.mss() > cwnd };
        if filled {
            self.flags |= flag::FILLED;
        }
    }

    /// The window is not used to the full.
    fn pause(&mut self, records: &mut Records) {
        if let Some(stress) = records.stresses.get_mut(self.stress) {
            stress.algorithm.pause();
        }
    }

    /// The path takes segments of `mss` bytes from now on. The window stays the same in bytes.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = mss.clamp(1, u32::from(u16::MAX)) as u16;
        self.window.cwnd = self.window.cwnd.max(self.mss());
    }

    /// What is in flight was too big for the path (RFC 1191 §6.4, RFC 8201 §5.4): it is sent
    /// again in segments of `mss` bytes. That is no congestion.
    pub(crate) fn on_packet_too_big(&mut self, records: &mut Records, now: Instant, mss: u32) {
        let old = self.mss();
        self.set_mss(mss);
        if mss >= old || self.head == NIL {
            return;
        }
        self.whole(records, |whole, records| whole.resend_in_pieces(records, now));
    }

    /// The retransmission timeout, backed off as it is now.
    pub(crate) fn rto(&self, records: &Records) -> Duration {
        Duration::from_micros(u64::from(self.rto_us(&records.policy)))
    }

    /// SRTT; `None` before the first sample.
    pub(crate) const fn srtt(&self) -> Option<Duration> {
        match self.rtt.srtt_us() {
            0 => None,
            us => Some(Duration::from_micros(us as u64)),
        }
    }

    /// SRTT in microseconds; 0 before the first sample.
    pub(crate) const fn srtt_us(&self) -> u32 {
        self.rtt.srtt_us()
    }

    /// RTTVAR.
    pub(crate) const fn rttvar(&self) -> Duration {
        Duration::from_micros(self.rtt.rttvar_us() as u64)
    }

    /// The smallest RTT of the last minutes; `None` before the first sample.
    pub(crate) const fn min_rtt(&self) -> Option<Duration> {
        match self.rtt.min_us() {
            0 => None,
            us => Some(Duration::from_micros(us as u64)),
        }
    }

    /// The congestion window in bytes.
    pub(crate) const fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// The slow start threshold in bytes; `None`: not known yet.
    pub(crate) const fn ssthresh(&self) -> Option<u32> {
        match self.window.ssthresh {
            u32::MAX => None,
            bytes => Some(bytes),
        }
    }

    /// Bytes that are marked lost and wait to be sent again.
    pub(crate) fn lost_bytes(&self, records: &Records) -> u32 {
        records.stresses.get(self.stress).map_or(0, |stress| stress.lost)
    }

    /// Bytes that the peer has out of order, as far as it said (without SACK: as duplicate ACKs
    /// suggest).
    pub(crate) fn sacked_bytes(&self, records: &Records) -> u32 {
        records.stresses.get(self.stress).map_or(0, |stress| stress.sacked)
    }

    /// Timeouts in a row without progress: R1 and R2 of RFC 9293 §3.8.3 count these.
    pub(crate) const fn retransmissions(&self) -> u8 {
        self.retries
    }
}

impl Whole<'_> {
    const fn mss(&self) -> u32 {
        self.rest.mss()
    }

    fn outstanding(&self, records: &Records) -> u32 {
        self.rest.outstanding(records)
    }

    fn in_flight(&self, records: &Records) -> u32 {
        self.outstanding(records).saturating_sub(self.stress.sacked + self.stress.lost)
    }

    fn send_lost(&mut self, records: &mut Records, now: Instant, range: SeqRange) {
        let index = self.stress.lost_head;
        if index == NIL || records.get(index).range.start != range.start {
            debug_assert!(false, "only what next_retransmission said is sent again");
            return;
        }
        let mut partial = false;
        if range.end.before(records.get(index).range.end) {
            // Without a record to cut it, all of it counts as resent until its first segment is
            // acknowledged: one segment per round trip, as NewReno would.
            partial = records.split(index, range.end).is_none();
        }
        self.stress.lost -= records.get(index).len();
        records.unlink(Ring::State, &mut self.stress.lost_head, index);
        self.rest.resend(records, stamp(now), index, partial);
        if self.stress.resent == 0 {
            self.stress.resent_at_us = stamp(now);
        }
        self.stress.resent = self.stress.resent.saturating_add(1);
    }

    /// All in flight that is larger than a segment may be now is to be sent again.
    fn resend_in_pieces(&mut self, records: &mut Records, now: Instant) {
        let mut index = self.rest.head;
        loop {
            let record = records.get(index);
            if record.state == State::InFlight && record.len() > self.mss() {
                self.mark_lost(records, index);
            }
            index = records.next(Ring::Sequence, index);
            if index == self.rest.head {
                break;
            }
        }
        self.limit_counted(records);
        if self.stress.lost > 0
            && matches!(self.rest.phase, Phase::Open | Phase::ProbeDue | Phase::Probing)
        {
            self.rest.phase = Phase::Loss;
            self.rest.mark = records.get(records.last(Ring::Sequence, self.rest.head)).range.end;
            self.stress.prior.cwnd = 0;
            self.stress.resent = 0;
        }
        self.arm(records, now, None, true);
    }
}

/// The initial window in bytes (RFC 6928 §2).
fn initial_window(policy: &Policy, mss: u32) -> u32 {
    let segments = policy.initial_window.max(1);
    let most = segments.saturating_mul(mss);
    most.min(segments.saturating_mul(INITIAL_SEGMENT_BYTES).max(2 * mss)).max(mss)
}
