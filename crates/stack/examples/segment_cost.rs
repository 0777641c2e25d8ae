//! What the receive path costs, in instructions: run it under callgrind.
//!
//! `cargo build --release -p megapipe-stack --example segment_cost`, then
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured*'
//! target/release/examples/segment_cost data`; the total, divided by the number that the program
//! prints, is the cost of one. What is counted hangs on the argument:
//!
//! - `requests` (the default): a segment of 64 bytes that acknowledges the answer to the one
//!   before, up to its event;
//! - `data`: a segment of 64 bytes that acknowledges nothing new, up to its event;
//! - `acks`: a segment without text that acknowledges one of 64 bytes;
//! - `answers`: the answer of 64 bytes to such a request, from the command to its frame;
//! - `connections`: all turns of a server in a connection with one transaction;
//! - `resets`: all turns of a server that resets each connection as it accepts it.
//!
//! Further arguments change the headers of the segments: `ipv6`, `plain` (without timestamps).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::{
    BufId, Chunk, Config, ConnId, ConnOption, Event, Instant, Memory, PoolId, Received, Stack,
};

#[path = "memory/buffers.rs"]
mod buffers;

use buffers::Buffers;

const SEGMENTS: usize = 1000;

/// The same buffers behind calls of their own, where callgrind stops counting: they are not the
/// stack's.
struct Outside<'a>(&'a mut Buffers);

impl Memory for Outside<'_> {
    #[inline(never)]
    fn alloc(&mut self, pool: PoolId) -> Option<BufId> {
        self.0.alloc(pool)
    }

    #[inline(never)]
    fn free(&mut self, buf: BufId) {
        self.0.free(buf);
    }

    #[inline(never)]
    fn buf_bytes(&self, buf: BufId) -> u32 {
        self.0.buf_bytes(buf)
    }

    #[inline(never)]
    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        self.0.copy_in(buf, offset, from)
    }

    #[inline(never)]
    fn store(&mut self, pool: PoolId, bytes: &[u8]) -> Option<(BufId, u16)> {
        self.0.store(pool, bytes)
    }

    #[inline(never)]
    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        self.0.copy_out(chunk, to)
    }
}

struct SegmentHost {
    stack: Stack,
    memory: Buffers,
}

/// Which headers the segments have.
#[derive(Clone, Copy)]
struct HeaderLayout {
    ipv6: bool,
    timestamps: bool,
}

impl HeaderLayout {
    fn from_arguments() -> Self {
        let has = |name: &str| std::env::args().skip(2).any(|argument| argument == name);
        Self { ipv6: has("ipv6"), timestamps: !has("plain") }
    }

    fn address(self, last: u8) -> IpAddr {
        if self.ipv6 {
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into()
        } else {
            Ipv4Addr::new(10, 0, 0, last).into()
        }
    }

    fn server(self) -> SocketAddr {
        SocketAddr::new(self.address(2), 80)
    }

    fn hosts(self) -> (SegmentHost, SegmentHost) {
        (SegmentHost::new(self, 1), SegmentHost::new(self, 2))
    }
}

impl SegmentHost {
    fn new(layout: HeaderLayout, last: u8) -> Self {
        let mut config = Config::single(Ipv4Addr::LOCALHOST, 24, [last; 32]);
        config.addresses = vec![(layout.address(last), 24)];
        config.tcp.timestamps = layout.timestamps;
        let stack = Stack::new(config, Instant::from_millis(1)).expect("a good configuration");
        Self { stack, memory: Buffers::new(1024) }
    }
}

/// All frames of `from` go to `to`.
fn carry(now: Instant, from: &mut SegmentHost, to: &mut SegmentHost) {
    let mut frame = [0; 2048];
    while let Some(sent) = from.stack.poll_transmit(now, &mut frame, &mut from.memory) {
        to.stack.on_frame(now, &frame[..sent.frame_bytes()], Received::default(), &mut to.memory);
    }
}

/// The part that is counted: one frame in, its event out.
#[inline(never)]
fn measured(host: &mut SegmentHost, now: Instant, frame: &[u8]) -> Option<Event> {
    let SegmentHost { stack, memory } = host;
    stack.on_frame(now, frame, Received::default(), &mut Outside(memory));
    stack.poll_event()
}

/// The part that is counted of an answer: a command, and its frame; how long that is.
#[inline(never)]
fn measured_answer(
    host: &mut SegmentHost,
    now: Instant,
    (conn, chunk): (ConnId, Chunk),
    frame: &mut [u8],
) -> usize {
    let SegmentHost { stack, memory } = host;
    stack.send(now, conn, chunk, &mut Outside(memory)).expect("send");
    stack.poll_transmit(now, frame, &mut Outside(memory)).expect("a frame").frame_bytes()
}

fn establish(
    client: &mut SegmentHost,
    server: &mut SegmentHost,
    now: Instant,
    local: SocketAddr,
) -> (ConnId, ConnId) {
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

/// What a server does about a connection.
#[derive(Clone, Copy)]
enum ServedRequest {
    /// Echoes one chunk, and closes.
    Echo,
    /// Resets it at once.
    Reset,
}

/// The part that is counted for a whole connection: a turn of the server. Frames in, events and
/// what the server does about them, frames out.
#[inline(never)]
fn measured_poll(
    host: &mut SegmentHost,
    now: Instant,
    wire: &mut MeasuredWire,
    service: ServedRequest,
) {
    for frame in wire.to_server.frames() {
        host.stack.on_frame(now, frame, Received::default(), &mut host.memory);
    }
    while let Some(event) = host.stack.poll_event() {
        match event {
            Event::Incoming { conn, .. } => match service {
                ServedRequest::Echo => host.stack.receive(now, conn).expect("receive"),
                ServedRequest::Reset => {
                    host.stack.abort(now, conn, &mut host.memory).expect("abort")
                }
            },
            // The chunk is sent back as it came, and the connection closed.
            Event::Received { conn, chunk } => {
                host.stack.send(now, conn, chunk, &mut host.memory).expect("send");
                host.stack.close(now, conn, &mut host.memory).expect("close");
            }
            _ => {}
        }
    }
    wire.to_client.fill(now, host);
}

/// Frames between the two.
#[derive(Default)]
struct MeasuredWire {
    to_server: FrameBurst,
    to_client: FrameBurst,
}

/// Frames that go one way, in memory that is there before.
struct FrameBurst {
    frames: Box<[([u8; 2048], usize); 8]>,
    count: usize,
}

impl Default for FrameBurst {
    fn default() -> Self {
        Self { frames: Box::new([([0; 2048], 0); 8]), count: 0 }
    }
}

impl FrameBurst {
    /// All that `host` wants to send.
    fn fill(&mut self, now: Instant, host: &mut SegmentHost) {
        self.count = 0;
        for (frame, len) in self.frames.iter_mut() {
            let Some(sent) = host.stack.poll_transmit(now, frame, &mut host.memory) else { return };
            *len = sent.frame_bytes();
            self.count += 1;
        }
        panic!("more frames than a turn of one connection has");
    }

    fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames[..self.count].iter().map(|(frame, len)| &frame[..*len])
    }
}

/// One connection to `remote`, from SYN to the end.
fn connection(
    (client, server): (&mut SegmentHost, &mut SegmentHost),
    remote: SocketAddr,
    now: &mut Instant,
    wire: &mut MeasuredWire,
    service: ServedRequest,
) {
    let pool = (PoolId(0), &mut client.memory);
    let conn = client.stack.connect(*now, remote, None, pool).expect("connect");
    let mut open = true;
    while open {
        *now += Duration::from_micros(50);
        wire.to_server.fill(*now, client);
        measured_poll(server, *now, wire, service);
        for frame in wire.to_client.frames() {
            client.stack.on_frame(*now, frame, Received::default(), &mut client.memory);
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

fn connections(service: ServedRequest) {
    let mut now = Instant::from_millis(1);
    let layout = HeaderLayout::from_arguments();
    let ((mut client, mut server), local) = (layout.hosts(), layout.server());
    let listener = server.stack.listen(local, 16, PoolId(0)).expect("listen");
    server.stack.accept(listener, u32::MAX).expect("accept");
    let mut wire = MeasuredWire::default();
    for _ in 0..SEGMENTS {
        connection((&mut client, &mut server), local, &mut now, &mut wire, service);
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("connections") => connections(ServedRequest::Echo),
        Some("resets") => connections(ServedRequest::Reset),
        Some("data") => data(),
        Some("acks") => acks(),
        Some("answers") => answers(),
        Some("requests") | None => requests(),
        Some(other) => panic!("nothing is called {other}"),
    }
    println!("{SEGMENTS}");
}

/// Both hosts and their connection.
struct Scene {
    now: Instant,
    client: SegmentHost,
    server: SegmentHost,
    there: ConnId,
    here: ConnId,
}

impl Scene {
    fn new() -> Self {
        let now = Instant::from_millis(1);
        let layout = HeaderLayout::from_arguments();
        let (mut client, mut server) = layout.hosts();
        let (there, here) = establish(&mut client, &mut server, now, layout.server());
        Self { now, client, server, there, here }
    }

    /// The client's next frame, with 64 bytes.
    fn request(&mut self, frame: &mut [u8]) -> usize {
        let Self { client, now, there, .. } = self;
        let chunk = client.memory.chunk_of(&[7; 64]).expect("a buffer");
        client.stack.send(*now, *there, chunk, &mut client.memory).expect("send");
        client.stack.poll_transmit(*now, frame, &mut client.memory).expect("frame").frame_bytes()
    }

    /// The server sends 64 bytes, and the client reads them.
    fn answer(&mut self) {
        let Self { client, server, now, there, here } = self;
        let chunk = server.memory.chunk_of(&[8; 64]).expect("a buffer");
        server.stack.send(*now, *here, chunk, &mut server.memory).expect("send");
        client.stack.receive(*now, *there).expect("receive");
        carry(*now, server, client);
        while let Some(event) = client.stack.poll_event() {
            if let Event::Received { chunk, .. } = event {
                client.memory.free(chunk.buf);
            }
        }
    }

    /// A frame with 64 bytes arrives, and is read.
    fn arrive(&mut self, frame: &[u8]) {
        self.server.stack.receive(self.now, self.here).expect("receive");
        let event = measured(&mut self.server, self.now, frame);
        let Some(Event::Received { chunk, .. }) = event else { panic!("{event:?}") };
        self.server.memory.free(chunk.buf);
    }
}

fn requests() {
    let mut scene = Scene::new();
    let mut frame = [0; 2048];
    for _ in 0..SEGMENTS {
        scene.now += Duration::from_micros(50);
        let len = scene.request(&mut frame);
        scene.arrive(&frame[..len]);
        scene.answer();
    }
}

fn answers() {
    let mut scene = Scene::new();
    let mut frame = [0; 2048];
    for _ in 0..SEGMENTS {
        scene.now += Duration::from_micros(50);
        let len = scene.request(&mut frame);
        let Scene { server, client, here, there, now } = &mut scene;
        server.stack.receive(*now, *here).expect("receive");
        server.stack.on_frame(*now, &frame[..len], Received::default(), &mut server.memory);
        let Some(Event::Received { chunk, .. }) = server.stack.poll_event() else {
            panic!("no request");
        };
        let len = measured_answer(server, *now, (*here, chunk), &mut frame);
        client.stack.receive(*now, *there).expect("receive");
        client.stack.on_frame(*now, &frame[..len], Received::default(), &mut client.memory);
        let Some(Event::Received { chunk, .. }) = client.stack.poll_event() else {
            panic!("no answer");
        };
        client.memory.free(chunk.buf);
    }
}

fn data() {
    let mut scene = Scene::new();
    let mut frame = [0; 2048];
    for _ in 0..SEGMENTS {
        scene.now += Duration::from_micros(50);
        let len = scene.request(&mut frame);
        scene.arrive(&frame[..len]);
        // The server's ACKs, so that nothing piles up.
        let option = ConnOption::QuickAck(true);
        let Scene { server, client, here, now, .. } = &mut scene;
        server.stack.set_option(*now, *here, option, &mut server.memory).expect("an option");
        carry(*now, server, client);
    }
}

fn acks() {
    let mut scene = Scene::new();
    let mut frame = [0; 2048];
    for _ in 0..SEGMENTS {
        scene.now += Duration::from_micros(50);
        scene.answer();
        let option = ConnOption::QuickAck(true);
        let Scene { server, client, there, now, .. } = &mut scene;
        client.stack.set_option(*now, *there, option, &mut client.memory).expect("an option");
        let sent = client.stack.poll_transmit(*now, &mut frame, &mut client.memory);
        let len = sent.expect("an ACK").frame_bytes();
        assert_eq!(measured(server, *now, &frame[..len]), None);
    }
}
