//! The thread of a connection manager on a core of its own.
//!
//! Read first: `shard/cm_server.rs`.
//!
//! Invariant: before the thread sleeps, all messages that there was room for are published, and the
//! servers that they are for were woken if a message wakes.

use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_stack::Instant;
use rustix::io::Errno;

use super::requests::{RequestQueue, ShardHandle, ShardRequest};
use crate::clock::Clock;
use crate::config::ServerConfig;
use crate::error::{RemoteError, ServerError, ShardAttachError};
use crate::limits::LOOK_POLLS;
use crate::remote::shard::{ManagerServer, ShardReport};
use crate::server_mail::ServerMail;
use crate::server_thread;
use crate::server_wiring::ServerWiring;
use crate::sleep::wait_readable;

/// A manager, and what stops it.
struct ManagerLoop {
    manager: ManagerServer,
    requests: RequestQueue,
    clock: Clock,
    /// Time without messages after which it sleeps.
    spin: Duration,
    is_stopped: bool,
}

/// Starts a connection manager on a thread of its own, pinned to `core` (`None`: wherever the
/// kernel likes). Its handle has no sessions.
///
/// # Errors
/// [`RemoteError`]; nothing is left running.
pub(crate) fn start_manager(
    config: &ServerConfig,
    (wiring, mail): (ServerWiring, ServerMail),
    core: Option<usize>,
) -> Result<ShardHandle, RemoteError> {
    let (sender, requests) = RequestQueue::new().map_err(ServerError::Link)?;
    let seed = crate::server::random_seed()?;
    let manager = ManagerServer::new(config.hand_over.clone(), (wiring, mail), seed);
    let (clock, spin) = (Clock::new(), config.waits.spin);
    let own = ManagerLoop { manager, requests, clock, spin, is_stopped: false };
    let thread = server_thread::spawn(move || own.run(), core)?;
    Ok(ShardHandle::new(sender, thread))
}

impl ManagerLoop {
    fn run(mut self) -> Result<(), LinkError> {
        let mut worked_at = self.clock.now();
        let mut polls = 0_u32;
        while !self.is_stopped {
            let now = self.clock.now();
            polls = polls.wrapping_add(1);
            if self.manager.poll(now) {
                worked_at = now;
            } else if now.since(worked_at) >= self.spin {
                self.sleep(now)?;
                worked_at = self.clock.now();
                self.take_requests();
                continue;
            } else {
                std::hint::spin_loop();
            }
            if polls.is_multiple_of(LOOK_POLLS) {
                self.take_requests();
            }
        }
        Ok(())
    }

    /// Sleeps until another server rings, or there is a request.
    fn sleep(&mut self, now: Instant) -> Result<(), LinkError> {
        let mut slept = Ok(());
        if self.manager.arm() {
            let fds = [self.manager.fd(), Some(self.requests.fd())];
            slept = match wait_readable(fds, self.manager.patience(now)) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(LinkError::Io { what: "poll", source: errno.into() }),
            };
        }
        self.manager.disarm();
        slept
    }

    fn take_requests(&mut self) {
        self.requests.clear();
        while let Some(request) = self.requests.next() {
            match request {
                ShardRequest::Attach { answer, .. } => {
                    // A caller that is gone needs no answer.
                    let _ = answer.send(Err(ShardAttachError::Full));
                }
                ShardRequest::Report(answer) => {
                    let (hand_over, mail) = self.manager.counters();
                    let _ = answer.send(ShardReport { hand_over, mail, ..ShardReport::default() });
                }
                ShardRequest::Page { query, answer, .. } => {
                    answer(self.manager.page(self.clock.now(), query.from));
                }
                ShardRequest::Detach(_) | ShardRequest::Recount | ShardRequest::Token(_) => {}
                ShardRequest::Stop => self.is_stopped = true,
            }
        }
    }
}
