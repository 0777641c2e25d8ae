//! Sharing connections: tokens that own them, sessions that adopt them, and the last owner's end.
//!
//! Read first: `shared_conns.rs`, `ownership.rs`; decision 0055.
//!
//! ```text
//!  Hold      a token owns connections too; received bytes wait until a session asks for them
//!  GiveBack  bytes that the session had received and its program has not read
//!  Adopt     a session owns a connection of a token, and uses it
//!  Close     the session owns it no more; FIN, or RST if bytes are unread, is the last owner's
//! ```
//!
//! Invariants
//! - A chunk in a session's memory is moved before the session lets go of the connection, because
//!   that memory goes with the session.
//! - What waits for a receive buffer of a session lies in its own memory or in the shard's
//!   (`stranded_events.rs`), never in that of another session.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use megapipe_shm::record::{Completion, ServerAnswer, SessionCall};
use megapipe_stack::{Chunk, CloseReason, ConnId, Event, Instant, Memory, PoolId, TcpState};

use super::SessionShard;
use super::calls::Answered;
use super::hand_overs::HandOvers;
use super::ops::SessionWork;
use super::owners::ObjectOwners;
use super::ownership::OwnersLeft;
use super::session_limits::SessionFault;
use super::shared_conns::{KnownToken, SharedConns};
use super::user_groups::UserGroups;
use crate::descriptors::ShareToken;
use crate::limits::PRIVATE_BUFFER_BYTES;
use crate::policy::{PolicyRefusal, QuotaKind, QuotaReached};
use crate::remote::SharedMemory;
use crate::remote::buffer_names::session_of;
use crate::remote::encoding::{conn_id, encode_event};
use crate::server::Server;

/// Why a connection is not shared.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShardShareError {
    #[error("no token was passed with this cookie, or it has ended")]
    NotPassed,
    #[error("the connection is over, or is not established")]
    Unknown,
    #[error("the attempt to open the connection has failed")]
    ConnectFailed(CloseReason),
    #[error("the token does not stand for it, or what it stands for has ended")]
    NotOwned,
    #[error("the session does not listen there any more")]
    NotListening,
    #[error("the port is the kernel's, whose listening socket can be passed instead")]
    KernelsListener,
    #[error("the tokens of the user own as many objects as they may")]
    Holds,
    #[error("the session or its user has as many endpoints as it may")]
    Endpoints,
    #[error("no buffer is left for unread bytes")]
    NoMemory,
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    #[error(transparent)]
    Policy(PolicyRefusal),
}

impl ShardShareError {
    pub(super) fn raw_os_error(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::NotPassed => Errno::BADF,
            Self::Unknown | Self::ConnectFailed(_) => Errno::NOTCONN,
            Self::NotListening => Errno::INVAL,
            Self::KernelsListener => Errno::OPNOTSUPP,
            Self::NotOwned => Errno::STALE,
            Self::Quota(_) | Self::Policy(_) | Self::Endpoints => Errno::DQUOT,
            Self::Holds | Self::NoMemory => Errno::NOBUFS,
        };
        errno.raw_os_error()
    }
}

/// Calls.
impl SessionWork<'_> {
    /// As `answer`, of calls that share connections.
    pub(super) fn answer_share(&mut self, call: SessionCall) -> Answered {
        let shared = match call {
            SessionCall::Hold { token, conn } => {
                self.hold(token, conn.map(conn_id)).map(|()| ServerAnswer::Done)
            }
            SessionCall::Adopt { token, conn } => self.answer_adopt(token, conn.map(conn_id)),
            SessionCall::GiveBack { conn, chunk } => {
                let (conn, bytes) = (conn_id(conn), self.bytes(chunk)?);
                let checked = self.check_given_back(conn, bytes.len() as u64)?;
                let given = checked.and_then(|()| self.give_back(conn, &bytes));
                given.map(|()| ServerAnswer::Done)
            }
            // The other functions answer all others.
            _ => return Err(SessionFault::Call),
        };
        Ok(self.share_answer(shared))
    }

    /// The answer to a call that shares, or its refusal.
    pub(super) fn share_answer(
        &mut self,
        shared: Result<ServerAnswer, ShardShareError>,
    ) -> ServerAnswer {
        shared
            .unwrap_or_else(|error| self.refused_by_host(error.raw_os_error(), &error.to_string()))
    }

    pub(super) fn passed_token(&self, cookie: u64) -> Option<Arc<ShareToken>> {
        match cookie {
            0 => self.session.limits.token.clone(),
            _ => self.session.limits.descriptors.as_ref()?.token(cookie),
        }
    }

    pub(super) fn own_token(&self) -> Option<u64> {
        self.session.limits.token.as_ref().map(|token| token.number())
    }

    /// A token that the session has made: what it owns counts for the session's user.
    pub(super) fn made_token(&self, cookie: u64) -> Result<Arc<ShareToken>, ShardShareError> {
        let descriptors = self.session.limits.descriptors.as_ref();
        let token = descriptors.and_then(|descriptors| descriptors.made_token(cookie));
        token.ok_or(ShardShareError::NotPassed)
    }

    /// A token owns something from now on, if it has not ended: the request that ends it may have
    /// come before the shard knew it.
    pub(super) fn check_holder(&mut self, token: &ShareToken) -> Result<(), ShardShareError> {
        if token.has_ended() {
            self.share_work().end_token(token.number());
            return Err(ShardShareError::NotPassed);
        }
        Ok(())
    }

    fn hold(&mut self, cookie: u64, conn: Option<ConnId>) -> Result<(), ShardShareError> {
        let token = self.made_token(cookie)?;
        let held = self.conns_to_hold(conn)?;
        let is_new = |conn: &&ConnId| !self.shared.owners.has_token(token.number(), **conn);
        if !self.shared.may_hold(&token, held.iter().filter(is_new).count()) {
            return Err(ShardShareError::Holds);
        }
        self.share_work().note_token(&token)?;
        for conn in &held {
            let user = self.owners.of_conn(*conn);
            self.shared.owners.hold(token.number(), *conn, user);
            if self.owners.is_connecting(*conn) {
                self.shared.begin_handshake(*conn);
            }
            self.shared.note_turn(*conn);
        }
        self.withhold_all(&held);
        self.check_holder(&token)
    }

    /// Nothing more of these connections is delivered to the session, until it asks again.
    fn withhold_all(&mut self, conns: &HashSet<ConnId>) {
        for conn in conns {
            self.shared.end_wait(*conn, self.id);
            if self.owners.has_conn(self.id, *conn) {
                // It may be over.
                let _ = self.server.parts().0.withhold(*conn);
            }
        }
        self.shared.asked.withdraw(self.id, conns);
        self.take_back_stranded(|work, conn| {
            conns.contains(&conn) && work.owners.has_conn(work.id, conn)
        });
        conns.iter().for_each(|conn| self.count_delivered(*conn));
    }

    /// Counts what the user of a connection was given until now, which it may give back.
    fn count_delivered(&mut self, conn: ConnId) {
        let Ok(info) = self.server.stack().info(conn) else { return };
        let waiting = u64::from(info.unread_bytes) + u64::from(self.shared.unread_bytes(conn));
        let total = info.bytes_in.saturating_sub(waiting);
        self.shared.count_delivered(conn, self.owners.of_conn(conn), total);
    }

    /// Checks bytes that the session gives back: it was given so many of the connection, and has
    /// not given them back before.
    fn check_given_back(
        &mut self,
        conn: ConnId,
        bytes: u64,
    ) -> Result<Result<(), ShardShareError>, SessionFault> {
        if !self.has_conn(conn) || self.server.stack().info(conn).is_err() {
            return Ok(Err(ShardShareError::Unknown));
        }
        if !self.shared.owners.is_shared(conn) {
            return Ok(Err(ShardShareError::NotOwned));
        }
        self.withhold_all(&HashSet::from([conn]));
        match self.shared.count_given_back(conn, self.id, bytes) {
            true => Ok(Ok(())),
            false => Err(SessionFault::GivenBack),
        }
    }

    /// Bytes of some connections that wait for a buffer of the session are no more its own: they
    /// come before those that wait here. The end of the peer's stream is reported again.
    fn take_back_stranded(&mut self, is_taken: impl Fn(&Self, ConnId) -> bool) {
        let mut taken = Vec::new();
        for _ in 0..self.session.stranded.len() {
            let Some(event) = self.session.stranded.pop() else { break };
            match event {
                Event::Received { conn, chunk } if is_taken(self, conn) => {
                    taken.push((conn, chunk))
                }
                Event::PeerClosed { conn } if is_taken(self, conn) => {}
                event => self.session.stranded.push(event),
            }
        }
        while let Some((conn, chunk)) = taken.pop() {
            self.count_delivered(conn);
            self.shared.push_unread_first(conn, chunk);
            // One that is not counted was never shared before.
            self.shared.count_given_back(conn, self.id, chunk.len.into());
        }
    }

    pub(super) fn adopt(
        &mut self,
        cookie: u64,
        conn: Option<ConnId>,
    ) -> Result<ConnId, ShardShareError> {
        let token = self.passed_token(cookie).ok_or(ShardShareError::NotPassed)?;
        let number = token.number();
        let only = || self.shared.owners.objects_of_token(number).first().copied();
        let conn = conn.or_else(only).ok_or(ShardShareError::NotOwned)?;
        if !self.shared.owners.has_token(number, conn) {
            return Err(ShardShareError::NotOwned);
        }
        self.check_handshake(cookie, conn)?;
        if self.server.stack().addresses(conn).is_err() {
            self.drop_shared(conn);
            return Err(ShardShareError::NotOwned);
        }
        if self.shared.owners.has_session(conn, self.id) {
            // It has it already, which its client finds by the name.
            return Ok(conn);
        }
        let (kind, limit) = (QuotaKind::ChannelConnections, self.session.limits.connections);
        if self.owners.counts(self.id).open >= limit {
            return Err(QuotaReached { kind, limit }.into());
        }
        // One that no session uses counts for the user of a token already.
        let is_counted = self.owners.of_conn(conn).is_none()
            && self.shared.token_of(conn).is_some_and(|known| {
                let both = known.token.rights().zip(self.session.limits.rights.as_ref());
                both.is_some_and(|(its, own)| Arc::ptr_eq(its.account(), own.account()))
            });
        if let Some(rights) = self.session.limits.rights.as_ref().filter(|_| !is_counted) {
            rights.check(QuotaKind::UserConnections)?;
        }
        self.shared.owners.adopt(number, conn, self.id);
        self.make_user(conn);
        Ok(conn)
    }

    /// Puts received bytes of a connection before those that wait for the next reader.
    fn give_back(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), ShardShareError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let account = self.account_of_given()?;
        let (_, memory) = self.server.parts();
        let mut first = self.shared.first_unread(conn);
        // One of the shard's own has room before its bytes.
        first = first.filter(|chunk| session_of(chunk.buf) == PoolId(0));
        let room = first.as_ref().map_or(0, |chunk| chunk.offset as usize);
        let (others, joined) = bytes.split_at(bytes.len().saturating_sub(room));
        let mut chunks = Vec::new();
        for part in others.rchunks(PRIVATE_BUFFER_BYTES) {
            let Some(buf) = memory.alloc(account) else {
                chunks.into_iter().for_each(|chunk: Chunk| memory.free(chunk.buf));
                return Err(ShardShareError::NoMemory);
            };
            let len = part.len() as u32;
            let offset = memory.buf_bytes(buf).saturating_sub(len);
            memory.copy_in(buf, offset, part);
            chunks.push(Chunk { buf, offset, len });
        }
        if let Some(first) = first {
            first.offset -= joined.len() as u32;
            first.len += joined.len() as u32;
            memory.copy_in(first.buf, first.offset, joined);
        }
        chunks.into_iter().for_each(|chunk| self.shared.push_unread_first(conn, chunk));
        Ok(())
    }

    /// What the session gives back counts for its own channel and user.
    fn account_of_given(&mut self) -> Result<PoolId, ShardShareError> {
        if let Some(account) = self.session.given_account {
            return Ok(account);
        }
        let rights = self.session.limits.rights.as_ref();
        let opened = self.server.parts().1.open_account(self.owners.shard(), rights);
        self.session.given_account = opened;
        opened.ok_or(ShardShareError::NoMemory)
    }
}

/// The user of a connection.
impl SessionWork<'_> {
    /// Whether the session is among the owners of a connection that another one uses; then this one
    /// uses it from now on.
    #[cold]
    pub(super) fn use_shared(&mut self, conn: ConnId) -> bool {
        if !self.shared.owners.has_session(conn, self.id) {
            return false;
        }
        self.make_user(conn);
        true
    }

    fn make_user(&mut self, conn: ConnId) {
        self.count_delivered(conn);
        let (stack, _) = self.server.parts();
        let former = self.owners.of_conn(conn).filter(|former| *former != self.id);
        if let Some(former) = former
            && stack.is_receiving(conn)
        {
            self.shared.wait(conn, former);
        }
        self.keep_unread(conn);
        let hand_over = self.owners.remove_conn(conn);
        self.finish_handed(conn, hand_over);
        self.owners.add_conn(self.id, conn, self.shared.is_connecting(conn));
        self.shared.end_charge(conn);
        // It may be over, as its next event says.
        let _ = self.server.parts().0.set_pool(conn, self.id);
    }

    /// What the stack has received waits for the session that asks next. Nothing was asked for
    /// then, and the end of the peer's stream is reported again.
    fn keep_unread(&mut self, conn: ConnId) {
        let (stack, memory) = self.server.parts();
        let mut unread = Vec::new();
        let each = |_: &mut _, chunk| unread.push(chunk);
        if stack.info(conn).is_ok_and(|info| info.state == TcpState::Closed) {
            // What is left of it stays in the stack, which reports its end behind that.
            let _ = stack.withhold(conn);
            return;
        }
        let _ = stack.take_unread(self.now, conn, memory, each);
        self.shared.append_unread(conn, unread);
    }

    /// The session asks for the next bytes of a connection that it uses.
    #[inline]
    pub(super) fn receive_one(&mut self, conn: ConnId) {
        if self.shared.has_unread(conn) {
            return self.shared.asked.push(self.id, conn);
        }
        // It may be over.
        let _ = self.server.parts().0.receive(self.now, conn);
    }

    /// The session lets go of a connection. Returns whether that goes on, by other owners.
    pub(super) fn leave_shared(&mut self, conn: ConnId) -> bool {
        let is_user = self.owners.has_conn(self.id, conn);
        let is_owner = self.shared.owners.has_session(conn, self.id);
        if !is_owner {
            return false;
        }
        self.shared.end_wait(conn, self.id);
        self.count_delivered(conn);
        let left = self.shared.owners.release(conn, self.id, self.own_token());
        if left == OwnersLeft::Nothing {
            self.shared.end_count(conn);
            return false;
        }
        self.send_deferred(conn);
        self.note_left(conn);
        if self.session.stranded.has(conn) {
            self.take_back_stranded(|_, other| other == conn);
            if !is_user {
                // Its user may have read what comes behind them.
                self.shared.failed.push(conn);
            }
        }
        if is_user {
            self.keep_unread(conn);
            let hand_over = self.owners.remove_conn(conn);
            self.finish_handed(conn, hand_over);
            self.share_work().pass_on(conn, left);
            self.grant_withheld();
        }
        self.rehome(conn, left);
        self.shared.note_turn(conn);
        self.shared.forget_delivered(conn, self.id);
        self.shared.end_count(conn);
        true
    }

    /// Bytes of a connection that the peer has not acknowledged keep the session's memory.
    fn note_left(&mut self, conn: ConnId) {
        let id = self.id;
        let is_its = |chunk: Chunk| session_of(chunk.buf) == id;
        let (stack, memory) = self.server.parts();
        if !stack.has_queued(conn, is_its) {
            return;
        }
        let in_stack = memory.of(id).map_or(0, |memory| memory.in_stack()) as usize;
        let left = &mut self.session.left_conns;
        // No more of them can have a chunk.
        if left.len() > 2 * in_stack {
            left.retain(|conn| stack.has_queued(*conn, is_its));
        }
        left.insert(conn);
    }

    /// Moves unread bytes of a connection out of the session's memory. Where there is no room for
    /// them, the connection is reset: they were acknowledged.
    fn rehome(&mut self, conn: ConnId, to: OwnersLeft<PoolId>) {
        let account = self.shared.token_of(conn).map(|known| known.account);
        let next = match to {
            OwnersLeft::Session(next) => Some(next),
            OwnersLeft::Tokens | OwnersLeft::Nothing => None,
        };
        let (_, memory) = self.server.parts();
        let mut moved = VecDeque::new();
        for chunk in self.shared.take_unread(conn) {
            let mut left = Some(chunk);
            while let Some(chunk) = left.take() {
                if session_of(chunk.buf) != self.id {
                    moved.push_back(chunk);
                    continue;
                }
                let mut pools = account.into_iter().chain(next);
                if let Some((part, rest)) = pools.find_map(|pool| memory.move_part(pool, chunk)) {
                    moved.push_back(part);
                    left = rest;
                } else {
                    moved.push_back(chunk);
                    self.shared.failed.push(conn);
                }
            }
        }
        self.shared.put_unread(conn, moved);
    }

    /// Hands sends that were deferred to the stack: the session does not try again.
    fn send_deferred(&mut self, conn: ConnId) {
        for chunk in self.session.deferred.take_of(conn) {
            let (stack, memory) = self.server.parts();
            if stack.send(self.now, conn, chunk, memory).is_err() {
                memory.free(chunk.buf);
                self.shared.failed.push(conn);
            }
        }
    }

    /// A shared connection is over: nothing of it is kept.
    pub(super) fn drop_shared(&mut self, conn: ConnId) {
        self.share_work().drop_shared(conn);
    }

    /// Whether bytes of a connection wait that no session has read. They are dropped.
    pub(super) fn drop_unread(&mut self, conn: ConnId) -> bool {
        let has_unread = self.shared.has_unread(conn);
        if has_unread {
            self.drop_shared(conn);
        }
        has_unread
    }

    /// Takes the bytes that wait of a connection which leaves the stack, and which nothing owns any
    /// more.
    pub(super) fn take_shared_bytes(&mut self, conn: ConnId) -> Vec<u8> {
        let (_, memory) = self.server.parts();
        let mut bytes = Vec::new();
        for chunk in self.shared.forget(conn) {
            let from = bytes.len();
            bytes.resize(from + chunk.len as usize, 0);
            memory.copy_out(chunk, &mut bytes[from..]);
            memory.free(chunk.buf);
        }
        bytes
    }

    /// The session ends: its shared connections go on, but for those of which bytes are lost in
    /// its ring.
    pub(super) fn leave_all_shared(&mut self, lost: &[ConnId]) {
        let conns = self.shared.owners.objects_of(self.id);
        let lost: HashSet<_> = match conns.is_empty() {
            true => HashSet::new(),
            false => lost.iter().copied().collect(),
        };
        for conn in conns {
            if self.leave_shared(conn) && lost.contains(&conn) {
                self.shared.failed.push(conn);
            }
        }
        self.shared.asked.forget(self.id);
        if let Some(account) = self.session.given_account.take() {
            self.server.parts().1.close_account(account);
        }
    }

    pub(super) fn share_work(&mut self) -> SharingWork<'_> {
        let Self { now, server, owners, hand_overs, groups, shared, .. } = self;
        SharingWork { now: *now, server, owners, hand_overs, groups, shared }
    }
}

/// What the end of an owner changes that is no session.
pub(super) struct SharingWork<'shard> {
    pub(super) now: Instant,
    pub(super) server: &'shard mut Server<SharedMemory>,
    pub(super) owners: &'shard mut ObjectOwners,
    pub(super) hand_overs: &'shard mut HandOvers,
    pub(super) groups: &'shard mut UserGroups,
    pub(super) shared: &'shard mut SharedConns,
}

impl SharingWork<'_> {
    /// A shared connection is over: nothing of it is kept.
    fn drop_shared(&mut self, conn: ConnId) {
        let (_, memory) = self.server.parts();
        self.shared.forget(conn).iter().for_each(|chunk| memory.free(chunk.buf));
    }

    /// The shard knows a token from now on.
    pub(super) fn note_token(&mut self, token: &Arc<ShareToken>) -> Result<(), ShardShareError> {
        let number = token.number();
        if self.shared.has_token(number) {
            return Ok(());
        }
        let opened = self.server.parts().1.open_account(self.owners.shard(), token.rights());
        let account = opened.ok_or(ShardShareError::NoMemory)?;
        let known = KnownToken { token: Arc::clone(token), account };
        self.shared.add_token(known);
        Ok(())
    }

    /// A connection without a user goes to one of its owners.
    fn pass_on(&mut self, conn: ConnId, to: OwnersLeft<PoolId>) {
        let pool = match to {
            OwnersLeft::Session(next) => {
                self.owners.add_conn(next, conn, self.shared.is_connecting(conn));
                next
            }
            OwnersLeft::Tokens if self.shared.connect_failure(conn).is_some() => return,
            OwnersLeft::Tokens => {
                let Some(known) = self.shared.token_of(conn) else { return };
                let (account, rights) = (known.account, known.token.rights().cloned());
                // It counts once.
                self.shared.end_charge(conn);
                let charge = rights.and_then(|it| it.charge(QuotaKind::UserConnections, 1).ok());
                self.shared.set_charge(conn, charge);
                account
            }
            OwnersLeft::Nothing => return,
        };
        // It may be over, as its next event says.
        let _ = self.server.parts().0.set_pool(conn, pool);
    }

    /// No process holds a token any more.
    pub(super) fn end_token(&mut self, number: u64) {
        for (conn, left) in self.shared.owners.end_token(number) {
            self.after_release(conn, left);
        }
        self.end_token_of_endpoints(number);
        self.end_token_of_listeners(number);
        if let Some(known) = self.shared.remove_token(number) {
            self.server.parts().1.close_account(known.account);
        }
    }

    /// A token owns a connection no more.
    pub(super) fn after_release(&mut self, conn: ConnId, left: OwnersLeft<PoolId>) {
        self.shared.end_count(conn);
        match left {
            OwnersLeft::Session(_) => {}
            // It counts for another token from now on, unless a session uses it.
            OwnersLeft::Tokens => self.pass_on(conn, left),
            OwnersLeft::Nothing => {
                let has_unread = self.shared.has_unread(conn);
                self.drop_shared(conn);
                let (stack, memory) = self.server.parts();
                let unread = stack.info(conn).map_or(0, |info| info.unread_bytes);
                // One that is over needs no end.
                let _ = match has_unread || unread > 0 {
                    true => stack.abort(self.now, conn, memory),
                    false => stack.close(self.now, conn, memory),
                };
            }
        }
    }
}

/// Events.
impl SessionShard {
    /// Enqueues bytes that sessions have asked for and that wait here, and lets sessions that wait
    /// have their turn.
    pub(super) fn enqueue_shared(&mut self, now: Instant) -> u32 {
        let mut count = 0;
        for conn in self.shared.take_turns() {
            let user = self.owners.of_conn(conn);
            let has_asked = user.is_some_and(|user| self.shared.asked.has(user, conn));
            if has_asked || self.server.stack().is_receiving(conn) {
                continue;
            }
            let Some(next) = self.shared.next_waiting(conn) else { continue };
            self.shared.end_wait(conn, next);
            self.work(now, next, |work| {
                if work.has_conn(conn) {
                    work.receive_one(conn);
                }
            });
            self.shared.note_turn(conn);
        }
        self.reset_failed(now);
        for (id, len) in self.shared.asked.sessions() {
            for _ in 0..len {
                let Some(conn) = self.shared.asked.pop(id) else { break };
                match self.enqueue_unread(now, id, conn) {
                    Some(published) => count += published,
                    // Its other connections wait for a buffer as well.
                    None => {
                        self.shared.asked.put_back(id, conn);
                        break;
                    }
                }
            }
        }
        count
    }

    /// Enqueues the first bytes of a connection that wait here. Returns how many records. `None`:
    /// the session has no buffer for them. They wait here meanwhile and not with the session,
    /// because they may lie in the memory of another one, which may end.
    fn enqueue_unread(&mut self, now: Instant, id: PoolId, conn: ConnId) -> Option<u32> {
        if !self.owners.has_conn(id, conn) {
            // Another one has become the user since.
            if self.shared.owners.has_session(conn, id) {
                self.shared.wait(conn, id);
            }
            return Some(0);
        }
        if self.sessions.running(id).is_some_and(|session| !session.stranded.is_empty()) {
            return None;
        }
        let Some(mut chunk) = self.shared.pop_unread(conn) else {
            // It may be over.
            let _ = self.server.parts().0.receive(now, conn);
            return Some(0);
        };
        if session_of(chunk.buf) != id {
            let Some((moved, rest)) = self.server.parts().1.move_part(id, chunk) else {
                self.shared.push_unread_first(conn, chunk);
                return None;
            };
            rest.into_iter().for_each(|rest| self.shared.push_unread_first(conn, rest));
            chunk = moved;
        }
        self.enqueue_or_strand(now, id, Event::Received { conn, chunk });
        self.shared.note_turn(conn);
        Some(1)
    }

    /// Resets connections that have lost bytes.
    pub(super) fn reset_failed(&mut self, now: Instant) {
        for conn in std::mem::take(&mut self.shared.failed) {
            self.reset_shared(now, conn);
        }
    }

    /// Whether bytes that no session has read lie in the memory of a session.
    pub(super) fn has_unread_in(&mut self, id: PoolId) -> bool {
        let is_in = |chunk: &Chunk| session_of(chunk.buf) == id;
        let is_stranded = |event: &Event| match event {
            Event::Received { chunk, .. } => is_in(chunk),
            _ => false,
        };
        self.shared.has_unread_in(is_in)
            || self.sessions.all_mut().any(|session| session.stranded.iter().any(is_stranded))
    }

    /// An event of a shared connection for the sessions that own it and do not use it.
    fn enqueue_to_others(&mut self, now: Instant, conn: ConnId, event: Event) {
        if !self.shared.owners.is_shared(conn) {
            return;
        }
        let user = self.owners.of_conn(conn);
        let sessions = self.shared.owners.sessions(conn).to_vec();
        for session in sessions.into_iter().filter(|it| Some(*it) != user) {
            let is_whole = self.knows_event_details(session);
            if matches!(event, Event::Broken { .. }) && !is_whole {
                continue;
            }
            if let Some(says) = encode_event(event, self.server.stack(), is_whole) {
                let record = Completion { cookie: u64::MAX, event: says }.record();
                self.put(now, session, record, false);
            }
        }
    }

    /// As `enqueue_other`, of an event of a connection that may have several owners.
    pub(super) fn enqueue_shared_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Acked { conn, .. } => {
                self.retry_deferred(now, conn);
                self.enqueue_to_others(now, conn, event);
            }
            Event::Connected { conn } => {
                self.shared.end_handshake(conn);
                self.enqueue_to_others(now, conn, event);
            }
            Event::UnsentBelow { conn } | Event::Broken { conn, .. } => {
                self.enqueue_to_others(now, conn, event)
            }
            Event::Received { conn, .. } | Event::PeerClosed { conn } => {
                self.shared.note_turn(conn);
            }
            Event::Closed { conn, reason } => {
                self.enqueue_to_others(now, conn, event);
                if !self.shared.fail_handshake(conn, reason) {
                    self.share_work(now).drop_shared(conn);
                }
            }
            _ => {}
        }
    }

    /// Resets a connection of which bytes were lost, or whose sender has ended and is not waited
    /// for any longer.
    pub(super) fn reset_shared(&mut self, now: Instant, conn: ConnId) {
        if self.server.stack().addresses(conn).is_err() {
            return self.share_work(now).drop_shared(conn);
        }
        let user = self.owners.of_conn(conn);
        let event = Event::Closed { conn, reason: CloseReason::Aborted };
        self.enqueue_to_others(now, conn, event);
        self.share_work(now).drop_shared(conn);
        let (stack, memory) = self.server.parts();
        let _ = stack.abort(now, conn, memory);
        if user.is_some() {
            self.enqueue_other(now, event, None);
        }
    }

    pub(super) fn share_work(&mut self, now: Instant) -> SharingWork<'_> {
        let Self { server, owners, hand_overs, groups, shared, .. } = self;
        SharingWork { now, server, owners, hand_overs, groups, shared }
    }

    /// Sends of any session may go on that were deferred on a shared connection.
    fn retry_deferred(&mut self, now: Instant, conn: ConnId) {
        if !self.shared.owners.is_shared(conn) {
            return;
        }
        let (stack, memory) = self.server.parts();
        for session in self.sessions.all_mut() {
            session.deferred.retry(now, conn, (&mut *stack, &mut *memory));
        }
    }
}
