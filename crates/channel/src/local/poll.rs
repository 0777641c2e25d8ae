//! Parts of a poll inside `dispatch`: the stack's events, the kernel's driver, and the sleep.
//!
//! Read first: `megapipe_service::AdaptiveSpin`; `dispatch.rs` for the two paths of a completion.
//!
//! Events stay in the stack until they are taken one by one, as the program takes its completions:
//! nothing is queued twice, and a connection's events are processed while its record is in the
//! cache. A poll therefore ends when the stack has an event, and takes none.
//!
//! Invariants
//! - Before this thread sleeps, all operations were submitted, the stack has no event, and both the
//!   link and the kernel's driver were armed.

use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_service::{Offer, RemoteEvent, Slept, wait_readable};
use megapipe_stack::{Event, Instant};
use rustix::io::Errno;

use super::{Broken, Local, StackHandle};
use crate::driver::{Driver, Park};
use crate::error::DispatchError;
use crate::slot::Kind;
use crate::state::State;

/// The kernel's driver is asked at least this often while the stack is busy.
const KERNEL_PERIOD: Duration = Duration::from_micros(50);

impl<H: StackHandle + ?Sized> Local<H> {
    /// Turns events into queued completions, until there is one.
    pub(super) fn take_events(&mut self, state: &mut State) {
        while !state.has_ready()
            && let Some(event) = self.server.next_event()
        {
            self.on_server_event(state, event);
        }
    }

    pub(super) fn on_server_event(&mut self, state: &mut State, event: RemoteEvent) {
        match event {
            RemoteEvent::Event(event, offer) => self.on_event(state, event, offer),
            RemoteEvent::NotBegun(conn, error) => self.on_not_begun(state, conn, error),
            RemoteEvent::DatagramWaits(endpoint, bytes) => {
                self.on_datagram_waits(state, endpoint, bytes);
            }
        }
    }

    pub(super) fn on_event(&mut self, state: &mut State, event: Event, offer: Option<Offer>) {
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
            Event::Broken { conn, reason, is_whole } => {
                self.on_broken(state, conn, Broken { reason, is_whole });
            }
            Event::Closed { conn, reason } => self.on_closed(state, conn, reason),
            Event::Datagram { endpoint, from, chunk } => {
                self.on_datagram(state, endpoint, from, chunk);
            }
            Event::Urgent { conn, bytes } => self.on_urgent(state, conn, bytes),
            Event::UnsentBelow { conn } => self.on_unsent_below(state, conn),
            Event::DatagramRefused { endpoint, to, .. } => {
                self.on_undelivered(state, endpoint, to);
            }
        }
    }

    /// Fetches what the kernel's driver has, if it was given something or it is time to look.
    pub(super) fn ask_kernel(&mut self, state: &mut State) -> Result<(), DispatchError> {
        if !self.kernel_given && self.now.since(self.kernel_asked) < KERNEL_PERIOD {
            return Ok(());
        }
        self.kernel_asked = self.now;
        self.kernel_given = false;
        self.kernel.wait(state, Some(Duration::ZERO))
    }

    /// Whether nothing but a lack of work is needed for a sleep.
    pub(super) fn may_sleep(&self, state: &State, deadline: Option<Instant>) -> bool {
        let is_over = deadline.is_some_and(|at| at <= self.now);
        !is_over && !state.woken && !state.is_interrupted()
    }

    /// Sleeps until a frame, a kernel event, a timer of the stack, or the time is over.
    pub(super) fn sleep(
        &mut self,
        state: &mut State,
        left: Option<Duration>,
    ) -> Result<(), DispatchError> {
        if !self.kernel_rests(state)? {
            return Ok(());
        }
        let retry = self.kernel.next_retry();
        let patience = [left, retry].into_iter().flatten().min();
        if self.kernel.may_be_watched()
            && let Some(slept) = self.server.sleep_unarmed(patience)
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
        let (link, kernel) = (self.server.wait_fd(), self.kernel.descriptor());
        match wait_readable([Some(link), Some(kernel), self.server.host_fd()], patience) {
            Ok([_, is_readable, _]) => self.kernel_given |= is_readable,
            Err(Errno::INTR) => state.interrupted = true,
            Err(errno) => return Err(DispatchError::Kernel(errno.into())),
        }
        self.on_slept(state);
        Ok(())
    }

    fn on_slept(&mut self, state: &mut State) {
        // The kernel's driver was looked at meanwhile: the poll that follows need not ask again.
        self.kernel_asked = self.clock.now();
        state.counters.system_calls += 1;
    }

    /// Asks link and kernel to make their descriptors readable when something comes. `false`: there
    /// is work already.
    pub(super) fn prepare_sleep(&mut self, state: &mut State) -> Result<bool, DispatchError> {
        Ok(self.kernel_rests(state)? && self.server.arm(self.now).map_err(link_failed)?)
    }

    /// The kernel's driver has nothing to do, and its descriptor shows when it has.
    fn kernel_rests(&mut self, state: &mut State) -> Result<bool, DispatchError> {
        self.kernel.flush(state)?;
        // It may have work of its own left, which its descriptor does not show. Where it was given
        // nothing since it was asked, everything else will be seen there.
        let rests = if self.kernel_given || self.kernel.next_retry().is_some() {
            self.kernel.park(state)? != Park::Work
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
}

/// The link broke; so do the channel's dispatches.
pub(super) fn link_failed(error: LinkError) -> DispatchError {
    DispatchError::Link(error)
}
