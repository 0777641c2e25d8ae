//! Two applications with a server beside each, on the two ends of a pair.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Instant as Clocked;

use megapipe_link::{
    FrameCounters, Link, LinkError, Pair, PairConfig, RxMetadata, TxMetadata, pair,
};
use megapipe_stack::{
    Chunk, CloseReason, ConnId, DatagramSharing, HeapMemory, ListenerId, Route, Undelivered,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::*;
use crate::clock::Clock;
use crate::config::Waits;
use crate::connection_manager::AcceptorId;
use crate::sharing::Sharing;

const PATIENCE: Duration = Duration::from_secs(10);
/// More than a poll takes, and much less than a test may.
const MOMENT: Duration = Duration::from_millis(20);

struct Application {
    end: SharedThread<HeapMemory>,
    /// Its own descriptor.
    own: OwnedFd,
    /// Sleeps by its descriptors.
    polls: bool,
    /// Takes the server's polls before it sleeps.
    stands_in: bool,
    /// Polls of its own that had work.
    own_polls: u32,
}

fn application(link: impl Link + 'static, last: u8, polls: bool) -> Application {
    let mut config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, last]), 24)],
        connections: 1_000,
        waits: Waits { spin: Duration::ZERO, ..Waits::default() },
        ..ServerConfig::default()
    };
    // A small message must not wait for the last one's acknowledgment.
    config.tcp.nagle = false;
    let own = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let watched = own.try_clone().expect("one more");
    let frames = Frames::Queue(Box::new(link));
    let end = start(frames, &config, HeapMemory::new(256, 2_048), None, watched);
    Application { end: end.expect("a thread"), own, polls, stands_in: false, own_polls: 0 }
}

fn applications(polls: bool) -> (Application, Application) {
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    (application(one, 1, polls), application(other, 2, polls))
}

fn http() -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, 2]), 80)
}

impl Application {
    /// The next event; it sleeps for it.
    #[track_caller]
    fn next(&mut self) -> Event {
        let start = Clocked::now();
        loop {
            if let Some((event, _)) = self.end.event() {
                return event;
            }
            assert!(start.elapsed() < PATIENCE, "nothing happens");
            if self.stands_in && self.poll() {
                continue;
            }
            self.sleep();
            self.end.check().expect("the server lives");
        }
    }

    /// Whether it took a poll that came to something.
    fn poll(&mut self) -> bool {
        let poll = self.end.poll(Clock::new().now()).expect("the link works");
        self.own_polls += u32::from(poll.worked());
        poll.worked()
    }

    /// Whether its own descriptor was readable.
    fn sleep(&mut self) -> bool {
        if !self.polls
            && let Slept::Woken { is_readable } = self.end.sleep(Some(PATIENCE))
        {
            return is_readable;
        }
        if !self.end.arm() {
            return false;
        }
        let own = PollFd::new(&self.own, PollFlags::IN);
        let bell = self.end.wait_fd();
        let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN), own];
        let timeout = Timespec::try_from(PATIENCE).expect("a short time");
        poll(&mut fds, Some(&timeout)).expect("poll works");
        let is_readable = !fds[1].revents().is_empty();
        self.end.wake_up();
        is_readable
    }

    fn listen(&mut self) -> ListenerId {
        let now = Clock::new().now();
        let mut shared = self.end.enter();
        let listener = shared.server.listen(now, http(), 100, Sharing::default());
        let listener = listener.expect("the port is free");
        shared.server.accept(listener, AcceptorId(7), 100).expect("one acceptor");
        listener
    }

    fn connect(&mut self) -> ConnId {
        let mut shared = self.end.enter();
        let now = shared.not_before(Clock::new().now());
        shared.server.connect(now, http(), None).expect("there is a way")
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut shared = self.end.enter();
        let now = shared.not_before(Clock::new().now());
        let (stack, memory) = shared.server.parts();
        let chunk = memory.chunk_of(bytes).expect("there are buffers");
        stack.send(now, conn, chunk, memory).expect("there is room");
    }

    fn receive(&mut self, conn: ConnId) {
        let mut shared = self.end.enter();
        let (stack, _) = shared.server.parts();
        stack.receive(Clock::new().now(), conn).expect("it is open");
    }

    fn take(&mut self, chunk: Chunk) -> Vec<u8> {
        let mut shared = self.end.enter();
        let (_, memory) = shared.server.parts();
        let bytes = memory.bytes(chunk).to_vec();
        memory.free(chunk.buf);
        bytes
    }

    fn shut_down(&mut self, conn: ConnId) {
        let mut shared = self.end.enter();
        let (stack, memory) = shared.server.parts();
        stack.shutdown(Clock::new().now(), conn, memory).expect("it is open");
    }
}

/// A connection, as both ends name it.
fn connected(client: &mut Application, server: &mut Application) -> (ConnId, ConnId) {
    let ours = client.connect();
    assert_eq!(client.next(), Event::Connected { conn: ours });
    let Event::Incoming { conn: theirs, .. } = server.next() else { panic!("no connection came") };
    (ours, theirs)
}

#[test]
fn bytes_go_both_ways_and_connections_end() {
    for (polls, stands_in) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut client, mut server) = applications(polls);
        (client.stands_in, server.stands_in) = (stands_in, stands_in);
        server.listen();
        let (ours, theirs) = connected(&mut client, &mut server);
        for round in 0..500_u32 {
            client.send(ours, &round.to_le_bytes());
            server.receive(theirs);
            client.receive(ours);
            client.end.flush();
            let Event::Received { chunk, .. } = server.next() else { panic!("in round {round}") };
            let text = server.take(chunk);
            server.send(theirs, &text);
            server.end.flush();
            let Event::Received { chunk, .. } = client.next() else { panic!("in round {round}") };
            assert_eq!(client.take(chunk), round.to_le_bytes());
        }
        server.receive(theirs);
        client.shut_down(ours);
        client.end.flush();
        assert_eq!(server.next(), Event::PeerClosed { conn: theirs });
        server.shut_down(theirs);
        server.end.flush();
        assert_eq!(server.next(), Event::Closed { conn: theirs, reason: CloseReason::Finished });
        let RemoteCounters { events, wakeups, .. } = server.end.counters();
        assert!(events > 500 && wakeups > 0 && wakeups <= events, "{events} in {wakeups}");
    }
}

/// The server's thread is awake, for it has told of a message or been told of one, and the
/// application is done before it.
#[test]
fn idle_application_polls_itself() {
    let (mut client, mut server) = applications(false);
    client.stands_in = true;
    server.listen();
    let (ours, theirs) = connected(&mut client, &mut server);
    let start = Clocked::now();
    while client.own_polls < 10 {
        assert!(start.elapsed() < PATIENCE, "{} polls", client.own_polls);
        client.send(ours, b"once more");
        server.receive(theirs);
        client.end.flush();
        // What it asked for.
        client.poll();
        let Event::Received { chunk, .. } = server.next() else { panic!("no message") };
        server.take(chunk);
    }
}

/// It waits for frames to wake it: a poll here would put an end to that.
#[test]
fn sleeping_server_thread_is_not_polled_for() {
    const ROUNDS: u32 = 20;
    let (mut client, mut server) = applications(false);
    server.listen();
    let (ours, theirs) = connected(&mut client, &mut server);
    client.receive(ours);
    for _ in 0..ROUNDS {
        let start = Clocked::now();
        client.end.flush();
        while !client.end.is_server_asleep() {
            assert!(start.elapsed() < PATIENCE, "it does not sleep");
            std::thread::yield_now();
        }
        // What it does before it sleeps.
        std::thread::sleep(Duration::from_millis(1));
        client.poll();
        server.send(theirs, b"wake up");
        server.end.flush();
        let Event::Received { chunk, .. } = client.next() else { panic!("no message") };
        client.take(chunk);
        client.receive(ours);
    }
    let info = server.end.look().server.stack().info(theirs).expect("it is open");
    // One here and there where others have the processor.
    assert!(info.segments_retransmitted < ROUNDS / 2, "{} came late", info.segments_retransmitted);
}

/// What the application asks for while it does not wait for anything goes out all the same.
#[test]
fn an_application_that_computes_delays_no_peer() {
    let (mut client, mut server) = applications(false);
    server.listen();
    let (ours, theirs) = connected(&mut client, &mut server);
    server.receive(theirs);
    server.end.flush();
    std::thread::sleep(MOMENT);
    // The client's server sleeps by now, and so does the other's.
    client.send(ours, b"go");
    client.end.flush();
    let start = Clocked::now();
    while !server.end.has_event() {
        assert!(start.elapsed() < PATIENCE, "nothing came");
        std::thread::yield_now();
    }
    // The peer's stack has acknowledged it, though its application has done nothing.
    let is_acknowledged = |client: &mut Application| {
        let mut shared = client.end.enter();
        let (stack, _) = shared.server.parts();
        stack.info(ours).expect("it is open").queued_bytes == 0
    };
    while !is_acknowledged(&mut client) {
        assert!(start.elapsed() < PATIENCE, "nothing is acknowledged");
        std::thread::yield_now();
    }
}

#[test]
fn a_sleeping_application_is_told_of_its_own_descriptor() {
    for polls in [false, true] {
        let (mut client, _server) = applications(polls);
        let own = client.own.as_fd().try_clone_to_owned().expect("one more");
        let writer = std::thread::spawn(move || {
            std::thread::sleep(MOMENT);
            rustix::io::write(&own, &1_u64.to_ne_bytes()).expect("an eventfd takes it");
        });
        let start = Clocked::now();
        // It may be woken in vain.
        while !client.sleep() {
            assert!(start.elapsed() < PATIENCE, "it is not told");
        }
        writer.join().expect("nothing failed there");
        rustix::io::read(&client.own, &mut [0_u8; 8]).expect("it was readable");
    }
}

#[test]
fn a_sleep_ends_when_its_time_is_over() {
    let (mut client, _server) = applications(false);
    let start = Clocked::now();
    while start.elapsed() < MOMENT {
        if client.end.sleep(Some(MOMENT)) == Slept::Polls {
            std::thread::yield_now();
        }
    }
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn timers_run_while_the_application_sleeps() {
    let (one, _silent) = pair(&PairConfig::default()).expect("a pair");
    let mut client = application(one, 1, false);
    let ours = client.connect();
    // No answer comes: the neighbour is not found.
    let Event::Closed { conn, reason } = client.next() else { panic!("it cannot be connected") };
    assert_eq!((conn, reason), (ours, CloseReason::HostUnreachable));
}

#[test]
fn a_link_that_breaks_ends_the_server_and_says_why() {
    let (mut client, server) = applications(false);
    let ours = client.connect();
    drop(server);
    client.end.flush();
    let start = Clocked::now();
    let error = loop {
        if let Err(error) = client.end.check() {
            break error;
        }
        assert!(start.elapsed() < PATIENCE, "it lives on");
        let _ = client.end.sleep(Some(MOMENT));
    };
    assert!(matches!(error, LinkError::Gone { .. }), "{error}");
    // The stack can still be asked.
    assert!(client.end.look().server.stack().info(ours).is_ok());
    assert!(client.end.check().is_err(), "it stays so");
}

/// Whichever thread meets it first.
#[test]
fn link_that_breaks_under_a_polling_application_ends_the_server() {
    for _ in 0..20 {
        let (mut client, server) = applications(false);
        client.connect();
        client.end.flush();
        drop(server);
        let start = Clocked::now();
        loop {
            if let Err(error) = client.end.poll(Clock::new().now()) {
                assert!(matches!(error, LinkError::Gone { .. }), "{error}");
            }
            if client.end.check().is_err() {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "it lives on");
        }
        let poll = client.end.poll(Clock::new().now()).expect("it asks the link no more");
        assert_eq!(poll, PollCounts::default());
    }
}

/// A link whose driver has a mistake in it: it panics when a frame comes.
struct Faulty(Pair);

impl Link for Faulty {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let count = self.0.rx_burst(max, each)?;
        assert_eq!(count, 0, "this panic is part of a test");
        Ok(0)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        self.0.tx_burst(max, fill)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.0.arm()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.0.wait_fd()
    }

    fn counters(&self) -> FrameCounters {
        self.0.counters()
    }
}

/// Sleeps until the server has ended. Nothing else wakes it.
#[track_caller]
fn ended(application: &mut Application) -> LinkError {
    let start = Clocked::now();
    loop {
        if let Err(error) = application.end.check() {
            return error;
        }
        application.sleep();
        assert!(start.elapsed() < PATIENCE, "it was not woken");
    }
}

#[test]
fn an_application_that_sleeps_is_woken_when_the_server_ends() {
    for round in 0..200 {
        let (mut client, server) = applications(round % 2 == 0);
        let breaker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * 10));
            drop(server);
        });
        assert!(matches!(ended(&mut client), LinkError::Gone { .. }));
        breaker.join().expect("nothing failed there");
    }
}

#[test]
fn an_application_that_sleeps_is_woken_when_the_server_panics() {
    for polls in [false, true] {
        let (one, other) = pair(&PairConfig::default()).expect("a pair");
        let mut server = application(Faulty(other), 2, polls);
        let listener = server.listen();
        let mut client = application(one, 1, polls);
        client.connect();
        client.end.flush();
        assert!(matches!(ended(&mut server), LinkError::Gone { driver: "the server" }));
        // What it had is as it was left.
        let mut shared = server.end.look();
        shared.server.unlisten(Clock::new().now(), listener);
    }
}

/// Events of a poll without a frame or a timer are published, too.
#[test]
fn a_sleeping_application_is_told_of_what_cannot_be_sent() {
    for round in 0..50 {
        let (mut client, _server) = applications(round % 2 == 0);
        let (endpoint, to) = {
            let mut shared = client.end.enter();
            let local = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 7_000);
            let endpoint = shared.server.bind(local, DatagramSharing::default());
            (endpoint.expect("it is free"), SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 9))
        };
        // The server sleeps by now, mostly.
        std::thread::sleep(Duration::from_micros(500));
        {
            let now = Clock::new().now();
            let mut shared = client.end.enter();
            let (stack, memory) = shared.server.parts();
            let way = Route { prefix: to.ip(), prefix_bits: 32, via: None };
            stack.set_routes(&[way]).expect("one route");
            let chunk = memory.chunk_of(b"unread").expect("there are buffers");
            stack.send_datagram(now, endpoint, (to, chunk), memory).expect("there is a way");
            // As a host does whose network changes.
            stack.set_routes(&[]).expect("no route");
        }
        let why = Undelivered::NetworkUnreachable;
        assert_eq!(client.next(), Event::DatagramRefused { endpoint, to, why });
    }
}

#[test]
fn it_is_refused_by_name_where_time_is_not_the_machines() {
    let (one, _other) = pair(&PairConfig::default()).expect("a pair");
    let config = ServerConfig { clock: Clock::by_hand(), ..ServerConfig::default() };
    let own = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let frames = Frames::Queue(Box::new(one));
    let Err(error) = start(frames, &config, HeapMemory::new(8, 2_048), None, own) else {
        panic!("it has no such clock")
    };
    assert!(error.to_string().contains("clock"), "{error}");
}

/// Sends everything back until the other end has no more, and waits in another way each time.
fn echo(mut server: Application, theirs: ConnId) -> Application {
    server.receive(theirs);
    loop {
        server.polls = !server.polls;
        server.stands_in ^= server.polls;
        match server.next() {
            Event::Received { chunk, .. } => {
                let text = server.take(chunk);
                server.send(theirs, &text);
                server.receive(theirs);
            }
            _ => return server,
        }
    }
}

/// Both ways of sleeping in turn, with messages, a descriptor of the application's own and times
/// that are over, all at once: a thread that is not woken waits for longer than a test may.
#[test]
fn no_thread_misses_a_wake_up_when_much_happens_at_once() {
    const LASTS: Duration = Duration::from_secs(1);
    // So many messages and rings, or later where others have the processor.
    const HAPPENS: (u32, u32) = (100, 10);
    let (mut client, mut server) = applications(false);
    server.listen();
    let (ours, theirs) = connected(&mut client, &mut server);
    let is_over = Arc::new(AtomicBool::new(false));
    let own = client.own.try_clone().expect("one more");
    let (heard, hears) = std::sync::mpsc::channel();
    let over = Arc::clone(&is_over);
    // Writes to the descriptor again as soon as it was heard.
    let writer = std::thread::spawn(move || {
        let mut written = 0_u32;
        while !over.load(Ordering::Relaxed) {
            rustix::io::write(&own, &1_u64.to_ne_bytes()).expect("an eventfd takes it");
            written += 1;
            hears.recv_timeout(PATIENCE).expect("the descriptor was slept through");
            std::thread::sleep(Duration::from_micros(u64::from(written % 7) * 40));
        }
        written
    });
    let echo = std::thread::spawn(move || echo(server, theirs));
    let start = Clocked::now();
    let (mut sent, mut came, mut rung) = (0_u32, 0_u32, 0_u32);
    client.receive(ours);
    client.send(ours, &sent.to_le_bytes());
    while start.elapsed() < LASTS || came <= HAPPENS.0 || rung <= HAPPENS.1 {
        assert!(start.elapsed() < 6 * PATIENCE, "{came} messages, {rung} others");
        if let Some((event, _)) = client.end.event() {
            let Event::Received { chunk, .. } = event else { panic!("{event:?}") };
            assert_eq!(client.take(chunk), sent.to_le_bytes());
            came += 1;
            sent += 1;
            client.receive(ours);
            client.send(ours, &sent.to_le_bytes());
            continue;
        }
        client.polls = came % 3 == 0;
        if came % 4 == 0 && client.poll() {
            continue;
        }
        let began = Clocked::now();
        if came % 5 == 0 && !client.polls {
            let _ = client.end.sleep(Some(Duration::from_micros(100)));
        } else {
            client.sleep();
        }
        assert!(began.elapsed() < PATIENCE / 2, "it slept through something");
        if rustix::io::read(&client.own, &mut [0_u8; 8]).is_ok() {
            heard.send(()).expect("the writer waits for it");
            rung += 1;
        }
        client.end.check().expect("the server lives");
    }
    is_over.store(true, Ordering::Relaxed);
    let _ = heard.send(());
    assert!(writer.join().expect("it was heard each time") >= rung);
    client.shut_down(ours);
    client.end.flush();
    drop(echo.join().expect("nothing failed there"));
}
