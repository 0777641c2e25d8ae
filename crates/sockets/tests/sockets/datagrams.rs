//! UDP: datagrams, their borders and their senders.

use std::net::SocketAddr;

use crate::host::Fd;
use crate::world::{Client, Server, Side, World, compare};

const UDP: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;

fn bound(world: &mut World, side: Side) -> (Fd, SocketAddr) {
    let fd = world.host(side).socket(libc::AF_INET, UDP, 0).unwrap();
    let any_port = world.address(side, 0);
    world.host(side).bind(fd, any_port).unwrap();
    let name = world.host(side).getsockname(fd).unwrap();
    (fd, name)
}

/// Writes down a datagram, and whether it is from whom it should be.
fn note_datagram(world: &mut World, fd: Fd, len: usize, flags: i32, sender: SocketAddr) {
    world.settle();
    let answer = world.host(Server).recvfrom(fd, len, flags).map(|(bytes, from, answered)| {
        (bytes.escape_ascii().to_string(), from == Some(sender), answered)
    });
    world.note("recvfrom", &answer);
}

#[test]
fn datagrams_keep_their_borders_and_their_senders() {
    compare(|world| {
        let (server, name) = bound(world, Server);
        let (client, sender) = bound(world, Client);
        let epoll = world.watch(Server, server, libc::EPOLLIN);
        world.note_events("nothing", Server, epoll);
        for text in ["one", "", "three and more", "four and more", "five"] {
            let sent = world.host(Client).sendto(client, text.as_bytes(), 0, name);
            world.note("sendto", &sent);
            world.settle();
        }
        world.note_events("five", Server, epoll);
        note_datagram(world, server, 2, libc::MSG_PEEK, sender);
        note_datagram(world, server, 10, 0, sender);
        note_datagram(world, server, 10, 0, sender);
        note_datagram(world, server, 5, 0, sender);
        let cut = libc::MSG_TRUNC;
        let answered = world.host(Server).recvfrom(server, 4, cut).map(|answer| answer.2);
        world.note("the whole length", &answered);
        let plain = world.host(Server).read(server, 100);
        world.note("read", &plain);
        note_datagram(world, server, 10, 0, sender);
        world.note_events("nothing", Server, epoll);
    });
}

#[test]
fn connected_socket_receives_from_its_peer_only() {
    compare(|world| {
        let (server, name) = bound(world, Server);
        let (client, sender) = bound(world, Client);
        let (stranger, _) = bound(world, Client);
        world.note_send("without receiver", Server, server, b"x", 0);
        let peer = world.host(Server).getpeername(server);
        world.note("no peer", &peer);
        let connected = world.host(Server).connect(server, Some(sender));
        world.note("connect", &connected);
        let peer = world.host(Server).getpeername(server).map(|peer| peer == sender);
        world.note("peer", &peer);
        world.host(Client).sendto(stranger, b"from a stranger", 0, name).unwrap();
        world.host(Client).sendto(client, b"from the peer", 0, name).unwrap();
        note_datagram(world, server, 100, 0, sender);
        note_datagram(world, server, 100, 0, sender);
        world.note_send("to the peer", Server, server, b"answer", 0);
        world.note_recv("recv", Client, client, 100, 0);
        let apart = world.host(Server).connect(server, None);
        world.note("apart", &apart);
        world.note_send("without receiver", Server, server, b"x", 0);
        world.host(Client).sendto(stranger, b"again", 0, name).unwrap();
        world.settle();
        let heard = world.host(Server).recvfrom(server, 100, 0).map(|answer| answer.2);
        world.note("anybody again", &heard);
    });
}

#[test]
fn datagram_socket_refuses_stream_calls() {
    compare(|world| {
        let (server, name) = bound(world, Server);
        let again = world.host(Server).bind(server, name);
        world.note("bind again", &again);
        let fd = world.host(Server).socket(libc::AF_INET, UDP, libc::IPPROTO_UDP).unwrap();
        let taken = world.host(Server).bind(fd, name);
        world.note("taken", &taken);
        let answers = [
            world.host(Server).listen(fd, 1).err(),
            world.host(Server).accept4(fd, 0).err(),
            world.host(Server).shutdown(fd, libc::SHUT_WR).err(),
            world.host(Server).recv(fd, 1, 0).err(),
            world.host(Server).sendto(fd, &[0; 65_508], 0, name).err(),
            world.host(Server).sendto(fd, &[0; 70_000], 0, name).err(),
            world.host(Server).sendto(fd, b"x", libc::MSG_OOB, name).err(),
            world.host(Server).sendto(fd, b"x", 0, "[::1]:9".parse().unwrap()).err(),
        ];
        world.note("answers", &answers);
    });
}

fn note_error(world: &mut World, fd: Fd) {
    let error = world.host(Client).getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, 4);
    world.note("SO_ERROR", &error);
}

#[test]
fn a_free_port_refuses_sockets_connected_to_it() {
    compare(|world| {
        for domain in [libc::AF_INET, libc::AF_INET6] {
            let closed = world.host(Server).socket(domain, UDP, 0).unwrap();
            let place = match domain {
                libc::AF_INET => world.address(Server, 0),
                _ => world.address6(Server, 0),
            };
            world.host(Server).bind(closed, place).unwrap();
            let name = world.host(Server).getsockname(closed).unwrap();
            world.host(Server).close(closed).unwrap();
            world.settle();
            let client = world.host(Client).socket(domain, UDP, 0).unwrap();
            let events = libc::EPOLLIN | libc::EPOLLOUT;
            let epoll = world.watch(Client, client, events);
            let sent = world.host(Client).sendto(client, b"x", 0, name);
            world.note("not connected", &sent);
            world.note_events("no error", Client, epoll);
            world.note_recv("nothing", Client, client, 9, 0);
            world.note_recv("the queue of errors", Client, client, 9, libc::MSG_ERRQUEUE);
            world.host(Client).connect(client, Some(name)).unwrap();
            world.note_send("connected", Client, client, b"x", 0);
            world.note_events("an error", Client, epoll);
            note_error(world, client);
            world.note_events("it was reported", Client, epoll);
            note_error(world, client);
            world.note_send("again", Client, client, b"x", 0);
            world.note_send("refused", Client, client, b"x", 0);
            world.note_send("told once", Client, client, b"x", 0);
            world.note_recv("refused", Client, client, 9, 0);
            world.note_recv("told once", Client, client, 9, 0);
            world.host(Client).connect(client, None).unwrap();
            let sent = world.host(Client).sendto(client, b"x", 0, name);
            world.note("not connected", &sent);
            world.note_events("no error", Client, epoll);
        }
    });
}

#[test]
fn sent_datagram_makes_edges_of_writability() {
    const OUT: u32 = libc::EPOLLOUT as u32;
    const ET: u32 = libc::EPOLLET as u32;
    let wrband = libc::EPOLLWRBAND as u32;
    for asked in [OUT | ET, wrband | ET, OUT | ET | libc::EPOLLONESHOT as u32, OUT, ET] {
        compare(|world| {
            let (server, name) = bound(world, Server);
            let (client, _) = bound(world, Client);
            world.host(Client).connect(client, Some(name)).unwrap();
            let epoll = world.watch(Client, client, asked as i32);
            let outer = world.watch(Client, epoll, libc::EPOLLIN | libc::EPOLLET);
            world.note_events("at first", Client, epoll);
            world.note_events("the outer set", Client, outer);
            for text in [&b"one"[..], b"", b"three"] {
                world.note_send("send", Client, client, text, 0);
                world.note_events("the outer set", Client, outer);
                world.note_events("room", Client, epoll);
                world.note_events("nothing new", Client, epoll);
            }
            let refused = world.host(Client).send(client, &[0; 1 << 16], 0);
            world.note("too long", &refused);
            world.note_events("after a refusal", Client, epoll);
            let answer = world.host(Server).sendto(server, b"x", 0, name);
            world.note("to itself", &answer);
            world.note_recv("recv", Server, server, 100, 0);
            world.note_events("read by the peer", Client, epoll);
        });
    }
}
