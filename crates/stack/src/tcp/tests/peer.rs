//! A host, and a scripted peer.
//!
//! Numbers are relative, as in packet scripts: the peer's count from its SYN, the host's from its
//! own.

use super::*;
use crate::seq::SeqNum;
use crate::wire::tcp::{Flags, Options, Repr, SackBlock, Timestamps, View};
use crate::wire::{Ecn, checksum};

pub(super) const S: Flags = Flags::SYN;
pub(super) const F: Flags = Flags::FIN;
pub(super) const R: Flags = Flags::RST;
pub(super) const P: Flags = Flags::PSH;
pub(super) const A: Flags = Flags::ACK;
pub(super) const U: Flags = Flags::URG;

const PEER_ISS: SeqNum = SeqNum(4_000_000_000);

/// A segment of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Out {
    pub(super) flags: Flags,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) len: usize,
    pub(super) window: u16,
    pub(super) urgent: u16,
    pub(super) options: Options,
    pub(super) ecn: Ecn,
    pub(super) transmit: Transmit,
    pub(super) src: IpAddr,
}

impl Out {
    /// Flags, sequence number, acknowledgment, length: what most tests ask for.
    pub(super) fn core(&self) -> (u8, u32, u32, usize) {
        (self.flags.0, self.seq, self.ack, self.len)
    }

    /// SACK blocks, relative to the peer's SYN.
    pub(super) fn sack(&self) -> Vec<(u32, u32)> {
        let relative = |block: &SackBlock| (block.start.since(PEER_ISS), block.end.since(PEER_ISS));
        self.options.sack().iter().map(relative).collect()
    }
}

/// The host, and what the peer needs to remember.
pub(super) struct Peer {
    pub(super) host: Host,
    pub(super) now: Instant,
    pub(super) local: (IpAddr, u16),
    pub(super) remote: (IpAddr, u16),
    pub(super) iss: SeqNum,
    pub(super) window: u16,
    pub(super) ecn: Ecn,
    /// The peer's clock, if it uses timestamps, and the host's last.
    pub(super) clock: Option<u32>,
    pub(super) host_clock: u32,
    pub(super) options: Options,
    pub(super) urgent: u16,
    /// What the path adds to the checksums of the peer.
    pub(super) damage: u16,
}

/// What most peers offer: nothing but an MSS.
pub(super) fn plain() -> Options {
    Options { mss: Some(1000), ..Options::default() }
}

impl Peer {
    pub(super) fn new(change: impl FnOnce(&mut Config)) -> Self {
        let host = Host::new(1, change);
        Self {
            host,
            now: Instant::from_millis(1000),
            local: (Ipv4Addr::new(10, 0, 0, 1).into(), PORT),
            remote: (Ipv4Addr::new(10, 0, 0, 2).into(), 5555),
            iss: SeqNum(0),
            window: 60_000,
            ecn: Ecn::NotEct,
            clock: None,
            host_clock: 0,
            options: Options::default(),
            urgent: 0,
            damage: 0,
        }
    }

    pub(super) fn listen(&mut self) -> ListenerId {
        let local = SocketAddr::new(self.local.0, self.local.1);
        let listen = |tcp: &mut Tcp, context: &mut Context<'_, HeapMemory>| {
            tcp.listen(&context.base.ip, local, 4, PoolId(0))
        };
        let id = self.host.with(self.now, listen).unwrap();
        self.host.join_group(id);
        self.host.tcp.accept(id, 100).unwrap();
        id
    }

    /// A connection that the peer opened with these options in its SYN.
    pub(super) fn accepted(change: impl FnOnce(&mut Config), syn: Options) -> (Self, ConnId) {
        let mut peer = Self::new(change);
        peer.listen();
        peer.open(syn);
        let conn = peer.incoming().expect("incoming");
        (peer, conn)
    }

    /// The peer's handshake; its last ACK is sent.
    pub(super) fn open(&mut self, syn: Options) {
        self.clock = syn.timestamps.map(|times| times.value);
        self.options = syn;
        self.inject(S, 0, 0, &[]);
        self.options = Options::default();
        let out = self.out();
        assert_eq!(out.len(), 1, "{out:?}");
        assert!(out[0].flags.contains(S | A), "{out:?}");
        self.inject(A, 1, 1, &[]);
    }

    pub(super) fn incoming(&mut self) -> Option<ConnId> {
        self.host.collect(self.now);
        let conn = self.host.events.iter().find_map(|event| match event {
            Event::Incoming { conn, .. } => Some(*conn),
            _ => None,
        })?;
        self.host.tcp.receive(conn).unwrap();
        Some(conn)
    }

    /// The peer sends a segment.
    pub(super) fn inject(&mut self, flags: Flags, seq: u32, ack: u32, payload: &[u8]) {
        let mut options = self.options;
        if let Some(value) = self.clock {
            options.timestamps = Some(Timestamps { value, echo: self.host_clock });
        }
        let has_ack = flags.contains(A);
        let head = Repr {
            src_port: self.remote.1,
            dst_port: self.local.1,
            seq: PEER_ISS + seq,
            ack: if has_ack { self.iss + ack } else { SeqNum(0) },
            flags,
            window: self.window,
            urgent: self.urgent,
            options,
        };
        let mut bytes = vec![0; head.header_bytes()];
        let mut sum = head.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        let len = bytes.len();
        let pseudo = checksum::pseudo_header(self.remote.0, self.local.0, 6, len);
        sum = checksum::combine(checksum::combine(sum, pseudo), checksum::sum(payload));
        crate::wire::tcp::write_checksum(&mut bytes, checksum::combine(sum, self.damage));
        let arrived = Arrived {
            src: self.remote.0,
            dst: self.local.0,
            ecn: self.ecn,
            traffic_class: 0,
            hop_limit: 64,
            payload: &bytes,
            checksums: crate::frame::Checksums::Unverified,
            segment_bytes: 0,
        };
        self.host.with(self.now, |tcp, context| tcp.on_segment(context, &arrived));
        self.host.tcp.check_invariants();
    }

    /// All that the host sends now.
    pub(super) fn out(&mut self) -> Vec<Out> {
        let mut all = Vec::new();
        while let Some((frame, transmit)) = self.host.frame(self.now) {
            let packet = ipv4::View::new(&frame).unwrap();
            let ip = ipv4::Repr::parse(&packet).unwrap();
            let view = View::new(packet.payload()).unwrap();
            let head = Repr::parse(&view);
            if transmit.checksum_start() == 0 {
                let (src, dst) = (IpAddr::V4(ip.src), IpAddr::V4(ip.dst));
                let pseudo = checksum::pseudo_header(src, dst, 6, packet.payload().len());
                assert!(view.checksum_is_right(pseudo), "checksum of {head:?}");
            }
            if head.flags.contains(S) {
                self.iss = head.seq;
                self.local.1 = head.src_port;
            }
            if let Some(times) = head.options.timestamps {
                self.host_clock = times.value;
            }
            let ack = if head.flags.contains(A) { head.ack.since(PEER_ISS) } else { 0 };
            all.push(Out {
                flags: head.flags,
                seq: head.seq.since(self.iss),
                ack,
                len: view.payload().len(),
                window: head.window,
                urgent: head.urgent,
                options: head.options,
                ecn: ip.ecn,
                transmit,
                src: ip.src.into(),
            });
            assert!(all.len() < 10_000, "frames for ever");
        }
        self.host.tcp.check_invariants();
        all
    }

    /// What the host sends now, in short.
    pub(super) fn cores(&mut self) -> Vec<(u8, u32, u32, usize)> {
        self.out().iter().map(Out::core).collect()
    }

    /// Time passes; what the host sends on its own.
    pub(super) fn wait(&mut self, ms: u64) -> Vec<Out> {
        let end = self.now + Duration::from_millis(ms);
        let mut all = Vec::new();
        while let Some(at) = self.host.tcp.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.clock_on(self.now);
            self.host.with(self.now, |tcp, context| tcp.on_timeout(context));
            all.extend(self.out());
        }
        self.now = end;
        all
    }

    fn clock_on(&mut self, _now: Instant) {
        if let Some(clock) = &mut self.clock {
            *clock += 1;
        }
    }

    pub(super) fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        assert!(self.host.send(self.now, conn, bytes));
    }

    pub(super) fn last_event(&mut self) -> Option<Event> {
        self.host.collect(self.now);
        self.host.events.last().copied()
    }

    pub(super) fn dropped(&self, reason: crate::counters::Drop) -> u64 {
        self.host.base.counters.dropped(reason)
    }
}
