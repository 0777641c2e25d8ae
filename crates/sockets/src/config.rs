//! The configuration of a context: its channel, its descriptors and its clock.
//!
//! Read first: `megapipe::Config` for the channel's part.

use std::fmt;
use std::time::Duration;

use megapipe::{Clock, ErrorChain};
use thiserror::Error as ThisError;

use crate::descriptors::Fd;
use crate::limits::{DESCRIPTORS_DEFAULT, DESCRIPTORS_MAX, FIRST_DESCRIPTOR_MAX};

/// The configuration of a context. Start from `Config::default()`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The channel's configuration: back end, buffers, batch.
    pub channel: megapipe::Config,
    /// Descriptors that may be open at once (RLIMIT_NOFILE of the context). Default 65,536.
    pub descriptors: u32,
    /// The lowest descriptor, [`crate::limits::FIRST_DESCRIPTOR_MAX`] at most. Default 3, because 0
    /// to 2 are the process's.
    pub first_descriptor: Fd,
    /// Numbers below `first_descriptor` are descriptors of the process in calls that watch
    /// ([`crate::Bsd::epoll_ctl`], [`crate::Bsd::poll`], [`crate::Bsd::select`]), as
    /// [`crate::AnyFd::Process`] is by type. For programs that have both kinds as plain numbers.
    /// `first_descriptor` must then be beyond the process's RLIMIT_NOFILE. Default: off.
    pub process_below_first: bool,
    /// A closed number below this is reused only after the program has called
    /// [`crate::Bsd::epoll_wait`], or if no other number below this is free. For programs that look
    /// up sockets by number, and process the rest of a batch of events after they closed one socket
    /// and opened others. Default 0: always the lowest free number, as POSIX requires.
    pub rest_below: Fd,
    /// A closed number is reused only after so many others have been closed, or if no other is
    /// free. For programs that map numbers of their own to descriptors, and whose threads may close
    /// what another thread has just looked up. With [`Config::rest_below`] that decides. Default 0.
    pub reuse_after: u32,
    /// A listener of our own stack that is closed gives the connections that no call has accepted
    /// to another listener at its address, of any channel or, on a daemon, any process. Default:
    /// off; they are reset, as those of Linux.
    pub hand_back: bool,
    /// The maximum age of the answer "would block". A program with epoll reads until it gets this
    /// answer, once per message, and the state of the last poll is good enough for it. Default 20
    /// µs; zero polls each time.
    pub freshness: Duration,
    /// The clock of time-outs. Default: the machine's. If our own stack runs in virtual time, both
    /// need the same clock ([`megapipe::ServerConfig::clock`]).
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
            reuse_after: 0,
            hand_back: false,
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

    /// Sets [`Config::reuse_after`].
    #[must_use]
    pub const fn reuse_after(mut self, closed: u32) -> Self {
        self.reuse_after = closed;
        self
    }

    /// Sets [`Config::hand_back`].
    #[must_use]
    pub const fn hand_back(mut self, hands_back: bool) -> Self {
        self.hand_back = hands_back;
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
        range("reuse_after", self.reuse_after.into(), DESCRIPTORS_MAX.into())?;
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
    NoDriver,
    /// The channel could not be made.
    #[error(transparent)]
    Channel(#[from] megapipe::CreateError),
}

impl fmt::Debug for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ErrorChain(self), f)
    }
}
