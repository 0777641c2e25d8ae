//! Turns of the server inside `dispatch`: work, spin or sleep, and one wait for link and kernel.
//!
//! Read first: `megapipe_service::Waiting`.
//!
//! What a turn brought stays with the stack, and is taken from it one by one, as the program takes
//! its completions: nothing is queued twice, and what a connection has to say is looked at while
//! its record is in the cache.
//!
//! Invariants
//! - Before it sleeps, everything that was asked for has been handed over, the stack has nothing
//!   more to say, and both the link and the kernel's driver have been asked to make their
//!   descriptors readable.
//! - No turn begins while the stack has something to say that could be told.

use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_service::{Next, Offer, Slept, Told};
use megapipe_stack::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Local;
use crate::buffer::ReadBuf;
use crate::error::DispatchError;
use crate::kernel::{Driver, Rest};
use crate::ready::Whose;
use crate::slot::Kind;
use crate::state::State;

/// The kernel's driver is asked at least this often while the stack is busy.
const KERNEL_PERIOD: Duration = Duration::from_micros(50);
/// Turns that a channel which ends spends on its last frames, at most.
const GOODBYE_TURNS: usize = 16;

impl Local {
    /// Turns the server until there is a completion or the time is over.
    pub(super) fn turn_until_ready(
        &mut self,
        state: &mut State,
        timeout: Option<Duration>,
    ) -> Result<(), DispatchError> {
        self.now = self.clock.now();
        let deadline = timeout.map(|timeout| self.now + timeout);
        loop {
            self.gathered = 0;
            let turn = self.server.turn(self.now).map_err(link_failed)?;
            let happened = self.take_events(state);
            let told = self.server.counters();
            state.counters.server_events = told.events;
            state.counters.server_wakeups = told.wakeups;
            self.ask_kernel(state)?;
            // Also where the program is next: what came ended a spin or a sleep.
            let worked = turn.worked() || happened || state.has_ready();
            let next = self.server.after_turn(worked, self.now);
            if state.has_ready() || state.woken || state.is_interrupted() {
                return Ok(());
            }
            if deadline.is_some_and(|at| at <= self.now) {
                return Ok(());
            }
            if next == Next::Sleep {
                let left = deadline.map(|at| at.since(self.now));
                self.sleep(state, left)?;
            }
            self.now = self.clock.now();
        }
    }

    /// Turns the server as long as it has work, or until there is a completion, and gets ready for
    /// sleep on the driver's descriptors.
    pub(super) fn turn_until_idle(&mut self, state: &mut State) -> Result<Rest, DispatchError> {
        self.now = self.clock.now();
        loop {
            self.gathered = 0;
            let turn = self.server.turn(self.now).map_err(link_failed)?;
            let happened = self.take_events(state);
            if state.has_ready() || state.woken {
                return Ok(Rest::Work);
            }
            if !turn.worked() && !happened {
                break;
            }
        }
        if !self.prepare_sleep(state)? {
            return Ok(Rest::Work);
        }
        // Whoever sleeps on the descriptors does not tell which of them woke him.
        self.kernel_given = true;
        let own = self.server.patience(self.now);
        Ok(Rest::Until([own, self.kernel.next_retry()].into_iter().flatten().min()))
    }

    /// Turns what the stack says into completions, until there is one. Whether it said anything.
    pub(super) fn take_events(&mut self, state: &mut State) -> bool {
        let mut happened = false;
        while !state.has_ready()
            && let Some(told) = self.server.event()
        {
            happened = true;
            self.on_told(state, told);
        }
        happened
    }

    /// Bytes for the one read that waits for them, or the end, if that is what the stack says next:
    /// it goes to the program past the queue of completions. Anything else is queued, as by
    /// `take_events`.
    #[inline]
    pub(super) fn next_received(&mut self, state: &mut State) -> Option<(Whose, ReadBuf)> {
        while let Some(told) = self.server.event() {
            let Told::Event(event, offer) = told else {
                self.on_told(state, told);
                continue;
            };
            let read = match event {
                Event::Received { conn, chunk } => self.on_received_for_one(state, conn, chunk),
                Event::PeerClosed { conn } => self.on_end_for_one(state, conn),
                _ => None,
            };
            if read.is_some() {
                return read;
            }
            self.on_event(state, event, offer);
            if state.has_ready() {
                return None;
            }
        }
        None
    }

    fn on_told(&mut self, state: &mut State, told: Told) {
        match told {
            Told::Event(event, offer) => self.on_event(state, event, offer),
            Told::NotBegun(conn, error) => self.on_not_begun(state, conn, error),
        }
    }

    fn on_event(&mut self, state: &mut State, event: Event, offer: Option<Offer>) {
        match event {
            Event::Received { conn, chunk } => self.on_received(state, conn, chunk),
            Event::Incoming { listener, conn, .. } => {
                self.on_incoming(state, listener, conn, offer);
            }
            Event::Connected { conn } => {
                if let Some(slot) = self.slot_of(conn) {
                    self.connected(state, slot, Ok(()));
                }
            }
            Event::Acked { conn, .. } => self.on_acked(state, conn),
            Event::PeerClosed { conn } => self.on_peer_closed(state, conn),
            Event::Closed { conn, reason } => self.on_closed(state, conn, reason),
            Event::Datagram { endpoint, from, chunk } => {
                self.on_datagram(state, endpoint, from, chunk);
            }
            Event::Urgent { conn, bytes } => self.on_urgent(state, conn, bytes),
            Event::DatagramRefused { endpoint, to, .. } => {
                self.on_undelivered(state, endpoint, to);
            }
        }
    }

    /// Fetches what the kernel's driver has, if it was given something or it is time to look.
    fn ask_kernel(&mut self, state: &mut State) -> Result<(), DispatchError> {
        if !self.kernel_given && self.now.since(self.kernel_asked) < KERNEL_PERIOD {
            return Ok(());
        }
        self.kernel_asked = self.now;
        self.kernel_given = false;
        self.kernel.wait(state, Some(Duration::ZERO))?;
        self.kernel.harvest(state);
        Ok(())
    }

    /// Sleeps until a frame, a kernel event, a timer of the stack, or the time is over.
    fn sleep(&mut self, state: &mut State, left: Option<Duration>) -> Result<(), DispatchError> {
        if !self.kernel_rests(state)? {
            return Ok(());
        }
        let retry = self.kernel.next_retry();
        let patience = [left, retry].into_iter().flatten().min();
        if self.kernel.may_be_watched()
            && let Some(slept) = self.server.sleep(patience)
        {
            self.kernel_given |= matches!(slept, Slept::Woken { is_readable: true });
            state.interrupted |= slept == Slept::Interrupted;
            self.on_slept(state);
            return Ok(());
        }
        if !self.server.arm(self.now).map_err(link_failed)? {
            return Ok(());
        }
        let own = self.server.patience(self.now);
        let patience = [left, own, retry].into_iter().flatten().min();
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let (link, kernel) = (self.server.wait_fd(), self.kernel.descriptor());
        // Without a host to listen to, the third place is not looked at.
        let host = self.server.host_fd().unwrap_or(link);
        let mut fds = [link, kernel, host].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let count = if self.server.host_fd().is_some() { 3 } else { 2 };
        match poll(&mut fds[..count], timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => state.interrupted = true,
            Err(errno) => return Err(DispatchError::Kernel(errno.into())),
        }
        self.kernel_given |= !fds[1].revents().is_empty();
        self.on_slept(state);
        Ok(())
    }

    fn on_slept(&mut self, state: &mut State) {
        // The kernel's driver was looked at meanwhile: the turn that follows need not ask again.
        self.kernel_asked = self.clock.now();
        state.counters.system_calls += 1;
    }

    /// Asks link and kernel to make their descriptors readable when something comes. `false`: there
    /// is work already.
    fn prepare_sleep(&mut self, state: &mut State) -> Result<bool, DispatchError> {
        Ok(self.kernel_rests(state)? && self.server.arm(self.now).map_err(link_failed)?)
    }

    /// The kernel's driver has nothing to do, and its descriptor shows when it has.
    fn kernel_rests(&mut self, state: &mut State) -> Result<bool, DispatchError> {
        self.kernel.flush(state)?;
        // It may have work of its own left, which its descriptor does not show. Where it was given
        // nothing since it was asked, everything else will be seen there.
        let rests = if self.kernel_given || self.kernel.next_retry().is_some() {
            let rest = self.kernel.rest(state)?;
            self.kernel.harvest(state);
            !matches!(rest, Rest::Work)
        } else {
            self.kernel.run_queued(state)
        };
        if !rests || state.has_ready() || state.woken {
            self.kernel_given = true;
            return Ok(false);
        }
        Ok(true)
    }

    /// The slot leaves the stack, whatever it is there.
    pub(super) fn leave(&mut self, state: &mut State, slot: u32) {
        match state.peek(slot).kind {
            Kind::Listener => self.leave_listener(state, slot),
            Kind::Udp => self.leave_endpoint(state, slot),
            _ => self.leave_stream(state, slot),
        }
    }

    /// The channel ends: the FINs and RSTs of its connections go out. Nobody is there to send
    /// them again, as after the death of a process.
    pub(super) fn say_goodbye(&mut self) {
        for _ in 0..GOODBYE_TURNS {
            self.now = self.clock.now();
            match self.server.turn(self.now) {
                Ok(turn) if turn.worked() => {}
                _ => return,
            }
        }
    }
}

/// The link broke; so do the channel's dispatches.
pub(super) fn link_failed(error: LinkError) -> DispatchError {
    DispatchError::Link(error)
}
