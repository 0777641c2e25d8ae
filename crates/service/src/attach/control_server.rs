//! The daemon's control socket: accepts clients, does handshakes, and notices the end of sessions.
//!
//! A thin layer: messages are in `message.rs`, bounds in `handshakes.rs`, and what a session is in
//! the daemon is behind [`SessionHost`].
//!
//! Read first: epoll(7), unix(7), pidfd_open(2).
//!
//! Invariants
//! - No call but the wait blocks, and a wait ends when the oldest handshake expires.
//! - What a client sends ends at worst its own handshake or session.
//! - A session ends when its control socket is closed or when its process has ended, whichever is
//!   first: a forked child may hold a copy of the socket, and a process may live on without its
//!   channel.

mod queries;
mod tokens;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use megapipe_link::{BoundPath, PeerProcess};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, socket_with};

use super::handshakes::Handshakes;
use super::message::{
    AgreedLimits, AttachHello, ClientFeatures, RECORD_BYTES, RefusalCode, Refused, Welcome,
    decode_ready,
};
use super::query_pace::QueryPace;
use crate::descriptors::{
    PassPurpose, PassRefusal, SessionMessage, ShareToken, SharedConn, SharedEndpoint, TokenRequest,
};
use crate::limits::{ACCEPT_PAUSE, ACCEPTS_PER_WAIT, CONTROL_BACKLOG, CONTROL_LOOK_PERIOD};
use crate::message_socket::{MessageWithFds, Reception, receive, send};
use crate::observe::{AnswerPage, ServiceQuery, Viewer, is_query};
use crate::remote::SessionFds;
use crate::session_sizes::SessionSizes;
use queries::QueryStage;
use tokens::{TokenEntry, Tokens};

/// The client that a session is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Its process.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Name of the program, as it names itself.
    pub name: String,
}

/// A session that was created for a client.
#[derive(Debug)]
pub struct OpenedSession {
    /// Agreed sizes of a lane: at most the wanted ones, with receive buffers as large as wanted.
    pub sizes: SessionSizes,
    /// Limits.
    pub limits: AgreedLimits,
    /// Lanes.
    pub lanes: u16,
    /// Description of its server.
    pub description: Vec<u8>,
    /// The client's descriptors.
    pub fds: SessionFds,
}

/// What owns the sessions of a daemon. A session is named by a key of the control server's.
pub trait SessionHost {
    /// Creates a session, which does not begin yet, for what its client has. It may adopt what the
    /// token owns by which it was opened.
    ///
    /// # Errors
    /// A refusal that names the rule.
    fn open(
        &mut self,
        key: u64,
        client: &ClientIdentity,
        wanted: &SessionSizes,
        features: ClientFeatures,
        token: Option<Arc<ShareToken>>,
    ) -> Result<OpenedSession, Refused>;

    /// The client has mapped the region: the session begins. Descriptors can be given over
    /// `control`, if the client takes any.
    fn begin(&mut self, key: u64, control: Option<OwnedFd>);

    /// The client is gone, or breaks the protocol. Not called after [`SessionHost::next_ended`]
    /// has returned the session.
    fn end(&mut self, key: u64);

    /// The client passes descriptors within its session.
    ///
    /// # Errors
    /// A refusal that names the rule; the descriptors are closed then.
    fn pass(
        &mut self,
        key: u64,
        what: (u64, PassPurpose),
        fds: Vec<OwnedFd>,
    ) -> Result<(), PassRefusal>;

    /// A session makes a token of this number, and names it by a cookie.
    ///
    /// # Errors
    /// A refusal that names the rule.
    fn make_token(
        &mut self,
        key: u64,
        cookie: u64,
        number: u64,
    ) -> Result<Arc<ShareToken>, PassRefusal>;

    /// A session names a token by a cookie that it was passed, or, which is said with it, has made.
    ///
    /// # Errors
    /// A refusal that names the rule.
    fn keep_token(
        &mut self,
        key: u64,
        cookie: u64,
        token: (Arc<ShareToken>, bool),
    ) -> Result<(), PassRefusal>;

    /// The holder of a token makes another one of this number, for what the first one owns.
    ///
    /// # Errors
    /// A refusal that names the rule.
    fn copy_token(
        &mut self,
        request: &Arc<TokenRequest>,
        number: u64,
    ) -> Result<Arc<ShareToken>, PassRefusal>;

    /// The holder of a token lets go of connections.
    fn release_by_token(&mut self, request: &Arc<TokenRequest>, conns: &[SharedConn]);

    /// The holder of a token lets go of endpoints for datagrams.
    fn release_endpoints_by_token(
        &mut self,
        request: &Arc<TokenRequest>,
        endpoints: &[SharedEndpoint],
    );

    /// No process holds a token any more.
    fn end_token(&mut self, token: &ShareToken);

    /// Descriptors were closed before [`SessionHost::pass`].
    fn note_refused(&mut self, key: u64);

    /// A message over a token was none that a holder sends.
    fn note_stray(&mut self);

    /// The client names a cookie no more.
    fn forget(&mut self, key: u64, cookie: u64);

    /// Readable when sessions may have ended by themselves.
    fn ended_fd(&self) -> BorrowedFd<'_>;

    /// A session that has ended by itself, and what its client has done wrong, if anything.
    fn next_ended(&mut self) -> Option<(u64, Option<String>)>;

    /// Whether a user sees what belongs to others.
    fn sees_all(&self, uid: u32) -> bool;

    /// A process asks for a page, which [`SessionHost::next_page`] returns later.
    fn ask(&mut self, key: u64, query: &ServiceQuery, viewer: Viewer);

    /// A page that was asked for. [`SessionHost::ended_fd`] is readable when there may be one;
    /// called after [`SessionHost::next_ended`].
    fn next_page(&mut self) -> Option<(u64, AnswerPage)>;

    /// Checks that what serves the sessions runs. Called at least once a second.
    ///
    /// # Errors
    /// A sentence that says what has ended.
    fn check(&mut self) -> Result<(), String>;

    /// Shows a line to the administrator.
    fn notice(&mut self, line: &str);
}

enum ClientState {
    AwaitsHello,
    AwaitsReady { version: u16 },
    InSession { version: u16 },
    InQuery(Viewer, QueryStage),
}

impl ClientState {
    const fn takes_descriptors(&self) -> bool {
        matches!(self, Self::InSession { version } if Welcome::takes_descriptors(*version))
    }
}

struct ClientEntry {
    socket: OwnedFd,
    process: PeerProcess,
    name: String,
    state: ClientState,
    /// The token that it came by.
    entry: Option<TokenEntry>,
}

impl ClientEntry {
    fn has_daemons_rights(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.has_daemons_rights)
    }
}

/// The control socket with its clients.
pub struct ControlServer<H> {
    listener: OwnedFd,
    _path: BoundPath,
    epoll: OwnedFd,
    clients: HashMap<u64, ClientEntry>,
    handshakes: Handshakes,
    tokens: Tokens,
    pace: QueryPace,
    next_key: u64,
    /// No client is accepted until then: descriptors had run out.
    paused_until: Option<Instant>,
    host: H,
}

/// Keys of what is no client.
const LISTENER: u64 = 0;
const ENDED: u64 = 1;
const STOP: u64 = 2;
const FIRST_CLIENT: u64 = 3;
/// Events that a wait returns at once.
const EVENTS_PER_WAIT: usize = 64;

/// A client's socket, and its process, in the data of an event.
const fn socket_of(key: u64) -> epoll::EventData {
    epoll::EventData::new_u64(key * 2)
}

const fn process_of(key: u64) -> epoll::EventData {
    epoll::EventData::new_u64(key * 2 + 1)
}

impl<H: SessionHost> ControlServer<H> {
    /// Listens at `path`, which any user may connect to; who gets a session is the host's decision.
    /// The socket of a dead daemon is replaced.
    ///
    /// # Errors
    /// As [`BoundPath::listen`]; what the kernel says.
    pub fn listen(path: &Path, host: H) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let bound = BoundPath::listen(listener.as_fd(), path, CONTROL_BACKLOG)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, socket_of(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, host.ended_fd(), socket_of(ENDED), epoll::EventFlags::IN)?;
        Ok(Self {
            listener,
            _path: bound,
            epoll,
            clients: HashMap::new(),
            handshakes: Handshakes::default(),
            tokens: Tokens::default(),
            pace: QueryPace::new(Instant::now()),
            next_key: FIRST_CLIENT,
            paused_until: None,
            host,
        })
    }

    /// Serves clients until `stop` is readable. May be called again afterwards.
    ///
    /// # Errors
    /// What the kernel says to epoll_wait(2), or the host to [`SessionHost::check`].
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.epoll, stop, socket_of(STOP), epoll::EventFlags::IN)?;
        let ended = self.serve();
        // It was added above.
        let _ = epoll::delete(&self.epoll, stop);
        ended
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let timeout = Timespec::try_from(self.patience()).ok();
            let mut events = Vec::with_capacity(EVENTS_PER_WAIT);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in &events {
                let data = event.data.u64();
                match data / 2 {
                    STOP => return Ok(()),
                    LISTENER => self.accept_clients(),
                    ENDED => {
                        self.drop_ended();
                        self.send_pages();
                    }
                    key if data % 2 == 0 => self.on_socket(key),
                    key => self.drop_client(key, None),
                }
            }
            self.on_time(Instant::now());
            if self.is_unused(Instant::now()) {
                return Ok(());
            }
            self.host.check().map_err(io::Error::other)?;
        }
    }

    /// Time until a deadline, or the next check.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let pause = self.paused_until.map(|until| until.saturating_duration_since(now));
        let handshake = self.handshakes.patience(now);
        [pause, handshake, self.pace.patience(now), self.tokens.patience()]
            .into_iter()
            .flatten()
            .fold(CONTROL_LOOK_PERIOD, Duration::min)
    }

    fn on_time(&mut self, now: Instant) {
        while let Some(key) = self.handshakes.next_expired(now) {
            self.drop_client(key, Some("its handshake took longer than a second"));
        }
        self.ask_due(now);
        self.drop_expired_queries(now);
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            let (epoll, listener) = (&self.epoll, &self.listener);
            // It was added before, with the same flags.
            let _ = epoll::add(epoll, listener, socket_of(LISTENER), epoll::EventFlags::IN);
        }
    }

    fn accept_clients(&mut self) {
        for _ in 0..ACCEPTS_PER_WAIT {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.begin_handshake(socket, None),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    // No descriptor or memory is left: the clients wait in the backlog.
                    self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    return;
                }
            }
        }
    }

    fn begin_handshake(&mut self, socket: OwnedFd, entry: Option<TokenEntry>) {
        // A client that has ended meanwhile needs no answer.
        let Ok(process) = PeerProcess::of(socket.as_fd()) else { return };
        let key = self.next_key;
        if let Err(limit) = self.handshakes.begin(key, process.uid, Instant::now()) {
            refuse(&socket, &Refused::new(RefusalCode::Busy, &limit.to_string()));
            return;
        }
        self.next_key += 1;
        let flags = epoll::EventFlags::IN;
        let added = epoll::add(&self.epoll, &socket, socket_of(key), flags)
            .and_then(|()| epoll::add(&self.epoll, &process.pidfd, process_of(key), flags));
        if added.is_err() {
            self.handshakes.end(key);
            return;
        }
        let (name, state) = (String::new(), ClientState::AwaitsHello);
        self.clients.insert(key, ClientEntry { socket, process, name, state, entry });
    }

    fn on_socket(&mut self, key: u64) {
        if self.tokens.has(key) {
            return self.on_token(key);
        }
        let Some(client) = self.clients.get(&key) else { return };
        let message = match receive(client.socket.as_fd()) {
            Ok(Reception::Nothing) => return,
            Ok(Reception::Message(message)) => message,
            Ok(Reception::Closed) => return self.drop_client(key, None),
            Ok(Reception::Oversized) if client.state.takes_descriptors() => {
                self.host.note_refused(key);
                return self.refuse_descriptors(key, 0, &PassRefusal::Count);
            }
            Ok(Reception::Oversized) => {
                return self.drop_client(key, Some("a message or its descriptors were too many"));
            }
            Err(_) => return self.drop_client(key, None),
        };
        // Descriptors that no message of a handshake has are closed here.
        let MessageWithFds { bytes, fds } = message;
        match client.state {
            ClientState::AwaitsHello if is_query(&bytes) => self.begin_queries(key, &bytes),
            ClientState::InQuery(..) => self.on_query(key, &bytes),
            ClientState::AwaitsHello => self.on_hello(key, &bytes),
            ClientState::AwaitsReady { version } => match decode_ready(&bytes, version) {
                Ok(()) => self.begin_session(key, version),
                Err(fault) => self.drop_client(key, Some(&fault.to_string())),
            },
            ClientState::InSession { .. } if client.state.takes_descriptors() => {
                self.on_session_message(key, &bytes, fds);
            }
            // This version has no messages within a session.
            ClientState::InSession { .. } => {
                self.drop_client(key, Some("it sent an unknown message"));
            }
        }
    }

    fn on_session_message(&mut self, key: u64, bytes: &[u8], fds: Vec<OwnedFd>) {
        match SessionMessage::decode(bytes) {
            Some(SessionMessage::Token { cookie }) => self.give_token(key, cookie),
            Some(SessionMessage::Pass { cookie, purpose }) => {
                let passed = match purpose {
                    PassPurpose::Token => self.take_token(key, cookie, &fds),
                    _ => self.host.pass(key, (cookie, purpose), fds),
                };
                match passed {
                    Ok(()) => self.send_to(key, &SessionMessage::Passed { cookie }),
                    Err(refusal) => self.refuse_descriptors(key, cookie, &refusal),
                }
            }
            Some(SessionMessage::Forget { cookie }) => self.host.forget(key, cookie),
            _ => self.drop_client(key, Some("it sent an unknown message")),
        }
    }

    fn refuse_descriptors(&self, key: u64, cookie: u64, refusal: &PassRefusal) {
        let (errno, sentence) = (refusal.raw_os_error(), refusal.to_string());
        self.send_to(key, &SessionMessage::NotPassed { cookie, errno, sentence });
    }

    /// A client that does not read gets no answer.
    fn send_to(&self, key: u64, message: &SessionMessage) {
        if let Some(client) = self.clients.get(&key) {
            let _ = send(client.socket.as_fd(), &message.encode(), &[]);
        }
    }

    fn on_hello(&mut self, key: u64, bytes: &[u8]) {
        match self.open_session(key, bytes) {
            Ok(()) => {}
            Err(refused) => {
                if let Some(client) = self.clients.get(&key) {
                    refuse(&client.socket, &refused);
                }
                let why = refused.sentence;
                self.drop_client(key, Some(&why));
            }
        }
    }

    /// Creates the session that a HELLO asks for, and sends the WELCOME.
    fn open_session(&mut self, key: u64, bytes: &[u8]) -> Result<(), Refused> {
        let Some(client) = self.clients.get_mut(&key) else { return Ok(()) };
        let hello = AttachHello::decode(bytes);
        let hello = hello.map_err(|it| Refused::new(RefusalCode::Hello, &it.to_string()))?;
        let version = hello.negotiate()?;
        client.name.clone_from(&hello.name);
        let PeerProcess { pid, mut uid, gid, ref groups, .. } = client.process;
        if client.has_daemons_rights() {
            uid = rustix::process::geteuid().as_raw();
        }
        let token = client.entry.as_ref().and_then(|entry| entry.shares.clone());
        let identity = ClientIdentity { pid, uid, gid, groups: groups.clone(), name: hello.name };
        let features = AttachHello::features(version);
        let opened = self.host.open(key, &identity, &hello.sizes, features, token)?;
        client.state = ClientState::AwaitsReady { version };
        let OpenedSession { sizes, limits, lanes, description, fds } = opened;
        let record_bytes = RECORD_BYTES;
        let welcome = Welcome { version, record_bytes, sizes, limits, lanes, description };
        let bells = fds.bells.iter().map(AsFd::as_fd);
        let fds: Vec<_> = std::iter::once(fds.region.as_fd()).chain(bells).collect();
        let sent = send(client.socket.as_fd(), &welcome.encode(), &fds);
        if sent.is_err() {
            self.drop_client(key, None);
        }
        Ok(())
    }

    fn begin_session(&mut self, key: u64, version: u16) {
        self.handshakes.end(key);
        if let Some(client) = self.clients.get_mut(&key) {
            client.state = ClientState::InSession { version };
            let is_giving = client.state.takes_descriptors();
            // Without a copy the session gives none.
            let control = if is_giving { client.socket.try_clone().ok() } else { None };
            self.host.begin(key, control);
        }
    }

    /// The client's handshake or session is over.
    fn drop_client(&mut self, key: u64, why: Option<&str>) {
        let Some(client) = self.remove(key) else { return };
        if matches!(client.state, ClientState::AwaitsReady { .. } | ClientState::InSession { .. }) {
            self.host.end(key);
        }
        if let Some(why) = why {
            let PeerProcess { pid, uid, .. } = client.process;
            let name = client.name;
            self.host.notice(&format!("process {pid} ({name}) of user {uid} was refused: {why}"));
        }
    }

    fn remove(&mut self, key: u64) -> Option<ClientEntry> {
        let client = self.clients.remove(&key)?;
        self.handshakes.end(key);
        self.pace.end(key);
        // Both were added; closing them would do as well, but for copies in other processes.
        let _ = epoll::delete(&self.epoll, &client.socket);
        let _ = epoll::delete(&self.epoll, &client.process.pidfd);
        Some(client)
    }

    /// Removes sessions that the shards have ended.
    fn drop_ended(&mut self) {
        while let Some((key, why)) = self.host.next_ended() {
            let (Some(client), Some(why)) = (self.remove(key), why) else { continue };
            let (PeerProcess { pid, uid, .. }, name) = (client.process, client.name);
            let line = format!("the session of process {pid} ({name}) of user {uid} ended: {why}");
            self.host.notice(&line);
        }
    }

    /// The owner of the sessions.
    pub const fn host(&mut self) -> &mut H {
        &mut self.host
    }
}

/// Sends a refusal. A client that does not read it gets none.
fn refuse(socket: &OwnedFd, refused: &Refused) {
    let _ = send(socket.as_fd(), &refused.encode(), &[]);
}
