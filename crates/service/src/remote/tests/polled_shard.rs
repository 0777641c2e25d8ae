//! A shard without a thread: a test polls it, at times of its own.

use std::net::IpAddr;

use megapipe_link::{Link, Pair};
use megapipe_stack::SynCookies;

use super::many_sessions::{SIZES, session_of};
use super::*;
use crate::hand_over::HandOverSettings;
use crate::limits::UNOWNED_RECEIVE_BYTES;
use crate::remote::shard::{SessionShard, ShardEnds, ShardPeers};
use crate::session_sizes::SessionSizes;
use crate::sleep::SleepingEnd;

/// Room for connections.
const CONNECTIONS: u32 = 4_000;

/// A shard without a thread.
pub(super) struct PolledShard {
    pub(super) shard: SessionShard,
    description: Description,
    /// Never rung: no end sleeps.
    bells: Vec<SleepingEnd>,
}

impl PolledShard {
    /// A shard that has the link to itself, at 10.0.0.`last`, with so many buffers of its own.
    pub(super) fn new(link: Pair, last: u8, private: u32, hand_over: HandOverSettings) -> Self {
        let frames = Frames::Queue(Box::new(link) as Box<dyn Link>);
        Self::with_peers(frames, (last, private), hand_over, ShardPeers::default())
    }

    /// As [`PolledShard::new`], with these SYN cookies.
    pub(super) fn with_cookies(
        link: Pair,
        (last, private): (u8, u32),
        hand_over: HandOverSettings,
        cookies: SynCookies,
    ) -> Self {
        let frames = Frames::Queue(Box::new(link) as Box<dyn Link>);
        let tables = (CONNECTIONS, cookies);
        Self::build(frames, (last, private), hand_over, ShardPeers::default(), tables)
    }

    /// As [`PolledShard::new`], with room for so many connections.
    pub(super) fn with_connections(link: Pair, hosts: (u8, u32), connections: u32) -> Self {
        let frames = Frames::Queue(Box::new(link) as Box<dyn Link>);
        let tables = (connections, SynCookies::default());
        Self::build(frames, hosts, HandOverSettings::default(), ShardPeers::default(), tables)
    }

    /// One of several shards.
    pub(super) fn with_peers(
        frames: Frames,
        hosts: (u8, u32),
        hand_over: HandOverSettings,
        peers: ShardPeers,
    ) -> Self {
        Self::build(frames, hosts, hand_over, peers, (CONNECTIONS, SynCookies::default()))
    }

    fn build(
        frames: Frames,
        (last, private): (u8, u32),
        hand_over: HandOverSettings,
        peers: ShardPeers,
        (connections, cookies): (u32, SynCookies),
    ) -> Self {
        let mut config = ServerConfig {
            addresses: vec![(IpAddr::from([10, 0, 0, last]), 24)],
            connections,
            secret: Some([last; 32]),
            hand_over: hand_over.clone(),
            ..ServerConfig::default()
        };
        config.tcp.nagle = false;
        config.tcp.syn_cookies = cookies;
        config.tcp.unowned_receive_buffer = UNOWNED_RECEIVE_BYTES;
        let memory = SharedMemory::new(2_048, private).expect("memory");
        let now = megapipe_stack::Instant::from_micros(0);
        let server = Server::new(frames, &config, memory, now).expect("settings");
        let description = Description::decode(&describe_server(&server, &config)).expect("its own");
        let shard = SessionShard::with_peers(server, hand_over, peers);
        Self { shard, description, bells: Vec::new() }
    }

    /// A session without limits.
    pub(super) fn attach(&mut self) -> (RemoteClient, SessionId) {
        let key = self.bells.len() as u64 + 1;
        self.attach_with(&SIZES, SessionLimits { key, ..SessionLimits::WHOLE_SHARD })
    }

    /// A session with a correct application.
    pub(super) fn attach_with(
        &mut self,
        sizes: &SessionSizes,
        limits: SessionLimits,
    ) -> (RemoteClient, SessionId) {
        let (client, half) = session_of(sizes, &self.description);
        (client, self.begin(half, limits))
    }

    /// Begins a session whose other half its creator has.
    pub(super) fn begin(&mut self, half: ServerHalf, limits: SessionLimits) -> SessionId {
        let ServerHalf { ends, memory, seal: _ } = half;
        let session_region::RingEnds { ops, events, sleep, calls } = ends;
        self.bells.push(sleep);
        let ends = ShardEnds { ops, events, calls };
        self.shard.attach(ends, memory, limits).expect("there is room")
    }
}
