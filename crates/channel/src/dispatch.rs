//! How completions leave a channel: what is ready first, then what was fetched, then the kernel.
//!
//! Read first: `channel.rs`; [MP 3.4.3] for when operations are handed over.

use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::completion::{Completion, Event};
use crate::error::DispatchError;
use crate::kernel::Driver;
use crate::ready::{Common, What, Whose, accepted};
use crate::timers::Due;

/// Completions.
impl Channel {
    /// Hands over what is queued now, without waiting for anything.
    ///
    /// # Errors
    /// [`DispatchError`] if the kernel refused; what was queued stays queued.
    pub fn flush(&mut self) -> Result<(), DispatchError> {
        self.check_fork().map_err(|_| DispatchError::Forked)?;
        self.driver.flush(&mut self.state)
    }

    /// Whether a signal handler ran while a `dispatch` waited, since this was last asked. With
    /// [`crate::Config::interruptible`] that ended the wait.
    pub const fn take_interrupted(&mut self) -> bool {
        std::mem::replace(&mut self.state.interrupted, false)
    }

    /// When the last turn of our own stack began, on the clock of its server
    /// ([`crate::ServerConfig::clock`]): for a program that would otherwise ask the clock after
    /// each `dispatch`. `None` on the kernel.
    #[inline]
    pub fn turned_at(&self) -> Option<Duration> {
        self.driver.turned_at()
    }

    /// The next completion. When none is left, hands over what is queued and waits, at most
    /// `timeout` (`None`: for ever; zero: not at all). `Ok(None)` says that the time is over,
    /// or that a signal ended it ([`crate::Config::interruptible`]).
    ///
    /// # Errors
    /// [`DispatchError`] if the kernel refused.
    // Always inlined: the completion is then taken apart where it was made, not copied first.
    #[inline(always)]
    pub fn dispatch(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Completion>, DispatchError> {
        // First of all: in a child the ring's memory is not even there to be looked at.
        self.check_fork().map_err(|_| DispatchError::Forked)?;
        match self.next_read() {
            Some(completion) => Ok(Some(completion)),
            None => self.dispatch_any(timeout),
        }
    }

    /// The next completion, if it is there already: hands nothing over, fetches nothing and does
    /// not wait. For a program that does something once for all that came together, such as
    /// looking at the clock; only [`Channel::dispatch`] brings more.
    #[inline(always)]
    pub fn dispatch_ready(&mut self) -> Option<Completion> {
        if self.check_fork().is_err() {
            return None;
        }
        self.next_read().or_else(|| self.next_behind_reads())
    }

    /// What `next_read` leaves.
    #[inline(never)]
    fn next_behind_reads(&mut self) -> Option<Completion> {
        if self.state.woken || self.state.has_ready() {
            return self.next_fetched();
        }
        self.driver.harvest_rest(&mut self.state);
        self.next_ready()
    }

    /// By far the most frequent completion is made right where it is wanted.
    #[inline(always)]
    fn next_read(&mut self) -> Option<Completion> {
        if self.state.woken || self.state.has_ready() {
            return None;
        }
        let (Whose { handle, slot }, data) = self.driver.next_read(&mut self.state)?;
        let cookie = self.state.peek(slot).cookie;
        Some(Completion { handle, cookie, event: Event::Read(Ok(data)) })
    }

    #[inline(never)]
    fn dispatch_any(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Completion>, DispatchError> {
        if let Some(completion) = self.take_ready() {
            return Ok(Some(completion));
        }
        self.driver.harvest(&mut self.state);
        match self.take_ready() {
            Some(completion) => Ok(Some(completion)),
            None => self.wait(timeout),
        }
    }

    /// As `next_ready`; the common kinds are put together here, where they are wanted.
    #[inline]
    fn take_ready(&mut self) -> Option<Completion> {
        if self.state.woken {
            self.on_woken();
        }
        if let Some((Common { handle, what, .. }, cookie)) = self.state.take_common() {
            let event = match what {
                What::Written(len) => Some(Event::Write(Ok(len as usize))),
                What::Accepted(connection, pending) => Some(accepted(connection, pending)),
                What::Connected => Some(Event::Connect(Ok(()))),
                What::Disconnected => Some(Event::Disconnect(Ok(()))),
                What::Over(result) => Some(Event::End(result)),
                What::Read(buffer, len) => {
                    self.state.adopt(buffer, len).map(|data| Event::Read(Ok(data)))
                }
            };
            if let Some(event) = event {
                return Some(Completion { handle, cookie, event });
            }
        }
        if self.state.has_ready() { self.next_ready() } else { None }
    }

    /// Appends up to `max` completions to `out`; waits only for the first, as `dispatch` does.
    /// Returns how many.
    ///
    /// Each completion carries the cookie that its handle has at the time of this call. The batch
    /// ends before the second completion of a connection that was accepted or established in it, so
    /// that a cookie that is set when a connection begins ([`Channel::set_cookie`]) is in all of
    /// its completions, on all back ends.
    ///
    /// # Errors
    /// [`DispatchError`] if the kernel refused.
    pub fn dispatch_many(
        &mut self,
        out: &mut Vec<Completion>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, DispatchError> {
        let mut count = 0;
        while count < max {
            let completion = match count {
                0 => self.dispatch(timeout)?,
                _ if self.state.has_begun_in_batch() => self.next_of_others(),
                _ => self.next_read().or_else(|| self.next_fetched()),
            };
            let Some(completion) = completion else { break };
            self.state.enter_batch(&completion);
            out.push(completion);
            count += 1;
        }
        self.state.end_batch();
        Ok(count)
    }

    /// The next completion for a batch. `None`: there is none, or it is of a connection that began
    /// in the batch.
    fn next_of_others(&mut self) -> Option<Completion> {
        if self.state.woken {
            self.on_woken();
        }
        if !self.state.has_ready() {
            self.driver.harvest(&mut self.state);
        }
        let ends_batch = self.state.is_next_of_batch(&mut self.orphans);
        self.drop_orphans();
        if ends_batch { None } else { self.next_ready() }
    }

    /// What is ready, or was fetched already.
    fn next_fetched(&mut self) -> Option<Completion> {
        let ready = self.take_ready();
        if ready.is_some() {
            return ready;
        }
        self.driver.harvest(&mut self.state);
        self.take_ready()
    }

    #[inline]
    fn next_ready(&mut self) -> Option<Completion> {
        if !(self.state.woken || self.state.has_ready()) {
            return None;
        }
        self.pop_ready()
    }

    fn pop_ready(&mut self) -> Option<Completion> {
        if self.state.woken {
            self.on_woken();
        }
        let completion = self.state.pop_ready(&mut self.orphans);
        self.drop_orphans();
        completion
    }

    /// Connections whose Accept completion was never seen, because the listener left: nobody
    /// knows them.
    fn drop_orphans(&mut self) {
        while let Some(handle) = self.orphans.pop() {
            if let Ok(index) = self.state.find(handle) {
                self.state.counters.connections_dropped += 1;
                self.detach(index);
            }
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Completion>, DispatchError> {
        let deadline = match timeout {
            Some(timeout) if !timeout.is_zero() => Instant::now().checked_add(timeout),
            _ => None,
        };
        let mut remaining = timeout;
        loop {
            let watched =
                self.state.timers.is_empty() || self.driver.watches_timers(&mut self.state);
            let patience = match watched {
                true if self.state.timers_due => Some(Duration::ZERO),
                true => remaining,
                false => self.shortest(remaining),
            };
            self.driver.wait(&mut self.state, patience)?;
            self.driver.harvest(&mut self.state);
            if !watched || std::mem::take(&mut self.state.timers_due) {
                self.expire_timers();
            }
            if let Some(completion) = self.next_ready() {
                return Ok(Some(completion));
            }
            if self.state.is_interrupted() {
                return Ok(None);
            }
            match (timeout, deadline) {
                (None, _) => {}
                (Some(_), None) => return Ok(None),
                (Some(_), Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    remaining = Some(left);
                }
            }
        }
    }

    /// The program's patience or the next timer, whichever ends first.
    fn shortest(&self, remaining: Option<Duration>) -> Option<Duration> {
        let timer = self.state.timers.until_next(Instant::now());
        match (timer, remaining) {
            (Some(timer), Some(remaining)) => Some(timer.min(remaining)),
            (timer, remaining) => timer.or(remaining),
        }
    }

    fn expire_timers(&mut self) {
        let now = Instant::now();
        while let Some((index, due)) = self.state.timers.expire(now) {
            match due {
                Due::Timer => self.state.on_timer(index, now),
                Due::Connect => {
                    self.state.slot(index).deadline = None;
                    self.driver.abandon_connect(&mut self.state, index);
                }
                Due::AcceptAgain => {
                    self.state.slot(index).deadline = None;
                    if let Some(listener) = self.state.slot(index).listener() {
                        listener.exhausted = false;
                    }
                    self.driver.start_accept(&mut self.state, index);
                }
                Due::LeaveGrace => {
                    self.state.slot(index).deadline = None;
                    self.detach(index);
                }
            }
        }
    }
}
