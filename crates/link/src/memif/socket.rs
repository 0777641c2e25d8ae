//! The control channel: SEQPACKET records with at most one descriptor each.
//!
//! Invariants
//! - No call blocks past its deadline.
//! - A received descriptor is owned at once, and closed if it is not used, so that a peer cannot
//!   exhaust our descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::control::{MESSAGE_BYTES, MemifMessage, NoMessage};
use crate::BoundPath;
use crate::held_signals::HeldSignals;

/// Clients that may wait while one is served.
const BACKLOG: i32 = 8;

/// What arrived.
pub(super) enum SocketArrival {
    /// A message, with the descriptor that came along.
    Message(MemifMessage, Option<OwnedFd>),
    /// Bytes that are no message.
    Nonsense(NoMessage),
    /// The peer closed the channel.
    Closed,
    /// Nothing, until the deadline.
    Nothing,
}

/// The address that a path names; `@…` is a name without a file (an abstract one).
pub(super) fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    let text = path.as_os_str().as_encoded_bytes();
    Ok(match text {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path)?,
    })
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | flags;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens at `path`, or at an abstract name. The [`BoundPath`] removes the file.
pub(super) fn listen(path: &Path) -> io::Result<(Option<BoundPath>, OwnedFd)> {
    let listener = socket(SocketFlags::empty())?;
    if !is_abstract(path) {
        return Ok((Some(BoundPath::listen(listener.as_fd(), path, BACKLOG)?), listener));
    }
    rustix::net::bind(&listener, &address(path)?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok((None, listener))
}

fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"@")
}

/// Connects to a server. Waits neither for one to appear nor for room in its queue.
pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &address(path)?)?;
    Ok(socket)
}

/// Takes the next client; `None`: none until the deadline.
///
/// # Errors
/// Interrupted by one of the held signals; what the kernel answers.
pub(super) fn accept(
    listener: &OwnedFd,
    deadline: Option<Instant>,
    held: Option<&HeldSignals>,
) -> io::Result<Option<OwnedFd>> {
    if !readable(listener.as_fd(), deadline, held)? {
        return Ok(None);
    }
    Ok(Some(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?))
}

/// Sends one message. The queue of a channel holds many more than a handshake has, so a channel
/// that is full is an error and not waited for.
pub(super) fn send(
    channel: BorrowedFd<'_>,
    message: &MemifMessage,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        // The space is that of one descriptor.
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg(channel, &[IoSlice::new(&bytes)], &mut control, flags)?;
    if sent == MESSAGE_BYTES { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message, waiting until `deadline` (in the past: not at all).
pub(super) fn receive(channel: BorrowedFd<'_>, deadline: Instant) -> io::Result<SocketArrival> {
    if !readable(channel, Some(deadline), None)? {
        return Ok(SocketArrival::Nothing);
    }
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let received = match rustix::net::recvmsg(channel, parts, &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(SocketArrival::Nothing),
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(SocketArrival::Closed),
        Err(other) => return Err(other.into()),
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if received == 0 {
        return Ok(SocketArrival::Closed);
    }
    Ok(match MemifMessage::decode(&bytes[..received]) {
        Ok(message) => SocketArrival::Message(message, fd),
        Err(nonsense) => SocketArrival::Nonsense(nonsense),
    })
}

/// Waits until `fd` is readable (or at its end); `false`: not until the deadline.
///
/// # Errors
/// Interrupted by one of the held signals; what the kernel answers.
pub(super) fn readable(
    fd: BorrowedFd<'_>,
    deadline: Option<Instant>,
    held: Option<&HeldSignals>,
) -> io::Result<bool> {
    loop {
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A time too long for the kernel's type is as good as for ever.
        let timeout = rest.and_then(|rest| Timespec::try_from(rest).ok());
        // Without held signals the same descriptor stands there twice.
        let signals = held.map_or(fd, AsFd::as_fd);
        let mut polled = [&fd, &signals].map(|fd| PollFd::new(fd, PollFlags::IN));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) if held.is_some() && !polled[1].revents().is_empty() => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(other) => return Err(other.into()),
        }
    }
}
