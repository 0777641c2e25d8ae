//! A host with `megapipe-sockets` above the real stack, and one program of BSD calls on a thread of
//! its own.
//!
//! The thread is a coroutine: it runs only while the world's thread waits for it, and gives way in
//! a call that sleeps in the shared context, or between two calls (`pace.rs`). So a world is as
//! deterministic as without threads.
//!
//! Invariant: when [`SimNode::run`] returns, the program sleeps in a call, pauses or has ended, and
//! nothing is left to do at that time.

mod datagrams;
mod end;
mod events;
mod pace;
mod serial;
mod wait;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use megapipe::{Backend, Clock, LocalNetwork, ServerConfig};
use megapipe_link::{Link, PairConfig, TxMetadata, pair};
use megapipe_sockets::{Config, Driving, SharedContext};
use megapipe_stack::Instant;

use crate::check::Violation;
use crate::check::datagrams::Ledger;
use crate::check::streams::CheckedStream;
use crate::host::{address, mac};
use crate::node::{NodeCounts, Send, SimNode};
use crate::scenario::{HostPrograms, Scenario};
use pace::{Program, ThreadPace};

/// Descriptors of a host's context.
const DESCRIPTORS: u32 = 1_024;
/// Bytes of a buffer: a datagram that fits into none is dropped.
const BUFFER_BYTES: usize = 16_384;
/// Frames that wait between the world and the stack.
const FRAMES: usize = 1_024;
/// Frames in one burst.
const BURST: usize = 64;
/// The largest packet that anything here takes.
const PACKET_BYTES: usize = 9_000;
/// The context is not asked again before this, whatever it wants.
const AGAIN: Duration = Duration::from_micros(1);

/// What a program is made of.
pub(crate) struct ProgramSetting {
    pub(crate) scenario: Scenario,
    pub(crate) host: usize,
    pub(crate) to_begin: Vec<(CheckedStream, std::net::SocketAddr)>,
    /// The datagrams of all hosts.
    pub(crate) ledger: Arc<Mutex<Ledger>>,
}

/// One host.
pub(crate) struct SocketsHost {
    index: usize,
    context: SharedContext,
    clock: Clock,
    /// The other end of the stack's link.
    far: Box<dyn Link>,
    pace: Arc<ThreadPace>,
    /// When the context has something to do, if nothing happens.
    due: Option<Instant>,
}

fn settings(scenario: &Scenario, index: usize, clock: &Clock) -> ServerConfig {
    let mut secret = [index as u8; 32];
    secret[..8].copy_from_slice(&scenario.seed.to_le_bytes());
    let bits = if scenario.v6 { 64 } else { 24 };
    ServerConfig {
        addresses: vec![(address(scenario, index), bits)],
        mtu: Some(scenario.mtu[index]),
        connections: DESCRIPTORS,
        tcp: scenario.tcp[index].clone(),
        clock: clock.clone(),
        steering_key: Some([7; 16]),
        secret: Some(secret),
        client_ports: scenario.client_ports,
        ..ServerConfig::default()
    }
}

impl SocketsHost {
    /// A host whose program begins when the world does.
    ///
    /// # Panics
    /// Where the process has no descriptor or thread left.
    pub(crate) fn new(setting: ProgramSetting, now: Instant) -> Self {
        let (scenario, index) = (setting.scenario.clone(), setting.host);
        let clock = Clock::by_hand();
        clock.advance(now.since(clock.now()));
        let medium = if scenario.ethernet {
            megapipe_link::LinkMedium::Ethernet
        } else {
            megapipe_link::LinkMedium::Ip
        };
        let link = PairConfig {
            medium,
            mtu: PACKET_BYTES,
            frames: FRAMES,
            macs: [mac(index), [2, 0, 0, 0, 0, 0xfe]],
            ..PairConfig::default()
        };
        let (near, far) = pair(&link).expect("a pair can be had");
        let network = LocalNetwork::over(vec![Box::new(near)], settings(&scenario, index, &clock))
            .expect("a scenario's configuration");
        let channel = megapipe::Config::default()
            .backend(Backend::Local(network))
            .max_lwsockets(DESCRIPTORS)
            .buffer_len(BUFFER_BYTES);
        let config = Config::default()
            .channel(channel)
            .descriptors(DESCRIPTORS)
            .clock(clock.clone())
            .freshness(Duration::ZERO);
        let context = SharedContext::create(config, Driving::Outside).expect("sockets can be had");
        let pace = ThreadPace::new(index);
        let program: Program = match scenario.programs[index] {
            HostPrograms::Events => events::run,
            HostPrograms::SerialServer => serial::serve,
            HostPrograms::SerialClient => serial::ask,
            HostPrograms::Datagrams => datagrams::run,
            HostPrograms::Stack | HostPrograms::Foreign => {
                unreachable!("it has no sockets of ours")
            }
        };
        pace::start(&pace, context.clone(), clock.clone(), setting, program);
        Self { index, context, clock, far: Box::new(far), pace, due: None }
    }

    /// Frames from the stack to the network. Whether there were any.
    fn send_all(&mut self, send: &mut Send<'_>) -> Result<bool, Violation> {
        let mut has_sent = false;
        loop {
            let mut frames = Vec::new();
            let taken = self.far.rx_burst(BURST, &mut |frame, _| frames.push(frame.to_vec()));
            taken.expect("the stack's end lives");
            if frames.is_empty() {
                return Ok(has_sent);
            }
            has_sent = true;
            frames.iter().try_for_each(|frame| send(frame))?;
        }
    }

    fn set_clock(&self, now: Instant) {
        self.clock.advance(now.since(self.clock.now()));
    }
}

impl SimNode for SocketsHost {
    fn start(&mut self, _: Instant) -> Result<(), Violation> {
        Ok(())
    }

    fn on_frame(&mut self, now: Instant, frame: &[u8]) {
        self.set_clock(now);
        let mut frame = Some(frame);
        // A full queue loses it, as a device would.
        let sent = self.far.tx_burst(1, &mut |room| {
            let frame = frame.take()?;
            room.get_mut(..frame.len())?.copy_from_slice(frame);
            Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
        });
        sent.expect("the stack's end lives");
    }

    fn run(&mut self, now: Instant, send: &mut Send<'_>) -> Result<(), Violation> {
        self.set_clock(now);
        loop {
            self.pace.await_rest(&self.context);
            let steps = self.pace.steps();
            let until = self.context.poll_channel().map_err(|error| Violation::Call {
                host: self.index,
                call: "turn",
                what: error.to_string(),
            })?;
            self.due = until.map(|until| now + until.max(AGAIN));
            let has_sent = self.send_all(send)?;
            let is_resumed = self.pace.resume(now);
            self.pace.await_rest(&self.context);
            if let Some(violation) = self.pace.violation() {
                return Err(violation);
            }
            if !has_sent && !is_resumed && self.pace.steps() == steps {
                return Ok(());
            }
        }
    }

    fn next_wake(&mut self) -> Option<Instant> {
        self.due.into_iter().chain(self.pace.paused_until()).min()
    }

    fn is_done(&self) -> bool {
        self.pace.open() == 0
    }

    fn open(&self) -> usize {
        self.pace.open()
    }

    fn finish(&mut self) {
        self.pace.finish();
    }

    fn check_nothing_leaked(&self, host: usize) -> Result<(), Violation> {
        if self.pace.has_ended() {
            return Ok(());
        }
        Err(Violation::Leaked { host, what: "a program that does not end".to_owned() })
    }

    fn counts(&self) -> NodeCounts {
        self.pace.counts()
    }
}
