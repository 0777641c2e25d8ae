//! A rolling restart under load on a wire with delay: listeners join and the oldest leaves, again
//! and again, so that each heir of half-open handshakes leaves itself before they complete.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{Address, DriverChoice};

use crate::clients;
use crate::wire::{BEYOND, DelayedWire, HERE};
use crate::{Server, works};

/// Listeners that serve at the same time.
const MEMBERS: usize = 3;
/// How long a listener stays.
const STAY: Duration = Duration::from_millis(20);
/// Connections of one test, unless `MEGAPIPE_CONNECTIONS` names another number.
const CONNECTIONS: usize = 1000;

/// Servers that take turns, and those that left and still have connections.
struct Rolling {
    driver: DriverChoice,
    address: Address,
    members: VecDeque<Server>,
    left: Vec<(Instant, Server)>,
    leaves: usize,
    accepted: u64,
}

impl Rolling {
    fn new(driver: DriverChoice, address: &str) -> Self {
        let mut server = Server::new(driver);
        let bound = server.listen(&address.parse().expect("an address"));
        let members = VecDeque::from([server]);
        let left = Vec::new();
        Self { driver, address: bound.into(), members, left, leaves: 0, accepted: 0 }
    }

    fn join(&mut self) {
        let mut server = Server::new(self.driver);
        server.listen(&self.address);
        self.members.push_back(server);
    }

    fn leave(&mut self) {
        let mut oldest = self.members.pop_front().expect("there are members");
        oldest.leave();
        self.leaves += 1;
        self.left.push((Instant::now(), oldest));
    }

    fn serve(&mut self) {
        let left = self.left.iter_mut().map(|(_, server)| server);
        for server in self.members.iter_mut().chain(left) {
            server.serve_for(Duration::from_micros(50));
        }
        let Self { left, accepted, .. } = self;
        left.retain(|(since, server)| {
            let stays = server.open > 0 || since.elapsed() < 2 * STAY;
            *accepted += if stays { 0 } else { server.accepted };
            stays
        });
    }
}

fn rolling_restart(driver: DriverChoice, round_trip_ms: u64, address: &str) {
    let name = format!("rolling restart on {driver:?}, {round_trip_ms} ms");
    if !works(driver) {
        return;
    }
    let _wire = match DelayedWire::new(Duration::from_millis(round_trip_ms)) {
        Ok(wire) => wire,
        Err(why) => return println!("skipped: {name}: {why}"),
    };
    let total = std::env::var("MEGAPIPE_CONNECTIONS").ok().and_then(|count| count.parse().ok());
    let total = total.unwrap_or(CONNECTIONS);
    let mut servers = Rolling::new(driver, address);
    let port = servers.address.as_inet().expect("TCP").port();
    let beyond = SocketAddr::new(BEYOND.into(), port);
    let clients = thread::spawn(move || clients::run(beyond, total, 200));
    let mut changed = Instant::now();
    while !clients.is_finished() {
        servers.serve();
        if changed.elapsed() > STAY {
            changed = Instant::now();
            servers.join();
            if servers.members.len() > MEMBERS {
                servers.leave();
            }
        }
    }
    let outcome = clients.join().expect("the clients end");
    println!("{name}: {outcome:?}, {} listeners left", servers.leaves);
    assert!(outcome.lost.is_empty(), "{name}: {outcome:?}, {} left", servers.leaves);
    assert_eq!(outcome.served, total);
}

fn here() -> String {
    format!("{HERE}:0")
}

#[test]
fn uring_rolling_restart_loses_nothing_at_0_ms() {
    rolling_restart(DriverChoice::Uring, 0, &here());
}

#[test]
fn uring_rolling_restart_loses_nothing_at_6_ms() {
    rolling_restart(DriverChoice::Uring, 6, &here());
}

#[test]
fn uring_rolling_restart_loses_nothing_at_200_ms() {
    rolling_restart(DriverChoice::Uring, 200, &here());
}

#[test]
fn epoll_rolling_restart_loses_nothing_at_0_ms() {
    rolling_restart(DriverChoice::Epoll, 0, &here());
}

#[test]
fn epoll_rolling_restart_loses_nothing_at_6_ms() {
    rolling_restart(DriverChoice::Epoll, 6, &here());
}

#[test]
fn epoll_rolling_restart_loses_nothing_at_200_ms() {
    rolling_restart(DriverChoice::Epoll, 200, &here());
}

/// The group's address is not the one that its connections have.
#[test]
fn uring_rolling_restart_on_any_address_loses_nothing() {
    rolling_restart(DriverChoice::Uring, 6, "0.0.0.0:0");
}

/// As above.
#[test]
fn epoll_rolling_restart_on_any_address_loses_nothing() {
    rolling_restart(DriverChoice::Epoll, 6, "0.0.0.0:0");
}
