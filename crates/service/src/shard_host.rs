//! The sessions of a daemon: a lane on each shard, and what a client may have.
//!
//! Behind the control socket (`attach/control_server.rs`), in front of the shards' threads
//! (`remote/shard.rs`).
//!
//! Invariants
//! - A session exists at its shards from READY until its client is gone or one of them ends it;
//!   before, its region exists here only. If one shard ends its lane, the others end theirs.
//! - A client has what the policy gives to it (`shard_host/admission.rs`).

mod admission;
mod line_pace;
mod observe;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use megapipe_link::{LinkError, NetworkNamespace};
use rustix::event::{EventfdFlags, eventfd};

use crate::acceptor::ManagerId;
use crate::attach::{
    AgreedLimits, ClientFeatures, ClientIdentity, OpenedSession, RefusalCode, Refused, SessionHost,
};
use crate::config::ServerConfig;
use crate::descriptors::{
    PassPurpose, PassRefusal, PassedDescriptors, ShareToken, SharedConn, SharedEndpoint,
    TokenRequest,
};
use crate::error::{RemoteError, ServerError};
use crate::layout::{Component, ServerLayout, ServerRoles};
use crate::limits::{
    CONNECTIONS_OF_SESSION_MAX, LANE_EVENTS, LANE_OPS, LANE_RECEIVES_MIN, LANES_MAX,
    PRIVATE_BUFFER_BYTES, PRIVATE_BUFFERS, SESSION_RECEIVE_BYTES_MAX,
};
use crate::link_server::Frames;
use crate::link_thread::LinkThread;
use crate::observe::{AnswerPage, QuerySubject, ServiceQuery, Viewer};
use crate::policy::{QuotaKind, ServicePolicy};
use crate::remote::{
    ServerHalf, SessionEnd, SessionId, SessionLimits, ShardConfig, ShardHandle, ShardPeers,
    TokenChange, create_session, start_manager, start_shard_with,
};
use crate::rx_mux::SplitLinkServer;
use crate::server_mail::{ServerMail, connect_servers};
use crate::server_wiring::ServerWiring;
use crate::session_sizes::SessionSizes;
use admission::{Admitted, ChannelCharge, ClientAdmission, ReachedQuota};
use line_pace::LinePace;

/// A shard with what its sessions' clients are informed of.
struct HostedShard {
    handle: ShardHandle,
    description: Vec<u8>,
    sessions: usize,
    /// The core that it is pinned to.
    core: Option<usize>,
}

/// Where a session stands.
enum HostedState {
    /// Its client maps the region.
    Opened(Vec<ServerHalf>),
    /// Its shards serve it: its names there, by lane.
    Begun(Vec<SessionId>),
    /// It did not begin: a shard has refused it.
    Refused,
}

struct HostedSession {
    /// The shard of its first lane. The others follow.
    shard: usize,
    lanes: u16,
    client: ClientIdentity,
    /// When it attached, as time since 1970.
    attached: Duration,
    limits: SessionLimits,
    state: HostedState,
    /// Ends with the session.
    _charge: Option<ChannelCharge>,
}

/// What a shard's thread reports: the end of a session, or a page.
enum HostReport {
    OfShard(usize, SessionEnd),
    /// A session did not begin.
    NotBegun(u64, String),
    /// A page for the process of this key, of this shard.
    Page(u64, usize, AnswerPage),
    /// A page of a connection manager for the process of this key.
    ManagerPage(u64, Viewer, AnswerPage),
    /// A page of a link server for the process of this key.
    LinkServerPage(u64, AnswerPage),
}

/// Shards on threads of their own, with their sessions.
pub struct ShardHost {
    shards: Vec<HostedShard>,
    sessions: HashMap<u64, HostedSession>,
    connections: u32,
    admission: ClientAdmission,
    ended: Receiver<HostReport>,
    reports: Sender<HostReport>,
    bell: Arc<OwnedFd>,
    notice: Box<dyn FnMut(&str)>,
    /// Of lines about clients.
    lines: LinePace,
    /// Pages for processes that ask.
    pages: VecDeque<(u64, AnswerPage)>,
    /// When it started, as time since 1970.
    started: Duration,
    sessions_begun: u64,
    /// Messages over tokens that are none.
    stray_messages: u64,
    /// That of the link. `None`: the kernel does not tell them apart.
    namespace: Option<NetworkNamespace>,
    /// By connection manager: sessions whose acceptors enlist with it.
    homes: Vec<usize>,
    layout: ServerLayout,
    /// Connection managers on servers of their own.
    managers: Vec<ShardHandle>,
    /// By connection manager: its server.
    manager_places: Vec<ManagerPlace>,
    /// Link servers on servers of their own. Behind the shards, whose last frames they send.
    link_servers: Vec<HostedLinkServer>,
}

/// A link server on a thread of its own.
struct HostedLinkServer {
    thread: LinkThread,
    /// The core that it is pinned to.
    core: Option<usize>,
}

/// The server of a connection manager: a shard, or one of the managers' own.
#[derive(Debug, Clone, Copy)]
enum ManagerPlace {
    Shard(usize),
    Own(usize),
}

/// What a daemon's servers move frames over.
pub struct ServiceLinks {
    /// Link servers that are apart from the shards, as many as the layout has alone. In front:
    /// shards that end wait for the answers of those that are there.
    pub servers: Vec<SplitLinkServer>,
    /// Of each shard.
    pub shards: Vec<Frames>,
}

/// The servers of a layout that exchange messages, and the rings between them.
fn connect_layout(layout: &ServerLayout) -> Result<Vec<(ServerWiring, ServerMail)>, RemoteError> {
    let wirings = ServerWiring::of_layout(layout);
    let mails = connect_servers(wirings.len())?;
    Ok(wirings.into_iter().zip(mails).collect())
}

/// The layout of a daemon over these links.
fn layout_of(config: &ServerConfig, links: &ServiceLinks) -> Result<ServerLayout, ServerError> {
    let shards = links.shards.len();
    let setting = |setting, why| Err(ServerError::Setting { setting, why });
    if shards > usize::from(LANES_MAX) {
        let why = format!("{shards} shards (limit {LANES_MAX}: a client has a lane to each)");
        return setting("shards", why);
    }
    let Some(layout) = &config.layout else {
        // In range, as was checked.
        let combined = ServerLayout::combined(shards as u16);
        return combined.or_else(|error| setting("shards", error.to_string()));
    };
    if let Err(error) = layout.check() {
        return setting("layout", error.to_string());
    }
    let transports = layout.count(Component::Transport);
    if usize::from(transports) != shards {
        return setting("layout", format!("{layout} has {transports} TS for {shards} shards"));
    }
    if usize::from(layout.separate_links()) != links.servers.len() {
        return setting("layout", format!("{layout} is not that of the network"));
    }
    Ok(layout.clone())
}

/// Starts link servers on threads of their own, each on its core, if it has one. The end of one
/// rings `bell`.
fn start_link_servers(
    servers: Vec<SplitLinkServer>,
    spin: Duration,
    cores: impl Iterator<Item = Option<usize>>,
    bell: &Arc<OwnedFd>,
) -> Result<Vec<HostedLinkServer>, RemoteError> {
    let start = |(server, core)| {
        let bell = Arc::clone(bell);
        let thread = LinkThread::start(server, spin, core, move || ring(&bell))?;
        Ok(HostedLinkServer { thread, core })
    };
    servers.into_iter().zip(cores).map(start).collect()
}

/// The time since 1970.
fn wall_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

impl ShardHost {
    /// Starts the servers of the layout: shards, and link servers and connection managers that are
    /// on servers of their own. Each is pinned to the core that `cores` has at its place in the
    /// layout, if there is one. `notice` receives lines for the administrator.
    ///
    /// # Errors
    /// [`RemoteError`]; nothing is left running.
    pub fn start(
        links: ServiceLinks,
        config: &ServerConfig,
        cores: &[usize],
        notice: Box<dyn FnMut(&str)>,
    ) -> Result<Self, RemoteError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|errno| {
            let source = errno.into();
            RemoteError::Server(ServerError::Link(LinkError::Io { what: "eventfd", source }))
        })?;
        let (bell, (reports, ended)) = (Arc::new(bell), channel());
        let layout = layout_of(config, &links)?;
        let roles = layout.servers();
        let places = |has_link_alone: bool| {
            let is_such = move |(_, server): &(usize, &ServerRoles)| {
                server.has_link_alone() == has_link_alone
            };
            let core = |(place, _)| cores.get(place).copied();
            roles.iter().enumerate().filter(is_such).map(core)
        };
        // Before the shards, whose first commands they answer.
        let spin = config.waits.spin;
        let link_servers = start_link_servers(links.servers, spin, places(true), &bell)?;
        let (mut shards, mut managers) = (Vec::with_capacity(links.shards.len()), Vec::new());
        let (mut frames, mut manager_places) = (links.shards.into_iter(), Vec::new());
        let connected = connect_layout(&layout)?;
        let has_others = connected.len() > 1;
        for ((wiring, mail), core) in connected.into_iter().zip(places(false)) {
            // Managers are numbered in the order of their servers.
            manager_places.extend(wiring.manager().map(|_| match wiring.transport() {
                Some(_) => ManagerPlace::Shard(shards.len()),
                None => ManagerPlace::Own(managers.len()),
            }));
            if wiring.transport().is_none() {
                managers.push(start_manager(config, (wiring, mail), core)?);
                continue;
            }
            let Some(frames) = frames.next() else { break };
            let (private_bytes, private_buffers) = (PRIVATE_BUFFER_BYTES, PRIVATE_BUFFERS);
            let shard = ShardConfig { core, private_bytes, private_buffers };
            let (bell, reports, number) = (Arc::clone(&bell), reports.clone(), shards.len());
            let on_end = move |end| {
                // A host that is gone needs no report.
                let _ = reports.send(HostReport::OfShard(number, end));
                ring(&bell);
            };
            let peers = ShardPeers { wiring, mail: has_others.then_some(mail) };
            let (handle, description) =
                start_shard_with(frames, config, (&shard, peers), Box::new(on_end))?;
            shards.push(HostedShard { handle, description, sessions: 0, core });
        }
        let sessions = HashMap::new();
        let homes = vec![0; layout.count(Component::Manager).into()];
        Ok(Self {
            shards,
            sessions,
            connections: config.connections,
            admission: ClientAdmission::new(ServicePolicy::default()),
            ended,
            reports,
            bell,
            notice,
            lines: LinePace::new(Instant::now()),
            pages: VecDeque::new(),
            started: wall_time(),
            sessions_begun: 0,
            stray_messages: 0,
            namespace: NetworkNamespace::current().ok(),
            homes,
            layout,
            managers,
            manager_places,
            link_servers,
        })
    }

    /// Number of sessions, those that begin included.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Replaces the policy. Sessions, listeners and connections stay; listeners and bindings from
    /// now on follow the new one.
    pub fn set_policy(&mut self, policy: ServicePolicy) {
        let sessions = self.sessions.values().filter_map(|session| {
            let rights = session.limits.rights.as_deref()?;
            Some((&session.client, rights))
        });
        self.admission.replace(policy, sessions);
    }

    /// What a session may have.
    fn limits(&self, key: u64, client: &ClientIdentity, admitted: &Admitted) -> SessionLimits {
        let quota = |kind| *admitted.policy.quotas.get(kind);
        let connections = self.connections.min(CONNECTIONS_OF_SESSION_MAX);
        SessionLimits {
            connections: connections.min(quota(QuotaKind::ChannelConnections)),
            connecting: connections.min(quota(QuotaKind::ChannelConnecting)),
            waiting: quota(QuotaKind::ChannelWaiting),
            listeners: quota(QuotaKind::ChannelListeners),
            endpoints: quota(QuotaKind::ChannelEndpoints),
            user: client.uid,
            key,
            weight: admitted.policy.weight,
            rights: admitted.rights.clone(),
            descriptors: Some(Arc::new(PassedDescriptors::new(self.namespace))),
            ..SessionLimits::WHOLE_SHARD
        }
    }

    /// Forgets a session. Returns it, if it was there.
    fn remove(&mut self, key: u64) -> Option<HostedSession> {
        let session = self.sessions.remove(&key)?;
        self.count(session.shard, session.lanes, -1);
        if let Some(home) = self.homes.get_mut(usize::from(session.limits.home.0)) {
            *home = home.saturating_sub(1);
        }
        Some(session)
    }

    /// The connection manager of a session's acceptors: the one with the fewest, so that sessions
    /// of several applications that begin in turn are spread evenly. A session of one lane is at
    /// home at its shard.
    fn next_home(&mut self, shard: usize, has_lanes: bool) -> ManagerId {
        let fewest = (0..self.homes.len()).min_by_key(|home| self.homes[*home]).unwrap_or(0);
        let home = if has_lanes { fewest } else { shard };
        if let Some(count) = self.homes.get_mut(home) {
            *count += 1;
        }
        ManagerId(home as u16)
    }

    /// Counts a session that comes or goes at its shards.
    fn count(&mut self, shard: usize, lanes: u16, change: isize) {
        for shard in &mut self.shards[shard..shard + usize::from(lanes)] {
            shard.sessions = shard.sessions.saturating_add_signed(change);
        }
    }

    /// Ends the lanes of a session that has begun.
    fn detach(&self, shard: usize, begun: &[SessionId]) {
        for (shard, id) in self.shards[shard..].iter().zip(begun) {
            // A shard that has ended it knows it no more.
            shard.handle.detach(*id);
        }
    }

    /// Lets each shard serve its lane.
    ///
    /// # Errors
    /// A sentence; no shard has a lane then.
    fn attach(
        &self,
        session: &HostedSession,
        halves: Vec<ServerHalf>,
    ) -> Result<Vec<SessionId>, String> {
        halves.iter().try_for_each(ServerHalf::seal).map_err(|error| error.to_string())?;
        let mut begun = Vec::with_capacity(halves.len());
        for (number, half) in (session.shard..).zip(halves) {
            let limits = SessionLimits { shard: number as u16, ..session.limits.clone() };
            match self.shards[number].handle.attach(half, limits) {
                Ok(id) => begun.push(id),
                Err(error) => {
                    self.detach(session.shard, &begun);
                    return Err(error.to_string());
                }
            }
        }
        Ok(begun)
    }
}

impl ShardHost {
    /// Requests the account of a link server for the process of this key.
    fn ask_link_server(&self, key: u64, server: &HostedLinkServer, number: u16) {
        let (bell, reports, core) = (Arc::clone(&self.bell), self.reports.clone(), server.core);
        server.thread.request_account(Box::new(move |account| {
            let page = Self::link_server_page(number, core, account);
            // A host that is gone needs no page.
            let _ = reports.send(HostReport::LinkServerPage(key, page));
            ring(&bell);
        }));
    }

    /// Shows quotas that were reached. Shards look whether connections of the users are over.
    fn report_reached(&mut self) {
        for ReachedQuota { uid, kind, is_news } in self.admission.reached(Instant::now()) {
            if is_news {
                (self.notice)(&format!("user {uid} has reached the quota {kind}"));
            }
            let may_have_room = matches!(
                kind,
                QuotaKind::UserConnections
                    | QuotaKind::UserConnecting
                    | QuotaKind::ChannelConnections
                    | QuotaKind::ChannelConnecting
                    | QuotaKind::UserDestinationPorts
                    | QuotaKind::ChannelDestinationPorts
                    | QuotaKind::UserChunks
                    | QuotaKind::ChannelChunks
            );
            if may_have_room {
                self.shards.iter().for_each(|shard| shard.handle.recount());
            }
        }
    }
}

/// What each lane of a client gets of what it wants. Receive buffers are divided; send buffers are
/// not, since one connection may need many.
fn agreed(wanted: &SessionSizes, lanes: u16) -> SessionSizes {
    let receive_buffers = SESSION_RECEIVE_BYTES_MAX / wanted.receive_bytes.max(1);
    let receive_buffers = wanted.receive_buffers.min(receive_buffers.max(1));
    let share = receive_buffers.div_ceil(lanes.into()).max(LANE_RECEIVES_MIN);
    SessionSizes {
        ops: wanted.ops.min(LANE_OPS),
        events: wanted.events.min(LANE_EVENTS),
        receive_buffers: receive_buffers.min(share),
        ..*wanted
    }
}

fn ring(bell: &OwnedFd) {
    // A counter that is full rings as well.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

impl SessionHost for ShardHost {
    fn open(
        &mut self,
        key: u64,
        client: &ClientIdentity,
        wanted: &SessionSizes,
        features: ClientFeatures,
        token: Option<Arc<ShareToken>>,
    ) -> Result<OpenedSession, Refused> {
        let ClientFeatures { has_lanes, knows_event_details, shares_connecting } = features;
        // Sessions of one lane are spread evenly.
        let shard = (0..self.shards.len()).min_by_key(|shard| self.shards[*shard].sessions);
        let no_shard = || Refused::new(RefusalCode::Sessions, "the daemon has no shard");
        let shard = shard.ok_or_else(no_shard)?;
        if !has_lanes && !self.layout.has_manager_everywhere() {
            let why = format!("the daemon's layout {} needs a client with lanes", self.layout);
            return Err(Refused::new(RefusalCode::Version, &why));
        }
        let (shard, lanes) = if has_lanes { (0, self.shards.len() as u16) } else { (shard, 1) };
        let sizes = agreed(wanted, lanes);
        let admitted = self.admission.admit(client, (sizes.bytes_of(lanes), self.shards.len()))?;
        let no_memory = |error: RemoteError| {
            Refused::new(RefusalCode::Resources, &format!("no memory for a session: {error}"))
        };
        let (halves, fds) = create_session(&sizes, lanes).map_err(no_memory)?;
        let is_on_all_shards = usize::from(lanes) == self.shards.len();
        let limits = self.limits(key, client, &admitted);
        let home = self.next_home(shard, has_lanes);
        let limits = SessionLimits { is_on_all_shards, home, token, ..limits };
        let limits = SessionLimits { knows_event_details, shares_connecting, ..limits };
        let SessionLimits { connections, connecting, listeners, endpoints, .. } = limits;
        let agreed = AgreedLimits { connections, connecting, listeners, endpoints };
        let (state, client) = (HostedState::Opened(halves), client.clone());
        let (attached, _charge) = (wall_time(), admitted.charge);
        let session = HostedSession { shard, lanes, client, attached, limits, state, _charge };
        self.sessions.insert(key, session);
        self.sessions_begun += 1;
        self.count(shard, lanes, 1);
        let description = self.shards[shard].description.clone();
        Ok(OpenedSession { sizes, limits: agreed, lanes, description, fds })
    }

    fn begin(&mut self, key: u64, control: Option<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let (Some(descriptors), Some(control)) = (&session.limits.descriptors, control) {
            descriptors.begin(control);
        }
        let state = std::mem::replace(&mut session.state, HostedState::Refused);
        let HostedState::Opened(halves) = state else {
            session.state = state;
            return;
        };
        let begun = self.sessions.get(&key).map(|session| self.attach(session, halves));
        match (begun, self.sessions.get_mut(&key)) {
            (Some(Ok(ids)), Some(session)) => session.state = HostedState::Begun(ids),
            (Some(Err(why)), _) => {
                // It is read by `next_ended`, of this thread.
                let _ = self.reports.send(HostReport::NotBegun(key, why));
                ring(&self.bell);
            }
            _ => {}
        }
    }

    fn end(&mut self, key: u64) {
        let Some(session) = self.remove(key) else { return };
        session.limits.descriptors.iter().for_each(|descriptors| descriptors.forget_all());
        if let HostedState::Begun(ids) = session.state {
            self.detach(session.shard, &ids);
        }
    }

    fn pass(
        &mut self,
        key: u64,
        what: (u64, PassPurpose),
        fds: Vec<OwnedFd>,
    ) -> Result<(), PassRefusal> {
        let Some(session) = self.sessions.get(&key) else { return Ok(()) };
        let SessionLimits { descriptors, rights, .. } = &session.limits;
        match descriptors {
            Some(descriptors) => descriptors.keep(what, fds, rights.as_deref()),
            None => Ok(()),
        }
    }

    fn make_token(
        &mut self,
        key: u64,
        cookie: u64,
        number: u64,
    ) -> Result<Arc<ShareToken>, PassRefusal> {
        let session = self.sessions.get(&key).ok_or(PassRefusal::NotToken)?;
        let token = ShareToken::new(number, session.limits.rights.clone())?;
        self.keep_token(key, cookie, (Arc::clone(&token), true))?;
        Ok(token)
    }

    fn keep_token(
        &mut self,
        key: u64,
        cookie: u64,
        token: (Arc<ShareToken>, bool),
    ) -> Result<(), PassRefusal> {
        let session = self.sessions.get(&key);
        let descriptors = session.and_then(|session| session.limits.descriptors.as_ref());
        descriptors.ok_or(PassRefusal::NotToken)?.keep_token(cookie, token)
    }

    fn copy_token(
        &mut self,
        request: &Arc<TokenRequest>,
        number: u64,
    ) -> Result<Arc<ShareToken>, PassRefusal> {
        let made = request.token.copy(number)?.ok_or(PassRefusal::Copies)?;
        for shard in &self.shards {
            shard.handle.change_token(TokenChange::Copy(Arc::clone(request), Arc::clone(&made)));
        }
        Ok(made)
    }

    fn release_by_token(&mut self, request: &Arc<TokenRequest>, conns: &[SharedConn]) {
        for (lane, shard) in (0..).zip(&self.shards) {
            let its = conns.iter().filter(|it| it.lane == lane).map(|it| it.conn);
            let its: Vec<_> = its.collect();
            if !its.is_empty() {
                shard.handle.change_token(TokenChange::Release(Arc::clone(request), its));
            }
        }
    }

    fn release_endpoints_by_token(
        &mut self,
        request: &Arc<TokenRequest>,
        endpoints: &[SharedEndpoint],
    ) {
        for (lane, shard) in (0..).zip(&self.shards) {
            let its = endpoints.iter().filter(|it| it.lane == lane).map(|it| it.endpoint);
            let its: Vec<_> = its.collect();
            if !its.is_empty() {
                let request = Arc::clone(request);
                shard.handle.change_token(TokenChange::ReleaseEndpoints(request, its));
            }
        }
    }

    fn end_token(&mut self, token: &ShareToken) {
        for shard in &self.shards {
            shard.handle.change_token(TokenChange::End(token.number()));
        }
    }

    fn note_refused(&mut self, key: u64) {
        let session = self.sessions.get(&key);
        let descriptors = session.and_then(|session| session.limits.descriptors.as_deref());
        descriptors.into_iter().for_each(PassedDescriptors::note_refused);
    }

    fn note_stray(&mut self) {
        self.stray_messages += 1;
    }

    fn forget(&mut self, key: u64, cookie: u64) {
        let session = self.sessions.get(&key);
        let descriptors = session.and_then(|session| session.limits.descriptors.as_deref());
        descriptors.into_iter().for_each(|descriptors| descriptors.forget(cookie));
    }

    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_ended(&mut self) -> Option<(u64, Option<String>)> {
        loop {
            let Ok(report) = self.ended.try_recv() else {
                // Cleared before the queue is read again, so that no report is missed.
                rustix::io::read(&self.bell, &mut [0_u8; 8]).ok()?;
                continue;
            };
            let (key, why) = match report {
                HostReport::NotBegun(key, why) => (key, Some(why)),
                HostReport::OfShard(shard, end) => {
                    let is_same = |session: &HostedSession| {
                        let lane = shard.checked_sub(session.shard);
                        let HostedState::Begun(ids) = &session.state else { return false };
                        lane.and_then(|lane| ids.get(lane)) == Some(&end.session)
                    };
                    let found = self.sessions.iter().find(|(_, session)| is_same(session));
                    // One whose client is gone is forgotten already.
                    let Some((key, _)) = found else { continue };
                    (*key, end.fault.map(|fault| fault.to_string()))
                }
                HostReport::ManagerPage(key, viewer, page) => {
                    let page = self.manager_page(viewer, page);
                    self.pages.push_back((key, page));
                    continue;
                }
                HostReport::LinkServerPage(key, page) => {
                    self.pages.push_back((key, page));
                    continue;
                }
                HostReport::Page(key, shard, page) => {
                    let page = self.complete(shard, page);
                    self.pages.push_back((key, page));
                    continue;
                }
            };
            self.end(key);
            return Some((key, why));
        }
    }

    fn sees_all(&self, uid: u32) -> bool {
        self.admission.has_all(uid)
    }

    fn ask(&mut self, key: u64, query: &ServiceQuery, viewer: Viewer) {
        let number = usize::from(query.shard);
        if query.subject == QuerySubject::Manager
            && let Some(place) = self.manager_places.get(number)
        {
            let handle = match *place {
                ManagerPlace::Shard(shard) => &self.shards[shard].handle,
                ManagerPlace::Own(manager) => &self.managers[manager],
            };
            let (bell, reports) = (Arc::clone(&self.bell), self.reports.clone());
            let on_page = move |page| {
                // A host that is gone needs no page.
                let _ = reports.send(HostReport::ManagerPage(key, viewer, page));
                ring(&bell);
            };
            return handle.ask(*query, viewer, Box::new(on_page));
        }
        if query.subject == QuerySubject::LinkServer
            && let Some(server) = self.link_servers.get(number)
        {
            return self.ask_link_server(key, server, query.shard);
        }
        let is_of_shard = !matches!(
            query.subject,
            QuerySubject::Daemon
                | QuerySubject::Users
                | QuerySubject::Manager
                | QuerySubject::LinkServer
        );
        let shard = self.shards.get(number).filter(|_| is_of_shard);
        let Some(shard) = shard else {
            // It is read by `next_page`, of this thread.
            self.pages.push_back((key, self.answer(query, viewer)));
            return ring(&self.bell);
        };
        let (bell, reports) = (Arc::clone(&self.bell), self.reports.clone());
        let on_page = move |page| {
            // A host that is gone needs no page.
            let _ = reports.send(HostReport::Page(key, number, page));
            ring(&bell);
        };
        shard.handle.ask(*query, viewer, Box::new(on_page));
    }

    fn next_page(&mut self) -> Option<(u64, AnswerPage)> {
        self.pages.pop_front()
    }

    fn check(&mut self) -> Result<(), String> {
        self.report_reached();
        if let Some(number) = self.shards.iter().position(|shard| !shard.handle.is_running()) {
            return Err(format!("shard {number} has ended: its link is gone"));
        }
        if let Some(number) = self.managers.iter().position(|manager| !manager.is_running()) {
            return Err(format!("connection manager {number} has ended"));
        }
        let mut endings = (0..).zip(&self.link_servers);
        match endings.find_map(|(number, server)| Some((number, server.thread.ending()?))) {
            None => Ok(()),
            Some((number, why)) => Err(format!("link server {number} has ended: {why}")),
        }
    }

    fn notice(&mut self, line: &str) {
        let Ok(left_out) = self.lines.admit(Instant::now()) else { return };
        if left_out > 0 {
            (self.notice)(&format!("{left_out} lines about clients were left out before this one"));
        }
        (self.notice)(line);
    }
}
