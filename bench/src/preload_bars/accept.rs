//! What the library adds to accept4(2) and close(2) of a connection, on `local`: time, and system
//! calls.
//!
//! A C program connects to itself inside the stack (`accept_close.c`). It is compiled with
//! `megapipe_bsd.h`, and for Linux and preloaded. System calls are those of its thread between
//! the first accept4 and the last close of a round.

use super::{
    c_program::{CPrefix, CPrograms, set_link},
    lack_of_library,
    stage::{PreloadBarError, ProgramStage},
    system_calls, unfit,
};
use crate::{
    layout::LayoutError,
    limits,
    preload_library::{self, PreloadLibrary, run_words},
    process::{ChildProcess, find_program},
    promise::{BarResult, Promise},
    run::Bench,
    server,
    stack_link::StackLink,
};
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

pub(super) const NAME: &str = "accept";

const SOURCE: &str = include_str!("accept_close.c");

pub(super) const PROMISES: [Promise; 2] = [
    at_most(
        "accept4 and close, preloaded over mps_accept4 and mps_close: time added",
        350.0,
        " ns",
    ),
    at_most("accept4 and close, preloaded: system calls added to a connection", 2.0, ""),
];

const fn at_most(what: &'static str, bound: f64, unit: &'static str) -> Promise {
    Promise::at_most(NAME, what, bound).in_unit(unit).with_digits(1)
}

/// What one run of a build came to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AcceptSample {
    ns: f64,
    calls: Option<f64>,
}

pub(super) fn bars(
    bench: &mut Bench,
    library: &Result<PreloadLibrary, String>,
) -> Result<[BarResult; 2], LayoutError> {
    let skipped = |why: String| Ok(PROMISES.map(|promise| promise.skipped(why.clone())));
    let found = lack_of_library(library).and_then(|it| Ok((it, CPrefix::of(it)?)));
    let (library, prefix) = match found {
        Ok(found) => found,
        Err(why) => return skipped(why),
    };
    let scratch = bench.scratch.path().to_owned();
    let programs = match compiled(&prefix, &scratch) {
        Ok(programs) => programs,
        Err(error) => {
            bench.failed = true;
            return Ok(PROMISES.map(|it| it.result(Vec::new(), Some(error.to_string()))));
        }
    };
    let (runs, why) = bench.repeat(NAME, |bench| {
        let stage = ProgramStage { layout: bench.layout(1)?, scratch: &scratch, library };
        Ok(added(stage, &programs))
    })?;
    let times = runs.iter().map(|run| run.ns).collect();
    let calls: Option<Vec<f64>> = runs.iter().map(|run| run.calls).collect();
    let [time, count] = PROMISES;
    let count = match calls {
        Some(calls) => count.result(calls, why.clone()),
        None => {
            count.skipped("system calls are not counted (tracefs, root, linux-perf)".to_owned())
        }
    };
    Ok([time.result(times, why), count])
}

fn compiled(prefix: &CPrefix, scratch: &Path) -> Result<CPrograms, PreloadBarError> {
    let source = scratch.join("accept_close.c");
    fs::write(&source, SOURCE)?;
    system_calls::write_header(scratch)?;
    prefix.compile(&source, scratch)
}

/// One run of each build: what preloading adds.
fn added(stage: ProgramStage<'_>, programs: &CPrograms) -> Result<AcceptSample, PreloadBarError> {
    let [ours, preloaded] = [false, true].map(|preloads| sample(stage, programs, preloads));
    let (ours, preloaded) = (ours?, preloaded?);
    let calls = preloaded.calls.zip(ours.calls).map(|(with, without)| with - without);
    Ok(AcceptSample { ns: preloaded.ns - ours.ns, calls })
}

/// The link, at whose other end is nothing.
fn options(stage: ProgramStage<'_>) -> Vec<String> {
    let options = StackLink::Memif.server_args(stage.layout, stage.scratch).into_iter();
    options.map(|it| if it.starts_with("memif:") { it + ",wait=0" } else { it }).collect()
}

/// Times a build, and counts its system calls in a second run, where they can be counted.
fn sample(
    stage: ProgramStage<'_>,
    programs: &CPrograms,
    preloads: bool,
) -> Result<AcceptSample, PreloadBarError> {
    let (ns, _) = printed(&mut command(stage, programs, preloads, &[])?)?;
    let Some(perf) = find_program("perf") else { return Ok(AcceptSample { ns, calls: None }) };
    // Where it is not mounted, perf mounts what the program finds the tracepoint in.
    let words = system_calls::counting(&perf);
    let mut counted = command(stage, programs, preloads, &words)?;
    let (_, calls) = printed(&mut counted)?;
    Ok(AcceptSample { ns, calls: (calls >= 0.0).then_some(calls) })
}

/// The command of a build behind the words of another program.
fn command(
    stage: ProgramStage<'_>,
    programs: &CPrograms,
    preloads: bool,
    before: &[String],
) -> Result<Command, PreloadBarError> {
    let ProgramStage { layout, scratch, library } = stage;
    let (address, _) = server::free_address(Some(StackLink::Memif), layout)?;
    let rounds = limits::PRELOAD_ACCEPT_ROUNDS.to_string();
    let args = vec![address.ip().to_string(), address.port().to_string(), rounds];
    let (place, options) = (&layout.server, options(stage));
    let words: Vec<String> = match preloads {
        true => {
            let run = run_words(options.clone(), &programs.linux, args).into_iter();
            [place.program.to_string_lossy().into_owned()].into_iter().chain(run).collect()
        }
        false => {
            let program = programs.ours.to_string_lossy().into_owned();
            [program].into_iter().chain(args).collect()
        }
    };
    let mut words = before.iter().cloned().chain(words);
    let program = words.next().unwrap_or_default();
    let mut command = place.command(Path::new(&program), words);
    if preloads {
        command.env(preload_library::VARIABLE, &library.0);
    } else {
        command.env("MEGAPIPE_SOCKETS", "shared").env("MEGAPIPE_BACKEND", "local");
        // As `run` does.
        command.env("MEGAPIPE_PLACEMENT", "thread");
        set_link(&mut command, &options);
    }
    let log = scratch.join("accept.log");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::from(File::create(&log)?));
    Ok(command)
}

/// Runs a build: the nanoseconds and the system calls of a pair.
fn printed(command: &mut Command) -> Result<(f64, f64), PreloadBarError> {
    let output = ChildProcess::start(command)?.output_within(limits::SCENE_PATIENCE)?;
    let output = output.ok_or_else(|| unfit("accept_close did not end"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = pair_in(&text).filter(|_| output.status.success());
    numbers.ok_or_else(|| unfit(format!("accept_close failed ({}): {text}", output.status)))
}

/// Pure: the two numbers that `accept_close.c` prints.
fn pair_in(text: &str) -> Option<(f64, f64)> {
    let (ns, calls) = text.trim().split_once(' ')?;
    Some((ns.parse().ok()?, calls.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::pair_in;

    #[test]
    fn nanoseconds_and_calls_are_read() {
        assert_eq!(pair_in("812.5 2.031\n"), Some((812.5, 2.031)));
        assert_eq!(pair_in("connect: Network is unreachable\n"), None);
    }
}
