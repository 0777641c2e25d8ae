//! `cargo xtask programs`: foreign test suites under the preload library, compared with plain runs.
//!
//! In: the cases of a suite, run without the library, on the back end `kernel` and on `local`. Out:
//! a line for each part of the suite, and each case that passes without the library and not with
//! it. Known ones stand in `tests/programs/differences.txt`, with a reason; one that passes is an
//! error, too, so that the list can only shrink. Read first: `docs/PROGRAMS.md`.
//!
//! - `cpython.rs`: Python's suite.
//! - `single_cases.rs`: libevent's and libuv's, whose cases have a process each.
//! - `debian_source.rs`: source packages, built below `target/programs`.
//! - `launcher.rs`: a program in a network namespace of its own, with or without the library.
//! - `differences.rs`: the list.
//!
//! Invariants
//! - No program reaches a network: its namespace has a loopback device alone.
//! - Each case has a time limit; what runs into it has failed, and the other cases run.

mod cpython;
mod debian_source;
mod differences;
mod launcher;
mod single_cases;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;

use clap::ValueEnum;

use crate::error::ToolError;
use crate::install::{self, InstallPart};
use crate::process;
pub(crate) use cpython::has_tests as has_python_tests;
use differences::KnownDifferences;
use launcher::{Launcher, RunMode};
use single_cases::SingleCases;

/// Folder of everything that these commands build and install.
const FOLDER: &str = "target/programs";

/// A test suite of other people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SuiteName {
    /// CPython 3.11's tests of sockets and of what stands on them (libpython3.11-testsuite)
    Cpython,
    /// libevent's regress, built from Debian's source package
    Libevent,
    /// libuv's run-tests, built from Debian's source package
    Libuv,
}

/// What became of one case.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CaseResult {
    Passed,
    Skipped,
    Failed(String),
}

/// Results of the cases of a part.
type CaseResults = BTreeMap<String, CaseResult>;

/// A suite that can run.
trait ForeignSuite: Sync {
    /// Its parts, which run one after another.
    fn parts(&self) -> &[String];
    /// Runs the cases of one part.
    fn run(&self, part: &str, launcher: &Launcher) -> Result<CaseResults, ToolError>;
}

/// Runs a suite, or some parts of it, without the library and on both back ends. `library`: the one
/// to use instead of building it. Returns whether there is no unknown difference.
pub(crate) fn run(
    root: &Path,
    name: SuiteName,
    parts: &[String],
    library: Option<&Path>,
) -> Result<bool, ToolError> {
    let launcher = launcher(root, library)?;
    let suite: Box<dyn ForeignSuite> = match name {
        SuiteName::Cpython => Box::new(cpython::Cpython::find(root)?),
        SuiteName::Libevent => Box::new(SingleCases::libevent(root)?),
        SuiteName::Libuv => Box::new(SingleCases::libuv(root)?),
    };
    let name = name.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned());
    let known = KnownDifferences::read(root, &name)?;
    let mut outcome = SuiteOutcome::default();
    let all = if parts.is_empty() { suite.parts() } else { parts };
    for part in all {
        outcome.add(part, &compare(&*suite, part, &launcher, &known)?, &known);
    }
    Ok(outcome.finish())
}

/// Whether programs can run in network namespaces of their own.
pub(crate) fn has_network_namespaces() -> bool {
    let mut probe = launcher::in_namespace();
    process::output_of(probe.arg("true")).is_ok()
}

/// Builds what starts programs.
fn launcher(root: &Path, library: Option<&Path>) -> Result<Launcher, ToolError> {
    let mut build = process::cargo(root);
    build.args(["build", "--quiet", "--locked", "--package", "megapipe-cli"]);
    process::output_of(&mut build)?;
    let library = match library {
        Some(library) => library.to_path_buf(),
        None => {
            let prefix = root.join(FOLDER).join("prefix");
            install::run(root, &prefix, "dev", Some(InstallPart::Library))?;
            prefix.join("lib/megapipe/libmegapipe-preload.so")
        }
    };
    let folder: PathBuf = root.join(FOLDER);
    Launcher::new(root.join("target/debug/megapipe"), library, &folder)
}

/// The results of a part in each mode, in the order of [`RunMode::ALL`].
type PartResults = [CaseResults; 3];

/// Runs a part in each mode at once. What differs runs once more: a busy machine may be the cause.
fn compare(
    suite: &dyn ForeignSuite,
    part: &str,
    launcher: &Launcher,
    known: &KnownDifferences,
) -> Result<PartResults, ToolError> {
    let run = |mode: RunMode| suite.run(part, &launcher.with_mode(mode));
    let [plain, kernel, local] = thread::scope(|scope| {
        RunMode::ALL
            .map(|mode| scope.spawn(move || run(mode)))
            .map(|running| running.join().expect("a suite does not panic"))
    });
    let plain = plain?;
    let again = |mode: RunMode, mut results: CaseResults| {
        let is_unknown = |case: &str| !known.has(mode, case);
        if differing(&plain, &results).any(|(case, _)| is_unknown(case)) {
            let second = run(mode)?;
            results.extend(second.into_iter().filter(|(_, it)| *it == CaseResult::Passed));
        }
        Ok::<_, ToolError>(results)
    };
    let kernel = again(RunMode::Kernel, kernel?)?;
    let local = again(RunMode::Local, local?)?;
    Ok([plain, kernel, local])
}

/// The cases that pass in a plain run and not here, with what they did.
fn differing<'a>(
    plain: &'a CaseResults,
    results: &'a CaseResults,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let passed = plain.iter().filter(|(_, result)| **result == CaseResult::Passed);
    passed.filter_map(|(case, _)| match results.get(case) {
        Some(CaseResult::Passed) => None,
        Some(CaseResult::Failed(why)) => Some((case.as_str(), why.as_str())),
        Some(CaseResult::Skipped) => Some((case.as_str(), "skipped")),
        None => Some((case.as_str(), "did not run")),
    })
}

/// What a suite has shown so far.
#[derive(Debug, Default)]
struct SuiteOutcome {
    passed: [usize; 3],
    known: usize,
    wrong: Vec<String>,
}

impl SuiteOutcome {
    fn add(&mut self, part: &str, results: &PartResults, known: &KnownDifferences) {
        let mut line = format!("{part:<24}");
        for (mode, (of_mode, sum)) in
            RunMode::ALL.into_iter().zip(results.iter().zip(&mut self.passed))
        {
            let count = |wanted: fn(&CaseResult) -> bool| {
                of_mode.values().filter(|result| wanted(result)).count()
            };
            let passed = count(|it| *it == CaseResult::Passed);
            let skipped = count(|it| *it == CaseResult::Skipped);
            *sum += passed;
            let failed = of_mode.len() - passed - skipped;
            line.push_str(&format!(" {mode}: {passed} ok {skipped} skipped {failed} failed;"));
        }
        println!("{}", line.trim_end_matches(';'));
        for (mode, of_mode) in RunMode::ALL.into_iter().zip(results).skip(1) {
            for (case, why) in differing(&results[0], of_mode) {
                match known.has(mode, case) {
                    true => self.known += 1,
                    false => self.wrong.push(format!("{mode} {case}: {why}")),
                }
            }
            for case in known.of(mode) {
                if of_mode.get(case) == Some(&CaseResult::Passed) {
                    let file = differences::FILE;
                    self.wrong.push(format!("{mode} {case}: passes; take it out of {file}"));
                }
            }
        }
    }

    fn finish(self) -> bool {
        for line in &self.wrong {
            println!("differs: {line}");
        }
        let [plain, kernel, local] = self.passed;
        println!(
            "passed: {plain} plain, {kernel} on kernel, {local} on local; {} known differences, {} \
             unknown",
            self.known,
            self.wrong.len()
        );
        self.wrong.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(all: &[(&str, CaseResult)]) -> CaseResults {
        all.iter().map(|(case, result)| ((*case).to_owned(), result.clone())).collect()
    }

    #[test]
    fn differences_are_cases_that_pass_plain_alone() {
        let failed = || CaseResult::Failed("it broke".to_owned());
        let plain = results(&[
            ("a", CaseResult::Passed),
            ("b", failed()),
            ("c", CaseResult::Passed),
            ("d", CaseResult::Passed),
            ("e", CaseResult::Passed),
        ]);
        let here = results(&[
            ("a", CaseResult::Passed),
            ("b", failed()),
            ("c", failed()),
            ("d", CaseResult::Skipped),
        ]);
        let found: Vec<_> = differing(&plain, &here).collect();
        assert_eq!(found, [("c", "it broke"), ("d", "skipped"), ("e", "did not run")]);
        let known = KnownDifferences::parse("s", "s kernel c: why\ns local a: why\n").unwrap();
        let mut outcome = SuiteOutcome::default();
        outcome.add("part", &[plain, here.clone(), here], &known);
        assert_eq!((outcome.passed, outcome.known), ([4, 1, 1], 1));
        // Two on kernel, three on local, and the one that passes.
        assert_eq!(outcome.wrong.len(), 6, "{:?}", outcome.wrong);
        assert!(!outcome.finish());
    }
}
