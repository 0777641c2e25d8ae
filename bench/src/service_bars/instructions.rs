//! Instructions for a transaction: those of a daemon and its program, over those of a program with
//! the stack inside.
//!
//! All processes of a run are under callgrind, which counts their user space from start to end. Two
//! runs of different length give the instructions of the transactions between them, so that start
//! and end do not count. Servers sleep as soon as they have no work: spins would count too.

use super::{
    loop_client::{AfterAnswer, LoopClient, LoopEvent},
    scene::{ProgramPlan, SceneError, SceneStage, ServiceScene},
};
use crate::{limits, process::find_program};
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
const PLAN: ProgramPlan = ProgramPlan::at(PORT);

/// What a run has counted.
struct CountedRun {
    instructions: u64,
    transactions: u64,
}

/// The daemon with one program over a program with the stack inside, with so many connections that
/// are kept.
pub(super) fn over_inline(stage: SceneStage<'_>, connections: u32) -> Result<f64, SceneError> {
    let valgrind = find_program("valgrind").ok_or_else(|| {
        SceneError::Unfit("valgrind is not installed (apt-get install valgrind)".to_owned())
    })?;
    let service = per_transaction(|count| {
        let mut scene = ServiceScene::start_counted(stage, &valgrind, &["--spin", "0"])?;
        let client = scene.client(connections * 2)?;
        scene.await_daemon()?;
        scene.program(PLAN)?;
        exchange(scene, client, connections, count)
    })?;
    let inline = per_transaction(|count| {
        let mut scene = ServiceScene::of_counted_inline(stage, &valgrind, PLAN)?;
        let client = scene.client(connections * 2)?;
        scene.await_inline()?;
        exchange(scene, client, connections, count)
    })?;
    Ok(service / inline)
}

/// Instructions for each transaction that a longer run has more than a shorter one.
fn per_transaction(run: impl Fn(u64) -> Result<CountedRun, SceneError>) -> Result<f64, SceneError> {
    let (few, many) = limits::COUNTED_TRANSACTIONS;
    let (short, long) = (run(few)?, run(many)?);
    let instructions = long.instructions.saturating_sub(short.instructions);
    let transactions = long.transactions.saturating_sub(short.transactions);
    match (instructions, transactions) {
        (0, _) | (_, 0) => Err(SceneError::Unfit("callgrind has counted nothing".to_owned())),
        _ => Ok(instructions as f64 / transactions as f64),
    }
}

/// Exchanges at least so many messages, and ends the scene.
fn exchange(
    scene: ServiceScene<'_>,
    mut client: LoopClient,
    connections: u32,
    count: u64,
) -> Result<CountedRun, SceneError> {
    let places = 0..connections as usize;
    client.add(places.len(), scene.address(PORT), AfterAnswer::Ask);
    places.for_each(|place| client.start(place));
    let deadline = Instant::now() + limits::SCENE_PATIENCE;
    let mut transactions = 0;
    while transactions < count {
        for outcome in client.poll(Duration::from_millis(100))? {
            match outcome.event {
                LoopEvent::Answered { .. } => transactions += 1,
                LoopEvent::Failed(why) => return Err(SceneError::Unfit(why)),
            }
        }
        if Instant::now() > deadline {
            let why = format!("{transactions} of {count} transactions in time, under callgrind");
            return Err(SceneError::Unfit(why));
        }
    }
    let instructions = scene.end_counted()?;
    Ok(CountedRun { instructions, transactions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_of_two_runs_is_divided_by_their_transactions() {
        let run = |count| Ok(CountedRun { instructions: 900 + 7 * count, transactions: count });
        assert_eq!(per_transaction(run).ok(), Some(7.0));
        let stuck = |_| Ok(CountedRun { instructions: 900, transactions: 5 });
        assert!(per_transaction(stuck).is_err());
    }
}
