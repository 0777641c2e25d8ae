//! What leaving costs, in instructions: run it under callgrind.
//!
//! `cargo build --release -p megapipe-stack --example sending_cost`, then
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured*'
//! target/release/examples/sending_cost response 64`; the total, divided by the number that the
//! program prints, is the cost of one. What is counted hangs on the arguments:
//!
//! - `response BYTES`: an answer of so many bytes on Ethernet, from the command to the last call
//!   for a frame, the acknowledgment of the request on it;
//! - `bulk`: a full segment of a long transfer.
//!
//! `segment_cost` counts what arrives.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::{
    Chunk, Config, ConnId, Event, Instant, Medium, Memory, PoolId, Received, Stack,
};

#[path = "memory/buffers.rs"]
mod buffers;

use buffers::Buffers;

const SEGMENTS: usize = 1000;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

const BUF_BYTES: usize = 1 << 16;

type SendBuffers = Buffers<BUF_BYTES>;

struct SendingHost {
    stack: Stack,
    memory: SendBuffers,
}

impl SendingHost {
    /// On Ethernet, next to `peer`.
    fn on_ethernet(ip: Ipv4Addr, peer: Ipv4Addr) -> Self {
        let mac = |ip: Ipv4Addr| [2, 0, 0, 0, 0, ip.octets()[3]];
        let mut config = Config::single(ip, 24, [ip.octets()[3]; 32]);
        config.medium = Medium::Ethernet(mac(ip));
        config.external_neighbours = true;
        let now = Instant::from_millis(1);
        let stack = Stack::new(config, now).expect("a good configuration");
        let mut host = Self { stack, memory: SendBuffers::new(256) };
        host.stack.set_neighbour(now, peer.into(), mac(peer), &mut host.memory);
        host
    }
}

/// All frames of `from` go to `to`.
fn carry(now: Instant, from: &mut SendingHost, to: &mut SendingHost) {
    let mut frame = [0; 2048];
    while let Some(sent) = from.stack.poll_transmit(now, &mut frame, &mut from.memory) {
        to.stack.on_frame(now, &frame[..sent.frame_bytes()], Received::default(), &mut to.memory);
    }
}

fn establish(client: &mut SendingHost, server: &mut SendingHost, now: Instant) -> (ConnId, ConnId) {
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

/// The part that is counted of what leaves: a command, and the frames that it makes.
#[inline(never)]
fn measured_send(
    host: &mut SendingHost,
    now: Instant,
    what: (ConnId, Chunk),
    wire: &mut SentFrames,
) {
    host.stack.send(now, what.0, what.1, &mut host.memory).expect("send");
    transmit(host, now, wire);
}

/// The same without a command.
#[inline(never)]
fn measured_transmit(host: &mut SendingHost, now: Instant, wire: &mut SentFrames) {
    transmit(host, now, wire);
}

/// Not counted by itself: what is counted must not call what is counted.
fn transmit(host: &mut SendingHost, now: Instant, wire: &mut SentFrames) {
    loop {
        let frame = &mut wire.frames[wire.len];
        let Some(sent) = host.stack.poll_transmit(now, &mut frame.0, &mut host.memory) else {
            return;
        };
        frame.1 = sent.frame_bytes();
        wire.len += 1;
    }
}

/// Frames of one turn.
struct SentFrames {
    frames: Vec<([u8; 2048], usize)>,
    len: usize,
}

impl SentFrames {
    fn new() -> Self {
        Self { frames: vec![([0; 2048], 0); 256], len: 0 }
    }

    fn reach(&mut self, host: &mut SendingHost, now: Instant) {
        for (frame, len) in &self.frames[..self.len] {
            host.stack.on_frame(now, &frame[..*len], Received::default(), &mut host.memory);
        }
        self.len = 0;
    }
}

fn take(host: &mut SendingHost, now: Instant) {
    while let Some(event) = host.stack.poll_event() {
        if let Event::Received { conn, chunk } = event {
            host.memory.free(chunk.buf);
            host.stack.receive(now, conn).expect("receive");
        }
    }
}

/// Answers of `len` bytes each, which the client acknowledges with its next request.
fn responses(len: usize) {
    let client_ip = Ipv4Addr::new(10, 0, 0, 1);
    let mut now = Instant::from_millis(1);
    let mut client = SendingHost::on_ethernet(client_ip, SERVER);
    let mut server = SendingHost::on_ethernet(SERVER, client_ip);
    let (there, here) = establish(&mut client, &mut server, now);
    client.stack.receive(now, there).expect("receive");
    server.stack.receive(now, here).expect("receive");
    let mut wire = SentFrames::new();
    for _ in 0..SEGMENTS {
        now += Duration::from_micros(50);
        let chunk = client.memory.chunk_of(&[7; 64]).expect("a buffer");
        client.stack.send(now, there, chunk, &mut client.memory).expect("send");
        carry(now, &mut client, &mut server);
        take(&mut server, now);
        let chunk = server.memory.chunk_of(&vec![8; len]).expect("a buffer");
        measured_send(&mut server, now, (here, chunk), &mut wire);
        wire.reach(&mut client, now);
        take(&mut client, now);
    }
    println!("{SEGMENTS}");
}

/// A long transfer from the server.
fn bulk() {
    let client_ip = Ipv4Addr::new(10, 0, 0, 1);
    let mut now = Instant::from_millis(1);
    let mut client = SendingHost::on_ethernet(client_ip, SERVER);
    let mut server = SendingHost::on_ethernet(SERVER, client_ip);
    let (there, here) = establish(&mut client, &mut server, now);
    client.stack.receive(now, there).expect("receive");
    let mut wire = SentFrames::new();
    let mut segments = 0;
    while segments < 4 * SEGMENTS {
        now += Duration::from_micros(50);
        while server.stack.info(here).expect("info").queued_bytes < 128 << 10 {
            let chunk = server.memory.chunk_of(&[8; BUF_BYTES]).expect("a buffer");
            server.stack.send(now, here, chunk, &mut server.memory).expect("send");
        }
        measured_transmit(&mut server, now, &mut wire);
        segments += wire.len;
        wire.reach(&mut client, now);
        take(&mut client, now);
        carry(now, &mut client, &mut server);
    }
    println!("{segments}");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["response", len] => responses(len.parse().expect("a number of bytes")),
        ["bulk"] => bulk(),
        _ => panic!("response BYTES, or bulk"),
    }
}
