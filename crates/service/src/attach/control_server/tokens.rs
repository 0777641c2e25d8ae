//! Tokens: sockets whose other ends are inherited by a program and its children, or passed to other
//! processes. A process that has one opens a session by it, without a path.
//!
//! Tokens that a daemon was given open sessions with its own rights; the daemon is there for their
//! holders and ends when it is not used. Tokens that it gives stand for connections
//! (`descriptors/share_token.rs`); a session that is opened by one has the rights of its process.
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
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, getpeername, socketpair, sockopt};

use super::super::message::is_open;
use super::{ControlServer, SessionHost, socket_of};
use crate::descriptors::{
    GIVEN_TOKEN, PassRefusal, SessionMessage, ShareToken, SocketIdentity, name_token,
};
use crate::limits::UNUSED_TIME;
use crate::message_socket::{MessageWithFds, Reception, receive, send};

/// Messages of a token that are read at once.
const MESSAGES_PER_WAIT: usize = 16;

/// One end of a token.
struct TokenSocket {
    socket: OwnedFd,
    /// What it stands for, and the identity of the other end. `None`: the daemon was given it.
    shares: Option<(Arc<ShareToken>, SocketIdentity)>,
    /// Sessions that are opened by it have the daemon's own rights.
    has_daemons_rights: bool,
}

/// How a client came to the daemon, if not by its path.
pub(super) struct TokenEntry {
    /// What the client may adopt.
    pub(super) shares: Option<Arc<ShareToken>>,
    /// It has the daemon's own rights.
    pub(super) has_daemons_rights: bool,
}

/// The tokens of a daemon.
#[derive(Default)]
pub(super) struct Tokens {
    sockets: HashMap<u64, TokenSocket>,
    by_identity: HashMap<SocketIdentity, Arc<ShareToken>>,
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
        let token = TokenSocket { socket: token, shares: None, has_daemons_rights: true };
        self.tokens.sockets.insert(key, token);
        self.tokens.ends_unused = true;
        Ok(())
    }

    /// Makes a token for what `make` notes under a number. Returns the other end.
    fn make_token(
        &mut self,
        has_daemons_rights: bool,
        make: impl FnOnce(&mut H, u64) -> Result<Arc<ShareToken>, PassRefusal>,
    ) -> Result<OwnedFd, PassRefusal> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.map_err(io::Error::from)?;
        name_token(ours.as_fd()).map_err(io::Error::from)?;
        let identity = SocketIdentity::of(theirs.as_fd()).ok_or(PassRefusal::NotToken)?;
        let key = self.next_key;
        let added = epoll::add(&self.epoll, &ours, socket_of(key), epoll::EventFlags::IN);
        added.map_err(io::Error::from)?;
        self.next_key += 1;
        let token = make(&mut self.host, key)?;
        self.tokens.by_identity.insert(identity, Arc::clone(&token));
        let shares = Some((token, identity));
        let entry = TokenSocket { socket: ours, shares, has_daemons_rights };
        self.tokens.sockets.insert(key, entry);
        Ok(theirs)
    }

    /// A client wants a token.
    pub(super) fn give_token(&mut self, key: u64, cookie: u64) {
        let Some(client) = self.clients.get(&key) else { return };
        let has_daemons_rights = client.has_daemons_rights();
        let made = self
            .make_token(has_daemons_rights, |host, number| host.make_token(key, cookie, number));
        match (made, self.clients.get(&key)) {
            (Ok(token), Some(client)) => {
                let give = SessionMessage::Give { cookie: cookie | GIVEN_TOKEN };
                // A client that does not read gets none: its token ends with this end.
                let _ = send(client.socket.as_fd(), &give.encode(), &[token.as_fd()]);
                self.send_to(key, &SessionMessage::Passed { cookie });
            }
            (Err(refusal), _) => self.refuse_descriptors(key, cookie, &refusal),
            (Ok(_), None) => {}
        }
    }

    /// A client passes a token, to adopt what it stands for.
    pub(super) fn take_token(
        &mut self,
        key: u64,
        cookie: u64,
        fds: &[OwnedFd],
    ) -> Result<(), PassRefusal> {
        let token = match fds {
            [fd] => SocketIdentity::of(fd.as_fd()).and_then(|it| self.tokens.by_identity.get(&it)),
            _ => None,
        };
        match token.cloned() {
            Some(token) => self.host.keep_token(key, cookie, (token, false)),
            None => {
                self.host.note_refused(key);
                Err(PassRefusal::NotToken)
            }
        }
    }

    /// A message over a token that is no OPEN.
    fn on_token_message(&mut self, key: u64, bytes: &[u8]) {
        let Some(entry) = self.tokens.sockets.get(&key) else { return };
        let has_daemons_rights = entry.has_daemons_rights;
        // Stray bytes are counted, and change nothing.
        let Some((token, _)) = &entry.shares else { return self.host.note_stray() };
        let token = Arc::clone(token);
        match SessionMessage::decode(bytes) {
            Some(SessionMessage::Token { cookie }) => {
                let Some(request) = token.begin_request() else { return self.end_token(key) };
                let made = self.make_token(has_daemons_rights, |host, number| {
                    host.copy_token(&request, number)
                });
                let Some(entry) = self.tokens.sockets.get(&key) else { return };
                let socket = entry.socket.as_fd();
                // A holder that does not read gets no answer.
                let _ = match made {
                    Ok(made) => {
                        let give = SessionMessage::Give { cookie: cookie | GIVEN_TOKEN };
                        send(socket, &give.encode(), &[made.as_fd()])
                    }
                    Err(refusal) => {
                        let (errno, sentence) = (refusal.raw_os_error(), refusal.to_string());
                        let refused = SessionMessage::NotPassed { cookie, errno, sentence };
                        send(socket, &refused.encode(), &[])
                    }
                };
            }
            Some(SessionMessage::Release { conns }) => match token.begin_request() {
                Some(request) => self.host.release_by_token(&request, &conns),
                // What it asks for would fill the queues of the shards.
                None => self.end_token(key),
            },
            Some(SessionMessage::ReleaseEndpoints { endpoints }) => match token.begin_request() {
                Some(request) => self.host.release_endpoints_by_token(&request, &endpoints),
                None => self.end_token(key),
            },
            _ => self.host.note_stray(),
        }
    }

    fn end_token(&mut self, key: u64) {
        let Some(entry) = self.tokens.sockets.remove(&key) else { return };
        // It was added; closing it would do as well.
        let _ = epoll::delete(&self.epoll, &entry.socket);
        if let Some((token, identity)) = entry.shares {
            self.tokens.by_identity.remove(&identity);
            token.end();
            self.host.end_token(&token);
        }
    }

    pub(super) fn on_token(&mut self, key: u64) {
        for _ in 0..MESSAGES_PER_WAIT {
            let Some(token) = self.tokens.sockets.get(&key) else { return };
            match receive(token.socket.as_fd()) {
                Ok(Reception::Nothing) => return,
                // Descriptors that no OPEN has are closed here.
                Ok(Reception::Message(MessageWithFds { bytes, fds })) => {
                    if !is_open(&bytes) {
                        self.on_token_message(key, &bytes);
                        continue;
                    }
                    let entry = TokenEntry {
                        shares: token.shares.as_ref().map(|(token, _)| Arc::clone(token)),
                        has_daemons_rights: token.has_daemons_rights,
                    };
                    let mut fds = fds.into_iter();
                    if let (Some(socket), None) = (fds.next(), fds.next())
                        && is_of_pair(&socket)
                    {
                        self.begin_handshake(socket, Some(entry));
                    } else {
                        self.host.note_stray();
                    }
                }
                Ok(Reception::Oversized) => self.host.note_stray(),
                Ok(Reception::Closed) | Err(_) => return self.end_token(key),
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
