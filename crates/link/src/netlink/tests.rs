//! Against the kernel: what every machine has.

use std::net::IpAddr;

use super::*;

#[test]
fn loopback_is_listed() {
    let mut netlink = Netlink::open().expect("a socket");
    let mut facts = Vec::new();
    netlink.list(&mut |change| facts.push(change)).expect("an answer");
    let is_loopback = |change: &&Change| match change {
        Change::Is(Fact::Interface(interface)) => interface.is_loopback && interface.name == "lo",
        _ => false,
    };
    let Some(Change::Is(Fact::Interface(lo))) = facts.iter().find(is_loopback) else {
        panic!("no loopback in {facts:?}");
    };
    assert!(lo.mtu >= 1_500 && lo.index > 0);
    let home: IpAddr = [127, 0, 0, 1].into();
    let has_home = |change: &Change| match change {
        Change::Is(Fact::Address(address)) => {
            address.address == home && address.interface == lo.index && address.prefix_len == 8
        }
        _ => false,
    };
    assert!(!lo.is_up || facts.iter().any(has_home), "{facts:?}");
}

#[test]
fn a_second_list_is_as_good_as_the_first() {
    let mut netlink = Netlink::open().expect("a socket");
    let mut count = || {
        let mut interfaces = 0;
        let mut tell = |change| {
            interfaces += usize::from(matches!(change, Change::Is(Fact::Interface(_))));
        };
        netlink.list(&mut tell).expect("an answer");
        interfaces
    };
    assert!(count() > 0 && count() > 0);
}
