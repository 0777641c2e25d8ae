//! Sockets that threads share: calls that wait, many who wait for one set, and virtual time.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::signals::timeval;
use crate::waiting::FOR_EVER;
use crate::world::{STACK_IPS, STACK_PLACES, StackPlace, stack_configs};
use megapipe::Clock;
use megapipe_sockets::{
    Bsd, Config, Driving, EpollEvent, EpollOp, Error, Events, Fd, MsgFlags, OpenFlags, PollFd,
    SharedContext, Shutdown,
};

/// Two hosts whose threads share their sockets, and the server's address.
struct Place {
    server: SharedContext,
    client: SharedContext,
    ip: IpAddr,
}

fn on_kernel() -> Place {
    let host = || SharedContext::create(Config::default(), Driving::Callers).unwrap();
    Place { server: host(), client: host(), ip: IpAddr::from([127, 0, 0, 1]) }
}

fn on_stack(place: StackPlace) -> Place {
    let [server, client] = stack_configs(&Clock::new(), place)
        .map(|config| SharedContext::create(config, Driving::Callers).unwrap());
    Place { server, client, ip: IpAddr::from(STACK_IPS[0]) }
}

fn listen(context: &mut SharedContext, ip: IpAddr, backlog: i32) -> (Fd, SocketAddr) {
    let fd = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    context.bind(fd, SocketAddr::new(ip, 0)).unwrap();
    context.listen(fd, backlog).unwrap();
    (fd, context.getsockname(fd).unwrap())
}

fn dial(context: &mut SharedContext, address: SocketAddr) -> Fd {
    let fd = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    context.connect(fd, Some(address)).unwrap();
    fd
}

/// A read that waits longer than any test does fails.
fn limit_reads(context: &mut SharedContext, fd: Fd) {
    let patience = timeval(Duration::from_secs(30));
    context.setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience).unwrap();
}

fn read_all(context: &mut SharedContext, fd: Fd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let count = context.read(fd, &mut bytes[filled..]).unwrap();
        assert!(count > 0, "the end after {filled} of {len} bytes");
        filled += count;
    }
    bytes
}

/// One thread for each connection on both sides, all blocking.
fn echo_by_threads(place: Place) {
    const CONNECTIONS: usize = 6;
    const MESSAGES: u32 = 50;
    let Place { mut server, client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 16);
    std::thread::scope(|scope| {
        let acceptor = server.clone();
        scope.spawn(move || {
            std::thread::scope(|scope| {
                for _ in 0..CONNECTIONS {
                    let mut context = acceptor.clone();
                    let fd = context.accept4(listener, OpenFlags::empty()).unwrap();
                    scope.spawn(move || {
                        let mut bytes = [0; 999];
                        loop {
                            match context.read(fd, &mut bytes).unwrap() {
                                0 => return context.close(fd).unwrap(),
                                count => assert_eq!(context.write(fd, &bytes[..count]), Ok(count)),
                            }
                        }
                    });
                }
            });
        });
        for number in 0..CONNECTIONS {
            let mut context = client.clone();
            scope.spawn(move || {
                let fd = dial(&mut context, address);
                for message in 0..MESSAGES {
                    let text = format!("message {message} of {number}").into_bytes();
                    assert_eq!(context.write(fd, &text), Ok(text.len()));
                    assert_eq!(read_all(&mut context, fd, text.len()), text);
                }
                context.close(fd).unwrap();
            });
        }
    });
    server.close(listener).unwrap();
}

#[test]
fn threads_that_block_are_served_on_the_kernel() {
    echo_by_threads(on_kernel());
}

#[test]
fn threads_that_block_are_served_on_our_own_stack() {
    STACK_PLACES.into_iter().map(on_stack).for_each(echo_by_threads);
}

/// A thread sleeps in the kernel for its socket, and others turn the channel beside it all the
/// time: what they find for the sleeper reaches it.
fn echo_beside_turns(place: Place) {
    const MESSAGES: u32 = 300;
    let Place { mut server, mut client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 16);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for busy in [server.clone(), client.clone()] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Twice: the second takes what the first has left for the sleeper.
                    busy.poll_channel().unwrap();
                    busy.poll_channel().unwrap();
                    std::thread::yield_now();
                }
            });
        }
        let mut answering = server.clone();
        scope.spawn(move || {
            let fd = answering.accept4(listener, OpenFlags::empty()).unwrap();
            let mut bytes = [0; 99];
            loop {
                match answering.read(fd, &mut bytes).unwrap() {
                    0 => return answering.close(fd).unwrap(),
                    count => assert_eq!(answering.write(fd, &bytes[..count]), Ok(count)),
                }
            }
        });
        let fd = dial(&mut client, address);
        for message in 0..MESSAGES {
            let text = message.to_le_bytes();
            assert_eq!(client.write(fd, &text), Ok(text.len()));
            assert_eq!(read_all(&mut client, fd, text.len()), text);
        }
        client.close(fd).unwrap();
        is_over.store(true, Ordering::Relaxed);
    });
    server.close(listener).unwrap();
}

#[test]
fn sleeper_is_woken_beside_polling_threads() {
    echo_beside_turns(on_kernel());
    STACK_PLACES.into_iter().map(on_stack).for_each(echo_beside_turns);
}

/// A write of more than fits blocks until the peer has read it.
fn a_long_write(place: Place) {
    const LEN: usize = 20 << 20;
    let Place { mut server, mut client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 16);
    std::thread::scope(|scope| {
        let mut context = server.clone();
        scope.spawn(move || {
            let fd = context.accept4(listener, OpenFlags::empty()).unwrap();
            let bytes = read_all(&mut context, fd, LEN);
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            assert_eq!(context.read(fd, &mut [0; 1]), Ok(0));
            context.close(fd).unwrap();
        });
        let fd = dial(&mut client, address);
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        assert_eq!(client.write(fd, &bytes), Ok(LEN), "all of it, in one call");
        client.shutdown(fd, Shutdown::Write).unwrap();
        assert_eq!(client.read(fd, &mut [0; 1]), Ok(0));
    });
}

#[test]
fn a_write_that_blocks_is_whole_on_the_kernel() {
    a_long_write(on_kernel());
}

#[test]
fn a_write_that_blocks_is_whole_on_our_own_stack() {
    STACK_PLACES.into_iter().map(on_stack).for_each(a_long_write);
}

/// A close with a linger time waits until the peer has everything, and no longer.
#[test]
fn a_close_that_lingers_is_over_when_the_peer_has_everything() {
    const LEN: usize = 3 << 20;
    let Place { mut server, mut client, ip } = on_stack(StackPlace::INLINE);
    let (listener, address) = listen(&mut server, ip, 16);
    let has_read = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (mut context, has_read) = (server.clone(), &has_read);
        scope.spawn(move || {
            let fd = context.accept4(listener, OpenFlags::empty()).unwrap();
            // It comes late, and reads slowly.
            std::thread::sleep(Duration::from_millis(30));
            let mut bytes = [0; 1 << 16];
            loop {
                match context.read(fd, &mut bytes).unwrap() {
                    0 => break,
                    count => drop(has_read.fetch_add(count, Ordering::SeqCst)),
                }
            }
            context.close(fd).unwrap();
        });
        let fd = dial(&mut client, address);
        let linger = [1_i32.to_ne_bytes(), 60_i32.to_ne_bytes()].concat();
        client.setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
        assert_eq!(client.write(fd, &vec![7; LEN]), Ok(LEN));
        let start = Instant::now();
        client.close(fd).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30), "it waits on, with all delivered");
        // What the peer's program has not read yet is in its buffers at most.
        let left = LEN - has_read.load(Ordering::SeqCst);
        assert!(left <= 2 << 20, "{left} bytes were not even sent");
        assert_eq!(client.close(fd), Err(Error::BadDescriptor));
    });
    assert_eq!(has_read.into_inner(), LEN);
}

/// Many threads wait for one set: each event reaches one of them.
fn many_wait_for_one_set(place: Place) {
    const THREADS: usize = 4;
    const CONNECTIONS: usize = 40;
    const ROUNDS: usize = 5;
    let Place { mut server, mut client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 128);
    let set = server.epoll_create1(OpenFlags::empty()).unwrap();
    let mut dialer = client.clone();
    let dialing = std::thread::spawn(move || {
        let clients: Vec<Fd> = (0..CONNECTIONS).map(|_| dial(&mut dialer, address)).collect();
        clients
    });
    for _ in 0..CONNECTIONS {
        let fd = server.accept4(listener, OpenFlags::NONBLOCK).unwrap();
        let event = EpollEvent { events: Events::IN | Events::ONE_SHOT, data: fd as u64 };
        server.epoll_ctl(set, EpollOp::Add(event), fd).unwrap();
    }
    let clients = dialing.join().unwrap();
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (mut context, served) = (server.clone(), &served);
            scope.spawn(move || {
                let mut events = [EpollEvent::default(); 3];
                while served.load(Ordering::Acquire) < CONNECTIONS * ROUNDS {
                    let patience = Some(Duration::from_millis(100));
                    let count = context.epoll_wait(set, &mut events, patience).unwrap();
                    for event in &events[..count] {
                        let fd = event.data as Fd;
                        let mut bytes = [0; 8];
                        assert_eq!(context.read(fd, &mut bytes), Ok(1), "one event, one reader");
                        served.fetch_add(1, Ordering::AcqRel);
                        assert_eq!(context.write(fd, &bytes[..1]), Ok(1));
                        let again = EpollEvent { events: Events::IN | Events::ONE_SHOT, ..*event };
                        context.epoll_ctl(set, EpollOp::Modify(again), fd).unwrap();
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            for fd in &clients {
                assert_eq!(client.write(*fd, &[round as u8]), Ok(1));
            }
            for fd in &clients {
                assert_eq!(read_all(&mut client, *fd, 1), [round as u8]);
            }
        }
    });
    assert_eq!(served.into_inner(), CONNECTIONS * ROUNDS);
}

#[test]
fn many_threads_wait_for_one_set_on_the_kernel() {
    many_wait_for_one_set(on_kernel());
}

#[test]
fn many_threads_wait_for_one_set_on_our_own_stack() {
    STACK_PLACES.into_iter().map(on_stack).for_each(many_wait_for_one_set);
}

#[test]
fn epoll_wait_on_an_idle_set_takes_its_timeout() {
    for place in STACK_PLACES.into_iter().map(on_stack).chain([on_kernel()]) {
        let mut context = place.server;
        let set = context.epoll_create1(OpenFlags::empty()).unwrap();
        let (start, mut events) = (Instant::now(), [EpollEvent::default(); 1]);
        let patience = Some(Duration::from_millis(60));
        assert_eq!(context.epoll_wait(set, &mut events, patience), Ok(0));
        assert!(start.elapsed() >= Duration::from_millis(60));
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

/// Whether a thread of this process sleeps in the kernel.
pub(crate) fn is_asleep(thread: rustix::thread::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

#[test]
fn in_virtual_time_a_call_sleeps_until_its_event_or_its_time() {
    let clock = Clock::by_hand();
    let [mut server, mut client] = stack_configs(&clock, StackPlace::INLINE)
        .map(|config| SharedContext::create(config, Driving::Outside).unwrap());
    let start = Instant::now();
    let turn_both = |server: &SharedContext, client: &SharedContext| {
        for _ in 0..8 {
            server.poll_channel().unwrap();
            client.poll_channel().unwrap();
        }
    };
    let (listener, address) = listen(&mut server, STACK_IPS[0].into(), 4);
    let (sender, answers) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut context = server.clone();
        scope.spawn(move || {
            let fd = context.accept4(listener, OpenFlags::empty()).unwrap();
            sender.send((fd as usize, clock_of(&context))).unwrap();
            let set = context.epoll_create1(OpenFlags::empty()).unwrap();
            let patience = Some(Duration::from_secs(3600));
            let count = context.epoll_wait(set, &mut [EpollEvent::default()], patience).unwrap();
            sender.send((count, clock_of(&context))).unwrap();
        });
        // It sleeps in a call, and has read the clock before.
        let asleep = server.clone();
        let wait_for_sleep = || {
            while asleep.sleeping() == 0 {
                std::thread::yield_now();
            }
        };
        wait_for_sleep();
        assert!(answers.try_recv().is_err(), "no connection came");
        let fd = client.socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0).unwrap();
        assert_eq!(client.connect(fd, Some(address)), Err(Error::InProgress));
        turn_both(&server, &client);
        answers.recv().expect("it accepted");
        wait_for_sleep();
        clock.advance(Duration::from_secs(3599));
        turn_both(&server, &client);
        assert!(answers.try_recv().is_err(), "a second is left");
        clock.advance(Duration::from_secs(1));
        turn_both(&server, &client);
        let (count, _) = answers.recv().unwrap();
        assert_eq!(count, 0);
    });
    assert!(start.elapsed() < Duration::from_secs(60), "an hour passes in no time");
}

/// When a context thinks its next turn is due: for the log of a failed test.
fn clock_of(context: &SharedContext) -> Option<Duration> {
    context.poll_channel().unwrap()
}

#[test]
fn unshareable_settings_are_refused_by_name() {
    let channel = megapipe::Config::default().driver(megapipe::DriverChoice::Uring);
    let refused = SharedContext::create(Config::default().channel(channel), Driving::Callers);
    assert!(refused.err().unwrap().to_string().contains("uring"));
    let [by_hand, _] = stack_configs(&Clock::by_hand(), StackPlace::INLINE);
    let refused = SharedContext::create(by_hand, Driving::Callers);
    assert!(refused.err().unwrap().to_string().contains("driven from outside"));
}

/// A call that waits beside one that sleeps in the kernel: what it asks for goes out before.
fn connect_beside_a_sleeper(place: Place) {
    let Place { mut server, mut client, ip } = place;
    let (_, address) = listen(&mut server, ip, 8);
    let epoll = client.epoll_create1(OpenFlags::empty()).unwrap();
    let driving = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while driving.load(Ordering::Relaxed) {
                server.drive(Some(Duration::from_millis(5))).unwrap();
            }
        });
        let mut waiting = client.clone();
        let sleeper = scope.spawn(move || {
            waiting.epoll_wait(epoll, &mut [EpollEvent::default()], None).unwrap_err()
        });
        while client.sleeping() == 0 {
            std::thread::yield_now();
        }
        let fd = client.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let patience = timeval(Duration::from_secs(20));
        client.setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &patience).unwrap();
        assert_eq!(client.connect(fd, Some(address)), Ok(()));
        client.close(epoll).unwrap();
        assert_eq!(sleeper.join().unwrap(), Error::BadDescriptor);
        driving.store(false, Ordering::Relaxed);
    });
}

#[test]
fn operations_are_submitted_while_a_leader_sleeps() {
    connect_beside_a_sleeper(on_kernel());
    STACK_PLACES.into_iter().for_each(|place| connect_beside_a_sleeper(on_stack(place)));
}

/// A thread drives for a while and goes; a thread that fell asleep beside it needs no other to
/// come.
fn wait_beside_a_driver(place: Place) {
    const LONG: Duration = Duration::from_secs(20);
    let Place { mut server, mut client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 8);
    let accepting = std::thread::spawn(move || {
        let connection = server.accept4(listener, OpenFlags::empty()).unwrap();
        (server, connection)
    });
    let fd = dial(&mut client, address);
    let (mut server, connection) = accepting.join().unwrap();
    let patience = timeval(LONG);
    server.setsockopt(connection, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience).unwrap();
    let is_gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (driver, is_gone) = (server.clone(), &is_gone);
        scope.spawn(move || {
            // Until the reader sleeps, mostly beside us.
            while driver.sleeping() == 0 {
                driver.drive(Some(Duration::from_millis(50))).unwrap();
            }
            is_gone.store(true, Ordering::Release);
        });
        let mut reader = server.clone();
        let reading = scope.spawn(move || {
            let start = Instant::now();
            (reader.read(connection, &mut [0; 8]), start.elapsed())
        });
        while !is_gone.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(client.write(fd, b"x"), Ok(1));
        let (answer, took) = reading.join().unwrap();
        assert_eq!(answer, Ok(1));
        assert!(took < LONG / 2, "no thread led: {took:?}");
    });
}

#[test]
fn sleeper_leads_after_the_driver_has_gone() {
    wait_beside_a_driver(on_kernel());
    STACK_PLACES.into_iter().for_each(|place| wait_beside_a_driver(on_stack(place)));
}

/// Everything is closed at once: what was written arrives, though it is more than a window and its
/// context is not driven any more, and what is closed has no owner.
fn close_all_at(place: Place) {
    const BYTES: usize = 300_000;
    let Place { mut server, mut client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 8);
    let reading = std::thread::spawn(move || {
        let connection = server.accept4(listener, OpenFlags::empty()).unwrap();
        limit_reads(&mut server, connection);
        assert!(read_all(&mut server, connection, BYTES).iter().all(|byte| *byte == 7));
        assert_eq!(server.read(connection, &mut [0]), Ok(0));
        // The other end does not acknowledge the end of this one.
        server.close_all(Duration::from_millis(20)).unwrap();
        assert_eq!(server.close(connection), Err(Error::BadDescriptor));
        assert_eq!(server.listen(listener, 1), Err(Error::BadDescriptor));
        // The link goes with it, and the other end may need it still.
        server
    });
    let epoll = client.epoll_create1(OpenFlags::empty()).unwrap();
    let fd = dial(&mut client, address);
    assert_eq!(client.write(fd, &vec![7; BYTES]), Ok(BYTES));
    client.close_all(Duration::from_secs(10)).unwrap();
    assert_eq!(client.close(fd), Err(Error::BadDescriptor));
    assert_eq!(client.close(epoll), Err(Error::BadDescriptor));
    drop(reading.join().unwrap());
}

#[test]
fn all_can_be_closed_at_once() {
    close_all_at(on_kernel());
    STACK_PLACES.into_iter().for_each(|place| close_all_at(on_stack(place)));
}

/// What a call requests leaves before it returns, though its thread, the only one, makes no other
/// call and sleeps in none.
fn submit_without_another_call(place: Place) {
    let Place { mut server, mut client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 8);
    let inbox = server.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
    server.bind(inbox, SocketAddr::new(ip, 0)).unwrap();
    let inbox_address = server.getsockname(inbox).unwrap();
    let accepting = std::thread::spawn(move || {
        let connections = [(); 2].map(|()| server.accept4(listener, OpenFlags::empty()).unwrap());
        for fd in [connections[0], connections[1], inbox] {
            limit_reads(&mut server, fd);
        }
        (server, connections)
    });
    let [fd, reset] = [(); 2].map(|()| dial(&mut client, address));
    // Nothing is held back for acknowledgments, which only a later call could see.
    let on = 1i32.to_ne_bytes();
    client.setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on).unwrap();
    let outbox = client.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
    let (mut server, [connection, to_reset]) = accepting.join().unwrap();
    let mut bytes = [0; 8];

    // Each of these is the last call for now.
    assert_eq!(client.write(fd, b"first"), Ok(5));
    assert_eq!(server.read(connection, &mut bytes), Ok(5));
    assert_eq!(client.write(fd, b"second"), Ok(6));
    assert_eq!(server.read(connection, &mut bytes), Ok(6));
    assert_eq!(
        client.sendto(outbox, &[IoSlice::new(b"third")], Some(inbox_address), MsgFlags::empty()),
        Ok(5)
    );
    assert_eq!(server.read(inbox, &mut bytes), Ok(5));
    client.shutdown(fd, Shutdown::Write).unwrap();
    assert_eq!(server.read(connection, &mut bytes), Ok(0));
    let linger = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
    client.setsockopt(reset, libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    client.close(reset).unwrap();
    assert_eq!(server.read(to_reset, &mut bytes), Err(Error::Reset));
}

#[test]
fn requests_of_the_last_call_leave() {
    submit_without_another_call(on_kernel());
    STACK_PLACES.into_iter().for_each(|place| submit_without_another_call(on_stack(place)));
}

fn poll_beside_a_shutdown(place: Place) {
    let Place { mut server, mut client, ip } = place;
    let (listener, address) = listen(&mut server, ip, 4);
    let (fd, accepted) = std::thread::scope(|scope| {
        let mut acceptor = server.clone();
        let accepted = scope.spawn(move || acceptor.accept4(listener, OpenFlags::empty()).unwrap());
        (dial(&mut client, address), accepted.join().unwrap())
    });
    let [reader, writer] = client.pipe2(OpenFlags::empty()).unwrap();
    let poll = |context: &SharedContext, fd: Fd, events: Events| {
        let mut context = context.clone();
        move || {
            let mut asked = [PollFd::new(fd, events)];
            (context.poll(&mut asked, Some(FOR_EVER)), asked[0].revents)
        }
    };
    // Long enough that the other thread sleeps by then.
    let pause = || std::thread::sleep(Duration::from_millis(30));
    std::thread::scope(|scope| {
        let ended = Events::IN | Events::RDHUP;
        let waiting = scope.spawn(poll(&client, fd, ended));
        pause();
        client.shutdown(fd, Shutdown::Read).unwrap();
        assert_eq!(waiting.join().unwrap(), (Ok(1), ended));
        let waiting = scope.spawn(poll(&client, reader, Events::IN));
        pause();
        assert_eq!(client.write(writer, b"x"), Ok(1));
        assert_eq!(waiting.join().unwrap(), (Ok(1), Events::IN));
        let waiting = scope.spawn(poll(&server, listener, Events::IN));
        pause();
        server.shutdown(listener, Shutdown::Read).unwrap();
        assert_eq!(waiting.join().unwrap().0, Ok(1));
    });
    server.close(accepted).unwrap();
}

#[test]
fn poll_ends_with_a_call_of_another_thread() {
    poll_beside_a_shutdown(on_kernel());
    for place in STACK_PLACES {
        poll_beside_a_shutdown(on_stack(place));
    }
}

/// A socket is closed while a thread waits for it, and its number is at once that of a pipe with
/// bytes: the wait is not for those.
fn close_beside_a_wait(place: Place) {
    const TIMES: usize = 20;
    let Place { mut server, ip, .. } = place;
    for _ in 0..TIMES {
        let waited = server.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        server.bind(waited, SocketAddr::new(ip, 0)).unwrap();
        limit_reads(&mut server, waited);
        let (thread, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            let mut context = server.clone();
            let waiter = scope.spawn(move || {
                thread.send(rustix::thread::gettid()).unwrap();
                context.read(waited, &mut [0; 9])
            });
            let waiting = begun.recv().unwrap();
            while !is_asleep(waiting) {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.close(waited).unwrap();
            let [reader, writer] = server.pipe2(OpenFlags::empty()).unwrap();
            assert_eq!(reader, waited);
            assert_eq!(server.write(writer, b"x"), Ok(1));
            assert_eq!(waiter.join().unwrap(), Err(Error::BadDescriptor));
            for end in [reader, writer] {
                server.close(end).unwrap();
            }
        });
    }
}

#[test]
fn wait_for_a_closed_socket_ends_although_its_number_is_in_use() {
    close_beside_a_wait(on_kernel());
    for place in STACK_PLACES {
        close_beside_a_wait(on_stack(place));
    }
}
