//! `megapipe bench pika`: the experiments of the PIKA paper.
//!
//! The simulation (`scaling/service.rs`) runs the real hand-over and balancer code with costs that
//! are measured first. `pika/messages.rs`, `pika/managers.rs`, `pika/throughput.rs`,
//! `pika/imbalance.rs` and `pika/small.rs` are the experiments, each a function from costs to a
//! [`Figure`].
//!
//! Invariants
//! - Every number carries its source: measured, simulated, or the paper's.
//! - One seed and the same costs give one result.

mod costs;
mod imbalance;
mod managers;
mod messages;
mod small;
mod throughput;

use crate::{
    error::BenchError,
    figure::{Figure, FigureTable},
    layout, limits, output,
    point::{Machine, Results},
    progress::PlanProgress,
    promise::BarResult,
    report,
    scaling::{
        clock::Time,
        service::{
            Clients, ConnectionDistribution, ServiceOutcome, ServiceWorld, Slowness,
            simulate_service,
        },
        service_costs::{MeasuredService, manager_costs},
    },
    table::{TextTable, print_wrapped, rounded},
};
use costs::CostCache;
use megapipe_service::{
    balancer::{OfferRule, Scheme},
    layout::{Component, ServerLayout},
};
use std::{path::PathBuf, process::ExitCode};

/// Options of `megapipe bench pika`.
#[derive(Clone, Debug, clap::Args)]
pub struct PikaArgs {
    /// Only the experiment of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the experiments, and run none
    #[arg(long, conflicts_with_all = ["only", "json", "report"])]
    list: bool,
    /// Shorter simulations, fewer rounds of the measured costs
    #[arg(long)]
    quick: bool,
    /// Seed of the simulated clients and of the balancer's picks
    #[arg(long, value_name = "N", default_value_t = limits::SIMULATED_SEED)]
    seed: u64,
    /// Write the results to this file as JSON; `-` writes to standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a report with plots to this file as HTML
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// One experiment.
struct PikaExperiment {
    name: &'static str,
    title: &'static str,
    run: fn(&mut Pika, &mut Figure),
}

/// In the paper's order.
static EXPERIMENTS: [PikaExperiment; 17] = [
    PikaExperiment {
        name: "table1",
        title: "Cache misses on one socket and across sockets",
        run: messages::table1,
    },
    PikaExperiment { name: "table2", title: "Round trips of messages", run: messages::table2 },
    PikaExperiment {
        name: "fig4a",
        title: "Requests a second over cores, short connections",
        run: throughput::fig4a,
    },
    PikaExperiment {
        name: "fig4b",
        title: "Requests a second over cores, kept connections",
        run: throughput::fig4b,
    },
    PikaExperiment {
        name: "table3",
        title: "Offers between connection managers",
        run: managers::table3,
    },
    PikaExperiment {
        name: "fig5",
        title: "Service time percentiles under imbalanced load",
        run: imbalance::fig5,
    },
    PikaExperiment {
        name: "fig6a",
        title: "Service time of each web server over time",
        run: imbalance::fig6a,
    },
    PikaExperiment {
        name: "fig6b",
        title: "Estimated service time of each web server over time",
        run: imbalance::fig6b,
    },
    PikaExperiment {
        name: "fig7",
        title: "Service time percentiles of five schemes under imbalanced load",
        run: imbalance::fig7,
    },
    PikaExperiment {
        name: "fig8",
        title: "Connections a second of five schemes over cores, uniform load",
        run: throughput::fig8,
    },
    PikaExperiment {
        name: "fig9",
        title: "Throughput of each web server over time under imbalanced load",
        run: imbalance::fig9,
    },
    PikaExperiment {
        name: "fig10",
        title: "Connections of web server #7 that its own manager assigned",
        run: imbalance::fig10,
    },
    PikaExperiment {
        name: "fig11",
        title: "Connections a second by server layout",
        run: throughput::fig11,
    },
    PikaExperiment {
        name: "table4",
        title: "Time to establish a connection, one client",
        run: managers::table4,
    },
    PikaExperiment {
        name: "table5",
        title: "Time to establish a connection, full load",
        run: managers::table5,
    },
    PikaExperiment {
        name: "small",
        title: "Figures 5 to 7, measured on this machine's cores",
        run: small::small,
    },
    PikaExperiment { name: "jain", title: "Shares of four equal web servers", run: managers::jain },
];

/// What is not available yet, and why.
const MISSING: [(&str, &str); 1] = [(
    "fig12",
    "cachegrind simulates one cache for all threads of a process, and the servers are threads",
)];

/// Context of the experiments.
struct Pika {
    costs: CostCache,
    quick: bool,
    seed: u64,
    cpu_mhz: u64,
    bars: Vec<BarResult>,
}

/// Runs `megapipe bench pika`.
///
/// # Errors
/// [`BenchError`]: an unknown name, a file that cannot be written, or costs that could not be
/// measured.
pub(crate) fn run(args: &PikaArgs) -> Result<ExitCode, BenchError> {
    if args.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = chosen(&args.only)?;
    [&args.json, &args.report]
        .into_iter()
        .flatten()
        .filter(|path| path.as_os_str() != "-")
        .try_for_each(|path| output::try_out(path))?;
    let cpus = layout::online_cpus()?;
    let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else {
        return Err(BenchError::UnknownExperiment {
            name: "pika".to_owned(),
            known: "none without a core".to_owned(),
        });
    };
    let mut progress = PlanProgress::new(chosen.len() + 1);
    progress.step("costs");
    let rounds = if args.quick { limits::PIKA_ROUNDS_QUICK } else { limits::PIKA_ROUNDS };
    let measured = MeasuredService::measure(&vec![first].into(), &vec![last].into(), rounds)?;
    let machine = Machine::here(cpus.len());
    let mut pika = Pika {
        costs: CostCache::new(measured, manager_costs),
        quick: args.quick,
        seed: args.seed,
        cpu_mhz: machine.cpu_mhz,
        bars: Vec::new(),
    };
    let mut figures = Vec::new();
    for experiment in chosen {
        progress.step(experiment.name);
        let (name, title) = (experiment.name.to_owned(), experiment.title.to_owned());
        let mut figure = Figure { name, title, ..Figure::default() };
        (experiment.run)(&mut pika, &mut figure);
        figures.push(figure);
    }
    progress.finish();
    let results = pika.results(machine, figures, cpus.len());
    write_results(&results, args, &pika.bars)?;
    let is_missed = pika.bars.iter().any(|bar| bar.met() == Some(false));
    Ok(if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn list() {
    let mut table = TextTable::new(&["name", "what"]);
    for experiment in &EXPERIMENTS {
        table.row([experiment.name.to_owned(), experiment.title.to_owned()]);
    }
    table.print(0);
    for (name, why) in MISSING {
        print_wrapped("", &format!("not available yet: {name}: {why}"));
    }
}

fn chosen(only: &[String]) -> Result<Vec<&'static PikaExperiment>, BenchError> {
    if only.is_empty() {
        return Ok(EXPERIMENTS.iter().collect());
    }
    let find = |name| EXPERIMENTS.iter().find(|it| it.name == name).ok_or(name);
    let names = only.iter().map(String::as_str);
    names.map(find).collect::<Result<_, _>>().map_err(|name: &str| {
        let missing = MISSING.iter().find(|(known, _)| *known == name);
        let known: Vec<&str> = EXPERIMENTS.iter().map(|it| it.name).collect();
        let known = match missing {
            Some((name, why)) => format!("{} ({name}: {why})", known.join(", ")),
            None => known.join(", "),
        };
        BenchError::UnknownExperiment { name: name.to_owned(), known }
    })
}

fn write_results(results: &Results, args: &PikaArgs, bars: &[BarResult]) -> Result<(), BenchError> {
    match &args.json {
        Some(path) if path.as_os_str() == "-" => println!("{}", output::json(results)?),
        Some(path) => output::write_json(path, results)?,
        None => {}
    }
    if args.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        print_figures(results, bars);
    }
    if let Some(path) = &args.report {
        output::write(path, &report::page_with_bars(results, bars))?;
        eprintln!("report: {}", path.display());
    }
    Ok(())
}

fn print_figures(results: &Results, bars: &[BarResult]) {
    for figure in &results.figures {
        println!();
        print_wrapped("", &format!("{}: {}", figure.name, figure.title));
        for table in &figure.tables {
            terminal_table(table).print(2);
        }
        for text in [Some(&figure.finding), figure.why.as_ref(), Some(&figure.paper)] {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                print_wrapped("  ", text);
            }
        }
    }
    if !bars.is_empty() {
        println!();
        let mut table = TextTable::new(&["bar", "what", "bound", "value", "met"]);
        for bar in bars {
            let met = if bar.met() == Some(true) { "yes" } else { "no" };
            let cells = [bar.name, &bar.what_text(), &bar.bound_text(), &bar.measured_text(), met];
            table.row(cells.map(str::to_owned));
        }
        table.print(0);
    }
    for note in &results.notes {
        print_wrapped("note: ", note);
    }
}

fn terminal_table(table: &FigureTable) -> TextTable {
    let mut heading = vec![table.rows_are.as_str(), "source"];
    heading.extend(table.columns.iter().map(String::as_str));
    let mut out = TextTable::new(&heading);
    for row in &table.rows {
        let values = row.values.iter().map(|value| rounded(*value));
        out.row([row.label.clone(), row.source.name().to_owned()].into_iter().chain(values));
    }
    out
}

impl Pika {
    /// Runs a simulation with the costs of its number of managers.
    fn simulate(&mut self, world: &ServiceWorld) -> ServiceOutcome {
        let managers = world.layout.count(Component::Manager);
        simulate_service(&self.costs.of(managers), world)
    }

    /// As many web servers as transport servers, each on its core; uniform load in a closed loop.
    fn uniform(&self, layout: ServerLayout, scheme: Scheme) -> ServiceWorld {
        let scale = if self.quick { 3 } else { 1 };
        ServiceWorld {
            applications: layout.count(Component::Transport),
            layout,
            distribution: ConnectionDistribution::Balanced(scheme),
            in_turn: false,
            offer_rule: OfferRule::default(),
            clients: Clients::Closed(limits::PIKA_CLIENTS),
            requests: Some(1),
            work: 0,
            slowness: Vec::new(),
            warm_up: milliseconds(30) / scale,
            duration: milliseconds(100) / scale,
            bin: milliseconds(10),
            seed: self.seed,
        }
    }

    /// The imbalanced load of figures 5 to 7, 9 and 10.
    fn imbalanced(&self, distribution: ConnectionDistribution) -> ServiceWorld {
        ServiceWorld {
            distribution,
            clients: Clients::Open(limits::PIKA_RATE),
            work: microseconds(limits::PIKA_WORK_US),
            slowness: slow_web_servers(1),
            warm_up: 0,
            duration: milliseconds(5_000),
            bin: milliseconds(50),
            ..self.uniform(combined(8), Scheme::default())
        }
    }

    fn results(&self, machine: Machine, figures: Vec<Figure>, cores: usize) -> Results {
        let mut notes = vec![self.costs.note()];
        if cores < 2 {
            notes.push("one core: messages were measured between threads that share it".to_owned());
        }
        let missing = MISSING.iter().map(|(name, why)| format!("not available yet: {name}: {why}"));
        notes.extend(missing);
        notes.push(format!("imbalanced load: {}", imbalance_text()));
        Results {
            machine,
            command: output::command_line(),
            points: Vec::new(),
            notes,
            bars: self.bars.iter().map(BarResult::record).collect(),
            figures,
        }
    }
}

const fn milliseconds(count: u64) -> Time {
    count * 1_000_000_000
}

const fn microseconds(count: u64) -> Time {
    count * 1_000_000
}

/// A combined layout of `count` servers.
fn combined(count: u16) -> ServerLayout {
    ServerLayout::combined(count).expect("1 to 256 servers")
}

/// Web server, from and until in milliseconds, added work for each request in microseconds.
const SLOW: [(usize, u64, u64, u64); 4] =
    [(1, 500, 1_000, 1_000), (3, 1_500, 4_000, 2_000), (5, 0, 5_000, 500), (7, 3_000, 5_000, 30)];

/// The slow web servers, with `scale` times the added work.
fn slow_web_servers(scale: u64) -> Vec<Slowness> {
    let slowness = |(number, from, until, added): (usize, u64, u64, u64)| Slowness {
        application: number - 1,
        from: milliseconds(from),
        until: milliseconds(until),
        added: microseconds(added * scale),
    };
    SLOW.into_iter().map(slowness).collect()
}

/// The slow web servers in words, with `scale` times the added work.
fn slow_text(scale: u64) -> String {
    let each = SLOW.iter().map(|(number, from, until, added)| {
        let (from, until) = (*from as f64 / 1e3, *until as f64 / 1e3);
        format!("#{number} {} µs more from {from} to {until} s", added * scale)
    });
    each.collect::<Vec<String>>().join(", ")
}

/// The imbalanced load in words.
fn imbalance_text() -> String {
    format!(
        "8 servers TS8LS8CM8, 8 web servers, {} connections a second for 5 s, one request each; a \
         request is {} µs of work, and of web server {}",
        limits::PIKA_RATE,
        limits::PIKA_WORK_US,
        slow_text(1)
    )
}

#[cfg(test)]
mod tests;
