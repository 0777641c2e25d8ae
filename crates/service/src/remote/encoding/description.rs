//! What does not change while a session lasts, written once by the server when it begins.

use std::net::IpAddr;

use megapipe_link::{Caps, LinkMedium};
use megapipe_stack::limits::CONNECTIONS_MAX;

use super::bytes::{ValueReader, ValueWriter};
use crate::config::ServerConfig;
use crate::limits::{ADDRESSES_SHOWN, NOTES_SHOWN};
use crate::observe::ServiceShard;
use crate::server::Server;

/// Most notes of a link.
const NOTES_MAX: usize = 256;
/// Most addresses.
const ADDRESSES_MAX: usize = 64;
/// The name of a driver that is none of the ones below.
const OTHER_DRIVER: &str = "another";
/// Drivers of links.
const DRIVERS: [&str; 6] = ["tap", "tun", "packet", "xdp", "memif", "pair"];

/// What does not change while a session lasts.
#[derive(Debug, Clone)]
pub(in crate::remote) struct Description {
    /// What the link can do. How its device spreads frames is the server's affair.
    pub(in crate::remote) caps: Caps,
    /// The shard, and of how many, where there are others.
    pub(in crate::remote) shard: Option<(u16, u16)>,
    /// Our addresses, on the link and of loopback.
    pub(in crate::remote) addresses: Vec<IpAddr>,
    /// Most connections at once: their indices are below this.
    pub(in crate::remote) connections: u32,
    /// Size of a new connection's send buffer.
    pub(in crate::remote) send_buffer_bytes: u32,
}

impl Description {
    pub(in crate::remote) fn new<M>(server: &Server<M>, config: &ServerConfig) -> Self
    where
        M: megapipe_stack::Memory,
    {
        let attachment = server.attachment();
        Self {
            caps: Caps { rss: None, ..server.caps().clone() },
            shard: attachment.map(|place| (place.shard(), place.shards())),
            addresses: server.stack().config().all_addresses().map(|(it, _)| it).collect(),
            connections: config.connections,
            send_buffer_bytes: config.tcp.send_buffer,
        }
    }

    pub(in crate::remote) fn encode(&self) -> Vec<u8> {
        let mut to = ValueWriter::default();
        let Caps { driver, medium, mac, mtu, tx_frame_bytes, .. } = &self.caps;
        to.text(driver);
        to.bool(*medium == LinkMedium::Ip);
        mac.iter().for_each(|octet| to.u8(*octet));
        to.u32(*mtu as u32);
        to.u32(*tx_frame_bytes as u32);
        for value in [self.caps.tx_checksum, self.caps.tso, self.caps.shares_host_address] {
            to.bool(value);
        }
        to.option(self.shard, |to, (shard, shards)| {
            to.u16(shard);
            to.u16(shards);
        });
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES_MAX)];
        to.u16(addresses.len() as u16);
        addresses.iter().for_each(|address| to.ip(*address));
        to.u32(self.connections);
        to.u32(self.send_buffer_bytes);
        let notes = &self.caps.notes[..self.caps.notes.len().min(NOTES_MAX)];
        to.u16(notes.len() as u16);
        notes.iter().for_each(|note| to.text(note));
        to.into_bytes()
    }

    /// As it is shown to processes that ask.
    pub(in crate::remote) fn show(&self) -> ServiceShard {
        let Caps { driver, mtu, tx_checksum, tso, shares_host_address, notes, .. } = &self.caps;
        let (count, bytes) = NOTES_SHOWN;
        let cut = |note: &String| note[..note.floor_char_boundary(bytes)].to_owned();
        ServiceShard {
            driver: (*driver).to_owned(),
            mtu: u32::try_from(*mtu).unwrap_or(u32::MAX),
            shares_host_address: *shares_host_address,
            tx_checksum: *tx_checksum,
            tso: *tso,
            notes: notes.iter().take(count).map(cut).collect(),
            addresses: self.addresses.iter().take(ADDRESSES_SHOWN).copied().collect(),
            ..ServiceShard::default()
        }
    }

    /// What [`Description::encode`] has written; `None` if it is something else.
    pub(in crate::remote) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = ValueReader::new(bytes);
        let name = from.text()?;
        let caps = Caps {
            driver: DRIVERS.into_iter().find(|driver| **driver == name).unwrap_or(OTHER_DRIVER),
            medium: if from.bool()? { LinkMedium::Ip } else { LinkMedium::Ethernet },
            mac: from.octets()?,
            mtu: from.u32()? as usize,
            tx_frame_bytes: from.u32()? as usize,
            tx_checksum: from.bool()?,
            tso: from.bool()?,
            shares_host_address: from.bool()?,
            rss: None,
            notes: Vec::new(),
        };
        let shard = from.option(|from| Some((from.u16()?, from.u16()?)))?;
        if shard.is_some_and(|(shard, shards)| shard >= shards) {
            return None;
        }
        let count = usize::from(from.u16()?);
        let addresses = (0..count.min(ADDRESSES_MAX + 1)).map(|_| from.ip());
        let addresses = addresses.collect::<Option<Vec<_>>>()?;
        let connections = from.u32().filter(|count| *count <= CONNECTIONS_MAX)?;
        let send_buffer_bytes = from.u32()?;
        let count = usize::from(from.u16()?);
        let notes =
            (0..count.min(NOTES_MAX + 1)).map(|_| from.text()).collect::<Option<Vec<_>>>()?;
        let caps = Caps { notes, ..caps };
        from.end(Self { caps, shard, addresses, connections, send_buffer_bytes })
    }
}
