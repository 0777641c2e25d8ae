//! Sharing listeners: tokens that own them, sessions that adopt them, and the last owner's end.
//!
//! Read first: `held_listeners.rs`, `hand_overs.rs`; decision 0069.
//!
//! ```text
//!  HoldListener   a token owns a listener too
//!  AdoptListener  a session is one more acceptor of a listener that a token owns
//!  Unlisten       the session owns it no more; the last owner's end closes it
//! ```

use megapipe_shm::record::{ServerAnswer, SessionCall};
use megapipe_stack::{ListenerId, PoolId};

use super::calls::Answered;
use super::ops::SessionWork;
use super::ownership::OwnersLeft;
use super::session_limits::SessionFault;
use super::shard_session::ReservingObject;
use super::share::{ShardShareError, SharingWork};
use crate::policy::{LISTENERS, QuotaKind};
use crate::remote::encoding::{encode_listener, listener_id};

impl SessionWork<'_> {
    /// As `answer`, of calls that share listeners.
    pub(super) fn answer_shared_listener(&mut self, call: SessionCall) -> Answered {
        let answer = match call {
            SessionCall::HoldListener { token, listener } => {
                self.hold_listener(token, listener_id(listener)).map(|()| ServerAnswer::Done)
            }
            SessionCall::AdoptListener { token } => self.adopt_listener(token),
            // The other functions answer all others.
            _ => return Err(SessionFault::Call),
        };
        Ok(self.share_answer(answer))
    }

    fn hold_listener(&mut self, cookie: u64, listener: ListenerId) -> Result<(), ShardShareError> {
        let token = self.made_token(cookie)?;
        if !self.has_listener(listener) {
            return Err(ShardShareError::NotListening);
        }
        let object = ReservingObject::Listener(listener);
        let is_its = |(of, _): &(ReservingObject, _)| *of == object;
        let place = self.session.reservations.iter().position(is_its);
        let kept = place.map(|place| &self.session.reservations[place].1);
        if kept.is_some_and(|kept| kept.reservation().are_listening()) {
            return Err(ShardShareError::KernelsListener);
        }
        let is_new = !self.shared.listeners.owners.has_token(token.number(), listener);
        if !self.shared.may_hold(&token, is_new.into()) {
            return Err(ShardShareError::Holds);
        }
        self.share_work().note_token(&token)?;
        // From now on the port is reserved until the listener ends, by the sockets of one session.
        let place = place.filter(|_| !self.shared.listeners.keeps_port(listener));
        let kept = place.map(|place| self.session.reservations.swap_remove(place).1);
        self.shared.listeners.hold(token.number(), listener, kept);
        self.owners.set_held(listener);
        self.check_holder(&token)
    }

    fn adopt_listener(&mut self, cookie: u64) -> Result<ServerAnswer, ShardShareError> {
        let token = self.passed_token(cookie).ok_or(ShardShareError::NotPassed)?;
        let its = self.shared.listeners.owners.objects_of_token(token.number()).into_iter();
        let listener = its.min_by_key(|it| it.index).ok_or(ShardShareError::NotOwned)?;
        // One that it has already its client finds by the name.
        if !self.owners.has_listener(self.id, listener) {
            // Its own user may be the one that it counts for.
            self.shared.listeners.set_charge(listener, None);
            let joined = self.try_join_listener(listener);
            if joined.is_err() {
                self.share_work().count_held(listener);
            }
            joined?;
        }
        let options = self.owners.options_of(listener).ok_or(ShardShareError::NotOwned)?;
        Ok(self.written(&encode_listener(listener, options)))
    }

    fn try_join_listener(&mut self, listener: ListenerId) -> Result<(), ShardShareError> {
        let count = (self.session.listeners, self.session.limits.listeners);
        self.check_quota(count, LISTENERS).map_err(ShardShareError::Policy)?;
        if !self.owners.reserve_listener(listener) {
            return Err(ShardShareError::NoMemory);
        }
        self.join_listener(listener);
        Ok(())
    }

    /// The session is one more acceptor of a listener. There is a place for it among the owners.
    pub(super) fn join_listener(&mut self, listener: ListenerId) {
        self.owners.add_listener(self.id, listener);
        self.session.listeners += 1;
        self.count_for_user(LISTENERS, true);
        let has_others = self.owners.sessions_of_listener(listener).len() > 1;
        if !has_others {
            self.shared.listeners.set_charge(listener, None);
            self.share_work().transfer_buffers(listener);
        }
        match self.hand_overs.number_of(listener) {
            Some(number) => self.hand_overs.join(number, self.id),
            None if has_others => self.share_work().begin_hand_over(listener),
            None => {}
        }
    }
}

impl SharingWork<'_> {
    /// A second session listens at an address, or another server has messages about it: new
    /// connections are offered from now on.
    pub(super) fn begin_hand_over(&mut self, listener: ListenerId) {
        let Some(options) = self.owners.options_of(listener) else { return };
        if self.hand_overs.has_room() {
            let acceptors = self.server.take_acceptors(listener);
            let sessions = self.owners.sessions_of_listener(listener);
            self.hand_overs.begin(self.now, (listener, options.address), sessions, acceptors);
        }
    }

    /// A session has left a listener. Tokens own it further, also the one by which the session was
    /// opened: other processes may have it.
    pub(super) fn leave_listener(&mut self, listener: ListenerId, session: PoolId) {
        let left = self.shared.listeners.owners.release(listener, session, None);
        self.after_listener_release(listener, left);
    }

    /// An owner has let go of a listener.
    fn after_listener_release(&mut self, listener: ListenerId, left: OwnersLeft<PoolId>) {
        if !self.owners.sessions_of_listener(listener).is_empty() {
            return self.transfer_buffers(listener);
        }
        match left {
            OwnersLeft::Nothing => self.end_listener(listener),
            OwnersLeft::Tokens | OwnersLeft::Session(_) => {
                self.count_held(listener);
                self.transfer_buffers(listener);
            }
        }
    }

    /// A listener that tokens alone own counts for the user of one.
    fn count_held(&mut self, listener: ListenerId) {
        if !self.owners.sessions_of_listener(listener).is_empty() {
            return;
        }
        // It counts once.
        self.shared.listeners.set_charge(listener, None);
        let token = self.shared.listeners.owners.token_of(listener);
        let rights = token.and_then(|number| self.shared.rights_of_token(number));
        let shard = self.owners.shard();
        let charge = rights.and_then(|its| its.charge_on(QuotaKind::UserListeners, shard).ok());
        self.shared.listeners.set_charge(listener, charge);
    }

    /// Private buffers of a listener's connections count for the session that has listened longest,
    /// or else for the maker of a token.
    fn transfer_buffers(&mut self, listener: ListenerId) {
        let (pool, rights) = self.owners.account_of_listener(listener);
        let rights = match self.owners.sessions_of_listener(listener) {
            [] => {
                let token = self.shared.listeners.owners.token_of(listener);
                token.and_then(|number| self.shared.rights_of_token(number))
            }
            _ => rights,
        };
        if let Some(rights) = rights {
            self.server.parts().1.transfer_account(pool, &rights);
        }
    }

    /// A listener has no owner any more. Connections that were not offered go to other shards that
    /// listen at the address; where there are none, they are reset.
    fn end_listener(&mut self, listener: ListenerId) {
        for kept in self.shared.listeners.remove(listener) {
            self.server.leave_reservation(&kept);
        }
        let (pool, _) = self.owners.account_of_listener(listener);
        self.owners.end_listener(listener);
        let unclaimed = self.hand_overs.end(listener);
        self.server.unlisten(self.now, listener);
        let (stack, memory) = self.server.parts();
        self.groups.leave(stack, listener);
        memory.close_account(pool);
        for conn in unclaimed {
            self.owners.take_offered(conn);
            self.server.hand_over_offered(self.now, conn);
        }
    }

    /// No process holds a token any more.
    pub(super) fn end_token_of_listeners(&mut self, number: u64) {
        for (listener, left) in self.shared.listeners.owners.end_token(number) {
            self.after_listener_release(listener, left);
        }
    }
}
