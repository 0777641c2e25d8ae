//! Control data: where a datagram was sent to, how it came, when; and how one is to leave.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::host::{Answer, Fd};
use crate::world::{Client, Server, Side, World, compare};

const UDP: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
const SOCKET: i32 = libc::SOL_SOCKET;

fn set(world: &mut World, side: Side, fd: Fd, (level, name): (i32, i32), number: i32) {
    let answer = world.host(side).setsockopt(fd, level, name, &number.to_ne_bytes());
    let told = world.host(side).getsockopt(fd, level, name, 4);
    world.note(&format!("set {level}/{name} to {number}"), &(answer, told));
}

/// One message of control data.
pub(crate) fn message(level: i32, name: i32, data: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + data.len()).to_ne_bytes().to_vec();
    bytes.extend(level.to_ne_bytes());
    bytes.extend(name.to_ne_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Messages in words: what is this system's own is left out.
fn words(world: &World, control: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    let mut left = control;
    while let Some((header, _)) = left.split_first_chunk::<16>() {
        let len = usize::from_ne_bytes(*header.first_chunk().unwrap());
        let at = |from: usize| i32::from_ne_bytes(header[from..from + 4].try_into().unwrap());
        let data = &left[16..len.min(left.len())];
        words.push(match (at(8), at(12), data.len()) {
            (IP, libc::IP_PKTINFO, 12) => {
                let to: [[u8; 4]; 2] =
                    [data[4..8].try_into().unwrap(), data[8..].try_into().unwrap()];
                let named = to.map(|ip| world.words(SocketAddr::new(IpAddr::from(ip), 0)));
                format!("IPv4 to {named:?}, an interface: {}", data[..4] != [0; 4])
            }
            (IPV6, libc::IPV6_PKTINFO, 20) => {
                let to: [u8; 16] = data[..16].try_into().unwrap();
                let named = world.words(SocketAddr::new(IpAddr::from(to), 0));
                format!("IPv6 to {named}, an interface: {}", data[16..] != [0; 4])
            }
            (SOCKET, name, len) => format!("stamp {name}, {len} bytes"),
            (level, name, _) => format!("{level}/{name}: {data:?}, length {len}"),
        });
        left = left.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    words
}

fn note_message(world: &mut World, side: Side, fd: Fd, (len, room): (usize, usize)) {
    world.settle();
    let answer = world.host(side).recvmsg(fd, len, room, 0);
    let answer: Answer<_> = answer.map(|(bytes, control, flags)| {
        (bytes.escape_ascii().to_string(), words(world, &control), control.len(), flags)
    });
    world.note(&format!("recvmsg with room for {room}"), &answer);
}

/// A socket at all addresses of a family, and where it is reached.
fn everywhere(world: &mut World, domain: i32) -> (Fd, SocketAddr) {
    let fd = world.host(Server).socket(domain, UDP, 0).unwrap();
    let any: IpAddr = match domain {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    };
    world.host(Server).bind(fd, SocketAddr::new(any, 0)).unwrap();
    let port = world.host(Server).getsockname(fd).unwrap().port();
    let reached = match domain {
        libc::AF_INET => world.address(Server, port),
        _ => world.address6(Server, port),
    };
    (fd, reached)
}

#[test]
fn control_data_describes_a_datagrams_arrival() {
    compare(|world| {
        let (server, to) = everywhere(world, libc::AF_INET);
        let client = world.host(Client).socket(libc::AF_INET, UDP, 0).unwrap();
        set(world, Client, client, (IP, libc::IP_TTL), 33);
        set(world, Client, client, (IP, libc::IP_TOS), 0xb9);
        world.host(Client).sendto(client, b"not wanted", 0, to).unwrap();
        note_message(world, Server, server, (100, 200));
        for name in [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS] {
            set(world, Server, server, (IP, name), 1);
            world.host(Client).sendto(client, b"asked", 0, to).unwrap();
            note_message(world, Server, server, (100, 200));
        }
        for room in [0, 15, 16, 20, 28, 32, 50, 56, 73, 80] {
            world.host(Client).sendto(client, b"too long", 0, to).unwrap();
            note_message(world, Server, server, (4, room));
        }
        for name in [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS] {
            set(world, Server, server, (IP, name), 0);
        }
        for (name, number) in [
            (libc::SO_TIMESTAMP, 1),
            (libc::SO_TIMESTAMPNS, 1),
            (libc::SO_TIMESTAMP, 1),
            (libc::SO_TIMESTAMPNS, 0),
        ] {
            set(world, Server, server, (SOCKET, name), number);
            world.host(Client).sendto(client, b"when", 0, to).unwrap();
            note_message(world, Server, server, (100, 200));
        }
    });
}

#[test]
fn the_same_of_ipv6_and_of_ipv4_in_it() {
    compare(|world| {
        let (server, to) = everywhere(world, libc::AF_INET6);
        let (four, mapped) = (world.address(Server, to.port()), world.mapped(Server, to.port()));
        let six = world.host(Client).socket(libc::AF_INET6, UDP, 0).unwrap();
        set(world, Client, six, (IPV6, libc::IPV6_UNICAST_HOPS), 44);
        set(world, Client, six, (IPV6, libc::IPV6_TCLASS), 0x2e);
        let plain = world.host(Client).socket(libc::AF_INET, UDP, 0).unwrap();
        for name in [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS] {
            set(world, Server, server, (IPV6, name), 1);
            world.host(Client).sendto(six, b"six", 0, to).unwrap();
            note_message(world, Server, server, (100, 200));
            world.host(Client).sendto(plain, b"four", 0, four).unwrap();
            note_message(world, Server, server, (100, 200));
        }
        set(world, Server, server, (IP, libc::IP_RECVTTL), 1);
        world.host(Client).sendto(plain, b"four", 0, four).unwrap();
        note_message(world, Server, server, (100, 200));
        let _ = mapped;
        let v4 = world.host(Client).socket(libc::AF_INET, UDP, 0).unwrap();
        set(world, Client, v4, (IPV6, libc::IPV6_RECVPKTINFO), 1);
    });
}

#[test]
fn control_data_sets_a_datagrams_departure() {
    compare(|world| {
        let (server, to) = everywhere(world, libc::AF_INET);
        for name in [libc::IP_RECVTTL, libc::IP_RECVTOS] {
            set(world, Server, server, (IP, name), 1);
        }
        let client = world.host(Client).socket(libc::AF_INET, UDP, 0).unwrap();
        let own = world.address(Client, 0).ip();
        let IpAddr::V4(own) = own else { panic!() };
        let place = |ip: Ipv4Addr| [&[0; 4][..], &ip.octets(), &[0; 4]].concat();
        let int = |number: i32| number.to_ne_bytes().to_vec();
        let stranger = Ipv4Addr::new(192, 0, 2, 1);
        for (what, control) in [
            ("hops", message(IP, libc::IP_TTL, &int(7))),
            ("class", message(IP, libc::IP_TOS, &int(0x28))),
            ("class in a byte", message(IP, libc::IP_TOS, &[0x28])),
            (
                "both",
                [message(IP, libc::IP_TTL, &int(9)), message(IP, libc::IP_TOS, &[4])].concat(),
            ),
            ("from", message(IP, libc::IP_PKTINFO, &place(own))),
            ("from anywhere", message(IP, libc::IP_PKTINFO, &place(Ipv4Addr::UNSPECIFIED))),
            ("from a stranger", message(IP, libc::IP_PKTINFO, &place(stranger))),
            ("no hops", message(IP, libc::IP_TTL, &int(0))),
            ("many hops", message(IP, libc::IP_TTL, &int(256))),
            ("hops in a byte", message(IP, libc::IP_TTL, &[1])),
            ("a large class", message(IP, libc::IP_TOS, &int(256))),
            ("a short place", message(IP, libc::IP_PKTINFO, &[0; 8])),
            ("the other family", message(IPV6, libc::IPV6_HOPLIMIT, &int(5))),
            ("no such message", message(IP, 200, &int(5))),
            ("no length", vec![0; 24]),
            ("a long length", [100_usize.to_ne_bytes(), [0; 8]].concat()),
            ("too short for a message", vec![1; 10]),
        ] {
            let sent = world.host(Client).sendmsg(client, b"x", to, &control);
            world.note(what, &sent);
            if sent.is_ok() {
                note_message(world, Server, server, (10, 100));
            }
        }
    });
}

#[test]
fn the_same_over_ipv6() {
    compare(|world| {
        let (server, to) = everywhere(world, libc::AF_INET6);
        for name in [libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS] {
            set(world, Server, server, (IPV6, name), 1);
        }
        let client = world.host(Client).socket(libc::AF_INET6, UDP, 0).unwrap();
        let IpAddr::V6(own) = world.address6(Client, 0).ip() else { panic!() };
        let place = |ip: Ipv6Addr| [&ip.octets()[..], &[0; 4]].concat();
        let int = |number: i32| number.to_ne_bytes().to_vec();
        let stranger: Ipv6Addr = "2001:db8::77".parse().unwrap();
        for (what, control) in [
            ("hops", message(IPV6, libc::IPV6_HOPLIMIT, &int(7))),
            ("hops as ever", message(IPV6, libc::IPV6_HOPLIMIT, &int(-1))),
            ("class", message(IPV6, libc::IPV6_TCLASS, &int(0x29))),
            ("from", message(IPV6, libc::IPV6_PKTINFO, &place(own))),
            ("from anywhere", message(IPV6, libc::IPV6_PKTINFO, &place(Ipv6Addr::UNSPECIFIED))),
            ("from a stranger", message(IPV6, libc::IPV6_PKTINFO, &place(stranger))),
            ("many hops", message(IPV6, libc::IPV6_HOPLIMIT, &int(256))),
            ("a large class", message(IPV6, libc::IPV6_TCLASS, &int(256))),
            ("a short place", message(IPV6, libc::IPV6_PKTINFO, &[0; 8])),
            ("no such message", message(IPV6, 200, &int(5))),
        ] {
            let sent = world.host(Client).sendmsg(client, b"x", to, &control);
            world.note(what, &sent);
            if sent.is_ok() {
                note_message(world, Server, server, (10, 100));
            }
        }
    });
}

#[test]
fn a_server_answers_from_the_address_that_was_asked() {
    compare(|world| {
        let (server, to) = everywhere(world, libc::AF_INET);
        set(world, Server, server, (IP, libc::IP_PKTINFO), 1);
        let client = world.host(Client).socket(libc::AF_INET, UDP, 0).unwrap();
        let own = world.address(Client, 0);
        world.host(Client).bind(client, own).unwrap();
        let sender = world.host(Client).getsockname(client).unwrap();
        world.host(Client).connect(client, Some(to)).unwrap();
        world.note_send("ask", Client, client, b"question", 0);
        let asked = world.host(Server).recvmsg(server, 100, 100, 0);
        world.note("asked", &asked.is_ok());
        // Not here yet: once more with longer patience.
        let Ok((_, control, _)) = asked else { return };
        let mut place = control[16..28].to_vec();
        // Any interface, as programs do that move between hosts.
        place[..4].fill(0);
        let answer = message(IP, libc::IP_PKTINFO, &place);
        let sent = world.host(Server).sendmsg(server, b"answer", sender, &answer);
        world.note("answer", &sent);
        world.note_recv("heard", Client, client, 100, 0);
    });
}
