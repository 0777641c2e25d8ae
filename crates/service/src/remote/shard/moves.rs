//! Connections of a session that move to the kernel, as sockets for its application. The other
//! direction is in `take_over.rs`.
//!
//! Read first: `migration.rs` of this crate, decisions 0020 and 0047.
//!
//! ```text
//!  MoveOut        checks what can be refused; the connection leaves the stack
//!  PrependUnread  bytes that the application had received and not read, before the unread ones
//!  FinishMove     a silent socket has the connection; GIVE; the link leaves the flow; it is active
//! ```
//!
//! Invariants
//! - What can be refused is checked in `MoveOut`, which leaves the connection as it is then.
//! - A connection that has left the stack and does not get to the kernel is reset.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use megapipe_link::LinkError;
use megapipe_link::migration::{Checkpoint, RepairError, Successor, trial};
use megapipe_shm::record::{ServerAnswer, SessionCall};
use megapipe_stack::{ConnId, Memory, PoolId, Snapshot};

use super::calls::Answered;
use super::moving_conn::MovingConn;
use super::ops::SessionWork;
use super::session_limits::SessionFault;
use crate::migration::{NotShared, check_established, checkpoint_of, tcp_flow};
use crate::policy::{QuotaKind, QuotaReached};
use crate::remote::OTHER_SHARD;
use crate::remote::encoding::{conn_id, id_of};

/// Why a connection did not move.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShardMoveError {
    #[error("the connection is over")]
    Unknown,
    #[error("the stack has an address of its own on this link, which no kernel socket can have")]
    OwnAddress,
    #[error("both its ends are in the daemon's stack, where the kernel cannot reach the other")]
    Looped,
    #[error("no socket of a connection was passed with this cookie")]
    NotPassed,
    #[error("the connection's local address {0} is not the stack's")]
    NotLocal(IpAddr),
    #[error("both ends of the connection are at addresses of the stack")]
    BothLocal,
    #[error("the connection's segments arrive at another shard")]
    OtherShard,
    #[error("the connection has {0} bytes that the program has not read, of {1} at most")]
    Unread(usize, usize),
    #[error("the session has no room for the bytes that are still to be sent")]
    NoMemory,
    #[error("the stack takes no such connection: {0}")]
    NotImported(&'static str),
    #[error(
        "it is shared, or received bytes wait for a buffer of the program, or its end is queued"
    )]
    Busy,
    #[error("the program takes no descriptors: its protocol version is older")]
    NoControl,
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    #[error(transparent)]
    Repair(#[from] RepairError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the socket cannot be passed to the program: {0}")]
    Give(io::Error),
}

impl ShardMoveError {
    fn raw_os_error(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Unknown => Errno::NOTCONN,
            Self::OwnAddress | Self::Looped | Self::NoControl | Self::BothLocal => Errno::OPNOTSUPP,
            Self::NotPassed => Errno::BADF,
            Self::NotLocal(_) | Self::NotImported(_) => Errno::ADDRNOTAVAIL,
            // The client tries the next shard.
            Self::OtherShard => return OTHER_SHARD,
            Self::Unread(..) | Self::NoMemory => Errno::NOBUFS,
            Self::Busy => Errno::AGAIN,
            Self::Quota(_) => Errno::DQUOT,
            Self::Repair(error) => return error.raw_os_error(),
            Self::Link(LinkError::Setting { .. }) => Errno::NOBUFS,
            Self::Link(_) => Errno::IO,
            Self::Give(source) => return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        };
        errno.raw_os_error()
    }
}

impl From<NotShared> for ShardMoveError {
    fn from(why: NotShared) -> Self {
        if why == NotShared::OtherShard { Self::OtherShard } else { Self::OwnAddress }
    }
}

impl SessionWork<'_> {
    /// As `answer`, of calls that move a connection to the kernel. One connection of the session is
    /// under way at a time: another one that still is ends.
    pub(super) fn answer_move(&mut self, call: SessionCall) -> Answered {
        let moved = match call {
            SessionCall::MoveOut { conn } => {
                self.end_move();
                self.move_out(conn_id(conn)).map(|()| ServerAnswer::Done)
            }
            SessionCall::FinishMove { conn } => {
                self.session.prepended_bytes = 0;
                let is_its = |moving: &mut MovingConn| moving.conn == conn_id(conn);
                match self.session.moving.take_if(is_its) {
                    Some(moving) => {
                        self.finish_move(moving).map(|cookie| ServerAnswer::Value { value: cookie })
                    }
                    None => Err(ShardMoveError::Unknown),
                }
            }
            SessionCall::TakeOver { cookie } => {
                self.take_over(cookie).map(|conn| ServerAnswer::Connecting { conn: id_of(conn) })
            }
            SessionCall::TakeUnread => Ok(self.take_unread()),
            // The other functions answer all others.
            _ => return Err(SessionFault::Call),
        };
        Ok(moved
            .unwrap_or_else(|error| self.refused_by_host(error.raw_os_error(), &error.to_string())))
    }

    fn move_out(&mut self, conn: ConnId) -> Result<(), ShardMoveError> {
        if !self.has_conn(conn) {
            return Err(ShardMoveError::Unknown);
        }
        self.server.shared_interface()?;
        self.check_move(conn)?;
        let ends = self.server.stack().addresses(conn).map_err(|_| ShardMoveError::Unknown)?;
        let (local, remote) = ends;
        if self.server.is_own(remote) {
            return Err(ShardMoveError::Looped);
        }
        if self.session.limits.descriptors.is_none() {
            return Err(ShardMoveError::NoControl);
        }
        if let Some(rights) = &self.session.limits.rights {
            rights.check(QuotaKind::UserMovedConnections)?;
        }
        self.server.check_release(tcp_flow(local, remote))?;
        trial()?;
        self.server.drain(self.now)?;
        // The peer may have closed with what was received just now.
        self.check_move(conn)?;
        let (stack, memory) = self.server.parts();
        let exported = stack.export(self.now, conn, memory);
        let mut snapshot = exported.map_err(|_| ShardMoveError::Unknown)?;
        snapshot.unacked.extend(self.session.deferred.take_of(conn));
        let mut unread = self.take_shared_bytes(conn);
        let (_, memory) = self.server.parts();
        for chunk in std::mem::take(&mut snapshot.unread) {
            let from = unread.len();
            unread.resize(from + chunk.len as usize, 0);
            memory.copy_out(chunk, &mut unread[from..]);
            memory.free(chunk.buf);
        }
        let hand_over = self.owners.remove_conn(conn);
        self.finish_handed(conn, hand_over);
        self.session.moving = Some(MovingConn { conn, snapshot, unread });
        self.grant_withheld();
        Ok(())
    }

    fn check_move(&self, conn: ConnId) -> Result<(), ShardMoveError> {
        let info = self.server.stack().info(conn).map_err(|_| ShardMoveError::Unknown)?;
        check_established(info.state)?;
        let is_stranded = self.session.stranded.has(conn) || self.shared.owners.is_shared(conn);
        match is_stranded || self.session.deferred.has_end(conn) {
            true => Err(ShardMoveError::Busy),
            false => Ok(()),
        }
    }

    /// Returns the cookie that the socket was given with.
    fn finish_move(&mut self, moving: MovingConn) -> Result<u64, ShardMoveError> {
        let MovingConn { snapshot, unread, .. } = moving;
        let (_, memory) = self.server.parts();
        let checkpoint = checkpoint_of(&snapshot, unread, memory);
        match self.enter_kernel(checkpoint) {
            Ok(cookie) => {
                let (_, memory) = self.server.parts();
                snapshot.unacked.iter().for_each(|chunk| memory.free(chunk.buf));
                Ok(cookie)
            }
            Err(error) => {
                self.reset_moving(&snapshot);
                Err(error)
            }
        }
    }

    fn enter_kernel(&mut self, checkpoint: Checkpoint) -> Result<u64, ShardMoveError> {
        let flow = tcp_flow(checkpoint.local, checkpoint.remote);
        let interface = self.server.shared_interface()?;
        let limits = &self.session.limits;
        let kind = QuotaKind::UserMovedConnections;
        let charge = limits.rights.as_ref().map(|rights| rights.charge(kind, 1)).transpose()?;
        let descriptors = limits.descriptors.clone().ok_or(ShardMoveError::NoControl)?;
        let successor = Successor::prepare(checkpoint, interface)?;
        self.server.release_for(flow, charge)?;
        self.session.last_given += 1;
        let cookie = self.session.last_given;
        let given = descriptors.give(cookie, successor.fd().as_fd());
        let started = given.map_err(ShardMoveError::Give).and_then(|()| Ok(successor.start()?));
        match started {
            // The application has its own.
            Ok(_socket) => Ok(cookie),
            Err(error) => {
                // If not even this is possible the port decides, as before the move.
                let _ = self.server.take(flow);
                Err(error)
            }
        }
    }

    /// Resets a connection that has left the stack.
    fn reset_moving(&mut self, snapshot: &Snapshot) {
        let (stack, memory) = self.server.parts();
        match stack.import(self.now, snapshot, (PoolId(0), memory)) {
            Ok(conn) => self.server.refuse(self.now, conn),
            Err(_) => snapshot.unacked.iter().for_each(|chunk| memory.free(chunk.buf)),
        }
    }

    /// Resets the connection that is under way, if there is one.
    pub(super) fn end_move(&mut self) {
        if let Some(moving) = self.session.moving.take() {
            self.reset_moving(&moving.snapshot);
        }
    }
}
