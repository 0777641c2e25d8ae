//! A server that breaks the protocol: the session ends with an error, and nothing panics.

use std::sync::atomic::{AtomicBool, Ordering};

use megapipe_link::{Caps, LinkMedium};
use megapipe_shm::record::{Arrival, CloseCode, Refusal};
use megapipe_stack::ConnOption;

use super::*;
use crate::begin::ConnectStart;
use crate::limits::CLAIMS_SLOW_MAX;

const CONNECTIONS: u32 = 8;
const RECEIVE_BYTES: usize = 2_048;
const RECEIVE_BUFFERS: u32 = 4;
/// The cookie of a session's first call.
const FIRST_CALL: u64 = 1 << 63 | 1;

fn description() -> Description {
    let caps = Caps {
        driver: "pair",
        medium: LinkMedium::Ip,
        mac: [0; 6],
        mtu: 1_500,
        tx_frame_bytes: 1_500,
        tx_checksum: false,
        tso: false,
        shares_host_address: false,
        rss: None,
        notes: Vec::new(),
    };
    let addresses = Vec::new();
    Description {
        caps,
        shard: None,
        addresses,
        connections: CONNECTIONS,
        send_buffer_bytes: 1 << 16,
    }
}

/// The ends of a session whose server is the test.
fn session_of_test() -> (RemoteClient, session_region::RingEnds) {
    let sizes = SessionSizes::of(RECEIVE_BYTES, RECEIVE_BUFFERS);
    let (half, fds) = sizes.create().expect("memory");
    let client = sizes.client(fds).expect("it fits");
    let thread = std::thread::spawn(|| Ok(()));
    (RemoteClient::new(client, description(), ServerLocation::Thread(thread)), half.ends)
}

fn publish(ends: &mut session_region::RingEnds, cookie: u64, event: Says) {
    let record = Completion { cookie, event }.record();
    assert_eq!(ends.events.send(&[record]), Ok(1));
}

const fn id(index: u32) -> Id {
    Id { index, generation: 0 }
}

fn incoming(index: u32) -> Says {
    Says::Incoming { listener: id(0), conn: id(index), remote: http(), waiting: 0 }
}

/// A later connection of the same index.
const fn next_id(index: u32) -> Id {
    Id { index, generation: 1 }
}

/// A connection that the client has seen arrive.
fn arrived(client: &mut RemoteClient, ends: &mut session_region::RingEnds, index: u32) -> ConnId {
    publish(ends, 0, incoming(index));
    let Some(RemoteEvent::Event(Event::Incoming { conn, .. }, _)) = client.event() else {
        panic!("it has arrived")
    };
    conn
}

/// The client takes the events before the last, which ends the session.
fn ends_by(events: &[(u64, Says)]) {
    let (mut client, mut ends) = session_of_test();
    let (last, before) = events.split_last().expect("there is one");
    for (cookie, event) in before {
        publish(&mut ends, *cookie, *event);
        client.event();
        client.check().unwrap_or_else(|error| panic!("{event:?}: {error}"));
    }
    publish(&mut ends, last.0, last.1);
    assert_eq!(client.event(), None, "{last:?}");
    assert!(client.check().is_err(), "{last:?}");
    assert!(!client.arm(), "{last:?}");
    assert!(client.call(SessionCall::Sync).is_none(), "{last:?}");
}

#[test]
fn received_range_outside_its_buffer_ends_the_session() {
    let bytes = RECEIVE_BYTES as u32;
    let tagged = |tag: u16| u32::from(tag) * POOL_BUFS_MAX;
    for (buf, offset, len) in [
        (0, 0, bytes + 1),
        (0, bytes, 1),
        (RECEIVE_BUFFERS, 0, 1),
        (tagged(SMALL), 0, 1),
        (tagged(CALLS), 0, 1),
        (u32::MAX, 1, 1),
    ] {
        let chunk = Chunk { buf: BufId::from_bits(buf), offset, len };
        ends_by(&[(0, incoming(0)), (0, Says::Received { conn: id(0), chunk })]);
    }
    let arrival = Arrival { to: http().ip(), hop_limit: 1, traffic_class: 0 };
    for (buf, len) in [(0, 2_049), (RECEIVE_BUFFERS, 1), (tagged(LARGE), 1)] {
        let buf = BufId::from_bits(buf);
        let (endpoint, from, port) = (id(0), http().ip(), 1);
        ends_by(&[(0, Says::Datagram { endpoint, from, port, arrival, buf, len })]);
        let quote = Some((buf, len));
        let by = http().ip();
        ends_by(&[(0, Says::Notice { by, kind_and_code: (3, 3), info: 0, arrival, quote })]);
    }
}

#[test]
fn names_beyond_the_agreed_number_end_the_session() {
    ends_by(&[(0, incoming(CONNECTIONS - 1)), (0, incoming(CONNECTIONS))]);
    ends_by(&[(0, incoming(u32::MAX))]);
    // One connection cannot be two.
    ends_by(&[(0, incoming(3)), (0, incoming(3))]);
    let closed = Says::Closed { conn: id(3), reason: CloseCode::Finished };
    ends_by(&[(0, incoming(3)), (0, closed), (0, incoming(3)), (0, incoming(3))]);
}

#[test]
fn answers_without_a_question_end_the_session() {
    for answer in [
        ServerAnswer::Done,
        ServerAnswer::Value { value: 7 },
        ServerAnswer::Connecting { conn: id(0) },
        ServerAnswer::Listening { listener: id(0) },
    ] {
        ends_by(&[(0, Says::Answer(answer))]);
    }
    // The server has named the connection before.
    let connecting = |index| Says::Answer(ServerAnswer::Connecting { conn: id(index) });
    let (mut client, mut ends) = session_of_test();
    client.connect(http());
    for index in [1, 2] {
        client.check().expect("it goes on");
        publish(&mut ends, 1, connecting(index));
        assert_eq!(client.event(), None);
    }
    client.check().expect_err("it was named twice");
}

#[test]
fn refusal_without_a_claim_costs_nothing() {
    let refused = |index| Says::ClaimRefused { conn: id(index), acceptor: id(9) };
    // Offers of an acceptor that is none are not claimed; nor are withdrawn ones.
    let available = |index| Says::Available { conn: id(index), acceptor: id(9) };
    let (mut client, mut ends) = session_of_test();
    let listener = megapipe_stack::ListenerId { index: 0, generation: 0 };
    client.accept(listener, AcceptorId(7), 9);
    publish(&mut ends, 6, available(1));
    publish(&mut ends, 7, available(2));
    publish(&mut ends, 7, available(3));
    publish(&mut ends, 0, Says::Withdrawn { conn: id(2) });
    // Of no offer, as after a claim that is on its way.
    publish(&mut ends, 0, Says::Withdrawn { conn: id(4) });
    assert_eq!(client.event(), None);
    client.flush();
    let mut claims = Vec::new();
    ends.ops.peek(9).expect("a correct client");
    while let Some(record) = ends.ops.take() {
        if let Command::Claim { conn, .. } = Op::parse(&record).expect("an operation").command {
            claims.push(conn);
        }
    }
    assert_eq!(claims, [id(3)]);
    // Once as answer to the claim; then of what was claimed before, or never.
    for index in [3, 3, 0] {
        publish(&mut ends, 0, refused(index));
        assert_eq!(client.event(), None);
        client.check().expect("it may have crossed an assignment");
    }
}

#[test]
fn claims_that_the_program_has_not_taken_are_bounded() {
    let (mut client, mut ends) = session_of_test();
    let listener = megapipe_stack::ListenerId { index: 0, generation: 0 };
    client.accept(listener, AcceptorId(7), 99);
    let count = CLAIMS_SLOW_MAX as u32 + 3;
    for index in 0..count {
        let (conn, acceptor) = (id(index), id(9));
        publish(&mut ends, 7, Says::Available { conn, acceptor });
    }
    let claimed = |client: &mut RemoteClient, ends: &mut session_region::RingEnds| {
        assert_eq!(client.event(), None);
        client.flush();
        ends.ops.peek(count).expect("a correct client");
        let records = std::iter::from_fn(|| ends.ops.take());
        let ops = records.map(|record| Op::parse(&record).expect("an operation").command);
        let claims = ops.filter(|command| matches!(command, Command::Claim { .. })).count();
        ends.ops.release();
        claims
    };
    assert_eq!(claimed(&mut client, &mut ends), CLAIMS_SLOW_MAX);
    assert_eq!(claimed(&mut client, &mut ends), 0);
    for index in 0..2 {
        publish(&mut ends, 7, incoming(index));
        assert!(matches!(client.event(), Some(RemoteEvent::Event(Event::Incoming { .. }, _))));
    }
    assert_eq!(claimed(&mut client, &mut ends), 2);
}

#[test]
fn records_that_do_not_parse_end_the_session() {
    let op = Op { cookie: 0, command: Command::Shutdown { conn: id(0) } };
    for record in [Record::default(), op.record()] {
        let (mut client, mut ends) = session_of_test();
        assert_eq!(ends.events.send(&[record]), Ok(1));
        assert_eq!(client.event(), None);
        client.check().expect_err("the server broke the protocol");
    }
}

/// Makes a call whose answer is there already.
fn answered<T>(
    answer: ServerAnswer,
    call: impl FnOnce(&mut RemoteClient) -> T,
) -> (RemoteClient, T) {
    let (mut client, mut ends) = session_of_test();
    publish(&mut ends, FIRST_CALL, Says::Answer(answer));
    let result = call(&mut client);
    (client, result)
}

#[test]
fn answer_that_does_not_belong_to_its_call_ends_the_session() {
    let listener = megapipe_stack::ListenerId { index: 0, generation: 0 };
    let value = ServerAnswer::Value { value: 1 };
    let (mut client, result) = answered(value, |it| it.set_fast_open(listener, 1));
    assert_eq!(result, Err(OperationError::Unknown));
    client.check().expect_err("no number is asked for");

    let (mut client, is_listening) = answered(ServerAnswer::Done, |it| it.is_listening(http()));
    assert!(!is_listening);
    client.check().expect_err("a number is asked for");

    // A refusal that this call does not have.
    let refused = ServerAnswer::refused(Refusal::NotConnected);
    let (mut client, result) = answered(refused, |it| it.listen(http(), 1, Sharing::default()));
    assert!(result.is_err());
    client.check().expect_err("a listener is not connected");

    let (mut client, result) = answered(ServerAnswer::refused(Refusal::InUse), |it| {
        it.listen(http(), 1, Sharing::default())
    });
    assert!(result.is_err());
    client.check().expect("an honest answer");
}

#[test]
fn written_range_outside_the_call_buffer_ends_the_session() {
    let bytes = CALL_BYTES as u32;
    let elsewhere = BufId::from_bits(0);
    for chunk in [
        Chunk { buf: elsewhere, offset: 0, len: 8 },
        Chunk { buf: CALL_BUFFER, offset: 0, len: bytes + 1 },
        Chunk { buf: CALL_BUFFER, offset: bytes - 1, len: 2 },
        // It holds no list of ports.
        Chunk { buf: CALL_BUFFER, offset: 0, len: 3 },
    ] {
        let (mut client, holders) =
            answered(ServerAnswer::Written { chunk }, |it| it.holders(1..=2));
        assert!(holders.is_empty());
        client.check().expect_err("the server broke the protocol");
    }
}

#[test]
fn bell_without_a_server_ends_the_session() {
    let (mut client, ends) = session_of_test();
    assert!(client.arm());
    // As if its process had died: nothing says that it ends.
    drop(ends);
    client.wake_up();
    client.check().expect_err("no server holds the other end");
}

#[test]
fn connect_call_may_reuse_the_index_of_an_unread_end() {
    let (mut client, mut ends) = session_of_test();
    let old = arrived(&mut client, &mut ends, 3);
    publish(&mut ends, 0, Says::Closed { conn: id(3), reason: CloseCode::Finished });
    let connecting = ServerAnswer::Connecting { conn: next_id(3) };
    publish(&mut ends, FIRST_CALL, Says::Answer(connecting));
    publish(&mut ends, 0, Says::Connected { conn: next_id(3), local: None });
    let local = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 0);
    let new = client.connect_as(http(), Some(local), ConnectStart::default()).expect("it is begun");
    let event = |event| Some(RemoteEvent::Event(event, None));
    let reason = CloseReason::Finished;
    assert_eq!(client.event(), event(Event::Closed { conn: old, reason }));
    assert_eq!(client.event(), event(Event::Connected { conn: new }));
    publish(&mut ends, 0, Says::Closed { conn: next_id(3), reason: CloseCode::Finished });
    assert_eq!(client.event(), event(Event::Closed { conn: new, reason }));
    arrived(&mut client, &mut ends, 3);
    client.check().expect("the server is a correct one");
    // Two answers of one connection are none of a correct server.
    let same = ServerAnswer::Connecting { conn: id(3) };
    publish(&mut ends, FIRST_CALL + 1, Says::Answer(same));
    client.connect_as(http(), Some(local), ConnectStart::default()).expect_err("it has a name");
    client.check().expect_err("the server broke the protocol");
}

#[test]
fn index_of_a_taken_out_connection_may_be_reused_at_once() {
    let (mut client, mut ends) = session_of_test();
    let old = arrived(&mut client, &mut ends, 3);
    publish(&mut ends, 0, Says::PeerClosed { conn: id(3) });
    publish(&mut ends, FIRST_CALL, Says::Answer(ServerAnswer::Done));
    assert!(client.take_out(old));
    let event = |event| Some(RemoteEvent::Event(event, None));
    assert_eq!(client.event(), event(Event::PeerClosed { conn: old }), "it was on its way");
    publish(
        &mut ends,
        0,
        Says::Incoming { listener: id(0), conn: next_id(3), remote: http(), waiting: 0 },
    );
    let Some(RemoteEvent::Event(Event::Incoming { conn: new, .. }, _)) = client.event() else {
        panic!("it has arrived")
    };
    client.forget_moved(old);
    publish(&mut ends, 0, Says::PeerClosed { conn: next_id(3) });
    assert_eq!(client.event(), event(Event::PeerClosed { conn: new }));
    client.check().expect("the server is a correct one");
}

#[test]
fn name_is_not_reused_before_its_last_event_is_read() {
    let (mut client, mut ends) = session_of_test();
    let old = arrived(&mut client, &mut ends, 3);
    publish(&mut ends, 0, Says::Closed { conn: id(3), reason: CloseCode::Finished });
    publish(&mut ends, FIRST_CALL, Says::Answer(ServerAnswer::Done));
    let unnamed = client.connect(http());
    assert_eq!(client.named_soon(unnamed), None);
    let new = client.connect(http());
    assert!(new.index != old.index, "its end would be lost");
    let closed = Event::Closed { conn: old, reason: CloseReason::Finished };
    assert_eq!(client.event(), Some(RemoteEvent::Event(closed, None)));
    assert_eq!(client.connect(http()).index, old.index);
}

#[test]
fn call_of_an_armed_application_returns_when_its_server_is_gone() {
    let (mut client, ends) = session_of_test();
    assert!(client.arm());
    // As if its process had died.
    drop(ends);
    assert_eq!(client.call(SessionCall::Sync), None);
    client.check().expect_err("no server holds the other end");
}

#[test]
fn events_without_end_end_the_session() {
    let (mut client, mut ends) = session_of_test();
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    let thread = std::thread::spawn(move || {
        let event = Says::Connected { conn: id(0), local: None };
        let records = [Completion { cookie: 0, event }.record(); 1 << 12];
        while !seen.load(Ordering::Relaxed) {
            ends.events.send(&records).expect("the client is a correct one");
            // Fails when the client has closed its end.
            let _ = ends.sleep.wake();
        }
    });
    assert_eq!(client.call(SessionCall::Sync), None);
    client.check().expect_err("the server publishes more than there can be");
    is_over.store(true, Ordering::Relaxed);
    thread.join().expect("it only publishes");
}

/// A daemon of an older version answers options that the client does not wait for.
#[test]
fn an_option_may_be_answered_once() {
    let (mut client, mut ends) = session_of_test();
    let conn = arrived(&mut client, &mut ends, 3);
    client.set_option(conn, ConnOption::NoDelay(true)).expect("it is there");
    let value = Says::Answer(ServerAnswer::Value { value: 7 });
    for is_right in [true, false] {
        publish(&mut ends, 0, value);
        assert_eq!(client.event(), None);
        assert_eq!(client.check().is_ok(), is_right);
    }
}

/// What was adopted of a token is closed where its addresses cannot be had.
#[test]
fn adopted_endpoint_without_addresses_is_closed() {
    for is_alive in [true, false] {
        let (client, mut ends) = session_of_test();
        let mut lanes = LaneSet::of(client, Vec::new(), 0);
        publish(&mut ends, FIRST_CALL, Says::Answer(ServerAnswer::Bound { endpoint: id(3) }));
        let answer = match is_alive {
            true => ServerAnswer::refused(Refusal::Unknown),
            // The session ends.
            false => ServerAnswer::Done,
        };
        publish(&mut ends, FIRST_CALL + 1, Says::Answer(answer));
        publish(&mut ends, FIRST_CALL + 2, Says::Answer(ServerAnswer::Done));
        let mut adopted = Vec::new();
        let done = lanes.adopt_endpoints_of_lane(0, 1, &mut adopted);
        assert!(done.is_err() && adopted.is_empty(), "{done:?}");
        assert_eq!(lanes.check().is_ok(), is_alive);
        ends.ops.peek(9).expect("a correct client");
        let ops = std::iter::from_fn(|| ends.ops.take());
        let calls: Vec<_> = ops.map(|record| Op::parse(&record).expect("a call").command).collect();
        let close = Command::Call(SessionCall::CloseDatagram { endpoint: id(3) });
        assert_eq!(calls.contains(&close), is_alive, "{calls:?}");
    }
}
