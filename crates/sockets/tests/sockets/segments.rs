//! UDP_SEGMENT and UDP_GRO: several datagrams in one call, in both directions.

use std::net::SocketAddr;

use crate::control::message;
use crate::host::{Answer, Fd};
use crate::world::{
    Client, STACK_PLACES, Server, Side, StackPlace, World, alone, compare, compare_on,
};

const UDP: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
const LEVEL: i32 = libc::SOL_UDP;
const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];

fn bound(world: &mut World, side: Side, domain: i32) -> (Fd, SocketAddr) {
    let fd = world.host(side).socket(domain, UDP, 0).unwrap();
    let place = match domain {
        libc::AF_INET => world.address(side, 0),
        _ => world.address6(side, 0),
    };
    world.host(side).bind(fd, place).unwrap();
    let name = world.host(side).getsockname(fd).unwrap();
    (fd, name)
}

fn set(world: &mut World, side: Side, fd: Fd, (level, name): (i32, i32), value: &[u8]) {
    let answer = world.host(side).setsockopt(fd, level, name, value);
    let told = world.host(side).getsockopt(fd, level, name, 4);
    world.note(&format!("set {level}/{name} to {value:?}"), &(answer, told));
}

/// Bytes of which each place can be told.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place % 251) as u8).collect()
}

/// Writes down all that has come: how long each is, where it begins, and control data.
fn note_all(world: &mut World, fd: Fd, (len, room): (usize, usize), flags: i32) {
    world.settle();
    let mut told = Vec::new();
    loop {
        match world.host(Server).recvmsg(fd, len, room, flags) {
            Ok((bytes, control, flags)) => {
                let first = bytes.first().copied();
                // The first word of a message is its length.
                told.push((bytes.len(), first, bytes.last().copied(), control, flags));
            }
            Err(libc::EAGAIN) => break,
            Err(error) => panic!("{error}"),
        }
        if flags & libc::MSG_PEEK != 0 {
            break;
        }
    }
    world.note(&format!("{} messages", told.len()), &told);
}

#[test]
fn udp_segment_splits_a_send() {
    // What the kernel does not take, the next call tells there.
    compare_on(&[], |world| {
        for domain in FAMILIES {
            let (server, to) = bound(world, Server, domain);
            let client = world.host(Client).socket(domain, UDP, 0).unwrap();
            let option = (LEVEL, libc::UDP_SEGMENT);
            for number in [-1_i32, 0, 65_535, 65_536, 100] {
                set(world, Client, client, option, &number.to_ne_bytes());
            }
            set(world, Client, client, option, &[1, 0]);
            for len in [250, 300, 100, 101, 50, 0, 12_800, 12_801, 65_507] {
                let sent = world.host(Client).sendto(client, &bytes(len), 0, to);
                world.note(&format!("send {len}"), &sent);
                note_all(world, server, (2000, 0), 0);
            }
            set(world, Client, client, option, &1400_i32.to_ne_bytes());
            let sent = world.host(Client).sendto(client, &bytes(60_000), 0, to);
            world.note("much", &sent);
            note_all(world, server, (2000, 0), 0);
            world.host(Client).connect(client, Some(to)).unwrap();
            world.note_send("connected", Client, client, &bytes(3000), 0);
            note_all(world, server, (2000, 0), 0);
        }
    });
}

#[test]
fn udp_segment_by_control_data_is_per_call() {
    compare(|world| {
        for domain in FAMILIES {
            let (server, to) = bound(world, Server, domain);
            let client = world.host(Client).socket(domain, UDP, 0).unwrap();
            let segment = |len: u16| message(LEVEL, libc::UDP_SEGMENT, &len.to_ne_bytes());
            for default in [0_i32, 70] {
                set(world, Client, client, (LEVEL, libc::UDP_SEGMENT), &default.to_ne_bytes());
                for (what, control) in [
                    ("a hundred", segment(100)),
                    ("whole", segment(0)),
                    ("the last one counts", [segment(10), segment(200)].concat()),
                    ("short", message(LEVEL, libc::UDP_SEGMENT, &[1])),
                    ("long", message(LEVEL, libc::UDP_SEGMENT, &100_i32.to_ne_bytes())),
                    ("none", message(LEVEL, libc::UDP_SEGMENT, &[])),
                    ("too many", segment(1)),
                    ("what is reported", message(LEVEL, libc::UDP_GRO, &1_i32.to_ne_bytes())),
                ] {
                    let sent = world.host(Client).sendmsg(client, &bytes(250), to, &control);
                    world.note(what, &sent);
                    note_all(world, server, (2000, 0), 0);
                }
            }
        }
    });
}

#[test]
fn udp_gro_receives_segments_in_one_call() {
    // The kernel's own datagrams go through, joined or not.
    compare_on(&[], |world| {
        for domain in FAMILIES {
            let (server, to) = bound(world, Server, domain);
            let client = world.host(Client).socket(domain, UDP, 0).unwrap();
            let on = (LEVEL, libc::UDP_GRO);
            for number in [5_i32, 0, -1] {
                set(world, Server, server, on, &number.to_ne_bytes());
            }
            set(world, Server, server, on, &[1]);
            let hops = match domain {
                libc::AF_INET => (libc::IPPROTO_IP, libc::IP_RECVTTL),
                _ => (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
            };
            for _ in 0..2 {
                set(world, Client, client, (LEVEL, libc::UDP_SEGMENT), &100_i32.to_ne_bytes());
                for len in [250, 300, 100, 50, 12_800] {
                    world.host(Client).sendto(client, &bytes(len), 0, to).unwrap();
                    note_all(world, server, (20_000, 200), 0);
                }
                world.host(Client).sendto(client, &bytes(250), 0, to).unwrap();
                note_all(world, server, (20_000, 200), libc::MSG_PEEK);
                let waits = world.host(Server).ioctl(server, libc::FIONREAD, 0);
                world.note("FIONREAD", &waits);
                note_all(world, server, (120, 200), 0);
                world.host(Client).sendto(client, &bytes(250), 0, to).unwrap();
                note_all(world, server, (20_000, 18), 0);
                world.host(Client).sendto(client, &bytes(250), 0, to).unwrap();
                world.settle();
                let whole = world.host(Server).recvfrom(server, 10, libc::MSG_TRUNC);
                world.note("the whole length", &whole.map(|(_, _, len)| len));
                set(world, Server, server, hops, &1_i32.to_ne_bytes());
            }
        }
    });
}

#[test]
fn only_what_is_alike_is_joined() {
    // What came by calls of its own, Linux's loopback does not join; a device would.
    for place in STACK_PLACES {
        let mut world = alone(place);
        let world = &mut world;
        let (server, to) = bound(world, Server, libc::AF_INET);
        let on = 1_i32.to_ne_bytes();
        world.host(Server).setsockopt(server, LEVEL, libc::UDP_GRO, &on).unwrap();
        let [one, other] = [(); 2].map(|()| bound(world, Client, libc::AF_INET).0);
        let mut sends = vec![(one, 100), (one, 100), (other, 100), (one, 100), (one, 30)];
        sends.extend([(one, 100), (one, 0), (one, 0), (one, 10), (one, 20)]);
        for (fd, len) in sends {
            world.host(Client).sendto(fd, &bytes(len), 0, to).unwrap();
            world.settle();
        }
        // Another class is another flow.
        let class = message(libc::IPPROTO_IP, libc::IP_TOS, &[4]);
        world.host(Client).sendmsg(one, &bytes(20), to, &class).unwrap();
        world.settle();
        let mut lens = Vec::new();
        while let Ok((bytes, control, _)) = world.host(Server).recvmsg(server, 2000, 64, 0) {
            assert_eq!(control.is_empty(), matches!(bytes.len(), 0..=100), "{}", bytes.len());
            lens.push(bytes.len());
        }
        assert_eq!(lens, [200, 100, 130, 100, 0, 0, 10, 20, 20], "{}", place.name());
    }
}

#[test]
fn segments_fit_a_packet_and_go_together_or_not_at_all() {
    for place in STACK_PLACES {
        let mut world = alone(place);
        let world = &mut world;
        let (server, to) = bound(world, Server, libc::AF_INET);
        let (client, _) = bound(world, Client, libc::AF_INET);
        let segment = |len: u16| message(LEVEL, libc::UDP_SEGMENT, &len.to_ne_bytes());
        let mut send = |len: usize, segment_len: u16| -> Answer<usize> {
            world.host(Client).sendmsg(client, &bytes(len), to, &segment(segment_len))
        };
        assert_eq!(send(4000, 1473), Err(libc::EMSGSIZE), "{}", place.name());
        assert_eq!(send(4000, 1472), Ok(4000));
        // More than wait at an endpoint: those before go out to make room, where the server's
        // thread has the core in time.

        for _ in 0..3 {
            match send(128, 1) {
                Err(libc::ENOBUFS) if place == StackPlace::THREAD => {}
                sent => assert_eq!(sent, Ok(128), "{}", place.name()),
            }
        }

        world.settle();
        let mut count = 0;
        while world.host(Server).recv(server, 2000, 0).is_ok() {
            count += 1;
        }
        // The rest did not fit what waits at the other end.
        assert!((3 + 128..=3 + 3 * 128).contains(&count), "{count}");
    }
}
