//! Deadlines, told by the ring itself.
//!
//! A channel with a timer would otherwise read the clock before and after each wait, and have the
//! kernel set and cancel a timer of its own for each. Here the ring holds one request
//! (IORING_OP_TIMEOUT) for the next deadline, and a wait is like one without timers.
//!
//! Read first: io_uring_prep_timeout(3); docs/decisions/0023-ring-timeout.md.
//!
//! Invariants
//! - While `set_alarm` says so, a request for the earliest deadline, or for an earlier moment, is
//!   with the kernel or queued, or `State::timers_due` is set.
//! - `moments` has an entry for each request that was not answered. That one of them is answered
//!   sooner than its entry says does no harm: the clock has the last word on what is due.
//! - A request for a moment that does not matter any more is left to come; it costs one look at the
//!   clock.

use std::time::Instant;

use io_uring::{opcode, types};

use super::{Tag, Uring};
use crate::limits::ALARMS_MAX;
use crate::state::State;

/// The requests for moments.
pub(super) struct Alarms {
    /// Each is for an earlier moment than those before it.
    moments: Vec<Instant>,
    /// Where the kernel finds the time when a request is submitted, and never again. If another
    /// request is queued before that, both come at its time, which is the earlier one.
    time: Box<types::Timespec>,
    /// The kernel refused a request: the waiting call looks after the timers.
    refused: bool,
}

impl Alarms {
    pub(super) fn new() -> Self {
        let moments = Vec::with_capacity(ALARMS_MAX);
        Self { moments, time: Box::new(types::Timespec::new()), refused: false }
    }
}

impl Uring {
    /// Has the ring tell of the next deadline, if it does not yet. `false`: it does not.
    #[inline]
    pub(super) fn set_alarm(&mut self, state: &mut State) -> bool {
        let Some(at) = state.timers.next() else { return true };
        match self.alarms.moments.last() {
            Some(earlier) if *earlier <= at => true,
            _ => self.ask_alarm(state, at),
        }
    }

    #[cold]
    fn ask_alarm(&mut self, state: &mut State, at: Instant) -> bool {
        let until = at.saturating_duration_since(Instant::now());
        if until.is_zero() {
            state.timers_due = true;
            return true;
        }
        if self.alarms.refused || self.alarms.moments.len() >= ALARMS_MAX {
            return false;
        }
        *self.alarms.time = until.into();
        let request = opcode::Timeout::new(&raw const *self.alarms.time).build();
        self.push(state, request.user_data(Tag::Alarm.on(0)));
        self.alarms.moments.push(at);
        true
    }

    /// One of the requests is over: the earliest, as far as it matters.
    pub(super) fn on_alarm(&mut self, state: &mut State, result: i32) {
        self.alarms.moments.pop();
        self.alarms.refused |= result != -libc::ETIME;
        state.timers_due = true;
    }
}
