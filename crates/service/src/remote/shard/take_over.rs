//! Connections of the kernel's that become the stack's, for the application that has their socket.
//!
//! Read first: `moves.rs`; `migration.rs` of this crate; decision 0047.
//!
//! ```text
//!  PASS        the control thread keeps the socket; nothing changes
//!  TakeOver    the link takes the flow; the socket is frozen and read; the stack has it; it ends
//!  TakeUnread  bytes that the kernel had received, in parts
//! ```
//!
//! Invariants
//! - A refusal undoes what was done before it: the kernel goes on with the connection.
//! - Bytes that the application has not taken yet are of one connection, the last. If the session
//!   ends before they are taken, the connection is reset, as any with unread bytes.

use megapipe_link::FlowTuple;
use megapipe_link::migration::{Predecessor, trial};
use megapipe_shm::record::ServerAnswer;
use megapipe_stack::{ConnId, ConnectError, Memory};

use super::moves::ShardMoveError;
use super::moving_conn::TakenUnread;
use super::ops::SessionWork;
use crate::limits::PREPENDED_BYTES_MAX;
use crate::migration::{snapshot_of, tcp_flow};
use crate::policy::{QuotaCharge, QuotaKind};

impl SessionWork<'_> {
    /// Takes over the connection whose socket was passed with a cookie.
    pub(super) fn take_over(&mut self, cookie: u64) -> Result<ConnId, ShardMoveError> {
        let descriptors = self.session.limits.descriptors.clone();
        let descriptors = descriptors.ok_or(ShardMoveError::NoControl)?;
        let ends = descriptors.connection_ends(cookie).ok_or(ShardMoveError::NotPassed)?;
        let (local, remote) = ends;
        let interface = self.server.interface_of(local, remote)?;
        if !self.server.shares(local) {
            return Err(ShardMoveError::NotLocal(local.ip()));
        }
        if self.server.is_own(remote) {
            return Err(ShardMoveError::BothLocal);
        }
        self.check_connect(remote)?;
        let kind = QuotaKind::UserMovedConnections;
        let rights = self.session.limits.rights.clone();
        let charge = rights.map(|rights| rights.charge(kind, 1)).transpose()?;
        trial()?;
        let connection = descriptors.take_connection(cookie);
        let mut connection = connection.ok_or(ShardMoveError::NotPassed)?;
        let entered =
            self.enter_stack(&mut connection, (interface, tcp_flow(local, remote)), charge);
        match &entered {
            Ok(_) => connection.end(),
            // The application has a descriptor of its own.
            Err(_) => drop(connection.thaw()),
        }
        entered
    }

    fn enter_stack(
        &mut self,
        connection: &mut Predecessor,
        (interface, flow): (u32, FlowTuple),
        charge: Option<QuotaCharge>,
    ) -> Result<ConnId, ShardMoveError> {
        connection.stand_aside(interface)?;
        // First: segments that come from now on wait for the stack, and are not lost.
        self.server.take_for(flow, charge)?;
        self.import(connection).inspect_err(|_| {
            // The link has taken it just now, so it can leave it again.
            let _ = self.server.release(flow);
        })
    }

    fn import(&mut self, connection: &mut Predecessor) -> Result<ConnId, ShardMoveError> {
        connection.freeze()?;
        let mut checkpoint = connection.checkpoint()?;
        let unread = std::mem::take(&mut checkpoint.unread);
        if unread.len() > PREPENDED_BYTES_MAX {
            return Err(ShardMoveError::Unread(unread.len(), PREPENDED_BYTES_MAX));
        }
        let (id, now) = (self.id, self.now);
        let (stack, memory) = self.server.parts();
        let keep = |bytes: Vec<u8>| memory.of_mut(id)?.keep(id, bytes.into());
        let (kept, error) = match snapshot_of(checkpoint, keep) {
            Err(kept) => (kept, ShardMoveError::NoMemory),
            Ok(snapshot) => match stack.import(now, &snapshot, (id, &mut *memory)) {
                Ok(conn) => {
                    // The application learns when the bytes are acknowledged that it has not sent.
                    let awaited = stack.await_acks(conn);
                    debug_assert!(awaited.is_ok(), "it is established");
                    self.owners.add_conn(id, conn, false);
                    self.session.taken_unread = TakenUnread::new(conn, unread);
                    return Ok(conn);
                }
                Err(error) => (snapshot.unacked, ShardMoveError::NotImported(not_imported(error))),
            },
        };
        kept.iter().for_each(|chunk| memory.free(chunk.buf));
        Err(error)
    }

    /// The next unread bytes of the connection that was taken over last.
    pub(super) fn take_unread(&mut self) -> ServerAnswer {
        let Some(mut unread) = self.session.taken_unread.take() else { return self.written(&[]) };
        let answer = self.written(unread.next());
        self.session.taken_unread = Some(unread).filter(|unread| !unread.is_empty());
        answer
    }
}

/// Why the stack does not take a connection, in words.
const fn not_imported(error: ConnectError) -> &'static str {
    match error {
        ConnectError::BadLocalAddress => "its local address is not the stack's",
        ConnectError::BadRemoteAddress => "both its ends are this host's",
        ConnectError::NoRoute => "no route leads to the peer over the stack's link",
        ConnectError::InUse => "the stack has one with the same addresses and ports",
        _ => "the table of connections is full",
    }
}
