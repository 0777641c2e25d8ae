//! The coordinator of a load: starts the threads, sets the measurement window, shows progress, and
//! adds up the results.
//!
//! Invariants
//! - Every thread that was started is joined.
//! - SIGINT or SIGTERM, where they are caught, end the window early, and so does a server that says
//!   nothing but no; what was measured until then is summed up.

use std::io::{self, IsTerminal, Write};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use megapipe::limits::HANDLES_MAX;
use megapipe::{Address, Backend, Channel, Config, Waker};

use super::args::{LoadArgs, Transactions};
use super::client_protocol::ClientProtocol;
use super::control::{LoadControl, LoadProgress};
use super::cores::{self, CoreTime};
use super::error::LoadError;
use super::rng::Rng;
use super::summary::{Asked, Busy, Summary};
use super::window::Count;
use super::worker::{Worker, WorkerPlan, WorkerResult, now_ns};
use super::{Close, pacing};
use crate::backend::{BackendArgs, BackendName, warn_of_fall_back};
use crate::limits::SPARE_BYTES;
use crate::limits::load::{
    BYTES_PER_CONNECTION, CONNECTIONS_MAX, READY_DEADLINE, REJECTED_NS_MAX, SPARE_BYTES_PER_THREAD,
    THREADS_MAX,
};
use crate::memory::require;
use crate::result_file;
use crate::serve::{Notices, SupervisorNotice, raise_descriptor_limit};
use crate::threads::{self, allowed_cpus};

/// Notification for the observer of a load.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// Every connection is open (or was tried), and the warm-up begins.
    Warming,
    /// The window begins.
    Measuring,
    /// The window is over.
    Measured,
}

/// A load to be run.
#[derive(Debug)]
pub(crate) struct LoadJob<'a> {
    pub(crate) name: &'static str,
    pub(crate) server_default: &'static str,
    pub(crate) args: &'a LoadArgs,
}

/// Which part of a load a thread is.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ThreadShare {
    pub(crate) index: u64,
    pub(crate) count: u64,
}

impl LoadJob<'_> {
    /// Where the server is.
    pub(crate) fn server(&self) -> Result<Address, LoadError> {
        match &self.args.server {
            Some(Address::Inet(server)) if server.port() == 0 => {
                Err(LoadError::NoPort { server: *server })
            }
            Some(server) => Ok(server.clone()),
            None => Ok(self.server_default.parse()?),
        }
    }

    fn threads(&self) -> Result<u32, LoadError> {
        let by_cpus = self.args.cpus.as_ref().map_or(1, |cpus| cpus.as_slice().len() as u32);
        let threads = self.args.threads.unwrap_or(by_cpus).clamp(1, THREADS_MAX);
        let connections = self.args.connections.min(CONNECTIONS_MAX);
        if connections < threads {
            return Err(LoadError::Threads { threads, connections });
        }
        Ok(threads)
    }

    /// The processor of each thread.
    fn cores(&self, threads: u32) -> Result<Vec<Option<usize>>, LoadError> {
        let Some(cpus) = &self.args.cpus else { return Ok(vec![None; threads as usize]) };
        let (cpus, allowed) = (cpus.as_slice(), allowed_cpus());
        if let Some(&cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(LoadError::Cpu { cpu });
        }
        Ok((0..threads as usize).map(|index| cpus.get(index % cpus.len()).copied()).collect())
    }

    fn plan(&self, part: ThreadShare, control: &Arc<LoadControl>) -> Result<WorkerPlan, LoadError> {
        let args = self.args;
        let share = |whole: u64| pacing::share(whole, part.index, part.count);
        let transactions = match &args.transactions {
            Transactions::Endless => None,
            Transactions::PerConnection(distribution) => Some(distribution.clone()),
        };
        Ok(WorkerPlan {
            index: part.index as usize,
            server: self.server()?,
            sources: args.source.clone(),
            connections: share(args.connections.into()) as u32,
            connecting_max: args.connecting,
            transactions,
            reset: args.close == Close::Rst,
            with_connect: args.with_connect,
            timeout: Duration::from_secs_f64(args.timeout),
            rate_milli: args.rate.map(|rate| share((rate * 1_000.0).round() as u64)),
            total: args.total.map(share),
            read_len: Config::default().buffer_len,
            rng: Rng::stream(args.seed, part.index * 2),
            control: Arc::clone(control),
        })
    }

    fn config(&self, backend: &Backend, connections: u32, core: Option<usize>) -> Config {
        let mut config = Config::default()
            .backend(backend.clone())
            .fall_back(self.args.backend.fall_back)
            .driver(self.args.driver.into())
            .batch(self.args.batch)
            // A connection sends its next request after the answer to the one before.
            .unsent_bytes_max(usize::MAX)
            // Those that are being closed still have their slots while their successors connect.
            .max_lwsockets(connections.saturating_mul(2).saturating_add(64).min(HANDLES_MAX));
        config.core = core;
        config
    }
}

/// Message of a thread whose channel exists.
struct LoadThreadReady {
    waker: Waker,
    driver: String,
}

/// The threads of a load.
struct Coordinator {
    threads: Vec<JoinHandle<Result<WorkerResult, LoadError>>>,
    wakers: Vec<Waker>,
    driver: String,
    control: Arc<LoadControl>,
    notices: Notices,
    ended: usize,
    interrupted: bool,
    /// Time since the server has only rejected connections.
    rejected_since_ns: Option<u64>,
}

/// Runs a load whose threads use the client protocols that `protocol` creates.
pub(crate) fn coordinate<D>(
    job: &LoadJob<'_>,
    protocol: impl Fn(ThreadShare) -> Result<D, LoadError> + Send + Sync + 'static,
    observe: &mut dyn FnMut(LoadPhase),
) -> Result<Summary, LoadError>
where
    D: ClientProtocol + Send + 'static,
{
    if let Some(path) = &job.args.json {
        let failed = |source| LoadError::File { path: path.clone(), source };
        result_file::check(path).map_err(failed)?;
    }
    job.args.backend.check_driver(job.args.driver.into())?;
    job.args.source.iter().try_for_each(|source| check_source(&job.args.backend, source))?;
    let threads = job.threads()?;
    let cores = job.cores(threads)?;
    raise_descriptor_limit();
    let each = job.args.connections.div_ceil(threads).saturating_mul(2).min(HANDLES_MAX);
    let backend = job.args.backend.open(each, threads as usize)?;
    let notices = Notices::new().map_err(LoadError::Signals)?;
    let mut coordinator = Coordinator {
        threads: Vec::new(),
        wakers: Vec::new(),
        driver: String::new(),
        control: Arc::new(LoadControl::new(threads as usize)),
        notices,
        ended: 0,
        interrupted: false,
        rejected_since_ns: None,
    };
    for (index, core) in (0..).zip(&cores) {
        let part = ThreadShare { index, count: threads.into() };
        let plan = job.plan(part, &coordinator.control)?;
        let config = job.config(&backend, plan.connections, *core);
        let config = config.placement(job.args.backend.placement(index as usize));
        coordinator.start(plan, config, protocol(part)?)?;
    }
    let spare_bytes = SPARE_BYTES + threads as usize * SPARE_BYTES_PER_THREAD;
    require(spare_bytes).map_err(LoadError::Start)?;
    coordinator.control.set_all_started();
    if job.args.catch_signals {
        coordinator.notices.catch_signals().map_err(LoadError::Signals)?;
    }
    let cpus: Option<Vec<usize>> = cores.into_iter().collect();
    let window = coordinator.play(job, cpus.as_deref(), observe)?;
    coordinator.sum_up(job, threads, &window)
}

/// Measurements in addition to the threads' own counts.
struct WindowMeasurement {
    seconds: f64,
    cores_busy: Vec<f64>,
}

impl Coordinator {
    fn start<D>(&mut self, plan: WorkerPlan, config: Config, protocol: D) -> Result<(), LoadError>
    where
        D: ClientProtocol + Send + 'static,
    {
        let index = plan.index;
        let (sender, receiver) = mpsc::channel();
        let end_notice = self.notices.end_notice().map_err(LoadError::Thread)?;
        let body = move || {
            let _end_notice = end_notice;
            let mut channel = create(&plan, config)?;
            let control = Arc::clone(&plan.control);
            let worker = Worker::new(plan, protocol);
            let report = channel.report();
            if index == 0 {
                warn_of_fall_back(report);
            }
            let driver = format!("{} ({})", report.driver, report.reason);
            // The receiver is gone only if the load is already ending.
            let _ = sender.send(LoadThreadReady { waker: channel.waker(), driver });
            control.wait_for_others();
            worker.run(&mut channel)
        };
        let thread = threads::spawn(format!("load-{index}"), body);
        self.threads.push(thread.map_err(LoadError::Thread)?);
        self.admit(&receiver)
    }

    /// Ends the threads before their load begins, and returns the first error of one.
    fn give_up(&mut self) -> Result<(), LoadError> {
        self.control.begin(0, 0..0);
        self.control.end(0);
        self.control.set_all_started();
        self.wakers.iter().for_each(Waker::wake);
        self.join().map(drop)
    }

    fn admit(&mut self, receiver: &Receiver<LoadThreadReady>) -> Result<(), LoadError> {
        let Ok(ready) = receiver.recv() else {
            // The thread has ended without a channel: its result says why.
            return self.give_up();
        };
        self.wakers.push(ready.waker);
        self.driver = ready.driver;
        Ok(())
    }

    /// From the first connection to the end of the window.
    fn play(
        &mut self,
        job: &LoadJob<'_>,
        cpus: Option<&[usize]>,
        observe: &mut dyn FnMut(LoadPhase),
    ) -> Result<WindowMeasurement, LoadError> {
        let deadline_ns = now_ns().saturating_add(nanos(READY_DEADLINE.as_secs_f64()));
        self.wait_until(deadline_ns, |control| control.all_ready())?;
        observe(LoadPhase::Warming);
        let args = job.args;
        let warmup = if args.total.is_some() { 0.0 } else { args.warmup };
        let duration = match (args.duration, args.total) {
            (Some(seconds), _) => nanos(seconds),
            (None, None) => nanos(10.0),
            (None, Some(_)) => u64::MAX / 4,
        };
        let go_ns = now_ns() + nanos(0.02);
        let from_ns = go_ns + nanos(warmup);
        let until_ns = from_ns.saturating_add(duration);
        self.control.begin(go_ns, from_ns..until_ns);
        self.wait_until(from_ns, |_| false)?;
        observe(LoadPhase::Measuring);
        let cores_before = cpus.map(cores::read);
        self.watch(job, from_ns, until_ns)?;
        let until_ns = match self.control.all_spent_ns() {
            Some(spent_ns) => spent_ns.saturating_add(1),
            None => until_ns.min(now_ns()),
        };
        self.control.end(until_ns);
        observe(LoadPhase::Measured);
        let cores_busy = busy(cpus, cores_before.unwrap_or_default());
        self.wakers.iter().for_each(Waker::wake);
        let until_ns = self.control.window().end;
        let seconds = until_ns.saturating_sub(from_ns) as f64 / 1e9;
        Ok(WindowMeasurement { seconds, cores_busy })
    }

    /// Waits for the end of the window and shows progress.
    fn watch(&mut self, job: &LoadJob<'_>, from_ns: u64, until_ns: u64) -> Result<(), LoadError> {
        let visible = !job.args.quiet && io::stderr().is_terminal();
        let mut before = (from_ns, self.control.progress());
        while now_ns() < until_ns && !self.interrupted && self.control.all_spent_ns().is_none() {
            let next_ns = before.0.saturating_add(nanos(1.0)).min(until_ns);
            self.wait_until(next_ns, |control| control.all_spent_ns().is_some())?;
            let after = (now_ns(), self.control.progress());
            if visible {
                let seconds = (after.0 - before.0) as f64 / 1e9;
                let at = after.0.saturating_sub(from_ns) as f64 / 1e9;
                let line = progress_line(at, seconds, before.1, after.1);
                // A closed standard error does not stop the load.
                let _ = write!(io::stderr(), "\r{line}\x1b[K");
            }
            before = after;
        }
        if visible {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        Ok(())
    }

    /// Waits until a time, or until the condition holds, or for an interrupt.
    fn wait_until(
        &mut self,
        until_ns: u64,
        done: impl Fn(&LoadControl) -> bool,
    ) -> Result<(), LoadError> {
        const LOOK_NS: u64 = 5_000_000;
        while !self.interrupted && !done(&self.control) {
            let left_ns = until_ns.saturating_sub(now_ns());
            if left_ns == 0 {
                break;
            }
            let wait = Duration::from_nanos(left_ns.min(LOOK_NS));
            for notice in self.notices.wait(Some(wait)).map_err(LoadError::Signals)? {
                match notice {
                    SupervisorNotice::Signal => self.interrupted = true,
                    SupervisorNotice::ThreadEnded => self.ended += 1,
                }
            }
            self.give_up_if_rejected();
            // A thread that ends before the window does has failed; after it, it is done.
            if self.ended > 0 && now_ns() < self.control.window().end {
                self.control.end(0);
                return self.join().map(drop);
            }
        }
        Ok(())
    }

    /// Ends the load if the server only rejects connections.
    fn give_up_if_rejected(&mut self) {
        if !self.control.is_only_rejected() {
            self.rejected_since_ns = None;
            return;
        }
        let now_ns = now_ns();
        let since_ns = *self.rejected_since_ns.get_or_insert(now_ns);
        self.interrupted |= now_ns.saturating_sub(since_ns) >= REJECTED_NS_MAX;
    }

    /// Waits for all threads; the first error counts.
    fn join(&mut self) -> Result<Vec<WorkerResult>, LoadError> {
        let ends = self
            .threads
            .drain(..)
            .enumerate()
            .map(|(index, thread)| thread.join().unwrap_or(Err(LoadError::Panicked { index })));
        // Collected first, so that one thread's error does not leave another behind.
        let ends: Vec<_> = ends.collect();
        ends.into_iter().collect()
    }

    fn sum_up(
        &mut self,
        job: &LoadJob<'_>,
        threads: u32,
        measured: &WindowMeasurement,
    ) -> Result<Summary, LoadError> {
        let results = self.join()?;
        let mut count = Count::default();
        results.iter().for_each(|result| count.add(&result.count));
        let asked = Asked {
            load: job.name,
            server: job.server()?.to_string(),
            driver: std::mem::take(&mut self.driver),
            threads,
            connections: job.args.connections,
            transactions: job.args.transactions.to_string(),
            close: job.args.close.name(),
            rate: job.args.rate,
            seed: job.args.seed,
        };
        let busy = Busy {
            threads: results.iter().map(|result| result.busy).collect(),
            cores: measured.cores_busy.clone(),
        };
        let details = results.iter().flat_map(|result| result.details.iter().copied());
        let mut summary = Summary::new(asked, &count, measured.seconds, busy, details);
        if let Some(unexpected) = results.iter().find_map(|result| result.unexpected.as_deref()) {
            summary.remarks.push(format!("The first unexpected answer: {unexpected}."));
        }
        Ok(summary)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // Only on the way out of an error is anything left here; it has been told already.
        let _ = self.give_up();
    }
}

/// Refuses a source address that this host, or our own stack, does not have.
fn check_source(backend: &BackendArgs, address: &Address) -> Result<(), LoadError> {
    let Address::Inet(source) = address else { return Ok(()) };
    let refused = |why| Err(LoadError::Source { address: *source, why });
    if !backend.may_have(source.ip()) {
        return refused(format!("the stack has only --address {}", backend.addresses_given()));
    }
    if backend.backend != BackendName::Kernel {
        return Ok(());
    }
    // Other errors than this one may pass, and connections report them.
    match UdpSocket::bind((source.ip(), 0)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            refused("it is no address of this host".to_owned())
        }
        _ => Ok(()),
    }
}

fn create(plan: &WorkerPlan, config: Config) -> Result<Channel, LoadError> {
    let (index, connections) = (plan.index, plan.connections as usize);
    let channel = Channel::create(config).map_err(|source| LoadError::Create { index, source })?;
    let needed = SPARE_BYTES + connections * BYTES_PER_CONNECTION;
    require(needed).map_err(|source| LoadError::Memory { index, source })?;
    // Waking up late makes a fixed rate late. Refused only by old kernels; then it is as it was.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    Ok(channel)
}

fn busy(cpus: Option<&[usize]>, before: Vec<CoreTime>) -> Vec<f64> {
    let after = cpus.map(cores::read).unwrap_or_default();
    after.into_iter().zip(before).map(|(after, before)| after.busy_since(before)).collect()
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

fn progress_line(at: f64, seconds: f64, before: LoadProgress, after: LoadProgress) -> String {
    let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds.max(1e-3);
    format!(
        "{at:>6.0} s {:>12.0} transactions/s {:>10.0} connections/s {:>8} errors",
        rate(before.answered, after.answered),
        rate(before.connected, after.connected),
        after.faults
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_rate() {
        let before = LoadProgress { answered: 100, connected: 10, faults: 0 };
        let after = LoadProgress { answered: 300, connected: 10, faults: 2 };
        let line = progress_line(3.0, 2.0, before, after);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["3", "s", "100", "transactions/s", "0", "connections/s", "2", "errors"]);
    }
}
