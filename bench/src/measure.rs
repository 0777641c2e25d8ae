//! One measured run, and the medians of several.
//!
//! A run starts a fresh server and puts the load on it, which reads `/proc/stat` when its measured
//! window begins and when it ends. CPU time per transaction is the busy
//! time of the server's cores per second of that window over the load's transactions per second.
//!
//! Servers to be compared are measured in turn and back (A B C C B A …), so that what the machine
//! does meanwhile hits all of them alike, also if it grows or fades; what is reported is the median
//! of the runs.

use crate::{
    experiments::Experiment,
    layout::BenchLayout,
    limits,
    load::{LoadFailure, LoadPath, LoadReport},
    point::{CpuShares, CpuSplit, Latency, Point, Saturated},
    process,
    profile::Profile,
    server::{RunningServer, ServerStartError, ServiceKind},
    trial::BenchTrial,
};
use std::{io, path::Path, time::Duration};

impl BenchTrial {
    /// Whether measuring one is measuring the other, whatever experiments they belong to.
    pub(crate) fn is_same_run(&self, other: &Self) -> bool {
        self.server.is_same_process(other.server)
            && self.service == other.service
            && self.load == other.load
            && self.is_profiled() == other.is_profiled()
    }

    /// Whether the server's cores are sampled, which costs them a little, and needs root and perf.
    fn is_profiled(&self) -> bool {
        Experiment::named(self.experiment).is_some_and(Experiment::is_profiled)
            && rustix::process::geteuid().is_root()
            && process::find_program("perf").is_some()
    }
}

/// What one run found out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) transactions_per_s: f64,
    pub(crate) server_cpu_us_per_transaction: f64,
    pub(crate) server_idle_share: f64,
    pub(crate) load_idle_share: f64,
    pub(crate) latency_us: Latency,
    pub(crate) errors: u64,
    pub(crate) server_cpu_us: CpuSplit,
    pub(crate) server_calls_per_transaction: f64,
    pub(crate) load_cpu_us_per_transaction: f64,
    pub(crate) fairness: Option<f64>,
    pub(crate) cpu_shares: Option<CpuShares>,
    /// Parts of the response time, where it includes the handshake.
    pub(crate) connect_us: Option<Latency>,
    pub(crate) processing_us: Option<Latency>,
    /// Of a server whose stack has a thread of its own.
    pub(crate) events_per_wakeup: Option<f64>,
    /// How long the process of a server on our own stack ran for a transaction, and the load's.
    pub(crate) server_process_us: Option<f64>,
    pub(crate) load_process_us: Option<f64>,
}

impl Sample {
    /// What a transaction cost a server on our own stack: what its process ran, which is all of it
    /// and nothing else; else what its cores were busy.
    pub(crate) fn server_cost_us(&self) -> f64 {
        self.server_process_us.unwrap_or(self.server_cpu_us_per_transaction)
    }

    /// The same of the load.
    pub(crate) fn load_cost_us(&self) -> f64 {
        self.load_process_us.unwrap_or(self.load_cpu_us_per_transaction)
    }
}

/// A run that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasureError {
    /// The server's fault.
    #[error(transparent)]
    Server(#[from] ServerStartError),
    /// The load's fault.
    #[error(transparent)]
    Load(#[from] LoadFailure),
    /// `/proc` could not be read.
    #[error("measuring: {0}")]
    System(#[from] io::Error),
    /// Not one transaction in a run.
    #[error("{server}: no transaction was completed")]
    Nothing {
        /// Which server.
        server: String,
    },
}

/// Measures one run. Blocks for about the window and a second.
pub(crate) fn sample(
    trial: &BenchTrial,
    window: Duration,
    layout: &BenchLayout,
    scratch: &Path,
) -> Result<Sample, MeasureError> {
    let mut server = RunningServer::start(trial.server, trial.service, layout, scratch)?;
    let mut path = LoadPath::new(trial.server, layout, scratch);
    if trial.server.stack_link().is_some() {
        path.server_pids = server.pids();
    }
    let profile = match trial.is_profiled() {
        true => Some(Profile::start(
            (&layout.server.cpus, server.pid()),
            limits::LOAD_WARM_UP + window,
            scratch,
        )?),
        false => None,
    };
    let report = trial.load.run(server.address, window, &path)?;
    server.check()?;
    let mut sample =
        reduce(&report).ok_or_else(|| MeasureError::Nothing { server: trial.server.label() })?;
    if let Some(profile) = profile {
        sample.cpu_shares = profile.finish()?;
    }
    if trial.service != ServiceKind::AcceptReset {
        sample.events_per_wakeup = server.finish()?;
    }
    Ok(sample)
}

/// Pure: the numbers of a run from what was observed. None if nothing was served.
fn reduce(report: &LoadReport) -> Option<Sample> {
    if report.transactions_per_s <= 0.0 || report.seconds <= 0.0 {
        return None;
    }
    let transactions = report.transactions_per_s * report.seconds;
    let server_cpu_us_per_transaction = report.server.busy_us(report.seconds) / transactions;
    let each_us = |ticks: u64| {
        server_cpu_us_per_transaction * ticks as f64 / report.server.busy_ticks.max(1) as f64
    };
    Some(Sample {
        server_cpu_us: CpuSplit {
            user: each_us(report.server.user_ticks),
            system: each_us(report.server.system_ticks),
            softirq: each_us(report.server.softirq_ticks),
        },
        server_calls_per_transaction: report.server.calls as f64 / transactions,
        load_cpu_us_per_transaction: report.load.busy_us(report.seconds) / transactions,
        fairness: report.fairness,
        cpu_shares: None,
        connect_us: report.connect_us,
        processing_us: report.processing_us,
        server_process_us: report.server_ran_us.map(|us| us / transactions),
        load_process_us: report.load_ran_us.map(|us| us / transactions),
        events_per_wakeup: None,
        transactions_per_s: report.transactions_per_s,
        server_cpu_us_per_transaction,
        server_idle_share: report.server.idle_share(),
        load_idle_share: report.load.idle_share(),
        latency_us: report.latency_us,
        errors: report.errors,
    })
}

/// The median; the mean of the middle two of an even number, 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The value below which a share of sorted values lies; 0 of none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share) as usize).copied().unwrap_or(0.0)
}

/// The lower and the upper quartile: half of the values lie between them. By linear interpolation
/// between neighbours; zeros of none.
pub(crate) fn quartiles(values: impl IntoIterator<Item = f64>) -> [f64; 2] {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return [0.0; 2] };
    [0.25, 0.75].map(|share| {
        let place = share * last as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    })
}

/// Lowest and highest; zeros of none.
pub(crate) fn range(values: impl IntoIterator<Item = f64>) -> [f64; 2] {
    let bounds = values.into_iter().fold(None, |bounds: Option<[f64; 2]>, value| {
        let [low, high] = bounds.unwrap_or([value, value]);
        Some([low.min(value), high.max(value)])
    });
    bounds.unwrap_or_default()
}

/// The point that several runs of a trial make.
pub(crate) fn summarise(trial: &BenchTrial, samples: &[Sample], layout: &BenchLayout) -> Point {
    let each = |field: fn(&Sample) -> f64| samples.iter().map(field);
    let server_idle_share = median(each(|sample| sample.server_idle_share));
    let load_idle_share = median(each(|sample| sample.load_idle_share));
    Point {
        experiment: trial.experiment.to_owned(),
        server: trial.server.name().to_owned(),
        backend: trial.server.backend().to_owned(),
        driver: trial.server.driver().to_owned(),
        link: trial.server.link(layout),
        placement: trial.server.placement().to_owned(),
        shards: layout.server.cpus.as_slice().len(),
        transactions_per_connection: trial.load.transactions_per_connection,
        message_bytes: trial.load.message_bytes(),
        connections: trial.load.connections,
        transactions_per_s: median(each(|sample| sample.transactions_per_s)),
        server_cpu_us_per_transaction: median(each(|it| it.server_cpu_us_per_transaction)),
        latency_us: median_latency(samples.iter().map(|it| it.latency_us)).unwrap_or_default(),
        saturated: Saturated::of(
            server_idle_share < limits::SATURATED_IDLE_SHARE_MAX,
            load_idle_share < limits::SATURATED_IDLE_SHARE_MAX,
        ),
        runs: samples.len(),
        variant: trial.server.variant(),
        workload: trial.load.workload_name().to_owned(),
        transactions_per_s_range: range(each(|sample| sample.transactions_per_s)),
        server_cpu_us_range: range(each(|sample| sample.server_cpu_us_per_transaction)),
        server_idle_share,
        errors: samples.iter().map(|sample| sample.errors).sum(),
        server_cpu_us: CpuSplit {
            user: median(each(|sample| sample.server_cpu_us.user)),
            system: median(each(|sample| sample.server_cpu_us.system)),
            softirq: median(each(|sample| sample.server_cpu_us.softirq)),
        },
        server_calls_per_transaction: median(each(|it| it.server_calls_per_transaction)),
        load_cores: layout.load.cpus.as_slice().len(),
        load_cpu_us_per_transaction: median(each(|it| it.load_cpu_us_per_transaction)),
        fairness: samples.iter().filter_map(|sample| sample.fairness).reduce(f64::min),
        cpu_shares: median_shares(samples),
        connect_us: median_latency(samples.iter().filter_map(|it| it.connect_us)),
        processing_us: median_latency(samples.iter().filter_map(|it| it.processing_us)),
        simulated: None,
        server_process_us_per_transaction: median_of_some(
            samples.iter().filter_map(|it| it.server_process_us),
        ),
        load_process_us_per_transaction: median_of_some(
            samples.iter().filter_map(|it| it.load_process_us),
        ),
        events_per_wakeup: median_of_some(samples.iter().filter_map(|it| it.events_per_wakeup)),
    }
}

/// The median; none of none.
fn median_of_some(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(values))
}

/// Each number the median; none of none.
fn median_latency(of: impl Iterator<Item = Latency>) -> Option<Latency> {
    let all: Vec<Latency> = of.collect();
    let each = |field: fn(&Latency) -> f64| median(all.iter().map(field));
    (!all.is_empty()).then(|| Latency {
        p50: each(|it| it.p50),
        p99: each(|it| it.p99),
        p999: each(|it| it.p999),
        max: each(|it| it.max),
        min: each(|it| it.min),
        mean: each(|it| it.mean),
        sd: each(|it| it.sd),
    })
}

/// Each share the median of the runs that were profiled; none if none was.
fn median_shares(samples: &[Sample]) -> Option<CpuShares> {
    let profiled: Vec<CpuShares> = samples.iter().filter_map(|it| it.cpu_shares).collect();
    let share = |field: fn(&CpuShares) -> f64| median(profiled.iter().map(field));
    (!profiled.is_empty()).then(|| CpuShares {
        application: share(|it| it.application),
        channel: share(|it| it.channel),
        tcp_ip: share(|it| it.tcp_ip),
        packet_io: share(|it| it.packet_io),
        kernel: share(|it| it.kernel),
    })
}

#[cfg(test)]
mod tests {
    use super::{median, quartiles, range, reduce};
    use crate::{
        cpu_time::CoreTimes,
        load::LoadReport,
        point::{CpuSplit, Latency},
    };

    #[test]
    fn medians_and_ranges() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median([]).abs() < 1e-9);
        assert_eq!(range([3.0, 1.0, 2.0]).map(|bound| bound as u32), [1, 3]);
        assert_eq!(range([]).map(|bound| bound as u32), [0, 0]);
        assert_eq!(quartiles([5.0, 1.0, 3.0, 2.0, 4.0]).map(|it| it as u32), [2, 4]);
        let [lower, upper] = quartiles([1.0, 2.0]);
        assert!((lower - 1.25).abs() < 1e-9 && (upper - 1.75).abs() < 1e-9);
        assert_eq!(quartiles([]).map(|it| it as u32), [0, 0]);
    }

    #[test]
    fn cpu_time_is_busy_time_over_transactions_of_the_same_window() {
        // Two seconds, 1.8 of them busy, 200,000 transactions: 9 µs each.
        let report = LoadReport {
            transactions_per_s: 100_000.0,
            latency_us: Latency::default(),
            errors: 0,
            seconds: 2.0,
            server: CoreTimes {
                cores: 1,
                busy_ticks: 180,
                user_ticks: 20,
                system_ticks: 100,
                softirq_ticks: 60,
                idle_ticks: 20,
                steal_ticks: 0,
                calls: 50_000,
            },
            load: CoreTimes { cores: 1, busy_ticks: 200, ..CoreTimes::default() },
            fairness: Some(0.5),
            connect_us: None,
            processing_us: None,
            server_ran_us: Some(1_600_000.0),
            load_ran_us: None,
        };
        let sample = reduce(&report).unwrap();
        assert!((sample.server_cpu_us_per_transaction - 9.0).abs() < 1e-9);
        assert!((sample.server_idle_share - 0.1).abs() < 1e-9);
        let CpuSplit { user, system, softirq } = sample.server_cpu_us;
        assert!((user - 1.0).abs() < 1e-9 && (system - 5.0).abs() < 1e-9);
        assert!((softirq - 3.0).abs() < 1e-9);
        assert!((sample.server_calls_per_transaction - 0.25).abs() < 1e-9);
        assert!(sample.load_idle_share.abs() < 1e-9);
        assert!((sample.load_cpu_us_per_transaction - 10.0).abs() < 1e-9);
        assert_eq!(sample.fairness, Some(0.5));
        assert!((sample.server_cost_us() - 8.0).abs() < 1e-9, "what its process ran");
        assert!((sample.load_cost_us() - 10.0).abs() < 1e-9, "what its cores were busy");
        let nothing = LoadReport { transactions_per_s: 0.0, ..report };
        assert!(reduce(&nothing).is_none());
    }
}
