//! Counting tests from what `cargo test -- --show-output` prints.
//!
//! libtest has no stable machine-readable output, so this reads its closing lines
//! (`test result: ok. 3 passed; …`), its `ignored` lines, and the blocks of output that it prints
//! per test. A test that cannot run here prints `skipped: NAME: WHY` and returns; it is then a skip
//! and not a pass. `docs/TESTING.md` tells test authors the rule.
//!
//! Invariant: passed + failed + skipped is at least the number of tests that libtest ran, and a
//! test is never both passed and skipped.

use std::collections::BTreeSet;

/// What a step, or all of them, came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// `NAME: WHY` of each skip.
    pub(super) skips: Vec<String>,
}

impl Counts {
    /// Adds another step's counts.
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skips.extend(other.skips);
    }
}

/// Reads lines, counts, and keeps what failing tests printed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: Counts,
    /// The test whose block of output is being read.
    section: Option<String>,
    /// Within libtest's `failures:` part.
    in_failures: bool,
    failures: Vec<String>,
    /// The binary that runs now, as cargo names it.
    suite: String,
    /// Skips seen in the current binary, so that a line printed twice counts once.
    seen: BTreeSet<String>,
    /// Tests of the current binary that skipped themselves: libtest counts them as passed.
    skipped_whole: BTreeSet<String>,
}

impl Tally {
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
        } else if let Some((name, why)) = ignored(trimmed) {
            self.counts.skips.push(format!("{name}: {why}"));
        } else if let Some(name) = section_of(trimmed) {
            self.section = Some(name.to_owned());
        } else if trimmed == "successes:" || trimmed == "failures:" {
            self.in_failures = trimmed == "failures:";
            self.section = None;
        } else if let Some(skip) = trimmed.strip_prefix("skipped: ") {
            self.skip(skip);
        }
        let is_failure = self.in_failures || trimmed.starts_with("error: test failed");
        if is_failure && !trimmed.is_empty() {
            self.failures.push(line.to_owned());
        }
    }

    /// What failing tests printed, each binary's part under its name.
    pub(super) fn failures(&self) -> Vec<String> {
        self.failures.clone()
    }

    /// The counts; call it after the last line.
    pub(super) fn finish(self) -> Counts {
        self.counts
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
        let failed = count("failed");
        self.counts.passed += count("passed").saturating_sub(self.skipped_whole.len());
        self.counts.failed += failed;
        if failed > 0 {
            self.failures.push(format!("^ {}", self.suite));
        }
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

/// `test name ... ignored` with an optional `, reason`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let why = rest.strip_prefix(", ").unwrap_or("marked as ignored");
    Some((name, why))
}

#[cfg(test)]
mod tests;
