//! Names of connections: the session's own, and the server's.
//!
//! The answer to a call overtakes the events before it, which are set aside. So the server may use
//! an index for another connection while events of the first one are unread: that one is
//! superseded, and keeps its events until it is forgotten.
//!
//! Invariants
//! - `by_server[conn.index]` names the connection that the server knows under that index, and no
//!   other. A connection with a name of the server's is either there or in `superseded`.
//! - A name is not used again while its last event may be in the backlog.

use megapipe_shm::record::{Id, SessionCall};
use megapipe_stack::{ConnId, OperationError};

use super::{Conn, ProtocolFault, RemoteClient};
use crate::remote::encoding::conn_id;

impl RemoteClient {
    /// A new name, for a connection that the server has not named yet.
    pub(super) fn name(&mut self) -> ConnId {
        let free = if self.backlog.is_empty() { self.free.pop() } else { None };
        let index = free.unwrap_or_else(|| {
            self.conns.push(Conn::default());
            (self.conns.len() - 1) as u32
        });
        let conn = &mut self.conns[index as usize];
        let generation = conn.generation;
        let send_buffer_bytes = self.sends.buffer_bytes;
        *conn = Conn { generation, is_used: true, send_buffer_bytes, ..Conn::default() };
        ConnId { index, generation }
    }

    /// A name of the session's own for a connection that the server has named.
    ///
    /// # Errors
    /// As [`RemoteClient::map`].
    pub(super) fn adopt(&mut self, server: ConnId) -> Result<ConnId, ProtocolFault> {
        let conn = self.name();
        self.map(server, conn).inspect_err(|_| self.forget(conn))?;
        Ok(conn)
    }

    /// As `adopt`, of a connection that the answer to a call names: the end of the connection that
    /// had its index may be unread.
    ///
    /// # Errors
    /// As [`RemoteClient::map`].
    pub(in crate::remote) fn adopt_answered(
        &mut self,
        server: ConnId,
    ) -> Result<ConnId, ProtocolFault> {
        let before = self.by_server.get(server.index as usize).copied().flatten();
        if let Some(before) = before
            && self.conns[before.index as usize].server != Some(server)
        {
            self.supersede(before);
        }
        self.adopt(server)
    }

    /// The server may use the index of a connection for another one from now on. Unread events of
    /// the connection still come.
    pub(super) fn supersede(&mut self, conn: ConnId) {
        if let Ok(server) = self.server_of(conn)
            && self.by_server[server.index as usize].take_if(|there| *there == conn).is_some()
        {
            self.superseded.push(conn);
        }
    }

    /// The server has named a connection.
    ///
    /// # Errors
    /// An index beyond the agreed number of connections, or one that another connection has.
    pub(super) fn map(&mut self, server: ConnId, conn: ConnId) -> Result<(), ProtocolFault> {
        let index = server.index as usize;
        if server.index >= self.description.connections {
            return Err(ProtocolFault);
        }
        if self.by_server.len() <= index {
            self.by_server.resize(index + 1, None);
        }
        if self.by_server[index].replace(conn).is_some() {
            return Err(ProtocolFault);
        }
        self.conns[conn.index as usize].server = Some(server);
        Ok(())
    }

    pub(super) fn is_known(&self, conn: ConnId) -> bool {
        let there = self.conns.get(conn.index as usize);
        there.is_some_and(|it| it.is_used && it.generation == conn.generation)
    }

    /// The server's name of a connection.
    pub(super) fn server_of(&self, conn: ConnId) -> Result<ConnId, OperationError> {
        if !self.is_known(conn) {
            return Err(OperationError::Unknown);
        }
        self.conns[conn.index as usize].server.ok_or(OperationError::NotConnected)
    }

    /// As [`RemoteClient::named`], of a connection that may have been opened a moment ago: waits
    /// until the server has answered that.
    pub(in crate::remote) fn named_soon(&mut self, conn: ConnId) -> Option<ConnId> {
        if self.is_known(conn) && self.conns[conn.index as usize].server.is_none() {
            // The op's answer is there before this one.
            self.call(SessionCall::Sync)?;
            self.collect_events();
        }
        self.named(conn)
    }

    /// The server's name of a connection, for calls.
    pub(in crate::remote) fn named(&self, conn: ConnId) -> Option<ConnId> {
        self.server_of(conn).ok()
    }

    /// The session's name of a connection that the server speaks of; `None`: it was let go of.
    #[inline]
    pub(super) fn ours(&self, server: Id) -> Option<ConnId> {
        let is_named =
            |conn: &ConnId| self.conns[conn.index as usize].server == Some(conn_id(server));
        let conn = self.by_server.get(server.index as usize).copied().flatten();
        conn.filter(is_named).or_else(|| self.superseded.iter().copied().find(is_named))
    }

    pub(super) fn forget(&mut self, conn: ConnId) {
        let state = &mut self.conns[conn.index as usize];
        if let Some(server) = state.server.take()
            && self.by_server[server.index as usize].take_if(|there| *there == conn).is_none()
        {
            self.superseded.retain(|there| *there != conn);
        }
        state.is_used = false;
        state.early = Vec::new();
        state.generation = state.generation.wrapping_add(1);
        self.free.push(conn.index);
    }
}
