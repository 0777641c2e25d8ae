//! Cores of the simulated service, their mail, and its clients.
//!
//! Pure.

use super::{
    super::{
        clock::{Time, VirtualClock, picoseconds},
        flows::Flows,
    },
    ConnectionDistribution, ServiceCosts, ServiceWorld,
    seats::{ApplicationSeat, ManagerSeat, TransportSeat},
    tally::ServiceTally,
};
use megapipe_service::{
    AcceptorName,
    balancer::{BalancerConfig, Scheme},
    hand_over::{
        AcceptorReport, Assignment, Availability, ConnectionName, HandOverConfig, ManagerMessage,
        TransportReport,
    },
    layout::{Component, ServerRoles},
    limits::SPIN_DEFAULT,
};
use megapipe_stack::Instant;
use std::collections::VecDeque;

/// What a client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientSegment {
    Syn,
    /// The handshake's last ACK with the first request.
    Request,
    /// A further request.
    Next,
}

/// What a core works on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mail {
    /// From the link.
    Frames(u32, ClientSegment),
    /// From a link server of another core.
    Steered(u32, ClientSegment),
    /// Frames to send, for a link server of another core.
    FramesOut(u32),
    /// To a connection manager.
    Transport {
        report: TransportReport,
        since: Time,
    },
    Acceptor(AcceptorReport),
    Manager(ManagerMessage),
    EnlistAgain(AcceptorName),
    /// To a transport server.
    Assigned {
        assignment: Assignment,
        since: Time,
    },
    Claim(ConnectionName, AcceptorName),
    Respond(u32),
    /// To a web server.
    Available(Availability),
    Confirmed(u32),
    Late(AcceptorName),
    Requested(u32),
}

impl Mail {
    /// Whether it is a message between two cores rather than frames.
    pub(super) const fn is_message(&self) -> bool {
        !matches!(self, Self::Frames(..))
    }
}

#[derive(Debug)]
pub(super) enum ServiceEvent {
    /// Mail is in a core's ring.
    Delivered { core: usize, mail: Mail },
    /// A core takes the next mail.
    Work { core: usize },
    /// A client's frames reach the link.
    Sent { conn: u32, segment: ClientSegment },
    /// A client begins a connection.
    Begin { client: u32 },
    /// The next of evenly spaced connections.
    Arrival,
    /// A transport server's claims may be overdue.
    Claims { transport: usize },
    /// A manager that sends offers unconditionally does so.
    Offers { manager: usize },
    /// A bin ends.
    Bin,
}

#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) inbox: VecDeque<Mail>,
    pub(super) is_scheduled: bool,
    pub(super) busy_until: Time,
}

/// A client's connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientFlow {
    pub(super) name: ConnectionName,
    /// None for evenly spaced connections.
    client: Option<u32>,
    /// When the client sent the SYN or the current request.
    began: Time,
    pub(super) offered: Time,
    /// The web server's index, once it is offered.
    pub(super) application: usize,
    /// Whether the SYN-ACK was sent.
    pub(super) is_answered: bool,
    /// Requests after this one.
    left: u32,
}

/// A core's work on one piece of mail.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreJob {
    pub(super) core: usize,
    /// The simulated time so far.
    pub(super) at: Time,
}

impl CoreJob {
    pub(super) fn spend(&mut self, ns: f64) {
        self.at += picoseconds(ns);
    }

    pub(super) const fn now(&self) -> Instant {
        Instant::from_nanos(self.at / 1_000)
    }
}

/// A running simulation.
pub(super) struct ServiceRun<'world> {
    pub(super) world: &'world ServiceWorld,
    pub(super) costs: ServiceCosts,
    pub(super) clock: VirtualClock<ServiceEvent>,
    pub(super) cores: Vec<Core>,
    pub(super) roles: Vec<ServerRoles>,
    /// Cores of the instances of each component.
    pub(super) links: Vec<usize>,
    pub(super) transports: Vec<TransportSeat>,
    pub(super) managers: Vec<ManagerSeat>,
    pub(super) applications: Vec<ApplicationSeat>,
    pub(super) shared: VecDeque<u32>,
    flows: Flows,
    pub(super) open: Vec<ClientFlow>,
    pub(super) chance: fastrand::Rng,
    pub(super) tally: ServiceTally,
}

fn instances(roles: &[ServerRoles], component: Component) -> Vec<usize> {
    let mut found: Vec<(u16, usize)> = roles
        .iter()
        .enumerate()
        .filter_map(|(core, roles)| Some((roles.instance(component)?, core)))
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, core)| core).collect()
}

impl<'world> ServiceRun<'world> {
    pub(super) fn new(costs: &ServiceCosts, world: &'world ServiceWorld) -> Self {
        let roles = world.layout.servers();
        let scheme = match world.distribution {
            ConnectionDistribution::Balanced(scheme) => scheme,
            ConnectionDistribution::SharedQueue => Scheme::Naive,
        };
        let offer_rule = world.offer_rule;
        let balancer = BalancerConfig { scheme, offer_rule, ..BalancerConfig::default() };
        let hand_over = HandOverConfig::default();
        let transports = instances(&roles, Component::Transport);
        let managers = instances(&roles, Component::Manager);
        let seats = managers.len();
        let cores = roles.len() + usize::from(world.applications);
        Self {
            world,
            costs: *costs,
            clock: VirtualClock::new(),
            cores: (0..cores).map(|_| Core::default()).collect(),
            links: instances(&roles, Component::Link),
            transports: {
                let seat = |core: usize| TransportSeat::new(core, &hand_over);
                transports.into_iter().map(seat).collect()
            },
            managers: {
                let seat = |(index, core)| ManagerSeat::new(index, core, &hand_over, &balancer);
                managers.into_iter().enumerate().map(seat).collect()
            },
            applications: {
                let application =
                    |index: usize| ApplicationSeat::new(roles.len() + index, index % seats);
                (0..usize::from(world.applications)).map(application).collect()
            },
            roles,
            shared: VecDeque::new(),
            flows: {
                let shards = world.layout.count(Component::Transport);
                if world.in_turn { Flows::in_turn(shards) } else { Flows::new(shards) }
            },
            open: Vec::new(),
            chance: fastrand::Rng::with_seed(world.seed),
            tally: ServiceTally::new(world),
        }
    }

    /// Mail arrives. A core that has been idle for longer than it spins wakes up first.
    pub(super) fn deliver(&mut self, core: usize, mail: Mail) {
        let now = self.clock.now();
        let seat = &mut self.cores[core];
        seat.inbox.push_back(mail);
        self.schedule_work(core, now);
    }

    /// Schedules a core's next work, unless it is scheduled.
    pub(super) fn schedule_work(&mut self, core: usize, now: Time) {
        let seat = &mut self.cores[core];
        if seat.is_scheduled {
            return;
        }
        seat.is_scheduled = true;
        let spins_until = seat.busy_until + SPIN_DEFAULT.as_nanos() as Time * 1_000;
        let wake = if now > spins_until { picoseconds(self.costs.wake_ns) } else { 0 };
        let at = seat.busy_until.max(now) + wake;
        self.clock.schedule(at, ServiceEvent::Work { core });
    }

    /// Work outside of mail delays what the core does next.
    pub(super) fn occupy(&mut self, core: usize, work: impl FnOnce(&mut Self, &mut CoreJob)) {
        let at = self.cores[core].busy_until.max(self.clock.now());
        let mut job = CoreJob { core, at };
        work(self, &mut job);
        self.cores[core].busy_until = job.at;
    }

    /// Charges the receipt of a message.
    pub(super) fn take_message(&mut self, mail: &Mail, job: &mut CoreJob) {
        let before = job.at;
        job.spend(self.costs.take_ns);
        self.charge_message(mail, *job, before);
    }

    fn charge_message(&mut self, mail: &Mail, job: CoreJob, before: Time) {
        if !self.tally.counts(job.at) {
            return;
        }
        let is_offer = matches!(mail, Mail::Manager(ManagerMessage::Offer(_)));
        if is_offer {
            self.tally.offer_time += job.at - before;
        } else if self.roles.get(job.core).is_some_and(is_transport) {
            self.tally.message_time += job.at - before;
        }
    }

    /// Work of the stack at a transport server.
    pub(super) fn spend_in_stack(&mut self, job: &mut CoreJob, ns: f64) {
        let before = job.at;
        job.spend(ns);
        if self.tally.counts(job.at) {
            self.tally.stack_time += job.at - before;
        }
    }

    /// Sends mail to another core.
    pub(super) fn post(&mut self, job: &mut CoreJob, to: usize, mail: Mail) {
        let before = job.at;
        job.spend(self.costs.send_ns);
        self.charge_message(&mail, *job, before);
        let at = job.at + picoseconds(self.costs.delay_ns);
        self.clock.schedule(at, ServiceEvent::Delivered { core: to, mail });
    }

    pub(super) fn schedule_claims(&mut self, transport: usize, at: Time) {
        self.clock.schedule(at, ServiceEvent::Claims { transport });
    }

    pub(super) fn schedule_offers(&mut self, manager: usize, at: Time) {
        self.clock.schedule(at, ServiceEvent::Offers { manager });
    }

    pub(super) const fn now(&self) -> Time {
        self.clock.now()
    }

    /// The connection manager of a server's core.
    pub(super) fn manager_at(&self, core: usize) -> Option<usize> {
        self.roles.get(core)?.instance(Component::Manager).map(usize::from)
    }

    /// The core that receives a connection's frames.
    pub(super) fn link_of(&self, conn: u32) -> usize {
        let transport = usize::from(self.open[conn as usize].name.transport);
        self.links[transport % self.links.len()]
    }

    pub(super) fn client_time(&self) -> Time {
        let is_kept = self.world.requests.is_none();
        let ns = if is_kept { self.costs.kept_client_ns } else { self.costs.client_ns };
        picoseconds(ns)
    }

    /// A client's part, which varies by half.
    fn client_delay(&mut self) -> Time {
        let time = self.client_time();
        time / 2 + self.chance.u64(0..=time)
    }

    pub(super) fn connect(&mut self, client: Option<u32>) {
        let now = self.clock.now();
        let conn = self.open.len() as u32;
        let name = ConnectionName {
            transport: self.flows.open(),
            id: u64::from(conn),
            flow_hash: self.chance.u32(..),
        };
        let left = self.world.requests.map_or(u32::MAX, |count| count.saturating_sub(1));
        self.open.push(ClientFlow {
            name,
            client,
            began: now,
            offered: now,
            application: 0,
            is_answered: false,
            left,
        });
        self.clock.schedule(now, ServiceEvent::Sent { conn, segment: ClientSegment::Syn });
    }

    /// The client has the SYN-ACK.
    pub(super) fn on_handshake(&mut self, conn: u32, at: Time) {
        let at = at + self.client_delay();
        self.clock.schedule(at, ServiceEvent::Sent { conn, segment: ClientSegment::Request });
    }

    /// Whether a response is the connection's last.
    pub(super) fn is_last(&self, conn: u32) -> bool {
        self.open[conn as usize].left == 0
    }

    /// The client has a response.
    pub(super) fn on_response(&mut self, conn: u32, at: Time) {
        let next = at + self.client_delay();
        let flow = &mut self.open[conn as usize];
        self.tally.on_response(at, at - flow.began);
        if flow.left > 0 {
            flow.left -= 1;
            flow.began = next;
            // The service time of a kept connection is that of its current request.
            flow.offered = next;
            self.clock.schedule(next, ServiceEvent::Sent { conn, segment: ClientSegment::Next });
        } else if let Some(client) = flow.client {
            self.clock.schedule(next, ServiceEvent::Begin { client });
        }
    }

    /// A connection that no queue has room for: its client begins another one.
    pub(super) fn on_refused(&mut self, conn: u32, at: Time) {
        if let Some(client) = self.open[conn as usize].client {
            self.clock.schedule(at, ServiceEvent::Begin { client });
        }
    }

    /// Wakes a web server that does nothing, if there is one, for the shared queue.
    pub(super) fn wake_an_application(&mut self, at: Time) {
        let count = self.applications.len();
        let first = self.chance.usize(..count);
        let is_idle = |index: &usize| {
            let core = &self.cores[self.applications[*index].core];
            !core.is_scheduled && core.busy_until <= at
        };
        let idle = (first..count).chain(0..first).find(is_idle);
        if let Some(index) = idle {
            let core = self.applications[index].core;
            self.schedule_work(core, at + picoseconds(self.costs.delay_ns));
        }
    }
}

const fn is_transport(roles: &ServerRoles) -> bool {
    roles.instance(Component::Transport).is_some()
}
