//! Connections that several sessions or tokens own: what a shard keeps of them beside their owner.
//!
//! Read first: `ownership.rs` for who owns what; `share.rs` for the operations.
//!
//! One of the sessions that own a connection *uses* it: it has the connection's entry in
//! `owners.rs`, and its pool. An operation of another owner makes that one the user. A session that
//! was given received bytes may give them back; they wait in `unread` with those that the stack had
//! when the user changed, and go to the session that asks next.
//!
//! Invariants
//! - `unread` comes before what the stack has.
//! - A connection that no session owns is in no list of `owners.rs`, and counts for the user of a
//!   token that owns it.
//! - At most [`HOLDS_MAX`] connections, endpoints and listeners are owned by the tokens of a user,
//!   each counted once for each token.
//! - A session gives back at most what it was given and has not given back ([`DeliveredBytes`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use megapipe_stack::{Chunk, CloseReason, ConnId, PoolId};

use super::delivered_bytes::DeliveredBytes;
use super::held_listeners::HeldListeners;
use super::ownership::SharedOwnership;
use super::shared_endpoints::SharedEndpoints;
use crate::descriptors::ShareToken;
use crate::limits::HOLDS_MAX;
use crate::policy::{QuotaCharge, SessionRights};

/// How far a shared connection is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SharedHandshake {
    /// It is established.
    #[default]
    Complete,
    /// It is being opened.
    Pending,
    /// The attempt has failed.
    Failed(CloseReason),
}

/// What a connection has beside its owner.
#[derive(Debug, Default)]
pub(super) struct SharedConnState {
    /// Received bytes for the session that asks next.
    pub(super) unread: VecDeque<Chunk>,
    /// Sessions that have asked for bytes before another one became the user.
    pub(super) waiting: VecDeque<PoolId>,
    /// It counts for the user of a token, since no session owns it.
    pub(super) charge: Option<QuotaCharge>,
    /// What its sessions may give back. `None`: it is not shared.
    delivered: Option<DeliveredBytes>,
    pub(super) handshake: SharedHandshake,
}

impl SharedConnState {
    fn is_needed(&self) -> bool {
        let waits = !self.unread.is_empty() || !self.waiting.is_empty();
        let is_open = self.handshake == SharedHandshake::Complete;
        waits || self.charge.is_some() || self.delivered.is_some() || !is_open
    }
}

/// A token that the shard knows.
#[derive(Debug)]
pub(super) struct KnownToken {
    pub(super) token: Arc<ShareToken>,
    /// Private buffers of connections that it owns count for this account.
    pub(super) account: PoolId,
}

/// Sessions that have asked for bytes which wait here, each connection once.
#[derive(Debug, Default)]
pub(super) struct AskedReads {
    queues: HashMap<PoolId, VecDeque<ConnId>>,
    known: HashSet<(PoolId, ConnId)>,
}

impl AskedReads {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// A session asks for bytes of a connection.
    pub(super) fn push(&mut self, session: PoolId, conn: ConnId) {
        if self.known.insert((session, conn)) {
            self.queues.entry(session).or_default().push_back(conn);
        }
    }

    /// The sessions, each with the number of connections that it asks for.
    pub(super) fn sessions(&self) -> Vec<(PoolId, usize)> {
        self.queues.iter().map(|(session, conns)| (*session, conns.len())).collect()
    }

    /// Takes the connection that a session has asked for first.
    pub(super) fn pop(&mut self, session: PoolId) -> Option<ConnId> {
        let queue = self.queues.get_mut(&session)?;
        let conn = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&session);
        }
        self.known.remove(&(session, conn?));
        conn
    }

    /// Whether a session has asked for bytes of a connection.
    pub(super) fn has(&self, session: PoolId, conn: ConnId) -> bool {
        self.known.contains(&(session, conn))
    }

    /// Puts a connection back that was taken.
    pub(super) fn put_back(&mut self, session: PoolId, conn: ConnId) {
        if self.known.insert((session, conn)) {
            self.queues.entry(session).or_default().push_front(conn);
        }
    }

    /// A session asks for bytes of some connections no more.
    pub(super) fn withdraw(&mut self, session: PoolId, conns: &HashSet<ConnId>) {
        let Some(queue) = self.queues.get_mut(&session) else { return };
        queue.retain(|conn| !conns.contains(conn));
        if queue.is_empty() {
            self.queues.remove(&session);
        }
        self.known.retain(|(of, conn)| *of != session || !conns.contains(conn));
    }

    /// A session has ended.
    pub(super) fn forget(&mut self, session: PoolId) {
        for conn in self.queues.remove(&session).into_iter().flatten() {
            self.known.remove(&(session, conn));
        }
    }
}

/// The shared connections of a shard.
#[derive(Debug, Default)]
pub(super) struct SharedConns {
    pub(super) owners: SharedOwnership<ConnId, PoolId, u64>,
    /// The shared endpoints, which the same tokens own.
    pub(super) endpoints: SharedEndpoints,
    /// The listeners that the same tokens own.
    pub(super) listeners: HeldListeners,
    states: HashMap<ConnId, SharedConnState>,
    tokens: HashMap<u64, KnownToken>,
    /// The tokens of a user, by the address of its account, which the tokens keep.
    tokens_of: HashMap<usize, HashSet<u64>>,
    /// Sessions that have asked for bytes which wait here.
    pub(super) asked: AskedReads,
    /// Connections that have lost bytes, for want of room.
    pub(super) failed: Vec<ConnId>,
    /// Connections for which sessions wait.
    waits: usize,
    /// Connections whose next session may have its turn.
    turns: HashSet<ConnId>,
}

impl SharedConns {
    /// Whether anything is shared.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        !self.owners.is_empty() || !self.states.is_empty()
    }

    /// Bytes of a connection that wait here.
    pub(super) fn unread_bytes(&self, conn: ConnId) -> u32 {
        let unread = self.states.get(&conn).map(|state| &state.unread);
        unread.into_iter().flatten().map(|chunk| chunk.len).sum()
    }

    /// Whether bytes of a connection wait here.
    #[inline]
    pub(super) fn has_unread(&self, conn: ConnId) -> bool {
        !self.states.is_empty()
            && self.states.get(&conn).is_some_and(|state| !state.unread.is_empty())
    }

    /// Whether bytes that wait here lie in memory of this pool.
    pub(super) fn has_unread_in(&self, is_in: impl Fn(&Chunk) -> bool) -> bool {
        self.states.values().any(|state| state.unread.iter().any(&is_in))
    }

    /// What a connection has; made if it has nothing.
    pub(super) fn state(&mut self, conn: ConnId) -> &mut SharedConnState {
        self.states.entry(conn).or_default()
    }

    /// Takes the first bytes that wait here.
    pub(super) fn pop_unread(&mut self, conn: ConnId) -> Option<Chunk> {
        let chunk = self.states.get_mut(&conn)?.unread.pop_front();
        self.tidy(conn);
        chunk
    }

    /// Takes all bytes of a connection that wait here.
    pub(super) fn take_unread(&mut self, conn: ConnId) -> VecDeque<Chunk> {
        self.states
            .get_mut(&conn)
            .map(|state| std::mem::take(&mut state.unread))
            .unwrap_or_default()
    }

    /// The same bytes wait again.
    pub(super) fn put_unread(&mut self, conn: ConnId, unread: VecDeque<Chunk>) {
        if !unread.is_empty() {
            self.state(conn).unread = unread;
        }
        self.tidy(conn);
    }

    /// Puts bytes behind those that wait here.
    pub(super) fn append_unread(&mut self, conn: ConnId, unread: Vec<Chunk>) {
        if !unread.is_empty() {
            self.state(conn).unread.extend(unread);
        }
    }

    /// The first bytes that wait here.
    pub(super) fn first_unread(&mut self, conn: ConnId) -> Option<&mut Chunk> {
        self.states.get_mut(&conn)?.unread.front_mut()
    }

    /// Puts bytes before those that wait here.
    pub(super) fn push_unread_first(&mut self, conn: ConnId, chunk: Chunk) {
        self.state(conn).unread.push_front(chunk);
    }

    /// A session waits for its turn to be the user.
    pub(super) fn wait(&mut self, conn: ConnId, session: PoolId) {
        let waiting = &mut self.state(conn).waiting;
        let is_first = waiting.is_empty();
        if !waiting.contains(&session) {
            waiting.push_back(session);
        }
        self.waits += usize::from(is_first);
        self.turns.insert(conn);
    }

    /// Whether a session waits for its turn with some connection.
    #[inline]
    pub(super) fn has_waits(&self) -> bool {
        self.waits > 0
    }

    /// The user of a connection has got what it asked for, or asks no more.
    pub(super) fn note_turn(&mut self, conn: ConnId) {
        if self.waits > 0 && self.states.get(&conn).is_some_and(|it| !it.waiting.is_empty()) {
            self.turns.insert(conn);
        }
    }

    /// Whether a session may have its turn now.
    pub(super) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Connections whose next session may have its turn.
    pub(super) fn take_turns(&mut self) -> HashSet<ConnId> {
        std::mem::take(&mut self.turns)
    }

    /// The session that waits first for its turn with a connection.
    pub(super) fn next_waiting(&self, conn: ConnId) -> Option<PoolId> {
        self.states.get(&conn)?.waiting.front().copied()
    }

    /// A session waits no more.
    pub(super) fn end_wait(&mut self, conn: ConnId, session: PoolId) {
        if let Some(state) = self.states.get_mut(&conn) {
            let waited = !state.waiting.is_empty();
            state.waiting.retain(|other| *other != session);
            self.waits -= usize::from(waited && state.waiting.is_empty());
        }
        self.tidy(conn);
    }

    /// A connection counts for a token's user, since no session owns it.
    pub(super) fn set_charge(&mut self, conn: ConnId, charge: Option<QuotaCharge>) {
        if charge.is_some() {
            self.state(conn).charge = charge;
        }
    }

    /// A connection does not count for a token's user any more: a session owns it.
    pub(super) fn end_charge(&mut self, conn: ConnId) {
        if let Some(state) = self.states.get_mut(&conn) {
            state.charge = None;
        }
        self.tidy(conn);
    }

    /// Nothing is shared of a connection any more. Returns the bytes that wait here.
    pub(super) fn forget(&mut self, conn: ConnId) -> VecDeque<Chunk> {
        if self.owners.is_empty() && self.states.is_empty() {
            return VecDeque::new();
        }
        self.owners.forget(conn);
        let Some(state) = self.states.remove(&conn) else { return VecDeque::new() };
        self.waits -= usize::from(!state.waiting.is_empty());
        state.unread
    }

    /// What a connection has, if it has anything.
    #[inline]
    pub(super) fn known_state(&self, conn: ConnId) -> Option<&SharedConnState> {
        self.states.get(&conn)
    }

    pub(super) fn tidy(&mut self, conn: ConnId) {
        if self.states.get(&conn).is_some_and(|state| !state.is_needed()) {
            self.states.remove(&conn);
        }
    }

    /// Counts what the user of a shared connection was given until now. `total`: what all sessions
    /// were given and have not given back.
    pub(super) fn count_delivered(&mut self, conn: ConnId, user: Option<PoolId>, total: u64) {
        if self.owners.is_shared(conn) {
            self.state(conn).delivered.get_or_insert_default().count(user, total);
        }
    }

    /// A session gives bytes back. Returns whether it was given so many.
    pub(super) fn count_given_back(&mut self, conn: ConnId, session: PoolId, bytes: u64) -> bool {
        let delivered = self.states.get_mut(&conn).and_then(|state| state.delivered.as_mut());
        delivered.is_some_and(|delivered| delivered.give_back(session, bytes))
    }

    /// A session owns a connection no more.
    pub(super) fn forget_delivered(&mut self, conn: ConnId, session: PoolId) {
        let delivered = self.states.get_mut(&conn).and_then(|state| state.delivered.as_mut());
        delivered.into_iter().for_each(|delivered| delivered.forget(session));
    }

    /// An owner has let go of a connection. One that is not shared any more is not counted.
    pub(super) fn end_count(&mut self, conn: ConnId) {
        if !self.owners.is_shared(conn)
            && let Some(state) = self.states.get_mut(&conn)
        {
            state.delivered = None;
        }
        self.tidy(conn);
    }

    /// A token that owns a connection.
    pub(super) fn token_of(&self, conn: ConnId) -> Option<&KnownToken> {
        self.tokens.get(&self.owners.token_of(conn)?)
    }

    /// Whether a token is known.
    pub(super) fn has_token(&self, number: u64) -> bool {
        self.tokens.contains_key(&number)
    }

    /// The shard knows a token from now on.
    pub(super) fn add_token(&mut self, known: KnownToken) {
        let number = known.token.number();
        if let Some(user) = user_of(&known.token) {
            self.tokens_of.entry(user).or_default().insert(number);
        }
        self.tokens.insert(number, known);
    }

    /// A token has ended.
    pub(super) fn remove_token(&mut self, number: u64) -> Option<KnownToken> {
        let known = self.tokens.remove(&number)?;
        if let Some(user) = user_of(&known.token)
            && let Some(its) = self.tokens_of.get_mut(&user)
        {
            its.remove(&number);
            if its.is_empty() {
                self.tokens_of.remove(&user);
            }
        }
        Some(known)
    }

    /// Whether the tokens of a token's user may own so many connections more.
    pub(super) fn may_hold(&self, token: &ShareToken, more: usize) -> bool {
        let Some(user) = user_of(token) else { return true };
        let its = self.tokens_of.get(&user).into_iter().flatten();
        let held: usize = its.map(|number| self.token_len(*number)).sum();
        held + more <= HOLDS_MAX
    }

    /// How many connections, endpoints and listeners a token owns.
    pub(super) fn token_len(&self, number: u64) -> usize {
        self.owners.token_len(number)
            + self.endpoints.owners.token_len(number)
            + self.listeners.owners.token_len(number)
    }

    /// What a token's user may have.
    pub(super) fn rights_of_token(&self, number: u64) -> Option<Arc<SessionRights>> {
        self.tokens.get(&number)?.token.rights().cloned()
    }
}

/// The address of the account of a token's user. `None`: there are no quotas.
fn user_of(token: &ShareToken) -> Option<usize> {
    token.rights().map(|rights| Arc::as_ptr(rights.account()).addr())
}
