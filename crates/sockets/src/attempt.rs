//! The outcome of one attempt of a call: done, or what it has to wait for.
//!
//! Read first: `calls.rs` for attempts, `context.rs` and `shared_context.rs` for waiting.

use std::time::Duration;

use crate::error::Error;
use crate::kernel;
use crate::signal::SignalMask;

/// What came of an attempt.
#[derive(Debug)]
pub enum Attempt<T> {
    /// The call is over.
    Done(Result<T, Error>),
    /// It has to wait.
    Wait(Wait),
}

impl<T> Attempt<T> {
    /// If it waits, then with that mask.
    pub(crate) fn masked(self, mask: Option<SignalMask>) -> Self {
        match self {
            Self::Wait(wait) => Self::Wait(Wait { mask, ..wait }),
            done @ Self::Done(_) => done,
        }
    }
}

/// What a signal does to a call that waits, as in signal(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// It goes on, if the handler was installed with SA_RESTART; else it ends with EINTR.
    MayRestart,
    /// It ends with EINTR: what waits for several descriptors, or has a time-out.
    Ends,
    /// It ends with what was done of it so far.
    EndsWithPart,
}

impl OnSignal {
    /// Whether the call ends now that a handler has run: it goes on if it may be restarted and the
    /// handlers allow it.
    #[cold]
    pub(crate) fn ends_call(self) -> bool {
        self != Self::MayRestart || !kernel::handlers_restart()
    }
}

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The object whose readiness matters; `None`: anything may.
    pub on: Option<u32>,
    /// From the first attempt on; `None`: for ever. When it is over, the call is tried once more,
    /// and must then return.
    pub timeout: Option<Duration>,
    pub(crate) on_signal: OnSignal,
    /// The signals that are blocked meanwhile; `None`: those that the thread blocks.
    pub(crate) mask: Option<SignalMask>,
}

impl Wait {
    pub(crate) const fn on(object: u32, timeout: Option<Duration>) -> Self {
        let on_signal = match timeout {
            Some(_) => OnSignal::Ends,
            None => OnSignal::MayRestart,
        };
        Self { on: Some(object), timeout, on_signal, mask: None }
    }

    /// For a set, whose calls no handler restarts.
    pub(crate) const fn on_set(set: u32, timeout: Option<Duration>) -> Self {
        Self { on: Some(set), timeout, on_signal: OnSignal::Ends, mask: None }
    }

    pub(crate) const fn on_anything(timeout: Option<Duration>) -> Self {
        Self { on: None, timeout, on_signal: OnSignal::Ends, mask: None }
    }

    /// Some of what was asked for is done already.
    pub(crate) const fn with_part(mut self, has_part: bool) -> Self {
        if has_part {
            self.on_signal = OnSignal::EndsWithPart;
        }
        self
    }
}
