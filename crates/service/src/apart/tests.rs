//! A session and its server on the two ends of a pair: names, buffers, batches, ends.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use megapipe_link::{LinkError, Pair, PairConfig, pair};
use megapipe_shm::BufId;
use megapipe_shm::record::{Bufs, Chunk, Command, Completion, Event as Says, Id, Op, Record};
use megapipe_stack::{CloseReason, ConnId, ConnectError, Event, ListenError, OperationError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::config::Waits;
use crate::connection_manager::AcceptorId;
use crate::sharing::Sharing;

mod sending;

const PATIENCE: Duration = Duration::from_secs(10);

fn session(link: Pair, last: u8) -> Session {
    session_with(link, last, (64, 256 << 10))
}

fn session_with(link: Pair, last: u8, (receive_buffers, receive_window): (u32, u32)) -> Session {
    let mut config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, last]), 24)],
        connections: 1_000,
        waits: Waits { spin: Duration::ZERO },
        ..ServerConfig::default()
    };
    // A small message must not wait for the last one's acknowledgment.
    config.tcp.nagle = false;
    config.tcp.receive_buffer = receive_window;
    config.tcp.receive_buffer_max = receive_window;
    let apart = ApartConfig { core: None, receive_bytes: 2_048, receive_buffers };
    start(Frames::Queue(Box::new(link)), &config, &apart).expect("a thread and memory")
}

fn sessions() -> (Session, Session) {
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    (session(one, 1), session(other, 2))
}

fn http() -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, 2]), 80)
}

/// The next thing that a session is told; it sleeps for it.
#[track_caller]
fn next(session: &mut Session) -> Told {
    let start = Instant::now();
    loop {
        session.wake_up();
        if let Some(told) = session.event() {
            return told;
        }
        assert!(start.elapsed() < PATIENCE, "nothing is told");
        session.check().expect("the server lives");
        if session.arm() {
            let fd = session.wait_fd();
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let timeout = Timespec::try_from(PATIENCE).expect("a short time");
            poll(&mut fds, Some(&timeout)).expect("poll works");
        }
    }
}

#[track_caller]
fn next_event(session: &mut Session) -> Event {
    match next(session) {
        Told::Event(event, _) => event,
        other => panic!("{other:?}"),
    }
}

/// Listens, with credit for `credit` connections.
fn listen(server: &mut Session, credit: u32) -> megapipe_stack::ListenerId {
    let now = crate::clock::Clock::new().now();
    let listening = server.call(move |server| server.listen(now, http(), 100, Sharing::default()));
    let listener = listening.expect("it lives").expect("the port is free");
    server.accept(listener, AcceptorId(7), credit);
    listener
}

/// A connection, as both ends name it.
fn connected(client: &mut Session, server: &mut Session) -> (ConnId, ConnId) {
    server.flush();
    let ours = client.connect(http());
    assert_eq!(next_event(client), Event::Connected { conn: ours });
    let Told::Event(Event::Incoming { conn: theirs, .. }, Some(offer)) = next(server) else {
        panic!()
    };
    assert_eq!(offer.acceptor, AcceptorId(7));
    (ours, theirs)
}

#[test]
fn bytes_go_both_ways_and_buffers_come_back() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    // Many more than there are buffers.
    for round in 0..2_000_u32 {
        let text = round.to_le_bytes();
        assert_eq!(client.send(ours, &text), Ok(4));
        server.receive(theirs).unwrap();
        server.flush();
        client.flush();
        let Event::Received { chunk, .. } = next_event(&mut server) else { panic!() };
        let mut came = [0; 4];
        server.take_bytes(chunk, &mut came);
        assert_eq!((came, chunk.len), (text, 4));
    }
    assert!(server.counters().events >= 2_000);
    client.close(ours);
    client.flush();
    server.receive(theirs).unwrap();
    assert_eq!(next_event(&mut server), Event::PeerClosed { conn: theirs });
    server.shutdown(theirs);
    let over = Event::Closed { conn: theirs, reason: CloseReason::Finished };
    assert_eq!(next_event(&mut server), over);
    assert_eq!(server.send(theirs, b"late"), Err(OperationError::Unknown));
}

#[test]
fn who_sends_too_much_waits_for_room_and_is_told_of_it() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    let bulk: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let (mut sent, mut came, mut waits) = (0, Vec::new(), 0);
    server.receive(theirs).unwrap();
    while came.len() < bulk.len() {
        match client.send(ours, &bulk[sent..]) {
            Ok(count) => sent += count,
            Err(OperationError::QueueFull) => waits += 1,
            Err(error) if sent < bulk.len() => panic!("{error:?}"),
            Err(_) => {}
        }
        client.flush();
        server.flush();
        while let Some(told) = server.event() {
            let Told::Event(Event::Received { conn, chunk }, _) = told else { panic!("{told:?}") };
            let start = came.len();
            came.resize(start + chunk.len as usize, 0);
            server.take_bytes(chunk, &mut came[start..]);
            server.receive(conn).unwrap();
        }
        while let Some(told) = client.event() {
            let Told::Event(Event::Acked { conn, .. }, _) = told else { panic!("{told:?}") };
            assert_eq!(conn, ours);
        }
        std::thread::yield_now();
    }
    assert!(came == bulk && waits > 0);
}

#[test]
fn names_that_were_let_go_of_are_nobodys() {
    let (mut client, mut server) = sessions();
    let listener = listen(&mut server, 10);
    // Let go of before the server has named it: nothing of it is ever told. It goes where nobody
    // listens: the other end may else be asked to accept it before the reset arrives.
    let early = client.connect(SocketAddr::new(http().ip(), 81));
    client.abort(early);
    assert_eq!(client.receive(early), Err(OperationError::Unknown));
    let (ours, theirs) = connected(&mut client, &mut server);
    assert_ne!(ours, early);
    // What is under way for a connection that was let go of goes back unseen.
    server.receive(theirs).unwrap();
    server.flush();
    client.send(ours, b"for nobody").unwrap();
    client.flush();
    server.abort(theirs);
    server.flush();
    client.receive(ours).ok();
    let Event::Closed { conn, .. } = next_event(&mut client) else { panic!() };
    assert_eq!(conn, ours);
    server.unlisten(listener);
    server.flush();
    server.call(|_| ()).expect("it lives");
    let refused = client.connect(http());
    let over = Event::Closed { conn: refused, reason: CloseReason::Refused };
    assert_eq!(next_event(&mut client), over);
    assert!(server.event().is_none());
}

#[test]
fn what_cannot_be_done_is_told() {
    let (mut client, mut server) = sessions();
    let nowhere = client.connect(SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 80));
    assert_eq!(next(&mut client), Told::NotBegun(nowhere, ConnectError::NoRoute));
    listen(&mut server, 1);
    let now = crate::clock::Clock::new().now();
    let again = server.call(move |server| server.listen(now, http(), 100, Sharing::default()));
    let in_use = again.expect("it lives").expect_err("it is listened at");
    assert_eq!(in_use.to_string(), ListenError::InUse.to_string());
}

#[test]
fn many_events_wake_the_application_once() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 200);
    server.flush();
    let conns: Vec<_> = (0..200).map(|_| client.connect(http())).collect();
    let mut connected = 0;
    while connected < conns.len() {
        if let Event::Connected { .. } = next_event(&mut client) {
            connected += 1;
        }
    }
    let counters = client.counters();
    let each = counters.events as f64 / counters.wakeups.max(1) as f64;
    assert!(each >= 2.0, "{each} events a wake-up: {counters:?}");
}

#[test]
fn a_server_that_ends_is_told_and_sessions_end_in_any_order() {
    let (mut client, server) = sessions();
    drop(server);
    // The link is gone: so is the server behind it.
    let start = Instant::now();
    let error = loop {
        client.connect(http());
        client.flush();
        while client.event().is_some() {}
        if let Err(error) = client.check() {
            break error;
        }
        assert!(start.elapsed() < PATIENCE, "nobody tells");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(error, LinkError::Gone { .. }), "{error}");
    assert!(client.call(|_| ()).is_none());
    assert!(client.check().is_err(), "it stays so");
}

/// Sleeps until the server has ended. Nobody else wakes it.
#[track_caller]
fn sleeps_until_the_end(session: &mut Session) -> LinkError {
    let start = Instant::now();
    loop {
        session.wake_up();
        while session.event().is_some() {}
        if let Err(error) = session.check() {
            return error;
        }
        if session.arm() {
            let fd = session.wait_fd();
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let timeout = Timespec::try_from(PATIENCE).expect("a short time");
            poll(&mut fds, Some(&timeout)).expect("poll works");
        }
        assert!(start.elapsed() < PATIENCE, "it was not woken");
    }
}

#[test]
fn an_application_that_sleeps_is_woken_when_the_server_ends() {
    for round in 0..200 {
        let (mut client, server) = sessions();
        let breaker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * 10));
            drop(server);
        });
        assert!(matches!(sleeps_until_the_end(&mut client), LinkError::Gone { .. }));
        breaker.join().expect("nothing failed there");
    }
}

#[test]
fn an_application_that_sleeps_is_woken_when_the_server_panics() {
    for round in 0..50 {
        let (mut client, _server) = sessions();
        let fault: Call = Box::new(move |_| {
            std::thread::sleep(Duration::from_micros(round * 100));
            panic!("this panic is part of a test");
        });
        client.ends.calls.send(fault).expect("it lives");
        client.ends.ringer.ring().expect("it is there");
        let error = sleeps_until_the_end(&mut client);
        assert!(matches!(error, LinkError::Gone { driver: "the server" }), "{error}");
        assert!(client.call(|_| ()).is_none(), "it answers no more");
        assert!(client.check().is_err(), "it stays so");
    }
}

#[test]
fn a_call_in_which_the_server_panics_has_no_answer() {
    let (mut client, _server) = sessions();
    let answer = client.call(|_| -> u32 { panic!("this panic is part of a test") });
    assert_eq!(answer, None);
    let error = sleeps_until_the_end(&mut client);
    assert!(matches!(error, LinkError::Gone { driver: "the server" }), "{error}");
}

/// The session ends, and says so.
#[track_caller]
fn ends(session: &mut Session) {
    let start = Instant::now();
    while session.check().is_ok() {
        assert!(start.elapsed() < PATIENCE, "the server goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_record_that_nobody_would_write_ends_its_session_and_no_other() {
    for has_no_kind in [false, true] {
        let (mut client, mut server) = sessions();
        let (mut honest, mut other) = sessions();
        listen(&mut other, 1);
        let (ours, theirs) = connected(&mut honest, &mut other);
        // No kind at all; a kind of the other ring; a list of none.
        let returned = Completion { cookie: 0, event: Says::Connecting { conn: Id::default() } };
        let none = Op { cookie: 0, command: Command::Return { bufs: Bufs::default() } };
        client.put(&[Record::default(), returned.record()][usize::from(has_no_kind)]);
        client.flush();
        ends(&mut client);
        server.put(&none.record());
        server.flush();
        ends(&mut server);
        assert_eq!(honest.send(ours, b"on"), Ok(2));
        honest.flush();
        other.receive(theirs).unwrap();
        let Event::Received { chunk, .. } = next_event(&mut other) else { panic!() };
        assert_eq!(chunk.len, 2);
    }
}

#[test]
fn buffers_that_are_sent_again_and_again_end_the_session() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, _) = connected(&mut client, &mut server);
    let conn = client.named(ours).map(worker::id_of).unwrap();
    let buf = BufId::from_bits(u32::from(SMALL) * megapipe_shm::limits::POOL_BUFS_MAX);
    let chunk = Chunk { buf, offset: 0, len: 256 };
    // Nobody reads at the other end, so that nothing of it is ever done.
    for _ in 0..4 * (SMALL_SENDS + LARGE_SENDS) {
        client.put(&Op::send(conn, chunk));
    }
    client.flush();
    ends(&mut client);
}

#[test]
fn what_is_not_the_applications_to_give_back_is_refused() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    let mut bufs = Bufs::default();
    // A send buffer, one that is free, one behind the last, one of no pool.
    for bits in [u32::from(SMALL) * megapipe_shm::limits::POOL_BUFS_MAX, 3, 64, u32::MAX] {
        bufs.push(BufId::from_bits(bits));
    }
    let before = client.counters().events;
    for _ in 0..100 {
        client.put(&Op { cookie: 0, command: Command::Return { bufs } }.record());
    }
    client.receive(ours).unwrap();
    client.flush();
    assert!(server.send_short(theirs, b"still there"));
    server.flush();
    let Event::Received { chunk, .. } = next_event(&mut client) else { panic!() };
    assert_eq!(chunk.len, 11);
    assert_eq!(client.counters().events, before + 1, "nothing came back");
}

#[test]
fn what_is_asked_of_many_goes_over_in_few_records() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 12);
    let pairs: Vec<_> = (0..12).map(|_| connected(&mut client, &mut server)).collect();
    server.call(|_| ()).expect("it lives");
    for (_, theirs) in &pairs {
        server.receive(*theirs).unwrap();
    }
    // Two full records; the rest goes when it has to.
    assert_eq!((server.ends.ops.commit(), server.wanted.iter().count()), (2, 2));
    server.flush();
    assert!(server.wanted.is_empty());
    for (ours, _) in &pairs {
        assert!(client.send_short(*ours, b"each"));
    }
    client.flush();
    for _ in &pairs {
        let Event::Received { chunk, .. } = next_event(&mut server) else { panic!() };
        server.give_back(chunk);
    }
    assert_eq!((server.ends.ops.commit(), server.back.iter().count()), (1, 2));
}

#[test]
fn a_short_message_is_one_that_fits_one_small_buffer_and_the_connections_share() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, _) = connected(&mut client, &mut server);
    assert!(!client.send_short(ours, b""));
    assert!(!client.send_short(ours, &[7; SMALL_SEND_BYTES + 1]));
    assert!(client.send_short(ours, &[7; SMALL_SEND_BYTES]));
    let mut bytes = SMALL_SEND_BYTES;
    // Nobody reads: the share is used up, sooner or later.
    while client.send_short(ours, &[7; SMALL_SEND_BYTES]) {
        bytes += SMALL_SEND_BYTES;
        assert!(bytes <= 16 << 20, "a share without end");
    }
    client.shutdown(ours);
    assert!(!client.send_short(ours, b"late"));
    client.abort(ours);
    assert!(!client.send_short(ours, b"later"));
}

#[test]
fn a_core_that_does_not_exist_is_named() {
    let (one, _other) = pair(&PairConfig::default()).expect("a pair");
    let config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, 1]), 24)],
        ..ServerConfig::default()
    };
    let apart = ApartConfig { core: Some(100_000), receive_bytes: 2_048, receive_buffers: 4 };
    let refused = start(Frames::Queue(Box::new(one)), &config, &apart).err();
    assert!(matches!(refused, Some(ApartError::Pin { core: 100_000, .. })), "{refused:?}");
}

/// Runs a test, and the servers that it starts, on one core only: whoever is woken takes it from
/// the other.
fn on_one_core(test: fn()) {
    let allowed = rustix::thread::sched_getaffinity(None).expect("a thread knows where it may run");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut only = rustix::thread::CpuSet::new();
    only.set(first.expect("it may run somewhere"));
    let run = move || {
        rustix::thread::sched_setaffinity(None, &only).expect("it may run there");
        test();
    };
    std::thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn a_call_is_answered_after_what_was_asked_for_before_it() {
    on_one_core(|| {
        let (mut client, mut server) = sessions();
        listen(&mut server, 1_000);
        server.flush();
        for round in 0..500 {
            let conn = client.connect(http());
            let name = client.named_soon(conn).unwrap_or_else(|| panic!("{round}: it was begun"));
            let is_there = client.call(move |server| server.stack().info(name).is_ok());
            assert_eq!(is_there, Some(true), "{round}");
            client.abort(conn);
            let is_there = client.call(move |server| server.stack().info(name).is_ok());
            assert_eq!(is_there, Some(false), "{round}: it was aborted before");
        }
    });
}

#[test]
fn more_ops_than_there_is_room_for_their_answers_are_done_all_the_same() {
    // Both rings full, and some more.
    const CONNECTS: u32 = OPS_MAX + COMPLETIONS_MAX + 1_000;
    let (mut client, _server) = sessions();
    // Beyond its thousand connections the server begins none, and says so.
    let name = |conn: ConnId| (conn.index, conn.generation);
    let mut waits: HashSet<_> = (0..CONNECTS).map(|_| name(client.connect(http()))).collect();
    assert_eq!(waits.len(), CONNECTS as usize);
    assert_eq!(client.call(|_| 7), Some(7));
    let (mut begun, mut refused) = (0, 0);
    while !waits.is_empty() {
        match next(&mut client) {
            Told::NotBegun(conn, _) => {
                assert!(waits.remove(&name(conn)));
                refused += 1;
            }
            Told::Event(Event::Closed { conn, reason }, _) => {
                assert_eq!(reason, CloseReason::Refused);
                assert!(waits.remove(&name(conn)));
                begun += 1;
            }
            Told::Event(event, _) => panic!("{event:?}"),
        }
    }
    assert!(begun > 0 && refused > 0, "{begun} were begun, {refused} were not");
}
