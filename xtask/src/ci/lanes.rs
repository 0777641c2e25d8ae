//! Jobs of one step that run side by side, each a program of its own.
//!
//! Invariants
//! - Every job is run and its outcome added once, whatever became of the others.
//! - No more than `limits::LANES` run at a time.

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use super::tally::Counts;
use super::{Display, Outcome};
use crate::error::Error;
use crate::limits;

/// What a job tells while it runs: a line of its output, or `None` for time that passed without.
pub(super) type Tick<'a> = &'a mut dyn FnMut(Option<&str>);

enum Report {
    Line(Option<String>),
    Ended(Result<Outcome, Error>),
}

/// Runs all jobs, those in front first, and adds up what became of them.
pub(super) fn run<J: Send>(
    jobs: Vec<J>,
    display: &mut Display,
    run_one: impl Fn(&J, Tick<'_>) -> Result<Outcome, Error> + Sync,
) -> (Counts, Vec<String>) {
    let mut counts = Counts::default();
    let mut output = Vec::new();
    let waiting = Mutex::new(jobs.into_iter());
    let (reports, reported) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..limits::LANES {
            let (waiting, run_one, reports) = (&waiting, &run_one, reports.clone());
            scope.spawn(move || {
                let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(job) = next() {
                    let outcome = run_one(&job, &mut |line| {
                        // The receiver outlives every lane.
                        let _ = reports.send(Report::Line(line.map(str::to_owned)));
                    });
                    let _ = reports.send(Report::Ended(outcome));
                }
            });
        }
        drop(reports);
        for report in reported {
            match report {
                Report::Line(line) => display.tick(line.as_deref()),
                Report::Ended(Ok(outcome)) => {
                    counts.add(outcome.counts);
                    output.extend(outcome.output);
                }
                Report::Ended(Err(error)) => {
                    counts.failures.push(error.to_string());
                    output.push(error.to_string());
                }
            }
        }
    });
    (counts, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_counts_once_whatever_became_of_it() {
        let (counts, output) =
            run(vec![1, 2, 3, 4, 5], &mut Display::start("test"), |job, tick| {
                tick(Some("a line"));
                match job {
                    3 => Ok(Outcome::check("3", false, vec!["three failed".to_owned()])),
                    5 => Err(Error::Failed { command: "five".to_owned(), output: String::new() }),
                    _ => Ok(Outcome::check("job", true, Vec::new())),
                }
            });
        assert_eq!((counts.passed, counts.failures.len()), (3, 2));
        assert_eq!(output.iter().filter(|line| line.contains("three")).count(), 1);
        assert_eq!(output.len(), 2);
    }
}
