//! How connections are divided among programs that share a port: equal ones, and one that is slow.
//!
//! Read first: the PIKA paper, 3.3 and 5.3.

use super::{
    arrivals::Arrivals,
    loop_client::{AfterAnswer, LoopClient, LoopEvent},
    scene::{ProgramPlan, SceneError, SceneStage, ServiceScene},
};
use crate::{limits, measure::quantile};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const PORT: u16 = 7000;
const PROGRAMS: usize = 4;

/// Jain's index of the numbers of connections that four equal programs answer, of so many.
pub(super) fn fair(stage: SceneStage<'_>, connections: u64) -> Result<f64, SceneError> {
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client(limits::BURST * 4)?;
    scene.await_daemon()?;
    scene.programs_at(PORT, PROGRAMS)?;
    let mut counts: BTreeMap<u32, u64> = scene.pids().into_iter().map(|pid| (pid, 0)).collect();
    client.add(limits::BURST as usize, scene.address(PORT), AfterAnswer::Reconnect);
    (0..limits::BURST as usize).for_each(|place| client.start(place));
    let deadline = Instant::now() + limits::BALANCE_MAX;
    let mut done = 0;
    while done < connections {
        if Instant::now() > deadline {
            return Err(SceneError::Unfit(format!("only {done} connections were answered")));
        }
        for outcome in client.poll(Duration::from_millis(100))? {
            match outcome.event {
                LoopEvent::Answered { by, .. } => {
                    *counts.entry(by).or_default() += 1;
                    done += 1;
                }
                LoopEvent::Failed(why) => return Err(SceneError::Unfit(why)),
            }
        }
    }
    scene.check()?;
    Ok(jains_index(counts.values().copied()))
}

/// Jain's index: 1 if all are equal, 1/n if one has all.
fn jains_index(counts: impl Iterator<Item = u64> + Clone) -> f64 {
    let sum: f64 = counts.clone().map(|it| it as f64).sum();
    let squares: f64 = counts.clone().map(|it| (it as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (counts.count() as f64 * squares) }
}

/// What selects the program of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selecting<'scheme> {
    /// The daemon, by this scheme.
    Daemon(&'scheme str),
    /// The kernel: SO_REUSEPORT on its own TCP.
    Kernel,
}

impl Selecting<'_> {
    /// Runs `body` with a scene, of which a daemon has these options as well, and a client of it.
    pub(super) fn with_client<T: Send>(
        self,
        stage: SceneStage<'_>,
        options: &[&str],
        body: impl FnOnce(&mut ServiceScene<'_>, &mut LoopClient) -> Result<T, SceneError> + Send,
    ) -> Result<T, SceneError> {
        let Self::Daemon(scheme) = self else {
            let mut scene = ServiceScene::of_kernel(stage);
            // Its client is in the namespace of the load.
            let on_side = stage.layout.on_load_side(|| {
                let mut client = scene.client(limits::SLOW_PLACES)?;
                body(&mut scene, &mut client)
            });
            return on_side?;
        };
        let options = [&["--balance", scheme], options].concat();
        let mut scene = ServiceScene::start(stage, &options)?;
        let mut client = scene.client(limits::SLOW_PLACES * 2)?;
        body(&mut scene, &mut client)
    }
}

/// Response times of all, in seconds.
#[derive(Clone, Copy, Debug)]
struct Percentiles {
    p95: f64,
    p99: f64,
}

/// Response times where one of four programs sleeps for each request, over those where it does not:
/// percentiles 95 and 99. Connections arrive at a constant rate; one that is not answered counts
/// with the time that it has waited.
pub(super) fn slow(
    stage: SceneStage<'_>,
    selecting: Selecting<'_>,
    window: Duration,
) -> Result<[f64; 2], SceneError> {
    let without = run(stage, selecting, Duration::ZERO, window)?;
    let with = run(stage, selecting, limits::SLOW_SLEEP, window)?;
    Ok([with.p95 / without.p95, with.p99 / without.p99])
}

fn run(
    stage: SceneStage<'_>,
    selecting: Selecting<'_>,
    sleep: Duration,
    window: Duration,
) -> Result<Percentiles, SceneError> {
    selecting.with_client(stage, &[], |scene, client| run_with(scene, client, sleep, window))
}

fn run_with(
    scene: &mut ServiceScene<'_>,
    client: &mut LoopClient,
    sleep: Duration,
    window: Duration,
) -> Result<Percentiles, SceneError> {
    scene.await_daemon()?;
    scene.programs_at(PORT, PROGRAMS - 1)?;
    scene.program(ProgramPlan { delay: sleep, ..ProgramPlan::at(PORT) })?;
    let mut arrivals = Arrivals::new(client, scene.address(PORT));
    let warm = Instant::now() + limits::SLOW_WARM_UP;
    arrivals.run_until(warm)?;
    arrivals.answers.clear();
    arrivals.run_until(warm + window)?;
    let mut latencies = arrivals.finish();
    scene.check()?;
    latencies.sort_by(f64::total_cmp);
    Ok(Percentiles { p95: quantile(&latencies, 0.95), p99: quantile(&latencies, 0.99) })
}

#[cfg(test)]
mod tests {
    use super::jains_index;

    #[test]
    fn jains_index_is_one_where_all_are_equal() {
        let index = |counts: &[u64]| jains_index(counts.iter().copied());
        assert!((index(&[5, 5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((index(&[20, 0, 0, 0]) - 0.25).abs() < 1e-9);
        assert!(index(&[]).abs() < 1e-9);
    }
}
