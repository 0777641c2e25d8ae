//! A server whose turns are taken on a thread beside its application's, on the same core.
//!
//! ```text
//!   application's thread                          server's thread
//!   Beside                                        Turns
//!     a call, an event  -- inside for a moment -->
//!                            the server
//!                       <-- inside for a turn ---   frames in, frames out, timers
//!     sleeps on a bell  <-- rung once a batch ---   and gives the core away
//!     a turn, if it has
//!     nothing to do     -- inside meanwhile ----->  is ready to run
//! ```
//!
//! Read first: mTCP §3.2 (a thread for the stack beside the application's, one wake-up for a
//! batch); `megapipe_shm`'s `biased.rs` for how both come to one server; decisions 0021 and 0032.
//!
//! The two threads share a core, so at any moment one of them runs, and the server can be one value
//! that both use: no message is copied or described on its way between them. What the application
//! asks for is gathered in the stack's own lists, and done in the server's next turn; what happened
//! waits in the stack until the application takes it.
//!
//! Invariants
//! - The link is the server thread's while that sleeps, or is about to. Else whoever has the lock
//!   takes frames in and out and runs timers.
//! - Before the server's thread sleeps, the stack has nothing to send, and the application was
//!   woken if there is something for it.
//! - Before the application sleeps, the stack had nothing to tell.

mod turns;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_shm::{Owned, Owner, Region, Ringer, Sleeper, biased, doorbell};
use megapipe_stack::{Event, Instant, Memory};

use crate::apart::{ApartError, SessionCounters};
use crate::config::ServerConfig;
use crate::connection_manager::Offer;
use crate::error::ServerError;
use crate::link_server::Frames;
use crate::server::{Server, Turn};
use crate::server_thread;
use crate::switch::Attachment;

/// Bytes between the flags of two bells: a pair of cache lines.
const BELL_BYTES: usize = 128;

/// The server, and what goes with it from thread to thread.
pub struct Shared<M> {
    /// The server.
    pub server: Server<M>,
    /// The time of its last turn. No call is earlier.
    turned_at: Instant,
}

impl<M> Shared<M> {
    /// The time of a call: the caller's, or the last turn's if that is later.
    #[inline]
    pub fn not_before(&self, now: Instant) -> Instant {
        now.max(self.turned_at)
    }
}

impl<M: Memory> Shared<M> {
    /// As [`Server::turn`], and not before the last one.
    fn turn(&mut self, now: Instant) -> Result<Turn, LinkError> {
        let now = self.not_before(now);
        self.turned_at = now;
        self.server.turn(now)
    }

    fn has_event(&mut self) -> bool {
        let (stack, _) = self.server.parts();
        stack.has_event()
    }
}

/// What one thread tells the other without the server.
#[derive(Debug, Default)]
struct Signals {
    /// The application is gone.
    is_over: AtomicBool,
    /// Its own descriptor was readable.
    is_readable: AtomicBool,
    /// The server's thread takes no more turns, and is about to end.
    has_ended: AtomicBool,
}

/// How [`Beside::sleep`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slept {
    /// Not begun: the server sleeps too, and watches nobody's descriptor. Poll both.
    Polls,
    /// There is something, or was; the application's own descriptor was readable, or not.
    Woken {
        /// It was.
        is_readable: bool,
    },
    /// A signal came.
    Interrupted,
}

/// An application's end of a server beside it. For one thread.
pub struct Beside<M> {
    shared: Owner<Shared<M>>,
    sleeper: Sleeper,
    ringer: Ringer,
    signals: Arc<Signals>,
    thread: Option<JoinHandle<Result<(), LinkError>>>,
    caps: Caps,
    attachment: Option<Attachment>,
    is_armed: bool,
    /// Something was asked for since the bell was rung last.
    has_asked: bool,
    counters: SessionCounters,
}

/// Starts a server on a thread of its own, pinned to `core` (`None`: wherever the kernel likes),
/// and gives its application's end. `watched` is a descriptor of the application's own: while it
/// sleeps ([`Beside::sleep`]), the server's thread looks whether it is readable.
///
/// # Errors
/// [`ApartError`]; nothing is left running.
pub fn start<M: Memory + Send + 'static>(
    frames: Frames,
    config: &ServerConfig,
    memory: M,
    core: Option<usize>,
    watched: OwnedFd,
) -> Result<Beside<M>, ApartError> {
    if config.clock.is_by_hand() {
        let why = "a server on a thread of its own has the machine's".to_owned();
        return Err(ServerError::Setting { setting: "clock", why }.into());
    }
    let region = Arc::new(Region::heap(2 * BELL_BYTES)?);
    let (server_sleeper, ringer) = doorbell(&region, 0)?;
    let (sleeper, application_ringer) = doorbell(&region, BELL_BYTES)?;
    let now = config.clock.now();
    let server = Server::new(frames, config, memory, now)?;
    let (caps, attachment) = (server.caps().clone(), server.attachment());
    let waits = turns::Wakers::of(&server, (server_sleeper, application_ringer), watched)?;
    let (owner, revoker) = biased(Shared { server, turned_at: now });
    let signals = Arc::new(Signals::default());
    let turns = turns::Turns::new(revoker, waits, Arc::clone(&signals), config.clock.clone());
    let thread = server_thread::spawn(move || turns.run(), core)?;
    Ok(Beside {
        shared: owner,
        sleeper,
        ringer,
        signals,
        thread: Some(thread),
        caps,
        attachment,
        is_armed: false,
        has_asked: false,
        counters: SessionCounters::default(),
    })
}

impl<M: Memory> Beside<M> {
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
    pub const fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// The server, to ask something of. What follows from it is done in the server's next turn, at
    /// the latest after [`Beside::flush`].
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

    /// Takes a turn in place of the server's thread, for an application that has nothing else to
    /// do: two switches between the threads are spared. Nothing is done, and a default turn comes
    /// back, where the server's thread sleeps, or where the application has not taken yet what
    /// happened. Does not block but for the lock.
    ///
    /// # Errors
    /// What the link says.
    pub fn turn(&mut self, now: Instant) -> Result<Turn, LinkError> {
        if !self.lives() {
            return Ok(Turn::default());
        }
        let mut shared = self.shared.enter();
        // Asked inside: a server's thread that wants to sleep says so before it comes here to arm
        // the link. So either it has not armed yet, or its wish is seen and the link left as it is,
        // or the wish was answered by a ring, and the thread comes back to arm again.
        if self.ringer.is_awaited() || shared.has_event() {
            return Ok(Turn::default());
        }
        shared.turn(now)
    }

    /// The server's thread sleeps, or is about to; its turns are not to be taken. A hint: it may
    /// have changed by now.
    #[must_use]
    pub fn is_server_asleep(&self) -> bool {
        self.ringer.is_awaited()
    }

    /// Sees to it that the server's thread does what was asked for.
    #[inline]
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.has_asked) {
            // A bell that cannot be rung belongs to a thread that has ended, as `check` finds out.
            let _ = self.ringer.ring();
        }
    }

    /// The server still runs.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub fn check(&mut self) -> Result<(), LinkError> {
        // The thread itself is still there when it rings for the last time: whoever went by that
        // would sleep again.
        if self.lives() { Ok(()) } else { server_thread::join(&mut self.thread) }
    }

    /// Sleeps until there is something, the application's own descriptor is readable, or `timeout`
    /// has passed (`None`: for ever).
    #[must_use]
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Slept {
        self.flush();
        self.sleeper.arm_at_flag();
        // After the arming: of two that go to sleep, one sees the other.
        let slept = if self.ringer.is_awaited() {
            Slept::Polls
        } else if self.has_event() || !self.lives() {
            Slept::Woken { is_readable: false }
        } else {
            self.shared.leave();
            match self.sleeper.sleep_at_flag(timeout) {
                Ok(()) => Slept::Woken { is_readable: false },
                Err(_) => Slept::Interrupted,
            }
        };
        self.sleeper.disarm();
        let Slept::Woken { .. } = slept else { return slept };
        self.counters.wakeups += u64::from(self.has_event());
        // Relaxed, both: it is a hint, and the futex orders what matters.
        let is_readable = self.signals.is_readable.load(Ordering::Relaxed);
        if is_readable {
            self.signals.is_readable.store(false, Ordering::Relaxed);
        }
        Slept::Woken { is_readable }
    }

    #[inline]
    fn lives(&self) -> bool {
        !self.signals.has_ended.load(Ordering::Acquire)
    }

    /// Prepares for sleep on [`Beside::wait_fd`]. `false`: there is something already.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.flush();
        self.sleeper.arm();
        self.is_armed = true;
        if self.has_event() || !self.lives() {
            self.wake_up();
            return false;
        }
        self.shared.leave();
        true
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.sleeper.fd()
    }

    /// Is awake: nobody has to ring.
    pub fn wake_up(&mut self) {
        if !std::mem::take(&mut self.is_armed) {
            return;
        }
        self.sleeper.disarm();
        // Rings that came are of no more use; a bell that is broken is found by `check`.
        let _ = self.sleeper.clear();
        self.counters.wakeups += u64::from(self.has_event());
    }

    fn has_event(&mut self) -> bool {
        self.shared.enter().has_event()
    }

    /// This is the child after a fork: the parent's thread and its server are not touched.
    pub fn abandon(&mut self) {
        // Neither to be joined nor to be let go of: it is the parent's.
        std::mem::forget(self.thread.take());
    }
}

impl<M> Drop for Beside<M> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.leave();
        self.signals.is_over.store(true, Ordering::Release);
        let _ = self.ringer.ring();
        // A panic of the server's was printed; there is nobody left to tell.
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests;
