//! A network namespace with a TUN device in it: the wire between the script and the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::sys;
use crate::knobs::Knob;
use crate::settings::ScriptSettings;
use crate::system::{Injected, KnobResult, SystemError};

/// Scripts in the wild name it in their commands.
const DEVICE: &str = "tun0";
/// Before each packet: `struct virtio_net_hdr`.
const VNET_HEADER_BYTES: usize = 10;
/// VIRTIO_NET_HDR_GSO_TCPV4 and its like for IPv6.
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_TSO_ECN: the kernel hands over whole trains of
/// segments, as scripts for Linux expect.
const OFFLOADS: u32 = CHECKSUM_OFFLOAD | 0x02 | 0x04 | 0x08;
const CHECKSUM_OFFLOAD: u32 = 0x01;
/// The largest train with its headers.
const TRAIN_BYTES_MAX: usize = 1 << 17;
/// The namespace of the calling thread. It exists until the thread and its children have ended.
pub(super) struct Namespace {
    device: File,
    buffer: Vec<u8>,
    inject: Vec<u8>,
}

impl Namespace {
    /// Moves the calling thread into a new namespace with the device and its routes.
    pub(super) fn new(settings: &ScriptSettings) -> Result<Self, SystemError> {
        let unavailable = |what: &str, error: std::io::Error| {
            SystemError::Unavailable(format!("{what}: {error} (root is needed)"))
        };
        sys::unshare_network().map_err(|error| unavailable("no network namespace", error))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let device =
            options.open("/dev/net/tun").map_err(|error| unavailable("no TUN device", error))?;
        sys::attach_tun(&device, DEVICE, OFFLOADS)
            .map_err(|error| unavailable("no TUN device", error))?;
        configure(settings)?;
        Ok(Self { device, buffer: vec![0; TRAIN_BYTES_MAX], inject: Vec::new() })
    }

    /// Writes a sysctl, only those of the network, which belong to the namespace; or switches the
    /// device's segmentation.
    pub(super) fn set_knob(&self, knob: &Knob) -> KnobResult {
        if knob.name == "device.tso" {
            let offloads = if knob.value == "off" { CHECKSUM_OFFLOAD } else { OFFLOADS };
            let is_set = sys::set_offloads(&self.device, offloads).is_ok();
            return if is_set { KnobResult::Done } else { KnobResult::Unknown };
        }
        // Without segmentation in the device there is none before it either.
        if matches!((knob.name.as_str(), knob.value.as_str()), ("device.gso" | "device.gro", "off"))
        {
            return KnobResult::Done;
        }
        let parts: Vec<&str> = knob.name.split('.').collect();
        let is_name = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        };
        if parts.first() != Some(&"net") || !parts.iter().all(is_name) {
            return KnobResult::Unknown;
        }
        let path = format!("/proc/sys/{}", parts.join("/"));
        match fs::write(path, &knob.value) {
            Ok(()) => KnobResult::Done,
            Err(_) => KnobResult::Unknown,
        }
    }

    /// Hands a packet to the kernel.
    pub(super) fn inject(&mut self, packet: &Injected<'_>) -> Result<(), SystemError> {
        self.inject.clear();
        self.inject.extend_from_slice(&vnet_header(packet));
        self.inject.extend_from_slice(packet.bytes);
        (&self.device).write_all(&self.inject).map_err(|error| SystemError::Failed {
            what: "the TUN device does not take a packet",
            why: error.to_string(),
        })
    }

    /// Takes out all that the kernel has sent. The capture has its copy.
    pub(super) fn empty_device(&mut self) {
        loop {
            match (&self.device).read(&mut self.buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Sleeps until the kernel has sent something, at most so long.
    pub(super) fn wait_for_device(&self, us: i64) {
        let timeout = Timespec { tv_sec: us / 1_000_000, tv_nsec: us % 1_000_000 * 1000 };
        // A signal ends the sleep early; the caller checks its clock.
        let _ = poll(&mut [PollFd::new(&self.device, PollFlags::IN)], Some(&timeout));
    }
}

/// `struct virtio_net_hdr` in the machine's byte order: how a train is to be taken apart.
fn vnet_header(packet: &Injected<'_>) -> [u8; VNET_HEADER_BYTES] {
    let mut header = [0; VNET_HEADER_BYTES];
    if packet.segment_bytes > 0 {
        let is_ipv6 = packet.bytes.first().is_some_and(|first| first >> 4 == 6);
        header[1] = if is_ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
        header[2..4].copy_from_slice(&packet.header_bytes.to_ne_bytes());
        header[4..6].copy_from_slice(&packet.segment_bytes.to_ne_bytes());
    }
    header
}

/// Whether the kernel has a congestion control of this name.
pub(super) fn has_congestion_control(name: &str) -> bool {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    known.is_ok_and(|known| known.split_whitespace().any(|known| known == name))
}

/// Addresses and routes, as `ip` sets them.
fn configure(settings: &ScriptSettings) -> Result<(), SystemError> {
    let local = format!("{}/{}", settings.local_ip, settings.local_prefix_len);
    let remote = format!("{}/{}", settings.remote_ip, settings.remote_prefix_len);
    let mtu = settings.mtu.to_string();
    let mut address = vec!["address", "add", &local, "dev", DEVICE];
    let family = if settings.local_ip.is_ipv6() { "-6" } else { "-4" };
    if settings.local_ip.is_ipv6() {
        // Duplicate address detection would hold the first packets back.
        address.push("nodad");
    }
    ip(&["link", "set", "dev", "lo", "up"])?;
    ip(&["link", "set", "dev", DEVICE, "mtu", &mtu, "txqueuelen", "10000", "up"])?;
    ip(&address)?;
    let remote = network(&remote);
    ip(&[family, "route", "add", &remote, "dev", DEVICE])
}

/// A prefix with the bits of its host cleared, which `ip route` insists on.
fn network(prefix: &str) -> String {
    let Some((address, len)) = prefix.split_once('/') else { return prefix.to_owned() };
    let (Ok(address), Ok(len)) = (address.parse(), len.parse::<u32>()) else {
        return prefix.to_owned();
    };
    match address {
        std::net::IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - len.min(32)).unwrap_or(0);
            format!("{}/{len}", std::net::Ipv4Addr::from(u32::from(address) & mask))
        }
        std::net::IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - len.min(128)).unwrap_or(0);
            format!("{}/{len}", std::net::Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), SystemError> {
    let mut command = Command::new("ip");
    command.args(arguments).stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| SystemError::Unavailable(format!("no `ip` command: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let why = format!("ip {}: {why}", arguments.join(" "));
    Err(SystemError::Failed { what: "the namespace cannot be set up", why })
}
