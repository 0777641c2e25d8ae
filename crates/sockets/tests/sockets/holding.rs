//! Connections that outlive their listener or their socket, and who may bind at their local
//! address.

use crate::host::{Answer, Fd};
use crate::sharing_datagrams::{PLACES, Place, REUSE, bind, say};
use crate::world::{Client, Server, World, compare};

const TCP: i32 = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;

/// How a connection of the server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The server closes first, and has to wait for old segments.
    Here,
    /// The peer closes first.
    There,
    /// The server closes, and the peer does not.
    Half,
    ResetHere,
    ResetThere,
}
const ENDS: [End; 5] = [End::Here, End::There, End::Half, End::ResetHere, End::ResetThere];

fn close_by_reset(world: &mut World, is_server: bool, fd: Fd) {
    let side = if is_server { Server } else { Client };
    let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
    let host = world.host(side);
    host.setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    host.close(fd).unwrap();
}

fn end(world: &mut World, end: End, (server, client): (Fd, Fd)) {
    match end {
        End::Here | End::Half => world.host(Server).close(server).unwrap(),
        End::There => world.host(Client).close(client).unwrap(),
        End::ResetHere => close_by_reset(world, true, server),
        End::ResetThere => close_by_reset(world, false, client),
    }
    world.settle();
    match end {
        End::Here => world.host(Client).close(client).unwrap(),
        End::There => world.host(Server).close(server).unwrap(),
        // The socket stands for nothing any more, and its address is free although it is open.
        End::ResetThere | End::ResetHere | End::Half => {}
    }
    world.settle();
}

/// A socket that binds, and whether it may.
fn note_bind(world: &mut World, what: &str, place: Place, reuse: &[i32], port: u16) {
    let fd = place.socket_of(world, TCP, reuse);
    let answer: Answer<()> = bind(world, fd, place, port);
    world.host(Server).close(fd).unwrap();
    world.note(&format!("{what}, {place:?} {reuse:?}"), &answer);
}

/// A connection to a listener that is gone, and its port.
fn connection(world: &mut World, place: Place, by_v6: bool, reuse: &[i32]) -> (Fd, Fd, u16) {
    let listener = place.socket_of(world, TCP, reuse);
    bind(world, listener, place, 0).unwrap();
    world.host(Server).listen(listener, 4).unwrap();
    let port = world.host(Server).getsockname(listener).unwrap().port();
    let (domain, to) = match by_v6 {
        true => (libc::AF_INET6, world.address6(Server, port)),
        false => (libc::AF_INET, world.address(Server, port)),
    };
    let client = world.host(Client).socket(domain, TCP, 0).unwrap();
    assert_eq!(world.host(Client).connect(client, Some(to)), Err(libc::EINPROGRESS));
    let server = world.accept(listener);
    world.host(Server).close(listener).unwrap();
    (server, client, port)
}

#[test]
fn a_connection_without_its_listener_has_its_address_in_every_state() {
    compare(|world| {
        for how in ENDS {
            for reuse in REUSE {
                let (server, client, port) = connection(world, Place::AllIpv4, false, reuse);
                for binds in REUSE {
                    for place in [Place::OneIpv4, Place::AllIpv4] {
                        note_bind(world, &format!("{reuse:?} open"), place, binds, port);
                    }
                }
                end(world, how, (server, client));
                for binds in REUSE {
                    for place in [Place::OneIpv4, Place::AllIpv4] {
                        note_bind(world, &format!("{reuse:?} {how:?}"), place, binds, port);
                    }
                }
            }
        }
    });
}

#[test]
fn address_families_of_connections_and_bind() {
    compare(|world| {
        for (place, by_v6) in [
            (Place::AllIpv4, false),
            (Place::OneIpv6, true),
            (Place::Mapped, false),
            (Place::AllIpv6, true),
            (Place::Everywhere, true),
            (Place::Everywhere, false),
        ] {
            for waits in [false, true] {
                let (server, client, port) = connection(world, place, by_v6, &[]);
                if waits {
                    end(world, End::Here, (server, client));
                }
                for binds in PLACES {
                    note_bind(world, &format!("{place:?} {by_v6} {waits}"), binds, &[], port);
                }
            }
        }
    });
}

#[test]
fn reuse_option_of_a_connection_counts() {
    compare(|world| {
        for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
            for value in [0, 1] {
                let before: &[i32] = if value == 0 { &[option] } else { &[] };
                let (server, client, port) = connection(world, Place::OneIpv4, false, before);
                say(world, server, &[option], value);
                note_bind(world, &format!("{value}"), Place::OneIpv4, &[option], port);
                end(world, End::Here, (server, client));
                note_bind(world, &format!("{value} closed"), Place::OneIpv4, &[option], port);
            }
        }
    });
}

#[test]
fn connected_socket_has_a_local_address() {
    compare(|world| {
        for reuse in REUSE {
            for is_bound in [false, true] {
                let (listener, to) = world.listener(Client, 8);
                let fd = Place::OneIpv4.socket_of(world, TCP, reuse);
                if is_bound {
                    bind(world, fd, Place::OneIpv4, 0).unwrap();
                }
                assert_eq!(world.host(Server).connect(fd, Some(to)), Err(libc::EINPROGRESS));
                world.settle();
                let name = world.host(Server).getsockname(fd).unwrap();
                for binds in REUSE {
                    note_bind(world, &format!("{reuse:?}"), Place::AllIpv4, binds, name.port());
                }
                world.host(Server).close(fd).unwrap();
                world.settle();
                let peer = world.accept_at(Client, listener);
                world.host(Client).close(peer).unwrap();
                world.settle();
                for binds in REUSE {
                    let what = format!("{reuse:?} {is_bound} closed");
                    note_bind(world, &what, Place::AllIpv4, binds, name.port());
                }
                world.host(Client).close(listener).unwrap();
            }
        }
    });
}

#[test]
fn a_server_starts_again_with_reuseaddr_and_not_without() {
    compare(|world| {
        for reuse in [&[][..], &[libc::SO_REUSEADDR]] {
            let (server, client, port) = connection(world, Place::AllIpv4, false, reuse);
            end(world, End::Here, (server, client));
            let again = Place::AllIpv4.socket_of(world, TCP, reuse);
            let answer = bind(world, again, Place::AllIpv4, port);
            world.note("bind", &answer);
            let listens = world.host(Server).listen(again, 4);
            world.note("listen", &listens);
            if answer.is_ok() {
                let client = world.tcp(Client);
                let to = world.address(Server, port);
                assert_eq!(world.host(Client).connect(client, Some(to)), Err(libc::EINPROGRESS));
                world.accept(again);
            }
            world.host(Server).close(again).unwrap();
        }
    });
}
