//! Two hosts joined by veth: this namespace, which a link shares with its kernel, and another.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use megapipe_link::Ownership;

use crate::wire::{Elsewhere, enter_own_namespace, ip, until_active};

pub(crate) const HERE: [&str; 2] = ["10.98.0.1", "fd98::1"];
pub(crate) const OURS: u16 = 8_080;
pub(crate) const OURS_UDP: u16 = 8_053;
pub(crate) const KERNELS: u16 = 2_222;
/// How long silence is listened to.
pub(crate) const QUICK: Duration = Duration::from_millis(300);
/// How long an answer is waited for: a SYN that got lost is sent again thrice meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// This namespace and another, joined by veth, with addresses of both families.
fn two_hosts() -> Result<Elsewhere, String> {
    enter_own_namespace()?;
    let elsewhere = Elsewhere::new()?;
    ip(&format!("link add mp-near type veth peer name mp-far netns {}", elsewhere.thread()))?;
    fn configure(interface: &str, last: u8) -> Result<(), String> {
        let knob = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        std::fs::write(knob, "0").map_err(|error| error.to_string())?;
        ip(&format!("addr add 10.98.0.{last}/24 dev {interface}"))?;
        ip(&format!("addr add fd98::{last}/64 dev {interface} nodad"))?;
        ip(&format!("link set {interface} up"))?;
        ip("link set lo up")
    }
    configure("mp-near", 1)?;
    elsewhere.run(|| configure("mp-far", 2))?;
    until_active("mp-near")?;
    elsewhere.run(|| until_active("mp-far"))?;
    Ok(elsewhere)
}

pub(crate) fn sharing(ports: &[u16]) -> Ownership {
    let mut ownership = Ownership::new();
    for address in HERE {
        ownership.add_address(address.parse().expect("an address")).expect("room");
    }
    for port in ports {
        ownership.tcp_ports.insert(*port..=*port).expect("room");
    }
    ownership.udp_ports.insert(OURS_UDP..=OURS_UDP).expect("room");
    ownership
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port)
}

/// What a kernel elsewhere hears when it connects, where an answer must come: a busy machine may
/// take its time for it.
pub(crate) fn knock(elsewhere: &Elsewhere, to: SocketAddr) -> Result<(), ErrorKind> {
    knock_for(PATIENCE, elsewhere, to)
}

/// No host answers connection attempts of the other kernel.
pub(crate) fn is_silent(elsewhere: &Elsewhere, to: SocketAddr) -> bool {
    match knock_for(QUICK, elsewhere, to) {
        Err(ErrorKind::TimedOut) => true,
        answer => {
            println!("{to} answered: {answer:?}");
            false
        }
    }
}

fn knock_for(time: Duration, elsewhere: &Elsewhere, to: SocketAddr) -> Result<(), ErrorKind> {
    let connect = move || TcpStream::connect_timeout(&to, time).map(drop);
    elsewhere.run(connect).map_err(|error| error.kind())
}

/// Runs `test` with two hosts, or says why not.
pub(crate) fn with_two_hosts(name: &str, test: impl FnOnce(&Elsewhere)) {
    match two_hosts() {
        Ok(elsewhere) => test(&elsewhere),
        Err(why) => println!("skipped: {name}: {why}"),
    }
}
