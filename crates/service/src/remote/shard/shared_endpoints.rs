//! Endpoints for datagrams that several sessions or tokens own: what a shard keeps of them.
//!
//! Read first: `ownership.rs` for who owns what; `share_endpoints.rs` for the operations.
//!
//! Datagrams of such an endpoint wait here, in private buffers, and go to the session that asks
//! first. So no session has a datagram that its program has not read, and the end of a session
//! loses none. An endpoint keeps its queue until it is closed, or one session alone owns it and
//! asks when none waits.
//!
//! One of the sessions that own an endpoint is its *user*: it has the entry in `owners.rs`, the
//! stack receives into its memory, and it is informed of errors. The session that has sent last
//! becomes the user.
//!
//! Invariants
//! - An endpoint with several owners has a queue.
//! - At most [`SHARED_DATAGRAMS_MAX`] datagrams wait for an endpoint, and their buffers count for
//!   the session that has shared it first, and for its user.
//! - A session is informed of a datagram once after each of its calls that ask for one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use megapipe_stack::{Arrival, Chunk, DatagramId, PoolId};

use super::ownership::SharedOwnership;
use crate::descriptors::KeptPort;
use crate::limits::SHARED_DATAGRAMS_MAX;
use crate::policy::QuotaCharge;

/// A datagram that waits for the owners of an endpoint.
#[derive(Debug)]
pub(super) struct StoredDatagram {
    pub(super) from: SocketAddr,
    pub(super) arrival: Arrival,
    /// Its bytes, in the shard's own memory; none of a datagram without bytes.
    pub(super) parts: Vec<Chunk>,
}

impl StoredDatagram {
    pub(super) fn len(&self) -> u32 {
        self.parts.iter().map(|part| part.len).sum()
    }
}

/// An endpoint that was shared.
#[derive(Debug)]
pub(super) struct SharedEndpointState {
    datagrams: VecDeque<StoredDatagram>,
    /// Sessions that are informed of the next datagram.
    asking: Vec<PoolId>,
    /// Its buffers count for this account.
    pub(super) account: PoolId,
    /// Sockets that reserve its port at the host.
    pub(super) kept: Option<Arc<KeptPort>>,
    /// It counts for the user of a token, since no session owns it.
    pub(super) charge: Option<QuotaCharge>,
}

impl SharedEndpointState {
    pub(super) fn new(account: PoolId, kept: Option<Arc<KeptPort>>) -> Self {
        let (datagrams, asking) = (VecDeque::new(), Vec::new());
        Self { datagrams, asking, account, kept, charge: None }
    }

    pub(super) fn is_full(&self) -> bool {
        self.datagrams.len() >= SHARED_DATAGRAMS_MAX
    }

    pub(super) fn push_last(&mut self, datagram: StoredDatagram) {
        self.datagrams.push_back(datagram);
    }

    pub(super) fn push_first(&mut self, datagram: StoredDatagram) {
        self.datagrams.push_front(datagram);
    }

    /// The datagram that waits in a place.
    pub(super) fn get(&self, place: usize) -> Option<&StoredDatagram> {
        self.datagrams.get(place)
    }

    pub(super) fn pop(&mut self) -> Option<StoredDatagram> {
        self.datagrams.pop_front()
    }

    /// 1 more than the bytes of the datagram in a place; 0: there is none.
    pub(super) fn waiting(&self, place: usize) -> u32 {
        self.get(place).map_or(0, |datagram| datagram.len() + 1)
    }

    /// A session is informed of the next datagram.
    pub(super) fn ask(&mut self, session: PoolId) {
        if !self.asking.contains(&session) {
            self.asking.push(session);
        }
    }

    /// A session is not informed any more.
    pub(super) fn forget(&mut self, session: PoolId) {
        self.asking.retain(|other| *other != session);
    }

    /// All buffers of datagrams that wait, which is none afterwards.
    pub(super) fn take_buffers(&mut self) -> Vec<Chunk> {
        self.datagrams.drain(..).flat_map(|datagram| datagram.parts).collect()
    }
}

/// The endpoints of a shard that were shared.
#[derive(Debug, Default)]
pub(super) struct SharedEndpoints {
    pub(super) owners: SharedOwnership<DatagramId, PoolId, u64>,
    states: HashMap<DatagramId, SharedEndpointState>,
    /// Endpoints whose sessions are to be informed of a datagram.
    arrived: HashSet<DatagramId>,
}

impl SharedEndpoints {
    /// Whether an endpoint was shared.
    #[inline]
    pub(super) fn has(&self, endpoint: DatagramId) -> bool {
        !self.states.is_empty() && self.states.contains_key(&endpoint)
    }

    pub(super) fn get(&self, endpoint: DatagramId) -> Option<&SharedEndpointState> {
        self.states.get(&endpoint)
    }

    pub(super) fn get_mut(&mut self, endpoint: DatagramId) -> Option<&mut SharedEndpointState> {
        self.states.get_mut(&endpoint)
    }

    pub(super) fn insert(&mut self, endpoint: DatagramId, state: SharedEndpointState) {
        self.states.insert(endpoint, state);
    }

    /// An endpoint is closed.
    pub(super) fn remove(&mut self, endpoint: DatagramId) -> Option<SharedEndpointState> {
        self.owners.forget(endpoint);
        self.arrived.remove(&endpoint);
        self.states.remove(&endpoint)
    }

    /// A datagram waits that sessions are to be informed of.
    pub(super) fn note_arrived(&mut self, endpoint: DatagramId) {
        self.arrived.insert(endpoint);
    }

    /// The sessions that are informed of a datagram now, and 1 more than the bytes of the first one
    /// that waits.
    pub(super) fn take_informed(&mut self) -> Vec<(DatagramId, Vec<PoolId>, u32)> {
        let arrived = std::mem::take(&mut self.arrived).into_iter();
        let informed = arrived.filter_map(|endpoint| {
            let state = self.states.get_mut(&endpoint)?;
            let waiting = state.waiting(0);
            // Another session may have taken it.
            (waiting > 0).then(|| (endpoint, std::mem::take(&mut state.asking), waiting))
        });
        informed.collect()
    }
}
