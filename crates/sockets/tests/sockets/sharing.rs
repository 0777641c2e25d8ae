//! Sockets that share an address: who may, by SO_REUSEADDR and SO_REUSEPORT, and who gets what.

use std::net::SocketAddr;

use crate::host::{Answer, Fd};
use crate::world::{Client, Server, World, compare};

/// What a socket says before it binds.
const REUSE: [&[i32]; 4] =
    [&[], &[libc::SO_REUSEADDR], &[libc::SO_REUSEPORT], &[libc::SO_REUSEADDR, libc::SO_REUSEPORT]];

fn socket(world: &mut World, kind: i32, reuse: &[i32]) -> Fd {
    let host = world.host(Server);
    let fd = host.socket(libc::AF_INET, kind | libc::SOCK_NONBLOCK, 0).unwrap();
    for option in reuse {
        host.setsockopt(fd, libc::SOL_SOCKET, *option, &1_i32.to_ne_bytes()).unwrap();
    }
    fd
}

/// A socket at a port that was free, and its address.
fn bound(world: &mut World, kind: i32, reuse: &[i32], is_any: bool) -> (Fd, SocketAddr) {
    let fd = socket(world, kind, reuse);
    let mut at = world.address(Server, 0);
    if is_any {
        at.set_ip([0, 0, 0, 0].into());
    }
    world.host(Server).bind(fd, at).unwrap();
    (fd, world.host(Server).getsockname(fd).unwrap())
}

#[test]
fn who_may_bind_and_listen_beside_whom() {
    compare(|world| {
        for one in REUSE {
            for other in REUSE {
                for (first_is_any, second_is_any) in [(false, false), (true, false), (false, true)]
                {
                    for listens in [false, true] {
                        let (first, at) = bound(world, libc::SOCK_STREAM, one, first_is_any);
                        if listens {
                            world.host(Server).listen(first, 4).unwrap();
                        }
                        let mut place = world.address(Server, at.port());
                        if second_is_any {
                            place.set_ip([0, 0, 0, 0].into());
                        }
                        let second = socket(world, libc::SOCK_STREAM, other);
                        let host = world.host(Server);
                        let answers: [Answer<()>; 3] = [
                            host.bind(second, place),
                            host.listen(first, 4),
                            host.listen(second, 4),
                        ];
                        host.close(first).unwrap();
                        // The socket in the way is gone.
                        let again = host.listen(second, 4);
                        host.close(second).unwrap();
                        let (are_any, both) = ([first_is_any, second_is_any], [one, other]);
                        world.note(&format!("{both:?} {are_any:?} {listens}"), &(answers, again));
                    }
                }
            }
        }
    });
}

/// Connects so many clients, one after the other: a burst may be more than a backlog takes at once.
fn connect(world: &mut World, to: SocketAddr, count: usize) -> Vec<Fd> {
    (0..count)
        .map(|_| {
            let fd = world.tcp(Client);
            assert_eq!(world.host(Client).connect(fd, Some(to)), Err(libc::EINPROGRESS));
            world.settle();
            fd
        })
        .collect()
}

/// Accepts until no connection is left.
fn accept_all(world: &mut World, listener: Fd) -> Vec<Fd> {
    world.settle();
    std::iter::from_fn(|| world.host(Server).accept4(listener, libc::SOCK_NONBLOCK).ok()).collect()
}

#[test]
fn listeners_at_one_port_share_its_connections() {
    compare(|world| {
        let reuse: &[i32] = &[libc::SO_REUSEPORT];
        let (first, at) = bound(world, libc::SOCK_STREAM, reuse, false);
        let second = socket(world, libc::SOCK_STREAM, reuse);
        world.host(Server).bind(second, at).unwrap();
        for fd in [first, second] {
            world.host(Server).listen(fd, 64).unwrap();
        }
        let sets = [first, second].map(|fd| world.watch(Server, fd, libc::EPOLLIN));
        connect(world, at, 40);
        for set in sets {
            world.note_events("a connection came", Server, set);
        }
        let taken = [first, second].map(|fd| accept_all(world, fd).len());
        world.note("together", &taken.iter().sum::<usize>());
        world.note("both have some", &taken.iter().all(|count| *count > 0));
        // Those that wait for a socket which is closed are reset, and the others are not.
        let clients = connect(world, at, 40);
        world.host(Server).close(first).unwrap();
        world.settle();
        let left = accept_all(world, second).len();
        let ends: Vec<Answer<Vec<u8>>> =
            clients.iter().map(|fd| world.host(Client).recv(*fd, 1, 0)).collect();
        let reset = ends.iter().filter(|end| **end == Err(libc::ECONNRESET)).count();
        world.note("some are reset", &(reset > 0 && left > 0));
        world.note("together", &(reset + left));
        connect(world, at, 10);
        let all = accept_all(world, second).len();
        world.note("all for one", &all);
        world.host(Server).close(second).unwrap();
        let late = connect(world, at, 1)[0];
        let refused = world.host(Client).recv(late, 1, 0);
        world.note("no listener is left", &refused);
    });
}
