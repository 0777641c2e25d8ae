//! The tests of all packages: built by one cargo, then several test programs at a time.
//!
//! Most suites wait more than they compute: for a peer, a time-out, a link that comes up. Run one
//! after the other, as `cargo test` does, they leave more than half of two cores idle.
//!
//! Read first: `ci/tally.rs` for how results are counted.
//!
//! Invariants
//! - Each suite runs as cargo would run it: in its package's folder, with its own count of threads.
//! - Every suite that was built is run, and counted once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use super::{Display, StepOutcome, lanes};
use crate::error::ToolError;
use crate::limits;
use crate::process::{self, ProcessEnd};
use crate::tested_programs;

/// Suites that take longest, by the name of their target. They start first, so that none of them
/// runs alone at the end.
const LONGEST: [&str; 4] = ["interop", "channel", "sockets", "bench"];

/// A program of tests, or the documentation's examples.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TestSuite {
    /// `megapipe-link tests/conformance/main.rs`, for people.
    name: String,
    target: String,
    /// `None`: cargo runs it.
    program: Option<PathBuf>,
    folder: PathBuf,
}

impl TestSuite {
    /// The command that runs it and prints what `TestTally` reads.
    fn command(&self, root: &Path) -> Command {
        let Some(program) = &self.program else {
            let mut doc = process::cargo(root);
            doc.args(["test", "--workspace", "--doc", "--no-fail-fast", "--locked"]);
            doc.args(["--", "--show-output"]);
            return doc;
        };
        let mut command = Command::new(program);
        command.arg("--show-output").current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds every suite and runs them.
pub(super) fn run(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    tested_programs::forget(root)?;
    run_built(root, &[], display)
}

/// Builds and runs the unit tests of all libraries and programs.
pub(super) fn run_units(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    run_built(root, &["--lib", "--bins"], display)
}

/// Builds and runs the suites that cargo selects by these options.
fn run_built(
    root: &Path,
    targets: &[&str],
    display: &mut Display,
) -> Result<StepOutcome, ToolError> {
    let suites = match build(root, targets, display)? {
        Ok(suites) => suites,
        Err(said) => return Ok(StepOutcome::check("test", false, said)),
    };
    let times = Mutex::new(Vec::new());
    let (counts, output) = lanes::run(suites, limits::SUITE_LANES, display, |suite, tick| {
        let start = Instant::now();
        let outcome = super::counted(&suite.name, &mut suite.command(root), tick);
        let took = start.elapsed().as_secs();
        times.lock().unwrap_or_else(PoisonError::into_inner).push((took, suite.target.clone()));
        outcome
    });
    let mut outcome = StepOutcome::counted(counts, output);
    let times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.note.push_str(&format!("; longest: {}", longest(times)));
    Ok(outcome)
}

/// The suites that took longest, with their seconds: where a minute could be had.
fn longest(mut times: Vec<(u64, String)>) -> String {
    times.sort_by(|one, other| other.cmp(one));
    times.truncate(LONGEST.len() + 2);
    let words: Vec<String> = times.iter().map(|(took, name)| format!("{name} {took} s")).collect();
    words.join(", ")
}

/// Compiles the tests of these targets, of all if there are none. `Err` within: the compiler's
/// output.
fn build(
    root: &Path,
    targets: &[&str],
    display: &mut Display,
) -> Result<Result<Vec<TestSuite>, Vec<String>>, ToolError> {
    let mut build = process::cargo(root);
    build.args(["test", "--workspace", "--no-run", "--locked"]).args(targets);
    build.args(["--message-format", "json-render-diagnostics"]);
    let mut suites = Vec::new();
    let watched = process::watch(&mut build, |line| match line.and_then(suite_of) {
        Some(suite) => suites.push(suite),
        None => display.tick(line.filter(|line| !line.starts_with('{'))),
    })?;
    if watched.end != ProcessEnd::Success {
        let said = |line: &String| !line.starts_with('{');
        return Ok(Err(watched.output.into_iter().filter(said).collect()));
    }
    if targets.is_empty() {
        suites.push(TestSuite {
            name: "examples in the documentation".to_owned(),
            target: "doc".to_owned(),
            program: None,
            folder: root.to_owned(),
        });
    }
    // Stable: what is not among the longest keeps cargo's order.
    suites.sort_by_key(|suite| {
        LONGEST.iter().position(|long| *long == suite.target).unwrap_or(LONGEST.len())
    });
    Ok(Ok(suites))
}

/// The test program that one of cargo's messages names.
fn suite_of(line: &str) -> Option<TestSuite> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let program = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let shown = source.strip_prefix(folder).unwrap_or(source).display();
    let package = folder.file_name()?.to_string_lossy();
    Some(TestSuite {
        name: format!("{package} {shown}"),
        target: message["target"]["name"].as_str()?.to_owned(),
        program: Some(program.into()),
        folder: folder.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact",
        "manifest_path":"/w/crates/link/Cargo.toml",
        "target":{"kind":["test"],"name":"conformance",
        "src_path":"/w/crates/link/tests/conformance/main.rs"},
        "profile":{"test":true},"executable":"/w/target/debug/deps/conformance-0123"}"#;

    #[test]
    fn a_test_program_is_known_by_cargos_message() {
        let suite = suite_of(&MESSAGE.replace('\n', "")).expect("it is one");
        assert_eq!(suite.name, "link tests/conformance/main.rs");
        assert_eq!(suite.target, "conformance");
        assert_eq!(suite.program, Some("/w/target/debug/deps/conformance-0123".into()));
        assert_eq!(suite.folder, Path::new("/w/crates/link"));
    }

    #[test]
    fn longest_suites_are_listed_first() {
        let times = [(3, "link"), (200, "interop"), (90, "channel")];
        let told = longest(times.map(|(took, name)| (took, name.to_owned())).to_vec());
        assert_eq!(told, "interop 200 s, channel 90 s, link 3 s");
    }

    #[test]
    fn programs_that_are_no_tests_are_not_run() {
        let built = MESSAGE.replace('\n', "").replace("\"test\":true", "\"test\":false");
        assert_eq!(suite_of(&built), None);
        let library = MESSAGE.replace("\"/w/target/debug/deps/conformance-0123\"", "null");
        assert_eq!(suite_of(&library.replace('\n', "")), None);
        assert_eq!(suite_of("   Compiling megapipe-link"), None);
    }
}
