//! What a channel needs of a back end: [`Driver`].
//!
//! Read first: `state.rs`, which decides what an operation means. `any_driver.rs` chooses one.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::buffer::ReadBuf;
use crate::completion_queue::Whose;
use crate::error::{DispatchError, OpError};
use crate::options::OpenOptions;
use crate::slot::FileJob;
use crate::state::State;

/// Whether a thread that parks a channel may sleep ([`crate::Channel::park`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Park {
    /// There may be completions: dispatch them first.
    Work,
    /// Sleep until one of the channel's descriptors is readable, for at most this time; `None`: for
    /// any time.
    Until(Option<Duration>),
}

/// How operations reach the kernel and answers come back. All slots are named by index.
pub(crate) trait Driver {
    /// A slot has its descriptor and is open: make it known to the kernel, if that is needed.
    fn attach(&mut self, state: &mut State, slot: u32) -> io::Result<()>;

    /// A stream has a read that waits and nothing unread (`State::wants_data`).
    fn start_receive(&mut self, state: &mut State, slot: u32);

    /// A message or plain descriptor has a read that waits, and none is with the kernel.
    fn start_read(&mut self, state: &mut State, slot: u32);

    /// The head of the slot's writes is to be done, and none is with the kernel: data, a
    /// disconnect or a move.
    fn start_write(&mut self, state: &mut State, slot: u32);

    /// Whether `send_silently` may be called.
    fn sends_silently(&self) -> bool {
        false
    }

    /// A quiet write to a stream that can take one at once (`Slot::can_send_at_once`), past the
    /// queue of writes. Only where `sends_silently` says so.
    fn send_silently(&mut self, _state: &mut State, _slot: u32, _bytes: ReadBuf) {}

    /// As `send_silently`, of a copy of `bytes`, which are not none. `false`: it may not be called,
    /// or there is no memory for a copy now, and nothing was done.
    #[inline]
    fn send_copied(&mut self, state: &mut State, slot: u32, bytes: &[u8]) -> bool {
        if !self.sends_silently() {
            return false;
        }
        let copy = ReadBuf::copied(&state.send_pool, bytes);
        let has_memory = copy.is_some();
        if let Some(copy) = copy {
            self.send_silently(state, slot, copy);
        }
        has_memory
    }

    /// Turns answers that were fetched already into completions, until there is one. Bytes for the
    /// one read that waits for them, or its end, are returned and need no queue; any other
    /// completion is queued. `None`: one is queued, or no answer is left. Called only while none is
    /// queued. No system call.
    fn next_answer(&mut self, _state: &mut State) -> Option<(Whose, ReadBuf)> {
        None
    }

    /// The slot is `Starting`, with `Extra::Connecting`: connect it.
    fn start_connect(&mut self, state: &mut State, slot: u32);

    /// The connection attempt has taken too long: end it with `OpError::TimedOut`.
    fn abandon_connect(&mut self, state: &mut State, slot: u32);

    /// The slot is `Starting`: open the file.
    fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions);

    /// Work at an offset of a disk file; any number may be with the kernel, in any order.
    fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob);

    /// The listener's credit or the room for connections changed: accept as far as they allow.
    fn start_accept(&mut self, state: &mut State, slot: u32);

    /// Reset the connection at once; complete the `Disconnect` when done.
    fn start_reset(&mut self, state: &mut State, slot: u32);

    /// The end of a connection is awaited (`Awaited::END`): `State::on_end`, now or when it
    /// comes.
    fn watch_end(&mut self, state: &mut State, slot: u32);

    /// The slot was retired: take everything back from the kernel, close what the slot owns, and
    /// release the slot, now or when the last answer comes.
    fn detach(&mut self, state: &mut State, slot: u32);

    /// The slot's descriptor goes back to the program: take everything back from the kernel,
    /// before returning. Bytes that arrive meanwhile are in `slot.unread`. Blocks shortly.
    fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd>;

    /// Hand over what is queued.
    fn flush(&mut self, state: &mut State) -> Result<(), DispatchError>;

    /// As `next_answer`, and queues that completion too. Does nothing, the default, where all
    /// completions are queued when answers are fetched.
    fn harvest(&mut self, _state: &mut State) {}

    /// Sees to it that `wait` ends when the next of `state.timers` is due, and that
    /// `state.timers_due` is set then. `false`: the driver cannot, and the caller of `wait` has to
    /// look after the timers by its `timeout`.
    fn watches_timers(&mut self, _state: &mut State) -> bool {
        false
    }

    /// Hand over what is queued and fetch answers, for `next_answer`; wait for the first one at
    /// most `timeout` (`None`: for ever). May return early without an answer.
    fn wait(&mut self, state: &mut State, timeout: Option<Duration>) -> Result<(), DispatchError>;

    /// When the last poll of our own stack began, on its clock.
    fn polled_at(&self) -> Option<Duration> {
        None
    }

    /// Hand over what is queued, and get ready for sleep on `descriptors`.
    fn park(&mut self, state: &mut State) -> Result<Park, DispatchError>;

    /// What becomes readable when there are answers.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// A file descriptor beside a direct one. Blocks shortly.
    fn install(&mut self, state: &mut State, direct: u32) -> Result<OwnedFd, OpError>;

    /// Close a direct descriptor that no slot has.
    fn discard(&mut self, state: &mut State, direct: u32);

    /// The channel woke up in a fork's child: never touch the kernel's side again.
    fn abandon(&mut self);

    /// The channel ends: take all memory back from the kernel.
    fn shut_down(&mut self, state: &mut State);
}
