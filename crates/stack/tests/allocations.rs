//! After `Stack::new` nothing allocates on the way of a frame: not frames, not commands about
//! connections and datagrams, not time.
//!
//! The allocator counts for the whole process, so this is a program without the harness of other
//! tests, whose own thread allocates when the machine is slow. Frames go from one stack to the
//! other through one array.

use std::alloc::System;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::wire::{Protocol, checksum, ethernet, icmp4, ipv4, udp};
use megapipe_stack::{
    Chunk, Config, ConnId, Event, HeapMemory, Instant, Medium, Memory, PoolId, Received, Stack,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const A_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUNDS: usize = 50;

struct Host {
    stack: Stack,
    memory: HeapMemory,
    received_bytes: usize,
    closed: usize,
    established: Option<ConnId>,
}

impl Host {
    fn new(ip: Ipv4Addr, mac: [u8; 6]) -> Self {
        let mut config = Config::single(ip, 24, [mac[5]; 32]);
        config.medium = Medium::Ethernet(mac);
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, mac[5].into());
        config.addresses.push((IpAddr::V6(v6), 64));
        config.tcp.msl = Duration::from_millis(100);
        let stack = Stack::new(config, Instant::from_millis(1)).unwrap();
        let memory = HeapMemory::new(256, 2048);
        Self { stack, memory, received_bytes: 0, closed: 0, established: None }
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Received { conn, chunk } => {
                    self.received_bytes += chunk.len as usize;
                    self.memory.free(chunk.buf);
                    let _ = self.stack.receive(now, conn);
                }
                Event::Datagram { chunk, .. } => {
                    self.received_bytes += chunk.len as usize;
                    self.memory.free(chunk.buf);
                }
                Event::Incoming { listener, conn, .. } => {
                    self.stack.accept(listener, 1).unwrap();
                    self.stack.receive(now, conn).unwrap();
                }
                Event::Connected { conn } => {
                    self.established = Some(conn);
                    self.stack.receive(now, conn).unwrap();
                }
                Event::PeerClosed { conn } => {
                    let _ = self.stack.shutdown(now, conn, &mut self.memory);
                }
                Event::Closed { .. } => self.closed += 1,
                _ => {}
            }
        }
    }

    fn chunk(&mut self, len: u32) -> Chunk {
        let buf = self.memory.alloc(PoolId(0)).unwrap();
        Chunk { buf, offset: 0, len }
    }
}

/// Lets both talk until neither has anything to say or to wait for in the next second.
fn talk(a: &mut Host, b: &mut Host, now: &mut Instant, frame: &mut [u8]) {
    let end = *now + Duration::from_secs(1);
    loop {
        let mut is_quiet = true;
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            while let Some(sent) = from.stack.poll_transmit(*now, frame, &mut from.memory) {
                is_quiet = false;
                to.stack.on_frame(
                    *now,
                    &frame[..sent.frame_bytes()],
                    Received::default(),
                    &mut to.memory,
                );
                to.take_events(*now);
            }
            from.take_events(*now);
        }
        if !is_quiet {
            continue;
        }
        let next = [a.stack.poll_timeout(), b.stack.poll_timeout()].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= end) else { break };
        *now = next.max(*now);
        for host in [&mut *a, &mut *b] {
            host.stack.on_timeout(*now, &mut host.memory);
            host.take_events(*now);
        }
    }
    *now = end;
}

/// A frame to `a` with something that it answers by itself or drops: an echo, a datagram to a
/// closed port, fragments that stay alone, noise.
fn disturb(a: &mut Host, now: Instant, n: usize, frame: &mut [u8]) {
    let link = ethernet::Repr {
        dst: A_MAC,
        src: [2, 0, 0, 0, 0, 9],
        vlan: None,
        ethertype: ethernet::IPV4,
    };
    link.emit(frame);
    let protocol = if n.is_multiple_of(2) { Protocol::Icmp } else { Protocol::Udp };
    let header = ipv4::Repr {
        src: Ipv4Addr::from_bits(0x0a00_0000 + 3 + (n % 200) as u32),
        dst: A,
        protocol: protocol.number(),
        ttl: 64,
        dscp: 0,
        ecn: megapipe_stack::wire::Ecn::NotEct,
        identification: n as u16,
        dont_fragment: false,
        more_fragments: n % 5 == 4,
        fragment_offset: 0,
        payload_bytes: 64,
    };
    header.emit(&mut frame[14..]);
    let payload = &mut frame[34..98];
    payload.fill(n as u8);
    match protocol {
        Protocol::Icmp => icmp4::Repr::Echo { code: 0, identifier: 1, sequence: 2 }.emit(payload),
        _ => {
            let datagram = udp::Repr { src_port: 9, dst_port: 9, payload_bytes: 56 };
            datagram.emit(payload);
            let pseudo_header =
                checksum::pseudo_header(header.src.into(), header.dst.into(), 17, 64);
            let sum = checksum::combine(pseudo_header, checksum::sum(payload));
            udp::write_checksum(payload, sum);
        }
    }
    let len = if n % 7 == 6 { 40 } else { 98 };
    a.stack.on_frame(now, &frame[..len], Received::default(), &mut a.memory);
}

fn main() {
    frames_commands_and_time_allocate_nothing();
    // As the harness says it.
    println!("test frames_commands_and_time_allocate_nothing ... ok");
}

fn frames_commands_and_time_allocate_nothing() {
    let mut a = Host::new(A, A_MAC);
    let mut b = Host::new(B, [2, 0, 0, 0, 0, 2]);
    let mut now = Instant::from_millis(1);
    let mut frame = vec![0; 1518];
    let port = |ip: Ipv4Addr, port| SocketAddr::new(IpAddr::V4(ip), port);
    let listener = b.stack.listen(port(Ipv4Addr::UNSPECIFIED, 80), 16, PoolId(0)).unwrap();
    b.stack.accept(listener, 16).unwrap();
    let here = a.stack.bind_datagram(port(A, 0), PoolId(0)).unwrap();
    b.stack.bind_datagram(port(B, 53), PoolId(0)).unwrap();
    // A listener has a queue of its own, made with it.
    let watch = Region::new(ALLOCATOR);
    for round in 0..ROUNDS {
        let conn = a.stack.connect(now, port(B, 80), None, (PoolId(0), &mut a.memory)).unwrap();
        talk(&mut a, &mut b, &mut now, &mut frame);
        assert_eq!(a.established, Some(conn));
        for _ in 0..20 {
            let chunk = a.chunk(2048);
            a.stack.send(now, conn, chunk, &mut a.memory).unwrap();
        }
        let chunk = a.chunk(1000);
        a.stack.send_datagram(now, here, (port(B, 53), chunk), &mut a.memory).unwrap();
        for n in 0..100 {
            disturb(&mut a, now, round * 100 + n, &mut frame);
        }
        talk(&mut a, &mut b, &mut now, &mut frame);
        a.stack.shutdown(now, conn, &mut a.memory).unwrap();
        talk(&mut a, &mut b, &mut now, &mut frame);
    }

    let change = watch.change();
    assert_eq!(change.allocations, 0, "{change:?}");
    assert_eq!(change.reallocations, 0, "{change:?}");
    assert_eq!(b.received_bytes, ROUNDS * (20 * 2048 + 1000));
    assert_eq!((a.closed, b.closed), (ROUNDS, ROUNDS));
    assert_eq!((a.memory.in_use(), b.memory.in_use()), (0, 0));
}
