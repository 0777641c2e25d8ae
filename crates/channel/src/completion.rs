//! What a channel hands back: one completion for each operation.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::address::Address;
use crate::buffer::ReadBuf;
use crate::error::OpError;
use crate::handle::Handle;

/// One finished operation.
///
/// # Examples
/// ```
/// use megapipe::{Channel, Completion, Config, Event};
/// use std::time::Duration;
///
/// let mut channel = Channel::create(Config::default())?;
/// let timer = channel.timer(Duration::ZERO, None, 7)?;
/// let Completion { handle, cookie, event } = channel.dispatch(None)?.expect("no time-out");
/// assert_eq!((handle, cookie), (timer, 7));
/// assert!(matches!(event, Event::Timer { expirations: 1 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Completion {
    /// The handle of the operation.
    pub handle: Handle,
    /// The handle's cookie when the completion was dispatched.
    pub cookie: u64,
    /// The operation and its result.
    pub event: Event,
}

// Completions are moved several times on their way.
const _: () = assert!(size_of::<Completion>() <= 56);

/// An operation and its result. Every variant but `Timer`, `Wake`, `Drained`, `Urgent` and
/// `Undelivered` completes one call of the same name.
///
/// # Examples
/// ```
/// use megapipe::{Event, OpError};
///
/// fn describe(event: &Event) -> String {
///     match event {
///         Event::Read(Ok(data)) if data.is_empty() => "the end of the stream".into(),
///         Event::Read(Ok(data)) => format!("{} bytes", data.len()),
///         Event::Read(Err(OpError::Reset)) => "the peer reset the connection".into(),
///         Event::Read(Err(error)) => error.to_string(),
///         Event::Write(Ok(bytes)) => format!("{bytes} bytes written"),
///         _ => "another operation".into(),
///     }
/// }
/// assert_eq!(describe(&Event::Write(Ok(5))), "5 bytes written");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection arrived.
    Accept(Result<Accepted, OpError>),
    /// The connection is established, or the attempt has failed.
    Connect(Result<(), OpError>),
    /// The file is open.
    Open(Result<(), OpError>),
    /// Bytes arrived (for `read` and `read_at`). Empty: the end of the file or stream.
    Read(Result<ReadBuf, OpError>),
    /// All bytes were written (for `write`, `writev`, `write_at`); the number of bytes.
    Write(Result<usize, OpError>),
    /// A message arrived.
    RecvFrom(Result<Box<Datagram>, OpError>),
    /// A message was sent; the number of bytes.
    SendTo(Result<usize, OpError>),
    /// The file's data is on the device.
    Fsync(Result<(), OpError>),
    /// The connection's direction or directions are closed, or it was reset.
    Disconnect(Result<(), OpError>),
    /// The connection is over in both directions, in order or with an error (for `await_end`).
    End(Result<(), OpError>),
    /// The peer has acknowledged all that was written, and the end of it if the sending direction
    /// was closed (for `await_delivery`).
    Delivered(Result<(), OpError>),
    /// A timer expired, so many times since its last completion.
    Timer {
        /// At least 1.
        expirations: u64,
    },
    /// The handle left the channel as a descriptor.
    ToFd(Result<ToFd, OpError>),
    /// The handle accepts writes again: one was refused with [`crate::Limit::UnsentBytes`], and
    /// since then the unsent bytes have fallen to half of [`crate::Config::unsent_bytes_max`] or
    /// less. If they were below half at the refusal, because the write was long, the next bytes
    /// that are sent produce the event. It comes once, however many writes were refused, and never
    /// after a [`crate::Channel::disconnect`] or the end of the connection, which has a completion
    /// of its own.
    Drained,
    /// The connection has fewer unsent bytes than [`crate::Channel::await_unsent_below`] named.
    UnsentBelow,
    /// The peer has marked bytes of a stream as urgent (RFC 6093). Only with
    /// [`crate::Config::unsolicited_events`]. The bytes come in line.
    Urgent {
        /// Bytes from the next unread byte to the end of the urgent ones.
        bytes: u32,
    },
    /// A sent message was not delivered. Only with [`crate::Config::unsolicited_events`].
    Undelivered(Box<Undelivered>),
    /// A datagram waits for the owners of a socket that several processes have; one that takes it
    /// gets it. Only with [`crate::Config::unsolicited_events`].
    DatagramWaits {
        /// Bytes of the first datagram that waits.
        bytes: u32,
    },
    /// A thread called [`crate::Waker::wake`]; several calls may give one completion.
    Wake,
}

/// A new connection.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, in the form that the accept requested.
    pub connection: Connection,
    /// Connections known to wait behind this one in the channel's accept queue.
    pub pending: u32,
}

/// A connection that was just accepted.
#[derive(Debug)]
pub enum Connection {
    /// A handle of this channel, ready for use.
    Lwsocket(Handle),
    /// A descriptor of the process, to be registered in this or any other channel.
    Fd(OwnedFd),
}

/// A received message.
#[derive(Debug)]
pub struct Datagram {
    /// The message's bytes, or as many as were asked for.
    pub data: ReadBuf,
    /// The sender, if it has an address.
    pub from: Option<Address>,
    /// The message was longer than the read; the rest is lost, as with `recvfrom(2)`.
    pub truncated: bool,
    /// UDP on our own stack: how it arrived.
    pub arrival: Option<Arrival>,
    /// UDP on the kernel: the control data that the socket's options request, in recvmsg(2)'s
    /// format.
    pub control: Box<[u8]>,
}

/// How a datagram arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The address of ours that it was sent to.
    pub to: IpAddr,
    /// The remaining hop limit (TTL).
    pub hop_limit: u8,
    /// Its traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

/// A message that was not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// The destination.
    pub to: Address,
    /// The network's answer, as an error of the kernel's.
    pub error: OpError,
    /// The next message will not be delivered either (RFC 1122 §4.2.3.9: a hard error).
    pub is_final: bool,
    /// The ICMP message.
    pub notice: Notice,
}

/// An ICMP message about an undelivered message. If no host answers for the next hop, it is the
/// message that a router would have sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The sender of the ICMP message. Type and code are those of ICMP for its version of IP.
    pub by: IpAddr,
    /// The message's type.
    pub kind: u8,
    /// The message's code.
    pub code: u8,
    /// The MTU or pointer of the message, else 0.
    pub info: u32,
    /// How it arrived.
    pub arrival: Arrival,
    /// The beginning of the undelivered message, as far as it is quoted, if requested
    /// ([`crate::Channel::quote_errors`]).
    pub quote: Box<[u8]>,
}

/// A handle that became a descriptor.
#[derive(Debug)]
pub struct ToFd {
    /// The descriptor, close-on-exec.
    pub fd: OwnedFd,
    /// Bytes that the channel had received and the program had not read, oldest first.
    pub unread: Vec<ReadBuf>,
}

/// The remains of an unregistered handle.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Unregistered {
    /// The descriptor that was registered; `None` for an lwsocket, which is gone.
    pub fd: Option<OwnedFd>,
    /// Bytes that the channel had received and the program had not read, oldest first. Empty for an
    /// lwsocket.
    pub unread: Vec<ReadBuf>,
    /// Of a listener without siblings: connections that were accepted and not dispatched.
    pub connections: Vec<ToFd>,
}
