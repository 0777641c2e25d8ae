//! What the drivers that share an interface with the kernel, `packet` and `xdp`, are tested on.

use std::time::Instant;

use megapipe_link::{Link, Ownership};

use crate::hosts::QUICK;
use crate::wire::{ip, until_active};

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
