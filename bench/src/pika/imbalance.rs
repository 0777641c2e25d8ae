//! Imbalanced load: figures 5, 6a, 6b, 7, 9 and 10.

use super::{Pika, imbalance_text, throughput::schemes};
use crate::{
    figure::{Figure, FigureAxis, FigureCurve, FigurePlot, FigureSource, FigureTable},
    scaling::service::{ConnectionDistribution, ServiceOutcome},
};
use megapipe_service::balancer::Scheme;

/// The percentiles of the curves.
const PERCENTILES: [f64; 21] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 97.0, 98.0,
    99.0, 99.5, 99.9, 99.99, 100.0,
];
/// Those of the tables.
pub(super) const TABLED: [f64; 5] = [50.0, 80.0, 95.0, 99.0, 99.9];
/// Phases of the load, in seconds.
const PHASES: [(f64, f64); 6] =
    [(0.1, 0.5), (0.6, 1.0), (1.1, 1.5), (1.7, 3.0), (3.1, 4.0), (4.1, 5.0)];
/// Length of a bin in seconds.
const BIN: f64 = 0.05;

/// Fills a figure with percentiles of some distributions. Returns their outcomes.
fn percentiles(
    pika: &mut Pika,
    figure: &mut Figure,
    all: &[(&str, ConnectionDistribution)],
) -> Vec<ServiceOutcome> {
    let headings = TABLED.map(|it| format!("p{it} µs"));
    let columns: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = FigureTable::new("distribution", &columns);
    let mut outcomes = Vec::new();
    for (label, distribution) in all {
        let world = pika.imbalanced(*distribution);
        let outcome = pika.simulate(&world);
        let values = TABLED.map(|percent| Some(outcome.percentile_us(percent)));
        table.row(label, FigureSource::Simulated, values);
        outcomes.push(outcome);
    }
    let curves = all.iter().zip(&outcomes);
    let curves =
        curves.map(|((label, _), it)| percentile_curve(label, FigureSource::Simulated, it));
    figure.plots.push(percentile_plot(curves.collect()));
    figure.tables.push(table);
    figure.parameters = imbalance_text();
    outcomes
}

pub(super) fn percentile_curve(
    label: &str,
    source: FigureSource,
    outcome: &ServiceOutcome,
) -> FigureCurve {
    let point = |percent: f64| [outcome.percentile_us(percent), percent];
    FigureCurve { label: label.to_owned(), source, points: PERCENTILES.map(point).to_vec() }
}

pub(super) fn percentile_plot(curves: Vec<FigureCurve>) -> FigurePlot {
    FigurePlot {
        caption: "Percentile of connections over service time".to_owned(),
        x: FigureAxis::logarithmic("service time (µs)"),
        y: FigureAxis::linear("percentile"),
        stacked: false,
        curves,
    }
}

pub(super) fn fig5(pika: &mut Pika, figure: &mut Figure) {
    let all = [
        ("tournament:2", ConnectionDistribution::Balanced(Scheme::default())),
        ("Linux: one shared queue", ConnectionDistribution::SharedQueue),
        ("Linux: hash (SO_REUSEPORT)", ConnectionDistribution::Balanced(Scheme::Hash)),
    ];
    let outcomes = percentiles(pika, figure, &all);
    figure.paper =
        "Figure 5: the knee of PIKA's curve is past the 99th percentile; Linux's shared \
                    queue is worse at high percentiles. Both of Linux's ways are simulated here \
                    with the service's costs, so only the distribution differs."
            .to_owned();
    figure.finding = format!(
        "p95 and p99: {:.0} and {:.0} µs by tournament:2, {:.0} and {:.0} µs from a shared queue, \
         {:.0} and {:.0} µs by hash",
        outcomes[0].percentile_us(95.0),
        outcomes[0].percentile_us(99.0),
        outcomes[1].percentile_us(95.0),
        outcomes[1].percentile_us(99.0),
        outcomes[2].percentile_us(95.0),
        outcomes[2].percentile_us(99.0),
    );
}

/// The percentile at which the service time first exceeds ten times the median.
fn knee(outcome: &ServiceOutcome) -> f64 {
    let limit = 10.0 * outcome.percentile_us(50.0);
    let below = outcome.service_us.partition_point(|&time| time <= limit);
    below as f64 / outcome.service_us.len().max(1) as f64 * 100.0
}

pub(super) fn fig7(pika: &mut Pika, figure: &mut Figure) {
    let labels = schemes().map(|scheme| scheme.to_string());
    let all: Vec<(&str, ConnectionDistribution)> = labels
        .iter()
        .zip(schemes())
        .map(|(label, scheme)| (label.as_str(), ConnectionDistribution::Balanced(scheme)))
        .collect();
    let outcomes = percentiles(pika, figure, &all);
    let knees: Vec<String> = labels
        .iter()
        .zip(&outcomes)
        .map(|(label, outcome)| format!("{label} {:.1}", knee(outcome)))
        .collect();
    figure.paper = "Figure 7: tournament:2, filtered:2 and unfiltered:2 are nearly the same, with \
                    little growth before the 99th percentile. Naive degrades after the 80th, \
                    unfiltered:100 diverges from the others there and rises before the 99th."
        .to_owned();
    figure.finding = format!(
        "percentile at which the service time exceeds ten medians: {}; connections taken back from \
         naive's web servers: {}",
        knees.join(", "),
        outcomes[4].take_backs
    );
}

/// Points of a series by bin; bins without a value are left out.
fn over_time(values: &[f64]) -> Vec<[f64; 2]> {
    let point = |(bin, &value): (usize, &f64)| [(bin as f64 + 1.0) * BIN, value];
    values.iter().enumerate().filter(|(_, value)| **value > 0.0).map(point).collect()
}

/// A curve over time for each web server.
fn numbered(series: &[Vec<f64>], source: FigureSource) -> Vec<FigureCurve> {
    let curve = |(index, values): (usize, &Vec<f64>)| FigureCurve {
        label: format!("#{}", index + 1),
        source,
        points: over_time(values),
    };
    series.iter().enumerate().map(curve).collect()
}

/// Means of the phases of the load, a row for each web server.
fn phase_table(series: &[(String, &Vec<f64>)], unit: &str) -> FigureTable {
    let headings = PHASES.map(|(from, until)| format!("{from}–{until} s, {unit}"));
    let columns: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = FigureTable::new("series", &columns);
    for (label, values) in series {
        let mean = |(from, until): (f64, f64)| {
            let (first, end) = ((from / BIN).round() as usize, (until / BIN).round() as usize);
            let phase = values.iter().take(end).skip(first).copied();
            let known: Vec<f64> = phase.filter(|value| *value > 0.0).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        table.row(label, FigureSource::Simulated, PHASES.map(mean));
    }
    table
}

fn web_servers(series: &[Vec<f64>]) -> Vec<(String, &Vec<f64>)> {
    series.iter().enumerate().map(|(index, it)| (format!("#{}", index + 1), it)).collect()
}

fn tournament(pika: &mut Pika) -> ServiceOutcome {
    let world = pika.imbalanced(ConnectionDistribution::Balanced(Scheme::default()));
    pika.simulate(&world)
}

fn time_axis() -> FigureAxis {
    FigureAxis::linear("time (s)")
}

pub(super) fn fig6a(pika: &mut Pika, figure: &mut Figure) {
    let outcome = tournament(pika);
    service_times(figure, &outcome.true_us, "Mean service time in 50 ms");
    figure.paper = "Figure 6a: the artificial delays are visible as service times of the web \
                    servers; the delays themselves are not given."
        .to_owned();
    let worst = outcome.true_us[2].iter().copied().fold(0.0, f64::max);
    figure.finding = format!(
        "the slow web servers have the service times of their delays, after a queue: until the \
         median of 64 ms shows a slow-down, connections pile up at the web server, up to {:.0} ms \
         at #3",
        worst / 1e3
    );
}

pub(super) fn fig6b(pika: &mut Pika, figure: &mut Figure) {
    let outcome = tournament(pika);
    service_times(figure, &outcome.estimated_us, "Estimate of the web server's manager");
    let known = outcome.true_us.iter().flatten().zip(outcome.estimated_us.iter().flatten());
    let known: Vec<f64> = known
        .filter(|(truth, estimate)| **truth > 0.0 && **estimate > 0.0)
        .map(|(truth, estimate)| (estimate / truth - 1.0).abs())
        .collect();
    let close = known.iter().filter(|error| **error < 0.2).count();
    figure.paper = "Figure 6b: the estimates (moving median of 128, sampled every 500 µs) are \
                    nearly identical to the service times."
        .to_owned();
    figure.finding = format!(
        "{:.0} % of the estimates are within 20 % of the mean service time of the same 50 ms",
        close as f64 / known.len().max(1) as f64 * 100.0
    );
}

fn service_times(figure: &mut Figure, series: &[Vec<f64>], caption: &str) {
    figure.plots.push(service_time_plot(series, caption, FigureSource::Simulated));
    figure.tables.push(phase_table(&web_servers(series), "µs"));
    figure.parameters = format!("tournament:2; {}", imbalance_text());
}

pub(super) fn service_time_plot(
    series: &[Vec<f64>],
    caption: &str,
    source: FigureSource,
) -> FigurePlot {
    FigurePlot {
        caption: caption.to_owned(),
        x: time_axis(),
        y: FigureAxis::logarithmic("service time (µs)"),
        stacked: false,
        curves: numbered(series, source),
    }
}

pub(super) fn fig9(pika: &mut Pika, figure: &mut Figure) {
    let outcome = tournament(pika);
    figure.plots.push(FigurePlot {
        caption: "Connections a second, stacked by web server".to_owned(),
        x: time_axis(),
        y: FigureAxis::linear("connections/s"),
        stacked: true,
        curves: numbered(&outcome.done_per_s, FigureSource::Simulated),
    });
    figure.tables.push(phase_table(&web_servers(&outcome.done_per_s), "conn/s"));
    figure.parameters = format!("tournament:2; {}", imbalance_text());
    figure.paper = "Figure 9: throughput stays at the request rate; a web server that slows down \
                    gets sharply fewer connections, and its former share when it recovers."
        .to_owned();
    let sums = (0..100).map(|bin| outcome.done_per_s.iter().map(|it| it[bin]).sum::<f64>());
    let (least, most) = sums.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), sum| {
        (least.min(sum), most.max(sum))
    });
    figure.finding = format!("throughput is {least:.0} to {most:.0} connections/s in each 50 ms");
}

pub(super) fn fig10(pika: &mut Pika, figure: &mut Figure) {
    let compared = [schemes()[0], schemes()[1], schemes()[2]];
    let labels = compared.map(|scheme| scheme.to_string());
    let outcomes = compared.map(|scheme| {
        let world = pika.imbalanced(ConnectionDistribution::Balanced(scheme));
        pika.simulate(&world)
    });
    let curve = |(label, outcome): (&String, &ServiceOutcome)| {
        FigureCurve::simulated(label, over_time(&outcome.local_per_s[6]))
    };
    figure.plots.push(FigurePlot {
        caption: "Local assignments of web server #7 a second".to_owned(),
        x: time_axis(),
        y: FigureAxis::linear("connections/s"),
        stacked: false,
        curves: labels.iter().zip(&outcomes).map(curve).collect(),
    });
    let series: Vec<(String, &Vec<f64>)> =
        labels.iter().cloned().zip(outcomes.iter().map(|it| &it.local_per_s[6])).collect();
    let table = phase_table(&series, "conn/s");
    let ratio = |row: usize| {
        let values = &table.rows[row].values;
        values[4].unwrap_or(0.0) / values[2].unwrap_or(1.0)
    };
    figure.finding = format!(
        "after the slow-down at 3 s, tournament:2 keeps {:.0} % of its local assignments, \
         filtered:2 {:.0} %, unfiltered:2 {:.0} %",
        ratio(0) * 100.0,
        ratio(1) * 100.0,
        ratio(2) * 100.0
    );
    figure.tables.push(table);
    figure.parameters = imbalance_text();
    figure.paper = "Figure 10: unfiltered:2 keeps few connections local all the time; filtered:2 \
                    keeps them until 3 s and then sends most to others; tournament:2 decreases \
                    slightly at 3 s, as the service time increases slightly."
        .to_owned();
}
