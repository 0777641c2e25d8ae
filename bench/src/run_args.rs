//! Options of every measuring subcommand: what to measure, how long, and where results go.

use crate::{
    error::BenchError,
    experiments::effort,
    layout::LinkChoice,
    limits::RUNS_MAX,
    link_name::LinkName,
    output,
    point::Results,
    run::{Bench, RpcPrograms, ServerSelection},
    stack_link::StackLink,
    trial::Effort,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use megapipe_apps::backend::BackendName;
use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

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
    /// Back end of the channel: the kernel (the default), our own stack, or both, in turn
    #[arg(long, value_parser = measured_backend(), value_delimiter = ',')]
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

/// The back ends that are measured: a daemon's is not.
fn measured_backend() -> impl TypedValueParser<Value = BackendName> {
    PossibleValuesParser::new(["kernel", "local"]).map(|name| match &*name {
        "local" => BackendName::Local,
        _ => BackendName::Kernel,
    })
}

impl RunArgs {
    /// Whether standard output is for the results as JSON, and for nothing else.
    pub(crate) fn json_to_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// The back ends to measure.
    fn backends(&self) -> &[BackendName] {
        if self.backend.is_empty() { &[BackendName::Kernel] } else { &self.backend }
    }

    /// Refuses links of a back end that `--backend` does not name. A link of the kernel's beside
    /// one of our own stack's is the layout that this one needs.
    fn check_links(&self) -> Result<(), BenchError> {
        let names = |backend| self.backend.is_empty() || self.backend.contains(&backend);
        let of_stack = self.link.iter().find(|link| link.stack().is_some());
        let of_kernel = self.link.iter().find(|link| link.layout().is_some());
        match (of_stack, of_kernel) {
            (Some(link), _) if !names(BackendName::Local) => {
                Err(BenchError::Link { link: link.name(), backend: "local" })
            }
            (None, Some(link)) if !names(BackendName::Kernel) => {
                Err(BenchError::Link { link: link.name(), backend: "kernel" })
            }
            _ => Ok(()),
        }
    }

    /// The layout that kernel and own stack share.
    fn layout(&self) -> LinkChoice {
        self.link.iter().find_map(|link| link.layout()).unwrap_or_default()
    }

    /// The measured back ends. Naming a link of the stack adds `local`.
    pub(crate) fn columns(&self) -> ServerSelection {
        let mut links: Vec<StackLink> = self.link.iter().filter_map(|link| link.stack()).collect();
        if links.is_empty() && self.backends().contains(&BackendName::Local) {
            links.push(StackLink::Memif);
        }
        let kernel = self.backends().contains(&BackendName::Kernel);
        ServerSelection { kernel, links, programs: RpcPrograms::default(), sharing: 0 }
    }

    /// These options, with `kernel` and `local` over memif by default.
    pub(crate) fn with_own_stack(&self) -> Self {
        let mut args = self.clone();
        if args.backends() == [BackendName::Kernel] && args.columns().links.is_empty() {
            args.backend = vec![BackendName::Kernel, BackendName::Local];
        }
        args
    }

    /// A bench with these options.
    pub(crate) fn bench(&self) -> Result<Bench, BenchError> {
        self.bench_of(effort(false))
    }

    /// A bench with this default duration and number of runs.
    pub(crate) fn bench_of(&self, unasked: Effort) -> Result<Bench, BenchError> {
        self.check_links()?;
        [&self.json, &self.report]
            .into_iter()
            .flatten()
            .try_for_each(|path| output::try_out(path))?;
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

    /// Writes the requested files and prints their paths.
    pub(crate) fn write_out(
        &self,
        results: &Results,
        page: impl FnOnce(&Results) -> String,
    ) -> Result<(), BenchError> {
        if let Some(path) = &self.json {
            if self.json_to_stdout() {
                println!("{}", output::json(results)?);
            } else {
                output::write_json(path, results)?;
            }
        }
        if let Some(path) = &self.report {
            output::write(path, &page(results))?;
            eprintln!("report: {}", path.display());
        }
        Ok(())
    }
}
