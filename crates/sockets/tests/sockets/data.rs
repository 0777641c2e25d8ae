//! Bytes: reading in parts, looking ahead, throwing away, and a peer that does not read.

use crate::host::Fd;
use crate::world::{Client, STACK_PLACES, Server, StackPlace, World, alone, compare, on_stack};

#[test]
fn bytes_arrive_in_order_and_are_read_in_any_portion() {
    compare(|world| {
        let (server, client) = world.connection();
        world.note_recv("nothing", Server, server, 10, 0);
        world.note_send("send", Client, client, b"hello ", 0);
        world.note_send("send", Client, client, b"world", 0);
        world.note_recv("peek", Server, server, 4, libc::MSG_PEEK);
        world.note_recv("peek beyond", Server, server, 100, libc::MSG_PEEK);
        world.note_recv("part", Server, server, 3, 0);
        world.note_recv("none asked for", Server, server, 0, 0);
        world.note_recv("over the border", Server, server, 6, 0);
        world.note_recv("the rest, not more", Server, server, 100, libc::MSG_DONTWAIT);
        world.note_recv("nothing", Server, server, 100, libc::MSG_WAITALL | libc::MSG_DONTWAIT);
        world.note_recv("nothing to peek", Server, server, 1, libc::MSG_PEEK);
        world.note_send("nothing", Client, client, b"", 0);
        world.note_recv("nothing", Server, server, 1, 0);
    });
}

#[test]
fn reads_ignore_record_boundaries() {
    compare(|world| {
        let (server, client) = world.connection();
        world.note_send("a record", Client, client, b"one", libc::MSG_EOR);
        world.note_send("none", Client, client, b"", libc::MSG_EOR);
        world.note_send("the next begins", Client, client, b"tw", libc::MSG_MORE);
        world.note_send("and ends", Client, client, b"o", libc::MSG_EOR);
        world.note_send("no record", Client, client, b"three", 0);
        world.note_recv("across their ends", Server, server, 5, libc::MSG_WAITALL);
        world.note_recv("the rest", Server, server, 100, 0);
    });
}

#[test]
fn msg_trunc_discards_stream_bytes() {
    compare(|world| {
        let (server, client) = world.connection();
        world.note_send("send", Client, client, b"0123456789", 0);
        world.settle();
        let thrown = world.host(Server).recv(server, 4, libc::MSG_TRUNC).map(|bytes| bytes.len());
        world.note("thrown away", &thrown);
        world.note_recv("the rest", Server, server, 100, 0);
    });
}

#[test]
fn large_transfers_lose_nothing_and_stop_without_a_reader() {
    compare(|world| {
        let (server, client) = world.connection();
        let epoll = world.watch(Client, client, libc::EPOLLOUT);
        let pattern = |at: usize| (at * 31 + at / 256) as u8;
        let mut sent = 0;
        let mut quiet = 0;
        while quiet < 3 {
            let bytes: Vec<u8> = (sent..sent + 30_000).map(pattern).collect();
            match world.host(Client).send(client, &bytes, 0) {
                Ok(count) => (sent, quiet) = (sent + count, 0),
                Err(libc::EAGAIN) => quiet += 1,
                Err(error) => panic!("{error}"),
            }
            world.settle();
            assert!(sent < 1 << 30, "it takes everything");
        }
        world.note_events("full", Client, epoll);
        let mut read = 0;
        while read < sent {
            match world.host(Server).recv(server, 50_000, 0) {
                Ok(bytes) => {
                    let all_there =
                        bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(read + at));
                    assert!(all_there, "something else after {read}");
                    assert!(!bytes.is_empty());
                    read += bytes.len();
                }
                Err(libc::EAGAIN) => world.settle(),
                Err(error) => panic!("{error}"),
            }
        }
        world.note_recv("no more", Server, server, 1, 0);
        world.note_events("room again", Client, epoll);
    });
}

#[test]
fn small_writes_one_after_the_other_all_arrive() {
    compare(|world| {
        let (server, client) = world.connection();
        world.no_delay(Server, server);
        world.no_delay(Client, client);
        for round in 0..20 {
            world.note_send("one", Client, client, b"a", 0);
            world.note_send("back", Server, server, b"b", 0);
            world.note_send("two", Client, client, b"c", 0);
            world.note_send("three", Client, client, b"d", 0);
            world.note_recv("all", Server, server, 9, 0);
            world.note_recv("back", Client, client, 9, 0);
            world.note("round", &round);
        }
    });
}

/// Sends segments, each on its own, that the server does not read.
fn send_segments(world: &mut World, client: Fd, count: usize, len: usize) {
    world.no_delay(Client, client);
    for number in 0..count {
        let bytes = vec![number as u8; len];
        assert_eq!(world.host(Client).send(client, &bytes, 0), Ok(len));
        world.settle();
    }
}

#[test]
fn recv_returns_all_queued_segments() {
    for (count, len) in [(17, 1460), (41, 1460), (100, 1)] {
        compare(|world| {
            let (server, client) = world.connection();
            send_segments(world, client, count, len);
            let host = world.host(Server);
            let counted = host.ioctl(server, libc::FIONREAD, 0);
            let peeked = host.recv(server, 100_000, libc::MSG_PEEK).map(|it| it.len());
            let less = host.recv(server, 20, libc::MSG_PEEK);
            let read = host.recv(server, 100_000, 0).map(|it| it.len());
            world.note("segments", &(counted, peeked, less, read));
        });
    }
}

#[test]
fn read_after_peek_returns_all_queued_segments() {
    compare(|world| {
        let (server, client) = world.connection();
        send_segments(world, client, 30, 700);
        let host = world.host(Server);
        let peeked = host.recv(server, 15_000, libc::MSG_PEEK).map(|it| it.len());
        let first = host.read(server, 10_000).map(|it| it.len());
        let peeked_again = host.recv(server, 15_000, libc::MSG_PEEK).map(|it| it.len());
        let rest = host.read(server, 100_000).map(|it| it.len());
        let none = host.read(server, 100_000);
        world.note("read", &(peeked, first, peeked_again, rest, none));
    });
}

#[test]
fn more_is_held_again_after_an_acknowledgment() {
    // Linux's loopback acknowledges before the second call; only our own stack shows the order.
    let mut world = on_stack(StackPlace::INLINE);
    let (server, client) = world.connection();
    world.no_delay(Client, client);
    assert_eq!(world.host(Client).send(client, b"one", 0), Ok(3));
    assert_eq!(world.host(Client).send(client, b"two", libc::MSG_MORE), Ok(3));
    let mut heard = vec![];
    while heard.len() < 6 {
        world.settle();
        heard.extend(world.host(Server).recv(server, 100, 0).unwrap_or_default());
    }
    // The acknowledgment of the first has let go of the second.
    assert_eq!(heard, b"onetwo");
    // So would a late one let go of the third.
    while world.host(Client).ioctl(client, libc::TIOCOUTQ, 0) != Ok(0) {
        world.settle();
    }
    assert_eq!(world.host(Client).send(client, b"three", libc::MSG_MORE), Ok(5));
    world.settle();
    assert_eq!(world.host(Server).recv(server, 100, 0), Err(libc::EAGAIN));
    assert_eq!(world.host(Client).send(client, b"four", 0), Ok(4));
    world.settle();
    assert_eq!(world.host(Server).recv(server, 100, 0), Ok(b"threefour".to_vec()));
}

#[test]
fn write_beyond_the_send_buffer_takes_what_fits() {
    for place in STACK_PLACES {
        let mut world = alone(place);
        let (server, client) = world.connection();
        let bytes = 42_000_i32.to_ne_bytes();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_SNDBUF);
        world.host(Client).setsockopt(client, level, name, &bytes).unwrap();
        // No turn in between: nothing has been acknowledged.
        let first = world.host(Client).send(client, &[7; 61_000], 0).unwrap();
        assert!((30_000..61_000).contains(&first), "{first} of 61,000 on {}", place.name());
        let (mut read, mut sent) = (0, first);
        while read < 61_000 {
            world.settle();
            if sent < 61_000 {
                sent += world.host(Client).send(client, &vec![7; 61_000 - sent], 0).unwrap_or(0);
            }
            read += world.host(Server).recv(server, 100_000, 0).map_or(0, |it| it.len());
        }
        assert_eq!((read, sent), (61_000, 61_000));
    }
}
