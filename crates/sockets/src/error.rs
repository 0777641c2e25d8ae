//! What a call answers when it does not do what was asked: one name for each error number of Linux.
//!
//! Invariant: the two directions of the mapping are made from one table, so that they agree.

use std::fmt;

use megapipe::{Limit, Misuse, OpError, SubmitError};
use rustix::io::Errno;
use thiserror::Error;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $errno:ident, $text:literal;)*) => {
        /// Why a call was refused, or failed.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Error)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* #[error($text)] $name,)*
            /// The kernel gave an error number that has no name here.
            #[error("the kernel answered with error {0}")]
            Os(i32),
        }

        impl fmt::Debug for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Error {
            /// The name of an error number (positive, as in `errno`).
            #[must_use]
            pub const fn from_raw_os_error(errno: i32) -> Self {
                match errno {
                    $(libc::$errno => Self::$name,)*
                    other => Self::Os(other),
                }
            }

            /// The error number (positive, as in `errno`).
            #[must_use]
            pub const fn raw_os_error(self) -> i32 {
                match self {
                    $(Self::$name => libc::$errno,)*
                    Self::Os(errno) => errno,
                }
            }
        }
    };
}

errors! {
    /// Nothing to read, no space to write, no connection to accept, and the call must not wait.
    WouldBlock = EAGAIN, "the call would have to wait";
    /// The attempt to connect has begun.
    InProgress = EINPROGRESS, "the connection is being established";
    /// An attempt to connect is under way.
    AlreadyConnecting = EALREADY, "the connection is being established already";
    /// The socket is connected.
    AlreadyConnected = EISCONN, "the socket is connected already";
    /// The socket is not connected.
    NotConnected = ENOTCONN, "the socket is not connected";
    /// The sending direction is closed. The caller raises SIGPIPE, if it is to be raised.
    BrokenPipe = EPIPE, "the sending direction is closed";
    /// The peer reset the connection.
    Reset = ECONNRESET, "connection reset by peer";
    /// No listener is there, or the peer refused.
    Refused = ECONNREFUSED, "connection refused";
    /// The connection was aborted locally or by the network.
    Aborted = ECONNABORTED, "connection aborted";
    /// No answer in time.
    TimedOut = ETIMEDOUT, "timed out";
    /// No such descriptor, or one that does not allow the operation.
    BadDescriptor = EBADF, "bad descriptor";
    /// The descriptor is no socket.
    NotASocket = ENOTSOCK, "not a socket";
    /// An argument is wrong.
    InvalidArgument = EINVAL, "invalid argument";
    /// The context has no descriptor left.
    NoDescriptors = EMFILE, "no descriptor left";
    /// The process or the system has none left.
    TableFull = ENFILE, "the descriptor table is full";
    /// No buffer is left.
    NoBuffers = ENOBUFS, "no buffer left";
    /// There is no memory left.
    NoMemory = ENOMEM, "no memory left";
    /// The local address is taken.
    AddressInUse = EADDRINUSE, "address in use";
    /// The local address is not on this host, or no port is free.
    AddressNotAvailable = EADDRNOTAVAIL, "address not available";
    /// The address family is none of the socket's, or unknown.
    FamilyNotSupported = EAFNOSUPPORT, "address family not supported";
    /// The protocol is unknown.
    ProtocolNotSupported = EPROTONOSUPPORT, "protocol not supported";
    /// The socket type is unknown in this family.
    TypeNotSupported = ESOCKTNOSUPPORT, "socket type not supported";
    /// The protocol does not go with the type.
    WrongProtocol = EPROTOTYPE, "wrong protocol for the socket's type";
    /// The call does not go with this kind of socket.
    NotSupported = EOPNOTSUPP, "operation not supported";
    /// There is no such option at that level.
    NoSuchOption = ENOPROTOOPT, "no such option";
    /// A message needs an address to go to.
    NoDestination = EDESTADDRREQ, "destination address required";
    /// The message does not fit into one datagram.
    MessageTooLong = EMSGSIZE, "message too long";
    /// An option's value is out of its range.
    OutOfDomain = EDOM, "value out of range";
    /// Not allowed.
    NotPermitted = EPERM, "not permitted";
    /// Access denied.
    AccessDenied = EACCES, "access denied";
    /// It is in the set already.
    Exists = EEXIST, "it is there already";
    /// It is not in the set.
    NotFound = ENOENT, "it is not there";
    /// Sets would contain each other, or lie too deep.
    Loop = ELOOP, "sets in sets, too deep or in a circle";
    /// A signal came.
    Interrupted = EINTR, "interrupted";
    /// A pointer of the caller's is wrong; for interfaces that take pointers.
    Fault = EFAULT, "bad address";
    /// A pipe or socket has no position.
    NoPosition = ESPIPE, "it has no position";
    /// The request is none for this kind of descriptor.
    NoSuchRequest = ENOTTY, "no such request for this descriptor";
    /// No route to the network.
    NetworkUnreachable = ENETUNREACH, "network unreachable";
    /// No route to the host.
    HostUnreachable = EHOSTUNREACH, "host unreachable";
    /// The link broke.
    NetworkDown = ENETDOWN, "the network is down";
    /// No such interface.
    NoDevice = ENODEV, "no such device";
    /// The device failed.
    InputOutput = EIO, "input/output error";
    /// The operation was cancelled.
    Cancelled = ECANCELED, "cancelled";
    /// The caller has no right to what it asks for, or no such call exists here.
    NoSuchCall = ENOSYS, "no such call";
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        Self::from_raw_os_error(error.raw_os_error())
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.raw_os_error())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::from_raw_os_error(megapipe::errno_of(&error))
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.raw_os_error())
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Misuse(misuse) => misuse.into(),
            SubmitError::Limit(limit) => limit.into(),
            _ => Self::InvalidArgument,
        }
    }
}

impl From<Limit> for Error {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Handles => Self::TableFull,
            Limit::Memory => Self::NoMemory,
            _ => Self::NoBuffers,
        }
    }
}

impl From<Misuse> for Error {
    /// A call on the channel that this crate got wrong would be a mistake here, and not the
    /// program's.
    fn from(misuse: Misuse) -> Self {
        match misuse {
            Misuse::Forked => Self::BadDescriptor,
            _ => Self::InvalidArgument,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn every_error_number_survives_the_round_trip() {
        for errno in 1..134 {
            assert_eq!(Error::from_raw_os_error(errno).raw_os_error(), errno);
        }
        assert_eq!(Error::from_raw_os_error(libc::EWOULDBLOCK), Error::WouldBlock);
        assert_eq!(Error::from_raw_os_error(133), Error::Os(133));
    }
}
