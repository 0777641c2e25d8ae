//! The driver's calls: each goes to the stack, or on to the kernel's driver.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use megapipe_service::{Next, RemoteEvent};
use megapipe_stack::Event;
use rustix::io::Errno;

use super::poll::link_failed;
use super::stack_handle::Polled;
use super::{Local, StackHandle, is_stacks};
use crate::buffer::ReadBuf;
use crate::completion_queue::Whose;
use crate::driver::{Driver, Park};
use crate::error::{DispatchError, OpError};
use crate::options::OpenOptions;
use crate::slot::{FileJob, Kind, SlotPhase, StreamEnd};
use crate::state::State;

/// Polls at most of a call without patience, beyond the first, while the stack has worked and found
/// nothing for the program.
const LATE_POLLS_MAX: u32 = 3;

impl<H: StackHandle + ?Sized> Driver for Local<H> {
    fn attach(&mut self, state: &mut State, slot: u32) -> io::Result<()> {
        if is_stacks(state.peek(slot)) {
            return Ok(());
        }
        self.kernels().attach(state, slot)
    }

    fn start_receive(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_receive(state, slot);
        }
        self.receive(state, slot);
    }

    fn start_read(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_read(state, slot);
        }
        self.read_datagrams(state, slot);
    }

    fn start_write(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_write(state, slot);
        }
        if state.peek(slot).kind == Kind::Udp {
            self.write_datagrams(state, slot);
        } else {
            self.write(state, slot);
        }
        self.ask(state);
    }

    #[inline]
    fn sends_silently(&self) -> bool {
        true
    }

    #[inline]
    fn send_silently(&mut self, state: &mut State, slot: u32, bytes: ReadBuf) {
        self.send_at_once(state, slot, bytes);
    }

    #[inline]
    fn send_copied(&mut self, state: &mut State, slot: u32, bytes: &[u8]) -> bool {
        self.send_copy_at_once(state, slot, bytes)
    }

    #[inline]
    fn next_answer(&mut self, state: &mut State) -> Option<(Whose, ReadBuf)> {
        while let Some((conn, chunk)) = self.server.next_bytes() {
            let read = self.on_received_for_one(state, conn, chunk);
            if read.is_some() {
                return read;
            }
            self.on_received(state, conn, chunk);
            if state.has_ready() {
                return None;
            }
        }
        while let Some(taken) = self.server.next_event() {
            let RemoteEvent::Event(event, offer) = taken else {
                self.on_server_event(state, taken);
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

    fn start_connect(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_connect(state, slot);
        }
        // Our own connections are begun by `Channel::connect_on_stack`, with their options.
        debug_assert!(false, "a connection of the stack has no second start");
    }

    fn abandon_connect(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().abandon_connect(state, slot);
        }
        if state.peek(slot).phase == SlotPhase::Starting {
            self.abort(state, slot);
            self.connected(state, slot, Err(OpError::TimedOut));
        }
    }

    fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions) {
        self.kernels().start_open(state, slot, path, options);
    }

    fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob) {
        self.kernels().start_job(state, slot, job);
    }

    fn start_accept(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            self.kernels().start_accept(state, slot);
            return self.accept_on_stack(state, slot);
        }
        self.accept(state, slot);
    }

    fn start_reset(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_reset(state, slot);
        }
        self.reset(state, slot);
        self.ask(state);
    }

    fn watch_end(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().watch_end(state, slot);
        }
        let ended = match self.conn(state, slot) {
            Some(conn) => self.broken(conn).map(Err),
            None if state.peek(slot).phase == SlotPhase::Starting => None,
            // One that the stack does not know any more has ended.
            None => Some(match state.peek(slot).end {
                StreamEnd::Failed(error) => Err(error),
                StreamEnd::Not | StreamEnd::Eof => Ok(()),
            }),
        };
        if let Some(ended) = ended {
            state.on_end(slot, ended);
        }
    }

    fn detach(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            self.leave_port(state, slot);
            return self.kernels().detach(state, slot);
        }
        self.leave(state, slot);
        state.release(slot);
        self.accept_with_room(state);
        self.ask(state);
    }

    fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd> {
        if !is_stacks(state.peek(slot)) {
            self.leave_port(state, slot);
            return self.kernels().withdraw(state, slot);
        }
        self.leave(state, slot);
        None
    }

    fn flush(&mut self, state: &mut State) -> Result<(), DispatchError> {
        self.gathered = 0;
        self.now = self.clock.now();
        self.server.transmit(self.now).map_err(link_failed)?;
        self.kernel.flush(state)
    }

    fn harvest(&mut self, state: &mut State) {
        self.take_events(state);
    }

    fn wait(&mut self, state: &mut State, timeout: Option<Duration>) -> Result<(), DispatchError> {
        if self.server.take_lack_of_memory() {
            return Err(DispatchError::Kernel(Errno::NOMEM.into()));
        }
        self.now = self.clock.now();
        let deadline = timeout.map(|timeout| self.now + timeout);
        let mut late_polls = 0;
        loop {
            self.gathered = 0;
            let Polled { has_worked, has_event } = self.poll_stack(state)?;
            let counters = self.server.counters();
            state.counters.server_events = counters.events;
            state.counters.server_wakeups = counters.wakeups;
            let has_found = has_worked || has_event || state.has_ready();
            // Without work the thread may sleep at once, and looks at the kernel's descriptor then.
            let looks_later = !has_found
                && !self.kernel_given
                && self.may_sleep(state, deadline)
                && self.server.after_poll(false, self.now) == Next::Sleep;
            if looks_later {
                let left = deadline.map(|at| at.since(self.now));
                self.sleep(state, left)?;
                self.now = self.clock.now();
                continue;
            }
            self.ask_kernel(state)?;
            // Also where the program is next: what came ended a spin or a sleep.
            let is_ready = has_event || state.has_ready();
            let next = self.server.after_poll(has_worked || is_ready, self.now);
            if is_ready || state.woken || state.is_interrupted() {
                return Ok(());
            }
            if deadline.is_some_and(|at| at <= self.now) {
                // What it has sent to a socket of its own is there with the next poll.
                if !has_worked || late_polls == LATE_POLLS_MAX {
                    return Ok(());
                }
                late_polls += 1;
                continue;
            }
            if next == Next::Sleep {
                let left = deadline.map(|at| at.since(self.now));
                self.sleep(state, left)?;
            }
            self.now = self.clock.now();
        }
    }

    #[inline]
    fn polled_at(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.now.as_nanos()))
    }

    fn park(&mut self, state: &mut State) -> Result<Park, DispatchError> {
        self.now = self.clock.now();
        loop {
            self.gathered = 0;
            let Polled { has_worked, has_event } = self.poll_stack(state)?;
            if has_event {
                self.take_events(state);
            }
            if state.has_ready() || state.woken {
                return Ok(Park::Work);
            }
            if !has_worked && !has_event {
                break;
            }
        }
        if !self.prepare_sleep(state)? {
            return Ok(Park::Work);
        }
        // A thread that sleeps on the descriptors does not report which of them woke it.
        self.kernel_given = true;
        let own = self.server.patience(self.now);
        Ok(Park::Until([own, self.kernel.next_retry()].into_iter().flatten().min()))
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.server.wait_fd()];
        all.extend(self.server.host_fd());
        all.extend(self.kernel.descriptors());
        all
    }

    fn install(&mut self, state: &mut State, direct: u32) -> Result<OwnedFd, OpError> {
        self.kernel.install(state, direct)
    }

    fn discard(&mut self, state: &mut State, direct: u32) {
        self.kernel.discard(state, direct);
    }

    fn abandon(&mut self) {
        self.server.abandon();
        self.kernel.abandon();
    }

    fn shut_down(&mut self, state: &mut State) {
        let mine: Vec<u32> =
            state.used_slots().filter(|slot| is_stacks(state.peek(*slot))).collect();
        for slot in mine {
            self.leave(state, slot);
        }
        // A link that is gone takes no frames.
        let _ = self.server.shut_down(&self.clock);
        self.kernel.shut_down(state);
    }
}
