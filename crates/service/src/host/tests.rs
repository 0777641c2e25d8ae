//! What is made of the kernel's words, without a kernel.

use super::*;
use megapipe_link::netlink::{Interface, LinkAddress};

const MINE: u32 = 7;

fn picture() -> Picture {
    let mut picture = Picture { name: "mp0".to_owned(), ..Picture::default() };
    for (index, name) in [(3, "other"), (MINE, "mp0")] {
        picture.apply(Change::Is(Fact::Interface(Interface {
            index,
            name: name.to_owned(),
            mac: None,
            mtu: 1500,
            is_up: true,
            has_carrier: true,
            is_loopback: false,
        })));
    }
    picture
}

fn address(interface: u32, last: u8, is_tentative: bool) -> Change {
    let address = IpAddr::from([10, 0, 0, last]);
    Change::Is(Fact::Address(LinkAddress { interface, address, prefix_len: 24, is_tentative }))
}

fn route(gateway: u8, metric: u32) -> KernelRoute {
    KernelRoute {
        destination: IpAddr::from([0, 0, 0, 0]),
        prefix_len: 0,
        gateway: Some(IpAddr::from([10, 0, 0, gateway])),
        interface: Some(MINE),
        source: None,
        metric,
        table: MAIN_TABLE,
        kind: RouteKind::Unicast,
    }
}

fn gateways(picture: &Picture) -> Vec<Option<IpAddr>> {
    picture.stack_routes().iter().map(|route| route.via).collect()
}

#[test]
fn addresses_are_those_of_the_interface_that_may_be_used() {
    let mut picture = picture();
    picture.apply(address(3, 1, false));
    picture.apply(address(MINE, 2, true));
    picture.apply(address(MINE, 3, false));
    picture.apply(address(MINE, 3, false));
    assert_eq!(picture.addresses, [(IpAddr::from([10, 0, 0, 3]), 24)]);
}

#[test]
fn the_route_with_the_lowest_metric_is_taken_until_it_goes() {
    let mut picture = picture();
    picture.apply(Change::Is(Fact::Route(route(1, 100))));
    picture.apply(Change::Is(Fact::Route(route(2, 50))));
    picture.apply(Change::Is(Fact::Route(KernelRoute { interface: Some(3), ..route(9, 1) })));
    picture.apply(Change::Is(Fact::Route(KernelRoute { table: 255, ..route(9, 1) })));
    picture.apply(Change::Is(Fact::Route(KernelRoute {
        kind: RouteKind::Unreachable,
        ..route(9, 1)
    })));
    assert_eq!(gateways(&picture), [Some(IpAddr::from([10, 0, 0, 2]))]);
    assert!(std::mem::take(&mut picture.routes_changed));
    picture.apply(Change::Gone(Fact::Route(route(2, 50))));
    assert!(picture.routes_changed);
    assert_eq!(gateways(&picture), [Some(IpAddr::from([10, 0, 0, 1]))]);
}

#[test]
fn routes_are_bounded() {
    let mut picture = picture();
    for metric in 0..2 * HOST_ROUTES_MAX as u32 {
        picture.apply(Change::Is(Fact::Route(route(1, metric))));
    }
    assert_eq!(picture.routes.len(), HOST_ROUTES_MAX);
}

#[test]
fn a_neighbour_is_told_with_its_place_only_while_it_is_usable() {
    let mut picture = picture();
    let it = |interface, is_usable| Neighbour {
        interface,
        address: IpAddr::from([10, 0, 0, 9]),
        mac: Some([2; 6]),
        is_usable,
    };
    picture.apply(Change::Is(Fact::Neighbour(it(3, true))));
    picture.apply(Change::Is(Fact::Neighbour(it(MINE, true))));
    picture.apply(Change::Is(Fact::Neighbour(it(MINE, false))));
    picture.apply(Change::Gone(Fact::Neighbour(it(MINE, true))));
    let places: Vec<_> = picture.moved.iter().map(|(_, mac)| *mac).collect();
    assert_eq!(places, [Some([2; 6]), None, None]);
}

#[test]
fn what_was_lost_is_asked_for_again() {
    let mut picture = picture();
    picture.apply(Change::Lost);
    assert!(picture.is_stale);
}
