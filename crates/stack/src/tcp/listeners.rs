//! Listeners, and connections that wait to be accepted.
//!
//! Read first: RFC 9293 §3.10.1 (passive OPEN), MUST-41 and MUST-42.
//!
//! Invariants
//! - `order` lists the listeners by port, those with an address before those without: a lookup
//!   takes the first that fits.
//! - `waiting` never holds more than `backlog` and one more, beside what is in `credit`.
//! - A listener's group counts its connections and handshakes (`listener_groups.rs`).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddr};

use super::listener_groups::ListenerGroups;
use super::send_hold::Reuse;
use crate::counters::Drop;
use crate::error::{ListenError, OperationError};
use crate::host_address::HostAddress;
use crate::id::{ListenerGroupId, ListenerId, PoolId};
use crate::slab::Places;

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) local: SocketAddr,
    pub(crate) pool: PoolId,
    /// Of its connections.
    pub(crate) reuse: Reuse,
    /// How many `Incoming` may be reported.
    pub(crate) credit: u32,
    pub(crate) backlog: u32,
    /// Connections, by index, that are established and not reported.
    pub(crate) waiting: VecDeque<u32>,
    /// How many embryonic connections it has.
    pub(crate) half_open: u32,
    /// 0: none.
    group: u16,
}

/// All of a shard.
#[derive(Debug)]
pub(crate) struct Listeners {
    slots: Vec<Option<Listener>>,
    places: Places,
    order: Vec<ListenerBinding>,
    pub(crate) groups: ListenerGroups,
}

/// Where a listener is found.
#[derive(Debug, Clone, Copy)]
struct ListenerBinding {
    port: u16,
    index: u32,
    /// The unspecified one of a version stands for all of that.
    address: HostAddress,
}

/// The unspecified address of IPv4.
const ANY_IPV4: HostAddress = HostAddress::of_ipv4(Ipv4Addr::UNSPECIFIED);

impl Listeners {
    /// So many listeners, with so many handshakes.
    pub(crate) fn new(capacity: u32, half_open: u32) -> Self {
        Self {
            slots: Vec::with_capacity(capacity as usize),
            places: Places::new(capacity),
            order: Vec::with_capacity(capacity as usize),
            groups: ListenerGroups::new(half_open),
        }
    }

    /// # Errors
    /// The port is 0, another listener has the same pair of address and port, the table is full, or
    /// there is no memory.
    pub(crate) fn insert(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        pool: PoolId,
    ) -> Result<ListenerId, ListenError> {
        if local.port() == 0 {
            return Err(ListenError::BadPort);
        }
        if self.iter().any(|(_, listener)| listener.local == local) {
            return Err(ListenError::InUse);
        }
        let backlog = backlog.min(crate::limits::BACKLOG_MAX);
        let mut waiting = VecDeque::new();
        let has_memory = waiting.try_reserve_exact(backlog as usize + 1);
        has_memory.map_err(|_| ListenError::NoMemory)?;
        let (index, generation) = self.places.take().ok_or(ListenError::TooManyListeners)?;
        let reuse = Reuse::default();
        let (credit, half_open, group) = (0, 0, 0);
        let listener = Listener { local, pool, reuse, credit, backlog, waiting, half_open, group };
        match self.slots.get_mut(index as usize) {
            Some(slot) => *slot = Some(listener),
            None => self.slots.push(Some(listener)),
        }
        let bound = ListenerBinding { port: local.port(), index, address: local.ip().into() };
        let place = self.order.partition_point(|other| other.key() <= bound.key());
        self.order.insert(place, bound);
        Ok(ListenerId { index, generation })
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Listener> {
        let listener = self.slots.get_mut(index as usize)?.take()?;
        self.order.retain(|other| other.index != index);
        self.places.give_back(index);
        let held = (listener.waiting.len() as u32, listener.half_open);
        self.groups.move_listener((listener.group, 0), held);
        Some(listener)
    }

    /// A listener is of a group from now on. Its connections that were reported are of the group
    /// that they were of.
    ///
    /// # Errors
    /// An id is stale.
    pub(crate) fn set_group(
        &mut self,
        id: ListenerId,
        group: ListenerGroupId,
    ) -> Result<(), OperationError> {
        if !self.groups.is_open(group) {
            return Err(OperationError::Unknown);
        }
        let listener = self.by_id(id).ok_or(OperationError::Unknown)?;
        let from = core::mem::replace(&mut listener.group, group.0);
        let held = (listener.waiting.len() as u32, listener.half_open);
        self.groups.move_listener((from, group.0), held);
        Ok(())
    }

    /// The group of a listener; 0: none.
    #[inline]
    pub(crate) fn group_of(&self, index: u32) -> u16 {
        self.get(index).map_or(0, |listener| listener.group)
    }

    /// Checks that one more connection may begin at a listener.
    ///
    /// # Errors
    /// Its backlog is full, or its group.
    #[inline]
    pub(crate) fn may_begin(&mut self, index: u32) -> Result<(), Drop> {
        let Some(listener) = self.get(index) else { return Ok(()) };
        let (is_full, group) = (listener.is_full(), listener.group);
        if is_full {
            return Err(Drop::BacklogFull);
        }
        if self.groups.may_begin(group) { Ok(()) } else { Err(Drop::ListenerGroupFull) }
    }

    /// A connection waits to be reported.
    #[inline]
    pub(crate) fn push_waiting(&mut self, index: u32, conn: u32) {
        if let Some(listener) = self.get_mut(index) {
            listener.waiting.push_back(conn);
            let group = listener.group;
            self.groups.on_waiting(group);
        }
    }

    /// One more handshake of a listener begins or ends.
    #[inline]
    pub(crate) fn change_half_open(&mut self, index: u32, begins: bool) {
        let Some(listener) = self.get_mut(index) else { return };
        listener.half_open = match begins {
            true => listener.half_open + 1,
            false => listener.half_open.saturating_sub(1),
        };
        let group = listener.group;
        self.groups.on_handshake(group, begins);
    }

    /// The listener that takes connections to `address` and `port`.
    #[inline]
    pub(crate) fn find(&self, address: HostAddress, port: u16) -> Option<u32> {
        let any = if address.ipv4().is_some() { ANY_IPV4 } else { HostAddress::UNSPECIFIED };
        let from = self.order.partition_point(|bound| bound.port < port);
        let mut bound = self.order[from..].iter().take_while(|bound| bound.port == port);
        let takes = |bound: &&ListenerBinding| bound.address == address || bound.address == any;
        bound.find(takes).map(|bound| bound.index)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Listener> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Listener> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The listener that `id` names, unless it is stale.
    pub(crate) fn by_id(&mut self, id: ListenerId) -> Option<&mut Listener> {
        if !self.places.holds(id.index, id.generation) {
            return None;
        }
        self.get_mut(id.index)
    }

    /// Places that were ever in use.
    pub(crate) const fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn id(&self, index: u32) -> ListenerId {
        ListenerId { index, generation: self.places.generation(index) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Listener)> {
        let with_index =
            |(index, slot): (usize, &'_ Option<Listener>)| (index as u32, slot.is_some());
        self.slots
            .iter()
            .enumerate()
            .map(with_index)
            .filter(|(_, is)| *is)
            .filter_map(|(index, _)| Some((index, self.get(index)?)))
    }
}

impl Listener {
    /// Whether one more connection would be one too many: as in Linux, one more may wait than the
    /// backlog says. Those that may be reported at once do not wait for anybody: they are beside
    /// the backlog, however many come before the next event is taken.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        // Mostly the credit need not be looked at.
        // Without memory for the credit no more than the backlog wait.
        self.waiting.len() > self.backlog as usize
            && self.waiting.len() >= self.room().min(self.waiting.capacity())
    }

    /// The number of its group; 0: none.
    #[cfg(any(test, feature = "invariants"))]
    pub(crate) const fn group(&self) -> u16 {
        self.group
    }

    /// Lets `credit` more be reported.
    pub(crate) fn add_credit(&mut self, credit: u32) {
        self.credit = self.credit.saturating_add(credit);
        // Here and not when connections come: memory is asked for by commands alone.
        let _ = self.waiting.try_reserve_exact(self.room().saturating_sub(self.waiting.len()));
    }

    fn room(&self) -> usize {
        self.backlog.saturating_add(self.credit).min(crate::limits::BACKLOG_MAX) as usize + 1
    }
}

impl ListenerBinding {
    /// By what listeners are ordered.
    fn key(&self) -> (u16, bool) {
        (self.port, self.address == ANY_IPV4 || self.address == HostAddress::UNSPECIFIED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_most_specific_listener_gets_a_port() {
        let mut listeners = Listeners::new(8, 8);
        let mut add = |text| listeners.insert(at(text), 1, PoolId(0)).unwrap().index;
        let any = add("0.0.0.0:80");
        let one = add("10.0.0.1:80");
        let six = add("[::]:80");
        let other = add("10.0.0.1:81");
        let find = |text| listeners.find(at(text).ip().into(), at(text).port());
        assert_eq!(find("10.0.0.1:80"), Some(one));
        assert_eq!(find("10.0.0.2:80"), Some(any));
        assert_eq!(find("[::1]:80"), Some(six));
        assert_eq!(find("10.0.0.1:81"), Some(other));
        assert_eq!(find("10.0.0.2:81"), None);
        assert_eq!(find("10.0.0.2:79"), None);
    }

    #[test]
    fn an_address_is_taken_once_and_free_again_after() {
        let mut listeners = Listeners::new(2, 8);
        let id = listeners.insert(at("0.0.0.0:80"), 1, PoolId(0)).unwrap();
        let again = |listeners: &mut Listeners, text| {
            listeners.insert(at(text), 1, PoolId(0)).map(|id| id.index)
        };
        assert_eq!(again(&mut listeners, "0.0.0.0:80"), Err(ListenError::InUse));
        assert_eq!(again(&mut listeners, "0.0.0.0:0"), Err(ListenError::BadPort));
        assert_eq!(again(&mut listeners, "0.0.0.0:81"), Ok(1));
        assert_eq!(again(&mut listeners, "0.0.0.0:82"), Err(ListenError::TooManyListeners));
        assert!(listeners.by_id(id).is_some());
        listeners.remove(id.index);
        assert!(listeners.by_id(id).is_none());
        assert_eq!(listeners.find(at("1.2.3.4:80").ip().into(), 80), None);
        assert_eq!(again(&mut listeners, "0.0.0.0:82"), Ok(0));
    }
}
