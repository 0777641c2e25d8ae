//! Several sessions on one shard: each has its own objects, and what one does harms no other.

use std::sync::mpsc;

use megapipe_link::Link;
use megapipe_shm::bell_sockets;
use megapipe_stack::{BindError, DatagramSharing, Departure, ListenerId};

use super::*;
use crate::PortError;
use crate::observe::{AnswerPage, ServiceQuery, Viewer};
use crate::session_sizes::SessionSizes;
use crate::sleep::ServerLocation;

pub(super) const SIZES: SessionSizes = SessionSizes {
    ops: 1 << 10,
    events: 1 << 11,
    receive_bytes: 2_048,
    receive_buffers: 64,
    small_sends: 64,
    large_sends: 8,
};

/// Both halves of a session that is not attached yet.
pub(super) fn session_of(
    sizes: &SessionSizes,
    description: &Description,
) -> (RemoteClient, ServerHalf) {
    let (half, fds) = sizes.create().expect("memory");
    let ends = sizes.client(fds).expect("as agreed");
    // Nothing closes the other end of the control socket here.
    let (control, _) = bell_sockets().expect("descriptors");
    let location = ServerLocation::Process(control.into());
    (RemoteClient::new(ends, description.clone(), location), half)
}

/// A shard for many sessions, on one end of a pair.
pub(super) struct TestShard {
    handle: ShardHandle,
    description: Description,
    ends: mpsc::Receiver<SessionEnd>,
}

impl TestShard {
    pub(super) fn start(link: impl Link + 'static, last: u8) -> Self {
        let mut config = ServerConfig {
            addresses: vec![(IpAddr::from([10, 0, 0, last]), 24)],
            connections: 1_000,
            waits: Waits { spin: Duration::ZERO, ..Waits::default() },
            ..ServerConfig::default()
        };
        config.tcp.nagle = false;
        let shard = ShardConfig { core: None, private_bytes: 2_048, private_buffers: 64 };
        let (sender, ends) = mpsc::channel();
        let on_end = Box::new(move |end| sender.send(end).expect("the test looks at it"));
        let frames = Frames::Queue(Box::new(link));
        let (handle, description) =
            start_shard(frames, &config, &shard, on_end).expect("a thread and memory");
        let description = Description::decode(&description).expect("its own");
        Self { handle, description, ends }
    }

    /// A session, and its name at the shard.
    pub(super) fn attach(&self, limits: SessionLimits) -> (RemoteClient, SessionId) {
        self.attach_sized(limits, SIZES)
    }

    pub(super) fn attach_sized(
        &self,
        limits: SessionLimits,
        sizes: SessionSizes,
    ) -> (RemoteClient, SessionId) {
        let (client, half) = session_of(&sizes, &self.description);
        let id = self.handle.attach(half, limits).expect("there is room");
        (client, id)
    }

    pub(super) fn report(&self) -> ShardReport {
        self.handle.report().expect("it runs")
    }

    /// A page for a process that asks.
    pub(super) fn page(&self, query: ServiceQuery, viewer: Viewer) -> AnswerPage {
        let (sender, page) = mpsc::channel();
        let answer = move |page| sender.send(page).expect("the test waits for it");
        self.handle.ask(query, viewer, Box::new(answer));
        page.recv_timeout(PATIENCE).expect("the shard answers")
    }

    pub(super) fn recount(&self) {
        self.handle.recount();
    }

    pub(super) fn change_token(&self, change: TokenChange) {
        self.handle.change_token(change);
    }

    pub(super) fn detach(&self, id: SessionId) {
        self.handle.detach(id);
    }

    /// The next session that ends.
    pub(super) fn next_end(&self) -> SessionEnd {
        self.ends.recv_timeout(PATIENCE).expect("a session ends")
    }

    /// Waits until the shard has so many sessions, those included that send their last bytes.
    pub(super) fn await_sessions(&self, count: usize) -> ShardReport {
        let start = Instant::now();
        loop {
            let report = self.handle.report().expect("it runs");
            if report.sessions.len() == count {
                return report;
            }
            assert!(start.elapsed() < PATIENCE, "{report:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn counters(&self, id: SessionId) -> SessionCounters {
        let report = self.handle.report().expect("it runs");
        report.sessions.iter().find(|(its, _)| *its == id).expect("it is attached").1
    }
}

/// A shard, and a peer that has a server to itself.
pub(super) fn shard_and_peer() -> (TestShard, RemoteClient) {
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    (TestShard::start(one, 2), session(other, 1))
}

pub(super) fn at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, 2]), port)
}

/// A session listens at a port, for `credit` connections.
pub(super) fn listens(session: &mut RemoteClient, port: u16, credit: u32) -> ListenerId {
    let listener = session.listen(at(port), 100, exclusive()).expect("the port is free");
    session.accept(listener, AcceptorId(7), credit);
    session.flush();
    listener
}

pub(super) fn exclusive() -> Sharing {
    Sharing { is_exclusive: true, ..Sharing::default() }
}

/// The peer's connection to a session, as both name it.
pub(super) fn connects(
    peer: &mut RemoteClient,
    session: &mut RemoteClient,
    port: u16,
) -> (ConnId, ConnId) {
    let ours = peer.connect(at(port));
    assert_eq!(next_event(peer), Event::Connected { conn: ours });
    let Event::Incoming { conn: theirs, .. } = next_event(session) else { panic!() };
    (ours, theirs)
}

/// Sends a line from one to the other, which reads it.
#[track_caller]
pub(super) fn sends(
    from: (&mut RemoteClient, ConnId),
    to: (&mut RemoteClient, ConnId),
    line: &[u8],
) {
    let ((sender, ours), (receiver, theirs)) = (from, to);
    receiver.receive(theirs).unwrap();
    receiver.flush();
    assert_eq!(sender.send(ours, line), Ok(line.len()));
    sender.flush();
    let event = next_event(receiver);
    let Event::Received { conn, chunk } = event else { panic!("{event:?}") };
    let mut came = vec![0; chunk.len as usize];
    receiver.take_bytes(chunk, &mut came);
    assert_eq!((conn, &came[..]), (theirs, line));
}

#[test]
fn sessions_of_a_shard_have_their_own_connections() {
    let (shard, mut peer) = shard_and_peer();
    let mut sessions: Vec<_> = (0..5).map(|_| shard.attach(SessionLimits::WHOLE_SHARD).0).collect();
    let mut conns = Vec::new();
    for (session, port) in sessions.iter_mut().zip(80..) {
        listens(session, port, 3);
        for _ in 0..3 {
            conns.push((port, connects(&mut peer, session, port)));
        }
    }
    for round in 0..20 {
        for (port, (ours, theirs)) in &conns {
            let session = &mut sessions[usize::from(port - 80)];
            let line = format!("{round} to port {port}");
            sends((&mut peer, *ours), (session, *theirs), line.as_bytes());
            sends((session, *theirs), (&mut peer, *ours), b"answer");
        }
    }
}

#[test]
fn session_does_not_get_the_datagram_address_of_another_one() {
    let (shard, _peer) = shard_and_peer();
    let of = |key| SessionLimits { key, user: 7, ..SessionLimits::WHOLE_SHARD };
    let alone = DatagramSharing { is_shared: true, excludes_others: true, ..Default::default() };
    let spread = DatagramSharing { spreads: true, ..alone };
    let [mut one, mut other, mut old] = [1, 2, 3].map(|key| shard.attach(of(key)).0);
    let endpoint = one.bind(at(53), alone).expect("a free port");
    one.bind(at(53), alone).expect("the program has decided that");
    for session in [&mut other, &mut old] {
        let refused = session.bind(at(53), spread).expect_err("it is another program's");
        assert!(matches!(refused, PortError::Stack(BindError::InUse)), "{refused}");
    }
    // The record of a client of version 9 cannot say that it excludes others.
    old.knows_exclusive_endpoints = false;
    old.bind(at(54), alone).expect("a free port");
    other.bind(at(54), DatagramSharing { excludes_others: false, ..alone }).expect("as before");
    one.close_datagram(endpoint);
    other.bind(at(53), spread).expect_err("its other endpoint is there");
    drop(one);
    while let Err(refused) = other.bind(at(53), spread) {
        assert!(matches!(refused, PortError::Stack(BindError::InUse)), "{refused}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let user = SessionLimits { user: 8, ..of(4) };
    shard.attach(user).0.bind(at(53), spread).expect_err("another user's");
}

#[test]
fn sessions_send_and_receive_datagrams() {
    let (shard, mut peer) = shard_and_peer();
    let own = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 5_000);
    let ours = peer.bind(own, DatagramSharing::default()).expect("a free port");
    let mut sessions = [0, 1].map(|_| shard.attach(SessionLimits::WHOLE_SHARD).0);
    for (session, port) in sessions.iter_mut().zip(6_000..) {
        let theirs = session.bind(at(port), DatagramSharing::default()).expect("a free port");
        session.send_datagram(theirs, (own, &Departure::default()), b"question").expect("a way");
        session.flush();
        let Event::Datagram { endpoint, from, chunk } = next_event(&mut peer) else { panic!() };
        assert_eq!((endpoint, from, chunk.len), (ours, at(port), 8));
        peer.give_back(chunk);
        peer.send_datagram(ours, (at(port), &Departure::default()), b"answer").expect("a way");
        peer.flush();
        let Event::Datagram { endpoint, chunk, .. } = next_event(session) else { panic!() };
        assert_eq!((endpoint, chunk.len), (theirs, 6));
        session.give_back(chunk);
    }
}

#[test]
fn names_of_other_sessions_are_refused_and_counted() {
    let (shard, mut peer) = shard_and_peer();
    let (mut honest, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    let (mut hostile, id) = shard.attach(SessionLimits::WHOLE_SHARD);
    let listener = listens(&mut honest, 80, 2);
    let (ours, theirs) = connects(&mut peer, &mut honest, 80);
    let endpoint = honest.bind(at(6_000), DatagramSharing::default()).expect("a free port");
    let conn = encoding::id_of(honest.named(theirs).expect("it is connected"));
    let (listener, endpoint) =
        (encoding::id_of_listener(listener), encoding::id_of_endpoint(endpoint));
    let buf = BufId::from_bits(u32::from(SMALL) * POOL_BUFS_MAX);
    let mut named = 0;
    for command in [
        Command::Send { conn, chunk: Chunk { buf, offset: 0, len: 4 } },
        Command::Receive { conns: megapipe_shm::record::Ids::of(conn) },
        Command::AwaitAcks { conn },
        Command::Shutdown { conn },
        Command::Close { conn },
        Command::Abort { conn },
        Command::Accept { listener, credit: 100 },
        Command::Call(SessionCall::Unlisten { listener }),
        Command::Call(SessionCall::TakeOut { conn }),
        Command::Call(SessionCall::HandOverOffered { conn }),
        Command::Call(SessionCall::Info { conn }),
        Command::Call(SessionCall::Addresses { conn }),
        Command::Call(SessionCall::CloseDatagram { endpoint }),
        Command::Call(SessionCall::DatagramAddress { endpoint }),
    ] {
        hostile.put(&Op { cookie: 1 << 40, command }.record());
        hostile.flush();
        named += 1;
        let start = Instant::now();
        while shard.counters(id).foreign_names < named {
            assert!(start.elapsed() < PATIENCE, "{command:?} is not counted");
        }
    }
    // Nothing has changed for the honest one.
    sends((&mut peer, ours), (&mut honest, theirs), b"still there");
    sends((&mut honest, theirs), (&mut peer, ours), b"and this way");
    connects(&mut peer, &mut honest, 80);
    assert_eq!(shard.counters(id).foreign_names, named);
}

#[test]
fn faulty_session_ends_alone() {
    let (shard, mut peer) = shard_and_peer();
    let (mut honest, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut honest, 80, 1);
    let (ours, theirs) = connects(&mut peer, &mut honest, 80);
    for _ in 0..20 {
        let (mut hostile, id) = shard.attach(SessionLimits::WHOLE_SHARD);
        listens(&mut hostile, 81, 1);
        let (lost, _) = connects(&mut peer, &mut hostile, 81);
        hostile.put(&Record::default());
        hostile.flush();
        assert_eq!(shard.next_end(), SessionEnd { session: id, fault: Some(SessionFault::Record) });
        ends(&mut hostile);
        sends((&mut peer, ours), (&mut honest, theirs), b"on");
        // Its connections end as those of a dead process.
        peer.receive(lost).unwrap();
        assert_eq!(next_event(&mut peer), Event::PeerClosed { conn: lost });
        peer.close(lost);
        peer.flush();
        // Its number and its port are free again.
        shard.await_sessions(1);
    }
}

#[test]
fn ended_application_ends_its_session_alone() {
    let (shard, mut peer) = shard_and_peer();
    let (mut honest, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut honest, 80, 1);
    let (ours, theirs) = connects(&mut peer, &mut honest, 80);
    let (mut leaving, id) = shard.attach(SessionLimits::WHOLE_SHARD);
    listens(&mut leaving, 81, 1);
    let (last, its) = connects(&mut peer, &mut leaving, 81);
    // What it has handed over is sent, then FIN.
    peer.receive(last).unwrap();
    peer.flush();
    assert_eq!(leaving.send(its, b"goodbye"), Ok(7));
    drop(leaving);
    assert_eq!(shard.next_end(), SessionEnd { session: id, fault: None });
    let Event::Received { conn, chunk } = next_event(&mut peer) else { panic!() };
    assert_eq!((conn, chunk.len), (last, 7));
    peer.give_back(chunk);
    peer.receive(last).unwrap();
    assert_eq!(next_event(&mut peer), Event::PeerClosed { conn: last });
    sends((&mut peer, ours), (&mut honest, theirs), b"still there");
    shard.await_sessions(1);
}
