//! What can go wrong, sorted by whose fault it is.
//!
//! - [`SubmitError`]: the operation was not taken, as the call itself returns; nothing was queued.
//!   Either [`Misuse`], the caller's mistake, or [`Limit`], for which a peer or the load may be the
//!   cause.
//! - [`OpError`]: the operation was taken and failed; carried by its completion. The peer, the
//!   network or a resource is the cause.
//! - `CreateError`, `RegisterError`, `ListenError`, `ConnectError`, `DispatchError`: one per call
//!   that asks the kernel for something at once.
//!
//! errno values appear here only to name what the kernel said; the C border translates back.

use std::io;
use std::os::fd::OwnedFd;

use thiserror::Error;

use crate::error_chain::debug_with_causes;
use crate::handle::Handle;

/// A quota that a connection can reach, on the back end `service`. Displayed as in the daemon's
/// policy file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum ServiceQuota {
    /// Connections of a channel.
    #[error("channel.connections")]
    ChannelConnections,
    /// Of those, that are not established.
    #[error("channel.connecting")]
    ChannelConnecting,
    /// Connections of all channels of the user.
    #[error("user.connections")]
    UserConnections,
    /// Of those, that are not established.
    #[error("user.connecting")]
    UserConnecting,
    /// Connections that the user begins in a second.
    #[error("user.connects_per_second")]
    UserConnectsPerSecond,
    /// Connections of a channel to one address and port.
    #[error("channel.ports_per_destination")]
    ChannelDestinationPorts,
    /// Connections of all channels of the user to one address and port.
    #[error("user.ports_per_destination")]
    UserDestinationPorts,
    /// One that this version of the library does not know.
    #[error("of the policy")]
    Other,
}

#[cfg(feature = "local")]
impl From<megapipe_service::policy::QuotaKind> for ServiceQuota {
    fn from(kind: megapipe_service::policy::QuotaKind) -> Self {
        use megapipe_service::policy::QuotaKind;
        match kind {
            QuotaKind::ChannelConnections => Self::ChannelConnections,
            QuotaKind::ChannelConnecting => Self::ChannelConnecting,
            QuotaKind::UserConnections => Self::UserConnections,
            QuotaKind::UserConnecting => Self::UserConnecting,
            QuotaKind::UserConnectsPerSecond => Self::UserConnectsPerSecond,
            QuotaKind::ChannelDestinationPorts => Self::ChannelDestinationPorts,
            QuotaKind::UserDestinationPorts => Self::UserDestinationPorts,
            _ => Self::Other,
        }
    }
}

macro_rules! op_errors {
    ($($(#[$doc:meta])* $name:ident = $errno:ident, $text:literal;)*) => {
        /// Why an operation that was accepted did not succeed.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Error)]
        #[non_exhaustive]
        pub enum OpError {
            $($(#[$doc])* #[error($text)] $name,)*
            /// A quota of the daemon of the `service` back end has no room for more.
            #[error("the quota {0} of the service is reached")]
            QuotaReached(ServiceQuota),
            /// The kernel gave an error number that has no name here.
            #[error("the kernel answered with error {0}")]
            Os(i32),
        }

        impl OpError {
            /// The name of a kernel error number (positive, as in `errno`).
            #[must_use]
            pub const fn from_raw_os_error(errno: i32) -> Self {
                match errno {
                    $(libc::$errno => Self::$name,)*
                    other => Self::Os(other),
                }
            }

            /// The kernel's error number (positive, as in `errno`).
            #[must_use]
            pub const fn raw_os_error(self) -> i32 {
                match self {
                    $(Self::$name => libc::$errno,)*
                    Self::QuotaReached(_) => libc::EDQUOT,
                    Self::Os(errno) => errno,
                }
            }
        }
    };
}

op_errors! {
    /// The peer reset the connection.
    Reset = ECONNRESET, "connection reset by peer";
    /// No listener is there, or the peer refused.
    Refused = ECONNREFUSED, "connection refused";
    /// The connection was aborted locally or by the network.
    Aborted = ECONNABORTED, "connection aborted";
    /// No answer in time: the connection's own time-out, or the peer stopped acknowledging.
    TimedOut = ETIMEDOUT, "timed out";
    /// The sending direction is closed.
    BrokenPipe = EPIPE, "the sending direction is closed";
    /// The operation was cancelled before it did anything.
    Cancelled = ECANCELED, "cancelled";
    /// The socket is not connected.
    NotConnected = ENOTCONN, "not connected";
    /// No route to the peer's network.
    NetworkUnreachable = ENETUNREACH, "network unreachable";
    /// No route to the peer's host.
    HostUnreachable = EHOSTUNREACH, "host unreachable";
    /// The process has no file descriptor left (RLIMIT_NOFILE).
    NoDescriptors = EMFILE, "no file descriptor left in this process";
    /// The system or the channel's table of lwsockets has no room left.
    TableFull = ENFILE, "the descriptor table is full";
    /// No receive buffer was free.
    NoBuffers = ENOBUFS, "no buffer left";
    /// The kernel had no memory.
    NoMemory = ENOMEM, "the kernel has no memory left";
    /// The local address is taken.
    AddressInUse = EADDRINUSE, "address in use";
    /// The local address is not on this host, or no local port is free.
    AddressNotAvailable = EADDRNOTAVAIL, "address not available";
    /// A firewall or a permission forbids it.
    PermissionDenied = EPERM, "not permitted";
    /// File permissions forbid it.
    AccessDenied = EACCES, "access denied";
    /// There is no such file.
    NotFound = ENOENT, "no such file";
    /// The message does not fit into one datagram.
    MessageTooLong = EMSGSIZE, "message too long";
    /// The disk is full.
    NoSpace = ENOSPC, "no space left on device";
    /// The disk or device failed.
    InputOutput = EIO, "input/output error";
    /// The descriptor does not support the operation (for instance, read on a write-only file).
    BadDescriptor = EBADF, "the descriptor does not allow this operation";
    /// An argument that only the kernel could judge was wrong.
    InvalidInput = EINVAL, "invalid argument";
    /// The kernel does not support the operation for this kind of descriptor.
    NotSupported = EOPNOTSUPP, "operation not supported";
    /// The daemon of the `service` back end is gone, and with it its connections.
    ServiceGone = ENETDOWN, "the service is gone";
}

impl OpError {
    pub(crate) fn from_io(error: &io::Error) -> Self {
        Self::from_raw_os_error(errno_of(error))
    }
}

/// Returns the kernel's number for an error: its own or that of its cause, else the nearest.
#[must_use]
pub fn errno_of(error: &io::Error) -> i32 {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(it) = cause {
        let number = it.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        // A resolver's errors are negative, and none of the kernel's.
        if let Some(number) = number.filter(|number| *number > 0) {
            return number;
        }
        cause = it.source();
    }
    match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::QuotaExceeded => libc::EDQUOT,
        _ => libc::EIO,
    }
}

impl From<OpError> for io::Error {
    fn from(error: OpError) -> Self {
        Self::from_raw_os_error(error.raw_os_error())
    }
}

impl From<rustix::io::Errno> for OpError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::from_raw_os_error(errno.raw_os_error())
    }
}

debug_with_causes!(
    OpError,
    SubmitError,
    Limit,
    Misuse,
    MoveError,
    NotConnected,
    NotTaken,
    CreateError,
    RegisterError,
    ListenError,
    ConnectError,
    DispatchError,
);

/// A limit that the call would exceed. Nothing was queued; the same call succeeds once operations
/// have completed, handles were unregistered or bytes were sent. Not a mistake of the caller: a
/// peer that does not read can cause it.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Limit {
    /// The channel or the handle has the maximum number of queued operations.
    #[error("too many operations outstanding")]
    Operations,
    /// The channel has the maximum number of handles.
    #[error("too many handles in this channel")]
    Handles,
    /// With this write the handle would have more unsent bytes than
    /// [`crate::Config::unsent_bytes_max`]. [`crate::Event::Drained`] reports when there is room.
    #[error("more than {max} bytes of this handle's writes would be unsent")]
    UnsentBytes {
        /// The limit.
        max: usize,
    },
    /// There is no memory to queue the operation or to keep the handle.
    #[error("no memory for one more operation or handle")]
    Memory,
}

/// Why an operation was not accepted. Nothing was queued and nothing changed.
///
/// On [`SubmitError::Limit`] a server closes the connection, or retries later.
/// [`SubmitError::Misuse`] is an error in the program.
///
/// ```
/// # use megapipe::{Channel, Handle, Limit, SubmitError};
/// # fn answer(channel: &mut Channel, connection: Handle) -> Result<(), SubmitError> {
/// match channel.write(connection, "answer") {
///     // The peer reads too slowly. `Event::Drained` reports when it has caught up.
///     Err(SubmitError::Limit(Limit::UnsentBytes { .. })) => {}
///     Err(SubmitError::Limit(_)) => drop(channel.unregister(connection)?),
///     written => written?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The caller's mistake: the same call fails again.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A limit: the same call is taken later.
    #[error(transparent)]
    Limit(#[from] Limit),
}

/// The caller's mistake. Nothing was queued and nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The handle was unregistered, or no handle has this value.
    #[error("the handle is stale: it was unregistered or never existed")]
    StaleHandle,
    /// The handle belongs to another channel.
    #[error("the handle belongs to another channel")]
    ForeignHandle,
    /// The call is not possible on this kind of handle.
    #[error("{call} is not possible on a {kind}")]
    WrongKind {
        /// The call.
        call: &'static str,
        /// What the handle is.
        kind: &'static str,
    },
    /// The process forked after the channel was made; a channel does not survive in the child.
    #[error("the channel was made before fork() and cannot be used in the child")]
    Forked,
    /// A length is zero or beyond the limit.
    #[error("a length of {len} bytes is outside 1..={max}")]
    InvalidLength {
        /// What was asked for.
        len: usize,
        /// The largest allowed.
        max: usize,
    },
    /// A duration is zero or too long.
    #[error("a timer's time must be at least a nanosecond and at most a thousand years")]
    InvalidDuration,
    /// A path contains a NUL byte or is too long.
    #[error("the path contains a NUL byte or is too long")]
    InvalidPath,
    /// The handle cannot use this address family.
    #[error("the address does not fit the socket")]
    InvalidAddress,
    /// The handle is being disconnected or moved; no further operation of this kind is possible.
    #[error("the handle is being disconnected or moved out of the channel")]
    Closing,
    /// `count` is zero.
    #[error("the count must be at least one")]
    InvalidCount,
    /// The handle belongs to our own stack and cannot become a kernel socket.
    #[error("there is no descriptor for this: {why}")]
    CannotMove {
        /// What is in the way.
        why: &'static str,
    },
}

/// Why a connection did not move between the kernel and our own stack. It continues where it was.
#[derive(Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The caller's mistake.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A limit of the channel's.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The channel uses the kernel back end.
    #[error("a channel on the back end kernel has no stack that takes connections over")]
    NoStack,
    /// The stack's link shares no address with the kernel.
    #[error("{0}")]
    NotShared(&'static str),
    /// The stack refuses the connection.
    #[error("{0}")]
    Stack(&'static str),
    /// The kernel refuses to export or import the connection.
    #[cfg(feature = "local")]
    #[error(transparent)]
    Repair(#[from] megapipe_link::migration::RepairError),
    /// The daemon refuses.
    #[cfg(feature = "local")]
    #[error(transparent)]
    Service(megapipe_service::MoveRefusal),
    /// The link does not take or leave its frames.
    #[cfg(feature = "local")]
    #[error(transparent)]
    Link(#[from] megapipe_link::LinkError),
}

impl MoveError {
    /// Returns the nearest error number of the kernel.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::Limit(Limit::Memory) => libc::ENOMEM,
            Self::Limit(_) => libc::ENFILE,
            Self::Misuse(_) => libc::EINVAL,
            Self::NoStack | Self::NotShared(_) => libc::EOPNOTSUPP,
            Self::Stack(_) => libc::EADDRNOTAVAIL,
            #[cfg(feature = "local")]
            Self::Repair(error) => error.raw_os_error(),
            #[cfg(feature = "local")]
            Self::Service(refusal) => refusal.raw_os_error(),
            #[cfg(feature = "local")]
            Self::Link(megapipe_link::LinkError::Io { source, .. }) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            #[cfg(feature = "local")]
            Self::Link(megapipe_link::LinkError::Setting { .. }) => libc::ENOBUFS,
            #[cfg(feature = "local")]
            Self::Link(_) => libc::EIO,
        }
    }

    #[cfg(feature = "local")]
    pub(crate) fn into_op_error(self) -> OpError {
        OpError::from_raw_os_error(self.raw_os_error())
    }
}

/// Why a connection was not shared or adopted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The caller's mistake.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A limit of the channel's.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The back end has connections and listeners of one owner alone.
    #[error("the back end {backend} cannot share connections and listeners; service can")]
    Backend {
        /// The back end of the channel.
        backend: &'static str,
    },
    /// The connection is over.
    #[error("the connection is not established, or over")]
    NotEstablished,
    /// The attempt to establish the connection that a token stands for has failed.
    #[error("the connection was not established: {0}")]
    NotConnected(OpError),
    /// The channel is an owner of the connection or listener already.
    #[error("the channel has the connection or listener already")]
    Known {
        /// The connection or listener.
        handle: Handle,
    },
    /// The daemon refuses.
    #[cfg(feature = "local")]
    #[error(transparent)]
    Service(megapipe_service::MoveRefusal),
}

impl ShareError {
    /// Returns the nearest error number of the kernel.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::Limit(Limit::Memory) => libc::ENOMEM,
            Self::Limit(_) => libc::ENFILE,
            Self::Misuse(_) => libc::EINVAL,
            Self::Backend { .. } => libc::EOPNOTSUPP,
            Self::NotEstablished => libc::ENOTCONN,
            Self::NotConnected(error) => error.raw_os_error(),
            Self::Known { .. } => libc::EEXIST,
            #[cfg(feature = "local")]
            Self::Service(refusal) => refusal.raw_os_error(),
        }
    }
}

/// A socket that was not taken over, unchanged, with the reason.
#[derive(Error)]
#[error("the connection was not taken over")]
pub struct NotTaken {
    /// The socket, still the kernel's.
    pub fd: OwnedFd,
    /// The reason.
    #[source]
    pub why: MoveError,
}

/// Why a channel could not be created.
#[derive(Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A value of the configuration is out of range.
    #[error("configuration: {field} = {value} is outside {min}..={max}")]
    Config {
        /// The field's name.
        field: &'static str,
        /// What was given.
        value: u64,
        /// The smallest allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// The driver that the configuration names does not work here.
    #[error("the {driver} driver is not available: {reason}")]
    DriverUnavailable {
        /// The driver that was asked for.
        driver: &'static str,
        /// What the probe found.
        reason: String,
    },
    /// A placement other than `inline` was configured for the kernel back end, which has no server.
    #[error("placement {placement}: only the local back end has a server to place")]
    Placement {
        /// What was asked for.
        placement: &'static str,
    },
    /// The server cannot run at the configured placement.
    #[cfg(feature = "local")]
    #[error("placement {placement} cannot be had")]
    StackThread {
        /// What was asked for.
        placement: &'static str,
        /// What is missing.
        #[source]
        source: megapipe_service::RemoteError,
    },
    /// The thread could not be pinned to the core asked for.
    #[error("cannot pin this thread to core {core}")]
    Pin {
        /// The core asked for.
        core: usize,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a resource.
    #[error("cannot get {what}")]
    Kernel {
        /// The resource.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The `local` back end cannot be had.
    #[cfg(feature = "local")]
    #[error("the local back end is not available")]
    Local(#[source] megapipe_service::ServerError),
    /// The daemon of the `service` back end gives no session. The source names its path and the
    /// rule.
    #[cfg(feature = "local")]
    #[error("the service back end is not available")]
    Service(#[source] megapipe_service::attach::AttachError),
    /// The link has fewer queues than there are channels, or belongs to a daemon's link servers.
    #[cfg(feature = "local")]
    #[error("the link has no queue left: each channel of the local back end needs one of its own")]
    NoQueue,
}

impl CreateError {
    /// Returns whether the configuration is wrong on every machine, and not this machine's state.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        #[cfg(feature = "local")]
        if let Self::Local(error) = self {
            return error.is_configuration();
        }
        matches!(self, Self::Config { .. } | Self::Placement { .. })
    }
}

/// Why a descriptor could not be registered, or a mask not changed.
#[derive(Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The caller's mistake.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A limit of the channel's.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// This kind of file cannot do asynchronous I/O.
    #[error("a {kind} cannot be registered")]
    Unsupported {
        /// What the descriptor is.
        kind: &'static str,
    },
    /// The descriptor's number is already registered in this channel.
    #[error("the descriptor is already registered in this channel")]
    AlreadyRegistered,
    /// The mask shares cores with another channel's mask on the same listener.
    #[error("core {core} is already in another channel's mask for this listener")]
    MaskOverlaps {
        /// The first core that both have.
        core: usize,
    },
    /// The mask is empty, or the handle is no partitioned listener.
    #[error("a core mask needs a partitioned listener and at least one core")]
    MaskNotPossible,
    /// The kernel refused.
    #[error("{what}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Why a listening or datagram socket could not be made.
#[derive(Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The socket was made, but could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The caller's mistake.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A limit of the channel's.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The kernel refused.
    #[error("cannot {what}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Why a connection attempt could not start. A later failure is in the completion.
#[derive(Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The caller's mistake.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A limit of the channel's.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The kernel refused.
    #[error("cannot {what}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// A socket that was not connected, unchanged, with the reason: it may be connected again.
#[derive(Error)]
#[error("the socket was not connected")]
pub struct NotConnected {
    /// The socket.
    pub fd: Option<OwnedFd>,
    /// The reason.
    #[source]
    pub why: ConnectError,
}

/// Why completions could not be fetched. The channel stays usable unless the variant says
/// otherwise.
#[derive(Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The process forked after the channel was made.
    #[error("the channel was made before fork() and cannot be used in the child")]
    Forked,
    /// The kernel refused.
    #[error("the kernel refused to take operations or to give completions")]
    Kernel(#[source] io::Error),
    /// The link of the `local` back end broke.
    #[cfg(feature = "local")]
    #[error("the link of the local back end broke")]
    Link(#[source] megapipe_link::LinkError),
}

#[cfg(test)]
mod tests {
    use super::OpError;

    #[test]
    fn every_error_number_survives_the_round_trip() {
        for errno in 1..134 {
            assert_eq!(OpError::from_raw_os_error(errno).raw_os_error(), errno);
        }
        assert_eq!(OpError::from_raw_os_error(libc::ECONNRESET), OpError::Reset);
        assert_eq!(OpError::from_raw_os_error(133), OpError::Os(133));
    }
}
