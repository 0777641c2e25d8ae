//! `tap`: a TAP or TUN device, one link per queue.
//!
//! Read first: the kernel's `networking/tuntap`, then `virtio.rs`.
//!
//! The kernel is the other end: what we send, it receives on the interface; what it routes to the
//! interface, we receive. So we need addresses of our own, and a MAC address other than the
//! interface's. With offloads, frames of up to 64 KiB pass whole in both directions, without
//! checksums for packets that stay on this machine.
//!
//! Invariants
//! - The descriptor never blocks. One system call moves one frame.
//! - A frame that was filled is written, kept for the next burst, or counted as refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::Errno;

use crate::interface::{self, InterfaceQuery};
use crate::limits::{ETHERNET_HEADER_BYTES, OFFLOAD_FRAME_BYTES, TAP_QUEUES_MAX};
use crate::virtio::{self, HEADER_BYTES};
use crate::{Caps, FrameCounters, Link, LinkError, LinkMedium, MacAddress, RxMetadata, TxMetadata};

/// What the device is and how it is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapConfig {
    /// The interface's name. It is made if it does not exist, and then lives as long as the link.
    pub name: String,
    /// [`LinkMedium::Ethernet`] makes a TAP device, [`LinkMedium::Ip`] a TUN device.
    pub medium: LinkMedium,
    /// Queues to open; the kernel spreads flows over them.
    pub queues: usize,
    /// Checksums, TCP segmentation and merged frames, both ways.
    pub offloads: bool,
    /// Sets the interface's MTU; `None` leaves it.
    pub mtu: Option<usize>,
    /// Our own address on it; `None` takes the interface's with its last bit turned over.
    pub mac: Option<MacAddress>,
}

impl TapConfig {
    /// A TAP device (or a TUN device) with one queue and offloads.
    #[must_use]
    pub fn new(name: &str, medium: LinkMedium) -> Self {
        let name = name.to_owned();
        Self { name, medium, queues: 1, offloads: true, mtu: None, mac: None }
    }

    fn driver(&self) -> &'static str {
        match self.medium {
            LinkMedium::Ethernet => "tap",
            LinkMedium::Ip => "tun",
        }
    }
}

/// One queue of a TAP or TUN device.
#[derive(Debug)]
pub struct Tap {
    caps: Caps,
    counters: FrameCounters,
    device: File,
    rx: Box<[u8]>,
    tx: Box<[u8]>,
    /// Length of the frame in `tx` that the kernel had no room for; 0: none.
    waiting_bytes: usize,
}

/// Whether an interface of that name exists, in the network namespace of the calling thread.
pub(crate) fn exists(config: &TapConfig) -> bool {
    InterfaceQuery::new(&config.name).and_then(|interface| interface.index()).is_ok()
}

/// Opens the device's queues, sets its MTU and switches it on.
///
/// # Errors
/// [`LinkError::Unavailable`] where the kernel has no such devices or we may not make them,
/// [`LinkError::Setting`] for a setting that is out of range or does not fit the existing device.
pub fn open(config: &TapConfig) -> Result<Vec<Tap>, LinkError> {
    interface::check_name(&config.name)?;
    if !(1..=TAP_QUEUES_MAX).contains(&config.queues) {
        let why = format!("{} is not within 1-{TAP_QUEUES_MAX}", config.queues);
        return Err(LinkError::Setting { setting: "queues", why });
    }
    let mut notes = Vec::new();
    let devices = open_queues(config)?;
    let has_offloads = set_offloads(&devices, config.offloads, &mut notes)? && config.offloads;
    let interface = InterfaceQuery::new(&config.name)?;
    if let Some(mtu) = config.mtu {
        interface.set_mtu(mtu)?;
    }
    interface.set_up()?;
    let caps = caps(config, &interface, has_offloads, notes)?;
    let frame_bytes = caps.tx_frame_bytes.max(OFFLOAD_FRAME_BYTES);
    let queue = |device| Tap {
        caps: caps.clone(),
        counters: FrameCounters::default(),
        device,
        rx: vec![0; HEADER_BYTES + frame_bytes].into(),
        tx: vec![0; HEADER_BYTES + frame_bytes].into(),
        waiting_bytes: 0,
    };
    Ok(devices.into_iter().map(queue).collect())
}

fn caps(
    config: &TapConfig,
    interface: &InterfaceQuery,
    has_offloads: bool,
    notes: Vec<String>,
) -> Result<Caps, LinkError> {
    let mtu = interface.mtu()?;
    let (mac, header_bytes) = match config.medium {
        LinkMedium::Ethernet => {
            let (_, [a, b, c, d, e, last]) = interface.hardware()?;
            (config.mac.unwrap_or([a | 2, b, c, d, e, last ^ 1]), ETHERNET_HEADER_BYTES)
        }
        LinkMedium::Ip => ([0; 6], 0),
    };
    let plain = mtu + header_bytes;
    Ok(Caps {
        driver: config.driver(),
        medium: config.medium,
        mac,
        mtu,
        tx_frame_bytes: if has_offloads { OFFLOAD_FRAME_BYTES } else { plain },
        tx_checksum: has_offloads,
        tso: has_offloads,
        shares_host_address: false,
        rss: None,
        notes,
    })
}

fn open_queues(config: &TapConfig) -> Result<Vec<File>, LinkError> {
    let kind = match config.medium {
        LinkMedium::Ethernet => libc::IFF_TAP,
        LinkMedium::Ip => libc::IFF_TUN,
    };
    let base = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let multi = base | libc::IFF_MULTI_QUEUE;
    let first = match attach(config, if config.queues > 1 { multi } else { base }) {
        // It exists and has several queues: one of them is what was asked for.
        Err(error) if config.queues == 1 && is_invalid(&error) => attach(config, multi),
        other => other,
    };
    let mut devices = vec![first.map_err(|error| explain(config, error))?];
    while devices.len() < config.queues {
        devices.push(attach(config, multi).map_err(|error| explain(config, error))?);
    }
    Ok(devices)
}

/// Opens one queue of the device.
fn attach(config: &TapConfig, flags: libc::c_int) -> Result<File, LinkError> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(|source| LinkError::Io { what: "open /dev/net/tun", source })?;
    let mut request = interface::request(&config.name)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF takes a pointer to an `ifreq`, reads it and writes the name back.
    let made = unsafe { interface::ioctl(&device, libc::TUNSETIFF as _, &mut request) };
    made.map_err(|source| LinkError::Io { what: "attach to a TAP device", source })?;
    let mut header_bytes = HEADER_BYTES as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ takes a pointer to an `int` and reads it.
    let set = unsafe { interface::ioctl(&device, libc::TUNSETVNETHDRSZ as _, &mut header_bytes) };
    set.map_err(|source| LinkError::Io { what: "set the length of frame headers", source })?;
    Ok(device)
}

fn is_invalid(error: &LinkError) -> bool {
    matches!(error, LinkError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidInput)
}

/// Says in words what the kernel's number means here.
fn explain(config: &TapConfig, error: LinkError) -> LinkError {
    let LinkError::Io { source, .. } = &error else {
        return error;
    };
    let (name, driver) = (&config.name, config.driver());
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            let why = "the kernel has no /dev/net/tun (module `tun`)".to_owned();
            LinkError::Unavailable { driver, why }
        }
        Some(libc::EPERM | libc::EACCES) => {
            let why = format!("{name:?} needs CAP_NET_ADMIN, or an owner set by `ip tuntap`");
            LinkError::Unavailable { driver, why }
        }
        Some(libc::EBUSY) => {
            let why = format!("{name:?} is held by another program");
            LinkError::InUse { driver, why }
        }
        Some(libc::EINVAL) => {
            let why = format!("{name:?} exists and is no {driver} device of this kind");
            LinkError::Setting { setting: "interface", why }
        }
        Some(libc::E2BIG) => {
            let why = format!("{name:?} has no more queues");
            LinkError::Setting { setting: "queues", why }
        }
        _ => error,
    }
}

/// Enables or disables checksum and segmentation offload on all queues: a persistent device keeps
/// the setting of its last user. Returns `false` and a note if the kernel refuses.
fn set_offloads(
    devices: &[File],
    are_wanted: bool,
    notes: &mut Vec<String>,
) -> Result<bool, LinkError> {
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let wanted = if are_wanted { all } else { 0 };
    for device in devices {
        let fd = std::os::fd::AsRawFd::as_raw_fd(device);
        // SAFETY: TUNSETOFFLOAD takes its argument by value; the descriptor is open.
        let done = unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD as _, wanted) };
        if done < 0 {
            let source = io::Error::last_os_error();
            if source.raw_os_error() == Some(libc::EINVAL) {
                notes.push("the kernel refused checksum and segmentation offloads".to_owned());
                return Ok(false);
            }
            return Err(LinkError::Io { what: "ask for offloads", source });
        }
    }
    Ok(true)
}

/// What came of handing one frame over.
enum Written {
    Done,
    NoRoom,
    Refused,
}

impl Tap {
    fn gone(&self) -> LinkError {
        LinkError::Gone { driver: self.caps.driver }
    }

    /// Writes the header and the `len` bytes of frame behind it.
    fn write(&mut self, len: usize) -> Result<Written, LinkError> {
        self.counters.system_calls += 1;
        match rustix::io::write(&self.device, &self.tx[..HEADER_BYTES + len]) {
            Ok(_) => {
                self.counters.tx_frames += 1;
                self.counters.tx_bytes += len as u64;
                Ok(Written::Done)
            }
            Err(Errno::AGAIN) => Ok(Written::NoRoom),
            Err(Errno::BADFD) => Err(self.gone()),
            // The interface is down, memory is short, or the frame is no frame to the kernel.
            Err(_) => {
                self.counters.tx_dropped_refused += 1;
                Ok(Written::Refused)
            }
        }
    }

    /// Hands over what had no room. `false`: there is still none.
    fn write_waiting(&mut self) -> Result<bool, LinkError> {
        if self.waiting_bytes > 0 {
            if matches!(self.write(self.waiting_bytes)?, Written::NoRoom) {
                return Ok(false);
            }
            self.waiting_bytes = 0;
        }
        Ok(true)
    }
}

impl Link for Tap {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < max {
            self.counters.system_calls += 1;
            let bytes = match rustix::io::read(&self.device, &mut *self.rx) {
                Ok(bytes) => bytes,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::BADFD) => return Err(self.gone()),
                Err(source) => {
                    let what = "read from a TAP device";
                    return Err(LinkError::Io { what, source: source.into() });
                }
            };
            let parts = self.rx[..bytes].split_first_chunk::<HEADER_BYTES>();
            let known = parts.and_then(|(header, frame)| Some((virtio::decode(*header)?, frame)));
            let Some((received, frame)) = known.filter(|(_, frame)| !frame.is_empty()) else {
                self.counters.rx_dropped_malformed += 1;
                continue;
            };
            count += 1;
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.len() as u64;
            each(frame, received);
        }
        Ok(count)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        if max > 0 && !self.write_waiting()? {
            self.counters.tx_full += 1;
            return Ok(0);
        }
        while count < max {
            let room = &mut self.tx[HEADER_BYTES..][..self.caps.tx_frame_bytes];
            let Some(transmit) = fill(room) else { break };
            count += 1;
            let len = transmit.len;
            let frame = room.get(..len).filter(|frame| !frame.is_empty());
            let header = frame.and_then(|f| virtio::encode(self.caps.medium, f, transmit));
            let Some(header) = header else {
                self.counters.tx_dropped_refused += 1;
                continue;
            };
            self.tx[..HEADER_BYTES].copy_from_slice(&header);
            if matches!(self.write(len)?, Written::NoRoom) {
                self.waiting_bytes = len;
                self.counters.tx_full += 1;
                break;
            }
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        // The descriptor is readable while there is a frame: nothing to prepare. A frame that
        // waits for room is tried again at once: Linux gives TAP queues no bound on this side, so
        // this is memory running short, not a queue running full.
        self.write_waiting()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn slept(&mut self) {
        self.counters.system_calls += 1;
    }

    fn counters(&self) -> FrameCounters {
        self.counters
    }
}
