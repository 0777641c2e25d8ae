//! How connections end: in order, in one direction, by a reset; and what each side gets.

use crate::host::Fd;
use crate::world::{Client, Server, Side, World, compare, compare_on};

/// The state of a connection of which the peer has acknowledged our FIN, by Linux's number.
const FIN_WAIT2: u8 = 5;
const ALL: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI;

/// What a side's socket still says of itself.
fn note_rest(world: &mut World, side: Side, fd: Fd) {
    world.note_recv("recv", side, fd, 100, 0);
    world.note_recv("recv", side, fd, 100, 0);
    world.note_send("send", side, fd, b"x", 0);
    world.note_send("send", side, fd, b"x", 0);
    world.note_recv("recv", side, fd, 100, 0);
}

#[test]
fn end_of_stream_follows_the_last_byte() {
    compare(|world| {
        let (server, client) = world.connection();
        let epoll = world.watch(Server, server, ALL);
        world.note_events("open", Server, epoll);
        world.note_send("send", Client, client, b"bye", 0);
        world.host(Client).close(client).unwrap();
        world.note_events("closed", Server, epoll);
        world.note_recv("recv", Server, server, 2, 0);
        world.note_events("a byte left", Server, epoll);
        world.note_recv("recv", Server, server, 2, 0);
        world.note_recv("the end", Server, server, 2, 0);
        world.note_recv("the end, still", Server, server, 2, 0);
        world.note_events("nothing left", Server, epoll);
        world.note_send("it is dropped", Server, server, b"x", 0);
        world.note_events("reset", Server, epoll);
        note_rest(world, Server, server);
    });
}

#[test]
fn bytes_before_close_arrive() {
    compare(|world| {
        let (server, client) = world.connection();
        let (mut sent, mut quiet) = (0, 0);
        while quiet < 3 {
            match world.host(Client).send(client, &[7; 30_000], 0) {
                Ok(count) => (sent, quiet) = (sent + count, 0),
                Err(libc::EAGAIN) => quiet += 1,
                Err(error) => panic!("{error}"),
            }
            world.settle();
        }
        world.host(Client).close(client).unwrap();
        let mut read = 0;
        loop {
            match world.host(Server).recv(server, 50_000, 0) {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => read += bytes.len(),
                Err(libc::EAGAIN) => world.settle(),
                Err(error) => panic!("{error} after {read} of {sent} bytes"),
            }
        }
        world.note("all of it", &(read == sent));
    });
}

#[test]
fn one_direction_ends_and_the_other_goes_on() {
    compare(|world| {
        let (server, client) = world.connection();
        let epoll = world.watch(Client, client, ALL);
        let peers = world.watch(Server, server, ALL);
        let answer = world.host(Client).shutdown(client, libc::SHUT_WR);
        world.note("shutdown", &answer);
        world.note_events("sent its FIN", Client, epoll);
        world.note_events("got it", Server, peers);
        world.note_send("no more", Client, client, b"x", 0);
        let answer = world.host(Client).shutdown(client, libc::SHUT_WR);
        world.note("again", &answer);
        world.note_recv("the end", Server, server, 10, 0);
        world.note_send("the other way", Server, server, b"still", 0);
        world.note_events("data", Client, epoll);
        world.note_recv("recv", Client, client, 10, 0);
        let answer = world.host(Server).shutdown(server, libc::SHUT_WR);
        world.note("shutdown", &answer);
        world.note_events("both", Client, epoll);
        world.note_events("both", Server, peers);
        world.note_recv("recv", Client, client, 10, 0);
    });
}

/// More than is read ahead of the program comes, and its end, after the reader has ended its own
/// direction: the connection is over in both before the reader has begun to read.
#[test]
fn half_close_receives_the_whole_answer() {
    const LEN: usize = 300_000;
    compare(|world| {
        let (server, client) = world.connection();
        world.host(Client).shutdown(client, libc::SHUT_WR).unwrap();
        let (mut sent, mut heard, mut has_ended) = (0, 0, false);
        let answer = vec![7; 10_000];
        for _ in 0..1000 {
            while sent < LEN
                && let Ok(len) = world.host(Server).send(server, &answer, 0)
            {
                sent += len;
            }
            if sent >= LEN && !has_ended {
                world.host(Server).shutdown(server, libc::SHUT_WR).unwrap();
                has_ended = true;
            }
            world.settle();
            match world.host(Client).read(client, 50_000) {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => heard += bytes.len(),
                Err(error) => assert_eq!(error, libc::EAGAIN),
            }
        }
        world.note("heard all that was sent", &(heard == sent && has_ended));
        note_rest(world, Client, client);
    });
}

/// More came than is read ahead of the program, in large segments or in many, and then a reset:
/// writers get it at once, readers behind the last byte. (What has not left by then is lost.)
#[test]
fn a_long_transfer_before_a_reset_is_still_read() {
    for (piece, count, has_end) in [(10_000, 6, false), (100, 300, false), (100, 300, true)] {
        compare(|world| {
            let (server, client) = world.connection();
            let epoll = world.watch(Client, client, ALL);
            world.no_delay(Server, server);
            let piece = vec![7; piece];
            for _ in 0..count {
                world.host(Server).send(server, &piece, 0).unwrap();
                world.host(Server).settle(1);
            }
            world.until_there(|world| {
                let unacked = world.host(Server).ioctl(server, libc::TIOCOUTQ, 0)?;
                if unacked == 0 { Ok(()) } else { Err(libc::EAGAIN) }
            });
            if has_end {
                world.host(Server).shutdown(server, libc::SHUT_WR).unwrap();
                // The client has it: a poll may find that only when it has read what is before it.
                world.until_there(|world| {
                    let (level, info) = (libc::IPPROTO_TCP, libc::TCP_INFO);
                    let state = world.host(Server).getsockopt(server, level, info, 1)?;
                    if state == [FIN_WAIT2] { Ok(()) } else { Err(libc::EAGAIN) }
                });
            }
            let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
            let set =
                world.host(Server).setsockopt(server, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
            set.unwrap();
            world.host(Server).close(server).unwrap();
            (0..5).for_each(|_| world.settle());
            world.note_events("reset", Client, epoll);
            let mut heard = 0;
            let end = loop {
                match world.host(Client).read(client, 5_000) {
                    Ok(bytes) if bytes.is_empty() => break Ok(()),
                    Ok(bytes) => heard += bytes.len(),
                    Err(libc::EAGAIN) => world.settle(),
                    Err(error) => break Err(error),
                }
            };
            world.note("all that was sent, and why no more", &(heard, end));
            note_rest(world, Client, client);
        });
    }
}

#[test]
fn shutdown_read_reads_the_end() {
    compare(|world| {
        let (server, client) = world.connection();
        let epoll = world.watch(Server, server, ALL);
        let answer = world.host(Server).shutdown(server, libc::SHUT_RD);
        world.note("shutdown", &answer);
        world.note_events("deaf", Server, epoll);
        world.note_recv("the end", Server, server, 10, 0);
        world.note_send("send", Client, client, b"hear", 0);
        world.note_recv("and yet", Server, server, 10, 0);
        world.note_recv("the end", Server, server, 10, 0);
        world.note_send("the other way", Server, server, b"ok", 0);
        world.note_recv("goes on", Client, client, 10, 0);
        let answer = world.host(Server).shutdown(server, libc::SHUT_RDWR);
        world.note("both", &answer);
        world.note_events("both", Server, epoll);
    });
}

#[test]
fn bytes_that_are_not_read_make_closing_a_reset() {
    compare(|world| {
        let (server, client) = world.connection();
        let epoll = world.watch(Client, client, ALL | libc::EPOLLET);
        world.note_send("send", Client, client, b"unread", 0);
        world.note_events("open", Client, epoll);
        world.host(Server).close(server).unwrap();
        world.note_events("reset", Client, epoll);
        world.note_events("once", Client, epoll);
        note_rest(world, Client, client);
    });
}

#[test]
fn data_before_a_reset_is_still_read() {
    compare(|world| {
        let (server, client) = world.connection();
        world.note_send("send", Client, client, b"unread", 0);
        world.note_send("send", Server, server, b"last words", 0);
        world.host(Server).close(server).unwrap();
        world.settle();
        note_rest(world, Client, client);
    });
}

/// The program waits for nothing between the reset and getpeername(2).
#[test]
fn connection_that_is_reset_has_no_peer() {
    compare(|world| {
        let (server, client) = world.connection();
        world.note_send("send", Server, server, b"last words", 0);
        let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        let set = world.host(Server).setsockopt(server, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        set.unwrap();
        assert!(world.host(Client).getpeername(client).is_ok());
        world.host(Server).close(server).unwrap();
        world.settle();
        let peer = world.host(Client).getpeername(client);
        world.note("peer", &peer.map(|_| ()));
        world.note_recv("last words", Client, client, 100, 0);
    });
}

#[test]
fn shutting_down_what_is_not_connected() {
    compare(|world| {
        let fd = world.tcp(Client);
        let epoll = world.watch(Client, fd, ALL);
        for how in [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR] {
            let answer = world.host(Client).shutdown(fd, how);
            world.note("shutdown", &answer);
            world.note_events("events", Client, epoll);
        }
        world.note_recv("recv", Client, fd, 1, 0);
        world.note_send("send", Client, fd, b"x", 0);
    });
}

#[test]
fn data_for_a_peer_that_is_deaf() {
    for (how, closer) in [(0, Server), (1, Server), (2, Server), (0, Client), (2, Client)] {
        compare(|world| {
            let (server, client) = world.connection();
            world.no_delay(Server, server);
            world.no_delay(Client, client);
            let (closed, side, fd) = match closer {
                Server => (server, Client, client),
                Client => (client, Server, server),
            };
            let answer = world.host(closer).shutdown(closed, how);
            world.note(&format!("shutdown {how} by {closer:?}"), &answer);
            world.settle();
            for _ in 0..3 {
                world.note_send("send", side, fd, b"x", 0);
            }
            world.note_recv("recv", side, fd, 9, 0);
            world.note_recv("recv", side, fd, 9, 0);
        });
    }
}

/// Sets SO_LINGER.
fn linger(world: &mut World, fd: Fd, seconds: i32) {
    let value = [1_i32.to_ne_bytes(), seconds.to_ne_bytes()].concat();
    world.host(Client).setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &value).unwrap();
}

/// Writes until nothing more is taken: the peer has not room for all of it.
fn fill(world: &mut World, fd: Fd) {
    let mut written = 0;
    for _ in 0..40 {
        while let Ok(count) = world.host(Client).send(fd, &[7; 65_536], 0) {
            written += count;
            assert!(written < 1 << 30, "it takes everything");
        }
        world.settle();
    }
}

/// Closes, and writes down about how long that took, in seconds.
fn note_close(world: &mut World, fd: Fd) {
    let start = std::time::Instant::now();
    let answer = world.host(Client).close(fd);
    world.note("close", &answer);
    let seconds = start.elapsed().as_secs_f64();
    world.note("seconds", &(if seconds < 0.5 { 0 } else { seconds.floor() as u32 }));
}

#[test]
fn close_waits_for_the_linger_time() {
    // On the kernel it is the kernel that lingers, when a channel has closed the socket.
    compare_on(&[], |world| {
        for (is_blocking, seconds) in [(false, 1), (true, 1), (true, 0)] {
            let (server, client) = world.connection();
            linger(world, client, seconds);
            fill(world, client);
            if is_blocking {
                world.host(Client).ioctl(client, libc::FIONBIO, 0).unwrap();
            }
            note_close(world, client);
            let again = world.host(Client).close(client);
            world.note("closed", &again);
            if seconds == 0 {
                world.settle();
                let error =
                    world.host(Server).getsockopt(server, libc::SOL_SOCKET, libc::SO_ERROR, 4);
                world.note("reset", &error);
            }
            world.host(Server).close(server).unwrap();
            world.settle();
        }
    });
}
