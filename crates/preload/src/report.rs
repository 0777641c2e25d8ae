//! Lines for a person: which path each socket took, what was refused, and why the stack is down.
//!
//! Failures go to standard error. The rest goes where `--report` says.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::raw;
use crate::rules::SocketPath;
use crate::settings::PreloadSettings;

/// Counts for the end of the report.
pub(crate) struct ReportCounts {
    pub(crate) stack: AtomicU32,
    pub(crate) kernel: AtomicU32,
    pub(crate) both: AtomicU32,
    pub(crate) refused: AtomicU32,
}

/// The end of the report is written.
static FINISHED: AtomicBool = AtomicBool::new(false);

pub(crate) static COUNTS: ReportCounts = ReportCounts {
    stack: AtomicU32::new(0),
    kernel: AtomicU32::new(0),
    both: AtomicU32::new(0),
    refused: AtomicU32::new(0),
};

/// The report's file.
static FILE: OnceLock<File> = OnceLock::new();

/// It was closed in this process.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// In the child of a fork: its counts and its report are its own.
pub(crate) fn begin_in_child() {
    let ReportCounts { stack, kernel, both, refused } = &COUNTS;
    [stack, kernel, both, refused].iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    FINISHED.store(false, Ordering::Relaxed);
}

/// Adds one to a count.
pub(crate) fn count(counter: &AtomicU32) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A socket that was counted on the stack or on both is the kernel's.
pub(crate) fn move_to_kernel(path: SocketPath) {
    let from = match path {
        SocketPath::Stack => &COUNTS.stack,
        SocketPath::Both => &COUNTS.both,
        SocketPath::Kernel => return,
    };
    // A child has counts of its own, and its parent's sockets.
    let taken = |count: u32| count.checked_sub(1);
    let _ = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
    count(&COUNTS.kernel);
}

/// Writes a line to standard error.
pub(crate) fn complain(text: fmt::Arguments<'_>) {
    let errno = raw::errno();
    let line = format!("megapipe: {text}\n");
    // A closed standard error is ignored.
    let _ = std::io::stderr().write_all(line.as_bytes());
    raw::set_errno(errno);
}

/// Writes a line to the report, if there is one.
pub(crate) fn note(settings: &PreloadSettings, text: fmt::Arguments<'_>) {
    let Some(place) = &settings.report else { return };
    let errno = raw::errno();
    let line = format!("megapipe: {}: {text}\n", std::process::id());
    // A report that cannot be written is no reason to disturb the program.
    let _ = match place.as_str() {
        "stderr" => std::io::stderr().write_all(line.as_bytes()),
        path => write_to_file(path, line.as_bytes()),
    };
    raw::set_errno(errno);
}

fn write_to_file(path: &str, line: &[u8]) -> std::io::Result<()> {
    if let Some(file) = FILE.get().filter(|_| !IS_CLOSED.load(Ordering::Relaxed)) {
        return (&*file).write_all(line);
    }
    open_file(path)?.write_all(line)
}

fn open_file(path: &str) -> std::io::Result<File> {
    File::options().append(true).create(true).open(path)
}

/// Opens the report's file, which the program may not be able to open after it has dropped its
/// rights or changed its root.
pub(crate) fn open(settings: &PreloadSettings) {
    if let Some(path) = settings.report.as_deref().filter(|path| *path != "stderr")
        && let Ok(file) = open_file(path)
    {
        // It is opened once, when the library is loaded.
        let _ = FILE.set(file);
    }
}

/// In a child process that has closed the library's descriptors.
pub(crate) fn forget_file() {
    IS_CLOSED.store(true, Ordering::Relaxed);
}

/// Writes the end of the report, once in a process.
pub(crate) fn finish(settings: &PreloadSettings) {
    if FINISHED.swap(true, Ordering::Relaxed) {
        return;
    }
    let counters = [&COUNTS.stack, &COUNTS.kernel, &COUNTS.both, &COUNTS.refused];
    if counters.iter().all(|counter| counter.load(Ordering::Relaxed) == 0) {
        // A child that had no socket.
        return;
    }
    let number = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    let (stack, kernel) = (number(&COUNTS.stack), number(&COUNTS.kernel));
    let (both, refused) = (number(&COUNTS.both), number(&COUNTS.refused));
    note(
        settings,
        format_args!(
            "sockets: {stack} on the stack, {kernel} in the kernel, {both} on both; {refused} \
             calls and options refused"
        ),
    );
}
