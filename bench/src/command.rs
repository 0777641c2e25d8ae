//! `megapipe bench …` and what it prints.

use crate::{
    accept_reset::{self, AcceptArgs, AcceptError, AcceptLoadArgs},
    bars,
    baseline::{self, BaselineArgs, BaselineError},
    experiments::{EXPERIMENTS, Experiment, Suite, effort},
    features,
    instructions::{self, InstructionsError, SegmentKind},
    keeper::{self, KeepArgs},
    layout::{self, LayoutError, LinkChoice, LinkName},
    limits::RUNS_MAX,
    load_process::{self, LoadProcessArgs, LoadProcessError},
    measure::Effort,
    point::{Machine, Point, Results},
    process::{self, ExecArgs},
    report,
    run::{Bench, Columns, Programs},
    scaling::{
        self,
        costs::{CostError, FrameKind, carry_frames},
    },
    shard_bars, stack_bars,
    stack_link::{Placement, StackLink},
    table::{Table, grouped},
};
use megapipe_apps::{
    backend::{BackendName, PlacementName},
    result_file,
    rpc::Api,
};
use std::{
    fs, io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Options of `megapipe bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// RPC ping-pong: figures 2.1, 5.1 and 5.2 and table 5.1 of the MegaPipe report
    Rpc(RpcRunArgs),
    /// Connections per second
    Accept(RunArgs),
    /// Key-value store against memcached: figures 5.3 and 5.4
    Kv(RunArgs),
    /// Static files against nginx: figure 5.5
    Http(RunArgs),
    /// One bulk stream: gigabits a second and CPU time
    Bulk(RunArgs),
    /// Round trips of one connection
    Latency(RunArgs),
    /// The mTCP paper's experiments: our own stack beside the kernel, messages to web servers
    ///
    /// Figures 1, 2 and 7 to 11, tables 1 and 2, and fairness. Figures 7(a) and 10 go on beyond the
    /// machine's cores by a simulation with costs that are measured before; its points say so.
    Mtcp(RunArgs),
    /// Memory of idle connections, on the kernel's TCP and on our own stack
    Idle(RunArgs),
    /// The numbers that megapipe promises, each with what was measured
    Bars(BarsArgs),
    /// One report of results that were written as JSON before
    Report(ReportArgs),
    /// A baseline server
    #[command(hide = true)]
    Server(BaselineArgs),
    /// A load that watches the cores
    #[command(hide = true)]
    Load(Box<LoadProcessArgs>),
    /// Another program, in a place of its own
    #[command(hide = true)]
    Exec(ExecArgs),
    /// A server that accepts and resets
    #[command(hide = true)]
    AcceptServer(Box<AcceptArgs>),
    /// A load that only connects
    #[command(hide = true)]
    AcceptLoad(Box<AcceptLoadArgs>),
    /// Segments between two stacks in one thread, for callgrind
    #[command(hide = true)]
    Segments {
        /// What they do
        kind: SegmentKind,
    },
    /// Frames through the switch of two shards in one thread, for callgrind
    #[command(hide = true)]
    Frames {
        /// Whose they are
        kind: FrameKind,
    },
    /// The process that tidies up after a benchmark
    #[command(hide = true)]
    Keep(KeepArgs),
}

/// Options of every measuring subcommand.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// Fewer points, fewer and shorter runs
    #[arg(long)]
    pub quick: bool,
    /// Runs of which the median is reported (5, `bars` 10; with --quick 3)
    #[arg(long, value_parser = parse_runs)]
    pub runs: Option<NonZeroUsize>,
    /// Length of a run's measured window in seconds (3, `bars` 2; with --quick 2)
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Write the results to this file as JSON; `-` writes to standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report with plots to this file as HTML
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Only the experiment (or bar) of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Who does TCP for the channel: the kernel, our own stack, or both, in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kernel")]
    pub backend: Vec<BackendName>,
    /// What to put between server and load; several of our own stack's are measured in turn
    ///
    /// auto, veth and loopback are the kernel's; memif, tap and xdp are our own stack's and ask for
    /// --backend local. Default: auto, and memif for --backend local.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub link: Vec<LinkName>,
    /// The megapipe executable whose servers and load are run
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// A number of runs that ends some day.
fn parse_runs(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse::<NonZeroUsize>() {
        Ok(runs) if runs.get() <= RUNS_MAX => Ok(runs),
        _ => Err(format!("{text} is not in 1..={RUNS_MAX}")),
    }
}

/// Options of `megapipe bench rpc`.
#[derive(Clone, Debug, clap::Args)]
pub struct RpcRunArgs {
    /// Which of our two servers: on channels, on sockets with epoll, or both in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "channel")]
    pub server: Vec<Api>,
    /// Where our own stack runs; several are measured in turn, and ask for --backend local
    #[arg(long, value_enum, value_delimiter = ',', default_value = "inline")]
    pub placement: Vec<PlacementName>,
    /// As for every measurement.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Options of `megapipe bench bars`.
#[derive(Clone, Debug, clap::Args)]
pub struct BarsArgs {
    /// What is promised of our own stack, instead of the channel on the kernel
    #[arg(long)]
    pub stack: bool,
    /// What is promised of many shards, of the places where our own stack runs, and of sockets
    #[arg(long, conflicts_with = "stack")]
    pub shards: bool,
    /// As for every measurement.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Options of `megapipe bench report`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReportArgs {
    /// Files written with --json; their points come together in one report
    #[arg(required = true, value_name = "JSON")]
    results: Vec<PathBuf>,
    /// Where to write the report
    #[arg(long, value_name = "FILE")]
    report: PathBuf,
}

/// Why a benchmark did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No place to measure in.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A baseline server failed.
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    /// A load failed.
    #[error(transparent)]
    Load(#[from] LoadProcessError),
    /// A side of the accept benchmark failed.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The segments that callgrind counts were not carried.
    #[error(transparent)]
    Segments(#[from] InstructionsError),
    /// Frames did not go where they belong.
    #[error(transparent)]
    Frames(#[from] CostError),
    /// `--only` names nothing.
    #[error("there is no experiment '{name}' here; there are: {known}")]
    UnknownExperiment {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// `--placement` without our own stack.
    #[error("--placement: only --backend local has a stack to place")]
    NoStack,
    /// `--seconds` is not a usable length.
    #[error("a window of {seconds} s is outside of 2 to 600 s: /proc/stat counts 10 ms ticks")]
    Window {
        /// The length given.
        seconds: f64,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of results could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Results of two machines do not belong into one report.
    #[error("{path} was measured on another machine or by another version than {first}")]
    Mixed {
        /// The first file.
        first: PathBuf,
        /// The file that does not fit.
        path: PathBuf,
    },
    /// Something else that the operating system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl BenchError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::UnknownExperiment { .. }
                | Self::NoStack
                | Self::Window { .. }
                | Self::Write { .. }
                | Self::Read { .. }
                | Self::Mixed { .. }
        )
    }
}

/// Runs `megapipe bench`. Blocks until everything is measured.
///
/// # Errors
/// [`BenchError`] if nothing could be measured. Servers that failed by themselves are noted in the
/// results and make the exit code 1.
pub fn bench(args: &BenchArgs) -> Result<ExitCode, BenchError> {
    match &args.action {
        Action::Rpc(args) => measure_programs(args),
        Action::Accept(run) => measure(Suite::Accept, run, Programs::default()),
        Action::Kv(run) => measure(Suite::Kv, run, Programs::default()),
        Action::Http(run) => measure(Suite::Http, run, Programs::default()),
        Action::Bulk(run) => measure(Suite::Bulk, run, Programs::default()),
        Action::Latency(run) => measure(Suite::Latency, run, Programs::default()),
        Action::Mtcp(run) => measure(Suite::Mtcp, &run.with_own_stack(), Programs::default()),
        Action::Idle(run) => measure_idle(run),
        Action::Bars(args) if args.stack => stack_bars::measure(&args.run),
        Action::Bars(args) if args.shards => shard_bars::measure(&args.run),
        Action::Bars(args) => bars::measure(&args.run),
        Action::Report(report) => join(report),
        Action::Server(server) => serve_baseline(server),
        Action::Load(load) => {
            load_process::run(load)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::AcceptServer(server) => {
            accept_reset::serve(server)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::AcceptLoad(load) => {
            accept_reset::load(load)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Segments { kind } => {
            println!("{}", instructions::carry_segments(*kind)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Frames { kind } => {
            println!("{}", carry_frames(*kind)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Exec(exec) => Err(BenchError::System(process::exec(exec))),
        Action::Keep(keep) => {
            keeper::keep(keep)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn serve_baseline(args: &BaselineArgs) -> Result<ExitCode, BenchError> {
    // Nobody triggers it: the process is ended by a signal, and holds nothing worth saving.
    let stop = baseline::Stop::new()?;
    baseline::serve(args, &stop, |address| {
        println!("listening on {address}, {}", args.baseline.name());
    })?;
    Ok(ExitCode::SUCCESS)
}

impl RunArgs {
    /// Whether standard output is for the results as JSON, and for nothing else.
    pub(crate) fn json_to_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// The layout that kernel and own stack share.
    fn layout(&self) -> LinkChoice {
        self.link.iter().find_map(|link| link.layout()).unwrap_or_default()
    }

    /// Whose columns are measured. Naming a link of our own stack asks for it.
    pub(crate) fn columns(&self) -> Columns {
        let mut links: Vec<StackLink> = self.link.iter().filter_map(|link| link.stack()).collect();
        if links.is_empty() && self.backend.contains(&BackendName::Local) {
            links.push(StackLink::Memif);
        }
        let kernel = self.backend.contains(&BackendName::Kernel);
        Columns { kernel, links, programs: Programs::default() }
    }

    /// These options, with our own stack over memif beside the kernel unless they choose.
    fn with_own_stack(&self) -> Self {
        let mut args = self.clone();
        if args.backend == [BackendName::Kernel] && args.columns().links.is_empty() {
            args.backend.push(BackendName::Local);
        }
        args
    }

    /// A bench as these options ask for.
    pub(crate) fn bench(&self) -> Result<Bench, BenchError> {
        self.bench_of(effort(false))
    }

    /// A bench that runs so long and so often, unless these options ask for something else.
    pub(crate) fn bench_of(&self, unasked: Effort) -> Result<Bench, BenchError> {
        [&self.json, &self.report].into_iter().flatten().try_for_each(|path| try_out(path))?;
        let mut effort = if self.quick { effort(true) } else { unasked };
        if let Some(runs) = self.runs {
            effort.runs = runs.get();
        }
        if let Some(seconds) = self.seconds {
            if !(2.0..=600.0).contains(&seconds) {
                return Err(BenchError::Window { seconds });
            }
            effort.window = Duration::from_secs_f64(seconds);
        }
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe()?,
        };
        let mut bench = Bench::new(program, self.layout(), effort)?;
        bench.columns = self.columns();
        Ok(bench)
    }
}

/// The rpc suite, with the programs and placements that are asked for.
fn measure_programs(args: &RpcRunArgs) -> Result<ExitCode, BenchError> {
    let placements: Vec<_> = args.placement.iter().copied().map(Placement::named).collect();
    let is_placed = placements.iter().any(Option::is_some);
    if is_placed && args.run.columns().links.is_empty() {
        return Err(BenchError::NoStack);
    }
    measure(Suite::Rpc, &args.run, Programs { apis: args.server.clone(), placements })
}

fn measure(suite: Suite, args: &RunArgs, programs: Programs) -> Result<ExitCode, BenchError> {
    let experiments = chosen(suite, &args.only)?;
    let mut bench = args.bench()?;
    if programs.placements.contains(&Some(Placement::Core)) {
        bench.note(
            "a server has the cores that its group names, so a stack with a core of its own shares \
             its channel's where that is one: it sleeps there instead of polling"
                .to_owned(),
        );
    }
    bench.columns.programs = programs;
    let cores_max = layout::online_cpus()?.len().saturating_sub(1).max(1);
    if cores_max == 1 {
        bench.note(
            "the machine has room for one server core beside the load: nothing that was measured \
             here shows scaling"
                .to_owned(),
        );
    }
    let mut points = bench.run(&experiments, args.quick, cores_max)?;
    points.extend(scaling::points(&mut bench, &experiments)?);
    let results = results(points, &bench);
    print_tables(&results, args);
    if suite == Suite::Mtcp && !args.json_to_stdout() {
        println!("\ntable 1: what each system does about the costs of TCP in the kernel");
        for line in features::table().lines() {
            println!("  {line}");
        }
    }
    write_out(&results, args, report::page)?;
    Ok(if bench.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Memory of idle connections, of each back end that is asked for.
fn measure_idle(args: &RunArgs) -> Result<ExitCode, BenchError> {
    let columns = args.columns();
    let mut code = ExitCode::SUCCESS;
    let only = |name: &str| RunArgs { only: vec![name.to_owned()], ..args.clone() };
    if columns.kernel {
        code = bars::measure(&only("memory"))?;
    }
    if columns.links.is_empty() {
        return Ok(code);
    }
    stack_bars::measure(&only("idle"))
}

fn chosen(suite: Suite, only: &[String]) -> Result<Vec<&'static Experiment>, BenchError> {
    let of_suite: Vec<_> = EXPERIMENTS.iter().filter(|it| it.suite == suite).collect();
    if only.is_empty() {
        return Ok(of_suite);
    }
    let find = |name: &String| of_suite.iter().copied().find(|it| it.name == name);
    let chosen: Result<Vec<_>, _> = only.iter().map(|name| find(name).ok_or(name)).collect();
    chosen.map_err(|name| BenchError::UnknownExperiment {
        name: name.clone(),
        known: of_suite.iter().map(|it| it.name).collect::<Vec<_>>().join(", "),
    })
}

pub(crate) fn results(points: Vec<Point>, bench: &Bench) -> Results {
    let words: Vec<String> = std::env::args().collect();
    let command = match words.split_first() {
        Some((program, rest)) => {
            let name = Path::new(program).file_name().map(|name| name.to_string_lossy());
            let name = name.unwrap_or_default().into_owned();
            std::iter::once(&name).chain(rest).cloned().collect::<Vec<_>>().join(" ")
        }
        None => String::new(),
    };
    let machine = Machine::here(bench.cores());
    Results { machine, command, points, notes: bench.notes.clone(), bars: Vec::new() }
}

/// Writes the files that the options ask for, and says where they are.
pub(crate) fn write_out(
    results: &Results,
    args: &RunArgs,
    page: impl FnOnce(&Results) -> String,
) -> Result<(), BenchError> {
    if let Some(path) = &args.json {
        if args.json_to_stdout() {
            println!("{}", json(results)?);
        } else {
            write_json(path, results)?;
        }
    }
    if let Some(path) = &args.report {
        write(path, &page(results))?;
        eprintln!("report: {}", path.display());
    }
    Ok(())
}

/// Puts results that were measured one after the other into one report.
fn join(args: &ReportArgs) -> Result<ExitCode, BenchError> {
    let mut joined: Option<Results> = None;
    for path in &args.results {
        let failed = |source| BenchError::Read { path: path.clone(), source };
        let text = fs::read(path).map_err(failed)?;
        let more: Results =
            serde_json::from_slice(&text).map_err(io::Error::from).map_err(failed)?;
        match &mut joined {
            None => joined = Some(more),
            Some(all) if all.machine != more.machine => {
                let (first, path) = (args.results[0].clone(), path.clone());
                return Err(BenchError::Mixed { first, path });
            }
            Some(all) => all.append(more),
        }
    }
    if let Some(results) = joined {
        write(&args.report, &report::page(&results))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn json(results: &Results) -> io::Result<String> {
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
    make_folder(path).and_then(|()| fs::write(path, text)).map_err(failed)
}

fn make_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::create_dir_all(folder),
        _ => Ok(()),
    }
}

/// Prints one table for each experiment, and the notes.
pub(crate) fn print_tables(results: &Results, args: &RunArgs) {
    if args.json_to_stdout() {
        return;
    }
    for experiment in &EXPERIMENTS {
        let points: Vec<&Point> =
            results.points.iter().filter(|it| it.experiment == experiment.name).collect();
        if points.is_empty() {
            continue;
        }
        println!("\n{}: {}", experiment.name, experiment.title);
        for line in table(&points).lines() {
            println!("  {line}");
        }
        if let Some(table) = report::special_table(experiment.name, &points) {
            println!();
            for line in table.lines() {
                println!("  {line}");
            }
        }
        if let Some(table) = report::programs_table(&points) {
            println!("\n  readiness over completions, and placements over inline:");
            for line in table.lines() {
                println!("  {line}");
            }
        }
        if let Some(table) = report::simulation_table(&points) {
            println!("\n  simulated from measured costs:");
            for line in table.lines() {
                println!("  {line}");
            }
        }
    }
    for note in &results.notes {
        println!("note: {note}");
    }
}

/// The table of some points.
pub(crate) fn table(points: &[&Point]) -> Table {
    let mut table = Table::new(&[
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
