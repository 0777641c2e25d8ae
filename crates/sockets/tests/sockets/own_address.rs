//! A program that talks to itself, at its host's own address: as over Linux's loopback interface.

use crate::world::{Server, World, compare};

const UDP: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;

/// A connection of the server's host to itself: the accepting end, then the other.
fn connection(world: &mut World) -> (i32, i32) {
    let (listener, address) = world.listener(Server, 8);
    let client = world.tcp(Server);
    let begun = world.host(Server).connect(client, Some(address));
    world.note("connect", &begun);
    let server = world.accept(listener);
    world.host(Server).close(listener).unwrap();
    let [ours, theirs] = [client, server].map(|fd| {
        let host = world.host(Server);
        (host.getsockname(fd).unwrap(), host.getpeername(fd).unwrap())
    });
    assert_eq!((ours.0, ours.1, ours.1), (theirs.1, theirs.0, address));
    let source = world.words(ours.0);
    world.note("from", &source);
    (server, client)
}

#[test]
fn connection_of_a_host_with_itself_is_as_on_linux() {
    compare(|world| {
        let (server, client) = connection(world);
        let epoll = world.watch(Server, server, libc::EPOLLIN | libc::EPOLLRDHUP);
        world.note_events("connected", Server, epoll);
        for (from, to) in [(client, server), (server, client)] {
            world.note_recv("nothing", Server, to, 10, 0);
            world.note_send("send", Server, from, b"to ourselves", 0);
            world.note_recv("peek", Server, to, 5, libc::MSG_PEEK);
            world.note_recv("recv", Server, to, 100, 0);
        }
        let answer = world.host(Server).shutdown(client, libc::SHUT_WR);
        world.note("shutdown", &answer);
        world.note_events("half closed", Server, epoll);
        world.note_recv("end", Server, server, 10, 0);
        world.note_send("the other way", Server, server, b"still", 0);
        world.note_recv("recv", Server, client, 100, 0);
        world.host(Server).close(server).unwrap();
        world.note_recv("end", Server, client, 10, 0);
    });
}

#[test]
fn unread_bytes_of_a_connection_with_itself_reset_it() {
    compare(|world| {
        let (server, client) = connection(world);
        world.note_send("send", Server, client, b"unread", 0);
        world.host(Server).close(server).unwrap();
        world.note_recv("reset", Server, client, 10, 0);
    });
}

#[test]
fn own_port_that_does_not_listen_refuses() {
    compare(|world| {
        let bound = world.tcp(Server);
        let any_port = world.address(Server, 0);
        world.host(Server).bind(bound, any_port).unwrap();
        let address = world.host(Server).getsockname(bound).unwrap();
        let client = world.tcp(Server);
        let epoll = world.watch(Server, client, libc::EPOLLOUT);
        let answer = world.host(Server).connect(client, Some(address));
        world.note("connect", &answer);
        world.note_events("refused", Server, epoll);
        let error = world.host(Server).getsockopt(client, libc::SOL_SOCKET, libc::SO_ERROR, 4);
        world.note("error", &error);
    });
}

#[test]
fn socket_connects_to_its_own_port() {
    compare(|world| {
        let fd = world.tcp(Server);
        let any_port = world.address(Server, 0);
        world.host(Server).bind(fd, any_port).unwrap();
        let address = world.host(Server).getsockname(fd).unwrap();
        let begun = world.host(Server).connect(fd, Some(address));
        world.note("connect", &begun);
        world.settle();
        let peer = world.host(Server).getpeername(fd).map(|peer| peer == address);
        world.note("peer", &peer);
        world.note_send("send", Server, fd, b"echo", 0);
        world.note_recv("recv", Server, fd, 10, 0);
        let answer = world.host(Server).shutdown(fd, libc::SHUT_WR);
        world.note("shutdown", &answer);
        world.note_recv("end", Server, fd, 10, 0);
    });
}

#[test]
fn datagrams_of_a_host_to_itself_are_as_on_linux() {
    compare(|world| {
        let mut bound = || {
            let fd = world.host(Server).socket(libc::AF_INET, UDP, 0).unwrap();
            let any_port = world.address(Server, 0);
            world.host(Server).bind(fd, any_port).unwrap();
            (fd, world.host(Server).getsockname(fd).unwrap())
        };
        let [one, other] = [bound(), bound()];
        for (from, to) in [(one, other), (other, one), (one, one)] {
            let sent = world.host(Server).sendto(from.0, b"message", 0, to.1);
            world.note("sendto", &sent);
            world.settle();
            let got = world.host(Server).recvfrom(to.0, 100, 0).map(|(bytes, source, flags)| {
                (bytes.escape_ascii().to_string(), source == Some(from.1), flags)
            });
            world.note("recvfrom", &got);
        }
        world.host(Server).connect(one.0, Some(other.1)).unwrap();
        world.host(Server).close(other.0).unwrap();
        world.note_send("no socket is there", Server, one.0, b"lost", 0);
        world.note_send("refused", Server, one.0, b"lost", 0);
        world.note_send("and again", Server, one.0, b"lost", 0);
    });
}
