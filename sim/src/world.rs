//! The loop: the next event in the world's time, whatever host it concerns.
//!
//! Read first: `scenario.rs`.
//!
//! Invariant: events of one moment happen in the order in which they were made.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use megapipe_stack::Instant;

use crate::check::Violation;
use crate::check::segments::{Segments, describe};
use crate::check::streams::Stream;
use crate::host::{Host, address, mac};
use crate::network::Network;
use crate::program::PORT;
use crate::scenario::{Kind, Scenario};

/// Events of one world at most.
const EVENTS_MAX: u64 = 20_000_000;
/// How long a fairness scenario runs; the second half counts.
const FAIRNESS_TIME: Duration = Duration::from_secs(40);
/// Jain's index that streams over one bottleneck must reach, in thousandths.
const FAIRNESS_MIN: u32 = 700;
/// After everything is over, frames may still go about for so long: TIME-WAIT answers, probes of
/// neighbours.
const AFTERMATH: Duration = Duration::from_secs(600);

/// What happens.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrive(usize, Vec<u8>),
    Wake(usize),
    Die(usize),
    Revive(usize),
    Cut(usize),
    Mend(usize),
}

/// How a run went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
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
    /// How much time passed in the world.
    pub elapsed: Duration,
}

/// Hosts, their network, and what is to happen.
pub struct World {
    scenario: Scenario,
    now: Instant,
    hosts: Vec<Host>,
    alive: Vec<bool>,
    lives: u64,
    /// When each host is already going to be woken.
    wakes: Vec<Option<Instant>>,
    network: Network,
    segments: Segments,
    events: BinaryHeap<Reverse<(Instant, u64, What)>>,
    order: u64,
    last_frame: Instant,
    trace: bool,
    outcome: Outcome,
}

impl World {
    /// The world of a scenario, at its first moment.
    #[must_use]
    pub fn new(scenario: Scenario) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut rng = fastrand::Rng::with_seed(scenario.seed ^ 0x7374_7265_616d_7300);
        let hosts: Vec<Host> = (0..scenario.hosts)
            .map(|host| Host::new(&scenario, host, 0, now, streams(&scenario, host, &mut rng)))
            .collect();
        let mut world = Self {
            now,
            alive: vec![true; hosts.len()],
            wakes: vec![None; hosts.len()],
            lives: 1,
            network: Network::new(&scenario, now),
            segments: Segments::default(),
            events: BinaryHeap::new(),
            order: 0,
            last_frame: now,
            trace: false,
            outcome: Outcome::default(),
            hosts,
            scenario,
        };
        for (host, at, lasts) in world.scenario.outages.clone() {
            world.happen(now + at, What::Cut(host));
            world.happen(now + at + lasts, What::Mend(host));
        }
        for (host, at) in world.scenario.deaths.clone() {
            world.happen(now + at, What::Die(host));
            world.happen(now + at + Duration::from_secs(2), What::Revive(host));
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
    pub fn run(mut self) -> Result<Outcome, Violation> {
        for host in &mut self.hosts[..2] {
            host.cross(&self.scenario, self.now)?;
        }
        for host in 0..self.hosts.len() {
            self.hosts[host].begin(self.now)?;
            self.run_host(host)?;
        }
        if self.scenario.kind == Kind::Fairness {
            self.fairness()?;
        } else {
            self.until_quiet()?;
        }
        self.outcome.frames_harmed = self.network.lost + self.network.corrupted;
        self.outcome.packets_too_large = self.network.too_large;
        self.outcome.frames_steered += self.hosts.iter().map(|host| host.steered).sum::<u64>();
        self.outcome.frames_passed_on += self.hosts.iter().map(|host| host.passed_on).sum::<u64>();
        self.outcome.connections = self.hosts.iter().map(Host::connections_ended).sum();
        self.outcome.elapsed = self.now.since(Instant::ZERO);
        Ok(self.outcome)
    }

    fn until_quiet(&mut self) -> Result<(), Violation> {
        let limit = self.now + self.scenario.patience;
        while !self.is_over() && self.step(limit)? {}
        if let Some(host) = self.hosts.iter().position(|host| !host.is_done()) {
            let connections = self.hosts[host].open();
            return Err(Violation::Stuck { host, connections });
        }
        let over = self.now;
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
        let mut received: Vec<(u64, u64)> = self.hosts[0].received().collect();
        received.sort_unstable();
        received.into_iter().map(|(_, bytes)| bytes).collect()
    }

    fn is_over(&self) -> bool {
        self.hosts.iter().all(Host::is_done)
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
            What::Arrive(host, frame) if self.alive[host] => {
                self.hosts[host].on_frame(self.now, &frame);
                self.run_host(host)?;
            }
            What::Wake(host) => {
                if self.wakes[host].is_some_and(|at| at <= self.now) {
                    self.wakes[host] = None;
                }
                if self.alive[host] {
                    self.hosts[host].begin(self.now)?;
                    self.run_host(host)?;
                }
            }
            What::Cut(host) => self.network.set_cut(host, true),
            What::Mend(host) => self.network.set_cut(host, false),
            What::Die(host) if self.alive[host] => {
                self.alive[host] = false;
                self.network.set_cut(host, true);
            }
            What::Revive(host) if !self.alive[host] => {
                self.alive[host] = true;
                self.network.set_cut(host, false);
                self.lives += 1;
                let (scenario, lives) = (&self.scenario, self.lives);
                self.outcome.frames_steered += self.hosts[host].steered;
                self.outcome.frames_passed_on += self.hosts[host].passed_on;
                self.hosts[host] = Host::new(scenario, host, lives, self.now, Vec::new());
                self.run_host(host)?;
            }
            What::Arrive(..) | What::Die(_) | What::Revive(_) => {}
        }
        Ok(true)
    }

    fn run_host(&mut self, host: usize) -> Result<(), Violation> {
        let Self { scenario, hosts, network, segments, now, events, order, outcome, .. } = self;
        let (mut sent, trace) = (false, self.trace);
        hosts[host].run(*now, scenario.may_fail(), |frame| {
            sent = true;
            outcome.frames += 1;
            let packet = if scenario.ethernet { &frame[14..] } else { frame };
            let is_ip = !scenario.ethernet || frame[12..14] != [0x08, 0x06];
            if trace && let Some(segment) = describe(packet) {
                println!("{:>14.6} {segment}", now.as_nanos() as f64 / 1e9);
            }
            if is_ip {
                segments.on_packet(host, packet)?;
            }
            for to in receivers(scenario, host, frame) {
                for arrival in network.carry(*now, host, to, frame) {
                    *order += 1;
                    let what = What::Arrive(arrival.host, arrival.frame);
                    events.push(Reverse((arrival.at, *order, what)));
                }
            }
            Ok(())
        })?;
        if sent {
            self.last_frame = self.now;
        }
        self.schedule(host);
        Ok(())
    }

    /// Wakes the host when it wants to run next, unless it is going to be by then.
    fn schedule(&mut self, host: usize) {
        let Some(next) = self.hosts[host].next_wake() else { return };
        let next = next.max(self.now + Duration::from_nanos(1));
        if self.wakes[host].is_none_or(|at| next < at) {
            self.wakes[host] = Some(next);
            self.happen(next, What::Wake(host));
        }
    }

    fn happen(&mut self, at: Instant, what: What) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, what)));
    }
}

/// Which hosts a frame reaches.
fn receivers(scenario: &Scenario, from: usize, frame: &[u8]) -> Vec<usize> {
    let everybody = || (0..scenario.hosts).filter(|host| *host != from).collect();
    if scenario.ethernet {
        if frame[0] & 1 == 1 {
            return everybody();
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
fn streams(scenario: &Scenario, host: usize, rng: &mut fastrand::Rng) -> Vec<(Stream, SocketAddr)> {
    if host == 0 {
        return Vec::new();
    }
    let fair = scenario.kind == Kind::Fairness;
    (0..scenario.connections)
        .map(|_| {
            let to = if fair { 0 } else { (host + rng.usize(1..scenario.hosts)) % scenario.hosts };
            let bytes = |rng: &mut fastrand::Rng| rng.u64(..=scenario.bytes_max);
            let stream = Stream {
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
    use crate::scenario::{Faults, Kind};
    use megapipe_stack::TcpConfig;

    /// How many frames it takes to carry megabytes over a slow link, while `change` happens.
    fn frames_of_a_transfer(change: impl Fn(&mut Scenario)) -> u64 {
        let of_bulk = (0..).map(Scenario::of).find(|it| it.kind == Kind::Bulk);
        let mut scenario = Scenario {
            hosts: 2,
            v6: false,
            delay: Duration::from_millis(5),
            bytes_per_s: Some(250_000),
            queue_frames: 64,
            faults: Faults::default(),
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
            ..of_bulk.unwrap()
        };
        change(&mut scenario);
        let outcome = World::new(scenario).run().unwrap();
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
        // What segments shrink to first, and would stay at if nobody looked for more.
        let shrunk = frames_of_a_transfer(|scenario| {
            scenario.tcp.iter_mut().for_each(|tcp| tcp.mss = Some(1024));
        });
        assert!(narrow * 100 < shrunk * 96, "{narrow} and {shrunk} frames");
    }

    #[test]
    fn equal_shares_are_fair() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), 1_000);
        assert_eq!(jain(&[1.0, 0.0]), 500);
        assert_eq!(jain(&[]), 0);
    }
}
