//! The thread of a shard: polls it, rings its applications, and sleeps on their doorbells.
//!
//! Read first: `shard.rs` for what a poll does; `sleep.rs`; `server/bells.rs`.
//!
//! A session is *active* while its ring is read at each poll, and *idle* otherwise: then its
//! doorbell is armed, and the epoll set reports it. Few sessions are active always
//! ([`ACTIVE_ALWAYS`]), so that an application need not ring a server that is awake.
//!
//! Invariants
//! - Before the thread sleeps, all events that there was room for are published, and the
//!   applications that they are for were woken if they sleep.
//! - An application that sleeps on the shard's own core is woken when the shard has no work, or has
//!   had some for [`WAKE_DELAY_MAX`]: it could not run before, and wakes for more events. The shard
//!   then sleeps, so that it runs at once.
//! - After a poll with work the thread sleeps briefly ([`BRIEF_SLEEP_MAX`]) while an application on
//!   its core is awake: what that one does comes in one batch, without a ring for each call. After
//!   a brief sleep in vain the thread sleeps until it is rung: sessions at rest cost nothing.
//! - An idle session is armed, and its ring was empty after that.

mod bells;
mod cm_loop;
mod requests;

use megapipe_link::LinkError;
use megapipe_shm::DoorbellError;
use megapipe_stack::{Instant, PoolId};

use super::SharedMemory;
use super::session_memory::SessionMemory;
use super::session_region::{RingEnds, ServerHalf};
use super::shard::{SessionEnd, SessionId, SessionLimits, SessionShard, ShardEnds, ShardPeers};
use crate::adaptive_spin::Next;
use crate::clock::Clock;
use crate::error::ShardAttachError;
use crate::hand_over::HandOverSettings;
use crate::limits::{ACTIVE_ALWAYS, BRIEF_SLEEP_MAX, LOOK_POLLS, REQUESTS_AT_ONCE, WAKE_DELAY_MAX};
use crate::server::Server;
use crate::server_mail::ServerMail;
use crate::server_thread;
use crate::sleep::{SleepingEnd, current_core};
use bells::Bells;
use requests::{RequestQueue, ShardRequest};

pub(crate) use cm_loop::start_manager;
pub use requests::ShardHandle;
pub(crate) use requests::TokenChange;

/// Hears of sessions that have ended, on the shard's thread.
pub type OnSessionEnd = Box<dyn FnMut(SessionEnd) + Send>;

/// How long the thread runs.
enum Lifetime {
    /// As long as its only session.
    OfSession,
    /// Until it is stopped.
    Requested(RequestQueue, OnSessionEnd),
}

/// A shard and its doorbells.
pub(super) struct RemoteServer {
    shard: SessionShard,
    bells: Bells,
    clock: Clock,
    lifetime: Lifetime,
    /// Applications on this core that are to be woken, and since when. They may be awake by now.
    delayed: Vec<PoolId>,
    delayed_since: Instant,
    /// The core that the thread ran on last.
    core: u32,
    /// Polls since the last look at the bells of idle sessions.
    polls: u32,
    /// A poll since the last sleep had work.
    has_worked: bool,
    is_stopped: bool,
}

impl RemoteServer {
    /// A shard for one session, which has it to itself.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub(super) fn for_session(
        server: Server<SharedMemory>,
        ends: RingEnds,
        memory: SessionMemory,
    ) -> Result<Self, LinkError> {
        let settings = HandOverSettings::default();
        let peers = ShardPeers::default();
        let mut own = Self::new(server, (settings, peers), Lifetime::OfSession)?;
        own.attach(ends, memory, SessionLimits::WHOLE_SHARD)?;
        Ok(own)
    }

    fn new(
        server: Server<SharedMemory>,
        (settings, peers): (HandOverSettings, ShardPeers),
        lifetime: Lifetime,
    ) -> Result<Self, LinkError> {
        let requests = match &lifetime {
            Lifetime::OfSession => None,
            Lifetime::Requested(requests, _) => Some(requests.fd()),
        };
        let mail = peers.mail.as_ref().map(ServerMail::fd);
        let bells = Bells::new(server.wait_fd(), server.host_fd(), (requests, mail))?;
        let clock = server.clock().clone();
        let shard = SessionShard::with_peers(server, settings, peers);
        let (delayed, delayed_since, core) = (Vec::new(), clock.now(), current_core());
        Ok(Self {
            shard,
            bells,
            clock,
            lifetime,
            delayed,
            delayed_since,
            core,
            polls: 0,
            has_worked: false,
            is_stopped: false,
        })
    }

    /// A shard that serves until its handle is dropped, on a thread of its own.
    ///
    /// # Errors
    /// As [`server_thread::spawn`].
    pub(super) fn spawn(
        (server, settings): (Server<SharedMemory>, HandOverSettings),
        peers: ShardPeers,
        core: Option<usize>,
        on_end: OnSessionEnd,
    ) -> Result<ShardHandle, crate::error::RemoteError> {
        let (sender, requests) = RequestQueue::new().map_err(crate::error::ServerError::Link)?;
        let own = Self::new(server, (settings, peers), Lifetime::Requested(requests, on_end))
            .map_err(crate::error::ServerError::Link)?;
        let thread = server_thread::spawn(move || own.run(), core)?;
        Ok(ShardHandle::new(sender, thread))
    }

    fn attach(
        &mut self,
        ends: RingEnds,
        memory: SessionMemory,
        limits: SessionLimits,
    ) -> Result<SessionId, LinkError> {
        let RingEnds { ops, events, sleep, calls } = ends;
        let ends = ShardEnds { ops, events, calls };
        let id = self.shard.attach(ends, memory, limits).ok_or_else(gone)?;
        let missing = (usize::from(id.number) + 1).saturating_sub(self.delayed.len());
        if self.delayed.try_reserve(missing).is_err() {
            self.shard.detach(self.clock.now(), id);
            return Err(gone());
        }
        sleep.note_core(self.core);
        if let Err(error) = self.bells.insert(PoolId(id.number), sleep) {
            self.shard.detach(self.clock.now(), id);
            return Err(error);
        }
        Ok(id)
    }

    /// Polls until the session is over, or the thread is stopped, or the link is gone.
    ///
    /// # Errors
    /// The link's error, or that the only application broke the protocol.
    pub(super) fn run(mut self) -> Result<(), LinkError> {
        loop {
            let asked = self.clock.asked_poll();
            let now = self.clock.now();
            let has_worked = self.shard.poll(now)?;
            if has_worked {
                self.has_worked = true;
                self.clock.note_work();
            }
            self.signal(now);
            let has_yielded = self.wake_delayed(now, has_worked);
            self.end_gone(now);
            if let Some(end) = self.report_ends()
                && matches!(self.lifetime, Lifetime::OfSession)
            {
                self.shard.server.shut_down(&self.clock)?;
                return end.fault.map_or(Ok(()), |_| Err(gone()));
            }
            if self.is_stopped {
                return self.shut_down();
            }
            // What a look finds is work: a stop or the end of a session needs another poll.
            let has_found = self.look_if_due(now)?;
            let next = self.shard.server.after_poll(has_worked || has_found, now);
            if next == Next::Sleep || has_yielded && !has_found {
                self.sleep(now, asked)?;
            }
        }
    }

    /// Wakes applications that sleep and have something to read, but for those on this core.
    #[inline]
    fn signal(&mut self, now: Instant) {
        while let Some(id) = self.shard.next_signal() {
            match self.bells.of(id) {
                Some(bell) if bell.is_other_asleep() && bell.is_other_on(self.core) => {
                    self.delay(now, id);
                }
                _ => self.wake(now, id),
            }
        }
    }

    fn wake(&mut self, now: Instant, id: PoolId) {
        if let Some(Err(error)) = self.bells.of(id).map(SleepingEnd::wake) {
            self.on_bell_error(now, id, error);
        }
    }

    fn delay(&mut self, now: Instant, id: PoolId) {
        if self.delayed.is_empty() {
            self.delayed_since = now;
        }
        // There is room for each session that is attached.
        if !self.delayed.contains(&id) {
            self.delayed.push(id);
        }
    }

    /// Wakes the applications on this core, if the shard has no work or they have waited for long.
    /// Returns whether this thread is to let them run.
    #[inline]
    fn wake_delayed(&mut self, now: Instant, has_worked: bool) -> bool {
        let is_due = !has_worked || now.since(self.delayed_since) >= WAKE_DELAY_MAX;
        if self.delayed.is_empty() || !is_due {
            return false;
        }
        while let Some(id) = self.delayed.pop() {
            self.wake(now, id);
        }
        !has_worked
    }

    /// Publishes the core that this thread runs on, if it is another than before.
    fn note_core(&mut self) {
        let core = current_core();
        if core != self.core {
            self.core = core;
            self.bells.note_core(core);
        }
    }

    /// A doorbell without another end means that the application is gone. One that fails is of no
    /// use to it.
    #[cold]
    fn on_bell_error(&mut self, now: Instant, id: PoolId, _: DoorbellError) {
        self.shard.detach_number(now, id);
    }

    /// Ends sessions whose applications have ended.
    #[inline]
    fn end_gone(&mut self, now: Instant) {
        for place in (0..self.shard.active().len()).rev() {
            let Some(id) = self.shard.active().get(place).copied() else { continue };
            if self.bells.of(id).is_some_and(SleepingEnd::has_other_ended) {
                self.shard.detach_number(now, id);
            }
        }
    }

    /// Removes the bells of sessions that have ended. Returns the last of them.
    fn report_ends(&mut self) -> Option<SessionEnd> {
        let mut last = None;
        while let Some(end) = self.shard.next_end() {
            self.bells.remove(PoolId(end.session.number));
            if let Lifetime::Requested(_, on_end) = &mut self.lifetime {
                on_end(end);
            }
            last = Some(end);
        }
        last
    }

    /// Looks at the bells of idle sessions and at requests, once in a while: a shard that always
    /// has work never sleeps on them. Says whether there were any.
    #[inline]
    fn look_if_due(&mut self, now: Instant) -> Result<bool, LinkError> {
        self.polls += 1;
        if self.polls < LOOK_POLLS {
            return Ok(false);
        }
        self.polls = 0;
        self.note_core();
        if matches!(self.lifetime, Lifetime::OfSession) {
            return Ok(false);
        }
        self.shard.charge_if_due(now, || self.clock.thread_busy());
        self.bells.wait(Some(std::time::Duration::ZERO))?;
        let has_found = self.take_rings(now);
        if self.shard.active().len() > ACTIVE_ALWAYS {
            self.rest_quiet();
        }
        Ok(has_found)
    }

    /// Makes sessions idle that have submitted nothing since the last look.
    fn rest_quiet(&mut self) {
        for place in (0..self.shard.active().len()).rev() {
            let id = self.shard.active()[place];
            if self.shard.is_quiet(id)
                && let Some(bell) = self.bells.of(id)
            {
                bell.arm();
                if self.shard.has_ops(id) {
                    bell.disarm();
                } else {
                    self.shard.rest(id);
                }
            }
        }
    }

    /// Makes sessions active that have rung, and carries out requests. Says whether there were any.
    fn take_rings(&mut self, now: Instant) -> bool {
        let mut has_found = self.bells.has_requests();
        if self.bells.has_mail()
            && let Some(mail) = self.shard.mail_mut()
        {
            // Its messages are taken by the next poll.
            mail.clear();
        }
        if has_found {
            self.take_requests(now);
        }
        while let Some(id) = self.bells.next_rung() {
            has_found = true;
            let Some(bell) = self.bells.of(id) else { continue };
            bell.disarm();
            match bell.clear() {
                Ok(()) => self.shard.activate(id),
                Err(error) => self.on_bell_error(now, id, error),
            }
        }
        has_found
    }

    /// Sleeps until there is an operation, a frame, a timer or a request. The last poll was the one
    /// of the number `asked` ([`Clock::ask_poll`]).
    fn sleep(&mut self, now: Instant, asked: u64) -> Result<(), LinkError> {
        self.wake_delayed(now, false);
        self.note_core();
        let (is_brief, has_ended) = self.arm();
        let mut may_sleep = !has_ended && !self.shard.has_ops_to_take();
        if let Some(mail) = self.shard.mail_mut() {
            may_sleep &= mail.arm();
        }
        let sleeps = may_sleep && self.shard.server.arm(now)? && self.clock.asked_poll() == asked;
        if sleeps {
            let brief = is_brief.then_some(BRIEF_SLEEP_MAX);
            let patience = self.shard.patience(now).into_iter().chain(brief).min();
            self.clock.note_sleep(asked, patience);
            self.bells.wait(patience)?;
        }
        if let Some(mail) = self.shard.mail_mut() {
            mail.disarm();
        }
        if self.shard.active().len() > ACTIVE_ALWAYS {
            self.rest_armed();
        } else {
            let active = self.shard.active().iter();
            active.filter_map(|id| self.bells.of(*id)).for_each(SleepingEnd::disarm);
        }
        if sleeps {
            self.take_rings(self.clock.now());
        }
        Ok(())
    }

    /// Arms the doorbells of active sessions. Returns whether the sleep has to be brief because an
    /// application will not ring, and whether one has ended.
    fn arm(&mut self) -> (bool, bool) {
        // Sessions that become idle stay armed for longer than this sleep.
        let may_be_brief =
            std::mem::take(&mut self.has_worked) && self.shard.active().len() <= ACTIVE_ALWAYS;
        let (mut is_brief, mut has_ended) = (false, false);
        for bell in self.shard.active().iter().filter_map(|id| self.bells.of(*id)) {
            if may_be_brief && bell.is_other_on(self.core) && !bell.is_other_asleep() {
                bell.arm_briefly();
                is_brief = true;
            } else {
                bell.arm();
            }
            has_ended |= bell.has_other_ended();
        }
        (is_brief, has_ended)
    }

    /// Makes all sessions idle that have no operations: they are armed.
    fn rest_armed(&mut self) {
        for place in (0..self.shard.active().len()).rev() {
            let id = self.shard.active()[place];
            if !self.shard.has_ops(id) {
                self.shard.rest(id);
            } else if let Some(bell) = self.bells.of(id) {
                bell.disarm();
            }
        }
    }

    fn take_requests(&mut self, now: Instant) {
        if let Lifetime::Requested(requests, _) = &self.lifetime {
            requests.clear();
        }
        for _ in 0..REQUESTS_AT_ONCE {
            let Lifetime::Requested(requests, _) = &self.lifetime else { return };
            match requests.next() {
                None => return,
                Some(ShardRequest::Attach { half, limits, answer }) => {
                    let ServerHalf { ends, memory, seal: _ } = *half;
                    let attached = self.attach(ends, memory, limits);
                    // A caller that is gone learns of the end of its session by its own means.
                    let _ = answer.send(attached.map_err(|_| ShardAttachError::Full));
                }
                Some(ShardRequest::Detach(id)) => self.shard.detach(now, id),
                Some(ShardRequest::Report(answer)) => {
                    let _ = answer.send(self.shard.report());
                }
                Some(ShardRequest::Page { query, viewer, answer }) => {
                    self.shard.charge_if_due(now, || self.clock.thread_busy());
                    answer(self.shard.page(now, &query, viewer));
                }
                Some(ShardRequest::Token(change)) => {
                    let is_long = matches!(change, TokenChange::Copy(..) | TokenChange::End(..));
                    self.shard.change_token(now, change);
                    if is_long {
                        break;
                    }
                }
                Some(ShardRequest::Recount) => self.shard.recount(now),
                Some(ShardRequest::Stop) => self.is_stopped = true,
            }
        }
        // The others wait for their turn: connections have theirs in between.
        if let Lifetime::Requested(requests, _) = &self.lifetime {
            requests.ring_again();
        }
    }

    /// Ends all sessions, and sends what fits a bounded number of polls.
    fn shut_down(&mut self) -> Result<(), LinkError> {
        self.shard.detach_all(self.clock.now());
        self.shard.flush_mail();
        self.report_ends();
        self.shard.server.shut_down(&self.clock)
    }
}

/// The application is gone, or as good as gone: it broke the protocol.
fn gone() -> LinkError {
    LinkError::Gone { driver: "the application" }
}

#[cfg(test)]
mod tests;
