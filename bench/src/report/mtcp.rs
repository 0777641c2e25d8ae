//! What the mTCP experiments show beside throughput and CPU time: where the time goes, how response
//! times spread, how evenly connections are served, what the load itself costs.
//!
//! Read first: [MT figures 1, 2, 10, 11 and table 2; 5.2 "Fairness"]. Pure.

use super::{plot::escaped, series::gigabits, server_label};
use crate::{
    point::{CpuShares, Point},
    table::{TextTable, grouped},
};
use std::fmt::Write;

/// A table for an experiment that does not fit the usual columns; `None` for the others.
pub(crate) fn table(experiment: &str, points: &[&Point]) -> Option<TextTable> {
    match experiment {
        "mt-fig1" => shares_table(points),
        "mt-table2" => Some(response_times(points)),
        "mt-fairness" => Some(fairness(points)),
        "mt-fig10" | "mt-fig11" => Some(load_cost(points)),
        _ => None,
    }
}

/// What limits each simulated point; none if all points were measured.
pub(crate) fn simulation_table(points: &[&Point]) -> Option<TextTable> {
    let simulated = || points.iter().filter_map(|point| Some((*point, point.simulated?)));
    let mut table = TextTable::new(&[
        "cores",
        "queues",
        "load cores",
        "trans/s",
        "times one",
        "server busy",
        "load busy",
        "busiest over mean",
        "steered",
        "waits for the queue",
    ]);
    let mut one = None;
    for (point, it) in simulated() {
        // The first of each curve.
        let is_first = one.is_none_or(|(variant, _)| variant != point.variant.as_str());
        if is_first {
            one = Some((point.variant.as_str(), point.transactions_per_s));
        }
        let times = one.map_or(1.0, |(_, first)| point.transactions_per_s / first);
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        table.row([
            point.shards.to_string(),
            it.queues.to_string(),
            point.load_cores.to_string(),
            grouped(point.transactions_per_s),
            format!("{times:.2}"),
            percent(it.server_busy),
            percent(it.load_busy),
            format!("{:.3}", it.imbalance),
            percent(it.steered_share),
            percent(it.lock_wait_share),
        ]);
    }
    simulated().next().map(|_| table)
}

/// The parts of a server's time, in the order in which they are shown.
fn parts(shares: &CpuShares) -> [(&'static str, f64); 5] {
    [
        ("application", shares.application),
        ("channel", shares.channel),
        ("TCP/IP", shares.tcp_ip),
        ("packet I/O", shares.packet_io),
        ("rest of the kernel", shares.kernel),
    ]
}

/// Figures 1 and 2: shares of the time, and transactions per CPU second outside the application
/// over those of the first server.
fn shares_table(points: &[&Point]) -> Option<TextTable> {
    let profiled = || points.iter().filter_map(|point| Some((*point, point.cpu_shares?)));
    let outside_us = |point: &Point, shares: &CpuShares| {
        point.server_cpu_us_per_transaction * (1.0 - shares.application)
    };
    let (first, first_shares) = profiled().next()?;
    let first_us = outside_us(first, &first_shares);
    let mut heading = vec!["server", "CPU µs"];
    heading.extend(parts(&first_shares).map(|(name, _)| name));
    heading.extend(["outside µs", "per CPU s outside"]);
    let mut table = TextTable::new(&heading);
    for (point, shares) in profiled() {
        let us = outside_us(point, &shares);
        let mut row = vec![server_label(point)];
        row.push(format!("{:.2}", point.server_cpu_us_per_transaction));
        row.extend(parts(&shares).map(|(_, share)| format!("{:.0} %", share * 100.0)));
        row.extend([format!("{us:.2}"), format!("{:.1}x", first_us / us)]);
        table.row(row);
    }
    Some(table)
}

/// Table 2, in milliseconds, and the ratio that is promised: connecting, from the request to its
/// answer, and both.
fn response_times(points: &[&Point]) -> TextTable {
    let mut table = TextTable::new(&[
        "server",
        "part",
        "link",
        "trans/s",
        "min ms",
        "mean ms",
        "median ms",
        "max ms",
        "sd ms",
        "max/median",
    ]);
    for point in points {
        let parts = [
            ("connect", point.connect_us),
            ("processing", point.processing_us),
            ("total", Some(point.latency_us)),
        ];
        for (part, latency) in parts {
            let Some(latency) = latency else { continue };
            // Without events in the window there is no row.
            let ms = |us: f64| match latency.max > 0.0 {
                true => format!("{:.2}", us / 1e3),
                false => "-".to_owned(),
            };
            let ratio = latency.max / latency.p50;
            let mut row = vec![server_label(point), part.to_owned(), point.link.name().to_owned()];
            row.push(grouped(point.transactions_per_s));
            row.extend([latency.min, latency.mean, latency.p50, latency.max, latency.sd].map(ms));
            row.push(if ratio.is_finite() { format!("{ratio:.1}") } else { "-".to_owned() });
            table.row(row);
        }
    }
    table
}

fn fairness(points: &[&Point]) -> TextTable {
    let mut table = TextTable::new(&["server", "link", "conns", "Jain's index", "Gb/s", "CPU µs"]);
    for point in points {
        let gigabits = gigabits(point, point.transactions_per_s);
        table.row([
            server_label(point),
            point.link.name().to_owned(),
            point.connections.to_string(),
            point.fairness.map_or_else(|| "-".to_owned(), |index| format!("{index:.4}")),
            format!("{gigabits:.1}"),
            format!("{:.2}", point.server_cpu_us_per_transaction),
        ]);
    }
    table
}

fn load_cost(points: &[&Point]) -> TextTable {
    let mut table = TextTable::new(&[
        "load",
        "link",
        "load cores",
        "bytes",
        "trans/s",
        "load CPU µs",
        "saturated",
    ]);
    for point in points {
        table.row([
            server_label(point),
            point.link.name().to_owned(),
            point.load_cores.to_string(),
            point.message_bytes.to_string(),
            grouped(point.transactions_per_s),
            format!("{:.2}", point.load_cpu_us_per_transaction),
            point.saturated.name().to_owned(),
        ]);
    }
    table
}

const BAR_WIDTH: f64 = 560.0;
const BAR_HEIGHT: f64 = 22.0;
const BAR_LEFT: f64 = 140.0;
const ROW_HEIGHT: f64 = 34.0;
const LEGEND_HEIGHT: f64 = 30.0;
/// Legend entries are so far apart.
const LEGEND_STEP: f64 = 138.0;
/// Shares below this are too narrow for their label.
const LABELLED_SHARE_MIN: f64 = 0.06;

/// Figure 1: one bar per server, divided by who used the time. Empty if nothing was profiled.
pub(super) fn shares_bars(points: &[&Point]) -> String {
    let rows: Vec<(String, CpuShares)> =
        points.iter().filter_map(|point| Some((server_label(point), point.cpu_shares?))).collect();
    if rows.is_empty() {
        return String::new();
    }
    let height = (rows.len() as f64).mul_add(ROW_HEIGHT, LEGEND_HEIGHT);
    let width = BAR_LEFT + BAR_WIDTH + 10.0;
    let mut svg = format!(
        "<figure><figcaption>CPU time by part</figcaption><svg viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"CPU time of each server by part\">"
    );
    for (style, (name, _)) in parts(&CpuShares::default()).into_iter().enumerate() {
        let x = (style as f64).mul_add(LEGEND_STEP, 10.0);
        let _ = write!(
            svg,
            "<rect class=\"bar s{style}\" x=\"{x}\" y=\"4\" width=\"12\" height=\"12\"/>\
             <text class=\"legend\" x=\"{}\" y=\"14\">{name}</text>",
            x + 17.0
        );
    }
    for (index, (label, shares)) in rows.iter().enumerate() {
        let y = (index as f64).mul_add(ROW_HEIGHT, LEGEND_HEIGHT);
        let middle = y + BAR_HEIGHT / 2.0 + 4.0;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
            BAR_LEFT - 10.0,
            escaped(label)
        );
        svg += &bar(shares, y, middle);
    }
    svg + "</svg></figure>\n"
}

fn bar(shares: &CpuShares, y: f64, middle: f64) -> String {
    let mut svg = String::new();
    let mut x = BAR_LEFT;
    for (style, (name, share)) in parts(shares).into_iter().enumerate() {
        let width = share * BAR_WIDTH;
        let _ = write!(
            svg,
            "<rect class=\"bar s{style}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" \
             height=\"{BAR_HEIGHT}\"><title>{name}: {:.1} %</title></rect>",
            share * 100.0
        );
        if share >= LABELLED_SHARE_MIN {
            let _ = write!(
                svg,
                "<text class=\"inside\" x=\"{:.1}\" y=\"{middle}\" text-anchor=\"middle\">\
                 {:.0} %</text>",
                x + width / 2.0,
                share * 100.0
            );
        }
        x += width;
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::{shares_bars, simulation_table, table};
    use crate::{
        point::{CpuShares, Latency, Point, Simulated},
        report::tests::point,
    };

    fn profiled(server: &str, cpu_us: f64, application: f64) -> Point {
        let rest = (1.0 - application) / 2.0;
        let cpu_shares =
            CpuShares { application, tcp_ip: rest, kernel: rest, ..CpuShares::default() };
        Point { cpu_shares: Some(cpu_shares), ..point(server, Some(1), cpu_us) }
    }

    #[test]
    fn time_outside_the_application_is_compared_with_the_first_server() {
        let (nginx, ours) = (profiled("nginx", 20.0, 0.2), profiled("channel", 5.0, 0.2));
        let lines = table("mt-fig1", &[&nginx, &ours]).expect("profiled").lines();
        let last = |line: &str| -> Vec<String> {
            line.split_ascii_whitespace().rev().take(2).map(str::to_owned).collect()
        };
        assert_eq!(last(&lines[1]), ["1.0x", "16.00"]);
        assert_eq!(last(&lines[2]), ["4.0x", "4.00"]);
        assert!(lines[2].contains("40 %"), "{lines:?}");
        let svg = shares_bars(&[&nginx, &ours]);
        assert_eq!(svg.matches("<title>").count(), 10, "two bars of five parts");
        let plain = point("nginx", Some(1), 20.0);
        assert!(table("mt-fig1", &[&plain]).is_none() && shares_bars(&[&plain]).is_empty());
    }

    #[test]
    fn response_times_are_summed_up_as_in_the_papers_table() {
        let latency_us = Latency {
            min: 100.0,
            mean: 4_000.0,
            p50: 3_000.0,
            max: 60_000.0,
            sd: 500.0,
            ..Latency::default()
        };
        let connect_us = Some(Latency { p50: 1_000.0, max: 2_000.0, ..latency_us });
        let crowd = Point { latency_us, connect_us, ..point("channel", Some(1), 10.0) };
        let lines = table("mt-table2", &[&crowd]).expect("a table").lines();
        let words = |line: &str| -> Vec<String> {
            line.split_ascii_whitespace().rev().take(6).map(str::to_owned).collect()
        };
        assert_eq!(words(&lines[2]), ["20.0", "0.50", "60.00", "3.00", "4.00", "0.10"]);
        assert!(lines[1].contains("connect") && lines[2].contains("total") && lines.len() == 3);
        assert_eq!(words(&lines[1])[0], "2.0");
        let nothing = Point { latency_us: Latency::default(), connect_us: None, ..crowd };
        let lines = table("mt-table2", &[&nothing]).expect("a table").lines();
        assert_eq!(words(&lines[1]), ["-"; 6]);
    }

    #[test]
    fn simulated_points_say_what_limits_them() {
        let at = |shards: usize, cpu_us: f64, variant: &str| {
            let simulated = Some(Simulated { queues: shards, ..Simulated::default() });
            let variant = variant.to_owned();
            Point { simulated, shards, variant, ..point("channel", Some(1), cpu_us) }
        };
        let points =
            [at(1, 4.0, ""), at(2, 2.0, ""), at(1, 4.0, "one queue"), at(2, 3.2, "one queue")];
        let points: Vec<&Point> = points.iter().collect();
        let lines = simulation_table(&points).expect("a table").lines();
        let times = |line: &str| line.split_ascii_whitespace().nth(4).map(str::to_owned);
        let all: Vec<_> = lines[1..].iter().filter_map(|line| times(line)).collect();
        assert_eq!(all, ["1.00", "2.00", "1.00", "1.25"]);
        let measured = point("channel", Some(1), 4.0);
        assert!(simulation_table(&[&measured]).is_none());
    }

    #[test]
    fn fairness_and_the_loads_cost_have_tables_and_others_do_not() {
        let kept = Point { fairness: Some(0.98765), ..point("channel", None, 10.0) };
        let lines = table("mt-fairness", &[&kept]).expect("a table").lines();
        assert!(lines[1].contains("0.9877"), "{lines:?}");
        let load = Point { load_cpu_us_per_transaction: 7.125, ..point("channel", Some(1), 10.0) };
        let lines = table("mt-fig10", &[&load]).expect("a table").lines();
        assert!(lines[1].contains("7.12"), "{lines:?}");
        assert!(table("fig2.1a", &[&load]).is_none());
    }
}
