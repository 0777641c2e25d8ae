//! From points to curves: positions on the axis, and the curve of each point. Pure.

use super::plot::{AxisPosition, PlotFrame, PlotMark, Series};
use crate::{
    experiments::{Axis, Experiment},
    point::Point,
};

/// Colours and markers that there are.
const STYLES: usize = 6;

/// What of a point is plotted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    TransactionsPerSecond,
    GigabitsPerSecond,
    CpuMicroseconds,
    LoadCpuMicroseconds,
    Fairness,
    MedianLatency,
    TailLatency,
    FarTailLatency,
}

impl Metric {
    /// Whether it is a response time, which simulated points do not have.
    const fn is_latency(self) -> bool {
        matches!(self, Self::MedianLatency | Self::TailLatency | Self::FarTailLatency)
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::TransactionsPerSecond => "Throughput (higher is better)",
            Self::GigabitsPerSecond => "Responses in Gb/s (higher is better)",
            Self::CpuMicroseconds => "Server CPU time per transaction (lower is better)",
            Self::LoadCpuMicroseconds => "CPU time of the load per transaction (lower is better)",
            Self::Fairness => "Jain's index (1 is fair)",
            Self::MedianLatency => "Median latency (lower is better)",
            Self::TailLatency => "99th percentile of latency (lower is better)",
            Self::FarTailLatency => "99.9th percentile of latency (lower is better)",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::TransactionsPerSecond => "transactions/s",
            Self::GigabitsPerSecond => "Gb/s",
            Self::CpuMicroseconds | Self::LoadCpuMicroseconds => "CPU µs per transaction",
            Self::Fairness => "Jain's index",
            Self::MedianLatency | Self::TailLatency | Self::FarTailLatency => "µs",
        }
    }

    const fn value(self, point: &Point) -> f64 {
        match self {
            Self::TransactionsPerSecond => point.transactions_per_s,
            Self::GigabitsPerSecond => gigabits(point, point.transactions_per_s),
            Self::CpuMicroseconds => point.server_cpu_us_per_transaction,
            Self::LoadCpuMicroseconds => point.load_cpu_us_per_transaction,
            Self::Fairness => match point.fairness {
                Some(index) => index,
                None => 0.0,
            },
            Self::MedianLatency => point.latency_us.p50,
            Self::TailLatency => point.latency_us.p99,
            Self::FarTailLatency => point.latency_us.p999,
        }
    }

    const fn range(self, point: &Point) -> Option<[f64; 2]> {
        match self {
            Self::TransactionsPerSecond => Some(point.transactions_per_s_range),
            Self::GigabitsPerSecond => {
                let [low, high] = point.transactions_per_s_range;
                Some([gigabits(point, low), gigabits(point, high)])
            }
            Self::CpuMicroseconds => Some(point.server_cpu_us_range),
            Self::LoadCpuMicroseconds
            | Self::Fairness
            | Self::MedianLatency
            | Self::TailLatency
            | Self::FarTailLatency => None,
        }
    }
}

/// What a point's responses come to at that rate, in Gb/s.
pub(super) const fn gigabits(point: &Point, transactions_per_s: f64) -> f64 {
    transactions_per_s * point.message_bytes as f64 * 8.0 / 1e9
}

/// The name of a point's server in tables and legends.
pub(crate) fn server_label(point: &Point) -> String {
    let Point { server, variant, .. } = point;
    let is_local = point.backend == "local";
    if point.backend == "service" {
        let label = format!("service ({})", point.link.name());
        return if variant.is_empty() { label } else { label + ", " + variant };
    }
    let mut label = match (server.as_str(), variant.as_str()) {
        ("channel" | "sockets", _) if is_local => format!("{server} ({})", point.link.name()),
        ("channel" | "sockets", "") => format!("{server} ({})", point.driver),
        ("channel", variant) => format!("channel {variant}"),
        (server, _) => server.to_owned(),
    };
    let is_inline = point.placement == "inline";
    let placed = Some(point.placement.as_str()).filter(|_| is_local && !is_inline);
    let varied = Some(variant.as_str()).filter(|it| is_local && !it.is_empty());
    let simulated = point.simulated.map(|_| "simulated");
    for more in [placed, varied, simulated].into_iter().flatten() {
        label += ", ";
        label += more;
    }
    label
}

/// Colour and marker that a server has in every plot, unless another one there has them before it.
fn style(label: &str) -> usize {
    match label {
        "channel (uring)" | "channel +PBL" => 0,
        "channel (epoll)" | "channel +PB" => 1,
        "epoll-shared" | "channel none" => 2,
        "epoll-reuseport" | "channel +P" | "memcached" | "nginx" => 3,
        "io_uring" => 4,
        "epoll-processes" | "channel (memif), one queue, simulated" | "channel (memif), thread" => {
            1
        }
        "sockets (memif)" | "sockets (uring)" | "sockets (epoll)" => 2,
        "sockets (memif), thread" => 3,
        _ => 5,
    }
}

/// Colours and markers of the servers in one plot.
#[derive(Default)]
struct Styles {
    /// Server, whether simulated, style.
    given: Vec<(String, bool, usize)>,
}

impl Styles {
    /// Of two servers each has its own, as long as there are enough; one that is simulated may look
    /// like one that was measured, but for the dashes.
    fn of(&mut self, server: &str, dashed: bool) -> usize {
        let known = self.given.iter().find(|(it, dashes, _)| it == server && *dashes == dashed);
        if let Some((.., style)) = known {
            return *style;
        }
        let wanted = style(server);
        let is_free = |style: &usize| {
            !self.given.iter().any(|(_, dashes, given)| *dashes == dashed && given == style)
        };
        let style = [wanted].into_iter().chain(0..STYLES).find(is_free).unwrap_or(wanted);
        self.given.push((server.to_owned(), dashed, style));
        style
    }
}

/// A point's place on the axis, as a number to sort by; what is unlimited comes last.
fn position(axis: Axis, point: &Point) -> u64 {
    match axis {
        Axis::TransactionsPerConnection => point.transactions_per_connection.unwrap_or(u64::MAX),
        Axis::MessageBytes => point.message_bytes,
        Axis::Cores => point.shards as u64,
        Axis::LoadCores => point.load_cores as u64,
        Axis::Connections => point.connections,
        Axis::Workload => match point.workload.as_str() {
            "http-specweb" => 0,
            "http-yahoo" => 1,
            "http-yahoo2" => 2,
            _ => 3,
        },
    }
}

/// The label of a place.
fn place_label(axis: Axis, point: &Point) -> String {
    match axis {
        Axis::TransactionsPerConnection => {
            let length = point.transactions_per_connection;
            length.map_or_else(|| "∞".to_owned(), |length| length.to_string())
        }
        Axis::MessageBytes => bytes_label(point.message_bytes),
        Axis::Cores => point.shards.to_string(),
        Axis::LoadCores => point.load_cores.to_string(),
        Axis::Connections => point.connections.to_string(),
        Axis::Workload => match point.workload.as_str() {
            "http-specweb" => "SpecWeb-like".to_owned(),
            "http-yahoo" => "Yahoo-like".to_owned(),
            "http-yahoo2" => "Yahoo/2-like".to_owned(),
            other => other.to_owned(),
        },
    }
}

fn bytes_label(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1024 && bytes.is_multiple_of(1024) => format!("{} Ki", bytes / 1024),
        bytes => bytes.to_string(),
    }
}

/// Position on the axis: cores linearly, all else by logarithm, so that doublings have equal
/// distance.
/// Unlimited values are one doubling beyond the last.
fn coordinate(axis: Axis, position: u64, all: &[u64]) -> f64 {
    if matches!(axis, Axis::Cores | Axis::LoadCores | Axis::Workload) {
        return position as f64;
    }
    let last = all.iter().rev().find(|&&other| other != u64::MAX).copied().unwrap_or(1);
    let doublings = |value: u64| (value.max(1) as f64).log2();
    if position == u64::MAX { doublings(last) + 1.0 } else { doublings(position) }
}

/// The frame and the curves of one metric over an experiment's points.
pub(super) fn plot(
    experiment: &Experiment,
    points: &[&Point],
    metric: Metric,
) -> (PlotFrame, Vec<Series>) {
    let axis = experiment.axis;
    let mut positions: Vec<u64> = points.iter().map(|point| position(axis, point)).collect();
    positions.sort_unstable();
    positions.dedup();
    let place = |&at: &u64| {
        let point = points.iter().find(|point| position(axis, point) == at);
        let label = point.map_or_else(String::new, |point| place_label(axis, point));
        AxisPosition { at: coordinate(axis, at, &positions), label }
    };
    let frame = PlotFrame {
        x_label: axis.label(),
        y_label: metric.unit().to_owned(),
        places: positions.iter().map(place).collect(),
        kinds: axis == Axis::Workload,
    };
    let mut series: Vec<Series> = Vec::new();
    let mut styles = Styles::default();
    for point in points {
        let Ok(place) = positions.binary_search(&position(axis, point)) else { continue };
        let label = curve_label(experiment, point);
        let dashed = point.simulated.is_some();
        if dashed && metric.is_latency() {
            continue;
        }
        let range = metric.range(point).filter(|_| !dashed);
        let mark = PlotMark { place, value: metric.value(point), range };
        match series.iter_mut().find(|it| it.label == label) {
            Some(one) => one.marks.push(mark),
            None => {
                let style = styles.of(&server_label(point), dashed);
                series.push(Series { label, style, dashed, marks: vec![mark] });
            }
        }
    }
    for one in &mut series {
        one.marks.sort_by_key(|mark| mark.place);
    }
    (frame, series)
}

/// Identifies a curve: the server, and the parameter that the experiment varies.
fn curve_label(experiment: &Experiment, point: &Point) -> String {
    let server = server_label(point);
    match experiment.name {
        "fig5.1" => {
            let length = point.transactions_per_connection;
            length.map_or_else(|| server.clone(), |length| format!("{server}, {length}"))
        }
        "fig5.2" if point.shards > 1 => format!("{server}, {} cores", point.shards),
        "fig5.5" if point.shards > 1 => format!("{server}, {} cores", point.shards),
        _ => server,
    }
}

#[cfg(test)]
mod tests {
    use super::{Metric, bytes_label, plot, server_label};
    use crate::{
        experiments::Experiment,
        layout::MeasuredLink,
        point::{Point, Simulated},
        report::tests::point,
    };

    #[test]
    fn curves_are_in_the_order_of_the_axis() {
        let experiment = Experiment::named("fig2.1a").unwrap();
        let points = [
            point("channel", Some(128), 2.0),
            point("io_uring", Some(1), 8.0),
            point("channel", Some(1), 9.0),
            point("channel", None, 1.0),
        ];
        let points: Vec<_> = points.iter().collect();
        let (frame, series) = plot(experiment, &points, Metric::CpuMicroseconds);
        let labels: Vec<&str> = frame.places.iter().map(|place| place.label.as_str()).collect();
        assert_eq!(labels, ["1", "128", "∞"]);
        let at: Vec<i32> = frame.places.iter().map(|place| place.at as i32).collect();
        assert_eq!(at, [0, 7, 8]);
        assert_eq!(series.len(), 2);
        assert_eq!(series[0].label, "channel (uring)");
        let places: Vec<usize> = series[0].marks.iter().map(|mark| mark.place).collect();
        assert_eq!(places, [0, 1, 2]);
    }

    #[test]
    fn simulated_points_are_a_dashed_curve_of_their_own() {
        let experiment = Experiment::named("mt-fig7a").unwrap();
        let local = |point: Point| Point {
            backend: "local".to_owned(),
            link: MeasuredLink::Memif,
            ..point
        };
        let inline = "inline".to_owned();
        let measured = Point { placement: inline, ..local(point("channel", Some(1), 2.0)) };
        let simulated = Some(Simulated { queues: 4, ..Simulated::default() });
        let points = [measured.clone(), Point { simulated, shards: 4, ..measured }];
        let points: Vec<_> = points.iter().collect();
        let (_, series) = plot(experiment, &points, Metric::TransactionsPerSecond);
        let labels: Vec<&str> = series.iter().map(|it| it.label.as_str()).collect();
        assert_eq!(labels, ["channel (memif)", "channel (memif), simulated"]);
        assert_eq!([series[0].dashed, series[1].dashed], [false, true]);
        assert!(series[0].marks[0].range.is_some() && series[1].marks[0].range.is_none());
    }

    #[test]
    fn no_two_servers_look_alike() {
        let placed = |server: &str, placement: &str| Point {
            backend: "local".to_owned(),
            link: MeasuredLink::Memif,
            placement: placement.to_owned(),
            ..point(server, Some(1), 1.0)
        };
        let servers = ["channel", "sockets"].into_iter();
        let points: Vec<Point> = servers
            .flat_map(|server| ["inline", "thread", "core"].map(|it| placed(server, it)))
            .collect();
        let points: Vec<_> = points.iter().collect();
        let experiment = Experiment::named("fig2.1a").unwrap();
        let (_, series) = plot(experiment, &points, Metric::CpuMicroseconds);
        let mut styles: Vec<usize> = series.iter().map(|it| it.style).collect();
        assert_eq!(styles[0], 5, "the first has its usual one");
        styles.sort_unstable();
        assert_eq!(styles, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_label_names_what_is_not_as_usual() {
        let usual = Point {
            backend: "local".to_owned(),
            link: MeasuredLink::Memif,
            placement: "inline".to_owned(),
            ..point("channel", None, 1.0)
        };
        assert_eq!(server_label(&usual), "channel (memif)");
        let placed = Point { placement: "thread".to_owned(), ..usual.clone() };
        assert_eq!(server_label(&placed), "channel (memif), thread");
        let asleep = Point { variant: "asleep".to_owned(), ..usual.clone() };
        assert_eq!(server_label(&asleep), "channel (memif), asleep");
        let sockets = Point { server: "sockets".to_owned(), ..usual };
        assert_eq!(server_label(&sockets), "sockets (memif)");
        assert_eq!(server_label(&point("channel", None, 1.0)), "channel (uring)");
    }

    #[test]
    fn sizes_are_read_easily() {
        assert_eq!(bytes_label(64), "64");
        assert_eq!(bytes_label(1024), "1 Ki");
        assert_eq!(bytes_label(65_536), "64 Ki");
        assert_eq!(bytes_label(1500), "1500");
    }
}
