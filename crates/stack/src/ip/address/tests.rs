//! Local addresses: prefixes, broadcast, source address selection.

use super::*;
use core::net::Ipv4Addr;

const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x2a];

fn addresses(given: &[(&str, u8)]) -> Addresses {
    let given: Vec<_> = given.iter().map(|(ip, bits)| (ip.parse().unwrap(), *bits)).collect();
    Addresses::new(&given, Medium::Ethernet(MAC), 1500).unwrap()
}

fn source(addresses: &Addresses, dst: &str, via: &str) -> String {
    addresses.source_for(dst.parse().unwrap(), via.parse().unwrap()).unwrap().to_string()
}

#[test]
fn a_link_local_address_is_made_where_ipv6_is_spoken() {
    let ours = addresses(&[("2001:db8::1", 64)]);
    assert!(ours.contains("fe80::ff:fe00:2a".parse().unwrap()));
    let ours = addresses(&[("10.0.0.1", 24)]);
    assert_eq!(ours.iter().count(), 1);
}

#[test]
fn broadcast_addresses_are_those_of_our_prefixes() {
    let ours = addresses(&[("10.0.0.1", 24), ("10.1.0.0", 31)]);
    for yes in ["255.255.255.255", "10.0.0.255", "10.0.0.0"] {
        assert!(ours.is_broadcast(yes.parse().unwrap()), "{yes}");
    }
    for no in ["10.0.0.1", "10.0.1.255", "10.1.0.1", "10.1.0.0", "2001:db8::1"] {
        assert!(!ours.is_broadcast(no.parse().unwrap()), "{no}");
    }
}

#[test]
fn the_source_is_the_nearest_address() {
    let ours =
        addresses(&[("10.0.0.1", 24), ("10.0.1.1", 24), ("2001:db8:1::1", 64), ("fd00::1", 64)]);
    assert_eq!(source(&ours, "10.0.1.9", "10.0.1.9"), "10.0.1.1");
    assert_eq!(source(&ours, "8.8.8.8", "10.0.1.9"), "10.0.1.1");
    assert_eq!(source(&ours, "8.8.8.8", "172.16.0.1"), "10.0.0.1");
    assert_eq!(source(&ours, "2001:db8:1::9", "2001:db8:1::9"), "2001:db8:1::1");
    assert_eq!(source(&ours, "fd00:1::9", "fe80::1"), "fd00::1");
    assert_eq!(source(&ours, "fe80::9", "fe80::9"), "fe80::ff:fe00:2a");
    assert_eq!(addresses(&[("10.0.0.1", 8)]).source_for("::9".parse().unwrap(), MAPPED), None);
}

const MAPPED: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 1, 1));

#[test]
fn what_is_not_one_host_is_not_unicast() {
    for no in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "240.0.0.1", "::", "::1", "ff02::1"] {
        assert!(!is_unicast(no.parse().unwrap()), "{no}");
    }
    assert!(!is_unicast(MAPPED));
    for yes in ["10.0.0.1", "223.255.255.1", "fe80::1", "2001:db8::1"] {
        assert!(is_unicast(yes.parse().unwrap()), "{yes}");
    }
}

#[test]
fn groups_have_addresses_on_the_link() {
    let group = solicited_node("2001:db8::abcd:ef12".parse().unwrap());
    assert_eq!(group.to_string(), "ff02::1:ffcd:ef12");
    assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0xcd, 0xef, 0x12]);
}

#[test]
fn a_wrong_address_is_refused_by_its_setting() {
    let refused = |ip: &str, bits, mtu| {
        Addresses::new(&[(ip.parse().unwrap(), bits)], Medium::Ip, mtu).unwrap_err().setting
    };
    assert_eq!(refused("10.0.0.1", 33, 1500), "addresses");
    assert_eq!(refused("224.0.0.1", 24, 1500), "addresses");
    assert_eq!(refused("2001:db8::1", 64, 1279), "addresses");
    let twice = [(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 24); 2];
    assert!(Addresses::new(&twice, Medium::Ip, 1500).is_err());
    let many = vec![twice[0]; ADDRESSES_MAX + 1];
    assert_eq!(Addresses::new(&many, Medium::Ip, 1500).unwrap_err().why, "too many");
}
