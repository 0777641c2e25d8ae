//! Congestion control: slow start and congestion avoidance.
//!
//! Read first: RFC 5681 §3.1 (slow start and congestion avoidance), RFC 3465 (byte counting), RFC
//! 9406 (when to leave slow start), then `new_reno.rs` and `cubic.rs`.
//!
//! When to reduce is not decided here: `recovery` sees losses and marks and asks
//! [`Algorithm::reduce`] for the new threshold.
//!
//! Invariants
//! - The window grows by bytes newly acknowledged and never by the count of ACKs: a peer that
//!   divides its ACKs gains nothing (RFC 3465).
//! - It stays between one MSS and [`CWND_MAX`].

mod cubic;
mod hystart;
mod new_reno;
#[cfg(test)]
mod tests;

use cubic::Cubic;
use hystart::HyStart;
use new_reno::NewReno;

use crate::config::Congestion as Kind;
use crate::limits::BUFFER_BYTES_MAX;

/// Largest congestion window in bytes: no peer can offer a larger one.
pub(crate) const CWND_MAX: u32 = BUFFER_BYTES_MAX;
/// Segments' worth of bytes that one ACK may grow the first slow start by (RFC 9406 §4.2).
const START_LIMIT: u32 = 8;
/// The same, in a later slow start (RFC 3465 §2.2).
const RESTART_LIMIT: u32 = 2;

/// The two variables of RFC 5681, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) cwnd: u32,
    pub(crate) ssthresh: u32,
}

impl Window {
    /// Grows by `bytes`.
    fn grow(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.saturating_add(bytes).min(CWND_MAX);
    }
}

/// An acknowledgment, as far as growth goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    /// Bytes newly acknowledged.
    pub(crate) acked: u32,
    pub(crate) mss: u32,
    /// Wrapping milliseconds.
    pub(crate) now_ms: u32,
    pub(crate) srtt_us: u32,
    /// What was sent last has timed out: grow with care (RFC 3465 §2.3).
    pub(crate) after_timeout: bool,
    /// One ACK may grow the window in slow start by a few segments only.
    pub(crate) limited: bool,
}

/// Congestion avoidance.
pub(crate) trait Congestion {
    /// Bytes were acknowledged, and the window is full and beyond the threshold.
    fn avoid(&mut self, window: &mut Window, growth: &Growth);
    /// There is congestion with `flight` bytes outstanding: the new threshold.
    fn reduce(&mut self, window: &Window, flight: u32, mss: u32) -> u32;
    /// There was none after all: the window of before, `cwnd` bytes, is back.
    fn undo(&mut self, cwnd: u32);
    /// The window is not used to the full: time that passes meanwhile does not count.
    fn pause(&mut self);
}

/// The algorithm of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Algorithm {
    /// Either, before the first congestion.
    Start(HyStart),
    NewReno(NewReno),
    Cubic(Cubic),
}

impl Algorithm {
    pub(crate) fn new() -> Self {
        Self::Start(HyStart::new())
    }

    /// Nothing was learnt yet.
    pub(crate) fn is_fresh(&self) -> bool {
        matches!(self, Self::Start(start) if *start == HyStart::new())
    }

    /// Bytes were acknowledged that had filled the window.
    pub(crate) fn grow(&mut self, kind: Kind, window: &mut Window, growth: &Growth) {
        if window.cwnd < window.ssthresh {
            let limit = match self {
                _ if !growth.limited => u32::MAX,
                _ if growth.after_timeout => 1,
                Self::Start(_) => START_LIMIT,
                _ => RESTART_LIMIT,
            };
            let bytes = growth.acked.min(limit.saturating_mul(growth.mss));
            let bytes = if let Self::Start(start) = self { start.paced(bytes) } else { bytes };
            window.grow(bytes.min(window.ssthresh - window.cwnd));
        } else {
            self.end_slow_start(kind).avoid(window, growth);
        }
    }

    /// A round trip was measured in the first slow start.
    pub(crate) fn on_rtt(&mut self, rtt_us: u32) {
        if let Self::Start(start) = self {
            start.on_rtt(rtt_us);
        }
    }

    /// A round trip is over: what was in flight when it began is acknowledged.
    pub(crate) fn on_round(&mut self, kind: Kind, window: &mut Window) {
        if let Self::Start(start) = self
            && start.on_round()
        {
            // RFC 9406 §4.2: the delay has grown for good, the window is large enough.
            window.ssthresh = window.cwnd;
            self.end_slow_start(kind);
        }
    }

    /// There is congestion: the new threshold in bytes.
    pub(crate) fn reduce(&mut self, kind: Kind, window: &Window, flight: u32, mss: u32) -> u32 {
        self.end_slow_start(kind).reduce(window, flight, mss)
    }

    /// See [`Congestion::undo`].
    pub(crate) fn undo(&mut self, kind: Kind, cwnd: u32) {
        self.end_slow_start(kind).undo(cwnd);
    }

    /// See [`Congestion::pause`].
    pub(crate) fn pause(&mut self) {
        match self {
            Self::Start(_) => {}
            Self::NewReno(new_reno) => new_reno.pause(),
            Self::Cubic(cubic) => cubic.pause(),
        }
    }

    /// Ends the first slow start; returns the algorithm that follows it.
    fn end_slow_start(&mut self, kind: Kind) -> &mut dyn Congestion {
        if let Self::Start(_) = self {
            *self = match kind {
                Kind::NewReno => Self::NewReno(NewReno::default()),
                Kind::Cubic => Self::Cubic(Cubic::default()),
            };
        }
        match self {
            Self::NewReno(new_reno) => new_reno,
            Self::Cubic(cubic) => cubic,
            Self::Start(_) => unreachable!("replaced above"),
        }
    }
}
