//! Shared connections that are being opened: which owners learn how that ends.
//!
//! Read first: `shared_conns.rs`; decision 0055.
//!
//! A session that adopts one gets `Connected` or `Closed` as the session that began it. A failure
//! that comes while tokens own the connection stays here for those that adopt it later, as the
//! pending error of a socket does on Linux.
//!
//! Invariants
//! - A connection is `Pending` from the first token on until the shard enqueues `Connected` or
//!   `Closed`: a session that adopts it meanwhile gets that event.
//! - Of one that has `Failed` nothing is left but the tokens that own it, which `HOLDS_MAX` bounds.

use std::collections::HashSet;

use megapipe_shm::record::ServerAnswer;
use megapipe_stack::{CloseReason, ConnId};

use super::ops::SessionWork;
use super::ownership::OwnersLeft;
use super::share::ShardShareError;
use super::shared_conns::{SharedConns, SharedHandshake};
use crate::remote::encoding::{close_code, id_of};

impl SharedConns {
    /// A connection is shared that is being opened.
    pub(super) fn begin_handshake(&mut self, conn: ConnId) {
        self.state(conn).handshake = SharedHandshake::Pending;
    }

    /// Whether a shared connection is being opened.
    #[inline]
    pub(super) fn is_connecting(&self, conn: ConnId) -> bool {
        self.known_state(conn).is_some_and(|state| state.handshake == SharedHandshake::Pending)
    }

    /// Why a connection that tokens own was not established.
    pub(super) fn connect_failure(&self, conn: ConnId) -> Option<CloseReason> {
        match self.known_state(conn)?.handshake {
            SharedHandshake::Failed(reason) => Some(reason),
            SharedHandshake::Complete | SharedHandshake::Pending => None,
        }
    }

    /// A connection is established, or its last owner lets go of it.
    pub(super) fn end_handshake(&mut self, conn: ConnId) {
        if self.is_connecting(conn) {
            self.state(conn).handshake = SharedHandshake::Complete;
            self.tidy(conn);
        }
    }

    /// A connection is over, of which the sessions that own it learn. Returns whether it was being
    /// opened, and tokens own it, whose holders learn of it when they adopt it.
    pub(super) fn fail_handshake(&mut self, conn: ConnId, reason: CloseReason) -> bool {
        if !self.is_connecting(conn) {
            return false;
        }
        let tokens = self.owners.tokens(conn);
        let unread = self.forget(conn);
        debug_assert!(unread.is_empty(), "nothing is received before a connection is established");
        for token in &tokens {
            self.owners.hold(*token, conn, None);
        }
        if !tokens.is_empty() {
            self.state(conn).handshake = SharedHandshake::Failed(reason);
        }
        true
    }

    fn release_failed(&mut self, token: u64, conn: ConnId) {
        if self.owners.release_by_token(token, conn) == OwnersLeft::Nothing {
            self.forget(conn);
        }
    }
}

impl SessionWork<'_> {
    /// The connections that a token is to own: one of the session, or all that the session and its
    /// own token have.
    ///
    /// # Errors
    /// [`ShardShareError::Unknown`].
    pub(super) fn conns_to_hold(
        &mut self,
        conn: Option<ConnId>,
    ) -> Result<HashSet<ConnId>, ShardShareError> {
        let knows_connecting = self.session.limits.shares_connecting;
        if let Some(conn) = conn {
            let is_open = self.has_conn(conn) && self.owners.has_open_conn(self.id, conn);
            return match is_open && (knows_connecting || !self.owners.is_connecting(conn)) {
                true => Ok(HashSet::from([conn])),
                false => Err(ShardShareError::Unknown),
            };
        }
        let open = self.owners.open_conns(self.id).into_iter();
        let shared = self.shared.owners.objects_of(self.id);
        let by_token = self.own_token().map(|own| self.shared.owners.objects_of_token(own));
        let all = open.chain(shared).chain(by_token.into_iter().flatten());
        Ok(all.filter(|conn| knows_connecting || !self.owners.is_connecting(*conn)).collect())
    }

    pub(super) fn answer_adopt(
        &mut self,
        cookie: u64,
        conn: Option<ConnId>,
    ) -> Result<ServerAnswer, ShardShareError> {
        match self.adopt(cookie, conn) {
            Ok(conn) if self.shared.is_connecting(conn) => {
                Ok(ServerAnswer::AdoptedConnecting { conn: id_of(conn) })
            }
            Ok(conn) => Ok(ServerAnswer::Connecting { conn: id_of(conn) }),
            Err(ShardShareError::ConnectFailed(reason)) => {
                Ok(ServerAnswer::ConnectFailed { reason: close_code(reason) })
            }
            Err(error) => Err(error),
        }
    }

    /// Checks that a connection which a token owns is established or being opened. Of one that is
    /// not, the session's own token lets go, as at its close.
    ///
    /// # Errors
    /// [`ShardShareError::ConnectFailed`]; `NotOwned`, of one that is being opened, for a client
    /// that does not know of such connections.
    pub(super) fn check_handshake(
        &mut self,
        cookie: u64,
        conn: ConnId,
    ) -> Result<(), ShardShareError> {
        let knows_connecting = self.session.limits.shares_connecting;
        if let Some(reason) = self.shared.connect_failure(conn) {
            if let Some(own) = self.own_token().filter(|_| cookie == 0) {
                self.shared.release_failed(own, conn);
            }
            return Err(match knows_connecting {
                true => ShardShareError::ConnectFailed(reason),
                false => ShardShareError::NotOwned,
            });
        }
        match self.shared.is_connecting(conn) && !knows_connecting {
            true => Err(ShardShareError::NotOwned),
            false => Ok(()),
        }
    }
}
