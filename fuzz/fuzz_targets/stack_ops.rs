//! Two stacks with live connections, whatever their applications, the wire between them and time
//! do: nothing panics, nothing spins, every invariant holds between any two calls, what arrives is
//! what was sent, and at the end every buffer has been given back.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::{Ecn, Protocol, checksum, icmp4, ipv4, tcp};
use megapipe_stack::{
    Checksums, Config, ConnId, Event, HeapMemory, Instant, ListenerId, Memory, PoolId, Received,
    SeqNum, Stack, SynCookies,
};

/// More frames in one turn than any two windows hold.
const FRAMES_MAX: usize = 20_000;
const BUFS: u32 = 512;
const PORT: u16 = 80;

#[derive(Debug, Arbitrary)]
struct Setup {
    window_scaling: bool,
    timestamps: bool,
    sack: bool,
    rack: bool,
    ecn: bool,
    nagle: bool,
    small_buffers: bool,
    few_buffers: bool,
    keepalive: bool,
    cookies: bool,
    ops: Vec<StackOp>,
}

#[derive(Debug, Arbitrary)]
enum StackOp {
    Connect,
    Accept(u8),
    Send {
        conn: u8,
        bytes: u16,
    },
    Receive {
        conn: u8,
    },
    AwaitAcks {
        conn: u8,
    },
    Shutdown {
        conn: u8,
    },
    Close {
        conn: u8,
    },
    Abort {
        conn: u8,
    },
    /// The first few frames of one side arrive, in order.
    Deliver {
        from_server: bool,
        count: u8,
    },
    Lose {
        from_server: bool,
        at: u8,
    },
    Double {
        from_server: bool,
        at: u8,
    },
    Swap {
        from_server: bool,
        at: u8,
    },
    Corrupt {
        from_server: bool,
        at: u8,
        offset: u16,
        byte: u8,
    },
    /// A segment with numbers near those of a recorded one, as from an attacker on the path.
    Forge {
        from_server: bool,
        at: u8,
        forgery: Forgery,
    },
    Raw {
        to_server: bool,
        bytes: Vec<u8>,
    },
    /// A router complains about a frame that was seen.
    Complain {
        from_server: bool,
        at: u8,
        kind: u8,
        code: u8,
        mtu: u16,
    },
    Pass {
        ms: u16,
    },
    Rest {
        s: u8,
    },
}

#[derive(Debug, Arbitrary)]
struct Forgery {
    flags: u8,
    seq: i16,
    ack: i16,
    far: bool,
    window: u16,
    urgent: u16,
    options: Vec<u8>,
    payload: u8,
}

/// One side: its stack, its memory, what its application has.
struct Side {
    stack: Stack,
    memory: HeapMemory,
    listener: Option<ListenerId>,
    conns: Vec<ConnId>,
    /// Whether every frame came from the other side, so that received bytes are known.
    has_known_senders: bool,
    /// Frames on their way to the other side.
    wire: Vec<Vec<u8>>,
}

impl Side {
    fn new(last: u8, setup: &Setup) -> Self {
        let mut config = Config::single(Ipv4Addr::new(10, 0, 0, last), 24, [last; 32]);
        config.connections = 8;
        config.time_waits = 4;
        config.datagram_endpoints = 0;
        config.tcp.window_scaling = setup.window_scaling;
        config.tcp.timestamps = setup.timestamps;
        config.tcp.sack = setup.sack;
        config.tcp.rack = setup.rack;
        config.tcp.ecn = setup.ecn;
        config.tcp.nagle = setup.nagle;
        config.tcp.syn_backlog = 4;
        if setup.cookies {
            config.tcp.syn_cookies = SynCookies::Always;
        }
        if setup.small_buffers {
            config.tcp.receive_buffer = 2000;
            config.tcp.receive_buffer_max = 4000;
            config.tcp.send_buffer = 3000;
            config.tcp.send_buffer_max = 5000;
        }
        if setup.keepalive {
            config.tcp.keepalive_idle = Some(Duration::from_secs(10));
            config.tcp.keepalive_interval = Duration::from_secs(2);
        }
        let stack = Stack::new(config, Instant::from_millis(1)).expect("the settings are right");
        let memory = HeapMemory::new(if setup.few_buffers { 6 } else { BUFS }, 2048);
        Self {
            stack,
            memory,
            listener: None,
            conns: Vec::new(),
            has_known_senders: true,
            wire: Vec::new(),
        }
    }

    fn conn(&self, index: u8) -> Option<ConnId> {
        self.conns.get(usize::from(index) % self.conns.len().max(1)).copied()
    }

    /// Takes events, and puts what is to be sent on the wire.
    fn poll(&mut self, now: Instant) {
        let mut count = 0;
        while let Some(event) = self.stack.poll_event() {
            count += 1;
            assert!(count < FRAMES_MAX, "events without end");
            match event {
                Event::Incoming { conn, .. } | Event::Connected { conn } => self.conns.push(conn),
                Event::Received { chunk, .. } => {
                    let bytes = self.memory.bytes(chunk);
                    assert!(!self.has_known_senders || is_sent(bytes), "unknown bytes");
                    self.memory.free(chunk.buf);
                }
                Event::Closed { conn, .. } => self.conns.retain(|other| *other != conn),
                _ => {}
            }
        }
        let mut frame = [0; 1514];
        while let Some(sent) = self.stack.poll_transmit(now, &mut frame, &mut self.memory) {
            self.wire.push(frame[..sent.frame_bytes()].to_vec());
            count += 1;
            assert!(count < FRAMES_MAX, "frames without end");
        }
        self.stack.check_invariants();
    }
}

/// Applications send one letter; what was forged carries another, and may be read, too.
fn is_sent(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'a' | b'F'))
}

/// A segment that continues `frame`, altered by `forgery`.
fn forge(frame: &[u8], forgery: &Forgery) -> Option<Vec<u8>> {
    let seen_packet = ipv4::View::new(frame).ok()?;
    let seen = tcp::Repr::parse(&tcp::View::new(seen_packet.payload()).ok()?);
    let near = |base: SeqNum, by: i16| {
        let by = i32::from(by) * if forgery.far { 60_000 } else { 1 };
        SeqNum(base.0.wrapping_add_signed(by))
    };
    let mut options = forgery.options.clone();
    options.truncate(tcp::OPTIONS_BYTES_MAX);
    options.resize(options.len().next_multiple_of(4), 0);
    let mut segment = vec![0; tcp::HEADER_BYTES];
    let header = tcp::Repr {
        src_port: seen.src_port,
        dst_port: seen.dst_port,
        seq: near(seen.seq, forgery.seq),
        ack: near(seen.ack, forgery.ack),
        flags: tcp::Flags(forgery.flags),
        window: forgery.window,
        urgent: forgery.urgent,
        ..tcp::Repr::default()
    };
    header.emit(&mut segment);
    segment[12] = (((tcp::HEADER_BYTES + options.len()) / 4) << 4) as u8;
    segment.extend(&options);
    segment.extend(std::iter::repeat_n(b'F', forgery.payload.into()));
    let (src, dst) = (IpAddr::V4(seen_packet.src()), IpAddr::V4(seen_packet.dst()));
    let pseudo_header = checksum::pseudo_header(src, dst, 6, segment.len());
    let sum = checksum::combine(pseudo_header, checksum::sum(&segment));
    tcp::write_checksum(&mut segment, sum);
    Some(packet((seen_packet.src(), seen_packet.dst()), Protocol::Tcp, &segment))
}

/// An ICMP error about `frame`, for its sender.
fn complain(frame: &[u8], kind: u8, code: u8, mtu: u16) -> Option<Vec<u8>> {
    let about = ipv4::View::new(frame).ok()?;
    let quoted = &frame[..frame.len().min(60)];
    let mut message = vec![0; icmp4::HEADER_BYTES];
    message.extend(quoted);
    let header = match kind % 4 {
        0 => icmp4::Repr::Unreachable { code: icmp4::CODE_FRAGMENTATION_NEEDED, mtu },
        1 => icmp4::Repr::Unreachable { code: code % 16, mtu: 0 },
        2 => icmp4::Repr::TimeExceeded { code },
        _ => icmp4::Repr::ParameterProblem { code, pointer: 9 },
    };
    header.emit(&mut message);
    let router = Ipv4Addr::new(10, 0, 0, 99);
    Some(packet((router, about.src()), Protocol::Icmp, &message))
}

/// A packet between these two.
fn packet((src, dst): (Ipv4Addr, Ipv4Addr), protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Repr {
        src,
        dst,
        protocol: protocol.number(),
        ttl: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        payload_bytes: payload.len(),
    };
    let mut frame = vec![0; ipv4::HEADER_BYTES];
    header.emit(&mut frame);
    frame.extend(payload);
    frame
}

/// Both sides, and time.
struct World {
    client: Side,
    server: Side,
    now: Instant,
}

impl World {
    fn side(&mut self, is_server: bool) -> (&mut Side, &mut Side) {
        let Self { client, server, .. } = self;
        if is_server { (server, client) } else { (client, server) }
    }

    /// The place of a frame on one side's wire.
    fn place(&mut self, from_server: bool, at: u8) -> Option<usize> {
        let len = self.side(from_server).0.wire.len();
        (len > 0).then(|| usize::from(at) % len)
    }

    fn give(&mut self, to_server: bool, frame: &[u8]) {
        let now = self.now;
        let to = self.side(to_server).0;
        let received = Received { checksums: Checksums::Unverified, segment_bytes: 0 };
        to.stack.on_frame(now, frame, received, &mut to.memory);
        to.poll(now);
    }

    fn deliver(&mut self, from_server: bool, count: usize) {
        let wire = &mut self.side(from_server).0.wire;
        let frames: Vec<_> = wire.drain(..count.min(wire.len())).collect();
        for frame in frames {
            self.give(!from_server, &frame);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..FRAMES_MAX {
            let timers = [self.client.stack.poll_timeout(), self.server.stack.poll_timeout()];
            let Some(next) = timers.into_iter().flatten().min().filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            let now = self.now;
            for side in [&mut self.client, &mut self.server] {
                side.stack.on_timeout(now, &mut side.memory);
                side.poll(now);
            }
        }
        panic!("timers without end");
    }

    fn command(&mut self, op: &StackOp) {
        let now = self.now;
        let server_address = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), PORT);
        for side in [&mut self.client, &mut self.server] {
            match op {
                StackOp::Connect if side.listener.is_none() => {
                    let pool = (PoolId(0), &mut side.memory);
                    let _ = side.stack.connect(now, server_address, None, pool);
                }
                StackOp::Accept(credit) => {
                    if let Some(listener) = side.listener {
                        let _ = side.stack.accept(listener, (*credit).into());
                    }
                }
                StackOp::Send { conn, bytes } => {
                    let Some(conn) = side.conn(*conn) else { continue };
                    let bytes = vec![b'a'; usize::from(*bytes % 2048).max(1)];
                    let Some(chunk) = side.memory.chunk_of(&bytes) else { continue };
                    if side.stack.send(now, conn, chunk, &mut side.memory).is_err() {
                        side.memory.free(chunk.buf);
                    }
                }
                StackOp::Receive { conn } => {
                    let Some(conn) = side.conn(*conn) else { continue };
                    let _ = side.stack.receive(now, conn);
                }
                StackOp::AwaitAcks { conn } => {
                    let Some(conn) = side.conn(*conn) else { continue };
                    let _ = side.stack.await_acks(conn);
                }
                StackOp::Shutdown { conn } => {
                    let Some(conn) = side.conn(*conn) else { continue };
                    let _ = side.stack.shutdown(now, conn, &mut side.memory);
                }
                StackOp::Close { conn } => {
                    let Some(conn) = side.conn(*conn) else { continue };
                    let _ = side.stack.close(now, conn, &mut side.memory);
                    side.conns.retain(|other| *other != conn);
                }
                StackOp::Abort { conn } => {
                    let Some(conn) = side.conn(*conn) else { continue };
                    let _ = side.stack.abort(now, conn, &mut side.memory);
                    side.conns.retain(|other| *other != conn);
                }
                _ => {}
            }
            side.poll(now);
        }
    }

    fn step(&mut self, op: StackOp) {
        match op {
            StackOp::Deliver { from_server, count } => self.deliver(from_server, count.into()),
            StackOp::Lose { from_server, at } => {
                if let Some(at) = self.place(from_server, at) {
                    self.side(from_server).0.wire.remove(at);
                }
            }
            StackOp::Double { from_server, at } => {
                if let Some(at) = self.place(from_server, at) {
                    let frame = self.side(from_server).0.wire[at].clone();
                    self.give(!from_server, &frame);
                }
            }
            StackOp::Swap { from_server, at } => {
                if let Some(at) = self.place(from_server, at) {
                    self.side(from_server).0.wire.swap(0, at);
                }
            }
            StackOp::Corrupt { from_server, at, offset, byte } => {
                if let Some(at) = self.place(from_server, at) {
                    let mut frame = self.side(from_server).0.wire.remove(at);
                    let offset = usize::from(offset) % frame.len();
                    frame[offset] ^= byte;
                    self.give(!from_server, &frame);
                }
            }
            StackOp::Forge { from_server, at, forgery } => {
                if let Some(at) = self.place(from_server, at) {
                    let seen = self.side(from_server).0.wire[at].clone();
                    if let Some(frame) = forge(&seen, &forgery) {
                        self.give(!from_server, &frame);
                    }
                }
            }
            StackOp::Raw { to_server, bytes } => {
                self.side(to_server).0.has_known_senders = false;
                self.give(to_server, &bytes);
            }
            StackOp::Complain { from_server, at, kind, code, mtu } => {
                if let Some(at) = self.place(from_server, at) {
                    let seen = self.side(from_server).0.wire[at].clone();
                    if let Some(frame) = complain(&seen, kind, code, mtu) {
                        self.give(from_server, &frame);
                    }
                }
            }
            StackOp::Pass { ms } => self.pass(Duration::from_millis(ms.into())),
            StackOp::Rest { s } => self.pass(Duration::from_secs(s.into())),
            command => self.command(&command),
        }
    }

    /// Closes everything and checks that no state is left.
    fn end(&mut self) {
        let now = self.now;
        for side in [&mut self.client, &mut self.server] {
            if let Some(listener) = side.listener.take() {
                side.stack.unlisten(now, listener, &mut side.memory).expect("it is open");
            }
            for conn in core::mem::take(&mut side.conns) {
                let _ = side.stack.abort(now, conn, &mut side.memory);
            }
            side.poll(now);
            // Connections that were being established at the close.
            for conn in core::mem::take(&mut side.conns) {
                let _ = side.stack.abort(now, conn, &mut side.memory);
            }
            side.poll(now);
        }
        // Connections being opened or closed time out: the peer no longer answers.
        for _ in 0..4 {
            self.pass(Duration::from_secs(3600));
            let now = self.now;
            for side in [&mut self.client, &mut self.server] {
                for conn in core::mem::take(&mut side.conns) {
                    let _ = side.stack.abort(now, conn, &mut side.memory);
                }
                side.poll(now);
                side.wire.clear();
            }
        }
        for side in [&self.client, &self.server] {
            assert_eq!(side.memory.in_use(), 0, "leaked buffers");
            assert_eq!(side.stack.poll_timeout(), None, "something still waits");
        }
    }
}

fuzz_target!(|setup: Setup| {
    let mut world = World {
        client: Side::new(2, &setup),
        server: Side::new(1, &setup),
        now: Instant::from_millis(1),
    };
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
    let listener = world.server.stack.listen(any, 4, PoolId(0)).expect("the port is free");
    world.server.stack.accept(listener, 1).expect("it was just made");
    world.server.listener = Some(listener);
    // One connection to begin with.
    world.step(StackOp::Connect);
    world.deliver(false, 1);
    world.deliver(true, 1);
    world.deliver(false, 1);
    for op in setup.ops.into_iter().take(200) {
        world.step(op);
    }
    world.end();
});
