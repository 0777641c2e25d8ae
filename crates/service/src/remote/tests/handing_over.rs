//! Hand-over of new connections among sessions of one shard. The tests poll the shard, the peer and
//! the applications themselves, at times of their own: each run is the same.

use std::collections::HashMap;

use megapipe_stack::{ListenerId, PoolId, SynCookies};

use super::polled_shard::PolledShard;
use super::*;
use crate::balancer::RandomSequence;
use crate::hand_over::{HandOverSettings, ListenerSettings, OfferCounters};
use crate::limits::{
    CLAIM_TIME_DEFAULT, CLAIMS_MAX, CLAIMS_SLOW_MAX, PICKS_REMEMBERED, UNOWNED_RECEIVE_BYTES,
};
use crate::observe::{AnswerBody, PickReason, QuerySubject, ServiceQuery, Viewer};
use crate::remote::shard::HandOverCounters;

/// An application that accepts and answers.
struct App {
    client: RemoteClient,
    id: SessionId,
    /// It dispatches.
    runs: bool,
    /// How long each of its connections is open.
    service_us: u64,
    /// Connections that it has accepted, until they are closed.
    open: Vec<(u64, ConnId)>,
    accepted: u64,
    bytes: Vec<u8>,
}

struct World {
    shard: PolledShard,
    peer: PolledShard,
    client: RemoteClient,
    apps: Vec<App>,
    us: u64,
    /// What became of the peer's connections.
    connected: usize,
    ended: HashMap<ConnId, CloseReason>,
    closed_by_app: Vec<ConnId>,
}

const PORT: u16 = 80;
const STEP_US: u64 = 50;

impl World {
    fn new(hand_over: HandOverSettings) -> Self {
        Self::with_private(64, hand_over)
    }

    /// With so many buffers of the shard's own.
    fn with_private(buffers: u32, hand_over: HandOverSettings) -> Self {
        Self::with_cookies(buffers, hand_over, SynCookies::default())
    }

    fn with_cookies(buffers: u32, hand_over: HandOverSettings, cookies: SynCookies) -> Self {
        let (one, other) = pair(&PairConfig::default()).expect("a pair");
        let shard = PolledShard::with_cookies(one, (2, buffers), hand_over, cookies);
        let mut peer = PolledShard::new(other, 1, 0, HandOverSettings::default());
        let (client, _) = peer.attach();
        let (connected, ended, closed_by_app) = (0, HashMap::new(), Vec::new());
        Self { shard, peer, client, apps: Vec::new(), us: 0, connected, ended, closed_by_app }
    }

    fn now(&self) -> megapipe_stack::Instant {
        megapipe_stack::Instant::from_micros(self.us)
    }

    /// An application that listens, with credit for `credit` connections.
    fn app(&mut self, credit: u32) -> usize {
        let (mut client, id) = self.shard.attach();
        let sharing = ListenSharing { flags: 0, fast_open: 0, cores: None };
        let local = SocketAddr::new(IpAddr::from([10, 0, 0, 2]), PORT);
        let cookie = client.submit_call(SessionCall::Listen {
            local,
            backlog: 100,
            sharing,
            reservation: 0,
        });
        let listening = loop {
            self.poll();
            if let Some(answer) = client.take_answer(cookie) {
                break answer;
            }
        };
        let ServerAnswer::Listening { listener } = listening else { panic!("{listening:?}") };
        if credit > 0 {
            client.accept(encoding::listener_id(listener), AcceptorId(7), credit);
        }
        client.flush();
        let (runs, service_us) = (true, 0);
        let (open, accepted, bytes) = (Vec::new(), 0, Vec::new());
        self.apps.push(App { client, id, runs, service_us, open, accepted, bytes });
        self.poll();
        self.apps.len() - 1
    }

    fn poll(&mut self) {
        let now = self.now();
        for polled in [&mut self.peer, &mut self.shard] {
            polled.shard.poll(now).expect("the link works");
            while polled.shard.next_signal().is_some() {}
        }
    }

    /// The peer begins connections.
    fn connect(&mut self, count: usize) -> Vec<ConnId> {
        let to = SocketAddr::new(IpAddr::from([10, 0, 0, 2]), PORT);
        let conns = (0..count).map(|_| self.client.connect(to)).collect();
        self.client.flush();
        conns
    }

    /// Everything runs for a while.
    fn run(&mut self, us: u64) {
        let until = self.us + us;
        while self.us < until {
            self.us += STEP_US;
            self.poll();
            self.run_peer();
            for app in &mut self.apps {
                app.run(self.us);
            }
        }
    }

    /// Everything runs until something holds.
    #[track_caller]
    fn run_until(&mut self, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..100_000 {
            if holds(self) {
                return;
            }
            self.run(STEP_US);
        }
        panic!("it never holds: {:?}", self.counters());
    }

    fn run_peer(&mut self) {
        while let Some(event) = self.client.event() {
            match event {
                RemoteEvent::Event(Event::Connected { conn }, _) => {
                    self.connected += 1;
                    self.client.receive(conn).expect("it is there");
                }
                RemoteEvent::Event(Event::Received { conn, chunk }, _) => {
                    self.client.give_back(chunk);
                    self.client.receive(conn).expect("it is there");
                }
                RemoteEvent::Event(Event::PeerClosed { conn }, _) => {
                    self.closed_by_app.push(conn);
                    self.client.close(conn);
                }
                RemoteEvent::Event(Event::Closed { conn, reason }, _) => {
                    self.ended.insert(conn, reason);
                }
                other => panic!("{other:?}"),
            }
        }
        self.client.flush();
    }

    fn counters(&mut self) -> HandOverCounters {
        self.shard.shard.report().hand_over
    }

    fn accepted(&self) -> u64 {
        self.apps.iter().map(|app| app.accepted).sum()
    }

    fn private_used(&mut self) -> u32 {
        self.shard.shard.report().private_used
    }
}

impl App {
    fn run(&mut self, us: u64) {
        if !self.runs {
            return;
        }
        while let Some(event) = self.client.event() {
            match event {
                RemoteEvent::Event(Event::Incoming { conn, .. }, offer) => {
                    assert_eq!(offer.expect("an acceptor").acceptor, AcceptorId(7));
                    self.accepted += 1;
                    self.client.receive(conn).expect("it is there");
                    self.open.push((us + self.service_us, conn));
                }
                RemoteEvent::Event(Event::Received { chunk, conn }, _) => {
                    let from = self.bytes.len();
                    self.bytes.resize(from + chunk.len as usize, 0);
                    self.client.take_bytes(chunk, &mut self.bytes[from..]);
                    self.client.receive(conn).expect("it is there");
                }
                RemoteEvent::Event(Event::PeerClosed { .. }, _) => {}
                RemoteEvent::Event(Event::Closed { conn, .. }, _) => {
                    self.open.retain(|(_, other)| *other != conn);
                }
                other => panic!("{other:?}"),
            }
        }
        let client = &mut self.client;
        self.open.retain(|&(until, conn)| {
            if until > us {
                return true;
            }
            // It may be over already.
            let _ = client.send(conn, b"answer");
            client.close(conn);
            false
        });
        client.flush();
    }
}

#[test]
fn each_connection_is_claimed_by_one_session() {
    let mut world = World::new(HandOverSettings::default());
    for _ in 0..3 {
        world.app(100);
    }
    let conns = world.connect(60);
    world.run_until(|world| world.closed_by_app.len() == conns.len());
    let counters = world.counters();
    assert_eq!((counters.offers.offers, counters.offers.claims), (60, 60), "{counters:?}");
    assert_eq!((counters.offers.take_backs, counters.offers.late_claims), (0, 0));
    assert_eq!((world.accepted(), counters.direct), (60, 0));
    assert!(world.apps.iter().all(|app| app.accepted > 0));
    world.run(10_000);
    assert_eq!(world.private_used(), 0);
}

#[test]
fn only_acceptor_gets_connections_without_a_claim() {
    let mut world = World::new(HandOverSettings::default());
    world.app(100);
    // The second session listens, and accepts nothing.
    world.app(0);
    let conns = world.connect(20);
    world.run_until(|world| world.closed_by_app.len() == conns.len());
    let counters = world.counters();
    assert_eq!((counters.offers.final_offers, counters.offers.claims), (20, 0), "{counters:?}");
    assert_eq!((world.apps[0].accepted, world.apps[1].accepted), (20, 0));
}

#[test]
fn credit_of_the_first_session_stays_when_a_second_listens() {
    let mut world = World::new(HandOverSettings::default());
    world.app(3);
    world.apps[0].service_us = u64::MAX / 2;
    world.app(2);
    world.apps[1].service_us = u64::MAX / 2;
    let conns = world.connect(9);
    world.run_until(|world| world.connected == conns.len());
    world.run(20_000);
    assert_eq!((world.apps[0].accepted, world.apps[1].accepted), (3, 2), "others wait");
    let counters = world.counters();
    assert_eq!((counters.offers.take_backs, counters.queue.waits), (0, 0), "in the backlog");
}

#[test]
fn connections_of_a_stopped_session_are_taken_back() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1_000);
    world.app(1_000);
    world.apps[0].runs = false;
    let conns = world.connect(40);
    let claim_us = CLAIM_TIME_DEFAULT.as_micros() as u64;
    world.run(claim_us - 1_000);
    let before = world.counters();
    assert!(before.offers.claims < 40 && before.offers.take_backs == 0, "{before:?}");
    world.run(3_000);
    assert_eq!(world.closed_by_app.len(), conns.len(), "all within the claim time and 2 ms");
    let after = world.counters();
    assert_eq!(after.offers.take_backs, 40 - before.offers.claims, "{after:?}");
    assert_eq!(after.queue.dropped, 1);
    // The others need claims too: the first acceptor may enlist again.
    world.connect(10);
    world.run(3_000);
    assert_eq!(world.apps[1].accepted, 50);
    // It goes on, claims what is gone, and enlists again by that.
    world.apps[0].runs = true;
    world.run(3_000);
    let late = world.counters();
    assert_eq!(late.offers.late_claims, after.offers.take_backs);
    world.connect(40);
    world.run_until(|world| world.closed_by_app.len() == 90);
    assert!(world.apps[0].accepted > 0, "{:?}", world.counters());
    world.client.check().expect("no fault");
    world.apps.iter_mut().for_each(|app| app.client.check().expect("no fault"));
}

#[test]
fn hand_over_is_shown_with_its_acceptors_and_picks() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1_000);
    let shown = |world: &mut World| {
        let query = ServiceQuery::new(QuerySubject::Listeners, 0);
        let (now, viewer) = (world.now(), Viewer { uid: 0, sees_all: true });
        match world.shard.shard.page(now, &query, viewer).body {
            AnswerBody::Listeners(listeners) => listeners[0].clone(),
            other => panic!("{other:?}"),
        }
    };
    let alone = shown(&mut world);
    assert_eq!((alone.hand_over, alone.acceptors.len()), (None, 1));
    world.app(1_000);
    // The third listens, and accepts nothing.
    world.app(0);
    let conns = world.connect(40);
    world.run_until(|world| world.closed_by_app.len() == conns.len());
    world.apps[0].runs = false;
    world.connect(20);
    world.run(10_000);
    let (counters, shared) = (world.counters(), shown(&mut world));
    let hand_over = shared.hand_over.expect("it is shared");
    assert_eq!(hand_over.offers, counters.offers.offers);
    assert_eq!(hand_over.take_backs, counters.offers.take_backs);
    // In time; the test's polls are one of its steps apart.
    let claimed = hand_over.claim_p50.zip(hand_over.claim_p99).expect("there were claims");
    assert!(claimed.0 > Duration::ZERO && claimed.0 <= claimed.1, "{claimed:?}");
    assert!(claimed.1 <= CLAIM_TIME_DEFAULT + CLAIM_TIME_DEFAULT / 8, "{claimed:?}");
    assert_eq!((&*hand_over.scheme, hand_over.claim_time), ("tournament:2", CLAIM_TIME_DEFAULT));
    let acceptors: Vec<_> =
        shared.acceptors.iter().map(|it| (it.session, it.is_dropped, it.credit > 0)).collect();
    assert_eq!(acceptors, [(1, true, true), (2, false, true), (3, false, false)]);
    assert!(shared.acceptors[1].service_time.is_some());
    assert_eq!(hand_over.picks.len(), PICKS_REMEMBERED);
    let last = &hand_over.picks[0];
    assert_eq!((last.session, last.reason), (2, PickReason::Local), "{hand_over:?}");
    assert!(!last.is_final && last.service_time.is_some(), "{last:?}");
    assert!(hand_over.picks.is_sorted_by_key(|pick| pick.ago));
}

#[test]
fn connection_without_another_acceptor_waits() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1_000);
    world.app(1_000);
    world.apps.iter_mut().for_each(|app| app.runs = false);
    world.connect(10);
    world.run(20_000);
    let counters = world.counters();
    assert_eq!((counters.queue.dropped, world.accepted()), (2, 0), "{counters:?}");
    assert!(counters.queue.waits > 0, "{counters:?}");
    world.apps[1].runs = true;
    world.run(2_000);
    assert_eq!(world.apps[1].accepted, 10);
}

#[test]
fn reset_before_the_claim_costs_the_acceptor_nothing() {
    let mut world = World::new(HandOverSettings::default());
    world.app(4);
    world.app(4);
    world.apps.iter_mut().for_each(|app| app.runs = false);
    for _ in 0..10 {
        let conns = world.connect(8);
        let connected = world.connected + 8;
        world.run_until(|world| world.connected == connected);
        world.run(500);
        for conn in conns {
            world.client.abort(conn);
        }
        world.client.flush();
        world.run(1_000);
    }
    let counters = world.counters();
    assert_eq!(counters.offers.withdrawals, 80, "the credit comes back: {counters:?}");
    world.apps.iter_mut().for_each(|app| app.runs = true);
    world.run(2_000);
    let counters = world.counters();
    assert_eq!((counters.offers.claims, counters.offers.late_claims, world.accepted()), (0, 0, 0));
    world.connect(8);
    world.run_until(|world| world.accepted() == 8);
}

#[test]
fn closed_connection_is_handed_over_with_its_bytes() {
    let mut world = World::new(HandOverSettings::default());
    world.app(4);
    world.app(4);
    world.apps.iter_mut().for_each(|app| app.runs = false);
    let conns = world.connect(4);
    world.run_until(|world| world.connected == 4);
    world.run(500);
    for conn in conns {
        world.client.send(conn, b"request ").expect("it is there");
        world.client.shutdown(conn);
    }
    world.client.flush();
    world.run(1_000);
    // They lie in the shard's own memory, and in no application's.
    assert_eq!(world.private_used(), 4);
    world.apps.iter_mut().for_each(|app| {
        (app.runs, app.service_us) = (true, 1_000);
    });
    world.run_until(|world| world.closed_by_app.len() == 4);
    let bytes: Vec<u8> = world.apps.iter().flat_map(|app| app.bytes.clone()).collect();
    assert_eq!(bytes, b"request request request request ");
    assert_eq!((world.private_used(), world.counters().offers.claims), (0, 4));
}

#[test]
fn claim_may_ask_for_the_first_bytes() {
    let mut world = World::new(HandOverSettings::default());
    world.app(4);
    world.app(4);
    for app in &mut world.apps {
        app.runs = false;
        app.client.set_first_read(AcceptorId(7), true);
    }
    let conns = world.connect(1);
    world.run_until(|world| world.connected == 1);
    world.client.send(conns[0], b"first").expect("it is there");
    world.client.flush();
    world.run(500);
    // One dispatch claims; the shard's next poll answers with connection and bytes.
    for app in &mut world.apps {
        assert_eq!(app.client.event(), None);
        app.client.flush();
    }
    world.poll();
    let taker = world.apps.iter_mut().position(|app| app.client.has_event()).expect("one has it");
    let client = &mut world.apps[taker].client;
    let event = client.event();
    let Some(RemoteEvent::Event(Event::Incoming { conn, .. }, _)) = event else { panic!() };
    let event = client.event();
    let Some(RemoteEvent::Event(Event::Received { chunk, .. }, _)) = event else { panic!() };
    let mut bytes = [0; 5];
    client.take_bytes(chunk, &mut bytes);
    assert_eq!(&bytes, b"first");
    // The program's first read is the one that the claim asked for, and asks for no more.
    client.receive(conn).expect("it is there");
    client.flush();
    world.client.send(conns[0], b"other").expect("it is there");
    world.client.flush();
    world.run(500);
    let client = &mut world.apps[taker].client;
    assert_eq!(client.event(), None);
    client.receive(conn).expect("it is there");
    client.flush();
    world.poll();
    let event = world.apps[taker].client.event();
    assert!(matches!(event, Some(RemoteEvent::Event(Event::Received { .. }, _))), "{event:?}");
}

#[test]
fn offers_to_an_ended_session_go_to_another_at_once() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1_000);
    world.app(1_000);
    world.apps[0].runs = false;
    let conns = world.connect(40);
    world.run_until(|world| world.connected == 40);
    world.run(500);
    let now = world.now();
    let id = world.apps[0].id;
    world.shard.shard.detach(now, id);
    world.run(1_000);
    assert_eq!(world.closed_by_app.len(), conns.len());
    let counters = world.counters();
    assert!(counters.offers.orphans > 0 && counters.offers.take_backs == 0, "{counters:?}");
}

/// Connections of a session that listens alone, or is the only acceptor, are claimed when they are
/// published, although the application has read nothing; those that are offered are not.
#[test]
fn published_connections_end_with_the_session_and_offered_ones_go_on() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1_000);
    world.apps[0].runs = false;
    let alone = world.connect(10);
    world.run_until(|world| world.connected == 10);
    world.run(500);
    // The second session listens, and accepts nothing yet.
    world.app(0);
    let only = world.connect(10);
    world.run_until(|world| world.connected == 20);
    world.run(500);
    assert_eq!(world.counters().offers.final_offers, 10, "{:?}", world.counters());
    for conn in alone[..5].iter().chain(&only[..5]) {
        world.client.send(*conn, b"unread").expect("it is there");
    }
    world.run(500);
    let listener = ListenerId { index: 0, generation: 0 };
    world.apps[1].client.accept(listener, AcceptorId(7), 1_000);
    world.apps[1].client.flush();
    world.run(500);
    let offered = world.connect(20);
    world.run_until(|world| world.connected == 40);
    world.run(500);
    let claims = world.counters().offers.claims;
    let now = world.now();
    world.shard.shard.detach(now, world.apps[0].id);
    world.run(1_000);
    assert_eq!(world.apps[1].accepted, 20, "the offered ones");
    assert!(claims < 20 && world.counters().offers.orphans == 20 - claims);
    // As Linux ends those of a dead process: RST where bytes are unread, else FIN.
    let is_reset = |conn| world.ended.get(conn) == Some(&CloseReason::ResetByPeer);
    let is_closed = |conn| world.closed_by_app.contains(conn);
    assert!(alone[..5].iter().chain(&only[..5]).all(is_reset), "{:?}", world.ended);
    assert!(alone[5..].iter().chain(&only[5..]).all(is_closed), "{:?}", world.ended);
    assert!(offered.iter().all(is_closed));
    world.run(10_000);
    assert_eq!(world.private_used(), 0);
}

/// The shard's own memory is bounded for each unclaimed connection and over all; what does not fit
/// is dropped and counted, and comes again after the claim.
#[test]
fn bytes_of_unclaimed_connections_are_bounded() {
    const EACH: usize = 40 << 10;
    // The peer has a send buffer for each of its connections.
    const BUFFERS: u32 = 40;
    let mut world = World::with_private(BUFFERS, HandOverSettings::default());
    for app in [world.app(1_000), world.app(1_000)] {
        world.apps[app].runs = false;
        world.apps[app].service_us = u64::MAX / 2;
    }
    let of_one = UNOWNED_RECEIVE_BYTES / 2_048;
    let begin = |world: &mut World, count| {
        let before = world.connected;
        let conns = world.connect(count);
        world.run_until(|world| world.connected == before + count);
        for conn in conns {
            assert_eq!(world.client.send(conn, &vec![7; EACH]), Ok(EACH));
        }
        world.run(1_000);
    };
    begin(&mut world, 2);
    let used = world.private_used();
    assert!((2 * of_one..=2 * (of_one + 1)).contains(&used), "{used} buffers");
    begin(&mut world, 6);
    assert_eq!(world.private_used(), BUFFERS, "all that there are");
    let drops = world.shard.shard.server.stack().counters();
    let drops: Vec<_> = drops.drops().filter(|(_, count)| *count > 0).collect();
    assert!(!drops.is_empty(), "what does not fit is counted");
    world.apps.iter_mut().for_each(|app| app.runs = true);
    let came = |world: &World| world.apps.iter().map(|app| app.bytes.len()).sum::<usize>();
    for _ in 0..1_000 {
        // Retransmissions are due after 200 ms: in longer steps than usual.
        world.us += 2_000;
        world.run(4 * STEP_US);
        if came(&world) == 8 * EACH {
            break;
        }
    }
    assert_eq!(came(&world), 8 * EACH);
    assert_eq!((world.private_used(), world.accepted()), (0, 8));
}

#[test]
fn unclaimed_connections_are_reset_with_the_last_listener() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1_000);
    world.app(1_000);
    world.apps.iter_mut().for_each(|app| app.runs = false);
    let conns = world.connect(10);
    world.run_until(|world| world.connected == 10);
    world.run(500);
    let now = world.now();
    for app in 0..2 {
        let id = world.apps[app].id;
        world.shard.shard.detach(now, id);
    }
    world.run(1_000);
    let is_reset = |conn| world.ended.get(conn) == Some(&CloseReason::ResetByPeer);
    assert!(conns.iter().all(is_reset), "{:?}", world.ended);
    assert_eq!(world.shard.shard.report().connections, 0);
}

#[test]
fn equal_acceptors_get_equal_shares() {
    let mut world = World::new(HandOverSettings::default());
    for _ in 0..4 {
        let app = world.app(1_000);
        world.apps[app].service_us = 200;
    }
    let rounds = 250;
    for round in 1..=rounds {
        world.connect(8);
        world.run_until(|world| world.closed_by_app.len() >= round * 8);
    }
    let shares: Vec<f64> = world.apps.iter().map(|app| app.accepted as f64).collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let index = sum * sum / (shares.len() as f64 * squares);
    assert_eq!(sum, 8.0 * rounds as f64);
    assert!(index >= 0.98, "Jain's index {index}: {shares:?}");
}

#[test]
fn slow_acceptor_gets_few_connections() {
    let mut world = World::new(HandOverSettings::default());
    for app in 0..4 {
        world.app(1_000);
        world.apps[app].service_us = if app == 0 { 20_000 } else { 100 };
    }
    for round in 1..=100 {
        world.connect(8);
        world.run_until(|world| world.accepted() >= round * 8);
        world.run(500);
    }
    let slow = world.apps[0].accepted;
    assert!(slow > 0 && slow < 40, "{slow} of 800");
}

#[test]
fn settings_belong_to_the_listener_of_a_port() {
    let mut settings = ListenerSettings::default();
    settings.hand_over.claim_time = Duration::from_millis(100);
    settings.balancer.scheme = "hash".parse().expect("a scheme");
    let hand_over = HandOverSettings { of_ports: vec![(PORT, settings)], ..Default::default() };
    let mut world = World::new(hand_over);
    world.app(1_000);
    world.app(1_000);
    world.apps[0].runs = false;
    world.connect(64);
    world.run(50_000);
    let counters = world.counters();
    assert_eq!(counters.offers.take_backs, 0);
    // The hash of a flow, and not a service time, has selected.
    let claims = counters.offers.claims;
    assert!((16..48).contains(&claims), "{counters:?}");
    world.run(60_000);
    assert_eq!(world.accepted(), 64);
}

/// An acceptor that was late may come back, so another one that stops keeps no connection: what it
/// was offered is taken back, although it was the only one at that time.
#[test]
fn connection_is_not_lost_between_two_late_acceptors() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1_000);
    world.app(1_000);
    world.apps[0].runs = false;
    let conns = world.connect(20).len();
    world.run_until(|world| world.closed_by_app.len() == conns);
    assert_eq!(world.counters().queue.dropped, 1, "the first is late");
    world.apps[1].runs = false;
    let more = world.connect(10).len();
    world.run(2 * CLAIM_TIME_DEFAULT.as_micros() as u64);
    assert_eq!(world.closed_by_app.len(), conns);
    // The first goes on; the second never does.
    world.apps[0].runs = true;
    world.run_until(|world| world.closed_by_app.len() == conns + more);
    assert_eq!(world.apps[0].accepted + world.apps[1].accepted, (conns + more) as u64);
}

/// A late claim may be on its way while its connection comes without a claim, since no other
/// acceptor is left: it is refused after that, which is no fault of the server.
#[test]
fn claim_may_cross_the_assignment_to_the_only_acceptor() {
    let mut world = World::new(HandOverSettings::default());
    for app in 0..2 {
        world.app(1_000);
        world.apps[app].runs = false;
    }
    let count = 4 * CLAIMS_MAX as u64;
    world.connect(count as usize);
    world.run(CLAIM_TIME_DEFAULT.as_micros() as u64 + 2_000);
    assert_eq!(world.counters().queue.dropped, 2, "both are late");
    let (now, other) = (world.now(), world.apps[1].id);
    world.shard.shard.detach(now, other);
    let mut accepted = 0;
    for _ in 0..10 * count {
        world.us += STEP_US;
        world.poll();
        let client = &mut world.apps[0].client;
        // Other events are read after further claims were submitted.
        if let Some(RemoteEvent::Event(Event::Incoming { conn, .. }, _)) = client.event() {
            accepted += 1;
            client.close(conn);
        }
        client.flush();
    }
    let OfferCounters { final_offers, late_claims, .. } = world.counters().offers;
    assert!(final_offers > 0 && late_claims > CLAIMS_SLOW_MAX as u64, "{:?}", world.counters());
    world.apps[0].client.check().expect("no fault");
    assert_eq!(accepted, count, "{:?}", world.counters());
    let end = world.shard.shard.next_end().expect("of the other one");
    assert!((end.session, end.fault.is_none()) == (other, true), "{end:?}");
    assert!(world.shard.shard.next_end().is_none());
}

/// A record that no correct application writes, and what it is counted as.
fn claims(world: &mut World, app: usize, conn: Id, acceptor: Id) {
    let command = Command::Claim { conn, acceptor, receives: true };
    // The client knows nothing of it: its answer would be a fault of the server.
    let client = &mut world.apps[app].client;
    client.put(&Op { cookie: 7, command }.record());
    client.flush();
    world.run(STEP_US);
}

/// The next record of a session that does not run.
fn next_record(world: &mut World, app: usize) -> Option<Completion> {
    let record = world.apps[app].client.ends.events.peek(1).ok().filter(|count| *count > 0);
    record?;
    let record = world.apps[app].client.ends.events.take()?;
    world.apps[app].client.ends.events.release();
    Some(Completion::parse(&record).expect("a record"))
}

#[test]
fn hostile_claims_are_refused_and_counted() {
    let mut world = World::new(HandOverSettings::default());
    for _ in 0..3 {
        world.app(1_000);
    }
    let (hostile, victim) = (0, 1);
    (0..2).for_each(|app| world.apps[app].runs = false);
    world.connect(40);
    world.run_until(|world| world.connected == 40);
    world.run(500);
    let offered = |world: &mut World, app| {
        let mut all = Vec::new();
        while let Some(completion) = next_record(world, app) {
            match completion.event {
                Says::Available { conn, acceptor } => all.push((conn, acceptor)),
                other => panic!("{other:?}"),
            }
        }
        all
    };
    let (its, others) = (offered(&mut world, hostile), offered(&mut world, victim));
    assert!(its.len() > 2 && !others.is_empty());
    let mut refused = 0;
    let mut claimed = 0;
    let nonsense = Id { index: u32::MAX, generation: u32::MAX };
    for (conn, acceptor) in [
        // Of another's offer, in its name and in the own one.
        others[0],
        (others[0].0, its[0].1),
        (nonsense, its[0].1),
        (its[0].0, nonsense),
        (its[0].0, Id { index: 0, generation: 0 }),
        (its[0].0, Id { generation: its[0].1.generation ^ 1, ..its[0].1 }),
        // In time; then once more, which has no answer.
        its[0],
        its[0],
        its[1],
    ] {
        claims(&mut world, hostile, conn, acceptor);
        match next_record(&mut world, hostile).map(|completion| completion.event) {
            Some(Says::ClaimRefused { .. }) => refused += 1,
            Some(Says::Incoming { .. }) => claimed += 1,
            None => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((refused, claimed), (6, 2));
    let counters = world.counters();
    assert_eq!(counters.offers.repeated_claims, 1);
    assert_eq!((counters.foreign_claims, counters.offers.late_claims), (3, 3), "{counters:?}");
    // Late: the third application has them.
    world.run(20_000);
    claims(&mut world, hostile, its[2].0, its[2].1);
    let refused = next_record(&mut world, hostile).map(|completion| completion.event);
    assert_eq!(refused, Some(Says::ClaimRefused { conn: its[2].0, acceptor: its[2].1 }));
    assert_eq!(world.counters().offers.late_claims, 4);
    // After the listener is gone.
    let listener = world.apps[hostile].client.submit_call(SessionCall::Unlisten {
        listener: encoding::id_of_listener(ListenerId { index: 0, generation: 0 }),
    });
    world.run(STEP_US);
    assert_eq!(world.apps[hostile].client.take_answer(listener), Some(ServerAnswer::Done));
    claims(&mut world, hostile, its[1].0, its[1].1);
    assert!(world.counters().foreign_claims > 3);
    // The session goes on, and so do the others.
    assert!(world.shard.shard.next_end().is_none());
    let before = world.apps[2].accepted;
    world.connect(10);
    world.run(20_000);
    assert_eq!(world.apps[2].accepted, before + 10);
    assert_ne!(PoolId(world.apps[2].id.number), PoolId(0));
}

#[test]
fn acceptors_of_one_session_are_bounded() {
    let mut world = World::new(HandOverSettings::default());
    world.app(1);
    world.app(1);
    let listener = ListenerId { index: 0, generation: 0 };
    for number in 100..200 {
        world.apps[0].client.accept(listener, AcceptorId(number), 1);
    }
    world.apps[0].client.flush();
    world.run(STEP_US);
    let report = world.shard.shard.report();
    let id = world.apps[0].id;
    let counters = report.sessions.iter().find(|(its, _)| *its == id).expect("it is attached").1;
    // One of its sixteen was there before.
    assert_eq!(counters.refused, 100 - 15);
}

/// Any order of connections, resets, stops, ends and new sessions: each connection ends, at one
/// session or refused, and nothing is left.
#[test]
fn random_worlds_leave_no_connection_behind() {
    let mut seen = OfferCounters::default();
    for seed in 0..8 {
        let mut world = World::new(HandOverSettings::default());
        let mut random = RandomSequence::new(seed);
        let mut below = |count: usize| (random.next() % count as u64) as usize;
        let mut conns = Vec::new();
        world.app(50);
        for _ in 0..300 {
            let app = below(world.apps.len().max(1));
            match below(16) {
                0..7 => conns.extend(world.connect(1 + below(3))),
                7 if !conns.is_empty() => {
                    // One of the last, which may not be claimed yet.
                    let conn = conns[conns.len() - 1 - below(conns.len().min(4))];
                    world.client.abort(conn);
                    world.client.flush();
                    world.ended.insert(conn, CloseReason::Aborted);
                }
                8..10 if world.apps.len() < 5 => {
                    let app = world.app(1 + below(50) as u32);
                    world.apps[app].service_us = below(2_000) as u64;
                }
                10..13 if !world.apps.is_empty() => {
                    world.apps[app].runs = !world.apps[app].runs;
                }
                13 if !world.apps.is_empty() => {
                    let (now, app) = (world.now(), world.apps.swap_remove(app));
                    world.shard.shard.detach(now, app.id);
                }
                _ => {}
            }
            world.run(50 * (1 + below(60) as u64));
        }
        let app = world.app(10_000);
        world.apps.iter_mut().for_each(|app| app.runs = true);
        world.apps[app].service_us = 100;
        let is_over = |world: &World, conn: &ConnId| {
            world.ended.contains_key(conn) || world.closed_by_app.contains(conn)
        };
        world.run_until(|world| conns.iter().all(|conn| is_over(world, conn)));
        world.run(20_000);
        for app in &mut world.apps {
            app.client.check().expect("a correct server");
        }
        assert!(world.shard.shard.next_end().is_none_or(|end| end.fault.is_none()), "{seed}");
        assert_eq!((world.private_used(), world.shard.shard.handed_over()), (0, 0), "{seed}");
        seen += world.counters().offers;
    }
    let OfferCounters { claims, late_claims, take_backs, orphans, withdrawals, .. } = seen;
    let kinds = [claims, late_claims, take_backs, orphans, withdrawals, seen.final_offers];
    assert!(kinds.iter().all(|count| *count > 0), "{seen:?}");
}

/// The shard has answered these SYNs, and no last ACK has come.
fn half_open_connections_are_not_offered(cookies: SynCookies) {
    let mut world = World::with_cookies(64, HandOverSettings::default(), cookies);
    world.app(50);
    world.app(50);
    // Both hosts know each other.
    world.connect(1);
    world.run_until(|world| world.accepted() == 1);
    world.run(1_000);
    let before = world.counters();
    let sent = world.shard.shard.server.stack().counters().totals;
    let conns = world.connect(20);
    let now = world.now();
    world.peer.shard.poll(now).expect("the link works");
    // The SYN-ACKs wait in the link: the peer is not polled.
    for _ in 0..40 {
        world.us += STEP_US;
        let now = world.now();
        world.shard.shard.poll(now).expect("the link works");
        while world.shard.shard.next_signal().is_some() {}
        let us = world.us;
        world.apps.iter_mut().for_each(|app| app.run(us));
    }
    let totals = world.shard.shard.server.stack().counters().totals;
    let with_cookie = if cookies == SynCookies::Always { 20 } else { 0 };
    assert_eq!(totals.cookies_sent - sent.cookies_sent, with_cookie);
    assert_eq!(totals.frames_out - sent.frames_out, 20, "each SYN is answered");
    let counters = world.counters();
    assert_eq!((counters.offers, counters.queue), (before.offers, before.queue));
    assert_eq!((counters.direct, world.accepted(), world.private_used()), (0, 1, 0));
    // The last ACKs come, and each connection is offered once.
    world.run_until(|world| world.accepted() == 21);
    let after = world.counters();
    assert_eq!(after.offers.offers - before.offers.offers, conns.len() as u64);
    assert_eq!(after.offers.claims - before.offers.claims, conns.len() as u64);
}

#[test]
fn no_offer_before_establishment() {
    half_open_connections_are_not_offered(SynCookies::Never);
}

#[test]
fn no_offer_before_establishment_with_syn_cookies() {
    half_open_connections_are_not_offered(SynCookies::Always);
}
