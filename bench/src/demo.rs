//! `megapipe demo`: a short version of the benchmark.
//!
//! RPC, HTTP and key-value servers on channels beside the best epoll and io_uring servers, and
//! beside nginx and memcached where they are installed, each on the kernel's TCP and on our own
//! stack (over memif, in two processes), RPC also in two programs that share the stack of a daemon:
//! about two minutes, without root.

use crate::{
    error::BenchError,
    experiments::{EXPERIMENTS, Experiment, Suite},
    layout::LinkChoice,
    output,
    point::{Point, Results},
    report,
    run::Bench,
    stack_link::StackLink,
    table::{TextTable, grouped, print_wrapped},
    trial::Effort,
};
use megapipe::{Channel, Config, DriverChoice};
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Options of `megapipe demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "target/demo/report.html")]
    pub report: PathBuf,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What to put between server and load
    #[arg(long, value_enum, default_value_t)]
    pub link: LinkChoice,
    /// The megapipe executable whose servers and load are run
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

const EFFORT: Effort = Effort { runs: 3, window: Duration::from_secs(2) };

/// Runs the demo. Blocks for about two minutes.
///
/// # Errors
/// [`BenchError`] if nothing could be measured. Servers that failed by themselves are noted and
/// make the exit code 1.
pub fn demo(args: &DemoArgs) -> Result<ExitCode, BenchError> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?,
    };
    output::try_out(&args.report)?;
    args.json.as_deref().map_or(Ok(()), output::try_out)?;
    let mut bench = Bench::new(program, args.link, EFFORT)?;
    // Our own stack needs neither root nor a namespace over shared memory.
    bench.columns.links = vec![StackLink::Memif];
    // The row `service`: two applications that share a port and the stack of a daemon.
    bench.columns.sharing = 2;
    if let Some(why) = io_uring_refused() {
        bench.without_io_uring = true;
        bench.note(format!("io_uring cannot be used here, so only epoll is measured: {why}"));
    }
    let link = bench.layout(1)?.link;
    eprintln!(
        "One server core, one or more for the load, link: {}.\nThis takes about two minutes.",
        link.name()
    );
    let experiments: Vec<&Experiment> =
        EXPERIMENTS.iter().filter(|it| it.suite == Suite::Demo).collect();
    let points = bench.run(&experiments, true, 1)?;
    if !points.iter().any(|point| matches!(point.server.as_str(), "nginx" | "memcached")) {
        bench.note("the http and kv servers are compared with themselves on epoll only".to_owned());
    }
    let results = output::results(points, &bench);
    print(&results);
    output::write(&args.report, &report::page(&results))?;
    if let Some(path) = &args.json {
        output::write_json(path, &results)?;
    }
    println!("\nreport: {}", args.report.display());
    Ok(if bench.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Why a channel on io_uring cannot be made here, if so.
fn io_uring_refused() -> Option<String> {
    let config = Config::default().driver(DriverChoice::Uring);
    Channel::create(config).err().map(|error| error.to_string())
}

fn print(results: &Results) {
    let mut table = TextTable::new(&[
        "workload",
        "server",
        "trans/s",
        "CPU µs",
        "vs channel",
        "p50 µs",
        "p99 µs",
        "saturated",
    ]);
    for point in &results.points {
        table.row([
            workload(point),
            report::server_label(point),
            grouped(point.transactions_per_s),
            format!("{:.2}", point.server_cpu_us_per_transaction),
            ratio(point, &results.points),
            format!("{:.0}", point.latency_us.p50),
            format!("{:.0}", point.latency_us.p99),
            point.saturated.name().to_owned(),
        ]);
    }
    println!();
    table.print(0);
    println!("\nCPU µs: busy time of the server's core per transaction; vs channel: as a multiple");
    println!("of what the channel needs. Medians of {} runs.", EFFORT.runs);
    for note in &results.notes {
        print_wrapped("note: ", note);
    }
}

fn workload(point: &Point) -> String {
    match point.transactions_per_connection {
        Some(length) => format!("{}, {length} per connection", point.workload),
        None => format!("{}, persistent", point.workload),
    }
}

/// The point's CPU time as a multiple of the first channel's in the same situation.
fn ratio(point: &Point, points: &[Point]) -> String {
    let channel = points.iter().find(|it| {
        it.server == "channel"
            && it.experiment == point.experiment
            && it.transactions_per_connection == point.transactions_per_connection
    });
    channel.map_or_else(
        || "-".to_owned(),
        |channel| {
            let ratio = point.server_cpu_us_per_transaction / channel.server_cpu_us_per_transaction;
            format!("{ratio:.2}×")
        },
    )
}
