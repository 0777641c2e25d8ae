//! Errors: why a server, its thread or a port is not to be had.

use megapipe_link::LinkError;
use megapipe_shm::{DoorbellError, PoolError, RegionError, RingError};
use megapipe_stack::ConfigError;

use crate::policy::PolicyRefusal;
use crate::session_sizes::SizeOutOfRange;
use crate::steering::BindingError;

/// Why a server was not made.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The link cannot be had.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A setting of the stack is out of range.
    #[error("{0}")]
    Stack(ConfigError),
    /// There is no memory for the tables of the stack.
    #[error(
        "no memory for the tables of a shard: {bytes} bytes; fewer connections need less, and so \
         do fewer shards"
    )]
    NoMemory {
        /// Bytes of the tables, at most.
        bytes: usize,
    },
    /// A setting of the server is out of range.
    #[error("{setting}: {why}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel gave no random bytes for the stack's secret.
    #[error("no random bytes for the secret of sequence numbers and ports: {0}")]
    NoRandomness(std::io::Error),
}

impl ServerError {
    /// Whether a setting is at fault, and not the link or the machine.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(self, Self::Stack(_) | Self::Setting { .. })
    }

    /// Whether there was no memory.
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::NoMemory { .. })
    }
}

impl From<ConfigError> for ServerError {
    fn from(error: ConfigError) -> Self {
        Self::Stack(error)
    }
}

/// Why a port was not to be had.
#[derive(Debug, thiserror::Error)]
pub enum PortError<E> {
    /// The stack's reason.
    #[error("{0}")]
    Stack(E),
    /// The host that the address is shared with does not leave us the port.
    #[error(transparent)]
    Host(LinkError),
    /// Another shard has the address, or a part of what was asked for.
    #[error(transparent)]
    Shared(BindingError),
    /// The policy of the daemon that has the stack does not allow it.
    #[error(transparent)]
    Policy(PolicyRefusal),
}

/// Why a connection did not move between a daemon's stack and the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct MoveRefusal {
    errno: i32,
    sentence: String,
}

impl MoveRefusal {
    pub(crate) fn new(errno: i32, sentence: &str) -> Self {
        let sentence = sentence.chars().filter(|it| !it.is_control()).collect();
        Self { errno: errno.max(1), sentence }
    }

    /// The daemon is gone, or breaks the protocol.
    #[must_use]
    pub fn gone() -> Self {
        Self::new(rustix::io::Errno::NETDOWN.raw_os_error(), "the service is gone")
    }

    /// The daemon's protocol is older.
    pub(crate) fn old_service() -> Self {
        let errno = rustix::io::Errno::OPNOTSUPP.raw_os_error();
        Self::new(errno, "the service speaks an older version of the protocol, and takes no socket")
    }

    /// The daemon's protocol is older than tokens.
    pub(crate) fn no_tokens() -> Self {
        let errno = rustix::io::Errno::OPNOTSUPP.raw_os_error();
        Self::new(errno, "the service speaks an older version of the protocol, without tokens")
    }

    /// The daemon's protocol is older than tokens of listeners.
    pub(crate) fn no_listener_tokens() -> Self {
        let errno = rustix::io::Errno::OPNOTSUPP.raw_os_error();
        let what = "the service speaks an older version of the protocol, without shared listeners";
        Self::new(errno, what)
    }

    /// A token owns listeners of several addresses.
    pub(crate) fn mixed_token() -> Self {
        let errno = rustix::io::Errno::STALE.raw_os_error();
        Self::new(errno, "the token stands for different listeners on the shards of the service")
    }

    /// There is no memory for what is adopted.
    pub(crate) fn no_memory() -> Self {
        Self::new(rustix::io::Errno::NOMEM.raw_os_error(), "no memory is left for the listener")
    }

    /// What is wrong with a socket that was passed.
    pub(crate) fn of_passed(error: &std::io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        inner.cloned().unwrap_or_else(|| {
            let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            Self::new(errno, &format!("the socket cannot be passed to the service: {error}"))
        })
    }

    /// The kernel's number that is nearest.
    #[must_use]
    pub const fn raw_os_error(&self) -> i32 {
        self.errno
    }
}

/// Why a shard did not take a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShardAttachError {
    /// It has as many sessions as it can.
    #[error("the shard has {} sessions, as many as it can", crate::limits::SESSIONS_MAX - 1)]
    Full,
    /// Its thread has ended.
    #[error("the shard has ended")]
    Ended,
}

/// Why a server on a thread of its own was not started.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The server itself.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// No pool of buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No doorbell.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
    /// The server and its application do not speak the same protocol.
    #[error("the server's description of itself is invalid")]
    Description,
    /// A size of the session is out of range.
    #[error(transparent)]
    Size(#[from] SizeOutOfRange),
    /// No thread.
    #[error("no thread for a server: {0}")]
    Thread(std::io::Error),
    /// It cannot run where it is to.
    #[error("cannot pin the server's thread to core {core}: {source}")]
    Pin {
        /// The core.
        core: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
}
