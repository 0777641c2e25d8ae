//! Connections that move to the kernel, as sockets that the daemon gives.
//!
//! Read first: `shard/moves.rs`; decision 0047.

use std::os::fd::OwnedFd;

use megapipe_stack::ConnId;

use super::LaneSet;
use crate::error::MoveRefusal;

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
}
