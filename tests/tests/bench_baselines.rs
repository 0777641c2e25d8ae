//! The baselines speak the protocol right: a comparison with a server that cuts corners is none.
//!
//! Each case runs against every baseline, over loopback, with plain blocking clients.

use megapipe_apps::rpc::protocol::{Lengths, MESSAGE_LEN_MAX, header, matches_response};
use megapipe_bench::{Baseline, BaselineArgs, Stop, serve_baseline};
use rustix::net::{Shutdown, sockopt::set_socket_linger};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroUsize,
    sync::mpsc,
    thread,
    time::Duration,
};

const ALL: [Baseline; 4] =
    [Baseline::EpollShared, Baseline::EpollReuseport, Baseline::EpollProcesses, Baseline::IoUring];
const DEADLINE: Duration = Duration::from_secs(10);

/// Runs `body` against a server with this many threads, then stops the server and checks that it
/// ended in order.
fn with_server(baseline: Baseline, threads: usize, body: impl FnOnce(SocketAddr)) {
    with_server_of(&args(baseline, threads), body);
}

fn args(baseline: Baseline, threads: usize) -> BaselineArgs {
    BaselineArgs {
        baseline,
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        threads: NonZeroUsize::new(threads).expect("a thread"),
        cpus: None,
        request_bytes: 64,
        response_bytes: 64,
        reset: false,
        program: Some(env!("CARGO_BIN_EXE_baseline").into()),
    }
}

fn with_server_of(args: &BaselineArgs, body: impl FnOnce(SocketAddr)) {
    let baseline = args.baseline;
    let stop = Stop::new().expect("an eventfd");
    let (ready, address) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            serve_baseline(args, &stop, move |address| {
                ready.send(address).expect("the test waits");
            })
        });
        let Ok(address) = address.recv_timeout(DEADLINE) else {
            let outcome = server.join().expect("the server does not panic");
            panic!("{} did not start: {outcome:?}", baseline.name());
        };
        // Stopped on failure too, or the scope would wait for the server for ever.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(address)));
        stop.trigger().expect("stopping");
        let ended = server.join().expect("the server does not panic");
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        ended.unwrap_or_else(|error| panic!("{}: {error}", baseline.name()));
    });
}

/// Each baseline that this kernel allows; says so where it does not.
fn with_each(name: &str, threads: usize, body: impl Fn(SocketAddr)) {
    for baseline in ALL {
        if baseline == Baseline::IoUring
            && let Some(why) = io_uring_refused()
        {
            println!("skipped: {name} on io_uring: {why}");
            continue;
        }
        with_server(baseline, threads, &body);
    }
}

fn io_uring_refused() -> Option<String> {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    (setting.trim() != "0").then(|| format!("io_uring_disabled is {}", setting.trim()))
}

#[test]
fn a_server_that_only_accepts_resets_every_connection() {
    let epoll = ALL.into_iter().filter(|baseline| *baseline != Baseline::IoUring);
    for baseline in epoll {
        let args = BaselineArgs { reset: true, ..args(baseline, 2) };
        with_server_of(&args, |address| {
            for _ in 0..100 {
                // The reset may be there before connect(2) has returned.
                let read = TcpStream::connect(address).and_then(|mut stream| {
                    stream.set_read_timeout(Some(DEADLINE))?;
                    stream.read(&mut [0; 1])
                });
                let error = read.expect_err("nothing is served");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        });
    }
    let args = BaselineArgs { reset: true, ..args(Baseline::IoUring, 1) };
    let refused = serve_baseline(&args, &Stop::new().expect("an eventfd"), |_| {});
    assert!(refused.expect_err("unfit").to_string().contains("io_uring"));
}

#[test]
fn failed_process_is_reported_with_its_output() {
    let stop = Stop::new().expect("an eventfd");
    let refused = |args: BaselineArgs| {
        let outcome = serve_baseline(&args, &stop, |_| panic!("it is not ready"));
        outcome.expect_err("it did not start").to_string()
    };
    // An address for documentation (RFC 5737), which no host has.
    let nowhere = SocketAddr::from(([192, 0, 2, 1], 0));
    let error = refused(BaselineArgs { listen: nowhere, ..args(Baseline::EpollProcesses, 2) });
    assert!(error.contains("cannot listen on 192.0.2.1"), "{error}");
    let program = Some("/nonexistent".into());
    let error = refused(BaselineArgs { program, ..args(Baseline::EpollProcesses, 2) });
    assert!(error.contains("No such file"), "{error}");
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connecting");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    stream.set_write_timeout(Some(DEADLINE)).expect("a time-out");
    stream
}

fn request(lengths: Lengths, tag: u32) -> Vec<u8> {
    let mut bytes = header(lengths, tag).to_vec();
    bytes.resize(lengths.request as usize, tag as u8);
    bytes
}

fn read_response(stream: &mut TcpStream, lengths: Lengths, request: &[u8]) {
    let mut response = vec![0; lengths.response as usize];
    stream.read_exact(&mut response).expect("a response");
    let prefix_len = request.len().min(response.len()).min(64);
    assert!(matches_response(&request[..prefix_len], 0, &response), "{lengths:?}");
}

#[test]
fn responses_of_every_size_are_right() {
    with_each("responses_of_every_size_are_right", 1, |address| {
        let mut stream = connect(address);
        let sizes = [16, 64, 65, 1000, 4096, 70_000, MESSAGE_LEN_MAX];
        for (tag, lengths) in sizes
            .iter()
            .flat_map(|&request| sizes.iter().map(move |&response| Lengths { request, response }))
            .enumerate()
        {
            let request = request(lengths, tag as u32);
            thread::scope(|scope| {
                let mut writer = stream.try_clone().expect("a clone");
                let bytes = &request;
                scope.spawn(move || writer.write_all(bytes).expect("sending"));
                read_response(&mut stream, lengths, bytes);
            });
        }
    });
}

#[test]
fn requests_in_pieces_and_in_packs_are_answered_in_order() {
    with_each("requests_in_pieces_and_in_packs_are_answered_in_order", 1, |address| {
        let mut stream = connect(address);
        let shapes = [(64, 64), (16, 20_000), (300, 10), (64, 64), (64, 64), (5000, 5000)]
            .map(|(request, response)| Lengths { request, response });
        let requests: Vec<Vec<u8>> =
            shapes.iter().enumerate().map(|(tag, &shape)| request(shape, tag as u32)).collect();
        let all = requests.concat();
        for piece_len in [1, 7, 63, 64, 65, 1000, all.len()] {
            thread::scope(|scope| {
                let mut writer = stream.try_clone().expect("a clone");
                let all = &all;
                scope.spawn(move || {
                    all.chunks(piece_len).for_each(|piece| writer.write_all(piece).expect("send"));
                });
                for (shape, request) in shapes.iter().zip(&requests) {
                    read_response(&mut stream, *shape, request);
                }
            });
        }
    });
}

#[test]
fn a_peer_that_closes_its_half_still_gets_its_responses() {
    with_each("a_peer_that_closes_its_half_still_gets_its_responses", 1, |address| {
        let mut stream = connect(address);
        let lengths = Lengths { request: 64, response: 300_000 };
        let request = request(lengths, 1);
        stream.write_all(&request).expect("sending");
        rustix::net::shutdown(&stream, Shutdown::Write).expect("half a close");
        read_response(&mut stream, lengths, &request);
        assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
    });
}

#[test]
fn nonsense_ends_the_connection_and_nothing_else() {
    with_each("nonsense_ends_the_connection_and_nothing_else", 1, |address| {
        let mut bad = connect(address);
        let absurd = header(Lengths { request: u32::MAX, response: 1 }, 0);
        bad.write_all(&absurd).expect("sending");
        match bad.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => panic!("an answer to nonsense"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        let mut good = connect(address);
        let request = request(Lengths::default(), 2);
        good.write_all(&request).expect("sending");
        read_response(&mut good, Lengths::default(), &request);
    });
}

#[test]
fn resets_at_any_moment_leave_the_server_serving() {
    with_each("resets_at_any_moment_leave_the_server_serving", 2, |address| {
        let lengths = Lengths { request: 64, response: 100_000 };
        for round in 0..200u32 {
            let mut stream = connect(address);
            set_socket_linger(&stream, Some(Duration::ZERO)).expect("linger");
            if round % 4 > 0 {
                stream.write_all(&request(lengths, round)).expect("sending");
            }
            if round % 4 > 1 {
                stream.read_exact(&mut [0; 1000]).expect("a piece of a response");
            }
        }
        let mut stream = connect(address);
        let request = request(Lengths::default(), 3);
        stream.write_all(&request).expect("sending");
        read_response(&mut stream, Lengths::default(), &request);
    });
}

#[test]
fn many_connections_are_served_at_once() {
    with_each("many_connections_are_served_at_once", 2, |address| {
        let mut streams: Vec<TcpStream> = (0..400).map(|_| connect(address)).collect();
        for round in 0..5 {
            for (index, stream) in streams.iter_mut().enumerate() {
                let tag = (index * 10 + round) as u32;
                stream.write_all(&request(Lengths::default(), tag)).expect("sending");
            }
            for (index, stream) in streams.iter_mut().enumerate() {
                let tag = (index * 10 + round) as u32;
                read_response(stream, Lengths::default(), &request(Lengths::default(), tag));
            }
        }
    });
}

#[test]
fn peer_that_never_reads_does_not_block_others() {
    with_each("peer_that_never_reads_does_not_block_others", 1, |address| {
        let mut deaf = connect(address);
        deaf.set_write_timeout(Some(Duration::from_millis(300))).expect("a time-out");
        let lengths = Lengths { request: 64, response: MESSAGE_LEN_MAX };
        let many = request(lengths, 4).repeat(1000);
        // Ends by the time-out, or because the server gave the connection up.
        while deaf.write(&many).is_ok_and(|sent| sent > 0) {}
        let mut good = connect(address);
        let request = request(Lengths::default(), 5);
        good.write_all(&request).expect("sending");
        read_response(&mut good, Lengths::default(), &request);
    });
}
