//! mTCP's configuration file: lines of `key = value`, `#` begins a comment.
//!
//! Read first: `man/mtcp.7`, which lists the keys. Pure: text in, a configuration and warnings out.
//!
//! Invariant: each line either takes effect, or is named in a warning that states what happens
//! instead, or is an error with its line number. No line is ignored silently.

use std::fmt;
use std::net::IpAddr;

use channel::{Placement, Prefixed};
use thiserror::Error;

use crate::network::placement_named;

/// Values that a program may read and change by `mtcp_getconf()` and `mtcp_setconf()`; the fields
/// of `struct mtcp_conf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConfValues {
    pub(crate) num_cores: i32,
    pub(crate) max_concurrency: i32,
    pub(crate) max_num_buffers: i32,
    pub(crate) rcvbuf_bytes: i32,
    pub(crate) sndbuf_bytes: i32,
    /// Seconds in TIME-WAIT.
    pub(crate) tcp_timewait_s: i32,
    /// Seconds until a silent peer's connection is dropped; -1: never.
    pub(crate) tcp_timeout_s: i32,
}

/// A whole configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conf {
    pub(crate) numbers: ConfValues,
    /// Origin of frames; `None`: not set.
    pub(crate) io: Option<Io>,
    /// The devices of `port`.
    pub(crate) ports: Vec<String>,
    /// Local addresses with their prefix length, if the link does not provide them.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) gateways: Vec<IpAddr>,
    pub(crate) mtu: Option<u16>,
    /// Placement of the library's own stack; `None`: not set.
    pub(crate) placement: Option<Placement>,
    /// Ports whose contexts print their counters when they end.
    pub(crate) stat_ports: Vec<String>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
}

/// The driver that carries the frames, or the kernel's TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    /// Linux does TCP.
    Kernel,
    /// A daemon has the stack.
    Service,
    /// A driver of the library, by its name in link descriptions.
    Link(&'static str),
}

/// A line that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {fault}")]
pub(crate) struct ConfError {
    pub(crate) line: usize,
    pub(crate) fault: ConfFault,
}

/// The error of a line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ConfFault {
    #[error("{0} has no value")]
    NoValue(String),
    #[error("{key} = {value} is not a number from {min} to {max}")]
    Number { key: &'static str, value: String, min: i32, max: i32 },
    #[error("{0:?} is not ADDRESS/BITS, as 10.0.0.2/24")]
    Address(String),
    #[error("{0:?} is not an address")]
    Gateway(String),
    #[error("placement = {0}: must be inline, thread or core")]
    Placement(String),
    #[error("io = {0}: must be xdp, packet, tap, memif, kernel or service")]
    Io(String),
    #[error("there is no key {0:?}")]
    Key(String),
}

/// mTCP's I/O modules, none of which is supported.
const FOREIGN_IO: [&str; 5] = ["psio", "dpdk", "netmap", "onvm", "ixgbe"];
const LINKS: [&str; 4] = ["xdp", "packet", "tap", "memif"];
/// Keys of mTCP without effect, and why.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("num_mem_ch", "memory channels are DPDK's"),
    ("core_mask", "a context is pinned when it is created"),
    ("onvm_serv", "ONVM is not supported"),
    ("onvm_inst", "ONVM is not supported"),
    ("onvm_dest", "ONVM is not supported"),
    ("cc", "congestion control is CUBIC"),
];

impl Conf {
    /// mTCP's defaults, on a machine with this number of cores.
    pub(crate) const fn new(cores: i32) -> Self {
        let numbers = ConfValues {
            num_cores: cores,
            max_concurrency: 100_000,
            max_num_buffers: 100_000,
            rcvbuf_bytes: 8_192,
            sndbuf_bytes: 8_192,
            tcp_timewait_s: 0,
            tcp_timeout_s: 30,
        };
        Self {
            numbers,
            io: None,
            ports: Vec::new(),
            addresses: Vec::new(),
            gateways: Vec::new(),
            mtu: None,
            placement: None,
            stat_ports: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Reads the text of a file into this configuration.
    pub(crate) fn read(&mut self, text: &str) -> Result<(), ConfError> {
        let (mut receive, mut send) = (None, None);
        for (index, line) in text.lines().enumerate() {
            let words = words(line);
            let Some((key, value)) = words.split_first() else { continue };
            let buffer = match *key {
                "rcvbuf" => &mut receive,
                "sndbuf" => &mut send,
                _ => {
                    let line = index + 1;
                    self.line(key, value).map_err(|fault| ConfError { line, fault })?;
                    continue;
                }
            };
            let name = if *key == "rcvbuf" { "rcvbuf" } else { "sndbuf" };
            let bytes = number(name, value, 64, BUFFER_BYTES_MAX);
            *buffer = Some(bytes.map_err(|fault| ConfError { line: index + 1, fault })?);
        }
        for port in std::mem::take(&mut self.stat_ports) {
            match self.has_port(&port) {
                true => self.stat_ports.push(port),
                false => self
                    .warn(format_args!("stat_print = {port} has no effect: no port has this name")),
            }
        }
        // If only one is set, the other has the same size.
        if let Some(bytes) = receive.or(send) {
            self.numbers.rcvbuf_bytes = bytes;
            self.numbers.sndbuf_bytes = send.unwrap_or(bytes);
        }
        Ok(())
    }

    /// Whether there is a port of this name, with or without the rest of its description.
    pub(super) fn has_port(&self, name: &str) -> bool {
        let own_name = |port: &String| port.split(',').next() == Some(name);
        self.ports.iter().any(|port| port == name || own_name(port))
    }

    fn line(&mut self, key: &str, value: &[&str]) -> Result<(), ConfFault> {
        let first = *value.first().ok_or_else(|| ConfFault::NoValue(key.to_owned()))?;
        let numbers = &mut self.numbers;
        match key {
            "num_cores" => numbers.num_cores = number("num_cores", value, 1, CORES_MAX)?,
            "max_concurrency" => {
                numbers.max_concurrency = number("max_concurrency", value, 1, CONCURRENCY_MAX)?;
            }
            "max_num_buffers" => {
                numbers.max_num_buffers = number("max_num_buffers", value, 1, CONCURRENCY_MAX)?;
            }
            "tcp_timewait" => {
                numbers.tcp_timewait_s = number("tcp_timewait", value, 0, SECONDS_MAX)?;
            }
            "tcp_timeout" => {
                numbers.tcp_timeout_s = number("tcp_timeout", value, -1, SECONDS_MAX)?;
            }
            "io" => self.io(first)?,
            "port" => self.ports.extend(value.iter().map(|&port| port.to_owned())),
            "address" => {
                let (ip, bits) =
                    prefixed(first).ok_or_else(|| ConfFault::Address(first.to_owned()))?;
                self.addresses.push((ip, bits));
            }
            "gateway" => {
                let ip = first.parse().map_err(|_| ConfFault::Gateway(first.to_owned()))?;
                self.gateways.push(ip);
            }
            "mtu" => self.mtu = Some(number("mtu", value, 576, 65_535)? as u16),
            "num_ip" => {
                self.warn(format_args!(
                    "num_ip = {first} has no effect: mtcp_init_rss() says how many"
                ));
            }
            "placement" => {
                let placement = placement_named(first);
                self.placement =
                    Some(placement.ok_or_else(|| ConfFault::Placement(first.to_owned()))?);
            }
            "stat_print" => self.stat_ports.extend(value.iter().map(|&port| port.to_owned())),
            "multiprocess" => {
                self.warn(format_args!(
                    "multiprocess = {first} has no effect: give each process a port"
                ));
            }
            _ => match WITHOUT_EFFECT.iter().find(|(name, _)| *name == key) {
                Some((name, why)) => self.warn(format_args!("{name} has no effect: {why}")),
                None => return Err(ConfFault::Key(key.to_owned())),
            },
        }
        Ok(())
    }

    fn io(&mut self, name: &str) -> Result<(), ConfFault> {
        self.io = if let Some(link) = LINKS.iter().find(|link| **link == name) {
            Some(Io::Link(link))
        } else if name == "kernel" {
            Some(Io::Kernel)
        } else if name == "service" {
            Some(Io::Service)
        } else if FOREIGN_IO.contains(&name) {
            self.warn(format_args!("io = {name} is not supported: xdp (AF_XDP) is used"));
            Some(Io::Link("xdp"))
        } else {
            return Err(ConfFault::Io(name.to_owned()));
        };
        Ok(())
    }

    pub(crate) fn warn(&mut self, warning: fmt::Arguments<'_>) {
        self.warnings.push(warning.to_string());
    }
}

const CORES_MAX: i32 = crate::limits::MTCP_CONTEXTS_MAX as i32;
const CONCURRENCY_MAX: i32 = 1 << 20;
pub(super) const BUFFER_BYTES_MAX: i32 = 1 << 30;
const SECONDS_MAX: i32 = 86_400;

/// Splits a line before its comment: the key, and the words of its value.
fn words(line: &str) -> Vec<&str> {
    let text = line.split_once('#').map_or(line, |(text, _)| text);
    // Only the first `=` divides: a device may have one in its description.
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    key.split_whitespace().chain(value.split_whitespace()).collect()
}

fn number(key: &'static str, value: &[&str], min: i32, max: i32) -> Result<i32, ConfFault> {
    let text = *value.first().ok_or_else(|| ConfFault::NoValue(key.to_owned()))?;
    let wrong = || ConfFault::Number { key, value: text.to_owned(), min, max };
    let number = text.parse().map_err(|_| wrong())?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(wrong()) }
}

/// `ADDRESS/BITS`.
pub(super) fn prefixed(text: &str) -> Option<(IpAddr, u8)> {
    let Prefixed { address, prefix_bits } = text.parse().ok()?;
    Some((address, prefix_bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Conf, ConfError> {
        let mut conf = Conf::new(4);
        conf.read(text).map(|()| conf)
    }

    #[test]
    fn mtcp_file_is_read_with_warnings_for_unsupported_keys() {
        let conf = read(
            "# a server\n\nio = dpdk\nnum_cores = 2 # two\n  num_mem_ch=4\nport = dpdk0\n\
             max_concurrency = 10000\nmax_num_buffers = 20000\nrcvbuf = 4096\ntcp_timeout = -1\n\
             tcp_timewait = 1\nstat_print = dpdk0\nmultiprocess = 0 master\n",
        )
        .unwrap();
        let numbers = ConfValues {
            num_cores: 2,
            max_concurrency: 10_000,
            max_num_buffers: 20_000,
            rcvbuf_bytes: 4_096,
            sndbuf_bytes: 4_096,
            tcp_timewait_s: 1,
            tcp_timeout_s: -1,
        };
        assert_eq!((conf.numbers, conf.io), (numbers, Some(Io::Link("xdp"))));
        assert_eq!(conf.ports, ["dpdk0"]);
        let named = |key: &str| conf.warnings.iter().any(|warning| warning.starts_with(key));
        for key in ["io = dpdk", "num_mem_ch", "multiprocess"] {
            assert!(named(key), "{key}: {:?}", conf.warnings);
        }
        assert_eq!(conf.warnings.len(), 3);
        assert_eq!(conf.stat_ports, ["dpdk0"]);
    }

    #[test]
    fn full_link_description_is_read() {
        let conf = read(
            "io = memif\nport = /run/memif.sock,role=server\naddress = 10.0.0.2/24\n\
             address = fd00::2/64\ngateway = 10.0.0.1\nmtu = 9000\n",
        )
        .unwrap();
        assert_eq!(conf.io, Some(Io::Link("memif")));
        assert_eq!(conf.ports, ["/run/memif.sock,role=server"]);
        assert_eq!(conf.addresses.len(), 2);
        assert_eq!((conf.gateways.len(), conf.mtu), (1, Some(9000)));
        assert!(conf.warnings.is_empty());
    }

    #[test]
    fn stat_print_names_a_port_in_any_order() {
        let conf = read("stat_print = /run/m.sock eth9\nport = /run/m.sock,role=server").unwrap();
        assert_eq!(conf.stat_ports, ["/run/m.sock"]);
        assert_eq!(conf.warnings, ["stat_print = eth9 has no effect: no port has this name"]);
    }

    #[test]
    fn placement_is_read_by_name() {
        let placed = |text: &str| read(text).unwrap().placement;
        assert_eq!(placed(""), None);
        assert_eq!(placed("placement = inline"), Some(Placement::Inline));
        assert_eq!(placed("placement = thread # mTCP's own"), Some(Placement::Thread));
        assert_eq!(placed("placement = core"), Some(Placement::Core(None)));
        let fault = read("\nplacement = elsewhere").unwrap_err();
        assert_eq!((fault.line, fault.fault), (2, ConfFault::Placement("elsewhere".to_owned())));
    }

    #[test]
    fn buffer_sizes_are_equal_unless_both_are_set() {
        let buffers = |text: &str| {
            let numbers = read(text).unwrap().numbers;
            (numbers.rcvbuf_bytes, numbers.sndbuf_bytes)
        };
        assert_eq!(buffers(""), (8_192, 8_192));
        assert_eq!(buffers("sndbuf = 100"), (100, 100));
        assert_eq!(buffers("rcvbuf = 200\nsndbuf = 100"), (200, 100));
        assert_eq!(buffers("sndbuf = 100\nrcvbuf = 200"), (200, 100));
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_number() {
        let fault = |text: &str| {
            let error = read(text).unwrap_err();
            (error.line, error.fault)
        };
        let wrong = |key, value: &str, min, max| ConfFault::Number {
            key,
            value: value.to_owned(),
            min,
            max,
        };
        assert_eq!(fault("\nnum_cores = 0"), (2, wrong("num_cores", "0", 1, CORES_MAX)));
        assert_eq!(fault("rcvbuf = 63"), (1, wrong("rcvbuf", "63", 64, BUFFER_BYTES_MAX)));
        assert_eq!(fault("mtu = many"), (1, wrong("mtu", "many", 576, 65_535)));
        assert_eq!(fault("port ="), (1, ConfFault::NoValue("port".to_owned())));
        assert_eq!(fault("rcvbuf"), (1, ConfFault::NoValue("rcvbuf".to_owned())));
        assert_eq!(fault("io = carrier-pigeon"), (1, ConfFault::Io("carrier-pigeon".to_owned())));
        assert_eq!(fault("address = 10.0.0.1"), (1, ConfFault::Address("10.0.0.1".to_owned())));
        assert_eq!(fault("gateway = x"), (1, ConfFault::Gateway("x".to_owned())));
        assert_eq!(fault("turbo = on"), (1, ConfFault::Key("turbo".to_owned())));
        assert!(read("address = 10.0.0.1/33").is_err());
    }
}
