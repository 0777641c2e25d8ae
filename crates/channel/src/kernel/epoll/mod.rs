//! The epoll driver: for where io_uring is forbidden, and to compare with.
//!
//! Read first: epoll(7), and `driver.rs` for what a driver owes. Then `stream.rs`,
//! `message.rs`, `plain.rs`, `accept.rs` (how each kind is tried), `jobs.rs` and `files.rs` (disk
//! files).
//!
//! An operation puts its slot on the run queue; a flush, a wait or a full batch runs the queue:
//! each slot tries what it has to do, until the kernel says "not now". Then the epoll set is asked
//! to tell when. Most operations finish at their first try ("opportunistic shortcut" [MP 4.1.1]),
//! and a connection is put into the set only when it first has to wait.
//!
//! Invariants
//! - No call on a descriptor blocks this thread. Sockets are called with MSG_DONTWAIT, pipes with
//!   RWF_NOWAIT or after a poll, so that O_NONBLOCK of a descriptor which others share stays as it
//!   is; disk files go to helper threads. Only listening sockets are switched (see `accept.rs`).
//! - `flags.readable` (`writable`) is false only if the kernel said "not now" after the last event:
//!   the set then owes an event. It is never cleared by anything else.
//! - A slot that has something to try and may try it is on the run queue (`flags.queued`).
//! - An event names the handle that was watched; one for a handle that has ended is counted as
//!   stray and changes nothing.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::driver::{Driver, Park};
use crate::error::{DispatchError, OpError};
use crate::handle::Handle;
use crate::kernel::{Refusal, sys};
use crate::limits::{EVENTS_MAX, POLLS_PER_FETCH, RETRY_PAUSE_MS};
use crate::options::OpenOptions;
use crate::report::{DriverKind, DriverReport};
use crate::slot::{Awaited, FileJob, Kind, Receiving, SlotPhase, WatchedEvents};
use crate::state::State;

mod accept;
mod files;
mod jobs;
mod message;
mod plain;
mod probe;
mod set;
mod stream;

#[cfg(test)]
mod tests;

use files::Files;
use set::Set;

/// Events that are about no slot. A slot's data is its handle without the channel
/// ([`Handle::in_channel`]), whose high bits are zero.
const WAKE: u64 = u64::MAX;
const FILES_DONE: u64 = u64::MAX - 1;

const INPUT: EventFlags =
    EventFlags::IN.union(EventFlags::PRI).union(EventFlags::RDHUP).union(EventFlags::ET);

pub(crate) struct Epoll {
    set: Set,
    /// Slots with something to try, oldest first.
    queue: VecDeque<u32>,
    /// Operations asked for since the queue was last run.
    gathered: u32,
    /// Runs of the queue since events were last fetched.
    polls: u32,
    /// Slots to be tried again later, for which the kernel gives no event; and when.
    retries: BTreeSet<u32>,
    retry_at: Option<Instant>,
    /// Listeners that are drained for siblings that left.
    adopted: Vec<u32>,
    /// Streams that are lwsockets.
    lwsockets_open: u32,
    files: Files,
    /// It watches a descriptor that may show something else to each thread, or did.
    shows_by_thread: bool,
}

impl Epoll {
    /// An epoll set for this thread, and the channel's eventfd in it.
    pub(crate) fn create(
        _state: &mut State,
        wake: &OwnedFd,
    ) -> Result<(Self, DriverReport), Refusal> {
        let capabilities = probe::capabilities()?;
        let set = Set::new(EVENTS_MAX, capabilities.precise)
            .map_err(|error| Refusal::of("an epoll set", error))?;
        // Edge-triggered: one event for each ring, whether the channel has emptied it or not.
        set.add(wake.as_fd(), WAKE, EventFlags::IN | EventFlags::ET)
            .map_err(|error| Refusal::of("the watch of an eventfd", error))?;
        let driver = Self {
            set,
            queue: VecDeque::new(),
            gathered: 0,
            polls: 0,
            retries: BTreeSet::new(),
            retry_at: None,
            adopted: Vec::new(),
            lwsockets_open: 0,
            files: Files::default(),
            shows_by_thread: false,
        };
        let report = DriverReport::new(DriverKind::Epoll, capabilities.features());
        Ok((driver, report))
    }

    /// Readable when the set has an event.
    #[cfg(feature = "local")]
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.set.descriptor()
    }

    /// Does what is left to do without asking the kernel; `true`: nothing is left, and whatever
    /// comes makes the descriptor readable, but what is tried again in [`Epoll::next_retry`].
    #[cfg(feature = "local")]
    pub(crate) fn run_queued(&mut self, state: &mut State) -> bool {
        self.run(state);
        self.queue.is_empty()
    }

    /// Another thread may see at the descriptor what this one would. Not where it stands for a
    /// signalfd(2), which is readable to a thread for the signals of that thread and the process.
    #[cfg(feature = "local")]
    pub(crate) const fn may_be_watched(&self) -> bool {
        !self.shows_by_thread
    }

    /// How long until something is tried again that could not be done.
    #[cfg(feature = "local")]
    pub(crate) fn next_retry(&self) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Puts a slot on the run queue.
    fn enqueue(&mut self, state: &mut State, slot: u32) {
        let flags = &mut state.slot(slot).flags;
        if !flags.queued {
            flags.queued = true;
            self.queue.push_back(slot);
        }
    }

    /// The program asked for an operation: it is tried when the batch is full, or at the next
    /// flush or wait.
    fn ask(&mut self, state: &mut State, slot: u32) {
        self.enqueue(state, slot);
        self.gathered += 1;
        if self.gathered >= state.config.batch {
            self.run(state);
        }
    }

    /// Lets each slot that is on the queue now try what it has to do.
    fn run(&mut self, state: &mut State) {
        self.gathered = 0;
        for _ in 0..self.queue.len() {
            let Some(slot) = self.queue.pop_front() else { return };
            self.try_slot(state, slot);
        }
    }

    fn try_slot(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        if !std::mem::take(&mut entry.flags.queued) {
            // The slot was released since; its new owner has requested nothing yet.
            return;
        }
        match (entry.phase, entry.kind) {
            (SlotPhase::Free | SlotPhase::Leaving | SlotPhase::Closing, _) | (_, Kind::Timer) => {}
            (SlotPhase::Starting, _) => self.try_connect(state, slot),
            (_, Kind::Listener) => self.try_accept(state, slot),
            (_, kind) if kind.is_stream() => {
                if state.peek(slot).receiving == Receiving::Yes {
                    self.receive(state, slot);
                }
                self.next_write(state, slot);
            }
            (_, kind) => {
                if state.peek(slot).flags.reading {
                    if kind.is_message() {
                        self.read_messages(state, slot);
                    } else {
                        self.read_plain(state, slot);
                    }
                }
                self.next_write(state, slot);
                self.arm(state, slot);
            }
        }
    }

    /// Waits for events and notes what they allow.
    fn fetch(
        &mut self,
        state: &mut State,
        patience: Option<Duration>,
    ) -> Result<(), DispatchError> {
        self.polls = 0;
        state.counters.system_calls += 1;
        let count = match self.set.wait(patience) {
            Ok(count) => count,
            // The caller looks at the time.
            Err(Errno::INTR) => {
                state.interrupted = true;
                0
            }
            Err(errno) => return Err(DispatchError::Kernel(errno.into())),
        };
        state.counters.kernel_answers += count as u64;
        for index in 0..count {
            let (data, happened) = self.set.event(index);
            self.on_event(state, data, happened);
        }
        self.resume_retries(state);
        Ok(())
    }

    fn on_event(&mut self, state: &mut State, data: u64, happened: EventFlags) {
        match data {
            WAKE => return state.woken = true,
            FILES_DONE => return self.collect_jobs(state),
            _ => {}
        }
        let Ok(slot) = state.find(Handle::of_channel(state.tag, data)) else {
            state.counters.stray_answers += 1;
            return;
        };
        let entry = state.slot(slot);
        let broken = EventFlags::HUP | EventFlags::ERR;
        let ended = broken | EventFlags::RDHUP | EventFlags::PRI;
        let flags = &mut entry.flags;
        flags.readable |= happened.intersects(EventFlags::IN | ended);
        flags.draining |= happened.intersects(ended);
        flags.writable |= happened.intersects(EventFlags::OUT | broken);
        if entry.flags.awaited.has(Awaited::END) && happened.intersects(broken) {
            self.tell_end(state, slot);
        }
        let entry = state.slot(slot);
        let flags = &mut entry.flags;
        let wants_input = flags.reading
            || entry.receiving == Receiving::Yes
            || entry.phase == SlotPhase::Starting
            || entry.kind == Kind::Listener;
        if (flags.readable && wants_input) || (flags.writable && (flags.writing || wants_input)) {
            self.enqueue(state, slot);
        }
    }

    /// Tells of a connection's end, if it has come.
    fn tell_end(&mut self, state: &mut State, slot: u32) {
        let Some(fd) = state.peek(slot).fd.as_ref() else { return };
        if let Some(ended) = sys::end_of(fd.as_fd()) {
            state.on_end(slot, ended);
        }
    }

    /// Makes sure that the set tells of input, and of output if asked.
    fn watch(&mut self, state: &mut State, slot: u32, output: bool) -> Result<(), OpError> {
        let entry = state.peek(slot);
        let before = entry.flags.watch;
        if before == WatchedEvents::Both || (before == WatchedEvents::Input && !output) {
            return Ok(());
        }
        let fd = entry.fd.as_ref().ok_or(OpError::BadDescriptor)?.as_fd();
        let data = entry.handle.in_channel();
        let events = if output { INPUT | EventFlags::OUT } else { INPUT };
        match before {
            WatchedEvents::No => self.set.add(fd, data, events)?,
            _ => self.set.modify(fd, data, events)?,
        }
        state.counters.system_calls += 1;
        state.slot(slot).flags.watch =
            if output { WatchedEvents::Both } else { WatchedEvents::Input };
        Ok(())
    }

    /// Removes the descriptor from the set. Closing it is enough only if it is not shared.
    fn unwatch(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        let watch = std::mem::take(&mut entry.flags.watch);
        if let (WatchedEvents::Input | WatchedEvents::Both | WatchedEvents::OneShot, Some(fd)) =
            (watch, &entry.fd)
        {
            self.set.remove(fd.as_fd());
            state.counters.system_calls += 1;
        }
    }

    /// The kernel will not say when: the slot is tried again after a pause.
    fn retry_later(&mut self, slot: u32) {
        self.retries.insert(slot);
        if self.retry_at.is_none() {
            self.retry_at = Instant::now().checked_add(Duration::from_millis(RETRY_PAUSE_MS));
        }
    }

    fn resume_retries(&mut self, state: &mut State) {
        if self.retry_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.retry_at = None;
        for slot in std::mem::take(&mut self.retries) {
            if state.slot(slot).is_live() {
                state.slot(slot).flags.writable = true;
                self.enqueue(state, slot);
            }
        }
    }

    /// How long waiting may last.
    fn patience(&self, state: &State, timeout: Option<Duration>) -> Option<Duration> {
        if state.has_ready() || !self.queue.is_empty() {
            return Some(Duration::ZERO);
        }
        let Some(retry_at) = self.retry_at else { return timeout };
        let until_retry = retry_at.saturating_duration_since(Instant::now());
        Some(timeout.map_or(until_retry, |timeout| timeout.min(until_retry)))
    }

    /// The slot was retired: when no helper thread works for it, release it.
    fn finish_closing(&mut self, state: &mut State, slot: u32) {
        debug_assert_eq!(state.slot(slot).phase, SlotPhase::Closing);
        if state.slot(slot).kernel_requests > 0 {
            return;
        }
        self.count_out(state, slot);
        // Drops the descriptor with the slot's content: closes it.
        state.release(slot);
        self.accept_again(state);
    }

    /// A retired slot's writes that were asked for and not tried yet are tried once, as they
    /// would be with io_uring, where a request that was made before its cancellation is done.
    fn last_write(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        let untried = entry.flags.queued && entry.flags.writing && entry.flags.writable;
        if !untried || entry.extra.is_some() {
            return;
        }
        if entry.kind.is_stream() {
            self.send_bytes(state, slot);
        } else if entry.kind.is_message() {
            self.send_message(state, slot);
        }
    }

    /// Takes a slot out of everything but the helper threads.
    fn let_go(&mut self, state: &mut State, slot: u32) {
        self.last_write(state, slot);
        self.retries.remove(&slot);
        let cancelled = self.files.cancel(slot);
        state.slot(slot).kernel_requests -= cancelled;
    }
}

impl Driver for Epoll {
    fn attach(&mut self, state: &mut State, slot: u32) -> io::Result<()> {
        // Each slot can be queued, so that submitting an operation needs no memory for it.
        self.queue.try_reserve(state.slot_count()).map_err(|_| Errno::NOMEM)?;
        match state.slot(slot).kind {
            Kind::Listener => self.attach_listener(state, slot),
            kind if kind.is_plain() => self.attach_plain(state, slot),
            _ => {
                self.attach_socket(state, slot);
                Ok(())
            }
        }
    }

    fn start_receive(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        entry.receiving = Receiving::Yes;
        // What is watched and was empty at the last try is not tried before its event.
        if entry.flags.readable || entry.flags.watch == WatchedEvents::No {
            self.ask(state, slot);
        }
    }

    fn start_read(&mut self, state: &mut State, slot: u32) {
        state.slot(slot).flags.reading = true;
        self.ask(state, slot);
    }

    fn start_write(&mut self, state: &mut State, slot: u32) {
        state.slot(slot).flags.writing = true;
        self.ask(state, slot);
    }

    fn start_connect(&mut self, state: &mut State, slot: u32) {
        self.ask(state, slot);
    }

    fn abandon_connect(&mut self, state: &mut State, slot: u32) {
        self.give_up_connect(state, slot);
    }

    fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions) {
        self.open_file(state, slot, path, options);
    }

    fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob) {
        self.do_job(state, slot, job);
    }

    fn start_accept(&mut self, state: &mut State, slot: u32) {
        self.ask(state, slot);
        self.ask_adopted(state, slot);
    }

    fn start_reset(&mut self, state: &mut State, slot: u32) {
        self.reset(state, slot);
    }

    fn watch_end(&mut self, state: &mut State, slot: u32) {
        if let Err(error) = self.watch(state, slot, false) {
            return state.on_end(slot, Err(error));
        }
        // Earlier events were reported before, and will not be again.
        self.tell_end(state, slot);
    }

    fn detach(&mut self, state: &mut State, slot: u32) {
        self.let_go(state, slot);
        if state.slot(slot).kind == Kind::Listener {
            self.empty_listener(state, slot);
        } else if !state.slot(slot).flags.lwsocket {
            // Another process may have the descriptor too: closing ours would leave it watched.
            self.unwatch(state, slot);
        }
        self.finish_closing(state, slot);
    }

    fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd> {
        self.let_go(state, slot);
        self.settle(state, slot);
        if state.slot(slot).kind == Kind::Listener {
            self.close_listener(state, slot);
        }
        self.unwatch(state, slot);
        self.count_out(state, slot);
        state.slot(slot).fd.take()
    }

    /// There are no direct descriptors here.
    fn discard(&mut self, _state: &mut State, _direct: u32) {}

    fn flush(&mut self, state: &mut State) -> Result<(), DispatchError> {
        self.run(state);
        Ok(())
    }

    fn wait(&mut self, state: &mut State, timeout: Option<Duration>) -> Result<(), DispatchError> {
        self.run(state);
        self.polls += 1;
        if state.has_ready() && self.polls < POLLS_PER_FETCH {
            return Ok(());
        }
        let patience = self.patience(state, timeout);
        self.fetch(state, patience)?;
        self.run(state);
        Ok(())
    }

    fn park(&mut self, state: &mut State) -> Result<Park, DispatchError> {
        self.wait(state, Some(Duration::ZERO))?;
        if state.has_ready() || !self.queue.is_empty() {
            return Ok(Park::Work);
        }
        Ok(Park::Until(self.patience(state, None)))
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.set.as_fd()]
    }

    /// There are no direct descriptors here.
    fn install(&mut self, _state: &mut State, _direct: u32) -> Result<OwnedFd, OpError> {
        Err(OpError::BadDescriptor)
    }

    fn abandon(&mut self) {
        // The set is the parent's: our copies of descriptors are closed, nothing is taken out of
        // it. The helper threads stayed in the parent, and one may have held their lock.
        self.files.abandon();
    }

    fn shut_down(&mut self, _state: &mut State) {
        self.files.stop();
    }
}
