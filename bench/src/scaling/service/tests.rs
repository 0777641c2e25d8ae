//! Outcomes of the simulated service that can be computed by hand.

use super::{super::clock::picoseconds, *};
use megapipe_service::balancer::Tariff;

/// A connection takes a microsecond of a transport server and half of one of a web server.
const COSTS: ServiceCosts = ServiceCosts {
    handshake_ns: 400.0,
    accept_ns: 300.0,
    respond_ns: 300.0,
    program_ns: 500.0,
    kept_in_ns: 300.0,
    kept_out_ns: 300.0,
    kept_program_ns: 500.0,
    client_ns: 200.0,
    kept_client_ns: 200.0,
    frame_ns: 50.0,
    send_ns: 0.0,
    take_ns: 0.0,
    delay_ns: 0.0,
    wake_ns: 0.0,
    pick_ns: 0.0,
    report_ns: 0.0,
    offer_ns: 0.0,
    offer_take_ns: 0.0,
    table_ns: 0.0,
};

fn tournament() -> ConnectionDistribution {
    ConnectionDistribution::Balanced(Scheme::default())
}

fn world(layout: &str) -> ServiceWorld {
    let layout: ServerLayout = layout.parse().unwrap();
    ServiceWorld {
        applications: layout.count(megapipe_service::layout::Component::Transport),
        layout,
        distribution: tournament(),
        in_turn: false,
        offer_rule: OfferRule::default(),
        clients: Clients::Closed(64),
        requests: Some(1),
        work: 0,
        slowness: Vec::new(),
        warm_up: picoseconds(2e6),
        duration: picoseconds(12e6),
        bin: picoseconds(1e6),
        seed: 1,
    }
}

#[track_caller]
fn assert_close(actual: f64, expected: f64, share: f64) {
    assert!((actual / expected - 1.0).abs() <= share, "{actual}, expected {expected}");
}

#[test]
fn one_pair_serves_what_its_slower_core_can() {
    let outcome = simulate_service(&COSTS, &world("TS1LS1CM1"));
    assert_close(outcome.per_s, 1e6, 0.01);
    assert_close(outcome.stack_us, 1.0, 0.01);
    assert!(outcome.message_us == 0.0 && outcome.manager_us == 0.0 && outcome.take_backs == 0);
    let slow = ServiceCosts { program_ns: 4_000.0, ..COSTS };
    assert_close(simulate_service(&slow, &world("TS1LS1CM1")).per_s, 250_000.0, 0.01);
}

#[test]
fn kept_connections_cost_their_requests_only() {
    let kept = ServiceWorld { requests: None, ..world("TS1LS1CM1") };
    assert_close(simulate_service(&COSTS, &kept).per_s, 1e6 / 0.6, 0.02);
}

#[test]
fn one_client_waits_for_each_step_once() {
    let one = ServiceWorld { clients: Clients::Closed(1), ..world("TS1LS1CM1") };
    let outcome = simulate_service(&COSTS, &one);
    // Handshake, the client, the request, the program, the response.
    assert_close(outcome.latency_us, 0.4 + 0.2 + 0.3 + 0.5 + 0.3, 0.05);
    let costs = ServiceCosts { delay_ns: 1_000.0, send_ns: 10.0, take_ns: 20.0, ..COSTS };
    let split = ServiceWorld { clients: Clients::Closed(1), ..world("TS1LS1+CM1") };
    let outcome = simulate_service(&costs, &split);
    assert_close(outcome.manager_us, 2.0 * 1.03, 0.01);
}

#[test]
fn equal_web_servers_get_equal_shares() {
    let outcome = simulate_service(&COSTS, &world("TS4LS4CM4"));
    let mean = outcome.totals.iter().sum::<f64>() / 4.0;
    for total in &outcome.totals {
        assert_close(*total, mean, 0.05);
    }
    assert!(outcome.remote_share < 0.1, "{}", outcome.remote_share);
}

#[test]
fn slow_web_server_is_avoided_by_tournament_and_not_by_naive() {
    let slowness = vec![Slowness { application: 0, from: 0, until: u64::MAX, added: 500_000_000 }];
    let open = ServiceWorld {
        clients: Clients::Open(16_000),
        slowness,
        work: picoseconds(1e4),
        duration: picoseconds(400e6),
        warm_up: 0,
        ..world("TS4LS4CM4")
    };
    let balanced = simulate_service(&COSTS, &open);
    let naive = ConnectionDistribution::Balanced(Scheme::Naive);
    let naive = simulate_service(&COSTS, &ServiceWorld { distribution: naive, ..open.clone() });
    // The slow one can do 2,000 a second of its 4,000.
    assert!(naive.percentile_us(90.0) > 10_000.0, "{}", naive.percentile_us(90.0));
    assert!(balanced.percentile_us(95.0) < 100.0, "{}", balanced.percentile_us(95.0));
    assert!(balanced.totals[0] < balanced.totals[1] / 5.0, "{:?}", balanced.totals);
    let shared = ConnectionDistribution::SharedQueue;
    let shared = simulate_service(&COSTS, &ServiceWorld { distribution: shared, ..open });
    assert_close(shared.per_s, 16_000.0, 0.01);
}

#[test]
fn stopped_web_server_loses_its_connections_to_others() {
    // It works on one request for 100 ms: what it is offered meanwhile is taken back.
    let slowness =
        vec![Slowness { application: 0, from: 0, until: u64::MAX, added: 100_000_000_000 }];
    let open = ServiceWorld {
        clients: Clients::Open(8_000),
        slowness,
        duration: picoseconds(300e6),
        warm_up: 0,
        ..world("TS2LS2CM2")
    };
    let outcome = simulate_service(&COSTS, &open);
    // An acceptor that was dropped keeps its service times, so few are offered to it again.
    assert!((2..20).contains(&outcome.take_backs), "{}", outcome.take_backs);
    assert!(outcome.percentile_us(90.0) < 10.0, "{}", outcome.percentile_us(90.0));
    assert!(outcome.totals[1] > 2_300.0, "{:?}", outcome.totals);
}

#[test]
fn unconditional_offers_leave_every_interval() {
    let always = ServiceWorld {
        offer_rule: OfferRule::Always,
        clients: Clients::Open(20_000),
        warm_up: picoseconds(20e6),
        duration: picoseconds(120e6),
        ..world("TS4LS4CM4")
    };
    let outcome = simulate_service(&COSTS, &always);
    assert_close(outcome.offers_sent_per_s, 20_000.0, 0.05);
    assert_close(outcome.offers_received_per_s, 60_000.0, 0.05);
    let changed = ServiceWorld { offer_rule: OfferRule::default(), ..always };
    let outcome = simulate_service(&COSTS, &changed);
    assert!((90.0..2_000.0).contains(&outcome.offers_sent_per_s), "{outcome:?}");
}

#[test]
fn separate_link_server_is_the_limit_of_many() {
    let costs = ServiceCosts { frame_ns: 300.0, ..COSTS };
    let wide = ServiceWorld { clients: Clients::Closed(256), ..world("TS8CM8+LS1") };
    // Two frames in and two out for each connection.
    assert_close(simulate_service(&costs, &wide).per_s, 1e9 / 1_200.0, 0.02);
}

#[test]
fn a_service_has_one_outcome_for_a_seed() {
    let tariff = Tariff::from_hundredths(200).unwrap();
    let unfiltered = ConnectionDistribution::Balanced(Scheme::Unfiltered(tariff));
    let world = ServiceWorld { distribution: unfiltered, ..world("TS4LS4+CM2") };
    let first = simulate_service(&COSTS, &world);
    assert_eq!(first, simulate_service(&COSTS, &world));
    let other = simulate_service(&COSTS, &ServiceWorld { seed: 2, ..world });
    assert_ne!(first, other);
}
