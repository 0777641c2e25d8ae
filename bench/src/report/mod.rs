//! The report: one HTML page that needs nothing else, readable in light and dark.
//!
//! Pure: results in, text out. `series.rs` turns points into curves, `plot.rs` draws them,
//! `findings.rs` says what they mean, `style.css` is the look.

mod figures;
mod findings;
mod mtcp;
mod plot;
mod programs;
mod series;
mod xy_plot;

pub(crate) use mtcp::{simulation_table, table as special_table};
pub(crate) use programs::programs_table;
pub(crate) use series::server_label;

use crate::{
    experiments::{EXPERIMENTS, Experiment},
    features,
    layout::MeasuredLink,
    point::{Machine, Point, Results},
    promise::BarResult,
    table::{TextTable, grouped},
};
use findings::{HeadlineGroup, RatioVerdict, TechniqueSteps};
use plot::{AxisPosition, PlotMark, Series, escaped};
use series::Metric;
use std::fmt::Write;

/// What is true of every report.
const METHOD: [&str; 4] = [
    "Server CPU time is the busy time of the server's cores (user, nice, system, interrupt and \
     softirq time from /proc/stat, over the same window as the transactions), divided by \
     transactions. Idle time, waiting for I/O and time stolen by the hypervisor are not counted.",
    "The servers of a group are measured in turn, several rounds of each; what is shown is the \
     median; for throughput and CPU time, thin vertical lines run from the lowest to the highest \
     run. A ratio is called within noise where these ranges overlap.",
    "“saturated” names the side whose cores were busy all the time. Where it is the load, \
     throughput is the load's limit, and CPU time per transaction is what compares servers.",
    "Compare within one report only: a virtual machine's cores are not equally fast at all times.",
];

/// What is true of simulated points.
const SIMULATED: &str = "Points called simulated, on dashed curves, were not measured: they come \
    from a simulation of shards, queues and their locks, with costs that were measured on this \
    machine just before. Caches and memory that cores share are not in it; docs/SCALING.md says \
    what is.";

/// The whole page.
pub(crate) fn page(results: &Results) -> String {
    page_with_bars(results, &[])
}

/// The whole page, with promised numbers on top.
pub(crate) fn page_with_bars(results: &Results, bars: &[BarResult]) -> String {
    let mut html = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>megapipe benchmark</title>\n<style>\n",
    );
    html += include_str!("style.css");
    html += "</style>\n</head>\n<body>\n<main>\n<h1>megapipe benchmark</h1>\n\
             <p class=\"lead\">Servers on megapipe channels beside hand-written servers on the \
             same kernel's interfaces, measured in turn on this machine.</p>\n";
    html += &facts(results);
    if !bars.is_empty() {
        html += &bar_table(bars);
    }
    html += &summary(&results.points);
    for name in experiment_names(results) {
        let points: Vec<&Point> =
            results.points.iter().filter(|point| point.experiment == name).collect();
        html += &section(&name, &points);
    }
    if results.points.iter().any(|point| point.experiment.starts_with("mt-")) {
        html += "<section><h2>What each system does about it<small>table 1</small></h2>\n";
        html += &table_html(&features::table());
        html += "<p class=\"paper\">mTCP paper: table 1; our back ends below the paper's \
                 systems.</p></section>\n";
    }
    html += &figures::sections(&results.figures);
    html += &caveats(results);
    html + "</main>\n</body>\n</html>\n"
}

/// The experiments that have points, known ones in their order, then others.
fn experiment_names(results: &Results) -> Vec<String> {
    let mut names: Vec<String> = EXPERIMENTS.iter().map(|it| it.name.to_owned()).collect();
    for point in &results.points {
        if !names.contains(&point.experiment) {
            names.push(point.experiment.clone());
        }
    }
    names.retain(|name| results.points.iter().any(|point| point.experiment == *name));
    names
}

fn link_sentence(link: MeasuredLink) -> &'static str {
    match link {
        MeasuredLink::Veth => {
            "veth pair between two network namespaces; receive processing of each end runs on \
             its own side's cores (RPS)"
        }
        MeasuredLink::Loopback => {
            "loopback: the sender's core does part of the receiver's work, so the server's cores \
             are charged too little"
        }
        MeasuredLink::Memif => {
            "memif: shared memory between two processes, our own stack in both; both poll, so that \
             a side that waits for the other is busy too"
        }
        MeasuredLink::Tap => {
            "TAP device with checksum and segmentation offload, the kernel before it"
        }
        MeasuredLink::Xdp => {
            "AF_XDP on the server's end of the veth pair, the kernel at the load's end"
        }
    }
}

fn facts(results: &Results) -> String {
    let machine = &results.machine;
    let gibibytes = machine.memory_bytes as f64 / f64::from(1 << 30);
    let mut links: Vec<MeasuredLink> = Vec::new();
    for point in &results.points {
        if !links.contains(&point.link) {
            links.push(point.link);
        }
    }
    let links: Vec<&str> = links.into_iter().map(link_sentence).collect();
    let clock = match machine.cpu_mhz {
        0 => String::new(),
        mhz => format!(" at {mhz} MHz"),
    };
    let rows = [
        ("Machine", format!("{}{clock}, {} cores, {gibibytes:.0} GiB", machine.cpu, machine.cores)),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("Mitigations", machine.mitigations.clone()),
        ("Link", links.join("; ")),
        ("megapipe", version(machine)),
        ("Date", machine.date.clone()),
        ("Command", results.command.clone()),
    ];
    let mut html = String::from("<dl class=\"facts\">\n");
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let value = escaped(value);
        let value = if *name == "Command" { format!("<code>{value}</code>") } else { value };
        let _ = writeln!(html, "<dt>{name}</dt><dd>{value}</dd>");
    }
    html + "</dl>\n"
}

/// The version and, where the build knew it, the commit.
fn version(machine: &Machine) -> String {
    match machine.commit.as_str() {
        "" => machine.megapipe.clone(),
        commit => format!("{}, commit {commit}", machine.megapipe),
    }
}

fn bar_table(bars: &[BarResult]) -> String {
    let mut html = String::from(
        "<section><h2>Promised numbers</h2>\n<div class=\"scroll\"><table>\n\
         <tr><th>what</th><th>bar</th><th>measured</th><th>of medians</th>\
         <th>half of the runs</th><th>runs from – to</th>\
         <th class=\"text\">met</th></tr>\n",
    );
    for bar in bars {
        let (class, word) = match bar.met() {
            Some(true) => ("met", "met"),
            Some(false) => ("missed", "not met"),
            None if bar.is_floor() => ("", "no promise: what the machine allows"),
            None if bar.is_skipped => ("", "skipped"),
            None => ("", "not measured"),
        };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td class=\"text {class}\">{word}{}</td></tr>",
            escaped(&bar.what_text()),
            escaped(&bar.bound_text()),
            escaped(&bar.measured_text()),
            escaped(&bar.of_medians_text()),
            escaped(&bar.middle_half_text()),
            escaped(&bar.range_text()),
            bar.why.as_ref().map_or_else(String::new, |why| format!(": {}", escaped(why))),
        );
    }
    html + "</table></div></section>\n"
}

/// Ratios of CPU time, those of the kernel's TCP and those of our own stack apart.
fn summary(points: &[Point]) -> String {
    let groups = [
        (HeadlineGroup::Kernel, "Channels on the kernel’s TCP, through io_uring"),
        (HeadlineGroup::OwnStack, "Channels on our own stack, over the kernel’s servers"),
    ];
    let cards = groups.map(|(group, title)| cards(points, group, title)).concat();
    if cards.is_empty() {
        return cards;
    }
    format!(
        "<h2>Summary<small>CPU time per transaction as a ratio: below 1 the channel needs \
         less</small></h2>\n{cards}"
    )
}

fn cards(points: &[Point], group: HeadlineGroup, title: &str) -> String {
    let headlines = findings::headlines(points, group);
    if headlines.is_empty() {
        return String::new();
    }
    let mut html = format!("<h3>{title}</h3>\n<div class=\"cards\">\n");
    for headline in headlines {
        let (class, remark) = match headline.verdict {
            RatioVerdict::Better => ("good", ""),
            RatioVerdict::Worse => ("bad", ""),
            RatioVerdict::WithinNoise => ("noise", " (within noise)"),
        };
        let _ = writeln!(
            html,
            "<div class=\"card\"><b class=\"{class}\">{:.2}×</b><span>{}{remark}</span>\
             <span class=\"why\">{}</span></div>",
            headline.ratio,
            escaped(&headline.what),
            escaped(&headline.detail),
        );
    }
    html + "</div>\n"
}

fn section(name: &str, points: &[&Point]) -> String {
    let experiment = Experiment::named(name);
    let title = experiment.map_or("", |experiment| experiment.title);
    let mut html = format!("<section>\n<h2>{title}<small>{}</small></h2>\n", escaped(name));
    if let Some(experiment) = experiment {
        html += &match name {
            "mt-fig1" => mtcp::shares_bars(points),
            _ => plots(experiment, points),
        };
        if let Some(table) = mtcp::table(name, points) {
            html += &table_html(&table);
        }
        if let Some(table) = programs_table(points) {
            let _ = writeln!(html, "<p>{}</p>", escaped(programs::CAPTION));
            html += &table_html(&table);
        }
        if let Some(table) = simulation_table(points) {
            html += "<p>Simulated from measured costs, dashed above: what more cores than the \
                     machine has would carry, and what limits them.</p>\n";
            html += &table_html(&table);
        }
        if let Some(steps) = findings::steps(points).filter(|_| name == "table5.1") {
            html += &steps_table(&steps);
        }
        if name == "fig2.1a" {
            let gains = findings::gains_by_length(points);
            if !gains.is_empty() {
                html +=
                    &improvement_plot("Throughput over epoll-shared, the paper's and ours", &gains);
            }
        }
        if let Some(finding) = findings::finding(experiment, points) {
            let _ = writeln!(html, "<p class=\"here\">Here: {}</p>", escaped(&finding));
        }
        let _ = writeln!(
            html,
            "<p class=\"paper\">{}: {}</p>",
            experiment.source().name(),
            escaped(experiment.paper)
        );
    }
    let open = if experiment.is_none() { " open" } else { "" };
    let _ = writeln!(html, "<details{open}><summary>Table of points</summary>");
    html += &points_table(points);
    html + "</details>\n</section>\n"
}

/// The metrics that an experiment's plots show, in their order.
const fn metrics(experiment: &Experiment) -> &'static [Metric] {
    const LATENCY: [Metric; 3] =
        [Metric::MedianLatency, Metric::TailLatency, Metric::FarTailLatency];
    match experiment.name.as_bytes() {
        b"fig2.1b" => &[
            Metric::GigabitsPerSecond,
            Metric::CpuMicroseconds,
            Metric::MedianLatency,
            Metric::TailLatency,
        ],
        b"mt-fairness" => &[Metric::Fairness, Metric::GigabitsPerSecond],
        b"mt-fig10" | b"mt-fig11" => &[Metric::TransactionsPerSecond, Metric::LoadCpuMicroseconds],
        _ if experiment.latency => &LATENCY,
        _ => &[
            Metric::TransactionsPerSecond,
            Metric::CpuMicroseconds,
            Metric::MedianLatency,
            Metric::TailLatency,
        ],
    }
}

/// The plots of an experiment. Shared memory has plots of its own: its frames cost a tenth of
/// those of the kernel's links, so one axis for both would hide the differences on either.
fn plots(experiment: &Experiment, points: &[&Point]) -> String {
    let (memory, wire): (Vec<&Point>, Vec<&Point>) =
        points.iter().partition(|point| point.link == MeasuredLink::Memif);
    let is_divided = !memory.is_empty() && !wire.is_empty();
    let mut html = String::new();
    for (points, title) in [(wire, "Over the kernel’s links"), (memory, "Over shared memory")] {
        if points.is_empty() {
            continue;
        }
        if is_divided {
            let _ = writeln!(html, "<h3>{title}<small>{}</small></h3>", link_names(&points));
        }
        html += &figures(experiment, &points);
    }
    html
}

/// The links of some points, each once.
fn link_names(points: &[&Point]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for point in points {
        if !names.contains(&point.link.name()) {
            names.push(point.link.name());
        }
    }
    names.join(", ")
}

fn figures(experiment: &Experiment, points: &[&Point]) -> String {
    let mut html = String::from("<div class=\"plots\">\n");
    for metric in metrics(experiment) {
        let (frame, series) = series::plot(experiment, points, *metric);
        if series.is_empty() {
            continue;
        }
        let _ = writeln!(
            html,
            "<figure><figcaption>{}</figcaption>{}</figure>",
            metric.title(),
            plot::svg(&frame, &series)
        );
    }
    html + "</div>\n"
}

/// Table 5.1, ours beside the paper's, and the totals as a plot.
fn steps_table(steps: &TechniqueSteps) -> String {
    let mut html =
        String::from("<div class=\"scroll\"><table>\n<tr><th>throughput over the baseline, %</th>");
    for length in &steps.lengths {
        let _ = write!(html, "<th>{length}</th>");
    }
    html += "</tr>\n";
    for findings::TechniqueStep { name, paper, ours } in &steps.rows {
        let _ = write!(html, "<tr><td>{name}, here</td>");
        for value in ours {
            let _ = write!(html, "<td>{value:.1}</td>");
        }
        let _ = write!(html, "</tr>\n<tr><td>{name}, paper (8 cores, Linux 3.1.3)</td>");
        for value in paper {
            let text = value.map_or_else(|| "–".to_owned(), |value| format!("{value:.1}"));
            let _ = write!(html, "<td>{text}</td>");
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n" + &totals_plot(steps)
}

fn totals_plot(steps: &TechniqueSteps) -> String {
    let Some(findings::TechniqueStep { paper, ours, .. }) = steps.rows.last() else {
        return String::new();
    };
    let rows = steps.lengths.iter().zip(ours).zip(paper);
    let rows: Vec<_> = rows.map(|((&length, &ours), &paper)| (length, ours, paper)).collect();
    improvement_plot("Total improvement, the paper's and ours", &rows)
}

/// Improvements in percent by connection length, ours beside the paper's.
fn improvement_plot(title: &str, rows: &[(u64, f64, Option<f64>)]) -> String {
    let mark =
        |(place, value): (usize, f64)| PlotMark { place, value: value.max(0.0), range: None };
    let ours = rows.iter().map(|row| row.1).enumerate().map(mark).collect();
    let known = rows.iter().enumerate().filter_map(|(place, row)| Some((place, row.2?)));
    let paper = known.map(mark).collect();
    let series = [
        Series { label: "here, one core".to_owned(), style: 0, dashed: false, marks: ours },
        Series { label: "paper, eight cores".to_owned(), style: 5, dashed: true, marks: paper },
    ];
    let place = |row: &(u64, f64, Option<f64>)| AxisPosition {
        at: (row.0 as f64).log2(),
        label: row.0.to_string(),
    };
    let frame = plot::PlotFrame {
        x_label: "transactions per connection",
        y_label: "% over the baseline".to_owned(),
        places: rows.iter().map(place).collect(),
        kinds: false,
    };
    format!(
        "<div class=\"plots\"><figure><figcaption>{title}</figcaption>{}</figure></div>\n",
        plot::svg(&frame, &series)
    )
}

/// A table of the terminal as HTML.
fn table_html(table: &TextTable) -> String {
    let mut html = String::from("<div class=\"scroll\"><table>\n");
    for (index, row) in table.rows().iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        html += "<tr>";
        for cell in row {
            let _ = write!(html, "<{tag}>{}</{tag}>", escaped(cell));
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

fn points_table(points: &[&Point]) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table class=\"points\">\n\
         <tr><th>server</th><th>cores</th><th>per connection</th>\
         <th>bytes</th><th>connections</th><th>transactions/s</th><th>CPU µs</th>\
         <th>from – to</th><th>idle</th><th>p50 µs</th><th>p99 µs</th><th>p99.9 µs</th>\
         <th>max µs</th><th class=\"text\">saturated</th><th>runs</th><th>errors</th></tr>\n",
    );
    for point in points {
        let length = point.transactions_per_connection;
        let length = length.map_or_else(|| "∞".to_owned(), |length| length.to_string());
        let ([low, high], latency) = (point.server_cpu_us_range, point.latency_us);
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{length}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{:.2}</td><td>{low:.2} – {high:.2}</td><td>{:.0} %</td><td>{:.0}</td>\
             <td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td class=\"text\">{}</td><td>{}</td>\
             <td>{}</td></tr>",
            escaped(&server_label(point)),
            point.shards,
            point.message_bytes,
            point.connections,
            grouped(point.transactions_per_s),
            point.server_cpu_us_per_transaction,
            point.server_idle_share * 100.0,
            latency.p50,
            latency.p99,
            latency.p999,
            latency.max,
            point.saturated.name(),
            point.runs,
            point.errors,
        );
    }
    html + "</table></div>\n"
}

fn caveats(results: &Results) -> String {
    let mut html = String::from("<section><h2>How to read this</h2>\n<ul>\n");
    let is_simulated = results.points.iter().any(|point| point.simulated.is_some());
    let method = METHOD.iter().chain(is_simulated.then_some(&SIMULATED));
    let method = method.map(|text| (*text).to_owned());
    for text in method.chain(results.notes.iter().cloned()) {
        let _ = writeln!(html, "<li>{}</li>", escaped(&text));
    }
    html + "</ul></section>\n"
}

#[cfg(test)]
pub(crate) mod tests {
    use super::page;
    use crate::{
        layout::MeasuredLink,
        point::{CpuSplit, Latency, Machine, Point, Results, Saturated},
    };

    /// A point of figure 2.1(a).
    pub(crate) fn point(server: &str, length: Option<u64>, cpu_us: f64) -> Point {
        Point {
            experiment: "fig2.1a".to_owned(),
            server: server.to_owned(),
            backend: "kernel".to_owned(),
            driver: "uring".to_owned(),
            link: MeasuredLink::Veth,
            placement: "kernel".to_owned(),
            shards: 1,
            transactions_per_connection: length,
            message_bytes: 64,
            connections: 256,
            transactions_per_s: 1e6 / cpu_us,
            server_cpu_us_per_transaction: cpu_us,
            latency_us: Latency {
                p50: 100.0,
                p99: 200.0,
                p999: 300.0,
                max: 400.0,
                ..Latency::default()
            },
            saturated: Saturated::Server,
            runs: 5,
            variant: String::new(),
            workload: "rpc".to_owned(),
            transactions_per_s_range: [0.9e6 / cpu_us, 1.1e6 / cpu_us],
            server_cpu_us_range: [cpu_us * 0.9, cpu_us * 1.1],
            server_idle_share: 0.0,
            errors: 0,
            server_cpu_us: CpuSplit { user: 0.1, system: cpu_us - 0.1, softirq: 0.0 },
            server_calls_per_transaction: 0.0,
            load_cores: 1,
            load_cpu_us_per_transaction: cpu_us,
            fairness: None,
            cpu_shares: None,
            connect_us: None,
            processing_us: None,
            server_process_us_per_transaction: None,
            load_process_us_per_transaction: None,
            simulated: None,
            events_per_wakeup: None,
        }
    }

    fn results() -> Results {
        Results {
            machine: Machine {
                cpu: "A <CPU>".to_owned(),
                cores: 2,
                memory_bytes: 24 << 30,
                kernel: "6.18".to_owned(),
                megapipe: "0.1.0".to_owned(),
                date: "2026-11-23T12:00:00Z".to_owned(),
                commit: "0123456789ab".to_owned(),
                cpu_mhz: 2100,
                mitigations: "on".to_owned(),
            },
            command: "megapipe bench rpc".to_owned(),
            points: vec![point("channel", Some(1), 8.0), point("io_uring", Some(1), 8.0)],
            notes: vec!["a note".to_owned()],
            bars: Vec::new(),
            figures: Vec::new(),
        }
    }

    #[test]
    fn the_page_is_self_contained_and_escaped() {
        let html = page(&results());
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.contains("A &lt;CPU&gt;") && html.contains("a note"));
        assert!(html.contains("prefers-color-scheme: dark"));
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    }

    #[test]
    fn facts_name_date_commit_clock_and_mitigations() {
        let html = page(&results());
        for fact in ["2026-11-23T12:00:00Z", "commit 0123456789ab", "2100 MHz", "Mitigations"] {
            assert!(html.contains(fact), "{fact}");
        }
    }

    #[test]
    fn shared_memory_and_wire_have_separate_axes() {
        let mut results = results();
        let figures = |results: &_| page(results).matches("<figure>").count();
        let alone = figures(&results);
        let own = Point {
            backend: "local".to_owned(),
            link: MeasuredLink::Memif,
            ..point("channel", Some(1), 1.0)
        };
        results.points.push(own);
        assert_eq!(figures(&results), 2 * alone);
        assert!(page(&results).contains("Over shared memory"));
    }

    #[test]
    fn unknown_experiments_are_shown_as_tables() {
        let mut results = results();
        "something-new".clone_into(&mut results.points[0].experiment);
        assert!(page(&results).contains("something-new"));
    }
}
