//! Connections and datagrams between addresses of one stack.

use super::*;
use crate::error::{CloseReason, ConnectError, OperationError};
use crate::ip::local_peers::LocalPeer;
use crate::tcp::TcpState;

/// A second address of ours.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);

/// Addresses of loopback.
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const LOOPBACK9: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const LOOPBACK6: Ipv6Addr = Ipv6Addr::LOCALHOST;

/// A host whose frames to itself come back; all others are counted.
struct Looping {
    host: Host,
    looped: usize,
    others: usize,
    events: Vec<Event>,
}

impl Looping {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let change = |config: &mut Config| {
            config.addresses.push((OTHER.into(), 24));
            change(config);
        };
        Self { host: Host::with(change), looped: 0, others: 0, events: Vec::new() }
    }

    fn listen(&mut self, local: SocketAddr) -> crate::ListenerId {
        let listener = self.host.stack.listen(local, 8, PoolId(0)).unwrap();
        self.host.stack.accept(listener, 8).unwrap();
        listener
    }

    fn connect(&mut self, remote: SocketAddr, local: Option<SocketAddr>) -> ConnId {
        let Host { stack, memory, now } = &mut self.host;
        stack.connect(*now, remote, local, (PoolId(0), memory)).unwrap()
    }

    /// Moves frames until there are none left.
    fn run(&mut self) {
        loop {
            let mut frame = vec![0xee; 1518];
            let Host { stack, memory, now } = &mut self.host;
            while let Some(event) = stack.poll_event() {
                self.events.push(event);
            }
            let Some(sent) = stack.poll_transmit(*now, &mut frame, memory) else { break };
            if !sent.stays_here() {
                self.others += 1;
                continue;
            }
            self.looped += 1;
            let received = Received { checksums: Checksums::Looped, segment_bytes: 0 };
            stack.on_frame(*now, &frame[..sent.frame_bytes()], received, memory);
        }
    }

    fn state(&mut self, conn: ConnId) -> TcpState {
        self.host.stack.info(conn).unwrap().state
    }

    /// The connection that a listener reported.
    fn incoming(&mut self) -> ConnId {
        let found = self.events.iter().find_map(|event| match event {
            Event::Incoming { conn, .. } => Some(*conn),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("{:?}", self.events))
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        let Host { stack, memory, now } = &mut self.host;
        let chunk = memory.chunk_of(bytes).unwrap();
        stack.send(*now, conn, chunk, memory).unwrap();
    }

    fn receive(&mut self, conn: ConnId) {
        let Host { stack, now, .. } = &mut self.host;
        stack.receive(*now, conn).unwrap();
    }

    /// The bytes that arrived for `conn`.
    fn bytes(&mut self, conn: ConnId) -> Vec<u8> {
        let mut all = Vec::new();
        for event in &self.events {
            if let Event::Received { conn: of, chunk } = event
                && *of == conn
            {
                all.extend(self.host.memory.bytes(*chunk));
            }
        }
        all
    }
}

fn at(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

/// Connects, sends something both ways, and closes.
fn exchange(change: impl FnOnce(&mut Config), to: SocketAddr, from: Option<SocketAddr>) {
    let mut world = Looping::with(change);
    world.listen(to);
    let client = world.connect(to, from);
    world.run();
    let server = world.incoming();
    assert_eq!(world.state(client), TcpState::Established);
    assert_eq!(world.state(server), TcpState::Established);
    let (client_at, server_at) =
        (world.host.stack.addresses(client).unwrap(), world.host.stack.addresses(server).unwrap());
    assert_eq!(client_at, (server_at.1, server_at.0));
    assert_eq!(client_at.1, to);
    assert_eq!(client_at.0.ip(), from.unwrap_or(to).ip());
    for _ in 0..3 {
        world.receive(server);
        world.send(client, b"question");
        world.run();
        world.receive(client);
        world.send(server, b"answer");
        world.run();
    }
    assert_eq!(world.bytes(server), b"question".repeat(3));
    assert_eq!(world.bytes(client), b"answer".repeat(3));
    let Host { stack, memory, now } = &mut world.host;
    stack.close(*now, client, memory).unwrap();
    world.run();
    let Host { stack, memory, now } = &mut world.host;
    stack.close(*now, server, memory).unwrap();
    world.run();
    assert!(world.looped > 10);
    assert_eq!(world.others, 0, "no frame and no question reaches the link");
    assert_eq!(world.host.stack.held(), (0, 0));
    world.host.stack.check_invariants();
}

#[test]
fn own_address_connects_inside_the_stack() {
    exchange(|_| (), at(OURS, 80), None);
    exchange(|_| (), at(OURS6, 80), None);
    exchange(|_| (), at(OURS, 80), Some(at(OTHER, 0)));
    exchange(|_| (), at(OURS, 80), Some(at(OTHER, 80)));
    exchange(|config| config.vlan = Some(5), at(OURS, 80), None);
    exchange(|config| config.tx_checksum = true, at(OURS, 80), None);
    exchange(|config| config.tcp.timestamps = false, at(OURS6, 80), None);
    exchange(|config| config.external_neighbours = true, at(OURS, 80), None);
    let raw = |config: &mut Config| {
        config.medium = Medium::Ip;
        config.routes.clear();
        config.addresses.retain(|(ip, _)| ip.is_ipv4());
    };
    exchange(raw, at(OURS, 80), None);
}

fn with_loopback(config: &mut Config) {
    config.loopback = true;
}

#[test]
fn loopback_connects_inside_the_stack() {
    exchange(with_loopback, at(LOOPBACK, 80), None);
    exchange(with_loopback, at(LOOPBACK6, 80), None);
    exchange(with_loopback, at(LOOPBACK9, 80), Some(at(LOOPBACK9, 0)));
    exchange(with_loopback, at(LOOPBACK, 80), Some(at(OURS, 0)));
    exchange(with_loopback, at(OURS, 80), Some(at(LOOPBACK, 0)));
    let raw = |config: &mut Config| {
        config.loopback = true;
        config.medium = Medium::Ip;
        config.routes.clear();
        config.addresses.retain(|(ip, _)| ip.is_ipv4());
    };
    exchange(raw, at(LOOPBACK, 80), None);
    exchange(raw, at(LOOPBACK6, 80), None);
}

#[test]
fn loopback_is_the_kernels_by_default() {
    let Host { stack, memory, now } = &mut Looping::new().host;
    for ip in [IpAddr::V4(LOOPBACK), IpAddr::V6(LOOPBACK6)] {
        let refused = stack.listen(at(ip, 80), 8, PoolId(0));
        assert_eq!(refused, Err(crate::ListenError::BadLocalAddress));
        let refused = stack.connect(*now, at(ip, 80), None, (PoolId(0), memory));
        assert_eq!(refused, Err(ConnectError::NoRoute));
        let refused = stack.bind_datagram(at(ip, 80), PoolId(0));
        assert_eq!(refused, Err(crate::BindError::BadLocalAddress));
    }
}

#[test]
fn loopback_never_leaves_the_host() {
    let mut world = Looping::with(with_loopback);
    let id = world.host.stack.bind_datagram(at(LOOPBACK, 53), PoolId(0)).unwrap();
    let wild = world.host.bind(54);
    assert_eq!(world.host.send(id, peer(), b"x"), Err(OperationError::BadAddress));
    let Host { stack, memory, now } = &mut world.host;
    for local in [at(LOOPBACK, 0), at(LOOPBACK9, 0)] {
        let refused = stack.connect(*now, at(PEER, 80), Some(local), (PoolId(0), memory));
        assert_eq!(refused, Err(ConnectError::NoRoute));
    }
    // The broadcast address, and an unbound socket: its source is the first address, as on Linux.
    let broadcast = at([127, 255, 255, 255], 80);
    let refused = stack.connect(*now, broadcast, None, (PoolId(0), memory));
    assert_eq!(refused, Err(ConnectError::NoRoute));
    assert_eq!(world.host.send(wild, broadcast, b"x"), Err(OperationError::BadAddress));
    let conn = world.connect(at(LOOPBACK9, 80), None);
    assert_eq!(world.host.stack.addresses(conn).unwrap().0.ip(), IpAddr::V4(LOOPBACK));
    world.run();
    assert_eq!((world.looped, world.others), (2, 0), "SYN and RST");
}

#[test]
fn loopback_is_not_received_from_the_link() {
    for (listens, from) in [(LOOPBACK, LOOPBACK), (LOOPBACK, OURS), (OURS, LOOPBACK)] {
        let mut world = Looping::with(with_loopback);
        world.listen(at(listens, 80));
        let client = world.connect(at(listens, 80), Some(at(from, 0)));
        world.run();
        let server = world.incoming();
        world.receive(server);
        world.send(client, b"question");
        let Host { stack, memory, now } = &mut world.host;
        let mut frame = vec![0; 1518];
        let sent = stack.poll_transmit(*now, &mut frame, memory).unwrap();
        assert!(sent.stays_here());
        frame.truncate(sent.frame_bytes());
        let reason = if listens == LOOPBACK { Drop::OtherAddress } else { Drop::BadSource };
        for checksums in [Checksums::Unverified, Checksums::Verified] {
            for _ in 0..2 {
                let before = stack.counters().dropped(reason);
                stack.on_frame(*now, &frame, Received { checksums, segment_bytes: 0 }, memory);
                assert_eq!(stack.counters().dropped(reason), before + 1);
            }
        }
        // From a neighbour's address it is no better.
        frame[26..30].copy_from_slice(&PEER.octets());
        let received = Received { checksums: Checksums::Verified, segment_bytes: 0 };
        stack.on_frame(*now, &frame, received, memory);
        frame[26..30].copy_from_slice(&from.octets());
        let received = Received { checksums: Checksums::Looped, segment_bytes: 0 };
        stack.on_frame(*now, &frame, received, memory);
        world.run();
        assert_eq!(world.bytes(server), b"question");
        assert_eq!(world.others, 0);
    }
}

#[test]
fn loopback_is_reachable_whatever_the_filter_says() {
    let mut world = Looping::with(with_loopback);
    world.host.stack.set_local_peer_filter(Box::new(|_| false));
    let id = world.host.bind(53);
    assert_eq!(world.host.send(id, at(OURS, 54), b"x"), Err(OperationError::BadAddress));
    assert_eq!(world.host.send(id, at(LOOPBACK, 54), b"x"), Ok(()));
    let conn = world.connect(at(LOOPBACK, 81), None);
    world.run();
    let refused = Event::Closed { conn, reason: CloseReason::Refused };
    assert!(world.events.contains(&refused), "{:?}", world.events);
}

#[test]
fn own_address_without_listener_is_refused() {
    let mut world = Looping::new();
    let conn = world.connect(at(OURS, 81), None);
    world.run();
    let refused = Event::Closed { conn, reason: CloseReason::Refused };
    assert!(world.events.contains(&refused), "{:?}", world.events);
    assert_eq!((world.looped, world.others), (2, 0));
}

#[test]
fn looped_connections_are_reset() {
    let mut world = Looping::new();
    world.listen(at(OURS, 80));
    let client = world.connect(at(OURS, 80), None);
    world.run();
    let server = world.incoming();
    let Host { stack, memory, now } = &mut world.host;
    stack.abort(*now, server, memory).unwrap();
    world.run();
    let reset = Event::Closed { conn: client, reason: CloseReason::ResetByPeer };
    assert!(world.events.contains(&reset), "{:?}", world.events);
    assert_eq!(world.others, 0);
}

#[test]
fn connection_to_itself_works_as_on_linux() {
    for ip in [IpAddr::V4(OURS), IpAddr::V6(OURS6)] {
        let mut world = Looping::new();
        let conn = world.connect(at(ip, 4000), Some(at(ip, 4000)));
        world.run();
        assert_eq!(world.state(conn), TcpState::Established);
        world.receive(conn);
        world.send(conn, b"echo");
        world.run();
        assert_eq!(world.bytes(conn), b"echo");
        let Host { stack, memory, now } = &mut world.host;
        stack.close(*now, conn, memory).unwrap();
        world.run();
        assert_eq!(world.others, 0);
        world.host.stack.check_invariants();
    }
}

#[test]
fn chosen_port_is_never_that_of_the_peer() {
    let mut world = Looping::with(|config| config.ephemeral_ports = (40_000, 40_001));
    let conn = world.connect(at(OURS, 40_001), None);
    assert_eq!(world.host.stack.addresses(conn).unwrap().0, at(OURS, 40_000));
    let Host { stack, memory, now } = &mut world.host;
    let next = stack.connect(*now, at(OURS, 40_001), None, (PoolId(0), memory));
    assert_eq!(next, Err(ConnectError::NoPort));
}

#[test]
fn own_source_is_dropped_from_the_link() {
    let mut world = Looping::new();
    world.listen(at(OURS, 80));
    let client = world.connect(at(OURS, 80), None);
    world.run();
    let server = world.incoming();
    world.receive(server);
    // The very segment that the connection expects, by the link.
    world.send(client, b"question");
    let Host { stack, memory, now } = &mut world.host;
    let mut frame = vec![0; 1518];
    let sent = stack.poll_transmit(*now, &mut frame, memory).unwrap();
    assert!(sent.stays_here());
    frame.truncate(sent.frame_bytes());
    for checksums in [Checksums::Unverified, Checksums::Verified] {
        for _ in 0..2 {
            let before = stack.counters().dropped(Drop::BadSource);
            stack.on_frame(*now, &frame, Received { checksums, segment_bytes: 0 }, memory);
            assert_eq!(stack.counters().dropped(Drop::BadSource), before + 1);
        }
    }
    let received = Received { checksums: Checksums::Looped, segment_bytes: 0 };
    stack.on_frame(*now, &frame, received, memory);
    world.run();
    assert_eq!(world.bytes(server), b"question");
}

#[test]
fn peers_of_the_link_do_not_use_the_local_hop() {
    let mut world = Looping::new();
    world.host.meet(PEER.into());
    world.listen(at(OURS, 80));
    world.connect(at(OURS, 80), None);
    world.connect(at(PEER, 80), None);
    world.run();
    assert_eq!(world.others, 1, "the SYN");
    assert!(world.host.stack.has_local_peers());
    assert!(!Looping::new().host.stack.has_local_peers());
}

#[test]
fn filter_decides_which_own_ports_are_reached() {
    let mut world = Looping::new();
    world.listen(at(OURS, 80));
    let filter = |peer| match peer {
        LocalPeer::Stream(at) => at.port() == 80,
        LocalPeer::Datagram(at) => at.port() == 53,
    };
    world.host.stack.set_local_peer_filter(Box::new(filter));
    let id = world.host.bind(53);
    assert_eq!(world.host.send(id, at(OURS, 54), b"x"), Err(OperationError::BadAddress));
    assert_eq!(world.host.send(id, at(OURS, 53), b"x"), Ok(()));
    assert_eq!(world.host.send(id, peer(), b"x"), Ok(()));
    let Host { stack, memory, now } = &mut world.host;
    for local in [None, Some(at(OURS, 0)), Some(at(OTHER, 0))] {
        let mut connect = |port| stack.connect(*now, at(OURS, port), local, (PoolId(0), memory));
        assert_eq!(connect(81), Err(ConnectError::NoRoute), "{local:?}");
        assert!(connect(80).is_ok(), "{local:?}");
    }
}

#[test]
fn datagrams_loop() {
    let pairs = [
        (at(OURS, 53), at(OTHER, 54)),
        (at(OURS6, 53), at(OURS6, 54)),
        (at(LOOPBACK, 53), at(LOOPBACK9, 54)),
        (at(LOOPBACK6, 53), at(LOOPBACK6, 54)),
    ];
    for (ours, other) in pairs {
        for tx_checksum in [false, true] {
            let mut world = Looping::with(|config| {
                (config.tx_checksum, config.loopback) = (tx_checksum, true);
            });
            let one = world.host.stack.bind_datagram(ours, PoolId(0)).unwrap();
            let two = world.host.stack.bind_datagram(other, PoolId(0)).unwrap();
            world.host.send(one, other, b"question").unwrap();
            world.host.send(one, ours, b"to itself").unwrap();
            world.run();
            world.host.send(two, ours, b"answer").unwrap();
            world.run();
            let mut got = Vec::new();
            for event in &world.events {
                let Event::Datagram { endpoint, from, chunk, .. } = event else { continue };
                got.push((*endpoint, *from, world.host.memory.bytes(*chunk).to_vec()));
            }
            let expected = [
                (two, ours, b"question".to_vec()),
                (one, ours, b"to itself".to_vec()),
                (one, other, b"answer".to_vec()),
            ];
            assert_eq!(got, expected);
            assert_eq!((world.looped, world.others), (3, 0));
        }
    }
}

#[test]
fn datagram_to_an_own_port_without_endpoint_is_reported() {
    for own in [OURS.into(), OURS6.into(), LOOPBACK.into(), IpAddr::V6(LOOPBACK6)] {
        let mut world = Looping::with(with_loopback);
        let id = world.host.stack.bind_datagram(at(own, 53), PoolId(0)).unwrap();
        world.host.stack.connect_datagram(id, Some(at(own, 54))).unwrap();
        world.host.send(id, at(own, 54), b"anyone?").unwrap();
        world.run();
        let refused = world.events.iter().filter_map(|event| match event {
            Event::DatagramRefused { endpoint, to, .. } => Some((*endpoint, *to)),
            _ => None,
        });
        assert_eq!(refused.collect::<Vec<_>>(), [(id, at(own, 54))], "{:?}", world.events);
        assert_eq!((world.looped, world.others), (2, 0));
    }
}

#[test]
fn icmp_error_about_loopback_is_dropped_from_the_link() {
    let mut world = Looping::with(with_loopback);
    let id = world.host.stack.bind_datagram(at(LOOPBACK, 53), PoolId(0)).unwrap();
    world.host.stack.connect_datagram(id, Some(at(LOOPBACK, 54))).unwrap();
    world.host.send(id, at(LOOPBACK, 54), b"anyone?").unwrap();
    let mut frame = vec![0; 1518];
    let mut next = |stack: &mut Stack, memory: &mut HeapMemory, now| {
        let sent = stack.poll_transmit(now, &mut frame, memory).unwrap();
        frame[..sent.frame_bytes()].to_vec()
    };
    let Host { stack, memory, now } = &mut world.host;
    let datagram = next(stack, memory, *now);
    let looped = Received { checksums: Checksums::Looped, segment_bytes: 0 };
    stack.on_frame(*now, &datagram, looped, memory);
    let error = next(stack, memory, *now);
    // The same error, as a neighbour would send it to our address.
    let mut forged = error.clone();
    forged[26..30].copy_from_slice(&PEER.octets());
    forged[30..34].copy_from_slice(&OURS.octets());
    forged[24..26].fill(0);
    let sum = !checksum::sum(&forged[14..34]);
    forged[24..26].copy_from_slice(&sum.to_be_bytes());
    let before = stack.counters().dropped(Drop::BadIcmpError);
    let received = Received { checksums: Checksums::Unverified, segment_bytes: 0 };
    stack.on_frame(*now, &forged, received, memory);
    assert_eq!(stack.counters().dropped(Drop::BadIcmpError), before + 1);
    assert_eq!(stack.poll_event(), None);
    stack.on_frame(*now, &error, looped, memory);
    assert!(matches!(stack.poll_event(), Some(Event::DatagramRefused { .. })));
}

#[test]
fn looped_connection_ends_when_the_address_goes() {
    let mut world = Looping::new();
    world.listen(at(OTHER, 80));
    let client = world.connect(at(OTHER, 80), Some(at(OURS, 0)));
    world.run();
    let addresses = [(IpAddr::V4(OURS), 24), (IpAddr::V6(OURS6), 64)];
    world.host.stack.set_addresses(&addresses).unwrap();
    world.send(client, b"lost");
    let mut frame = vec![0; 1518];
    let Host { stack, memory, now } = &mut world.host;
    while let Some(sent) = stack.poll_transmit(*now, &mut frame, memory) {
        assert!(!sent.stays_here(), "it is a neighbour's now");
    }
}

#[test]
fn looped_connection_cannot_move_to_the_kernel() {
    let mut world = Looping::new();
    world.listen(at(OURS, 80));
    let client = world.connect(at(OURS, 80), None);
    world.run();
    let Host { stack, memory, now } = &mut world.host;
    assert!(matches!(stack.export(*now, client, memory), Err(OperationError::BadAddress)));
}
