//! `packet` over veth: the suite, and what sharing an address with the kernel promises.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use megapipe_link::conformance::{self, Opened, TestedLink};
use megapipe_link::packet::{self, PacketConfig};
use megapipe_link::{Link, LinkError};

use crate::counting::allocations;
use crate::hosts::{
    HERE, KERNELS, OURS, OURS_UDP, PATIENCE, QUICK, at, is_silent, knock, sharing, with_two_hosts,
};
use crate::veth::{answer_to_datagram, ports, share_link_local, veth, whole_address};
use crate::wire::{Wire, enter_own_namespace, ip, until_active};

struct Veth(PacketConfig);

impl TestedLink for Veth {
    fn open(&self) -> Result<Opened, String> {
        veth()?;
        let mut link = packet::open(&self.0).map_err(|error| error.to_string())?;
        link.set_ownership(&whole_address()).map_err(|error| error.to_string())?;
        let wire = Wire::open("mp-far", "link del mp-near")?;
        Ok((Box::new(link), Box::new(wire)))
    }

    fn fills(&self) -> bool {
        false
    }

    fn allocations(&self) -> Option<u64> {
        Some(allocations())
    }
}

fn check(test: &str, config: PacketConfig) {
    let done = enter_own_namespace().and_then(|()| conformance::all(&Veth(config)));
    if let Err(why) = done {
        println!("skipped: {test}: {why}");
    }
}

#[test]
fn packet_with_offloads() {
    check("packet::packet_with_offloads", PacketConfig::new("mp-near"));
}

#[test]
fn packet_plain() {
    let config = PacketConfig::new("mp-near");
    let config = PacketConfig { offloads: false, bypasses_qdisc: true, ..config };
    check("packet::packet_plain", config);
}

#[test]
fn a_link_local_address_is_shared_too() {
    with_two_hosts("packet::a_link_local_address_is_shared_too", |elsewhere| {
        let mut link = packet::open(&PacketConfig::new("mp-near")).expect("a socket");
        share_link_local(elsewhere, &mut link);
    });
}

#[test]
fn the_kernel_is_silent_on_our_ports_and_serves_its_own() {
    with_two_hosts("packet::the_kernel_is_silent_on_our_ports_and_serves_its_own", |elsewhere| {
        for address in HERE {
            let refused = Err(ErrorKind::ConnectionRefused);
            assert_eq!(knock(elsewhere, at(address, OURS)), refused, "before");
            let mut link = packet::open(&PacketConfig::new("mp-near")).expect("a socket");
            link.set_ownership(&sharing(&[OURS])).expect("free ports");

            assert!(is_silent(elsewhere, at(address, OURS)));
            let seen = ports(&mut link);
            assert!(!seen.is_empty() && seen.iter().all(|port| *port == OURS), "{seen:?}");

            let answer = answer_to_datagram(elsewhere, at(address, OURS_UDP));
            assert_eq!(answer, Err(ErrorKind::WouldBlock), "no ICMP error");
            assert!(ports(&mut link).contains(&OURS_UDP));

            let listener = TcpListener::bind(at(address, KERNELS)).expect("the kernel's port");
            assert_eq!(knock(elsewhere, at(address, KERNELS)), Ok(()));
            assert_eq!(ports(&mut link), [], "what is the kernel's we do not see");
            assert_eq!(knock(elsewhere, at(address, KERNELS + 1)), refused);
            drop(listener);

            drop(link);
            assert_eq!(knock(elsewhere, at(address, OURS)), refused, "afterwards");
        }
    });
}

#[test]
fn ownership_changes_while_the_link_is_open_or_not_at_all() {
    with_two_hosts("packet::ownership_changes_while_the_link_is_open_or_not_at_all", |elsewhere| {
        let mut link = packet::open(&PacketConfig::new("mp-near")).expect("a socket");
        link.set_ownership(&sharing(&[OURS])).expect("free ports");
        let listener = TcpListener::bind(at(HERE[0], KERNELS)).expect("the kernel's port");
        let refused = link.set_ownership(&sharing(&[OURS + 1, KERNELS]));
        let Err(LinkError::Setting { setting: "ownership", why }) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("2222 is in use by another program"), "{why}");
        assert!(is_silent(elsewhere, at(HERE[0], OURS)), "as before");
        assert!(knock(elsewhere, at(HERE[0], KERNELS)).is_ok());
        let closed = Err(ErrorKind::ConnectionRefused);
        assert_eq!(knock(elsewhere, at(HERE[0], OURS + 1)), closed, "nothing of it was done");
        drop(listener);

        ports(&mut link);
        link.set_ownership(&sharing(&[OURS + 1])).expect("free ports");
        assert_eq!(knock(elsewhere, at(HERE[0], OURS)), closed, "given back");
        assert!(is_silent(elsewhere, at(HERE[0], OURS + 1)));
        assert!(ports(&mut link).iter().all(|port| *port == OURS + 1));
    });
}

#[test]
fn packet_reports_deletion_after_it_was_down() {
    let name = "packet::packet_reports_deletion_after_it_was_down";
    for sleeps in [true, false] {
        with_two_hosts(name, |_| {
            let mut link = packet::open(&PacketConfig::new("mp-near")).expect("a socket");
            ip("link set mp-near down").expect("it goes down");
            // The socket's one report, which does not tell down from deleted.
            assert!(link.wait(Some(PATIENCE)).expect("only down"));
            assert_eq!(link.rx_burst(64, &mut |_, _| ()).expect("only down"), 0);
            let deleting = std::thread::spawn(move || {
                // Some time after the link began to sleep.
                std::thread::sleep(if sleeps { QUICK } else { Duration::ZERO });
                ip("link del mp-near").expect("it goes");
            });
            let deadline = Instant::now() + PATIENCE;
            let gone = loop {
                assert!(Instant::now() < deadline, "nothing is reported");
                let woken = if sleeps { link.wait(Some(PATIENCE)) } else { Ok(true) };
                let looked = woken.and_then(|_| link.rx_burst(64, &mut |_, _| ()));
                if let Err(error) = looked {
                    break error;
                }
            };
            assert!(matches!(gone, LinkError::Gone { driver: "packet" }), "{gone:?}");
            deleting.join().expect("no panic");
        });
    }
}

#[test]
fn packet_goes_on_after_its_interface_was_down() {
    let name = "packet::packet_goes_on_after_its_interface_was_down";
    with_two_hosts(name, |elsewhere| {
        let mut link = packet::open(&PacketConfig::new("mp-near")).expect("a socket");
        link.set_ownership(&sharing(&[OURS])).expect("free ports");
        ip("link set mp-near down").expect("it goes down");
        assert!(link.wait(Some(PATIENCE)).expect("only down"));
        assert_eq!(link.rx_burst(64, &mut |_, _| ()).expect("only down"), 0);
        ip("link set mp-near up").expect("it comes up");
        until_active("mp-near").expect("it comes up");
        assert!(is_silent(elsewhere, at(HERE[0], OURS)));
        assert!(ports(&mut link).contains(&OURS));
    });
}
