//! What `explain` shows of a daemon: the part that concerns its target. Also its JSON: fields are
//! only added, never renamed; `docs/SERVICE.md` has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use megapipe_service::observe::{
    PickReason, QuotaUse, ServiceHandOver, ServiceListener, ServiceSession, ServiceShard,
    ServiceSocket, ServiceUser, SessionUse, SocketState,
};
use serde::Serialize;

use super::link_servers::LinkServerExplained;
use super::managers::{ManagerExplained, managers};
use super::target::ExplainTarget;
use super::times::{microseconds, seconds};
use crate::observed::{ObservedService, SocketOwner};
use crate::ss::{TcpInfoReport, state_name, tcp_words};

/// Most connections that are explained one by one.
const CONNECTIONS_MAX: usize = 64;

/// The part of a daemon that concerns a target.
#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    pub(super) service: PathBuf,
    pub(super) daemon: DaemonExplained,
    pub(super) shards: Vec<ShardExplained>,
    /// Link servers on threads of their own, which serve all shards.
    pub(super) link_servers: Vec<LinkServerExplained>,
    pub(super) listeners: Vec<ListenerExplained>,
    /// Connection managers, where the daemon has several or one apart, with the target's listeners.
    pub(super) managers: Vec<ManagerExplained>,
    pub(super) sessions: Vec<SessionExplained>,
    /// The quotas of the sessions' users; root and the daemon's user have none.
    pub(super) users: Vec<UserExplained>,
    /// Sockets of the target by state.
    pub(super) states: BTreeMap<&'static str, usize>,
    /// Those of an end, at most 64.
    pub(super) connections: Vec<ConnectionExplained>,
}

#[derive(Debug, Serialize)]
pub(super) struct DaemonExplained {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// When it started, as seconds since 1970.
    pub(super) started: f64,
    pub(super) running_s: f64,
    pub(super) sessions: u32,
    pub(super) sessions_since_start: u64,
    /// Messages over tokens that are none.
    pub(super) stray_token_messages: u64,
    /// Which components of the daemon run together, such as TS2LS2CM2.
    pub(super) layout: String,
    pub(super) sees_all: bool,
}

/// How much there is of something, and the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct UseExplained {
    pub(super) now: u32,
    pub(super) limit: u32,
}

impl From<SessionUse> for UseExplained {
    fn from(SessionUse { now, limit }: SessionUse) -> Self {
        Self { now, limit }
    }
}

/// The same of a quota, and how often something was refused for it, or had to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct QuotaExplained {
    pub(super) now: u32,
    pub(super) limit: u32,
    pub(super) reached: u64,
}

/// Quotas by their names in the policy file.
type QuotasExplained = BTreeMap<String, QuotaExplained>;

fn quotas(all: &[(String, QuotaUse)]) -> QuotasExplained {
    let explained = |QuotaUse { now, limit, reached }: &QuotaUse| QuotaExplained {
        now: *now,
        limit: *limit,
        reached: *reached,
    };
    all.iter().map(|(name, quota)| (name.clone(), explained(quota))).collect()
}

#[derive(Debug, Serialize)]
pub(super) struct LinkExplained {
    pub(super) driver: String,
    pub(super) mtu: u32,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) shares_host_address: bool,
    pub(super) tx_checksum: bool,
    pub(super) tso: bool,
    /// What it cannot do here, and why.
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ShardExplained {
    pub(super) shard: u16,
    pub(super) core: Option<u32>,
    pub(super) link: LinkExplained,
    pub(super) sessions: u32,
    pub(super) active_sessions: u32,
    pub(super) ended_sessions: u32,
    pub(super) connections: UseExplained,
    pub(super) handshakes: u32,
    pub(super) time_waits: u32,
    pub(super) private_buffers: UseExplained,
    /// CPU time charged to sessions, those that are gone included.
    pub(super) cpu_sessions_s: f64,
    /// CPU time that belongs to no session.
    pub(super) cpu_unattributed_s: f64,
    pub(super) accepts: u64,
    pub(super) connects: u64,
    pub(super) frames_in: u64,
    pub(super) frames_out: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) drops: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct AcceptorExplained {
    pub(super) session: u64,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) program: String,
    /// Connections that it takes in advance.
    pub(super) credit: u32,
    /// Offers that it has not claimed yet.
    pub(super) offered: u32,
    /// Connections from this listener, or of the whole session if they are not counted.
    pub(super) connections: u32,
    pub(super) service_time_us: Option<f64>,
    /// It did not claim in time, and gets no offer until it does.
    pub(super) is_dropped: bool,
    /// The connection manager that it is enlisted with. Null: it has not enlisted.
    pub(super) home: Option<u16>,
    /// The service time that the last offer of another manager has for it.
    pub(super) offered_service_time_us: Option<f64>,
    /// How old that offer is.
    pub(super) offer_s_ago: Option<f64>,
}

/// A decision of the balancer.
#[derive(Debug, Serialize)]
pub(super) struct PickExplained {
    pub(super) session: u64,
    pub(super) s_ago: f64,
    /// `service time`, `offer of a shard`, `any` or `hash`.
    pub(super) reason: &'static str,
    pub(super) service_time_us: Option<f64>,
    /// Without a claim: there was no other acceptor.
    pub(super) is_final: bool,
}

/// How connections are offered among several sessions.
#[derive(Debug, Serialize)]
pub(super) struct HandOverExplained {
    pub(super) scheme: String,
    pub(super) claim_time_us: f64,
    pub(super) waiting: u32,
    /// Connections that this shard's connection manager gave to acceptors enlisted with it.
    pub(super) assigned: u64,
    /// Connections that it gave to acceptors of other managers.
    pub(super) assigned_elsewhere: u64,
    /// Offers between connection managers.
    pub(super) offers_sent: u64,
    pub(super) offers_received: u64,
    pub(super) waits: u64,
    pub(super) refused: u64,
    pub(super) dropped_acceptors: u64,
    pub(super) offers: u64,
    pub(super) final_offers: u64,
    pub(super) claims: u64,
    /// Time from an offer to its confirmed claim; null: no claim yet.
    pub(super) claim_p50_us: Option<f64>,
    pub(super) claim_p99_us: Option<f64>,
    pub(super) late_claims: u64,
    pub(super) take_backs: u64,
    pub(super) orphans: u64,
    pub(super) withdrawals: u64,
    /// The last picks, newest first.
    pub(super) picks: Vec<PickExplained>,
}

#[derive(Debug, Serialize)]
pub(super) struct ListenerExplained {
    pub(super) local: Option<SocketAddr>,
    pub(super) shard: u16,
    /// Connections that are established and not accepted.
    pub(super) waiting: u32,
    pub(super) backlog: u32,
    pub(super) handshakes: u32,
    pub(super) credit: u32,
    /// The user whose programs may share it.
    pub(super) shared_by_uid: Option<u32>,
    pub(super) acceptor_count: u32,
    pub(super) acceptors: Vec<AcceptorExplained>,
    /// How a connection gets its acceptor.
    pub(super) offers: &'static str,
    /// Null: one session alone has listened.
    pub(super) hand_over: Option<HandOverExplained>,
}

#[derive(Debug, Serialize)]
pub(super) struct SessionExplained {
    pub(super) session: u64,
    pub(super) shard: u16,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) program: String,
    pub(super) attached_s_ago: Option<f64>,
    /// Seconds from the start of the process to that of the daemon, if the process is older: its
    /// channel may have attached again, after an earlier daemon.
    pub(super) older_than_daemon_s: Option<f64>,
    /// Seconds from the start of the daemon to the attachment.
    pub(super) attached_after_start_s: Option<f64>,
    pub(super) has_ended: bool,
    pub(super) is_active: bool,
    /// Its share of a poll's operations, beside those of the other sessions.
    pub(super) weight: u16,
    /// Quotas of the channel, with what it has on all shards. Root and the daemon's user have none.
    pub(super) quotas: QuotasExplained,
    /// Largest backlog of its listeners.
    pub(super) backlog_limit: u32,
    pub(super) connections: UseExplained,
    pub(super) connecting: UseExplained,
    pub(super) listeners: UseExplained,
    pub(super) endpoints: UseExplained,
    pub(super) closed_connections: u32,
    pub(super) credit: u32,
    pub(super) parked_events: u32,
    pub(super) parked_events_max: u32,
    pub(super) operations: u64,
    pub(super) events: u64,
    pub(super) refused: u64,
    pub(super) foreign_names: u64,
    pub(super) datagrams_dropped: u64,
    pub(super) cpu_s: f64,
}

/// A user's quotas by their names in the policy file, with what all its channels have.
#[derive(Debug, Serialize)]
pub(super) struct UserExplained {
    pub(super) uid: u32,
    pub(super) quotas: QuotasExplained,
}

#[derive(Debug, Serialize)]
pub(super) struct ConnectionExplained {
    pub(super) state: &'static str,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) shard: u16,
    pub(super) recv_q: u32,
    pub(super) send_q: u32,
    pub(super) owners: Vec<SocketOwner>,
    pub(super) tcp_info: Option<TcpInfoReport>,
    /// The same in the words of `ss -i`.
    #[serde(skip)]
    pub(super) words: Option<String>,
}

/// What decides which acceptor gets a connection.
const fn offers(acceptors: u32, is_shared: bool) -> &'static str {
    match (acceptors, is_shared) {
        (0, _) => "no acceptor: connections wait in the backlog",
        (_, true) => "offered by service time, and taken back if not claimed in time",
        (1, false) => {
            "not offered: single acceptor, which gets each connection when it is established"
        }
        (_, false) => "acceptors with credit take turns",
    }
}

/// Which parts of a daemon concern a target.
#[derive(Default)]
struct Concerned {
    shards: BTreeSet<u16>,
    sessions: BTreeSet<u64>,
    /// Shard and index.
    listeners: BTreeSet<(u16, u32)>,
}

impl Concerned {
    fn add_socket(&mut self, shard: u16, socket: &ServiceSocket) {
        self.shards.insert(shard);
        self.sessions.extend((socket.session != 0).then_some(socket.session));
        if socket.state == SocketState::Listen {
            self.listeners.insert((shard, socket.index));
        }
    }

    fn has(&self, listener: &ServiceListener) -> bool {
        self.listeners.contains(&(listener.shard, listener.index))
    }

    /// Adds the sessions that accept on the listeners.
    fn add_acceptors(&mut self, listeners: &[ServiceListener]) {
        let its: Vec<_> = listeners.iter().filter(|it| self.has(it)).collect();
        let acceptors = its.into_iter().flat_map(|it| &it.acceptors);
        self.sessions.extend(acceptors.map(|acceptor| acceptor.session));
    }
}

/// Whether a socket with these owners belongs to a target.
fn is_of(target: ExplainTarget, socket: &ServiceSocket, owners: &[SocketOwner]) -> bool {
    match target {
        ExplainTarget::Daemon => true,
        ExplainTarget::Port(port) => socket.local.is_some_and(|local| local.port() == port),
        ExplainTarget::End(end) => socket.local == Some(end) || socket.peer == Some(end),
        ExplainTarget::Process(pid) => owners.iter().any(|owner| owner.pid == pid),
    }
}

impl Explanation {
    /// Selects what concerns a target. `started` is when a process began, as time since the
    /// machine's start.
    pub(super) fn of(
        observed: &ObservedService,
        target: ExplainTarget,
        started: &dyn Fn(u32) -> Option<Duration>,
    ) -> Self {
        let owners = observed.owners();
        let sockets = observed.sockets.iter();
        let its = |(shard, socket): &&(u16, ServiceSocket)| {
            is_of(target, socket, &owners(*shard, socket))
        };
        let sockets: Vec<_> = sockets.filter(its).collect();
        let mut concerned = Concerned::default();
        let mut states = BTreeMap::new();
        for (shard, socket) in &sockets {
            concerned.add_socket(*shard, socket);
            *states.entry(state_name(socket.state)).or_insert(0) += 1;
        }
        if let ExplainTarget::Process(pid) = target {
            let sessions = observed.sessions.iter().filter(|session| session.pid == pid);
            concerned.sessions.extend(sessions.map(|session| session.key));
        } else {
            // The other acceptors of a listener of a process are named there, no more.
            concerned.add_acceptors(&observed.listeners);
        }
        if target == ExplainTarget::Daemon {
            concerned.shards.extend(observed.shards.iter().map(|shard| shard.number));
            concerned.sessions.extend(observed.sessions.iter().map(|session| session.key));
        }
        let its_sessions = observed.sessions.iter();
        let its_sessions: Vec<_> = its_sessions
            .filter(|session| concerned.sessions.contains(&session.key))
            .map(|session| SessionExplained::of(observed, session, started))
            .collect();
        concerned.shards.extend(its_sessions.iter().map(|session| session.shard));
        let users = observed.users.iter();
        let users = users.filter(|user| its_sessions.iter().any(|it| it.uid == user.uid));
        let users = users.map(UserExplained::of).collect();
        let shards = observed.shards.iter();
        let shards = shards.filter(|shard| concerned.shards.contains(&shard.number));
        let listeners = observed.listeners.iter();
        let listeners = listeners.filter(|it| concerned.has(it));
        let connections = match target {
            ExplainTarget::End(_) => &sockets[..sockets.len().min(CONNECTIONS_MAX)],
            _ => &[],
        };
        let connection = |(shard, socket): &&(u16, ServiceSocket)| {
            ConnectionExplained::of(*shard, socket, owners(*shard, socket))
        };
        Self {
            service: observed.path.clone(),
            daemon: DaemonExplained::of(observed),
            shards: shards.map(ShardExplained::of).collect(),
            link_servers: observed.link_servers.iter().map(LinkServerExplained::of).collect(),
            listeners: listeners.map(|it| ListenerExplained::of(observed, it)).collect(),
            managers: managers(observed, target, |it| concerned.has(it)),
            sessions: its_sessions,
            users,
            states,
            connections: connections.iter().map(connection).collect(),
        }
    }

    /// Whether the daemon has nothing of the target.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.states.is_empty() && self.listeners.is_empty()
    }
}

impl DaemonExplained {
    fn of(observed: &ObservedService) -> Self {
        let daemon = &observed.daemon;
        Self {
            version: daemon.version.clone(),
            pid: daemon.pid,
            uid: daemon.uid,
            started: daemon.started.as_secs_f64(),
            running_s: observed.now.saturating_sub(daemon.started).as_secs_f64(),
            sessions: daemon.sessions,
            sessions_since_start: daemon.sessions_begun,
            stray_token_messages: daemon.stray_messages,
            layout: daemon.layout.clone(),
            sees_all: daemon.sees_all,
        }
    }
}

impl ShardExplained {
    fn of(shard: &ServiceShard) -> Self {
        Self {
            shard: shard.number,
            core: shard.core,
            link: LinkExplained {
                driver: shard.driver.clone(),
                mtu: shard.mtu,
                addresses: shard.addresses.clone(),
                shares_host_address: shard.shares_host_address,
                tx_checksum: shard.tx_checksum,
                tso: shard.tso,
                notes: shard.notes.clone(),
            },
            sessions: shard.sessions,
            active_sessions: shard.active,
            ended_sessions: shard.draining,
            connections: UseExplained { now: shard.connections, limit: shard.connections_max },
            handshakes: shard.half_open,
            time_waits: shard.time_waits,
            private_buffers: UseExplained { now: shard.private_used, limit: shard.private_buffers },
            cpu_sessions_s: seconds(shard.sessions_cpu_ns),
            cpu_unattributed_s: seconds(shard.own_cpu_ns),
            accepts: shard.accepts,
            connects: shard.connects,
            frames_in: shard.frames_in,
            frames_out: shard.frames_out,
            bytes_in: shard.bytes_in,
            bytes_out: shard.bytes_out,
            drops: shard.drops.iter().cloned().collect(),
        }
    }
}

impl ListenerExplained {
    fn of(observed: &ObservedService, listener: &ServiceListener) -> Self {
        let acceptors = listener.acceptors.iter().filter_map(|acceptor| {
            let session = observed.session(acceptor.session)?;
            Some(AcceptorExplained {
                session: session.key,
                pid: session.pid,
                uid: session.uid,
                program: session.program.clone(),
                credit: acceptor.credit,
                offered: acceptor.offered,
                connections: acceptor.open.unwrap_or(session.connections.now),
                service_time_us: acceptor.service_time.map(microseconds),
                is_dropped: acceptor.is_dropped,
                home: acceptor.home,
                offered_service_time_us: acceptor.offer.map(|(time, _)| microseconds(time)),
                offer_s_ago: acceptor.offer.map(|(_, age)| age.as_secs_f64()),
            })
        });
        Self {
            local: listener.local,
            shard: listener.shard,
            waiting: listener.waiting,
            backlog: listener.backlog,
            handshakes: listener.half_open,
            credit: listener.credit,
            shared_by_uid: listener.shared_by,
            acceptor_count: listener.acceptor_count,
            acceptors: acceptors.collect(),
            offers: offers(listener.acceptor_count, listener.hand_over.is_some()),
            hand_over: listener.hand_over.as_ref().map(HandOverExplained::of),
        }
    }
}

impl HandOverExplained {
    fn of(hand_over: &ServiceHandOver) -> Self {
        let picks = hand_over.picks.iter().map(|pick| PickExplained {
            session: pick.session,
            s_ago: pick.ago.as_secs_f64(),
            reason: match pick.reason {
                PickReason::Local => "service time",
                PickReason::Offer => "offer of a shard",
                PickReason::Member => "any",
                PickReason::Hash => "hash",
            },
            service_time_us: pick.service_time.map(microseconds),
            is_final: pick.is_final,
        });
        Self {
            scheme: hand_over.scheme.clone(),
            claim_time_us: microseconds(hand_over.claim_time),
            waiting: hand_over.waiting,
            assigned: hand_over.assigned,
            assigned_elsewhere: hand_over.assigned_elsewhere,
            offers_sent: hand_over.offers_sent,
            offers_received: hand_over.offers_received,
            waits: hand_over.waits,
            refused: hand_over.refused,
            dropped_acceptors: hand_over.dropped,
            offers: hand_over.offers,
            final_offers: hand_over.final_offers,
            claims: hand_over.claims,
            claim_p50_us: hand_over.claim_p50.map(microseconds),
            claim_p99_us: hand_over.claim_p99.map(microseconds),
            late_claims: hand_over.late_claims,
            take_backs: hand_over.take_backs,
            orphans: hand_over.orphans,
            withdrawals: hand_over.withdrawals,
            picks: picks.collect(),
        }
    }
}

impl SessionExplained {
    fn of(
        observed: &ObservedService,
        session: &ServiceSession,
        started: &dyn Fn(u32) -> Option<Duration>,
    ) -> Self {
        let is_known = session.pid != 0;
        let start = observed.daemon.started;
        let process = started(session.pid).filter(|_| is_known);
        let daemon = started(observed.daemon.pid);
        let older = daemon.zip(process).and_then(|(daemon, process)| daemon.checked_sub(process));
        let older = older.filter(|older| !older.is_zero());
        let since = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        Self {
            session: session.key,
            shard: session.shard,
            pid: session.pid,
            uid: session.uid,
            program: session.program.clone(),
            attached_s_ago: is_known.then(|| since(session.attached, observed.now)),
            older_than_daemon_s: older.map(|older| older.as_secs_f64()),
            attached_after_start_s: is_known.then(|| since(start, session.attached)),
            has_ended: session.has_ended,
            is_active: session.is_active,
            weight: session.weight,
            quotas: quotas(&session.quotas),
            backlog_limit: session.waiting_max,
            connections: session.connections.clone().into(),
            connecting: session.connecting.clone().into(),
            listeners: session.listeners.clone().into(),
            endpoints: session.endpoints.clone().into(),
            closed_connections: session.closed,
            credit: session.credit,
            parked_events: session.parked,
            parked_events_max: session.parked_max,
            operations: session.ops,
            events: session.events,
            refused: session.refused,
            foreign_names: session.foreign_names,
            datagrams_dropped: session.datagrams_dropped,
            cpu_s: seconds(session.cpu_ns),
        }
    }
}

impl UserExplained {
    fn of(user: &ServiceUser) -> Self {
        Self { uid: user.uid, quotas: quotas(&user.quotas) }
    }
}

impl ConnectionExplained {
    fn of(shard: u16, socket: &ServiceSocket, owners: Vec<SocketOwner>) -> Self {
        let info = socket.info.as_deref();
        Self {
            state: state_name(socket.state),
            local: socket.local,
            peer: socket.peer,
            shard,
            recv_q: socket.receive_queue,
            send_q: socket.send_queue,
            owners,
            tcp_info: info.map(TcpInfoReport::from),
            words: info.map(tcp_words),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use megapipe::TcpState;
    use megapipe_service::observe::{
        ManagedAcceptor, ManagedListener, ManagerOffer, ServiceAcceptor, ServiceDaemon,
        ServiceManager,
    };

    use super::super::link_servers::tests::link_server;
    use super::*;

    const fn second(count: u64) -> Duration {
        Duration::from_secs(1_700_000_000 + count)
    }

    /// A manager on a server of its own, with an acceptor of the daemon's and one that has ended.
    fn manager(number: u16, local: Option<SocketAddr>) -> ServiceManager {
        let acceptor = |session: u64, assigned: u64| ManagedAcceptor {
            session,
            is_enlisted: true,
            credit: 8,
            open: 2,
            service_time: Some(Duration::from_micros(1_500)),
            assigned,
            take_backs: 1,
        };
        let offer = ManagerOffer {
            manager: 1 - number,
            service_time: Duration::from_micros(900),
            age: Duration::from_millis(4),
        };
        let listener = ManagedListener {
            local,
            scheme: "tournament:2".to_owned(),
            assigned: 20,
            assigned_elsewhere: 7,
            acceptor_count: 2,
            acceptors: vec![acceptor(u64::from(number) * 2 + 3, 30), acceptor(21, 10)],
            offers: vec![offer],
            ..ManagedListener::default()
        };
        ServiceManager { number, shard: None, listeners: vec![listener] }
    }

    /// Two programs on two shards, one of them with a listener and a connection; a handshake.
    pub(crate) fn observed() -> ObservedService {
        let local: Option<SocketAddr> = "10.0.0.2:80".parse().ok();
        let peer: Option<SocketAddr> = "10.0.0.1:54321".parse().ok();
        let session = |key, shard, pid, program: &str| ServiceSession {
            key,
            shard,
            pid,
            uid: 1_000,
            program: program.to_owned(),
            attached: second(100),
            connections: SessionUse { now: 1, limit: 65_536 },
            cpu_ns: 1_500_000_000,
            ..ServiceSession::default()
        };
        let socket = ServiceSocket { local, index: 4, session: 3, ..Default::default() };
        let listening = ServiceSocket { state: SocketState::Listen, ..socket.clone() };
        let [open, half] =
            [TcpState::Established, TcpState::SynReceived].map(SocketState::Connection);
        let open = ServiceSocket { state: open, peer, ..socket.clone() };
        let half = ServiceSocket { state: half, peer, session: 0, ..socket };
        let acceptors = vec![ServiceAcceptor { session: 3, credit: 64, ..Default::default() }];
        let listener = ServiceListener {
            index: 4,
            local,
            backlog: 1_024,
            acceptors,
            acceptor_count: 1,
            ..ServiceListener::default()
        };
        let shard = |number| ServiceShard {
            number,
            driver: "tap".to_owned(),
            mtu: 1_500,
            sessions: 1,
            connections: 1,
            connections_max: 65_536,
            sessions_cpu_ns: 3_000_000_000,
            own_cpu_ns: 1_000_000_000,
            notes: vec!["no checksum offload: the device has none".to_owned()],
            addresses: vec![IpAddr::from([10, 0, 0, 2])],
            drops: vec![("no_connection".to_owned(), 2)],
            ..ServiceShard::default()
        };
        ObservedService {
            path: PathBuf::from("/run/x"),
            daemon: ServiceDaemon {
                pid: 9,
                version: "0.1.0".to_owned(),
                started: second(90),
                shards: 2,
                sessions: 2,
                sessions_begun: 5,
                stray_messages: 3,
                layout: "TS2LS2CM2".to_owned(),
                ..ServiceDaemon::default()
            },
            shards: vec![shard(0), shard(1)],
            sessions: vec![session(3, 0, 12, "serve"), session(5, 1, 34, "load")],
            listeners: vec![listener],
            managers: vec![manager(0, local), manager(1, local)],
            link_servers: vec![link_server()],
            users: vec![ServiceUser {
                uid: 1_000,
                quotas: vec![("channels".to_owned(), QuotaUse { now: 2, limit: 256, reached: 3 })],
            }],
            sockets: vec![(0, listening), (0, open), (0, half)],
            now: second(190),
        }
    }

    /// The daemon is 10 s younger than one program, and older than the other.
    pub(crate) fn started(pid: u32) -> Option<Duration> {
        let start = [(12, 80), (9, 90), (34, 95)].into_iter().find(|(its, _)| *its == pid);
        start.map(|(_, start)| Duration::from_secs(start))
    }

    fn explained(target: ExplainTarget) -> Explanation {
        Explanation::of(&observed(), target, &started)
    }

    #[test]
    fn port_has_its_listener_acceptors_and_shard() {
        let port = explained(ExplainTarget::Port(80));
        assert_eq!(port.shards.iter().map(|it| it.shard).collect::<Vec<_>>(), [0]);
        assert_eq!(port.listeners.len(), 1);
        let acceptor = &port.listeners[0].acceptors[0];
        assert_eq!((acceptor.pid, acceptor.credit), (12, 64));
        assert!(port.listeners[0].offers.starts_with("not offered: single acceptor"));
        assert_eq!(port.sessions.iter().map(|it| it.session).collect::<Vec<_>>(), [3]);
        assert_eq!(port.states, [("ESTAB", 1), ("LISTEN", 1), ("SYN-RECV", 1)].into());
        assert!(explained(ExplainTarget::Port(81)).is_empty());
    }

    #[test]
    fn process_has_its_sessions_and_what_it_listens_on() {
        let process = explained(ExplainTarget::Process(12));
        assert_eq!(process.listeners.len(), 1);
        assert_eq!(process.states, [("ESTAB", 1), ("LISTEN", 1)].into());
        let session = &process.sessions[0];
        assert_eq!(session.older_than_daemon_s, Some(10.0));
        assert_eq!(session.attached_after_start_s, Some(10.0));
        assert_eq!((session.attached_s_ago, session.cpu_s), (Some(90.0), 1.5));
        // Another program at the same address is an acceptor, and its session is not of this one.
        let mut shared = observed();
        let acceptor = ServiceAcceptor { session: 5, ..ServiceAcceptor::default() };
        shared.listeners[0].acceptors.push(acceptor);
        shared.sockets[0].1.session = 0;
        let both = Explanation::of(&shared, ExplainTarget::Process(12), &started);
        assert_eq!((both.listeners[0].acceptors.len(), both.sessions.len()), (2, 1));
        assert_eq!(both.states, process.states);
        let other = explained(ExplainTarget::Process(34));
        assert_eq!(other.shards[0].shard, 1);
        assert!(other.listeners.is_empty() && other.sessions[0].older_than_daemon_s.is_none());
        assert!(explained(ExplainTarget::Process(56)).is_empty());
    }

    #[test]
    fn end_has_its_connections_and_the_daemon_has_all() {
        let end = "10.0.0.1:54321".parse().expect("an end");
        let end = explained(ExplainTarget::End(end));
        assert_eq!(end.connections.len(), 2);
        assert_eq!(end.connections[0].owners[0].pid, 12);
        assert!(end.connections[1].owners.is_empty());
        let all = explained(ExplainTarget::Daemon);
        assert_eq!((all.shards.len(), all.sessions.len()), (2, 2));
        let channels = QuotaExplained { now: 2, limit: 256, reached: 3 };
        assert_eq!(all.users[0].quotas["channels"], channels);
        assert!(all.connections.is_empty());
    }

    #[test]
    fn managers_have_the_listeners_of_the_target() {
        let port = explained(ExplainTarget::Port(80));
        let numbers: Vec<_> = port.managers.iter().map(|it| (it.manager, it.shard)).collect();
        assert_eq!(numbers, [(0, None), (1, None)]);
        let managed = &port.managers[0].listeners[0];
        assert_eq!((managed.assigned, managed.assigned_elsewhere), (20, 7));
        assert_eq!((managed.acceptors[0].pid, managed.acceptors[0].share), (12, 0.75));
        assert_eq!(managed.offers[0].manager, 1);
        assert!(explained(ExplainTarget::Process(34)).managers.is_empty());
        let mut combined = observed();
        combined.managers.truncate(1);
        combined.managers[0].shard = Some(0);
        combined.shards.truncate(1);
        let all = Explanation::of(&combined, ExplainTarget::Daemon, &started);
        assert!(all.managers.is_empty(), "the shard has it all");
    }

    #[test]
    fn acceptors_decide_how_connections_are_offered() {
        assert!(offers(0, false).contains("backlog"));
        assert!(offers(1, false).starts_with("not offered"));
        assert!(offers(2, false).contains("take turns"));
        assert!(offers(2, true).starts_with("offered by service time"));
    }
}
