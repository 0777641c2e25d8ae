//! Sharing endpoints for datagrams: tokens that own them, sessions that adopt them, and the
//! datagrams that wait for all of them.
//!
//! Read first: `shared_endpoints.rs`; decision 0068.
//!
//! ```text
//!  HoldEndpoint      a token owns endpoints too; their datagrams wait here from now on
//!  GiveDatagramBack  a datagram that the session had received and its program has not read
//!  AdoptEndpoint     a session owns an endpoint of a token
//!  TakeDatagram      the first datagram that waits is the session's
//!  CloseDatagram     the session owns the endpoint no more; the last owner's call closes it
//! ```
//!
//! Invariant: no buffer of an endpoint lies in the memory of a session that does not use it.

use std::net::SocketAddr;

use megapipe_shm::record::{Completion, Event as Says, Refusal, ServerAnswer, SessionCall};
use megapipe_stack::{Arrival, Chunk, DatagramId, Instant, Memory, PoolId};

use super::SessionShard;
use super::calls::Answered;
use super::ops::SessionWork;
use super::ownership::OwnersLeft;
use super::session_limits::SessionFault;
use super::shard_session::ReservingObject;
use super::share::{ShardShareError, SharingWork};
use super::shared_endpoints::{SharedEndpointState, StoredDatagram};
use crate::policy::{ENDPOINTS, QuotaKind};
use crate::remote::buffer_names::session_of;
use crate::remote::encoding::{decode_datagram, encode_datagram, endpoint_id, id_of_endpoint};

/// Calls.
impl SessionWork<'_> {
    /// As `answer`, of calls about endpoints with several owners.
    pub(super) fn answer_shared_endpoint(&mut self, call: SessionCall) -> Answered {
        let answer = match call {
            SessionCall::HoldEndpoint { token, endpoint } => {
                self.hold_endpoint(token, endpoint.map(endpoint_id)).map(|()| ServerAnswer::Done)
            }
            SessionCall::AdoptEndpoint { token, endpoint } => self
                .adopt_endpoint(token, endpoint.map(endpoint_id))
                .map(|endpoint| ServerAnswer::Bound { endpoint: id_of_endpoint(endpoint) }),
            SessionCall::TakeDatagram { endpoint, keeps } => {
                Ok(self.take_datagram(endpoint_id(endpoint), keeps))
            }
            SessionCall::AwaitDatagram { endpoint } => {
                Ok(self.await_datagram(endpoint_id(endpoint)))
            }
            SessionCall::GiveDatagramBack { endpoint, chunk } => {
                let bytes = self.bytes(chunk)?;
                self.give_datagram_back(endpoint_id(endpoint), &bytes)?
            }
            // The other functions answer all others.
            _ => return Err(SessionFault::Call),
        };
        Ok(self.share_answer(answer))
    }

    /// Whether the session is among the owners of an endpoint; counts the name of one that others
    /// own.
    fn owns_endpoint(&mut self, endpoint: DatagramId) -> bool {
        let owner = self.owners.of_endpoint(endpoint);
        let owns =
            owner == Some(self.id) || self.shared.endpoints.owners.has_session(endpoint, self.id);
        self.session.counters.foreign_names += u64::from(!owns && owner.is_some());
        owns
    }

    /// The state of an endpoint that the session owns and that was shared.
    fn shared_endpoint(
        &mut self,
        endpoint: DatagramId,
    ) -> Result<&mut SharedEndpointState, ShardShareError> {
        let state = match self.owns_endpoint(endpoint) {
            true => self.shared.endpoints.get_mut(endpoint),
            false => None,
        };
        state.ok_or(ShardShareError::NotOwned)
    }

    fn hold_endpoint(
        &mut self,
        cookie: u64,
        endpoint: Option<DatagramId>,
    ) -> Result<(), ShardShareError> {
        let token = self.made_token(cookie)?;
        let held = match endpoint {
            Some(endpoint) if self.owns_endpoint(endpoint) => vec![endpoint],
            Some(_) => return Err(ShardShareError::NotOwned),
            None => self.all_endpoints(),
        };
        let owners = &self.shared.endpoints.owners;
        let is_new = |it: &&DatagramId| !owners.has_token(token.number(), **it);
        if !self.shared.may_hold(&token, held.iter().filter(is_new).count()) {
            return Err(ShardShareError::Holds);
        }
        self.share_work().note_token(&token)?;
        for endpoint in held {
            self.begin_sharing(endpoint)?;
            let user = self.owners.of_endpoint(endpoint);
            self.shared.endpoints.owners.hold(token.number(), endpoint, user);
        }
        self.check_holder(&token)
    }

    /// The endpoints of the session, and of the token by which it was opened.
    fn all_endpoints(&self) -> Vec<DatagramId> {
        let owners = &self.shared.endpoints.owners;
        let by_token = self.own_token().map(|own| owners.objects_of_token(own));
        let shared = owners.objects_of(self.id).into_iter().chain(by_token.into_iter().flatten());
        let mut all: Vec<_> = self.owners.endpoints(self.id).chain(shared).collect();
        all.sort_unstable_by_key(|endpoint| endpoint.index);
        all.dedup();
        all
    }

    /// Datagrams of an endpoint of the session wait here from now on.
    fn begin_sharing(&mut self, endpoint: DatagramId) -> Result<(), ShardShareError> {
        if self.shared.endpoints.has(endpoint) {
            return Ok(());
        }
        let rights = self.session.limits.rights.as_ref();
        let account = self.server.parts().1.open_account(self.owners.shard(), rights);
        let account = account.ok_or(ShardShareError::NoMemory)?;
        let reservations = &mut self.session.reservations;
        let place =
            reservations.iter().position(|(of, _)| *of == ReservingObject::Endpoint(endpoint));
        let kept = place.map(|place| reservations.swap_remove(place).1);
        self.shared.endpoints.insert(endpoint, SharedEndpointState::new(account, kept));
        let user = Some(self.id);
        self.share_work().set_endpoint_user(endpoint, user);
        Ok(())
    }

    fn adopt_endpoint(
        &mut self,
        cookie: u64,
        endpoint: Option<DatagramId>,
    ) -> Result<DatagramId, ShardShareError> {
        let token = self.passed_token(cookie).ok_or(ShardShareError::NotPassed)?;
        let owners = &self.shared.endpoints.owners;
        let first = || {
            let its = owners.objects_of_token(token.number()).into_iter();
            its.min_by_key(|it| (owners.has_session(*it, self.id), it.index))
        };
        let endpoint = endpoint.or_else(first).ok_or(ShardShareError::NotOwned)?;
        if !owners.has_token(token.number(), endpoint) {
            return Err(ShardShareError::NotOwned);
        }
        if owners.has_session(endpoint, self.id) {
            // It has it already, which its client finds by the name.
            return Ok(endpoint);
        }
        let count = (self.session.endpoints, self.session.limits.endpoints);
        self.check_quota(count, ENDPOINTS).map_err(|_| ShardShareError::Endpoints)?;
        self.shared.endpoints.owners.adopt(token.number(), endpoint, self.id);
        self.session.endpoints += 1;
        self.count_for_user(ENDPOINTS, true);
        if let Some(state) = self.shared.endpoints.get_mut(endpoint) {
            state.charge = None;
        }
        if self.owners.of_endpoint(endpoint).is_none() {
            let user = Some(self.id);
            self.share_work().set_endpoint_user(endpoint, user);
        }
        Ok(endpoint)
    }

    /// As `shared_endpoint`, for a call that asks for a datagram. One that the session owns alone
    /// and of which none waits is shared no more: its datagrams go to the session directly.
    fn asked_endpoint(&mut self, endpoint: DatagramId) -> Option<&mut SharedEndpointState> {
        let (id, own) = (self.id, self.own_token());
        let has_waiting = self.shared_endpoint(endpoint).ok()?.waiting(0) > 0;
        if !has_waiting && self.shared.endpoints.owners.is_only_owner(endpoint, id, own) {
            let state = self.shared.endpoints.remove(endpoint)?;
            self.server.parts().1.close_account(state.account);
            let kept = state.kept.map(|kept| (ReservingObject::Endpoint(endpoint), kept));
            self.session.reservations.extend(kept);
            return None;
        }
        let state = self.shared.endpoints.get_mut(endpoint)?;
        state.ask(id);
        Some(state)
    }

    fn await_datagram(&mut self, endpoint: DatagramId) -> ServerAnswer {
        match self.asked_endpoint(endpoint) {
            Some(state) => ServerAnswer::Value { value: state.waiting(0).into() },
            None => ServerAnswer::refused(Refusal::Unknown),
        }
    }

    fn take_datagram(&mut self, endpoint: DatagramId, keeps: bool) -> ServerAnswer {
        let Some(state) = self.asked_endpoint(endpoint) else {
            return ServerAnswer::refused(Refusal::Unknown);
        };
        let waiting = state.waiting(usize::from(!keeps));
        let Some(datagram) = self.shared.endpoints.get(endpoint).and_then(|it| it.get(0)) else {
            return self.written(&[]);
        };
        let mut bytes = vec![0; datagram.len() as usize];
        let mut from = 0;
        let (_, memory) = self.server.parts();
        for part in &datagram.parts {
            let to = from + part.len as usize;
            memory.copy_out(*part, &mut bytes[from..to]);
            from = to;
        }
        let answer =
            self.written(&encode_datagram((datagram.from, datagram.arrival), waiting, &bytes));
        if !keeps && let Some(state) = self.shared.endpoints.get_mut(endpoint) {
            let taken = state.pop();
            self.session.datagrams_given += 1;
            let (_, memory) = self.server.parts();
            taken.into_iter().flat_map(|it| it.parts).for_each(|part| memory.free(part.buf));
        }
        answer
    }

    /// Puts a datagram before those that wait. Without room it is dropped, as if it came late.
    fn give_datagram_back(
        &mut self,
        endpoint: DatagramId,
        bytes: &[u8],
    ) -> Result<Result<ServerAnswer, ShardShareError>, SessionFault> {
        let (datagram, _) = decode_datagram(bytes).ok_or(SessionFault::Call)?;
        if let Err(error) = self.shared_endpoint(endpoint) {
            return Ok(Err(error));
        }
        let Some(given) = self.session.datagrams_given.checked_sub(1) else {
            return Err(SessionFault::GivenBack);
        };
        self.session.datagrams_given = given;
        let way = (datagram.from, datagram.arrival);
        if !self.share_work().return_datagram(endpoint, way, &datagram.bytes) {
            self.session.counters.datagrams_dropped += 1;
        }
        Ok(Ok(ServerAnswer::Done))
    }

    /// Whether the session is among the owners of an endpoint that was shared; then it is the user
    /// from now on.
    #[cold]
    pub(super) fn use_endpoint(&mut self, endpoint: DatagramId) -> bool {
        let is_owner = self.shared.endpoints.owners.has_session(endpoint, self.id);
        if is_owner {
            let user = Some(self.id);
            self.share_work().set_endpoint_user(endpoint, user);
        }
        is_owner
    }

    /// The session lets go of an endpoint that was shared. Returns `false` if it was not.
    pub(super) fn leave_endpoint(&mut self, endpoint: DatagramId) -> bool {
        let Some(state) = self.shared.endpoints.get_mut(endpoint) else { return false };
        state.forget(self.id);
        let was_user = self.owners.of_endpoint(endpoint) == Some(self.id);
        let left = self.shared.endpoints.owners.release(endpoint, self.id, self.own_token());
        match left {
            OwnersLeft::Session(_) if !was_user => {}
            left => self.share_work().pass_endpoint_on(endpoint, left),
        }
        true
    }

    /// The session ends: it lets go of endpoints that another session uses.
    pub(super) fn leave_all_endpoints(&mut self) {
        for endpoint in self.shared.endpoints.owners.objects_of(self.id) {
            self.close_endpoint(endpoint);
        }
    }
}

impl SharingWork<'_> {
    /// A session uses an endpoint from now on, or none. What the stack has received of it, perhaps
    /// into the memory of the former user, waits here.
    fn set_endpoint_user(&mut self, endpoint: DatagramId, user: Option<PoolId>) {
        match user {
            Some(user) => self.owners.add_endpoint(user, endpoint),
            None => self.owners.remove_endpoint(endpoint),
        }
        let Some(state) = self.shared.endpoints.get(endpoint) else { return };
        let pool = user.unwrap_or(state.account);
        let mut taken = Vec::new();
        let (stack, memory) = self.server.parts();
        // It is open as long as it has a state.
        let _ = stack.set_datagram_pool((endpoint, pool), memory, |from, arrival, chunk| {
            taken.push((from, arrival, chunk));
        });
        for (from, arrival, chunk) in taken {
            // One that is dropped is lost, as datagrams are.
            let _ = self.store_datagram(endpoint, (from, arrival), chunk);
        }
    }

    /// A datagram waits behind the others. Returns `false` if it was dropped.
    fn store_datagram(
        &mut self,
        endpoint: DatagramId,
        (from, arrival): (SocketAddr, Arrival),
        chunk: Chunk,
    ) -> bool {
        let parts = self.store_parts(endpoint, chunk);
        match (parts, self.shared.endpoints.get_mut(endpoint)) {
            (Some(parts), Some(state)) => {
                state.push_last(StoredDatagram { from, arrival, parts });
                self.shared.endpoints.note_arrived(endpoint);
                true
            }
            _ => false,
        }
    }

    /// Moves the bytes of a datagram to the shard's own memory. `None`: there is no room, and they
    /// are dropped.
    fn store_parts(&mut self, endpoint: DatagramId, chunk: Chunk) -> Option<Vec<Chunk>> {
        let (_, memory) = self.server.parts();
        let state = self.shared.endpoints.get(endpoint).filter(|state| !state.is_full());
        let Some(account) = state.map(|state| state.account) else {
            memory.free(chunk.buf);
            return None;
        };
        if chunk.len == 0 {
            memory.free(chunk.buf);
            return Some(Vec::new());
        }
        if session_of(chunk.buf) == PoolId(0) {
            return Some(vec![chunk]);
        }
        let (mut parts, mut left) = (Vec::new(), Some(chunk));
        while let Some(chunk) = left.take() {
            match memory.move_part(account, chunk) {
                Some((part, rest)) => {
                    parts.push(part);
                    left = rest;
                }
                None => {
                    parts.push(chunk);
                    parts.iter().for_each(|part: &Chunk| memory.free(part.buf));
                    return None;
                }
            }
        }
        Some(parts)
    }

    /// As `store_datagram`, of bytes that a session gives back: before the others.
    fn return_datagram(
        &mut self,
        endpoint: DatagramId,
        (from, arrival): (SocketAddr, Arrival),
        bytes: &[u8],
    ) -> bool {
        let (_, memory) = self.server.parts();
        let state = self.shared.endpoints.get_mut(endpoint).filter(|state| !state.is_full());
        let Some(state) = state else { return false };
        let (mut parts, mut left) = (Vec::new(), bytes);
        while !left.is_empty() {
            let Some(buf) = memory.alloc(state.account) else {
                parts.iter().for_each(|part: &Chunk| memory.free(part.buf));
                return false;
            };
            let (part, rest) = left.split_at(left.len().min(memory.buf_bytes(buf) as usize));
            memory.copy_in(buf, 0, part);
            parts.push(Chunk { buf, offset: 0, len: part.len() as u32 });
            left = rest;
        }
        state.push_first(StoredDatagram { from, arrival, parts });
        self.shared.endpoints.note_arrived(endpoint);
        true
    }

    /// The user of an endpoint has let go of it, or its last owner.
    fn pass_endpoint_on(&mut self, endpoint: DatagramId, left: OwnersLeft<PoolId>) {
        match left {
            OwnersLeft::Session(next) => self.set_endpoint_user(endpoint, Some(next)),
            OwnersLeft::Tokens => {
                self.set_endpoint_user(endpoint, None);
                let token = self.shared.endpoints.owners.token_of(endpoint);
                let rights = token.and_then(|number| self.shared.rights_of_token(number));
                if let Some(state) = self.shared.endpoints.get_mut(endpoint) {
                    // It counts once.
                    state.charge = None;
                    let kind = QuotaKind::UserEndpoints;
                    state.charge = rights.and_then(|it| it.charge(kind, 1).ok());
                }
            }
            OwnersLeft::Nothing => self.end_endpoint(endpoint),
        }
    }

    /// An endpoint has no owner any more.
    fn end_endpoint(&mut self, endpoint: DatagramId) {
        self.server.close_datagram(endpoint);
        self.owners.remove_endpoint(endpoint);
        let Some(mut state) = self.shared.endpoints.remove(endpoint) else { return };
        let (_, memory) = self.server.parts();
        state.take_buffers().iter().for_each(|part| memory.free(part.buf));
        memory.close_account(state.account);
        if let Some(kept) = state.kept {
            self.server.leave_reservation(&kept);
        }
    }

    /// A token owns an endpoint no more.
    pub(super) fn after_endpoint_release(
        &mut self,
        endpoint: DatagramId,
        left: OwnersLeft<PoolId>,
    ) {
        match left {
            OwnersLeft::Session(_) => {}
            // It counts for another token from now on.
            left => self.pass_endpoint_on(endpoint, left),
        }
    }

    /// No process holds a token any more.
    pub(super) fn end_token_of_endpoints(&mut self, number: u64) {
        for (endpoint, left) in self.shared.endpoints.owners.end_token(number) {
            self.after_endpoint_release(endpoint, left);
        }
    }
}

/// Events.
impl SessionShard {
    /// A datagram of an endpoint that was shared waits for its owners.
    pub(super) fn keep_shared_datagram(
        &mut self,
        now: Instant,
        (endpoint, from): (DatagramId, SocketAddr),
        chunk: Chunk,
    ) {
        let arrival = self.server.stack().last_arrival();
        let is_kept = self.share_work(now).store_datagram(endpoint, (from, arrival), chunk);
        let user = self.owners.of_endpoint(endpoint);
        if let Some(session) = user.and_then(|user| self.sessions.get_mut(user))
            && !is_kept
        {
            session.counters.datagrams_dropped += 1;
        }
    }

    /// Informs sessions of datagrams that wait. Returns how many records.
    pub(super) fn inform_of_datagrams(&mut self, now: Instant) -> u32 {
        let mut count = 0;
        for (endpoint, sessions, waiting) in self.shared.endpoints.take_informed() {
            let says = Says::DatagramWaits { endpoint: id_of_endpoint(endpoint), len: waiting - 1 };
            for session in sessions {
                self.put(
                    now,
                    session,
                    Completion { cookie: u64::MAX, event: says }.record(),
                    false,
                );
                count += 1;
            }
        }
        count
    }
}
