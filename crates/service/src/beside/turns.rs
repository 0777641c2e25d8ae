//! The server's thread: turns, one wake-up of the application for a batch, and sleep.
//!
//! Nobody polls here, because the other could not run. The application is woken when there is
//! nothing more to take from the link, and then has the core until it has done what there was and
//! its own turns bring nothing more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_shm::{Revoker, Ringer, Sleeper};
use megapipe_stack::{Instant, Memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Shared, Signals};
use crate::apart::ApartError;
use crate::clock::Clock;
use crate::limits::{BURSTS_PER_TURN, FRAMES_PER_WAKE, GOODBYE_TURNS, WATCHED_PERIOD};
use crate::server::Server;

/// What the thread sleeps on, and how it wakes the application.
pub(super) struct Wakers {
    sleeper: Sleeper,
    ringer: Ringer,
    /// Of the link's descriptor, and of the host's where there is one: the server itself is not to
    /// be borrowed in sleep.
    link: OwnedFd,
    host: Option<OwnedFd>,
    /// The application's, which is looked at for it while it sleeps.
    watched: OwnedFd,
}

impl Wakers {
    pub(super) fn of<M: Memory>(
        server: &Server<M>,
        (sleeper, ringer): (Sleeper, Ringer),
        watched: OwnedFd,
    ) -> Result<Self, ApartError> {
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let link = own(server.wait_fd()).map_err(ApartError::Thread)?;
        let host = server.host_fd().map(own).transpose().map_err(ApartError::Thread)?;
        Ok(Self { sleeper, ringer, link, host, watched })
    }
}

/// The loop.
pub(super) struct Turns<M> {
    shared: Revoker<Shared<M>>,
    wakers: Wakers,
    signals: Arc<Signals>,
    clock: Clock,
    /// Frames since the application was woken last.
    frames: usize,
    /// When the application's descriptor was looked at last; `None`: in the sleep that is over.
    looked_at: Option<Instant>,
}

/// What a turn was.
struct Round {
    has_worked: bool,
    /// The application should look.
    has_news: bool,
}

impl<M: Memory> Turns<M> {
    pub(super) fn new(
        shared: Revoker<Shared<M>>,
        wakers: Wakers,
        signals: Arc<Signals>,
        clock: Clock,
    ) -> Self {
        let looked_at = Some(clock.now());
        Self { shared, wakers, signals, clock, frames: 0, looked_at }
    }

    /// Turns until the application is gone, or the link.
    ///
    /// # Errors
    /// What the link said.
    pub(super) fn run(mut self) -> Result<(), LinkError> {
        let mut is_untold = false;
        loop {
            if self.signals.is_over.load(Ordering::Acquire) {
                return self.say_goodbye();
            }
            let now = self.clock.now();
            let round = self.round(now)?;
            if round.has_worked {
                is_untold = true;
                self.watch(now)?;
            }
            let is_full = self.frames >= FRAMES_PER_WAKE;
            if is_untold && round.has_news && (!round.has_worked || is_full) {
                is_untold = false;
                self.hand_over()?;
            } else if !round.has_worked {
                is_untold = false;
                self.sleep(now)?;
            }
        }
    }

    /// A turn, and more frames as long as there are some: an acknowledgment can ride on an answer
    /// if the application is asked before frames leave again.
    fn round(&mut self, now: Instant) -> Result<Round, LinkError> {
        let mut shared = self.shared.enter();
        let mut turn = shared.turn(now)?;
        let now = shared.turned_at;
        for _ in 1..BURSTS_PER_TURN {
            let burst = shared.server.receive(now)?;
            if burst == 0 {
                break;
            }
            turn.frames_in += burst;
        }
        self.frames += turn.frames_in;
        Ok(Round { has_worked: turn.worked(), has_news: shared.has_event() })
    }

    /// Wakes the application, and lets it have the core that both share, until it has nothing more
    /// to do or its slice of time is over. The kernel often lets it run as soon as it is woken, and
    /// mostly it sleeps again when this goes on; else there is sched_yield(2). The server stays
    /// ready to run: nobody has to wake it, frames that come meanwhile interrupt nobody, and an
    /// application that computes for long keeps the frames waiting for a slice at most. Where the
    /// application is not ready to run, this returns at once, and the next turn without work
    /// sleeps.
    fn hand_over(&mut self) -> Result<(), LinkError> {
        self.frames = 0;
        self.wakers.ringer.ring().map_err(|_| gone())?;
        if !self.wakers.ringer.is_awaited() {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Looks at the application's descriptor from time to time, while it sleeps and the server
    /// works. Before a server without work sleeps there is no need: it looks in its sleep.
    fn watch(&mut self, now: Instant) -> Result<(), LinkError> {
        let looked_at = *self.looked_at.get_or_insert(now);
        if now.since(looked_at) < WATCHED_PERIOD {
            return Ok(());
        }
        self.looked_at = Some(now);
        if self.wakers.ringer.is_awaited_at_flag() && self.wakers.is_readable()? {
            self.tell_readable()?;
        }
        Ok(())
    }

    fn tell_readable(&mut self) -> Result<(), LinkError> {
        // Relaxed: it is a hint, and the ring orders what matters.
        self.signals.is_readable.store(true, Ordering::Relaxed);
        self.hand_over()
    }

    /// Sleeps until the application asks for something, a frame comes, or a timer is due.
    fn sleep(&mut self, now: Instant) -> Result<(), LinkError> {
        self.wakers.sleeper.arm();
        let mut shared = self.shared.enter();
        let now = shared.not_before(now);
        let server = &mut shared.server;
        // What the application asked for before the flag was up.
        let transmitted = server.transmit(now)?;
        let is_over = self.signals.is_over.load(Ordering::Acquire);
        let may_sleep = transmitted == 0 && !is_over && server.arm(now)?;
        let patience = server.patience(now);
        let has_news = shared.has_event();
        drop(shared);
        if has_news {
            // Nobody was told of what came of this, nor of what followed from a host's news. An
            // application that is awake looks before it sleeps, and is not rung.
            self.wakers.ringer.ring().map_err(|_| gone())?;
        }
        let mut woken = Woken::default();
        if may_sleep {
            woken = self.wakers.poll(patience)?;
            self.looked_at = None;
        }
        self.wakers.sleeper.disarm();
        if woken.is_rung {
            self.wakers.sleeper.clear().map_err(|_| gone())?;
        }
        if woken.is_readable {
            self.tell_readable()?;
        }
        Ok(())
    }

    /// The application is gone: what it asked for last is done, and FINs and RSTs go out.
    fn say_goodbye(&mut self) -> Result<(), LinkError> {
        for _ in 0..GOODBYE_TURNS {
            let now = self.clock.now();
            let turn = self.shared.enter().server.turn(now)?;
            if !turn.worked() {
                break;
            }
        }
        Ok(())
    }
}

/// Also after a panic: nobody else would wake an application that sleeps.
impl<M> Drop for Turns<M> {
    fn drop(&mut self) {
        self.signals.has_ended.store(true, Ordering::Release);
        // One that goes to sleep at this moment sees the flag, or is rung.
        let _ = self.wakers.ringer.ring();
    }
}

impl Wakers {
    fn poll(&self, patience: Option<Duration>) -> Result<Woken, LinkError> {
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let link = self.link.as_fd();
        // The bell was armed before: an application that goes to sleep now sees that, and looks at
        // its descriptor itself.
        let watches = self.ringer.is_awaited_at_flag();
        let watched = if watches { self.watched.as_fd() } else { link };
        let host = self.host.as_ref().map_or(link, AsFd::as_fd);
        let all = [self.sleeper.fd(), link, watched, host];
        let mut fds = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let count = match (watches, self.host.is_some()) {
            (_, true) => 4,
            (true, false) => 3,
            (false, false) => 2,
        };
        match poll(&mut fds[..count], timeout.as_ref()) {
            Ok(_) => Ok(Woken {
                is_rung: !fds[0].revents().is_empty(),
                is_readable: watches && !fds[2].revents().is_empty(),
            }),
            Err(Errno::INTR) => Ok(Woken::default()),
            Err(errno) => Err(failed(errno)),
        }
    }

    fn is_readable(&self) -> Result<bool, LinkError> {
        let mut fds = [PollFd::new(&self.watched, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }
}

/// What a sleep ended with.
#[derive(Default)]
struct Woken {
    is_rung: bool,
    is_readable: bool,
}

fn failed(errno: Errno) -> LinkError {
    LinkError::Io { what: "poll", source: errno.into() }
}

fn gone() -> LinkError {
    LinkError::Gone { driver: "the application" }
}
