//! Output of a benchmark: collects results, prints their tables and writes their files.

use crate::{
    error::BenchError,
    experiments::EXPERIMENTS,
    point::{Machine, Point, Results},
    report,
    run::Bench,
    table::{TextTable, grouped, print_wrapped},
};
use megapipe_apps::result_file;
use std::{fs, io, path::Path};

/// Results of this process: `points` with the machine and the command line.
pub(crate) fn results(points: Vec<Point>, bench: &Bench) -> Results {
    let (machine, notes) = (Machine::here(bench.cores()), bench.notes.clone());
    let (bars, figures) = (Vec::new(), Vec::new());
    Results { machine, command: command_line(), points, notes, bars, figures }
}

/// The command line of this process, without the program's directory.
pub(crate) fn command_line() -> String {
    let words: Vec<String> = std::env::args().collect();
    match words.split_first() {
        Some((program, rest)) => {
            let name = Path::new(program).file_name().map(|name| name.to_string_lossy());
            let name = name.unwrap_or_default().into_owned();
            std::iter::once(&name).chain(rest).cloned().collect::<Vec<_>>().join(" ")
        }
        None => String::new(),
    }
}

pub(crate) fn json(results: &Results) -> io::Result<String> {
    serde_json::to_string_pretty(results).map_err(io::Error::from)
}

pub(crate) fn write_json(path: &Path, results: &Results) -> Result<(), BenchError> {
    write(path, &json(results)?)
}

/// Makes sure that a file can be written in the end.
pub(crate) fn try_out(path: &Path) -> Result<(), BenchError> {
    let failed = |source| BenchError::Write { path: path.to_owned(), source };
    make_folder(path).and_then(|()| result_file::check(path)).map_err(failed)
}

/// Writes a file, and its directories if they are missing.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let failed = |source| BenchError::Write { path: path.to_owned(), source };
    make_folder(path).and_then(|()| result_file::write(path, text)).map_err(failed)
}

fn make_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::create_dir_all(folder),
        _ => Ok(()),
    }
}

/// Prints one table for each experiment, and the notes.
pub(crate) fn print_tables(results: &Results) {
    for experiment in &EXPERIMENTS {
        let points: Vec<&Point> =
            results.points.iter().filter(|it| it.experiment == experiment.name).collect();
        if points.is_empty() {
            continue;
        }
        println!();
        print_wrapped("", &format!("{}: {}", experiment.name, experiment.title));
        table(&points).print(2);
        if let Some(table) = report::special_table(experiment.name, &points) {
            println!();
            table.print(2);
        }
        if let Some(table) = report::programs_table(&points) {
            println!("\n  readiness over completions, and placements over inline:");
            table.print(2);
        }
        if let Some(table) = report::simulation_table(&points) {
            println!("\n  simulated from measured costs:");
            table.print(2);
        }
    }
    for note in &results.notes {
        print_wrapped("note: ", note);
    }
}

/// The table of some points.
pub(crate) fn table(points: &[&Point]) -> TextTable {
    let mut table = TextTable::new(&[
        "server",
        "link",
        "cores",
        "per conn",
        "bytes",
        "conns",
        "trans/s",
        "CPU µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "saturated",
    ]);
    for point in points {
        let length = point.transactions_per_connection;
        table.row([
            report::server_label(point),
            point.link.name().to_owned(),
            point.shards.to_string(),
            length.map_or_else(|| "-".to_owned(), |length| length.to_string()),
            point.message_bytes.to_string(),
            point.connections.to_string(),
            grouped(point.transactions_per_s),
            format!("{:.2}", point.server_cpu_us_per_transaction),
            format!("{:.0}", point.latency_us.p50),
            format!("{:.0}", point.latency_us.p99),
            format!("{:.0}", point.latency_us.p999),
            point.saturated.name().to_owned(),
        ]);
    }
    table
}
