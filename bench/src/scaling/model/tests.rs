//! Outcomes of the model that can be computed by hand.

use super::*;

/// A transaction of one exchange with a frame each way; the load never limits.
const COSTS: Costs = Costs {
    server_ns: 1_000.0,
    load_ns: 500.0,
    input_share: 0.3,
    output_share: 0.3,
    frames_in: 1.0,
    frames_out: 1.0,
    frame: FrameCosts { plain_ns: 20.0, kept_ns: 40.0, steered_ns: 60.0, taken_ns: 30.0 },
};

const WORLD: ScalingModel = ScalingModel {
    shards: 1,
    load_cores: 1,
    connections: 256,
    queues: QueueCount::PerShard,
    length: None,
    transactions: 20_000,
};

fn close(one: f64, other: f64, share: f64) -> bool {
    (one - other).abs() <= share * other.abs()
}

#[test]
fn one_core_carries_what_its_costs_say() {
    let outcome = simulate(&COSTS, &WORLD);
    assert!(close(outcome.transactions_per_s, 1e6, 0.01), "{outcome:?}");
    assert!(close(outcome.server_us_per_transaction, 1.0, 0.01), "{outcome:?}");
    assert!(close(outcome.server_busy, 1.0, 0.01) && close(outcome.load_busy, 0.5, 0.05));
    assert!((outcome.imbalance - 1.0).abs() < 1e-9 && outcome.steered.abs() < 1e-9);
    // 256 connections wait for one core.
    assert!(close(outcome.latency_us.mean, 256.0, 0.05), "{outcome:?}");
}

#[test]
fn the_slower_side_limits() {
    let slow = Costs { load_ns: 4_000.0, ..COSTS };
    let outcome = simulate(&slow, &WORLD);
    assert!(close(outcome.transactions_per_s, 250_000.0, 0.01), "{outcome:?}");
    assert!(close(outcome.load_busy, 1.0, 0.01) && outcome.server_busy < 0.3, "{outcome:?}");
}

#[test]
fn shards_with_queues_of_their_own_scale_but_for_the_switch() {
    let world = ScalingModel { shards: 4, load_cores: 4, ..WORLD };
    let outcome = simulate(&COSTS, &world);
    // 20 ns more for each frame, as its own shard reads it.
    assert!(close(outcome.server_us_per_transaction, 1.02, 0.02), "{outcome:?}");
    assert!(close(outcome.transactions_per_s, 4e6 / 1.02, 0.05), "{outcome:?}");
    assert!(outcome.steered < 0.05, "{outcome:?}");
}

#[test]
fn one_queue_is_a_limit_that_more_shards_do_not_move() {
    let at = |shards| {
        let world = ScalingModel { shards, load_cores: shards, queues: QueueCount::One, ..WORLD };
        simulate(&COSTS, &world)
    };
    let (two, eight, sixteen) = (at(2), at(8), at(16));
    assert!(two.transactions_per_s > 1.5e6, "{two:?}");
    // Sending 300 ns and reading 60 to 320 ns under the lock: under 2.8 million a second.
    assert!(eight.transactions_per_s < 2.8e6, "{eight:?}");
    assert!(close(sixteen.transactions_per_s, eight.transactions_per_s, 0.15), "{sixteen:?}");
    assert!(sixteen.lock_wait > eight.lock_wait && eight.lock_wait > 0.2, "{eight:?}");
    assert!(sixteen.steered > 0.6, "{sixteen:?}");
}

#[test]
fn what_is_steered_costs_who_reads_and_who_takes() {
    // The load is slow, so that no shard waits for the queue.
    let costs = Costs { load_ns: 20_000.0, ..COSTS };
    let world = ScalingModel { shards: 2, queues: QueueCount::One, ..WORLD };
    let outcome = simulate(&costs, &world);
    let kept = 1_000.0 - 20.0 + 40.0;
    let steered = 1_000.0 - 20.0 + 60.0 + 30.0;
    let expected = outcome.steered.mul_add(steered - kept, kept) / 1e3;
    assert!(close(outcome.server_us_per_transaction, expected, 0.002), "{outcome:?}");
    assert!((0.3..0.7).contains(&outcome.steered), "{outcome:?}");
}

#[test]
fn short_connections_spread_anew_by_their_ports() {
    let short = ScalingModel { shards: 4, load_cores: 4, length: Some(1), ..WORLD };
    let costs = Costs { frames_in: 3.0, frames_out: 2.0, ..COSTS };
    let outcome = simulate(&costs, &short);
    assert!(outcome.imbalance > 1.0 && outcome.imbalance < 1.05, "{outcome:?}");
    // Few connections on many shards: some shards have none for a while.
    let few = simulate(&costs, &ScalingModel { connections: 8, ..short });
    assert!(few.transactions_per_s < outcome.transactions_per_s, "{few:?}");
    assert!(few.server_busy < 0.9, "{few:?}");
}

#[test]
fn a_world_has_one_outcome() {
    let world = ScalingModel { shards: 3, load_cores: 2, length: Some(2), ..WORLD };
    assert_eq!(simulate(&COSTS, &world), simulate(&COSTS, &world));
}
