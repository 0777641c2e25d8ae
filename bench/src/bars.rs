//! `megapipe bench bars`: the numbers that megapipe promises, each measured, and whether it is met.
//!
//! Ratios are taken run by run between servers that were measured in turn and back, and the median
//! of the ratios is reported, so that a slow minute of the machine hits both sides of a ratio.
//! Beside it stands the ratio of the medians: where the two differ, the machine was not quiet.

use crate::{
    baseline::Baseline,
    c_overhead,
    command::{self, BenchError, RunArgs},
    experiments::rpc,
    files::FileSet,
    idle_memory,
    layout::LayoutError,
    load::{Load, Workload},
    measure::{self, Effort, Sample, Trial, median, quartiles, range},
    point::{Bar, Point, Sense},
    progress::Progress,
    report,
    run::Bench,
    server::{Driver, Server, Service},
    table::Table,
    wakes,
};
use std::{io, process::ExitCode, time::Duration};

/// How long and how often, unless told otherwise: more and shorter runs than elsewhere, because a
/// median of many ratios lies closer than one of few that were measured longer. As many forwards as
/// backwards.
const EFFORT: Effort = Effort { runs: 10, window: Duration::from_secs(2) };

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Nothing: the number says what could be promised on this machine.
    Floor,
}

/// What is promised of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Promise {
    /// As `--only` takes it.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) bound: Bound,
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
}

impl Promise {
    /// What came of the runs; `why` nothing did, if nothing did.
    pub(crate) fn result(self, runs: Vec<f64>, why: Option<String>) -> BarResult {
        let Self { name, what, bound, unit, digits } = self;
        let left_out = || "a server failed, see the notes".to_owned();
        let why = runs.is_empty().then(|| why.unwrap_or_else(left_out));
        BarResult { name, what, bound, unit, digits, runs, of_medians: None, simulated: false, why }
    }

    /// What came of one measurement of all runs.
    pub(crate) fn outcome<E: std::fmt::Display>(self, runs: Result<Vec<f64>, E>) -> BarResult {
        match runs {
            Ok(runs) => self.result(runs, None),
            Err(error) => self.result(Vec::new(), Some(error.to_string())),
        }
    }
}

/// A promise and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BarResult {
    /// As `--only` takes it.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) bound: Bound,
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
    /// One number for each run.
    pub(crate) runs: Vec<f64>,
    /// Of a ratio: that of the two servers' medians.
    pub(crate) of_medians: Option<f64>,
    /// Whether a simulation took the place of cores that the machine does not have.
    pub(crate) simulated: bool,
    /// Why nothing was measured.
    pub(crate) why: Option<String>,
}

impl BarResult {
    /// As it stands in the results.
    fn record(&self) -> Bar {
        let (sense, bound) = match self.bound {
            Bound::AtMost(bound) => (Sense::AtMost, Some(bound)),
            Bound::AtLeast(bound) => (Sense::AtLeast, Some(bound)),
            Bound::Floor => (Sense::Floor, None),
        };
        Bar {
            name: self.name.to_owned(),
            what: self.what.to_owned(),
            sense,
            bound,
            unit: self.unit.trim().to_owned(),
            runs: self.runs.clone(),
            median: (!self.runs.is_empty()).then(|| median(self.runs.iter().copied())),
            met: self.met(),
            simulated: self.simulated,
            why: self.why.clone(),
        }
    }

    /// What was measured, and how if not on cores alone.
    pub(crate) fn what_text(&self) -> String {
        let how = if self.simulated { ", simulated from measured costs" } else { "" };
        format!("{}{how}", self.what)
    }

    /// Whether the median keeps the promise; none if nothing was measured.
    pub(crate) fn met(&self) -> Option<bool> {
        if self.runs.is_empty() {
            return None;
        }
        let median = median(self.runs.iter().copied());
        match self.bound {
            Bound::AtMost(bound) => Some(median <= bound),
            Bound::AtLeast(bound) => Some(median >= bound),
            Bound::Floor => None,
        }
    }

    /// Whether nothing is promised and the number is there to compare with.
    pub(crate) fn is_floor(&self) -> bool {
        self.bound == Bound::Floor && !self.runs.is_empty()
    }

    pub(crate) fn bound_text(&self) -> String {
        let (sign, bound) = match self.bound {
            Bound::AtMost(bound) => ("≤", bound),
            Bound::AtLeast(bound) => ("≥", bound),
            Bound::Floor => return "-".to_owned(),
        };
        format!("{sign} {bound}{}", self.unit)
    }

    pub(crate) fn measured_text(&self) -> String {
        if self.runs.is_empty() {
            return "-".to_owned();
        }
        let (median, digits) = (median(self.runs.iter().copied()), self.digits);
        format!("{median:.digits$}{}", self.unit)
    }

    /// The ratio of the medians, where there is one.
    pub(crate) fn of_medians_text(&self) -> String {
        let digits = self.digits;
        self.of_medians.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.digits$}"))
    }

    /// Between what half of the runs lie.
    pub(crate) fn middle_half_text(&self) -> String {
        self.bounds_text(quartiles)
    }

    pub(crate) fn range_text(&self) -> String {
        self.bounds_text(range)
    }

    fn bounds_text(&self, bounds: fn(Vec<f64>) -> [f64; 2]) -> String {
        if self.runs.is_empty() {
            return "-".to_owned();
        }
        let ([low, high], digits) = (bounds(self.runs.clone()), self.digits);
        format!("{low:.digits$} – {high:.digits$}")
    }
}

/// A promise about CPU time: of which servers, under which load.
struct Ratio {
    name: &'static str,
    what: &'static str,
    bound: Bound,
    /// Index among the situations that are measured.
    situation: usize,
    one: Server,
    other: Server,
    /// Requests per CPU second of the one over the other's, rather than CPU time.
    per_cpu_second: bool,
}

const URING: Server = Server::Channel(Driver::Uring, None);
const IO_URING: Server = Server::Baseline(Baseline::IoUring);
const REUSEPORT: Server = Server::Baseline(Baseline::EpollReuseport);

const RATIOS: [Ratio; 8] = [
    Ratio {
        name: "io_uring-1",
        what: "CPU per transaction, channel vs hand-written io_uring, 64 B, 1 per connection",
        bound: Bound::AtMost(1.05),
        situation: 0,
        one: URING,
        other: IO_URING,
        per_cpu_second: false,
    },
    Ratio {
        name: "io_uring-128",
        what: "CPU per transaction, channel vs hand-written io_uring, 64 B, 128 per connection",
        bound: Bound::AtMost(1.05),
        situation: 1,
        one: URING,
        other: IO_URING,
        per_cpu_second: false,
    },
    Ratio {
        name: "epoll-1",
        what: "CPU per transaction, channel vs epoll with SO_REUSEPORT, 64 B, 1 per connection",
        bound: Bound::AtMost(0.92),
        situation: 0,
        one: URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "epoll-128",
        what: "CPU per transaction, channel vs epoll with SO_REUSEPORT, 64 B, 128 per connection",
        bound: Bound::AtMost(0.85),
        situation: 1,
        one: URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "floor-1",
        what: "floor: hand-written io_uring vs epoll with SO_REUSEPORT, 64 B, 1 per connection",
        bound: Bound::Floor,
        situation: 0,
        one: IO_URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "floor-128",
        what: "floor: hand-written io_uring vs epoll with SO_REUSEPORT, 64 B, 128 per connection",
        bound: Bound::Floor,
        situation: 1,
        one: IO_URING,
        other: REUSEPORT,
        per_cpu_second: false,
    },
    Ratio {
        name: "http",
        what: "requests per CPU second, serve http vs nginx, 1 KiB file, keep-alive",
        bound: Bound::AtLeast(1.5),
        situation: 2,
        one: URING,
        other: Server::Nginx,
        per_cpu_second: true,
    },
    Ratio {
        name: "kv",
        what: "requests per CPU second, serve kv vs memcached with one thread",
        bound: Bound::AtLeast(1.2),
        situation: 3,
        one: URING,
        other: Server::Memcached,
        per_cpu_second: true,
    },
];

/// What the servers of the ratios are asked for.
fn situation(index: usize) -> (&'static str, Service, Load) {
    let kept = |workload| Load { workload, transactions_per_connection: None, ..rpc(1, 64) };
    match index {
        0 => ("fig2.1a", Service::Rpc, rpc(1, 64)),
        1 => ("fig2.1a", Service::Rpc, rpc(128, 64)),
        2 => {
            let files = FileSet::OneKibibyte;
            ("http-1k", Service::Http(files), kept(Workload::Http(files)))
        }
        _ => ("fig5.3", Service::Kv, kept(Workload::Kv)),
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

/// Prints and writes what the options ask for; the exit code says whether all was met.
pub(crate) fn finish(
    bench: &Bench,
    points: Vec<Point>,
    bars: &[BarResult],
    args: &RunArgs,
) -> Result<ExitCode, BenchError> {
    let mut results = command::results(points, bench);
    results.bars = bars.iter().map(BarResult::record).collect();
    command::print_tables(&results, args);
    if !args.json_to_stdout() {
        print_split(&results.points);
        print(bars);
    }
    command::write_out(&results, args, |results| report::page_with_bars(results, bars))?;
    let missed = bars.iter().any(|bar| bar.met() != Some(true) && !bar.is_floor());
    Ok(if bench.failed || missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(bars: &[BarResult]) {
    let mut table =
        Table::new(&["bar", "measured", "of medians", "middle half", "from – to", "met", "what"]);
    for bar in bars {
        let met = match bar.met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None if bar.is_floor() => "floor",
            None => "not measured",
        };
        let why = bar.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        table.row([
            bar.bound_text(),
            bar.measured_text(),
            bar.of_medians_text(),
            bar.middle_half_text(),
            bar.range_text(),
            met.to_owned(),
            format!("{}{why}", bar.what_text()),
        ]);
    }
    println!();
    for line in table.lines() {
        println!("{line}");
    }
}

/// Measures every server of one situation in turn.
fn ratio_bars(
    bench: &mut Bench,
    index: usize,
    ratios: &[&Ratio],
) -> Result<(Vec<BarResult>, Vec<Point>), LayoutError> {
    let (experiment, service, load) = situation(index);
    let mut servers: Vec<Server> = Vec::new();
    for server in ratios.iter().flat_map(|ratio| [ratio.one, ratio.other]) {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    let servers = servers.into_iter();
    let trials: Vec<Trial> =
        servers.map(|server| Trial { experiment, server, service, load: load.clone() }).collect();
    let mut progress = Progress::new(bench.steps(&trials));
    let results = bench.compare(&trials, 1, &mut progress)?;
    progress.finish();
    let layout = bench.layout(1)?;
    let points: Vec<Point> =
        results.iter().map(|(trial, samples)| measure::summarise(trial, samples, layout)).collect();
    let of = |server: Server| {
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
    let promise = Promise {
        name: "memory",
        what: "user-space memory per idle lwsocket connection (resident, serve rpc)",
        bound: Bound::AtMost(256.0),
        unit: " B",
        digits: 0,
    };
    // Some runs may have gone well before.
    Ok(BarResult { why, ..promise.result(runs, None) })
}

/// What waking a thread costs here, on another core and on the same.
fn wake_floors(bench: &mut Bench) -> Result<[BarResult; 2], LayoutError> {
    let runs = bench.effort.runs;
    let layout = bench.layout(1)?;
    let [server, load] = [&layout.server.cpus, &layout.load.cpus];
    let floor = |what, runs: io::Result<Vec<f64>>| {
        Promise { name: "wakes", what, bound: Bound::Floor, unit: " µs", digits: 1 }.outcome(runs)
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
    let mut table = Table::new(&[
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
    println!("\nwhere the time goes, per transaction");
    for line in table.lines() {
        println!("  {line}");
    }
}

fn c_bar(bench: &Bench) -> BarResult {
    let what = "C over Rust: mp_read and its completion";
    let promise = Promise { name: "c", what, bound: Bound::AtMost(20.0), unit: " ns", digits: 1 };
    promise.outcome(c_overhead::nanoseconds(&bench.scratch, bench.effort.runs))
}

#[cfg(test)]
mod tests {
    use super::{BarResult, Bound, Promise};

    fn bar(bound: Bound, runs: &[f64]) -> BarResult {
        let promise = Promise { name: "x", what: "x", bound, unit: " ns", digits: 1 };
        promise.result(runs.to_vec(), None)
    }

    #[test]
    fn the_median_decides() {
        assert_eq!(bar(Bound::AtMost(1.05), &[1.0, 1.04, 9.0]).met(), Some(true));
        assert_eq!(bar(Bound::AtMost(1.05), &[1.0, 1.06, 9.0]).met(), Some(false));
        assert_eq!(bar(Bound::AtLeast(1.5), &[1.4, 1.5, 1.6]).met(), Some(true));
        assert_eq!(bar(Bound::AtLeast(1.5), &[]).met(), None);
    }

    #[test]
    fn what_failed_is_not_met_and_says_why() {
        let promise =
            Promise { name: "x", what: "x", bound: Bound::AtMost(1.0), unit: "", digits: 1 };
        let bar = promise.result(Vec::new(), Some("no server".to_owned()));
        assert_eq!((bar.met(), bar.why.as_deref()), (None, Some("no server")));
        assert!(promise.result(Vec::new(), None).why.is_some());
        let bar = promise.result(vec![0.5, 9.0, 0.7], Some("not this".to_owned()));
        assert_eq!((bar.met(), bar.why), (Some(true), None));
        let bar = promise.outcome(Err("broken"));
        assert_eq!((bar.met(), bar.why.as_deref()), (None, Some("broken")));
    }

    #[test]
    fn a_floor_promises_nothing_and_is_not_missed() {
        let floor = bar(Bound::Floor, &[0.9]);
        assert_eq!((floor.met(), floor.is_floor()), (None, true));
        assert_eq!((floor.bound_text(), floor.measured_text()), ("-".into(), "0.9 ns".into()));
        assert!(!bar(Bound::Floor, &[]).is_floor(), "it was to be measured");
    }

    #[test]
    fn texts_name_bound_median_and_range() {
        let bar = bar(Bound::AtMost(20.0), &[3.0, 1.0, 2.0]);
        assert_eq!(bar.bound_text(), "≤ 20 ns");
        assert_eq!(bar.measured_text(), "2.0 ns");
        assert_eq!(bar.range_text(), "1.0 – 3.0");
        assert_eq!(bar.middle_half_text(), "1.5 – 2.5");
        assert_eq!(bar.of_medians_text(), "-");
        assert_eq!(BarResult { of_medians: Some(1.04), ..bar }.of_medians_text(), "1.0");
    }
}
