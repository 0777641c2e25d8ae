//! Fixed rates: kept on a good server, and honest about one that stalls.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use megapipe::Address;
use megapipe_apps::load::{LoadPhase, RpcLoadArgs, run_rpc};
use megapipe_apps::rpc::{self, RpcArgs};

use crate::setup::{check, check_good, drivers, load_args, serve_args};

#[test]
fn a_rate_is_kept_on_a_server_that_can() {
    for driver in drivers() {
        let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
        let mut load = load_args(&server.addresses()[0], driver);
        (load.rate, load.duration, load.threads) = (Some(1_000.0), Some(1.0), Some(2));
        let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
        check_good(&summary);
        assert!((998..=1_002).contains(&summary.started), "{summary:#?}");
        assert_eq!(summary.unfinished, 0);
        server.stop().expect("a clean end");
    }
}

#[test]
fn a_rate_is_kept_while_connections_come_and_go() {
    for driver in drivers() {
        let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
        let mut load = load_args(&server.addresses()[0], driver);
        (load.rate, load.duration) = (Some(500.0), Some(0.6));
        load.transactions = "1".parse().expect("one");
        let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
        check_good(&summary);
        assert!((299..=301).contains(&summary.started), "{summary:#?}");
        // What is answered in the window came by a connection of its own; eight were there.
        assert!(summary.connections_opened + 8 >= summary.transactions, "{summary:#?}");
        server.stop().expect("a clean end");
    }
}

/// A server of one connection that echoes at once, except for a pause in the middle.
fn stalling_server(pause_after: Duration, pause: Duration) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binding");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let (mut request, mut first, mut paused) = ([0; 64], None, false);
        while stream.read_exact(&mut request).is_ok() {
            let first = *first.get_or_insert_with(Instant::now);
            if !paused && first.elapsed() > pause_after {
                paused = true;
                thread::sleep(pause);
            }
            if stream.write_all(&request).is_err() {
                break;
            }
        }
    });
    Address::from(address)
}

#[test]
fn a_stall_shows_in_the_latencies_from_the_schedule_only() {
    for driver in drivers() {
        let pause = Duration::from_millis(400);
        let server = stalling_server(Duration::from_millis(400), pause);
        let mut load = load_args(&server, driver);
        (load.connections, load.rate, load.duration) = (1, Some(500.0), Some(1.5));
        let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
        check_good(&summary);
        assert!((749..=751).contains(&summary.started), "{summary:#?}");
        let (schedule, sending) = (summary.latency_us, summary.latency_uncorrected_us);
        // 200 of 750 were due while the server slept, one of them was sent.
        assert!(schedule.p90 > 100_000.0, "{summary:#?}");
        assert!(schedule.max > 390_000.0 && sending.max > 390_000.0, "{summary:#?}");
        assert!(sending.p99 < schedule.p90, "one slow transaction hides: {summary:#?}");
    }
}

#[test]
fn due_transactions_wait_for_a_connection() {
    for driver in drivers() {
        let server = stalling_server(Duration::ZERO, Duration::from_secs(30));
        let mut load = load_args(&server, driver);
        (load.connections, load.rate, load.duration) = (1, Some(100.0), Some(0.5));
        load.timeout = 60.0;
        let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
        check(&summary);
        assert_eq!((summary.completed, summary.failed), (0, 0));
        assert!((49..=51).contains(&summary.unfinished), "{summary:#?}");
        assert!(summary.latency_us.max > 500_000.0);
        assert!(summary.remarks.iter().any(|remark| remark.contains("had no answer")));
    }
}

#[test]
fn observers_see_the_window_begin_and_end() {
    let driver = drivers()[0];
    let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
    let mut load = load_args(&server.addresses()[0], driver);
    (load.warmup, load.duration) = (0.2, Some(0.5));
    let mut moments = Vec::new();
    let mut observe = |phase| moments.push((phase, Instant::now()));
    let summary = run_rpc(&RpcLoadArgs::new(load), &mut observe).expect("the load runs");
    check_good(&summary);
    let kinds: Vec<LoadPhase> = moments.iter().map(|&(phase, _)| phase).collect();
    assert_eq!(kinds, [LoadPhase::Warming, LoadPhase::Measuring, LoadPhase::Measured]);
    // Neither is early. The delay of the first two depends on the machine.
    let since_first = |phase: usize| moments[phase].1 - moments[0].1;
    assert!(since_first(1) >= Duration::from_millis(200), "{:?}", since_first(1));
    assert!(since_first(2) >= Duration::from_millis(700), "{:?}", since_first(2));
    assert!((summary.seconds - 0.5).abs() < 0.1, "{}", summary.seconds);
}
