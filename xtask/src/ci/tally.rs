//! Counting tests from what `cargo test -- --show-output` prints.
//!
//! libtest has no stable machine-readable output, so this reads its closing lines
//! (`test result: ok. 3 passed; …`), its `ignored` lines, and the blocks of output that it prints
//! per test. A test that cannot run here prints `skipped: NAME: WHY` and returns; it is then a skip
//! and not a pass. `docs/TESTING.md` tells test authors the rule.
//!
//! Invariants
//! - Passed + failed + skipped is at least the number of tests that libtest ran, and a test is
//!   never both passed and skipped.
//! - Each failure has a line that names it, so that the end of a log tells what failed.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// Characters of a failure's reason in the list at the end; the whole stands under its step.
const REASON_CHARS: usize = 300;

/// What a step, or all of them, came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    /// `SUITE: TEST: WHERE AND WHY` of each failure, or a step's name.
    pub(super) failures: Vec<String>,
    /// `NAME: WHY` of each skip.
    pub(super) skips: Vec<String>,
}

impl TestCounts {
    /// Adds another step's counts.
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
    }
}

/// Reads lines, counts, and keeps what failing tests printed.
#[derive(Debug, Default)]
pub(super) struct TestTally {
    counts: TestCounts,
    /// The test whose block of output is being read.
    section: Option<String>,
    /// Within libtest's `failures:` part.
    in_failures: bool,
    /// What failing tests printed.
    output: Vec<String>,
    /// Where each failing test of the current binary panicked, and its message.
    panics: BTreeMap<String, String>,
    /// The failing tests of the current binary, from the list that libtest ends with.
    failed: Vec<String>,
    /// Tests of the current binary that have passed, by the lines of each.
    ended_well: usize,
    /// Tests of the current binary that libtest calls slow and that have not ended yet.
    slow: BTreeSet<String>,
    /// The binary that runs now, as cargo names it.
    suite: String,
    /// Skips seen in the current binary, so that a line printed twice counts once.
    seen: BTreeSet<String>,
    /// Tests of the current binary that skipped themselves: libtest counts them as passed.
    skipped_whole: BTreeSet<String>,
}

impl TestTally {
    /// Counts what `suite` prints, until it names another itself.
    pub(super) fn of(suite: &str) -> Self {
        Self { suite: suite.to_owned(), ..Self::default() }
    }

    /// Takes the next line of output.
    pub(super) fn line(&mut self, line: &str) {
        let trimmed = line.trim();
        if let Some(suite) = suite_of(trimmed) {
            self.suite = suite.to_owned();
            self.section = None;
        } else if let Some(result) = trimmed.strip_prefix("test result: ") {
            self.close(result);
        } else if let Some((name, fine)) = result_of(trimmed) {
            self.slow.remove(name);
            self.ended_well += usize::from(fine);
        } else if let Some(name) = slow_one(trimmed) {
            self.slow.insert(name.to_owned());
        } else if let Some((name, why)) = ignored(trimmed) {
            self.counts.skips.push(format!("{name}: {why}"));
        } else if let Some(name) = section_of(trimmed) {
            self.section = Some(name.to_owned());
        } else if trimmed == "successes:" || trimmed == "failures:" {
            self.in_failures = trimmed == "failures:";
            self.section = None;
            self.failed.clear();
        } else if let Some(skip) = trimmed.strip_prefix("skipped: ") {
            self.skip(skip);
        }
        let is_failure = self.in_failures || trimmed.starts_with("error: test failed");
        if is_failure && !trimmed.is_empty() {
            self.output.push(line.to_owned());
            self.failure(line);
        }
    }

    /// What failing tests printed, each binary's part under its name.
    pub(super) fn output(&self) -> Vec<String> {
        self.output.clone()
    }

    /// Whether a summary line has reported failures.
    pub(super) fn has_failures(&self) -> bool {
        !self.counts.failures.is_empty()
    }

    /// The counts of a program that ended by itself; call it after the last line.
    pub(super) fn finish(self) -> TestCounts {
        self.counts
    }

    /// The counts of a program that was stopped or died before its closing line: what had passed,
    /// and one failure for each test that had run for long, or for the whole.
    pub(super) fn break_off(mut self, why: &str) -> TestCounts {
        self.counts.passed += self.ended_well;
        let suite = &self.suite;
        let unended = self.slow.iter().map(|test| format!("{suite}: {test}: not ended: {why}"));
        self.counts.failures.extend(unended);
        if self.slow.is_empty() {
            self.counts.failures.push(format!("{suite}: {why}"));
        }
        self.counts
    }

    /// A line of libtest's `failures:` part: the panic of a test, or the name of one.
    fn failure(&mut self, line: &str) {
        let Some(test) = &self.section else {
            // Names are indented; the blocks before them belong to a section.
            self.failed.extend(line.strip_prefix("    ").map(str::to_owned));
            return;
        };
        match (self.panics.get_mut(test), line.split_once(" panicked at ")) {
            (None, Some((_, place))) => {
                self.panics.insert(test.clone(), place.to_owned());
            }
            // The message is in the next line.
            (Some(said), _) if said.ends_with(':') => *said = format!("{said} {}", line.trim()),
            _ => {}
        }
    }

    /// `skipped: TEST: WHY` or `skipped: WHY` in a test's own block skips that test; another name,
    /// or `TEST on CASE`, is a case within a test that has passed otherwise.
    fn skip(&mut self, text: &str) {
        let Some(test) = self.section.clone() else {
            self.record(text.to_owned());
            return;
        };
        let short = test.rsplit("::").next().unwrap_or(&test);
        match text.split_once(": ") {
            Some((name, why)) if name == test || name == short => self.skip_whole(test, why),
            Some((name, _)) if !name.contains(' ') || name.starts_with(&format!("{short} ")) => {
                self.record(text.to_owned());
            }
            _ => self.skip_whole(test, text),
        }
    }

    fn skip_whole(&mut self, test: String, why: &str) {
        self.record(format!("{test}: {why}"));
        self.skipped_whole.insert(test);
    }

    fn record(&mut self, skip: String) {
        if self.seen.insert(skip.clone()) {
            self.counts.skips.push(skip);
        }
    }

    /// One binary is done: `ok. 3 passed; 0 failed; 1 ignored; …`.
    fn close(&mut self, result: &str) {
        let count = |word: &str| {
            let part = result.split([';', '.']).map(str::trim).find(|part| part.ends_with(word));
            let number = part.and_then(|part| part.split(' ').next());
            number.and_then(|number| number.parse::<usize>().ok()).unwrap_or(0)
        };
        self.counts.passed += count("passed").saturating_sub(self.skipped_whole.len());
        let mut failed = mem::take(&mut self.failed);
        failed.resize(count("failed"), "a test that was not named".to_owned());
        for test in &failed {
            let said = self.panics.get(test).map_or("", String::as_str);
            let said: String = said.chars().take(REASON_CHARS).collect();
            self.counts.failures.push(format!("{}: {test}: {said}", self.suite));
        }
        if !failed.is_empty() {
            self.output.push(format!("^ {}", self.suite));
        }
        self.panics.clear();
        self.slow.clear();
        self.ended_well = 0;
        self.in_failures = false;
        self.section = None;
        self.seen.clear();
        self.skipped_whole.clear();
    }
}

/// `Running unittests src/lib.rs (target/…)` and `Doc-tests megapipe`.
fn suite_of(line: &str) -> Option<&str> {
    line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests "))
}

/// `---- name stdout ----`
fn section_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// `test name ... ok` or `... FAILED`: the name, and whether it passed.
fn result_of(line: &str) -> Option<(&str, bool)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    matches!(result, "ok" | "FAILED").then_some((name, result == "ok"))
}

/// `test name has been running for over 60 seconds`
fn slow_one(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(' ')?;
    rest.starts_with("has been running for over ").then_some(name)
}

/// `test name ... ignored` with an optional `, reason`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let why = rest.strip_prefix(", ").unwrap_or("marked as ignored");
    Some((name, why))
}

#[cfg(test)]
mod tests;
