//! UDP sockets that share an address: who may, by SO_REUSEADDR and SO_REUSEPORT, and who gets what.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::host::{Answer, Fd};
use crate::world::{Client, Server, Side, World, compare};

const UDP: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;

/// What a socket says before it binds.
pub(crate) const REUSE: [&[i32]; 4] =
    [&[], &[libc::SO_REUSEADDR], &[libc::SO_REUSEPORT], &[libc::SO_REUSEADDR, libc::SO_REUSEPORT]];

/// Where a socket can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    OneIpv4,
    AllIpv4,
    /// IPv4 in an IPv6 socket.
    Mapped,
    OneIpv6,
    /// With IPV6_V6ONLY.
    AllIpv6,
    Everywhere,
}
pub(crate) const PLACES: [Place; 6] = [
    Place::OneIpv4,
    Place::AllIpv4,
    Place::Mapped,
    Place::OneIpv6,
    Place::AllIpv6,
    Place::Everywhere,
];

impl Place {
    pub(crate) const fn is_v6(self) -> bool {
        !matches!(self, Self::OneIpv4 | Self::AllIpv4)
    }

    pub(crate) fn at(self, world: &World, port: u16) -> SocketAddr {
        match self {
            Self::OneIpv4 => world.address(Server, port),
            Self::AllIpv4 => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
            Self::Mapped => world.mapped(Server, port),
            Self::OneIpv6 => world.address6(Server, port),
            Self::AllIpv6 | Self::Everywhere => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
        }
    }

    fn socket(self, world: &mut World, reuse: &[i32]) -> Fd {
        self.socket_of(world, UDP, reuse)
    }

    pub(crate) fn socket_of(self, world: &mut World, kind: i32, reuse: &[i32]) -> Fd {
        let host = world.host(Server);
        let domain = if self.is_v6() { libc::AF_INET6 } else { libc::AF_INET };
        let fd = host.socket(domain, kind, 0).unwrap();
        let on = 1_i32.to_ne_bytes();
        if self == Self::AllIpv6 {
            host.setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &on).unwrap();
        }
        say(world, fd, reuse, 1);
        fd
    }
}

pub(crate) fn say(world: &mut World, fd: Fd, reuse: &[i32], value: i32) {
    for option in reuse {
        let set =
            world.host(Server).setsockopt(fd, libc::SOL_SOCKET, *option, &value.to_ne_bytes());
        set.unwrap();
    }
}

/// A socket at a port that was free, and the port.
fn bound(world: &mut World, place: Place, reuse: &[i32]) -> (Fd, u16) {
    let fd = place.socket(world, reuse);
    let at = place.at(world, 0);
    world.host(Server).bind(fd, at).unwrap();
    (fd, world.host(Server).getsockname(fd).unwrap().port())
}

pub(crate) fn bind(world: &mut World, fd: Fd, place: Place, port: u16) -> Answer<()> {
    let at = place.at(world, port);
    world.host(Server).bind(fd, at)
}

#[test]
fn datagram_sharing_matrix_matches_linux() {
    compare(|world| {
        for one in REUSE {
            for other in REUSE {
                for first in PLACES {
                    for second in PLACES {
                        let (fd, port) = bound(world, first, one);
                        let beside = second.socket(world, other);
                        let answer = bind(world, beside, second, port);
                        world.host(Server).close(fd).unwrap();
                        // The socket in the way is gone.
                        let again = bind(world, beside, second, port);
                        world.host(Server).close(beside).unwrap();
                        let what = format!("{first:?} {one:?}, {second:?} {other:?}");
                        world.note(&what, &(answer, again));
                    }
                }
            }
        }
    });
}

#[test]
fn option_set_after_bind_applies_to_later_binds() {
    compare(|world| {
        for reuse in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
            for value in [0, 1] {
                let before: &[i32] = if value == 0 { &[reuse] } else { &[] };
                let (first, port) = bound(world, Place::OneIpv4, before);
                say(world, first, &[reuse], value);
                let second = Place::OneIpv4.socket(world, &[reuse]);
                let answer = bind(world, second, Place::OneIpv4, port);
                world.note(&format!("{reuse} {value}"), &answer);
            }
        }
    });
}

#[test]
fn a_socket_with_a_peer_is_at_one_address() {
    compare(|world| {
        for place in PLACES {
            let domain = if place.is_v6() { libc::AF_INET6 } else { libc::AF_INET };
            let peers = match place {
                Place::OneIpv4 | Place::AllIpv4 => vec![world.address(Client, 9)],
                Place::Mapped => vec![world.mapped(Client, 9)],
                Place::OneIpv6 | Place::AllIpv6 => vec![world.address6(Client, 9)],
                Place::Everywhere => vec![world.mapped(Client, 9), world.address6(Client, 9)],
            };
            for peer in peers {
                // With a port that was asked for it stays bound without a peer.
                let (free, port) = bound(world, place, &[]);
                world.host(Server).close(free).unwrap();
                let fd = place.socket(world, &[]);
                bind(world, fd, place, port).unwrap();
                let step = |world: &mut World, what: &str, answer: Answer<()>| {
                    let name = world.host(Server).getsockname(fd).unwrap();
                    assert_eq!(name.port(), port);
                    let any = name.ip().is_unspecified();
                    // On Linux the way to the other side may begin at either's address.
                    world.note(&format!("{place:?} {what}"), &(answer, any, name.is_ipv4()));
                };
                step(world, "bound", Ok(()));
                let answer = world.host(Server).connect(fd, Some(peer));
                step(world, "connected", answer);
                let other = world.host(Server).socket(domain, UDP, 0).unwrap();
                let taken = bind(world, other, place, port);
                world.note("beside one with a peer", &taken.is_ok());
                let answer = world.host(Server).connect(fd, None);
                step(world, "for anybody again", answer);
                world.host(Server).close(fd).unwrap();
                world.host(Server).close(other).unwrap();
            }
        }
    });
}

/// Numbers that are the same each time (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 33) as usize % count
    }
}

/// A socket of the other side for each family, and their addresses.
fn clients(world: &mut World) -> [(Fd, SocketAddr); 2] {
    [libc::AF_INET, libc::AF_INET6].map(|domain| {
        let fd = world.host(Client).socket(domain, UDP, 0).unwrap();
        let at = match domain {
            libc::AF_INET => world.address(Client, 0),
            _ => world.address6(Client, 0),
        };
        world.host(Client).bind(fd, at).unwrap();
        (fd, world.host(Client).getsockname(fd).unwrap())
    })
}

/// What a socket has got.
fn take_all(world: &mut World, side: Side, fd: Fd) -> Vec<String> {
    let take = || world.host(side).recv(fd, 100, 0).ok();
    let all = std::iter::from_fn(take);
    all.map(|bytes| String::from_utf8(bytes).unwrap()).collect()
}

/// The address as a socket at that place has it.
fn as_seen(place: Place, address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if place.is_v6() => {
            SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
        }
        _ => address,
    }
}

fn port_of(address: Option<SocketAddr>) -> Option<u16> {
    address.map(|address| address.port())
}

/// Some sockets at one port, some of them with a peer, and who of them hears whom. Not more than
/// one spreads, so that it is not left to a hash.
fn run_random(world: &mut World, seed: u64) {
    let mut numbers = Numbers(seed);
    let callers = [clients(world), clients(world)];
    let mut port = 0;
    let mut sockets = Vec::new();
    let spreads = numbers.below(6);
    for number in 0..2 + numbers.below(4) {
        let place = PLACES[numbers.below(PLACES.len())];
        let reuse: &[i32] = if number == spreads { REUSE[3] } else { REUSE[1] };
        let fd = place.socket(world, reuse);
        let answer = bind(world, fd, place, port);
        world.note(&format!("{seed}: {number} {place:?} {reuse:?}"), &answer);
        if port == 0 {
            port = world.host(Server).getsockname(fd).unwrap().port();
        }
        sockets.push((fd, place));
    }
    let mut peers = vec![None; sockets.len()];
    for _ in 0..6 {
        let number = numbers.below(sockets.len());
        let (fd, place) = sockets[number];
        let peer = match numbers.below(4) {
            0 => None,
            which => Some(as_seen(place, callers[which % 2][numbers.below(2)].1)),
        };
        // Which of several with the same peer hears it differs from one Linux to the next, and one
        // that had a peer goes before others on the CPU that heard it then.
        let is_taken = |other: &SocketAddr| Some(other.port()) == port_of(peer);
        if peers[number].is_some() || peers.iter().flatten().any(is_taken) {
            continue;
        }
        peers[number] = peer;
        let answer = world.host(Server).connect(fd, peer);
        world.note(&format!("{number} has a peer: {}", peer.is_some()), &answer);
        for (which, caller) in callers.iter().enumerate() {
            for (family, (fd, _)) in caller.iter().enumerate() {
                let to = if family == 0 {
                    world.address(Server, port)
                } else {
                    world.address6(Server, port)
                };
                let text = format!("from {which} by {family}");
                // A sender gets the refusal once.
                let _ = world.host(Client).sendto(*fd, text.as_bytes(), 0, to);
            }
        }
        world.settle();
        for (number, (fd, _)) in sockets.iter().enumerate() {
            let heard = take_all(world, Server, *fd);
            world.note(&format!("{number} hears"), &heard);
        }
    }
    for (fd, _) in sockets {
        world.host(Server).close(fd).unwrap();
    }
    for (fd, _) in callers.into_iter().flatten() {
        world.host(Client).close(fd).unwrap();
    }
}

#[test]
fn best_matching_socket_receives() {
    compare(|world| (0..60).for_each(|seed| run_random(world, seed)));
}

/// What a socket has got, also of what is still on its way: a channel on the kernel may take one
/// datagram in a turn.
fn take_late(world: &mut World, fd: Fd) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let more = take_all(world, Server, fd);
        if more.is_empty() {
            return all;
        }
        all.extend(more);
        world.settle();
    }
}

#[test]
fn sockets_with_reuseport_share_what_comes_and_a_peer_stays_at_one() {
    compare(|world| {
        for place in [Place::OneIpv4, Place::AllIpv4, Place::OneIpv6, Place::Everywhere] {
            let (first, port) = bound(world, place, REUSE[2]);
            let mut sockets = vec![first];
            for _ in 0..2 {
                let fd = place.socket(world, REUSE[2]);
                bind(world, fd, place, port).unwrap();
                sockets.push(fd);
            }
            let v6 = usize::from(place == Place::OneIpv6);
            let callers: Vec<(Fd, SocketAddr)> = (0..40).map(|_| clients(world)[v6]).collect();
            let to = match v6 {
                0 => world.address(Server, port),
                _ => world.address6(Server, port),
            };
            let call_all = |world: &mut World| {
                for (number, (fd, _)) in callers.iter().enumerate() {
                    let text = number.to_string();
                    world.host(Client).sendto(*fd, text.as_bytes(), 0, to).unwrap();
                    if number % 10 == 0 {
                        world.settle();
                    }
                }
                world.settle();
            };
            let take = |world: &mut World| {
                let take = |fd: &Fd| take_late(world, *fd);
                sockets.iter().map(take).collect::<Vec<_>>()
            };
            call_all(world);
            let before = take(world);
            call_all(world);
            let after = take(world);
            let count: usize = before.iter().map(Vec::len).sum();
            world.note(&format!("{place:?}"), &(count, before == after));
            world.note("each has some", &before.iter().all(|texts| !texts.is_empty()));
            // That one receives from its own peer alone.
            let chosen = after[1].first().map_or(0, |text| text.parse::<usize>().unwrap());
            let connected =
                world.host(Server).connect(sockets[0], Some(as_seen(place, callers[chosen].1)));
            world.note("one has a peer", &connected);
            call_all(world);
            let apart = take(world);
            world.note("its peer", &(apart[0] == [chosen.to_string()]));
            let others: usize = apart[1..].iter().map(Vec::len).sum();
            world.note("the others", &others);
            world.host(Server).connect(sockets[0], None).unwrap();
            call_all(world);
            let again = take(world);
            let counts: Vec<usize> = again.iter().map(Vec::len).collect();
            // At all addresses it goes before the others now, which it is not one of any more.
            world.note("without a peer again", &(counts[0] == 40, counts.iter().sum::<usize>()));
            world.host(Server).close(sockets[1]).unwrap();
            call_all(world);
            let counts = [0, 2].map(|number| take_late(world, sockets[number]).len());
            world.note("two are left", &(counts[0] == 40, counts.iter().sum::<usize>()));
            for fd in [sockets[0], sockets[2]] {
                world.host(Server).close(fd).unwrap();
            }
            for (fd, _) in callers {
                world.host(Client).close(fd).unwrap();
            }
        }
    });
}

#[test]
fn a_socket_of_both_families_gets_peers_of_both() {
    compare(|world| {
        let (fd, port) = bound(world, Place::Everywhere, &[]);
        let [_, (six, name6)] = clients(world);
        let [(four, name4), _] = clients(world);
        let to = [world.address(Server, port), world.address6(Server, port)];
        let name4 = as_seen(Place::Everywhere, name4);
        for peer in [name4, name6, name4] {
            let connected = world.host(Server).connect(fd, Some(peer));
            world.note("has a peer", &connected);
            let got = world.host(Server).getpeername(fd).map(|it| it == peer);
            world.note("and says so", &got);
        }
        for (caller, to) in [(four, to[0]), (six, to[1])] {
            let _ = world.host(Client).sendto(caller, b"x", 0, to);
        }
        world.settle();
        let heard = take_all(world, Server, fd);
        world.note("hears", &heard);
        let (other, _) = bound(world, Place::Everywhere, &[]);
        for peer in [name6, name4] {
            let connected = world.host(Server).connect(other, Some(peer));
            world.note("the other way round", &connected);
        }
    });
}

#[test]
fn datagrams_before_connect_are_read() {
    compare(|world| {
        let (fd, port) = bound(world, Place::AllIpv4, &[]);
        let to = world.address(Server, port);
        let [(stranger, _), _] = clients(world);
        let [(peer, name), _] = clients(world);
        world.host(Client).sendto(stranger, b"before", 0, to).unwrap();
        world.settle();
        world.host(Server).connect(fd, Some(name)).unwrap();
        world.host(Client).sendto(stranger, b"after", 0, to).unwrap();
        world.host(Client).sendto(peer, b"the peer's", 0, to).unwrap();
        world.settle();
        let heard = take_all(world, Server, fd);
        world.note("heard", &heard);
        world.host(Server).connect(fd, None).unwrap();
        world.host(Client).sendto(stranger, b"again", 0, to).unwrap();
        world.settle();
        let heard = take_all(world, Server, fd);
        world.note("heard", &heard);
    });
}
