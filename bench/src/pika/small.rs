//! Figures 5 to 7, measured: a daemon with eight servers and eight web servers on this machine's
//! cores, at a tenth of the paper's rate and with ten times its delays, so that each web server is
//! as busy. A delay sleeps, so that no core is short. Beside it the kernel's SO_REUSEPORT, and a
//! simulation of the same load.

use super::{
    Pika, combined,
    imbalance::{TABLED, percentile_curve, percentile_plot, service_time_plot},
    microseconds, slow_text, slow_web_servers,
    throughput::schemes,
};
use crate::{
    answer_server::SlowPeriod,
    figure::{Figure, FigurePlot, FigureSource, FigureTable},
    layout::{self, BenchLayout, LinkChoice},
    limits,
    promise::Promise,
    scaling::service::{
        Clients, ConnectionDistribution, ServiceOutcome, ServiceWorld, measured_outcome,
    },
    scratch::Scratch,
    service_bars::{
        SceneError, SceneStage, Selecting,
        imbalance::{self as measured_load, ImbalancePlan, MeasuredImbalance},
    },
};
use megapipe_service::{balancer::Scheme, layout::Component};
use std::{io, time::Duration};

/// By what times are longer, and rates lower, than in the simulated figures.
const SCALE: u64 = 10;

/// One way of spreading connections, measured and simulated.
struct SmallRun {
    label: String,
    measured: ServiceOutcome,
    simulated: ServiceOutcome,
}

/// The load of the simulation and of the measurement.
fn world(pika: &Pika, distribution: ConnectionDistribution) -> ServiceWorld {
    ServiceWorld {
        clients: Clients::Open(limits::SLOW_RATE),
        work: microseconds(limits::PIKA_WORK_US * SCALE),
        slowness: slow_web_servers(SCALE),
        ..pika.imbalanced(distribution)
    }
}

fn plan(world: &ServiceWorld) -> ImbalancePlan {
    let time = |picoseconds: u64| Duration::from_nanos(picoseconds / 1_000);
    let mut slow = vec![SlowPeriod::default(); usize::from(world.applications)];
    for it in &world.slowness {
        let (from_ns, until_ns) = (it.from / 1_000, it.until / 1_000);
        slow[it.application] = SlowPeriod { from_ns, until_ns, by: time(it.added) };
    }
    ImbalancePlan {
        slow,
        servers: usize::from(world.layout.count(Component::Transport)),
        work: time(world.work),
        duration: time(world.duration),
        interval: time(world.bin),
    }
}

/// Pure: what was measured, in the shape of what is simulated.
fn outcome(world: &ServiceWorld, measured: &MeasuredImbalance) -> ServiceOutcome {
    let time = |duration: Duration| duration.as_nanos() as u64 * 1_000;
    let served = measured.served.iter();
    let served = served.map(|it| (time(it.at), it.program, time(it.latency)));
    let mut outcome = measured_outcome(world, served);
    let us = |estimate: Option<Duration>| estimate.map_or(0.0, |it| it.as_secs_f64() * 1e6);
    let of = |program: usize| measured.estimates.iter().map(|all| us(all[program])).collect();
    outcome.estimated_us = (0..usize::from(world.applications)).map(of).collect();
    outcome
}

/// Runs the load for each scheme, by hash, and on the kernel. Blocks for about ten seconds each.
fn measure(pika: &mut Pika) -> Result<Vec<SmallRun>, SceneError> {
    let program = std::env::current_exe()?;
    let cpus = layout::online_cpus()?;
    let layout = BenchLayout::new(LinkChoice::Auto, &program, &cpus, 1).map_err(io::Error::from)?;
    let scratch = Scratch::new()?;
    let stage = SceneStage { layout: &layout, scratch: scratch.path() };
    let chosen = if pika.quick { 1 } else { schemes().len() };
    let named = schemes().into_iter().take(chosen).map(|scheme| (scheme.to_string(), scheme));
    let all = named.chain([("hash".to_owned(), Scheme::Hash)]);
    let mut runs = Vec::new();
    let mut run = |label: String, selecting: Selecting<'_>, scheme| {
        let world = world(pika, ConnectionDistribution::Balanced(scheme));
        let measured = measured_load::measure(stage, selecting, &plan(&world))?;
        let (measured, simulated) = (outcome(&world, &measured), pika.simulate(&world));
        runs.push(SmallRun { label, measured, simulated });
        Ok::<(), SceneError>(())
    };
    for (label, scheme) in all {
        run(label.clone(), Selecting::Daemon(&label), scheme)?;
    }
    run("the kernel's SO_REUSEPORT".to_owned(), Selecting::Kernel, Scheme::Hash)?;
    Ok(runs)
}

/// Measures all, and fills the figure.
pub(super) fn small(pika: &mut Pika, figure: &mut Figure) {
    figure.paper = "Figures 5 to 7, at 30,000 connections/s on 8 + 8 cores.".to_owned();
    figure.parameters = parameters();
    let runs = match measure(pika) {
        Ok(runs) => runs,
        Err(error) => {
            figure.why = Some(error.to_string());
            return;
        }
    };
    figure.plots.push(percentiles(&runs));
    let first = &runs[0].measured;
    for (series, caption) in [
        (&first.true_us, "6a: mean service time in 50 ms"),
        (&first.estimated_us, "6b: estimate of the manager"),
    ] {
        figure.plots.push(service_time_plot(series, caption, FigureSource::Measured));
    }
    figure.tables.push(percentile_table(&runs));
    figure.tables.push(share_table(&runs));
    let ratio = runs[0].simulated.percentile_us(95.0) / first.percentile_us(95.0);
    let apart = points_apart(&runs[0]);
    figure.finding = format!(
        "{}: p95 {:.0} µs measured and {:.0} µs simulated; shares are at most {apart:.1} points \
         apart; p99 by hash {:.0} µs, on the kernel {:.0} µs",
        runs[0].label,
        first.percentile_us(95.0),
        runs[0].simulated.percentile_us(95.0),
        runs[runs.len() - 2].measured.percentile_us(99.0),
        runs[runs.len() - 1].measured.percentile_us(99.0),
    );
    pika.measured_promise(P95, ratio.max(1.0 / ratio));
    pika.measured_promise(SHARE, apart);
}

const P95: Promise = Promise::at_most(
    "pika-small-p95",
    "p95 under imbalanced load: simulated and measured, the larger over the smaller",
    1.5,
)
.with_digits(2);

const SHARE: Promise = Promise::at_most(
    "pika-small-share",
    "share of each web server: simulated and measured, the largest difference",
    10.0,
)
.in_unit(" points")
.with_digits(1);

fn parameters() -> String {
    format!(
        "a daemon TS8LS8CM8 and 8 web servers on the server's cores, {} connections a second for 5 \
         s, one request each; a request sleeps {} µs, and of web server {}",
        limits::SLOW_RATE,
        limits::PIKA_WORK_US * SCALE,
        slow_text(SCALE)
    )
}

/// Those of all ways, measured, and of the first, simulated.
fn percentiles(runs: &[SmallRun]) -> FigurePlot {
    let measured =
        runs.iter().map(|run| percentile_curve(&run.label, FigureSource::Measured, &run.measured));
    let simulated = format!("{}, simulated", runs[0].label);
    let simulated = percentile_curve(&simulated, FigureSource::Simulated, &runs[0].simulated);
    percentile_plot(measured.chain([simulated]).collect())
}

/// Each way, measured and simulated, with the same columns.
fn both_rows(
    runs: &[SmallRun],
    (rows_are, columns): (&str, Vec<String>),
    values: impl Fn(&ServiceOutcome) -> Vec<f64>,
) -> FigureTable {
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = FigureTable::new(rows_are, &columns);
    for run in runs {
        let both =
            [(FigureSource::Measured, &run.measured), (FigureSource::Simulated, &run.simulated)];
        for (source, outcome) in both {
            table.row(&run.label, source, values(outcome).into_iter().map(Some));
        }
    }
    table
}

fn percentile_table(runs: &[SmallRun]) -> FigureTable {
    let columns = TABLED.map(|percent| format!("p{percent} µs")).to_vec();
    let values = |it: &ServiceOutcome| TABLED.map(|percent| it.percentile_us(percent)).to_vec();
    both_rows(runs, ("distribution", columns), values)
}

fn share_table(runs: &[SmallRun]) -> FigureTable {
    let count = usize::from(combined(8).count(Component::Transport));
    let columns = (1..=count).map(|number| format!("#{number} %")).collect();
    both_rows(runs, ("connections of", columns), shares)
}

/// Percent of the connections of each web server.
fn shares(outcome: &ServiceOutcome) -> Vec<f64> {
    let sum: f64 = outcome.totals.iter().sum();
    outcome.totals.iter().map(|count| count / sum.max(1.0) * 100.0).collect()
}

/// The largest difference between the shares of a web server.
fn points_apart(run: &SmallRun) -> f64 {
    let (measured, simulated) = (shares(&run.measured), shares(&run.simulated));
    let apart = measured.iter().zip(&simulated).map(|(one, other)| (one - other).abs());
    apart.fold(0.0, f64::max)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The shape of a measurement: two programs, one twice as often and slow.
    fn measured() -> MeasuredImbalance {
        use crate::service_bars::imbalance::ImbalanceAnswer;
        let request = |number: u64| ImbalanceAnswer {
            at: Duration::from_millis(10 * number),
            program: usize::from(number.is_multiple_of(3)),
            latency: Duration::from_micros(if number.is_multiple_of(3) { 5_000 } else { 150 }),
        };
        let estimates = vec![vec![Some(Duration::from_micros(150)), None]; 100];
        MeasuredImbalance { served: (0..300).map(request).collect(), estimates }
    }

    pub(in crate::pika) fn check(pika: &Pika) {
        let scheme = ConnectionDistribution::Balanced(Scheme::default());
        let world = ServiceWorld { applications: 2, ..world(pika, scheme) };
        let plan = plan(&ServiceWorld { applications: 8, ..world.clone() });
        assert_eq!((plan.servers, plan.work), (8, Duration::from_micros(100)));
        let by = Duration::from_millis(10);
        let first = SlowPeriod { from_ns: 500_000_000, until_ns: 1_000_000_000, by };
        assert_eq!(plan.slow[0], first);
        assert_eq!(plan.slow[1], SlowPeriod::default());
        let outcome = outcome(&world, &measured());
        assert_eq!(outcome.totals, [200.0, 100.0]);
        assert!((outcome.percentile_us(50.0) - 150.0).abs() < 1e-9);
        assert!((outcome.percentile_us(95.0) - 5_000.0).abs() < 1e-9);
        assert!((outcome.estimated_us[0][0] - 150.0).abs() < 1e-9);
        let equal = ServiceOutcome { totals: vec![1.0, 1.0], ..ServiceOutcome::default() };
        let run = SmallRun { label: String::new(), measured: outcome, simulated: equal };
        assert!((points_apart(&run) - 16.67).abs() < 0.01);
    }
}
