//! What the kernel tells of a network that the test changes under its eyes.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use megapipe_link::netlink::{Change, Fact, Netlink, RouteKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::wire::{enter_own_namespace, ip};

fn ip_of(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Waits until the kernel tells of something that `is_it`.
fn until(netlink: &mut Netlink, what: &str, is_it: impl Fn(&Change) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    while !seen.iter().any(&is_it) {
        assert!(Instant::now() < deadline, "{what}: {seen:?}");
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(netlink.as_fd(), PollFlags::IN)], Some(&second))
            .expect("poll");
        netlink.changes(&mut |change| seen.push(change)).expect("changes");
    }
}

#[test]
fn changes_are_told_and_lists_have_them() {
    if let Err(why) = enter_own_namespace() {
        println!("skipped: netlink::changes_are_told_and_lists_have_them: {why}");
        return;
    }
    let mut netlink = Netlink::open().expect("a socket");
    let run = |arguments: &str| ip(arguments).expect(arguments);
    run("link add mp-a type veth peer name mp-b");
    run("link set mp-a mtu 1400 address 02:00:00:00:00:0a up");
    run("link set mp-b up");
    until(&mut netlink, "up", |change| match change {
        Change::Is(Fact::Interface(it)) => {
            let is_named = it.name == "mp-a" && it.mac == Some([2, 0, 0, 0, 0, 10]);
            is_named && it.is_up && it.has_carrier && it.mtu == 1_400 && !it.is_loopback
        }
        _ => false,
    });
    run("addr add 10.9.0.1/24 dev mp-a");
    until(&mut netlink, "address", |change| match change {
        Change::Is(Fact::Address(it)) => {
            it.address == ip_of("10.9.0.1") && it.prefix_len == 24 && !it.is_tentative
        }
        _ => false,
    });
    run("route add 10.10.0.0/16 via 10.9.0.7 metric 33");
    run("neigh add 10.9.0.7 lladdr 02:00:00:00:00:07 dev mp-a nud permanent");
    until(&mut netlink, "neighbour", |change| match change {
        Change::Is(Fact::Neighbour(it)) => it.address == ip_of("10.9.0.7") && it.is_usable,
        _ => false,
    });

    let mut listed = Vec::new();
    netlink.list(&mut |change| listed.push(change)).expect("lists");
    let index = listed.iter().find_map(|change| match change {
        Change::Is(Fact::Interface(it)) if it.name == "mp-a" => Some(it.index),
        _ => None,
    });
    let route = listed.iter().find_map(|change| match change {
        Change::Is(Fact::Route(it)) if it.destination == ip_of("10.10.0.0") => Some(it),
        _ => None,
    });
    let route = route.expect("the route");
    assert_eq!((route.prefix_len, route.metric, route.table), (16, 33, 254));
    assert_eq!((route.gateway, route.kind), (Some(ip_of("10.9.0.7")), RouteKind::Unicast));
    assert_eq!((route.interface, index.is_some()), (index, true));
    let neighbour = listed.iter().any(|change| match change {
        Change::Is(Fact::Neighbour(it)) => it.mac == Some([2, 0, 0, 0, 0, 7]),
        _ => false,
    });
    assert!(neighbour, "{listed:?}");

    run("link del mp-a");
    until(&mut netlink, "gone", |change| match change {
        Change::Gone(Fact::Interface(it)) => Some(it.index) == index,
        _ => false,
    });
}
