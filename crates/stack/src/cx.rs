//! What a transport has at hand while it works: the time, the memory, and the layer below.

use crate::config::Config;
use crate::counters::Counters;
use crate::ip::Ip;
use crate::time::Instant;

/// Lent by the stack for one call.
pub(crate) struct Cx<'a, M> {
    /// The time of this call.
    pub now: Instant,
    /// Buffers of the applications.
    pub memory: &'a mut M,
    /// Addresses, routes and neighbours.
    pub ip: &'a mut Ip,
    /// What the stack was told when it was made.
    pub config: &'a Config,
    /// Where everything is counted.
    pub counters: &'a mut Counters,
}
