//! What a shard shows to processes that ask.

use megapipe_stack::{DatagramSharing, TcpState};

use super::many_sessions::{TestShard, at, connects, listens, shard_and_peer};
use super::*;
use crate::limits::SOCKETS_PER_PAGE;
use crate::observe::{
    AnswerBody, QuerySubject, ServiceListener, ServiceQuery, ServiceSession, ServiceSocket,
    SocketState, Viewer,
};

const ROOT: Viewer = Viewer { uid: 0, sees_all: true };

const fn user(uid: u32) -> Viewer {
    Viewer { uid, sees_all: false }
}

fn limits(user: u32, key: u64) -> SessionLimits {
    SessionLimits { user, key, ..SessionLimits::WHOLE_SHARD }
}

/// All pages of a listing, and how many there were.
fn pages(shard: &TestShard, subject: QuerySubject, viewer: Viewer) -> (Vec<AnswerBody>, usize) {
    let (mut bodies, mut from) = (Vec::new(), Some(0));
    while let Some(place) = from {
        let query = ServiceQuery { from: place, ..ServiceQuery::new(subject, 0) };
        let page = shard.page(query, viewer);
        assert!(page.next.is_none_or(|next| next > place), "it goes on");
        from = page.next;
        bodies.push(page.body);
    }
    let count = bodies.len();
    (bodies, count)
}

fn sockets(shard: &TestShard, viewer: Viewer) -> Vec<ServiceSocket> {
    let bodies = pages(shard, QuerySubject::Sockets, viewer).0.into_iter();
    let sockets = bodies.map(|body| match body {
        AnswerBody::Sockets(sockets) => sockets,
        other => panic!("{other:?}"),
    });
    sockets.flatten().collect()
}

fn shown_sessions(shard: &TestShard, viewer: Viewer) -> Vec<ServiceSession> {
    let bodies = pages(shard, QuerySubject::Sessions, viewer).0.into_iter();
    let sessions = bodies.map(|body| match body {
        AnswerBody::Sessions(sessions) => sessions,
        other => panic!("{other:?}"),
    });
    sessions.flatten().collect()
}

fn listeners(shard: &TestShard, viewer: Viewer) -> Vec<ServiceListener> {
    let bodies = pages(shard, QuerySubject::Listeners, viewer).0.into_iter();
    let listeners = bodies.map(|body| match body {
        AnswerBody::Listeners(listeners) => listeners,
        other => panic!("{other:?}"),
    });
    listeners.flatten().collect()
}

#[test]
fn users_see_their_own_sockets_and_root_sees_all() {
    let (shard, mut peer) = shard_and_peer();
    let (mut one, _) = shard.attach(limits(1_000, 11));
    let (mut two, _) = shard.attach(limits(2_000, 22));
    listens(&mut one, 80, 4);
    listens(&mut two, 81, 4);
    for port in [80, 81] {
        peer.connect(at(port));
        peer.flush();
    }
    for session in [&mut one, &mut two] {
        while !matches!(next_event(session), Event::Incoming { .. }) {}
    }
    let ports = |viewer| {
        let shown = sockets(&shard, viewer);
        let mut shown: Vec<_> = shown
            .iter()
            .map(|socket| (socket.state, socket.local.expect("one").port(), socket.session))
            .collect();
        shown.sort_unstable_by_key(|(state, port, session)| (state.index(), *port, *session));
        shown
    };
    let (listen, open) = (SocketState::Listen, SocketState::Connection(TcpState::Established));
    assert_eq!(ports(user(1_000)), [(listen, 80, 11), (open, 80, 11)]);
    assert_eq!(ports(user(2_000)), [(listen, 81, 22), (open, 81, 22)]);
    assert_eq!(ports(user(3_000)), []);
    let all = [(listen, 80, 11), (listen, 81, 22), (open, 80, 11), (open, 81, 22)];
    assert_eq!(ports(ROOT), all);

    let keys = |viewer| {
        let shown = shown_sessions(&shard, viewer);
        shown.iter().map(|session| (session.key, session.connections.now)).collect::<Vec<_>>()
    };
    assert_eq!(keys(user(2_000)), [(22, 1)]);
    assert_eq!(keys(ROOT), [(11, 1), (22, 1)]);
    let shown = listeners(&shard, user(1_000));
    assert_eq!(shown.len(), 1);
    let acceptors: Vec<_> = shown[0].acceptors.iter().map(|it| (it.session, it.credit)).collect();
    assert_eq!((acceptors, shown[0].credit), (vec![(11, 3)], 3));
    assert_eq!(listeners(&shard, ROOT).len(), 2);
}

#[test]
fn udp_sockets_belong_to_their_user_and_have_their_peer() {
    let (shard, _peer) = shard_and_peer();
    let (mut one, _) = shard.attach(limits(1_000, 11));
    let (mut two, _) = shard.attach(limits(2_000, 22));
    one.bind(at(53), DatagramSharing::default()).expect("it is free");
    let connected = two.bind(at(54), DatagramSharing::default()).expect("it is free");
    let peer = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 9);
    two.connect_datagram(connected, Some(peer)).expect("there is a way");
    let shown = |viewer| {
        let shown = sockets(&shard, viewer).into_iter();
        shown.map(|it| (it.state, it.is_datagram, it.session, it.peer)).collect::<Vec<_>>()
    };
    let unconnected = (SocketState::Unconnected, true, 11, None);
    let established = (SocketState::Connection(TcpState::Established), true, 22, Some(peer));
    assert_eq!(shown(user(1_000)), [unconnected]);
    assert_eq!(shown(ROOT), [unconnected, established]);
    let endpoints = shown_sessions(&shard, user(2_000))[0].endpoints.now;
    assert_eq!(endpoints, 1);
}

#[test]
fn more_sockets_than_a_page_are_each_shown_once() {
    let (shard, mut peer) = shard_and_peer();
    let (mut session, _) = shard.attach(limits(1_000, 11));
    let count = SOCKETS_PER_PAGE.0 + 50;
    listens(&mut session, 80, count as u32);
    for _ in 0..count {
        peer.connect(at(80));
        peer.flush();
    }
    let mut accepted = 0;
    while accepted < count {
        accepted += usize::from(matches!(next_event(&mut session), Event::Incoming { .. }));
    }
    let (_, page_count) = pages(&shard, QuerySubject::Sockets, ROOT);
    assert!(page_count >= 2);
    let mut ports: Vec<_> = sockets(&shard, ROOT)
        .iter()
        .filter(|socket| socket.state != SocketState::Listen)
        .map(|socket| socket.peer.expect("connected").port())
        .collect();
    assert_eq!(ports.len(), count);
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), count);
    let summary = shard.page(ServiceQuery::new(QuerySubject::Shard, 0), user(1)).body;
    let AnswerBody::Shard(Some(summary)) = summary else { panic!("{summary:?}") };
    assert_eq!((summary.sessions, summary.connections), (1, count as u32));
}

#[test]
fn page_from_any_place_is_valid() {
    let (shard, _peer) = shard_and_peer();
    let (mut session, _) = shard.attach(limits(1_000, 11));
    listens(&mut session, 80, 4);
    for subject in [QuerySubject::Sockets, QuerySubject::Listeners, QuerySubject::Sessions] {
        for from in [u64::MAX, 1 << 32, 7 << 32, u64::from(u32::MAX)] {
            let query = ServiceQuery { from, ..ServiceQuery::new(subject, 0) };
            let page = shard.page(query, ROOT);
            assert_eq!(page.next, None, "{subject:?} {from:x}");
        }
    }
}

/// The stack reports no end of a connection that its application has closed.
#[test]
fn ended_connections_are_not_counted() {
    let (shard, mut peer) = shard_and_peer();
    let (mut session, _) = shard.attach(limits(1_000, 11));
    listens(&mut session, 80, 4);
    let (ours, theirs) = connects(&mut peer, &mut session, 80);
    let counts = || {
        let shown = shown_sessions(&shard, ROOT);
        let body = pages(&shard, QuerySubject::Shard, ROOT).0.pop();
        let Some(AnswerBody::Shard(Some(summary))) = body else { panic!("{body:?}") };
        (shown[0].connections.now, shown[0].closed, summary.connections)
    };
    assert_eq!(counts(), (1, 0, 1));
    peer.receive(ours).expect("it is open");
    session.close(theirs);
    session.flush();
    while next_event(&mut peer) != (Event::PeerClosed { conn: ours }) {}
    assert_eq!(counts(), (0, 1, 1), "its end has not come");
    // The peer has closed last, so nothing is left.
    peer.close(ours);
    peer.flush();
    let start = Instant::now();
    while counts() != (0, 0, 0) {
        assert!(start.elapsed() < PATIENCE, "{:?}", counts());
        std::thread::sleep(Duration::from_millis(1));
    }
}
