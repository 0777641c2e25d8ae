//! Limits that the tools check, and limits of the tools.

use std::time::Duration;

/// Lines of a source file outside tests.
pub(crate) const FILE_LINES_MAX: usize = 800;
/// Lines of a function from `fn` to its closing brace; blank and comment lines are free.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;
/// Characters of a line of source.
pub(crate) const LINE_CHARS_MAX: usize = 100;
/// Bytes of a tracked file; generated data and captures do not belong in the tree.
pub(crate) const FILE_BYTES_MAX: u64 = 256 * 1024;

/// A step that runs longer prints its progress.
pub(crate) const PROGRESS_AFTER: Duration = Duration::from_secs(2);
/// If the output is not a terminal, progress is on separate lines, and therefore rarer.
pub(crate) const PROGRESS_LINE_EVERY: Duration = Duration::from_secs(30);
/// A step is stopped when it has printed nothing for so long: something hangs.
pub(crate) const STEP_SILENCE_MAX: Duration = Duration::from_secs(4 * 60);
/// A step is stopped after so long in any case.
pub(crate) const STEP_TIME_MAX: Duration = Duration::from_secs(18 * 60);
/// Test programs that run side by side. Each has a thread per core itself, but mostly waits: two at
/// a time use half of two cores.
pub(crate) const SUITE_LANES: usize = 3;
/// Fuzz targets, and steps, that run side by side. Each keeps a core busy.
pub(crate) const BUSY_LANES: usize = 2;
/// Bytes of a step's output that are kept; the oldest go first.
pub(crate) const STEP_OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long output may still arrive after a step has ended, when a child of it keeps the pipe.
pub(crate) const STEP_DRAIN: Duration = Duration::from_millis(500);

const _: () = assert!(PROGRESS_AFTER.as_secs() < PROGRESS_LINE_EVERY.as_secs());
const _: () = assert!(STEP_SILENCE_MAX.as_secs() < STEP_TIME_MAX.as_secs());
