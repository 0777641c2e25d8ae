//! rtnetlink: the kernel's interfaces, addresses, routes and neighbours, and every
//! change of them. Read only.
//!
//! Read first: netlink(7), rtnetlink(7); `netlink/message.rs` for the messages.
//!
//! A link that shares the host's address sends as the host would: the routes, the neighbours and
//! the addresses are the kernel's, and come from here.
//!
//! Invariants
//! - Only the kernel is believed: messages of other processes are passed over.
//! - Nothing here changes anything in the kernel.
//! - When the kernel had to leave out changes, [`Change::Lost`] says so: list everything again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

use crate::limits::{NETLINK_BUFFER_BYTES, NETLINK_LISTINGS_MAX, NETLINK_TIMEOUT_MS};
use crate::{LinkError, sleep};

mod message;
mod sockets;

pub use message::{Fact, Interface, KernelRoute, LinkAddress, Neighbour, RouteKind};

pub use sockets::SocketDiag;

use message::{MessageBody, NetlinkMessages};

/// Something that is so, or is so no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// New or changed.
    Is(Fact),
    /// Gone.
    Gone(Fact),
    /// Changes were lost: what was known may be wrong. [`Netlink::list`] tells it anew.
    Lost,
}

/// A socket on which the kernel tells of the network namespace that it was opened in.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

const WHAT: &str = "ask the kernel about the network";

fn failed(source: Errno) -> LinkError {
    LinkError::Io { what: WHAT, source: source.into() }
}

impl Netlink {
    /// Opens the socket and subscribes to changes: later ones are returned by
    /// [`Netlink::changes`]. Needs no privilege.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub fn open() -> Result<Self, LinkError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).map_err(failed)?;
        bind(&socket, &SocketAddrNetlink::new(0, message::GROUPS)).map_err(failed)?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; NETLINK_BUFFER_BYTES].into() })
    }

    /// Reports the current interfaces, addresses, routes and neighbours, in this order, and changes
    /// that happen meanwhile. Blocks for the kernel's answer, some microseconds.
    ///
    /// # Errors
    /// [`LinkError::Io`]; `TimedOut` when the kernel does not answer, `Interrupted` when the lists
    /// changed during each of several attempts.
    pub fn list(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), LinkError> {
        for kind in message::LISTS {
            let mut attempts = 0;
            while !self.list_kind(kind, each)? {
                attempts += 1;
                if attempts == NETLINK_LISTINGS_MAX {
                    return Err(failed(Errno::INTR));
                }
            }
        }
        Ok(())
    }

    /// Tells the changes that wait. Does not block. Returns how many messages there were.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub fn changes(&mut self, each: &mut dyn FnMut(Change)) -> Result<usize, LinkError> {
        let mut count = 0;
        while let Some(bytes) = self.receive(each)? {
            for message in NetlinkMessages::new(&self.buffer[..bytes]) {
                count += 1;
                report(message.body, each);
            }
        }
        Ok(count)
    }

    /// Reads one list. Returns `false` if it changed meanwhile and must be read again.
    fn list_kind(&mut self, kind: u16, each: &mut dyn FnMut(Change)) -> Result<bool, LinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message::list_request(kind, self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &request, SendFlags::empty(), &kernel).map_err(failed)?;
        let deadline = Instant::now() + Duration::from_millis(NETLINK_TIMEOUT_MS);
        let mut is_whole = true;
        loop {
            let Some(bytes) = self.receive(each)? else {
                let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                    return Err(failed(Errno::TIMEDOUT));
                };
                sleep::until_readable(self.socket.as_fd(), Some(left))?;
                continue;
            };
            for message in NetlinkMessages::new(&self.buffer[..bytes]) {
                // What answers nothing is a change of its own, or the rest of an older answer.
                let is_answer = message.sequence == self.sequence;
                is_whole &= !(is_answer && message.is_interrupted);
                match message.body {
                    MessageBody::Done if is_answer => return Ok(is_whole),
                    MessageBody::Error(code) if is_answer => {
                        let source = io::Error::from_raw_os_error(code);
                        return Err(LinkError::Io { what: WHAT, source });
                    }
                    body => report(body, each),
                }
            }
        }
    }

    /// Receives one datagram from the kernel into the buffer. `None`: there is none.
    fn receive(&mut self, each: &mut dyn FnMut(Change)) -> Result<Option<usize>, LinkError> {
        loop {
            let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
            match recvfrom(&self.socket, &mut *self.buffer, flags) {
                // A datagram longer than the buffer: its end is lost.
                Ok((kept, len, _)) if len > kept => each(Change::Lost),
                Ok((kept, _, from)) => {
                    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    if from.is_some_and(|from| from.pid() == 0) {
                        return Ok(Some(kept));
                    }
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                // The socket's queue ran over.
                Err(Errno::NOBUFS) => each(Change::Lost),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

fn report(body: MessageBody, each: &mut dyn FnMut(Change)) {
    match body {
        MessageBody::Is(fact) => each(Change::Is(fact)),
        MessageBody::Gone(fact) => each(Change::Gone(fact)),
        MessageBody::Done | MessageBody::Error(_) | MessageBody::Other => {}
    }
}

impl AsFd for Netlink {
    /// Readable when there are changes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
