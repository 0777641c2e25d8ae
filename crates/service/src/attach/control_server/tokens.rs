//! Tokens: sockets whose other ends are inherited by a program and its children. A process that has
//! one opens a session by it, without a path and with the daemon's own rights; a daemon that was
//! given a token is there for the token's holders and ends when it is not used.
//!
//! Read first: unix(7) on socketpair(2), SO_PEERCRED and SCM_RIGHTS.
//!
//! Invariants
//! - Possession of the token is the permission. The process of a session is the one that made the
//!   pair of sockets that came over the token.
//! - What comes over a token ends at worst the handshake that it begins.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketType, getpeername, sockopt};

use super::super::message::is_open;
use super::{ControlServer, SessionHost, socket_of};
use crate::limits::UNUSED_TIME;
use crate::message_socket::{MessageWithFds, Reception, receive};

/// Messages of a token that are read at once.
const MESSAGES_PER_WAIT: usize = 16;

/// The tokens of a daemon.
#[derive(Default)]
pub(super) struct Tokens {
    sockets: HashMap<u64, OwnedFd>,
    /// There was one: the daemon ends with its users.
    ends_unused: bool,
    unused_since: Option<Instant>,
}

impl Tokens {
    pub(super) fn has(&self, key: u64) -> bool {
        self.sockets.contains_key(&key)
    }

    /// Time until the next look whether the daemon is used. `None`: it does not end by itself.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.ends_unused.then_some(UNUSED_TIME / 2)
    }
}

/// Whether a descriptor is a connected socket of the kind that a handshake needs: the kernel knows
/// the process of its other end.
fn is_of_pair(socket: &OwnedFd) -> bool {
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
        && getpeername(socket).is_ok()
}

impl<H: SessionHost> ControlServer<H> {
    /// Serves the holders of the other end of a token. The daemon ends when no process holds one
    /// and none is attached.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn add_token(&mut self, token: OwnedFd) -> io::Result<()> {
        let key = self.next_key;
        self.next_key += 1;
        epoll::add(&self.epoll, &token, socket_of(key), epoll::EventFlags::IN)?;
        self.tokens.sockets.insert(key, token);
        self.tokens.ends_unused = true;
        Ok(())
    }

    pub(super) fn on_token(&mut self, key: u64) {
        for _ in 0..MESSAGES_PER_WAIT {
            let Some(token) = self.tokens.sockets.get(&key) else { return };
            match receive(token.as_fd()) {
                Ok(Reception::Nothing) => return,
                // Descriptors that no OPEN has are closed here.
                Ok(Reception::Message(MessageWithFds { bytes, fds })) => {
                    let mut fds = fds.into_iter();
                    if let (Some(socket), None, true) = (fds.next(), fds.next(), is_open(&bytes))
                        && is_of_pair(&socket)
                    {
                        self.begin_handshake(socket, true);
                    }
                }
                Ok(Reception::Oversized) => {}
                Ok(Reception::Closed) | Err(_) => {
                    if let Some(token) = self.tokens.sockets.remove(&key) {
                        // It was added; closing it would do as well.
                        let _ = epoll::delete(&self.epoll, &token);
                    }
                    return;
                }
            }
        }
    }

    /// Whether the daemon ends, because its tokens and clients are gone.
    pub(super) fn is_unused(&mut self, now: Instant) -> bool {
        if !self.tokens.ends_unused || !self.tokens.sockets.is_empty() || !self.clients.is_empty() {
            self.tokens.unused_since = None;
            return false;
        }
        let since = *self.tokens.unused_since.get_or_insert(now);
        now.duration_since(since) >= UNUSED_TIME
    }

    /// Whether [`ControlServer::run`] has returned because nothing uses the daemon.
    pub fn has_ended(&mut self) -> bool {
        self.is_unused(Instant::now())
    }
}
