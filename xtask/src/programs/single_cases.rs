//! Suites of C programs that run one case by its name: each case has a process of its own.
//!
//! - `libevent`: `regress`, whose parts are its groups.
//! - `libuv`: `run-tests`, whose parts are the first words of its cases' names.
//!
//! A part may also be the name of one case.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::debian_source::DebianSource;
use super::launcher::{Launched, Launcher};
use super::{CaseResult, CaseResults, ForeignSuite};
use crate::error::ToolError;
use crate::process;

/// Time that a case may take. The suites have limits of their own below it.
const CASE_TIME: Duration = Duration::from_secs(100);

/// The part of the cases whose first word few others have.
const OTHERS: &str = "others";
/// Cases that make a part.
const PART_MIN: usize = 4;

const LIBEVENT: DebianSource = DebianSource {
    package: "libevent",
    options: &[
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DEVENT__LIBRARY_TYPE=SHARED",
        "-DEVENT__DISABLE_OPENSSL=ON",
        "-DEVENT__DISABLE_BENCHMARK=ON",
        "-DEVENT__DISABLE_SAMPLES=ON",
    ],
    target: "regress",
    program: "bin/regress",
    changes: &[],
};

const LIBUV: DebianSource = DebianSource {
    package: "libuv1",
    options: &["-DCMAKE_BUILD_TYPE=Debug", "-DBUILD_TESTING=ON", "-DLIBUV_BUILD_TESTS=ON"],
    target: "uv_run_tests",
    program: "uv_run_tests",
    // Runs side by side have folders of their own, in which these sockets then lie.
    changes: &[("test/task.h", "\"/tmp/uv-test-sock", "\"./uv-test-sock")],
};

/// How a suite's program is used.
struct CaseProgram {
    source: DebianSource,
    /// The option that lists the cases.
    list: &'static str,
    /// Arguments before the name of a case.
    arguments: &'static [&'static str],
    /// Variables that it needs.
    variables: &'static [(&'static str, &'static str)],
    /// The name of the case that a line of the list has.
    case_of: fn(&str) -> Option<&str>,
    /// What ends the first word of a case's name.
    separator: char,
    judge: fn(&Launched) -> CaseResult,
    /// What the names of cases start with that fail plainly now and then.
    left_out: &'static [&'static str],
}

pub(super) struct SingleCases {
    program: PathBuf,
    kind: CaseProgram,
    parts: Vec<String>,
    /// The cases of each part.
    cases: BTreeMap<String, Vec<String>>,
}

impl SingleCases {
    /// # Errors
    /// The program cannot be had.
    pub(super) fn libevent(root: &Path) -> Result<Self, ToolError> {
        let kind = CaseProgram {
            source: LIBEVENT,
            list: "--list-tests",
            arguments: &["--timeout", "60"],
            variables: &[],
            case_of: case_of_libevent,
            separator: '/',
            judge: judge_libevent,
            // They measure the resolution of clocks.
            left_out: &["util/monotonic_"],
        };
        Self::find(root, kind)
    }

    /// # Errors
    /// As [`Self::libevent`].
    pub(super) fn libuv(root: &Path) -> Result<Self, ToolError> {
        let kind = CaseProgram {
            source: LIBUV,
            list: "--list",
            arguments: &[],
            variables: &[("UV_RUN_AS_ROOT", "1"), ("UV_TEST_TIMEOUT_MULTIPLIER", "3")],
            case_of: case_of_libuv,
            separator: '_',
            judge: judge_libuv,
            left_out: &[],
        };
        Self::find(root, kind)
    }

    fn find(root: &Path, kind: CaseProgram) -> Result<Self, ToolError> {
        let program = kind.source.program(root)?;
        let mut list = Command::new(&program);
        list.arg(kind.list).envs(kind.variables.iter().copied());
        let text = process::output_of(&mut list)?;
        let is_wanted = |name: &&str| !kind.left_out.iter().any(|start| name.starts_with(start));
        let names: Vec<&str> = text.lines().filter_map(kind.case_of).filter(is_wanted).collect();
        let cases = by_part(&names, kind.separator);
        Ok(Self { program, kind, parts: cases.keys().cloned().collect(), cases })
    }

    fn run_case(&self, case: &str, launcher: &Launcher) -> Result<CaseResult, ToolError> {
        let folder = Launcher::folder()?;
        let mut command = launcher.command(&self.program, folder.path());
        command.args(self.kind.arguments).arg(case);
        command.envs(self.kind.variables.iter().copied());
        let launched = Launcher::run(&mut command, folder.path(), CASE_TIME)?;
        Ok((self.kind.judge)(&launched))
    }
}

impl ForeignSuite for SingleCases {
    fn parts(&self) -> &[String] {
        &self.parts
    }

    fn run(&self, part: &str, launcher: &Launcher) -> Result<CaseResults, ToolError> {
        let one = [part.to_owned()];
        let cases = self.cases.get(part).map_or(&one[..], Vec::as_slice);
        let run = |case: &String| Ok((case.clone(), self.run_case(case, launcher)?));
        cases.iter().map(run).collect()
    }
}

/// Cases by the first word of their names. Words that few have make one part together.
fn by_part(names: &[&str], separator: char) -> BTreeMap<String, Vec<String>> {
    let mut parts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let word = |name: &&str| name.split(separator).next().unwrap_or_default().to_owned();
    for name in names {
        let word = word(name);
        let count = names.iter().filter(|name| name.split(separator).next() == Some(&word)).count();
        let part = if count < PART_MIN { OTHERS.to_owned() } else { word };
        parts.entry(part).or_default().push((*name).to_owned());
    }
    parts
}

/// The list has a line for each case, with what is special of it after two blanks.
fn case_of_libevent(line: &str) -> Option<&str> {
    let name = line.strip_prefix("    ")?;
    (name.contains('/') && !name.contains(' ')).then_some(name)
}

fn case_of_libuv(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

/// The last line that says something, for people.
fn last_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next_back().unwrap_or("no output").to_owned()
}

fn judge_libevent(launched: &Launched) -> CaseResult {
    let has = |word| launched.text.contains(word);
    match launched.status {
        None => CaseResult::Failed("it took too long".to_owned()),
        Some(status) if status.success() && (has("SKIPPED") || has("DISABLED")) => {
            CaseResult::Skipped
        }
        Some(status) if status.success() => CaseResult::Passed,
        Some(status) => {
            let failed = launched.text.lines().find(|line| line.contains("FAIL "));
            let why =
                failed.map_or_else(|| last_line(&launched.text), |line| line.trim().to_owned());
            CaseResult::Failed(format!("{status}: {why}"))
        }
    }
}

/// The program prints the result as TAP, and ends with 0 also after a failure of some cases.
fn judge_libuv(launched: &Launched) -> CaseResult {
    let mut lines = launched.text.lines();
    let result = lines.find(|line| line.starts_with("ok ") || line.starts_with("not ok "));
    match (launched.status, result) {
        (None, _) => CaseResult::Failed("it took too long".to_owned()),
        (_, Some(line)) if line.starts_with("ok ") => match line.contains("# SKIP") {
            true => CaseResult::Skipped,
            false => CaseResult::Passed,
        },
        (_, Some(_)) => {
            let lines = launched.text.lines().filter(|line| line.starts_with("# "));
            let why: Vec<&str> = lines.map(|line| line.trim_start_matches("# ")).collect();
            let last = last_line(&launched.text);
            CaseResult::Failed(format!("{}: {last}", why.first().unwrap_or(&"failed")))
        }
        (Some(status), None) => {
            CaseResult::Failed(format!("{status}: {}", last_line(&launched.text)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn launched(status: Option<i32>, text: &str) -> Launched {
        let status = status.map(|code| ExitStatus::from_raw(code << 8));
        Launched { status, text: text.to_owned() }
    }

    #[test]
    fn lists_of_cases_are_read() {
        assert_eq!(case_of_libevent("    http/basic"), Some("http/basic"));
        assert_eq!(case_of_libevent("    http/slow   (Off by default)"), None);
        assert_eq!(case_of_libevent("Known tests are:"), None);
        assert_eq!(
            case_of_libuv("tcp_ref3          (helpers: tcp4_echo_server)"),
            Some("tcp_ref3")
        );
        let names = ["a_1", "a_2", "a_3", "a_4", "b", "c_1"];
        let parts = by_part(&names, '_');
        assert_eq!(parts["a"], ["a_1", "a_2", "a_3", "a_4"]);
        assert_eq!(parts[OTHERS], ["b", "c_1"]);
    }

    #[test]
    fn results_of_libevent_are_read() {
        let passed = launched(Some(0), "util/x: OK\n1 tests ok.  (0 skipped)\n");
        assert_eq!(judge_libevent(&passed), CaseResult::Passed);
        let skipped = launched(Some(0), "util/x: SKIPPED\n0 tests ok.  (1 skipped)\n");
        assert_eq!(judge_libevent(&skipped), CaseResult::Skipped);
        let failed = launched(Some(1), "util/x: \n  FAIL a.c:1: assert(x)\n  [x FAILED]\n");
        let why = "exit status: 1: FAIL a.c:1: assert(x)".to_owned();
        assert_eq!(judge_libevent(&failed), CaseResult::Failed(why));
        assert!(matches!(judge_libevent(&launched(None, "")), CaseResult::Failed(_)));
    }

    #[test]
    fn results_of_libuv_are_read() {
        assert_eq!(judge_libuv(&launched(Some(0), "ok 1 - a\n")), CaseResult::Passed);
        let skipped = launched(Some(7), "ok 1 - a # SKIP no IPv6\n");
        assert_eq!(judge_libuv(&skipped), CaseResult::Skipped);
        let failed = launched(Some(1), "not ok 1 - a\n# exit code 6\n# Output\nAssertion x\n");
        let why = "exit code 6: Assertion x".to_owned();
        assert_eq!(judge_libuv(&failed), CaseResult::Failed(why));
        let died = launched(Some(125), "megapipe run: no link\n");
        assert!(matches!(judge_libuv(&died), CaseResult::Failed(why) if why.contains("no link")));
    }
}
