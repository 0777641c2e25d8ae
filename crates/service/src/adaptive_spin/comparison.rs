//! Comparison of two ways to wait: spinning against sleeping at once, by CPU time per unit of work.
//!
//! No single number of a link says whether spinning pays: polling has a price of its own on each
//! link, sleep and wake-up have another, and a server that sleeps handles larger batches. So both
//! ways are tried under the load that there is:
//!
//! ```text
//!   way  chosen ------------------->               chosen ------------------>
//!                                     other ------->
//!        pause | measure before     | settle | measure | settle | measure after | pause
//! ```
//!
//! One trial gives one sample: the logarithm of the cost of spinning over the cost of sleeping. A
//! trial is dropped if the load changed meanwhile, that is if the costs before and after differ
//! much. The mean of the last samples and its standard error decide; near a tie spinning is kept,
//! because it answers sooner. Where the server does more work per second while it spins, the tie is
//! wider: sleeping has to save more than throughput is worth ([`RATE_WORTH`]).
//!
//! Trials are paid from a credit of time in the other way, which grows by a fiftieth of the time
//! that passes. A new comparison spends it at once, until its samples are decisive. Later, one
//! trial in a hundred times its length finds out whether something has changed; if so, the samples
//! are dropped and the credit is spent again.
//!
//! Invariants
//! - Over any period, the time in the other way is at most [`CREDIT_MAX`] plus a fiftieth of it,
//!   plus one trial.
//! - A server without work measures nothing: it is called after polls that had work.

use std::time::Duration;

use megapipe_stack::Instant;

/// What was used and done until a moment. Only differences count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time of the polling thread.
    pub busy: Duration,
    /// Work in a unit that does not depend on how the server waits: payload bytes and connections,
    /// for example, but not frames or events, of which larger batches have fewer.
    pub work: u64,
}

/// Shortest time over which a cost is measured.
const MEASURE: Duration = Duration::from_millis(10);
/// A measurement that lasts longer is given up: with so little work nothing is at stake.
const MEASURE_MAX: Duration = Duration::from_millis(250);
/// Least work of a measurement. The unit is a byte of payload; see [`Usage`].
const WORK_MIN: u64 = 4_096;
/// Time after a change of the way in which nothing is measured: queues fill or drain.
const SETTLE: Duration = Duration::from_millis(5);
/// Time in the other way that one trial takes where there is enough work.
const TRIAL: Duration = Duration::from_millis(15);
/// The most time in the other way that may be spent at once.
const CREDIT_MAX: Duration = Duration::from_millis(200);
/// Credit grows by one part in so many of the time that passes.
const CREDIT_PARTS: u32 = 50;
/// Where nothing changes, a trial takes one part in so many of the time.
const STEADY_PARTS: u32 = 100;
/// Pause after a trial that found no load to measure.
const RETRY: Duration = Duration::from_secs(1);
/// Samples that the mean is taken of, at most.
const SAMPLES_MAX: usize = 16;
/// Fewer samples decide nothing.
const SAMPLES_MIN: usize = 4;
/// So many samples are taken in a row, as far as the credit goes, and more as long as they are not
/// decisive.
const SAMPLES_WANTED: usize = 6;
/// Samples are cut to this: a factor of 2.7. One that a disturbance spoilt has no more weight.
const SAMPLE_MAX: f64 = 1.0;
/// Spinning may cost so much more before sleeping is chosen, as a logarithm.
const SLEEP_ABOVE: f64 = 0.02;
/// Spinning is chosen again if it costs less than so much more.
const SPIN_BELOW: f64 = 0.0;
/// What a gain in work per second is worth at most, as a logarithm of costs. Together with
/// [`SLEEP_ABOVE`] it bounds what spinning may cost more than sleeping.
const RATE_WORTH: f64 = 0.03;
/// Costs in the same way that differ by more, as a logarithm, are of different loads: a factor of
/// 1.5.
const SAME_LOAD: f64 = 0.4;

/// What goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ComparisonPhase {
    /// No trial.
    Pause,
    MeasureBefore(CostSample),
    SettleOther {
        before: WaitCost,
    },
    MeasureOther {
        before: WaitCost,
        start: CostSample,
    },
    SettleOwn {
        before: WaitCost,
        other: WaitCost,
    },
    MeasureAfter {
        before: WaitCost,
        other: WaitCost,
        start: CostSample,
    },
}

/// Where a measurement began.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CostSample {
    at: Instant,
    usage: Usage,
}

/// What a measurement found.
#[derive(Debug, Clone, Copy, PartialEq)]
struct WaitCost {
    /// CPU time per unit of work, in nanoseconds.
    cost: f64,
    /// Units of work per nanosecond.
    rate: f64,
}

impl WaitCost {
    fn between(one: Self, other: Self) -> Self {
        let cost = f64::midpoint(one.cost, other.cost);
        Self { cost, rate: f64::midpoint(one.rate, other.rate) }
    }

    /// How much dearer this way is than `sleep`, as a logarithm, less what its gain in work per
    /// second is worth.
    fn excess_over(self, sleep: Self) -> f64 {
        (self.cost / sleep.cost).ln() - (self.rate / sleep.rate).ln().clamp(0.0, RATE_WORTH)
    }
}

/// How a measurement stands.
enum Measured {
    Done(WaitCost),
    /// Too little work so far.
    NotYet,
    /// Too little work for too long.
    Never,
}

impl CostSample {
    /// What was used and done since this point.
    fn measured(self, now: Instant, usage: Usage) -> Measured {
        let work = usage.work.saturating_sub(self.usage.work);
        let busy = usage.busy.saturating_sub(self.usage.busy);
        let time = now.since(self.at);
        if work < WORK_MIN || busy.is_zero() || time.is_zero() {
            return if time >= MEASURE_MAX { Measured::Never } else { Measured::NotYet };
        }
        let (busy, work, time) = (busy.as_nanos() as f64, work as f64, time.as_nanos() as f64);
        Measured::Done(WaitCost { cost: busy / work, rate: work / time })
    }
}

/// Whether two costs in the same way may be of one load.
fn is_alike(one: f64, other: f64) -> bool {
    (one / other).ln().abs() <= SAME_LOAD
}

/// The last samples.
#[derive(Debug, Clone, Copy, Default)]
struct Samples {
    last: [f64; SAMPLES_MAX],
    /// How many were taken since the last `clear`.
    taken: usize,
}

impl Samples {
    /// Takes a sample. One that contradicts the others is of another load.
    fn put(&mut self, sample: f64) {
        let sample = sample.clamp(-SAMPLE_MAX, SAMPLE_MAX);
        if self.mean().is_some_and(|(mean, _)| (sample - mean).abs() > SAME_LOAD) {
            self.clear();
        }
        self.last[self.taken % SAMPLES_MAX] = sample;
        self.taken += 1;
    }

    /// Drops all samples, if they are enough: a load that always changes leaves as many as decide.
    const fn clear(&mut self) {
        if self.are_enough() {
            self.taken = 0;
        }
    }

    const fn are_enough(&self) -> bool {
        self.taken >= SAMPLES_WANTED
    }

    /// More samples would hardly change the choice, or as many as count were taken.
    fn are_decisive(&self) -> bool {
        let is_clear = |(mean, error): (f64, f64)| {
            mean - 2.0 * error > SLEEP_ABOVE || mean + 2.0 * error < SPIN_BELOW
        };
        self.taken >= SAMPLES_MAX || self.are_enough() && self.mean().is_some_and(is_clear)
    }

    /// Mean and standard error; `None`: there are too few.
    fn mean(&self) -> Option<(f64, f64)> {
        let last = &self.last[..self.taken.min(SAMPLES_MAX)];
        if last.len() < SAMPLES_MIN {
            return None;
        }
        let count = last.len() as f64;
        let mean = last.iter().sum::<f64>() / count;
        let squares = last.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>();
        Some((mean, (squares / (count - 1.0) / count).sqrt()))
    }
}

/// Which way costs less, and the trials that find it out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comparison {
    /// The way that is chosen.
    is_spinning: bool,
    phase: ComparisonPhase,
    /// When the phase may end.
    until: Instant,
    samples: Samples,
    /// The cost before the last trial, in the way that is still chosen.
    last_cost: Option<f64>,
    /// Time in the other way that may be spent.
    credit: Duration,
    /// When the credit was counted last; `None`: never.
    credited: Option<Instant>,
    /// Since when the other way is tried.
    other_since: Option<Instant>,
}

impl Comparison {
    /// Begins with spinning.
    pub(super) const fn new() -> Self {
        Self {
            is_spinning: true,
            phase: ComparisonPhase::Pause,
            until: Instant::from_nanos(0),
            samples: Samples { last: [0.0; SAMPLES_MAX], taken: 0 },
            last_cost: None,
            credit: CREDIT_MAX,
            credited: None,
            other_since: None,
        }
    }

    /// Whether to spin now: the way that is chosen, or in a trial the other one.
    #[inline]
    pub(super) const fn spins(&self) -> bool {
        self.is_spinning != self.other_since.is_some()
    }

    /// Whether [`Comparison::advance`] has something to do.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Goes on, after a poll that had work, when it is due. Without `usage` it compares nothing.
    pub(super) fn advance(&mut self, now: Instant, usage: Option<Usage>) {
        let Some(usage) = usage else {
            self.until = now + RETRY;
            return;
        };
        let start = CostSample { at: now, usage };
        match self.phase {
            ComparisonPhase::Pause => {
                self.enter(now, ComparisonPhase::MeasureBefore(start), MEASURE)
            }
            ComparisonPhase::MeasureBefore(before) => match before.measured(now, usage) {
                Measured::Done(before) => {
                    self.look_at_load(before.cost);
                    self.other_since = Some(now);
                    self.enter(now, ComparisonPhase::SettleOther { before }, SETTLE);
                }
                other => self.wait_for_work(now, &other),
            },
            ComparisonPhase::SettleOther { before } => {
                self.enter(now, ComparisonPhase::MeasureOther { before, start }, MEASURE);
            }
            ComparisonPhase::MeasureOther { before, start } => match start.measured(now, usage) {
                Measured::Done(other) => {
                    self.leave_other(now);
                    self.enter(now, ComparisonPhase::SettleOwn { before, other }, SETTLE);
                }
                other => self.wait_for_work(now, &other),
            },
            ComparisonPhase::SettleOwn { before, other } => {
                self.enter(now, ComparisonPhase::MeasureAfter { before, other, start }, MEASURE);
            }
            ComparisonPhase::MeasureAfter { before, other, start } => {
                match start.measured(now, usage) {
                    Measured::Done(after) => {
                        self.judge(before, other, after);
                        self.pause(now);
                    }
                    other => self.wait_for_work(now, &other),
                }
            }
        }
    }

    fn enter(&mut self, now: Instant, phase: ComparisonPhase, time: Duration) {
        self.phase = phase;
        self.until = now + time;
    }

    /// A measurement goes on, or is given up.
    fn wait_for_work(&mut self, now: Instant, measured: &Measured) {
        if matches!(measured, Measured::NotYet) {
            self.until = now + MEASURE;
            return;
        }
        self.leave_other(now);
        self.count_credit(now);
        self.enter(now, ComparisonPhase::Pause, RETRY);
    }

    /// Back to the chosen way; the trial is paid.
    fn leave_other(&mut self, now: Instant) {
        if let Some(since) = self.other_since.take() {
            self.count_credit(now);
            // One that took longer than there was credit for delays the next.
            let spent = now.since(since);
            let debt = spent.saturating_sub(self.credit);
            self.credit = self.credit.saturating_sub(spent);
            self.credited = Some(now + debt * CREDIT_PARTS);
        }
    }

    fn count_credit(&mut self, now: Instant) {
        let since = *self.credited.get_or_insert(now);
        if now > since {
            self.credit = (self.credit + now.since(since) / CREDIT_PARTS).min(CREDIT_MAX);
            self.credited = Some(now);
        }
    }

    /// Drops the samples if the cost in the same way shows that they are of another load.
    fn look_at_load(&mut self, cost: f64) {
        if self.last_cost.is_some_and(|last| !is_alike(cost, last)) {
            self.samples.clear();
        }
        self.last_cost = Some(cost);
    }

    /// Takes the sample of a trial, and chooses.
    fn judge(&mut self, before: WaitCost, other: WaitCost, after: WaitCost) {
        if !is_alike(before.cost, after.cost) {
            return;
        }
        let own = WaitCost::between(before, after);
        let (spin, sleep) = if self.is_spinning { (own, other) } else { (other, own) };
        self.samples.put(spin.excess_over(sleep));
        let Some((mean, error)) = self.samples.mean() else { return };
        let is_spinning =
            if self.is_spinning { mean - error <= SLEEP_ABOVE } else { mean + error < SPIN_BELOW };
        if is_spinning != self.is_spinning {
            self.is_spinning = is_spinning;
            self.last_cost = None;
        }
    }

    /// Until the next trial.
    fn pause(&mut self, now: Instant) {
        self.count_credit(now);
        let pause = if self.samples.are_decisive() {
            TRIAL * STEADY_PARTS
        } else {
            TRIAL.saturating_sub(self.credit) * CREDIT_PARTS
        };
        // A trial that was long is paid first.
        let debt = self.credited.map_or(Duration::ZERO, |credited| credited.since(now));
        self.enter(now, ComparisonPhase::Pause, pause.max(debt).max(SETTLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of a poll; a poll takes a tenth of a millisecond.
    const WORK: u64 = 1_000;

    /// A server with work at any time, whose costs a closure says.
    struct Busy {
        comparison: Comparison,
        now: Instant,
        usage: Usage,
    }

    impl Busy {
        fn new() -> Self {
            let (comparison, usage) = (Comparison::new(), Usage::default());
            Self { comparison, now: Instant::from_millis(1_000), usage }
        }

        /// Polls for a time; how long it spun of it. `cost`: CPU time per work, in nanoseconds.
        fn run(&mut self, time: Duration, cost: impl FnMut(bool) -> u64) -> Duration {
            self.run_at(time, |_| WORK, cost)
        }

        /// The same, with so much work per poll.
        fn run_at(
            &mut self,
            time: Duration,
            work: impl Fn(bool) -> u64,
            mut cost: impl FnMut(bool) -> u64,
        ) -> Duration {
            let (end, mut spun) = (self.now + time, Duration::ZERO);
            let poll = Duration::from_micros(100);
            while self.now < end {
                let spins = self.comparison.spins();
                spun += if spins { poll } else { Duration::ZERO };
                self.now += poll;
                self.usage.work += work(spins);
                self.usage.busy += Duration::from_nanos(cost(spins) * work(spins));
                if self.comparison.is_due(self.now) {
                    self.comparison.advance(self.now, Some(self.usage));
                }
            }
            spun
        }
    }

    #[test]
    fn comparison_chooses_the_cheaper_way_within_half_a_second() {
        let mut busy = Busy::new();
        busy.run(Duration::from_millis(500), |spins| if spins { 22 } else { 20 });
        assert!(!busy.comparison.is_spinning);
        let mut busy = Busy::new();
        busy.run(Duration::from_millis(500), |spins| if spins { 20 } else { 22 });
        assert!(busy.comparison.is_spinning);
    }

    #[test]
    fn comparison_keeps_spinning_where_costs_are_equal() {
        let mut busy = Busy::new();
        let spun = busy.run(Duration::from_secs(60), |_| 20);
        assert!(busy.comparison.is_spinning && spun > Duration::from_secs(59), "{spun:?}");
    }

    #[test]
    fn comparison_keeps_spinning_where_sleeping_loses_more_throughput_than_it_saves() {
        let per_poll = |spins| if spins { 1_000 } else { 900 };
        let half_a_second = Duration::from_millis(500);
        let mut busy = Busy::new();
        busy.run_at(half_a_second, per_poll, |spins| if spins { 104 } else { 100 });
        assert!(busy.comparison.is_spinning, "a twentieth dearer, and a tenth more work");
        let mut busy = Busy::new();
        busy.run_at(half_a_second, |_| WORK, |spins| if spins { 104 } else { 100 });
        assert!(!busy.comparison.is_spinning, "dearer, and no more work");
        let mut busy = Busy::new();
        busy.run_at(half_a_second, per_poll, |spins| if spins { 110 } else { 100 });
        assert!(!busy.comparison.is_spinning, "much dearer");
    }

    #[test]
    fn comparison_bounds_the_time_of_trials() {
        // The load changes with each trial, so that no sample is like the last.
        let mut busy = Busy::new();
        let (mut polls, mut factor) = (0_u64, 1);
        let time = Duration::from_secs(100);
        let spun = busy.run(time, |spins| {
            polls += 1;
            if polls.is_multiple_of(3_000) {
                factor = 5 - factor;
            }
            factor * if spins { 10 } else { 20 }
        });
        let slept = time - spun;
        assert!(busy.comparison.is_spinning);
        assert!(slept <= CREDIT_MAX + TRIAL + time / CREDIT_PARTS, "{slept:?} of {time:?}");
        assert!(slept >= time / STEADY_PARTS / 2, "{slept:?} of {time:?}");
    }

    #[test]
    fn comparison_gives_a_trial_up_when_the_load_ends() {
        let mut busy = Busy::new();
        busy.run(Duration::from_micros(15_500), |_| 20);
        assert!(!busy.comparison.spins(), "a trial of the other way");
        // One poll with work, a second later.
        busy.now += Duration::from_secs(1);
        busy.usage.work += 1;
        busy.comparison.advance(busy.now, Some(busy.usage));
        assert!(busy.comparison.spins());
        assert!(!busy.comparison.is_due(busy.now + MEASURE));
    }

    #[test]
    fn comparison_without_usage_keeps_spinning() {
        let mut comparison = Comparison::new();
        for second in 1..100 {
            comparison.advance(Instant::from_millis(second * 1_000), None);
            assert!(comparison.spins());
        }
    }
}
