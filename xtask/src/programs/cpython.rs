//! CPython's own tests of sockets, and of modules that stand on them.
//!
//! Read first: `cases.py`, which runs the cases of one module.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::launcher::Launcher;
use super::{CaseResult, CaseResults, FOLDER, ForeignSuite};
use crate::error::ToolError;
use crate::process;

/// Debian's, whose tests are the package `libpython3.11-testsuite`.
const PYTHON: &str = "/usr/bin/python3.11";
const SCRIPT: &str = include_str!("cases.py");

const MODULES: [&str; 18] = [
    "test_socket",
    "test_selectors",
    "test_epoll",
    "test_poll",
    "test_select",
    "test_ssl",
    "test_httplib",
    "test_httpservers",
    "test_ftplib",
    "test_smtplib",
    "test_poplib",
    "test_imaplib",
    "test_asyncore",
    "test_asynchat",
    "test_xmlrpc",
    "test_urllib2_localnet",
    "test_subprocess",
    "test_socketserver",
];

/// Seconds that a case may take.
const CASE_SECONDS: &str = "60";
/// Time that a module may take.
const MODULE_TIME: Duration = Duration::from_secs(600);
/// Cases of a module that may end its process.
const RESTARTS_MAX: usize = 8;
/// Their sockets are the hypervisor's, of which there is one on the machine.
const LEFT_OUT: &str = "VSOCK";

pub(super) struct Cpython {
    parts: Vec<String>,
    script: PathBuf,
}

impl Cpython {
    /// # Errors
    /// The tests are not installed.
    pub(super) fn find(root: &Path) -> Result<Self, ToolError> {
        if has_tests() != Some(true) {
            let why = "libpython3.11-testsuite is not installed: cargo xtask setup";
            return Err(ToolError::Wrong(why.to_owned()));
        }
        let script = root.join(FOLDER).join("cases.py");
        fs::write(&script, SCRIPT).map_err(ToolError::file(&script))?;
        Ok(Self { parts: MODULES.map(str::to_owned).into(), script })
    }
}

/// Whether the tests are installed; `None`: that Python is not.
pub(crate) fn has_tests() -> Option<bool> {
    let mut python = Command::new(PYTHON);
    python.args(["-c", "import test.test_socket"]);
    Path::new(PYTHON).is_file().then(|| process::output_of(&mut python).is_ok())
}

impl ForeignSuite for Cpython {
    fn parts(&self) -> &[String] {
        &self.parts
    }

    fn run(&self, module: &str, launcher: &Launcher) -> Result<CaseResults, ToolError> {
        let folder = Launcher::folder()?;
        let lines = folder.path().join("results");
        let mut results = CaseResults::new();
        let mut restarts = 0;
        loop {
            let mut command = launcher.command(Path::new(PYTHON), folder.path());
            command.arg(&self.script).arg(&lines).args([CASE_SECONDS, module]);
            command.args(results.keys());
            let launched = Launcher::run(&mut command, folder.path(), MODULE_TIME)?;
            let text = fs::read_to_string(&lines).unwrap_or_default();
            results.extend(parse(&text));
            if text.lines().any(|line| line == "end") {
                break;
            }
            restarts += 1;
            if restarts > RESTARTS_MAX || launched.status.is_none() || results.is_empty() {
                let last = launched.text.lines().last().unwrap_or("no output").to_owned();
                results.insert("the module".to_owned(), CaseResult::Failed(last));
                break;
            }
        }
        results.retain(|case, _| !case.contains(LEFT_OUT));
        Ok(results)
    }
}

/// The results that the script has written. A case without one has ended its process. One with
/// several results has failed in any of them.
fn parse(text: &str) -> CaseResults {
    let mut results = CaseResults::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(3, '\t').collect();
        let result = match words[0] {
            "begin" => CaseResult::Failed("it hung, or ended the process".to_owned()),
            "ok" => CaseResult::Passed,
            "skip" => CaseResult::Skipped,
            "fail" => CaseResult::Failed(words.get(2).copied().unwrap_or_default().to_owned()),
            _ => continue,
        };
        let Some(case) = words.get(1) else { continue };
        let has_failed = words[0] != "fail"
            && matches!(results.get(*case), Some(CaseResult::Failed(why)) if !why.contains("hung"));
        if !has_failed {
            results.insert((*case).to_owned(), result);
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_the_script_are_read() {
        let text = "begin\ta\nok\ta\nbegin\tb\nfail\tb\tOSError: 9\tx\nok\tb\nbegin\tc\nskip\tc\n\
                    skip\tsetUpClass (d)\nbegin\te\n";
        let results = parse(text);
        assert_eq!(results["a"], CaseResult::Passed);
        assert_eq!(results["b"], CaseResult::Failed("OSError: 9\tx".to_owned()));
        assert_eq!(results["c"], CaseResult::Skipped);
        assert_eq!(results["setUpClass (d)"], CaseResult::Skipped);
        assert!(matches!(&results["e"], CaseResult::Failed(why) if why.contains("hung")));
    }
}
