//! Routes: the longest prefix, and what is refused.

use super::*;
use crate::frame::Medium;

fn route(prefix: &str, prefix_bits: u8, via: Option<&str>) -> Route {
    Route { prefix: prefix.parse().unwrap(), prefix_bits, via: via.map(|via| via.parse().unwrap()) }
}

fn via(routes: &[Route], own: &[(&str, u8)], dst: &str) -> Option<String> {
    let own: Vec<_> = own.iter().map(|(ip, bits)| (ip.parse().unwrap(), *bits)).collect();
    let addresses = Addresses::new(&own, Medium::Ip, 1500).unwrap();
    let routes = Routes::new(routes).unwrap();
    routes.via(dst.parse().unwrap(), &addresses).map(|via| via.to_string())
}

#[test]
fn the_longest_prefix_wins() {
    let routes = [
        route("0.0.0.0", 0, Some("10.0.0.254")),
        route("192.168.0.0", 16, Some("10.0.0.253")),
        route("192.168.7.0", 24, None),
        route("10.0.0.128", 25, Some("10.0.0.252")),
    ];
    let own = [("10.0.0.1", 24)];
    let via = |dst| via(&routes, &own, dst);
    assert_eq!(via("8.8.8.8").as_deref(), Some("10.0.0.254"));
    assert_eq!(via("192.168.1.1").as_deref(), Some("10.0.0.253"));
    assert_eq!(via("192.168.7.1").as_deref(), Some("192.168.7.1"));
    assert_eq!(via("10.0.0.9").as_deref(), Some("10.0.0.9"));
    assert_eq!(via("10.0.0.200").as_deref(), Some("10.0.0.252"));
    assert_eq!(via("2001:db8::1"), None);
}

#[test]
fn without_a_route_only_the_link_is_reached() {
    let own = [("10.0.0.1", 24), ("fe80::1", 64)];
    assert_eq!(via(&[], &own, "10.0.0.9").as_deref(), Some("10.0.0.9"));
    assert_eq!(via(&[], &own, "10.0.1.9"), None);
    assert_eq!(via(&[], &own, "fe80::9").as_deref(), Some("fe80::9"));
    assert_eq!(via(&[], &own[..1], "fe80::9"), None);
}

#[test]
fn a_wrong_route_is_refused() {
    for wrong in [
        route("10.0.0.0", 33, None),
        route("10.0.0.0", 8, Some("fe80::1")),
        route("10.0.0.0", 8, Some("224.0.0.1")),
    ] {
        assert_eq!(Routes::new(&[wrong]).unwrap_err().setting, "routes");
    }
    let many = vec![route("10.0.0.0", 8, None); ROUTES_MAX + 1];
    assert_eq!(Routes::new(&many).unwrap_err().why, "too many");
}
