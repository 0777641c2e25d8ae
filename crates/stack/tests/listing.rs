//! Sockets of a stack, listed a few places at a time.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::{
    Config, ConnOption, ConnTimerKind, Event, HeapMemory, Instant, ListedSocket, ListingCursor,
    PoolId, Received, Stack,
};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEERS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const FRAME_BYTES: usize = 1_500;

struct Host {
    stack: Stack,
    memory: HeapMemory,
}

impl Host {
    fn new(address: Ipv4Addr) -> Self {
        let mut config = Config::single(address, 24, [7; 32]);
        config.connections = 16;
        let stack = Stack::new(config, Instant::ZERO).expect("valid settings");
        Self { stack, memory: HeapMemory::new(64, 2_048) }
    }

    fn frame(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut frame = vec![0; FRAME_BYTES];
        let sent = self.stack.poll_transmit(now, &mut frame, &mut self.memory)?;
        frame.truncate(sent.frame_bytes());
        Some(frame)
    }

    fn take(&mut self, now: Instant, frame: &[u8]) {
        self.stack.on_frame(now, frame, Received::default(), &mut self.memory);
    }

    /// All sockets, listed in steps of so many places.
    fn list(&self, slots: u32) -> Vec<ListedSocket> {
        let mut sockets = Vec::new();
        let mut next = Some(ListingCursor::default());
        while let Some(from) = next {
            next = self.stack.list_sockets(from, slots, |socket| {
                sockets.push(socket);
                true
            });
            assert!(next.is_none_or(|next| next > from), "it goes on");
        }
        sockets
    }
}

fn exchange(now: Instant, one: &mut Host, other: &mut Host) {
    for _ in 0..8 {
        while let Some(frame) = one.frame(now) {
            other.take(now, &frame);
        }
        while let Some(frame) = other.frame(now) {
            one.take(now, &frame);
        }
    }
}

/// A server with a socket of each kind: a listener, an endpoint, a connection, one in TIME-WAIT and
/// a handshake of which only the SYN has come. Also returns the ports of the last three.
fn host_with_all() -> (Host, [u16; 3]) {
    let (mut server, mut client) = (Host::new(OURS), Host::new(PEERS));
    let http: SocketAddr = (OURS, 80).into();
    let now = Instant::from_nanos(1_000_000);
    let listener = server.stack.listen(http, 8, PoolId(0)).expect("it is free");
    server.stack.accept(listener, 2).expect("it listens");
    server.stack.bind_datagram((OURS, 53).into(), PoolId(0)).expect("it is free");
    let connect = |client: &mut Host| {
        let Host { stack, memory } = client;
        let conn = stack.connect(now, http, None, (PoolId(0), memory)).expect("it has a port");
        let (local, _) = stack.addresses(conn).expect("it is there");
        (conn, local.port())
    };
    let (_, open) = connect(&mut client);
    let (closed, closed_port) = connect(&mut client);
    exchange(now, &mut client, &mut server);
    let mut conns = Vec::new();
    while let Some(event) = server.stack.poll_event() {
        if let Event::Incoming { conn, .. } = event {
            conns.push(conn);
        }
    }
    let its = |conn: &_| server.stack.addresses(*conn).expect("open").1.port() == closed_port;
    let to_close = *conns.iter().find(|conn| its(conn)).expect("it was accepted");
    server.stack.close(now, to_close, &mut server.memory).expect("it is open");
    exchange(now, &mut client, &mut server);
    client.stack.close(now, closed, &mut client.memory).expect("it is open");
    exchange(now, &mut client, &mut server);
    let (_, half) = connect(&mut client);
    while let Some(frame) = client.frame(now) {
        server.take(now, &frame);
    }
    (server, [open, closed_port, half])
}

#[test]
fn listing_has_each_socket_once_in_steps_of_any_size() {
    let (server, [open, closed, half]) = host_with_all();
    let all = server.list(u32::MAX);
    let ports_of = |is: fn(&ListedSocket) -> Option<SocketAddr>| {
        all.iter().filter_map(is).map(|remote| remote.port()).collect::<BTreeSet<_>>()
    };
    assert_eq!(all.len(), 5, "{all:?}");
    assert!(matches!(
        all[0],
        ListedSocket::Listener { backlog: 8, waiting: 0, half_open: 1, credit: 0, local, .. }
            if local == (OURS, 80).into()
    ));
    assert!(matches!(all[1], ListedSocket::Endpoint { peer: None, received: 0, .. }));
    let conns = ports_of(|socket| match socket {
        ListedSocket::Conn { remote, .. } => Some(*remote),
        _ => None,
    });
    assert_eq!(conns, [open].into());
    let half_open = ports_of(|socket| match socket {
        ListedSocket::HalfOpen { remote, .. } => Some(*remote),
        _ => None,
    });
    assert_eq!(half_open, [half].into());
    let waiting = ports_of(|socket| match socket {
        ListedSocket::TimeWait { remote, .. } => Some(*remote),
        _ => None,
    });
    assert_eq!(waiting, [closed].into());
    for slots in [1, 2, 3, 7] {
        assert_eq!(server.list(slots), all, "{slots}");
    }
}

#[test]
fn timers_of_connections_are_shown() {
    let (mut server, mut client) = (Host::new(OURS), Host::new(PEERS));
    let http: SocketAddr = (OURS, 80).into();
    let now = Instant::from_nanos(1_000_000);
    let listener = server.stack.listen(http, 8, PoolId(0)).expect("it is free");
    server.stack.accept(listener, 2).expect("it listens");
    let Host { stack, memory } = &mut client;
    let conn = stack.connect(now, http, None, (PoolId(0), memory)).expect("it has a port");
    let syn = client.frame(now).expect("a SYN");
    let timer = client.stack.conn_timer(now, conn).expect("it waits for an answer");
    assert_eq!((timer.kind, timer.attempts), (ConnTimerKind::Retransmission, 0));
    assert!(timer.at > now && timer.at <= now + Duration::from_secs(2), "{timer:?}");
    server.take(now, &syn);
    exchange(now, &mut client, &mut server);
    assert_eq!(client.stack.conn_timer(now, conn), None, "nothing is under way");

    let Host { stack, memory } = &mut client;
    let idle = Duration::from_secs(60);
    let option = ConnOption::KeepaliveIdle(Some(idle));
    stack.set_option(now, conn, option, memory).expect("it is open");
    let timer = stack.conn_timer(now, conn).expect("it watches the peer");
    assert_eq!(timer.kind, ConnTimerKind::Keepalive);
    assert!(timer.at >= now + idle && timer.at <= now + idle + Duration::from_millis(10));
    stack.abort(now, conn, memory).expect("it is open");
    assert_eq!(stack.conn_timer(now, conn), None);

    let (server, _) = host_with_all();
    let ends: Vec<_> = server
        .list(8)
        .into_iter()
        .filter_map(|socket| match socket {
            ListedSocket::TimeWait { ends_at, .. } => Some(ends_at),
            _ => None,
        })
        .collect();
    assert!(matches!(ends[..], [at] if at > now && at <= now + Duration::from_secs(240)));
}

#[test]
fn listing_stops_where_it_is_told_to_and_goes_on_there() {
    let (server, _) = host_with_all();
    let (mut sockets, mut next) = (Vec::new(), Some(ListingCursor::default()));
    while let Some(from) = next {
        let before = sockets.len();
        next = server.stack.list_sockets(from, u32::MAX, |socket| {
            sockets.push(socket);
            false
        });
        assert!(sockets.len() <= before + 1);
    }
    assert_eq!(sockets, server.list(u32::MAX));
}

#[test]
fn listing_from_any_number_is_bounded() {
    let (server, _) = host_with_all();
    for bits in [u64::MAX, 5 << 32, u64::from(u32::MAX), 2 << 32 | 0x7fff_ffff] {
        let from = ListingCursor::from_bits(bits);
        assert_eq!(from.to_bits(), bits);
        let mut count = 0;
        let next = server.stack.list_sockets(from, 64, |_| {
            count += 1;
            true
        });
        assert!(count <= 5 && next.is_none_or(|next| next > from), "{bits:x}");
    }
    // Nothing is left of it after the time of TIME-WAIT.
    let (mut server, _) = host_with_all();
    let later = Instant::from_nanos(1_000_000) + Duration::from_secs(300);
    server.stack.on_timeout(later, &mut server.memory);
    let has_time_wait =
        server.list(8).iter().any(|socket| matches!(socket, ListedSocket::TimeWait { .. }));
    assert!(!has_time_wait);
}
