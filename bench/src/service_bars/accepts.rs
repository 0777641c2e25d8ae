//! CPU time of a daemon for each connection that its programs accept and reset.
//!
//! Beside it: a program with the stack inside, of which all CPU time counts. Each server runs
//! twice, once polling and once sleeping whenever it is idle, and the lower number is its cost.

use super::{
    loop_client::{AfterAnswer, LoopClient, LoopEvent},
    scene::{ProgramKind, ProgramPlan, SceneError, SceneStage, ServiceScene},
};
use crate::{cpu_time::run_time, limits, shard_idle};
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
const PLAN: ProgramPlan = ProgramPlan { kind: ProgramKind::Reset, ..ProgramPlan::at(PORT) };

/// Ratios of CPU time for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptRatios {
    /// The daemon with one program over all of a program with the stack inside.
    pub(super) over_inline: f64,
    /// The daemon with several programs over one with one.
    pub(super) with_programs: f64,
    /// The daemon with as many idle channels besides over one without.
    pub(super) with_idle: f64,
}

/// Measures all, each for a window.
pub(super) fn ratios(
    stage: SceneStage<'_>,
    programs: usize,
    idle: usize,
    window: Duration,
) -> Result<AcceptRatios, SceneError> {
    let inline = lower_of(|is_polling| inline_cost_us(stage, is_polling, window))?;
    let one = lower_of(|is_polling| daemon_cost_us(stage, (1, 0), is_polling, window))?;
    let several = lower_of(|is_polling| daemon_cost_us(stage, (programs, 0), is_polling, window))?;
    let beside = lower_of(|is_polling| daemon_cost_us(stage, (1, idle), is_polling, window))?;
    Ok(AcceptRatios {
        over_inline: one / inline,
        with_programs: several / one,
        with_idle: beside / one,
    })
}

fn lower_of(cost: impl Fn(bool) -> Result<f64, SceneError>) -> Result<f64, SceneError> {
    Ok(cost(true)?.min(cost(false)?))
}

fn inline_cost_us(
    stage: SceneStage<'_>,
    is_polling: bool,
    window: Duration,
) -> Result<f64, SceneError> {
    let mut scene = ServiceScene::of_inline(stage, PLAN, is_polling)?;
    let mut client = scene.client(limits::ACCEPTED_AT_ONCE * limits::ACCEPT_LOAD_ROOM)?;
    scene.await_inline()?;
    let pid = scene.programs()[0].pid();
    cost_us(&mut scene, &mut client, pid, window)
}

fn daemon_cost_us(
    stage: SceneStage<'_>,
    (programs, idle): (usize, usize),
    is_polling: bool,
    window: Duration,
) -> Result<f64, SceneError> {
    let options: &[&str] = if is_polling { &[] } else { &["--spin", "0"] };
    let mut scene = ServiceScene::start(stage, options)?;
    let mut client = scene.client(limits::ACCEPTED_AT_ONCE * limits::ACCEPT_LOAD_ROOM)?;
    scene.await_daemon()?;
    for _ in 0..programs {
        scene.program(PLAN)?;
    }
    let attach = |_| shard_idle::attach(stage.scratch);
    let _idle = (0..idle).map(attach).collect::<Result<Vec<_>, _>>()?;
    let pid = scene.daemon()?.pid();
    cost_us(&mut scene, &mut client, pid, window)
}

/// CPU time of a process for each connection of a closed loop.
fn cost_us(
    scene: &mut ServiceScene<'_>,
    client: &mut LoopClient,
    pid: u32,
    window: Duration,
) -> Result<f64, SceneError> {
    let places = limits::ACCEPTED_AT_ONCE as usize;
    client.add(places, scene.address(PORT), AfterAnswer::AwaitReset);
    (0..places).for_each(|place| client.start(place));
    client.run_until(Instant::now() + limits::LOAD_WARM_UP, |_, _| ())?;
    let before = run_time(pid)?;
    let (mut connections, mut failed) = (0_u64, None);
    client.run_until(Instant::now() + window, |_, outcome| match outcome.event {
        LoopEvent::Answered { .. } => connections += 1,
        LoopEvent::Failed(why) => failed = Some(why),
    })?;
    let spent = run_time(pid)?.saturating_sub(before);
    scene.check()?;
    match (connections, failed) {
        (_, Some(why)) => Err(SceneError::Unfit(why)),
        (0, None) => Err(SceneError::Unfit("no connection was accepted".to_owned())),
        _ => Ok(spent.as_secs_f64() * 1e6 / connections as f64),
    }
}
