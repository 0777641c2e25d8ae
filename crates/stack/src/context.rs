//! Context of a transport during a call: time, memory, and the IP layer.

use crate::config::Config;
use crate::counters::Counters;
use crate::ip::Ip;
use crate::time::Instant;

/// Lent by the stack for one call.
pub(crate) struct Context<'a, M> {
    /// The time of this call.
    pub now: Instant,
    /// Buffers of the applications.
    pub memory: &'a mut M,
    /// Addresses, routes and neighbours.
    pub ip: &'a mut Ip,
    /// Configuration of the stack.
    pub config: &'a Config,
    /// Where everything is counted.
    pub counters: &'a mut Counters,
}

impl<M> Context<'_, M> {
    /// The same once more, for a call that is rare: what is lent to it by its address would have to
    /// be in memory for all others, too.
    #[inline(always)]
    pub(crate) fn again(&mut self) -> Context<'_, M> {
        Context {
            now: self.now,
            memory: &mut *self.memory,
            ip: &mut *self.ip,
            config: self.config,
            counters: &mut *self.counters,
        }
    }
}
