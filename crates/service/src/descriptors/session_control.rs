//! The client's end of the control socket within a session.
//!
//! Invariants
//! - A call waits for at most [`PASS_TIME`].
//! - What a daemon sends is checked; at most [`GIVEN_MAX`] descriptors that it gives are kept.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::message::{GIVEN_TOKEN, PassPurpose, SessionMessage};
use crate::error::MoveRefusal;
use crate::limits::{GIVEN_MAX, PASS_TIME};
use crate::message_socket::{MessageWithFds, Reception, receive, send};
use crate::sleep::wait_readable;

/// What a session may pass, by the version of its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DescriptorPassing {
    /// Nothing.
    Nothing,
    /// Sockets that reserve ports of TCP.
    Reservations,
    /// And those that reserve ports of UDP, listen, or have a connection.
    Sockets,
    /// And tokens, of connections.
    Tokens,
    /// And of endpoints for datagrams.
    Endpoints,
    /// And of connections that are being opened.
    Connecting,
    /// And of listeners.
    Listeners,
}

/// A session's control socket, of a daemon that takes descriptors.
pub(crate) struct SessionControl {
    socket: Arc<OwnedFd>,
    passing: DescriptorPassing,
    last_cookie: u64,
    /// Descriptors that the daemon has given, with their cookies.
    given: VecDeque<(u64, OwnedFd)>,
}

/// What the daemon has said of a cookie.
enum PassAnswer {
    /// Nothing; it has given a descriptor.
    Given,
    Passed(u64),
    NotPassed(u64, io::Error),
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl SessionControl {
    /// The end of a session that has begun. `None`: it passes nothing.
    pub(crate) fn new(socket: Arc<OwnedFd>, passing: DescriptorPassing) -> Option<Self> {
        let given = VecDeque::new();
        let control = Self { socket, passing, last_cookie: 0, given };
        (passing > DescriptorPassing::Nothing).then_some(control)
    }

    /// Whether more than reservations of TCP may be passed.
    pub(crate) fn passes_sockets(&self) -> bool {
        self.passing >= DescriptorPassing::Sockets
    }

    /// Whether tokens can be had and passed.
    pub(crate) fn passes_tokens(&self) -> bool {
        self.passing >= DescriptorPassing::Tokens
    }

    /// Whether tokens own endpoints for datagrams, too.
    pub(crate) fn shares_endpoints(&self) -> bool {
        self.passing >= DescriptorPassing::Endpoints
    }

    /// Whether tokens own connections that are being opened, too.
    pub(crate) fn shares_connecting(&self) -> bool {
        self.passing >= DescriptorPassing::Connecting
    }

    /// Whether tokens own listeners, too.
    pub(crate) fn shares_listeners(&self) -> bool {
        self.passing >= DescriptorPassing::Listeners
    }

    /// Asks for a token. Returns it, and its cookie for the calls until [`SessionControl::forget`].
    ///
    /// # Errors
    /// As [`SessionControl::pass`].
    pub(crate) fn make_token(&mut self) -> io::Result<(u64, OwnedFd)> {
        let cookie = self.exchange(|cookie| SessionMessage::Token { cookie }, &[])?;
        let token = self.take_given(cookie | GIVEN_TOKEN);
        token.map(|token| (cookie, token)).ok_or_else(|| broken("the service gave no token"))
    }

    /// Passes descriptors, and waits until the daemon has checked them. Returns their cookie, for
    /// the calls until [`SessionControl::forget`].
    ///
    /// # Errors
    /// The daemon's sentence, with the number of the kernel's that is nearest; `TimedOut`.
    pub(crate) fn pass(&mut self, purpose: PassPurpose, fds: &[BorrowedFd<'_>]) -> io::Result<u64> {
        self.exchange(|cookie| SessionMessage::Pass { cookie, purpose }, fds)
    }

    fn exchange(
        &mut self,
        message: impl FnOnce(u64) -> SessionMessage,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<u64> {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        send(self.socket.as_fd(), &message(cookie).encode(), fds)?;
        let deadline = Instant::now() + PASS_TIME;
        loop {
            match self.take_message()? {
                Some(PassAnswer::Passed(of)) if of == cookie => return Ok(cookie),
                Some(PassAnswer::NotPassed(of, error)) if of == cookie || of == 0 => {
                    return Err(error);
                }
                // The late answer to a call that has given up.
                Some(_) => {}
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left == Duration::ZERO {
                        self.forget(cookie);
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    match wait_readable([Some(self.socket.as_fd())], Some(left)) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
        }
    }

    /// No call names a cookie any more.
    pub(crate) fn forget(&self, cookie: u64) {
        let message = SessionMessage::Forget { cookie }.encode();
        // A daemon that is gone has forgotten it; one that does not read bounds what it keeps.
        let _ = send(self.socket.as_fd(), &message, &[]);
    }

    /// Reads one message. Keeps a descriptor that was given.
    fn take_message(&mut self) -> io::Result<Option<PassAnswer>> {
        let MessageWithFds { bytes, mut fds } = match receive(self.socket.as_fd())? {
            Reception::Message(message) => message,
            Reception::Nothing => return Ok(None),
            Reception::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
            Reception::Oversized => return Err(broken("the service sent too long a message")),
        };
        match SessionMessage::decode(&bytes) {
            Some(SessionMessage::Passed { cookie }) => Ok(Some(PassAnswer::Passed(cookie))),
            Some(SessionMessage::NotPassed { cookie, errno, sentence }) => {
                let kind = io::Error::from_raw_os_error(errno).kind();
                let error = io::Error::new(kind, MoveRefusal::new(errno, &sentence));
                Ok(Some(PassAnswer::NotPassed(cookie, error)))
            }
            Some(SessionMessage::Give { cookie }) => {
                let fd = fds.pop().filter(|_| fds.is_empty());
                let fd = fd.ok_or_else(|| broken("the service gave no descriptor"))?;
                if self.given.len() == GIVEN_MAX {
                    self.given.pop_front();
                }
                self.given.push_back((cookie, fd));
                Ok(Some(PassAnswer::Given))
            }
            _ => Err(broken("the service sent an unknown message")),
        }
    }

    /// The descriptor that the daemon has given with a cookie, which the answer to a call named.
    /// Those that were given before are closed: their calls were refused.
    pub(crate) fn take_given(&mut self, cookie: u64) -> Option<OwnedFd> {
        while matches!(self.take_message(), Ok(Some(_))) {}
        let place = self.given.iter().position(|(of, _)| *of == cookie)?;
        self.given.drain(..=place).next_back().map(|(_, fd)| fd)
    }
}
