//! `cargo xtask bench`: the whole benchmark plan, one JSON file and one report per experiment.
//!
//! Read first: `docs/BENCHMARKING.md`. The measuring itself is `megapipe bench`.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use crate::error::ToolError;
use crate::process;

/// One experiment of `megapipe bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchExperiment {
    /// 64-byte ping-pong: figures 2.1, 5.1, 5.2 and table 5.1 of the paper
    Rpc,
    /// Short connections and accept queues
    Accept,
    /// Key-value: figures 5.3 and 5.4
    Kv,
    /// Files over HTTP: figure 5.5
    Http,
    /// The numbers that the project promises
    Bars,
}

impl BenchExperiment {
    fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Accept => "accept",
            Self::Kv => "kv",
            Self::Http => "http",
            Self::Bars => "bars",
        }
    }
}

/// Builds the release and runs the named experiments, or all of them.
pub(crate) fn run(
    root: &Path,
    experiments: &[BenchExperiment],
    quick: bool,
) -> Result<bool, ToolError> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder).map_err(ToolError::file(&folder))?;
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "megapipe-cli"]);
    if !process::passes_through(&mut build)? {
        return Ok(false);
    }
    let chosen =
        if experiments.is_empty() { BenchExperiment::value_variants() } else { experiments };
    let mut fine = true;
    for experiment in chosen {
        let mut command = Command::new(root.join("target/release/megapipe"));
        command.current_dir(root).args(["bench", experiment.name()]);
        command.arg("--json").arg(folder.join(experiment.name()).with_extension("json"));
        command.arg("--report").arg(folder.join(experiment.name()).with_extension("html"));
        if quick {
            command.arg("--quick");
        }
        fine &= process::passes_through(&mut command)?;
    }
    println!("results: {}", folder.display());
    Ok(fine)
}
