//! Time limits of one connection. Pure: what goes in, what comes out.
//!
//! A wait starts with an event that the peer cannot repeat at will: the end of a request, the first
//! byte of one, responses that leave, the end of our side. Single bytes of a request restart
//! nothing. A sweep compares the waits of all connections with the limits.

use crate::limits::rpc::{CROWDED_IDLE_MS, LINGER_MS};
use crate::serve::Ticks;

/// What the server waits for on a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum AwaitedStep {
    /// The next request.
    Request,
    /// The rest of a request.
    Rest,
    /// The peer must read responses before more of its bytes are read.
    Room,
    /// The peer's end of stream, after ours.
    End,
}

/// Why a sweep closes a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// It is idle, and another connection needs its room.
    GivesWay,
    /// The peer sends a request, or reads responses, too slowly.
    TooSlow,
    /// The peer does not end its side after ours.
    Lingers,
}

/// When a connection's wait started.
#[derive(Copy, Clone, Debug)]
pub(super) struct WaitClock {
    /// Milliseconds modulo 2^32: a sweep that looks at an idle connection 49 days later may take
    /// it for a busy one, once.
    since_ms: u32,
    /// Unsent bytes that the last sweep found, modulo 2^32.
    unsent_bytes: u32,
}

impl WaitClock {
    #[inline]
    pub(super) const fn new(now: Ticks) -> Self {
        Self { since_ms: now.as_millis() as u32, unsent_bytes: 0 }
    }

    #[inline]
    pub(super) const fn restart(&mut self, now: Ticks) {
        self.since_ms = now.as_millis() as u32;
    }

    /// Restarts if bytes have left since the last sweep.
    pub(super) const fn note_unsent(&mut self, unsent_bytes: usize, now: Ticks) {
        if self.unsent_bytes != unsent_bytes as u32 {
            self.unsent_bytes = unsent_bytes as u32;
            self.restart(now);
        }
    }

    /// Whether the wait has taken too long. `stall_ms`: limit for the rest of a request and for
    /// room; 0 is never. `is_full`: no more connections are accepted.
    pub(super) const fn overdue(
        self,
        awaited: AwaitedStep,
        stall_ms: u32,
        is_full: bool,
        now: Ticks,
    ) -> Option<Overdue> {
        let waited_ms = (now.as_millis() as u32).wrapping_sub(self.since_ms);
        match awaited {
            AwaitedStep::Request if is_full && waited_ms >= CROWDED_IDLE_MS => {
                Some(Overdue::GivesWay)
            }
            AwaitedStep::Rest | AwaitedStep::Room if stall_ms > 0 && waited_ms >= stall_ms => {
                Some(Overdue::TooSlow)
            }
            AwaitedStep::End if waited_ms >= LINGER_MS => Some(Overdue::Lingers),
            AwaitedStep::End if stall_ms > 0 && waited_ms >= stall_ms => Some(Overdue::Lingers),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Ticks {
        Ticks::from_millis(ms)
    }

    #[test]
    fn each_wait_has_its_own_limit() {
        let start = u64::from(u32::MAX) - 300;
        let wait = WaitClock::new(at(start));
        let first = |awaited, stall_ms, is_full| {
            let over =
                |ms: &u64| wait.overdue(awaited, stall_ms, is_full, at(start + ms)).is_some();
            (0..100_000).step_by(100).find(over)
        };
        assert_eq!(first(AwaitedStep::Request, 2_000, true), Some(u64::from(CROWDED_IDLE_MS)));
        assert_eq!(first(AwaitedStep::Request, 2_000, false), None, "nothing waits for its room");
        for awaited in [AwaitedStep::Rest, AwaitedStep::Room] {
            assert_eq!(first(awaited, 2_000, false), Some(2_000));
            assert_eq!(first(awaited, 0, true), None);
        }
        assert_eq!(first(AwaitedStep::End, 2_000, false), Some(2_000));
        assert_eq!(first(AwaitedStep::End, 0, false), Some(u64::from(LINGER_MS)));
        assert_eq!(first(AwaitedStep::End, 60_000, false), Some(u64::from(LINGER_MS)));
    }

    #[test]
    fn only_bytes_that_leave_extend_a_wait_for_room() {
        let mut wait = WaitClock::new(at(0));
        wait.note_unsent(5_000, at(500));
        wait.note_unsent(5_000, at(1_000));
        assert_eq!(wait.overdue(AwaitedStep::Room, 1_000, false, at(1_400)), None);
        let overdue = wait.overdue(AwaitedStep::Room, 1_000, false, at(1_500));
        assert_eq!(overdue, Some(Overdue::TooSlow));
        wait.note_unsent(4_999, at(1_500));
        assert_eq!(wait.overdue(AwaitedStep::Room, 1_000, false, at(2_400)), None);
    }
}
