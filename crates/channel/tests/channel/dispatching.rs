//! Handing out completions: waiting, waking, many at once, flushing, cookies; and looking in.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, Config, ConnectOptions, Connection, CpuMask, DriverChoice, DriverKind, Event,
    Handle, OpenOptions, Placement,
};

use crate::place::there;
use crate::scene::{A_WHILE, Case, Folder, PATIENCE, Stream, on_each_driver, pattern, send};

on_each_driver![
    dispatch_without_work_waits_for_its_timeout,
    dispatch_without_waiting_still_submits,
    a_waker_ends_a_wait_from_another_thread,
    several_wakes_give_at_least_one_completion,
    a_waker_outlives_its_channel,
    dispatch_many_takes_what_is_there_up_to_its_limit,
    cookies_set_when_connections_begin_are_in_all_completions,
    flush_hands_over_without_waiting,
    operations_below_the_batch_wait_for_flush_or_dispatch,
    a_full_batch_goes_by_itself,
    a_cookie_may_change_between_completions,
    completions_of_an_unregistered_handle_are_not_seen,
    the_report_names_the_driver_and_why,
    explain_names_path_and_queued_operations,
    counters_count,
    numbers_of_lwsockets_find_their_handles,
    a_channel_pins_its_thread,
    answers_come_on_one_core_however_long_the_last_is_ago,
    wrong_configurations_are_named;
    kernel:
    lwsockets_can_be_switched_off,
    partitioning_can_be_switched_off,
];

fn dispatch_without_work_waits_for_its_timeout(case: &Case) {
    let mut scene = case.scene();
    let start = Instant::now();
    assert!(scene.dispatch(Some(Duration::ZERO)).unwrap().is_none());
    assert!(start.elapsed() < PATIENCE / 2);
    let start = Instant::now();
    assert!(scene.dispatch(Some(A_WHILE)).unwrap().is_none());
    assert!(start.elapsed() >= A_WHILE);
    let start = Instant::now();
    assert!(scene.dispatch(Some(Duration::from_micros(300))).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_micros(300));
}

fn dispatch_without_waiting_still_submits(case: &Case) {
    let mut scene = case.scene();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    scene.send(&mut peer, b"here");
    scene.read(handle, 10).unwrap();
    let start = Instant::now();
    let done = loop {
        if let Some(done) = scene.dispatch(Some(Duration::ZERO)).unwrap() {
            break done;
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(matches!(done.event, Event::Read(Ok(bytes)) if &*bytes == b"here"));
}

fn a_waker_ends_a_wait_from_another_thread(case: &Case) {
    let mut scene = case.scene();
    for _ in 0..20 {
        let waker = scene.waker();
        let thread = thread::spawn(move || waker.wake());
        let done = scene.dispatch(None).unwrap().expect("woken");
        assert!(matches!(done.event, Event::Wake));
        assert_eq!((done.handle, done.cookie), (Handle::NONE, 0));
        scene.join(thread);
    }
    scene.expect_silence();
}

fn several_wakes_give_at_least_one_completion(case: &Case) {
    let mut scene = case.scene();
    let wakers: Vec<_> = (0..4)
        .map(|_| {
            let waker = scene.waker();
            thread::spawn(move || (0..100).for_each(|_| waker.clone().wake()))
        })
        .collect();
    assert!(matches!(scene.next().event, Event::Wake));
    for waker in wakers {
        scene.join(waker);
    }
    // What was woken after the last Wake was handed out gives one more.
    let mut count = 0;
    while let Some(done) = scene.dispatch(Some(A_WHILE)).unwrap() {
        assert!(matches!(done.event, Event::Wake));
        count += 1;
        assert!(count <= 400);
    }
    scene.waker().wake();
    assert!(matches!(scene.next().event, Event::Wake));
}

fn a_waker_outlives_its_channel(case: &Case) {
    let scene = case.scene();
    let waker = scene.waker();
    drop(scene);
    waker.wake();
    let mut other = case.scene();
    other.expect_silence();
}

fn dispatch_many_takes_what_is_there_up_to_its_limit(case: &Case) {
    let mut scene = case.scene();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    for _ in 0..10 {
        scene.write(handle, "x").unwrap();
    }
    let mut out = Vec::new();
    assert_eq!(scene.dispatch_many(&mut out, 0, None).unwrap(), 0);
    let mut total = 0;
    while total < 10 {
        let count = scene.dispatch_many(&mut out, 3, Some(PATIENCE)).unwrap();
        assert!((1..=3).contains(&count));
        total += count;
    }
    assert_eq!(out.len(), 10, "appended");
    assert_eq!(scene.receive(&mut peer, 10), b"xxxxxxxxxx");
    assert_eq!(scene.dispatch_many(&mut out, 5, Some(Duration::ZERO)).unwrap(), 0);
    assert!(out.iter().all(|done| matches!(done.event, Event::Write(Ok(1)))));
}

/// Connections that are accepted with a first read, and connections that are made, all of which
/// have bytes for the channel at once.
fn cookies_set_when_connections_begin_are_in_all_completions(case: &Case) {
    const CONNECTIONS: usize = 40;
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let address = address.as_inet().expect("TCP");
    let accept = Accept::lwsocket(u32::MAX).first_read(64).cookie(1);
    scene.channel.accept(listener, accept).expect("a listener accepts");
    let clients = thread::spawn(move || {
        let connect = |_| {
            let mut client = TcpStream::connect(address).expect("connects");
            send(&mut client, b"from a client");
            client
        };
        (0..CONNECTIONS).map(connect).collect::<Vec<_>>()
    });
    let server = TcpListener::bind(there("127.0.0.1:0")).expect("binds");
    let to = Address::from(server.local_addr().expect("bound"));
    let peers = thread::spawn(move || {
        let admit = |_| {
            let (mut peer, _) = server.accept().expect("accepts");
            send(&mut peer, b"from a server");
            peer
        };
        (0..CONNECTIONS).map(admit).collect::<Vec<_>>()
    });
    for _ in 0..CONNECTIONS {
        let handle = scene.connect(&to, &ConnectOptions::default(), 2).expect("starts");
        scene.channel.read(handle, 64).expect("reading is possible");
    }
    let (mut batch, mut reads, start) = (Vec::new(), 0, Instant::now());
    while reads < 2 * CONNECTIONS {
        assert!(start.elapsed() < PATIENCE, "{reads} were read");
        // Several things happen before the program looks.
        thread::sleep(Duration::from_millis(2));
        scene.channel.dispatch_many(&mut batch, 1000, Some(Duration::ZERO)).expect("works");
        for done in batch.drain(..) {
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    let Connection::Lwsocket(handle) = accepted.connection else { panic!() };
                    scene.channel.set_cookie(handle, handle.to_bits()).expect("it is new");
                }
                Event::Connect(Ok(())) => {
                    scene
                        .channel
                        .set_cookie(done.handle, done.handle.to_bits())
                        .expect("it is new");
                }
                Event::Read(Ok(bytes)) => {
                    assert_eq!(bytes.len(), 13);
                    assert_eq!(done.cookie, done.handle.to_bits());
                    reads += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    drop((scene.join(clients), scene.join(peers)));
}

fn flush_hands_over_without_waiting(case: &Case) {
    let mut scene = case.scene_with(case.config().batch(100));
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    scene.write(handle, "flushed").unwrap();
    scene.flush().unwrap();
    assert_eq!(scene.receive(&mut peer, 7), b"flushed");
    scene.expect_written(handle, 7);
    scene.flush().unwrap();
}

fn operations_below_the_batch_wait_for_flush_or_dispatch(case: &Case) {
    let mut scene = case.scene_with(case.config().batch(32));
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    let before = scene.counters().system_calls;
    scene.write(handle, "queued").unwrap();
    assert_eq!(scene.counters().system_calls, before);
    // A server on a thread beside has the write already, and sends it with a turn of its own if it
    // takes one meanwhile.
    if case.placement != Placement::Thread {
        peer.set_read_timeout(Some(A_WHILE)).unwrap();
        std::io::Read::read(&mut peer, &mut [0; 1]).expect_err("nothing was handed over yet");
    }
    scene.expect_written(handle, 6);
    assert_eq!(scene.receive(&mut peer, 6), b"queued");
}

fn a_full_batch_goes_by_itself(case: &Case) {
    for batch in [1, 8] {
        let mut scene = case.scene_with(case.config().batch(batch));
        let mut streams: Vec<_> = (0..batch).map(|_| scene.stream(Stream::Accepted4)).collect();
        scene.flush().unwrap();
        for (handle, _) in &streams {
            scene.write(*handle, "go").unwrap();
        }
        for (_, peer) in &mut streams {
            assert_eq!(scene.receive(peer, 2), b"go", "batch {batch}");
        }
    }
}

fn a_cookie_may_change_between_completions(case: &Case) {
    let mut scene = case.scene();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    for cookie in [0, 1, u64::MAX, 42] {
        scene.set_cookie(handle, cookie).unwrap();
        scene.write(handle, "x").unwrap();
        assert_eq!(scene.next().cookie, cookie);
    }
    // The cookie is the one at the time when the completion is handed out.
    scene.write(handle, "1").unwrap();
    scene.write(handle, "2").unwrap();
    assert_eq!(scene.next().cookie, 42);
    scene.set_cookie(handle, 43).unwrap();
    assert_eq!(scene.next().cookie, 43);
    assert_eq!(scene.receive(&mut peer, 6), b"xxxx12");
}

fn completions_of_an_unregistered_handle_are_not_seen(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (first, _peer) = scene.stream(kind);
        let (second, mut other) = scene.stream(kind);
        // Both have completions ready; the first handed out unregisters the other.
        scene.write(first, "a").unwrap();
        scene.write(second, "b").unwrap();
        assert_eq!(receive_after_flush(&mut scene, &mut other), b'b');
        assert_eq!(scene.next().handle, first);
        scene.unregister(second).unwrap();
        scene.expect_silence();
        scene.unregister(first).unwrap();
    }
    scene.expect_no_strays();
}

fn receive_after_flush(scene: &mut crate::scene::Scene, peer: &mut crate::scene::Peer) -> u8 {
    scene.flush().unwrap();
    scene.receive(peer, 1)[0]
}

fn the_report_names_the_driver_and_why(case: &Case) {
    let scene = case.scene();
    let report = scene.report();
    let expected = match case.driver {
        DriverChoice::Epoll => DriverKind::Epoll,
        _ => DriverKind::Uring,
    };
    assert_eq!(report.driver, expected);
    let stack =
        |place| format!("TCP and UDP by our own stack on tun of 1500 bytes MTU; it runs {place}");
    let reason = match (case.is_local, case.placement) {
        (false, _) => "forced by configuration".to_owned(),
        (true, Placement::Inline) => stack("inside dispatch"),
        (true, Placement::Thread) => stack("on a second thread, on no core in particular"),
        (true, _) => stack("on a core of its own, on no core in particular"),
    };
    match case.is_service {
        true => assert!(report.reason.contains("it runs in the service at /"), "{report}"),
        false => assert_eq!(report.reason, reason),
    }
    let reason = report.reason.clone();
    assert_eq!(report.backend, case.backend());
    assert_eq!(report.fallen_back_from, None);
    let text = report.to_string();
    assert!(text.starts_with(&format!("driver {expected}: {reason}")), "{text}");
    for feature in &report.features {
        assert!(text.contains(feature.name) && text.contains(feature.consequence));
    }
    // Chosen by trial it is the first that works, and it says which.
    let auto = megapipe::Channel::create(Config::default()).unwrap();
    assert!(!auto.report().reason.is_empty());
    let fell = auto.report().fallen_back_from.is_some();
    assert_eq!(fell, auto.report().driver == DriverKind::Epoll);
}

fn explain_names_path_and_queued_operations(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let backend = case.backend();
    let explain = scene.explain(listener).unwrap();
    assert_eq!((explain.kind, explain.backend), ("listening socket", backend));
    assert_eq!(explain.place.is_some(), case.is_local, "{explain}");
    assert_eq!(explain.local, Some(address.clone()));
    assert_eq!(explain.driver, scene.report().driver);
    let mut client = scene.dial(address.as_inet().unwrap()).unwrap();
    let server = scene.accept_one(listener);
    scene.read(server, 10).unwrap();
    scene.read(server, 10).unwrap();
    let explain = scene.explain(server).unwrap();
    assert_eq!((explain.kind, explain.reads, explain.writes), ("TCP connection", 2, 0));
    assert_eq!(explain.local, Some(address));
    assert_eq!(explain.peer, Some(client.local_addr().unwrap().into()));
    let text = explain.to_string();
    assert!(text.contains("2 reads, 0 writes, 0 bytes unread"), "{text}");
    assert!(text.contains(&explain.path));
    let fd_backed = explain.path.starts_with("file descriptor");
    assert_eq!(fd_backed, !explain.remarks.is_empty(), "an unmet wish is reported: {text}");
    scene.send(&mut client, &pattern(1, 100));
    let Event::Read(Ok(_)) = scene.next_of(server) else { panic!() };
    let folder = Folder::new();
    let file = scene.open(&folder.path("x"), &OpenOptions::write(), 0).unwrap();
    assert_eq!(scene.explain(file).unwrap().kind, "disk file");
    let timer = scene.timer(PATIENCE, None, 0).unwrap();
    let explain = scene.explain(timer).unwrap();
    assert_eq!((explain.kind, explain.path.as_str()), ("timer", "no descriptor"));
}

fn lwsockets_can_be_switched_off(case: &Case) {
    let mut scene = case.scene_with(case.config().lwsockets(false));
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    let explain = scene.explain(handle).unwrap();
    assert!(explain.path.starts_with("file descriptor"), "{explain}");
    assert!(explain.remarks.iter().any(|remark| remark.contains("switched off")), "{explain}");
    scene.write(handle, "works").unwrap();
    assert_eq!(scene.next().handle, handle);
    assert_eq!(scene.receive(&mut peer, 5), b"works");
    scene.send(&mut peer, b"both ways");
    assert_eq!(scene.read_exact(handle, 9), b"both ways");
}

fn partitioning_can_be_switched_off(case: &Case) {
    let mut scene = case.scene_with(case.config().partition(false));
    let (listener, address) = scene.listening("127.0.0.1:0");
    let explain = scene.explain(listener).unwrap();
    assert!(explain.remarks.iter().any(|remark| remark.contains("switched off")), "{explain}");
    let error = scene.set_cpu_mask(listener, CpuMask::cpu(0)).unwrap_err();
    assert!(matches!(error, megapipe::RegisterError::MaskNotPossible), "{error}");
    let _client = scene.dial(address.as_inet().unwrap()).unwrap();
    scene.accept_one(listener);
}

fn counters_count(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    scene.channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(100)).unwrap();
    let mut client = scene.dial(address.as_inet().unwrap()).unwrap();
    scene.send(&mut client, b"hello");
    let handle = scene.accepted(listener);
    let Event::Read(Ok(_)) = scene.next_of(handle) else { panic!() };
    scene.write(handle, "hello").unwrap();
    scene.expect_written(handle, 5);
    // All of that may have been polled for; a dispatch without work sleeps, by a system call.
    let rest = scene.dispatch(Some(Duration::from_millis(20))).unwrap();
    assert!(rest.is_none(), "{rest:?}");
    let counters = scene.counters();
    assert_eq!(counters.accepted, 1);
    assert_eq!(counters.completions, 3);
    assert!(counters.operations >= 2 && counters.system_calls >= 1, "{counters:?}");
    let names: Vec<_> = counters.iter().map(|(name, _)| name).collect();
    assert_eq!(names[..2], ["operations", "completions"]);
    assert_eq!(counters.iter().find(|(name, _)| *name == "accepted"), Some(("accepted", 1)));
}

fn numbers_of_lwsockets_find_their_handles(case: &Case) {
    let mut scene = case.scene();
    let (handle, _peer) = scene.stream(Stream::Accepted4);
    assert_eq!(scene.lwsocket(handle.number()), Some(handle));
    assert_eq!(scene.lwsocket(handle.number() + 1000), None);
    assert_eq!(scene.lwsocket(3), None);
    scene.unregister(handle).unwrap();
    assert_eq!(scene.lwsocket(handle.number()), None);
}

fn a_channel_pins_its_thread(case: &Case) {
    let config = case.config();
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let core = (0..1024).find(|&core| allowed.is_set(core)).expect("we run somewhere");
    thread::spawn(move || {
        let _channel = megapipe::Channel::create(config.clone().core(core)).unwrap();
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
        assert_eq!(rustix::thread::sched_getcpu(), core);
        let error = megapipe::Channel::create(config.core(1023)).err().expect("no such core");
        assert_eq!(error.to_string(), "cannot pin this thread to core 1023");
    })
    .join()
    .unwrap();
}

/// Threads spin, sleep, or have just fallen asleep; with placement `thread` both threads are on
/// the core.
fn answers_come_on_one_core_however_long_the_last_is_ago(case: &Case) {
    let core = rustix::thread::sched_getcpu();
    let mut scene = case.scene_with(case.config().core(core));
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    for round in 0..60_u32 {
        let text = round.to_le_bytes();
        scene.send(&mut peer, &text);
        assert_eq!(scene.read_exact(handle, 4), text);
        scene.write(handle, text.to_vec()).unwrap();
        scene.expect_written(handle, 4);
        assert_eq!(scene.receive(&mut peer, 4), text);
        thread::sleep([0, 20, 60, 500][round as usize % 4] * Duration::from_micros(1));
        let start = Instant::now();
        let timeout = Duration::from_micros(u64::from(round));
        assert!(scene.dispatch(Some(timeout)).unwrap().is_none());
        assert!((timeout..PATIENCE / 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
    scene.expect_no_strays();
}

fn wrong_configurations_are_named(case: &Case) {
    for (config, field) in [
        (case.config().batch(0), "batch"),
        (case.config().submission_entries(1), "submission_entries"),
        (case.config().completion_entries(16), "completion_entries"),
        (case.config().max_lwsockets(0), "max_lwsockets"),
        (case.config().buffer_len(10), "buffer_len"),
        (case.config().buffer_count(1), "buffer_count"),
        (case.config().core(5000), "core"),
    ] {
        let error = megapipe::Channel::create(config).err().expect(field).to_string();
        assert!(error.starts_with(&format!("configuration: {field} = ")), "{error}");
    }
}
