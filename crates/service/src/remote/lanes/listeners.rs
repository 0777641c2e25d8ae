//! Listeners on all lanes: one name for those of the shards, and the credit of each.
//!
//! A connection may come to any shard, so each has some of the credit of an accept: its share,
//! rounded up. A shard that has used its share gets another one of what is left. So up to a share
//! per other shard may come beyond what was asked for; the channel holds these connections for its
//! next accepts, as a backlog would.
//!
//! Invariants
//! - A listener has a listener on every lane, or none.
//! - The lanes are tried in order, and left in the reverse order: of two applications that want an
//!   address, the one that has it at the first shard gets it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use megapipe_link::Transport;
use megapipe_stack::{ListenError, ListenerId, OperationError};

use super::{AdoptedListener, LaneSet};
use crate::connection_manager::{AcceptorId, Offer};
use crate::error::{MoveRefusal, PortError};
use crate::sharing::Sharing;

/// What stands for a listener that is gone.
const GONE: ListenerId = ListenerId { index: u32::MAX, generation: 0 };

/// A listener on all lanes.
#[derive(Debug)]
struct LaneListener {
    generation: u32,
    /// The lanes' own; empty: there is none.
    lanes: Box<[ListenerId]>,
    acceptor: AcceptorId,
    /// Connections that the application would take.
    wanted: u32,
    /// By lane: connections that the shard may still offer.
    credit: Box<[u32]>,
}

/// The listeners of all lanes.
#[derive(Debug)]
pub(super) struct LaneListeners {
    entries: Vec<LaneListener>,
    /// By lane and the lane's own index: the listener here.
    by_lane: Box<[Vec<u32>]>,
    free: VecDeque<u32>,
}

impl LaneListeners {
    pub(super) fn new(lanes: usize) -> Self {
        let by_lane = (0..lanes).map(|_| Vec::new()).collect();
        Self { entries: Vec::new(), by_lane, free: VecDeque::new() }
    }

    fn add(&mut self, lanes: Vec<ListenerId>) -> ListenerId {
        let index = self.free.pop_front().unwrap_or_else(|| {
            self.entries.push(LaneListener::new(0, Vec::new()));
            (self.entries.len() - 1) as u32
        });
        for (by_index, listener) in self.by_lane.iter_mut().zip(&lanes) {
            let place = listener.index as usize;
            if by_index.len() <= place {
                by_index.resize(place + 1, GONE.index);
            }
            by_index[place] = index;
        }
        let entry = &mut self.entries[index as usize];
        let generation = entry.generation;
        *entry = LaneListener::new(generation, lanes);
        ListenerId { index, generation }
    }

    fn get(&mut self, listener: ListenerId) -> Option<&mut LaneListener> {
        let entry = self.entries.get_mut(listener.index as usize)?;
        (entry.generation == listener.generation && !entry.lanes.is_empty()).then_some(entry)
    }

    /// The lanes' own listeners; empty: there is no such listener.
    pub(super) fn lanes_of(&mut self, listener: ListenerId) -> Box<[ListenerId]> {
        self.get(listener).map_or_else(Box::default, |entry| entry.lanes.clone())
    }

    /// Forgets a listener. Returns those of the lanes.
    fn remove(&mut self, listener: ListenerId) -> Box<[ListenerId]> {
        let Some(entry) = self.get(listener) else { return Box::default() };
        entry.generation = entry.generation.wrapping_add(1);
        let lanes = std::mem::take(&mut entry.lanes);
        self.free.push_back(listener.index);
        lanes
    }

    /// The name of a lane's listener; that of none, if it is gone.
    fn name(&self, lane: usize, listener: ListenerId) -> ListenerId {
        let index = self.by_lane[lane].get(listener.index as usize).copied();
        let entry = index.and_then(|index| self.entries.get(index as usize).map(|it| (index, it)));
        match entry {
            Some((index, entry)) if entry.lanes.get(lane) == Some(&listener) => {
                ListenerId { index, generation: entry.generation }
            }
            _ => GONE,
        }
    }
}

impl LaneListener {
    fn new(generation: u32, lanes: Vec<ListenerId>) -> Self {
        let credit = vec![0; lanes.len()].into();
        Self { generation, lanes: lanes.into(), acceptor: AcceptorId(0), wanted: 0, credit }
    }

    /// A lane's share of what is wanted.
    fn share(&self) -> u32 {
        self.wanted.div_ceil(self.lanes.len() as u32)
    }

    /// How much a lane lacks of its share.
    fn missing(&self, lane: usize) -> u32 {
        self.share().saturating_sub(self.credit[lane])
    }
}

impl LaneSet {
    /// Listens on all lanes, without credit to accept. Where one refuses, none listens.
    ///
    /// # Errors
    /// As [`RemoteClient::listen`](crate::remote::RemoteClient::listen).
    pub fn listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        let reservation = self.reserve_port(Transport::Tcp, local)?;
        let listening = self.listen_lanes((local, reservation), backlog, sharing);
        self.forget_port(reservation);
        listening
    }

    /// As [`LaneSet::listen`], at sockets of the program that listen there and were passed with a
    /// cookie ([`LaneSet::pass_listener`]).
    ///
    /// # Errors
    /// As there.
    pub fn listen_passed(
        &mut self,
        at: (SocketAddr, u64),
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        self.listen_lanes(at, backlog, sharing)
    }

    fn listen_lanes(
        &mut self,
        at: (SocketAddr, u64),
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        if self.others.is_empty() {
            return self.first.listen_reserved(at, backlog, sharing);
        }
        let mut listeners = Vec::with_capacity(self.lanes());
        for lane in 0..self.lanes() {
            match self.lane(lane).listen_reserved(at, backlog, sharing.clone()) {
                Ok(listener) => listeners.push(listener),
                Err(error) => {
                    self.unlisten_lanes(&listeners);
                    return Err(error);
                }
            }
        }
        Ok(self.listeners.add(listeners))
    }

    /// Calls `hold` for the listener of each lane.
    ///
    /// # Errors
    /// Of `hold`; [`MoveRefusal`] if there is no such listener.
    pub(super) fn hold_listener_lanes(
        &mut self,
        listener: ListenerId,
        token: u64,
    ) -> Result<(), MoveRefusal> {
        if self.others.is_empty() {
            return self.first.hold_listener(token, listener);
        }
        let lanes = self.listeners.lanes_of(listener);
        if lanes.is_empty() {
            return Err(MoveRefusal::gone());
        }
        (0..).zip(&lanes).try_for_each(|(lane, its)| self.lane(lane).hold_listener(token, *its))
    }

    /// Adopts the listener of a token on all lanes. Where one refuses, none has it.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(super) fn adopt_listener_lanes(
        &mut self,
        token: u64,
    ) -> Result<AdoptedListener, MoveRefusal> {
        let (first, is_new) = self.first.adopt_listener(token)?;
        let (listener, options) = first;
        if self.others.is_empty() {
            return Ok(AdoptedListener { listener, options, is_known: !is_new });
        }
        if !is_new {
            let listener = self.listeners.name(0, listener);
            return Ok(AdoptedListener { listener, options, is_known: true });
        }
        let mut listeners = vec![listener];
        for lane in 1..self.lanes() {
            match self.lane(lane).adopt_listener(token) {
                Ok(((its, of_lane), true)) if of_lane.address == options.address => {
                    listeners.push(its);
                }
                // A token of a hostile maker owns listeners of several addresses.
                Ok(((its, _), is_new)) => {
                    if is_new {
                        self.lane(lane).unlisten(its);
                    }
                    self.unlisten_lanes(&listeners);
                    return Err(MoveRefusal::mixed_token());
                }
                Err(refusal) => {
                    self.unlisten_lanes(&listeners);
                    return Err(refusal);
                }
            }
        }
        let listener = self.listeners.add(listeners);
        Ok(AdoptedListener { listener, options, is_known: false })
    }

    fn unlisten_lanes(&mut self, listeners: &[ListenerId]) {
        for (lane, listener) in listeners.iter().enumerate().rev() {
            self.lane(lane).unlisten(*listener);
        }
    }

    /// Stops listening. The address is free when this returns.
    pub fn unlisten(&mut self, listener: ListenerId) {
        if self.others.is_empty() {
            return self.first.unlisten(listener);
        }
        let listeners = self.listeners.remove(listener);
        self.unlisten_lanes(&listeners);
    }

    /// As [`RemoteClient::share`](crate::remote::RemoteClient::share).
    ///
    /// # Errors
    /// As there.
    pub fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        if self.others.is_empty() {
            return self.first.share(listener, sharing);
        }
        let lanes = self.listeners.lanes_of(listener);
        let shared = (0..).zip(&lanes);
        shared.into_iter().try_for_each(|(lane, it)| self.lane(lane).share(*it, sharing.clone()))
    }

    /// As [`RemoteClient::set_fast_open`](crate::remote::RemoteClient::set_fast_open).
    ///
    /// # Errors
    /// As there.
    pub fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        if self.others.is_empty() {
            return self.first.set_fast_open(listener, pending_max);
        }
        let lanes = self.listeners.lanes_of(listener);
        if lanes.is_empty() {
            return Err(OperationError::Unknown);
        }
        (0..).zip(&lanes).try_for_each(|(lane, it)| self.lane(lane).set_fast_open(*it, pending_max))
    }

    /// Whether any shard listens at an address.
    pub fn is_listening(&mut self, local: SocketAddr) -> bool {
        self.first.is_listening(local)
    }

    /// The acceptor takes so many more connections of a listener, from any lane. A listener has one
    /// acceptor.
    pub fn accept(&mut self, listener: ListenerId, acceptor: AcceptorId, credit: u32) {
        if self.others.is_empty() {
            return self.first.accept(listener, acceptor, credit);
        }
        if let Some(entry) = self.listeners.get(listener) {
            entry.acceptor = acceptor;
            entry.wanted = entry.wanted.saturating_add(credit);
            for lane in 0..self.lanes() {
                self.give_credit(lane, listener);
            }
        }
    }

    /// As [`RemoteClient::set_first_read`](crate::remote::RemoteClient::set_first_read).
    pub fn set_first_read(&mut self, acceptor: AcceptorId, receives: bool) {
        self.all_mut().for_each(|lane| lane.set_first_read(acceptor, receives));
    }

    /// Gives a lane what it lacks of its share.
    fn give_credit(&mut self, lane: usize, listener: ListenerId) {
        let Some(entry) = self.listeners.get(listener) else { return };
        let more = entry.missing(lane);
        if more > 0 {
            entry.credit[lane] += more;
            let (own, acceptor) = (entry.lanes[lane], entry.acceptor);
            self.lane(lane).accept(own, acceptor, more);
        }
    }

    /// A connection came to a lane's listener. Returns the listener's name here.
    pub(super) fn on_incoming(
        &mut self,
        lane: usize,
        listener: ListenerId,
        offer: Option<Offer>,
    ) -> ListenerId {
        let listener = self.listeners.name(lane, listener);
        if let Some(entry) = self.listeners.get(listener)
            && offer.is_some_and(|offer| offer.acceptor == entry.acceptor)
        {
            entry.wanted = entry.wanted.saturating_sub(1);
            entry.credit[lane] = entry.credit[lane].saturating_sub(1);
            // In batches, as the channel renews it.
            if entry.credit[lane] <= entry.share() / 2 {
                self.give_credit(lane, listener);
            }
        }
        listener
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(index: u32) -> ListenerId {
        ListenerId { index, generation: 3 }
    }

    #[test]
    fn listener_has_one_name_for_those_of_all_lanes() {
        let mut listeners = LaneListeners::new(2);
        let one = listeners.add(vec![id(0), id(4)]);
        let other = listeners.add(vec![id(1), id(0)]);
        assert_eq!((listeners.name(0, id(0)), listeners.name(1, id(4))), (one, one));
        assert_eq!((listeners.name(0, id(1)), listeners.name(1, id(0))), (other, other));
        for unknown in [id(4), id(2), ListenerId { generation: 4, ..id(0) }] {
            assert_eq!(listeners.name(0, unknown), GONE, "{unknown:?}");
        }
        assert_eq!(*listeners.remove(one), [id(0), id(4)]);
        assert_eq!(listeners.name(0, id(0)), GONE);
        assert!(listeners.remove(one).is_empty(), "it is gone");
        let again = listeners.add(vec![id(0), id(4)]);
        assert_eq!((again.index, again.generation), (one.index, one.generation + 1));
        assert!(listeners.get(one).is_none() && listeners.get(GONE).is_none());
    }

    #[test]
    fn credit_is_shared_by_the_lanes() {
        let mut listeners = LaneListeners::new(3);
        let listener = listeners.add(vec![id(0), id(0), id(0)]);
        let entry = listeners.get(listener).expect("it was added");
        entry.wanted = 10;
        assert_eq!((entry.share(), entry.missing(0)), (4, 4));
        entry.credit[0] = 3;
        assert_eq!(entry.missing(0), 1);
        entry.wanted = 1;
        assert_eq!((entry.share(), entry.missing(0), entry.missing(1)), (1, 0, 1));
        entry.wanted = 0;
        assert_eq!(entry.missing(1), 0);
    }
}
