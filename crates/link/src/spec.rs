//! Parser of link descriptions: `--link tap:mp0,queues=2`.
//!
//! ```text
//! pair                                                two ends in this process
//! tap:NAME[,queues=N,mtu=BYTES,mac=MAC,offload=on|off]
//! tun:NAME[,queues=N,mtu=BYTES,offload=on|off]
//! packet:INTERFACE[,qdisc=bypass|keep,offload=on|off]
//! xdp:INTERFACE[,queue=N|N..N,mode=native|generic,zero-copy=on|off,xskmap=PATH]
//! memif:PATH[,role=client|server,id=N,queues=N,ring=SLOTS,buffer=BYTES,mtu=BYTES,mac=MAC,
//!            secret=TEXT,wait=SECONDS]
//! ```
//!
//! Each of them also takes `loss=PERCENT`, `duplication=PERCENT`, `reordering=PERCENT`,
//! `corruption=PERCENT` and `seed=N`: faults in both directions, for tests ([`crate::Fault`]).
//!
//! Pure: text in, a description out; nothing is opened here. `open.rs` opens it.
//!
//! Invariants
//! - What is printed parses to what was printed.
//! - A setting is given at most once, and an unknown one is an error: nothing is passed over.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::limits::{MEMIF_RING_SIZE_LOG2_MAX, MEMIF_WAIT_S, TAP_QUEUES_MAX, XDP_QUEUES_MAX};
use crate::packet::PacketConfig;
use crate::tap::{self, TapConfig};
use crate::{LinkMedium, MacAddress};

/// A link, described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkSpec {
    /// Two ends in memory.
    Pair,
    /// A TAP or TUN device.
    Tap(TapConfig),
    /// A packet socket on an interface that the kernel goes on using.
    Packet(PacketConfig),
    /// AF_XDP on an interface that the kernel goes on using.
    Xdp(XdpSpec),
    /// Shared memory with another process.
    Memif(MemifSpec),
    /// One of the others, with faults.
    Faulty(Box<Self>, FaultSpec),
}

/// What goes wrong in each direction, as written. Chances are in parts of a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultSpec {
    /// A frame is lost.
    pub loss_ppm: u32,
    /// A frame comes twice.
    pub duplication_ppm: u32,
    /// A frame is held back, so that others overtake it
    /// ([`FAULT_REORDERING_DELAY_US`](crate::limits::FAULT_REORDERING_DELAY_US)).
    pub reordering_ppm: u32,
    /// One bit of a frame is turned over.
    pub corruption_ppm: u32,
    /// What the chance follows from; each further queue takes the next number.
    pub seed: u64,
}

/// AF_XDP, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpSpec {
    /// The interface.
    pub interface: String,
    /// The first and the last of its queues to use; `None`: all.
    pub queues: Option<(u32, u32)>,
    /// Where the program runs; `None`: in the driver if it can.
    pub mode: Option<XdpMode>,
    /// Frames go without a copy: `Some(true)` insists, `Some(false)` forbids, `None` tries.
    pub zero_copy: Option<bool>,
    /// Pinned XSKMAP of another XDP program; `None`: our own program.
    pub xskmap: Option<PathBuf>,
}

/// Where an XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel makes a packet of the frame.
    Native,
    /// After that, with any driver.
    Generic,
}

/// A memif, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemifSpec {
    /// Where the server listens.
    pub socket: PathBuf,
    /// We are the server; the client owns the memory.
    pub is_server: bool,
    /// Which interface on that socket.
    pub id: u32,
    /// Queues, each a link.
    pub queues: u16,
    /// Slots of a ring, a power of two.
    pub ring_slots: usize,
    /// Bytes of one buffer.
    pub buffer_bytes: u32,
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// Our address; `None`: made from role and `id`.
    pub mac: Option<MacAddress>,
    /// What both ends have to know; empty: nothing.
    pub secret: String,
    /// Seconds to wait for the other end when the link is opened. 0: it starts without, as a
    /// network without carrier.
    pub wait_s: u32,
}

/// What is wrong with a description, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The word before the colon.
    #[error("{0:?} is no link: pair, tap, tun, packet, xdp or memif")]
    UnknownDriver(String),
    /// Nothing after the colon, or nothing that can be one.
    #[error("{driver} needs {what} after a colon, as in {example:?}; {found:?} is none")]
    Place {
        /// The driver.
        driver: &'static str,
        /// What is missing.
        what: &'static str,
        /// How it could look.
        example: &'static str,
        /// What was there.
        found: String,
    },
    /// A setting that this driver does not have.
    #[error("{driver} has no setting {setting:?}: {known}")]
    UnknownSetting {
        /// The driver.
        driver: &'static str,
        /// What was written.
        setting: String,
        /// What it has.
        known: &'static str,
    },
    /// A setting's value.
    #[error("{setting}={value:?}: {why}")]
    Value {
        /// The setting.
        setting: String,
        /// What was written.
        value: String,
        /// What it should be.
        why: &'static str,
    },
    /// A setting that was given before.
    #[error("{0} is given twice")]
    Twice(String),
}

impl LinkSpec {
    /// The device that opening the link would make, because it does not exist in the network
    /// namespace of the calling thread.
    #[must_use]
    pub fn missing_device(&self) -> Option<&str> {
        match self {
            Self::Tap(config) if !tap::exists(config) => Some(&config.name),
            Self::Faulty(beneath, _) => beneath.missing_device(),
            _ => None,
        }
    }
}

impl FromStr for LinkSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (text, faults) = faults(text)?;
        let (driver, rest) = text.split_once(':').unwrap_or((&text, ""));
        let spec = match driver {
            "pair" => {
                Settings::parse("pair", ["", rest].join(","), "it takes none")?.end()?;
                Ok(Self::Pair)
            }
            "tap" => tap("tap", LinkMedium::Ethernet, rest).map(Self::Tap),
            "tun" => tap("tun", LinkMedium::Ip, rest).map(Self::Tap),
            "packet" => packet(rest).map(Self::Packet),
            "xdp" => xdp(rest).map(Self::Xdp),
            "memif" => memif(rest).map(Self::Memif),
            other => Err(SpecError::UnknownDriver(other.to_owned())),
        }?;
        Ok(match faults {
            Some(faults) => Self::Faulty(Box::new(spec), faults),
            None => spec,
        })
    }
}

/// Takes the settings of faults out of a description: what is left of it, and they, if any.
fn faults(text: &str) -> Result<(String, Option<FaultSpec>), SpecError> {
    let names = ["loss", "duplication", "reordering", "corruption", "seed"];
    let is_fault = |part: &&str| names.iter().any(|name| part.split('=').next() == Some(name));
    // A pair has no place: its settings follow the colon.
    let bare =
        if text.starts_with("pair:") { text.replacen(':', ":,", 1) } else { text.to_owned() };
    let (found, left): (Vec<&str>, Vec<&str>) = bare.split(',').partition(is_fault);
    if found.is_empty() {
        return Ok((text.to_owned(), None));
    }
    let mut settings = Settings::parse("a link", ["", &found.join(",")].join(","), "")?;
    let spec = FaultSpec {
        loss_ppm: settings.chance("loss")?,
        duplication_ppm: settings.chance("duplication")?,
        reordering_ppm: settings.chance("reordering")?,
        corruption_ppm: settings.chance("corruption")?,
        seed: settings.number("seed", 0..=u64::MAX, "a number up to 2^64 - 1")?.unwrap_or(0),
    };
    Ok((left.join(","), Some(spec)))
}

fn tap(driver: &'static str, medium: LinkMedium, rest: &str) -> Result<TapConfig, SpecError> {
    let known = match medium {
        LinkMedium::Ethernet => "queues, mtu, mac, offload",
        LinkMedium::Ip => "queues, mtu, offload",
    };
    let mut settings = Settings::parse(driver, rest.to_owned(), known)?;
    let name = settings.interface(if driver == "tap" { "tap:mp0" } else { "tun:mp0" })?;
    let mut config = TapConfig::new(&name, medium);
    let queues = "a number from 1 to 64";
    config.queues = settings.number("queues", 1..=TAP_QUEUES_MAX, queues)?.unwrap_or(1);
    config.mtu = settings.number("mtu", 68..=65_535, MTU)?;
    config.offloads = settings.switch("offload")?.unwrap_or(true);
    if medium == LinkMedium::Ethernet {
        config.mac = settings.mac()?;
    }
    settings.end()?;
    Ok(config)
}

fn packet(rest: &str) -> Result<PacketConfig, SpecError> {
    let mut settings = Settings::parse("packet", rest.to_owned(), "qdisc, offload")?;
    let mut config = PacketConfig::new(&settings.interface("packet:eth0")?);
    let qdisc = settings.word("qdisc", &[("bypass", true), ("keep", false)], "bypass or keep")?;
    config.bypasses_qdisc = qdisc.unwrap_or(false);
    config.offloads = settings.switch("offload")?.unwrap_or(true);
    settings.end()?;
    Ok(config)
}

fn xdp(rest: &str) -> Result<XdpSpec, SpecError> {
    let known = "queue, mode, zero-copy, xskmap";
    let mut settings = Settings::parse("xdp", rest.to_owned(), known)?;
    let interface = settings.interface("xdp:eth0")?;
    let modes = [("native", XdpMode::Native), ("generic", XdpMode::Generic)];
    let spec = XdpSpec {
        interface,
        queues: settings.queue_range()?,
        mode: settings.word("mode", &modes, "native or generic")?,
        zero_copy: settings.switch("zero-copy")?,
        xskmap: settings.take("xskmap").map(PathBuf::from),
    };
    settings.end()?;
    Ok(spec)
}

fn memif(rest: &str) -> Result<MemifSpec, SpecError> {
    let known = "role, id, queues, ring, buffer, mtu, mac, secret, wait";
    let mut settings = Settings::parse("memif", rest.to_owned(), known)?;
    let socket =
        settings.place("a socket's path", "memif:/run/mp.sock", |path| !path.is_empty())?;
    let roles = [("client", false), ("server", true)];
    let why = "a power of two from 2 to 16384";
    let slots_max = 1_usize << MEMIF_RING_SIZE_LOG2_MAX;
    let ring_slots = settings.number("ring", 2..=slots_max, why)?.unwrap_or(1_024);
    if !ring_slots.is_power_of_two() {
        let (setting, value) = ("ring".to_owned(), ring_slots.to_string());
        return Err(SpecError::Value { setting, value, why });
    }
    let (buffer, wait) = ("bytes from 64 to 65536", "seconds from 0 to 86400");
    let spec = MemifSpec {
        socket: socket.into(),
        is_server: settings.word("role", &roles, "client or server")?.unwrap_or(false),
        id: settings.number("id", 0..=u32::MAX, "a number up to 4294967295")?.unwrap_or(0),
        queues: settings.number("queues", 1..=64, "a number from 1 to 64")?.unwrap_or(1),
        ring_slots,
        buffer_bytes: settings.number("buffer", 64..=65_536, buffer)?.unwrap_or(2_048),
        mtu: settings.number("mtu", 68..=65_535, MTU)?.unwrap_or(1_500),
        mac: settings.mac()?,
        secret: settings.take("secret").unwrap_or_default(),
        wait_s: settings.number("wait", 0..=86_400, wait)?.unwrap_or(MEMIF_WAIT_S),
    };
    settings.end()?;
    Ok(spec)
}

const PPM_PER_PERCENT: f64 = 10_000.0;
const MTU: &str = "bytes from 68 to 65535";

/// `PLACE,NAME=VALUE,…`, taken apart setting by setting.
struct Settings {
    driver: &'static str,
    known: &'static str,
    place: String,
    left: Vec<(String, String)>,
}

impl Settings {
    fn parse(driver: &'static str, rest: String, known: &'static str) -> Result<Self, SpecError> {
        let mut parts = rest.split(',');
        let place = parts.next().unwrap_or_default().to_owned();
        let mut left: Vec<(String, String)> = Vec::new();
        for part in parts.filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if left.iter().any(|(other, _)| other == name) {
                return Err(SpecError::Twice(name.to_owned()));
            }
            left.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self { driver, known, place, left })
    }

    fn place(
        &self,
        what: &'static str,
        example: &'static str,
        is_good: impl FnOnce(&str) -> bool,
    ) -> Result<String, SpecError> {
        if is_good(&self.place) {
            return Ok(self.place.clone());
        }
        Err(SpecError::Place { driver: self.driver, what, example, found: self.place.clone() })
    }

    fn interface(&self, example: &'static str) -> Result<String, SpecError> {
        let is_good = |name: &str| crate::interface::check_name(name).is_ok();
        self.place("an interface's name", example, is_good)
    }

    fn take(&mut self, setting: &str) -> Option<String> {
        let at = self.left.iter().position(|(name, _)| name == setting)?;
        Some(self.left.swap_remove(at).1)
    }

    fn parsed<T>(
        &mut self,
        setting: &str,
        why: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.take(setting) else {
            return Ok(None);
        };
        match parse(&value) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(SpecError::Value { setting: setting.to_owned(), value, why }),
        }
    }

    fn number<T: FromStr + PartialOrd>(
        &mut self,
        setting: &str,
        range: std::ops::RangeInclusive<T>,
        why: &'static str,
    ) -> Result<Option<T>, SpecError> {
        let parse = |value: &str| value.parse().ok().filter(|number| range.contains(number));
        self.parsed(setting, why, parse)
    }

    fn word<T: Copy>(
        &mut self,
        setting: &str,
        words: &[(&str, T)],
        why: &'static str,
    ) -> Result<Option<T>, SpecError> {
        let find = |value: &str| words.iter().find(|(word, _)| *word == value);
        self.parsed(setting, why, |value| find(value).map(|(_, meaning)| *meaning))
    }

    fn switch(&mut self, setting: &str) -> Result<Option<bool>, SpecError> {
        self.word(setting, &[("on", true), ("off", false)], "on or off")
    }

    /// Percent of all frames, in parts of a million.
    fn chance(&mut self, setting: &str) -> Result<u32, SpecError> {
        let ppm = self.parsed(setting, "percent from 0 to 100, as in 0.5%", |value| {
            let percent: f64 = value.strip_suffix('%')?.parse().ok()?;
            // At most 10^6, so it fits.
            (0.0..=100.0).contains(&percent).then(|| (percent * PPM_PER_PERCENT).round() as u32)
        })?;
        Ok(ppm.unwrap_or(0))
    }

    fn mac(&mut self) -> Result<Option<MacAddress>, SpecError> {
        self.parsed("mac", "six bytes as in 02:00:00:00:00:01, not a group's", |value| {
            let mut parts = value.split(':');
            let mut mac = [0; 6];
            for byte in &mut mac {
                let part = parts.next().filter(|part| matches!(part.len(), 1 | 2))?;
                *byte = u8::from_str_radix(part, 16).ok()?;
            }
            (parts.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
        })
    }

    fn queue_range(&mut self) -> Result<Option<(u32, u32)>, SpecError> {
        self.parsed("queue", "a queue, or the first and the last as in 0..3", |value| {
            let (first, last) = value.split_once("..").unwrap_or((value, value));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            (first <= last && last < XDP_QUEUES_MAX).then_some((first, last))
        })
    }

    /// Nothing may be left.
    fn end(self) -> Result<(), SpecError> {
        let Some((setting, _)) = self.left.into_iter().next() else {
            return Ok(());
        };
        Err(SpecError::UnknownSetting { driver: self.driver, setting, known: self.known })
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair => write!(f, "pair"),
            Self::Tap(config) => write_tap(f, config),
            Self::Packet(config) => {
                write!(f, "packet:{}", config.interface)?;
                write_unless(f, !config.bypasses_qdisc, ",qdisc=bypass")?;
                write_unless(f, config.offloads, ",offload=off")
            }
            Self::Xdp(spec) => write_xdp(f, spec),
            Self::Memif(spec) => write_memif(f, spec),
            Self::Faulty(spec, faults) => write_faulty(f, spec, faults),
        }
    }
}

fn write_unless(f: &mut fmt::Formatter<'_>, is_default: bool, text: &str) -> fmt::Result {
    if is_default { Ok(()) } else { f.write_str(text) }
}

fn write_faulty(f: &mut fmt::Formatter<'_>, spec: &LinkSpec, faults: &FaultSpec) -> fmt::Result {
    write!(f, "{spec}{}", if *spec == LinkSpec::Pair { ":" } else { "," })?;
    for (name, ppm) in [
        ("loss", faults.loss_ppm),
        ("duplication", faults.duplication_ppm),
        ("reordering", faults.reordering_ppm),
        ("corruption", faults.corruption_ppm),
    ] {
        let percent = f64::from(ppm) / PPM_PER_PERCENT;
        write_unless(f, ppm == 0, &format!("{name}={percent}%,"))?;
    }
    // Always there: without any fault the description would be that of the link inside.
    write!(f, "seed={}", faults.seed)
}

fn write_mac(f: &mut fmt::Formatter<'_>, mac: Option<MacAddress>) -> fmt::Result {
    let Some([a, b, c, d, e, last]) = mac else {
        return Ok(());
    };
    write!(f, ",mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{last:02x}")
}

fn write_tap(f: &mut fmt::Formatter<'_>, config: &TapConfig) -> fmt::Result {
    let driver = if config.medium == LinkMedium::Ethernet { "tap" } else { "tun" };
    write!(f, "{driver}:{}", config.name)?;
    write_unless(f, config.queues == 1, &format!(",queues={}", config.queues))?;
    if let Some(mtu) = config.mtu {
        write!(f, ",mtu={mtu}")?;
    }
    write_mac(f, config.mac)?;
    write_unless(f, config.offloads, ",offload=off")
}

fn write_xdp(f: &mut fmt::Formatter<'_>, spec: &XdpSpec) -> fmt::Result {
    write!(f, "xdp:{}", spec.interface)?;
    match spec.queues {
        Some((first, last)) if first == last => write!(f, ",queue={first}")?,
        Some((first, last)) => write!(f, ",queue={first}..{last}")?,
        None => {}
    }
    match spec.mode {
        Some(XdpMode::Native) => write!(f, ",mode=native")?,
        Some(XdpMode::Generic) => write!(f, ",mode=generic")?,
        None => {}
    }
    if let Some(is_on) = spec.zero_copy {
        write!(f, ",zero-copy={}", if is_on { "on" } else { "off" })?;
    }
    match &spec.xskmap {
        Some(path) => write!(f, ",xskmap={}", path.display()),
        None => Ok(()),
    }
}

fn write_memif(f: &mut fmt::Formatter<'_>, spec: &MemifSpec) -> fmt::Result {
    write!(f, "memif:{}", spec.socket.display())?;
    write_unless(f, !spec.is_server, ",role=server")?;
    write_unless(f, spec.id == 0, &format!(",id={}", spec.id))?;
    write_unless(f, spec.queues == 1, &format!(",queues={}", spec.queues))?;
    write_unless(f, spec.ring_slots == 1_024, &format!(",ring={}", spec.ring_slots))?;
    write_unless(f, spec.buffer_bytes == 2_048, &format!(",buffer={}", spec.buffer_bytes))?;
    write_unless(f, spec.mtu == 1_500, &format!(",mtu={}", spec.mtu))?;
    write_mac(f, spec.mac)?;
    write_unless(f, spec.secret.is_empty(), &format!(",secret={}", spec.secret))?;
    write_unless(f, spec.wait_s == MEMIF_WAIT_S, &format!(",wait={}", spec.wait_s))
}

#[cfg(test)]
mod tests;
