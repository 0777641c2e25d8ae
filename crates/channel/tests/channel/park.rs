//! A channel in a program's own event loop: `park`, sleep on its descriptors, `dispatch`.
//!
//! Read first: `scene.rs`.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use megapipe::{Address, Channel, ConnectOptions, Event, Park};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, accept, bind, listen, socket};

use crate::scene::{A_WHILE, Case, Folder, PATIENCE, Stream, on_each_driver};

on_each_driver![
    a_channel_that_rests_is_woken_by_what_happens,
    a_timer_or_a_waker_ends_the_rest,
    work_without_a_kernel_event_is_retried,
];

/// Parks as a program's event loop would, at most for `patience`. Whether there is work.
fn sleep(channel: &mut Channel, patience: Duration) -> bool {
    let Park::Until(own) = channel.park().unwrap() else { return true };
    let patience = own.map_or(patience, |own| own.min(patience));
    let descriptors = channel.descriptors();
    let mut fds: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec::try_from(patience).unwrap())).unwrap() > 0
}

/// What the channel brings within the test's patience.
fn next(channel: &mut Channel) -> Event {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "nothing came");
        if let Some(done) = channel.dispatch(Some(Duration::ZERO)).unwrap() {
            return done.event;
        }
        // As long as it takes: a thread that is not woken is too late.
        sleep(channel, PATIENCE);
    }
}

fn a_channel_that_rests_is_woken_by_what_happens(case: &Case) {
    let mut scene = case.scene();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    scene.read(handle, 10).unwrap();
    scene.expect_silence();
    scene.write(handle, "handed over").unwrap();
    while !matches!(next(&mut scene.channel), Event::Write(Ok(11))) {}
    assert_eq!(scene.receive(&mut peer, 11), b"handed over");
    scene.expect_silence();
    let mut idle = 0;
    while idle < 3 {
        // What the peer's acknowledgment wakes is not for the program.
        idle = if sleep(&mut scene.channel, A_WHILE) { 0 } else { idle + 1 };
        assert!(scene.channel.dispatch(Some(Duration::ZERO)).unwrap().is_none());
    }
    scene.send(&mut peer, b"hello");
    let start = Instant::now();
    let Event::Read(Ok(bytes)) = next(&mut scene.channel) else { panic!() };
    assert_eq!(&*bytes, b"hello");
    assert!(start.elapsed() < PATIENCE / 2, "woken, not timed out");
}

fn a_timer_or_a_waker_ends_the_rest(case: &Case) {
    let mut scene = case.scene();
    let waker = scene.channel.waker();
    let ringing = std::thread::spawn(move || {
        std::thread::sleep(A_WHILE);
        waker.wake();
    });
    assert!(matches!(next(&mut scene.channel), Event::Wake));
    ringing.join().unwrap();
    let start = Instant::now();
    scene.timer(A_WHILE, None, 0).unwrap();
    let done = loop {
        if let Some(done) = scene.channel.dispatch(Some(Duration::ZERO)).unwrap() {
            break done;
        }
        assert!(!matches!(scene.channel.park().unwrap(), Park::Until(None)), "it has a timer");
        sleep(&mut scene.channel, PATIENCE);
    };
    assert!(matches!(done.event, Event::Timer { expirations: 1 }));
    assert!(start.elapsed() >= A_WHILE && start.elapsed() < PATIENCE / 2);
}

/// A UNIX socket's listener with a full queue: no event tells a client when there is room.
fn work_without_a_kernel_event_is_retried(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("socket");
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let address = SocketAddrUnix::new(&path).unwrap();
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let first = UnixStream::connect(&path).unwrap();
    scene.connect(&Address::unix(&path).unwrap(), &ConnectOptions::default(), 0).unwrap();
    let accepting = std::thread::spawn(move || {
        std::thread::sleep(A_WHILE);
        let accepted = accept(&listener).unwrap();
        (listener, accepted)
    });
    let start = Instant::now();
    let done = next(&mut scene.channel);
    assert!(matches!(done, Event::Connect(Ok(()))), "{done:?}");
    assert!(start.elapsed() < PATIENCE / 2, "tried again, not timed out");
    drop((accepting.join().unwrap(), first));
}
