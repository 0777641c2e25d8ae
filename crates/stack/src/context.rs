//! Context of a transport during a call: time, memory, and what a stack's transports share.

use crate::config::Config;
use crate::counters::Counters;
use crate::ip::Ip;
use crate::time::Instant;

/// What the transports of a stack stand on. In one place, so that one pointer leads to all of it.
pub(crate) struct StackBase {
    /// Addresses, routes and neighbours.
    pub ip: Ip,
    /// Configuration of the stack.
    pub config: Config,
    /// Where everything is counted.
    pub counters: Counters,
}

/// Lent by the stack for one call.
pub(crate) struct Context<'a, M> {
    /// The time of this call.
    pub now: Instant,
    /// Buffers of the applications.
    pub memory: &'a mut M,
    /// The stack below the transports.
    pub base: &'a mut StackBase,
}

impl<M> Context<'_, M> {
    /// The same once more, for a call that is rare: what is lent to it by its address would have to
    /// be in memory for all others, too.
    #[inline(always)]
    pub(crate) fn again(&mut self) -> Context<'_, M> {
        Context { now: self.now, memory: &mut *self.memory, base: &mut *self.base }
    }
}
