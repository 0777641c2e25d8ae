//! What a program may choose about a channel, with the defaults that suit a server.

use crate::error::CreateError;
use crate::limits;
use crate::setters::setters;

/// The kernel interface of the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverChoice {
    /// io_uring if a probe of it succeeds, else epoll; [`crate::DriverReport`] has the result.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// epoll, for sandboxes that forbid io_uring and for comparison.
    Epoll,
}

/// The implementation of TCP and UDP. The kernel serves everything else.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backend {
    /// Linux.
    #[default]
    Kernel,
    /// Our own stack, in this process, on a queue of a link.
    #[cfg(feature = "local")]
    Local(crate::local::LocalNetwork),
    /// Our own stack in a daemon, `megapiped`, which many processes share.
    #[cfg(feature = "local")]
    Service(crate::local::ServiceAddress),
}

impl Backend {
    /// `kernel`, `local` or `service`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            #[cfg(feature = "local")]
            Self::Local(_) => "local",
            #[cfg(feature = "local")]
            Self::Service(_) => "service",
        }
    }
}

/// Where the server of our own stack runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Inside `dispatch`, on the channel's own thread.
    #[default]
    Inline,
    /// On a second thread of the same core: it gathers events, and wakes the channel once for all
    /// of them [mTCP 3.2]. An idle channel runs the server itself before it sleeps.
    Thread,
    /// On a core of its own, the named one or any other than the channel's: it polls while there is
    /// work, and sleeps when there is none [ETA 4.2].
    Core(Option<usize>),
}

impl Placement {
    /// `inline`, `thread` or `core`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Thread => "thread",
            Self::Core(_) => "core",
        }
    }
}

/// A channel's configuration. Start from `Config::default()` and change what matters.
///
/// # Examples
/// ```
/// use megapipe::{Channel, Config, DriverChoice};
///
/// let config = Config::default().driver(DriverChoice::Epoll).batch(64).max_lwsockets(1000);
/// let channel = Channel::create(config)?;
/// assert_eq!(channel.report().driver.name(), "epoll");
/// # Ok::<(), megapipe::CreateError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The implementation of TCP and UDP. Default: [`Backend::Kernel`].
    pub backend: Backend,
    /// With [`Backend::Service`]: if the daemon gives no session when the channel is created, the
    /// kernel serves in place of it, and [`crate::DriverReport::fallen_back_from_service`] names
    /// the reason. Default: off, and creation fails with it. A channel that was attached never
    /// falls back.
    pub fall_back: bool,
    /// Which driver. Default: [`DriverChoice::Auto`].
    pub driver: DriverChoice,
    /// Where our own stack runs, with [`Backend::Local`]. Default: [`Placement::Inline`].
    pub placement: Placement,
    /// Operations that are gathered before they are submitted (1: no batching). Default 32 [MP
    /// 3.4.3]. With io_uring a batch may grow beyond it while completions that were fetched
    /// together are still being dispatched and the program is quick: 100 µs for this many
    /// operations.
    pub batch: u32,
    /// Entries of the submission queue, rounded up to a power of two. Default 1,024.
    pub submission_entries: u32,
    /// Entries of the completion queue, rounded up to a power of two. Default 8,192.
    pub completion_entries: u32,
    /// lwsockets that may be open at once. Default 65,536; on the kernel back end at most
    /// RLIMIT_NOFILE's hard limit.
    pub max_lwsockets: u32,
    /// Bytes of one receive buffer, so of one `Read` completion at most. Default 4,096.
    pub buffer_len: usize,
    /// Receive buffers of the channel, a power of two. Default 1,024.
    pub buffer_count: u16,
    /// Unsent bytes ([`crate::Channel::unsent_bytes`]) that one handle may have. A write that would
    /// exceed them is refused with [`crate::Limit::UnsentBytes`], and [`crate::Event::Drained`]
    /// follows when half of them are free. A single longer write is accepted if the handle has no
    /// unsent bytes. The limit counts bytes of data; each queued write takes about 100 bytes of
    /// memory in addition. Default 1 MiB, on every back end; `usize::MAX` for no limit.
    pub unsent_bytes_max: usize,
    /// Pin the calling thread to this core. Default: leave it where it is.
    pub core: Option<usize>,
    /// Accept lwsockets without a file descriptor. Off: each has an ordinary descriptor [MP 5.1,
    /// -L].
    pub lwsockets: bool,
    /// Give each channel its own accept queue. Off: all share the listener's [MP 5.1, -P].
    pub partition: bool,
    /// Our own stack: connections start with Nagle's algorithm (RFC 9293 §3.7.4), as sockets do,
    /// unless [`crate::ConnectOptions::nodelay`] overrides it. Default: off, as with the kernel's
    /// drivers. No effect on the kernel.
    pub nagle: bool,
    /// A signal handler that runs while `dispatch` waits ends the wait with `Ok(None)`, as EINTR
    /// does, and [`crate::Channel::take_interrupted`] returns `true`. Default: off, `dispatch`
    /// waits on.
    pub interruptible: bool,
    /// Our own stack: report [`crate::Event::Urgent`] and [`crate::Event::Undelivered`], which
    /// complete no operation. Default: off. No effect on the kernel.
    pub unsolicited_events: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backend: Backend::Kernel,
            fall_back: false,
            driver: DriverChoice::Auto,
            placement: Placement::Inline,
            batch: limits::BATCH_DEFAULT,
            submission_entries: limits::SUBMISSION_ENTRIES_DEFAULT,
            completion_entries: limits::COMPLETION_ENTRIES_DEFAULT,
            max_lwsockets: limits::LWSOCKETS_DEFAULT,
            buffer_len: limits::BUFFER_LEN_DEFAULT,
            buffer_count: limits::BUFFER_COUNT_DEFAULT,
            unsent_bytes_max: limits::UNSENT_BYTES_MAX_DEFAULT,
            core: None,
            lwsockets: true,
            partition: true,
            nagle: false,
            interruptible: false,
            unsolicited_events: false,
        }
    }
}

impl Config {
    setters! {
        /// Sets [`Config::backend`].
        backend: Backend;
        /// Sets [`Config::fall_back`].
        fall_back: bool;
        /// Sets [`Config::driver`].
        driver: DriverChoice;
        /// Sets [`Config::placement`].
        placement: Placement;
        /// Sets [`Config::batch`].
        batch: u32;
        /// Sets [`Config::submission_entries`].
        submission_entries: u32;
        /// Sets [`Config::completion_entries`].
        completion_entries: u32;
        /// Sets [`Config::max_lwsockets`].
        max_lwsockets: u32;
        /// Sets [`Config::buffer_len`].
        buffer_len: usize;
        /// Sets [`Config::buffer_count`].
        buffer_count: u16;
        /// Sets [`Config::unsent_bytes_max`].
        unsent_bytes_max: usize;
        /// Sets [`Config::lwsockets`].
        lwsockets: bool;
        /// Sets [`Config::partition`].
        partition: bool;
        /// Sets [`Config::nagle`].
        nagle: bool;
        /// Sets [`Config::interruptible`].
        interruptible: bool;
        /// Sets [`Config::unsolicited_events`].
        unsolicited_events: bool;
    }

    /// Sets [`Config::core`].
    #[must_use]
    pub fn core(mut self, core: usize) -> Self {
        self.core = Some(core);
        self
    }

    /// Checks every field against `limits` and rounds queue sizes up.
    ///
    /// # Errors
    /// [`CreateError::Config`] names the first field that is out of range.
    pub(crate) fn validated(mut self) -> Result<Self, CreateError> {
        in_range("batch", self.batch.into(), 1, limits::BATCH_MAX.into())?;
        in_range(
            "submission_entries",
            self.submission_entries.into(),
            limits::SUBMISSION_ENTRIES_MIN.into(),
            limits::SUBMISSION_ENTRIES_MAX.into(),
        )?;
        self.submission_entries = self.submission_entries.next_power_of_two();
        in_range(
            "completion_entries",
            self.completion_entries.into(),
            self.submission_entries.into(),
            limits::COMPLETION_ENTRIES_MAX.into(),
        )?;
        self.completion_entries = self.completion_entries.next_power_of_two();
        in_range("max_lwsockets", self.max_lwsockets.into(), 1, limits::HANDLES_MAX.into())?;
        in_range(
            "buffer_len",
            self.buffer_len as u64,
            limits::BUFFER_LEN_MIN as u64,
            limits::BUFFER_LEN_MAX as u64,
        )?;
        in_range(
            "buffer_count",
            self.buffer_count.into(),
            limits::BUFFER_COUNT_MIN.into(),
            limits::BUFFER_COUNT_MAX.into(),
        )?;
        self.buffer_count = self.buffer_count.next_power_of_two();
        if let Placement::Core(Some(core)) = self.placement {
            in_range("placement", core as u64, 0, limits::CPUS_MAX as u64 - 1)?;
        }
        in_range("unsent_bytes_max", self.unsent_bytes_max as u64, 1, u64::MAX)?;
        if let Some(core) = self.core {
            in_range("core", core as u64, 0, limits::CPUS_MAX as u64 - 1)?;
        }
        // A batch larger than the queue would be cut by the queue anyway.
        self.batch = self.batch.min(self.submission_entries);
        Ok(self)
    }
}

fn in_range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), CreateError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(CreateError::Config { field, value, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_the_papers() {
        let config = Config::default().validated().unwrap();
        assert_eq!(config.batch, 32);
    }

    #[test]
    fn the_error_names_the_field_and_its_range() {
        let error = Config::default().batch(0).validated().unwrap_err();
        assert_eq!(error.to_string(), "configuration: batch = 0 is outside 1..=4096");
        assert!(Config::default().buffer_len(63).validated().is_err());
        assert!(Config::default().completion_entries(16).validated().is_err());
    }

    #[test]
    fn queue_sizes_are_rounded_up_to_powers_of_two() {
        let config = Config::default().submission_entries(100).buffer_count(100);
        let config = config.validated().unwrap();
        assert_eq!((config.submission_entries, config.buffer_count), (128, 128));
    }
}
