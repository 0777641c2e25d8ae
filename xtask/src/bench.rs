//! `cargo xtask bench`: the whole benchmark plan, one JSON file and one report per experiment.
//!
//! Read first: `docs/BENCHMARKING.md`. The measuring itself is `megapipe bench`, except for
//! `instructions`, which counts what examples of the stack do, and prints a table.

pub(crate) mod instructions;

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use crate::error::ToolError;
use crate::process;

/// One experiment.
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
    /// Instructions of the stack per connection and segment, beside smoltcp (needs valgrind)
    Instructions,
}

impl BenchExperiment {
    /// The experiment of `megapipe bench`; `None`: it is none of those.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Rpc => Some("rpc"),
            Self::Accept => Some("accept"),
            Self::Kv => Some("kv"),
            Self::Http => Some("http"),
            Self::Bars => Some("bars"),
            Self::Instructions => None,
        }
    }
}

/// Builds the release and runs the named experiments, or all of them.
pub(crate) fn run(
    root: &Path,
    experiments: &[BenchExperiment],
    quick: bool,
) -> Result<bool, ToolError> {
    let chosen =
        if experiments.is_empty() { BenchExperiment::value_variants() } else { experiments };
    let mut fine = true;
    if chosen.contains(&BenchExperiment::Instructions) {
        fine &= instructions::run(root)?;
    }
    let named: Vec<&str> = chosen.iter().filter_map(|experiment| experiment.name()).collect();
    Ok(fine & run_named(root, &named, quick)?)
}

/// Runs experiments of `megapipe bench`.
fn run_named(root: &Path, names: &[&str], quick: bool) -> Result<bool, ToolError> {
    if names.is_empty() {
        return Ok(true);
    }
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder).map_err(ToolError::file(&folder))?;
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "megapipe-cli"]);
    if !process::passes_through(&mut build)? {
        return Ok(false);
    }
    let mut fine = true;
    for name in names {
        let mut command = Command::new(root.join("target/release/megapipe"));
        command.current_dir(root).args(["bench", name]);
        command.arg("--json").arg(folder.join(name).with_extension("json"));
        command.arg("--report").arg(folder.join(name).with_extension("html"));
        if quick {
            command.arg("--quick");
        }
        fine &= process::passes_through(&mut command)?;
    }
    println!("results: {}", folder.display());
    Ok(fine)
}
