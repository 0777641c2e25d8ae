//! A crowd: 8,000 connections at once over a link whose rings hold 1,024 frames, each closed with a
//! RST after one request and opened anew. What could not leave has to wait, and nothing may wait
//! for a timer [mTCP table 2].

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use megapipe_link::{LinkMedium, Pair, PairConfig, pair};
use megapipe_service::{AcceptorId, Frames, Server, ServerConfig, Sharing};
use megapipe_stack::{ConnId, Event, HeapMemory, Instant};

const CROWD: usize = 8_000;
const ROUNDS: usize = 3;
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 80);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const BACKLOG: u32 = 4_096;
const MESSAGE: [u8; 64] = [7; 64];
/// What a poll takes, in virtual time.
const POLL_PERIOD: Duration = Duration::from_micros(20);

fn host(link: Pair, address: IpAddr, connections: u32) -> Server<HeapMemory> {
    let config =
        ServerConfig { addresses: vec![(address, 24)], connections, ..ServerConfig::default() };
    let memory = HeapMemory::new(1 << 15, 2_048);
    Server::new(Frames::Queue(Box::new(link)), &config, memory, Instant::ZERO).unwrap()
}

/// Who answers, and never closes.
struct Answering(Server<HeapMemory>);

impl Answering {
    fn new(link: Pair) -> Self {
        let mut server = host(link, SERVER.ip(), 1 << 16);
        let sharing = Sharing::default();
        let listener = server.listen(Instant::ZERO, SERVER, BACKLOG, sharing).unwrap();
        server.accept(listener, AcceptorId(0), 1 << 30).unwrap();
        Self(server)
    }

    fn poll(&mut self, now: Instant) {
        self.0.poll(now).unwrap();
        while let Some((event, _)) = self.0.event() {
            let (stack, memory) = self.0.parts();
            match event {
                Event::Incoming { conn, .. } => stack.receive(now, conn).unwrap(),
                Event::Received { conn, chunk } => {
                    assert_eq!(memory.bytes(chunk), MESSAGE);
                    stack.send(now, conn, chunk, memory).unwrap();
                }
                _ => {}
            }
        }
    }
}

/// A connection of the crowd, by its number in the stack: its client, and since when.
#[derive(Clone, Copy)]
struct Asking {
    slot: usize,
    since: Instant,
}

struct Crowd {
    server: Server<HeapMemory>,
    /// Slots to connect, and how many handshakes are under way.
    closed: VecDeque<usize>,
    connecting: usize,
    connecting_max: usize,
    /// Connected, and waiting for the others before the first round.
    ready: Vec<ConnId>,
    gone: bool,
    asked: u64,
    asking: Vec<Option<Asking>>,
    rounds: Vec<usize>,
    took: Vec<Duration>,
}

impl Crowd {
    fn new(link: Pair, connecting_max: usize) -> Self {
        let connections = CROWD as u32 + 64;
        Self {
            server: host(link, CLIENT.into(), connections),
            asking: vec![None; connections as usize],
            closed: (0..CROWD).collect(),
            connecting: 0,
            connecting_max,
            ready: Vec::new(),
            gone: false,
            asked: 0,
            rounds: vec![0; CROWD],
            took: Vec::new(),
        }
    }

    fn open(&mut self, now: Instant) {
        if self.connecting == self.connecting_max {
            return;
        }
        let Some(slot) = self.closed.pop_front() else { return };
        self.connecting += 1;
        let conn = self.server.connect(now, SERVER, None).unwrap();
        self.asking[conn.index as usize] = Some(Asking { slot, since: now });
    }

    fn poll(&mut self, now: Instant) {
        self.server.poll(now).unwrap();
        if !self.gone && self.ready.len() == CROWD {
            self.gone = true;
            for conn in std::mem::take(&mut self.ready) {
                self.asking[conn.index as usize].as_mut().unwrap().since = now;
                self.ask(now, conn);
            }
        }
        while let Some((event, _)) = self.server.event() {
            let (stack, memory) = self.server.parts();
            match event {
                Event::Connected { conn } => {
                    self.connecting -= 1;
                    if self.gone {
                        self.ask(now, conn)
                    } else {
                        self.ready.push(conn)
                    }
                    self.open(now);
                }
                Event::Received { conn, chunk } => {
                    assert_eq!(memory.bytes(chunk), MESSAGE);
                    megapipe_stack::Memory::free(memory, chunk.buf);
                    stack.abort(now, conn, memory).unwrap();
                    self.answered(now, conn);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn ask(&mut self, now: Instant, conn: ConnId) {
        let (stack, memory) = self.server.parts();
        stack.receive(now, conn).unwrap();
        let chunk = memory.chunk_of(&MESSAGE).unwrap();
        stack.send(now, conn, chunk, memory).unwrap();
        self.batch(now);
    }

    fn batch(&mut self, now: Instant) {
        self.asked += 1;
        if self.asked.is_multiple_of(32) {
            self.server.transmit(now).unwrap();
        }
    }

    fn answered(&mut self, now: Instant, conn: ConnId) {
        let Asking { slot, since } = self.asking[conn.index as usize].take().unwrap();
        self.took.push(now.since(since));
        self.rounds[slot] += 1;
        if self.rounds[slot] < ROUNDS {
            self.closed.push_back(slot);
            self.open(now);
        }
    }
}

/// How the two ends take polls.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// The server takes every so many-th poll.
    answering: u32,
    /// The crowd takes every so many-th poll.
    crowd: u32,
    /// The crowd makes a pause of so many polls, then the server, and then neither for twice as
    /// long, as where others want their cores.
    stalls: u32,
}

/// Lets a crowd and who answers it take polls until all have been answered. At most
/// `connecting_max` handshakes are under way at once.
fn run(pace: Pace, connecting_max: usize) -> (Answering, Crowd) {
    let config = PairConfig { medium: LinkMedium::Ip, frames: 1_024, ..PairConfig::default() };
    let (ours, theirs) = pair(&config).unwrap();
    let (mut answering, mut crowd) = (Answering::new(ours), Crowd::new(theirs, connecting_max));
    let mut now = Instant::ZERO;
    (0..CROWD).for_each(|_| crowd.open(now));
    let mut polls = 0_u32;
    while crowd.took.len() < CROWD * ROUNDS {
        polls += 1;
        now += POLL_PERIOD;
        // Each in its own time.
        let stalled = |of: u32| polls.checked_div(pace.stalls).is_some_and(|phase| phase % 4 == of);
        if polls.is_multiple_of(pace.answering) && !stalled(1) {
            answering.poll(now);
        }
        if polls.is_multiple_of(pace.crowd) && !stalled(0) {
            crowd.poll(now);
        }
        assert!(polls < 1 << 20, "{} of them were answered", crowd.took.len());
    }
    // What the last ones said on leaving.
    for _ in 0..1_000 {
        now += POLL_PERIOD;
        crowd.poll(now);
        answering.poll(now);
    }
    (answering, crowd)
}

/// What was lost on one side, by reason, and how often it sent something again.
fn lost(server: &Server<HeapMemory>) -> Vec<(&'static str, u64)> {
    let counters = server.stack().counters();
    let drops = counters.drops().map(|(reason, count)| (reason.name(), count));
    let again = ("segments_retransmitted", counters.totals.segments_retransmitted);
    drops.chain([again]).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn no_client_in_a_crowd_waits_for_a_timer() {
    // A crowd that is slow; and one that finds a thousand answers after a pause, while the other
    // end makes one and takes nothing.
    for (answering, crowd, stalls) in [(1, 8, 0), (1, 1, 40)] {
        for connecting_max in [128, CROWD] {
            let pace = Pace { answering, crowd, stalls };
            let (answering, crowd) = run(pace, connecting_max);
            let lost = [lost(&answering.0), lost(&crowd.server)];
            assert_eq!(lost, [vec![], vec![]], "{pace:?}, {connecting_max} at once");
            let most = crowd.took.iter().max().unwrap();
            assert!(*most < Duration::from_millis(200), "{pace:?}: a client waited for {most:?}");
            let all = (CROWD * ROUNDS) as u64;
            let here = answering.0.stack().counters().totals;
            assert_eq!((here.accepts, here.resets_in), (all, all), "and all have gone");
        }
    }
}
