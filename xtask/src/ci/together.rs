//! Steps that run side by side, because one of them keeps a single processor busy for long.
//!
//! Read first: `ci.rs` for which steps these are.
//!
//! Invariant: each is run and counted once, and its line stands where it would if they came one
//! after the other.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::display::LastLine;
use super::{Display, Step, StepOutcome, outcome_of};
use crate::limits;

/// How often is looked whether a step has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A step that runs now, or waits for a slot.
pub(super) struct RunningStep {
    name: &'static str,
    last: LastLine,
    ended: Receiver<(StepOutcome, Duration)>,
}

struct StepJob {
    step: Step,
    last: LastLine,
    ended: Sender<(StepOutcome, Duration)>,
}

/// Starts steps, as many at a time as there are lanes; the rest follows in their order.
pub(super) fn start(root: &Path, steps: Vec<Step>) -> BTreeMap<&'static str, RunningStep> {
    let (mut jobs, mut all) = (VecDeque::new(), BTreeMap::new());
    for step in steps {
        let (ended, ends) = mpsc::channel();
        let last = LastLine::default();
        all.insert(step.0, RunningStep { name: step.0, last: Arc::clone(&last), ended: ends });
        jobs.push_back(StepJob { step, last, ended });
    }
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..limits::BUSY_LANES {
        let (jobs, root) = (Arc::clone(&jobs), root.to_owned());
        thread::spawn(move || {
            let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            while let Some(StepJob { step, last, ended }) = next() {
                let mut display = Display::unseen(step.0, last);
                let outcome = outcome_of(step, &root, &mut display);
                // The receiver was dropped if its thread has ended.
                let _ = ended.send((outcome, display.elapsed()));
            }
        });
    }
    all
}

impl RunningStep {
    /// Shows how far the step is until it has ended, and ends its line. What became of it.
    pub(super) fn finish(self) -> StepOutcome {
        let mut display = Display::start(self.name);
        loop {
            match self.ended.recv_timeout(LOOK_EVERY) {
                Ok((outcome, took)) => {
                    display.end(took, outcome.counts.failures.is_empty(), &outcome.note);
                    return outcome;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    display.tick(Some(&last));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    display.end(display.elapsed(), false, "");
                    let why = "error: the thread of this step panicked".to_owned();
                    return StepOutcome::check(self.name, false, vec![why]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_run_once_and_counted_where_it_is_asked_for() {
        let steps: Vec<Step> = vec![
            ("fine", |_, display| {
                display.tick(Some("a line"));
                Ok(StepOutcome::check("fine", true, Vec::new()))
            }),
            ("bad", |_, _| {
                Ok(StepOutcome::check("bad", false, vec!["error: it is bad".to_owned()]))
            }),
            ("lost", |_, _| panic!("no step does")),
        ];
        let mut running = start(Path::new("."), steps);
        let mut finish = |name| running.remove(name).expect("it was started").finish().counts;
        assert_eq!(finish("lost").failures.len(), 1);
        assert_eq!(finish("fine").passed, 1);
        assert_eq!(finish("bad").failures, ["bad: error: it is bad"]);
    }
}
