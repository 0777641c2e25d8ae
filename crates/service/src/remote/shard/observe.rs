//! Pages of what a shard shows of itself: a bounded part of its tables each.
//!
//! Read first: `observe.rs` of the crate. A page is made between two polls, on the shard's thread;
//! [`PLACES_PER_PAGE`] and its kin bound what it costs, whatever the viewer asks for.
//!
//! Invariant: a viewer that does not see all gets only what belongs to its user. What belongs to no
//! user (handshakes, TIME-WAIT, connections that no session has accepted) it does not get.

use megapipe_stack::{ConnId, Instant, ListedSocket, ListenerId, ListingCursor, PoolId, TcpState};

use super::SessionShard;
use super::owners::ConnCounts;
use super::shard_session::ShardSession;
use crate::limits::{
    ACCEPTORS_LISTED_MAX, ADDRESSES_SHOWN, LISTENERS_PER_PAGE, PLACES_PER_PAGE, SESSIONS_PER_PAGE,
    SOCKETS_PER_PAGE,
};
use crate::observe::{
    AnswerBody, AnswerPage, QuerySubject, ServiceAcceptor, ServiceHandOver, ServiceListener,
    ServiceNetworks, ServiceQuery, ServiceSession, ServiceShard, ServiceSocket, SessionUse,
    SocketState, SocketTimer, SocketTimerKind, Viewer,
};

/// A count of a table, or as many as fit.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

impl SessionShard {
    /// The page that a query asks for.
    pub(in crate::remote) fn page(
        &mut self,
        now: Instant,
        query: &ServiceQuery,
        viewer: Viewer,
    ) -> AnswerPage {
        if matches!(query.subject, QuerySubject::Shard | QuerySubject::Sessions) {
            // The stack reports no end of a connection that its application has closed.
            self.recount(now);
        }
        match query.subject {
            // The daemon answers them without a shard.
            QuerySubject::Daemon | QuerySubject::Users | QuerySubject::LinkServer => {
                AnswerPage::last(AnswerBody::Shard(None))
            }
            QuerySubject::Manager => {
                let page = self.hand_overs.manager_page(now, query.from);
                page.unwrap_or_else(|| AnswerPage::last(AnswerBody::Manager(None)))
            }
            QuerySubject::Networks => AnswerPage::last(AnswerBody::Networks(self.networks())),
            QuerySubject::Shard => {
                AnswerPage::last(AnswerBody::Shard(Some(Box::new(self.summary()))))
            }
            QuerySubject::Sessions => self.sessions_page(query.from, viewer),
            QuerySubject::Listeners => self.listeners_page(now, query.from, viewer),
            QuerySubject::Sockets => self.sockets_page(now, query, viewer),
        }
    }

    /// The networks that its stack reaches.
    fn networks(&self) -> ServiceNetworks {
        let config = self.server.stack().config();
        ServiceNetworks {
            networks: config.all_addresses().take(ADDRESSES_SHOWN).collect(),
            gateways: config.routes.iter().filter_map(|it| it.via).take(ADDRESSES_SHOWN).collect(),
            shares_host_address: self.server.caps().shares_host_address,
        }
    }

    /// What the shard knows of itself. Its number, core and link are known to its holder.
    fn summary(&mut self) -> ServiceShard {
        let draining = count(self.sessions.draining.len());
        let (private_used, private_buffers) = self.server.parts().1.private_buffers();
        let (sessions_cpu_ns, own_cpu_ns) = self.account.totals();
        let stack = self.server.stack();
        let (usage, totals) = (stack.tcp_usage(), stack.counters().totals);
        let drops = stack.counters().drops().filter(|(_, count)| *count > 0);
        ServiceShard {
            sessions: count(self.sessions.count()),
            active: count(self.sessions.active.len()),
            draining,
            connections: self.owners.conn_count(),
            connections_max: stack.config().connections,
            half_open: usage.embryonic,
            time_waits: usage.time_waits,
            private_used,
            private_buffers,
            sessions_cpu_ns,
            own_cpu_ns,
            frames_in: totals.frames_in,
            frames_out: totals.frames_out,
            bytes_in: totals.bytes_in,
            bytes_out: totals.bytes_out,
            accepts: totals.accepts,
            connects: totals.connects,
            drops: drops.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
            ..ServiceShard::default()
        }
    }

    fn sessions_page(&self, from: u64, viewer: Viewer) -> AnswerPage {
        let (mut entries, mut next) = (Vec::new(), None);
        for (id, session) in self.sessions.all_from(from) {
            if entries.len() >= SESSIONS_PER_PAGE {
                next = Some(id.number.into());
                break;
            }
            if viewer.sees(Some(session.limits.user)) {
                let counts = self.owners.counts(PoolId(id.number));
                entries.push(ServiceSession { number: id.number, ..session.entry(counts) });
            }
        }
        AnswerPage { next, body: AnswerBody::Sessions(entries) }
    }

    /// Listeners are first among the sockets.
    fn listeners_page(&self, now: Instant, from: u64, viewer: Viewer) -> AnswerPage {
        let mut entries = Vec::new();
        let mut is_over = false;
        let from = ListingCursor::from_bits(from);
        let next = self.server.stack().list_sockets(from, PLACES_PER_PAGE, |socket| {
            let ListedSocket::Listener { id, local, waiting, backlog, half_open, credit } = socket
            else {
                is_over = true;
                return false;
            };
            let owners = self.owners.sessions_of_listener(id);
            let shared_by = self.owners.sharer_of_listener(id);
            if viewer.sees(self.user_of_listener(id)) {
                let (hand_over, mut acceptors) = self.acceptors(now, (id, local.port()), owners);
                let acceptor_count = count(acceptors.len());
                acceptors.truncate(ACCEPTORS_LISTED_MAX);
                entries.push(ServiceListener {
                    index: id.index,
                    local: Some(local),
                    shared_by,
                    waiting,
                    backlog,
                    half_open,
                    credit,
                    acceptors,
                    acceptor_count,
                    hand_over,
                    ..ServiceListener::default()
                });
            }
            entries.len() < LISTENERS_PER_PAGE
        });
        let next = next.filter(|_| !is_over).map(ListingCursor::to_bits);
        AnswerPage { next, body: AnswerBody::Listeners(entries) }
    }

    /// The acceptors of a listener, and its hand-over, if it has one.
    fn acceptors(
        &self,
        now: Instant,
        (listener, port): (ListenerId, u16),
        owners: &[PoolId],
    ) -> (Option<ServiceHandOver>, Vec<ServiceAcceptor>) {
        let key = |id: PoolId| self.sessions.get(id).map_or(0, |session| session.limits.key);
        if let Some((hand_over, mut acceptors)) = self.hand_overs.shown(now, (listener, port), &key)
        {
            // A session that has not accepted yet is no acceptor of the machines.
            for session in owners.iter().map(|owner| key(*owner)) {
                if acceptors.iter().all(|acceptor| acceptor.session != session) {
                    acceptors.push(ServiceAcceptor { session, ..ServiceAcceptor::default() });
                }
            }
            return (Some(hand_over), acceptors);
        }
        let acceptor = |id: &PoolId| ServiceAcceptor {
            session: key(*id),
            credit: self.server.credit_of(listener, *id),
            ..ServiceAcceptor::default()
        };
        (None, owners.iter().map(acceptor).collect())
    }

    /// The user of the session that has listened longest, or of the one that has begun it.
    fn user_of_listener(&self, listener: ListenerId) -> Option<u32> {
        let first = self.owners.sessions_of_listener(listener).first().copied();
        self.user_of(first).or_else(|| self.owners.user_of_listener(listener))
    }

    fn user_of(&self, session: Option<PoolId>) -> Option<u32> {
        Some(self.sessions.get(session?)?.limits.user)
    }

    fn sockets_page(&self, now: Instant, query: &ServiceQuery, viewer: Viewer) -> AnswerPage {
        let (without, with) = SOCKETS_PER_PAGE;
        let most = if query.with_info { with } else { without };
        let mut entries = Vec::with_capacity(most);
        let from = ListingCursor::from_bits(query.from);
        let next = self.server.stack().list_sockets(from, PLACES_PER_PAGE, |socket| {
            let owner = self.owner_of(&socket);
            let user = match socket {
                ListedSocket::Listener { id, .. } => self.user_of_listener(id),
                _ => self.user_of(owner),
            };
            if viewer.sees(user) {
                entries.extend(self.socket(now, &socket, owner, query.with_info));
            }
            entries.len() < most
        });
        let next = next.map(ListingCursor::to_bits);
        AnswerPage { next, body: AnswerBody::Sockets(entries) }
    }

    /// The session of a socket, of a listener one of them.
    fn owner_of(&self, socket: &ListedSocket) -> Option<PoolId> {
        match socket {
            ListedSocket::Listener { id, .. } => {
                self.owners.sessions_of_listener(*id).first().copied()
            }
            ListedSocket::Endpoint { id, .. } => self.owners.of_endpoint(*id),
            ListedSocket::Conn { id, .. } => self.owners.of_conn(*id),
            ListedSocket::HalfOpen { .. } | ListedSocket::TimeWait { .. } => None,
        }
    }

    /// An entry for a socket. `None`: it is a connection that is over.
    fn socket(
        &self,
        now: Instant,
        socket: &ListedSocket,
        owner: Option<PoolId>,
        with_info: bool,
    ) -> Option<ServiceSocket> {
        let session = owner.and_then(|owner| self.sessions.get(owner));
        let entry = ServiceSocket {
            session: session.map_or(0, |session| session.limits.key),
            uid: session.map(|session| session.limits.user),
            ..ServiceSocket::default()
        };
        Some(match *socket {
            ListedSocket::Listener { id, local, waiting, backlog, .. } => ServiceSocket {
                state: SocketState::Listen,
                index: id.index,
                generation: id.generation,
                local: Some(local),
                receive_queue: waiting,
                send_queue: backlog,
                session: self.owners.only_of_listener(id).map_or(0, |_| entry.session),
                uid: self.user_of_listener(id),
                ..entry
            },
            ListedSocket::Endpoint { id, local, peer, received, sending } => ServiceSocket {
                state: match peer {
                    Some(_) => SocketState::Connection(TcpState::Established),
                    None => SocketState::Unconnected,
                },
                is_datagram: true,
                index: id.index,
                generation: id.generation,
                local: Some(local),
                peer,
                receive_queue: received,
                send_queue: sending,
                ..entry
            },
            ListedSocket::Conn { id, local, remote } => {
                let ends = (Some(local), Some(remote));
                return self.connection(now, id, with_info).map(|conn| ServiceSocket {
                    local: ends.0,
                    peer: ends.1,
                    session: entry.session,
                    uid: entry.uid,
                    ..conn
                });
            }
            ListedSocket::HalfOpen { local, remote } => ServiceSocket {
                state: SocketState::Connection(TcpState::SynReceived),
                local: Some(local),
                peer: Some(remote),
                ..entry
            },
            ListedSocket::TimeWait { local, remote, ends_at } => ServiceSocket {
                state: SocketState::TimeWait,
                local: Some(local),
                peer: Some(remote),
                timer: Some(SocketTimer {
                    kind: SocketTimerKind::TimeWait,
                    left: ends_at.since(now),
                    attempts: 0,
                }),
                ..entry
            },
        })
    }
}

impl SessionShard {
    /// What the stack knows of a connection. `None`: it is over.
    fn connection(&self, now: Instant, id: ConnId, with_info: bool) -> Option<ServiceSocket> {
        let stack = self.server.stack();
        let info = stack.info(id).ok()?;
        let timer = stack.conn_timer(now, id).map(|timer| SocketTimer {
            kind: timer.kind.into(),
            left: timer.at.since(now),
            attempts: timer.attempts,
        });
        Some(ServiceSocket {
            state: SocketState::Connection(info.state),
            index: id.index,
            generation: id.generation,
            receive_queue: info.unread_bytes,
            send_queue: info.queued_bytes,
            timer,
            info: with_info.then(|| Box::new(info)),
            ..ServiceSocket::default()
        })
    }
}

impl ShardSession {
    /// What the shard knows of a session.
    fn entry(&self, counts: ConnCounts) -> ServiceSession {
        let (limits, counters) = (&self.limits, &self.counters);
        let used = |now, limit| SessionUse { now, limit };
        ServiceSession {
            key: limits.key,
            uid: limits.user,
            weight: limits.weight,
            quotas: limits.rights.as_ref().map_or_else(Vec::new, |its| its.channel_quotas()),
            waiting_max: limits.waiting,
            has_ended: !self.is_running(),
            is_active: self.is_active && self.is_running(),
            connections: used(counts.open, limits.connections),
            connecting: used(counts.connecting, limits.connecting),
            listeners: used(self.listeners, limits.listeners),
            endpoints: used(self.endpoints, limits.endpoints),
            closed: counts.closed,
            credit: self.credit,
            parked: count(self.waiting_len()),
            parked_max: counters.parked_max,
            ops: counters.ops,
            events: counters.events,
            refused: counters.refused + limits.descriptors.as_ref().map_or(0, |it| it.refused()),
            foreign_names: counters.foreign_names,
            datagrams_dropped: counters.datagrams_dropped,
            cpu_ns: counters.cpu_ns,
            ..ServiceSession::default()
        }
    }
}
