//! The fast paths and the slow path are equal: two stacks with one secret, one of them without fast
//! paths, get the same frames, commands and times. What they send, report, count and keep is
//! compared after every step.

use proptest::prelude::*;

use super::*;
use crate::id::ConnId;
use crate::seq::{SeqNum, SeqRange};
use crate::wire::tcp::{Flags, Options, Repr, SackBlock, Timestamps};

const PORT: u16 = 80;
/// What the peer's numbers begin with: they wrap on the way.
const IRS: SeqNum = SeqNum(u32::MAX - 3000);
const CLOCK: u32 = u32::MAX - 50;

/// What a peer says in a segment, beside what the connection makes it say.
#[derive(Debug, Clone)]
struct Saying {
    /// Where it begins, counted from what we expect next.
    seq: i32,
    len: usize,
    ack: Said,
    flags: Flags,
    window: u16,
    /// How old its timestamp is; `None`: it has none.
    age: Option<u32>,
    has_sack: bool,
    ecn: Ecn,
    harm: Harm,
    received: Received,
}

/// What it acknowledges.
#[derive(Debug, Clone, Copy)]
enum Said {
    /// So many 255ths of what is in flight.
    Part(u8),
    /// What was acknowledged long ago.
    Old,
    /// What was never sent.
    Unsent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    None,
    /// A byte at the end changes on the way: payload, if there is any.
    End,
    /// A byte of the IP header does.
    Header,
    /// The last byte does not arrive.
    Cut,
    /// The source address is invalid.
    Source,
    /// The link destination is broadcast.
    Broadcast,
}

#[derive(Debug, Clone)]
enum Step {
    Segment(usize, Saying),
    Receive(usize),
    Send(usize, u32),
    AwaitAcks(usize),
    Shutdown(usize),
    Close(usize),
    Events,
    Transmit,
    Pass(Duration),
    /// Ways that were found before are worth nothing any more.
    Routes,
}

fn flags() -> impl Strategy<Value = Flags> {
    let rare = [Flags::FIN, Flags::RST, Flags::SYN, Flags::URG, Flags::ECE, Flags::CWR];
    prop_oneof![
        60 => Just(Flags::ACK),
        60 => Just(Flags::ACK | Flags::PSH),
        1 => Just(Flags::NONE),
        3 => prop::sample::select(rare.to_vec()).prop_map(|flag| flag | Flags::ACK),
    ]
}

fn harm() -> impl Strategy<Value = Harm> {
    let all = [Harm::End, Harm::Header, Harm::Cut, Harm::Source, Harm::Broadcast];
    prop_oneof![12 => Just(Harm::None), 1 => prop::sample::select(all.to_vec())]
}

fn saying() -> impl Strategy<Value = Saying> {
    let seq = prop_oneof![15 => Just(0), 1 => -2000..2000];
    let len = prop_oneof![2 => Just(0_usize), 4 => 1..200_usize, 1 => 200..1400_usize];
    let ack = prop_oneof![
        12 => Just(Said::Part(255)),
        6 => any::<u8>().prop_map(Said::Part),
        1 => Just(Said::Old),
        1 => Just(Said::Unsent),
    ];
    let window = prop_oneof![8 => Just(u16::MAX), 2 => any::<u16>(), 1 => Just(0)];
    let age = prop_oneof![12 => Just(Some(0)), 1 => (0..500_u32).prop_map(Some), 1 => Just(None)];
    let ecn = prop::sample::select(vec![Ecn::NotEct; 12]).prop_union(prop::sample::select(vec![
        Ecn::Ect0,
        Ecn::Ect1,
        Ecn::Ce,
    ]));
    let checksums = prop_oneof![
        3 => Just(Checksums::Unverified),
        1 => Just(Checksums::Verified),
    ];
    let received = (checksums, prop_oneof![5 => Just(0), 1 => 1..1400_u16])
        .prop_map(|(checksums, segment_bytes)| Received { checksums, segment_bytes });
    let has_sack = prop::bool::weighted(0.05);
    let head = (seq, len, ack, flags(), window);
    (head, age, has_sack, ecn, harm(), received).prop_map(
        |((seq, len, ack, flags, window), age, has_sack, ecn, harm, received)| Saying {
            seq,
            len,
            ack,
            flags,
            window,
            age,
            has_sack,
            ecn,
            harm,
            received,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let conn = 0..2_usize;
    let times_us = prop_oneof![1..100_u64, 500..50_000_u64, 100_000..400_000_u64];
    prop_oneof![
        40 => (conn.clone(), saying()).prop_map(|(conn, saying)| Step::Segment(conn, saying)),
        10 => conn.clone().prop_map(Step::Receive),
        8 => (conn.clone(), 1..600_u32).prop_map(|(conn, len)| Step::Send(conn, len)),
        3 => conn.clone().prop_map(Step::AwaitAcks),
        8 => Just(Step::Events),
        12 => Just(Step::Transmit),
        8 => times_us.prop_map(|us| Step::Pass(Duration::from_micros(us))),
        1 => Just(Step::Routes),
        1 => prop_oneof![
            3 => Just(Step::Transmit),
            1 => conn.clone().prop_map(Step::Shutdown),
            1 => conn.prop_map(Step::Close),
        ],
    ]
}

/// The other end of a connection.
struct Peer {
    ours: IpAddr,
    theirs: IpAddr,
    port: u16,
    options: Options,
    /// What we expect next, and what of ours is in flight.
    expected: SeqNum,
    in_flight: SeqRange,
    conn: Option<ConnId>,
}

impl Peer {
    fn frame(&self, clock: u32, saying: &Saying) -> Vec<u8> {
        let seq = SeqNum(self.expected.0.wrapping_add_signed(saying.seq));
        let ack = match saying.ack {
            Said::Part(part) => self.in_flight.start + self.in_flight.len() * u32::from(part) / 255,
            Said::Old => self.in_flight.start - 300,
            Said::Unsent => self.in_flight.end + 1000,
        };
        let payload: Vec<u8> =
            (0..saying.len).map(|at| seq.0.wrapping_add(at as u32) as u8).collect();
        let mut options = self.options;
        options.timestamps = saying
            .age
            // Now and then it has one where none was agreed on.
            .filter(|age| options.timestamps.is_some() || *age > 0)
            .map(|age| Timestamps { value: clock.wrapping_sub(age), echo: clock });
        if saying.has_sack {
            options.set_sack(&[SackBlock { start: ack + 1, end: self.in_flight.end }]);
        }
        let head = Repr {
            src_port: self.port,
            dst_port: PORT,
            seq,
            ack,
            flags: saying.flags,
            window: saying.window,
            urgent: 7,
            options,
        };
        let mut segment = vec![0; head.header_bytes()];
        let sum = head.emit(&mut segment);
        segment.extend(&payload);
        let pseudo = checksum::pseudo_header(self.theirs, self.ours, 6, segment.len());
        let sum = checksum::combine(checksum::combine(pseudo, sum), checksum::sum(&payload));
        tcp::write_checksum(&mut segment, sum);
        self.carry(&segment, saying)
    }

    /// Puts headers before a segment, and harms it.
    fn carry(&self, segment: &[u8], saying: &Saying) -> Vec<u8> {
        let (ethertype, mut packet) = match (self.theirs, self.ours) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let src = if saying.harm == Harm::Source { Ipv4Addr::LOCALHOST } else { src };
                let header = header4(src, dst, Protocol::Tcp, segment.len());
                let header = ipv4::Repr { ecn: saying.ecn, ..header };
                (ethernet::IPV4, packet4(header, segment))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let src = if saying.harm == Harm::Source { Ipv6Addr::LOCALHOST } else { src };
                let mut packet = packet6(src, dst, 6, segment);
                packet[1] |= (saying.ecn as u8) << 4;
                (ethernet::IPV6, packet)
            }
            _ => unreachable!("addresses of one family"),
        };
        match saying.harm {
            Harm::End => *packet.last_mut().unwrap() ^= 0x40,
            Harm::Header => packet[7] ^= 0x21,
            Harm::Cut => packet.truncate(packet.len() - 1),
            Harm::None | Harm::Source | Harm::Broadcast => {}
        }
        let dst = if saying.harm == Harm::Broadcast { ethernet::BROADCAST } else { OUR_MAC };
        ethernet(dst, ethertype, &packet)
    }
}

/// Both stacks, and the peers that they share.
struct Twins {
    hosts: [Host; 2],
    peers: [Peer; 2],
    clock: u32,
}

impl Twins {
    /// Two connections each, one over each IP; only those with `timestamps` and `sack` have them.
    fn new(timestamps: bool, sack: bool) -> Self {
        let hosts = [false, true].map(|full| {
            let mut host = Host::with(|config| {
                // Windows close, and buffers run out.
                config.tcp.receive_buffer = 6000;
                config.tcp.receive_buffer_max = 6000;
            });
            host.stack.takes_slow_path = full;
            host.stack.tcp.send_by_slow_path(full);
            host.memory = HeapMemory::new(24, 700);
            host.meet(PEER.into());
            host.meet(PEER6.into());
            for ours in [IpAddr::V4(OURS), IpAddr::V6(OURS6)] {
                let local = SocketAddr::new(ours, PORT);
                let listener = host.stack.listen(local, 4, PoolId(0)).unwrap();
                host.stack.accept(listener, 4).unwrap();
            }
            host
        });
        let options = Options {
            timestamps: timestamps.then_some(Timestamps { value: CLOCK, echo: 0 }),
            ..Options::default()
        };
        let peer = |ours, theirs, port| {
            let in_flight = SeqRange::default();
            Peer { ours, theirs, port, options, expected: IRS, in_flight, conn: None }
        };
        let peers = [peer(OURS.into(), PEER.into(), 5000), peer(OURS6.into(), PEER6.into(), 5001)];
        let mut twins = Self { hosts, peers, clock: CLOCK };
        (0..2).for_each(|which| twins.connect(which, sack));
        twins
    }

    fn connect(&mut self, which: usize, sack: bool) {
        let calm = Saying {
            seq: 0,
            len: 0,
            ack: Said::Part(255),
            flags: Flags::SYN,
            window: 60_000,
            age: Some(0),
            has_sack: false,
            ecn: Ecn::NotEct,
            harm: Harm::None,
            received: Received::default(),
        };
        let usual = self.peers[which].options;
        let peer = &mut self.peers[which];
        peer.options.mss = Some(1000);
        peer.options.window_scale = Some(2);
        peer.options.sack_permitted = sack;
        self.say(which, &calm);
        let frames = self.both(Host::frames);
        let segment = if which == 0 { open4(&frames[0]).2 } else { open6(&frames[0]).2 };
        let ours = tcp::View::new(segment).unwrap().seq() + 1;
        let peer = &mut self.peers[which];
        peer.options = usual;
        peer.expected = IRS + 1;
        peer.in_flight = SeqRange::new(ours, 0);
        self.say(which, &Saying { flags: Flags::ACK, ..calm });
        self.events();
        assert!(self.peers[which].conn.is_some());
    }

    /// The same for both; what they answer is equal.
    fn both<R: PartialEq + core::fmt::Debug>(&mut self, mut does: impl FnMut(&mut Host) -> R) -> R {
        let [one, other] = &mut self.hosts;
        let (one, other) = (does(one), does(other));
        assert_eq!(one, other);
        one
    }

    fn alike<R: PartialEq + core::fmt::Debug>(&mut self, does: impl FnMut(&mut Host) -> R) {
        drop(self.both(does));
    }

    fn say(&mut self, which: usize, saying: &Saying) {
        let frame = self.peers[which].frame(self.clock, saying);
        self.both(|host| {
            host.stack.on_frame(host.now, &frame, saying.received, &mut host.memory);
        });
    }

    fn events(&mut self) {
        let events = self.both(|host| {
            let mut events = Vec::new();
            while let Some(event) = host.stack.poll_event() {
                let (event, bytes) = match event {
                    // Which buffer it is means nothing.
                    Event::Received { conn, chunk } => {
                        let bytes = host.memory.bytes(chunk).to_vec();
                        host.memory.free(chunk.buf);
                        (Event::PeerClosed { conn }, bytes)
                    }
                    event => (event, Vec::new()),
                };
                events.push((event, bytes));
            }
            events
        });
        for (event, _) in events {
            if let Event::Incoming { conn, remote, .. } = event
                && let Some(peer) = self.peers.iter_mut().find(|it| it.port == remote.port())
            {
                peer.conn = Some(conn);
            }
        }
    }

    fn take(&mut self, step: &Step) {
        let ids = [0, 1].map(|which| self.peers[which].conn.unwrap());
        match step {
            Step::Segment(which, saying) => self.say(*which, saying),
            Step::Receive(which) => {
                self.alike(|host| host.stack.receive(host.now, ids[*which]));
            }
            Step::Send(which, len) => {
                self.alike(|host| {
                    let Host { stack, memory, now } = host;
                    let chunk = memory.chunk_of(&vec![9; *len as usize])?;
                    let sent = stack.send(*now, ids[*which], chunk, memory);
                    if sent.is_err() {
                        memory.free(chunk.buf);
                    }
                    Some(sent)
                });
            }
            Step::AwaitAcks(which) => {
                self.alike(|host| host.stack.await_acks(ids[*which]));
            }
            Step::Shutdown(which) => {
                self.alike(|host| host.stack.shutdown(host.now, ids[*which], &mut host.memory));
            }
            Step::Close(which) => {
                self.alike(|host| host.stack.close(host.now, ids[*which], &mut host.memory));
            }
            Step::Events => self.events(),
            Step::Transmit => {
                // Whose turn comes first when the timers of both are due says nothing: the short
                // ways set and cancel them at other moments. Each has an IP of its own.
                self.alike(|host| {
                    let mut frames = host.frames();
                    frames.sort_by_key(|frame| frame.get(12..14).map(<[u8]>::to_vec));
                    frames
                });
            }
            Step::Pass(time) => {
                self.clock = self.clock.wrapping_add(time.as_millis() as u32);
                self.alike(|host| {
                    host.now += *time;
                    host.stack.on_timeout(host.now, &mut host.memory);
                });
            }
            Step::Routes => {
                self.alike(|host| host.stack.set_routes(&config().routes));
            }
        }
        self.compare();
    }

    /// Everything that can be asked, and everything that is remembered of the connections.
    fn compare(&mut self) {
        let ids = [0, 1].map(|which| self.peers[which].conn.unwrap());
        self.alike(|host| {
            host.stack.check_invariants();
            let infos = ids.map(|id| host.stack.info(id));
            let records = ids.map(|id| host.stack.record(id));
            let held = (host.memory.in_use(), host.stack.held());
            (*host.stack.counters(), host.stack.poll_timeout(), infos, records, held)
        });
        for peer in &mut self.peers {
            let [host, _] = &self.hosts;
            (peer.expected, peer.in_flight) = host.stack.numbers(peer.conn.unwrap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn fast_path_equals_slow_path(
        timestamps in any::<bool>(),
        sack in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut twins = Twins::new(timestamps, sack);
        for step in &steps {
            twins.take(step);
        }
    }
}
