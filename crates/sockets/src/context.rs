//! A context of one thread: the calls wait by driving the channel themselves.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use megapipe::{Clock, ErrorChain};
use thiserror::Error as ThisError;

use crate::calls::Run;
use crate::descriptors::Fd;
use crate::error::Error;
use crate::limits::{DESCRIPTORS_DEFAULT, DESCRIPTORS_MAX, FIRST_DESCRIPTOR_MAX};
use crate::sockets::{Attempt, OnSignal, Sockets, Wait};

/// What a context is made of. Start from `Config::default()`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The channel beneath: who does TCP, its buffers and its batch.
    pub channel: megapipe::Config,
    /// Descriptors that may be open at once (RLIMIT_NOFILE of the context). Default 65,536.
    pub descriptors: u32,
    /// The lowest descriptor, [`crate::limits::FIRST_DESCRIPTOR_MAX`] at most. Default 3, because 0
    /// to 2 are the process's.
    pub first_descriptor: Fd,
    /// Numbers below `first_descriptor` are the process's own descriptors, for the calls that watch
    /// ([`crate::Bsd::epoll_ctl`], [`crate::Bsd::poll`], [`crate::Bsd::select`]), as
    /// [`crate::AnyFd::Process`] says by type: for programs that have both kinds as plain numbers.
    /// Give `first_descriptor` a number that the process does not reach (RLIMIT_NOFILE). Default:
    /// no.
    pub process_below_first: bool,
    /// A number below this that was closed is taken again when the program has called
    /// [`crate::Bsd::epoll_wait`] since, or where no other below this is free. For programs that
    /// keep what they know of a socket by its number, and go on in a batch of events after they
    /// closed one of its sockets and opened others. Default 0: always the lowest that is free, as
    /// POSIX has it.
    pub rest_below: Fd,
    /// How old the answer "would block" may be. A program that goes by epoll reads until it is told
    /// so, once per message: an answer from the last turn will do. Default 20 µs; zero looks each
    /// time.
    pub freshness: Duration,
    /// What time it is, for time-outs. Default: the machine's. Where our own stack runs in virtual
    /// time, give both the same ([`megapipe::ServerConfig::clock`]).
    pub clock: Clock,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            channel: megapipe::Config::default(),
            descriptors: DESCRIPTORS_DEFAULT,
            first_descriptor: 3,
            process_below_first: false,
            rest_below: 0,
            freshness: Duration::from_micros(20),
            clock: Clock::new(),
        }
    }
}

impl Config {
    /// Sets [`Config::channel`].
    #[must_use]
    pub fn channel(mut self, channel: megapipe::Config) -> Self {
        self.channel = channel;
        self
    }

    /// Sets [`Config::descriptors`].
    #[must_use]
    pub const fn descriptors(mut self, descriptors: u32) -> Self {
        self.descriptors = descriptors;
        self
    }

    /// Sets [`Config::first_descriptor`].
    #[must_use]
    pub const fn first_descriptor(mut self, first: Fd) -> Self {
        self.first_descriptor = first;
        self
    }

    /// Sets [`Config::process_below_first`].
    #[must_use]
    pub const fn process_below_first(mut self, below: bool) -> Self {
        self.process_below_first = below;
        self
    }

    /// Sets [`Config::rest_below`].
    #[must_use]
    pub const fn rest_below(mut self, below: Fd) -> Self {
        self.rest_below = below;
        self
    }

    /// Sets [`Config::freshness`].
    #[must_use]
    pub const fn freshness(mut self, freshness: Duration) -> Self {
        self.freshness = freshness;
        self
    }

    /// Sets [`Config::clock`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(crate) fn checked(self) -> Result<Self, CreateError> {
        let range = |field, value: i64, max: i64| {
            if (0..=max).contains(&value) {
                Ok(())
            } else {
                Err(CreateError::OutOfRange { field, value, max })
            }
        };
        let max = i64::from(DESCRIPTORS_MAX);
        range("descriptors", self.descriptors.into(), max)?;
        range("first_descriptor", self.first_descriptor.into(), FIRST_DESCRIPTOR_MAX.into())?;
        range("rest_below", self.rest_below.into(), max)?;
        Ok(self)
    }
}

/// Why a context could not be made.
#[derive(ThisError)]
#[non_exhaustive]
pub enum CreateError {
    /// A value of the configuration is out of range.
    #[error("configuration: {field} = {value} is outside 0..={max}")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// What was given.
        value: i64,
        /// The largest allowed.
        max: i64,
    },
    /// What belongs to one thread cannot be shared.
    #[error("{what} belongs to one thread: a shared context cannot have it")]
    NotShared {
        /// What was asked for.
        what: &'static str,
    },
    /// On a clock that is set by hand, calls cannot wait for time themselves.
    #[error("with a clock that is set by hand, the sockets have to be driven from outside")]
    NobodyDrives,
    /// The channel could not be made.
    #[error(transparent)]
    Channel(#[from] megapipe::CreateError),
}

impl fmt::Debug for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ErrorChain(self), f)
    }
}

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
            return Err(CreateError::NobodyDrives);
        }
        Ok(Self { sockets: Sockets::create(config)?, not_send: PhantomData })
    }

    /// Drives the sockets: hands over what was asked for, and takes what has happened. For a
    /// program that goes long without a call that waits. Waits at most `timeout` for something to
    /// happen.
    ///
    /// # Errors
    /// [`Error::NetworkDown`]: the link is gone.
    pub fn turn(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.sockets.turn(timeout)
    }

    /// Ends a [`Context::turn`], or the wait of a call, from any thread: the call is tried again,
    /// and waits on if nothing came of it. May be used in a signal handler.
    #[must_use]
    pub fn waker(&self) -> megapipe::Waker {
        self.sockets.channel.waker()
    }

    /// As [`Run::run`], but looks before each wait whether it was interrupted by somebody. Whoever
    /// interrupts rings the [`Context::waker`] after saying so. Signal handlers that run on this
    /// thread interrupt in any case, as in signal(7).
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
                None => self.sockets.turn(left)?,
                Some(mask) => self.sockets.turn_with_mask(left, mask)?,
            }
            // Mostly it is there now, and nobody needs to know the time.
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
    /// driven, by its calls or by [`Context::turn`], and are lost when it is dropped.
    #[must_use]
    pub const fn closing(&self) -> usize {
        self.sockets.closing
    }

    /// What the channel beneath has counted since the context was made.
    #[must_use]
    pub const fn counters(&self) -> megapipe::Counters {
        self.sockets.channel.counters()
    }

    /// What serves the context, and why.
    #[must_use]
    pub const fn report(&self) -> &megapipe::DriverReport {
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

impl Run for Context {
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
