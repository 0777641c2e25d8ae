//! Servers that refuse, reset, vanish, stay silent or talk nonsense: counted by kind, never fatal.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use megapipe::Address;
use megapipe_apps::load::{HttpLoadArgs, LoadError, RpcLoadArgs, Summary, run_http, run_rpc};
use megapipe_apps::serve::DriverName;
use megapipe_tests::ReservedPort;

use crate::setup::{check, drivers, load_args};

/// A server that does the same with every connection.
fn server(each: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binding");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let each = each.clone();
            thread::spawn(move || each(stream));
        }
    });
    Address::from(address)
}

fn load(server: &Address, driver: DriverName) -> Summary {
    let mut args = load_args(server, driver);
    args.connections = 4;
    let summary = run_rpc(&RpcLoadArgs::new(args), &mut |_| {}).expect("the load runs");
    check(&summary);
    summary
}

#[test]
fn refused_connections_are_counted_and_tried_again_less_and_less_often() {
    for driver in drivers() {
        let closed = ReservedPort::new();
        let address = Address::from(closed.address());
        let summary = load(&address, driver);
        let refused = summary.errors.refused + summary.errors_before.refused;
        // Four connections double their waits from 1 ms for about 0.3 s: some nine tries each.
        assert!((4..=60).contains(&refused), "{summary:#?}");
        assert_eq!(summary.transactions, 0);
        let remark =
            format!("Not one transaction was answered. Errors since the start: {refused} refused.");
        assert_eq!(summary.remarks, [remark]);
    }
}

#[test]
fn resets_and_orderly_ends_are_distinguished() {
    for driver in drivers() {
        let resetting = server(|mut stream| {
            let _ = stream.read_exact(&mut [0; 64]);
            let linger = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&stream, linger).expect("linger");
        });
        let summary = load(&resetting, driver);
        assert!(summary.errors.reset > 0 && summary.errors.closed == 0, "{summary:#?}");
        assert_eq!(summary.failed, summary.errors.reset);
        let ending = server(|mut stream| {
            let _ = stream.read_exact(&mut [0; 64]);
        });
        let summary = load(&ending, driver);
        assert!(summary.errors.closed > 0 && summary.errors.reset == 0, "{summary:#?}");
        assert_eq!(summary.failed, summary.errors.closed);
    }
}

#[test]
fn silence_times_out() {
    for driver in drivers() {
        let silent = server(|mut stream| {
            // Until the client gives up.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let mut args = load_args(&silent, driver);
        (args.connections, args.timeout, args.duration) = (2, 0.2, Some(1.0));
        let summary = run_rpc(&RpcLoadArgs::new(args), &mut |_| {}).expect("the load runs");
        check(&summary);
        assert!((2..=10).contains(&summary.errors.timed_out), "{summary:#?}");
        assert_eq!(summary.completed, 0);
    }
}

#[test]
fn nonsense_is_a_wrong_response() {
    for driver in drivers() {
        let shifted = server(|mut stream| {
            let mut request = [0; 64];
            while stream.read_exact(&mut request).is_ok() {
                request[63] ^= 1;
                if stream.write_all(&request).is_err() {
                    break;
                }
            }
        });
        let summary = load(&shifted, driver);
        assert!(summary.errors.wrong_response > 0, "{summary:#?}");
        assert_eq!(summary.completed, 0);
        let talkative = server(|mut stream| {
            let _ = stream.write_all(b"220 welcome\r\n");
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let summary = load(&talkative, driver);
        assert!(summary.errors.wrong_response > 0, "{summary:#?}");
    }
}

#[test]
fn a_load_that_is_only_rejected_ends_after_a_second() {
    for driver in drivers() {
        let forbidden = server(|mut stream| {
            while stream.read(&mut [0; 512]).is_ok_and(|len| len > 0) {
                let answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
                if stream.write_all(answer).is_err() {
                    return;
                }
            }
        });
        let closed = ReservedPort::new();
        let refusing = Address::from(closed.address());
        for (address, is_asked) in [(&forbidden, true), (&refusing, false)] {
            let mut args = load_args(address, driver);
            (args.connections, args.duration, args.warmup) = (4, Some(60.0), 60.0);
            let mut http = HttpLoadArgs::new(args, "1K".parse().expect("a set"));
            (http.files, http.paths) = (None, vec!["/a/page".to_owned()]);
            let began = Instant::now();
            let summary = run_http(&http, &mut |_| {}).expect("the load runs");
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            assert_eq!(summary.transactions, 0);
            let remarks = summary.remarks.join(" ");
            assert!(remarks.contains("Not one transaction was answered."), "{remarks}");
            let seen = remarks.contains("status 403 for /a/page, and not 200");
            assert_eq!(seen, is_asked, "{remarks}");
        }
    }
}

#[test]
fn a_server_that_closes_idle_connections_does_no_wrong() {
    for driver in drivers() {
        let polite = server(|mut stream| {
            let mut request = [0; 64];
            if stream.read_exact(&mut request).is_ok() {
                let _ = stream.write_all(&request);
            }
            thread::sleep(Duration::from_millis(20));
        });
        let mut args = load_args(&polite, driver);
        (args.connections, args.rate) = (4, Some(20.0));
        let summary = run_rpc(&RpcLoadArgs::new(args), &mut |_| {}).expect("the load runs");
        check(&summary);
        assert_eq!((summary.errors.total(), summary.failed), (0, 0), "{summary:#?}");
        assert!(summary.completed >= 5, "{summary:#?}");
    }
}

#[test]
fn ports_that_run_out_are_named() {
    for driver in drivers() {
        let echo = server(|mut stream| {
            let mut request = [0; 64];
            while stream.read_exact(&mut request).is_ok() && stream.write_all(&request).is_ok() {}
        });
        // One local port is one connection to one server; the second one finds none.
        // No other program binds at this address of the loopback interface.
        let free = TcpListener::bind("127.3.2.1:0").expect("binding");
        let port = Address::from(free.local_addr().expect("an address"));
        drop(free);
        for (source, enough) in [("127.0.0.9:0".parse().expect("an address"), true), (port, false)]
        {
            let mut args = load_args(&echo, driver);
            (args.connections, args.source) = (2, vec![source]);
            let summary = run_rpc(&RpcLoadArgs::new(args), &mut |_| {}).expect("the load runs");
            check(&summary);
            assert!(summary.completed > 0, "{summary:#?}");
            let missing = summary.errors.no_ports + summary.errors_before.no_ports;
            assert_eq!(missing == 0, enough, "{summary:#?}");
            let said = summary.remarks.iter().any(|remark| remark.starts_with("Local ports ran"));
            assert_eq!(said, !enough, "{summary:#?}");
        }
    }
}

#[test]
fn arguments_that_cannot_be_are_errors_by_name() {
    let driver = drivers()[0];
    let nowhere: Address = "127.0.0.1:9".parse().expect("an address");
    let mut args = RpcLoadArgs::new(load_args(&nowhere, driver));
    args.load.threads = Some(9);
    let error = run_rpc(&args, &mut |_| {}).expect_err("fewer connections than threads");
    assert!(matches!(error, LoadError::Threads { threads: 9, connections: 8 }), "{error}");
    let mut args = RpcLoadArgs::new(load_args(&nowhere, driver));
    args.response_bytes = "yahoo".parse().expect("a distribution");
    let error = run_rpc(&args, &mut |_| {}).expect_err("responses of megabytes");
    assert!(error.to_string().contains("--response-bytes"), "{error}");
    let mut args = RpcLoadArgs::new(load_args(&nowhere, driver));
    args.load.source = vec!["192.0.2.9:0".parse().expect("an address")];
    let error = run_rpc(&args, &mut |_| {}).expect_err("an address of another host");
    assert!(error.is_usage() && error.to_string().starts_with("--source 192.0.2.9:0: "), "{error}");
    let mut args = RpcLoadArgs::new(load_args(&nowhere, driver));
    args.load.cpus = "1023".parse().ok();
    let error = run_rpc(&args, &mut |_| {}).expect_err("no such processor");
    assert!(matches!(error, LoadError::Cpu { cpu: 1023 }), "{error}");
}
