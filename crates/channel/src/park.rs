//! Parking a channel in a program's event loop: is there work, and what to sleep on.
//!
//! `dispatch` waits by itself. A program that waits for something else as well, or whose waiting
//! thread must not hold the channel, calls [`Channel::park`], sleeps on [`Channel::descriptors`],
//! then dispatches without a time-out.
//!
//! Invariant: between a `park` that returned [`Park::Until`] and the next call on the channel, each
//! event of the channel makes one of the descriptors readable, or the time passes.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::driver::{Driver, Park};
use crate::error::DispatchError;

impl<T> Channel<T> {
    /// Submits queued operations and returns whether there is something to dispatch; if not, arms
    /// [`Channel::descriptors`] for a sleep. Does not block.
    ///
    /// # Errors
    /// [`DispatchError`] as for [`Channel::dispatch`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Park};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// channel.timer(Duration::from_millis(1), None, 0)?;
    /// let completion = loop {
    ///     if let Park::Until(timeout) = channel.park()? {
    ///         // A real program polls its own descriptors and `channel.descriptors()` here, for at
    ///         // most this long.
    ///         std::thread::sleep(timeout.expect("there is a timer"));
    ///     }
    ///     if let Some(completion) = channel.dispatch(Some(Duration::ZERO))? {
    ///         break completion;
    ///     }
    /// };
    /// assert!(matches!(completion.event, megapipe::Event::Timer { expirations: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn park(&mut self) -> Result<Park, DispatchError> {
        self.check_fork().map_err(|_| DispatchError::Forked)?;
        if self.state.woken || self.state.has_ready() {
            return Ok(Park::Work);
        }
        let park = self.driver.park(&mut self.state)?;
        let (Park::Until(own), false) = (park, self.state.has_ready() || self.state.woken) else {
            return Ok(Park::Work);
        };
        let timer = match self.state.timers.is_empty() {
            true => None,
            false => self.state.timers.until_next(Instant::now()),
        };
        match [own, timer].into_iter().flatten().min() {
            Some(Duration::ZERO) => Ok(Park::Work),
            until => Ok(Park::Until(until)),
        }
    }

    /// Returns the descriptors that become readable when there is something to dispatch, after a
    /// [`Channel::park`]. They are the same for the life of the channel. A [`crate::Waker`] makes
    /// one of them readable, too.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Park};
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// channel.waker().wake();
    /// if channel.park()? == Park::Until(None) {
    ///     // A program adds its own descriptors here.
    ///     let fds = channel.descriptors();
    ///     let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    ///     poll(&mut polled, None)?;
    /// }
    /// assert!(channel.dispatch(Some(Duration::ZERO))?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.driver.descriptors()
    }
}
