//! Socket options, ioctl and fcntl: values read as set, wrong ones are refused alike.

use crate::host::{Answer, Fd};
use crate::world::{Client, Server, Side, World, compare};

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const IP: i32 = libc::IPPROTO_IP;
const TCP_INQ: i32 = 36;

fn note_int(world: &mut World, side: Side, fd: Fd, (level, name): (i32, i32)) {
    let answer: Answer<Vec<u8>> = world.host(side).getsockopt(fd, level, name, 4);
    let number = answer.map(|bytes| bytes.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)));
    world.note(&format!("{level}/{name}"), &number);
}

fn note_set(world: &mut World, side: Side, fd: Fd, at: (i32, i32), number: i32) {
    let answer = world.host(side).setsockopt(fd, at.0, at.1, &number.to_ne_bytes());
    world.note(&format!("set {at:?} to {number}"), &answer);
    note_int(world, side, fd, at);
}

/// What servers and clients set: nginx, redis, memcached, lighttpd, haproxy, curl, Go and Python.
const OFTEN_SET: &[(i32, i32, i32)] = &[
    (SOCKET, libc::SO_REUSEADDR, 1),
    (SOCKET, libc::SO_REUSEADDR, 0),
    (SOCKET, libc::SO_REUSEPORT, 1),
    (SOCKET, libc::SO_KEEPALIVE, 1),
    (SOCKET, libc::SO_KEEPALIVE, 7),
    (SOCKET, libc::SO_BROADCAST, 1),
    (SOCKET, libc::SO_OOBINLINE, 1),
    (SOCKET, libc::SO_RCVBUF, 40_000),
    (SOCKET, libc::SO_RCVBUF, 1),
    (SOCKET, libc::SO_SNDBUF, 50_000),
    (SOCKET, libc::SO_SNDBUF, 1),
    (SOCKET, libc::SO_RCVLOWAT, 5),
    (SOCKET, libc::SO_RCVLOWAT, 0),
    (SOCKET, libc::SO_PRIORITY, 3),
    (TCP, libc::TCP_NODELAY, 1),
    (TCP, libc::TCP_NODELAY, 0),
    (TCP, libc::TCP_CORK, 1),
    (TCP, libc::TCP_CORK, 0),
    (TCP, libc::TCP_KEEPIDLE, 60),
    (TCP, libc::TCP_KEEPIDLE, 0),
    (TCP, libc::TCP_KEEPIDLE, 40_000),
    (TCP, libc::TCP_KEEPINTVL, 10),
    (TCP, libc::TCP_KEEPINTVL, -1),
    (TCP, libc::TCP_KEEPCNT, 5),
    (TCP, libc::TCP_KEEPCNT, 200),
    (TCP, libc::TCP_USER_TIMEOUT, 3000),
    (TCP, libc::TCP_USER_TIMEOUT, -3),
    (TCP, TCP_INQ, 1),
    (TCP, TCP_INQ, 2),
    (TCP, TCP_INQ, 0),
    (TCP, libc::TCP_NOTSENT_LOWAT, -1),
    (TCP, libc::TCP_NOTSENT_LOWAT, 16_384),
    (TCP, libc::TCP_NOTSENT_LOWAT, 0),
    (IP, libc::IP_TOS, 0x10),
    (IP, libc::IP_TTL, 5),
    (IP, libc::IP_TTL, 0),
    (IP, libc::IP_TTL, 300),
    (IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
    (IP, libc::IP_MTU_DISCOVER, 6),
    (IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT),
    (SOCKET, libc::SO_ZEROCOPY, 0),
];

#[test]
fn options_are_alike_before_and_after_connecting() {
    compare(|world| {
        let fresh = world.tcp(Client);
        let (_, connected) = world.connection();
        let (listener, _) = world.listener(Client, 4);
        for fd in [fresh, connected, listener] {
            for (level, name, number) in OFTEN_SET {
                note_set(world, Client, fd, (*level, *name), *number);
            }
            for name in [libc::SO_TYPE, libc::SO_PROTOCOL, libc::SO_DOMAIN, libc::SO_ERROR] {
                note_int(world, Client, fd, (SOCKET, name));
            }
            note_int(world, Client, fd, (SOCKET, libc::SO_ACCEPTCONN));
            note_set(world, Client, fd, (SOCKET, libc::SO_TYPE), 1);
            note_set(world, Client, fd, (SOCKET, 9999), 1);
            note_set(world, Client, fd, (TCP, 9999), 1);
        }
    });
}

#[test]
fn fast_open_option_of_listeners_is_read_back() {
    compare(|world| {
        let fresh = world.tcp(Client);
        let (_, connected) = world.connection();
        let (listener, _) = world.listener(Client, 4);
        for fd in [fresh, listener, connected] {
            note_int(world, Client, fd, (TCP, libc::TCP_FASTOPEN));
            for number in [5, -1, 0, 100_000] {
                note_set(world, Client, fd, (TCP, libc::TCP_FASTOPEN), number);
            }
        }
    });
}

#[test]
fn options_of_sockets_that_have_none_such() {
    const V6: i32 = libc::IPPROTO_IPV6;
    compare(|world| {
        for domain in [libc::AF_INET, libc::AF_INET6] {
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
                let fd = world.host(Client).socket(domain, kind, 0).unwrap();
                if kind == libc::SOCK_DGRAM {
                    note_int(world, Client, fd, (TCP, libc::TCP_INFO));
                    note_int(world, Client, fd, (TCP, libc::TCP_NODELAY));
                }
                note_int(world, Client, fd, (999, 1));
                for number in [libc::IPV6_PMTUDISC_DO, 6, libc::IPV6_PMTUDISC_WANT] {
                    note_set(world, Client, fd, (V6, libc::IPV6_MTU_DISCOVER), number);
                }
            }
        }
    });
}

#[test]
fn quick_acknowledgements_are_a_listener_s_to_refuse() {
    let at = (TCP, libc::TCP_QUICKACK);
    compare(|world| {
        let early = world.tcp(Server);
        note_set(world, Server, early, at, 0);
        world.host(Server).listen(early, 1).unwrap();
        note_int(world, Server, early, at);
        let (listener, address) = world.listener(Server, 4);
        let mut accepted = || {
            let client = world.tcp(Client);
            let _ = world.host(Client).connect(client, Some(address));
            world.settle();
            let fd = world.accept(listener);
            note_int(world, Server, fd, at);
            note_set(world, Server, listener, at, 0);
        };
        accepted();
        accepted();
    });
}

#[test]
fn values_that_are_no_numbers() {
    compare(|world| {
        let fd = world.tcp(Client);
        let words = |numbers: &[i64]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
        };
        let linger = |on: i32, seconds: i32| [on.to_ne_bytes(), seconds.to_ne_bytes()].concat();
        for (level, name, value) in [
            (SOCKET, libc::SO_LINGER, linger(1, 3)),
            (SOCKET, libc::SO_LINGER, linger(0, 3)),
            (SOCKET, libc::SO_LINGER, vec![1; 7]),
            (SOCKET, libc::SO_RCVTIMEO, words(&[2, 500_000])),
            (SOCKET, libc::SO_RCVTIMEO, words(&[2, 1_000_000])),
            (SOCKET, libc::SO_SNDTIMEO, words(&[1, 0])),
            (SOCKET, libc::SO_SNDTIMEO, words(&[1])),
            (SOCKET, libc::SO_KEEPALIVE, vec![1, 0]),
            (TCP, libc::TCP_NODELAY, vec![1]),
            (TCP, libc::TCP_CONGESTION, b"no-such-algorithm".to_vec()),
            (IP, libc::IP_TOS, vec![0x20]),
        ] {
            let answer = world.host(Client).setsockopt(fd, level, name, &value);
            world.note(&format!("set {level}/{name}"), &answer);
            let told = world.host(Client).getsockopt(fd, level, name, 16);
            // The algorithm itself is the system's own choice.
            if name != libc::TCP_CONGESTION {
                world.note("told", &told);
            }
        }
        let short = world.host(Client).getsockopt(fd, SOCKET, libc::SO_LINGER, 3);
        world.note("cut to what there is room for", &short.map(|value| value.len()));
        let epoll = world.host(Client).epoll_create1(0).unwrap();
        let answer = world.host(Client).setsockopt(epoll, SOCKET, libc::SO_KEEPALIVE, &[1; 4]);
        world.note("no socket", &answer);
    });
}

#[test]
fn so_error_is_reported_once() {
    compare(|world| {
        let (listener, address) = world.listener(Server, 1);
        world.host(Server).close(listener).unwrap();
        let fd = world.tcp(Client);
        let _ = world.host(Client).connect(fd, Some(address));
        world.settle();
        for _ in 0..2 {
            note_int(world, Client, fd, (SOCKET, libc::SO_ERROR));
        }
    });
}

#[test]
fn a_connection_has_what_its_listener_was_given() {
    compare(|world| {
        let (listener, address) = world.listener(Server, 4);
        for (level, name, number) in [
            (TCP, libc::TCP_NODELAY, 1),
            (SOCKET, libc::SO_KEEPALIVE, 1),
            (TCP, libc::TCP_KEEPIDLE, 33),
            (TCP, libc::TCP_NOTSENT_LOWAT, 5000),
            (SOCKET, libc::SO_RCVLOWAT, 3),
            (IP, libc::IP_TTL, 9),
        ] {
            note_set(world, Server, listener, (level, name), number);
        }
        let client = world.tcp(Client);
        let _ = world.host(Client).connect(client, Some(address));
        world.settle();
        let fd = world.accept(listener);
        for (level, name) in [
            (TCP, libc::TCP_NODELAY),
            (SOCKET, libc::SO_KEEPALIVE),
            (TCP, libc::TCP_KEEPIDLE),
            (TCP, libc::TCP_NOTSENT_LOWAT),
            (SOCKET, libc::SO_RCVLOWAT),
            (IP, libc::IP_TTL),
        ] {
            note_int(world, Server, fd, (level, name));
        }
        let epoll = world.watch(Server, fd, libc::EPOLLIN);
        world.note_send("two", Client, client, b"ab", 0);
        world.note_events("below the mark", Server, epoll);
        world.note_send("and one", Client, client, b"c", 0);
        world.note_events("at the mark", Server, epoll);
    });
}

#[test]
fn tcp_inq_reports_the_bytes_left() {
    compare(|world| {
        let (server, client) = world.connection();
        note_set(world, Server, server, (TCP, TCP_INQ), 1);
        world.note_send("ten", Client, client, b"0123456789", 0);
        let read = |world: &mut World, what: &str, len: usize, room: usize, flags: i32| {
            world.settle();
            let answer = world.host(Server).recvmsg(server, len, room, flags);
            let answer = answer.map(|(bytes, control, flags)| {
                let told = control.get(8..).map(<[u8]>::to_vec);
                (bytes, told, flags & libc::MSG_CTRUNC)
            });
            world.note(what, &answer);
        };
        read(world, "none yet", 0, 64, 0);
        read(world, "a look", 3, 64, libc::MSG_PEEK);
        read(world, "three", 3, 64, 0);
        read(world, "one, no room for a header", 1, 10, 0);
        read(world, "one, no room for the number", 1, 18, 0);
        read(world, "one, no control data", 1, 0, 0);
        world.host(Client).shutdown(client, libc::SHUT_WR).unwrap();
        read(world, "two, and there is an end", 2, 64, 0);
        read(world, "the last two", 2, 64, 0);
        read(world, "the end", 2, 64, 0);
    });
}

#[test]
fn a_linger_time_of_zero_makes_closing_a_reset() {
    compare(|world| {
        let (server, client) = world.connection();
        let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        let set = world.host(Server).setsockopt(server, SOCKET, libc::SO_LINGER, &linger);
        world.note("set", &set);
        world.note_send("send", Server, server, b"lost or not", 0);
        world.note_recv("recv", Client, client, 100, 0);
        world.host(Server).close(server).unwrap();
        world.note_recv("reset", Client, client, 100, 0);
    });
}

/// More than a connection takes ahead of the program's reads, so that some wait below.
#[test]
fn siocoutq_does_not_count_bytes_to_read() {
    compare(|world| {
        let (server, client) = world.connection();
        for _ in 0..8 {
            // It may be full.
            let _ = world.host(Server).send(server, &[7; 32 << 10], libc::MSG_DONTWAIT);
            world.settle();
        }
        let unread = world.host(Client).ioctl(client, libc::FIONREAD, 0).unwrap();
        assert!(unread > 64 << 10, "{unread}");
        let unsent = world.host(Client).ioctl(client, libc::TIOCOUTQ, 0);
        world.note("unsent", &unsent);
    });
}

#[test]
fn ioctl_and_fcntl_count_and_switch() {
    compare(|world| {
        let (server, client) = world.connection();
        world.note_send("send", Client, client, b"12345", 0);
        world.settle();
        for (what, fd, request, argument) in [
            ("unread", server, libc::FIONREAD, 0),
            ("blocking", server, libc::FIONBIO, 0),
            ("not blocking", server, libc::FIONBIO, 1),
            ("unsent", client, libc::TIOCOUTQ, 0),
            ("no such request", server, 0x1234, 0),
        ] {
            let answer = world.host(Server).ioctl(fd, request, argument);
            let answer =
                if fd == client { world.host(Client).ioctl(fd, request, argument) } else { answer };
            world.note(what, &answer);
            let flags = world.host(Server).fcntl(server, libc::F_GETFL, 0);
            let flags = flags.map(|flags| flags & (libc::O_NONBLOCK | libc::O_ACCMODE));
            world.note("flags", &flags);
        }
        let calls = [
            (libc::F_SETFL, 0),
            (libc::F_SETFL, libc::O_NONBLOCK),
            (libc::F_SETFD, libc::FD_CLOEXEC),
            (libc::F_GETFD, 0),
            (libc::F_SETFD, 0),
            (libc::F_GETFD, 0),
            (libc::F_DUPFD, -1),
            (9999, 0),
        ];
        for (command, argument) in calls {
            let answer = world.host(Server).fcntl(server, command, argument);
            world.note(&format!("fcntl {command} {argument}"), &answer);
        }
    });
}

#[test]
fn ip_options_of_one_byte_are_taken() {
    compare(|world| {
        let fd = world.tcp(Client);
        for value in [libc::IP_PMTUDISC_DO as u8, libc::IP_PMTUDISC_WANT as u8, 6] {
            let set = world.host(Client).setsockopt(fd, IP, libc::IP_MTU_DISCOVER, &[value]);
            let told = world.host(Client).getsockopt(fd, IP, libc::IP_MTU_DISCOVER, 1);
            world.note("one byte", &(set, told));
        }
    });
}
