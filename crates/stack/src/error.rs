//! Errors of calls, and close reasons of connections.

use core::fmt;

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// Both sides closed, and everything arrived.
    Finished,
    /// The peer reset it.
    ResetByPeer,
    /// The peer answered the SYN with a reset (RFC 9293 §3.10.7.3).
    Refused,
    /// We reset it: [`crate::Stack::abort`], or data came after [`crate::Stack::close`].
    Aborted,
    /// The peer did not answer for too long: retransmissions, zero-window probes or the user
    /// timeout (RFC 9293 §3.8.3).
    TimedOut,
    /// Keepalives got no answer (RFC 9293 §3.8.4).
    KeepaliveTimedOut,
    /// ICMP says that the peer cannot be reached (RFC 5461, RFC 9293 §3.9.2.2).
    Unreachable,
    /// The next hop could not be resolved.
    HostUnreachable,
}

impl CloseReason {
    /// Whether bytes that came before the end are still the application's
    /// ([`crate::Event::Broken`]).
    #[must_use]
    pub const fn leaves_bytes(self) -> bool {
        !matches!(self, Self::Finished | Self::Refused | Self::Aborted)
    }
}

/// Why a connection was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// `remote`: no route leads there.
    NoRoute,
    /// `local`: not an address of this host, or of the other family.
    BadLocalAddress,
    /// `remote`: port 0, a multicast or an unspecified address.
    BadRemoteAddress,
    /// `local`: the pair of addresses and ports is in use.
    InUse,
    /// Every port that could be used is in use.
    NoPort,
    /// The table of connections is full.
    TooManyConnections,
}

/// Why a listener was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenError {
    /// `local`: not an address of this host.
    BadLocalAddress,
    /// `local`: port 0.
    BadPort,
    /// `local`: another listener has it.
    InUse,
    /// The table of listeners is full.
    TooManyListeners,
    /// There is no memory for the accept queue.
    NoMemory,
}

/// Why a UDP endpoint was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindError {
    /// `local`: not an address of this host.
    BadLocalAddress,
    /// `local`: another endpoint has it.
    InUse,
    /// Every port that could be chosen is in use.
    NoPort,
    /// The table of endpoints is full.
    TooManyEndpoints,
    /// No memory for the queue of what arrives.
    NoMemory,
}

/// Why an operation on a connection, listener or endpoint was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationError {
    /// The id is stale or never was.
    Unknown,
    /// The connection is not established yet.
    NotConnected,
    /// We closed our direction before.
    Closing,
    /// A chunk of no bytes, or one that reaches past its buffer.
    BadChunk,
    /// The send queue holds its maximum of bytes or chunks; nothing was taken.
    QueueFull,
    /// `to`: no route, or not an address that one may send to.
    BadAddress,
    /// The datagram does not fit into the largest packet.
    TooLong,
    /// There is no memory to keep what is sent; nothing was taken. The stack itself has its memory
    /// from the start: a server around it answers this.
    NoMemory,
}

/// Why a configuration was refused: which setting, and what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigError {
    /// The setting's name.
    pub setting: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.why)
    }
}

impl core::error::Error for ConfigError {}

/// Gives an enum without fields its texts.
macro_rules! texts {
    ($name:ident { $($variant:ident => $text:literal,)* }) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }

        impl core::error::Error for $name {}
    };
}

texts!(CloseReason {
    Finished => "both sides closed",
    ResetByPeer => "the peer reset the connection",
    Refused => "the peer refused the connection",
    Aborted => "the connection was reset here",
    TimedOut => "the peer stopped answering",
    KeepaliveTimedOut => "keepalives got no answer",
    Unreachable => "the network says that the peer is unreachable",
    HostUnreachable => "the next hop could not be resolved",
});

texts!(ConnectError {
    NoRoute => "remote: no route leads there",
    BadLocalAddress => "local: not an address of this host, or of the other family",
    BadRemoteAddress => "remote: not an address to connect to",
    InUse => "local: the pair of addresses and ports is in use",
    NoPort => "every usable port is in use",
    TooManyConnections => "the table of connections is full",
});

texts!(ListenError {
    BadLocalAddress => "local: not an address of this host",
    BadPort => "local: port 0",
    InUse => "local: another listener has it",
    TooManyListeners => "the table of listeners is full",
    NoMemory => "no memory for the accept queue",
});

texts!(BindError {
    BadLocalAddress => "local: not an address of this host",
    InUse => "local: another endpoint has it",
    NoPort => "every usable port is in use",
    TooManyEndpoints => "the table of endpoints is full",
    NoMemory => "no memory for the endpoint",
});

texts!(OperationError {
    Unknown => "the id is stale or never was",
    NotConnected => "the connection is not established yet",
    Closing => "this direction was closed before",
    BadChunk => "a chunk of no bytes, or one that reaches past its buffer",
    QueueFull => "the send queue is full",
    BadAddress => "not an address that one may send to",
    TooLong => "the datagram does not fit into the largest packet",
    NoMemory => "no memory to keep what is sent",
});
