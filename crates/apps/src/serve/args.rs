//! The options that every server has.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use megapipe::limits::{
    BATCH_MAX, BUFFER_COUNT_MAX, BUFFER_COUNT_MIN, BUFFER_LEN_MAX, BUFFER_LEN_MIN, HANDLES_MAX,
};
use megapipe::{Address, Backend, Config, DriverChoice};

use super::ServerProperties;
use super::error::ServeError;
use super::layout::CpuList;
use crate::backend::{BackendArgs, BackendName};
use crate::limits;
use crate::number::within;

/// A driver by the name that the command line uses.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DriverName {
    /// io_uring where a trial of it works, else epoll
    #[default]
    Auto,
    /// io_uring, or an error with the reason
    Uring,
    /// epoll, for sandboxes that forbid io_uring and for comparison
    Epoll,
}

impl From<DriverName> for DriverChoice {
    fn from(name: DriverName) -> Self {
        match name {
            DriverName::Auto => Self::Auto,
            DriverName::Uring => Self::Uring,
            DriverName::Epoll => Self::Epoll,
        }
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Epoll => "epoll",
        })
    }
}

/// The options that every server has; a server flattens them into its own.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Address to listen on; may be given several times
    ///
    /// `IP:PORT`, `[IPv6]:PORT`, `localhost:PORT`, `unix:/path` or `unix:@abstract`. Port 0 takes a
    /// free port, which the line printed when the server is ready names. Without it the server
    /// listens at its own port: of the loopback, or with --backend local of the first --address,
    /// or of all that the link brings.
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// Channels: one thread each, pinned to a processor of its own
    ///
    /// Without this option and without --cpus there is one channel, and its thread is not pinned.
    #[arg(help_heading = "Channels", long, value_name = "N",
          value_parser = within(1..=limits::CHANNELS_MAX))]
    pub channels: Option<usize>,

    /// Processors to pin the channels to, in order, such as 0,2-5
    ///
    /// Without --channels there is one channel for each of them.
    #[arg(help_heading = "Channels", long, value_name = "LIST")]
    pub cpus: Option<CpuList>,

    /// Back end.
    #[command(flatten)]
    pub backend: BackendArgs,

    /// Which kernel interface carries the channels
    #[arg(help_heading = "Channels", long, value_enum, default_value_t)]
    pub driver: DriverName,

    /// Operations gathered before they go to the kernel together; 1 switches batching off
    #[arg(help_heading = "Channels",
          long, value_name = "N", default_value_t = Config::default().batch,
          value_parser = within(1..=BATCH_MAX))]
    pub batch: u32,

    /// Give accepted connections ordinary descriptors instead of lwsockets
    #[arg(help_heading = "Channels", long)]
    pub no_lwsockets: bool,

    /// Let all channels share each listener's one accept queue
    #[arg(help_heading = "Channels", long)]
    pub no_partition: bool,

    /// Bytes of one receive buffer
    #[arg(help_heading = "Channels",
          long, value_name = "BYTES", default_value_t = Config::default().buffer_len,
          value_parser = within(BUFFER_LEN_MIN..=BUFFER_LEN_MAX))]
    pub buffer_len: usize,

    /// Receive buffers of each channel
    #[arg(help_heading = "Channels",
          long, value_name = "N", default_value_t = Config::default().buffer_count,
          value_parser = within(BUFFER_COUNT_MIN..=BUFFER_COUNT_MAX))]
    pub buffer_count: u16,

    /// Connections held at once, all channels together; more wait in the listeners' backlogs
    ///
    /// Fewer if the limit on open descriptors (ulimit -n) is too low for them and their files.
    #[arg(help_heading = "Limits", long,
        value_name = "N",
        default_value_t = limits::CONNECTIONS_DEFAULT,
        value_parser = within(1..=limits::CONNECTIONS_MAX)
    )]
    pub max_connections: u32,

    /// Connections that the kernel completes ahead of the server, for each listener
    #[arg(help_heading = "Limits", long,
        value_name = "N",
        default_value_t = limits::BACKLOG_DEFAULT,
        value_parser = within(1..=65_535_u32)
    )]
    pub backlog: u32,

    /// Seconds in which connections may end cleanly after SIGINT or SIGTERM
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = limits::DRAIN_SECONDS_DEFAULT,
          value_parser = within(0..=limits::DRAIN_SECONDS_MAX))]
    pub drain: u32,

    /// Say when the server is ready which driver it has and why
    #[arg(help_heading = "Output", long, short)]
    pub verbose: bool,

    /// Show live counters on standard error, renewed every so many seconds
    ///
    /// On a terminal the table is rewritten in place, elsewhere it is one line each time.
    #[arg(help_heading = "Output",
          long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = within(1..=86_400_u32))]
    pub stats: Option<u32>,

    /// Write what each channel has done to this file as JSON when the server ends
    ///
    /// An array with an object for each channel; `-` is standard output.
    #[arg(help_heading = "Output", long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a newline to this descriptor (a pipe or a file) when the server is ready
    #[arg(help_heading = "Output", long, value_name = "FD",
          value_parser = within(0..=i32::MAX.cast_unsigned()))]
    pub ready_fd: Option<u32>,
}

impl ServeArgs {
    /// What the command line gives when only the addresses are named: one channel, not pinned.
    #[must_use]
    pub fn on(listen: impl IntoIterator<Item = Address>) -> Self {
        let config = Config::default();
        Self {
            listen: listen.into_iter().collect(),
            channels: None,
            cpus: None,
            backend: BackendArgs::default(),
            driver: DriverName::Auto,
            batch: config.batch,
            no_lwsockets: false,
            no_partition: false,
            buffer_len: config.buffer_len,
            buffer_count: config.buffer_count,
            max_connections: limits::CONNECTIONS_DEFAULT,
            backlog: limits::BACKLOG_DEFAULT,
            drain: limits::DRAIN_SECONDS_DEFAULT,
            verbose: false,
            stats: None,
            json: None,
            ready_fd: None,
        }
    }

    /// Addresses to listen on: those of the options, or the server's default.
    pub(crate) fn addresses(&self, server: ServerProperties) -> Vec<Address> {
        if !self.listen.is_empty() {
            return self.listen.clone();
        }
        // A default that is no address is caught by the server's own test.
        let Ok(default) = server.listen_default.parse::<Address>() else { return Vec::new() };
        if self.backend.backend == BackendName::Kernel {
            return vec![default];
        }
        // The loopback is the kernel's.
        let ip = self.backend.address.first().map(|it| it.address);
        let ip = ip.unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.into());
        let port = default.as_inet().map_or(0, |inet| inet.port());
        vec![SocketAddr::new(ip, port).into()]
    }

    /// How many channels there are to be.
    ///
    /// # Errors
    /// [`ServeError::Channels`]: more than a server may have, or none.
    pub(crate) fn channel_count(&self) -> Result<usize, ServeError> {
        let by_cpus = self.cpus.as_ref().map_or(1, |cpus| cpus.as_slice().len());
        let count = self.channels.unwrap_or(by_cpus);
        if (1..=limits::CHANNELS_MAX).contains(&count) {
            Ok(count)
        } else {
            Err(ServeError::Channels { asked: count, max: limits::CHANNELS_MAX })
        }
    }

    /// Whether the channels' threads are to be pinned.
    pub(crate) const fn pinned(&self) -> bool {
        self.channels.is_some() || self.cpus.is_some()
    }

    /// The configuration of each of `count` channels, `core` being its processor.
    pub(crate) fn config(&self, backend: &Backend, count: usize, core: Option<usize>) -> Config {
        let share = self.connections_of_each(count);
        let mut config = Config::default()
            .backend(backend.clone())
            .fall_back(self.backend.fall_back)
            .driver(self.driver.into())
            .batch(self.batch)
            .lwsockets(!self.no_lwsockets)
            .partition(!self.no_partition)
            .buffer_len(self.buffer_len)
            .buffer_count(self.buffer_count)
            // Each server stops reading from a peer that leaves too much unsent.
            .unsent_bytes_max(usize::MAX)
            .max_lwsockets(share.saturating_add(limits::SLOTS_BESIDE_CONNECTIONS).min(HANDLES_MAX));
        config.core = core;
        config
    }

    /// The connections that each of `count` channels may hold, rounded up.
    pub(crate) fn connections_of_each(&self, count: usize) -> u32 {
        self.max_connections.div_ceil(u32::try_from(count).unwrap_or(u32::MAX).max(1))
    }
}
