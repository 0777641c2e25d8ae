//! A context of one thread: the calls wait by driving the channel themselves.

use std::marker::PhantomData;
use std::time::Duration;

use crate::attempt::{Attempt, OnSignal, Wait};
use crate::calls::CallRunner;
use crate::config::{Config, CreateError};
use crate::error::Error;
use crate::table::Sockets;

/// BSD sockets and epoll for one thread, which drives them by its calls ([`crate::Bsd`]).
///
/// Make it on the thread that uses it: it is neither `Send` nor `Sync`. No call takes a lock.
pub struct Context {
    sockets: Sockets,
    not_send: PhantomData<*const ()>,
}

impl Context {
    /// Makes a context for the calling thread. Tries what the kernel offers; does not block.
    ///
    /// # Errors
    /// [`CreateError`] names what is wrong or missing. A clock that is set by hand needs a
    /// [`crate::SharedContext`].
    pub fn create(config: Config) -> Result<Self, CreateError> {
        let config = config.checked()?;
        if config.clock.is_by_hand() {
            return Err(CreateError::NoDriver);
        }
        Ok(Self { sockets: Sockets::create(config)?, not_send: PhantomData })
    }

    /// Drives the sockets: hands over what was asked for, and takes what has happened. For a
    /// program that goes long without a call that waits. Waits at most `timeout` for something to
    /// happen.
    ///
    /// # Errors
    /// [`Error::NetworkDown`]: the link is gone.
    pub fn drive(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.sockets.drive(timeout)
    }

    /// Ends a [`Context::drive`], or the wait of a call, from any thread: the call is tried again,
    /// and waits on if nothing came of it. May be used in a signal handler.
    #[must_use]
    pub fn waker(&self) -> megapipe::Waker {
        self.sockets.channel.waker()
    }

    /// As [`CallRunner::run`], but looks before each wait whether it was interrupted. A thread that
    /// interrupts it rings the [`Context::waker`] after setting the flag. Signal handlers that run
    /// on this thread interrupt in any case, as in signal(7).
    ///
    /// # Errors
    /// Those of the attempt; [`Error::Interrupted`]; [`Error::NetworkDown`] while it waits.
    #[inline]
    pub fn run_unless<T>(
        &mut self,
        mut is_interrupted: impl FnMut() -> bool,
        mut attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        let mut wait = match attempt(&mut self.sockets, false) {
            Attempt::Done(result) => {
                self.sockets.after_call();
                return result;
            }
            Attempt::Wait(wait) => wait,
        };
        let mut left = wait.timeout;
        let deadline = left.and_then(|timeout| self.sockets.now().checked_add(timeout));
        loop {
            if is_interrupted() {
                return interrupted(&mut self.sockets, wait, attempt);
            }
            match wait.mask {
                None => self.sockets.drive(left)?,
                Some(mask) => self.sockets.drive_with_mask(left, mask)?,
            }
            // Mostly it is there now, and the time need not be read.
            match attempt(&mut self.sockets, false) {
                Attempt::Done(result) => return result,
                Attempt::Wait(again) => wait = again,
            }
            if let Some(at) = deadline {
                let rest = at.saturating_sub(self.sockets.now());
                if rest.is_zero()
                    && let Attempt::Done(result) = attempt(&mut self.sockets, true)
                {
                    return result;
                }
                debug_assert!(!rest.is_zero(), "it asks to wait when the time is over: {wait:?}");
                left = Some(rest);
            }
            if self.sockets.is_ended_by_signal(wait) {
                return interrupted(&mut self.sockets, wait, attempt);
            }
        }
    }

    /// Connections that were closed and still have bytes to send. Those go out as the context is
    /// driven, by its calls or by [`Context::drive`], and are lost when it is dropped.
    #[must_use]
    pub const fn closing(&self) -> usize {
        self.sockets.closing
    }

    /// What the channel beneath has counted since the context was made.
    #[must_use]
    pub fn counters(&self) -> megapipe::Counters {
        self.sockets.channel.counters()
    }

    /// What serves the context, and why.
    #[must_use]
    pub fn report(&self) -> &megapipe::DriverReport {
        self.sockets.channel.report()
    }
}

/// What a call answers that a signal ends while it waits.
#[cold]
pub(crate) fn interrupted<T>(
    sockets: &mut Sockets,
    wait: Wait,
    mut attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
) -> Result<T, Error> {
    if wait.on_signal != OnSignal::EndsWithPart {
        return Err(Error::Interrupted);
    }
    // As if the time were over: with what it has.
    match attempt(sockets, true) {
        Attempt::Done(result) => result,
        Attempt::Wait(_) => Err(Error::Interrupted),
    }
}

impl CallRunner for Context {
    #[inline]
    fn run<T>(
        &mut self,
        attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        self.run_unless(|| false, attempt)
    }

    #[inline]
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        let result = call(&mut self.sockets);
        self.sockets.after_call();
        result
    }
}
