//! The load of redis: redis-benchmark, preloaded over a memif, and what the server's core did.
//!
//! A first run with SET stores the value and measures how many requests fill the window.

use super::{
    client::{CoreWatch, client, printed_by},
    stage::{PreloadBarError, ProgramSample, ProgramStack, ProgramStage, ServingProgram},
    unfit,
};
use crate::{
    cpu_time::{CoreTimes, run_time_with_children},
    limits,
    load::LoadFailure,
    process::ChildProcess,
};
use std::{
    io,
    net::SocketAddr,
    process::Stdio,
    time::{Duration, Instant},
};

/// What redis-benchmark is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedisRequests {
    pub(super) test: &'static str,
    pub(super) count: u64,
}

/// What was read of the server at a moment.
#[derive(Clone, Copy, Debug)]
struct ServerReading {
    at: Instant,
    core: CoreTimes,
    ran: Duration,
}

/// What redis-benchmark came to, and the server meanwhile.
#[derive(Clone, Copy, Debug)]
struct RedisRun {
    per_s: f64,
    /// Of the server's core, from the beginning to the end.
    busy_us: f64,
    /// Of the server's processes.
    ran_us: f64,
    /// Of the server's core, after the warm-up.
    idle_share: f64,
}

/// Measures redis under GET for about the window. Blocks.
pub(super) fn sample(
    stage: ProgramStage<'_>,
    serving: &mut ServingProgram,
    stack: ProgramStack,
    window: Duration,
) -> Result<ProgramSample, PreloadBarError> {
    let rate = prepare(stage, serving, stack)?;
    let requests = RedisRequests { test: "get", count: requests_within(rate, window) };
    let run = run(stage, serving, stack, requests)?;
    let cpu_us = if stack.link().is_some() { run.ran_us } else { run.busy_us };
    Ok(ProgramSample {
        requests_per_s: run.per_s,
        cpu_us: cpu_us / requests.count as f64,
        idle_share: run.idle_share,
    })
}

/// Waits until redis answers, and stores the value. Returns the rate of the SETs, per second.
pub(super) fn prepare(
    stage: ProgramStage<'_>,
    serving: &mut ServingProgram,
    stack: ProgramStack,
) -> Result<f64, PreloadBarError> {
    serving.retried(|serving| ping(stage, serving.address, stack))?;
    let first = RedisRequests { test: "set", count: limits::PRELOAD_FIRST_REQUESTS };
    Ok(run(stage, serving, stack, first)?.per_s)
}

/// Pure: as many requests as fill a window at a rate.
pub(super) fn requests_within(per_s: f64, window: Duration) -> u64 {
    ((per_s * window.as_secs_f64()) as u64).max(limits::PRELOAD_FIRST_REQUESTS)
}

/// The arguments of redis-benchmark.
fn words(address: SocketAddr, requests: RedisRequests) -> Vec<String> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let (connections, count) =
        (limits::PRELOAD_CONNECTIONS.to_string(), requests.count.to_string());
    let bytes = limits::PRELOAD_REDIS_BYTES.to_string();
    let words = ["-h", &ip, "-p", &port, "-c", &connections, "-d", &bytes, "-n", &count, "-t"];
    let words = words.into_iter().chain([requests.test, "--csv"]);
    words.map(str::to_owned).collect()
}

/// Sends one PING by redis-cli: redis-benchmark does not end if nothing listens.
fn ping(
    stage: ProgramStage<'_>,
    address: SocketAddr,
    stack: ProgramStack,
) -> Result<(), PreloadBarError> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let words = ["-h", &ip, "-p", &port, "ping"].map(str::to_owned).to_vec();
    let mut command = client(stage, stack, "redis-cli", words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ChildProcess::start(&mut command)?.output_within(limits::SCENE_PATIENCE)?;
    let output = output.ok_or(LoadFailure::Endless)?;
    if output.stdout.starts_with(b"PONG") {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(LoadFailure::Failed { said: String::from_utf8_lossy(&said).trim().to_owned() }.into())
}

/// Runs redis-benchmark, and returns what it prints. `watch` is called while it runs.
pub(super) fn requested(
    stage: ProgramStage<'_>,
    address: SocketAddr,
    stack: ProgramStack,
    requests: RedisRequests,
    watch: impl FnMut(u32) -> io::Result<()>,
) -> Result<String, PreloadBarError> {
    let command = client(stage, stack, "redis-benchmark", words(address, requests));
    // It may end with 0 though it could not connect.
    printed_by(stage, command, |text| rate_in(text).is_some(), watch)
}

fn run(
    stage: ProgramStage<'_>,
    serving: &ServingProgram,
    stack: ProgramStack,
    requests: RedisRequests,
) -> Result<RedisRun, PreloadBarError> {
    let cpus = &stage.layout.server.cpus;
    let read = || {
        let ran = serving.pids().into_iter().map(run_time_with_children);
        let ran = ran.sum::<io::Result<Duration>>()?;
        Ok::<_, io::Error>(ServerReading { at: Instant::now(), core: CoreTimes::read(cpus)?, ran })
    };
    let before = read()?;
    let mut watch = CoreWatch::new(cpus);
    let text =
        requested(stage, serving.address, stack, requests, |_| watch.look(|| Ok(Duration::ZERO)))?;
    let after = read()?;
    let per_s = rate_in(&text).ok_or_else(|| unfit("redis-benchmark printed no rate"))?;
    let core = after.core - before.core;
    // A run that is shorter than the warm-up has no better window than all of it.
    let inner = watch.window().map_or(core, |[first, last]| last.core - first.core);
    Ok(RedisRun {
        per_s,
        busy_us: core.busy_us((after.at - before.at).as_secs_f64()),
        ran_us: after.ran.saturating_sub(before.ran).as_secs_f64() * 1e6,
        idle_share: inner.idle_share(),
    })
}

/// Pure: the requests per second in the last line of redis-benchmark's CSV: name, rate, latencies.
pub(super) fn rate_in(csv: &str) -> Option<f64> {
    let line = csv.lines().rev().find(|line| line.starts_with('"'))?;
    let rate = line.split(',').nth(1)?.trim_matches('"').parse::<f64>().ok()?;
    (rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_the_second_column() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"84033.61\",\"0.5\"\n";
        assert_eq!(rate_in(csv), Some(84_033.61));
        assert_eq!(rate_in("\"test\",\"rps\",\"avg_latency_ms\"\n"), None);
        assert_eq!(rate_in("Could not connect to Redis at 192.0.2.1:7100\n"), None);
        assert_eq!(rate_in("\"GET\",\"0.00\"\n"), None);
    }

    #[test]
    fn requests_fill_the_window() {
        assert_eq!(requests_within(100_000.0, Duration::from_secs(2)), 200_000);
        let least = limits::PRELOAD_FIRST_REQUESTS;
        assert_eq!(requests_within(0.5, Duration::from_secs(2)), least);
    }

    #[test]
    fn requests_are_of_64_bytes_on_64_connections() {
        let requests = RedisRequests { test: "get", count: 9 };
        let words = words("192.0.2.1:7100".parse().unwrap(), requests).join(" ");
        assert_eq!(words, "-h 192.0.2.1 -p 7100 -c 64 -d 64 -n 9 -t get --csv");
    }
}
