//! Accept and reset in a tight loop: the server, and a closed loop of connections without data.
//!
//! Read first: the mTCP paper, figure 8 [MT 5.1], whose third microbenchmark this is. The server
//! resets so that no connection lingers in TIME-WAIT.
//!
//! Either side has a thread with a channel on each of its cores.
//!
//! Invariant: a connection counts when it was established and its end was seen.

use crate::{
    cpu_time::CoreTimes,
    limits,
    measure::{median, quantile},
    point::Latency,
};
use megapipe::{
    Accept, Address, Channel, Completion, Config, ConnectOptions, Connection, CpuMask, CreateError,
    Disconnect, Event, Handle, ListenOptions, OpError,
};
use megapipe_apps::{
    backend::{BackendArgs, BackendError},
    serve::{CpuList, DriverName},
    threads,
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

/// Completions taken from the channel at a time.
const COMPLETIONS_PER_TURN: usize = 256;
/// Of so many connections one is timed.
const TIMED_EVERY: u64 = 16;

/// Options that both sides have.
#[derive(Clone, Debug, clap::Args)]
pub struct AcceptArgs {
    /// The server's address
    server: Address,
    /// Cores to run on, a thread on each
    #[arg(long)]
    cpus: CpuList,
    /// Back end.
    #[command(flatten)]
    backend: BackendArgs,
    /// Which kernel interface carries the channel
    #[arg(long, value_enum, default_value_t)]
    driver: DriverName,
}

/// Options of the load.
#[derive(Clone, Debug, clap::Args)]
pub struct AcceptLoadArgs {
    #[command(flatten)]
    accept: AcceptArgs,
    /// Cores of the server
    #[arg(long)]
    watched_cpus: CpuList,
    /// Connections on their way at a time
    #[arg(long)]
    connections: u32,
    /// Seconds under load before measuring
    #[arg(long)]
    warmup: f64,
    /// Seconds to measure
    #[arg(long)]
    duration: f64,
}

/// Why a side ended.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The back end's options.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No channel.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Any other step.
    #[error("{step}: {source}")]
    Step {
        /// Which.
        step: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn failed<E: std::error::Error + Send + Sync + 'static>(
    step: &'static str,
) -> impl FnOnce(E) -> AcceptError {
    move |source| AcceptError::Step { step, source: source.into() }
}

impl AcceptArgs {
    /// What each core's channel starts from, with room for so many connections. The back end is
    /// opened once for all of them.
    fn configs(&self, connections: u32) -> Result<Vec<Config>, AcceptError> {
        let cpus = self.cpus.as_slice();
        let backend = self.backend.open(connections, cpus.len())?;
        let config = |(index, &cpu): (usize, &usize)| {
            let mut config = Config::default()
                .backend(backend.clone())
                .placement(self.backend.placement(index))
                .driver(self.driver.into())
                .max_lwsockets(connections);
            config.core = Some(cpu);
            config
        };
        Ok(cpus.iter().enumerate().map(config).collect())
    }
}

/// Accepts and resets until a signal ends the process. Blocks.
pub(crate) fn serve(args: &AcceptArgs) -> Result<(), AcceptError> {
    let configs = args.configs(limits::ACCEPT_CONNECTIONS_MAX)?;
    let (said, listening) = mpsc::channel();
    for (index, config) in configs.into_iter().enumerate() {
        let (args, said) = (args.clone(), said.clone());
        let body = move || {
            if let Err(error) = accept_and_reset(&args, config, &said) {
                // The receiver is gone if another thread failed.
                let _ = said.send(Err(error));
            }
        };
        threads::spawn(format!("accept-{index}"), body).map_err(failed("a thread"))?;
        // One after the other: a small allocation that fails beside a large one ends the process.
        next_report(&listening)?;
    }
    println!("listening on {}", args.server);
    drop(said);
    // A thread reports again only if it fails. The others end with the process.
    next_report(&listening)
}

/// Waits for the next report of a thread.
fn next_report(reports: &Receiver<Result<(), AcceptError>>) -> Result<(), AcceptError> {
    reports.recv().map_err(failed("a thread"))?
}

fn accept_and_reset(
    args: &AcceptArgs,
    config: Config,
    listening: &Sender<Result<(), AcceptError>>,
) -> Result<(), AcceptError> {
    // The kernel's listeners are divided by core; without a mask each would take all.
    let is_alone = args.cpus.as_slice().len() == 1;
    let mask = config.core.filter(|_| !is_alone).map(CpuMask::cpu);
    let mut channel = Channel::create(config)?;
    let options = ListenOptions::default().backlog(limits::ACCEPT_BACKLOG);
    let options = match mask {
        Some(mask) => options.cpu_mask(mask),
        None => options,
    };
    let listener = channel.listen(&args.server, &options, 0).map_err(failed("listen"))?;
    channel.accept(listener, Accept::lwsocket(u32::MAX)).map_err(failed("accept"))?;
    // The receiver is gone if another thread failed.
    let _ = listening.send(Ok(()));
    let mut completions: Vec<Completion> = Vec::with_capacity(COMPLETIONS_PER_TURN);
    loop {
        channel
            .dispatch_many(&mut completions, COMPLETIONS_PER_TURN, None)
            .map_err(failed("dispatch"))?;
        for completion in completions.drain(..) {
            match completion.event {
                Event::Accept(Ok(accepted)) => {
                    if let Connection::Lwsocket(handle) = accepted.connection {
                        // A connection that is over already needs no reset.
                        let _ = channel.disconnect(handle, Disconnect::Reset);
                    }
                }
                Event::Disconnect(_) => {
                    let _ = channel.unregister(completion.handle);
                }
                _ => {}
            }
        }
    }
}

/// What all threads came to, or the first error.
fn join_all<T>(
    threads: Vec<thread::ScopedJoinHandle<'_, Result<T, AcceptError>>>,
) -> Result<Vec<T>, AcceptError> {
    let join = |thread: thread::ScopedJoinHandle<'_, Result<T, AcceptError>>| {
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    };
    threads.into_iter().map(join).collect()
}

/// What the load saw in its window.
#[derive(Default)]
struct AcceptTally {
    connections: u64,
    errors: BTreeMap<String, u64>,
    latencies_us: Vec<f64>,
}

impl AcceptTally {
    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.latencies_us.extend(other.latencies_us);
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
    }
}

/// The part of the load on one core.
struct AcceptLoad<'args> {
    args: &'args AcceptLoadArgs,
    channel: Channel,
    /// When the connection of each place began, if it is timed.
    began: Vec<Option<Instant>>,
    /// Connections begun.
    begun: u64,
    tally: AcceptTally,
}

/// Connects as fast as it can, and prints what came of it as `bench load` does. Blocks.
pub(crate) fn load(args: &AcceptLoadArgs) -> Result<(), AcceptError> {
    // What a load has on its way is known, and tables with room for more are only slower to reach.
    let room = args.connections.saturating_mul(limits::ACCEPT_LOAD_ROOM);
    let configs = args.accept.configs(room.min(limits::ACCEPT_CONNECTIONS_MAX))?;
    let count = configs.len() as u32;
    let warm = Instant::now() + Duration::from_secs_f64(args.warmup);
    let end = warm + Duration::from_secs_f64(args.duration);
    let (readings, tallies) = thread::scope(|scope| {
        let mut running = Vec::with_capacity(configs.len());
        for (index, config) in (0..).zip(configs) {
            let connections =
                args.connections / count + u32::from(index < args.connections % count);
            let body = move || AcceptLoad::run(args, config, connections, [warm, end]);
            let thread = threads::spawn_scoped(scope, format!("connect-{index}"), body);
            running.push(thread.map_err(failed("a thread"))?);
        }
        let readings = [warm, end].map(|moment| {
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            args.read()
        });
        Ok::<_, AcceptError>((readings, join_all(running)))
    })?;
    let [before, after] = readings;
    let (before, after) = (before?, after?);
    let mut tally = AcceptTally::default();
    tallies?.into_iter().for_each(|part| tally.add(part));
    let seconds = (after.0 - before.0).as_secs_f64();
    let latency_us = quantiles(&mut tally.latencies_us);
    let report = json!({
        "seconds": seconds,
        "server": after.1 - before.1,
        "load": after.2 - before.2,
        "summary": {
            "transactions_per_s": tally.connections as f64 / seconds,
            "latency_us": latency_us,
            "errors": tally.errors,
        },
    });
    println!("{report}");
    Ok(())
}

impl AcceptLoadArgs {
    fn read(&self) -> Result<(Instant, CoreTimes, CoreTimes), AcceptError> {
        let read = |cpus| CoreTimes::read(cpus).map_err(failed::<io::Error>("/proc/stat"));
        let server = read(&self.watched_cpus)?;
        Ok((Instant::now(), server, read(&self.accept.cpus)?))
    }
}

impl<'args> AcceptLoad<'args> {
    /// Connects until the second of two moments; what it saw between them.
    fn run(
        args: &'args AcceptLoadArgs,
        config: Config,
        connections: u32,
        [warm, end]: [Instant; 2],
    ) -> Result<AcceptTally, AcceptError> {
        let channel = Channel::create(config)?;
        let began = vec![None; connections as usize];
        let mut load = Self { args, channel, began, begun: 0, tally: AcceptTally::default() };
        for place in 0..connections {
            load.connect(place.into())?;
        }
        load.run_until(warm)?;
        load.tally = AcceptTally::default();
        load.run_until(end)?;
        Ok(load.tally)
    }

    fn connect(&mut self, place: u64) -> Result<(), AcceptError> {
        self.begun += 1;
        self.began[place as usize] = self.begun.is_multiple_of(TIMED_EVERY).then(Instant::now);
        let mut options = ConnectOptions::default();
        options.reset_on_close = true;
        self.channel
            .connect(&self.args.accept.server, &options, place)
            .map_err(failed("connect"))?;
        Ok(())
    }

    fn run_until(&mut self, end: Instant) -> Result<(), AcceptError> {
        let mut completions = Vec::with_capacity(COMPLETIONS_PER_TURN);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.channel
                .dispatch_many(&mut completions, COMPLETIONS_PER_TURN, Some(left))
                .map_err(failed("dispatch"))?;
            for completion in completions.drain(..) {
                self.on_completion(completion)?;
            }
        }
    }

    fn on_completion(&mut self, completion: Completion) -> Result<(), AcceptError> {
        let Completion { handle, cookie, event } = completion;
        match event {
            Event::Connect(Ok(())) => {
                // It waits for the reset, and reads nothing.
                if let Err(misuse) = self.channel.await_end(handle) {
                    self.again(handle, cookie, Err(misuse.to_string()))?;
                }
                Ok(())
            }
            Event::End(_) => self.again(handle, cookie, Ok(())),
            // It was established, and reset before the completion was taken.
            Event::Connect(Err(OpError::Reset)) => self.again(handle, cookie, Ok(())),
            Event::Connect(Err(error)) => self.again(handle, cookie, Err(error.to_string())),
            _ => Ok(()),
        }
    }

    fn again(
        &mut self,
        handle: Handle,
        place: u64,
        outcome: Result<(), String>,
    ) -> Result<(), AcceptError> {
        // Its end was seen; what unregister returns is empty.
        let _ = self.channel.unregister(handle);
        match outcome {
            Ok(()) => {
                self.tally.connections += 1;
                let took = self.began[place as usize].map(|began| began.elapsed());
                self.tally.latencies_us.extend(took.map(|took| took.as_secs_f64() * 1e6));
            }
            Err(error) => *self.tally.errors.entry(error).or_default() += 1,
        }
        self.connect(place)
    }
}

/// Pure: the quantiles that a point has.
fn quantiles(sample: &mut [f64]) -> Latency {
    sample.sort_by(f64::total_cmp);
    let at = |share: f64| quantile(sample, share);
    let mean = sample.iter().sum::<f64>() / sample.len().max(1) as f64;
    let variance = sample.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
    Latency {
        p50: median(sample.iter().copied()),
        p99: at(0.99),
        p999: at(0.999),
        max: at(1.0),
        min: at(0.0),
        mean,
        sd: (variance / sample.len().max(1) as f64).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::quantiles;

    #[test]
    fn quantiles_are_of_the_sorted_sample() {
        let mut sample: Vec<f64> = (0..1000).rev().map(f64::from).collect();
        let latency = quantiles(&mut sample);
        assert!((latency.p50 - 499.5).abs() < 1e-9);
        assert!((latency.p99 - 989.0).abs() < 1e-9 && (latency.max - 999.0).abs() < 1e-9);
        assert!(quantiles(&mut []).max.abs() < 1e-9);
    }
}
