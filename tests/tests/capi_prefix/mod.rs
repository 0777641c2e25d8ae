//! An installed libmegapipe, and a compiler for programs that use it: shared by the tests of the C
//! library.
//!
//! The library is installed once for each test binary, by the same command that a user types, into
//! `target/capi-prefix`.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The C of the tests' programs, which use what only Linux has.
pub(crate) const C11: &[&str] = &["-std=gnu11"];

/// No C program of the tests runs longer.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(300);

/// `crates/capi`.
pub(crate) fn sources() -> PathBuf {
    root().join("crates/capi")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Whether a program of this name can be run.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The prefix below which the library is installed. `None`, with the reason printed as a skip of
/// `test`, where there is no C compiler.
pub(crate) fn prefix(test: &str) -> Option<&'static Path> {
    if !is_installed("gcc") {
        println!("skipped: {test}: gcc is not installed");
        return None;
    }
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    Some(PREFIX.get_or_init(install))
}

fn install() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let prefix = target.join("capi-prefix");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--package=xtask", "--", "install", "--only=library"]);
    cargo.arg("--profile=dev");
    cargo.arg("--prefix").arg(&prefix).current_dir(root());
    // What cargo told this test about itself must not reach the next cargo.
    cargo.env_remove("CARGO_MANIFEST_DIR");
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{cargo:?} failed:\n{}", text_of(&output));
    prefix
}

/// Compiles a C program against the prefix, strictly, and tells where it is. `language` is
/// `C11` or what stands for another language. Two tests may compile and run the same program at a
/// time: each sees a whole one.
pub(crate) fn compile(prefix: &Path, source: &Path, name: &str, language: &[&str]) -> PathBuf {
    let folder = prefix.join("tests");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join(name);
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let number = COMPILED.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("{name}-{}-{number}", std::process::id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-g", "-pthread", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    gcc.args(language).arg(source).arg("-o").arg(&new).args(pkg_config(prefix));
    let output = gcc.output().unwrap();
    assert!(output.status.success(), "{gcc:?} failed:\n{}", text_of(&output));
    fs::rename(&new, &program).unwrap();
    program
}

/// What the compiler has to be told: by pkg-config where there is one, as it would otherwise.
fn pkg_config(prefix: &Path) -> Vec<String> {
    let lib = prefix.join("lib");
    let rpath = format!("-Wl,-rpath,{}", lib.display());
    if !is_installed("pkg-config") {
        let include = format!("-I{}", prefix.join("include").display());
        return vec![include, format!("-L{}", lib.display()), "-lmegapipe".to_owned(), rpath];
    }
    let mut flags = pkg_config_words(prefix, &["--cflags", "--libs"]);
    flags.push(rpath);
    flags
}

/// The words that pkg-config answers for the installed library.
pub(crate) fn pkg_config_words(prefix: &Path, questions: &[&str]) -> Vec<String> {
    let output = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .args(questions)
        .arg("megapipe")
        .output()
        .unwrap();
    assert!(output.status.success(), "pkg-config: {}", text_of(&output));
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

/// What a program wrote, errors last.
pub(crate) fn text_of(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Runs a program to its end, at most for the time that is allowed; its status and its text.
pub(crate) fn run(command: &mut Command) -> (ExitStatus, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let errors = writer.try_clone().unwrap();
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn().unwrap();
    // The command keeps the pipe's writing end otherwise, and reading never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > PROGRAM_TIME_MAX => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = reading.join().unwrap().unwrap();
    std::io::stdout().write_all(text.as_bytes()).unwrap();
    (status, text)
}

/// Ends a child, and waits for it, when the test does.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // One with children of its own, as nginx, ends these only if it is asked to end.
        let (id, start) = (rustix::process::Pid::from_child(&self.0), Instant::now());
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        while start.elapsed() < END_TIME && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long a child may take to end when it is asked to.
const END_TIME: Duration = Duration::from_secs(3);
