//! Connections that several sessions own: whose memory their bytes lie in, and what is left of them
//! when an owner ends.

use std::sync::Arc;
use std::time::Duration;

use super::many_sessions::SIZES;
use super::unaccepted::UnacceptedWorld;
use super::*;
use crate::descriptors::{PassedDescriptors, ShareToken};
use crate::limits::{TOKEN_COPIES_MAX, TOKEN_REQUESTS_MAX};
use crate::session_sizes::SessionSizes;

/// A session that has the token under the cookie 1.
struct Owner {
    client: RemoteClient,
    id: SessionId,
    conn: ConnId,
}

/// The bytes of a session that has ended are waited for at most so long.
const SHORT_DRAIN: Duration = Duration::from_millis(1);
/// No program takes so many polls.
const POLLS: u32 = 1_000;

pub(super) fn attach(
    world: &mut UnacceptedWorld,
    receive_buffers: u32,
    token: &Arc<ShareToken>,
) -> (RemoteClient, SessionId) {
    let passed = Arc::new(PassedDescriptors::new(None));
    passed.keep_token(1, (Arc::clone(token), true)).expect("there is room");
    let sizes = SessionSizes { receive_buffers, ..SIZES };
    let (descriptors, key) = (Some(passed), world.us + 1);
    let drain_time = SHORT_DRAIN;
    let limits = SessionLimits { descriptors, key, drain_time, ..SessionLimits::WHOLE_SHARD };
    world.shard.attach_with(&sizes, limits)
}

pub(super) fn call(
    world: &mut UnacceptedWorld,
    client: &mut RemoteClient,
    call: SessionCall,
) -> ServerAnswer {
    let cookie = client.submit_call(call);
    client.flush();
    (0..POLLS)
        .find_map(|_| {
            world.poll();
            client.take_answer(cookie)
        })
        .expect("it is answered")
}

impl Owner {
    /// A session with a connection of the peer, and the peer's name of that.
    fn accepting(world: &mut UnacceptedWorld, token: &Arc<ShareToken>) -> (Self, ConnId) {
        let (mut client, id) = attach(world, SIZES.receive_buffers, token);
        let listener = world.listen(&mut client, 80);
        let (peer, conn) = world.accepted((&mut client, listener), 80);
        (Self { client, id, conn }, peer)
    }

    fn adopting(world: &mut UnacceptedWorld, buffers: u32, token: &Arc<ShareToken>) -> Self {
        let (mut client, id) = attach(world, buffers, token);
        let answer = call(world, &mut client, SessionCall::Adopt { token: 1, conn: None });
        let ServerAnswer::Connecting { conn } = answer else { panic!("{answer:?}") };
        let conn = client.adopt_answered(encoding::conn_id(conn)).expect("a new name");
        Self { client, id, conn }
    }

    fn hold(&mut self, world: &mut UnacceptedWorld) {
        let conn = self.client.named(self.conn).map(encoding::id_of);
        let answer = call(world, &mut self.client, SessionCall::Hold { token: 1, conn });
        assert_eq!(answer, ServerAnswer::Done);
    }

    fn ask(&mut self, world: &mut UnacceptedWorld) {
        self.client.receive(self.conn).expect("it has the connection");
        self.client.flush();
        world.run(5);
    }

    /// Received bytes that were asked for, which stay in their buffer.
    fn received(&mut self) -> Option<megapipe_stack::Chunk> {
        match self.client.event() {
            Some(RemoteEvent::Event(Event::Received { conn, chunk }, _)) if conn == self.conn => {
                Some(chunk)
            }
            None => None,
            other => panic!("{other:?}"),
        }
    }

    fn take(&mut self, chunk: megapipe_stack::Chunk, to: &mut Vec<u8>) {
        let from = to.len();
        to.resize(from + chunk.len as usize, 0);
        self.client.take_bytes(chunk, &mut to[from..]);
    }

    /// Asks for bytes until there are so many.
    fn read_until(&mut self, world: &mut UnacceptedWorld, bytes: &mut Vec<u8>, len: usize) {
        for _ in 0..POLLS {
            if bytes.len() >= len {
                return;
            }
            self.ask(world);
            while let Some(chunk) = self.received() {
                self.take(chunk, bytes);
            }
        }
        panic!("{} of {len} bytes came", bytes.len());
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 | 1).collect()
}

pub(super) fn token() -> Arc<ShareToken> {
    ShareToken::new(7, None).expect("no quota")
}

/// The next session gets the number of the one that has ended, and with it the names of its
/// buffers.
#[test]
fn bytes_of_an_owner_that_ends_are_not_looked_for_in_the_next_sessions_memory() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut parent, peer) = Owner::accepting(&mut world, &token);
    let sent = pattern(9_000);
    world.send_bytes(peer, &sent);
    parent.hold(&mut world);
    let mut child = Owner::adopting(&mut world, 1, &token);
    // It has one buffer and keeps it, so its second read waits.
    child.ask(&mut world);
    let first = child.received().expect("it has a buffer");
    child.ask(&mut world);
    assert_eq!(child.received(), None);
    let number = parent.id.number;
    world.shard.shard.detach(world.now(), parent.id);
    world.run(10);
    let (_stranger, id) = attach(&mut world, SIZES.receive_buffers, &token);
    assert_eq!(id.number, number, "it is used again");
    let mut came = Vec::new();
    child.take(first, &mut came);
    child.read_until(&mut world, &mut came, sent.len());
    assert_eq!(came, sent);
}

/// What an owner has asked for and not read is lost with it: the other one must not read on behind.
#[test]
fn owner_that_ends_with_bytes_in_its_ring_resets_the_connection_for_the_others() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut parent, peer) = Owner::accepting(&mut world, &token);
    parent.hold(&mut world);
    let mut child = Owner::adopting(&mut world, 8, &token);
    world.send_bytes(peer, &pattern(3_000));
    parent.ask(&mut world);
    world.shard.shard.detach(world.now(), parent.id);
    world.run(10);
    let conn = child.conn;
    let closed = std::iter::from_fn(|| child.client.event()).any(|event| {
        matches!(event, RemoteEvent::Event(Event::Closed { conn: of, .. }, _) if of == conn)
    });
    assert!(closed, "it learns of it");
}

/// Bytes that wait for a buffer of an owner were the first to come.
#[test]
fn bytes_that_waited_for_a_buffer_come_before_those_behind_them() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut client, id) = attach(&mut world, 1, &token);
    let listener = world.listen(&mut client, 80);
    let sent = pattern(9_000);
    // They come while no session has the connection, so they lie in the shard's memory.
    let peer = world.connect(80, 1)[0];
    world.send_bytes(peer, &sent);
    client.accept(listener, AcceptorId(1), 1);
    client.flush();
    world.run(10);
    let Some(RemoteEvent::Event(Event::Incoming { conn, .. }, _)) = client.event() else {
        panic!("it is accepted");
    };
    let mut parent = Owner { client, id, conn };
    parent.hold(&mut world);
    parent.ask(&mut world);
    let first = parent.received().expect("it has a buffer");
    parent.ask(&mut world);
    assert_eq!(parent.received(), None, "the next bytes wait for it");
    // The bytes behind them wait for the owner that asks next.
    let mut child = Owner::adopting(&mut world, 8, &token);
    parent.ask(&mut world);
    parent.hold(&mut world);
    let mut came = Vec::new();
    parent.take(first, &mut came);
    child.read_until(&mut world, &mut came, sent.len());
    assert_eq!(came, sent);
}

/// What a token owns counts for the user of its maker.
#[test]
fn token_of_another_session_owns_nothing_of_this_one() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut owner, _) = Owner::accepting(&mut world, &token);
    let passed = Arc::new(PassedDescriptors::new(None));
    passed.keep_token(1, (Arc::clone(&token), false)).expect("there is room");
    assert!(passed.made_token(1).is_none());
    assert!(passed.token(1).is_some(), "it may be adopted from");
    let conn = owner.client.named(owner.conn).map(encoding::id_of);
    for cookie in [0, 2] {
        let hold = SessionCall::Hold { token: cookie, conn };
        let answer = call(&mut world, &mut owner.client, hold);
        assert!(matches!(answer, ServerAnswer::Refused { .. }), "{answer:?}");
    }
    owner.hold(&mut world);
}

/// The holders of a token can neither use up the quota of its maker nor fill a shard's queue.
#[test]
fn copies_of_a_token_and_requests_over_it_are_bounded() {
    let made = token();
    let copies: Vec<_> = (0..TOKEN_COPIES_MAX as u64)
        .map(|number| made.copy(number).expect("no quota").expect("there is room"))
        .collect();
    assert!(copies[0].copy(1_000).expect("no quota").is_none(), "a copy's copies count too");
    let requests: Vec<_> = (0..TOKEN_REQUESTS_MAX)
        .map(|_| copies[1].begin_request().expect("there is room"))
        .collect();
    assert!(copies[2].begin_request().is_none() && made.begin_request().is_none());
    drop((copies, requests));
    assert!(made.copy(1).expect("no quota").is_some() && made.begin_request().is_some());
}

#[test]
fn bytes_given_back_singly_share_a_buffer_and_come_in_order() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut parent, peer) = Owner::accepting(&mut world, &token);
    parent.hold(&mut world);
    let mut child = Owner::adopting(&mut world, 8, &token);
    let sent = pattern(300);
    world.send_bytes(peer, &sent);
    let mut came = Vec::new();
    child.read_until(&mut world, &mut came, sent.len());
    let conn = encoding::id_of(child.client.named(child.conn).expect("it has one"));
    for byte in came.iter().rev() {
        let chunk = child.client.lend(&[*byte]);
        let given = call(&mut world, &mut child.client, SessionCall::GiveBack { conn, chunk });
        assert_eq!(given, ServerAnswer::Done);
    }
    assert_eq!(world.shard.shard.report().private_used, 1);
    let mut again = Vec::new();
    parent.read_until(&mut world, &mut again, sent.len());
    assert_eq!(again, sent);
}

#[test]
fn owner_whose_read_was_pending_has_the_next_turn() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut parent, peer) = Owner::accepting(&mut world, &token);
    parent.hold(&mut world);
    let mut child = Owner::adopting(&mut world, 8, &token);
    parent.ask(&mut world);
    child.ask(&mut world);
    world.send_bytes(peer, &[1; 10]);
    assert!(child.received().is_some() && parent.received().is_none());
    world.send_bytes(peer, &[2; 10]);
    assert!(parent.received().is_some(), "it has asked for nothing more");
}

impl Owner {
    fn closed(&mut self) -> bool {
        let conn = self.conn;
        std::iter::from_fn(|| self.client.event()).any(|event| {
            matches!(event, RemoteEvent::Event(Event::Closed { conn: of, .. }, _) if of == conn)
        })
    }

    fn send(&mut self, world: &mut UnacceptedWorld, conn: ConnId, bytes: &[u8]) {
        assert_eq!(self.client.send(conn, bytes), Ok(bytes.len()));
        self.client.flush();
        poll_shard(world);
    }
}

/// Polls the shard alone: the peer acknowledges nothing.
pub(super) fn poll_shard(world: &mut UnacceptedWorld) {
    world.us += 50;
    let now = world.now();
    world.shard.shard.poll(now).expect("the link works");
    while world.shard.shard.next_signal().is_some() {}
}

/// Until the session's bytes are not waited for any longer.
pub(super) fn end_drain(world: &mut UnacceptedWorld) {
    (0..2 * SHORT_DRAIN.as_micros() / 50).for_each(|_| poll_shard(world));
}

#[test]
fn bytes_of_other_owners_outlive_a_session_that_is_cut_off() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut parent, peer) = Owner::accepting(&mut world, &token);
    parent.hold(&mut world);
    let mut child = Owner::adopting(&mut world, 8, &token);
    let listener = world.listen(&mut parent.client, 81);
    let (_, own) = world.accepted((&mut parent.client, listener), 81);
    // The peer acknowledges neither.
    parent.send(&mut world, own, b"parent");
    let conn = child.conn;
    child.send(&mut world, conn, b"child");
    world.shard.shard.detach(world.now(), parent.id);
    end_drain(&mut world);
    assert!(!child.closed(), "none of its bytes were the parent's");
    world.run(POLLS);
    assert_eq!(world.peer_bytes(peer), b"child");
}

#[test]
fn bytes_of_an_owner_that_closed_keep_its_memory_until_they_are_reset() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut parent, _) = Owner::accepting(&mut world, &token);
    parent.hold(&mut world);
    let mut child = Owner::adopting(&mut world, 8, &token);
    let conn = parent.conn;
    parent.send(&mut world, conn, b"parent");
    parent.client.close(conn);
    parent.client.flush();
    poll_shard(&mut world);
    world.shard.shard.detach(world.now(), parent.id);
    poll_shard(&mut world);
    assert!(!child.closed(), "they are waited for");
    end_drain(&mut world);
    assert!(child.closed(), "they were in the memory that is gone");
}

#[test]
fn session_that_gives_back_more_than_it_was_given_ends() {
    let (mut world, token) = (UnacceptedWorld::new(64), token());
    let (mut parent, peer) = Owner::accepting(&mut world, &token);
    let mut came = Vec::new();
    world.send_bytes(peer, b"early");
    parent.read_until(&mut world, &mut came, 5);
    parent.hold(&mut world);
    let mut child = Owner::adopting(&mut world, 8, &token);
    world.send_bytes(peer, b"later");
    child.read_until(&mut world, &mut Vec::new(), 5);
    let give = |world: &mut UnacceptedWorld, owner: &mut Owner, bytes: &[u8]| {
        let conn = encoding::id_of(owner.client.named(owner.conn).expect("it has one"));
        let chunk = owner.client.lend(bytes);
        owner.client.submit_call(SessionCall::GiveBack { conn, chunk });
        owner.client.flush();
        world.run(5);
        world.shard.shard.next_end()
    };
    // What it had before the connection was shared, and no byte more.
    assert_eq!(give(&mut world, &mut parent, b"early"), None);
    assert_eq!(give(&mut world, &mut child, b"later"), None);
    let end = give(&mut world, &mut child, b"x").expect("it had given back all");
    assert_eq!((end.session, end.fault), (child.id, Some(SessionFault::GivenBack)));
    let mut again = Vec::new();
    parent.read_until(&mut world, &mut again, 10);
    assert_eq!(again, b"laterearly", "each before what waited");
}
