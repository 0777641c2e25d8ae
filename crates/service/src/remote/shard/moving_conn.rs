//! A connection of a session between the stack and the kernel.
//!
//! Read first: `moves.rs`. Invariant: its chunks are in no queue of the stack.

use megapipe_stack::{ConnId, Snapshot};

/// A connection that has left the stack.
pub(super) struct MovingConn {
    pub(super) conn: ConnId,
    pub(super) snapshot: Snapshot,
    /// Bytes that were received and not read.
    pub(super) unread: Vec<u8>,
}

impl MovingConn {
    /// Puts bytes before the unread ones, if the connection is this one.
    pub(super) fn prepend(&mut self, conn: ConnId, bytes: &[u8]) {
        if self.conn == conn {
            self.unread.splice(0..0, bytes.iter().copied());
        }
    }
}
