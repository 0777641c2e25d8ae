//! socket, bind, listen, accept, connect: what they answer, and when.

use crate::world::{Client, Server, World, compare};

const TCP: i32 = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;

#[test]
fn unsupported_socket_types_are_refused() {
    compare(|world| {
        for (domain, kind, protocol) in [
            (libc::AF_INET, libc::SOCK_STREAM, 0),
            (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP),
            (libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0),
            (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP),
            (libc::AF_INET, libc::SOCK_STREAM, 255),
            (libc::AF_INET, libc::SOCK_STREAM, 4000),
            (libc::AF_INET, libc::SOCK_STREAM, 256),
            (libc::AF_INET6, libc::SOCK_DGRAM, 262),
            (libc::AF_INET, libc::SOCK_STREAM, 263),
            (libc::AF_INET, libc::SOCK_RDM, 256),
            (libc::AF_INET, 0xf, 0),
            (250, libc::SOCK_STREAM, 0),
            (250, 0xf, 0),
        ] {
            let answer = world.host(Server).socket(domain, kind, protocol).map(|_| "a socket");
            world.note(&format!("{domain} {kind} {protocol}"), &answer);
        }
    });
}

#[test]
fn binding_and_listening_in_the_wrong_order_or_twice() {
    compare(|world| {
        let fd = world.tcp(Server);
        let (first, second) = (world.address(Server, 0), world.address(Server, 0));
        let foreign = "192.0.2.9:0".parse().unwrap();
        let answer = world.host(Server).bind(fd, foreign);
        world.note("not our address", &answer);
        let answer = world.host(Server).bind(fd, "[::1]:0".parse().unwrap());
        world.note("another family", &answer);
        let answer = world.host(Server).bind(fd, first);
        world.note("bind", &answer);
        let answer = world.host(Server).bind(fd, second);
        world.note("bind again", &answer);
        let name = world.host(Server).getsockname(fd).unwrap();
        let other = world.tcp(Server);
        let answer = world.host(Server).bind(other, name);
        world.note("the same address", &answer);
        let answer = world.host(Server).accept4(fd, 0);
        world.note("accept before listen", &answer);
        let answer = world.host(Server).listen(fd, 5);
        world.note("listen", &answer);
        let answer = world.host(Server).listen(fd, 6);
        world.note("listen again", &answer);
        let answer = world.host(Server).accept4(fd, 0);
        world.note("no listener there", &answer);
        let answer = world.host(Server).connect(fd, Some(name));
        world.note("connect a listener", &answer);
        let answer = world.host(Server).getpeername(fd);
        world.note("peer of a listener", &answer);
        let answer = world.host(Server).recv(fd, 1, 0);
        world.note("recv from a listener", &answer);
        let answer = world.host(Server).send(fd, b"x", 0);
        world.note("send to a listener", &answer);
        let answer = world.host(Server).listen(other, 1);
        world.note("listen without bind", &answer);
        let port = world.host(Server).getsockname(other).map(|name| name.port() > 1024);
        world.note("has a port", &port);
    });
}

#[test]
fn bad_descriptor_and_no_socket_are_distinguished() {
    compare(|world| {
        let epoll = world.host(Server).epoll_create1(0).unwrap();
        for fd in [epoll, 9999, -1] {
            let address = world.address(Server, 0);
            let host = world.host(Server);
            let answers = [
                host.bind(fd, address).err(),
                host.listen(fd, 1).err(),
                host.accept4(fd, 0).err(),
                host.connect(fd, Some(address)).err(),
                host.shutdown(fd, libc::SHUT_WR).err(),
                host.recv(fd, 1, 0).err(),
                host.send(fd, b"x", 0).err(),
                host.getsockname(fd).err(),
                host.getpeername(fd).err(),
            ];
            world.note("answers", &answers);
        }
        let answer = world.host(Server).close(9999);
        world.note("close", &answer);
    });
}

#[test]
fn refused_connect_reports_once_and_can_retry() {
    compare(|world| {
        // Taken and free again: no listener there.
        let (listener, address) = world.listener(Server, 1);
        world.host(Server).close(listener).unwrap();
        let fd = world.tcp(Client);
        let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP);
        world.note_events("fresh", Client, epoll);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connect", &answer);
        world.settle();
        world.note_events("refused", Client, epoll);
        let answer = world.host(Client).getpeername(fd);
        world.note("peer", &answer);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connect hears", &answer);
        world.note_events("fresh again", Client, epoll);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connect again", &answer);
        world.settle();
        world.note_recv("recv hears", Client, fd, 1, 0);
        world.note_recv("recv after that", Client, fd, 1, 0);
        world.note_send("send", Client, fd, b"x", 0);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connect has nothing to tell", &answer);
        let (_listener, address) = world.listener(Server, 1);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("a listener is there now", &answer);
        world.settle();
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("done", &answer);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connected", &answer);
    });
}

#[test]
fn connecting_goes_from_in_progress_to_connected() {
    compare(|world| {
        let (listener, address) = world.listener(Server, 1);
        let fd = world.tcp(Client);
        let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
        world.note_send("send before", Client, fd, b"x", 0);
        world.note_recv("recv before", Client, fd, 1, 0);
        world.note_events("before", Client, epoll);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connect", &answer);
        world.note_events("connected", Client, epoll);
        world.note_events("once", Client, epoll);
        let answer = world.host(Client).getpeername(fd).map(|peer| peer == address);
        world.note("peer", &answer);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connect tells", &answer);
        let answer = world.host(Client).connect(fd, Some(address));
        world.note("connect again", &answer);
        let answer = world.host(Client).listen(fd, 1);
        world.note("listen", &answer);
        let server = world.accept(listener);
        let peer = world.host(Server).getpeername(server).unwrap();
        let own = world.host(Client).getsockname(fd).unwrap();
        world.note("they know each other", &(peer == own));
        let answer = world.host(Server).accept4(listener, 0);
        world.note("no other", &answer);
    });
}

#[test]
fn a_connected_socket_can_be_made_fresh_again() {
    compare(|world| {
        let (server, client) = world.connection();
        let answer = world.host(Client).connect(client, None);
        world.note("nowhere", &answer);
        world.note_recv("the peer hears", Server, server, 1, 0);
        world.note_recv("recv", Client, client, 1, 0);
        let (listener, address) = world.listener(Server, 1);
        let answer = world.host(Client).connect(client, Some(address));
        world.note("elsewhere", &answer);
        world.settle();
        let answer = world.host(Server).accept4(listener, 0).map(|_| "a connection");
        world.note("accepted", &answer);
    });
}

#[test]
fn connections_wait_in_the_queue_with_their_data_and_their_end() {
    compare(|world| {
        let (listener, address) = world.listener(Server, 8);
        let epoll = world.watch(Server, listener, libc::EPOLLIN);
        world.note_events("no connection", Server, epoll);
        let mut clients = Vec::new();
        for number in 0..3_u8 {
            let fd = world.host(Client).socket(libc::AF_INET, TCP, 0).unwrap();
            let _ = world.host(Client).connect(fd, Some(address));
            world.settle();
            world.note_send("send", Client, fd, &[b'a' + number], 0);
            clients.push(fd);
        }
        world.host(Client).close(clients[1]).unwrap();
        world.settle();
        for _ in 0..3 {
            world.note_events("some wait", Server, epoll);
            let fd = world.accept(listener);
            world.note_recv("data", Server, fd, 10, 0);
            world.note_recv("and then", Server, fd, 10, 0);
        }
        world.note_events("none waits", Server, epoll);
        let answer = world.host(Server).accept4(listener, 0);
        world.note("accept", &answer);
    });
}

#[test]
fn closing_listener_resets_queued_connections() {
    compare(|world: &mut World| {
        let (listener, address) = world.listener(Server, 8);
        let fd = world.tcp(Client);
        let _ = world.host(Client).connect(fd, Some(address));
        world.settle();
        let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLRDHUP);
        world.note_events("connected", Client, epoll);
        world.host(Server).close(listener).unwrap();
        world.settle();
        world.note_events("reset", Client, epoll);
        world.note_recv("recv", Client, fd, 1, 0);
        world.note_events("told", Client, epoll);
    });
}

/// A listener that is shut down, or connected to nowhere, is a bound socket and may listen again.
#[test]
fn listener_that_is_shut_down_keeps_its_address() {
    compare(|world: &mut World| {
        let (first, address) = world.listener(Server, 8);
        world.host(Server).close(first).unwrap();
        let listener = world.tcp(Server);
        let on = 1_i32.to_ne_bytes();
        world.host(Server).setsockopt(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, &on).unwrap();
        world.host(Server).bind(listener, address).unwrap();
        world.host(Server).listen(listener, 8).unwrap();
        let epoll = world.watch(Server, listener, libc::EPOLLIN);
        for round in 0..3 {
            let answer = world.host(Server).shutdown(listener, libc::SHUT_WR);
            world.note("shutdown of writing", &answer);
            let fds = [0, 1].map(|_| world.tcp(Client));
            for fd in fds {
                let _ = world.host(Client).connect(fd, Some(address));
            }
            let accepted = world.accept(listener);
            let answer = match round {
                0 => world.host(Server).shutdown(listener, libc::SHUT_RD),
                _ => world.host(Server).connect(listener, None),
            };
            world.note("the end", &answer);
            world.note_events("bound alone", Server, epoll);
            let answer = world.host(Server).accept4(listener, 0);
            world.note("accept", &answer);
            let kept = world.host(Server).getsockname(listener) == Ok(address);
            world.note("its address", &kept);
            for fd in fds {
                world.note_recv("recv", Client, fd, 8, 0);
            }
            let refused = world.tcp(Client);
            let _ = world.host(Client).connect(refused, Some(address));
            world.note_recv("recv without a listener", Client, refused, 8, 0);
            let answer = world.host(Server).listen(listener, 8);
            world.note("listen", &answer);
            world.note_events("listening", Server, epoll);
            for (side, fd) in [(Client, fds[0]), (Client, fds[1]), (Client, refused)] {
                world.host(side).close(fd).unwrap();
            }
            world.host(Server).close(accepted).unwrap();
        }
    });
}
