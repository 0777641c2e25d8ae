//! Lines for a person: which path each socket took, what was refused, and why the stack is down.
//!
//! Failures go to standard error. The rest goes where `--report` says, with an end when the process
//! exits. Read first: `refusals.rs`.
//!
//! Invariant: a line takes no lock and no memory of the heap, because handlers of signals and
//! children of vfork(2) write lines, too.

use std::ffi::c_int;
use std::fmt::{self, Write};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::raw::{process, system_call};
use crate::refusals;
use crate::rules::SocketPath;

/// Counts for the end of the report.
pub(crate) struct ReportCounts {
    pub(crate) stack: AtomicU32,
    pub(crate) kernel: AtomicU32,
    pub(crate) both: AtomicU32,
    /// Connections that a listener has accepted from the stack.
    pub(crate) accepted: AtomicU32,
    /// Connections that a listener of both paths has accepted from the kernel.
    pub(crate) accepted_in_kernel: AtomicU32,
    pub(crate) children: AtomicU32,
    /// Programs that were started and cannot be preloaded.
    pub(crate) not_preloaded: AtomicU32,
    /// Connections that went to other processes in messages (SCM_RIGHTS).
    pub(crate) connections_passed: AtomicU32,
    /// Those that came and were used.
    pub(crate) connections_received: AtomicU32,
}

pub(crate) static COUNTS: ReportCounts = ReportCounts {
    stack: AtomicU32::new(0),
    kernel: AtomicU32::new(0),
    both: AtomicU32::new(0),
    accepted: AtomicU32::new(0),
    accepted_in_kernel: AtomicU32::new(0),
    children: AtomicU32::new(0),
    not_preloaded: AtomicU32::new(0),
    connections_passed: AtomicU32::new(0),
    connections_received: AtomicU32::new(0),
};

impl ReportCounts {
    fn all(&self) -> [&AtomicU32; 9] {
        [
            &self.stack,
            &self.kernel,
            &self.both,
            &self.accepted,
            &self.accepted_in_kernel,
            &self.children,
            &self.not_preloaded,
            &self.connections_passed,
            &self.connections_received,
        ]
    }
}

/// The end of the report is written.
static FINISHED: AtomicBool = AtomicBool::new(false);

/// Where the report goes; -1: there is none.
static TARGET: AtomicI32 = AtomicI32::new(NO_TARGET);
const NO_TARGET: c_int = -1;

/// The process whose report it is.
static REPORTER: AtomicI32 = AtomicI32::new(0);

const STANDARD_ERROR: c_int = 2;

/// Longest line; the rest is cut.
const LINE_BYTES: usize = 1024;

/// A line without memory of the heap.
struct ReportLine {
    room: [u8; LINE_BYTES],
    len: usize,
}

impl Write for ReportLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte is left for the end of the line.
        let text = &text.as_bytes()[..text.len().min(LINE_BYTES - 1 - self.len)];
        self.room[self.len..][..text.len()].copy_from_slice(text);
        self.len += text.len();
        Ok(())
    }
}

fn write_line(fd: c_int, text: fmt::Arguments<'_>) {
    let mut line = ReportLine { room: [0; LINE_BYTES], len: 0 };
    // A line always has room: what is too long is cut.
    let _ = writeln!(line, "megapipe: {text}");
    if line.room[line.len - 1] != b'\n' {
        line.room[line.len] = b'\n';
        line.len += 1;
    }
    // A closed standard error or a full disk is no reason to disturb the program.
    let arguments = [fd as usize, line.room.as_ptr() as usize, line.len, 0, 0, 0];
    // SAFETY: the line is a local.
    unsafe { system_call(libc::SYS_write, arguments) };
}

/// In the child of a fork: its counts and its report are its own.
pub(crate) fn begin_in_child() {
    let parent = REPORTER.swap(process(), Ordering::Relaxed);
    COUNTS.all().into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    refusals::forget();
    FINISHED.store(false, Ordering::Relaxed);
    note(format_args!("child of {parent}"));
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
    write_line(STANDARD_ERROR, text);
}

/// Whether there is a report.
#[inline]
pub(crate) fn is_on() -> bool {
    TARGET.load(Ordering::Relaxed) != NO_TARGET
}

/// Writes a line to the report, if there is one.
pub(crate) fn note(text: fmt::Arguments<'_>) {
    let target = TARGET.load(Ordering::Relaxed);
    if target != NO_TARGET {
        write_line(target, format_args!("{}: {text}", process()));
    }
}

/// Opens the report, which the program may not be able to open after it has dropped its rights or
/// changed its root.
pub(crate) fn open(place: Option<&str>) {
    let target = match place {
        None => NO_TARGET,
        Some("stderr") => STANDARD_ERROR,
        Some(path) => match File::options().append(true).create(true).open(path) {
            Ok(file) => file.into_raw_fd(),
            Err(error) => {
                complain(format_args!("no report: {path}: {error}"));
                NO_TARGET
            }
        },
    };
    REPORTER.store(process(), Ordering::Relaxed);
    TARGET.store(target, Ordering::Relaxed);
}

/// Whether a descriptor is that of the report.
pub(crate) fn is_target(fd: c_int) -> bool {
    TARGET.load(Ordering::Relaxed) == fd
}

/// Writes the end of the report, once in a process. The child of a vfork(2) has none.
pub(crate) fn finish() {
    let is_reporter = REPORTER.load(Ordering::Relaxed) == process();
    if !is_on() || !is_reporter || FINISHED.swap(true, Ordering::Relaxed) {
        return;
    }
    let number = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    if COUNTS.all().into_iter().all(|counter| number(counter) == 0) && refusals::total() == 0 {
        // A child that had no socket.
        return;
    }
    let (stack, kernel, both) =
        (number(&COUNTS.stack), number(&COUNTS.kernel), number(&COUNTS.both));
    note(format_args!(
        "sockets: {stack} on the stack, {kernel} in the kernel, {both} on both; {} calls and \
         options refused",
        refusals::total()
    ));
    let (accepted, in_kernel) = (number(&COUNTS.accepted), number(&COUNTS.accepted_in_kernel));
    note(format_args!(
        "accepted: {accepted} from the stack, {in_kernel} in the kernel by listeners of both"
    ));
    refusals::each(|refusal, count| note(format_args!("refused: {count} x {refusal}")));
    let (children, others) = (number(&COUNTS.children), number(&COUNTS.not_preloaded));
    note(format_args!("children: {children}; programs not preloaded: {others}"));
    let (passed, received) =
        (number(&COUNTS.connections_passed), number(&COUNTS.connections_received));
    if passed + received > 0 {
        note(format_args!("messages: {passed} connections passed, {received} received"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_is_cut_and_keeps_its_end() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        write_line(writer.into_raw_fd(), format_args!("{}", "x".repeat(3 * LINE_BYTES)));
        let mut line = [0; 2 * LINE_BYTES];
        let count = std::io::Read::read(&mut reader, &mut line).unwrap();
        assert_eq!((count, line[count - 1]), (LINE_BYTES, b'\n'));
    }
}
