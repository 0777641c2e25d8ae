//! `megapipe bench bars --stack`: what is promised of our own stack, each measured beside the
//! kernel in the same rounds, and whether it is met.
//!
//! Both ends of a memif poll: they are busy whether they work or wait. So the CPU time of a server
//! on it is its core's whole time, which is its cost where the server is the bottleneck, and more
//! than its cost where the load is; the table of points says which side was saturated.

use crate::{
    bars,
    baseline::Baseline,
    error::BenchError,
    experiments::{CONNECTIONS, rpc},
    instructions::{self, SegmentKind},
    layout::LayoutError,
    limits,
    load::{LoadPlan, Workload},
    measure::Sample,
    point::Point,
    promise::{BarResult, Promise, PromisedBound},
    run::Bench,
    run_args::RunArgs,
    server::{ForcedDriver, ServiceKind, TestedServer},
    stack_idle,
    stack_link::StackLink,
    trial::BenchTrial,
};
use std::process::ExitCode;

const URING: TestedServer = TestedServer::Channel(ForcedDriver::Uring, None);
const IO_URING: TestedServer = TestedServer::Baseline(Baseline::IoUring);
const REUSEPORT: TestedServer = TestedServer::Baseline(Baseline::EpollReuseport);

/// What of the runs is compared with the bound.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// CPU time of the other server over ours.
    CheaperThan(TestedServer),
    /// Ratio of CPU times, ours to the other's.
    CostOver(TestedServer),
    MillionsPerSecond,
    GigabitsPerSecond,
    MedianUs,
}

/// A promise about a server on our stack under one load.
struct StackRow {
    name: &'static str,
    what: &'static str,
    bound: PromisedBound,
    situation: StackSituation,
    link: StackLink,
    measure: Measure,
}

/// Servers and loads that are measured in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StackSituation {
    OneTransaction,
    ManyTransactions,
    AcceptReset,
    OneKibibyte,
    Bulk,
    LowLoad,
}

const ROWS: [StackRow; 9] = [
    StackRow {
        name: "memif-1",
        what: "memif, 64 B, 1 transaction per connection: server CPU, epoll over ours",
        bound: PromisedBound::AtLeast(12.0),
        situation: StackSituation::OneTransaction,
        link: StackLink::Memif,
        measure: Measure::CheaperThan(REUSEPORT),
    },
    StackRow {
        name: "memif-128",
        what: "memif, 64 B, 128 transactions per connection: server CPU, epoll over ours",
        bound: PromisedBound::AtLeast(8.0),
        situation: StackSituation::ManyTransactions,
        link: StackLink::Memif,
        measure: Measure::CheaperThan(REUSEPORT),
    },
    StackRow {
        name: "accept-reset",
        what: "memif, accept and reset in a tight loop, one core",
        bound: PromisedBound::AtLeast(1.5),
        situation: StackSituation::AcceptReset,
        link: StackLink::Memif,
        measure: Measure::MillionsPerSecond,
    },
    StackRow {
        name: "memif-1k",
        what: "memif, 1 KiB responses on persistent connections, one core",
        bound: PromisedBound::AtLeast(1.5),
        situation: StackSituation::OneKibibyte,
        link: StackLink::Memif,
        measure: Measure::MillionsPerSecond,
    },
    StackRow {
        name: "bulk",
        what: "memif, one bulk stream, 1500-byte MTU, a core on each side",
        bound: PromisedBound::AtLeast(15.0),
        situation: StackSituation::Bulk,
        link: StackLink::Memif,
        measure: Measure::GigabitsPerSecond,
    },
    StackRow {
        name: "xdp-1",
        what: "xdp over veth, 1 transaction per connection: server CPU, epoll over ours",
        bound: PromisedBound::AtLeast(1.2),
        situation: StackSituation::OneTransaction,
        link: StackLink::Xdp,
        measure: Measure::CheaperThan(REUSEPORT),
    },
    StackRow {
        name: "tap-bulk",
        what: "tap with offloads, one bulk stream: server CPU per byte over the kernel's on veth",
        bound: PromisedBound::AtMost(1.5),
        situation: StackSituation::Bulk,
        link: StackLink::Tap,
        measure: Measure::CostOver(URING),
    },
    StackRow {
        name: "latency",
        what: "memif, 64 B, one connection, both sides polling: median round trip",
        bound: PromisedBound::AtMost(5.0),
        situation: StackSituation::LowLoad,
        link: StackLink::Memif,
        measure: Measure::MedianUs,
    },
    StackRow {
        name: "tap-1",
        what: "tap, 1 transaction per connection: server CPU, epoll on veth over ours",
        bound: PromisedBound::Floor,
        situation: StackSituation::OneTransaction,
        link: StackLink::Tap,
        measure: Measure::CheaperThan(REUSEPORT),
    },
];

const SITUATIONS: [StackSituation; 6] = [
    StackSituation::OneTransaction,
    StackSituation::ManyTransactions,
    StackSituation::AcceptReset,
    StackSituation::OneKibibyte,
    StackSituation::Bulk,
    StackSituation::LowLoad,
];

impl StackSituation {
    /// The experiment it belongs to, the load, and the kernel's columns.
    fn parts(self) -> (&'static str, ServiceKind, LoadPlan, &'static [TestedServer]) {
        let kept = |connections, response_bytes| LoadPlan {
            connections,
            transactions_per_connection: None,
            ..rpc(1, response_bytes)
        };
        let by_hand = &[REUSEPORT, IO_URING];
        match self {
            Self::OneTransaction => ("fig2.1a", ServiceKind::Rpc, rpc(1, 64), by_hand),
            Self::ManyTransactions => ("fig2.1a", ServiceKind::Rpc, rpc(128, 64), by_hand),
            Self::AcceptReset => {
                let load = LoadPlan { workload: Workload::AcceptReset, ..rpc(1, 64) };
                ("accept-reset", ServiceKind::AcceptReset, load, &[URING])
            }
            Self::OneKibibyte => ("rpc-1k", ServiceKind::Rpc, kept(CONNECTIONS, 1024), by_hand),
            Self::Bulk => {
                ("bulk", ServiceKind::Rpc, kept(1, limits::BULK_BYTES), &[URING, REUSEPORT])
            }
            Self::LowLoad => ("latency", ServiceKind::Rpc, kept(1, 64), by_hand),
        }
    }
}

/// The names that `--only` takes.
fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).chain(["idle", "instructions"]).collect()
}

/// Measures all, or those that `--only` names. Blocks for about six minutes.
pub(crate) fn measure(args: &RunArgs) -> Result<ExitCode, BenchError> {
    if let Some(name) = args.only.iter().find(|name| !names().contains(&name.as_str())) {
        return Err(BenchError::UnknownExperiment {
            name: name.clone(),
            known: names().join(", "),
        });
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut bench = args.bench()?;
    let (mut bars, mut points) = (Vec::new(), Vec::new());
    for situation in SITUATIONS {
        let rows: Vec<&StackRow> =
            ROWS.iter().filter(|row| row.situation == situation && wanted(row.name)).collect();
        if !rows.is_empty() {
            let (more, measured) = situation_bars(&mut bench, situation, &rows)?;
            bars.extend(more);
            points.extend(measured);
        }
    }
    bars.sort_by_key(|bar| ROWS.iter().position(|row| row.what == bar.what).unwrap_or(usize::MAX));
    if wanted("idle") {
        bars.push(idle_bar(&mut bench)?);
    }
    if wanted("instructions") {
        let text =
            "instructions of the stack for a received 64 B segment, to its event (callgrind)";
        let most = PromisedBound::AtMost(400.0);
        bars.push(instructions_bar(&bench, (SegmentKind::Text, most), text));
        let request = "the same of one that also acknowledges the answer before it";
        bars.push(instructions_bar(&bench, (SegmentKind::Request, most), request));
        let answer = "the same of the 64 B answer to that, from the command to its frame";
        bars.push(instructions_bar(&bench, (SegmentKind::Answer, PromisedBound::Floor), answer));
    }
    bars::finish(&bench, points, &bars, args)
}

/// Measures all servers of a situation in turn.
fn situation_bars(
    bench: &mut Bench,
    situation: StackSituation,
    rows: &[&StackRow],
) -> Result<(Vec<BarResult>, Vec<Point>), LayoutError> {
    let (experiment, service, load, kernel) = situation.parts();
    let ours = rows.iter().map(|row| TestedServer::Local(row.link));
    let trials: Vec<BenchTrial> = ours
        .chain(kernel.iter().copied())
        .map(|server| BenchTrial { experiment, server, service, load: load.clone() })
        .collect();
    let (results, points) = bench.compare_servers(&trials)?;
    let of = |server: TestedServer| {
        let found = results.iter().find(|(trial, _)| trial.server == server);
        found.map_or(&[][..], |(_, samples)| samples.as_slice())
    };
    let bars = rows.iter().map(|row| row.result(of, load.message_bytes()));
    Ok((bars.collect(), points))
}

impl StackRow {
    fn result<'samples>(
        &self,
        of: impl Fn(TestedServer) -> &'samples [Sample],
        message_bytes: u64,
    ) -> BarResult {
        let mine = of(TestedServer::Local(self.link));
        let each = |value: &dyn Fn(&Sample) -> f64| mine.iter().map(value).collect::<Vec<f64>>();
        let cpu = |sample: &Sample| sample.server_cpu_us_per_transaction;
        let ratio = |other: TestedServer| {
            let pairs = mine.iter().zip(of(other));
            pairs.map(|(mine, theirs)| cpu(theirs) / cpu(mine)).collect::<Vec<f64>>()
        };
        let (runs, unit, digits) = match self.measure {
            Measure::CheaperThan(other) => (ratio(other), "×", 2),
            Measure::CostOver(other) => {
                (ratio(other).into_iter().map(|ratio| 1.0 / ratio).collect(), "×", 2)
            }
            Measure::MillionsPerSecond => (each(&|it| it.transactions_per_s / 1e6), " M/s", 2),
            Measure::GigabitsPerSecond => {
                let bits = message_bytes as f64 * 8.0;
                (each(&|it| it.transactions_per_s * bits / 1e9), " Gbit/s", 1)
            }
            Measure::MedianUs => (each(&|it| it.latency_us.p50), " µs", 1),
        };
        let Self { name, what, bound, .. } = *self;
        Promise { name, what, bound, unit, digits }.result(runs, self.link.missing())
    }
}

fn idle_bar(bench: &mut Bench) -> Result<BarResult, LayoutError> {
    let promise = Promise::at_most(
        "idle",
        "idle connection on our stack: the server's resident memory over a million of them",
        512.0,
    )
    .in_unit(" B")
    .with_digits(0);
    bench.layout(1)?;
    let bytes = stack_idle::bytes_per_connection(bench);
    bench.failed |= bytes.is_err();
    // The stack must have the settings of a server's.
    if bytes.is_ok()
        && let Ok(shares) = stack_idle::shares_of_tables()
    {
        eprintln!("{shares}");
    }
    Ok(promise.outcome(bytes.map(|bytes| vec![bytes])))
}

fn instructions_bar(
    bench: &Bench,
    (kind, bound): (SegmentKind, PromisedBound),
    what: &'static str,
) -> BarResult {
    let promise = Promise { name: "instructions", what, bound, unit: "", digits: 0 };
    promise.outcome(instructions::per_segment(&bench.program, kind).map(|count| vec![count]))
}

#[cfg(test)]
mod tests {
    use super::{PromisedBound, ROWS, SITUATIONS, StackLink, StackRow, TestedServer};
    use crate::{measure::Sample, point::Latency};

    fn sample(transactions_per_s: f64, cpu_us: f64) -> Sample {
        Sample {
            transactions_per_s,
            server_cpu_us_per_transaction: cpu_us,
            latency_us: Latency { p50: 4.0, ..Latency::default() },
            ..Sample::default()
        }
    }

    fn row(name: &str) -> &'static StackRow {
        ROWS.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn each_row_belongs_to_a_situation_that_is_measured() {
        for row in &ROWS {
            assert!(SITUATIONS.contains(&row.situation), "{}", row.name);
        }
    }

    #[test]
    fn ratios_are_taken_run_by_run() {
        let mine = [sample(1e6, 1.0), sample(1e6, 2.0)];
        let theirs = [sample(1e5, 9.0), sample(1e5, 10.0)];
        let of = |server| match server {
            TestedServer::Local(StackLink::Memif) => &mine[..],
            _ => &theirs[..],
        };
        let bar = row("memif-1").result(of, 64);
        assert_eq!((bar.runs.as_slice(), bar.met()), (&[9.0, 5.0][..], Some(false)));
        assert_eq!(row("memif-1k").result(of, 1024).runs, [1.0, 1.0]);
        assert_eq!(row("latency").result(of, 64).met(), Some(true));
        assert_eq!(row("tap-bulk").result(of, 64).runs, [1.0, 1.0]);
        assert!(row("tap-1").bound == PromisedBound::Floor);
    }

    #[test]
    fn unmeasured_promise_is_not_met() {
        let bar = row("bulk").result(|_| &[], 1 << 20);
        assert!(bar.met().is_none() && bar.why.is_some());
    }
}
