//! What a daemon spends: system calls for a transaction, and memory for an idle connection.

use super::{
    loop_client::{AfterAnswer, LoopEvent},
    scene::{ProgramPlan, SceneError, SceneProcess, SceneStage, ServiceScene},
};
use crate::{
    idle_memory::resident_bytes,
    limits,
    process::{ChildProcess, find_program},
};
use rustix::process::Signal;
use std::{
    fs::{self, File},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const PORT: u16 = 7000;

/// System calls of the daemon and of a program for each transaction on so many connections that
/// are kept, counted by strace.
pub(super) fn system_calls(
    stage: SceneStage<'_>,
    connections: u32,
    window: Duration,
) -> Result<f64, SceneError> {
    let strace = find_program("strace").ok_or_else(|| {
        SceneError::Unfit("strace is not installed (apt-get install strace)".to_owned())
    })?;
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client(connections * 2)?;
    scene.await_daemon()?;
    let program = scene.program(ProgramPlan::at(PORT))?;
    let pids = [scene.daemon()?.pid(), scene.programs()[program].pid()];
    let places = 0..connections as usize;
    client.add(places.len(), scene.address(PORT), AfterAnswer::Ask);
    places.for_each(|place| client.start(place));
    client.run_until(Instant::now() + limits::LOAD_WARM_UP, |_, _| ())?;
    let (counts, log) = (stage.scratch.join("strace.txt"), stage.scratch.join("strace.log"));
    let mut command = Command::new(strace);
    command.args(["-c", "-f", "-o"]).arg(&counts);
    command.args(pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]));
    let file = File::create(&log)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(file));
    let mut strace = SceneProcess::new(ChildProcess::start(&mut command)?, log)?;
    for pid in pids {
        strace.wait_for_text("strace", &format!("Process {pid} attached"))?;
    }
    let (mut transactions, mut failed) = (0_u64, None);
    client.run_until(Instant::now() + window, |_, outcome| match outcome.event {
        LoopEvent::Answered { .. } => transactions += 1,
        LoopEvent::Failed(why) => failed = Some(why),
    })?;
    strace.end(Signal::INT)?;
    scene.check()?;
    if let Some(why) = failed {
        return Err(SceneError::Unfit(why));
    }
    let calls = calls_in(&fs::read_to_string(&counts)?);
    match (transactions, calls) {
        (0, _) => Err(SceneError::Unfit("no transaction under strace".to_owned())),
        (_, 0) => Err(SceneError::Unfit("strace has counted no system call".to_owned())),
        _ => Ok(calls as f64 / transactions as f64),
    }
}

/// Pure: the sum of the calls in strace's table, whose columns are share, seconds, microseconds per
/// call, calls, errors if there were any, and the name.
fn calls_in(table: &str) -> u64 {
    let calls = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_row = words.last() != Some(&"total") && words.len() >= 5;
        words.get(3).filter(|_| is_row)?.parse::<u64>().ok()
    });
    calls.sum()
}

/// Resident bytes of the daemon for each of so many idle connections, over several ports.
///
/// Connections before these have touched the rings and buffers of the sessions.
pub(super) fn idle_connection_bytes(stage: SceneStage<'_>, each: usize) -> Result<f64, SceneError> {
    let ports = PORT..PORT + limits::IDLE_PORTS;
    let idle = each * usize::from(limits::IDLE_PORTS);
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client((idle + 2 * limits::IDLE_FIRST) as u32)?;
    scene.await_daemon()?;
    for port in ports.clone() {
        let plan = ProgramPlan { connections: limits::IDLE_ROOM, ..ProgramPlan::at(port) };
        scene.program(plan)?;
    }
    let first = client.add(limits::IDLE_FIRST, scene.address(PORT), AfterAnswer::Ask);
    let places = first..first + limits::IDLE_FIRST;
    places.clone().for_each(|place| client.start(place));
    client.run_until(Instant::now() + limits::SLOW_WARM_UP, |_, _| ())?;
    places.for_each(|place| client.release(place));
    client.run_until(Instant::now() + limits::LOAD_WARM_UP, |_, _| ())?;
    let daemon = scene.daemon()?.pid();
    let before = resident_bytes(daemon)?;
    for port in ports {
        let first = client.add(each, scene.address(port), AfterAnswer::Wait);
        client.open_all(first..first + each, limits::OPENED_AT_ONCE, limits::BALANCE_MAX)?;
    }
    let after = resident_bytes(daemon)?;
    scene.check()?;
    Ok(after.saturating_sub(before) as f64 / idle as f64)
}

#[cfg(test)]
mod tests {
    use super::calls_in;

    #[test]
    fn calls_of_straces_table_are_summed() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
             60.00    0.000300           3       100        10 recvfrom\n\
             40.00    0.000200           4        50           epoll_wait\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.000500           3       150        10 total\n";
        assert_eq!(calls_in(table), 150);
        assert_eq!(calls_in(""), 0);
    }
}
