//! Programs that do not accept, or do not read: what they take of a shard is bounded for channel
//! and user.

use std::sync::Arc;

use super::many_sessions::{SIZES, at};
use super::polled_shard::PolledShard;
use super::*;
use megapipe_stack::Drop;

use crate::hand_over::HandOverSettings;
use crate::limits::WAITING_ALWAYS;
use crate::policy::{PortGrants, QuotaKind, Quotas, SessionRights, UserAccount};
use crate::session_sizes::SessionSizes;

/// A shard that a test polls, and a peer.
pub(super) struct UnacceptedWorld {
    pub(super) shard: PolledShard,
    peer: PolledShard,
    pub(super) client: RemoteClient,
    pub(super) us: u64,
}

impl UnacceptedWorld {
    pub(super) fn new(private_buffers: u32) -> Self {
        Self::with_connections(private_buffers, 4_000)
    }

    /// The shard has room for so many connections.
    fn with_connections(private_buffers: u32, connections: u32) -> Self {
        let (one, other) = pair(&PairConfig::default()).expect("a pair");
        let shard = PolledShard::with_connections(one, (2, private_buffers), connections);
        let mut peer = PolledShard::new(other, 1, 0, HandOverSettings::default());
        let (client, _) = peer.attach();
        Self { shard, peer, client, us: 0 }
    }

    pub(super) fn poll(&mut self) {
        self.us += 50;
        let now = megapipe_stack::Instant::from_micros(self.us);
        for polled in [&mut self.shard, &mut self.peer] {
            polled.shard.poll(now).expect("the link works");
            while polled.shard.next_signal().is_some() {}
        }
    }

    pub(super) fn now(&self) -> megapipe_stack::Instant {
        megapipe_stack::Instant::from_micros(self.us)
    }

    /// The peer sends these bytes, as far as the connection takes them.
    pub(super) fn send_bytes(&mut self, conn: ConnId, bytes: &[u8]) {
        assert_eq!(self.client.send(conn, bytes), Ok(bytes.len()));
        self.client.flush();
        self.run(200);
    }

    /// The bytes that come to the peer on a connection.
    pub(super) fn peer_bytes(&mut self, of: ConnId) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.client.receive(of).expect("it has the connection");
        self.client.flush();
        self.run(10);
        while let Some(event) = self.client.event() {
            if let RemoteEvent::Event(Event::Received { conn, chunk }, _) = event
                && conn == of
            {
                let from = bytes.len();
                bytes.resize(from + chunk.len as usize, 0);
                self.client.take_bytes(chunk, &mut bytes[from..]);
            }
        }
        bytes
    }

    pub(super) fn run(&mut self, polls: u32) {
        (0..polls).for_each(|_| self.poll());
    }

    /// A channel of a user with quotas.
    fn channel(&mut self, rights: &Arc<SessionRights>) -> RemoteClient {
        self.channel_sized(rights, &SIZES)
    }

    fn channel_sized(&mut self, rights: &Arc<SessionRights>, sizes: &SessionSizes) -> RemoteClient {
        let rights = Some(Arc::clone(rights));
        let key = self.us + 1;
        let limits = SessionLimits { rights, key, ..SessionLimits::WHOLE_SHARD };
        self.shard.attach_with(sizes, limits).0
    }

    /// A connection of the peer to a session that listens, and its name there.
    pub(super) fn accepted(
        &mut self,
        (session, listener): (&mut RemoteClient, megapipe_stack::ListenerId),
        port: u16,
    ) -> (ConnId, ConnId) {
        session.accept(listener, AcceptorId(1), 1);
        session.flush();
        let ours = self.connect(port, 1)[0];
        let Some(RemoteEvent::Event(Event::Incoming { conn, .. }, _)) = session.event() else {
            panic!("it is accepted");
        };
        (ours, conn)
    }

    pub(super) fn listen(
        &mut self,
        client: &mut RemoteClient,
        port: u16,
    ) -> megapipe_stack::ListenerId {
        let sharing = ListenSharing { flags: 0, fast_open: 0, cores: None };
        let call = SessionCall::Listen { local: at(port), backlog: 100, sharing, reservation: 0 };
        let cookie = client.submit_call(call);
        client.flush();
        let answer = loop {
            self.poll();
            if let Some(answer) = client.take_answer(cookie) {
                break answer;
            }
        };
        let ServerAnswer::Listening { listener } = answer else { panic!("{answer:?}") };
        encoding::listener_id(listener)
    }

    /// Established connections of the peer.
    pub(super) fn connect(&mut self, port: u16, count: usize) -> Vec<ConnId> {
        let begun = self.begin_connections(port, count);
        let connected = std::iter::from_fn(|| self.client.event()).filter(|event| match event {
            RemoteEvent::Event(Event::Connected { conn }, _) => begun.contains(conn),
            _ => false,
        });
        assert_eq!(connected.count(), count);
        begun
    }

    /// Connections that the peer begins, and time for their handshakes.
    fn begin_connections(&mut self, port: u16, count: usize) -> Vec<ConnId> {
        let begun: Vec<_> = (0..count).map(|_| self.client.connect(at(port))).collect();
        self.client.flush();
        self.run(100);
        begun
    }

    /// Connections in the shard's table.
    fn held(&self) -> u32 {
        self.shard.shard.server.stack().tcp_usage().connections
    }

    /// Ends all sessions of the shard.
    fn detach_all(&mut self) {
        self.shard.shard.detach_all(megapipe_stack::Instant::from_micros(self.us));
        self.run(10);
    }

    pub(super) fn send(&mut self, conns: &[ConnId], bytes: usize) {
        for conn in conns {
            assert_eq!(self.client.send(*conn, &vec![7; bytes]), Ok(bytes));
        }
        self.client.flush();
        self.run(200);
    }

    pub(super) fn private_used(&mut self) -> u32 {
        self.shard.shard.report().private_used
    }
}

pub(super) fn rights_of(
    account: &Arc<UserAccount>,
    quotas: &[(QuotaKind, u32)],
) -> Arc<SessionRights> {
    let mut all = Quotas::from_each(|_| u32::MAX);
    quotas.iter().for_each(|(kind, limit)| all.set(*kind, *limit));
    Arc::new(SessionRights::new(Arc::clone(account), all, PortGrants::All))
}

/// Listeners that never accept take their quota of the shard's own buffers. Another user's bytes
/// find room, without a retransmission.
#[test]
fn listener_that_never_accepts_leaves_private_buffers_to_others() {
    const TEXT: usize = 15_000;
    let mut world = UnacceptedWorld::new(64);
    let account = Arc::<UserAccount>::default();
    let quotas = [(QuotaKind::ChannelPrivateBuffers, 30), (QuotaKind::UserPrivateBuffers, 40)];
    let its = [(); 2].map(|()| rights_of(&account, &quotas));
    let mut hostile = its.each_ref().map(|rights| world.channel(rights));
    let honest_rights = rights_of(&Arc::default(), &quotas);
    let mut honest = world.channel(&honest_rights);
    for (session, port) in hostile.iter_mut().zip([80, 81]) {
        world.listen(session, port);
    }
    let listener = world.listen(&mut honest, 82);
    let conns = world.connect(80, 5);
    world.send(&conns, TEXT);
    assert_eq!(world.private_used(), 30, "the channel's quota");
    assert!(its[0].refusals(QuotaKind::ChannelPrivateBuffers) > 0);
    let conns = world.connect(81, 2);
    world.send(&conns, TEXT);
    assert_eq!(world.private_used(), 40, "the user's quota");
    assert!(account.refusals(QuotaKind::UserPrivateBuffers) > 0);
    assert_eq!(its[1].refusals(QuotaKind::ChannelPrivateBuffers), 0);

    let conns = world.connect(82, 1);
    let (before, _) = (world.us, world.send(&conns, TEXT));
    honest.accept(listener, AcceptorId(1), 1);
    let mut came = 0;
    while came < TEXT {
        honest.flush();
        world.poll();
        match honest.event() {
            Some(RemoteEvent::Event(Event::Incoming { conn, .. }, _)) => {
                honest.receive(conn).expect("it is there");
            }
            Some(RemoteEvent::Event(Event::Received { conn, chunk }, _)) => {
                came += chunk.len as usize;
                honest.give_back(chunk);
                honest.receive(conn).expect("it is there");
            }
            Some(other) => panic!("{other:?}"),
            None => assert!(world.us < before + 100_000, "{came} of {TEXT} without a timer"),
        }
    }
    assert_eq!(world.private_used(), 40);
    drop(hostile);
    world.detach_all();
    assert_eq!(world.private_used(), 0);
    assert_eq!(account.count(QuotaKind::UserPrivateBuffers), 0);
    // The shard has nothing of its own of them any more.
    assert!(its.iter().all(|its| its.count(QuotaKind::ChannelPrivateBuffers) == 0));
}

/// A session takes connections without end and reads nothing: what waits for it is bounded for its
/// channel, and the quota has it all back when it has ended.
#[test]
fn session_that_never_reads_is_ended_at_its_quota() {
    const QUOTA: u32 = 200;
    let mut world = UnacceptedWorld::new(64);
    let account = Arc::<UserAccount>::default();
    let rights = rights_of(&account, &[(QuotaKind::ChannelWaitingEvents, QUOTA)]);
    let sizes = SessionSizes { ops: 1 << 6, events: 1 << 7, ..SIZES };
    let mut hostile = world.channel_sized(&rights, &sizes);
    let mut honest = world.channel(&rights_of(&Arc::default(), &[]));
    let listeners = [world.listen(&mut hostile, 80), world.listen(&mut honest, 81)];
    let (ours, its) = world.accepted((&mut honest, listeners[1]), 81);
    hostile.accept(listeners[0], AcceptorId(1), 100_000);
    hostile.flush();
    let mut rounds = 0;
    let end = loop {
        for conn in world.connect(80, 20) {
            world.client.abort(conn);
        }
        world.client.flush();
        world.run(10);
        if let Some(end) = world.shard.shard.next_end() {
            break end;
        }
        rounds += 1;
        assert!(rounds < 100, "it goes on: {:?}", world.shard.shard.report());
        // To within what is drawn at a time.
        let waiting = world.shard.shard.report().sessions[0].1.parked_max;
        let beyond = waiting.saturating_sub(WAITING_ALWAYS as u32);
        let counted = rights.count(QuotaKind::ChannelWaitingEvents);
        assert!((beyond..beyond + 64).contains(&counted), "{counted} of {beyond}");
    };
    assert_eq!(end.fault, Some(SessionFault::Unread));
    assert_eq!(rights.refusals(QuotaKind::ChannelWaitingEvents), 1);
    assert_eq!(account.take_reached().collect::<Vec<_>>(), [QuotaKind::ChannelWaitingEvents]);
    assert_eq!(account.count(QuotaKind::UserWaitingEvents), 0);
    world.send(&[ours], 10);
    honest.receive(its).expect("it is there");
    honest.flush();
    world.run(10);
    let event = honest.event();
    assert!(matches!(event, Some(RemoteEvent::Event(Event::Received { .. }, _))), "{event:?}");
}

/// A program that was stopped for a while reads what waited, and goes on.
#[test]
fn events_within_the_quota_wait_and_return_it() {
    let mut world = UnacceptedWorld::new(64);
    let account = Arc::<UserAccount>::default();
    let rights = rights_of(&account, &[(QuotaKind::UserWaitingEvents, 200)]);
    let sizes = SessionSizes { ops: 1 << 6, events: 1 << 7, ..SIZES };
    let mut slow = world.channel_sized(&rights, &sizes);
    let listener = world.listen(&mut slow, 80);
    slow.accept(listener, AcceptorId(1), 1_000);
    slow.flush();
    for _ in 0..15 {
        for conn in world.connect(80, 20) {
            world.client.abort(conn);
        }
        world.client.flush();
        world.run(10);
    }
    let counted = account.count(QuotaKind::UserWaitingEvents);
    assert!((1..=200).contains(&counted), "{counted}");
    let mut came = [0, 0];
    for _ in 0..200 {
        while let Some(RemoteEvent::Event(event, _)) = slow.event() {
            came[usize::from(matches!(event, Event::Closed { .. }))] += 1;
        }
        slow.flush();
        world.run(5);
    }
    assert_eq!(came, [300, 300]);
    assert_eq!(account.count(QuotaKind::UserWaitingEvents), 0);
    assert_eq!(account.take_reached().count(), 0);
}

/// Places of a shard's table of connections in [`TABLE_QUOTAS`]'s worlds.
const TABLE: u32 = 64;
/// A user may have less than half of it.
const TABLE_QUOTAS: [(QuotaKind, u32); 2] =
    [(QuotaKind::UserConnections, 20), (QuotaKind::UserWaiting, 10)];

/// Another user's connection is established at once.
#[track_caller]
fn assert_others_are_served(world: &mut UnacceptedWorld) {
    let mut honest = world.channel(&rights_of(&Arc::default(), &TABLE_QUOTAS));
    let listener = world.listen(&mut honest, 99);
    let (ours, _) = world.accepted((&mut honest, listener), 99);
    world.client.abort(ours);
    world.client.flush();
    world.run(10);
}

/// Many listeners of one user with large backlogs, and peers whose connections are never accepted.
#[test]
fn backlogs_of_a_user_leave_connections_to_others() {
    let mut world = UnacceptedWorld::with_connections(64, TABLE);
    let account = Arc::<UserAccount>::default();
    let rights = rights_of(&account, &TABLE_QUOTAS);
    let mut hostile = world.channel(&rights);
    for port in 80..88 {
        world.listen(&mut hostile, port);
        world.begin_connections(port, 9);
    }
    assert_eq!(world.held(), 10);
    assert_others_are_served(&mut world);
    world.shard.shard.recount(megapipe_stack::Instant::from_micros(world.us));
    assert_eq!(account.count(QuotaKind::UserWaiting), 10);
    assert!(account.refusals(QuotaKind::UserWaiting) > 0);
    assert_eq!(account.take_reached().collect::<Vec<_>>(), [QuotaKind::UserWaiting]);
    let drops = world.shard.shard.server.stack().counters().dropped(Drop::ListenerGroupFull);
    assert!(drops >= 62, "{drops}");
    // All is back when the session is over, and the user may have as many again.
    drop(hostile);
    world.detach_all();
    assert_eq!((world.held(), account.count(QuotaKind::UserWaiting)), (0, 0));
    let mut again = world.channel(&rights_of(&account, &TABLE_QUOTAS));
    world.listen(&mut again, 90);
    world.begin_connections(90, 12);
    assert_eq!(world.held(), 10);
}

/// Channels of one user that take as many connections in advance as a number has bits for.
#[test]
fn credit_of_a_user_leaves_connections_to_others() {
    let mut world = UnacceptedWorld::with_connections(64, TABLE);
    let account = Arc::<UserAccount>::default();
    let rights = rights_of(&account, &TABLE_QUOTAS);
    let mut hostile = Vec::new();
    for port in 80..88 {
        let mut channel = world.channel(&rights);
        let listener = world.listen(&mut channel, port);
        channel.accept(listener, AcceptorId(1), u32::MAX);
        channel.flush();
        hostile.push(channel);
    }
    world.run(2);
    for port in 80..88 {
        world.begin_connections(port, 9);
    }
    assert_eq!(world.held(), 30, "its connections, and those that wait");
    assert_others_are_served(&mut world);
    world.shard.shard.recount(megapipe_stack::Instant::from_micros(world.us));
    assert!(account.refusals(QuotaKind::UserConnections) > 0);
    drop(hostile);
    world.detach_all();
    assert!(QuotaKind::ALL.iter().all(|kind| account.count(*kind) == 0));
}
