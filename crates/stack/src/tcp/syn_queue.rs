//! Connections of which a listener has seen only the SYN.
//!
//! Read first: RFC 9293 §3.10.7.2 and §3.10.7.4 for SYN-RECEIVED; RFC 4987 §3 for what floods of
//! SYNs do.
//!
//! Invariant: a record is in the flow table, counted by its listener, and armed in the wheel; or
//! its place is free.

use alloc::vec::Vec;

use super::deadline::Deadline;
use super::handshake::Offer;
use crate::flow_table::Flow;
use crate::ip::Hop;
use crate::seq::SeqNum;
use crate::slab::Places;

/// What is known of a peer after its SYN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HalfOpen {
    pub(crate) flow: Flow,
    /// Of `flow`, in the flow table.
    pub(crate) hash: u32,
    /// Index of the listener.
    pub(crate) listener: u16,
    pub(crate) iss: SeqNum,
    pub(crate) irs: SeqNum,
    /// The timestamp of the SYN.
    pub(crate) ts_recent: u32,
    pub(crate) ts_offset: u32,
    pub(crate) offer: Offer,
    /// When the first SYN-ACK was sent, in microseconds that wrap; 0: unknown.
    pub(crate) sent_at_us: u32,
    /// SYN-ACKs sent.
    pub(crate) sent: u8,
    /// The SYN-ACK carries a Fast Open cookie.
    pub(crate) wants_cookie: bool,
    /// The SYN-ACK is sent again then.
    pub(crate) again_at: Deadline,
    /// The way that the SYN-ACK took.
    pub(crate) hop: Option<Hop>,
}

const _: () = assert!(size_of::<HalfOpen>() <= 80, "a SYN costs little memory");

/// The half-open connections of a shard.
#[derive(Debug)]
pub(crate) struct SynQueue {
    records: Vec<HalfOpen>,
    places: Places,
    /// The record that was inserted last, while it is there; else an index of none. The end of its
    /// handshake is often the next segment that has to be looked up.
    newest: u32,
}

impl SynQueue {
    pub(crate) fn new(capacity: u32) -> Self {
        let records = Vec::with_capacity(capacity as usize);
        Self { records, places: Places::new(capacity), newest: u32::MAX }
    }

    pub(crate) fn insert(&mut self, half_open: HalfOpen) -> Option<u32> {
        let (index, _) = self.places.take()?;
        match self.records.get_mut(index as usize) {
            Some(place) => *place = half_open,
            None => self.records.push(half_open),
        }
        self.newest = index;
        Some(index)
    }

    pub(crate) fn get(&self, index: u32) -> &HalfOpen {
        &self.records[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut HalfOpen {
        &mut self.records[index as usize]
    }

    /// The record that was inserted last, if it is of `flow`.
    #[inline]
    pub(crate) fn newest_of(&self, flow: &Flow) -> Option<u32> {
        let newest = self.records.get(self.newest as usize)?;
        (newest.flow.remote_port == flow.remote_port && newest.flow == *flow).then_some(self.newest)
    }

    pub(crate) fn remove(&mut self, index: u32) {
        if self.newest == index {
            self.newest = u32::MAX;
        }
        self.places.give_back(index);
    }

    /// Places that were ever in use.
    pub(crate) const fn slots(&self) -> u32 {
        self.records.len() as u32
    }

    /// The record in a place; `None`: it is free.
    pub(crate) fn at(&self, index: u32) -> Option<&HalfOpen> {
        self.places.is_in_use(index).then(|| self.get(index))
    }

    /// One of `listener`, if it has any.
    pub(crate) fn of(&self, listener: u32) -> Option<u32> {
        self.places.iter().find(|index| u32::from(self.get(*index).listener) == listener)
    }

    /// Memory set aside, and the part of it that was touched, in bytes.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        let (reserved, touched) = self.places.memory_bytes();
        let bytes = |records| records * size_of::<HalfOpen>();
        (reserved + bytes(self.records.capacity()), touched + bytes(self.records.len()))
    }

    pub(crate) const fn len(&self) -> u32 {
        self.places.len()
    }
}
