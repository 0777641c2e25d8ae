//! Both drivers give the same completions for the same program of operations.
//!
//! A program is a list of steps on a few connections: what the channel does, and what the peers
//! do. It runs on each driver against the same peers; what is then compared is, for each
//! connection, the bytes in each direction and the kinds and results of the completions in the
//! order in which they came. How bytes were cut into reads is the drivers' own business.
//!
//! A failing program is made as short as possible and printed; put its lines into a file and set
//! `MEGAPIPE_REPLAY=file` to run just that one.
//!
//! Invariants
//! - After each step everything that follows from it is waited for, so a program has one outcome.
//! - `Log` holds only what the drivers have to agree on (`Link::settle_end` says what they need
//!   not).

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::str::FromStr;
use std::time::{Duration, Instant};

use megapipe::{
    Channel, Completion, Config, CreateError, Disconnect, DriverChoice, Event, Handle, OpError,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestError, TestRunner};

use crate::scene::{PATIENCE, Peer, Scene, Stream, pattern, peer, reset};

/// Programs that are tried unless `PROPTEST_CASES` says how many; each has up to `STEPS_MAX` steps.
const PROGRAMS: u32 = 80;
const STEPS_MAX: usize = 24;
/// The longest write and read of a step: more than any socket buffer holds at once.
const BYTES_MAX: usize = 400_000;
/// Bytes that a peer sends beyond what the channel wants to read.
const UNREAD_BYTES_MAX: usize = 32 << 10;
const REPLAY: &str = "MEGAPIPE_REPLAY";

/// One step; the first number names the connection, counted from the first that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Open(Stream),
    Write(usize, usize),
    WriteQuiet(usize, usize),
    /// Reads until so many bytes are there.
    Read(usize, usize),
    End(usize, Disconnect),
    Unregister(usize),
    ToFd(usize),
    Timer,
    PeerSend(usize, usize),
    PeerShut(usize),
    PeerClose(usize),
    PeerReset(usize),
}

const KINDS: [(&str, Stream); 5] = [
    ("accepted4", Stream::Accepted4),
    ("connected6", Stream::Connected6),
    ("accepted-unix", Stream::AcceptedUnix),
    ("registered-tcp", Stream::RegisteredTcp),
    ("registered-unix", Stream::RegisteredUnix),
];

const ENDS: [(&str, Disconnect); 3] =
    [("write", Disconnect::Write), ("both", Disconnect::Both), ("reset", Disconnect::Reset)];

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, it)| it == value).map_or("?", |(name, _)| name)
}

fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    names.iter().find(|(it, _)| *it == name).map(|(_, value)| *value)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(kind) => write!(f, "open {}", name_of(&KINDS, kind)),
            Self::Write(at, len) => write!(f, "write {at} {len}"),
            Self::WriteQuiet(at, len) => write!(f, "write-quiet {at} {len}"),
            Self::Read(at, len) => write!(f, "read {at} {len}"),
            Self::End(at, how) => write!(f, "end {at} {}", name_of(&ENDS, how)),
            Self::Unregister(at) => write!(f, "unregister {at}"),
            Self::ToFd(at) => write!(f, "to-fd {at}"),
            Self::Timer => write!(f, "timer"),
            Self::PeerSend(at, len) => write!(f, "peer-send {at} {len}"),
            Self::PeerShut(at) => write!(f, "peer-shut {at}"),
            Self::PeerClose(at) => write!(f, "peer-close {at}"),
            Self::PeerReset(at) => write!(f, "peer-reset {at}"),
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || format!("no step: {line}");
        let mut words = line.split_whitespace();
        let what = words.next().ok_or_else(wrong)?;
        let first = words.next().unwrap_or_default();
        let second = words.next().unwrap_or_default();
        let number = |word: &str| word.parse::<usize>().map_err(|_| wrong());
        Ok(match what {
            "open" => Self::Open(named(&KINDS, first).ok_or_else(wrong)?),
            "write" => Self::Write(number(first)?, number(second)?),
            "write-quiet" => Self::WriteQuiet(number(first)?, number(second)?),
            "read" => Self::Read(number(first)?, number(second)?),
            "end" => Self::End(number(first)?, named(&ENDS, second).ok_or_else(wrong)?),
            "unregister" => Self::Unregister(number(first)?),
            "to-fd" => Self::ToFd(number(first)?),
            "timer" => Self::Timer,
            "peer-send" => Self::PeerSend(number(first)?, number(second)?),
            "peer-shut" => Self::PeerShut(number(first)?),
            "peer-close" => Self::PeerClose(number(first)?),
            "peer-reset" => Self::PeerReset(number(first)?),
            _ => return Err(wrong()),
        })
    }
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0usize..4;
    let len = || prop_oneof![4 => 1usize..200, 3 => 200usize..20_000, 1 => 20_000..BYTES_MAX];
    let kind = prop::sample::select(KINDS.map(|(_, kind)| kind).to_vec());
    let end = prop::sample::select(ENDS.map(|(_, end)| end).to_vec());
    prop_oneof![
        3 => kind.prop_map(Step::Open),
        6 => (at.clone(), len()).prop_map(|(at, len)| Step::Write(at, len)),
        4 => (at.clone(), len()).prop_map(|(at, len)| Step::WriteQuiet(at, len)),
        6 => (at.clone(), len()).prop_map(|(at, len)| Step::Read(at, len)),
        6 => (at.clone(), len()).prop_map(|(at, len)| Step::PeerSend(at, len)),
        2 => (at.clone(), end).prop_map(|(at, end)| Step::End(at, end)),
        1 => at.clone().prop_map(Step::Unregister),
        1 => at.clone().prop_map(Step::ToFd),
        1 => Just(Step::Timer),
        1 => at.clone().prop_map(Step::PeerShut),
        1 => at.clone().prop_map(Step::PeerClose),
        1 => at.prop_map(Step::PeerReset),
    ]
}

/// What the drivers have to agree on, for one connection.
#[derive(Debug, Default, PartialEq, Eq)]
struct Log {
    /// Bytes from the peer: from reads, then from what was unread and from the descriptor.
    read: Bytes,
    /// How reads ended that gave no bytes.
    read_ends: Vec<String>,
    writes: Vec<String>,
    others: Vec<String>,
    /// Calls that were refused.
    refused: Vec<String>,
    /// Bytes that reached the peer, and how its receiving ended.
    reached: Bytes,
    peer_end: Option<&'static str>,
}

/// Bytes that print as their count and a sum.
#[derive(Default, PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = self.0.iter().fold(0u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
        write!(f, "{} bytes ({sum:08x})", self.0.len())
    }
}

/// A connection while its program runs.
struct Link {
    handle: Option<Handle>,
    /// The descriptor that it became.
    left: Option<Peer>,
    peer: Option<Peer>,
    /// Bytes that the program still wants to read; a read is outstanding for them.
    wanted: usize,
    reading: bool,
    sent_by_peer: usize,
    /// The channel has ended the receiving direction: bytes that are in the kernel, or on their
    /// way, are lost, bytes that were received ahead are not. So what is read from now on is not
    /// compared.
    gave_up: bool,
    log: Log,
}

impl Link {
    fn take_in(&mut self, bytes: &[u8]) {
        if !self.gave_up {
            self.log.read.0.extend_from_slice(bytes);
        }
    }

    /// How a peer's receiving ends when the channel closes a socket with bytes that were received
    /// and not read depends on where these bytes were: in the kernel (a reset) or, received
    /// ahead, in the channel (an orderly end). Either is an end.
    fn settle_end(&mut self) {
        let unread = self.sent_by_peer > self.log.read.0.len();
        if unread && self.log.peer_end.is_some() {
            self.log.peer_end = Some("ended");
        }
    }
}

/// A program under way on one driver.
struct Run {
    scene: Scene,
    links: Vec<Link>,
    timers: Vec<(Handle, u64)>,
    /// How long nothing must happen before it counts as quiet.
    quiet: Duration,
    seed: usize,
}

impl Run {
    fn whole(config: Config, program: &[Step], quiet: Duration) -> Outcome {
        let scene = Scene::new(config);
        let mut run = Self { scene, links: Vec::new(), timers: Vec::new(), quiet, seed: 0 };
        for step in program {
            run.seed += 1;
            run.take(*step);
            run.settle();
        }
        for at in 0..run.links.len() {
            run.unregister(at);
            run.settle();
            run.empty_left(at);
            run.links[at].settle_end();
        }
        run.scene.expect_no_strays();
        let timers = run.timers.iter().map(|(_, expirations)| *expirations).collect();
        (run.links.into_iter().map(|link| link.log).collect(), timers)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Open(kind) => self.open(kind),
            Step::Timer => {
                let timer = self.scene.timer(Duration::ZERO, None, 0).expect("a short time");
                self.timers.push((timer, 0));
            }
            Step::Write(at, len) => {
                let bytes = pattern(self.seed, len);
                self.call(at, |channel, handle| channel.write(handle, bytes));
            }
            Step::WriteQuiet(at, len) => {
                let bytes = pattern(self.seed, len);
                self.call(at, |channel, handle| {
                    let mut buffer = channel.alloc(len);
                    buffer.extend_from_slice(&bytes);
                    channel.write_quiet(handle, buffer).map(drop)
                });
            }
            Step::Read(at, len) => {
                if let Some(link) = self.links.get_mut(at).filter(|it| it.handle.is_some()) {
                    link.wanted += len;
                }
            }
            Step::End(at, how) => {
                self.call(at, |channel, handle| channel.disconnect(handle, how));
                if let Some(link) = self.links.get_mut(at) {
                    link.gave_up |= how != Disconnect::Write;
                }
            }
            Step::ToFd(at) => self.call(at, Channel::to_fd),
            Step::Unregister(at) => self.unregister(at),
            Step::PeerSend(at, len) => self.peer_send(at, len),
            Step::PeerShut(at) => {
                if let Some(peer) = self.links.get(at).and_then(|link| link.peer.as_ref()) {
                    // Shut already: nothing to do.
                    let _ = peer.shutdown(Shutdown::Write);
                }
            }
            Step::PeerClose(at) => drop(self.take_peer(at)),
            Step::PeerReset(at) => {
                if let Some(peer) = self.take_peer(at) {
                    reset(peer);
                }
            }
        }
    }

    fn open(&mut self, kind: Stream) {
        let (handle, peer) = self.scene.stream(kind);
        peer.set_nonblocking(true).expect("a socket");
        self.links.push(Link {
            handle: Some(handle),
            left: None,
            peer: Some(peer),
            wanted: 0,
            reading: false,
            sent_by_peer: 0,
            gave_up: false,
            log: Log::default(),
        });
    }

    fn call(
        &mut self,
        at: usize,
        call: impl FnOnce(&mut Channel, Handle) -> Result<(), megapipe::SubmitError>,
    ) {
        let Some(link) = self.links.get_mut(at) else { return };
        let Some(handle) = link.handle else { return };
        if let Err(refused) = call(&mut self.scene, handle) {
            link.log.refused.push(refused.to_string());
        }
    }

    fn unregister(&mut self, at: usize) {
        let Some(link) = self.links.get_mut(at) else { return };
        let Some(handle) = link.handle.take() else { return };
        link.wanted = 0;
        let left = self.scene.unregister(handle).expect("its handle is known");
        for unread in &left.unread {
            link.take_in(unread);
        }
        link.left = left.fd.map(peer);
        self.empty_left(at);
        // A descriptor that came back is closed, as an lwsocket is.
        self.links[at].left = None;
    }

    fn take_peer(&mut self, at: usize) -> Option<Peer> {
        self.links.get_mut(at)?.peer.take()
    }

    /// The peer sends, as far as it will be read or fits into any socket buffer: how much more a
    /// peer can send depends on how far the channel receives ahead.
    fn peer_send(&mut self, at: usize, len: usize) {
        let Some(link) = self.links.get(at) else { return };
        let unread = link.sent_by_peer.saturating_sub(link.log.read.0.len());
        let len = len.min((link.wanted + UNREAD_BYTES_MAX).saturating_sub(unread));
        let bytes = pattern(self.seed, len);
        let (mut sent, mut stuck) = (0, 0);
        while sent < len && stuck < 3 {
            let Some(link) = self.links.get_mut(at) else { return };
            let Some(mut peer) = link.peer.as_ref() else { return };
            match peer.write(&bytes[sent..]) {
                Ok(count) => {
                    sent += count;
                    link.sent_by_peer += count;
                    stuck = 0;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stuck += 1;
                    self.settle();
                }
                Err(_) => return,
            }
        }
    }

    /// Goes on until nothing happens any more.
    fn settle(&mut self) {
        let start = Instant::now();
        let mut calm = 0;
        while calm < 3 {
            assert!(start.elapsed() < PATIENCE, "it never comes to rest");
            let wait = if calm < 2 { Duration::ZERO } else { self.quiet };
            let mut moved = false;
            while let Some(done) = self.scene.dispatch(Some(wait)).expect("dispatches") {
                self.note(done);
                moved = true;
            }
            for at in 0..self.links.len() {
                moved |= self.empty_peer(at) | self.ask(at);
                self.empty_left(at);
            }
            calm = if moved { 0 } else { calm + 1 };
        }
    }

    /// Keeps a read outstanding for what is wanted.
    fn ask(&mut self, at: usize) -> bool {
        let link = &mut self.links[at];
        let Some(handle) = link.handle.filter(|_| link.wanted > 0 && !link.reading) else {
            return false;
        };
        match self.scene.read(handle, link.wanted) {
            Ok(()) => link.reading = true,
            Err(refused) => {
                link.log.refused.push(refused.to_string());
                link.wanted = 0;
            }
        }
        true
    }

    /// Takes what has reached the peer.
    fn empty_peer(&mut self, at: usize) -> bool {
        let link = &mut self.links[at];
        let Some(mut peer) = link.peer.as_ref().filter(|_| link.log.peer_end.is_none()) else {
            return false;
        };
        let before = link.log.reached.0.len();
        match peer.read_to_end(&mut link.log.reached.0) {
            Ok(_) => link.log.peer_end = Some("end"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => link.log.peer_end = Some("reset"),
        }
        link.log.peer_end.is_some() || link.log.reached.0.len() > before
    }

    /// Takes what is in the socket that the handle became.
    fn empty_left(&mut self, at: usize) {
        let link = &mut self.links[at];
        let Some(left) = link.left.as_mut() else { return };
        left.set_nonblocking(true).expect("a socket");
        // Whether it ends there, by a reset or not, is in the peer's own log.
        let mut bytes = Vec::new();
        let _ = left.read_to_end(&mut bytes);
        link.take_in(&bytes);
    }

    fn note(&mut self, done: Completion) {
        if let Some(timer) = self.timers.iter_mut().find(|(timer, _)| *timer == done.handle) {
            let Event::Timer { expirations } = done.event else { panic!("{done:?}") };
            timer.1 += expirations;
            return;
        }
        let at = self.links.iter().position(|link| link.handle == Some(done.handle));
        let at = at.expect("a completion of a live handle");
        let link = &mut self.links[at];
        match done.event {
            Event::Read(Ok(bytes)) if !bytes.is_empty() => {
                link.reading = false;
                link.wanted = link.wanted.checked_sub(bytes.len()).expect("no more than asked");
                link.take_in(&bytes);
            }
            Event::Read(_) if link.gave_up => {
                link.reading = false;
                link.wanted = 0;
            }
            Event::Read(ended) => {
                link.reading = false;
                link.wanted = 0;
                link.log.read_ends.push(format!("{:?}", ended.map(|_| "end")));
            }
            // Which of the two depends on who hears of the reset first, reading or writing.
            Event::Write(Err(OpError::Reset | OpError::BrokenPipe)) => {
                link.log.writes.push("broken".to_owned());
            }
            Event::Write(result) => link.log.writes.push(format!("{result:?}")),
            Event::Disconnect(result) => link.log.others.push(format!("disconnect {result:?}")),
            Event::ToFd(Ok(moved)) => {
                link.log.others.push("moved".to_owned());
                link.handle = None;
                for unread in &moved.unread {
                    link.take_in(unread);
                }
                link.left = Some(peer(moved.fd));
                self.empty_left(at);
            }
            other => link.log.others.push(format!("{other:?}")),
        }
    }
}

/// Each connection's log, and how often each timer expired.
type Outcome = (Vec<Log>, Vec<u64>);

/// A configuration's name, and how to make one.
type Named = (&'static str, fn() -> Config);

fn small(config: Config) -> Config {
    let queues = config.batch(1).submission_entries(8).completion_entries(8);
    queues.buffer_len(64).buffer_count(4)
}

fn uring() -> Config {
    Config::default().driver(DriverChoice::Uring)
}

fn epoll() -> Config {
    Config::default().driver(DriverChoice::Epoll)
}

#[cfg(feature = "local")]
fn local() -> Config {
    epoll().backend(crate::place::network().expect("a network was made before"))
}

/// The channels that have to agree. The small ones meet every limit: no batching, buffers that
/// are short and few, queues that overflow.
const KERNELS: [Named; 4] = [
    ("uring", uring),
    ("epoll", epoll),
    ("small uring", || small(uring())),
    ("small epoll", || small(epoll())),
];

/// Our own stack has to agree with the kernel's.
#[cfg(feature = "local")]
const STACKS: [Named; 3] = [("epoll", epoll), ("local", local), ("small local", || small(local()))];

/// What is different, or nothing.
fn compare(channels: &[Named], program: &[Step]) -> Result<(), String> {
    let mut told = String::new();
    // A busy machine may deliver late: a difference has to show again with more patience.
    for quiet_us in [300, 20_000, 500_000] {
        let quiet = Duration::from_micros(quiet_us);
        let run = |(name, config): &Named| (*name, Run::whole(config(), program, quiet));
        let outcomes: Vec<_> = channels.iter().map(run).collect();
        let (name, expected) = &outcomes[0];
        let differing = outcomes.iter().find(|(_, outcome)| outcome != expected);
        let Some((other_name, other)) = differing else { return Ok(()) };
        told = format!("timers: {name} {:?}, {other_name} {:?}\n", expected.1, other.1);
        for (at, (one, other)) in expected.0.iter().zip(&other.0).enumerate() {
            if one != other {
                told += &format!("connection {at}\n  {name}: {one:?}\n  {other_name}: {other:?}\n");
            }
        }
    }
    Err(told)
}

fn text_of(program: &[Step]) -> String {
    program.iter().map(|step| format!("{step}\n")).collect()
}

fn missing_driver() -> Option<String> {
    [DriverChoice::Uring, DriverChoice::Epoll].into_iter().find_map(|driver| match Channel::create(
        Config::default().driver(driver),
    ) {
        Err(CreateError::DriverUnavailable { driver, reason }) => {
            Some(format!("{driver}: {reason}"))
        }
        Err(error) => panic!("{error:?}"),
        Ok(_) => None,
    })
}

#[test]
fn both_drivers_complete_random_programs_alike() {
    if let Some(why) = missing_driver() {
        println!("skipped: agreement::both_drivers_complete_random_programs_alike: {why}");
        return;
    }
    agree(&KERNELS, &KINDS, |_| true);
}

/// What only the kernel's sockets can do is left out: a move to a descriptor. So is what ends in a
/// reset by the peer, which closing does when more is sent to it: a reset flushes bytes and the end
/// of the stream that are still unread in our own stack (RFC 9293 §3.10.7.4), and not in Linux.
#[cfg(feature = "local")]
#[test]
fn our_own_stack_completes_random_programs_as_the_kernel_does() {
    if let Err(why) = crate::place::enter() {
        let name = "our_own_stack_completes_random_programs_as_the_kernel_does";
        println!("skipped: agreement::{name}: {why}");
        return;
    }
    let both =
        |step: &Step| !matches!(step, Step::ToFd(_) | Step::PeerReset(_) | Step::PeerClose(_));
    agree(&STACKS, &KINDS[..3], both);
}

/// Runs random programs of the steps that are allowed.
fn agree(channels: &[Named], kinds: &[(&str, Stream)], allows: fn(&Step) -> bool) {
    if let Some(file) = std::env::var_os(REPLAY) {
        let text = std::fs::read_to_string(file).expect("the file of the program");
        let program: Vec<Step> = text.lines().map(|line| line.parse().expect("a step")).collect();
        compare(channels, &program).unwrap_or_else(|told| panic!("{told}"));
        return;
    }
    let programs = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    let cases = programs.unwrap_or(PROGRAMS);
    let cases = Cases { cases, failure_persistence: None, ..Cases::default() };
    let mut runner = TestRunner::new(cases);
    // Every program begins with a connection, or most of it would be about nothing.
    let kinds: Vec<_> = kinds.iter().map(|(_, kind)| *kind).collect();
    let programs = (prop::sample::select(kinds), vec(step(), 1..STEPS_MAX));
    let programs = programs.prop_map(|(kind, mut steps)| {
        steps.retain(allows);
        steps.insert(0, Step::Open(kind));
        steps
    });
    let alike = |program: Vec<Step>| compare(channels, &program).map_err(TestCaseError::fail);
    match runner.run(&programs, alike) {
        Ok(()) => {}
        Err(TestError::Fail(told, program)) => {
            panic!("the drivers differ on this program:\n{}{told}", text_of(&program));
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn a_program_can_be_written_down_and_read_back() {
    let program = [
        Step::Open(Stream::AcceptedUnix),
        Step::Write(0, 5),
        Step::Read(1, 6),
        Step::End(2, Disconnect::Reset),
        Step::Unregister(0),
        Step::ToFd(3),
        Step::Timer,
        Step::PeerSend(1, 2),
        Step::PeerShut(0),
        Step::PeerClose(0),
        Step::PeerReset(0),
    ];
    let back: Result<Vec<Step>, _> = text_of(&program).lines().map(str::parse).collect();
    assert_eq!(back.as_deref(), Ok(&program[..]));
    assert!("write one 2".parse::<Step>().is_err() && "".parse::<Step>().is_err());
}
