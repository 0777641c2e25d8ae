//! One line per step: its name, its time, how it went; while it runs, how far it is.
//!
//! On a terminal the running step's line is rewritten in place; elsewhere a line appears now and
//! then, so that a log stays short and still shows that something moves.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::limits;

/// The last line that a step has printed.
pub(super) type LastLine = Arc<Mutex<String>>;

/// The line of the step that runs now.
pub(super) struct Display {
    name: &'static str,
    start: Instant,
    shown: Instant,
    terminal: bool,
    last: String,
    /// Where lines go instead, while another step has the line.
    unseen: Option<LastLine>,
}

impl Display {
    /// Begins a step.
    pub(super) fn start(name: &'static str) -> Self {
        let now = Instant::now();
        let terminal = io::stdout().is_terminal();
        Self { name, start: now, shown: now, terminal, last: String::new(), unseen: None }
    }

    /// Begins a step in parallel to another: its lines are not shown, only stored in `last`.
    pub(super) fn unseen(name: &'static str, last: LastLine) -> Self {
        Self { unseen: Some(last), ..Self::start(name) }
    }

    /// A line of the step's output, or `None` for time that passed without one.
    pub(super) fn tick(&mut self, line: Option<&str>) {
        if let Some(line) = line.map(str::trim).filter(|line| !line.is_empty()) {
            line.clone_into(&mut self.last);
        }
        if let Some(unseen) = &self.unseen {
            let mut unseen = unseen.lock().unwrap_or_else(PoisonError::into_inner);
            self.last.clone_into(&mut unseen);
            return;
        }
        let now = Instant::now();
        let every =
            if self.terminal { limits::PROGRESS_AFTER / 8 } else { limits::PROGRESS_LINE_EVERY };
        if now - self.start < limits::PROGRESS_AFTER || now - self.shown < every {
            return;
        }
        self.shown = now;
        let seconds = (now - self.start).as_secs_f64();
        let text = running(self.name, seconds, &self.last);
        if self.terminal {
            print!("\r\x1b[2K{text}");
            // Progress that cannot be shown is no reason to stop.
            let _ = io::stdout().flush();
        } else {
            println!("{text}");
        }
    }

    /// How long the step has run.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends the line of a step that took so long.
    pub(super) fn end(&self, took: Duration, fine: bool, note: &str) {
        if self.terminal {
            print!("\r\x1b[2K");
        }
        println!("{}", ended(self.name, took.as_secs_f64(), fine, note));
    }
}

fn running(name: &str, seconds: f64, last: &str) -> String {
    let last: String = last.chars().filter(|c| !c.is_control()).take(60).collect();
    format!("{name:<8} {seconds:>6.1} s  … {last}")
}

fn ended(name: &str, seconds: f64, fine: bool, note: &str) -> String {
    let words = match (fine, note) {
        (false, _) => ["FAILED", note],
        (true, "skipped") => ["skipped", ""],
        (true, _) => ["ok", note],
    };
    format!("{name:<8} {seconds:>6.1} s  {}", words.join(" ").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_whatever_the_step() {
        let short = ended("fmt", 0.26, true, "");
        let long = ended("clippy", 123.0, true, "");
        assert_eq!(short, "fmt         0.3 s  ok");
        assert_eq!(short.find("ok"), long.find("ok"));
    }

    #[test]
    fn progress_is_one_short_line() {
        let text = running("test", 3.0, &"x\x1b[1m".repeat(100));
        assert!(text.chars().count() < 90);
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn a_failure_is_loud_and_a_skip_is_not_called_fine() {
        assert!(ended("doc", 1.0, false, "").contains("FAILED"));
        assert!(!ended("deny", 1.0, true, "skipped").contains("ok"));
    }
}
