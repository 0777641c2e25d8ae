//! Effects of a call or a completion on one object, which the table applies.
//!
//! An object submits its operations by its transport (`transport.rs`), and returns what concerns
//! others: the events that watchers and waiters are notified of, and what is free again.

use crate::error::Error;
use crate::flags::Events;
use crate::ports::BoundPort;

/// The result of a call, and the events that it caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Effects<T> {
    /// What the call returns.
    pub(crate) result: Result<T, Error>,
    /// Events that the object's watchers and waiters are notified of.
    pub(crate) events: Events,
}

impl<T> Effects<T> {
    /// A result that concerns no other thread or set.
    pub(crate) const fn quiet(result: Result<T, Error>) -> Self {
        Self { result, events: Events::empty() }
    }
}

/// What is left of an object when its last descriptor is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub(crate) struct Released {
    /// The local address that is free again.
    pub(crate) bound: Option<BoundPort>,
    /// The connection stays in the channel, with the cookie [`crate::transport::CLOSED`], until
    /// its last bytes are sent.
    pub(crate) is_sending: bool,
}
