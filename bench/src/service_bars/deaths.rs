//! Deaths: a program with many connections, and the daemon itself, both by SIGKILL.

use super::{
    loop_client::{AfterAnswer, LoopClient, LoopEvent, LoopOutcome},
    scene::{ProgramPlan, SceneError, SceneProcess, SceneStage, ServiceScene},
};
use crate::{answer_server::monotonic_ns, limits, measure::quantile};
use megapipe_service::{attach::ServiceObserver, observe::SocketState};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const PORT: u16 = 7000;
/// Of the program that is killed.
const VICTIM_PORT: u16 = 7001;

/// What others saw of the death of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct KilledOutcome {
    /// Connections of others that failed.
    pub(super) errors: u64,
    /// Their response time in the second after the death over that in the second before.
    pub(super) p99_ratio: f64,
}

/// A scene with a program that has connections, and another one.
struct VictimScene<'bench> {
    scene: ServiceScene<'bench>,
    client: LoopClient,
    victim: usize,
    /// Of the victim in the client.
    places: std::ops::Range<usize>,
}

impl<'bench> VictimScene<'bench> {
    fn start(stage: SceneStage<'bench>, connections: usize) -> Result<Self, SceneError> {
        let mut scene = ServiceScene::start(stage, &[])?;
        let room = connections + 4 * limits::OTHER_CONNECTIONS;
        let mut client = scene.client(room as u32)?;
        scene.await_daemon()?;
        scene.program(ProgramPlan::at(PORT))?;
        let victim = scene.program(ProgramPlan::at(VICTIM_PORT))?;
        let first = client.add(connections, scene.address(VICTIM_PORT), AfterAnswer::Wait);
        let places = first..first + connections;
        client.open_all(places.clone(), limits::OPENED_AT_ONCE, limits::SCENE_PATIENCE)?;
        Ok(Self { scene, client, victim, places })
    }
}

/// Kills a program with so many idle connections beside another one that is busy.
pub(super) fn killed(
    stage: SceneStage<'_>,
    connections: usize,
) -> Result<KilledOutcome, SceneError> {
    let VictimScene { mut scene, mut client, victim, places } =
        VictimScene::start(stage, connections)?;
    for after in [AfterAnswer::Ask, AfterAnswer::Reconnect] {
        let first = client.add(limits::OTHER_CONNECTIONS, scene.address(PORT), after);
        (first..first + limits::OTHER_CONNECTIONS).for_each(|place| client.start(place));
    }
    let is_others = |outcome: &LoopOutcome| !places.contains(&outcome.place);
    let mut errors = 0;
    let mut watch = |client: &mut LoopClient| {
        let mut latencies = Vec::new();
        client.run_until(Instant::now() + limits::DEATH_WATCH, |client, outcome| {
            if !is_others(&outcome) {
                return;
            }
            match outcome.event {
                LoopEvent::Answered { latency, .. } => latencies.push(latency.as_secs_f64()),
                LoopEvent::Failed(_) => {
                    errors += 1;
                    client.start(outcome.place);
                }
            }
        })?;
        latencies.sort_by(f64::total_cmp);
        Ok::<_, SceneError>(quantile(&latencies, 0.99))
    };
    // The first second is to warm up.
    watch(&mut client)?;
    let before = watch(&mut client)?;
    scene.programs()[victim].kill()?;
    let after = watch(&mut client)?;
    let ended = places.clone().filter(|place| !client.is_open(*place)).count();
    if ended < places.len() {
        let why = format!("{} connections of a dead program are open", places.len() - ended);
        return Err(SceneError::Unfit(why));
    }
    Ok(KilledOutcome { errors, p99_ratio: after / before })
}

/// What the daemon has of a session, beside what it shows of others.
fn has_remains(observer: &mut ServiceObserver, pid: u32, port: u16) -> Result<bool, SceneError> {
    let is_there = observer.sessions()?.iter().any(|session| session.pid == pid);
    if is_there {
        return Ok(true);
    }
    let at_port = |local: Option<std::net::SocketAddr>| local.is_some_and(|it| it.port() == port);
    if observer.listeners()?.iter().any(|listener| at_port(listener.local)) {
        return Ok(true);
    }
    let sockets = observer.sockets(false)?;
    // TIME-WAIT is the stack's own, and of no session.
    let holds = |state: SocketState| state != SocketState::TimeWait;
    Ok(sockets.iter().any(|(_, it)| at_port(it.local) && holds(it.state)))
}

/// From the end of a killed program until the daemon has nothing more of it and its port can be
/// had, in milliseconds. Its connections are idle.
pub(super) fn reclaim(stage: SceneStage<'_>, connections: usize) -> Result<f64, SceneError> {
    let VictimScene { mut scene, mut client, victim, .. } = VictimScene::start(stage, connections)?;
    let mut observer = scene.observer()?;
    let private = |observer: &mut ServiceObserver| {
        Ok::<u32, SceneError>(observer.shards()?.iter().map(|shard| shard.private_used).sum())
    };
    let private_before = private(&mut observer)?;
    let pid = scene.programs()[victim].pid();
    if !has_remains(&mut observer, pid, VICTIM_PORT)? {
        return Err(SceneError::Unfit("the daemon does not show the program".to_owned()));
    }
    scene.programs()[victim].kill()?;
    let ended = Instant::now();
    loop {
        // The peers close in return.
        client.poll(Duration::ZERO)?;
        let has_any = has_remains(&mut observer, pid, VICTIM_PORT)?;
        if !has_any && private(&mut observer)? <= private_before {
            break;
        }
        if ended.elapsed() > limits::SCENE_PATIENCE {
            return Err(SceneError::Unfit("the daemon keeps what a dead program had".to_owned()));
        }
    }
    let took = ended.elapsed();
    // The port is free for another program.
    scene.program(ProgramPlan::at(VICTIM_PORT))?;
    Ok(took.as_secs_f64() * 1e3)
}

/// How the programs survived the death of their daemon, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct DaemonKilledOutcome {
    /// From when its pidfd is readable until the last program has the end of the last of its
    /// connections; may be negative.
    pub(super) notified_ms: f64,
    /// From when a new daemon is ready until each of the programs has answered.
    pub(super) served_ms: f64,
}

/// Kills a daemon with so many idle connections, and starts another one.
pub(super) fn daemon_killed(
    stage: SceneStage<'_>,
    connections: usize,
    programs: usize,
) -> Result<DaemonKilledOutcome, SceneError> {
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client(connections as u32 + 64)?;
    scene.await_daemon()?;
    scene.programs_at(PORT, programs)?;
    client.add(connections, scene.address(PORT), AfterAnswer::Wait);
    let at_once = limits::OPENED_AT_ONCE;
    client.open_all(0..connections, at_once, limits::SCENE_PATIENCE)?;
    scene.daemon()?.kill()?;
    let ended = monotonic_ns();
    let mut last = 0;
    let mut gone = 0;
    for program in scene.programs() {
        let (count, at) = await_gone(program)?;
        gone += count;
        last = last.max(at);
    }
    if gone != connections as u64 {
        let why = format!("programs lost {gone} of {connections} connections with the daemon");
        return Err(SceneError::Unfit(why));
    }
    drop(client);
    scene.start_daemon()?;
    let mut client = scene.client(limits::BURST)?;
    let served_ms = until_all_serve(&mut scene, &mut client)?;
    scene.check()?;
    // Sockets of a dying process are closed before its pidfd is readable.
    let notified_ns = last.cast_signed() - ended.cast_signed();
    Ok(DaemonKilledOutcome { notified_ms: notified_ns as f64 / 1e6, served_ms })
}

/// How many connections a program lost with its daemon, and when the last.
fn await_gone(program: &SceneProcess) -> Result<(u64, u64), SceneError> {
    let mut found = None;
    program.wait_for("the end of the connections with the daemon", || {
        found = gone_in(&program.printed());
        Ok(found.is_some())
    })?;
    found.ok_or_else(|| SceneError::Unfit("a program printed no end".to_owned()))
}

/// `gone COUNT at NANOSECONDS` in what a program printed.
fn gone_in(printed: &str) -> Option<(u64, u64)> {
    let complete = printed.lines().filter(|_| printed.ends_with('\n'));
    let line = complete.filter_map(|line| line.strip_prefix("gone ")).next()?;
    let (count, at) = line.split_once(" at ")?;
    Some((count.parse().ok()?, at.parse().ok()?))
}

/// Connects until each of the programs has answered. Returns the time from when the daemon was
/// ready.
fn until_all_serve(
    scene: &mut ServiceScene<'_>,
    client: &mut LoopClient,
) -> Result<f64, SceneError> {
    let all: BTreeSet<u32> = scene.pids().into_iter().collect();
    let places = client.add(2 * all.len(), scene.address(PORT), AfterAnswer::Reconnect);
    let range = places..places + 2 * all.len();
    let mut answered: BTreeSet<u32> = BTreeSet::new();
    range.clone().for_each(|place| client.start(place));
    let begun = Instant::now();
    let mut ready = None;
    loop {
        if ready.is_none() && scene.daemon()?.printed().contains("ready at") {
            ready = Some(Instant::now());
        }
        for outcome in client.poll(limits::SCENE_POLL)? {
            match outcome.event {
                LoopEvent::Answered { by, .. } => {
                    answered.insert(by);
                }
                LoopEvent::Failed(_) => client.start(outcome.place),
            }
        }
        if let Some(ready) = ready
            && answered.is_superset(&all)
        {
            return Ok(ready.elapsed().as_secs_f64() * 1e3);
        }
        if begun.elapsed() > limits::SCENE_PATIENCE {
            let why = format!("{} of {} programs serve again", answered.len(), all.len());
            return Err(SceneError::Unfit(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::gone_in;

    #[test]
    fn end_of_the_daemon_is_read_from_a_whole_line() {
        let text = "listening on 198.51.100.1:7000\ngone 2500 at 1234567\n";
        assert_eq!(gone_in(text), Some((2_500, 1_234_567)));
        assert_eq!(gone_in("listening on x\ngone 2500 at 12"), None);
        assert_eq!(gone_in("listening on x\n"), None);
    }
}
