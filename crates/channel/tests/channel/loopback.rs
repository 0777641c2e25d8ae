//! A host that talks to itself: both ends of a connection, or of a message, in one stack.
//!
//! Read first: decision 0045. On the kernel's drivers the same goes over `lo`.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, Backend, Channel, Config, ConnectOptions, Connection, Event, Handle,
    ListenError, ListenOptions, LocalNetwork, LoopbackOwner, OpError, Placement, ServerConfig,
    SocketKind,
};
use megapipe_link::{Link, Pair, PairConfig, pair};

use crate::place::{self, here};
use crate::scene::{Case, PATIENCE, Scene, on_each_driver, on_each_placement, pattern};

on_each_driver![
    client_reaches_listener_of_its_own_channel,
    bulk_goes_both_ways_at_once,
    own_port_without_listener_refuses,
    endpoints_of_one_channel_exchange_messages,
    unregistered_end_is_seen_by_the_other,
];

mod stack {
    use super::*;
    on_each_placement![own_addresses_of_both_families_are_reached];
}

/// Both ends of a connection from the channel to its own listener: the client's first.
#[track_caller]
fn looped(scene: &mut Scene, address: &str) -> (Handle, Handle) {
    let (listener, bound) = scene.listening(address);
    scene.channel.accept(listener, Accept::lwsocket(1)).unwrap();
    let client = scene.connect(&bound, &ConnectOptions::default(), 0).unwrap();
    let server = scene.accepted(listener);
    let Event::Connect(Ok(())) = scene.next_of(client) else { panic!() };
    let ends = |scene: &mut Scene, handle| {
        (scene.local_address(handle).unwrap(), scene.peer_address(handle).unwrap())
    };
    let (here, there) = (ends(scene, client), ends(scene, server));
    assert_eq!((&here.0, &here.1), (&there.1, &there.0));
    scene.unregister(listener).unwrap();
    (client, server)
}

fn client_reaches_listener_of_its_own_channel(case: &Case) {
    let mut scene = case.scene();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (client, server) = looped(&mut scene, address);
        for turn in 0..20 {
            for (from, to) in [(client, server), (server, client)] {
                scene.write(from, pattern(turn, 100 + turn)).unwrap();
                assert_eq!(scene.read_exact(to, 100 + turn), pattern(turn, 100 + turn));
                scene.expect_written(from, 100 + turn);
            }
        }
    }
}

fn bulk_goes_both_ways_at_once(case: &Case) {
    const PIECE: usize = 40_000;
    const PIECES: usize = 50;
    let mut scene = case.scene_without_limit();
    let (client, server) = looped(&mut scene, "127.0.0.1:0");
    for piece in 0..PIECES {
        scene.write_quiet(client, pattern(piece, PIECE)).unwrap();
        scene.write_quiet(server, pattern(piece + 7, PIECE)).unwrap();
    }
    for piece in 0..PIECES {
        assert!(scene.read_exact(server, PIECE) == pattern(piece, PIECE), "{piece}");
        assert!(scene.read_exact(client, PIECE) == pattern(piece + 7, PIECE), "{piece}");
    }
}

fn own_port_without_listener_refuses(case: &Case) {
    let mut scene = case.scene();
    // A port that was free a moment ago.
    let (listener, bound) = scene.listening("127.0.0.1:0");
    scene.unregister(listener).unwrap();
    let handle = scene.connect(&bound, &ConnectOptions::default(), 0).unwrap();
    let Event::Connect(Err(OpError::Refused)) = scene.next_of(handle) else { panic!() };
}

fn endpoints_of_one_channel_exchange_messages(case: &Case) {
    let mut scene = case.scene();
    for (kind, local) in [(SocketKind::Udp4, "127.0.0.1:0"), (SocketKind::Udp6, "[::1]:0")] {
        let first = scene.socket(kind, Some(&here(local)), 1).unwrap();
        let second = scene.socket(kind, Some(&here(local)), 2).unwrap();
        let addresses = [first, second].map(|handle| scene.local_address(handle).unwrap());
        // The last one is to itself.
        for (from, to, at) in [(first, second, 1), (second, first, 0), (second, second, 1)] {
            for turn in 0..100 {
                scene.sendto(from, pattern(turn, 300), &addresses[at]).unwrap();
                scene.recvfrom(to, 2000).unwrap();
                let (mut sent, mut got) = (false, false);
                while !(sent && got) {
                    let done = scene.next();
                    match done.event {
                        Event::SendTo(Ok(300)) if done.handle == from => sent = true,
                        Event::RecvFrom(Ok(datagram)) if done.handle == to => {
                            assert_eq!(*datagram.data, pattern(turn, 300));
                            let source = scene.local_address(from).unwrap();
                            assert_eq!(datagram.from, Some(source));
                            got = true;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}

fn unregistered_end_is_seen_by_the_other(case: &Case) {
    let mut scene = case.scene();
    let (client, server) = looped(&mut scene, "127.0.0.1:0");
    scene.write_quiet(client, "the last words").unwrap();
    scene.unregister(client).unwrap();
    assert_eq!(scene.read_to_end(server), b"the last words");
    scene.unregister(server).unwrap();
}

/// From one of the stack's addresses to the other family's there is no way, but to each its own.
fn own_addresses_of_both_families_are_reached(case: &Case) {
    let mut scene = case.scene();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (listener, bound) = scene.listening(address);
        scene.channel.accept(listener, Accept::lwsocket(1)).unwrap();
        let client = scene.connect(&bound, &ConnectOptions::default(), 0).unwrap();
        let Event::Connect(Ok(())) = scene.next_of(client) else { panic!() };
        scene.accepted(listener);
        let ip = |address: Address| address.as_inet().unwrap().ip();
        // As on Linux: what is sent to an own address is sent from it.
        assert_eq!(ip(scene.local_address(client).unwrap()), ip(bound));
    }
}

/// Channels that turn one after the other.
struct Channels {
    channels: Vec<Channel>,
    done: Vec<(usize, Handle, Event)>,
}

impl Channels {
    fn poll(&mut self) {
        for (index, channel) in self.channels.iter_mut().enumerate() {
            while let Some(done) = channel.dispatch(Some(Duration::ZERO)).expect("works") {
                self.done.push((index, done.handle, done.event));
            }
        }
    }

    /// The next completion of a handle that is not of a write.
    #[track_caller]
    fn next_of(&mut self, index: usize, handle: Handle) -> Event {
        let start = Instant::now();
        loop {
            self.done.retain(|done| !matches!(done.2, Event::Write(Ok(_)) | Event::SendTo(Ok(_))));
            let found = self.done.iter().position(|done| (done.0, done.1) == (index, handle));
            if let Some(found) = found {
                return self.done.remove(found).2;
            }
            assert!(start.elapsed() < PATIENCE, "{:?}", self.done);
            self.poll();
        }
    }

    #[track_caller]
    fn read(&mut self, index: usize, handle: Handle, len: usize) -> Vec<u8> {
        self.channels[index].read(handle, len).unwrap();
        match self.next_of(index, handle) {
            Event::Read(Ok(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Connects `client` to the listener of `server`, some times, and sends messages.
    #[track_caller]
    fn talk(&mut self, server: usize, client: usize, address: &Address) {
        let options = ListenOptions::default();
        let listener = self.channels[server].listen(address, &options, 0).unwrap();
        let bound = self.channels[server].local_address(listener).unwrap();
        self.channels[server].accept(listener, Accept::lwsocket(1000)).unwrap();
        for turn in 0..20 {
            let handle =
                self.channels[client].connect(&bound, &ConnectOptions::default(), 0).unwrap();
            let Event::Connect(Ok(())) = self.next_of(client, handle) else { panic!() };
            let Event::Accept(Ok(accepted)) = self.next_of(server, listener) else { panic!() };
            let Connection::Lwsocket(incoming) = accepted.connection else { panic!() };
            self.channels[client].write(handle, pattern(turn, 500)).unwrap();
            assert_eq!(self.read(server, incoming, 500), pattern(turn, 500));
            self.channels[server].write(incoming, pattern(turn + 1, 500)).unwrap();
            assert_eq!(self.read(client, handle, 500), pattern(turn + 1, 500));
            // Each end closes first now and then.
            let (first, second) = ((client, handle), (server, incoming));
            let (first, second) = if turn % 2 == 0 { (first, second) } else { (second, first) };
            self.channels[first.0].unregister(first.1).unwrap();
            assert!(self.read(second.0, second.1, 10).is_empty());
            self.channels[second.0].unregister(second.1).unwrap();
        }
        self.channels[server].unregister(listener).unwrap();
    }

    #[track_caller]
    fn expect_no_route(&mut self, index: usize, to: &Address, options: &ConnectOptions) {
        let handle = self.channels[index].connect(to, options, 0).unwrap();
        let end = self.next_of(index, handle);
        assert!(matches!(end, Event::Connect(Err(OpError::NetworkUnreachable))), "{end:?}");
    }

    #[track_caller]
    fn exchange_messages(&mut self, one: usize, other: usize, address: &Address) {
        let is_v4 = address.as_inet().is_some_and(|inet| inet.is_ipv4());
        let kind = if is_v4 { SocketKind::Udp4 } else { SocketKind::Udp6 };
        let mut bind = |index: usize| {
            let channel: &mut Channel = &mut self.channels[index];
            let handle = channel.socket(kind, Some(address), 0).unwrap();
            (index, handle, channel.local_address(handle).unwrap())
        };
        let (one, other) = (bind(one), bind(other));
        for (from, to) in [(&one, &other), (&other, &one)] {
            for turn in 0..50 {
                self.channels[from.0].sendto(from.1, pattern(turn, 200), &to.2).unwrap();
                self.channels[to.0].recvfrom(to.1, 2000).unwrap();
                let Event::RecvFrom(Ok(datagram)) = self.next_of(to.0, to.1) else { panic!() };
                assert_eq!(*datagram.data, pattern(turn, 200));
                assert_eq!(datagram.from.as_ref(), Some(&from.2));
            }
        }
    }
}

/// A network of so many shards, and the far end of its link.
fn network(count: u16, loopback: LoopbackOwner) -> (LocalNetwork, Pair) {
    let (link, far) = pair(&PairConfig::default()).expect("a pair");
    let settings = ServerConfig {
        loopback,
        addresses: vec![(IpAddr::from([10, 79, 0, 2]), 24)],
        shards: Some(count),
        ..ServerConfig::default()
    };
    (LocalNetwork::over(vec![Box::new(link)], settings).expect("one queue"), far)
}

/// The channels of such a network.
fn shards(count: u16, placement: Placement, loopback: LoopbackOwner) -> (Channels, Pair) {
    let (network, far) = network(count, loopback);
    let config = Config::default().backend(Backend::Local(network)).placement(placement);
    let channels = (0..count).map(|_| Channel::create(config.clone()).expect("a shard for each"));
    (Channels { channels: channels.collect(), done: Vec::new() }, far)
}

/// The far end has got no packet of IPv4: announcements only.
fn expect_no_packets(far: &mut Pair) {
    let mut packets = 0;
    let count = far.rx_burst(1000, &mut |frame, _| {
        packets += usize::from(frame.get(12..14) == Some(&[8, 0]));
    });
    assert!(count.is_ok() && packets == 0, "{count:?}, {packets} packets");
}

fn shards_of_a_process_reach_each_other(placement: Placement) {
    let (mut channels, mut far) = shards(3, placement, LoopbackOwner::Stack);
    let at = |address: &str| address.parse::<Address>().unwrap();
    for (server, client) in [(0, 1), (1, 0), (2, 2), (1, 2)] {
        let address = at("10.79.0.2:0");
        channels.talk(server, client, &address);
        channels.exchange_messages(server, client, &address);
    }
    for (server, client) in [(0, 1), (2, 2)] {
        for address in ["127.0.0.1:0", "127.8.9.1:0", "[::1]:0"] {
            channels.talk(server, client, &at(address));
            channels.exchange_messages(server, client, &at(address));
        }
    }
    expect_no_packets(&mut far);
}

#[test]
fn loopback_is_the_kernels_unless_the_settings_say_otherwise() {
    let (mut channels, _far) = shards(1, Placement::Inline, LoopbackOwner::Kernel);
    for address in ["127.0.0.1:80", "[::1]:80"] {
        let address = address.parse().unwrap();
        let refused = channels.channels[0].listen(&address, &ListenOptions::default(), 0);
        let Err(ListenError::Kernel { source, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(source.kind(), ErrorKind::AddrNotAvailable, "{address:?}");
        channels.expect_no_route(0, &address, &ConnectOptions::default());
    }
}

#[test]
fn loopback_is_reached_from_wildcard_listeners_and_from_own_addresses() {
    let (mut channels, mut far) = shards(2, Placement::Inline, LoopbackOwner::Stack);
    let (any, port) = ("0.0.0.0:80".parse().unwrap(), 80);
    let listener = channels.channels[0].listen(&any, &ListenOptions::default(), 0).unwrap();
    channels.channels[0].accept(listener, Accept::lwsocket(1000)).unwrap();
    for (from, to) in [([127, 0, 0, 1], [10, 79, 0, 2]), ([10, 79, 0, 2], [127, 0, 0, 7])] {
        let options = ConnectOptions::default().bind(SocketAddr::from((from, 0)).into());
        let to = SocketAddr::from((to, port)).into();
        let client = channels.channels[1].connect(&to, &options, 0).unwrap();
        let Event::Connect(Ok(())) = channels.next_of(1, client) else { panic!() };
        let Event::Accept(Ok(accepted)) = channels.next_of(0, listener) else { panic!() };
        let Connection::Lwsocket(server) = accepted.connection else { panic!() };
        let peer = channels.channels[0].peer_address(server).unwrap();
        assert_eq!(peer.as_inet().unwrap().ip(), IpAddr::from(from));
        assert_eq!(channels.channels[0].local_address(server).unwrap(), to);
        // Unread bytes: the end is a reset.
        channels.channels[1].write_quiet(client, "unread").unwrap();
        channels.channels[1].read(client, 10).unwrap();
        (0..10).for_each(|_| channels.poll());
        channels.channels[0].unregister(server).unwrap();
        let end = channels.next_of(1, client);
        assert!(matches!(end, Event::Read(Err(OpError::Reset))), "{end:?}");
        channels.channels[1].unregister(client).unwrap();
    }
    // An address of loopback has no way to the link.
    let options = ConnectOptions::default().bind(SocketAddr::from(([127, 0, 0, 1], 0)).into());
    let peer = SocketAddr::from(([10, 79, 0, 1], 80)).into();
    channels.expect_no_route(1, &peer, &options);
    expect_no_packets(&mut far);
}

#[test]
fn shards_of_a_process_reach_each_other_inline() {
    shards_of_a_process_reach_each_other(Placement::Inline);
}

#[test]
fn shards_of_a_process_reach_each_other_on_threads() {
    shards_of_a_process_reach_each_other(Placement::Thread);
}

#[test]
fn shards_of_a_process_reach_each_other_on_cores() {
    shards_of_a_process_reach_each_other(Placement::Core(None));
}

#[test]
fn sleeping_shard_is_woken_by_loopback() {
    let (network, _far) = network(2, LoopbackOwner::Kernel);
    let config = Config::default().backend(Backend::Local(network));
    let address = Address::from(SocketAddr::from(([10, 79, 0, 2], 80)));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (config_of_server, address_of_server) = (config.clone(), address.clone());
    let thread = std::thread::spawn(move || {
        let mut server = Channel::create(config_of_server).unwrap();
        let listener = server.listen(&address_of_server, &ListenOptions::default(), 0).unwrap();
        server.accept(listener, Accept::lwsocket(1).first_read(100)).unwrap();
        ready.send(()).unwrap();
        // The handshake and the bytes need several wakes.
        let done = server.dispatch(Some(PATIENCE)).unwrap().expect("accepts in time");
        let Event::Accept(Ok(accepted)) = done.event else { panic!() };
        let Connection::Lwsocket(handle) = accepted.connection else { panic!() };
        let read = server.dispatch(Some(PATIENCE)).unwrap().expect("reads in time");
        let Event::Read(Ok(bytes)) = read.event else { panic!() };
        server.write_quiet(handle, bytes).unwrap();
        server.unregister(handle).unwrap();
        let _ = server.dispatch(Some(Duration::from_millis(100))).unwrap();
    });
    is_ready.recv().unwrap();
    let client = Channel::create(config).unwrap();
    let mut channels = Channels { channels: vec![client], done: Vec::new() };
    let handle = channels.channels[0].connect(&address, &ConnectOptions::default(), 0).unwrap();
    let Event::Connect(Ok(())) = channels.next_of(0, handle) else { panic!() };
    channels.channels[0].write(handle, "wake up").unwrap();
    assert_eq!(channels.read(0, handle, 100), b"wake up");
    thread.join().unwrap();
}

#[test]
fn sessions_of_a_daemon_reach_each_other() {
    let name = "loopback::sessions_of_a_daemon_reach_each_other";
    if let Err(why) = place::enter() {
        return println!("skipped: {name}: {why}");
    }
    let service = place::service_with(LoopbackOwner::Stack).expect("a daemon");
    let config = Config::default().backend(service);
    let channels = (0..2).map(|_| Channel::create(config.clone()).expect("it runs"));
    let mut channels = Channels { channels: channels.collect(), done: Vec::new() };
    for (server, client) in [(0, 1), (1, 0), (1, 1)] {
        channels.talk(server, client, &here("127.0.0.1:0"));
        channels.talk(server, client, &here("[::1]:0"));
        channels.exchange_messages(server, client, &here("127.0.0.1:0"));
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let loopback = loopback.parse().unwrap();
            channels.talk(server, client, &loopback);
            channels.exchange_messages(server, client, &loopback);
        }
    }
    let addresses = channels.channels[0].stack_addresses();
    let loopback = ["127.0.0.1", "::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
    assert!(addresses.ends_with(&loopback), "{addresses:?}");
}
