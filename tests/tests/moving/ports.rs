//! Listening sockets of the kernel's whose port our stack takes over.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{Accept, Channel, Connection, CpuMask, Event, Handle, ListenOptions, RegisterError};

use super::hosts::{Hosts, NEAR, PATIENCE, at, with_hosts};

pub(crate) const LINKS: [&str; 2] = ["packet:mp-near", "xdp:mp-near"];
const PORT: u16 = 8_100;
/// Longest time from a child's fork until it executes its program; a connection in TIME-WAIT, which
/// must not block a port, takes 60 s.
const CHILD_START: Duration = Duration::from_secs(10);

/// Lets the channel work until the thread is done.
pub(crate) fn join<T>(channel: &mut Channel, thread: thread::JoinHandle<T>) -> T {
    let start = Instant::now();
    while !thread.is_finished() {
        assert!(start.elapsed() < PATIENCE, "the peer waits in vain");
        let done = channel.dispatch(Some(Duration::from_millis(1))).expect("dispatch");
        assert!(done.is_none(), "{done:?}");
    }
    thread.join().expect("the peer is content")
}

/// Accepts the next connection, which another thread opens.
pub(crate) fn accepted(channel: &mut Channel, listener: Handle) -> Handle {
    channel.accept(listener, Accept::lwsocket(1)).expect("a listener");
    let done = channel.dispatch(Some(PATIENCE)).expect("dispatch").expect("in time");
    assert_eq!(done.handle, listener);
    let Event::Accept(Ok(accepted)) = done.event else { panic!("no connection") };
    let Connection::Lwsocket(handle) = accepted.connection else { panic!("a descriptor") };
    handle
}

pub(crate) fn connect(hosts: &Hosts, to: SocketAddr) -> thread::JoinHandle<TcpStream> {
    hosts.far(move || {
        let stream = TcpStream::connect(to).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
        stream
    })
}

/// What is written on one side arrives at the other.
pub(crate) fn expect_alive(
    channel: &mut Channel,
    handle: Handle,
    mut peer: TcpStream,
) -> TcpStream {
    channel.write(handle, "ping").expect("a connection");
    let done = channel.dispatch(Some(PATIENCE)).expect("dispatch").expect("in time");
    assert!(matches!(done.event, Event::Write(Ok(4))), "{done:?}");
    let reading = thread::spawn(move || {
        let mut got = [0; 4];
        peer.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"ping");
        peer
    });
    join(channel, reading)
}

fn on_each_link(name: &'static str, test: fn(&mut Hosts, &mut Channel)) {
    for link in LINKS {
        with_hosts(name, move |hosts| match hosts.channel(link) {
            Ok(mut channel) => test(hosts, &mut channel),
            Err(why) => println!("skipped: {name} on {link}: {why}"),
        });
    }
}

#[test]
fn the_stack_takes_a_registered_port_over_and_gives_it_back() {
    let name = "the_stack_takes_a_registered_port_over_and_gives_it_back";
    on_each_link(name, |hosts, channel| {
        let socket = TcpListener::bind(("0.0.0.0", PORT)).expect("a port");
        let kernels = socket.try_clone().expect("a descriptor");
        let listener = channel.register(socket.into(), 7, None).expect("a listening socket");
        let explain = channel.explain(listener).expect("a handle");
        let taken = format!("has taken over {}:{PORT}", NEAR[0]);
        assert!(explain.remarks.iter().any(|it| it.contains(&taken)), "{explain}");

        // Over the link: ours.
        let peer = connect(hosts, at(NEAR[0], PORT));
        let ours = accepted(channel, listener);
        assert_eq!(channel.explain(ours).expect("a handle").backend, "local");
        let peer = join(channel, peer);
        let peer = expect_alive(channel, ours, peer);
        // Over loopback: the kernel's, by the same handle.
        let inside = thread::spawn(|| TcpStream::connect(("127.0.0.1", PORT)).expect("connects"));
        let by_kernel = accepted(channel, listener);
        assert_eq!(channel.explain(by_kernel).expect("a handle").backend, "kernel");
        let inside = join(channel, inside);
        expect_alive(channel, by_kernel, inside);

        // Given back: the connection stays, and the next is the kernel's.
        let left = channel.unregister(listener).expect("a handle");
        drop(left.fd.expect("the descriptor comes back"));
        let next = connect(hosts, at(NEAR[0], PORT));
        let mut next = join(channel, next);
        let (mut stream, _) = kernels.accept().expect("a connection");
        stream.write_all(b"kernel").expect("sent");
        let mut got = [0; 6];
        next.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"kernel");
        let _peer = expect_alive(channel, ours, peer);
    });
}

#[test]
fn a_registered_socket_takes_a_mask_and_another_one_has_no_second_port() {
    let name = "a_registered_socket_takes_a_mask_and_another_one_has_no_second_port";
    on_each_link(name, |hosts, channel| {
        let socket = TcpListener::bind(("::", PORT)).expect("a port");
        let other = socket.try_clone().expect("a descriptor");
        let mask = Some(CpuMask::cpus([0, 1]));
        let listener = channel.register(socket.into(), 0, mask).expect("a listening socket");
        assert_eq!(channel.explain(listener).expect("a handle").cpu_mask, mask);
        for address in NEAR {
            let peer = connect(hosts, at(address, PORT));
            let ours = accepted(channel, listener);
            assert_eq!(channel.explain(ours).expect("a handle").backend, "local");
            let peer = join(channel, peer);
            expect_alive(channel, ours, peer);
        }
        let again = channel.register(other.into(), 0, None);
        assert!(matches!(again, Err(RegisterError::Kernel { .. })), "{again:?}");
        channel.set_cpu_mask(listener, CpuMask::cpu(0)).expect("it has one");
        channel.set_cpu_mask(listener, CpuMask::cpus([])).expect_err("no core");
    });
}

#[test]
fn a_port_of_another_address_stays_the_kernels() {
    on_each_link("a_port_of_another_address_stays_the_kernels", |_hosts, channel| {
        let socket = TcpListener::bind(("127.0.0.1", PORT)).expect("a port");
        let listener = channel.register(socket.into(), 0, None).expect("a listening socket");
        let explain = channel.explain(listener).expect("a handle");
        assert!(!explain.remarks.iter().any(|it| it.contains("taken over")), "{explain}");
        let inside = thread::spawn(|| TcpStream::connect(("127.0.0.1", PORT)).expect("connects"));
        let handle = accepted(channel, listener);
        let inside = join(channel, inside);
        expect_alive(channel, handle, inside);
    });
}

/// Takes a port that was closed here. A child of a test beside this one may have copies of
/// descriptors until it executes its program.
fn take_again<T, E: std::fmt::Debug>(mut take: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match take() {
            Err(_) if start.elapsed() < CHILD_START => thread::sleep(Duration::from_millis(5)),
            taken => return taken.expect("the port is free"),
        }
    }
}

#[test]
fn moved_connection_does_not_block_a_restart() {
    let name = "moved_connection_does_not_block_a_restart";
    for link in LINKS {
        with_hosts(name, move |hosts| {
            let server = at(NEAR[0], PORT);
            let start = || {
                let mut channel = hosts.channel(link)?;
                let options = ListenOptions::default();
                let listening = take_again(|| channel.listen(&server.into(), &options, 0));
                Ok::<_, String>((channel, listening))
            };
            let (mut channel, listener) = match start() {
                Ok(started) => started,
                Err(why) => return println!("skipped: {name} on {link}: {why}"),
            };
            let peer = connect(hosts, server);
            let handle = accepted(&mut channel, listener);
            let peer = join(&mut channel, peer);
            channel.to_fd(handle).expect("it can move");
            let done = channel.dispatch(Some(PATIENCE)).expect("dispatch").expect("in time");
            let Event::ToFd(Ok(moved)) = done.event else { panic!("{done:?}") };
            let stream = TcpStream::from(moved.fd);
            drop(channel);
            // One that lives, then one in TIME-WAIT.
            drop(take_again(|| TcpListener::bind(server)));
            drop(start().expect("another channel"));
            drop((stream, peer));
            drop(take_again(|| TcpListener::bind(server)));
            drop(start().expect("another channel"));
        });
    }
}
