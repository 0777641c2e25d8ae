//! Why a server did not start, or did not go on.

use std::io;

use megapipe::{Address, CreateError, DispatchError, ListenError, RegisterError, SubmitError};

use crate::backend::BackendError;

/// Why a server did not start, or did not go on. What a peer does is never in here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// More channels than a server may have, or none.
    #[error("--channels {asked}: a server has 1 to {max} channels")]
    Channels {
        /// The requested number.
        asked: usize,
        /// The most that is possible.
        max: usize,
    },
    /// More listening addresses than a server may have.
    #[error("{asked} addresses to listen on: a server has at most {max}")]
    Listeners {
        /// The requested number.
        asked: usize,
        /// The most that is possible.
        max: usize,
    },
    /// `--cpus` names a processor that this process may not run on.
    #[error("--cpus: processor {cpu} is not among those that this process may use ({allowed})")]
    Cpu {
        /// The processor.
        cpu: usize,
        /// Those that it could have been.
        allowed: String,
    },
    /// The back end's options contradict each other, or its link cannot be had.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A channel could not be created.
    #[error("channel {index}: {source}")]
    Create {
        /// Which channel of the server.
        index: usize,
        /// Why.
        source: CreateError,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// Why.
        source: ListenError,
    },
    /// A socket shared by several channels could not be opened or bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// A shared listening socket could not join a channel.
    #[error("cannot register the listening socket of {address}: {source}")]
    Register {
        /// The address.
        address: Address,
        /// Why.
        source: RegisterError,
    },
    /// The channel refused one of the server's own first calls.
    #[error("channel {index} refused to be set up: {source}")]
    SetUp {
        /// Which channel of the server.
        index: usize,
        /// Why.
        source: SubmitError,
    },
    /// A channel broke while serving.
    #[error("channel {index} failed: {source}")]
    Dispatch {
        /// Which channel of the server.
        index: usize,
        /// Why.
        source: DispatchError,
    },
    /// A channel that was only to be looked at could not be created.
    #[error("channel {index}: {why}")]
    Plan {
        /// Which channel.
        index: usize,
        /// Why.
        why: String,
        /// Whether the configuration is at fault.
        is_usage: bool,
    },
    /// The sockets on a channel could not be made.
    #[error("channel {index}: {source}")]
    CreateSockets {
        /// Which channel of the server.
        index: usize,
        /// Why.
        source: megapipe_sockets::CreateError,
    },
    /// The sockets on a channel broke while serving.
    #[error("channel {index} failed: {source}")]
    Sockets {
        /// Which channel of the server.
        index: usize,
        /// Why.
        source: megapipe_sockets::Error,
    },
    /// A channel's thread panicked: a mistake in the server.
    #[error("the thread of channel {index} panicked; please report it")]
    Panicked {
        /// Which channel of the server.
        index: usize,
    },
    /// A channel's thread did not come up in time.
    #[error("the thread of channel {index} did not come up")]
    NotReady {
        /// Which channel of the server.
        index: usize,
    },
    /// An argument names a file or a directory that cannot be used.
    #[error("{what}: {source}")]
    Argument {
        /// The argument and its value.
        what: String,
        /// Why it cannot be used.
        source: io::Error,
    },
    /// What the server itself needs beforehand (its files, its memory) is not to be had.
    #[error("{what}: {source}")]
    Resource {
        /// What was wanted.
        what: String,
        /// Why it is not to be had.
        source: io::Error,
    },
}

impl ServeError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Channels { .. }
            | Self::Listeners { .. }
            | Self::Cpu { .. }
            | Self::Argument { .. } => true,
            Self::Backend(error) => error.is_usage(),
            Self::Create { source, .. } => source.is_configuration(),
            Self::Plan { is_usage, .. } => *is_usage,
            _ => false,
        }
    }

    /// An argument that names a file or a directory that cannot be used.
    pub fn argument(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Argument { what: what.into(), source: source.into() }
    }

    /// A resource of the server's own that is not to be had.
    pub fn resource(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Resource { what: what.into(), source: source.into() }
    }
}
