//! `megapipe bench …` and what it prints.

use crate::{
    accept_reset::{self, AcceptArgs, AcceptLoadArgs},
    answer_server::{self, AnswerArgs},
    bars,
    baseline::{self, BaselineArgs},
    error::BenchError,
    experiments::{EXPERIMENTS, Experiment, Suite},
    features,
    instructions::{self, SegmentKind},
    keeper::{self, KeepArgs},
    layout,
    load_process::{self, LoadProcessArgs},
    output,
    pika::{self, PikaArgs},
    point::Results,
    preload_bars::{self, NullReadArgs},
    process::{self, AwaitArgs, ExecArgs},
    report,
    run::RpcPrograms,
    run_args::RunArgs,
    scaling::{
        self,
        costs::{FrameKind, carry_frames},
    },
    service_bars::{self, NeighbourArgs},
    shard_bars, stack_bars,
    stack_link::StackPlacement,
};
use megapipe_apps::{backend::PlacementName, rpc::Api};
use std::{fs, io, path::PathBuf, process::ExitCode};

/// Options of `megapipe bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    action: BenchAction,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum BenchAction {
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
    /// The PIKA paper's experiments: load balancing among web servers, and server layouts
    ///
    /// The real hand-over and balancer code on a virtual clock, with costs that are measured
    /// before; figures 4 to 11 and tables 2 to 5.
    Pika(PikaArgs),
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
    /// Another program in a given namespace and on given cores
    #[command(hide = true)]
    Exec(ExecArgs),
    /// Another program, when there is something at a path
    #[command(hide = true)]
    Await(AwaitArgs),
    /// A server that accepts and resets
    #[command(hide = true)]
    AcceptServer(Box<AcceptArgs>),
    /// A server whose answers name its process
    #[command(hide = true)]
    AnswerServer(Box<AnswerArgs>),
    /// A program that keeps a daemon busy, an honest or a hostile one
    #[command(hide = true)]
    Neighbour(Box<NeighbourArgs>),
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
        /// Kind of frames
        kind: FrameKind,
    },
    /// Reads of the null device, timed
    #[command(hide = true)]
    NullRead(NullReadArgs),
    /// The process that tidies up after a benchmark
    #[command(hide = true)]
    Keep(KeepArgs),
}

/// Options of `megapipe bench rpc`.
#[derive(Clone, Debug, clap::Args)]
pub struct RpcRunArgs {
    /// Which of our two servers: on channels, on sockets with epoll, or both in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "channel")]
    pub server: Vec<Api>,
    /// Where the stack runs; several are measured in turn, and require --backend local
    #[arg(long, value_enum, value_delimiter = ',', default_value = "inline")]
    pub placement: Vec<PlacementName>,
    /// As for every measurement.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Options of `megapipe bench bars`.
#[derive(Clone, Debug, clap::Args)]
pub struct BarsArgs {
    /// Bars of the stack, instead of the channel on the kernel
    #[arg(long)]
    pub stack: bool,
    /// Bars of many shards, of the stack's placements, and of sockets
    #[arg(long, conflicts_with = "stack")]
    pub shards: bool,
    /// Bars of the daemon that many processes share
    #[arg(long, conflicts_with_all = ["stack", "shards"])]
    pub service: bool,
    /// Bars of unmodified programs on the kernel, on our stack, and on that of a daemon
    #[arg(long, conflicts_with_all = ["stack", "shards", "service"])]
    pub preload: bool,
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

/// Runs `megapipe bench`. Blocks until everything is measured.
///
/// # Errors
/// [`BenchError`] if nothing could be measured. Servers that failed by themselves are noted in the
/// results and make the exit code 1.
pub fn bench(args: &BenchArgs) -> Result<ExitCode, BenchError> {
    match &args.action {
        BenchAction::Rpc(args) => measure_programs(args),
        BenchAction::Accept(run) => measure(Suite::Accept, run, RpcPrograms::default()),
        BenchAction::Kv(run) => measure(Suite::Kv, run, RpcPrograms::default()),
        BenchAction::Http(run) => measure(Suite::Http, run, RpcPrograms::default()),
        BenchAction::Bulk(run) => measure(Suite::Bulk, run, RpcPrograms::default()),
        BenchAction::Latency(run) => measure(Suite::Latency, run, RpcPrograms::default()),
        BenchAction::Mtcp(run) => {
            measure(Suite::Mtcp, &run.with_own_stack(), RpcPrograms::default())
        }
        BenchAction::Pika(args) => pika::run(args),
        BenchAction::Idle(run) => measure_idle(run),
        BenchAction::Bars(args) if args.stack => stack_bars::measure(&args.run),
        BenchAction::Bars(args) if args.shards => shard_bars::measure(&args.run),
        BenchAction::Bars(args) if args.service => service_bars::measure(&args.run),
        BenchAction::Bars(args) if args.preload => preload_bars::measure(&args.run),
        BenchAction::Bars(args) => bars::measure(&args.run),
        BenchAction::Report(report) => join(report),
        BenchAction::Server(server) => serve_baseline(server),
        BenchAction::Load(load) => {
            load_process::run(load)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::AcceptServer(server) => {
            accept_reset::serve(server)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::AnswerServer(server) => {
            answer_server::serve(server)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::Neighbour(neighbour) => {
            service_bars::run_neighbour(neighbour)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::AcceptLoad(load) => {
            accept_reset::load(load)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::Segments { kind } => {
            println!("{}", instructions::carry_segments(*kind)?);
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::Frames { kind } => {
            println!("{}", carry_frames(*kind)?);
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::NullRead(args) => {
            println!("{}", preload_bars::read_null(*args)?);
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::Exec(exec) => Err(BenchError::System(process::exec(exec))),
        BenchAction::Await(it) => Err(BenchError::System(process::await_path(it))),
        BenchAction::Keep(keep) => {
            keeper::keep(keep)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn serve_baseline(args: &BaselineArgs) -> Result<ExitCode, BenchError> {
    // It is never triggered: a signal ends the process, which has no state to save.
    let stop = baseline::Stop::new()?;
    baseline::serve(args, &stop, |address| {
        println!("listening on {address}, {}", args.baseline.name());
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The rpc suite, with the selected programs and placements.
fn measure_programs(args: &RpcRunArgs) -> Result<ExitCode, BenchError> {
    let placements: Vec<_> = args.placement.iter().copied().map(StackPlacement::named).collect();
    let is_placed = placements.iter().any(Option::is_some);
    if is_placed && args.run.columns().links.is_empty() {
        return Err(BenchError::NoStack);
    }
    measure(Suite::Rpc, &args.run, RpcPrograms { apis: args.server.clone(), placements })
}

fn measure(suite: Suite, args: &RunArgs, programs: RpcPrograms) -> Result<ExitCode, BenchError> {
    let experiments = chosen(suite, &args.only)?;
    let mut bench = args.bench()?;
    if programs.placements.contains(&Some(StackPlacement::Core)) {
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
    let results = output::results(points, &bench);
    if !args.json_to_stdout() {
        output::print_tables(&results);
    }
    if suite == Suite::Mtcp && !args.json_to_stdout() {
        println!("\ntable 1: what each system does about the costs of TCP in the kernel");
        features::table().print(2);
    }
    args.write_out(&results, report::page)?;
    Ok(if bench.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Memory of idle connections, of each selected back end.
fn measure_idle(args: &RunArgs) -> Result<ExitCode, BenchError> {
    if let Some(name) = args.only.iter().find(|name| *name != "idle") {
        return Err(BenchError::UnknownExperiment { name: name.clone(), known: "idle".to_owned() });
    }
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
        output::write(&args.report, &report::page(&results))?;
    }
    Ok(ExitCode::SUCCESS)
}
