//! The settings of a script: addresses, ports, MTU, tolerances.
//!
//! In: `--name=value` lines and the same from the command line. Out: `ScriptSettings`.
//! The addresses are packetdrill's: 192.168.0.0/16 on our side, 192.0.2.0/24 (TEST-NET-1) on the
//! other; fd3d:fa7b:d17d::/48 and 2001:db8::/32 for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::dialect::Dialect;
use crate::script::ScriptSetting;

/// The addresses of the host under test with the bits of their prefix, unless a script says
/// otherwise: packetdrill's own defaults, IPv4 and IPv6.
pub const DEFAULT_ADDRESSES: [(IpAddr, u8); 2] = [
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)), 16),
    (IpAddr::V6(Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1)), 48),
];

/// Which IP a script's sockets and packets use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpVersion {
    V4,
    /// IPv6 sockets, IPv4 packets.
    V4Mapped,
    V6,
}

/// A script's surroundings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScriptSettings {
    pub(crate) dialect: Dialect,
    pub(crate) ip_version: IpVersion,
    pub(crate) local_ip: IpAddr,
    pub(crate) local_prefix_len: u8,
    pub(crate) remote_ip: IpAddr,
    pub(crate) remote_prefix_len: u8,
    pub(crate) bind_port: u16,
    pub(crate) connect_port: u16,
    pub(crate) mtu: u16,
    /// Larger inbound segments are delivered as trains of segments of this size.
    pub(crate) segment_bytes: u16,
    pub(crate) tolerance_us: i64,
    /// Of the time since the event before; the larger of the two holds.
    pub(crate) tolerance_per_mille: i64,
    /// How long a tick of TSval is; 0 to leave TSval unchecked.
    pub(crate) timestamp_tick_us: i64,
    /// Take an unknown TSecr as one that was not sent yet, by its distance.
    pub(crate) is_echo_scaled: bool,
    /// Each outbound packet is one packet, not a train of the same length.
    pub(crate) is_strict_segments: bool,
    /// Go on after a packet that differs.
    pub(crate) is_packet_fatal: bool,
    /// Go on after a call that differs.
    pub(crate) is_call_fatal: bool,
}

/// An option that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("no option --{0} is known")]
    Unknown(String),
    #[error("--{name} cannot be `{value}`")]
    BadValue { name: String, value: String },
    #[error("not supported: --{0}")]
    Unsupported(String),
}

/// Options of other tools around packetdrill, and of packetdrill itself: ignored here.
const IGNORED: &[&str] = &[
    "code_command",
    "code_format",
    "code_sockopt",
    "gateway_ip",
    "speed",
    "init_scripts",
    "is_anyip",
    "send_omit_free",
    "debug",
    "define",
    "D",
    "verbose",
    "v",
    "tun_dev",
    "persistent_tun_dev",
    "dry_run",
];

const REFUSED: &[&str] = &[
    "wire_client",
    "wire_server",
    "wire_server_ip",
    "wire_server_at",
    "wire_server_port",
    "wire_client_dev",
    "wire_server_dev",
    "so_filename",
    "so_flags",
    "udp_encaps",
];

const MTU_MIN: u16 = 68;

impl ScriptSettings {
    /// The settings of a script, with those of the command line before its own.
    pub(crate) fn new(
        settings: &[ScriptSetting],
        dialect: Dialect,
    ) -> Result<Self, (u32, SettingError)> {
        let version = settings.iter().filter(|one| one.name == "ip_version");
        let mut ip_version = IpVersion::V4;
        for setting in version {
            ip_version = match setting.value.as_str() {
                "ipv4" => IpVersion::V4,
                "ipv4-mapped-ipv6" => IpVersion::V4Mapped,
                "ipv6" => IpVersion::V6,
                _ => return Err((setting.line, bad_value(setting))),
            };
        }
        let mut this = Self::of(ip_version, dialect);
        for setting in settings {
            this.take(setting).map_err(|error| (setting.line, error))?;
        }
        Ok(this)
    }

    pub(crate) fn of(ip_version: IpVersion, dialect: Dialect) -> Self {
        let (local_ip, local_prefix_len, remote_ip, remote_prefix_len) = match ip_version {
            IpVersion::V4 | IpVersion::V4Mapped => (
                DEFAULT_ADDRESSES[0].0,
                DEFAULT_ADDRESSES[0].1,
                IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
                24,
            ),
            IpVersion::V6 => (
                DEFAULT_ADDRESSES[1].0,
                DEFAULT_ADDRESSES[1].1,
                IpAddr::V6(Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 1)),
                32,
            ),
        };
        Self {
            dialect,
            ip_version,
            local_ip,
            local_prefix_len,
            remote_ip,
            remote_prefix_len,
            bind_port: 8080,
            connect_port: 8080,
            mtu: 1500,
            segment_bytes: 0,
            tolerance_us: 4000,
            tolerance_per_mille: 125,
            timestamp_tick_us: 0,
            is_echo_scaled: false,
            is_strict_segments: false,
            is_packet_fatal: true,
            is_call_fatal: true,
        }
    }

    fn take(&mut self, setting: &ScriptSetting) -> Result<(), SettingError> {
        let name = setting.name.as_str();
        let value = setting.value.as_str();
        let bad = || bad_value(setting);
        match name {
            "ip_version" => {}
            "local_ip" => self.local_ip = self.address(value).ok_or_else(bad)?.0,
            "remote_ip" => {
                let (address, prefix_len) = self.address(value).ok_or_else(bad)?;
                self.remote_ip = address;
                self.remote_prefix_len = prefix_len.unwrap_or(self.remote_prefix_len);
            }
            "netmask_ip" => {
                let mask: Ipv4Addr = value.parse().map_err(|_| bad())?;
                let len = u32::from(mask).leading_ones();
                self.local_prefix_len = u8::try_from(len).map_err(|_| bad())?;
            }
            "bind_port" => self.bind_port = value.parse().map_err(|_| bad())?,
            "connect_port" => self.connect_port = value.parse().map_err(|_| bad())?,
            "mtu" => {
                let mtu = value.parse().ok().filter(|&mtu| mtu >= MTU_MIN);
                self.mtu = mtu.ok_or_else(bad)?;
            }
            "mss" => self.segment_bytes = value.parse().map_err(|_| bad())?,
            "tolerance_usecs" => self.tolerance_us = positive(value).ok_or_else(bad)?,
            "tolerance_percent" => {
                let percent: f64 = value.parse().map_err(|_| bad())?;
                if !(0.0..=1000.0).contains(&percent) {
                    return Err(bad());
                }
                self.tolerance_per_mille = (percent * 10.0) as i64;
            }
            "tcp_ts_tick_usecs" => self.timestamp_tick_us = positive(value).ok_or_else(bad)?,
            "tcp_ts_ecr_scaled" => self.is_echo_scaled = true,
            "strict_segments" => self.is_strict_segments = true,
            "non_fatal" => {
                self.is_packet_fatal &= !value.contains("packet");
                self.is_call_fatal &= !value.contains("syscall");
            }
            "dialect" => match value {
                "linux" => self.dialect = Dialect::Linux,
                "freebsd" => self.dialect = Dialect::FreeBsd,
                _ => return Err(bad()),
            },
            "use_expect" => {}
            _ if IGNORED.contains(&name) => {}
            _ if REFUSED.contains(&name) => return Err(SettingError::Unsupported(name.to_owned())),
            _ => return Err(SettingError::Unknown(name.to_owned())),
        }
        Ok(())
    }

    /// An address of the version in use, with or without a prefix length.
    fn address(&self, value: &str) -> Option<(IpAddr, Option<u8>)> {
        let (address, prefix_len) = match value.split_once('/') {
            Some((address, len)) => (address, Some(len.parse().ok()?)),
            None => (value, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv6() { 128 } else { 32 };
        let fits = address.is_ipv6() == self.local_ip.is_ipv6();
        (fits && prefix_len.is_none_or(|len| len <= bits)).then_some((address, prefix_len))
    }

    /// What `bind(3, ..., ...)` binds to.
    pub(crate) fn bind_address(&self) -> SocketAddr {
        SocketAddr::new(self.of_socket(self.local_ip), self.bind_port)
    }

    /// What `connect(3, ..., ...)` connects to.
    pub(crate) fn connect_address(&self) -> SocketAddr {
        SocketAddr::new(self.of_socket(self.remote_ip), self.connect_port)
    }

    /// AF_INET or AF_INET6: what `socket(..., …)` opens.
    pub(crate) fn domain(&self) -> i32 {
        if self.ip_version == IpVersion::V4 { libc::AF_INET } else { libc::AF_INET6 }
    }

    /// An address as a socket of this script has it.
    fn of_socket(&self, address: IpAddr) -> IpAddr {
        match (self.ip_version, address) {
            (IpVersion::V4Mapped, IpAddr::V4(address)) => IpAddr::V6(address.to_ipv6_mapped()),
            _ => address,
        }
    }
}

fn bad_value(setting: &ScriptSetting) -> SettingError {
    SettingError::BadValue { name: setting.name.clone(), value: setting.value.clone() }
}

fn positive(value: &str) -> Option<i64> {
    value.parse().ok().filter(|&value| (0..=crate::limits::TIME_US_MAX).contains(&value))
}
