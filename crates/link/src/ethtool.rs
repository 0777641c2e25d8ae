//! `SIOCETHTOOL`: a device's driver, its queues, how it spreads what it receives over them, and
//! its checksum offload.
//!
//! Read first: `linux/ethtool.h`, `ETHTOOL_GCHANNELS`, `ETHTOOL_GRSSH` and `ETHTOOL_GRXFH`. A link
//! asks once, when it is opened, and changes nothing.
//!
//! If a driver does not report its hash, or reports one that `rss.rs` does not support (not
//! Toeplitz, fields combined before hashing, ports without addresses), the hash is unknown. This is
//! no error; the reason is returned.

use std::io;
use std::os::fd::OwnedFd;

use libc::{EINVAL, EOPNOTSUPP, EPERM};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::limits::{RSS_KEY_BYTES_MAX, RSS_TABLE_ENTRIES_MAX};
use crate::rss::{Fields, FieldsByKind};
use crate::{LinkError, interface};

/// `ETHTOOL_GDRVINFO`: `struct ethtool_drvinfo`, 196 bytes: the command, then the driver's name.
const GET_DRIVER: u32 = 0x3;
/// `ETHTOOL_STXCSUM`: `struct ethtool_value`, the command and the value.
const SET_TRANSMIT_CHECKSUMS: u32 = 0x17;
/// `ETHTOOL_GCHANNELS`: `struct ethtool_channels`, 9 words.
const GET_CHANNELS: u32 = 0x3c;
/// `ETHTOOL_GRSSH`: `struct ethtool_rxfh`, 6 words, then the table and the key.
const GET_RSS: u32 = 0x46;
/// `ETHTOOL_GRXFH`: `struct ethtool_rxnfc`, of which the kernel reads and writes at most 192 bytes.
const GET_FIELDS: u32 = 0x29;

const DRIVER_WORDS: usize = 49;
/// Words of the driver's name.
const DRIVER_NAME_WORDS: usize = 8;
const CHANNELS_WORDS: usize = 9;
const RSS_WORDS: usize = 6;
const FIELDS_WORDS: usize = 48;

/// Bits of `hfunc`: the function in use (`ETH_RSS_HASH_TOP`).
const TOEPLITZ: u8 = 1;

/// `TCP_V4_FLOW`, `UDP_V4_FLOW`, `TCP_V6_FLOW` and `UDP_V6_FLOW`.
const FLOW_TYPES: [u32; 4] = [1, 2, 5, 6];

/// `RXH_IP_SRC | RXH_IP_DST`.
const BOTH_HOSTS: u64 = 1 << 4 | 1 << 5;
/// `RXH_L4_B_0_1 | RXH_L4_B_2_3`: the first four bytes of the transport's header.
const BOTH_PORTS: u64 = 1 << 6 | 1 << 7;

/// What a driver says about spreading, by the numbers of its own queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spreading {
    pub(crate) key: Vec<u8>,
    /// The queue, by the low bits of a hash.
    pub(crate) table: Vec<u32>,
    pub(crate) fields: FieldsByKind,
}

/// Switches the checksum offload of an interface's transmit side, and with it what depends on it
/// (segmentation), in the network namespace of the calling thread. Needs CAP_NET_ADMIN.
///
/// # Errors
/// [`LinkError::Setting`] for a bad name; [`LinkError::Io`].
pub fn set_transmit_checksums(interface: &str, are_offloaded: bool) -> Result<(), LinkError> {
    let mut words = [SET_TRANSMIT_CHECKSUMS, u32::from(are_offloaded)];
    let what = "switch an interface's checksum offload";
    Ethtool::new(interface)?.ask(&mut words).map_err(|source| LinkError::Io { what, source })
}

/// A socket to ask through, and whom.
pub(crate) struct Ethtool<'a> {
    socket: OwnedFd,
    name: &'a str,
}

impl<'a> Ethtool<'a> {
    pub(crate) fn new(name: &'a str) -> Result<Self, LinkError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
            .map_err(|errno| LinkError::Io { what: "open a socket", source: errno.into() })?;
        interface::check_name(name)?;
        Ok(Self { socket, name })
    }

    /// Hands `words` to the driver, whose first says what they are, and lets it answer there.
    ///
    /// The words have to be as many as the command's struct has, with everything that its own
    /// counts say follows.
    fn ask(&self, words: &mut [u32]) -> io::Result<()> {
        let mut request = interface::request(self.name).map_err(io::Error::other)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: SIOCETHTOOL takes a pointer to an `ifreq` whose data leads to the command's
        // struct: the callers in this file give as many words as the struct of their command has,
        // and as the sizes that they wrote into it promise; they are alive and writable during the
        // call, any bytes are words, and the kernel keeps no pointer.
        unsafe { interface::ioctl(&self.socket, libc::SIOCETHTOOL as _, &mut request) }
    }

    /// The name of the device's driver; `None` if it has none.
    pub(crate) fn driver(&self) -> Option<String> {
        let mut words = [0; DRIVER_WORDS];
        words[0] = GET_DRIVER;
        self.ask(&mut words).ok()?;
        let name = words[1..=DRIVER_NAME_WORDS].iter().flat_map(|word| word.to_ne_bytes());
        let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
        String::from_utf8(name).ok()
    }

    /// Receive queues of the device; 1 if the driver does not say.
    pub(crate) fn queue_count(&self) -> Result<u32, LinkError> {
        let mut channels = [0; CHANNELS_WORDS];
        channels[0] = GET_CHANNELS;
        match self.ask(&mut channels) {
            // Those that receive alone, and those that do both.
            Ok(()) => Ok(channels[5].saturating_add(channels[8]).max(1)),
            Err(error) if matches!(error.raw_os_error(), Some(EOPNOTSUPP | EINVAL)) => Ok(1),
            Err(source) => Err(LinkError::Io { what: "ask for an interface's queues", source }),
        }
    }

    /// How the device spreads what it receives.
    ///
    /// # Errors
    /// It is not known, and why.
    pub(crate) fn spreading(&self) -> Result<Spreading, String> {
        let mut head = [0; RSS_WORDS];
        head[0] = GET_RSS;
        self.ask(&mut head).map_err(unsaid)?;
        let [.., entries, key_bytes, _, _] = head;
        if entries as usize > RSS_TABLE_ENTRIES_MAX || key_bytes as usize > RSS_KEY_BYTES_MAX {
            return Err(format!("{entries} entries and a key of {key_bytes} bytes are too many"));
        }
        let key_words = (key_bytes as usize).div_ceil(4);
        let mut words = vec![0; RSS_WORDS + entries as usize + key_words];
        words[..RSS_WORDS].copy_from_slice(&[GET_RSS, 0, entries, key_bytes, 0, 0]);
        self.ask(&mut words).map_err(unsaid)?;
        let mut fields = [Fields::Hosts; FLOW_TYPES.len()];
        for (fields, flow_type) in fields.iter_mut().zip(FLOW_TYPES) {
            let mut words = [0; FIELDS_WORDS];
            words[..2].copy_from_slice(&[GET_FIELDS, flow_type]);
            self.ask(&mut words).map_err(unsaid)?;
            *fields = fields_of(u64_of([words[2], words[3]]))?;
        }
        let [tcp4, udp4, tcp6, udp6] = fields;
        read_rss(&words, FieldsByKind { tcp4, tcp6, udp4, udp6 })
    }
}

fn unsaid(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(EOPNOTSUPP | EINVAL) => "the driver does not say".to_owned(),
        Some(EPERM) => "only root may ask".to_owned(),
        _ => error.to_string(),
    }
}

fn u64_of([first, second]: [u32; 2]) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// What the driver answered: the function, how fields are mixed, the table and the key.
fn read_rss(words: &[u32], fields: FieldsByKind) -> Result<Spreading, String> {
    let (head, rest) = words.split_at_checked(RSS_WORDS).ok_or("the answer is too short")?;
    let (entries, key_bytes) = (head[2] as usize, head[3] as usize);
    let [function, mixing, ..] = head[4].to_ne_bytes();
    if function != TOEPLITZ {
        return Err(format!("its function is not Toeplitz ({function:#x})"));
    }
    if mixing != 0 {
        return Err(format!("it mixes fields before it hashes them ({mixing:#x})"));
    }
    let (table, key) = rest.split_at_checked(entries).ok_or("the table is cut off")?;
    let key: Vec<u8> = key.iter().flat_map(|word| word.to_ne_bytes()).take(key_bytes).collect();
    if key.len() < key_bytes {
        return Err("the key is cut off".to_owned());
    }
    Ok(Spreading { key, table: table.to_vec(), fields })
}

fn fields_of(bits: u64) -> Result<Fields, String> {
    match bits {
        BOTH_HOSTS => Ok(Fields::Hosts),
        bits if bits == BOTH_HOSTS | BOTH_PORTS => Ok(Fields::HostsAndPorts),
        other => Err(format!("it looks at fields that we do not know of ({other:#x})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a driver with this table and key answers.
    fn answer(function: u8, mixing: u8, table: &[u32], key: &[u8]) -> Vec<u32> {
        let how = u32::from_ne_bytes([function, mixing, 0, 0]);
        let mut words = vec![GET_RSS, 0, table.len() as u32, key.len() as u32, how, 0];
        words.extend(table);
        let (whole, rest) = key.as_chunks();
        words.extend(whole.iter().map(|bytes| u32::from_ne_bytes(*bytes)));
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        words.extend((!rest.is_empty()).then(|| u32::from_ne_bytes(last)));
        words
    }

    #[test]
    fn a_drivers_answer_is_read_as_it_lies_in_memory() {
        let key: Vec<u8> = (0..42).collect();
        let words = answer(TOEPLITZ, 0, &[0, 1, 2, 3, 0, 1, 2, 3], &key);
        let spreading = read_rss(&words, FieldsByKind::ALL).unwrap();
        assert_eq!((&spreading.key, spreading.table.len()), (&key, 8));
        assert_eq!(spreading.table[5], 1);
        for len in 0..words.len() {
            assert!(read_rss(&words[..len], FieldsByKind::ALL).is_err(), "{len} words");
        }
    }

    #[test]
    fn unsupported_hash_is_unknown() {
        let why = |words: &[u32]| read_rss(words, FieldsByKind::ALL).unwrap_err();
        assert!(why(&answer(2, 0, &[0], &[0; 40])).contains("not Toeplitz"));
        assert!(why(&answer(0, 0, &[0], &[0; 40])).contains("not Toeplitz"), "it did not say");
        assert!(why(&answer(1, 1, &[0], &[0; 40])).contains("mixes"));
        assert_eq!(fields_of(BOTH_HOSTS), Ok(Fields::Hosts));
        assert_eq!(fields_of(0xf0), Ok(Fields::HostsAndPorts));
        for bits in [0, 1 << 4, BOTH_PORTS, BOTH_HOSTS | 1 << 6, 0xf0 | 1 << 2] {
            assert!(fields_of(bits).is_err(), "{bits:#x}");
        }
    }

    #[test]
    fn loopback_has_one_queue_and_no_hash() {
        let lo = Ethtool::new("lo").expect("a socket");
        assert_eq!(lo.queue_count().expect("an answer"), 1);
        assert!(lo.spreading().is_err());
    }
}
