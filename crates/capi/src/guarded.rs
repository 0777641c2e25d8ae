//! Guard of a channel's or an mTCP context's state: one call at a time, panics caught, errno kept.
//!
//! 1. A call while another one is inside (from a signal handler) is an error.
//! 2. A panic is caught; the state is broken from then on, and every later call reports it.
//! 3. A call that succeeds leaves errno unchanged.
//!
//! The caller checks that it is on the owner's thread and process.
//!
//! Invariant: a `&mut T` exists only while `state` is [`GuardState::Busy`], so there is never a
//! second.

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{CallError, CallFailure, Errno};

/// A `T` and whether a call is inside.
pub(crate) struct GuardedCell<T> {
    state: Cell<GuardState>,
    inner: UnsafeCell<T>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GuardState {
    /// No call is inside.
    Idle,
    /// A call is inside.
    Busy,
    /// A call panicked.
    Poisoned,
}

impl<T> GuardedCell<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Self { state: Cell::new(GuardState::Idle), inner: UnsafeCell::new(inner) }
    }

    /// Whether a call is inside; then nothing of it may be freed.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.get() == GuardState::Busy
    }

    /// Runs `work` on the state.
    #[inline]
    pub(crate) fn enter<R>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        match self.state.get() {
            GuardState::Idle => self.state.set(GuardState::Busy),
            GuardState::Busy => return Err(CallError::Reentered.into()),
            GuardState::Poisoned => return Err(CallError::Poisoned.into()),
        }
        // SAFETY: the state was idle, so no other `&mut T` exists, and it is busy now, so none will
        // come to exist until this one has ended.
        let inner = unsafe { &mut *self.inner.get() };
        let errno = Errno::now();
        // Unwind safe: after a panic no call reads the half-changed state again.
        // The result is written in place: it is as large as a failure, which success must not copy.
        let mut result = None;
        let caught = catch_unwind(AssertUnwindSafe(|| result = Some(work(inner))));
        match result {
            Some(result) if caught.is_ok() => {
                self.state.set(GuardState::Idle);
                // A failure sets it afterwards, in `border.rs`.
                errno.put_back();
                result
            }
            _ => {
                self.state.set(GuardState::Poisoned);
                Err(CallError::Poisoned.into())
            }
        }
    }
}
