//! A server's socket: one client after another.
//!
//! Read first: `session.rs` for what is agreed with a client.
//!
//! There are two ways to serve. A [`Listener`] waits for a client and gives links that end with
//! it. [`Serving`] keeps the links of its first client and gives them the rings of the next one,
//! without ever blocking: the links ask now and then, while they have no client.
//!
//! Invariants
//! - One client at a time: the next one waits in the socket's queue until the session is over.
//! - A client that takes too long over its handshake is sent away, so that the next gets its turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::handshake::Terms;
use super::session::{self, Joined, Joining, Lanes, NoSession, Session};
use super::{Memif, MemifRole, MemifSettings, NOTICE_AFTER, links, socket, unavailable};
use crate::held_signals::HeldSignals;
use crate::limits::MEMIF_CLIENTS_PER_LOOK;
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
        let (session, lanes) = self.next_client(Instant::now() + timeout, None)?;
        links(MemifRole::Server, &self.settings, &session, lanes)
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
            match session::serve(channel, &terms, deadline, held) {
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
    /// Waits for the first client, at most `timeout`; the links that it gets go on with the next
    /// one when it leaves, and so on, as long as the next one wants as many queues. Calls `waits`,
    /// with the reason, if there is none after a second.
    ///
    /// # Errors
    /// As [`Listener::accept`]; a held signal.
    pub(super) fn serve(
        mut self,
        timeout: Duration,
        held: &HeldSignals,
        waits: &mut dyn FnMut(&str),
    ) -> Result<Vec<Memif>, LinkError> {
        let start = Instant::now();
        let first = self.next_client(start + timeout.min(NOTICE_AFTER), Some(held));
        let (session, lanes) = match first {
            Err(LinkError::Unavailable { why, .. }) if timeout > NOTICE_AFTER => {
                waits(&why);
                self.next_client(start + timeout, Some(held))?
            }
            other => other?,
        };
        let queue_count = lanes.len();
        let mut links = links(MemifRole::Server, &self.settings, &session, lanes)?;
        let serving = Arc::new(Serving::new(self, session, queue_count)?);
        for (queue, link) in links.iter_mut().enumerate() {
            link.goes_on(ListenerPlace { serving: Arc::clone(&serving), queue, sessions: 1 });
        }
        Ok(links)
    }

    fn note_refusal(&mut self, why: NoSession) {
        self.refused_count += 1;
        self.last_refusal = Some(match why {
            NoSession::Refused(reason) | NoSession::SentAway(reason) => reason,
            NoSession::Io(what, error) => format!("{what}: {error}"),
        });
    }
}

/// A link's place in a server that goes on.
pub(super) struct ListenerPlace {
    serving: Arc<Serving>,
    /// Which queue it is.
    queue: usize,
    /// Sessions that there were when it got its rings.
    sessions: u64,
}

impl ListenerPlace {
    /// The rings of the next client, if there is one; asks the socket. Does not block.
    pub(super) fn next_lanes(&mut self, now: Instant) -> Option<(Arc<Session>, Lanes)> {
        let mut door = self.serving.door();
        if door.sessions == self.sessions {
            door.look(now);
        }
        if door.sessions == self.sessions {
            return None;
        }
        self.sessions = door.sessions;
        let lanes = door.lanes.get_mut(self.queue)?.take()?;
        Some((Arc::clone(&door.session), lanes))
    }

    /// Becomes readable when [`ListenerPlace::next_lanes`] has something to do; only of meaning
    /// while the link has no client.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.serving.epoll.as_fd()
    }

    /// When the client on its way in is to be sent away.
    pub(super) fn due(&self) -> Option<Instant> {
        self.serving.door().joining.as_ref().map(Joining::due)
    }
}

/// What the links of a server that goes on have in common.
struct Serving {
    door: Mutex<ClientDoor>,
    /// Readable when a client wants to be let in, or the one on its way in has said something.
    epoll: OwnedFd,
}

impl Serving {
    fn new(
        listener: Listener,
        session: Arc<Session>,
        queue_count: usize,
    ) -> Result<Self, LinkError> {
        let io =
            |what| move |errno: rustix::io::Errno| LinkError::Io { what, source: errno.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create"))?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &listener.listener, data, epoll::EventFlags::IN)
            .map_err(io("epoll_ctl"))?;
        let watched = rustix::io::fcntl_dupfd_cloexec(&epoll, 0).map_err(io("fcntl"))?;
        // Every link has to get its rings, or it would have no client to go on with.
        let terms = Terms {
            queue_count: queue_count as u16,
            all_queues: true,
            ..listener.settings.terms()
        };
        let lanes = Vec::new();
        let door =
            ClientDoor { listener, terms, joining: None, session, sessions: 1, lanes, watched };
        Ok(Self { door: Mutex::new(door), epoll })
    }

    /// A poisoned door is as good: each step leaves it whole.
    fn door(&self) -> MutexGuard<'_, ClientDoor> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the next client comes in.
struct ClientDoor {
    listener: Listener,
    terms: Terms,
    joining: Option<Joining>,
    /// The latest.
    session: Arc<Session>,
    /// How many there were.
    sessions: u64,
    /// The rings of the latest session that their links have not fetched, by queue.
    lanes: Vec<Option<Lanes>>,
    /// `Serving::epoll` by another number.
    watched: OwnedFd,
}

impl ClientDoor {
    /// Goes on with the client on its way in, or lets the next one in.
    fn look(&mut self, now: Instant) {
        if !self.session.is_gone() {
            return;
        }
        for _ in 0..MEMIF_CLIENTS_PER_LOOK {
            let Some(mut joining) = self.joining.take().or_else(|| self.next_client(now)) else {
                return;
            };
            match joining.go_on(now) {
                Ok(Some(lanes)) => {
                    // Nothing is to be woken for it any more.
                    let _ = epoll::delete(&self.watched, joining.channel());
                    self.session = joining.into_session();
                    self.sessions += 1;
                    self.lanes = lanes.into_iter().map(Some).collect();
                    return;
                }
                Ok(None) => {
                    self.joining = Some(joining);
                    return;
                }
                // With its channel it leaves the epoll set, too.
                Err(why) => self.listener.note_refusal(why),
            }
        }
    }

    fn next_client(&mut self, now: Instant) -> Option<Joining> {
        let begun = match socket::accept(&self.listener.listener, Some(now), None) {
            Ok(None) => return None,
            Ok(Some(channel)) => Joining::begin(channel, &self.terms, now),
            Err(error) => Err(NoSession::Io("accepting a memif client", error)),
        };
        let watched = begun.and_then(|joining| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&self.watched, joining.channel(), data, epoll::EventFlags::IN)
                .map_err(|errno| NoSession::Io("epoll_ctl", errno.into()))?;
            Ok(joining)
        });
        watched.map_err(|why| self.listener.note_refusal(why)).ok()
    }
}

#[cfg(test)]
mod tests;
