//! Many shards over one pair: what the other end sends reaches the right shard, independent of the
//! reader.

mod split;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use megapipe_link::{Pair, PairConfig, pair};
use megapipe_stack::wire::tcp::Flags;
use megapipe_stack::wire::{Ecn, Protocol, ipv4};

use super::*;
use crate::steering::{FlowHash, Takes, Transport};

const KEY: [u8; 16] = *b"a key for a test";
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// A segment from a port of the peer's to port 80, or what comes first of one.
fn segment(port: u16, flags: Flags) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&80_u16.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = flags.0;
    packet(Protocol::Tcp, 0, false, &tcp)
}

fn packet(protocol: Protocol, offset: usize, more: bool, payload: &[u8]) -> Vec<u8> {
    let repr = ipv4::Repr {
        src: THEIRS,
        dst: OURS,
        protocol: protocol as u8,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 7,
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: offset,
        ttl: 64,
        payload_bytes: payload.len(),
    };
    let mut bytes = vec![0; repr.header_bytes()];
    repr.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn default_shard(port: u16, shards: u16) -> u16 {
    let at = |ip: Ipv4Addr, port| SocketAddr::new(IpAddr::V4(ip), port);
    FlowHash::new(&KEY).shard_of(&SteeringKey::from_peer(at(THEIRS, port), at(OURS, 80)), shards)
}

/// The peer's end, and a link for each shard.
fn network(shards: u16) -> (Pair, Vec<ShardLink>) {
    let config = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
    let (ours, theirs) = pair(&config).unwrap();
    (theirs, switch(vec![Box::new(ours)], shards, &KEY).unwrap())
}

fn send(peer: &mut Pair, frames: &[Vec<u8>]) {
    let mut frames = frames.iter();
    let sent = peer.tx_burst(usize::MAX, &mut |room| {
        let frame = frames.next()?;
        room[..frame.len()].copy_from_slice(frame);
        Some(megapipe_link::TxMetadata { len: frame.len(), ..Default::default() })
    });
    sent.unwrap();
    assert!(frames.next().is_none(), "the pair has room");
}

/// A shard's stack, as far as the switch sees it.
#[derive(Default)]
struct Heap {
    frames: Vec<Vec<u8>>,
    /// It has these flows, by the peer's port.
    flows: Vec<u16>,
    refused: usize,
}

impl FrameSink for Heap {
    fn knows(&self, ends: &SteeringKey) -> bool {
        self.flows.contains(&ends.src.port())
    }

    fn on_frame(&mut self, frame: &[u8], _: Received) {
        self.frames.push(frame.to_vec());
    }

    fn on_stray(&mut self, frame: &[u8], received: Received) {
        self.on_frame(frame, received);
    }

    fn refuse(&mut self, _: &[u8], _: Received) {
        self.refused += 1;
    }

    fn on_handover(&mut self, _: Handover) {
        panic!("these shards have no connections");
    }
}

fn take(link: &mut ShardLink) -> Vec<Vec<u8>> {
    let mut heap = Heap::default();
    while link.receive(16, &mut heap).unwrap() > 0 {}
    heap.frames
}

#[test]
fn every_reader_gives_each_shard_its_frames() {
    let (mut peer, mut links) = network(4);
    let frames: Vec<_> = (1000..1200).map(|port| segment(port, Flags::ACK)).collect();
    send(&mut peer, &frames);
    // The last shard reads them all; the others find theirs without the link.
    links.reverse();
    for (shard, link) in (0..4).rev().zip(&mut links) {
        let mine: Vec<_> = frames
            .iter()
            .zip(1000..)
            .filter(|(_, port)| default_shard(*port, 4) == shard)
            .map(|(frame, _)| frame.clone())
            .collect();
        assert!(mine.len() > 20, "shard {shard} has {}", mine.len());
        assert_eq!(take(link), mine);
    }
    let counted = links[0].attachment().counters();
    assert_eq!((counted.kept + counted.steered, counted.dropped_full), (200, 0));
}

#[test]
fn a_shard_that_takes_nothing_loses_its_own_frames_alone() {
    let (mut peer, mut links) = network(2);
    let idle = (1..).find(|port| default_shard(*port, 2) == 1).unwrap();
    let busy = (1..).find(|port| default_shard(*port, 2) == 0).unwrap();
    for _ in 0..8 {
        let both = |_| [segment(idle, Flags::ACK), segment(busy, Flags::ACK)];
        let frames: Vec<_> = (0..250).flat_map(both).collect();
        send(&mut peer, &frames);
        assert_eq!(take(&mut links[0]).len(), 250);
    }
    let counted = links[0].attachment().counters();
    let waiting = u64::from(STEERED_FRAMES_MAX);
    assert_eq!((counted.steered, counted.dropped_full), (waiting, 2000 - waiting));
    assert_eq!(take(&mut links[1]).len() as u64, waiting);
    send(&mut peer, &[segment(idle, Flags::ACK)]);
    assert!(take(&mut links[0]).is_empty());
    assert_eq!(take(&mut links[1]).len(), 1, "there is room again");
}

#[test]
fn fragments_follow_the_first_and_wait_for_it() {
    let (mut peer, mut links) = network(4);
    let ports = [9_u16.to_be_bytes(), 80_u16.to_be_bytes(), [0, 40], [0; 2]].concat();
    let first = packet(Protocol::Udp, 0, true, &[&ports[..], &[1; 16]].concat());
    let second = packet(Protocol::Udp, 24, true, &[2; 8]);
    let third = packet(Protocol::Udp, 32, false, &[3; 8]);
    send(&mut peer, &[second.clone(), first.clone(), third.clone()]);
    let all: Vec<_> = links.iter_mut().map(take).collect();
    let to = usize::from(default_shard(9, 4));
    assert_eq!(all[to], [first, second, third]);
    assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 3);
}

#[test]
fn a_listener_of_one_shard_has_the_connections_of_all_homes() {
    let (mut peer, mut links) = network(3);
    let address = (Transport::Tcp, "0.0.0.0:80".parse().unwrap());
    links[1].attachment().bind(address, Takes::Rest, false).unwrap();
    let frames: Vec<_> = (1..100).map(|port| segment(port, Flags::SYN)).collect();
    send(&mut peer, &frames);
    assert!(take(&mut links[0]).is_empty());
    assert_eq!(take(&mut links[1]).len(), 99);
    assert!(take(&mut links[2]).is_empty());
}

#[test]
fn default_shards_refuse_flows_outside_every_mask() {
    let (mut peer, mut links) = network(2);
    (0..2).for_each(|shard: u16| {
        links[usize::from(shard)].attachment().set_core(Some(shard.into()));
    });
    let address = (Transport::Tcp, "0.0.0.0:80".parse().unwrap());
    // The first shard listens for the core of the second.
    links[0].attachment().bind(address, Takes::Cores(vec![1]), false).unwrap();
    let frames: Vec<_> = (1..100).map(|port| segment(port, Flags::SYN)).collect();
    let [mut first, mut second] = [Heap::default(), Heap::default()];
    let mine = (1..100).filter(|port| default_shard(*port, 2) == 1).count();
    for reader in [0, 1] {
        send(&mut peer, &frames);
        for _ in 0..8 {
            let heap = if reader == 0 { &mut first } else { &mut second };
            links[reader].receive(64, heap).unwrap();
        }
        while links[0].receive(64, &mut first).unwrap() > 0 {}
    }
    assert_eq!((first.frames.len(), first.refused), (2 * mine, 2 * (99 - mine)));
    assert!(mine > 30 && second.frames.is_empty() && second.refused == 0);
}

#[test]
fn a_connection_stays_where_it_is_when_listeners_come() {
    let (mut peer, mut links) = network(2);
    let address = (Transport::Tcp, "0.0.0.0:80".parse().unwrap());
    links[0].attachment().bind(address, Takes::Rest, false).unwrap();
    let port = (1..).find(|port| default_shard(*port, 2) == 1).unwrap();
    send(&mut peer, &[segment(port, Flags::SYN)]);
    assert_eq!(take(&mut links[0]).len(), 1);
    links[1].attachment().bind(address, Takes::Rest, false).unwrap();

    // The new owner of the home does not know the old flow, and passes it on.
    let [mut old, mut new] = [Heap { flows: vec![port], ..Heap::default() }, Heap::default()];
    send(&mut peer, &[segment(port, Flags::ACK)]);
    assert_eq!(links[0].receive(16, &mut old).unwrap(), 0, "it is steered by the new table");
    assert_eq!(links[1].receive(16, &mut new).unwrap(), 1, "taken from the ring, and passed on");
    assert_eq!((links[0].receive(16, &mut old).unwrap(), new.frames.len()), (1, 0));
    assert_eq!(old.frames.len(), 1);
    // The same when the new owner reads the link itself.
    send(&mut peer, &[segment(port, Flags::ACK)]);
    assert_eq!(links[1].receive(16, &mut new).unwrap(), 0);
    assert_eq!(links[0].receive(16, &mut old).unwrap(), 1);
    assert_eq!(links[0].attachment().counters().passed_on, 2);

    // A flow that is the new one's stays there, and an unknown one is refused by the old.
    new.flows.push(port);
    send(&mut peer, &[segment(port, Flags::ACK)]);
    assert_eq!(links[1].receive(16, &mut new).unwrap(), 1);
    new.flows.clear();
    old.flows.clear();
    send(&mut peer, &[segment(port, Flags::ACK)]);
    assert_eq!(links[1].receive(16, &mut new).unwrap(), 0);
    assert_eq!(links[0].receive(16, &mut old).unwrap(), 1);
}

#[test]
fn a_sleeping_shard_is_woken_by_the_reader_of_its_frames() {
    let (mut peer, mut links) = network(2);
    let (mut second, mut first) = (links.pop().unwrap(), links.pop().unwrap());
    let port = (1..).find(|port| default_shard(*port, 2) == 1).unwrap();
    let sleeping = thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            second.wait(Some(Duration::from_secs(10))).unwrap();
            if !take(&mut second).is_empty() {
                return true;
            }
        }
        false
    });
    thread::sleep(Duration::from_millis(20));
    send(&mut peer, &[segment(port, Flags::ACK)]);
    take(&mut first);
    assert!(sleeping.join().unwrap());
}

#[test]
fn a_sleeper_reads_the_link_of_a_neighbour_who_is_busy() {
    let (mut peer, mut links) = network(2);
    // Awake, and then busy with something else.
    take(&mut links[0]);
    let port = (1..).find(|port| default_shard(*port, 2) == 1).unwrap();
    let start = Instant::now();
    let mut sent = false;
    loop {
        links[1].wait(Some(Duration::from_secs(10))).unwrap();
        if !take(&mut links[1]).is_empty() {
            break;
        }
        if !std::mem::replace(&mut sent, true) {
            send(&mut peer, &[segment(port, Flags::ACK)]);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "the link is not read");
    }
    assert!(sent);
}

#[test]
fn when_all_sleep_the_link_wakes() {
    let (mut peer, mut links) = network(2);
    take(&mut links[0]);
    take(&mut links[1]);
    assert!(links[0].arm().unwrap() && links[1].arm().unwrap());
    let readable = |link: &ShardLink| {
        let fd = link.wait_fd();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
    };
    assert!(!readable(&links[1]));
    send(&mut peer, &[segment(1, Flags::ACK)]);
    assert!(readable(&links[1]));
    let all = take(&mut links[1]).len() + take(&mut links[0]).len();
    assert_eq!(all, 1);
    assert!(links[1].arm().unwrap());
    assert!(!readable(&links[1]), "what woke it is gone");
}
