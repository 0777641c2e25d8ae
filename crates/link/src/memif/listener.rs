//! A server's socket, where one client after another is waited for.
//!
//! Read first: `session.rs` for what is agreed with a client; `place.rs` for servers whose links
//! outlive their clients.
//!
//! Invariant: one client at a time; the next one waits in the socket's queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::session::{Joined, Joining, NoSession};
use super::{Memif, MemifRole, MemifSettings, NOTICE_AFTER, links, socket, unavailable};
use crate::held_signals::HeldSignals;
use crate::{BoundPath, LinkError};

/// A server's socket, where one client after another can be served.
#[derive(Debug)]
pub struct Listener {
    settings: MemifSettings,
    /// The socket's file, if it has one. Removed before the socket closes.
    _path: Option<BoundPath>,
    listener: OwnedFd,
    refused_count: u64,
    last_refusal: Option<String>,
}

/// Why no socket listens: a path that no server can have is the setting's fault.
fn no_listener(source: io::Error) -> LinkError {
    use io::ErrorKind::{AlreadyExists, InvalidFilename, NotADirectory, NotFound};
    match source.kind() {
        AlreadyExists | InvalidFilename | NotADirectory | NotFound => {
            LinkError::Setting { setting: "socket", why: source.to_string() }
        }
        _ => LinkError::Io { what: "listening for a memif", source },
    }
}

impl Listener {
    /// Listens. A socket file without a listener is replaced; any other file is an error. The
    /// socket file is removed when the listener is dropped. Access is by the file's permissions
    /// and the secret.
    ///
    /// # Errors
    /// [`LinkError::Setting`] or [`LinkError::Io`].
    pub fn bind(settings: &MemifSettings) -> Result<Self, LinkError> {
        settings.check()?;
        let (path, listener) = socket::listen(&settings.socket).map_err(no_listener)?;
        let settings = settings.clone();
        Ok(Self { settings, _path: path, listener, refused_count: 0, last_refusal: None })
    }

    /// Waits for the next client with which everything can be agreed, at most `timeout`; one link
    /// per queue that it wants. Clients that are sent away meanwhile are counted. Blocks.
    ///
    /// # Errors
    /// [`LinkError::Unavailable`] when none came in time; [`LinkError::Io`].
    pub fn accept(&mut self, timeout: Duration) -> Result<Vec<Memif>, LinkError> {
        let joined = self.next_client(Instant::now() + timeout, None)?;
        links(MemifRole::Server, &self.settings, joined)
    }

    fn next_client(
        &mut self,
        deadline: Instant,
        held: Option<&HeldSignals>,
    ) -> Result<Joined, LinkError> {
        let terms = self.settings.terms();
        loop {
            let channel = socket::accept(&self.listener, Some(deadline), held)
                .map_err(|source| LinkError::Io { what: "accepting a memif client", source })?;
            let Some(channel) = channel else {
                return Err(unavailable(match &self.last_refusal {
                    Some(reason) => {
                        format!("no client has come that stayed; the last one left: {reason}")
                    }
                    None => "no client has come".to_owned(),
                }));
            };
            let begun = Joining::serve(channel, &terms, Instant::now());
            match begun.and_then(|joining| joining.finish(deadline, held)) {
                Ok(joined) => return Ok(joined),
                Err(why) => self.note_refusal(why),
            }
        }
    }

    /// Clients that were sent away, or left before they were connected.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.refused_count
    }

    /// Becomes readable when a client wants to be accepted.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Listener {
    /// Waits for the first client, at most `timeout`. Calls `waits`, with the reason, if there is
    /// none after a second.
    ///
    /// # Errors
    /// As [`Listener::accept`]; a held signal.
    pub(super) fn first_client(
        &mut self,
        timeout: Duration,
        held: &HeldSignals,
        waits: &mut dyn FnMut(&str),
    ) -> Result<Joined, LinkError> {
        let start = Instant::now();
        match self.next_client(start + timeout.min(NOTICE_AFTER), Some(held)) {
            Err(LinkError::Unavailable { why, .. }) if timeout > NOTICE_AFTER => {
                waits(&why);
                self.next_client(start + timeout, Some(held))
            }
            first => first,
        }
    }

    /// The next client that wants to be accepted, if there is one. Does not block.
    pub(super) fn waiting_client(&self, now: Instant) -> Result<Option<OwnedFd>, NoSession> {
        let accepted = socket::accept(&self.listener, Some(now), None);
        accepted.map_err(|error| NoSession::Io("accepting a memif client", error))
    }

    /// Counts a client that was sent away.
    pub(super) fn note_refusal(&mut self, why: NoSession) {
        self.refused_count += 1;
        self.last_refusal = Some(match why {
            NoSession::Refused(reason) | NoSession::SentAway(reason) => reason,
            NoSession::Io(what, error) => format!("{what}: {error}"),
        });
    }
}
