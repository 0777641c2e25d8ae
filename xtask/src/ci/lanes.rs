//! Jobs of one step that run in parallel, each a program.
//!
//! Invariants
//! - Every job is run and its outcome added once, whatever became of the others.
//! - No more than there are lanes run at a time.

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use super::tally::TestCounts;
use super::{Display, StepOutcome};
use crate::error::ToolError;

/// An event of a running job: a line of its output, or `None` for time without output.
pub(super) type Tick<'a> = &'a mut dyn FnMut(Option<&str>);

enum LaneReport {
    Line(Option<String>),
    Ended(Result<StepOutcome, ToolError>),
}

/// Runs all jobs in so many lanes, those in front first, and adds up what became of them.
pub(super) fn run<J: Send>(
    jobs: Vec<J>,
    lanes: usize,
    display: &mut Display,
    run_one: impl Fn(&J, Tick<'_>) -> Result<StepOutcome, ToolError> + Sync,
) -> (TestCounts, Vec<String>) {
    let mut counts = TestCounts::default();
    let mut output = Vec::new();
    let waiting = Mutex::new(jobs.into_iter());
    let (reports, reported) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..lanes {
            let (waiting, run_one, reports) = (&waiting, &run_one, reports.clone());
            scope.spawn(move || {
                let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(job) = next() {
                    let outcome = run_one(&job, &mut |line| {
                        // The receiver outlives every lane.
                        let _ = reports.send(LaneReport::Line(line.map(str::to_owned)));
                    });
                    let _ = reports.send(LaneReport::Ended(outcome));
                }
            });
        }
        drop(reports);
        for report in reported {
            match report {
                LaneReport::Line(line) => display.tick(line.as_deref()),
                LaneReport::Ended(Ok(outcome)) => {
                    counts.add(outcome.counts);
                    output.extend(outcome.output);
                }
                LaneReport::Ended(Err(error)) => {
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
            run(vec![1, 2, 3, 4, 5], 2, &mut Display::start("test"), |job, tick| {
                tick(Some("a line"));
                match job {
                    3 => Ok(StepOutcome::check("3", false, vec!["three failed".to_owned()])),
                    5 => {
                        Err(ToolError::Failed { command: "five".to_owned(), output: String::new() })
                    }
                    _ => Ok(StepOutcome::check("job", true, Vec::new())),
                }
            });
        assert_eq!((counts.passed, counts.failures.len()), (3, 2));
        assert_eq!(output.iter().filter(|line| line.contains("three")).count(), 1);
        assert_eq!(output.len(), 2);
    }
}
