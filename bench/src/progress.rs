//! Progress on standard error: one line that is rewritten on a terminal, one line every so often
//! elsewhere.

use crate::limits;
use megapipe_apps::terminal::COLUMNS;
use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// How far a plan is.
#[derive(Debug)]
pub(crate) struct PlanProgress {
    total: usize,
    done: usize,
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl PlanProgress {
    pub(crate) fn new(total: usize) -> Self {
        let terminal = io::stderr().is_terminal();
        Self { total, done: 0, started: Instant::now(), shown: None, terminal }
    }

    /// Begins the next step.
    pub(crate) fn step(&mut self, what: &str) {
        let line = line(self.done, self.total, self.started.elapsed(), what);
        self.done += 1;
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= limits::PROGRESS_INTERVAL);
        if self.terminal || due {
            self.shown = Some(Instant::now());
            // A line that the terminal wraps could not be overwritten by the next one.
            let text = match self.terminal {
                true => format!("\r{}\x1b[K", shortened(&line, COLUMNS - 1)),
                false => format!("{line}\n"),
            };
            // A closed standard error is ignored.
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    /// Counts steps as done that cannot be made: those of a server that failed. The total stays.
    pub(crate) const fn pass(&mut self, steps: usize) {
        self.done += steps;
    }

    /// Clears the line.
    pub(crate) fn finish(&self) {
        if self.terminal {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

/// The first `columns` characters, with an ellipsis if there are more.
fn shortened(line: &str, columns: usize) -> String {
    match line.char_indices().nth(columns) {
        None => line.to_owned(),
        Some(_) => line.chars().take(columns - 1).chain(['…']).collect(),
    }
}

/// `[ 12 of 40, 3 min left] what`.
fn line(done: usize, total: usize, elapsed: Duration, what: &str) -> String {
    let left = if done == 0 {
        String::new()
    } else {
        let each = elapsed.as_secs_f64() / done as f64;
        let seconds = each * total.saturating_sub(done) as f64;
        if seconds < 90.0 {
            format!(", {seconds:.0} s left")
        } else {
            format!(", {:.0} min left", seconds / 60.0)
        }
    };
    format!("[{:>3} of {total}{left}] {what}", done + 1)
}

#[cfg(test)]
mod tests {
    use super::{PlanProgress, line, shortened};
    use std::time::Duration;

    #[test]
    fn total_is_constant_when_steps_are_passed() {
        let mut progress = PlanProgress::new(6);
        progress.step("x");
        progress.pass(2);
        assert_eq!((progress.done, progress.total), (3, 6));
    }

    #[test]
    fn progress_line_fits_the_terminal() {
        assert_eq!(shortened("12 · 45", 7), "12 · 45");
        assert_eq!(shortened("12 · 456", 7), "12 · 4…");
    }

    #[test]
    fn progress_line_names_the_time_left() {
        assert_eq!(line(0, 4, Duration::ZERO, "x"), "[  1 of 4] x");
        assert_eq!(line(2, 4, Duration::from_secs(10), "x"), "[  3 of 4, 10 s left] x");
        assert_eq!(line(2, 100, Duration::from_secs(10), "x"), "[  3 of 100, 8 min left] x");
    }
}
