//! The flags of packetdrill's `--so_flags`: pairs `key=value`, separated by commas.
//!
//! Pure: text in, settings out.
//!
//! `local_ip=ADDRESS/BITS` (several add up) and `mtu=BYTES` are the wire's; every other key is a
//! knob of the stack, by the names of `docs/SCRIPTS.md` and of `MEGAPIPE_KNOBS`.

use std::net::IpAddr;

use megapipe::{Prefixed, ServerConfig};
use megapipe_scripts::world::host;
use megapipe_scripts::{DEFAULT_ADDRESSES, UnknownKnob, tcp_for_scripts};

/// The parsed flags.
#[derive(Debug, Clone)]
pub struct PacketdrillFlags {
    /// Our addresses with the bits of their prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The largest IP packet in bytes.
    pub mtu: u16,
    /// The rest, as it stood there.
    knobs: String,
}

/// Invalid flags.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// Not a pair.
    #[error("{0:?} is not key=value")]
    Shape(String),
    /// An address without a prefix, or none.
    #[error("local_ip={0} is not ADDRESS/BITS")]
    Address(String),
    /// A number that cannot be.
    #[error("mtu={0} is not a number from 576 to 65535")]
    Mtu(String),
    /// Neither a flag nor a knob.
    #[error(transparent)]
    Knob(#[from] UnknownKnob),
}

const MTU: u16 = 1500;

impl PacketdrillFlags {
    /// Reads the text.
    ///
    /// # Errors
    /// [`FlagError`] names what is wrong.
    pub fn parse(text: &str) -> Result<Self, FlagError> {
        let mut flags = Self { addresses: Vec::new(), mtu: MTU, knobs: String::new() };
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| FlagError::Shape(pair.to_owned()))?;
            match key.trim() {
                "local_ip" => {
                    let address = prefixed(value.trim());
                    let wrong = || FlagError::Address(value.to_owned());
                    flags.addresses.push(address.ok_or_else(wrong)?);
                }
                "mtu" => {
                    let mtu = value.trim().parse().ok().filter(|mtu| *mtu >= 576);
                    flags.mtu = mtu.ok_or_else(|| FlagError::Mtu(value.to_owned()))?;
                }
                _ => {
                    flags.knobs.push_str(pair);
                    flags.knobs.push(',');
                }
            }
        }
        if flags.addresses.is_empty() {
            flags.addresses.extend(DEFAULT_ADDRESSES);
        }
        tcp_for_scripts(&flags.knobs)?;
        Ok(flags)
    }

    /// The stack's settings: our addresses, and the other side behind a gateway for each family.
    ///
    /// # Errors
    /// [`FlagError::Knob`], which [`PacketdrillFlags::parse`] has found before.
    pub fn settings(&self) -> Result<ServerConfig, FlagError> {
        Ok(host(self.addresses.clone(), self.mtu, tcp_for_scripts(&self.knobs)?))
    }
}

/// An address whose prefix contains another host's address.
fn prefixed(text: &str) -> Option<(IpAddr, u8)> {
    let Prefixed { address, prefix_bits } = text.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    (prefix_bits < width).then_some((address, prefix_bits))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn flags_choose_addresses_and_turn_knobs() {
        let text = "local_ip=10.1.2.3/24, local_ip=fd00::3/64,mtu=1400,tcp_sack=0,delayed_ack_ms=7";
        let settings =
            PacketdrillFlags::parse(text).expect("good flags").settings().expect("good knobs");
        assert_eq!(settings.addresses.len(), 2);
        assert_eq!(settings.gateways[0], IpAddr::from([10, 1, 2, 2]));
        assert_eq!(settings.gateways.len(), 2);
        assert_eq!((settings.mtu, settings.tcp.sack), (Some(1400), false));
        assert_eq!(settings.tcp.delayed_ack, Duration::from_millis(7));
    }

    #[test]
    fn without_flags_the_host_is_where_scripts_expect_it() {
        let flags = PacketdrillFlags::parse("").expect("no flags");
        assert_eq!(flags.addresses, DEFAULT_ADDRESSES);
        let ipv6 = "fd3d:fa7b:d17d::1".parse().expect("packetdrill's own address");
        assert_eq!(flags.addresses[1], (ipv6, 48));
        assert_eq!(flags.mtu, 1500);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| PacketdrillFlags::parse(text).expect_err("wrong").to_string();
        assert!(wrong("tcp_sack").contains("key=value"));
        assert!(wrong("local_ip=10.0.0.1").contains("ADDRESS/BITS"));
        assert!(wrong("local_ip=10.0.0.1/33").contains("ADDRESS/BITS"));
        assert!(wrong("mtu=575").contains("576"));
        assert!(wrong("turbo=1").contains("turbo"));
        assert!(wrong("tcp_sack=perhaps").contains("tcp_sack=perhaps"));
    }
}
