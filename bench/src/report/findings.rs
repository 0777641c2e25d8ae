//! Derives findings from points: a sentence to compare with the paper's, and ratios. Pure.

use crate::{
    experiments::{CONNECTIONS, Experiment, TABLE_5_1},
    point::Point,
};

/// A ratio worth putting on top of the report.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Headline {
    /// Below 1: the channel needs less CPU time than the other.
    pub(super) ratio: f64,
    pub(super) verdict: RatioVerdict,
    pub(super) what: String,
    pub(super) detail: String,
}

/// Conclusion from a ratio and the ranges of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RatioVerdict {
    /// Every run of the channel needed less than every run of the other.
    Better,
    /// Every run of the channel needed more.
    Worse,
    /// The ranges of the runs overlap: more or longer runs are needed.
    WithinNoise,
}

impl RatioVerdict {
    fn of(channel: &Point, other: &Point) -> Self {
        let range = |point: &Point| match point.server_cpu_us_range {
            // Results without ranges: older files.
            [_, high] if high <= 0.0 => [point.server_cpu_us_per_transaction; 2],
            range => range,
        };
        let ([low, high], [other_low, other_high]) = (range(channel), range(other));
        if high < other_low {
            Self::Better
        } else if low > other_high {
            Self::Worse
        } else {
            Self::WithinNoise
        }
    }
}

/// Which channels a group of headlines is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadlineGroup {
    /// Channels on the kernel's TCP, through io_uring.
    Kernel,
    /// Channels with the stack in placement `inline`.
    OwnStack,
}

impl HeadlineGroup {
    fn has(self, point: &Point) -> bool {
        let is_measured = point.server == "channel" && point.simulated.is_none();
        let is_default = point.variant.is_empty();
        is_measured
            && is_default
            && match self {
                Self::Kernel => point.driver == "uring",
                Self::OwnStack => point.backend == "local" && point.placement == "inline",
            }
    }
}

/// What identifies the same situation for two servers.
fn same_situation(one: &Point, other: &Point) -> bool {
    one.experiment == other.experiment
        && one.workload == other.workload
        && one.shards == other.shards
        && one.transactions_per_connection == other.transactions_per_connection
        && one.message_bytes == other.message_bytes
        && one.connections == other.connections
}

/// The group's channels, each with the point of `server` in the same situation.
fn pairs<'points>(
    points: &[&'points Point],
    group: HeadlineGroup,
    server: &str,
) -> Vec<(&'points Point, &'points Point)> {
    let channels = points.iter().filter(|point| group.has(point));
    let pair = |&channel: &&'points Point| {
        let other = points.iter().find(|it| it.server == server && same_situation(it, channel))?;
        Some((channel, *other))
    };
    channels.filter_map(pair).collect()
}

/// How much more throughput the first has, in percent.
fn gain_percent(one: &Point, other: &Point) -> f64 {
    (one.transactions_per_s / other.transactions_per_s - 1.0) * 100.0
}

/// The ratios of CPU time that the summary shows of a group.
pub(super) fn headlines(points: &[Point], group: HeadlineGroup) -> Vec<Headline> {
    let mut headlines = Vec::new();
    let wanted = [
        ("fig2.1a", &["io_uring", "epoll-reuseport", "epoll-shared"][..]),
        ("demo-rpc", &["io_uring", "epoll-reuseport"]),
        ("accept", &["io_uring", "epoll-reuseport"]),
        ("http-1k", &["nginx"]),
        ("demo-http", &["nginx"]),
        ("fig5.5", &["nginx"]),
        ("fig5.3", &["memcached"]),
        ("demo-kv", &["memcached"]),
    ];
    for (experiment, servers) in wanted {
        let here: Vec<&Point> = points.iter().filter(|it| it.experiment == experiment).collect();
        for server in servers {
            let mut pairs = pairs(&here, group, server);
            pairs.sort_by_key(|(channel, _)| {
                (channel.transactions_per_connection.unwrap_or(u64::MAX), channel.connections)
            });
            let ends = match pairs.as_slice() {
                [] => continue,
                [one] => vec![*one],
                // Of a sweep, its two ends; of workloads and of several links, each.
                all if experiment == "fig5.5" => all.to_vec(),
                [first, .., last] => vec![*first, *last],
            };
            headlines.extend(ends.into_iter().map(|(channel, other)| headline(channel, other)));
        }
    }
    headlines
}

fn headline(channel: &Point, other: &Point) -> Headline {
    let (mine, theirs) =
        (channel.server_cpu_us_per_transaction, other.server_cpu_us_per_transaction);
    let length = match (channel.workload.as_str(), channel.transactions_per_connection) {
        ("http-specweb" | "http-yahoo" | "http-yahoo2", _) => channel.workload.clone(),
        (workload, Some(1)) => format!("{workload}, 1 transaction per connection"),
        (workload, Some(length)) => format!("{workload}, {length} transactions per connection"),
        (workload, None) => format!("{workload}, persistent connections"),
    };
    let connections = match channel.connections {
        CONNECTIONS => String::new(),
        connections => format!(", {connections} connections"),
    };
    let links = match (channel.link, other.link) {
        (mine, theirs) if mine == theirs => String::new(),
        (mine, theirs) => format!(", {} vs {}", mine.name(), theirs.name()),
    };
    Headline {
        ratio: mine / theirs,
        verdict: RatioVerdict::of(channel, other),
        what: format!("CPU time vs {}", other.server),
        detail: format!("{length}{connections}{links}: {mine:.2} vs {theirs:.2} µs"),
    }
}

/// A sentence like the paper's for these points; `None` if they are inconclusive.
pub(super) fn finding(experiment: &Experiment, points: &[&Point]) -> Option<String> {
    match experiment.name {
        "fig2.1a" | "fig5.2" => gains(points, "epoll-shared"),
        "fig2.1b" => size_cost(points),
        "fig2.1c" | "fig5.1" => speed_up(points),
        "fig5.3" => gains(points, "memcached"),
        "fig5.5" | "http-1k" => gains(points, "nginx"),
        "accept" => gains(points, "epoll-shared"),
        _ => None,
    }
}

fn gains(points: &[&Point], server: &str) -> Option<String> {
    let pairs = pairs(points, HeadlineGroup::Kernel, server);
    let throughput: Vec<f64> = pairs.iter().map(|(one, other)| gain_percent(one, other)).collect();
    let per_cpu: Vec<f64> = pairs
        .iter()
        .map(|(one, other)| {
            let ratio = other.server_cpu_us_per_transaction / one.server_cpu_us_per_transaction;
            (ratio - 1.0) * 100.0
        })
        .collect();
    let ([low, high], [cpu_low, cpu_high]) = (bounds(&throughput)?, bounds(&per_cpu)?);
    Some(format!(
        "Over {server}, channels on io_uring gained {low:.0} to {high:.0} % in throughput, and \
         {cpu_low:.0} to {cpu_high:.0} % in transactions per CPU second."
    ))
}

fn bounds(values: &[f64]) -> Option<[f64; 2]> {
    let low = values.iter().copied().reduce(f64::min)?;
    Some([low, values.iter().copied().reduce(f64::max)?])
}

fn size_cost(points: &[&Point]) -> Option<String> {
    let at = |server: &str, bytes| {
        let found = points.iter().find(|it| it.server == server && it.message_bytes == bytes);
        found.map(|point| point.server_cpu_us_per_transaction)
    };
    let sizes = [1024, 4096];
    let (bytes, channel) = sizes.into_iter().find_map(|size| Some((size, at("channel", size)?)))?;
    let baseline = at("epoll-shared", bytes)? / at("epoll-shared", 64)?;
    let channel = channel / at("channel", 64)?;
    Some(format!(
        "A {bytes} B response took {:.0} % more CPU time than a 64 B one on epoll-shared, {:.0} % \
         more on channels.",
        (baseline - 1.0) * 100.0,
        (channel - 1.0) * 100.0
    ))
}

fn speed_up(points: &[&Point]) -> Option<String> {
    let cores = points.iter().map(|point| point.shards).max()?;
    if cores < 2 {
        return Some("One server core fits on this machine, so nothing here shows scaling.".into());
    }
    let of = |server: &str| {
        let lengths = points.iter().filter(|it| it.server == server && it.shards == cores);
        let ratios: Vec<f64> = lengths
            .filter_map(|many| {
                let one = points.iter().find(|it| {
                    it.server == server
                        && it.shards == 1
                        && it.transactions_per_connection == many.transactions_per_connection
                })?;
                Some(many.transactions_per_s / one.transactions_per_s)
            })
            .collect();
        bounds(&ratios)
    };
    let ([base_low, base_high], [low, high]) = (of("epoll-shared")?, of("channel")?);
    Some(format!(
        "On {cores} cores epoll-shared reached a speed-up of {base_low:.1} to {base_high:.1}, \
         channels {low:.1} to {high:.1}."
    ))
}

/// How much more throughput the default channel has than epoll-shared at each length, in percent,
/// beside the paper's totals of table 5.1: (length, ours, the paper's).
pub(super) fn gains_by_length(points: &[&Point]) -> Vec<(u64, f64, Option<f64>)> {
    let mut gains: Vec<_> = pairs(points, HeadlineGroup::Kernel, "epoll-shared")
        .into_iter()
        .filter_map(|(channel, baseline)| {
            let length = channel.transactions_per_connection?;
            Some((length, gain_percent(channel, baseline), paper_total(length)))
        })
        .collect();
    gains.sort_by_key(|&(length, ..)| length);
    gains
}

/// The paper's total improvement at a length that it measured.
fn paper_total(length: u64) -> Option<f64> {
    let (_, totals) = TABLE_5_1.last()?;
    let index = length.is_power_of_two().then(|| length.trailing_zeros() as usize)?;
    totals.get(index).copied()
}

/// The steps of table 5.1: what each adds to the throughput, in percent of the baseline.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TechniqueSteps {
    pub(super) lengths: Vec<u64>,
    pub(super) rows: Vec<TechniqueStep>,
}

/// One row: what a technique adds at each length, in percent of the baseline's throughput.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TechniqueStep {
    pub(super) name: &'static str,
    pub(super) paper: Vec<Option<f64>>,
    pub(super) ours: Vec<f64>,
}

/// The ablation's points as table 5.1; none if a step is missing somewhere.
pub(super) fn steps(points: &[&Point]) -> Option<TechniqueSteps> {
    let at = |variant: &str, length| {
        let same =
            |it: &&&Point| it.variant == variant && it.transactions_per_connection == Some(length);
        points.iter().find(same).map(|point| point.transactions_per_s)
    };
    let mut lengths: Vec<u64> =
        points.iter().filter_map(|point| point.transactions_per_connection).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut ours: [Vec<f64>; 4] = Default::default();
    for &length in &lengths {
        let base = at("none", length)?;
        let [p, pb, pbl] = [at("+P", length)?, at("+PB", length)?, at("+PBL", length)?];
        let steps = [p - base, pb - p, pbl - pb, pbl - base];
        for (row, step) in ours.iter_mut().zip(steps) {
            row.push(step / base * 100.0);
        }
    }
    if lengths.is_empty() {
        return None;
    }
    let paper = |values: &[f64; 8]| {
        let at = |length: &u64| {
            let index = length.is_power_of_two().then(|| length.trailing_zeros() as usize);
            index.and_then(|index| values.get(index).copied())
        };
        lengths.iter().map(at).collect()
    };
    let rows = TABLE_5_1.iter().zip(ours);
    let rows = rows
        .map(|((name, values), ours)| TechniqueStep { name, paper: paper(values), ours })
        .collect();
    Some(TechniqueSteps { lengths, rows })
}

#[cfg(test)]
mod tests {
    use super::{HeadlineGroup, RatioVerdict, finding, gains_by_length, headlines, steps};
    use crate::{
        experiments::Experiment, layout::MeasuredLink, point::Point, report::tests::point,
    };

    #[test]
    fn headlines_compare_the_two_ends_of_a_sweep() {
        let points = [
            point("channel", Some(1), 8.0),
            point("channel", Some(8), 3.0),
            point("channel", Some(128), 2.0),
            point("io_uring", Some(1), 8.0),
            point("io_uring", Some(8), 3.0),
            point("io_uring", Some(128), 1.6),
        ];
        let headlines = headlines(&points, HeadlineGroup::Kernel);
        let ratios: Vec<String> =
            headlines.iter().map(|headline| format!("{:.2}", headline.ratio)).collect();
        assert_eq!(ratios, ["1.00", "1.25"]);
        assert!(headlines[1].detail.contains("128 transactions"));
    }

    #[test]
    fn overlapping_ranges_are_within_noise() {
        let verdict = |channel: f64, other: f64| {
            let points = [point("channel", Some(1), channel), point("io_uring", Some(1), other)];
            headlines(&points, HeadlineGroup::Kernel)[0].verdict
        };
        assert_eq!(verdict(8.0, 9.0), RatioVerdict::WithinNoise);
        assert_eq!(verdict(9.0, 8.0), RatioVerdict::WithinNoise);
        assert_eq!(verdict(5.0, 9.0), RatioVerdict::Better);
        assert_eq!(verdict(9.0, 5.0), RatioVerdict::Worse);
    }

    #[test]
    fn own_stack_has_headlines_of_its_own() {
        let own = Point {
            backend: "local".to_owned(),
            driver: "stack".to_owned(),
            placement: "inline".to_owned(),
            link: MeasuredLink::Memif,
            ..point("channel", Some(1), 1.0)
        };
        let placed = Point { placement: "thread".to_owned(), ..own.clone() };
        let points = [point("epoll-reuseport", Some(1), 9.0), own, placed];
        let found = headlines(&points, HeadlineGroup::OwnStack);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].verdict, RatioVerdict::Better);
        assert!(found[0].detail.contains("memif vs veth"), "{}", found[0].detail);
        assert!(headlines(&points, HeadlineGroup::Kernel).is_empty());
    }

    #[test]
    fn a_finding_needs_both_servers() {
        let experiment = Experiment::named("fig2.1a").unwrap();
        let (channel, shared) =
            (point("channel", Some(1), 5.0), point("epoll-shared", Some(1), 10.0));
        assert_eq!(finding(experiment, &[&channel]), None);
        let text = finding(experiment, &[&channel, &shared]).unwrap();
        assert!(text.contains("100 to 100 % in transactions per CPU second"), "{text}");
    }

    #[test]
    fn gains_stand_beside_the_papers() {
        let points = [
            point("channel", Some(128), 2.0),
            point("epoll-shared", Some(128), 3.0),
            point("channel", Some(1), 5.0),
            point("epoll-shared", Some(1), 10.0),
        ];
        let points: Vec<&Point> = points.iter().collect();
        let gains = gains_by_length(&points);
        let rounded: Vec<(u64, i32)> =
            gains.iter().map(|&(length, ours, _)| (length, ours.round() as i32)).collect();
        assert_eq!(rounded, [(1, 100), (128, 50)]);
        assert_eq!((gains[0].2, gains[1].2), (Some(582.4), Some(28.7)));
    }

    #[test]
    fn steps_add_up_to_the_total() {
        let make = |variant: &str, rate: f64| Point {
            variant: variant.to_owned(),
            transactions_per_s: rate,
            ..point("channel", Some(2), 5.0)
        };
        let all = [make("none", 100.0), make("+P", 110.0), make("+PB", 130.0), make("+PBL", 150.0)];
        let points: Vec<&Point> = all.iter().collect();
        let steps_found = steps(&points).unwrap();
        let ours: Vec<i32> =
            steps_found.rows.iter().map(|row| row.ours[0].round() as i32).collect();
        assert_eq!(ours, [10, 20, 20, 50]);
        assert_eq!(steps_found.rows[3].paper, [Some(460.8)]);
        assert_eq!(steps(&points[..3]), None);
    }
}
