//! Connections of the back end `service` with several owners: two channels, and tokens.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use megapipe::{
    Accept, Backend, Channel, Completion, Config, Connection, Event, Handle, ListenOptions,
    ServiceAddress, ShareError,
};

use crate::place;
use crate::scene::{A_WHILE, PATIENCE};

/// Two channels of one daemon, and a listener of the first.
struct World {
    one: Channel,
    two: Channel,
    listener: Handle,
    address: SocketAddr,
}

fn attached(service: &ServiceAddress) -> Channel {
    let config = Config::default().backend(Backend::Service(service.clone()));
    Channel::create(config).expect("the daemon runs")
}

fn next(channel: &mut Channel) -> Completion {
    channel.dispatch(Some(PATIENCE)).expect("no error").expect("in time")
}

fn read(channel: &mut Channel, handle: Handle, len: usize) -> Vec<u8> {
    channel.read(handle, len).expect("it is open");
    loop {
        let completion = next(channel);
        match completion.event {
            Event::Read(bytes) if completion.handle == handle => {
                return bytes.expect("no error").to_vec();
            }
            Event::Write(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

impl World {
    /// `None`: nothing can be tested here.
    fn new(name: &str) -> Option<Self> {
        if let Err(why) = place::enter() {
            println!("skipped: {name}: {why}");
            return None;
        }
        let Ok(Backend::Service(service)) = place::service() else { panic!("a daemon") };
        let (mut one, two) = (attached(&service), attached(&service));
        let at = place::here("127.0.0.1:0");
        let listener = one.listen(&at, &ListenOptions::default(), 0).expect("a free port");
        let address = one.local_address(listener).expect("it listens").as_inet();
        Some(Self { one, two, listener, address: address.expect("TCP") })
    }

    /// A connection of the first channel, which has read the first two of five bytes.
    fn connection(&mut self) -> (Handle, TcpStream) {
        let mut peer = TcpStream::connect(self.address).expect("it listens");
        peer.set_read_timeout(Some(PATIENCE)).expect("not zero");
        peer.write_all(b"fi").expect("connected");
        peer.write_all(b"rst").expect("connected");
        self.one.accept(self.listener, Accept::lwsocket(1).exactly()).expect("it listens");
        let Event::Accept(Ok(accepted)) = next(&mut self.one).event else { panic!("no other") };
        let Connection::Lwsocket(handle) = accepted.connection else { panic!("no other") };
        // A longer read shows that all of them have come.
        let mut bytes = read(&mut self.one, handle, 2);
        while bytes.len() < 2 {
            bytes.extend(read(&mut self.one, handle, 2 - bytes.len()));
        }
        assert_eq!(bytes, b"fi");
        (handle, peer)
    }
}

fn expect(peer: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    peer.read_exact(&mut read).expect("they come");
    assert_eq!(read, bytes);
}

fn end_of(peer: &mut TcpStream) -> Result<usize, ErrorKind> {
    peer.read(&mut [0; 8]).map_err(|error| error.kind())
}

#[test]
fn two_channels_own_a_shared_connection() {
    let name = "sharing::two_channels_own_a_shared_connection";
    let Some(mut world) = World::new(name) else { return };
    let (first, mut peer) = world.connection();
    let token = world.one.share(first).expect("it is established");
    let World { one, two, .. } = &mut world;
    let second = two.adopt(token.as_fd(), 7).expect("the token is good");
    assert_eq!(two.peer_address(second).unwrap(), peer.local_addr().unwrap().into());
    let mut rest = read(two, second, 100);
    while rest.len() < 3 {
        rest.extend(read(two, second, 100));
    }
    assert_eq!(rest, b"rst", "also what the other channel had received");
    // Each byte goes to the owner that asks.
    for (bytes, by_first) in [(&b"one"[..], true), (b"two", false), (b"three", true)] {
        peer.write_all(bytes).unwrap();
        let (channel, handle) = if by_first { (&mut *one, first) } else { (&mut *two, second) };
        assert_eq!(read(channel, handle, 100), bytes);
        channel.write(handle, bytes.to_vec()).unwrap();
        channel.flush().unwrap();
        expect(&mut peer, bytes);
    }
    // Both wait: one of them gets the first bytes, and the other one the next.
    two.read(second, 100).unwrap();
    two.flush().unwrap();
    one.read(first, 100).unwrap();
    one.flush().unwrap();
    let mut taken = Vec::new();
    for bytes in [b"a", b"b"] {
        peer.write_all(bytes).unwrap();
        let started = Instant::now();
        while taken.len() < usize::from(bytes[0] - b'a') + 1 {
            for channel in [&mut *one, &mut *two] {
                let completion = channel.dispatch(Some(A_WHILE)).unwrap();
                if let Some(Completion { event: Event::Read(bytes), handle, .. }) = completion {
                    taken.push((handle, bytes.expect("no error").to_vec()));
                }
            }
            assert!(started.elapsed() < PATIENCE, "{taken:?}");
        }
    }
    let taken_bytes: Vec<u8> = taken.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(taken_bytes, b"ab");
    assert_eq!(taken.len(), 2, "each has got one: {taken:?}");
    drop(one.unregister(first).unwrap());
    one.flush().unwrap();
    two.write(second, "still here").unwrap();
    two.flush().unwrap();
    expect(&mut peer, b"still here");
    drop(two.unregister(second).unwrap());
    two.flush().unwrap();
    drop(token);
    assert_eq!(end_of(&mut peer), Ok(0), "the last owner has sent FIN");
}

#[test]
fn token_keeps_a_connection_of_a_channel_that_ends() {
    let name = "sharing::token_keeps_a_connection_of_a_channel_that_ends";
    let Some(mut world) = World::new(name) else { return };
    let (first, mut peer) = world.connection();
    // More than a buffer has that is not a session's.
    let long = [b'x'; 9_000];
    peer.write_all(&long).unwrap();
    let token = world.one.share(first).expect("it is established");
    let World { one, mut two, .. } = world;
    drop(one);
    peer.write_all(b" and more").unwrap();
    let second = two.adopt(token.as_fd(), 0).expect("the token owns it");
    drop(token);
    let mut bytes = Vec::new();
    while bytes.len() < 12 + long.len() {
        bytes.extend(read(&mut two, second, 100));
    }
    assert!(bytes == [b"rst", &long[..], b" and more"].concat());
    two.write(second, "yes").unwrap();
    two.flush().unwrap();
    expect(&mut peer, b"yes");
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read(&mut two, second, 100), b"");
    drop(two);
    assert_eq!(end_of(&mut peer), Ok(0));
}

#[test]
fn last_token_resets_a_connection_with_unread_bytes() {
    let name = "sharing::last_token_resets_a_connection_with_unread_bytes";
    let Some(mut world) = World::new(name) else { return };
    let (first, mut peer) = world.connection();
    let token = world.one.share(first).expect("it is established");
    let other = token.try_clone().expect("a descriptor");
    drop(world.one.unregister(first).unwrap());
    world.one.flush().unwrap();
    drop(token);
    peer.write_all(b"unread").unwrap();
    drop(other);
    assert_eq!(end_of(&mut peer), Err(ErrorKind::ConnectionReset));
}

#[test]
fn what_is_no_token_is_refused_and_the_channel_goes_on() {
    let name = "sharing::what_is_no_token_is_refused_and_the_channel_goes_on";
    let Some(mut world) = World::new(name) else { return };
    let (first, mut peer) = world.connection();
    let errno = |error: ShareError| error.raw_os_error();
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(world.two.adopt(reader.as_fd(), 0).map_err(errno), Err(libc::EBADF));
    assert_eq!(world.two.adopt(peer.as_fd(), 0).map_err(errno), Err(libc::EBADF));
    let token = world.one.share(first).expect("it is established");
    assert_eq!(world.one.adopt(token.as_fd(), 0).map_err(errno), Err(libc::EEXIST));
    // Stray bytes change nothing.
    for bytes in [&b"megapipe"[..], &[0; 64]] {
        rustix::net::send(&token, bytes, rustix::net::SendFlags::empty()).unwrap();
    }
    let second = world.two.adopt(token.as_fd(), 0).expect("the token is good");
    assert_eq!(world.two.adopt(token.as_fd(), 0).map_err(errno), Err(libc::EEXIST));
    peer.write_all(b"x").unwrap();
    let mut bytes = Vec::new();
    while bytes.len() < 4 {
        bytes.extend(read(&mut world.two, second, 100));
    }
    assert_eq!(bytes, b"rstx");
    for (channel, handle) in [(&mut world.one, first), (&mut world.two, second)] {
        drop(channel.unregister(handle).unwrap());
        channel.flush().unwrap();
    }
    // The token alone owns it, until the peer resets it.
    rustix::net::sockopt::set_socket_linger(&peer, Some(std::time::Duration::ZERO)).unwrap();
    drop(peer);
    let started = Instant::now();
    while let Ok(again) = world.two.adopt(token.as_fd(), 0) {
        drop(world.two.unregister(again).unwrap());
        assert!(started.elapsed() < PATIENCE, "it has ended");
    }
    assert_eq!(world.two.adopt(token.as_fd(), 0).map_err(errno), Err(libc::ESTALE));
    let (again, mut peer) = world.connection();
    world.one.write(again, "both go on").unwrap();
    world.one.flush().unwrap();
    expect(&mut peer, b"both go on");
}
