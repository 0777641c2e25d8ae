//! Records of programs that tests have run, for the table of `docs/PROGRAMS.md`.
//!
//! A test that has passed writes a file with its name below `target/tested-programs`, a line for
//! each program; `cargo xtask tested-programs` makes the table of them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The version that a program prints, or that of its Debian package.
fn version(program: &str) -> String {
    let path = located(program).expect("it has run");
    // A program that does not know the option prints its usage and fails; `wrk -v` fails as well.
    for must_succeed in [true, false] {
        for option in ["--version", "-v", "-V"] {
            if let Some(version) = printed_version(Command::new(&path).arg(option), must_succeed) {
                return version;
            }
        }
    }
    // `PACKAGE: PATH`
    let owner = Command::new("dpkg-query").arg("-S").arg(&path).output().expect("a Debian");
    let owner = String::from_utf8_lossy(&owner.stdout).into_owned();
    let package = owner.split(':').next().unwrap_or_default();
    let mut query = Command::new("dpkg-query");
    let version = printed_version(query.args(["-W", "-f", "${Version}", package]), true);
    version.unwrap_or_else(|| panic!("{program} has no version"))
}

fn printed_version(command: &mut Command, must_succeed: bool) -> Option<String> {
    let output = command.output().ok().filter(|it| it.status.success() || !must_succeed)?;
    let text = [output.stdout, output.stderr].concat();
    version_in(&String::from_utf8_lossy(&text)).map(str::to_owned)
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
    ];
    for (text, version) in printed {
        assert_eq!(version_in(text), Some(version));
    }
    assert_eq!(version_in("usage: program 3. arguments"), None);
}
