//! The XDP program of one interface with its maps: which frames are ours, changed while it runs.
//!
//! Invariants
//! - What becomes ours is added before what stops being ours is removed, so a flow that is ours
//!   before and after a change never reaches the kernel in between.
//! - Program and attachment go with the filter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::bpf::{Map, MapKind, XdpProgram};
use super::busy::{is_busy, while_busy};
use super::program::{
    self, ADDRESS_KEY_BYTES, ADDRESS_SHARED, ADDRESS_WHOLE, FLOW_KEY_BYTES, FLOW_RELEASED,
    FLOW_TAKEN, Maps, WORDS_PER_TRANSPORT, address_key, flow_key, port_bit,
};
use crate::limits::{OWNED_ADDRESSES_MAX, OWNED_FLOWS_MAX, XDP_QUEUES_MAX};
use crate::spec::XdpMode;
use crate::{Ownership, Transport};

/// Words of the map of ports: both transports'.
const PORT_WORDS: usize = 2 * WORDS_PER_TRANSPORT as usize;

/// What the maps hold.
#[derive(Debug, PartialEq, Eq)]
struct Contents {
    addresses: BTreeMap<[u8; ADDRESS_KEY_BYTES], u32>,
    flows: BTreeMap<[u8; FLOW_KEY_BYTES], u32>,
    ports: Vec<u64>,
}

impl Contents {
    fn of(ownership: &Ownership) -> Self {
        let whole = if ownership.whole_address { ADDRESS_WHOLE } else { ADDRESS_SHARED };
        let addresses = ownership.addresses().iter();
        let taken = ownership.taken().iter().map(|flow| (flow_key(flow), FLOW_TAKEN));
        let released = ownership.released().iter().map(|flow| (flow_key(flow), FLOW_RELEASED));
        let mut ports = vec![0; PORT_WORDS];
        for transport in [Transport::Tcp, Transport::Udp] {
            for &(first, last) in ownership.ports(transport).ranges() {
                for port in first..=last {
                    let (word, bit) = port_bit(transport, port);
                    ports[word] |= bit;
                }
            }
        }
        Self {
            addresses: addresses.map(|&address| (address_key(address), whole)).collect(),
            flows: taken.chain(released).collect(),
            ports,
        }
    }
}

/// A program with its maps, and where it runs.
#[derive(Debug)]
pub(super) struct Filter {
    sockets: Map,
    addresses: Map,
    flows: Map,
    ports: Map,
    program: XdpProgram,
    contents: Contents,
    /// The program runs as long as this is open.
    attachment: Option<OwnedFd>,
}

impl Filter {
    /// Makes maps and program; nothing is ours and nothing is attached. `has_pieces`: frames may
    /// come in several buffers.
    pub(super) fn new(has_pieces: bool) -> io::Result<Self> {
        // Twice: additions come before removals.
        let address_count = 2 * OWNED_ADDRESSES_MAX as u32;
        let flow_count = 4 * OWNED_FLOWS_MAX as u32;
        let sockets = Map::new(MapKind::Sockets, (4, 4), XDP_QUEUES_MAX, "mp_sockets")?;
        let sizes = (ADDRESS_KEY_BYTES, 4);
        let addresses = Map::new(MapKind::Hash, sizes, address_count, "mp_addresses")?;
        let flows = Map::new(MapKind::Hash, (FLOW_KEY_BYTES, 4), flow_count, "mp_flows")?;
        let ports = Map::new(MapKind::Array, (4, 8), PORT_WORDS as u32, "mp_ports")?;
        let maps = Maps {
            sockets: sockets.as_fd(),
            addresses: addresses.as_fd(),
            flows: flows.as_fd(),
            ports: ports.as_fd(),
        };
        let code = program::program(&maps).map_err(io::Error::other)?;
        let program = XdpProgram::load(&code, "mp_ownership", has_pieces)?;
        let contents = Contents::of(&Ownership::new());
        Ok(Self { sockets, addresses, flows, ports, program, contents, attachment: None })
    }

    /// Attaches the program to an interface: in the given mode, or else in native mode if supported
    /// and in generic mode otherwise; then the driver's error is returned too.
    pub(super) fn attach(
        &mut self,
        interface: u32,
        mode: Option<XdpMode>,
    ) -> io::Result<(XdpMode, Option<io::Error>)> {
        let first = mode.unwrap_or(XdpMode::Native);
        let refusal = match while_busy(|| self.program.attach(interface, first)) {
            Ok(attachment) => {
                self.attachment = Some(attachment);
                return Ok((first, None));
            }
            // Another program is attached: generic mode would not be free either.
            Err(error) if mode.is_some() || is_busy(&error) => {
                return Err(error);
            }
            Err(error) => error,
        };
        self.attachment = Some(while_busy(|| self.program.attach(interface, XdpMode::Generic))?);
        Ok((XdpMode::Generic, Some(refusal)))
    }

    /// The map that says which socket a queue's frames go to.
    pub(super) fn sockets(&self) -> &Map {
        &self.sockets
    }

    /// Makes the maps say what `ownership` says.
    pub(super) fn set_ownership(&mut self, ownership: &Ownership) -> io::Result<()> {
        let wanted = Contents::of(ownership);
        for (key, value) in changed(&self.contents.addresses, &wanted.addresses) {
            self.addresses.set(key, &value.to_ne_bytes())?;
        }
        for (key, value) in changed(&self.contents.flows, &wanted.flows) {
            self.flows.set(key, &value.to_ne_bytes())?;
        }
        // Bits that come first, then bits that go.
        let both = |index: usize| self.contents.ports[index] | wanted.ports[index];
        for index in 0..PORT_WORDS {
            if both(index) != self.contents.ports[index] {
                self.set_ports(index, both(index))?;
            }
        }
        for index in 0..PORT_WORDS {
            if both(index) != wanted.ports[index] {
                self.set_ports(index, wanted.ports[index])?;
            }
        }
        for key in gone(&self.contents.flows, &wanted.flows) {
            self.flows.remove(key)?;
        }
        for key in gone(&self.contents.addresses, &wanted.addresses) {
            self.addresses.remove(key)?;
        }
        self.contents = wanted;
        Ok(())
    }

    fn set_ports(&self, index: usize, word: u64) -> io::Result<()> {
        self.ports.set(&(index as u32).to_ne_bytes(), &word.to_ne_bytes())
    }

    /// What the program answers for a frame, without any interface.
    #[cfg(test)]
    fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        self.program.test_run(frame)
    }
}

/// Entries that are new or have another value.
fn changed<'a, K: Ord>(now: &BTreeMap<K, u32>, wanted: &'a BTreeMap<K, u32>) -> Vec<(&'a K, u32)> {
    let is_changed = |(key, value): &(&K, &u32)| now.get(*key) != Some(*value);
    wanted.iter().filter(is_changed).map(|(key, value)| (key, *value)).collect()
}

/// Keys that are not wanted any more.
fn gone<'a, K: Ord>(now: &'a BTreeMap<K, u32>, wanted: &BTreeMap<K, u32>) -> BTreeSet<&'a K> {
    now.keys().filter(|key| !wanted.contains_key(key)).collect()
}

#[cfg(test)]
mod tests;
