//! What a channel's thread does from its first call to its last.
//!
//! Invariants
//! - The thread reports to [`start`](super::start) exactly once: that it is ready, or why not.
//! - On a message it does what the shard does and looks at one flag; clocks, counters and the
//!   wish to stop are looked at when the periodic timer or a wake-up comes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use megapipe::{
    Address, Channel, Completion, Config, CpuMask, DispatchError, DriverReport, Event, Waker,
};

use super::descriptors::{Budget, of_each_connection};
use super::error::ServeError;
use super::listening::{FRAME_COOKIES, ServerEndpoint, ServerListeners};
use super::pulse::Pulse;
use super::stats::Published;
use super::{ServerShard, ShardSetup, Ticks};
use crate::backend::warn_of_fall_back;
use crate::limits;
use crate::memory::require;

/// The cookie of the periodic timer.
const TICK_COOKIE: u64 = u64::MAX;

/// How far a server is on its way to the end; only ever increases.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerPhase {
    /// Serving.
    Serve = 0,
    /// No new connections; those that are open are brought to a clean end.
    Drain = 1,
    /// Over, whatever is still open.
    Stop = 2,
}

/// What the supervising thread and the shards share.
#[derive(Debug, Default)]
pub(crate) struct ServerControl(AtomicU8);

impl ServerControl {
    /// Goes on to `phase`. The caller wakes the channels afterwards.
    pub(crate) fn advance(&self, phase: ServerPhase) {
        // Relaxed: the value is all that is passed on; the wake-up that follows it goes through
        // the kernel, which orders the two.
        self.0.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// The current phase.
    pub(crate) fn phase(&self) -> ServerPhase {
        match self.0.load(Ordering::Relaxed) {
            0 => ServerPhase::Serve,
            1 => ServerPhase::Drain,
            _ => ServerPhase::Stop,
        }
    }
}

/// What one channel's thread is given.
#[derive(Debug)]
pub(crate) struct ShardPlan {
    pub(crate) index: usize,
    pub(crate) count: usize,
    pub(crate) config: Config,
    pub(crate) mask: Option<CpuMask>,
    pub(crate) backlog: u32,
    pub(crate) connections_max: u32,
    pub(crate) files_per_connection: u32,
    pub(crate) budget: Budget,
    pub(crate) drain: Duration,
    pub(crate) endpoints: Vec<Arc<ServerEndpoint>>,
    pub(crate) control: Arc<ServerControl>,
    pub(crate) published: Arc<Published>,
}

/// Message of a channel's thread once it listens.
#[derive(Debug)]
pub(crate) struct ChannelReady {
    pub(crate) waker: Waker,
    pub(crate) addresses: Vec<Address>,
    pub(crate) driver: String,
    /// Why this driver.
    pub(crate) why: String,
}

/// Back end and driver of a channel, in a few words, and why that driver.
pub(crate) fn driver_of(report: &DriverReport) -> (String, String) {
    let driver = format!("back end {}, driver {}", report.backend, report.driver);
    (driver, report.reason.clone())
}

/// Sends, once, that a channel's thread is ready, or why it is not.
pub(crate) type ReadySender = Sender<Result<ChannelReady, ServeError>>;

/// The whole life of one channel: create, listen, serve, drain.
pub(crate) fn run<S: ServerShard>(
    plan: &ShardPlan,
    factory: &(dyn Fn(ShardSetup<'_>) -> Result<S, ServeError> + Send + Sync),
    ready: &ReadySender,
) -> Result<(), ServeError> {
    let (mut channel, mut shard, pulse, report) = match set_up(plan, factory) {
        Ok(parts) => parts,
        Err(error) => {
            // The receiver is gone only if the server is already ending.
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    if ready.send(Ok(report)).is_err() {
        return Ok(());
    }
    let served = serve(&mut channel, &mut shard, pulse, plan);
    plan.published.store(shard.tally().with_wakeups(channel.counters()));
    served.map_err(|source| ServeError::Dispatch { index: plan.index, source })
}

fn set_up<S: ServerShard>(
    plan: &ShardPlan,
    factory: &(dyn Fn(ShardSetup<'_>) -> Result<S, ServeError> + Send + Sync),
) -> Result<(Channel, S, Pulse, ChannelReady), ServeError> {
    let index = plan.index;
    let create = |source| ServeError::Create { index, source };
    let misuse = |source| ServeError::SetUp { index, source };
    let mut channel = Channel::create(plan.config.clone()).map_err(create)?;
    let memory = |source| ServeError::resource(format!("memory for channel {index}"), source);
    require(limits::SPARE_BYTES).map_err(memory)?;
    let mut handles = Vec::with_capacity(plan.endpoints.len());
    let mut addresses = Vec::with_capacity(plan.endpoints.len());
    for (endpoint, cookie) in plan.endpoints.iter().zip(FRAME_COOKIES..) {
        let handle = endpoint.listen(&mut channel, plan.mask, plan.backlog, cookie)?;
        let address = match &**endpoint {
            ServerEndpoint::Partitioned(asked) => {
                channel.local_address(handle).unwrap_or_else(|_| asked.clone())
            }
            ServerEndpoint::Shared { address, .. } => address.clone(),
        };
        handles.push(handle);
        addresses.push(address);
    }
    let pulse = Pulse::start(&mut channel, TICK_COOKIE).map_err(misuse)?;
    let files = u64::from(plan.files_per_connection);
    let of_each = of_each_connection(channel.report(), plan.config.lwsockets, files);
    let connections_max = plan.budget.connections(plan.connections_max, of_each);
    let listeners = ServerListeners::new(handles, connections_max);
    let setup = ShardSetup {
        index,
        count: plan.count,
        channel: &mut channel,
        listeners,
        buffer_len: plan.config.buffer_len,
        now: Ticks::now(),
    };
    let shard = factory(setup)?;
    channel.flush().map_err(|source| ServeError::Dispatch { index, source })?;
    let report = channel.report();
    if index == 0 {
        warn_of_fall_back(report);
    }
    let (driver, why) = driver_of(report);
    let ready = ChannelReady { waker: channel.waker(), addresses, driver, why };
    Ok((channel, shard, pulse, ready))
}

/// The time after a rest, in which the shard saw none pass.
#[cold]
fn tick<S: ServerShard>(channel: &mut Channel, shard: &mut S) -> Ticks {
    let now = Ticks::now();
    shard.on_tick(channel, now);
    now
}

/// The end of a shard's connections, begun.
struct Draining {
    /// When what is still open is left.
    deadline: Ticks,
    /// Keys of connections that have not been looked at.
    keys: Range<usize>,
}

impl Draining {
    fn begin<S: ServerShard>(channel: &mut Channel, shard: &mut S, deadline: Ticks) -> Self {
        Self { deadline, keys: 0..shard.drain(channel) }
    }

    /// Ends some more of the connections at rest, and asks for a wake-up behind their completions
    /// if there are more.
    fn go_on<S: ServerShard>(&mut self, channel: &mut Channel, shard: &mut S, now: Ticks) {
        for key in self.keys.by_ref().take(limits::DRAINED_AT_ONCE) {
            shard.end_if_idle(channel, key, now);
        }
        if !self.keys.is_empty() {
            channel.waker().wake();
        }
    }

    fn is_over<S: ServerShard>(&self, shard: &S, now: Ticks) -> bool {
        shard.drained() || now >= self.deadline
    }
}

fn serve<S: ServerShard>(
    channel: &mut Channel,
    shard: &mut S,
    mut pulse: Pulse,
    plan: &ShardPlan,
) -> Result<(), DispatchError> {
    let mut now = Ticks::now();
    let mut draining: Option<Draining> = None;
    loop {
        // No `?`: each layer taken off by value is a copy of the completion.
        match channel.dispatch(None) {
            Ok(Some(Completion { handle, cookie, event: Event::Read(Ok(data)) })) => {
                if pulse.on_event(channel) {
                    now = tick(channel, shard);
                }
                shard.on_read(channel, (handle, cookie), data, now);
            }
            Ok(Some(done)) if done.cookie == TICK_COOKIE || matches!(done.event, Event::Wake) => {
                now = Ticks::now();
                if done.cookie == TICK_COOKIE {
                    pulse.on_tick(channel, draining.is_some());
                    shard.on_tick(channel, now);
                    plan.published.store(shard.tally().with_wakeups(channel.counters()));
                } else {
                    pulse.on_event(channel);
                }
                match plan.control.phase() {
                    ServerPhase::Serve => {}
                    ServerPhase::Drain => draining
                        .get_or_insert_with(|| {
                            Draining::begin(channel, shard, now.after(plan.drain))
                        })
                        .go_on(channel, shard, now),
                    ServerPhase::Stop => return Ok(()),
                }
            }
            Ok(Some(done)) => {
                if pulse.on_event(channel) {
                    now = tick(channel, shard);
                }
                shard.on_completion(channel, done, now);
            }
            Ok(None) => continue,
            Err(error) => return Err(error),
        }
        if draining.as_ref().is_some_and(|draining| draining.is_over(shard, now)) {
            return channel.flush();
        }
    }
}
