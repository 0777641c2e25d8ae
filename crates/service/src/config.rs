//! Configuration of a server: the stack's settings that the link does not decide, and how it waits.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use megapipe_link::{Caps, LinkMedium};
use megapipe_stack as stack;

use crate::client_ports::client_ports;
use crate::clock::Clock;
use crate::error::ServerError;
use crate::hand_over::HandOverSettings;
use crate::layout::ServerLayout;
use crate::limits::{ENDPOINTS_OF_SHARD, SPIN_DEFAULT, SPIN_MAX};

/// How a server waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// How long it spins after the last work before it sleeps. At most a second; zero: not at all.
    /// With a server beside it is the application that spins, and polls the server.
    pub spin: Duration,
    /// Never sleeps and measures nothing, whatever the polls cost: for a load generator with a core
    /// of its own. A peer that sleeps has to be woken by the server that is measured.
    pub never_sleeps: bool,
}

impl Default for Waits {
    fn default() -> Self {
        Self { spin: SPIN_DEFAULT, never_sleeps: false }
    }
}

/// Which TCP/IP has 127.0.0.0/8 and ::1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoopbackOwner {
    /// Linux.
    #[default]
    Kernel,
    /// Our own stack: they connect its sockets with each other, inside the stack.
    Stack,
}

impl LoopbackOwner {
    /// As options and variables name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Stack => "stack",
        }
    }
}

impl FromStr for LoopbackOwner {
    type Err = UnknownLoopbackOwner;

    fn from_str(name: &str) -> Result<Self, UnknownLoopbackOwner> {
        match name {
            "kernel" => Ok(Self::Kernel),
            "stack" => Ok(Self::Stack),
            _ => Err(UnknownLoopbackOwner),
        }
    }
}

/// A text names no [`LoopbackOwner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be kernel or stack")]
pub struct UnknownLoopbackOwner;

/// The settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Our addresses, each with the length of its on-link prefix in bits.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Which TCP/IP has 127.0.0.0/8 and ::1.
    pub loopback: LoopbackOwner,
    /// The interface, where the link shares the host's address ([`Caps::shares_host_address`]): its
    /// routes and neighbours are used, and its addresses if none are given here.
    pub interface: Option<String>,
    /// Next hops for everything else, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Smaller than what the link can do; `None`: what it can.
    pub mtu: Option<u16>,
    /// VLAN identifier; `None`: untagged.
    pub vlan: Option<u16>,
    /// Most connections at once.
    pub connections: u32,
    /// Most connections in TIME-WAIT.
    pub time_waits: u32,
    /// TCP's knobs.
    pub tcp: stack::TcpConfig,
    /// How it waits.
    pub waits: Waits,
    /// How many shards share the link's queues; `None`: one for each queue.
    pub shards: Option<u16>,
    /// Which components of a daemon run together; `None`: all three on each shard.
    pub layout: Option<ServerLayout>,
    /// The key of the hash that selects a flow's shard, where shards share queues. Both ends of a
    /// link that know the same key and have as many shards and queues agree on each flow's place,
    /// and nothing has to be steered; `None`: a random one, which no peer can know. Not used where
    /// the device says how it spreads flows ([`Caps::rss`]).
    pub steering_key: Option<[u8; 16]>,
    /// The secret that unguessable values follow from: initial sequence numbers, timestamps, the
    /// order of ports. `None`: random bytes. Give it for runs that have to be the same each time,
    /// and nowhere else.
    pub secret: Option<[u8; 32]>,
    /// The ports of outgoing connections and datagram sockets that ask for none, first and last,
    /// where the host's address is not shared; `None`: [`crate::limits::EPHEMERAL_PORTS`].
    pub client_ports: Option<(u16, u16)>,
    /// How listeners of several sessions hand new connections over.
    pub hand_over: HandOverSettings,
    /// What time it is. Default: the machine's.
    pub clock: Clock,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            loopback: LoopbackOwner::Kernel,
            interface: None,
            gateways: Vec::new(),
            mtu: None,
            vlan: None,
            connections: 1 << 16,
            time_waits: 1 << 15,
            tcp: stack::TcpConfig::default(),
            waits: Waits::default(),
            shards: None,
            layout: None,
            steering_key: None,
            secret: None,
            client_ports: None,
            hand_over: HandOverSettings::default(),
            clock: Clock::new(),
        }
    }
}

impl ServerConfig {
    /// Our addresses, each with the length of its on-link prefix in bits, and those of loopback if
    /// it is the stack's. None: they are those of the interface.
    pub fn all_addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        let has_loopback = self.loopback == LoopbackOwner::Stack && !self.addresses.is_empty();
        let loopback = stack::LOOPBACK_ADDRESSES.into_iter().filter(move |_| has_loopback);
        self.addresses.iter().copied().chain(loopback)
    }

    /// The stack's configuration on a link that can do `caps`.
    ///
    /// # Errors
    /// [`ServerError::Setting`] names the setting that does not fit.
    pub(crate) fn stack(
        &self,
        caps: &Caps,
        secret: [u8; 32],
    ) -> Result<stack::Config, ServerError> {
        let setting = |setting, why: String| Err(ServerError::Setting { setting, why });
        self.check()?;
        if self.addresses.is_empty() {
            return setting("address", "there is none".to_owned());
        }
        let link_mtu = u16::try_from(caps.mtu).unwrap_or(u16::MAX);
        let mtu = self.mtu.unwrap_or(link_mtu);
        if mtu > link_mtu {
            return setting("mtu", format!("{mtu} is over the link's {link_mtu}"));
        }
        let routes = self.gateways.iter().map(|via| default_route(*via)).collect();
        Ok(stack::Config {
            medium: match caps.medium {
                LinkMedium::Ethernet => stack::Medium::Ethernet(caps.mac),
                LinkMedium::Ip => stack::Medium::Ip,
            },
            mtu,
            tx_frame_bytes: u32::try_from(caps.tx_frame_bytes).unwrap_or(u32::MAX),
            tx_checksum: caps.tx_checksum,
            tso: caps.tso,
            addresses: self.addresses.clone(),
            loopback: self.loopback == LoopbackOwner::Stack,
            routes,
            external_neighbours: caps.shares_host_address,
            vlan: self.vlan,
            connections: self.connections,
            time_waits: self.time_waits,
            listeners: 256,
            datagram_endpoints: ENDPOINTS_OF_SHARD,
            ephemeral_ports: match self.client_ports {
                Some(ports) if !caps.shares_host_address => ports,
                _ => client_ports(caps.shares_host_address),
            },
            tcp: self.tcp.clone(),
            secret,
        })
    }

    /// Checks the settings that do not depend on the link, so that a mistake shows before a link is
    /// opened, which may wait for its other end.
    ///
    /// # Errors
    /// [`ServerError::Setting`] names the setting.
    pub fn check(&self) -> Result<(), ServerError> {
        let setting = |setting, why: String| Err(ServerError::Setting { setting, why });
        if self.waits.spin > SPIN_MAX {
            return setting("spin", format!("{:?} is over {SPIN_MAX:?}", self.waits.spin));
        }
        if let Err(error) = self.hand_over.check() {
            return setting("hand_over", error.to_string());
        }
        if let Some(Err(error)) = self.layout.as_ref().map(ServerLayout::check) {
            return setting("layout", error.to_string());
        }
        if self.addresses.is_empty() {
            // They are the host's, as far as the interface has any.
            return match self.interface {
                Some(_) => Ok(()),
                None => setting("address", "there is none".to_owned()),
            };
        }
        for (index, (address, bits)) in self.addresses.iter().enumerate() {
            if let Some(why) = refusal(*address, *bits) {
                return setting("address", format!("{address}/{bits} is {why}"));
            }
            if self.addresses[..index].iter().any(|(other, _)| other == address) {
                return setting("address", format!("{address} is given twice"));
            }
        }
        for gateway in &self.gateways {
            if self.addresses.iter().any(|(own, _)| own == gateway) {
                return setting("gateway", format!("{gateway} is an address of our own"));
            }
            if self
                .addresses
                .iter()
                .any(|(own, bits)| on_link(*own, *bits, *gateway) && is_of_all(*gateway, *bits))
            {
                return setting("gateway", format!("{gateway} is a broadcast address"));
            }
            if !self.addresses.iter().any(|(own, bits)| on_link(*own, *bits, *gateway)) {
                return setting("gateway", format!("{gateway} is on no prefix of our addresses"));
            }
        }
        Ok(())
    }
}

fn default_route(via: IpAddr) -> stack::Route {
    let prefix = match via {
        IpAddr::V4(_) => IpAddr::from([0_u8; 4]),
        IpAddr::V6(_) => IpAddr::from([0_u16; 8]),
    };
    stack::Route { prefix, prefix_bits: 0, via: Some(via) }
}

/// Whether an address stands for all hosts of its prefix (RFC 1122 §3.2.1.3), in the old form with
/// zeroes too, or of every link.
fn is_of_all(address: IpAddr, bits: u8) -> bool {
    let IpAddr::V4(address) = address else { return false };
    // A prefix of 31 bits has no broadcast address (RFC 3021), one of 32 no others.
    let host = if bits < 31 { u32::MAX >> bits } else { 0 };
    let part = address.to_bits() & host;
    address.is_broadcast() || (host != 0 && (part == host || part == 0))
}

/// Why no host can have this address on a link.
fn refusal(address: IpAddr, bits: u8) -> Option<&'static str> {
    let of_this_network = matches!(address, IpAddr::V4(ip) if ip.octets()[0] == 0);
    let is_reserved = matches!(address, IpAddr::V4(ip) if ip.octets()[0] >= 240);
    let is_mapped = matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    let reasons = [
        (address.is_loopback(), "a loopback address, which no link has"),
        (address.is_multicast(), "a multicast address; a host has unicast addresses"),
        (address.is_unspecified(), "the unspecified address; a host has unicast addresses"),
        (is_of_all(address, bits), "a broadcast address"),
        (of_this_network, "in 0.0.0.0/8, which no host has"),
        (is_reserved, "in 240.0.0.0/4, which is reserved"),
        (is_mapped, "an IPv4 address in IPv6 form; give it as IPv4"),
    ];
    reasons.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why)
}

/// Whether `other` shares the first `bits` of `own`.
fn on_link(own: IpAddr, bits: u8, other: IpAddr) -> bool {
    let (own, other, width) = match (own, other) {
        (IpAddr::V4(own), IpAddr::V4(other)) => {
            (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
        }
        (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
        _ => return false,
    };
    let bits = u32::from(bits).min(width);
    bits == 0 || (own ^ other) >> (width - bits) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Caps {
        Caps {
            driver: "pair",
            medium: LinkMedium::Ip,
            mac: [0; 6],
            mtu: 1500,
            tx_frame_bytes: 1514,
            tx_checksum: false,
            tso: false,
            shares_host_address: false,
            rss: None,
            notes: Vec::new(),
        }
    }

    fn refused(config: &ServerConfig) -> &'static str {
        match config.stack(&caps(), [0; 32]) {
            Err(ServerError::Setting { setting, .. }) => setting,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_setting_that_does_not_fit_is_named() {
        let good = ServerConfig {
            addresses: vec![(IpAddr::from([10, 0, 0, 2]), 24)],
            gateways: vec![IpAddr::from([10, 0, 0, 1])],
            ..ServerConfig::default()
        };
        let stack = good.stack(&caps(), [0; 32]).unwrap();
        assert_eq!((stack.mtu, stack.routes.len()), (1500, 1));
        assert_eq!(refused(&ServerConfig::default()), "address");
        assert_eq!(refused(&ServerConfig { mtu: Some(9000), ..good.clone() }), "mtu");
        let gateways = vec![IpAddr::from([10, 0, 1, 1])];
        assert_eq!(refused(&ServerConfig { gateways, ..good.clone() }), "gateway");
        let gateways = vec![IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1])];
        assert_eq!(refused(&ServerConfig { gateways, ..good.clone() }), "gateway");
        for gateway in [[10, 0, 0, 2], [10, 0, 0, 255], [10, 0, 0, 0]] {
            let gateways = vec![IpAddr::from(gateway)];
            assert_eq!(refused(&ServerConfig { gateways, ..good.clone() }), "gateway");
        }
        for (address, bits) in [([10, 0, 0, 255], 24), ([10, 0, 0, 0], 24), ([255; 4], 32)] {
            let addresses = vec![(IpAddr::from(address), bits)];
            let gateways = Vec::new();
            assert_eq!(refused(&ServerConfig { addresses, gateways, ..good.clone() }), "address");
        }
        for address in ["127.0.0.1", "224.0.0.1", "0.1.2.3", "240.0.0.1", "::", "::1", "ff02::1"] {
            let addresses = vec![(address.parse().unwrap(), 8)];
            let config = ServerConfig { addresses, gateways: Vec::new(), ..good.clone() };
            let text = config.check().expect_err(address).to_string();
            assert!(text.starts_with(&format!("address: {address}/8 is ")), "{text}");
        }
        let addresses = [good.addresses.clone(), good.addresses.clone()].concat();
        let text =
            ServerConfig { addresses, ..good.clone() }.check().expect_err("twice").to_string();
        assert_eq!(text, "address: 10.0.0.2 is given twice");
        for (address, bits) in [([10, 0, 0, 255], 31), ([10, 0, 0, 0], 32), ([10, 0, 0, 255], 16)] {
            let addresses = vec![(IpAddr::from(address), bits)];
            let config = ServerConfig { addresses, gateways: Vec::new(), ..good.clone() };
            assert!(config.stack(&caps(), [0; 32]).is_ok(), "{address:?}/{bits}");
        }
        let waits = Waits { spin: Duration::from_secs(2), ..Waits::default() };
        assert_eq!(refused(&ServerConfig { waits, ..good }), "spin");
    }
}
