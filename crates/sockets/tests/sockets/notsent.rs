//! TCP_NOTSENT_LOWAT: what has not left yet is limited, and readiness goes by it.

use crate::host::Fd;
use crate::world::{Client, Server, World, compare};

const LOWAT: (i32, i32) = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
/// Bytes unsent at most, beyond the mark: a packet buffer, and a piece that waits before it.
const BEYOND_MARK: usize = 3 << 16;
/// More than any peer takes that does not read, or any send buffer.
const TOO_MUCH: usize = 64 << 20;

fn set_mark(world: &mut World, fd: Fd, bytes: i32) {
    let set = world.host(Client).setsockopt(fd, LOWAT.0, LOWAT.1, &bytes.to_ne_bytes());
    world.note(&format!("mark of {bytes}"), &set);
}

/// Sends until the socket takes no more. How many bytes it took.
fn fill(world: &mut World, fd: Fd) -> usize {
    let (bytes, mut taken, mut refusals) = (vec![b'x'; 50_000], 0, 0);
    while taken < TOO_MUCH && refusals < 3 {
        match world.host(Client).send(fd, &bytes, 0) {
            Ok(count) => (taken, refusals) = (taken + count, 0),
            Err(libc::EAGAIN) => refusals += 1,
            Err(error) => panic!("send: {error}"),
        }
        world.settle();
    }
    taken
}

/// Reads until so many bytes have come.
fn drain(world: &mut World, fd: Fd, mut left: usize) {
    for _ in 0..100_000 {
        if left == 0 {
            return;
        }
        match world.host(Server).recv(fd, 1 << 20, 0) {
            Ok(bytes) => left -= bytes.len(),
            Err(libc::EAGAIN) => world.settle(),
            Err(error) => panic!("recv: {error}"),
        }
    }
    panic!("{left} bytes never came");
}

#[test]
fn notsent_lowat_limits_what_waits_to_be_sent() {
    compare(|world| {
        let (server, client) = world.connection();
        set_mark(world, client, 20_000);
        let epoll = world.watch(Client, client, libc::EPOLLOUT);
        world.note_events("empty", Client, epoll);
        for round in 0..3 {
            let taken = fill(world, client);
            let arrived = world.host(Server).ioctl(server, libc::FIONREAD, 0).unwrap() as usize;
            world.note("a mark is a limit", &(taken - arrived <= 20_000 + BEYOND_MARK));
            world.note_events("full", Client, epoll);
            let polled = world.host(Client).poll(&[(client, libc::POLLOUT)]);
            world.note(&format!("full in round {round}"), &polled);
            drain(world, server, taken);
            world.note_events("all has left", Client, epoll);
        }
    });
}

#[test]
fn notsent_lowat_of_a_full_socket_can_be_raised_and_lowered() {
    compare(|world| {
        let (server, client) = world.connection();
        set_mark(world, client, 1);
        let epoll = world.watch(Client, client, libc::EPOLLOUT | libc::EPOLLET);
        world.note_events("empty", Client, epoll);
        let taken = fill(world, client);
        world.note_events("full", Client, epoll);
        drain(world, server, taken);
        world.note_events("all has left", Client, epoll);
        set_mark(world, client, 0);
        let all = fill(world, client);
        world.note("no mark, no limit", &(all > taken));
        drain(world, server, all);
        world.note_events("all has left again", Client, epoll);
    });
}
