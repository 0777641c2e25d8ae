//! Calls that wait on sets with members of both kinds, until something comes from another thread.

use std::io::Write;
use std::time::{Duration, Instant};

use megapipe::DriverChoice;
use megapipe_sockets::{Bsd, Config, Context, EpollEvent, EpollOp, Events, OpenFlags};

/// A call that waits for both kinds wakes for either: it sleeps on the lookout, and not where a
/// context without such members sleeps.
#[test]
fn mixed_wait_wakes_for_either_kind() {
    const LONG: Duration = Duration::from_secs(20);
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let channel = megapipe::Config::default().driver(driver);
        let Ok(mut context) = Context::create(Config::default().channel(channel)) else {
            println!("skipped: {driver:?} cannot be had");
            continue;
        };
        let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        context.bind(listener, "127.0.0.1:0".parse().unwrap()).unwrap();
        context.listen(listener, 8).unwrap();
        let address = context.getsockname(listener).unwrap();
        let set = context.epoll_create1(OpenFlags::empty()).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let watch = |data| EpollOp::Add(EpollEvent { events: Events::IN, data });
        context.epoll_ctl(set, watch(1), listener).unwrap();
        context.epoll_ctl(set, watch(2), &reader).unwrap();
        std::thread::scope(|scope| {
            let pause = || std::thread::sleep(Duration::from_millis(20));
            // Its result, the peer of the connection, stays open until it is joined.
            let peer = scope.spawn(move || {
                pause();
                let mut stream = std::net::TcpStream::connect(address).unwrap();
                pause();
                stream.write_all(b"x").unwrap();
                pause();
                rustix::io::write(&writer, b"x").unwrap();
                stream
            });
            let mut events = [EpollEvent::default(); 4];
            let mut wait = |context: &mut Context, what: &str| {
                let start = Instant::now();
                let count = context.epoll_wait(set, &mut events, Some(LONG)).unwrap();
                let took = start.elapsed();
                assert!(count == 1 && took < LONG / 2, "{driver:?}, {what}: {count}, {took:?}");
                events[0].data
            };
            assert_eq!(wait(&mut context, "a connection"), 1);
            let stream = context.accept4(listener, OpenFlags::empty()).unwrap();
            context.epoll_ctl(set, watch(3), stream).unwrap();
            assert_eq!(wait(&mut context, "bytes"), 3);
            assert_eq!(context.read(stream, &mut [0; 8]), Ok(1));
            assert_eq!(wait(&mut context, "the pipe"), 2);
            drop(peer.join());
        });
    }
}
