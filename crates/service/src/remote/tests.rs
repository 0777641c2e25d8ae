//! A session and its server on the two ends of a pair: names, buffers, batches, ends.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use megapipe_link::{LinkError, Pair, PairConfig, pair};
use megapipe_shm::record::{
    Bufs, Chunk, Command, Completion, Event as Says, Id, ListenSharing, Op, Record, ServerAnswer,
    SessionCall,
};
use megapipe_shm::{BufId, Producer, Region, Sleeper};
use megapipe_stack::{
    CloseReason, ConnId, ConnInfo, ConnectError, Event, ListenError, OperationError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::config::Waits;
use crate::connection_manager::AcceptorId;
use crate::limits::{
    CALL_BYTES, COMPLETIONS_MAX, LARGE_SEND_BYTES, LARGE_SENDS, OPS_MAX, SMALL_SEND_BYTES,
    SMALL_SENDS,
};
use crate::sharing::Sharing;
use crate::steering::Takes;

mod datagrams;
mod handing_over;
mod hostile;
mod many_sessions;
mod observe;
mod polled_shard;
mod reservations;
mod sending;
mod session_worlds;
mod shard_quotas;
mod shared_endpoints;
mod shared_listeners;
mod sharing;
mod sharing_handshakes;
mod unaccepted;

const PATIENCE: Duration = Duration::from_secs(30);
/// No option of the stack: the server panics.
const PANIC_OPTION: u32 = u32::MAX;

/// A call in which the server panics, after some microseconds.
fn panic_call(micros: u64) -> SessionCall {
    SessionCall::SetOption { conn: Id::default(), option: PANIC_OPTION, value: micros }
}

/// The server's part of [`panic_call`].
pub(super) fn panic_where_asked(option: u32, micros: u64) {
    if option == PANIC_OPTION {
        std::thread::sleep(Duration::from_micros(micros));
        panic!("this panic is part of a test");
    }
}

/// What the server knows of a connection under its own name.
fn info(session: &mut RemoteClient, name: ConnId) -> Option<ConnInfo> {
    let call = SessionCall::Info { conn: encoding::id_of(name) };
    session.call_written(call, decode_info).expect("it lives")
}

pub(super) fn session(link: Pair, last: u8) -> RemoteClient {
    session_with(link, last, (64, 256 << 10))
}

fn session_with(
    link: Pair,
    last: u8,
    (receive_buffers, receive_window): (u32, u32),
) -> RemoteClient {
    let mut config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, last]), 24)],
        connections: 1_000,
        waits: Waits { spin: Duration::ZERO, ..Waits::default() },
        ..ServerConfig::default()
    };
    // A small message must not wait for the last one's acknowledgment.
    config.tcp.nagle = false;
    config.tcp.receive_buffer = receive_window;
    config.tcp.receive_buffer_max = receive_window;
    let remote = RemoteConfig { core: None, receive_bytes: 2_048, receive_buffers };
    start_client(Frames::Queue(Box::new(link)), &config, &remote).expect("a thread and memory")
}

fn sessions() -> (RemoteClient, RemoteClient) {
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    (session(one, 1), session(other, 2))
}

fn http() -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, 2]), 80)
}

/// The client's next event; it sleeps until it comes.
#[track_caller]
fn next(session: &mut RemoteClient) -> RemoteEvent {
    let start = Instant::now();
    loop {
        session.wake_up();
        if let Some(event) = session.event() {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "no event comes");
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
pub(super) fn next_event(session: &mut RemoteClient) -> Event {
    match next(session) {
        RemoteEvent::Event(event, _) => event,
        other => panic!("{other:?}"),
    }
}

/// Listens, with credit for `credit` connections.
fn listen(server: &mut RemoteClient, credit: u32) -> megapipe_stack::ListenerId {
    let listening = server.listen(http(), 100, Sharing::default());
    let listener = listening.expect("the port is free");
    server.accept(listener, AcceptorId(7), credit);
    listener
}

/// A connection, as both ends name it.
fn connected(client: &mut RemoteClient, server: &mut RemoteClient) -> (ConnId, ConnId) {
    server.flush();
    let ours = client.connect(http());
    assert_eq!(next_event(client), Event::Connected { conn: ours });
    let RemoteEvent::Event(Event::Incoming { conn: theirs, .. }, Some(offer)) = next(server) else {
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
fn full_send_buffer_is_refused_until_acked() {
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
        while let Some(event) = server.event() {
            let RemoteEvent::Event(Event::Received { conn, chunk }, _) = event else {
                panic!("{event:?}")
            };
            let start = came.len();
            came.resize(start + chunk.len as usize, 0);
            server.take_bytes(chunk, &mut came[start..]);
            server.receive(conn).unwrap();
        }
        while let Some(event) = client.event() {
            let RemoteEvent::Event(Event::Acked { conn, .. }, _) = event else {
                panic!("{event:?}")
            };
            assert_eq!(conn, ours);
        }
        std::thread::yield_now();
    }
    assert!(came == bulk && waits > 0);
}

#[test]
fn released_names_get_no_events() {
    let (mut client, mut server) = sessions();
    let listener = listen(&mut server, 10);
    // Let go of before the server has named it: no event of it is ever published. It goes where
    // nothing listens: the other end may else be asked to accept it before the reset arrives.
    let early = client.connect(SocketAddr::new(http().ip(), 81));
    client.abort(early);
    assert_eq!(client.receive(early), Err(OperationError::Unknown));
    let (ours, theirs) = connected(&mut client, &mut server);
    assert_ne!(ours, early);
    // What is under way for a connection that was let go of goes back unseen.
    server.receive(theirs).unwrap();
    server.flush();
    client.send(ours, b"without reader").unwrap();
    client.flush();
    server.abort(theirs);
    server.flush();
    client.receive(ours).ok();
    let Event::Closed { conn, .. } = next_event(&mut client) else { panic!() };
    assert_eq!(conn, ours);
    server.unlisten(listener);
    server.flush();
    server.call(SessionCall::Sync).expect("it lives");
    let refused = client.connect(http());
    let over = Event::Closed { conn: refused, reason: CloseReason::Refused };
    assert_eq!(next_event(&mut client), over);
    assert!(server.event().is_none());
}

#[test]
fn failed_connect_and_listen_return_errors() {
    let (mut client, mut server) = sessions();
    let nowhere = client.connect(SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 80));
    assert_eq!(
        next(&mut client),
        RemoteEvent::NotBegun(nowhere, NotBegun::Stack(ConnectError::NoRoute))
    );
    listen(&mut server, 1);
    let again = server.listen(http(), 100, Sharing::default());
    let in_use = again.expect_err("it is listened at");
    assert_eq!(in_use.to_string(), ListenError::InUse.to_string());
}

#[test]
fn mask_without_cores_does_not_end_the_session() {
    let (_client, mut server) = sessions();
    let sharing = || Sharing { takes: Takes::Cores(Vec::new()), ..Sharing::default() };
    // A server that shares no address has no use for masks.
    let listener = server.listen(http(), 1, sharing()).expect("a free address");
    server.share(listener, sharing()).expect("no other shard");
    server.check().expect("no record is at fault");
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
fn ended_server_fails_check_and_sessions_end_in_any_order() {
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
        assert!(start.elapsed() < PATIENCE, "no event comes");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(error, LinkError::Gone { .. }), "{error}");
    assert!(client.call(SessionCall::Sync).is_none());
    assert!(client.check().is_err(), "it stays so");
}

/// Sleeps until the server has ended. Nothing else wakes it.
#[track_caller]
fn sleeps_until_the_end(session: &mut RemoteClient) -> LinkError {
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
        client.put(&Op { cookie: 1, command: Command::Call(panic_call(round * 100)) }.record());
        client.flush();
        let error = sleeps_until_the_end(&mut client);
        assert!(matches!(error, LinkError::Gone { driver: "the server" }), "{error}");
        assert!(client.call(SessionCall::Sync).is_none(), "it answers no more");
        assert!(client.check().is_err(), "it stays so");
    }
}

#[test]
fn a_call_in_which_the_server_panics_has_no_answer() {
    let (mut client, _server) = sessions();
    let answer = client.call(panic_call(0));
    assert_eq!(answer, None);
    let error = sleeps_until_the_end(&mut client);
    assert!(matches!(error, LinkError::Gone { driver: "the server" }), "{error}");
}

/// The session ends, which `check` reports.
#[track_caller]
fn ends(session: &mut RemoteClient) {
    let start = Instant::now();
    while session.check().is_ok() {
        assert!(start.elapsed() < PATIENCE, "the server goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_invalid_record_ends_its_session_and_no_other() {
    for has_no_kind in [false, true] {
        let (mut client, mut server) = sessions();
        let (mut honest, mut other) = sessions();
        listen(&mut other, 1);
        let (ours, theirs) = connected(&mut honest, &mut other);
        // No kind at all; a kind of the other ring; a list of none.
        let returned = Completion {
            cookie: 0,
            event: Says::Answer(ServerAnswer::Connecting { conn: Id::default() }),
        };
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
fn ops_that_no_correct_application_submits_end_the_session() {
    let conn = Id::default();
    let elsewhere = Chunk { buf: BufId::from_bits(0), offset: 0, len: 4 };
    let beyond = Chunk { buf: CALL_BUFFER, offset: CALL_BYTES as u32 - 1, len: 2 };
    // Two cores, the first one zero twice.
    let cores = Chunk { buf: CALL_BUFFER, offset: 1 << 12, len: 8 };
    let sharing = |cores| ListenSharing { cores: Some(cores), ..ListenSharing::default() };
    let (local, backlog) = (http(), 1);
    let datagram = |buf, len| Command::SendDatagram {
        endpoint: conn,
        to: http(),
        from: None,
        hop_limit: 0,
        traffic_class: 0,
        buf: BufId::from_bits(buf),
        len,
    };
    let small = u32::from(SMALL) * POOL_BUFS_MAX;
    for command in [
        Command::Call(SessionCall::PrependUnread { conn, chunk: elsewhere }),
        Command::Call(SessionCall::SendCopy { conn, chunk: beyond }),
        Command::Call(SessionCall::SetOption { conn, option: 0, value: 0 }),
        Command::Call(SessionCall::SetOption { conn, option: 1, value: 2 }),
        Command::Call(SessionCall::Listen {
            local,
            backlog,
            sharing: sharing(elsewhere),
            reservation: 0,
        }),
        Command::Call(SessionCall::Listen {
            local,
            backlog,
            sharing: sharing(cores),
            reservation: 0,
        }),
        Command::Call(SessionCall::Share { listener: conn, sharing: sharing(beyond) }),
        Command::Call(SessionCall::Connect {
            remote: http(),
            local: None,
            flags: 2,
            reservation: 0,
        }),
        Command::Send { conn, chunk: elsewhere },
        datagram(0, 1),
        datagram(small, SMALL_SEND_BYTES as u16 + 1),
        datagram(small + SMALL_SENDS, 1),
    ] {
        let (mut client, _server) = sessions();
        client.put(&Op { cookie: 1, command }.record());
        client.flush();
        let error = sleeps_until_the_end(&mut client);
        assert!(matches!(error, LinkError::Gone { .. }), "{command:?}: {error}");
    }
}

#[test]
fn buffers_that_are_sent_again_and_again_end_the_session() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, _) = connected(&mut client, &mut server);
    let conn = client.named(ours).map(encoding::id_of).unwrap();
    let buf = BufId::from_bits(u32::from(SMALL) * POOL_BUFS_MAX);
    let chunk = Chunk { buf, offset: 0, len: 256 };
    // The other end does not read, so that nothing of it is ever done.
    for _ in 0..4 * (SMALL_SENDS + LARGE_SENDS) {
        client.put(&Op::send(conn, chunk));
    }
    client.flush();
    ends(&mut client);
}

#[test]
fn foreign_buffers_are_not_taken_back() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    let mut bufs = Bufs::default();
    // A send buffer, one that is free, one behind the last, one of no pool.
    for bits in [u32::from(SMALL) * POOL_BUFS_MAX, 3, 64, u32::MAX] {
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
fn early_returned_buffers_harm_only_their_session() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    assert!(client.send_short(ours, b"unread"));
    client.flush();
    let name = server.named(theirs).expect("it is connected");
    let start = Instant::now();
    while info(&mut server, name).expect("it is there").unread_bytes != 6 {
        assert!(start.elapsed() < PATIENCE, "six bytes arrive");
    }
    for index in 0..64 {
        let bufs = Bufs::of(BufId::from_bits(index));
        server.put(&Op { cookie: 0, command: Command::Return { bufs } }.record());
    }
    let conn = encoding::id_of(name);
    assert_eq!(server.call(SessionCall::TakeOut { conn }), Some(ServerAnswer::Done));
    assert_eq!(server.call(SessionCall::Sync), Some(ServerAnswer::Done));
}

#[test]
fn invalid_index_of_read_events_ends_the_session() {
    let (link, _other) = pair(&PairConfig::default()).expect("a pair");
    let config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, 1]), 24)],
        ..ServerConfig::default()
    };
    let remote = RemoteConfig { core: None, receive_bytes: 2_048, receive_buffers: 4 };
    let sizes = SessionSizes::of(remote.receive_bytes, remote.receive_buffers);
    let (ServerHalf { ends, memory, .. }, mut fds) = sizes.create().expect("memory");
    let frames = Frames::Queue(Box::new(link));
    let shared = SharedMemory::new(64, 0).expect("no memory");
    let server = Server::new(frames, &config, shared, config.clock.now()).expect("a server");
    let worker = server::RemoteServer::for_session(server, ends, memory).expect("a set");
    let thread = std::thread::spawn(move || worker.run());
    let region = Region::from_fd(fds.region, sizes.bytes()).expect("as agreed");
    let (mut parts, bell) = (region.into_parts(), Arc::new(fds.bells.remove(0)));
    let mut ops = Producer::new(&mut parts, OPS_MAX).expect("it fits");
    // Its flag lies where the index of read events does.
    let index = Sleeper::over_socket(&mut parts, Arc::clone(&bell)).expect("it fits");
    index.end();
    let nowhere = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 80);
    let command = Command::Connect { remote: nowhere, local: None, flags: 0 };
    let connect = Op { cookie: 1, command }.record();
    let call = Op { cookie: 1, command: Command::Call(SessionCall::Sync) }.record();
    // The server looks at the index when its ring may have no room for the answers of a poll.
    let half = vec![connect; COMPLETIONS_MAX as usize / 2];
    for records in [&half[..], &half, &[call]] {
        let mut rest = records;
        let start = Instant::now();
        while !rest.is_empty() || ops.reserve(OPS_MAX) != Ok(OPS_MAX) {
            assert!(start.elapsed() < PATIENCE, "the server takes ops");
            if thread.is_finished() {
                break;
            }
            let sent = ops.send(rest).expect("the server is a correct one");
            rest = &rest[sent..];
            // A server that has ended needs no ring.
            let _ = rustix::io::write(&*bell, &[1]);
            std::thread::yield_now();
        }
    }
    let error = thread.join().expect("no panic").expect_err("no correct application does that");
    assert!(matches!(error, LinkError::Gone { driver: "the application" }), "{error}");
}

#[test]
fn receives_and_returns_share_records() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 12);
    let pairs: Vec<_> = (0..12).map(|_| connected(&mut client, &mut server)).collect();
    server.call(SessionCall::Sync).expect("it lives");
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
fn short_sends_take_one_small_buffer_each() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, _) = connected(&mut client, &mut server);
    assert!(!client.send_short(ours, b""));
    assert!(!client.send_short(ours, &[7; SMALL_SEND_BYTES + 1]));
    assert!(client.send_short(ours, &[7; SMALL_SEND_BYTES]));
    let mut bytes = SMALL_SEND_BYTES;
    // The application does not read: the share is used up, sooner or later.
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
    let remote = RemoteConfig { core: Some(100_000), receive_bytes: 2_048, receive_buffers: 4 };
    let refused = start(Frames::Queue(Box::new(one)), &config, &remote).err();
    assert!(matches!(refused, Some(RemoteError::Pin { core: 100_000, .. })), "{refused:?}");
}

/// Runs a test, and the servers that it starts, on one core only: a woken thread takes it from
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

/// The servers put off the wake-ups of their applications, which sleep whenever they have no event.
#[test]
fn application_on_the_servers_core_is_woken_for_each_event() {
    on_one_core(|| {
        let (mut client, mut server) = sessions();
        listen(&mut server, 1);
        let (ours, theirs) = connected(&mut client, &mut server);
        assert!(client.is_server_on_this_core() && server.is_server_on_this_core());
        for round in 0..1_000_u32 {
            client.send(ours, &round.to_le_bytes()).expect("there is room");
            server.receive(theirs).expect("it lives");
            server.flush();
            client.flush();
            let Event::Received { chunk, .. } = next_event(&mut server) else { panic!("{round}") };
            let mut came = [0; 4];
            server.take_bytes(chunk, &mut came);
            assert_eq!(came, round.to_le_bytes());
        }
        assert!(server.counters().wakeups > 0);
    });
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
            assert!(info(&mut client, name).is_some(), "{round}");
            client.abort(conn);
            assert!(info(&mut client, name).is_none(), "{round}: it was aborted before");
        }
    });
}

#[test]
fn events_of_earlier_ops_precede_the_answer_to_a_call() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    for round in 0..200_u32 {
        assert_eq!(client.send(ours, &round.to_le_bytes()), Ok(4));
        client.flush();
        let name = server.named_soon(theirs).expect("it has one");
        let unread = |it: &mut RemoteClient| info(it, name).expect("it is there").unread_bytes;
        let start = Instant::now();
        while unread(&mut server) != 4 {
            assert!(start.elapsed() < PATIENCE, "four bytes arrive");
        }
        // The bytes leave the stack with this call, and are still counted.
        server.receive(theirs).unwrap();
        assert_eq!(unread(&mut server), 0);
        assert_eq!(server.published_bytes(theirs), 4);
        let Some(RemoteEvent::Event(Event::Received { chunk, .. }, _)) = server.event() else {
            panic!("the answer overtook the event in round {round}")
        };
        server.give_back(chunk);
        assert_eq!(server.published_bytes(theirs), 0);
    }
}

#[test]
fn call_while_armed_leaves_the_bell_readable() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    server.receive(theirs).unwrap();
    while !server.arm() {
        while server.event().is_some() {}
    }
    client.send(ours, b"data").unwrap();
    client.flush();
    // Calls take the event out of the ring, and sleep on the same bell.
    let start = Instant::now();
    while server.published_bytes(theirs) == 0 {
        assert!(start.elapsed() < PATIENCE, "four bytes arrive");
        assert_eq!(server.call(SessionCall::Sync), Some(ServerAnswer::Done));
    }
    let fd = server.wait_fd();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&zero)), Ok(1), "an application would sleep on");
    let Event::Received { chunk, .. } = next_event(&mut server) else { panic!() };
    assert_eq!(chunk.len, 4);
}

#[test]
fn ops_beyond_the_room_for_answers_are_all_done() {
    // Both rings full, and some more.
    const CONNECTS: u32 = OPS_MAX + COMPLETIONS_MAX + 1_000;
    let (mut client, _server) = sessions();
    // Beyond its thousand connections the server begins none, and refuses them.
    let name = |conn: ConnId| (conn.index, conn.generation);
    let mut waits: HashSet<_> = (0..CONNECTS).map(|_| name(client.connect(http()))).collect();
    assert_eq!(waits.len(), CONNECTS as usize);
    assert_eq!(client.call(SessionCall::Sync), Some(ServerAnswer::Done));
    let (mut begun, mut refused) = (0, 0);
    while !waits.is_empty() {
        match next(&mut client) {
            RemoteEvent::NotBegun(conn, _) => {
                assert!(waits.remove(&name(conn)));
                refused += 1;
            }
            RemoteEvent::Event(Event::Closed { conn, reason }, _) => {
                assert_eq!(reason, CloseReason::Refused);
                assert!(waits.remove(&name(conn)));
                begun += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(begun > 0 && refused > 0, "{begun} were begun, {refused} were not");
}
