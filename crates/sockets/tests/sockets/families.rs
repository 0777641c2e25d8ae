//! IPv4 inside IPv6 sockets: who hears whom, by which address, and who may be bound beside whom.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::host::{Answer, Fd};
use crate::world::{Client, Server, Side, World, compare};

const TCP: i32 = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
const UDP: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
const V6_ONLY: (i32, i32) = (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);

fn socket(world: &mut World, side: Side, domain: i32, kind: i32) -> Fd {
    world.host(side).socket(domain, kind, 0).unwrap()
}

fn any(domain: i32, port: u16) -> SocketAddr {
    let ip: IpAddr = match domain {
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, port)
}

fn set(world: &mut World, side: Side, fd: Fd, (level, name): (i32, i32), on: bool) -> Answer<()> {
    world.host(side).setsockopt(fd, level, name, &i32::from(on).to_ne_bytes())
}

fn note_v6_only(world: &mut World, side: Side, fd: Fd) {
    let answer = world.host(side).getsockopt(fd, V6_ONLY.0, V6_ONLY.1, 4);
    world.note("IPV6_V6ONLY", &answer);
}

fn note_name(world: &mut World, what: &str, name: Answer<SocketAddr>) {
    let words = name.map(|name| world.words(name));
    world.note(what, &words);
}

fn port_of(world: &mut World, side: Side, fd: Fd) -> u16 {
    world.host(side).getsockname(fd).unwrap().port()
}

/// Connects, and writes down what both sides make of it.
fn dial(world: &mut World, listener: Fd, (domain, to): (i32, SocketAddr)) {
    let client = socket(world, Client, domain, TCP);
    let begun = world.host(Client).connect(client, Some(to));
    world.settle();
    let words = world.words(to);
    world.note(&format!("connect to {words}"), &begun);
    let events = world.host(Client).poll(&[(client, libc::POLLOUT)]);
    world.note("then", &events);
    let Ok(server) = world.host(Server).accept4(listener, libc::SOCK_NONBLOCK) else {
        world.note("accept", &"no connection");
        world.host(Client).close(client).unwrap();
        return;
    };
    for (side, fd) in [(Server, server), (Client, client)] {
        let name = world.host(side).getsockname(fd);
        note_name(world, "name", name);
        let name = world.host(side).getpeername(fd);
        note_name(world, "peer", name);
        note_v6_only(world, side, fd);
        let domain = world.host(side).getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, 4);
        world.note("domain", &domain);
    }
    world.note_send("send", Client, client, b"over either", 0);
    world.note_recv("recv", Server, server, 100, 0);
    world.host(Server).close(server).unwrap();
    world.host(Client).close(client).unwrap();
    world.settle();
}

#[test]
fn dual_stack_listener_accepts_ipv4() {
    compare(|world| {
        for v6_only in [false, true] {
            let listener = socket(world, Server, libc::AF_INET6, TCP);
            note_v6_only(world, Server, listener);
            let answer = set(world, Server, listener, V6_ONLY, v6_only);
            world.note("set", &answer);
            let answer = world.host(Server).bind(listener, any(libc::AF_INET6, 0));
            world.note("bind", &answer);
            let answer = set(world, Server, listener, V6_ONLY, true);
            world.note("too late", &answer);
            world.host(Server).listen(listener, 8).unwrap();
            let name = world.host(Server).getsockname(listener);
            note_name(world, "name", name);
            let port = port_of(world, Server, listener);
            let (four, mapped) = (world.address(Server, port), world.mapped(Server, port));
            let six = world.address6(Server, port);
            dial(world, listener, (libc::AF_INET, four));
            dial(world, listener, (libc::AF_INET6, mapped));
            dial(world, listener, (libc::AF_INET6, six));
            world.host(Server).close(listener).unwrap();
        }
    });
}

#[test]
fn listener_at_one_address_accepts_its_family() {
    compare(|world| {
        let (mapped, six) = (world.mapped(Server, 0), world.address6(Server, 0));
        for place in [mapped, six] {
            let listener = socket(world, Server, libc::AF_INET6, TCP);
            let answer = world.host(Server).bind(listener, place);
            world.note("bind", &answer);
            note_v6_only(world, Server, listener);
            world.host(Server).listen(listener, 8).unwrap();
            let name = world.host(Server).getsockname(listener);
            note_name(world, "name", name);
            let port = port_of(world, Server, listener);
            let (four, six) = (world.address(Server, port), world.address6(Server, port));
            dial(world, listener, (libc::AF_INET, four));
            dial(world, listener, (libc::AF_INET6, six));
        }
    });
}

#[test]
fn unreachable_and_foreign_addresses_are_refused() {
    compare(|world| {
        let (four, mapped) = (world.address(Server, 9), world.mapped(Server, 9));
        let six = world.address6(Server, 9);
        for kind in [TCP, UDP] {
            let fd = socket(world, Client, libc::AF_INET6, kind);
            set(world, Client, fd, V6_ONLY, true).unwrap();
            let own = world.mapped(Client, 0);
            let answers = [
                world.host(Client).bind(fd, four),
                world.host(Client).bind(fd, own),
                world.host(Client).connect(fd, Some(mapped)),
            ];
            world.note("IPv6 alone", &answers);
            for (place, to) in [(world.mapped(Client, 0), six), (world.address6(Client, 0), mapped)]
            {
                let fd = socket(world, Client, libc::AF_INET6, kind);
                let answer = world.host(Client).bind(fd, place);
                world.note("bind", &answer);
                note_v6_only(world, Client, fd);
                let answer = world.host(Client).connect(fd, Some(to));
                world.note("the other family", &answer);
                let sent = world.host(Client).sendto(fd, b"x", 0, to);
                world.note("sendto", &sent.is_ok());
            }
            let fd = socket(world, Client, libc::AF_INET, kind);
            note_v6_only(world, Client, fd);
            let answer = world.host(Client).connect(fd, Some(mapped));
            world.note("an IPv4 socket", &answer);
        }
        let fd = socket(world, Client, libc::AF_INET6, UDP);
        let answers = [
            world.host(Client).sendto(fd, b"x", 0, four).err(),
            world.host(Client).connect(fd, Some(four)).err(),
            world.host(Client).sendto(fd, b"x", 0, six).err(),
        ];
        world.note("an IPv4 address for an IPv6 socket", &answers);
        let peer = world.host(Client).getpeername(fd);
        note_name(world, "peer", peer);
        let fd = socket(world, Client, libc::AF_INET6, UDP);
        set(world, Client, fd, V6_ONLY, true).unwrap();
        let answers = [
            world.host(Client).sendto(fd, b"x", 0, four).err(),
            world.host(Client).connect(fd, Some(four)).err(),
        ];
        world.note("for IPv6 alone", &answers);
    });
}

#[test]
fn datagrams_of_both_families_reach_one_socket_and_are_answered() {
    compare(|world| {
        for v6_only in [false, true] {
            let server = socket(world, Server, libc::AF_INET6, UDP);
            set(world, Server, server, V6_ONLY, v6_only).unwrap();
            world.host(Server).bind(server, any(libc::AF_INET6, 0)).unwrap();
            let port = port_of(world, Server, server);
            let epoll = world.watch(Server, server, libc::EPOLLIN | libc::EPOLLOUT);
            let (four, mapped) = (world.address(Server, port), world.mapped(Server, port));
            let six = world.address6(Server, port);
            for (domain, to) in
                [(libc::AF_INET, four), (libc::AF_INET6, mapped), (libc::AF_INET6, six)]
            {
                let client = socket(world, Client, domain, UDP);
                let sent = world.host(Client).sendto(client, b"hello", 0, to);
                world.note("sendto", &sent);
                world.note_events("events", Server, epoll);
                let got = world.host(Server).recvfrom(server, 100, 0);
                let from = got.as_ref().ok().and_then(|(_, from, _)| *from);
                let got = got.map(|(bytes, from, len)| {
                    (bytes.escape_ascii().to_string(), from.map(|it| world.words(it)), len)
                });
                world.note("recvfrom", &got);
                if let Some(from) = from {
                    let sent = world.host(Server).sendto(server, b"answer", 0, from);
                    world.note("answer", &sent);
                    world.note_recv("recv", Client, client, 100, 0);
                    let answer = world.host(Server).connect(server, Some(from));
                    world.note("connect", &answer);
                    let peer = world.host(Server).getpeername(server);
                    note_name(world, "peer", peer);
                    world.note_send("send", Server, server, b"again", 0);
                    world.note_recv("recv", Client, client, 100, 0);
                    world.note_send("send", Client, client, b"unconnected", 0);
                    let answer = world.host(Server).connect(server, None);
                    world.note("apart", &answer);
                }
            }
        }
    });
}

/// Binds two sockets to one port, and writes down whether both may, and may listen.
fn note_pair(world: &mut World, kind: i32, pair: [(i32, SocketAddr, bool); 2], reuse: &[i32]) {
    let fds = pair.map(|(domain, _, alone)| {
        let fd = socket(world, Server, domain, kind);
        if alone {
            set(world, Server, fd, V6_ONLY, true).unwrap();
        }
        for option in reuse {
            set(world, Server, fd, (libc::SOL_SOCKET, *option), true).unwrap();
        }
        fd
    });
    // A port that is free in both families.
    let both = socket(world, Server, libc::AF_INET6, kind);
    world.host(Server).bind(both, any(libc::AF_INET6, 0)).unwrap();
    let port = port_of(world, Server, both);
    world.host(Server).close(both).unwrap();
    let [first, second] = pair.map(|(_, address, _)| SocketAddr::new(address.ip(), port));
    world.host(Server).bind(fds[0], first).unwrap();
    let answer = world.host(Server).bind(fds[1], second);
    let told = pair.map(|(_, address, alone)| (world.words(address), alone));
    world.note(&format!("{told:?} {reuse:?}"), &answer);
    if kind == TCP && answer.is_ok() {
        let answers = fds.map(|fd| world.host(Server).listen(fd, 1));
        world.note("listen", &answers);
    }
    for fd in fds {
        world.host(Server).close(fd).unwrap();
    }
    world.settle();
}

#[test]
fn families_are_in_each_others_way_as_on_linux() {
    compare(|world| {
        let (four, six) = (libc::AF_INET, libc::AF_INET6);
        let places = [
            (four, any(four, 0), false),
            (four, world.address(Server, 0), false),
            (six, any(six, 0), false),
            (six, any(six, 0), true),
            (six, world.mapped(Server, 0), false),
            (six, "[::ffff:0.0.0.0]:0".parse().unwrap(), false),
            (six, world.address6(Server, 0), false),
        ];
        let mut note_pairs = |kind, reuse: &[i32]| {
            for first in places {
                for second in places {
                    note_pair(world, kind, [first, second], reuse);
                }
            }
        };
        for reuse in [&[][..], &[libc::SO_REUSEADDR], &[libc::SO_REUSEPORT]] {
            note_pairs(TCP, reuse);
        }
        // A datagram has one receiver on our own stack: two at one address are refused.
        note_pairs(UDP, &[]);
    });
}
