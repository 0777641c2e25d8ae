//! What a received segment of 64 bytes costs, in instructions, or with the argument `connections`
//! a whole connection with one transaction at its server: run it under callgrind.
//!
//! `cargo build --release -p megapipe-stack --example segment_cost`, then
//! `valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/segment_cost`;
//! the total, divided by the number that the program prints, is the cost of one segment up to its
//! event.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::wire::checksum;
use megapipe_stack::{
    BufId, Chunk, Config, ConnId, Event, Instant, Memory, PoolId, Received, Stack,
};

const SEGMENTS: usize = 1000;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

const BUF_BYTES: usize = 2048;

/// Buffers as plain as can be: what they cost is not the question here.
struct Buffers {
    bytes: Vec<u8>,
    free: Vec<u32>,
}

impl Buffers {
    fn new(count: u32) -> Self {
        Self { bytes: vec![0; count as usize * BUF_BYTES], free: (0..count).collect() }
    }

    fn chunk_of(&mut self, bytes: &[u8]) -> Option<Chunk> {
        let buf = self.alloc(PoolId(0))?;
        self.copy_in(buf, 0, bytes);
        Some(Chunk { buf, offset: 0, len: bytes.len() as u32 })
    }
}

impl Memory for Buffers {
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        self.free.pop().map(BufId)
    }

    fn free(&mut self, buf: BufId) {
        self.free.push(buf.0);
    }

    fn buf_bytes(&self, _buf: BufId) -> u32 {
        BUF_BYTES as u32
    }

    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        let at = buf.0 as usize * BUF_BYTES + offset as usize;
        self.bytes[at..at + from.len()].copy_from_slice(from);
        checksum::sum(from)
    }

    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        let at = chunk.buf.0 as usize * BUF_BYTES + chunk.offset as usize;
        to.copy_from_slice(&self.bytes[at..at + to.len()]);
        checksum::sum(to)
    }
}

struct Host {
    stack: Stack,
    memory: Buffers,
}

impl Host {
    fn new(ip: Ipv4Addr) -> Self {
        let config = Config::single(ip, 24, [ip.octets()[3]; 32]);
        let stack = Stack::new(config, Instant::from_millis(1)).expect("a good configuration");
        Self { stack, memory: Buffers::new(1024) }
    }
}

/// All frames of `from` go to `to`.
fn carry(now: Instant, from: &mut Host, to: &mut Host) {
    let mut frame = [0; 2048];
    while let Some(sent) = from.stack.poll_transmit(now, &mut frame, &mut from.memory) {
        to.stack.on_frame(now, &frame[..sent.len], Received::default(), &mut to.memory);
    }
}

/// The part that is counted: one frame in, its event out.
#[inline(never)]
fn measured(host: &mut Host, now: Instant, frame: &[u8]) -> Option<Event> {
    host.stack.on_frame(now, frame, Received::default(), &mut host.memory);
    host.stack.poll_event()
}

fn establish(client: &mut Host, server: &mut Host, now: Instant) -> (ConnId, ConnId) {
    let local = SocketAddr::new(SERVER.into(), 80);
    let listener = server.stack.listen(local, 16, PoolId(0)).expect("listen");
    server.stack.accept(listener, 1).expect("accept");
    let pool = (PoolId(0), &mut client.memory);
    let there = client.stack.connect(now, local, None, pool).expect("connect");
    for _ in 0..3 {
        carry(now, client, server);
        carry(now, server, client);
    }
    while client.stack.poll_event().is_some() {}
    let Some(Event::Incoming { conn, .. }) = server.stack.poll_event() else {
        panic!("no connection");
    };
    (there, conn)
}

/// The part that is counted for a whole connection: a turn of the server. Frames in, events and
/// what an echo server does about them, frames out.
#[inline(never)]
fn measured_turn(host: &mut Host, now: Instant, wire: &mut Wire) {
    for (frame, len) in wire.to_server.drain(..) {
        host.stack.on_frame(now, &frame[..len], Received::default(), &mut host.memory);
    }
    while let Some(event) = host.stack.poll_event() {
        match event {
            Event::Incoming { conn, .. } => {
                host.stack.receive(now, conn).expect("receive");
            }
            // The chunk is sent back as it came, and the connection closed.
            Event::Received { conn, chunk } => {
                host.stack.send(now, conn, chunk, &mut host.memory).expect("send");
                host.stack.close(now, conn, &mut host.memory).expect("close");
            }
            _ => {}
        }
    }
    let mut frame = [0; 2048];
    while let Some(sent) = host.stack.poll_transmit(now, &mut frame, &mut host.memory) {
        wire.to_client.push((frame, sent.len));
    }
}

/// Frames between the two, room for which is made before.
#[derive(Default)]
struct Wire {
    to_server: Vec<([u8; 2048], usize)>,
    to_client: Vec<([u8; 2048], usize)>,
}

/// One connection with one transaction, from SYN to the last ACK.
fn connection(client: &mut Host, server: &mut Host, now: &mut Instant, wire: &mut Wire) {
    let remote = SocketAddr::new(SERVER.into(), 80);
    let pool = (PoolId(0), &mut client.memory);
    let conn = client.stack.connect(*now, remote, None, pool).expect("connect");
    let mut open = true;
    while open {
        *now += Duration::from_micros(50);
        let mut frame = [0; 2048];
        while let Some(sent) = client.stack.poll_transmit(*now, &mut frame, &mut client.memory) {
            wire.to_server.push((frame, sent.len));
        }
        measured_turn(server, *now, wire);
        for (frame, len) in wire.to_client.drain(..) {
            client.stack.on_frame(*now, &frame[..len], Received::default(), &mut client.memory);
        }
        while let Some(event) = client.stack.poll_event() {
            match event {
                Event::Connected { .. } => {
                    let chunk = client.memory.chunk_of(&[7; 64]).expect("a buffer");
                    client.stack.send(*now, conn, chunk, &mut client.memory).expect("send");
                    client.stack.receive(*now, conn).expect("receive");
                }
                Event::Received { chunk, .. } => {
                    client.memory.free(chunk.buf);
                    client.stack.receive(*now, conn).expect("receive");
                }
                Event::PeerClosed { .. } => {
                    client.stack.shutdown(*now, conn, &mut client.memory).expect("shutdown");
                }
                Event::Closed { .. } => open = false,
                _ => {}
            }
        }
    }
}

fn connections() {
    let mut now = Instant::from_millis(1);
    let (mut client, mut server) = (Host::new(Ipv4Addr::new(10, 0, 0, 1)), Host::new(SERVER));
    let local = SocketAddr::new(SERVER.into(), 80);
    let listener = server.stack.listen(local, 16, PoolId(0)).expect("listen");
    server.stack.accept(listener, u32::MAX).expect("accept");
    let mut wire = Wire::default();
    for _ in 0..SEGMENTS {
        connection(&mut client, &mut server, &mut now, &mut wire);
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("connections") => connections(),
        _ => segments(),
    }
    println!("{SEGMENTS}");
}

fn segments() {
    let mut now = Instant::from_millis(1);
    let (mut client, mut server) = (Host::new(Ipv4Addr::new(10, 0, 0, 1)), Host::new(SERVER));
    let (there, here) = establish(&mut client, &mut server, now);
    let mut frame = [0; 2048];
    for _ in 0..SEGMENTS {
        now += Duration::from_micros(50);
        server.stack.receive(now, here).expect("receive");
        let chunk = client.memory.chunk_of(&[7; 64]).expect("a buffer");
        client.stack.send(now, there, chunk, &mut client.memory).expect("send");
        let sent = client.stack.poll_transmit(now, &mut frame, &mut client.memory).expect("frame");
        let event = measured(&mut server, now, &frame[..sent.len]);
        let Some(Event::Received { chunk, .. }) = event else { panic!("{event:?}") };
        server.memory.free(chunk.buf);
        // An answer, so that nothing piles up.
        let chunk = server.memory.chunk_of(&[8; 64]).expect("a buffer");
        server.stack.send(now, here, chunk, &mut server.memory).expect("send");
        client.stack.receive(now, there).expect("receive");
        carry(now, &mut server, &mut client);
        while let Some(event) = client.stack.poll_event() {
            if let Event::Received { chunk, .. } = event {
                client.memory.free(chunk.buf);
            }
        }
    }
}
