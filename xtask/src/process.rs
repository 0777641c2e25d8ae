//! Runs other programs, with captured or streamed output.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::error::ToolError;
use crate::limits;

/// `cargo`, the one that runs us, in the workspace's root.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo's variables for this program must not reach the next cargo.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR" {
            command.env_remove(name);
        }
    }
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// The nightly toolchain's cargo. Miri and cargo-fuzz work with no other.
pub(crate) fn nightly(root: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).current_dir(root);
    // Cargo's variables for this program describe its own toolchain.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// The command line, for people.
pub(crate) fn describe(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(name).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn started(command: &Command, result: io::Result<Child>) -> Result<Child, ToolError> {
    let program = command.get_program().to_string_lossy().into_owned();
    result.map_err(|source| ToolError::Start { program, source })
}

/// The standard output of a command that must succeed.
pub(crate) fn output_of(command: &mut Command) -> Result<String, ToolError> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = started(command, child)?;
    let output = child
        .wait_with_output()
        .map_err(|source| ToolError::Start { program: describe(command), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(ToolError::Failed { command: describe(command), output: text })
}

/// Whether a program of this name can be run.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// How a watched program ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// With exit status zero.
    Success,
    /// With another status or by a signal.
    Failure,
    /// It was stopped, for this reason.
    Stopped(String),
}

/// A program that ran to its end under `watch`.
#[derive(Debug)]
pub(crate) struct Watched {
    /// How it ended.
    pub(crate) end: ProcessEnd,
    /// The last lines of its output and errors together.
    pub(crate) output: Vec<String>,
}

/// Runs a command with its output and errors in one pipe and calls `each` with every line, or with
/// `None` when a while passed without one. A command that falls silent or runs for too long is
/// stopped with all its children.
pub(crate) fn watch(
    command: &mut Command,
    mut each: impl FnMut(Option<&str>),
) -> Result<Watched, ToolError> {
    let program = describe(command);
    let broken = |source| ToolError::Start { program: program.clone(), source };
    let (reader, writer) = io::pipe().map_err(broken)?;
    let errors = writer.try_clone().map_err(broken)?;
    let child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn();
    let mut child = started(command, child)?;
    // The command holds our copies of the pipe's writing end; they must go for the end to show.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let lines = read_lines(reader);
    let mut kept = OutputTail::default();
    let mut take = |line: Option<String>| {
        each(line.as_deref());
        if let Some(line) = line {
            kept.push(line);
        }
    };
    let stopped = follow(&mut child, &lines, &mut take);
    if stopped.is_some() {
        stop_tree(child.id());
    }
    let status = child.wait().map_err(broken)?;
    while let Ok(line) = lines.recv_timeout(limits::STEP_DRAIN) {
        take(Some(line));
    }
    let end = match stopped {
        Some(why) => ProcessEnd::Stopped(why),
        None if status.success() => ProcessEnd::Success,
        None => ProcessEnd::Failure,
    };
    Ok(Watched { end, output: kept.lines.into() })
}

/// Feeds `take` until the child has ended, or answers why it has to be stopped.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    take: &mut impl FnMut(Option<String>),
) -> Option<String> {
    let start = Instant::now();
    let mut last = start;
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                last = Instant::now();
                take(Some(line));
            }
            Err(RecvTimeoutError::Timeout) => take(None),
            // All writers have closed the pipe, so the child is about to end.
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        if matches!(child.try_wait(), Ok(Some(_))) {
            return None;
        }
        if last.elapsed() > limits::STEP_SILENCE_MAX {
            return Some(format!("silent for {} s", limits::STEP_SILENCE_MAX.as_secs()));
        }
        if start.elapsed() > limits::STEP_TIME_MAX {
            return Some(format!("longer than {} s", limits::STEP_TIME_MAX.as_secs()));
        }
    }
}

/// Lines from the pipe, read on a thread so that the reader can check the clock too.
fn read_lines(pipe: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1024);
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while matches!(reader.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            bytes.clear();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The last part of an output, bounded in bytes.
#[derive(Default)]
struct OutputTail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl OutputTail {
    fn push(&mut self, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while self.bytes > limits::STEP_OUTPUT_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len() + 1;
        }
    }
}

/// Ends a process and everything it started, children before their parents can start more.
pub(crate) fn stop_tree(pid: u32) {
    let children = children_of(pid);
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A process that has ended in the meantime is fine.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    for child in children {
        stop_tree(child);
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let words = lists.flatten().collect::<Vec<_>>().join(" ");
    words.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Runs a command on the user's own terminal: a benchmark shows its progress itself.
pub(crate) fn passes_through(command: &mut Command) -> Result<bool, ToolError> {
    println!("$ {}", describe(command));
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|source| ToolError::Start { program, source })?;
    Ok(status.success())
}

#[cfg(test)]
mod tests;
