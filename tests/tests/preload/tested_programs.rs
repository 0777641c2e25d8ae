//! Records of programs that tests have run, for the table of `docs/PROGRAMS.md`.
//!
//! A test that has passed writes a file with its name below `target/tested-programs`, a line for
//! each program; `cargo xtask tested-programs` makes the table of them.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// No program is asked for its version for longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The option by which a program prints its version. A program that is not here, as memccapable,
/// might take any option for an order.
const VERSION_OPTIONS: [(&str, &str); 16] = [
    ("ab", "-V"),
    ("curl", "--version"),
    ("haproxy", "-v"),
    ("iperf3", "--version"),
    ("lighttpd", "-v"),
    ("memcached", "-V"),
    ("nginx", "-v"),
    ("pgbench", "--version"),
    ("postgres", "--version"),
    ("psql", "--version"),
    ("python3", "--version"),
    ("redis-benchmark", "--version"),
    ("redis-cli", "--version"),
    ("redis-server", "--version"),
    ("socat", "-V"),
    ("wrk", "-v"),
];

/// What a test has shown: the program, its back end, its role, and what works.
pub(super) type TestedProgram = [&'static str; 4];

/// Records what the test of this name has shown. Its last call, after everything that can fail.
pub(super) fn record(test: &str, programs: &[TestedProgram]) {
    let mut text = String::new();
    for [program, backend, role, works] in programs {
        let version = version(program);
        writeln!(text, "{program}\t{version}\t{backend}\t{role}\t{works}").expect("memory");
    }
    write(test, &text);
}

/// Prints that a test skips itself and why, and records it.
pub(super) fn skip(test: &str, why: &str) {
    println!("skipped: {test}: {why}");
    write(test, "skipped\n");
}

fn write(test: &str, text: &str) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let folder = target.join("tested-programs");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(test), text).expect("a file");
}

/// The path of a program: Debian has those of PostgreSQL's server in a folder for each version.
pub(super) fn located(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = folders.chain(versions.map(|version| version.path().join("bin")));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The version of a program's Debian package, or the one that the program prints; `unknown` where
/// there is neither. A program of no package is marked.
fn version(program: &str) -> String {
    let path = located(program);
    let package = path.as_deref().and_then(package);
    let of_package = package.as_ref().and_then(|package| {
        let mut query = Command::new("dpkg-query");
        printed_version(query.args(["-W", "-f", "${Version}", package]))
    });
    let printed = || {
        let (_, option) = VERSION_OPTIONS.iter().find(|(name, _)| *name == program)?;
        printed_version(Command::new(path.as_ref()?).arg(option))
    };
    let version = of_package.or_else(printed).unwrap_or_else(|| "unknown".to_owned());
    let mark = if package.is_some() { "" } else { " (no package)" };
    format!("{version}{mark}")
}

/// The Debian package of a file, or of the file that it is a link to.
fn package(path: &Path) -> Option<String> {
    let target = path.canonicalize().ok()?;
    [path, &target].into_iter().find_map(|path| {
        let owner = answer(Command::new("dpkg-query").arg("-S").arg(path))?;
        owner_in(&owner, path).map(str::to_owned)
    })
}

/// The package in a line `PACKAGE: PATH` or `PACKAGE:ARCHITECTURE: PATH`.
fn owner_in<'a>(text: &'a str, path: &Path) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(": "));
    let (package, _) =
        lines.find(|(package, of)| Path::new(of) == path && !package.starts_with("diversion "))?;
    package.split([':', ',']).next()
}

fn printed_version(command: &mut Command) -> Option<String> {
    version_in(&answer(command)?).map(str::to_owned)
}

/// What a program prints within the time that it has; it need not succeed.
fn answer(command: &mut Command) -> Option<String> {
    let (mut reader, writer) = std::io::pipe().ok()?;
    let errors = writer.try_clone().ok()?;
    let child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn();
    // The command keeps the pipe's writing end otherwise, and reading never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.ok()?;
    let (answered, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if reader.read_to_end(&mut bytes).is_ok() {
            // After the time nothing receives it.
            let _ = answered.send(String::from_utf8_lossy(&bytes).into_owned());
        }
    });
    let text = answer.recv_timeout(ANSWER_TIME_MAX).ok();
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
    text
}

/// The first number with a point in it, with the rest of its word that is digits and points.
fn version_in(text: &str) -> Option<&str> {
    let is_part = |it: char| it.is_ascii_digit() || it == '.';
    let words = text.split(|it| !is_part(it)).map(|word| word.trim_matches('.'));
    words.into_iter().find(|word| word.contains('.'))
}

#[test]
fn version_is_found_in_what_programs_print() {
    let printed = [
        ("nginx version: nginx/1.22.1\n", "1.22.1"),
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "7.0.15"),
        ("socat - see www.dest-unreach.org\nsocat version 1.7.4.4 on", "1.7.4.4"),
        ("iperf 3.12 (cJSON 1.7.15)", "3.12"),
        ("HAProxy version 2.6.12-1+deb12u2 2025/04/28", "2.6.12"),
        ("5:7.0.15-1~deb12u10", "7.0.15"),
    ];
    for (text, version) in printed {
        assert_eq!(version_in(text), Some(version));
    }
    assert_eq!(version_in("usage: program 3. arguments"), None);
}

#[test]
fn version_of_an_unknown_program_is_unknown() {
    assert_eq!(version("no-such-program"), "unknown (no package)");
    assert_eq!(version_in("248+deb12u1"), None);
}

#[test]
fn package_is_the_owner_of_the_path() {
    let path = Path::new("/usr/bin/curl");
    assert_eq!(owner_in("curl: /usr/bin/curl\n", path), Some("curl"));
    let diverted = "diversion by one from: /usr/bin/curl\ntwo:amd64: /usr/bin/curl\n";
    assert_eq!(owner_in(diverted, path), Some("two"));
    assert_eq!(owner_in("dpkg-query: no path found matching pattern /usr/bin/curl\n", path), None);
}

#[test]
fn program_that_does_not_end_has_no_answer() {
    assert_eq!(answer(Command::new("sleep").arg("60")), None);
    assert_eq!(answer(Command::new("cat").arg("-")).as_deref(), Some(""));
    assert_eq!(answer(&mut Command::new("/no/such/program")), None);
}
