//! The recovery timer: retransmission, tail loss probe, reordering.
//!
//! Read first: RFC 6298 §5, RFC 8985 §7.2 (the probe's timeout) and §8 (one timer is enough).
//!
//! Zero-window probes have a timer of the caller's (RFC 9293 §3.8.6.1): here there is a deadline
//! exactly while something is outstanding.

use core::time::Duration;

use super::policy::Policy;
use super::records::{NIL, Records, State};
use super::rtt::{back_off, stamp};
use super::{Phase, RTO_AFTER_SYN_US, Recovery, Stress, Timeout, Timer, Whole, flag};
use crate::seq::SeqNum;
use crate::time::Instant;

/// PTO before there is an RTT sample (RFC 8985 §7.2).
const PTO_UNKNOWN_US: u32 = 1_000_000;
/// Added to a PTO: a peer, or we, may be off the processor for so long.
const PTO_SLACK_US: u32 = 2_000;

/// What the timer is set for.
#[derive(Debug, Clone, Copy)]
pub(super) struct News {
    /// RACK waits so long for a segment that is late.
    pub(super) reorder_us: Option<u32>,
    /// Something new was acknowledged, or nothing was outstanding.
    pub(super) restart: bool,
    /// [`Stress::is_whole`].
    pub(super) is_whole: bool,
}

impl Stress {
    /// Nothing is known to have been lost or to have overtaken.
    pub(super) const fn is_whole(&self) -> bool {
        self.sacked == 0 && self.lost == 0
    }
}

impl Recovery {
    pub(super) fn rto_us(&self, policy: &Policy) -> u32 {
        if let Some(rto) = self.rtt.rto_us(policy, self.backoff) {
            return rto;
        }
        // RFC 6298 §2.1 and §5.7.
        let mut rto = policy.rto_initial_us;
        if self.has(flag::SYN_RESENT) {
            rto = rto.max(RTO_AFTER_SYN_US);
        }
        back_off(rto, policy, self.backoff)
    }

    /// PTO in microseconds (RFC 8985 §7.2).
    pub(super) fn pto_us(&self, policy: &Policy, outstanding: u32) -> u32 {
        let srtt = self.rtt.srtt_us();
        if srtt == 0 {
            return PTO_UNKNOWN_US;
        }
        let mut pto = srtt.saturating_mul(2).saturating_add(PTO_SLACK_US);
        if outstanding <= self.mss() {
            // The peer may hold back the ACK of a lone segment.
            pto = pto.saturating_add(policy.rto_min_us);
        }
        pto
    }

    /// A probe would tell something (RFC 8985 §7.2): nothing else is going on.
    fn may_probe(&self, policy: &Policy, news: News) -> bool {
        self.has(flag::RACK)
            && policy.tail_loss_probes
            && matches!(self.phase, Phase::Open | Phase::Reduced)
            && news.is_whole
    }

    /// When the retransmission timer goes off if what left longest ago started it.
    fn rto_at(&self, records: &Records, now: Instant) -> Instant {
        let rto = self.rto_us(&records.policy);
        if self.oldest == NIL {
            return after(now, rto);
        }
        let waited = stamp(now).wrapping_sub(records.get(self.oldest).sent_us);
        after(now, rto.saturating_sub(waited))
    }

    /// Sets the timer after something was sent, an acknowledgment or a timeout.
    pub(super) fn arm(&mut self, records: &Records, now: Instant, news: News) {
        if self.head == NIL {
            if self.timer != Timer::Idle {
                // RFC 6298 §5.2. What was sent last was delivered last.
                self.timer = Timer::Idle;
                let ago = stamp(now).wrapping_sub(self.rack_sent_us);
                self.at = now - Duration::from_micros(u64::from(ago));
            }
            return;
        }
        if let Some(wait) = news.reorder_us {
            self.timer = Timer::Reorder;
            self.at = after(now, wait);
            return;
        }
        let rto_at = if news.restart {
            // RFC 6298 §5.3.
            after(now, self.rto_us(&records.policy))
        } else if self.timer == Timer::Retransmit {
            self.at
        } else {
            self.rto_at(records, now)
        };
        self.timer = Timer::Retransmit;
        self.at = rto_at;
        if self.may_probe(&records.policy, news) {
            // RFC 8985 §7.2: no later than the RTO would have been.
            self.timer = Timer::Probe;
            self.at =
                rto_at.min(after(now, self.pto_us(&records.policy, self.outstanding(records))));
        }
    }

    /// Something was sent. `head_again`: what is outstanding longest, once more.
    pub(super) fn arm_on_sent(&mut self, records: &Records, now: Instant, head_again: bool) {
        let is_whole = records.stresses.get(self.stress).is_none_or(Stress::is_whole);
        let news = |restart| News { reorder_us: None, restart, is_whole };
        match self.timer {
            Timer::Retransmit if head_again => self.arm(records, now, news(true)),
            // RFC 6298 §5.1.
            Timer::Idle => {
                self.timer = Timer::Probe;
                self.arm(records, now, news(true));
            }
            // RFC 8985 §7.2: new data puts the probe off, but never beyond the RTO.
            Timer::Probe | Timer::Retransmit => self.arm(records, now, news(false)),
            Timer::Reorder => {}
        }
    }

    /// Time has passed. `nxt` is SND.NXT.
    pub(crate) fn on_timeout(
        &mut self,
        records: &mut Records,
        now: Instant,
        nxt: SeqNum,
    ) -> Timeout {
        if self.timer == Timer::Idle || now < self.at {
            return Timeout::Nothing;
        }
        self.write_down(records);
        match self.timer {
            Timer::Idle => Timeout::Nothing,
            Timer::Probe => {
                if let Some(stress) = records.stresses.get_mut(self.stress) {
                    stress.probe_of_reduced = self.phase == Phase::Reduced;
                }
                self.phase = Phase::ProbeDue;
                self.flags &= !flag::PROBE_RESENT;
                // RFC 8985 §7.3: the RTO waits from the probe on.
                self.timer = Timer::Retransmit;
                self.at = after(now, self.rto_us(&records.policy));
                Timeout::Probe
            }
            Timer::Reorder => {
                self.whole(records, |whole, records| whole.on_reorder_timeout(records, now, nxt));
                Timeout::Nothing
            }
            Timer::Retransmit => self.whole(records, |whole, records| {
                whole.on_retransmission_timeout(records, now, nxt)
            }),
        }
    }
}

impl Whole<'_> {
    /// Sets the timer. `reorder_us`: what RACK waits for. `restart`: something new was
    /// acknowledged.
    pub(super) fn arm(
        &mut self,
        records: &Records,
        now: Instant,
        reorder_us: Option<u32>,
        restart: bool,
    ) {
        let news = News { reorder_us, restart, is_whole: self.stress.is_whole() };
        self.rest.arm(records, now, news);
    }

    /// RFC 8985 §6.2, step 5: what was waited for is lost.
    fn on_reorder_timeout(&mut self, records: &mut Records, now: Instant, nxt: SeqNum) {
        let flight = self.rest.outstanding(records);
        let reorder = self.detect(records, stamp(now));
        if self.recover_if_lost(records, flight, nxt) {
            // RFC 9937 §6: the fast retransmission leaves at once.
            self.rest.window.cwnd = self.in_flight(records) + self.rest.mss();
        }
        // Whatever is lost now is resent now, and the RTO counts from that.
        self.rest.timer = Timer::Probe;
        self.arm(records, now, reorder, true);
    }

    fn on_retransmission_timeout(
        &mut self,
        records: &mut Records,
        now: Instant,
        nxt: SeqNum,
    ) -> Timeout {
        let flight = self.rest.outstanding(records);
        let first = self.rest.retries == 0;
        let recovering = matches!(
            self.rest.phase,
            Phase::Recovery | Phase::FirstAck | Phase::NewData | Phase::Loss
        );
        if !recovering {
            self.enter(records, Phase::FirstAck, flight, nxt);
        } else if first && self.rest.phase != Phase::Recovery {
            // RFC 5681 §3.1: not where the same data timed out before; nor where this window of
            // data has reduced it already.
            let kind = records.policy.congestion;
            let mss = self.rest.mss();
            self.rest.window.ssthresh =
                self.stress.algorithm.reduce(kind, &self.rest.window, flight, mss);
        }
        // RFC 5682 §2.1, step 1: F-RTO only for a timeout that begins an episode.
        let may_ask = records.policy.frto && !recovering && flight > self.rest.mss();
        self.rest.phase = if may_ask { Phase::FirstAck } else { Phase::Loss };
        self.rest.mark = nxt;
        self.stress.dupacks = 0;
        if !self.rest.has(flag::SACK) {
            self.stress.sacked = 0;
        } else if records.get(self.rest.head).state == State::Sacked {
            // RFC 2018 §8: it was SACKed, and yet not acknowledged.
            self.forget_sacks(records);
        }
        self.mark_on_timeout(records, stamp(now));
        // RFC 5681 §3.1: the loss window.
        self.rest.window.cwnd = self.in_flight(records) + self.rest.mss();
        // RFC 6298 §5.5 and §5.6.
        self.rest.backoff = self.rest.backoff.saturating_add(1);
        self.rest.retries = self.rest.retries.saturating_add(1);
        self.rest.timer = Timer::Retransmit;
        self.rest.at = after(now, self.rest.rto_us(&records.policy));
        Timeout::Retransmit { count: self.rest.retries }
    }
}

fn after(now: Instant, us: u32) -> Instant {
    now.micros_on(us)
}
