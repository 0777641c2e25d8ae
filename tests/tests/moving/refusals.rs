//! What does not move, and says why; what moves at once; and what is left behind: nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, Channel, Completion, Connection, Event, Handle, ListenOptions, Misuse,
    OpError, SocketKind, SubmitError,
};
use rustix::net::sockopt::{Timeout, set_socket_linger, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::hosts::{Hosts, NEAR, PATIENCE, at, with_hosts};

const LINKS: [&str; 2] = ["packet:mp-near", "xdp:mp-near"];
const PORT: u16 = 8_000;
/// A port of the far host's for connections that come again.
const PEERS: u16 = 40_000;

fn next(channel: &mut Channel) -> Completion {
    channel.dispatch(Some(PATIENCE)).expect("dispatch").expect("a completion in time")
}

/// Operation of the far end.
type Job = Box<dyn FnOnce(&mut TcpStream) + Send>;

/// A listener of the kernel's, which does not wait for ever.
fn kernels_listener(address: &str) -> TcpListener {
    let listener = TcpListener::bind(at(address, 9_000)).expect("a port");
    set_socket_timeout(&listener, Timeout::Recv, Some(PATIENCE)).expect("a socket");
    listener
}

fn admit(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    listener.accept().expect("a connection in time")
}

/// The far end of a connection, which runs jobs on a thread of its own.
struct Peer {
    jobs: mpsc::Sender<Job>,
}

impl Peer {
    /// Connects to `to` from the far host.
    fn connect(hosts: &Hosts, to: SocketAddr) -> Self {
        let (jobs, to_do) = mpsc::channel::<Job>();
        // Ends with the sender of its jobs.
        drop(hosts.far(move || {
            let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let from = if to.is_ipv4() { at("0.0.0.0", PEERS) } else { at("::", PEERS) };
            let peer = socket(family, SocketType::STREAM, None).expect("a socket");
            // The connection before has the port until its thread has ended.
            let start = Instant::now();
            while let Err(error) = bind(&peer, &from) {
                assert!(start.elapsed() < PATIENCE, "a port: {error}");
                thread::sleep(Duration::from_millis(1));
            }
            connect(&peer, &to).expect("connects");
            // No TIME-WAIT: the port is used again.
            set_socket_linger(&peer, Some(Duration::ZERO)).expect("TCP");
            let mut stream = TcpStream::from(peer);
            stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
            to_do.into_iter().for_each(|job| job(&mut stream));
        }));
        Self { jobs }
    }

    /// Does something with the socket; the channel works meanwhile.
    fn does<T: Send + 'static>(
        &self,
        channel: &mut Channel,
        job: impl FnOnce(&mut TcpStream) -> T + Send + 'static,
    ) -> T {
        let (tell, told) = mpsc::channel();
        let job = move |stream: &mut TcpStream| tell.send(job(stream)).expect("a receiver");
        self.jobs.send(Box::new(job)).expect("the thread runs");
        let start = Instant::now();
        loop {
            if let Ok(answer) = told.try_recv() {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "the peer waits in vain");
            let done = channel.dispatch(Some(Duration::from_millis(1))).expect("dispatch");
            assert!(done.is_none(), "{done:?}");
        }
    }

    fn says(&self, channel: &mut Channel, text: &'static str) {
        self.does(channel, |stream| stream.write_all(text.as_bytes()).expect("sent"));
    }

    fn hears(&self, channel: &mut Channel, len: usize) -> String {
        self.does(channel, move |stream| {
            let mut bytes = vec![0; len];
            stream.read_exact(&mut bytes).expect("received");
            String::from_utf8(bytes).expect("a text")
        })
    }
}

/// A listener of the stack's, and a connection to it.
fn accepted(hosts: &Hosts, channel: &mut Channel) -> (Handle, Handle, Peer) {
    let ours = Address::from(at(NEAR[0], PORT));
    let listener = channel.listen(&ours, &ListenOptions::default(), 0).expect("listens");
    let (handle, peer) = accept_from(hosts, channel, listener);
    (listener, handle, peer)
}

fn accept_from(hosts: &Hosts, channel: &mut Channel, listener: Handle) -> (Handle, Peer) {
    channel.accept(listener, Accept::lwsocket(1)).expect("a listener");
    let peer = Peer::connect(hosts, at(NEAR[0], PORT));
    let Event::Accept(Ok(accepted)) = next(channel).event else { panic!("no connection") };
    let Connection::Lwsocket(handle) = accepted.connection else { panic!("a descriptor") };
    (handle, peer)
}

fn says(channel: &mut Channel, handle: Handle, text: &'static str) {
    channel.write(handle, text).expect("a connection");
    let Event::Write(Ok(_)) = next(channel).event else { panic!("not written") };
}

fn hears(channel: &mut Channel, handle: Handle, text: &str) {
    let mut got = Vec::new();
    while got.len() < text.len() {
        channel.read(handle, text.len()).expect("a connection");
        let Event::Read(Ok(bytes)) = next(channel).event else { panic!("not read") };
        assert!(!bytes.is_empty(), "an end");
        got.extend_from_slice(&bytes);
    }
    assert_eq!(got, text.as_bytes());
}

/// Runs `test` on each link that shares an address.
fn on_each_link(name: &'static str, test: fn(&mut Hosts, &mut Channel)) {
    for link in LINKS {
        with_hosts(name, move |hosts| match hosts.channel(link) {
            Ok(mut channel) => {
                test(hosts, &mut channel);
                drop(channel);
            }
            Err(why) => println!("skipped: {name} on {link}: {why}"),
        });
    }
}

#[test]
fn a_connection_that_one_side_has_closed_stays_where_it_is() {
    let name = "a_connection_that_one_side_has_closed_stays_where_it_is";
    on_each_link(name, |hosts, channel| {
        let (_, handle, peer) = accepted(hosts, channel);
        peer.does(channel, |stream| stream.shutdown(Shutdown::Write).expect("TCP"));
        channel.read(handle, 9).expect("a connection");
        let Event::Read(Ok(end)) = next(channel).event else { panic!("no end") };
        assert!(end.is_empty());
        channel.to_fd(handle).expect("it is asked for");
        let Event::ToFd(Err(OpError::NotConnected)) = next(channel).event else { panic!() };
        let explain = channel.explain(handle).expect("a handle");
        let says_why =
            |remark: &String| remark.contains("did not move") && remark.contains("CLOSE-WAIT");
        assert!(explain.remarks.iter().any(says_why), "{explain}");
        says(channel, handle, "still here");
        assert_eq!(peer.hears(channel, 10), "still here");

        let listener = kernels_listener(NEAR[0]);
        drop(peer);
        let peer = Peer::connect(hosts, at(NEAR[0], 9_000));
        let (mut stream, _) = admit(&listener);
        peer.does(channel, |stream| stream.shutdown(Shutdown::Write).expect("TCP"));
        assert_eq!(stream.read(&mut [0; 1]).expect("an end"), 0);
        let number = stream.as_raw_fd();
        let refused = channel.take_over(stream.into(), 0).expect_err("it is half closed");
        assert_eq!(refused.why.raw_os_error(), libc_enotconn());
        assert!(refused.why.to_string().contains("CLOSE-WAIT"), "{}", refused.why);
        assert_eq!(refused.fd.as_raw_fd(), number);
        TcpStream::from(refused.fd).write_all(b"as before").expect("sent");
        assert_eq!(peer.hears(channel, 9), "as before");
    });
}

fn libc_enotconn() -> i32 {
    rustix::io::Errno::NOTCONN.raw_os_error()
}

#[test]
fn without_the_capability_nothing_moves_and_nothing_is_lost() {
    on_each_link("without_the_capability_nothing_moves_and_nothing_is_lost", |hosts, channel| {
        let (_, handle, peer) = accepted(hosts, channel);
        let listener = kernels_listener(NEAR[0]);
        let to = at(NEAR[0], 9_000);
        let other = hosts.far(move || TcpStream::connect(to).expect("connects"));
        let (kernels, _) = admit(&listener);
        let mut other = other.join().expect("connected");

        let all = capabilities(None).expect("asked");
        let mut fewer = all;
        fewer.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, fewer).expect("one less is always possible");
        channel.to_fd(handle).expect("it is asked for");
        let moved = next(channel).event;
        assert!(matches!(moved, Event::ToFd(Err(OpError::PermissionDenied))), "{moved:?}");
        let explain = channel.explain(handle).expect("a handle");
        assert!(explain.remarks.iter().any(|it| it.contains("CAP_NET_ADMIN")), "{explain}");
        let refused = channel.take_over(kernels.into(), 0).expect_err("it is not allowed");
        assert!(refused.why.to_string().contains("CAP_NET_ADMIN"), "{}", refused.why);
        set_capabilities(None, all).expect("they were permitted");

        says(channel, handle, "still here");
        assert_eq!(peer.hears(channel, 10), "still here");
        let mut kernels = TcpStream::from(refused.fd);
        kernels.write_all(b"as before").expect("sent");
        let mut got = [0; 9];
        other.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"as before");
    });
}

#[test]
fn foreign_connection_is_not_taken_over() {
    on_each_link("foreign_connection_is_not_taken_over", |hosts, channel| {
        let refused = |channel: &mut Channel, stream: TcpStream| {
            let refused = channel.take_over(stream.into(), 0).expect_err("it stays");
            TcpStream::from(refused.fd).write_all(b"as before").expect("sent");
            refused.why.to_string()
        };
        // The host with itself: by loopback's address, and by the link's.
        for (address, why) in [("127.0.0.1", "not the stack's"), (NEAR[0], "both ends")] {
            let listener = kernels_listener(address);
            let ours = TcpStream::connect(at(address, 9_000)).expect("connects");
            let (mut theirs, _) = admit(&listener);
            let said = refused(channel, ours);
            assert!(said.contains(why), "{said}");
            let mut got = [0; 9];
            theirs.read_exact(&mut got).expect("received");
            assert_eq!(&got, b"as before");
        }
        let (_, handle, _peer) = accepted(hosts, channel);
        channel.unregister(handle).expect("a handle");
        assert_eq!(channel.to_fd(handle), Err(Misuse::StaleHandle.into()));
        let datagrams = channel.socket(SocketKind::Udp4, None, 0).expect("an endpoint");
        assert!(matches!(
            channel.to_fd(datagrams),
            Err(SubmitError::Misuse(Misuse::CannotMove { .. }))
        ));
        let socket = std::net::UdpSocket::bind(at(NEAR[0], 0)).expect("a socket");
        let refused = channel.take_over(socket.into(), 0).expect_err("it is no connection");
        assert!(refused.why.to_string().contains("UDP"), "{}", refused.why);
    });
}

#[test]
fn connections_are_accepted_as_descriptors() {
    on_each_link("connections_are_accepted_as_descriptors", |hosts, channel| {
        let ours = Address::from(at(NEAR[0], PORT));
        let listener = channel.listen(&ours, &ListenOptions::default(), 0).expect("listens");
        channel.accept(listener, Accept::fd(1)).expect("descriptors are possible");
        let peer = Peer::connect(hosts, at(NEAR[0], PORT));
        let Event::Accept(Ok(accepted)) = next(channel).event else { panic!("no connection") };
        let Connection::Fd(fd) = accepted.connection else { panic!("no descriptor") };
        let mut stream = TcpStream::from(fd);
        assert_eq!(stream.local_addr().expect("bound"), at(NEAR[0], PORT));
        assert_eq!(stream.peer_addr().expect("connected").port(), PEERS);
        peer.says(channel, "question");
        let mut got = [0; 8];
        stream.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"question");
        stream.write_all(b"answer").expect("sent");
        assert_eq!(peer.hears(channel, 6), "answer");
        // One that came before it was wanted as a descriptor, and has said something.
        drop((stream, peer));
        channel.accept(listener, Accept::fd(1)).expect("descriptors are possible");
        wait_until_forgotten(channel);
        let peer = Peer::connect(hosts, at(NEAR[0], PORT));
        peer.jobs.send(Box::new(|it| it.write_all(b"early").expect("sent"))).expect("it runs");
        let Event::Accept(Ok(accepted)) = next(channel).event else { panic!("no connection") };
        let Connection::Fd(fd) = accepted.connection else { panic!("no descriptor") };
        let mut stream = TcpStream::from(fd);
        stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
        stream.read_exact(&mut got[..5]).expect("received");
        assert_eq!(&got[..5], b"early");
    });
}

/// Lets the server look what has become of the connections that moved.
fn wait_until_forgotten(channel: &mut Channel) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        let done = channel.dispatch(Some(Duration::from_millis(100))).expect("dispatch");
        assert!(done.is_none(), "{done:?}");
    }
}

#[test]
fn the_next_connection_between_the_same_ends_is_the_stacks_again() {
    let name = "the_next_connection_between_the_same_ends_is_the_stacks_again";
    on_each_link(name, |hosts, channel| {
        let (listener, handle, peer) = accepted(hosts, channel);
        channel.to_fd(handle).expect("it can move");
        let Event::ToFd(Ok(moved)) = next(channel).event else { panic!("it does not move") };
        drop(peer);
        let mut stream = TcpStream::from(moved.fd);
        let ended = stream.read(&mut [0; 1]);
        assert!(ended.is_err(), "the peer resets: {ended:?}");
        wait_until_forgotten(channel);
        let (handle, peer) = accept_from(hosts, channel, listener);
        peer.says(channel, "again");
        hears(channel, handle, "again");
        assert_eq!(channel.explain(handle).expect("a handle").backend, "local");
        // Quiet for a moment, so that no job is under way when the peer goes.
        thread::sleep(Duration::from_millis(10));
    });
}

#[test]
fn a_connection_is_taken_over_by_the_shard_that_its_frames_come_to() {
    let name = "a_connection_is_taken_over_by_the_shard_that_its_frames_come_to";
    with_hosts(name, move |hosts| {
        let mut channels = match hosts.channels("packet:mp-near", 2) {
            Ok(channels) => channels,
            Err(why) => return println!("skipped: {name}: {why}"),
        };
        let listener = kernels_listener(NEAR[0]);
        let mut homes = [0; 2];
        for _ in 0..8 {
            let to = at(NEAR[0], 9_000);
            let peer = hosts.far(move || TcpStream::connect(to).expect("connects"));
            let (stream, _) = admit(&listener);
            let mut peer = peer.join().expect("connected");
            let (home, handle) = match channels[0].take_over(stream.into(), 0) {
                Ok(handle) => (0, handle),
                Err(refused) => {
                    assert!(refused.why.to_string().contains("another shard"), "{}", refused.why);
                    (1, channels[1].take_over(refused.fd, 0).expect("one of the two takes it"))
                }
            };
            homes[home] += 1;
            peer.write_all(b"question").expect("sent");
            hears(&mut channels[home], handle, "question");
        }
        assert_eq!(homes[0] + homes[1], 8);
    });
}
