//! The loop: the next event in the world's time, whatever host it concerns.
//!
//! Read first: `scenario.rs`.
//!
//! Invariant: events of one moment happen in the order in which they were made.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use megapipe_stack::Instant;

use crate::attacker::Attacker;
use crate::check::Violation;
use crate::check::datagrams::Ledger;
use crate::check::segments::{Segments, describe};
use crate::check::streams::CheckedStream;
use crate::foreign::ForeignHost;
use crate::host::{SimHost, address, mac};
use crate::network::Network;
use crate::node::SimNode;
use crate::program::PORT;
use crate::scenario::{HostPrograms, Scenario, ScenarioKind};
use crate::sockets::{ProgramSetting, SocketsHost};

/// Events of one world at most.
const EVENTS_MAX: u64 = 20_000_000;
/// How long a fairness scenario runs; the second half counts.
const FAIRNESS_TIME: Duration = Duration::from_secs(40);
/// Jain's index that streams over one bottleneck must reach, in thousandths.
const FAIRNESS_MIN: u32 = 700;
/// After everything is over, frames may still go about for so long: TIME-WAIT answers, probes of
/// neighbours.
const AFTERMATH: Duration = Duration::from_secs(600);

/// Questions for a neighbour's address before a host gives up (RFC 4861 §10).
const QUESTIONS: usize = 3;

/// What happens.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorldEvent {
    Arrive(usize, Vec<u8>),
    Wake(usize),
    Die(usize),
    Revive(usize),
    Cut(usize),
    Mend(usize),
    Strike,
}

/// How a run went.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOutcome {
    /// Events that happened.
    pub events: u64,
    /// Frames that were sent.
    pub frames: u64,
    /// Frames that the network lost or corrupted.
    pub frames_harmed: u64,
    /// Packets that were too large for their way.
    pub packets_too_large: u64,
    /// Frames that one shard read for another.
    pub frames_steered: u64,
    /// Frames that a shard passed on to the one that had their flow before listeners came.
    pub frames_passed_on: u64,
    /// Connections that came to their end, both sides counted.
    pub connections: u64,
    /// Attempts to begin a connection that found no free port.
    pub waits_for_port: u64,
    /// Exchanges of datagrams that came to their end.
    pub datagrams: u64,
    /// Datagrams that went in fragments.
    pub cut_datagrams: u64,
    /// Worlds that ended because another implementation stopped.
    pub peers_stopped: u64,
    /// Packets that an attacker forged.
    pub forgeries: u64,
    /// How much time passed in the world.
    pub elapsed: Duration,
}

/// Hosts, their network, and what is to happen.
pub struct SimWorld {
    scenario: Scenario,
    now: Instant,
    hosts: Vec<Box<dyn SimNode>>,
    alive: Vec<bool>,
    lives: u64,
    /// When each host is already going to be woken.
    wakes: Vec<Option<Instant>>,
    network: Network,
    attacker: Option<Attacker>,
    ledger: Arc<Mutex<Ledger>>,
    segments: Segments,
    events: BinaryHeap<Reverse<(Instant, u64, WorldEvent)>>,
    order: u64,
    last_frame: Instant,
    trace: bool,
    /// Connections that broke, both sides counted.
    broken: u64,
    outcome: RunOutcome,
}

impl SimWorld {
    /// The world of a scenario, at its first moment.
    #[must_use]
    pub fn new(scenario: Scenario) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut rng = fastrand::Rng::with_seed(scenario.seed ^ 0x7374_7265_616d_7300);
        let ledger = Arc::new(Mutex::new(Ledger::new(scenario.faults.duplication > 0)));
        let hosts: Vec<Box<dyn SimNode>> = (0..scenario.hosts)
            .map(|host| node(&scenario, host, 0, now, streams(&scenario, host, &mut rng), &ledger))
            .collect();
        let mut world = Self {
            now,
            alive: vec![true; hosts.len()],
            wakes: vec![None; hosts.len()],
            lives: 1,
            network: Network::new(&scenario, now),
            attacker: Attacker::new(&scenario),
            ledger,
            segments: Segments::default(),
            events: BinaryHeap::new(),
            order: 0,
            last_frame: now,
            trace: false,
            broken: 0,
            outcome: RunOutcome::default(),
            hosts,
            scenario,
        };
        for (host, at, lasts) in world.scenario.outages.clone() {
            world.happen(now + at, WorldEvent::Cut(host));
            world.happen(now + at + lasts, WorldEvent::Mend(host));
        }
        for (host, at) in world.scenario.deaths.clone() {
            world.happen(now + at, WorldEvent::Die(host));
            world.happen(now + at + Duration::from_secs(2), WorldEvent::Revive(host));
        }
        world
    }

    /// Prints every segment as it is sent.
    #[must_use]
    pub const fn traced(mut self) -> Self {
        self.trace = true;
        self
    }

    /// Runs until everything is over, and says how it went.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn run(mut self) -> Result<RunOutcome, Violation> {
        for host in &mut self.hosts {
            host.start(self.now)?;
        }
        for host in 0..self.hosts.len() {
            self.hosts[host].wake(self.now)?;
            self.run_host(host)?;
        }
        if self.scenario.kind == ScenarioKind::Fairness {
            self.fairness()?;
        } else {
            self.until_quiet()?;
        }
        self.outcome.frames_harmed = self.network.lost + self.network.corrupted;
        self.outcome.packets_too_large = self.network.too_large;
        self.outcome.cut_datagrams = self.network.cut_datagrams.into();
        for host in 0..self.hosts.len() {
            self.count(host);
        }
        if let Some(attacker) = &self.attacker {
            self.outcome.forgeries = attacker.strikes;
            let (connections, hits) = (self.broken, attacker.hits);
            // Both ends of each.
            if connections > 2 * hits {
                return Err(Violation::Broken { connections, hits });
            }
        }
        self.outcome.elapsed = self.now.since(Instant::ZERO);
        Ok(self.outcome)
    }

    /// Adds what a host has counted in its life.
    fn count(&mut self, host: usize) {
        let counts = self.hosts[host].counts();
        self.outcome.frames_steered += counts.steered;
        self.outcome.frames_passed_on += counts.passed_on;
        self.outcome.connections += counts.connections;
        self.outcome.waits_for_port += counts.waits_for_port;
        self.outcome.datagrams += counts.datagrams;
        self.broken += counts.broken;
    }

    fn until_quiet(&mut self) -> Result<(), Violation> {
        let limit = self.now + self.scenario.patience;
        while !self.is_over() && self.step(limit)? {}
        if let Some(host) = self.hosts.iter().position(|host| !host.is_done()) {
            if self.hosts.iter_mut().any(|host| host.has_given_up()) {
                self.outcome.peers_stopped = 1;
                return Ok(());
            }
            let connections = self.hosts[host].open();
            return Err(Violation::Stuck { host, connections });
        }
        let over = self.now;
        for host in 0..self.hosts.len() {
            self.hosts[host].finish();
            self.run_host(host)?;
        }
        while self.step(over + AFTERMATH * 2)? {}
        if self.last_frame > over + AFTERMATH {
            return Err(Violation::NotQuiet { host: 0 });
        }
        for (index, host) in self.hosts.iter().enumerate() {
            host.check_nothing_leaked(index)?;
        }
        Ok(())
    }

    fn fairness(&mut self) -> Result<(), Violation> {
        let start = self.now;
        while self.step(start + FAIRNESS_TIME / 2)? {}
        let before = self.received();
        while self.step(start + FAIRNESS_TIME)? {}
        let shares: Vec<f64> = self
            .received()
            .iter()
            .zip(&before)
            .map(|(after, before)| after.saturating_sub(*before) as f64)
            .collect();
        let index_thousandths = jain(&shares);
        if index_thousandths < FAIRNESS_MIN {
            return Err(Violation::Unfair { index_thousandths });
        }
        Ok(())
    }

    /// Bytes that arrived at the first host, of each stream in the order of their numbers.
    fn received(&self) -> Vec<u64> {
        let mut received: Vec<(u64, u64)> = self.hosts[0].received();
        received.sort_unstable();
        received.into_iter().map(|(_, bytes)| bytes).collect()
    }

    fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.is_done())
    }

    /// The next event, if there is one by `limit`.
    fn step(&mut self, limit: Instant) -> Result<bool, Violation> {
        match self.events.peek() {
            Some(Reverse((at, ..))) if *at <= limit => {}
            _ => return Ok(false),
        }
        let Some(Reverse((at, _, what))) = self.events.pop() else { return Ok(false) };
        self.now = self.now.max(at);
        self.outcome.events += 1;
        if self.outcome.events > EVENTS_MAX {
            return Err(Violation::Endless { events: self.outcome.events });
        }
        match what {
            WorldEvent::Arrive(host, frame) if self.alive[host] => {
                self.hosts[host].on_frame(self.now, &frame);
                self.run_host(host)?;
            }
            WorldEvent::Wake(host) => {
                if self.wakes[host].is_some_and(|at| at <= self.now) {
                    self.wakes[host] = None;
                }
                if self.alive[host] {
                    self.hosts[host].wake(self.now)?;
                    self.run_host(host)?;
                }
            }
            WorldEvent::Cut(host) => self.network.set_cut(host, true),
            WorldEvent::Mend(host) => self.network.set_cut(host, false),
            WorldEvent::Die(host) if self.alive[host] => {
                self.alive[host] = false;
                self.network.set_cut(host, true);
            }
            WorldEvent::Revive(host) if !self.alive[host] => {
                self.alive[host] = true;
                self.network.set_cut(host, false);
                self.lives += 1;
                let (scenario, lives) = (&self.scenario, self.lives);
                let next = node(scenario, host, lives, self.now, Vec::new(), &self.ledger);
                self.count(host);
                self.hosts[host] = next;
                self.run_host(host)?;
            }
            WorldEvent::Strike => {
                if let Some(attacker) = &mut self.attacker
                    && let Some(host) = attacker.strike(self.now, &mut self.hosts)?
                {
                    self.run_host(host)?;
                }
            }
            WorldEvent::Arrive(..) | WorldEvent::Die(_) | WorldEvent::Revive(_) => {}
        }
        Ok(true)
    }

    fn run_host(&mut self, host: usize) -> Result<(), Violation> {
        let Self {
            scenario, hosts, network, attacker, segments, now, events, order, outcome, ..
        } = self;
        let (mut sent, trace) = (false, self.trace);
        hosts[host].run(*now, &mut |frame| {
            sent = true;
            outcome.frames += 1;
            let packet = if scenario.ethernet { &frame[14..] } else { frame };
            let is_ip = !scenario.ethernet || frame[12..14] != [0x08, 0x06];
            if trace && let Some(segment) = describe(packet) {
                println!("{:>14.6} {segment}", now.as_nanos() as f64 / 1e9);
            }
            if is_ip {
                let verdict = segments.on_packet(host, packet);
                // A fast retransmit of smoltcp 0.14 is a full segment, whatever the window is.
                let is_foreign = scenario.programs[host] == HostPrograms::Foreign;
                if !(is_foreign && matches!(verdict, Err(Violation::OutsideWindow { .. }))) {
                    verdict?;
                }
            }
            for to in receivers(scenario, host, frame) {
                if attacker.as_mut().is_some_and(|it| it.sees((host, to), frame)) {
                    *order += 1;
                    // After it has left, and mostly before it has arrived.
                    let at = *now + scenario.delay.mul_f64(0.7);
                    events.push(Reverse((at, *order, WorldEvent::Strike)));
                }
                for arrival in network.carry(*now, host, to, frame) {
                    *order += 1;
                    let what = WorldEvent::Arrive(arrival.host, arrival.frame);
                    events.push(Reverse((arrival.at, *order, what)));
                }
            }
            Ok(())
        })?;
        if sent {
            self.last_frame = self.now;
        }
        self.check_unresolved(host)?;
        self.schedule(host);
        Ok(())
    }

    /// A host that does not find an address has asked so many times, and the network lost or
    /// delayed the question or the answer each time.
    fn check_unresolved(&mut self, host: usize) -> Result<(), Violation> {
        for address_of_peer in self.hosts[host].take_unresolved() {
            let is_it = |peer: &usize| address(&self.scenario, *peer) == address_of_peer;
            let peer = (0..self.scenario.hosts).find(is_it);
            let harmed = peer.map_or(0, |peer| self.network.harmed_questions(self.now, host, peer));
            if self.scenario.kind != ScenarioKind::Deaths && harmed < QUESTIONS {
                return Err(Violation::Unresolved { host, peer: address_of_peer, harmed });
            }
        }
        Ok(())
    }

    /// Wakes the host when it wants to run next, unless it is going to be by then.
    fn schedule(&mut self, host: usize) {
        let Some(next) = self.hosts[host].next_wake() else { return };
        let next = next.max(self.now + Duration::from_nanos(1));
        if self.wakes[host].is_none_or(|at| next < at) {
            self.wakes[host] = Some(next);
            self.happen(next, WorldEvent::Wake(host));
        }
    }

    fn happen(&mut self, at: Instant, what: WorldEvent) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, what)));
    }
}

/// A host that comes up for the `life`-th time.
fn node(
    scenario: &Scenario,
    host: usize,
    life: u64,
    now: Instant,
    to_begin: Vec<(CheckedStream, SocketAddr)>,
    ledger: &Arc<Mutex<Ledger>>,
) -> Box<dyn SimNode> {
    match scenario.programs[host] {
        HostPrograms::Stack => Box::new(SimHost::new(scenario, host, life, now, to_begin)),
        HostPrograms::Foreign => Box::new(ForeignHost::new(scenario, host, &to_begin, now)),
        _ => {
            let (scenario, ledger) = (scenario.clone(), Arc::clone(ledger));
            Box::new(SocketsHost::new(ProgramSetting { scenario, host, to_begin, ledger }, now))
        }
    }
}

/// Which hosts a frame reaches.
fn receivers(scenario: &Scenario, from: usize, frame: &[u8]) -> Vec<usize> {
    let all_others = || (0..scenario.hosts).filter(|host| *host != from).collect();
    if scenario.ethernet {
        if frame[0] & 1 == 1 {
            return all_others();
        }
        return (0..scenario.hosts).filter(|host| frame[..6] == mac(*host)).collect();
    }
    let destination = if scenario.v6 { frame.get(24..40) } else { frame.get(16..20) };
    (0..scenario.hosts)
        .filter(|host| match address(scenario, *host) {
            std::net::IpAddr::V4(own) => destination == Some(&own.octets()[..]),
            std::net::IpAddr::V6(own) => destination == Some(&own.octets()[..]),
        })
        .collect()
}

/// The connections that a host begins.
fn streams(
    scenario: &Scenario,
    host: usize,
    rng: &mut fastrand::Rng,
) -> Vec<(CheckedStream, SocketAddr)> {
    if host == 0 || scenario.kind == ScenarioKind::Datagrams {
        return Vec::new();
    }
    let servers: Vec<usize> =
        (0..scenario.hosts).filter(|to| scenario.programs[*to].serves() && *to != host).collect();
    let fair = scenario.kind == ScenarioKind::Fairness;
    (0..scenario.connections)
        .map(|_| {
            let step = rng.usize(1..scenario.hosts);
            let next = (host + step) % scenario.hosts;
            let is_served = scenario.programs[next].serves();
            let to = if fair {
                0
            } else if is_served {
                next
            } else {
                servers[step % servers.len()]
            };
            let bytes = |rng: &mut fastrand::Rng| rng.u64(..=scenario.bytes_max);
            let stream = CheckedStream {
                number: rng.u64(..),
                request_bytes: if fair { scenario.bytes_max } else { bytes(rng) },
                response_bytes: if fair || scenario.silent_servers { 0 } else { bytes(rng) },
            };
            (stream, SocketAddr::new(address(scenario, to), PORT))
        })
        .collect()
}

/// Jain's fairness index in thousandths: 1000 when all shares are equal.
fn jain(shares: &[f64]) -> u32 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 {
        return 0;
    }
    (1_000.0 * sum * sum / (shares.len() as f64 * squares)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{LinkFaults, ScenarioKind};
    use megapipe_stack::TcpConfig;

    /// How many frames it takes to carry megabytes over a slow link, while `change` happens.
    fn frames_of_a_transfer(change: impl Fn(&mut Scenario)) -> u64 {
        // The frames are compared: in other worlds of bulk the pace of the reader, and so the
        // number of acknowledgments, varies by more than what is looked for.
        let of_bulk = Scenario::of(24);
        assert_eq!(of_bulk.kind, ScenarioKind::Bulk);
        let mut scenario = Scenario {
            hosts: 2,
            v6: false,
            delay: Duration::from_millis(5),
            bytes_per_s: Some(250_000),
            queue_frames: 64,
            faults: LinkFaults::default(),
            mtu: vec![1500; 2],
            skew_ppm: vec![0; 2],
            tcp: vec![TcpConfig::default(); 2],
            connections: 1,
            bytes_max: 8 << 20,
            stall: 0,
            outages: Vec::new(),
            path_mtu: Vec::new(),
            black_hole: true,
            silent_servers: false,
            crossing: 0,
            buf_bytes: 2048,
            shards: vec![1; 2],
            listeners_come: vec![None; 2],
            programs: vec![HostPrograms::Stack; 2],
            ..of_bulk
        };
        change(&mut scenario);
        let outcome = SimWorld::new(scenario).run().unwrap();
        assert!(outcome.elapsed > Duration::from_secs(20), "{outcome:?}");
        outcome.frames
    }

    #[test]
    fn after_an_outage_segments_are_soon_full_again() {
        let cut = (0, Duration::from_secs(2), Duration::from_secs(20));
        let full = frames_of_a_transfer(|scenario| {
            scenario.outages = vec![cut];
            scenario.tcp.iter_mut().for_each(|tcp| tcp.black_hole_detection = false);
        });
        let found = frames_of_a_transfer(|scenario| scenario.outages = vec![cut]);
        assert!(found <= full * 106 / 100, "{found} frames, {full} without a doubt");
        assert!(found > full, "segments were smaller for a while");
    }

    #[test]
    fn on_a_narrow_way_segments_grow_to_what_it_takes() {
        let narrow = frames_of_a_transfer(|scenario| {
            scenario.path_mtu = vec![(Duration::from_secs(1), 1280)];
        });
        // What segments shrink to first, and would stay at without a search for more.
        let shrunk = frames_of_a_transfer(|scenario| {
            scenario.tcp.iter_mut().for_each(|tcp| tcp.mss = Some(1024));
        });
        assert!(narrow * 100 < shrunk * 96, "{narrow} and {shrunk} frames");
    }

    #[test]
    fn a_world_of_sockets_is_the_same_each_time() {
        let seeds = (0..).filter(|seed| Scenario::of(*seed).kind == ScenarioKind::Sockets);
        for seed in seeds.take(3) {
            let run = || SimWorld::new(Scenario::of(seed)).run().unwrap();
            assert_eq!(format!("{:?}", run()), format!("{:?}", run()), "seed {seed}");
        }
    }

    #[test]
    fn equal_shares_are_fair() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), 1_000);
        assert_eq!(jain(&[1.0, 0.0]), 500);
        assert_eq!(jain(&[]), 0);
    }
}
