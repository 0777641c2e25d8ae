//! `cargo xtask ci`: all checks that a change must pass, in one command.
//!
//! One line per step with its time; a step that fails shows its output; the last line alone is
//! `N passed, N failed, N skipped`, and above it stand the reason for every skip and what failed.
//!
//! Read first: `docs/TESTING.md` for how a test says that it skips itself; `ci/tally.rs` for how
//! the counts are taken from what the tests print.
//!
//! Invariants
//! - A step that fails adds at least one to the failed count, so the exit status follows the count.
//! - No step needs root, a terminal or standard input.

mod display;
mod foreign_suites;
mod fuzz;
mod instructions;
mod interleavings;
mod lanes;
mod no_os;
mod package;
mod suites;
mod tally;
mod together;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::ci::display::Display;
use crate::ci::lanes::Tick;
use crate::ci::tally::{TestCounts, TestTally};
use crate::error::ToolError;
use crate::process::{self, ProcessEnd};
use crate::{header, sim, tested_programs, tidy};

/// What became of one step.
struct StepOutcome {
    counts: TestCounts,
    /// Shown under the step's line when it failed.
    output: Vec<String>,
    /// Beside the step's time: "312 passed", "no findings".
    note: String,
}

impl StepOutcome {
    /// A step, or an independent part of one.
    fn check(name: &str, fine: bool, output: Vec<String>) -> Self {
        let is_error = |line: &&String| {
            let line = line.trim_start();
            line.starts_with("error") || line.starts_with("FAILED")
        };
        let error = output.iter().find(is_error);
        let why = error.or_else(|| output.last()).map_or("", |line| line.trim());
        let failures = if fine { Vec::new() } else { vec![format!("{name}: {why}")] };
        let counts = TestCounts { passed: fine.into(), failures, skips: Vec::new() };
        Self { counts, output, note: String::new() }
    }

    /// A step that ran tests.
    fn counted(counts: TestCounts, output: Vec<String>) -> Self {
        let note = format!(
            "{} passed, {} failed, {} skipped",
            counts.passed,
            counts.failures.len(),
            counts.skips.len()
        );
        Self { counts, output, note }
    }

    fn skip(step: &str, why: &str) -> Self {
        let skips = vec![format!("{step}: {why}")];
        Self {
            counts: TestCounts { passed: 0, failures: Vec::new(), skips },
            output: Vec::new(),
            note: "skipped".to_owned(),
        }
    }
}

/// The steps in their order: cheap ones first, so that a slip is seen soon.
type Step = (&'static str, fn(&Path, &mut Display) -> Result<StepOutcome, ToolError>);
const STEPS: &[Step] = &[
    ("tidy", tidy_step),
    ("fmt", fmt),
    ("deny", deny),
    ("clippy", clippy),
    ("header", header_step),
    ("package", package::check),
    ("doc", doc),
    ("build", build),
    ("no-os", no_os::check),
    ("test", suites::run),
    ("tested", tested_step),
    ("programs", foreign_suites::check),
    ("miri", interleavings::miri),
    ("fuzz", fuzz::smoke),
    ("sim", sim_step),
    ("loom", interleavings::loom),
    ("instructions", instructions::check),
];

/// The short loop while working: what finds most mistakes in a few minutes.
const QUICK: &[Step] = &[
    ("tidy", tidy_step),
    ("fmt", fmt),
    ("clippy", clippy_default),
    ("header", header_step),
    ("test", suites::run_units),
];

/// The last ones, which run side by side: Miri uses one processor only.
const TOGETHER: [&str; 5] = ["miri", "fuzz", "sim", "loom", "instructions"];

/// What the steps are called.
pub(crate) fn step_names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|(name, _)| *name)
}

/// Runs all steps, those that are named, or those of the short loop, also after a failure. Returns
/// whether all passed.
pub(crate) fn run(root: &Path, only: &[String], is_quick: bool) -> Result<bool, ToolError> {
    let start = Instant::now();
    let mut total = TestCounts::default();
    let is_asked = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
    let mut running = BTreeMap::new();
    let steps = if is_quick { QUICK } else { STEPS };
    for step in steps.iter().filter(|(name, _)| is_asked(name)) {
        let name = step.0;
        if TOGETHER.contains(&name) && running.is_empty() {
            let steps = STEPS.iter().filter(|(name, _)| TOGETHER.contains(name) && is_asked(name));
            running = together::start(root, steps.copied().collect());
        }
        let outcome = match running.remove(name) {
            Some(step) => step.finish(),
            None => run_now(root, *step),
        };
        if !outcome.counts.failures.is_empty() {
            for line in &outcome.output {
                println!("    {line}");
            }
        }
        total.add(outcome.counts);
    }
    println!("{:<8} {:>6.1} s", "all", start.elapsed().as_secs_f64());
    for skip in &total.skips {
        println!("skipped: {skip}");
    }
    for failure in &total.failures {
        println!("failed: {failure}");
    }
    let failed = total.failures.len();
    println!("{} passed, {failed} failed, {} skipped", total.passed, total.skips.len());
    Ok(failed == 0)
}

/// What became of a step, also of one that could not be run.
fn outcome_of((name, step): Step, root: &Path, display: &mut Display) -> StepOutcome {
    step(root, display)
        .unwrap_or_else(|error| StepOutcome::check(name, false, vec![error.to_string()]))
}

fn run_now(root: &Path, step: Step) -> StepOutcome {
    let mut display = Display::start(step.0);
    let outcome = outcome_of(step, root, &mut display);
    display.end(display.elapsed(), outcome.counts.failures.is_empty(), &outcome.note);
    outcome
}

/// Runs one command as one check.
fn command(command: &mut Command, display: &mut Display) -> Result<StepOutcome, ToolError> {
    checked(command, &mut |line| display.tick(line))
}

fn checked(command: &mut Command, tick: Tick<'_>) -> Result<StepOutcome, ToolError> {
    let watched = process::watch(command, tick)?;
    let mut output = watched.output;
    if let ProcessEnd::Stopped(why) = &watched.end {
        output.push(format!("stopped: {why}"));
    }
    Ok(StepOutcome::check(&process::describe(command), watched.end == ProcessEnd::Success, output))
}

fn tidy_step(root: &Path, _: &mut Display) -> Result<StepOutcome, ToolError> {
    let findings: Vec<String> = tidy::findings(root)?.iter().map(ToString::to_string).collect();
    Ok(StepOutcome::check("tidy", findings.is_empty(), findings))
}

fn fmt(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    command(process::cargo(root).args(["fmt", "--all", "--", "--check"]), display)
}

fn deny(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    if process::output_of(process::cargo(root).args(["deny", "--version"])).is_err() {
        return Ok(StepOutcome::skip(
            "deny",
            "cargo-deny is not installed; `cargo xtask setup` does",
        ));
    }
    let mut deny = process::cargo(root);
    // Not `advisories`: its database comes from a host that is no package registry.
    deny.args(["deny", "--workspace", "--locked", "check", "licenses", "bans", "sources"]);
    command(&mut deny, display)
}

fn lint(root: &Path, extra: &[&str], display: &mut Display) -> Result<StepOutcome, ToolError> {
    let mut clippy = process::cargo(root);
    clippy.args(["clippy", "--locked"]).args(extra);
    command(clippy.args(["--", "-D", "warnings"]), display)
}

fn clippy_default(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    lint(root, &["--workspace", "--all-targets"], display)
}

fn clippy(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    // A build of the workspace unites the features that its packages want of each other: without
    // our stack, the channel has to build alone. The preload library wants system calls by the
    // names of the C library, which nothing else that uses the crate for them is built for.
    let variants: [&[&str]; 5] = [
        &["--workspace", "--all-targets"],
        &["--workspace", "--all-targets", "--no-default-features"],
        &["--workspace", "--all-targets", "--all-features", "--exclude", "megapipe-preload"],
        &["--package", "megapipe-preload", "--all-targets", "--all-features"],
        &["--package", "megapipe", "--all-targets", "--no-default-features"],
    ];
    for variant in variants {
        let outcome = lint(root, variant, display)?;
        if !outcome.counts.failures.is_empty() {
            return Ok(outcome);
        }
    }
    Ok(StepOutcome::check("clippy", true, Vec::new()))
}

fn header_step(root: &Path, _: &mut Display) -> Result<StepOutcome, ToolError> {
    let drift = header::drift(root)?;
    Ok(StepOutcome::check("header", drift.is_none(), drift.into_iter().collect()))
}

/// After the tests, which record the programs that they have run.
fn tested_step(root: &Path, _: &mut Display) -> Result<StepOutcome, ToolError> {
    if !tested_programs::has_records(root)? {
        return Ok(StepOutcome::skip("tested", "no test has recorded a program"));
    }
    let findings = tested_programs::findings(root)?;
    Ok(StepOutcome::check("tested", findings.is_empty(), findings))
}

fn doc(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    let mut doc = process::cargo(root);
    doc.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    command(doc.env("RUSTDOCFLAGS", "-D warnings"), display)
}

/// The same seeds each time, and some that were never run before.
fn sim_step(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    const FIXED: u64 = 200;
    const FRESH: u64 = 50;
    command(&mut sim::command(root, FIXED, FRESH), display)
}

/// The binaries and libraries, which the tests of other packages run.
fn build(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    command(process::cargo(root).args(["build", "--workspace", "--locked"]), display)
}

/// Runs a command that runs tests, and counts them by what they print. `suite` names them in what
/// is said of failures.
fn counted(suite: &str, command: &mut Command, tick: Tick<'_>) -> Result<StepOutcome, ToolError> {
    let mut tally = TestTally::of(suite);
    let watched = process::watch(command, |line| {
        tick(line);
        if let Some(line) = line {
            tally.line(line);
        }
    })?;
    let why = match &watched.end {
        ProcessEnd::Success => return Ok(StepOutcome::counted(tally.finish(), Vec::new())),
        ProcessEnd::Failure if tally.has_failures() => {
            let output = tally.output();
            return Ok(StepOutcome::counted(tally.finish(), output));
        }
        // It did not compile, or died on a signal: it printed no summary line.
        ProcessEnd::Failure => "ended without a result",
        ProcessEnd::Stopped(why) => why,
    };
    let mut output = watched.output;
    output.push(format!("^ {suite}: {why}"));
    Ok(StepOutcome::counted(tally.break_off(why), output))
}
