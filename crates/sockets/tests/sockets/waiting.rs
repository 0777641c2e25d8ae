//! Calls that wait for descriptors of the process and for sockets of ours, on one thread and on
//! many.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use megapipe::{Clock, DriverChoice};
use megapipe_sockets::{
    Bsd, Config, Context, CreateError, Driving, EpollEvent, EpollOp, Events, Fd, OpenFlags, PollFd,
    SharedContext,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::world::{STACK_IPS, STACK_PLACES, StackPlace, stack_configs};

/// Long enough that the other thread sleeps by then.
const PAUSE: Duration = Duration::from_millis(20);
/// Nothing that a test waits for takes so long.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(60);

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

fn ring(fd: impl AsFd) {
    rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
}

/// Each kind of context of one thread, with another that reaches it, and its address. Each on a
/// thread of its own: what is left of a ring interrupts the thread that had it once more, later.
fn each_pair(test: impl Fn([Config; 2], IpAddr) + Sync) {
    let test = |configs, ip| {
        std::thread::scope(|scope| {
            let tested = scope.spawn(|| test(configs, ip)).join();
            tested.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    };
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let config = || Config::default().channel(megapipe::Config::default().driver(driver));
        match Context::create(config()) {
            Ok(_) => test([config(), config()], [127, 0, 0, 1].into()),
            Err(CreateError::Channel(error)) => println!("skipped: {driver:?}: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
    for place in STACK_PLACES {
        test(stack_configs(&Clock::new(), place), STACK_IPS[0].into());
    }
}

fn watch<'fd>(
    context: &mut impl Bsd,
    set: Fd,
    fd: impl Into<megapipe_sockets::AnyFd<'fd>>,
    (events, data): (Events, u64),
) {
    context.epoll_ctl(set, EpollOp::Add(EpollEvent { events, data }), fd).unwrap();
}

fn wait(context: &mut impl Bsd, set: Fd) -> Vec<u64> {
    let mut events = [EpollEvent::default(); 16];
    let count = context.epoll_wait(set, &mut events, Some(FOR_EVER)).unwrap();
    events[..count].iter().map(|event| event.data).collect()
}

/// A connection between two contexts of one thread each: the server's, then the client's.
fn connect(server: &mut Context, client: &mut Context, ip: IpAddr) -> (Fd, Fd) {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let listener = server.socket(libc::AF_INET, kind, 0).unwrap();
    server.bind(listener, (ip, 0).into()).unwrap();
    server.listen(listener, 4).unwrap();
    let address = server.getsockname(listener).unwrap();
    let fd = client.socket(libc::AF_INET, kind, 0).unwrap();
    client.connect(fd, Some(address)).unwrap_err();
    let accepted = loop {
        client.drive(Some(Duration::from_millis(1))).unwrap();
        server.drive(Some(Duration::from_millis(1))).unwrap();
        if let Ok(accepted) = server.accept4(listener, OpenFlags::NONBLOCK) {
            break accepted;
        }
    };
    client.drive(Some(Duration::from_millis(1))).unwrap();
    (accepted, fd)
}

#[test]
fn waiters_are_woken_by_either_kind() {
    each_pair(|[here, there], ip| {
        let mut server = Context::create(here).unwrap();
        let mut client = Context::create(there).unwrap();
        let (socket, peer) = connect(&mut server, &mut client, ip);
        let (reader, writer) = pipe();
        let inner = server.epoll_create1(OpenFlags::empty()).unwrap();
        let outer = server.epoll_create1(OpenFlags::empty()).unwrap();
        watch(&mut server, inner, &reader, (Events::IN, 1));
        watch(&mut server, inner, socket, (Events::IN, 2));
        watch(&mut server, outer, inner, (Events::IN, 3));
        let later = |writer: &OwnedFd| {
            let writer = writer.try_clone().unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(PAUSE);
                rustix::io::write(writer, b"x").unwrap();
            })
        };
        let drain = || rustix::io::read(&reader, &mut [0; 8]).unwrap();

        let thread = later(&writer);
        assert_eq!(wait(&mut server, inner), [1]);
        thread.join().unwrap();
        drain();
        let thread = later(&writer);
        assert_eq!(wait(&mut server, outer), [3]);
        assert_eq!(wait(&mut server, inner), [1]);
        thread.join().unwrap();
        drain();
        let thread = later(&writer);
        let mut asked = [PollFd::new(socket, Events::IN), PollFd::new(&reader, Events::IN)];
        assert_eq!(server.poll(&mut asked, Some(FOR_EVER)), Ok(1));
        assert_eq!(asked.map(|it| it.revents), [Events::empty(), Events::IN]);
        thread.join().unwrap();
        drain();
        let thread = later(&writer);
        let mut asked = [PollFd::new(outer, Events::IN)];
        assert_eq!(server.poll(&mut asked, Some(FOR_EVER)), Ok(1));
        thread.join().unwrap();
        drain();

        // And by a socket of ours, while the pipe is silent.
        client.send(peer, b"y", megapipe_sockets::MsgFlags::empty()).unwrap();
        client.drive(Some(Duration::ZERO)).unwrap();
        assert_eq!(wait(&mut server, inner), [2]);
        assert_eq!(server.read(socket, &mut [0; 8]), Ok(1));
        let mut events = [EpollEvent::default(); 4];
        let start = Instant::now();
        assert_eq!(server.epoll_wait(inner, &mut events, Some(PAUSE)), Ok(0));
        assert!(start.elapsed() >= PAUSE);
    });
}

#[test]
fn numbers_of_both_kinds_are_selected_together() {
    each_pair(|[here, there], ip| {
        let here = here.first_descriptor(1 << 20).process_below_first(true);
        let mut server = Context::create(here).unwrap();
        let mut client = Context::create(there).unwrap();
        let (socket, _peer) = connect(&mut server, &mut client, ip);
        let (reader, writer) = pipe();
        let number = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let mut sets = [vec![0; (socket as usize / 64) + 1], Vec::new(), Vec::new()];
        let mut put = |fd: Fd| sets[0][fd as usize / 64] |= 1 << (fd % 64);
        put(socket);
        put(number);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(PAUSE);
            rustix::io::write(&writer, b"x").unwrap();
            writer
        });
        assert_eq!(server.select(&mut sets, Some(FOR_EVER)), Ok(1));
        assert_eq!(sets[0][number as usize / 64], 1 << (number % 64));
        drop(thread.join().unwrap());
    });
}

/// What the calling thread has used of its processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn unwatched_events_wake_no_thread() {
    each_pair(|[here, there], ip| {
        let mut server = Context::create(here).unwrap();
        let mut client = Context::create(there).unwrap();
        let (socket, _peer) = connect(&mut server, &mut client, ip);
        let (reader, writer) = pipe();
        let set = server.epoll_create1(OpenFlags::empty()).unwrap();
        watch(&mut server, set, &reader, (Events::IN, 1));
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(wait(&mut server, set), [1]);
        // The pipe stays readable, and the call waits for something else.
        let (start, before) = (Instant::now(), processor_time());
        let mut asked = [PollFd::new(socket, Events::IN)];
        assert_eq!(server.poll(&mut asked, Some(10 * PAUSE)), Ok(0));
        assert!(start.elapsed() >= 10 * PAUSE);
        let used = processor_time() - before;
        assert!(used < 5 * PAUSE, "it slept: {used:?}");
        assert_eq!(wait(&mut server, set), [1], "it is readable still");
    });
}

/// What the threads of the crowd read from.
enum Source {
    Socket(Fd),
    Pipe(OwnedFd),
    Counter(OwnedFd),
}

/// A crowd of threads that wait for one set of both kinds, and how much each source brought.
struct Crowd {
    context: SharedContext,
    set: Fd,
    sources: Vec<Source>,
    how: Events,
    read: Vec<AtomicUsize>,
}

impl Crowd {
    fn total(&self) -> usize {
        self.read.iter().map(|count| count.load(Ordering::Acquire)).sum()
    }

    /// Takes what one source has, and asks to be told again.
    fn serve(&self, context: &mut SharedContext, event: EpollEvent) {
        let index = event.data as usize;
        let mut bytes = [0; 16];
        let count = match &self.sources[index] {
            Source::Socket(fd) => context.read(*fd, &mut bytes).unwrap_or(0),
            Source::Pipe(fd) => rustix::io::read(fd, &mut bytes).unwrap_or(0),
            Source::Counter(fd) => usize::from(rustix::io::read(fd, &mut bytes).is_ok()),
        };
        self.read[index].fetch_add(count, Ordering::AcqRel);
        if self.how.contains(Events::ONE_SHOT) {
            let again = EpollOp::Modify(EpollEvent { events: self.how, data: event.data });
            match &self.sources[index] {
                Source::Socket(fd) => context.epoll_ctl(self.set, again, *fd),
                Source::Pipe(fd) | Source::Counter(fd) => context.epoll_ctl(self.set, again, fd),
            }
            .unwrap();
        }
    }

    fn work(&self, expected: usize) {
        let mut context = self.context.clone();
        let mut events = [EpollEvent::default(); 3];
        let start = Instant::now();
        while self.total() < expected {
            assert!(start.elapsed() < FOR_EVER, "{:?} of {:?}", self.read, self.how);
            let patience = Some(Duration::from_millis(50));
            let count = context.epoll_wait(self.set, &mut events, patience).unwrap();
            events[..count].iter().for_each(|event| self.serve(&mut context, *event));
        }
    }
}

/// All write at once; the crowd reads each byte once.
fn a_crowd_waits(configs: [Config; 2], ip: IpAddr, how: Events) {
    const EACH: usize = 6;
    const ROUNDS: usize = 60;
    const THREADS: usize = 4;
    let [mut server, mut client] =
        configs.map(|config| SharedContext::create(config, Driving::Callers).unwrap());
    let listener = server.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    server.bind(listener, (ip, 0).into()).unwrap();
    server.listen(listener, 64).unwrap();
    let address = server.getsockname(listener).unwrap();
    let mut sources = Vec::new();
    let mut dialer = client.clone();
    let dialing = std::thread::spawn(move || {
        let dial = |_| {
            let fd = dialer.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
            dialer.connect(fd, Some(address)).unwrap();
            fd
        };
        (0..EACH).map(dial).collect::<Vec<Fd>>()
    });
    let (mut pipes, mut counters) = (Vec::new(), Vec::new());
    for _ in 0..EACH {
        sources.push(Source::Socket(server.accept4(listener, OpenFlags::NONBLOCK).unwrap()));
        let (reader, writer) = pipe();
        sources.push(Source::Pipe(reader));
        pipes.push(writer);
        let counter = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap();
        counters.push(counter.try_clone().unwrap());
        sources.push(Source::Counter(counter));
    }
    let sockets = dialing.join().unwrap();
    let set = server.epoll_create1(OpenFlags::empty()).unwrap();
    for (data, source) in (0..).zip(&sources) {
        match source {
            Source::Socket(fd) => watch(&mut server, set, *fd, (how, data)),
            Source::Pipe(fd) | Source::Counter(fd) => watch(&mut server, set, fd, (how, data)),
        }
    }
    let read = sources.iter().map(|_| AtomicUsize::new(0)).collect();
    let crowd = Crowd { context: server, set, sources, how, read };
    let expected = 3 * EACH * ROUNDS;
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(|| crowd.work(expected))));
        scope.spawn(|| (0..ROUNDS).for_each(|_| pipes.iter().for_each(write_one)));
        scope.spawn(|| (0..ROUNDS).for_each(|_| counters.iter().for_each(ring)));
        for _ in 0..ROUNDS {
            for fd in &sockets {
                assert_eq!(client.write(*fd, b"x"), Ok(1));
            }
        }
        // Small segments wait for acknowledgments, which a call has to process.
        let start = Instant::now();
        while crowd.total() < expected && start.elapsed() < FOR_EVER {
            client.drive(Some(PAUSE)).unwrap();
        }
    });
    let read: Vec<usize> = crowd.read.iter().map(|count| count.load(Ordering::Acquire)).collect();
    assert_eq!(read, [ROUNDS; 3 * EACH], "each byte once");
}

fn write_one(fd: &OwnedFd) {
    rustix::io::write(fd, b"x").unwrap();
}

#[test]
fn many_threads_wait_for_one_set_of_both_kinds() {
    // Each source has one reader at a time, or the first that comes.
    for how in [Events::IN | Events::ONE_SHOT, Events::IN, Events::IN | Events::EXCLUSIVE] {
        a_crowd_waits([Config::default(), Config::default()], [127, 0, 0, 1].into(), how);
        for place in STACK_PLACES {
            let configs = stack_configs(&Clock::new(), place);
            a_crowd_waits(configs, STACK_IPS[0].into(), how);
        }
    }
}

/// A thread that leads has nothing after all when it returns, because what woke it is gone, and
/// another thread has asked for the lead meanwhile.
#[test]
fn leader_that_finds_nothing_passes_the_lead_on() {
    const ROUNDS: usize = 500;
    /// More than a thread makes before it asks for the lead.
    const CALLS: usize = 20;
    let mut context = SharedContext::create(Config::default(), Driving::Callers).unwrap();
    let (noise, noisy) = pipe();
    let [stop, event] = [0; 2].map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let sets = [0; 2].map(|_| context.epoll_create1(OpenFlags::empty()).unwrap());
    watch(&mut context, sets[0], &noise, (Events::IN, 1));
    watch(&mut context, sets[0], &stop, (Events::IN, 2));
    watch(&mut context, sets[1], &event, (Events::IN | Events::EDGE, 3));
    let is_over = AtomicBool::new(false);
    let (next, rounds) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mut idle = context.clone();
        scope.spawn(move || while wait(&mut idle, sets[0]) != [2] {});
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                write_one(&noisy);
                let _ = rustix::io::read(&noise, &mut [0; 8]);
            }
        });
        scope.spawn(|| {
            for () in rounds {
                std::thread::sleep(Duration::from_micros(100));
                ring(&event);
            }
        });
        let is_woken = (0..ROUNDS).all(|_| {
            for _ in 0..CALLS {
                context.fcntl(sets[1], libc::F_GETFD, 0).unwrap();
            }
            next.send(()).unwrap();
            wait(&mut context, sets[1]) == [3]
        });
        drop(next);
        is_over.store(true, Ordering::Relaxed);
        ring(&stop);
        assert!(is_woken, "no thread led");
    });
}

#[test]
fn sleeper_sees_items_added_by_another_thread() {
    let mut context = SharedContext::create(Config::default(), Driving::Callers).unwrap();
    let set = context.epoll_create1(OpenFlags::empty()).unwrap();
    let (reader, writer) = pipe();
    rustix::io::write(&writer, b"x").unwrap();
    std::thread::scope(|scope| {
        let mut other = context.clone();
        let sleeper = scope.spawn(move || wait(&mut other, set));
        std::thread::sleep(PAUSE);
        watch(&mut context, set, &reader, (Events::IN | Events::EDGE, 5));
        assert_eq!(sleeper.join().unwrap(), [5]);
        // In poll, with nothing of ours beside it.
        let mut other = context.clone();
        let (quiet, loud) = pipe();
        let sleeper = scope.spawn(move || {
            let mut asked = [PollFd::new(&quiet, Events::IN)];
            (other.poll(&mut asked, Some(FOR_EVER)), asked[0].revents)
        });
        std::thread::sleep(PAUSE);
        write_one(&loud);
        assert_eq!(sleeper.join().unwrap(), (Ok(1), Events::IN));
    });
}

#[test]
fn in_virtual_time_kernel_descriptors_wake_waiters_at_a_poll() {
    let clock = Clock::by_hand();
    let [config, peer] = stack_configs(&clock, StackPlace::INLINE);
    let _peer = SharedContext::create(peer, Driving::Outside).unwrap();
    let mut context = SharedContext::create(config, Driving::Outside).unwrap();
    let set = context.epoll_create1(OpenFlags::empty()).unwrap();
    let (reader, writer) = pipe();
    watch(&mut context, set, &reader, (Events::IN, 5));
    std::thread::scope(|scope| {
        let mut other = context.clone();
        let sleeper = scope.spawn(move || wait(&mut other, set));
        while context.sleeping() == 0 {
            std::thread::yield_now();
        }
        context.poll_channel().unwrap();
        assert_eq!(context.sleeping(), 1, "nothing has happened");
        write_one(&writer);
        context.poll_channel().unwrap();
        assert_eq!(sleeper.join().unwrap(), [5]);
    });
}
