//! The server's thread: polls, one wake-up of the application for a batch, and sleep.
//!
//! No thread spins here, because the other could not run. The application is woken when there is
//! nothing more to take from the link, and then has the core until it has done what there was and
//! its own polls bring nothing more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_shm::Revoker;
use megapipe_stack::{Instant, Memory};
use rustix::io::Errno;

use super::Shared;
use crate::clock::Clock;
use crate::error::RemoteError;
use crate::limits::{BURSTS_PER_POLL, FRAMES_PER_WAKE, WATCHED_PERIOD};
use crate::server::Server;
use crate::sleep::{SleepingEnd, wait_readable};

/// What the thread sleeps on, and how it wakes the application.
pub(super) struct Wakers {
    end: SleepingEnd,
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
        end: SleepingEnd,
        watched: OwnedFd,
    ) -> Result<Self, RemoteError> {
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let link = own(server.wait_fd()).map_err(RemoteError::Thread)?;
        let host = server.host_fd().map(own).transpose().map_err(RemoteError::Thread)?;
        Ok(Self { end, link, host, watched })
    }
}

/// The loop.
pub(super) struct Poller<M> {
    shared: Revoker<Shared<M>>,
    wakers: Wakers,
    /// The application's own descriptor was readable.
    is_readable: Arc<AtomicBool>,
    clock: Clock,
    /// Frames since the application was woken last.
    frames: usize,
    /// When the application's descriptor was looked at last; `None`: in the sleep that is over.
    looked_at: Option<Instant>,
}

/// What a poll was.
struct Round {
    has_worked: bool,
    /// The application should look.
    has_news: bool,
}

impl<M: Memory> Poller<M> {
    pub(super) fn new(
        shared: Revoker<Shared<M>>,
        wakers: Wakers,
        is_readable: Arc<AtomicBool>,
        clock: Clock,
    ) -> Self {
        let looked_at = Some(clock.now());
        Self { shared, wakers, is_readable, clock, frames: 0, looked_at }
    }

    /// Polls until the application is gone, or the link.
    ///
    /// # Errors
    /// What the link said.
    pub(super) fn run(mut self) -> Result<(), LinkError> {
        let mut is_untold = false;
        loop {
            if self.wakers.end.has_other_ended() {
                // What the application asked for last is in the stack.
                return self.shared.enter().server.shut_down(&self.clock);
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

    /// A poll, and more frames as long as there are some: an acknowledgment can ride on an answer
    /// if the application is asked before frames leave again.
    fn round(&mut self, now: Instant) -> Result<Round, LinkError> {
        let mut shared = self.shared.enter();
        let mut poll = shared.poll(now)?;
        let now = shared.polled_at;
        for _ in 1..BURSTS_PER_POLL {
            let burst = shared.server.receive(now)?;
            if burst == 0 {
                break;
            }
            poll.frames_in += burst;
        }
        self.frames += poll.frames_in;
        Ok(Round { has_worked: poll.worked(), has_news: shared.has_event() })
    }

    /// Wakes the application, and lets it have the core that both share, until it has nothing more
    /// to do or its slice of time is over. The kernel often lets it run as soon as it is woken, and
    /// mostly it sleeps again when this goes on; else there is sched_yield(2). The server stays
    /// ready to run: no wake-up is needed, frames that come meanwhile interrupt no thread, and an
    /// application that computes for long keeps the frames waiting for a slice at most. Where the
    /// application is not ready to run, this returns at once, and the next poll without work
    /// sleeps.
    fn hand_over(&mut self) -> Result<(), LinkError> {
        self.frames = 0;
        self.wakers.end.wake().map_err(|_| gone())?;
        if !self.wakers.end.is_other_asleep() {
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
        if self.wakers.end.is_other_asleep_at_flag() && self.wakers.is_readable()? {
            self.tell_readable()?;
        }
        Ok(())
    }

    fn tell_readable(&mut self) -> Result<(), LinkError> {
        // Relaxed: it is a hint, and the ring orders what matters.
        self.is_readable.store(true, Ordering::Relaxed);
        self.hand_over()
    }

    /// Sleeps until the application asks for something, a frame comes, or a timer is due.
    fn sleep(&mut self, now: Instant) -> Result<(), LinkError> {
        self.wakers.end.arm();
        let mut shared = self.shared.enter();
        let now = shared.not_before(now);
        let server = &mut shared.server;
        // What the application asked for before the flag was up.
        let transmitted = server.transmit(now)?;
        let is_over = self.wakers.end.has_other_ended();
        let may_sleep = transmitted == 0 && !is_over && server.arm(now)?;
        let patience = server.patience(now);
        let has_news = shared.has_event();
        drop(shared);
        if has_news {
            // Neither events of this were published, nor those that followed from a host's changes.
            // An application that is awake looks before it sleeps, and is not rung.
            self.wakers.end.wake().map_err(|_| gone())?;
        }
        let mut woken = Woken::default();
        if may_sleep {
            woken = self.wakers.wait(patience)?;
            self.looked_at = None;
        }
        self.wakers.end.disarm();
        if woken.is_rung {
            self.wakers.end.clear().map_err(|_| gone())?;
        }
        if woken.is_readable {
            self.tell_readable()?;
        }
        Ok(())
    }
}

/// Also after a panic: nothing else would wake an application that sleeps.
impl<M> Drop for Poller<M> {
    fn drop(&mut self) {
        self.wakers.end.mark_ended();
    }
}

impl Wakers {
    fn wait(&self, patience: Option<Duration>) -> Result<Woken, LinkError> {
        // The doorbell was armed before: an application that goes to sleep now sees that, and looks
        // at its descriptor itself.
        let watches = self.end.is_other_asleep_at_flag();
        let watched = watches.then(|| self.watched.as_fd());
        let host = self.host.as_ref().map(AsFd::as_fd);
        match wait_readable([Some(self.end.fd()), Some(self.link.as_fd()), watched, host], patience)
        {
            Ok([is_rung, _, is_readable, _]) => Ok(Woken { is_rung, is_readable }),
            Err(Errno::INTR) => Ok(Woken::default()),
            Err(errno) => Err(failed(errno)),
        }
    }

    fn is_readable(&self) -> Result<bool, LinkError> {
        match wait_readable([Some(self.watched.as_fd())], Some(Duration::ZERO)) {
            Ok([is_readable]) => Ok(is_readable),
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
