//! Connections of the daemon's stack that become sockets of the kernel, for a program that has no
//! part in the link.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;

use megapipe::{
    Accept, Backend, Channel, Config, Connection, Daemon, Event, Handle, ListenOptions,
    LocalNetwork, ServerConfig, ServiceAddress,
};

use super::hosts::{Hosts, NEAR, PATIENCE, at, with_hosts};

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

#[test]
fn connections_of_the_service_become_sockets_of_the_kernel() {
    with_hosts("connections_of_the_service_become_sockets_of_the_kernel", |hosts| {
        let folder = std::env::temp_dir().join(format!("mp-moving-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("service");
        let (stopper, daemon) = daemon(&path);
        let backend = Backend::Service(ServiceAddress::new(&path));
        let mut channel = Channel::create(Config::default().backend(backend)).expect("a daemon");
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
        drop(stopper);
        daemon.join().expect("no panic");
        std::fs::remove_dir_all(&folder).expect("it is ours");
        hosts.judge();
    });
}
