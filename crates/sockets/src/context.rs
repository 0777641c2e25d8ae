//! A context of one thread: the calls wait by driving the channel themselves.

use std::marker::PhantomData;
use std::time::Duration;

use crate::attempt::{Attempt, OnSignal, Wait};
use crate::call_runner::CallRunner;
use crate::config::{Config, CreateError};
use crate::error::Error;
use crate::table::Sockets;

/// BSD sockets and epoll for one thread, which drives them by its calls ([`crate::Bsd`]).
///
/// Create it on the thread that uses it: it is neither `Send` nor `Sync`. No call takes a lock.
pub struct Context {
    sockets: Sockets,
    not_send: PhantomData<*const ()>,
}

impl Context {
    /// Creates a context for the calling thread. Probes the kernel for io_uring; does not block.
    ///
    /// # Errors
    /// [`CreateError`] names what is wrong or missing. A manual clock needs a
    /// [`crate::SharedContext`].
    ///
    /// # Examples
    /// ```
    /// use megapipe_sockets::{Bsd, Config, Context};
    ///
    /// let mut context = Context::create(Config::default())?;
    /// let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// context.bind(listener, "127.0.0.1:0".parse()?)?;
    /// context.listen(listener, 128)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create(config: Config) -> Result<Self, CreateError> {
        let config = config.checked()?;
        if config.clock.is_by_hand() {
            return Err(CreateError::NoDriver);
        }
        Ok(Self { sockets: Sockets::create(config)?, not_send: PhantomData })
    }

    /// Polls the channel: submits queued operations and processes completions. Blocks for at most
    /// `timeout` until there is one. For programs that make no blocking call for a long time.
    ///
    /// # Errors
    /// [`Error::NetworkDown`]: the link is gone.
    ///
    /// # Examples
    /// ```
    /// use megapipe_sockets::{Config, Context};
    /// use std::time::Duration;
    ///
    /// let mut context = Context::create(Config::default())?;
    /// for _ in 0..10 {
    ///     // A step of a long computation, and then the network.
    ///     context.drive(Some(Duration::ZERO))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drive(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.sockets.drive(timeout)?;
        self.sockets.channel.check_link()
    }

    /// Returns a waker that ends a [`Context::drive`], or retries a blocked call, from any thread:
    /// the call blocks again if it still cannot complete. It may be used in a signal handler.
    #[must_use]
    pub fn waker(&self) -> megapipe::Waker {
        self.sockets.channel.waker()
    }

    /// Runs a call as [`CallRunner::run`] does, but checks for an interruption before each wait. A
    /// thread that interrupts it sets its flag and then wakes the [`Context::waker`]. Signal
    /// handlers that run on this thread interrupt in any case, as in signal(7).
    ///
    /// # Errors
    /// Those of the attempt; [`Error::Interrupted`].
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

    /// Returns the number of connections that were closed and still have bytes to send. Those bytes
    /// are sent while the context is driven, by its calls or by [`Context::drive`], and are lost
    /// when it is dropped.
    #[must_use]
    pub const fn closing(&self) -> usize {
        self.sockets.closing
    }

    /// Returns the channel's totals since the context was created.
    #[must_use]
    pub fn counters(&self) -> megapipe::Counters {
        self.sockets.channel.counters()
    }

    /// Returns which driver serves the context, and why.
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
