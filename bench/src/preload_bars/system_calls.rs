//! System calls of preloaded redis for each GET at full load, counted by the kernel's tracepoint
//! of all system calls.
//!
//! Read first: perf-stat(1). A tracer (strace) would stop redis at each call: fewer requests come
//! then, and more of them with one call.

use super::{
    lack,
    programs::TestedProgram,
    redis_load::{self, RedisRequests},
    stage::{PreloadBarError, ProgramStack, ProgramStage},
    unfit,
};
use crate::{
    layout::LayoutError,
    limits,
    preload_library::PreloadLibrary,
    process::{ChildProcess, find_program},
    promise::{BarResult, Promise},
    run::Bench,
};
use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

pub(super) const PROMISE: Promise = Promise::at_most(
    "syscalls",
    "redis on local, GET at full load: system calls for a request",
    0.1,
);

const HEADER: &str = include_str!("system_call_counter.h");

/// The tracepoint that each system call passes.
const EVENT: &str = "raw_syscalls:sys_enter";

pub(super) fn bar(
    bench: &mut Bench,
    library: &Result<PreloadLibrary, String>,
) -> Result<BarResult, LayoutError> {
    let library = match lack(library, TestedProgram::Redis) {
        Ok(library) => library,
        Err(why) => return Ok(PROMISE.skipped(why)),
    };
    let Some(perf) = find_program("perf") else {
        return Ok(PROMISE.skipped("perf is not installed (apt-get install linux-perf)".to_owned()));
    };
    let scratch = bench.scratch.path().to_owned();
    let window = bench.effort.window;
    let (runs, why) = bench.repeat(PROMISE.name, |bench| {
        let stage = ProgramStage { layout: bench.layout(1)?, scratch: &scratch, library };
        Ok(calls_of_a_get(stage, &perf, window))
    })?;
    Ok(PROMISE.result(runs, why))
}

fn calls_of_a_get(
    stage: ProgramStage<'_>,
    perf: &Path,
    window: Duration,
) -> Result<f64, PreloadBarError> {
    let stack = ProgramStack::Local;
    let mut serving = stage.start(TestedProgram::Redis, stack)?;
    let rate = redis_load::prepare(stage, &mut serving, stack)?;
    let requests = RedisRequests { test: "get", count: redis_load::requests_within(rate, window) };
    let (begun, counted) = (Instant::now(), window / 2);
    let mut counter = None;
    let text = redis_load::requested(stage, serving.address, stack, requests, |_| {
        if counter.is_none() && begun.elapsed() >= limits::LOAD_WARM_UP {
            counter = Some(started(perf, &serving.pids(), counted)?);
        }
        Ok(())
    })?;
    serving.check()?;
    let per_s = redis_load::rate_in(&text).ok_or_else(|| unfit("redis-benchmark has no rate"))?;
    let counter = counter.ok_or_else(|| unfit("redis-benchmark ended before it was counted"))?;
    Ok(printed_calls(counter)? as f64 / (per_s * counted.as_secs_f64()))
}

/// Starts counting the system calls of all threads of some processes, for this time.
fn started(perf: &Path, pids: &[u32], time: Duration) -> std::io::Result<ChildProcess> {
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut command = Command::new(perf);
    command.args(["stat", "-x", ",", "-e", EVENT, "-p", &pids, "--", "sleep"]);
    command.arg(time.as_secs_f64().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ChildProcess::start(&mut command)
}

fn printed_calls(counter: ChildProcess) -> Result<u64, PreloadBarError> {
    let output = counter.output_within(limits::SCENE_PATIENCE)?;
    let output = output.ok_or_else(|| unfit("perf did not end"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    match calls_in(&text) {
        Some(calls) if calls > 0 => Ok(calls),
        _ => Err(unfit(format!("perf has counted no system call: {}", text.trim()))),
    }
}

/// Writes what C programs count their system calls with, for their `#include`.
pub(super) fn write_header(folder: &Path) -> std::io::Result<()> {
    std::fs::write(folder.join("system_call_counter.h"), HEADER)
}

/// The words that count the system calls of a command which follows them.
pub(super) fn counting(perf: &Path) -> Vec<String> {
    let perf = perf.to_string_lossy().into_owned();
    let words = ["stat", "-x", ",", "-e", EVENT, "--"].map(str::to_owned);
    [perf].into_iter().chain(words).collect()
}

/// Pure: the count in the first column of perf's line about the event.
fn calls_in(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(EVENT))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::calls_in;

    #[test]
    fn calls_are_the_first_column_of_the_event() {
        let text = "notice\n4817,,raw_syscalls:sys_enter,1000100200,100.00,,\n";
        assert_eq!(calls_in(text), Some(4817));
        assert_eq!(calls_in("<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
        assert_eq!(calls_in("event syntax error: unknown tracepoint\n"), None);
    }
}
