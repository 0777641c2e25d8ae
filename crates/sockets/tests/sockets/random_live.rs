//! Random programs of two threads, one for each end of a connection, that wait in every way a
//! program can: by calls that sleep and by calls that return at once. What was received, and how
//! the connection ended, is the same as on Linux; no program stalls.
//!
//! `MEGAPIPE_SEED=17 cargo test -p megapipe-sockets --test sockets random_live` runs one seed, and
//! `MEGAPIPE_SEED=0..10000` many.
//!
//! Read first: `liveness.rs`. A program writes down only what does not depend on time: all bytes
//! of each transfer, and the answers at the end of the connection.

use std::fmt::Write;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use megapipe::{Clock, DriverChoice};
use megapipe_sockets::{Config, Context};

use crate::host::{Answer, Ctl, Fd, Host};
use crate::linux::Linux;
use crate::namespace;
use crate::world::{STACK_IPS, STACK_PLACES, StackPlace, stack_configs};

/// Seeds that are the same each time, and new ones.
const FIXED: Range<u64> = 0..40;
const NEW: u64 = 10;
const SEED: &str = "MEGAPIPE_SEED";
/// Time after which a call that waits has stalled.
const STALL: Duration = Duration::from_secs(30);

/// A way to wait for bytes.
#[derive(Debug, Clone, Copy)]
enum Reads {
    Recv,
    Poll,
    PollBoth,
    Select,
    SelectBoth,
    EpollLevel,
    EpollEdge,
    EpollSleep,
    /// Until so many bytes can be peeked at, or are counted, or the low-water mark is reached.
    Peek(usize),
    Fionread(usize),
    LowWater(usize),
    WaitAll,
}

/// A way to wait for room.
#[derive(Debug, Clone, Copy)]
enum Writes {
    Send,
    Poll,
    PollBoth,
    Select,
    Outq,
    GetOption,
}

#[derive(Debug, Clone, Copy)]
struct End {
    no_delay: bool,
    send_buffer: Option<i32>,
    blocks: bool,
}

/// One transfer, from one end to the other.
#[derive(Debug, Clone, Copy)]
struct Phase {
    from_client: bool,
    pieces: usize,
    piece: usize,
    more: bool,
    writes: Writes,
    reads: Reads,
}

/// How the connection ends. The first end is the one that begins.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// One end shuts down, the other reads the end and closes.
    Orderly,
    /// One end writes and shuts down, or closes, while most of it has not left.
    WriteAndShutdown(usize),
    WriteAndClose(usize),
    /// One end closes with bytes that it has not read.
    Unread(usize),
    /// One end resets.
    Abort,
}

#[derive(Debug, Clone)]
struct Program {
    seed: u64,
    ends: [End; 2],
    phases: Vec<Phase>,
    client_begins: bool,
    ending: Ending,
    reads: Reads,
}

impl Program {
    fn of(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let phases = rng.usize(1..5);
        Self {
            seed,
            ends: [end(&mut rng), end(&mut rng)],
            phases: (0..phases).map(|_| phase(&mut rng)).collect(),
            client_begins: rng.bool(),
            ending: match rng.u8(0..6) {
                0 => Ending::Orderly,
                1 => Ending::WriteAndShutdown(rng.usize(1..40_000)),
                2 | 3 => Ending::WriteAndClose(rng.usize(1..40_000)),
                4 => Ending::Unread(rng.usize(1..3000)),
                _ => Ending::Abort,
            },
            reads: plain_reads(&mut rng),
        }
    }
}

fn end(rng: &mut fastrand::Rng) -> End {
    End {
        // Without it, small segments wait for acknowledgments that come late: 40 ms each.
        no_delay: rng.u8(0..8) > 0,
        send_buffer: rng
            .choice([None, None, Some(1), Some(4608), Some(9000), Some(42_000)])
            .flatten(),
        blocks: rng.u8(0..3) == 0,
    }
}

fn plain_reads(rng: &mut fastrand::Rng) -> Reads {
    match rng.u8(0..8) {
        0 => Reads::Recv,
        1 => Reads::Poll,
        2 => Reads::PollBoth,
        3 => Reads::Select,
        4 => Reads::SelectBoth,
        5 => Reads::EpollLevel,
        6 => Reads::EpollSleep,
        _ => Reads::EpollEdge,
    }
}

fn phase(rng: &mut fastrand::Rng) -> Phase {
    let piece = match rng.u8(0..4) {
        0 => 1,
        1 => rng.usize(1..100),
        2 => rng.usize(1..3000),
        _ => rng.usize(1..30_000),
    };
    let pieces = if piece > 3000 { rng.usize(1..4) } else { rng.usize(1..40) };
    let least = rng.usize(1..24_000);
    // Linux itself may stall where the mark is near what its receive buffer holds.
    let mark = rng.usize(1..3000);
    let reads = match rng.u8(0..12) {
        0 | 1 => Reads::Peek(least),
        2 | 3 => Reads::Fionread(least),
        4 | 5 => Reads::LowWater(mark),
        6 => Reads::WaitAll,
        _ => plain_reads(rng),
    };
    let writes = match rng.u8(0..6) {
        0 => Writes::Send,
        1 => Writes::Poll,
        2 => Writes::PollBoth,
        3 => Writes::Select,
        4 => Writes::Outq,
        _ => Writes::GetOption,
    };
    let (from_client, more) = (rng.bool(), rng.u8(0..4) == 0);
    Phase { from_client, pieces, piece, more, writes, reads }
}

/// What both threads of a program share.
#[derive(Default)]
struct Common {
    /// One has failed: the other need not wait.
    has_failed: AtomicBool,
    /// Ends that are connected.
    connected: AtomicUsize,
    /// Ends whose transfers are done: a reset may take what the peer has not read.
    transferred: AtomicUsize,
    /// Ends that are done.
    done: AtomicUsize,
}

/// One end while it runs.
struct Running<'a> {
    host: Box<dyn Host>,
    fd: Fd,
    epoll: Fd,
    /// A socket on which nothing happens.
    other: Fd,
    is_client: bool,
    program: &'a Program,
    common: &'a Common,
    log: String,
}

/// Fails the other end as well.
struct Alarm<'a>(&'a Common);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_failed.store(true, Ordering::Relaxed);
        }
    }
}

impl Running<'_> {
    fn note(&mut self, what: &str, answer: &dyn std::fmt::Debug) {
        writeln!(self.log, "{what}: {answer:?}").expect("a string takes anything");
    }

    /// Calls until the answer is there.
    fn until<T>(&mut self, what: &str, mut call: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(answer) = call(self) {
                return answer;
            }
            let stalled = begun.elapsed() >= STALL;
            let common = self.common;
            let who = if self.is_client { "client" } else { "server" };
            assert!(!stalled, "stalled: {what} at the {who}\n{}{:?}", self.log, self.program);
            assert!(!common.has_failed.load(Ordering::Relaxed), "the other end failed");
            // The other end, and a stack on a thread of its own, want the processor.
            std::thread::yield_now();
        }
    }

    fn option(&mut self, level: i32, name: i32, value: i32) {
        let fd = self.fd;
        self.host.setsockopt(fd, level, name, &value.to_ne_bytes()).expect("any system takes it");
    }

    fn set_up(&mut self) {
        let end = self.program.ends[usize::from(self.is_client)];
        self.option(libc::IPPROTO_TCP, libc::TCP_NODELAY, end.no_delay.into());
        if let Some(bytes) = end.send_buffer {
            self.option(libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
        }
        if end.blocks {
            let time = [STALL.as_secs(), 0].map(u64::to_ne_bytes).concat();
            for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                self.host.setsockopt(self.fd, libc::SOL_SOCKET, name, &time).unwrap();
            }
            self.host.fcntl(self.fd, libc::F_SETFL, 0).unwrap();
        }
        self.epoll = self.host.epoll_create1(0).unwrap();
    }

    // -- writing

    fn send(&mut self, bytes: &[u8], flags: i32, writes: Writes) {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.until("room", |it| match it.host.send(it.fd, &bytes[sent..], flags) {
                Ok(count) => Some(count),
                Err(libc::EAGAIN) => {
                    it.await_room(writes);
                    None
                }
                Err(error) => panic!("send: {error}\n{}{:?}", it.log, it.program),
            });
        }
    }

    fn await_room(&mut self, writes: Writes) {
        let (fd, both) = (self.fd, libc::POLLIN | libc::POLLOUT);
        match writes {
            Writes::Send => {}
            Writes::Poll => drop(self.host.poll(&[(fd, libc::POLLOUT)]).unwrap()),
            Writes::PollBoth => drop(self.host.poll(&[(fd, both)]).unwrap()),
            Writes::Select => drop(self.host.select(&[fd], &[fd]).unwrap()),
            Writes::Outq => drop(self.host.ioctl(fd, libc::TIOCOUTQ, 0).unwrap()),
            Writes::GetOption => {
                self.host.getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, 4).unwrap();
            }
        }
    }

    fn write(&mut self, phase: Phase, salt: usize) {
        let bytes = text(phase.pieces * phase.piece, salt);
        for (index, piece) in bytes.chunks(phase.piece).enumerate() {
            let more = phase.more && index + 1 < phase.pieces;
            self.send(piece, if more { libc::MSG_MORE } else { 0 }, phase.writes);
        }
    }

    // -- reading

    /// Reads exactly so many bytes.
    fn read(&mut self, len: usize, reads: Reads) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let left = len - bytes.len();
            match reads {
                Reads::Peek(least) | Reads::Fionread(least) | Reads::LowWater(least) => {
                    let least = least.min(left);
                    self.await_bytes(reads, least);
                    let read = self.host.recv(self.fd, least, 0).expect("bytes wait");
                    // Linux calls a full window enough, whatever the mark says.
                    let is_exact = !matches!(reads, Reads::LowWater(_));
                    let len = read.len();
                    assert!(len == least || (len > 0 && !is_exact), "{reads:?} saw {least}, {len}");
                    bytes.extend(read);
                }
                Reads::WaitAll => match self.recv(left, libc::MSG_WAITALL) {
                    Some(more) => bytes.extend(more),
                    None => std::thread::yield_now(),
                },
                _ => {
                    let answer = self.next(left, reads);
                    let more = answer.unwrap_or_else(|error| {
                        panic!("recv: {error}\n{}{:?}", self.log, self.program)
                    });
                    assert!(!more.is_empty(), "the end after {} of {len}", bytes.len());
                    bytes.extend(more);
                }
            }
        }
        if let Reads::LowWater(_) = reads {
            self.option(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
        }
        bytes
    }

    fn recv(&mut self, len: usize, flags: i32) -> Option<Vec<u8>> {
        self.until("bytes", |it| match it.host.recv(it.fd, len, flags) {
            Ok(bytes) => Some(Some(bytes)),
            Err(libc::EAGAIN) => None,
            Err(error) => panic!("recv: {error}\n{}{:?}", it.log, it.program),
        })
    }

    fn await_bytes(&mut self, reads: Reads, least: usize) {
        if let Reads::LowWater(_) = reads {
            self.option(libc::SOL_SOCKET, libc::SO_RCVLOWAT, least as i32);
        }
        self.until("enough bytes", |it| {
            let fd = it.fd;
            let is_enough = match reads {
                Reads::Peek(_) => match it.host.recv(fd, least, libc::MSG_PEEK) {
                    Ok(bytes) => bytes.len() == least,
                    Err(error) => {
                        assert_eq!(error, libc::EAGAIN);
                        false
                    }
                },
                Reads::Fionread(_) => {
                    it.host.ioctl(fd, libc::FIONREAD, 0).unwrap() as usize >= least
                }
                _ => it.host.poll(&[(fd, libc::POLLIN)]).unwrap()[0] & libc::POLLIN != 0,
            };
            is_enough.then_some(())
        });
    }

    /// The next bytes, the end or an error, after waiting for it in some way.
    fn next(&mut self, len: usize, reads: Reads) -> Answer<Vec<u8>> {
        let (fd, input, both) = (self.fd, libc::POLLIN, libc::POLLIN | libc::POLLOUT);
        let edge = matches!(reads, Reads::EpollEdge);
        if matches!(reads, Reads::EpollLevel | Reads::EpollEdge | Reads::EpollSleep) {
            let events = libc::EPOLLIN | if edge { libc::EPOLLET } else { libc::EPOLLOUT };
            let op = if self.host.epoll_ctl(self.epoll, Ctl::Add, fd, (events as u32, 1)).is_ok() {
                None
            } else {
                Some(Ctl::Modify)
            };
            if let Some(op) = op {
                self.host.epoll_ctl(self.epoll, op, fd, (events as u32, 1)).unwrap();
            }
        }
        let has_in =
            |told: &[(u32, u64)]| told.iter().any(|(bits, _)| bits & libc::EPOLLIN as u32 != 0);
        self.until("something to read", |it| {
            let host = &mut it.host;
            let is_ready = match reads {
                Reads::Poll => host.poll(&[(fd, input)]).unwrap()[0] & input != 0,
                Reads::PollBoth => host.poll(&[(fd, both)]).unwrap()[0] & input != 0,
                Reads::Select => !host.select(&[fd], &[]).unwrap()[0].is_empty(),
                Reads::SelectBoth => !host.select(&[fd], &[fd]).unwrap()[0].is_empty(),
                Reads::EpollLevel | Reads::EpollEdge => {
                    has_in(&host.epoll_wait(it.epoll, 4).unwrap())
                }
                Reads::EpollSleep => has_in(&host.epoll_pwait(it.epoll, 4, 10, None).unwrap()),
                _ => true,
            };
            match is_ready.then(|| it.host.recv(fd, len, 0)) {
                None | Some(Err(libc::EAGAIN)) => None,
                Some(answer) => Some(answer),
            }
        })
    }

    /// Reads until the end or an error.
    fn read_to_end(&mut self, reads: Reads) -> (Vec<u8>, Answer<()>) {
        let mut bytes = Vec::new();
        loop {
            match self.next(5000, reads) {
                Ok(more) if more.is_empty() => return (bytes, Ok(())),
                Ok(more) => bytes.extend(more),
                Err(error) => return (bytes, Err(error)),
            }
        }
    }

    fn close(&mut self) {
        let answer = self.host.close(self.fd);
        self.note("close", &answer);
    }

    // -- the whole

    fn run(&mut self) {
        self.set_up();
        self.meet(|common| &common.connected);
        for (index, phase) in self.program.phases.clone().into_iter().enumerate() {
            if phase.from_client == self.is_client {
                self.write(phase, index);
                self.note("written", &index);
            } else {
                let len = phase.pieces * phase.piece;
                let read = self.read(len, phase.reads);
                assert!(read == text(len, index), "other bytes than were sent");
                self.note("read", &len);
            }
        }
        self.meet(|common| &common.transferred);
        if self.program.client_begins == self.is_client {
            self.begin_end()
        } else {
            self.hear_end()
        }
        // What was closed leaves as the program goes on with something else.
        self.meet(|common| &common.done);
    }

    /// Waits until both ends are here, by calls that have nothing to do with the connection.
    fn meet(&mut self, count: fn(&Common) -> &AtomicUsize) {
        count(self.common).fetch_add(1, Ordering::Relaxed);
        self.until("the other end", |it| {
            let told = it.host.poll(&[(it.other, libc::POLLIN)]);
            let are_both_here = count(it.common).load(Ordering::Relaxed) == 2;
            // The other may be through already, and have taken its end of the link with it.
            assert!(are_both_here || told == Ok(vec![0]), "{told:?}");
            are_both_here.then_some(())
        });
    }

    fn begin_end(&mut self) {
        let reads = self.program.reads;
        match self.program.ending {
            Ending::Orderly => {
                let answer = self.host.shutdown(self.fd, libc::SHUT_WR);
                self.note("shutdown", &answer);
                let end = self.read_to_end(reads);
                self.note("end", &end);
            }
            Ending::WriteAndShutdown(len) => {
                self.send(&text(len, 7), 0, Writes::Poll);
                let answer = self.host.shutdown(self.fd, libc::SHUT_WR);
                self.note("shutdown", &answer);
                let end = self.read_to_end(reads);
                self.note("end", &end);
            }
            Ending::WriteAndClose(len) => self.send(&text(len, 7), 0, Writes::Poll),
            Ending::Unread(len) => self.await_bytes(Reads::Fionread(len), len),
            Ending::Abort => {
                let value = [1_i32, 0].map(i32::to_ne_bytes).concat();
                let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
                self.host.setsockopt(self.fd, level, name, &value).unwrap();
            }
        }
        self.close();
    }

    fn hear_end(&mut self) {
        if let Ending::Unread(len) = self.program.ending {
            self.send(&text(len, 8), 0, Writes::Poll);
        }
        let (bytes, end) = self.read_to_end(self.program.reads);
        if let Ending::WriteAndShutdown(len) | Ending::WriteAndClose(len) = self.program.ending {
            assert_eq!((bytes.len(), end), (len, Ok(())), "all that was written before the end");
            assert!(bytes == text(len, 7), "other bytes than were sent");
        }
        self.note("end", &(bytes.len(), end));
        if end.is_err() {
            let answer = self.host.send(self.fd, b"x", 0);
            self.note("send", &answer);
            let told = self.host.poll(&[(self.fd, libc::POLLIN | libc::POLLOUT)]);
            self.note("poll", &told);
        }
        self.close();
    }
}

fn text(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 31 + place / 251 + salt) as u8).collect()
}

/// The sockets of one end, made on the thread that uses them.
enum Make {
    Linux,
    Ours(Box<Config>),
}

impl Make {
    fn host(self) -> Box<dyn Host> {
        match self {
            Self::Linux => Box::new(Linux::default()),
            Self::Ours(config) => Box::new(Context::create(*config).expect("it could be had")),
        }
    }
}

/// Where a program runs.
#[derive(Debug, Clone, Copy)]
enum Place {
    Linux,
    Kernel(DriverChoice),
    Stack(StackPlace),
}

impl Place {
    fn makes(self) -> ([Make; 2], [u8; 4]) {
        match self {
            Self::Linux => ([Make::Linux, Make::Linux], [127, 0, 0, 1]),
            Self::Kernel(driver) => {
                let make = || {
                    let channel = megapipe::Config::default().driver(driver);
                    Make::Ours(Box::new(Config::default().channel(channel)))
                };
                ([make(), make()], [127, 0, 0, 1])
            }
            Self::Stack(place) => {
                let configs = stack_configs(&Clock::new(), place);
                (configs.map(|config| Make::Ours(Box::new(config))), STACK_IPS[0])
            }
        }
    }
}

fn connect(host: &mut dyn Host, to: SocketAddr) -> Fd {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let fd = host.socket(libc::AF_INET, kind, 0).unwrap();
    let begun = Instant::now();
    loop {
        match host.connect(fd, Some(to)) {
            Ok(()) => return fd,
            Err(libc::EINPROGRESS | libc::EALREADY) => {}
            Err(error) => panic!("connect: {error}"),
        }
        assert!(begun.elapsed() < STALL, "stalled: connect");
        std::thread::yield_now();
    }
}

fn accept(host: &mut dyn Host, listener: Fd) -> Fd {
    let begun = Instant::now();
    loop {
        match host.accept4(listener, libc::SOCK_NONBLOCK) {
            Ok(fd) => return fd,
            Err(error) => assert_eq!(error, libc::EAGAIN),
        }
        assert!(begun.elapsed() < STALL, "stalled: accept");
        std::thread::yield_now();
    }
}

fn end_of(make: Make, program: &Program, common: &Common, way: Way) -> String {
    let _alarm = Alarm(common);
    let is_linux = matches!(make, Make::Linux);
    let mut host = make.host();
    let other = host.socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0).unwrap();
    host.bind(other, SocketAddr::new([0; 4].into(), 0)).unwrap();
    let is_client = matches!(way, Way::Client(..));
    let fd = match way {
        Way::Client(address) => {
            let to = address.recv().expect("the server listens");
            connect(&mut *host, to)
        }
        Way::Server(ip, address) => {
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
            let listener = host.socket(libc::AF_INET, kind, 0).unwrap();
            host.bind(listener, SocketAddr::new(ip.into(), 0)).unwrap();
            host.listen(listener, 4).unwrap();
            address.send(host.getsockname(listener).unwrap()).expect("the client waits");
            let fd = accept(&mut *host, listener);
            host.close(listener).unwrap();
            fd
        }
    };
    if is_linux {
        // Linux closes the window when less than a segment of loopback (64 KiB) is free, and a
        // program that waits for more bytes than it has taken would wait for ever.
        let bytes = 400_000_i32.to_ne_bytes();
        host.setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes).unwrap();
    }
    let log = String::new();
    let mut running = Running { host, fd, epoll: -1, other, is_client, program, common, log };
    running.run();
    running.log
}

/// Which end a thread is.
enum Way {
    Server([u8; 4], mpsc::Sender<SocketAddr>),
    Client(mpsc::Receiver<SocketAddr>),
}

fn run(program: &Program, place: Place) -> [String; 2] {
    let ([server, client], ip) = place.makes();
    let common = Common::default();
    let (tx, rx) = mpsc::channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| end_of(server, program, &common, Way::Server(ip, tx)));
        let client = scope.spawn(|| end_of(client, program, &common, Way::Client(rx)));
        let ends = [server.join(), client.join()];
        // The first that failed says why.
        ends.map(|end| {
            end.unwrap_or_else(|panic| {
                println!("seed {} {place:?}", program.seed);
                std::panic::resume_unwind(panic)
            })
        })
    })
}

fn seeds() -> Vec<u64> {
    let asked = std::env::var(SEED).unwrap_or_default();
    let number = |text: &str| text.parse::<u64>().ok();
    if let Some((first, end)) = asked.split_once("..") {
        return (number(first).expect("a number")..number(end).expect("a number")).collect();
    }
    if let Some(seed) = number(&asked) {
        return vec![seed];
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let new = now.map_or(0, |it| it.as_nanos() as u64) >> 8;
    FIXED.chain((0..NEW).map(|step| new.wrapping_add(step))).collect()
}

#[test]
fn random_live_programs_end_as_on_linux() {
    namespace::enter_own();
    let mut places = vec![];
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let channel = megapipe::Config::default().driver(driver);
        match Context::create(Config::default().channel(channel)) {
            Ok(_) => places.push(Place::Kernel(driver)),
            Err(error) => {
                println!("skipped: random_live_programs_end_as_on_linux on {driver:?}: {error}");
            }
        }
    }
    places.extend(STACK_PLACES.map(Place::Stack));
    for seed in seeds() {
        let program = Program::of(seed);
        println!("{SEED}={seed} {program:?}");
        let linux = run(&program, Place::Linux);
        for place in &places {
            let ours = run(&program, *place);
            assert_eq!(ours, linux, "{SEED}={seed} on {place:?}: {program:#?}");
        }
    }
}
