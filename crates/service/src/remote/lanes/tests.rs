//! A daemon of two shards, and channels with a lane to each.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use megapipe_link::{PairConfig, pair};
use megapipe_shm::bell_sockets;
use megapipe_shm::record::Record;
use megapipe_stack::{BindError, ConnectError, DatagramSharing, ListenError};
use rustix::io::Errno;

use super::*;
use crate::attach::{ClientFeatures, ClientIdentity, SessionHost};
use crate::begin::ConnectStart;
use crate::config::{ServerConfig, Waits};
use crate::connection_manager::AcceptorId;
use crate::descriptors::{DescriptorPassing, ShareToken};
use crate::error::PortError;
use crate::link_server::Frames;
use crate::remote::tests::{next_event, session};
use crate::remote::{SessionFeatures, attach_client};
use crate::rx_mux::switch;
use crate::session_sizes::SessionSizes;
use crate::shard_host::{ServiceLinks, ShardHost};
use crate::sharing::Sharing;
use crate::sleep::wait_readable;

const PATIENCE: Duration = Duration::from_secs(20);
const SHARDS: u16 = 2;
const HTTP: u16 = 80;

const SIZES: SessionSizes = SessionSizes {
    ops: 1 << 8,
    events: 1 << 10,
    receive_bytes: 2_048,
    receive_buffers: 256,
    small_sends: 64,
    large_sends: 8,
};

/// A daemon of two shards, and a peer that has a server to itself.
fn host_and_peer() -> (ShardHost, RemoteClient) {
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    let links = switch(vec![Box::new(one)], SHARDS, &[7; 16]).expect("memory");
    let shards = links.into_iter().map(|link| Frames::Shared(Box::new(link))).collect();
    let links = ServiceLinks { servers: Vec::new(), shards };
    let mut config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, 2]), 24)],
        connections: 1_000,
        waits: Waits { spin: Duration::ZERO, ..Waits::default() },
        ..ServerConfig::default()
    };
    config.tcp.nagle = false;
    let host = ShardHost::start(links, &config, &[], Box::new(|_| {})).expect("threads");
    (host, session(other, 1))
}

/// A channel, which the host knows by `key`.
fn attach(host: &mut ShardHost, key: u64) -> LaneSet {
    let (pid, name) = (std::process::id(), "test".to_owned());
    let client = ClientIdentity { pid, uid: 0, gid: 0, groups: Vec::new(), name };
    let features =
        ClientFeatures { has_lanes: true, knows_event_details: true, shares_connecting: true };
    let opened = host.open(key, &client, &SIZES, features, None).expect("it is welcome");
    assert_eq!((opened.lanes, opened.sizes.receive_buffers), (SHARDS, 128));
    // Nothing closes the other end of the control socket here.
    let (control, _) = bell_sockets().expect("descriptors");
    let lanes = attach_client(
        &opened.sizes,
        opened.fds,
        &opened.description,
        (
            control,
            SessionFeatures {
                passing: DescriptorPassing::Nothing,
                resets: true,
                connect_flags: true,
                exclusive_endpoints: true,
            },
        ),
    );
    host.begin(key, None);
    lanes.expect("as agreed")
}

const fn at(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last)), port)
}

fn exclusive() -> Sharing {
    Sharing { is_exclusive: true, ..Sharing::default() }
}

/// The channel's next event; it sleeps until it comes.
#[track_caller]
fn next(lanes: &mut LaneSet) -> Event {
    let start = Instant::now();
    loop {
        lanes.wake_up();
        match lanes.event() {
            Some(RemoteEvent::Event(event, _)) => return event,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        assert!(start.elapsed() < PATIENCE, "no event comes");
        lanes.check().expect("the shards live");
        if lanes.arm() {
            wait_readable([Some(lanes.wait_fd())], Some(PATIENCE)).expect("no signal");
        }
    }
}

#[test]
fn listener_gets_the_connections_of_both_shards() {
    const COUNT: u16 = 24;
    let (mut host, mut peer) = host_and_peer();
    let mut lanes = attach(&mut host, 1);
    let listener = lanes.listen(at(2, HTTP), 100, Sharing::default()).expect("it is free");
    lanes.accept(listener, AcceptorId(3), COUNT.into());
    lanes.flush();
    let theirs: Vec<ConnId> = (0..COUNT).map(|_| peer.connect(at(2, HTTP))).collect();
    peer.flush();
    let mut by_port = HashMap::new();
    while by_port.len() < theirs.len() {
        let event = next(&mut lanes);
        let Event::Incoming { listener: its, conn, remote, .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!(its, listener);
        assert_eq!(lanes.addresses(conn), Some((at(2, HTTP), remote)));
        lanes.receive(conn).expect("it is open");
        by_port.insert(remote.port(), conn);
    }
    let mut counts = [0; SHARDS as usize];
    by_port.values().for_each(|conn| counts[lanes.lane_of(conn.index)] += 1);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    // Bytes of all lanes wake the application, which answers each.
    let mut connected = Vec::new();
    while connected.len() < theirs.len() {
        let event = next_event(&mut peer);
        let Event::Connected { conn } = event else { panic!("{event:?}") };
        let (local, _) = peer.addresses(conn).expect("it is open");
        peer.send(conn, &local.port().to_be_bytes()).expect("it is open");
        peer.flush();
        connected.push(conn);
        let event = next(&mut lanes);
        let Event::Received { conn, chunk } = event else { panic!("{event:?}") };
        let mut bytes = [0; 2];
        lanes.take_bytes(chunk, &mut bytes);
        assert_eq!(by_port.get(&u16::from_be_bytes(bytes)), Some(&conn));
    }
    assert_eq!(lanes.holders(HTTP..=HTTP).len(), 1, "the same at both shards");
}

#[test]
fn connections_leave_from_both_lanes() {
    let (mut host, mut peer) = host_and_peer();
    let mut lanes = attach(&mut host, 1);
    let listener = peer.listen(at(1, HTTP), 100, Sharing::default()).expect("it is free");
    peer.accept(listener, AcceptorId(3), 100);
    peer.flush();
    let begin = ConnectStart::default();
    let mut counts = [0; SHARDS as usize];
    for _ in 0..8 {
        let conn = lanes.connect_as(at(1, HTTP), None, begin).expect("there are ports");
        counts[lanes.lane_of(conn.index)] += 1;
        assert_eq!(next(&mut lanes), Event::Connected { conn });
    }
    assert_eq!(counts, [4, 4]);
    // From a port of the application's the lane is that of the flow.
    let mut counts = [0; SHARDS as usize];
    for port in 5_000..5_016 {
        let conn = lanes.connect_as(at(1, HTTP), Some(at(2, port)), begin).expect("it is free");
        counts[lanes.lane_of(conn.index)] += 1;
        assert_eq!(next(&mut lanes), Event::Connected { conn });
        let again = lanes.connect_as(at(1, HTTP), Some(at(2, port)), begin);
        assert!(matches!(again, Err(PortError::Stack(ConnectError::InUse))), "{again:?}");
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let free = lanes.port_without_connections(5_015..=5_016, 5_015);
    assert_eq!(free, Some(5_016), "free on all lanes");
    // What one lane has closed is over there.
    let conn = lanes.connect_as(at(1, 81), None, begin).expect("there are ports");
    let event = next(&mut lanes);
    assert!(matches!(event, Event::Closed { conn: its, .. } if its == conn), "{event:?}");
    assert!(lanes.info(conn).is_none());
}

#[test]
fn listener_is_at_all_shards_or_at_none() {
    let (mut host, _peer) = host_and_peer();
    let (mut one, mut other) = (attach(&mut host, 1), attach(&mut host, 2));
    for _ in 0..3 {
        let listener = one.listen(at(2, HTTP), 10, exclusive()).expect("it is free");
        for sharing in [exclusive(), Sharing::default()] {
            let refused = other.listen(at(2, HTTP), 10, sharing);
            assert!(matches!(refused, Err(PortError::Stack(ListenError::InUse))), "{refused:?}");
        }
        assert!(other.is_listening(at(2, HTTP)));
        one.unlisten(listener);
        assert!(!other.is_listening(at(2, HTTP)), "no shard has it");
        std::mem::swap(&mut one, &mut other);
    }
    // Both share it, on both shards.
    let both = [&mut one, &mut other]
        .map(|it| it.listen(at(2, HTTP), 10, Sharing::default()).expect("both share it"));
    one.unlisten(both[0]);
    assert!(one.is_listening(at(2, HTTP)));
    one.unlisten(both[0]);
    assert!(one.is_listening(at(2, HTTP)), "a stale name changes nothing");
    other.unlisten(both[1]);
    assert!(!one.is_listening(at(2, HTTP)));
}

#[test]
fn adopted_listener_is_at_all_shards_or_at_none() {
    let (mut host, mut peer) = host_and_peer();
    let (mut one, mut other) = (attach(&mut host, 1), attach(&mut host, 2));
    let listener = one.listen(at(2, HTTP), 10, exclusive()).expect("it is free");
    let token = host.make_token(1, 5, 77).expect("no quota");
    host.keep_token(2, 6, (Arc::clone(&token), false)).expect("there is room");
    let stale = other.adopt_listener_lanes(6).expect_err("it owns nothing yet");
    assert_eq!(stale.raw_os_error(), Errno::STALE.raw_os_error());
    one.hold_listener_lanes(listener, 5).expect("it is its own");
    let adopted = other.adopt_listener_lanes(6).expect("the token owns it");
    assert_eq!((adopted.options.address, adopted.is_known), (at(2, HTTP), false));
    assert!(adopted.options.sharing.is_exclusive);
    let again = other.adopt_listener_lanes(6).expect("the token owns it");
    assert_eq!((again.listener, again.is_known), (adopted.listener, true));
    host.end_token(&token);
    one.unlisten(listener);
    // Connections of both shards come to the channel that is left.
    other.accept(adopted.listener, AcceptorId(3), 20);
    other.flush();
    for _ in 0..10 {
        peer.connect(at(2, HTTP));
    }
    peer.flush();
    let mut counts = [0; SHARDS as usize];
    while counts.iter().sum::<u32>() < 10 {
        let event = next(&mut other);
        let Event::Incoming { listener: its, conn, .. } = event else { panic!("{event:?}") };
        assert_eq!(its, adopted.listener);
        counts[other.lane_of(conn.index)] += 1;
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    other.unlisten(adopted.listener);
    await_free(&mut one, at(2, HTTP));
}

/// A hostile maker can let a token own other listeners on each shard, or none.
#[test]
fn token_of_different_listeners_is_refused() {
    let (mut host, _peer) = host_and_peer();
    let (mut one, mut other) = (attach(&mut host, 1), attach(&mut host, 2));
    let ports = [80, 81].map(|port| one.listen(at(2, port), 10, exclusive()).expect("it is free"));
    let lanes = ports.map(|listener| one.listeners.lanes_of(listener));
    for (cookie, holds_second) in [(5, true), (6, false)] {
        let token = host.make_token(1, cookie, 70 + cookie).expect("no quota");
        host.keep_token(2, cookie, (token, false)).expect("there is room");
        one.lane(0).hold_listener(cookie, lanes[0][0]).expect("it is its own");
        if holds_second {
            one.lane(1).hold_listener(cookie, lanes[1][1]).expect("it is its own");
        }
        let refused = other.adopt_listener_lanes(cookie).expect_err("they differ");
        assert_eq!(refused.raw_os_error(), Errno::STALE.raw_os_error(), "{refused}");
    }
    // Nothing of them is the other's: what it listens at is free when the maker's tokens end.
    for number in [75, 76] {
        host.end_token(&ShareToken::new(number, None).expect("no quota"));
    }
    for (listener, port) in ports.into_iter().zip([80, 81]) {
        one.unlisten(listener);
        await_free(&mut other, at(2, port));
    }
}

/// Until no shard listens at an address: the shards see the end of a token later.
fn await_free(lanes: &mut LaneSet, address: SocketAddr) {
    let start = Instant::now();
    while lanes.is_listening(address) {
        assert!(start.elapsed() < PATIENCE, "the address is free");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn older_daemon_shares_no_listener() {
    let (mut host, _peer) = host_and_peer();
    let (ours, _daemons) = bell_sockets().expect("descriptors");
    let control = SessionControl::new(Arc::new(ours), DescriptorPassing::Endpoints);
    let mut lanes = attach(&mut host, 1).with_control(control.expect("it passes tokens"));
    let listener = lanes.listen(at(2, HTTP), 10, Sharing::default()).expect("it is free");
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    for refused in
        [lanes.share_listener(listener).err(), lanes.adopt_token_listener(reader.as_fd()).err()]
    {
        let refused = refused.expect("the version is older");
        assert_eq!(refused.raw_os_error(), Errno::OPNOTSUPP.raw_os_error());
        assert!(refused.to_string().contains("older version"), "{refused}");
    }
}

#[test]
fn end_of_one_lane_ends_all() {
    let (mut host, _peer) = host_and_peer();
    let mut lanes = attach(&mut host, 7);
    lanes.listen(at(2, HTTP), 10, exclusive()).expect("it is free");
    // It is no operation.
    lanes.others[0].put(&Record::default());
    lanes.flush();
    let start = Instant::now();
    let ended = loop {
        wait_readable([Some(host.ended_fd().as_fd())], Some(PATIENCE)).expect("no signal");
        if let Some(ended) = host.next_ended() {
            break ended;
        }
        assert!(start.elapsed() < PATIENCE, "its shard ends it");
    };
    assert_eq!(ended.0, 7);
    assert!(ended.1.expect("a fault").contains("record"));
    assert_eq!(host.session_count(), 0);
    // The application is woken, and sees it.
    while lanes.check().is_ok() {
        assert!(start.elapsed() < PATIENCE, "it is woken");
        if lanes.arm() {
            wait_readable([Some(lanes.wait_fd())], Some(PATIENCE)).expect("no signal");
            lanes.wake_up();
        }
    }
    // What it had at the other shard is free as well.
    let mut next = attach(&mut host, 8);
    while next.listen(at(2, HTTP), 10, exclusive()).is_err() {
        assert!(start.elapsed() < PATIENCE, "the address is free");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn endpoints_of_one_port_are_on_one_lane() {
    let (mut host, _peer) = host_and_peer();
    let (mut one, mut other) = (attach(&mut host, 1), attach(&mut host, 2));
    let alone = DatagramSharing::default();
    for port in 5_000..5_004 {
        let endpoint = one.bind(at(2, port), alone).expect("it is free");
        assert_eq!(one.lane_of(endpoint.index), usize::from(port % SHARDS));
        assert_eq!(one.datagram_address(endpoint), Some(at(2, port)));
        let taken = other.bind(at(2, port), alone);
        assert!(matches!(taken, Err(PortError::Stack(BindError::InUse))), "{taken:?}");
        one.close_datagram(endpoint);
        let endpoint = other.bind(at(2, port), alone).expect("it is free");
        other.close_datagram(endpoint);
    }
    let any = one.bind(at(2, 0), alone).expect("there are ports");
    let port = one.datagram_address(any).expect("it is bound").port();
    assert_eq!(usize::from(port % SHARDS), one.lane_of(any.index), "as one that is asked for");
}
