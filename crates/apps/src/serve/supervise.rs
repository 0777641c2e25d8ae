//! The main thread of a server: prints that it is ready, shows statistics, ends it on a signal.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::result_file;

use super::args::ServeArgs;
use super::error::ServeError;
use super::running::{Running, start};
use super::shard_loop::ServerPhase;
use super::signals::SupervisorNotice;
use super::stats::{self, Columns, ServerTally};
use super::{ServerProperties, ServerShard, ShardSetup};

/// Runs a server until SIGINT or SIGTERM, or until a channel fails. Blocks.
///
/// When every channel listens it prints one line to standard output, for people and for scripts
/// that wait for it:
/// `listening on ADDRESS[ and ADDRESS…], back end NAME, driver NAME, N channel[s]`.
/// With `--verbose` a line on standard error states the reason for this driver.
///
/// # Errors
/// As [`start`], and the first error of a channel while serving.
pub fn serve<S, F>(args: &ServeArgs, server: ServerProperties, factory: F) -> Result<(), ServeError>
where
    S: ServerShard + 'static,
    F: Fn(ShardSetup<'_>) -> Result<S, ServeError> + Send + Sync + 'static,
{
    supervise(start(args, server, factory)?, args)
}

/// What [`serve`] does with a server that runs.
///
/// # Errors
/// As [`serve`].
pub(crate) fn supervise(mut running: Running, args: &ServeArgs) -> Result<(), ServeError> {
    running
        .notices
        .catch_signals()
        .map_err(|source| ServeError::resource("handlers for SIGINT and SIGTERM", source))?;
    announce(&mut running, args)?;
    let interval = args.stats.map(|seconds| Duration::from_secs(seconds.into()));
    let mut view = interval.map(|interval| LiveView::new(interval, &running));
    let mut ended = 0;
    loop {
        let wait = view.as_ref().map(LiveView::until_next);
        let notices = running
            .notices
            .wait(wait)
            .map_err(|source| ServeError::resource("waiting for signals", source))?;
        for notice in notices {
            match notice {
                SupervisorNotice::Signal => running.on_signal(),
                // A channel that ended unasked takes the server down, in order.
                SupervisorNotice::ThreadEnded => {
                    ended += 1;
                    running.begin(ServerPhase::Drain);
                }
            }
        }
        if let Some(view) = &mut view {
            view.show_if_due(&running);
        }
        if ended == running.channels() {
            let served = running.join();
            let reported = report(&running.tallies(), args.json.as_deref());
            return served.and(reported);
        }
    }
}

/// The counters of each channel, as JSON, to the file of `--json`.
fn report(tallies: &[ServerTally], path: Option<&Path>) -> Result<(), ServeError> {
    let Some(path) = path else { return Ok(()) };
    let failed = |source| ServeError::resource(format!("--json {}", path.display()), source);
    let mut json = serde_json::to_string_pretty(tallies).map_err(|error| failed(error.into()))?;
    json.push('\n');
    if path == Path::new("-") {
        // A closed pipe is no error.
        let _ = io::stdout().write_all(json.as_bytes());
        return Ok(());
    }
    result_file::write(path, &json).map_err(failed)
}

fn announce(running: &mut Running, args: &ServeArgs) -> Result<(), ServeError> {
    let addresses: Vec<String> = running.addresses().iter().map(ToString::to_string).collect();
    let plural = if running.channels() == 1 { "" } else { "s" };
    let line = format!(
        "listening on {}, {}, {} channel{plural}",
        addresses.join(" and "),
        running.driver(),
        running.channels(),
    );
    if args.verbose {
        // The reader of standard error may be gone.
        let _ = writeln!(io::stderr(), "{}: {}", running.driver(), running.why());
    }
    let mut stdout = io::stdout();
    // A closed standard output does not stop the server.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    let (Some(fd), Some(mut file)) = (args.ready_fd, running.ready_file.take()) else {
        return Ok(());
    };
    file.write_all(b"\n").map_err(|source| ServeError::resource(format!("--ready-fd {fd}"), source))
}

/// The live counters.
struct LiveView {
    interval: Duration,
    shown_at: Instant,
    shown: Vec<ServerTally>,
    /// Lines on the terminal that the next table replaces; none elsewhere.
    lines: Option<usize>,
    rows: u64,
    columns: Columns,
}

/// How many lines a view that is no terminal prints between headings.
const ROWS_PER_HEADING: u64 = 20;

impl LiveView {
    fn new(interval: Duration, running: &Running) -> Self {
        Self {
            interval,
            shown_at: Instant::now(),
            shown: running.tallies(),
            lines: io::stderr().is_terminal().then_some(0),
            rows: 0,
            columns: running.columns(),
        }
    }

    fn until_next(&self) -> Duration {
        self.interval.saturating_sub(self.shown_at.elapsed())
    }

    fn show_if_due(&mut self, running: &Running) {
        let span = self.shown_at.elapsed();
        if span < self.interval {
            return;
        }
        let tallies = running.tallies();
        let text = match &mut self.lines {
            Some(lines) => {
                let table = self.columns.table(&self.shown, &tallies, span);
                let text = rewritten(&table, *lines);
                *lines = table.len();
                text
            }
            None => {
                let (before, after) = (stats::sum(&self.shown), stats::sum(&tallies));
                let row = self.columns.row("all", before, after, span);
                self.rows += 1;
                match self.rows % ROWS_PER_HEADING {
                    1 => format!("{}\n{row}\n", self.columns.heading()),
                    _ => format!("{row}\n"),
                }
            }
        };
        // A closed standard error does not stop the server.
        let _ = io::stderr().write_all(text.as_bytes());
        (self.shown, self.shown_at) = (tallies, Instant::now());
    }
}

/// The text that puts `table` in the place of the `lines` lines above the cursor.
fn rewritten(table: &[String], lines: usize) -> String {
    let up = if lines > 0 { format!("\x1b[{lines}A") } else { String::new() };
    table.iter().fold(up, |text, line| text + line + "\x1b[K\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_the_one_above_it() {
        let table = ["a".to_owned(), "b".to_owned()];
        assert_eq!(rewritten(&table, 0), "a\x1b[K\nb\x1b[K\n");
        assert_eq!(rewritten(&table, 2), "\x1b[2Aa\x1b[K\nb\x1b[K\n");
    }
}
