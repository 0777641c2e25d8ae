//! Programs that share a port, some of which are slow for a time: which of them answers each
//! connection, and after how long.
//!
//! Read first: the PIKA paper, 5.3. `pika/small.rs` has the load, and what is made of the answers.

use super::{
    arrivals::Arrivals,
    balance::Selecting,
    loop_client::LoopClient,
    scene::{ProgramPlan, SceneError, SceneStage, ServiceScene},
};
use crate::{
    answer_server::{SlowPeriod, monotonic_ns},
    limits,
};
use megapipe_apps::threads;
use megapipe_service::attach::ServiceObserver;
use std::{
    thread,
    time::{Duration, Instant},
};

const PORT: u16 = 7000;

/// The load. Times count from its beginning.
#[derive(Clone, Debug)]
pub(crate) struct ImbalancePlan {
    /// When each program is slow.
    pub(crate) slow: Vec<SlowPeriod>,
    /// Servers of the daemon.
    pub(crate) servers: usize,
    /// Sleep for each request.
    pub(crate) work: Duration,
    pub(crate) duration: Duration,
    /// After how long estimates are looked at, again and again.
    pub(crate) interval: Duration,
}

/// A connection that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImbalanceAnswer {
    /// Since the beginning of the load.
    pub(crate) at: Duration,
    /// The index of the program.
    pub(crate) program: usize,
    /// From the moment at which it was due to its answer.
    pub(crate) latency: Duration,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeasuredImbalance {
    pub(crate) served: Vec<ImbalanceAnswer>,
    /// For each interval of the plan, then for each program: the estimate of its connection manager
    /// at the interval's end. None without a daemon.
    pub(crate) estimates: Vec<Vec<Option<Duration>>>,
}

/// Runs programs and their load, and returns all that was answered. Blocks for the duration, and
/// for as long as the programs take to start.
pub(crate) fn measure(
    stage: SceneStage<'_>,
    selecting: Selecting<'_>,
    plan: &ImbalancePlan,
) -> Result<MeasuredImbalance, SceneError> {
    let servers = plan.servers;
    let layout = format!("TS{servers}LS{servers}CM{servers}");
    selecting.with_client(stage, &["--layout", &layout], |scene, client| run(scene, client, plan))
}

fn run(
    scene: &mut ServiceScene<'_>,
    client: &mut LoopClient,
    plan: &ImbalancePlan,
) -> Result<MeasuredImbalance, SceneError> {
    scene.await_daemon()?;
    // The programs know before when they will be slow.
    let start = Instant::now() + limits::SMALL_START;
    let start_ns = monotonic_ns() + limits::SMALL_START.as_nanos() as u64;
    for slow in &plan.slow {
        let slow = slow.later(start_ns);
        scene.program(ProgramPlan { delay: plan.work, slow, ..ProgramPlan::at(PORT) })?;
    }
    let early = start.checked_duration_since(Instant::now());
    thread::sleep(early.ok_or_else(|| unfit("the programs took too long to start"))?);
    let pids = scene.pids();
    let mut arrivals = Arrivals::new(client, scene.address(PORT));
    let observer = scene.has_daemon().then(|| scene.observer()).transpose()?;
    let estimates = thread::scope(|scope| {
        let looking = observer.map(|observer| {
            let look = || watch_estimates(observer, &pids, start, plan);
            threads::spawn_scoped(scope, "estimates", look)
        });
        let ran = arrivals.run_until(start + plan.duration);
        let looked = match looking {
            Some(thread) => thread?.join().map_err(|_| unfit("the observer has panicked"))??,
            None => Vec::new(),
        };
        ran.map(|()| looked)
    })?;
    let served = arrivals.answers.iter().map(|answer| {
        let program = pids.iter().position(|pid| *pid == answer.by);
        let program = program.ok_or_else(|| unfit("a stranger answered"))?;
        let at = answer.at.saturating_duration_since(start);
        Ok(ImbalanceAnswer { at, program, latency: answer.latency })
    });
    let served = served.collect::<Result<Vec<_>, SceneError>>()?;
    scene.check()?;
    Ok(MeasuredImbalance { served, estimates })
}

fn unfit(what: &str) -> SceneError {
    SceneError::Unfit(what.to_owned())
}

/// Asks the daemon for the programs' service times at the end of each interval.
fn watch_estimates(
    mut observer: ServiceObserver,
    pids: &[u32],
    start: Instant,
    plan: &ImbalancePlan,
) -> Result<Vec<Vec<Option<Duration>>>, SceneError> {
    let sessions = observer.sessions()?;
    let program_of = |key: u64| {
        let session = sessions.iter().find(|session| session.key == key)?;
        pids.iter().position(|pid| *pid == session.pid)
    };
    let count = plan.duration.as_nanos() / plan.interval.as_nanos().max(1);
    let mut all = Vec::with_capacity(count as usize);
    for number in 1..=count as u32 {
        thread::sleep((start + plan.interval * number).saturating_duration_since(Instant::now()));
        let mut known = vec![None; pids.len()];
        let managers = observer.managers()?;
        let listeners = managers.iter().flat_map(|manager| &manager.listeners);
        for acceptor in listeners.flat_map(|listener| &listener.acceptors) {
            if let (Some(time), Some(program)) =
                (acceptor.service_time, program_of(acceptor.session))
            {
                known[program] = Some(time);
            }
        }
        all.push(known);
    }
    Ok(all)
}
