//! A server that a second thread on the core of its application polls.
//!
//! ```text
//!   application's thread                          server's thread
//!   SharedThread                                        Poller
//!     a call, an event  -- inside for a moment -->
//!                            the server
//!                       <-- inside for a poll ---   frames in, frames out, timers
//!     sleeps on a bell  <-- rung once a batch ---   and gives the core away
//!     a poll, if it has
//!     nothing to do     -- inside meanwhile ----->  is ready to run
//! ```
//!
//! Read first: mTCP §3.2 (a thread for the stack beside the application's, one wake-up for a
//! batch); `megapipe_shm`'s `biased_cell.rs` for how both come to one server; decisions 0021 and
//! 0032.
//!
//! The two threads share a core, so at any moment one of them runs, and the server can be one value
//! that both use: no message is copied or described on its way between them. What the application
//! asks for is gathered in the stack's own lists, and done in the server's next poll; what happened
//! waits in the stack until the application takes it.
//!
//! Invariants
//! - The link is the server thread's while that sleeps, or is about to. Else the lock's holder
//!   takes frames in and out and runs timers.
//! - Before the server's thread sleeps, the stack has nothing to send, and the application was
//!   woken if there is something for it.
//! - Before the application sleeps, the stack had nothing to tell.

mod poller;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_shm::limits::BELL_BYTES;
use megapipe_shm::{BiasOwner, Owned, Region, biased};
use megapipe_stack::{Event, Instant, Memory};

use crate::config::ServerConfig;
use crate::connection_manager::Offer;
use crate::error::{RemoteError, ServerError};
use crate::link_server::Frames;
use crate::remote::RemoteCounters;
use crate::rx_mux::Attachment;
use crate::server::{PollCounts, Server};
use crate::server_thread;
use crate::sleep::{ServerLocation, ServerPeer, SleepingEnd};

/// The server, and what goes with it from thread to thread.
pub struct Shared<M> {
    /// The server.
    pub server: Server<M>,
    /// The time of its last poll. No call is earlier.
    polled_at: Instant,
}

impl<M> Shared<M> {
    /// The time of a call: the caller's, or the last poll's if that is later.
    #[inline]
    pub fn not_before(&self, now: Instant) -> Instant {
        now.max(self.polled_at)
    }
}

impl<M: Memory> Shared<M> {
    /// As [`Server::poll`], and not before the last one.
    fn poll(&mut self, now: Instant) -> Result<PollCounts, LinkError> {
        let now = self.not_before(now);
        self.polled_at = now;
        self.server.poll(now)
    }

    fn has_event(&mut self) -> bool {
        let (stack, _) = self.server.parts();
        stack.has_event()
    }
}

/// How [`SharedThread::sleep`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slept {
    /// Not begun: the server sleeps too, and watches no descriptor. Poll both.
    Polls,
    /// There is something, or was; the application's own descriptor was readable, or not.
    Woken {
        /// It was.
        is_readable: bool,
    },
    /// A signal came.
    Interrupted,
}

/// An application's end of a server that two threads use. For one thread.
pub struct SharedThread<M> {
    /// First, so that the thread has ended before its server is dropped.
    thread: ServerPeer,
    shared: BiasOwner<Shared<M>>,
    /// The application's own descriptor was readable.
    is_readable: Arc<AtomicBool>,
    caps: Caps,
    attachment: Option<Attachment>,
    /// Something was asked for since the server was woken last.
    has_asked: bool,
    counters: RemoteCounters,
}

/// Starts a server on a thread of its own, pinned to `core` (`None`: wherever the kernel likes),
/// and gives its application's end. `watched` is a descriptor of the application's own: while it
/// sleeps ([`SharedThread::sleep`]), the server's thread looks whether it is readable.
///
/// # Errors
/// [`RemoteError`]; nothing is left running.
pub fn start<M: Memory + Send + 'static>(
    frames: Frames,
    config: &ServerConfig,
    memory: M,
    core: Option<usize>,
    watched: OwnedFd,
) -> Result<SharedThread<M>, RemoteError> {
    if config.clock.is_by_hand() {
        let why = "a server on a thread of its own has the machine's".to_owned();
        return Err(ServerError::Setting { setting: "clock", why }.into());
    }
    let mut parts = Region::heap(2 * BELL_BYTES)?.into_parts();
    let (end, server_end) = SleepingEnd::pair(&mut parts)?;
    let now = config.clock.now();
    let server = Server::new(frames, config, memory, now)?;
    let (caps, attachment) = (server.caps().clone(), server.attachment());
    let waits = poller::Wakers::of(&server, server_end, watched)?;
    let (owner, revoker) = biased(Shared { server, polled_at: now });
    let is_readable = Arc::new(AtomicBool::new(false));
    let poller =
        poller::Poller::new(revoker, waits, Arc::clone(&is_readable), config.clock.clone());
    let thread = server_thread::spawn(move || poller.run(), core)?;
    Ok(SharedThread {
        thread: ServerPeer::new(end, ServerLocation::Thread(thread)),
        shared: owner,
        is_readable,
        caps,
        attachment,
        has_asked: false,
        counters: RemoteCounters::default(),
    })
}

impl<M: Memory> SharedThread<M> {
    /// What the link can do.
    #[must_use]
    pub const fn caps(&self) -> &Caps {
        &self.caps
    }

    /// The shard's place among others, where it has some.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        self.attachment.clone()
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> RemoteCounters {
        self.counters
    }

    /// The server, to ask something of. What follows from it is done in the server's next poll, at
    /// the latest after [`SharedThread::flush`].
    #[inline]
    pub fn enter(&mut self) -> Owned<'_, Shared<M>> {
        self.has_asked = true;
        self.shared.enter()
    }

    /// The same, for what the server need not know of at once.
    #[inline]
    pub fn look(&mut self) -> Owned<'_, Shared<M>> {
        self.shared.enter()
    }

    /// What happened next.
    #[inline]
    pub fn event(&mut self) -> Option<(Event, Option<Offer>)> {
        let event = self.shared.enter().server.event()?;
        self.counters.events += 1;
        // What was taken may have opened a window, which the peer is to be told.
        self.has_asked = true;
        Some(event)
    }

    /// Takes a poll in place of the server's thread, for an application that has nothing else to
    /// do: two switches between the threads are spared. Nothing is done, and a default poll comes
    /// back, where the server's thread sleeps, or where the application has not taken yet what
    /// happened. Does not block but for the lock.
    ///
    /// # Errors
    /// What the link says.
    pub fn poll(&mut self, now: Instant) -> Result<PollCounts, LinkError> {
        if !self.thread.is_running() {
            return Ok(PollCounts::default());
        }
        let mut shared = self.shared.enter();
        // Asked inside: a server's thread that wants to sleep says so before it comes here to arm
        // the link. So either it has not armed yet, or its wish is seen and the link left as it is,
        // or the wish was answered by a ring, and the thread comes back to arm again.
        if self.thread.sleeping_end().is_other_asleep() || shared.has_event() {
            return Ok(PollCounts::default());
        }
        shared.poll(now)
    }

    /// The server's thread sleeps, or is about to; its polls are not to be taken. A hint: it may
    /// have changed by now.
    #[must_use]
    pub fn is_server_asleep(&self) -> bool {
        self.thread.sleeping_end().is_other_asleep()
    }

    /// Sees to it that the server's thread does what was asked for.
    #[inline]
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.has_asked) {
            self.thread.wake();
        }
    }

    /// The server still runs.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub fn check(&mut self) -> Result<(), LinkError> {
        self.thread.check()
    }

    /// Sleeps until there is something, the application's own descriptor is readable, or `timeout`
    /// has passed (`None`: for ever).
    #[must_use]
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Slept {
        self.flush();
        self.thread.sleeping_end().arm_at_flag();
        // After the arming: of two that go to sleep, one sees the other.
        let slept = if self.thread.sleeping_end().is_other_asleep() {
            Slept::Polls
        } else if self.has_event() || !self.thread.is_running() {
            Slept::Woken { is_readable: false }
        } else {
            self.shared.leave();
            match self.thread.sleeping_end().wait_at_flag(timeout) {
                Ok(()) => Slept::Woken { is_readable: false },
                Err(_) => Slept::Interrupted,
            }
        };
        self.thread.sleeping_end().disarm();
        let Slept::Woken { .. } = slept else { return slept };
        self.counters.wakeups += u64::from(self.has_event());
        // Relaxed, both: it is a hint, and the futex orders what matters.
        let is_readable = self.is_readable.load(Ordering::Relaxed);
        if is_readable {
            self.is_readable.store(false, Ordering::Relaxed);
        }
        Slept::Woken { is_readable }
    }

    /// Prepares for sleep on [`SharedThread::wait_fd`]. `false`: there is something already.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.flush();
        self.thread.arm();
        if self.has_event() || !self.thread.is_running() {
            self.wake_up();
            return false;
        }
        self.shared.leave();
        true
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.thread.wait_fd()
    }

    /// Marks this end awake: no ring is needed.
    pub fn wake_up(&mut self) {
        if self.thread.disarm() {
            self.counters.wakeups += u64::from(self.has_event());
        }
    }

    /// Whether [`SharedThread::event`] has an event to return.
    #[must_use]
    pub fn has_event(&mut self) -> bool {
        self.shared.enter().has_event()
    }

    /// Marks this as a forked child's copy: the parent's thread and its server are not touched.
    pub fn abandon(&mut self) {
        self.thread.abandon();
    }
}

impl<M> Drop for SharedThread<M> {
    fn drop(&mut self) {
        if !self.thread.is_abandoned() {
            self.shared.leave();
        }
    }
}

#[cfg(test)]
mod tests;
