//! An acceptor under SIGSTOP: connections that were offered to it are answered by another one.
//!
//! Two programs share a port. In each round one of them is stopped, which has no connection then,
//! and a burst of connections begins. Those of its part are taken back after the claim time: they
//! are the ones that take longer than that. Then it goes on, until it is served again.

use super::{
    loop_client::{AfterAnswer, LoopClient, LoopEvent},
    scene::{SceneError, SceneStage, ServiceScene},
};
use crate::{limits, measure::quantile};
use rustix::process::Signal;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const PORT: u16 = 7000;

/// What came of the connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoppedOutcome {
    /// Of those that were taken back, in milliseconds.
    pub(super) p99_ms: f64,
    pub(super) median_ms: f64,
    /// Of all: not answered.
    pub(super) lost: u64,
}

/// One burst: latencies of the answers, and the programs that gave them.
struct ConnectionBurst {
    latencies: Vec<Duration>,
    by: BTreeSet<u32>,
    lost: u64,
}

/// Measures so many connections.
pub(super) fn measure(
    stage: SceneStage<'_>,
    connections: u64,
) -> Result<StoppedOutcome, SceneError> {
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client(limits::BURST * 4)?;
    scene.await_daemon()?;
    scene.programs_at(PORT, 2)?;
    client.add(limits::BURST as usize, scene.address(PORT), AfterAnswer::Close);
    let (mut taken_back, mut lost, mut done) = (Vec::new(), 0, 0);
    let mut count = |burst: &ConnectionBurst| {
        lost += burst.lost;
        done += u64::from(limits::BURST);
        done
    };
    count(&until_both_answer(&mut client)?);
    for round in 0.. {
        let stopped = &scene.programs()[round % 2];
        stopped.stop()?;
        let burst = burst(&mut client)?;
        stopped.signal(Signal::CONT)?;
        let late = burst.latencies.iter().filter(|&&it| it >= limits::CLAIM_TIME);
        taken_back.extend(late.map(|it| it.as_secs_f64() * 1e3));
        let all = count(&burst);
        if all >= connections {
            break;
        }
        count(&until_both_answer(&mut client)?);
    }
    scene.check()?;
    if taken_back.is_empty() {
        let why = "no connection was offered to a stopped program";
        return Err(SceneError::Unfit(why.to_owned()));
    }
    taken_back.sort_by(f64::total_cmp);
    let (p99_ms, median_ms) = (quantile(&taken_back, 0.99), quantile(&taken_back, 0.5));
    Ok(StoppedOutcome { p99_ms, median_ms, lost })
}

fn burst(client: &mut LoopClient) -> Result<ConnectionBurst, SceneError> {
    let mut burst = ConnectionBurst { latencies: Vec::new(), by: BTreeSet::new(), lost: 0 };
    for place in 0..limits::BURST as usize {
        client.start(place);
    }
    let deadline = Instant::now() + limits::SCENE_PATIENCE;
    while client.unanswered() > 0 && Instant::now() < deadline {
        for outcome in client.poll(Duration::from_millis(100))? {
            match outcome.event {
                LoopEvent::Answered { latency, by } => {
                    burst.latencies.push(latency);
                    burst.by.insert(by);
                }
                LoopEvent::Failed(_) => {}
            }
        }
    }
    burst.lost = u64::from(limits::BURST) - burst.latencies.len() as u64;
    Ok(burst)
}

/// Bursts until each of the programs has answered. A program that was stopped gets no connection
/// before it has claimed the late ones. Returns the last.
fn until_both_answer(client: &mut LoopClient) -> Result<ConnectionBurst, SceneError> {
    let deadline = Instant::now() + limits::SCENE_PATIENCE;
    loop {
        let burst = burst(client)?;
        if burst.by.len() == 2 || burst.lost > 0 {
            return Ok(burst);
        }
        if Instant::now() > deadline {
            let why = "a program that goes on after a stop is not offered a connection";
            return Err(SceneError::Unfit(why.to_owned()));
        }
    }
}
