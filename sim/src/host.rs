//! A host: the real stack, memory on the heap, an application, and a clock that runs wrong.
//!
//! Invariant: the stack is told its own host's time alone; the world's time is converted at the
//! border, in `local` and `to_world`.

use std::net::{IpAddr, SocketAddr};

use megapipe_stack::{Config, HeapMemory, Instant, Medium, Received, Stack};

use crate::check::Violation;
use crate::check::streams::Stream;
use crate::program::{Hands, PORT, Program};
use crate::scenario::Scenario;

/// Buffers of a host.
pub(crate) const BUFFERS: u32 = 8_192;

/// One host.
pub(crate) struct Host {
    index: usize,
    pub(crate) stack: Stack,
    pub(crate) memory: HeapMemory,
    pub(crate) program: Program,
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

impl Host {
    /// A host that comes up for the `life`-th time.
    pub(crate) fn new(
        scenario: &Scenario,
        index: usize,
        life: u64,
        now: Instant,
        to_begin: Vec<(Stream, SocketAddr)>,
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(scenario.seed ^ (index as u64) << 32 ^ life);
        let skew_ppm = i64::from(scenario.skew_ppm[index]);
        let offset_nanos = rng.u64(..1 << 50);
        let mut host = Self {
            index,
            stack: stack(scenario, index, &mut rng, local(now, skew_ppm, offset_nanos)),
            memory: HeapMemory::new(BUFFERS, scenario.buf_bytes),
            program: Program::new(scenario, index, life, to_begin),
            skew_ppm,
            offset_nanos,
            frame: vec![0; 1 << 16],
        };
        let here = SocketAddr::new(address(scenario, index), PORT);
        let (program, mut hands) = host.parts(now);
        program.start(&mut hands, here);
        host
    }

    /// Begins connections, if any are left to begin.
    pub(crate) fn begin(&mut self, now: Instant) -> Result<(), Violation> {
        let index = self.index;
        let (program, mut hands) = self.parts(now);
        program.begin(&mut hands, index)
    }

    pub(crate) fn on_frame(&mut self, now: Instant, frame: &[u8]) {
        let now = self.local(now);
        self.stack.on_frame(now, frame, Received::default(), &mut self.memory);
    }

    /// Does what is due, lets the application act on what happened, and sends what there is.
    pub(crate) fn run(
        &mut self,
        now: Instant,
        may_fail: bool,
        mut send: impl FnMut(&[u8]) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let local = self.local(now);
        if self.stack.poll_timeout().is_some_and(|at| at <= local) {
            self.stack.on_timeout(local, &mut self.memory);
        }
        let (program, mut hands) = self.parts(now);
        if program.next_wake().is_some_and(|at| at <= local) {
            program.on_wake(&mut hands);
        }
        while let Some(event) = hands.stack.poll_event() {
            program.on_event(&mut hands, event, may_fail)?;
        }
        while let Some(transmit) =
            self.stack.poll_transmit(local, &mut self.frame, &mut self.memory)
        {
            send(&self.frame[..transmit.len])?;
        }
        Ok(())
    }

    /// Everything was given back.
    pub(crate) fn check_nothing_leaked(&self, host: usize) -> Result<(), Violation> {
        self.stack.check_invariants();
        let (chunks, records) = self.stack.held();
        let buffers = self.memory.in_use();
        if (chunks, records, buffers) == (0, 0, 0) {
            return Ok(());
        }
        let what = format!("{chunks} chunks, {records} records, {buffers} buffers");
        Err(Violation::Leaked { host, what })
    }

    /// When the host wants to run next, in the world's time.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let timeout = self.stack.poll_timeout();
        let wake = self.program.next_wake();
        let next = [timeout, wake].into_iter().flatten().min()?;
        Some(self.to_world(next))
    }

    fn parts(&mut self, now: Instant) -> (&mut Program, Hands<'_>) {
        let now = self.local(now);
        let hands = Hands { now, stack: &mut self.stack, memory: &mut self.memory };
        (&mut self.program, hands)
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

fn local(world: Instant, skew_ppm: i64, offset_nanos: u64) -> Instant {
    let scaled = i128::from(world.as_nanos()) * i128::from(1_000_000 + skew_ppm) / 1_000_000;
    Instant::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX).saturating_add(offset_nanos))
}

fn stack(scenario: &Scenario, index: usize, rng: &mut fastrand::Rng, now: Instant) -> Stack {
    let mut secret = [0; 32];
    rng.fill(&mut secret);
    let bits = if scenario.v6 { 64 } else { 24 };
    let single = Config::single([10, 0, 0, 1].into(), 24, secret);
    let config = Config {
        medium: if scenario.ethernet { Medium::Ethernet(mac(index)) } else { Medium::Ip },
        mtu: scenario.mtu[index],
        tx_frame_bytes: u32::from(scenario.mtu[index]) + 18,
        addresses: vec![(address(scenario, index), bits)],
        tcp: scenario.tcp[index].clone(),
        ..single
    };
    Stack::new(config, now).unwrap_or_else(|error| panic!("a scenario's configuration: {error}"))
}
