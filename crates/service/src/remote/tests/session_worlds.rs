//! Worlds of applications, correct and hostile ones, behind real sessions of one or more shards.
//!
//! The test polls shards, applications and the peer in virtual time, at random steps from a seed.
//! Correct applications listen at one port or adopt the listener of a token, echo what the peer
//! sends, stop, claim late, share their listener, and die;
//! hostile ones write nonsense into their rings and all over their regions. `MEGAPIPE_WORLD=SEED`
//! runs one world again, `MEGAPIPE_WORLDS=COUNT` so many, from `MEGAPIPE_WORLD` or 50 on.
//!
//! Checked: each stream, byte for byte; no session of a correct application ends; when all are
//! gone, shards hold nothing of them; and in between each new connection is served once nothing is
//! stopped any more.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use megapipe_shm::record::Ids;

use super::polled_shard::PolledShard;
use super::*;
use crate::ManagerId;
use crate::balancer::RandomSequence;
use crate::descriptors::{PassedDescriptors, ShareToken};
use crate::hand_over::HandOverSettings;
use crate::layout::ServerLayout;
use crate::remote::session_region::ClientHalf;
use crate::remote::shard::ShardPeers;
use crate::rx_mux::switch;
use crate::server_mail::connect_servers;
use crate::server_wiring::ServerWiring;

/// Small rings and few buffers: both run out.
const SIZES: SessionSizes = SessionSizes {
    ops: 1 << 6,
    events: 1 << 7,
    receive_bytes: 2_048,
    receive_buffers: 16,
    small_sends: 16,
    large_sends: 2,
};
/// The port of the correct applications, and that of the hostile ones.
const PORT: u16 = 80;
const HOSTILE_PORT: u16 = 81;
const HOSTILE_USER: u32 = 666;
const STEPS: usize = 250;
const CONNS_MAX: usize = 40;
/// Bytes of a stream at most.
const STREAM_BYTES: u64 = 20_000;
const DRAIN_TIME: Duration = Duration::from_millis(20);

/// Connections in an order that is the same in each run.
type ConnMap<T> = HashMap<ConnId, T, BuildHasherDefault<DefaultHasher>>;

/// A byte of the stream of the connection with this seed.
const fn stream_byte(seed: u64, at: u64) -> u8 {
    (seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9) as u8
}

/// A connection of the peer's.
#[derive(Debug)]
struct PeerConn {
    seed: u64,
    is_connected: bool,
    to: u16,
    sent: u64,
    echoed: u64,
}

/// A correct application: a session on each shard.
struct EchoApp {
    lanes: Vec<EchoLane>,
    runs_at_us: u64,
}

struct EchoLane {
    client: RemoteClient,
    id: SessionId,
    /// Connections, and those that wait.
    limits: (u32, u32),
    /// The call by which it gets a listener, until it has one.
    listen: Option<u64>,
    /// That call listens, and adopts nothing.
    listens: bool,
    listener: Option<Id>,
    /// The call by which a token owns that, too.
    hold: Option<u64>,
    conns: ConnMap<EchoConn>,
}

#[derive(Default)]
struct EchoConn {
    /// What is still to be sent back.
    bytes: VecDeque<u8>,
    peer_has_closed: bool,
}

/// A hostile application: its halves of its sessions, and their memory.
struct HostileApp {
    lanes: Vec<HostileLane>,
    token: Arc<ShareToken>,
}

struct HostileLane {
    half: ClientHalf,
    region: OwnedFd,
    id: SessionId,
}

struct SessionWorld {
    random: RandomSequence,
    us: u64,
    shards: Vec<PolledShard>,
    peer: PolledShard,
    client: RemoteClient,
    apps: Vec<EchoApp>,
    hostile: Vec<HostileApp>,
    /// All sessions that correct applications ever had, by shard.
    correct: HashSet<(usize, SessionId)>,
    conns: ConnMap<PeerConn>,
    /// What correct applications share by.
    token: Arc<ShareToken>,
    attached: u64,
    /// Listeners that were adopted.
    adopted: usize,
    echoed: u64,
    faults: u64,
}

impl SessionWorld {
    fn new(seed: u64) -> Self {
        let mut random = RandomSequence::new(seed);
        let shard_count = 1 + (random.next() % 3) as u16;
        let (one, other) = pair(&PairConfig::default()).expect("a pair");
        let layout = ServerLayout::combined(shard_count).expect("a layout");
        let mails = connect_servers(shard_count.into()).expect("rings");
        let wirings = ServerWiring::of_layout(&layout);
        let private = 4 + (random.next() % 60) as u32;
        let hand_over = HandOverSettings::default();
        let frames: Vec<Frames> = match shard_count {
            1 => vec![Frames::Queue(Box::new(one))],
            _ => switch(vec![Box::new(one)], shard_count, &[seed as u8; 16])
                .expect("memory")
                .into_iter()
                .map(|link| Frames::Shared(Box::new(link)))
                .collect(),
        };
        let peers = wirings
            .into_iter()
            .zip(mails)
            .map(|(wiring, mail)| ShardPeers { wiring, mail: (shard_count > 1).then_some(mail) });
        let shards: Vec<_> = frames
            .into_iter()
            .zip(peers)
            .map(|(it, peers)| PolledShard::with_peers(it, (2, private), hand_over.clone(), peers))
            .collect();
        let mut peer = PolledShard::new(other, 1, 0, HandOverSettings::default());
        let (client, _) = peer.attach();
        let (apps, hostile, conns) = (Vec::new(), Vec::new(), ConnMap::default());
        let (us, attached, echoed, faults) = (1_000, 0, 0, 0);
        let token = ShareToken::new(0, None).expect("no quota");
        let mut world = Self {
            random,
            us,
            shards,
            peer,
            client,
            apps,
            hostile,
            correct: HashSet::new(),
            conns,
            token,
            attached,
            adopted: 0,
            echoed,
            faults,
        };
        for _ in 0..1 + world.below(4) {
            world.attach_app();
        }
        world
    }

    fn below(&mut self, count: usize) -> usize {
        (self.random.next() % count.max(1) as u64) as usize
    }

    fn now(&self) -> megapipe_stack::Instant {
        megapipe_stack::Instant::from_micros(self.us)
    }

    fn limits(&mut self, shard: usize, user: u32, token: &Arc<ShareToken>) -> SessionLimits {
        let passed = Arc::new(PassedDescriptors::new(None));
        passed.keep_token(1, (Arc::clone(token), true)).expect("there is room");
        let quota = |world: &mut Self| 1 + world.below(30) as u32;
        SessionLimits {
            connections: quota(self),
            waiting: 1 + self.below(100) as u32,
            listeners: 2,
            drain_time: DRAIN_TIME,
            user,
            key: self.attached,
            weight: 1 + self.below(3) as u16,
            shard: shard as u16,
            is_on_all_shards: true,
            home: ManagerId((self.attached % self.shards.len() as u64) as u16),
            descriptors: Some(passed),
            ..SessionLimits::WHOLE_SHARD
        }
    }

    fn attach_app(&mut self) {
        self.attached += 1;
        let (mut lanes, token) = (Vec::new(), Arc::clone(&self.token));
        let adopts = self.below(2) == 0;
        for shard in 0..self.shards.len() {
            let limits = self.limits(shard, 0, &token);
            let own = (limits.connections, limits.waiting);
            let (mut client, id) = self.shards[shard].attach_with(&SIZES, limits);
            let call = match adopts {
                true => SessionCall::AdoptListener { token: 1 },
                false => listen_call(PORT),
            };
            let listen = Some(client.submit_call(call));
            client.flush();
            self.correct.insert((shard, id));
            lanes.push(EchoLane {
                client,
                id,
                limits: own,
                listen,
                listens: !adopts,
                listener: None,
                hold: None,
                conns: ConnMap::default(),
            });
        }
        self.apps.push(EchoApp { lanes, runs_at_us: 0 });
    }

    fn attach_hostile(&mut self) {
        self.attached += 1;
        let mut lanes = Vec::new();
        let token = ShareToken::new(1 << 32 | self.attached, None).expect("no quota");
        for shard in 0..self.shards.len() {
            let limits = self.limits(shard, HOSTILE_USER, &token);
            let (half, fds) = SIZES.create().expect("memory");
            let region = fds.region.try_clone().expect("a descriptor");
            let ends = SIZES.client(fds).expect("as agreed");
            let id = self.shards[shard].begin(half, limits);
            lanes.push(HostileLane { half: ends, region, id });
        }
        self.hostile.push(HostileApp { lanes, token });
        if self.below(4) > 0 {
            // It has connections to do harm with.
            let place = self.hostile.len() - 1;
            for lane in &mut self.hostile[place].lanes {
                lane.submit(Command::Call(listen_call(HOSTILE_PORT)));
                lane.submit(Command::Accept { listener: Id::default(), credit: 5 });
                let listener = Id { index: 1, generation: 0 };
                lane.submit(Command::Accept { listener, credit: 5 });
            }
        }
    }

    /// Everything polls once; the time goes on.
    fn poll(&mut self, us: u64) {
        self.us += us;
        let now = self.now();
        for polled in self.shards.iter_mut().chain([&mut self.peer]) {
            polled.shard.poll(now).expect("the link works");
            while polled.shard.next_signal().is_some() {}
        }
        self.end_faulty();
        self.run_peer();
        for app in &mut self.apps {
            app.run(self.us);
        }
    }

    /// Ends the other lanes of channels that have broken the protocol. Correct ones have not.
    fn end_faulty(&mut self) {
        for shard in 0..self.shards.len() {
            while let Some(end) = self.shards[shard].shard.next_end() {
                let Some(fault) = end.fault else { continue };
                let is_correct = self.correct.contains(&(shard, end.session));
                assert!(!is_correct, "{fault}, of a correct application");
                self.faults += 1;
                let is_it = |app: &HostileApp| app.lanes[shard].id == end.session;
                // Another of its lanes may have ended in this poll, too.
                let Some(place) = self.hostile.iter().position(is_it) else { continue };
                let app = self.hostile.swap_remove(place);
                self.end_hostile(app);
            }
        }
    }

    /// A hostile application ends on all shards, and so does its token.
    fn end_hostile(&mut self, app: HostileApp) {
        let now = self.now();
        for (shard, lane) in self.shards.iter_mut().zip(app.lanes) {
            shard.shard.detach(now, lane.id);
        }
        self.end_token(&app.token);
    }

    fn end_token(&mut self, token: &ShareToken) {
        token.end();
        let now = self.now();
        for polled in &mut self.shards {
            polled.shard.change_token(now, TokenChange::End(token.number()));
        }
    }

    /// An application lets the token own its listener, on each shard at a time of its own.
    fn share_listener(&mut self, place: usize) {
        let Some(app) = self.apps.get_mut(place) else { return };
        for lane in &mut app.lanes {
            if let (Some(listener), None) = (lane.listener, lane.hold) {
                let hold = SessionCall::HoldListener { token: 1, listener };
                lane.hold = Some(lane.client.submit_call(hold));
                lane.client.flush();
            }
        }
    }

    /// The last copy of the token is closed. Applications that come later have another one.
    fn replace_token(&mut self) {
        let next = ShareToken::new(self.token.number() + 1, None).expect("no quota");
        let ended = std::mem::replace(&mut self.token, next);
        self.end_token(&ended);
    }

    fn run_peer(&mut self) {
        while let Some(event) = self.client.event() {
            match event {
                RemoteEvent::Event(Event::Connected { conn }, _) => {
                    self.conns.get_mut(&conn).expect("it was begun").is_connected = true;
                    self.client.receive(conn).expect("it is there");
                }
                RemoteEvent::Event(Event::Received { conn, chunk }, _) => {
                    let mut bytes = vec![0; chunk.len as usize];
                    self.client.take_bytes(chunk, &mut bytes);
                    let state = self.conns.get_mut(&conn).expect("it is open");
                    if state.to == PORT {
                        for byte in bytes {
                            assert!(state.echoed < state.sent, "{conn:?}: more than was sent");
                            assert_eq!(byte, stream_byte(state.seed, state.echoed), "{conn:?}");
                            (state.echoed, self.echoed) = (state.echoed + 1, self.echoed + 1);
                        }
                    }
                    let _ = self.client.receive(conn);
                }
                RemoteEvent::Event(Event::PeerClosed { conn }, _) => {
                    self.conns.remove(&conn);
                    self.client.close(conn);
                }
                RemoteEvent::Event(Event::Closed { conn, .. }, _) => {
                    self.conns.remove(&conn);
                }
                // What is left is asked for, and then it is closed.
                RemoteEvent::Event(Event::Acked { .. } | Event::Broken { .. }, _) => {}
                other => panic!("{other:?}"),
            }
        }
        self.client.check().expect("the peer's shard is a correct one");
        self.client.flush();
    }

    fn connect(&mut self, port: u16) -> ConnId {
        let seed = self.random.next();
        let conn = self.client.connect(SocketAddr::new(IpAddr::from([10, 0, 0, 2]), port));
        let state = PeerConn { seed, is_connected: false, to: port, sent: 0, echoed: 0 };
        self.conns.insert(conn, state);
        conn
    }

    /// The peer sends some more of a stream.
    fn send(&mut self, conn: ConnId, len: usize) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let len = (len as u64).min(STREAM_BYTES - state.sent);
        let bytes: Vec<u8> = (0..len).map(|at| stream_byte(state.seed, state.sent + at)).collect();
        if state.is_connected && self.client.send_short(conn, &bytes) {
            state.sent += len;
        }
    }

    fn abort(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        self.client.abort(conn);
    }

    fn abort_all(&mut self) {
        let open: Vec<_> = self.conns.keys().copied().collect();
        open.into_iter().for_each(|conn| self.abort(conn));
        self.client.flush();
    }

    fn some_conn(&mut self) -> Option<ConnId> {
        // In an order that a seed decides: the map has one of its own.
        let mut all: Vec<_> = self.conns.keys().copied().collect();
        all.sort_by_key(|conn| (conn.index, conn.generation));
        let place = self.below(all.len());
        all.get(place).copied()
    }

    fn step(&mut self) {
        match self.below(20) {
            0..3 if self.conns.len() < CONNS_MAX => {
                let port = if self.below(4) == 0 { HOSTILE_PORT } else { PORT };
                let conn = self.connect(port);
                if self.below(2) == 0 {
                    self.client.flush();
                    self.poll(20);
                    self.send(conn, 100);
                }
            }
            0..11 => {
                let len = 1 + self.below(SMALL_SEND_BYTES);
                for _ in 0..1 + self.below(6) {
                    if let Some(conn) = self.some_conn() {
                        self.send(conn, len);
                    }
                }
            }
            11..13 => {
                if let Some(conn) = self.some_conn() {
                    match self.below(3) {
                        0 => self.abort(conn),
                        1 => {
                            self.conns.remove(&conn);
                            self.client.close(conn);
                        }
                        _ => self.client.shutdown(conn),
                    }
                    self.client.flush();
                }
            }
            13..18 => self.hostile_step(),
            _ => self.rare_step(),
        }
        let us = [1, 10, 50, 300, 2_000][self.below(5)];
        self.poll(us);
    }

    fn hostile_step(&mut self) {
        if self.hostile.len() < 2 && self.below(4) == 0 {
            return self.attach_hostile();
        }
        let (place, shard) = (self.below(self.hostile.len()), self.below(self.shards.len()));
        if self.hostile.is_empty() {
            return;
        }
        match self.below(8) {
            0 => {
                let offset = match self.below(2) {
                    // Where the rings' indices are.
                    0 => self.below(1_024) as u64,
                    _ => self.below(SIZES.bytes_of(1)) as u64,
                };
                let values = [0, u64::MAX, self.random.next(), self.random.next() % 300];
                let value = values[self.below(4)].to_ne_bytes();
                let lane = &self.hostile[place].lanes[shard];
                rustix::io::pwrite(&lane.region, &value, offset).expect("it is not sealed");
            }
            1 => {
                let events = &mut self.hostile[place].lanes[shard].half.events;
                if events.peek(64).is_ok() {
                    while events.take().is_some() {}
                    events.release();
                }
            }
            2 => {
                // It dies.
                let app = self.hostile.swap_remove(place);
                self.end_hostile(app);
            }
            _ => {
                for _ in 0..1 + self.below(40) {
                    let command = self.nonsense();
                    self.hostile[place].lanes[shard].submit(command);
                }
            }
        }
    }

    /// An operation that parses and makes no sense, but by chance.
    fn nonsense(&mut self) -> Command {
        let small = |world: &mut Self| Id {
            index: world.below(24) as u32,
            generation: world.below(4) as u32,
        };
        let conn = small(self);
        let bufs =
            [self.below(40) as u32, 1 << 22 | self.below(40) as u32, self.random.next() as u32];
        let buf = BufId::from_bits(bufs[self.below(3)]);
        let len = [1, 100, 2_048, 70_000, u32::MAX][self.below(5)];
        let chunk = Chunk { buf, offset: self.below(3) as u32 * 1_000, len };
        let at = |port: usize| SocketAddr::new(IpAddr::from([10, 0, 0, 2]), port as u16);
        match self.below(25) {
            0 => Command::Accept { listener: conn, credit: self.random.next() as u32 },
            1 => {
                let flags = [0, 1, 3, 4, 7, 8, 9, 15][self.below(8)];
                Command::Connect { remote: at(80 + self.below(3)), local: None, flags }
            }
            2 => Command::Receive { conns: Ids::of(conn) },
            3 => Command::Send { conn, chunk },
            4 => Command::AwaitAcks { conn },
            5 => Command::Shutdown { conn },
            6 => Command::Close { conn },
            7 => Command::Abort { conn },
            8 if self.below(4) == 0 => Command::Return { bufs: Bufs::of(buf) },
            9..13 => Command::Claim { conn, acceptor: small(self), receives: self.below(2) == 0 },
            13 => Command::Call(SessionCall::Sync),
            14 => Command::Call(SessionCall::Unlisten { listener: conn }),
            // Not at the correct applications' port: for moments none of these listens there.
            15 => Command::Call(listen_call(HOSTILE_PORT + self.below(3) as u16)),
            16 => Command::Call(SessionCall::Info { conn }),
            17 => Command::Call(SessionCall::TakeOut { conn }),
            18 => Command::Call(SessionCall::HandOver { conn }),
            19 => Command::Call(SessionCall::HandOverOffered { conn }),
            20 => Command::Call(SessionCall::CloseDatagram { endpoint: conn }),
            22 => Command::Call(SessionCall::HoldListener {
                token: self.below(3) as u64,
                listener: conn,
            }),
            23 => Command::Call(SessionCall::AdoptListener { token: self.below(3) as u64 }),
            21 => Command::ResetOnClose { conn, on: self.below(2) == 0 },
            _ => Command::Call(SessionCall::Bind { local: at(53), flags: 0, reservation: 0 }),
        }
    }

    fn rare_step(&mut self) {
        let place = self.below(self.apps.len());
        match self.below(8) {
            0 if self.apps.len() < 5 => self.attach_app(),
            // The last one, too: a token may own the listener.
            1 if !self.apps.is_empty() => self.kill(place),
            5 | 6 => self.share_listener(place),
            7 if self.below(2) == 0 => self.replace_token(),
            2..5 => {
                if let Some(app) = self.apps.get_mut(place) {
                    let stops_us = [500, 6_000, 30_000];
                    app.runs_at_us = self.us + stops_us[(self.random.next() % 3) as usize];
                }
            }
            _ => {}
        }
    }

    /// An application dies: each shard learns of it at a time of its own.
    fn kill(&mut self, place: usize) {
        let app = self.apps.swap_remove(place);
        let mut ids = Vec::new();
        for lane in app.lanes {
            self.adopted += usize::from(lane.listener.is_some() && !lane.listens);
            ids.push(lane.id);
            drop(lane);
        }
        for (shard, id) in ids.into_iter().enumerate() {
            if self.below(2) == 0 {
                let us = self.below(200) as u64;
                self.poll(us);
            }
            let now = self.now();
            self.shards[shard].shard.detach(now, id);
        }
    }

    /// New connections are served when nothing is stopped any more.
    fn check_service(&mut self) {
        while let Some(app) = self.hostile.pop() {
            self.end_hostile(app);
        }
        if self.apps.is_empty() {
            self.attach_app();
        }
        self.apps.iter_mut().for_each(|app| app.runs_at_us = 0);
        self.abort_all();
        // The claims of stopped ones are late, and streams of before end.
        for _ in 0..400 {
            self.poll(100);
        }
        // One after the other: a session has room for one at least.
        for _ in 0..6 {
            let conn = self.connect(PORT);
            self.client.flush();
            let mut polls = 0;
            while self.conns.get(&conn).is_some_and(|it| it.echoed < 300) {
                self.poll(100);
                if self.conns.get(&conn).is_some_and(|it| it.sent < 300) {
                    self.send(conn, 100);
                }
                self.client.flush();
                polls += 1;
                if polls >= 20_000 {
                    let shown = self.show();
                    panic!("not served within 2 s: {:?}\n{shown}", self.conns.get(&conn));
                }
            }
            assert!(self.conns.contains_key(&conn), "it has ended");
            self.abort(conn);
            self.client.flush();
        }
    }

    /// What shards and applications have, for the report of a failure.
    fn show(&mut self) -> String {
        let reports: Vec<_> = self.shards.iter_mut().map(|it| it.shard.report()).collect();
        let lanes = self.apps.iter().flat_map(|app| &app.lanes);
        let held: Vec<_> = lanes
            .map(|lane| {
                let bytes: usize = lane.conns.values().map(|conn| conn.bytes.len()).sum();
                (lane.id, lane.limits, lane.listen.is_some(), lane.conns.len(), bytes)
            })
            .collect();
        format!("{reports:#?}\nsession, limits, is not listening, open, bytes: {held:?}")
    }

    /// Nothing is left of sessions that are over.
    fn check_end(&mut self) {
        while !self.apps.is_empty() {
            self.kill(0);
        }
        self.replace_token();
        self.abort_all();
        for _ in 0..(DRAIN_TIME.as_micros() as u64 * 2 / 100) {
            self.poll(100);
        }
        for polled in &mut self.shards {
            polled.shard.recount(megapipe_stack::Instant::from_micros(self.us));
            let report = polled.shard.report();
            assert!(report.sessions.is_empty(), "{report:?}");
            let left = (report.draining, report.connections, report.private_used, report.active);
            assert_eq!(left, (0, 0, 0, 0), "{report:?}");
            assert_eq!(polled.shard.held_listeners(), 0);
        }
        // Its ports are free.
        self.attach_app();
        let mut polls = 0;
        while self.apps[0].lanes.iter().any(|lane| lane.listen.is_some()) {
            self.poll(100);
            polls += 1;
            assert!(polls < 1_000, "an answer comes");
        }
    }
}

fn listen_call(port: u16) -> SessionCall {
    let sharing = ListenSharing { flags: 0, fast_open: 0, cores: None };
    let local = SocketAddr::new(IpAddr::from([10, 0, 0, 2]), port);
    SessionCall::Listen { local, backlog: 100, sharing, reservation: 0 }
}

impl HostileLane {
    /// Writes an operation, if the ring has room as far as the hostile application sees it.
    fn submit(&mut self, command: Command) {
        // Its own nonsense may have broken the ring for itself.
        let _ = self.half.ops.send(&[Op { cookie: 7, command }.record()]);
    }
}

impl EchoApp {
    fn run(&mut self, us: u64) {
        if us >= self.runs_at_us {
            self.lanes.iter_mut().for_each(EchoLane::run);
        }
    }
}

impl EchoLane {
    fn on_listening(&mut self, answer: ServerAnswer) {
        let listener = match answer {
            ServerAnswer::Listening { listener } => encoding::listener_id(listener),
            ServerAnswer::Written { chunk } => {
                let bytes = self.client.read_call(chunk);
                encoding::decode_listener(&bytes).expect("a listener").0
            }
            // The token owns none.
            ServerAnswer::Refused { .. } if !self.listens => {
                self.listens = true;
                self.listen = Some(self.client.submit_call(listen_call(PORT)));
                return;
            }
            other => panic!("{other:?}"),
        };
        self.client.accept(listener, AcceptorId(7), 1_000);
        self.listener = Some(encoding::id_of_listener(listener));
        self.listen = None;
    }

    fn run(&mut self) {
        if let Some(cookie) = self.listen
            && let Some(answer) = self.client.take_answer(cookie)
        {
            self.on_listening(answer);
        }
        // It is refused if the token has ended.
        self.hold.take_if(|cookie| self.client.take_answer(*cookie).is_some());
        while let Some(event) = self.client.event() {
            match event {
                RemoteEvent::Event(Event::Incoming { conn, .. }, _) => {
                    let before = self.conns.insert(conn, EchoConn::default());
                    assert!(before.is_none(), "{conn:?} comes twice");
                    self.client.receive(conn).expect("it is there");
                }
                RemoteEvent::Event(Event::Received { conn, chunk }, _) => {
                    let mut bytes = vec![0; chunk.len as usize];
                    self.client.take_bytes(chunk, &mut bytes);
                    self.conns.get_mut(&conn).expect("it is open").bytes.extend(bytes);
                    // It may be over already.
                    let _ = self.client.receive(conn);
                }
                RemoteEvent::Event(Event::PeerClosed { conn }, _) => {
                    self.conns.get_mut(&conn).expect("it is open").peer_has_closed = true;
                }
                RemoteEvent::Event(Event::Closed { conn, .. }, _) => {
                    self.conns.remove(&conn);
                }
                // What is left is asked for, and then it is closed.
                RemoteEvent::Event(Event::Acked { .. } | Event::Broken { .. }, _) => {}
                other => panic!("{other:?}"),
            }
        }
        let mut over = Vec::new();
        for (conn, state) in &mut self.conns {
            while !state.bytes.is_empty() {
                let len = state.bytes.len().min(SMALL_SEND_BYTES);
                let part: Vec<u8> = state.bytes.iter().take(len).copied().collect();
                if !self.client.send_short(*conn, &part) {
                    break;
                }
                state.bytes.drain(..len);
            }
            if state.bytes.is_empty() && state.peer_has_closed {
                over.push(*conn);
            }
        }
        for conn in over {
            self.conns.remove(&conn);
            self.client.close(conn);
        }
        self.client.check().expect("the shard is a correct one");
        self.client.flush();
    }
}

/// Runs a world. Returns bytes echoed, sessions that ended by a fault, and adopted listeners.
fn run_world(seed: u64) -> (u64, u64, usize) {
    let mut world = SessionWorld::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.check_service();
    world.check_end();
    (world.echoed, world.faults, world.adopted)
}

#[test]
fn worlds_of_sessions_keep_streams_and_leave_nothing() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match (number("MEGAPIPE_WORLD"), number("MEGAPIPE_WORLDS")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 50..50 + count.unwrap_or(12),
    };
    let (mut echoed, mut faults, mut adopted) = (0, 0, 0);
    for seed in seeds.clone() {
        // The line that repeats it.
        let repeats = format!("MEGAPIPE_WORLD={seed}");
        let run = std::panic::catch_unwind(|| run_world(seed));
        let (bytes, ends, listeners) = run.unwrap_or_else(|_| panic!("failed: {repeats}"));
        (echoed, faults, adopted) = (echoed + bytes, faults + ends, adopted + listeners);
    }
    println!(
        "{seeds:?}: {echoed} bytes echoed, {faults} sessions ended by a fault, {adopted} listeners \
         adopted"
    );
    assert!(echoed > 0, "nothing was checked");
}
