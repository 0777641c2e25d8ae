//! A program that talks to itself, at its host's own address and at those of loopback: as over
//! Linux's loopback interface.

use std::net::SocketAddr;

use megapipe::{Backend, DriverChoice, LocalNetwork, LoopbackOwner, ServerConfig};
use megapipe_sockets::{Bsd, Config, Context, Error, OpenFlags};

use crate::world::{Server, StackPlace, World, compare, compare_in};

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

/// A stack on another thread resets later: `ending::connection_that_is_reset_has_no_peer`.
#[test]
fn reset_by_the_same_host_is_seen_by_getpeername() {
    let drivers = [("io_uring", DriverChoice::Uring), ("epoll", DriverChoice::Epoll)];
    compare_in(&drivers, &[StackPlace::INLINE], |world| {
        let (server, client) = connection(world);
        let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        let set = world.host(Server).setsockopt(client, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        set.unwrap();
        world.note_send("send", Server, client, b"last words", 0);
        world.host(Server).close(client).unwrap();
        let peer = world.host(Server).getpeername(server);
        world.note("peer", &peer.map(|_| ()));
        world.note_recv("last words", Server, server, 100, 0);
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

/// A socket's family for an address.
fn family(address: SocketAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

#[test]
fn loopback_streams_are_as_on_linux() {
    compare(|world| {
        let stream = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        for (listens, connects) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.5", "127.0.0.5"),
            ("0.0.0.0", "127.1.2.3"),
            ("::1", "::1"),
            ("::", "::1"),
            ("::", "127.0.0.1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ] {
            world.note("listens, connects", &(listens, connects));
            let [listens, connects] = [listens, connects].map(|ip| ip.parse().unwrap());
            let at = SocketAddr::new(listens, 0);
            let listener = world.host(Server).socket(family(at), stream, 0).unwrap();
            let bound = world.host(Server).bind(listener, at);
            world.note("bind", &bound);
            world.host(Server).listen(listener, 8).unwrap();
            let port = world.host(Server).getsockname(listener).unwrap().port();
            let to = SocketAddr::new(connects, port);
            let client = world.host(Server).socket(family(to), stream, 0).unwrap();
            let begun = world.host(Server).connect(client, Some(to));
            world.note("connect", &begun);
            let server = world.accept(listener);
            for fd in [client, server] {
                let host = world.host(Server);
                let names = [host.getsockname(fd), host.getpeername(fd)];
                world.note("names", &names.map(|it| it.unwrap().ip()));
            }
            for (from, to) in [(client, server), (server, client)] {
                world.note_send("send", Server, from, b"to ourselves", 0);
                world.note_recv("recv", Server, to, 100, 0);
            }
            for fd in [server, client, listener] {
                world.host(Server).close(fd).unwrap();
            }
            // The port is free again, or refuses.
            let client = world.host(Server).socket(family(to), stream, 0).unwrap();
            let epoll = world.watch(Server, client, libc::EPOLLOUT);
            let answer = world.host(Server).connect(client, Some(to));
            world.note("connect", &answer);
            world.note_events("refused", Server, epoll);
            world.host(Server).close(client).unwrap();
            world.host(Server).close(epoll).unwrap();
        }
    });
}

#[test]
fn loopback_datagrams_are_as_on_linux() {
    compare(|world| {
        for (one, other) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.5", "127.0.0.6"),
            ("0.0.0.0", "127.0.0.6"),
            ("::1", "::1"),
            ("::", "::1"),
        ] {
            world.note("bound", &(one, other));
            let mut bound = |ip: &str| {
                let at = SocketAddr::new(ip.parse().unwrap(), 0);
                let fd = world.host(Server).socket(family(at), UDP, 0).unwrap();
                world.host(Server).bind(fd, at).unwrap();
                (fd, world.host(Server).getsockname(fd).unwrap())
            };
            let [one, other] = [bound(one), bound(other)];
            let sent = world.host(Server).sendto(one.0, b"message", 0, other.1);
            world.note("sendto", &sent);
            world.settle();
            let got = world.host(Server).recvfrom(other.0, 100, 0).map(|(bytes, source, _)| {
                let source = source.map(|it| (it.ip(), it.port() == one.1.port()));
                (bytes.escape_ascii().to_string(), source)
            });
            world.note("recvfrom", &got);
            world.host(Server).connect(one.0, Some(other.1)).unwrap();
            world.host(Server).close(other.0).unwrap();
            world.note_send("no socket is there", Server, one.0, b"lost", 0);
            world.note_send("refused", Server, one.0, b"lost", 0);
            world.host(Server).close(one.0).unwrap();
        }
    });
}

/// A listener at a port that the kernel has selected, where the stack has a connection already.
#[test]
fn listener_may_lie_beside_connections() {
    let settings = ServerConfig {
        addresses: vec![([10, 0, 0, 1].into(), 24)],
        loopback: LoopbackOwner::Stack,
        ..ServerConfig::default()
    };
    let network = LocalNetwork::open("pair", settings).expect("it needs nothing");
    let channel = megapipe::Config::default().backend(Backend::Local(network));
    let mut context =
        Context::create(Config::default().channel(channel)).expect("it needs nothing");
    let tcp = |context: &mut Context| context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let connect = |context: &mut Context, to| {
        let client = tcp(context);
        context.connect(client, Some(to)).map(|()| client)
    };
    let first = tcp(&mut context);
    context.bind(first, "10.0.0.1:0".parse().unwrap()).unwrap();
    context.listen(first, 8).unwrap();
    let address = context.getsockname(first).unwrap();
    let client = connect(&mut context, address).unwrap();
    let taken = context.getsockname(client).unwrap();
    let second = tcp(&mut context);
    assert_eq!(context.bind(second, taken), Err(Error::AddressInUse));
    context.bind_beside_connections(second, taken).unwrap();
    context.listen(second, 8).unwrap();
    let other = connect(&mut context, taken).unwrap();
    let accepted = context.accept4(second, OpenFlags::empty()).unwrap();
    assert_eq!(context.getpeername(accepted), context.getsockname(other));
    assert_eq!(context.bind_beside_connections(other, taken), Err(Error::InvalidArgument));
    let third = tcp(&mut context);
    assert_eq!(context.bind_beside_connections(third, taken), Err(Error::AddressInUse));
}
