//! `megapipe bench bars`: measures the promised bounds and reports whether each is met.
//!
//! Ratios are taken run by run between servers that were measured in turn and back, and the median
//! of the ratios is reported, so that a slow minute of the machine hits both sides of a ratio.
//! Beside it stands the ratio of the medians: where the two differ, the machine was not quiet.

use crate::{
    baseline::Baseline,
    c_overhead,
    error::BenchError,
    experiments::rpc,
    files::ServedFileSet,
    idle_memory,
    layout::LayoutError,
    load::{LoadPlan, Workload},
    measure::{Sample, median},
    output,
    point::{BarServer, Point},
    promise::{BarResult, Promise, PromisedBound},
    report,
    run::Bench,
    run_args::RunArgs,
    server::{ForcedDriver, ServiceKind, TestedServer},
    table::{TextTable, grouped},
    trial::{BenchTrial, Effort},
    wakes,
};
use std::{io, process::ExitCode, time::Duration};

/// Default duration and number of runs: more and shorter runs than elsewhere, because a
/// median of many ratios lies closer than one of few that were measured longer. As many forwards as
/// backwards.
const EFFORT: Effort = Effort { runs: 10, window: Duration::from_secs(2) };

/// A promise about CPU time: of which servers, under which load.
struct Ratio {
    name: &'static str,
    what: &'static str,
    bound: PromisedBound,
    /// Index among the situations that are measured.
    situation: usize,
    one: TestedServer,
    other: TestedServer,
    /// Requests per CPU second of the one over the other's, rather than CPU time.
    per_cpu_second: bool,
}

const URING: TestedServer = TestedServer::Channel(ForcedDriver::Uring, None);
const IO_URING: TestedServer = TestedServer::Baseline(Baseline::IoUring);
const REUSEPORT: TestedServer = TestedServer::Baseline(Baseline::EpollReuseport);

const RATIOS: [Ratio; 8] = [
    Ratio {
        name: "io_uring-1",
        what: "CPU per transaction, channel vs hand-written io_uring, 64 B, 1 per connection",
        bound: PromisedBound::AtMost(1.05),
        situation: 0,
        one: URING,
        other: IO_URING,
        per_cpu_second: false,
    },
    Ratio {
        name: "io_uring-128",
        what: "CPU per transaction, channel vs hand-written io_uring, 64 B, 128 per connection",
        bound: PromisedBound::AtMost(1.05),
        situation: 1,
        one: URING,
        other: IO_URING,
        per_cpu_second: false,
    },
    Ratio {
        name: "epoll-1",
        what: "CPU per transaction, channel vs epoll with SO_REUSEPORT, 64 B, 1 per connection",
        bound: PromisedBound::AtMost(0.92),
        situation: 0,
        one: URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "epoll-128",
        what: "CPU per transaction, channel vs epoll with SO_REUSEPORT, 64 B, 128 per connection",
        bound: PromisedBound::AtMost(0.85),
        situation: 1,
        one: URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "floor-1",
        what: "floor: hand-written io_uring vs epoll with SO_REUSEPORT, 64 B, 1 per connection",
        bound: PromisedBound::Floor,
        situation: 0,
        one: IO_URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "floor-128",
        what: "floor: hand-written io_uring vs epoll with SO_REUSEPORT, 64 B, 128 per connection",
        bound: PromisedBound::Floor,
        situation: 1,
        one: IO_URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "http",
        what: "requests per CPU second, serve http vs nginx, 1 KiB file, keep-alive",
        bound: PromisedBound::AtLeast(1.5),
        situation: 2,
        one: URING,
        other: TestedServer::NGINX,
        per_cpu_second: true,
    },
    Ratio {
        name: "kv",
        what: "requests per CPU second, serve kv vs memcached with one thread",
        bound: PromisedBound::AtLeast(1.2),
        situation: 3,
        one: URING,
        other: TestedServer::MEMCACHED,
        per_cpu_second: true,
    },
];

/// The requests of the ratios' loads.
fn situation(index: usize) -> (&'static str, ServiceKind, LoadPlan) {
    let kept = |workload| LoadPlan { workload, transactions_per_connection: None, ..rpc(1, 64) };
    match index {
        0 => ("fig2.1a", ServiceKind::Rpc, rpc(1, 64)),
        1 => ("fig2.1a", ServiceKind::Rpc, rpc(128, 64)),
        2 => {
            let files = ServedFileSet::OneKibibyte;
            ("http-1k", ServiceKind::Http(files), kept(Workload::Http(files)))
        }
        _ => ("fig5.3", ServiceKind::Kv, kept(Workload::Kv)),
    }
}

/// The names that `--only` takes.
fn names() -> Vec<&'static str> {
    RATIOS.iter().map(|ratio| ratio.name).chain(["memory", "c", "wakes"]).collect()
}

/// Measures all, or those that `--only` names. Blocks for about nine minutes.
pub(crate) fn measure(args: &RunArgs) -> Result<ExitCode, BenchError> {
    if let Some(name) = args.only.iter().find(|name| !names().contains(&name.as_str())) {
        return Err(BenchError::UnknownExperiment {
            name: name.clone(),
            known: names().join(", "),
        });
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut bench = args.bench_of(EFFORT)?;
    let (mut bars, mut points) = (Vec::new(), Vec::new());
    for index in 0..=3 {
        let ratios: Vec<&Ratio> =
            RATIOS.iter().filter(|it| it.situation == index && wanted(it.name)).collect();
        if !ratios.is_empty() {
            let (more, measured) = ratio_bars(&mut bench, index, &ratios)?;
            bars.extend(more);
            points.extend(measured);
        }
    }
    if wanted("memory") {
        bars.push(memory_bar(&mut bench)?);
    }
    if wanted("c") {
        bars.push(c_bar(&bench));
    }
    if wanted("wakes") {
        bars.extend(wake_floors(&mut bench)?);
    }
    // In the order of the promise, not of the measuring.
    bars.sort_by_key(|bar| RATIOS.iter().position(|it| it.what == bar.what).unwrap_or(usize::MAX));
    finish(&bench, points, &bars, args)
}

/// Prints and writes the results; the exit code is 0 if all bars were met.
pub(crate) fn finish(
    bench: &Bench,
    points: Vec<Point>,
    bars: &[BarResult],
    args: &RunArgs,
) -> Result<ExitCode, BenchError> {
    let mut results = output::results(points, bench);
    results.bars = bars.iter().map(BarResult::record).collect();
    if !args.json_to_stdout() {
        output::print_tables(&results);
        print_split(&results.points);
        print(bars);
    }
    args.write_out(&results, |results| report::page_with_bars(results, bars))?;
    let missed = bars.iter().any(BarResult::is_missed);
    Ok(if bench.failed || missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(bars: &[BarResult]) {
    let mut table = TextTable::new(&[
        "bar",
        "measured",
        "of medians",
        "middle half",
        "from – to",
        "met",
        "what",
    ]);
    for bar in bars {
        let why = bar.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        table.row([
            bar.bound_text(),
            bar.measured_text(),
            bar.of_medians_text(),
            bar.middle_half_text(),
            bar.range_text(),
            bar.met_text().to_owned(),
            format!("{}{why}", bar.what_text()),
        ]);
    }
    println!();
    table.print(0);
    print_servers(bars);
}

/// The servers that bars list, each once.
fn print_servers(bars: &[BarResult]) {
    let mut servers: Vec<&BarServer> = Vec::new();
    for server in bars.iter().flat_map(|bar| &bar.servers) {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    if servers.is_empty() {
        return;
    }
    let mut table =
        TextTable::new(&["program", "back end", "requests/s", "CPU µs", "idle %", "saturated"]);
    for server in servers {
        table.row([
            server.program.clone(),
            server.backend.clone(),
            grouped(server.requests_per_s),
            format!("{:.2}", server.cpu_us_per_request),
            format!("{:.0}", server.idle_share * 100.0),
            if server.saturated { "yes" } else { "no" }.to_owned(),
        ]);
    }
    println!();
    table.print(0);
}

/// Measures every server of one situation in turn.
fn ratio_bars(
    bench: &mut Bench,
    index: usize,
    ratios: &[&Ratio],
) -> Result<(Vec<BarResult>, Vec<Point>), LayoutError> {
    let (experiment, service, load) = situation(index);
    let mut servers: Vec<TestedServer> = Vec::new();
    for server in ratios.iter().flat_map(|ratio| [ratio.one, ratio.other]) {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    let servers = servers.into_iter();
    let trials: Vec<BenchTrial> = servers
        .map(|server| BenchTrial { experiment, server, service, load: load.clone() })
        .collect();
    let (results, points) = bench.compare_servers(&trials)?;
    let of = |server: TestedServer| {
        results.iter().find(|(trial, _)| trial.server == server).map(|(_, samples)| samples)
    };
    let bars = ratios.iter().map(|ratio| {
        let pair = of(ratio.one).zip(of(ratio.other));
        let runs = pair.map_or_else(Vec::new, |(mine, theirs)| ratio.of(mine, theirs));
        let of_medians = pair.map(|(mine, theirs)| ratio.of_medians(mine, theirs));
        let Ratio { name, what, bound, .. } = **ratio;
        let promise = Promise { name, what, bound, unit: "", digits: 3 };
        BarResult { of_medians, ..promise.result(runs, ratio.other.missing()) }
    });
    Ok((bars.collect(), points))
}

impl Ratio {
    /// Run by run.
    fn of(&self, mine: &[Sample], theirs: &[Sample]) -> Vec<f64> {
        let ratio = |(mine, theirs): (&Sample, &Sample)| {
            self.between(mine.server_cpu_us_per_transaction, theirs.server_cpu_us_per_transaction)
        };
        mine.iter().zip(theirs).map(ratio).collect()
    }

    fn of_medians(&self, mine: &[Sample], theirs: &[Sample]) -> f64 {
        let each = |samples: &[Sample]| {
            median(samples.iter().map(|sample| sample.server_cpu_us_per_transaction))
        };
        self.between(each(mine), each(theirs))
    }

    fn between(&self, mine: f64, theirs: f64) -> f64 {
        if self.per_cpu_second { theirs / mine } else { mine / theirs }
    }
}

fn memory_bar(bench: &mut Bench) -> Result<BarResult, LayoutError> {
    let mut runs = Vec::new();
    let mut why = None;
    for _ in 0..bench.effort.runs {
        bench.layout(1)?;
        match idle_memory::bytes_per_connection(bench) {
            Ok(bytes) => runs.push(bytes),
            Err(error) => {
                bench.failed = true;
                why = Some(error.to_string());
                break;
            }
        }
    }
    let promise = Promise::at_most(
        "memory",
        "user-space memory per idle lwsocket connection (resident, serve rpc)",
        256.0,
    )
    .in_unit(" B")
    .with_digits(0);
    // Some runs may have succeeded before.
    Ok(BarResult { why, ..promise.result(runs, None) })
}

/// What waking a thread costs here, on another core and on the same.
fn wake_floors(bench: &mut Bench) -> Result<[BarResult; 2], LayoutError> {
    let runs = bench.effort.runs;
    let layout = bench.layout(1)?;
    let [server, load] = [&layout.server.cpus, &layout.load.cpus];
    let floor = |what, runs: io::Result<Vec<f64>>| {
        Promise { name: "wakes", what, bound: PromisedBound::Floor, unit: " µs", digits: 1 }
            .outcome(runs)
    };
    Ok([
        floor(
            "floor: waking a thread on another core, and back (interrupts between cores)",
            wakes::round_trips_us(server, load, runs),
        ),
        floor(
            "floor: waking a thread on the same core, and back",
            wakes::round_trips_us(server, server, runs),
        ),
    ])
}

/// Where the servers' time goes, for those that are compared by CPU time per transaction.
fn print_split(points: &[Point]) {
    let mut table = TextTable::new(&[
        "server",
        "per conn",
        "CPU µs",
        "user",
        "system",
        "softirq",
        "calls from other cores",
        "idle %",
    ]);
    let measured = |point: &&Point| point.workload == "rpc" && point.simulated.is_none();
    for point in points.iter().filter(measured) {
        let split = point.server_cpu_us;
        let length =
            point.transactions_per_connection.map_or_else(|| "∞".to_owned(), |it| it.to_string());
        table.row([
            report::server_label(point),
            length,
            format!("{:.2}", point.server_cpu_us_per_transaction),
            format!("{:.3}", split.user),
            format!("{:.2}", split.system),
            format!("{:.2}", split.softirq),
            format!("{:.3}", point.server_calls_per_transaction),
            format!("{:.0}", point.server_idle_share * 100.0),
        ]);
    }
    if table.rows().len() == 1 {
        return;
    }
    println!("\nwhere the time goes, per transaction");
    table.print(2);
}

fn c_bar(bench: &Bench) -> BarResult {
    let what = "C over Rust: mp_read and its completion";
    let promise = Promise::at_most("c", what, 20.0).in_unit(" ns").with_digits(1);
    promise.outcome(c_overhead::nanoseconds(&bench.scratch, bench.effort.runs))
}
