//! One C program in three builds: `bsd_web_server.c` compiled with `megapipe_bsd.h` on sockets of
//! one thread and on shared ones, and compiled for Linux and preloaded. All are on `local`.
//!
//! Read first: `crates/capi/examples/bsd_web_server.c`. The load is wrk, preloaded.

use super::{
    c_program::{CPrefix, CPrograms, set_link},
    lack_of_library,
    stage::{PreloadBarError, ProgramSample, ProgramStack, ProgramStage},
    unfit, web_client,
};
use crate::{
    layout::LayoutError,
    point::BarServer,
    preload_library::{PreloadLibrary, run_words},
    promise::{BarResult, Promise},
    run::Bench,
    stack_link::StackLink,
};
use std::{net::SocketAddr, process::Command, time::Duration};

pub(super) const PROMISES: [Promise; 2] = [
    at_most("shared", "a C web server on shared sockets: CPU over that on one thread's", 1.15),
    at_most(
        "compiled",
        "a C web server, preloaded: CPU over that compiled, on shared sockets",
        1.05,
    ),
];

const fn at_most(name: &'static str, what: &'static str, bound: f64) -> Promise {
    Promise::at_most(name, what, bound).with_digits(2)
}

const NAME: &str = "bsd_web_server";

/// How the program comes to our sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerBuild {
    OneThread,
    Shared,
    Preloaded,
}

const BUILDS: [ServerBuild; 3] =
    [ServerBuild::OneThread, ServerBuild::Shared, ServerBuild::Preloaded];

pub(super) fn bars(
    bench: &mut Bench,
    library: &Result<PreloadLibrary, String>,
) -> Result<[BarResult; 2], LayoutError> {
    let scratch = bench.scratch.path().to_owned();
    let found = lack_of_library(library).and_then(|it| {
        let prefix = CPrefix::of(it)?;
        Ok((it, prefix.example(NAME)?, prefix))
    });
    let (library, source, prefix) = match found {
        Ok(found) => found,
        Err(why) => return Ok(PROMISES.map(|promise| promise.skipped(why.clone()))),
    };
    let programs = match prefix.compile(&source, &scratch) {
        Ok(programs) => programs,
        Err(error) => {
            bench.failed = true;
            return Ok(PROMISES.map(|it| it.result(Vec::new(), Some(error.to_string()))));
        }
    };
    let (mut run, window) = (0, bench.effort.window);
    let (samples, why) = bench.repeat(NAME, |bench| {
        run += 1;
        let stage = ProgramStage { layout: bench.layout(1)?, scratch: &scratch, library };
        Ok(round(run, stage, &programs, window))
    })?;
    let result = |promise: Promise, [one, other]: [usize; 2]| {
        let ratio = |it: &[ProgramSample; 3]| it[one].cpu_us / it[other].cpu_us;
        let mut result = promise.result(samples.iter().map(ratio).collect(), why.clone());
        result.servers = [one, other].into_iter().filter_map(|at| summary(&samples, at)).collect();
        if let [one, other] = &result.servers[..] {
            result.of_medians = Some(one.cpu_us_per_request / other.cpu_us_per_request);
        }
        result
    };
    Ok([result(PROMISES[0], [1, 0]), result(PROMISES[1], [2, 1])])
}

/// All builds, in turn.
fn round(
    run: usize,
    stage: ProgramStage<'_>,
    programs: &CPrograms,
    window: Duration,
) -> Result<[ProgramSample; 3], PreloadBarError> {
    let mut samples = [None; 3];
    for index in crate::run::round(run, BUILDS.len()) {
        samples[index] = Some(sample(stage, programs, BUILDS[index], window)?);
    }
    let missing = || unfit("a build was not measured");
    let [one, two, three] = samples;
    Ok([one.ok_or_else(missing)?, two.ok_or_else(missing)?, three.ok_or_else(missing)?])
}

fn sample(
    stage: ProgramStage<'_>,
    programs: &CPrograms,
    build: ServerBuild,
    window: Duration,
) -> Result<ProgramSample, PreloadBarError> {
    let mut serving =
        stage.start_command(build.name(), |address| Ok(build.command(stage, programs, address)))?;
    let sample = web_client::of_server(stage, &mut serving, ProgramStack::Local, window);
    serving.check()?;
    sample
}

impl ServerBuild {
    /// As results have it.
    const fn name(self) -> &'static str {
        match self {
            Self::OneThread => "one thread",
            Self::Shared => "shared",
            Self::Preloaded => "preloaded",
        }
    }

    /// The command that serves at the port of an address, with one thread.
    fn command(
        self,
        stage: ProgramStage<'_>,
        programs: &CPrograms,
        address: SocketAddr,
    ) -> Command {
        let ProgramStage { layout, scratch, .. } = stage;
        let place = &layout.server;
        let words = vec![address.port().to_string(), "1".to_owned()];
        let options = StackLink::Memif.server_args(layout, scratch);
        let sockets = match self {
            Self::OneThread => "thread",
            Self::Shared => "shared",
            Self::Preloaded => {
                // It listens at any address, which would be the kernel's as well.
                let rule = ["--rule", "stack listen *:*"].map(str::to_owned);
                let options = options.into_iter().chain(rule).collect();
                return place.command(&place.program, run_words(options, &programs.linux, words));
            }
        };
        let mut command = place.command(&programs.ours, words);
        command.env("MEGAPIPE_SOCKETS", sockets).env("MEGAPIPE_BACKEND", "local");
        // As `run` does.
        command.env("MEGAPIPE_PLACEMENT", "thread");
        set_link(&mut command, &options);
        command
    }
}

/// Pure: the medians of a build.
fn summary(samples: &[[ProgramSample; 3]], at: usize) -> Option<BarServer> {
    let samples: Vec<_> = samples.iter().map(|it| it[at]).collect();
    ProgramSample::medians(NAME, BUILDS[at].name(), &samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_builds_that_the_rows_name() {
        let of = |cpu_us| ProgramSample { requests_per_s: 1e5, cpu_us, idle_share: 0.0 };
        let samples = [[of(1.0), of(1.2), of(1.5)]];
        let names: Vec<_> = (0..3).filter_map(|at| summary(&samples, at)).collect();
        let costs: Vec<_> = names.iter().map(|it| (&*it.backend, it.cpu_us_per_request)).collect();
        assert_eq!(costs, [("one thread", 1.0), ("shared", 1.2), ("preloaded", 1.5)]);
        assert!(names.iter().all(|it| it.saturated) && summary(&[], 0).is_none());
    }
}
