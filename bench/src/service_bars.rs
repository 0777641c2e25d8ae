//! `megapipe bench bars --service`: what is promised of the daemon that many processes share, each
//! measured, and whether it is met.
//!
//! Read first: the PIKA paper, 3.1 and 5; `shard_bars.rs` for how the cost of a server is taken.
//!
//! Application and daemon share one core, and the load has the other: the only layout of three
//! parties that fits two cores. CPU time is that of both together, the lower of polling and
//! sleeping in each run.

mod accepts;
mod arrivals;
mod balance;
mod claim;
mod daemon_costs;
mod deaths;
mod hostile;
pub(crate) mod imbalance;
mod instructions;
mod loop_client;
mod neighbour;
mod rows;
mod scene;
mod stopped;

use crate::{
    bars,
    error::BenchError,
    layout::LayoutError,
    limits,
    point::Point,
    promise::{BarResult, Promise},
    run::Bench,
    run_args::RunArgs,
    scaling::ScalingSituation,
    server::{ServiceKind, TestedServer},
    service_attach,
    shard_bars::{costs_us, ratios, situation},
    shard_idle::{self, IdleDaemon},
    stack_link::{LinkSide, StackLink, StackPlacement},
    trial::BenchTrial,
};
pub(crate) use balance::Selecting;
pub(crate) use neighbour::run as run_neighbour;
pub use neighbour::{NeighbourArgs, NeighbourError, NeighbourKind};
use rows::SCENE_ROWS;
pub(crate) use scene::{SceneError, SceneStage};
use std::process::ExitCode;

/// Where the stack of a measured server runs, on the one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StackAt {
    Inline,
    Core,
    Service,
}

impl StackAt {
    /// The server that polls and the one that sleeps.
    fn servers(self) -> [TestedServer; 2] {
        let links = [StackLink::Memif, StackLink::MemifAsleep(LinkSide::Server)];
        links.map(|link| match self {
            Self::Inline => TestedServer::Local(link),
            Self::Core => TestedServer::Placed(link, StackPlacement::Core),
            Self::Service => TestedServer::Placed(link, StackPlacement::Service),
        })
    }
}

/// A promise about CPU time per transaction, one place of the stack over another.
struct CostRow {
    promise: Promise,
    /// Names an experiment whose load is used.
    load: &'static str,
    one: StackAt,
    other: StackAt,
}

const PERSISTENT: &str = "mt-placement";
const SHORT: &str = "mt-fig7a";

const COSTS: [CostRow; 6] = [
    CostRow {
        promise: Promise::at_most("core", "core over inline on one core, persistent: CPU", 1.2),
        load: PERSISTENT,
        one: StackAt::Core,
        other: StackAt::Inline,
    },
    CostRow {
        promise: Promise::at_most("core", "the same, one transaction per connection", 1.3),
        load: SHORT,
        one: StackAt::Core,
        other: StackAt::Inline,
    },
    CostRow {
        promise: Promise::at_most(
            "persistent",
            "service over core, 64 B, 256 connections: CPU",
            1.1,
        ),
        load: PERSISTENT,
        one: StackAt::Service,
        other: StackAt::Core,
    },
    CostRow {
        promise: Promise::at_most("persistent", "the same, service over inline", 1.5),
        load: PERSISTENT,
        one: StackAt::Service,
        other: StackAt::Inline,
    },
    CostRow {
        promise: Promise::at_most(
            "short",
            "service with two acceptors over core, 1 per connection",
            1.25,
        ),
        load: SHORT,
        one: StackAt::Service,
        other: StackAt::Core,
    },
    CostRow {
        promise: Promise::at_most("short", "the same, over inline", 1.8),
        load: SHORT,
        one: StackAt::Service,
        other: StackAt::Inline,
    },
];

const ATTACH: Promise =
    Promise::at_most("attach", "from attaching to the answer of the first call, median", 1.0)
        .in_unit(" ms");

const ATTACH_MEMORY: Promise = Promise::at_most(
    "attach",
    "resident memory of an attached idle channel, daemon and application together",
    1024.0,
)
.in_unit(" KiB")
.with_digits(0);

const IDLE: Promise = Promise::at_most(
    "idle",
    "idle daemon, 64 applications, 1,000 connections: CPU of its threads",
    1.0,
)
.in_unit(" %")
.with_digits(2);

/// What `--only` takes, in order.
fn names() -> impl Iterator<Item = &'static str> {
    let scenes = SCENE_ROWS.iter().map(rows::SceneRow::name);
    ["core", "persistent", "short", ATTACH.name, IDLE.name].into_iter().chain(scenes)
}

/// Bars and the points that were measured for them.
type Outcome = Result<(Vec<BarResult>, Vec<Point>), LayoutError>;

/// Measures all, or those that `--only` names. Blocks for some minutes.
pub(crate) fn measure(args: &RunArgs) -> Result<ExitCode, BenchError> {
    if let Some(name) = args.only.iter().find(|only| !names().any(|name| name == only.as_str())) {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(BenchError::UnknownExperiment { name: name.clone(), known });
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut bench = args.bench()?;
    let (mut bars, mut points) = (Vec::new(), Vec::new());
    for load in [PERSISTENT, SHORT] {
        let chosen = |row: &&CostRow| row.load == load && wanted(row.promise.name);
        let rows: Vec<&CostRow> = COSTS.iter().filter(chosen).collect();
        if !rows.is_empty() {
            let (more, measured) = cost_bars(&mut bench, load, &rows)?;
            bars.extend(more);
            points.extend(measured);
        }
    }
    let place = |bar: &BarResult| COSTS.iter().position(|row| row.promise.what == bar.what);
    bars.sort_by_key(place);
    if wanted(ATTACH.name) {
        bars.extend(attach_bars(&mut bench)?);
    }
    if wanted(IDLE.name) {
        bars.push(idle_bar(&mut bench)?);
    }
    for row in SCENE_ROWS.iter().filter(|row| wanted(row.name())) {
        bars.extend(row.bars(&mut bench, args.quick)?);
    }
    bars::finish(&bench, points, &bars, args)
}

/// With two acceptors each connection of a daemon is offered and claimed; a stack of the
/// application's own needs neither.
fn trial(situation: &ScalingSituation, at: StackAt, server: TestedServer) -> BenchTrial {
    let ScalingSituation { experiment, service, load } = situation;
    let is_claimed = at == StackAt::Service && load.transactions_per_connection.is_some();
    let service = if is_claimed { ServiceKind::TwoChannels } else { *service };
    BenchTrial { experiment, server, service, load: load.clone() }
}

/// Servers under one load, all in the same rounds.
fn cost_bars(bench: &mut Bench, load: &'static str, rows: &[&CostRow]) -> Outcome {
    let situation = situation(load);
    let needed = |at: &StackAt| rows.iter().any(|row| row.one == *at || row.other == *at);
    let places = [StackAt::Inline, StackAt::Core, StackAt::Service].into_iter().filter(needed);
    let trials: Vec<BenchTrial> =
        places.flat_map(|at| at.servers().map(|server| trial(&situation, at, server))).collect();
    let (results, points) = bench.compare_servers(&trials)?;
    let cost = |at: StackAt| {
        let of = |server: TestedServer| {
            let found = results.iter().find(|(trial, _)| trial.server == server);
            found.map_or_else(Vec::new, |(_, samples)| samples.clone())
        };
        costs_us(&at.servers().map(of))
    };
    let bar = |row: &&CostRow| row.promise.result(ratios(&cost(row.one), &cost(row.other)), None);
    Ok((rows.iter().map(bar).collect(), points))
}

fn attach_bars(bench: &mut Bench) -> Result<[BarResult; 2], LayoutError> {
    let (runs, why) = bench.repeat(ATTACH.name, service_attach::measure)?;
    let (times, memory) = runs.iter().map(|run| (run.median_ms, run.resident_kib)).unzip();
    Ok([ATTACH.result(times, why.clone()), ATTACH_MEMORY.result(memory, why)])
}

fn idle_bar(bench: &mut Bench) -> Result<BarResult, LayoutError> {
    let idle = IdleDaemon {
        connections: limits::DAEMON_IDLE_CONNECTIONS,
        sessions: limits::DAEMON_IDLE_SESSIONS,
    };
    let measured = bench.repeat(IDLE.name, |bench| shard_idle::daemon_busy_share(bench, idle))?;
    let (shares, why) = measured;
    Ok(IDLE.result(shares.into_iter().map(|share| share * 100.0).collect(), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_daemon_with_short_connections_has_two_acceptors() {
        let trial = |load, at: StackAt| trial(&situation(load), at, at.servers()[0]).service;
        assert_eq!(trial(SHORT, StackAt::Service), ServiceKind::TwoChannels);
        assert_eq!(trial(SHORT, StackAt::Core), ServiceKind::Rpc);
        assert_eq!(trial(PERSISTENT, StackAt::Service), ServiceKind::Rpc);
    }

    #[test]
    fn rows_have_a_text_each_and_a_name_that_only_takes() {
        let mut texts: Vec<&str> = COSTS.iter().map(|row| row.promise.what).collect();
        texts.extend([ATTACH.what, ATTACH_MEMORY.what, IDLE.what]);
        texts.extend(SCENE_ROWS.iter().flat_map(|row| row.promises).map(|promise| promise.what));
        let all = texts.len();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), all);
        let mut scenes: Vec<&str> = names().collect();
        scenes.sort_unstable();
        scenes.dedup();
        assert_eq!(scenes.len(), names().count());
        for row in SCENE_ROWS {
            assert!(row.promises.iter().all(|promise| promise.name == row.name()));
        }
        assert!(COSTS.iter().all(|row| names().any(|name| name == row.promise.name)));
    }

    #[test]
    fn loads_are_what_the_rows_say() {
        let persistent = situation(PERSISTENT).load;
        assert_eq!((persistent.connections, persistent.message_bytes()), (256, 64));
        assert_eq!(persistent.transactions_per_connection, None);
        assert_eq!(situation(SHORT).load.transactions_per_connection, Some(1));
    }
}
