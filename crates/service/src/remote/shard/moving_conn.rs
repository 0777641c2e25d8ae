//! A connection of a session between the stack and the kernel.
//!
//! Read first: `moves.rs`. Invariant: its chunks are in no queue of the stack.

use megapipe_stack::{ConnId, Snapshot};

use crate::limits::CALL_BYTES;

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

/// What a session has not taken of a connection that came from the kernel.
#[derive(Debug)]
pub(super) struct TakenUnread {
    pub(super) conn: ConnId,
    bytes: Vec<u8>,
    /// Bytes that were taken.
    taken: usize,
}

impl TakenUnread {
    /// `None`: there are no bytes.
    pub(super) fn new(conn: ConnId, bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { conn, bytes, taken: 0 })
    }

    /// The next bytes, as many as an answer has room for.
    pub(super) fn next(&mut self) -> &[u8] {
        let from = self.taken;
        self.taken = (from + CALL_BYTES).min(self.bytes.len());
        &self.bytes[from..self.taken]
    }

    /// Whether all were taken.
    pub(super) const fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
}
