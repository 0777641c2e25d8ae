//! Connections that are shared while they are being opened: what their owners learn, and when.

use std::sync::Arc;

use super::many_sessions::SIZES;
use super::sharing::{attach, poll_shard, token};
use super::unaccepted::UnacceptedWorld;
use super::*;
use crate::descriptors::{PassedDescriptors, ShareToken};
use megapipe_shm::record::CloseCode;

/// The peer, where a listener is or is not.
const LISTENS: u16 = 80;
const REFUSES: u16 = 81;

fn peer(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), port)
}

/// A call, while the peer answers nothing.
fn call(world: &mut UnacceptedWorld, client: &mut RemoteClient, call: SessionCall) -> ServerAnswer {
    let cookie = client.submit_call(call);
    client.flush();
    poll_shard(world);
    client.take_answer(cookie).expect("it is answered")
}

fn adopt(world: &mut UnacceptedWorld, client: &mut RemoteClient, cookie: u64) -> ServerAnswer {
    call(world, client, SessionCall::Adopt { token: cookie, conn: None })
}

/// A world whose peer listens.
fn world() -> UnacceptedWorld {
    let mut world = UnacceptedWorld::new(64);
    let sharing = ListenSharing { flags: 0, fast_open: 0, cores: None };
    let local = peer(LISTENS);
    let listen = SessionCall::Listen { local, backlog: 100, sharing, reservation: 0 };
    let cookie = world.client.submit_call(listen);
    world.client.flush();
    world.run(5);
    let answer = world.client.take_answer(cookie);
    assert!(matches!(answer, Some(ServerAnswer::Listening { .. })), "{answer:?}");
    world
}

/// A session that connects to the peer, which has not answered. The token owns the connection.
fn connecting(
    world: &mut UnacceptedWorld,
    token: &Arc<ShareToken>,
    port: u16,
) -> (RemoteClient, SessionId, ConnId) {
    let (mut client, id) = attach(world, SIZES.receive_buffers, token);
    let conn = client.connect(peer(port));
    client.flush();
    poll_shard(world);
    assert!(client.event().is_none());
    let name = client.named(conn).map(encoding::id_of).expect("it is begun");
    let hold = SessionCall::Hold { token: 1, conn: Some(name) };
    assert_eq!(call(world, &mut client, hold), ServerAnswer::Done);
    (client, id, conn)
}

/// A session that adopts what is being opened.
fn adopting(
    world: &mut UnacceptedWorld,
    token: &Arc<ShareToken>,
) -> (RemoteClient, SessionId, ConnId) {
    let (mut client, id) = attach(world, SIZES.receive_buffers, token);
    let answer = adopt(world, &mut client, 1);
    let ServerAnswer::AdoptedConnecting { conn } = answer else { panic!("{answer:?}") };
    let conn = client.adopt_answered(encoding::conn_id(conn)).expect("a new name");
    (client, id, conn)
}

fn next(client: &mut RemoteClient) -> Option<Event> {
    match client.event() {
        Some(RemoteEvent::Event(event, _)) => Some(event),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_owners_learn_that_a_connection_is_established() {
    let (mut world, token) = (world(), token());
    let (mut parent, _, begun) = connecting(&mut world, &token, LISTENS);
    let (mut child, _, adopted) = adopting(&mut world, &token);
    world.run(20);
    assert_eq!(next(&mut parent), Some(Event::Connected { conn: begun }));
    assert_eq!(next(&mut child), Some(Event::Connected { conn: adopted }));
    let (mut late, _) = attach(&mut world, SIZES.receive_buffers, &token);
    let answer = adopt(&mut world, &mut late, 1);
    assert!(matches!(answer, ServerAnswer::Connecting { .. }), "{answer:?}");
}

#[test]
fn all_owners_learn_that_a_connection_is_refused() {
    let (mut world, token) = (world(), token());
    let (mut parent, _, begun) = connecting(&mut world, &token, REFUSES);
    let (mut child, _, adopted) = adopting(&mut world, &token);
    world.run(20);
    let reason = CloseReason::Refused;
    assert_eq!(next(&mut parent), Some(Event::Closed { conn: begun, reason }));
    assert_eq!(next(&mut child), Some(Event::Closed { conn: adopted, reason }));
}

/// The attempt goes on without the session that has begun it.
#[test]
fn owner_that_adopted_is_the_last_one_to_learn_of_it() {
    let (mut world, token) = (world(), token());
    let (_parent, id, _) = connecting(&mut world, &token, LISTENS);
    let (mut child, _, adopted) = adopting(&mut world, &token);
    world.shard.shard.detach(world.now(), id);
    world.run(20);
    assert_eq!(next(&mut child), Some(Event::Connected { conn: adopted }));
}

#[test]
fn session_that_adopts_too_late_learns_why_it_was_refused() {
    let (mut world, token) = (world(), token());
    let (_parent, id, _) = connecting(&mut world, &token, REFUSES);
    world.shard.shard.detach(world.now(), id);
    world.run(20);
    assert_eq!(world.shard.shard.server.stack().tcp_usage().connections, 0);
    let (mut child, _) = attach(&mut world, SIZES.receive_buffers, &token);
    let failed = ServerAnswer::ConnectFailed { reason: CloseCode::Refused };
    for _ in 0..2 {
        assert_eq!(adopt(&mut world, &mut child, 1), failed);
    }
    // The token of a session lets go of it.
    let limits = SessionLimits { token: Some(Arc::clone(&token)), ..SessionLimits::WHOLE_SHARD };
    let (mut opened, _) = world.shard.attach_with(&SIZES, limits);
    assert_eq!(adopt(&mut world, &mut opened, 0), failed);
    let answer = adopt(&mut world, &mut child, 1);
    assert!(matches!(answer, ServerAnswer::Refused { .. }), "{answer:?}");
}

#[test]
fn connection_that_is_being_opened_ends_with_its_last_token() {
    let (mut world, token) = (world(), token());
    let (_parent, id, _) = connecting(&mut world, &token, LISTENS);
    world.shard.shard.detach(world.now(), id);
    poll_shard(&mut world);
    assert_eq!(world.shard.shard.server.stack().tcp_usage().connections, 1);
    let now = world.now();
    world.shard.shard.change_token(now, TokenChange::End(token.number()));
    world.run(20);
    assert_eq!(world.shard.shard.server.stack().tcp_usage().connections, 0);
}

#[test]
fn older_client_neither_shares_nor_adopts_what_is_being_opened() {
    let (mut world, token) = (world(), token());
    let (_parent, _, _) = connecting(&mut world, &token, LISTENS);
    let passed = Arc::new(PassedDescriptors::new(None));
    passed.keep_token(1, (Arc::clone(&token), true)).expect("there is room");
    let (descriptors, shares_connecting) = (Some(passed), false);
    let limits = SessionLimits { descriptors, shares_connecting, ..SessionLimits::WHOLE_SHARD };
    let (mut older, _) = world.shard.attach_with(&SIZES, limits);
    let answer = adopt(&mut world, &mut older, 1);
    assert!(matches!(answer, ServerAnswer::Refused { .. }), "{answer:?}");
    let conn = older.connect(peer(LISTENS));
    older.flush();
    poll_shard(&mut world);
    assert!(older.event().is_none());
    let name = Some(older.named(conn).map(encoding::id_of).expect("it is begun"));
    let answer = call(&mut world, &mut older, SessionCall::Hold { token: 1, conn: name });
    assert!(matches!(answer, ServerAnswer::Refused { .. }), "{answer:?}");
    // All that it has are none.
    let all = SessionCall::Hold { token: 1, conn: None };
    assert_eq!(call(&mut world, &mut older, all), ServerAnswer::Done);
    let (mut child, _) = attach(&mut world, SIZES.receive_buffers, &token);
    let answer = call(&mut world, &mut child, SessionCall::Adopt { token: 1, conn: name });
    assert!(matches!(answer, ServerAnswer::Refused { .. }), "{answer:?}");
}
