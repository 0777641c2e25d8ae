//! The ping-pong server in this process, on channels and on sockets with epoll, spoken to byte by
//! byte through ordinary sockets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use megapipe::Address;
use megapipe_apps::rpc::protocol::{Framer, Lengths, header, matches_response};
use megapipe_apps::rpc::{Api, RpcArgs, RpcError, start};
use megapipe_apps::serve::{DriverName, Running, ServeArgs};

/// One of the two programs, on one of the drivers.
#[derive(Copy, Clone, Debug)]
struct Variant {
    driver: DriverName,
    api: Api,
}

impl Variant {
    fn start(self, serve: ServeArgs) -> Result<Running, RpcError> {
        self.start_with(RpcArgs::new(serve))
    }

    fn start_with(self, args: RpcArgs) -> Result<Running, RpcError> {
        let Self { driver, api } = self;
        start(&RpcArgs { api, serve: ServeArgs { driver, ..args.serve }, ..args })
    }

    /// A server of few connections that waits a second for the rest of a request.
    fn start_small(self, max_connections: u32) -> Running {
        let serve = ServeArgs { max_connections, ..ServeArgs::on([loopback()]) };
        let args = RpcArgs { stall_timeout: 1, ..RpcArgs::new(serve) };
        self.start_with(args).expect("the server starts")
    }
}

/// Both programs on the drivers that work here; a driver that does not is named.
fn variants() -> Vec<Variant> {
    let works = |driver: &DriverName| {
        let started =
            Variant { driver: *driver, api: Api::Channel }.start(ServeArgs::on([loopback()]));
        if let Err(error) = &started {
            eprintln!("skipped: driver {driver}: {error}");
        }
        started.is_ok()
    };
    let all = [DriverName::Uring, DriverName::Epoll];
    let drivers: Vec<_> = all.into_iter().filter(works).collect();
    assert!(!drivers.is_empty(), "no driver works here");
    let both =
        |driver| [Api::Channel, Api::Sockets].into_iter().map(move |api| Variant { driver, api });
    drivers.into_iter().flat_map(both).collect()
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().expect("an address")
}

fn server(variant: Variant, channels: Option<usize>) -> Running {
    let serve = ServeArgs { channels, ..ServeArgs::on([loopback()]) };
    variant.start(serve).expect("the server starts")
}

fn connect(server: &Running) -> TcpStream {
    let address = server.addresses()[0].as_inet().expect("TCP");
    let stream = TcpStream::connect(address).expect("connecting");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
    stream.set_nodelay(true).expect("no delay");
    stream
}

fn request(lengths: Lengths, tag: u32) -> Vec<u8> {
    let mut bytes = header(lengths, tag).to_vec();
    bytes.resize(lengths.request as usize, tag as u8);
    bytes
}

/// The response that the protocol asks for.
fn response(request: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reply = Framer::default().next(&mut &request[..], Lengths::default());
    reply.expect("well-formed").expect("whole").append_to(&mut bytes);
    bytes
}

fn exchange(stream: &mut (impl Read + Write), request: &[u8]) -> io::Result<Vec<u8>> {
    let expected = response(request);
    stream.write_all(request)?;
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received)?;
    assert!(received == expected, "not the response to {:?}", &request[..16]);
    Ok(received)
}

#[test]
fn plain_requests_are_echoed() {
    for variant in variants() {
        let server = server(variant, None);
        let mut stream = connect(&server);
        for round in 0..100u8 {
            assert_eq!(exchange(&mut stream, &[round; 64]).expect("an echo"), [round; 64]);
        }
        drop(stream);
        let tally = server.stop().expect("a clean end");
        assert_eq!((tally.accepted, tally.closed, tally.failed), (1, 1, 0));
        assert_eq!((tally.requests, tally.bytes_in, tally.bytes_out), (100, 6_400, 6_400));
    }
}

#[test]
fn requests_of_every_size_get_responses_of_every_size() {
    for variant in variants() {
        let server = server(variant, None);
        let mut stream = connect(&server);
        let sizes = [16, 17, 64, 65, 1_000, 4_096, 4_097, 65_536, 300_000];
        let pairs = sizes.iter().flat_map(|&request| sizes.map(|response| (request, response)));
        for (tag, (request_len, response_len)) in pairs.enumerate() {
            let lengths = Lengths { request: request_len, response: response_len };
            let sent = request(lengths, tag as u32);
            let received = exchange(&mut stream, &sent).expect("a response");
            let prefix = &sent[..64.min(request_len).min(response_len) as usize];
            assert!(matches_response(prefix, 0, &received));
        }
        drop(stream);
        assert_eq!(server.stop().expect("a clean end").requests, 81);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
    for variant in variants() {
        let server = server(variant, None);
        let shapes = [(64, 64), (64, 64), (20, 3_000), (5_000, 10), (64, 64), (16, 16)];
        let requests: Vec<Vec<u8>> = (0..600)
            .map(|tag| {
                let (request_len, response_len) = shapes[tag % shapes.len()];
                request(Lengths { request: request_len, response: response_len }, tag as u32)
            })
            .collect();
        let expected: Vec<u8> = requests.iter().flat_map(|request| response(request)).collect();
        for piece_len in [7, 64, 1_400, 100_000] {
            let mut reader = connect(&server);
            let mut writer = reader.try_clone().expect("a clone");
            let stream = requests.concat();
            let sending = thread::spawn(move || {
                stream.chunks(piece_len).try_for_each(|piece| writer.write_all(piece))
            });
            let mut received = vec![0; expected.len()];
            reader.read_exact(&mut received).expect("all responses");
            assert!(received == expected, "pieces of {piece_len}");
            sending.join().expect("the sender").expect("sending");
        }
        assert_eq!(server.stop().expect("a clean end").requests, 4 * 600);
    }
}

#[test]
fn malformed_requests_end_their_connection_and_no_other() {
    for variant in variants() {
        let server = server(variant, None);
        let mut good = connect(&server);
        let mut bad = connect(&server);
        exchange(&mut good, &[1; 64]).expect("an echo");
        bad.write_all(&header(Lengths { request: 3, response: 64 }, 0)).expect("sending");
        // The server may reset or end the connection; it does not answer.
        assert!(matches!(bad.read(&mut [0; 64]), Ok(0) | Err(_)));
        exchange(&mut good, &[2; 64]).expect("an echo");
        drop(good);
        let tally = server.stop().expect("a clean end");
        assert_eq!((tally.rejected, tally.requests, tally.closed), (1, 2, 2));
    }
}

#[test]
fn half_closed_clients_get_pending_responses() {
    for variant in variants() {
        let server = server(variant, None);
        let mut stream = connect(&server);
        let sent = request(Lengths { request: 64, response: 1_000_000 }, 1);
        stream.write_all(&sent).expect("sending");
        stream.shutdown(Shutdown::Write).expect("half-closing");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("the whole response and the end");
        let expected = response(&sent);
        assert!(received == expected, "{variant:?}: {} bytes", received.len());
        assert_eq!(server.stop().expect("a clean end").failed, 0);
    }
}

#[test]
fn resets_are_taken_quietly() {
    for variant in variants() {
        let server = server(variant, None);
        for _ in 0..50 {
            let mut stream = connect(&server);
            exchange(&mut stream, &[1; 64]).expect("an echo");
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("linger");
        }
        let mut stream = connect(&server);
        exchange(&mut stream, &[2; 64]).expect("an echo");
        drop(stream);
        let tally = server.stop().expect("a clean end");
        assert_eq!((tally.accepted, tally.closed, tally.failed), (51, 51, 0));
    }
}

#[test]
fn several_channels_share_a_port_that_the_first_was_given() {
    for variant in variants() {
        let queues = if variant.api == Api::Channel { &[false, true][..] } else { &[false] };
        for &no_partition in queues {
            let args = ServeArgs { channels: Some(3), no_partition, ..ServeArgs::on([loopback()]) };
            let server = variant.start(args).expect("the server starts");
            assert_eq!((server.channels(), server.addresses().len()), (3, 1));
            let mut streams: Vec<TcpStream> = (0..60).map(|_| connect(&server)).collect();
            for (round, stream) in streams.iter_mut().enumerate() {
                exchange(stream, &[round as u8; 64]).expect("an echo");
            }
            drop(streams);
            let requests = server.stop().expect("a clean end").requests;
            assert_eq!(requests, 60, "{variant:?} {no_partition}");
        }
    }
}

#[test]
fn unix_sockets_are_listened_on_and_tidied_up() {
    for variant in variants().into_iter().filter(|variant| variant.api == Api::Channel) {
        let path = std::env::temp_dir().join(format!("megapipe-rpc-{}.sock", std::process::id()));
        let named = Address::unix(&path).expect("a path");
        let hidden: Address =
            format!("unix:@megapipe-rpc-{}", std::process::id()).parse().expect("an address");
        for round in 0..2 {
            let args = ServeArgs::on([named.clone(), hidden.clone(), loopback()]);
            let args = ServeArgs { channels: Some(2), ..args };
            let server = variant.start(args).expect("the server starts");
            let mut stream = UnixStream::connect(&path).expect("connecting");
            exchange(&mut stream, &[3; 64]).expect("an echo");
            assert_eq!(server.addresses().len(), 3);
            drop(stream);
            server.stop().expect("a clean end");
            assert!(!path.exists(), "the path is gone");
            if round == 0 {
                // What a server that was killed leaves behind does not keep the next from starting.
                drop(std::os::unix::net::UnixListener::bind(&path).expect("binding"));
            }
        }
    }
}

#[test]
fn unix_listen_keeps_a_regular_file() {
    let path = std::env::temp_dir().join(format!("megapipe-rpc-{}.txt", std::process::id()));
    std::fs::write(&path, "precious").expect("a file");
    for variant in variants().into_iter().filter(|variant| variant.api == Api::Channel) {
        let args = ServeArgs::on([Address::unix(&path).expect("a path")]);
        let error = variant.start(args).expect_err("the path is taken").to_string();
        assert!(error.contains("is not a socket"), "{error}");
        assert_eq!(std::fs::read(&path).expect("the file is there"), b"precious");
    }
    std::fs::remove_file(&path).expect("the file is there");
}

#[test]
fn a_full_server_lets_connections_wait() {
    for variant in variants() {
        let args = ServeArgs { max_connections: 2, ..ServeArgs::on([loopback()]) };
        let server = variant.start(args).expect("the server starts");
        let mut first = connect(&server);
        let mut second = connect(&server);
        let mut third = connect(&server);
        exchange(&mut first, &[1; 64]).expect("an echo");
        exchange(&mut second, &[2; 64]).expect("an echo");
        third.set_read_timeout(Some(Duration::from_millis(200))).expect("a time-out");
        third.write_all(&[3; 64]).expect("sending");
        assert!(third.read(&mut [0; 64]).is_err(), "the third has to wait");
        drop(first);
        third.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
        third.read_exact(&mut [0; 64]).expect("its turn");
        drop((second, third));
        assert_eq!(server.stop().expect("a clean end").accepted, 3);
    }
}

/// Sends one byte after the other to each peer until the server has cut all of them off.
fn trickle(mut peers: Vec<TcpStream>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !peers.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
            peers.retain_mut(|peer| peer.write_all(b"x").is_ok());
        }
        assert!(peers.is_empty(), "{} peers are not cut off", peers.len());
    })
}

#[test]
fn trickling_peers_do_not_starve_other_clients() {
    for variant in variants() {
        let server = variant.start_small(4);
        let long = Lengths { request: 100_000, response: 64 };
        let mut peers: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
        for (index, peer) in peers.iter_mut().enumerate() {
            // Half of them send whole requests first.
            if index % 2 == 0 {
                exchange(peer, &[7; 64]).expect("an echo");
            }
            peer.write_all(&request(long, 1)[..20]).expect("sending");
        }
        let trickling = trickle(peers);
        let mut other = connect(&server);
        exchange(&mut other, &[1; 64]).expect("an echo");
        trickling.join().expect("no panic");
        drop(other);
        assert_eq!(server.stop().expect("a clean end").failed, 4, "{variant:?}");
    }
}

#[test]
fn peers_that_read_nothing_do_not_starve_other_clients() {
    for variant in variants() {
        let server = variant.start_small(2);
        let large = request(Lengths { request: 64, response: 1 << 20 }, 1).repeat(50);
        let deaf: Vec<TcpStream> = (0..2).map(|_| connect(&server)).collect();
        for mut peer in &deaf {
            peer.write_all(&large).expect("sending");
        }
        let mut other = connect(&server);
        exchange(&mut other, &[1; 64]).expect("an echo");
        drop((deaf, other));
        assert_eq!(server.stop().expect("a clean end").failed, 2, "{variant:?}");
    }
}

#[test]
fn slow_readers_keep_their_connections() {
    for variant in variants() {
        let server = variant.start_small(2);
        let mut slow = connect(&server);
        let response_len = 1 << 20;
        let count = 40;
        let asked = request(Lengths { request: 64, response: response_len }, 1);
        slow.write_all(&asked.repeat(count)).expect("sending");
        let mut piece = vec![0; response_len as usize];
        for _ in 0..count {
            // Longer in all than the time for one wait.
            thread::sleep(Duration::from_millis(60));
            slow.read_exact(&mut piece).expect("a response");
        }
        drop(slow);
        assert_eq!(server.stop().expect("a clean end").failed, 0, "{variant:?}");
    }
}

#[test]
fn idle_connections_give_way_when_the_limit_is_reached() {
    for variant in variants() {
        let server = variant.start_small(4);
        let mut idle: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
        for peer in &mut idle[..2] {
            exchange(peer, &[7; 64]).expect("an echo");
        }
        let started = Instant::now();
        let mut other = connect(&server);
        exchange(&mut other, &[1; 64]).expect("an echo");
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        let is_closed = |peer: &mut TcpStream| matches!(peer.read(&mut [0; 1]), Ok(0));
        assert!(idle.iter_mut().any(is_closed), "{variant:?}");
        drop((idle, other));
        assert_eq!(server.stop().expect("a clean end").failed, 0, "{variant:?}");
    }
}

#[test]
fn stop_closes_idle_and_drains_pending_responses() {
    for variant in variants() {
        let server = server(variant, None);
        let mut idle = connect(&server);
        exchange(&mut idle, &[1; 64]).expect("an echo");
        let mut busy = connect(&server);
        let sent = request(Lengths { request: 64, response: 1 << 20 }, 9);
        busy.write_all(&sent).expect("sending");
        // Its response has begun, so the server has the request.
        let mut received = vec![0; 1];
        busy.read_exact(&mut received).expect("a byte");
        let began = Instant::now();
        let stopping = thread::spawn(move || server.stop());
        assert_eq!(idle.read(&mut [0; 1]).expect("the end"), 0);
        drop(idle);
        thread::sleep(Duration::from_millis(100));
        busy.read_to_end(&mut received).expect("the whole response and the end");
        assert!(received == response(&sent));
        drop(busy);
        let tally = stopping.join().expect("the stopping thread").expect("a clean end");
        assert_eq!((tally.requests, tally.closed, tally.failed), (2, 2, 0));
        assert!(began.elapsed() < Duration::from_secs(4), "not by the deadline");
    }
}

#[test]
fn bad_arguments_are_errors_by_name() {
    let mut args = ServeArgs::on([loopback()]);
    args.channels = Some(0);
    let error = start(&RpcArgs::new(args)).expect_err("no channels").to_string();
    assert_eq!(error, "--channels 0: a server has 1 to 256 channels");
    let mut args = ServeArgs::on([loopback()]);
    args.cpus = "1000".parse().ok();
    let error = start(&RpcArgs::new(args)).expect_err("no such processor").to_string();
    assert!(error.starts_with("--cpus: processor 1000 is not among"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("binding");
    let address = Address::from(taken.local_addr().expect("an address"));
    for api in [Api::Channel, Api::Sockets] {
        let args = RpcArgs { api, ..RpcArgs::new(ServeArgs::on([address.clone()])) };
        let error = start(&args).expect_err("taken").to_string();
        assert!(error.starts_with("cannot listen on 127.0.0.1:"), "{error}");
    }
    let no_partition = ServeArgs { no_partition: true, ..ServeArgs::on([loopback()]) };
    let args = RpcArgs { api: Api::Sockets, ..RpcArgs::new(no_partition) };
    let error = start(&args).expect_err("sockets have no such thing").to_string();
    assert!(error.starts_with("--no-partition: --api sockets"), "{error}");
    let mut args = RpcArgs::new(ServeArgs::on([loopback()]));
    args.request_bytes = 15;
    assert!(start(&args).is_err());
}
