//! The options of `megapipe load`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use megapipe::limits::BATCH_MAX;
use megapipe::{Address, Config};

use super::distribution::{Distribution, DistributionError};
use super::file_set::FileSet;
use crate::backend::BackendArgs;
use crate::limits::load::{CONNECTIONS_MAX, KEYS_MAX, THREADS_MAX};
use crate::number::within;
use crate::serve::{CpuList, DriverName};

/// How many transactions a connection lives for.
#[derive(Clone, Debug, PartialEq)]
pub enum Transactions {
    /// As long as the run.
    Endless,
    /// As many as are drawn when it opens.
    PerConnection(Distribution),
}

impl FromStr for Transactions {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        match text {
            "inf" => Ok(Self::Endless),
            _ => match text.parse::<Distribution>()? {
                none if none.max() == 0 => Err(DistributionError::Zero),
                count => Ok(Self::PerConnection(count)),
            },
        }
    }
}

impl std::fmt::Display for Transactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Endless => f.write_str("inf"),
            Self::PerConnection(distribution) => distribution.fmt(f),
        }
    }
}

/// How a connection is closed when its transactions are done.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Close {
    /// With a reset: leaves no port in TIME-WAIT, as in the papers' experiments
    #[default]
    Rst,
    /// In order, as most programs do
    Fin,
}

impl Close {
    /// `rst` or `fin`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rst => "rst",
            Self::Fin => "fin",
        }
    }
}

/// The options that every load has.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Where the server is: `IP:PORT`, `[IPv6]:PORT`, `unix:/path` or `unix:@abstract`
    pub server: Option<Address>,

    /// Connections held open, all threads together
    #[arg(long, short, value_name = "N", default_value_t = 256,
          value_parser = within(1..=CONNECTIONS_MAX))]
    pub connections: u32,

    /// Threads, each with a channel of its own
    ///
    /// Default: one, or one for each processor that --cpus names.
    #[arg(help_heading = "Channels", long, short, visible_alias = "channels", value_name = "N",
          value_parser = within(1..=THREADS_MAX))]
    pub threads: Option<u32>,

    /// Processors to pin the threads to, in order, such as 1,4-7
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

    /// Transactions per connection: a number, a distribution such as yahoo-requests, or inf
    #[arg(long, short = 'n', value_name = "DIST", default_value = "inf")]
    pub transactions: Transactions,

    /// How a connection is closed when its transactions are done
    #[arg(help_heading = "Connections", long, value_enum, default_value_t)]
    pub close: Close,

    /// Transactions a second, started on a fixed schedule whatever the server does (open loop)
    ///
    /// Latencies are then measured from the time a transaction was meant to start. Without this
    /// option each connection starts the next transaction when the last one is answered.
    #[arg(long, short, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,

    /// Seconds to measure [default: 10, or without end if --total is given]
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Seconds under load before measuring
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds_or_none)]
    pub warmup: f64,

    /// Stop after so many transactions instead (measured from the first on, without warm-up)
    #[arg(long, value_name = "N", value_parser = within(1..=u64::MAX))]
    pub total: Option<u64>,

    /// Seconds after which a connection or an answer that has not come counts as a fault
    #[arg(help_heading = "Connections",
          long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    pub timeout: f64,

    /// Handshakes under way at once, per thread
    #[arg(help_heading = "Connections", long, value_name = "N", default_value_t = 128,
          value_parser = within(1..=65_536_u32))]
    pub connecting: u32,

    /// Count the time to connect into the latency of a connection's first transaction
    ///
    /// With one transaction per connection that is the response time as a user of the service sees
    /// it, and as ab reports it: a handshake that was lost and repeated shows. Closed loop only.
    #[arg(help_heading = "Connections", long, conflicts_with = "rate")]
    pub with_connect: bool,

    /// Local address to connect from, IP:0; several are used in turn and multiply the ports
    #[arg(help_heading = "Connections", long, value_name = "ADDRESS")]
    pub source: Vec<Address>,

    /// Check the content of every so many responses (the length of all is checked)
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = within(1..=u32::MAX))]
    pub verify: u32,

    /// What the random lengths and keys follow from
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(0..=u64::MAX))]
    pub seed: u64,

    /// Write the result as JSON to a file, or to standard output with -
    #[arg(help_heading = "Output", long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// No progress, no table
    #[arg(help_heading = "Output", long, short)]
    pub quiet: bool,

    /// Whether SIGINT and SIGTERM end the window instead of the process; they do on the command
    /// line.
    #[arg(skip = true)]
    pub catch_signals: bool,
}

/// Options of `megapipe load rpc`.
#[derive(Clone, Debug, Args)]
pub struct RpcLoadArgs {
    /// What every load has.
    #[command(flatten)]
    pub load: LoadArgs,

    /// Bytes of a request: a number or a distribution
    ///
    /// uniform:MIN-MAX, zipf:MAX:MEAN, pareto:MIN-MAX:MEAN, lognormal:MIN-MAX:MEAN:SIGMA,
    /// specweb, yahoo, yahoo/2. Numbers may end in K or M. A request has at least 16 bytes.
    #[arg(long, value_name = "DIST", default_value = "64")]
    pub request_bytes: Distribution,

    /// Bytes of a response: a number or a distribution
    #[arg(long, value_name = "DIST", default_value = "64")]
    pub response_bytes: Distribution,
}

/// Options of `megapipe load http`.
#[derive(Clone, Debug, Args)]
pub struct HttpLoadArgs {
    /// What every load has.
    #[command(flatten)]
    pub load: LoadArgs,

    /// A path to request; may be given several times
    #[arg(long = "path", value_name = "PATH")]
    pub paths: Vec<String>,

    /// A file with one path on each line
    #[arg(long, value_name = "FILE")]
    pub path_list: Option<PathBuf>,

    /// Ask for the files of a set, `SIZES[@COUNT]`, such as `specweb` or `1K@100`
    ///
    /// The server's root must hold them: see --prepare.
    #[arg(long, value_name = "SET", conflicts_with_all = ["paths", "path_list"])]
    pub files: Option<FileSet>,

    /// Write the files of --files below this directory and end
    #[arg(long, value_name = "DIR", requires = "files")]
    pub prepare: Option<PathBuf>,

    /// What to send as Host [default: the server's address]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// Ask the server to close after each response
    #[arg(long)]
    pub no_keep_alive: bool,

    /// The status that responses must have
    #[arg(long, value_name = "CODE", default_value_t = 200, value_parser = within(100..=999_u16))]
    pub status: u16,
}

/// Options of `megapipe load kv`.
#[derive(Clone, Debug, Args)]
pub struct KvLoadArgs {
    /// What every load has.
    #[command(flatten)]
    pub load: LoadArgs,

    /// Keys in all
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = within(1..=KEYS_MAX))]
    pub keys: u64,

    /// Bytes of a key
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = within(12..=250_u16))]
    pub key_bytes: u16,

    /// Bytes of a value: a number or a distribution
    #[arg(long, value_name = "DIST", default_value = "1K")]
    pub value_bytes: Distribution,

    /// The share of gets, the rest being sets
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub gets: f64,

    /// Use the cache as it is, without setting every key first
    #[arg(long)]
    pub no_fill: bool,
}

impl LoadArgs {
    /// What the command line gives when only the server is named, but without catching signals.
    #[must_use]
    pub fn to(server: Address) -> Self {
        Self {
            server: Some(server),
            connections: 256,
            threads: None,
            cpus: None,
            backend: BackendArgs::default(),
            driver: DriverName::Auto,
            batch: Config::default().batch,
            transactions: Transactions::Endless,
            close: Close::Rst,
            rate: None,
            duration: None,
            warmup: 1.0,
            total: None,
            timeout: 5.0,
            connecting: 128,
            with_connect: false,
            source: Vec::new(),
            verify: 64,
            seed: 1,
            json: None,
            quiet: false,
            catch_signals: false,
        }
    }
}

impl RpcLoadArgs {
    /// 64 B each way.
    #[must_use]
    pub fn new(load: LoadArgs) -> Self {
        Self {
            load,
            request_bytes: Distribution::fixed(64),
            response_bytes: Distribution::fixed(64),
        }
    }
}

impl HttpLoadArgs {
    /// The files of a set, on connections that are kept.
    #[must_use]
    pub const fn new(load: LoadArgs, files: FileSet) -> Self {
        Self {
            load,
            paths: Vec::new(),
            path_list: None,
            files: Some(files),
            prepare: None,
            host: None,
            no_keep_alive: false,
            status: 200,
        }
    }
}

impl KvLoadArgs {
    /// memaslap's default workload [MegaPipe 5.2] on 10,000 keys.
    #[must_use]
    pub fn new(load: LoadArgs) -> Self {
        Self {
            load,
            keys: 10_000,
            key_bytes: 64,
            value_bytes: Distribution::fixed(1_024),
            gets: 0.9,
            no_fill: false,
        }
    }
}

/// The longest run, warm-up or timeout.
const SECONDS_MAX: f64 = 1e6;
/// The highest rate per second.
const RATE_MAX: f64 = 1e9;

fn between(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|_| format!("`{text}` is not a number"))?;
    if (low..=high).contains(&number) {
        return Ok(number);
    }
    Err(format!("{number} is outside {low}..={high}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    between(text, 0.001, SECONDS_MAX)
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    between(text, 0.0, SECONDS_MAX)
}

fn rate(text: &str) -> Result<f64, String> {
    between(text, 0.001, RATE_MAX)
}

fn share(text: &str) -> Result<f64, String> {
    between(text, 0.0, 1.0)
}
