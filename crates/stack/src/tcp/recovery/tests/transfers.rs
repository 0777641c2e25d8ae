//! Whole transfers over the toy network.

use core::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::network::{FAITHFUL, Faults, Link, World};
use super::path::FLOWS_MAX;
use crate::config::{Congestion, TcpConfig};

const LINK: Link = Link { one_way_us: 10_000, rate: 1_250, queue: 100_000 };

fn transfer(config: &TcpConfig, faults: Faults, seed: u64, bytes: u32, capacity: u32) -> World {
    let records = Records::new(capacity, FLOWS_MAX, config);
    let mut world = World::new(LINK, faults, seed, records);
    let start = world.now;
    world.add_flow(config, bytes);
    world.run(start + Duration::from_secs(100_000));
    assert!(world.flows[0].is_done(), "all is delivered in the end");
    assert_eq!(world.flows[0].delivered(), bytes);
    assert_eq!(world.records.available(), capacity, "no record leaks");
    world
}

fn configs() -> impl Strategy<Value = TcpConfig> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(sack, rack, timestamps, cubic)| TcpConfig {
            sack,
            rack,
            timestamps,
            congestion: if cubic { Congestion::Cubic } else { Congestion::NewReno },
            ..TcpConfig::default()
        },
    )
}

fn faults() -> impl Strategy<Value = Faults> {
    (0..200_u32, 0..100_u32, 0..300_u32, 1..60_000_u32, prop_oneof![Just(0), Just(0), 0..30_u32])
        .prop_map(|(loss, duplication, reordering, late_us, reneging)| Faults {
            loss,
            duplication,
            reordering,
            late_us,
            reneging,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_whatever_the_network_does(
        config in configs(),
        faults in faults(),
        seed in any::<u64>(),
        bytes in 1..300_000_u32,
    ) {
        transfer(&config, faults, seed, bytes, 4096);
    }

    #[test]
    fn every_byte_arrives_with_hardly_any_records(
        config in configs(),
        faults in faults(),
        seed in any::<u64>(),
        bytes in 1..100_000_u32,
        capacity in 1..24_u32,
    ) {
        transfer(&config, faults, seed, bytes, capacity);
    }
}

/// Jain's index: one is perfectly fair, 1/n is one flow taking all.
fn jain(shares: &[u32]) -> f64 {
    let sum: f64 = shares.iter().map(|share| f64::from(*share)).sum();
    let squares: f64 = shares.iter().map(|share| f64::from(*share).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn flows_that_share_a_bottleneck_get_equal_shares() {
    for congestion in [Congestion::NewReno, Congestion::Cubic] {
        let config = TcpConfig { congestion, ..TcpConfig::default() };
        let link = Link { queue: 30_000, ..LINK };
        let mut world = World::new(link, FAITHFUL, 3, Records::new(4096, FLOWS_MAX, &config));
        let start = world.now;
        world.add_flow(&config, 1 << 30);
        // The second comes when the first has all of the link.
        world.run(start + Duration::from_secs(3));
        world.add_flow(&config, 1 << 30);
        world.run(start + Duration::from_secs(15));
        let before: Vec<u32> = world.flows.iter().map(|flow| flow.delivered()).collect();
        world.run(start + Duration::from_secs(75));
        let shares: Vec<u32> =
            world.flows.iter().zip(before).map(|(flow, was)| flow.delivered() - was).collect();
        let used = f64::from(shares.iter().sum::<u32>()) / (1_250.0 * 60_000.0);
        assert!(used > 0.9, "{congestion:?} uses {used} of the link");
        assert!(jain(&shares) > 0.9, "{congestion:?}: {shares:?}");
    }
}

#[test]
fn scattered_losses_are_repaired_without_timeouts() {
    let config = TcpConfig::default();
    let faults = Faults { loss: 10, ..FAITHFUL };
    let world = transfer(&config, faults, 7, 2_000_000, 4096);
    let flow = &world.flows[0];
    assert_eq!(flow.timeouts, 0);
    assert!(flow.entered > 0);
    assert!(flow.segments_sent < 2_000 * 103 / 100, "{} segments", flow.segments_sent);
}

#[test]
fn reordering_alone_costs_little_once_it_is_known() {
    let config = TcpConfig::default();
    let faults = Faults { reordering: 100, late_us: 5_000, ..FAITHFUL };
    let world = transfer(&config, faults, 7, 2_000_000, 4096);
    let flow = &world.flows[0];
    assert_eq!(flow.timeouts, 0);
    assert!(flow.entered <= 5, "{} recoveries", flow.entered);
}
