//! What happens when something runs out, overflows, or never comes.

use std::fs::File;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Channel, Config, ConnectOptions, Connection, CreateError, Disconnect, DriverChoice,
    Event, Handle, Limit, Misuse, OpError, OpenOptions, ReadBuf, SocketKind, SubmitError,
};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::place::here;
use crate::scene::{
    Case, Folder, PATIENCE, Peer, Scene, Stream, alone, on_each_driver, pattern, peer,
};

on_each_driver![
    a_full_table_of_lwsockets_loses_no_connection,
    without_receive_buffers_reading_waits_until_some_come_back,
    buffers_dropped_on_another_thread_wake_the_channel,
    unread_handles_do_not_starve_the_others,
    more_answers_than_the_completion_queue_holds_are_all_seen,
    a_peer_that_never_reads_costs_bounded_memory_and_can_be_left,
    unregister_with_everything_outstanding_is_clean,
    unregister_right_after_each_call_is_clean,
    a_number_reused_thousands_of_times_never_mixes_connections,
    operations_beyond_the_limit_are_refused_and_the_rest_goes_on,
];

fn a_full_table_of_lwsockets_loses_no_connection(case: &Case) {
    let all = Accept::lwsocket(u32::MAX).first_read(64);
    for accept in [all, all.exactly()] {
        no_connection_is_lost(case, accept);
    }
}

fn no_connection_is_lost(case: &Case, accept: Accept) {
    const CLIENTS: usize = 40;
    const TABLE: usize = 8;
    let mut scene = case.scene_with(case.config().max_lwsockets(TABLE as u32));
    let (listener, address) = scene.listening("127.0.0.1:0");
    let address = address.as_inet().unwrap();
    scene.channel.accept(listener, accept).unwrap();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| scene.dial(address).unwrap()).collect();
    for (turn, client) in clients.iter_mut().enumerate() {
        scene.send(client, &pattern(turn, 32));
    }
    let (mut open, mut most, mut served) = (0, 0, 0);
    let mut waiting: Vec<Handle> = Vec::new();
    while served < CLIENTS {
        // Those that were answered are closed only when no more come: the table stays full. Before
        // it is half full, more come as soon as another thread had the processor.
        let wait = match waiting.len() {
            0 => PATIENCE,
            few if few < TABLE / 2 => Duration::from_millis(500),
            _ => Duration::from_millis(5),
        };
        let Some(done) = scene.dispatch(Some(wait)).unwrap() else {
            let handle = waiting.pop().expect("a connection comes in time");
            scene.unregister(handle).unwrap();
            open -= 1;
            continue;
        };
        match done.event {
            Event::Accept(Ok(it)) => {
                assert!(matches!(it.connection, Connection::Lwsocket(_)));
                open += 1;
                most = most.max(open);
            }
            Event::Accept(Err(OpError::TableFull)) => {}
            Event::Read(Ok(bytes)) => scene.write(done.handle, bytes).unwrap(),
            Event::Write(Ok(32)) => {
                served += 1;
                waiting.push(done.handle);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(most <= TABLE, "{most} were open at once");
    assert!(most >= TABLE / 2, "the room is used: {most}");
    for (turn, client) in clients.iter_mut().enumerate() {
        assert_eq!(scene.receive(client, 32), pattern(turn, 32), "connection {turn} was lost");
    }
    assert_eq!(scene.counters().connections_dropped, 0);
}

fn without_receive_buffers_reading_waits_until_some_come_back(case: &Case) {
    let mut scene = case.scene_with(case.config().buffer_count(4).buffer_len(128));
    let mut streams: Vec<_> = (0..12).map(|_| scene.stream(Stream::Accepted4)).collect();
    for (turn, (handle, peer)) in streams.iter_mut().enumerate() {
        scene.send(peer, &pattern(turn, 100));
        scene.read(*handle, 100).unwrap();
    }
    // The program keeps what it gets, for as long as it gets something.
    let mut held: Vec<(Handle, ReadBuf)> = Vec::new();
    let is_uring = case.driver == DriverChoice::Uring;
    let start = Instant::now();
    loop {
        let Some(done) = scene.dispatch(Some(Duration::from_millis(50))).unwrap() else {
            if !is_uring || scene.counters().buffers_exhausted > 0 {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "there are more than four buffers");
            continue;
        };
        let Event::Read(Ok(bytes)) = done.event else { panic!("{:?}", done.event) };
        held.push((done.handle, bytes));
    }
    if is_uring {
        assert!(held.len() <= 4, "there are four buffers, not {}", held.len());
    }
    let mut got: Vec<(Handle, Vec<u8>)> = Vec::new();
    while got.len() < streams.len() {
        got.extend(held.drain(..).map(|(handle, bytes)| (handle, bytes.to_vec())));
        if got.len() < streams.len() {
            let done = scene.next();
            let Event::Read(Ok(bytes)) = done.event else { panic!("{:?}", done.event) };
            held.push((done.handle, bytes));
        }
    }
    for (turn, (handle, _)) in streams.iter().enumerate() {
        let (_, bytes) = got.iter().find(|(owner, _)| owner == handle).expect("each has read");
        assert_eq!(*bytes, pattern(turn, 100));
    }
}

fn buffers_dropped_on_another_thread_wake_the_channel(case: &Case) {
    let mut scene = case.scene_with(case.config().buffer_count(4).buffer_len(128));
    let mut streams: Vec<_> = (0..12).map(|_| scene.stream(Stream::Accepted4)).collect();
    for (turn, (handle, peer)) in streams.iter_mut().enumerate() {
        scene.send(peer, &pattern(turn, 100));
        scene.read(*handle, 100).unwrap();
    }
    let (other, received) = std::sync::mpsc::channel::<Vec<ReadBuf>>();
    let dropping = std::thread::spawn(move || {
        let mut bytes = 0;
        for held in received {
            // The channel waits for buffers meanwhile, or does soon.
            std::thread::sleep(Duration::from_millis(20));
            bytes += held.iter().map(|bytes| bytes.len()).sum::<usize>();
        }
        bytes
    });
    let mut held = Vec::new();
    for _ in 0..streams.len() {
        let done = scene.next();
        let Event::Read(Ok(bytes)) = done.event else { panic!("{:?}", done.event) };
        held.push(bytes);
        if held.len() == 4 {
            other.send(std::mem::take(&mut held)).unwrap();
        }
    }
    drop(other);
    assert_eq!(dropping.join().unwrap(), 1200);
}

fn unread_handles_do_not_starve_the_others(case: &Case) {
    let mut scene = case.scene_with(case.config().buffer_count(8).buffer_len(256));
    let mut idle: Vec<_> = (0..10).map(|_| scene.stream(Stream::Accepted4)).collect();
    for (turn, (handle, peer)) in idle.iter_mut().enumerate() {
        // One byte is read, so that the channel receives; the rest lies there unread.
        scene.read(*handle, 1).unwrap();
        scene.send(peer, &pattern(turn, 3000));
        let Event::Read(Ok(first)) = scene.next_of(*handle) else { panic!() };
        assert_eq!(*first, pattern(turn, 1));
    }
    let (busy, mut other) = scene.stream(Stream::Accepted4);
    for turn in 0..50 {
        scene.send(&mut other, &pattern(turn, 600));
        assert_eq!(scene.read_exact(busy, 600), pattern(turn, 600), "turn {turn}");
    }
    for (turn, (handle, _)) in idle.iter().enumerate() {
        assert!(scene.read_exact(*handle, 2999) == pattern(turn, 3000)[1..], "handle {turn}");
    }
}

fn more_answers_than_the_completion_queue_holds_are_all_seen(case: &Case) {
    const STREAMS: usize = 100;
    let config = case.config().submission_entries(8).completion_entries(8).batch(8);
    let mut scene = case.scene_with(config);
    let mut streams: Vec<_> = (0..STREAMS).map(|_| scene.stream(Stream::Accepted4)).collect();
    for (handle, _) in &streams {
        scene.read(*handle, 64).unwrap();
        scene.read(*handle, 64).unwrap();
    }
    scene.flush().unwrap();
    for round in 0..2 {
        for (turn, (_, peer)) in streams.iter_mut().enumerate() {
            scene.send(peer, &pattern(turn + round, 64));
        }
        let mut read = 0;
        while read < STREAMS {
            let done = scene.next();
            let Event::Read(Ok(bytes)) = done.event else { panic!("{:?}", done.event) };
            let turn = streams.iter().position(|(handle, _)| *handle == done.handle);
            assert_eq!(*bytes, pattern(turn.expect("one of ours") + round, 64));
            read += 1;
        }
    }
    for (turn, (handle, _)) in streams.iter().enumerate() {
        scene.write(*handle, pattern(turn, 500)).unwrap();
    }
    for _ in 0..STREAMS {
        assert!(matches!(scene.next().event, Event::Write(Ok(500))));
    }
    for (turn, (_, peer)) in streams.iter_mut().enumerate() {
        assert_eq!(scene.receive(peer, 500), pattern(turn, 500));
    }
    scene.expect_no_strays();
    if case.driver == DriverChoice::Uring {
        assert!(scene.counters().completion_overflows > 0, "the queue did overflow");
    }
}

fn a_peer_that_never_reads_costs_bounded_memory_and_can_be_left(case: &Case) {
    let mut scene = case.scene_without_limit();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.write(handle, vec![3; 64 << 20]).unwrap();
        scene.write(handle, "never sent").unwrap();
        scene.expect_silence();
        let memory = scene.memory_bytes();
        for _ in 0..3 {
            scene.expect_silence();
        }
        assert_eq!(scene.memory_bytes(), memory, "waiting costs nothing");
        assert_eq!(scene.explain(handle).unwrap().writes, 2);
        // Another connection is not held up.
        let (other, mut reader) = scene.stream(Stream::Accepted4);
        scene.write(other, "through").unwrap();
        scene.expect_written(other, 7);
        assert_eq!(scene.receive(&mut reader, 7), b"through");
        let start = Instant::now();
        let left = scene.unregister(handle).unwrap();
        scene.expect_silence();
        assert!(start.elapsed() < Duration::from_secs(5), "{kind:?}");
        drop(left);
        // Whether the end is orderly depends on the kind; that it comes does not.
        if let Ok(got) = scene.end_of(&mut peer) {
            assert!(got.len() < 64 << 20 && got.iter().all(|byte| *byte == 3), "{kind:?}");
        }
    }
    scene.expect_no_strays();
}

/// Handles of all kinds with everything outstanding that they can have.
fn everything(scene: &mut Scene, folder: &Folder) -> (Vec<Handle>, Vec<Peer>) {
    let (mut handles, mut peers) = (Vec::new(), Vec::new());
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.send(&mut peer, &pattern(1, 3000));
        scene.read(handle, 10).unwrap();
        for _ in 0..3 {
            scene.read(handle, 4096).unwrap();
            scene.write(handle, vec![0; 8 << 20]).unwrap();
        }
        scene.disconnect(handle, Disconnect::Both).unwrap();
        handles.push(handle);
        peers.push(peer);
        let (moving, moving_peer) = scene.stream(kind);
        scene.read(moving, 10).unwrap();
        scene.write(moving, vec![0; 8 << 20]).unwrap();
        scene.ask_for_fd(moving);
        handles.push(moving);
        peers.push(moving_peer);
    }
    let (listener, address) = scene.listening("127.0.0.1:0");
    scene.channel.accept(listener, Accept::lwsocket(10).first_read(5)).unwrap();
    let as_descriptors = scene.channel.accept(listener, Accept::fd(10));
    let is_refused = matches!(as_descriptors, Err(SubmitError::Misuse(Misuse::CannotMove { .. })));
    assert!(
        as_descriptors.is_ok() || (crate::place::is_local() && is_refused),
        "{as_descriptors:?}"
    );
    handles.push(listener);
    for _ in 0..15 {
        let client = scene.dial(address.as_inet().unwrap()).unwrap();
        peers.push(peer(client));
    }
    handles.push(scene.connect(&address, &ConnectOptions::default(), 0).unwrap());
    let udp = scene.socket(SocketKind::Udp4, Some(&here("127.0.0.1:0")), 0).unwrap();
    let there = scene.local_address(udp).unwrap();
    for _ in 0..3 {
        scene.recvfrom(udp, 10).unwrap();
        scene.sendto(udp, "message", &there).unwrap();
        scene.recvfrom(udp, 10).unwrap();
    }
    handles.push(udp);
    let file = scene.open(&folder.path("file"), &OpenOptions::write(), 0).unwrap();
    let Event::Open(Ok(())) = scene.next_of(file) else { panic!() };
    for block in 0..10 {
        scene.write_at(file, block * 4096, vec![1; 4096]).unwrap();
        scene.read_at(file, block * 4096, 4096).unwrap();
    }
    scene.fsync(file).unwrap();
    handles.push(file);
    handles.push(scene.open(&folder.path("other"), &OpenOptions::write(), 0).unwrap());
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let reader = scene.register(reader, 0, None).unwrap();
    let writer = scene.register(writer, 0, None).unwrap();
    scene.read(reader, 10).unwrap();
    scene.write(writer, vec![0; 1 << 20]).unwrap();
    handles.extend([reader, writer]);
    handles.push(scene.timer(Duration::from_millis(1), Some(Duration::from_millis(1)), 0).unwrap());
    (handles, peers)
}

fn unregister_with_everything_outstanding_is_clean(case: &Case) {
    for turn in 0..3 {
        let folder = Folder::new();
        let mut scene = case.scene_without_limit();
        let (mut handles, peers) = everything(&mut scene, &folder);
        // Once nothing has been handed over, once all has, once some has completed.
        match turn {
            0 => {}
            1 => scene.flush().unwrap(),
            _ => {
                scene.dispatch(Some(Duration::from_millis(5))).unwrap();
            }
        }
        if turn == 2 {
            handles.reverse();
        }
        for handle in handles {
            match scene.unregister(handle) {
                // A move may have come to its end, and its completion was handed out.
                Ok(_) | Err(Misuse::StaleHandle) => {}
                Err(other) => panic!("{other}"),
            }
        }
        // Only accepted connections without an owner could still complete: none.
        let start = Instant::now();
        while let Some(done) = scene.dispatch(Some(Duration::from_millis(30))).unwrap() {
            assert!(start.elapsed() < PATIENCE, "{done:?}");
            let late = matches!(done.event, Event::Read(_) | Event::ToFd(_));
            assert!(late && turn == 2, "{done:?} after everything was unregistered");
        }
        scene.expect_no_strays();
        drop(scene);
        drop(peers);
    }
}

fn unregister_right_after_each_call_is_clean(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        type Call = fn(&mut Scene, Handle);
        let calls: [Call; 6] = [
            |scene, handle| scene.read(handle, 10).unwrap(),
            |scene, handle| scene.write(handle, "x").unwrap(),
            |scene, handle| scene.disconnect(handle, Disconnect::Write).unwrap(),
            |scene, handle| scene.disconnect(handle, Disconnect::Both).unwrap(),
            |scene, handle| scene.disconnect(handle, Disconnect::Reset).unwrap(),
            |scene, handle| {
                scene.ask_for_fd(handle);
            },
        ];
        for (which, call) in calls.into_iter().enumerate() {
            for flushed in [false, true] {
                let (handle, mut peer) = scene.stream(kind);
                call(&mut scene, handle);
                if flushed {
                    scene.flush().unwrap();
                }
                drop(scene.unregister(handle).unwrap());
                match scene.end_of(&mut peer) {
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
                    Err(error) => panic!("{kind:?}, call {which}, {flushed}: {error}"),
                }
            }
        }
    }
    scene.expect_silence();
    scene.expect_no_strays();
}

fn a_number_reused_thousands_of_times_never_mixes_connections(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let address = address.as_inet().unwrap();
    let mut stale: Vec<Handle> = Vec::new();
    for turn in 0..1500 {
        let client = scene.dial(address).unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        let handle = scene.accept_one(listener);
        assert!(!stale.contains(&handle));
        // Operations are outstanding when the connection leaves; none may reach the next one.
        scene.read(handle, 64).unwrap();
        scene.write(handle, pattern(turn, 8)).unwrap();
        if turn % 3 == 0 {
            scene.expect_written(handle, 8);
            assert_eq!(scene.receive(&mut &client, 8), pattern(turn, 8));
        }
        scene.unregister(handle).unwrap();
        for old in stale.iter().rev().take(3) {
            assert_eq!(scene.write(*old, "x"), Err(Misuse::StaleHandle.into()));
        }
        stale.push(handle);
    }
    let numbers: std::collections::HashSet<u32> = stale.iter().map(|it| it.number()).collect();
    assert!(numbers.len() < 200, "numbers are reused: {}", numbers.len());
    scene.expect_silence();
    scene.expect_no_strays();
}

fn operations_beyond_the_limit_are_refused_and_the_rest_goes_on(case: &Case) {
    use megapipe::limits::OPERATIONS_MAX;
    let mut scene = case.scene();
    let (handle, mut theirs) = scene.stream(Stream::Accepted4);
    let refused = (0..=OPERATIONS_MAX).find_map(|_| scene.read(handle, 1).err());
    assert_eq!(refused, Some(Limit::Operations.into()));
    assert_eq!(scene.write(handle, "x"), Err(Limit::Operations.into()));
    scene.send(&mut theirs, b"ab");
    for expected in [b'a', b'b'] {
        let Event::Read(Ok(bytes)) = scene.next_of(handle) else { panic!() };
        assert_eq!(*bytes, [expected]);
    }
    scene.write(handle, "there is room again").unwrap();
    scene.expect_written(handle, 19);
    assert_eq!(scene.receive(&mut theirs, 19), b"there is room again");
    scene.unregister(handle).unwrap();
    scene.expect_silence();
    drop(scene.receive_to_end(&mut theirs));
}

/// Makes a channel while there is no descriptor for its driver, and again when there is one. In a
/// process of its own, where no driver was tried before.
fn driver_recovers_from_descriptor_limit(driver: DriverChoice, name: &str) {
    alone(name, || {
        let few = Rlimit { current: Some(64), maximum: Some(64) };
        setrlimit(Resource::Nofile, few).unwrap();
        let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // One is left for the channel's eventfd.
        files.pop();
        let config = || Config::default().driver(driver).max_lwsockets(16);
        let refused = Channel::create(config()).err().expect("there is no descriptor");
        let CreateError::Kernel { source, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(
            OpError::from_raw_os_error(source.raw_os_error().unwrap()),
            OpError::NoDescriptors
        );
        drop(files);
        match Channel::create(config()) {
            Err(CreateError::DriverUnavailable { reason, .. }) => {
                println!("skipped: {name}: {reason}");
            }
            made => drop(made.expect("there are descriptors now")),
        }
    });
}

#[test]
fn uring_recovers_from_descriptor_limit() {
    let name = "exhaustion::uring_recovers_from_descriptor_limit";
    driver_recovers_from_descriptor_limit(DriverChoice::Uring, name);
}

#[test]
fn epoll_recovers_from_descriptor_limit() {
    let name = "exhaustion::epoll_recovers_from_descriptor_limit";
    driver_recovers_from_descriptor_limit(DriverChoice::Epoll, name);
}
