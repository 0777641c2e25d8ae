//! Links without a peer: a server's before its first client and between two, a client's before its
//! server. Until one comes nothing is received and what is sent is lost, as without a carrier.
//!
//! Read first: `session.rs` for what is agreed with a peer.
//!
//! The links of a socket share a [`PeerDoor`]. Each asks it now and then while it has no peer, and
//! the first one to ask takes the handshake further. No call blocks.
//!
//! Invariants
//! - One peer at a time: a server's next client waits in the socket's queue until the session is
//!   over.
//! - A peer that takes too long over its handshake is left, so that the next gets its turn.
//! - A client that finds no server tries again later and later, [`RETRY_MAX`] apart in the end: a
//!   link without a peer costs nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::handshake::Terms;
use super::listener::Listener;
use super::session::{Joined, Joining, Lanes, NoSession, Session, WantedMemory};
use super::settings::MemifSettings;
use super::{NO_DATA, socket, watch};
use crate::LinkError;
use crate::limits::{MEMIF_PEERS_PER_LOOK, MEMIF_RETRY_MAX_MS, MEMIF_RETRY_MIN_MS};

/// Time between a client's first two attempts to connect.
const RETRY_MIN: Duration = Duration::from_millis(MEMIF_RETRY_MIN_MS);
/// The longest time between two attempts.
const RETRY_MAX: Duration = Duration::from_millis(MEMIF_RETRY_MAX_MS);

/// A link's place among those that share a socket.
pub(super) struct PeerPlace {
    door: Arc<PeerDoor>,
    /// Which queue it is.
    queue: usize,
    /// Sessions that there were when it got its rings.
    sessions: u64,
}

impl PeerPlace {
    /// The places of a server's links.
    pub(super) fn of_server(
        listener: Listener,
        settings: &MemifSettings,
        queue_count: usize,
    ) -> Result<Vec<Self>, LinkError> {
        let epoll = new_epoll()?;
        watch(&epoll, listener.wait_fd(), NO_DATA)?;
        // Every link has to get its rings, or it would have no client to go on with.
        let terms = Terms { queue_count: queue_count as u16, all_queues: true, ..settings.terms() };
        Self::all(epoll, DoorSide::Server { listener, terms }, queue_count)
    }

    /// The places of a client's links.
    pub(super) fn of_client(
        settings: &MemifSettings,
        now: Instant,
    ) -> Result<Vec<Self>, LinkError> {
        let mut wanted = settings.wanted();
        wanted.terms.all_queues = true;
        let (socket, pause) = (settings.socket.clone(), RETRY_MIN);
        let side = DoorSide::Client { socket, wanted, next_attempt: now, pause };
        Self::all(new_epoll()?, side, settings.queue_count.into())
    }

    fn all(epoll: OwnedFd, side: DoorSide, queue_count: usize) -> Result<Vec<Self>, LinkError> {
        let watched = rustix::io::fcntl_dupfd_cloexec(&epoll, 0).map_err(io("fcntl"))?;
        let state = DoorState {
            side,
            joining: None,
            session: None,
            sessions: 0,
            lanes: Vec::new(),
            watched,
        };
        let door = Arc::new(PeerDoor { state: Mutex::new(state), epoll });
        let place = |queue| Self { door: Arc::clone(&door), queue, sessions: 0 };
        Ok((0..queue_count).map(place).collect())
    }

    /// Notes a session that was agreed before the door opened, whose rings its links have.
    pub(super) fn begin_with(places: &mut [Self], session: &Arc<Session>) {
        for place in &mut *places {
            place.sessions = 1;
        }
        if let Some(place) = places.first() {
            let mut state = place.door.state();
            (state.session, state.sessions) = (Some(Arc::clone(session)), 1);
        }
    }

    /// Waits for a peer that is there already, at most `timeout`. Returns its session and rings.
    pub(super) fn await_present(places: &mut [Self], timeout: Duration) -> Option<Joined> {
        let deadline = Instant::now() + timeout;
        let place = places.first()?;
        loop {
            let now = Instant::now();
            let mut state = place.door.state();
            state.look(now);
            if state.session.is_some() || state.joining.is_none() || now >= deadline {
                break;
            }
            drop(state);
            // What fails here is asked again by the links.
            let _ = socket::readable(place.wait_fd(), Some(deadline), None);
        }
        let lanes = places.iter_mut().map(|place| place.next_lanes(Instant::now()));
        let lanes: Option<Vec<_>> = lanes.collect();
        let (mut sessions, lanes): (Vec<_>, Vec<_>) = lanes?.into_iter().unzip();
        Some((sessions.pop()?, lanes))
    }

    /// Whether it is a server's, which goes on with its next client.
    pub(super) fn serves(&self) -> bool {
        matches!(self.door.state().side, DoorSide::Server { .. })
    }

    /// The rings of the next peer, if there is one; asks the socket. Does not block.
    pub(super) fn next_lanes(&mut self, now: Instant) -> Option<(Arc<Session>, Lanes)> {
        let mut state = self.door.state();
        if state.sessions == self.sessions {
            state.look(now);
        }
        if state.sessions == self.sessions {
            return None;
        }
        self.sessions = state.sessions;
        let lanes = state.lanes.get_mut(self.queue)?.take()?;
        Some((Arc::clone(state.session.as_ref()?), lanes))
    }

    /// Becomes readable when [`PeerPlace::next_lanes`] has something to do; only of meaning while
    /// the link has no peer.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.door.epoll.as_fd()
    }

    /// When [`PeerPlace::next_lanes`] has something to do even if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let state = self.door.state();
        match (&state.joining, &state.side) {
            (Some(joining), _) => Some(joining.due()),
            (None, DoorSide::Client { next_attempt, .. }) => Some(*next_attempt),
            (None, DoorSide::Server { .. }) => None,
        }
    }
}

fn io(what: &'static str) -> impl Fn(rustix::io::Errno) -> LinkError {
    move |errno| LinkError::Io { what, source: errno.into() }
}

fn new_epoll() -> Result<OwnedFd, LinkError> {
    epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create"))
}

/// What the links of a socket have in common.
struct PeerDoor {
    state: Mutex<DoorState>,
    /// Readable when a client wants to be let in, or the peer on its way in has said something.
    epoll: OwnedFd,
}

impl PeerDoor {
    /// A poisoned door is as good: each step leaves it whole.
    fn state(&self) -> MutexGuard<'_, DoorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the next peer comes in.
struct DoorState {
    side: DoorSide,
    joining: Option<Joining>,
    /// The latest.
    session: Option<Arc<Session>>,
    /// How many there were.
    sessions: u64,
    /// The rings of the latest session that their links have not fetched, by queue.
    lanes: Vec<Option<Lanes>>,
    /// `PeerDoor::epoll` by another number.
    watched: OwnedFd,
}

/// Where peers come from.
enum DoorSide {
    Server {
        listener: Listener,
        terms: Terms,
    },
    Client {
        socket: PathBuf,
        wanted: WantedMemory,
        next_attempt: Instant,
        /// Time from that attempt to the one after it.
        pause: Duration,
    },
}

impl DoorState {
    /// Goes on with the peer on its way in, or lets the next one in.
    fn look(&mut self, now: Instant) {
        if self.session.as_ref().is_some_and(|session| !session.is_gone()) {
            return;
        }
        for _ in 0..MEMIF_PEERS_PER_LOOK {
            let Some(mut joining) = self.joining.take().or_else(|| self.next_peer(now)) else {
                return;
            };
            match joining.go_on(now) {
                Ok(Some(lanes)) => {
                    // Nothing is to be woken for it any more.
                    let _ = epoll::delete(&self.watched, joining.channel());
                    self.session = Some(joining.into_session());
                    self.sessions += 1;
                    self.lanes = lanes.into_iter().map(Some).collect();
                    return;
                }
                Ok(None) => {
                    self.joining = Some(joining);
                    return;
                }
                // With its channel it leaves the epoll set, too.
                Err(why) => self.side.note_refusal(why),
            }
        }
    }

    fn next_peer(&mut self, now: Instant) -> Option<Joining> {
        let begun = self.side.next_peer(now).transpose()?;
        let watched = begun.and_then(|joining| {
            epoll::add(&self.watched, joining.channel(), NO_DATA, epoll::EventFlags::IN)
                .map_err(|errno| NoSession::Io("epoll_ctl", errno.into()))?;
            Ok(joining)
        });
        watched.map_err(|why| self.side.note_refusal(why)).ok()
    }
}

impl DoorSide {
    fn next_peer(&mut self, now: Instant) -> Result<Option<Joining>, NoSession> {
        match self {
            Self::Server { listener, terms } => match listener.waiting_client(now)? {
                Some(channel) => Joining::serve(channel, terms, now).map(Some),
                None => Ok(None),
            },
            Self::Client { socket, wanted, next_attempt, pause } => {
                if now < *next_attempt {
                    return Ok(None);
                }
                (*next_attempt, *pause) = (now + *pause, (*pause * 2).min(RETRY_MAX));
                let channel = socket::connect(socket)
                    .map_err(|error| NoSession::Io("connecting to a memif", error))?;
                Ok(Some(Joining::join(channel, wanted.clone(), now)))
            }
        }
    }

    /// A client asks again whatever the reason was.
    fn note_refusal(&mut self, why: NoSession) {
        if let Self::Server { listener, .. } = self {
            listener.note_refusal(why);
        }
    }
}

#[cfg(test)]
mod tests;
