//! Shards and the cores of a load on one virtual clock, with costs that were measured: what more
//! cores than the machine has would carry.
//!
//! Read first: `docs/SCALING.md` for what the model has and what it leaves out;
//! `megapipe_service`'s `rx_mux.rs` and `rx_mux/shard_link.rs` for the polls that are modelled.
//!
//! The real code places flows ([`Flows`]): each connection has a port of its own, and
//! the hash of its ends puts it on a shard. All else is simulated time: a shard's poll sends
//! the frames of the last one, takes frames that other shards received for it, polls a queue whose
//! lock is free, passes other shards' frames on, and lets its program answer. A load's core takes
//! answers and asks again, one connection after the other; how long it takes for each varies by
//! half, from a seed, so that connections do not march in step.
//!
//! Pure: costs and a system in, throughput and waiting times out.
//!
//! Invariants
//! - A connection is in one place at a time: with a shard, with a core of the load, or on its way.
//! - A core does one thing at a time, and a queue is read or written by one shard at a time.
//! - The same costs and the same system give the same outcome.

use super::{
    clock::{Time, VirtualClock, picoseconds},
    flows::Flows,
};
use crate::{limits, measure::median, point::Latency};
use megapipe_service::limits::RX_FRAMES_PER_POLL;
use std::collections::VecDeque;

/// What a frame costs on its way to a stack, in nanoseconds of core time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FrameCosts {
    /// Read from a queue that the shard has to itself.
    pub(crate) plain_ns: f64,
    /// Read through the switch by the shard that it is for.
    pub(crate) kept_ns: f64,
    /// Read from the mux by another shard, which forwards it.
    pub(crate) steered_ns: f64,
    /// Received by the shard that it was forwarded to.
    pub(crate) taken_ns: f64,
}

impl FrameCosts {
    /// Field by field.
    pub(crate) fn median(all: &[Self]) -> Self {
        let each = |field: fn(&Self) -> f64| median(all.iter().map(field));
        Self {
            plain_ns: each(|it| it.plain_ns),
            kept_ns: each(|it| it.kept_ns),
            steered_ns: each(|it| it.steered_ns),
            taken_ns: each(|it| it.taken_ns),
        }
    }

    /// What a frame costs more that one shard reads for another than one that a shard reads from
    /// a queue of its own; both shards' time.
    pub(crate) const fn added_ns(&self) -> f64 {
        self.steered_ns + self.taken_ns - self.plain_ns
    }
}

/// What a transaction costs, in nanoseconds of core time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    /// The server, one shard with a queue to itself: everything.
    pub(crate) server_ns: f64,
    /// The load.
    pub(crate) load_ns: f64,
    /// Of the server's, the share in which frames come in: link and stack.
    pub(crate) input_share: f64,
    /// Of the server's, the share in which frames go out: stack and link.
    pub(crate) output_share: f64,
    /// Frames that the server receives.
    pub(crate) frames_in: f64,
    /// Frames that the server sends, each of which the load waits for.
    pub(crate) frames_out: f64,
    pub(crate) frame: FrameCosts,
}

/// How many queues the link has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueCount {
    /// One for each shard, by the same hash: nothing is handed on, unless its shard is busy and
    /// another one has nothing to do.
    PerShard,
    /// One, which any idle shard polls.
    One,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScalingModel {
    pub(crate) shards: u16,
    pub(crate) load_cores: u16,
    pub(crate) connections: u32,
    pub(crate) queues: QueueCount,
    /// Transactions on one connection; none: it is kept.
    pub(crate) length: Option<u64>,
    /// Transactions to simulate; the first fifth does not count.
    pub(crate) transactions: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SimulationOutcome {
    pub(crate) transactions_per_s: f64,
    /// Work of the shards' cores, without waiting and looking for work.
    pub(crate) server_us_per_transaction: f64,
    pub(crate) load_us_per_transaction: f64,
    /// Shares of the time, 0 to 1.
    pub(crate) server_busy: f64,
    pub(crate) load_busy: f64,
    /// Transactions of the shard with the most over the mean.
    pub(crate) imbalance: f64,
    /// Share of the exchanges that one shard read and another one served.
    pub(crate) steered: f64,
    /// Share of the shards' time in which they had frames to send or to read, and waited for a
    /// queue that another one had.
    pub(crate) lock_wait: f64,
    pub(crate) latency_us: Latency,
}

/// Costs of an exchange: what the load sends until it waits, and what answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExchangeCosts {
    exchanges: u32,
    /// So many a turn takes at most.
    per_turn: usize,
    /// Frames of an exchange that a shard reads itself.
    kept: Time,
    /// Reading and forwarding.
    handing: Time,
    /// Frames of an exchange that another one has read.
    taken: Time,
    program: Time,
    sending: Time,
    load: Time,
}

impl ExchangeCosts {
    fn new(costs: &Costs, world: &ScalingModel) -> Self {
        // One shard has its queue to itself; there is no switch. So it is with the load's.
        let alone = world.shards == 1;
        let exchanges = costs.frames_out.round().max(1.0);
        let frames = costs.frames_in / exchanges;
        let each = costs.server_ns / exchanges;
        let input = each * costs.input_share;
        let output = each * costs.output_share;
        let FrameCosts { plain_ns, kept_ns, steered_ns, taken_ns } = costs.frame;
        let through = |ns: f64| picoseconds(frames.mul_add(ns - plain_ns, input));
        let load_switch_ns = match world.load_cores {
            1 => 0.0,
            _ => (kept_ns - plain_ns) * costs.frames_out / exchanges,
        };
        Self {
            exchanges: exchanges as u32,
            per_turn: ((RX_FRAMES_PER_POLL as f64 / frames.max(1.0)) as usize).max(1),
            kept: if alone { picoseconds(input) } else { through(kept_ns) },
            handing: picoseconds(frames * steered_ns),
            taken: through(taken_ns),
            program: picoseconds(each - input - output),
            sending: picoseconds(output),
            load: picoseconds(costs.load_ns / exchanges + load_switch_ns),
        }
    }
}

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimulationEvent {
    /// Frames of a connection reach the link.
    Arrives { connection: u32 },
    /// Frames of a connection are in a shard's ring.
    Handed { connection: u32 },
    /// An answer reaches the load.
    Answered { connection: u32 },
    /// A shard begins a turn.
    Poll { shard: u16 },
    /// A core of the load has sent a request.
    Asked { core: u16 },
}

#[derive(Clone, Copy, Debug)]
struct SimulatedConnection {
    shard: u16,
    /// Transactions that are left to it.
    left: u64,
    /// Exchanges of this transaction that are done.
    exchanges: u32,
    began: Time,
}

#[derive(Debug, Default)]
struct SimulatedQueue {
    waiting: VecDeque<u32>,
    locked_until: Time,
}

#[derive(Debug, Default)]
struct SimulatedShard {
    inbox: VecDeque<u32>,
    unsent: Vec<u32>,
    is_turning: bool,
    busy: Time,
    waited: Time,
    transactions: u64,
}

#[derive(Debug, Default)]
struct LoadCore {
    waiting: VecDeque<u32>,
    is_busy: bool,
    busy: Time,
}

/// A running simulation.
struct SimulationRun<'world> {
    world: &'world ScalingModel,
    steps: ExchangeCosts,
    flows: Flows,
    clock: VirtualClock<SimulationEvent>,
    connections: Vec<SimulatedConnection>,
    queues: Vec<SimulatedQueue>,
    shards: Vec<SimulatedShard>,
    load: Vec<LoadCore>,
    chance: fastrand::Rng,
    exchanges: u64,
    steered: u64,
    transactions: u64,
    latencies: Vec<Time>,
}

/// Runs a simulation. Time in proportion to its transactions.
pub(crate) fn simulate(costs: &Costs, world: &ScalingModel) -> SimulationOutcome {
    let mut run = SimulationRun::new(costs, world);
    run.until(world.transactions / limits::SIMULATED_WARM_UP_PARTS);
    let since = run.clock.now();
    run.begin_counting();
    run.until(world.transactions);
    run.outcome(since)
}

impl<'world> SimulationRun<'world> {
    fn new(costs: &Costs, world: &'world ScalingModel) -> Self {
        let queues = match world.queues {
            QueueCount::PerShard => usize::from(world.shards),
            QueueCount::One => 1,
        };
        let mut run = Self {
            world,
            steps: ExchangeCosts::new(costs, world),
            flows: Flows::new(world.shards),
            clock: VirtualClock::new(),
            connections: Vec::with_capacity(world.connections as usize),
            queues: (0..queues).map(|_| SimulatedQueue::default()).collect(),
            shards: (0..world.shards).map(|_| SimulatedShard::default()).collect(),
            load: (0..world.load_cores).map(|_| LoadCore::default()).collect(),
            chance: fastrand::Rng::with_seed(limits::SIMULATED_SEED),
            exchanges: 0,
            steered: 0,
            transactions: 0,
            latencies: Vec::new(),
        };
        for connection in 0..world.connections {
            let opened = run.open();
            run.connections.push(opened);
            run.clock.schedule(0, SimulationEvent::Answered { connection });
        }
        run
    }

    /// A connection from the next port, on the shard that the hash of its ends names.
    fn open(&mut self) -> SimulatedConnection {
        let left = self.world.length.unwrap_or(u64::MAX);
        SimulatedConnection {
            shard: self.flows.open(),
            left,
            exchanges: 0,
            began: self.clock.now(),
        }
    }

    /// Runs until this many transactions are done.
    fn until(&mut self, transactions: u64) {
        while self.transactions < transactions {
            let Some(event) = self.clock.next() else { return };
            match event {
                SimulationEvent::Arrives { connection } => self.on_arrival(connection),
                SimulationEvent::Handed { connection } => {
                    let shard = self.connections[connection as usize].shard;
                    self.shards[usize::from(shard)].inbox.push_back(connection);
                    self.wake(shard);
                }
                SimulationEvent::Answered { connection } => self.on_answer(connection),
                SimulationEvent::Poll { shard } => self.poll(shard),
                SimulationEvent::Asked { core } => self.on_asked(core),
            }
        }
    }

    fn queue_of(&self, shard: u16) -> usize {
        usize::from(shard) % self.queues.len()
    }

    fn on_arrival(&mut self, connection: u32) {
        let shard = self.connections[connection as usize].shard;
        let queue = self.queue_of(shard);
        self.queues[queue].waiting.push_back(connection);
        // An idle shard polls its own queue first, then the others'.
        let idle = |shard: &u16| !self.shards[usize::from(*shard)].is_turning;
        let reader = match self.world.queues {
            QueueCount::PerShard if idle(&shard) => Some(shard),
            _ => {
                let first = (self.clock.scheduled() % u64::from(self.world.shards)) as u16;
                let order = (first..self.world.shards).chain(0..first);
                order.into_iter().find(idle)
            }
        };
        if let Some(reader) = reader {
            self.wake(reader);
        }
    }

    fn wake(&mut self, shard: u16) {
        let place = &mut self.shards[usize::from(shard)];
        if !place.is_turning {
            place.is_turning = true;
            self.clock.schedule(self.clock.now(), SimulationEvent::Poll { shard });
        }
    }

    fn poll(&mut self, shard: u16) {
        let (began, index) = (self.clock.now(), usize::from(shard));
        let (mut at, mut blocked) = self.send(shard);
        let room = self.steps.per_turn;
        let mut handled = 0;
        while handled < room
            && let Some(connection) = self.shards[index].inbox.pop_front()
        {
            at += self.steps.taken;
            self.shards[index].unsent.push(connection);
            handled += 1;
        }
        for step in 0..self.queues.len() {
            if handled == room || (step > 0 && handled > 0) {
                break;
            }
            let queue = (self.queue_of(shard) + step) % self.queues.len();
            match self.read(shard, queue, (at, room - handled)) {
                Ok((until, kept)) => (at, handled) = (until, handled + kept),
                Err(until) => blocked = Some(blocked.map_or(until, |other: Time| other.min(until))),
            }
        }
        at += self.steps.program * handled as Time;
        self.exchanges += handled as u64;
        let place = &mut self.shards[index];
        place.busy += at - began;
        if at == began
            && let Some(until) = blocked
        {
            place.waited += until - began;
            at = until;
        }
        if at > began {
            self.clock.schedule(at, SimulationEvent::Poll { shard });
        } else {
            place.is_turning = false;
        }
    }

    /// Sends what the last turn gave rise to. Until when that takes; and, if the queue is taken,
    /// until when it is.
    fn send(&mut self, shard: u16) -> (Time, Option<Time>) {
        let (index, queue, now) = (usize::from(shard), self.queue_of(shard), self.clock.now());
        if self.shards[index].unsent.is_empty() {
            return (now, None);
        }
        if self.queues[queue].locked_until > now {
            return (now, Some(self.queues[queue].locked_until));
        }
        let unsent = std::mem::take(&mut self.shards[index].unsent);
        let until = now + self.steps.sending * unsent.len() as Time;
        self.queues[queue].locked_until = until;
        for connection in unsent {
            self.clock.schedule(until, SimulationEvent::Answered { connection });
        }
        (until, None)
    }

    /// Reads a burst of a queue: until when that takes, and how many exchanges were the shard's
    /// own; or until when the queue is taken, if frames wait in it.
    fn read(
        &mut self,
        shard: u16,
        queue: usize,
        (at, room): (Time, usize),
    ) -> Result<(Time, usize), Time> {
        let place = &mut self.queues[queue];
        if place.waiting.is_empty() {
            return Ok((at, 0));
        }
        if place.locked_until > at {
            return Err(place.locked_until);
        }
        let count = place.waiting.len().min(room);
        let burst: Vec<u32> = place.waiting.drain(..count).collect();
        let (mut until, mut kept, mut handed) = (at, 0, Vec::new());
        for connection in burst {
            if self.connections[connection as usize].shard == shard {
                until += self.steps.kept;
                self.shards[usize::from(shard)].unsent.push(connection);
                kept += 1;
            } else {
                until += self.steps.handing;
                handed.push(connection);
            }
        }
        self.queues[queue].locked_until = until;
        self.steered += handed.len() as u64;
        // Rings are shown to their shards when the whole burst is read.
        for connection in handed {
            self.clock.schedule(until, SimulationEvent::Handed { connection });
        }
        Ok((until, kept))
    }

    fn on_answer(&mut self, connection: u32) {
        let core = (connection % u32::from(self.world.load_cores)) as u16;
        let place = &mut self.load[usize::from(core)];
        place.waiting.push_back(connection);
        if !place.is_busy {
            self.ask(core);
        }
    }

    /// A core of the load begins with the next connection.
    fn ask(&mut self, core: u16) {
        let place = &mut self.load[usize::from(core)];
        place.is_busy = !place.waiting.is_empty();
        if place.is_busy {
            let took = self.steps.load / 2 + self.chance.u64(0..=self.steps.load);
            place.busy += took;
            self.clock.schedule(self.clock.now() + took, SimulationEvent::Asked { core });
        }
    }

    fn on_asked(&mut self, core: u16) {
        let Some(connection) = self.load[usize::from(core)].waiting.pop_front() else { return };
        self.advance(connection);
        self.clock.schedule(self.clock.now(), SimulationEvent::Arrives { connection });
        self.ask(core);
    }

    /// One more exchange; perhaps one more transaction; perhaps a new connection.
    fn advance(&mut self, connection: u32) {
        let (now, exchanges) = (self.clock.now(), self.steps.exchanges);
        let place = &mut self.connections[connection as usize];
        place.exchanges += 1;
        if place.exchanges < exchanges {
            return;
        }
        place.exchanges = 0;
        place.left -= 1;
        let took = now - std::mem::replace(&mut place.began, now);
        let (shard, is_over) = (usize::from(place.shard), place.left == 0);
        self.latencies.push(took);
        self.transactions += 1;
        self.shards[shard].transactions += 1;
        if is_over {
            self.connections[connection as usize] = self.open();
        }
    }

    fn begin_counting(&mut self) {
        self.latencies.clear();
        (self.exchanges, self.steered) = (0, 0);
        for shard in &mut self.shards {
            (shard.busy, shard.waited, shard.transactions) = (0, 0, 0);
        }
        self.load.iter_mut().for_each(|core| core.busy = 0);
    }

    fn outcome(mut self, since: Time) -> SimulationOutcome {
        let span = (self.clock.now() - since).max(1) as f64;
        let transactions = self.latencies.len().max(1) as f64;
        let sum = |each: &dyn Fn(&SimulatedShard) -> f64| self.shards.iter().map(each).sum::<f64>();
        let (busy, waited) = (sum(&|it| it.busy as f64), sum(&|it| it.waited as f64));
        let load_busy: f64 = self.load.iter().map(|core| core.busy as f64).sum();
        let most = self.shards.iter().map(|shard| shard.transactions).max().unwrap_or(0);
        let shards = self.shards.len() as f64;
        SimulationOutcome {
            transactions_per_s: transactions / span * 1e12,
            server_us_per_transaction: busy / transactions / 1e6,
            load_us_per_transaction: load_busy / transactions / 1e6,
            server_busy: busy / span / shards,
            load_busy: load_busy / span / self.load.len() as f64,
            imbalance: most as f64 / (transactions / shards),
            steered: self.steered as f64 / (self.exchanges.max(1) as f64),
            lock_wait: waited / span / shards,
            latency_us: latency(&mut self.latencies),
        }
    }
}

/// In microseconds.
fn latency(sample: &mut [Time]) -> Latency {
    sample.sort_unstable();
    let us = |time: Time| time as f64 / 1e6;
    let at = |share: f64| {
        let last = sample.len().saturating_sub(1);
        sample.get((last as f64 * share) as usize).copied().map_or(0.0, us)
    };
    let count = sample.len().max(1) as f64;
    let mean = sample.iter().copied().map(us).sum::<f64>() / count;
    let variance = sample.iter().map(|&it| (us(it) - mean).powi(2)).sum::<f64>() / count;
    Latency {
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: at(1.0),
        min: at(0.0),
        mean,
        sd: variance.sqrt(),
    }
}

#[cfg(test)]
mod tests;
