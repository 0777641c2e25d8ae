//! Programs beside a hostile neighbour: their response times over those beside an honest one.
//!
//! All neighbours demand as much of the daemon and of its core as they get, so the difference is
//! what the daemon lets a hostile one take from others.

use super::{
    loop_client::{AfterAnswer, LoopClient, LoopEvent},
    neighbour::NeighbourKind,
    scene::{ProgramKind, ProgramPlan, SceneError, SceneStage, ServiceScene},
};
use crate::{limits, measure::quantile};
use megapipe_service::observe::ServiceSession;
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
/// Of an honest neighbour.
const NEIGHBOUR_PORT: u16 = 7001;

const HOSTILE: [NeighbourKind; 3] =
    [NeighbourKind::Operations, NeighbourKind::Doorbells, NeighbourKind::Unread];

/// Percentile 99 of the others beside each hostile neighbour over that beside an honest one; last
/// the latter itself, in milliseconds.
pub(super) fn measure(stage: SceneStage<'_>, window: Duration) -> Result<Vec<f64>, SceneError> {
    let honest = p99_beside(stage, NeighbourKind::Honest, window)?;
    let hostile = HOSTILE.into_iter().map(|kind| Ok(p99_beside(stage, kind, window)? / honest));
    hostile.chain([Ok(honest * 1e3)]).collect()
}

/// In seconds, of a program with kept and with short connections.
fn p99_beside(
    stage: SceneStage<'_>,
    kind: NeighbourKind,
    window: Duration,
) -> Result<f64, SceneError> {
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client(8 * limits::OTHER_CONNECTIONS as u32)?;
    scene.await_daemon()?;
    scene.program(ProgramPlan::at(PORT))?;
    let neighbour =
        ProgramPlan { kind: ProgramKind::Neighbour(kind), ..ProgramPlan::at(NEIGHBOUR_PORT) };
    let neighbour = scene.program(neighbour)?;
    for after in [AfterAnswer::Ask, AfterAnswer::Reconnect] {
        let first = client.add(limits::OTHER_CONNECTIONS, scene.address(PORT), after);
        (first..first + limits::OTHER_CONNECTIONS).for_each(|place| client.start(place));
    }
    latencies(&mut client, limits::SLOW_WARM_UP)?;
    let mut latencies = latencies(&mut client, window)?;
    scene.check()?;
    let pid = scene.programs()[neighbour].pid();
    let sessions = scene.observer()?.sessions()?;
    let its: Vec<_> = sessions.into_iter().filter(|session| session.pid == pid).collect();
    if !has_done_its_part(kind, &its) {
        let shown: Vec<_> = its.iter().map(|it| (it.ops, it.events, it.parked)).collect();
        let name = kind.name();
        let why = format!("operations, events and parked events of '{name}' are {shown:?}");
        return Err(SceneError::Unfit(why));
    }
    latencies.sort_by(f64::total_cmp);
    Ok(quantile(&latencies, 0.99))
}

/// Response times within a window, and how long those wait that have none.
fn latencies(client: &mut LoopClient, window: Duration) -> Result<Vec<f64>, SceneError> {
    let (mut latencies, mut failed) = (Vec::new(), None);
    client.run_until(Instant::now() + window, |_, outcome| match outcome.event {
        LoopEvent::Answered { latency, .. } => latencies.push(latency.as_secs_f64()),
        LoopEvent::Failed(why) => failed = Some(why),
    })?;
    if let Some(why) = failed {
        return Err(SceneError::Unfit(why));
    }
    latencies.extend(client.waiting().map(|wait| wait.as_secs_f64()));
    Ok(latencies)
}

/// Pure: whether the daemon shows of a neighbour's sessions what its kind is to do.
fn has_done_its_part(kind: NeighbourKind, sessions: &[ServiceSession]) -> bool {
    sessions.iter().any(|session| match kind {
        NeighbourKind::Honest => session.connections.now > 0 && session.events > 0,
        NeighbourKind::Operations => session.ops >= limits::HOSTILE_OPERATIONS.into(),
        // A bell is no record: the session is there, and has submitted nothing.
        NeighbourKind::Doorbells => session.ops == 0 && !session.has_ended,
        NeighbourKind::Unread => session.parked > 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbour_that_did_nothing_is_noticed() {
        let idle = ServiceSession { ops: 1, ..ServiceSession::default() };
        for kind in [NeighbourKind::Honest].into_iter().chain(HOSTILE) {
            assert!(!has_done_its_part(kind, &[]), "{kind:?}");
            assert!(!has_done_its_part(kind, std::slice::from_ref(&idle)), "{kind:?}");
        }
        let fresh = ServiceSession::default();
        let busy = ServiceSession { ops: u64::MAX, parked: 1, ..ServiceSession::default() };
        for kind in HOSTILE {
            assert!(has_done_its_part(kind, &[fresh.clone(), busy.clone()]), "{kind:?}");
        }
    }
}
