//! What one session of a shard can use up, and what is left when sessions end.

use std::collections::HashMap;
use std::sync::Arc;

use megapipe_stack::{ConnOption, DatagramSharing, TcpState};

use super::many_sessions::{
    SIZES, TestShard, at, connects, exclusive, listens, sends, shard_and_peer,
};
use super::polled_shard::PolledShard;
use super::*;
use crate::error::PortError;
use crate::hand_over::HandOverSettings;
use crate::limits::{ROOM_DOUBLINGS_MAX, ROOM_WAIT};
use crate::policy::{
    ClientName, PolicyRefusal, PortGrants, QuotaKind, QuotaReached, Quotas, ServicePolicy,
    SessionRights, UserAccount,
};

/// Few enough that tests reach them.
const FEW: SessionLimits = SessionLimits {
    connections: 3,
    connecting: 2,
    listeners: 1,
    endpoints: 1,
    ..SessionLimits::WHOLE_SHARD
};

/// Waits until something holds.
#[track_caller]
fn eventually(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn limits_of_a_session_are_refused_and_counted() {
    let (shard, mut peer) = shard_and_peer();
    let (mut limited, id) = shard.attach(FEW);
    let (mut other, _) = shard.attach(FEW);
    limited.listen(at(80), 1, exclusive()).expect("the first");
    let refused = limited.listen(at(81), 1, exclusive()).expect_err("the second");
    assert!(refused.to_string().contains("channel.listeners"), "{refused}");
    other.listen(at(81), 1, exclusive()).expect("its first");
    limited.bind(at(6_000), DatagramSharing::default()).expect("the first");
    let refused = limited.bind(at(6_001), DatagramSharing::default()).expect_err("the second");
    assert!(refused.to_string().contains("channel.endpoints"), "{refused}");
    // Two that are not answered, since their host is not there.
    let nowhere = SocketAddr::new(IpAddr::from([10, 0, 0, 99]), 1);
    let begun = [limited.connect(nowhere), limited.connect(nowhere)];
    let third = limited.connect(nowhere);
    let reached = |kind, limit| NotBegun::Quota(QuotaReached { kind, limit });
    let why = reached(QuotaKind::ChannelConnecting, 2);
    assert_eq!(next(&mut limited), RemoteEvent::NotBegun(third, why));
    let begin = crate::ConnectStart::default();
    let refused = limited.connect_as(nowhere, Some(at(0)), begin).expect_err("the same");
    assert!(refused.to_string().contains("channel.connecting of the service"), "{refused}");
    assert_eq!(shard.counters(id).refused, 4);
    begun.into_iter().for_each(|conn| limited.abort(conn));
    // Three that are established.
    let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
    peer.accept(listener, AcceptorId(1), 9);
    peer.flush();
    let mut conns = Vec::new();
    for _ in 0..3 {
        conns.push(limited.connect(http_of_peer()));
        assert_eq!(next_event(&mut limited), Event::Connected { conn: conns[conns.len() - 1] });
    }
    let fourth = limited.connect(http_of_peer());
    let why = reached(QuotaKind::ChannelConnections, 3);
    assert_eq!(next(&mut limited), RemoteEvent::NotBegun(fourth, why));
    // One that is over makes room.
    limited.abort(conns[0]);
    let fourth = limited.connect(http_of_peer());
    assert_eq!(next_event(&mut limited), Event::Connected { conn: fourth });
}

fn http_of_peer() -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 80)
}

/// A user without other limits than one.
fn user_with(account: &Arc<UserAccount>, kind: QuotaKind, limit: u32) -> SessionLimits {
    let mut quotas = Quotas::from_each(|_| u32::MAX);
    quotas.set(kind, limit);
    let rights = SessionRights::new(Arc::clone(account), quotas, PortGrants::All);
    SessionLimits { rights: Some(Arc::new(rights)), ..SessionLimits::WHOLE_SHARD }
}

#[test]
fn quotas_of_a_user_hold_for_all_its_sessions() {
    let (shard, mut peer) = shard_and_peer();
    let account = Arc::default();
    let kinds = [QuotaKind::UserListeners, QuotaKind::UserEndpoints, QuotaKind::UserConnections];
    let [mut listens, mut binds, mut connects] =
        kinds.map(|kind| [(); 2].map(|()| shard.attach(user_with(&account, kind, 2)).0));
    let sharing = DatagramSharing::default;
    for (session, port) in listens.iter_mut().zip(80..) {
        session.listen(at(port), 1, exclusive()).expect("one of each");
    }
    for (session, port) in binds.iter_mut().zip(6_000..) {
        session.bind(at(port), sharing()).expect("one of each");
    }
    for refused in [
        listens[0].listen(at(90), 1, exclusive()).err().map(|it| it.to_string()),
        binds[1].bind(at(6_009), sharing()).err().map(|it| it.to_string()),
    ] {
        let text = refused.expect("a third");
        assert!(text.contains("quota user.") && text.contains("(limit 2)"), "{text}");
    }
    let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
    peer.accept(listener, AcceptorId(1), 9);
    peer.flush();
    let begun = [0, 1].map(|place: usize| {
        let conn = connects[place].connect(http_of_peer());
        assert_eq!(next_event(&mut connects[place]), Event::Connected { conn });
        conn
    });
    let third = connects[1].connect(http_of_peer());
    let reached = QuotaReached { kind: QuotaKind::UserConnections, limit: 2 };
    let refused = RemoteEvent::NotBegun(third, NotBegun::Quota(reached));
    assert_eq!(next(&mut connects[1]), refused);
    let reached: Vec<_> = account.take_reached().collect();
    assert_eq!(reached, [kinds[2], kinds[0], kinds[1]]);
    // What ends at one session makes room for the other.
    connects[0].abort(begun[0]);
    connects[0].flush();
    eventually(|| {
        shard.recount();
        account.count(QuotaKind::UserConnections) == 1
    });
    let third = connects[1].connect(http_of_peer());
    assert_eq!(next_event(&mut connects[1]), Event::Connected { conn: third });
    drop((listens, binds, connects));
    shard.await_sessions(0);
    for kind in QuotaKind::ALL {
        assert_eq!(account.count(*kind), 0, "{kind}");
    }
}

#[test]
fn ports_towards_a_destination_are_bounded_for_channel_and_user() {
    let (shard, mut peer) = shard_and_peer();
    let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
    peer.accept(listener, AcceptorId(1), 9);
    let elsewhere = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 81);
    let listener = peer.listen(elsewhere, 9, exclusive()).expect("a free port");
    peer.accept(listener, AcceptorId(1), 9);
    peer.flush();
    for kind in [QuotaKind::ChannelDestinationPorts, QuotaKind::UserDestinationPorts] {
        let account = Arc::default();
        let quotas = Quotas::from_each(|it| if it == kind { 3 } else { u32::MAX });
        // Two shards: this one has half of the quota, and a part of one is a whole one.
        let rights = || {
            let rights = SessionRights::new(Arc::clone(&account), quotas, PortGrants::All);
            Some(Arc::new(rights.at_shards(2)))
        };
        let attach = || SessionLimits { rights: rights(), ..SessionLimits::WHOLE_SHARD };
        let [(mut one, id), (mut other, _)] = [(); 2].map(|()| shard.attach(attach()));
        let connects = |session: &mut RemoteClient, to| {
            let conn = session.connect(to);
            assert_eq!(next_event(session), Event::Connected { conn });
            conn
        };
        let first = connects(&mut one, http_of_peer());
        connects(&mut one, http_of_peer());
        let refused = |session: &mut RemoteClient| {
            let conn = session.connect(http_of_peer());
            let reached = QuotaReached { kind, limit: 3 };
            assert_eq!(next(session), RemoteEvent::NotBegun(conn, NotBegun::Quota(reached)));
        };
        refused(&mut one);
        let begin = crate::ConnectStart::default();
        let text = one.connect_as(http_of_peer(), Some(at(0)), begin);
        let text = text.expect_err("the same").to_string();
        assert!(text.contains(&kind.to_string()), "{text}");
        connects(&mut one, elsewhere);
        let is_of_user = kind == QuotaKind::UserDestinationPorts;
        match is_of_user {
            true => refused(&mut other),
            false => {
                connects(&mut other, http_of_peer());
            }
        }
        assert_eq!(shard.counters(id).refused, 2);
        assert_eq!(account.refusals(kind), if is_of_user { 3 } else { 2 });
        let held = if is_of_user { 2 } else { 3 };
        assert_eq!(account.count(QuotaKind::UserDestinationPorts), held);
        // One that is over makes room.
        one.abort(first);
        connects(&mut one, http_of_peer());
        refused(&mut one);
        drop((one, other));
        shard.await_sessions(0);
        assert!(QuotaKind::ALL.iter().all(|kind| account.count(*kind) == 0), "{account:?}");
    }
}

/// Two sessions of a user with three connections each, and a peer.
struct ChunkWorld {
    shard: PolledShard,
    peer: PolledShard,
    server: RemoteClient,
    sessions: Vec<(RemoteClient, SessionId, Vec<ConnId>)>,
    us: u64,
}

impl ChunkWorld {
    fn new(limits: impl Fn() -> SessionLimits) -> Self {
        let (one, other) = pair(&PairConfig::default()).expect("a pair");
        let mut shard = PolledShard::new(one, 2, 0, HandOverSettings::default());
        let mut peer = PolledShard::new(other, 1, 0, HandOverSettings::default());
        let (server, _) = peer.attach();
        let sizes = SessionSizes { small_sends: 512, ..SIZES };
        let mut sessions = Vec::new();
        for _ in 0..2 {
            let (session, id) = shard.attach_with(&sizes, limits());
            sessions.push((session, id, Vec::new()));
        }
        let mut world = Self { shard, peer, server, sessions, us: 0 };
        world.connect();
        world
    }

    fn now(&self) -> megapipe_stack::Instant {
        megapipe_stack::Instant::from_micros(self.us)
    }

    fn poll(&mut self, with_peer: bool) {
        self.us += 50;
        let now = self.now();
        for polled in [&mut self.shard].into_iter().chain(with_peer.then_some(&mut self.peer)) {
            polled.shard.poll(now).expect("the link works");
            while polled.shard.next_signal().is_some() {}
        }
    }

    fn connect(&mut self) {
        let sharing = ListenSharing { flags: 0, fast_open: 0, cores: None };
        let local = http_of_peer();
        let call = SessionCall::Listen { local, backlog: 100, sharing, reservation: 0 };
        let cookie = self.server.submit_call(call);
        self.server.flush();
        let listening = loop {
            self.poll(true);
            if let Some(answer) = self.server.take_answer(cookie) {
                break answer;
            }
        };
        let ServerAnswer::Listening { listener } = listening else { panic!("{listening:?}") };
        self.server.accept(encoding::listener_id(listener), AcceptorId(7), 100);
        self.server.flush();
        for (session, _, conns) in &mut self.sessions {
            conns.extend((0..3).map(|_| session.connect(http_of_peer())));
            session.flush();
        }
        let mut connected = 0;
        for _ in 0..1_000 {
            self.poll(true);
            for (session, ..) in &mut self.sessions {
                while session.event().is_some() {
                    connected += 1;
                }
            }
        }
        assert_eq!(connected, 6);
    }

    /// The peer takes what is sent, until so many bytes of each connection have come.
    fn take(&mut self, len: usize) -> Vec<Vec<u8>> {
        let mut came: HashMap<ConnId, Vec<u8>> = HashMap::new();
        for _ in 0..20_000 {
            self.poll(true);
            // As the daemon does where a quota was reached.
            let now = self.now();
            self.shard.shard.recount(now);
            while let Some(event) = self.server.event() {
                let conn = match event {
                    RemoteEvent::Event(Event::Incoming { conn, .. }, _) => conn,
                    RemoteEvent::Event(Event::Received { conn, chunk }, _) => {
                        let mut bytes = vec![0; chunk.len as usize];
                        self.server.take_bytes(chunk, &mut bytes);
                        came.entry(conn).or_default().extend(bytes);
                        conn
                    }
                    other => panic!("{other:?}"),
                };
                self.server.receive(conn).expect("it is there");
            }
            self.server.flush();
            for (session, ..) in &mut self.sessions {
                while session.event().is_some() {}
                session.flush();
            }
            if came.values().map(Vec::len).sum::<usize>() == 6 * len {
                break;
            }
        }
        came.into_values().collect()
    }
}

/// The peer is not polled, so that what is sent stays in the stack.
#[test]
fn chunks_in_the_stack_are_bounded_and_all_bytes_arrive() {
    const WRITES: usize = 60;
    let account = Arc::<UserAccount>::default();
    let mut world = ChunkWorld::new(|| user_with(&account, QuotaKind::UserChunks, 100));
    for place in 0..2 {
        for write in 0..WRITES {
            let (session, _, conns) = &mut world.sessions[place];
            for conn in conns {
                assert!(session.send_short(*conn, &[write as u8; 10]));
            }
            session.flush();
            world.poll(false);
        }
    }
    let usage = world.shard.shard.server.stack().tcp_usage();
    assert!(usage.chunks <= 100, "{usage:?}");
    assert_eq!(account.count(QuotaKind::UserChunks), 100);
    assert!(account.refusals(QuotaKind::UserChunks) > 0);
    let sent: Vec<u8> = (0..WRITES).flat_map(|write| [write as u8; 10]).collect();
    let came = world.take(sent.len());
    let lens: Vec<_> = came.iter().map(Vec::len).collect();
    assert!(came.len() == 6 && came.iter().all(|bytes| *bytes == sent), "{lens:?}");
    let now = world.now();
    for (_, id, _) in std::mem::take(&mut world.sessions) {
        world.shard.shard.detach(now, id);
    }
    world.shard.shard.poll(now + Duration::from_secs(600)).expect("the link works");
    assert_eq!(account.count(QuotaKind::UserChunks), 0);
}

#[test]
fn lanes_of_a_channel_share_its_quotas() {
    let (shard, mut peer) = shard_and_peer();
    let account = Arc::<UserAccount>::default();
    let quotas = Quotas::from_each(|_| u32::MAX);
    let rights = Arc::new(SessionRights::new(Arc::clone(&account), quotas, PortGrants::All));
    let mut lanes = [0, 1].map(|number| {
        let rights = Some(Arc::clone(&rights));
        let whole = SessionLimits::WHOLE_SHARD;
        let limits = SessionLimits { connections: 2, endpoints: 1, shard: number, rights, ..whole };
        shard.attach(limits).0
    });
    let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
    peer.accept(listener, AcceptorId(1), 9);
    peer.flush();
    for lane in &mut lanes {
        let conn = lane.connect(http_of_peer());
        assert_eq!(next_event(lane), Event::Connected { conn });
    }
    for lane in &mut lanes {
        let third = lane.connect(http_of_peer());
        let reached = QuotaReached { kind: QuotaKind::ChannelConnections, limit: 2 };
        assert_eq!(next(lane), RemoteEvent::NotBegun(third, NotBegun::Quota(reached)));
    }
    lanes[0].bind(at(6_000), DatagramSharing::default()).expect("the first");
    let refused = lanes[1].bind(at(6_001), DatagramSharing::default()).expect_err("the second");
    assert!(refused.to_string().contains("channel.endpoints"), "{refused}");
    // A listener is on both, and counts once.
    for (lane, port) in lanes.iter_mut().zip(80..) {
        lane.listen(at(port), 1, exclusive()).expect("a free port");
    }
    assert_eq!(account.count(QuotaKind::UserListeners), 1);
    assert_eq!(account.count(QuotaKind::UserConnections), 2);
    drop((lanes, rights));
    shard.await_sessions(0);
    assert!(QuotaKind::ALL.iter().all(|kind| account.count(*kind) == 0), "{account:?}");
}

#[test]
fn accepted_connections_beyond_the_quota_of_a_user_wait() {
    let (shard, mut peer) = shard_and_peer();
    let account = Arc::default();
    let limits = || user_with(&account, QuotaKind::UserConnections, 1);
    let (mut one, _) = shard.attach(limits());
    let (mut other, _) = shard.attach(limits());
    listens(&mut one, 80, 1);
    let (_, held) = connects(&mut peer, &mut one, 80);
    listens(&mut other, 81, 1);
    let waiting = peer.connect(at(81));
    while next_event(&mut peer) != (Event::Connected { conn: waiting }) {}
    other.call(SessionCall::Sync).expect("it lives");
    assert_eq!(other.event(), None, "its user has a connection");
    one.abort(held);
    one.flush();
    let start = Instant::now();
    let came = loop {
        shard.recount();
        if let Some(event) = other.event() {
            break event;
        }
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(came, RemoteEvent::Event(Event::Incoming { .. }, _)), "{came:?}");
}

#[test]
fn ports_that_the_policy_does_not_give_are_refused() {
    let (shard, _peer) = shard_and_peer();
    let name = ClientName { uid: 1_000, gid: 1_000, groups: &[] };
    let its = ServicePolicy::default().for_client(&name, 0);
    let rights = Arc::new(SessionRights::new(Arc::default(), its.quotas, its.grants));
    let limits = SessionLimits { rights: Some(rights), ..SessionLimits::WHOLE_SHARD };
    let (mut session, id) = shard.attach(limits);
    let refused = session.listen(at(80), 1, exclusive()).expect_err("a privileged port");
    assert!(refused.to_string().contains("no rule gives port 80"), "{refused}");
    assert!(matches!(refused, PortError::Policy(PolicyRefusal::Port(_))));
    let refused = session.bind(at(53), DatagramSharing::default()).expect_err("the same");
    assert!(refused.to_string().contains("port 53"), "{refused}");
    let begin = crate::ConnectStart::default();
    let refused = session.connect_as(http_of_peer(), Some(at(22)), begin).expect_err("the same");
    assert!(refused.to_string().contains("port 22"), "{refused}");
    assert_eq!(shard.counters(id).refused, 3);
    session.listen(at(8_080), 1, exclusive()).expect("every user has it");
    session.connect_as(http_of_peer(), Some(at(0)), begin).expect("any port");
}

#[test]
fn backlog_is_cut_to_the_quota() {
    let (shard, mut peer) = shard_and_peer();
    let (mut session, _) = shard.attach(SessionLimits { waiting: 2, ..SessionLimits::WHOLE_SHARD });
    session.listen(at(80), 100, exclusive()).expect("a free port");
    // As on Linux: one more than the backlog.
    for _ in 0..3 {
        let conn = peer.connect(at(80));
        assert_eq!(next_event(&mut peer), Event::Connected { conn });
        // Once a byte is acknowledged, so is the handshake: the connection is in the queue.
        peer.send(conn, b"x").expect("it is open");
        peer.await_delivery(conn).expect("it is open");
        let event = next_event(&mut peer);
        assert!(matches!(event, Event::Acked { .. }), "{event:?}");
    }
    // A SYN is dropped while the queue is full.
    peer.connect(at(80));
    peer.flush();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(peer.event(), None);
}

#[test]
fn connections_beyond_the_limit_stay_in_the_backlog() {
    let (shard, mut peer) = shard_and_peer();
    let (mut limited, _) = shard.attach(FEW);
    listens(&mut limited, 80, 100);
    let conns: Vec<_> = (0..5).map(|_| peer.connect(at(80))).collect();
    peer.flush();
    let mut theirs = Vec::new();
    for _ in 0..3 {
        let Event::Incoming { conn, .. } = next_event(&mut limited) else { panic!() };
        theirs.push(conn);
    }
    for _ in conns {
        assert!(matches!(next_event(&mut peer), Event::Connected { .. }));
    }
    limited.call(SessionCall::Sync).expect("it lives");
    assert_eq!(limited.event(), None, "two wait");
    for conn in theirs {
        limited.abort(conn);
        limited.flush();
        if let Some(RemoteEvent::Event(event, _)) = limited.event() {
            assert!(matches!(event, Event::Incoming { .. }), "{event:?}");
        }
    }
    eventually(|| {
        while limited.event().is_some() {}
        shard.report().connections >= 2
    });
}

#[test]
fn parked_events_are_read_in_order() {
    let (shard, mut peer) = shard_and_peer();
    let sizes = SessionSizes { ops: 1 << 6, events: 1 << 7, ..SIZES };
    let (mut slow, id) = shard.attach_sized(SessionLimits::WHOLE_SHARD, sizes);
    let (mut honest, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut slow, 80, 400);
    listens(&mut honest, 81, 1);
    // Many more events than its ring has room for. They stop nothing for the other session.
    let conns: Vec<_> = (0..300).map(|_| peer.connect(at(80))).collect();
    peer.flush();
    eventually(|| shard.counters(id).parked_max > 200);
    for _ in &conns {
        assert!(matches!(next_event(&mut peer), Event::Connected { .. }));
    }
    let (ours, theirs) = connects(&mut peer, &mut honest, 81);
    sends((&mut peer, ours), (&mut honest, theirs), b"past the parked ones");
    for conn in &conns {
        peer.abort(*conn);
    }
    peer.flush();
    // Each connection begins before it ends, and none is missing.
    let mut open = HashSet::new();
    let mut ended = 0;
    while ended < conns.len() {
        match next_event(&mut slow) {
            Event::Incoming { conn, .. } => assert!(open.insert((conn.index, conn.generation))),
            Event::Closed { conn, .. } => {
                assert!(open.remove(&(conn.index, conn.generation)));
                ended += 1;
            }
            event => panic!("{event:?}"),
        }
    }
    // It can go on.
    let (ours, theirs) = connects(&mut peer, &mut slow, 80);
    sends((&mut peer, ours), (&mut slow, theirs), b"to the slow one");
}

#[test]
fn hostile_neighbour_does_not_stop_an_honest_session() {
    let (shard, mut peer) = shard_and_peer();
    let (mut honest, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut honest, 80, 1);
    let (ours, theirs) = connects(&mut peer, &mut honest, 80);
    let (mut hostile, id) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut hostile, 81, 8);
    let its: Vec<_> = (0..8).map(|_| connects(&mut peer, &mut hostile, 81)).collect();
    let own = encoding::id_of(hostile.named(its[0].1).expect("it is connected"));
    let foreign = Id { index: own.index ^ 1, generation: 77 };
    for round in 0..200_u32 {
        // It never reads, never returns a buffer, and submits as much as its ring takes.
        for (_, conn) in &its {
            let _ = hostile.receive(*conn);
        }
        while hostile.ends.ops.reserve(1) != Ok(0) {
            let conn = if round % 2 == 0 { own } else { foreign };
            let command = Command::Call(SessionCall::Info { conn });
            let record = Op { cookie: 1 << 40, command }.record();
            if hostile.ends.ops.put(&record).is_err() {
                break;
            }
        }
        hostile.ends.ops.commit();
        hostile.wake_server();
        for (conn, _) in &its {
            let _ = peer.send(*conn, b"text that is never read");
        }
        peer.flush();
        sends((&mut peer, ours), (&mut honest, theirs), b"question");
        sends((&mut honest, theirs), (&mut peer, ours), b"answer");
    }
    assert!(shard.report().sessions.iter().any(|(session, _)| *session == id));
}

/// Such a shard would busy-loop on a core that others need, as long as the session likes.
#[test]
fn shard_sleeps_while_a_session_reads_no_events() {
    let (link, _other) = pair(&PairConfig::default()).expect("a pair");
    let mut polled = PolledShard::new(link, 1, 0, HandOverSettings::default());
    let sizes = SessionSizes { ops: 1 << 9, events: 1 << 7, ..SIZES };
    let (mut silent, id) = polled.attach_with(&sizes, SessionLimits::WHOLE_SHARD);
    let mut us = 1_000;
    let mut poll = |polled: &mut PolledShard| {
        us += 10;
        let now = megapipe_stack::Instant::from_micros(us);
        polled.shard.poll(now).expect("a link");
        while polled.shard.next_signal().is_some() {}
        (polled.shard.has_ops_to_take(), polled.shard.patience(now))
    };
    let counters = |polled: &mut PolledShard| {
        let sessions = polled.shard.report().sessions;
        sessions.into_iter().find(|(its, _)| *its == id).expect("it lives").1
    };
    let read_all = |silent: &mut RemoteClient| {
        silent.ends.events.peek(sizes.events).expect("a correct server");
        while silent.ends.events.take().is_some() {}
        silent.ends.events.release();
    };
    let longest = ROOM_WAIT * (1 << ROOM_DOUBLINGS_MAX);
    // Each call has one answer: the ring of events is full, and nothing is parked.
    let calls = sizes.events + 8;
    for _ in 0..calls {
        silent.submit_call(SessionCall::Sync);
    }
    silent.flush();
    assert!(poll(&mut polled).0, "there is room for answers");
    let is_blocked = (0..2 * sizes.events).any(|_| !poll(&mut polled).0);
    let (ops, parked) = (counters(&mut polled).ops, counters(&mut polled).parked_max);
    assert!(is_blocked && ops < u64::from(calls) && parked == 0, "{ops} operations, {parked}");
    let (_, patience) = poll(&mut polled);
    assert!(patience.is_some_and(|it| it <= longest), "{patience:?}");
    read_all(&mut silent);
    let goes_on = (0..2 * sizes.events).any(|_| poll(&mut polled) == (false, None));
    assert!(goes_on && counters(&mut polled).ops == u64::from(calls));
    // Refused connects have more events than room: some are parked, and operations wait.
    read_all(&mut silent);
    let connects = 3 * sizes.events;
    for _ in 0..connects {
        silent.connect(SocketAddr::from(([10, 0, 0, 1], 9)));
    }
    silent.flush();
    let is_parked = (0..8 * sizes.events).any(|_| {
        poll(&mut polled);
        counters(&mut polled).parked_max > 0
    });
    assert!(is_parked);
    silent.submit_call(SessionCall::Sync);
    silent.flush();
    let (has_ops, patience) = poll(&mut polled);
    assert!(!has_ops && patience.is_some_and(|it| it <= longest), "{patience:?}");
    let all = u64::from(calls + connects + 1);
    assert!(counters(&mut polled).ops < all, "operations wait");
    let goes_on = (0..100 * sizes.events).any(|_| {
        read_all(&mut silent);
        poll(&mut polled);
        counters(&mut polled).ops == all
    });
    assert!(goes_on, "{:?}", counters(&mut polled));
}

/// Each ring wakes the shard, which finds nothing to do.
#[test]
fn doorbell_without_end_does_not_stop_others() {
    let (shard, mut peer) = shard_and_peer();
    let (mut honest, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut honest, 80, 1);
    let (ours, theirs) = connects(&mut peer, &mut honest, 80);
    let (hostile, id) = shard.attach(SessionLimits::WHOLE_SHARD);
    let mut rings = 0;
    for _ in 0..200 {
        while rings < 1_000_000 && rustix::io::write(hostile.wait_fd(), &[1; 8]).is_ok() {
            rings += 1;
        }
        sends((&mut peer, ours), (&mut honest, theirs), b"question");
        sends((&mut honest, theirs), (&mut peer, ours), b"answer");
    }
    assert!(rings > 200, "the shard reads its bells: {rings}");
    let counters = shard.counters(id);
    assert_eq!((counters.ops, counters.events), (0, 0), "nothing came of it");
}

#[test]
fn sessions_of_one_user_share_a_listener() {
    let (shard, mut peer) = shard_and_peer();
    let limits = |user| SessionLimits { user, ..SessionLimits::WHOLE_SHARD };
    let (mut one, _) = shard.attach(limits(7));
    let (mut two, _) = shard.attach(limits(7));
    let (mut stranger, _) = shard.attach(limits(8));
    for session in [&mut one, &mut two] {
        let listener = session.listen(at(80), 100, Sharing::default()).expect("both may");
        session.accept(listener, AcceptorId(3), 10);
        session.flush();
    }
    stranger.listen(at(80), 100, Sharing::default()).expect_err("another user");
    two.listen(at(80), 100, exclusive()).expect_err("it has it already");
    two.call(SessionCall::Sync).expect("it lives");
    one.call(SessionCall::Sync).expect("it lives");
    // The same number at two sessions is two acceptors.
    let mut accepted = [0, 0];
    for _ in 0..6 {
        let ours = peer.connect(at(80));
        assert_eq!(next_event(&mut peer), Event::Connected { conn: ours });
        let mut sessions = [&mut one, &mut two];
        let start = Instant::now();
        let (taker, theirs) = loop {
            let taken = sessions.iter_mut().enumerate().find_map(|(index, session)| {
                session.flush();
                Some((index, session.event()?))
            });
            if let Some((index, RemoteEvent::Event(Event::Incoming { conn, .. }, _))) = taken {
                break (index, conn);
            }
            assert!(start.elapsed() < PATIENCE && taken.is_none(), "{taken:?}");
            std::thread::yield_now();
        };
        accepted[taker] += 1;
        sends((&mut peer, ours), (sessions[taker], theirs), b"to one of them");
        sends((sessions[taker], theirs), (&mut peer, ours), b"answer");
    }
    // What is left of its credit goes with it.
    assert_eq!(one.event(), None);
    drop(one);
    shard.next_end();
    shard.await_sessions(2);
    for _ in accepted[1]..10 {
        connects(&mut peer, &mut two, 80);
    }
    let waiting = peer.connect(at(80));
    while next_event(&mut peer) != (Event::Connected { conn: waiting }) {}
    two.call(SessionCall::Sync).expect("it lives");
    assert_eq!(two.event(), None, "it has no credit left");
}

#[test]
fn bytes_before_the_accept_move_to_the_session() {
    let (shard, mut peer) = shard_and_peer();
    let (mut session, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    let listener = session.listen(at(80), 100, exclusive()).expect("a free port");
    let ours = peer.connect(at(80));
    assert_eq!(next_event(&mut peer), Event::Connected { conn: ours });
    let text: Vec<u8> = (0..5_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(peer.send(ours, &text), Ok(5_000));
    peer.flush();
    eventually(|| shard.report().private_used >= 3);
    session.accept(listener, AcceptorId(7), 1);
    session.flush();
    let Event::Incoming { conn, .. } = next_event(&mut session) else { panic!() };
    let mut came = Vec::new();
    while came.len() < text.len() {
        session.receive(conn).unwrap();
        session.flush();
        let Event::Received { chunk, .. } = next_event(&mut session) else { panic!() };
        let from = came.len();
        came.resize(from + chunk.len as usize, 0);
        session.take_bytes(chunk, &mut came[from..]);
    }
    assert!(came == text);
    assert_eq!(shard.report().private_used, 0);
    sends((&mut peer, ours), (&mut session, conn), b"in its own memory");
}

#[test]
fn unread_bytes_of_an_ended_session_reset_their_connection() {
    let (shard, mut peer) = shard_and_peer();
    let (mut session, id) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut session, 80, 2);
    let (unread, its) = connects(&mut peer, &mut session, 80);
    let (read, other) = connects(&mut peer, &mut session, 80);
    sends((&mut peer, read), (&mut session, other), b"read");
    assert_eq!(session.event(), None, "the ring learns that all was read");
    session.receive(its).unwrap();
    session.flush();
    let before = shard.counters(id).events;
    peer.send(unread, b"published, and not read").unwrap();
    peer.flush();
    eventually(|| shard.counters(id).events > before);
    drop(session);
    assert_eq!(shard.next_end().fault, None);
    peer.receive(unread).unwrap();
    peer.receive(read).unwrap();
    let mut seen = [next_event(&mut peer), next_event(&mut peer)];
    seen.sort_by_key(|event| matches!(event, Event::Closed { .. }));
    let reset = Event::Closed { conn: unread, reason: CloseReason::ResetByPeer };
    assert_eq!(seen, [Event::PeerClosed { conn: read }, reset]);
}

/// A session that ends, and a peer of which it has a connection for each case. Returns whether the
/// peer saw a reset instead of the bytes and a FIN.
fn ends_seen_by_peer(
    shard: &TestShard,
    peer: &mut RemoteClient,
    (mut session, conns): (RemoteClient, Vec<(ConnId, ConnId)>),
) -> Vec<bool> {
    for (_, its) in &conns {
        session.send(*its, b"last words").unwrap();
    }
    session.flush();
    session.call(SessionCall::Sync).expect("it lives");
    drop(session);
    assert_eq!(shard.next_end().fault, None);
    let mut are_reset = vec![None; conns.len()];
    conns.iter().for_each(|(ours, _)| peer.receive(*ours).unwrap());
    peer.flush();
    while are_reset.contains(&None) {
        let of = |conn| conns.iter().position(|(ours, _)| *ours == conn).expect("one of them");
        match next_event(peer) {
            Event::Received { chunk, conn } => {
                peer.give_back(chunk);
                peer.receive(conn).unwrap();
                peer.flush();
            }
            Event::PeerClosed { conn } => are_reset[of(conn)] = Some(false),
            // The reset came before the read that was asked for: the bytes follow, and the end.
            Event::Broken { reason: CloseReason::ResetByPeer, .. } => {}
            Event::Closed { conn, reason: CloseReason::ResetByPeer } => {
                are_reset[of(conn)] = Some(true);
            }
            event => panic!("{event:?}"),
        }
    }
    are_reset.into_iter().flatten().collect()
}

#[test]
fn linger_of_zero_resets_at_the_end_of_the_session() {
    let (shard, mut peer) = shard_and_peer();
    let (mut session, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut session, 80, 3);
    let mut conns: Vec<_> = (0..3).map(|_| connects(&mut peer, &mut session, 80)).collect();
    session.set_reset_on_close(conns[0].1, true).expect("it is there");
    session.set_reset_on_close(conns[1].1, true).expect("it is there");
    session.set_reset_on_close(conns[1].1, false).expect("it is there");
    // And of connections that the session has begun.
    let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
    peer.accept(listener, AcceptorId(1), 9);
    peer.flush();
    let cases =
        [(None, true, true), (None, false, false), (Some(at(0)), true, true), (None, false, true)];
    for (local, resets_on_close, resets_after_all) in cases {
        let begin = crate::ConnectStart { resets_on_close, ..Default::default() };
        let its = session.connect_as(http_of_peer(), local, begin).expect("a free port");
        if resets_after_all != resets_on_close {
            // Before the daemon has named it.
            session.set_reset_on_close(its, true).expect("it begins");
        }
        assert_eq!(next_event(&mut session), Event::Connected { conn: its });
        let Event::Incoming { conn: ours, .. } = next_event(&mut peer) else { panic!() };
        conns.push((ours, its));
    }
    let seen = ends_seen_by_peer(&shard, &mut peer, (session, conns));
    assert_eq!(seen, [true, false, false, true, false, true, true]);
}

/// An older daemon would end the session of a client that writes records which it does not know.
#[test]
fn older_daemon_gets_no_record_of_resets() {
    let (shard, mut peer) = shard_and_peer();
    let (mut session, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    session.knows_resets = false;
    listens(&mut session, 80, 1);
    let mut conns = vec![connects(&mut peer, &mut session, 80)];
    session.set_reset_on_close(conns[0].1, true).expect("it is there");
    let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
    peer.accept(listener, AcceptorId(1), 9);
    peer.flush();
    for local in [None, Some(at(0))] {
        let begin = crate::ConnectStart { resets_on_close: true, ..Default::default() };
        let its = session.connect_as(http_of_peer(), local, begin).expect("a free port");
        assert_eq!(next_event(&mut session), Event::Connected { conn: its });
        let Event::Incoming { conn: ours, .. } = next_event(&mut peer) else { panic!() };
        conns.push((ours, its));
    }
    assert_eq!(ends_seen_by_peer(&shard, &mut peer, (session, conns)), [false; 3]);
}

/// What holds from the first segment on goes with the record that begins to connect: the program
/// does not wait for the daemon. One of an older version is called instead.
#[test]
fn options_of_a_connection_that_begins_need_no_answer() {
    for knows_connect_flags in [true, false] {
        let (shard, mut peer) = shard_and_peer();
        let (mut session, _) = shard.attach(SessionLimits::WHOLE_SHARD);
        session.knows_connect_flags = knows_connect_flags;
        let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
        peer.accept(listener, AcceptorId(1), 9);
        peer.flush();
        for nodelay in [Some(false), Some(true), None] {
            let begin = crate::ConnectStart { nodelay, ..Default::default() };
            let last_call = session.last_call;
            let its = session.connect_as(http_of_peer(), None, begin).expect("a free port");
            let waits = nodelay.is_some() && !knows_connect_flags;
            assert_eq!(session.last_call != last_call, waits, "{nodelay:?}");
            assert_eq!(next_event(&mut session), Event::Connected { conn: its });
            assert!(matches!(next_event(&mut peer), Event::Incoming { .. }));
        }
    }
}

/// A new connection's event has our address, so that no call asks for it; and what came before a
/// reset is kept until the program reads it. A client of an older version knows neither: it asks,
/// and the rest is lost.
#[test]
fn events_of_a_connection_are_whole_for_a_client_that_reads_them() {
    for (knows_event_details, has_end) in
        [(true, false), (true, true), (false, false), (false, true)]
    {
        let (shard, mut peer) = shard_and_peer();
        let limits = SessionLimits { knows_event_details, ..SessionLimits::WHOLE_SHARD };
        let (mut session, _) = shard.attach(limits);
        let listener = peer.listen(http_of_peer(), 9, exclusive()).expect("a free port");
        peer.accept(listener, AcceptorId(1), 9);
        peer.flush();
        let conn = session.connect(http_of_peer());
        assert_eq!(next_event(&mut session), Event::Connected { conn });
        let Event::Incoming { conn: ours, remote, .. } = next_event(&mut peer) else { panic!() };
        let last_call = session.last_call;
        assert_eq!(session.addresses(conn), Some((remote, http_of_peer())));
        assert_eq!(session.last_call != last_call, !knows_event_details);
        assert_eq!(peer.send(ours, &[7; 3_000]), Ok(3_000));
        peer.flush();
        eventually(|| session.info(conn).is_some_and(|info| info.unread_bytes == 3_000));
        if has_end {
            peer.shutdown(ours);
            peer.flush();
            eventually(|| session.info(conn).is_some_and(|it| it.state == TcpState::CloseWait));
        }
        peer.abort(ours);
        peer.flush();
        let reason = CloseReason::ResetByPeer;
        if knows_event_details {
            let broken = Event::Broken { conn, reason, is_whole: has_end };
            assert_eq!(next_event(&mut session), broken);
            assert_eq!(session.send(conn, b"late"), Err(OperationError::Closing));
            assert_eq!(session.info(conn).map(|info| info.unread_bytes), Some(3_000));
            let (bytes, ends) = read_to_end(&mut session, conn);
            assert_eq!(bytes, [7; 3_000]);
            let finished = Event::Closed { conn, reason: CloseReason::Finished };
            match has_end {
                true => assert_eq!(ends, [Event::PeerClosed { conn }, finished]),
                false => assert_eq!(ends, [Event::Closed { conn, reason }]),
            }
        } else {
            // No end in order: bytes are missing.
            assert_eq!(next_event(&mut session), Event::Closed { conn, reason });
        }
        assert_eq!(session.receive(conn), Err(OperationError::Unknown));
    }
}

/// The bytes of a connection, and the events behind them up to `Closed`.
fn read_to_end(session: &mut RemoteClient, conn: ConnId) -> (Vec<u8>, Vec<Event>) {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    loop {
        session.receive(conn).expect("it is not closed");
        session.flush();
        match next_event(session) {
            Event::Received { chunk, .. } => {
                let from = bytes.len();
                bytes.resize(from + chunk.len as usize, 0);
                session.take_bytes(chunk, &mut bytes[from..]);
            }
            event => {
                ends.push(event);
                if let Event::Closed { .. } = event {
                    return (bytes, ends);
                }
            }
        }
    }
}

/// A peer that reads nothing keeps the memory of sessions that have ended: it counts for their user
/// until its last byte is acknowledged, and the quota bounds how many there are.
#[test]
fn ended_sessions_that_still_send_are_bounded_for_a_user() {
    let (shard, mut peer) = shard_and_peer();
    let account = Arc::<UserAccount>::default();
    let mut quotas = Quotas::from_each(|_| u32::MAX);
    quotas.set(QuotaKind::UserEndedChannels, 1);
    let mut ours = Vec::new();
    for (port, memory) in [(80, 7), (81, 5)] {
        let rights = SessionRights::new(Arc::clone(&account), quotas, PortGrants::All);
        let rights = Some(Arc::new(rights.with_memory(memory)));
        let limits = SessionLimits { rights, ..SessionLimits::WHOLE_SHARD };
        let (mut session, _) =
            shard.attach_sized(limits, SessionSizes { large_sends: 64, ..SIZES });
        listens(&mut session, port, 1);
        let (conn, its) = connects(&mut peer, &mut session, port);
        // More than the peer's window.
        session.set_option(its, ConnOption::SendBuffer(4 << 20)).expect("a size");
        assert_eq!(session.send(its, &vec![7; 2 << 20]), Ok(2 << 20));
        session.flush();
        session.call(SessionCall::Sync).expect("it lives");
        ours.push(conn);
        drop(session);
        assert_eq!(shard.next_end().fault, None);
    }
    let of = |kind| account.count(kind);
    let start = Instant::now();
    while of(QuotaKind::UserMemory) != 7 {
        assert!(start.elapsed() < PATIENCE, "{account:?} {:?}", shard.report());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(of(QuotaKind::UserEndedChannels), 1);
    assert_eq!(account.take_reached().collect::<Vec<_>>(), [QuotaKind::UserEndedChannels]);
    assert_eq!(of(QuotaKind::UserListeners), 0, "everything else is back");
    // The second one was reset. The first one's bytes arrive, then its FIN.
    let reset = Event::Closed { conn: ours[1], reason: CloseReason::ResetByPeer };
    for end in [reset, Event::PeerClosed { conn: ours[0] }] {
        let conn = if end == reset { ours[1] } else { ours[0] };
        peer.receive(conn).unwrap();
        peer.flush();
        loop {
            match next_event(&mut peer) {
                Event::Received { chunk, .. } => {
                    peer.give_back(chunk);
                    peer.receive(conn).unwrap();
                    peer.flush();
                }
                Event::Broken { .. } => {}
                event => break assert_eq!(event, end),
            }
        }
    }
    eventually(|| of(QuotaKind::UserMemory) == 0 && of(QuotaKind::UserEndedChannels) == 0);
}

#[test]
fn thousand_sessions_leave_nothing_behind() {
    let (shard, mut peer) = shard_and_peer();
    let (mut honest, first) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut honest, 80, 1);
    let (ours, theirs) = connects(&mut peer, &mut honest, 80);
    let sizes = SessionSizes { ops: 1 << 6, events: 1 << 7, receive_buffers: 8, ..SIZES };
    let mut numbers = HashSet::from([first.number]);
    for round in 0..1_000 {
        let (mut session, id) = shard.attach_sized(FEW, sizes);
        numbers.insert(id.number);
        listens(&mut session, 81, 3);
        session.bind(at(6_000), DatagramSharing::default()).expect("a free port");
        let (conn, its) = connects(&mut peer, &mut session, 81);
        session.send(its, b"last words").unwrap();
        match round % 3 {
            0 => shard.detach(id),
            1 => session.put(&Record::default()),
            _ => {}
        }
        session.flush();
        drop(session);
        assert_eq!(shard.next_end().session, id);
        peer.abort(conn);
        peer.flush();
        while peer.event().is_some() {}
    }
    let report = shard.await_sessions(1);
    assert_eq!((report.draining, report.private_used, report.connections), (0, 0, 1));
    assert!(numbers.len() < 100, "numbers are used again: {}", numbers.len());
    sends((&mut peer, ours), (&mut honest, theirs), b"still there");
}

#[test]
fn idle_sessions_are_not_polled() {
    let (shard, mut peer) = shard_and_peer();
    let sizes = SessionSizes { ops: 1 << 6, events: 1 << 7, receive_buffers: 8, ..SIZES };
    let mut sessions: Vec<_> =
        (0..100).map(|_| shard.attach_sized(SessionLimits::WHOLE_SHARD, sizes).0).collect();
    listens(&mut sessions[50], 80, 1);
    let (ours, theirs) = connects(&mut peer, &mut sessions[50], 80);
    for _ in 0..200 {
        sends((&mut peer, ours), (&mut sessions[50], theirs), b"question");
        sends((&mut sessions[50], theirs), (&mut peer, ours), b"answer");
    }
    eventually(|| shard.report().active <= crate::limits::ACTIVE_ALWAYS);
    // Each is heard when it rings.
    for session in &mut sessions {
        session.call(SessionCall::Sync).expect("it lives");
    }
}

#[test]
fn cpu_time_is_charged_to_the_session_that_works() {
    let (shard, mut peer) = shard_and_peer();
    let (mut busy, busy_id) = shard.attach(SessionLimits::WHOLE_SHARD);
    let (_idle, idle_id) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut busy, 80, 1);
    let (ours, theirs) = connects(&mut peer, &mut busy, 80);
    eventually(|| {
        sends((&mut peer, ours), (&mut busy, theirs), b"question");
        shard.counters(busy_id).cpu_ns > 0
    });
    assert_eq!(shard.counters(idle_id).cpu_ns, 0);
}
