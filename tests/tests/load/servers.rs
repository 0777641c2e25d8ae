//! Good servers: every protocol, every distribution, both ways to close.

use std::time::{Duration, Instant};

use megapipe_apps::http::{self, HttpArgs};
use megapipe_apps::kv::{self, KvArgs};
use megapipe_apps::load::{
    Close, HttpLoadArgs, KvLoadArgs, RpcLoadArgs, Transactions, prepare, run_http, run_kv, run_rpc,
};
use megapipe_apps::rpc::{self, RpcArgs};

use crate::setup::{check, check_good, counted_load_args, drivers, load_args, serve_args};

#[test]
fn every_size_distribution_is_asked_for_and_answered() {
    for driver in drivers() {
        let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
        let mut answered = 0;
        for (request, response) in [
            ("64", "64"),
            ("uniform:16-9000", "64"),
            ("64", "zipf:65536:3000"),
            ("64", "pareto:64-1M:2000"),
            ("lognormal:16-64K:500:1.5", "specweb"),
            ("100000", "1M"),
        ] {
            let load = counted_load_args(&server.addresses()[0], driver, 400);
            let mut args = RpcLoadArgs::new(load);
            args.request_bytes = request.parse().expect(request);
            args.response_bytes = response.parse().expect(response);
            let summary = run_rpc(&args, &mut |_| {}).expect("the load runs");
            check_good(&summary);
            assert_eq!((summary.transactions, summary.completed), (400, 400));
            answered += summary.completed;
        }
        assert_eq!(server.stop().expect("a clean end").requests, answered);
    }
}

#[test]
fn connections_last_and_close_as_configured() {
    for driver in drivers() {
        for close in [Close::Rst, Close::Fin] {
            let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
            let mut load = counted_load_args(&server.addresses()[0], driver, 1_000);
            (load.transactions, load.close) = ("5".parse().expect("five"), close);
            let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
            check_good(&summary);
            assert_eq!(summary.completed, 1_000);
            let tally = server.stop().expect("a clean end");
            assert_eq!((tally.requests, tally.failed), (1_000, 0));
            // Each connection carries five, but eight may have been at work when the end came.
            assert!((200..=208).contains(&tally.accepted), "{tally:?}");
        }
    }
}

#[test]
fn connections_of_a_drawn_length_are_opened_again_and_again() {
    for driver in drivers() {
        let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
        // By number: in a fixed time a slow machine answers too few for a mean.
        let mut load = counted_load_args(&server.addresses()[0], driver, 4_000);
        load.transactions = "yahoo-requests".parse::<Transactions>().expect("a distribution");
        load.threads = Some(2);
        let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
        check_good(&summary);
        assert_eq!((summary.threads, summary.threads_busy.len()), (2, 2));
        let mean = summary.transactions as f64 / summary.connections_opened.max(1) as f64;
        assert!((1.5..4.0).contains(&mean), "about 2.3 requests a connection: {summary:#?}");
        server.stop().expect("a clean end");
    }
}

#[test]
fn a_response_time_may_include_the_handshake() {
    for driver in drivers() {
        let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
        let run = |with_connect| {
            let mut load = counted_load_args(&server.addresses()[0], driver, 400);
            load.transactions = "1".parse().expect("one");
            (load.connections, load.with_connect) = (1, with_connect);
            let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
            check_good(&summary);
            summary
        };
        let with = run(true);
        // One connection at a time: what is measured from the beginning of each handshake holds
        // that handshake, and what is measured from sending does not.
        let rest_us = with.latency_us.mean - with.latency_uncorrected_us.mean;
        assert!(rest_us > 0.5 * with.connect_us.min, "{with:#?}");
        let without = run(false);
        let rest_us = without.latency_us.mean - without.latency_uncorrected_us.mean;
        assert!(rest_us.abs() < 1.0, "{without:#?}");
        assert_eq!((with.completed, with.fairness), (400, None));
        server.stop().expect("a clean end");
    }
}

#[test]
fn connections_that_are_kept_share_a_server_fairly() {
    for driver in drivers() {
        let server = rpc::start(&RpcArgs::new(serve_args(driver))).expect("the server starts");
        let mut load = counted_load_args(&server.addresses()[0], driver, 2_000);
        load.connections = 8;
        let summary = run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs");
        check_good(&summary);
        let fairness = summary.fairness.expect("connections are kept");
        assert!((0.5..=1.0 + 1e-9).contains(&fairness), "eight in turn: {fairness}");
        server.stop().expect("a clean end");
    }
}

#[test]
fn a_server_that_stops_under_load_loses_no_response() {
    for driver in drivers() {
        for channels in [1, 2] {
            let mut args = serve_args(driver);
            args.channels = Some(channels);
            let server = rpc::start(&RpcArgs::new(args)).expect("the server starts");
            let mut load = load_args(&server.addresses()[0], driver);
            (load.connections, load.duration) = (32, Some(2.0));
            let running = std::thread::spawn(move || {
                run_rpc(&RpcLoadArgs::new(load), &mut |_| {}).expect("the load runs")
            });
            let deadline = Instant::now() + Duration::from_secs(20);
            while server.tallies().iter().all(|tally| tally.requests == 0) {
                assert!(Instant::now() < deadline, "no request arrived: {:?}", server.tallies());
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(100));
            let tally = server.stop().expect("a clean end");
            let summary = running.join().expect("the load's thread");
            check(&summary);
            assert!(summary.completed > 0);
            assert_eq!(summary.completed, tally.requests, "{summary:#?}");
            assert_eq!((summary.errors.wrong_response, summary.errors.timed_out), (0, 0));
        }
    }
}

#[test]
fn a_filled_cache_misses_nothing_and_returns_what_was_set() {
    for driver in drivers() {
        let server = kv::start(&KvArgs::new(serve_args(driver))).expect("the server starts");
        let mut load = counted_load_args(&server.addresses()[0], driver, 2_000);
        load.threads = Some(2);
        let mut args = KvLoadArgs::new(load);
        args.keys = 500;
        args.value_bytes = "uniform:0-10000".parse().expect("a distribution");
        let summary = run_kv(&args, &mut |_| {}).expect("the load runs");
        check_good(&summary);
        assert_eq!((summary.completed, summary.details["misses"]), (2_000, 0));
        let (hits, sets) = (summary.details["hits"], summary.details["sets"]);
        assert_eq!(hits + sets, 2_500, "five hundred keys were set beforehand");
        let share = hits as f64 / 2_000.0;
        assert!((0.87..=0.93).contains(&share), "nine in ten are gets: {:?}", summary.details);
        server.stop().expect("a clean end");
    }
}

#[test]
fn a_cache_used_as_it_is_misses() {
    let driver = drivers()[0];
    let server = kv::start(&KvArgs::new(serve_args(driver))).expect("the server starts");
    let mut load = counted_load_args(&server.addresses()[0], driver, 300);
    load.transactions = "3".parse().expect("three");
    let mut args = KvLoadArgs::new(load);
    (args.no_fill, args.gets) = (true, 1.0);
    let summary = run_kv(&args, &mut |_| {}).expect("the load runs");
    check_good(&summary);
    assert_eq!((summary.details["misses"], summary.details["hits"]), (300, 0));
}

#[test]
fn a_file_set_is_served_byte_by_byte() {
    let root = std::env::temp_dir().join(format!("megapipe-load-{}", std::process::id()));
    for driver in drivers() {
        for (keep_alive, transactions) in [(true, "6"), (false, "inf")] {
            let mut http = HttpLoadArgs::new(
                counted_load_args(&"127.0.0.1:1".parse().expect("an address"), driver, 500),
                "specweb@50".parse().expect("a set"),
            );
            http.prepare = Some(root.clone());
            assert!(prepare(&http).expect("files"), "--prepare was asked for");
            let args = HttpArgs::new(serve_args(driver), root.clone());
            let server = http::start(&args).expect("the server starts");
            http.load.server = Some(server.addresses()[0].clone());
            http.load.transactions = transactions.parse().expect(transactions);
            http.no_keep_alive = !keep_alive;
            let summary = run_http(&http, &mut |_| {}).expect("the load runs");
            check_good(&summary);
            assert_eq!(summary.completed, 500);
            assert!(summary.details["content_bytes"] > 500 * 30);
            server.stop().expect("a clean end");
        }
    }
    std::fs::remove_dir_all(root).expect("tidying up");
}

#[test]
fn missing_pages_count_as_wrong_by_default() {
    let root = std::env::temp_dir().join(format!("megapipe-load-none-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a directory");
    let driver = drivers()[0];
    let args = HttpArgs::new(serve_args(driver), root.clone());
    let server = http::start(&args).expect("the server starts");
    for (status, good) in [(200, false), (404, true)] {
        let load = counted_load_args(&server.addresses()[0], driver, 50);
        let mut http = HttpLoadArgs::new(load, "64@1".parse().expect("a set"));
        (http.files, http.paths) = (None, vec!["/nothing".to_owned()]);
        http.status = status;
        let summary = run_http(&http, &mut |_| {}).expect("the load runs");
        check(&summary);
        let expected = if good { (50, 0) } else { (0, 50) };
        assert_eq!((summary.completed, summary.errors.wrong_response), expected);
    }
    drop(server);
    std::fs::remove_dir_all(root).expect("tidying up");
}
