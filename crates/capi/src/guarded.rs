//! What one call at a time works on: the inside of a channel's object and of mTCP's contexts.
//!
//! 1. A call that comes while another is inside, from a signal handler: an error.
//! 2. A panic: caught; what is inside is broken from then on, which every later call reports.
//! 3. errno: left alone by what succeeds.
//!
//! Whoever calls sees to it that it is the owner's thread and process.
//!
//! Invariant: a `&mut T` exists only while `state` is [`State::Busy`], so there is never a second.

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{CallError, Errno, Failure};

/// A `T` and whether a call is inside.
pub(crate) struct Guarded<T> {
    state: Cell<State>,
    inner: UnsafeCell<T>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No call is inside.
    Idle,
    /// A call is inside.
    Busy,
    /// A call panicked.
    Broken,
}

impl<T> Guarded<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Self { state: Cell::new(State::Idle), inner: UnsafeCell::new(inner) }
    }

    /// Whether a call is inside; then nothing of it may be freed.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.get() == State::Busy
    }

    /// Runs `work` inside.
    #[inline]
    pub(crate) fn enter<R>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        match self.state.get() {
            State::Idle => self.state.set(State::Busy),
            State::Busy => return Err(CallError::Reentered.into()),
            State::Broken => return Err(CallError::Broken.into()),
        }
        // SAFETY: the state was idle, so no other `&mut T` exists, and it is busy now, so none will
        // come to exist until this one has ended.
        let inner = unsafe { &mut *self.inner.get() };
        let errno = Errno::now();
        // Unwind safe: after a panic nobody looks inside again, whatever was left half done.
        // The result is written in place: it has room for a failure, which success must not copy.
        let mut result = None;
        let caught = catch_unwind(AssertUnwindSafe(|| result = Some(work(inner))));
        match result {
            Some(result) if caught.is_ok() => {
                self.state.set(State::Idle);
                // A failure sets it afterwards, in `border.rs`.
                errno.put_back();
                result
            }
            _ => {
                self.state.set(State::Broken);
                Err(CallError::Broken.into())
            }
        }
    }
}
