//! A host: shards of the real stack, each with memory on the heap and an application, and a clock
//! that runs wrong.
//!
//! Frames find their shards as in a process with many of them: by the service's own steering. What
//! stands here is only the hands that move them.
//!
//! Invariant: the stack receives only its own host's time; the world's time is converted at the
//! border, in `local` and `to_world`.

use std::net::{IpAddr, SocketAddr};

use megapipe_service::steering::{
    self, BindingTable, Bindings, Classified, Destination, Fragments, Later, NOTHING, Note, PAST,
    REFUSED, Steering, SteeringKey, Takes, Transport,
};
use megapipe_stack::{Config, ConnInfo, Drop, HeapMemory, Instant, Medium, Received, Stack};

use crate::check::Violation;
use crate::check::streams::CheckedStream;
use crate::hands::{BUFFERS, Hands};
use crate::node::{NodeCounts, Send, SimNode};
use crate::program::{HostProgram, PORT};
use crate::scenario::Scenario;

/// One shard of a host: a stack, its memory, and an application.
struct HostShard {
    stack: Stack,
    memory: HeapMemory,
    program: HostProgram,
    /// What others have read for it.
    inbox: Vec<(Vec<u8>, Note)>,
}

/// One host.
pub(crate) struct SimHost {
    scenario: Scenario,
    index: usize,
    shards: Vec<HostShard>,
    /// Dispatches frames to shards, as in a process with many shards.
    steering: Steering,
    bindings: Bindings,
    table: BindingTable,
    used: Vec<bool>,
    fragments: Fragments,
    medium: Medium,
    /// The shard that reads the next frame.
    reader: usize,
    counts: NodeCounts,
    /// When the listeners of all shards but the first come, by its own clock.
    listeners_come: Option<Instant>,
    here: SocketAddr,
    skew_ppm: i64,
    /// What its clock showed when the world began.
    offset_nanos: u64,
    frame: Vec<u8>,
}

/// The address of a host.
pub(crate) fn address(scenario: &Scenario, host: usize) -> IpAddr {
    let number = host as u8 + 1;
    if scenario.v6 {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)])
    } else {
        IpAddr::from([10, 0, 0, number])
    }
}

/// Its address on the segment.
pub(crate) const fn mac(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, host as u8 + 1]
}

impl SimHost {
    /// A host that comes up for the `life`-th time.
    pub(crate) fn new(
        scenario: &Scenario,
        index: usize,
        life: u64,
        now: Instant,
        to_begin: Vec<(CheckedStream, SocketAddr)>,
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(scenario.seed ^ (index as u64) << 32 ^ life);
        let skew_ppm = i64::from(scenario.skew_ppm[index]);
        let offset_nanos = rng.u64(..1 << 50);
        let begin = local(now, skew_ppm, offset_nanos);
        let count = scenario.shards[index];
        let shards = (0..usize::from(count)).map(|shard| {
            let stack = stack(scenario, index, &mut rng, begin);
            // Each begins every so-manieth connection.
            let to_begin = to_begin.iter().skip(shard).step_by(count.into()).cloned().collect();
            let life = life ^ (shard as u64) << 48;
            HostShard {
                stack,
                memory: HeapMemory::new(BUFFERS, scenario.buf_bytes),
                program: HostProgram::new(scenario, index, life, to_begin),
                inbox: Vec::new(),
            }
        });
        let shards: Vec<HostShard> = shards.collect();
        let mut key = [0; 16];
        rng.fill(&mut key);
        let mut host = Self {
            index,
            shards,
            steering: Steering::new(&key, count),
            bindings: Bindings::new(count),
            table: BindingTable::new(count),
            used: Vec::new(),
            fragments: Fragments::new(),
            medium: medium(scenario, index),
            reader: 0,
            counts: NodeCounts::default(),
            scenario: scenario.clone(),
            listeners_come: scenario.listeners_come[index].map(|after| begin + after),
            here: SocketAddr::new(address(scenario, index), PORT),
            skew_ppm,
            offset_nanos,
            frame: vec![0; 1 << 16],
        };
        let at_once = if host.listeners_come.is_some() { 1 } else { usize::from(count) };
        (0..at_once).for_each(|shard| host.listen(shard, begin));
        host
    }

    fn listen(&mut self, shard: usize, now: Instant) {
        let here = self.here;
        let before: Vec<usize> = (0..self.used.len()).filter(|row| self.used[*row]).collect();
        before.into_iter().for_each(|row| self.bindings.mark_used(&self.table, row));
        let bound = self.bindings.bind((Transport::Tcp, here), shard as u16, Takes::Rest, false);
        debug_assert!(bound.is_ok(), "a shard listens once");
        self.table = self.bindings.table();
        self.used = vec![false; self.table.rows()];
        self.with(shard, now, |program, hands| program.start(hands, here));
    }

    /// Opens what the first two hosts open towards each other; each does so when the world begins.
    fn cross(&mut self, now: Instant) -> Result<(), Violation> {
        let (now, first) = (self.local(now), self.index == 0);
        let ends =
            (address(&self.scenario, self.index), address(&self.scenario, usize::from(first)));
        (0..self.shards.len())
            .try_for_each(|shard| self.with(shard, now, |it, hands| it.cross(hands, ends, first)))
    }

    fn put(&mut self, shard: usize, frame: &[u8], note: Note) {
        self.counts.steered += u64::from(shard != self.reader);
        self.shards[shard].inbox.push((frame.to_vec(), note));
    }

    /// A shard takes what lies in its inbox, or passes it on to who had its flow before.
    fn take_in(&mut self, index: usize, now: Instant) {
        for (frame, note) in std::mem::take(&mut self.shards[index].inbox) {
            let HostShard { stack, memory, .. } = &mut self.shards[index];
            let received = Received::default();
            if note == REFUSED {
                stack.refuse_frame(now, &frame, received, memory);
                continue;
            }
            if note >= PAST
                && let Classified::Flow { transport, ends, .. } =
                    steering::classify(self.medium, &frame)
                && !stack.knows(ends.dst, ends.src)
                && let Some((to, note)) = self.steering.former(
                    &self.table,
                    (transport, &ends),
                    index as u16,
                    usize::from(note - PAST),
                )
            {
                self.counts.passed_on += 1;
                self.shards[usize::from(to)].inbox.push((frame, note));
                continue;
            }
            stack.on_frame(now, &frame, received, memory);
        }
    }

    /// Lets a shard's application act.
    fn with<T>(
        &mut self,
        shard: usize,
        now: Instant,
        act: impl FnOnce(&mut HostProgram, &mut Hands<'_>) -> T,
    ) -> T {
        let Self { steering, table, shards, .. } = self;
        let HostShard { stack, memory, program, .. } = &mut shards[shard];
        let arrives = |local, remote| {
            let ends = SteeringKey::from_peer(remote, local);
            usize::from(steering.shard_of(table, Transport::Tcp, &ends)) == shard
        };
        let mut hands = Hands { now, stack, memory, arrives: &arrives };
        act(program, &mut hands)
    }

    fn local(&self, world: Instant) -> Instant {
        local(world, self.skew_ppm, self.offset_nanos)
    }

    /// The first moment of the world at which the host's clock shows `local` or later.
    fn to_world(&self, local: Instant) -> Instant {
        let elapsed = i128::from(local.as_nanos()) - i128::from(self.offset_nanos);
        let scale = i128::from(1_000_000 + self.skew_ppm);
        let world = (elapsed.max(0) * 1_000_000 + scale - 1) / scale;
        let mut world = u64::try_from(world).unwrap_or(u64::MAX);
        while self.local(Instant::from_nanos(world)) < local && world < u64::MAX {
            world += 1;
        }
        Instant::from_nanos(world)
    }
}

impl SimNode for SimHost {
    fn start(&mut self, now: Instant) -> Result<(), Violation> {
        if self.index < 2 {
            self.cross(now)?;
        }
        Ok(())
    }

    /// Begins connections, if any are left to begin.
    fn wake(&mut self, now: Instant) -> Result<(), Violation> {
        let (index, now) = (self.index, self.local(now));
        (0..self.shards.len())
            .try_for_each(|shard| self.with(shard, now, |it, hands| it.begin(hands, index)))
    }

    /// A frame arrives: one of the shards reads it, and hands it to the shards it belongs to.
    fn on_frame(&mut self, now: Instant, frame: &[u8]) {
        let now = self.local(now);
        self.reader = (self.reader + 1) % self.shards.len();
        let reading = steering::classify(self.medium, frame);
        match reading {
            Classified::First(datagram, transport, ends) => {
                let to = self.steering.shard_of(&self.table, transport, &ends);
                let inbox = &mut self.shards[usize::from(to)].inbox;
                inbox.push((frame.to_vec(), NOTHING));
                self.fragments.on_first(now, (datagram, to), |frame, _| {
                    inbox.push((frame.to_vec(), NOTHING));
                });
            }
            Classified::Later(datagram) => {
                let whole = (frame, Received::default());
                if let Later::Shard(to) = self.fragments.on_later(now, datagram, whole) {
                    self.put(to.into(), frame, NOTHING);
                }
            }
            _ => match self.steering.destination(&self.table, &mut self.used, &reading) {
                (Destination::Shard(to), note) => self.put(to.into(), frame, note),
                (Destination::Anyone, note) => self.put(self.reader, frame, note),
                (Destination::Everyone, note) => {
                    (0..self.shards.len()).for_each(|to| self.put(to, frame, note));
                }
            },
        }
        while let Some(shard) = self.shards.iter().position(|shard| !shard.inbox.is_empty()) {
            self.take_in(shard, now);
        }
    }

    /// Does what is due, lets the applications act on what happened, and sends what there is.
    fn run(&mut self, now: Instant, send: &mut Send<'_>) -> Result<(), Violation> {
        let local = self.local(now);
        if self.listeners_come.take_if(|at| *at <= local).is_some() {
            (1..self.shards.len()).for_each(|shard| self.listen(shard, local));
        }
        for shard in 0..self.shards.len() {
            let HostShard { stack, memory, .. } = &mut self.shards[shard];
            if stack.poll_timeout().is_some_and(|at| at <= local) {
                stack.on_timeout(local, memory);
            }
            self.with(shard, local, |program, hands| {
                if program.next_wake().is_some_and(|at| at <= local) {
                    program.on_wake(hands);
                }
                while let Some(event) = hands.stack.poll_event() {
                    program.on_event(hands, event)?;
                }
                Ok(())
            })?;
            let HostShard { stack, memory, .. } = &mut self.shards[shard];
            while let Some(transmit) = stack.poll_transmit(local, &mut self.frame, memory) {
                send(&self.frame[..transmit.frame_bytes()])?;
            }
        }
        Ok(())
    }

    /// Everything was given back.
    fn check_nothing_leaked(&self, host: usize) -> Result<(), Violation> {
        for (index, shard) in self.shards.iter().enumerate() {
            shard.stack.check_invariants();
            let (chunks, records) = shard.stack.held();
            let buffers = shard.memory.in_use();
            if (chunks, records, buffers) != (0, 0, 0) {
                let held = format!("{chunks} chunks, {records} records, {buffers} buffers");
                return Err(Violation::Leaked { host, what: format!("shard {index}: {held}") });
            }
        }
        Ok(())
    }

    /// When the host wants to run next, in the world's time.
    fn next_wake(&mut self) -> Option<Instant> {
        let of_shard = |shard: &HostShard| [shard.stack.poll_timeout(), shard.program.next_wake()];
        let next = self.shards.iter().flat_map(of_shard).flatten().chain(self.listeners_come).min();
        next.map(|next| self.to_world(next))
    }

    fn is_done(&self) -> bool {
        self.shards.iter().all(|shard| shard.program.is_done())
    }

    fn open(&self) -> usize {
        self.shards.iter().map(|shard| shard.program.open()).sum()
    }

    fn counts(&self) -> NodeCounts {
        let mut counts = self.counts;
        for HostShard { program, .. } in &self.shards {
            counts.connections += program.finished + program.aborted;
            counts.broken += program.broken;
            counts.waits_for_port += program.ports.waits;
        }
        counts
    }

    fn received(&self) -> Vec<(u64, u64)> {
        self.shards.iter().flat_map(|shard| shard.program.received()).collect()
    }

    fn take_unresolved(&mut self) -> Vec<IpAddr> {
        self.shards
            .iter_mut()
            .flat_map(|shard| std::mem::take(&mut shard.program.unresolved))
            .collect()
    }

    /// A connection by its ends.
    fn connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<ConnInfo> {
        self.shards.iter().find_map(|HostShard { stack, .. }| {
            let at_port = stack.connections_at(local.port());
            let (conn, ..) = at_port.into_iter().find(|it| (it.1, it.2) == (local, remote))?;
            stack.info(conn).ok()
        })
    }

    /// How many frames were dropped for a reason, and how many connections were reset by a peer.
    fn dropped(&self, reason: Drop) -> Option<(u64, u64)> {
        let counters = self.shards.iter().map(|shard| shard.stack.counters());
        Some(counters.fold((0, 0), |(drops, resets), it| {
            (drops + it.dropped(reason), resets + it.totals.resets_in)
        }))
    }
}

fn local(world: Instant, skew_ppm: i64, offset_nanos: u64) -> Instant {
    let scaled = i128::from(world.as_nanos()) * i128::from(1_000_000 + skew_ppm) / 1_000_000;
    Instant::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX).saturating_add(offset_nanos))
}

fn medium(scenario: &Scenario, index: usize) -> Medium {
    if scenario.ethernet { Medium::Ethernet(mac(index)) } else { Medium::Ip }
}

fn stack(scenario: &Scenario, index: usize, rng: &mut fastrand::Rng, now: Instant) -> Stack {
    let mut secret = [0; 32];
    rng.fill(&mut secret);
    let bits = if scenario.v6 { 64 } else { 24 };
    let single = Config::single([10, 0, 0, 1].into(), 24, secret);
    let config = Config {
        medium: medium(scenario, index),
        mtu: scenario.mtu[index],
        tx_frame_bytes: u32::from(scenario.mtu[index]) + 18,
        addresses: vec![(address(scenario, index), bits)],
        ephemeral_ports: scenario.client_ports.unwrap_or(single.ephemeral_ports),
        tcp: scenario.tcp[index].clone(),
        ..single
    };
    Stack::new(config, now).unwrap_or_else(|error| panic!("a scenario's configuration: {error}"))
}
