//! Timeouts of one connection. Pure: what goes in, what comes out.
//!
//! A deadline is set by an event that the peer cannot repeat at will: the first byte of a command,
//! the end of a command, a completed write, the end of our side. Single bytes move no deadline.

use super::limits::{CROWDED_IDLE_MS, LINGER_MS};
use crate::serve::Ticks;

/// The settings, in milliseconds; 0 is never.
#[derive(Copy, Clone, Debug)]
pub(super) struct Timeouts {
    /// Between two commands.
    pub(super) idle_ms: u64,
    /// For one command to arrive, and for each write to complete.
    pub(super) stall_ms: u64,
}

/// What a connection waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum AwaitedInput {
    /// The next command.
    Command,
    /// The rest of a command.
    Rest,
    /// The peer must read responses before more of its bytes are read.
    Room,
    /// The peer's end of stream, after ours.
    End,
}

/// When the periods began that [`Timeouts`] bounds.
#[derive(Copy, Clone, Debug)]
pub(super) struct Stopwatch {
    /// Of the command that is arriving, of the time between two, or of waiting for the peer's end.
    input: Ticks,
    /// Of the write that is outstanding.
    output: Ticks,
}

impl Stopwatch {
    pub(super) const fn new(now: Ticks) -> Self {
        Self { input: now, output: now }
    }

    /// A command begins or has ended, or our side has ended.
    pub(super) const fn restart_input(&mut self, now: Ticks) {
        self.input = now;
    }

    /// A write has completed, or was the first to be outstanding.
    pub(super) const fn restart_output(&mut self, now: Ticks) {
        self.output = now;
    }

    /// Whether the peer has taken too long. `is_unsent`: responses wait to be sent. `is_full`: no
    /// more connections are accepted.
    pub(super) fn is_overdue(
        &self,
        awaited: AwaitedInput,
        is_unsent: bool,
        is_full: bool,
        timeouts: Timeouts,
        now: Ticks,
    ) -> bool {
        let is_over = |since: Ticks, limit_ms: u64| {
            limit_ms > 0 && now.since(since).as_millis() >= u128::from(limit_ms)
        };
        let Timeouts { idle_ms, stall_ms } = timeouts;
        if is_unsent && is_over(self.output, stall_ms) {
            return true;
        }
        match awaited {
            AwaitedInput::Room => false,
            AwaitedInput::Rest => is_over(self.input, stall_ms),
            AwaitedInput::Command => {
                let since = self.input.max(self.output);
                let gives_way = is_full && is_over(since, CROWDED_IDLE_MS);
                !is_unsent && (gives_way || is_over(since, idle_ms))
            }
            AwaitedInput::End => {
                let linger_ms = if stall_ms > 0 { LINGER_MS.min(stall_ms) } else { LINGER_MS };
                !is_unsent && is_over(self.input.max(self.output), linger_ms)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts { idle_ms: 9_000, stall_ms: 2_000 };

    fn at(ms: u64) -> Ticks {
        Ticks::from_millis(ms)
    }

    fn overdue_from(
        watch: Stopwatch,
        awaited: AwaitedInput,
        is_unsent: bool,
        timeouts: Timeouts,
    ) -> u64 {
        let is_over = |ms: &u64| watch.is_overdue(awaited, is_unsent, false, timeouts, at(*ms));
        (0..20_000).step_by(100).find(is_over).unwrap_or(u64::MAX)
    }

    #[test]
    fn each_wait_has_its_own_limit() {
        let mut watch = Stopwatch::new(at(0));
        watch.restart_input(at(1_000));
        assert_eq!(overdue_from(watch, AwaitedInput::Rest, false, TIMEOUTS), 3_000);
        assert_eq!(overdue_from(watch, AwaitedInput::Command, false, TIMEOUTS), 10_000);
        assert_eq!(overdue_from(watch, AwaitedInput::End, false, TIMEOUTS), 3_000);
        assert_eq!(overdue_from(watch, AwaitedInput::Room, true, TIMEOUTS), 2_000);
        watch.restart_output(at(4_000));
        assert_eq!(overdue_from(watch, AwaitedInput::Room, true, TIMEOUTS), 6_000);
        assert_eq!(overdue_from(watch, AwaitedInput::Command, false, TIMEOUTS), 13_000);
        assert_eq!(overdue_from(watch, AwaitedInput::Rest, true, TIMEOUTS), 3_000, "both hold");
    }

    #[test]
    fn without_timeouts_only_lingering_ends() {
        let watch = Stopwatch::new(at(0));
        let never = Timeouts { idle_ms: 0, stall_ms: 0 };
        for awaited in [AwaitedInput::Rest, AwaitedInput::Command, AwaitedInput::Room] {
            assert_eq!(overdue_from(watch, awaited, true, never), u64::MAX);
        }
        assert_eq!(overdue_from(watch, AwaitedInput::End, false, never), LINGER_MS);
        assert_eq!(overdue_from(watch, AwaitedInput::End, true, never), u64::MAX, "a write is due");
    }

    #[test]
    fn only_idle_connections_give_way_to_others() {
        let mut watch = Stopwatch::new(at(0));
        let never = Timeouts { idle_ms: 0, stall_ms: 0 };
        watch.restart_input(at(500));
        let gives_way = |awaited, is_unsent, ms| {
            watch.is_overdue(awaited, is_unsent, true, never, at(500 + ms))
        };
        assert!(gives_way(AwaitedInput::Command, false, CROWDED_IDLE_MS));
        assert!(!gives_way(AwaitedInput::Command, false, CROWDED_IDLE_MS - 1));
        assert!(!gives_way(AwaitedInput::Command, true, 60_000), "responses wait to be sent");
        for awaited in [AwaitedInput::Rest, AwaitedInput::Room] {
            assert!(!gives_way(awaited, false, 60_000), "{awaited:?}");
        }
    }
}
