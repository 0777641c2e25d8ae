//! Simulation of the service: servers, connection managers and web servers, each on a core.
//!
//! Read first: `docs/SCALING.md`; [PIKA 3, 5]; `hand_over.rs` and `balancer.rs` of
//! `megapipe_service`.
//!
//! The real code decides: `OfferTable` and `AcceptQueue` hand connections over, the balancer in
//! them selects acceptors and makes offers, and the steering code places flows. Simulated are time,
//! cores, messages between them, clients and the web servers' work, with costs that are measured in
//! the same run (`service_costs.rs`). `service/engine.rs` has cores, mail and clients,
//! `service/servers.rs` and `service/applications.rs` what each core does, `service/run.rs` the
//! loop, `service/tally.rs` the counts.
//!
//! Pure: costs and a system in, counts and times out.
//!
//! Invariants
//! - A core does one thing at a time, in the order in which its mail arrives.
//! - Mail from one core to another keeps its order.
//! - The same costs and the same system give the same outcome.

mod applications;
mod engine;
mod run;
mod seats;
mod servers;
mod tally;

use super::clock::Time;
use megapipe_service::{
    balancer::{OfferRule, Scheme},
    layout::ServerLayout,
};
pub(crate) use tally::ServiceOutcome;

/// Costs in nanoseconds of core time, except for delays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ServiceCosts {
    /// A short connection at the transport server: the SYN in, the SYN-ACK out.
    pub(crate) handshake_ns: f64,
    /// The last ACK and the request in.
    pub(crate) accept_ns: f64,
    /// The response out, and the end of the connection.
    pub(crate) respond_ns: f64,
    /// Channel and program, for a short connection.
    pub(crate) program_ns: f64,
    /// A request on a connection that is kept, in and out, and at the program.
    pub(crate) kept_in_ns: f64,
    pub(crate) kept_out_ns: f64,
    pub(crate) kept_program_ns: f64,
    /// A client, for each time that it is waited for.
    pub(crate) client_ns: f64,
    pub(crate) kept_client_ns: f64,
    /// A frame at a link server of its own.
    pub(crate) frame_ns: f64,
    /// A message, at the sending and at the receiving core, and on the way between them.
    pub(crate) send_ns: f64,
    pub(crate) take_ns: f64,
    pub(crate) delay_ns: f64,
    /// Delay of the wake-up of a core that sleeps.
    pub(crate) wake_ns: f64,
    /// Selection of an acceptor.
    pub(crate) pick_ns: f64,
    /// Another report or message at a connection manager.
    pub(crate) report_ns: f64,
    /// Offer made, without its messages, and offer taken.
    pub(crate) offer_ns: f64,
    pub(crate) offer_take_ns: f64,
    /// A change in the transport server's table of offers.
    pub(crate) table_ns: f64,
}

/// How connections reach web servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionDistribution {
    /// By the balancer.
    Balanced(Scheme),
    /// From one queue, first come first served, as Linux's listening socket without SO_REUSEPORT.
    SharedQueue,
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clients {
    /// So many connections at a time; each ends before its client begins the next.
    Closed(u32),
    /// So many new connections a second, evenly.
    Open(u32),
}

/// Additional work of one web server for each request, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slowness {
    /// Index of the web server.
    pub(crate) application: usize,
    pub(crate) from: Time,
    pub(crate) until: Time,
    pub(crate) added: Time,
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceWorld {
    pub(crate) layout: ServerLayout,
    /// Web servers, each on a core of its own and enlisted with the manager of its index.
    pub(crate) applications: u16,
    pub(crate) distribution: ConnectionDistribution,
    /// Whether flows are placed on transport servers in turn rather than by their hash.
    pub(crate) in_turn: bool,
    pub(crate) offer_rule: OfferRule,
    pub(crate) clients: Clients,
    /// Requests of a connection; none: it is kept for ever.
    pub(crate) requests: Option<u32>,
    /// Work of the web server for a request, on top of the program's own cost.
    pub(crate) work: Time,
    pub(crate) slowness: Vec<Slowness>,
    /// Nothing counts before.
    pub(crate) warm_up: Time,
    /// All of the simulated time.
    pub(crate) duration: Time,
    /// Interval of the series over time.
    pub(crate) bin: Time,
    pub(crate) seed: u64,
}

/// Runs a simulation. Takes about a microsecond for each message.
pub(crate) fn simulate_service(costs: &ServiceCosts, world: &ServiceWorld) -> ServiceOutcome {
    run::run(costs, world)
}

/// The outcome of requests that were measured instead, each with the time at which it was answered,
/// the index of its web server, and how long it took. Pure.
pub(crate) fn measured_outcome(
    world: &ServiceWorld,
    served: impl Iterator<Item = (Time, usize, Time)>,
) -> ServiceOutcome {
    let mut tally = tally::ServiceTally::new(world);
    served.for_each(|(at, application, time)| tally.on_served(at, application, time));
    tally.outcome(world)
}

#[cfg(test)]
mod tests;
