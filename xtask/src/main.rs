//! `cargo xtask`: the project's own tools. Rust is the only script language here.
//!
//! | command | what it does |
//! |---|---|
//! | `ci` | everything that must pass before a change lands; `make test` runs it |
//! | `setup` | installs what the whole test suite wants and the machine lacks |
//! | `tidy` | the house rules that no compiler checks |
//! | `install` | the command, the C library, their manuals and completions below a prefix |
//! | `header` | writes, or with `--check` compares, the C header |
//! | `sim` | runs simulated worlds of many hosts by their seeds |
//! | `bench` | runs the whole benchmark plan into `target/bench/` |
//! | `scripts` | runs packet scripts, on our stack and on Linux |
//!
//! Read first: `ci.rs`, then `tidy.rs`.
//!
//! Invariants: no command changes a tracked file except `header` without `--check`; every failure
//! ends in a non-zero exit status.

#![forbid(unsafe_code)]

mod bench;
mod ci;
mod error;
mod header;
mod install;
mod limits;
mod process;
mod scripts;
mod setup;
mod sim;
mod tidy;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Error;

/// The project's own tools.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run everything that must pass before a change lands
    Ci {
        /// Only these steps
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(ci::step_names()))]
        steps: Vec<String>,
    },
    /// Install what the tests want and this machine lacks
    Setup,
    /// Check the house rules that no compiler checks
    Tidy,
    /// Write the C header from the Rust sources
    Header {
        /// Write nothing; fail when the committed header differs
        #[arg(long)]
        check: bool,
    },
    /// Build the command and the C library, and install them with manuals and completions
    Install {
        /// Below this folder: bin, include, lib, share
        #[arg(long)]
        prefix: PathBuf,
        /// The cargo profile to build with
        #[arg(long, default_value = "release")]
        profile: String,
        /// Install one part only
        #[arg(long, value_enum)]
        only: Option<install::Part>,
    },
    /// Run simulated worlds of many hosts by their seeds
    Sim {
        /// Run this seed alone, and say what it decides
        #[arg(long)]
        seed: Option<u64>,
        /// Run so many seeds from 0 on
        #[arg(long, default_value_t = 200)]
        fixed: u64,
        /// Run so many seeds that were never run before
        #[arg(long, default_value_t = 50)]
        fresh: u64,
    },
    /// Run the benchmark plan into target/bench
    Bench {
        /// Shorter runs, fewer points
        #[arg(long)]
        quick: bool,
        /// Only these experiments
        #[arg(value_enum)]
        experiments: Vec<bench::Experiment>,
    },
    /// Run packet scripts on our stack and on Linux
    Scripts {
        /// Instead of those of tests/scripts
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command; `false` means that it ran and found something wrong.
fn run(command: &Command) -> Result<bool, Error> {
    let root = workspace::root()?;
    match command {
        Command::Ci { steps } => ci::run(&root, steps),
        Command::Setup => setup::run(&root),
        Command::Tidy => tidy::run(&root),
        Command::Header { check: true } => header::check(&root),
        Command::Header { check: false } => header::write(&root),
        Command::Install { prefix, profile, only } => install::run(&root, prefix, profile, *only),
        Command::Sim { seed, fixed, fresh } => sim::run(&root, *seed, *fixed, *fresh),
        Command::Scripts { files } => scripts::run(&root, files),
        Command::Bench { quick, experiments } => bench::run(&root, experiments, *quick),
    }
}
