//! The io_uring driver.
//!
//! Read first: io_uring(7); `ring.rs` (the queues and the receive buffers), `probe.rs` (what is
//! tried before any of it is used). Then `stream.rs`, `accept.rs`, `request.rs` (how each
//! operation is asked for) and `answer.rs` (what the kernel's answers mean).
//!
//! What makes it quick: one ring per thread that only this thread enters (SINGLE_ISSUER,
//! DEFER_TASKRUN), direct descriptors instead of file descriptors, one receive request for the
//! life of a connection (multishot) into buffers that are bound to a connection only when bytes
//! arrive, and one system call per batch in both directions.
//!
//! Invariants
//! - A request names its slot, or its entry in `requests`, in `user_data` (`Tag`). A slot and an
//!   entry live until the last answer, so no answer can meet a stranger.
//! - At most one send of a slot is with the kernel: parallel sends could be reordered
//!   (io_uring_prep_send(3)).
//! - A quiet write of a pool buffer's bytes is sent silently: with MSG_DONTWAIT, so that the
//!   request is over when it is submitted, and with CQE_SKIP_SUCCESS, so that it is answered only
//!   if not all bytes went out. `silent_sends` lists them; those that were submitted are settled
//!   before any answer that came later is looked at, and nothing waits for the kernel while
//!   something waits for that (`State::silence_awaited`).
//! - A descriptor is closed only after the last answer of every request that used it: closing
//!   alone would neither end a receive nor send a FIN.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use io_uring::squeue::{Entry, Flags};
use io_uring::{cqueue, opcode, types};

use crate::buffer::ReadBuf;
use crate::completion_queue::Whose;
use crate::driver::{Driver, Park};
use crate::error::{DispatchError, OpError};
use crate::kernel::Refusal;
use crate::kernel::sys::require_small_allocations;
use crate::limits::RETRY_PAUSE_MS;
use crate::options::OpenOptions;
use crate::report::{DriverKind, DriverReport};
use crate::slot::{FileJob, Kind, Receiving, SlotPhase, Target};
use crate::state::State;

mod accept;
mod alarm;
mod answer;
mod batch;
mod capabilities;
mod probe;
mod request;
mod ring;
mod stream;

use alarm::Alarms;
use batch::{Batch, InHand, Left};
use capabilities::Capabilities;
use ring::KernelRing;
use stream::{Gather, SilentSends};

/// Makes a request on whichever kind of descriptor a slot has.
macro_rules! on_target {
    ($target:expr, $fd:ident => $build:expr) => {
        match $target {
            crate::slot::Target::Fd(raw) => {
                let $fd = io_uring::types::Fd(raw);
                Some($build)
            }
            crate::slot::Target::Direct(index) => {
                let $fd = io_uring::types::Fixed(index);
                Some($build)
            }
            crate::slot::Target::Stack(_) | crate::slot::Target::None => None,
        }
    };
}
pub(super) use on_target;

/// What a request is for; the low byte of `user_data`. The high half is a slot's index, or
/// an entry of `Uring::requests` for `Request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    /// The answer is ignored.
    Ignore = 0,
    Receive = 1,
    Send = 2,
    Accept = 3,
    Connect = 4,
    /// A shutdown or a reset.
    Disconnect = 5,
    /// A direct descriptor becomes a file descriptor (`to_fd`).
    Install = 6,
    /// Anything kept in `requests`.
    Request = 7,
    /// The channel's eventfd was rung.
    Wake = 8,
    /// Something that is waited for at once (`Uring::asked`).
    Ask = 9,
    /// A connection whose end is awaited changed, which may be its end.
    End = 10,
    /// The time is there for which the ring was asked to tell (`alarm.rs`).
    Alarm = 11,
    /// A non-blocking descriptor can be read, for a read that found nothing.
    CanRead = 12,
    /// It can be written to, for a write that found no room.
    CanWrite = 13,
}

impl Tag {
    const fn on(self, index: u32) -> u64 {
        (index as u64) << 32 | self as u64
    }

    const fn of(user_data: u64) -> Option<(Self, u32)> {
        let tag = match user_data & 0xff {
            0 => Self::Ignore,
            1 => Self::Receive,
            2 => Self::Send,
            3 => Self::Accept,
            4 => Self::Connect,
            5 => Self::Disconnect,
            6 => Self::Install,
            7 => Self::Request,
            8 => Self::Wake,
            9 => Self::Ask,
            10 => Self::End,
            11 => Self::Alarm,
            12 => Self::CanRead,
            13 => Self::CanWrite,
            _ => return None,
        };
        Some((tag, (user_data >> 32) as u32))
    }
}

pub(crate) struct Uring {
    ring: ManuallyDrop<KernelRing>,
    capabilities: &'static Capabilities,
    /// Answers fetched and not yet looked at, from `next_answer` on.
    answers: Vec<cqueue::Entry>,
    next_answer: usize,
    /// Requests put into the submission queue since the last submission.
    queued: u32,
    batch: Batch,
    requests: request::RequestTable,
    /// Vectors of sends: free ones, and those that must stay until the next submission.
    #[expect(clippy::vec_box, reason = "the kernel is given their addresses")]
    free_gathers: Vec<Box<Gather>>,
    #[expect(clippy::vec_box, reason = "the kernel is given their addresses")]
    used_gathers: Vec<Box<Gather>>,
    silent_sends: SilentSends,
    alarms: Alarms,
    /// Slots that wait for a receive buffer.
    starved: Vec<u32>,
    /// Direct descriptors in use, those that requests for one connection may yet take, and how
    /// many there can be.
    direct_open: u32,
    direct_asked: u32,
    direct_max: u32,
    wake: i32,
    /// The answer to `Tag::Ask`.
    asked: Option<i32>,
    abandoned: bool,
}

impl Uring {
    /// A ring for this thread, if the trial of everything it needs succeeded on this kernel.
    pub(crate) fn create(
        state: &mut State,
        wake: &OwnedFd,
    ) -> Result<(Self, DriverReport), Refusal> {
        let capabilities = probe::capabilities()?;
        let mut ring = KernelRing::new(&state.config, capabilities)
            .map_err(|error| Refusal::of("a ring of io_uring", error))?;
        ring.lend_buffers(&state.receive_pool);
        let mut answers = Vec::new();
        answers
            .try_reserve_exact(state.config.completion_entries as usize)
            .map_err(|_| Refusal::of("memory for answers of io_uring", rustix::io::Errno::NOMEM))?;
        require_small_allocations().map_err(|error| Refusal::of("memory", error))?;
        let mut driver = Self {
            ring: ManuallyDrop::new(ring),
            capabilities,
            answers,
            next_answer: 0,
            queued: 0,
            batch: Batch::new(state.config.batch),
            requests: request::RequestTable::new(),
            free_gathers: Vec::new(),
            used_gathers: Vec::new(),
            silent_sends: SilentSends::new(),
            alarms: Alarms::new(),
            starved: Vec::new(),
            direct_open: 0,
            direct_asked: 0,
            direct_max: state.config.max_lwsockets,
            wake: wake.as_raw_fd(),
            asked: None,
            abandoned: false,
        };
        driver.watch_wake(state);
        let report = DriverReport::new(DriverKind::Uring, capabilities.features());
        Ok((driver, report))
    }

    /// Accepted lwsockets are direct descriptors.
    fn uses_direct(&self, state: &State) -> bool {
        state.config.lwsockets && self.capabilities.direct_accept && self.capabilities.fd_install
    }

    fn watch_wake(&mut self, state: &mut State) {
        let poll = opcode::PollAdd::new(types::Fd(self.wake), libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(Tag::Wake.on(0));
        self.push(state, poll);
    }

    /// Queues a request; submits when the batch is full or the queue has no room.
    #[inline]
    fn push(&mut self, state: &mut State, entry: Entry) {
        self.enqueue(state, &entry);
        self.submit_full_batch(state);
    }

    #[inline(always)]
    fn enqueue(&mut self, state: &mut State, entry: &Entry) {
        // Room is made beforehand, so that the entry is written where it belongs and nowhere else.
        while !self.ring.has_room() {
            self.make_room(state);
        }
        let pushed = self.ring.push(entry);
        debug_assert!(pushed);
        self.queued += 1;
    }

    /// The queue is full: submitting makes room, or the completion queue is full as well and
    /// fetching answers does.
    #[cold]
    fn make_room(&mut self, state: &mut State) {
        if self.submit(state).is_err() {
            self.fetch(state);
        }
    }

    #[inline(always)]
    fn submit_full_batch(&mut self, state: &mut State) {
        if self.queued >= self.batch.full_at {
            self.on_full_batch(state);
        }
    }

    #[inline(never)]
    fn on_full_batch(&mut self, state: &mut State) {
        let more = self.next_answer < self.answers.len();
        let in_hand = InHand { taken: state.counters.completions, more };
        if self.batch.is_due(in_hand, Instant::now) {
            // A refusal leaves the requests in the queue for the next attempt.
            let _ = self.submit(state);
        }
    }

    /// Queues a request of a slot and counts it.
    fn ask(&mut self, state: &mut State, slot: u32, entry: Entry) {
        state.slot(slot).kernel_requests += 1;
        self.push(state, entry);
    }

    fn submit(&mut self, state: &mut State) -> Result<(), DispatchError> {
        if self.queued == 0 {
            return Ok(());
        }
        self.batch.left(Left::Full, state.counters.completions);
        state.counters.system_calls += 1;
        let submitted = self.ring.submit();
        self.after_submit(state, submitted)
    }

    fn after_submit(
        &mut self,
        state: &mut State,
        submitted: io::Result<usize>,
    ) -> Result<(), DispatchError> {
        match submitted {
            Ok(count) => {
                state.counters.kernel_requests += count as u64;
                self.queued = self.ring.queued() as u32;
                if self.queued == 0 {
                    // The kernel has copied the vectors (IORING_FEAT_SUBMIT_STABLE).
                    self.free_gathers.append(&mut self.used_gathers);
                }
                self.note_silent();
                Ok(())
            }
            Err(error) => match error.raw_os_error() {
                // ETIME: the wait is over. EINTR: a signal; the caller looks at the time.
                // EBUSY, EAGAIN: answers must be fetched first.
                Some(errno @ (libc::ETIME | libc::EINTR)) => {
                    state.interrupted |= errno == libc::EINTR;
                    self.queued = self.ring.queued() as u32;
                    self.note_silent();
                    Ok(())
                }
                Some(libc::EBUSY | libc::EAGAIN) => {
                    self.queued = self.ring.queued() as u32;
                    self.note_silent();
                    self.fetch(state);
                    Ok(())
                }
                _ => Err(DispatchError::Kernel(error)),
            },
        }
    }

    /// With nothing left in the submission queue, every silent send was submitted.
    fn note_silent(&mut self) {
        if self.queued == 0 {
            self.silent_sends.note_submitted();
        }
    }

    /// Copies the answers that are there; no system call. Says whether the kernel had to keep
    /// some back.
    fn fetch(&mut self, state: &mut State) -> bool {
        if self.next_answer == self.answers.len() {
            self.answers.clear();
            self.next_answer = 0;
        }
        let before = self.answers.len();
        let overflowed = self.ring.fetch(&mut self.answers);
        state.counters.kernel_answers += (self.answers.len() - before) as u64;
        state.counters.completion_overflows += u64::from(overflowed);
        if !self.silent_sends.is_empty() {
            self.look_for_broken_silence(state, before);
        }
        overflowed
    }

    /// Strikes off the silent sends that are among the answers from `first` on.
    fn look_for_broken_silence(&mut self, state: &mut State, first: usize) {
        for position in first..self.answers.len() {
            let user_data = self.answers[position].user_data();
            if user_data & 0xff != Tag::Send as u64 {
                continue;
            }
            let slot = (user_data >> 32) as u32;
            if state.slot(slot).silent_bytes > 0 {
                self.on_silence_broken(state, slot);
            }
        }
    }

    /// Copies the answers that are there, also those that found no room in the queue.
    fn fetch_all(&mut self, state: &mut State) {
        while self.fetch(state) {
            state.counters.system_calls += 1;
            let brought = self.ring.submit();
            if self.after_submit(state, brought).is_err() {
                return;
            }
        }
    }

    /// How many answers to wait for where one is wanted: none while a silent send may be all
    /// that is on its way.
    fn patience(&self) -> usize {
        usize::from(self.silent_sends.is_empty())
    }

    /// Waits until nothing of a slot is with the kernel. What else is answered meanwhile is kept.
    fn settle(&mut self, state: &mut State, slot: u32) {
        // The last answer may have been fetched already; no other would come to end the wait.
        self.harvest_all(state);
        while state.slot(slot).kernel_requests > 0 {
            state.counters.system_calls += 1;
            let patience = self.patience();
            let submitted = self.ring.submit_and_wait(patience, None);
            if self.after_submit(state, submitted).is_err() {
                return;
            }
            self.fetch(state);
            self.harvest_all(state);
        }
    }

    fn harvest_all(&mut self, state: &mut State) {
        self.settle_sends(state);
        while self.next_answer < self.answers.len() {
            self.take_answer(state);
        }
        self.restart_starved(state);
    }

    fn take_answer(&mut self, state: &mut State) {
        let answer = self.answers[self.next_answer].clone();
        self.next_answer += 1;
        self.on_answer(state, answer.user_data(), answer.result(), answer.flags());
    }

    /// The next answer, if it is the common one: bytes for the one read that waits for them.
    #[inline(always)]
    fn take_read(&mut self, state: &mut State) -> Option<(Whose, ReadBuf)> {
        if self.silent_sends.submitted > 0 {
            return None;
        }
        let answer = self.answers.get(self.next_answer)?;
        let (flags, len) = (answer.flags(), answer.result());
        let Some((Tag::Receive, slot)) = Tag::of(answer.user_data()) else { return None };
        if len <= 0 || !cqueue::more(flags) {
            return None;
        }
        let taken = state.on_received_for_one(slot, cqueue::buffer_select(flags)?, len as u32)?;
        self.next_answer += 1;
        Some(taken)
    }

    /// Asks the kernel to end every request on a slot's descriptor.
    fn cancel_all(&mut self, state: &mut State, slot: u32) {
        let target = state.slot(slot).target;
        let cancel = on_target!(target, fd => {
            opcode::AsyncCancel2::new(types::CancelBuilder::fd(fd).all()).build()
        });
        if let Some(cancel) = cancel {
            let cancel = cancel.flags(Flags::SKIP_SUCCESS).user_data(Tag::Ignore.on(0));
            self.push(state, cancel);
        }
    }

    /// The slot was retired: when nothing of it is with the kernel, close and release it.
    fn finish_closing(&mut self, state: &mut State, slot: u32) {
        debug_assert_eq!(state.slot(slot).phase, SlotPhase::Closing);
        if state.slot(slot).kind == Kind::Listener && !self.empty_listener(state, slot) {
            return;
        }
        if state.slot(slot).kernel_requests > 0 {
            return;
        }
        if let Target::Direct(direct) = state.slot(slot).target {
            self.close_direct(state, direct);
        }
        state.release(slot);
        self.accept_again(state);
    }

    fn close_direct(&mut self, state: &mut State, direct: u32) {
        let close = opcode::Close::new(types::Fixed(direct))
            .build()
            .flags(Flags::SKIP_SUCCESS)
            .user_data(Tag::Ignore.on(0));
        self.push(state, close);
        self.direct_open = self.direct_open.saturating_sub(1);
    }
}

impl Driver for Uring {
    fn attach(&mut self, _state: &mut State, _slot: u32) -> io::Result<()> {
        Ok(())
    }

    fn start_receive(&mut self, state: &mut State, slot: u32) {
        self.arm_receive(state, slot);
    }

    fn start_read(&mut self, state: &mut State, slot: u32) {
        self.ask_read(state, slot);
    }

    fn start_write(&mut self, state: &mut State, slot: u32) {
        self.next_write(state, slot);
    }

    #[inline]
    fn sends_silently(&self) -> bool {
        self.capabilities.silent_send && self.silent_sends.has_room()
    }

    #[inline(always)]
    fn send_silently(&mut self, state: &mut State, slot: u32, bytes: ReadBuf) {
        self.ask_silent_send(state, slot, bytes);
    }

    #[inline(always)]
    fn next_answer(&mut self, state: &mut State) -> Option<(Whose, ReadBuf)> {
        let read = self.take_read(state);
        if read.is_none() {
            self.harvest(state);
        }
        read
    }

    fn start_connect(&mut self, state: &mut State, slot: u32) {
        self.ask_connect(state, slot);
    }

    fn abandon_connect(&mut self, state: &mut State, slot: u32) {
        self.give_up_connect(state, slot);
    }

    fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions) {
        self.ask_open(state, slot, path, options);
    }

    fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob) {
        self.ask_job(state, slot, job);
    }

    fn start_accept(&mut self, state: &mut State, slot: u32) {
        self.arm_accept(state, slot);
    }

    fn start_reset(&mut self, state: &mut State, slot: u32) {
        self.ask_reset(state, slot);
    }

    fn detach(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        let armed = u32::from(entry.receiving == Receiving::Yes);
        match entry.kernel_requests - u32::from(entry.silent_bytes > 0) {
            // Only the receive, which the kernel finds by its number without a search.
            1 if armed == 1 => self.stop_receive(state, slot),
            0 => {}
            _ => self.cancel_all(state, slot),
        }
        self.finish_closing(state, slot);
    }

    fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd> {
        if state.slot(slot).kernel_requests > 0 {
            self.cancel_all(state, slot);
            self.settle(state, slot);
        }
        state.slot(slot).fd.take()
    }

    fn flush(&mut self, state: &mut State) -> Result<(), DispatchError> {
        self.submit(state)
    }

    fn harvest(&mut self, state: &mut State) {
        if self.silent_sends.submitted > 0 {
            self.settle_sends(state);
        }
        if self.next_answer == self.answers.len() {
            self.fetch(state);
        }
        while self.next_answer < self.answers.len() && !state.has_ready() {
            self.take_answer(state);
        }
        if !self.starved.is_empty() {
            self.restart_starved(state);
        }
    }

    #[inline]
    fn watches_timers(&mut self, state: &mut State) -> bool {
        self.set_alarm(state)
    }

    fn wait(&mut self, state: &mut State, timeout: Option<Duration>) -> Result<(), DispatchError> {
        self.ring.lend_buffers(&state.receive_pool);
        self.batch.left(Left::WithWait, state.counters.completions);
        state.counters.system_calls += 1;
        let want = usize::from(timeout != Some(Duration::ZERO) && !state.silence_awaited);
        let until = match timeout {
            Some(timeout) if want > 0 && state.config.interruptible => {
                Some(Instant::now() + timeout)
            }
            _ => None,
        };
        let submitted = self.ring.submit_and_wait(want, timeout);
        let has_submitted = matches!(submitted, Ok(1..));
        self.after_submit(state, submitted)?;
        let answers = state.counters.kernel_answers;
        self.fetch(state);
        // Where it has taken requests, the kernel tells of those and not of a signal: it came back
        // with nothing, before the time was over.
        if want > 0 && has_submitted && answers == state.counters.kernel_answers {
            state.interrupted |= until.is_none_or(|until| Instant::now() < until);
        }
        Ok(())
    }

    fn watch_end(&mut self, state: &mut State, slot: u32) {
        self.ask_end(state, slot);
    }

    fn park(&mut self, state: &mut State) -> Result<Park, DispatchError> {
        self.wait(state, Some(Duration::ZERO))?;
        self.harvest(state);
        // An answer may have led to a request, which is not submitted while the channel sleeps.
        let is_quiet = self.ring.hush() && !self.ring.has_unsubmitted();
        // What waits for a send that is not answered is looked at from time to time.
        let pause = Duration::from_millis(RETRY_PAUSE_MS);
        Ok(match state.has_ready() || !is_quiet {
            true => Park::Work,
            false => Park::Until(state.silence_awaited.then_some(pause)),
        })
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.ring.descriptor()]
    }

    fn install(&mut self, state: &mut State, direct: u32) -> Result<OwnedFd, OpError> {
        let install = opcode::FixedFdInstall::new(types::Fixed(direct), 0).build();
        self.asked = None;
        self.push(state, install.user_data(Tag::Ask.on(0)));
        self.harvest_all(state);
        while self.asked.is_none() {
            state.counters.system_calls += 1;
            let patience = self.patience();
            let submitted = self.ring.submit_and_wait(patience, None);
            self.after_submit(state, submitted).map_err(|_| OpError::InputOutput)?;
            self.fetch(state);
            self.harvest_all(state);
        }
        match self.asked.take() {
            // SAFETY: the kernel has just made this descriptor for us; it has no other owner.
            Some(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            Some(error) => Err(OpError::from_raw_os_error(-error)),
            None => Err(OpError::InputOutput),
        }
    }

    fn discard(&mut self, state: &mut State, direct: u32) {
        self.close_direct(state, direct);
    }

    fn abandon(&mut self) {
        // The ring's memory was not copied into the child (dontfork); nothing of it may be
        // touched again, not even to unmap it.
        self.abandoned = true;
    }

    fn shut_down(&mut self, state: &mut State) {
        // A ring's requests outlive its descriptor for a while, so they are ended here, before
        // the memory that they name is freed.
        for slot in state.used_slots().collect::<Vec<_>>() {
            if state.slot(slot).is_live() {
                state.retire(slot);
                self.detach(state, slot);
            }
        }
        for slot in state.used_slots().collect::<Vec<_>>() {
            self.settle(state, slot);
        }
        debug_assert!(self.requests.is_empty());
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.abandoned {
            // The child has none of the ring's memory; unmapping it could hit another mapping.
            return;
        }
        // SAFETY: dropped once, here; the field is not used again.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        // Requests that could not be ended keep their memory for ever rather than risk a write
        // into memory that was allocated again.
        if !self.requests.is_empty() {
            std::mem::forget(std::mem::replace(&mut self.requests, request::RequestTable::new()));
        }
    }
}
