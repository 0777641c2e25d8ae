//! epoll sets: level, edge, one-shot, exclusive; sets in sets; what they refuse.

use crate::host::Ctl;
use crate::world::{Client, Server, compare, named};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const RDBAND: u32 = libc::EPOLLRDBAND as u32;
const WRBAND: u32 = libc::EPOLLWRBAND as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

#[test]
fn level_edge_and_one_shot() {
    for how in [0, ET, ONE_SHOT, ET | ONE_SHOT] {
        compare(|world| {
            let (server, client) = world.connection();
            let epoll = world.watch(Server, server, (IN | how) as i32);
            world.note_events("nothing", Server, epoll);
            world.note_send("send", Client, client, b"ab", 0);
            world.note_events("data", Server, epoll);
            world.note_events("data, unread", Server, epoll);
            world.note_send("send", Client, client, b"cd", 0);
            world.note_events("more", Server, epoll);
            let again = world.host(Server).epoll_ctl(epoll, Ctl::Modify, server, (IN | how, 8));
            world.note("modify", &again);
            world.note_events("asked again", Server, epoll);
            world.note_recv("part", Server, server, 3, 0);
            world.note_events("a part is left", Server, epoll);
            world.note_recv("the rest", Server, server, 3, 0);
            world.note_events("nothing is left", Server, epoll);
            let both = (IN | OUT | how, 9);
            let again = world.host(Server).epoll_ctl(epoll, Ctl::Modify, server, both);
            world.note("modify", &again);
            world.note_events("room", Server, epoll);
            world.note_events("room, still", Server, epoll);
            world.note_send("send", Client, client, b"ef", 0);
            world.note_events("both", Server, epoll);
            world.host(Server).close(server).unwrap();
            world.note_events("closed", Server, epoll);
        });
    }
}

#[test]
fn epoll_ctl_refuses_invalid_arguments() {
    compare(|world| {
        let (server, _client) = world.connection();
        let epoll = world.host(Server).epoll_create1(0).unwrap();
        let plain = world.host(Server).epoll_create1(4).map(|_| "a set");
        world.note("unknown flags", &plain);
        let host = world.host(Server);
        let answers = [
            host.epoll_ctl(epoll, Ctl::Add, epoll, (IN, 0)),
            host.epoll_ctl(epoll, Ctl::Add, 9999, (IN, 0)),
            host.epoll_ctl(9999, Ctl::Add, server, (IN, 0)),
            host.epoll_ctl(server, Ctl::Add, epoll, (IN, 0)),
            host.epoll_ctl(epoll, Ctl::Modify, server, (IN, 0)),
            host.epoll_ctl(epoll, Ctl::Delete, server, (IN, 0)),
            host.epoll_ctl(epoll, Ctl::Add, server, (IN, 0)),
            host.epoll_ctl(epoll, Ctl::Add, server, (IN, 0)),
            host.epoll_ctl(epoll, Ctl::Modify, server, (IN | EXCLUSIVE, 0)),
            host.epoll_ctl(epoll, Ctl::Delete, server, (0, 0)),
            host.epoll_ctl(epoll, Ctl::Add, server, (IN | EXCLUSIVE | ONE_SHOT, 0)),
            host.epoll_ctl(epoll, Ctl::Add, server, (IN | EXCLUSIVE, 0)),
            host.epoll_ctl(epoll, Ctl::Modify, server, (IN, 0)),
        ];
        world.note("answers", &answers);
        let answers = [
            world.host(Server).epoll_wait(epoll, 0),
            world.host(Server).epoll_wait(server, 1),
            world.host(Server).epoll_wait(9999, 1),
        ];
        world.note("waits", &answers);
    });
}

#[test]
fn sets_in_sets_tell_upwards_and_do_not_go_in_circles() {
    compare(|world| {
        let (server, client) = world.connection();
        let inner = world.watch(Server, server, IN as i32);
        let outer = world.watch(Server, inner, IN as i32);
        world.note_events("nothing", Server, outer);
        world.note_send("send", Client, client, b"ab", 0);
        world.note_events("outer", Server, outer);
        world.note_events("outer, still", Server, outer);
        world.note_events("inner", Server, inner);
        world.note_recv("recv", Server, server, 10, 0);
        world.note_events("outer", Server, outer);
        let answer = world.host(Server).epoll_ctl(inner, Ctl::Add, outer, (IN, 0));
        world.note("a circle", &answer);
        let mut top = outer;
        for _ in 0..6 {
            let next = world.host(Server).epoll_create1(0).unwrap();
            let answer = world.host(Server).epoll_ctl(next, Ctl::Add, top, (IN, 0));
            world.note("one level more", &answer);
            top = next;
        }
        world.note_send("send", Client, client, b"cd", 0);
        world.host(Server).close(server).unwrap();
        world.note_events("closed", Server, outer);
    });
}

#[test]
fn one_descriptor_in_many_sets_and_many_in_one() {
    compare(|world| {
        let pairs: Vec<_> = (0..5).map(|_| world.connection()).collect();
        let one = world.host(Server).epoll_create1(0).unwrap();
        let other = world.host(Server).epoll_create1(0).unwrap();
        for (data, (server, _)) in (1..).zip(&pairs) {
            world.host(Server).epoll_ctl(one, Ctl::Add, *server, (IN, data)).unwrap();
            world.host(Server).epoll_ctl(other, Ctl::Add, *server, (IN | ET, data)).unwrap();
        }
        for (_, client) in &pairs {
            world.note_send("send", Client, *client, b"x", 0);
        }
        world.note_events("all", Server, one);
        world.note_events("all", Server, other);
        world.note_events("level", Server, one);
        world.note_events("edge", Server, other);
        let mut seen = Vec::new();
        for _ in 0..5 {
            let told = world.host(Server).epoll_wait(one, 2).unwrap();
            assert!(told.len() <= 2);
            seen.extend(named(&told).into_iter().map(|(_, data)| data));
        }
        seen.sort_unstable();
        world.note("two at a time, in turns", &seen);
        let (server, _) = pairs[2];
        world.host(Server).epoll_ctl(one, Ctl::Delete, server, (0, 0)).unwrap();
        world.note_events("one less", Server, one);
        world.host(Server).close(pairs[0].0).unwrap();
        world.note_events("and one less", Server, one);
    });
}

/// What wakes a watcher says more than what its socket is ready for: who asked for any of it is
/// told of an edge again.
#[test]
fn edges_are_reported_for_requested_events() {
    for asked in [OUT, OUT | PRI, OUT | RDBAND, OUT | RDHUP, IN | OUT, IN | WRBAND, PRI] {
        compare(|world| {
            let (server, client) = world.connection();
            world.no_delay(Client, client);
            let epoll = world.watch(Server, server, (asked | ET) as i32);
            world.note_events("at first", Server, epoll);
            for _ in 0..2 {
                world.note_send("send", Client, client, b"abc", 0);
                world.note_events("data", Server, epoll);
                world.note_events("nothing new", Server, epoll);
            }
            world.note_recv("recv", Server, server, 100, 0);
            world.note_events("read", Server, epoll);
            world.host(Client).shutdown(client, libc::SHUT_WR).unwrap();
            world.note_events("the end", Server, epoll);
        });
        compare(|world| {
            let (listener, address) = world.listener(Server, 8);
            let epoll = world.watch(Server, listener, (asked | ET) as i32);
            world.note_events("at first", Server, epoll);
            let fd = world.tcp(Client);
            let _ = world.host(Client).connect(fd, Some(address));
            world.note_events("a connection", Server, epoll);
        });
        compare(|world| {
            let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
            let fd = world.host(Server).socket(libc::AF_INET, kind, 0).unwrap();
            let any_port = world.address(Server, 0);
            world.host(Server).bind(fd, any_port).unwrap();
            let address = world.host(Server).getsockname(fd).unwrap();
            let epoll = world.watch(Server, fd, (asked | ET) as i32);
            world.note_events("at first", Server, epoll);
            let peer = world.host(Client).socket(libc::AF_INET, kind, 0).unwrap();
            for _ in 0..2 {
                world.host(Client).sendto(peer, b"abc", 0, address).unwrap();
                world.note_events("a datagram", Server, epoll);
            }
        });
    }
}
