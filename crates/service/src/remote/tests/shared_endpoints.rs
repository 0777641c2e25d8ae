//! Endpoints for datagrams that several sessions own: each datagram goes to one of them, and the
//! endpoint ends with its last owner.

use std::collections::VecDeque;
use std::sync::Arc;

use megapipe_shm::record::Refusal;
use megapipe_stack::DatagramId;

use super::many_sessions::{SIZES, at};
use super::sharing::{attach, call, end_drain, poll_shard, token};
use super::unaccepted::{UnacceptedWorld, rights_of};
use super::*;
use crate::descriptors::{PassedDescriptors, ShareToken, TokenRequest};
use crate::limits::SHARED_DATAGRAMS_MAX;
use crate::policy::{QuotaKind, UserAccount};
use crate::remote::TokenChange;
use crate::remote::encoding::{decode_datagram, endpoint_id, id_of_endpoint};

const PORT: u16 = 53;
const PEERS_PORT: u16 = 9;

/// A session that has the token under the cookie 1.
struct Owner {
    client: RemoteClient,
    id: SessionId,
}

/// A shard with an endpoint of a session, and a peer that sends to it.
struct EndpointWorld {
    world: UnacceptedWorld,
    token: Arc<ShareToken>,
    endpoint: DatagramId,
    peers: DatagramId,
}

fn bind(world: &mut UnacceptedWorld, client: &mut RemoteClient, port: u16, last: u8) -> DatagramId {
    let local = SocketAddr::new(IpAddr::from([10, 0, 0, last]), port);
    let answer = call(world, client, SessionCall::Bind { local, flags: 0, reservation: 0 });
    let ServerAnswer::Bound { endpoint } = answer else { panic!("{answer:?}") };
    endpoint_id(endpoint)
}

impl EndpointWorld {
    /// With as many private buffers, and the session that has the endpoint.
    fn new(private: u32) -> (Self, Owner) {
        let (mut world, token) = (UnacceptedWorld::new(private), token());
        let (client, id) = attach(&mut world, SIZES.receive_buffers, &token);
        let mut parent = Owner { client, id };
        let endpoint = bind(&mut world, &mut parent.client, PORT, 2);
        let cookie = world.client.submit_call(SessionCall::Bind {
            local: SocketAddr::new(IpAddr::from([10, 0, 0, 1]), PEERS_PORT),
            flags: 0,
            reservation: 0,
        });
        let answer = (0..100).find_map(|_| {
            world.poll();
            world.client.take_answer(cookie)
        });
        let Some(ServerAnswer::Bound { endpoint: peers }) = answer else { panic!("{answer:?}") };
        let peers = endpoint_id(peers);
        (Self { world, token, endpoint, peers }, parent)
    }

    /// The peer sends a datagram.
    fn send(&mut self, bytes: &[u8]) {
        self.world.client.send_unchecked(self.peers, at(PORT), bytes);
        self.world.run(20);
        while self.world.client.event().is_some() {}
    }

    fn attach(&mut self) -> Owner {
        let (client, id) = attach(&mut self.world, SIZES.receive_buffers, &self.token);
        Owner { client, id }
    }

    fn hold(&mut self, owner: &mut Owner) {
        let endpoint = Some(id_of_endpoint(self.endpoint));
        let hold = SessionCall::HoldEndpoint { token: 1, endpoint };
        assert_eq!(call(&mut self.world, &mut owner.client, hold), ServerAnswer::Done);
    }

    fn adopt(&mut self, owner: &mut Owner) -> ServerAnswer {
        let adopt = SessionCall::AdoptEndpoint { token: 1, endpoint: None };
        call(&mut self.world, &mut owner.client, adopt)
    }

    fn adopting(&mut self) -> Owner {
        let mut child = self.attach();
        let expected = ServerAnswer::Bound { endpoint: id_of_endpoint(self.endpoint) };
        assert_eq!(self.adopt(&mut child), expected);
        child
    }

    /// The first datagram that waits, or a copy of it.
    fn take(&mut self, owner: &mut Owner, keeps: bool) -> Option<Vec<u8>> {
        let endpoint = id_of_endpoint(self.endpoint);
        let answer =
            call(&mut self.world, &mut owner.client, SessionCall::TakeDatagram { endpoint, keeps });
        let ServerAnswer::Written { chunk } = answer else { panic!("{answer:?}") };
        let bytes = owner.client.read_call(chunk);
        (!bytes.is_empty()).then(|| {
            let (datagram, _) = decode_datagram(&bytes).expect("a datagram");
            assert_eq!(datagram.from, SocketAddr::new(IpAddr::from([10, 0, 0, 1]), PEERS_PORT));
            assert_eq!(datagram.arrival.to, at(PORT).ip());
            datagram.bytes
        })
    }

    fn waiting(&mut self, owner: &mut Owner) -> ServerAnswer {
        let endpoint = id_of_endpoint(self.endpoint);
        call(&mut self.world, &mut owner.client, SessionCall::AwaitDatagram { endpoint })
    }

    /// Gives a datagram of the peer back. Returns why the session has ended by that.
    fn give_back(&mut self, owner: &mut Owner, bytes: &[u8]) -> Option<SessionFault> {
        let arrival =
            megapipe_stack::Arrival { to: at(PORT).ip(), hop_limit: 64, traffic_class: 0 };
        let from = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), PEERS_PORT);
        let encoded = encoding::encode_datagram((from, arrival), 0, bytes);
        let chunk = owner.client.lend(&encoded);
        let endpoint = id_of_endpoint(self.endpoint);
        owner.client.submit_call(SessionCall::GiveDatagramBack { endpoint, chunk });
        owner.client.flush();
        self.world.run(5);
        self.world.shard.shard.next_end().and_then(|end| end.fault)
    }

    fn close(&mut self, owner: &mut Owner) {
        let endpoint = id_of_endpoint(self.endpoint);
        let close = SessionCall::CloseDatagram { endpoint };
        assert_eq!(call(&mut self.world, &mut owner.client, close), ServerAnswer::Done);
    }

    fn detach(&mut self, owner: &Owner) {
        self.world.shard.shard.detach(self.world.now(), owner.id);
        self.world.run(5);
    }

    fn change(&mut self, change: TokenChange) {
        self.world.shard.shard.change_token(self.world.now(), change);
        self.world.run(5);
    }

    fn is_open(&self) -> bool {
        self.world.shard.shard.server.stack().datagram_address(self.endpoint).is_ok()
    }
}

impl Owner {
    /// The datagrams that the session was informed of.
    fn informed(&mut self) -> Vec<u32> {
        let events = std::iter::from_fn(|| self.client.event());
        let informed = events.filter_map(|event| match event {
            RemoteEvent::DatagramWaits(_, len) => Some(len),
            _ => None,
        });
        informed.collect()
    }

    /// Datagrams that the session was given directly.
    fn given(&mut self) -> Vec<Vec<u8>> {
        let mut given = Vec::new();
        while let Some(event) = self.client.event() {
            if let RemoteEvent::Event(Event::Datagram { chunk, .. }, _) = event {
                let mut bytes = vec![0; chunk.len as usize];
                self.client.take_bytes(chunk, &mut bytes);
                given.push(bytes);
            }
        }
        self.client.flush();
        given
    }
}

const NONE_WAITS: ServerAnswer = ServerAnswer::Value { value: 0 };

#[test]
fn shared_datagram_goes_to_the_owner_that_takes_it_first() {
    let (mut world, mut parent) = EndpointWorld::new(64);
    world.send(b"before");
    assert_eq!(parent.given(), [b"before"]);
    world.hold(&mut parent);
    let mut child = world.adopting();
    for owner in [&mut parent, &mut child] {
        assert_eq!(world.waiting(owner), NONE_WAITS);
    }
    world.send(b"first");
    world.send(b"another");
    assert_eq!((parent.informed(), child.informed()), (vec![5], vec![5]), "each once");
    assert!(parent.given().is_empty());
    assert_eq!(world.take(&mut child, true).as_deref(), Some(&b"first"[..]));
    assert_eq!(world.take(&mut child, false).as_deref(), Some(&b"first"[..]));
    assert_eq!(world.waiting(&mut parent), ServerAnswer::Value { value: 8 });
    assert_eq!(world.take(&mut parent, false).as_deref(), Some(&b"another"[..]));
    assert_eq!((world.take(&mut parent, false), world.take(&mut child, false)), (None, None));
    world.send(b"");
    assert_eq!((parent.informed(), child.informed()), (vec![0], vec![0]));
    assert_eq!(world.take(&mut parent, false).as_deref(), Some(&b""[..]));
    assert_eq!(world.world.private_used(), 0);
}

/// The owners' ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndOf {
    Parent,
    Child,
    Token,
}

/// Two sessions and a token: they end in each order, by a close or with their process.
#[test]
fn endpoint_ends_with_its_last_owner_in_every_order() {
    use EndOf::{Child, Parent, Token};
    let orders = [
        [Parent, Child, Token],
        [Parent, Token, Child],
        [Child, Parent, Token],
        [Child, Token, Parent],
        [Token, Parent, Child],
        [Token, Child, Parent],
    ];
    for (order, closes) in orders.iter().flat_map(|order| [(order, true), (order, false)]) {
        let (mut world, mut parent) = EndpointWorld::new(64);
        world.hold(&mut parent);
        let mut child = world.adopting();
        let mut waiting = VecDeque::new();
        for (place, end) in order.iter().enumerate() {
            assert!(world.is_open(), "{order:?} {place}");
            world.send(&[place as u8]);
            waiting.push_back(vec![place as u8]);
            match (end, closes) {
                (Token, _) => world.change(TokenChange::End(world.token.number())),
                (Parent, true) => world.close(&mut parent),
                (Child, true) => world.close(&mut child),
                (Parent, false) => world.detach(&parent),
                (Child, false) => world.detach(&child),
            }
            let is_left = |other| order[place + 1..].contains(&other);
            for (other, owner) in [(Parent, &mut parent), (Child, &mut child)] {
                if is_left(other) {
                    world.send(b"again");
                    waiting.push_back(b"again".to_vec());
                    assert_eq!(world.take(owner, false), waiting.pop_front());
                }
            }
        }
        assert!(!world.is_open(), "{order:?}");
        assert_eq!(world.world.private_used(), 0, "{order:?}");
        let mut next = world.attach();
        assert_eq!(bind(&mut world.world, &mut next.client, PORT, 2).index, world.endpoint.index);
    }
}

/// A token that alone owns an endpoint keeps its datagrams, for a process that adopts it later.
#[test]
fn datagrams_wait_for_a_token_that_has_no_session() {
    let (mut world, mut parent) = EndpointWorld::new(64);
    world.hold(&mut parent);
    world.detach(&parent);
    world.send(b"for a child");
    let mut child = world.adopting();
    assert_eq!(world.take(&mut child, false).as_deref(), Some(&b"for a child"[..]));
    world.world.shard.shard.detach(world.world.now(), child.id);
    // Another token owns what this one owned, and then lets go.
    let copy = world.token.copy(8).expect("no quota").expect("there is room");
    let request = |token: &Arc<ShareToken>| -> Arc<TokenRequest> {
        token.begin_request().expect("there is room")
    };
    world.change(TokenChange::Copy(request(&world.token), Arc::clone(&copy)));
    world.change(TokenChange::End(world.token.number()));
    assert!(world.is_open());
    let other = DatagramId { generation: world.endpoint.generation + 1, ..world.endpoint };
    world.change(TokenChange::ReleaseEndpoints(request(&copy), vec![other]));
    assert!(world.is_open());
    world.change(TokenChange::ReleaseEndpoints(request(&copy), vec![world.endpoint]));
    assert!(!world.is_open());
}

#[test]
fn names_of_endpoints_that_others_own_are_refused_and_counted() {
    let (mut world, mut parent) = EndpointWorld::new(64);
    let mut stranger = world.attach();
    // Nothing is shared, also for its owner.
    assert!(matches!(world.adopt(&mut stranger), ServerAnswer::Refused { .. }));
    assert!(matches!(world.waiting(&mut parent), ServerAnswer::Refused { .. }));
    world.hold(&mut parent);
    world.send(b"not for others");
    let endpoint = id_of_endpoint(world.endpoint);
    let id = stranger.id;
    let foreign = |world: &mut EndpointWorld| {
        let report = world.world.shard.shard.report();
        let of_stranger = report.sessions.iter().find(|(of, _)| *of == id);
        of_stranger.expect("it runs").1.foreign_names
    };
    let before = foreign(&mut world);
    let mut refused = 0;
    for asked in [
        SessionCall::TakeDatagram { endpoint, keeps: false },
        SessionCall::AwaitDatagram { endpoint },
        SessionCall::HoldEndpoint { token: 1, endpoint: Some(endpoint) },
        SessionCall::QuoteErrors { endpoint, on: true },
    ] {
        let answer = call(&mut world.world, &mut stranger.client, asked);
        assert!(matches!(answer, ServerAnswer::Refused { .. }), "{answer:?}");
        refused += 1;
    }
    assert_eq!(world.give_back(&mut stranger, b"forged"), None);
    world.close(&mut stranger);
    assert_eq!(foreign(&mut world), before + refused + 2);
    assert_eq!(world.take(&mut parent, false).as_deref(), Some(&b"not for others"[..]));
    assert_eq!(world.take(&mut parent, false), None);
    // Another token owns nothing of it.
    let passed = Arc::new(PassedDescriptors::new(None));
    let other = ShareToken::new(9, None).expect("no quota");
    passed.keep_token(1, (other, false)).expect("there is room");
    let limits = SessionLimits { descriptors: Some(passed), key: 99, ..SessionLimits::WHOLE_SHARD };
    let (client, id) = world.world.shard.attach_with(&SIZES, limits);
    let mut holder = Owner { client, id };
    for asked in [Some(endpoint), None] {
        let adopt = SessionCall::AdoptEndpoint { token: 1, endpoint: asked };
        let answer = call(&mut world.world, &mut holder.client, adopt);
        assert!(matches!(answer, ServerAnswer::Refused { .. }), "{answer:?}");
    }
}

#[test]
fn datagrams_that_are_given_back_come_first() {
    let (mut world, mut parent) = EndpointWorld::new(64);
    world.send(b"one");
    world.send(b"two");
    assert_eq!(parent.given(), [b"one", b"two"]);
    world.hold(&mut parent);
    world.send(b"three");
    let mut child = world.adopting();
    // Newest first, as many as it was given.
    assert_eq!(world.give_back(&mut parent, b"two"), None);
    assert_eq!(world.give_back(&mut parent, b"one"), None);
    for bytes in [&b"one"[..], b"two", b"three"] {
        assert_eq!(world.take(&mut child, false).as_deref(), Some(bytes));
    }
    assert_eq!(world.take(&mut child, false), None);
    assert_eq!(world.give_back(&mut child, b"three"), None);
    assert_eq!(world.give_back(&mut parent, b"more"), Some(SessionFault::GivenBack));
    assert_eq!(world.take(&mut child, false).as_deref(), Some(&b"three"[..]));
}

#[test]
fn waiting_datagrams_are_bounded_by_number_and_quota() {
    let (mut world, mut parent) = EndpointWorld::new(1_000);
    world.hold(&mut parent);
    for _ in 0..SHARED_DATAGRAMS_MAX + 10 {
        world.send(b"x");
    }
    assert_eq!(world.world.private_used(), SHARED_DATAGRAMS_MAX as u32);
    let report = world.world.shard.shard.report();
    let its = report.sessions.iter().find(|(id, _)| *id == parent.id).expect("it runs").1;
    assert_eq!(its.datagrams_dropped, 10);
    for _ in 0..SHARED_DATAGRAMS_MAX {
        assert_eq!(world.take(&mut parent, false).as_deref(), Some(&b"x"[..]));
    }
    assert_eq!(world.take(&mut parent, false), None);
    // A user with fewer buffers.
    let account = Arc::<UserAccount>::default();
    let rights = rights_of(&account, &[(QuotaKind::UserPrivateBuffers, 3)]);
    let passed = Arc::new(PassedDescriptors::new(None));
    let its_token = ShareToken::new(8, Some(Arc::clone(&rights))).expect("no quota");
    passed.keep_token(1, (its_token, true)).expect("there is room");
    let limits = SessionLimits {
        descriptors: Some(passed),
        rights: Some(rights),
        key: 99,
        ..SessionLimits::WHOLE_SHARD
    };
    world.close(&mut parent);
    world.change(TokenChange::End(world.token.number()));
    let (client, id) = world.world.shard.attach_with(&SIZES, limits);
    let mut limited = Owner { client, id };
    world.endpoint = bind(&mut world.world, &mut limited.client, PORT, 2);
    world.hold(&mut limited);
    (0..5).for_each(|_| world.send(b"y"));
    assert_eq!(world.world.private_used(), 3);
    world.detach(&limited);
    assert_eq!(account.count(QuotaKind::UserEndpoints), 1, "it counts for the token's user");
    world.change(TokenChange::End(8));
    assert_eq!((world.world.private_used(), account.count(QuotaKind::UserEndpoints)), (0, 0));
}

/// What an owner has sent leaves from the endpoint, and its memory goes with it at last.
#[test]
fn datagrams_of_an_owner_that_ends_are_dropped_with_its_memory() {
    let (mut world, mut parent) = EndpointWorld::new(64);
    world.hold(&mut parent);
    let mut child = world.adopting();
    let peer = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), PEERS_PORT);
    child.client.send_unchecked(world.endpoint, peer, b"from a child");
    world.world.run(20);
    let event = world.world.client.event();
    let Some(RemoteEvent::Event(Event::Datagram { from, .. }, _)) = event else {
        panic!("{event:?}")
    };
    assert_eq!(from, at(PORT));
    // No host has this address: the datagram waits for its neighbour.
    let nowhere = SocketAddr::new(IpAddr::from([10, 0, 0, 77]), PEERS_PORT);
    child.client.send_unchecked(world.endpoint, nowhere, b"waits");
    poll_shard(&mut world.world);
    let number = child.id.number;
    world.world.shard.shard.detach(world.world.now(), child.id);
    end_drain(&mut world.world);
    assert_eq!(world.attach().id.number, number, "its memory is gone");
    world.send(b"still");
    assert_eq!(world.take(&mut parent, false).as_deref(), Some(&b"still"[..]));
}

/// Where one session is left and nothing waits, datagrams go to it directly.
#[test]
fn endpoint_of_one_owner_is_not_shared_any_more() {
    let (mut world, mut parent) = EndpointWorld::new(64);
    world.hold(&mut parent);
    let child = world.adopting();
    world.send(b"waits");
    world.detach(&child);
    assert_eq!(world.waiting(&mut parent), ServerAnswer::Value { value: 6 });
    world.change(TokenChange::End(world.token.number()));
    assert_eq!(world.waiting(&mut parent), ServerAnswer::Value { value: 6 }, "it has to be taken");
    assert_eq!(world.take(&mut parent, false).as_deref(), Some(&b"waits"[..]));
    assert_eq!(world.waiting(&mut parent), ServerAnswer::refused(Refusal::Unknown));
    world.send(b"direct");
    assert_eq!(parent.given(), [b"direct"]);
    assert_eq!(world.world.private_used(), 0);
    // It can be shared again, by another token.
    let other = ShareToken::new(9, None).expect("no quota");
    let descriptors = Arc::new(PassedDescriptors::new(None));
    descriptors.keep_token(1, (other, true)).expect("there is room");
    let limits =
        SessionLimits { descriptors: Some(descriptors), key: 98, ..SessionLimits::WHOLE_SHARD };
    world.close(&mut parent);
    let (client, id) = world.world.shard.attach_with(&SIZES, limits);
    let mut next = Owner { client, id };
    world.endpoint = bind(&mut world.world, &mut next.client, PORT, 2);
    world.hold(&mut next);
    world.send(b"again");
    assert_eq!(world.take(&mut next, false).as_deref(), Some(&b"again"[..]));
    assert_eq!(world.take(&mut next, false), None, "its token owns it too");
}
