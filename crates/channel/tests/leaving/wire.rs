//! A wire with delay, for connections between two addresses of one network namespace.
//!
//! The calling thread moves into a namespace of its own, with a TUN device. The kernel there has
//! [`HERE`]; packets that it sends to [`BEYOND`] come back after the delay with source and
//! destination exchanged, which leaves all checksums valid. A client that connects to `BEYOND`
//! therefore reaches a server at `HERE`, and either side sees half of the round trip.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Where servers listen.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Where clients connect to.
pub(crate) const BEYOND: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

const DEVICE: &str = "mp-delay";
const PACKET_BYTES_MAX: usize = 1 << 16;

/// The wire; its device goes with the namespace.
pub(crate) struct DelayedWire {
    is_over: Arc<AtomicBool>,
    relay: Option<JoinHandle<()>>,
}

impl DelayedWire {
    /// A wire with a round-trip time.
    ///
    /// # Errors
    /// What is missing on this machine.
    pub(crate) fn new(round_trip: Duration) -> Result<Self, String> {
        // SAFETY: `unshare` takes no pointer; the namespace is that of this thread and of the
        // threads that it starts.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(format!("no network namespace: {}", io::Error::last_os_error()));
        }
        let device = open_tun().map_err(|error| format!("no TUN device: {error}"))?;
        let address = format!("{HERE}/24");
        ip(&["link", "set", "lo", "up"])?;
        ip(&["addr", "add", &address, "dev", DEVICE])?;
        ip(&["link", "set", DEVICE, "txqueuelen", "10000", "up"])?;
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let relay = thread::spawn(move || relay(device, round_trip / 2, &until));
        Ok(Self { is_over, relay: Some(relay) })
    }
}

impl Drop for DelayedWire {
    fn drop(&mut self) {
        // Relaxed: nothing else is shared.
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.relay.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(())) | None) || thread::panicking(), "the relay failed");
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("ip is not installed: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments:?}: {text}")) }
}

fn open_tun() -> io::Result<File> {
    let device = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is a whole `ifreq`, which the call reads and writes.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if made < 0 { Err(io::Error::last_os_error()) } else { Ok(device) }
}

fn relay(mut device: File, delay: Duration, is_over: &AtomicBool) {
    let mut on_the_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut packet = vec![0; PACKET_BYTES_MAX];
    while !is_over.load(Ordering::Relaxed) {
        let now = Instant::now();
        while on_the_way.front().is_some_and(|(due, _)| *due <= now) {
            let (_, packet) = on_the_way.pop_front().expect("looked at above");
            // A packet that the kernel does not take is lost, as on any wire.
            let _ = device.write(&packet);
        }
        let next = on_the_way.front().map(|(due, _)| due.saturating_duration_since(now));
        let wait = next.unwrap_or(Duration::from_millis(20)).min(Duration::from_millis(20));
        let wait = Timespec::try_from(wait).expect("a short time");
        let mut fds = [PollFd::new(&device, PollFlags::IN)];
        if poll(&mut fds, Some(&wait)).is_ok_and(|count| count > 0) {
            let len = device.read(&mut packet).expect("a packet");
            if let Some(packet) = returned(&packet[..len]) {
                on_the_way.push_back((Instant::now() + delay, packet));
            }
        }
    }
}

/// The packet with source and destination exchanged; `None` if it is not IPv4.
fn returned(packet: &[u8]) -> Option<Vec<u8>> {
    if packet.len() < 20 || packet[0] >> 4 != 4 {
        return None;
    }
    let mut packet = packet.to_vec();
    let (before, destination) = packet[..20].split_at_mut(16);
    before[12..].swap_with_slice(destination);
    Some(packet)
}
