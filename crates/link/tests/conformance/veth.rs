//! What the drivers that share an interface with the kernel, `packet` and `xdp`, are tested on.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Instant;

use megapipe_link::{Link, Ownership};

use crate::hosts::{KERNELS, OURS, QUICK, is_silent, knock, sharing};
use crate::wire::{Elsewhere, ip, until_active};

/// A veth pair in this namespace, which is the test's own: `mp-near` for the link, `mp-far` for
/// what is at its other end.
pub(crate) fn veth() -> Result<(), String> {
    // What the last check left.
    let _ = ip("link del mp-near");
    ip("link add mp-near type veth peer name mp-far")?;
    ip("link set mp-near up")?;
    ip("link set mp-far up")?;
    until_active("mp-near")?;
    until_active("mp-far")
}

/// All of the address that the suite's frames go to.
pub(crate) fn whole_address() -> Ownership {
    let mut ownership = Ownership::new();
    ownership.add_address([10, 99, 0, 1].into()).expect("room");
    ownership.whole_address = true;
    ownership
}

/// Destination ports of the TCP and UDP frames that wait.
pub(crate) fn ports(link: &mut impl Link) -> Vec<u16> {
    let mut ports = Vec::new();
    let deadline = Instant::now() + QUICK;
    while ports.is_empty() && Instant::now() < deadline {
        link.wait(Some(QUICK)).expect("wait");
        let take = &mut |frame: &[u8], _: _| {
            let start = if frame[12] == 8 { 34 } else { 54 };
            ports.push(u16::from_be_bytes([frame[start + 2], frame[start + 3]]));
        };
        link.rx_burst(64, take).expect("rx_burst");
    }
    ports
}

/// A link-local address, which an interface on its own has as soon as its kernel is sure of it.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x98, 1);

/// A link that shares the interface's addresses shares that one, too.
pub(crate) fn share_link_local(elsewhere: &Elsewhere, link: &mut dyn Link) {
    ip(&format!("addr add {LINK_LOCAL}/64 dev mp-near nodad")).expect("an address");
    let mut ownership = sharing(&[OURS]);
    link.set_ownership(&ownership).expect("free ports");
    ownership.add_address(LINK_LOCAL.into()).expect("room");
    link.set_ownership(&ownership).expect("the same ports");
    let index = elsewhere.run(|| {
        // SAFETY: the name ends with a zero and outlives the call.
        unsafe { libc::if_nametoindex(c"mp-far".as_ptr()) }
    });
    let at = |port| SocketAddrV6::new(LINK_LOCAL, port, 0, index).into();
    assert!(is_silent(elsewhere, at(OURS)));
    assert!(knock(elsewhere, at(KERNELS)) == Err(ErrorKind::ConnectionRefused), "not ours");
}

/// What the other kernel hears when it sends a datagram.
pub(crate) fn answer_to_datagram(
    elsewhere: &Elsewhere,
    to: SocketAddr,
) -> Result<usize, ErrorKind> {
    elsewhere.run(move || {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).expect("a port");
        socket.set_read_timeout(Some(QUICK)).expect("a timeout");
        socket.connect(to).expect("an address");
        socket.send(b"hello").expect("sent");
        loop {
            match socket.recv(&mut [0; 9]).map_err(|error| error.kind()) {
                // A wait with a time-out ends with EINTR where the kernel stops the thread for a
                // moment, signal(7).
                Err(ErrorKind::Interrupted) => {}
                answer => return answer,
            }
        }
    })
}
