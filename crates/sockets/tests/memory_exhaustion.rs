//! Socket calls with each of their allocations refused in turn, on the kernel and on our own stack.
//!
//! The allocator of this test program refuses the Nth request for memory inside [`calling`], on
//! any thread of the program. Every N runs in a process of its own, because an allocation
//! that expects memory ends the process: the failure then names N.
//!
//! The last scenarios refuse memory to the threads of placements `thread` and `core`, too: a call
//! or the session fails then, and the process goes on.
//!
//! Expected: a call works or answers ENOMEM, the same call succeeds when it is repeated, also on
//! the same socket, and bytes that were acknowledged arrive once, in order.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use megapipe::{Backend, DriverChoice, LocalNetwork, Placement, ServerConfig};
use megapipe_link::{LinkMedium, PairConfig, pair};
use megapipe_sockets::{
    Bsd, Config, Context, Driving, EpollEvent, EpollOp, Error, Events, Fd, FdSet, MsgFlags,
    OpenFlags, PollFd, SharedContext, Shutdown,
};

/// Which request is refused, in a process that runs one scenario.
const REFUSED: &str = "MEGAPIPE_TEST_REFUSED_ALLOCATION";
/// If it is set, a process that refuses prints where.
const TRACE: &str = "MEGAPIPE_TEST_TRACE";
/// If it is set, each allocation is refused, not one in a few.
const EVERY: &str = "MEGAPIPE_TEST_EVERY_ALLOCATION";
/// Printed where all requests were granted.
const ALL_GRANTED: &str = "every allocation was granted";
const PATIENCE: Duration = Duration::from_secs(20);
/// Tables grow several times for so many.
const CONNECTIONS: usize = 20;
const MESSAGE: usize = 9_000;

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Requests that are granted before one is refused; negative: all are.
static GRANTED: AtomicI64 = AtomicI64::new(-1);
/// The scenario has its context.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Requests of threads that the library started count too.
static SERVERS_COUNT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CALLING: Cell<bool> = const { Cell::new(false) };
    /// A thread of the test, whose own memory is not refused.
    static OF_TEST: Cell<bool> = const { Cell::new(false) };
}

fn is_counted() -> bool {
    let of_server =
        SERVERS_COUNT.load(Ordering::Relaxed) && OF_TEST.try_with(Cell::get) == Ok(false);
    of_server || CALLING.try_with(Cell::get) == Ok(true)
}

fn is_refused() -> bool {
    let counts = BEGUN.load(Ordering::Relaxed) && is_counted();
    counts && GRANTED.load(Ordering::Relaxed) >= 0 && GRANTED.fetch_sub(1, Ordering::Relaxed) == 0
}

// SAFETY: memory comes from the system's allocator, or is refused with a null pointer.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused() {
            CALLING.set(false);
            if std::env::var_os(TRACE).is_some() {
                eprintln!("{}", std::backtrace::Backtrace::force_capture());
            }
            CALLING.set(true);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from `System` by `alloc`.
        unsafe { System.dealloc(memory, layout) };
    }
}

/// Runs a call, and once more where it answers that there is no memory.
fn calling<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    CALLING.set(true);
    let mut result = call();
    if matches!(result, Err(Error::NoMemory)) {
        result = call();
    }
    CALLING.set(false);
    result
}

/// As [`calling`]: a call that works, now or when it is repeated.
#[track_caller]
fn works<T>(call: impl FnMut() -> Result<T, Error>) -> T {
    match calling(call) {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// Bytes that follow from a number.
fn message(number: usize) -> Vec<u8> {
    (0..MESSAGE).map(|place| (number * 7 + place) as u8).collect()
}

/// Where the sockets are.
#[derive(Debug, Clone, Copy)]
enum Place {
    Kernel(DriverChoice),
    Stack(Placement),
}

impl Place {
    /// One in so many allocations is refused, unless [`EVERY`] is set: each takes a process.
    fn step(self) -> usize {
        if std::env::var_os(EVERY).is_some() {
            return 1;
        }
        match self {
            Self::Stack(Placement::Core(_)) => 11,
            Self::Stack(Placement::Thread) => 7,
            Self::Stack(_) => 3,
            Self::Kernel(_) => 5,
        }
    }

    fn config(self) -> (Config, IpAddr) {
        let channel = megapipe::Config::default();
        match self {
            Self::Kernel(driver) => {
                (Config::default().channel(channel.driver(driver)), [127, 0, 0, 1].into())
            }
            Self::Stack(placement) => {
                // Frames for its own address stay in the stack.
                let ip = IpAddr::from([10, 9, 0, 1]);
                let link = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
                let (link, other) = pair(&link).expect("a pair");
                std::mem::forget(other);
                let addresses = vec![(ip, 24)];
                let settings =
                    ServerConfig { addresses, connections: 512, ..ServerConfig::default() };
                let network = LocalNetwork::over(vec![Box::new(link)], settings);
                let backend = Backend::Local(network.expect("one queue"));
                let channel = channel.driver(DriverChoice::Epoll).placement(placement);
                (Config::default().channel(channel.backend(backend)), ip)
            }
        }
    }
}

/// A program on one context that talks to itself.
struct Program<B> {
    sockets: B,
    ip: IpAddr,
}

impl<B: Bsd> Program<B> {
    fn listen(&mut self) -> (Fd, SocketAddr) {
        let Self { sockets, ip } = self;
        let fd = works(|| sockets.socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        works(|| sockets.bind(fd, SocketAddr::new(*ip, 0)));
        works(|| sockets.listen(fd, 16));
        (fd, works(|| sockets.getsockname(fd)))
    }

    fn connect(&mut self, address: SocketAddr) -> Fd {
        let sockets = &mut self.sockets;
        let fd = works(|| sockets.socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        works(|| sockets.connect(fd, Some(address)));
        fd
    }

    /// A connection that is accepted: the client's end, and the server's. Without memory accept(2)
    /// answers ENOMEM, and the connection may have been reset: the client connects again.
    fn connection(&mut self, listener: Fd, address: SocketAddr) -> (Fd, Fd) {
        for _ in 0..5 {
            let client = self.connect(address);
            let name = works(|| self.sockets.getsockname(client));
            loop {
                CALLING.set(true);
                let accepted = self.sockets.accept4(listener, OpenFlags::empty());
                CALLING.set(false);
                let server = match accepted {
                    Ok(server) => server,
                    Err(Error::NoMemory) => break,
                    Err(other) => panic!("{other}"),
                };
                // One that was given up may be accepted first.
                if calling(|| self.sockets.getpeername(server)) == Ok(name) {
                    return (client, server);
                }
                works(|| self.sockets.close(server));
            }
            works(|| self.sockets.close(client));
        }
        panic!("no connection was accepted");
    }

    fn watch(&mut self, set: Fd, fd: Fd) {
        let event = EpollEvent { events: Events::IN, data: fd as u64 };
        works(|| self.sockets.epoll_ctl(set, EpollOp::Add(event), fd));
    }

    fn write_all(&mut self, fd: Fd, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = works(|| self.sockets.write(fd, bytes));
            bytes = &bytes[len..];
        }
    }

    fn read_exact(&mut self, fd: Fd, want: &[u8]) {
        let mut bytes = vec![0; want.len() + 1];
        let mut filled = 0;
        while filled < want.len() {
            let len = works(|| self.sockets.read(fd, &mut bytes[filled..]));
            assert!(len > 0, "the end after {filled} bytes");
            filled += len;
        }
        assert!(bytes[..filled] == *want, "bytes are as they were written");
    }

    /// The descriptors that a set reports, at least one.
    fn wait(&mut self, set: Fd) -> Vec<Fd> {
        let mut events = [EpollEvent::default(); 8];
        let count = works(|| self.sockets.epoll_wait(set, &mut events, Some(PATIENCE)));
        assert!(count > 0, "an event comes");
        events[..count].iter().map(|event| event.data as Fd).collect()
    }
}

/// Connections: made, watched, written, read in every way, and closed.
fn streams<B: Bsd>(mut program: Program<B>) {
    let (listener, address) = program.listen();
    let set = works(|| program.sockets.epoll_create1(OpenFlags::empty()));
    program.watch(set, listener);
    let mut ends = Vec::new();
    for _ in 0..CONNECTIONS {
        ends.push(program.connection(listener, address));
    }
    for (_, server) in &ends {
        program.watch(set, *server);
    }
    for (number, (client, server)) in ends.iter().copied().enumerate() {
        let bytes = message(number);
        program.write_all(client, &bytes);
        assert_eq!(program.wait(set), [server]);
        peek_and_poll(&mut program.sockets, server, bytes[0]);
        program.read_exact(server, &bytes);
    }
    unread(&mut program, ends[0]);
    for (client, server) in ends {
        works(|| program.sockets.shutdown(client, Shutdown::Write));
        assert_eq!(works(|| program.sockets.read(server, &mut [0; 8])), 0);
        works(|| program.sockets.close(server));
        works(|| program.sockets.close(client));
    }
    works(|| program.sockets.close(listener));
    // With memory again, everything works.
    let (listener, address) = program.listen();
    let (client, server) = program.connection(listener, address);
    program.write_all(client, &message(1));
    program.read_exact(server, &message(1));
}

fn peek_and_poll<B: Bsd>(sockets: &mut B, fd: Fd, first: u8) {
    let mut asked = [PollFd::new(fd, Events::IN)];
    assert_eq!(works(|| sockets.poll(&mut asked, Some(PATIENCE))), 1);
    let mut sets: [FdSet; 3] = std::array::from_fn(|_| vec![0; fd as usize / 64 + 1]);
    works(|| {
        sets[0][fd as usize / 64] |= 1 << (fd % 64);
        sockets.select(&mut sets, Some(PATIENCE))
    });
    let mut bytes = [0; 1];
    assert_eq!(works(|| sockets.recv(fd, &mut bytes, MsgFlags::PEEK)), 1);
    assert_eq!(bytes[0], first);
    let mut kind = [0; 4];
    works(|| sockets.getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, &mut kind));
}

/// More than the program reads: many pieces, of which a call looks at more than are taken ahead.
fn unread<B: Bsd>(program: &mut Program<B>, (client, server): (Fd, Fd)) {
    const PIECES: usize = 30;
    works(|| {
        let on = 1_i32.to_ne_bytes();
        program.sockets.setsockopt(client, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on)
    });
    let mut all = Vec::new();
    for number in 0..PIECES {
        let piece = &message(number)[..500];
        program.write_all(client, piece);
        all.extend_from_slice(piece);
        works(|| program.sockets.poll(&mut [PollFd::new(server, Events::IN)], Some(PATIENCE)));
    }
    let mut bytes = vec![0; all.len()];
    for flags in [MsgFlags::PEEK, MsgFlags::PEEK | MsgFlags::WAITALL] {
        // Without memory for more a call shows what is here.
        let len = works(|| program.sockets.recv(server, &mut bytes, flags));
        assert!(len > 0 && bytes[..len] == all[..len]);
    }
    program.read_exact(server, &all);
}

/// Pipes, counters and datagrams.
fn others<B: Bsd>(mut program: Program<B>) {
    let [reader, writer] = works(|| program.sockets.pipe2(OpenFlags::empty()));
    let set = works(|| program.sockets.epoll_create1(OpenFlags::empty()));
    program.watch(set, reader);
    for number in 0..4 {
        program.write_all(writer, &message(number));
        assert_eq!(program.wait(set), [reader]);
        program.read_exact(reader, &message(number));
    }
    let counter = works(|| program.sockets.eventfd(0, false, OpenFlags::empty()));
    works(|| program.sockets.write(counter, &1_u64.to_ne_bytes()));
    assert_eq!(works(|| program.sockets.read(counter, &mut [0; 8])), 8);
    let mut ends = Vec::new();
    for _ in 0..2 {
        let Program { sockets, ip } = &mut program;
        let fd = works(|| sockets.socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
        works(|| sockets.bind(fd, SocketAddr::new(*ip, 0)));
        let short = [libc::timeval { tv_sec: 0, tv_usec: 300_000 }];
        let [libc::timeval { tv_sec, tv_usec }] = short;
        let time = [tv_sec.to_ne_bytes(), tv_usec.to_ne_bytes()].concat();
        works(|| sockets.setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time));
        ends.push((fd, works(|| sockets.getsockname(fd))));
    }
    let [(one, _), (other, to)] = ends[..] else { unreachable!("two") };
    for number in 0..8 {
        exchange(&mut program.sockets, one, (other, to), &message(number)[..900]);
    }
    for (fd, _) in ends {
        works(|| program.sockets.close(fd));
    }
}

/// A datagram, which may be lost, arrives whole.
fn exchange<B: Bsd>(sockets: &mut B, from: Fd, (fd, to): (Fd, SocketAddr), bytes: &[u8]) {
    for _ in 0..20 {
        works(|| sockets.sendto(from, &[IoSlice::new(bytes)], Some(to), MsgFlags::empty()));
        let mut room = [0; 1000];
        let received = calling(|| {
            let mut parts = [IoSliceMut::new(&mut room)];
            sockets.recvfrom(fd, &mut parts, MsgFlags::empty())
        });
        match received {
            Ok(received) => return assert!(room[..received.len] == *bytes),
            Err(Error::WouldBlock) => {}
            Err(other) => panic!("{other}"),
        }
    }
    panic!("every datagram was lost");
}

/// Threads that share a context, and block in every kind of call.
fn threads(context: &SharedContext, ip: IpAddr) {
    let mut program = Program { sockets: context.clone(), ip };
    let (listener, address) = program.listen();
    let server = {
        let mut program = Program { sockets: context.clone(), ip };
        std::thread::spawn(move || {
            let mut others = Vec::new();
            for number in 0..8 {
                let sockets = &mut program.sockets;
                let fd = works(|| sockets.accept4(listener, OpenFlags::empty()));
                let mut program = Program { sockets: program.sockets.clone(), ip };
                others.push(std::thread::spawn(move || {
                    program.read_exact(fd, &message(0));
                    program.write_all(fd, &message(1));
                    works(|| program.sockets.close(fd));
                }));
                if number % 4 == 0 {
                    others.drain(..).for_each(|thread| thread.join().expect("no panic"));
                }
            }
            others.into_iter().for_each(|thread| thread.join().expect("no panic"));
        })
    };
    for _ in 0..8 {
        let client = program.connect(address);
        let set = works(|| program.sockets.epoll_create1(OpenFlags::empty()));
        program.watch(set, client);
        program.write_all(client, &message(0));
        assert_eq!(program.wait(set), [client]);
        program.read_exact(client, &message(1));
        works(|| program.sockets.close(client));
        works(|| program.sockets.close(set));
    }
    server.join().expect("no panic");
}

/// An echo server and its clients, one after the other. Ends at the first error.
fn echo<B: Bsd>(sockets: &mut B, ip: IpAddr) -> Result<(), Error> {
    let ready = |sockets: &mut B, fd| {
        let count = sockets.poll(&mut [PollFd::new(fd, Events::IN)], Some(PATIENCE))?;
        assert!(count > 0, "it stands still");
        Ok::<(), Error>(())
    };
    let listener = sockets.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    sockets.bind(listener, SocketAddr::new(ip, 0))?;
    sockets.listen(listener, 16)?;
    let address = sockets.getsockname(listener)?;
    for number in 0..CONNECTIONS {
        let bytes = message(number);
        let client = sockets.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
        sockets.connect(client, Some(address))?;
        ready(sockets, listener)?;
        let server = sockets.accept4(listener, OpenFlags::empty())?;
        for (from, to) in [(client, server), (server, client)] {
            let mut written = 0;
            while written < MESSAGE {
                written += sockets.write(from, &bytes[written..])?;
            }
            let (mut got, mut filled) = (vec![0; MESSAGE], 0);
            while filled < MESSAGE {
                ready(sockets, to)?;
                let len = sockets.read(to, &mut got[filled..])?;
                if len == 0 {
                    return Err(Error::BrokenPipe);
                }
                filled += len;
            }
            assert!(got == bytes, "bytes are as they were written");
        }
        if number % 2 == 0 {
            sockets.close(client)?;
        }
        sockets.close(server)?;
    }
    Ok(())
}

/// Runs a scenario in processes of its own until no allocation is refused.
fn each_refused(name: &str, place: Place, scenario: fn(Place)) {
    if let Some(number) = std::env::var_os(REFUSED) {
        let number = number.to_str().and_then(|it| it.parse().ok()).expect("a number");
        GRANTED.store(number, Ordering::Relaxed);
        std::thread::spawn(|| {
            std::thread::sleep(3 * PATIENCE);
            eprintln!("it stands still");
            std::process::abort();
        });
        scenario(place);
        if GRANTED.load(Ordering::Relaxed) >= 0 {
            println!("{ALL_GRANTED}");
        }
        return;
    }
    if let Place::Kernel(driver) = place
        && let Err(error) = megapipe::Channel::create(megapipe::Config::default().driver(driver))
    {
        return println!("skipped: {name}: {error}");
    }
    let this = std::env::current_exe().expect("a test has a path");
    for number in (0..2_000).step_by(place.step()) {
        let mut command = Command::new(&this);
        command.args(["--exact", name, "--nocapture"]).env(REFUSED, number.to_string());
        let output = command.output().expect("a test can run itself");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "allocation {number}: {}\n{text}", output.status);
        if text.contains(ALL_GRANTED) {
            return;
        }
    }
    panic!("{name}: more allocations than calls");
}

fn begin_to_refuse() {
    BEGUN.store(true, Ordering::Relaxed);
}

fn program(place: Place) -> Program<Context> {
    let (config, ip) = place.config();
    let sockets = Context::create(config).expect("a context");
    begin_to_refuse();
    Program { sockets, ip }
}

fn run_streams(place: Place) {
    streams(program(place));
}

fn run_others(place: Place) {
    others(program(place));
}

fn run_threads(place: Place) {
    let (config, ip) = place.config();
    let context = SharedContext::create(config, Driving::Callers).expect("a context");
    begin_to_refuse();
    threads(&context, ip);
}

/// Memory is refused to the threads of the library: a call fails at most, and the process goes on.
fn run_echo(place: Place) {
    OF_TEST.set(true);
    SERVERS_COUNT.store(true, Ordering::Relaxed);
    let Program { mut sockets, ip } = program(place);
    let done = echo(&mut sockets, ip);
    drop(sockets);
    BEGUN.store(false, Ordering::Relaxed);
    if let Err(error) = done {
        println!("refused: {error}");
        assert!(GRANTED.load(Ordering::Relaxed) < 0, "{error} while no memory was refused");
    }
}

const EPOLL: Place = Place::Kernel(DriverChoice::Epoll);
const URING: Place = Place::Kernel(DriverChoice::Uring);
const INLINE: Place = Place::Stack(Placement::Inline);
const THREAD: Place = Place::Stack(Placement::Thread);
const CORE: Place = Place::Stack(Placement::Core(None));

macro_rules! scenarios {
    ($($name:ident: $scenario:ident, $place:expr;)*) => {
        $(#[test]
        fn $name() {
            each_refused(stringify!($name), $place, $scenario);
        })*
    };
}

scenarios! {
    epoll_streams_survive_each_failed_allocation: run_streams, EPOLL;
    uring_streams_survive_each_failed_allocation: run_streams, URING;
    inline_streams_survive_each_failed_allocation: run_streams, INLINE;
    thread_streams_survive_each_failed_allocation: run_streams, THREAD;
    core_streams_survive_each_failed_allocation: run_streams, CORE;
    epoll_pipes_and_datagrams_survive_each_failed_allocation: run_others, EPOLL;
    uring_pipes_and_datagrams_survive_each_failed_allocation: run_others, URING;
    inline_pipes_and_datagrams_survive_each_failed_allocation: run_others, INLINE;
    thread_pipes_and_datagrams_survive_each_failed_allocation: run_others, THREAD;
    core_pipes_and_datagrams_survive_each_failed_allocation: run_others, CORE;
    epoll_threads_survive_each_failed_allocation: run_threads, EPOLL;
    inline_threads_survive_each_failed_allocation: run_threads, INLINE;
    thread_threads_survive_each_failed_allocation: run_threads, THREAD;
    core_threads_survive_each_failed_allocation: run_threads, CORE;
    thread_server_survives_each_failed_allocation: run_echo, THREAD;
    core_server_survives_each_failed_allocation: run_echo, CORE;
}
