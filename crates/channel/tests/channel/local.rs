//! What is our own stack's alone: where it differs from the kernel, what it costs when nothing
//! happens, and how its link goes.
//!
//! Read first: `place.rs`.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Backend, Channel, Config, ConnInfo, ConnectOptions, CreateError, Departure,
    DispatchError, DriverChoice, Event, Handle, ListenOptions, LocalNetwork, Misuse, OpError,
    Placement, ServerConfig, SocketKind, SubmitError, TcpState,
};
use megapipe_link::{Link, PairConfig, pair};
use rustix::time::{ClockId, clock_gettime};

use crate::place::{device, here, ip};
use crate::scene::{
    A_WHILE, Case, PATIENCE, Stream, on_each_placement, pattern, receive, reset, tcp_pair,
};

on_each_placement![
    a_connection_has_no_descriptor_to_move_to_and_goes_on,
    an_accept_of_descriptors_is_not_supported,
    datagrams_have_no_descriptor,
    segments_that_no_call_can_mean_are_refused,
    registered_listener_also_listens_on_the_stack,
    registered_kernel_socket_is_returned,
    listeners_without_a_port_get_one_each_and_a_port_is_had_once,
    an_idle_channel_sleeps,
    an_idle_process_takes_no_time,
    delivery_is_not_reported_after_a_reset_that_is_on_its_way,
    dispatch_reports_a_link_that_is_gone,
    explain_names_link_and_negotiated_options,
];

fn a_connection_has_no_descriptor_to_move_to_and_goes_on(case: &Case) {
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::Connected6] {
        let (handle, mut peer) = scene.stream(kind);
        let refused = scene.to_fd(handle).unwrap_err();
        assert!(matches!(refused, SubmitError::Misuse(Misuse::CannotMove { .. })), "{refused}");
        assert!(refused.to_string().ends_with("connections move on packet and xdp"), "{refused}");
        let explain = scene.explain(handle).unwrap();
        assert!(explain.remarks.iter().any(|it| it.contains("packet and xdp")), "{explain}");
        scene.write(handle, "still here").unwrap();
        scene.expect_written(handle, 10);
        assert_eq!(scene.receive(&mut peer, 10), b"still here");
    }
}

fn an_accept_of_descriptors_is_not_supported(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let refused = scene.channel.accept(listener, Accept::fd(2)).unwrap_err();
    assert!(matches!(refused, SubmitError::Misuse(Misuse::CannotMove { .. })), "{refused}");
    let explain = scene.explain(listener).unwrap();
    assert!(explain.remarks.iter().any(|it| it.contains("packet and xdp")), "{explain}");
    scene.channel.accept(listener, Accept::lwsocket(1)).unwrap();
    let _client = scene.dial(address.as_inet().unwrap()).unwrap();
    scene.accepted(listener);
}

fn segments_that_no_call_can_mean_are_refused(case: &Case) {
    let mut scene = case.scene();
    let socket = scene.socket(SocketKind::Udp4, Some(&here("127.0.0.1:0")), 0).unwrap();
    let (to, departure) = (scene.channel.local_address(socket).unwrap(), Departure::default());
    let mut to = to.as_inet().unwrap();
    let IpAddr::V4(ours) = to.ip() else { panic!("{to}") };
    // A neighbour's.
    to.set_ip(IpAddr::V4((ours.to_bits() ^ 3).into()));
    for (bytes, segment_len) in [(10, 0), (0, 10), (129, 1), (1281, 10)] {
        let sent =
            scene.channel.send_datagrams(socket, (vec![0; bytes], segment_len), to, &departure);
        assert_eq!(sent, Err(OpError::InvalidInput), "{bytes} {segment_len}");
    }
    let sent = scene.channel.send_datagrams(socket, (vec![0; 2000], 1473), to, &departure);
    assert_eq!(sent, Err(OpError::MessageTooLong));
    assert!(scene.channel.packet_bytes_max(to.ip()).is_some());
    assert_eq!(scene.channel.quote_errors(socket, true), Ok(()));
    scene.channel.unregister(socket).unwrap();
    let sent = scene.channel.send_datagrams(socket, (vec![0; 2], 1), to, &departure);
    assert_eq!(sent, Err(OpError::BadDescriptor));
    assert_eq!(scene.channel.quote_errors(socket, true), Err(OpError::BadDescriptor));
}

fn registered_listener_also_listens_on_the_stack(case: &Case) {
    let mut scene = case.scene();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = socket.local_addr().unwrap();
    let listener = scene.register(socket.into(), 0, None).unwrap();
    let explain = scene.explain(listener).unwrap();
    assert!(explain.remarks.iter().any(|it| it.contains("listens beside it")), "{explain}");
    // More is asked for than comes over one of the two ways.
    scene.channel.accept(listener, Accept::lwsocket(3)).unwrap();
    let outside = here(&inside.to_string()).as_inet().unwrap();
    let mut peers = Vec::new();
    for (to, backend) in [(outside, case.backend()), (inside, "kernel"), (outside, case.backend())]
    {
        peers.push(scene.dial(to).unwrap());
        let handle = scene.accepted(listener);
        assert_eq!(scene.explain(handle).unwrap().backend, backend);
        scene.write(handle, "hello").unwrap();
        scene.expect_written(handle, 5);
        let peer = peers.last_mut().unwrap();
        assert_eq!(scene.receive(peer, 5), b"hello");
    }
    // One that comes before it is wanted is kept until it is; the last when the listener leaves.
    scene.channel.accept(listener, Accept::lwsocket(1)).unwrap();
    peers.push(scene.dial(inside).unwrap());
    scene.accepted(listener);
    peers.push(scene.dial(outside).unwrap());
    scene.expect_silence();
    scene.accept_one(listener);
    let left = scene.unregister(listener).unwrap();
    assert!(left.fd.is_some());
    let refused = scene.dial(outside).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

fn datagrams_have_no_descriptor(case: &Case) {
    let mut scene = case.scene();
    let socket = scene.socket(SocketKind::Udp4, None, 0).unwrap();
    let refused = scene.to_fd(socket).unwrap_err();
    assert!(refused.to_string().contains("UDP"), "{refused}");
}

fn registered_kernel_socket_is_returned(case: &Case) {
    let mut scene = case.scene();
    let (ours, mut theirs) = tcp_pair();
    let number = ours.as_raw_fd();
    let refused = scene.take_over(ours.into(), 0).unwrap_err();
    assert_eq!((refused.why.raw_os_error(), refused.fd.as_raw_fd()), (libc::EOPNOTSUPP, number));
    assert!(refused.why.to_string().contains("packet and xdp"), "{}", refused.why);
    let mut ours = TcpStream::from(refused.fd);
    ours.write_all(b"as before").unwrap();
    assert_eq!(receive(&mut theirs, 9), b"as before");
}

fn listeners_without_a_port_get_one_each_and_a_port_is_had_once(case: &Case) {
    let mut scene = case.scene();
    let (_, one) = scene.listening("127.0.0.1:0");
    let (second, other) = scene.listening("127.0.0.1:0");
    assert!(one != other && other.as_inet().unwrap().port() >= 32_768);
    let taken = scene.listen(&other, &ListenOptions::default(), 0).unwrap_err();
    assert_eq!(taken.to_string(), "cannot bind");
    scene.unregister(second).unwrap();
    scene.listen(&other, &ListenOptions::default(), 0).expect("it is free again");
}

fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), spent.tv_nsec as u32)
}

fn an_idle_channel_sleeps(case: &Case) {
    let mut scene = case.scene();
    let (handle, _peer) = scene.stream(Stream::Accepted4);
    scene.read(handle, 10).unwrap();
    scene.expect_silence();
    let (start, before) = (Instant::now(), cpu_time());
    let done = scene.channel.dispatch(Some(Duration::from_millis(500))).unwrap();
    assert!(done.is_none(), "{done:?}");
    assert!(start.elapsed() >= Duration::from_millis(500));
    let spent = cpu_time().saturating_sub(before);
    assert!(spent < Duration::from_millis(25), "{spent:?} for nothing");
}

/// All threads of the process, the server's too, in a process that does nothing else.
fn an_idle_process_takes_no_time(case: &Case) {
    case.alone(|| {
        let mut scene = case.scene();
        let (handle, _peer) = scene.stream(Stream::Accepted4);
        scene.read(handle, 10).unwrap();
        scene.expect_silence();
        let now = || clock_gettime(ClockId::ProcessCPUTime);
        // What a virtual machine is kept from its processor for counts as its threads': the least
        // of some seconds is what an idle process takes.
        let mut least_ns = i64::MAX;
        for _ in 0..5 {
            let before = now();
            let done = scene.channel.dispatch(Some(Duration::from_secs(1))).unwrap();
            assert!(done.is_none(), "{done:?}");
            let spent = now() - before;
            least_ns = least_ns.min(spent.tv_sec * 1_000_000_000 + spent.tv_nsec);
            if least_ns < 10_000_000 {
                return;
            }
        }
        panic!("{least_ns} ns of a second are more than one in a hundred");
    });
}

/// With a stack on another thread or in a daemon, the connection is over before its event is
/// dispatched.
fn delivery_is_not_reported_after_a_reset_that_is_on_its_way(case: &Case) {
    if case.placement == Placement::Inline && !case.is_service {
        return;
    }
    let mut scene = case.scene();
    for kind in Stream::TCP.into_iter().filter(|kind| !kind.is_registered()) {
        for has_unread in [true, false] {
            let (handle, mut peer) = scene.stream(kind);
            if has_unread {
                scene.send(&mut peer, b"before the reset");
            }
            reset(peer);
            let start = Instant::now();
            let is_open = |info: ConnInfo| info.state != TcpState::Closed;
            while scene.channel.conn_info(handle).is_ok_and(is_open) {
                assert!(start.elapsed() < PATIENCE, "{kind:?} is not reset");
                thread::yield_now();
            }
            scene.channel.await_delivery(handle).unwrap();
            match scene.next_of(handle) {
                Event::Delivered(Err(OpError::Reset)) => {}
                other => panic!("{kind:?} {other:?}"),
            }
            scene.unregister(handle).unwrap();
        }
    }
}

fn dispatch_reports_a_link_that_is_gone(case: &Case) {
    let mut scene = case.scene();
    let (handle, _peer) = scene.stream(Stream::Accepted4);
    scene.read(handle, 10).unwrap();
    // Its peer does not read.
    let (full, _unread) = scene.stream(Stream::Accepted4);
    scene.write(full, vec![0; 16 << 20]).unwrap();
    scene.flush().unwrap();
    scene.channel.await_delivery(full).unwrap();
    scene.expect_silence();
    ip(&format!("link del {}\n", device())).unwrap();
    if case.is_service {
        // The daemon ends. What is pending ends with an error, and the channel goes on.
        let event = scene.next_of(handle);
        assert!(matches!(event, Event::Read(Err(OpError::ServiceGone))), "{event:?}");
        let ends = [scene.next_of(full), scene.next_of(full)];
        let is_delivered = |it: &Event| matches!(it, Event::Delivered(Err(OpError::ServiceGone)));
        assert!(ends.iter().any(is_delivered), "{ends:?}");
        let peer = "192.0.2.1:1".parse().unwrap();
        let error = scene.connect(&peer, &ConnectOptions::default(), 0).unwrap_err();
        assert!(format!("{error:?}").contains("down"), "{error:?}");
        return scene.expect_silence();
    }
    let start = Instant::now();
    let error = loop {
        match scene.channel.dispatch(Some(A_WHILE)) {
            Err(error) => break error,
            Ok(done) => assert!(done.is_none() && start.elapsed() < PATIENCE, "{done:?}"),
        }
    };
    assert!(matches!(error, DispatchError::Link(_)), "{error:?}");
    scene.unregister(handle).expect("the channel itself is whole");
}

fn explain_names_link_and_negotiated_options(case: &Case) {
    let mut scene = case.scene();
    let (handle, peer) = scene.stream(Stream::Accepted4);
    let explain = scene.explain(handle).unwrap();
    assert!(explain.path.starts_with("our own stack on tun, connection "), "{explain}");
    for agreed in ["Established", "mss 14", "window scale ", "SACK", "timestamps"] {
        assert!(explain.path.contains(agreed), "{agreed} is not in {explain}");
    }
    assert_eq!(explain.backend, case.backend());
    drop(peer);
    let (listener, _) = scene.listening("127.0.0.1:0");
    assert_eq!(scene.explain(listener).unwrap().path, "our own stack on tun");
    let timer = scene.timer(PATIENCE, None, 0).unwrap();
    assert_eq!(scene.explain(timer).unwrap().backend, "kernel");
}

/// A channel on one end of a pair.
fn network(link: impl Link + 'static, last: u8) -> LocalNetwork {
    let address = IpAddr::from([10, 78, 0, last]);
    let settings = ServerConfig { addresses: vec![(address, 24)], ..ServerConfig::default() };
    LocalNetwork::over(vec![Box::new(link)], settings).expect("one queue, one shard")
}

fn channels_on_a_pair() -> (Channel, Channel) {
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    let channel = |network| Config::default().backend(Backend::Local(network));
    let make = |config| Channel::create(config).expect("it needs nothing");
    (make(channel(network(one, 1))), make(channel(network(other, 2))))
}

#[test]
fn two_channels_in_one_thread_exchange_megabytes_over_a_pair() {
    const LEN: usize = 3 << 20;
    let (mut client, mut server) = channels_on_a_pair();
    let address = "10.78.0.2:80".parse().unwrap();
    let listener = server.listen(&address, &ListenOptions::default(), 0).unwrap();
    server.accept(listener, Accept::lwsocket(1).first_read(1 << 16)).unwrap();
    let handle = client.connect(&address, &ConnectOptions::default(), 0).unwrap();
    client.write(handle, pattern(1, LEN)).unwrap();
    client.read(handle, 1 << 16).unwrap();
    let (start, mut echoed) = (Instant::now(), Vec::new());
    while echoed.len() < LEN {
        assert!(start.elapsed() < PATIENCE, "{} bytes came back", echoed.len());
        while let Some(done) = server.dispatch(Some(Duration::ZERO)).unwrap() {
            if let Event::Read(read) = done.event {
                server.write(done.handle, read.unwrap()).unwrap();
                server.read(done.handle, 1 << 16).unwrap();
            }
        }
        while let Some(done) = client.dispatch(Some(Duration::ZERO)).unwrap() {
            match done.event {
                Event::Read(read) => {
                    echoed.extend_from_slice(&read.unwrap());
                    client.read(handle, 1 << 16).unwrap();
                }
                Event::Connect(Ok(())) | Event::Write(Ok(LEN)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(echoed == pattern(1, LEN));
}

#[test]
fn local_queue_serves_one_channel_with_epoll() {
    let (one, _other) = pair(&PairConfig::default()).unwrap();
    let config = Config::default().backend(Backend::Local(network(one, 1)));
    let forced = Channel::create(config.clone().driver(DriverChoice::Uring)).err();
    assert!(matches!(forced, Some(CreateError::DriverUnavailable { driver: "uring", .. })));
    let mut first = Channel::create(config.clone()).unwrap();
    assert!(matches!(Channel::create(config).err(), Some(CreateError::NoQueue)));
    let nowhere = "10.78.0.9:80".parse().unwrap();
    let error = first.listen(&nowhere, &ListenOptions::default(), 0).unwrap_err();
    assert_eq!(error.to_string(), "cannot bind");
    assert!(first.unregister(Handle::NONE).is_err());
}
