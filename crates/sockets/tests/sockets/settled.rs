//! What a set tells of a socket that was read, or changed, since something happened to it: reads
//! before the set is asked, and after; in several sets at once, in sets of sets, by two threads.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use megapipe::Clock;
use megapipe_sockets::{
    Bsd, Driving, EpollEvent, EpollOp, Error, Events, Fd as OurFd, OpenFlags, SharedContext,
};

use crate::host::{Ctl, Fd};
use crate::waiting::FOR_EVER;
use crate::world::{Client, STACK_IPS, Server, StackPlace, World, compare, named, stack_configs};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Reads at the server, by read(2), once everything is there.
fn note_read(world: &mut World, fd: Fd, len: usize) {
    world.settle();
    let answer = world.host(Server).read(fd, len).map(|it| it.escape_ascii().to_string());
    world.note("read", &answer);
}

/// Writes at the client, and lets it arrive.
fn say(world: &mut World, fd: Fd, bytes: &[u8]) {
    world.note_send("send", Client, fd, bytes, 0);
}

#[test]
fn epoll_omits_bytes_read_before() {
    for how in [0, OUT, ET, OUT | ET, ONE_SHOT, ET | ONE_SHOT, EXCLUSIVE, EXCLUSIVE | ET] {
        compare(|world| {
            let (server, client) = world.connection();
            world.no_delay(Client, client);
            let epoll = world.watch(Server, server, (IN | how) as i32);
            for round in 0..3 {
                say(world, client, b"abc");
                note_read(world, server, 100);
                world.note_events(&format!("{round}: read before"), Server, epoll);
                say(world, client, b"def");
                world.note_events("told", Server, epoll);
                note_read(world, server, 100);
                world.note_events("read after", Server, epoll);
                say(world, client, b"ghi");
                note_read(world, server, 2);
                world.note_events("a part is left", Server, epoll);
                note_read(world, server, 100);
                note_read(world, server, 100);
                say(world, client, b"jkl");
                world.note_events("after the end of what there was", Server, epoll);
                world.note_recv("recv", Server, server, 100, 0);
                world.note_events("received", Server, epoll);
            }
        });
    }
}

#[test]
fn each_set_that_watches_has_its_own_memory_of_it() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Client, client);
        let sets = [IN, IN | OUT, IN | ET, IN | EXCLUSIVE, RDHUP]
            .map(|events| world.watch(Server, server, events as i32));
        let note_all = |world: &mut World, what: &str| {
            for (index, set) in sets.into_iter().enumerate() {
                world.note_events(&format!("{what}, set {index}"), Server, set);
            }
        };
        for _ in 0..2 {
            say(world, client, b"one");
            world.note_events("only the first set", Server, sets[0]);
            note_read(world, server, 100);
            note_all(world, "read");
            say(world, client, b"two");
            note_all(world, "data");
            note_read(world, server, 100);
            note_all(world, "read again");
        }
        world.host(Client).close(client).unwrap();
        note_all(world, "the end");
        note_read(world, server, 100);
        note_all(world, "the end, still");
    });
}

#[test]
fn sets_of_sets_tell_of_what_is_there_now() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Client, client);
        let inner = world.watch(Server, server, IN as i32);
        let level = world.watch(Server, inner, IN as i32);
        let edge = world.watch(Server, inner, (IN | ET) as i32);
        for _ in 0..2 {
            say(world, client, b"one");
            world.note_events("level", Server, level);
            note_read(world, server, 100);
            world.note_events("level, read", Server, level);
            world.note_events("inner, read", Server, inner);
            say(world, client, b"two");
            world.note_events("inner", Server, inner);
            world.note_events("level", Server, level);
            note_read(world, server, 100);
            world.note_events("level, read", Server, level);
            world.note_events("edge, read", Server, edge);
        }
    });
}

#[test]
fn changed_item_in_the_queue_makes_no_edge_of_its_set() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Client, client);
        let inner = world.watch(Server, server, IN as i32);
        let edge = world.watch(Server, inner, (IN | ET) as i32);
        say(world, client, b"one");
        world.note_events("edge", Server, edge);
        for how in [IN, IN | OUT, IN | ET, IN] {
            let changed = world.host(Server).epoll_ctl(inner, Ctl::Modify, server, (how, 8));
            world.note("change", &changed);
            world.note_events("edge, changed", Server, edge);
            world.note_events("inner", Server, inner);
            world.note_events("edge, told", Server, edge);
        }
    });
}

#[test]
fn items_that_are_settled_can_be_changed_and_taken_out() {
    compare(|world| {
        let pairs: Vec<_> = (0..4).map(|_| world.connection()).collect();
        let epoll = world.host(Server).epoll_create1(0).unwrap();
        for (data, (server, client)) in (0..).zip(&pairs) {
            world.no_delay(Client, *client);
            world.host(Server).epoll_ctl(epoll, Ctl::Add, *server, (IN, data)).unwrap();
            say(world, *client, b"ab");
        }
        world.note_events("all", Server, epoll);
        for (server, _) in &pairs {
            note_read(world, *server, 100);
        }
        let (host, fds) = (world.host(Server), [0, 1, 2].map(|index: usize| pairs[index].0));
        let answers = [
            host.epoll_ctl(epoll, Ctl::Delete, fds[0], (0, 0)),
            host.epoll_ctl(epoll, Ctl::Modify, fds[1], (IN | OUT, 11)),
            host.close(fds[2]),
        ];
        world.note("changes", &answers);
        world.note_events("room at one", Server, epoll);
        let (host, fds) = (world.host(Server), [0, 1].map(|index: usize| pairs[index].0));
        let answers = [
            host.epoll_ctl(epoll, Ctl::Add, fds[0], (IN, 20)),
            host.epoll_ctl(epoll, Ctl::Modify, fds[1], (IN, 21)),
        ];
        world.note("changes", &answers);
        world.note_events("nothing", Server, epoll);
        for index in [0, 1, 3] {
            say(world, pairs[index].1, b"cd");
        }
        world.note_events("three", Server, epoll);
        let mut seen = Vec::new();
        for index in [3, 0, 1] {
            note_read(world, pairs[index].0, 100);
            for _ in 0..2 {
                let told = world.host(Server).epoll_wait(epoll, 1).unwrap();
                seen.extend(named(&told));
            }
        }
        seen.sort_unstable();
        world.note("one place, and ever fewer that want it", &seen.len());
        world.note_events("nothing is left", Server, epoll);
    });
}

/// SO_RCVLOWAT at the server.
fn low_water(world: &mut World, fd: Fd, bytes: i32) {
    let value = bytes.to_ne_bytes();
    world.host(Server).setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &value).unwrap();
}

#[test]
fn a_lower_mark_makes_readable_what_was_too_little() {
    for how in [0, ET, ONE_SHOT] {
        compare(|world| {
            let (server, client) = world.connection();
            world.no_delay(Client, client);
            let epoll = world.watch(Server, server, (IN | how) as i32);
            low_water(world, server, 10);
            say(world, client, b"abcde");
            world.note_events("too little", Server, epoll);
            low_water(world, server, 3);
            world.note_events("enough", Server, epoll);
            note_read(world, server, 4);
            world.note_events("too little again", Server, epoll);
            low_water(world, server, 1);
            world.note_events("enough", Server, epoll);
            note_read(world, server, 100);
            low_water(world, server, 2);
            world.note_events("nothing", Server, epoll);
        });
    }
}

/// Reads whatever a set tells of, until all of `left` bytes are there; each thread does.
fn serve(context: &mut SharedContext, epoll: OurFd, left: &AtomicUsize) {
    let mut events = [EpollEvent::default(); 2];
    let mut bytes = [0; 5];
    let start = Instant::now();
    while left.load(SeqCst) > 0 {
        assert!(start.elapsed() < FOR_EVER, "{left:?} bytes are left");
        let wait = Some(Duration::from_millis(20));
        let count = context.epoll_wait(epoll, &mut events, wait).unwrap();
        for event in &events[..count] {
            // Another thread may have been quicker: the set is level triggered.
            match context.read(event.data as OurFd, &mut bytes) {
                Ok(len) => drop(left.fetch_sub(len, SeqCst)),
                Err(error) => assert_eq!(error, Error::WouldBlock),
            }
        }
    }
}

#[test]
fn two_threads_on_one_set_miss_nothing() {
    const CONNECTIONS: usize = 3;
    const ROUNDS: usize = 100;
    const MESSAGE: &[u8] = b"seven b";
    for place in [StackPlace::INLINE, StackPlace::THREAD] {
        let [server, client] = stack_configs(&Clock::new(), place)
            .map(|config| SharedContext::create(config, Driving::Callers).unwrap());
        // The link is there as long as both are.
        let (mut server, mut dialer) = (server, client.clone());
        let listener = server.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        server.bind(listener, std::net::SocketAddr::new(STACK_IPS[0].into(), 80)).unwrap();
        server.listen(listener, 8).unwrap();
        let address = server.getsockname(listener).unwrap();
        let epoll = server.epoll_create1(OpenFlags::empty()).unwrap();
        let left = AtomicUsize::new(CONNECTIONS * ROUNDS * MESSAGE.len());
        let left = &left;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let fds: Vec<OurFd> = (0..CONNECTIONS)
                    .map(|_| {
                        let fd = dialer.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
                        dialer.connect(fd, Some(address)).unwrap();
                        fd
                    })
                    .collect();
                for _ in 0..ROUNDS {
                    for fd in &fds {
                        assert_eq!(dialer.write(*fd, MESSAGE), Ok(MESSAGE.len()));
                    }
                }
                // What is lost has to be sent again, and nothing else drives this side.
                let start = Instant::now();
                while left.load(SeqCst) > 0 && start.elapsed() < FOR_EVER {
                    dialer.drive(Some(Duration::from_millis(5))).unwrap();
                }
            });
            for _ in 0..CONNECTIONS {
                let fd = server.accept4(listener, OpenFlags::NONBLOCK).unwrap();
                let event = EpollEvent { events: Events::IN, data: fd as u64 };
                server.epoll_ctl(epoll, EpollOp::Add(event), fd).unwrap();
            }
            for _ in 0..2 {
                let mut context = server.clone();
                scope.spawn(move || serve(&mut context, epoll, left));
            }
        });
        assert_eq!(left.load(SeqCst), 0, "{}", place.name());
        drop(client);
    }
}
