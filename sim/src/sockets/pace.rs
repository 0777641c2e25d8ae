//! When a program's thread runs, and when the world's does: never both.
//!
//! Invariants
//! - The program's thread runs only while the world's is in [`ThreadPace::await_rest`].
//! - A call takes no time, but between two calls some may pass, so that no program is faster than
//!   the network and a program that never sleeps does not stop the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use megapipe::Clock;
use megapipe_sockets::{Error, SharedContext};
use megapipe_stack::Instant;

use super::ProgramSetting;
use crate::check::Violation;
use crate::node::NodeCounts;

/// A program: what it makes its calls through, and what it is about.
pub(super) type Program = fn(&mut Calls, &ProgramSetting) -> Result<(), Violation>;

/// Calls in a row without any time between them.
const CALLS_AT_ONCE: u32 = 12;
/// Looks for a thread that runs before the world's thread sleeps between them.
const LOOKS: u32 = 50;
const LOOK_TIME: Duration = Duration::from_micros(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PaceState {
    /// It computes.
    Runs,
    /// It is in a call, and may sleep there.
    InCall,
    /// It pauses between two calls.
    Pauses {
        until: Instant,
    },
    Ended,
}

struct PaceInside {
    state: PaceState,
    violation: Option<Violation>,
    open: usize,
    is_finished: bool,
    counts: NodeCounts,
}

/// What the two threads share.
pub(super) struct ThreadPace {
    host: usize,
    inside: Mutex<PaceInside>,
    resumed: Condvar,
    /// Calls that were begun and ended.
    steps: AtomicU64,
}

impl ThreadPace {
    pub(super) fn new(host: usize) -> Arc<Self> {
        let inside = PaceInside {
            state: PaceState::Runs,
            violation: None,
            // It has its program before it.
            open: 1,
            is_finished: false,
            counts: NodeCounts::default(),
        };
        let inside = Mutex::new(inside);
        Arc::new(Self { host, inside, resumed: Condvar::new(), steps: AtomicU64::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, PaceInside> {
        // Fields are whole after each statement.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the program's thread sleeps in a call, pauses or has ended.
    pub(super) fn await_rest(&self, context: &SharedContext) {
        let mut looks = 0;
        loop {
            let is_at_rest = match self.lock().state {
                PaceState::Runs => false,
                PaceState::InCall => context.sleeping() > 0,
                PaceState::Pauses { .. } | PaceState::Ended => true,
            };
            if is_at_rest {
                return;
            }
            looks += 1;
            if looks < LOOKS {
                thread::yield_now();
            } else {
                thread::sleep(LOOK_TIME);
            }
        }
    }

    /// How many calls were begun and ended.
    pub(super) fn steps(&self) -> u64 {
        // Relaxed: the lock in `await_rest` orders it.
        self.steps.load(Ordering::Relaxed)
    }

    /// Ends a pause whose time is over. Whether there was one.
    pub(super) fn resume(&self, now: Instant) -> bool {
        let mut inside = self.lock();
        let PaceState::Pauses { until } = inside.state else { return false };
        if until > now {
            return false;
        }
        inside.state = PaceState::Runs;
        self.resumed.notify_one();
        true
    }

    pub(super) fn paused_until(&self) -> Option<Instant> {
        match self.lock().state {
            PaceState::Pauses { until } => Some(until),
            _ => None,
        }
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.lock().violation.take()
    }

    /// What the program has open or has still to do.
    pub(super) fn open(&self) -> usize {
        self.lock().open
    }

    /// The program is to end.
    pub(super) fn finish(&self) {
        self.lock().is_finished = true;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().state == PaceState::Ended
    }

    pub(super) fn counts(&self) -> NodeCounts {
        self.lock().counts
    }

    fn set(&self, state: PaceState) {
        self.lock().state = state;
        self.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs a program on a thread of its own. A world that broke a rule leaves it where it is.
pub(super) fn start(
    pace: &Arc<ThreadPace>,
    context: SharedContext,
    clock: Clock,
    setting: ProgramSetting,
    program: Program,
) {
    let pace = Arc::clone(pace);
    let seed =
        setting.scenario.seed ^ (setting.host as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let rng = fastrand::Rng::with_seed(seed);
    let body = move || {
        let ends = EndsAt(Arc::clone(&pace));
        let mut calls = Calls { context, clock, pace, rng, in_a_row: 0, is_set_up: false };
        let result = program(&mut calls, &setting);
        let mut inside = ends.0.lock();
        inside.violation = result.err();
        inside.open = 0;
    };
    thread::Builder::new().stack_size(1 << 18).spawn(body).expect("a thread can be had");
}

/// Says that a thread has ended, be it by a panic.
struct EndsAt(Arc<ThreadPace>);

impl Drop for EndsAt {
    fn drop(&mut self) {
        let mut inside = self.0.lock();
        if thread::panicking() {
            let what = "a panic".to_owned();
            inside.violation = Some(Violation::Call { host: self.0.host, call: "any", what });
        }
        inside.state = PaceState::Ended;
    }
}

/// What a program makes its calls through.
pub(super) struct Calls {
    context: SharedContext,
    clock: Clock,
    pace: Arc<ThreadPace>,
    pub(super) rng: fastrand::Rng,
    in_a_row: u32,
    /// It listens, if it ever does: until then no time passes.
    is_set_up: bool,
}

impl Calls {
    /// Makes a call, which may sleep.
    pub(super) fn call<T>(
        &mut self,
        call: impl FnOnce(&mut SharedContext) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.in_a_row += 1;
        if self.is_set_up && (self.in_a_row > CALLS_AT_ONCE || self.rng.u32(..8) == 0) {
            let pause = Duration::from_micros(self.rng.u64(1..100));
            self.sleep(pause);
        }
        self.pace.set(PaceState::InCall);
        let result = call(&mut self.context);
        self.pace.set(PaceState::Runs);
        result
    }

    /// As [`Calls::call`]; an error is a violation.
    pub(super) fn must<T>(
        &mut self,
        name: &'static str,
        call: impl FnOnce(&mut SharedContext) -> Result<T, Error>,
    ) -> Result<T, Violation> {
        let host = self.pace.host;
        self.call(call).map_err(|error| failed(host, name, error))
    }

    /// What a call that must not fail has answered.
    pub(super) fn failed(&self, call: &'static str, error: Error) -> Violation {
        failed(self.pace.host, call, error)
    }

    /// Lets time pass without a call.
    pub(super) fn sleep(&mut self, time: Duration) {
        self.in_a_row = 0;
        let until = self.now() + time;
        let mut inside = self.pace.lock();
        inside.state = PaceState::Pauses { until };
        while inside.state != PaceState::Runs {
            inside = self.pace.resumed.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Notes what the program has open or has still to do.
    pub(super) fn note_open(&mut self, open: usize) {
        self.is_set_up = true;
        self.pace.lock().open = open;
    }

    /// All is over, here and elsewhere.
    pub(super) fn is_finished(&self) -> bool {
        self.pace.lock().is_finished
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut NodeCounts)) {
        count(&mut self.pace.lock().counts);
    }
}

fn failed(host: usize, call: &'static str, error: Error) -> Violation {
    Violation::Call { host, call, what: error.to_string() }
}
