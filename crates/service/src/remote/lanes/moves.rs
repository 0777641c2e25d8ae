//! Connections that move to the kernel, as sockets that the daemon gives, and those that come from
//! it, as sockets that are passed to the daemon.
//!
//! Read first: `shard/moves.rs`, `shard/take_over.rs`; decisions 0020 and 0047.

use std::os::fd::{BorrowedFd, OwnedFd};

use megapipe_stack::ConnId;

use super::LaneSet;
use crate::descriptors::PassPurpose;
use crate::error::MoveRefusal;
use crate::remote::OTHER_SHARD;

impl LaneSet {
    /// Whether the daemon gives descriptors.
    #[must_use]
    pub const fn takes_descriptors(&self) -> bool {
        self.control.is_some()
    }

    /// Takes an established connection out of the stack, for [`LaneSet::finish_move`]. Events of it
    /// that are on their way still come until [`LaneSet::forget_moved`].
    ///
    /// # Errors
    /// [`MoveRefusal`]; the connection is as it was.
    pub fn move_out(&mut self, conn: ConnId) -> Result<(), MoveRefusal> {
        let (lane, conn) = self.of_conn(conn);
        lane.move_out(conn)
    }

    /// Makes a kernel socket of the connection that was moved out. `bytes` were received and not
    /// read.
    ///
    /// # Errors
    /// [`MoveRefusal`]; the connection was reset.
    pub fn finish_move(&mut self, conn: ConnId, bytes: &[u8]) -> Result<OwnedFd, MoveRefusal> {
        let (lane, conn) = self.of_conn(conn);
        let cookie = lane.finish_move(conn, bytes)?;
        let control = self.control.as_mut();
        let given = control.and_then(|control| control.take_given(cookie));
        given.ok_or_else(MoveRefusal::gone)
    }

    /// Takes a connection of the kernel's into the stack, and the bytes that the kernel had
    /// received. The kernel's socket is gone then.
    ///
    /// # Errors
    /// [`MoveRefusal`]; the kernel goes on with the connection.
    pub fn take_over(&mut self, fd: BorrowedFd<'_>) -> Result<(ConnId, Vec<u8>), MoveRefusal> {
        let control = self.control.as_mut().filter(|control| control.passes_sockets());
        let control = control.ok_or_else(MoveRefusal::old_service)?;
        let cookie = control.pass(PassPurpose::Connection, &[fd]);
        let cookie = cookie.map_err(|error| MoveRefusal::of_passed(&error))?;
        let mut taken = Err(MoveRefusal::gone());
        for lane in 0..self.lanes() {
            taken = self.lane(lane).take_over(cookie).map(|(conn, unread)| {
                // A name of the channel's.
                (self.name_of(lane, conn), unread)
            });
            match &taken {
                Err(refusal) if refusal.raw_os_error() == OTHER_SHARD => {}
                _ => break,
            }
        }
        if taken.is_err() {
            self.forget_port(cookie);
        }
        taken
    }
}
