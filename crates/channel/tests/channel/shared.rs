//! Our own stack on an address that the kernel goes on using: two hosts joined by veth, and a
//! packet socket or AF_XDP on one of them.
//!
//! Read first: `megapipe_link::packet`, `megapipe_link::xdp`; `host.rs` of the service.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use megapipe::{
    Accept, Backend, Config, ConnectOptions, DriverChoice, Event, ListenOptions, LocalNetwork,
    OpError, ServerConfig, SocketKind,
};

use crate::place::{enter, ip};
use crate::scene::{PATIENCE, Scene, pattern, start};

const NEAR: [&str; 2] = ["10.79.0.1", "fd79::1"];
const FAR: [&str; 2] = ["10.79.0.2", "fd79::2"];
/// A port of our own stack's.
const OURS: u16 = 8_080;
/// The first of two ports of our own stack's that only it uses.
const OWN: u16 = 8_082;
/// A port of the kernel's.
const KERNELS: u16 = 2_222;
const LEN: usize = 300_000;

fn configure(interface: &str, addresses: [&str; 2]) -> Result<(), String> {
    let [v4, v6] = addresses;
    // As every interface of IPv6 has one sooner or later; here from the beginning.
    let local = v6.replace("fd79", "fe80");
    ip(&format!(
        "addr add {v4}/24 dev {interface}\naddr add {v6}/64 dev {interface} nodad\n\
         addr add {local}/64 dev {interface} nodad\nlink set {interface} up\nlink set lo up\n"
    ))
}

type Job = Box<dyn FnOnce() + Send>;

/// The other host: a thread in a namespace of its own.
struct Far {
    jobs: mpsc::Sender<Job>,
}

impl Far {
    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let (tell, told) = mpsc::channel();
        let job = Box::new(move || drop(tell.send(job())));
        self.jobs.send(job).expect("the other host is there");
        thread::spawn(move || told.recv().expect("the job ends"))
    }
}

/// Two hosts, of which this thread is in one.
fn two_hosts() -> Result<Far, String> {
    enter()?;
    let (jobs, to_do) = mpsc::channel::<Job>();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        if tell.send(enter().map(|()| tid)).is_ok() {
            to_do.into_iter().for_each(|job| job());
        }
    });
    let tid = told.recv().map_err(|error| error.to_string())??;
    ip(&format!("link add mp-near type veth peer name mp-far netns {tid}\n"))?;
    let far = Far { jobs };
    configure("mp-near", NEAR)?;
    far.run(|| configure("mp-far", FAR)).join().expect("it ran")?;
    Ok(far)
}

fn scene_on(link: &str) -> Result<Scene, String> {
    let network = LocalNetwork::open(link, ServerConfig::default());
    let network = network.map_err(|error| error.to_string())?;
    let config = Config::default().driver(DriverChoice::Epoll).backend(Backend::Local(network));
    Ok(Scene::new(config))
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

/// Sends and gets back.
fn echo_of(to: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
    let mut other = stream.try_clone().expect("a descriptor");
    let writer = thread::spawn(move || other.write_all(&pattern(1, LEN)).expect("sends"));
    let mut got = vec![0; LEN];
    stream.read_exact(&mut got).expect("receives");
    writer.join().expect("it was content");
    got
}

/// The kernel's own service on the shared address: an echo for as many as come.
fn kernels_echo(address: &str) {
    let listener = TcpListener::bind(at(address, KERNELS)).expect("binds");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut got = vec![0; LEN];
            stream.read_exact(&mut got).expect("receives");
            stream.write_all(&got).expect("sends");
        }
    });
}

/// At the shared address the stack reaches its own ports, and none of the kernel's.
fn own_ports_alone_are_reached(scene: &mut Scene) {
    for near in NEAR {
        // A port of the kernel's that was not used before: nothing of it is left over.
        let kernels = TcpListener::bind(at(near, 0)).expect("binds");
        let kernels = kernels.local_addr().expect("bound").into();
        let refused = scene.connect(&kernels, &ConnectOptions::default(), 0).expect("starts");
        let Event::Connect(Err(OpError::NetworkUnreachable)) = scene.next_of(refused) else {
            panic!("the kernel's port is reached")
        };
        let address = at(near, OWN).into();
        let listener = scene.listen(&address, &ListenOptions::default(), 0).expect("listens");
        scene.channel.accept(listener, Accept::lwsocket(1)).expect("accepts");
        let client = scene.connect(&address, &ConnectOptions::default(), 0).expect("starts");
        let server = scene.accepted(listener);
        let Event::Connect(Ok(())) = scene.next_of(client) else { panic!("{near}") };
        scene.write(client, pattern(1, 5_000)).expect("writes");
        assert_eq!(scene.read_exact(server, 5_000), pattern(1, 5_000));
        // What the kernel has at this address is not what the stack has.
        scene.to_fd(client).expect("it can be asked for");
        loop {
            match scene.next_of(client) {
                Event::Write(Ok(_)) => {}
                Event::ToFd(Err(_)) => break,
                other => panic!("{other:?}"),
            }
        }
        scene.unregister(listener).expect("registered above");
        let kind = if near.contains(':') { SocketKind::Udp6 } else { SocketKind::Udp4 };
        let [one, other] = [OWN, OWN + 1]
            .map(|port| scene.socket(kind, Some(&at(near, port).into()), 0).expect("binds"));
        scene.sendto(one, "to the other", &at(near, OWN + 1).into()).expect("starts");
        scene.recvfrom(other, 100).expect("starts");
        let Event::RecvFrom(Ok(datagram)) = scene.next_of(other) else { panic!("{near}") };
        assert_eq!(&*datagram.data, b"to the other");
        let Event::SendTo(Ok(12)) = scene.next_of(one) else { panic!("{near}") };
        scene.sendto(one, "to the kernel", &at(near, KERNELS).into()).expect("starts");
        let Event::SendTo(Err(OpError::NetworkUnreachable)) = scene.next_of(one) else {
            panic!("the kernel's port is reached")
        };
        for handle in [one, other, server] {
            scene.unregister(handle).expect("registered above");
        }
    }
}

/// Serves the echo until the peer's job is done.
fn serve<T>(scene: &mut Scene, peer: &JoinHandle<T>) {
    while !peer.is_finished() {
        let done = scene.channel.dispatch(Some(std::time::Duration::from_millis(1)));
        let Some(done) = done.expect("dispatches") else { continue };
        match done.event {
            Event::Read(Ok(bytes)) if bytes.is_empty() => {
                scene.unregister(done.handle).expect("it is there");
            }
            Event::Read(Ok(bytes)) => {
                scene.write(done.handle, bytes).expect("writes");
                scene.read(done.handle, 1 << 16).expect("reads");
            }
            Event::Accept(Ok(_)) | Event::Write(Ok(_)) | Event::Read(Err(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn both_serve_one_address(scene: &mut Scene, far: &Far) {
    for (near, _) in NEAR.iter().zip(FAR) {
        kernels_echo(near);
        let address = at(near, OURS).into();
        let listener = scene.listen(&address, &ListenOptions::default(), 0).expect("listens");
        let accept = Accept::lwsocket(u32::MAX).first_read(1 << 16);
        scene.channel.accept(listener, accept).expect("accepts");
        let (ours, kernels) = (at(near, OURS), at(near, KERNELS));
        let peer = far.run(move || {
            let kernel = thread::spawn(move || echo_of(kernels));
            for _ in 0..3 {
                assert!(echo_of(ours) == pattern(1, LEN));
            }
            kernel.join().expect("the kernel serves") == pattern(1, LEN)
        });
        serve(scene, &peer);
        assert!(peer.join().expect("served"), "the kernel's bytes are the kernel's");
    }
    let taken = TcpListener::bind(at(NEAR[0], OURS));
    assert!(taken.is_err(), "the kernel leaves the port to us");
    let kernels = scene.listen(&at(NEAR[0], KERNELS).into(), &ListenOptions::default(), 0);
    assert!(kernels.is_err(), "and we leave it its own");
}

fn connections_and_datagrams_leave_from_it(scene: &mut Scene, far: &Far) {
    let (tell, told) = mpsc::channel();
    let peer = far.run(move || {
        let listener = TcpListener::bind(at(FAR[0], 0)).expect("binds");
        let socket = UdpSocket::bind(at(FAR[1], 0)).expect("binds");
        socket.set_read_timeout(Some(PATIENCE)).expect("UDP");
        let here = (listener.local_addr(), socket.local_addr());
        tell.send((here.0.expect("bound"), here.1.expect("bound"))).expect("the receiver waits");
        let (mut stream, from) = listener.accept().expect("accepts");
        stream.write_all(b"welcome").expect("sends");
        let (len, sender) = socket.recv_from(&mut [0; 100]).expect("receives");
        socket.send_to(b"answer", sender).expect("sends");
        (from.ip(), len)
    });
    let (tcp, udp) = told.recv().expect("the peer listens");
    let handle = scene.connect(&tcp.into(), &ConnectOptions::default(), 0).expect("starts");
    let Event::Connect(Ok(())) = scene.next_of(handle) else { panic!("no connection") };
    assert_eq!(scene.read_exact(handle, 7), b"welcome");
    let endpoint = scene.socket(SocketKind::Udp6, None, 0).expect("binds");
    scene.sendto(endpoint, "question", &udp.into()).expect("sends");
    scene.recvfrom(endpoint, 100).expect("receives");
    let answer = loop {
        match scene.next_of(endpoint) {
            Event::SendTo(Ok(8)) => {}
            Event::RecvFrom(Ok(datagram)) => break datagram.data.to_vec(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer, b"answer");
    let (from, len) = scene.join(peer);
    assert_eq!((from.to_string(), len), (NEAR[0].to_owned(), 8));
}

/// The far kernel completes its checksums itself: an XDP program sees the frame as it was sent.
fn whole_checksums(far: Far) -> Result<Far, String> {
    let set = || {
        let mut command = Command::new("ethtool");
        command.args(["-K", "mp-far", "tx", "off"]).stdout(Stdio::null()).stderr(Stdio::piped());
        start(&mut command)?.wait_with_output()
    };
    let output = far.run(set).join().expect("it ran");
    let output = output.map_err(|error| format!("ethtool is not installed: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(far) } else { Err(said) }
}

fn check(name: &str, link: &str, prepare: fn(Far) -> Result<Far, String>) {
    let made = two_hosts().and_then(prepare);
    let made = made.and_then(|far| scene_on(link).map(|scene| (far, scene)));
    match made {
        Ok((far, mut scene)) => {
            both_serve_one_address(&mut scene, &far);
            connections_and_datagrams_leave_from_it(&mut scene, &far);
            own_ports_alone_are_reached(&mut scene);
        }
        Err(why) => println!("skipped: shared::{name}: {why}"),
    }
}

#[test]
fn a_packet_socket_shares_the_address_with_the_kernel() {
    let name = "a_packet_socket_shares_the_address_with_the_kernel";
    check(name, "packet:mp-near", Ok);
}

#[test]
fn af_xdp_shares_the_address_with_the_kernel() {
    check("af_xdp_shares_the_address_with_the_kernel", "xdp:mp-near", whole_checksums);
}
