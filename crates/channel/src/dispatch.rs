//! Dispatch: how completions leave a channel.
//!
//! ```text
//!   driver: next answer --- bytes for the only read that waits ---> Completion      (direct)
//!                     \-- anything else ---> State's queue ------> Completion      (queued)
//! ```
//!
//! `next_direct` asks the driver while the queue is empty, `next_queued` empties the queue. When
//! both return nothing, the driver is polled, and then both are asked again.
//!
//! Read first: `channel.rs`; [MP 3.4.3] for when operations are handed over.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::channel::Channel;
use crate::completion::{Completion, Event};
use crate::completion_queue::{Common, CommonEvent, Whose, accepted};
use crate::driver::Driver;
use crate::error::DispatchError;
use crate::limits::DISPATCHES_PER_POLL;
use crate::timers::Due;

/// Completions.
impl<T> Channel<T> {
    /// Submits the queued operations. Does not block.
    ///
    /// # Errors
    /// [`DispatchError`] if the kernel refused; the operations stay queued.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::{io::Read, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// channel.write_quiet(handle, "hello")?;
    /// channel.flush()?;
    /// peer.read_exact(&mut [0; 5])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&mut self) -> Result<(), DispatchError> {
        self.check_fork().map_err(|_| DispatchError::Forked)?;
        self.driver.flush(&mut self.state)
    }

    /// Returns whether a signal handler ran during a `dispatch` that waited, since the last call of
    /// this function. With [`crate::Config::interruptible`] the signal ended the wait.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default().interruptible(true))?;
    /// while channel.dispatch(Some(Duration::from_millis(1)))?.is_none() {
    ///     if !channel.take_interrupted() {
    ///         break; // The time-out passed.
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn take_interrupted(&mut self) -> bool {
        std::mem::replace(&mut self.state.interrupted, false)
    }

    /// Returns the time at which the last poll of our own stack began, on its server's clock
    /// ([`crate::ServerConfig::clock`]); `None` on the kernel back end. It saves a program one
    /// reading of the clock after each `dispatch`.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let channel = Channel::create(Config::default())?;
    /// assert_eq!(channel.polled_at(), None);
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    #[inline]
    pub fn polled_at(&self) -> Option<Duration> {
        self.driver.polled_at()
    }

    /// Returns the next completion. If none is left, submits the queued operations and blocks for
    /// at most `timeout` (`None`: no limit; zero: does not block).
    ///
    /// Returns `Ok(None)` when the time-out has passed, or when a signal handler ran
    /// ([`crate::Config::interruptible`]).
    ///
    /// # Errors
    /// [`DispatchError`] if the kernel refused; with ENOMEM if there is no memory for completions.
    /// No completion is lost: a later call continues.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// assert!(channel.dispatch(Some(Duration::ZERO))?.is_none());
    /// channel.timer(Duration::from_millis(1), None, 7)?;
    /// let done = channel.dispatch(Some(Duration::from_secs(10)))?.expect("a completion");
    /// assert_eq!(done.cookie, 7);
    /// assert!(matches!(done.event, Event::Timer { expirations: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Always inlined: the completion is then taken apart where it was made, not copied first.
    #[inline(always)]
    pub fn dispatch(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Completion>, DispatchError> {
        // First of all: in a child the ring's memory is not even there to be looked at.
        self.check_fork().map_err(|_| DispatchError::Forked)?;
        match self.next_direct() {
            Some(completion) => Ok(Some(completion)),
            None => self.dispatch_queued(timeout),
        }
    }

    /// Returns the next completion if one is queued. Submits nothing, polls nothing and does not
    /// block. For programs that do something once for all completions that arrived together, such
    /// as reading the clock; only [`Channel::dispatch`] fetches more.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// channel.timer(Duration::ZERO, None, 0)?;
    /// let mut next = channel.dispatch(None)?;
    /// while let Some(done) = next {
    ///     println!("{done:?}");
    ///     next = channel.dispatch_ready();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn dispatch_ready(&mut self) -> Option<Completion> {
        if self.check_fork().is_err() {
            return None;
        }
        self.next_direct().or_else(|| self.next_queued())
    }

    /// Direct path: bytes for the only read that waits for them, or the end, are by far the most
    /// frequent completion. It is made where it is wanted.
    #[inline(always)]
    fn next_direct(&mut self) -> Option<Completion> {
        if self.state.woken || self.state.has_ready() {
            return None;
        }
        let (Whose { handle, slot }, data) = self.driver.next_answer(&mut self.state)?;
        let cookie = self.state.peek(slot).cookie;
        Some(Completion { handle, cookie, event: Event::Read(Ok(data)) })
    }

    /// Queued path: any completion of `state`'s queue. To be called when `next_direct` returned
    /// none, which has queued the completion of the next answer, if there is one.
    #[inline(never)]
    fn next_queued(&mut self) -> Option<Completion> {
        while self.state.woken || self.state.has_ready() {
            // Without a completion, all in the queue were of handles that left.
            let next = self.take_queued().or_else(|| self.next_direct());
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// The next completion of the queue; the common kinds are put together here, where they are
    /// wanted.
    #[inline]
    fn take_queued(&mut self) -> Option<Completion> {
        if self.state.woken {
            self.on_woken();
        }
        if let Some((Common { handle, what, .. }, cookie)) = self.state.take_common() {
            let event = match what {
                CommonEvent::Written(len) => Some(Event::Write(Ok(len as usize))),
                CommonEvent::Accepted(connection, pending) => Some(accepted(connection, pending)),
                CommonEvent::Connected => Some(Event::Connect(Ok(()))),
                CommonEvent::Disconnected => Some(Event::Disconnect(Ok(()))),
                CommonEvent::Over(result) => Some(Event::End(result)),
                CommonEvent::Read(number, len) => {
                    self.state.take_read(number, len).map(|data| Event::Read(Ok(data)))
                }
            };
            if let Some(event) = event {
                return Some(Completion { handle, cookie, event });
            }
        }
        if self.state.has_ready() { self.pop_queued() } else { None }
    }

    fn pop_queued(&mut self) -> Option<Completion> {
        let completion = self.state.pop_ready(&mut self.orphans);
        self.drop_orphans();
        completion
    }

    /// What `next_direct` leaves: the queue, and then polls of the driver.
    #[inline(never)]
    fn dispatch_queued(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Completion>, DispatchError> {
        let mut patience = timeout;
        self.state.since_poll += 1;
        if self.state.since_poll > DISPATCHES_PER_POLL {
            patience = Some(Duration::ZERO);
        } else if let Some(completion) = self.next_queued() {
            return Ok(Some(completion));
        }
        let deadline = match timeout {
            Some(timeout) if !timeout.is_zero() => Instant::now().checked_add(timeout),
            _ => None,
        };
        loop {
            self.poll(patience)?;
            if let Some(completion) = self.next_direct().or_else(|| self.next_queued()) {
                return Ok(Some(completion));
            }
            // One of the answers may have been that a timer is due.
            if std::mem::take(&mut self.state.timers_due) {
                self.expire_timers();
                if let Some(completion) = self.next_queued() {
                    return Ok(Some(completion));
                }
            }
            if self.state.is_interrupted() {
                return Ok(None);
            }
            patience = match (timeout, deadline) {
                (None, _) => None,
                (Some(_), None) => return Ok(None),
                (Some(_), Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    Some(left)
                }
            };
        }
    }

    /// Appends up to `max` completions to `out` and returns their number. Blocks only for the
    /// first, as [`Channel::dispatch`] does.
    ///
    /// Each completion carries the cookie that its handle has at the time of this call. The batch
    /// ends before the second completion of a connection that was accepted or established in it. A
    /// cookie that is set when a connection begins ([`Channel::set_cookie`]) is therefore in all of
    /// its completions, on all back ends.
    ///
    /// # Errors
    /// [`DispatchError`] if the kernel refused.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// for cookie in 0..10 {
    ///     channel.timer(Duration::from_millis(1), None, cookie)?;
    /// }
    /// let mut completions = Vec::new();
    /// while completions.len() < 10 {
    ///     channel.dispatch_many(&mut completions, 64, None)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
                _ => self.next_direct().or_else(|| self.next_queued()),
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
        if ends_batch { None } else { self.take_queued() }
    }

    /// Connections whose Accept completion was never returned, because the listener left: the
    /// program does not know them.
    fn drop_orphans(&mut self) {
        while let Some(handle) = self.orphans.pop() {
            if let Ok(index) = self.state.find(handle) {
                self.state.counters.connections_dropped += 1;
                self.detach(index);
            }
        }
    }

    /// Submits what is queued, waits for the first completion at most `patience`, and expires
    /// timers.
    fn poll(&mut self, patience: Option<Duration>) -> Result<(), DispatchError> {
        self.state.since_poll = 0;
        // What the kernel answers must be kept.
        self.state.reserve_completions().map_err(|_| DispatchError::Kernel(Errno::NOMEM.into()))?;
        let watched = self.state.timers.is_empty() || self.driver.watches_timers(&mut self.state);
        let patience = match watched {
            true if self.state.timers_due => Some(Duration::ZERO),
            true => patience,
            false => self.shortest(patience),
        };
        self.driver.wait(&mut self.state, patience)?;
        if !watched || std::mem::take(&mut self.state.timers_due) {
            // What has come goes before what is due.
            self.driver.harvest(&mut self.state);
            self.expire_timers();
        }
        Ok(())
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
