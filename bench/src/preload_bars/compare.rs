//! Programs on several stacks, in turn and back, and the ratios of their CPU time.

use super::{
    origin,
    programs::{PreloadedLoad, TestedProgram},
    redis_load,
    stage::{PreloadBarError, ProgramSample, ProgramStack, ProgramStage},
    unfit, web_client,
};
use crate::{
    layout::LayoutError,
    point::BarServer,
    preload_library::PreloadLibrary,
    promise::{BarResult, Promise},
    run::{Bench, round},
};
use std::time::Duration;

/// The samples of a program on each stack, run by run.
#[derive(Debug)]
pub(super) struct ProgramRounds {
    name: &'static str,
    of_stacks: Vec<StackSamples>,
}

/// On one stack; it is left out after its first failure.
#[derive(Debug)]
struct StackSamples {
    stack: ProgramStack,
    samples: Vec<ProgramSample>,
    why: Option<String>,
}

impl ProgramRounds {
    /// Measures a program, which a row names, on all stacks in each run.
    pub(super) fn measure(
        bench: &mut Bench,
        (program, name): (TestedProgram, &'static str),
        stacks: &[ProgramStack],
        library: &PreloadLibrary,
    ) -> Result<Self, LayoutError> {
        let none = |&stack| StackSamples { stack, samples: Vec::new(), why: None };
        let mut of_stacks: Vec<StackSamples> = stacks.iter().map(none).collect();
        let (mut run, window) = (0, bench.effort.window);
        let scratch = bench.scratch.path().to_owned();
        bench.repeat(name, |bench| {
            run += 1;
            for index in round(run, of_stacks.len()) {
                let of_stack = &mut of_stacks[index];
                if of_stack.why.is_some() {
                    continue;
                }
                let layout = bench.layout(1)?;
                let stage = ProgramStage { layout, scratch: &scratch, library };
                match sample(stage, program, of_stack.stack, window) {
                    Ok(sample) => of_stack.samples.push(sample),
                    Err(error) => {
                        bench.failed = true;
                        bench.note(format!("{name} on {}: {error}", of_stack.stack.name()));
                        of_stack.samples.clear();
                        of_stack.why = Some(error.to_string());
                    }
                }
            }
            Ok(Ok::<(), PreloadBarError>(()))
        })?;
        Ok(Self { name, of_stacks })
    }

    /// A promise about the CPU time on one stack over that on another.
    pub(super) fn result(
        &self,
        promise: Promise,
        one: ProgramStack,
        other: ProgramStack,
    ) -> BarResult {
        let of = |stack| self.of_stacks.iter().find(|it| it.stack == stack);
        let Some((one, other)) = of(one).zip(of(other)) else {
            return promise.result(Vec::new(), None);
        };
        let pairs = one.samples.iter().zip(&other.samples);
        let runs = pairs.map(|(one, other)| one.cpu_us / other.cpu_us).collect();
        let why = one.why.clone().or_else(|| other.why.clone());
        let mut result = promise.result(runs, why);
        result.servers = [one, other].into_iter().filter_map(|it| it.summary(self.name)).collect();
        if let [one, other] = &result.servers[..] {
            result.of_medians = Some(one.cpu_us_per_request / other.cpu_us_per_request);
        }
        result
    }
}

/// Starts a program, runs its load, and ends it. Blocks.
fn sample(
    stage: ProgramStage<'_>,
    program: TestedProgram,
    stack: ProgramStack,
    window: Duration,
) -> Result<ProgramSample, PreloadBarError> {
    let mut serving = stage.start(program, stack)?;
    if program.is_proxy() {
        origin::start(stage, stack, &mut serving)?;
    }
    let sample = match program.load() {
        PreloadedLoad::RedisBenchmark => redis_load::sample(stage, &mut serving, stack, window),
        PreloadedLoad::Client(client) => {
            web_client::sample(stage, &mut serving, (client, stack), window)
        }
        PreloadedLoad::Megapipe(plan) => stage.loaded(&plan, &mut serving, stack, window),
    };
    // What the program has printed explains more than what its load has.
    serving.check()?;
    let sample = sample?;
    // Its threads ended, or the window was shorter than a tick of the core's clock.
    if !(sample.cpu_us > 0.0 && sample.cpu_us.is_finite()) {
        return Err(unfit(format!("a request took {} µs of CPU time", sample.cpu_us)));
    }
    Ok(sample)
}

impl StackSamples {
    /// Pure: the medians, if there are samples.
    fn summary(&self, name: &str) -> Option<BarServer> {
        ProgramSample::medians(name, self.stack.name(), &self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(stack: ProgramStack, costs: &[f64], idle_share: f64) -> StackSamples {
        let sample = |&cpu_us| ProgramSample { requests_per_s: 1e5, cpu_us, idle_share };
        StackSamples { stack, samples: costs.iter().map(sample).collect(), why: None }
    }

    const PROMISE: Promise = Promise::at_least("x", "x", 5.5).with_digits(2);

    #[test]
    fn ratios_are_taken_run_by_run_and_of_medians() {
        let kernel = samples(ProgramStack::Kernel, &[6.0, 8.0, 9.0], 0.0);
        let local = samples(ProgramStack::Local, &[1.0, 2.0, 1.0], 0.2);
        let rounds = ProgramRounds { name: "x", of_stacks: vec![kernel, local] };
        let bar = rounds.result(PROMISE, ProgramStack::Kernel, ProgramStack::Local);
        assert_eq!((&bar.runs[..], bar.met()), (&[6.0, 4.0, 9.0][..], Some(true)));
        assert_eq!(bar.of_medians, Some(8.0));
        let saturated: Vec<bool> = bar.servers.iter().map(|it| it.saturated).collect();
        assert_eq!(saturated, [true, false]);
        assert!(bar.what_text().ends_with("(not saturated: local)"), "{}", bar.what_text());
    }

    #[test]
    fn failed_stack_is_not_measured_and_says_why() {
        let kernel = samples(ProgramStack::Kernel, &[6.0], 0.0);
        let why = Some("it has ended".to_owned());
        let local = StackSamples { why, ..samples(ProgramStack::Local, &[], 0.0) };
        let rounds = ProgramRounds { name: "x", of_stacks: vec![kernel, local] };
        let bar = rounds.result(PROMISE, ProgramStack::Kernel, ProgramStack::Local);
        assert_eq!((bar.met(), bar.why.as_deref()), (None, Some("it has ended")));
        assert!(bar.is_missed() && bar.of_medians.is_none());
        let bar = rounds.result(PROMISE, ProgramStack::Kernel, ProgramStack::Service);
        assert!(bar.met().is_none());
    }
}
