//! Many connections, full tables and full queues.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use megapipe::DriverChoice;
use megapipe_sockets::{Bsd, Config, Context, Error, OpenFlags};

use crate::host::{Ctl, Fd};
use crate::waiting::FOR_EVER;
use crate::world::{Client, STACK_PLACES, Server, World, compare, compare_in, on_stack};

const IN: u32 = libc::EPOLLIN as u32;

#[test]
fn a_thousand_connections_in_one_set() {
    for place in STACK_PLACES {
        a_thousand_connections(on_stack(place));
    }
}

fn a_thousand_connections(mut world: World) {
    const COUNT: usize = 1000;
    let (listener, address) = world.listener(Server, 1024);
    let epoll = world.host(Server).epoll_create1(0).unwrap();
    let mut pairs = Vec::new();
    while pairs.len() < COUNT {
        let some: Vec<_> = (0..50).map(|_| world.tcp(Client)).collect();
        for fd in &some {
            assert_eq!(world.host(Client).connect(*fd, Some(address)), Err(libc::EINPROGRESS));
        }
        for client in some {
            let server = loop {
                match world.host(Server).accept4(listener, libc::SOCK_NONBLOCK) {
                    Ok(server) => break server,
                    Err(libc::EAGAIN) => world.settle(),
                    Err(error) => panic!("{error}"),
                }
            };
            let event = (IN, pairs.len() as u64);
            world.host(Server).epoll_ctl(epoll, Ctl::Add, server, event).unwrap();
            pairs.push((server, client));
        }
    }
    world.settle();
    assert_eq!(world.host(Server).epoll_wait(epoll, COUNT).unwrap(), []);
    let mut expected = BTreeSet::new();
    for (_, client) in pairs.iter().step_by(3) {
        world.host(Client).send(*client, b"x", 0).unwrap();
    }
    let arrived = |world: &mut World| {
        let asked: Vec<_> = pairs.iter().map(|(server, _)| (*server, libc::POLLIN)).collect();
        let told = world.host(Server).poll(&asked).unwrap();
        told.into_iter().filter(|events| *events != 0).count()
    };
    let start = Instant::now();
    while arrived(&mut world) < COUNT.div_ceil(3) && start.elapsed() < FOR_EVER {
        world.settle();
    }
    // Connections are accepted in the order in which they came, which need not be the dialers'.
    for (place, (server, _)) in pairs.iter().enumerate() {
        let asked = [(*server, libc::POLLIN)];
        if world.host(Server).poll(&asked).unwrap() == [libc::POLLIN] {
            expected.insert(place as u64);
        }
    }
    assert_eq!(expected.len(), COUNT.div_ceil(3));
    let mut told = BTreeSet::new();
    // Level triggered, a hundred at a time: each call goes on where the last one stopped.
    for _ in 0..COUNT.div_ceil(3).div_ceil(100) {
        told.extend(world.host(Server).epoll_wait(epoll, 100).unwrap().iter().map(|it| it.1));
    }
    assert_eq!(told, expected);
}

#[test]
fn a_context_has_as_many_descriptors_as_it_was_given() {
    let config = Config::default().descriptors(5).first_descriptor(0);
    let mut context = Context::create(config).unwrap();
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let listener = context.socket(libc::AF_INET, kind, 0).unwrap();
    context.bind(listener, "127.0.0.1:0".parse().unwrap()).unwrap();
    context.listen(listener, 8).unwrap();
    let address = context.getsockname(listener).unwrap();
    let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    context.connect(client, Some(address)).unwrap();
    let [reader, writer] = context.pipe2(OpenFlags::empty()).unwrap();
    assert_eq!([listener, client, reader, writer], [0, 1, 2, 3]);
    assert_eq!(context.pipe2(OpenFlags::empty()), Err(Error::NoDescriptors));
    let last = context.eventfd(0, false, OpenFlags::empty()).unwrap();
    assert_eq!(context.socket(libc::AF_INET, kind, 0), Err(Error::NoDescriptors));
    assert_eq!(context.accept4(listener, OpenFlags::empty()), Err(Error::NoDescriptors));
    assert_eq!(context.epoll_create1(OpenFlags::empty()), Err(Error::NoDescriptors));
    context.close(last).unwrap();
    assert_eq!(context.accept4(listener, OpenFlags::empty()), Ok(last), "it waited");
}

#[test]
fn no_more_connect_than_without_us() {
    let drivers = [("io_uring", DriverChoice::Uring), ("epoll", DriverChoice::Epoll)];
    for backlog in [1, 2, 5, 71, 151] {
        compare_in(&drivers, &STACK_PLACES, |world| {
            let (_listener, address) = world.listener(Server, backlog);
            let clients: Vec<_> = (0..backlog + 20).map(|_| world.tcp(Client)).collect();
            // Fewer at once than the part of the backlog that is behind us on the kernel; and the
            // last burst that fits ends where there is no more room: on a link with a burst's SYNs
            // all answered before the first of its ACKs, more would be answered than fit.
            for some in clients.chunks(1 + backlog as usize / 4) {
                for fd in some {
                    let _ = world.host(Client).connect(*fd, Some(address));
                }
                world.settle();
            }
            let mut connected = |fd: &Fd| world.host(Client).getpeername(*fd).is_ok();
            let count = clients.iter().filter(|fd| connected(fd)).count();
            world.note("they are connected", &(backlog, count));
        });
    }
}

#[test]
fn dropped_syn_is_retried_until_there_is_room() {
    compare(|world| {
        let (listener, address) = world.listener(Server, 1);
        let clients: Vec<_> = (0..4).map(|_| world.tcp(Client)).collect();
        for fd in &clients {
            let answer = world.host(Client).connect(*fd, Some(address));
            world.note("connect", &answer);
            world.settle();
        }
        let sets = |world: &mut World| -> Vec<_> {
            let writable = |fd: &Fd| world.host(Client).poll(&[(*fd, libc::POLLOUT)]);
            clients.iter().map(writable).collect()
        };
        let before = sets(world);
        world.note("who can write", &before);
        // The SYNs that were dropped come again after a second, and three.
        let mut accepted = 0;
        let begun = Instant::now();
        while accepted < clients.len() && begun.elapsed() < Duration::from_secs(20) {
            match world.host(Server).accept4(listener, libc::SOCK_NONBLOCK) {
                Ok(_) => accepted += 1,
                Err(_) => world.settle(),
            }
        }
        world.note("accepted", &accepted);
        world.settle();
        let after = sets(world);
        world.note("who can write", &after);
    });
}

#[test]
fn accept_queue_holds_backlog_plus_one() {
    compare(|world| {
        let (listener, address) = world.listener(Server, 3);
        let clients: Vec<_> = (0..8).map(|_| world.tcp(Client)).collect();
        for fd in &clients {
            let _ = world.host(Client).connect(*fd, Some(address));
            world.settle();
        }
        world.settle();
        let mut accepted = 0;
        while world.host(Server).accept4(listener, 0).is_ok() {
            accepted += 1;
            // Those that were turned away come again in a second, not now.
            assert!(accepted <= 8);
            // The last one may wait in the stack, which is asked for it now.
            world.settle();
        }
        world.note("they waited", &accepted);
    });
}
