//! `cargo xtask setup`: installs missing programs that the tests use.
//!
//! The project builds with cargo and a C linker alone. What is listed here are the programs that
//! the tests hold the servers against. Without root, or without a network, it says what to install
//! and goes on: tests that miss a program skip themselves and say so.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::ToolError;
use crate::{process, programs};

/// A program that the tests run, and the Debian package it comes in.
struct WantedProgram {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const fn wanted(program: &'static str, package: &'static str, why: &'static str) -> WantedProgram {
    WantedProgram { program, package, why }
}

/// Debian's packages. A program that is there already is left as it is, wherever it came from.
const WANTED: &[WantedProgram] = &[
    wanted("cc", "gcc", "linking, and the C tests"),
    wanted("pkg-config", "pkg-config", "the C tests"),
    wanted("curl", "curl", "a client of serve http"),
    wanted("wrk", "wrk", "a client of serve http"),
    wanted("ab", "apache2-utils", "a client of serve http"),
    wanted("nginx", "nginx-light", "what serve http is compared with"),
    wanted("memcached", "memcached", "what serve kv is compared with"),
    wanted("memccapable", "libmemcached-tools", "the protocol suite for serve kv"),
    wanted("redis-server", "redis-server", "what serve kv answers alike"),
    wanted("redis-cli", "redis-tools", "clients of serve kv"),
    wanted("haproxy", "haproxy", "preloaded: a proxy"),
    wanted("lighttpd", "lighttpd", "preloaded: a server with CGI"),
    wanted("iperf3", "iperf3", "preloaded: select"),
    wanted("socat", "socat", "preloaded: relays"),
    wanted("psql", "postgresql", "preloaded: a process for each connection"),
    wanted("ip", "iproute2", "network namespaces"),
    wanted("ethtool", "ethtool", "whole checksums over veth"),
    wanted("ping", "iputils-ping", "asking our stack, and the kernel, for echoes"),
    wanted("tcpdump", "tcpdump", "taking captures"),
    wanted("tshark", "tshark", "judging captures"),
    wanted("sha256sum", "coreutils", "sums of what arrived"),
    wanted("mandoc", "mandoc", "checking the man pages"),
    wanted("valgrind", "valgrind", "memory checks of the C library"),
    wanted("dpdk-testpmd", "dpdk-dev", "the other end of a memif"),
    wanted("python3", "python3", "httplint"),
];

/// A package without a program of its own: Python needs it to make a virtual environment.
const PYTHON_VENV: &str = "python3-venv";
/// The same: CPython's own tests, which run under the preload library.
const PYTHON_TESTS: &str = "libpython3.11-testsuite";
/// The response linter, at the version that the tests were written against.
const HTTPLINT: &str = "httplint==2026.10.4";
/// The licence and source checker: the newest version that was tried with the project's Rust.
const CARGO_DENY_VERSION: &str = "0.20.2";
/// What builds and runs the fuzz targets, with a nightly compiler.
const CARGO_FUZZ_VERSION: &str = "0.13.2";

/// Folder of httplint once installed.
pub(crate) fn httplint(root: &Path) -> PathBuf {
    root.join("target/tools/httplint/bin/httplint")
}

/// Installs what is missing. Answers `true` also when something could not be had: it is printed.
pub(crate) fn run(root: &Path) -> Result<bool, ToolError> {
    debian();
    python(root);
    miri(root);
    cargo_command(root, "deny", CARGO_DENY_VERSION);
    cargo_command(root, "fuzz", CARGO_FUZZ_VERSION);
    Ok(true)
}

fn debian() {
    let mut missing = missing(WANTED, process::is_installed);
    if !has_venv() {
        missing.push(PYTHON_VENV);
    }
    // The tests of another version are another suite.
    if programs::has_python_tests() == Some(false) {
        missing.push(PYTHON_TESTS);
    }
    if missing.is_empty() {
        report("debian packages", "all there");
        return;
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() || !process::is_installed("apt-get") {
        report("debian packages", &format!("missing; as root: apt-get install {list}"));
        for wanted in WANTED.iter().filter(|wanted| missing.contains(&wanted.package)) {
            report(wanted.package, wanted.why);
        }
        return;
    }
    let mut update = apt(&["update"]);
    let mut install = apt(&["install", "-y", "--no-install-recommends"]);
    install.args(&missing);
    let done = step(&mut update) && step(&mut install);
    report("debian packages", if done { "installed" } else { "not all could be installed" });
}

/// The packages of the missing programs, without duplicates.
fn missing(wanted: &[WantedProgram], is_installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    wanted.iter().filter(|one| !is_installed(one.program)).map(|one| one.package).collect()
}

/// Noninteractive `apt-get` that starts no service: the tests start their own servers.
fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-q").args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    command
}

/// Python can make a virtual environment with pip in it.
fn has_venv() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import ensurepip, venv"]);
    process::output_of(&mut python).is_ok()
}

fn python(root: &Path) {
    if httplint(root).is_file() {
        report("httplint", "there");
        return;
    }
    let folder = root.join("target/tools/httplint");
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(&folder);
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", HTTPLINT]);
    let done = step(&mut venv) && step(&mut pip);
    report("httplint", if done { "installed" } else { "could not be installed" });
}

/// Miri goes with a nightly compiler; where there is none, none is installed for it.
fn miri(root: &Path) {
    let is_there =
        |arguments: &[&str]| process::output_of(process::nightly(root).args(arguments)).is_ok();
    if !is_there(&["--version"]) {
        report("miri", "no nightly toolchain; rustup toolchain install nightly");
        return;
    }
    if is_there(&["miri", "--version"]) {
        report("miri", "there");
        return;
    }
    let mut add = Command::new("rustup");
    add.args(["component", "add", "--toolchain", "nightly", "miri", "rust-src"]);
    let done = step(&mut add);
    report("miri", if done { "installed" } else { "could not be installed" });
}

/// A cargo command that is no part of Rust. `--debug` builds it faster: all of them are run
/// seldom and shortly.
fn cargo_command(root: &Path, name: &str, version: &str) {
    let package = format!("cargo-{name}");
    if process::output_of(process::cargo(root).args([name, "--version"])).is_ok() {
        report(&package, "there");
        return;
    }
    let mut install = process::cargo(root);
    install.args(["install", "--quiet", "--locked", "--debug", &package, "--version", version]);
    report(&package, "building it, once; this takes some minutes");
    let done = step(&mut install);
    report(&package, if done { "installed" } else { "could not be installed" });
}

/// Runs one command; what it printed is shown when it fails.
fn step(command: &mut Command) -> bool {
    // A user's choice of target folder or flags is for the project, not for its tools.
    command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").stdin(Stdio::null());
    match process::output_of(command) {
        Ok(_) => true,
        Err(error) => {
            println!("{error}");
            false
        }
    }
}

fn report(what: &str, how: &str) {
    println!("{what:<18} {how}");
}

#[cfg(test)]
mod tests;
