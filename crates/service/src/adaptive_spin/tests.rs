//! A server and its clients in virtual time, over links by what polls, sleeps and messages cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use megapipe_stack::Instant;

use super::{AdaptiveSpin, Next, Usage};

const SPIN: Duration = Duration::from_micros(50);
/// After this time nothing is learnt any more.
const LEARNING: Duration = Duration::from_millis(500);
/// Bytes of a transaction, request and response.
const BYTES: u64 = 128;
/// Most messages of a poll.
const BATCH_MAX: usize = 64;

/// A disturbance makes things cost at most so much more, as a part of their cost.
const DISTURBANCE: f64 = 0.3;
/// Nanoseconds of a disturbance.
const DISTURBED_TIME: u64 = 3_000_000;

/// What things cost on a link, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Link {
    name: &'static str,
    /// A poll that finds nothing.
    poll: u64,
    /// A poll that finds something, without its messages.
    busy_poll: u64,
    /// A message.
    message: u64,
    /// CPU time of a sleep and its wake-up.
    sleep: u64,
    /// From the arrival of a message until a server that slept runs. No CPU time.
    wake: u64,
    /// From our response until the client's next request, if the client has nothing else to do.
    client: u64,
    /// The client's time for a message, one after the other.
    client_message: u64,
}

const LINKS: [Link; 5] = [
    Link {
        name: "memif",
        poll: 100,
        busy_poll: 200,
        message: 400,
        sleep: 5_000,
        wake: 5_000,
        client: 800,
        client_message: 400,
    },
    Link {
        name: "memif, cheap sleeps",
        poll: 100,
        busy_poll: 200,
        message: 400,
        sleep: 2_000,
        wake: 2_000,
        client: 1_500,
        client_message: 500,
    },
    Link {
        name: "tap",
        poll: 700,
        busy_poll: 2_500,
        message: 3_000,
        sleep: 2_500,
        wake: 3_000,
        client: 25_000,
        client_message: 5_000,
    },
    Link {
        name: "xdp",
        poll: 300,
        busy_poll: 4_000,
        message: 2_500,
        sleep: 3_000,
        wake: 4_000,
        client: 30_000,
        client_message: 6_000,
    },
    Link {
        name: "packet",
        poll: 500,
        busy_poll: 3_000,
        message: 3_500,
        sleep: 3_000,
        wake: 3_000,
        client: 60_000,
        client_message: 9_000,
    },
];

/// How the server waits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Waits {
    /// Sleeps at once.
    Sleeps,
    /// Spins, of adaptive length, and compares nothing.
    Spins,
    Learns,
}

/// The server, and the requests that are on their way to it.
struct World {
    now: u64,
    busy: u64,
    done: u64,
    arrivals: BinaryHeap<Reverse<u64>>,
    client_free: u64,
    policy: AdaptiveSpin,
    learns: bool,
    random: u64,
    /// Everything costs so many times as much, until the time after it: caches are shared.
    disturbance: (f64, u64),
}

impl World {
    fn new(connections: u64, waits: Waits) -> Self {
        let spin = if waits == Waits::Sleeps { Duration::ZERO } else { SPIN };
        Self {
            now: 1_000_000_000,
            busy: 0,
            done: 0,
            arrivals: (0..connections).map(|index| Reverse(1_000_000_000 + index * 500)).collect(),
            client_free: 0,
            policy: AdaptiveSpin::new(spin),
            learns: waits == Waits::Learns,
            random: 0x9e37_79b9_7f4a_7c15,
            disturbance: (1.0, 0),
        }
    }

    /// A number from 0.5 to 1.5, evenly.
    fn jitter(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        0.5 + (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn work(&mut self, cost: u64) {
        if self.now >= self.disturbance.1 {
            self.disturbance =
                (1.0 + DISTURBANCE * (self.jitter() - 0.5), self.now + DISTURBED_TIME);
        }
        let cost = (cost as f64 * self.jitter() * self.disturbance.0) as u64;
        self.busy += cost;
        self.now += cost;
    }

    /// Takes the requests that have come, a poll's share, and answers them. Whether there were any.
    fn poll(&mut self, link: &Link) -> bool {
        let mut count = 0;
        while count < BATCH_MAX && self.arrivals.peek().is_some_and(|at| at.0 <= self.now) {
            self.arrivals.pop();
            count += 1;
        }
        if count == 0 {
            self.work(link.poll);
            return false;
        }
        self.work(link.busy_poll + link.message * count as u64);
        for _ in 0..count {
            let begin = self.client_free.max(self.now + link.client);
            self.client_free = begin + (link.client_message as f64 * self.jitter()) as u64;
            self.arrivals.push(Reverse(self.client_free));
        }
        self.done += count as u64;
        true
    }

    fn sleep(&mut self, link: &Link) {
        self.policy.slept();
        self.work(link.sleep);
        let next = self.arrivals.peek().expect("each connection has a request on its way").0;
        self.now = self.now.max(next) + link.wake;
    }

    fn run(&mut self, link: &Link, time: Duration) {
        let end = self.now + time.as_nanos() as u64;
        while self.now < end {
            let at = Instant::from_nanos(self.now);
            let worked = self.poll(link);
            let usage = Usage { busy: Duration::from_nanos(self.busy), work: self.done * BYTES };
            let learns = self.learns;
            if self.policy.after_poll(worked, at, || learns.then_some(usage)) == Next::Sleep {
                self.sleep(link);
            }
        }
    }

    /// CPU time of a transaction in nanoseconds, and transactions a second.
    fn measure(&mut self, link: &Link, time: Duration) -> (f64, f64) {
        let (busy, done, now) = (self.busy, self.done, self.now);
        self.run(link, time);
        let (busy, done) = ((self.busy - busy) as f64, (self.done - done) as f64);
        (busy / done, done * 1e9 / (self.now - now) as f64)
    }
}

/// The cost of a way to wait and its rate, after the time that learning takes.
fn cost(link: &Link, connections: u64, waits: Waits, time: Duration) -> (f64, f64) {
    let mut world = World::new(connections, waits);
    world.run(link, if waits == Waits::Learns { LEARNING } else { Duration::from_millis(20) });
    world.measure(link, time)
}

#[test]
fn adaptive_spin_costs_no_more_than_the_better_way() {
    for link in &LINKS {
        for connections in [1, 64, 256] {
            let fixed = Duration::from_millis(100);
            let (sleeps, sleep_rate) = cost(link, connections, Waits::Sleeps, fixed);
            let (spins, spin_rate) = cost(link, connections, Waits::Spins, fixed);
            let (learns, rate) =
                cost(link, connections, Waits::Learns, Duration::from_millis(1_500));
            let case = format!(
                "{}, {connections}: sleeps {sleeps:.0} ns, spins {spins:.0}, learns {learns:.0}; \
                 rates {sleep_rate:.0} {spin_rate:.0} {rate:.0}",
                link.name
            );
            assert!(learns <= 1.05 * sleeps.min(spins), "{case}");
            let better = if spins <= sleeps { spin_rate } else { sleep_rate };
            assert!(rate >= 0.95 * better, "{case}");
        }
    }
}

#[test]
fn adaptive_spin_follows_a_change_of_the_load() {
    let [memif, _, tap, ..] = LINKS;
    let mut world = World::new(1, Waits::Learns);
    for _ in 0..2 {
        world.run(&memif, Duration::from_secs(6));
        assert!(world.policy.comparison.spins());
        world.run(&tap, Duration::from_secs(6));
        assert!(!world.policy.comparison.spins());
    }
}

#[test]
fn adaptive_spin_measures_nothing_without_work() {
    let mut policy = AdaptiveSpin::new(SPIN);
    for second in 0..1_000 {
        let now = Instant::from_millis(second * 1_000);
        policy.after_poll(false, now, || panic!("nothing was done that could be compared"));
        policy.slept();
    }
    let mut never = AdaptiveSpin::new(Duration::ZERO);
    for second in 0..1_000 {
        let now = Instant::from_millis(second * 1_000);
        assert_eq!(never.after_poll(true, now, || panic!("it does not spin")), Next::Poll);
        assert_eq!(never.after_poll(false, now, || panic!("it does not spin")), Next::Sleep);
    }
}

#[test]
fn server_that_never_sleeps_measures_nothing() {
    let waits = crate::config::Waits { never_sleeps: true, ..Default::default() };
    let mut policy = AdaptiveSpin::of(&waits);
    for ms in 0..10_000 {
        let now = Instant::from_micros(ms * 1_000);
        let next = policy.after_poll(ms % 100 == 0, now, || panic!("nothing is compared"));
        assert_eq!(next, Next::Poll);
    }
}
