//! Urgent data: one byte out of the band, and the mark where it was. On our own stack; on the
//! kernel our sockets refuse it, because the channel reads past marks.

use crate::host::Fd;
use crate::world::{Client, STACK_PLACES, Server, StackPlace, World, compare_in};

const OOB: i32 = libc::MSG_OOB;
const SIOCATMARK: u64 = 0x8905;
const WATCHED: i32 = libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP;

fn compare(program: impl Fn(&mut World)) {
    // A server on a thread of its own may have sent the byte before it hears that it is urgent.
    compare_in(&[], &[StackPlace::INLINE], program);
}

/// Everything that can be asked without taking anything.
fn note_state(world: &mut World, fd: Fd, epoll: Fd) {
    world.note_events("events", Server, epoll);
    let mark = world.host(Server).ioctl(fd, SIOCATMARK, 0);
    world.note("at the mark", &mark);
    let unread = world.host(Server).ioctl(fd, libc::FIONREAD, 0);
    world.note("unread", &unread);
    world.note_recv("peek", Server, fd, 100, libc::MSG_PEEK);
    world.note_recv("peek out of band", Server, fd, 1, OOB | libc::MSG_PEEK);
}

fn inline(world: &mut World, fd: Fd) {
    let on = 1_i32.to_ne_bytes();
    world.host(Server).setsockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &on).unwrap();
}

#[test]
fn the_urgent_byte_is_read_out_of_band_and_the_mark_stops_reads() {
    for is_inline in [false, true] {
        compare(|world| {
            let (server, client) = world.connection();
            world.no_delay(Client, client);
            if is_inline {
                inline(world, server);
            }
            let epoll = world.watch(Server, server, WATCHED);
            note_state(world, server, epoll);
            world.note_send("before", Client, client, b"abc", 0);
            world.note_send("urgent", Client, client, b"de!", OOB);
            world.note_send("after", Client, client, b"fgh", 0);
            note_state(world, server, epoll);
            world.note_recv("two", Server, server, 2, 0);
            note_state(world, server, epoll);
            world.note_recv("up to the mark", Server, server, 100, libc::MSG_WAITALL);
            note_state(world, server, epoll);
            world.note_recv("out of band", Server, server, 5, OOB);
            world.note_recv("once", Server, server, 5, OOB);
            note_state(world, server, epoll);
            world.note_recv("behind the mark", Server, server, 100, 0);
            note_state(world, server, epoll);
            world.note_recv("too late", Server, server, 1, OOB);
        });
    }
}

#[test]
fn a_byte_that_is_read_past_is_lost() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Client, client);
        let epoll = world.watch(Server, server, WATCHED);
        world.note_send("urgent alone", Client, client, b"!", OOB);
        note_state(world, server, epoll);
        world.note_recv("nothing but it", Server, server, 100, 0);
        note_state(world, server, epoll);
        world.note_send("next", Client, client, b"next", 0);
        world.note_recv("the next", Server, server, 100, 0);
        world.note_send("urgent", Client, client, b"x!", OOB);
        world.note_send("after", Client, client, b"after", 0);
        world.note_recv("before", Server, server, 100, 0);
        world.note_recv("after", Server, server, 2, 0);
        note_state(world, server, epoll);
        world.note_recv("the rest", Server, server, 100, 0);
    });
}

#[test]
fn a_second_mark_takes_the_place_of_the_first() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Client, client);
        let epoll = world.watch(Server, server, WATCHED);
        world.note_send("first", Client, client, b"abc!", OOB);
        world.note_send("second", Client, client, b"def?", OOB);
        note_state(world, server, epoll);
        world.note_recv("all before the second", Server, server, 100, 0);
        world.note_recv("the second", Server, server, 1, OOB);
        // At a mark, a new one makes the old byte go.
        world.note_send("third", Client, client, b"gh;", OOB);
        note_state(world, server, epoll);
        world.note_recv("before the third", Server, server, 100, 0);
        world.note_recv("the third", Server, server, 1, OOB);
    });
}

#[test]
fn urgent_data_and_the_end() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Client, client);
        let epoll = world.watch(Server, server, WATCHED);
        world.note_send("urgent", Client, client, b"last!", OOB);
        world.host(Client).close(client).unwrap();
        world.settle();
        note_state(world, server, epoll);
        world.note_recv("before", Server, server, 100, 0);
        world.note_recv("out of band", Server, server, 1, OOB);
        world.note_recv("the end", Server, server, 100, 0);
        note_state(world, server, epoll);
    });
}

#[test]
fn unconnected_socket_has_no_urgent_data() {
    compare(|world| {
        let fresh = world.tcp(Client);
        let (listener, _) = world.listener(Server, 1);
        let answers = [
            world.host(Client).recv(fresh, 1, OOB).err(),
            world.host(Client).send(fresh, b"x", OOB).err(),
            world.host(Server).recv(listener, 1, OOB).err(),
            world.host(Client).recv(fresh, 1, libc::MSG_ERRQUEUE).err(),
        ];
        world.note("answers", &answers);
        let marks = [
            world.host(Client).ioctl(fresh, SIOCATMARK, 0),
            world.host(Server).ioctl(listener, SIOCATMARK, 0),
        ];
        world.note("marks", &marks);
    });
}

#[test]
fn oob_send_that_would_block_marks_no_byte() {
    let program = |world: &mut World| {
        let (server, client) = world.connection();
        let bytes = 16_384_i32.to_ne_bytes();
        for (side, fd, option) in
            [(Server, server, libc::SO_RCVBUF), (Client, client, libc::SO_SNDBUF)]
        {
            world.host(side).setsockopt(fd, libc::SOL_SOCKET, option, &bytes).unwrap();
        }
        let (nonblocking, mut sent, mut before) = (libc::MSG_DONTWAIT, 0, None);
        // Until both buffers are full.
        while before != Some(sent) {
            before = Some(sent);
            while let Ok(bytes) = world.host(Client).send(client, &[b'a'; 3_000], nonblocking) {
                sent += bytes;
            }
            world.settle();
        }
        let refused = world.host(Client).send(client, b"!", OOB | nonblocking);
        world.note("refused", &refused);
        world.settle();
        let (mut received, mut idle, mut urgent_bytes, mut other_bytes) = (0, 0, 0, 0);
        while received < sent && idle < 100 {
            let urgent = world.host(Server).recv(server, 1, OOB | nonblocking);
            urgent_bytes += usize::from(urgent.is_ok());
            match world.host(Server).recv(server, 5_000, nonblocking) {
                Ok(read) => {
                    let count = read.iter().filter(|byte| **byte == b'a').count();
                    (received, other_bytes) = (received + count, other_bytes + read.len() - count);
                    idle = 0;
                }
                Err(_) => {
                    world.settle();
                    idle += 1;
                }
            }
        }
        world.note("urgent bytes", &urgent_bytes);
        world.note("other bytes", &other_bytes);
        world.note("missing", &(sent - received));
    };
    compare_in(&[], &STACK_PLACES, program);
}
