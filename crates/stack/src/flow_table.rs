//! Flow table: finds the connection of a segment.
//!
//! Open addressing with linear probing, at most three quarters full. The hash is SipHash-1-3 under
//! a secret key, so that no peer can choose addresses and ports that collide. The table keeps 32
//! bits of the hash beside the connection's index; the caller compares the flow itself.
//!
//! Invariants
//! - An entry lies at its hash's slot or after it, with no empty slot between: removal moves later
//!   entries back.
//! - Indices are stored plus one: zeroed memory is an empty table.

use crate::host_address::HostAddress;
use crate::siphash::Sip;
use alloc::vec::Vec;

/// Both ends of a connection, as seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) local: HostAddress,
    pub(crate) remote: HostAddress,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

/// The table holds as many entries as it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableFull;

#[derive(Debug, Clone, Copy, Default)]
struct FlowSlot {
    hash: u32,
    /// The connection's index plus one; 0: empty.
    index: u32,
}

/// The flow table of one shard.
#[derive(Debug)]
pub(crate) struct FlowTable {
    slots: Vec<FlowSlot>,
    mask: usize,
    len: u32,
    len_max: u32,
    hasher: Sip<1, 3>,
}

impl FlowTable {
    /// A table for `entries` flows, hashed under `key`.
    pub(crate) fn new(entries: u32, key: &[u8; 16]) -> Self {
        let slots = (entries as usize * 4 / 3 + 2).next_power_of_two();
        Self {
            slots: alloc::vec![FlowSlot::default(); slots],
            mask: slots - 1,
            len: 0,
            len_max: entries,
            hasher: Sip::new(key),
        }
    }

    /// The flow's place in the table: ask once, use for `find`, `insert` and `remove`.
    #[inline(always)]
    pub(crate) fn hash(&self, flow: &Flow) -> u32 {
        let ports = u64::from(flow.local_port) << 16 | u64::from(flow.remote_port);
        // Flows of the two versions of IP differ in length, so that none stands for another.
        let hosts = match (flow.local.ipv4(), flow.remote.ipv4()) {
            (Some(local), Some(remote)) => {
                self.hasher.and(u64::from(remote.to_bits()) << 32 | u64::from(local.to_bits()))
            }
            _ => {
                let (local, remote) = (flow.local.ipv6().to_bits(), flow.remote.ipv6().to_bits());
                let hosts = self.hasher.and(local as u64).and((local >> 64) as u64);
                hosts.and(remote as u64).and((remote >> 64) as u64)
            }
        };
        hosts.finish_with(ports, 4) as u32
    }

    /// The entry under `hash` that `is` the one.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut place = hash as usize & self.mask;
        loop {
            let slot = self.slots[place];
            if slot.index == 0 {
                return None;
            }
            if slot.hash == hash && is(slot.index - 1) {
                return Some(slot.index - 1);
            }
            place = (place + 1) & self.mask;
        }
    }

    /// Adds an entry; the caller knows that the flow is not there.
    pub(crate) fn insert(&mut self, hash: u32, index: u32) -> Result<(), TableFull> {
        if self.len == self.len_max {
            return Err(TableFull);
        }
        self.len += 1;
        let mut place = hash as usize & self.mask;
        while self.slots[place].index != 0 {
            place = (place + 1) & self.mask;
        }
        self.slots[place] = FlowSlot { hash, index: index + 1 };
        Ok(())
    }

    /// The flow of entry `index` is of entry `by` from now on; nothing happens if it is not there.
    pub(crate) fn replace(&mut self, hash: u32, index: u32, by: u32) {
        let mut place = hash as usize & self.mask;
        while self.slots[place].index != 0 {
            if self.slots[place].index == index + 1 {
                self.slots[place].index = by + 1;
                return;
            }
            place = (place + 1) & self.mask;
        }
    }

    /// Takes an entry out; nothing happens if it is not there.
    pub(crate) fn remove(&mut self, hash: u32, index: u32) {
        let mut hole = hash as usize & self.mask;
        while self.slots[hole].index != index + 1 {
            if self.slots[hole].index == 0 {
                return;
            }
            hole = (hole + 1) & self.mask;
        }
        self.len -= 1;
        let mut place = hole;
        loop {
            place = (place + 1) & self.mask;
            let slot = self.slots[place];
            if slot.index == 0 {
                break;
            }
            let home = slot.hash as usize & self.mask;
            // The entry may move back unless its home lies after the hole.
            if place.wrapping_sub(home) & self.mask >= place.wrapping_sub(hole) & self.mask {
                self.slots[hole] = slot;
                hole = place;
            }
        }
        self.slots[hole] = FlowSlot::default();
    }

    /// Most bytes for each flow, in a full table: a third more slots than flows, and as many again
    /// where that is just over a power of two.
    pub(crate) const FLOW_BYTES_MAX: usize = (2 * size_of::<FlowSlot>() * 4).div_ceil(3);

    /// Bytes of the table. Flows lie anywhere in it, so that soon all of it is touched.
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.slots.len() * size_of::<FlowSlot>()
    }

    /// How many flows there are.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }
}

#[cfg(test)]
mod tests;
