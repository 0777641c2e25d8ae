//! Connections that move between the daemon's stack and the kernel, for a program that has no part
//! in the link.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, Backend, Channel, Config, ConnectOptions, Connection, Daemon, DatagramSharing,
    Event, Handle, ListenOptions, LocalNetwork, NotTaken, ServerConfig, ServiceAddress,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::hosts::{FAR, Hosts, NEAR, PATIENCE, at, with_hosts};
use super::mover::{Mover, Side};
use super::ports::{accepted, connect, expect_alive, join};
use super::transfers::{close, exchange, patterns};

const PORT: u16 = 8_300;
/// Bytes in each direction.
const LEN: usize = 400_000;

/// A daemon on a thread of the near host, which ends with the pipe.
fn daemon(path: &Path) -> (std::io::PipeWriter, JoinHandle<()>) {
    let (stop, stopper) = std::io::pipe().expect("a pipe");
    let (ready, is_ready) = std::sync::mpsc::channel();
    let path = path.to_owned();
    let thread = std::thread::spawn(move || {
        let settings = ServerConfig { shards: Some(2), ..ServerConfig::default() };
        let network = LocalNetwork::open("packet:mp-near", settings).expect("root has the link");
        let daemon = Daemon::start(&network, &path, &[], |line| println!("{line}"));
        let mut daemon = daemon.expect("the path is free");
        ready.send(()).expect("the test waits for it");
        daemon.run(stop.as_fd()).expect("it runs until it is stopped");
    });
    is_ready.recv_timeout(PATIENCE).expect("it starts");
    (stopper, thread)
}

fn bytes() -> Vec<u8> {
    (0..LEN).map(|place| (place * 7 + place / 251) as u8).collect()
}

/// The far host sends all bytes, and checks that they come back.
fn echoed(hosts: &Hosts) -> JoinHandle<()> {
    hosts.far(|| {
        let mut stream = TcpStream::connect(at(NEAR[0], PORT)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut sender = stream.try_clone().expect("a descriptor");
        let sending = std::thread::spawn(move || sender.write_all(&bytes()).expect("it is sent"));
        let mut back = vec![0; LEN];
        stream.read_exact(&mut back).expect("all comes back");
        assert!(back == bytes(), "other bytes");
        sending.join().expect("no panic");
    })
}

/// Sends back what a kernel socket receives, after what was read before.
fn echo(mut stream: TcpStream, mut read: Vec<u8>, sent: usize) {
    stream.set_nonblocking(false).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let from = read.len();
    read.resize(LEN, 0);
    stream.read_exact(&mut read[from..]).expect("the rest comes");
    stream.write_all(&read[sent..]).expect("it is sent");
    let end = stream.read(&mut [0]).expect("the peer closes");
    assert_eq!(end, 0);
}

fn next(channel: &mut Channel) -> Event {
    channel.dispatch(Some(PATIENCE)).expect("dispatch").expect("in time").event
}

/// Reads a part, writes some of it back, and moves in the middle of the transfer.
fn move_one(channel: &mut Channel, handle: Handle) {
    let mut read = Vec::new();
    while read.len() < LEN / 4 {
        channel.read(handle, 16 << 10).expect("a connection");
        let Event::Read(Ok(data)) = next(channel) else { panic!("it is read") };
        read.extend_from_slice(&data);
    }
    let sent = LEN / 8;
    channel.write(handle, read[..sent].to_vec()).expect("a connection");
    channel.to_fd(handle).expect("it can move");
    let moved = loop {
        match next(channel) {
            Event::Write(done) => assert_eq!(done.expect("it is written"), sent),
            Event::ToFd(moved) => break moved,
            other => panic!("{other:?}"),
        }
    };
    let moved = moved.unwrap_or_else(|error| panic!("{error}: {:?}", channel.explain(handle)));
    echo(TcpStream::from(moved.fd), read, sent);
}

/// A daemon of the test's own, at a path of its own.
struct TestDaemon {
    folder: PathBuf,
    stopper: Option<std::io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl TestDaemon {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("mp-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (stopper, thread) = daemon(&folder.join("service"));
        Self { folder, stopper: Some(stopper), thread: Some(thread) }
    }

    fn channel(&self) -> Channel {
        let backend = Backend::Service(ServiceAddress::new(self.folder.join("service")));
        Channel::create(Config::default().backend(backend)).expect("a daemon")
    }

    fn end(mut self) {
        drop(self.stopper.take());
        self.thread.take().expect("it ends once").join().expect("no panic");
        std::fs::remove_dir_all(&self.folder).expect("it is ours");
    }
}

/// A connection begins in the kernel and moves there and back, in the middle of a transfer.
#[test]
fn connections_of_the_kernel_become_those_of_the_service() {
    with_hosts("connections_of_the_kernel_become_those_of_the_service", |hosts| {
        let daemon = TestDaemon::start("taking");
        let mut channel = daemon.channel();
        for (seed, address) in (30..).zip(NEAR) {
            let listener = TcpListener::bind(at(address, PORT)).expect("a port of the kernel's");
            let to = at(address, PORT);
            let peer = hosts.far(move || exchange(TcpStream::connect(to).expect("connects"), seed));
            let (stream, _) = listener.accept().expect("a connection");
            let handle = channel.register(stream.into(), 0, None).expect("a socket");
            let (outward, inward) = patterns(seed);
            let mut mover = Mover::new(&mut channel, (handle, Side::Kernel), outward, inward);
            mover.run(3);
            assert_eq!(mover.side, Side::Stack);
            let handle = mover.handle;
            close(&mut channel, handle);
            peer.join().expect("the peer is content");
        }
        drop(channel);
        daemon.end();
        hosts.judge();
    });
}

/// Over the link a registered listening socket is the daemon's, otherwise the kernel's.
#[test]
fn service_takes_a_registered_port_over_and_gives_it_back() {
    with_hosts("service_takes_a_registered_port_over_and_gives_it_back", |hosts| {
        let daemon = TestDaemon::start("ports");
        let mut channel = daemon.channel();
        let socket = TcpListener::bind(("::", PORT)).expect("a port");
        let kernels = socket.try_clone().expect("a descriptor");
        let listener = channel.register(socket.into(), 7, None).expect("a listening socket");
        let taken = format!("has taken over {}:{PORT}", NEAR[0]);
        let until = |channel: &mut Channel, is_taken: bool| {
            let start = Instant::now();
            loop {
                let explain = channel.explain(listener).expect("a handle");
                if explain.remarks.iter().any(|it| it.contains(&taken)) == is_taken {
                    break;
                }
                assert!(start.elapsed() < PATIENCE, "{explain}");
                let done = channel.dispatch(Some(Duration::from_millis(10))).expect("dispatch");
                assert!(done.is_none(), "{done:?}");
            }
        };
        until(&mut channel, true);
        let over_link = |channel: &mut Channel, address, by: &str| {
            let peer = connect(hosts, at(address, PORT));
            let handle = accepted(channel, listener);
            let backend = channel.explain(handle).expect("a handle").backend;
            assert_eq!(backend, by, "{address}");
            let peer = join(channel, peer);
            (handle, expect_alive(channel, handle, peer))
        };
        for address in NEAR {
            over_link(&mut channel, address, "service");
        }
        let inside = std::thread::spawn(|| TcpStream::connect(("127.0.0.1", PORT)));
        let by_kernel = accepted(&mut channel, listener);
        assert_eq!(channel.explain(by_kernel).expect("a handle").backend, "kernel");
        let inside = join(&mut channel, inside).expect("connects");
        expect_alive(&mut channel, by_kernel, inside);

        // Without a daemon the kernel serves the port, and a daemon that is back takes it over.
        let path = daemon.folder.join("service");
        daemon.end();
        until(&mut channel, false);
        over_link(&mut channel, NEAR[0], "kernel");
        let daemon = TestDaemon::start("ports");
        assert_eq!(daemon.folder.join("service"), path);
        until(&mut channel, true);
        let (ours, peer) = over_link(&mut channel, NEAR[0], "service");

        // Given back: the connection stays, and the next is the kernel's.
        let left = channel.unregister(listener).expect("a handle");
        drop(left.fd.expect("the descriptor comes back"));
        let next = connect(hosts, at(NEAR[0], PORT));
        let mut next = join(&mut channel, next);
        let (mut stream, _) = kernels.accept().expect("a connection");
        stream.write_all(b"kernel").expect("it is sent");
        let mut got = [0; 6];
        next.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"kernel");
        expect_alive(&mut channel, ours, peer);
        drop(channel);
        daemon.end();
    });
}

/// Ports of datagram sockets, and of connections from a port of the program's choice.
#[test]
fn kernel_decides_about_ports_of_datagrams_and_connects() {
    with_hosts("kernel_decides_about_ports_of_datagrams_and_connects", |hosts| {
        let daemon = TestDaemon::start("kernel-ports");
        let mut channel = daemon.channel();
        let sharing = DatagramSharing::default();
        let to = Address::from(at(FAR[0], PORT));
        let from = |port| ConnectOptions::default().bind(Address::from(at(NEAR[0], port)));
        // The daemon has the capability, which the program lacks.
        let mut fewer = capabilities(None).expect("asked");
        fewer.effective.remove(CapabilitySet::NET_BIND_SERVICE);
        set_capabilities(None, fewer).expect("one less is always possible");
        let refused = channel.bind_datagram(at(NEAR[0], 53), sharing, 0).expect_err("privileged");
        let rule = "ip_unprivileged_port_start";
        assert!(format!("{refused:?}").contains(rule), "{refused:?}");
        let refused = channel.connect(&to, &from(99), 0).expect_err("privileged");
        assert!(format!("{refused:?}").contains(rule), "{refused:?}");
        let kernels = UdpSocket::bind(at(NEAR[0], 8_400)).expect("a port of the kernel's");
        let refused = channel.bind_datagram(at(NEAR[0], 8_400), sharing, 0).expect_err("in use");
        assert!(format!("{refused:?}").contains("in use"), "{refused:?}");
        drop(kernels);

        let is_free = |port| UdpSocket::bind(at(NEAR[0], port)).is_ok();
        let ours = channel.bind_datagram(at(NEAR[0], 8_401), sharing, 0).expect("a free port");
        assert!(!is_free(8_401), "the kernel reserves it");
        channel.read(ours, 64).expect("a socket");
        let peer = hosts.far(|| {
            let socket = UdpSocket::bind(at(FAR[0], 0)).expect("a port");
            socket.send_to(b"hello", at(NEAR[0], 8_401)).expect("it is sent");
        });
        let Event::Read(Ok(data)) = next(&mut channel) else { panic!("it arrives") };
        assert_eq!(*data, *b"hello");
        drop(data);
        peer.join().expect("no panic");
        channel.unregister(ours).expect("a handle");
        until_so("the port is free", &mut channel, || is_free(8_401));

        let (listens, is_listening) = std::sync::mpsc::channel();
        let peer = hosts.far(move || {
            let listener = TcpListener::bind(at(FAR[0], PORT)).expect("a port");
            listens.send(()).expect("the test waits for it");
            listener.accept().expect("a connection").1
        });
        is_listening.recv_timeout(PATIENCE).expect("it listens");
        let ours = channel.connect(&to, &from(8_402), 0).expect("a free port");
        let Event::Connect(Ok(())) = next(&mut channel) else { panic!("it connects") };
        assert_eq!(peer.join().expect("no panic"), at(NEAR[0], 8_402));
        let is_free = || TcpListener::bind(at(NEAR[0], 8_402)).is_ok();
        assert!(!is_free(), "the kernel reserves it");
        channel.unregister(ours).expect("a handle");
        until_so("the port is free", &mut channel, is_free);
        drop(channel);
        daemon.end();
        hosts.judge();
    });
}

/// Lets the channel work until something is so.
fn until_so(what: &str, channel: &mut Channel, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        let done = channel.dispatch(Some(Duration::from_millis(20))).expect("dispatch");
        assert!(done.is_none(), "{done:?}");
    }
}

/// The kernel goes on with a connection that the daemon refuses.
#[test]
fn service_refuses_connections_that_are_not_its_links() {
    with_hosts("service_refuses_connections_that_are_not_its_links", |hosts| {
        let daemon = TestDaemon::start("refusing");
        let mut channel = daemon.channel();
        let mut refused = |fd: OwnedFd, part: &str| {
            let NotTaken { fd, why } = channel.take_over(fd, 0).expect_err("it cannot move");
            assert!(why.to_string().contains(part), "{why}");
            fd
        };
        refused(UdpSocket::bind("127.0.0.1:0").expect("a port").into(), "a UDP socket");
        refused(TcpListener::bind("127.0.0.1:0").expect("a port").into(), "in LISTEN");
        let looped = TcpListener::bind("127.0.0.1:0").expect("a port");
        let ours = TcpStream::connect(looped.local_addr().expect("bound")).expect("it listens");
        let ours = refused(ours.into(), "127.0.0.1 is not the stack's");
        let mut peer = looped.accept().expect("a connection").0;
        peer.write_all(b"still there").expect("it is sent");
        let mut ours = TcpStream::from(ours);
        ours.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut bytes = [0; 11];
        ours.read_exact(&mut bytes).expect("the kernel has it");
        assert_eq!(&bytes, b"still there");

        // A connection over the link that has ended meanwhile: nothing is left behind.
        let listener = TcpListener::bind(at(NEAR[0], PORT)).expect("a port");
        let peer = hosts.far(|| drop(TcpStream::connect(at(NEAR[0], PORT)).expect("connects")));
        let (stream, _) = listener.accept().expect("a connection");
        peer.join().expect("no panic");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        assert_eq!((&stream).read(&mut [0]).expect("an end"), 0);
        refused(stream.into(), "CLOSE-WAIT");
        drop(channel);
        daemon.end();
    });
}

#[test]
fn connections_of_the_service_become_sockets_of_the_kernel() {
    with_hosts("connections_of_the_service_become_sockets_of_the_kernel", |hosts| {
        let daemon = TestDaemon::start("moving");
        let mut channel = daemon.channel();
        let options = ListenOptions::default();
        let listener = channel.listen(&at(NEAR[0], PORT).into(), &options, 0).expect("it is free");
        for _ in 0..3 {
            channel.accept(listener, Accept::lwsocket(1)).expect("a listener");
            let peer = echoed(hosts);
            let Event::Accept(Ok(accepted)) = next(&mut channel) else { panic!("it is accepted") };
            let Connection::Lwsocket(handle) = accepted.connection else { panic!("no handle") };
            move_one(&mut channel, handle);
            peer.join().expect("no panic");

            channel.accept(listener, Accept::fd(1)).expect("a listener");
            let peer = echoed(hosts);
            let Event::Accept(Ok(accepted)) = next(&mut channel) else { panic!("it is accepted") };
            let Connection::Fd(fd) = accepted.connection else { panic!("no descriptor") };
            let answering = std::thread::spawn(move || echo(TcpStream::from(fd), Vec::new(), 0));
            peer.join().expect("no panic");
            answering.join().expect("no panic");
        }
        drop(channel);
        daemon.end();
        hosts.judge();
    });
}
