//! `megapipe bench bars --shards`: what is promised of many shards, of the places where the stack
//! may run, and of sockets on top; each measured, and whether it is met.
//!
//! Read first: the mTCP paper, 3.2 and chapter 5; `bars.rs` for how bars are shown.
//!
//! What a server on our own stack costs is what its process ran, by the kernel's scheduler: all its
//! threads, and nothing that others do on its core.
//!
//! A polling server is always busy, and a sleeping one pays for wake-ups. So a server that can do
//! either runs both ways, and the lower number of a run is its cost. This is the stricter choice
//! for the server that it is compared with.
//!
//! Where two shards and two cores of a load do not fit on the machine, their ratio comes from the
//! simulation with costs that were measured in the same run (`scaling.rs`), and says so.

use crate::{
    bars,
    error::BenchError,
    experiments::Experiment,
    layout::LayoutError,
    limits,
    measure::{self, Sample},
    point::Point,
    progress::PlanProgress,
    promise::{BarResult, Promise},
    run::Bench,
    run_args::RunArgs,
    scaling::{self, MeasuredCosts, ScalingSituation, costs, model::FrameCosts},
    server::{ServiceKind, TestedServer},
    shard_idle::{self, Idle},
    stack_link::{LinkSide, StackLink, StackPlacement},
    trial::BenchTrial,
};
use std::process::ExitCode;

const POLLING: StackLink = StackLink::Memif;
const ASLEEP: StackLink = StackLink::MemifAsleep(LinkSide::Server);

const THREAD: Promise = Promise::at_most(
    "thread",
    "placement thread over inline, 64 B, 256 connections: CPU per transaction",
    1.15,
);

const SOCKETS: Promise = Promise::at_most(
    "sockets",
    "sockets and epoll over the channel on the same back end: CPU per transaction",
    1.20,
);

const SHARDS: Promise = Promise::at_least(
    "shards",
    "two shards over one, a core of the load for each: transactions a second",
    1.9,
);

const FAIRNESS: Promise =
    Promise::at_least("fairness", "Jain's index, 256 bulk connections", 0.99).with_digits(4);

const STEERING: Promise = Promise::at_most(
    "steering",
    "software steering: added CPU per frame that another shard reads",
    60.0,
)
.in_unit(" ns")
.with_digits(1);

const IDLE: Promise =
    Promise::at_most("idle", "idle process, placement core: CPU of all its threads", 1.0)
        .in_unit(" %")
        .with_digits(2);

const IDLE_SHARDS: Promise = Promise::at_most(
    "idle-shards",
    "idle process, two shards on one queue: CPU of its threads, in the worst placement",
    1.0,
)
.in_unit(" %")
.with_digits(2);

/// Where the stack of two idle shards runs.
const IDLE_PLACEMENTS: [Option<StackPlacement>; 3] =
    [None, Some(StackPlacement::Thread), Some(StackPlacement::Core)];

const CROWD: Promise = Promise::at_most(
    "crowd",
    "8,000 connections, 64 B, one transaction each, memif: maximum over median response time",
    20.0,
)
.with_digits(1);

/// In the order in which they are promised.
const ROWS: [&Promise; 8] =
    [&THREAD, &SOCKETS, &SHARDS, &FAIRNESS, &STEERING, &IDLE, &IDLE_SHARDS, &CROWD];

/// Bars and the points that were measured for them.
type Outcome = Result<(Vec<BarResult>, Vec<Point>), LayoutError>;

/// Measures all, or those that `--only` names. Blocks for about five minutes.
pub(crate) fn measure(args: &RunArgs) -> Result<ExitCode, BenchError> {
    let names = ROWS.map(|row| row.name);
    if let Some(name) = args.only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(BenchError::UnknownExperiment { name: name.clone(), known: names.join(", ") });
    }
    let wanted =
        |row: &Promise| args.only.is_empty() || args.only.iter().any(|only| only == row.name);
    let mut bench = args.bench()?;
    let (mut bars, mut points) = (Vec::new(), Vec::new());
    let mut add = |(more, measured): (Vec<BarResult>, Vec<Point>)| {
        bars.extend(more);
        points.extend(measured);
    };
    let programs: Vec<&Promise> =
        [&THREAD, &SOCKETS].into_iter().filter(|row| wanted(row)).collect();
    if !programs.is_empty() {
        add(program_bars(&mut bench, &programs)?);
    }
    if wanted(&SHARDS) {
        add(shards_bar(&mut bench)?);
    }
    if wanted(&FAIRNESS) {
        add(one_server_bar(&mut bench, &FAIRNESS, "mt-fairness", |sample| sample.fairness)?);
    }
    if wanted(&STEERING) {
        add(steering_bar(&mut bench)?);
    }
    if wanted(&IDLE) {
        let server = (Some(StackPlacement::Core), ServiceKind::Rpc);
        add(idle_bar(&mut bench, &IDLE, &[server])?);
    }
    if wanted(&IDLE_SHARDS) {
        let servers = IDLE_PLACEMENTS.map(|placement| (placement, ServiceKind::TwoChannels));
        add(idle_bar(&mut bench, &IDLE_SHARDS, &servers)?);
    }
    if wanted(&CROWD) {
        add(one_server_bar(&mut bench, &CROWD, "mt-table2", |sample| {
            let latency = sample.latency_us;
            (latency.p50 > 0.0).then(|| latency.max / latency.p50)
        })?);
    }
    bars::finish(&bench, points, &bars, args)
}

/// Parameters of an experiment's first group.
pub(crate) fn situation(name: &'static str) -> ScalingSituation {
    let situation = Experiment::named(name).and_then(ScalingSituation::of);
    situation.expect("each experiment that is named here has a trial")
}

fn trial(situation: &ScalingSituation, server: TestedServer) -> BenchTrial {
    let ScalingSituation { experiment, service, load } = situation;
    BenchTrial { experiment, server, service: *service, load: load.clone() }
}

/// Measures servers in turn: the samples of each, in their order, and their points.
fn compare(
    bench: &mut Bench,
    situation: &ScalingSituation,
    servers: &[TestedServer],
) -> Result<(Vec<Vec<Sample>>, Vec<Point>), LayoutError> {
    let trials: Vec<BenchTrial> = servers.iter().map(|&server| trial(situation, server)).collect();
    let (results, points) = bench.compare_servers(&trials)?;
    let of = |server: &TestedServer| {
        let found = results.iter().find(|(trial, _)| trial.server == *server);
        found.map_or_else(Vec::new, |(_, samples)| samples.clone())
    };
    Ok((servers.iter().map(of).collect(), points))
}

/// CPU time per transaction run by run, of a server that was run in several ways: the lowest.
pub(crate) fn costs_us(ways: &[Vec<Sample>]) -> Vec<f64> {
    let runs = ways.iter().map(Vec::len).filter(|&len| len > 0).min().unwrap_or(0);
    let lowest = |run: usize| {
        let each = ways.iter().filter_map(|way| way.get(run));
        each.map(Sample::server_cost_us).fold(f64::INFINITY, f64::min)
    };
    (0..runs).map(lowest).collect()
}

pub(crate) fn ratios(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one / other).collect()
}

/// Placements and ways to write a program, all in the same rounds.
fn program_bars(bench: &mut Bench, rows: &[&Promise]) -> Outcome {
    let situation = situation("mt-placement");
    let wanted = |row: &Promise| rows.iter().any(|it| it.name == row.name);
    let mut servers = vec![TestedServer::Local(POLLING), TestedServer::Local(ASLEEP)];
    let thread = [POLLING, ASLEEP].map(|link| TestedServer::Placed(link, StackPlacement::Thread));
    let sockets = [TestedServer::Sockets(POLLING, None), TestedServer::Sockets(ASLEEP, None)];
    servers.extend(thread.iter().filter(|_| wanted(&THREAD)));
    servers.extend(sockets.iter().filter(|_| wanted(&SOCKETS)));
    let (samples, points) = compare(bench, &situation, &servers)?;
    let cost = |of: &[TestedServer]| {
        let places = servers.iter().zip(&samples).filter(|(server, _)| of.contains(server));
        let ways: Vec<Vec<Sample>> = places.map(|(_, samples)| samples.clone()).collect();
        costs_us(&ways)
    };
    let channel = cost(&[TestedServer::Local(POLLING), TestedServer::Local(ASLEEP)]);
    let bars = rows.iter().map(|row| {
        let of = if row.name == THREAD.name { &thread[..] } else { &sockets[..] };
        row.result(ratios(&cost(of), &channel), None)
    });
    Ok((bars.collect(), points))
}

/// Measured where two shards and two cores of the load have a core each, else simulated.
fn shards_bar(bench: &mut Bench) -> Outcome {
    let situation = situation("mt-fig7a");
    if bench.cores() >= limits::SHARDS_CORES_MIN {
        return measured_shards_bar(bench, &situation);
    }
    let mut progress = PlanProgress::new(bench.effort.runs * 3);
    let mut all: Vec<MeasuredCosts> = Vec::new();
    for _ in 0..bench.effort.runs {
        all.extend(situation.measure(bench, &mut progress)?);
    }
    progress.finish();
    let ratio =
        |measured: &MeasuredCosts| scaling::two_shards_over_one(&situation, &measured.costs);
    let bar = SHARDS.result(all.iter().map(ratio).collect(), None);
    let mut points = Vec::new();
    if !all.is_empty() {
        points = MeasuredCosts::points(&situation, &all, bench.layout(1)?);
        points.extend(scaling::simulated_points(bench, &situation, &all, 2));
    }
    Ok((vec![BarResult { simulated: true, ..bar }], points))
}

fn measured_shards_bar(bench: &mut Bench, situation: &ScalingSituation) -> Outcome {
    let trial = trial(situation, TestedServer::Local(POLLING));
    let mut samples = [Vec::new(), Vec::new()];
    let mut progress = PlanProgress::new(2 * bench.effort.runs);
    let (before, mut why) = (bench.load_cores, None);
    'runs: for run in 1..=bench.effort.runs {
        for cores in [1, 2] {
            progress.step(&format!("shards · {cores} with a core of the load each · run {run}"));
            bench.load_cores = Some(cores);
            match bench.sample(&trial, cores)? {
                Ok(sample) => samples[cores - 1].push(sample),
                Err(error) => {
                    bench.failed = true;
                    why = Some(error.to_string());
                    break 'runs;
                }
            }
        }
    }
    progress.finish();
    let mut points = Vec::new();
    for cores in [1, 2] {
        bench.load_cores = Some(cores);
        if !samples[cores - 1].is_empty() {
            points.push(measure::summarise(&trial, &samples[cores - 1], bench.layout(cores)?));
        }
    }
    bench.load_cores = before;
    let rates = |of: &[Sample]| of.iter().map(|it| it.transactions_per_s).collect::<Vec<f64>>();
    let runs = ratios(&rates(&samples[1]), &rates(&samples[0]));
    Ok((vec![SHARDS.result(runs, why)], points))
}

/// A bar about one server under one load.
fn one_server_bar(
    bench: &mut Bench,
    row: &Promise,
    experiment: &'static str,
    value: fn(&Sample) -> Option<f64>,
) -> Outcome {
    let situation = situation(experiment);
    let (samples, points) = compare(bench, &situation, &[TestedServer::Local(POLLING)])?;
    let runs = samples.iter().flatten().filter_map(value).collect();
    Ok((vec![row.result(runs, None)], points))
}

fn steering_bar(bench: &mut Bench) -> Outcome {
    let (frames, why) = bench.repeat(STEERING.name, |bench| {
        let layout = bench.layout(1)?;
        let (server, load) = (&layout.server.cpus, &layout.load.cpus);
        Ok(costs::frame_costs(server, load, limits::STEERED_ROUNDS))
    })?;
    if !frames.is_empty() {
        let FrameCosts { plain_ns, kept_ns, steered_ns, taken_ns } = FrameCosts::median(&frames);
        bench.note(format!(
            "steering: a frame costs {plain_ns:.1} ns where a shard has the queue to itself, \
             {kept_ns:.1} where many share it and its own shard reads it; one that another shard \
             reads {steered_ns:.1} there and {taken_ns:.1} where it is taken"
        ));
    }
    let runs = frames.iter().map(FrameCosts::added_ns).collect();
    Ok((vec![STEERING.result(runs, why)], Vec::new()))
}

/// Of each run the busiest of the servers.
fn idle_bar(bench: &mut Bench, promise: &Promise, servers: &[Idle]) -> Outcome {
    let (runs, why) = bench.repeat(promise.name, |bench| {
        let mut most = 0.0_f64;
        for server in servers {
            match shard_idle::busy_share(bench, *server)? {
                Ok(share) => most = most.max(share * 100.0),
                Err(error) => {
                    let place = server.0.map_or("inline", StackPlacement::name);
                    return Ok(Err(format!("placement {place}: {error}")));
                }
            }
        }
        Ok(Ok(most))
    })?;
    Ok((vec![promise.result(runs, why)], Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Workload;

    fn sample(cpu_us: f64) -> Sample {
        Sample { server_cpu_us_per_transaction: cpu_us, ..Sample::default() }
    }

    #[test]
    fn the_lower_of_two_ways_is_the_cost_run_by_run() {
        let ways = [vec![sample(2.0), sample(1.0)], vec![sample(1.5), sample(3.0)]];
        assert_eq!(costs_us(&ways), [1.5, 1.0]);
        assert_eq!(ratios(&costs_us(&[vec![sample(3.0), sample(4.0)]]), &[1.5, 1.0]), [2.0, 4.0]);
        // A way that failed leaves the other.
        assert_eq!(costs_us(&[Vec::new(), vec![sample(2.0)]]), [2.0]);
        assert_eq!(costs_us(&[Vec::new()]), [0.0; 0]);
    }

    #[test]
    fn the_loads_are_what_the_bars_say() {
        let placement = situation("mt-placement").load;
        assert_eq!((placement.connections, placement.message_bytes()), (256, 64));
        assert_eq!(placement.transactions_per_connection, None);
        let shards = situation("mt-fig7a").load;
        assert_eq!((shards.connections, shards.transactions_per_connection), (256, Some(1)));
        let bulk = situation("mt-fairness").load;
        assert_eq!((bulk.connections, bulk.transactions_per_connection), (256, None));
        let crowd = situation("mt-table2").load;
        assert_eq!((crowd.connections, crowd.transactions_per_connection), (8_000, Some(1)));
        assert_eq!(crowd.message_bytes(), 64);
        assert!(crowd.with_connect && matches!(crowd.workload, Workload::Rpc { .. }));
    }

    #[test]
    fn rows_have_a_name_each() {
        let mut names = ROWS.map(|row| row.name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }
}
