//! Handshakes over real sockets: an honest client, and each way to break the protocol.

use std::collections::HashMap;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use megapipe_link::{NetworkNamespace, PairConfig, Transport, bind_port, pair};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};

use super::client::connect_to;
use super::*;
use crate::descriptors::{
    PassPurpose, PassRefusal, PassedDescriptors, SessionMessage, ShareToken, SharedConn,
    SharedEndpoint, TokenRequest,
};
use crate::limits::{HANDSHAKE_TIME, HANDSHAKES_OF_USER_MAX};
use crate::link_server::Frames;
use crate::message_socket::{Reception, receive, receive_up_to, send};
use crate::observe::{AnswerBody, AnswerPage, QuerySubject, ServiceDaemon, ServiceQuery, Viewer};
use crate::remote::{LaneSet, ServerHalf, SharedMemory, describe_server};
use crate::server::Server;
use crate::session_sizes::SessionSizes;
use crate::sleep::wait_readable;
use crate::{RemoteConfig, ServerConfig};

mod descriptors;
mod queries;
mod tokens;

/// Longer than any wait here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Lanes of a client that has several.
const LANES: u16 = 2;

/// What the host was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Opened(ClientIdentity, ClientFeatures),
    Begun,
    Ended,
    Notice(String),
}

/// A host whose sessions have no server.
struct EmptyHost {
    asked: Sender<Asked>,
    halves: HashMap<u64, Vec<ServerHalf>>,
    passed: HashMap<u64, PassedDescriptors>,
    ended: OwnedFd,
    description: Vec<u8>,
    pages: Vec<(u64, AnswerPage)>,
}

impl SessionHost for EmptyHost {
    fn open(
        &mut self,
        key: u64,
        client: &ClientIdentity,
        wanted: &SessionSizes,
        features: ClientFeatures,
        _token: Option<Arc<ShareToken>>,
    ) -> Result<OpenedSession, Refused> {
        let _ = self.asked.send(Asked::Opened(client.clone(), features));
        if client.name == "unwelcome" {
            return Err(Refused::new(RefusalCode::Sessions, "no shard is free (limit 0)"));
        }
        let lanes = if features.has_lanes { LANES } else { 1 };
        let (halves, fds) = wanted.create_lanes(lanes).expect("memory");
        self.halves.insert(key, halves);
        let limits = AgreedLimits { connections: 8, connecting: 8, listeners: 8, endpoints: 8 };
        let description = self.description.clone();
        Ok(OpenedSession { sizes: *wanted, limits, lanes, description, fds })
    }

    fn begin(&mut self, _key: u64, _control: Option<OwnedFd>) {
        let _ = self.asked.send(Asked::Begun);
    }

    fn end(&mut self, key: u64) {
        self.halves.remove(&key);
        self.passed.remove(&key);
        let _ = self.asked.send(Asked::Ended);
    }

    fn pass(
        &mut self,
        key: u64,
        what: (u64, PassPurpose),
        fds: Vec<OwnedFd>,
    ) -> Result<(), PassRefusal> {
        let passed = self.passed.entry(key).or_insert_with(|| {
            PassedDescriptors::new(Some(NetworkNamespace::current().expect("Linux 5.14")))
        });
        passed.keep(what, fds, None)
    }

    fn make_token(
        &mut self,
        _key: u64,
        _cookie: u64,
        number: u64,
    ) -> Result<Arc<ShareToken>, PassRefusal> {
        Ok(ShareToken::new(number, None)?)
    }

    fn keep_token(
        &mut self,
        _key: u64,
        _cookie: u64,
        _token: (Arc<ShareToken>, bool),
    ) -> Result<(), PassRefusal> {
        Ok(())
    }

    fn copy_token(
        &mut self,
        _request: &Arc<TokenRequest>,
        number: u64,
    ) -> Result<Arc<ShareToken>, PassRefusal> {
        Ok(ShareToken::new(number, None)?)
    }

    fn release_by_token(&mut self, _request: &Arc<TokenRequest>, conns: &[SharedConn]) {
        let _ = self.asked.send(Asked::Notice(format!("{} released", conns.len())));
    }

    fn release_endpoints_by_token(
        &mut self,
        _request: &Arc<TokenRequest>,
        endpoints: &[SharedEndpoint],
    ) {
        let _ = self.asked.send(Asked::Notice(format!("{} endpoints released", endpoints.len())));
    }

    fn end_token(&mut self, token: &ShareToken) {
        let _ = self.asked.send(Asked::Notice(format!("ended: {}", token.has_ended())));
    }

    fn note_refused(&mut self, key: u64) {
        self.passed.get(&key).into_iter().for_each(PassedDescriptors::note_refused);
    }

    fn note_stray(&mut self) {
        let _ = self.asked.send(Asked::Notice("stray".to_owned()));
    }

    fn forget(&mut self, key: u64, cookie: u64) {
        self.passed.get(&key).into_iter().for_each(|passed| passed.forget(cookie));
    }

    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    fn next_ended(&mut self) -> Option<(u64, Option<String>)> {
        None
    }

    fn sees_all(&self, _uid: u32) -> bool {
        false
    }

    /// Each page names another one, so that a listing goes on.
    fn ask(&mut self, key: u64, query: &ServiceQuery, viewer: Viewer) {
        let body = match query.subject {
            QuerySubject::Daemon => AnswerBody::Daemon(ServiceDaemon {
                uid: viewer.uid,
                shards: 1,
                ..ServiceDaemon::default()
            }),
            _ => AnswerBody::Sockets(Vec::new()),
        };
        self.pages.push((key, AnswerPage { next: Some(query.from + 1), body }));
        let rung = rustix::io::write(&self.ended, &1_u64.to_ne_bytes());
        assert_eq!(rung, Ok(8));
    }

    fn next_page(&mut self) -> Option<(u64, AnswerPage)> {
        self.pages.pop()
    }

    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn notice(&mut self, line: &str) {
        let _ = self.asked.send(Asked::Notice(line.to_owned()));
    }
}

/// A control server on a thread, at a path of its own.
struct Daemon {
    folder: PathBuf,
    asked: Receiver<Asked>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(name: &str) -> Self {
        Self::start_with(name, None)
    }

    fn start_with(name: &str, token: Option<OwnedFd>) -> Self {
        let folder = std::env::temp_dir().join(format!("mp-attach-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (asked, asking) = channel();
        let event = || eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        let (halves, ended) = (HashMap::new(), event());
        let (description, pages) = (description(), Vec::new());
        let passed = HashMap::new();
        let host = EmptyHost { asked, halves, passed, ended, description, pages };
        let mut server = ControlServer::listen(&folder.join("socket"), host).expect("it is free");
        if let Some(token) = token {
            server.add_token(token).expect("epoll works");
        }
        let stop = event();
        let stopped = stop.try_clone().expect("a descriptor");
        let run = move || server.run(stopped.as_fd()).expect("epoll works");
        let thread = Some(std::thread::spawn(run));
        Self { folder, asked: asking, stop, thread }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn next(&self) -> Asked {
        self.asked.recv_timeout(PATIENCE).expect("the host is asked for something")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let _ = self.thread.take().map(JoinHandle::join);
        assert!(!self.path().exists(), "it removes its socket");
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// The description of a server that is gone.
fn description() -> Vec<u8> {
    let (link, _other) = pair(&PairConfig::default()).expect("a pair");
    let config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, 1]), 24)],
        ..ServerConfig::default()
    };
    let frames = Frames::Queue(Box::new(link));
    let memory = SharedMemory::default();
    let server = Server::new(frames, &config, memory, config.clock.now()).expect("a server");
    describe_server(&server, &config)
}

fn attach_to(path: &Path, name: &str) -> Result<LaneSet, AttachError> {
    attach(path, name, &SessionSizes::LEAST)
}

fn connected(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    connect(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("it listens");
    socket
}

/// What the daemon sends next. `None`: it has closed the connection.
fn answer(socket: &OwnedFd) -> Option<Vec<u8>> {
    wait_readable([Some(socket.as_fd())], Some(PATIENCE)).expect("no signal");
    match receive(socket.as_fd()).expect("it can be read") {
        Reception::Message(message) => Some(message.bytes),
        Reception::Closed => None,
        other => panic!("{other:?}"),
    }
}

fn hello() -> Vec<u8> {
    AttachHello::new("test", SessionSizes::LEAST).encode()
}

#[test]
fn session_begins_with_ready_and_ends_with_its_client() {
    let daemon = Daemon::start("session");
    let mut client = attach_to(&daemon.path(), "test").expect("it is welcome");
    let pid = std::process::id();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let groups = rustix::process::getgroups().expect("Linux");
    let groups = groups.iter().map(|group| group.as_raw()).collect();
    let identity = ClientIdentity { pid, uid, gid, groups, name: "test".to_owned() };
    let features =
        ClientFeatures { has_lanes: true, knows_event_details: true, shares_connecting: true };
    assert_eq!(daemon.next(), Asked::Opened(identity, features));
    assert_eq!(daemon.next(), Asked::Begun);
    assert_eq!(client.caps().driver, "pair");
    client.check().expect("it lives");
    drop(client);
    assert_eq!(daemon.next(), Asked::Ended);
}

#[test]
fn older_client_gets_what_its_version_has() {
    let daemon = Daemon::start("older");
    let newest = VERSIONS.1;
    for (version, lanes) in [(1, 1), (2, LANES), (newest - 1, LANES), (newest, LANES)] {
        let versions = (1, version);
        let hello = AttachHello { versions, ..AttachHello::new("old", SessionSizes::LEAST) };
        let socket = connected(&daemon.path());
        send(socket.as_fd(), &hello.encode(), &[]).expect("it is sent");
        wait_readable([Some(socket.as_fd())], Some(PATIENCE)).expect("no signal");
        let received = receive(socket.as_fd()).expect("it can be read");
        let Reception::Message(message) = received else { panic!("{received:?}") };
        let Ok(HelloAnswer::Welcome(welcome)) = HelloAnswer::decode(&message.bytes) else {
            panic!("it is welcome")
        };
        assert_eq!((welcome.version, welcome.lanes), (version, lanes));
        let Asked::Opened(_, features) = daemon.next() else { panic!("it was asked") };
        let expected = ClientFeatures {
            has_lanes: version >= 2,
            knows_event_details: version >= 8,
            shares_connecting: version >= 11,
        };
        assert_eq!(features, expected);
        drop(socket);
        assert_eq!(daemon.next(), Asked::Ended);
        assert_eq!(message.fds.len(), 1 + usize::from(lanes), "a region, and bells");
    }
    let client = attach_to(&daemon.path(), "test").expect("it is welcome");
    assert_eq!(client.lanes(), usize::from(LANES));
}

#[test]
fn end_of_the_daemon_ends_the_session() {
    let daemon = Daemon::start("gone");
    let mut client = attach_to(&daemon.path(), "test").expect("it is welcome");
    let path = daemon.path();
    drop(daemon);
    // Nothing in the region says that the server has ended: its process is gone.
    let start = Instant::now();
    while client.arm() {
        assert!(start.elapsed() < PATIENCE, "the bell's other end is closed");
        wait_readable([Some(client.wait_fd())], Some(PATIENCE)).expect("no signal");
        client.wake_up();
    }
    assert!(client.check().is_err());
    let error = attach_to(&path, "test").err().expect("there is no daemon");
    assert!(matches!(error, AttachError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
    assert_eq!(error.raw_os_error(), rustix::io::Errno::NOENT.raw_os_error());
}

#[test]
fn refusal_reaches_the_client_with_its_sentence() {
    let daemon = Daemon::start("refusal");
    let error = attach_to(&daemon.path(), "unwelcome").err().expect("it is refused");
    let AttachError::Refused { code, sentence, .. } = &error else { panic!("{error}") };
    assert_eq!((*code, &**sentence), (RefusalCode::Sessions, "no shard is free (limit 0)"));
    assert_eq!(error.raw_os_error(), rustix::io::Errno::AGAIN.raw_os_error());
}

#[test]
fn invalid_hello_is_refused_and_closed() {
    let daemon = Daemon::start("hello");
    let hello = hello();
    let mut wrong_magic = hello.clone();
    wrong_magic[0] = b'x';
    let versions = (VERSIONS.1 + 1, VERSIONS.1 + 3);
    let future = AttachHello { versions, ..AttachHello::new("test", SessionSizes::LEAST) }.encode();
    for (bytes, code) in [
        (&hello[..hello.len() - 1], RefusalCode::Hello),
        (&hello[..3], RefusalCode::Hello),
        (&wrong_magic, RefusalCode::Hello),
        (&encode_ready(1), RefusalCode::Hello),
        (&future, RefusalCode::Version),
    ] {
        let socket = connected(&daemon.path());
        send(socket.as_fd(), bytes, &[]).expect("it is sent");
        let refused = HelloAnswer::decode(&answer(&socket).expect("an answer"));
        let Ok(HelloAnswer::Refused(refused)) = refused else { panic!("{refused:?}") };
        assert_eq!(refused.code, code, "{}", refused.sentence);
        assert_eq!(answer(&socket), None, "it is closed");
        let Asked::Notice(line) = daemon.next() else { panic!("no session was opened") };
        assert!(line.contains("refused"), "{line}");
    }
    attach_to(&daemon.path(), "test").expect("others attach");
}

#[test]
fn message_that_is_not_due_ends_handshake_and_session() {
    let daemon = Daemon::start("due");
    for begins in [false, true] {
        let socket = connected(&daemon.path());
        send(socket.as_fd(), &hello(), &[]).expect("it is sent");
        answer(&socket).expect("a welcome");
        assert!(matches!(daemon.next(), Asked::Opened(..)));
        if begins {
            send(socket.as_fd(), &encode_ready(VERSIONS.1), &[]).expect("it is sent");
            assert_eq!(daemon.next(), Asked::Begun);
        }
        // The second HELLO.
        send(socket.as_fd(), &hello(), &[]).expect("it is sent");
        assert_eq!(answer(&socket), None);
        assert_eq!(daemon.next(), Asked::Ended);
        assert!(matches!(daemon.next(), Asked::Notice(_)));
    }
    let socket = connected(&daemon.path());
    send(socket.as_fd(), &hello(), &[]).expect("it is sent");
    answer(&socket).expect("a welcome");
    send(socket.as_fd(), &encode_ready(1), &[]).expect("it is sent");
    assert_eq!(answer(&socket), None, "another version than was agreed on");
}

/// The region and the quotas of its channel are back at once.
#[test]
fn client_that_dies_within_its_handshake_leaves_nothing() {
    let daemon = Daemon::start("dies");
    let socket = connected(&daemon.path());
    send(socket.as_fd(), &hello(), &[]).expect("it is sent");
    let welcome = HelloAnswer::decode(&answer(&socket).expect("an answer"));
    assert!(matches!(welcome, Ok(HelloAnswer::Welcome(_))), "{welcome:?}");
    assert!(matches!(daemon.next(), Asked::Opened(..)));
    drop(socket);
    assert_eq!(daemon.next(), Asked::Ended, "it never began");
    // And before its first message, or with half of one.
    for bytes in [&hello()[..0], &hello()[..9]] {
        let socket = connected(&daemon.path());
        if !bytes.is_empty() {
            send(socket.as_fd(), bytes, &[]).expect("it is sent");
        }
    }
    attach_to(&daemon.path(), "test").expect("others are welcome");
}

#[test]
fn unexpected_descriptors_are_closed() {
    let daemon = Daemon::start("descriptors");
    let socket = connected(&daemon.path());
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    send(socket.as_fd(), &hello(), &[writer.as_fd()]).expect("it is sent");
    answer(&socket).expect("a welcome: they were not asked for, and are ignored");
    drop(writer);
    assert_eq!(reader.read(&mut [0]).expect("a pipe"), 0, "the daemon holds no copy");
}

#[test]
fn too_many_descriptors_end_the_handshake() {
    let daemon = Daemon::start("too-many");
    let socket = connected(&daemon.path());
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let fds = [writer.as_fd(); 200];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let hello = hello();
    sendmsg(&socket, &[IoSlice::new(&hello)], &mut control, SendFlags::empty()).expect("sent");
    assert_eq!(answer(&socket), None, "MSG_CTRUNC");
    assert!(matches!(daemon.next(), Asked::Notice(_)));
    drop(writer);
    assert_eq!(reader.read(&mut [0]).expect("a pipe"), 0, "the daemon holds no copy");
    attach_to(&daemon.path(), "test").expect("others attach");
}

#[test]
fn oversized_message_ends_the_handshake() {
    let daemon = Daemon::start("oversized");
    let socket = connected(&daemon.path());
    send(socket.as_fd(), &[0; 20_000], &[]).expect("it is sent");
    assert_eq!(answer(&socket), None);
    assert!(matches!(daemon.next(), Asked::Notice(_)));
}

#[test]
fn half_handshakes_are_bounded_and_expire() {
    let daemon = Daemon::start("half");
    let half: Vec<_> = (0..HANDSHAKES_OF_USER_MAX).map(|_| connected(&daemon.path())).collect();
    let more = connected(&daemon.path());
    let refused = HelloAnswer::decode(&answer(&more).expect("an answer"));
    let Ok(HelloAnswer::Refused(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.code, RefusalCode::Busy);
    // An honest client tries again until there is room: within two times of a handshake.
    let start = Instant::now();
    attach_to(&daemon.path(), "test").expect("it gets in");
    assert!(start.elapsed() >= HANDSHAKE_TIME / 4, "they were in the way");
    for socket in &half {
        assert_eq!(answer(socket), None, "it is closed without an answer");
    }
}

/// A user that begins a thousand handshakes keeps no other user out. Two users need root.
#[test]
fn thousand_half_handshakes_keep_no_other_user_out() {
    let daemon = Daemon::start("thousand");
    let path = daemon.path();
    let (sender, receiver) = channel();
    let hostile = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(54_321);
        let is_other = rustix::thread::set_thread_res_uid(user, user, user).is_ok();
        let (mut half, mut expired, mut refused) = (Vec::new(), 0, 0);
        for number in 0..1_000 {
            half.push(connected(&path));
            if number == HANDSHAKES_OF_USER_MAX {
                // As many are in progress as can be.
                sender.send(is_other).expect("the test waits for it");
            }
            let patience = if number < 999 { Duration::ZERO } else { PATIENCE };
            // Those that are over are closed here too: a process has few descriptors.
            half.retain(|socket| {
                let readable = wait_readable([Some(socket.as_fd())], Some(patience));
                let is_over = readable.expect("no signal")[0];
                if is_over {
                    *if answer(socket).is_none() { &mut expired } else { &mut refused } += 1;
                }
                !is_over
            });
        }
        (expired, refused)
    });
    let is_other = receiver.recv_timeout(PATIENCE).expect("it connects");
    let start = Instant::now();
    for _ in 0..20 {
        match attach_to(&daemon.path(), "test") {
            Ok(_) => {}
            // Without root both are one user, and it is refused.
            Err(error) => assert!(!is_other, "{error}"),
        }
    }
    assert!(start.elapsed() < PATIENCE);
    // All others are refused at once, with an answer.
    let (expired, refused) = hostile.join().expect("no panic");
    assert_eq!(expired + refused, 1_000);
    assert!(expired > 0 && refused > 0, "{expired} were closed without an answer");
    attach_to(&daemon.path(), "test").expect("it is over within a second");
}

#[test]
fn client_waits_for_a_daemon_that_does_not_listen_yet() {
    let folder = std::env::temp_dir().join(format!("mp-attach-{}-begins", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("socket");
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(&path).expect("it is short");
    rustix::net::bind(&socket, &address).expect("it is free");
    assert!(connect_to(&path).is_err(), "nothing listens");
    let lock = std::fs::File::open(&folder).expect("it was made above");
    lock.lock().expect("no other has it");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| connect_to(&path));
        // It is refused meanwhile.
        std::thread::sleep(Duration::from_millis(20));
        rustix::net::listen(&socket, 8).expect("it is bound");
        lock.unlock().expect("it was locked");
        assert!(client.join().expect("no panic").is_ok());
    });
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn daemon_of_another_protocol_is_an_error() {
    let folder = std::env::temp_dir().join(format!("mp-attach-{}-liar", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("socket");
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = listener.expect("a socket");
    let bound = megapipe_link::BoundPath::listen(listener.as_fd(), &path, 8).expect("it is free");
    let sizes = SessionSizes::LEAST;
    let limits = AgreedLimits { connections: 1, connecting: 1, listeners: 1, endpoints: 1 };
    let welcome = Welcome {
        version: 1,
        record_bytes: RECORD_BYTES,
        sizes,
        limits,
        lanes: 1,
        description: description(),
    };
    let (_half, fds) = sizes.create().expect("memory");
    let larger = SessionSizes { receive_buffers: 9, ..sizes };
    let other_region = SessionSizes { small_sends: 900, ..sizes }.create().expect("memory").1;
    let both = [fds.region.as_fd(), fds.bells[0].as_fd()];
    let two_lanes = Welcome { version: 2, lanes: 2, ..welcome.clone() };
    let answers: [(Vec<u8>, &[BorrowedFd<'_>]); 9] = [
        (b"nonsense".to_vec(), &[]),
        (hello(), &[]),
        (welcome.encode(), &[]),
        (welcome.encode(), &both[..1]),
        (Welcome { sizes: larger, ..welcome.clone() }.encode(), &both),
        (Welcome { description: vec![1], ..welcome.clone() }.encode(), &both),
        (two_lanes.encode(), &both),
        (Welcome { lanes: 0, ..two_lanes.clone() }.encode(), &both[..1]),
        (welcome.encode(), &[other_region.region.as_fd(), fds.bells[0].as_fd()]),
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (bytes, fds) in &answers {
                let client = rustix::net::accept(&listener).expect("a client comes");
                send(client.as_fd(), bytes, fds).expect("it is sent");
                // Until the client has read it.
                let _ = wait_readable([Some(client.as_fd())], Some(PATIENCE));
                let _ = receive(client.as_fd());
                let _ = wait_readable([Some(client.as_fd())], Some(PATIENCE));
            }
        });
        for number in 0..answers.len() {
            let error = attach_to(&path, "test").err().expect("no correct daemon answers so");
            let is_expected =
                matches!(error, AttachError::Protocol { .. } | AttachError::Session { .. });
            assert!(is_expected, "{number}: {error}");
        }
    });
    drop(bound);
    let _ = std::fs::remove_dir(&folder);
}

/// The sizes of a session between threads are in range.
#[test]
fn sizes_of_threads_are_in_range() {
    let config = RemoteConfig { core: None, receive_bytes: 4_096, receive_buffers: 1 << 20 };
    let sizes = SessionSizes::of(config.receive_bytes, config.receive_buffers);
    assert_eq!(sizes.check(), Ok(()));
}
