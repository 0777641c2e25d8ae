//! What a daemon shows of itself: one entry for each thing, with its form in bytes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use megapipe_stack::{ConnInfo, ConnTimerKind, TcpState};

use super::wire::WireValue;
use crate::balancer::PickReason;
use crate::remote::{ValueReader, ValueWriter, decode_info, encode_info};

/// Makes structs whose form in bytes is that of their fields, one after the other.
macro_rules! entries {
    ($($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, PartialEq, Eq, Default)]
            pub struct $name { $($(#[$doc])* pub $field: $type,)* }

            impl WireValue for $name {
                fn put(&self, to: &mut ValueWriter) {
                    $(self.$field.put(to);)*
                }

                fn get(from: &mut ValueReader<'_>) -> Option<Self> {
                    Some(Self { $($field: <$type>::get(from)?,)* })
                }
            }
        )*
    };
}

entries! {
    /// The daemon.
    ServiceDaemon {
        /// Its process.
        pid: u32,
        /// Its effective user.
        uid: u32,
        /// Its version.
        version: String,
        /// When it started, as time since 1970.
        started: Duration,
        /// Number of shards.
        shards: u16,
        /// Number of connection managers.
        managers: u16,
        /// Number of link servers on threads of their own.
        link_servers: u16,
        /// Sessions now, of all users.
        sessions: u32,
        /// Sessions since it started.
        sessions_begun: u64,
        /// Messages over tokens that are none.
        stray_messages: u64,
        /// Which components run together, such as TS2LS2CM2.
        layout: String,
        /// The process that asked sees what belongs to other users.
        sees_all: bool,
    }

    /// The networks that a stack reaches.
    ServiceNetworks {
        /// Its addresses on the link, each with the bits of its network.
        networks: Vec<(IpAddr, u8)>,
        /// Next hops for what is not on the link.
        gateways: Vec<IpAddr>,
        /// The link shares the host's addresses.
        shares_host_address: bool,
    }

    /// A shard.
    ServiceShard {
        /// Its number.
        number: u16,
        /// The core that its thread is pinned to.
        core: Option<u32>,
        /// Driver of its link.
        driver: String,
        /// Largest IP packet in bytes.
        mtu: u32,
        /// The link shares the host's addresses.
        shares_host_address: bool,
        /// The link fills in checksums of what is sent.
        tx_checksum: bool,
        /// The link cuts long segments.
        tso: bool,
        /// What the link cannot do here, and why.
        notes: Vec<String>,
        /// Addresses on the link.
        addresses: Vec<IpAddr>,
        /// Sessions, those included that have ended and still send.
        sessions: u32,
        /// Sessions whose rings are read at each poll.
        active: u32,
        /// Sessions that have ended and still send.
        draining: u32,
        /// Connections of all sessions.
        connections: u32,
        /// Most connections.
        connections_max: u32,
        /// Handshakes of which only the SYN has come.
        half_open: u32,
        /// Connections in TIME-WAIT.
        time_waits: u32,
        /// Private buffers in use: bytes of connections that no session has accepted.
        private_used: u32,
        /// Private buffers.
        private_buffers: u32,
        /// CPU time charged to sessions, those that are gone included, in nanoseconds.
        sessions_cpu_ns: u64,
        /// CPU time charged to none, in nanoseconds.
        own_cpu_ns: u64,
        /// Frames received.
        frames_in: u64,
        /// Frames sent.
        frames_out: u64,
        /// Bytes of payload received.
        bytes_in: u64,
        /// Bytes of payload sent.
        bytes_out: u64,
        /// Connections accepted.
        accepts: u64,
        /// Connections begun.
        connects: u64,
        /// Frames dropped, by reason.
        drops: Vec<(String, u64)>,
    }

    /// A user with quotas.
    ServiceUser {
        /// The user.
        uid: u32,
        /// Names of the policy file, with what all its channels have.
        quotas: Vec<(String, QuotaUse)>,
    }

    /// A quota of a user or of a channel, over all shards.
    QuotaUse {
        /// Has now.
        now: u32,
        /// At most.
        limit: u32,
        /// How often something was refused for it, or had to wait.
        reached: u64,
    }

    /// How much of something a session has, and how much it may have.
    SessionUse {
        /// Has now.
        now: u32,
        /// At most.
        limit: u32,
    }

    /// A session of a shard. A channel has one with each of its shards, all of one key.
    ServiceSession {
        /// Name of the channel at the daemon; 0: none.
        key: u64,
        /// Its shard.
        shard: u16,
        /// Its number there.
        number: u16,
        /// Its process; 0: gone.
        pid: u32,
        /// The user.
        uid: u32,
        /// Name of the program, as it names itself.
        program: String,
        /// When it attached, as time since 1970; 0: unknown.
        attached: Duration,
        /// Its share of a poll's operations, beside those of the other sessions.
        weight: u16,
        /// Quotas of the channel by their names in the policy file, with what it has on all shards;
        /// of a user without quotas, none.
        quotas: Vec<(String, QuotaUse)>,
        /// Largest backlog of its listeners.
        waiting_max: u32,
        /// It has ended; its connections send what was handed over.
        has_ended: bool,
        /// Its ring is read at each poll.
        is_active: bool,
        /// Connections that the application uses.
        connections: SessionUse,
        /// Of those, that are not established.
        connecting: SessionUse,
        /// Listeners.
        listeners: SessionUse,
        /// Endpoints for datagrams.
        endpoints: SessionUse,
        /// Connections that the application has closed and that may go on in the stack.
        closed: u32,
        /// Connections that its acceptors take in advance.
        credit: u32,
        /// Events that wait because the application does not read.
        parked: u32,
        /// The most of them at once.
        parked_max: u32,
        /// Operations taken.
        ops: u64,
        /// Events and answers published.
        events: u64,
        /// Operations that a limit refused.
        refused: u64,
        /// Names of other sessions' objects in operations.
        foreign_names: u64,
        /// Datagrams dropped because the application does not read.
        datagrams_dropped: u64,
        /// CPU time of the shard that is charged to it, in nanoseconds.
        cpu_ns: u64,
    }

    /// An acceptor of a listener: a session, or a part of one.
    ServiceAcceptor {
        /// Key of the session.
        session: u64,
        /// Connections that it takes in advance.
        credit: u32,
        /// Offers that it has not claimed yet.
        offered: u32,
        /// Connections that it has from this listener; `None`: not counted.
        open: Option<u32>,
        /// Its service time; `None`: not measured yet, or no other acceptor is there.
        service_time: Option<Duration>,
        /// It did not claim in time, and gets no offer until it does.
        is_dropped: bool,
        /// The connection manager that it is enlisted with, where there are several; `None`: it has
        /// not enlisted.
        home: Option<u16>,
        /// The last offer of that manager, if it names this acceptor: the service time, and how old
        /// the offer is.
        offer: Option<(Duration, Duration)>,
    }

    /// A decision of a balancer.
    ServicePick {
        /// Key of the acceptor's session.
        session: u64,
        /// How long ago.
        ago: Duration,
        /// What decided.
        reason: PickReason,
        /// The acceptor's service time then.
        service_time: Option<Duration>,
        /// Without a claim: there was no other acceptor.
        is_final: bool,
    }

    /// The hand-over of a listener that several sessions share.
    ServiceHandOver {
        /// Scheme of the balancer.
        scheme: String,
        /// Time in which an offer is claimed.
        claim_time: Duration,
        /// Connections that wait for an acceptor.
        waiting: u32,
        /// Assignments of this shard's connection manager to acceptors that are enlisted with it.
        assigned: u64,
        /// Its assignments to others.
        assigned_elsewhere: u64,
        /// Offers that it has sent to the other managers.
        offers_sent: u64,
        /// Offers that it has received of them.
        offers_received: u64,
        /// Connections that had to wait.
        waits: u64,
        /// Connections for which there was no room.
        refused: u64,
        /// Acceptors dropped because they did not claim in time.
        dropped: u64,
        /// Offers, final ones included.
        offers: u64,
        /// Offers without a claim.
        final_offers: u64,
        /// Claims in time.
        claims: u64,
        /// Median time from an offer to its confirmed claim; `None`: no claim yet.
        claim_p50: Option<Duration>,
        /// The same: 99 of 100 claims took at most so long.
        claim_p99: Option<Duration>,
        /// Claims after the time.
        late_claims: u64,
        /// Offers taken back because no claim came in time.
        take_backs: u64,
        /// Offers taken back because the acceptor was gone.
        orphans: u64,
        /// Offers withdrawn because the peer reset the connection.
        withdrawals: u64,
        /// The last picks, newest first.
        picks: Vec<ServicePick>,
    }

    /// A link server on a thread of its own.
    ServiceLinkServer {
        /// Its number.
        number: u16,
        /// The core that its thread is pinned to.
        core: Option<u32>,
        /// Queues of the link that it serves.
        queues: u32,
        /// CPU time of its thread, in nanoseconds. It is charged to no session and no shard.
        cpu_ns: u64,
        /// Frames received.
        frames_in: u64,
        /// Frames sent.
        frames_out: u64,
    }

    /// A connection manager.
    ServiceManager {
        /// Its number.
        number: u16,
        /// The shard that it runs in; `None`: it has a server of its own.
        shard: Option<u16>,
        /// Listeners that several sessions share, as it sees them.
        listeners: Vec<ManagedListener>,
    }

    /// A listener at a connection manager.
    ManagedListener {
        /// Address and port; `None` in no listener.
        local: Option<SocketAddr>,
        /// Scheme of the balancer.
        scheme: String,
        /// Connections that wait in its queue for an acceptor.
        waiting: u32,
        /// Connections that it assigned to acceptors enlisted with it.
        assigned: u64,
        /// Connections that it assigned to acceptors of other managers.
        assigned_elsewhere: u64,
        /// Offers that it has sent to the other managers.
        offers_sent: u64,
        /// Offers that it has received of them.
        offers_received: u64,
        /// Connections that had to wait.
        waits: u64,
        /// Connections for which there was no room.
        refused: u64,
        /// Acceptors dropped because they did not claim in time.
        dropped: u64,
        /// Acceptors of all managers that it knows.
        acceptor_count: u32,
        /// Those enlisted with it; at most 64 are listed.
        acceptors: Vec<ManagedAcceptor>,
        /// The last offers of other managers.
        offers: Vec<ManagerOffer>,
    }

    /// An acceptor at the connection manager that it is enlisted with.
    ManagedAcceptor {
        /// Key of its session.
        session: u64,
        /// It is enlisted; else it did not claim in time, or its session leaves.
        is_enlisted: bool,
        /// Connections that it would take over all its lanes.
        credit: u32,
        /// Connections that it has from this listener.
        open: u32,
        /// Its service time; `None`: not measured yet.
        service_time: Option<Duration>,
        /// Connections that were assigned to it, by any manager.
        assigned: u64,
        /// Offers to it that were taken back because no claim came in time.
        take_backs: u64,
    }

    /// An offer of another connection manager.
    ManagerOffer {
        /// The manager.
        manager: u16,
        /// Service time of its fastest acceptor.
        service_time: Duration,
        /// How old the offer is.
        age: Duration,
    }

    /// A listener of a shard.
    ServiceListener {
        /// Its shard.
        shard: u16,
        /// Place in the shard's table.
        index: u32,
        /// Address and port; `None` in no listener.
        local: Option<SocketAddr>,
        /// The user whose sessions may share it; `None`: exclusive.
        shared_by: Option<u32>,
        /// Connections that are established and not accepted.
        waiting: u32,
        /// Most of them.
        backlog: u32,
        /// Handshakes of which only the SYN has come.
        half_open: u32,
        /// Connections that its acceptors take in advance.
        credit: u32,
        /// Its acceptors; at most 64 are listed.
        acceptors: Vec<ServiceAcceptor>,
        /// How many there are.
        acceptor_count: u32,
        /// How connections are offered; `None`: one session alone has listened.
        hand_over: Option<ServiceHandOver>,
    }

    /// A timer of a socket.
    SocketTimer {
        /// What it is for.
        kind: SocketTimerKind,
        /// Time until it expires.
        left: Duration,
        /// How often it has expired in a row.
        attempts: u8,
    }

    /// A socket of a shard.
    ServiceSocket {
        /// Its state; for an endpoint for datagrams `Unconnected` or `Established`.
        state: SocketState,
        /// It is an endpoint for datagrams.
        is_datagram: bool,
        /// Place in the shard's table of such sockets.
        index: u32,
        /// Which of the sockets that ever were there.
        generation: u32,
        /// Our end; `None` in no socket.
        local: Option<SocketAddr>,
        /// The peer's; `None`: any.
        peer: Option<SocketAddr>,
        /// A connection: bytes that the stack has and the application has not. A listener:
        /// connections not accepted. An endpoint: datagrams.
        receive_queue: u32,
        /// A connection: bytes not acknowledged. A listener: its backlog. An endpoint: datagrams.
        send_queue: u32,
        /// Key of the session that has it; 0: none, or not one alone.
        session: u64,
        /// Its user, if it has a session.
        uid: Option<u32>,
        /// The timer that expires next.
        timer: Option<SocketTimer>,
        /// What TCP knows, if that was asked for and it is a connection.
        info: Option<Box<ConnInfo>>,
    }
}

impl WireValue for PickReason {
    fn put(&self, to: &mut ValueWriter) {
        to.u8(*self as u8);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        Self::ALL.get(usize::from(from.u8()?)).copied()
    }
}

/// What a timer is for, by the names of ss(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SocketTimerKind {
    /// Retransmission.
    #[default]
    On,
    /// Probes of a closed window.
    Persist,
    /// Probes of a silent peer.
    Keepalive,
    /// The end of TIME-WAIT, or of FIN-WAIT-2.
    TimeWait,
}

impl From<ConnTimerKind> for SocketTimerKind {
    fn from(kind: ConnTimerKind) -> Self {
        match kind {
            ConnTimerKind::Retransmission => Self::On,
            ConnTimerKind::Persist => Self::Persist,
            ConnTimerKind::Keepalive => Self::Keepalive,
            ConnTimerKind::End => Self::TimeWait,
        }
    }
}

impl WireValue for SocketTimerKind {
    fn put(&self, to: &mut ValueWriter) {
        to.u8(*self as u8);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        let all = [Self::On, Self::Persist, Self::Keepalive, Self::TimeWait];
        all.get(usize::from(from.u8()?)).copied()
    }
}

/// The state of a socket, as ss(8) tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SocketState {
    /// An endpoint for datagrams without a peer.
    #[default]
    Unconnected,
    /// A listener.
    Listen,
    /// A connection; an endpoint for datagrams with a peer is `Established`.
    Connection(TcpState),
    /// Both closed; old segments may arrive.
    TimeWait,
}

impl SocketState {
    /// All states, in the order of a listing.
    pub const ALL: [Self; 12] = [
        Self::Unconnected,
        Self::Listen,
        Self::Connection(TcpState::SynReceived),
        Self::Connection(TcpState::SynSent),
        Self::Connection(TcpState::Established),
        Self::Connection(TcpState::FinWait1),
        Self::Connection(TcpState::FinWait2),
        Self::Connection(TcpState::CloseWait),
        Self::Connection(TcpState::LastAck),
        Self::Connection(TcpState::Closing),
        Self::TimeWait,
        Self::Connection(TcpState::Closed),
    ];

    /// Returns its index in [`SocketState::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        Self::ALL.iter().position(|other| *other == self).expect("all states are in it")
    }
}

impl WireValue for SocketState {
    fn put(&self, to: &mut ValueWriter) {
        // Fewer than 256.
        to.u8(self.index() as u8);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        Self::ALL.get(usize::from(from.u8()?)).copied()
    }
}

impl WireValue for Box<ConnInfo> {
    fn put(&self, to: &mut ValueWriter) {
        to.bytes(&encode_info(self));
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        decode_info(from.bytes()?).map(Self::new)
    }
}
