//! Connections that begin and end, by the way of usual headers and by the slow path: two stacks of
//! one secret, of which only one reads headers at once, get the same frames, commands and times.
//! Whatever they send, tell and count is equal after every step.
//!
//! `fast_path.rs` does the same with what happens in between.

use proptest::prelude::*;

use super::*;
use crate::error::ConnectError;
use crate::id::{ConnId, ListenerId};
use crate::seq::SeqNum;
use crate::wire::tcp::{Flags, Options, Repr, Timestamps, View};

const PORT: u16 = 80;
const IRS: SeqNum = SeqNum(u32::MAX - 2);
const CLOCK: u32 = u32::MAX - 50;
/// Where a caller comes from, and its port.
const CALLERS: [(bool, u16); 4] = [(false, 5000), (false, 5001), (true, 5000), (true, 5001)];
/// Most connections that are looked at.
const CONNS_MAX: usize = 12;

/// A segment of a caller, as far as it does not follow from what was said before.
#[derive(Debug, Clone)]
struct Saying {
    flags: Flags,
    /// Counted from what would be right.
    seq: i32,
    ack: i32,
    text: usize,
    window: u16,
    options: Kinds,
    age: u32,
    harm: Harm,
    received: Received,
}

/// Options that it has.
#[derive(Debug, Clone, Copy)]
struct Kinds {
    mss: bool,
    scale: bool,
    sack: bool,
    times: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    None,
    /// A byte of the TCP header changes on the way.
    Byte(u8),
    Cut,
    /// The source address is invalid.
    Source,
}

#[derive(Debug, Clone)]
enum Step {
    Say(usize, Saying),
    Connect(usize),
    Accept,
    Receive(usize),
    Send(usize),
    Close(usize),
    Shutdown(usize),
    Abort(usize),
    Unlisten,
    Events,
    Transmit,
    Pass(Duration),
    Routes,
}

fn flags() -> impl Strategy<Value = Flags> {
    let some = [Flags::URG, Flags::ECE | Flags::CWR, Flags::ECE, Flags::PSH, Flags::FIN];
    let usual = prop_oneof![
        8 => Just(Flags::SYN),
        8 => Just(Flags::ACK),
        3 => Just(Flags::SYN | Flags::ACK),
        2 => Just(Flags::RST),
        2 => Just(Flags::RST | Flags::ACK),
        2 => Just(Flags::FIN | Flags::ACK),
        1 => any::<u8>().prop_map(Flags),
    ];
    let more = prop_oneof![8 => Just(Flags::NONE), 1 => prop::sample::select(some.to_vec())];
    (usual, more).prop_map(|(usual, more)| usual | more)
}

fn kinds() -> impl Strategy<Value = Kinds> {
    let all = Kinds { mss: true, scale: true, sack: true, times: true };
    let some = any::<(bool, bool, bool, bool)>().prop_map(|(mss, scale, sack, times)| Kinds {
        mss,
        scale,
        sack,
        times,
    });
    prop_oneof![3 => Just(all), 1 => Just(Kinds { sack: false, ..all }), 2 => some]
}

fn saying() -> impl Strategy<Value = Saying> {
    let off = || prop_oneof![12 => Just(0), 1 => -3..3_i32, 1 => any::<i32>()];
    let text = prop_oneof![6 => Just(0_usize), 2 => 1..100_usize];
    let window = prop_oneof![6 => Just(u16::MAX), 1 => any::<u16>()];
    let age = prop_oneof![12 => Just(0), 1 => 0..500_u32];
    let harm = prop_oneof![
        14 => Just(Harm::None),
        1 => (0..40_u8).prop_map(Harm::Byte),
        1 => Just(Harm::Cut),
        1 => Just(Harm::Source),
    ];
    let checksums = prop_oneof![3 => Just(Checksums::Unverified), 1 => Just(Checksums::Verified)];
    let received = checksums.prop_map(|checksums| Received { checksums, segment_bytes: 0 });
    (flags(), off(), off(), text, window, kinds(), age, harm, received).prop_map(
        |(flags, seq, ack, text, window, options, age, harm, received)| Saying {
            flags,
            seq,
            ack,
            text,
            window,
            options,
            age,
            harm,
            received,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let conn = || 0..CONNS_MAX;
    let caller = 0..CALLERS.len();
    let times_us =
        prop_oneof![4 => 1..2000_u64, 2 => 1000..2_000_000_u64, 1 => 60_000_000..90_000_000_u64];
    prop_oneof![
        40 => (caller.clone(), saying()).prop_map(|(caller, saying)| Step::Say(caller, saying)),
        5 => caller.prop_map(Step::Connect),
        6 => Just(Step::Accept),
        4 => conn().prop_map(Step::Receive),
        2 => conn().prop_map(Step::Send),
        3 => conn().prop_map(Step::Close),
        2 => conn().prop_map(Step::Shutdown),
        4 => conn().prop_map(Step::Abort),
        1 => Just(Step::Unlisten),
        14 => Just(Step::Events),
        24 => Just(Step::Transmit),
        8 => times_us.prop_map(|us| Step::Pass(Duration::from_micros(us))),
        1 => Just(Step::Routes),
    ]
}

/// Both ends of a connection.
#[derive(Debug, Clone, Copy)]
struct Caller {
    ours: IpAddr,
    theirs: IpAddr,
    port: u16,
    /// The port of ours that the last segment to it came from.
    our_port: u16,
    /// Its own number before what it says next, and ours after what came last.
    seq: SeqNum,
    ack: SeqNum,
}

impl Caller {
    fn frame(&self, clock: u32, saying: &Saying) -> Vec<u8> {
        let Kinds { mss, scale, sack, times } = saying.options;
        let is_syn = saying.flags.contains(Flags::SYN);
        let options = Options {
            mss: (mss && is_syn).then_some(1000),
            window_scale: (scale && is_syn).then_some(2),
            sack_permitted: sack && is_syn,
            timestamps: times
                .then_some(Timestamps { value: clock.wrapping_sub(saying.age), echo: clock }),
            ..Options::default()
        };
        let next = if is_syn { self.seq } else { self.seq + 1 };
        let head = Repr {
            src_port: self.port,
            dst_port: self.our_port,
            seq: SeqNum(next.0.wrapping_add_signed(saying.seq)),
            ack: SeqNum(self.ack.0.wrapping_add_signed(saying.ack)),
            flags: saying.flags,
            window: saying.window,
            urgent: 7,
            options,
        };
        let mut segment = vec![0; head.header_bytes()];
        let sum = head.emit(&mut segment);
        let text = vec![5; saying.text];
        segment.extend(&text);
        let pseudo = checksum::pseudo_header(self.theirs, self.ours, 6, segment.len());
        let sum = checksum::combine(checksum::combine(pseudo, sum), checksum::sum(&text));
        tcp::write_checksum(&mut segment, sum);
        if let Harm::Byte(at) = saying.harm {
            let at = usize::from(at) % segment.len();
            segment[at] ^= 0x21;
        }
        let (ethertype, mut packet) = match (self.theirs, self.ours) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let src = if saying.harm == Harm::Source { Ipv4Addr::BROADCAST } else { src };
                let header = header4(src, dst, Protocol::Tcp, segment.len());
                (ethernet::IPV4, packet4(header, &segment))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let src = if saying.harm == Harm::Source { Ipv6Addr::LOCALHOST } else { src };
                (ethernet::IPV6, packet6(src, dst, 6, &segment))
            }
            _ => unreachable!("addresses of one family"),
        };
        if saying.harm == Harm::Cut {
            packet.truncate(packet.len() - 1);
        }
        ethernet(OUR_MAC, ethertype, &packet)
    }
}

struct Twins {
    hosts: [Host; 2],
    callers: [Caller; 4],
    listeners: Vec<ListenerId>,
    conns: Vec<ConnId>,
    clock: u32,
}

impl Twins {
    fn new(cookies: bool) -> Self {
        let mut listeners = Vec::new();
        let hosts = [false, true].map(|full| {
            let mut host = Host::with(|config| {
                config.connections = 4;
                config.time_waits = 2;
                config.tcp.syn_backlog = 2;
                if cookies {
                    config.tcp.syn_cookies = crate::config::SynCookies::Always;
                }
            });
            host.stack.takes_slow_path = full;
            host.stack.tcp.send_by_slow_path(full);
            host.meet(PEER.into());
            host.meet(PEER6.into());
            listeners = [IpAddr::V4(OURS), IpAddr::V6(OURS6)]
                .map(|ours| host.stack.listen(SocketAddr::new(ours, PORT), 2, PoolId(0)).unwrap())
                .to_vec();
            host
        });
        let callers = CALLERS.map(|(is_six, port)| {
            let (ours, theirs) = if is_six {
                (IpAddr::V6(OURS6), IpAddr::V6(PEER6))
            } else {
                (IpAddr::V4(OURS), IpAddr::V4(PEER))
            };
            Caller { ours, theirs, port, our_port: PORT, seq: IRS, ack: SeqNum(0) }
        });
        Self { hosts, callers, listeners, conns: Vec::new(), clock: CLOCK }
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

    /// The callers hear what is sent: which of our numbers come next.
    fn transmit(&mut self) {
        for frame in self.both(Host::frames) {
            let (theirs, segment) = match open_link(&frame) {
                ethernet::IPV4 => {
                    let (_, header, payload) = open4(&frame);
                    (IpAddr::V4(header.dst), payload)
                }
                ethernet::IPV6 => {
                    let (_, header, payload) = open6(&frame);
                    (IpAddr::V6(header.dst), payload)
                }
                _ => continue,
            };
            let Ok(view) = View::new(segment) else { continue };
            let heard = |it: &&mut Caller| it.theirs == theirs && it.port == view.dst_port();
            if let Some(caller) = self.callers.iter_mut().find(heard) {
                caller.our_port = view.src_port();
                caller.ack = view.seq() + view.sequence_len();
            }
        }
    }

    fn events(&mut self) {
        let events = self.both(|host| {
            let mut events = Vec::new();
            while let Some(event) = host.stack.poll_event() {
                // Which buffer it is means nothing.
                if let Event::Received { chunk, conn } = event {
                    events.push((Event::PeerClosed { conn }, host.memory.bytes(chunk).to_vec()));
                    host.memory.free(chunk.buf);
                } else {
                    events.push((event, Vec::new()));
                }
            }
            events
        });
        for (event, _) in events {
            if let Event::Incoming { conn, .. } = event {
                self.know(conn);
            }
        }
    }

    fn know(&mut self, conn: ConnId) {
        if self.conns.len() == CONNS_MAX {
            self.conns.remove(0);
        }
        self.conns.push(conn);
    }

    fn connect(&mut self, which: usize) {
        let Caller { ours, theirs, port, .. } = self.callers[which];
        let (remote, local) = (SocketAddr::new(theirs, port), SocketAddr::new(ours, PORT + 1));
        // Now and then the same four numbers again.
        let local = port.is_multiple_of(2).then_some(local);
        let begun: Result<ConnId, ConnectError> = self.both(|host| {
            let pool = (PoolId(0), &mut host.memory);
            host.stack.connect(host.now, remote, local, pool)
        });
        if let Ok(conn) = begun {
            self.know(conn);
        }
    }

    /// A command to a connection; most are stale.
    fn command<R: PartialEq + core::fmt::Debug>(
        &mut self,
        which: usize,
        mut does: impl FnMut(&mut Host, ConnId) -> R,
    ) {
        if let Some(conn) = self.conns.get(which).copied() {
            self.alike(|host| does(host, conn));
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Say(which, saying) => {
                let frame = self.callers[*which].frame(self.clock, saying);
                let received = saying.received;
                self.alike(|host| {
                    host.stack.on_frame(host.now, &frame, received, &mut host.memory);
                });
            }
            Step::Connect(which) => self.connect(*which),
            Step::Accept => {
                for listener in self.listeners.clone() {
                    self.alike(|host| host.stack.accept(listener, 1));
                }
            }
            Step::Receive(which) => {
                self.command(*which, |host, conn| host.stack.receive(host.now, conn));
            }
            Step::Send(which) => self.command(*which, |host, conn| {
                let Host { stack, memory, now } = host;
                let chunk = memory.chunk_of(&[9; 50])?;
                let sent = stack.send(*now, conn, chunk, memory);
                if sent.is_err() {
                    memory.free(chunk.buf);
                }
                Some(sent)
            }),
            Step::Close(which) => self
                .command(*which, |host, conn| host.stack.close(host.now, conn, &mut host.memory)),
            Step::Shutdown(which) => self.command(*which, |host, conn| {
                host.stack.shutdown(host.now, conn, &mut host.memory)
            }),
            Step::Abort(which) => self
                .command(*which, |host, conn| host.stack.abort(host.now, conn, &mut host.memory)),
            Step::Unlisten => {
                if let Some(listener) = self.listeners.pop() {
                    self.alike(|host| host.stack.unlisten(host.now, listener, &mut host.memory));
                }
            }
            Step::Events => self.events(),
            Step::Transmit => self.transmit(),
            Step::Pass(time) => {
                self.clock = self.clock.wrapping_add(time.as_millis() as u32);
                self.alike(|host| host.pass(*time));
            }
            Step::Routes => self.alike(|host| host.stack.set_routes(&config().routes)),
        }
        self.compare();
    }

    fn compare(&mut self) {
        let conns = self.conns.clone();
        self.alike(|host| {
            host.stack.check_invariants();
            let infos: Vec<_> = conns.iter().map(|conn| host.stack.info(*conn)).collect();
            let records: Vec<_> = conns.iter().map(|conn| host.stack.record(*conn)).collect();
            let held = (host.memory.in_use(), host.stack.held());
            (*host.stack.counters(), host.stack.poll_timeout(), infos, records, held)
        });
    }
}

fn open_link(frame: &[u8]) -> u16 {
    ethernet::View::new(frame).unwrap().ethertype()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn fast_path_equals_slow_path(
        cookies in prop::bool::weighted(0.2),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut twins = Twins::new(cookies);
        for step in &steps {
            twins.take(step);
        }
    }
}
