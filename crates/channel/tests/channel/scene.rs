//! A channel under test, with peers that are ordinary blocking sockets.
//!
//! Invariants
//! - `Scene::next` and what is built on it end after `PATIENCE`, so a lost completion is a failed
//!   test and never a hanging one; peers' reads and writes have the same limit.
//! - A driver that does not exist on this machine is one line `skipped: NAME: WHY`.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, Channel, Completion, Config, ConnectOptions, Connection, CreateError,
    DispatchError, DriverChoice, Event, Handle, ListenOptions, Misuse, OpError, Placement, ReadBuf,
    SubmitError, Unregistered,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::place::{self, Place, here, is_local, there};

/// How long anything may take before it counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough for something that must not happen to happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(30);

/// Makes one test of each function for each of the kernel's drivers and for our own stack, in the
/// modules `uring`, `epoll` and, for each place that the stack can run at, `local`, `local_thread`,
/// `local_core` and `service`.
///
/// After `; kernel:` stand those that are about what only the kernel's sockets have: descriptors
/// (`to_fd`, accepting as one), and listeners that share an address.
macro_rules! on_each_driver {
    ($($fact:ident),+ $(,)? $(; kernel: $($kernels:ident),+ $(,)?)?) => {
        crate::scene::on_kernel_drivers![$($fact),+ $($(, $kernels)+)?];
        #[cfg(feature = "local")]
        crate::scene::on_each_placement![$($fact),+];
    };
}
pub(crate) use on_each_driver;

/// Makes one test of each function for each place that our own stack can run at: inside `dispatch`
/// (in the module `local`), on a thread beside it, on a core of its own, in a daemon.
#[cfg(feature = "local")]
macro_rules! on_each_placement {
    ($($fact:ident),+ $(,)?) => {
        mod local {
            $(#[test]
            fn $fact() {
                let name = concat!(module_path!(), "::", stringify!($fact));
                crate::scene::check_local(megapipe::Placement::Inline, name, super::$fact);
            })+
        }
        mod local_thread {
            $(#[test]
            fn $fact() {
                let name = concat!(module_path!(), "::", stringify!($fact));
                crate::scene::check_local(megapipe::Placement::Thread, name, super::$fact);
            })+
        }
        mod local_core {
            $(#[test]
            fn $fact() {
                let name = concat!(module_path!(), "::", stringify!($fact));
                crate::scene::check_local(megapipe::Placement::Core(None), name, super::$fact);
            })+
        }
        mod service {
            $(#[test]
            fn $fact() {
                let name = concat!(module_path!(), "::", stringify!($fact));
                crate::scene::check_service(name, super::$fact);
            })+
        }
    };
}
#[cfg(feature = "local")]
pub(crate) use on_each_placement;

/// The same without our own stack.
macro_rules! on_kernel_drivers {
    ($($fact:ident),+ $(,)?) => {
        mod uring {
            $(#[test]
            fn $fact() {
                let name = concat!(module_path!(), "::", stringify!($fact));
                crate::scene::check(megapipe::DriverChoice::Uring, name, super::$fact);
            })+
        }
        mod epoll {
            $(#[test]
            fn $fact() {
                let name = concat!(module_path!(), "::", stringify!($fact));
                crate::scene::check(megapipe::DriverChoice::Epoll, name, super::$fact);
            })+
        }
    };
}
pub(crate) use on_kernel_drivers;

/// Written while a child is started: until it has become another program it has a copy of every
/// descriptor of this process. What it keeps open that a channel has closed stays in the channel's
/// epoll set, and brings events that are strays. Read by who counts those.
static STARTING: RwLock<()> = RwLock::new(());

/// Counts the beginning and the end of each start of a child: odd while one is being started.
static STARTS: AtomicU64 = AtomicU64::new(0);

/// Starts a program.
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    let _starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    STARTS.fetch_add(1, Ordering::SeqCst);
    let child = command.spawn();
    STARTS.fetch_add(1, Ordering::SeqCst);
    child
}

/// One fact on one driver.
pub(crate) struct Case {
    pub(crate) driver: DriverChoice,
    /// The test's name as libtest knows it.
    pub(crate) name: &'static str,
    /// TCP and UDP are our own stack's.
    pub(crate) is_local: bool,
    /// Where that runs.
    pub(crate) placement: Placement,
    /// It runs in a daemon: on a thread of this process, behind its control socket.
    pub(crate) is_service: bool,
    /// No child of this process is started meanwhile.
    undisturbed: Cell<Option<RwLockReadGuard<'static, ()>>>,
}

/// Runs a fact, or says why the driver cannot be had here.
pub(crate) fn check(driver: DriverChoice, path: &'static str, fact: fn(&Case)) {
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    match Channel::create(Config::default().driver(driver)) {
        Err(CreateError::DriverUnavailable { reason, .. }) => {
            println!("skipped: {name}: {reason}");
        }
        Err(error) => panic!("{error:?}"),
        Ok(_) => {
            let undisturbed = (driver == DriverChoice::Epoll)
                .then(|| STARTING.read().unwrap_or_else(PoisonError::into_inner));
            let placement = Placement::Inline;
            let undisturbed = Cell::new(undisturbed);
            let (is_local, is_service) = (false, false);
            fact(&Case { driver, name, is_local, placement, is_service, undisturbed });
        }
    }
}

/// Runs a fact on our own stack, with the kernel as its peer, or says why that is not possible.
#[cfg(feature = "local")]
pub(crate) fn check_local(placement: Placement, path: &'static str, fact: fn(&Case)) {
    check_stack((placement, false), path, fact);
}

/// The same on the stack of a daemon.
#[cfg(feature = "local")]
pub(crate) fn check_service(path: &'static str, fact: fn(&Case)) {
    check_stack((Placement::Inline, true), path, fact);
}

#[cfg(feature = "local")]
fn check_stack((placement, is_service): (Placement, bool), path: &'static str, fact: fn(&Case)) {
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    match place::enter() {
        Err(why) => println!("skipped: {name}: {why}"),
        Ok(()) => {
            let (driver, undisturbed) = (DriverChoice::Epoll, Cell::new(None));
            fact(&Case { driver, name, is_local: true, placement, is_service, undisturbed });
        }
    }
}

/// Set in a process that runs one test alone.
const ALONE: &str = "MEGAPIPE_TEST_ALONE";

impl Case {
    /// A configuration for one channel.
    pub(crate) fn config(&self) -> Config {
        let config = Config::default().driver(self.driver);
        #[cfg(feature = "local")]
        if self.is_service {
            return config.backend(place::service().expect("a network was made a moment ago"));
        }
        #[cfg(feature = "local")]
        if self.is_local {
            let network = place::network().expect("one was made a moment ago");
            return config.backend(network).placement(self.placement);
        }
        config
    }

    /// The name of the back end.
    pub(crate) const fn backend(&self) -> &'static str {
        match (self.is_service, self.is_local) {
            (true, _) => "service",
            (false, true) => "local",
            (false, false) => "kernel",
        }
    }

    pub(crate) fn scene(&self) -> Scene {
        self.scene_with(self.config())
    }

    /// For facts about more unsent bytes than a handle may have by default.
    pub(crate) fn scene_without_limit(&self) -> Scene {
        self.scene_with(self.config().unsent_bytes_max(usize::MAX))
    }

    pub(crate) fn scene_with(&self, config: Config) -> Scene {
        Scene::new(config)
    }

    /// Runs the fact in a process of its own, where it may change limits, count descriptors or
    /// fork. Call it first: in that process it runs `fact`.
    pub(crate) fn alone(&self, fact: impl FnOnce()) {
        drop(self.undisturbed.take());
        alone(self.name, fact);
    }
}

/// Runs the fact of a test in a process of its own.
pub(crate) fn alone(name: &str, fact: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return fact();
    }
    let this = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(this);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = start(&mut command).expect("a test can run itself");
    let output = child.wait_with_output().expect("a child of ours");
    let (out, err) = (&output.stdout, &output.stderr);
    let text = format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    for line in text.lines().filter(|line| line.starts_with("skipped: ")) {
        println!("{line}");
    }
    assert!(output.status.success(), "{name}: {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "{text}");
}

/// A channel, and completions that were set aside while another handle's was waited for.
pub(crate) struct Scene {
    pub(crate) channel: Channel,
    later: VecDeque<Completion>,
    place: Option<Place>,
    /// [`STARTS`] at the beginning.
    starts: u64,
}

impl Deref for Scene {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

/// The blocking side of a stream connection, of whatever address family: `UnixStream` has the
/// calls that a stream needs, and they are the same system calls for TCP.
pub(crate) type Peer = UnixStream;

pub(crate) fn peer(fd: impl Into<OwnedFd>) -> Peer {
    let peer = Peer::from(fd.into());
    peer.set_read_timeout(Some(PATIENCE)).expect("a socket has a time-out");
    peer.set_write_timeout(Some(PATIENCE)).expect("a socket has a time-out");
    peer
}

/// The ways in which a byte stream gets into a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Accepted4,
    Accepted6,
    AcceptedUnix,
    Connected4,
    Connected6,
    ConnectedUnix,
    RegisteredTcp,
    RegisteredUnix,
}

impl Stream {
    pub(crate) const ALL: [Self; 8] = [
        Self::Accepted4,
        Self::Accepted6,
        Self::AcceptedUnix,
        Self::Connected4,
        Self::Connected6,
        Self::ConnectedUnix,
        Self::RegisteredTcp,
        Self::RegisteredUnix,
    ];

    pub(crate) const TCP: [Self; 5] =
        [Self::Accepted4, Self::Accepted6, Self::Connected4, Self::Connected6, Self::RegisteredTcp];

    pub(crate) fn is_tcp(self) -> bool {
        Self::TCP.contains(&self)
    }

    pub(crate) fn is_registered(self) -> bool {
        matches!(self, Self::RegisteredTcp | Self::RegisteredUnix)
    }
}

impl Scene {
    pub(crate) fn new(config: Config) -> Self {
        place::settle(&config);
        let channel = Channel::create(config).expect("the driver worked a moment ago");
        let (place, starts) = (place::get(), STARTS.load(Ordering::SeqCst));
        Self { channel, later: VecDeque::new(), place, starts }
    }

    /// As the channel's, but what was kept for later comes first.
    pub(crate) fn dispatch(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Completion>, DispatchError> {
        match self.later.pop_front() {
            Some(done) => Ok(Some(done)),
            None => self.channel.dispatch(timeout),
        }
    }

    /// As the channel's, and what was kept for later is not seen either.
    pub(crate) fn unregister(&mut self, handle: Handle) -> Result<Unregistered, Misuse> {
        self.later.retain(|done| done.handle != handle);
        self.channel.unregister(handle)
    }

    /// The next completion.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Completion {
        if let Some(done) = self.later.pop_front() {
            return done;
        }
        let done = self.channel.dispatch(Some(PATIENCE)).expect("dispatch works");
        done.expect("a completion comes in time")
    }

    /// The next completion of one handle; those of others are kept for later.
    #[track_caller]
    pub(crate) fn next_of(&mut self, handle: Handle) -> Event {
        if let Some(index) = self.later.iter().position(|done| done.handle == handle) {
            return self.later.remove(index).expect("found above").event;
        }
        loop {
            let done = self.channel.dispatch(Some(PATIENCE)).expect("dispatch works");
            let done = done.expect("a completion comes in time");
            if done.handle == handle {
                return done.event;
            }
            self.later.push_back(done);
        }
    }

    /// Nothing completes for a while.
    #[track_caller]
    pub(crate) fn expect_silence(&mut self) {
        let done = self.channel.dispatch(Some(A_WHILE)).expect("dispatch works");
        assert!(done.is_none() && self.later.is_empty(), "{done:?} {:?}", self.later);
    }

    /// Until what peers have sent has arrived: a connection that is begun after it does not
    /// overtake it.
    #[track_caller]
    pub(crate) fn catch_up(&mut self) {
        let (handle, _peer) = self.stream(Stream::Accepted4);
        self.unregister(handle).expect("registered just now");
    }

    /// What the peer receives until the end, or the reset that it gets. The channel goes on
    /// meanwhile, because closing may take it several turns, and completes nothing.
    #[track_caller]
    pub(crate) fn end_of(&mut self, peer: &mut Peer) -> std::io::Result<Vec<u8>> {
        peer.set_nonblocking(true).expect("a socket");
        let (start, mut bytes) = (Instant::now(), Vec::new());
        loop {
            match peer.read_to_end(&mut bytes) {
                Ok(_) => return Ok(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            assert!(start.elapsed() < PATIENCE, "the peer sees no end");
            let done = self.channel.dispatch(Some(Duration::from_millis(1))).expect("works");
            assert!(done.is_none(), "{done:?}");
        }
    }

    /// Listens on an address; returns where.
    pub(crate) fn listening(&mut self, address: &str) -> (Handle, Address) {
        self.listening_with(address, &ListenOptions::default())
    }

    fn listening_with(&mut self, address: &str, options: &ListenOptions) -> (Handle, Address) {
        place::set(self.place);
        let address = here(address);
        let listener = self.listen(&address, options, 0).expect("listens");
        let bound = self.local_address(listener).expect("a listener has an address");
        (listener, bound)
    }

    #[track_caller]
    pub(crate) fn accept_one(&mut self, listener: Handle) -> Handle {
        self.channel.accept(listener, Accept::lwsocket(1)).expect("a listener accepts");
        self.accepted(listener)
    }

    #[track_caller]
    pub(crate) fn accepted(&mut self, listener: Handle) -> Handle {
        match self.next_of(listener) {
            Event::Accept(Ok(accepted)) => match accepted.connection {
                Connection::Lwsocket(handle) => handle,
                Connection::Fd(fd) => panic!("{fd:?} is no lwsocket"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// A connection between the channel and a blocking peer.
    #[track_caller]
    pub(crate) fn stream(&mut self, kind: Stream) -> (Handle, Peer) {
        match kind {
            Stream::Accepted4 => self.accepted_tcp("127.0.0.1:0"),
            Stream::Accepted6 => self.accepted_tcp("[::1]:0"),
            Stream::AcceptedUnix => {
                let folder = Folder::new();
                let path = folder.path("listener");
                let address = Address::unix(&path).expect("a short path");
                let listener =
                    self.listen(&address, &ListenOptions::default(), 0).expect("listens");
                let client = UnixStream::connect(path).expect("connects");
                let handle = self.accept_one(listener);
                self.unregister(listener).expect("registered above");
                (handle, peer(client))
            }
            Stream::Connected4 => self.connected_tcp("127.0.0.1:0"),
            Stream::Connected6 => self.connected_tcp("[::1]:0"),
            Stream::ConnectedUnix => {
                let folder = Folder::new();
                let path = folder.path("listener");
                let listener = UnixListener::bind(&path).expect("binds");
                let handle = self.connected(&Address::unix(path).expect("a short path"));
                (handle, peer(listener.accept().expect("accepts").0))
            }
            Stream::RegisteredTcp => {
                let (ours, theirs) = tcp_pair();
                (self.register(ours.into(), 0, None).expect("registers"), peer(theirs))
            }
            Stream::RegisteredUnix => {
                let (ours, theirs) = UnixStream::pair().expect("a pair");
                (self.register(ours.into(), 0, None).expect("registers"), peer(theirs))
            }
        }
    }

    fn accepted_tcp(&mut self, address: &str) -> (Handle, Peer) {
        self.accepted_with(address, &ListenOptions::default())
    }

    /// A connection that a listener with these options accepts.
    #[track_caller]
    pub(crate) fn accepted_with(
        &mut self,
        address: &str,
        options: &ListenOptions,
    ) -> (Handle, Peer) {
        let (listener, bound) = self.listening_with(address, options);
        let client = self.dial(bound.as_inet().expect("TCP")).expect("connects");
        client.set_nodelay(true).expect("TCP");
        let handle = self.accept_one(listener);
        self.unregister(listener).expect("registered above");
        (handle, peer(client))
    }

    fn connected_tcp(&mut self, address: &str) -> (Handle, Peer) {
        self.connected_with(address, &ConnectOptions::default())
    }

    /// A connection that the channel makes with these options.
    #[track_caller]
    pub(crate) fn connected_with(
        &mut self,
        address: &str,
        options: &ConnectOptions,
    ) -> (Handle, Peer) {
        place::set(self.place);
        let listener = TcpListener::bind(there(address)).expect("binds");
        let address = listener.local_addr().expect("bound").into();
        let handle = self.connected_by(&address, options);
        (handle, self.admit(&listener))
    }

    #[track_caller]
    pub(crate) fn connected(&mut self, address: &Address) -> Handle {
        self.connected_by(address, &ConnectOptions::default())
    }

    #[track_caller]
    fn connected_by(&mut self, address: &Address, options: &ConnectOptions) -> Handle {
        let handle = self.connect(address, options, 0).expect("starts");
        match self.next_of(handle) {
            Event::Connect(Ok(())) => handle,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for a descriptor. `false`: a connection of our own stack on a link with an address of
    /// its own has no way to one, and says so.
    #[track_caller]
    pub(crate) fn ask_for_fd(&mut self, handle: Handle) -> bool {
        match self.channel.to_fd(handle) {
            Ok(()) => true,
            Err(SubmitError::Misuse(Misuse::CannotMove { .. })) if is_local() => false,
            Err(other) => panic!("{other}"),
        }
    }

    /// One read's result.
    #[track_caller]
    pub(crate) fn read_once(&mut self, handle: Handle, len: usize) -> Result<ReadBuf, OpError> {
        self.channel.read(handle, len).expect("reading is possible");
        match self.next_of(handle) {
            Event::Read(read) => read,
            other => panic!("{other:?}"),
        }
    }

    /// Reads until `len` bytes are there.
    #[track_caller]
    pub(crate) fn read_exact(&mut self, handle: Handle, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let read = self.read_once(handle, len - bytes.len()).expect("the stream goes on");
            assert!(!read.is_empty(), "end after {} of {len} bytes", bytes.len());
            bytes.extend_from_slice(&read);
        }
        bytes
    }

    /// Reads to the end.
    #[track_caller]
    pub(crate) fn read_to_end(&mut self, handle: Handle) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let read = self.read_once(handle, 1 << 16).expect("the stream goes on");
            if read.is_empty() {
                return bytes;
            }
            bytes.extend_from_slice(&read);
        }
    }

    #[track_caller]
    pub(crate) fn expect_written(&mut self, handle: Handle, len: usize) {
        match self.next_of(handle) {
            Event::Write(Ok(written)) => assert_eq!(written, len),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn expect_disconnected(&mut self, handle: Handle) {
        match self.next_of(handle) {
            Event::Disconnect(Ok(())) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Lets our own stack work until the peer's socket is ready, because it works inside
    /// `dispatch`; the kernel's needs no help.
    fn until(&mut self, peer: &impl AsFd, ready: PollFlags) {
        let start = Instant::now();
        while is_local() {
            let mut fds = [PollFd::new(peer, ready)];
            if poll(&mut fds, Some(&Timespec::default())).expect("a socket") > 0 {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the peer waits in vain");
            self.work();
        }
    }

    /// Lets our own stack work for a moment; completions are kept for later.
    fn work(&mut self) {
        let moment = Some(Duration::from_micros(200));
        self.later.extend(self.channel.dispatch(moment).expect("dispatch works"));
    }

    /// So many bytes that the peer receives.
    #[track_caller]
    pub(crate) fn receive(&mut self, peer: &mut (impl Read + AsFd), len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut got = 0;
        while got < len {
            self.until(peer, PollFlags::IN);
            match peer.read(&mut bytes[got..]) {
                Ok(0) => panic!("end after {got} of {len} bytes"),
                Ok(more) => got += more,
                // What the ring has to do for this thread interrupts a call that waits.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("the peer receives: {error}"),
            }
        }
        bytes
    }

    /// What the peer receives until the end.
    #[track_caller]
    pub(crate) fn receive_to_end(&mut self, peer: &mut (impl Read + AsFd)) -> Vec<u8> {
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        loop {
            self.until(peer, PollFlags::IN);
            match peer.read(&mut part).expect("the peer sees an orderly end") {
                0 => return bytes,
                len => bytes.extend_from_slice(&part[..len]),
            }
        }
    }

    /// One message that the peer receives, and from whom.
    #[track_caller]
    pub(crate) fn receive_message(&mut self, peer: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        let mut message = vec![0; 1 << 16];
        self.until(peer, PollFlags::IN);
        let (len, from) = peer.recv_from(&mut message).expect("the peer receives");
        message.truncate(len);
        (message, from)
    }

    /// The peer sends all of it.
    #[track_caller]
    pub(crate) fn send(&mut self, peer: &mut (impl Write + AsFd), bytes: &[u8]) {
        if !is_local() {
            return send(peer, bytes);
        }
        let mut rest = bytes;
        rustix::io::ioctl_fionbio(&*peer, true).expect("a descriptor");
        while !rest.is_empty() {
            self.until(peer, PollFlags::OUT);
            match peer.write(rest) {
                Ok(len) => rest = &rest[len..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("the peer can send: {error}"),
            }
        }
        rustix::io::ioctl_fionbio(&*peer, false).expect("a descriptor");
    }

    /// A peer connects to the channel.
    pub(crate) fn dial(&mut self, address: SocketAddr) -> std::io::Result<TcpStream> {
        if !is_local() {
            return TcpStream::connect(address);
        }
        self.join(std::thread::spawn(move || TcpStream::connect(address)))
    }

    /// The channel's connection, as its peer accepts it.
    pub(crate) fn admit(&mut self, listener: &TcpListener) -> Peer {
        self.until(listener, PollFlags::IN);
        let server = listener.accept().expect("accepts").0;
        server.set_nodelay(true).expect("TCP");
        peer(server)
    }

    /// Waits for a peer's thread.
    #[track_caller]
    pub(crate) fn join<T>(&mut self, thread: JoinHandle<T>) -> T {
        while is_local() && !thread.is_finished() {
            self.work();
        }
        thread.join().expect("the peer is content")
    }

    /// The kernel gave no unexpected answer. Where children may be started meanwhile, by tests of
    /// our own stack, one that was is reason enough for some.
    #[track_caller]
    pub(crate) fn expect_no_strays(&self) {
        let now = STARTS.load(Ordering::SeqCst);
        let undisturbed = self.place.is_none() || self.starts == now && now.is_multiple_of(2);
        assert!(self.counters().stray_answers == 0 || !undisturbed, "strays");
    }
}

/// Two ends of a TCP connection.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let server = listener.accept().expect("accepts").0;
    client.set_nodelay(true).expect("TCP");
    server.set_nodelay(true).expect("TCP");
    (client, server)
}

/// Resets a TCP connection: closing with SO_LINGER 0.
pub(crate) fn reset(peer: Peer) {
    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).expect("TCP");
    drop(peer);
}

/// Bytes that differ from their neighbours, so that a swap, a gap or a repetition shows.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) ^ (at >> 8) ^ (seed * 77)) as u8).collect()
}

#[track_caller]
pub(crate) fn receive(peer: &mut impl Read, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    peer.read_exact(&mut bytes).expect("the peer gets all of it");
    bytes
}

#[track_caller]
pub(crate) fn receive_to_end(peer: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).expect("the peer sees an orderly end");
    bytes
}

#[track_caller]
pub(crate) fn send(peer: &mut impl Write, bytes: &[u8]) {
    peer.write_all(bytes).expect("the peer can send");
}

/// An address without a listener.
pub(crate) fn deserted() -> SocketAddr {
    let listener = TcpListener::bind(there("127.0.0.1:0")).expect("binds");
    listener.local_addr().expect("bound")
}

/// A folder that is gone when the test is.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the counter orders nothing but itself.
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("megapipe-test-{}-{turn}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the folder for temporary files is writable");
        Self(path)
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed is no reason to fail a test a second time.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
