//! A stack on an Ethernet link, and a peer that builds and parses its frames.

mod check;
mod datagram_sharing;
mod datagrams;
mod errors;
mod fast_path;
mod fragments;
mod garbage;
mod handshakes;
mod link;
mod loopback;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use super::*;
use crate::config::Route;
use crate::event::Undelivered;
use crate::frame::{Checksums, Medium};
use crate::heap::HeapMemory;
use crate::id::{DatagramId, PoolId};
use crate::wire::{Ecn, arp, checksum, ethernet, icmp4, icmp6, ipv4, ipv6, ndp, tcp, udp};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const OURS6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PEER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const OUR_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

/// Our group for [`OURS6`] and for the link-local address.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);

struct Host {
    stack: Stack,
    memory: HeapMemory,
    now: Instant,
}

fn config() -> Config {
    let mut config = Config::single(OURS, 24, [7; 32]);
    config.medium = Medium::Ethernet(OUR_MAC);
    config.addresses.push((IpAddr::V6(OURS6), 64));
    let prefix = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    config.routes.push(Route { prefix, prefix_bits: 0, via: Some(IpAddr::V4(ROUTER)) });
    config.tx_frame_bytes = 1518;
    config.connections = 8;
    config
}

impl Host {
    fn new() -> Self {
        Self::with(|_| ())
    }

    /// A host that has said where it is, and which groups it hears.
    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut host = Self::silent(change);
        host.frames();
        host.pass(Duration::from_secs(2));
        host
    }

    fn silent(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        let now = Instant::from_millis(1_000_000);
        let stack = Stack::new(config, now).unwrap();
        Self { stack, memory: HeapMemory::new(64, 4096), now }
    }

    fn give(&mut self, frame: &[u8]) {
        self.stack.on_frame(self.now, frame, Received::default(), &mut self.memory);
    }

    fn transmit(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0xee; 1518];
        let sent = self.stack.poll_transmit(self.now, &mut frame, &mut self.memory)?;
        frame.truncate(sent.frame_bytes());
        Some(frame)
    }

    /// All frames that the host wants to send.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        core::iter::from_fn(|| self.transmit()).collect()
    }

    /// What the host says to `frame`.
    fn reply(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.give(frame);
        self.frames()
    }

    /// Time passes, with everything that it brings.
    fn pass(&mut self, time: Duration) -> Vec<Vec<u8>> {
        let end = self.now + time;
        let mut frames = Vec::new();
        while let Some(next) = self.stack.poll_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.stack.on_timeout(self.now, &mut self.memory);
            frames.extend(self.frames());
        }
        self.now = end;
        frames
    }

    fn dropped(&self, reason: Drop) -> u64 {
        self.stack.counters().dropped(reason)
    }

    /// The host drops `frame`, for that reason and no other, and says nothing.
    #[track_caller]
    fn drops(&mut self, frame: &[u8], reason: Drop) {
        let before = *self.stack.counters();
        assert_eq!(self.reply(frame), Vec::<Vec<u8>>::new());
        for (each, count) in self.stack.counters().drops() {
            let expected = before.dropped(each) + u64::from(each == reason);
            assert_eq!(count, expected, "{}", each.name());
        }
    }

    /// Teaches the host where the peer is, as the peer would.
    fn meet(&mut self, ip: IpAddr) {
        self.stack.set_neighbour(self.now, ip, PEER_MAC, &mut self.memory);
    }

    fn bind(&mut self, port: u16) -> DatagramId {
        let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        self.stack.bind_datagram(local, PoolId(0)).unwrap()
    }

    fn bind6(&mut self, port: u16) -> DatagramId {
        let local = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        self.stack.bind_datagram(local, PoolId(0)).unwrap()
    }

    fn send(
        &mut self,
        id: DatagramId,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), crate::OperationError> {
        let chunk = self.memory.chunk_of(bytes).unwrap();
        let sent = self.stack.send_datagram(self.now, id, (to, chunk), &mut self.memory);
        if sent.is_err() {
            self.memory.free(chunk.buf);
        }
        sent
    }

    /// The bytes of the next datagram that arrived.
    fn receive(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        match self.stack.poll_event()? {
            Event::Datagram { from, chunk, .. } => {
                let bytes = self.memory.bytes(chunk).to_vec();
                self.memory.free(chunk.buf);
                Some((from, bytes))
            }
            event => panic!("{event:?}"),
        }
    }
}

fn ethernet(dst: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let header = ethernet::Repr { dst, src: PEER_MAC, vlan: None, ethertype };
    let mut frame = vec![0; header.header_bytes()];
    header.emit(&mut frame);
    frame.extend(payload);
    frame
}

fn header4(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, payload_bytes: usize) -> ipv4::Repr {
    ipv4::Repr {
        src,
        dst,
        protocol: protocol.number(),
        ttl: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 77,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        payload_bytes,
    }
}

fn packet4(header: ipv4::Repr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; header.header_bytes()];
    header.emit(&mut packet);
    packet.extend(payload);
    packet
}

/// A frame to us with an IPv4 packet from the peer.
fn frame4(protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let packet = packet4(header4(PEER, OURS, protocol, payload.len()), payload);
    ethernet(OUR_MAC, ethernet::IPV4, &packet)
}

fn packet6(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv6::Repr {
        src,
        dst,
        next_header,
        hop_limit: 255,
        dscp: 0,
        ecn: Ecn::NotEct,
        payload_bytes: payload.len(),
    };
    let mut packet = vec![0; header.header_bytes()];
    header.emit(&mut packet);
    packet.extend(payload);
    packet
}

/// A frame to us with an IPv6 packet from the peer.
fn frame6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(OUR_MAC, ethernet::IPV6, &packet6(PEER6, OURS6, next_header, payload))
}

/// A datagram between these two, with its checksum.
fn datagram(src: IpAddr, dst: IpAddr, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let header = udp::Repr { src_port: ports.0, dst_port: ports.1, payload_bytes: payload.len() };
    let mut bytes = vec![0; header.header_bytes()];
    let header_sum = header.emit(&mut bytes);
    bytes.extend(payload);
    let pseudo_header = checksum::pseudo_header(src, dst, 17, bytes.len());
    let sum =
        checksum::combine(header_sum, checksum::combine(pseudo_header, checksum::sum(payload)));
    udp::write_checksum(&mut bytes, sum);
    bytes
}

fn datagram4(dst_port: u16, payload: &[u8]) -> Vec<u8> {
    datagram(PEER.into(), OURS.into(), (5000, dst_port), payload)
}

fn datagram6(dst_port: u16, payload: &[u8]) -> Vec<u8> {
    datagram(PEER6.into(), OURS6.into(), (5000, dst_port), payload)
}

fn message4(repr: icmp4::Repr, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; icmp4::HEADER_BYTES];
    message.extend(payload);
    repr.emit(&mut message);
    message
}

fn message6((src, dst): (Ipv6Addr, Ipv6Addr), repr: icmp6::Repr, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; icmp6::HEADER_BYTES];
    message.extend(payload);
    let pseudo_header = checksum::pseudo_header(src.into(), dst.into(), 58, message.len());
    repr.emit(&mut message, pseudo_header);
    message
}

/// A frame of ours, taken apart: link header and IPv4 packet.
fn open4(frame: &[u8]) -> (ethernet::Repr, ipv4::Repr, &[u8]) {
    let view = ethernet::View::new(frame).unwrap();
    let packet = ipv4::View::new(view.payload()).unwrap();
    assert_eq!(packet.bytes().len(), view.payload().len(), "no bytes after the packet");
    (ethernet::Repr::parse(&view), ipv4::Repr::parse(&packet).unwrap(), packet.payload())
}

fn open6(frame: &[u8]) -> (ethernet::Repr, ipv6::Repr, &[u8]) {
    let view = ethernet::View::new(frame).unwrap();
    let packet = ipv6::View::new(view.payload()).unwrap();
    assert_eq!(packet.bytes().len(), view.payload().len(), "no bytes after the packet");
    (ethernet::Repr::parse(&view), ipv6::Repr::parse(&packet), packet.payload())
}

/// A frame of ours with an ICMPv6 message: the IPv6 header, the message and what follows it.
fn open_icmp6(frame: &[u8]) -> (ipv6::Repr, icmp6::Repr, &[u8]) {
    let (_, header, payload) = open6(frame);
    let sum = checksum::pseudo_header(header.src.into(), header.dst.into(), 58, payload.len());
    let view = icmp6::View::new(payload).unwrap();
    (header, icmp6::Repr::parse(&view, sum).unwrap(), view.payload())
}

/// An ARP message of ours, and to whom it went.
fn open_arp(frame: &[u8]) -> ([u8; 6], arp::Repr) {
    let view = ethernet::View::new(frame).unwrap();
    assert_eq!(view.ethertype(), ethernet::ARP);
    (view.dst(), arp::Repr::parse(&arp::View::new(view.payload()).unwrap()).unwrap())
}

fn peer() -> SocketAddr {
    SocketAddr::new(PEER.into(), 5000)
}

fn peer6() -> SocketAddr {
    SocketAddr::new(PEER6.into(), 5000)
}
