//! The server's end: polls a server on a thread of its own, for one application.
//!
//! Everything that the application writes is checked here: a record that no correct application
//! writes ends the session.
//!
//! Invariants
//! - Before the thread sleeps, all events that there was room for are published, and the
//!   application was woken if it sleeps.
//! - A call is answered after the ops before it and their events. A poll answers one call at most:
//!   an application that calls in a loop (FIONREAD, TCP_INFO) would otherwise keep the stack from
//!   running.

mod calls;
mod events;
mod ops;

use megapipe_link::LinkError;
use megapipe_shm::record::Record;
use megapipe_shm::{BufferArea, Consumer, DoorbellError, Producer};
use megapipe_stack::Instant;
use rustix::io::Errno;

use super::SharedMemory;
use super::deferred::Deferred;
use crate::adaptive_spin::Next;
use crate::clock::Clock;
use crate::server::Server;
use crate::sleep::{SleepingEnd, wait_readable};

/// The server's ends of what it shares with its application.
pub(crate) struct RingEnds {
    pub(super) ops: Consumer<Record>,
    pub(super) events: Producer<Record>,
    pub(super) sleep: SleepingEnd,
    /// The call buffer.
    pub(super) calls: BufferArea,
}

/// A server, and its ends.
pub(super) struct RemoteServer {
    server: Server<SharedMemory>,
    ends: RingEnds,
    clock: Clock,
    /// Sends that the stack had no room for.
    deferred: Deferred,
    /// Events that the application was not woken for yet.
    unsignalled: u32,
    /// Bytes that the application has put before those of a connection that was taken out.
    prepended_bytes: usize,
    /// The application is gone.
    is_over: bool,
}

impl RemoteServer {
    pub(super) fn new(server: Server<SharedMemory>, ends: RingEnds) -> Self {
        let (clock, deferred) = (Clock::new(), Deferred::default());
        Self { server, ends, clock, deferred, unsignalled: 0, prepended_bytes: 0, is_over: false }
    }

    /// Polls until the application is gone, or the link.
    ///
    /// # Errors
    /// The link's error, or that the application broke the protocol.
    pub(super) fn run(mut self) -> Result<(), LinkError> {
        loop {
            let now = self.clock.now();
            let ops = self.take_ops(now)?;
            let poll = self.server.poll(now)?;
            let published = self.publish_events(now);
            if self.is_over || self.ends.sleep.has_other_ended() {
                return self.shut_down();
            }
            let worked = ops > 0 || published > 0 || poll.worked();
            self.wake()?;
            if self.server.after_poll(worked, now) == Next::Sleep {
                self.sleep(now)?;
            }
        }
    }

    fn has_ops(&mut self) -> Result<bool, LinkError> {
        self.ends.ops.peek(1).map(|count| count > 0).map_err(|_| gone())
    }

    /// Wakes the application, if it sleeps and there is something for it.
    fn wake(&mut self) -> Result<(), LinkError> {
        if self.unsignalled > 0 {
            self.ends.events.commit();
            self.unsignalled = 0;
            let woken = self.ends.sleep.wake();
            self.unless_gone(woken)?;
        }
        Ok(())
    }

    /// A doorbell without another end means that the application is gone.
    fn unless_gone(&mut self, result: Result<(), DoorbellError>) -> Result<(), LinkError> {
        match result {
            Err(DoorbellError::Gone) => self.is_over = true,
            other => other.map_err(|_| gone())?,
        }
        Ok(())
    }

    /// Sleeps until there is an op, a frame, or a timer.
    fn sleep(&mut self, now: Instant) -> Result<(), LinkError> {
        self.wake()?;
        self.ends.sleep.arm();
        let may_sleep = !self.has_ops()? && !self.is_over && !self.ends.sleep.has_other_ended();
        if may_sleep && self.server.arm(now)? {
            self.wait(now)?;
        }
        self.ends.sleep.disarm();
        let cleared = self.ends.sleep.clear();
        self.unless_gone(cleared)
    }

    fn wait(&self, now: Instant) -> Result<(), LinkError> {
        let (doorbell, link) = (self.ends.sleep.fd(), self.server.wait_fd());
        let fds = [Some(doorbell), Some(link), self.server.host_fd()];
        match wait_readable(fds, self.server.patience(now)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(LinkError::Io { what: "poll", source: errno.into() }),
        }
    }

    /// The application is gone: does its last ops, and sends FINs and RSTs.
    fn shut_down(&mut self) -> Result<(), LinkError> {
        while self.take_ops(self.clock.now())? > 0 {}
        self.server.shut_down(&self.clock)
    }
}

/// Also after a panic: nothing else would wake an application that sleeps.
impl Drop for RemoteServer {
    fn drop(&mut self) {
        self.ends.sleep.end();
    }
}

/// The application is gone, or as good as gone: it broke the protocol.
fn gone() -> LinkError {
    LinkError::Gone { driver: "the application" }
}
