//! Two hosts, each with its TCP and IP, and a wire between them.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use super::*;
use crate::context::StackBase;
use crate::counters::Counters;
use crate::event::Event;
use crate::frame::Transmit;
use crate::heap::HeapMemory;
use crate::id::{ListenerId, PoolId};
use crate::ip::Ip;
use crate::wire::{Protocol, ipv4};

mod anything;
mod awaited;
mod exchange;
mod fast_open;
mod handover;
mod holding;
mod listener_groups;
mod peer;
mod requirements;
mod segments;

/// One end.
pub(super) struct Host {
    pub(super) tcp: Tcp,
    pub(super) base: StackBase,
    pub(super) memory: HeapMemory,
    pub(super) received: Vec<u8>,
    pub(super) events: Vec<Event>,
}

impl Host {
    pub(super) fn new(last: u8, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::single(Ipv4Addr::new(10, 0, 0, last), 24, [last; 32]);
        config.connections = 64;
        config.time_waits = 8;
        change(&mut config);
        Self {
            tcp: Tcp::new(&config, Instant::ZERO),
            base: StackBase {
                ip: Ip::new(&config, Instant::ZERO).unwrap(),
                config,
                counters: Counters::default(),
            },
            memory: HeapMemory::new(4096, 2048),
            received: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn with<R>(
        &mut self,
        now: Instant,
        f: impl FnOnce(&mut Tcp, &mut Context<'_, HeapMemory>) -> R,
    ) -> R {
        let Self { tcp, base, memory, .. } = self;
        f(tcp, &mut Context { now, memory, base })
    }

    pub(super) fn frame(&mut self, now: Instant) -> Option<(Vec<u8>, Transmit)> {
        let mut frame = vec![0; self.base.config.tx_frame_bytes as usize];
        let transmit = self.with(now, |tcp, context| tcp.poll_transmit(context, &mut frame))?;
        frame.truncate(transmit.frame_bytes());
        Some((frame, transmit))
    }

    pub(super) fn take(&mut self, now: Instant, frame: &[u8]) {
        let view = ipv4::View::new(frame).unwrap();
        let repr = ipv4::Repr::parse(&view).unwrap();
        assert_eq!(repr.protocol, Protocol::Tcp.number());
        let arrived = Arrived {
            src: IpAddr::V4(repr.src),
            dst: IpAddr::V4(repr.dst),
            ecn: repr.ecn,
            traffic_class: 0,
            hop_limit: 64,
            payload: view.payload(),
            checksums: crate::frame::Checksums::Unverified,
            segment_bytes: 0,
        };
        self.with(now, |tcp, context| tcp.on_segment(context, &arrived));
    }

    /// Takes all events; bytes are kept and asked for again.
    pub(super) fn collect(&mut self, now: Instant) {
        while let Some(event) = self.tcp.poll_event(now) {
            if let Event::Received { conn, chunk } = event {
                self.received.extend_from_slice(self.memory.bytes(chunk));
                self.memory.free(chunk.buf);
                let _ = self.tcp.receive(conn);
            }
            self.events.push(event);
        }
    }

    pub(super) fn send(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) -> bool {
        let Some(chunk) = self.memory.chunk_of(bytes) else { return false };
        let sent = self.with(now, |tcp, context| tcp.send(context, conn, chunk));
        if sent.is_err() {
            self.memory.free(chunk.buf);
        }
        sent.is_ok()
    }

    /// A listener is of a group without limits, so that the invariants of groups are checked.
    pub(super) fn join_group(&mut self, id: ListenerId) {
        let limits = ListenerGroupLimits { waiting: u32::MAX, connections: u32::MAX };
        let group = self.tcp.listener_groups().open(limits).unwrap();
        self.tcp.set_listener_group(id, group).unwrap();
    }

    pub(super) fn conn(&self, id: ConnId) -> &Connection {
        self.tcp.connection(id.index)
    }
}

/// Says whether a frame (to `b`?) is lost.
pub(super) type Lose = Box<dyn FnMut(bool, &[u8]) -> bool>;

/// Two hosts, and time.
pub(super) struct Pair {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) now: Instant,
    /// Frames on their way: when they arrive, to `b`?, and bytes.
    wire: Vec<(Instant, bool, Vec<u8>)>,
    pub(super) delay: Duration,
    /// Whether the frame of this number is lost.
    pub(super) lose: Lose,
    pub(super) frames: u64,
}

pub(super) const PORT: u16 = 80;

impl Pair {
    pub(super) fn new(change: impl Fn(&mut Config)) -> Self {
        Self {
            a: Host::new(1, &change),
            b: Host::new(2, &change),
            now: Instant::from_millis(1000),
            wire: Vec::new(),
            delay: Duration::from_millis(5),
            lose: Box::new(|_, _| false),
            frames: 0,
        }
    }

    pub(super) fn listen(&mut self) -> ListenerId {
        let local = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), PORT);
        let id = self
            .b
            .with(self.now, |tcp, context| tcp.listen(&context.base.ip, local, 8, PoolId(0)))
            .unwrap();
        self.b.join_group(id);
        self.b.tcp.accept(id, 100).unwrap();
        id
    }

    pub(super) fn connect(&mut self) -> ConnId {
        let remote = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), PORT);
        self.a
            .with(self.now, |tcp, context| tcp.connect(context, remote, None, PoolId(0), &|_| true))
            .unwrap()
    }

    /// Both hosts send what they have.
    pub(super) fn flush(&mut self) {
        for to_b in [true, false] {
            let host = if to_b { &mut self.a } else { &mut self.b };
            while let Some((frame, _)) = host.frame(self.now) {
                self.frames += 1;
                assert!(self.frames < 200_000, "frames for ever");
                if !(self.lose)(to_b, &frame) {
                    self.wire.push((self.now + self.delay, to_b, frame));
                }
            }
        }
    }

    /// Goes on until `for_ms` have passed, or nothing is left to wait for.
    pub(super) fn run(&mut self, for_ms: u64) {
        self.go_on(for_ms, true);
    }

    /// The same, while neither application does anything.
    pub(super) fn run_without_readers(&mut self, for_ms: u64) {
        self.go_on(for_ms, false);
    }

    fn go_on(&mut self, for_ms: u64, collect: bool) {
        let end = self.now + Duration::from_millis(for_ms);
        loop {
            if collect {
                self.a.collect(self.now);
                self.b.collect(self.now);
            }
            self.flush();
            self.a.tcp.check_invariants();
            self.b.tcp.check_invariants();
            let frame = self.wire.iter().map(|(at, ..)| *at).min();
            let timers = [self.a.tcp.poll_timeout(), self.b.tcp.poll_timeout()];
            let next = timers.iter().flatten().copied().chain(frame).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.a.with(self.now, |tcp, context| tcp.on_timeout(context));
            self.b.with(self.now, |tcp, context| tcp.on_timeout(context));
            let wire = core::mem::take(&mut self.wire);
            for (at, to_b, frame) in wire {
                if at > self.now {
                    self.wire.push((at, to_b, frame));
                } else if to_b {
                    self.b.take(self.now, &frame);
                } else {
                    self.a.take(self.now, &frame);
                }
            }
        }
        self.now = self.now.max(end);
    }

    /// An established connection: its ids at both ends, both with credit.
    pub(super) fn establish(&mut self) -> (ConnId, ConnId) {
        self.listen();
        let a = self.connect();
        self.run(100);
        assert!(self.a.events.contains(&Event::Connected { conn: a }), "{:?}", self.a.events);
        let b = self.b.events.iter().find_map(|event| match event {
            Event::Incoming { conn, .. } => Some(*conn),
            _ => None,
        });
        let b = b.expect("incoming");
        self.a.tcp.receive(a).unwrap();
        self.b.tcp.receive(b).unwrap();
        (a, b)
    }
}
