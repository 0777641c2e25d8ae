//! The report of the preload library: each path with its reason, and the end that each kind of exit
//! leaves.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use super::{library, preloaded, run, said, site};

/// Makes sockets, refused calls and children, then ends as its argument says.
const PROGRAM: &str = r#"
import ctypes, os, signal, socket, subprocess, sys
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
signal.signal(signal.SIGTERM, signal.SIG_DFL)
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
accepted = listener.accept()[0]
libc = ctypes.CDLL(None)
assert [libc.syscall(425, 1, 0) for _ in range(3)] == [-1, -1, -1]
subprocess.run(["true"], check=True)
subprocess.run([sys.argv[2]], check=True)
child = os.fork()
if child == 0: os._exit(0)
os.waitpid(child, 0)
end = sys.argv[1]
if end == "exit": sys.exit(3)
if end == "_exit": os._exit(3)
if end == "_Exit": libc._Exit(3)
if end == "exit_group": libc.syscall(231, 3)
os.kill(os.getpid(), getattr(signal, end))
signal.pause()
"#;

/// Runs the program with a report in a file. Returns its status and the report.
fn reported(library: &Path, folder: &Path, end: &str) -> (ExitStatus, String) {
    let report = folder.join("report");
    let mut program = preloaded("python3", library, "kernel");
    program.env("MEGAPIPE_REPORT", &report);
    let (status, text) = run(program.args(["-c", PROGRAM, end]).arg(set_user_id(folder)));
    let report = std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("{error}: {text}"));
    std::fs::remove_file(folder.join("report")).expect("it is there");
    (status, report)
}

/// A program that the loader would start without the library.
fn set_user_id(folder: &Path) -> PathBuf {
    let copy = folder.join("true");
    if !copy.exists() {
        std::fs::copy("/bin/true", &copy).expect("a copy");
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).expect("it is ours");
    }
    copy
}

#[test]
fn report_lists_paths_and_ends_with_the_process() {
    let test = "report_lists_paths_and_ends_with_the_process";
    let Some(library) = library(test, &["python3"]) else { return };
    let (folder, _) = site("report");
    for end in ["exit", "_exit", "_Exit", "exit_group", "SIGTERM", "SIGKILL"] {
        if end == "exit_group" && cfg!(not(target_arch = "x86_64")) {
            continue;
        }
        let (status, report) = reported(&library, &folder, end);
        let expected = match end {
            "SIGTERM" => (None, Some(15)),
            "SIGKILL" => (None, Some(9)),
            _ => (Some(3), None),
        };
        assert_eq!((status.code(), status.signal()), expected, "{end}: {report}");
        for part in [
            ": listen 127.0.0.1:0: stack (the back end is the kernel)",
            ": connect 127.0.0.1:",
            ": accept from 127.0.0.1:",
            "/true: not preloaded (it is set-user-ID)",
            ": child of ",
        ] {
            assert!(report.contains(part), "{end}, {part}: {report}");
        }
        let ends = [
            ": sockets: 2 on the stack, 0 in the kernel, 0 on both; 3 calls and options refused",
            ": accepted: 1 from the stack, 0 in the kernel by listeners of both",
            ": refused: 3 x io_uring_setup (ENOSYS)",
            ": children: 3; programs not preloaded: 1",
        ];
        for part in ends {
            let count = report.matches(part).count();
            assert_eq!(count, usize::from(end != "SIGKILL"), "{end}, {part}: {report}");
        }
    }
    std::fs::remove_dir_all(folder).expect("it is there");
}

#[test]
fn new_environment_gets_the_settings_unless_not_followed() {
    let test = "new_environment_gets_the_settings_unless_not_followed";
    let Some(library) = library(test, &["python3", "env"]) else { return };
    let script = "import os; os.execve('/usr/bin/env', ['env'], {'A': 'b'})";
    let printed = |not_followed: &str| {
        let mut program: Command = preloaded("python3", &library, "kernel");
        program.env("MEGAPIPE_REPORT", "stderr").env("MEGAPIPE_NO_FOLLOW", not_followed);
        said(program.args(["-c", script]))
    };
    let followed = printed("0");
    assert!(followed.contains("A=b\n") && followed.contains("LD_PRELOAD="), "{followed}");
    assert!(followed.contains("MEGAPIPE_BACKEND=kernel\n"), "{followed}");
    let alone = printed("1");
    assert!(alone.contains("A=b\n") && !alone.contains("LD_PRELOAD="), "{alone}");
    assert!(alone.contains("not preloaded (--no-follow, and a new environment)"), "{alone}");
}

#[test]
fn report_that_cannot_be_written_is_one_line() {
    let test = "report_that_cannot_be_written_is_one_line";
    let Some(library) = library(test, &[]) else { return };
    let mut program = preloaded("true", &library, "kernel");
    let text = said(program.env("MEGAPIPE_REPORT", "/nonexistent/report"));
    assert!(text.starts_with("megapipe: no report: /nonexistent/report: No such file"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
