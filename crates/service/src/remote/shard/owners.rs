//! ObjectOwners: which session has a connection, listener or endpoint of the stack.
//!
//! Read first: the decision on many sessions of a shard in `docs/decisions`.
//!
//! The table is the shard's own memory. An id that a session writes is looked up here before
//! anything is done with it, so an id of another session's object reads as a stale one.
//!
//! Invariants
//! - A connection's entry is in exactly one list of its session: that of its connections, or that
//!   of those which the application has closed.
//! - An entry names one generation of its index. The stack may have reused the index: then the
//!   entry is replaced when the new connection gets its owner.
//! - The account of a session's user counts each entry of its connections while it is in a list.
//! - Nothing allocates after [`ObjectOwners::new`] but for a new session or listener.

mod listeners;

use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::sync::Arc;

use megapipe_stack::{ConnId, DatagramId, PoolId};

use super::destination_ports::DestinationPorts;
use crate::policy::{CONNECTING, CONNECTIONS, QuotaPair, QuotaReached, SessionRights};
use listeners::ListenerOwners;

/// No entry: the end of a list.
const NONE: u32 = u32::MAX;

/// The hand-over of a shared listener (`hand_overs.rs`), by its number.
pub(super) type HandOverNumber = NonZeroU8;

/// What holds of a connection beyond its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnStage {
    /// `connect` began it, and it is not established.
    Connecting,
    /// It is the application's.
    Open,
    /// The application has closed it; the stack may still have it.
    Closed,
}

#[derive(Debug, Clone, Copy)]
struct ConnOwner {
    /// 0: none.
    session: PoolId,
    stage: ConnStage,
    /// The hand-over that counts it, until the application lets go of it. Of an entry without
    /// session: that offers it.
    hand_over: Option<HandOverNumber>,
    generation: u32,
    previous: u32,
    next: u32,
}

const _: () = assert!(size_of::<ConnOwner>() <= 16, "an idle connection has 512 bytes in all");

impl ConnOwner {
    const NO_OWNER: Self = Self {
        session: PoolId(0),
        stage: ConnStage::Closed,
        hand_over: None,
        generation: 0,
        previous: NONE,
        next: NONE,
    };
}

#[derive(Debug, Clone, Copy)]
struct ConnList {
    first: u32,
    last: u32,
}

impl Default for ConnList {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

/// The connections of one session.
#[derive(Debug, Clone, Copy, Default)]
struct OfSession {
    open: ConnList,
    closed: ConnList,
    counts: ConnCounts,
}

/// How many connections a session has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ConnCounts {
    /// That the application uses.
    pub(super) open: u32,
    /// Of those, that are not established.
    pub(super) connecting: u32,
    /// That the application has closed, and that were not seen to be over.
    pub(super) closed: u32,
}

/// Which session has what.
#[derive(Debug, Default)]
pub(super) struct ObjectOwners {
    conns: Vec<ConnOwner>,
    /// One bit for each entry of `conns`: connections that are reset when their session ends.
    resets: Vec<u64>,
    sessions: Vec<OfSession>,
    /// Where sessions' connections are counted for their channels and users.
    rights: Vec<Option<Arc<SessionRights>>>,
    /// Ports of the connections that sessions with rights have begun.
    destinations: DestinationPorts,
    /// The shard's number, as its sessions have it.
    shard: u16,
    listeners: Vec<ListenerOwners>,
    endpoints: Vec<(PoolId, u32)>,
}

impl ObjectOwners {
    /// No owners, and room for those of so many connections.
    pub(super) fn new(connections: u32) -> Self {
        let resets = Vec::with_capacity(bit_of(connections).0 + 1);
        Self { conns: Vec::with_capacity(connections as usize), resets, ..Self::default() }
    }

    /// Makes room for `most` sessions in all. Returns whether there is memory for it.
    pub(super) fn reserve_sessions(&mut self, most: usize) -> bool {
        let Self { sessions, rights, .. } = self;
        sessions.try_reserve(most - sessions.len().min(most)).is_ok()
            && rights.try_reserve(most - rights.len().min(most)).is_ok()
    }

    /// A session begins, and has no connections yet.
    pub(super) fn add_session(
        &mut self,
        session: PoolId,
        (rights, shard): (Option<Arc<SessionRights>>, u16),
    ) {
        self.shard = shard;
        let index = usize::from(session.0);
        if self.rights.len() <= index {
            self.rights.resize(index + 1, None);
        }
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, OfSession::default());
        }
        debug_assert!(self.counts(session) == ConnCounts::default(), "its number is free");
        self.rights[index] = rights;
    }

    /// Nothing of a session is left.
    pub(super) fn remove_session(&mut self, session: PoolId) {
        debug_assert!(self.counts(session) == ConnCounts::default(), "it has no connections");
        self.rights[usize::from(session.0)] = None;
    }

    /// A session has a connection more or less, of which some are not established.
    fn count(&self, session: PoolId, kinds: QuotaPair, is_more: bool) {
        if let Some(Some(rights)) = self.rights.get(usize::from(session.0)) {
            rights.change_on(kinds, 0, is_more);
        }
    }

    /// The owner of a connection.
    #[inline]
    pub(super) fn of_conn(&self, conn: ConnId) -> Option<PoolId> {
        let owner = self.conns.get(conn.index as usize)?;
        (owner.generation == conn.generation && owner.session.0 != 0).then_some(owner.session)
    }

    /// Whether a session has a connection.
    #[inline]
    pub(super) fn has_conn(&self, session: PoolId, conn: ConnId) -> bool {
        let owner = self.conns.get(conn.index as usize);
        owner.is_some_and(|it| it.generation == conn.generation && it.session == session)
    }

    /// A session has a connection from now on.
    pub(super) fn add_conn(&mut self, session: PoolId, conn: ConnId, is_connecting: bool) {
        let index = conn.index as usize;
        if self.conns.len() <= index {
            self.conns.resize(index + 1, ConnOwner::NO_OWNER);
        }
        self.drop_entry(conn.index);
        let stage = if is_connecting { ConnStage::Connecting } else { ConnStage::Open };
        let (generation, previous, next) = (conn.generation, NONE, NONE);
        let hand_over = None;
        self.conns[index] = ConnOwner { session, stage, hand_over, generation, previous, next };
        self.append(conn.index);
        self.put_reset(conn.index, false);
    }

    /// Whether a session, which has rights, may have one more port towards a destination.
    ///
    /// # Errors
    /// [`QuotaReached`].
    pub(super) fn check_destination(
        &self,
        session: PoolId,
        remote: SocketAddr,
        rights: &Arc<SessionRights>,
    ) -> Result<(), QuotaReached> {
        rights.check_destination(self.destinations.held((session, user_of(rights)), remote))
    }

    /// A session has begun a connection to a destination.
    pub(super) fn count_destination(&mut self, session: PoolId, conn: ConnId, remote: SocketAddr) {
        if let Some(Some(rights)) = self.rights.get(usize::from(session.0)) {
            let owner = (session, user_of(rights));
            self.destinations.add(conn, owner, remote);
            rights.set_destination_ports(self.shard, self.destinations.most(owner));
        }
    }

    /// A connection of a session is reset, or is not, when the session ends.
    pub(super) fn set_reset_on_close(&mut self, session: PoolId, conn: ConnId, on: bool) {
        if self.has_conn(session, conn) {
            self.put_reset(conn.index, on);
        }
    }

    fn put_reset(&mut self, index: u32, on: bool) {
        let (word, bit) = bit_of(index);
        if self.resets.len() <= word {
            if !on {
                return;
            }
            self.resets.resize(word + 1, 0);
        }
        let bits = &mut self.resets[word];
        *bits = if on { *bits | bit } else { *bits & !bit };
    }

    /// Whether a connection that a session has is reset when the session ends.
    pub(super) fn resets_on_close(&self, conn: ConnId) -> bool {
        let (word, bit) = bit_of(conn.index);
        self.resets.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// A session has claimed a connection.
    pub(super) fn add_claimed(&mut self, session: PoolId, conn: ConnId, number: HandOverNumber) {
        self.add_conn(session, conn, false);
        self.conns[conn.index as usize].hand_over = Some(number);
    }

    /// A hand-over offers a connection, which no session has yet.
    pub(super) fn add_offered(&mut self, conn: ConnId, number: HandOverNumber) {
        let index = conn.index as usize;
        if self.conns.len() <= index {
            self.conns.resize(index + 1, ConnOwner::NO_OWNER);
        }
        self.drop_entry(conn.index);
        let (hand_over, generation) = (Some(number), conn.generation);
        self.conns[index] = ConnOwner { hand_over, generation, ..ConnOwner::NO_OWNER };
    }

    /// The hand-over that offers a connection, or that counts it.
    pub(super) fn hand_over_of(&self, conn: ConnId) -> Option<HandOverNumber> {
        let owner = self.conns.get(conn.index as usize)?;
        owner.hand_over.filter(|_| owner.generation == conn.generation)
    }

    /// As [`ObjectOwners::hand_over_of`], of a connection that no session has. It is offered no
    /// more.
    pub(super) fn take_offered(&mut self, conn: ConnId) -> Option<HandOverNumber> {
        let owner = self.conns.get_mut(conn.index as usize)?;
        let is_offered = owner.generation == conn.generation && owner.session.0 == 0;
        owner.hand_over.take_if(|_| is_offered)
    }

    /// Whether a session has a connection that its application has not closed.
    pub(super) fn has_open_conn(&self, session: PoolId, conn: ConnId) -> bool {
        self.has_conn(session, conn) && self.conns[conn.index as usize].stage != ConnStage::Closed
    }

    /// Whether `connect` began a connection that is not established.
    pub(super) fn is_connecting(&self, conn: ConnId) -> bool {
        let owner = self.conns.get(conn.index as usize);
        owner
            .is_some_and(|it| it.generation == conn.generation && it.stage == ConnStage::Connecting)
    }

    /// The connections of a session that its application has not closed.
    pub(super) fn open_conns(&self, session: PoolId) -> Vec<ConnId> {
        let (mut all, mut next) = (Vec::new(), self.first_conn(session, false));
        while let Some(conn) = next {
            let owner = self.conns[conn.index as usize];
            all.push(conn);
            let following = self.conns.get(owner.next as usize);
            next = following.map(|it| ConnId { index: owner.next, generation: it.generation });
        }
        all
    }

    /// The shard's number.
    pub(super) const fn shard(&self) -> u16 {
        self.shard
    }

    /// Connections that have an entry.
    pub(super) fn conn_count(&self) -> u32 {
        self.sessions.iter().map(|of| of.counts.open + of.counts.closed).sum()
    }

    /// A connection that `connect` began is established.
    pub(super) fn on_connected(&mut self, conn: ConnId) {
        let Some(owner) = self.conns.get_mut(conn.index as usize) else { return };
        if owner.generation == conn.generation && owner.stage == ConnStage::Connecting {
            owner.stage = ConnStage::Open;
            let session = owner.session;
            self.of_session(session).counts.connecting -= 1;
            self.count(session, CONNECTING, false);
        }
    }

    /// The application has closed a connection, which may go on in the stack. Returns the hand-over
    /// that has counted it until now.
    #[must_use = "the hand-over learns that the connection is finished"]
    pub(super) fn close_conn(&mut self, conn: ConnId) -> Option<HandOverNumber> {
        let session = self.of_conn(conn)?;
        // It stays one of the session's: nothing is counted anew.
        self.unlist(conn.index);
        let owner = &mut self.conns[conn.index as usize];
        let stage = std::mem::replace(&mut owner.stage, ConnStage::Closed);
        let hand_over = owner.hand_over.take();
        self.list(conn.index);
        if stage == ConnStage::Connecting {
            self.count(session, CONNECTING, false);
        }
        hand_over
    }

    /// A connection is over. Returns as [`ObjectOwners::close_conn`].
    #[must_use = "the hand-over learns that the connection is finished"]
    pub(super) fn remove_conn(&mut self, conn: ConnId) -> Option<HandOverNumber> {
        self.of_conn(conn)?;
        let hand_over = self.conns[conn.index as usize].hand_over;
        self.drop_entry(conn.index);
        hand_over
    }

    /// The connection of a session that comes first: of those that its application has, or of those
    /// that it has closed.
    pub(super) fn first_conn(&self, session: PoolId, is_closed: bool) -> Option<ConnId> {
        let of = self.sessions.get(usize::from(session.0))?;
        let index = if is_closed { of.closed.first } else { of.open.first };
        let owner = self.conns.get(index as usize)?;
        Some(ConnId { index, generation: owner.generation })
    }

    /// Calls `each` with every connection that a session's application has closed.
    pub(super) fn each_closed(&self, session: PoolId, mut each: impl FnMut(ConnId)) {
        let mut next = self.first_conn(session, true);
        while let Some(conn) = next {
            each(conn);
            let index = self.conns[conn.index as usize].next;
            let owner = self.conns.get(index as usize);
            next = owner.map(|owner| ConnId { index, generation: owner.generation });
        }
    }

    /// How many connections a session has.
    pub(super) fn counts(&self, session: PoolId) -> ConnCounts {
        self.sessions.get(usize::from(session.0)).map_or_else(ConnCounts::default, |of| of.counts)
    }

    fn of_session(&mut self, session: PoolId) -> &mut OfSession {
        let index = usize::from(session.0);
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, OfSession::default());
        }
        &mut self.sessions[index]
    }

    fn drop_entry(&mut self, index: u32) {
        if self.conns[index as usize].session.0 != 0 {
            self.unlink(index);
            self.conns[index as usize] = ConnOwner::NO_OWNER;
        }
    }

    /// The session of an entry has one connection more.
    fn append(&mut self, index: u32) {
        self.list(index);
        self.count_entry(index, true);
    }

    /// The session of an entry has one connection less.
    fn unlink(&mut self, index: u32) {
        self.unlist(index);
        self.count_entry(index, false);
        let ConnOwner { session, generation, .. } = self.conns[index as usize];
        if let Some(Some(rights)) = self.rights.get(usize::from(session.0))
            && let Some(owner) = self.destinations.remove(ConnId { index, generation })
        {
            rights.set_destination_ports(self.shard, self.destinations.most(owner));
        }
    }

    /// Counts a connection for its session's channel and user.
    fn count_entry(&self, index: u32, is_more: bool) {
        let ConnOwner { session, stage, .. } = self.conns[index as usize];
        self.count(session, CONNECTIONS, is_more);
        if stage == ConnStage::Connecting {
            self.count(session, CONNECTING, is_more);
        }
    }

    /// Puts an entry at the end of the list that it belongs to.
    fn list(&mut self, index: u32) {
        let ConnOwner { session, stage, .. } = self.conns[index as usize];
        let of = self.of_session(session);
        of.counts.change(stage, 1);
        let list = of.list_of(stage);
        let last = std::mem::replace(&mut list.last, index);
        if last == NONE {
            list.first = index;
        } else {
            self.conns[last as usize].next = index;
        }
        let owner = &mut self.conns[index as usize];
        (owner.previous, owner.next) = (last, NONE);
    }

    /// Takes an entry out of its list.
    fn unlist(&mut self, index: u32) {
        let ConnOwner { session, stage, previous, next, .. } = self.conns[index as usize];
        let of = self.of_session(session);
        of.counts.change(stage, 1_u32.wrapping_neg());
        let list = of.list_of(stage);
        if previous == NONE {
            list.first = next;
        }
        if next == NONE {
            list.last = previous;
        }
        if previous != NONE {
            self.conns[previous as usize].next = next;
        }
        if next != NONE {
            self.conns[next as usize].previous = previous;
        }
    }
}

/// A user's name in the counts: the place of its account, which its sessions' rights keep.
fn user_of(rights: &SessionRights) -> usize {
    Arc::as_ptr(rights.account()).addr()
}

/// The word of an entry's bit, and the bit in it.
const fn bit_of(index: u32) -> (usize, u64) {
    ((index / u64::BITS) as usize, 1 << (index % u64::BITS))
}

impl OfSession {
    const fn list_of(&mut self, stage: ConnStage) -> &mut ConnList {
        match stage {
            ConnStage::Closed => &mut self.closed,
            ConnStage::Connecting | ConnStage::Open => &mut self.open,
        }
    }
}

impl ConnCounts {
    /// Adds `change`, modulo 2^32, to the connections of a stage.
    const fn change(&mut self, stage: ConnStage, change: u32) {
        let count = match stage {
            ConnStage::Closed => &mut self.closed,
            ConnStage::Connecting | ConnStage::Open => &mut self.open,
        };
        *count = count.wrapping_add(change);
        if let ConnStage::Connecting = stage {
            self.connecting = self.connecting.wrapping_add(change);
        }
    }
}

/// Endpoints.
impl ObjectOwners {
    /// Makes room for an endpoint. Returns whether there is memory for it.
    pub(super) fn reserve_endpoint(&mut self, endpoint: DatagramId) -> bool {
        let missing = (endpoint.index as usize + 1).saturating_sub(self.endpoints.len());
        self.endpoints.try_reserve(missing).is_ok()
    }

    /// The session of an endpoint.
    pub(super) fn of_endpoint(&self, endpoint: DatagramId) -> Option<PoolId> {
        let (session, generation) = *self.endpoints.get(endpoint.index as usize)?;
        (generation == endpoint.generation && session.0 != 0).then_some(session)
    }

    /// A session has an endpoint from now on.
    pub(super) fn add_endpoint(&mut self, session: PoolId, endpoint: DatagramId) {
        let index = endpoint.index as usize;
        if self.endpoints.len() <= index {
            self.endpoints.resize(index + 1, (PoolId(0), 0));
        }
        self.endpoints[index] = (session, endpoint.generation);
    }

    /// An endpoint is closed.
    pub(super) fn remove_endpoint(&mut self, endpoint: DatagramId) {
        if self.of_endpoint(endpoint).is_some() {
            self.endpoints[endpoint.index as usize] = (PoolId(0), 0);
        }
    }

    /// The endpoints of a session.
    pub(super) fn endpoints(&self, session: PoolId) -> impl Iterator<Item = DatagramId> {
        let with_index = self.endpoints.iter().zip(0..);
        let its = with_index.filter(move |((owner, _), _)| *owner == session);
        its.map(|((_, generation), index)| DatagramId { index, generation: *generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PoolId = PoolId(1);
    const TWO: PoolId = PoolId(2);

    const fn conn(index: u32, generation: u32) -> ConnId {
        ConnId { index, generation }
    }

    fn all(owners: &ObjectOwners, session: PoolId, is_closed: bool) -> Vec<u32> {
        let mut indices = Vec::new();
        let mut next = owners.first_conn(session, is_closed).map_or(NONE, |conn| conn.index);
        while next != NONE {
            indices.push(next);
            next = owners.conns[next as usize].next;
        }
        indices
    }

    #[test]
    fn connection_belongs_to_one_session_and_generation() {
        let mut owners = ObjectOwners::new(8);
        assert_eq!(owners.of_conn(conn(3, 0)), None);
        owners.add_conn(ONE, conn(3, 5), false);
        assert!(owners.has_conn(ONE, conn(3, 5)) && !owners.has_conn(TWO, conn(3, 5)));
        assert_eq!(owners.of_conn(conn(3, 4)), None);
        assert_eq!(owners.of_conn(conn(2, 0)), None, "an entry that no connection had");
        assert!(!owners.has_conn(PoolId(0), conn(2, 1)));
        // The index is reused by another session's connection before its end was seen.
        owners.add_conn(TWO, conn(3, 6), false);
        assert_eq!(owners.of_conn(conn(3, 5)), None);
        assert_eq!((owners.counts(ONE).open, owners.counts(TWO).open), (0, 1));
        assert_eq!(owners.remove_conn(conn(3, 5)), None);
        assert!(owners.has_conn(TWO, conn(3, 6)), "a stale end changes nothing");
        assert_eq!(owners.remove_conn(conn(3, 6)), None);
        assert_eq!(owners.counts(TWO), ConnCounts::default());
    }

    #[test]
    fn reset_on_close_is_of_one_generation_and_session() {
        let mut owners = ObjectOwners::new(8);
        owners.add_conn(ONE, conn(70, 1), true);
        assert!(!owners.resets_on_close(conn(70, 1)));
        owners.set_reset_on_close(TWO, conn(70, 1), true);
        owners.set_reset_on_close(ONE, conn(70, 0), true);
        assert!(!owners.resets_on_close(conn(70, 1)), "a foreign or stale name changes nothing");
        owners.set_reset_on_close(ONE, conn(70, 1), true);
        assert!(owners.resets_on_close(conn(70, 1)) && !owners.resets_on_close(conn(6, 1)));
        owners.set_reset_on_close(ONE, conn(70, 1), false);
        assert!(!owners.resets_on_close(conn(70, 1)));
        owners.set_reset_on_close(ONE, conn(70, 1), true);
        // The index is reused.
        owners.add_conn(TWO, conn(70, 2), false);
        assert!(!owners.resets_on_close(conn(70, 2)));
    }

    #[test]
    fn lists_follow_each_change() {
        let mut owners = ObjectOwners::new(8);
        for index in 0..5 {
            owners.add_conn(ONE, conn(index, 1), index == 2);
        }
        assert_eq!(all(&owners, ONE, false), [0, 1, 2, 3, 4]);
        assert_eq!(owners.counts(ONE), ConnCounts { open: 5, connecting: 1, closed: 0 });
        owners.on_connected(conn(2, 1));
        owners.on_connected(conn(2, 1));
        assert_eq!(owners.close_conn(conn(0, 1)), None);
        assert_eq!(owners.close_conn(conn(4, 1)), None);
        assert_eq!(owners.remove_conn(conn(2, 1)), None);
        assert_eq!(all(&owners, ONE, false), [1, 3]);
        assert_eq!(all(&owners, ONE, true), [0, 4]);
        // Again: it becomes the last.
        assert_eq!(owners.close_conn(conn(0, 1)), None);
        assert_eq!(all(&owners, ONE, true), [4, 0]);
        assert_eq!(owners.counts(ONE), ConnCounts { open: 2, connecting: 0, closed: 2 });
        for index in [1, 3, 0, 4] {
            assert_eq!(owners.remove_conn(conn(index, 1)), None);
        }
        for is_closed in [false, true] {
            assert_eq!(owners.first_conn(ONE, is_closed), None);
        }
        assert_eq!(owners.counts(ONE), ConnCounts::default());
    }

    #[test]
    fn endpoint_has_one_session_and_generation() {
        let mut owners = ObjectOwners::new(8);
        let endpoint = DatagramId { index: 2, generation: 7 };
        owners.add_endpoint(TWO, endpoint);
        assert_eq!(owners.of_endpoint(endpoint), Some(TWO));
        assert_eq!(owners.of_endpoint(DatagramId { generation: 6, ..endpoint }), None);
        assert!(owners.endpoints(TWO).eq([endpoint]));
        owners.remove_endpoint(endpoint);
        assert_eq!(owners.of_endpoint(endpoint), None);
    }
}
