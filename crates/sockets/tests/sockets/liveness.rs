//! Programs whose calls return at once: each call drives the stack often enough that data,
//! acknowledgments and ends of connections arrive, as on Linux, where the kernel does it.
//!
//! Read first: `world.rs`. No test here settles the world between calls: only the calls of the
//! program drive the sockets.

use std::time::{Duration, Instant};

use crate::host::Fd;
use crate::world::{Client, Server, Side, World, compare};

/// Time after which a program that waits for something has stalled.
const STALL: Duration = Duration::from_secs(30);
/// Segments of one byte that the sender sends: more than a socket reads ahead.
const SEGMENTS: u8 = 12;

/// Calls until the answer is there, and fails if it never comes.
fn until<T>(
    what: &dyn std::fmt::Debug,
    world: &mut World,
    mut call: impl FnMut(&mut World) -> Option<T>,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = call(world) {
            return answer;
        }
        assert!(begun.elapsed() < STALL, "stalled: {what:?}");
        // The stack may be on a thread of its own, and wants the processor.
        std::thread::yield_now();
    }
}

/// A call that finds at once how much can be read.
#[derive(Debug, Clone, Copy)]
enum Look {
    Poll,
    PollBoth,
    Select,
    SelectBoth,
    Epoll,
    EpollBoth,
    Peek,
    Fionread,
}

const LOOKS: [Look; 8] = [
    Look::Poll,
    Look::PollBoth,
    Look::Select,
    Look::SelectBoth,
    Look::Epoll,
    Look::EpollBoth,
    Look::Peek,
    Look::Fionread,
];

/// How many bytes a call shows: for those that tell only that there are some, what is read then.
fn look(world: &mut World, (fd, epoll): (Fd, Fd), how: Look, read: &mut usize) -> usize {
    let host = world.host(Server);
    let (input, both) = (libc::POLLIN, libc::POLLIN | libc::POLLOUT);
    let is_readable = match how {
        Look::Poll => host.poll(&[(fd, input)]).unwrap()[0] & input != 0,
        Look::PollBoth => host.poll(&[(fd, both)]).unwrap()[0] & input != 0,
        Look::Select => !host.select(&[fd], &[]).unwrap()[0].is_empty(),
        Look::SelectBoth => !host.select(&[fd], &[fd]).unwrap()[0].is_empty(),
        Look::Epoll | Look::EpollBoth => {
            let told = host.epoll_wait(epoll, 4).unwrap();
            told.iter().any(|(bits, _)| bits & libc::EPOLLIN as u32 != 0)
        }
        Look::Peek => {
            return host.recv(fd, SEGMENTS.into(), libc::MSG_PEEK).map_or(0, |it| it.len());
        }
        Look::Fionread => return host.ioctl(fd, libc::FIONREAD, 0).unwrap() as usize,
    };
    if is_readable {
        *read += host.recv(fd, 1, 0).unwrap().len();
    }
    *read
}

#[test]
fn looking_at_a_ready_socket_receives_all_segments() {
    for how in LOOKS {
        compare(|world| {
            let (server, client) = world.connection();
            world.no_delay(Client, client);
            let events = match how {
                Look::EpollBoth => libc::EPOLLIN | libc::EPOLLOUT,
                _ => libc::EPOLLIN,
            };
            let epoll = world.watch(Server, server, events);
            let (mut sent, mut read) = (0, 0);
            until(&how, world, |world| {
                // Each byte is a segment of its own: the next is sent when the last has left.
                let host = world.host(Client);
                if sent < SEGMENTS && host.ioctl(client, libc::TIOCOUTQ, 0).unwrap() == 0 {
                    assert_eq!(host.send(client, &[sent], 0), Ok(1));
                    sent += 1;
                }
                assert_eq!(host.poll(&[(client, libc::POLLOUT)]), Ok(vec![libc::POLLOUT]));
                let seen = look(world, (server, epoll), how, &mut read);
                (seen == SEGMENTS.into()).then_some(())
            });
            // Acknowledgments have left, too.
            until(&how, world, |world| {
                look(world, (server, epoll), how, &mut read);
                let queued = world.host(Client).ioctl(client, libc::TIOCOUTQ, 0).unwrap();
                (queued == 0).then_some(())
            });
            world.note("all", &how);
        });
    }
}

#[test]
fn low_water_mark_above_the_read_ahead_limit_becomes_ready() {
    for low_water in [20, 3000, 100_000] {
        compare(|world| {
            let (server, client) = world.connection();
            world.no_delay(Client, client);
            let mark = i32::to_ne_bytes(low_water);
            let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
            world.host(Server).setsockopt(server, level, name, &mark).unwrap();
            // Many small segments for a low mark, larger ones for a high one.
            let len = (low_water as usize).div_ceil(100);
            let mut sent = 0;
            until(&low_water, world, |world| {
                let host = world.host(Client);
                let left = low_water as usize - sent;
                if left > 0
                    && let Ok(count) = host.send(client, &vec![7; len.min(left)], 0)
                {
                    sent += count;
                }
                host.poll(&[(client, libc::POLLIN)]).unwrap();
                let told = world.host(Server).poll(&[(server, libc::POLLIN)]).unwrap();
                (told[0] & libc::POLLIN != 0).then_some(())
            });
            let read = world.host(Server).recv(server, low_water as usize, 0);
            world.note("read", &read.map(|bytes| bytes.len()));
        });
    }
}

/// Calls that find out whether a connection is there, and return at once.
fn is_connected(world: &mut World, side: Side, fd: Fd, how: usize) -> bool {
    let address = world.address(Server, 9);
    let host = world.host(side);
    match how {
        0 => host.connect(fd, Some(address)) != Err(libc::EALREADY),
        1 => host.getpeername(fd).is_ok(),
        2 => host.getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 8).unwrap()[0] == 1,
        _ => host.send(fd, b"x", 0) == Ok(1),
    }
}

#[test]
fn connect_completes_while_the_program_polls() {
    for how in [0, 2, 3] {
        compare(|world| {
            let (listener, address) = world.listener(Server, 4);
            let client = world.tcp(Client);
            world.host(Client).connect(client, Some(address)).unwrap_err();
            until(&how, world, |world| {
                // The server does something else, which takes no connection.
                world.host(Server).getsockname(listener).unwrap();
                is_connected(world, Client, client, how).then_some(())
            });
            world.note("connected", &how);
        });
    }
}

#[test]
fn writes_leave_without_any_other_call() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Client, client);
        until(&"writes", world, |world| {
            let _ = world.host(Client).send(client, b"x", 0);
            let told = world.host(Server).recv(server, 1, 0);
            told.is_ok().then_some(())
        });
        world.note("arrived", &true);
    });
}
