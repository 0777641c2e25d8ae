//! The queue of errors: what IP_RECVERR asks for, and recvmsg(2) with MSG_ERRQUEUE tells.

use std::net::{IpAddr, SocketAddr};

use crate::host::{Answer, Fd};
use crate::world::{Client, Server, Side, World, compare_on};

const UDP: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;

/// On the kernel's back end the queue is the kernel's, and readiness does not tell of it.
fn compare(program: impl Fn(&mut World)) {
    compare_on(&[], program);
}

/// Which addresses a program uses, and how errors are asked for.
#[derive(Debug, Clone, Copy)]
struct Family {
    domain: i32,
    is_mapped: bool,
    option: (i32, i32),
}

const FAMILIES: [Family; 3] = [
    Family { domain: libc::AF_INET, is_mapped: false, option: (IP, libc::IP_RECVERR) },
    Family { domain: libc::AF_INET6, is_mapped: false, option: (IPV6, libc::IPV6_RECVERR) },
    Family { domain: libc::AF_INET6, is_mapped: true, option: (IP, libc::IP_RECVERR) },
];

impl Family {
    fn socket(self, world: &mut World, side: Side) -> Fd {
        world.host(side).socket(self.domain, UDP, 0).unwrap()
    }

    /// An address without a socket.
    fn unused(self, world: &mut World) -> SocketAddr {
        let fd = self.socket(world, Server);
        let place = match (self.domain, self.is_mapped) {
            (libc::AF_INET, _) => world.address(Server, 0),
            (_, true) => world.mapped(Server, 0),
            (_, false) => world.address6(Server, 0),
        };
        world.host(Server).bind(fd, place).unwrap();
        let name = world.host(Server).getsockname(fd).unwrap();
        world.host(Server).close(fd).unwrap();
        world.settle();
        name
    }
}

fn set(world: &mut World, fd: Fd, (level, name): (i32, i32), number: i32) {
    let answer = world.host(Client).setsockopt(fd, level, name, &number.to_ne_bytes());
    let told = world.host(Client).getsockopt(fd, level, name, 4);
    world.note(&format!("set {level}/{name} to {number}"), &(answer, told));
}

fn note_error(world: &mut World, fd: Fd) {
    let error = world.host(Client).getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, 4);
    world.note("SO_ERROR", &error.map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap())));
}

/// Control data in words; the MTU is each system's own.
fn words(world: &World, control: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    let mut left = control;
    while let Some((header, _)) = left.split_first_chunk::<16>() {
        let len = usize::from_ne_bytes(*header.first_chunk().unwrap());
        let int = |bytes: &[u8]| i32::from_ne_bytes(bytes[..4].try_into().unwrap());
        let (level, name) = (int(&header[8..]), int(&header[12..]));
        let data = &left[16..len.min(left.len())];
        words.push(match (level, name, data.len()) {
            (IP, libc::IP_RECVERR, 32) | (IPV6, libc::IPV6_RECVERR, 44) => {
                let (errno, facts, info) = (int(data), &data[4..8], int(&data[8..]));
                let info = if facts[0] == 1 { i32::from(info > 0) } else { info };
                let offender: IpAddr = match (level, int(&data[16..])) {
                    (_, 0) => return vec![format!("{errno} {facts:?} {info} by no host")],
                    (IP, _) => <[u8; 4]>::try_from(&data[20..24]).unwrap().into(),
                    _ => <[u8; 16]>::try_from(&data[24..40]).unwrap().into(),
                };
                let (family, port) = (&data[16..18], &data[18..20]);
                let by = world.words(SocketAddr::new(offender, 0));
                format!("{level}: {errno} {facts:?} {info} by {by} {family:?} {port:?}")
            }
            (IP, libc::IP_PKTINFO, 12) => {
                let ips: [[u8; 4]; 2] =
                    [data[4..8].try_into().unwrap(), data[8..].try_into().unwrap()];
                // On Linux's loopback a socket that is nowhere sends from where it sends to.
                format!("place, asked for {}, an interface: {}", ips[0] == [0; 4], int(data) > 0)
            }
            (IPV6, libc::IPV6_PKTINFO, 20) => format!("place, interface {}", int(&data[16..]) > 0),
            (level, name, _) => format!("{level}/{name}: {data:?}, length {len}"),
        });
        left = left.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    words
}

/// Writes down the next error.
fn note_failure(world: &mut World, fd: Fd, (len, room): (usize, usize)) {
    world.settle();
    let answer = world.host(Client).recvmsg(fd, len, room, libc::MSG_ERRQUEUE);
    let answer: Answer<_> = answer.map(|(bytes, control, flags)| {
        let shown = bytes[..bytes.len().min(8)].escape_ascii().to_string();
        (shown, bytes.len(), words(world, &control), control.len(), flags)
    });
    world.note(&format!("the queue of errors, with room for {len} and {room}"), &answer);
}

fn send(world: &mut World, fd: Fd, bytes: &[u8], to: SocketAddr) {
    let sent = world.host(Client).sendto(fd, bytes, 0, to);
    world.settle();
    world.note(&format!("send {} bytes", bytes.len()), &sent);
}

#[test]
fn error_queue_keeps_errors_until_read() {
    compare(|world| {
        for family in FAMILIES {
            let to = family.unused(world);
            let fd = family.socket(world, Client);
            let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT);
            set(world, fd, family.option, 1);
            send(world, fd, b"hello", to);
            world.note_events("an error", Client, epoll);
            let polled = world.host(Client).poll(&[(fd, libc::POLLIN | libc::POLLPRI)]);
            world.note("poll", &polled);
            note_failure(world, fd, (100, 200));
            world.note_events("none", Client, epoll);
            note_error(world, fd);
            note_failure(world, fd, (100, 200));
            // One waits to be told by a call, while the queue grows.
            for bytes in [&b"1"[..], b"22", b"333"] {
                send(world, fd, bytes, to);
            }
            note_error(world, fd);
            note_error(world, fd);
            world.note_events("two in the queue", Client, epoll);
            note_failure(world, fd, (0, 200));
            world.note_recv("the next one is reported", Client, fd, 9, 0);
            note_failure(world, fd, (100, 0));
            note_error(world, fd);
            world.note_events("none", Client, epoll);
            send(world, fd, b"where to", to);
            let answer = world.host(Client).recvfrom(fd, 9, libc::MSG_ERRQUEUE);
            let answer: Answer<_> = answer.map(|(bytes, from, len)| {
                (bytes.escape_ascii().to_string(), from == Some(to), len)
            });
            world.note("where it was to go", &answer);
            // As much as the message has room for.
            send(world, fd, &[b'x'; 1400], to);
            note_failure(world, fd, (2000, 200));
            send(world, fd, b"", to);
            note_failure(world, fd, (2000, 200));
        }
    });
}

#[test]
fn the_queue_is_for_one_family_and_goes_with_the_option() {
    compare(|world| {
        for family in FAMILIES {
            let to = family.unused(world);
            let fd = family.socket(world, Client);
            let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT);
            // Each in turn, and the one that is not of the address's family.
            for option in [(IP, libc::IP_RECVERR), (IPV6, libc::IPV6_RECVERR)] {
                set(world, fd, option, 1);
                send(world, fd, b"x", to);
                world.note_events("told, perhaps", Client, epoll);
                note_failure(world, fd, (10, 100));
                send(world, fd, b"x", to);
                set(world, fd, option, 0);
                world.note_events("the queue is gone", Client, epoll);
                note_failure(world, fd, (10, 100));
                note_error(world, fd);
                world.note_events("and the error", Client, epoll);
            }
            // The option is off, and no socket is connected.
            send(world, fd, b"x", to);
            world.note_events("nothing", Client, epoll);
        }
    });
}

#[test]
fn connected_socket_queues_and_reports_errors() {
    compare(|world| {
        for family in FAMILIES {
            let (to, elsewhere) = (family.unused(world), family.unused(world));
            let fd = family.socket(world, Client);
            world.host(Client).connect(fd, Some(to)).unwrap();
            set(world, fd, family.option, 1);
            let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
            world.note_events("fresh", Client, epoll);
            world.note_send("connected", Client, fd, b"one", 0);
            world.note_events("an error", Client, epoll);
            world.note_events("no edge", Client, epoll);
            world.note_send("told", Client, fd, b"two", 0);
            world.note_send("sent", Client, fd, b"three", 0);
            world.note_events("another error", Client, epoll);
            note_failure(world, fd, (100, 200));
            world.note_events("the next is reported", Client, epoll);
            note_error(world, fd);
            note_failure(world, fd, (100, 200));
            note_failure(world, fd, (100, 200));
            // Of what went elsewhere a connected socket hears nothing.
            send(world, fd, b"x", elsewhere);
            note_failure(world, fd, (100, 200));
            note_error(world, fd);
        }
    });
}

#[test]
fn control_data_describes_the_error() {
    compare(|world| {
        for family in FAMILIES {
            let to = family.unused(world);
            let fd = family.socket(world, Client);
            set(world, fd, family.option, 1);
            let asked = match (family.domain, family.is_mapped) {
                (libc::AF_INET, _) => vec![(IP, libc::IP_RECVTTL), (IP, libc::IP_PKTINFO)],
                (_, true) => vec![(IP, libc::IP_RECVTTL), (IPV6, libc::IPV6_RECVPKTINFO)],
                (_, false) => {
                    vec![(IPV6, libc::IPV6_RECVHOPLIMIT), (IPV6, libc::IPV6_RECVPKTINFO)]
                }
            };
            for option in asked {
                set(world, fd, option, 1);
                send(world, fd, b"x", to);
                note_failure(world, fd, (10, 200));
            }
        }
    });
}

#[test]
fn too_long_datagram_is_a_local_error() {
    compare(|world| {
        for family in FAMILIES {
            let to = family.unused(world);
            let fd = family.socket(world, Client);
            let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT);
            let long = vec![0; if to.is_ipv4() || family.is_mapped { 65_510 } else { 65_530 }];
            send(world, fd, &long, to);
            world.note_events("option off", Client, epoll);
            set(world, fd, family.option, 1);
            send(world, fd, &long, to);
            world.note_events("queued", Client, epoll);
            note_error(world, fd);
            let answer = world.host(Client).recvfrom(fd, 9, libc::MSG_ERRQUEUE);
            let answer: Answer<_> = answer.map(|(bytes, from, len)| {
                let from = from.unwrap();
                (bytes, world.words(from), from.port() == to.port(), from.port() == 0, len)
            });
            world.note("where it was to go", &answer);
            send(world, fd, b"x", to);
            send(world, fd, &long, to);
            send(world, fd, &long, to);
            for _ in 0..4 {
                note_failure(world, fd, (10, 100));
                note_error(world, fd);
            }
            world.host(Client).connect(fd, Some(to)).unwrap();
            send(world, fd, &long, to);
            let answer = world.host(Client).recvfrom(fd, 9, libc::MSG_ERRQUEUE);
            let answer: Answer<_> = answer.map(|(_, from, _)| from == Some(to));
            world.note("where it was to go, connected", &answer);
        }
    });
}

#[test]
fn the_queue_is_bounded() {
    // Linux counts bytes, and we errors.
    for place in crate::world::STACK_PLACES {
        let mut world = crate::world::on_stack(place);
        let world = &mut world;
        let to = FAMILIES[0].unused(world);
        let fd = FAMILIES[0].socket(world, Client);
        set(world, fd, FAMILIES[0].option, 1);
        let long = vec![0; 65_510];
        for _ in 0..100 {
            assert_eq!(world.host(Client).sendto(fd, &long, 0, to), Err(libc::EMSGSIZE));
        }
        let mut count = 0;
        while world.host(Client).recvfrom(fd, 9, libc::MSG_ERRQUEUE).is_ok() {
            count += 1;
        }
        assert_eq!(count, 64);
    }
}
