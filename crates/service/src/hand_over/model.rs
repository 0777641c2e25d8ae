//! Model test of the hand-over: two servers, their acceptors and connections, in every order.
//!
//! Each server is a transport server and a connection manager, inlined. Servers exchange messages
//! over links that keep their order, and so do servers and acceptors. Time does not pass: an offer
//! may time out at any moment. The exhaustive search visits each reachable state of a small world
//! once; the random one runs larger worlds from seeds.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use megapipe_stack::Instant;
use proptest::prelude::*;

use super::*;
use crate::acceptor::{AcceptorId, ManagerId};
use crate::balancer::{BalancerConfig, LoadMeasure};
use crate::limits::{OFFER_EXPIRY_DEFAULT, OFFER_REFRESH_DEFAULT, PROBE_CONNECTIONS_MAX};

const NOW: Instant = Instant::from_nanos(1);
const SERVERS: usize = 2;

/// Between servers.
#[derive(Debug, Clone, Copy, Hash)]
enum ModelMail {
    Manager(ManagerMessage),
    Report(AcceptorReport),
}

/// From a server to an acceptor.
#[derive(Debug, Clone, Copy, Hash)]
enum AcceptorMail {
    Available(Availability),
    Answer(ConnectionName, AcceptorName, ClaimOutcome),
    Withdrawn(ConnectionName),
}

/// From an acceptor to a server.
#[derive(Debug, Clone, Copy, Hash)]
enum ServerCall {
    Enlist(Option<AcceptorName>),
    Claim(ConnectionName, AcceptorName),
    Close(ConnectionName),
}

#[derive(Debug, Clone, Hash)]
struct ModelServer {
    queue: AcceptQueue,
    table: OfferTable,
    to_server: [VecDeque<ModelMail>; SERVERS],
    to_acceptor: Vec<VecDeque<AcceptorMail>>,
    /// Acceptors whose death it has noticed.
    noticed: BTreeSet<usize>,
}

#[derive(Debug, Clone, Hash)]
struct ModelAcceptor {
    home: usize,
    is_alive: bool,
    to_server: [VecDeque<ServerCall>; SERVERS],
    owned: BTreeSet<ConnectionName>,
    withdrawn: BTreeSet<ConnectionName>,
    /// The enlistment that ended with a late claim.
    lost: Option<AcceptorName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Unborn,
    Established,
    Finished,
}

/// How often each kind of fault may still occur.
#[derive(Debug, Clone, Copy, Hash)]
struct ModelFaults {
    time_outs: u32,
    resets: u32,
    deaths: u32,
    /// Offers that managers may publish, and times that what was lent expires.
    offers: u32,
    expiries: u32,
}

#[derive(Debug, Clone, Hash)]
struct ModelWorld {
    servers: Vec<ModelServer>,
    acceptors: Vec<ModelAcceptor>,
    connections: Vec<Fate>,
    faults: ModelFaults,
    credit: u32,
    now: Instant,
}

#[derive(Debug, Clone, Copy)]
enum ModelStep {
    Establish(usize),
    Between(usize, usize),
    ToAcceptor(usize, usize),
    FromAcceptor(usize, usize),
    TimeOut(usize),
    Reset(usize),
    Die(usize),
    NoticeDeath(usize, usize),
    Close(usize, ConnectionName),
    Publish(usize),
    Expire(usize),
}

impl ModelStep {
    /// The step uses its random number.
    const fn draws(&self) -> bool {
        !matches!(self, Self::ToAcceptor(..) | Self::Die(_) | Self::Close(..))
    }
}

fn name(index: usize) -> ConnectionName {
    let transport = (index % SERVERS) as u16;
    ConnectionName { transport, id: index as u64, flow_hash: 0 }
}

fn number(id: AcceptorId) -> usize {
    id.0 as usize
}

impl ModelWorld {
    fn new(homes: &[usize], connections: usize, credit: u32, faults: ModelFaults) -> Self {
        let server = |index: usize| {
            let config = HandOverConfig::default();
            // With offers, acceptors have a service time from the beginning.
            let measure = match faults.offers {
                0 => LoadMeasure::Closed,
                _ => LoadMeasure::Connections,
            };
            let balancer = BalancerConfig { measure, ..BalancerConfig::default() };
            ModelServer {
                queue: AcceptQueue::new(ManagerId(index as u16), &config, balancer)
                    .expect("default settings"),
                table: OfferTable::new(&config).expect("default settings"),
                to_server: Default::default(),
                to_acceptor: vec![VecDeque::new(); homes.len()],
                noticed: BTreeSet::new(),
            }
        };
        let acceptor = |&home: &usize| {
            let mut to_server: [VecDeque<ServerCall>; SERVERS] = Default::default();
            to_server[home].push_back(ServerCall::Enlist(None));
            ModelAcceptor {
                home,
                is_alive: true,
                to_server,
                owned: BTreeSet::new(),
                withdrawn: BTreeSet::new(),
                lost: None,
            }
        };
        Self {
            servers: (0..SERVERS).map(server).collect(),
            acceptors: homes.iter().map(acceptor).collect(),
            connections: vec![Fate::Unborn; connections],
            faults,
            credit,
            now: NOW,
        }
    }

    /// The steps that are possible now.
    fn steps(&self) -> Vec<ModelStep> {
        let mut steps = Vec::new();
        for (index, fate) in self.connections.iter().enumerate() {
            let table = &self.servers[index % SERVERS].table;
            match fate {
                Fate::Unborn => steps.push(ModelStep::Establish(index)),
                Fate::Established => {
                    if self.faults.time_outs > 0 && table.offered_to(index as u64).is_some() {
                        steps.push(ModelStep::TimeOut(index));
                    }
                    if self.faults.resets > 0 {
                        steps.push(ModelStep::Reset(index));
                    }
                }
                Fate::Finished => {}
            }
        }
        for (from, server) in self.servers.iter().enumerate() {
            if self.faults.offers > 0 && server.queue.balancer().credit() > 0 {
                steps.push(ModelStep::Publish(from));
            }
            if self.faults.expiries > 0 && server.queue.next_expiry().is_some() {
                steps.push(ModelStep::Expire(from));
            }
            let is_full = |to: &usize| !server.to_server[*to].is_empty();
            steps.extend((0..SERVERS).filter(is_full).map(|to| ModelStep::Between(from, to)));
        }
        for (index, acceptor) in self.acceptors.iter().enumerate() {
            for (server, it) in self.servers.iter().enumerate() {
                if acceptor.is_alive && !it.to_acceptor[index].is_empty() {
                    steps.push(ModelStep::ToAcceptor(server, index));
                }
                if !acceptor.to_server[server].is_empty() {
                    steps.push(ModelStep::FromAcceptor(index, server));
                } else if !acceptor.is_alive && !it.noticed.contains(&index) {
                    steps.push(ModelStep::NoticeDeath(index, server));
                }
            }
            if acceptor.is_alive {
                steps.extend(acceptor.owned.iter().map(|&conn| ModelStep::Close(index, conn)));
                if self.faults.deaths > 0 {
                    steps.push(ModelStep::Die(index));
                }
            }
        }
        steps
    }

    fn run(&mut self, step: ModelStep, random: u64) {
        match step {
            ModelStep::Establish(index) => {
                self.connections[index] = Fate::Established;
                let report = self.servers[index % SERVERS].table.on_established(name(index));
                self.report(index % SERVERS, report, random);
            }
            ModelStep::Between(from, to) => {
                let mail = self.servers[from].to_server[to].pop_front();
                let (mut out, queue) = (Vec::new(), &mut self.servers[to].queue);
                match mail.expect("a message") {
                    ModelMail::Manager(it) => queue.on_message(self.now, it, random, &mut out),
                    ModelMail::Report(it) => queue.on_acceptor(self.now, it, random, &mut out),
                }
                self.send(to, out, random);
            }
            ModelStep::ToAcceptor(server, index) => self.deliver_to_acceptor(server, index),
            ModelStep::FromAcceptor(index, server) => self.deliver_to_server(index, server, random),
            ModelStep::TimeOut(index) => {
                self.faults.time_outs -= 1;
                let report = self.servers[index % SERVERS].table.take_back(index as u64);
                self.report(index % SERVERS, report.expect("offered"), random);
            }
            ModelStep::Reset(index) => self.reset(index, random),
            ModelStep::Die(index) => {
                self.faults.deaths -= 1;
                self.acceptors[index].is_alive = false;
            }
            ModelStep::NoticeDeath(index, server) => self.notice_death(index, server, random),
            ModelStep::Publish(server) => {
                self.faults.offers -= 1;
                self.publish(server, OFFER_REFRESH_DEFAULT, random);
            }
            ModelStep::Expire(server) => {
                self.faults.expiries -= 1;
                self.publish(server, OFFER_EXPIRY_DEFAULT, random);
            }
            ModelStep::Close(index, conn) => {
                self.acceptors[index].owned.remove(&conn);
                let to = usize::from(conn.transport);
                self.acceptors[index].to_server[to].push_back(ServerCall::Close(conn));
            }
        }
    }

    /// Time passes, and a manager publishes its offer.
    fn publish(&mut self, server: usize, later: Duration, random: u64) {
        self.now += later;
        let mut out = Vec::new();
        self.servers[server].queue.publish_offer(self.now, SERVERS as u16, &mut out);
        self.send(server, out, random);
    }

    fn report(&mut self, server: usize, report: TransportReport, random: u64) {
        let mut out = Vec::new();
        self.servers[server].queue.on_transport(self.now, report, random, &mut out);
        self.send(server, out, random);
    }

    /// A report about an acceptor goes to its manager.
    fn report_acceptor(&mut self, server: usize, report: AcceptorReport, random: u64) {
        let home = usize::from(report.acceptor().manager.0);
        if home != server {
            self.servers[server].to_server[home].push_back(ModelMail::Report(report));
            return;
        }
        let mut out = Vec::new();
        self.servers[server].queue.on_acceptor(self.now, report, random, &mut out);
        self.send(server, out, random);
    }

    fn send(&mut self, server: usize, out: Vec<ManagerOutput>, random: u64) {
        for output in out {
            match output {
                ManagerOutput::Publish(message) => {
                    for to in (0..SERVERS).filter(|&to| to != server) {
                        let mail = ModelMail::Manager(message);
                        self.servers[server].to_server[to].push_back(mail);
                    }
                }
                ManagerOutput::Send(message) => {
                    let manager = match message {
                        ManagerMessage::Assigned { acceptor, borrower } => {
                            assert_eq!(borrower, Some(ManagerId(server as u16)), "lent credit");
                            acceptor.manager
                        }
                        ManagerMessage::TimedOut(acceptor) => acceptor.manager,
                        ManagerMessage::Returned { lent, .. } => lent.acceptor.manager,
                        ManagerMessage::Request { lender, .. } => lender,
                        _ => panic!("{message:?} is for all"),
                    };
                    let to = usize::from(manager.0);
                    self.servers[server].to_server[to].push_back(ModelMail::Manager(message));
                }
                ManagerOutput::Lend(to, offer) | ManagerOutput::Grant(to, offer) => {
                    let mail = ModelMail::Manager(ManagerMessage::Offer(offer));
                    self.servers[server].to_server[usize::from(to.0)].push_back(mail);
                }
                ManagerOutput::Assign(assignment) => self.assign(server, assignment, random),
                ManagerOutput::Refuse(conn) => panic!("{conn} is refused with room in the queue"),
            }
        }
    }

    fn assign(&mut self, server: usize, assignment: Assignment, random: u64) {
        let (id, index) = (assignment.conn.id, number(assignment.acceptor.id));
        let available = match self.servers[server].table.assign(self.now, assignment) {
            Ok(available) => available,
            Err(report) => return self.report_acceptor(server, report, random),
        };
        if !self.servers[server].noticed.contains(&index) {
            let mail = AcceptorMail::Available(available);
            self.servers[server].to_acceptor[index].push_back(mail);
        } else if let Some(report) = self.servers[server].table.take_back(id) {
            self.report(server, report, random);
        } else {
            // It was final: the connection ends as those of a dead process.
            self.finish(server, id, random);
        }
    }

    fn finish(&mut self, server: usize, id: u64, random: u64) {
        if let Some(report) = self.servers[server].table.on_closed(self.now, id) {
            self.connections[id as usize] = Fate::Finished;
            self.report_acceptor(server, report, random);
        }
    }

    fn deliver_to_acceptor(&mut self, server: usize, index: usize) {
        let mail = self.servers[server].to_acceptor[index].pop_front();
        let acceptor = &mut self.acceptors[index];
        match mail.expect("a message") {
            AcceptorMail::Available(Availability { conn, acceptor: me, is_final }) => {
                if is_final {
                    acceptor.owned.insert(conn);
                } else {
                    acceptor.to_server[server].push_back(ServerCall::Claim(conn, me));
                }
            }
            AcceptorMail::Answer(conn, _, ClaimOutcome::Confirmed) => {
                assert!(acceptor.owned.insert(conn), "{conn} is confirmed twice");
            }
            AcceptorMail::Answer(conn, _, ClaimOutcome::Repeated) => panic!("{conn} repeated"),
            AcceptorMail::Answer(conn, me, ClaimOutcome::Late) => {
                // A withdrawn offer, or a second one of the same enlistment, is no reason.
                if !acceptor.withdrawn.remove(&conn) && acceptor.lost != Some(me) {
                    acceptor.lost = Some(me);
                    let home = acceptor.home;
                    acceptor.to_server[home].push_back(ServerCall::Enlist(Some(me)));
                }
            }
            AcceptorMail::Withdrawn(conn) => {
                acceptor.withdrawn.insert(conn);
            }
        }
    }

    fn deliver_to_server(&mut self, index: usize, server: usize, random: u64) {
        let call = self.acceptors[index].to_server[server].pop_front();
        match call.expect("a call") {
            ServerCall::Enlist(lost) => {
                let (id, credit, mut out) = (AcceptorId(index as u64), self.credit, Vec::new());
                let queue = &mut self.servers[server].queue;
                let enlisted = match lost {
                    None => queue.enlist(self.now, id, credit, random, &mut out),
                    Some(lost) => queue.enlist_again(self.now, lost, credit, random, &mut out),
                };
                enlisted.expect("room");
                self.send(server, out, random);
            }
            ServerCall::Claim(conn, me) => {
                let outcome = self.servers[server].table.claim(conn, me);
                let mail = AcceptorMail::Answer(conn, me, outcome);
                self.servers[server].to_acceptor[index].push_back(mail);
            }
            ServerCall::Close(conn) => self.finish(server, conn.id, random),
        }
    }

    fn reset(&mut self, index: usize, random: u64) {
        self.faults.resets -= 1;
        self.connections[index] = Fate::Finished;
        let server = index % SERVERS;
        match self.servers[server].table.on_reset(self.now, index as u64).expect("established") {
            ResetOutcome::Waiting(report) => self.report(server, report, random),
            ResetOutcome::Withdrawn(report) => {
                let mail = AcceptorMail::Withdrawn(name(index));
                let acceptor = number(report.acceptor().id);
                self.servers[server].to_acceptor[acceptor].push_back(mail);
                self.report_acceptor(server, report, random);
            }
            ResetOutcome::Claimed(report) => {
                for acceptor in &mut self.acceptors {
                    acceptor.owned.remove(&name(index));
                }
                self.report_acceptor(server, report, random);
            }
        }
    }

    fn notice_death(&mut self, index: usize, server: usize, random: u64) {
        self.servers[server].noticed.insert(index);
        self.servers[server].to_acceptor[index].clear();
        let mut out = Vec::new();
        self.servers[server].queue.remove(AcceptorId(index as u64), &mut out);
        self.send(server, out, random);
        let connections = (server..self.connections.len()).step_by(SERVERS);
        for id in connections.map(|id| id as u64) {
            let table = &mut self.servers[server].table;
            if let Some(me) = table.offered_to(id).filter(|it| number(it.id) == index) {
                for report in table.on_acceptor_gone(me) {
                    self.report(server, report, random);
                }
            } else if table.owner(id).is_some_and(|it| number(it.id) == index) {
                self.finish(server, id, random);
            }
        }
    }

    /// What holds in every state.
    fn check(&self) {
        for (index, fate) in self.connections.iter().enumerate() {
            let (conn, server) = (name(index), &self.servers[index % SERVERS]);
            let queued = |it: &ModelServer| it.queue.waiting().filter(|&it| it == conn).count();
            let queued: usize = self.servers.iter().map(queued).sum();
            let table = &server.table;
            let states = [
                usize::from(table.is_waiting(conn.id)),
                usize::from(table.offered_to(conn.id).is_some()),
                usize::from(table.owner(conn.id).is_some()),
            ];
            let expected = usize::from(*fate == Fate::Established);
            assert_eq!(states.iter().sum::<usize>(), expected, "{conn}: {states:?}, {fate:?}");
            assert_eq!(queued, states[0], "{conn} waits in the queue exactly once");
            for (owner, acceptor) in self.acceptors.iter().enumerate() {
                let is_owner = acceptor.is_alive && acceptor.owned.contains(&conn);
                let owns = table.owner(conn.id).is_some_and(|it| number(it.id) == owner);
                assert!(!is_owner || owns || *fate == Fate::Finished, "{conn} has two owners");
            }
        }
        for acceptor in 0..self.acceptors.len() {
            self.check_lent(acceptor);
        }
        for server in &self.servers {
            let OfferCounters { offers, final_offers, claims, .. } = server.table.counters();
            let OfferCounters { take_backs, orphans, withdrawals, .. } = server.table.counters();
            let ids = 0..self.connections.len() as u64;
            let out = ids.filter(|&id| server.table.offered_to(id).is_some()).count() as u64;
            let ended = final_offers + claims + take_backs + orphans + withdrawals;
            assert_eq!(offers, ended + out, "each offer ends once");
        }
    }

    /// Each credit that a manager has lent is in one place: with the borrower, or in one message.
    fn check_lent(&self, acceptor: usize) {
        let (id, home) = (AcceptorId(acceptor as u64), self.acceptors[acceptor].home);
        for borrower in (0..SERVERS).filter(|server| *server != home) {
            let me = ManagerId(borrower as u16);
            let Some(lent) = self.servers[home].queue.balancer().lent_to(id, me) else { continue };
            let has = self.servers[borrower].queue.balancer().borrowed(ManagerId(home as u16), id);
            let credits = |mail: &ModelMail| match mail {
                ModelMail::Manager(message) => message.lent_credits(id),
                ModelMail::Report(_) => 0,
            };
            let there = &self.servers[home].to_server[borrower];
            let back = &self.servers[borrower].to_server[home];
            let on_the_way: u32 = there.iter().chain(back).map(credits).sum();
            assert_eq!(lent, has + on_the_way, "acceptor {acceptor}: {there:?} {back:?}");
        }
    }

    /// What holds once nothing can happen any more.
    fn check_end(&self) {
        let is_listed = |it: &ModelServer| it.queue.balancer().acceptors() > 0;
        for (index, fate) in self.connections.iter().enumerate() {
            let table = &self.servers[index % SERVERS].table;
            assert_eq!(table.offered_to(index as u64), None, "an offer without end");
            if *fate == Fate::Established && table.is_waiting(index as u64) {
                self.check_nothing_is_lent(index % SERVERS);
                self.check_no_credit(index);
            }
            if *fate == Fate::Established && self.credit > 100 {
                assert!(!self.servers.iter().any(is_listed), "{index} waits beside acceptors");
            }
        }
        for (index, acceptor) in self.acceptors.iter().enumerate() {
            let id = AcceptorId(index as u64);
            let listed = self.servers[acceptor.home].queue.balancer().name_of(id);
            assert_eq!(listed.is_some(), acceptor.is_alive, "acceptor {index} enlists again");
        }
        let views: Vec<usize> =
            self.servers.iter().map(|it| it.queue.balancer().acceptors()).collect();
        assert!(views.windows(2).all(|pair| pair[0] == pair[1]), "members differ: {views:?}");
    }

    /// A connection waits at a server: it has recalled what it had lent.
    fn check_nothing_is_lent(&self, server: usize) {
        let balancer = self.servers[server].queue.balancer();
        for (name, ..) in balancer.local_acceptors() {
            let lent =
                (0..SERVERS).filter_map(|it| balancer.lent_to(name.id, ManagerId(it as u16)));
            assert_eq!(lent.sum::<u32>(), 0, "{name:?}");
        }
    }

    /// A connection waits: no acceptor that may take it has credit, at any server.
    fn check_no_credit(&self, index: usize) {
        for server in &self.servers {
            let balancer = server.queue.balancer();
            let open = balancer.local_acceptors().map(|(_, _, open)| open).max().unwrap_or(0);
            // A new acceptor takes few before its first answer.
            let may_probe = open < PROBE_CONNECTIONS_MAX;
            assert!(balancer.credit() == 0 || !may_probe, "{index} waits beside credit");
        }
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Visits each reachable state once. Returns their number.
fn explore(start: ModelWorld) -> usize {
    let mut seen = HashSet::from([start.digest()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        world.check();
        let steps = world.steps();
        if steps.is_empty() {
            world.check_end();
        }
        for step in steps {
            let randoms: &[u64] = if step.draws() { &[0, 1] } else { &[0] };
            for &random in randoms {
                let mut next = world.clone();
                next.run(step, random);
                if seen.insert(next.digest()) {
                    open.push(next);
                }
            }
        }
    }
    seen.len()
}

const NO_FAULTS: ModelFaults =
    ModelFaults { time_outs: 0, resets: 0, deaths: 0, offers: 0, expiries: 0 };

/// Two acceptors with these homes. Each is a test of its own, so that they run side by side: with
/// both in one test, a slow machine prints no result for minutes.
fn explore_time_outs(homes: [usize; 2]) {
    let faults = ModelFaults { time_outs: 2, ..NO_FAULTS };
    let count = explore(ModelWorld::new(&homes, 2, 1 << 20, faults));
    println!("{homes:?}: {count} states");
    assert!(count > 1_000, "{count}");
}

#[test]
fn every_order_of_claims_and_time_outs_keeps_one_owner() {
    explore_time_outs([0, 1]);
}

#[test]
fn every_order_of_time_outs_at_one_manager_keeps_one_owner() {
    explore_time_outs([0, 0]);
}

#[test]
fn every_order_of_claims_and_resets_keeps_one_owner() {
    let faults = ModelFaults { resets: 1, time_outs: 1, ..NO_FAULTS };
    let count = explore(ModelWorld::new(&[0, 1], 2, 1, faults));
    println!("{count} states");
    assert!(count > 1_000, "{count}");
}

#[test]
fn every_order_of_claims_and_deaths_keeps_one_owner() {
    let faults = ModelFaults { deaths: 1, ..NO_FAULTS };
    let count = explore(ModelWorld::new(&[0, 1], 2, 1 << 20, faults));
    println!("{count} states");
    assert!(count > 1_000, "{count}");
}

/// Credit of an acceptor at the first server, which lends half of it to the second.
#[test]
fn every_order_of_offers_keeps_lent_credit_in_one_place() {
    for faults in [
        ModelFaults { offers: 2, expiries: 1, ..NO_FAULTS },
        ModelFaults { offers: 1, time_outs: 1, expiries: 1, ..NO_FAULTS },
        ModelFaults { offers: 1, resets: 1, expiries: 1, ..NO_FAULTS },
        ModelFaults { offers: 1, deaths: 1, expiries: 1, ..NO_FAULTS },
    ] {
        let count = explore(ModelWorld::new(&[0], 2, 4, faults));
        println!("{faults:?}: {count} states");
        assert!(count > 1_000, "{count}");
    }
}

/// No offer is published: a server without acceptors, or without credit, requests it of the other.
#[test]
fn every_order_of_requests_lets_no_two_servers_use_one_credit() {
    for (homes, connections, credit, faults) in [
        (&[0][..], 3, 2, ModelFaults { resets: 1, expiries: 1, ..NO_FAULTS }),
        (&[0, 0], 2, 1, ModelFaults { time_outs: 1, expiries: 1, ..NO_FAULTS }),
        (&[0, 1], 2, 1, ModelFaults { time_outs: 1, ..NO_FAULTS }),
        (&[0, 0], 2, 1, ModelFaults { deaths: 1, ..NO_FAULTS }),
    ] {
        let count = explore(ModelWorld::new(homes, connections, credit, faults));
        println!("{homes:?}, {faults:?}: {count} states");
        assert!(count > 1_000, "{count}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_order_of_larger_worlds_keeps_one_owner(
        seed: u64,
        homes in prop::collection::vec(0..SERVERS, 1..5),
        credit in prop_oneof![Just(1), Just(3), Just(1 << 20)],
        offers in prop_oneof![Just(0), Just(20)],
    ) {
        let deaths = homes.len() as u32 - 1;
        let faults = ModelFaults { time_outs: 20, resets: 5, deaths, offers, expiries: 5 };
        let mut world = ModelWorld::new(&homes, 24, credit, faults);
        let mut random = crate::balancer::RandomSequence::new(seed);
        loop {
            world.check();
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            world.run(steps[(random.next() % steps.len() as u64) as usize], random.next());
        }
        world.check_end();
    }
}
