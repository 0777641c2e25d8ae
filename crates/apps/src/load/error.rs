//! Why a load did not start, or did not go on. What the server does is never in here: that is in
//! the summary.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use megapipe::{AddressError, CreateError, DispatchError, SubmitError};

use crate::backend::BackendError;
use crate::rpc::protocol::LengthError;

/// Why a load did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The server's address is no address.
    #[error("the server's address: {0}")]
    Server(#[from] AddressError),
    /// The server's port is 0.
    #[error("the server's address: {server} has port 0, where nothing listens")]
    NoPort {
        /// The address.
        server: SocketAddr,
    },
    /// Connections cannot come from this address.
    #[error("--source {address}: {why}")]
    Source {
        /// The address.
        address: SocketAddr,
        /// Why not.
        why: String,
    },
    /// A message length is beyond what the rpc protocol allows.
    #[error("--{message}-bytes: {0}", message = .0.message)]
    Length(#[from] LengthError),
    /// A value is longer than a cache takes.
    #[error("--value-bytes: {len} bytes are more than a cache takes ({max})")]
    ValueBytes {
        /// The longest requested value.
        len: u64,
        /// The longest possible.
        max: u64,
    },
    /// The back end's options contradict each other, or its link cannot be had.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// There are fewer connections than threads.
    #[error("{connections} connections are too few for {threads} threads")]
    Threads {
        /// The threads.
        threads: u32,
        /// The connections.
        connections: u32,
    },
    /// `--cpus` names a processor that this process may not run on.
    #[error("--cpus: processor {cpu} is not among those that this process may use")]
    Cpu {
        /// The processor.
        cpu: usize,
    },
    /// More paths than a list may have.
    #[error("--path and --path-list: {count} paths, and a list has at most {max}")]
    Paths {
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// A path that cannot stand in a request.
    #[error(
        "{option}: `{}` is no path: it has to begin with / and hold neither blanks nor controls",
        shown(path)
    )]
    Path {
        /// The option that names the path, or the file with it.
        option: String,
        /// The path.
        path: String,
    },
    /// A list without a path.
    #[error(
        "--path-list {}: it has no path; a list has 1 to {max}, one on each line",
        path.display()
    )]
    NoPaths {
        /// The file.
        path: PathBuf,
        /// How many there may be.
        max: usize,
    },
    /// A name that cannot stand in a Host field.
    #[error(
        "--host: `{}` is no host: expected a name or an address, with or without :PORT",
        shown(host)
    )]
    Host {
        /// The name.
        host: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A channel could not be created.
    #[error("thread {index}: {source}")]
    Create {
        /// Which thread of the load.
        index: usize,
        /// Why.
        source: CreateError,
    },
    /// There is no memory to run all threads.
    #[error("memory for all threads: {0}")]
    Start(#[source] io::Error),
    /// There is no memory for a thread's connections.
    #[error("thread {index}: memory for its connections: {source}")]
    Memory {
        /// Which thread of the load.
        index: usize,
        /// Why.
        source: io::Error,
    },
    /// There is no memory for the requests of a set of files.
    #[error("memory for the requests of --files: {0}")]
    Targets(io::Error),
    /// The channel refused one of the load's own first calls.
    #[error("thread {index}: the channel refused to be set up: {source}")]
    SetUp {
        /// Which thread of the load.
        index: usize,
        /// Why.
        source: SubmitError,
    },
    /// A channel broke.
    #[error("thread {index}: {source}")]
    Dispatch {
        /// Which thread of the load.
        index: usize,
        /// Why.
        source: DispatchError,
    },
    /// A thread could not be started.
    #[error("a thread: {0}")]
    Thread(io::Error),
    /// A thread panicked: a mistake in the load.
    #[error("thread {index} of the load panicked; please report it")]
    Panicked {
        /// Which thread of the load.
        index: usize,
    },
    /// SIGINT and SIGTERM could not be caught.
    #[error("signals: {0}")]
    Signals(io::Error),
}

impl LoadError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Server(_)
            | Self::NoPort { .. }
            | Self::Source { .. }
            | Self::NoPaths { .. }
            | Self::Host { .. }
            | Self::Length(_)
            | Self::ValueBytes { .. }
            | Self::Threads { .. }
            | Self::Cpu { .. }
            | Self::Paths { .. }
            | Self::Path { .. }
            | Self::File { .. } => true,
            Self::Backend(error) => error.is_usage(),
            Self::Create { source, .. } => source.is_configuration(),
            _ => false,
        }
    }
}

/// The first characters of a path, without controls: it may be as long as a file.
fn shown(path: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut shown: String =
        path.chars().take(CHARS_MAX).collect::<String>().escape_debug().collect();
    if path.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
