//! Deadlines of one connection, besides recovery's, and when its peer was heard last.
//!
//! Read first: RFC 9293 §3.8.6.3 (delayed ACKs), §3.8.6.1 (zero windows), §3.8.4 (keepalive).
//! `timers.rs` has what happens when they expire.

use core::time::Duration;

use super::deadline::{Deadline, Stamp};
use crate::time::Instant;

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnTimerKind {
    /// An acknowledgment, also that of a SYN.
    Retransmission,
    /// The peer's window to open.
    Persist,
    /// A peer that is silent.
    Keepalive,
    /// The end in FIN-WAIT-2.
    End,
}

/// The timer of a connection that expires next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnTimer {
    /// What it is for.
    pub kind: ConnTimerKind,
    /// When it expires.
    pub at: Instant,
    /// How often it has expired in a row.
    pub attempts: u8,
}

/// The timers of one connection.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ConnTimers {
    /// A delayed ACK is sent at this time.
    ack_at: Deadline,
    /// Last time that a segment came.
    heard_at: Stamp,
    /// SYN, window probe, keepalive's answer, or the end of an orphan: what it is hangs on state
    /// and flags.
    attend_at: Deadline,
}

impl ConnTimers {
    /// None is set.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { ack_at: Deadline::NEVER, heard_at: Stamp::of(now), attend_at: Deadline::NEVER }
    }

    /// A segment came.
    #[inline(always)]
    pub(crate) const fn hear(&mut self, now: Instant) {
        self.heard_at = Stamp::of(now);
    }

    /// How long no segment has come.
    pub(crate) const fn silence(&self, now: Instant) -> Duration {
        self.heard_at.age(now)
    }

    /// The deadline `wait` after the last segment.
    pub(crate) fn after_silence(&self, wait: Duration) -> Deadline {
        self.heard_at.plus(wait)
    }

    /// An ACK is owed, and may wait: when it leaves is decided by [`ConnTimers::date_ack`].
    #[inline(always)]
    pub(crate) fn delay_ack(&mut self) {
        if !self.ack_at.is_set() {
            self.ack_at = Deadline::UNDATED;
        }
    }

    /// Sets the time of an ACK that was put off since frames left last, `delay_ms` milliseconds
    /// from now. `true`: the delay is zero, and it is owed at once.
    #[inline(always)]
    pub(crate) fn date_ack(&mut self, now: Instant, delay_ms: u32) -> bool {
        if self.ack_at != Deadline::UNDATED {
            return false;
        }
        self.ack_at =
            if delay_ms == 0 { Deadline::NEVER } else { Deadline::after_ms(now, delay_ms) };
        delay_ms == 0
    }

    /// A segment carries the ACK, or none is owed.
    #[inline(always)]
    pub(crate) const fn clear_ack(&mut self) {
        self.ack_at = Deadline::NEVER;
    }

    /// An ACK is put off.
    #[inline(always)]
    pub(crate) fn has_delayed_ack(&self) -> bool {
        self.ack_at.is_set()
    }

    /// Clears the delayed ACK if its time has come, and returns whether it had.
    pub(crate) fn take_due_ack(&mut self, now: Instant) -> bool {
        let is_due = self.ack_at.has_come(now);
        if is_due {
            self.ack_at = Deadline::NEVER;
        }
        is_due
    }

    /// The connection is attended to after `wait`.
    pub(crate) fn attend_after(&mut self, now: Instant, wait: Duration) {
        self.attend_at = Deadline::after(now, wait);
    }

    /// The same after `wait_ms` milliseconds.
    #[inline]
    pub(crate) const fn attend_after_ms(&mut self, now: Instant, wait_ms: u32) {
        self.attend_at = Deadline::after_ms(now, wait_ms);
    }

    /// As [`ConnTimers::attend_after`], if a later moment is set already.
    pub(crate) fn attend_earlier(&mut self, now: Instant, wait: Duration) {
        if self.attend_at.get(now).is_some_and(|at| at > now + wait) {
            self.attend_after(now, wait);
        }
    }

    /// Nothing is to be attended to.
    #[inline(always)]
    pub(crate) const fn stop_attending(&mut self) {
        self.attend_at = Deadline::NEVER;
    }

    /// Clears the deadline of [`ConnTimers::attend_after`] if it has come, and returns whether it
    /// had.
    pub(crate) fn take_due_attention(&mut self, now: Instant) -> bool {
        let is_due = self.attend_at.has_come(now);
        if is_due {
            self.attend_at = Deadline::NEVER;
        }
        is_due
    }

    /// Stops all.
    #[inline(always)]
    pub(crate) const fn stop(&mut self) {
        self.clear_ack();
        self.stop_attending();
    }

    /// When the connection is attended to; `None`: it is not.
    pub(crate) fn attends_at(&self, now: Instant) -> Option<Instant> {
        self.attend_at.get(now)
    }

    /// Those that are set or not; `None`: none is.
    #[inline(always)]
    pub(crate) fn deadlines(&self) -> Option<[Deadline; 2]> {
        let is_set = self.ack_at.is_set() || self.attend_at.is_set();
        is_set.then_some([self.ack_at, self.attend_at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_ack_is_dated_once_and_taken_when_due() {
        let ms = Instant::from_millis;
        let mut timers = ConnTimers::new(ms(10));
        assert!(!timers.date_ack(ms(10), 40), "none is owed");
        timers.delay_ack();
        assert!(timers.has_delayed_ack() && !timers.date_ack(ms(10), 40));
        timers.delay_ack();
        assert!(!timers.date_ack(ms(30), 40) && !timers.take_due_ack(ms(49)));
        assert!(timers.take_due_ack(ms(50)) && !timers.take_due_ack(ms(51)));
        timers.delay_ack();
        assert!(timers.date_ack(ms(60), 0) && !timers.has_delayed_ack(), "it is owed at once");
    }

    #[test]
    fn deadlines_are_none_when_all_are_stopped() {
        let now = Instant::from_millis(10);
        let mut timers = ConnTimers::new(now);
        assert_eq!(timers.deadlines(), None);
        timers.attend_after(now, Duration::from_millis(5));
        assert!(timers.deadlines().is_some() && !timers.take_due_attention(now));
        assert!(timers.take_due_attention(Instant::from_millis(15)));
        timers.attend_earlier(now, Duration::from_millis(1));
        assert_eq!(timers.deadlines(), None, "only what is set is earlier");
        timers.attend_after_ms(now, 5);
        timers.attend_earlier(now, Duration::from_millis(9));
        timers.attend_earlier(now, Duration::from_millis(2));
        assert!(timers.take_due_attention(Instant::from_millis(12)));
        timers.attend_after_ms(now, 5);
        timers.delay_ack();
        timers.stop();
        assert_eq!(timers.deadlines(), None);
        timers.hear(Instant::from_millis(20));
        assert_eq!(timers.silence(Instant::from_millis(25)), Duration::from_millis(5));
    }
}
