//! The periodic timer of a channel's loop, which slows down while nothing happens.
//!
//! A server with many channels would otherwise be woken by each of their timers ten times a second.
//! After [`QUIET_TICKS`] ticks without an event the timer fires each [`REST_TICK`]. The next event
//! makes it fast again, and is a tick itself.

use megapipe::{Channel, Handle, SubmitError};

use crate::limits::{QUIET_TICKS, REST_TICK, TICK};

/// The timer, and for how long nothing has happened.
#[derive(Debug)]
pub(super) struct Pulse {
    timer: Handle,
    cookie: u64,
    /// Ticks since the last event.
    quiet: u32,
    rests: bool,
}

impl Pulse {
    /// Sets the timer, whose completions carry `cookie`.
    ///
    /// # Errors
    /// As [`Channel::timer`].
    pub(super) fn start(channel: &mut Channel, cookie: u64) -> Result<Self, SubmitError> {
        let timer = channel.timer(TICK, Some(TICK), cookie)?;
        Ok(Self { timer, cookie, quiet: 0, rests: false })
    }

    /// The timer fired. It slows down if nothing has happened for long, unless `is_ending`.
    pub(super) fn on_tick(&mut self, channel: &mut Channel, is_ending: bool) {
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet >= QUIET_TICKS && !is_ending && !self.rests {
            self.change(channel, true);
        }
    }

    /// Something happened. Whether the timer was slow: then a tick is due now.
    #[inline]
    pub(super) fn on_event(&mut self, channel: &mut Channel) -> bool {
        self.quiet = 0;
        self.rests && self.change(channel, false)
    }

    /// Replaces the timer by a slow or a fast one. Whether it did: a channel without room for one
    /// more timer keeps the one that it has.
    #[cold]
    fn change(&mut self, channel: &mut Channel, rests: bool) -> bool {
        let period = if rests { REST_TICK } else { TICK };
        let Ok(timer) = channel.timer(period, Some(period), self.cookie) else { return false };
        // The old one is there: nothing else unregisters it.
        let _ = channel.unregister(self.timer);
        self.timer = timer;
        self.rests = rests;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use megapipe::{Config, Event};

    use super::*;

    const COOKIE: u64 = 7;

    #[test]
    fn pulse_rests_after_quiet_ticks_and_an_event_ends_the_rest() {
        let mut channel = Channel::create(Config::default()).unwrap();
        let mut pulse = Pulse::start(&mut channel, COOKIE).unwrap();
        assert!(!pulse.on_event(&mut channel), "it did not rest");
        for _ in 1..QUIET_TICKS {
            pulse.on_tick(&mut channel, false);
            assert!(!pulse.rests);
        }
        pulse.on_tick(&mut channel, true);
        assert!(!pulse.rests, "a server that ends keeps its ticks");
        pulse.on_tick(&mut channel, false);
        assert!(pulse.rests);
        // One timer is set, and it is the slow one.
        let began = Instant::now();
        let done = channel.dispatch(Some(Duration::from_secs(20))).unwrap().unwrap();
        assert!(matches!(done.event, Event::Timer { .. }) && done.cookie == COOKIE);
        assert!(began.elapsed() > TICK * 2, "{:?}", began.elapsed());
        assert!(pulse.on_event(&mut channel) && !pulse.rests);
        assert!(!pulse.on_event(&mut channel), "a tick is due once");
    }
}
