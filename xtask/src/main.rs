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
//! | `lines` | lines of code of each crate |
//! | `scripts` | runs packet scripts, on our stack and on Linux |
//! | `programs` | runs foreign test suites under the preload library |
//! | `tested-programs` | writes, or with `--check` compares, the table of tested programs |
//!
//! Read first: `ci.rs`, then `tidy.rs`.
//!
//! Invariants: no command changes a tracked file except `header` and `tested-programs` without
//! `--check`; every failure ends in a non-zero exit status.

#![forbid(unsafe_code)]

mod bench;
mod ci;
mod error;
mod header;
mod install;
mod limits;
mod lines;
mod process;
mod programs;
mod scripts;
mod setup;
mod sim;
mod tested_programs;
mod tidy;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::ToolError;

/// The project's own tools.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct CommandLine {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Run everything that must pass before a change lands
    Ci {
        /// Only these steps
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(ci::step_names()))]
        steps: Vec<String>,
        /// The short loop: house rules, formatting, clippy, the C header, unit tests
        #[arg(long, conflicts_with = "steps")]
        quick: bool,
    },
    /// Install what the tests need and this machine lacks
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
        only: Option<install::InstallPart>,
    },
    /// Run simulated worlds of many hosts by their seeds
    Sim {
        /// Run only this seed, and print its decisions
        #[arg(long)]
        seed: Option<u64>,
        /// Run this many seeds from 0 on
        #[arg(long, default_value_t = 200)]
        fixed: u64,
        /// Run this many seeds that were never run before
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
        experiments: Vec<bench::BenchExperiment>,
    },
    /// Count lines of code of each crate, without comments, blank lines and tests
    ///
    /// Tests are items under #[cfg(test)], files named tests.rs, files in folders named tests or
    /// benches, and the modules conformance, invariants and models, which only tests use. sim, fuzz
    /// and examples, which only test or show the crates, follow below the total.
    Lines {
        /// Compare with this revision
        revision: Option<String>,
    },
    /// Run packet scripts on our stack and on Linux
    Scripts {
        /// Instead of those of tests/scripts
        files: Vec<PathBuf>,
    },
    /// Run a foreign test suite without and with the preload library, and compare the results
    Programs {
        suite: programs::SuiteName,
        /// Only these parts: modules of Python, groups or single cases of libevent and libuv
        parts: Vec<String>,
        /// Use this library instead of building one
        #[arg(long)]
        library: Option<PathBuf>,
    },
    /// Write the table of docs/PROGRAMS.md from what the tests have recorded
    TestedPrograms {
        /// Write nothing; fail when the table differs, versions apart
        #[arg(long)]
        check: bool,
        /// Write the table also if it loses rows of tests that have not run, or skipped
        #[arg(long, conflicts_with = "check")]
        drop_missing: bool,
    },
}

fn main() -> ExitCode {
    match run(&CommandLine::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command; `false` means that it ran and found something wrong.
fn run(command: &XtaskCommand) -> Result<bool, ToolError> {
    let root = workspace::root()?;
    match command {
        XtaskCommand::Ci { steps, quick } => ci::run(&root, steps, *quick),
        XtaskCommand::Setup => setup::run(&root),
        XtaskCommand::Tidy => tidy::run(&root),
        XtaskCommand::Header { check: true } => header::check(&root),
        XtaskCommand::Header { check: false } => header::write(&root),
        XtaskCommand::Install { prefix, profile, only } => {
            install::run(&root, prefix, profile, *only)
        }
        XtaskCommand::Sim { seed, fixed, fresh } => sim::run(&root, *seed, *fixed, *fresh),
        XtaskCommand::Lines { revision } => lines::run(&root, revision.as_deref()),
        XtaskCommand::Scripts { files } => scripts::run(&root, files),
        XtaskCommand::Programs { suite, parts, library } => {
            programs::run(&root, *suite, parts, library.as_deref())
        }
        XtaskCommand::TestedPrograms { check: true, .. } => tested_programs::check(&root),
        XtaskCommand::TestedPrograms { check: false, drop_missing } => {
            tested_programs::write(&root, *drop_missing)
        }
        XtaskCommand::Bench { quick, experiments } => bench::run(&root, experiments, *quick),
    }
}
