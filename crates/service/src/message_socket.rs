//! Messages with descriptors over a SOCK_SEQPACKET socket.
//!
//! Read first: unix(7), SCM_RIGHTS; recvmsg(2), MSG_CTRUNC.
//!
//! Invariant: every descriptor that arrives is closed or returned to the caller, with FD_CLOEXEC,
//! whatever the message is.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::limits::{LANES_MAX, MESSAGE_BYTES_MAX};

/// Most descriptors of a message, those of a WELCOME: a region, and a bell of each lane.
const FDS_MAX: usize = 1 + LANES_MAX as usize;

/// A message that arrived.
#[derive(Debug)]
pub(crate) struct MessageWithFds {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// What a read of the socket returns.
#[derive(Debug)]
pub(crate) enum Reception {
    Message(MessageWithFds),
    /// None has arrived.
    Nothing,
    /// The peer has closed its end.
    Closed,
    /// A message that is too long, or with more descriptors than any has.
    Oversized,
}

/// Receives a message of a handshake, or a query. Does not block.
///
/// # Errors
/// As recvmsg(2).
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Reception> {
    receive_up_to(socket, MESSAGE_BYTES_MAX)
}

/// Receives a message of at most so many bytes. Does not block.
///
/// # Errors
/// As recvmsg(2).
pub(crate) fn receive_up_to(socket: BorrowedFd<'_>, bytes_max: usize) -> io::Result<Reception> {
    // A byte more than any message has.
    let mut bytes = vec![0; bytes_max + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut read = || recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    // A peer that closes its end with unread messages resets ours. Its own last messages are still
    // there: the second call returns them.
    let received = match read() {
        Err(Errno::CONNRESET) => read(),
        received => received,
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Reception::Nothing),
        Err(Errno::CONNRESET) => return Ok(Reception::Closed),
        Err(errno) => return Err(errno.into()),
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if is_cut || received.bytes > bytes_max {
        return Ok(Reception::Oversized);
    }
    if received.bytes == 0 {
        return Ok(Reception::Closed);
    }
    bytes.truncate(received.bytes);
    Ok(Reception::Message(MessageWithFds { bytes, fds }))
}

/// Sends a message with descriptors. Does not block, and raises no signal.
///
/// # Errors
/// As sendmsg(2); `WouldBlock` also if the peer does not read.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}
