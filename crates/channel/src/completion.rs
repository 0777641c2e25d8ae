//! What a channel hands back: one completion for each operation.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::address::Address;
use crate::buffer::ReadBuf;
use crate::error::OpError;
use crate::handle::Handle;

/// One finished operation.
#[derive(Debug)]
pub struct Completion {
    /// Whose operation it was.
    pub handle: Handle,
    /// The handle's cookie when the completion was handed out.
    pub cookie: u64,
    /// What finished, and how.
    pub event: Event,
}

// Completions are moved several times on their way.
const _: () = assert!(size_of::<Completion>() <= 56);

/// What finished. Every variant but `Timer`, `Wake`, `Drained`, `Urgent` and `Undelivered` answers
/// one call of the same name.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection arrived.
    Accept(Result<Accepted, OpError>),
    /// The connection is established, or is not going to be.
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
    /// The connection is over in both directions: in order, or why not (for `await_end`).
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
    /// The handle takes writes again: one was refused with [`crate::Limit::UnsentBytes`], and since
    /// then the unsent bytes have fallen to half of [`crate::Config::unsent_bytes_max`] or less.
    /// If they were below half at the refusal, because the write was long, the next bytes that go
    /// out bring it. Comes once, however many writes were refused; never after a
    /// [`crate::Channel::disconnect`] or the end of the connection, which has a completion of its
    /// own.
    Drained,
    /// Fewer bytes of the connection are unsent than was named
    /// ([`crate::Channel::await_unsent_below`]).
    UnsentBelow,
    /// The peer has marked bytes of a stream as urgent (RFC 6093), if that is to be told
    /// ([`crate::Config::asides`]). They come in line.
    Urgent {
        /// Bytes from the next one that a read gives to the end of the urgent ones.
        bytes: u32,
    },
    /// A message that was sent did not get there, if that is to be told
    /// ([`crate::Config::asides`]).
    Undelivered(Box<Undelivered>),
    /// A thread called [`crate::Waker::wake`]; several calls may give one completion.
    Wake,
}

/// A new connection.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, in the form that was asked for.
    pub connection: Connection,
    /// Connections known to be waiting behind this one in the channel's accept queue.
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
    /// Whether the message was longer than asked for; the rest is lost, as with `recvfrom(2)`.
    pub truncated: bool,
    /// UDP on our own stack: how it arrived.
    pub arrival: Option<Arrival>,
    /// UDP on the kernel: the control data that the socket's options ask for, as of recvmsg(2).
    pub control: Box<[u8]>,
}

/// How a datagram arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Which of our addresses it was sent to.
    pub to: IpAddr,
    /// Hops that were left to it.
    pub hop_limit: u8,
    /// Its traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

/// A message that did not get there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// Where it was sent to.
    pub to: Address,
    /// What the network says, as an error of the kernel's.
    pub error: OpError,
    /// The next one will not get there either (RFC 1122 §4.2.3.9 calls it a hard error).
    pub is_final: bool,
    /// What says so.
    pub notice: Notice,
}

/// An ICMP message about a message that did not get there. Where no host answers for the next hop,
/// it is what a router of ours would have sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Who says so; the type and the code are those of ICMP for its version of IP.
    pub by: IpAddr,
    /// The message's type.
    pub kind: u8,
    /// The message's code.
    pub code: u8,
    /// The MTU or the place of which it speaks, else 0.
    pub info: u32,
    /// How it arrived.
    pub arrival: Arrival,
    /// The beginning of the message that did not get there, as much as is quoted, if that is asked
    /// for ([`crate::Channel::quote_errors`]).
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

/// What is left when a handle was unregistered.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Unregistered {
    /// The descriptor that was registered; `None` for an lwsocket, which is gone.
    pub fd: Option<OwnedFd>,
    /// Bytes that the channel had received and the program had not read, oldest first. Empty for an
    /// lwsocket.
    pub unread: Vec<ReadBuf>,
    /// Of a listener without siblings: connections that were accepted and never handed out.
    pub connections: Vec<ToFd>,
}
